//! How people ask about tables: several wordings of each question, and several names of what it is about.
//!
//! A small grammar. A column that says nothing ([`Sense`]) is asked about by its name.

use chrono::Month;

use super::{
    Reference, Table,
    columns::{Event, done, event, is_date, is_name, is_own_date, noun},
    is_flag,
};
use crate::{
    senses::{Sense, a, is_adjective, is_person, last_word, participle, that_were, was, was_it, were},
    words,
};

/// A row by its key: `the product "Desk Lamp"`, `order number 17`.
pub fn row(table: &Table<'_>, thing: &str, key: &str, value: &str) -> Vec<String> {
    let shown = words::shown(value);
    if is_name(key) {
        let mut names = named(thing, value);
        if words::tokens(key).contains("title") {
            names.push(shown);
        } else if is_person(thing) || table.is_of_people() {
            names.push(value.to_owned());
        } else if value.contains(' ') && !value.to_lowercase().starts_with("the ") && table.is_ware() {
            names.push(format!("the {value}"));
        }
        return names;
    }
    let k = noun(table, key);
    let k = k.strip_prefix(&format!("{thing} ")).unwrap_or(&k);
    let mut names = vec![format!("{thing} {shown}")];
    // The bin with the bin A-03 is bin A-03.
    names.extend((k != thing).then(|| format!("the {thing} with the {k} {shown}")));
    if value.bytes().all(|byte| byte.is_ascii_digit()) {
        names.extend(["number ", "#", "no. "].map(|number| format!("{thing} {number}{value}")));
    }
    names
}

/// A row by its name, with what it is: `the product "Desk Lamp"`, `line 10`.
fn named(thing: &str, value: &str) -> Vec<String> {
    let called = words::called(thing, value);
    match value.starts_with(char::is_uppercase) && called.starts_with("the ") {
        true => vec![called, format!("the {thing} {value}")],
        false => vec![called],
    }
}

/// The same for a row that others have: `the currency euro`.
pub fn row_that_is_had(reference: &Reference<'_, '_>, name: &str, value: &str) -> Vec<String> {
    match is_had(reference) {
        true => named(&reference.role, value),
        false => row(reference.to, &reference.role, name, value),
    }
}

/// Whether rows have what they refer to, rather than belong to it: a transfer has a currency, a pupil belongs to a class.
fn is_had(reference: &Reference<'_, '_>) -> bool {
    let is_of =
        reference.to.is_of_people() || reference.joins.last().is_some_and(|join| join.from.is_of_people());
    !is_of && event(&reference.joins[0].from.thing).is_none()
}

/// Things and what they refer to: `orders of Ada`, `transfers with the currency euro`.
pub fn things_of(things: &str, reference: &Reference<'_, '_>, row: &str) -> String {
    format!("{things} {} {row}", if is_had(reference) { "with" } else { "of" })
}

/// The rows that share a value: `open orders`, `customers from Oslo`.
pub fn rows(table: &Table<'_>, thing: &str, column: &str, value: &str) -> Vec<String> {
    let (things, c, v) = (words::plural(thing), noun(table, column), words::shown(value));
    if is_flag(table, column) {
        return flagged(&things, column, value);
    }
    if let (Some(done), Sense::Date) = (done(thing, column), Sense::of(table, column)) {
        return vec![
            format!("{things} {} on {value}", that_were(&done)),
            format!("{things} that {} on {value}", were(&done)),
        ];
    }
    let mut sets = vec![format!("{things} with the {c} {v}")];
    match Sense::of(table, column) {
        Sense::State => {
            sets.extend([format!("{value} {things}"), format!("{things} that are {value}")]);
            sets.push(format!("{value} {things}"));
        }
        Sense::Kind => {
            sets.extend((!c.contains(' ')).then(|| format!("{things} {} the {c} {v}", within(&c))));
            sets.extend(is_in_front(column, value).then(|| format!("{value} {things}")));
        }
        Sense::Place => {
            sets.extend([format!("{things} from {value}"), format!("{things} in {value}")]);
            sets.push(match is_person(thing) {
                true if is_lived_in(column) => format!("{things} who live in {value}"),
                true => format!("{things} from {value}"),
                false => format!("{value} {things}"),
            });
        }
        Sense::Date => sets.extend([format!("{things} on {value}"), format!("{things} of {value}")]),
        Sense::Year => sets.extend([format!("{things} from {value}"), format!("{things} of {value}")]),
        _ if is_in_front(column, value) => sets.push(format!("{value} {things}")),
        _ => {}
    }
    if is_other_table(table, value) {
        sets.retain(|set| !set.starts_with(value));
    }
    sets
}

/// What a yes or no says, and whether one has it rather than is it: `active`, `insurance` of `has_insurance`.
fn flag(column: &str) -> (String, bool) {
    let mut names = words::split(column);
    let verb = names.first().cloned().unwrap_or_default();
    if names.len() > 1 && ["is", "has", "was", "are"].contains(&verb.as_str()) {
        names.remove(0);
    }
    (names.join(" "), verb == "has")
}

