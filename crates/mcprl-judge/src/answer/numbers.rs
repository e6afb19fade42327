//! Numbers as people write them: with separators, a currency, a unit, as a multiple or in words.

use super::{
    rest::{Rest, is_negative},
    text::{Text, spans},
};

/// Relative difference below which two numbers are equal if one is no whole number. Allows only for rounding of decimal texts.
const TOLERANCE: f64 = 1e-9;

/// Decimals up to which an expected number is what somebody has entered, so that no rounding of it counts.
const ENTERED: usize = 4;

/// Digits that a rounded number has at least.
const ROUNDED: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Number {
    value: f64,
    /// If it is a whole number.
    whole: Option<i128>,
    /// Digits behind the point, as it is written.
    decimals: usize,
}

impl Number {
    pub fn whole(number: usize) -> Self {
        Self::of_whole(i128::try_from(number).unwrap_or(i128::MAX))
    }

    #[expect(clippy::cast_precision_loss, reason = "whole numbers are compared by `whole`")]
    fn of_whole(whole: i128) -> Self {
        Self { value: whole as f64, whole: Some(whole), decimals: 0 }
    }

    pub fn is_whole(&self) -> bool {
        self.whole.is_some()
    }

    /// A text that is a number, with an optional currency sign before it or percent sign after it.
    pub fn read(text: &str) -> Option<Self> {
        let text = text.trim();
        let (is_negative, text) = match text.strip_prefix(['-', '−']) {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let text = text.trim_start_matches(['$', '€', '£', '¥', ' ']).trim_end_matches(['%', ' ']);
        Self::of_digits(text).map(|number| if is_negative { number.negated() } else { number })
    }

    /// Digits with separators of thousands and one point or comma, or in the form `1e6`.
    fn of_digits(digits: &str) -> Option<Self> {
        if !digits.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
            return None;
        }
        let plain = without_separators(digits)?;
        let value = plain.parse::<f64>().ok().filter(|value| value.is_finite())?;
        let decimals = plain.split_once('.').map_or(0, |(_, decimals)| decimals.len());
        let whole = match plain.split_once('.') {
            None => plain.parse().ok(),
            Some((whole, decimals)) if decimals.bytes().all(|digit| digit == b'0') => whole.parse().ok(),
            Some(_) => None,
        };
        #[expect(clippy::cast_possible_truncation, reason = "it is a whole number, and exact")]
        let whole = whole.or_else(|| (value.fract() == 0.0 && value.abs() < 1e15).then_some(value as i128));
        Some(Self { value, whole, decimals })
    }

    /// A text that is written as a number is: `007`, `+49` and `1.10` are texts of digits.
    pub fn written_as_one(text: &str) -> Option<Self> {
        let digits = text.trim().trim_start_matches(['-', '−']);
        let is_code = digits.starts_with('+')
            || digits.starts_with('0') && digits.len() > 1 && !digits.starts_with("0.")
            || digits.contains('.') && digits.ends_with('0');
        Self::read(text).filter(|_| !is_code)
    }

    fn negated(self) -> Self {
        Self { value: -self.value, whole: self.whole.map(|whole| -whole), ..self }
    }

    fn times(self, factor: i128) -> Self {
        match self.whole.and_then(|whole| whole.checked_mul(factor)) {
            Some(whole) => Self::of_whole(whole),
            #[expect(clippy::cast_precision_loss, reason = "factors are powers of ten and a dozen")]
            None => Self::of_digits(&format!("{}", self.value * factor as f64)).unwrap_or(self),
        }
    }

    /// Whether both are the same number. Whole numbers are exact.
    pub fn is(self, other: Self) -> bool {
        match (self.whole, other.whole) {
            (Some(one), Some(other)) => one == other,
            _ => {
                (self.value - other.value).abs()
                    <= TOLERANCE * self.value.abs().max(other.value.abs()).max(1e-9)
            }
        }
    }

    /// A text that is the same for equal numbers.
    pub fn key(self) -> String {
        self.whole.map_or_else(|| format!("{:.9e}", self.value), |whole| whole.to_string())
    }

    pub fn value(self) -> f64 {
        self.value
    }
}

