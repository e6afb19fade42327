//! Tasks that are decided by the server's state after the episode, on the demo service desk.

use std::collections::BTreeMap;

use crate::common::{self, Project};
use mcprl::data::{self, Trajectory};

const UNCHANGED: &str = r#""expect": {"equals": "id | status | priority | agent"}"#;

/// A project whose policy, of random weights, makes no call.
fn project(tasks: &[(&str, String)]) -> Project {
    let settings = format!(
        "prompts = {}\ngroup_size = 2\nrefill_waves = 0\nmax_turns = 1\nmax_turn_tokens = 4",
        tasks.len()
    );
    let project = Project::with_model(&common::episodes_run(&settings));
    project.replace("run.toml", "\"sqlite\"]\nstate = \"read-only\"", "\"desk\"]\nstate = \"fresh-process\"");
    project.replace(
        "run.toml",
        "kind = \"discover\"",
        "kind = \"discover\"\ndeny = [\"list_changes\", \"reset\"]",
    );
    project.replace("run.toml", "\"tasks.jsonl\"", "\"tasks.jsonl\"\nheldout_share = 0.0");
    let lines =
        tasks.iter().map(|(task, checks)| format!("{{\"task\": \"{task}\", \"checks\": {checks}}}\n"));
    project.write("tasks.jsonl", &lines.collect::<String>());
    project
}

#[test]
fn the_state_is_read_after_the_episode_with_a_tool_that_the_agent_does_not_have() {
    let state = |tool: &str, expect: &str| format!(r#"{{"state": [{{"tool": "{tool}", {expect}}}]}}"#);
    let project = project(&[
        ("Change nothing.", state("list_changes", UNCHANGED)),
        ("Close a ticket.", state("list_changes", r#""expect": {"matches": "closed"}"#)),
    ]);
    project.run(&[]);
    let folder = project.newest();
    let scenarios: Vec<data::Scenario> = data::read(&folder.join("tasks/train.parquet")).unwrap();
    let tasks: BTreeMap<&str, &str> =
        scenarios.iter().map(|scenario| (scenario.id.as_str(), scenario.task.as_str())).collect();
    let episodes: Vec<Trajectory> = data::read(&folder.join("rollout/trajectories.parquet")).unwrap();
    assert_eq!(episodes.len(), 4);
    for episode in &episodes {
        let (task, state) = (tasks[episode.scenario_id.as_str()], &episode.state.as_ref().unwrap().0);
        assert_eq!(episode.correct, Some(task == "Change nothing."), "{task} {state}");
        assert_ne!(state, "[null]", "{task}");
        assert_eq!(episode.calls, 0);
    }
}

#[test]
fn episodes_are_played_again_if_what_is_read_after_them_changes() {
    let checks = |tool: &str| format!(r#"{{"state": [{{"tool": "{tool}", {UNCHANGED}}}]}}"#);
    let project = project(&[("Change nothing.", checks("list_changes"))]);
    project.run(&[]);
    project.replace("tasks.jsonl", "list_changes", "list_teams");
    let again = project.run(&[]);
    assert!(!again.err.contains("reused"), "{}", again.err);
    let episodes: Vec<Trajectory> =
        data::read(&project.newest().join("rollout/trajectories.parquet")).unwrap();
    assert!(episodes.iter().all(|episode| episode.correct == Some(false)));
    let json = project.json(&["episodes", "latest/rollout", "-n", "1"]);
    let unmet = json["episodes"][0]["unmet"][0].as_str().unwrap();
    assert!(unmet.starts_with("afterwards, `list_teams` does not give "), "{json}");
}

#[test]
fn checks_that_cannot_be_used_are_refused_with_their_line() {
    let project = project(&[("Change nothing.", r#"{"state": [{"tool": "list_changes"}]}"#.into())]);
    let output = project.mcprl(&["run", "run.toml"]);
    assert_eq!(output.code, Some(2));
    assert!(output.err.contains("line 1: `checks`: missing field `expect`"), "{}", output.err);
}

#[test]
fn a_plan_names_what_a_check_calls_that_the_listed_tools_do_not_have() {
    let checks = |tool: &str, arguments: &str| {
        format!(r#"{{"state": [{{"tool": "{tool}", "arguments": {arguments}, {UNCHANGED}}}]}}"#)
    };
    let project = project(&[("Change nothing.", checks("list_teams", "{}"))]);
    project.replace("run.toml", "deny = [\"list_changes\", \"reset\"]\n", "");
    assert_eq!(project.mcprl(&["plan", "run.toml"]).code, Some(0));
    assert_eq!(project.mcprl(&["run", "run.toml", "--until", "tools"]).code, Some(0));
    assert_eq!(project.mcprl(&["plan", "run.toml"]).code, Some(0));
    project.replace("tasks.jsonl", "list_teams", "list_taems");
    let refused = project.mcprl(&["plan", "run.toml"]);
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    let named =
        "\"Change nothing.\": the check of the state calls `list_taems`, which is not a tool of the server";
    assert!(
        refused.err.contains(named) && refused.err.contains("did you mean `list_teams`?"),
        "{}",
        refused.err
    );
    // An agent that has not all tools says nothing of the others.
    project.replace("run.toml", "kind = \"discover\"\n", "kind = \"discover\"\ndeny = [\"reset\"]\n");
    assert_eq!(project.mcprl(&["run", "run.toml", "--until", "tools"]).code, Some(0));
    let noted = project.mcprl(&["plan", "run.toml"]);
    assert_eq!(noted.code, Some(0), "{}", noted.err);
    assert!(noted.err.contains(named), "{}", noted.err);
}
