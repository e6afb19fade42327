//! References to environment variables in the run file's `[server]`, so that secrets stay out of run files,
//! keys and records.
//!
//! | in a value of `env`, of `headers`, or in `url` | is |
//! |---|---|
//! | `${NAME}`, anywhere in it (`Bearer ${TOKEN}`) | the value of the variable `NAME` of this process |
//! | `$$` | `$` |
//! | `$NAME`, and nothing else | refused: it is probably meant as a reference |
//! | any other `$` | `$` |
//!
//! Words of `command` are passed as they are.

use std::ffi::{OsStr, OsString};

/// Why a value is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadReference {
    #[error("has a `${{` without a `}}`")]
    Open,
    #[error("has `${{…}}` around something that is no variable's name")]
    Name,
    #[error("is `${name}`, which is not replaced")]
    Bare { name: String },
}

impl BadReference {
    pub fn hint(&self) -> String {
        match self {
            Self::Open | Self::Name => {
                "`${NAME}` is the environment variable NAME; write `$$` for a `$` of its own".into()
            }
            Self::Bare { name } => {
                format!("write `${{{name}}}` for the environment variable, or `$${name}` for the text itself")
            }
        }
    }
}

/// Why a value has no expansion.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpandError {
    #[error("a value {0}")]
    Reference(#[from] BadReference),
    #[error("the environment variable `{variable}` is not set")]
    UnsetVariable { variable: String },
}

#[derive(Debug, PartialEq, Eq)]
enum Piece<'v> {
    Text(&'v str),
    Variable(&'v str),
}

fn is_name(text: &str) -> bool {
    let inner = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    text.starts_with(|first: char| inner(first) && !first.is_ascii_digit()) && text.chars().all(inner)
}

fn pieces(value: &str) -> Result<Vec<Piece<'_>>, BadReference> {
    if let Some(name) = value.strip_prefix('$').filter(|name| is_name(name)) {
        return Err(BadReference::Bare { name: name.to_owned() });
    }
    let (mut pieces, mut rest) = (Vec::new(), value);
    while let Some((before, after)) = rest.split_once('$') {
        pieces.push(Piece::Text(before));
        rest = match (after.strip_prefix('{'), after.strip_prefix('$')) {
            (Some(inner), _) => {
                let (name, behind) = inner.split_once('}').ok_or(BadReference::Open)?;
                if !is_name(name) {
                    return Err(BadReference::Name);
                }
                pieces.push(Piece::Variable(name));
                behind
            }
            (None, behind) => {
                pieces.push(Piece::Text("$"));
                behind.unwrap_or(after)
            }
        };
    }
    pieces.push(Piece::Text(rest));
    Ok(pieces)
}

/// Whether the value refers to a variable.
///
/// # Errors
/// If it is not valid.
pub fn has_reference(value: &str) -> Result<bool, BadReference> {
    Ok(pieces(value)?.iter().any(|piece| matches!(piece, Piece::Variable(_))))
}

/// The values of the variables that this text refers to.
pub fn values(text: &str) -> Vec<String> {
    let value = |piece: Piece<'_>| match piece {
        Piece::Variable(name) => std::env::var(name).ok(),
        Piece::Text(_) => None,
    };
    pieces(text).unwrap_or_default().into_iter().filter_map(value).collect()
}

/// The value with every variable replaced by its value in this process's environment.
///
/// # Errors
/// If it is not valid, or names a variable that is not set.
pub fn expand(value: &str) -> Result<OsString, ExpandError> {
    expand_from(value, |name| std::env::var_os(name))
}

/// The same, as text.
pub fn expand_text(value: &str) -> Result<Option<String>, ExpandError> {
    Ok(expand(value)?.into_string().ok())
}

fn expand_from(value: &str, variable: impl Fn(&str) -> Option<OsString>) -> Result<OsString, ExpandError> {
    let mut whole = OsString::new();
    for piece in pieces(value)? {
        match piece {
            Piece::Text(text) => whole.push(OsStr::new(text)),
            Piece::Variable(name) => {
                let unset = || ExpandError::UnsetVariable { variable: name.to_owned() };
                whole.push(variable(name).ok_or_else(unset)?);
            }
        }
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(value: &str, expected: Result<&str, &str>) {
        let set = |name: &str| (name == "TOKEN").then(|| OsString::from("s3"));
        let found = expand_from(value, set).map_err(|cause| cause.to_string());
        assert_eq!(
            found.as_deref().map(|text| text.to_str().unwrap()).map_err(String::as_str),
            expected,
            "{value}"
        );
    }

    #[test]
    fn a_reference_anywhere_in_a_value_is_replaced() {
        check("${TOKEN}", Ok("s3"));
        check("Bearer ${TOKEN}", Ok("Bearer s3"));
        check("${TOKEN}:${TOKEN}", Ok("s3:s3"));
        check("plain", Ok("plain"));
        check("", Ok(""));
    }

    #[test]
    fn a_dollar_without_braces_stays_and_a_double_one_is_one() {
        check("5$ a day", Ok("5$ a day"));
        check("a$b", Ok("a$b"));
        check("$$TOKEN", Ok("$TOKEN"));
        check("$${TOKEN}", Ok("${TOKEN}"));
        check("$5", Ok("$5"));
    }

    #[test]
    fn a_value_that_is_probably_meant_as_a_reference_is_refused() {
        check("$TOKEN", Err("a value is `$TOKEN`, which is not replaced"));
        check("${TOKEN", Err("a value has a `${` without a `}`"));
        check("${}", Err("a value has `${…}` around something that is no variable's name"));
        check("${TOKEN:-x}", Err("a value has `${…}` around something that is no variable's name"));
        check("${OTHER}", Err("the environment variable `OTHER` is not set"));
    }
}
