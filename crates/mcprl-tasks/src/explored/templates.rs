//! The words of tasks about things: the table in `templates.toml`.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

use crate::words;

static TABLE: LazyLock<Table> =
    LazyLock::new(|| toml::from_str(include_str!("templates.toml")).unwrap_or_default());

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    field: Wordings,
    count: Wordings,
    list: Wordings,
    most: Wordings,
    least: Wordings,
    total: Wordings,
    tally: Wordings,
    condition: BTreeMap<String, String>,
    words: BTreeMap<String, OfWord>,
}

type Wordings = BTreeMap<String, Vec<String>>;

/// What is said otherwise where a field, or a thing, is called so.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct OfWord {
    field: Vec<String>,
    most: Vec<String>,
    least: Vec<String>,
    total: Vec<String>,
    condition: Option<String>,
    owner: Option<String>,
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuestionKind {
    Field,
    Count,
    List,
    Most,
    Least,
    Total,
    Tally,
}

/// Words with which an amount is another one: the minimum of a stock is no stock.
const OTHER: [&str; 16] = [
    "min", "minimum", "max", "maximum", "low", "high", "target", "reorder", "safety", "old", "previous",
    "planned", "expected", "average", "avg", "limit",
];

/// The word by which the table knows a field: the last of its name, of `assignee.name` the one before. None for what only
/// sounds like it.
pub fn word(field: &str) -> String {
    let said = words::split(field);
    if said.len() > 1 && said.iter().any(|word| OTHER.contains(&word.as_str())) {
        return String::new();
    }
    let last = |words: &[String]| words.last().map(|word| words::singular(word)).unwrap_or_default();
    match said.as_slice() {
        [rest @ .., end] if !rest.is_empty() && ["name", "at", "on"].contains(&end.as_str()) => last(rest),
        all => last(all),
    }
}

/// Wordings by name, with what stands for each of their gaps. The names decide splits by phrasing.
pub fn ask(operation: QuestionKind, role: &str, field: &str, gaps: &[(&str, &str)]) -> Vec<(String, String)> {
    let table = &*TABLE;
    let of_word = table.words.get(&word(field));
    let (name, general, own) = match operation {
        QuestionKind::Field => ("field", &table.field, of_word.map(|own| &own.field)),
        QuestionKind::Count => ("count", &table.count, None),
        QuestionKind::List => ("list", &table.list, None),
        QuestionKind::Most => ("most", &table.most, of_word.map(|own| &own.most)),
        QuestionKind::Least => ("least", &table.least, of_word.map(|own| &own.least)),
        QuestionKind::Total => ("total", &table.total, of_word.map(|own| &own.total)),
        QuestionKind::Tally => ("tally", &table.tally, None),
    };
    let own = own.filter(|own| !own.is_empty() && !["set", "mass", "plural"].contains(&role));
    let wordings = own.or_else(|| general.get(role)).into_iter().flatten();
    let named = |(index, text): (usize, &String)| {
        (format!("{name} {role} {}", index + 1), sentence(&filled(text, gaps)))
    };
    wordings.enumerate().map(named).collect()
}

/// Things with a value in a field: `open tickets`.
pub fn with_condition(things: &str, field: &str, said: &str, value: &str) -> String {
    if let Ok(holds) = value.to_lowercase().parse::<bool>() {
        return with_flag(things, &words::spoken_field(field), holds);
    }
    let own = TABLE.words.get(&word(field)).and_then(|own| own.condition.as_deref());
    let is_adjective = |text: &&str| text.starts_with("{value}");
    let is_word = value.chars().all(|letter| letter.is_lowercase() || " -".contains(letter));
    let own = own.filter(|text| !is_adjective(text) || is_word && value.split(' ').count() <= 2);
    let text = own.or(TABLE.condition.get("default").map(String::as_str)).unwrap_or("{things}");
    let value = if is_adjective(&text) { value.replace(' ', "-") } else { value.to_owned() };
    filled(text, &[("things", things), ("field", said), ("value", &value)])
}

/// The same of a person: `picks whose picker is Amara`, unless the table says it otherwise.
pub fn with_person(things: &str, field: &str, said: &str, value: &str) -> String {
    let has_own = TABLE.words.get(&word(field)).is_some_and(|own| own.condition.is_some());
    match TABLE.condition.get("person").filter(|_| !has_own) {
        Some(text) => filled(text, &[("things", things), ("field", said), ("value", value)]),
        None => with_condition(things, field, said, value),
    }
}

