//! What a text says beside a value: nothing that takes it back, and no other value.

use super::text::{Edges, Text, find, is_word, spans};

/// Words that turn a statement around.
const NEGATIONS: [&str; 10] =
    ["not", "no", "never", "neither", "nor", "none", "without", "except", "cannot", "unable"];

/// Words with which a text does not commit itself.
const HEDGES: [&str; 22] = [
    "or",
    "either",
    "maybe",
    "perhaps",
    "possibly",
    "probably",
    "likely",
    "might",
    "could",
    "unsure",
    "uncertain",
    "guess",
    "depending",
    "depends",
    "unless",
    "assuming",
    "presumably",
    "suppose",
    "think",
    "if",
    "vs",
    "versus",
];

/// Of these, those that no answer repeats from its task: one of two values is asked for.
const NEVER_SAID: [&str; 2] = ["or", "either"];

/// Words that make a whole number a guess.
const GUESSES: [&str; 5] = ["about", "around", "roughly", "approximately", "circa"];

/// Words that make a number a bound.
const BOUNDS: [&str; 11] = [
    "at least",
    "at most",
    "more than",
    "less than",
    "fewer than",
    "up to",
    "almost",
    "nearly",
    "between",
    "above",
    "below",
];

/// Words that take a value back, or say that it was one.
const CORRECTIONS: [&str; 13] = [
    "instead",
    "rather",
    "formerly",
    "previously",
    "former",
    "previous",
    "until",
    "originally",
    "correction",
    "wrong",
    "incorrect",
    "hardly",
    "near",
];

/// Words that compare or go on, after which another value may come. A number stands alone already if no other is there.
const CONTRASTS: [&str; 11] = [
    "but", "however", "although", "though", "whereas", "unlike", "others", "another", "etc", "also",
    "example",
];

/// Words that begin a sentence or go on with one, and are no values.
const COMMON: [&str; 113] = [
    "a",
    "according",
    "after",
    "all",
    "an",
    "and",
    "answer",
    "are",
    "as",
    "at",
    "based",
    "because",
    "both",
    "by",
    "currently",
    "each",
    "exactly",
    "final",
    "finally",
    "for",
    "from",
    "given",
    "had",
    "has",
    "have",
    "he",
    "her",
    "here",
    "his",
    "i",
    "id",
    "ids",
    "in",
    "is",
    "it",
    "its",
    "looking",
    "mr",
    "mrs",
    "ms",
    "dr",
    "my",
    "name",
    "of",
    "on",
    "only",
    "our",
    "per",
    "respectively",
    "result",
    "results",
    "she",
    "since",
    "so",
    "sql",
    "sure",
    "that",
    "the",
    "their",
    "them",
    "then",
    "there",
    "therefore",
    "these",
    "they",
    "this",
    "those",
    "thus",
    "to",
    "too",
    "total",
    "url",
    "utc",
    "value",
    "was",
    "we",
    "were",
    "when",
    "where",
    "which",
    "while",
    "who",
    "whose",
    "will",
    "with",
    "yes",
    "you",
    "your",
    "okay",
    "ok",
    "please",
    "let",
    "unix",
    "among",
    "out",
    "am",
    "be",
    "been",
    "yet",
    "still",
    "already",
    "not",
    "any",
    "being",
    "does",
    "do",
    "did",
    "found",
    "stands",
    "listed",
    "belongs",
    "located",
    "called",
];

pub fn is_negative(word: &str) -> bool {
    NEGATIONS.contains(&word) || word.ends_with("n't")
}

/// A text, of which values are taken away.
#[derive(Debug)]
pub struct Rest<'a> {
    text: &'a Text,
    task: &'a Text,
    /// The text in lower case; what was taken away is `\0`.
    left: Vec<char>,
    /// The values that the text should state.
    expected: Vec<Text>,
}

impl<'a> Rest<'a> {
    pub fn of(text: &'a Text, task: &'a Text) -> Self {
        Self { text, task, left: text.lower.clone(), expected: Vec::new() }
    }

    /// Takes the value away, wherever it stands as whole words; whether it does.
    pub fn take(&mut self, value: &Text, is_expected: bool) -> bool {
        let edges = if is_expected { Edges::Strict } else { Edges::Loose };
        let mut is_found = false;
        while let Some(start) = find(&self.left, &value.lower, edges) {
            self.left[start..start + value.len()].fill('\0');
            is_found = true;
        }
        if is_expected {
            self.expected.push(value.clone());
        }
        is_found
    }

    /// Words that are left and that neither the task nor any sentence has.
    pub fn new_words(&self) -> usize {
        self.words()
            .map(|span| self.word(span))
            .filter(|word| !self.is_known(word) && !is_negative(word))
            .count()
    }

    /// Whether nothing takes back a yes or a no.
    pub fn is_plain_sentence(&self) -> bool {
        !self.has(&HEDGES) && !self.has(&CORRECTIONS) && !self.has(&CONTRASTS)
    }

