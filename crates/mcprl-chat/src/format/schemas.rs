//! The JSON types that tool parameters may have.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

/// Maximum number of schemas visited for one parameter, through references and alternatives.
const MOST: usize = 64;

/// The schemas of the tools' parameters, by tool.
#[derive(Debug, Clone, Default)]
pub struct Schemas(BTreeMap<String, Map<String, Value>>);

/// JSON types a parameter may have; unknown if empty. `integer` counts as `number`.
#[derive(Debug, Clone, Default)]
pub struct Types(BTreeSet<&'static str>);

const TYPES: [&str; 6] = ["string", "number", "boolean", "null", "array", "object"];

/// The JSON type of a value.
pub fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

impl Schemas {
    /// `tools` are OpenAI-style function schemas, bare or within `{"type": "function", "function": …}`.
    pub fn new(tools: &[Value]) -> Self {
        let schema = |tool: &Value| {
            let function = tool.get("function").unwrap_or(tool);
            let parameters = function.get("parameters").and_then(Value::as_object).cloned();
            Some((function.get("name")?.as_str()?.to_owned(), parameters.unwrap_or_default()))
        };
        Self(tools.iter().filter_map(schema).collect())
    }

    /// The names of the tools.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Whether there is a tool of this name.
    pub fn offers(&self, tool: &str) -> bool {
        self.0.contains_key(tool)
    }

    /// The required parameters, in the schema's order.
    pub fn required(&self, tool: &str) -> Vec<&str> {
        let required = self.0.get(tool).and_then(|schema| schema.get("required")?.as_array());
        required.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// Whether the tool has all these parameters.
    pub fn has_properties<'a>(&self, tool: &str, parameters: impl IntoIterator<Item = &'a String>) -> bool {
        let known = self.0.get(tool).and_then(|schema| schema.get("properties"));
        parameters.into_iter().all(|parameter| known.is_some_and(|known| known.get(parameter).is_some()))
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
        let values = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
        self.0.extend(values.chain(schema.get("const")).map(type_of));
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
        let name = if name == "integer" { "number" } else { name };
        self.0.extend(TYPES.into_iter().find(|known| *known == name));
    }

    /// Whether a text that parses as this value means the value and not the text. If text is allowed, only null, lists and
    /// objects are read as values, and only if they are allowed too.
    pub fn prefers(&self, value: &Value) -> bool {
        match value {
            Value::String(_) => false,
            _ if self.0.is_empty() => true,
            Value::Bool(_) | Value::Number(_) if self.0.contains("string") => false,
            value => self.0.contains(type_of(value)),
        }
    }
}
