//! The calls that exploration tries: combinations of values that fit the parameters, in rounds.
//!
//! A value fits a parameter by name (words in singular, where `id` of a book fits `book_id`), by type, and by trial: an edge
//! that failed several times and never worked is not tried again.

use std::collections::{BTreeMap, BTreeSet};

use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use serde_json::{Map, Value, json};

use super::{
    graph::{Arg, Graph, KnownValue, is_path, rank},
    seeds::{self, Kind, Param},
    sql,
    tools::ToolProfile,
};
use crate::{
    chat::ToolCall,
    harvest::Field,
    hash::Encoder,
    mcp::plain,
    phrase::below,
    words::{self, KEYS},
};

/// Values of a parameter that are combined.
const VALUES: usize = 40;

/// Failures after which an edge that never worked is dropped.
const FAILURES: usize = 4;

/// A call to try.
pub struct Trial {
    pub call: ToolCall,
    pub args: Vec<Arg>,
}

/// Up to `most` new calls of a tool. Later rounds also set optional parameters.
pub fn trials(graph: &mut Graph, profile: &ToolProfile, round: usize, seed: u64, most: usize) -> Vec<Trial> {
    let required: Vec<&Param> = profile.params.iter().filter(|param| param.is_required).collect();
    let optional: Vec<&Param> = profile.params.iter().filter(|param| !param.is_required).collect();
    let mut encoder = Encoder::new("mcprl trials v1");
    encoder.number(seed).text(&profile.name).number(round as u64);
    let mut rng = ChaCha8Rng::from_seed(*encoder.finish().as_bytes());
    let values: Vec<Vec<Value>> =
        required.iter().map(|param| values(graph, profile, param, seed, &mut rng)).collect();
    if values.iter().any(Vec::is_empty) {
        return Vec::new();
    }
    let product = values.iter().map(Vec::len).fold(1_usize, usize::saturating_mul);
    // Examples are tried one after the other, and so are queries.
    let is_in_turn = |only: &Param| !only.examples.is_empty() || only.kind == Kind::Sql;
    let in_order = product <= most || matches!(&*required, [only] if is_in_turn(only));
    let mut joint = if required.len() > 1 { joint(graph, &required, seed) } else { Vec::new() }.into_iter();
    let attempts = if in_order { product.max(most * 4) } else { most * 4 };
    let mut trials = Vec::new();
    for attempt in 0..attempts.min(product.saturating_mul(1 + optional.len() * 2)).max(1) {
        if trials.len() >= most {
            break;
        }
        // In order where few combinations exist; else the best of each first, then by chance.
        let mut index = attempt % product;
        let pick = |values: &Vec<Value>| {
            let place = match attempt {
                _ if in_order => index % values.len(),
                0 => 0,
                _ => below(&mut rng, values.len()),
            };
            index /= values.len();
            values[place].clone()
        };
        // Values of one record belong together.
        let together = if attempt % 2 == 0 { joint.next() } else { None };
        let mut picked: Vec<Value> = values.iter().map(pick).collect();
        for (place, value) in together.into_iter().flatten().enumerate() {
            picked[place] = value.unwrap_or_else(|| picked[place].clone());
        }
        let mut chosen: Vec<(&Param, Value)> = required.iter().copied().zip(picked).collect();
        let sets_optional = !optional.is_empty() && (attempt >= product || attempt % 3 == 2 && round > 0);
        if sets_optional {
            let param = optional[below(&mut rng, optional.len())];
            let values = self::values(graph, profile, param, seed, &mut rng);
            if !values.is_empty() {
                chosen.push((param, values[below(&mut rng, values.len())].clone()));
            }
        }
        let args = chosen.iter().map(|(param, value)| arg(param, value)).collect();
        let arguments = chosen.into_iter().map(|(param, value)| (param.name.clone(), value)).collect();
        let call = ToolCall { name: profile.name.clone(), arguments };
        if graph.is_new(&call) {
            trials.push(Trial { call, args });
        }
    }
    trials
}