fn is_yes(value: &str) -> bool {
    ["1", "yes", "true", "y", "t"].contains(&value.to_lowercase().as_str())
}

/// Rows by a yes or no: `active members`, `members that are not active`.
fn flagged(things: &str, column: &str, value: &str) -> Vec<String> {
    let (what, is_had) = flag(column);
    match (is_had, is_yes(value)) {
        (true, true) => vec![format!("{things} that have {what}"), format!("{things} with {what}")],
        (true, false) => vec![format!("{things} that have no {what}"), format!("{things} without {what}")],
        (false, true) => vec![format!("{things} that are {what}"), format!("{what} {things}")],
        (false, false) => {
            vec![format!("{things} that are not {what}"), format!("{things} which are not {what}")]
        }
    }
}

/// Whether a value may stand in front of its thing: `kitchen products`, `green lines`; not `B- patients` or `en books`.
fn is_in_front(column: &str, value: &str) -> bool {
    let is_plain = value.chars().all(|letter| letter.is_lowercase() || letter == '-' || letter == ' ');
    let is_kind =
        Sense::of_name(column) == Sense::Kind || words::has_any(column, &["color", "colour", "plan"]);
    is_plain && !words::is_plural(value) && (is_kind || is_adjective(last_word(value)))
}

/// Whether rows with a value are called like another table: `open tickets`.
fn is_other_table(table: &Table<'_>, value: &str) -> bool {
    table.others.contains(&format!("{} {}", value.to_lowercase(), table.called))
}

/// Whether people live there: they come from a country.
fn is_lived_in(column: &str) -> bool {
    !words::has_any(column, &["country"])
}

/// `in` a team or a class, `of` a kind.
fn within(kind: &str) -> &'static str {
    let places = ["category", "class", "group", "department", "team", "section", "division"];
    if places.contains(&last_word(kind)) { "in" } else { "of" }
}

/// That rows have a value, behind "how many": `are of the kind senior`, `were returned on 2023-01-28`.
pub fn condition(table: &Table<'_>, column: &str, value: &str) -> String {
    let (c, v) = (noun(table, column), words::shown(value));
    match (is_flag(table, column), Sense::of(table, column)) {
        (true, _) => match (flag(column), is_yes(value)) {
            ((what, true), true) => format!("have {what}"),
            ((what, true), false) => format!("have no {what}"),
            ((what, false), true) => format!("are {what}"),
            ((what, false), false) => format!("are not {what}"),
        },
        (false, Sense::State) => format!("are {value}"),
        (false, Sense::Kind) if !c.contains(' ') => format!("are {} the {c} {v}", within(&c)),
        (false, Sense::Place) if table.is_of_people() => format!("are from {value}"),
        (false, Sense::Place) => format!("are in {value}"),
        (false, Sense::Date) => match done(&table.thing, column) {
            Some(done) => format!("{} on {value}", were(&done)),
            None => format!("have the {c} {value}"),
        },
        (false, _) => format!("have the {c} {v}"),
    }
}

/// The same behind a noun: `with the kind senior`.
pub fn with(table: &Table<'_>, column: &str, value: &str) -> String {
    match (done(&table.thing, column), Sense::of(table, column)) {
        (Some(done), Sense::Date) => format!("that {} on {value}", were(&done)),
        _ => format!("with the {} {}", noun(table, column), words::shown(value)),
    }
}

/// Questions for the number of `{rows}` that have a value too.
pub fn also(table: &Table<'_>, column: &str, value: &str) -> Vec<String> {
    let condition = condition(table, column, value);
    vec![
        format!("How many of the {{rows}} {condition}?"),
        format!("Count the {{rows}} that {condition}."),
        format!("Of the {{rows}}, how many {condition}?"),
        format!("How many {{rows}} {condition}?"),
    ]
}

