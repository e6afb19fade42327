//! Jinja as Transformers provides it to a chat template: an immutable sandbox with Python's methods of strings, lists and
//! mappings. minijinja renders it; this module adds what minijinja lacks or does differently.
//!
//! As in Transformers, nothing modifies a value (`append`, `pop`, `update`). Not supported, because chat templates do not
//! use it: the filters `center`, `striptags`, `wordwrap`, `wordcount`, `truncate`, `urlize`, `xmlattr`, `filesizeformat`,
//! `forceescape` and `random`; the arguments of `dictsort` and the base of `int`; the methods of strings for padding, other
//! cases (`swapcase`, `casefold`) and rare classes of characters; `dict.fromkeys`; `varargs` and `kwargs` of macros;
//! `cycler` and `joiner`; `%` on strings. The error names what is missing. Known differences: `loop.last` and `loop.length`
//! over the characters of a string, a string joined to one marked `safe` (it is not escaped), and values that Transformers
//! refuses, such as iterating over `none`.

mod arguments;
mod limits;
mod methods;
mod source;
mod text;

use std::{borrow::Cow, sync::Arc};

use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior, Value,
    syntax::SyntaxConfig,
    value::{Kwargs, Object, ObjectRepr, Rest, Tuple, ValueKind},
};

use super::python;
use arguments::{bound, given, is_true, joined};
pub(super) use limits::begin;

/// Maximum steps of a template. A prompt with a hundred tools needs a few thousand.
const FUEL: u64 = 10_000_000;
/// The date that every template gets: the default of the Llama 3 templates.
const TODAY: (i32, u32, u32) = (2024, 7, 26);

/// An environment with this template under this name.
///
/// # Errors
/// If the template is not valid Jinja.
pub(super) fn environment(name: &'static str, source: &str) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_unknown_method_callback(methods::call);
    environment.set_fuel(Some(FUEL));
    environment.set_formatter(|out, _, value| {
        let text = text(value)?;
        limits::charge(text.len())?;
        Ok(out.write_str(&text)?)
    });
    limits::add(&mut environment);
    environment.add_filter(source::OPERAND, limits::operand);

    environment.add_filter("tojson", filter(to_json));
    environment.add_filter("string", |value: Value| Ok::<_, Error>(text(&value)?.into_owned()));
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("default", filter(default));
    environment.add_filter("d", filter(default));
    environment.add_filter("items", items);
    environment.add_filter("dictsort", sorted_items);
    environment.add_filter("indent", filter(indent));
    environment.add_filter("trim", filter(trim));
    environment.add_filter("float", filter(float));
    environment.add_filter("int", filter(integer));
    environment.add_filter("replace", filter(replace));
    environment.add_filter("capitalize", |value: Value| limits::made(text::capitalized(&text(&value)?)));
    environment.add_filter("escape", escape);
    environment.add_filter("e", escape);

    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_sequence);
    environment.add_test("mapping", |value: Value| value.kind() == ValueKind::Map && !is_namespace(&value));
    environment.add_test("callable", is_callable);

    environment.add_global("dict", Value::from_object(Dict));
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_template_owned(name, source::rewritten(source))?;
    Ok(environment)
}

/// A filter of a value, with Python's `*args, **kwargs`.
fn filter<T: Into<Value>>(
    filter: fn(Value, &[Value]) -> Result<T, Error>,
) -> impl Fn(Value, Rest<Value>, Kwargs) -> Result<Value, Error> + Send + Sync {
    move |value, positional, named| filter(value, &joined(positional.0, &named)).map(Into::into)
}

fn invalid(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, why.into())
}

/// `str(value)`.
fn text(value: &Value) -> Result<Cow<'_, str>, Error> {
    if value.as_str().is_some() {
        limits::size(value)?;
    }
    let text = python::text(value, limits::left()).map_err(|why| invalid(format!("str: {why}")))?;
    if let Cow::Owned(text) = &text {
        limits::charge(text.len())?;
    }
    Ok(text)
}

/// A width as an argument: a text, or a number of spaces.
fn spaces(width: &Value) -> Result<String, Error> {
    match width.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => limits::repeated(" ", usize::try_from(i64::try_from(width.clone())?).unwrap_or(0)),
    }
}

