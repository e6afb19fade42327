//! Whether a final text answers a task with the value that is known to be right, and with no other one.
//!
//! A whole answer that is the value counts (`compare.rs`), and so does a text that states it:
//!
//! | check | a text states the expected value if |
//! |---|---|
//! | `number` | it has the number, and every other number in it is one of the task |
//! | `text` | it has the value as whole words, and nothing beside it that could be another one |
//! | `set` | it has each item, and nothing beside them that could be another one |
//!
//! What could be another value is a name beside a name, a code beside a code, an item of the same list, and each of the task's
//! [candidates](crate::data::Scenario::candidates). A text with a negation, a hedge (`or`, `probably`), a bound (`at least`) or a
//! correction (`but`, `instead`) states nothing, unless the task has that word. Neither does a long text, a query, an error
//! message, a call, or the echo of a result.
//!
//! A value is read as what it is: a number in words, with a unit or as a multiple (`1.2 million`), a date or time in any form that
//! has one meaning, `yes` for `true`, no things for `0` and for an empty set. Sentences are not understood beyond that.

mod compare;
mod forms;
mod numbers;
mod rest;
mod text;

pub use self::{
    compare::{listed, number, same, same_set, same_text},
    numbers::Number,
};

use self::{
    numbers::{Written, numbers},
    rest::{Rest, is_negative},
    text::Text,
};

/// Words that a sentence may have beside those of the task where no other value is known: a list of all values has more.
const NEW_WORDS: usize = 2;

/// Digits of a code that people write in groups.
const LONG_CODE: usize = 8;

/// A task, and what is known of its answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct AnsweredTask<'a> {
    pub task: &'a str,
    pub check: &'a str,
    pub expected: &'a str,
    pub candidates: &'a [String],
}

impl AnsweredTask<'_> {
    /// Whether the answer is right.
    pub fn is_answered_by(&self, answer: &str) -> bool {
        // What the sign of a unit says depends on the task.
        let is_plain = self.check != "number" || !answer.contains(['$', '€', '£', '¥', '%']);
        if is_plain && same(self.check, self.expected, answer) {
            return true;
        }
        let Some(answer) = text::said(answer) else { return false };
        if is_plain && same(self.check, self.expected, &answer) {
            return true;
        }
        let answer = if self.is_long_code() { forms::with_codes_joined(&answer) } else { answer };
        let (task, answer) = (Text::new(self.task), Text::new(&answer));
        if let Some(expected) = self.yes_or_no(&task) {
            return Rest::of(&answer, &task).is_plain_sentence()
                && says_yes(&answer, &task) == Some(expected);
        }
        let items: Vec<&str> = match self.check {
            "set" => listed(self.expected).collect(),
            _ => vec![self.expected],
        };
        let as_number = if self.check == "number" { Number::read } else { Number::written_as_one };
        let as_numbers: Option<Vec<Number>> = items.iter().map(|item| as_number(item)).collect();
        match as_numbers {
            _ if items.is_empty() => is_nothing(&answer, &task),
            Some(expected) if self.check != "text" => states_numbers(&expected, &task, &answer),
            _ => self.states_texts(&items, &task, &answer),
        }
    }

    /// Whether a text of many digits is expected, which people write in groups.
    fn is_long_code(&self) -> bool {
        let digits = self.expected.trim().trim_start_matches('+');
        self.check == "text"
            && digits.len() >= LONG_CODE
            && digits.bytes().all(|digit| digit.is_ascii_digit())
    }

    /// What a question that is answered by yes or no expects. `1` and `0` are such answers where the task asks for one.
    fn yes_or_no(&self, task: &Text) -> Option<bool> {
        match self.expected.trim().to_lowercase().as_str() {
            "true" | "yes" => Some(true),
            "false" | "no" => Some(false),
            "1" if task.asks_yes_or_no() => Some(true),
            "0" if task.asks_yes_or_no() => Some(false),
            _ => None,
        }
        .filter(|_| self.check != "set")
    }

    fn states_texts(&self, items: &[&str], task: &Text, answer: &Text) -> bool {
        let mut rest = Rest::of(answer, task);
        let mut values: Vec<(Text, bool)> = items.iter().map(|item| (Text::new(item), true)).collect();
        let is_known = |value: &Text| values.iter().any(|(item, _)| item.is(value)) || task.has(value);
        let others: Vec<Text> =
            self.candidates.iter().map(|value| Text::new(value)).filter(|value| !is_known(value)).collect();
        values.extend(others.into_iter().map(|value| (value, false)));
        // Longer values first: `Ada Byron` does not state `Ada`.
        values.sort_by_key(|(value, _)| std::cmp::Reverse(value.len()));
        values.iter().all(|(value, is_expected)| rest.take(value, *is_expected) == *is_expected)
            && rest.has_no_other(items.len(), self.check == "set")
            && (!self.candidates.is_empty() || rest.new_words() <= NEW_WORDS)
    }
}

/// Whether a text says yes; `None` if it says neither.
fn says_yes(answer: &Text, task: &Text) -> Option<bool> {
    let words: Vec<String> = answer.words().collect();
    let first = words.first()?;
    let is_alone = answer.letters.get(first.chars().count()).is_none_or(|mark| ",.;:!".contains(*mark));
    match first.as_str() {
        _ if answer.letters.contains(&'?') => None,
        "yes" | "true" if is_alone => Some(true),
        "no" | "false" if is_alone => Some(false),
        "yes" | "no" => None,
        _ => {
            let says_task = words.iter().any(|word| task.has_word(word));
            let is_plain = says_task && Rest::of(answer, task).new_words() == 0;
            is_plain.then(|| !words.iter().any(|word| is_negative(word)))
        }
    }
}

/// Whether a text says that there are none.
fn is_nothing(answer: &Text, task: &Text) -> bool {
    numbers::is_none(answer, task) && Rest::of(answer, task).has_no_names()
}

fn states_numbers(expected: &[Number], task: &Text, answer: &Text) -> bool {
    let (Some(written), Some(in_task)) = (numbers(answer, task), numbers(task, task)) else { return false };
    let is_whole = expected.iter().all(Number::is_whole);
    if !Rest::of(answer, task).is_plain_of_numbers(is_whole) {
        return false;
    }
    let is_expected = |one: &Written| expected.iter().any(|expected| one.is(*expected, task));
    let is_of_task = |one: &Written| in_task.iter().any(|other| other.value.is(one.value));
    let is_count = |one: &Written| expected.len() > 1 && one.value.is(Number::whole(expected.len()));
    // What the task names is no answer by being named again.
    let is_named = expected.iter().all(|expected| in_task.iter().any(|other| other.value.is(*expected)));
    written.iter().all(|one| is_expected(one) || !is_named && (is_of_task(one) || is_count(one)))
        && expected.iter().all(|expected| written.iter().any(|one| one.is(*expected, task)))
}

#[cfg(test)]
mod tests;
