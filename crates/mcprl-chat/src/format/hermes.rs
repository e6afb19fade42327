//! `<tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>`, any number of them after the text of a turn: Hermes,
//! Qwen2.5, Qwen3.

use super::{
    Parsed, Schemas, after_call,
    json::{self, ParsedValue},
};
use crate::ToolCall;

pub const OPEN: &str = "<tool_call>";
pub const CLOSE: &str = "</tool_call>";

pub(super) fn assistant(text: &str, calls: &[ToolCall]) -> String {
    let mut out = text.to_owned();
    for call in calls {
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(&format!("{OPEN}\n{}\n{CLOSE}", json::object(call, "arguments")));
    }
    out
}

pub(super) fn parse(mut rest: &str, tools: &Schemas) -> Parsed {
    let mut parsed = Parsed::default();
    while let Some((before, body)) = rest.split_once(OPEN) {
        parsed.text.push_str(before);
        let (call, after) = read_call(body, tools);
        parsed.calls.push(call);
        rest = after;
    }
    parsed.text.push_str(rest);
    parsed
}

/// Parses what follows an opening tag: the call and the text after it. The closing tag may be missing.
fn read_call<'t>(body: &'t str, tools: &Schemas) -> (Result<ToolCall, String>, &'t str) {
    let (value, end) = match json::value(body) {
        ParsedValue::Value(value, end) => (value, end),
        ParsedValue::Wrong(why, end) => return (Err(why), after_call(&body[end..], OPEN, CLOSE)),
    };
    let rest = body[end..].trim_start();
    if let Some(after) = rest.strip_prefix(CLOSE) {
        (json::call(value, tools), after)
    } else if rest.is_empty() || rest.starts_with(OPEN) {
        (json::call(value, tools), rest)
    } else {
        (Err("text behind the JSON object".into()), after_call(rest, OPEN, CLOSE))
    }
}

#[cfg(test)]
mod tests {
    use crate::format::{Format, Schemas, tests::shown};

    /// A turn on one line: text | reasoning | calls.
    fn read(text: &str) -> String {
        let turn = Format::Hermes.parse(text, &Schemas::default());
        format!("{} | {} | {}", turn.text, turn.reasoning.unwrap_or_default(), shown(&turn.calls))
    }

    #[test]
    fn turns_are_parsed_in_all_common_variants() {
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
    fn a_malformed_call_gives_an_error_and_the_next_one_is_parsed() {
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
    fn a_call_nested_too_deeply_is_an_error() {
        let text = format!("<tool_call>{{\"name\":\"f\",\"arguments\":{}", "{\"a\":".repeat(100_000));
        assert!(Format::Hermes.parse(&text, &Schemas::default()).calls[0].is_err());
    }
}