/// `json.dumps(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
fn to_json(value: Value, arguments: &[Value]) -> Result<String, Error> {
    let [ensure_ascii, indent, separators, sort_keys] =
        bound(arguments, ["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let indent = given(indent).as_ref().map(spaces).transpose()?;
    let separators = match given(separators) {
        None if indent.is_some() => (",".into(), ": ".into()),
        None => (", ".into(), ": ".into()),
        Some(separators) => {
            let texts: Vec<Value> = separators.try_iter()?.collect();
            match texts.iter().map(Value::as_str).collect::<Option<Vec<_>>>().as_deref() {
                Some([item, key]) => ((*item).to_owned(), (*key).to_owned()),
                _ => return Err(invalid("`separators` of tojson are two texts")),
            }
        }
    };
    let (ensure_ascii, sort_keys) = (is_true(ensure_ascii), is_true(sort_keys));
    let json = python::Json { indent, separators, ensure_ascii, sort_keys };
    let json =
        python::json(&value, &json, limits::left()).map_err(|why| invalid(format!("tojson: {why}")))?;
    limits::made(json)
}

fn length(value: Value) -> Result<usize, Error> {
    let length = if value.is_undefined() { Some(0) } else { value.len() };
    length.ok_or_else(|| invalid(format!("a {} has no length", value.kind())))
}

fn default(value: Value, arguments: &[Value]) -> Result<Value, Error> {
    let [other, boolean] = bound(arguments, ["default_value", "boolean"])?;
    let falsy = is_true(boolean) && !value.is_true();
    if value.is_undefined() || falsy { Ok(other.unwrap_or_else(|| "".into())) } else { Ok(value) }
}

/// The pairs of a mapping, in its order.
fn pairs(value: &Value) -> Option<Vec<(Value, Value)>> {
    let object = value.as_object().filter(|object| object.repr() == ObjectRepr::Map)?;
    Some(object.try_iter_pairs()?.collect())
}

fn tuples(pairs: Vec<(Value, Value)>) -> Vec<Value> {
    pairs.into_iter().map(|(key, value)| Value::from(Tuple::from([key, value]))).collect()
}

fn items(value: Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    pairs(&value).map(tuples).map(Value::from).ok_or_else(|| invalid("only a mapping has items"))
}

/// The pairs of a mapping, sorted by key whatever its case.
fn sorted_items(value: Value) -> Result<Value, Error> {
    let mut pairs = pairs(&value).ok_or_else(|| invalid("only a mapping has items"))?;
    pairs.sort_by_key(|(key, _)| key.as_str().map_or_else(|| key.clone(), |text| text.to_lowercase().into()));
    Ok(tuples(pairs).into())
}

fn indent(value: Value, arguments: &[Value]) -> Result<String, Error> {
    let [width, first, blank] = bound(arguments, ["width", "first", "blank"])?;
    let by = width.as_ref().map_or_else(|| Ok(" ".repeat(4)), spaces)?;
    let (first, blank) = (is_true(first), is_true(blank));
    let text = text(&value)? + "\n";
    let lines = text::lines(&text);
    limits::charge(lines.len().saturating_mul(by.len()).saturating_add(text.len()))?;
    let mut out = if first { by.clone() } else { String::new() };
    for (index, (line, _)) in lines.iter().enumerate() {
        if index > 0 {
            out.push('\n');
            out.push_str(if blank || !line.is_empty() { &by } else { "" });
        }
        out.push_str(line);
    }
    Ok(out)
}

fn trim(value: Value, arguments: &[Value]) -> Result<String, Error> {
    let [chars] = bound(arguments, ["chars"])?;
    let chars = given(chars);
    let of = text::stripped(chars.as_ref().map(|chars| chars.as_str().unwrap_or_default()));
    Ok(text(&value)?.trim_matches(of).to_owned())
}

/// Escapes with the entities that markupsafe uses.
fn escape(value: Value) -> Result<String, Error> {
    let entities = [("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("\"", "&#34;"), ("'", "&#39;")];
    let text = text(&value)?;
    let escaped = |text: String, (sign, entity)| text.replace(sign, entity);
    limits::made(entities.into_iter().fold(text.into_owned(), escaped))
}

fn float(value: Value, arguments: &[Value]) -> Result<Value, Error> {
    let [default] = bound(arguments, ["default"])?;
    let parsed = match value.as_str() {
        Some(text) => text.trim().replace('_', "").parse().ok(),
        None if value.kind() == ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        None => f64::try_from(value).ok(),
    };
    Ok(parsed.map(Value::from).or(default).unwrap_or_else(|| 0.0.into()))
}

fn integer(value: Value, arguments: &[Value]) -> Result<Value, Error> {
    let [default] = bound(arguments, ["default"])?;
    let parsed = match value.as_str() {
        Some(text) => text::integer(text),
        None if value.kind() == ValueKind::Bool => Some(i128::from(value.is_true())),
        None if value.is_integer() => return Ok(value),
        // Truncates, and saturates for huge numbers.
        None => f64::try_from(value).ok().filter(|float| float.is_finite()).map(|float| float as i128),
    };
    Ok(parsed.map(Value::from).or(default).unwrap_or_else(|| 0.into()))
}

fn replace(value: Value, arguments: &[Value]) -> Result<String, Error> {
    let [old, new, count] = bound(arguments, ["old", "new", "count"])?;
    let (Some(old), Some(new)) = (old, new) else { return Err(Error::from(ErrorKind::MissingArgument)) };
    let count = given(count).map(i64::try_from).transpose()?;
    replaced(&text(&value)?, &text(&old)?, &text(&new)?, count.unwrap_or(-1))
}

/// `str.replace`.
fn replaced(text: &str, old: &str, new: &str, most: i64) -> Result<String, Error> {
    let found = text.matches(old).count().min(usize::try_from(most).unwrap_or(usize::MAX));
    limits::charge(found.saturating_mul(new.len()).saturating_add(text.len()))?;
    Ok(match usize::try_from(most) {
        Ok(most) => text.replacen(old, new, most),
        Err(_) => text.replace(old, new),
    })
}

/// Whether a value can be iterated over. Unlike in minijinja, `none` cannot.
fn is_iterable(value: Value) -> bool {
    !value.is_none() && (value.as_str().is_some() || value.try_iter().is_ok())
}

/// As in Jinja2: whatever has a length and items, so also strings and mappings.
fn is_sequence(value: Value) -> bool {
    match value.kind() {
        ValueKind::String | ValueKind::Undefined | ValueKind::Seq => true,
        ValueKind::Map => !is_namespace(&value),
        // `range` has a length; the results of filters and `items()` do not, or have no items.
        _ => false,
    }
}

fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

fn is_callable(value: Value) -> bool {
    value.as_object().is_some_and(|object| object.repr() == ObjectRepr::Plain)
}

/// The global `dict`.
#[derive(Debug)]
struct Dict;

impl Object for Dict {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
        let (positional, named) = arguments::split(arguments)?;
        let mut fields = match positional {
            [] => Vec::new(),
            [given] => match pairs(given) {
                Some(pairs) => pairs,
                None => {
                    let pair = |item: Value| match item.try_iter()?.collect::<Vec<_>>().as_slice() {
                        [key, value] => Ok((key.clone(), value.clone())),
                        _ => Err(invalid("dict() takes pairs")),
                    };
                    given.try_iter()?.map(pair).collect::<Result<_, Error>>()?
                }
            },
            _ => return Err(Error::from(ErrorKind::TooManyArguments)),
        };
        fields.extend(named.into_iter().map(|(name, value)| (Value::from(name), value)));
        Ok(Value::from_pairs(fields))
    }
}

/// The message of a template's `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Refusal(pub String);

fn raise_exception(message: String) -> Result<String, Error> {
    Err(invalid(message.clone()).with_source(Refusal(message)))
}

fn strftime_now(format: &str) -> Result<String, Error> {
    use std::fmt::Write;

    // No directive writes more than this many bytes.
    limits::charge(format.len().saturating_mul(64))?;

    let (year, month, day) = TODAY;
    let today = chrono::NaiveDate::from_ymd_opt(year, month, day).and_then(|day| day.and_hms_opt(0, 0, 0));
    let mut text = String::new();
    match today.map(|today| write!(text, "{}", today.format(format))) {
        Some(Ok(())) => Ok(text),
        _ => Err(invalid(format!("`{format}` is not a date format"))),
    }
}
