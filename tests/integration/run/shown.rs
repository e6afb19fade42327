//! What a run prints and how it is watched: on the terminal that started it, on another, and for programs that collect logs.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Stdio},
};

use crate::common::{Project, output, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use mcprl::{data, eval};

/// A stage, then one that waits for [`Project::open_gate`].
fn waiting() -> Project {
    Project::new(
        "name = \"toy\"\n[stages.start]\nkind = \"gen\"\n[stages.end]\nkind = \"gate\"\nfrom = \"start\"\n",
    )
}

/// The run of [`waiting`], once its second stage runs.
fn running(project: &Project) -> Child {
    let mut run = project.command(&["run", "run.toml"]);
    let run = run.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    until("the second stage starts", || project.has_event("started", "end"));
    run
}

#[test]
fn watching_shows_what_was_and_what_comes_and_ends_with_the_run() {
    let project = waiting();
    let mut run = running(&project);
    let mut watch = project.spawn(&["watch"]);
    let (sender, lines) = std::sync::mpsc::channel();
    let stderr = BufReader::new(watch.stderr.take().unwrap());
    std::thread::spawn(move || {
        _ = stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line));
    });
    let mut shown = Vec::new();
    until("the first stage is shown", || {
        shown.extend(lines.try_iter());
        shown.iter().any(|line: &String| line.starts_with("done") && line.contains(" start "))
    });
    project.open_gate();
    assert!(run.wait().unwrap().success());
    shown.extend(lines);
    assert_eq!(watch.wait().unwrap().code(), Some(0));
    let stages: Vec<&String> = shown.iter().filter(|line| line.starts_with("done")).collect();
    assert_eq!(stages.len(), 2, "{shown:?}");
    assert!(stages[0].contains(" start ") && stages[1].contains(" end "), "{shown:?}");
    assert!(shown.last().unwrap().contains(" finished, after "), "{shown:?}");
}

