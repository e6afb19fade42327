//! Chains of calls and what to ask about their results.
//!
//! A later call may use a value that an earlier one gave. The task then does not say that value but describes it: by another
//! field of its record, or as the only one there is.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::{
    asking::{self, is_own_id},
    asks::{self, Asks, Column, Condition, FactSource, Operation, Test},
    graph::{self, Arg, Graph, Origin},
    pages, questions,
    seeds::Param,
    templates,
    things::Things,
    tools::ToolProfile,
    trials,
    wording::{self, Scene},
};
use crate::{
    answer_rule::{Aggregate, AnswerRule, is_moment, numbers, value_of},
    candidate::{Candidate, Check},
    harvest::{Field, List, Reading, Record},
    words,
};

/// Most calls of a chain.
pub const CALLS: usize = 5;
/// Ways to describe the arguments of a call.
const VARIANTS: usize = 8;
/// Questions about one result.
const RULES: usize = 40;
/// Columns of a table whose type is asked for.
const TYPES: usize = 2;
/// Words of the fields by which people name a record.
const NAMES: [&str; 22] = [
    "name", "title", "message", "label", "id", "number", "no", "nr", "code", "key", "path", "uri", "url",
    "email", "isbn", "sku", "serial", "hash", "slug", "login", "username", "symbol",
];
/// In front of what a search looks for.
const MATCHING: &str = " matching ";
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
    /// The call's arguments; what the task describes, as what is asked for it.
    arguments: Map<String, Value>,
}

/// A description of a value of a record, in place of the value.
struct Description {
    variant: Variant,
    source: FactSource,
    conditions: Vec<Condition>,
    pick: Pick,
}

/// Which record of those that fit.
enum Pick {
    Only,
    First,
    Last,
    /// The only path that ends with this name.
    Path(String),
}

impl Description {
    /// What is asked for a field of the record.
    fn asks(&self, field: &str) -> Value {
        let field = Column::from(field);
        let operation = match &self.pick {
            Pick::Only => Operation::Field { field },
            Pick::First => Operation::First { field },
            Pick::Last => Operation::Last { field },
            Pick::Path(name) => return json!({"path": name}),
        };
        Asks::new(operation, self.source.clone()).filtered(self.conditions.clone()).as_argument()
    }
}

/// Candidates about every result that was seen.
pub fn candidates(graph: &Graph, profiles: &[ToolProfile], things: &Things<'_>, seed: u64) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for index in 0..graph.seen.len() {
        if super::sql::is_sql(graph, profiles, index)
            || super::changes::writes(graph, profiles, index)
            || pages::is_paged(&graph.seen[index], &profiles[graph.seen[index].tool])
            || things.is_of_server(graph.seen[index].tool)
            || graph.is_random(graph.seen[index].tool)
            || is_named_by_less(graph, index)
        {
            continue;
        }
        if !graph.seen[index].args.iter().all(|arg| graph.is_grounded(arg)) {
            continue;
        }
        if let Some(of_columns) = of_columns(graph, profiles, index, seed) {
            candidates.extend(of_columns);
            continue;
        }
        if let Some(about_things) = questions::candidates(graph, profiles, things, index, seed) {
            candidates.extend(about_things);
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
            // The plain way is the last.
            let ways = [(start + number) % variants.len(), variants.len() - 1];
            let mut ways = ways.iter().map(|way| &variants[*way]);
            candidates
                .extend(ways.find_map(|way| candidate(graph, profiles, index, way, rule.clone(), seed)));
        }
    }
    candidates
}