/// Questions for a column of `{row}`.
pub fn lookup(table: &Table<'_>, thing: &str, column: &str) -> Vec<String> {
    let c = noun(table, column);
    let c = c.strip_prefix(&format!("{} ", table.thing)).unwrap_or(&c);
    let its = if table.is_of_people() { "their" } else { "its" };
    if let [rest @ .., last] = &*words::split(column)
        && !rest.is_empty()
        && ["until", "till"].contains(&last.as_str())
    {
        return vec![format!("Until when is {{row}} {}?", rest.join(" "))];
    }
    let are_moments = table.values(column).iter().all(|value| value.contains(':') || is_date(value));
    if let Some(verb) = words::verb_of(column).filter(|_| are_moments) {
        return vec![format!("When does {{row}} {verb}?"), format!("Tell me when {{row}} {verb}s.")];
    }
    let is_moment = matches!(Sense::of(table, column), Sense::Date | Sense::Year);
    if is_moment && (done(thing, column).is_some() || words::tokens(column).contains("since")) {
        return moment(table, thing, column);
    }
    if is_flag(table, column) {
        let (what, is_had) = flag(column);
        let question =
            if is_had { format!("Does {{row}} have {what}?") } else { format!("Is {{row}} {what}?") };
        return vec![
            format!("{question} Give the value of {column}."),
            format!("What is the value of {column} for {{row}}?"),
            format!("Look up the value of {column} of {{row}}."),
        ];
    }
    let mut texts = vec![
        format!("What is the {c} of {{row}}?"),
        format!("Tell me the {c} of {{row}}."),
        format!("Find {{row}}. What is {its} {c}?"),
        format!("I need the {c} of {{row}}."),
        format!("Can you look up the {c} of {{row}}?"),
    ];
    let live = |place: &str| format!("{place} does {{row}} live?");
    match Sense::of(table, column) {
        Sense::Price => texts.extend([
            "How much does {row} cost?".into(),
            "How much is {row}?".into(),
            "What does {row} cost?".into(),
        ]),
        Sense::Pay => texts.push("How much does {row} earn?".into()),
        Sense::Age => texts.push("How old is {row}?".into()),
        Sense::Weight => texts.extend(["How heavy is {row}?".into(), "How much does {row} weigh?".into()]),
        Sense::Height => texts.extend(["How high is {row}?".into(), "How tall is {row}?".into()]),
        Sense::Length => texts.push("How long is {row}?".into()),
        Sense::Pieces if words::tokens(column).contains("stock") => {
            texts.extend([
                "How much stock of {row} is left?".into(),
                "How many pieces of {row} are in stock?".into(),
            ]);
        }
        Sense::Pieces => texts
            .extend([format!("How large is the {c} of {{row}}?"), "How many pieces does {row} have?".into()]),
        Sense::Place if table.is_of_people() => {
            texts.push(format!("Which {c} is {{row}} from?"));
            if is_lived_in(column) {
                texts.extend([live("Where"), live(&format!("In which {c}"))]);
            }
        }
        Sense::Place => texts.extend([
            "Where is {row}?".into(),
            format!("In which {c} is {{row}}?"),
            format!("Which {c} is {{row}} in?"),
        ]),
        Sense::State => {
            texts.extend([format!("What {c} is {{row}} in?"), format!("Which {c} does {{row}} have?")])
        }
        Sense::Kind if within(c) == "of" => texts.push(format!("Of which {c} is {{row}}?")),
        Sense::Kind => texts.extend([
            format!("Which {c} does {{row}} belong to?"),
            format!("To which {c} does {{row}} belong?"),
            format!("In which {c} is {{row}}?"),
        ]),
        Sense::Date | Sense::Year => texts.extend(moment(table, thing, column)),
        Sense::Units => return units(c, "{row}"),
        Sense::Other => {}
    }
    texts
}

/// Questions for a number of units: `How many uses does the coupon have left?`
fn units(units: &str, who: &str) -> Vec<String> {
    if let Some((many, left @ ("left" | "remaining"))) = units.rsplit_once(' ') {
        return vec![
            format!("How many {many} does {who} have {left}?"),
            format!("Tell me how many {many} {who} has {left}."),
        ];
    }
    let mut texts = vec![
        format!("What is the number of {units} of {who}?"),
        format!("I need the number of {units} of {who}."),
        format!("Can you look up the number of {units} of {who}?"),
    ];
    // A visit has no minutes.
    if !words::is_time(last_word(units)) {
        texts = vec![
            format!("How many {units} does {who} have?"),
            format!("Tell me how many {units} {who} has."),
            format!("Can you look up how many {units} {who} has?"),
        ];
    }
    texts
}

