//! Phi-4-mini: `<|tool_call|>[{"name": …, "arguments": {…}}]<|/tool_call|>`, or `functools[…]`, which the model also learned.

use serde_json::Value;

use super::{
    json::{self, Read},
    reasoning,
};
use crate::chat::{ToolCall, Turn, python};

const OPEN: &str = "<|tool_call|>";
const CLOSE: &str = "<|/tool_call|>";
const FUNCTOOLS: &str = "functools";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// One list between the tags.
    List,
    /// Each call between its own tags.
    Each,
    /// One list after `functools`.
    Functools,
}

pub(super) fn assistant(style: Style, text: &str, calls: &[ToolCall]) -> String {
    if calls.is_empty() {
        return text.to_owned();
    }
    let object = |call: &ToolCall| {
        let name = Value::from(call.name.as_str());
        format!(
            "{{\"name\": {name}, \"arguments\": {}}}",
            python::line(&Value::Object(call.arguments.clone()))
        )
    };
    let objects: Vec<String> = calls.iter().map(object).collect();
    let written = match style {
        Style::List => format!("{OPEN}[{}]{CLOSE}", objects.join(", ")),
        Style::Each => objects.iter().map(|object| format!("{OPEN}{object}{CLOSE}")).collect(),
        Style::Functools => format!("{FUNCTOOLS}[{}]", objects.join(", ")),
    };
    format!("{text}{written}")
}

/// Splits a turn into its reasoning and the rest.
pub(super) fn split(text: &str) -> (Option<String>, &str) {
    reasoning::split(text, reasoning::THINK, "{")
}

pub(super) fn parse(text: &str) -> Turn {
    let (reasoning, mut rest) = split(text);
    let mut spoken = String::new();
    let mut calls = Vec::new();
    while let Some((before, body)) = next(rest) {
        spoken.push_str(before);
        rest = match json::value(body) {
            Read::Value(value, end) => {
                let values = match value {
                    Value::Array(values) => values,
                    value => vec![value],
                };
                calls.extend(values.into_iter().map(json::call));
                let after = body[end..].trim_start();
                after.strip_prefix(CLOSE).unwrap_or(after)
            }
            Read::Wrong(why, end) => {
                calls.push(Err(why));
                after_call(&body[end..])
            }
        };
    }
    spoken.push_str(rest);
    Turn { text: spoken.trim().to_owned(), reasoning, calls, ids: Vec::new() }
}

/// The text before the next call, and the text after the call's opening.
fn next(text: &str) -> Option<(&str, &str)> {
    let tag = text.find(OPEN).map(|at| (at, at + OPEN.len()));
    let word = text
        .match_indices(FUNCTOOLS)
        .map(|(at, word)| (at, at + word.len()))
        .find(|(_, after)| text[*after..].trim_start().starts_with('['));
    let (at, after) = tag.into_iter().chain(word).min()?;
    Some((&text[..at], &text[after..]))
}

/// The text after a call that could not be parsed.
fn after_call(body: &str) -> &str {
    match [OPEN, CLOSE].iter().filter_map(|tag| body.find(tag)).min() {
        Some(at) => body[at..].strip_prefix(CLOSE).unwrap_or(&body[at..]),
        None => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::format::tests::shown;

    fn read(text: &str) -> String {
        let turn = parse(text);
        format!("{} | {}", turn.text, shown(&turn.calls))
    }

    #[test]
    fn turns_are_parsed_in_all_common_variants() {
        let cases = [
            ("just text", "just text | "),
            ("functools is a module", "functools is a module | "),
            (
                r#"<|tool_call|>[{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]<|/tool_call|>"#,
                r#" | f{"a":1}; g{}"#,
            ),
            (r#"<|tool_call|>{"name": "f"}<|/tool_call|><|tool_call|>{"name": "g"}"#, " | f{}; g{}"),
            (r#"I look. functools[{"name": "f"}]"#, "I look. | f{}"),
        ];
        for (text, expected) in cases {
            assert_eq!(read(text), expected, "{text}");
        }
    }

    #[test]
    fn a_malformed_call_gives_an_error_and_the_next_one_is_parsed() {
        let cases = [
            ("[{]", "not valid JSON: key must be a string at line 1 column 3"),
            ("[5]", "not a JSON object"),
        ];
        for (body, why) in cases {
            let text =
                format!("<|tool_call|>{body}<|/tool_call|><|tool_call|>[{{\"name\": \"g\"}}]<|/tool_call|>");
            assert_eq!(read(&text), format!(" | error: {why}; g{{}}"), "{body}");
        }
        assert_eq!(read("<|tool_call|>[{\"name\""), " | error: incomplete JSON");
    }
}
