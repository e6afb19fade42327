//! What names mean, by words that are common in any data: kinds of values, people, and what was done.

use crate::words;

/// What the values of a column say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sense {
    Price,
    Pay,
    Age,
    Weight,
    Height,
    Length,
    Pieces,
    Place,
    State,
    Kind,
    Year,
    Date,
    /// A number of what the column is called: `minutes`, `seats`.
    Units,
    Other,
}

const SENSES: [(Sense, &[&str]); 10] = [
    (Sense::Price, &["price", "cost", "fee", "fare", "rent"]),
    (Sense::Pay, &["salary", "wage", "pay"]),
    (Sense::Age, &["age"]),
    (Sense::Weight, &["weight"]),
    (Sense::Height, &["height"]),
    (Sense::Length, &["length", "duration"]),
    (Sense::Pieces, &["quantity", "stock", "copies", "units", "pieces", "qty"]),
    (Sense::Place, &["city", "country", "town", "location", "region", "village"]),
    (Sense::State, &["status", "state", "stage", "phase", "condition"]),
    (
        Sense::Kind,
        &[
            "category",
            "type",
            "kind",
            "genre",
            "class",
            "group",
            "department",
            "team",
            "family",
            "species",
            "breed",
            "brand",
            "topic",
            "subject",
            "specialty",
            "speciality",
            "section",
            "division",
        ],
    ),
];

impl Sense {
    /// By the name alone.
    pub fn of_name(name: &str) -> Self {
        let said = words::split(name);
        let says = |known: &[&str], word: &String| {
            known.contains(&word.as_str()) || known.contains(&words::singular(word).as_str())
        };
        let fits = |(_, words): &&(Self, &[&str])| said.iter().any(|word| says(words, word));
        SENSES.iter().find(fits).map_or(Self::Other, |(sense, _)| *sense)
    }

    /// What the row with the largest value is called, and that with the smallest.
    pub fn extremes(self) -> Option<[&'static str; 2]> {
        match self {
            Self::Price => Some(["most expensive", "cheapest"]),
            Self::Pay => Some(["best paid", "worst paid"]),
            Self::Age => Some(["oldest", "youngest"]),
            Self::Weight => Some(["heaviest", "lightest"]),
            Self::Height => Some(["tallest", "shortest"]),
            Self::Length => Some(["longest", "shortest"]),
            Self::Date
            | Self::Year
            | Self::Pieces
            | Self::Units
            | Self::Place
            | Self::State
            | Self::Kind
            | Self::Other => None,
        }
    }
}

/// Words for people, who have no article and no "it".
const PERSONS: [&str; 32] = [
    "customer",
    "client",
    "user",
    "member",
    "person",
    "employee",
    "worker",
    "colleague",
    "student",
    "pupil",
    "teacher",
    "author",
    "artist",
    "patient",
    "doctor",
    "nurse",
    "physician",
    "driver",
    "player",
    "manager",
    "guest",
    "passenger",
    "contact",
    "owner",
    "staff",
    "buyer",
    "seller",
    "sender",
    "agent",
    "holder",
    "recipient",
    "lead",
];

pub fn is_person(thing: &str) -> bool {
    PERSONS.contains(&last_word(thing))
}

pub fn last_word(thing: &str) -> &str {
    thing.rsplit(' ').next().unwrap_or(thing)
}

/// A noun with its article.
pub fn a(noun: &str) -> String {
    let article = if noun.starts_with(['a', 'e', 'i', 'o']) { "an" } else { "a" };
    format!("{article} {noun}")
}

/// Past participles that do not end in "ed" or "wn".
const PARTICIPLES: [&str; 12] =
    ["held", "made", "sent", "paid", "built", "sold", "bought", "taken", "given", "born", "written", "seen"];

/// Names of the day on which somebody is born.
const BIRTHS: [&str; 4] = ["dob", "birth", "birthday", "birthdate"];

/// What was done, by a column's name: `held` of `held_on`, `hired`, `born`.
pub fn participle(column: &str) -> Option<String> {
    if words::split(column).iter().any(|word| BIRTHS.contains(&word.as_str())) {
        return Some("born".to_owned());
    }
    let is_participle = |word: &String| {
        PARTICIPLES.contains(&word.as_str())
            || word.len() > 4 && (word.ends_with("ed") || word.ends_with("wn"))
    };
    words::split(column).into_iter().find(is_participle)
}

/// What people and things do themselves, by the participle.
const DOES: [(&str, &str); 8] = [
    ("joined", "join"),
    ("arrived", "arrive"),
    ("departed", "depart"),
    ("started", "start"),
    ("ended", "end"),
    ("expired", "expire"),
    ("retired", "retire"),
    ("graduated", "graduate"),
];

fn does(done: &str) -> Option<&'static str> {
    DOES.iter().find(|(past, _)| *past == done).map(|(_, plain)| *plain)
}

/// `was the account opened`, `did the driver join`
pub fn was_it(who: &str, done: &str) -> String {
    match does(done) {
        Some(plain) => format!("did {who} {plain}"),
        None => format!("was {who} {done}"),
    }
}

/// What one did, or what was done with it: `joined`, `was opened`.
pub fn was(done: &str) -> String {
    if does(done).is_some() { done.to_owned() } else { format!("was {done}") }
}

/// What several did, or what was done with them: `joined`, `were opened`.
pub fn were(done: &str) -> String {
    if does(done).is_some() { done.to_owned() } else { format!("were {done}") }
}

/// The same behind a noun: `that joined`, `opened`.
pub fn that_were(done: &str) -> String {
    if does(done).is_some() { format!("that {done}") } else { done.to_owned() }
}

/// Adjectives that do not end like one.
const ADJECTIVES: [&str; 16] = [
    "open", "new", "private", "free", "full", "ready", "late", "urgent", "hidden", "complete", "online",
    "secret", "done", "void", "vip", "remote",
];

/// Whether a word says how something is: `active`, `paid`.
pub fn is_adjective(word: &str) -> bool {
    let ends = ["able", "ible", "ive", "al", "ent", "ant", "ic", "ful", "ous", "ary", "ed", "wn", "less"];
    PARTICIPLES.contains(&word)
        || ADJECTIVES.contains(&word)
        || word.len() > 4 && ends.iter().any(|end| word.ends_with(end))
}
