//! Questions about the thing that a result is about, where the words of its place say what that is.
//!
//! `details of the user 7` have fields of the user 7, and `flights on Monday` are flights. Other results are asked about as
//! places ([`wording`]).

use super::{
    sql::Sense,
    wording::{self, Scene},
    words,
};
use crate::stage::scenarios::candidate::AnswerRule;

const ALL: &str = "Give all of them, separated by commas.";
/// Words for what is written about a thing.
const FORMS: [&str; 8] =
    ["details", "information", "info", "record", "profile", "metadata", "data", "description"];

/// The thing whose details a place is: `the user 7` of `details of the user 7`.
pub fn subject(place: &str) -> Option<&str> {
    let rest = FORMS.iter().find_map(|form| place.strip_prefix(form))?;
    let rest = [" of ", " about ", " for "].iter().find_map(|link| rest.strip_prefix(link))?;
    rest.starts_with("the ").then_some(rest)
}

/// Where a value is: `of the user 7`, or `in the commit logs`.
pub fn within(place: &str) -> String {
    subject(place).map_or_else(|| format!("in the {place}"), |subject| format!("of {subject}"))
}

/// Ways to ask, by name.
pub fn ask(rule: &AnswerRule, scene: &Scene<'_>) -> Vec<(String, String)> {
    let Scene { place, thing, .. } = scene;
    let is_listing = |place: &&&str| {
        let head = words::head(place);
        head.to_lowercase() == words::plural(thing)
    };
    let place = match (subject(place), Some(place).filter(is_listing)) {
        (Some(subject), _) => Place::Subject(subject),
        (None, Some(listing)) => Place::Listing(listing),
        (None, None) => Place::Other(place),
    };
    let texts = match (Compared::of(rule, scene), place) {
        (Some(compared), place) => compared.texts(place, thing),
        (None, Place::Subject(subject)) => of_subject(rule, subject, thing),
        (None, Place::Listing(listing)) => of_listing(rule, listing, thing),
        (None, Place::Other(_)) => Vec::new(),
    };
    if texts.is_empty() {
        return wording::ask(rule, scene);
    }
    let name =
        |(index, text): (usize, String)| (format!("{} {}", rule.kind(), index + 1), wording::sentence(&text));
    texts.into_iter().enumerate().map(name).collect()
}

