//! `mcprl rejudge`, and judges of a run from end to end.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::Project;
use serde_json::{Value, json};

/// Scores episodes by their place: upwards, or downwards.
const UP: &str = "n=10; while read -r line; do n=$((n+1)); id=$(printf '%s' \"$line\" | cut -d'\"' -f4); echo \"{\\\"id\\\": \\\"$id\\\", \\\"score\\\": 0.$n}\"; done\n";

/// A run of episodes without known answers, judged by `up.sh`.
fn project() -> Project {
    let settings = "prompts = 20\ngroup_size = 2\nrefill_waves = 0\nmax_turns = 1\nmax_turn_tokens = 4";
    let stage = "\n[stages.reward]\nkind = \"judge\"\ntrajectories = \"rollout\"\nscenarios = \"tasks.train\"\n\
                 command = 1.0\nprogram = \"up.sh\"\ninterpreter = [\"sh\"]\nunfinished_cost = 0.0\n";
    let project = Project::with_model(&(common::episodes_run(settings) + stage));
    let task = |i: usize| format!("{{\"task\": \"How many projects has team {i}?\"}}\n");
    project.write("tasks.jsonl", &(0..10).map(task).collect::<String>());
    project.replace("run.toml", "\"tasks.jsonl\"", "\"tasks.jsonl\"\nheldout_share = 0.0");
    project.write("up.sh", UP);
    project.write("down.sh", &UP.replace("n=10;", "n=90;").replace("n+1", "n-1"));
    project
}

/// Names and contents of all files of the newest run.
fn contents(project: &Project) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![project.newest()];
    while let Some(folder) = folders.pop() {
        for item in std::fs::read_dir(folder).unwrap() {
            let path = item.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.push((path.display().to_string(), std::fs::read(&path).unwrap())),
            }
        }
    }
    found.sort();
    found
}

fn rejudge(project: &Project, more: &[&str]) -> Value {
    let arguments: Vec<&str> = ["rejudge", "latest", "--json"].iter().chain(more).copied().collect();
    let output = project.mcprl(&arguments);
    assert_eq!(output.code, Some(0), "{}", output.err);
    serde_json::from_str(&output.out).unwrap()
}

#[test]
fn another_judge_changes_ranks_and_advantages_but_not_the_run() {
    let project = project();
    project.run(&[]);
    let (before, runs) = (contents(&project), project.runs());

    let same = rejudge(&project, &[]);
    assert_eq!(same["total"]["trajectories"], 20);
    assert_eq!(same["total"]["groups"], 10);
    assert_eq!((&same["total"]["spearman"], &same["total"]["sign_flips"]), (&json!(1.0), &json!(0.0)));

    let other = rejudge(&project, &["--set", "program=down.sh"]);
    let total = &other["total"];
    assert_eq!((&total["spearman"], &total["kendall"]), (&json!(-1.0), &json!(-1.0)), "{other}");
    assert_eq!((&total["best_changes"], &total["sign_flips"]), (&json!(1.0), &json!(1.0)));
    assert_eq!(other["stages"][0]["stage"], "reward");
    assert!(other["stages"][0]["metrics"]["reward"].as_f64().unwrap() > 0.5);

    let whole = rejudge(&project, &["--set", "stages.reward.program=down.sh"]);
    assert_eq!(whole["total"], other["total"]);
    assert_eq!((contents(&project), project.runs()), (before, runs));
}

#[test]
fn the_judge_of_another_run_file_is_used() {
    let project = project();
    project.run(&[]);
    project.write(
        "other.toml",
        &project.read("run.toml").replace("up.sh", "down.sh").replace("stages.reward", "stages.score"),
    );
    let other = rejudge(&project, &["--with", "other.toml"]);
    assert_eq!(other["total"]["spearman"], -1.0, "the only stage that writes rewards");

    let text = project.mcprl(&["rejudge", "latest/reward", "--with", "other.toml"]);
    assert_eq!(text.code, Some(0), "{}", text.err);
    assert!(text.out.contains("Spearman correlation within groups         -1.000"), "{}", text.out);
}

#[test]
fn a_language_model_can_judge_again_and_reports_its_cost() {
    let project = project();
    project.run(&[]);
    let base_url = common::judge(|_| Some((1..=16).map(|id| json!({ "id": id, "score": 0.5 })).collect()));
    let set = ["command=0", "relative=1.0", "model=m", &format!("base_url={base_url}")];
    let arguments: Vec<&str> = set.iter().flat_map(|set| ["--set", *set]).collect();
    let flat = rejudge(&project, &arguments);
    assert_eq!((&flat["total"]["flat_after"], &flat["total"]["spearman"]), (&json!(10), &Value::Null));
    assert!(flat["stages"][0]["metrics"]["judge_requests"].as_f64().unwrap() >= 10.0);
}

#[test]
fn what_cannot_be_judged_again_is_refused() {
    let project = project();
    project.run(&[]);
    let refused = |arguments: &[&str], code: i32, message: &str| {
        let output = project.mcprl(arguments);
        assert_eq!(output.code, Some(code), "{arguments:?}: {}", output.err);
        assert!(output.err.contains(message), "{arguments:?}: {}", output.err);
    };
    refused(&["rejudge", "latest/rollout"], 2, "no finished stage that judges trajectories");
    refused(&["rejudge", "latest/nothing"], 2, "nothing");
    refused(&["rejudge", "nowhere"], 2, "nowhere");
    refused(&["rejudge", "latest", "--set", "program=no.sh"], 2, "cannot read \"no.sh\"");
    refused(&["rejudge", "latest", "--set", "comand=1"], 2, "comand");
    project.write("fails.sh", "echo no such luck >&2; exit 4\n");
    refused(&["rejudge", "latest", "--set", "program=fails.sh"], 1, "no such luck");
    project.write("none.toml", project.read("run.toml").split("[stages.reward]").next().unwrap());
    refused(&["rejudge", "latest", "--with", "none.toml"], 2, "has no stage \"reward\"");
}

#[test]
fn a_changed_program_judges_again_and_the_same_does_not() {
    let project = project();
    project.run(&[]);
    let rewards = || std::fs::read(project.newest().join("reward/rewards.parquet")).unwrap();
    let first = rewards();
    let again = project.run(&[]);
    assert!(!again.err.contains("judging"), "{}", again.err);
    project.write("up.sh", &project.read("down.sh"));
    project.run(&[]);
    assert_ne!(rewards(), first);
    project.write("up.sh", "exit 1\n");
    let failed = project.mcprl(&["run", "run.toml"]);
    assert_eq!(failed.code, Some(1));
    assert!(failed.err.contains("it ended with exit status: 1"), "{}", failed.err);
    project.write("up.sh", UP);
    project.run(&[]);
    assert_eq!(rewards(), first, "nothing of the failure is kept");
}
