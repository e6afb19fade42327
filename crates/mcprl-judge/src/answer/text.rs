//! Texts as they are compared: one form for each letter, without the marks that only dress a text.

use icu_normalizer::ComposingNormalizerBorrowed;
use serde_json::Value;

use super::forms;
use mcprl_base::answer::COMPLETE_TASK;

use crate::json;

/// Characters of the longest text that is an answer.
const LONGEST: usize = 400;

/// Verbs that begin a question for yes or no.
const ASKING: [&str; 18] = [
    "is", "are", "was", "were", "do", "does", "did", "has", "have", "had", "can", "could", "will", "would",
    "may", "must", "should", "am",
];

/// The text in NFC, without marks of emphasis and quotes, with single spaces, dates and times in one form.
pub fn plain(text: &str) -> String {
    let text = ComposingNormalizerBorrowed::new_nfc().normalize(text);
    let mut plain = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\u{a0}' | '\u{202f}' if is_digit(plain.chars().last()) && is_digit(letters.peek().copied()) => {
                plain.push(',')
            }
            '"' | '`' | '*' | '“' | '”' | '„' | '«' | '»' => plain.push(' '),
            '‘' | '’' => plain.push('\''),
            _ if letter.is_whitespace() || letter.is_control() => plain.push(' '),
            _ => plain.push(letter),
        }
    }
    forms::in_one_form(&plain.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn is_digit(letter: Option<char>) -> bool {
    letter.is_some_and(|letter| letter.is_ascii_digit())
}

/// What a final text says, as a plain text: the value that JSON or a code fence wraps, the lines of a list or table with `;`
/// between them. `None` if it is no answer: too long, a query, an error message, a call or the echo of a result.
pub fn said(answer: &str) -> Option<String> {
    let text = without_fence(answer.trim());
    let lower = text.to_lowercase();
    let mut words = lower.split_whitespace();
    let is_query = words.any(|word| word.ends_with("select")) && words.any(|word| word == "from");
    let is_echo =
        ["[{", "[[", "[(", "<tool_", "<function", COMPLETE_TASK].iter().any(|mark| lower.contains(mark));
    let is_call = text.split_once('(').is_some_and(|(name, rest)| {
        !name.is_empty() && name.chars().all(|letter| is_word(letter) || letter == '.') && rest.ends_with(')')
    });
    if text.chars().count() > LONGEST || is_call || is_query || is_echo || lower.contains("error:") {
        return None;
    }
    match json::exact(text) {
        Ok(value) => of_json(&value),
        Err(_) if text.starts_with('{') => None,
        Err(_) => Some(text.lines().map(line).collect::<Vec<_>>().join(" ")),
    }
}

fn without_fence(text: &str) -> &str {
    let Some(inner) = text.strip_prefix("```").and_then(|text| text.strip_suffix("```")) else { return text };
    match inner.split_once('\n') {
        Some((language, inner)) if language.chars().all(char::is_alphanumeric) => inner.trim(),
        _ => inner.trim(),
    }
}

/// The only value of a JSON text, or its list of values.
fn of_json(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::Array(items) => {
            let item =
                |item: &Value| (!item.is_array() && !item.is_object()).then(|| of_json(item)).flatten();
            Some(items.iter().map(item).collect::<Option<Vec<_>>>()?.join(", "))
        }
        Value::Object(fields) if fields.len() == 1 => {
            fields.values().next().filter(|value| !value.is_object()).and_then(of_json)
        }
        Value::Null | Value::Object(_) => None,
    }
}

/// A line without the marks of a list, a heading or a table.
fn line(line: &str) -> String {
    let line = line.trim();
    let is_rule = line.contains("--") && line.chars().all(|letter| "|-: ".contains(letter));
    if is_rule {
        return String::new();
    }
    if let Some(cells) = line.strip_prefix('|') {
        return format!("; {} ;", cells.trim_end_matches('|').replace('|', " ; "));
    }
    let number = line.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let item = match line.len() - number.len() {
        1 | 2 => number.strip_prefix(". ").or_else(|| number.strip_prefix(") ")),
        _ => ["- ", "* ", "• ", "# ", "## "].iter().find_map(|mark| line.strip_prefix(mark)),
    };
    item.map_or_else(|| line.to_owned(), |item| format!("; {item} ;"))
}

/// A plain text, its letters as they are and in lower case.
#[derive(Debug, Clone)]
pub struct Text {
    pub letters: Vec<char>,
    pub lower: Vec<char>,
}

impl Text {
    pub fn new(text: &str) -> Self {
        let letters: Vec<char> = plain(text).chars().collect();
        // Letter by letter, so that both have the same places.
        let one = |letter: &char| {
            let mut lower = letter.to_lowercase();
            lower.next().filter(|_| lower.next().is_none()).unwrap_or(*letter)
        };
        Self { lower: letters.iter().map(one).collect(), letters }
    }

    pub fn len(&self) -> usize {
        self.letters.len()
    }

    pub fn is(&self, other: &Self) -> bool {
        self.lower == other.lower
    }

    /// The words in lower case: letters and digits, with the marks between them that join them.
    pub fn words(&self) -> impl Iterator<Item = String> {
        spans(&self.lower).map(|(start, end)| self.lower[start..end].iter().collect())
    }

    /// Whether the text has the value as whole words.
    pub fn has(&self, value: &Self) -> bool {
        find(&self.lower, &value.lower, Edges::Loose).is_some()
    }

    /// Whether the text has the word, or its singular or plural.
    pub fn has_word(&self, word: &str) -> bool {
        let stem = |word: &str| word.trim_end_matches("'s").trim_end_matches('s').to_owned();
        let is_it = |own: &str| own == word || stem(own) == stem(word);
        self.words().any(|own| is_it(&own) || own.split('-').any(is_it))
    }

    /// Whether it asks for yes or no.
    pub fn asks_yes_or_no(&self) -> bool {
        let first = self.words().next();
        let is_choice = self.words().any(|word| word == "or");
        first.is_some_and(|word| ASKING.contains(&word.as_str())) && !is_choice
    }
}

pub fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// Where the words of a text stand.
pub fn spans(letters: &[char]) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        at += letters[at..].iter().position(|letter| is_word(*letter))?;
        let start = at;
        at += word(&letters[at..]);
        Some((start, at))
    })
}

/// The length of the word at the beginning.
fn word(letters: &[char]) -> usize {
    let joins = |at: usize| {
        let (Some(before), Some(mark), Some(after)) =
            (at.checked_sub(1).and_then(|at| letters.get(at)), letters.get(at), letters.get(at + 1))
        else {
            return false;
        };
        let is_among_digits = before.is_ascii_digit() && after.is_ascii_digit();
        is_word(*before) && is_word(*after) && "-–−/'@".contains(*mark)
            || is_among_digits && ".,:".contains(*mark)
    };
    (0..letters.len()).find(|at| !is_word(letters[*at]) && !joins(*at)).unwrap_or(letters.len())
}

/// What may be beside a value.
#[derive(Clone, Copy, PartialEq)]
pub enum Edges {
    /// Anything but letters and digits: another value is rather seen once too often.
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
pub fn find(text: &[char], value: &[char], edges: Edges) -> Option<usize> {
    if value.is_empty() {
        return None;
    }
    let ends = text.windows(value.len()).enumerate().filter(|(_, window)| *window == value);
    ends.map(|(start, _)| start).find(|start| {
        edges.allow(text[..*start].iter().rev().copied())
            && edges.allow(text[start + value.len()..].iter().copied())
    })
}
