//! Card defaults < run file < `MCPRL_*` < `--set`: one merged tree of raw values.
//!
//! figment merges the layers. A value's tag leads to its layer, and its path to its location in the run file.
//! The merged tree names the cards, so their defaults are joined last, as the lowest layer.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use figment::{
    Figment, Metadata, Profile, Provider,
    value::{Dict, Map, Value},
};

use super::{
    error::{Location, Mistake},
    source::{RunFile, SECRET_TABLES, SourceSpan, join},
};
use crate::{
    reference::has_reference,
    secret::is_secret,
    stage::{Card, model::KIND},
};

/// Values that override the run file.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Overrides {
    /// Environment variables, name and value. Only those that name a section of the run file count:
    /// `MCPRL_SEED=3`, `MCPRL_LOOP__TRAIN__ITERATIONS=2`. For a secret of the server's environment or headers
    /// the value is a reference to the variable itself, so that no run stores it.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// `a.b=value`, as given to `--set`; later ones win.
    #[serde(default)]
    pub set: Vec<String>,
}

/// Keys of a run file that an environment variable can set, and tables whose keys it can set. `MCPRL_X__Y` is an
/// override of another table, which is a mistake. Other variables that start with `MCPRL_` are not overrides.
const KEYS: [&str; 4] = ["name", "seed", "executor", MODEL];
const TABLES: [&str; 10] =
    ["server", "servers", "engine", "agent", "cache", "executors", "track", "overrides", "stages", "loop"];

/// All top-level keys of a run file.
pub fn top_level() -> Vec<&'static str> {
    KEYS.into_iter().chain(TABLES).collect()
}

/// `model = "…"` at the top is short for a stage that is named [`BASE`] and imports the model.
pub const MODEL: &str = "model";
pub const BASE: &str = "base";

/// The input of `sft`, and the kind of the stage that writes it, which a list of files there stands for.
pub const TRACES: &str = "traces";

/// The section with the parameters of the agent, which stages share.
pub const AGENT: &str = "agent";

impl Overrides {
    /// Keeps only the environment variables that override something.
    pub fn new(environment: impl IntoIterator<Item = (String, String)>, set: Vec<String>) -> Self {
        let kept = |(name, value): (String, String)| {
            let path = variable_path(&name)?;
            let is_hidden = !is_in_a_table(&path) || is_secret_at(&path, &value);
            let value = if is_hidden { format!("${{{name}}}") } else { value };
            Some((name, value))
        };
        Self { environment: environment.into_iter().filter_map(kept).collect(), set }
    }

    /// All overrides in the syntax of `--set`; later ones win.
    pub fn spelled(&self) -> Vec<String> {
        let of_variable = |(name, text): (&String, &String)| Some(format!("{}={text}", variable_path(name)?));
        self.environment.iter().filter_map(of_variable).chain(self.set.iter().cloned()).collect()
    }
}

/// The name of a variable or header of a server, whose value may be a secret: `TOKEN` of `server.env.TOKEN` or
/// `servers.crm.env.TOKEN`. Empty for the whole table.
fn server_variable(path: &str) -> Option<&str> {
    let of_one_of_several = || path.strip_prefix("servers.")?.split_once('.').map(|(_, setting)| setting);
    let setting = path.strip_prefix("server.").or_else(of_one_of_several)?;
    let (table, name) = setting.split_once('.').unwrap_or((setting, ""));
    ["env", "headers"].contains(&table).then_some(name)
}

/// Whether the value is literal and likely a secret of the server.
fn is_secret_at(path: &str, value: &str) -> bool {
    server_variable(path).is_some_and(|name| is_secret(name, value)) && has_reference(value) != Ok(true)
}

