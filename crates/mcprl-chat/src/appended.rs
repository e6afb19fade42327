//! The text that is appended between two turns of the model: results of its calls, or a message of the user, within what the
//! template writes around them. [`learn`](mod@super::learn) finds that out.

use serde_json::Value;

use super::python;

/// Ids of calls, which stand in learned text in place of real ones. Nine characters, as Mistral's templates require.
pub(super) const IDS: [&str; 2] = ["probeid01", "probeid02"];

/// The template's text around tool results, between one model turn and the next.
#[derive(Clone)]
pub(super) struct ResultText {
    /// From after the end-of-turn token to the first result.
    pub before: String,
    pub between: String,
    /// From the last result to the next sampled token.
    pub after: String,
    pub shown: TextStyle,
}

impl ResultText {
    /// The text from after one turn's end to the next sampled token. `ids` are those of the calls.
    pub fn text(&self, ids: &[String], results: &[String], mask: impl Fn(&str) -> String) -> String {
        let id = |index: usize| ids.get(index).map_or(IDS[0], String::as_str);
        let named = |text: &str, index: usize, next: usize| {
            text.replace(IDS[0], &mask(id(index))).replace(IDS[1], &mask(id(next)))
        };
        let mut out = named(&self.before, 0, 0);
        for (index, result) in results.iter().enumerate() {
            if index > 0 {
                out.push_str(&named(&self.between, index - 1, index));
            }
            out.push_str(&mask(&self.shown.text(result)));
        }
        let last = results.len().saturating_sub(1);
        out + &named(&self.after, last, last)
    }
}

/// The template's text around a user message, between one model turn and the next.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct UserText {
    /// From after the end-of-turn token to the message.
    pub before: String,
    /// From the message to the next sampled token.
    pub after: String,
    pub shown: TextStyle,
}

impl UserText {
    /// The text from after one turn's end to the next sampled token.
    pub fn text(&self, message: &str) -> String {
        format!("{}{}{}", self.before, self.shown.text(message), self.after)
    }
}

/// How a template writes a result or a user message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TextStyle {
    /// Escaped as in a JSON string.
    escaped: bool,
    trimmed: bool,
}

impl TextStyle {
    pub const ALL: [Self; 4] = [
        Self { escaped: false, trimmed: false },
        Self { escaped: false, trimmed: true },
        Self { escaped: true, trimmed: false },
        Self { escaped: true, trimmed: true },
    ];

    pub fn text(self, text: &str) -> String {
        let text = if self.trimmed { text.trim() } else { text };
        if self.escaped {
            let quoted = python::line(&Value::from(text));
            quoted[1..quoted.len() - 1].to_owned()
        } else {
            text.to_owned()
        }
    }
}
