//! What a tool's input schema says about values to try first: constants, enums, defaults, examples, formats, and what its
//! descriptions quote.

use std::{cell::Cell, collections::BTreeSet, sync::LazyLock};

use regex::Regex;
use serde_json::{Value, json};

use crate::words;

/// Deepest nesting of schemas that is followed.
const DEPTH: usize = 6;
const SEEDS: usize = 24;
/// Most parameters of a tool, nested ones included.
const PARAMS: usize = 300;
/// Words for texts that nothing else fits, such as the name of something new.
const NEUTRAL: [&str; 12] = [
    "amber", "harbor", "lantern", "meadow", "orchid", "pebble", "quartz", "saddle", "timber", "velvet",
    "willow", "zephyr",
];
const TIMEZONES: [&str; 20] = [
    "UTC",
    "Europe/London",
    "Europe/Berlin",
    "Europe/Madrid",
    "Europe/Helsinki",
    "Africa/Cairo",
    "Africa/Lagos",
    "Africa/Nairobi",
    "Asia/Dubai",
    "Asia/Kolkata",
    "Asia/Bangkok",
    "Asia/Tokyo",
    "Asia/Singapore",
    "Australia/Sydney",
    "Pacific/Auckland",
    "America/New_York",
    "America/Chicago",
    "America/Denver",
    "America/Los_Angeles",
    "America/Sao_Paulo",
];

const GLOBS: [&str; 5] = ["**/*", "**/*.txt", "**/*.md", "**/*.json", "**/*.csv"];

/// A parameter of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct Param {
    pub name: String,
    pub words: BTreeSet<String>,
    pub is_required: bool,
    pub kind: Kind,
    pub seeds: Vec<Value>,
    /// Values that the user gives.
    pub examples: Vec<Value>,
    /// Nothing but the seeds is valid.
    pub is_closed: bool,
    pub default: Option<Value>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    Text,
    /// A text in SQL.
    Sql,
    /// A path of a file or folder.
    Path,
    Integer,
    Number,
    Boolean,
    List(Box<Param>),
    Object(Vec<Param>),
}

/// Words of parameters that say how many records a page has, and which page is wanted.
const LIMITS: [&str; 10] =
    ["last", "limit", "size", "per", "top", "take", "max", "first", "count", "results"];
const PAGES: [&str; 9] =
    ["page", "offset", "cursor", "skip", "after", "before", "token", "start", "continuation"];

/// What most texts contain, for a search where nothing is known yet.
pub const COMMON: [&str; 4] = ["e", "a", "the", "*"];

/// Whether a parameter of this name is what a search looks for.
pub fn is_query(name: &str) -> bool {
    words::has_any(name, &["query", "search", "keyword", "phrase", "q", "term", "text", "word"])
}

impl Param {
    /// Whether it says how many records a result has.
    pub fn is_limit(&self) -> bool {
        let said = words::split(&self.name);
        let is_one = |word: &String| LIMITS.contains(&word.as_str());
        self.kind == Kind::Integer
            && said.iter().any(is_one)
            && said.iter().all(|word| {
                is_one(word)
                    || [
                        "char",
                        "character",
                        "line",
                        "page",
                        "number",
                        "num",
                        "n",
                        "of",
                        "result",
                        "item",
                        "record",
                        "row",
                    ]
                    .contains(&&*words::singular(word))
            })
    }

    /// Whether it says which page of a result is wanted.
    pub fn is_page(&self) -> bool {
        let said = words::split(&self.name);
        let is_one = |word: &String| PAGES.contains(&word.as_str());
        let is_index = matches!(self.kind, Kind::Integer | Kind::Text)
            && said.iter().all(|word| {
                is_one(word) || ["number", "num", "no", "index", "next", "id"].contains(&word.as_str())
            });
        // `after` and `start` may be dates.
        let is_vague = said.len() == 1 && ["after", "before", "start"].contains(&said[0].as_str());
        !self.is_limit()
            && is_index
            && said.iter().any(is_one)
            && (!is_vague || self.kind == Kind::Integer || !self.is_required)
    }

    /// Whether it takes a path, or a list of them.
    pub fn is_path(&self) -> bool {
        match &self.kind {
            Kind::Path => true,
            Kind::List(item) => item.is_path(),
            _ => false,
        }
    }
}

/// The parameters of an input schema, in its order.
pub fn params(schema: &Value) -> Vec<Param> {
    fields(schema, &Root { schema, left: Cell::new(PARAMS) }, 0)
}

