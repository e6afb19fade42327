//! Phi-4-mini: `<|tool_call|>[{"name": …, "arguments": {…}}]<|/tool_call|>`, or `functools[…]`, which the model also learned.

use super::{
    Parsed, Schemas, after_call,
    json::{self, ParsedValue},
};
use crate::ToolCall;

const OPEN: &str = "<|tool_call|>";
const CLOSE: &str = "<|/tool_call|>";
pub const FUNCTOOLS: &str = "functools";

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
    let objects: Vec<String> = calls.iter().map(|call| json::object(call, "arguments")).collect();
    let written = match style {
        Style::List => format!("{OPEN}[{}]{CLOSE}", objects.join(", ")),
        Style::Each => objects.iter().map(|object| format!("{OPEN}{object}{CLOSE}")).collect(),
        Style::Functools => format!("{FUNCTOOLS}[{}]", objects.join(", ")),
    };
    format!("{text}{written}")
}

pub(super) fn parse(mut rest: &str, tools: &Schemas) -> Parsed {
    let mut parsed = Parsed::default();
    while let Some((before, body)) = next(rest) {
        parsed.text.push_str(before);
        rest = match json::value(body) {
            ParsedValue::Value(value, end) => {
                parsed.calls.extend(json::items(value).into_iter().map(|item| json::call(item, tools)));
                let after = body[end..].trim_start();
                after.strip_prefix(CLOSE).unwrap_or(after)
            }
            ParsedValue::Wrong(why, end) => {
                parsed.calls.push(Err(why));
                after_call(&body[end..], OPEN, CLOSE)
            }
        };
    }
    parsed.text.push_str(rest);
    parsed
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

#[cfg(test)]
mod tests {
    use super::Style;
    use crate::format::{Format, tests::shown_turn};

    fn read(text: &str) -> String {
        shown_turn(Format::Phi(Style::List), text)
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
