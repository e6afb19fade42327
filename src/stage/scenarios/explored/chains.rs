//! Chains of calls and what to ask about their results.
//!
//! A later call may use a value that an earlier one gave. The task then does not say that value but describes it: by another
//! field of its record, or as the only one there is.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    asking,
    graph::{self, Arg, Graph, Origin},
    tools::ToolProfile,
    wording::{self, Scene},
};
use crate::stage::scenarios::{
    candidate::{AnswerRule, Candidate, Check, Wanted, is_moment, numbers, value_of},
    harvest::{Field, List, Reading, Record},
    words,
};

/// Most calls of a chain.
pub const CALLS: usize = 5;
/// Ways to describe the arguments of a call.
const VARIANTS: usize = 8;
/// Questions about one result.
const RULES: usize = 40;
/// Longest task: a longer one describes values by values by values.
const TASK: usize = 300;
/// Longest value that a task says.
const SAID: usize = 150;

/// One way to describe a call in a task.
#[derive(Debug, Clone)]
struct Variant {
    /// Indices of the calls, the described one last.
    calls: Vec<usize>,
    /// What the task says, by name.
    entity: BTreeMap<String, String>,
    /// The call's result in words.
    place: String,
}

/// Candidates about every result that was seen.
pub fn candidates(graph: &Graph, profiles: &[ToolProfile], seed: u64) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for index in 0..graph.seen.len() {
        if super::sql::is_sql(graph, profiles, index)
            || super::changes::writes(graph, profiles, index)
            || is_named_by_less(graph, index)
        {
            continue;
        }
        let variants = variants(graph, profiles, index, CALLS);
        if variants.is_empty() {
            continue;
        }
        let rules = rules(graph, index, seed);
        // Longer ways come first. Where there is one question, any of them.
        let start = match rules.as_slice() {
            [_] => graph::place(seed, "ways", &graph.seen[index].call.name, variants.len()) + index,
            _ => 0,
        };
        for (number, rule) in rules.into_iter().enumerate() {
            let variant = &variants[(start + number) % variants.len()];
            candidates.extend(candidate(graph, profiles, index, variant, rule, seed));
        }
    }
    candidates
}

/// Whether a call with fewer of these arguments has the same result.
fn is_named_by_less(graph: &Graph, index: usize) -> bool {
    let seen = &graph.seen[index];
    let is_less = |other: &graph::SuccessfulCall| {
        other.tool == seen.tool
            && other.call.arguments.len() < seen.call.arguments.len()
            && other.call.arguments.iter().all(|(name, value)| seen.call.arguments.get(name) == Some(value))
    };
    graph.seen.iter().any(|other| is_less(other) && other.text == seen.text)
}

fn candidate(
    graph: &Graph,
    profiles: &[ToolProfile],
    index: usize,
    variant: &Variant,
    rule: AnswerRule,
    seed: u64,
) -> Option<Candidate> {
    let seen = &graph.seen[index];
    let answer = rule.answer(&[&seen.text]).ok()?;
    let list = match &rule {
        AnswerRule::Field { list, .. }
        | AnswerRule::Count { list }
        | AnswerRule::Column { list, .. }
        | AnswerRule::Measured { list, .. } => list,
        _ => "",
    };
    let thing = profiles[seen.tool].thing(list);
    let of_moments = match &rule {
        AnswerRule::Measured { field, key: Some(_), .. } => {
            let records =
                seen.reading.lists.iter().filter(|one| one.name == *list).flat_map(|one| &one.records);
            records.filter_map(|record| value_of(record, field)).all(is_moment)
        }
        _ => false,
    };
    let asked = asking::ask(&rule, &Scene { place: &variant.place, thing: &thing, of_moments });
    let mut entity = variant.entity.clone();
    let about = match &rule {
        AnswerRule::Field { key: Some((key, value)), field, .. } => {
            entity.insert(key.clone(), value.clone());
            format!("{field} by {key}")
        }
        AnswerRule::Field { field, .. }
        | AnswerRule::Column { field, .. }
        | AnswerRule::Measured { field, .. } => field.clone(),
        _ => String::new(),
    };
    let tools: Vec<&str> =
        variant.calls.iter().map(|call| profiles[graph.seen[*call].tool].name.as_str()).collect();
    let family = format!("{}: {} {list} {about}", tools.join(" > "), rule.kind());
    let (phrasing, task) =
        asked.get(graph::place(seed, &family, &format!("{entity:?}"), asked.len()))?.clone();
    // The same value in another notation is no answer either.
    let is_said = |field: &String| variant.entity.keys().any(|name| name.eq_ignore_ascii_case(field));
    if task.len() > TASK || matches!(&rule, AnswerRule::Field { field, .. } if is_said(field)) {
        return None;
    }
    let check = match &rule {
        AnswerRule::Column { .. } => Check::Set,
        AnswerRule::Field { field, .. } if is_set(graph, index, field) => Check::Set,
        _ => Check::of(&answer),
    };
    Some(Candidate {
        family: family.split_whitespace().collect::<Vec<_>>().join(" "),
        entity,
        task,
        phrasing,
        calls: variant.calls.iter().map(|call| graph.seen[*call].call.clone()).collect(),
        rule,
        check,
        ..Candidate::default()
    })
}

