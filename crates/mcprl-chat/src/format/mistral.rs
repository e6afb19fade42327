//! Mistral: calls after `[TOOL_CALLS]`. All words in capitals and brackets are control tokens.
//!
//! | tokenizer | a call |
//! |---|---|
//! | v3 | `[TOOL_CALLS] [{"name": …, "arguments": {…}, "id": "…"}, …]` |
//! | v7 | the same without the space before the list |
//! | v11 | `[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}`, repeated |
//! | v13 | `[TOOL_CALLS]name[ARGS]{…}`, repeated |
//!
//! One parser handles all versions.

use serde_json::Value;

use super::{
    Parsed, Schemas,
    json::{self, ParsedValue},
};
use crate::{
    ToolCall,
    ids::{call_id, generated_id},
};

pub const OPEN: &str = "[TOOL_CALLS]";
const CALL_ID: &str = "[CALL_ID]";
const ARGUMENTS: &str = "[ARGS]";
const MARKS: [&str; 3] = [OPEN, CALL_ID, ARGUMENTS];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    V3,
    V7,
    V11,
    V13,
}

pub(super) fn assistant(version: Version, text: &str, calls: &[ToolCall]) -> String {
    let written = |(index, call): (usize, &ToolCall)| {
        let (name, id, arguments) = (&call.name, call_id(index, call), json::arguments(call));
        match version {
            Version::V3 | Version::V7 => {
                let name = Value::from(name.as_str());
                format!("{{\"name\": {name}, \"arguments\": {arguments}, \"id\": \"{id}\"}}")
            }
            Version::V11 => format!("{OPEN}{name}{CALL_ID}{id}{ARGUMENTS}{arguments}"),
            Version::V13 => format!("{OPEN}{name}{ARGUMENTS}{arguments}"),
        }
    };
    let written: Vec<String> = calls.iter().enumerate().map(written).collect();
    match version {
        Version::V3 => format!("{text}{OPEN} [{}]", written.join(", ")),
        Version::V7 => format!("{text}{OPEN}[{}]", written.join(", ")),
        Version::V11 | Version::V13 => format!("{text}{}", written.concat()),
    }
}

pub(super) fn parse(mut rest: &str, tools: &Schemas) -> Parsed {
    let mut parsed = Parsed::default();
    while let Some((before, body)) = rest.split_once(OPEN) {
        parsed.text.push_str(before);
        rest = read(body.trim_start(), &mut parsed, tools);
    }
    parsed.text.push_str(rest);
    parsed
}

/// Parses what follows an opening token, and returns the text after it.
fn read<'a>(body: &'a str, parsed: &mut Parsed, tools: &Schemas) -> &'a str {
    let mut add = |call: Result<ToolCall, String>, id: Option<String>| {
        let index = parsed.calls.len();
        parsed.ids.push(id.filter(|id| !id.is_empty()).unwrap_or_else(|| generated_id(index, &call)));
        parsed.calls.push(call);
    };
    let is_list = !MARKS.iter().any(|mark| body.starts_with(mark));
    if is_list && body.starts_with(['[', '{']) {
        let (value, end) = match json::value(body) {
            ParsedValue::Value(value, end) => (value, end),
            ParsedValue::Wrong(why, _) => {
                add(Err(why), None);
                return after_call(body);
            }
        };
        for call in json::items(value) {
            let id = call.get("id").and_then(Value::as_str).map(str::to_owned);
            add(json::call(call, tools), id);
        }
        return &body[end..];
    }
    let end = [CALL_ID, ARGUMENTS, "{"].iter().filter_map(|mark| body.find(mark)).min();
    let end = end.filter(|end| !body[..*end].contains(OPEN));
    let Some((name, rest)) = end.map(|end| body.split_at(end)) else {
        add(Err(format!("{ARGUMENTS} is missing behind the name")), None);
        return after_call(body);
    };
    let (id, rest) = match rest.strip_prefix(CALL_ID) {
        Some(rest) => {
            let end = [ARGUMENTS, "{"].iter().filter_map(|mark| rest.find(mark)).min().unwrap_or(rest.len());
            (Some(rest[..end].trim().to_owned()), &rest[end..])
        }
        None => (None, rest),
    };
    let rest = rest.strip_prefix(ARGUMENTS).unwrap_or(rest);
    match json::value(rest) {
        ParsedValue::Value(Value::Object(arguments), end) => {
            add(Ok(ToolCall { name: name.trim().to_owned(), arguments }), id);
            &rest[end..]
        }
        ParsedValue::Value(_, end) => {
            add(Err("the arguments are not a JSON object".into()), id);
            &rest[end..]
        }
        ParsedValue::Wrong(why, _) => {
            add(Err(why), id);
            after_call(rest)
        }
    }
}

