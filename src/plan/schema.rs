//! The run file's JSON Schema (draft 2020-12), for editors that complete and check TOML.
//!
//! The sections are described here and the stages by their cards: one schema per kind, with its inputs,
//! parameters, defaults, bounds and choices. The schema does not check references; `plan` does.

// The fields exist for their names, types and docs, which become the schema.
#![expect(dead_code, reason = "described, never built")]

use std::collections::BTreeMap;

use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{
    error::Result,
    model::kernels::Format,
    stage::{
        Card, Cards,
        card::{Param, ParamType},
    },
};

/// A run: the MCP server to train on, the devices to use, and the stages.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct RunFile {
    /// Letters, digits, `_` and `-`. Defaults to the file's name.
    #[schemars(regex(pattern = "^[A-Za-z0-9_-]+$"))]
    name: Option<String>,
    /// Default seed of every stage that draws.
    seed: Option<u64>,
    /// A Hugging Face folder, relative to the run file, or a hub id such as `Qwen/Qwen3-4B`, optionally
    /// followed by `@REVISION`. Short for a stage named `base` of kind `model`.
    model: Option<String>,
    server: Option<Server>,
    engine: Option<Engine>,
    cache: Option<Cache>,
    #[schemars(with = "Option<BTreeMap<String, Value>>")]
    stages: Option<()>,
    r#loop: Option<BTreeMap<String, Loop>>,
}

/// The MCP server to train on: a `command` or a `url`.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Server {
    /// Command to start; the transport is stdio. `{mcprl}` is this program. Words are passed unchanged, so
    /// put secrets into `env`.
    #[schemars(length(min = 1))]
    command: Option<Vec<String>>,
    /// URL to connect to over streamable HTTP. `${NAME}` in it is the environment variable NAME.
    #[schemars(regex(pattern = "^https?://"))]
    url: Option<String>,
    /// Environment variable that holds the bearer token for `url`.
    bearer_env: Option<String>,
    /// Headers of every request to `url`. `${NAME}` in a value is the environment variable NAME, as in
    /// `"Bearer ${TOKEN}"`, and `$$` is a `$`. A literal secret is rejected.
    headers: Option<BTreeMap<String, String>>,
    /// How episodes are isolated from each other. `fresh-process` needs a `command` and is its default;
    /// `fresh-session` needs a `url`.
    state: Option<State>,
    /// Tool to call before each episode if `state` is `reset-tool`.
    reset_tool: Option<String>,
    /// Environment variables for `command`, in addition to PATH, HOME, LANG, TMPDIR and those for proxies and
    /// certificates. `${NAME}` in a value is the environment variable NAME, and `$$` is a `$`. A literal
    /// secret is rejected. The value of NAME is not part of any key.
    env: Option<BTreeMap<String, String>>,
    /// Working directory of `command`, relative to the run file's folder.
    cwd: Option<String>,
    /// Files and folders whose content identifies the server, such as the modules that its script imports;
    /// relative to the run file's folder.
    files: Option<Vec<String>>,
    /// Number of concurrent sessions.
    #[schemars(range(min = 1), extend("default" = 4))]
    sessions: Option<u64>,
    /// Timeout for starting a session, in seconds.
    #[schemars(range(min = 1), extend("default" = 60))]
    start_timeout_s: Option<u64>,
    /// Timeout of one tool call, in seconds.
    #[schemars(range(min = 1), extend("default" = 30))]
    call_timeout_s: Option<u64>,
    /// Maximum number of bytes of a tool result shown to the model.
    #[schemars(range(min = 1), extend("default" = 16384))]
    result_bytes: Option<u64>,
}

#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    ReadOnly,
    FreshProcess,
    FreshSession,
    ResetTool,
}

/// Devices and precision for sampling and training.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Engine {
    /// `cpu`, or `cuda:0`, `cuda:1`, … Each device holds the model; prompts and the microbatches of a
    /// training step are split among them. Several `cpu` entries split the threads; the results are the same
    /// bytes.
    #[schemars(length(min = 1), inner(regex(pattern = "^(cpu|cuda:[0-9]+)$")))]
    devices: Option<Vec<String>>,
    /// Threads of all `cpu` devices together. Defaults to all cores.
    #[schemars(range(min = 1))]
    threads: Option<u64>,
    /// Data type of frozen weights and of their matrix products.
    dtype: Option<Format>,
    /// Maximum size of the KV cache while sampling, in MiB. Defaults to half of the memory left after loading
    /// the weights. What does not fit is recomputed: slower, but with the same result.
    #[schemars(range(min = 1))]
    kv_cache_mib: Option<u64>,
}

/// Shares results with other machines.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Cache {
    /// A path, `file:///path` or `s3://bucket/prefix`. Missing results are fetched from there.
    remote: Option<String>,
    /// Whether to upload finished results to `remote`.
    #[schemars(extend("default" = true))]
    push: Option<bool>,
}

/// Stages that run several times. Each iteration starts from the carried values of the previous one.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Loop {
    #[schemars(range(min = 1, max = 9999))]
    iterations: u64,
    /// Carried values: each name with the artifact that it starts from. Stages read it as `@name`.
    carry: Option<BTreeMap<String, String>>,
    until: Option<Until>,
    #[schemars(with = "BTreeMap<String, Value>")]
    stages: (),
}

/// Ends the loop once a metric passes a bound.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Until {
    /// `stage.metric`, of a stage of this loop.
    metric: String,
    at_least: Option<f64>,
    at_most: Option<f64>,
}

