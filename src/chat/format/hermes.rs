//! `<tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>`, any number of them after the text of a turn.

use serde_json::{Deserializer, Map, Value};

use crate::chat::{ToolCall, Turn, python};

pub(super) const END_OF_TURN: &str = "<|im_end|>";
const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const THINK: &str = "<think>";
const END_THINK: &str = "</think>";
/// Longest call read, in bytes. Its depth is bounded by `serde_json` (128 levels).
const LONGEST: usize = 64 * 1024;

pub(super) fn assistant(text: &str, calls: &[ToolCall]) -> String {
    let mut out = text.to_owned();
    for call in calls {
        if !out.is_empty() {
            out.push('\n');
        }
        let name = Value::from(call.name.as_str());
        let arguments = python::line(&Value::Object(call.arguments.clone()));
        out.push_str(&format!("{OPEN}\n{{\"name\": {name}, \"arguments\": {arguments}}}\n{CLOSE}"));
    }
    out
}

pub(super) fn parse(text: &str) -> Turn {
    let (reasoning, mut rest) = split_reasoning(text);
    let mut spoken = String::new();
    let mut calls = Vec::new();
    while let Some((before, body)) = rest.split_once(OPEN) {
        spoken.push_str(before);
        let (call, after) = read_call(body);
        calls.push(call);
        rest = after;
    }
    spoken.push_str(rest);
    Turn { text: spoken.trim().to_owned(), reasoning, calls }
}

/// Reasoning comes first and ends with `</think>`; its opening tag may have been part of the prompt.
fn split_reasoning(text: &str) -> (Option<String>, &str) {
    let opened = text.trim_start().strip_prefix(THINK);
    let body = opened.unwrap_or(text);
    let end = body.find(END_THINK).filter(|end| opened.is_some() || !body[..*end].contains(OPEN));
    let (reasoning, rest) = match end {
        Some(end) => (&body[..end], &body[end + END_THINK.len()..]),
        None if opened.is_some() => (body, ""),
        None => ("", text),
    };
    let reasoning = reasoning.trim();
    ((!reasoning.is_empty()).then(|| reasoning.to_owned()), rest)
}

/// Reads what follows an opening tag: the call, and the text behind it. A missing closing tag is forgiven.
fn read_call(body: &str) -> (Result<ToolCall, String>, &str) {
    let mut values = Deserializer::from_str(body).into_iter::<Value>();
    let value = values.next();
    let Some(Ok(value)) = value else {
        let why = match value {
            Some(Err(error)) if !error.is_eof() => format!("not valid JSON: {error}"),
            _ => "incomplete JSON".to_owned(),
        };
        return (Err(why), behind(body));
    };
    let end = values.byte_offset();
    if end > LONGEST {
        return (Err(format!("longer than {LONGEST} bytes")), behind(&body[end..]));
    }
    let rest = body[end..].trim_start();
    if let Some(after) = rest.strip_prefix(CLOSE) {
        (call(value), after)
    } else if rest.is_empty() || rest.starts_with(OPEN) {
        (call(value), rest)
    } else {
        (Err("text behind the JSON object".into()), behind(rest))
    }
}

/// The text behind the call that `body` is in.
fn behind(body: &str) -> &str {
    let close = body.find(CLOSE);
    let open = body.find(OPEN);
    match (close, open) {
        (Some(close), Some(open)) if open < close => &body[open..],
        (Some(close), _) => &body[close + CLOSE.len()..],
        (None, Some(open)) => &body[open..],
        (None, None) => "",
    }
}

