//! What a column means and how it is called, by its name and its values, and by words that are common in any database.

use std::collections::BTreeSet;

use super::{Table, is_flag};
use crate::{
    senses::{Sense, is_adjective, is_person, last_word, participle},
    words,
};

/// Words behind what is counted.
const LEFT: [&str; 3] = ["left", "remaining", "used"];

pub(super) type Event = (&'static str, &'static str, &'static str, &'static str, &'static str);

/// What people do in a row of such a table: past and plain form, and what one does with the row itself.
const EVENTS: [Event; 11] = [
    ("order", "ordered", "order", "placed", "place"),
    ("purchase", "bought", "buy", "made", "make"),
    ("sale", "bought", "buy", "made", "make"),
    ("loan", "borrowed", "borrow", "taken", "take"),
    ("rental", "rented", "rent", "made", "make"),
    ("booking", "booked", "book", "made", "make"),
    ("reservation", "reserved", "reserve", "made", "make"),
    ("review", "reviewed", "review", "written", "write"),
    ("payment", "paid for", "pay for", "made", "make"),
    ("visit", "visited", "visit", "made", "make"),
    ("appointment", "booked", "book", "made", "make"),
];

impl Sense {
    pub(super) fn of(table: &Table<'_>, column: &str) -> Self {
        let values = table.distinct(column);
        if is_dates(&values) {
            return Self::Date;
        }
        let is_year = |value: &&str| value.parse::<i64>().is_ok_and(|year| (1800..2200).contains(&year));
        let said = words::split(column);
        let has_unit = said.len() > 1
            && words::UNITS.iter().any(|(unit, _)| said.last().is_some_and(|last| last == unit));
        let is_many = |word: &String| words::singular(word) != *word || words::is_uncountable(word);
        // `uses_left`
        let counted = match &*said {
            [rest @ .., last] if LEFT.contains(&last.as_str()) => rest.last(),
            all => all.last(),
        };
        let is_plural = !has_unit && counted.is_some_and(is_many);
        let are_numbers = table.numbers.contains(column);
        match Self::of_name(column) {
            Self::Other if is_plural && are_numbers => Self::Units,
            Self::Other if are_numbers && !values.is_empty() && values.iter().all(is_year) => Self::Year,
            sense => sense,
        }
    }
}

/// Whether a value starts like a date.
pub fn is_date(value: &str) -> bool {
    value.len() >= 10
        && value.char_indices().take(10).all(|(at, letter)| match at {
            4 | 7 => letter == '-',
            _ => letter.is_ascii_digit(),
        })
}

/// Whether all of these are dates, perhaps with a time, and their order as texts is that in time: `2025-03-01`.
fn is_dates(values: &BTreeSet<&str>) -> bool {
    let shape = |value: &str| -> String {
        value.chars().map(|letter| if letter.is_ascii_digit() { '9' } else { letter }).collect()
    };
    let Some(first) = values.first().map(|value| shape(value)) else { return false };
    // The hours of other time zones are others.
    let zone = |value: &&str| value.get(19..).map(str::to_owned);
    let is_local = first.len() <= 23 || values.iter().map(zone).collect::<BTreeSet<_>>().len() == 1;
    first.starts_with("9999-99-99")
        && first.len() <= 32
        && is_local
        && values.iter().all(|value| shape(value) == first)
}

/// Words that end a name which is no noun: `seen_by`.
pub const PREPOSITIONS: [&str; 9] = ["by", "to", "at", "in", "on", "for", "of", "from", "with"];

/// What abbreviations in the names of columns stand for.
const ABBREVIATIONS: [(&str, &str); 14] = [
    ("percent", "percentage"),
    ("pct", "percentage"),
    ("no", "number"),
    ("nr", "number"),
    ("num", "number"),
    ("qty", "quantity"),
    ("amt", "amount"),
    ("dob", "date of birth"),
    ("dept", "department"),
    ("addr", "address"),
    ("desc", "description"),
    ("descr", "description"),
    ("tel", "telephone number"),
    ("cat", "category"),
];

/// What the first of several words stands for: `from_zone`, `per_head`.
const FIRST: [(&str, &str); 3] = [("from", "start"), ("to", "end"), ("per", "price per")];

/// Words for a weight, where its name has the unit alone: `gross_kg`.
const WEIGHTS: [&str; 3] = ["gross", "net", "tare"];

/// A column as a noun: `date held` for `held_on`, `year hired`, `order number` for the key `ord_no`. `since` is no noun.
pub fn noun(table: &Table<'_>, column: &str) -> String {
    let mut names = words::split(column);
    if let [first, _, ..] = &mut *names
        && let Some((_, full)) = FIRST.iter().find(|(word, _)| word == first)
    {
        *first = (*full).to_owned();
    }
    if names.last().is_some_and(|last| last == "phone") {
        names.push("number".to_owned());
    }
    // `departs`
    if let [only] = &*names {
        let said = words::spoken_field(only);
        names = if said.starts_with('"') { names } else { words::split(&said) };
    }
    let full = |name: &String| {
        let found = ABBREVIATIONS.iter().find(|(short, _)| short == name);
        found.map_or_else(|| name.clone(), |(_, full)| (*full).to_owned())
    };
    if let ([_, last], true) = (&*names, table.id() == Some(column)) {
        return format!("{} {}", table.thing, full(last));
    }
    let moment = match Sense::of(table, column) {
        Sense::Date => Some("date"),
        Sense::Year => Some("year"),
        _ => None,
    };
    if let Some(moment) = moment {
        if participle(column).is_some_and(|done| done == "born") {
            return format!("{moment} of birth");
        }
        if participle(column).is_some_and(|done| repeats(&done, &table.thing)) {
            return moment.to_owned();
        }
        if names == ["since"] {
            let since = if table.is_of_people() { "joining" } else { "starting" };
            return format!("{since} {moment}");
        }
        // `due_on`, `valid_until`
        if let [rest @ .., last] = &*names
            && !rest.is_empty()
            && participle(column).is_none()
        {
            let rest = rest.join(" ");
            match last.as_str() {
                "until" | "till" if rest == "valid" => return format!("expiry {moment}"),
                "until" | "till" => return format!("{rest} until {moment}"),
                last if PREPOSITIONS.contains(&last) => return format!("{rest} {moment}"),
                _ => {}
            }
        }
        let mut kept = names.iter().filter(|name| !PREPOSITIONS.contains(&name.as_str()));
        if let (Some(only), None) = (kept.next(), kept.next())
            && participle(column).is_some_and(|done| done == *only)
        {
            return format!("{moment} {only}");
        }
    }
    // `weight_kg`
    if let [rest @ .., unit] = &*names
        && let Some((_, unit)) =
            words::UNITS.iter().find(|(short, _)| short == unit).filter(|_| !rest.is_empty())
    {
        let is_weight =
            WEIGHTS.contains(&rest[rest.len() - 1].as_str()) && ["kg", "g", "mg", "lb"].contains(unit);
        let weight = if is_weight { " weight" } else { "" };
        return format!("{}{weight} in {unit}", rest.iter().map(full).collect::<Vec<_>>().join(" "));
    }
    let said = names.iter().map(full).collect::<Vec<_>>().join(" ");
    let is_number = Sense::of(table, column) == Sense::Pieces && table.numbers.contains(column);
    if is_number && words::is_plural(&said) { format!("number of {said}") } else { said }
}

/// Whether a column's name says when something was done, or by whom: `moved_at`, `closed_by`. Its numbers count nothing.
pub fn is_moment_name(column: &str) -> bool {
    let said = words::split(column);
    said.last().is_some_and(|last| PREPOSITIONS.contains(&last.as_str()) || last == "since")
        || participle(column).is_some() && said.len() == 1
}

/// Whether a column has numbers where its name says when something was done, or by whom, or how often.
pub fn is_odd_moment(table: &Table<'_>, column: &str) -> bool {
    // `times_reopened` counts something, and is called like nothing.
    let is_count = matches!(&*words::split(column), [.., many, done]
        if done.ends_with("ed") && !LEFT.contains(&done.as_str()) && words::singular(many) != *many);
    table.numbers.contains(column)
        && (is_count || is_moment_name(column) && Sense::of(table, column) != Sense::Year)
}

/// Whether a yes or no has a name that says neither what a row is nor what it has: `newsletter`.
pub fn is_odd_flag(table: &Table<'_>, column: &str) -> bool {
    let said = words::split(column);
    let has_verb = said.len() > 1 && ["is", "has", "was", "are"].contains(&said[0].as_str());
    // Yes, no or unknown is no kind of thing.
    let values: BTreeSet<String> = table.distinct(column).into_iter().map(str::to_lowercase).collect();
    let is_answer = values.len() > 2 && ["yes", "no"].iter().all(|answer| values.contains(*answer));
    is_answer || is_flag(table, column) && !has_verb && !said.iter().any(|word| is_adjective(word))
}

pub(super) fn event(thing: &str) -> Option<&'static Event> {
    EVENTS.iter().find(|event| event.0 == last_word(thing))
}