fn is_set(graph: &Graph, index: usize, field: &str) -> bool {
    let lists = &graph.seen[index].reading.lists;
    lists.iter().flat_map(|list| &list.records).flatten().any(|found| found.name == field && found.is_set)
}

fn variants(graph: &Graph, profiles: &[ToolProfile], index: usize, most: usize) -> Vec<Variant> {
    let seen = &graph.seen[index];
    let profile = &profiles[seen.tool];
    let mut variants = Vec::new();
    if seen.args.iter().any(|arg| arg.shown.len() > 2 * SAID) {
        return variants;
    }
    let entity: BTreeMap<String, String> = seen.args.iter().map(Arg::said).collect();
    let plain = place(profile, &seen.args, None, &[]);
    variants.push(Variant { calls: vec![index], entity: entity.clone(), place: plain });
    if most < 2 {
        return variants;
    }
    for (position, arg) in seen.args.iter().enumerate() {
        let is_required = profile.params.iter().any(|param| param.name == arg.name && param.is_required);
        let leaf = arg.leaf.as_ref().filter(|_| is_required);
        let Some(known) = leaf.and_then(|leaf| graph.known.get(leaf)) else { continue };
        // What a task describes may have been seen later than what it asks about; what describes that in turn, may not.
        let is_usable = |origin: &&Origin| {
            (origin.call < index || most == CALLS && origin.call != index)
                && may_describe(graph, origin, &arg.name)
        };
        for origin in known.origins.iter().filter(is_usable) {
            for described in descriptions(graph, profiles, origin, &entity, most - 1) {
                // The results of one tool by its own results read like a riddle.
                let is_riddle = described.calls.iter().any(|call| graph.seen[*call].tool == seen.tool);
                if is_riddle || described.calls.len() >= CALLS || variants.len() >= VARIANTS {
                    continue;
                }
                let covered = covered(graph, origin, &seen.args, position);
                let place = place(profile, &seen.args, Some((position, &described.place)), &covered);
                let mut entity = described.entity;
                let is_said = |other: &usize| *other != position && !covered.contains(other);
                let others = seen.args.iter().enumerate().filter(|(other, _)| is_said(other));
                entity.extend(others.map(|(_, arg)| arg.said()));
                let mut calls = described.calls;
                calls.push(index);
                variants.push(Variant { calls, entity, place });
            }
        }
    }
    // Longer chains first: most results can also be asked about directly.
    variants.reverse();
    variants
}

/// Whether people would describe the value of this argument so. They say dates, and places unless these belong to one thing.
fn may_describe(graph: &Graph, origin: &Origin, arg: &str) -> bool {
    let seen = &graph.seen[origin.call];
    let Some(preposition) = words::preposition_of(arg) else { return true };
    preposition != "on" && (!seen.reading.lists[origin.list].is_list || seen.args.is_empty())
}

/// The other arguments that the described record has under their names: who knows the record knows them.
fn covered(graph: &Graph, origin: &Origin, args: &[Arg], position: usize) -> Vec<usize> {
    if origin.folder.is_some() {
        return Vec::new();
    }
    let record = &graph.seen[origin.call].reading.lists[origin.list].records[origin.record];
    let names = |arg: &Arg| {
        record.iter().any(|field| field.name == arg.name && Some(&field.value) == arg.leaf.as_ref())
    };
    let is_named = record[origin.field].name == args[position].name;
    (0..args.len()).filter(|other| is_named && *other != position && names(&args[*other])).collect()
}

