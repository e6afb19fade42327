//! Ground truth: whether an answer is the expected one.
//!
//! The comparison ignores how an answer is written (case, spaces, quotes, thousands separators, order of a set). It does
//! not search inside a longer text, so an answer that lists every candidate is wrong.

use std::collections::BTreeSet;

use crate::data::Scenario;

/// Relative difference below which two numbers are equal. Allows only for rounding of decimal texts.
const TOLERANCE: f64 = 1e-9;

/// Whether the answer is right; `None` if the scenario has no ground truth.
pub fn correct(scenario: &Scenario, answer: Option<&str>) -> Option<bool> {
    let expected = scenario.answer.as_deref()?;
    let compare: fn(&str, &str) -> bool = match scenario.check.as_str() {
        "text" => same_text,
        "number" => same_number,
        "set" => same_set,
        _ => return None,
    };
    Some(answer.is_some_and(|answer| compare(expected, answer)))
}

fn same_text(expected: &str, answer: &str) -> bool {
    text(expected) == text(answer)
}

fn same_number(expected: &str, answer: &str) -> bool {
    match (number(expected), number(answer)) {
        (Some(expected), Some(answer)) => {
            (expected - answer).abs() <= TOLERANCE * expected.abs().max(answer.abs()).max(1.0)
        }
        (None, _) => same_text(expected, answer),
        (Some(_), None) => false,
    }
}

fn same_set(expected: &str, answer: &str) -> bool {
    items(expected) == items(answer)
}

/// Lower case, without spaces, enclosing quotes or a final full stop.
fn text(raw: &str) -> String {
    stripped(raw).chars().filter(|c| !c.is_whitespace()).flat_map(char::to_lowercase).collect()
}

fn stripped(raw: &str) -> &str {
    let raw = raw.trim();
    let raw = raw.strip_suffix('.').unwrap_or(raw);
    raw.trim_matches(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '“' | '”'))
}

/// A number with an optional currency sign before it or percent sign after it.
fn number(raw: &str) -> Option<f64> {
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
fn without_separators(raw: &str) -> Option<String> {
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
    let raw = raw.trim().trim_start_matches('[').trim_end_matches(']');
    raw.split([',', ';', '\n'])
        .map(|item| number(item).map_or_else(|| text(item), |number| number.to_string()))
        .filter(|item| !item.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(check: &str, answer: Option<&str>) -> Scenario {
        Scenario { answer: answer.map(str::to_owned), check: check.into(), ..Scenario::default() }
    }

    #[test]
    fn answers_are_compared_by_meaning() {
        let cases = [
            ("text", "Ada Byron", "ada  byron.", true),
            ("text", "Ada Byron", "\"Ada Byron\"", true),
            ("text", "Ada Byron", "'Ada\nByron'.", true),
            ("text", "Ada Byron", "Ada Byron or Bob Stone", false),
            ("text", "Ada", "", false),
            ("text", "Zoë", "ZOË", true),
            ("text", "12", "12.0", false),
            ("number", "83", " 83 ", true),
            ("number", "83", "83.0", true),
            ("number", "83", "83.", true),
            ("number", "83", "$83", true),
            ("number", "83", "83 thousand", false),
            ("number", "83", "83 84", false),
            ("number", "-5", "−5", true),
            ("number", "5", "-5", false),
            ("number", "1234.5", "1,234.50", true),
            ("number", "1234567", "1 234 567", true),
            ("number", "1234", "1,23,4", false),
            ("number", "15", "1,5", false),
            ("number", "0.3", "0.30000000000000004", true),
            ("number", "0.3", "0.31", false),
            ("number", "12", "12 %", true),
            ("number", "12", "nan", false),
            ("number", "12", "inf", false),
            ("number", "1e3", "1000", true),
            ("number", "none", "None", true),
            ("set", "Sales, Legal", "legal,sales", true),
            ("set", "Sales, Legal", "[\"Legal\", \"Sales\"]", true),
            ("set", "Sales, Legal", "Sales", false),
            ("set", "Sales, Legal", "Sales, Legal, Finance", false),
            ("set", "1, 2", "2.0; 1", true),
            ("set", "Sales", "Sales, Sales", true),
            ("set", "", "", true),
            ("set", "", "Sales", false),
        ];
        for (check, expected, answer, right) in cases {
            let scenario = scenario(check, Some(expected));
            assert_eq!(correct(&scenario, Some(answer)), Some(right), "{check}: {expected:?} and {answer:?}");
        }
    }

    #[test]
    fn a_missing_answer_is_wrong_if_the_truth_is_known() {
        assert_eq!(correct(&scenario("text", Some("x")), None), Some(false));
    }

    #[test]
    fn without_ground_truth_no_answer_is_right_or_wrong() {
        assert_eq!(correct(&scenario("none", None), Some("x")), None);
        assert_eq!(correct(&scenario("none", Some("x")), Some("x")), None);
        assert_eq!(correct(&scenario("text", None), Some("x")), None);
    }
}