/// A required pattern of a tool whose description says that it takes globs.
pub fn add_globs(params: &mut [Param], description: &str) {
    let takes_globs = |param: &&mut Param| {
        param.kind == Kind::Text
            && param.is_required
            && param.seeds.is_empty()
            && param.words.contains("pattern")
    };
    if description.contains("glob") {
        for param in params.iter_mut().filter(takes_globs) {
            param.seeds = GLOBS.map(Value::from).into();
        }
    }
}

/// The whole schema, and how many more parameters are read: one that refers to itself has any number.
struct Root<'s> {
    schema: &'s Value,
    left: Cell<usize>,
}

fn fields(schema: &Value, root: &Root<'_>, depth: usize) -> Vec<Param> {
    let required = |name: &str| {
        schema["required"].as_array().is_some_and(|names| names.iter().any(|required| required == name))
    };
    let of = |(name, schema): (&String, &Value)| {
        root.left.set(root.left.get().checked_sub(1)?);
        Some(param(name, schema, required(name), root, depth + 1))
    };
    schema["properties"].as_object().map(|fields| fields.iter().map_while(of).collect()).unwrap_or_default()
}

fn resolve<'s>(schema: &'s Value, root: &Root<'s>) -> &'s Value {
    let mut schema = schema;
    for _ in 0..DEPTH {
        let Some(target) =
            schema["$ref"].as_str().and_then(|target| root.schema.pointer(target.strip_prefix('#')?))
        else {
            break;
        };
        schema = target;
    }
    schema
}

fn param(name: &str, schema: &Value, is_required: bool, root: &Root<'_>, depth: usize) -> Param {
    let outer = schema;
    let mut schema = resolve(schema, root);
    for key in ["anyOf", "oneOf"] {
        let options = schema[key].as_array().map(Vec::as_slice).unwrap_or_default();
        if let Some(option) =
            options.iter().map(|option| resolve(option, root)).find(|option| option["type"] != "null")
        {
            schema = option;
        }
    }
    let description =
        outer["description"].as_str().or_else(|| schema["description"].as_str()).unwrap_or_default();
    let words = words::tokens(name);
    let kind = kind((name, is_required), schema, description, &words, root, depth);
    let mut seeds: Vec<Value> = Vec::new();
    let values = |value: &Value| value.as_array().cloned().unwrap_or_default();
    for place in [outer, schema] {
        seeds.extend(place.get("const").cloned());
        seeds.extend(values(&place["enum"]));
    }
    let is_closed = !seeds.is_empty() || kind == Kind::Boolean;
    for place in [outer, schema] {
        seeds.extend(place.get("default").filter(|value| !value.is_null()).cloned());
        seeds.extend(values(&place["examples"]));
        seeds.extend(place.get("example").cloned());
    }
    seeds.extend(of_kind(&kind, schema, &words, description));
    let mut seen = BTreeSet::new();
    seeds.retain(|seed| seed.to_string().len() <= 400 && seen.insert(seed.to_string()));
    seeds.truncate(SEEDS);
    let default = [outer, schema].into_iter().find_map(|place| place.get("default")).cloned();
    Param { name: name.to_owned(), words, is_required, kind, seeds, examples: Vec::new(), is_closed, default }
}

fn kind(
    (name, is_required): (&str, bool),
    schema: &Value,
    description: &str,
    words: &BTreeSet<String>,
    root: &Root<'_>,
    depth: usize,
) -> Kind {
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().find(|kind| **kind != "null").and_then(Value::as_str),
        kind => kind.as_str(),
    };
    let is_path =
        |word: &str| ["path", "file", "directory", "folder", "dir", "repo", "filename"].contains(&word);
    let says = |text: &str| words::split(description).iter().any(|word| word == text);
    match kind {
        Some("integer") => Kind::Integer,
        Some("number") => Kind::Number,
        Some("boolean") => Kind::Boolean,
        Some("array") if depth < DEPTH => Kind::List(Box::new(param(
            &words::singular(name),
            &schema["items"],
            is_required,
            root,
            depth + 1,
        ))),
        Some("object") if depth < DEPTH => Kind::Object(fields(schema, root, depth)),
        None if depth < DEPTH && schema["properties"].is_object() => {
            Kind::Object(fields(schema, root, depth))
        }
        _ if words.contains("sql") || says("sql") => Kind::Sql,
        _ if words.iter().any(|word| is_path(word)) => Kind::Path,
        _ => Kind::Text,
    }
}

