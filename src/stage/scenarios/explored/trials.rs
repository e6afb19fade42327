//! The calls that exploration tries: combinations of values that fit the parameters, in rounds.

use std::collections::BTreeMap;

use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use serde_json::{Map, Value};

use super::{
    graph::{Arg, Graph},
    seeds::{self, Kind, Param},
    sql,
    tools::ToolProfile,
};
use crate::{
    chat::ToolCall,
    hash::Encoder,
    mcp::plain,
    stage::scenarios::{phrase::below, words},
};

/// Values of a parameter that are combined.
const VALUES: usize = 40;

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
    let mut joint = if required.len() > 1 { graph.joint(&required, seed) } else { Vec::new() }.into_iter();
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
            let mut found = graph.candidates(profile, param, seed, VALUES);
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
