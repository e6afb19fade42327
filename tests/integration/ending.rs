//! How a run is stopped or killed and resumed, and what it prints last.

use std::{
    collections::BTreeSet,
    process::{Child, Command, ExitStatus},
    time::{Duration, Instant},
};

use crate::common::Project;
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

fn signal(run: &Child) {
    let sent = Command::new("kill").args(["-INT", &run.id().to_string()]).status().unwrap();
    assert!(sent.success());
    std::thread::sleep(Duration::from_millis(300));
}

/// Its exit status; none if it had to be killed.
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
    let mut run = project.spawn(&["run", "run.toml", "--set", &remote, "--set", "stages.start.value=2"]);
    let ran = || project.path("log").exists() && project.read("log").lines().count() == 2;
    wait_for("the stage has run", ran);
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
        checks: None,
        candidates: None,
        server: None,
        working: None,
    };
    let scenarios: Vec<_> = (0..20).map(scenario).collect();
    let episode = |scenario: &data::Scenario, policy: &String| eval::Episode {
        scenario: scenario.id.clone(),
        policy: policy.clone(),
        mode: eval::Mode::Greedy,
        right: policy == "trained",
        by_protocol: true,
        any_right: None,
        calls: 1,
        turns: 1,
        tokens: 1,
        tool_errors: 0,
        tools: vec![],
    };
    let episodes: Vec<_> =
        scenarios.iter().flat_map(|scenario| names.iter().map(|name| episode(scenario, name))).collect();
    let exam = eval::Comparison {
        policies: &names,
        scenarios: &scenarios,
        comparison_only: &[],
        tools: &[],
        resamples: 100,
        seed: 1,
    };
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
fn a_run_prints_the_verdict_last_and_show_prints_the_report() {
    let project = examined();
    let verdict = "trained beats base on held-out tasks: +100.0 points [+100, +100], p < 0.001\n\
        Use trained: it solves 100.0 points more than base [+100, +100].";
    // The second run is all cached.
    for _ in 0..2 {
        let screen = std::fs::File::create(project.path("screen")).unwrap();
        let mut run = project.command(&["run", "run.toml"]);
        run.stdout(screen.try_clone().unwrap()).stderr(screen).status().unwrap();
        let screen = project.read("screen");
        assert!(screen.ends_with(&format!("{verdict}\n")), "{screen}");
        let tail: Vec<&str> = screen.lines().rev().take(16).collect();
        assert!(tail.iter().any(|line| line.contains("mcprl show toy-")), "{screen}");
        assert!(!screen.contains("every table"), "{screen}");
    }
    assert!(project.mcprl(&["show", "latest/exam"]).out.starts_with("every table\n"));
    let events = project.mcprl(&["--json", "run", "run.toml"]).out;
    let ended: serde_json::Value = serde_json::from_str(events.lines().last().unwrap()).unwrap();
    let headline = &ended["verdicts"]["exam"];
    assert_eq!(
        (&headline["advice"]["use"], &headline["policies"][1]["success"]),
        (&"trained".into(), &1.0.into())
    );
    assert_eq!(headline["differences"][0]["finding"], "better");
}

#[test]
fn colour_is_printed_on_terminals_and_on_request() {
    let project = examined();
    let output = |name: &str, value: &str, arguments: &[&str]| {
        let output = project.command(arguments).env(name, value).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let (run, mistake): (&[&str], &[&str]) = (&["run", "run.toml"], &["show", "latest/no"]);
    let coloured = output("CLICOLOR_FORCE", "1", run) + &output("CLICOLOR_FORCE", "1", mistake);
    for expected in ["\x1b[32mdone", "\x1b[32mtrained beats", "\x1b[1m\x1b[31merror:\x1b[0m"] {
        assert!(coloured.contains(expected), "{expected:?}: {coloured:?}");
    }
    assert!(!output("NO_COLOR", "1", run).contains('\x1b'));
    assert!(!output("TERM", "xterm", mistake).contains('\x1b'));
    assert!(!output("CLICOLOR_FORCE", "1", &["--json", "run", "run.toml"]).contains('\x1b'));
}
