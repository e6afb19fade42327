//! Stages that differ only in which rows they have reuse each other's rows.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::common::{self, CommandOutput, Project};
use serde_json::{Value, json};

fn project() -> Project {
    let settings = "prompts = 20\ngroup_size = 2\nrefill_waves = 0\nmax_turns = 1\nmax_turn_tokens = 4";
    let project = Project::with_model(&common::episodes_run(settings));
    project.replace("run.toml", "\"tasks.jsonl\"", "\"tasks.jsonl\"\nheldout_share = 0.0");
    project
}

fn change(project: &Project, from: &str, to: &str) {
    project.replace("run.toml", from, to);
}

fn episodes(project: &Project) -> Vec<u8> {
    std::fs::read(project.newest().join("rollout/trajectories.parquet")).unwrap()
}

/// How many episodes a run reports as reused.
fn reused(output: &CommandOutput) -> usize {
    let line = output.err.lines().find(|line| line.contains("are reused from"));
    line.map_or(0, |line| {
        line.split_whitespace().find_map(|word| word.parse().ok()).unwrap_or_else(|| panic!("{line}"))
    })
}

#[test]
fn larger_groups_and_more_tasks_reuse_existing_episodes() {
    let project = project();
    assert_eq!(reused(&project.run(&[])), 0);

    change(&project, "group_size = 2", "group_size = 3");
    assert_eq!(reused(&project.run(&[])), 20);

    project.write(
        "tasks.jsonl",
        &(project.read("tasks.jsonl") + "{\"task\": \"How many teams?\", \"answer\": \"3\"}\n"),
    );
    assert_eq!(reused(&project.run(&[])), 30);
    let kept = episodes(&project);

    let alone = self::project();
    change(&alone, "group_size = 2", "group_size = 3");
    alone.write("tasks.jsonl", &project.read("tasks.jsonl"));
    assert_eq!(reused(&alone.run(&[])), 0);
    assert!(kept == episodes(&alone), "the bytes of one that played them all");
}

#[test]
fn episodes_are_not_reused_when_their_settings_change_or_on_refresh() {
    let project = project();
    project.run(&[]);
    change(&project, "max_turn_tokens = 4", "max_turn_tokens = 5");
    assert_eq!(reused(&project.run(&[])), 0);
    change(&project, "seed = 3", "seed = 4");
    assert_eq!(reused(&project.run(&[])), 0);
    change(&project, "group_size = 2", "group_size = 3\ncache = \"refresh\"");
    assert_eq!(reused(&project.run(&[])), 0);
}

#[test]
fn rows_of_an_interrupted_run_are_reused_by_a_larger_one() {
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

/// A judge that scores everything alike, and the number of its requests.
fn judge() -> (String, Arc<AtomicUsize>) {
    let requests = Arc::new(AtomicUsize::new(0));
    let count = requests.clone();
    let url = common::judge(move |_: &Value| {
        count.fetch_add(1, Ordering::SeqCst);
        Some((1..=16).map(|id| json!({ "id": id, "score": 0.5 })).collect())
    });
    (url, requests)
}

#[test]
fn a_judge_is_not_queried_again_except_for_a_resample() {
    let (base_url, requests) = judge();
    let project = project();
    let stage = format!(
        "\n[stages.reward]\nkind = \"judge\"\ntrajectories = \"rollout\"\nscenarios = \"tasks.train\"\nweights.relative = 1.0\n\
         base_url = \"{base_url}\"\nmodel = \"m\"\nturn_cost = 0.0\n"
    );
    project.write("run.toml", &(project.read("run.toml") + &stage));
    project.run(&[]);
    let all = requests.swap(0, Ordering::SeqCst);
    assert!(all >= 10, "{all} requests for ten groups");

    change(&project, "turn_cost = 0.0", "turn_cost = 0.03");
    project.run(&[]);
    assert_eq!(requests.swap(0, Ordering::SeqCst), 0, "another cost of a turn");

    project.write(
        "tasks.jsonl",
        &(project.read("tasks.jsonl") + "{\"task\": \"How many teams?\", \"answer\": \"3\"}\n"),
    );
    project.run(&[]);
    let more = requests.swap(0, Ordering::SeqCst);
    assert!((1..=2).contains(&more), "{more} requests for one further group");

    project.run(&["--resample", "reward"]);
    assert_eq!(requests.swap(0, Ordering::SeqCst), all + more, "a resample");

    change(&project, "model = \"m\"", "model = \"n\"");
    project.run(&[]);
    assert_eq!(requests.swap(0, Ordering::SeqCst), all + more, "another judge");
}