/// Things that are or have something, or not: `completed todos`, `todos that are not completed`, `notes with attachments`.
fn with_flag(things: &str, said: &str, holds: bool) -> String {
    if let Some(part) = said.strip_prefix("has ") {
        return format!("{things} {} {part}", if holds { "with" } else { "without" });
    }
    let state = said.strip_prefix("is ").unwrap_or(said);
    if holds {
        format!("{} {things}", state.replace(' ', "-"))
    } else {
        format!("{things} that are not {state}")
    }
}

/// Things that another has: `comments on ticket T103`.
pub fn with_owner(things: &str, thing: &str, one: &str) -> String {
    let own = TABLE.words.get(&word(thing)).and_then(|own| own.owner.as_deref());
    let text = own.or(TABLE.condition.get("owner").map(String::as_str)).unwrap_or("{things}");
    filled(text, &[("things", things), ("one", one)])
}

/// Things that a search for a word finds.
pub fn with_search(things: &str, field: &str, value: &str) -> String {
    let text = TABLE.condition.get("search").map_or("{things}", String::as_str);
    filled(text, &[("things", things), ("field", field), ("value", value)])
}

/// Whether what the table says of a field asks for a person.
pub fn asks_who(field: &str) -> bool {
    let own = TABLE.words.get(&word(field));
    own.is_some_and(|own| own.field.first().is_some_and(|text| text.starts_with("Who ")))
}

/// Whether the table has words for a question about a field.
pub fn has_words(field: &str) -> bool {
    TABLE.words.get(&word(field)).is_some_and(|own| !own.field.is_empty())
}

/// Capital first letter, single spaces, no article twice.
pub fn sentence(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ").replace("the the ", "the ");
    // A name may end with a point.
    let text = text.strip_suffix("..").map_or(text.clone(), |text| format!("{text}."));
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// Gaps are filled once: a value may have braces.
fn filled(text: &str, gaps: &[(&str, &str)]) -> String {
    let mut rest = text;
    let mut done = String::new();
    while let Some((before, behind)) = rest.split_once('{') {
        let Some((gap, after)) = behind.split_once('}') else { break };
        done += before;
        done += gaps.iter().find(|(name, _)| *name == gap).map_or("", |(_, value)| value);
        rest = after;
    }
    done + rest
}

/// The gaps that the table uses.
#[cfg(test)]
fn gaps(text: &str) -> std::collections::BTreeSet<String> {
    text.split('{').skip(1).filter_map(|part| Some(part.split_once('}')?.0.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_and_every_gap_is_known() {
        let table: Table = toml::from_str(include_str!("templates.toml")).unwrap();
        let known = [
            "one", "things", "thing", "field", "fields", "value", "done", "does", "name", "names", "give",
            "state",
        ];
        let general = [&table.field, &table.count, &table.list, &table.most, &table.least, &table.total];
        let texts = general.into_iter().chain([&table.tally]).flat_map(|of| of.values().flatten());
        for gap in texts.chain(table.condition.values()).flat_map(|text| gaps(text)) {
            assert!(known.contains(&gap.as_str()), "{gap}");
        }
    }

    #[test]
    fn the_minimum_of_a_stock_is_no_stock() {
        assert_eq!(["stock", "minStock", "min_stock"].map(word), ["stock", "", ""]);
    }

    #[test]
    fn conditions_are_said_as_people_say_them() {
        let open = with_condition("tickets", "status", "status", "open");
        assert_eq!(open, "open tickets");
        assert_eq!(with_condition(&open, "priority", "priority", "high"), "open tickets with high priority");
        assert_eq!(with_condition("tickets", "status", "status", "in progress"), "in-progress tickets");
        assert_eq!(with_condition("lamps", "colour", "colour", "red"), "lamps with the colour red");
        assert_eq!(with_condition("todos", "completed", "completed", "true"), "completed todos");
        assert_eq!(with_condition("todos", "is_done", "is done", "False"), "todos that are not done");
        assert_eq!(with_condition("mails", "has_attachment", "", "false"), "mails without attachment");
        assert_eq!(with_owner("comments", "comment", "ticket T1"), "comments on ticket T1");
        let asked = ask(QuestionKind::Field, "person", "assignee.name", &[("one", "ticket T1 {x}")]);
        assert_eq!(asked[0].1, "Who is ticket T1 {x} assigned to?");
    }
}