/// Questions about the columns of a table that a call describes: which there are, and of which type they are. Nobody asks for
/// the rest of a description.
fn of_columns(graph: &Graph, profiles: &[ToolProfile], index: usize, seed: u64) -> Option<Vec<Candidate>> {
    let seen = &graph.seen[index];
    let [only] = &*seen.args else { return None };
    let table =
        only.leaf.as_ref().filter(|leaf| words::tokens(&only.name).contains("table") && !leaf.is_empty())?;
    let [list] = &*seen.reading.lists else { return None };
    let first = list.records.first()?;
    let with = |names: &[&str]| {
        first
            .iter()
            .find(|field| names.contains(&&*words::spoken(&field.name)))
            .map(|field| field.name.clone())
    };
    let (name, kind) =
        (with(&["name", "column name", "column", "field"])?, with(&["type", "data type", "column type"])?);
    if !super::sql::tables(graph).contains(table) {
        return Some(Vec::new());
    }
    let shown = format!("the table \"{table}\"");
    let mut asked = vec![(
        AnswerRule::Column { list: list.name.clone(), field: name.clone() },
        vec![
            format!("Which columns does {shown} have? {}", wording::ALL),
            format!("List the columns of {shown}, separated by commas."),
        ],
        None,
    )];
    let mut columns: Vec<&str> = list.records.iter().filter_map(|record| value_of(record, &name)).collect();
    columns.sort_by_cached_key(|column| graph::rank(seed, table, column));
    for column in columns.into_iter().take(TYPES) {
        let rule = AnswerRule::Field {
            list: list.name.clone(),
            key: Some((name.clone(), column.to_owned())),
            field: kind.clone(),
        };
        let texts = vec![
            format!("What is the type of the column \"{column}\" in {shown}?"),
            format!("What type does the column \"{column}\" of {shown} have?"),
        ];
        asked.push((rule, texts, Some(("column".to_owned(), column.to_owned()))));
    }
    let tool = &profiles[seen.tool].name;
    let candidate = |(rule, texts, column): (AnswerRule, Vec<String>, Option<(String, String)>)| {
        let place = graph::place(seed, rule.kind(), &texts[0], texts.len());
        let source = FactSource::Tool {
            tool: tool.clone(),
            arguments: seen.call.arguments.clone(),
            list: list.name.clone(),
        };
        let asks = Asks::of_rule(&rule, source, |_, value| value.into());
        let check = if matches!(rule, AnswerRule::Column { .. }) { Check::Set } else { Check::Text };
        Candidate {
            family: format!("{tool}: {} of columns", rule.kind()),
            entity: [only.said()].into_iter().chain(column).collect(),
            task: templates::sentence(&texts[place]),
            phrasing: format!("columns {}", place + 1),
            calls: vec![seen.call.clone()],
            rule,
            check,
            asks: asks.map(|asks| asks.to_value()),
            ..Candidate::default()
        }
    };
    Some(asked.into_iter().map(candidate).collect())
}

/// Whether a call with fewer of these arguments has the same result.
fn is_named_by_less(graph: &Graph, index: usize) -> bool {
    let seen = &graph.seen[index];
    let is_less = |other: &graph::SuccessfulCall| {
        other.tool == seen.tool
            && other.call.arguments.len() < seen.call.arguments.len()
            && other.call.arguments.iter().all(|(name, value)| seen.call.arguments.get(name) == Some(value))
    };
    let is_same = |other: &graph::SuccessfulCall| {
        other.text == seen.text || !seen.reading.lists.is_empty() && other.reading.lists == seen.reading.lists
    };
    graph.seen.iter().any(|other| is_less(other) && is_same(other))
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
    let list = rule.list();
    let thing = profiles[seen.tool].thing(list);
    let of_moments = is_of_moments(seen, &rule, &answer);
    if is_detour(graph, index, variant.calls.len(), &rule, &thing) || is_riddle(variant, &rule, &thing) {
        return None;
    }
    if asked_field(&rule).is_some_and(|field| wording::is_odd(field, of_moments)) {
        return None;
    }
    let is_count =
        asked_field(&rule).is_some_and(|field| !is_set(graph, index, field)) && answer.parse::<f64>().is_ok();
    let values = asked_values(seen, &rule, &answer);
    let scene = Scene {
        place: &variant.place,
        thing: &thing,
        of_moments: of_moments || values.iter().all(|value| is_moment(value)),
        of_days: values.iter().all(|value| value.len() == 10),
        is_count,
        codes: codes(&values),
        repeats: values.iter().collect::<BTreeSet<_>>().len() < values.len(),
    };
    let asked = asking::ask(&rule, &scene);
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
    // Nor is what the calls take, or could take.
    let is_taken = variant.calls.iter().flat_map(|call| &graph.seen[*call].args);
    let may_take = |field: &str| profiles[seen.tool].params.iter().any(|param| param.name == field);
    let is_taken = is_taken.clone().any(|arg| arg.leaf.as_ref() == Some(&answer))
        || matches!(&rule, AnswerRule::Field { key: None, field, .. } if may_take(field));
    if is_taken || task.len() > TASK || matches!(&rule, AnswerRule::Field { field, .. } if is_said(field)) {
        return None;
    }
    let is_set = asked_field(&rule).is_some_and(|field| is_set(graph, index, field));
    let calls = variant.calls.iter().map(|call| graph.seen[*call].call.clone()).collect();
    let asked = Candidate { family, entity, task, phrasing, calls, rule, ..Candidate::default() };
    Some(asks::answered(asked, seen, &profiles[seen.tool].name, variant.arguments.clone(), (&answer, is_set)))
}

