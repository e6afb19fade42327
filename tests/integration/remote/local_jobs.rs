//! Stages as jobs of this machine: the same bytes, and what happens when a job or the run is killed.

use std::collections::BTreeMap;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::jobs::written;
use crate::common::{self, CommandOutput, Project, until};

const HERE: &str = "\n[executors.here]\nkind = \"local\"\npoll_s = 0.2\n";

fn training(more: &str) -> Project {
    Project::with_model(&(common::training_run("prompts = 2\ngroup_size = 2") + more + HERE))
}

#[test]
fn a_job_of_this_machine_writes_the_same_bytes_and_reports_the_same() {
    let (run, jobs) = (training(""), training(""));
    let (of_run, of_jobs) = (run.run(&["--json"]), jobs.run(&["--json", "--set", "executor=here"]));
    assert_eq!(written(&run), written(&jobs));
    let reported = |output: &CommandOutput| -> BTreeMap<String, Value> {
        let events = output.out.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let finished = events.filter(|event| event["event"] == "finished");
        let of = |event: Value| {
            let mut result = event["result"].clone();
            // How often a row is computed again depends on who comes first.
            _ = result["cost"]["spent"].as_object_mut().map(|spent| spent.remove("computed_tokens"));
            let reported = json!([result["metrics"], result["notes"], result["cost"]["spent"]]);
            (event["id"].as_str().unwrap().to_owned(), reported)
        };
        finished.map(of).collect()
    };
    let (of_run, of_jobs) = (reported(&of_run), reported(&of_jobs));
    assert_eq!(of_run.keys().collect::<Vec<_>>(), of_jobs.keys().collect::<Vec<_>>());
    assert_eq!(of_run["rollout"], of_jobs["rollout"], "metrics, notes and usage");
}

#[test]
fn a_killed_job_fails_its_stage_alone_and_the_run_can_go_on() {
    let toys = "[stages.start]\nkind = \"gen\"\n[stages.more]\nkind = \"step\"\nfrom = \"start\"\n";
    let (project, reference) = (training(toys), training(toys));
    reference.run(&[]);
    // In the process of the run, no row is recorded.
    let mut command =
        project.command(&["run", "run.toml", "--keep-going", "--set", "stages.rollout.executor=here"]);
    command.args(["--set", "executors.here.attempts=1"]).env("MCPRL_FAILPOINT", "rows::recorded:2");
    let killed = common::output(&mut command);
    assert_eq!(killed.code, Some(1), "{}", killed.err);
    assert!(killed.err.contains("ended with code 137"), "{}", killed.err);
    assert!(written(&project).contains_key("more"), "{:?}", written(&project));
    let resumed = project.mcprl(&["resume", "latest"]);
    assert_eq!(resumed.code, Some(0), "{}", resumed.err);
    assert_eq!(written(&project), written(&reference));
}

/// Workers of this project's jobs.
fn workers(project: &Project) -> Vec<String> {
    let cache = project.path("cache").to_string_lossy().into_owned();
    let items = std::fs::read_dir("/proc").unwrap().flatten();
    let is_worker = |item: &std::fs::DirEntry| {
        let line = std::fs::read(item.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.contains("\0worker\0") && line.contains(&cache)
    };
    items.filter(is_worker).map(|item| item.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_job_outlives_a_run_that_is_killed_and_ends_with_one_that_is_interrupted() {
    let project = Project::with_model(
        &(common::episodes_run("prompts = 8\ngroup_size = 256\nmax_turns = 2\nmax_turn_tokens = 64") + HERE),
    );
    let set = ["--set", "stages.rollout.executor=here"];
    let mut run = project.spawn(&[&["run", "run.toml"], &set[..]].concat());
    until("a worker starts", || workers(&project).len() == 1);
    let first = workers(&project);
    kill_process(Pid::from_child(&run), Signal::KILL).unwrap();
    run.wait().unwrap();
    let mut run = project.spawn(&["resume", "latest"]);
    until("the run follows the job", || project.count_events("started", "rollout") == 2);
    assert_eq!(workers(&project), first);
    kill_process(Pid::from_child(&run), Signal::INT).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(130));
    until("the worker ends", || workers(&project).is_empty());
}

#[test]
fn a_job_of_this_machine_asks_for_no_resources() {
    let run = "executor = \"here\"\n[stages.start]\nkind = \"gen\"\n".to_owned() + HERE;
    let project = Project::new(&(run + "resources = { memory_gib = 1 }\n"));
    let refused = project.mcprl(&["run", "run.toml"]);
    assert_eq!(refused.code, Some(1), "{}", refused.err);
    assert!(refused.err.contains("leave `resources` out"), "{}", refused.err);
}

#[test]
fn a_job_whose_output_is_damaged_is_submitted_again() {
    let project = training("");
    let (worker, begun) = (project.path("worker"), project.path("begun"));
    let outputs = "tools server resources resource_templates prompts";
    // The first worker says that it is done, and its files are cut short. The later ones are real.
    let script = format!(
        "#!/bin/sh\n[ -e '{begun}' ] && exec '{program}' \"$@\"\ntouch '{begun}'\nmkdir -p \"$4/w/out\"\n\
         for name in {outputs}; do echo PAR1 > \"$4/w/out/$name.parquet\"; done\n\
         echo '{{\"what\":\"done\",\"with\":{{\"metrics\":{{}},\"outputs\":\"{digest}\"}}}}' > \"$4/w/said.jsonl\"\nprintf w > \"$4/holder\"\nsleep 1\n",
        begun = begun.display(),
        digest = "0".repeat(64),
        program = env!("CARGO_BIN_EXE_mcprl"),
    );
    std::fs::write(&worker, script).unwrap();
    std::fs::set_permissions(&worker, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let program = format!("executors.here.program=\"{}\"", worker.display());
    let run =
        ["run", "run.toml", "--until", "tools", "--set", "stages.tools.executor=here", "--set", &program];
    let again = project.mcprl(&run);
    assert_eq!(again.code, Some(0), "{}", again.err);
    let note = "was lost (its outputs are not those that it wrote) and is submitted again";
    assert!(again.err.contains(note), "{}", again.err);
}
