//! How a run shows itself: to the terminal that started it, to one that watches, and to programs that collect logs.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use crate::common::{Project, output};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A stage, then one that waits for the file `go`.
fn waiting() -> Project {
    let project = Project::new(
        "name = \"toy\"\n[stages.start]\nkind = \"gen\"\n[stages.end]\nkind = \"wait\"\nfrom = \"start\"\n",
    );
    project.kind(
        "wait",
        "pure",
        "[inputs.from]\ntype = \"number\"\n[outputs.number]\ntype = \"number\"\npath = \"number.txt\"\n",
        "while [ ! -e \"$GO\" ]; do sleep 0.05; done; cp \"$MCPRL_INPUT_FROM\" \"$MCPRL_OUTPUT_NUMBER\"",
    );
    project
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn has_started(project: &Project, stage: &str) -> bool {
    let journals = std::fs::read_dir(project.path("cache/runs")).into_iter().flatten().flatten();
    let is_started = |text: String| {
        text.lines().any(|line| line.contains("\"started\"") && line.contains(&format!("\"{stage}\"")))
    };
    journals.filter_map(|run| std::fs::read_to_string(run.path().join("journal.jsonl")).ok()).any(is_started)
}

#[test]
fn watching_shows_what_was_and_what_comes_and_ends_with_the_run() {
    let project = waiting();
    let go = project.path("go");
    let mut run = project.command(&["run", "run.toml"]);
    let mut run = run.env("GO", &go).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    until("the second stage starts", || has_started(&project, "end"));
    let watch = project.spawn(&["watch"]);
    std::thread::sleep(Duration::from_millis(300));
    std::fs::write(&go, "").unwrap();
    let watched = watch.wait_with_output().unwrap();
    assert!(run.wait().unwrap().success());
    assert_eq!(watched.status.code(), Some(0));
    let shown = String::from_utf8(watched.stderr).unwrap();
    let stages: Vec<&str> = shown.lines().filter(|line| line.starts_with("done")).collect();
    assert_eq!(stages.len(), 2, "{shown}");
    assert!(stages[0].contains(" start ") && stages[1].contains(" end "), "{shown}");
    assert!(shown.lines().last().unwrap().contains(" finished, after "), "{shown}");
}

#[test]
fn watching_a_run_that_is_killed_says_how_to_continue() {
    let project = waiting();
    let mut run = project.command(&["run", "run.toml"]);
    let mut run =
        run.env("GO", project.path("go")).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    until("the second stage starts", || has_started(&project, "end"));
    let watch = project.spawn(&["watch", "latest"]);
    kill_process(Pid::from_child(&run), Signal::KILL).unwrap();
    run.wait().unwrap();
    let watched = watch.wait_with_output().unwrap();
    std::fs::write(project.path("go"), "").unwrap();
    let shown = String::from_utf8(watched.stderr).unwrap();
    assert_eq!(watched.status.code(), Some(1), "{shown}");
    assert!(shown.contains(&format!("mcprl resume {}", project.runs()[0])), "{shown}");
}

#[test]
fn watching_a_failed_run_shows_the_error() {
    let project = Project::new("name = \"toy\"\n[stages.start]\nkind = \"bad\"\n");
    project.kind("bad", "pure", "[outputs.number]\ntype = \"number\"\npath = \"number.txt\"\n", "exit 3");
    assert_eq!(project.mcprl(&["run", "run.toml"]).code, Some(1));
    let watched = project.mcprl(&["watch"]);
    assert_eq!(watched.code, Some(1));
    let failed = watched.err.lines().find(|line| line.starts_with("failed"));
    assert!(failed.is_some_and(|line| line.contains("start") && line.contains('3')), "{}", watched.err);
}

#[test]
fn watching_a_resumed_run_shows_each_stage_once() {
    let project = waiting();
    std::fs::write(project.path("go"), "").unwrap();
    let killed = output(
        project
            .command(&["run", "run.toml"])
            .env("GO", project.path("go"))
            .env("MCPRL_FAILPOINT", "commit::after:1"),
    );
    assert_eq!(killed.code, None);
    let resumed = output(project.command(&["resume", "latest"]).env("GO", project.path("go")));
    assert_eq!(resumed.code, Some(0), "{}", resumed.err);
    let watched = project.mcprl(&["watch"]);
    let ended = |stage: &str| {
        let is_its_end = |line: &&str| {
            (line.starts_with("done") || line.starts_with("cached"))
                && line.split_whitespace().nth(1) == Some(stage)
        };
        watched.err.lines().filter(is_its_end).count()
    };
    assert_eq!((ended("start"), ended("end")), (1, 1), "{}", watched.err);
}

#[test]
fn a_quiet_run_says_nothing_if_all_is_well() {
    let project = Project::new("name = \"toy\"\n[stages.start]\nkind = \"gen\"\n");
    let quiet = project.run(&["-q"]);
    assert_eq!((quiet.err.as_str(), quiet.out.as_str()), ("", ""));
    assert_ne!(project.run(&[]).err, "");
}

#[test]
fn a_quiet_run_reports_its_failure() {
    let project = Project::new("name = \"toy\"\n[stages.start]\nkind = \"bad\"\n");
    project.kind("bad", "pure", "[outputs.number]\ntype = \"number\"\npath = \"number.txt\"\n", "exit 3");
    let quiet = project.mcprl(&["run", "run.toml", "--quiet"]);
    assert_eq!(quiet.code, Some(1));
    assert!(quiet.err.contains("error: stage \"start\""), "{}", quiet.err);
}

#[test]
fn a_verbose_run_shows_every_stage_of_an_iteration_with_all_metrics() {
    let project = Project::new(
        "name = \"toy\"\n[stages.start]\nkind = \"gen\"\n[loop.count]\niterations = 2\ncarry = { number = \"start\" }\n\
         [loop.count.stages.one]\nkind = \"step\"\nfrom = \"@number\"\n\
         [loop.count.stages.two]\nkind = \"step\"\nfrom = \"one\"\nyields = \"number\"\n",
    );
    let verbose = project.run(&["-v"]);
    for line in ["count[0001]/one", "count[0002]/two"] {
        let shown = verbose.err.lines().find(|shown| shown.starts_with("done") && shown.contains(line));
        assert!(shown.is_some_and(|shown| shown.contains("value ")), "{line}: {}", verbose.err);
    }
    let normal = project.run(&["--set", "stages.start.value=7"]);
    assert!(
        !normal.err.lines().any(|line| line.starts_with("done") && line.contains("/one")),
        "{}",
        normal.err
    );
}

#[test]
fn messages_can_be_one_json_object_per_line() {
    let project = Project::new(
        "name = \"toy\"\n[stages.start]\nkind = \"gen\"\n[stages.end]\nkind = \"bad\"\nfrom = \"start\"\n",
    );
    project.kind(
        "bad",
        "pure",
        "[inputs.from]\ntype = \"number\"\n[outputs.number]\ntype = \"number\"\npath = \"number.txt\"\n",
        "exit 3",
    );
    let logged = project.mcprl(&["run", "run.toml", "--log-format", "json"]);
    assert_eq!(logged.code, Some(1));
    let lines: Vec<Value> = logged.err.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    for line in &lines {
        assert!(line["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{line}");
        assert!(["info", "warning", "error"].contains(&line["level"].as_str().unwrap()), "{line}");
        assert!(line["message"].is_string(), "{line}");
    }
    let finished = lines.iter().find(|line| line["event"] == "finished").unwrap();
    assert_eq!((&finished["id"], &finished["level"]), (&"start".into(), &"info".into()));
    assert!(
        lines.iter().any(|line| line["event"] == "failed" && line["id"] == "end" && line["level"] == "error")
    );
    let error = lines.iter().find(|line| line["error"].is_object()).unwrap();
    assert!(error["error"]["code"].is_string() && error["level"] == "error", "{error}");
}