/// The values that are asked for.
fn asked_values<'v>(seen: &'v graph::SuccessfulCall, rule: &'v AnswerRule, answer: &'v str) -> Vec<&'v str> {
    match rule {
        AnswerRule::Column { list, field } => {
            let lists = seen.reading.lists.iter().filter(|one| one.name == *list);
            lists.flat_map(|one| &one.records).filter_map(|record| value_of(record, field)).collect()
        }
        _ => vec![answer],
    }
}

/// What values are that say nothing but which things are meant.
fn codes(values: &[&str]) -> Option<&'static str> {
    let is_digits = |value: &&str| value.bytes().all(|byte| byte.is_ascii_digit());
    let are_codes = values.iter().all(|value| words::is_code(value) && !is_moment(value));
    are_codes.then(|| if values.iter().all(is_digits) { "number" } else { "code" })
}

/// The field whose values are asked for or compared.
fn asked_field(rule: &AnswerRule) -> Option<&str> {
    match rule {
        AnswerRule::Field { field, .. }
        | AnswerRule::Column { field, .. }
        | AnswerRule::Measured { field, .. } => Some(field),
        _ => None,
    }
}

/// Whether what is asked for or compared are dates or times.
fn is_of_moments(seen: &graph::SuccessfulCall, rule: &AnswerRule, answer: &str) -> bool {
    match rule {
        AnswerRule::Measured { list, field, key: Some(_), .. } => {
            let lists = seen.reading.lists.iter().filter(|one| one.name == *list);
            lists.flat_map(|one| &one.records).filter_map(|record| value_of(record, field)).all(is_moment)
        }
        AnswerRule::Field { .. } => is_moment(answer),
        _ => false,
    }
}

/// Whether a question goes round in a circle, or about what nobody needs to ask: a field of one of the courses of the teacher of
/// a course, of a thing that a search by its name finds, or the only record's name for itself.
fn is_riddle(variant: &Variant, rule: &AnswerRule, thing: &str) -> bool {
    let AnswerRule::Field { key, field, .. } = rule else { return false };
    let is_circle = variant.calls.len() > 1 && variant.place.contains(&format!(" {thing} "));
    let is_searched = variant.place.contains(MATCHING);
    // The sheet with the sheet Parts.
    let head = variant.place.split(" in ").next().unwrap_or_default();
    let is_itself =
        [" with the ", " with "].iter().any(|with| variant.place.contains(&format!("{with}{head} ")));
    is_circle || is_searched || is_itself || key.is_none() && wording::field(field) == thing
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
    let arguments = seen.call.arguments.clone();
    variants.push(Variant {
        calls: vec![index],
        entity: entity.clone(),
        place: plain,
        arguments: arguments.clone(),
    });
    if most < 2 {
        return variants;
    }
    for (position, arg) in seen.args.iter().enumerate() {
        let is_required = profile.params.iter().any(|param| param.name == arg.name && param.is_required);
        let leaf = arg.leaf.as_ref().filter(|_| is_required);
        let Some(known) = leaf.and_then(|leaf| graph.known.get(leaf)).filter(|_| !is_search(arg)) else {
            continue;
        };
        // What a task describes may have been seen later than what it asks about; what describes that in turn, may not.
        let param = profile.params.iter().find(|param| param.name == arg.name);
        let is_usable = |origin: &&Origin| {
            (origin.call < index || most == CALLS && origin.call != index)
                && may_describe(graph, origin, &arg.name)
                && param.is_some_and(|param| is_fit(graph, profiles, profile, param, origin))
        };
        let others: BTreeMap<String, String> =
            seen.args.iter().filter(|other| other.name != arg.name).map(Arg::said).collect();
        for origin in known.origins.iter().filter(is_usable) {
            for described in descriptions(graph, profiles, origin, &others, most - 1) {
                // A thing is not found by itself.
                if described.variant.entity.values().any(|said| Some(said) == leaf) {
                    continue;
                }
                // The results of one tool by its own results read like a riddle.
                let Variant { calls, entity: said, place: words, .. } = &described.variant;
                let is_riddle = calls.iter().any(|call| graph.seen[*call].tool == seen.tool);
                if is_riddle || calls.len() >= CALLS || variants.len() >= VARIANTS {
                    continue;
                }
                let field = &record_of(graph, origin)[origin.field].name;
                let mut arguments = arguments.clone();
                let with = |other: &Value| {
                    if other.is_array() { json!([described.asks(field)]) } else { described.asks(field) }
                };
                if let Some(argument) = arguments.get_mut(&arg.name) {
                    *argument = with(argument);
                }
                let covered = covered(graph, origin, &seen.args, position);
                for other in covered.iter().map(|other| &seen.args[*other].name) {
                    arguments.insert(other.clone(), described.asks(other));
                }
                let place = place(profile, &seen.args, Some((position, words)), &covered);
                let mut entity = said.clone();
                let is_said = |other: &usize| *other != position && !covered.contains(other);
                let others = seen.args.iter().enumerate().filter(|(other, _)| is_said(other));
                entity.extend(others.map(|(_, arg)| arg.said()));
                let mut calls = calls.clone();
                calls.push(index);
                variants.push(Variant { calls, entity, place, arguments });
            }
        }
    }
    // Longer chains first: most results can also be asked about directly.
    variants.reverse();
    variants
}