fn call(value: Value) -> Result<ToolCall, String> {
    let Value::Object(mut fields) = value else { return Err("not a JSON object".into()) };
    let Some(Value::String(name)) = fields.remove("name") else { return Err("`name` is missing".into()) };
    let arguments = match fields.remove("arguments") {
        Some(Value::Object(arguments)) => arguments,
        None => Map::new(),
        Some(_) => return Err("`arguments` is not a JSON object".into()),
    };
    Ok(ToolCall { name, arguments })
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// A turn on one line: text | reasoning | calls.
    fn read(text: &str) -> String {
        let turn = parse(text);
        let calls: Vec<String> = turn
            .calls
            .iter()
            .map(|call| match call {
                Ok(call) => format!("{}{}", call.name, Value::Object(call.arguments.clone())),
                Err(why) => format!("error: {why}"),
            })
            .collect();
        format!("{} | {} | {}", turn.text, turn.reasoning.unwrap_or_default(), calls.join("; "))
    }

    #[test]
    fn turns_are_read_however_models_write_them() {
        let cases = [
            ("just text", "just text |  | "),
            ("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", " |  | f{\"a\":1}"),
            ("I look.\n<tool_call>{\"name\":\"f\"}</tool_call>", "I look. |  | f{}"),
            ("<think>\nhm\n</think>\n\n<tool_call>{\"name\":\"f\"}</tool_call>", " | hm | f{}"),
            ("hm\n</think>\n\ndone", "done | hm | "),
            ("<think>\n\n</think>\n\ndone", "done |  | "),
            (
                "<think>never ends <tool_call>{\"name\":\"f\"}</tool_call>",
                " | never ends <tool_call>{\"name\":\"f\"}</tool_call> | ",
            ),
            (
                "<tool_call>{\"name\":\"f\"}</tool_call>\n<tool_call>{\"name\":\"g\"}</tool_call>",
                " |  | f{}; g{}",
            ),
            ("<tool_call>{\"name\":\"f\"}", " |  | f{}"),
            ("<tool_call>{\"name\":\"f\"}<tool_call>{\"name\":\"g\"}", " |  | f{}; g{}"),
            (
                "<tool_call>{\"name\":\"f\",\"arguments\":{\"q\":\"</tool_call>\"}}</tool_call>",
                " |  | f{\"q\":\"</tool_call>\"}",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(read(text), expected, "{text}");
        }
    }

    #[test]
    fn a_malformed_call_says_what_is_wrong_and_the_next_one_is_read() {
        let cases = [
            (
                "{\"name\": \"f\", \"arguments\": {",
                "not valid JSON: key must be a string at line 1 column 29",
            ),
            ("{'name': 'f'}", "not valid JSON: key must be a string at line 1 column 2"),
            ("", "not valid JSON: expected value at line 1 column 1"),
            ("[1]", "not a JSON object"),
            ("{\"arguments\": {}}", "`name` is missing"),
            ("{\"name\": \"f\", \"arguments\": \"x\"}", "`arguments` is not a JSON object"),
            ("{\"name\": \"f\"} and more", "text behind the JSON object"),
        ];
        for (body, why) in cases {
            let text = format!("<tool_call>{body}</tool_call><tool_call>{{\"name\":\"g\"}}</tool_call>");
            assert_eq!(read(&text), format!(" |  | error: {why}; g{{}}"), "{body}");
        }
    }

    #[test]
    fn a_call_cut_off_by_the_end_of_the_turn_is_incomplete() {
        assert_eq!(read("<tool_call>\n{\"name\": \"f\", \"argu"), " |  | error: incomplete JSON");
        assert_eq!(read("<tool_call>"), " |  | error: incomplete JSON");
    }

    #[test]
    fn a_call_nested_without_end_is_an_error() {
        let text = format!("<tool_call>{{\"name\":\"f\",\"arguments\":{}", "{\"a\":".repeat(100_000));
        assert!(parse(&text).calls[0].is_err());
    }

    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
            Just(Value::Null),
            Just(json!("</tool_call><tool_call>{\"name\": \"x\"}")),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(any::<String>(), inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    pub fn tool_call() -> impl Strategy<Value = ToolCall> {
        let arguments = prop::collection::btree_map(any::<String>(), json_value(), 0..4);
        ("[a-zA-Z0-9_.-]{1,20}", arguments)
            .prop_map(|(name, arguments)| ToolCall { name, arguments: arguments.into_iter().collect() })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(calls in prop::collection::vec(tool_call(), 0..4), text in "[a-z ,.]{0,20}") {
            let turn = parse(&assistant(text.trim(), &calls));
            prop_assert_eq!(turn.text, text.trim());
            prop_assert_eq!(turn.calls, calls.into_iter().map(Ok).collect::<Vec<_>>());
        }

        #[test]
        fn any_text_gives_a_turn(
            parts in prop::collection::vec(
                prop_oneof![
                    any::<String>(), Just(OPEN.to_owned()), Just(CLOSE.to_owned()), Just(THINK.to_owned()),
                    Just(END_THINK.to_owned()), Just("{\"name\": \"f\"".to_owned()), Just("}".to_owned()),
                ],
                0..12,
            )
        ) {
            parse(&parts.concat());
        }
    }
}
