//! `{"name": …, "parameters": {…}}` as a whole turn: Llama 3.1, 3.2 and 3.3.
//!
//! The templates write one call per turn and no other text. Models also write `<|python_tag|>` before a call,
//! `"type": "function"` in it, and several calls separated by `;`. All are parsed.

use serde_json::Value;

use super::{
    json::{self, Read},
    reasoning,
};
use crate::chat::{ToolCall, Turn, python};

const TAG: &str = "<|python_tag|>";

pub(super) fn assistant(text: &str, calls: &[ToolCall]) -> String {
    if calls.is_empty() {
        return text.to_owned();
    }
    let call = |call: &ToolCall| {
        let name = Value::from(call.name.as_str());
        format!(
            "{{\"name\": {name}, \"parameters\": {}}}",
            python::line(&Value::Object(call.arguments.clone()))
        )
    };
    calls.iter().map(call).collect::<Vec<_>>().join("; ")
}

/// Splits a turn into its reasoning and the rest.
pub(super) fn split(text: &str) -> (Option<String>, &str) {
    reasoning::split(text, reasoning::THINK, "{")
}

pub(super) fn parse(text: &str) -> Turn {
    let (reasoning, rest) = split(text);
    let (spoken, body) = match rest.split_once(TAG) {
        _ if rest.trim_start().starts_with('{') => ("", rest),
        Some((spoken, body)) => (spoken, body),
        None => (rest, ""),
    };
    // After the tag there must be a call. An object without the tag may be an answer.
    let is_tagged = rest.len() > spoken.len() + body.len();
    let spoken = spoken.trim().to_owned();
    let calls = read_calls(body, is_tagged);
    if calls.is_empty() {
        let text = if body.is_empty() { spoken } else { rest.trim().to_owned() };
        return Turn { text, reasoning, calls, ids: Vec::new() };
    }
    Turn { text: spoken, reasoning, calls, ids: Vec::new() }
}

/// Consecutive calls. Empty if the text is an object that is not a call.
fn read_calls(body: &str, is_tagged: bool) -> Vec<Result<ToolCall, String>> {
    let mut calls = Vec::new();
    let mut rest = body;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ';' || c == ',');
        rest = rest.strip_prefix(TAG).unwrap_or(rest);
        if rest.is_empty() {
            return calls;
        }
        match json::value(rest) {
            Read::Value(value, end) => {
                let is_call = ["name", "parameters", "arguments"].iter().any(|key| value.get(key).is_some());
                if !is_call && calls.is_empty() && !is_tagged {
                    return calls;
                }
                calls.push(json::call(value));
                rest = &rest[end..];
            }
            Read::Wrong(why, _) => {
                calls.push(Err(why));
                return calls;
            }
        }
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
            ("the set {1, 2}", "the set {1, 2} | "),
            (r#"{"answer": 5}"#, r#"{"answer": 5} | "#),
            (r#"{"name": "f", "parameters": {"a": 1}}"#, r#" | f{"a":1}"#),
            (r#"<|python_tag|>{"type": "function", "name": "f", "parameters": {}}"#, " | f{}"),
            (r#"I look. <|python_tag|>{"name": "f"}"#, "I look. | f{}"),
            (r#"{"name": "f", "arguments": {"a": "; {"}}; {"name": "g"}"#, r#" | f{"a":"; {"}; g{}"#),
            (r#"{"name": "f"}<|python_tag|>{"name": "g"}"#, " | f{}; g{}"),
        ];
        for (text, expected) in cases {
            assert_eq!(read(text), expected, "{text}");
        }
    }

    #[test]
    fn a_malformed_call_gives_an_error() {
        let cases = [
            (r#"{"name": "f", "parameters": {"#, "incomplete JSON"),
            ("{'name': 'f'}", "not valid JSON: key must be a string at line 1 column 2"),
            (r#"{"parameters": {}}"#, "`name` is missing"),
            (r#"{"name": "f", "parameters": 5}"#, "`parameters` is not a JSON object"),
            ("<|python_tag|>print(1)", "not valid JSON: expected value at line 1 column 1"),
        ];
        for (text, why) in cases {
            assert_eq!(read(text), format!(" | error: {why}"), "{text}");
        }
        assert_eq!(
            read(r#"{"name": "f"} and so on"#),
            " | f{}; error: not valid JSON: expected value at line 1 column 1"
        );
    }
}