/// The schema of a run file whose stages have these cards.
pub fn schema(cards: &Cards) -> Result<Value> {
    let generator = SchemaGenerator::new(SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
    }));
    let mut schema = generator.into_root_schema_for::<RunFile>().to_value();
    optional_means_absent(&mut schema);
    let (mut kinds, mut definitions) = (Vec::new(), Map::new());
    for kind in cards.kinds() {
        if let Some(card) = cards.get(&kind)? {
            definitions.insert(format!("stage-{kind}"), stage(&card));
            kinds.push(json!({
                "if": { "properties": { "kind": { "const": kind } } },
                "then": { "$ref": format!("#/$defs/stage-{kind}") },
            }));
        }
    }
    definitions.insert(
        "stage".into(),
        json!({
            "type": "object",
            "required": ["kind"],
            "properties": { "kind": { "enum": cards.kinds(), "description": "What the stage does." } },
            "allOf": kinds,
        }),
    );
    let stages = |about: &str| {
        json!({
            "type": "object",
            "description": about,
            "propertyNames": { "pattern": "^[A-Za-z0-9_-]+$" },
            "additionalProperties": { "$ref": "#/$defs/stage" },
        })
    };
    if let Some(place) = schema.pointer_mut("/properties/stages") {
        *place = stages("Stages by name, worked once.");
    }
    if let Some(place) = schema.pointer_mut("/properties/loop/additionalProperties/properties/stages") {
        *place = stages("Stages by name, worked once in each iteration.");
    }
    schema["$defs"] = Value::Object(definitions);
    Ok(schema)
}

/// TOML has no null, so optional keys are absent.
fn optional_means_absent(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::Array(types)) = fields.get_mut("type") {
                types.retain(|kind| kind != "null");
                if let [only] = types.as_slice() {
                    let only = only.clone();
                    fields.insert("type".into(), only);
                }
            }
            if let Some(Value::Array(choices)) = fields.get_mut("enum") {
                choices.retain(|choice| !choice.is_null());
            }
            let choice = fields.get_mut("anyOf").and_then(Value::as_array_mut);
            if let Some(choice) = choice {
                choice.retain(|one| one.get("type") != Some(&json!("null")));
                if let [Value::Object(only)] = choice.as_mut_slice() {
                    let only = std::mem::take(only);
                    fields.remove("anyOf");
                    for (name, value) in only {
                        fields.entry(name).or_insert(value);
                    }
                }
            }
            fields.remove("format");
            fields.values_mut().for_each(optional_means_absent);
        }
        Value::Array(items) => items.iter_mut().for_each(optional_means_absent),
        _ => {}
    }
}

fn stage(card: &Card) -> Value {
    let mut properties = Map::new();
    let mut required = vec![json!("kind")];
    properties.insert("kind".into(), json!({ "const": card.kind, "description": card.about }));
    let seed = "Of this stage; the run file's where absent.";
    properties.insert("seed".into(), json!({ "type": "integer", "minimum": 0, "description": seed }));
    let cache = "use: a stored result is taken. refresh: worked in every run, the new result is stored. off: worked in \
                 every run, and nobody takes the result. False is off.";
    let modes = ["use", "refresh", "off"];
    properties.insert(
        "cache".into(),
        json!({ "enum": [modes[0], modes[1], modes[2], true, false], "default": "use", "description": cache }),
    );
    let prices = "What judge tokens cost, in dollars per million; the card's where absent.";
    let price = json!({ "type": "number", "minimum": 0 });
    properties.insert(
        "prices".into(),
        json!({
            "type": "object", "description": prices, "additionalProperties": false,
            "properties": { "prompt": price, "completion": price }, "required": ["prompt", "completion"],
        }),
    );
    let yields = "The carried value of the loop that this stage renews.";
    properties.insert("yields".into(), json!({ "type": "string", "description": yields }));
    for (name, role) in &card.inputs {
        let about = format!("{} ({})", role.about, role.artifact);
        let value = if role.many {
            let each = json!({ "type": "string" });
            json!({ "type": "object", "additionalProperties": each, "description": about })
        } else {
            json!({ "type": "string", "description": about })
        };
        properties.insert(name.clone(), value);
        if !role.optional {
            required.push(json!(name));
        }
    }
    for (name, param) in &card.params {
        properties.insert(name.clone(), parameter(param));
        if param.default.is_none() && !param.optional {
            required.push(json!(name));
        }
    }
    json!({
        "type": "object",
        "description": card.about,
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn parameter(param: &Param) -> Value {
    let mut value = match param.kind {
        ParamType::Integer => json!({ "type": "integer" }),
        ParamType::Number => json!({ "type": "number" }),
        ParamType::Boolean => json!({ "type": "boolean" }),
        ParamType::String | ParamType::File | ParamType::Model => json!({ "type": "string" }),
        ParamType::Strings => json!({ "type": "array", "items": { "type": "string" } }),
        ParamType::Table => json!({ "type": "object" }),
    };
    let unit = param.unit.as_ref().map(|unit| format!(" [{unit}]")).unwrap_or_default();
    let about = format!("{}{unit}", param.about);
    let more = [
        ("description", (!about.is_empty()).then(|| json!(about))),
        ("default", param.default.clone()),
        ("minimum", param.min.map(|min| json!(min))),
        ("maximum", param.max.map(|max| json!(max))),
        ("enum", (!param.choices.is_empty()).then(|| json!(param.choices))),
    ];
    for (name, given) in more {
        if let Some(given) = given {
            value[name] = given;
        }
    }
    value
}
