//! Stages with a process of their own: the same bytes, and what happens when that process, or the run, is killed.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::common::{self, CommandOutput, Project, until};

const APART: [&str; 2] = ["--set", "executor=process"];

/// What the newest run's stages wrote, by stage and port.
fn written(project: &Project) -> BTreeMap<String, Value> {
    let finished = project
        .journal()
        .into_iter()
        .filter(|entry| entry["event"] == "finished" || entry["event"] == "cached");
    let outputs =
        |entry: Value| (entry["id"].as_str().unwrap().to_owned(), entry["result"]["outputs"].clone());
    finished.map(outputs).collect()
}

fn training() -> Project {
    Project::with_model(&common::training_run("prompts = 2\ngroup_size = 2"))
}

/// A run of toy stages beside the training.
fn with_toys() -> Project {
    let toys = "[stages.start]\nkind = \"gen\"\n[stages.more]\nkind = \"step\"\nfrom = \"start\"\n";
    Project::with_model(&(common::training_run("prompts = 2\ngroup_size = 2") + toys))
}

#[test]
fn a_process_of_its_own_writes_the_same_bytes_and_reports_the_same() {
    let (here, apart) = (training(), training());
    let (of_here, of_apart) = (here.run(&["--json"]), apart.run(&["--json", APART[0], APART[1]]));
    assert_eq!(written(&here), written(&apart));
    let metrics = |output: &CommandOutput| -> BTreeMap<String, Value> {
        let events = output.out.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let finished = events.filter(|event| event["event"] == "finished");
        let of = |event: Value| {
            (
                event["id"].as_str().unwrap().to_owned(),
                serde_json::json!([
                    event["result"]["metrics"],
                    event["result"]["notes"],
                    event["result"]["cost"]["spent"]
                ]),
            )
        };
        finished.map(of).collect()
    };
    let (of_here, of_apart) = (metrics(&of_here), metrics(&of_apart));
    assert_eq!(of_here.keys().collect::<Vec<_>>(), of_apart.keys().collect::<Vec<_>>());
    assert_eq!(of_here["rollout"], of_apart["rollout"], "metrics, notes and usage");
    apart.run(&["--json"]);
    assert!(apart.ran().is_empty(), "the executor is in no key");
}

#[test]
fn a_process_that_is_killed_fails_its_stage_alone_and_the_run_can_go_on() {
    let (project, reference) = (with_toys(), with_toys());
    reference.run(&[]);
    // In the process of the run, no row is recorded.
    let mut command =
        project.command(&["run", "run.toml", "--keep-going", "--set", "stages.rollout.executor=process"]);
    let killed = common::output(command.env("MCPRL_FAILPOINT", "rows::recorded:2"));
    assert_eq!(killed.code, Some(1), "{}", killed.err);
    assert!(killed.err.contains("stage \"rollout\": the worker process ended: signal 9"), "{}", killed.err);
    assert!(killed.err.contains("mcprl resume"), "{}", killed.err);
    assert!(written(&project).contains_key("more"), "{:?}", written(&project));
    let resumed = project.mcprl(&["resume", "latest"]);
    assert_eq!(resumed.code, Some(0), "{}", resumed.err);
    assert_eq!(written(&project), written(&reference));
}

#[test]
fn a_failure_in_another_process_reads_as_in_this_one() {
    let run = "[server]\ncommand = [\"false\"]\nstate = \"read-only\"\n[stages.tools]\nkind = \"discover\"\n";
    let failure = |more: &[&str]| {
        let project = Project::new(run);
        let output = project.mcprl(&[&["run", "run.toml", "--json"], more].concat());
        assert_eq!(output.code, Some(1), "{}", output.err);
        let failed = output.out.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        failed.filter(|event| event["event"] == "failed").map(|event| event["error"].clone()).next().unwrap()
    };
    let (here, apart) = (failure(&[]), failure(&APART));
    assert!(here["code"].as_str().unwrap().starts_with("mcp::"), "{here}");
    assert_eq!(here, apart);
}

#[test]
fn an_executor_that_does_not_exist_is_named() {
    let refused =
        Project::new("executor = \"proces\"\n[stages.start]\nkind = \"gen\"\n").mcprl(&["plan", "run.toml"]);
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert!(refused.err.contains("`executor` should be one of local, process"), "{}", refused.err);
}

/// Processes that work for this project's runs.
fn workers(project: &Project) -> usize {
    let cache = project.path("cache").to_string_lossy().into_owned();
    let items = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = items.filter_map(|item| std::fs::read(item.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).into_owned());
    lines.filter(|line| line.contains("\0worker\0") && line.contains(&cache)).count()
}

#[test]
fn no_process_outlives_a_run_that_is_killed_or_interrupted() {
    let project = Project::with_model(&common::episodes_run(
        "prompts = 8\ngroup_size = 256\nmax_turns = 2\nmax_turn_tokens = 64\nexecutor = \"process\"",
    ));
    for signal in [rustix::process::Signal::KILL, rustix::process::Signal::INT] {
        let mut run = project.spawn(&["run", "run.toml", "--cache", project.path("cache").to_str().unwrap()]);
        until("a worker starts", || workers(&project) == 1);
        let id = rustix::process::Pid::from_child(&run);
        rustix::process::kill_process(id, signal).unwrap();
        let status = run.wait().unwrap();
        if signal == rustix::process::Signal::INT {
            assert_eq!(status.code(), Some(130));
        }
        until("the worker ends", || workers(&project) == 0);
    }
}
