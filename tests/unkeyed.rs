//! Parameters that are in no key change no byte: each is tried with another value.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
};

use axum::{Json, Router, http::StatusCode, response::IntoResponse, routing::post};
use common::Project;
use mcprl::stage::Cards;
use serde_json::{Value, json};

const RUN: &str = r#"
name = "unkeyed"
seed = 3
model = "llama"

[server]
command = ["{mcprl}", "demo-server", "sqlite"]
state = "read-only"

[stages.tools]
kind = "discover"

[stages.tasks]
kind = "scenarios"
tools = "tools"
source = "file"
file = "tasks.jsonl"

[stages.rollout]
kind = "rollout"
policy = "base"
tools = "tools"
scenarios = "tasks.train"
prompts = 4
group_size = 3
refill_waves = 1
max_turns = 2
max_turn_tokens = 6

[stages.reward]
kind = "judge"
trajectories = "rollout"
scenarios = "tasks.train"
relative = 1.0
model = "judge"
base_url = "URL"

[stages.update]
kind = "grpo"
policy = "base"
trajectories = "rollout"
rewards = "reward"

[stages.exam]
kind = "eval"
policies = { base = "base", trained = "update" }
tools = "tools"
scenarios = "tasks.heldout"
max_turns = 2
max_turn_tokens = 6
"#;

/// Stage of the run, its kind, a parameter of it that is in no key, and another value than its default.
const OTHERS: [(&str, &str, &str, &str); 7] = [
    ("exam", "eval", "concurrency", "1"),
    ("update", "grpo", "recompute", "always"),
    ("reward", "judge", "api_key_env", "PATH"),
    ("reward", "judge", "concurrency", "1"),
    ("reward", "judge", "retries", "2"),
    ("reward", "judge", "timeout_s", "30.0"),
    ("rollout", "rollout", "concurrency", "1"),
];

#[test]
fn every_built_in_parameter_that_is_in_no_key_is_tried_here() {
    let cards = Cards::new(None);
    let mut unkeyed = Vec::new();
    for kind in cards.kinds() {
        let card = cards.get(&kind).unwrap().unwrap();
        unkeyed.extend(
            card.params.iter().filter(|(_, p)| !p.keyed).map(|(name, _)| (kind.clone(), name.clone())),
        );
    }
    let tried = OTHERS.map(|(_, kind, name, _)| (kind.to_owned(), name.to_owned()));
    assert_eq!(unkeyed, tried);
}

/// A judge that scores by what an attempt says, and is busy the first time it is asked.
async fn judge() -> String {
    static BUSY: AtomicBool = AtomicBool::new(true);
    let reply = |Json(body): Json<Value>| async move {
        if BUSY.swap(false, Ordering::Relaxed) {
            return StatusCode::SERVICE_UNAVAILABLE.into_response();
        }
        let question = body["messages"][0]["content"].as_str().unwrap().to_owned();
        let score = |attempt: &str| {
            let (id, said) = attempt.split_once('"').unwrap();
            let said = said.split("</attempt>").next().unwrap();
            json!({ "id": id, "score": f64::from(said.bytes().map(u32::from).sum::<u32>() % 11) / 10.0 })
        };
        let scores: Vec<Value> = question.split("<attempt id=\"").skip(1).map(score).collect();
        let content = json!({ "scores": scores }).to_string();
        Json(json!({ "choices": [{ "message": { "content": content } }] })).into_response()
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let app = Router::new().route("/v1/chat/completions", post(reply));
    tokio::spawn(async { axum::serve(listener, app).await });
    url
}

/// What the newest run's stages wrote, by stage and port.
fn written(project: &Project) -> BTreeMap<String, Value> {
    let run = project.runs().pop().unwrap();
    let journal = project.read(format!("cache/runs/{run}/journal.jsonl"));
    let moments = journal.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let ended = moments.filter(|moment| moment["event"] == "finished");
    ended.map(|m| (m["node"].as_str().unwrap().to_owned(), m["came_to"]["outputs"].clone())).collect()
}

#[test]
fn a_parameter_that_is_in_no_key_changes_no_byte() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let url = runtime.block_on(judge());
    let project = Project::with_model(&RUN.replace("URL", &url));
    project.run(&[]);
    let before = written(&project);
    assert_eq!(before.len(), 7, "{before:?}");

    let others = OTHERS.map(|(stage, _, name, value)| format!("stages.{stage}.{name}={value}"));
    let set: Vec<&str> = others.iter().flat_map(|set| ["--set", set]).collect();
    let plan = project.mcprl(&[&["plan", "run.toml"], &set[..]].concat());
    assert!(plan.out.contains("7 cached, 0 to run"), "{}{}", plan.out, plan.err);

    std::fs::remove_dir_all(project.path("cache")).unwrap();
    project.run(&set);
    assert_eq!(written(&project), before);
}