/// Values to try for a parameter of any kind; never none for a text.
fn values(
    graph: &Graph,
    profile: &ToolProfile,
    param: &Param,
    seed: u64,
    rng: &mut ChaCha8Rng,
) -> Vec<Value> {
    match &param.kind {
        _ if param.is_closed => param.seeds.clone(),
        Kind::Sql => {
            let queries = sql::queries(graph).into_iter().map(Value::from);
            param.examples.iter().cloned().chain(queries).collect()
        }
        Kind::List(item) => {
            let items = values(graph, profile, item, seed, rng);
            let mut lists: Vec<Value> = param.seeds.clone();
            lists.extend(items.iter().take(VALUES / 2).map(|item| Value::from(vec![item.clone()])));
            lists.extend(items.windows(2).take(2).map(|pair| Value::from(pair.to_vec())));
            lists
        }
        Kind::Object(fields) => {
            let mut objects = param.seeds.clone();
            let mut of_fields: BTreeMap<String, Vec<Value>> = BTreeMap::new();
            for attempt in 0..6 {
                let mut pick = |field: &Param| {
                    let values = of_fields
                        .entry(field.name.clone())
                        .or_insert_with(|| values(graph, profile, field, seed, rng));
                    let known = values.first().cloned();
                    // New words for what may be new, known values for what refers to something.
                    match field.kind {
                        Kind::Text if attempt % 2 == 0 && known.is_some() => {
                            values.get(attempt / 2 % values.len()).cloned()
                        }
                        Kind::Text => Some(seeds::neutral(below(rng, 12))),
                        _ => known,
                    }
                };
                let required = fields.iter().filter(|field| field.is_required);
                let object: Option<Map<String, Value>> =
                    required.map(|field| Some((field.name.clone(), pick(field)?))).collect();
                objects.extend(object.map(Value::Object));
            }
            objects
        }
        _ => {
            let mut found = values_for(graph, profile, param, seed, VALUES);
            if !profile.reads && param.kind == Kind::Path {
                // Something new beside what is there.
                let roots = graph.given.iter().filter(|text| text.starts_with('/'));
                let start = below(rng, 12);
                let new = |root: &String| {
                    let name = |number| format!("{root}/{}", plain(&seeds::neutral(number)));
                    (start..start + 4).map(name).map(Value::from).collect::<Vec<_>>()
                };
                found.splice(0..0, roots.flat_map(new).collect::<Vec<_>>());
                found.truncate(VALUES / 4);
            }
            if profile.reads && param.is_required && seeds::is_query(&param.name) {
                found.extend(seeds::COMMON.map(Value::from));
            } else if !profile.reads || found.is_empty() && param.is_required {
                let start = below(rng, 12);
                if matches!(param.kind, Kind::Text) {
                    found.extend((start..start + 3).map(seeds::neutral));
                }
            }
            found
        }
    }
}

/// Values for a parameter, the best first, at most `most`; what is equally good is in seeded order. An optional parameter
/// gets none that fits by nothing.
fn values_for(graph: &Graph, profile: &ToolProfile, param: &Param, seed: u64, most: usize) -> Vec<Value> {
    let examples = param.examples.iter().enumerate();
    let mut found: Vec<(i64, u64, Value)> =
        examples.map(|(place, value)| (200, place as u64, value.clone())).collect();
    let most = most + found.len();
    for (place, value) in param.seeds.iter().enumerate() {
        found.push((if param.is_closed { 100 } else { 20 }, place as u64, value.clone()));
    }
    if !param.is_closed {
        let mut others: Vec<(i64, u64, Value)> = Vec::new();
        for (text, known) in &graph.known {
            let Some(value) = typed(&param.kind, text) else { continue };
            let score = score(graph, profile, param, text, known);
            others.push((score, rank(seed, &param.name, text), value));
        }
        for text in &graph.given {
            let Some(value) = typed(&param.kind, text) else { continue };
            let fits_path = param.kind == Kind::Path && is_path(text)
                || param.words.contains("uri") && text.contains("://");
            others.push((if fits_path { 25 } else { 1 }, rank(seed, &param.name, text), value));
        }
        others.sort_by_key(|(score, rank, _)| (-score, *rank));
        // What fits by nothing is tried only where nothing else is there, a few of it.
        let has_fit = !found.is_empty() || others.iter().any(|(score, ..)| *score > 4);
        let least = if has_fit { 5 } else { 0 };
        others.retain(|(score, ..)| *score >= least);
        others.truncate(match (has_fit, param.is_required) {
            (true, _) => most,
            (false, true) => 4,
            (false, false) => 0,
        });
        found.extend(others);
    }
    found.sort_by_key(|(score, rank, _)| (-score, *rank));
    let mut values: Vec<Value> = Vec::new();
    for (_, _, value) in found {
        if !values.contains(&value) && values.len() < most {
            values.push(value);
        }
    }
    values
}

/// Values for two or more of these parameters that belong together, in seeded order: they stand in one record under the
/// parameters' names, or one stands in the result of a call with the other, as a sheet in what describes a workbook.
fn joint(graph: &Graph, params: &[&Param], seed: u64) -> Vec<Vec<Option<Value>>> {
    let mut found: Vec<(u64, Vec<Option<Value>>)> = Vec::new();
    for seen in &graph.seen {
        for list in &seen.reading.lists {
            let of_list = words::tokens(&list.name);
            for record in &list.records {
                let of = |param: &&Param| {
                    let said = words::split(&param.name);
                    let is_name = |field: &&Field| {
                        ["name", "id", "title", "path"].contains(&field.name.as_str())
                            && !said.is_empty()
                            && said.iter().all(|word| of_list.contains(&words::singular(word)))
                    };
                    let field = record.iter().find(|field| words::split(&field.name) == said);
                    let field =
                        field.or_else(|| record.iter().find(is_name)).map(|field| field.value.as_str());
                    let arg = seen.args.iter().find(|arg| arg.name == param.name);
                    typed(&param.kind, field.or_else(|| arg?.leaf.as_deref())?)
                };
                let values: Vec<Option<Value>> = params.iter().map(of).collect();
                if values.iter().flatten().count() > 1 {
                    found.push((rank(seed, "joint", &json!(values).to_string()), values));
                }
            }
        }
    }
    found.sort_by_key(|(rank, _)| *rank);
    found.dedup();
    found.into_iter().map(|(_, values)| values).collect()
}