/// Ways to describe a value without saying it. `entity` is what the task says anyway.
fn descriptions(
    graph: &Graph,
    profiles: &[ToolProfile],
    origin: &Origin,
    entity: &BTreeMap<String, String>,
    most: usize,
) -> Vec<Variant> {
    let seen = &graph.seen[origin.call];
    let profile = &profiles[seen.tool];
    if super::changes::writes(graph, profiles, origin.call) {
        return Vec::new();
    }
    let list = &seen.reading.lists[origin.list];
    let record = &list.records[origin.record];
    let thing = profile.thing(&list.name);
    let value = &record[origin.field];
    let mut found = Vec::new();
    // What is found by something described is not described further, unless it is one thing: anything else is a riddle.
    let is_clear = |source: &Variant| source.calls.len() < 2 || asking::subject(&source.place).is_some();
    let sources = variants(graph, profiles, origin.call, most).into_iter().filter(is_clear);
    for source in sources.take(2) {
        // What the calls of the source say is said unless the rest of the task says it.
        let is_said = source.entity.values().all(|said| entity.values().any(|other| other == said));
        let behind = if is_said { String::new() } else { format!(" in the {}", source.place) };
        let within = if is_said { String::new() } else { format!(" {}", asking::within(&source.place)) };
        let of = |words: String, said: Option<(String, String)>| {
            let mut entity = if is_said { BTreeMap::new() } else { source.entity.clone() };
            entity.extend(said);
            Variant { calls: source.calls.clone(), entity, place: words }
        };
        if let Some(folder) = &origin.folder {
            let is_unique =
                graph.known.keys().filter(|path| path.ends_with(&format!("/{}", value.value))).count() == 1;
            if is_unique && !value.value.is_empty() && !entity.values().any(|said| said == folder) {
                let words = format!("the {thing} named {}{behind}", words::shown(&value.value));
                found.push(of(words, Some(("name".into(), value.value.clone()))));
            }
            continue;
        }
        if list.is_nested {
            continue;
        }
        if list.records.len() == 1 && record.len() == 1 {
            found.push(of(format!("the only {thing}{within}"), None));
            continue;
        }
        if record.len() == 1 && value.name.is_empty() && list.is_list && !is_said {
            let place = match origin.record {
                0 => "first",
                last if last + 1 == list.records.len() => "last",
                _ => continue,
            };
            let within = asking::subject(&source.place)
                .map_or_else(|| format!("in the {}", source.place), |subject| format!("for {subject}"));
            found.push(of(format!("the {thing} listed {place} {within}"), None));
            continue;
        }
        if !list.is_list && list.records.len() == 1 && !is_said {
            let head = words::spoken_thing(&value.name);
            if !head.is_empty() {
                found.push(of(format!("the {head}{within}"), None));
                continue;
            }
        }
        for (key, said) in keys(list, record, &value.name).into_iter().take(2) {
            let words = format!(
                "{}the {thing} whose {} is {}{behind}",
                part(&value.name, &thing),
                words::spoken_field(&key),
                words::shown(&said)
            );
            found.push(of(words, Some((key, said))));
        }
    }
    found
}

/// `the timezone of`, if the value does not stand for its whole record as a name or an id does.
fn part(field: &str, thing: &str) -> String {
    let of_record = ["id", "name", "path", "title", "key", "uri", "url", "hash", "number", "code"];
    let is_record = field.is_empty()
        || words::has_any(field, &of_record)
        || words::tokens(thing).is_superset(&words::tokens(field));
    if is_record { String::new() } else { format!("the {} of ", words::spoken_field(field)) }
}

