//! Reads the scores in a judge's reply.

use std::collections::BTreeMap;

use serde_json::{Deserializer, Value, json};

/// A score between 0 and 1, with its explanation.
pub type ReplyScore = (f64, Option<String>);

/// Most bytes of a reply that are searched, counted from its end.
const SEARCHED: usize = 1 << 16;

/// Parses a reply: one score for each of these names, in their order. The JSON may be anywhere in the text. If there are
/// several lists, the last one counts: a judge that quotes an episode does so before it decides.
///
/// # Errors
/// If a name has no score or two, or a score is not between 0 and 1; says which.
pub fn scores<N: AsRef<str>>(reply: &str, names: &[N]) -> Result<Vec<ReplyScore>, String> {
    let entries = entries(reply).ok_or("it contains no JSON with \"scores\"")?;
    let mut found = BTreeMap::new();
    for entry in &entries {
        let id = match entry.get("id").or_else(|| entry.get("trajectory_id")) {
            Some(Value::String(id)) => id.trim().to_owned(),
            Some(Value::Number(id)) => id.to_string(),
            _ => return Err("a score has no \"id\"".into()),
        };
        let score = match entry.get("score") {
            Some(Value::Number(score)) => score.as_f64(),
            Some(Value::String(score)) => score.trim().parse().ok(),
            _ => None,
        };
        let score = score.filter(|score: &f64| (0.0..=1.0).contains(score));
        let score = score.ok_or_else(|| format!("the score of {id} is not a number between 0 and 1"))?;
        let explanation = entry.get("explanation").and_then(Value::as_str).map(str::to_owned);
        if found.insert(id.clone(), (score, explanation)).is_some() {
            return Err(format!("{id} is scored twice"));
        }
    }
    let mut score = |name: &N| found.remove(name.as_ref()).ok_or(format!("{} is not scored", name.as_ref()));
    names.iter().map(&mut score).collect()
}

/// The last list of scores: `{"scores": […]}` or the bare list, possibly in a code fence or among other text.
fn entries(reply: &str) -> Option<Vec<Value>> {
    let mut start = reply.len().saturating_sub(SEARCHED);
    while !reply.is_char_boundary(start) {
        start += 1;
    }
    let mut rest = &reply[start..];
    let mut last = None;
    while let Some(at) = rest.find(['{', '[']) {
        rest = &rest[at..];
        let mut values = Deserializer::from_str(rest).into_iter::<Value>();
        let found = values.next().and_then(Result::ok).and_then(list);
        match found {
            Some(list) => {
                rest = &rest[values.byte_offset()..];
                last = Some(list);
            }
            None => rest = &rest[1..],
        }
    }
    last
}

fn list(value: Value) -> Option<Vec<Value>> {
    let list = match value {
        Value::Object(mut fields) => fields.remove("scores")?,
        list => list,
    };
    match list {
        Value::Array(items) if items.iter().all(Value::is_object) && !items.is_empty() => Some(items),
        _ => None,
    }
}

/// JSON Schema of a reply that scores these names.
pub fn schema<N: AsRef<str>>(names: &[N]) -> Value {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    let entry = object(json!({
        "id": { "type": "string", "enum": names },
        "explanation": { "type": "string" },
        "score": { "type": "number" },
    }));
    object(json!({ "scores": { "type": "array", "items": entry } }))
}

/// JSON Schema of an object with these properties and no others.
fn object(properties: Value) -> Value {
    let names: Vec<String> =
        properties.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect();
    json!({ "type": "object", "properties": properties, "required": names, "additionalProperties": false })
}

/// The same for a model that can write nothing else: a score for each name, in their order, of few digits, with an explanation
/// that ends.
pub fn exact_schema<N: AsRef<str>>(names: &[N]) -> Value {
    const STEPS: u32 = 20;
    const EXPLANATION: usize = 160;
    let scores: Vec<f64> = (0..=STEPS).map(|step| f64::from(step) / f64::from(STEPS)).collect();
    let entry = |name: &N| {
        object(json!({
            "id": { "const": name.as_ref() },
            "explanation": { "type": "string", "maxLength": EXPLANATION },
            "score": { "enum": scores },
        }))
    };
    let entries: Vec<Value> = names.iter().map(entry).collect();
    object(json!({
        "scores": {
            "type": "array", "prefixItems": entries, "items": false,
            "minItems": names.len(), "maxItems": names.len(),
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_parsed_in_any_form() {
        let cases = [
            (r#"{"scores": [{"id": "1", "score": 0.5}, {"id": 2, "score": "1"}]}"#, "0.5 1"),
            (r#"[{"trajectory_id": "2", "score": 0}, {"trajectory_id": "1", "score": 1}]"#, "1 0"),
            (
                r#"{thinking} [1] {"a": 1} {"scores": [{"id": 1, "score": 0}, {"id": 2, "score": 0.25}]} bye"#,
                "0 0.25",
            ),
            (
                r#"Attempt 1 says {"scores": [{"id": 1, "score": 1}, {"id": 2, "score": 0}]}. I say:
                   {"scores": [{"id": 1, "score": 0}, {"id": 2, "score": 1}]}"#,
                "0 1",
            ),
            (r#"{"note": {"scores": [{"id": 1, "score": 0}, {"id": 2, "score": 1}]}}"#, "0 1"),
            (
                r#"{"scores": [{"id": 1, "score": 2}, {"id": 2, "score": 0}]}"#,
                "the score of 1 is not a number between 0 and 1",
            ),
            (
                r#"{"scores": [{"id": 1, "score": "NaN"}, {"id": 2, "score": 0}]}"#,
                "the score of 1 is not a number between 0 and 1",
            ),
            (r#"{"scores": [{"id": 1, "score": 0}, {"id": 1, "score": 0}]}"#, "1 is scored twice"),
            (r#"{"scores": [{"id": 1, "score": 0}, {"id": 3, "score": 0}]}"#, "2 is not scored"),
            (r#"{"scores": [{"id": 1, "score": 0}, {"id": "#, "it contains no JSON with \"scores\""),
            (r#"{"scores": [{"score": 0}]}"#, "a score has no \"id\""),
            (r#"{"scores": [0.1, 0.2]}"#, "it contains no JSON with \"scores\""),
            ("", "it contains no JSON with \"scores\""),
        ];
        for (reply, expected) in cases {
            let read = match scores(reply, &["1", "2"]) {
                Ok(scores) => scores.iter().map(|(score, _)| score.to_string()).collect::<Vec<_>>().join(" "),
                Err(why) => why,
            };
            assert_eq!(read, expected, "{reply}");
        }
    }

    #[test]
    fn a_reply_made_to_be_slow_is_read_quickly() {
        for text in
            ["[".repeat(3 << 20), "{\"a\":".repeat(1 << 19), "[1,".repeat(1 << 20), "ä[".repeat(1 << 20)]
        {
            let begun = std::time::Instant::now();
            assert!(scores(&text, &["1"]).is_err());
            assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{}", &text[..8]);
        }
    }
}