/// Removes commas, spaces and underscores between groups of three digits. A comma before other groups is a decimal one. With
/// other groups it is not a number.
fn without_separators(raw: &str) -> Option<String> {
    let is_decimal =
        |behind: &str| behind.len() != 3 && !behind.is_empty() && behind.bytes().all(|c| c.is_ascii_digit());
    if let Some((before, behind)) = raw.split_once(',')
        && is_decimal(behind)
    {
        let is_grouped =
            before.split('.').skip(1).all(|group| group.len() == 3) && before.split('.').count() < 5;
        return is_grouped.then(|| format!("{}.{behind}", before.replace('.', "")));
    }
    let (whole, fraction) = raw.split_once('.').map_or((raw, None), |(whole, rest)| (whole, Some(rest)));
    let mut groups = whole.split([',', ' ', '_']);
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

/// A number as it stands in a text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Written {
    pub value: Number,
    /// Digits from the first that is not 0.
    digits: usize,
}

impl Written {
    fn of(value: Number, digits: &str) -> Self {
        let digits = digits.trim_start_matches(['0', '.', ',']).bytes().filter(u8::is_ascii_digit).count();
        Self { value, digits }
    }

    /// Whether it is this number, or this one rounded, if the task says so or the number is a computed one: it has many decimals.
    pub fn is(&self, expected: Number, task: &Text) -> bool {
        let unit = 10_f64.powi(-i32::try_from(self.value.decimals).unwrap_or(i32::MAX));
        let is_near = (expected.value - self.value.value).abs() <= 0.5 * unit * (1.0 + 1e-9);
        let is_computed = expected.decimals > ENTERED && self.value.decimals > 0 && self.digits >= ROUNDED;
        let is_rounded =
            is_computed || asked_decimals(task).is_some_and(|asked| self.value.decimals >= asked);
        self.value.is(expected) || is_rounded && is_near
    }
}

/// The decimals that a task asks to round to.
fn asked_decimals(task: &Text) -> Option<usize> {
    if !task.has_word("rounded") && !task.has_word("round") {
        return None;
    }
    let words: Vec<String> = task.words().collect();
    let place = words.iter().position(|word| word.starts_with("decimal") || word.starts_with("digit"));
    let count = place.and_then(|place| words.get(place.checked_sub(1)?));
    let read = |word: &String| SMALL.iter().position(|name| name == word).or_else(|| word.parse().ok());
    Some(count.and_then(read).unwrap_or(0))
}

/// Words behind a number, or letters at its end, with which it is another number.
const MULTIPLES: [(&str, i128); 10] = [
    ("hundred", 100),
    ("dozen", 12),
    ("thousand", 1_000),
    ("k", 1_000),
    ("million", 1_000_000),
    ("mio", 1_000_000),
    ("billion", 1_000_000_000),
    ("bn", 1_000_000_000),
    ("b", 1_000_000_000),
    ("trillion", 1_000_000_000_000),
];

/// Units of one quantity are told apart, with their spellings.
const QUANTITIES: [&[&[&str]]; 6] = [
    &[
        &["km", "kilometer", "kilometers", "kilometre", "kilometres"],
        &["m", "meter", "meters", "metre", "metres"],
        &["cm", "centimeter", "centimeters", "centimetre", "centimetres"],
        &["mm", "millimeter", "millimeters", "millimetre", "millimetres"],
        &["mi", "mile", "miles"],
        &["ft", "foot", "feet"],
    ],
    &[
        &["ms", "millisecond", "milliseconds"],
        &["s", "sec", "second", "seconds"],
        &["min", "mins", "minute", "minutes"],
        &["h", "hr", "hrs", "hour", "hours"],
        &["day", "days"],
        &["week", "weeks"],
        &["month", "months"],
        &["year", "years"],
    ],
    &[
        &["kg", "kilogram", "kilograms", "kilo", "kilos"],
        &["g", "gram", "grams"],
        &["t", "ton", "tons", "tonne", "tonnes"],
        &["lb", "lbs", "pound", "pounds"],
    ],
    &[
        &["$", "usd", "dollar", "dollars"],
        &["€", "eur", "euro", "euros"],
        &["£", "gbp"],
        &["¥", "yen", "jpy"],
        &["chf", "franc", "francs"],
        &["cent", "cents"],
    ],
    &[
        &["kb", "kilobyte", "kilobytes"],
        &["mb", "megabyte", "megabytes"],
        &["gb", "gigabyte", "gigabytes"],
        &["byte", "bytes"],
    ],
    &[&["°c", "celsius"], &["°f", "fahrenheit"], &["kelvin"]],
];

