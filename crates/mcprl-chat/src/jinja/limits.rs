//! Limits on what a template makes: it is untrusted, and one filter may ask for more memory than there is.
//!
//! Steps are limited by fuel, and the size of `*` and `range` by minijinja. Here, every function, filter and method that may
//! make more than it is given charges the budget of the rendering before it does so, and operands of `+` and `~` have a
//! largest size, so that nothing doubles for long. Beyond a limit is an error; nothing is cut.

use std::cell::Cell;

use minijinja::{
    Environment, Error, State, Value, filters,
    value::{Kwargs, Rest, ValueKind},
};

use super::{arguments, invalid};

/// Most bytes that the operations of one rendering make together, and most bytes of what is rendered. A prompt with a
/// hundred tools takes less than a hundredth.
const BUDGET: usize = 256 << 20;
/// Most bytes of a value that an operation gets.
const LARGEST: usize = 64 << 20;
/// Most levels of such a value.
const DEEPEST: usize = 256;
/// Bytes that an item counts for besides its text.
const ITEM: usize = 32;

thread_local! {
    static LEFT: Cell<usize> = const { Cell::new(BUDGET) };
}

/// A rendering begins on this thread.
pub fn begin() {
    LEFT.set(BUDGET);
}

/// Bytes that operations of this rendering may still make.
pub fn left() -> usize {
    LEFT.get()
}

/// Takes these bytes from the budget.
///
/// # Errors
/// If there are not as many left.
pub fn charge(bytes: usize) -> Result<(), Error> {
    let too_much = || invalid(format!("the template makes more than {} MiB", BUDGET >> 20));
    LEFT.set(left().checked_sub(bytes).ok_or_else(too_much)?);
    Ok(())
}

/// `text * count`.
pub fn repeated(text: &str, count: usize) -> Result<String, Error> {
    charge(text.len().saturating_mul(count))?;
    Ok(text.repeat(count))
}

/// A text that was made, after it is charged.
pub fn made(text: String) -> Result<String, Error> {
    charge(text.len())?;
    Ok(text)
}

/// Bytes of the texts and items in a value.
///
/// # Errors
/// If there are more than an operation gets.
pub fn size(value: &Value) -> Result<usize, Error> {
    fn add(value: &Value, total: &mut usize, level: usize) -> Result<(), Error> {
        *total = total.saturating_add(ITEM + value.as_str().map_or(0, str::len));
        if *total > LARGEST || level > DEEPEST {
            let most = LARGEST >> 20;
            return Err(invalid(format!("a value has more than {most} MiB, or more than {DEEPEST} levels")));
        }
        match value.kind() {
            ValueKind::Seq | ValueKind::Iterable => {
                value.try_iter()?.try_for_each(|item| add(&item, total, level + 1))
            }
            ValueKind::Map => match value.as_object().and_then(|object| object.try_iter_pairs()) {
                Some(mut pairs) => pairs.try_for_each(|(key, item)| {
                    add(&key, total, level + 1)?;
                    add(&item, total, level + 1)
                }),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }
    let mut total = 0;
    add(value, &mut total, 0)?;
    Ok(total)
}

/// An operand of `+`, unchanged: [`super::source`] writes it before every one.
pub fn operand(value: Value) -> Result<Value, Error> {
    size(&value)?;
    Ok(value)
}

/// The most bytes that a format string with these arguments makes. `mark` starts a placeholder.
pub fn formatted(format: &str, mark: char, arguments: &[Value]) -> Result<usize, Error> {
    let mut largest = 0;
    for argument in arguments {
        let width = argument
            .as_i64()
            .map_or(0, |number| usize::try_from(number.unsigned_abs()).unwrap_or(usize::MAX));
        // Only `*` takes a width from an argument.
        let width = if mark == '%' && format.contains('*') { width } else { 0 };
        largest = size(argument)?.max(width).max(largest);
    }
    let widest = |placeholder: &str| {
        let end = placeholder.find(|letter: char| letter.is_whitespace() || letter == '}');
        let numbers =
            placeholder[..end.unwrap_or(placeholder.len())].split(|letter: char| !letter.is_ascii_digit());
        let widths = numbers.filter(|digits| !digits.is_empty());
        widths.map(|digits| digits.parse().unwrap_or(usize::MAX)).max().unwrap_or(0)
    };
    let placeholders = format.split(mark).skip(1);
    Ok(placeholders.fold(format.len(), |total, one| total.saturating_add(largest.max(widest(one)))))
}

type Bytes = fn(&[Value]) -> Result<usize, Error>;

/// The sizes of all arguments.
fn given(arguments: &[Value]) -> Result<usize, Error> {
    arguments.iter().try_fold(0, |total: usize, argument| Ok(total.saturating_add(size(argument)?)))
}

/// `join(value, d, attribute)`, with the text between two items.
fn joined(arguments: &[Value]) -> Result<usize, Error> {
    let items = arguments.first().and_then(Value::len).unwrap_or(0);
    let total = given(arguments)?;
    let mut between = 0;
    for argument in arguments.iter().skip(1) {
        between = size(argument)?.max(between);
    }
    Ok(total.saturating_add(items.saturating_mul(between)))
}

/// `batch(value, count, fill)` and `slice`: as many items as the count may be added.
fn counted(arguments: &[Value]) -> Result<usize, Error> {
    let counts = arguments.iter().skip(1).filter_map(Value::as_usize);
    Ok(counts.fold(given(arguments)?, |total, count| total.saturating_add(count.saturating_mul(ITEM))))
}

fn format_filter(arguments: &[Value]) -> Result<usize, Error> {
    match arguments.split_first() {
        Some((format, rest)) => formatted(format.as_str().unwrap_or_default(), '%', rest),
        None => Ok(0),
    }
}

/// minijinja's filters that make texts or lists, each charged with the most that it makes.
pub fn add(environment: &mut Environment<'static>) {
    let filters: [(&'static str, Value, Bytes); 21] = [
        ("batch", Value::from_function(filters::batch), counted),
        ("chain", Value::from_function(filters::chain), given),
        ("format", Value::from_function(filters::format), format_filter),
        ("groupby", Value::from_function(filters::groupby), given),
        ("join", Value::from_function(filters::join), joined),
        ("lines", Value::from_function(filters::lines), given),
        ("list", Value::from_function(filters::list), given),
        ("lower", Value::from_function(filters::lower), given),
        ("map", Value::from_function(filters::map), given),
        ("pprint", Value::from_function(filters::pprint), given),
        ("reject", Value::from_function(filters::reject), given),
        ("rejectattr", Value::from_function(filters::rejectattr), given),
        ("reverse", Value::from_function(filters::reverse), given),
        ("select", Value::from_function(filters::select), given),
        ("selectattr", Value::from_function(filters::selectattr), given),
        ("slice", Value::from_function(filters::slice), counted),
        ("sort", Value::from_function(filters::sort), given),
        ("split", Value::from_function(filters::split), given),
        ("title", Value::from_function(filters::title), given),
        ("unique", Value::from_function(filters::unique), given),
        ("upper", Value::from_function(filters::upper), given),
    ];
    for (name, filter, bytes) in filters {
        let call = move |state: &mut State<'_, '_>, value: Value, rest: Rest<Value>, named: Kwargs| {
            let arguments = arguments::joined([value].into_iter().chain(rest.0), &named);
            charge(bytes(&arguments)?)?;
            filter.call(state, &arguments)
        };
        environment.add_filter(name, call);
    }
}
