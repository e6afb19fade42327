//! `{"name": …, "parameters": {…}}` as a whole turn: Llama 3.1, 3.2 and 3.3.
//!
//! The templates write one call per turn and no other text. Models also write `<|python_tag|>` before a call,
//! `"type": "function"` in it, and several calls separated by `;`. All are parsed.

use super::{
    Parsed, Schemas,
    json::{self, ParsedValue},
};
use crate::ToolCall;

pub const TAG: &str = "<|python_tag|>";

pub(super) fn assistant(calls: &[ToolCall]) -> String {
    calls.iter().map(|call| json::object(call, "parameters")).collect::<Vec<_>>().join("; ")
}

pub(super) fn parse(turn: &str, tools: &Schemas) -> Parsed {
    let (text, body) = match turn.split_once(TAG) {
        _ if turn.trim_start().starts_with('{') => ("", turn),
        Some((text, body)) => (text, body),
        None => (turn, ""),
    };
    // After the tag there must be a call. An object without the tag may be an answer.
    let is_tagged = turn.len() > text.len() + body.len();
    let (calls, behind) = read_calls(body, is_tagged, tools);
    let text = if calls.is_empty() && !body.is_empty() { turn.to_owned() } else { format!("{text}{behind}") };
    Parsed { text, calls, ..Parsed::default() }
}

/// Consecutive calls, and the text behind them. No calls if the text is an object that is not a call.
fn read_calls<'t>(
    body: &'t str,
    is_tagged: bool,
    tools: &Schemas,
) -> (Vec<Result<ToolCall, String>>, &'t str) {
    let mut calls = Vec::new();
    let mut rest = body;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ';' || c == ',');
        rest = rest.strip_prefix(TAG).unwrap_or(rest);
        if rest.is_empty() || !calls.is_empty() && !rest.starts_with('{') {
            return (calls, rest);
        }
        match json::value(rest) {
            ParsedValue::Value(value, end) => {
                let is_call = ["name", "parameters", "arguments"].iter().any(|key| value.get(key).is_some());
                if !is_call && calls.is_empty() && !is_tagged {
                    return (calls, "");
                }
                calls.push(json::call(value, tools));
                rest = &rest[end..];
            }
            ParsedValue::Wrong(why, _) => {
                calls.push(Err(why));
                return (calls, "");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::format::{Format, tests::shown_turn};

    fn read(text: &str) -> String {
        shown_turn(Format::Llama, text)
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
        assert_eq!(read(r#"{"name": "f"} and so on"#), "and so on | f{}");
    }
}
