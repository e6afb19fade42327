//! Whether a longer answer states the expected value and no other one: `There are 5 paid orders.` states 5.
//!
//! | check | an answer states the expected value if |
//! |---|---|
//! | `number` | it has the number, and every other number in it is one of the task |
//! | `set` of numbers | it has these numbers, and every other number in it is one of the task |
//! | `text` | it has the value as whole words, and no candidate |
//! | `set` of texts | it has each item as whole words, and no candidate |
//!
//! A candidate is another value that the answer could have been ([`Scenario::candidates`]). One that the task itself names
//! says nothing, so it is left out. Longer values are found first: `Ada Byron` does not state `Ada`. An answer that lists
//! every candidate is wrong, and so is one that repeats the task: if the task names the expected value, only the whole answer
//! counts.
//!
//! A text states nothing if it is long, an SQL query or an error message: models end with those too, and they mention values.
//! Sentences are not understood. `It is not Oslo` states Oslo, numbers in words are none, and words are what spaces and
//! punctuation separate.

use super::compare::{is_close, listed, number, stripped, without_separators};
use crate::data::Scenario;

/// Characters of the longest text that is an answer.
const LONGEST: usize = 400;

/// Whether an answer states what the scenario expects. Never if no candidates are known.
pub(super) fn states(scenario: &Scenario, answer: &str) -> bool {
    let (Some(expected), Some(candidates)) = (&scenario.answer, &scenario.candidates) else { return false };
    if is_no_answer(answer) {
        return false;
    }
    let items: Vec<&str> = match scenario.check.as_str() {
        "set" => listed(expected).filter(|item| !item.trim().is_empty()).collect(),
        "text" | "number" => vec![expected],
        _ => return false,
    };
    let as_numbers: Option<Vec<f64>> = match scenario.check.as_str() {
        "text" => None,
        _ => items.iter().map(|item| number(item)).collect(),
    };
    match as_numbers {
        Some(expected) => states_numbers(&expected, &scenario.task, answer),
        None => states_texts(&items, candidates, &scenario.task, answer),
    }
}

/// Whether a text mentions values without answering: it is long, a query, or an error message.
fn is_no_answer(text: &str) -> bool {
    let lower = text.to_lowercase();
    let mut words = lower.split_whitespace();
    let is_query = words.any(|word| word.ends_with("select")) && words.any(|word| word == "from");
    text.chars().count() > LONGEST || is_query || lower.contains("error:")
}

fn states_texts(items: &[&str], candidates: &[String], task: &str, answer: &str) -> bool {
    let (task, mut answer) = (folded(task), folded(answer));
    let words = |value: &str| Some(folded(stripped(value))).filter(|value| value.iter().any(|c| is_word(*c)));
    let Some(expected) = items.iter().map(|item| words(item)).collect::<Option<Vec<_>>>() else {
        return false;
    };
    let is_named = |value: &[char]| find(&task, value, Edges::Loose).is_some();
    let candidates = candidates.iter().filter_map(|candidate| words(candidate));
    let candidates: Vec<Vec<char>> =
        candidates.filter(|value| !expected.contains(value) && !is_named(value)).collect();
    if candidates.is_empty() || expected.is_empty() || expected.iter().all(|value| is_named(value)) {
        return false;
    }
    let mut values: Vec<(&[char], bool)> = expected.iter().map(|value| (value.as_slice(), true)).collect();
    values.extend(candidates.iter().map(|value| (value.as_slice(), false)));
    values.sort_by_key(|(value, _)| std::cmp::Reverse(value.len()));
    values.into_iter().all(|(value, is_expected)| {
        let edges = if is_expected { Edges::Strict } else { Edges::Loose };
        take(&mut answer, value, edges) == is_expected
    })
}