    /// Whether nothing takes back a number, makes it a bound or, if it is `exact`, a guess. No things are a number.
    pub fn is_plain_of_numbers(&self, exact: bool) -> bool {
        let has_any = self.text.words().any(|word| word == "any");
        let is_turned = |word: &str| {
            is_negative(word) && !has_any && !matches!(word, "no" | "none") && !self.task.has_word(word)
        };
        let spaced = |text: &Text| format!(" {} ", text.words().collect::<Vec<_>>().join(" "));
        let (said, asked) = (spaced(self.text), spaced(self.task));
        let bounds = BOUNDS.iter().map(|bound| format!(" {bound} "));
        let is_bound = bounds.into_iter().any(|bound| said.contains(&bound) && !asked.contains(&bound));
        let letters = &self.text.letters;
        let has_sign = letters.iter().any(|mark| "<>≤≥~≈".contains(*mark))
            || letters.windows(2).any(|pair| pair[0].is_ascii_digit() && pair[1] == '+');
        let is_guess = exact && self.has(&GUESSES);
        let is_open = self.has(&HEDGES) || self.has(&CORRECTIONS) || is_guess || is_bound || has_sign;
        !is_open && !self.text.words().any(|word| is_turned(&word))
    }

    /// Whether no names and codes are left that the task does not have.
    pub fn has_no_names(&self) -> bool {
        self.words().all(|(start, end)| !self.is_name((start, end)) && !self.has_digits((start, end)))
    }

    /// Whether nothing is left that could be another value, or that takes back what is stated.
    pub fn has_no_other(&self, items: usize, is_set: bool) -> bool {
        let has = |is: fn(&char) -> bool| self.expected.iter().any(|value| value.letters.iter().any(is));
        let (is_name, is_code) = (has(|c| c.is_uppercase()), has(|c| c.is_numeric()));
        let is_count = |word: &str| is_set && word == items.to_string();
        let is_turned = self
            .words()
            .map(|span| self.word(span))
            .any(|word| is_negative(&word) && !self.task.has_word(&word));
        let is_other = |span: (usize, usize)| {
            !self.is_known(&self.word(span))
                && (is_name && self.is_name(span)
                    || is_code && self.has_digits(span) && !is_count(&self.word(span)))
        };
        let is_list = self.text.letters.iter().any(|mark| "?|".contains(*mark));
        !is_turned
            && !is_list
            && self.is_plain_sentence()
            && !self.words().any(is_other)
            && !self.has_other_item()
    }

    /// Whether the task names the values.
    fn is_choice(&self) -> bool {
        !self.expected.is_empty() && self.expected.iter().all(|value| self.task.has(value))
    }

    /// Whether a word says nothing new. Of values that the task names, no other one may be named again.
    fn is_known(&self, word: &str) -> bool {
        COMMON.contains(&word) || !self.is_choice() && self.task.has_word(word)
    }

    fn has(&self, words: &[&str]) -> bool {
        let is_of_task = |word: &str| !NEVER_SAID.contains(&word) && self.task.has_word(word);
        self.words()
            .map(|span| self.word(span))
            .any(|word| words.contains(&word.as_str()) && !is_of_task(&word))
    }

    fn words(&self) -> impl Iterator<Item = (usize, usize)> {
        spans(&self.left)
    }

    fn word(&self, (start, end): (usize, usize)) -> String {
        self.left[start..end].iter().collect()
    }

    fn has_digits(&self, (start, end): (usize, usize)) -> bool {
        self.left[start..end].iter().any(|letter| letter.is_numeric())
            && !self.task.has_word(&self.word((start, end)))
    }

    /// Whether the word is written like a name that neither the task nor the value has.
    fn is_name(&self, (start, end): (usize, usize)) -> bool {
        let word = self.word((start, end));
        let is_own = self.expected.iter().any(|value| value.has_word(&word));
        if !self.text.letters[start].is_uppercase() || is_own || self.is_known(&word) {
            return false;
        }
        let before = self.left[..start].iter().rev().find(|letter| **letter != ' ');
        if before.is_some_and(|mark| !".!?;:(".contains(*mark)) {
            return true;
        }
        // At the beginning of a sentence any word has a capital: a name is one that stands alone, or that something is said of.
        let behind = &self.left[end..];
        let next = spans(behind).next();
        let mark = behind.iter().find(|letter| **letter != ' ');
        let is_verb = |word: &str| matches!(word, "is" | "was" | "has" | "are" | "were" | "had" | "and");
        match (mark, next) {
            (Some(':'), _) => false,
            (None | Some(',' | '.' | ';' | ')' | '/' | '&'), _) => true,
            (Some(mark), Some((start, to))) if is_word(*mark) => {
                is_verb(&behind[start..to].iter().collect::<String>())
                    || self.text.letters[end + start].is_uppercase()
            }
            _ => false,
        }
    }

    /// Whether another item stands in a list with the values.
    fn has_other_item(&self) -> bool {
        let is_item = |word: &str| !self.is_known(word);
        let words: Vec<(usize, usize)> = self.words().collect();
        let is_joined = |from: usize, to: usize| {
            let between: String = self.left[from..to].iter().collect();
            matches!(between.trim(), "," | "/" | "&" | ", and" | "and")
        };
        let is_taken = |at: usize| self.left.get(at) == Some(&'\0');
        let beside = words.iter().any(|(start, end)| {
            let word = self.word((*start, *end));
            if !is_item(&word) {
                return false;
            }
            let taken_before = self.left[..*start].iter().rposition(|letter| *letter == '\0');
            let taken_behind = self.left[*end..].iter().position(|letter| *letter == '\0').map(|at| end + at);
            taken_before.is_some_and(|at| is_taken(at) && is_joined(at + 1, *start))
                || taken_behind.is_some_and(|at| is_joined(*end, at))
        });
        let lines: String = self.left.iter().collect();
        let is_line = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            !line.contains('\0') && (1..=3).contains(&words.len()) && words.iter().all(|word| is_item(word))
        };
        beside || lines.split(';').skip(1).filter(|line| !line.trim().is_empty()).any(is_line)
    }
}
