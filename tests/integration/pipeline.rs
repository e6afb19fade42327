//! The pipeline engine at its outside: the real binary, toy stages.

use std::{
    io::Read,
    path::PathBuf,
    time::{Duration, Instant},
};

use crate::common::{Project, output};

const CHAIN: &str = r#"
name = "toy"
seed = 1

[stages.start]
kind = "gen"
value = 4

[stages.middle]
kind = "half"
from = "start"

[stages.end]
kind = "step"
from = "middle"
"#;

const LOOP: &str = r#"
name = "toy"

[stages.start]
kind = "gen"
value = 1

[loop.count]
iterations = 6
carry = { number = "start" }
until = { metric = "step.value", at_least = 4 }

[loop.count.stages.step]
kind = "step"
from = "@number"
yields = "number"

[stages.end]
kind = "sum"
parts = { left = "start", right = "count.number" }
"#;

/// Twenty steps of 30 ms after one another.
const SLOW: &str = r#"
name = "toy"

[stages.start]
kind = "gen"

[loop.count]
iterations = 20
carry = { number = "start" }

[loop.count.stages.step]
kind = "step"
from = "@number"
sleep = 0.03
yields = "number"

[stages.end]
kind = "half"
from = "count.number"
"#;

/// A plan's lines with `|` between columns, without what took how long.
fn without_times(plan: &str) -> String {
    let time = |cell: &&str| !(cell.starts_with('~') || cell.starts_with('(') && cell.ends_with(')'));
    let row = |line: &str| {
        let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).filter(time);
        cells.collect::<Vec<_>>().join(" | ")
    };
    let lines =
        plan.lines().filter(|line| !line.starts_with("estimated cost") && !line.starts_with("the cache "));
    lines.map(|line| row(&word_apart(line))).collect::<Vec<_>>().join("\n")
}

/// The first word is padded to a width that leaves one space or several.
fn word_apart(line: &str) -> String {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    format!("{word} {}", rest.trim_start())
}

#[test]
fn a_second_run_runs_nothing() {
    let project = Project::new(CHAIN);
    project.run(&[]);
    assert_eq!(project.ran(), ["end", "middle", "start"]);
    project.run(&[]);
    assert_eq!(project.ran(), [""; 0]);
    assert_eq!(project.result("end/number.txt"), "3");
}

