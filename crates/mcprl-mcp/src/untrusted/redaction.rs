//! The secrets that a server's texts may have in them.
//!
//! A secret is the value of a variable that `[server]` refers to, or of an inherited variable that looks like a secret
//! (a proxy's address with a password). Values that are short, or paths of existing files, are not: `${HOME}`. The name and the folder of
//! a session (`scratch.rs`) are replaced as well. A secret is recognized as it is, and as text in JSON.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    ops::Range,
    path::Path,
    sync::Arc,
};

use mcprl_base::{reference, secret};
use serde_json::Value;

use super::clean::{clean, sequences};
use crate::{INHERITED, Transport, places::Places, tokens::Bearer};

/// Values of fewer bytes are not replaced: they occur by chance.
const SHORTEST: usize = 6;
const REDACTED: &str = "[redacted]";
/// How a text ends, or begins, where it was cut.
const ELLIPSIS: [&str; 2] = ["…", "..."];

/// What is replaced in a server's texts, and by what. Has no `Debug`, so that secrets cannot be logged.
#[derive(Clone)]
pub(crate) struct Redaction {
    replaced: Arc<[(String, &'static str)]>,
    bearer: Option<Arc<Bearer>>,
}

impl Redaction {
    /// `places` are the session's own.
    pub(crate) fn of(transport: &Transport, places: Option<&Places>) -> Self {
        let mut values: BTreeSet<String> = BTreeSet::new();
        match transport {
            Transport::Stdio { env, .. } => {
                values.extend(env.values().flat_map(|value| reference::values(value)));
                let inherited = INHERITED.iter().map(|name| (*name).to_owned());
                let inherited =
                    inherited.filter_map(|name| std::env::var(&name).ok().map(|value| (name, value)));
                let literal = env.clone().into_iter().chain(inherited);
                let literal = literal.filter(|(name, value)| secret::is_secret(name, value));
                values.extend(literal.map(|(_, value)| value));
            }
            Transport::Cassette(_) => {}
            Transport::Http { url, headers, .. } => {
                values.extend(headers.values().chain([url]).flat_map(|value| reference::values(value)));
                let named = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
                let literal =
                    named.chain(secret::query(url)).filter(|(name, value)| secret::is_secret(name, value));
                values.extend(literal.map(|(_, value)| value.trim_start_matches("Bearer ").to_owned()));
            }
        }
        Self::new(values, places)
    }

    pub(crate) fn new(values: impl IntoIterator<Item = String>, places: Option<&Places>) -> Self {
        let secrets = values.into_iter().filter(|value| !Path::new(value).exists());
        let secrets = secrets.flat_map(|value| forms(&value)).map(|form| (form, REDACTED));
        let shown = places.into_iter().flat_map(Places::shown);
        let shown = shown.flat_map(|(real, shown)| forms(&real).into_iter().map(move |form| (form, shown)));
        let mut replaced: Vec<(String, &str)> = secrets.chain(shown).collect();
        // One may contain another.
        replaced.sort_by_key(|(value, _)| std::cmp::Reverse(value.len()));
        Self { replaced: replaced.into(), bearer: None }
    }

    /// Also replaces the bearer token of that moment, and what is sent to get one.
    pub(crate) fn with_token_of(self, bearer: Arc<Bearer>) -> Self {
        Self { bearer: Some(bearer), ..self }
    }

    /// Whether the connection sends a bearer token.
    pub(crate) fn has_token(&self) -> bool {
        self.bearer.as_ref().is_some_and(|bearer| bearer.token().is_some())
    }

    /// A text without hidden characters and secrets.
    pub(super) fn text(&self, text: &str) -> String {
        let replaced = self.replaced();
        replace(plain(text, &replaced), &replaced).into_owned()
    }

    /// A value without them in its texts and keys.
    pub(super) fn json(&self, value: &mut Value) {
        let replaced = self.replaced();
        replace_in(value, &|text| replace(plain(text, &replaced), &replaced));
    }

    /// Whether a text of the server has a secret in it.
    pub(super) fn has_secret(&self, text: &str) -> bool {
        let replaced = self.replaced();
        let plain = plain(text, &replaced);
        replace(plain.clone(), &replaced) != plain
    }

    /// Hides secrets in a value of ours, which is otherwise as it is.
    pub(crate) fn hide(&self, value: &mut Value) {
        let replaced = self.replaced();
        replace_in(value, &|text| replace(text.into(), &replaced));
    }

    fn replaced(&self) -> Vec<(Cow<'_, str>, &'static str)> {
        let current = self.bearer.iter().flat_map(|bearer| bearer.secrets());
        let current = current.flat_map(|secret| forms(&secret)).map(|form| (form.into(), REDACTED));
        current.chain(self.replaced.iter().map(|(value, shown)| (value.as_str().into(), *shown))).collect()
    }
}

/// A secret as it may stand in a cleaned text: as it is, as text in JSON, and as text in JSON that is text in JSON.
fn forms(secret: &str) -> BTreeSet<String> {
    let secret = secret.trim();
    let cleaned = clean(secret);
    if cleaned.len() < SHORTEST {
        return BTreeSet::new();
    }
    let mut forms: BTreeSet<String> = BTreeSet::new();
    for whole in [secret, &cleaned] {
        for once in in_json(whole) {
            forms.extend(in_json(&once));
            forms.insert(once);
        }
    }
    let forms = forms.iter().map(|form| clean(form).into_owned());
    forms.chain([cleaned.clone().into_owned()]).collect()
}

/// The text between the quotes of JSON: as serde, Python and PHP write it.
fn in_json(text: &str) -> [String; 3] {
    let quoted = Value::from(text).to_string();
    let bare = quoted[1..quoted.len() - 1].to_owned();
    let mut ascii = String::with_capacity(bare.len());
    for letter in bare.chars() {
        match letter {
            ' '..='~' => ascii.push(letter),
            _ => letter.encode_utf16(&mut [0; 2]).iter().for_each(|unit| _ = write!(ascii, "\\u{unit:04x}")),
        }
    }
    let slashed = ascii.replace('/', "\\/");
    [bare, ascii, slashed]
}

fn replace<'t>(text: Cow<'t, str>, replaced: &[(Cow<'_, str>, &str)]) -> Cow<'t, str> {
    replaced.iter().fold(text, |mut text, (value, shown)| {
        if text.contains(&**value) {
            text = Cow::Owned(text.replace(&**value, shown));
        }
        if let Some(start) = beginning_at_end(&text, value) {
            text = Cow::Owned(format!("{}{shown}…", &text[..start]));
        }
        if let Some(end) = end_at_beginning(&text, value) {
            text = Cow::Owned(format!("…{shown}{}", &text[end..]));
        }
        text
    })
}

/// The cleaned text without sequences for a terminal. One that has letters of a secret stays, so that the secret is found.
fn plain<'t>(text: &'t str, replaced: &[(Cow<'_, str>, &str)]) -> Cow<'t, str> {
    let (cleaned, sequences) = sequences(text);
    if sequences.is_empty() {
        return cleaned;
    }
    let mut secrets: Vec<(usize, usize)> = Vec::new();
    for (value, _) in replaced {
        secrets.extend(cleaned.match_indices(&**value).map(|(start, found)| (start, start + found.len())));
        secrets.extend(beginning_at_end(&cleaned, value).map(|start| (start, cleaned.len())));
        secrets.extend(end_at_beginning(&cleaned, value).map(|end| (0, end)));
    }
    secrets.sort_unstable();
    // The furthest end of those that begin no later.
    for place in 1..secrets.len() {
        secrets[place].1 = secrets[place].1.max(secrets[place - 1].1);
    }
    let has_secret = |sequence: &Range<usize>| {
        let before = secrets.partition_point(|(start, _)| *start < sequence.end);
        before > 0 && secrets[before - 1].1 > sequence.start
    };
    let (mut plain, mut at) = (String::with_capacity(cleaned.len()), 0);
    for sequence in sequences.iter().filter(|sequence| !has_secret(sequence)) {
        plain.push_str(&cleaned[at..sequence.start]);
        at = sequence.end;
    }
    plain.push_str(&cleaned[at..]);
    plain.into()
}

fn replace_in(value: &mut Value, shown: &impl for<'t> Fn(&'t str) -> Cow<'t, str>) {
    let changed = |text: &str| match shown(text) {
        Cow::Owned(shown) => Some(shown),
        // Nothing was replaced.
        Cow::Borrowed(_) => None,
    };
    match value {
        Value::String(text) => {
            if let Some(shown) = changed(text) {
                *text = shown;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| replace_in(item, shown)),
        Value::Object(fields) => {
            fields.values_mut().for_each(|item| replace_in(item, shown));
            if fields.keys().any(|name| changed(name).is_some()) {
                let mut counts: BTreeMap<String, usize> = BTreeMap::new();
                for (name, item) in std::mem::take(fields) {
                    let name = changed(&name).unwrap_or(name);
                    // None takes the place of another one.
                    let count = counts.entry(name.clone()).or_default();
                    let mut free = name.clone();
                    while fields.contains_key(&free) {
                        *count += 1;
                        free = format!("{name} ({})", *count + 1);
                    }
                    fields.insert(free, item);
                }
            }
        }
        _ => {}
    }
}

/// Where the beginning of a secret stands at the end of a text that was cut there.
fn beginning_at_end(text: &str, secret: &str) -> Option<usize> {
    let text = ELLIPSIS.iter().find_map(|end| text.strip_suffix(end))?;
    let lengths = secret.char_indices().map(|(length, _)| length).rev().filter(|length| *length >= SHORTEST);
    lengths
        .map(|length| &secret[..length])
        .find(|part| text.ends_with(part))
        .map(|part| text.len() - part.len())
}

/// Where the end of a secret ends that stands at the beginning of a text that was cut there.
fn end_at_beginning(text: &str, secret: &str) -> Option<usize> {
    let (cut, rest) = ELLIPSIS.iter().find_map(|cut| Some((cut, text.strip_prefix(cut)?)))?;
    let parts = secret.char_indices().skip(1).map(|(start, _)| &secret[start..]);
    let mut parts = parts.filter(|part| part.len() >= SHORTEST);
    parts.find(|part| rest.starts_with(part)).map(|part| cut.len() + part.len())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn secrets(values: &[&str]) -> Redaction {
        Redaction::new(values.iter().map(|value| (*value).to_owned()), None)
    }

    #[test]
    fn a_secret_is_hidden_wherever_it_stands() {
        let secrets = secrets(&["s3cr3t", "s3cr3t-key"]);
        assert_eq!(secrets.text("a s3cr3t-key, a s3cr3t"), "a [redacted], a [redacted]");
        let mut value = json!({"a": ["is s3cr3t"], "s3cr3t": {"b": 7}});
        secrets.json(&mut value);
        assert_eq!(value.to_string(), r#"{"a":["is [redacted]"],"[redacted]":{"b":7}}"#);
    }

    #[test]
    fn a_secret_that_hidden_characters_split_is_hidden() {
        let secrets = secrets(&["s3cr3t-key", "line\r\none"]);
        for split in ["s3cr\u{200b}3t-key", "\u{ad}s3cr3t-\u{e0041}key\u{fe0f}", "s\u{1b}3\0cr3t-key"] {
            assert_eq!(secrets.text(split), "[redacted]", "{split:?}");
            let mut value = json!({split: split});
            secrets.json(&mut value);
            assert_eq!(value, json!({"[redacted]": "[redacted]"}), "{split:?}");
            assert!(secrets.has_secret(split));
        }
        assert_eq!(secrets.text("line\r\none, line\none"), "[redacted], [redacted]");
        assert!(!secrets.has_secret("s3cr\u{200b}3t"));
    }

    #[test]
    fn a_secret_is_hidden_wherever_sequences_of_a_terminal_stand() {
        let secrets = secrets(&["s3cr3t-key", "31m-key"]);
        for (text, expected) in [
            ("is \u{1b}[1ms3cr3t-key\u{1b}[0m!", "is [redacted]!"),
            ("is s3cr\u{1b}[1m3t-\u{1b}(Bkey!", "is [redacted]!"),
            ("is \u{1b}[s3cr3t-key!", "is [[redacted]!"),
            ("is \u{1b}[31m-key!", "is [[redacted]!"),
            ("is \u{1b}[s3cr3t-key, s3cr3t\u{1b}[1m-key", "is [[redacted], [redacted]"),
            ("is \u{1b}[s3cr3t-k…", "is [[redacted]…"),
            ("…r3t-key\u{1b}[0m", "…[redacted]"),
            ("is \u{1b}[1mnone", "is none"),
        ] {
            assert_eq!(secrets.text(text), expected);
            assert_eq!(secrets.has_secret(text), expected.contains("redacted"), "{text:?}");
            let mut value = json!([text]);
            secrets.json(&mut value);
            assert_eq!(value, json!([expected]));
        }
    }

    #[test]
    fn names_that_are_shown_alike_stay_apart() {
        let mut value = json!({"a": 1, "\u{1b}[1ma": 2, "a\u{200b}": 3});
        secrets(&["s3cr3t-key"]).json(&mut value);
        assert_eq!(value, json!({"a": 1, "a (2)": 2, "a (3)": 3}));
    }

    #[test]
    fn a_secret_of_several_lines_is_hidden_in_json_too() {
        let secret = "-----KEY\na/\"é\n-----END";
        let secrets = secrets(&[&format!("{secret}\n")]);
        let in_json = json!({"key": secret}).to_string();
        let twice = json!([in_json]).to_string();
        let python = r#"-----KEY\na/\"\u00e9\n-----END"#;
        let php = r#"-----KEY\na\/\"\u00e9\n-----END"#;
        for text in [secret, &in_json, &twice, python, php] {
            let shown = secrets.text(text);
            assert!(shown.contains("[redacted]") && !shown.contains("-----END"), "{text}: {shown}");
        }
    }

    #[test]
    fn a_secret_that_was_cut_is_hidden_at_both_ends() {
        let secrets = secrets(&["s3cr3t-key"]);
        assert_eq!(secrets.text("no entry for s3cr3t-k…"), "no entry for [redacted]…");
        assert_eq!(secrets.text("no entry for s3cr3t-k..."), "no entry for [redacted]…");
        assert_eq!(secrets.text("…r3t-key failed"), "…[redacted] failed");
        assert_eq!(
            secrets.text("s3cr3t-key is no s3cr3t-k…"),
            "[redacted] is no [redacted]…",
            "after a whole one"
        );
        assert_eq!(secrets.text("s3cr3t-k"), "s3cr3t-k", "nothing was cut");
    }

    #[test]
    fn a_value_of_ours_keeps_its_characters() {
        let mut value = json!(["a\u{200b}", "s3cr3t-key"]);
        secrets(&["s3cr3t-key"]).hide(&mut value);
        assert_eq!(value, json!(["a\u{200b}", "[redacted]"]));
    }

    #[test]
    fn short_values_and_existing_paths_are_no_secrets() {
        assert_eq!(secrets(&["eu", "", "/usr/bin"]).text("eu in /usr/bin"), "eu in /usr/bin");
    }
}
