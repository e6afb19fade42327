//! Offered tools as Inspect reads them.
//!
//! Inspect reads a subset of JSON Schema with fixed types, and refuses a log with another value in one of its fields. A schema
//! comes from a server, so what Inspect would refuse is left out.

use serde_json::{Map, Value, json};

use crate::data::Tool;

/// Deepest schema that is shown.
const DEPTH: usize = 16;

const TYPES: [&str; 7] = ["string", "integer", "number", "boolean", "array", "object", "null"];

/// A tool as Inspect's `ToolInfo`.
pub fn tool(tool: &Tool) -> Value {
    let schema: Value = serde_json::from_str(&tool.input_schema).unwrap_or_default();
    let mut parameters = Map::from_iter([("type".to_owned(), json!("object"))]);
    let read = cleaned(&schema, DEPTH);
    for field in ["properties", "required", "additionalProperties"] {
        parameters.extend(read.get(field).map(|value| (field.to_owned(), value.clone())));
    }
    json!({ "name": tool.name, "description": tool.description, "parameters": parameters })
}

/// The part of a schema that Inspect reads.
fn cleaned(schema: &Value, depth: usize) -> Map<String, Value> {
    let Some(fields) = schema.as_object().filter(|_| depth > 0) else { return Map::new() };
    let inner = |value: &Value| Value::Object(cleaned(value, depth - 1));
    let is_type = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    let field = |(name, value): (&String, &Value)| {
        let read = match (name.as_str(), value) {
            ("type", Value::String(_)) if is_type(value) => value.clone(),
            ("type", Value::Array(types)) if types.iter().all(is_type) => value.clone(),
            ("format" | "description" | "pattern", Value::String(_)) => value.clone(),
            ("default", _) | ("enum" | "examples", Value::Array(_)) => value.clone(),
            ("items" | "additionalProperties", Value::Object(_)) => inner(value),
            ("additionalProperties", Value::Bool(_)) => value.clone(),
            ("properties", Value::Object(properties)) => {
                Value::Object(properties.iter().map(|(name, value)| (name.clone(), inner(value))).collect())
            }
            ("anyOf", Value::Array(variants)) => variants.iter().map(inner).collect(),
            ("required", Value::Array(names)) if names.iter().all(Value::is_string) => value.clone(),
            ("minLength" | "maxLength", Value::Number(number)) if number.is_u64() => value.clone(),
            ("minimum" | "maximum", Value::Number(_)) => value.clone(),
            _ => return None,
        };
        Some((name.clone(), read))
    };
    fields.iter().filter_map(field).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_inspect_would_refuse_is_left_out_of_a_schema() {
        let schema = json!({
            "type": "object", "$schema": "x", "required": ["a", 1],
            "properties": {
                "a": {"type": ["string", "null"], "description": 7, "minLength": -1, "default": {"x": 1}},
                "b": {"type": "any", "anyOf": [{"type": "integer"}, true], "items": [{}], "maximum": 1.5},
                "c": true,
            },
        });
        let read = tool(&Tool { name: "t".into(), input_schema: schema.to_string(), ..Tool::default() });
        let expected = json!({
            "a": {"type": ["string", "null"], "default": {"x": 1}},
            "b": {"anyOf": [{"type": "integer"}, {}], "maximum": 1.5},
            "c": {},
        });
        assert_eq!(read["parameters"], json!({ "type": "object", "properties": expected }));
        let nested = (0..100).fold(json!({}), |inner, _| json!({ "items": inner }));
        assert!(cleaned(&nested, DEPTH).contains_key("items"));
        assert_eq!(
            tool(&Tool { input_schema: "no JSON".into(), ..Tool::default() })["parameters"]["type"],
            "object"
        );
    }
}
