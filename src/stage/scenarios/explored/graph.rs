//! What exploration found: calls, the values in their results, and which values fit which parameters.
//!
//! A value fits a parameter by name (words in singular, where `id` of a book fits `book_id`), by type, and by trial: an edge
//! that failed several times and never worked is not tried again.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{
    seeds::{Kind, Param},
    tools::ToolProfile,
};
use crate::{
    chat::ToolCall,
    hash::Encoder,
    mcp::plain,
    stage::scenarios::{
        candidate::Candidate,
        harvest::{self, Field, List, Reading},
        words,
    },
};

/// Words of what tells things apart.
const KEYS: [&str; 9] = ["id", "no", "nr", "num", "number", "code", "key", "ref", "uuid"];
/// Most values that are remembered, and of one call.
const KNOWN: usize = 4000;
const OF_CALL: usize = 120;
/// Failures after which an edge that never worked is dropped.
const FAILURES: usize = 4;
/// Places that a value is remembered from.
const ORIGINS: usize = 6;
const ORIGINS_OF_TOOL: usize = 2;

/// A successful call and what it gave.
#[derive(Debug)]
pub struct SuccessfulCall {
    pub tool: usize,
    pub call: ToolCall,
    pub args: Vec<Arg>,
    pub text: String,
    pub reading: Reading,
}

/// An argument as it is named in a task.
#[derive(Debug, Clone, PartialEq)]
pub struct Arg {
    pub name: String,
    /// The text of its value, or of its only item; none for a structure.
    pub leaf: Option<String>,
    pub shown: String,
}

impl Arg {
    /// Its name and what a task says of its value.
    pub fn said(&self) -> (String, String) {
        (self.name.clone(), self.leaf.clone().unwrap_or_else(|| self.shown.clone()))
    }
}

/// A value that a result has.
#[derive(Debug, Default)]
pub struct KnownValue {
    pub words: BTreeSet<String>,
    pub origins: Vec<Origin>,
    /// The tools and fields that it came from, for edges.
    sources: BTreeSet<String>,
    /// The fields that it stands in, each with the words of their lists.
    fields: BTreeMap<String, BTreeSet<String>>,
    /// The tools whose results have it.
    tools: BTreeSet<usize>,
}

impl KnownValue {
    /// The names of the fields that it stands in.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.fields.keys().map(String::as_str)
    }
}

/// Where a value stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Origin {
    /// Index of the call, and of its tool.
    pub call: usize,
    pub tool: usize,
    pub list: usize,
    pub record: usize,
    pub field: usize,
    /// The value is this path with the name that stands there.
    pub folder: Option<String>,
}

/// A call after which a reading call shows something else.
#[derive(Debug)]
pub struct Effect {
    /// Index of the call in [`Graph::seen`].
    pub call: usize,
}

#[derive(Debug, Default)]
pub struct Graph {
    pub seen: Vec<SuccessfulCall>,
    /// By text.
    pub known: BTreeMap<String, KnownValue>,
    /// Values to try that no result has: URIs of resources, words of instructions and of the server's command.
    pub given: Vec<String>,
    /// Successes and failures by source and parameter.
    pub edges: BTreeMap<(String, String), (usize, usize)>,
    pub keys: BTreeSet<String>,
    /// What calls that write changed.
    pub effects: Vec<Effect>,
    /// What changes by itself, by tool.
    pub changing: BTreeMap<usize, Changing>,
}

/// What changes in the results of a tool although nothing was done.
#[derive(Debug, Clone, PartialEq)]
pub enum Changing {
    All,
    Fields(BTreeSet<String>),
}

