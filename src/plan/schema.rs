//! The run file's JSON Schema (draft 2020-12), for editors that complete and check TOML.
//!
//! The sections are described by the structs that they are read into, and the stages by their cards: one
//! schema per kind, with its inputs, parameters, defaults, bounds and choices. The schema does not check
//! references; `plan` does.

use serde_json::{Map, Value, json};
use strum::VariantNames as _;

use super::{
    executor::{Executor, Jobs},
    layers::{LOOP_RULES, TRACES},
    parse::Loop,
    section::schema_of,
    server::ServerTable,
    track::Track,
    upkeep::{Cache, CacheMode},
};
use crate::{
    engine::EngineSpec,
    error::Result,
    stage::{
        Card, Cards,
        card::{Param, ParamType, agent_params},
    },
    usage::Prices,
};

const NAME: &str = "^[A-Za-z0-9_-]+$";

/// The schema of a run file whose stages have these cards.
pub fn schema(cards: &Cards) -> Result<Value> {
    let (mut kinds, mut definitions) = (Vec::new(), Map::new());
    for kind in cards.kinds() {
        if let Some(card) = cards.get(&kind)? {
            definitions.insert(format!("stage-{kind}"), stage(&card));
            kinds.push(json!({
                "if": { "properties": { "kind": { "const": kind } }, "required": ["kind"] },
                "then": { "$ref": format!("#/$defs/stage-{kind}") },
            }));
        }
    }
    definitions.insert(
        "stage".into(),
        json!({
            "type": "object",
            // A stage of an extended file has its kind there.
            "properties": { "kind": { "enum": cards.kinds(), "description": "What the stage does." } },
            "allOf": kinds,
        }),
    );
    let stages = |about: &str| {
        json!({
            "type": "object",
            "description": about,
            "propertyNames": { "pattern": NAME },
            "additionalProperties": { "if": { "type": "object" }, "then": { "$ref": "#/$defs/stage" } },
        })
    };
    let mut each_loop = schema_of::<Loop>();
    // An extended file may have it.
    each_loop.as_object_mut().and_then(|schema| schema.remove("required"));
    for rule in LOOP_RULES {
        let given = each_loop["properties"][rule].take();
        each_loop["properties"][rule] = json!({ "anyOf": [given, { "const": false }] });
    }
    each_loop["properties"]["stages"] = stages("Stages by name. They run once in each iteration.");
    Ok(json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "RunFile",
        "description": "A run: the MCP server to train on, the devices to use, and the stages.",
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "extends": {
                "type": "string",
                "description": "A built-in pipeline, `standard`, or the path of another run file. Tables are merged, and this file wins.",
            },
            "name": {
                "type": "string",
                "pattern": NAME,
                "description": "Letters, digits, `_` and `-`. Defaults to the file's name.",
            },
            "seed": {
                "type": "integer",
                "minimum": 0,
                "default": 0,
                "description": "Default seed of every stage that draws.",
            },
            "executor": executor("Where stages run"),
            "model": {
                "type": "string",
                "description": "A Hugging Face folder or a GGUF file, relative to the run file, or a hub id such as `Qwen/Qwen3-4B`, \
                                optionally followed by `@REVISION`. Short for a stage named `base` of kind `model`.",
            },
            "server": schema_of::<ServerTable>(),
            "servers": {
                "type": "object",
                "minProperties": 1,
                "propertyNames": { "pattern": NAME },
                "additionalProperties": schema_of::<ServerTable>(),
                "description": "Several servers by name, instead of `server`. The agent sees a tool `search` of the server \
                                `crm` as `crm_search`.",
            },
            "engine": schema_of::<EngineSpec>(),
            "agent": agent(),
            "cache": schema_of::<Cache>(),
            "executors": {
                "type": "object",
                "propertyNames": { "pattern": NAME },
                "additionalProperties": schema_of::<Jobs>(),
                "description": "Batch systems that run stages as jobs, by name.",
            },
            "track": schema_of::<Track>(),
            "overrides": overrides(),
            "stages": stages("Stages by name. They run once."),
            "loop": { "type": "object", "additionalProperties": each_loop },
        },
        "$defs": definitions,
    }))
}