/// Lower case, with spaces, quotes and marks of emphasis as single spaces.
fn folded(text: &str) -> Vec<char> {
    let mut folded: Vec<char> = Vec::new();
    for letter in text.chars().flat_map(char::to_lowercase) {
        match letter.is_whitespace() || "\"'`*“”„‘’«»".contains(letter) {
            false => folded.push(letter),
            true if folded.last().is_some_and(|last| *last != ' ') => folded.push(' '),
            true => {}
        }
    }
    folded.truncate(folded.iter().rposition(|letter| *letter != ' ').map_or(0, |last| last + 1));
    folded
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// What may be beside a value.
#[derive(Clone, Copy, PartialEq)]
enum Edges {
    /// Anything but letters and digits: a candidate is rather seen once too often.
    Loose,
    /// Nor a letter or digit behind a mark that joins words: `A-1` is not in `A-1-b`, `C` not in `C++`.
    Strict,
}

impl Edges {
    fn allow(self, mut outward: impl Iterator<Item = char>) -> bool {
        match outward.next() {
            None => true,
            Some(letter) if is_word(letter) => false,
            Some('+' | '#') if self == Self::Strict => false,
            Some(mark) if self == Self::Strict && "-–−./\\@&".contains(mark) => {
                !outward.next().is_some_and(is_word)
            }
            Some(_) => true,
        }
    }
}

/// Where the value stands in the text as whole words.
fn find(text: &[char], value: &[char], edges: Edges) -> Option<usize> {
    let ends = text.windows(value.len()).enumerate().filter(|(_, window)| *window == value);
    ends.map(|(start, _)| start).find(|start| {
        edges.allow(text[..*start].iter().rev().copied())
            && edges.allow(text[start + value.len()..].iter().copied())
    })
}

/// Removes the value from the text, wherever it stands there; says whether it does.
fn take(text: &mut [char], value: &[char], edges: Edges) -> bool {
    let mut is_found = false;
    while let Some(start) = find(text, value, edges) {
        text[start..start + value.len()].fill('\0');
        is_found = true;
    }
    is_found
}

/// A number as it is written.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Written {
    value: f64,
    /// Digits behind the point.
    decimals: u8,
    /// Digits from the first that is not 0.
    digits: usize,
}

impl Written {
    /// Whether it is this number, or this one rounded to the digits that are written, of which there are three or more. A
    /// whole number is not rounded.
    fn is(&self, expected: f64) -> bool {
        let unit = 10_f64.powi(-i32::from(self.decimals));
        let is_rounded = (expected - self.value).abs() <= 0.5 * unit * (1.0 + 1e-9);
        is_close(expected, self.value) || expected.fract() != 0.0 && self.digits >= 3 && is_rounded
    }
}

fn states_numbers(expected: &[f64], task: &str, answer: &str) -> bool {
    let Some(answer) = written(answer) else { return false };
    let in_task = written(task).unwrap_or_default();
    let is_named = |value: f64| in_task.iter().any(|other| is_close(other.value, value));
    if expected.iter().all(|expected| is_named(*expected)) {
        return false;
    }
    let is_expected = |written: &Written| expected.iter().any(|expected| written.is(*expected));
    answer.iter().all(|written| is_named(written.value) || is_expected(written))
        && expected.iter().all(|expected| answer.iter().any(|written| written.is(*expected)))
}

/// Words behind a number, or letters at its end, with which it is another number.
const MULTIPLES: [&str; 9] =
    ["thousand", "million", "billion", "trillion", "hundred", "dozen", "k", "m", "bn"];

/// The numbers of a text that stand alone, with a sign, separators of thousands and a unit. Dates, times, versions, ranges and
/// names such as `A-12` have none. `None` if one is a multiple of what its digits say: `5 thousand`.
fn written(text: &str) -> Option<Vec<Written>> {
    let letters: Vec<char> = text.chars().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < letters.len() {
        let length = word(&letters[at..]);
        if length == 0 {
            at += 1;
            continue;
        }
        let (before, own, behind) = (&letters[..at], &letters[at..at + length], &letters[at + length..]);
        at += length;
        let digits = own.iter().take_while(|letter| !letter.is_alphabetic()).count();
        let (digits, unit) = own.split_at(digits);
        let is_name = unit.iter().any(|letter| letter.is_numeric());
        if digits.is_empty() || is_name || digits.iter().any(|letter| "-–−/:".contains(*letter)) {
            continue;
        }
        let next: String =
            behind.iter().skip_while(|c| **c == ' ').take_while(|c| c.is_alphabetic()).collect();
        let unit: String = unit.iter().collect();
        let is_next = unit.is_empty() && behind.first() == Some(&' ');
        let is_multiple = |word: &str| MULTIPLES.contains(&word.to_lowercase().as_str());
        if is_multiple(&unit) || is_next && next.len() > 1 && is_multiple(&next) {
            return None;
        }
        let is_fraction = before.last() == Some(&'.')
            && !before.iter().rev().nth(1).is_some_and(|letter| letter.is_alphanumeric());
        let before = if is_fraction { &before[..before.len() - 1] } else { before };
        let is_negative = matches!(before.last(), Some('-' | '−'));
        let digits: String = is_fraction.then_some('.').into_iter().chain(digits.iter().copied()).collect();
        match read(&digits, is_negative) {
            Some(number) => found.push(number),
            // A list without spaces.
            None => found.extend(digits.split(',').filter_map(|digits| read(digits, is_negative))),
        }
    }
    Some(found)
}