/// Whether the field of a record holds what a parameter takes.
fn is_fit(
    graph: &Graph,
    profiles: &[ToolProfile],
    profile: &ToolProfile,
    param: &Param,
    origin: &Origin,
) -> bool {
    let list = &graph.seen[origin.call].reading.lists[origin.list];
    let mut of_list = words::tokens(&list.name);
    of_list.extend(profiles[origin.tool].nouns.iter().map(|noun| words::singular(noun)));
    origin.folder.is_some()
        || trials::is_fit(profile, param, &record_of(graph, origin)[origin.field].name, &of_list)
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
    let record = record_of(graph, origin);
    let names = |arg: &Arg| {
        record.iter().any(|field| field.name == arg.name && Some(&field.value) == arg.leaf.as_ref())
    };
    let is_named = record[origin.field].name == args[position].name;
    (0..args.len()).filter(|other| is_named && *other != position && names(&args[*other])).collect()
}

fn record_of<'g>(graph: &'g Graph, origin: &Origin) -> &'g Record {
    &graph.seen[origin.call].reading.lists[origin.list].records[origin.record]
}

/// Whether a value is not found by its call: this changes something, shows a part or anything, or took the value.
fn says_nothing(graph: &Graph, profiles: &[ToolProfile], origin: &Origin) -> bool {
    let seen = &graph.seen[origin.call];
    let value = &record_of(graph, origin)[origin.field].value;
    super::changes::writes(graph, profiles, origin.call)
        || pages::is_paged(seen, &profiles[seen.tool])
        || graph.is_random(origin.tool)
        || seen.args.iter().any(|arg| arg.leaf.as_ref() == Some(value))
}