/// An override's value as shown in messages: not if it may be a secret, or a table that may have one.
fn shown<'t>(path: &str, text: &'t str) -> &'t str {
    let parts: Vec<&str> = path.split('.').collect();
    let setting = match parts[..] {
        ["server"] | ["servers"] | ["servers", _] | ["track"] | ["track", _] => return "…",
        ["server", setting, ..] | ["servers" | "track", _, setting, ..] => setting,
        _ => "",
    };
    let name = parts.last().copied().unwrap_or_default();
    let is_address = ["url", "uri"].contains(&setting);
    if SECRET_TABLES.contains(&setting) || is_secret(name, text) || is_address && text.contains(['?', '@']) {
        "…"
    } else {
        text
    }
}

/// Maps `MCPRL_LOOP__TRAIN__ITERATIONS` to `loop.train.iterations`, `MCPRL_SERVER__ENV__REGION` to
/// `server.env.REGION`.
fn variable_path(name: &str) -> Option<String> {
    let name = name.strip_prefix("MCPRL_")?;
    if let Some(variable) = name.strip_prefix("SERVER__ENV__") {
        return Some(format!("server.env.{variable}"));
    }
    if let Some((server, variable)) =
        name.strip_prefix("SERVERS__").and_then(|rest| rest.split_once("__ENV__"))
    {
        return Some(format!("servers.{}.env.{variable}", server.to_lowercase()));
    }
    let path = name.to_lowercase().replace("__", ".");
    (path.contains('.') || KEYS.contains(&path.as_str())).then_some(path)
}

/// If not, the path is reported as an unknown key. What it was meant for is not known, so its value is not shown.
fn is_in_a_table(path: &str) -> bool {
    path.split_once('.').is_none_or(|(table, _)| TABLES.contains(&table))
}

/// An override that lacks `=`, up to a part that may have a secret.
fn without_value(set: &str) -> String {
    let may_be_secret = |part: &str| SECRET_TABLES.iter().any(|table| part.trim().starts_with(table));
    let shown: Vec<&str> = set.split('.').take_while(|part| !may_be_secret(part)).collect();
    let rest = if set.split('.').count() > shown.len() { ".…" } else { "" };
    format!("--set {}{rest}", shown.join("."))
}

struct Layer {
    metadata: Metadata,
    values: Dict,
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        self.metadata.clone()
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Profile::Default.collect(self.values.clone()))
    }
}

/// The merged layers of one run.
pub struct Layers {
    source: RunFile,
    figment: Figment,
    merged: Value,
    /// Whether `model` at the top makes the stage [`BASE`].
    is_short: bool,
    /// Whether what only a loop of no iterations needs is there all the same.
    is_whole: bool,
}

/// Where a value came from.
pub enum Origin<'a> {
    /// The run file, or one that it extends.
    File(&'a RunFile, &'a SourceSpan),
    /// An override, as the user gave it.
    Override(&'a str),
    Card,
}

/// Which part of an entry a message points at.
#[derive(Clone, Copy)]
pub enum EntryPart {
    Key,
    Value,
}

/// One value of the merged tree.
#[derive(Clone)]
pub struct Entry<'a> {
    layers: &'a Layers,
    /// Dotted path from the top of the run file.
    pub path: String,
    pub value: &'a Value,
}

impl Layers {
    /// Leaves out invalid overrides and returns them as mistakes.
    pub fn new(source: &RunFile, overrides: &Overrides) -> (Self, Vec<Mistake>) {
        let (mut layers, mistakes) = Self::whole(source, overrides);
        layers.is_whole = false;
        layers.merge();
        (layers, mistakes)
    }