/// Whether the task asks for another unit of the same quantity.
fn is_other_unit(unit: &str, task: &Text) -> bool {
    let names = |quantity: &&[&[&str]]| {
        task.words().any(|word| quantity.iter().any(|own| own.contains(&word.as_str())))
    };
    if unit == "%" {
        let of_shares = ["percent", "percentage", "share", "rate"].iter().any(|word| task.has_word(word));
        return !of_shares && !task.letters.contains(&'%') && QUANTITIES.iter().any(names);
    }
    let Some((quantity, own)) = QUANTITIES.iter().find_map(|quantity| {
        quantity.iter().find(|spellings| spellings.contains(&unit)).map(|own| (quantity, own))
    }) else {
        return false;
    };
    let is_named = |spellings: &&&[&str]| {
        task.words().any(|word| spellings.contains(&word.as_str()))
            || spellings.iter().any(|sign| {
                !sign.chars().all(char::is_alphabetic) && task.lower.iter().collect::<String>().contains(sign)
            })
    };
    quantity.iter().any(|other| is_named(&other)) && !is_named(&own)
}

/// What a text lacks that has no data to answer with.
const LACKS: [&str; 14] = [
    "data",
    "information",
    "info",
    "result",
    "results",
    "access",
    "way",
    "idea",
    "answer",
    "such",
    "tool",
    "table",
    "column",
    "longer",
];

/// Whether a text says that it has nothing to go by.
pub fn is_lack(text: &Text) -> bool {
    let words: Vec<String> = text.words().collect();
    words.windows(2).any(|pair| pair[0] == "no" && LACKS.contains(&pair[1].as_str()))
}

/// Whether a text says that there are none of what the task asks for, and not that the agent has nothing to say.
pub fn is_none(text: &Text, task: &Text) -> bool {
    let words: Vec<String> = text.words().collect();
    let is_nothing =
        |word: &String| matches!(word.as_str(), "none" | "no" | "nobody" | "nothing" | "empty" | "zero");
    let not_any = words.iter().any(|word| word == "any") && words.iter().any(|word| is_negative(word));
    let is_about = words.len() == 1 || words.iter().any(|word| word == "there" || task.has_word(word));
    (words.iter().any(is_nothing) || not_any)
        && is_about
        && !is_lack(text)
        && Rest::of(text, task).new_words() <= 1
}

/// The numbers of a text that stand alone. Dates, times, versions, ranges and names such as `A-12` have none. `None` if one has
/// another unit than the task asks for, or says that there is no data.
pub fn numbers(text: &Text, task: &Text) -> Option<Vec<Written>> {
    let is_none = is_none(text, task);
    let letters = &text.lower;
    let words: Vec<(usize, usize)> = spans(letters).collect();
    let word = |at: usize| words.get(at).map(|(start, end)| letters[*start..*end].iter().collect::<String>());
    let mut found = Vec::new();
    let mut at = 0;
    while let Some((start, end)) = words.get(at).copied() {
        let own = &letters[start..end];
        if let Some((number, length)) = in_words(&|place| word(at + place)) {
            let is_pronoun =
                at > 0 && length == 1 && number == 1 && word(at - 1).is_some_and(|word| is_determiner(&word));
            let is_numbering = own == ['n', 'o'] && matches!(letters.get(end), Some('.' | ',' | ':'));
            if number == 0 && length == 1 && own != ['z', 'e', 'r', 'o'] && !is_none {
                return None;
            }
            if !is_pronoun && !is_numbering {
                found.push(Written::of(Number::of_whole(number), ""));
            }
            at += length;
            continue;
        }
        at += 1;
        let Some((number, digits, unit)) = in_digits(letters, (start, end)) else {
            if own.iter().all(|letter| letter.is_ascii_digit() || *letter == ',') {
                // A list without spaces.
                let digits: String = own.iter().collect();
                found.extend(
                    digits.split(',').filter_map(|one| Some(Written::of(Number::of_digits(one)?, one))),
                );
            }
            continue;
        };
        let next = if unit.is_empty() { unit_behind(letters, end) } else { unit };
        if next == "m" && !task.has_word("m") && letters.get(end) != Some(&' ') {
            return None;
        }
        let factor = MULTIPLES.iter().find(|(name, _)| next == *name && !task.has_word(name));
        let before = text.letters[..start].iter().rev().find(|letter| **letter != ' ');
        let before = before.filter(|sign| "$€£¥".contains(**sign)).map(char::to_string);
        if is_other_unit(&next, task) || before.is_some_and(|sign| is_other_unit(&sign, task)) {
            return None;
        }
        if let Some((_, factor)) = factor {
            let behind = words
                .get(at + usize::from(letters.get(end) == Some(&' ')))
                .map(|(start, end)| letters[*start..*end].iter().collect::<String>());
            if behind.is_some_and(|unit| is_other_unit(&unit, task)) {
                return None;
            }
            found.push(Written::of(number.times(*factor), ""));
        } else {
            found.push(Written::of(number, &digits));
        }
    }
    if found.is_empty() && is_none {
        found.push(Written::of(Number::whole(0), ""));
    }
    Some(found)
}