#[test]
fn watching_a_run_that_is_killed_says_how_to_continue() {
    let project = waiting();
    let mut run = running(&project);
    let watch = project.spawn(&["watch", "latest"]);
    kill_process(Pid::from_child(&run), Signal::KILL).unwrap();
    run.wait().unwrap();
    let watched = watch.wait_with_output().unwrap();
    project.open_gate();
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
    project.open_gate();
    let killed = output(project.command(&["run", "run.toml"]).env("MCPRL_FAILPOINT", "commit::after:1"));
    assert_eq!(killed.code, None);
    let resumed = project.mcprl(&["resume", "latest"]);
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

/// A stage that writes the verdict of an exam in which every answer of `trained` is right, and episodes with these ends.
fn examined(ends: &[&str]) -> Project {
    let project = Project::new("name = \"toy\"\n[stages.exam]\nkind = \"examine\"\n");
    let names = ["base".to_owned(), "trained".to_owned()];
    let scenario = |i: usize| data::Scenario {
        id: format!("{i}"),
        split: "a".into(),
        family: format!("f{i}"),
        task: "t".into(),
        answer: Some("1".into()),
        check: "number".into(),
        ..data::Scenario::default()
    };
    let scenarios: Vec<_> = (0..20).map(scenario).collect();
    let episode = |scenario: &data::Scenario, policy: &String| eval::Episode {
        scenario: scenario.id.clone(),
        policy: policy.clone(),
        mode: eval::Mode::Greedy,
        right: policy == "trained",
        changed: None,
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
    let exam = eval::Comparison { policies: &names, scenarios: &scenarios, ..Default::default() };
    let verdict = project.path("made.parquet");
    data::write(&verdict, &eval::verdict(&exam, &episodes)).unwrap();
    let outputs = "[outputs.verdict]\ntype = \"verdict\"\npath = \"verdict.parquet\"\n\
        [outputs.report]\ntype = \"report\"\npath = \"report.md\"\n\
        [outputs.episodes]\ntype = \"trajectories\"\npath = \"episodes.parquet\"\n";
    let played = project.path("played.parquet");
    let episode = |end: &&str| data::Trajectory { end: (*end).to_owned(), ..Default::default() };
    data::write(&played, &ends.iter().map(episode).collect::<Vec<_>>()).unwrap();
    let script = format!(
        "cp {} \"$MCPRL_OUTPUT_VERDICT\"\ncp {} \"$MCPRL_OUTPUT_EPISODES\"\necho every table > \"$MCPRL_OUTPUT_REPORT\"",
        verdict.display(),
        played.display()
    );
    project.kind("examine", "pure", outputs, &script);
    project
}

#[test]
fn an_exam_is_shown_in_brief_and_names_the_limit_that_cut_its_episodes() {
    let project = examined(&["out_of_turn_tokens", "completed", "completed"]);
    let cut = "1 of 3 episodes were cut, 1 at `max_turn_tokens` of [agent]: raise that";
    let run = project.run(&[]);
    assert!(run.out.contains(cut), "{}", run.out);
    let shown = project.mcprl(&["show", "latest/exam"]).out;
    assert!(shown.starts_with("base 0.0 % → trained 100.0 % of 20 held-out tasks, greedy\n"), "{shown}");
    assert!(
        shown.contains(cut) && shown.contains("verdict.parquet") && shown.contains("`-v` prints"),
        "{shown}"
    );
    assert!(shown.lines().count() <= 25 && !shown.contains("every table"), "{shown}");
}

#[test]
fn the_end_of_a_run_is_the_verdict_and_what_to_do_next_in_eight_lines_at_most() {
    let project = examined(&["completed"]);
    let verdict = "trained beats base on held-out tasks: +100.0 points [+69, +100], p < 0.001\n\
        Use trained: it solves 100.0 points more than base [+69, +100].";
    // The second run is all cached.
    for counts in ["0 cached, 1 ran in ", "nothing to do: 1 cached, 0 ran in "] {
        let screen = std::fs::File::create(project.path("screen")).unwrap();
        let mut run = project.command(&["run"]);
        run.stdout(screen.try_clone().unwrap()).stderr(screen).status().unwrap();
        let screen = project.read("screen");
        let id = project.runs().pop().unwrap();
        let (_, end) =
            screen.split_once("base 0.0 % → trained 100.0 % of 20 held-out tasks, greedy\n").unwrap();
        let lines: Vec<&str> = end.lines().collect();
        assert!(lines.len() < 8 && end.starts_with(&format!("{verdict}\n")), "{screen}");
        assert!(lines.iter().any(|line| line.starts_with(counts) && line.ends_with(&id)), "{screen}");
        let commands = format!("  mcprl episodes {id}/exam --wrong\n  mcprl report {id} --out report.html\n");
        assert_eq!(screen.ends_with(&commands), !counts.starts_with("nothing"), "{screen}");
        assert!(!screen.contains("every table") && !screen.contains(".parquet"), "{screen}");
    }
    let verbose = project.run(&["-v"]);
    assert!(verbose.err.contains("/exam/verdict.parquet"), "{}", verbose.err);
    assert!(verbose.out.contains("by split"), "{}", verbose.out);
    assert!(project.mcprl(&["show", "latest/exam", "-v"]).out.starts_with("every table\n"));
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
    let project = examined(&["completed"]);
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

/// A loop of three iterations whose stage reports success.
fn learning() -> Project {
    let project = Project::new(
        "name = \"toy\"\n[stages.start]\nkind = \"gen\"\n[loop.count]\niterations = 3\ncarry = { number = \"start\" }\n\
         [loop.count.stages.step]\nkind = \"learn\"\nfrom = \"@number\"\nyields = \"number\"\n\
         [stages.end]\nkind = \"half\"\nfrom = \"count.number\"\n",
    );
    let card =
        "[inputs.from]\ntype = \"number\"\n[outputs.number]\ntype = \"number\"\npath = \"number.txt\"\n";
    let script = "n=$(cat \"$MCPRL_INPUT_FROM\")\necho $((n + 1)) > \"$MCPRL_OUTPUT_NUMBER\"\n\
        echo \"{\\\"success\\\": 0.$n, \\\"signal\\\": 0.5, \\\"max_logprob_gap\\\": 0}\" > \"$MCPRL_METRICS\"\n";
    project.kind("learn", "pure", card, script);
    project
}

#[test]
fn an_iteration_is_one_line_with_success_in_percent_and_a_cached_loop_is_one_line() {
    let project = learning();
    let first = project.run(&[]).err;
    let of_loop = |shown: &str| -> Vec<String> {
        let is_it = |line: &&str| line.contains(" count ");
        shown.lines().filter(is_it).map(str::to_owned).collect()
    };
    let lines = of_loop(&first);
    assert_eq!(lines.len(), 3, "{first}");
    for (at, line) in lines.iter().enumerate() {
        assert!(line.starts_with(&format!("done     count {}/3  success ", at + 1)), "{first}");
        assert!(line.contains(" %  ") && line.contains("teaches 50 %"), "{first}");
        assert!(line.chars().count() <= 80 && !line.contains("logprob"), "{first}");
    }
    let later = project.run(&["--set", "stages.end.kind=step"]).err;
    let lines = of_loop(&later);
    assert_eq!(lines.len(), 1, "{later}");
    assert!(lines[0].starts_with("cached   count 3/3"), "{later}");
    let nothing = project.run(&[]).err;
    assert!(nothing.starts_with("nothing to do: 5 cached, 0 ran in "), "{nothing}");
}

#[test]
fn run_plan_and_doctor_take_run_toml_where_no_file_is_named() {
    let project = Project::new("name = \"toy\"\n[stages.start]\nkind = \"gen\"\n");
    assert_eq!(project.mcprl(&["run"]).code, Some(0));
    assert!(project.mcprl(&["plan"]).out.contains("1 cached"));
    assert!(project.mcprl(&["doctor"]).out.contains("run file"));
    assert!(project.mcprl(&["plan", "--set", "stages.start.value=7"]).out.contains("1 to run"));
}