    /// With loops of no iterations and all that decides whether they begin.
    pub fn whole(source: &RunFile, overrides: &Overrides) -> (Self, Vec<Mistake>) {
        let files: Vec<&RunFile> = source.chain().collect();
        let mut figment = files.into_iter().rev().fold(Figment::new(), |below, file| below.merge(file));
        let mut mistakes = Vec::new();
        let environment = overrides.environment.iter().filter_map(|(name, text)| {
            let path = variable_path(name)?;
            Some(layer(format!("environment variable {name}={}", shown(&path, text)), &path, text))
        });
        let set = overrides.set.iter().map(|set| {
            let (path, text) = set
                .split_once('=')
                .ok_or_else(|| wrong_set(&without_value(set), "an override should read `key=value`"))?;
            let (path, text) = (path.trim(), text.trim());
            layer(format!("--set {path}={}", shown(path, text)), path, text)
        });
        for layer in environment.chain(set) {
            match layer {
                Ok(layer) => figment = figment.merge(layer),
                Err(mistake) => mistakes.push(mistake),
            }
        }
        let mut layers =
            Self { source: source.clone(), figment, merged: false.into(), is_short: false, is_whole: true };
        layers.merge();
        let model = layers.merged.find_ref(MODEL).cloned();
        let base = format!("stages.{BASE}");
        if let Some(model) = model.filter(|_| layers.merged.find_ref(&base).is_none()) {
            let metadata = layers.figment.get_metadata(model.tag()).cloned().unwrap_or_default();
            let stage = Dict::from([("kind".into(), Value::from(KIND)), ("from".into(), model)]);
            layers.is_short = true;
            layers.join(Layer { metadata, values: nest(&base, stage.into()) });
        }
        layers.read_traces();
        (layers, mistakes)
    }

    /// Makes the stages of recorded conversations that stages of kind `sft` name by files: with their policy, and with the tools
    /// and the exam of the run file, if it has one of each.
    fn read_traces(&mut self) {
        let only = |kind: &str| {
            let mut of_kind = self.stages().filter(|stage| stage.kind() == Some(kind));
            let first = of_kind.next().and_then(|stage| Some(stage.path.strip_prefix("stages.")?.to_owned()));
            first.filter(|_| of_kind.next().is_none())
        };
        let (tools, tasks) = (only("discover"), only("scenarios"));
        let mut made = Vec::new();
        for stage in self.stages().filter(|stage| stage.kind() == Some("sft")) {
            let Some(name) = stage.path.strip_prefix("stages.") else { continue };
            let Some(files) = stage.field(TRACES).filter(|given| given.value.as_array().is_some()) else {
                continue;
            };
            let metadata = self.figment.get_metadata(files.value.tag()).cloned().unwrap_or_default();
            let mut table =
                Dict::from([("kind".into(), TRACES.into()), ("files".into(), files.value.clone())]);
            let policy = stage.field("policy").and_then(|policy| policy.text().map(str::to_owned));
            let exam = tasks.as_ref().map(|tasks| format!("{tasks}.heldout"));
            for (input, reference) in [("policy", policy), ("tools", tools.clone()), ("exam", exam)] {
                table.extend(reference.map(|reference| (input.to_owned(), reference.into())));
            }
            made.push((name.to_owned(), metadata, table));
        }
        for (name, metadata, table) in made {
            let stage = format!("{name}_{TRACES}");
            let reference = nest(&format!("stages.{name}.{TRACES}"), stage.clone().into());
            let reference = Layer { metadata: metadata.clone(), values: reference };
            self.figment = std::mem::take(&mut self.figment).merge(reference);
            self.join(Layer { metadata, values: nest(&format!("stages.{stage}"), table.into()) });
        }
    }

    /// Adds the defaults of the cards, by kind, to the stages: values of `[agent]`, or the card's own. Then `inputs`, as
    /// [`infer`](super::infer) finds them.
    pub fn add_defaults(
        &mut self,
        kinds: &BTreeMap<String, Arc<Card>>,
        inputs: Vec<(String, String, String)>,
    ) {
        let mut values = Dict::new();
        for stage in self.stages() {
            let Some(card) = stage.kind().and_then(|kind| kinds.get(kind)) else { continue };
            let of_agent = |name: &String| {
                let agent = self.top().field(AGENT).filter(|_| card.agent.contains_key(name))?;
                Some(agent.field(name)?.value.clone())
            };
            let defaults = card.params.iter().filter_map(|(name, param)| {
                let default = || Value::serialize(param.default.as_ref()?).ok();
                Some((name.clone(), of_agent(name).or_else(default)?))
            });
            let path = if stage.path == MODEL { format!("stages.{BASE}") } else { stage.path };
            insert(&mut values, &path, defaults.collect::<Dict>().into());
        }
        for (stage, input, reference) in inputs {
            insert(&mut values, &format!("{stage}.{input}"), Value::from(reference));
        }
        self.join(Layer { metadata: Metadata::named("card"), values });
    }

