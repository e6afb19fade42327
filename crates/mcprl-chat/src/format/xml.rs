//! Qwen3-Coder, Qwen3.5 and later: tags for the function and for each parameter.
//!
//! ```text
//! <tool_call>
//! <function=NAME>
//! <parameter=P>
//! value
//! </parameter>
//! </function>
//! </tool_call>
//! ```
//!
//! A value is written without quotes, so its type comes from the tool's schema. The format has no escape, so text that
//! contains a value's closing tags is ambiguous.

use serde_json::{Map, Value};

use super::{
    Parsed, after_call,
    hermes::{CLOSE, OPEN},
    schemas::Schemas,
};
use crate::{
    ToolCall,
    literal::{self, Reader},
    python,
};

const FUNCTION: &str = "<function=";
const END_FUNCTION: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const END_PARAMETER: &str = "</parameter>";

pub(super) fn assistant(text: &str, calls: &[ToolCall]) -> String {
    let mut out = text.to_owned();
    for (index, call) in calls.iter().enumerate() {
        out.push_str(match index {
            0 if text.is_empty() => "",
            0 => "\n\n",
            _ => "\n",
        });
        out.push_str(&format!("{OPEN}\n{FUNCTION}{}>\n", call.name));
        for (name, value) in &call.arguments {
            out.push_str(&format!("{PARAMETER}{name}>\n{}\n{END_PARAMETER}\n", written_value(value)));
        }
        out.push_str(&format!("{END_FUNCTION}\n{CLOSE}"));
    }
    out
}

/// As the templates write it: JSON for lists and objects, `str(value)` for others.
fn written_value(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(_) | Value::Object(_) => python::line(value),
        Value::Null | Value::Bool(_) | Value::Number(_) => python::literal(value),
    }
}

pub(super) fn parse(mut rest: &str, tools: &Schemas) -> Parsed {
    let mut parsed = Parsed::default();
    // Models omit the outer tag, so the inner one also opens a call.
    while let Some(at) = first(rest, &[OPEN, FUNCTION]) {
        parsed.text.push_str(&rest[..at]);
        let body = rest[at..].strip_prefix(OPEN).unwrap_or(&rest[at..]).trim_start();
        let mut reader = Reader::new(body);
        let call = read_call(&mut reader, tools);
        rest = match &call {
            Ok(_) => reader.rest,
            Err(_) => after_call(reader.rest, OPEN, CLOSE),
        };
        parsed.calls.push(call);
    }
    parsed.text.push_str(rest);
    parsed
}

/// The start of the first of these tags.
fn first(text: &str, tags: &[&str]) -> Option<usize> {
    tags.iter().filter_map(|tag| text.find(tag)).min()
}

fn read_call(reader: &mut Reader<'_>, tools: &Schemas) -> Result<ToolCall, String> {
    if !reader.take(FUNCTION) {
        return Err(format!("{FUNCTION}NAME> is missing"));
    }
    let name = tag_name(reader, "the function's name")?.trim().to_owned();
    let mut arguments = Map::new();
    loop {
        if reader.take(PARAMETER) {
            let parameter = tag_name(reader, "a parameter's name")?;
            let text = written(reader, parameter)?;
            if arguments.contains_key(parameter) {
                return Err(format!("the parameter {parameter} is given twice"));
            }
            arguments.insert(parameter.to_owned(), typed(text, tools, &name, parameter));
        } else if reader.take(END_FUNCTION) || reader.rest.starts_with(CLOSE) {
            reader.take(CLOSE);
            return Ok(ToolCall { name, arguments });
        } else if reader.rest.is_empty() {
            return Err(format!("incomplete: {END_FUNCTION} is missing"));
        } else {
            return Err(format!("text between the parameters of {name}"));
        }
    }
}

/// The rest of an opening tag.
fn tag_name<'a>(reader: &mut Reader<'a>, what: &str) -> Result<&'a str, String> {
    match reader.rest.split_once('>') {
        Some((name, rest)) if !name.trim().is_empty() && !name.contains(['<', '\n']) => {
            reader.rest = rest;
            Ok(name)
        }
        _ => Err(format!("{what} is missing or does not end with `>`")),
    }
}

/// The text of a value, without the surrounding line breaks. It ends at the first closing tag that is followed by
/// something that cannot be part of the value.
fn written<'a>(reader: &mut Reader<'a>, parameter: &str) -> Result<&'a str, String> {
    let follows = |rest: &str| {
        let rest = rest.trim_start();
        let next = [PARAMETER, END_FUNCTION, CLOSE, OPEN];
        rest.is_empty() || next.iter().any(|tag| rest.starts_with(tag))
    };
    let text = reader.rest;
    let mut ends = text.match_indices(END_PARAMETER).map(|(at, tag)| (at, at + tag.len()));
    let closed = ends.find(|(_, after)| follows(&text[*after..]));
    // The closing tag may be missing if another tag follows.
    let open = || first(text, &[PARAMETER, END_FUNCTION]).map(|at| (at, at));
    let Some((end, after)) = closed.or_else(open) else {
        return Err(format!("incomplete: the parameter {parameter} is not closed with {END_PARAMETER}"));
    };
    reader.rest = &text[after..];
    Ok(without_breaks(&text[..end]))
}