impl Changing {
    /// What differs between results of the same call.
    pub fn between(texts: &[&str]) -> Option<Self> {
        let first = harvest::read(texts.first()?);
        let (mut fields, mut differs) = (BTreeSet::new(), false);
        for text in texts.iter().filter(|text| **text != texts[0]) {
            let other = harvest::read(text);
            let shape = |reading: &Reading| -> Vec<(String, Vec<Vec<String>>)> {
                let names =
                    |record: &harvest::Record| record.iter().map(|field| field.name.clone()).collect();
                reading
                    .lists
                    .iter()
                    .map(|list| (list.name.clone(), list.records.iter().map(names).collect()))
                    .collect()
            };
            if first.lists.is_empty() || shape(&first) != shape(&other) {
                return Some(Self::All);
            }
            let all = |reading: &Reading| -> Vec<Field> {
                reading.lists.iter().flat_map(|list| &list.records).flatten().cloned().collect()
            };
            let differ: BTreeSet<String> = all(&first)
                .into_iter()
                .zip(all(&other))
                .filter(|(one, two)| one != two)
                .map(|(one, _)| one.name)
                .collect();
            differs = true;
            fields.extend(differ);
        }
        match () {
            () if !differs => None,
            // Records change places, or a value without a name differs.
            () if fields.len() > 1 && fields.iter().any(|name| words::is_identifier(name))
                || fields.contains("") =>
            {
                Some(Self::All)
            }
            () => Some(Self::Fields(fields)),
        }
    }

    /// A result without what changes.
    pub fn stable(changing: Option<&Self>, text: &str) -> String {
        let Some(Self::Fields(fields)) = changing else { return text.to_owned() };
        let mut reading = harvest::read(text);
        for record in reading.lists.iter_mut().flat_map(|list| &mut list.records) {
            record.retain(|field| !fields.contains(&field.name));
        }
        format!("{:?}", reading.lists)
    }
}

impl Graph {
    /// Remembers the users' examples as values that exist.
    pub fn add_examples(&mut self, profiles: &mut [ToolProfile]) {
        for profile in profiles {
            for (name, param) in super::examples::leaves(&mut profile.params) {
                for value in &param.examples {
                    let known = self.known.entry(plain(value)).or_default();
                    known.words.extend(param.words.iter().cloned());
                    known.sources.insert(format!("values/{name}"));
                }
            }
        }
    }

    /// Whether a call is new; remembers it.
    pub fn is_new(&mut self, call: &ToolCall) -> bool {
        self.keys.insert(json!(call).to_string())
    }

    /// Edges that worked at least once.
    pub fn working_edges(&self) -> usize {
        self.edges.values().filter(|(worked, _)| *worked > 0).count()
    }

    /// The values that results of the same tool have where the answer of this task stands.
    pub fn alternatives(&self, profiles: &[ToolProfile], candidate: &Candidate) -> BTreeSet<String> {
        let last = candidate.calls.last().map(|call| call.name.as_str());
        let of_tool = self.seen.iter().filter(|seen| Some(profiles[seen.tool].name.as_str()) == last);
        of_tool.flat_map(|seen| candidate.rule.alternatives(&seen.reading, "")).collect()
    }

    /// Remembers whether the values of a call worked.
    pub fn learn(&mut self, profile: &ToolProfile, args: &[Arg], worked: bool) {
        for arg in args {
            let Some(known) = arg.leaf.as_ref().and_then(|leaf| self.known.get(leaf)) else { continue };
            for source in &known.sources {
                let edge =
                    self.edges.entry((source.clone(), format!("{}.{}", profile.name, arg.name))).or_default();
                if worked { edge.0 += 1 } else { edge.1 += 1 }
            }
        }
    }