/// Where a value is.
#[derive(Clone, Copy)]
enum Place<'a> {
    /// `the user 7`
    Subject(&'a str),
    /// `direct flights from JFK`
    Listing(&'a str),
    /// `commit logs`
    Other(&'a str),
}

/// A question about the numbers or moments of several records.
struct Compared {
    field: String,
    fields: String,
    asked: Asked,
}

enum Asked {
    Total,
    /// `highest`, and what the record is called that has it: `most expensive`.
    Value(&'static str),
    Record {
        most: &'static str,
        is: Option<&'static str>,
        key: String,
    },
}

impl Compared {
    fn of(rule: &AnswerRule, scene: &Scene<'_>) -> Option<Self> {
        let (wanted, key, is_most) = match rule {
            AnswerRule::Largest { field, key, .. } => (field, Some(key), true),
            AnswerRule::Smallest { field, key, .. } => (field, Some(key), false),
            AnswerRule::Total { field, .. } => (field, None, true),
            _ => return None,
        };
        let pick = |[most, least]: [&'static str; 2]| if is_most { most } else { least };
        let most = pick(if scene.of_moments { ["latest", "earliest"] } else { ["highest", "lowest"] });
        let tokens = words::tokens(wanted);
        let is_birth = scene.of_moments
            && ["birth", "dob", "born", "birthday"].iter().any(|word| tokens.contains(*word));
        let is = match is_birth {
            true => Some(pick(["youngest", "oldest"])),
            false => Sense::of_name(wanted).extremes().filter(|_| !scene.of_moments).map(pick),
        };
        let asked = match key {
            None => Asked::Total,
            Some(key) if key == wanted => Asked::Value(most),
            Some(key) => Asked::Record { most, is, key: field(key) },
        };
        Some(Self { field: field(wanted), fields: fields(wanted), asked })
    }

    fn texts(&self, place: Place<'_>, thing: &str) -> Vec<String> {
        let (Self { field: f, fields: fs, asked }, things) = (self, words::plural(thing));
        match (asked, place) {
            (Asked::Total, Place::Subject(subject)) => vec![
                format!("What is the total {f} of the {things} of {subject}?"),
                format!("Look up {subject} and add up the {fs} of the {things}. What is the sum?"),
                format!("For {subject}, how much is the {f} of all {things} together?"),
            ],
            (Asked::Total, Place::Listing(listing)) => vec![
                format!("What is the total {f} of the {listing}?"),
                format!("Add up the {fs} of the {listing}. What is the sum?"),
            ],
            (Asked::Total, Place::Other(place)) => vec![
                format!("What is the total {f} of the {things} in the {place}?"),
                format!("Look at the {place} and add up the {fs} of the {things}. What is the sum?"),
            ],
            (Asked::Value(most), Place::Subject(subject)) => vec![
                format!("What is the {most} {f} of the {things} of {subject}?"),
                format!("Look up {subject}. What is the {most} {f} among the {things}?"),
            ],
            (Asked::Value(most), Place::Listing(listing)) => vec![
                format!("What is the {most} {f} of the {listing}?"),
                format!("Find the {listing}. What is the {most} {f} among them?"),
            ],
            (Asked::Value(most), Place::Other(place)) => vec![
                format!("What is the {most} {f} of the {things} in the {place}?"),
                format!("Look at the {place}. What is the {most} {f} among the {things}?"),
            ],
            (Asked::Record { most, is, key: k }, Place::Subject(subject)) => {
                let is = is.map(|is| format!("Which {thing} of {subject} is the {is}? Give its {k}."));
                let others = [
                    format!("Which {thing} of {subject} has the {most} {f}? Give its {k}."),
                    format!("For {subject}, what is the {k} of the {thing} with the {most} {f}?"),
                    format!("Look up {subject}. Which {thing} has the {most} {f}? Give its {k}."),
                ];
                others.into_iter().chain(is).collect()
            }
            (Asked::Record { most, is, key: k }, Place::Listing(listing)) => {
                let is = is.map(|is| format!("Which of the {listing} is the {is}? Give its {k}."));
                let others = [
                    format!("Which of the {listing} has the {most} {f}? Give its {k}."),
                    format!("Of the {listing}, what is the {k} of the one with the {most} {f}?"),
                    format!("Find the {listing}. Which one has the {most} {f}? Give its {k}."),
                ];
                others.into_iter().chain(is).collect()
            }
            (Asked::Record { most, is, key: k }, Place::Other(place)) => {
                let is = is.map(|is| format!("Which {thing} in the {place} is the {is}? Give its {k}."));
                let others = [
                    format!("Which {thing} in the {place} has the {most} {f}? Give its {k}."),
                    format!("Look at the {place}. What is the {k} of the {thing} with the {most} {f}?"),
                    format!("Find the {thing} with the {most} {f} in the {place} and report its {k}."),
                ];
                others.into_iter().chain(is).collect()
            }
        }
    }
}

fn field(name: &str) -> String {
    if name.is_empty() { "name".to_owned() } else { words::spoken_field(name) }
}

fn be(words: &str) -> &'static str {
    if words::is_plural(words) { "are" } else { "is" }
}

/// The names of a field's values.
fn fields(name: &str) -> String {
    match field(name) {
        odd if odd.ends_with('"') || odd.ends_with("ed") => format!("values of {odd}"),
        name => {
            let end = [" of ", " for "].iter().filter_map(|link| name.find(link)).min();
            let (noun, rest) = name.split_at(end.unwrap_or(name.len()));
            format!("{}{rest}", words::plural(noun))
        }
    }
}

fn of_subject(rule: &AnswerRule, subject: &str, thing: &str) -> Vec<String> {
    let things = words::plural(thing);
    match rule {
        AnswerRule::Field { key: Some((key, value)), field: wanted, .. } => {
            let (f, k, v) = (field(wanted), field(key), words::shown(value));
            let be = be(&f);
            vec![
                format!("For {subject}, what {be} the {f} of the {thing} with the {k} {v}?"),
                format!("For {subject}, tell me the {f} of the {thing} whose {k} is {v}."),
                format!("Look up {subject}. What {be} the {f} of the {thing} with the {k} {v}?"),
                format!("I need the {f} of the {thing} whose {k} is {v}, for {subject}."),
            ]
        }
        AnswerRule::Field { key: None, field: wanted, list } => {
            let f = field(wanted);
            let be = be(&f);
            // The only record of a list.
            let only = if list.is_empty() { String::new() } else { format!(" of the only {thing}") };
            vec![
                format!("What {be} the {f}{only} of {subject}?"),
                format!("Tell me the {f}{only} of {subject}."),
                format!("Look up {subject}. What {be} the {f}{only}?"),
                format!("I need the {f}{only} of {subject}."),
                format!("Find the {f}{only} of {subject}."),
            ]
        }
        AnswerRule::Count { .. } => vec![
            format!("How many {things} does {subject} have?"),
            format!("Count the {things} of {subject}."),
            format!("Look up {subject}. How many {things} are there?"),
            format!("What is the number of {things} of {subject}?"),
        ],
        AnswerRule::Column { field: wanted, .. } if wanted.is_empty() => vec![
            format!("Which {things} does {subject} have? {ALL}"),
            format!("List the {things} of {subject}. {ALL}"),
            format!("Look up {subject}. Which {things} are there? {ALL}"),
        ],
        AnswerRule::Column { field: wanted, .. } => {
            let f = fields(wanted);
            vec![
                format!("Which {f} do the {things} of {subject} have? {ALL}"),
                format!("List the {f} of the {things} of {subject}. {ALL}"),
                format!("For {subject}, report the {f} of the {things}, each once. {ALL}"),
            ]
        }
        _ => Vec::new(),
    }
}

fn of_listing(rule: &AnswerRule, listing: &str, thing: &str) -> Vec<String> {
    match rule {
        AnswerRule::Field { key: Some((key, value)), field: wanted, .. } => {
            let (f, k, v) = (field(wanted), field(key), words::shown(value));
            let be = be(&f);
            vec![
                format!("Of the {listing}, what {be} the {f} of the one whose {k} is {v}?"),
                format!("Look at the {listing}. What {be} the {f} of the {thing} with the {k} {v}?"),
                format!("Of the {listing}, take the one with the {k} {v} and tell me its {f}."),
            ]
        }
        AnswerRule::Field { key: None, field: wanted, .. } => {
            let f = field(wanted);
            let be = be(&f);
            vec![
                format!("What {be} the {f} of the only {}?", words::singular_head(listing)),
                format!("Find the only {}. What {be} its {f}?", words::singular_head(listing)),
            ]
        }
        AnswerRule::Count { .. } => vec![
            format!("How many {listing} are there?"),
            format!("Count the {listing}."),
            format!("Find the {listing}. How many are there?"),
            format!("What is the number of {listing}?"),
        ],
        AnswerRule::Column { field: wanted, .. } if wanted.is_empty() => {
            vec![format!("Which {listing} are there? {ALL}"), format!("List the {listing}. {ALL}")]
        }
        AnswerRule::Column { field: wanted, .. } => {
            let f = fields(wanted);
            vec![
                format!("Which {f} do the {listing} have? {ALL}"),
                format!("List the {f} of the {listing}, each once. {ALL}"),
            ]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_about_the_thing_and_not_about_its_details() {
        let of = |key: Option<(&str, &str)>, list: &str, field: &str| AnswerRule::Field {
            list: list.into(),
            key: key.map(|(key, value)| (key.to_owned(), value.to_owned())),
            field: field.into(),
        };
        let list = || "flights".to_owned();
        let lowest = |list: &str| AnswerRule::Smallest {
            list: list.into(),
            field: "price".into(),
            key: "flight_number".into(),
        };
        for (rule, place, thing, expected) in [
            (
                of(None, "", "address.city"),
                "details of the user 7",
                "entry",
                "What is the address city of the user 7?",
            ),
            (
                of(Some(("origin", "JFK")), "flights", "price"),
                "details of the trip 7",
                "flight",
                "For the trip 7, what is the price of the flight with the origin JFK?",
            ),
            (
                AnswerRule::Count { list: list() },
                "details of the trip 7",
                "flight",
                "How many flights does the trip 7 have?",
            ),
            (
                lowest("flights"),
                "details of the trip 7",
                "flight",
                "Which flight of the trip 7 has the lowest price? Give its flight number.",
            ),
            (
                lowest(""),
                "direct flights on 2024-05-01 from JFK",
                "direct flight",
                "Which of the direct flights on 2024-05-01 from JFK has the lowest price? Give its flight number.",
            ),
            (
                of(None, "", "price"),
                "direct flights from JFK",
                "direct flight",
                "What is the price of the only direct flight from JFK?",
            ),
            (
                AnswerRule::Column { list: "passengers".into(), field: "dob".into() },
                "details of the trip 7",
                "passenger",
                "Which dates of birth do the passengers of the trip 7 have? Give all of them, separated by commas.",
            ),
            (
                of(None, "cards", "kind"),
                "details of the user 7",
                "card",
                "What is the kind of the only card of the user 7?",
            ),
            (of(None, "", "branch"), "commit logs", "entry", "What is the branch in the commit logs?"),
            (
                lowest(""),
                "commit logs",
                "entry",
                "Which entry in the commit logs has the lowest price? Give its flight number.",
            ),
            (
                AnswerRule::Total { list: list(), field: "price".into() },
                "details of the trip 7",
                "flight",
                "What is the total price of the flights of the trip 7?",
            ),
            (
                AnswerRule::Largest { list: list(), field: "price".into(), key: "price".into() },
                "details of the trip 7",
                "flight",
                "What is the highest price of the flights of the trip 7?",
            ),
        ] {
            assert_eq!(ask(&rule, &Scene { place, thing, of_moments: false })[0].1, expected);
        }
    }

    #[test]
    fn the_record_with_the_most_is_called_as_people_call_it() {
        let largest =
            |field: &str| AnswerRule::Largest { list: "l".into(), field: field.into(), key: "name".into() };
        let smallest =
            |field: &str| AnswerRule::Smallest { list: "l".into(), field: field.into(), key: "name".into() };
        for (rule, of_moments, first, last) in [
            (largest("price"), false, "highest price", "is the most expensive?"),
            (smallest("prices.economy"), false, "lowest price for economy", "is the cheapest?"),
            (largest("departure_time"), true, "latest departure time", "has the latest departure time?"),
            (smallest("dob"), true, "earliest date of birth", "is the oldest?"),
            (largest("bags"), false, "highest bags", "has the highest bags?"),
        ] {
            let asked = ask(&rule, &Scene { place: "details of the trip 7", thing: "leg", of_moments });
            assert!(asked[0].1.contains(first), "{asked:?}");
            assert!(asked.last().unwrap().1.contains(last), "{asked:?}");
        }
    }
}
