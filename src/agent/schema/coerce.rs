//! Converts arguments to the types that a schema wants, where nothing is lost.

use serde_json::{Map, Number, Value};

use super::{
    Schema,
    check::{has_type, types},
};

/// Maximum nesting of values.
const DEPTH: usize = 32;
/// Alternatives that are looked at, and their nesting.
const ALTERNATIVES: usize = 16;
const ALTERNATIVES_DEPTH: usize = 3;

impl Schema {
    /// Converts a text to an integer, number or boolean, and a number to a text, where the schema wants that.
    pub(in crate::agent) fn coerce(&self, arguments: &mut Map<String, Value>) {
        let mut value = Value::Object(std::mem::take(arguments));
        self.coerce_value(&self.root, &mut value, DEPTH);
        if let Value::Object(fields) = value {
            *arguments = fields;
        }
    }

    fn coerce_value(&self, schema: &Value, value: &mut Value, depth: usize) {
        let Some(depth) = depth.checked_sub(1) else { return };
        let schema = self.referred(schema).unwrap_or(schema);
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    if let Some(schema) = schema.get("properties").and_then(|known| known.get(name)) {
                        self.coerce_value(schema, value, depth);
                    }
                }
            }
            Value::Array(items) => {
                if let Some(schema) = schema.get("items").filter(|schema| schema.is_object()) {
                    items.iter_mut().for_each(|item| self.coerce_value(schema, item, depth));
                }
            }
            plain => {
                let mut wanted = Vec::new();
                self.wanted(schema, &mut wanted, ALTERNATIVES_DEPTH);
                if !wanted.iter().any(|kind| has_type(plain, kind))
                    && let Some(converted) = wanted.iter().find_map(|kind| converted(plain, kind))
                {
                    *plain = converted;
                }
            }
        }
    }

    /// The types of a schema and of its alternatives.
    fn wanted<'s>(&'s self, schema: &'s Value, wanted: &mut Vec<&'s str>, depth: usize) {
        let Some(depth) = depth.checked_sub(1) else { return };
        let schema = self.referred(schema).unwrap_or(schema);
        wanted.extend(schema.as_object().map(types).unwrap_or_default());
        for name in ["anyOf", "oneOf"] {
            let alternatives = schema.get(name).and_then(Value::as_array).into_iter().flatten();
            alternatives.take(ALTERNATIVES).for_each(|schema| self.wanted(schema, wanted, depth));
        }
    }
}

fn converted(value: &Value, kind: &str) -> Option<Value> {
    match (value, kind) {
        (Value::String(text), "integer" | "number") => {
            let number: Number = serde_json::from_str(text.trim()).ok()?;
            let number = Value::Number(number);
            has_type(&number, kind).then_some(number)
        }
        (Value::String(text), "boolean") => match text.trim().to_ascii_lowercase().as_str() {
            "true" => Some(true.into()),
            "false" => Some(false.into()),
            _ => None,
        },
        (Value::Number(number), "string") => Some(number.to_string().into()),
        _ => None,
    }
}
