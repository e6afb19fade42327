//! What a server says, and the one way out of it.
//!
//! Every text of a server is an [`Untrusted`] one as soon as it is read. It can be neither printed nor stored. What it is shown as,
//! in a result, a note, an error or a record, is made here alone, in this order: without hidden characters (`clean.rs`),
//! without secrets (`redaction.rs`), and within bounds. In another order a secret that a hidden character splits would come
//! together again, and one that a limit cuts would not be recognized.

mod clean;
mod redaction;

use std::borrow::Borrow;

use serde_json::Value;

pub(super) use self::{
    clean::{SCHEMA_DEPTH, TEXT_BYTES, shorten, truncate_middle},
    redaction::Redaction,
};

/// A text or a value of a server, as the server wrote it. Has neither `Debug` nor `Display`.
#[derive(Clone)]
pub(super) struct Untrusted<T> {
    raw: T,
    redaction: Redaction,
}

impl<T> Untrusted<T> {
    pub(super) fn new(raw: T, redaction: &Redaction) -> Self {
        Self { raw, redaction: redaction.clone() }
    }

    /// As it is: for what goes back to the server, and to compare and to count. Nothing of it may be shown.
    pub(super) fn for_server(&self) -> &T {
        &self.raw
    }
}

impl<T: AsRef<str>> Untrusted<T> {
    /// The whole text.
    pub(super) fn shown(&self) -> String {
        self.redaction.text(self.raw.as_ref())
    }

    /// A text about a server, tool or resource: cut in the middle to [`TEXT_BYTES`].
    pub(super) fn bounded(&self) -> String {
        truncate_middle(self.shown().trim().to_owned(), TEXT_BYTES)
    }

    /// The beginning, on one line, for an error message or a note.
    pub(super) fn line(&self) -> String {
        shorten(&self.shown())
    }

    pub(super) fn has_secret(&self) -> bool {
        self.redaction.has_secret(self.raw.as_ref())
    }
}

impl<T: Borrow<Value>> Untrusted<T> {
    /// A member of an object.
    pub(super) fn get(&self, name: &str) -> Option<Untrusted<&Value>> {
        Some(Untrusted::new(self.raw.borrow().get(name)?, &self.redaction))
    }

    /// A member that is a text.
    pub(super) fn text(&self, name: &str) -> Option<Untrusted<&str>> {
        Some(Untrusted::new(self.raw.borrow().get(name)?.as_str()?, &self.redaction))
    }

    /// The items of a member that is a list.
    pub(super) fn items(&self, name: &str) -> impl Iterator<Item = Untrusted<Value>> {
        let items = self.raw.borrow().get(name).and_then(Value::as_array);
        items.into_iter().flatten().map(|item| Untrusted::new(item.clone(), &self.redaction))
    }

    /// A schema, or another description as JSON, without what is nested too deeply.
    pub(super) fn schema(&self) -> Value {
        let mut schema = clean::without_depths(self.raw.borrow());
        self.redaction.json(&mut schema);
        schema
    }

    /// Whether [`Self::schema`] leaves something out.
    pub(super) fn is_too_deep(&self) -> bool {
        clean::is_too_deep(self.raw.borrow())
    }
}

impl Untrusted<Value> {
    /// The text that `write` makes of the value, and what else it reads.
    pub(super) fn written<R>(mut self, write: impl FnOnce(&Value) -> (String, R)) -> (String, R) {
        // Before a text of it becomes JSON, where a hidden character would be written out.
        self.redaction.json(&mut self.raw);
        let (text, read) = write(&self.raw);
        // Numbers may be secrets, too.
        (self.redaction.text(&text), read)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said<T>(raw: T) -> Untrusted<T> {
        Untrusted::new(raw, &Redaction::new(["s3cr3t-key".to_owned(), "20202020".to_owned()], None))
    }

    #[test]
    fn a_limit_applies_to_what_is_shown() {
        let before = "x".repeat(295);
        assert_eq!(said(format!("{before}s3cr3t-key")).line(), format!("{before}[reda…"));
        let (before, after) = ("x".repeat(TEXT_BYTES), "s3cr3t-key ".repeat(2000));
        assert!(!said(format!("{before}{after}")).bounded().contains("s3cr3t"));
        assert_eq!(said(" a\u{200b} \n").bounded(), "a");
    }

    #[test]
    fn every_way_out_is_clean_and_without_secrets() {
        let split = "s3c\u{200b}r3t-key";
        let value = json!({"a": split, split: [split, 20_202_020]});
        let shown = r#"{"a":"[redacted]","[redacted]":["[redacted]",[redacted]]}"#;
        assert_eq!(said(value.clone()).written(|value| (value.to_string(), ())).0, shown);
        assert!(!said(value.clone()).schema().to_string().contains("s3c"));
        let value = said(value);
        for text in [value.text("a").unwrap(), said(split)] {
            assert!(text.has_secret());
            for shown in [text.shown(), text.bounded(), text.line()] {
                assert_eq!(shown, "[redacted]");
            }
        }
        assert_eq!(value.items(split).map(|item| item.schema()).next(), Some(json!("[redacted]")));
        assert_eq!(*value.text("a").unwrap().for_server(), split, "goes back as it is");
    }
}