/// How one asks for a year, a day or a time.
fn moment_of(table: &Table<'_>, column: &str) -> &'static str {
    match Sense::of(table, column) {
        Sense::Year => "In which year",
        _ if table.values(column).iter().all(|day| day.len() == 10) => "On which date",
        _ => "At what time",
    }
}

/// Questions for the date or year of `{row}`.
fn moment(table: &Table<'_>, thing: &str, column: &str) -> Vec<String> {
    let c = noun(table, column);
    let unit = moment_of(table, column);
    match &*words::split(column) {
        [since] if since == "since" && done(thing, column).is_none() => {
            return vec!["Since when does {row} exist?".to_owned()];
        }
        [what @ .., since] if since == "since" && !what.is_empty() => {
            let what = what.join(" ");
            let what = if is_adjective(&what) { what } else { a(&what) };
            return vec![format!("Since when is {{row}} {what}?")];
        }
        _ => {}
    }
    match done(thing, column) {
        Some(done) => {
            let was = was_it("{row}", &done);
            vec![format!("When {was}?"), format!("{unit} {was}?")]
        }
        None => vec![format!("Which {c} is given for {{row}}?")],
    }
}

/// All rows, as people call them.
pub fn all(table: &Table<'_>) -> Vec<String> {
    let things = words::plural(&table.thing);
    let is_ours = ["customer", "client", "member", "employee", "patient", "user", "product"]
        .contains(&last_word(&table.thing));
    let ours = is_ours.then(|| format!("our {things}"));
    ["all", "the"].map(|all| format!("{all} {things}")).into_iter().chain(ours).collect()
}

/// Questions for the number of `{rows}`.
pub fn count() -> Vec<String> {
    [
        "How many {rows} are there?",
        "How many {rows} do we have?",
        "Count the {rows}.",
        "What is the number of {rows}?",
        "I want to know how many {rows} there are.",
    ]
    .map(str::to_owned)
    .into()
}

/// Further questions for the number of rows that share a value.
pub fn count_by(table: &Table<'_>, thing: &str, column: &str, value: &str) -> Vec<String> {
    let (things, c, v) = (words::plural(thing), noun(table, column), words::shown(value));
    if is_flag(table, column) {
        return Vec::new();
    }
    let mut texts = vec![
        format!("How many {things} {}?", condition(table, column, value)),
        format!("Count the {things} whose {c} is {v}."),
    ];
    match Sense::of(table, column) {
        Sense::State => texts.push(format!("How many of the {things} are {value}?")),
        Sense::Place if is_person(thing) => {
            texts.push(format!("How many of the {things} are from {value}?"));
            texts.extend(is_lived_in(column).then(|| format!("How many {things} live in {value}?")));
        }
        Sense::Place => texts.push(format!("How many of the {things} are in {value}?")),
        Sense::Kind if within(&c) == "in" => texts.push(format!("How many {things} belong to the {c} {v}?")),
        _ => {}
    }
    texts
}

/// Questions for the number of rows above or below a value.
pub fn compared(table: &Table<'_>, thing: &str, column: &str, value: &str, is_above: bool) -> Vec<String> {
    let (things, n) = (words::plural(thing), noun(table, column));
    let pick = |above: &'static str, below: &'static str| if is_above { above } else { below };
    let mut texts = vec![
        format!("How many {things} have {} {} {value}?", a(&n), pick("above", "below")),
        format!("Count the {things} whose {n} is {} than {value}.", pick("more", "less")),
        format!("How many {things} are there with {} of {} than {value}?", a(&n), pick("more", "less")),
    ];
    match Sense::of(table, column) {
        Sense::Price => texts.extend([
            format!("How many {things} cost {} than {value}?", pick("more", "less")),
            format!("How many {things} are {} {value}?", pick("more expensive than", "cheaper than")),
        ]),
        Sense::Pay => texts.push(format!("How many {things} earn {} than {value}?", pick("more", "less"))),
        Sense::Age => texts.push(format!("How many {things} are {} than {value}?", pick("older", "younger"))),
        Sense::Pieces => texts.extend([
            format!("How many {things} have {} than {value} pieces?", pick("more", "fewer")),
            format!("For how many {things} is the {n} {} {value}?", pick("over", "under")),
        ]),
        Sense::Units => {
            texts = vec![
                format!("How many {things} have {} than {value} {n}?", pick("more", "fewer")),
                format!("Count the {things} with {} than {value} {n}.", pick("more", "fewer")),
                format!("For how many {things} is the number of {n} {} {value}?", pick("over", "under")),
            ];
            let is_time = ["minutes", "hours", "days", "weeks", "months"].contains(&n.as_str());
            if is_time && !table.is_of_people() {
                let than = format!("{} than {value} {n}", pick("more", "less"));
                texts = vec![
                    format!("How many {things} of {than} are there?"),
                    format!("Count the {things} of {than}."),
                ];
            }
        }
        Sense::Year | Sense::Date => {
            let when = pick("after", "before");
            if let Some(done) = done(thing, column) {
                let (were, that) = (were(&done), that_were(&done));
                return vec![
                    format!("How many {things} {were} {when} {value}?"),
                    format!("Count the {things} that {were} {when} {value}."),
                    format!("What is the number of {things} {that} {when} {value}?"),
                ];
            }
            texts = vec![
                format!("How many {things} have {} {when} {value}?", a(&n)),
                format!("Count the {things} whose {n} is {when} {value}."),
            ];
            texts.push(format!("For how many {things} is the {n} {when} {value}?"));
            if is_own_date(thing, column) {
                texts = vec![
                    format!("How many {things} were there {when} {value}?"),
                    format!("Count the {things} {when} {value}."),
                ];
            }
        }
        _ => {}
    }
    // `a weight of less than 67.9 kg`
    if let Some((what, unit)) = n.rsplit_once(" in ")
        && words::UNITS.iter().any(|(_, said)| *said == unit)
    {
        let than = format!("{} of {} than {value} {unit}", a(what), pick("more", "less"));
        return vec![format!("How many {things} have {than}?"), format!("Count the {things} with {than}.")];
    }
    texts
}

/// An operation on a column of numbers, or of dates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Highest,
    Lowest,
    Total,
    Average,
}

