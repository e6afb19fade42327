//! What a server's result says, as a structure that is compared without differences of order and notation.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::{chat::python_repr, json, mcp::plain};

/// The structure of a result: its JSON or Python, or else its lines, where `name: value` is a field.
pub fn structure(text: &str) -> Value {
    let text = text.trim();
    let python = || text.starts_with(['[', '{', '(']).then(|| python_repr(text)).flatten();
    json::exact(text).ok().or_else(python).unwrap_or_else(|| match text.contains('\n') {
        true => Value::Array(text.lines().filter(|line| !line.trim().is_empty()).map(line).collect()),
        false => line(text),
    })
}

fn line(text: &str) -> Value {
    let text = text.trim();
    let is_name = |name: &str| {
        !name.is_empty()
            && name.len() <= 40
            && name.chars().all(|letter| letter.is_alphanumeric() || " _-".contains(letter))
    };
    match text.split_once(": ").filter(|(name, _)| is_name(name.trim())) {
        Some((name, value)) => json!({ name.trim(): value.trim() }),
        None => text.into(),
    }
}

/// A structure without these fields, its lists in one order, and its numbers in one notation.
pub fn normal(value: &Value, ignore: &[String]) -> Value {
    match value {
        Value::Array(items) => {
            let mut items: Vec<Value> = items.iter().map(|item| normal(item, ignore)).collect();
            // A line of text whose only field is ignored says nothing.
            items
                .retain(|item| item.as_object().is_none_or(|fields| !fields.is_empty() || ignore.is_empty()));
            items.sort_by_cached_key(Value::to_string);
            Value::Array(items)
        }
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(name, _)| !ignore.contains(name));
            Value::Object(kept.map(|(name, value)| (name.clone(), normal(value, ignore))).collect())
        }
        Value::Number(number) => match number.as_f64() {
            Some(float) if float.fract() == 0.0 && float.abs() < 1e15 => json!(float as i64),
            _ => value.clone(),
        },
        Value::String(text) => text.trim().into(),
        other => other.clone(),
    }
}

/// Whether a result says what is expected, but for these fields.
pub fn is_same(expected: &Value, ignore: &[String], text: &str) -> bool {
    normal(&structure(text), ignore) == normal(expected, ignore)
}

/// Whether each part of a result is as it was before or as it is wanted.
pub fn is_between(before: &Value, wanted: &Value, ignore: &[String], text: &str) -> bool {
    between(&normal(before, ignore), &normal(wanted, ignore), &normal(&structure(text), ignore))
}

fn between(before: &Value, wanted: &Value, found: &Value) -> bool {
    match (before, wanted, found) {
        _ if found == before || found == wanted => true,
        (Value::Object(before), Value::Object(wanted), Value::Object(found)) => {
            let null = Value::Null;
            let of = |fields: &Map<String, Value>, name: &str| fields.get(name).unwrap_or(&null).clone();
            let names: BTreeSet<&String> = before.keys().chain(wanted.keys()).chain(found.keys()).collect();
            names.into_iter().all(|name| between(&of(before, name), &of(wanted, name), &of(found, name)))
        }
        (Value::Array(before), Value::Array(wanted), Value::Array(found)) => {
            // What is before and behind is still there, and all that is there is one of both.
            let stays = before.iter().filter(|item| wanted.contains(item)).all(|item| found.contains(item));
            let lengths = before.len().min(wanted.len())..=before.len().max(wanted.len());
            let is_known = |item: &Value| before.contains(item) || wanted.contains(item);
            stays && lengths.contains(&found.len()) && found.iter().all(is_known)
        }
        // A number of records, for one.
        (Value::Number(one), Value::Number(two), Value::Number(found)) => {
            let [one, two, found] = [one, two, found].map(|number| number.as_f64().unwrap_or(f64::NAN));
            one.min(two) <= found && found <= one.max(two)
        }
        _ => false,
    }
}

/// The names of fields in which two structures differ. `None` if they differ in more than values of named fields.
pub fn differing(one: &Value, other: &Value) -> Option<BTreeSet<String>> {
    let mut fields = BTreeSet::new();
    differ(one, other, None, &mut fields).then_some(fields)
}

fn differ(one: &Value, other: &Value, name: Option<&str>, fields: &mut BTreeSet<String>) -> bool {
    match (one, other) {
        _ if one == other => true,
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            one.iter().zip(other).all(|(one, other)| differ(one, other, name, fields))
        }
        (Value::Object(one), Value::Object(other)) if one.keys().eq(other.keys()) => {
            one.iter().zip(other.values()).all(|((name, one), other)| differ(one, other, Some(name), fields))
        }
        (Value::Array(_) | Value::Object(_), _) | (_, Value::Array(_) | Value::Object(_)) => false,
        _ => match name {
            Some(name) => {
                fields.insert(name.to_owned());
                true
            }
            None => false,
        },
    }
}

/// The names of fields with a value that this says.
pub fn fields_with(value: &Value, says: &impl Fn(&str) -> bool) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    add_fields(value, None, says, &mut found);
    found
}

fn add_fields(value: &Value, name: Option<&str>, says: &impl Fn(&str) -> bool, found: &mut BTreeSet<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| add_fields(item, name, says, found)),
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| add_fields(value, Some(name), says, found));
        }
        scalar => found.extend(name.filter(|_| says(&plain(scalar))).map(str::to_owned)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_the_same_in_any_order_and_notation() {
        for (expected, text, ignore, is) in [
            (json!([{"id": 1}, {"id": 2}]), r#"[{"id": 2}, {"id": 1.0}]"#, &[][..], true),
            (json!([{"id": 1}]), r#"[{"id": 1}, {"id": 1}]"#, &[], false),
            (json!({"a": 1, "at": "now"}), r#"{"at": "then", "a": 1}"#, &["at"], true),
            (json!({"a": 1, "at": "now"}), r#"{"at": "then", "a": 1}"#, &[], false),
            (json!({"t": [{"at": 1, "x": "y"}]}), r#"{"t": [{"x": "y"}]}"#, &["at"], true),
            (json!(["Ann", "Ben"]), "Ben\nAnn\n", &[], true),
            (json!([{"status": "open"}, {"at": "1"}]), "status: open\nat: 2", &["at"], true),
            (json!([{"status": "open"}, {"at": "1"}]), "status: closed\nat: 1", &["at"], false),
            (json!(["a", "b"]), "['b', 'a']", &[], true),
            (json!("7"), "7", &[], false),
        ] {
            let ignore: Vec<String> = ignore.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(is_same(&expected, &ignore, text), is, "{expected} and {text}");
        }
    }

    #[test]
    fn what_differs_between_two_structures_is_named() {
        let of = |one: Value, other: Value| differing(&one, &other).map(Vec::from_iter);
        let named = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(json!([{"a": 1, "at": 2}]), json!([{"a": 1, "at": 3}])), named(&["at"]));
        assert_eq!(of(json!({"a": 1}), json!({"a": 1})), named(&[]));
        assert_eq!(of(json!([1]), json!([1, 2])), None);
        assert_eq!(of(json!("x"), json!("y")), None);
    }
}
