//! What looks like a key, a token or a password.

use std::sync::LazyLock;

use regex::RegexSet;

/// A kind of secret, and its pattern.
const KINDS: [(&str, &str); 10] = [
    ("a private key", r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    ("a token of GitHub", r"\b(gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{40,})"),
    ("a token of Hugging Face", r"\bhf_[A-Za-z0-9]{30,}"),
    ("a key of Anthropic", r"\bsk-ant-[A-Za-z0-9_-]{20,}"),
    ("a key of OpenAI", r"\bsk-(proj-)?[A-Za-z0-9_-]{32,}"),
    ("a key of AWS", r"\b(AKIA|ASIA)[0-9A-Z]{16}\b"),
    ("a key of Google", r"\bAIza[0-9A-Za-z_-]{35}"),
    ("a token of Slack", r"\bxox[abprs]-[0-9A-Za-z-]{20,}"),
    ("a JSON web token", r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{16,}"),
    ("a password in a URL", r"[a-z]{3,12}://[^/\s:@]+:[^/\s:@]{4,}@"),
];

static PATTERNS: LazyLock<RegexSet> =
    LazyLock::new(|| RegexSet::new(KINDS.map(|(_, pattern)| pattern)).expect("the patterns are valid"));

/// The kind of the first secret in a text.
pub fn found(text: &str) -> Option<&'static str> {
    PATTERNS.matches(text).iter().next().map(|kind| KINDS[kind].0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_tokens_are_found_and_words_are_not() {
        let key = "a1B2c3D4e5F6".repeat(4);
        for (text, kind) in [
            (format!("Bearer hf_{key}"), "a token of Hugging Face"),
            (format!("use sk-{key}."), "a key of OpenAI"),
            (format!("ghp_{}", &key[..36]), "a token of GitHub"),
            ("postgres://ada:secret@db/shop".to_owned(), "a password in a URL"),
            ("-----BEGIN RSA PRIVATE KEY-----\nMII".to_owned(), "a private key"),
        ] {
            assert_eq!(found(&text), Some(kind), "{text}");
        }
        for text in ["https://example.com/a:b", "sk-learn is a library", "the hf_hub", "AKIA", "eyJ"] {
            assert_eq!(found(text), None, "{text}");
        }
    }
}
