//! How a run is stopped or killed, and resumed.

use std::{
    collections::BTreeSet,
    io::Read,
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{CHAIN, Project, SLOW, is_running, until};

const NUMBER: &str = "[outputs.number]\ntype = \"number\"\npath = \"number.txt\"\n";

/// Draws a number in each of four iterations; whether these depend on each other is open.
fn draws(determinism: &str, card: &str, stage: &str) -> Project {
    let project = Project::new(&format!(
        "name = \"toy\"\n[stages.start]\nkind = \"gen\"\n[loop.count]\niterations = 4\ncarry = {{ number = \"start\" }}\n\
         [loop.count.stages.draw]\nkind = \"chance\"\nyields = \"number\"\n{stage}\n"
    ));
    project.kind("chance", determinism, &format!("{card}{NUMBER}"), "date +%N > \"$MCPRL_OUTPUT_NUMBER\"");
    project
}

const FROM: &str = "[inputs.from]\ntype = \"number\"\n";

const ALL: [&str; 4] = ["count[0001]/draw", "count[0002]/draw", "count[0003]/draw", "count[0004]/draw"];

/// Runs until it is killed at this failpoint, resumes, and returns all stages that ran.
fn killed(project: &Project, place: &str, more: &[&str]) -> Vec<String> {
    let arguments: Vec<&str> = ["run", "run.toml"].iter().chain(more).copied().collect();
    let died = project.command(&arguments).env("MCPRL_FAILPOINT", place).output().unwrap();
    assert_eq!(died.status.code(), None, "{place}");
    let resumed = project.mcprl(&["resume", "latest"]);
    assert_eq!(resumed.code, Some(0), "{place}: {}", resumed.err);
    project.ran().into_iter().filter(|stage| stage != "start").collect()
}

fn drawn(project: &Project) -> BTreeSet<String> {
    (1..=4).map(|turn| project.result(&format!("count.{turn:04}/draw/number.txt"))).collect()
}

#[test]
fn a_resampled_stage_is_sampled_once_wherever_the_run_is_killed() {
    for place in ["commit::after:1", "commit::after:3", "runner::linked:2", "sync::synced:1"] {
        let project = draws("sampled", FROM, "from = \"@number\"");
        project.run(&[]);
        let before = drawn(&project);
        project.ran();
        assert_eq!(killed(&project, place, &["--resample", "count.draw"]), ALL, "{place}");
        assert_eq!(drawn(&project).union(&before).count(), 8, "{place}");
    }
}

#[test]
fn a_refreshed_stage_runs_once_per_iteration_wherever_the_run_is_killed() {
    for place in ["commit::after:1", "commit::after:2", "runner::linked:3"] {
        let project = draws("external", FROM, "from = \"@number\"\ncache = \"refresh\"");
        // `start` is the first of the stages that come to the place.
        assert_eq!(killed(&project, place, &[]), ALL, "{place}");
        assert_eq!(drawn(&project).len(), 4, "{place}");
    }
}

#[test]
fn a_resampled_result_is_kept_when_the_run_is_killed_while_uploading_it() {
    let shared = tempfile::tempdir().unwrap();
    let project = draws("sampled", FROM, "from = \"@number\"");
    project.run(&[]);
    project.ran();
    let remote = format!("cache.remote={}", shared.path().join("shared").display());
    let more = ["--set", &remote, "--resample", "count.draw"];
    assert_eq!(killed(&project, "push::stored:2", &more), ALL);
}

#[test]
fn a_run_that_cannot_be_resumed_keeps_its_state() {
    let project = draws("sampled", FROM, "from = \"@number\"");
    project.run(&[]);
    let state = || project.mcprl(&["runs"]).out.contains("finished");
    assert!(state());
    let card = project.read("stages/chance/card.toml");
    project
        .write("stages/chance/card.toml", &card.replace("[outputs.number]\ntype", "[outputs.number]\ntpe"));
    assert_eq!(project.mcprl(&["resume", "latest"]).code, Some(2));
    assert!(state(), "a card is broken");
    project.write("stages/chance/card.toml", &card);
    project.write("run.toml", "nothing of it is read");
    assert_eq!(project.mcprl(&["resume", "latest"]).code, Some(0), "a run has a copy of its run file");
    assert!(state());
}

/// A run whose messages are in the file `messages`.
fn start(project: &Project, more: &[&str]) -> Child {
    let messages = std::fs::File::create(project.path("messages")).unwrap();
    let mut command = project.command(&[&["run", "run.toml"], more].concat());
    command.stdout(Stdio::null()).stderr(messages).spawn().unwrap()
}

/// Stops a run a first time, and returns when it has noticed.
fn stop(project: &Project, run: &Child) {
    kill_process(Pid::from_child(run), Signal::INT).unwrap();
    until("it notices the signal", || project.read("messages").contains("press Ctrl-C again"));
}

/// Stops a run a second time.
fn stop_at_once(run: &mut Child) {
    kill_process(Pid::from_child(run), Signal::INT).unwrap();
    let mut status = None;
    until("it ends", || {
        status = run.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(130));
}

#[test]
fn a_run_that_only_uploads_can_be_stopped() {
    let project = Project::new("name = \"toy\"\n[stages.start]\nkind = \"gen\"\n");
    let shared = project.path("mount/shared");
    let remote = format!("cache.remote={}", shared.display());
    project.run(&["--set", &remote]);
    let place = std::fs::read_dir(project.path("cache/unpushed")).unwrap().next().unwrap().unwrap().path();
    let mut names =
        std::fs::read_dir(place).unwrap().map(|item| item.unwrap().file_name().into_string().unwrap());
    let waiting = names.find(|name| name.len() == 64).unwrap();
    // A shared cache that never answers, about the result that waits.
    std::fs::create_dir_all(shared.join("v1/ac")).unwrap();
    let pipe = shared.join(format!("v1/ac/{waiting}.json"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut run = start(&project, &["--set", &remote, "--set", "stages.start.value=2"]);
    until("the stage has run again", || project.count_events("finished", "start") == 2);
    std::thread::sleep(Duration::from_millis(300));
    assert!(run.try_wait().unwrap().is_none(), "it waits for the shared cache");
    stop(&project, &run);
    stop_at_once(&mut run);
}

#[test]
fn stopped_twice_it_leaves_no_program_behind() {
    let project = Project::new("name = \"toy\"\n[stages.deaf]\nkind = \"deaf\"\n");
    let script = "trap '' TERM INT\nsleep 600 &\necho $$ $! > \"$TOY_LOG.programs\"\nwait\n";
    project.kind("deaf", "pure", NUMBER, script);
    let mut run = start(&project, &[]);
    let list = project.path("log.programs");
    until("the programs run", || std::fs::read_to_string(&list).is_ok_and(|text| text.ends_with('\n')));
    stop(&project, &run);
    std::thread::sleep(Duration::from_millis(100));
    assert!(run.try_wait().unwrap().is_none(), "it waits for the stage");
    stop_at_once(&mut run);
    until("its programs end", || !project.read("log.programs").split_whitespace().any(is_running));
}

#[test]
fn killed_at_any_moment_a_run_resumes_and_loses_nothing_finished() {
    let project = Project::new(SLOW);
    let mut run = project.spawn(&["run", "run.toml"]);
    let mut id = None;
    let mut pause = 20;
    for attempt in 0.. {
        std::thread::sleep(Duration::from_millis(pause));
        // Uneven steps, so that kills fall into every part of a stage.
        pause = 20 + (pause * 7 + 13) % 170;
        if attempt > 12 || run.try_wait().unwrap().is_some() {
            assert!(run.wait().unwrap().success());
            break;
        }
        run.kill().unwrap();
        run.wait().unwrap();
        id = id.or_else(|| project.runs().pop());
        run = match &id {
            Some(id) if project.path(&format!("cache/runs/{id}/run.toml")).exists() => {
                project.spawn(&["resume", id])
            }
            _ => project.spawn(&["run", "run.toml"]),
        };
    }
    assert_eq!(project.result("end/number.txt"), "10");
    let mut finished: Vec<String> = Vec::new();
    for run in project.runs() {
        let journal = project.read(format!("cache/runs/{run}/journal.jsonl"));
        let entries = journal.lines().filter(|line| line.contains("\"event\":\"finished\""));
        finished.extend(
            entries.map(|line| line.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap().into()),
        );
    }
    let all = finished.len();
    finished.sort();
    finished.dedup();
    assert_eq!(all, finished.len(), "a finished stage ran again");
    let clean = project.run(&[]);
    assert!(clean.err.contains("22 cached, 0 ran"), "{}", clean.err);
}

#[test]
fn an_interrupted_run_prints_how_to_continue_and_resumes() {
    let project = Project::new(&SLOW.replace("0.03", "0.3"));
    let mut run = project.spawn(&["run", "run.toml"]);
    until("a step begins", || project.has_begun("count[0001]/step"));
    kill_process(Pid::from_child(&run), Signal::INT).unwrap();
    let mut err = String::new();
    run.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(130));
    let id = project.runs().pop().unwrap();
    assert!(err.contains(&format!("to continue: mcprl resume {id}")), "{err}");
    let before = project.ran().len();
    assert!(before < 20);
    let resumed = project.mcprl(&["resume", &id]);
    assert_eq!(resumed.code, Some(0), "{}", resumed.err);
    // An interrupted stage runs twice.
    let ran = before + project.ran().len();
    assert!((22..=23).contains(&ran), "{ran}");
}

#[test]
fn a_run_that_does_not_exist_is_not_resumed() {
    let project = Project::new(CHAIN);
    project.run(&[]);
    let id = project.runs().pop().unwrap();
    let failed = project.mcprl(&["resume", &id[..id.len() - 1]]);
    assert_eq!(failed.code, Some(2));
    assert!(failed.err.contains(&format!("hint: did you mean \"{id}\"?")), "{}", failed.err);
}

#[test]
fn a_resumed_run_ends_with_the_stage_that_it_was_limited_to() {
    let project = Project::new(CHAIN);
    let first = project
        .command(&["run", "run.toml", "--until", "middle"])
        .env("MCPRL_FAILPOINT", "commit::after:1")
        .status();
    assert!(!first.unwrap().success());
    assert_eq!(project.ran(), ["start"]);
    assert_eq!(project.mcprl(&["resume", "latest"]).code, Some(0));
    assert_eq!(project.ran(), ["middle"]);
    assert!(project.mcprl(&["runs"]).out.contains("--until middle"));
}
