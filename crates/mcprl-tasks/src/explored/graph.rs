//! What exploration found: calls, the values in their results, and which of these worked for which parameters.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::{changing::Changing, tools::ToolProfile};
use crate::{
    chat::ToolCall,
    harvest::{self, Field, List, Reading},
    hash::Encoder,
    mcp::plain,
    words,
};

/// Most values that are remembered, and of one call.
const KNOWN: usize = 4000;
const OF_CALL: usize = 120;
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
    pub sources: BTreeSet<String>,
    /// The fields that it stands in, each with the words of their lists.
    pub fields: BTreeMap<String, BTreeSet<String>>,
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
}

/// A seeded order of values.
pub fn rank(seed: u64, name: &str, text: &str) -> u64 {
    Encoder::new("mcprl exploration v1").number(seed).text(name).text(text).finish().seed()
}

/// A seeded place in a list of this length; 0 for an empty one.
pub fn place(seed: u64, name: &str, text: &str, length: usize) -> usize {
    (rank(seed, name, text) % length.max(1) as u64) as usize
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