/// Ways to describe a value without saying it. `entity` is what the task says anyway.
fn descriptions(
    graph: &Graph,
    profiles: &[ToolProfile],
    origin: &Origin,
    entity: &BTreeMap<String, String>,
    most: usize,
) -> Vec<Description> {
    let seen = &graph.seen[origin.call];
    let profile = &profiles[seen.tool];
    if says_nothing(graph, profiles, origin) {
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
        let of = |words: String, said: Option<(String, String)>, pick: Pick| {
            let mut entity = if is_said { BTreeMap::new() } else { source.entity.clone() };
            let is_condition = matches!(pick, Pick::Only);
            let conditions = said.iter().filter(|_| is_condition).map(|(key, value)| Condition {
                column: Column::One(key.clone()),
                test: Test::Is(asks::typed(&seen.reading, &list.name, key, value)),
            });
            let conditions = conditions.collect();
            entity.extend(said);
            let arguments = source.arguments.clone();
            let asked = FactSource::Tool {
                tool: profile.name.clone(),
                arguments: arguments.clone(),
                list: list.name.clone(),
            };
            Description {
                variant: Variant { calls: source.calls.clone(), entity, place: words, arguments },
                source: asked,
                conditions,
                pick,
            }
        };
        if let Some(folder) = &origin.folder {
            let is_unique =
                graph.known.keys().filter(|path| path.ends_with(&format!("/{}", value.value))).count() == 1;
            if is_unique && !value.value.is_empty() && !entity.values().any(|said| said == folder) {
                let words = format!("the {thing} named {}{behind}", words::shown(&value.value));
                let said = Some(("name".into(), value.value.clone()));
                found.push(of(words, said, Pick::Path(value.value.clone())));
            }
            continue;
        }
        if list.is_nested {
            continue;
        }
        // `the only requirements` of `requires`
        let is_noun = words::spoken_field(&list.name) == words::spoken(&list.name);
        if list.records.len() == 1 && record.len() == 1 {
            if !is_noun {
                continue;
            }
            found.push(of(format!("the only {thing}{within}"), None, Pick::Only));
            continue;
        }
        if record.len() == 1 && value.name.is_empty() && list.is_list && !is_said {
            let (place, pick) = match origin.record {
                0 => ("first", Pick::First),
                last if last + 1 == list.records.len() => ("last", Pick::Last),
                _ => continue,
            };
            let within = asking::subject(&source.place)
                .map_or_else(|| format!("in the {}", source.place), |subject| format!("for {subject}"));
            found.push(of(format!("the {thing} listed {place} {within}"), None, pick));
            continue;
        }
        if !list.is_list && list.records.len() == 1 && !is_said {
            let head = words::spoken_thing(&value.name);
            if !head.is_empty() {
                found.push(of(format!("the {head}{within}"), None, Pick::Only));
                continue;
            }
        }
        for (key, said) in describing(graph, origin, &thing, is_said) {
            let is_searched = seen.args.iter().any(|arg| is_search(arg) && arg.leaf.as_ref() == Some(&said));
            let tail = match is_said || is_searched {
                true => String::new(),
                false => asking::behind(&thing, &source.place),
            };
            let words =
                format!("{}{}", part(&value.name, &thing), asking::named_of(&thing, &key, &said, &tail));
            found.push(of(words, Some((key, said)), Pick::Only));
        }
    }
    found
}

/// Fields by which people find the record of a result. `is_said`: the task says what its call takes anyway.
fn describing(graph: &Graph, origin: &Origin, thing: &str, is_said: bool) -> Vec<(String, String)> {
    let seen = &graph.seen[origin.call];
    let (list, record) = (&seen.reading.lists[origin.list], record_of(graph, origin));
    let changing = graph.changing(origin.tool);
    let keys = keys(list, record, &record[origin.field].name).into_iter();
    let mut keys: Vec<(String, String)> = keys.filter(|(key, _)| !changing.contains(key)).take(2).collect();
    // Who knows the name says no number.
    if keys.first().is_some_and(|(key, _)| words::has_any(key, &["name", "title"])) {
        keys.truncate(1);
    }
    // A search finds what it looks for, a number needs no list, and what is said once is enough.
    let search = seen.args.iter().find(|arg| is_search(arg));
    let is_taken = |said: &String| seen.args.iter().any(|arg| arg.leaf.as_ref() == Some(said));
    let is_number = |key: &str| is_own_id(key, thing) || words::is_identifier(key);
    keys.retain(|(key, said)| match search {
        Some(search) => search.leaf.as_ref() == Some(said),
        None => is_said || seen.args.is_empty() || !is_number(key) && !is_taken(said),
    });
    keys
}