/// A value without the line breaks after its opening and before its closing tag.
pub(super) fn without_breaks(value: &str) -> &str {
    let value = value.strip_prefix('\n').unwrap_or(value);
    value.strip_suffix('\n').unwrap_or(value)
}

/// The value of a text under the tool's schema. A text that does not match the schema stays text, because the server's
/// error explains best what it expects.
pub(super) fn typed(text: &str, tools: &Schemas, tool: &str, parameter: &str) -> Value {
    let allowed = tools.allowed(tool, parameter);
    let trimmed = text.trim();
    let parsed = serde_json::from_str(trimmed).ok().or_else(|| literal::of_text(trimmed)).or_else(|| {
        let words = [("true", Value::Bool(true)), ("false", Value::Bool(false)), ("none", Value::Null)];
        words.into_iter().find(|(word, _)| trimmed.eq_ignore_ascii_case(word)).map(|(_, value)| value)
    });
    match parsed {
        Some(value) if allowed.prefers(&value) => value,
        _ => Value::from(text),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::format::{Format, tests::shown};

    fn tools() -> Schemas {
        Schemas::new(&[json!({"function": {"name": "f", "parameters": {
            "properties": {
                "text": {"type": "string"},
                "count": {"type": "integer"},
                "rate": {"type": ["number", "null"]},
                "on": {"type": "boolean"},
                "list": {"$ref": "#/$defs/Names"},
                "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
            "$defs": {"Names": {"type": "array", "items": {"type": "string"}}},
        }}})])
    }

    fn read(text: &str) -> String {
        let turn = Format::Xml.parse(text, &tools());
        format!("{} | {}", turn.text, shown(&turn.calls))
    }

    fn argument(name: &str, value: &str) -> String {
        format!(
            "<tool_call>\n<function=f>\n<parameter={name}>\n{value}\n</parameter>\n</function>\n</tool_call>"
        )
    }

    #[test]
    fn a_value_has_the_type_of_its_schema() {
        let cases = [
            ("text", "5", r#"{"text":"5"}"#),
            ("text", "null", r#"{"text":"null"}"#),
            ("text", " two\n\nlines\n", r#"{"text":" two\n\nlines\n"}"#),
            ("count", "5", r#"{"count":5}"#),
            ("count", "five", r#"{"count":"five"}"#),
            ("rate", "5", r#"{"rate":5}"#),
            ("rate", "None", r#"{"rate":null}"#),
            ("on", "True", r#"{"on":true}"#),
            ("list", r#"["a", "b"]"#, r#"{"list":["a","b"]}"#),
            ("list", "['a', 'b']", r#"{"list":["a","b"]}"#),
            ("maybe", "5", r#"{"maybe":"5"}"#),
            ("maybe", "null", r#"{"maybe":null}"#),
            ("unknown", "5", r#"{"unknown":5}"#),
            ("unknown", "of", r#"{"unknown":"of"}"#),
        ];
        for (name, value, expected) in cases {
            assert_eq!(read(&argument(name, value)), format!(" | f{expected}"), "{name}: {value}");
        }
    }

    #[test]
    fn turns_are_parsed_in_all_common_variants() {
        let cases = [
            ("just text", "just text | "),
            (
                "<think>\nhm\n</think>\n\nI look.\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>",
                "I look. | f{}",
            ),
            ("<function=f></function>", " | f{}"),
            (
                "<tool_call><function=f><parameter=text>x</parameter></function></tool_call>",
                r#" | f{"text":"x"}"#,
            ),
            ("<tool_call><function=f><parameter=text>x</function></tool_call>", r#" | f{"text":"x"}"#),
            (
                "<tool_call><function=f><parameter=text>a</parameter>b</parameter></function></tool_call>",
                r#" | f{"text":"a</parameter>b"}"#,
            ),
            ("<tool_call><function=f></tool_call>", " | f{}"),
        ];
        for (text, expected) in cases {
            assert_eq!(read(text), expected, "{text}");
        }
    }

    #[test]
    fn a_malformed_call_gives_an_error_and_the_next_one_is_parsed() {
        let cases = [
            ("{\"name\": \"f\"}", "<function=NAME> is missing"),
            ("<function=f", "the function's name is missing or does not end with `>`"),
            ("<function=f>and", "text between the parameters of f"),
            (
                "<function=f><parameter=p>1</parameter><parameter=p>2</parameter></function>",
                "the parameter p is given twice",
            ),
        ];
        for (body, why) in cases {
            let text = format!("<tool_call>{body}</tool_call><tool_call><function=f></function></tool_call>");
            assert_eq!(read(&text), format!(" | error: {why}; f{{}}"), "{body}");
        }
        let cut = "<tool_call>\n<function=f>\n<parameter=text>\nnever ends";
        assert_eq!(read(cut), " | error: incomplete: the parameter text is not closed with </parameter>");
        assert_eq!(read("<tool_call>\n<function=f>\n"), " | error: incomplete: </function> is missing");
    }
}