fn of_kind(kind: &Kind, schema: &Value, words: &BTreeSet<String>, description: &str) -> Vec<Value> {
    match kind {
        Kind::Boolean => vec![false.into(), true.into()],
        Kind::Integer | Kind::Number => {
            let least = schema["minimum"]
                .as_f64()
                .or_else(|| schema["exclusiveMinimum"].as_f64().map(|least| least + 1.0));
            let most = schema["maximum"].as_f64();
            let fits = |number: &f64| {
                least.is_none_or(|least| *number >= least) && most.is_none_or(|most| *number <= most)
            };
            let numbers =
                least.into_iter().chain([1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 12.0, 20.0, 35.0, 48.0]).chain(most);
            numbers.filter(fits).map(number).collect()
        }
        Kind::Text | Kind::Path => {
            let of_format: &[&str] = match schema["format"].as_str().unwrap_or_default() {
                "date" => &["2024-01-31", "2024-06-15"],
                "date-time" => &["2024-01-31T12:00:00Z"],
                "time" => &["09:30:00"],
                "email" => &["ada@example.com"],
                "uri" | "url" => &["https://example.com/"],
                "uuid" => &["123e4567-e89b-12d3-a456-426614174000"],
                "ipv4" => &["192.0.2.1"],
                _ => &[],
            };
            let mut seeds: Vec<Value> = of_format.iter().map(|text| json!(text)).collect();
            seeds.extend(quoted(description).into_iter().map(Value::from));
            if words.contains("timezone") || words.contains("tz") || description.contains("IANA") {
                seeds.extend(TIMEZONES.iter().map(|zone| json!(zone)));
            }
            for (pattern, values) in [
                ("HH:MM", ["00:15", "06:30", "09:45", "12:00", "16:30", "21:10"].as_slice()),
                ("YYYY-MM-DD", &["2024-01-31", "2024-06-15"]),
                ("glob", &GLOBS),
            ] {
                if description.contains(pattern) {
                    seeds.extend(values.iter().map(|text| json!(text)));
                }
            }
            seeds
        }
        Kind::Sql | Kind::List(_) | Kind::Object(_) => Vec::new(),
    }
}

pub fn number(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < 1e15 {
        Value::from(number as i64)
    } else {
        Value::from(number)
    }
}

static QUOTED: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r#"'([^'\s][^'\n]{0,60})'|"([^"\s][^"\n]{0,60})"|`([^`\s][^`\n]{0,60})`"#).ok()
});

/// What a description quotes, probably as examples.
pub fn quoted(description: &str) -> Vec<String> {
    let Some(pattern) = &*QUOTED else { return Vec::new() };
    let text = |found: regex::Captures<'_>| {
        let text = found.iter().skip(1).flatten().next()?.as_str().trim().to_owned();
        (text.split_whitespace().count() <= 4).then_some(text)
    };
    pattern.captures_iter(description).filter_map(text).take(SEEDS).collect()
}

/// A text for a parameter that nothing fits.
pub fn neutral(index: usize) -> Value {
    NEUTRAL[index % NEUTRAL.len()].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_gives_values_to_try() {
        let schema = json!({"$defs": {"Unit": {"enum": ["m", "ft"]}}, "required": ["unit", "n"], "properties": {
            "unit": {"$ref": "#/$defs/Unit"},
            "n": {"type": "integer", "minimum": 1, "maximum": 3},
            "zone": {"type": "string", "description": "A name (e.g., 'Asia/Tokyo')"},
            "when": {"anyOf": [{"type": "null"}, {"type": "string", "format": "date"}], "default": null},
            "sort": {"type": "string", "default": "size", "enum": ["name", "size"]},
            "query": {"type": "string", "description": "SELECT SQL query to run"},
            "files": {"type": "array", "items": {"type": "string"}},
            "nodes": {"type": "array", "items": {"type": "object", "properties": {"id": {"type": "number"}}}}}});
        let params = params(&schema);
        let of = |name: &str| params.iter().find(|param| param.name == name).unwrap();
        assert_eq!((of("unit").seeds.len(), of("unit").is_closed, of("unit").is_required), (2, true, true));
        assert_eq!(of("n").seeds, [json!(1), json!(2), json!(3)]);
        assert_eq!(of("zone").seeds[0], "Asia/Tokyo");
        assert_eq!(of("when").seeds[0], "2024-01-31");
        assert_eq!(of("sort").seeds, ["name", "size"]);
        assert_eq!(of("query").kind, Kind::Sql);
        assert!(matches!(&of("files").kind, Kind::List(item) if item.kind == Kind::Path));
        assert!(matches!(&of("nodes").kind, Kind::List(item) if matches!(item.kind, Kind::Object(_))));
    }

    #[test]
    fn a_hostile_schema_is_followed_to_a_depth() {
        for schema in [
            json!(null),
            json!(true),
            json!({"properties": 7}),
            json!({"properties": {"a": {"$ref": "#/properties/a"}}}),
            json!({"properties": {"a": {"type": "array", "items": {"$ref": "#"}}}}),
            json!({"properties": {"a": {"$ref": "#"}}}),
        ] {
            assert!(params(&schema).len() <= 1, "{schema}");
        }
    }
}
