//! The run file's JSON Schema (parsed 2020-12), for editors that complete and check TOML.
//!
//! The sections are described here, the stages by their cards: one schema per kind, with the kind's inputs, parameters,
//! defaults, bounds and choices. It says what a run file may hold; that references lead somewhere is for `plan` to say.

// Fields are here for their names, types and docs, which are the schema.
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

/// A run: the server to master, the devices to use, and the stages from one to the other.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct RunFile {
    /// Letters, digits, `_` and `-`; the file's name where absent.
    #[schemars(regex(pattern = "^[A-Za-z0-9_-]+$"))]
    name: Option<String>,
    /// For every stage that draws and has none of its own.
    seed: Option<u64>,
    /// A Hugging Face folder, relative to the run file, or a hub id such as `Qwen/Qwen3-4B`, with `@REVISION` behind it
    /// if need be: short for a stage named `base` of kind `model`.
    model: Option<String>,
    server: Option<Server>,
    engine: Option<Engine>,
    cache: Option<Cache>,
    #[schemars(with = "Option<BTreeMap<String, Value>>")]
    stages: Option<()>,
    r#loop: Option<BTreeMap<String, Loop>>,
}

/// The MCP server to master: a `command` or a `url`.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Server {
    /// Started and spoken to over stdio. `{mcprl}` is this program. Words are passed as they are: a secret goes into `env`.
    #[schemars(length(min = 1))]
    command: Option<Vec<String>>,
    /// Spoken to over streamable HTTP. `${NAME}` in it is the environment variable NAME.
    #[schemars(regex(pattern = "^https?://"))]
    url: Option<String>,
    /// Environment variable that holds the bearer token for `url`.
    bearer_env: Option<String>,
    /// Sent with every request to `url`. `${NAME}` in a value is the environment variable NAME, as in
    /// `"Bearer ${TOKEN}"`, and `$$` is a `$`; a secret written out is refused.
    headers: Option<BTreeMap<String, String>>,
    /// What keeps one episode's effects from the next one's. `fresh-process` is for a `command`, and meant where absent;
    /// `fresh-session` is for a `url`.
    state: Option<State>,
    /// The tool to call before each episode, where `state` is `reset-tool`.
    reset_tool: Option<String>,
    /// Variables for `command`, beside PATH, HOME, LANG and TMPDIR. `${NAME}` in a value is the environment variable NAME,
    /// and `$$` is a `$`; a secret written out is refused. What `${NAME}` stands for is in no key.
    env: Option<BTreeMap<String, String>>,
    /// Where `command` works, from the run file's folder.
    cwd: Option<String>,
    /// Sessions at once.
    #[schemars(range(min = 1), extend("default" = 4))]
    sessions: Option<u64>,
    /// For a session to begin, in seconds.
    #[schemars(range(min = 1), extend("default" = 60))]
    start_timeout_s: Option<u64>,
    /// For one call of a tool, in seconds.
    #[schemars(range(min = 1), extend("default" = 30))]
    call_timeout_s: Option<u64>,
    /// Bytes of a result that the model is shown.
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

/// Where the model computes.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Engine {
    /// `cpu`, or `cuda:0`, `cuda:1`, … Each holds the model: prompts are shared out among them, and the microbatches of a
    /// training step. `cpu` several times divides the threads; the results are the same bytes.
    #[schemars(length(min = 1), inner(regex(pattern = "^(cpu|cuda:[0-9]+)$")))]
    devices: Option<Vec<String>>,
    /// Of all `cpu` devices together; all cores where absent.
    #[schemars(range(min = 1))]
    threads: Option<u64>,
    /// How weights that are not trained are held, and what their products are computed in.
    dtype: Option<Format>,
    /// Most memory that keys and values may take while sampling, in MiB; half of what is free once the weights are there
    /// where absent. What has no room is computed again later: slower, and the same result.
    #[schemars(range(min = 1))]
    kv_cache_mib: Option<u64>,
}

/// Where results are shared with other machines.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Cache {
    /// A path, `file:///path` or `s3://bucket/prefix`; results missing here are taken from there, finished ones go there.
    remote: Option<String>,
    /// Whether finished results go there.
    #[schemars(extend("default" = true))]
    push: Option<bool>,
}

/// Stages that are worked several times, each iteration from what the last one handed on.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Loop {
    #[schemars(range(min = 1, max = 9999))]
    iterations: u64,
    /// What one iteration hands to the next, by name, and the artifact it starts from. Stages read it as `@name`.
    carry: Option<BTreeMap<String, String>>,
    until: Option<Until>,
    #[schemars(with = "BTreeMap<String, Value>")]
    stages: (),
}

/// The loop ends once a metric is past a bound.
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

/// TOML has no null: what is optional is left out.
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