/// Questions for an operation over `{rows}`.
pub fn operation(table: &Table<'_>, column: &str, operation: Operation, decimals: &str) -> Vec<String> {
    let (n, sense) = (noun(table, column), Sense::of(table, column));
    let is_moment = matches!(sense, Sense::Date | Sense::Year);
    let adjectives: &[&str] = match operation {
        Operation::Highest if is_moment => &["latest", "most recent"],
        Operation::Lowest if is_moment => &["earliest"],
        Operation::Highest => &["highest", "largest", "greatest", "maximum"],
        Operation::Lowest => &["lowest", "smallest", "minimum"],
        Operation::Total => &["total", "overall"],
        Operation::Average => &["average", "mean"],
    };
    if let Some(done) = done(&table.thing, column).filter(|_| is_moment) {
        let is_last = operation == Operation::Highest;
        let one = match (done.as_str(), is_last) {
            ("born", true) => "youngest",
            ("born", false) => "oldest",
            (_, true) => "last",
            (_, false) => "first",
        };
        let was = was_it(&format!("the {one} of {{rows}}"), &done);
        let unit = moment_of(table, column);
        return vec![format!("When {was}?"), format!("{unit} {was}?")];
    }
    if is_moment && is_own_date(&table.thing, column) {
        let last = if operation == Operation::Highest { "last" } else { "first" };
        return vec![
            format!("When was the {last} of {{rows}}?"),
            format!("What is the date of the {last} of {{rows}}?"),
        ];
    }
    if sense == Sense::Units && matches!(operation, Operation::Highest | Operation::Lowest) {
        let size = if operation == Operation::Highest { "largest" } else { "smallest" };
        return vec![
            format!("What is the {size} number of {n} among {{rows}}?"),
            format!("Tell me the {size} number of {n} among {{rows}}."),
        ];
    }
    // `the uses that the coupons have left`
    if let Some((many, left @ ("left" | "remaining"))) = n.rsplit_once(' ').filter(|_| sense == Sense::Units)
    {
        let all = if operation == Operation::Total { "in total" } else { "on average" };
        return vec![
            format!("How many {many} do {{rows}} have {left} {all}{decimals}?"),
            format!("Tell me how many {many} {{rows}} have {left} {all}{decimals}."),
        ];
    }
    // Nobody says `the total total`.
    if operation == Operation::Total && words::tokens(column).contains("total") {
        let ns = words::plural(&n);
        return vec![
            format!("What is the sum of the {ns} of {{rows}}{decimals}?"),
            format!("Add up the {ns} of {{rows}}{decimals}. What is the result?"),
            format!("How much are the {ns} of {{rows}} together{decimals}?"),
        ];
    }
    let mut texts: Vec<String> = adjectives
        .iter()
        .map(|adjective| format!("What is the {adjective} {n} of {{rows}}{decimals}?"))
        .collect();
    texts.push(format!("Tell me the {} {n} of {{rows}}{decimals}.", adjectives[0]));
    match operation {
        Operation::Total => {
            texts.extend([
                format!("What is the sum of the {n} of {{rows}}{decimals}?"),
                format!("Add up the {n} of {{rows}}{decimals}. What is the result?"),
            ]);
            if sense == Sense::Units {
                texts = vec![
                    format!("How many {n} do {{rows}} have in total{decimals}?"),
                    format!("What is the total number of {n} of {{rows}}{decimals}?"),
                    format!("Add up the {n} of {{rows}}{decimals}. What is the result?"),
                    format!("How many {n} are there in {{rows}} altogether{decimals}?"),
                ];
            }
            if sense == Sense::Pieces {
                let pieces = ["pieces", "units", "items"];
                texts.extend(pieces.map(|piece| format!("How many {piece} do {{rows}} have in total?")));
                texts.push("How many pieces are there in {rows} altogether?".to_owned());
            }
        }
        Operation::Average if sense == Sense::Units => {
            texts = vec![
                format!("How many {n} do {{rows}} have on average{decimals}?"),
                format!("What is the average number of {n} of {{rows}}{decimals}?"),
                format!("What is the mean number of {n} of {{rows}}{decimals}?"),
            ];
        }
        Operation::Average => {}
        Operation::Highest if sense == Sense::Price => {
            texts.push("How much does the most expensive of {rows} cost?".into())
        }
        Operation::Lowest if sense == Sense::Price => {
            texts.push("How much does the cheapest of {rows} cost?".into())
        }
        Operation::Highest | Operation::Lowest => {}
    }
    texts
}

/// `weight` of `weight in kg`.
pub fn without_unit(noun: String) -> String {
    match noun.rsplit_once(" in ") {
        Some((what, unit)) if words::UNITS.iter().any(|(_, said)| *said == unit) => what.to_owned(),
        _ => noun,
    }
}

