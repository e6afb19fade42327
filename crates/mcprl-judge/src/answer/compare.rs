//! Whether two whole answers are the same: without differences of case, spaces, quotes, thousands separators and the order of
//! a set.

use std::collections::BTreeSet;

use super::{numbers::Number, text::plain};

/// Whether two whole answers are the same under this check.
pub fn same(check: &str, expected: &str, answer: &str) -> bool {
    match check {
        "number" => same_number(expected, answer),
        "set" => same_set(expected, answer),
        _ => same_text(expected, answer),
    }
}

pub fn same_text(expected: &str, answer: &str) -> bool {
    text(expected) == text(answer)
}

pub fn same_number(expected: &str, answer: &str) -> bool {
    match (number(expected), number(answer)) {
        (Some(expected), Some(answer)) => expected.is(answer),
        (None, _) => same_text(expected, answer),
        (Some(_), None) => false,
    }
}

pub fn same_set(expected: &str, answer: &str) -> bool {
    // Among codes a number is one too: of 1.9 and 1.10, the latter is no 1.1.
    let is_code = |item: &str| number(item).is_some() && Number::written_as_one(item).is_none();
    let as_texts = listed(expected).any(is_code);
    items(expected, as_texts) == items(answer, as_texts)
}

/// Lower case, without spaces, enclosing quotes or a final full stop.
fn text(raw: &str) -> String {
    stripped(raw).chars().filter(|c| !c.is_whitespace()).flat_map(char::to_lowercase).collect()
}

fn stripped(raw: &str) -> String {
    let plain = plain(raw);
    let plain = plain.strip_suffix('.').unwrap_or(&plain).trim();
    let inner = plain.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
    inner.unwrap_or(plain).to_owned()
}

/// A number with an optional currency sign before it or percent sign after it.
pub fn number(raw: &str) -> Option<Number> {
    Number::read(&stripped(raw))
}

/// The items of a comma-separated list as texts, with numbers by value. Repetitions do not count.
fn items(raw: &str, as_texts: bool) -> BTreeSet<String> {
    let number = |item: &str| number(item).filter(|_| !as_texts);
    let item = |item: &str| number(item).map_or_else(|| text(item), Number::key);
    listed(raw).map(item).filter(|item| !item.is_empty()).collect()
}

/// The items of a comma-separated list as they are written.
pub fn listed(raw: &str) -> impl Iterator<Item = &str> {
    let items = raw.trim().trim_start_matches('[').trim_end_matches(']').split([',', ';', '\n']);
    items.map(str::trim).filter(|item| !item.is_empty())
}
