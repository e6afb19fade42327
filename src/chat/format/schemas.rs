//! The JSON types that tool parameters may have.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Maximum number of schemas visited for one parameter, through references and alternatives.
const MOST: usize = 64;

/// The schemas of the tools' parameters, by tool.
#[derive(Debug, Clone, Default)]
pub struct Schemas(BTreeMap<String, Map<String, Value>>);

/// JSON types a parameter may have; unknown if all are false.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Types {
    string: bool,
    number: bool,
    boolean: bool,
    null: bool,
    array: bool,
    object: bool,
}

impl Schemas {
    /// `tools` are OpenAI-style function schemas, bare or within `{"type": "function", "function": …}`.
    pub fn new(tools: &[Value]) -> Self {
        let schema = |tool: &Value| {
            let function = tool.get("function").unwrap_or(tool);
            let parameters = function.get("parameters")?.as_object()?.clone();
            Some((function.get("name")?.as_str()?.to_owned(), parameters))
        };
        Self(tools.iter().filter_map(schema).collect())
    }

    pub fn allowed(&self, tool: &str, parameter: &str) -> Types {
        let mut types = Types::default();
        if let Some(root) = self.0.get(tool)
            && let Some(schema) = root.get("properties").and_then(|properties| properties.get(parameter))
        {
            let mut left = MOST;
            types.add(schema, root, &mut left);
        }
        types
    }
}

impl Types {
    fn add(&mut self, schema: &Value, root: &Map<String, Value>, left: &mut usize) {
        let Some(schema) = schema.as_object().filter(|_| *left > 0) else { return };
        *left -= 1;
        match schema.get("type") {
            Some(Value::String(name)) => self.add_name(name),
            Some(Value::Array(names)) => {
                names.iter().filter_map(Value::as_str).for_each(|name| self.add_name(name))
            }
            _ => {}
        }
        for value in
            schema.get("enum").and_then(Value::as_array).into_iter().flatten().chain(schema.get("const"))
        {
            self.add_name(match value {
                Value::Null => "null",
                Value::Bool(_) => "boolean",
                Value::Number(_) => "number",
                Value::String(_) => "string",
                Value::Array(_) => "array",
                Value::Object(_) => "object",
            });
        }
        for key in ["anyOf", "oneOf", "allOf"] {
            for part in schema.get(key).and_then(Value::as_array).into_iter().flatten() {
                self.add(part, root, left);
            }
        }
        // Only local references are followed.
        let name = schema.get("$ref").and_then(Value::as_str).and_then(|name| name.strip_prefix("#/"));
        let found = name.and_then(|name| {
            let mut steps = name.split('/');
            let first = root.get(steps.next()?)?;
            steps.try_fold(first, |at, step| at.get(step))
        });
        if let Some(found) = found {
            self.add(found, root, left);
        }
    }

    fn add_name(&mut self, name: &str) {
        match name {
            "string" => self.string = true,
            "number" | "integer" => self.number = true,
            "boolean" => self.boolean = true,
            "null" => self.null = true,
            "array" => self.array = true,
            "object" => self.object = true,
            _ => {}
        }
    }

    /// Whether a text that parses as this value means the value and not the text. If text is allowed, only null, lists and
    /// objects are read as values, and only if they are allowed too.
    pub fn prefers(self, value: &Value) -> bool {
        let known = self != Self::default();
        match value {
            _ if !known => !value.is_string(),
            Value::Null => self.null,
            Value::Array(_) => self.array,
            Value::Object(_) => self.object,
            Value::Bool(_) => self.boolean && !self.string,
            Value::Number(_) => self.number && !self.string,
            Value::String(_) => false,
        }
    }
}