fn overrides() -> Value {
    json!({
        "type": "object",
        "additionalProperties": false,
        "description": "Texts that the agent sees instead of the server's.",
        "properties": { "tools": {
            "type": "object",
            "description": "By the agent's name of the tool, or the server's.",
            "additionalProperties": {
                "type": "object",
                "additionalProperties": false,
                "properties": {
                    "description": { "type": "string", "description": "What the tool does." },
                    "parameters": {
                        "type": "object",
                        "additionalProperties": { "type": "string" },
                        "description": "Descriptions of its parameters, by name.",
                    },
                },
            },
        } },
    })
}

fn executor(what: &str) -> Value {
    json!({
        "type": "string",
        "default": Executor::default().name(),
        "description": format!("{what}: `local`, in the process of the run, or as jobs of one of `executors`."),
    })
}

fn stage(card: &Card) -> Value {
    let modes = CacheMode::VARIANTS.iter().map(|mode| json!(mode));
    let modes: Vec<Value> = modes.chain([true.into(), false.into()]).collect();
    let mut prices = schema_of::<Prices>();
    prices["description"] = "Prices of judge tokens, in dollars per million. Defaults to the card's.".into();
    let mut properties = json!({
        "kind": { "const": card.kind, "description": card.about },
        "seed": {
            "type": "integer",
            "minimum": 0,
            "description": "The seed of this stage. Defaults to the run file's.",
        },
        "cache": {
            "enum": modes,
            "default": <&str>::from(CacheMode::default()),
            "description": "use: a stored result is reused. refresh: the stage runs in every run and stores its result. \
                            off: the stage runs in every run, and no run reuses its result. False is off.",
        },
        "executor": executor("Where the stage runs, by default as the run file says"),
        "shards": {
            "type": "integer",
            "minimum": 1,
            "default": 1,
            "description": "Jobs that the stage's episodes are divided among.",
        },
        "prices": prices,
        "yields": { "type": "string", "description": "The carried value of the loop that this stage renews." },
    });
    let mut required = vec![json!("kind")];
    for (name, role) in &card.inputs {
        let about = format!("{} ({})", role.about, role.artifact);
        let reference = json!({ "type": "string" });
        properties[name] = if role.many {
            let each = json!({ "anyOf": [reference, { "const": false }] });
            json!({ "type": "object", "additionalProperties": each, "description": about })
        } else if name == TRACES {
            let files = json!({ "type": "array", "items": { "type": "string" } });
            json!({ "anyOf": [reference, files], "description": about })
        } else {
            json!({ "type": "string", "description": about })
        };
        // One that a single stage can fill may be left out.
        if role.many && !role.optional {
            required.push(json!(name));
        }
    }
    for (name, param) in &card.params {
        properties[name] = parameter(param);
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

/// `[agent]`, whose keys the stages that play take as parameters.
fn agent() -> Value {
    let keys: Map<String, Value> =
        agent_params().iter().map(|(name, param)| (name.clone(), parameter(param))).collect();
    json!({
        "type": "object",
        "additionalProperties": false,
        "description": "What the agent may do, what it sees, and how it is read: the defaults of all stages that play episodes.",
        "properties": keys,
    })
}

fn parameter(param: &Param) -> Value {
    let mut value = match param.kind {
        ParamType::Integer => json!({ "type": "integer" }),
        ParamType::Number => json!({ "type": "number" }),
        ParamType::Boolean => json!({ "type": "boolean" }),
        ParamType::String | ParamType::File | ParamType::Model => json!({ "type": "string" }),
        ParamType::Strings | ParamType::Command | ParamType::Paths => {
            json!({ "type": "array", "items": { "type": "string" } })
        }
        ParamType::Table => json!({ "type": "object" }),
        ParamType::Prompts => {
            let either = json!([{ "type": "object" }, { "type": "boolean" }]);
            json!({ "type": "object", "additionalProperties": { "anyOf": either } })
        }
        ParamType::Names => {
            let list = json!({ "type": "array", "items": { "type": "string" } });
            json!({ "anyOf": [{ "type": "boolean" }, list] })
        }
        ParamType::Values => {
            let value = json!({ "type": ["string", "number", "boolean"] });
            let list = json!({ "type": "array", "minItems": 1, "items": value });
            json!({ "type": "object", "additionalProperties": { "anyOf": [list, { "type": "string" }] } })
        }
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
