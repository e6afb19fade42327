//! Card defaults < run file < `MCPRL_*` < `--set`: one merged tree in which every value keeps its origin.
//!
//! figment merges the layers above the defaults. The merged tree names the cards, so the defaults are filled
//! in afterwards.

use std::{collections::BTreeMap, ops::Range};

use figment::{
    Figment, Metadata, Profile, Provider,
    value::{Dict, Map, Value},
};
use serde_json::Value as Json;

use super::{
    error::{Location, Mistake},
    reader::Reader,
    source::{Source, join},
};
use crate::mcp::{has_reference, secret::is_secret};

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

/// Keys of a run file that an environment variable can set, and tables whose keys it can set. Other variables
/// that start with `MCPRL_` are not overrides.
const KEYS: [&str; 3] = ["name", "seed", "model"];
const TABLES: [&str; 5] = ["server", "engine", "cache", "stages", "loop"];
const RUN_FILE: &str = "run file";

impl Overrides {
    /// Keeps only the environment variables that override something.
    pub fn new(environment: impl IntoIterator<Item = (String, String)>, set: Vec<String>) -> Self {
        let kept = |(name, value): (String, String)| {
            let path = variable_path(&name)?;
            let value = if is_secret_at(&path, &value) { format!("${{{name}}}") } else { value };
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

/// Tables of the run file whose values may be secrets, with a trailing dot.
const SECRET_TABLES: [&str; 2] = ["server.env.", "server.headers."];

/// Whether the value is literal and likely a secret of the server.
fn is_secret_at(path: &str, value: &str) -> bool {
    let name = SECRET_TABLES.iter().find_map(|table| path.strip_prefix(table));
    name.is_some_and(|name| is_secret(name, value)) && has_reference(value) != Ok(true)
}

/// An override's value as shown in messages.
fn shown<'t>(path: &str, text: &'t str) -> &'t str {
    let of_server = SECRET_TABLES.iter().any(|table| path.starts_with(table.trim_end_matches('.')));
    let name = path.rsplit('.').next().unwrap_or_default();
    if of_server || is_secret(name, text) || path == "server.url" && text.contains('?') {
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
    let path = name.to_lowercase().replace("__", ".");
    let known = match path.split_once('.') {
        Some((table, _)) => TABLES.contains(&table),
        None => KEYS.contains(&path.as_str()),
    };
    known.then_some(path)
}

struct Layer {
    name: String,
    values: Dict,
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Map::from([(Profile::Default, self.values.clone())]))
    }
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq)]
pub enum Origin {
    /// The run file: the key's bytes and the value's.
    File {
        key: Range<usize>,
        value: Range<usize>,
    },
    /// An override, as the user gave it.
    Override(String),
    Card,
}

#[derive(Debug, Clone, PartialEq)]
pub enum RawValue {
    Boolean(bool),
    Integer(i64),
    Number(f64),
    Text(String),
    List(Vec<Entry>),
    Table(BTreeMap<String, Entry>),
}

/// One value of the merged tree.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Dotted path from the top of the run file.
    pub path: String,
    pub value: RawValue,
    pub origin: Origin,
}

/// The layers of one run.
pub struct Layers {
    figment: Figment,
}

impl Layers {
    /// Notes invalid overrides and leaves them out.
    pub fn new(source: &Source, overrides: &Overrides, reader: &Reader<'_>) -> Self {
        let mut figment = Figment::from(Layer { name: RUN_FILE.into(), values: source.values.clone() });
        let environment = overrides.environment.iter().filter_map(|(name, text)| {
            let path = variable_path(name)?;
            Some(layer(format!("environment variable {name}={}", shown(&path, text)), &path, text))
        });
        let set = overrides.set.iter().map(|set| {
            let (path, text) = set
                .split_once('=')
                .ok_or_else(|| wrong_set(&format!("--set {set}"), "an override should read `key=value`"))?;
            let (path, text) = (path.trim(), text.trim());
            layer(format!("--set {path}={}", shown(path, text)), path, text)
        });
        for layer in environment.chain(set) {
            match layer {
                Ok(layer) => figment = figment.merge(layer),
                Err(mistake) => _ = reader.note::<()>(mistake),
            }
        }
        Self { figment }
    }

    /// Merges all layers into one tree.
    pub fn merged(&self, source: &Source) -> Entry {
        let value = self.figment.find_value("").unwrap_or_else(|_| Value::from(Dict::new()));
        self.entry(&value, String::new(), source)
    }