fn is_determiner(word: &str) -> bool {
    matches!(word, "the" | "this" | "that" | "which" | "each" | "every" | "another" | "any" | "no")
}

/// The word or sign behind a number.
fn unit_behind(letters: &[char], end: usize) -> String {
    let behind = letters[end..].iter().skip_while(|letter| **letter == ' ');
    let mut unit =
        behind.clone().take_while(|letter| letter.is_alphabetic() || **letter == '°').collect::<String>();
    if unit.is_empty() {
        unit.extend(behind.take(1).filter(|sign| "$€£¥%".contains(**sign)));
    }
    unit
}

/// The number of a word of digits, its digits, and the letters at its end.
fn in_digits(letters: &[char], (start, end): (usize, usize)) -> Option<(Number, String, String)> {
    let own: String = letters[start..end].iter().collect();
    let is_negative_at = |at: usize| {
        matches!(letters.get(at), Some('-' | '−'))
            && !at.checked_sub(1).is_some_and(|at| letters[at].is_alphanumeric())
    };
    let power = own.replace('−', "-");
    let is_power = power.contains('e') && power.bytes().all(|c| c.is_ascii_digit() || b".e-+".contains(&c));
    let (digits, unit) = match is_power {
        true => (power.as_str(), ""),
        false => own.split_at(own.find(char::is_alphabetic).unwrap_or(own.len())),
    };
    let is_name = unit.chars().any(char::is_numeric)
        || !is_power && digits.contains(['-', '–', '−', '/', ':', '\'', '@', '_']);
    if digits.is_empty() || is_name {
        return None;
    }
    let is_fraction = start > 0
        && letters[start - 1] == '.'
        && !start.checked_sub(2).is_some_and(|at| letters[at].is_alphanumeric());
    let (digits, start) =
        if is_fraction { (format!(".{digits}"), start - 1) } else { (digits.to_owned(), start) };
    let number = Number::of_digits(&digits)?;
    let is_negative = start.checked_sub(1).is_some_and(is_negative_at)
        || start >= 2 && "$€£¥".contains(letters[start - 1]) && is_negative_at(start - 2);
    Some((if is_negative { number.negated() } else { number }, digits, unit.to_owned()))
}

const SMALL: [&str; 20] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];
const TENS: [&str; 8] = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];

/// A number in words at the beginning, and how many words it has. No things are 0.
fn in_words(word: &dyn Fn(usize) -> Option<String>) -> Option<(i128, usize)> {
    let first = word(0)?;
    if matches!(first.as_str(), "no" | "none" | "nobody" | "nothing") {
        return Some((0, 1));
    }
    if first == "a" && word(1).is_some_and(|next| next == "single") {
        return Some((1, 2));
    }
    let (mut sum, mut last, mut at) = (0, 0, 0);
    while let Some(next) = word(at) {
        let small =
            |word: &str| SMALL.iter().zip(0..).find(|(name, _)| **name == word).map(|(_, number)| number);
        let tens =
            |word: &str| TENS.iter().zip(2..).find(|(name, _)| **name == word).map(|(_, number)| 10 * number);
        let value = match next.split_once('-') {
            Some((one, other)) => tens(one).zip(small(other)).map(|(one, other)| one + other),
            None => small(&next).or_else(|| tens(&next)),
        };
        match (next.as_str(), value) {
            (_, Some(value)) if last == 0 || last % 100 == 0 || last % 10 == 0 && value < 10 => last += value,
            ("hundred", None) if (1..100).contains(&last) => last *= 100,
            ("thousand", None) if last > 0 => (sum, last) = (sum + 1_000 * last, 0),
            ("million", None) if last > 0 => (sum, last) = (sum + 1_000_000 * last, 0),
            ("and", None)
                if last > 0
                    && last % 100 == 0
                    && word(at + 1).is_some_and(|next| small(&next).or(tens(&next)).is_some()) => {}
            _ => break,
        }
        at += 1;
    }
    (at > 0).then_some((sum + last, at))
}