fn score(graph: &Graph, profile: &ToolProfile, param: &Param, text: &str, known: &KnownValue) -> i64 {
    let target = format!("{}.{}", profile.name, param.name);
    let edges = known.sources.iter().filter_map(|source| graph.edges.get(&(source.clone(), target.clone())));
    let (worked, failed) = edges.fold((0, 0), |(worked, failed), edge| (worked + edge.0, failed + edge.1));
    let is_fit = known.fields.is_empty()
        || known.fields.iter().any(|(field, list)| is_fit(profile, param, field, list));
    if worked == 0 && failed >= FAILURES || !is_fit {
        return -1;
    }
    let tool_words: BTreeSet<String> = profile.nouns.iter().map(|noun| words::singular(noun)).collect();
    let weight = |word: &String| if words::is_weak(word) { 4 } else { 20 };
    let mut score: i64 = param.words.intersection(&known.words).map(weight).sum();
    let is_generic = param.words.iter().all(|word| words::is_weak(word));
    if is_generic && tool_words.intersection(&known.words).any(|word| !words::is_weak(word)) {
        score += 12;
    }
    if param.kind == Kind::Path {
        score += match text {
            _ if is_path(text) => 25,
            _ if words::is_spaced_file(text) => 24,
            _ => -10,
        };
    } else if is_path(text) {
        score -= 6;
    }
    if worked > 0 {
        score += 15;
    } else if failed > 0 {
        score -= 5;
    }
    score
}

/// Whether a field of a list of such things can hold what a parameter takes. An amount is no id, and neither is the id of
/// something else.
pub fn is_fit(profile: &ToolProfile, param: &Param, field: &str, list: &BTreeSet<String>) -> bool {
    let is_key = |word: &String| KEYS.contains(&word.as_str());
    let (field_words, is_id) = (words::tokens(field), param.words.iter().any(is_key));
    if !is_id {
        return true;
    }
    let mut own: BTreeSet<String> = param.words.iter().filter(|word| !is_key(word)).cloned().collect();
    if own.is_empty() {
        own = profile.nouns.iter().map(|noun| words::singular(noun)).collect();
    }
    if field.is_empty() || own.is_empty() {
        return true;
    }
    if words::is_amount(field) {
        return false;
    }
    let of_field: BTreeSet<&String> = field_words.iter().filter(|word| !is_key(word)).collect();
    let is_own = |word: &&String| own.contains(*word);
    match (field_words.iter().any(is_key), of_field.is_empty()) {
        (true, true) => list.iter().any(|word| own.contains(word)),
        (true, false) => of_field.iter().any(is_own),
        (false, _) => {
            let head = words::split(field).pop().map(|last| words::singular(&last)).unwrap_or_default();
            let is_name = ["name", "title", "slug", "handle"].contains(&head.as_str());
            own.contains(&head) || is_name && list.iter().any(|word| own.contains(word))
        }
    }
}

/// A harvested text as a value of this kind.
fn typed(kind: &Kind, text: &str) -> Option<Value> {
    match kind {
        Kind::Text | Kind::Path => Some(text.into()),
        Kind::Integer => text.parse::<i64>().ok().map(Value::from),
        Kind::Number => text.parse::<f64>().ok().filter(|number| number.is_finite()).map(seeds::number),
        Kind::Boolean | Kind::Sql | Kind::List(_) | Kind::Object(_) => None,
    }
}

fn arg(param: &Param, value: &Value) -> Arg {
    let leaf = match value {
        Value::Array(items) => match items.as_slice() {
            [only] if !only.is_object() && !only.is_array() => Some(plain(only)),
            _ => None,
        },
        Value::Object(_) => None,
        scalar => Some(plain(scalar)),
    };
    let shown = leaf.as_deref().map_or_else(|| structure(value), words::shown);
    Arg { name: param.name.clone(), leaf, shown }
}

/// A structure in words: `name amber, kind "big"`.
fn structure(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let field =
                |(name, value): (&String, &Value)| format!("{} {}", words::spoken(name), structure(value));
            fields.iter().map(field).collect::<Vec<_>>().join(", ")
        }
        Value::Array(items) => items.iter().map(structure).collect::<Vec<_>>().join(" and "),
        scalar => words::shown(&plain(scalar)),
    }
}