#[test]
fn planning_creates_nothing() {
    let project = Project::new(CHAIN);
    let output = project.mcprl(&["plan", "run.toml"]);
    insta::assert_snapshot!(output.out, @r"
    run     start   gen   first time
    run     middle  half  after start
    run     end     step  after middle
    toy: 0 cached, 3 to run, 0 that may run, 0 skipped
    no estimate for start, middle, end: no earlier run
    ");
    assert!(!project.path("cache").exists());
}

#[test]
fn a_changed_parameter_is_shown_with_its_old_and_new_value() {
    let project = Project::new(CHAIN);
    project.run(&[]);
    let output = project.mcprl(&["plan", "run.toml", "--set", "stages.start.value=6"]);
    insta::assert_snapshot!(without_times(&output.out), @r"
    run start | gen | params.value 4 → 6
    may run middle | half | if start changes
    may run end | step | if middle changes
    toy: 0 cached, 1 to run, 2 that may run, 0 skipped
    ");
}

#[test]
fn a_changed_stage_that_waits_will_run_and_shows_why() {
    let project = Project::new(CHAIN);
    project.run(&[]);
    let set = ["--set", "stages.start.value=6", "--set", "stages.end.sleep=0.01"];
    let plan = without_times(&project.mcprl(&[&["plan", "run.toml"], &set[..]].concat()).out);
    assert!(plan.contains("may run middle | half | if start changes"), "{plan}");
    assert!(plan.contains("run end | step | after middle: params.sleep 0.0 → 0.01"), "{plan}");
    assert!(plan.contains("2 to run, 1 that may run"), "{plan}");
}

#[test]
fn equal_bytes_stop_a_rerun_from_spreading() {
    let project = Project::new(CHAIN);
    project.run(&[]);
    project.ran();
    // 5 / 2 = 4 / 2: what `middle` writes is the same.
    project.run(&["--set", "stages.start.value=5"]);
    assert_eq!(project.ran(), ["middle", "start"]);
}

#[test]
fn an_edited_script_reruns_its_stage_and_is_named() {
    let project = Project::new(CHAIN);
    project.run(&[]);
    project.ran();
    let script = project.read("stages/step/run.sh");
    project.write("stages/step/run.sh", &format!("{script}# edited\n"));
    let plan = without_times(&project.mcprl(&["plan", "run.toml"]).out);
    assert!(plan.contains("run end | step | code stages/step/run.sh edited"), "{plan}");
    project.run(&[]);
    assert_eq!(project.ran(), ["end"]);
}

#[test]
fn prose_in_a_card_reruns_nothing() {
    let project = Project::new(CHAIN);
    project.run(&[]);
    project.ran();
    let card = project.read("stages/step/card.toml").replace("A toy.", "A toy that adds one.");
    project.write("stages/step/card.toml", &card);
    project.run(&[]);
    assert_eq!(project.ran(), [""; 0]);
}

#[test]
fn a_seed_affects_only_stages_that_draw() {
    let project = Project::new(CHAIN);
    project.run(&[]);
    project.ran();
    project.run(&["--set", "seed=2"]);
    // `gen` draws and runs again with equal bytes; `step` draws; `half` is pure.
    assert_eq!(project.ran(), ["end", "start"]);
}

#[test]
fn the_environment_overrides_the_run_file_and_the_command_line_both() {
    let project = Project::new(CHAIN);
    let run = |more: &[&str]| {
        let arguments: Vec<&str> = ["run", "run.toml"].iter().chain(more).copied().collect();
        let done = output(project.command(&arguments).env("MCPRL_STAGES__START__VALUE", "20"));
        assert_eq!(done.code, Some(0), "{}", done.err);
        project.result("end/number.txt")
    };
    assert_eq!(run(&[]), "11");
    assert_eq!(run(&["--set", "stages.start.value=40"]), "21");
}

#[test]
fn a_file_parameter_counts_by_its_content() {
    let project = Project::new("name = \"toy\"\n[stages.end]\nkind = \"copy\"\nfile = \"sub/data.txt\"\n");
    project.write("sub/data.txt", "one");
    project.run(&[]);
    assert_eq!(project.ran(), ["end"]);
    project.write("sub/data.txt", "one");
    project.run(&[]);
    assert_eq!(project.ran(), [""; 0]);
    project.write("sub/data.txt", "two");
    project.run(&[]);
    assert_eq!(project.ran(), ["end"]);
    assert_eq!(project.result("end/number.txt"), "two");
}

#[test]
fn a_loop_ends_at_its_goal_with_the_result_of_its_last_iteration() {
    let project = Project::new(LOOP);
    let first = project.run(&[]);
    assert_eq!(project.ran(), ["count[0001]/step", "count[0002]/step", "count[0003]/step", "end", "start"]);
    assert_eq!(first.out, "the sum is 5\n");
    let plan = project.mcprl(&["plan", "run.toml"]);
    insta::assert_snapshot!(without_times(&plan.out), @r"
    cached start | gen
    cached count[0001..0003]/step | step
    skipped count[0004..0006]/step | step | its loop has ended
    cached end | sum
    toy: 5 cached, 0 to run, 0 that may run, 3 skipped
    ");
}

/// The pipeline of [`LOOP`] without its goal, with a kind that has a signal until the number is this.
fn idle_from(number: u32, metrics: &str) -> Project {
    let run = LOOP.lines().filter(|line| !line.starts_with("until")).collect::<Vec<_>>().join("\n");
    let project = Project::new(&run.replace("kind = \"step\"", "kind = \"learn\""));
    project.kind(
        "learn",
        "seeded",
        "[inputs.from]\ntype = \"number\"\n[outputs.number]\ntype = \"number\"\npath = \"number.txt\"\n\
         [metrics]\nsignal = \"Share.\"\nall_right = \"Share.\"\nall_wrong = \"Share.\"\n",
        &format!(
            "n=$(($(cat \"$MCPRL_INPUT_FROM\") + 1))\n\
             echo $n > \"$MCPRL_OUTPUT_NUMBER\"\n\
             if [ $n -lt {number} ]; then signal=0.5; else signal=0; fi\n\
             echo \"{{\\\"signal\\\": $signal, {metrics}}}\" > \"$MCPRL_METRICS\""
        ),
    );
    project
}

#[test]
fn a_loop_without_signal_in_two_iterations_ends_and_the_run_fails_with_all_that_follows() {
    let project = idle_from(4, "\\\"all_right\\\": 0.2, \\\"all_wrong\\\": 0.8");
    for ran in [&["count[0001]/step", "count[0002]/step", "count[0003]/step", "count[0004]/step"][..], &[]] {
        let done = project.mcprl(&["run", "run.toml"]);
        assert_eq!(done.code, Some(1), "{}", done.err);
        assert_eq!(done.out, "the sum is 6\n", "what reads the loop's result still runs");
        let text = "loop \"count\" ended: in iterations 3 to 4 no group has both right and wrong episodes, so nothing was learned";
        assert!(done.err.contains(text), "{}", done.err);
        let found: Vec<String> = project.ran().into_iter().filter(|name| name.starts_with("count")).collect();
        assert_eq!(found, ran, "the same, once everything is cached");
    }
}

#[test]
fn a_loop_that_has_nothing_left_to_learn_ends_and_the_run_succeeds() {
    let project = idle_from(3, "\\\"all_right\\\": 0.9, \\\"all_wrong\\\": 0.1");
    let done = project.mcprl(&["run", "run.toml"]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert!(done.err.contains("in iterations 2 to 3 most groups are all right"), "{}", done.err);
}

#[test]
fn patience_says_how_many_iterations_without_signal_end_a_loop() {
    for (patience, iterations) in [("1", 3), ("3", 5), ("0", 6)] {
        let project = idle_from(4, "\\\"all_wrong\\\": 1");
        let done = project.mcprl(&["run", "run.toml", "--set", &format!("loop.count.patience={patience}")]);
        assert_eq!(done.code, Some(i32::from(patience != "0")), "{}", done.err);
        let ran = project.ran().into_iter().filter(|name| name.starts_with("count")).count();
        assert_eq!(ran, iterations, "patience {patience}");
    }
    // A lag of one iteration: the third is already under way.
    let project = idle_from(2, "\\\"all_wrong\\\": 1");
    project.write("run.toml", &project.read("run.toml").replace("\"@number\"", "\"@number~1\""));
    project.mcprl(&["run", "run.toml"]);
    assert_eq!(project.ran().into_iter().filter(|name| name.starts_with("count")).count(), 3);
}

#[test]
fn a_higher_goal_continues_from_the_existing_iterations() {
    let project = Project::new(LOOP);
    project.run(&[]);
    project.ran();
    project.run(&["--set", "loop.count.until.at_least=6"]);
    assert_eq!(project.ran(), ["count[0004]/step", "count[0005]/step", "end"]);
}

#[test]
fn a_value_read_one_iteration_late_starts_from_the_initial_one() {
    let project = Project::new(&LOOP.replace("\"@number\"", "\"@number~1\""));
    project.run(&["--set", "loop.count.iterations=4", "--set", "loop.count.until.at_least=100"]);
    // 1 | 2 2 3 3
    assert_eq!(project.result("count.0004/step/number.txt"), "3");
}

#[test]
fn a_goal_with_a_lag_skips_all_later_iterations() {
    let project = Project::new(&LOOP.replace("\"@number\"", "\"@number~1\""));
    project.run(&["--set", "loop.count.until.at_least=2", "--set", "loop.count.iterations=9"]);
    let ran = project.ran();
    assert_eq!(ran, ["count[0001]/step", "count[0002]/step", "end", "start"]);
}

#[test]
fn a_truncated_artifact_is_made_again() {
    let project = Project::new(CHAIN);
    project.run(&[]);
    project.ran();
    let artifact = project.path("cache/runs").join(project.runs().pop().unwrap()).join("middle/number.txt");
    let stored: PathBuf = std::fs::canonicalize(artifact).unwrap();
    std::fs::remove_file(&stored).unwrap();
    std::fs::write(&stored, "").unwrap();
    let plan = project.mcprl(&["plan", "run.toml"]).out;
    assert!(plan.contains("stored output `number` is unusable: its bytes changed"), "{plan}");
    project.run(&[]);
    assert_eq!(project.ran(), ["middle"]);
    assert_eq!(project.result("end/number.txt"), "3");
}

#[test]
fn a_torn_record_is_made_again() {
    let project = Project::new(CHAIN);
    project.run(&[]);
    project.ran();
    for item in std::fs::read_dir(project.path("cache/ac")).unwrap() {
        let path = item.unwrap().path();
        if path.is_file() {
            let bytes = std::fs::read(&path).unwrap();
            std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        }
    }
    project.run(&[]);
    assert_eq!(project.ran(), ["end", "middle", "start"]);
}

#[test]
fn a_failing_stage_keeps_what_the_others_finished() {
    let project = Project::new(&format!("{CHAIN}\n[stages.other]\nkind = \"step\"\nfrom = \"start\"\n"));
    let good = project.read("stages/half/run.sh");
    project.write("stages/half/run.sh", "echo no luck today >&2\nexit 3\n");
    let failed = project.mcprl(&["run", "run.toml"]);
    assert_eq!(failed.code, Some(1));
    assert!(
        failed
            .err
            .contains("error: stage \"middle\": `sh -e run.sh` ended with exit status: 3\nno luck today")
    );
    let id = project.runs().pop().unwrap();
    assert!(failed.err.contains(&format!("continue with `mcprl resume {id}`")), "{}", failed.err);
    assert_eq!(project.ran(), ["other", "start"]);

    project.write("stages/half/run.sh", &good);
    assert_eq!(project.mcprl(&["resume", &id]).code, Some(0));
    assert_eq!(project.ran(), ["end", "middle"]);
}

#[test]
fn an_output_that_was_not_written_is_named() {
    let project = Project::new(CHAIN);
    project.write("stages/half/run.sh", "true\n");
    let failed = project.mcprl(&["run", "run.toml"]);
    assert_eq!(failed.code, Some(1));
    assert!(failed.err.contains("output `number` was not written: number.txt is missing"), "{}", failed.err);
}

#[test]
fn killed_at_any_moment_a_run_resumes_and_loses_nothing_finished() {
    let project = Project::new(SLOW);
    let began = Instant::now();
    let mut run = project.spawn(&["run", "run.toml"]);
    let mut id = None;
    let mut pause = 20;
    for attempt in 0.. {
        assert!(began.elapsed() < Duration::from_secs(60), "the run does not come to its end");
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
fn two_concurrent_runs_run_each_stage_once() {
    let project = Project::new(SLOW);
    let mut runs: Vec<_> = (0..2).map(|_| project.spawn(&["run", "run.toml"])).collect();
    for run in &mut runs {
        assert!(run.wait().unwrap().success());
    }
    let ran = project.ran();
    assert_eq!(ran.len(), 22, "{ran:?}");
}

#[test]
fn an_interrupted_run_prints_how_to_continue_and_resumes() {
    let project = Project::new(&SLOW.replace("0.03", "0.3"));
    let mut run = project.spawn(&["run", "run.toml"]);
    while !std::fs::read_to_string(project.path("log")).is_ok_and(|log| log.lines().count() >= 2) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let pid = rustix::process::Pid::from_child(&run);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
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
fn a_sample_is_kept_until_a_resample() {
    let project = Project::new("name = \"toy\"\n[stages.end]\nkind = \"draw\"\n");
    project.run(&[]);
    let first = project.result("end/number.txt");
    project.run(&[]);
    assert_eq!(project.result("end/number.txt"), first);
    project.run(&["--resample", "end"]);
    let second = project.result("end/number.txt");
    assert_ne!(second, first);
    project.run(&[]);
    assert_eq!(project.result("end/number.txt"), second);
}

#[test]
fn a_pure_stage_cannot_be_resampled() {
    let project = Project::new(CHAIN);
    let refused = project.mcprl(&["run", "run.toml", "--resample", "middle"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("stage \"middle\" is pure: running it again gives the same result"));
}

#[test]
fn a_stage_that_is_not_cached_runs_every_time() {
    let project = Project::new(&format!("{CHAIN}cache = false\n"));
    project.run(&[]);
    project.ran();
    project.run(&[]);
    assert_eq!(project.ran(), ["end"]);
}

#[test]
fn with_json_every_event_is_an_object_and_errors_too() {
    let project = Project::new(CHAIN);
    let run = project.run(&["--json"]);
    assert!(
        run.out.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()),
        "{}",
        run.out
    );
    assert_eq!(run.err, "");
    let failed = project.mcprl(&["--json", "run", "nowhere.toml"]);
    assert_eq!(failed.code, Some(2));
    let error: serde_json::Value = serde_json::from_str(&failed.err).unwrap();
    assert_eq!(error["error"]["code"], "plan::read");
}

#[test]
fn a_cache_that_cannot_be_written_is_reported() {
    let project = Project::new(CHAIN);
    // Nobody creates folders in sysfs, not even root.
    let failed = project.mcprl(&["run", "run.toml", "--cache", "/sys/mcprl"]);
    assert_eq!(failed.code, Some(1));
    assert!(failed.err.starts_with("error: the cache cannot be written: /sys/mcprl"), "{}", failed.err);
    assert!(failed.err.contains("hint: choose another cache with `--cache DIR`"), "{}", failed.err);

    project.write("cache", "a file");
    let failed = project.mcprl(&["run", "run.toml"]);
    assert_eq!(failed.code, Some(2));
    assert!(failed.err.starts_with("error: the cache cache is not a folder"), "{}", failed.err);
}

#[test]
fn a_cache_of_a_later_mcprl_is_left_alone() {
    let project = Project::new(CHAIN);
    project.write("cache/version", "99\n");
    let failed = project.mcprl(&["run", "run.toml"]);
    assert_eq!(failed.code, Some(1));
    insta::assert_snapshot!(failed.err, @r"
    error: the cache cache has layout 99, this mcprl knows layouts up to 1
    hint: update mcprl, or choose another cache with `--cache DIR`
    ");
}

#[test]
fn a_full_disk_is_reported_and_leaves_nothing_half_written() {
    let project = Project::new(CHAIN);
    // A limit on file sizes stands in for a full disk: writes fail in the middle, and root is not spared.
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$0\" run run.toml"]);
    limited.arg(env!("CARGO_BIN_EXE_mcprl")).current_dir(project.path("."));
    project.write("run.toml", &format!("{CHAIN}\n# {}\n", "x".repeat(2000)));
    let failed = output(&mut limited);
    assert_eq!(failed.code, Some(1), "{}", failed.err);
    assert!(failed.err.starts_with("error: no space left while writing"), "{}", failed.err);
    project.run(&[]);
    assert_eq!(project.result("end/number.txt"), "3");
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
fn a_command_that_does_not_write_its_declared_table_fails_and_is_not_cached() {
    let project = Project::new("name = \"toy\"\n[stages.lie]\nkind = \"liar\"\n");
    let card = "[outputs.rewards]\ntype = \"rewards\"\npath = \"rewards.parquet\"\n";
    project.kind("liar", "pure", card, "echo no table > \"$MCPRL_OUTPUT_REWARDS\"");
    for _ in 0..2 {
        let output = project.mcprl(&["run", "run.toml"]);
        assert_eq!(output.code, Some(1));
        assert!(output.err.contains("stage \"lie\": output `rewards`: "), "{}", output.err);
        assert!(output.err.contains("is not a readable rewards table"), "{}", output.err);
        assert_eq!(project.ran(), ["lie"]);
    }
}

#[test]
fn a_run_until_a_stage_runs_that_stage_and_what_it_needs() {
    let project = Project::new(LOOP);
    assert_eq!(project.run(&["--until", "start"]).code, Some(0));
    assert_eq!(project.ran(), ["start"]);
    project.run(&["--until", "count[2]"]);
    assert_eq!(project.ran(), ["count[0001]/step", "count[0002]/step"]);
    // The rest, with the results so far.
    project.run(&[]);
    assert_eq!(project.ran(), ["count[0003]/step", "end"]);
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

#[test]
fn a_stage_that_does_not_exist_cannot_limit_a_run() {
    let project = Project::new(LOOP);
    let near = project.mcprl(&["run", "run.toml", "--until", "stat"]);
    assert_eq!(near.code, Some(2), "{}", near.err);
    assert!(
        near.err.contains("no stage \"stat\"") && near.err.contains("did you mean \"start\""),
        "{}",
        near.err
    );
    let unknown = project.mcprl(&["plan", "run.toml", "--until", "policies"]);
    assert!(unknown.err.contains("its stages: start, count/step, count, end"), "{}", unknown.err);
    assert!(project.runs().is_empty());
}