    fn join(&mut self, layer: impl Provider) {
        self.figment = std::mem::take(&mut self.figment).join(layer);
        self.merge();
    }

    fn merge(&mut self) {
        self.merged = self.figment.find_value("").unwrap_or_else(|_| Value::from(Dict::new()));
        if let Value::Dict(_, top) = &mut self.merged {
            remove_stages(top);
        }
        let unpractised = if self.is_whole { Vec::new() } else { self.unpractised() };
        if let Value::Dict(_, top) = &mut self.merged {
            for (path, value) in unpractised {
                match value {
                    Some(value) => insert(top, &path, value),
                    None => remove(top, &path),
                }
            }
        }
    }

    pub fn source(&self) -> &RunFile {
        &self.source
    }

    /// The run file, or one that it extends.
    fn file(&self, path: &Path) -> Option<&RunFile> {
        self.source.chain().find(|file| file.path() == path)
    }

    /// The whole tree.
    pub fn top(&self) -> Entry<'_> {
        Entry { layers: self, path: String::new(), value: &self.merged }
    }

    /// The tables of stages, in and outside loops. Malformed ones are left out.
    pub fn stages(&self) -> impl Iterator<Item = Entry<'_>> {
        let top = self.top();
        let loops = top.field("loop").into_iter().flat_map(Entry::into_values);
        let tables = loops.filter_map(|each| each.field("stages")).chain(top.field("stages"));
        tables.flat_map(Entry::into_values)
    }

    /// The location of a user-written value or table header, by dotted path.
    pub fn location(&self, path: &str) -> Option<Location> {
        let entry = Entry { layers: self, path: path.into(), value: self.merged.find_ref(path)? };
        match entry.origin() {
            Origin::File(source, SourceSpan { key, value }) => {
                let several_lines = source.text().get(value.clone()).is_none_or(|text| text.contains('\n'));
                entry.place(if several_lines || value.start < key.end {
                    EntryPart::Key
                } else {
                    EntryPart::Value
                })
            }
            _ => entry.place(EntryPart::Key),
        }
    }
}