/// Whether another call gives the field of a record by the record's key alone, as people ask for it.
fn is_detour(graph: &Graph, index: usize, calls: usize, rule: &AnswerRule, thing: &str) -> bool {
    let AnswerRule::Field { key: Some((key, value)), field, .. } = rule else { return false };
    let seen = &graph.seen[index];
    let is_direct = |other: &graph::SuccessfulCall| {
        matches!(&*other.args, [only] if only.leaf.as_ref() == Some(value))
            && other.reading.lists.iter().any(|list| {
                !list.is_list && !list.is_part && list.records.iter().flatten().any(|one| one.name == *field)
            })
    };
    let has_direct = || graph.seen.iter().any(|other| other.tool != seen.tool && is_direct(other));
    is_own_id(key, thing) && (calls > 1 || has_direct())
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
    // Another record of a list that is known in part may have the same.
    let is_id = |name: &str| {
        words::has_any(
            name,
            &["id", "uuid", "hash", "path", "email", "isbn", "serial", "code", "number", "no"],
        )
    };
    let is_named = |name: &str| words::has_any(name, &NAMES);
    let has_names = record.iter().any(|field| is_named(&field.name) && !field.is_set);
    let is_sure = |name: &str| if list.is_part { is_id(name) } else { is_named(name) || !has_names };
    let is_odd = |name: &str| words::is_preposition(name) || words::NO_NOUNS.contains(&name);
    let mut keys: Vec<(String, String)> = record
        .iter()
        .filter(|field| field.name != without && !field.is_set && !field.name.is_empty())
        .filter(|field| is_sure(&field.name) && !is_odd(&field.name) && !is_moment(&field.value))
        .filter(|field| !field.value.trim().is_empty() && field.value.len() <= SAID / 2)
        .filter(|field| !["true", "false", "null", "None", "[]", "{}"].contains(&field.value.as_str()))
        .filter(|field| is_unique(&field.name, &field.value))
        .filter(|field| field.value.parse::<f64>().is_err() || !is_quantity(&field.name))
        .map(|field| (field.name.clone(), field.value.clone()))
        .collect();
    keys.sort_by_key(|(name, value)| rank(name, value));
    keys
}

