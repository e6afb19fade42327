//! How a run ends before its time, and how it goes on: stopped at its very end, with programs that listen to nothing,
//! and killed among stages that are worked although there is a result. And what is left on the screen.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::{
    collections::BTreeSet,
    process::{Child, Command, ExitStatus},
    time::{Duration, Instant},
};

use common::Project;
use mcprl::{data, eval};

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

/// Runs until it is killed at this place, goes on, and tells what was worked in all.
fn killed(project: &Project, place: &str, more: &[&str]) -> Vec<String> {
    let arguments: Vec<&str> = ["run", "run.toml"].iter().chain(more).copied().collect();
    let died = project.command(&arguments).env("MCPRL_FAILPOINT", place).output().unwrap();
    assert_eq!(died.status.code(), None, "{place}");
    let resumed = project.mcprl(&["resume", "latest"]);
    assert_eq!(resumed.code, Some(0), "{place}: {}", resumed.err);
    project.worked().into_iter().filter(|stage| stage != "start").collect()
}

fn drawn(project: &Project) -> BTreeSet<String> {
    (1..=4).map(|turn| project.result(&format!("count.{turn:04}/draw/number.txt"))).collect()
}

#[test]
fn a_sample_drawn_anew_is_drawn_once_wherever_the_run_is_killed() {
    for place in ["commit::after:1", "commit::after:3", "runner::linked:2", "sync::synced:1"] {
        let project = draws("sampled", FROM, "from = \"@number\"");
        project.run(&[]);
        let before = drawn(&project);
        project.worked();
        assert_eq!(killed(&project, place, &["--resample", "count.draw"]), ALL, "{place}");
        assert_eq!(drawn(&project).union(&before).count(), 8, "{place}");
    }
}

#[test]
fn a_stage_worked_in_every_run_is_worked_once_in_each_iteration_wherever_it_is_killed() {
    for place in ["commit::after:1", "commit::after:2", "runner::linked:3"] {
        let project = draws("external", FROM, "from = \"@number\"\ncache = \"refresh\"");
        // `start` is the first of the stages that come to the place.
        assert_eq!(killed(&project, place, &[]), ALL, "{place}");
        assert_eq!(drawn(&project).len(), 4, "{place}");
    }
}

#[test]
fn what_was_made_anew_and_is_on_its_way_to_other_machines_is_not_made_once_more() {
    let shared = tempfile::tempdir().unwrap();
    let project = draws("sampled", FROM, "from = \"@number\"");
    project.run(&[]);
    project.worked();
    let remote = format!("cache.remote={}", shared.path().join("shared").display());
    let more = ["--set", &remote, "--resample", "count.draw"];
    assert_eq!(killed(&project, "push::stored:2", &more), ALL);
}