/// Fields that single out a record of a list: names first, then texts, then numbers.
fn keys(list: &List, record: &Record, without: &str) -> Vec<(String, String)> {
    let is_unique = |name: &str, value: &str| {
        let same = list.records.iter().filter(|other| {
            other.iter().any(|field| field.name == name && field.value.eq_ignore_ascii_case(value))
        });
        same.count() == 1
    };
    let rank = |name: &str, value: &str| {
        let best = ["name", "title", "message", "label", "id", "number", "code"].iter();
        let is_number = value.parse::<f64>().is_ok();
        let is_name = best
            .filter(|best| !is_number || **best != "number" && **best != "code")
            .position(|best| words::tokens(name).contains(*best));
        (is_name.unwrap_or(9), value.parse::<f64>().is_ok(), value.len())
    };
    let mut keys: Vec<(String, String)> = record
        .iter()
        .filter(|field| field.name != without && !field.is_set && !field.name.is_empty())
        .filter(|field| !field.value.trim().is_empty() && field.value.len() <= SAID / 2)
        .filter(|field| !["true", "false", "null", "None"].contains(&field.value.as_str()))
        .filter(|field| is_unique(&field.name, &field.value))
        .filter(|field| field.value.parse::<f64>().is_err() || !is_quantity(&field.name))
        .map(|field| (field.name.clone(), field.value.clone()))
        .collect();
    keys.sort_by_key(|(name, value)| rank(name, value));
    keys
}

/// A call's result in words. `described`: an argument's index, and what is said in place of its value; those that are
/// `covered` by it are not said.
pub fn place(
    profile: &ToolProfile,
    args: &[Arg],
    described: Option<(usize, &str)>,
    covered: &[usize],
) -> String {
    let words::Phrase { text, slot } = &profile.phrase;
    let (mut text, mut behind, mut within) = (text.clone(), Vec::new(), String::new());
    let mut is_described = false;
    for (index, arg) in args.iter().enumerate().filter(|(index, _)| !covered.contains(index)) {
        let preposition = words::preposition_of(&arg.name);
        let described = described.filter(|(position, _)| *position == index).map(|(_, words)| words);
        let slot = slot.as_ref().filter(|slot| slot.param == arg.name);
        let is_path = profile.params.iter().any(|param| param.name == arg.name && param.is_path());
        match (slot, described, preposition) {
            (Some(_), Some(words), _) => text += &format!(" {words}"),
            (Some(slot), None, _)
                if slot.noun.is_empty() || text.ends_with(" on") && preposition == Some("on") =>
            {
                text += &format!(" {}", arg.shown);
            }
            (Some(slot), None, _) => text += &format!(" the {} {}", slot.noun, arg.shown),
            (None, words, _) if is_path && within.is_empty() => {
                within = format!(" in {}", words.unwrap_or(&arg.shown));
            }
            (None, words, Some(preposition)) => {
                within += &format!(" {preposition} {}", words.unwrap_or(&arg.shown));
            }
            (None, Some(words), None) => {
                is_described = true;
                behind.push(words.to_owned());
            }
            (None, None, None) => behind.push(words::said(&arg.name, &arg.shown)),
        }
    }
    let has_place = slot.is_some() || !within.is_empty();
    let with = if has_place && !is_described { "with" } else { "for" };
    let behind =
        if behind.is_empty() { String::new() } else { format!(" {with} {}", wording::joined(&behind)) };
    format!("{text}{within}{behind}")
}

/// Whether a field is worth a question: a yes or no is guessed too easily.
fn tells(field: &Field) -> bool {
    !["true", "false"].contains(&field.value.to_lowercase().as_str())
}

