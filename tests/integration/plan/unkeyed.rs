//! Parameters that are in no key change no byte: each is tried with another value.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use crate::common::{self, Project};
use serde_json::{Value, json};

/// Stage of the run, its kind, a parameter of it that is in no key, and another value than its default.
const OTHERS: [(&str, &str, &str, &str); 22] = [
    ("solved", "demonstrations", "concurrency", "1"),
    ("exam", "eval", "concurrency", "1"),
    ("update", "grpo", "recompute", "always"),
    ("room", "headroom", "concurrency", "1"),
    ("reward", "judge", "api_key_env", "PATH"),
    ("reward", "judge", "concurrency", "1"),
    ("reward", "judge", "max_cost", "9.0"),
    ("reward", "judge", "program_timeout_s", "30.0"),
    ("reward", "judge", "requests_per_minute", "60000"),
    ("reward", "judge", "retries", "2"),
    ("reward", "judge", "timeout_s", "30.0"),
    ("reward", "judge", "tokens_per_minute", "100000000"),
    ("kept", "replay", "concurrency", "1"),
    ("rollout", "rollout", "concurrency", "1"),
    ("tasks", "scenarios", "api_key_env", "PATH"),
    ("tasks", "scenarios", "concurrency", "1"),
    ("tasks", "scenarios", "episode_concurrency", "1"),
    ("tasks", "scenarios", "max_cost", "9.0"),
    ("tasks", "scenarios", "retries", "2"),
    ("tasks", "scenarios", "timeout_s", "30.0"),
    ("tuned", "sft", "recompute", "always"),
    ("gate", "teacher", "concurrency", "1"),
];

#[test]
fn every_unkeyed_built_in_parameter_is_tested_here() {
    let project = Project::new("");
    let mut unkeyed = Vec::new();
    for item in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("stages")).unwrap() {
        let item = item.unwrap();
        if !item.path().join("card.toml").is_file() {
            continue;
        }
        let kind = item.file_name().into_string().unwrap();
        let card = project.mcprl(&["stage", "show", &kind, "--json"]);
        let card: Value = serde_json::from_str(&card.out).unwrap();
        let params = card["params"].as_object().unwrap().iter();
        unkeyed.extend(
            params.filter(|(_, param)| param["keyed"] == false).map(|(name, _)| (kind.clone(), name.clone())),
        );
    }
    unkeyed.sort();
    let tried = OTHERS.map(|(_, kind, name, _)| (kind.to_owned(), name.to_owned()));
    assert_eq!(unkeyed, tried);
}

/// Scores by the text of a trajectory, and is busy at the first request.
fn scores(request: &Value) -> Option<Vec<Value>> {
    static BUSY: AtomicBool = AtomicBool::new(true);
    if BUSY.swap(false, Ordering::Relaxed) {
        return None;
    }
    let question = request["messages"][0]["content"].as_str().unwrap();
    let score = |trajectory: &str| {
        let (id, text) = trajectory.split_once('"').unwrap();
        let text = text.split("</attempt>").next().unwrap();
        json!({ "id": id, "score": f64::from(text.bytes().map(u32::from).sum::<u32>() % 11) / 10.0 })
    };
    Some(question.split("<attempt id=\"").skip(1).map(score).collect())
}

/// What the newest run's stages wrote, by stage and port.
fn written(project: &Project) -> BTreeMap<String, Value> {
    let finished = project.journal().into_iter().filter(|entry| entry["event"] == "finished");
    let outputs = |entry: Value| {
        assert!(entry["result"]["outputs"].is_object(), "{entry}");
        (entry["id"].as_str().unwrap().to_owned(), entry["result"]["outputs"].clone())
    };
    finished.map(outputs).collect()
}

#[test]
fn an_unkeyed_parameter_changes_no_byte() {
    let judge = format!(
        "kind = \"judge\"\nweights.relative = 1.0\nmodel = \"judge\"\nbase_url = \"{}\"\n\
         prices = {{ prompt = 0.1, completion = 0.1 }}",
        common::judge(scores)
    );
    let run = common::training_run("prompts = 4\ngroup_size = 3\nrefill_waves = 1");
    let tries = "policy = \"base\"\ntries = 2\nmax_turns = 1\nmax_turn_tokens = 6\nfile = \"tasks.jsonl\"";
    let run = run.replace("kind = \"judge\"", &judge).replace("file = \"tasks.jsonl\"", tries);
    let supervised = r#"
[stages.solved]
kind = "demonstrations"
policy = "base"
tools = "tools"
scenarios = "tasks.train"
episodes = 4

[stages.kept]
kind = "replay"
policy = "base"
tools = "tools"
trajectories = "solved"

[stages.room]
kind = "headroom"
policies = { base = "base" }
tools = "tools"
scenarios = "tasks.train"
dev = "tasks.dev"
tasks = 2
samples = 2
max_turns = 1
max_turn_tokens = 6

[stages.gate]
kind = "teacher"
teacher = "base"
policy = "base"
tools = "tools"
scenarios = "tasks.heldout"
least_gain = 0.0
max_turns = 1
max_turn_tokens = 6

[stages.tuned]
kind = "sft"
policy = "base"
trajectories = "kept"
only_right = false
"#;
    let project = Project::with_model(&(run + supervised));
    let tasks = std::fs::read_to_string(project.path("tasks.jsonl")).unwrap();
    project.write(
        "tasks.jsonl",
        &tasks.replace('}', ", \"reference\": [{\"name\": \"list_tables\", \"arguments\": {}}]}"),
    );
    project.run(&[]);
    let before = written(&project);
    assert_eq!(before.len(), 12, "{before:?}");

    let others = OTHERS.map(|(stage, _, name, value)| format!("stages.{stage}.{name}={value}"));
    // Trackers are in no key either.
    let track = ["track.tensorboard=true", "track.examples=false"];
    let set = others.iter().map(String::as_str).chain(track);
    let set: Vec<&str> = set.flat_map(|set| ["--set", set]).collect();
    let plan = project.mcprl(&[&["plan", "run.toml"], &set[..]].concat());
    assert!(plan.out.contains("12 cached, 0 to run"), "{}{}", plan.out, plan.err);

    std::fs::remove_dir_all(project.path("cache")).unwrap();
    project.run(&set);
    assert_eq!(written(&project), before);
}