    /// Remembers a successful call and the values of its result.
    pub fn add(
        &mut self,
        profiles: &[ToolProfile],
        tool: usize,
        call: ToolCall,
        args: Vec<Arg>,
        text: String,
    ) {
        let reading = harvest::read(&text);
        let profile = &profiles[tool];
        let index = self.seen.len();
        let folders: Vec<String> =
            args.iter().filter_map(|arg| arg.leaf.clone()).filter(|leaf| is_path(leaf)).collect();
        let mut count = 0;
        for (list, List { name: list_name, records, is_nested, .. }) in reading.lists.iter().enumerate() {
            let mut list_words = words::tokens(list_name);
            list_words.extend(profile.nouns.iter().map(|noun| words::singular(noun)));
            for (record, fields) in records.iter().enumerate() {
                let single = fields.iter().enumerate().filter(|(_, field)| !field.is_set);
                for (field, Field { name, value, .. }) in single {
                    count += 1;
                    if count > OF_CALL || value.trim().is_empty() || value.len() > 200 {
                        continue;
                    }
                    let origin = Origin { call: index, tool, list, record, field, folder: None };
                    let mut words = words::tokens(name);
                    words.extend(list_words.iter().cloned());
                    let source = format!("{}/{list_name}/{name}", profile.name);
                    let names_entry = name.is_empty() || name.ends_with("name");
                    if is_name(value) && names_entry && !is_nested {
                        for folder in &folders {
                            let joined = format!("{}/{value}", folder.trim_end_matches('/'));
                            let origin = Origin { folder: Some(folder.clone()), ..origin.clone() };
                            self.know(
                                joined,
                                words.clone(),
                                (name, &list_words),
                                origin,
                                format!("{source}+"),
                            );
                        }
                    }
                    self.know(value.clone(), words, (name, &list_words), origin, source);
                }
            }
        }
        self.seen.push(SuccessfulCall { tool, call, args, text, reading });
    }

    fn know(
        &mut self,
        text: String,
        words: BTreeSet<String>,
        (field, list_words): (&str, &BTreeSet<String>),
        origin: Origin,
        source: String,
    ) {
        if self.known.len() >= KNOWN && !self.known.contains_key(&text) {
            return;
        }
        let known = self.known.entry(text).or_default();
        known.words.extend(words);
        known.sources.insert(source);
        known.tools.insert(origin.tool);
        known.fields.entry(field.to_owned()).or_default().extend(list_words.iter().cloned());
        let of_tool = known.origins.iter().filter(|other| other.tool == origin.tool).count();
        if known.origins.len() < ORIGINS
            && of_tool < ORIGINS_OF_TOOL
            && known.origins.iter().all(|other| other.call != origin.call)
        {
            known.origins.push(origin);
        }
    }

    /// The values of fields that are called like this.
    pub fn values_named(&self, name: &str) -> Vec<String> {
        let is_named = |field: &String| words::split(field) == words::split(name);
        let named = self.known.iter().filter(|(_, known)| known.fields.keys().any(is_named));
        named.map(|(text, _)| text.clone()).collect()
    }

    /// Whether all that a tool gives changes by itself.
    pub fn is_random(&self, tool: usize) -> bool {
        self.changing.get(&tool) == Some(&Changing::All)
    }

    /// Whether a value is not only what a random result had.
    pub fn is_grounded(&self, arg: &Arg) -> bool {
        let known = arg.leaf.as_ref().and_then(|leaf| self.known.get(leaf));
        known.is_none_or(|known| {
            known.tools.is_empty() || known.tools.iter().any(|tool| !self.is_random(*tool))
        })
    }

    /// The fields of a tool's results that change by themselves.
    pub fn changing(&self, tool: usize) -> BTreeSet<String> {
        match self.changing.get(&tool) {
            Some(Changing::Fields(fields)) => fields.clone(),
            _ => BTreeSet::new(),
        }
    }

