//! Settings for servers that deviate from what clients expect.

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

/// Maximum bytes of a compiled pattern. Matching takes time linear in the text.
const PATTERN_BYTES: usize = 1 << 20;

/// How mcprl makes up for a server's deviations.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Quirks {
    pub error_patterns: ErrorPatterns,
    /// Texts, numbers and booleans are converted to the type that a tool's schema wants.
    pub coerce_arguments: bool,
}

/// Regular expressions for results that are errors although the server does not say so.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct ErrorPatterns(Vec<Regex>);

/// A text that is not a usable regular expression.
#[derive(Debug, thiserror::Error)]
#[error("\"{pattern}\" is not a regular expression: {reason}")]
pub struct BadPattern {
    pub pattern: String,
    pub reason: String,
}

impl ErrorPatterns {
    pub fn new(patterns: &[String]) -> Result<Self, BadPattern> {
        patterns.iter().map(|pattern| compile(pattern)).collect::<Result<_, _>>().map(Self)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The patterns as written.
    pub fn texts(&self) -> Vec<&str> {
        self.0.iter().map(Regex::as_str).collect()
    }

    pub(super) fn matches(&self, text: &str) -> bool {
        self.0.iter().any(|pattern| pattern.is_match(text))
    }
}

impl PartialEq for ErrorPatterns {
    fn eq(&self, other: &Self) -> bool {
        self.texts() == other.texts()
    }
}

impl TryFrom<Vec<String>> for ErrorPatterns {
    type Error = BadPattern;

    fn try_from(patterns: Vec<String>) -> Result<Self, BadPattern> {
        Self::new(&patterns)
    }
}

impl From<ErrorPatterns> for Vec<String> {
    fn from(patterns: ErrorPatterns) -> Self {
        patterns.texts().into_iter().map(str::to_owned).collect()
    }
}

fn compile(pattern: &str) -> Result<Regex, BadPattern> {
    RegexBuilder::new(pattern).size_limit(PATTERN_BYTES).dfa_size_limit(PATTERN_BYTES).build().map_err(
        |error| {
            let reason = match &error {
                regex::Error::CompiledTooBig(_) => "it is too large".to_owned(),
                // The parser quotes the pattern on several lines; the last one has the reason.
                error => error.to_string().lines().last().unwrap_or_default().trim().to_owned(),
            };
            let reason = reason.strip_prefix("error: ").map_or(reason.clone(), str::to_owned);
            BadPattern { pattern: pattern.to_owned(), reason }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_matches_if_one_of_the_patterns_is_in_it() {
        let patterns = ErrorPatterns::new(&["^Error:".into(), "(?i)not found$".into()]).unwrap();
        for (text, matches) in [
            ("Error: no", true),
            ("1 Error: no", false),
            ("table NOT FOUND", true),
            ("\nError: no", false),
            ("", false),
        ] {
            assert_eq!(patterns.matches(text), matches, "{text}");
        }
        assert!(!ErrorPatterns::default().matches("Error: no"));
    }

    #[test]
    fn an_invalid_pattern_has_a_reason() {
        for (pattern, reason) in [
            ("(", "unclosed group"),
            ("(?=a)", "look-around, including look-ahead and look-behind, is not supported"),
            ("a{1000}{1000}", "it is too large"),
        ] {
            assert_eq!(ErrorPatterns::new(&[pattern.into()]).unwrap_err().reason, reason);
        }
    }
}
