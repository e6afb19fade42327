//! Questions about the thing that a result is about, where the words of its place say what that is.
//!
//! `details of the user 7` have fields of the user 7, and `flights on Monday` are flights. Other results are asked about as
//! places ([`wording`]).

use super::{
    sql::Sense,
    wording::{self, ALL, Scene, be, field},
};
use crate::stage::scenarios::{
    candidate::{AnswerRule, Wanted},
    words,
};

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
    let place = match subject(place) {
        Some(subject) => Place::Subject(subject),
        None if words::head(place).to_lowercase() == words::plural(thing) => Place::Listing(place),
        None => Place::Other(place),
    };
    let texts = match place {
        _ if matches!(rule, AnswerRule::Measured { .. }) => measured(rule, scene, place),
        Place::Subject(subject) => of_subject(rule, subject, thing),
        Place::Listing(listing) => of_listing(rule, listing, thing),
        Place::Other(_) => Vec::new(),
    };
    if texts.is_empty() { wording::ask(rule, scene) } else { wording::named(rule, &texts) }
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

/// Questions about the numbers or moments of several records.
fn measured(rule: &AnswerRule, scene: &Scene<'_>, place: Place<'_>) -> Vec<String> {
    let AnswerRule::Measured { field: name, key, wanted, .. } = rule else { return Vec::new() };
    let (f, fs, thing, things) = (field(name), fields(name), scene.thing, words::plural(scene.thing));
    // How to find the records, all of them, and one of them behind "which".
    let (look, all, one) = match place {
        Place::Subject(subject) => (
            format!("look up {subject}"),
            format!("the {things} of {subject}"),
            format!("{thing} of {subject}"),
        ),
        Place::Listing(listing) => {
            (format!("find the {listing}"), format!("the {listing}"), format!("of the {listing}"))
        }
        Place::Other(place) => (
            format!("look at the {place}"),
            format!("the {things} in the {place}"),
            format!("{thing} in the {place}"),
        ),
    };
    let is_listing = matches!(place, Place::Listing(_));
    let Some(key) = key else {
        if words::is_plural(&f) {
            return vec![
                format!("How many {f} do {all} have together?"),
                format!("{look} and add up the {f}. What is the sum?"),
            ];
        }
        let add = match is_listing {
            true => format!("add up the {fs} of {all}"),
            false => format!("{look} and add up the {fs} of the {things}"),
        };
        let mut texts = vec![format!("What is the total {f} of {all}?"), format!("{add}. What is the sum?")];
        if let Place::Subject(subject) = place {
            texts.push(format!("For {subject}, how much is the {f} of all {things} together?"));
        }
        return texts;
    };
    let pick = |[most, least]: [&'static str; 2]| if *wanted == Wanted::Least { least } else { most };
    // `raised`
    if scene.of_moments && f.ends_with("ed") && !f.contains(' ') {
        let last = pick(["last", "first"]);
        return match key == name {
            true => vec![format!("When was the {last} of {all} {f}?")],
            false => {
                let k = field(key);
                vec![
                    format!("Which {one} was {f} {last}? Give its {k}."),
                    format!("{look}. Which {thing} was {f} {last}? Give its {k}."),
                ]
            }
        };
    }
    let is_counted = words::is_plural(&f) && !scene.of_moments;
    if is_counted && key != name {
        let k = field(key);
        return vec![
            format!("Which {one} has the {} {f}? Give its {k}.", pick(["most", "fewest"])),
            format!("{look}. Which {thing} has the {} {f}? Give its {k}.", pick(["most", "fewest"])),
        ];
    }
    if is_counted {
        return vec![format!("What is the {} number of {f} among {all}?", pick(["largest", "smallest"]))];
    }
    let most = pick(if scene.of_moments { ["latest", "earliest"] } else { ["highest", "lowest"] });
    if key == name {
        let them = if is_listing { "them".to_owned() } else { format!("the {things}") };
        return vec![
            format!("What is the {most} {f} of {all}?"),
            format!("{look}. What is the {most} {f} among {them}?"),
        ];
    }
    let k = field(key);
    let what = format!("the {k} of the {} with the {most} {f}", if is_listing { "one" } else { thing });
    let mut texts = vec![format!("Which {one} has the {most} {f}? Give its {k}.")];
    texts.extend(match place {
        Place::Subject(subject) => [
            format!("For {subject}, what is {what}?"),
            format!("Look up {subject}. Which {thing} has the {most} {f}? Give its {k}."),
        ],
        Place::Listing(listing) => [
            format!("Of the {listing}, what is {what}?"),
            format!("Find the {listing}. Which one has the {most} {f}? Give its {k}."),
        ],
        Place::Other(place) => [
            format!("Look at the {place}. What is {what}?"),
            format!("Find the {thing} with the {most} {f} in the {place} and report its {k}."),
        ],
    });
    let is_birth = words::has_any(name, &["birth", "dob", "born", "birthday"]);
    // What the record is called that has the most: `most expensive`.
    let called = match scene.of_moments {
        true => Some(["youngest", "oldest"]).filter(|_| is_birth),
        false => Sense::of_name(name).extremes(),
    };
    texts.extend(called.map(|called| format!("Which {one} is the {}? Give its {k}.", pick(called))));
    texts
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
        let measured = |list: &str, key: Option<&str>, wanted: Wanted| AnswerRule::Measured {
            list: list.into(),
            field: "price".into(),
            key: key.map(str::to_owned),
            wanted,
        };
        let lowest = |list: &str| measured(list, Some("flight_number"), Wanted::Least);
        for (rule, place, thing, expected) in [
            (
                of(None, "", "address.city"),
                "details of the user 7",
                "entry",
                "What is the city of the user 7?",
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
                measured("flights", None, Wanted::Total),
                "details of the trip 7",
                "flight",
                "What is the total price of the flights of the trip 7?",
            ),
            (
                measured("flights", Some("price"), Wanted::Most),
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
        let measured = |field: &str, wanted: Wanted| AnswerRule::Measured {
            list: "l".into(),
            field: field.into(),
            key: Some("name".into()),
            wanted,
        };
        let largest = |field: &str| measured(field, Wanted::Most);
        let smallest = |field: &str| measured(field, Wanted::Least);
        for (rule, of_moments, first, last) in [
            (largest("price"), false, "highest price", "is the most expensive?"),
            (smallest("prices.economy"), false, "lowest price for economy", "is the cheapest?"),
            (largest("departure_time"), true, "latest departure time", "has the latest departure time?"),
            (smallest("dob"), true, "earliest date of birth", "is the oldest?"),
            (largest("bags"), false, "has the most bags?", "has the most bags?"),
        ] {
            let asked = ask(&rule, &Scene { place: "details of the trip 7", thing: "leg", of_moments });
            assert!(asked[0].1.contains(first), "{asked:?}");
            assert!(asked.last().unwrap().1.contains(last), "{asked:?}");
        }
    }
}
