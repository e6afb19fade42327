//! The trait that all errors implement, and the type that wraps any of them.
//!
//! Each module has one error enum (thiserror) that derives [`Diagnostic`]. Modules that call several others
//! (stages, exec, cli) return [`Failure`]; `?` converts every such enum into it. Nothing here prints.

use std::{collections::BTreeSet, error::Error, fmt};

/// Derives the trait of the same name; the crate `mcprl-derive` describes the attributes.
pub use mcprl_derive::Diagnostic;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize, Serializer};

/// The class of an error, which decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// An operation failed: exit code 1.
    Work,
    /// The command line, the run file or a card is wrong: exit code 2.
    Usage,
    /// A person or the system stopped the command: exit code 130.
    Interrupted,
}

/// An error that can be shown to a person: a stable code, a message, and a hint.
///
/// Messages start in lower case and end without a full stop.
pub trait Diagnostic: Error + Send + Sync + 'static {
    /// Stable name, `module::what`, e.g. `store::corrupt`.
    fn code(&self) -> &'static str;

    /// What the user can do about it.
    fn hint(&self) -> Option<String> {
        None
    }

    /// If this error combines several: each as a JSON object with `code`, `message`, `place`, `line`, `column` and `hint`.
    fn problems(&self) -> Vec<serde_json::Value> {
        Vec::new()
    }

    fn class(&self) -> Class {
        Class::Work
    }

    /// Whether a later retry may succeed: an external system failed, and nothing needs to be corrected first.
    fn is_transient(&self) -> bool {
        false
    }
}

/// Any module's error, with the context added while it propagated.
pub struct Failure {
    cause: Box<dyn Diagnostic>,
    context: Vec<String>,
}

pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl<E: Diagnostic> From<E> for Failure {
    fn from(cause: E) -> Self {
        Self { cause: Box::new(cause), context: Vec::new() }
    }
}

impl Failure {
    pub fn code(&self) -> &'static str {
        self.cause.code()
    }

    pub fn hint(&self) -> Option<String> {
        // Whatever was written.
        let is_full = || ["os error 28)", "os error 122)"].iter().any(|code| self.to_string().contains(code));
        let full = || is_full().then(|| "there is no space left on the disk: free some".to_owned());
        self.cause.hint().or_else(full)
    }

    pub fn class(&self) -> Class {
        self.cause.class()
    }

    pub fn is_transient(&self) -> bool {
        self.cause.is_transient()
    }

    /// The module's own error, for callers that handle cases differently.
    pub fn cause(&self) -> &dyn Diagnostic {
        &*self.cause
    }

    /// Adds where it happened: `stage "rollout"`, `line 7 of scenarios.jsonl`.
    #[must_use]
    pub fn at(mut self, context: impl Into<String>) -> Self {
        self.context.push(context.into());
        self
    }
}

/// An error and its causes on one line, without repeated texts.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let next = cause.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        source = cause.source();
    }
    text
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for context in self.context.iter().rev() {
            write!(f, "{context}: ")?;
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

/// As an object with `code`, `message` and `hint`.
impl Serialize for Failure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (code, message, hint) = (self.code(), self.to_string(), self.hint());
        serde_json::json!({ "code": code, "message": message, "hint": hint }).serialize(serializer)
    }
}

/// A failure as a value: of another process of the same program, or in a journal.
#[derive(Debug, Clone, PartialEq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct Reported {
    code: String,
    message: String,
    hint: Option<String>,
    class: Class,
    is_transient: bool,
}

impl Reported {
    /// The same failure with another text.
    #[must_use]
    pub fn saying(self, message: String) -> Self {
        Self { message, ..self }
    }

    /// A failure of which only the text is known.
    pub fn of_text(message: String) -> Self {
        let (code, hint) = (String::new(), None);
        Self { code, message, hint, class: Class::Work, is_transient: false }
    }
}

impl From<&Failure> for Reported {
    fn from(failure: &Failure) -> Self {
        Self {
            code: failure.code().to_owned(),
            message: failure.to_string(),
            hint: failure.hint(),
            class: failure.class(),
            is_transient: failure.is_transient(),
        }
    }
}

impl Diagnostic for Reported {
    fn code(&self) -> &'static str {
        static KNOWN: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
        let mut known = KNOWN.lock();
        match known.get(self.code.as_str()) {
            Some(code) => code,
            None => {
                // Each code of the program once.
                let code: &'static str = self.code.clone().leak();
                known.insert(code);
                code
            }
        }
    }

    fn hint(&self) -> Option<String> {
        self.hint.clone()
    }

    fn class(&self) -> Class {
        self.class
    }

    fn is_transient(&self) -> bool {
        self.is_transient
    }
}

/// Adds where it happened to any error.
pub trait At<T> {
    fn at(self, context: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<Failure>> At<T> for std::result::Result<T, E> {
    fn at(self, context: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|cause| cause.into().at(context()))
    }
}

/// The run was stopped on request and can be resumed.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("interrupted")]
#[diagnostic(code = "interrupted", class = interrupted)]
pub struct Interrupted;

/// `did you mean "…"?`, if a name in `known` is similar enough.
pub fn suggest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    did_you_mean(wrong, known).map(|near| format!("did you mean \"{near}\"?"))
}