/// The next call after one that could not be parsed.
fn after_call(body: &str) -> &str {
    body.find(OPEN).map_or("", |at| &body[at..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Turn,
        format::{Format, Schemas},
    };

    fn parse(text: &str) -> Turn {
        Format::Mistral(Version::V3).parse(text, &Schemas::default())
    }

    fn read(text: &str) -> String {
        let turn = parse(text);
        assert_eq!(turn.ids.len(), turn.calls.len());
        let calls: Vec<String> = turn
            .calls
            .iter()
            .zip(&turn.ids)
            .map(|(call, id)| match call {
                Ok(call) => format!("{}{}#{}", call.name, Value::Object(call.arguments.clone()), id),
                Err(why) => format!("error: {why}"),
            })
            .collect();
        format!("{} | {}", turn.text, calls.join("; "))
    }

    #[test]
    fn calls_of_every_version_are_parsed() {
        let cases = [
            ("just text", "just text | "),
            (
                r#"[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "abcdefghi"}, {"name": "g", "id": "123456789"}]"#,
                r#" | f{"a":1}#abcdefghi; g{}#123456789"#,
            ),
            (
                r#"I look.[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": "[TOOL_CALLS]"}[TOOL_CALLS]g[CALL_ID]1[ARGS]{}"#,
                r#"I look. | f{"a":"[TOOL_CALLS]"}#abcdefghi; g{}#1"#,
            ),
            (r#"[THINK]hm[/THINK][TOOL_CALLS]{"name": "f", "id": "x"}"#, " | f{}#x"),
        ];
        for (text, expected) in cases {
            assert_eq!(read(text), expected, "{text}");
        }
    }

    #[test]
    fn a_call_without_an_id_gets_nine_characters_that_depend_only_on_it() {
        let ids = |text: &str| parse(text).ids;
        let text = r#"[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]f[ARGS]{"a": 1}"#;
        let ids_of_text = ids(text);
        assert_eq!(ids_of_text, ids(text));
        assert!(ids_of_text[0] != ids_of_text[1]);
        for id in ids_of_text {
            assert!(id.len() == 9 && id.chars().all(|c| c.is_ascii_alphanumeric()), "{id}");
        }
    }

    #[test]
    fn a_malformed_call_gives_an_error_and_the_next_one_is_parsed() {
        let cases = [
            ("", "[ARGS] is missing behind the name"),
            ("f", "[ARGS] is missing behind the name"),
            ("f[ARGS]", "not valid JSON: expected value at line 1 column 2"),
            ("f[ARGS]{\"a\": ", "not valid JSON: expected value at line 1 column 8"),
            ("f[ARGS]5", "the arguments are not a JSON object"),
            ("[{\"name\": 5}]", "`name` is missing"),
        ];
        for (body, why) in cases {
            let text = format!("[TOOL_CALLS]{body}[TOOL_CALLS]g[CALL_ID]1[ARGS]{{}}");
            assert_eq!(read(&text), format!(" | error: {why}; g{{}}#1"), "{body}");
        }
        assert_eq!(read("[TOOL_CALLS]f[ARGS]{\"a"), " | error: incomplete JSON");
    }
}
