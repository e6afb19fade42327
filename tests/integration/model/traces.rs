//! Recorded conversations as a stage: the real binary, the demo server and a tiny model.

use serde_json::{Value, json};

use crate::common::Project;

const RUN: &str = r#"name = "traces"
model = "llama"

[server]
command = ["{mcprl}", "demo-server", "sqlite"]
state = "read-only"

[stages.tools]
kind = "discover"

[stages.lessons]
kind = "traces"
policy = "base"
tools = "tools"
files = ["kept.jsonl", "logs"]

[stages.start]
kind = "sft"
policy = "base"
trajectories = "lessons"
epochs = 1
batch_size = 2
"#;

fn conversation(task: &str, answer: &str) -> Value {
    let call = json!({"id": "a", "type": "function", "function": {"name": "run_query", "arguments": "{\"sql\": \"SELECT 1\"}"}});
    json!({"messages": [
        {"role": "user", "content": task},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": answer},
        {"role": "assistant", "content": answer},
    ]})
}

fn project() -> Project {
    let project = Project::with_model(RUN);
    let kept = [conversation("One?", "1"), conversation("Two?", "2")].map(|one| format!("{one}\n")).concat();
    project.write("kept.jsonl", &kept);
    project.write("logs/more.jsonl", &format!("{}\n", conversation("Three?", "3")));
    project
}

#[test]
fn a_policy_learns_from_files_and_folders_whose_content_is_in_the_key() {
    let project = project();
    let done = project.run(&[]);
    assert!(done.err.contains("0 cached, 4 ran"), "{}", done.err);
    let shown = project.mcprl(&["show", "latest/lessons", "--json"]);
    let shown: Value = serde_json::from_str(&shown.out).unwrap();
    let metrics = &shown["metrics"];
    assert_eq!(
        (&metrics["traces"], &metrics["episodes"], &metrics["turns"]),
        (&json!(3.0), &json!(3.0), &json!(2.0)),
        "{shown}"
    );
    assert!(project.newest().join("start/policy/adapter_model.safetensors").is_file());

    assert!(project.run(&[]).err.contains("4 cached, 0 ran"));
    project.write("logs/notes.txt", "not a trace");
    assert!(project.run(&[]).err.contains("4 cached, 0 ran"), "other files do not count");
    project.write("logs/again.json", &conversation("Four?", "4").to_string());
    let again = project.run(&[]);
    assert!(again.err.contains("2 cached, 2 ran"), "{}", again.err);
}

#[test]
fn what_cannot_be_read_is_named_before_the_run() {
    let project = project();
    project.write("logs/broken.jsonl", "{\"messages\": []}\n{");
    let refused = project.mcprl(&["run", "run.toml"]);
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert!(refused.err.contains("logs/broken.jsonl: line 2, column 1: "), "{}", refused.err);
    project.replace("run.toml", "\"logs\"]", "\"nowhere\"]");
    let refused = project.mcprl(&["run", "run.toml"]);
    assert!(refused.err.contains("cannot read \"nowhere\""), "{}", refused.err);
}

#[test]
fn conversations_are_listed_and_written_in_one_form() {
    let project = project();
    project.write("logs/odd.jsonl", "{\"text\": 1}\n");
    let listed = project.mcprl(&["traces", "kept.jsonl", "logs", "--json"]);
    let listed: Vec<Value> = serde_json::from_str(&listed.out).unwrap();
    assert_eq!(listed.len(), 4);
    assert_eq!((&listed[0]["place"], &listed[0]["turns"]), (&json!("kept.jsonl:1"), &json!(2)));
    assert_eq!(listed[3]["unusable"], "it has no `messages` and no `conversations`");
    let written = project.mcprl(&["traces", "kept.jsonl", "logs", "--out", "all.jsonl", "--all"]);
    assert!(
        written.err.contains(
            "3 traces kept without asking, in all.jsonl; 0 to decide, 1 unusable, 0 decided before"
        ),
        "{}",
        written.err
    );
    assert_eq!(project.read("all.jsonl").lines().count(), 3);
    let again = project.mcprl(&["traces", "kept.jsonl", "--out", "all.jsonl", "--all"]);
    assert!(
        again.err.contains(
            "0 traces kept without asking, in all.jsonl; 0 to decide, 0 unusable, 2 decided before"
        ),
        "what is decided stays: {}",
        again.err
    );
}

#[test]
fn what_the_list_calls_unusable_is_not_written_without_asking() {
    let project = project();
    let mut unanswered = conversation("Four?", "4");
    unanswered["messages"].as_array_mut().unwrap().pop();
    project.write("logs/cut.jsonl", &format!("{unanswered}\n"));
    let listed = project.mcprl(&["traces", "logs"]).out;
    assert!(
        listed.ends_with("2 conversations, 1 usable; 1 not: 1 × ends with a result, without an answer\n"),
        "{listed}"
    );
    let written = project.mcprl(&["traces", "logs", "--out", "chosen.jsonl", "--all"]);
    assert!(written.err.contains("1 trace kept without asking"), "{}", written.err);
    assert!(written.err.contains("0 to decide, 1 unusable"), "{}", written.err);
    assert!(!project.read("chosen.jsonl").contains("Four?"));
}

#[test]
fn a_start_learns_from_recorded_conversations_beside_other_episodes() {
    let project = project();
    project.replace("run.toml", "epochs = 1\n", "traces = [\"more\"]\nepochs = 1\n");
    let mut secret = conversation("Four?", "4");
    secret["messages"][3]["content"] = format!("use sk-{}", "a1B2c3D4e5F6".repeat(4)).into();
    let mut unlearned = conversation("Five?", "5");
    unlearned["messages"][1]["weight"] = 0.into();
    project.write("more/some.jsonl", &format!("{}\n{secret}\n{unlearned}\n", conversation("Six?", "6")));
    let done = project.run(&[]);
    assert!(done.err.contains("0 cached, 5 ran"), "{}", done.err);
    assert!(
        done.err.contains("1 of 3 conversations are left out: 1 × it holds what looks like a key of OpenAI"),
        "{}",
        done.err
    );
    let episodes = project.json(&["show", "latest/start"])["metrics"]["episodes"].clone();
    assert_eq!(episodes, json!(5.0), "three of the files, two of the others");
    let rows: Vec<mcprl::data::TraceRow> =
        mcprl::data::read(&project.newest().join("start_traces/traces.parquet")).unwrap();
    assert_eq!(rows[2].repairs, ["turn 1 is not learned: its weight is 0"]);
    assert!(rows[2].learned > 0 && rows[2].learned < rows[0].learned);
    let text = project.mcprl(&["traces", "more", "--tools", "latest"]).out;
    assert!(
        text.contains("3 conversations, 2 usable; 1 not: 1 × holds what looks like a key of OpenAI"),
        "{text}"
    );
    assert!(text.contains("\tSix?\t"), "{text}");
}
