//! Keeps secrets that a server echoes out of results, messages and records.
//!
//! A secret is the value of a variable that `[server]` refers to, or of an inherited variable that looks like a secret
//! (a proxy's address with a password). Values that are short, or paths of existing files, are not: `${HOME}`. The path of
//! a scratch folder (`snapshot.rs`) is replaced as well.

use std::{borrow::Cow, collections::BTreeSet, path::Path, sync::Arc};

use serde_json::Value;

use super::{INHERITED, Transport, oauth::Access, reference, secret, snapshot::SHOWN};

/// Values of fewer bytes are not replaced: they occur by chance.
const SHORTEST: usize = 6;
const REDACTED: &str = "[redacted]";

/// What is replaced in a server's texts, and by what. Has no `Debug`, so that secrets cannot be logged.
#[derive(Clone)]
pub(super) struct Redaction {
    replaced: Arc<[(String, &'static str)]>,
    /// Gives the bearer token, which may change.
    access: Option<Arc<Access>>,
}

impl Redaction {
    /// `folder` is the session's scratch folder.
    pub(super) fn of(transport: &Transport, folder: Option<&Path>) -> Self {
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
        Self::new(values, folder)
    }

    pub(super) fn new(values: impl IntoIterator<Item = String>, folder: Option<&Path>) -> Self {
        let is_secret = |value: &String| value.len() >= SHORTEST && !Path::new(value).exists();
        let secrets = values.into_iter().filter(is_secret).map(|value| (value, REDACTED));
        let folder = folder.map(|folder| (folder.to_string_lossy().into_owned(), SHOWN));
        let mut replaced: Vec<(String, &str)> = secrets.chain(folder).collect();
        // One may contain another.
        replaced.sort_by_key(|(value, _)| std::cmp::Reverse(value.len()));
        Self { replaced: replaced.into(), access: None }
    }

    /// Also replaces the bearer token of that moment.
    pub(super) fn with_token_of(self, access: Arc<Access>) -> Self {
        Self { access: Some(access), ..self }
    }

    /// The text without the secrets.
    pub(super) fn hide<'t>(&self, text: &'t str) -> Cow<'t, str> {
        replace(text, &self.replaced(self.token().as_deref()))
    }

    /// The same for every text and key of a JSON value.
    pub(super) fn hide_json(&self, value: &mut Value) {
        let token = self.token();
        let replaced = self.replaced(token.as_deref());
        if !replaced.is_empty() {
            replace_in(value, &replaced);
        }
    }

    fn token(&self) -> Option<String> {
        self.access.as_ref()?.token().filter(|token| token.len() >= SHORTEST)
    }

    fn replaced<'r>(&'r self, token: Option<&'r str>) -> Vec<(&'r str, &'static str)> {
        let fixed = self.replaced.iter().map(|(value, shown)| (value.as_str(), *shown));
        token.map(|token| (token, REDACTED)).into_iter().chain(fixed).collect()
    }
}

fn replace<'t>(text: &'t str, replaced: &[(&str, &str)]) -> Cow<'t, str> {
    replaced.iter().fold(Cow::Borrowed(text), |text, (value, shown)| match text.contains(value) {
        true => Cow::Owned(text.replace(value, shown)),
        false => match beginning_at_end(&text, value) {
            Some(start) => Cow::Owned(format!("{}{shown}…", &text[..start])),
            None => text,
        },
    })
}

fn replace_in(value: &mut Value, replaced: &[(&str, &str)]) {
    match value {
        Value::String(text) => {
            if let Cow::Owned(hidden) = replace(text, replaced) {
                *text = hidden;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| replace_in(item, replaced)),
        Value::Object(fields) => {
            fields.values_mut().for_each(|item| replace_in(item, replaced));
            if fields.keys().any(|name| matches!(replace(name, replaced), Cow::Owned(_))) {
                let named = std::mem::take(fields).into_iter();
                *fields = named.map(|(name, item)| (replace(&name, replaced).into_owned(), item)).collect();
            }
        }
        _ => {}
    }
}

/// Where the beginning of a secret stands at the end of a text that was cut there.
fn beginning_at_end(text: &str, secret: &str) -> Option<usize> {
    let text = text.strip_suffix('…')?;
    let lengths = secret.char_indices().map(|(length, _)| length).rev().filter(|length| *length >= SHORTEST);
    lengths
        .map(|length| &secret[..length])
        .find(|part| text.ends_with(part))
        .map(|part| text.len() - part.len())
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
        assert_eq!(secrets.hide("a s3cr3t-key, a s3cr3t"), "a [redacted], a [redacted]");
        assert_eq!(secrets.hide("no entry for s3cr3t-k…"), "no entry for [redacted]…");
        let mut value = json!({"a": ["is s3cr3t"], "s3cr3t": {"b": 7}});
        secrets.hide_json(&mut value);
        assert_eq!(value.to_string(), r#"{"a":["is [redacted]"],"[redacted]":{"b":7}}"#);
    }

    #[test]
    fn short_values_and_existing_paths_are_no_secrets() {
        assert_eq!(secrets(&["eu", "", "/usr/bin"]).hide("eu in /usr/bin"), "eu in /usr/bin");
    }
}