impl Table<'_> {
    /// Whether rows are things with a price or a stock.
    pub(super) fn is_ware(&self) -> bool {
        self.quantities().any(|(column, _)| matches!(Sense::of(self, column), Sense::Price | Sense::Pieces))
    }
}

/// Whether a column holds names.
pub fn is_name(column: &str) -> bool {
    words::has_any(column, &["name", "title"])
}

/// Whether a column of days says when something was done.
pub fn is_done_on(table: &Table<'_>, column: &str) -> bool {
    done(&table.thing, column).is_some() && table.values(column).iter().all(|day| day.len() == 10)
}

/// What was done with a row at the time in this column.
pub(super) fn done(thing: &str, column: &str) -> Option<String> {
    if words::split(column) == ["since"] && is_person(thing) {
        return Some("joined".to_owned());
    }
    let done = participle(column).filter(|done| !repeats(done, thing));
    done.or_else(|| event(thing).map(|(.., placed, _)| (*placed).to_owned()))
}

/// Whether a participle says no more than the thing: a delivery is delivered.
fn repeats(done: &str, thing: &str) -> bool {
    let stem: String = last_word(thing).chars().take(5).collect();
    stem.chars().count() > 3 && done.starts_with(&stem)
}

/// Whether a column is the date of a thing itself: the `day` of an absence.
pub fn is_own_date(thing: &str, column: &str) -> bool {
    done(thing, column).is_none()
        && (["day", "date"].contains(&column.to_lowercase().as_str())
            || participle(column).is_some_and(|done| repeats(&done, thing)))
}
