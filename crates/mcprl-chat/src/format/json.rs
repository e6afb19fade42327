//! Calls as JSON objects, for all formats that use JSON.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::Schemas;
use crate::{ToolCall, python};

/// Longest call, in bytes. `serde_json` limits its depth to 128 levels.
pub const LONGEST: usize = 64 * 1024;

/// Keys accepted for a call's arguments, whichever of them the template writes.
const ARGUMENTS: [&str; 2] = ["arguments", "parameters"];
/// Other keys that a call may have.
const OTHER_KEYS: [&str; 4] = ["name", "id", "type", "index"];

/// A call as templates write it: `{"name": …, "arguments": {…}}`, with this key for the arguments.
pub fn object(call: &ToolCall, key: &str) -> String {
    format!("{{\"name\": {}, \"{key}\": {}}}", Value::from(call.name.as_str()), arguments(call))
}

/// The arguments of a call on one line.
pub fn arguments(call: &ToolCall) -> String {
    python::line(&Value::Object(call.arguments.clone()))
}

/// The result of parsing the start of a text.
pub enum ParsedValue {
    /// A value and its length.
    Value(Value, usize),
    /// An error text for the model, and the minimum number of bytes to skip.
    Wrong(String, usize),
}

/// Parses one value at the start of a text and ignores what follows.
pub fn value(text: &str) -> ParsedValue {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Unambiguous>();
    match values.next() {
        Some(Ok(_)) if values.byte_offset() > LONGEST => {
            ParsedValue::Wrong(format!("longer than {LONGEST} bytes"), values.byte_offset())
        }
        Some(Ok(Unambiguous(value))) => ParsedValue::Value(value, values.byte_offset()),
        Some(Err(error)) if !error.is_eof() => ParsedValue::Wrong(format!("not valid JSON: {error}"), 0),
        _ => ParsedValue::Wrong("incomplete JSON".into(), 0),
    }
}

/// The items of a list, or the value itself.
pub fn items(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items,
        value => vec![value],
    }
}

/// Reads an object as a call.
///
/// # Errors
/// With an error text for the model. Nothing is dropped silently: a call without arguments is accepted only if it has no
/// other key that could contain them.
pub fn call(value: Value, tools: &Schemas) -> Result<ToolCall, String> {
    let Value::Object(mut fields) = value else { return Err("not a JSON object".into()) };
    let given: Vec<&str> = ARGUMENTS.into_iter().filter(|key| fields.contains_key(*key)).collect();
    let name = fields.get("name").and_then(Value::as_str).unwrap_or_default();
    // A key such as `id` may be the call's or an argument.
    let is_argument = |key: &&String| {
        !OTHER_KEYS.contains(&key.as_str()) || *key != "name" && tools.has_properties(name, [*key])
    };
    let arguments = match given.as_slice() {
        [] => match fields.keys().find(is_argument) {
            Some(other) if fields.contains_key("name") => {
                return Err(format!("`{other}` stands beside `name`; a call has a `name` and `arguments`"));
            }
            _ => Map::new(),
        },
        [key] => match fields.remove(*key) {
            Some(Value::Object(arguments)) => arguments,
            _ => return Err(format!("`{key}` is not a JSON object")),
        },
        _ => return Err("both `arguments` and `parameters` are given".into()),
    };
    match fields.remove("name") {
        Some(Value::String(name)) => Ok(ToolCall { name, arguments }),
        _ => Err("`name` is missing".into()),
    }
}

/// A JSON value without duplicate keys, one of which would be lost.
struct Unambiguous(Value);

impl<'de> Deserialize<'de> for Unambiguous {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader).map(Self)
    }
}

struct Reader;

macro_rules! scalars {
    ($($visit:ident: $type:ty),*) => {$(
        fn $visit<E>(self, value: $type) -> Result<Value, E> {
            Ok(value.into())
        }
    )*};
}

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    scalars!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Unambiguous(value)) = items.next_element()? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut values = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            let Unambiguous(value) = fields.next_value()?;
            if values.contains_key(&key) {
                return Err(de::Error::custom(format_args!("the key `{key}` is given twice")));
            }
            values.insert(key, value);
        }
        Ok(values.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_never_loses_arguments_silently() {
        let cases = [
            (r#"{"name": "f", "arguments": {"a": 1}}"#, r#"f{"a":1}"#),
            (r#"{"name": "f", "parameters": {"a": 1}}"#, r#"f{"a":1}"#),
            (r#"{"name": "f", "id": "x", "type": "function", "index": 0}"#, "f{}"),
            (
                r#"{"name": "f", "args": {"a": 1}}"#,
                "error: `args` stands beside `name`; a call has a `name` and `arguments`",
            ),
            (
                r#"{"name": "f", "a": 1}"#,
                "error: `a` stands beside `name`; a call has a `name` and `arguments`",
            ),
            (r#"{"name": "f", "arguments": "{\"a\": 1}"}"#, "error: `arguments` is not a JSON object"),
            (r#"{"name": "f", "arguments": null}"#, "error: `arguments` is not a JSON object"),
            (r#"{"name": "f", "parameters": [1]}"#, "error: `parameters` is not a JSON object"),
            (
                r#"{"name": "f", "arguments": {}, "parameters": {"a": 1}}"#,
                "error: both `arguments` and `parameters` are given",
            ),
            (
                r#"{"name": "f", "arguments": {"a": 1, "a": 2}}"#,
                "error: not valid JSON: the key `a` is given twice at line 1 column 43",
            ),
            (
                r#"{"name": "f", "arguments": {"a": 1}, "arguments": {}}"#,
                "error: not valid JSON: the key `arguments` is given twice at line 1 column 53",
            ),
            (r#"{"arguments": {"a": 1}}"#, "error: `name` is missing"),
            (r#"{"function": {"name": "f"}}"#, "error: `name` is missing"),
        ];
        for (text, expected) in cases {
            let read = match value(text) {
                ParsedValue::Value(value, _) => call(value, &Schemas::default()),
                ParsedValue::Wrong(why, _) => Err(why),
            };
            assert_eq!(super::super::tests::shown(&[read]), expected, "{text}");
        }
    }
}
