//! `[track]` and `mcprl track`: settings, mistakes, trackers that are away. `tests/reference/trackers.sh` asks real
//! trackers.

use std::{
    io::Read,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};

use crate::common::{Project, output, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const RUN: &str = r#"name = "toy"
seed = 1

[stages.start]
kind = "gen"

[loop.count]
iterations = 3
carry = { number = "start" }

[loop.count.stages.step]
kind = "step"
from = "@number"
yields = "number"
"#;

fn with(track: &str) -> Project {
    Project::new(&format!("{RUN}\n[track]\n{track}\n"))
}

/// The event files of a folder with folders of runs.
fn event_files(folder: PathBuf) -> Vec<PathBuf> {
    let Ok(runs) = std::fs::read_dir(folder) else { return Vec::new() };
    let files = runs.flat_map(|run| std::fs::read_dir(run.unwrap().path()).unwrap());
    files.map(|file| file.unwrap().path()).collect()
}

#[test]
fn a_run_writes_an_event_file_beside_the_run_file_or_into_its_folder() {
    let project = with("tensorboard = { path = \"logs\" }");
    project.run(&[]);
    let run = project.runs().pop().unwrap();
    let files = event_files(project.path("logs"));
    assert_eq!(files.len(), 1);
    assert!(files[0].starts_with(project.path("logs").join(&run)), "{files:?}");
    let bytes = std::fs::read(&files[0]).unwrap();
    let has = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(
        has("count_metrics/step/value") && has("_hparams_/session_start_info") && has("count/step.sleep")
    );

    let folders = [
        (&["track", "latest"][..], project.path("logs").join(&run)),
        (&["track", "latest", "--to", "tensorboard"], project.path("logs").join(&run)),
        (&["track", "latest", "--to", "tensorboard=there"], project.path("there").join(&run)),
    ];
    for (arguments, folder) in folders {
        let sent = project.mcprl(arguments);
        assert_eq!((sent.code, sent.err.as_str()), (Some(0), ""));
        assert_eq!(sent.out, format!("tensorboard  {}\n", folder.display()));
        assert_eq!(std::fs::read(folder.join(files[0].file_name().unwrap())).unwrap(), bytes);
    }
    project.run(&["--set", "seed=2", "--set", "track.tensorboard=true"]);
    let run = project.path("cache/runs").join(project.runs().pop().unwrap());
    assert!(run.join("tensorboard").is_dir());
}

#[test]
fn a_tracker_that_was_added_gets_a_run_that_is_up_to_date() {
    let project = Project::new(RUN);
    project.run(&[]);
    project.ran();
    let set = ["--set", "track.tensorboard={path=\"logs\"}"];
    let plan = project.mcprl(&["plan", "run.toml", set[0], set[1]]);
    assert!(plan.out.contains("4 cached, 0 to run"), "{}", plan.out);
    project.run(&set);
    assert_eq!((project.ran(), project.runs().len()), (vec![], 1), "trackers are in no key");
    assert_eq!(event_files(project.path("logs")).len(), 1);
}

#[test]
fn a_tracker_that_cannot_be_written_neither_stops_nor_fails_a_run() {
    let project = with("tensorboard = { path = \"logs\" }");
    project.write("logs", "a file");
    let done = project.run(&[]);
    assert!(done.err.contains("tensorboard          cannot write"), "{}", done.err);
    assert!(done.err.contains("check the permissions and the free space of its folder"), "{}", done.err);
    assert_eq!(done.err.matches("cannot write").count(), 1, "said once: {}", done.err);

    let json = project.mcprl(&["run", "run.toml", "--json", "--set", "seed=2"]);
    assert_eq!(json.code, Some(0), "{}", json.err);
    let events = json.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let untracked: Vec<Value> = events.filter(|event| event["event"] == "untracked").collect();
    assert_eq!(untracked.len(), 1);
    assert_eq!(
        (&untracked[0]["tracker"], &untracked[0]["error"]["code"]),
        (&"tensorboard".into(), &"track::write".into())
    );

    let sent = project.mcprl(&["track", "latest"]);
    assert_eq!(sent.code, Some(1));
    assert!(sent.err.starts_with("error: tensorboard: cannot write"), "{}", sent.err);
    std::fs::remove_file(project.path("logs")).unwrap();
    assert_eq!(project.mcprl(&["track", "latest"]).code, Some(0));
}

#[test]
fn a_signal_while_trackers_finish_ends_the_run_at_once_and_loses_nothing() {
    // A client that never ends stands in for `wandb`.
    let project = with("wandb = { mode = \"online\" }");
    let (program, started) = (project.path("bin/wandb"), project.path("started"));
    project.write("bin/wandb", &format!("#!/bin/sh\n: > '{}'\nexec sleep 60\n", started.display()));
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", project.path("bin").display(), std::env::var("PATH").unwrap());
    // The second run is up to date, so it only tracks.
    for (signal, ran) in [(Signal::TERM, 4), (Signal::INT, 0)] {
        let mut command = project.command(&["run", "run.toml"]);
        command.env("PATH", &path).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut run = command.spawn().unwrap();
        let is_over = || {
            let runs = project.runs();
            let journal = |run| project.path("cache/runs").join(run).join("journal.jsonl");
            let text = runs.first().and_then(|run| std::fs::read_to_string(journal(run)).ok());
            text.is_some_and(|text| text.contains("\"closed\""))
        };
        until("all stages have run", || is_over() && started.exists());
        std::fs::remove_file(&started).unwrap();
        // Nothing says that it waits for trackers alone, which is what it does by now.
        std::thread::sleep(Duration::from_millis(1000));
        assert!(run.try_wait().unwrap().is_none());
        let began = Instant::now();
        kill_process(Pid::from_child(&run), signal).unwrap();
        let mut err = String::new();
        run.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        assert_eq!(run.wait().unwrap().code(), Some(130), "{err}");
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        assert!(err.contains("stopped before everything was sent (`mcprl track "), "{err}");
        assert_eq!(project.ran().len(), ran);
    }
    assert_eq!(project.runs().len(), 1);
    assert!(project.mcprl(&["runs"]).out.contains("finished"));
}

#[test]
fn mistakes_of_the_section_are_shown_where_they_are() {
    let mut all = String::new();
    for track in [
        "tensorbord = true",
        "tensorboard = \"logs\"",
        "tensorboard = { pth = \"logs\" }",
        "wandb = { mode = \"onlin\" }",
        "wandb = { tags = \"a\" }",
        "trackio = 3",
        "examples = \"no\"",
    ] {
        let project = with(track);
        let plan = project.mcprl(&["plan", "run.toml"]);
        assert_eq!((plan.code, plan.out.as_str()), (Some(2), ""), "{track}");
        all += &plan.err;
    }
    insta::assert_snapshot!(all);
}

#[test]
fn the_command_says_what_it_needs() {
    let project = Project::new(RUN);
    project.run(&[]);
    let mut all = String::new();
    for arguments in [
        &["track", "latest"][..],
        &["track", "latest", "--to", "tensorbord"],
        &["track", "latest", "--to", "wandb=on"],
        &["track", "latest", "--to", "wandb=https://s3cr3t@example.com"],
        &["track", "none", "--to", "tensorboard"],
    ] {
        let told = project.mcprl(arguments);
        assert_eq!((told.code, told.out.as_str()), (Some(2), ""), "{arguments:?}: {}", told.err);
        all += &told.err;
    }
    assert!(!all.contains("s3cr3t"), "{all}");
    let run = project.runs().pop().unwrap();
    insta::assert_snapshot!(all.replace(&run, "RUN"));
    let json = output(&mut project.command(&["track", "latest", "--to", "tensorboard", "--json"]));
    let json: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(
        (&json["run"], &json["trackers"][0]["tracker"]),
        (&run.as_str().into(), &"tensorboard".into())
    );
}
