//! Judgements per second of the stage `judge` on one core, against an endpoint that answers at once.
//!
//! ```console
//! $ cargo bench --bench judge              # 20,000 groups of 4, relative
//! $ cargo bench --bench judge -- 2000 8
//! ```
//!
//! The endpoint runs in this process, on the other cores; `taskset` keeps mcprl on one. A judgement is a request and its
//! reply, read, checked and recorded.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark prints, and ends if it cannot go on"
)]

use std::{path::Path, process::Command, time::Duration};

use axum::{Json, Router, routing::post};
use mcprl::data::{self, Scenario, Trajectory};
use serde_json::{Value, json};

const MCPRL: &str = env!("CARGO_BIN_EXE_mcprl");

fn main() {
    // Cargo adds `--bench`.
    let numbers: Vec<usize> = std::env::args().filter_map(|word| word.parse().ok()).collect();
    let [groups, size] = numbers.try_into().unwrap_or([20_000, 4]);
    let folder = tempfile::tempdir().unwrap();
    tables(folder.path(), groups, size);
    project(folder.path(), &endpoint());
    let mut run = Command::new("taskset")
        .args(["-c", "0", MCPRL, "run", "run.toml"])
        .current_dir(folder.path())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let status = format!("/proc/{}/status", run.id());
    let mut peak = String::new();
    let ended = loop {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        if let Some(line) = text.lines().find(|line| line.starts_with("VmHWM")) {
            peak = line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ");
        }
        if let Some(ended) = run.try_wait().unwrap() {
            break ended;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(ended.success(), "{ended}");
    let show = Command::new(MCPRL)
        .args(["show", "latest/reward", "--json"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let stage: Value = serde_json::from_slice(&show.stdout).unwrap();
    let seconds = stage["run_seconds"].as_f64().unwrap();
    let requests = stage["metrics"]["judge_requests"].as_f64().unwrap();
    println!("{requests} judgements of {size} episodes in {seconds:.1} s: {:.0}/s", requests / seconds);
    println!("peak memory {peak}");
}

fn tables(folder: &Path, groups: usize, size: usize) {
    let scenario = |index: usize| Scenario {
        id: format!("s{index}"),
        split: "train".into(),
        family: "f".into(),
        task: format!("How many orders has customer {index}?"),
        check: "none".into(),
        ..Scenario::default()
    };
    let trajectory = |index: usize| {
        let (group, member) = (index / size, index % size);
        let messages = json!([
            {"role": "user", "content": format!("How many orders has customer {group}?")},
            {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "query", "arguments": {"sql": format!("SELECT count(*) FROM orders WHERE customer = {group}")}}}]},
            {"role": "tool", "tool_call_id": "a", "content": "x".repeat(800)},
            {"role": "assistant", "content": format!("{member} orders")},
        ]);
        Trajectory {
            id: format!("{group}/{member}"),
            scenario_id: format!("s{group}"),
            policy: "p".into(),
            messages: serde_json::from_value(messages).unwrap(),
            tokens: vec![1; 300],
            sampled: vec![true; 300],
            logprobs: vec![0.0; 300],
            end: "completed".into(),
            answer: Some(member.to_string()),
            ..Trajectory::default()
        }
    };
    let scenarios: Vec<Scenario> = (0..groups).map(scenario).collect();
    let trajectories: Vec<Trajectory> = (0..groups * size).map(trajectory).collect();
    data::write(&folder.join("scenarios.parquet"), &scenarios).unwrap();
    data::write(&folder.join("trajectories.parquet"), &trajectories).unwrap();
}

fn project(folder: &Path, base_url: &str) {
    let stored = folder.join("stages/stored");
    std::fs::create_dir_all(&stored).unwrap();
    let card = "kind = \"stored\"\nrevision = 1\nabout = \"Stored episodes.\"\ndeterminism = \"pure\"\n\
                command = [\"sh\", \"-e\", \"copy.sh\"]\n\
                [outputs.trajectories]\ntype = \"trajectories\"\npath = \"trajectories.parquet\"\n\
                [outputs.scenarios]\ntype = \"scenarios\"\npath = \"scenarios.parquet\"\n";
    std::fs::write(stored.join("card.toml"), card).unwrap();
    let copy = format!(
        "cp {0}/trajectories.parquet $MCPRL_OUTPUT_TRAJECTORIES\ncp {0}/scenarios.parquet $MCPRL_OUTPUT_SCENARIOS\n",
        folder.display()
    );
    std::fs::write(stored.join("copy.sh"), copy).unwrap();
    let run = format!(
        "name = \"judge\"\n[stages.stored]\nkind = \"stored\"\n[stages.reward]\nkind = \"judge\"\n\
         trajectories = \"stored.trajectories\"\nscenarios = \"stored.scenarios\"\nweights.relative = 1.0\norders = 1\n\
         base_url = \"{base_url}\"\nmodel = \"m\"\nconcurrency = 16\n"
    );
    std::fs::write(folder.join("run.toml"), run).unwrap();
}

/// An endpoint that likes all equally.
fn endpoint() -> String {
    let scores: Vec<Value> =
        (1..=16).map(|id| json!({"id": id.to_string(), "score": 0.5, "explanation": "so"})).collect();
    let reply = json!({
        "choices": [{"message": {"content": json!({ "scores": scores }).to_string()}}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 100},
    });
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let answer = move |_: String| std::future::ready(Json(reply.clone()));
            let app = Router::new().route("/v1/chat/completions", post(answer));
            axum::serve(tokio::net::TcpListener::from_std(listener).unwrap(), app).await.unwrap();
        });
    });
    format!("http://{address}/v1")
}
