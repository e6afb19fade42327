//! A Python list of calls between control tokens: LFM2. Text may be before and after them.

use super::{Parsed, ToolCall, python_call};

pub(super) const OPEN: &str = "<|tool_call_start|>";
const CLOSE: &str = "<|tool_call_end|>";

pub(super) fn assistant(text: &str, calls: &[ToolCall]) -> String {
    format!("{OPEN}{}{CLOSE}{text}", python_call::assistant(calls))
}

pub(super) fn parse(turn: &str) -> Parsed {
    let mut parsed = Parsed::default();
    let mut rest = turn;
    while let Some((text, body)) = rest.split_once(OPEN) {
        let (list, after) = body.split_once(CLOSE).unwrap_or((body, ""));
        parsed.text.push_str(text);
        let found = python_call::parse(list);
        match found.calls.is_empty() {
            true => parsed
                .calls
                .push(Err(format!("{} is not a list of calls, [name(parameter=value)]", list.trim()))),
            false => {
                parsed.calls.extend(found.calls);
                parsed.text.push_str(&found.text);
            }
        }
        rest = after;
    }
    parsed.text.push_str(rest);
    parsed
}

#[cfg(test)]
mod tests {
    use crate::format::{Format, tests::shown_turn};

    #[test]
    fn turns_are_parsed_in_all_common_variants() {
        for (text, expected) in [
            ("just text", "just text | "),
            ("[f()]", "[f()] | "),
            ("<|tool_call_start|>[f()] as asked<|tool_call_end|>", "as asked | f{}"),
            (
                "<|tool_call_start|>[f(a='x'), g()]<|tool_call_end|>Checking.",
                r#"Checking. | f{"a":"x"}; g{}"#,
            ),
            (
                "So: <|tool_call_start|>[f()]<|tool_call_end|>\n<|tool_call_start|>[g(n=1)]",
                r#"So: | f{}; g{"n":1}"#,
            ),
            ("<|tool_call_start|>[f(a=\"<|tool_call_end|>", " | error: a: incomplete: a text is not closed"),
            (
                "<|tool_call_start|>f()<|tool_call_end|>",
                " | error: f() is not a list of calls, [name(parameter=value)]",
            ),
        ] {
            assert_eq!(shown_turn(Format::Liquid, text), expected, "{text}");
        }
    }
}
