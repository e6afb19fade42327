//! What an order writes: texts like those that the server has of its own.
//!
//! A new title is that of a thing of the same kind with a change, a person has the names of two others, and a reason or a tag is
//! one that something else has. Comments, which are about their thing alone, and what the server has nothing like come from the
//! table `phrases.toml`.

use std::collections::BTreeSet;

use crate::{
    explored::{
        graph::Graph,
        phrases::{PHRASES, Role},
        seeds::{Kind, Param},
    },
    senses::is_person,
    words,
};

/// Most texts, fewest of one's own, and longest.
const MOST: usize = 24;
const FEWEST: usize = 2;
const CHARS: usize = 90;
const NAME_CHARS: usize = 50;

/// Texts for a parameter of a tool that is about things with these titles; none if the server has nothing like it. `object`: what is
/// made or added, which may be another thing than `thing`.
pub fn of(graph: &Graph, param: &Param, [object, thing]: [&str; 2], titles: &[&str]) -> Vec<String> {
    let Some(role) = PHRASES.role(&param.name) else {
        return match param.kind {
            Kind::List(_) => tags(graph, param),
            _ => alike(graph, &[param.name.as_str()]),
        };
    };
    let (object, thing) = (last(object), last(thing));
    let names = || -> Vec<String> {
        let own = titles.iter().copied().filter(|name| is_name(name)).map(str::to_owned);
        let own: Vec<String> = own.collect();
        if own.len() < FEWEST { listed(graph, &object) } else { own }
    };
    match role.pool() {
        _ if role.is_name => {
            let names = names();
            if is_person(&thing) { people(&names) } else { renewed(&names) }
        }
        Some("tags") => tags(graph, param),
        Some("reasons") => alike(graph, &words_of(role, param)),
        _ => Vec::new(),
    }
}

/// The last word of a noun, in singular.
pub fn last(said: &str) -> String {
    words::split(said).pop().map(|last| words::singular(&last)).unwrap_or_default()
}

fn is_name(name: &str) -> bool {
    name.chars().count() <= NAME_CHARS && !words::is_opaque(name) && !words::is_code(name)
}

/// The names of things that are listed within others: tasks of projects.
fn listed(graph: &Graph, noun: &str) -> Vec<String> {
    let lists = graph.seen.iter().flat_map(|seen| &seen.reading.lists);
    let of = lists.filter(|list| !noun.is_empty() && words::tokens(&list.name).contains(noun));
    let is_title =
        |name: &str| words::split(name).last().is_some_and(|last| ["name", "title"].contains(&last.as_str()));
    let fields = of.flat_map(|list| &list.records).flatten().filter(|field| is_title(&field.name));
    let names: BTreeSet<&str> =
        fields.map(|field| field.value.as_str()).filter(|name| is_name(name)).collect();
    names.into_iter().map(str::to_owned).take(MOST).collect()
}

/// The words of fields that have such texts: of the parameter first, then of all that are alike.
fn words_of<'w>(role: &'w Role, param: &'w Param) -> Vec<&'w str> {
    std::iter::once(param.name.as_str()).chain(role.words().iter().map(String::as_str)).collect()
}

/// Texts of the first of these fields that has some.
fn alike(graph: &Graph, names: &[&str]) -> Vec<String> {
    let of = |name: &&str| {
        let said = words::tokens(name);
        let texts = graph
            .known
            .iter()
            .filter(|(text, known)| known.fields().any(|field| said.contains(&last(field))) && is_text(text));
        let texts: Vec<String> = texts.map(|(text, _)| text.clone()).take(MOST).collect();
        (texts.len() >= FEWEST).then_some(texts)
    };
    names.iter().find_map(of).unwrap_or_default()
}

fn is_text(text: &str) -> bool {
    let count = text.chars().count();
    (4..=CHARS).contains(&count)
        && !text.contains(['\n', '"', '{', '[', '<'])
        && text.split(' ').count() >= 2
        && text.contains(char::is_alphabetic)
}

/// Names of tags that things have.
fn tags(graph: &Graph, param: &Param) -> Vec<String> {
    let is_tag = |name: &str| words::tokens(name).iter().any(|word| param.words.contains(word));
    let lists = graph.seen.iter().flat_map(|seen| &seen.reading.lists);
    let fields = lists.flat_map(|list| list.records.iter().flatten().map(move |field| (list, field)));
    let found = fields.filter(|(list, field)| {
        field.is_set && is_tag(&field.name) || field.name.is_empty() && is_tag(&list.name)
    });
    let tags: BTreeSet<String> =
        found.flat_map(|(_, field)| field.value.split(", ")).map(str::to_owned).collect();
    tags.into_iter().filter(|tag| (2..=24).contains(&tag.len())).take(MOST).collect()
}

/// Names of people, each with the first name of one and the last name of the next.
fn people(names: &[String]) -> Vec<String> {
    let pairs: Vec<(&str, &str)> = names.iter().filter_map(|name| name.split_once(' ')).collect();
    let next = pairs.iter().cycle().skip(1);
    let made = pairs.iter().zip(next).map(|(one, other)| format!("{} {}", one.0, other.1));
    let made: Vec<String> = made.filter(|made| !names.contains(made)).take(MOST).collect();
    if made.len() < FEWEST { Vec::new() } else { made }
}

/// New names after those that exist.
pub fn renewed(names: &[String]) -> Vec<String> {
    let new = |name: &String| {
        let is_sentence = name.split(' ').count() > 2 && !name.contains([',', ':', '(']);
        let is_numbered = name.ends_with(|letter: char| letter.is_ascii_digit());
        match () {
            () if is_sentence => format!("{name} (follow-up)"),
            () if is_numbered || name.contains(',') => format!("{name} (new)"),
            () => format!("{name} 2"),
        }
    };
    let is_fit = |name: &&String| name.contains(char::is_alphabetic) && !name.contains(['"', '/', '.']);
    names.iter().filter(is_fit).map(new).filter(|made| !names.contains(made)).take(MOST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_names_are_like_those_that_exist() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            renewed(&names(&["Dark mode flickers", "Kitchen", "Chisel set, 4 pieces"])),
            ["Dark mode flickers (follow-up)", "Kitchen 2", "Chisel set, 4 pieces (new)"]
        );
        assert_eq!(people(&names(&["Ann Lindqvist", "Ben Okafor"])), ["Ann Okafor", "Ben Lindqvist"]);
        assert_eq!(people(&names(&["ann", "ben"])), [""; 0]);
    }
}