/// Whether an argument is what a search looks for.
fn is_search(arg: &Arg) -> bool {
    words::has_any(&arg.name, &["query", "search", "keyword", "q", "term"])
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
    let mut owner = None;
    // `a booking by its code` is the booking with this code.
    let is_one =
        |head: &String| head.contains(" of a ") || head.contains(" of an ") || !words::is_plural(head);
    let found_by = text.strip_suffix(" by").map(str::to_owned).filter(is_one);
    let details = |head: &str| match head.split_once(" of a ").or_else(|| head.split_once(" of an ")) {
        Some((form, noun)) => (format!("{form} of "), noun.to_owned()),
        None => ("details of ".to_owned(), head.to_owned()),
    };
    // `devices of a site`, where the site is given or not; `depot`, where it is.
    for param in &profile.params {
        let said = words::spoken_param(&param.name);
        let form = [" of a ", " of an "].iter().find(|of| text.ends_with(&format!("{of}{said}")));
        if let Some(of) = form.filter(|_| slot.as_ref().is_none_or(|slot| slot.param != param.name)) {
            text.truncate(text.len() - of.len() - said.len());
            let given = args.iter().position(|arg| arg.name == param.name);
            if let Some(at) = given.filter(|at| !covered.contains(at)) {
                let words =
                    described.filter(|(position, _)| *position == at).map(|(_, words)| words.to_owned());
                within = format!(" of {}", words.unwrap_or_else(|| words::called(&said, &args[at].shown)));
                owner = Some(at);
            }
        }
    }
    if let ([only], None) = (args, slot)
        && words::spoken_param(&only.name) == text
    {
        let words =
            described.map_or_else(|| words::called(&text, &only.shown), |(_, words)| words.to_owned());
        return format!("details of {words}");
    }
    if slot.is_none() && args.iter().any(is_search) {
        text.truncate(text.find(" by ").unwrap_or(text.len()));
    }
    let mut is_described = false;
    let others = args.iter().enumerate();
    for (index, arg) in others.filter(|(index, _)| !covered.contains(index) && owner != Some(*index)) {
        let preposition = words::preposition_of(&arg.name);
        let described = described.filter(|(position, _)| *position == index).map(|(_, words)| words);
        let slot = slot.as_ref().filter(|slot| slot.param == arg.name);
        let is_path = profile.params.iter().any(|param| param.name == arg.name && param.is_path());
        match (slot, described, preposition) {
            (Some(_), words, _) if found_by.is_some() => {
                let (form, noun) = details(found_by.as_deref().unwrap_or_default());
                text = match words {
                    Some(words) => format!("{form}{words}"),
                    None => format!("{form}{}", words::called(&noun, &arg.shown)),
                };
            }
            (Some(_), Some(words), _) => text += &format!(" {words}"),
            (Some(slot), None, _)
                if slot.noun.is_empty() || text.ends_with(" on") && preposition == Some("on") =>
            {
                text += &format!(" {}", arg.shown);
            }
            (Some(slot), None, _) => text += &format!(" {}", words::called(&slot.noun, &arg.shown)),
            (None, words, _) if is_path && within.is_empty() => {
                within = format!(" in {}", words.unwrap_or(&arg.shown));
            }
            (None, None, None) if is_search(arg) => within += &format!("{MATCHING}{}", arg.shown),
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
    let changing = graph.changing(seen.tool);
    let tells = |field: &Field| {
        tells(field) && !changing.contains(&field.name) && !words::NO_NOUNS.contains(&field.name.as_str())
    };
    let mut rules = Vec::new();
    for list in seen.reading.lists.iter().filter(|list| !list.is_nested) {
        let name = || list.name.clone();
        let of_field = |key: Option<(String, String)>, field: &Field| AnswerRule::Field {
            list: name(),
            key,
            field: field.name.clone(),
        };
        if let ([record], false) = (list.records.as_slice(), list.is_list || list.is_part) {
            // What is said about a list is not asked.
            let is_about_list = |field: &Field| {
                seen.reading.lists.len() > 1 && words::ABOUT_LISTS.contains(&field.name.as_str())
            };
            let tells = |field: &Field| tells(field) && !is_about_list(field);
            let named =
                record.iter().filter(|field| tells(field) && (!field.name.is_empty() || record.len() == 1));
            rules.extend(named.map(|field| match field.name.as_str() {
                "" => AnswerRule::Only,
                _ => of_field(None, field),
            }));
            continue;
        }
        for record in &list.records {
            // What the arguments say tells no record from the others.
            let is_said = |value: &String| seen.args.iter().any(|arg| arg.leaf.as_ref() == Some(value));
            let keys = keys(list, record, "\n").into_iter();
            let mut keys = keys.filter(|(name, value)| !is_said(value) && !changing.contains(name));
            if let Some(key) = keys.next() {
                let others = record
                    .iter()
                    .filter(|field| tells(field) && field.name != key.0 && !field.name.is_empty());
                rules.extend(others.map(|field| of_field(Some(key.clone()), field)));
            }
        }
        // The cells of a table without names are no things.
        let is_grid = list.records.iter().any(|record| record.len() > 1 && record[1].name.is_empty());
        if list.is_list && list.records.len() > 1 && !is_grid && !is_mixed(list, &seen.args) {
            rules.push(AnswerRule::Count { list: name() });
            let first = &list.records[0];
            let has_name = first.iter().any(|field| words::has_any(&field.name, &["name", "title"]));
            let measured = |field: &Field, key: Option<String>, wanted: Aggregate| AnswerRule::Measured {
                list: name(),
                field: field.name.clone(),
                key,
                wanted,
            };
            for field in first.iter().filter(|field| tells(field) && !field.is_set) {
                let of_field = || list.records.iter().flatten().filter(|other| other.name == field.name);
                let values: BTreeSet<&str> = of_field().map(|field| field.value.as_str()).collect();
                // Nobody tells apart what differs in nothing but case.
                let is_told_apart = values.len()
                    == values.iter().map(|value| value.to_lowercase()).collect::<BTreeSet<_>>().len();
                let is_number = |value: &str| value.parse::<f64>().is_ok() && !is_padded(value);
                let look_like_numbers = of_field().all(|field| is_number(&field.value));
                let are_numbers = look_like_numbers && of_field().all(|field| !field.is_text);
                let is_number = are_numbers && is_quantity(&field.name);
                let is_id = words::is_identifier(&field.name);
                // Nobody wants a list of amounts.
                let is_unfit = if is_id { has_name } else { look_like_numbers };
                if values.len() > 1 && !is_number && !is_unfit && is_told_apart {
                    rules.push(AnswerRule::Column { list: name(), field: field.name.clone() });
                }
                if is_number || is_moment(&field.value) {
                    let key = keys(list, first, &field.name).into_iter().next().map(|(key, _)| key);
                    for key in key.into_iter().chain([field.name.clone()]) {
                        let extreme = |wanted| measured(field, Some(key.clone()), wanted);
                        rules.extend([Aggregate::Most, Aggregate::Least].map(extreme));
                    }
                }
                if is_number && words::is_added_up(&field.name) {
                    rules.push(measured(field, None, Aggregate::Total));
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

/// Whether a number begins with a zero, as codes and telephone numbers do.
fn is_padded(value: &str) -> bool {
    value.len() > 1 && value.starts_with('0') && !value.contains('.')
}

/// Whether the numbers of a field are amounts and no names.
fn is_quantity(field: &str) -> bool {
    !words::is_identifier(field) && !words::has_any(field, &["last"])
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