    /// Values for a parameter, the best first, at most `most`; what is equally good is in seeded order. An optional parameter
    /// gets none that fits by nothing.
    pub fn candidates(&self, profile: &ToolProfile, param: &Param, seed: u64, most: usize) -> Vec<Value> {
        let examples = param.examples.iter().enumerate();
        let mut found: Vec<(i64, u64, Value)> =
            examples.map(|(place, value)| (200, place as u64, value.clone())).collect();
        let most = most + found.len();
        for (place, value) in param.seeds.iter().enumerate() {
            found.push((if param.is_closed { 100 } else { 20 }, place as u64, value.clone()));
        }
        if !param.is_closed {
            let mut others: Vec<(i64, u64, Value)> = Vec::new();
            for (text, known) in &self.known {
                let Some(value) = typed(&param.kind, text) else { continue };
                let score = self.score(profile, param, text, known);
                others.push((score, rank(seed, &param.name, text), value));
            }
            for text in &self.given {
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
    pub fn joint(&self, params: &[&Param], seed: u64) -> Vec<Vec<Option<Value>>> {
        let mut found: Vec<(u64, Vec<Option<Value>>)> = Vec::new();
        for seen in &self.seen {
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

    fn score(&self, profile: &ToolProfile, param: &Param, text: &str, known: &KnownValue) -> i64 {
        let target = format!("{}.{}", profile.name, param.name);
        let edges =
            known.sources.iter().filter_map(|source| self.edges.get(&(source.clone(), target.clone())));
        let (worked, failed) =
            edges.fold((0, 0), |(worked, failed), edge| (worked + edge.0, failed + edge.1));
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

/// A seeded order of values.
pub fn rank(seed: u64, name: &str, text: &str) -> u64 {
    Encoder::new("mcprl exploration v1").number(seed).text(name).text(text).finish().seed()
}

/// A seeded place in a list of this length; 0 for an empty one.
pub fn place(seed: u64, name: &str, text: &str, length: usize) -> usize {
    (rank(seed, name, text) % length.max(1) as u64) as usize
}

/// A harvested text as a value of this kind.
fn typed(kind: &Kind, text: &str) -> Option<Value> {
    match kind {
        Kind::Text | Kind::Path => Some(text.into()),
        Kind::Integer => text.parse::<i64>().ok().map(Value::from),
        Kind::Number => {
            text.parse::<f64>().ok().filter(|number| number.is_finite()).map(super::seeds::number)
        }
        Kind::Boolean | Kind::Sql | Kind::List(_) | Kind::Object(_) => None,
    }
}

pub fn is_path(text: &str) -> bool {
    (text.starts_with('/') || text.starts_with("./") || text.contains(":\\"))
        && !text.contains('\n')
        && !text.contains("  ")
}

/// The name of a file or folder within another.
fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 120
        && !text.contains(['/', '\\', '\n', ':'])
        && text != "."
        && text != ".."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_between_results_is_found_by_field() {
        let fields =
            |names: &[&str]| Some(Changing::Fields(names.iter().map(|name| (*name).to_owned()).collect()));
        for (texts, expected) in [
            (&["7", "7", "7"][..], None),
            (&["yes", "yes", "no"], Some(Changing::All)),
            (
                &[r#"{"id": 1, "load": 3}"#, r#"{"id": 1, "load": 5}"#, r#"{"id": 1, "load": 9}"#],
                fields(&["load"]),
            ),
            (&[r#"[{"id": 1, "name": "a"}]"#, r#"[{"id": 2, "name": "b"}]"#], Some(Changing::All)),
            (&[r#"[{"n": 1}]"#, r#"[{"n": 1}, {"n": 2}]"#], Some(Changing::All)),
            // What stands on an envelope is not read.
            (
                &[
                    r#"{"ok": true, "data": {"id": 1, "n": 2}, "meta": {"ms": 3}}"#,
                    r#"{"ok": true, "data": {"id": 1, "n": 2}, "meta": {"ms": 5}}"#,
                ],
                fields(&[]),
            ),
        ] {
            assert_eq!(Changing::between(texts), expected, "{texts:?}");
        }
        let changing = fields(&["load"]);
        let stable = |text: &str| Changing::stable(changing.as_ref(), text);
        assert_eq!(stable(r#"{"id": 1, "load": 3}"#), stable(r#"{"id": 1, "load": 5}"#));
        assert_ne!(stable(r#"{"id": 1, "load": 3}"#), stable(r#"{"id": 2, "load": 3}"#));
    }
}
