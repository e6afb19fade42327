//! Questions about the thing that a result is about, where the words of its place say what that is.
//!
//! `details of user 7` have fields of user 7, and `flights on Monday` are flights. Other results are asked about as
//! places ([`wording`]).

use super::wording::{self, ALL, EACH, Scene, be, done, field};
use crate::{
    answer_rule::{Aggregate, AnswerRule},
    senses::{Sense, is_person, was, was_it},
    words,
};

/// Words for what is written about a thing.
const FORMS: [&str; 8] =
    ["details", "information", "info", "record", "profile", "metadata", "data", "description"];

/// The thing whose details a place is: `user 7` of `details of user 7`.
pub fn subject(place: &str) -> Option<&str> {
    let rest = FORMS.iter().find_map(|form| place.strip_prefix(form))?;
    let rest = [" of ", " about ", " for "].iter().find_map(|link| rest.strip_prefix(link))?;
    words::is_called(rest).then_some(rest)
}

/// Where a value is: `of user 7`, or `in the commit logs`.
pub fn within(place: &str) -> String {
    subject(place).map_or_else(|| format!("in the {place}"), |subject| format!("of {subject}"))
}

/// Ways to ask, by name.
pub fn ask(rule: &AnswerRule, scene: &Scene<'_>) -> Vec<(String, String)> {
    let Scene { place, thing, .. } = *scene;
    let place = match subject(place) {
        Some(subject) => ValueOwner::Subject(subject),
        None if words::head(place).to_lowercase() == words::plural(thing) => ValueOwner::Listing(place),
        None => ValueOwner::Other(place),
    };
    let texts = match place {
        _ if matches!(rule, AnswerRule::Measured { .. }) => measured(rule, scene, place),
        ValueOwner::Subject(subject) => of_subject(rule, subject, scene),
        ValueOwner::Listing(listing) => of_listing(rule, listing, scene),
        ValueOwner::Other(_) => Vec::new(),
    };
    if texts.is_empty() { wording::ask(rule, scene) } else { wording::named(rule, &texts) }
}