impl<'a> Entry<'a> {
    pub fn origin(&self) -> Origin<'a> {
        let in_file = |source: &'a RunFile| Some(Origin::File(source, source.span(&self.path)?));
        // A table's location is its header in the run file, even if an override adds keys to it.
        let tables = self.layers.source.chain().filter(|_| self.value.as_dict().is_some());
        let of_value = || match self.layer()? {
            figment::Source::File(path) => self.layers.file(path).and_then(in_file),
            figment::Source::Custom(text) => Some(Origin::Override(text)),
            _ => None,
        };
        tables.filter_map(in_file).next().or_else(of_value).unwrap_or(Origin::Card)
    }

    /// The layer that the value is of; none for a card.
    fn layer(&self) -> Option<&'a figment::Source> {
        self.layers.figment.get_metadata(self.value.tag())?.source.as_ref()
    }

    /// The folder that a relative path in this value starts from: that of the file that has it, or else of the run file.
    pub fn folder(&self) -> PathBuf {
        let file = match self.layer() {
            Some(figment::Source::File(path)) => self.layers.file(path),
            _ => None,
        };
        super::absolute(file.unwrap_or(&self.layers.source).folder())
    }

    /// The absolute path of one in this value.
    pub fn absolute(&self, path: &str) -> PathBuf {
        super::absolute(&self.folder().join(path))
    }

    /// The position of the table or value among the run file and those that it extends: the lowest first, then by place.
    pub fn order(&self) -> (usize, usize) {
        let Origin::File(..) = self.origin() else { return (usize::MAX, 0) };
        let files: Vec<&RunFile> = self.layers.source.chain().collect();
        let mut places = files.iter().rev().enumerate();
        let place = places.find_map(|(rank, file)| Some((rank, file.span(&self.path)?.key.start)));
        place.unwrap_or((usize::MAX, 0))
    }

    pub fn place(&self, part: EntryPart) -> Option<Location> {
        let is_secret = self.path.split('.').skip(1).any(|part| SECRET_TABLES.contains(&part));
        let of_file = |source: &RunFile, span: &Range<usize>| {
            let place = source.place(span.clone());
            if is_secret { place.without_values() } else { place }
        };
        match (self.origin(), part) {
            (Origin::File(source, span), EntryPart::Key) => Some(of_file(source, &span.key)),
            (Origin::File(source, span), EntryPart::Value) => Some(of_file(source, &span.value)),
            (Origin::Override(text), _) => Some(Location::Override(text.to_owned())),
            (Origin::Card, _) => None,
        }
    }

    /// The values in a table.
    pub fn fields(&self) -> Option<BTreeMap<&'a str, Self>> {
        let entry = |(name, value): (&'a String, &'a Value)| (name.as_str(), self.child(name, value));
        Some(self.value.as_dict()?.iter().map(entry).collect())
    }

    fn into_values(self) -> impl Iterator<Item = Self> {
        self.fields().unwrap_or_default().into_values()
    }

    /// The table's value under this name.
    pub fn field(&self, name: &str) -> Option<Self> {
        self.value.as_dict()?.get(name).map(|value| self.child(name, value))
    }

    /// The values in a list.
    pub fn items(&self) -> impl Iterator<Item = Self> {
        let items = self.value.as_array().unwrap_or_default().iter().enumerate();
        items.map(|(at, item)| self.child(&at.to_string(), item))
    }

    fn child(&self, name: &str, value: &'a Value) -> Self {
        let path = match (self.path.as_str(), name) {
            ("stages", BASE) if self.layers.is_short => MODEL.to_owned(),
            (MODEL, _) => MODEL.to_owned(),
            (path, _) => join(path, name),
        };
        Self { layers: self.layers, path, value }
    }

    pub fn text(&self) -> Option<&'a str> {
        self.value.as_str()
    }

    /// The value as parameters are stored.
    pub fn json(&self) -> serde_json::Value {
        serde_json::to_value(self.value).unwrap_or_default()
    }

    /// The stage's kind, if it has one.
    pub fn kind(&self) -> Option<&'a str> {
        self.value.as_dict()?.get("kind")?.as_str()
    }
}

fn layer(name: String, path: &str, text: &str) -> Result<Layer, Mistake> {
    if path.split('.').any(str::is_empty) {
        return Err(wrong_set(&name, "an override should name a key, like `loop.train.iterations=2`"));
    }
    // figment reads numbers, booleans, lists and tables; anything else is a string.
    let value = match text.parse::<Value>().unwrap_or_else(|_| Value::from(text)) {
        // figment reads TOML's `1e-4` as a string.
        Value::String(_, word) if word == text && text.contains(|c: char| c.is_ascii_digit()) => {
            text.parse::<f64>().map_or_else(|_| Value::from(word), Value::from)
        }
        Value::Char(_, letter) => Value::from(letter.to_string()),
        value => value,
    };
    Ok(Layer { metadata: Metadata::from("override", name), values: nest(path, value) })
}

/// Inserts a value at a dotted path.
fn insert(table: &mut Dict, path: &str, value: Value) {
    match path.split_once('.') {
        None => _ = table.insert(path.to_owned(), value),
        Some((head, rest)) => {
            let inner = table.entry(head.to_owned()).or_insert_with(|| Dict::new().into());
            if let Value::Dict(_, inner) = inner {
                insert(inner, rest, value);
            }
        }
    }
}