/// Questions for the row with the largest or smallest value of a column. `{rows}` are several, `{one}` is one of them.
pub fn superlative(table: &Table<'_>, column: &str, key: &str, is_largest: bool) -> Vec<String> {
    let (sense, thing) = (Sense::of(table, column), table.thing.as_str());
    let (n, k) = (without_unit(noun(table, column)), noun(table, key));
    let end = if is_largest { 0 } else { 1 };
    let its = if table.is_of_people() { "their" } else { "its" };
    let sizes: &[&str] = match (sense, is_largest) {
        (Sense::Date | Sense::Year, true) => &["latest", "most recent"],
        (Sense::Date | Sense::Year, false) => &["earliest"],
        (_, true) => &["largest", "highest"],
        (_, false) => &["smallest", "lowest"],
    };
    if is_own_date(thing, column) && sense == Sense::Date {
        let order = if is_largest { "last" } else { "first" };
        return vec![
            format!("Which of {{rows}} was the {order}? Give {its} {k}."),
            format!("Of {{rows}}, which was the {order}? Give {its} {k}."),
        ];
    }
    let mut texts = Vec::new();
    for size in sizes {
        texts.push(format!("Which of {{rows}} has the {size} {n}? Give {its} {k}."));
        texts.push(format!("What is the {k} of the {{one}} with the {size} {n}?"));
        if is_name(key) {
            texts.push(format!("Which {{one}} has the {size} {n}?"));
        }
    }
    if let Some(done) = done(thing, column).filter(|_| matches!(sense, Sense::Date | Sense::Year)) {
        if done == "born" {
            let age = ["youngest", "oldest"][end];
            return vec![
                format!("Which {{one}} is the {age}? Give the {k}."),
                format!("What is the {k} of the {age} {{one}}?"),
            ];
        }
        let order = ["last", "first"][end];
        let was = was(&done);
        texts.clear();
        texts.push(format!("Which {{one}} {was} {order}? Give the {k}."));
        texts.push(format!("What is the {k} of the {{one}} that {was} {order}?"));
    } else if let Some(extremes) = sense.extremes() {
        let adjective = extremes[end];
        texts.push(format!("What is the {k} of the {adjective} {{one}}?"));
        if is_name(key) {
            let who = if is_person(thing) { "Who" } else { "What" };
            texts.extend([
                format!("Which {{one}} is the {adjective}?"),
                format!("{who} is the {adjective} {{one}}?"),
            ]);
        }
    }
    let most = if is_largest { "most" } else { "fewest" };
    if sense == Sense::Units {
        texts = vec![
            format!("Which of {{rows}} has the {most} {n}? Give {its} {k}."),
            format!("What is the {k} of the {{one}} with the {most} {n}?"),
        ];
        texts.extend(is_name(key).then(|| format!("Which {{one}} has the {most} {n}?")));
    }
    // What is called like its row names it.
    if k == thing {
        return vec![format!(
            "Which {{one}} has the {} {n}?",
            if sense == Sense::Units { most } else { sizes[0] }
        )];
    }
    if sense == Sense::Pieces && is_name(key) {
        texts.push(format!("Of which {{one}} do we have the {most} pieces?"));
        texts.push(format!("Which {{one}} has the {most} pieces?"));
    }
    texts
}