    fn entry(&self, value: &Value, path: String, source: &Source) -> Entry {
        let layer = self.figment.get_metadata(value.tag()).map(|metadata| metadata.name.as_ref());
        let mut origin = match (layer, source.spot(&path)) {
            (Some(RUN_FILE) | None, Some(spot)) => {
                Origin::File { key: spot.key.clone(), value: spot.value.clone() }
            }
            (Some(text), _) => Origin::Override(text.to_owned()),
            (None, None) => Origin::Card,
        };
        let value = match value {
            Value::String(_, text) => RawValue::Text(text.clone()),
            Value::Char(_, text) => RawValue::Text(text.to_string()),
            Value::Bool(_, bit) => RawValue::Boolean(*bit),
            Value::Num(_, number) => {
                let whole = number.to_i128().or_else(|| i128::try_from(number.to_u128()?).ok());
                match whole.and_then(|whole| i64::try_from(whole).ok()) {
                    Some(whole) => RawValue::Integer(whole),
                    None => RawValue::Number(number.to_f64().unwrap_or(f64::INFINITY)),
                }
            }
            Value::Empty(..) => RawValue::Text(String::new()),
            Value::Dict(_, fields) => {
                // A table's location is its header in the run file, even if an override adds keys to it.
                if let Some(spot) = source.spot(&path) {
                    origin = Origin::File { key: spot.key.clone(), value: spot.value.clone() };
                }
                let entry = |(name, value): (&String, &Value)| {
                    (name.clone(), self.entry(value, join(&path, name), source))
                };
                RawValue::Table(fields.iter().map(entry).collect())
            }
            Value::Array(_, items) => {
                let entry = |(index, value): (usize, &Value)| {
                    self.entry(value, join(&path, &index.to_string()), source)
                };
                RawValue::List(items.iter().enumerate().map(entry).collect())
            }
        };
        Entry { path, value, origin }
    }
}

impl Entry {
    /// Fills in the card's defaults that a table lacks, recursively.
    pub fn fill<'d>(&mut self, defaults: impl IntoIterator<Item = (&'d String, &'d Json)>) {
        let RawValue::Table(fields) = &mut self.value else { return };
        for (name, value) in defaults {
            match (fields.get_mut(name), value) {
                (Some(given), Json::Object(inner)) => given.fill(inner),
                (Some(_), _) => {}
                (None, _) => {
                    fields.insert(name.clone(), Self::default_of(join(&self.path, name), value));
                }
            }
        }
    }

    fn default_of(path: String, value: &Json) -> Self {
        let value = match value {
            Json::Null => RawValue::Text(String::new()),
            Json::Bool(bit) => RawValue::Boolean(*bit),
            Json::Number(number) => match number.as_i64() {
                Some(whole) => RawValue::Integer(whole),
                None => RawValue::Number(number.as_f64().unwrap_or(f64::INFINITY)),
            },
            Json::String(text) => RawValue::Text(text.clone()),
            Json::Array(items) => {
                let item =
                    |(index, item): (usize, &Json)| Self::default_of(join(&path, &index.to_string()), item);
                RawValue::List(items.iter().enumerate().map(item).collect())
            }
            Json::Object(fields) => {
                let field = |(name, value): (&String, &Json)| {
                    (name.clone(), Self::default_of(join(&path, name), value))
                };
                RawValue::Table(fields.iter().map(field).collect())
            }
        };
        Self { path, value, origin: Origin::Card }
    }

    /// The values in a table; empty for anything else.
    pub fn fields_mut(&mut self) -> impl Iterator<Item = (&String, &mut Self)> {
        let fields = match &mut self.value {
            RawValue::Table(fields) => Some(fields),
            _ => None,
        };
        fields.into_iter().flatten()
    }

    /// The table's value under this name.
    pub fn field(&self, name: &str) -> Option<&Self> {
        match &self.value {
            RawValue::Table(fields) => fields.get(name),
            _ => None,
        }
    }

    /// The names in a table; empty for anything else.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        let fields = match &self.value {
            RawValue::Table(fields) => Some(fields),
            _ => None,
        };
        fields.into_iter().flat_map(BTreeMap::keys)
    }

    /// The stage's kind, if it has one.
    pub fn kind(&self) -> Option<&str> {
        match &self.field("kind")?.value {
            RawValue::Text(kind) => Some(kind),
            _ => None,
        }
    }

    /// A copy without the contents, for pointing at its location.
    pub fn place(&self) -> Self {
        Self { path: self.path.clone(), value: RawValue::Table(BTreeMap::new()), origin: self.origin.clone() }
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
        value => value,
    };
    Ok(Layer { name, values: nest(path, value) })
}

fn nest(path: &str, value: Value) -> Dict {
    figment::util::nest(path, value).into_dict().unwrap_or_default()
}

fn wrong_set(text: &str, message: &str) -> Mistake {
    Mistake { message: message.into(), place: Some(Location::Override(text.to_owned())), hint: None }
}