/// Removes the value at a dotted path.
fn remove(table: &mut Dict, path: &str) {
    match path.split_once('.') {
        None => _ = table.remove(path),
        Some((head, rest)) => {
            if let Some(Value::Dict(_, inner)) = table.get_mut(head) {
                remove(inner, rest);
            }
        }
    }
}

/// Paths of values, each with another value or none if it is left out.
type Changes = Vec<(String, Option<Value>)>;

impl Layers {
    /// What a loop of no iterations leaves out: itself, and the stage that decides whether it begins.
    fn unpractised(&self) -> Changes {
        let loops = self.top().field("loop").into_iter().flat_map(Entry::into_values);
        let idle = loops.filter(|each| each.field("iterations").is_some_and(|count| count.json() == 0));
        idle.filter_map(|each| self.without(&each)).flatten().collect()
    }

    /// Leaves out a loop with the stage that its `if` asks. That stage also chooses the policy that the loop starts from: where the
    /// loop's policy is compared with others, the last of those that the stage chooses among takes its place. None if anything
    /// else reads the loop or the stage.
    fn without(&self, each: &Entry<'_>) -> Option<Changes> {
        let asked = each.field("if")?.field("metric")?.text()?.rsplit_once('.')?.0;
        let stage = self.top().field("stages")?.field(asked)?;
        let is_policy = |text: &str| text == asked || text.strip_prefix(asked) == Some(".policy");
        each.field("carry")?.field("policy")?.text().filter(|text| is_policy(text))?;
        let policies = stage.fields()?.into_values().find_map(|table| table.fields())?;
        let last = policies.into_values().max_by_key(Entry::order)?.value.clone();
        let name = each.path.strip_prefix("loop.")?;
        let result = format!("{name}.policy");
        let is_of = |text: &str| {
            let of = |prefix: &str| text.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.'));
            text == asked || of(asked) || of(name)
        };
        let mut changes = vec![(each.path.clone(), None), (stage.path.clone(), None)];
        let inside = format!("{}.", each.path);
        for reader in self.stages().filter(|reader| reader.path != stage.path) {
            if reader.path.starts_with(&inside) {
                continue;
            }
            for field in reader.into_values() {
                let table: Vec<Entry<'_>> = field.clone().into_values().collect();
                if field.text().is_some_and(is_of) {
                    return None;
                }
                for entry in table.iter().filter(|entry| entry.text().is_some_and(is_of)) {
                    let text = entry.text().filter(|text| is_policy(text) || *text == result);
                    text?;
                    let is_there = table.iter().any(|other| other.value.as_str() == last.as_str());
                    changes.push((entry.path.clone(), (!is_there).then(|| last.clone())));
                }
            }
        }
        Some(changes)
    }
}

/// Keys of a loop that `false` removes.
pub const LOOP_RULES: [&str; 3] = ["if", "until", "best"];

/// Removes what is `false`: stages, loops, and rules of loops that an extended file may have.
fn remove_stages(table: &mut Dict) {
    for (name, within) in table.iter_mut() {
        let Value::Dict(_, within) = within else { continue };
        if name == "stages" || name == "loop" {
            within.retain(|_, value| !matches!(value, Value::Bool(_, false)));
        }
        if name == "loop" {
            within
                .values_mut()
                .filter_map(|each| if let Value::Dict(_, each) = each { Some(each) } else { None })
                .for_each(|each| {
                    let is_off = |key: &str, value: &Value| {
                        LOOP_RULES.contains(&key) && matches!(value, Value::Bool(_, false))
                    };
                    each.retain(|key, value| !is_off(key, value));
                    remove_stages(each);
                });
        }
    }
}

fn nest(path: &str, value: Value) -> Dict {
    let mut table = Dict::new();
    insert(&mut table, path, value);
    table
}

fn wrong_set(text: &str, message: &str) -> Mistake {
    Mistake { message: message.into(), place: Some(Location::Override(text.to_owned())), hint: None }
}
