//! Whether two whole answers are the same: without differences of case, spaces, quotes, thousands separators and the order of
//! a set.

use std::collections::BTreeSet;

/// Relative difference below which two numbers are equal. Allows only for rounding of decimal texts.
pub(super) const TOLERANCE: f64 = 1e-9;

pub(super) fn same_text(expected: &str, answer: &str) -> bool {
    text(expected) == text(answer)
}

pub(super) fn same_number(expected: &str, answer: &str) -> bool {
    match (number(expected), number(answer)) {
        (Some(expected), Some(answer)) => is_close(expected, answer),
        (None, _) => same_text(expected, answer),
        (Some(_), None) => false,
    }
}

pub(super) fn is_close(one: f64, other: f64) -> bool {
    (one - other).abs() <= TOLERANCE * one.abs().max(other.abs()).max(1.0)
}

pub(super) fn same_set(expected: &str, answer: &str) -> bool {
    items(expected) == items(answer)
}

/// Lower case, without spaces, enclosing quotes or a final full stop.
fn text(raw: &str) -> String {
    stripped(raw).chars().filter(|c| !c.is_whitespace()).flat_map(char::to_lowercase).collect()
}

pub(super) fn stripped(raw: &str) -> &str {
    let raw = raw.trim();
    let raw = raw.strip_suffix('.').unwrap_or(raw);
    raw.trim_matches(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '“' | '”'))
}

/// A number with an optional currency sign before it or percent sign after it.
pub(super) fn number(raw: &str) -> Option<f64> {
    let raw = stripped(raw);
    let (sign, raw) = match raw.strip_prefix(['-', '−']) {
        Some(rest) => (-1.0, rest),
        None => (1.0, raw.strip_prefix('+').unwrap_or(raw)),
    };
    let raw = raw.trim_start_matches(['$', '€', '£', '¥', ' ']).trim_end_matches(['%', ' ']);
    if !raw.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    without_separators(raw)?
        .parse::<f64>()
        .ok()
        .filter(|number| number.is_finite())
        .map(|number| sign * number)
}

/// Removes commas, spaces and underscores between groups of three digits. With other groups it is not a number.
pub(super) fn without_separators(raw: &str) -> Option<String> {
    let (whole, fraction) = raw.split_once('.').map_or((raw, None), |(whole, rest)| (whole, Some(rest)));
    let mut groups = whole.split([',', ' ', '_', '\u{a0}', '\u{202f}']);
    let mut digits = groups.next()?.to_owned();
    for group in groups {
        if group.len() != 3 || !group.bytes().all(|byte| byte.is_ascii_digit()) || digits.is_empty() {
            return None;
        }
        digits.push_str(group);
    }
    Some(match fraction {
        Some(fraction) => format!("{digits}.{fraction}"),
        None => digits,
    })
}

/// The items of a comma-separated list as texts, with numbers by value. Repetitions do not count.
fn items(raw: &str) -> BTreeSet<String> {
    let item = |item: &str| number(item).map_or_else(|| text(item), |number| number.to_string());
    listed(raw).map(item).filter(|item| !item.is_empty()).collect()
}

/// The items of a comma-separated list as they are written.
pub(super) fn listed(raw: &str) -> impl Iterator<Item = &str> {
    raw.trim().trim_start_matches('[').trim_end_matches(']').split([',', ';', '\n'])
}