/// What can be asked about a result, in seeded order.
pub fn rules(graph: &Graph, index: usize, seed: u64) -> Vec<AnswerRule> {
    let seen = &graph.seen[index];
    if let Some(line) = &seen.reading.line
        && is_value(&seen.reading)
    {
        return in_line(seen, line).into_iter().collect();
    }
    let mut rules = Vec::new();
    for list in seen.reading.lists.iter().filter(|list| !list.is_nested) {
        let name = || list.name.clone();
        let of_field = |key: Option<(String, String)>, field: &Field| AnswerRule::Field {
            list: name(),
            key,
            field: field.name.clone(),
        };
        if let ([record], false) = (list.records.as_slice(), list.is_list) {
            let named =
                record.iter().filter(|field| tells(field) && (!field.name.is_empty() || record.len() == 1));
            rules.extend(named.map(|field| match field.name.as_str() {
                "" => AnswerRule::Only,
                _ => of_field(None, field),
            }));
            continue;
        }
        for record in &list.records {
            if let Some(key) = keys(list, record, "\n").into_iter().next() {
                let others = record
                    .iter()
                    .filter(|field| tells(field) && field.name != key.0 && !field.name.is_empty());
                rules.extend(others.map(|field| of_field(Some(key.clone()), field)));
            }
        }
        if list.is_list && list.records.len() > 1 && !is_mixed(list, &seen.args) {
            rules.push(AnswerRule::Count { list: name() });
            let first = &list.records[0];
            let measured = |field: &Field, key: Option<String>, wanted: Wanted| AnswerRule::Measured {
                list: name(),
                field: field.name.clone(),
                key,
                wanted,
            };
            for field in first.iter().filter(|field| tells(field) && !field.is_set) {
                let values = list.records.iter().filter_map(|record| value_of(record, &field.name));
                if values.collect::<BTreeSet<_>>().len() > 1 {
                    rules.push(AnswerRule::Column { list: name(), field: field.name.clone() });
                }
                let is_number = field.value.parse::<f64>().is_ok() && is_quantity(&field.name);
                if is_number || is_moment(&field.value) {
                    let key = keys(list, first, &field.name).into_iter().next().map(|(key, _)| key);
                    for key in key.into_iter().chain([field.name.clone()]) {
                        let extreme = |wanted| measured(field, Some(key.clone()), wanted);
                        rules.extend([Wanted::Most, Wanted::Least].map(extreme));
                    }
                }
                if is_number && is_amount(&field.name) {
                    rules.push(measured(field, None, Wanted::Total));
                }
            }
        } else if let ([record], true) = (list.records.as_slice(), list.is_list) {
            let fields = record.iter().filter(|field| tells(field) && !field.name.is_empty());
            rules.extend(fields.map(|field| of_field(None, field)));
            if record.len() == 1 && record[0].name.is_empty() {
                rules.push(AnswerRule::Only);
            }
        }
    }
    rules.sort_by_cached_key(|rule| graph::rank(seed, "picks", &rule.text()));
    rules.truncate(RULES);
    rules
}

/// Whether a list has something else than what the arguments name, or something twice: then it is no list of these, and its
/// length and extremes answer another question.
fn is_mixed(list: &List, args: &[Arg]) -> bool {
    let differs = |record: &Record| {
        record.iter().any(|field| {
            let arg = args.iter().find(|arg| arg.name == field.name);
            arg.and_then(|arg| arg.leaf.as_ref())
                .is_some_and(|leaf| *leaf != field.value && !field.value.is_empty())
        })
    };
    let distinct: BTreeSet<String> = list.records.iter().map(|record| format!("{record:?}")).collect();
    distinct.len() < list.records.len() || list.records.iter().any(differs)
}

/// Whether the numbers of a field are amounts and no names.
fn is_quantity(field: &str) -> bool {
    !words::has_any(field, &["id", "zip", "code", "number", "phone", "last"])
}

/// Whether people add up the numbers of a field.
fn is_amount(field: &str) -> bool {
    let others = [
        "age",
        "average",
        "day",
        "index",
        "lat",
        "latitude",
        "level",
        "lng",
        "lon",
        "longitude",
        "mean",
        "month",
        "percent",
        "percentage",
        "position",
        "rank",
        "rate",
        "rating",
        "score",
        "temperature",
        "version",
        "year",
    ];
    !words::has_any(field, &others)
}

/// Whether a result is one value without a name.
fn is_value(reading: &Reading) -> bool {
    match reading.lists.as_slice() {
        [] => true,
        [list] => {
            matches!(list.records.as_slice(), [record] if matches!(record.as_slice(), [field] if field.name.is_empty()))
        }
        _ => false,
    }
}

/// Most words of an answer: a sentence is none.
const ANSWER_WORDS: usize = 6;

/// What can be asked about a line: the number that a sentence ends with, or a short text as a whole.
fn in_line(seen: &graph::SuccessfulCall, line: &str) -> Option<AnswerRule> {
    let arguments: Vec<String> =
        seen.args.iter().filter_map(|arg| arg.leaf.as_deref()).flat_map(numbers).collect();
    let found = numbers(line);
    let is_one_sentence = !line.trim_end_matches('.').contains(". ");
    let is_new = |number: &String| {
        let others = found.iter().filter(|other| !arguments.contains(other)).count();
        !arguments.contains(number) && others == 1
    };
    match (line.split_whitespace().count(), found.last()) {
        // The heading of an empty list.
        _ if line.ends_with(':') => None,
        (1..=2, _) => Some(AnswerRule::Only),
        (_, Some(number)) if is_one_sentence && is_new(number) => Some(AnswerRule::Number { not: arguments }),
        (3..=ANSWER_WORDS, None) => Some(AnswerRule::Only),
        _ => None,
    }
}
