//! A model of one's own through the whole pipeline: the real binary, a tiny Llama, the demo server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::path::Path;

use common::Project;
use mcprl::model::{Decoder, Init, ModelConfig};
use serde_json::{Value, json};

const RUN: &str = r#"
name = "own"
seed = 3

[server]
command = ["{mcprl}", "demo-server", "sqlite"]
state = "read-only"

[engine]
devices = ["cpu"]

[stages.tools]
kind = "discover"

[stages.tasks]
kind = "scenarios"
tools = "tools"
source = "file"
file = "tasks.jsonl"

[stages.base]
kind = "model"
from = "llama"

[stages.rollout]
kind = "rollout"
policy = "base"
tools = "tools"
scenarios = "tasks.train"
group_size = 2
max_turns = 2
max_tokens = 16

[stages.reward]
kind = "judge"
trajectories = "rollout"
scenarios = "tasks.train"

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
max_tokens = 16
"#;

fn llama(folder: &Path, seed: u64) {
    let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference");
    std::fs::create_dir_all(folder).unwrap();
    let config = std::fs::read(reference.join("fixtures/families/llama/config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["vocab_size"] = json!(407);
    config["max_position_embeddings"] = json!(4096);
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let config = ModelConfig::load(folder).unwrap();
    Decoder::random(config, Init { seed, deviation: 0.1 }).unwrap().save(folder).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        std::fs::copy(reference.join("chat/qwen3").join(name), folder.join(name)).unwrap();
    }
}

#[test]
fn a_llama_of_ones_own_goes_from_folder_to_exam_and_is_keyed_by_its_content() {
    let project = Project::new(RUN);
    llama(&project.path("llama"), 1);
    let task = |i: usize| format!("{{\"task\": \"How many projects has team {i}?\", \"answer\": \"{i}\"}}\n");
    project.write("tasks.jsonl", &(0..10).map(task).collect::<String>());
    project.run(&[]);
    assert!(project.path("cache").exists());

    // A file that is no part of the model changes nothing; other weights are another model.
    project.write("llama/README.md", "# A llama");
    let plan = project.mcprl(&["plan", "run.toml"]).out;
    assert!(plan.contains("cached  base"), "{plan}");
    assert!(plan.contains(" 0 to run"), "{plan}");
    llama(&project.path("llama"), 2);
    let plan = project.mcprl(&["plan", "run.toml"]).out;
    assert!(plan.contains("run     base"), "{plan}");
    // Its shape is known before it is worked.
    let memory = plan.lines().find(|line| line.starts_with("memory, at most: ")).unwrap();
    assert!(memory.contains("update ") && memory.contains("exam "), "{plan}");
    assert!(!plan.contains("memory, unknown"), "{plan}");
}

#[test]
fn what_a_model_takes_that_is_not_here_yet_is_said_to_be_unknown() {
    let project = Project::new(&RUN.replace("from = \"llama\"", "from = \"someone/llama\""));
    project.write("tasks.jsonl", "{\"task\": \"How many?\", \"answer\": \"1\"}\n");
    let plan = project.mcprl(&["plan", "run.toml"]).out;
    assert!(
        plan.contains("memory, unknown: ") && plan.contains("exam (its model is not here yet)"),
        "{plan}"
    );
}

#[test]
fn a_model_that_is_neither_folder_nor_hub_id_is_shown_where_it_is_named() {
    let project = Project::new(&RUN.replace("from = \"llama\"", "from = \"./llama\""));
    project.write("tasks.jsonl", "{\"task\": \"How many?\", \"answer\": \"1\"}\n");
    let said = project.mcprl(&["plan", "run.toml"]);
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("there is no folder \"./llama\""), "{}", said.err);
    assert!(said.err.contains("hub id"), "{}", said.err);
}
