//! JSON objects as types.

use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// What is wrong with an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The keys that lead to the wrong value, as in `gates[0].below`; empty if it is the object itself.
    pub path: String,
    pub problem: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => out.write_str(&self.problem),
            path => write!(out, "{path}: {}", self.problem),
        }
    }
}

/// The object as a `T`.
///
/// # Errors
/// If a value has another type, is missing, or has a key that `T` refuses.
pub fn typed<T: DeserializeOwned>(object: &Map<String, Value>) -> Result<T, Mistake> {
    serde_path_to_error::deserialize(object).map_err(|error| {
        let path = if error.path().iter().len() == 0 { String::new() } else { error.path().to_string() };
        Mistake { path, problem: error.inner().to_string() }
    })
}

/// The name of a JSON value's type in run files, with its article.
pub fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_f64() => "a number with a fraction",
        Value::Number(_) => "an integer",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a table",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, serde::Deserialize)]
    struct Gate {
        #[expect(dead_code, reason = "only its type counts")]
        below: f64,
    }

    #[derive(Debug, serde::Deserialize)]
    struct Params {
        #[expect(dead_code, reason = "only its type counts")]
        gates: Vec<Gate>,
    }

    fn mistake(object: Value) -> String {
        typed::<Params>(object.as_object().unwrap()).unwrap_err().to_string()
    }

    #[test]
    fn a_mistake_names_the_keys_that_lead_to_it() {
        let wrong = json!({"gates": [{"below": 1.0}, {"below": "low"}]});
        assert_eq!(mistake(wrong), "gates[1].below: invalid type: string \"low\", expected f64");
        assert_eq!(mistake(json!({"gates": [{}]})), "gates[0]: missing field `below`");
        assert_eq!(mistake(json!({})), "missing field `gates`");
    }
}
