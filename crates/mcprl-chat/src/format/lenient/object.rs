//! A JSON value as calls of offered tools.

use serde_json::{Map, Value};

use super::{Call, Schemas};
use crate::{
    ToolCall,
    literal::{self, Reader},
};

/// Keys with a tool's name.
const NAMES: [&str; 6] = ["name", "tool", "tool_name", "function", "function_name", "action"];
/// Keys with a call's arguments.
const ARGUMENTS: [&str; 8] =
    ["arguments", "parameters", "args", "input", "params", "kwargs", "action_input", "tool_input"];
/// Keys with a call or a list of calls.
const WRAPPERS: [&str; 6] =
    ["tool_calls", "tool_call", "function_calls", "function_call", "function", "calls"];
/// Other keys that a call may have besides its arguments.
const OTHERS: [&str; 3] = ["id", "type", "index"];

/// The calls in a value. `None` if it contains none: it is text.
pub fn calls(value: Value, tools: &Schemas) -> Option<Vec<Call>> {
    match value {
        Value::Array(items) => {
            let items: Vec<Option<Vec<Call>>> = items.into_iter().map(|item| calls(item, tools)).collect();
            let no_call = || vec![Err("an item of the list is not a call of an offered tool".to_owned())];
            let is_call = items.iter().any(Option::is_some);
            is_call.then(|| items.into_iter().flat_map(|item| item.unwrap_or_else(no_call)).collect())
        }
        Value::Object(fields) => object(fields, tools),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

fn object(mut fields: Map<String, Value>, tools: &Schemas) -> Option<Vec<Call>> {
    let names =
        NAMES.into_iter().filter_map(|key| fields.get(key)?.as_str().filter(|name| tools.offers(name)));
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.dedup();
    match names.as_slice() {
        [] => {}
        [name] if is_declaration(&fields) || is_record(name, &fields, tools) => return None,
        [name] => return Some(vec![with_name(name, fields, tools)]),
        _ => return Some(vec![Err(format!("a call has one name, not {}", names.join(" and ")))]),
    }
    for key in WRAPPERS {
        if fields.get(key).is_some_and(|inner| inner.is_object() || inner.is_array()) {
            return calls(fields.remove(key)?, tools);
        }
    }
    // `{"TOOL": {…}}`, of one tool or several.
    let is_call = |(name, inner): (&String, &Value)| {
        tools.offers(name)
            && match inner {
                Value::Object(inner) => tools.has_properties(name, inner.keys()) || has_only_arguments(inner),
                Value::String(_) | Value::Null => true,
                _ => false,
            }
    };
    let are_calls = !fields.is_empty() && fields.iter().all(is_call);
    are_calls.then(|| {
        let call = |(name, inner): (String, Value)| match inner {
            Value::Object(mut inner)
                if has_only_arguments(&inner) && !tools.has_properties(&name, inner.keys()) =>
            {
                let arguments = inner.values_mut().next().map(Value::take);
                named(&name, arguments, tools)
            }
            inner => named(&name, Some(inner), tools),
        };
        fields.into_iter().map(call).collect()
    })
}

fn has_only_arguments(fields: &Map<String, Value>) -> bool {
    fields.len() == 1 && fields.keys().all(|key| ARGUMENTS.contains(&key.as_str()))
}

/// Whether an object with a tool's name is the tool's declaration, which models repeat from the prompt.
fn is_declaration(fields: &Map<String, Value>) -> bool {
    let is_schema = |key: &str| {
        fields.get(key).is_some_and(|schema| schema.get("properties").is_some_and(Value::is_object))
    };
    let is_described = fields.contains_key("description") && !fields.contains_key("arguments");
    is_described || is_schema("parameters") || fields.contains_key("inputSchema")
}

/// Whether an object is about something that is named like a tool: it has further fields, and none is an argument.
fn is_record(name: &str, fields: &Map<String, Value>, tools: &Schemas) -> bool {
    let is_call = |key: &String| {
        OTHERS.contains(&key.as_str())
            || ARGUMENTS.contains(&key.as_str())
            || tools.has_properties(name, [key])
    };
    let mut others = fields.keys().filter(|key| *key != "name").peekable();
    fields.get("name").is_some_and(|value| value == name) && others.peek().is_some() && !others.any(is_call)
}

/// A call whose name is known and stands in its object.
fn with_name(name: &str, mut fields: Map<String, Value>, tools: &Schemas) -> Call {
    let given: Vec<&str> = ARGUMENTS.into_iter().filter(|key| fields.contains_key(*key)).collect();
    match given.as_slice() {
        [key] => named(name, fields.remove(*key), tools),
        [] => {
            fields.retain(|key, value| {
                let is_name = NAMES.contains(&key.as_str()) && value.as_str() == Some(name);
                !is_name && (!OTHERS.contains(&key.as_str()) || tools.has_properties(name, [key]))
            });
            // The arguments beside the name.
            match fields.keys().find(|key| !tools.has_properties(name, [*key])) {
                Some(other) => Err(format!("`{other}` is not known; a call has a `name` and `arguments`")),
                None => Ok(ToolCall { name: name.to_owned(), arguments: fields }),
            }
        }
        [one, other, ..] => Err(format!("both `{one}` and `{other}` are given")),
    }
}

/// A call with this name and these arguments: an object, a text with one, or values without their names.
pub fn named(name: &str, arguments: Option<Value>, tools: &Schemas) -> Call {
    if !tools.offers(name) {
        return Err(format!("no tool is named {name}"));
    }
    let arguments = match arguments {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(arguments)) => arguments,
        Some(Value::Array(values)) => positional(name, values, tools)?,
        Some(Value::String(text)) => match literal::of_text(&text) {
            Some(Value::Object(arguments)) => arguments,
            _ if text.trim().is_empty() => Map::new(),
            _ => positional(name, vec![Value::String(text)], tools)?,
        },
        Some(value) => positional(name, vec![value], tools)?,
    };
    Ok(ToolCall { name: name.to_owned(), arguments })
}

/// A call of the tool `name` with the JSON value that follows as its arguments.
pub fn followed(name: &str, reader: &mut Reader<'_>, tools: &Schemas) -> Call {
    match reader.value(0) {
        Ok(arguments) => named(name, Some(arguments), tools),
        Err(why) => Err(format!("the arguments of {name} are not valid JSON: {why}")),
    }
}

/// Arguments without their names: those that the tool requires, in its schema's order.
///
/// # Errors
/// If there are more than the tool requires.
pub fn positional(name: &str, mut values: Vec<Value>, tools: &Schemas) -> Result<Map<String, Value>, String> {
    if let [Value::Object(arguments)] = values.as_mut_slice()
        && tools.has_properties(name, arguments.keys())
    {
        return Ok(std::mem::take(arguments));
    }
    let required = tools.required(name);
    if values.len() > required.len() {
        return Err(format!(
            "the arguments of {name} need names; it requires {} without",
            match required.as_slice() {
                [] => "none".to_owned(),
                required => required.join(", "),
            }
        ));
    }
    Ok(required.into_iter().map(str::to_owned).zip(values).collect())
}

/// Whether a text, whose JSON cannot be read, begins as a call of an offered tool does.
pub fn begins_call<'t>(text: &'t str, tools: &Schemas) -> bool {
    /// The beginning that is looked at, in bytes.
    const BEGINNING: usize = 1024;
    let inner = |text: &'t str| text.trim_start_matches(|c: char| c.is_whitespace() || c == '[' || c == '{');
    let mut rest = inner(super::first(BEGINNING, text));
    // Keys that may stand before the name.
    for _ in 0..4 {
        let Some((key, value)) =
            quoted(rest).and_then(|(key, rest)| Some((key, rest.strip_prefix(':')?.trim_start())))
        else {
            return false;
        };
        if tools.offers(key) {
            return value.starts_with(['{', '"', '\'']);
        }
        if WRAPPERS.contains(&key) && value.starts_with(['{', '[']) {
            rest = inner(value);
            continue;
        }
        let Some((value, behind)) = quoted(value) else { return false };
        if NAMES.contains(&key) && tools.offers(value) {
            return true;
        }
        let Some(next) = behind.strip_prefix(',').filter(|_| OTHERS.contains(&key)) else { return false };
        rest = next.trim_start();
    }
    false
}

/// A short quoted word at the start of a text, and what follows it. The quotes of a key may be missing.
fn quoted(text: &str) -> Option<(&str, &str)> {
    /// Longest word that is looked for.
    const LONGEST: usize = 200;
    let (word, rest) = match text.chars().next()? {
        quote @ ('"' | '\'') => {
            let text = &text[1..];
            let end = text.char_indices().take(LONGEST).find(|(_, c)| *c == quote)?.0;
            (&text[..end], &text[end + 1..])
        }
        _ => text.split_at(text.char_indices().take(LONGEST).find(|(_, c)| !super::is_name(*c))?.0),
    };
    (!word.is_empty()).then(|| (word, rest.trim_start()))
}