#[test]
fn a_run_that_is_refused_when_it_is_to_go_on_is_what_it_was() {
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

fn signal(run: &Child) {
    let sent = Command::new("kill").args(["-INT", &run.id().to_string()]).status().unwrap();
    assert!(sent.success());
    std::thread::sleep(Duration::from_millis(300));
}

/// How it ended; killed where it does not.
fn ended(run: &mut Child) -> Option<ExitStatus> {
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        if let Some(status) = run.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    run.kill().unwrap();
    run.wait().unwrap();
    None
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_run_that_only_gives_its_results_to_others_any_more_can_be_stopped() {
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
    let mut run = project.spawn(&["run", "run.toml", "--set", &remote, "--set", "stages.start.value=2"]);
    let worked = || project.path("log").exists() && project.read("log").lines().count() == 2;
    wait_for("the stage is worked", worked);
    std::thread::sleep(Duration::from_millis(700));
    assert!(run.try_wait().unwrap().is_none(), "it waits for the shared cache");
    signal(&run);
    signal(&run);
    assert_eq!(ended(&mut run).and_then(|status| status.code()), Some(130));
}

#[test]
fn stopped_twice_it_leaves_no_program_behind() {
    let project = Project::new("name = \"toy\"\n[stages.deaf]\nkind = \"deaf\"\n");
    let script = "trap '' TERM INT\nsleep 60 &\necho $$ $! > \"$TOY_LOG.programs\"\nwait\n";
    project.kind("deaf", "pure", NUMBER, script);
    let mut run = project.spawn(&["run", "run.toml"]);
    let list = project.path("log.programs");
    wait_for("the programs run", || std::fs::read_to_string(&list).is_ok_and(|text| text.ends_with('\n')));
    signal(&run);
    assert!(run.try_wait().unwrap().is_none(), "it waits for the stage");
    signal(&run);
    assert_eq!(ended(&mut run).and_then(|status| status.code()), Some(130));
    let lives = |program: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{program}/stat")).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    };
    wait_for("its programs end", || !project.read("log.programs").split_whitespace().any(lives));
}

/// A stage that writes the verdict of an exam in which every answer of `trained` is right.
fn examined() -> Project {
    let project = Project::new("name = \"toy\"\n[stages.exam]\nkind = \"examine\"\n");
    let names = ["base".to_owned(), "trained".to_owned()];
    let scenario = |i: usize| data::Scenario {
        id: format!("{i}"),
        split: "a".into(),
        family: format!("f{i}"),
        task: "t".into(),
        answer: Some("1".into()),
        check: "number".into(),
        entity: None,
        reference: None,
    };
    let scenarios: Vec<_> = (0..20).map(scenario).collect();
    let episode = |scenario: &data::Scenario, policy: &String| eval::Episode {
        scenario: scenario.id.clone(),
        policy: policy.clone(),
        mode: eval::Mode::Greedy,
        right: policy == "trained",
        calls: 1,
        turns: 1,
        tokens: 1,
        tool_errors: 0,
        tools: vec![],
    };
    let episodes: Vec<_> =
        scenarios.iter().flat_map(|scenario| names.iter().map(|name| episode(scenario, name))).collect();
    let exam =
        eval::Comparison { policies: &names, scenarios: &scenarios, tools: &[], resamples: 100, seed: 1 };
    let verdict = project.path("made.parquet");
    data::write(&verdict, &eval::verdict(&exam, &episodes)).unwrap();
    let outputs = "[outputs.verdict]\ntype = \"verdict\"\npath = \"verdict.parquet\"\n\
        [outputs.report]\ntype = \"report\"\npath = \"report.md\"\n";
    let script = format!(
        "cp {} \"$MCPRL_OUTPUT_VERDICT\"\necho every table > \"$MCPRL_OUTPUT_REPORT\"",
        verdict.display()
    );
    project.kind("examine", "pure", outputs, &script);
    project
}

#[test]
fn the_verdict_is_the_last_that_a_run_prints_and_the_report_is_shown_on_request() {
    let project = examined();
    let verdict = "trained beats base on held-out tasks: +100.0 points [+100, +100], p < 0.001";
    // The second run is all cached.
    for _ in 0..2 {
        let screen = std::fs::File::create(project.path("screen")).unwrap();
        let mut run = project.command(&["run", "run.toml"]);
        run.stdout(screen.try_clone().unwrap()).stderr(screen).status().unwrap();
        let screen = project.read("screen");
        assert!(screen.ends_with(&format!("{verdict}\n")), "{screen}");
        let tail: Vec<&str> = screen.lines().rev().take(10).collect();
        assert!(tail.iter().any(|line| line.contains("mcprl show toy-")), "{screen}");
        assert!(!screen.contains("every table"), "{screen}");
    }
    assert!(project.mcprl(&["show", "latest/exam"]).out.ends_with("\nevery table\n"));
}

#[test]
fn colour_is_for_terminals_and_those_who_ask() {
    let project = examined();
    let said = |name: &str, value: &str, arguments: &[&str]| {
        let output = project.command(arguments).env(name, value).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let (run, mistake): (&[&str], &[&str]) = (&["run", "run.toml"], &["show", "latest/no"]);
    let coloured = said("CLICOLOR_FORCE", "1", run) + &said("CLICOLOR_FORCE", "1", mistake);
    for expected in ["\x1b[32mdone", "\x1b[32mtrained beats", "\x1b[1m\x1b[31merror:\x1b[0m"] {
        assert!(coloured.contains(expected), "{expected:?}: {coloured:?}");
    }
    assert!(!said("NO_COLOR", "1", run).contains('\x1b'));
    assert!(!said("TERM", "xterm", mistake).contains('\x1b'));
    assert!(!said("CLICOLOR_FORCE", "1", &["--json", "run", "run.toml"]).contains('\x1b'));
}