/// The length of the word at the beginning: letters and digits, with the marks between them that join them.
fn word(letters: &[char]) -> usize {
    let joins = |at: usize| {
        let (Some(before), Some(mark), Some(after)) =
            (at.checked_sub(1).and_then(|at| letters.get(at)), letters.get(at), letters.get(at + 1))
        else {
            return false;
        };
        let is_among_digits = before.is_ascii_digit() && after.is_ascii_digit();
        is_word(*before) && is_word(*after) && "-–−/".contains(*mark)
            || is_among_digits && ".,:\u{a0}\u{202f}".contains(*mark)
    };
    (0..letters.len()).find(|at| !is_word(letters[*at]) && !joins(*at)).unwrap_or(letters.len())
}

/// Digits with separators of thousands and at most one point.
fn read(digits: &str, is_negative: bool) -> Option<Written> {
    let plain = without_separators(digits)?;
    let value = plain.parse::<f64>().ok().filter(|value| value.is_finite())?;
    let decimals = plain.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let significant = plain.trim_start_matches(['0', '.']).bytes().filter(u8::is_ascii_digit).count();
    Some(Written {
        value: if is_negative { -value } else { value },
        decimals: u8::try_from(decimals).unwrap_or(u8::MAX),
        digits: significant,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CITIES: &str = "Bern, Oslo, Porto, New York, York, New Yorkshire";

    /// Whether this answer states `expected`, where the candidates are a comma-separated list.
    fn is_stated((check, task, expected, candidates): (&str, &str, &str, &str), answer: &str) -> bool {
        let scenario = Scenario {
            check: check.into(),
            task: task.into(),
            answer: Some(expected.into()),
            candidates: Some(listed(candidates).map(str::to_owned).collect()),
            ..Scenario::default()
        };
        states(&scenario, answer)
    }

    fn check(question: (&str, &str, &str, &str), answers: &[(&str, bool)]) {
        for (answer, right) in answers {
            assert_eq!(is_stated(question, answer), *right, "{question:?}: {answer:?}");
        }
    }

    #[test]
    fn a_text_is_stated_as_whole_words_beside_no_candidate() {
        check(
            ("text", "Where does Ada live?", "Oslo", CITIES),
            &[
                ("Ada lives in Oslo.", true),
                ("ada lives in OSLO", true),
                ("She lives in **Oslo**, of course.", true),
                ("```json\n[{'city': 'Oslo'}]\n```", true),
                ("{\"city\":\"Oslo\"}", true),
                ("city:Oslo", true),
                ("Oslo, Norway", true),
                ("Oslo, Oslo and again Oslo", true),
                ("It is not Oslo.", true),
                ("Oslo or Bern", false),
                ("Bern, Oslo, Porto", false),
                ("Not Bern but Oslo", false),
                ("Oslo/Bern", false),
                ("Ada lives in Bern.", false),
                ("Osloer", false),
                ("Oslo-based", false),
                ("ada@oslo.example", false),
                ("Ada lives somewhere.", false),
                ("", false),
            ],
        );
    }

    #[test]
    fn of_values_within_each_other_the_longer_one_is_stated() {
        let york = ("text", "Where is it?", "York", CITIES);
        check(
            york,
            &[("It is in York.", true), ("It is in New York.", false), ("York, not New York", false)],
        );
        let new_york = ("text", "Where is it?", "New  York", CITIES);
        check(
            new_york,
            &[
                ("It is in New York.", true),
                ("It is in new\nyork", true),
                ("New York, that is York", false),
                ("It is in New Yorkshire.", false),
                ("It is in York.", false),
            ],
        );
        let name = ("text", "Who?", "Ada", "Adam, Ada Byron, Bob");
        check(
            name,
            &[("It was Ada.", true), ("It was Ada's.", true), ("It was Adam.", false), ("Ada Byron", false)],
        );
        let id = ("text", "Which ticket?", "A-1", "A-12, A-2");
        check(
            id,
            &[
                ("The ticket is A-1.", true),
                ("Ticket (A-1)", true),
                ("The ticket is A-12.", false),
                ("The ticket is A-1-2.", false),
                ("The ticket is BA-1.", false),
            ],
        );
        check(("text", "Which language?", "C", "C++, Rust"), &[("It is C.", true), ("It is C++.", false)]);
        check(("text", "Which one?", "C", "Rust"), &[("It is C.", true), ("C++", false), ("C#", false)]);
        let file = ("text", "Which file?", "a.txt", "b.txt");
        check(file, &[("The file a.txt is it.", true), ("It is in data/a.txt.", false), ("a.txt.gz", false)]);
    }

    #[test]
    fn dates_and_words_for_nothing_are_texts() {
        let day = ("text", "When?", "2025-07-18", "2025-07-01, 2025-07-1");
        check(
            day,
            &[
                ("It was on 2025-07-18.", true),
                ("It was on 2025-07-18T10:00.", false),
                ("From 2025-07-01 to 2025-07-18", false),
                ("18 July 2025", false),
            ],
        );
        check(
            ("number", "How many?", "none", "one, two"),
            &[("There are none.", true), ("none, or one", false)],
        );
    }

    #[test]
    fn what_the_task_names_is_no_candidate_and_an_echo_of_it_no_answer() {
        let task = "Of Bern and Porto, which is north of Lyon?";
        check(("text", task, "Oslo", CITIES), &[("North of Bern and Porto is Oslo.", true)]);
        // The expected value is named: only the whole answer counts.
        check(("text", task, "Bern", CITIES), &[("It is Bern.", false), (task, false)]);
        check(("text", "Bern or Porto?", "Oslo", "Bern, Porto"), &[("Oslo", false)]);
        check(
            ("number", "How many of the 5 orders of 2024 are paid?", "5", ""),
            &[("5 of them are paid.", false), ("How many of the 5 orders of 2024 are paid?", false)],
        );
    }

    #[test]
    fn without_a_known_candidate_only_the_whole_answer_counts() {
        for candidates in ["", "Oslo", "oslo.", "-, ?"] {
            check(("text", "Where?", "Oslo", candidates), &[("It is Oslo.", false)]);
        }
        let unknown = Scenario {
            task: "How many?".into(),
            answer: Some("5".into()),
            check: "number".into(),
            ..Scenario::default()
        };
        assert!(!states(&unknown, "There are 5."));
        assert!(states(&Scenario { candidates: Some(vec![]), ..unknown }, "There are 5."));
        check(("none", "Where?", "Oslo", CITIES), &[("It is Oslo.", false)]);
    }

    #[test]
    fn a_number_is_stated_beside_no_other_one() {
        check(
            ("number", "How many orders of 2024 are paid?", "5", ""),
            &[
                ("There are 5 orders that are paid.", true),
                ("There are 5.", true),
                ("In 2024, 5 orders were paid.", true),
                ("5 (yes, 5)", true),
                ("5.0 orders", true),
                ("5pcs", true),
                ("The 5th of A-12, since 2024-07-01, 10:30, v1.2.3 and T1.x", true),
                ("[{'COUNT(*)': 5}]", true),
                ("There are 5 or 6.", false),
                ("1, 2, 3, 4, 5", false),
                ("1,2,3,4,5", false),
                ("There are 6 orders.", false),
                ("There are −5 orders.", false),
                ("There are -5 orders.", false),
                ("5.4", false),
                ("A-5", false),
                ("between 5-7", false),
                ("T5", false),
                ("5 thousand", false),
                ("5k", false),
                ("five", false),
                ("", false),
            ],
        );
        check(
            ("number", "What is paid?", "1234.5", ""),
            &[
                ("It pays $1,234.50.", true),
                ("1\u{202f}234.5 EUR", true),
                ("1_234.5", true),
                ("It pays 1.234,50", false),
                ("It pays 1 234.5", false),
            ],
        );
        check(("number", "What share?", "0.5", ""), &[("It is .5", true), ("-.5", false), ("50 %", false)]);
        check(("number", "How cold?", "-5", ""), &[("It is -5 °C.", true), ("It is 5 °C.", false)]);
        check(("number", "What share?", "12", ""), &[("It is 12 %.", true), ("It is 12,5 %.", false)]);
        check(("number", "What ratio?", "3.5", ""), &[("It is 3.5.", true), ("It is 3,5.", false)]);
    }

    #[test]
    fn a_rounded_number_needs_three_digits_and_a_whole_one_is_exact() {
        check(
            ("number", "What is the mean?", "3.3333333", ""),
            &[
                ("about 3.33", true),
                ("3.333", true),
                ("3.33, exactly 3.3333333", true),
                ("about 3.3", false),
                ("about 3", false),
                ("3.34", false),
                ("3.32", false),
                ("3.33334", false),
            ],
        );
        check(
            ("number", "?", "257.68", ""),
            &[("257.7", true), ("258", true), ("257", false), ("260", false)],
        );
        check(("number", "?", "0.0333", ""), &[("0.0333", true), ("0.033", false), ("0.0", false)]);
        check(("number", "?", "2.5", ""), &[("2.5 m", true), ("2.50", true), ("3", false)]);
        check(("number", "?", "1000", ""), &[("1000", true), ("1,000 km", true), ("999.9", false)]);
    }

    #[test]
    fn a_set_is_stated_by_all_of_its_items_and_no_other() {
        check(
            (
                "set",
                "Which tables besides logs are there?",
                "customers, orders, products",
                "logs, users, order",
            ),
            &[
                ("The tables are customers, orders and products.", true),
                ("[{'name': 'orders'}, {'name': 'products'}, {'name': 'customers'}]", true),
                ("Besides logs: orders, products, customers", true),
                ("The tables are customers and orders.", false),
                ("customers, orders, products, users", false),
            ],
        );
        check(
            ("set", "Which ids has the table of 2024?", "0, 1, 2", ""),
            &[
                ("The ids are 0, 1 and 2.", true),
                ("Of 2024: 0,1,2", true),
                ("The ids are 0 and 1.", false),
                ("0, 1, 2 and 3", false),
            ],
        );
        check(("set", "Which of 1 and 2?", "1, 3", ""), &[("1 and 3", true), ("only 3", false)]);
    }

    #[test]
    fn neither_a_query_nor_an_error_message_states_anything() {
        check(
            ("number", "How many departments are there?", "2", ""),
            &[
                ("SELECT name FROM departments LIMIT 2", false),
                ("```sql\nselect count(*)\nfrom departments\nlimit 2\n```", false),
                ("error: the tool call is malformed: not valid JSON at line 2 column 2", false),
                ("Database error: 2", false),
                ("Select 2, the number of departments.", true),
                ("There are 2, within an error of none.", true),
            ],
        );
    }

    #[test]
    fn a_long_text_states_nothing() {
        let question = ("text", "Where?", "Oslo", CITIES);
        let text = |length: usize| format!("Oslo {}", "x".repeat(length - 5));
        check(question, &[(&text(LONGEST), true), (&text(LONGEST + 1), false)]);
    }

    #[test]
    fn any_text_is_read_without_a_panic() {
        let marks =
            ["5", ".", "-", "−", ",", "k", "_", " ", "é", "½", "\u{202f}", "'", "\0", "Oslo", ":", "1e9"];
        for (index, one) in marks.iter().enumerate() {
            for two in marks {
                for three in marks.iter().cycle().skip(index).take(4) {
                    let text = [*one, two, *three, two].concat();
                    for check in ["text", "number", "set"] {
                        is_stated((check, &text, "5", &text), &text);
                        is_stated((check, "", &text, "5, Oslo"), &text);
                    }
                }
            }
        }
    }
}