/// What was found; none if there is no such file or folder.
pub fn if_found<T>(done: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match done {
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(None),
        done => done.map(Some),
    }
}

/// The name in `known` that is most similar to `wrong`, if any is similar enough.
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

    #[derive(Debug, thiserror::Error, Diagnostic)]
    #[error("no such card")]
    #[diagnostic(code = "stage::no_card")]
    struct NoCard;

    #[derive(Debug, thiserror::Error, Diagnostic)]
    #[diagnostic(area = "hub", class = usage)]
    #[hint = "the hub is at {0}"]
    enum HubError {
        #[error("no repository")]
        NoRepository(&'static str),
        #[error("status {status} of {urls:?}")]
        #[diagnostic(code = "refused", class = work if *status >= 500, transient if matches!(status, 429 | 500..))]
        #[hint("look at {near}" if let Some(near) = urls.first() && *status == 404)]
        #[hint(format!("{{401}}: log in at {}", urls.join(" or ")) if *status == 401)]
        #[hint = "status {status:?} has no \"{{cause}}\""]
        Status { status: u16, urls: Vec<&'static str> },
        #[error("cannot read")]
        #[diagnostic(code = "disk::read", class = _0.class(), transient = _0.is_transient())]
        #[hint(_0.hint())]
        Read(Failure),
        #[error("too much")]
        #[hint(None)]
        TooMuch(u8, u8),
        #[error(transparent)]
        #[diagnostic(transparent)]
        Interrupted(#[from] Interrupted),
        #[error(transparent)]
        #[diagnostic(transparent, class = interrupted)]
        Card(#[from] NoCard),
    }

    /// Code, hint, class, and whether it is transient.
    fn shown(error: impl Diagnostic) -> (&'static str, Option<String>, Class, bool) {
        (error.code(), error.hint(), error.class(), error.is_transient())
    }

    #[test]
    fn what_is_derived_is_what_the_variant_says() {
        let hint = |text: &str| Some(text.to_owned());
        let status = |status, urls| HubError::Status { status, urls };
        for (error, code, hint, class, is_transient) in [
            (HubError::NoRepository("x"), "hub::no_repository", hint("the hub is at x"), Class::Usage, false),
            (status(404, vec!["a"]), "hub::refused", hint("look at a"), Class::Usage, false),
            (status(404, vec![]), "hub::refused", hint("status 404 has no \"{cause}\""), Class::Usage, false),
            (
                status(401, vec!["a", "b"]),
                "hub::refused",
                hint("{401}: log in at a or b"),
                Class::Usage,
                false,
            ),
            (status(503, vec![]), "hub::refused", hint("status 503 has no \"{cause}\""), Class::Work, true),
            (
                HubError::Read(status(503, vec![]).into()),
                "disk::read",
                hint("status 503 has no \"{cause}\""),
                Class::Work,
                true,
            ),
            (HubError::TooMuch(1, 2), "hub::too_much", None, Class::Usage, false),
            (Interrupted.into(), "interrupted", None, Class::Interrupted, false),
            (NoCard.into(), "stage::no_card", None, Class::Interrupted, false),
        ] {
            assert_eq!(shown(error), (code, hint, class, is_transient));
        }
        assert_eq!(shown(NoCard), ("stage::no_card", None, Class::Work, false));
    }

    #[test]
    fn a_failure_lists_its_context_from_the_outermost_inwards() {
        let inner: Result<(), NoCard> = Err(NoCard);
        let failure = inner.at(|| "card.toml".into()).at(|| "stage \"judge\"".into()).unwrap_err();
        assert_eq!(failure.to_string(), "stage \"judge\": card.toml: no such card");
        assert_eq!(failure.code(), "stage::no_card");
    }

    #[test]
    fn a_full_disk_has_a_hint_whatever_was_written() {
        let full = std::io::Error::from_raw_os_error(28);
        assert_eq!(Failure::from(NoCard).at("cannot write a").hint(), None);
        let hint = Failure::from(NoCard).at(format!("cannot write a: {full}")).hint();
        assert_eq!(hint.as_deref(), Some("there is no space left on the disk: free some"));
    }

    #[test]
    fn a_failure_of_another_process_says_the_same() {
        let failure = Failure::from(Interrupted).at("stage \"judge\"");
        let text = serde_json::to_string(&Reported::from(&failure)).unwrap();
        let read: Failure = serde_json::from_str::<Reported>(&text).unwrap().into();
        assert_eq!((read.code(), read.to_string()), (failure.code(), failure.to_string()));
        assert_eq!((read.class(), read.hint(), read.is_transient()), (Class::Interrupted, None, false));
    }

    #[test]
    fn only_a_similar_name_is_suggested() {
        let known = ["discover", "scenarios", "rollout"];
        assert_eq!(did_you_mean("rolout", known), Some("rollout"));
        assert_eq!(did_you_mean("zzz", known), None);
    }
}
