//! Stages that differ in which rows there are, and not in what is in one, take each other's rows over.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use common::{Project, Said};
use serde_json::{Value, json};

const RUN: &str = r#"
name = "rows"
seed = 3

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
heldout_share = 0.0

[stages.base]
kind = "model"
from = "llama"

[stages.rollout]
kind = "rollout"
policy = "base"
tools = "tools"
scenarios = "tasks.train"
prompts = 20
group_size = 2
refill_waves = 0
max_turns = 1
max_turn_tokens = 4
"#;

fn project() -> Project {
    let project = Project::new(RUN);
    project.llama(1);
    project.ten_tasks();
    project
}

fn change(project: &Project, from: &str, to: &str) {
    let text = project.read("run.toml");
    assert!(text.contains(from), "{from}");
    project.write("run.toml", &text.replace(from, to));
}

fn episodes(project: &Project) -> Vec<u8> {
    let run = project.runs().pop().unwrap();
    std::fs::read(project.path(&format!("cache/runs/{run}/rollout/trajectories.parquet"))).unwrap()
}

/// How many episodes a run said to have taken over.
fn taken(said: &Said) -> usize {
    let line = said.err.lines().find(|line| line.contains("taken over"));
    line.map_or(0, |line| {
        line.split_whitespace().find_map(|word| word.parse().ok()).unwrap_or_else(|| panic!("{line}"))
    })
}

#[test]
fn larger_groups_and_further_tasks_keep_the_episodes_there_are() {
    let project = project();
    assert_eq!(taken(&project.run(&[])), 0);

    change(&project, "group_size = 2", "group_size = 3");
    assert_eq!(taken(&project.run(&[])), 20);

    project.write(
        "tasks.jsonl",
        &(project.read("tasks.jsonl") + "{\"task\": \"How many teams?\", \"answer\": \"3\"}\n"),
    );
    assert_eq!(taken(&project.run(&[])), 30);
    let kept = episodes(&project);

    let alone = self::project();
    change(&alone, "group_size = 2", "group_size = 3");
    alone.write("tasks.jsonl", &project.read("tasks.jsonl"));
    assert_eq!(taken(&alone.run(&[])), 0);
    assert!(kept == episodes(&alone), "the bytes of one that played them all");
}

#[test]
fn what_an_episode_depends_on_is_not_taken_over_and_neither_is_anything_that_is_drawn_anew() {
    let project = project();
    project.run(&[]);
    change(&project, "max_turn_tokens = 4", "max_turn_tokens = 5");
    assert_eq!(taken(&project.run(&[])), 0);
    change(&project, "seed = 3", "seed = 4");
    assert_eq!(taken(&project.run(&[])), 0);
    change(&project, "group_size = 2", "group_size = 3\ncache = \"refresh\"");
    assert_eq!(taken(&project.run(&[])), 0);
}

#[test]
fn rows_of_an_interrupted_run_serve_one_that_wants_more() {
    let project = project();
    let killed =
        project.command(&["run", "run.toml"]).env("MCPRL_FAILPOINT", "rows::recorded:15").output().unwrap();
    assert_eq!(killed.status.code(), None, "killed");
    change(&project, "group_size = 2", "group_size = 3");
    // 30 are wanted and 15 are there: a sixteenth would be the end of it.
    let rest =
        project.command(&["run", "run.toml"]).env("MCPRL_FAILPOINT", "rows::recorded:16").output().unwrap();
    assert_eq!(rest.status.code(), Some(0), "{}", String::from_utf8_lossy(&rest.stderr));
}

/// A judge that finds every attempt half good; counts what it is asked.
fn judge() -> (String, Arc<AtomicUsize>) {
    use axum::{Json, Router, routing::post};
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let reply = move |_: Json<Value>| {
        count.fetch_add(1, Ordering::SeqCst);
        let scores: Vec<Value> = (1..=16).map(|id| json!({"id": id, "score": 0.5})).collect();
        let content = json!({ "scores": scores }).to_string();
        async move { Json(json!({"choices": [{"message": {"role": "assistant", "content": content}}]})) }
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, Router::new().route("/v1/chat/completions", post(reply))).await.unwrap();
        });
    });
    (format!("http://{address}/v1"), asked)
}

#[test]
fn a_judge_is_not_asked_again_what_it_has_answered_unless_it_is_told_to() {
    let (base_url, asked) = judge();
    let project = project();
    let stage = format!(
        "\n[stages.reward]\nkind = \"judge\"\ntrajectories = \"rollout\"\nscenarios = \"tasks.train\"\nrelative = 1.0\n\
         base_url = \"{base_url}\"\nmodel = \"m\"\nturn_cost = 0.0\n"
    );
    project.write("run.toml", &(RUN.to_owned() + &stage));
    project.run(&[]);
    let all = asked.swap(0, Ordering::SeqCst);
    assert!(all >= 10, "asked {all} times of ten groups");

    change(&project, "turn_cost = 0.0", "turn_cost = 0.03");
    project.run(&[]);
    assert_eq!(asked.swap(0, Ordering::SeqCst), 0, "another cost of a turn");

    project.write(
        "tasks.jsonl",
        &(project.read("tasks.jsonl") + "{\"task\": \"How many teams?\", \"answer\": \"3\"}\n"),
    );
    project.run(&[]);
    let more = asked.swap(0, Ordering::SeqCst);
    assert!((1..=2).contains(&more), "asked {more} times of one further group");

    project.run(&["--resample", "reward"]);
    assert_eq!(asked.swap(0, Ordering::SeqCst), all + more, "told to draw anew");

    change(&project, "model = \"m\"", "model = \"n\"");
    project.run(&[]);
    assert_eq!(asked.swap(0, Ordering::SeqCst), all + more, "another judge");
}
