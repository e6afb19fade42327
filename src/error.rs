//! What every room's error has in common, and the type that carries any of them upwards.
//!
//! Each room has one error enum (thiserror) and implements [`Diagnostic`] for it. Rooms that call several others
//! (stages, exec, cli) return [`Failure`], into which every such enum converts with `?`. Nothing here prints.

use std::{error::Error, fmt};

/// Whose mistake an error is; decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The work failed: exit code 1.
    Work,
    /// The command line, the run file or a card is wrong: exit code 2.
    Usage,
    /// A person or the system stopped the work: exit code 130.
    Interrupted,
}

/// An error that can be shown to a person: a stable code, a message, and a way out.
///
/// Messages start in lower case and end without a full stop.
pub trait Diagnostic: Error + Send + Sync + 'static {
    /// Stable name, `room::what`, e.g. `store::corrupt`.
    fn code(&self) -> &'static str;

    /// What the person can do about it.
    fn hint(&self) -> Option<String> {
        None
    }

    /// Of an error that is several: each as a JSON object with `code`, `message`, `place`, `line`, `column` and `hint`.
    fn problems(&self) -> Vec<serde_json::Value> {
        Vec::new()
    }

    fn class(&self) -> Class {
        Class::Work
    }

    /// Whether the same may work a little later: the outside world failed, and nobody's mistake is in the way.
    fn is_transient(&self) -> bool {
        false
    }
}

/// Any room's error, with the places it passed on its way up.
pub struct Failure {
    cause: Box<dyn Diagnostic>,
    places: Vec<String>,
}

pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl<E: Diagnostic> From<E> for Failure {
    fn from(cause: E) -> Self {
        Self { cause: Box::new(cause), places: Vec::new() }
    }
}

impl Failure {
    pub fn code(&self) -> &'static str {
        self.cause.code()
    }

    pub fn hint(&self) -> Option<String> {
        self.cause.hint()
    }

    pub fn class(&self) -> Class {
        self.cause.class()
    }

    pub fn is_transient(&self) -> bool {
        self.cause.is_transient()
    }

    /// The room's own error, for callers that must tell cases apart.
    pub fn cause(&self) -> &dyn Diagnostic {
        &*self.cause
    }

    /// Says where it happened: `stage "rollout"`, `line 7 of scenarios.jsonl`.
    #[must_use]
    pub fn at(mut self, place: impl Into<String>) -> Self {
        self.places.push(place.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for place in self.places.iter().rev() {
            write!(f, "{place}: ")?;
        }
        write!(f, "{}", self.cause)?;
        let mut source = self.cause.source();
        while let Some(cause) = source {
            write!(f, ": {cause}")?;
            source = cause.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {self}", self.code())?;
        match self.hint() {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

/// Adds a place to any error on its way up.
pub trait At<T> {
    fn at(self, place: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<Failure>> At<T> for std::result::Result<T, E> {
    fn at(self, place: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|cause| cause.into().at(place()))
    }
}

/// The work was stopped on request, and can go on later.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

impl Diagnostic for Interrupted {
    fn code(&self) -> &'static str {
        "interrupted"
    }

    fn class(&self) -> Class {
        Class::Interrupted
    }
}

/// The name among `known` that `wrong` most likely meant.
pub fn did_you_mean<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|name| (strsim::jaro_winkler(wrong, name), name))
        .filter(|(similarity, _)| *similarity > 0.75)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("no such card")]
    struct NoCard;

    impl Diagnostic for NoCard {
        fn code(&self) -> &'static str {
            "stage::no_card"
        }
    }

    #[test]
    fn a_failure_reads_from_the_outermost_place_inwards() {
        let inner: Result<(), NoCard> = Err(NoCard);
        let failure = inner.at(|| "card.toml".into()).at(|| "stage \"judge\"".into()).unwrap_err();
        assert_eq!(failure.to_string(), "stage \"judge\": card.toml: no such card");
        assert_eq!(failure.code(), "stage::no_card");
    }

    #[test]
    fn a_near_name_is_suggested_and_a_far_one_is_not() {
        let known = ["discover", "scenarios", "rollout"];
        assert_eq!(did_you_mean("rolout", known), Some("rollout"));
        assert_eq!(did_you_mean("zzz", known), None);
    }
}