/// Where a value is.
#[derive(Clone, Copy)]
enum ValueOwner<'a> {
    /// `user 7`
    Subject(&'a str),
    /// `direct flights from JFK`
    Listing(&'a str),
    /// `commit logs`
    Other(&'a str),
}

/// Whether a field says which one of these things a record is: `id` and `order_id` of an order.
pub fn is_own_id(field: &str, thing: &str) -> bool {
    is_own(field, thing, &["id", "no", "nr", "number", "code"])
}

/// Whether a field is one of these of a thing: `name` and `course_name` of a course.
fn is_own(field: &str, thing: &str, keys: &[&str]) -> bool {
    let (of_field, of_thing) = (words::tokens(field), words::tokens(thing));
    let is_key = |word: &String| keys.contains(&word.as_str());
    of_field.iter().any(is_key) && of_field.iter().all(|word| is_key(word) || of_thing.contains(word))
}

/// One of several things, by one of its fields: `the course Statistics`, `room 001`, `the room with the view sea`.
pub fn named(thing: &str, key: &str, value: &str) -> String {
    let (k, shown) = (field(key), words::shown(value));
    if k == thing || is_own(key, thing, &["name", "title"]) || is_own_id(key, thing) {
        return words::called(thing, value);
    }
    let k = k.strip_prefix(&format!("{thing} ")).unwrap_or(&k);
    format!("the {thing} with the {k} {shown}")
}

/// The same of something: `the event of parcel 30 whose depot is D4`. `tail` is what stands behind it.
pub fn named_of(thing: &str, key: &str, value: &str, tail: &str) -> String {
    let one = named(thing, key, value);
    let with = one.strip_prefix(&format!("the {thing} with the ")).filter(|_| !tail.is_empty());
    match with.and_then(|with| with.strip_suffix(&format!(" {}", words::shown(value)))) {
        Some(key) => format!("the {thing}{tail} whose {key} is {}", words::shown(value)),
        None => format!("{one}{tail}"),
    }
}

/// What stands behind one of the things that a place has: ` of teacher T05` for `courses of teacher T05`.
pub fn behind(thing: &str, place: &str) -> String {
    let listed =
        place.strip_prefix(&words::plural(thing)).filter(|rest| rest.is_empty() || rest.starts_with(' '));
    listed.map_or_else(|| format!(" {}", within(place)), str::to_owned)
}

/// A number of things as a field: what they are, and what was done with them: `nights` and `stayed`.
fn counted(f: &str) -> Option<(&str, &str)> {
    if words::is_plural(f) {
        return Some((f, ""));
    }
    let (many, done) = f.rsplit_once(' ')?;
    (done.ends_with("ed") && words::is_plural(many)).then_some((many, done))
}

/// Questions for a field of one thing.
fn of_one(wanted: &str, one: &str, scene: &Scene<'_>) -> Vec<String> {
    let f = field(wanted);
    // The number of a student is no student number.
    let of_thing = f.split_once(' ').filter(|(thing, _)| {
        let starts = [format!("{thing} "), format!("the {thing} "), format!("the only {thing} ")];
        starts.iter().any(|start| one.starts_with(start))
    });
    let f = of_thing.map_or(f.as_str(), |(_, rest)| rest).to_owned();
    if let Some(done) = done(&f).filter(|_| scene.of_moments) {
        return vec![format!("When {}?", was_it(one, done)), format!("Tell me when {one} {}.", was(done))];
    }
    if let Some(verb) = words::verb_of(wanted).filter(|_| scene.of_moments) {
        return vec![format!("When does {one} {verb}?"), format!("Tell me when {one} {verb}s.")];
    }
    if let Some((many, done)) = counted(&f).filter(|_| scene.is_count) {
        let is_of_person = words::head(one).split(' ').any(is_person);
        return match is_of_person && !done.is_empty() {
            true => vec![format!("How many {many} has {one} {done}?")],
            false if words::is_time(many) => {
                vec![
                    format!("What is the number of {f} of {one}?"),
                    format!("Tell me the number of {f} of {one}."),
                ]
            }
            false => {
                vec![format!("How many {f} does {one} have?"), format!("Tell me how many {f} {one} has.")]
            }
        };
    }
    // The code of the sender is not the sender.
    let of_code = f == "parent" || is_person(&f);
    let f = scene.codes.filter(|_| of_code).map_or(f.clone(), |code| format!("{code} of the {f}"));
    let is_who = is_person(&f) && scene.codes.is_none();
    let be = if is_who { "Who is".to_owned() } else { format!("What {}", be(&f)) };
    vec![
        format!("{be} the {f} of {one}?"),
        format!("Tell me the {f} of {one}."),
        format!("I need the {f} of {one}."),
        format!("Can you look up the {f} of {one}?"),
    ]
}

/// Questions about the numbers or moments of several records.
fn measured(rule: &AnswerRule, scene: &Scene<'_>, place: ValueOwner<'_>) -> Vec<String> {
    let AnswerRule::Measured { field: name, key, wanted, .. } = rule else { return Vec::new() };
    let (f, thing, things) = (field(name), scene.thing, words::plural(scene.thing));
    // How to find the records, all of them, and one of them behind "which".
    let (look, all, one) = match place {
        ValueOwner::Subject(subject) => (
            format!("look up {subject}"),
            format!("the {things} of {subject}"),
            format!("{thing} of {subject}"),
        ),
        ValueOwner::Listing(listing) => {
            (format!("find the {listing}"), format!("the {listing}"), format!("of the {listing}"))
        }
        ValueOwner::Other(place) => (
            format!("look at the {place}"),
            format!("the {things} in the {place}"),
            format!("{thing} in the {place}"),
        ),
    };
    let is_listing = matches!(place, ValueOwner::Listing(_));
    let Some(key) = key else { return added(name, place, &look, &all, &things) };
    let pick = |[most, least]: [&'static str; 2]| if *wanted == Aggregate::Least { least } else { most };
    let k = field(key);
    // What is called like its record names it.
    let give = match k == thing {
        true => String::new(),
        false => format!(" Give {} {k}.", if is_person(thing) { "their" } else { "its" }),
    };
    // `raised`
    if let Some(f) = done(&f).filter(|_| scene.of_moments) {
        let last = pick(["last", "first"]);
        return match key == name {
            true => vec![format!("When {}?", was_it(&format!("the {last} of {all}"), f))],
            false => vec![
                format!("Which {one} {} {last}?{give}", was(f)),
                format!("{look}. Which {thing} {} {last}?{give}", was(f)),
            ],
        };
    }
    let is_counted = words::is_plural(&f) && !scene.of_moments;
    if is_counted && key != name {
        return vec![
            format!("Which {one} has the {} {f}?{give}", pick(["most", "fewest"])),
            format!("{look}. Which {thing} has the {} {f}?{give}", pick(["most", "fewest"])),
        ];
    }
    if is_counted {
        return vec![format!("What is the {} number of {f} among {all}?", pick(["largest", "smallest"]))];
    }
    let is_late = scene.of_moments || words::has_any(name, &["hour", "year"]);
    let most = pick(if is_late { ["latest", "earliest"] } else { ["highest", "lowest"] });
    if key == name {
        let them = if is_listing { "them".to_owned() } else { format!("the {things}") };
        return vec![
            format!("What is the {most} {f} of {all}?"),
            format!("{look}. What is the {most} {f} among {them}?"),
        ];
    }
    let what = format!("the {k} of the {} with the {most} {f}", if is_listing { "one" } else { thing });
    let mut texts = vec![format!("Which {one} has the {most} {f}?{give}")];
    texts.extend(match place {
        _ if k == thing => [
            format!("Which {one} is the one with the {most} {f}?"),
            format!("{look}. Which {thing} has the {most} {f}?"),
        ],
        ValueOwner::Subject(subject) => [
            format!("For {subject}, what is {what}?"),
            format!("Look up {subject}. Which {thing} has the {most} {f}?{give}"),
        ],
        ValueOwner::Listing(listing) => [
            format!("Of the {listing}, what is {what}?"),
            format!("Find the {listing}. Which one has the {most} {f}?{give}"),
        ],
        ValueOwner::Other(place) => [
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
    texts.extend(called.map(|called| format!("Which {one} is the {}?{give}", pick(called))));
    texts
}

/// Questions for the sum of a field's numbers. `look` is how to find the records, `all` is all of them.
fn added(name: &str, place: ValueOwner<'_>, look: &str, all: &str, things: &str) -> Vec<String> {
    let (f, fs) = (field(name), fields(name));
    if words::is_plural(&f) {
        return vec![
            format!("How many {f} do {all} have together?"),
            format!("{look} and add up the {f}. What is the sum?"),
        ];
    }
    let add = match matches!(place, ValueOwner::Listing(_)) {
        true => format!("add up the {fs} of {all}"),
        false => format!("{look} and add up the {fs} of the {things}"),
    };
    let mut texts = vec![format!("What is the total {f} of {all}?"), format!("{add}. What is the sum?")];
    if let ValueOwner::Subject(subject) = place {
        texts.push(format!("For {subject}, how much is the {f} of all {things} together?"));
    }
    texts
}

/// The names of a field's values.
fn fields(name: &str) -> String {
    match field(name) {
        odd if odd.ends_with('"') => format!("values of {odd}"),
        name => {
            let end = [" of ", " for "].iter().filter_map(|link| name.find(link)).min();
            let (noun, rest) = name.split_at(end.unwrap_or(name.len()));
            format!("{}{rest}", words::plural(noun))
        }
    }
}

fn of_subject(rule: &AnswerRule, subject: &str, scene: &Scene<'_>) -> Vec<String> {
    let (thing, things) = (scene.thing, words::plural(scene.thing));
    match rule {
        AnswerRule::Field { key: Some((key, value)), field: wanted, .. } => {
            of_one(wanted, &named_of(thing, key, value, &format!(" of {subject}")), scene)
        }
        // The only record of a list.
        AnswerRule::Field { key: None, field: wanted, list } if !list.is_empty() => {
            of_one(wanted, &format!("the only {thing} of {subject}"), scene)
        }
        AnswerRule::Field { key: None, field: wanted, .. } => of_one(wanted, subject, scene),
        AnswerRule::Count { .. } => vec![
            format!("How many {things} does {subject} have?"),
            format!("Count the {things} of {subject}."),
            format!("Look up {subject}. How many {things} are there?"),
            format!("What is the number of {things} of {subject}?"),
        ],
        AnswerRule::Column { field: wanted, .. }
            if wanted.is_empty() || field(wanted) == thing && scene.codes.is_none() =>
        {
            vec![
                format!("Which {things} does {subject} have? {ALL}"),
                format!("List the {things} of {subject}, separated by commas."),
                format!("Look up {subject}. Which {things} are there? {ALL}"),
            ]
        }
        AnswerRule::Column { field: wanted, .. } => {
            let which = [
                format!("Which {things} does {subject} have?"),
                format!("Look up {subject}. Which {things} are there?"),
            ];
            columns(wanted, &which, &format!("the {things} of {subject}"), scene)
        }
        _ => Vec::new(),
    }
}

/// Questions for a field of several records. `which`: ways to ask for the records. `all`: all of them.
fn columns(wanted: &str, which: &[String], all: &str, scene: &Scene<'_>) -> Vec<String> {
    let codes = scene.codes.filter(|_| is_itself(wanted, scene.thing)).map(words::plural);
    let f = codes.clone().unwrap_or_else(|| fields(wanted));
    if let Some(verb) = words::verb_of(wanted).filter(|_| scene.of_moments) {
        let when = if scene.of_days { "On which dates" } else { "When" };
        let all_of_them = if scene.repeats { EACH } else { ALL };
        return vec![format!("{when} do {all} {verb}? {all_of_them}")];
    }
    match scene.repeats {
        true => vec![
            format!("Which different {f} do {all} have? {EACH}"),
            format!("List the different {f} of {all}, separated by commas."),
        ],
        false if is_name(wanted) || codes.is_some() => which
            .iter()
            .map(|which| format!("{which} Give their {f}, separated by commas."))
            .chain([format!("List the {f} of {all}, separated by commas.")])
            .collect(),
        false => vec![
            format!("Which {f} do {all} have? {ALL}"),
            format!("List the {f} of {all}, separated by commas."),
        ],
    }
}

/// Whether a field is what its record is: nothing, or called like it.
fn is_itself(wanted: &str, thing: &str) -> bool {
    wanted.is_empty() || field(wanted) == thing
}

fn is_name(name: &str) -> bool {
    words::has_any(name, &["name", "title"])
}

fn of_listing(rule: &AnswerRule, listing: &str, scene: &Scene<'_>) -> Vec<String> {
    let thing = scene.thing;
    // The courses of a teacher are what the teacher has.
    let owner = listing.strip_prefix(&format!("{} of ", words::plural(thing)));
    if let (Some(owner), AnswerRule::Count { .. } | AnswerRule::Column { .. }) =
        (owner.filter(|owner| words::is_called(owner)), rule)
    {
        return of_subject(rule, owner, scene);
    }
    match rule {
        AnswerRule::Field { key: Some((key, value)), field: wanted, .. } if is_itself(wanted, thing) => {
            let (k, v) = (field(key), words::shown(value));
            vec![format!("Which of the {listing} has the {k} {v}?")]
        }
        AnswerRule::Field { key: Some((key, value)), field: wanted, .. } => {
            of_one(wanted, &named_of(thing, key, value, &behind(thing, listing)), scene)
        }
        AnswerRule::Field { key: None, field: wanted, .. } => {
            of_one(wanted, &format!("the only {}", words::singular_head(listing)), scene)
        }
        AnswerRule::Count { .. } => vec![
            which_are(listing).replacen("Which", "How many", 1),
            format!("Count the {listing}."),
            format!("Find the {listing}. How many are there?"),
            format!("What is the number of {listing}?"),
        ],
        AnswerRule::Column { field: wanted, .. }
            if wanted.is_empty() || field(wanted) == thing && scene.codes.is_none() =>
        {
            vec![format!("{} {ALL}", which_are(listing)), format!("List the {listing}, separated by commas.")]
        }
        AnswerRule::Column { field: wanted, .. } => {
            columns(wanted, &[which_are(listing)], &format!("the {listing}"), scene)
        }
        _ => Vec::new(),
    }
}

/// `Which tables are there in the database?`
fn which_are(listing: &str) -> String {
    match listing.split_once(" in ") {
        Some((things, place)) if words::head(listing) == things => {
            format!("Which {things} are there in {place}?")
        }
        _ => format!("Which {listing} are there?"),
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
        let measured = |list: &str, key: Option<&str>, wanted: Aggregate| AnswerRule::Measured {
            list: list.into(),
            field: "price".into(),
            key: key.map(str::to_owned),
            wanted,
        };
        let lowest = |list: &str| measured(list, Some("flight_number"), Aggregate::Least);
        for (rule, place, thing, expected) in [
            (of(None, "", "address.city"), "details of user 7", "entry", "What is the city of user 7?"),
            (
                of(Some(("origin", "JFK")), "flights", "price"),
                "details of trip 7",
                "flight",
                "What is the price of the flight of trip 7 whose origin is JFK?",
            ),
            (
                AnswerRule::Count { list: list() },
                "details of trip 7",
                "flight",
                "How many flights does trip 7 have?",
            ),
            (
                lowest("flights"),
                "details of trip 7",
                "flight",
                "Which flight of trip 7 has the lowest price? Give its flight number.",
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
                "details of trip 7",
                "passenger",
                "Which dates of birth do the passengers of trip 7 have? Give all of them, separated by commas.",
            ),
            (
                of(None, "cards", "kind"),
                "details of user 7",
                "card",
                "What is the kind of the only card of user 7?",
            ),
            (of(None, "", "branch"), "commit logs", "entry", "What is the branch in the commit logs?"),
            (
                lowest(""),
                "commit logs",
                "entry",
                "Which entry in the commit logs has the lowest price? Give its flight number.",
            ),
            (
                measured("flights", None, Aggregate::Total),
                "details of trip 7",
                "flight",
                "What is the total price of the flights of trip 7?",
            ),
            (
                measured("flights", Some("price"), Aggregate::Most),
                "details of trip 7",
                "flight",
                "What is the highest price of the flights of trip 7?",
            ),
        ] {
            assert_eq!(ask(&rule, &Scene { place, thing, ..Scene::default() })[0].1, expected);
        }
    }

    #[test]
    fn things_are_named_numbers_are_counted_and_moments_have_a_when() {
        let of = |key: Option<(&str, &str)>, field: &str| AnswerRule::Field {
            list: String::new(),
            key: key.map(|(key, value)| (key.to_owned(), value.to_owned())),
            field: field.into(),
        };
        let statistics = || Some(("title", "Statistics"));
        let column = |field: &str| AnswerRule::Column { list: String::new(), field: field.into() };
        let of_teacher = "courses of teacher T05";
        for (rule, place, expected) in [
            (
                of(statistics(), "room"),
                of_teacher,
                "What is the room of the course Statistics of teacher T05?",
            ),
            (
                of(statistics(), "seats"),
                of_teacher,
                "How many seats does the course Statistics of teacher T05 have?",
            ),
            (of(None, "seats"), of_teacher, "How many seats does the only course of teacher T05 have?"),
            (
                of(Some(("slot", "B")), "room"),
                of_teacher,
                "What is the room of the course of teacher T05 whose slot is B?",
            ),
            (of(None, "nights_stayed"), "details of guest 60", "How many nights has guest 60 stayed?"),
            (
                column("title"),
                of_teacher,
                "Which courses does teacher T05 have? Give their titles, separated by commas.",
            ),
            (
                column("course"),
                of_teacher,
                "Which courses does teacher T05 have? Give all of them, separated by commas.",
            ),
        ] {
            let scene = Scene { place, thing: "course", is_count: true, ..Scene::default() };
            let scene =
                if expected.starts_with("How many") { scene } else { Scene { is_count: false, ..scene } };
            assert_eq!(ask(&rule, &scene)[0].1, expected);
        }
        let scene =
            Scene { place: "details of device 5", thing: "entry", of_moments: true, ..Scene::default() };
        assert_eq!(ask(&of(None, "installed"), &scene)[0].1, "When was device 5 installed?");
        use wording::is_odd;
        assert!(is_odd("installed", false) && !is_odd("installed", true) && !is_odd("room", false));
    }

    #[test]
    fn the_record_with_the_most_is_called_as_people_call_it() {
        let measured = |field: &str, wanted: Aggregate| AnswerRule::Measured {
            list: "l".into(),
            field: field.into(),
            key: Some("name".into()),
            wanted,
        };
        let largest = |field: &str| measured(field, Aggregate::Most);
        let smallest = |field: &str| measured(field, Aggregate::Least);
        for (rule, of_moments, first, last) in [
            (largest("price"), false, "highest price", "is the most expensive?"),
            (smallest("prices.economy"), false, "lowest price for economy", "is the cheapest?"),
            (largest("departure_time"), true, "latest departure time", "has the latest departure time?"),
            (smallest("dob"), true, "earliest date of birth", "is the oldest?"),
            (largest("bags"), false, "has the most bags?", "has the most bags?"),
        ] {
            let asked = ask(
                &rule,
                &Scene { place: "details of trip 7", thing: "leg", of_moments, ..Scene::default() },
            );
            assert!(asked[0].1.contains(first), "{asked:?}");
            assert!(asked.last().unwrap().1.contains(last), "{asked:?}");
        }
    }
}
