//! Python's methods of strings, lists and mappings that do not modify them.

use std::sync::Arc;

use minijinja::{
    Error, ErrorKind, State, Value,
    value::{Object, ObjectRepr, Tuple, ValueKind},
};

use super::{
    arguments::{bound, given, is_true},
    invalid, is_namespace, limits, pairs, replaced, text, tuples,
};

/// Prefixes of the names with which [`super::source`] accesses a method that is not called.
pub const ATTRIBUTE: &str = "attribute_of_mapping_";
pub const ITEM: &str = "item_of_mapping_";

const READING: [&str; 5] = ["copy", "get", "items", "keys", "values"];
/// The sandbox hides these methods, and keys of the same names.
const WRITING: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];

pub fn is_mapping_method(name: &str) -> bool {
    READING.contains(&name) || WRITING.contains(&name)
}

/// Calls a method that minijinja does not have.
pub fn call(state: &mut State<'_, '_>, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(name) = method.strip_prefix(ATTRIBUTE) {
        return match is_mapping(value) {
            true if READING.contains(&name) => Ok(Value::from_object(Method)),
            true => Ok(Value::UNDEFINED),
            false => value.get_attr(name),
        };
    }
    if let Some(name) = method.strip_prefix(ITEM) {
        let item = value.get_item(&Value::from(name))?;
        let is_method = item.is_undefined() && is_mapping(value) && READING.contains(&name);
        return Ok(if is_method { Value::from_object(Method) } else { item });
    }
    match value.kind() {
        ValueKind::String => of_text(state, value, method, args),
        ValueKind::Map if is_mapping(value) => of_mapping(value, method, args),
        ValueKind::Seq => of_list(value, method, args),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn is_mapping(value: &Value) -> bool {
    value.kind() == ValueKind::Map && !is_namespace(value)
}

/// A method that is accessed but not called: it exists and is true.
#[derive(Debug)]
struct Method;

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

fn missing() -> Error {
    Error::from(ErrorKind::MissingArgument)
}

fn string(value: Option<&Value>) -> Result<&str, Error> {
    let value = value.ok_or_else(missing)?;
    value.as_str().ok_or_else(|| invalid(format!("a text is needed, not a {}", value.kind())))
}

fn optional(value: Option<&Value>) -> Result<Option<&str>, Error> {
    value.map(|value| string(Some(value))).transpose()
}

fn integer(value: Option<Value>, otherwise: i64) -> Result<i64, Error> {
    value.map_or(Ok(otherwise), i64::try_from)
}

fn list(parts: Vec<&str>) -> Value {
    parts.into_iter().map(Value::from).collect()
}

fn triple(parts: [&str; 3]) -> Value {
    Value::from(Tuple::from(parts.map(Value::from)))
}

/// Evaluates `startswith` and `endswith` for one string or a tuple of strings.
fn any_of(value: Option<&Value>, is_there: impl Fn(&str) -> bool) -> Result<Value, Error> {
    let value = value.ok_or_else(missing)?;
    if let Some(text) = value.as_str() {
        return Ok(is_there(text).into());
    }
    if !value.is_tuple() {
        return Err(invalid("a text or a tuple of texts is needed"));
    }
    for text in value.try_iter()? {
        if is_there(string(Some(&text))?) {
            return Ok(true.into());
        }
    }
    Ok(false.into())
}

fn of_text(state: &mut State<'_, '_>, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let this = value.as_str().unwrap_or_default();
    let any = |is: fn(char) -> bool| this.chars().any(is);
    let every = |is: fn(char) -> bool| -> Result<Value, Error> {
        let [] = bound(args, [])?;
        Ok((!this.is_empty() && this.chars().all(is)).into())
    };
    let changed = |text: String| -> Result<Value, Error> {
        let [] = bound(args, [])?;
        Ok(limits::made(text)?.into())
    };
    match method {
        "upper" => changed(this.to_uppercase()),
        "lower" => changed(this.to_lowercase()),
        "title" => changed(text::titled(this)),
        "capitalize" => changed(text::capitalized(this)),
        "isalpha" => every(char::is_alphabetic),
        "isalnum" => every(char::is_alphanumeric),
        "isdigit" => every(|c| c.is_numeric() && !is_fraction(c)),
        "isnumeric" => every(char::is_numeric),
        "isspace" => every(text::is_space),
        "isascii" => Ok(this.is_ascii().into()),
        "islower" => Ok((any(char::is_lowercase) && !any(char::is_uppercase)).into()),
        "isupper" => Ok((any(char::is_uppercase) && !any(char::is_lowercase)).into()),
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = bound(args, ["chars"])?;
            let chars = given(chars);
            let of = text::stripped(optional(chars.as_ref())?);
            Ok(Value::from(match method {
                "strip" => this.trim_matches(of),
                "lstrip" => this.trim_start_matches(of),
                _ => this.trim_end_matches(of),
            }))
        }
        "split" | "rsplit" => {
            let [separator, most] = bound(args, ["sep", "maxsplit"])?;
            let separator = given(separator);
            let separator = optional(separator.as_ref())?;
            if separator == Some("") {
                return Err(invalid("an empty separator"));
            }
            let most = integer(most, -1)?;
            Ok(list(match method {
                "split" => text::split(this, separator, most),
                _ => text::split_from_end(this, separator, most),
            }))
        }
        "partition" | "rpartition" => {
            let [separator] = bound(args, ["sep"])?;
            let separator = string(separator.as_ref())?;
            let found =
                if method == "partition" { this.split_once(separator) } else { this.rsplit_once(separator) };
            Ok(triple(match found {
                _ if separator.is_empty() => return Err(invalid("an empty separator")),
                Some((before, after)) => [before, separator, after],
                None if method == "partition" => [this, "", ""],
                None => ["", "", this],
            }))
        }
        "splitlines" => {
            let [keep] = bound(args, ["keepends"])?;
            let keep = is_true(keep);
            let line =
                |(line, end): (&str, &str)| if keep { format!("{line}{end}") } else { line.to_owned() };
            Ok(text::lines(this).into_iter().map(line).map(Value::from).collect())
        }
        "replace" => {
            let [old, new, count] = bound(args, ["old", "new", "count"])?;
            let most = integer(count, -1)?;
            Ok(replaced(this, string(old.as_ref())?, string(new.as_ref())?, most)?.into())
        }
        "removeprefix" | "removesuffix" => {
            let [end] = bound(args, ["end"])?;
            let end = string(end.as_ref())?;
            let cut = if method == "removeprefix" { this.strip_prefix(end) } else { this.strip_suffix(end) };
            Ok(cut.unwrap_or(this).into())
        }
        "find" | "rfind" | "index" | "rindex" | "count" | "startswith" | "endswith" => {
            within(this, method, args)
        }
        "join" => {
            let [items] = bound(args, ["iterable"])?;
            let mut out = String::new();
            for (index, item) in items.ok_or_else(missing)?.try_iter()?.enumerate() {
                let (between, item) = (if index > 0 { this } else { "" }, string(Some(&item))?);
                limits::charge(between.len() + item.len())?;
                out.push_str(between);
                out.push_str(item);
            }
            Ok(out.into())
        }
        _ => {
            if method == "format" {
                limits::charge(limits::formatted(this, '{', args)?)?;
            }
            minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
        }
    }
}

/// Methods that look for a text within a part of another.
fn within(this: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let range = |start: Option<Value>, end: Option<Value>| -> Result<_, Error> {
        Ok(text::range(this, integer(given(start), 0)?, given(end).map(i64::try_from).transpose()?))
    };
    if let "startswith" | "endswith" = method {
        let [what, start, end] = bound(args, ["prefix", "start", "end"])?;
        let within = range(start, end)?;
        let part = within.map(|(from, to)| &this[from..to]);
        return any_of(what.as_ref(), |what| {
            part.is_some_and(|part| match method {
                "startswith" => part.starts_with(what),
                _ => part.ends_with(what),
            })
        });
    }
    let [what, start, end] = bound(args, ["sub", "start", "end"])?;
    let what = string(what.as_ref())?;
    let within = range(start, end)?;
    if method == "count" {
        return Ok(within.map_or(0, |(from, to)| this[from..to].matches(what).count()).into());
    }
    let found = within.and_then(|(from, to)| {
        let part = &this[from..to];
        let at = if method.starts_with('r') { part.rfind(what) } else { part.find(what) };
        Some(this[..from + at?].chars().count())
    });
    match found {
        Some(at) => Ok(at.into()),
        None if method.ends_with("find") => Ok((-1).into()),
        None => Err(invalid("the text is not found")),
    }
}

fn is_fraction(letter: char) -> bool {
    matches!(letter, '¼'..='¾' | '\u{2150}'..='\u{218f}')
}

fn of_mapping(value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match method {
        "get" => {
            let [key, otherwise] = bound(args, ["key", "default"])?;
            let key = key.ok_or_else(missing)?;
            let found = value.as_object().and_then(|object| object.get_value(&key));
            Ok(found.or(otherwise).unwrap_or(Value::from(())))
        }
        "keys" | "values" | "items" | "copy" => {
            let [] = bound(args, [])?;
            let fields = pairs(value).unwrap_or_default();
            let view = |items: Vec<Value>| Value::make_iterable(move || items.clone().into_iter());
            Ok(match method {
                "keys" => view(fields.into_iter().map(|(key, _)| key).collect()),
                "values" => view(fields.into_iter().map(|(_, value)| value).collect()),
                "items" => view(tuples(fields)),
                _ => value.clone(),
            })
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn of_list(value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match method {
        "count" | "index" => {
            let [what] = bound(args, ["value"])?;
            let what = what.ok_or_else(missing)?;
            let mut items = value.try_iter()?;
            match method {
                "count" => Ok(items.filter(|item| *item == what).count().into()),
                _ => match items.position(|item| item == what) {
                    Some(at) => Ok(at.into()),
                    None => Err(invalid("the value is not in the list")),
                },
            }
        }
        "copy" => {
            let [] = bound(args, [])?;
            Ok(value.clone())
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}