/// What people do in a row of this table, if what it refers to is whom or what it is done by or with.
fn event_with(table: &Table<'_>, reference: &Reference<'_, '_>) -> Option<&'static Event> {
    let to = reference.to;
    // A coupon is not what is ordered.
    let is_object = || to.is_ware() || to.name().is_some_and(|name| words::tokens(name).contains("title"));
    event(&table.thing).filter(|_| reference.is_only_one && (to.is_of_people() || is_object()))
}

/// Questions for a column of the row that `{row}` refers to.
pub fn referred(table: &Table<'_>, reference: &Reference<'_, '_>, column: &str) -> Vec<String> {
    let Reference { to, role, .. } = reference;
    let c = noun(to, column);
    if let Some(done_by) = done_by(reference) {
        let (done, link) = done_by.split_once(' ').unwrap_or((&done_by, "by"));
        let link = if link == "to" { "To" } else { "By" };
        return match to.name() == Some(column) {
            true => vec![format!("{link} whom was {{row}} {done}?")],
            false => Vec::new(),
        };
    }
    // Two references away, what is between must be said; only who it is is asked.
    if let [first, _, ..] = &*reference.joins {
        let one = format!("{role} of the {} of {{row}}", first.to.thing);
        let who = to.is_of_people().then(|| format!("Who is the {one}?"));
        let asked = [format!("What is the {c} of the {one}?"), format!("Tell me the {c} of the {one}.")];
        return who.into_iter().chain(asked).collect();
    }
    let its = if table.is_of_people() { "their" } else { "its" };
    let mut texts = vec![
        format!("What is the {c} of the {role} of {{row}}?"),
        format!("Tell me the {c} of the {role} of {{row}}."),
        format!("Find {{row}}. What is the {c} of {its} {role}?"),
    ];
    let is_person = to.is_of_people();
    if to.name() == Some(column) {
        if is_person {
            texts.push(format!("Who is the {role} of {{row}}?"));
        } else if table.is_of_people() && Sense::of_name(role) == Sense::Kind {
            texts.push(format!("Which {role} is {{row}} in?"));
        }
        if let Some((_, past, _, placed, _)) = event_with(table, reference) {
            texts.extend(match is_person {
                true => vec![format!("Who has {placed} {{row}}?"), format!("By whom was {{row}} {placed}?")],
                false => vec![
                    format!("What was {past} with {{row}}?"),
                    format!("Which {role} was {past} in {{row}}?"),
                ],
            });
        }
        return texts;
    }
    match Sense::of(to, column) {
        Sense::Date | Sense::Year if done(&to.thing, column).is_some() => {
            let done = done(&to.thing, column).unwrap_or_default();
            return vec![format!("When {}?", was_it(&format!("the {role} of {{row}}"), &done))];
        }
        Sense::Units => {
            return units(&c, &format!("the {role} of {{row}}"));
        }
        Sense::Place if is_person && is_lived_in(column) => {
            texts.extend([
                format!("Where does the {role} of {{row}} live?"),
                format!("In which {c} does the {role} of {{row}} live?"),
            ]);
        }
        Sense::Price => texts.extend([
            format!("How much does the {role} of {{row}} cost?"),
            format!("What does the {role} of {{row}} cost?"),
        ]),
        Sense::Kind if within(&c) == "in" => {
            texts.push(format!("Which {c} does the {role} of {{row}} belong to?"));
        }
        _ => {}
    }
    if let Some((.., placed, _)) = event_with(table, reference).filter(|_| is_person) {
        texts.push(format!("What is the {c} of the {role} who has {placed} {{row}}?"));
    }
    if let Some((_, past, ..)) = event_with(table, reference).filter(|_| !is_person) {
        texts.push(format!("What is the {c} of the {role} that was {past} with {{row}}?"));
    }
    texts
}

/// What was done by or to the other row, by the column's name: `seen by`.
pub fn done_by(reference: &Reference<'_, '_>) -> Option<String> {
    let [join] = &*reference.joins else { return None };
    let said = words::split(join.column);
    let is_done =
        matches!(&*said, [done, by] if ["by", "to"].contains(&by.as_str()) && participle(done).is_some());
    (reference.is_one_of_several && is_done).then(|| said.join(" "))
}

/// Questions for the number of `{things}` that refer to `{row}`.
pub fn count_of(table: &Table<'_>, reference: &Reference<'_, '_>) -> Vec<String> {
    let role = &reference.role;
    if let Some(done_by) = done_by(reference) {
        return vec![
            format!("How many {{things}} were {done_by} {{row}}?"),
            format!("Count the {{things}} that were {done_by} {{row}}."),
        ];
    }
    // Two references away, what is between must be said.
    if let [first, _, ..] = &*reference.joins {
        let between = words::plural(&first.to.thing);
        return vec![
            format!("How many {{things}} do the {} have?", things_of(&between, reference, "{row}")),
            format!("Count the {{things}} of the {}.", things_of(&between, reference, "{row}")),
        ];
    }
    if reference.is_one_of_several {
        return vec![
            format!("How many {{things}} have {{row}} as their {role}?"),
            format!("Count the {{things}} whose {role} is {{row}}."),
        ];
    }
    let texts: &[&str] = match (is_had(reference), reference.to.is_of_people()) {
        (true, _) => &["How many {things} have {row}?", "Count the {things} with {row}."],
        (false, true) => &[
            "How many {things} of {row} are there?",
            "How many {things} belong to {row}?",
            "Count the {things} of {row}.",
            "How many {things} does {row} have?",
        ],
        (false, false) => &["How many {things} does {row} have?", "Count the {things} of {row}."],
    };
    let mut texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
    if let Some((_, past, _, placed, place)) = event_with(table, reference) {
        texts.extend(match reference.to.is_of_people() {
            true => vec![
                format!("How many {{things}} did {{row}} {place}?"),
                format!("How many {{things}} has {{row}} {placed}?"),
            ],
            false => vec![
                format!("How often was {{row}} {past}?"),
                format!("How many times has {{row}} been {past}?"),
            ],
        });
    }
    texts
}

/// Questions for a total of pieces over the rows that refer to `{row}`.
pub fn pieces_of(table: &Table<'_>, reference: &Reference<'_, '_>) -> Vec<String> {
    let Some((_, past, plain, ..)) = event_with(table, reference) else { return Vec::new() };
    match reference.to.is_of_people() {
        true => vec![
            format!("How many pieces did {{row}} {plain} in total?"),
            format!("How many pieces has {{row}} {past} altogether?"),
        ],
        false => vec![
            format!("How many pieces of {{row}} were {past} in total?"),
            format!("How many pieces of {{row}} were {past}?"),
        ],
    }
}

/// Further questions for what the rows that refer to `{row}` are worth.
pub fn spent(table: &Table<'_>, reference: &Reference<'_, '_>) -> Vec<String> {
    let end = "rounded to two decimals";
    match event_with(table, reference) {
        Some(_) if reference.to.is_of_people() => vec![
            format!("How much did {{row}} spend in total, {end}?"),
            format!("How much money has {{row}} spent, {end}?"),
        ],
        Some((_, past, ..)) => vec![format!("For how much money was {{row}} {past} in total, {end}?")],
        None => Vec::new(),
    }
}

/// Questions for the row that most rows refer to.
pub fn most_of(table: &Table<'_>, reference: &Reference<'_, '_>, name: &str) -> Vec<String> {
    let Reference { to, role, .. } = reference;
    let (things, n) = (words::plural(&table.thing), noun(to, name));
    let mut texts = vec![
        format!("Which {role} has the most {things}?"),
        format!("Which {role} has the most {things}? Give the {n}."),
        format!("What is the {n} of the {role} with the most {things}?"),
    ];
    if let Some((_, past, _, placed, _)) = event_with(table, reference) {
        texts.extend(match to.is_of_people() {
            true => vec![
                format!("Who has {placed} the most {things}?"),
                format!("Which {role} has {placed} the most {things}?"),
            ],
            false => vec![
                format!("Which {role} was {past} the most times?"),
                format!("What is the most often {past} {role}?"),
            ],
        });
    }
    texts
}

/// Questions for the number of rows that refer to rows which share a value; `{set}` are those, `{one}` is one.
pub fn count_of_set(table: &Table<'_>, reference: &Reference<'_, '_>) -> Vec<String> {
    let is_person = reference.to.is_of_people();
    let texts: &[&str] = match is_had(reference) {
        true => &["How many {things} have {one}?", "Count the {things} that have {one}."],
        false => &["How many {things} do {set} have?", "Count the {things} of {set}."],
    };
    let mut texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
    if let Some((_, past, _, placed, place)) = event_with(table, reference) {
        texts.extend(match is_person {
            true => vec![
                format!("How many {{things}} did {{set}} {place}?"),
                format!("How many {{things}} were {placed} by {{set}}?"),
            ],
            false => vec![format!("How often were {{set}} {past}?")],
        });
    }
    texts
}

/// Questions for what `{row}` is linked to by rows that refer to both.
pub fn linked(table: &Table<'_>, reference: &Reference<'_, '_>, other: &Reference<'_, '_>) -> Option<String> {
    let (_, past, plain, ..) = event_with(table, reference).filter(|_| other.is_only_one)?;
    match (reference.to.is_of_people(), other.to.is_of_people()) {
        (true, false) => Some(format!("Which {} did {{row}} {plain}?", words::plural(&other.role))),
        (false, true) => Some(format!("Which {} have {past} {{row}}?", words::plural(&other.role))),
        _ => None,
    }
}

/// One of the rows that share a value, behind "which" or an adjective: `kitchen product`, `customer from Oslo`.
pub fn one(table: &Table<'_>, thing: &str, column: &str, value: &str) -> Vec<String> {
    let (c, v) = (noun(table, column), words::shown(value));
    if is_flag(table, column) {
        return flagged(thing, column, value)
            .into_iter()
            .map(|one| one.replace(" are ", " is ").replace(" have ", " has "))
            .collect();
    }
    match Sense::of(table, column) {
        Sense::State if !is_other_table(table, value) => {
            vec![format!("{value} {thing}"), format!("{thing} with the {c} {v}")]
        }
        Sense::Kind => {
            let in_front = is_in_front(column, value).then(|| format!("{value} {thing}"));
            in_front.into_iter().chain([format!("{thing} with the {c} {v}")]).collect()
        }
        Sense::Place => vec![format!("{thing} from {value}"), format!("{thing} in {value}")],
        Sense::Date => {
            let done = done(thing, column).map(|done| format!("{thing} {} on {value}", that_were(&done)));
            vec![done.unwrap_or_else(|| format!("{thing} with the {c} {v}"))]
        }
        _ => vec![format!("{thing} with the {c} {v}")],
    }
}

/// Questions that count rows, where these are what a column says, and some say the same: `How many tags are there, counting
/// repeats?`
pub fn with_repeats(table: &Table<'_>, texts: Vec<String>) -> Vec<String> {
    let is_itself = |column: &&String| {
        words::spoken(column) == table.called && !table.numbers.contains(*column) && !table.is_unique(column)
    };
    if table.key().is_some() || !table.columns.iter().any(|column| is_itself(&column)) {
        return texts;
    }
    let said = |text: String| match text.strip_suffix(['?', '.']) {
        Some(start) => format!("{start}, counting repeats{}", &text[start.len()..]),
        None => text,
    };
    texts.into_iter().map(said).collect()
}

/// Questions for the number of rows of a month, `2025-03`.
pub fn of_month(table: &Table<'_>, column: &str, month: &str) -> Option<Vec<String>> {
    let thing = table.thing.as_str();
    let (year, number) = month.split_once('-')?;
    let name = Month::try_from(number.parse::<u8>().ok()?).ok()?.name();
    let (things, c) = (words::plural(thing), noun(table, column));
    Some(match done(thing, column) {
        Some(done) => vec![
            format!("How many {things} {} in {name} {year}?", were(&done)),
            format!("Count the {things} that {} in {name} {year}.", were(&done)),
            format!("What is the number of {things} {} in {name} {year}?", that_were(&done)),
        ],
        None if is_own_date(thing, column) => vec![
            format!("How many {things} were there in {name} {year}?"),
            format!("Count the {things} in {name} {year}."),
        ],
        None => vec![
            format!("How many {things} have {} in {name} {year}?", a(&c)),
            format!("Count the {things} whose {c} is in {name} {year}."),
        ],
    })
}
