//! JSON objects as types.

use std::{borrow::Cow, fmt};

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

/// JSON of which each number stays as it is written: one that a [`Value`] would round becomes a text of its digits.
///
/// # Errors
/// If the text is no JSON.
pub fn exact(text: &str) -> serde_json::Result<Value> {
    serde_json::from_str(&with_texts(text))
}

/// A text of JSON with texts in place of the numbers that a [`Value`] would round.
pub fn with_texts(text: &str) -> Cow<'_, str> {
    let bytes = text.as_bytes();
    let (mut out, mut from, mut at) = (String::new(), 0, 0);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => {
                at += 1;
                while let Some(byte) = bytes.get(at).filter(|byte| **byte != b'"') {
                    at += if *byte == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            b'-' | b'0'..=b'9' => {
                let is_inner = |byte: &&u8| matches!(**byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9');
                let length = bytes[at..].iter().take_while(is_inner).count();
                let number = &text[at..at + length];
                if !is_exact(number) {
                    out += &text[from..at];
                    out += &format!("\"{number}\"");
                    from = at + length;
                }
                at += length;
            }
            _ => at += 1,
        }
    }
    match from {
        0 => text.into(),
        _ => (out + &text[from..]).into(),
    }
}

/// Whether a [`Value`] has all digits of a number. True of what is none.
pub fn is_exact(number: &str) -> bool {
    // So many digits are never rounded.
    if number.len() < 16 {
        return true;
    }
    let Ok(value) = serde_json::from_str::<Value>(number) else { return true };
    digits(number) == digits(&value.to_string())
}

/// The digits of a number from the first to the last that is not 0, and the power of ten of the last one.
fn digits(number: &str) -> (String, i64) {
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let fraction = mantissa.split_once('.').map_or("", |(_, fraction)| fraction);
    let all: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    let significant = all.trim_end_matches('0');
    let zeros = i64::try_from(all.len() - significant.len()).unwrap_or_default();
    let decimals = i64::try_from(fraction.len()).unwrap_or_default();
    let power = exponent.parse::<i64>().unwrap_or_default().saturating_add(zeros - decimals);
    let significant = significant.trim_start_matches('0').to_owned();
    (significant.clone(), if significant.is_empty() { 0 } else { power })
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

    #[test]
    fn a_number_stays_as_it_is_written() {
        for (text, expected) in [
            ("123456789012345678901234567890", json!("123456789012345678901234567890")),
            ("-3.14159265358979323846", json!("-3.14159265358979323846")),
            ("18446744073709551615", json!(u64::MAX)),
            ("18446744073709551616", json!("18446744073709551616")),
            ("100000000000000000000000", json!(1e23)),
            ("0.1000000000000000000", json!(0.1)),
            ("1.2345678901234567891e5", json!("1.2345678901234567891e5")),
            ("0.10000000000000001", json!("0.10000000000000001")),
            (
                r#"{"1234567890123456789012":["12345678901234567890123\"",7]}"#,
                json!({"1234567890123456789012": ["12345678901234567890123\"", 7]}),
            ),
        ] {
            assert_eq!(exact(text).unwrap(), expected, "{text}");
        }
        let long = format!("[{},1]", "9".repeat(40));
        assert_eq!(exact(&long).unwrap(), json!(["9".repeat(40), 1]));
        assert!(exact("12345678901234567890-").is_err());
    }
}
