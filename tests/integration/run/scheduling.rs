//! Which stages run, when, how often, and at what cost: the real binary, toy stages.

use std::{path::PathBuf, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::common::{Project, until};

/// `middle` fails; `late` is ready only after it did.
const BRANCHES: &str = r#"
name = "toy"

[stages.start]
kind = "gen"
value = 4

[stages.middle]
kind = "half"
from = "start"

[loop.after]
iterations = 3
carry = { number = "middle" }

[loop.after.stages.step]
kind = "step"
from = "@number"
yields = "number"

[stages.early]
kind = "later"
from = "start"

[stages.late]
kind = "step"
from = "early"
"#;

/// Four stages are as many as may run at once; the fifth comes after them.
const FIVE: &str = r#"
name = "toy"

[stages.one]
kind = "gen"
value = 1

[stages.two]
kind = "gen"
value = 2

[stages.three]
kind = "gen"
value = 3

[stages.four]
kind = "gen"
value = 4

[stages.rest]
kind = "gen"
value = 5
"#;

/// Lets a run elsewhere have the leases of stages.
fn leased(project: &Project, stages: &[&str]) -> Vec<PathBuf> {
    let plan: Value = serde_json::from_str(&project.mcprl(&["plan", "run.toml", "--json"]).out).unwrap();
    let nodes = plan["nodes"].as_array().unwrap();
    let holder = json!({ "host": "elsewhere", "boot": "b", "pid_namespace": "", "pid": 1, "started": 1 });
    let lease = json!({ "token": "t", "stage": "s", "run": "other", "holder": holder }).to_string();
    let take = |stage: &&str| {
        let node = nodes.iter().find(|node| node["id"] == **stage).unwrap();
        let path = format!("cache/leases/{}.1.json", node["key"].as_str().unwrap());
        project.write(&path, &lease);
        project.path(&path)
    };
    stages.iter().map(take).collect()
}

#[test]
fn stages_that_wait_for_another_run_take_no_slots_from_others() {
    let project = Project::new(FIVE);
    let leases = leased(&project, &["one", "two", "three", "four"]);
    let mut run = project.spawn(&["run", "run.toml"]);
    until("the rest runs", || project.has_begun("rest"));
    assert_eq!(project.read("log"), "rest\n");
    assert!(run.try_wait().unwrap().is_none());
    leases.iter().for_each(|lease| std::fs::remove_file(lease).unwrap());
    assert!(run.wait().unwrap().success());
    assert_eq!(project.ran(), ["four", "one", "rest", "three", "two"]);
    assert_eq!(std::fs::read_dir(project.path("cache/leases")).unwrap().count(), 0);
}

#[test]
fn a_failure_or_a_signal_ends_the_wait_for_another_run() {
    for keep_going in [&["--keep-going"][..], &[]] {
        let project = Project::new(FIVE);
        project.replace("run.toml", "kind = \"gen\"\nvalue = 5", "kind = \"fails\"");
        project.kind("fails", "seeded", NUMBER, "exit 3");
        let leases = leased(&project, &["one"]);
        let mut run = project.spawn(&[&["run", "run.toml"], keep_going].concat());
        until("the other stage fails", || project.has_event("failed", "rest"));
        if !keep_going.is_empty() {
            std::thread::sleep(Duration::from_millis(300));
            assert!(run.try_wait().unwrap().is_none(), "its result may still come");
            kill_process(Pid::from_child(&run), Signal::INT).unwrap();
        }
        let code = if keep_going.is_empty() { 1 } else { 130 };
        assert_eq!(run.wait().unwrap().code(), Some(code));
        assert!(leases[0].exists());
    }
}

#[test]
fn a_running_stage_is_expected_to_take_as_long_as_it_took_before() {
    let project = Project::new(
        "name = \"toy\"\n[stages.start]\nkind = \"gen\"\n[stages.slow]\nkind = \"gate\"\nfrom = \"start\"\n",
    );
    // So that there is a newest run.
    project.run(&["--until", "start"]);
    let expected = |value: u64, wanted: &dyn Fn(&Value) -> bool| {
        let mut run = project.spawn(&["run", "run.toml", "--set", &format!("stages.start.value={value}")]);
        let progress = || {
            let file = project.newest().join("progress.json");
            serde_json::from_str::<Value>(&std::fs::read_to_string(file).unwrap_or_default())
                .unwrap_or_default()
        };
        until("the time that it is expected to take", || {
            let stages = progress();
            let slow = stages.as_array().into_iter().flatten().find(|stage| stage["stage"] == "slow");
            slow.is_some_and(|slow| wanted(&slow["expected_s"]))
        });
        project.open_gate();
        assert!(run.wait().unwrap().success());
        std::fs::remove_file(project.path("log.go")).unwrap();
    };
    expected(2, &Value::is_null);
    let took = project.journal().into_iter().find(|line| line["event"] == "finished" && line["id"] == "slow");
    let took = took.unwrap()["result"]["cost"]["seconds"].as_f64().unwrap();
    expected(3, &|seconds| seconds.as_f64().is_some_and(|seconds| (seconds - took).abs() < 0.01));
}

const NUMBER: &str = "[outputs.number]\ntype = \"number\"\npath = \"number.txt\"\n";

/// Until there is a line with this text, and for half a minute at most.
fn wait_for_line(text: &str, files: &str) -> String {
    format!("i=0\nuntil grep -qsF '{text}' {files} || [ $i = 1500 ]; do i=$((i + 1)); sleep 0.02; done\n")
}

fn failing() -> Project {
    let project = Project::new(BRANCHES);
    let script =
        wait_for_line("\"event\":\"failed\"", "\"$(dirname \"$TOY_LOG\")\"/cache/runs/*/journal.jsonl");
    let script = script + "cat \"$MCPRL_INPUT_FROM\" > \"$MCPRL_OUTPUT_NUMBER\"";
    project.kind("later", "seeded", &format!("[inputs.from]\ntype = \"number\"\n{NUMBER}"), &script);
    project.write("stages/half/run.sh", "echo no luck today >&2\nexit 3\n");
    project
}

#[test]
fn after_a_failure_nothing_new_starts() {
    let project = failing();
    let failed = project.mcprl(&["run", "run.toml"]);
    assert_eq!(failed.code, Some(1));
    assert_eq!(project.ran(), ["early", "start"]);
    let output = "not run because middle failed: after[0001..0003]/step\n\
                not started after the failure: late (`--keep-going` runs what does not depend on it)\n";
    assert!(failed.err.contains(output), "{}", failed.err);
}

#[test]
fn with_keep_going_other_branches_finish_and_the_rest_can_be_resumed() {
    let project = failing();
    let failed = project.mcprl(&["run", "run.toml", "--keep-going"]);
    assert_eq!(failed.code, Some(1));
    assert_eq!(project.ran(), ["early", "late", "start"]);
    assert!(failed.err.contains("not run because middle failed: after[0001..0003]/step\n0 cached, 3 ran"));
    let id = project.runs().pop().unwrap();
    assert!(failed.err.contains(&format!("continue with `mcprl resume {id}`")), "{}", failed.err);

    project.write("stages/half/run.sh", "echo 7 > \"$MCPRL_OUTPUT_NUMBER\"\n");
    assert_eq!(project.mcprl(&["resume", &id]).code, Some(0));
    assert_eq!(project.result("after.0003/step/number.txt"), "10");
}

#[test]
fn the_json_end_event_names_failed_and_blocked_stages() {
    let failed = failing().mcprl(&["run", "run.toml", "--json"]);
    let end: serde_json::Value = serde_json::from_str(failed.out.lines().last().unwrap()).unwrap();
    assert_eq!(end["failures"], serde_json::json!(["middle"]));
    assert_eq!(end["blocked"][0], serde_json::json!({ "id": "after[0001]/step", "by": ["middle"] }));
}

/// A stage that fails until its third try.
const THIRD_TIME: &str = "echo try >> \"$TOY_LOG.tries\"\n\
                          test $(wc -l < \"$TOY_LOG.tries\") -ge 3\n\
                          echo 1 > \"$MCPRL_OUTPUT_NUMBER\"";

fn flaky(determinism: &str, card: &str) -> Project {
    let project = Project::new("name = \"toy\"\n[stages.ask]\nkind = \"flaky\"\n");
    project.kind("flaky", determinism, &format!("{card}{NUMBER}"), THIRD_TIME);
    project
}

#[test]
fn an_external_stage_is_retried() {
    let project = flaky("external", "");
    let output = project.run(&[]);
    assert!(
        output.err.contains("retry    ask                  in 500 ms: `sh -e run.sh` ended with"),
        "{}",
        output.err
    );
    assert!(output.err.contains("in 1.0 s: "), "{}", output.err);
    assert_eq!(project.ran(), ["ask", "ask", "ask"]);
}

#[test]
fn an_error_that_repeats_is_shown_again_only_when_the_stage_has_failed() {
    let project = Project::new("name = \"toy\"\n[stages.ask]\nkind = \"broken\"\n");
    project.kind("broken", "external", NUMBER, "exit 1\n");
    let output = project.mcprl(&["run", "run.toml"]);
    assert_eq!(output.code, Some(1), "{}", output.err);
    assert_eq!(output.err.matches("ended with exit status: 1").count(), 2, "{}", output.err);
    assert_eq!(output.err.matches("retry ").count(), 2, "{}", output.err);
    assert!(output.err.contains("in 1.0 s: the same error"), "{}", output.err);
}

#[test]
fn a_stage_is_retried_as_often_as_its_card_allows() {
    for (determinism, card, tries) in
        [("external", "retries = 1\n", 2), ("external", "retries = 0\n", 1), ("seeded", "", 1)]
    {
        let project = flaky(determinism, card);
        assert_eq!(project.mcprl(&["run", "run.toml"]).code, Some(1));
        assert_eq!(project.ran().len(), tries, "{determinism} {card}");
    }
}

#[test]
fn a_mistake_in_the_card_is_not_retried() {
    let project = flaky("external", "");
    let card = project.read("stages/flaky/card.toml").replace("\"sh\"", "\"no-such-program\"");
    project.write("stages/flaky/card.toml", &card);
    let failed = project.mcprl(&["run", "run.toml"]);
    assert!(!failed.err.contains("retry"), "{}", failed.err);
    assert!(failed.err.contains("hint: check the name, and that the program is installed"), "{}", failed.err);
}

#[test]
fn only_external_kinds_may_have_retries() {
    let failed = flaky("seeded", "retries = 1\n").mcprl(&["plan", "run.toml"]);
    assert_eq!(failed.code, Some(2));
    assert!(failed.err.contains("`retries` has a meaning for an `external` kind alone"), "{}", failed.err);
}

/// Draws a number in each of three iterations.
const DRAWS: &str = r#"
name = "toy"

[stages.start]
kind = "gen"

[loop.count]
iterations = 3
carry = { number = "start" }

[loop.count.stages.draw]
kind = "chance"
from = "@number"
yields = "number"
"#;

fn draws() -> Project {
    let project = Project::new(DRAWS);
    let card = format!("[inputs.from]\ntype = \"number\"\n{NUMBER}");
    project.kind("chance", "sampled", &card, "date +%N > \"$MCPRL_OUTPUT_NUMBER\"");
    project.run(&[]);
    project.ran();
    project
}

#[test]
fn a_loop_is_resampled_as_a_whole_or_from_one_iteration_on() {
    let project = draws();
    project.run(&["--resample", "count.draw"]);
    assert_eq!(project.ran(), ["count[0001]/draw", "count[0002]/draw", "count[0003]/draw"]);
    for spelling in ["count[0002]/draw", "count[2]/draw", "count.0002/draw"] {
        let shown = project.mcprl(&["show", &format!("latest/{spelling}")]);
        assert!(shown.out.contains("/count[0002]/draw: ran"), "{spelling}: {}{}", shown.out, shown.err);
    }
    // The next iteration reads other bytes, so it runs too.
    project.run(&["--resample", "count[2]/draw"]);
    assert_eq!(project.ran(), ["count[0002]/draw", "count[0003]/draw"]);
    project.run(&[]);
    assert_eq!(project.ran(), [""; 0]);
}

#[test]
fn a_loop_or_an_iteration_is_shown_as_a_line_for_each_stage() {
    let project = draws();
    for (part, expected) in [("count", ["0001", "0002", "0003"].as_slice()), ("count[2]", &["0002"])] {
        let shown = project.mcprl(&["show", &format!("latest/{part}")]).out;
        let stages: Vec<&str> = shown.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
        let expected: Vec<String> = expected.iter().map(|number| format!("count[{number}]/draw")).collect();
        assert_eq!(stages, expected, "{shown}");
    }
    let unknown = project.mcprl(&["show", "latest/coun"]);
    assert!(unknown.err.contains("no stage \"coun\""), "{}", unknown.err);
}

#[test]
fn an_unknown_iteration_cannot_be_resampled() {
    let project = draws();
    let failed = project.mcprl(&["plan", "run.toml", "--resample", "count[4]/draw"]);
    assert_eq!(failed.code, Some(2));
    assert!(failed.err.contains("stage \"count/draw\" has no iteration 4"), "{}", failed.err);
    assert!(failed.err.contains("its iterations are 1 to 3"), "{}", failed.err);
}

#[test]
fn a_loop_stage_named_without_its_loop_is_suggested_in_full() {
    let project = draws();
    for (asked, meant) in [
        ("draw", "count/draw"),
        ("draw[2]", "count[2]/draw"),
        ("cuont.draw", "count/draw"),
        ("count.drow", "count/draw"),
        ("drow[2]", "count[2]/draw"),
    ] {
        let failed = project.mcprl(&["plan", "run.toml", "--resample", asked]);
        assert_eq!(failed.code, Some(2));
        assert!(failed.err.contains(&format!("did you mean \"{meant}\"?")), "{asked}: {}", failed.err);
    }
}

#[test]
fn an_unknown_stage_to_resample_lists_those_that_can_be() {
    let output = draws().mcprl(&["plan", "run.toml", "--resample", "xyz"]);
    assert!(output.err.contains("hint: stages that can be resampled: count/draw"), "{}", output.err);
}

/// Each iteration acts, then learns.
const LAGGED: &str = r#"
name = "toy"

[stages.start]
kind = "gen"

[loop.count]
iterations = 3
carry = { number = "start" }

[loop.count.stages.act]
kind = "step"
from = "@number~1"

[loop.count.stages.learn]
kind = "learn"
from = "act"
before = "@number"
yields = "number"
"#;

/// `wait` is what learning does first, in shell; `$iteration` is its number.
fn lagged(run_file: &str, wait: &str) -> Project {
    let project = Project::new(run_file);
    let card = format!("[inputs.from]\ntype = \"number\"\n[inputs.before]\ntype = \"number\"\n{NUMBER}");
    let iteration = "iteration=$(sed -n 's/^{.*\"stage\":\"count.000\\([0-9]\\).*/\\1/p' \"$MCPRL_STAGE\")";
    let script =
        "echo $(($(cat \"$MCPRL_INPUT_FROM\") + $(cat \"$MCPRL_INPUT_BEFORE\"))) > \"$MCPRL_OUTPUT_NUMBER\"";
    project.kind("learn", "seeded", &card, &format!("{iteration}\n{wait}\n{script}"));
    project.run(&[]);
    project
}

/// When a stage of the newest run began or ended, in milliseconds.
fn moment(project: &Project, event: &str, node: &str) -> u64 {
    let journal = project.journal();
    journal.iter().find(|entry| entry["event"] == event && entry["id"] == node).unwrap()["at"]
        .as_u64()
        .unwrap()
}

/// Whether the next iteration's `act` begins before this one's `learn` has ended, for the first two iterations.
fn overlaps(project: &Project) -> [bool; 2] {
    [1, 2].map(|k| {
        let next = moment(project, "started", &format!("count[{:04}]/act", k + 1));
        next < moment(project, "finished", &format!("count[{k:04}]/learn"))
    })
}

#[test]
fn one_iteration_behind_the_next_act_overlaps_this_learning() {
    let next = wait_for_line("count[000'$((iteration + 1))']/act", "\"$TOY_LOG\"");
    let project = lagged(LAGGED, &format!("if [ \"$iteration\" != 3 ]; then\n{next}fi"));
    assert_eq!(overlaps(&project), [true, true]);
    // From 1: the first and the second act on it, and the first learns 2 + 1; the third acts on that.
    assert_eq!(project.result("count.0002/act/number.txt"), "2");
    assert_eq!(project.result("count.0003/act/number.txt"), "4");

    let project = lagged(&LAGGED.replace("~1", ""), "sleep 0.3");
    assert_eq!(overlaps(&project), [false, false]);
}

#[test]
fn independent_stages_run_concurrently() {
    let step = |name: &str, sleep: f64| {
        format!("[stages.{name}]\nkind = \"step\"\nfrom = \"start\"\nsleep = {sleep}\n")
    };
    let project = Project::new(&format!(
        "name = \"toy\"\n[stages.start]\nkind = \"gen\"\n{}{}{}",
        step("one", 0.4),
        step("two", 0.41),
        step("three", 0.42)
    ));
    // They meet before they sleep.
    let script = project.read("stages/step/run.sh");
    let note = script.lines().next().unwrap();
    let all = ["one", "two", "three"].map(|name| wait_for_line(name, "\"$TOY_LOG\"")).concat();
    project.write("stages/step/run.sh", &script.replacen(note, &format!("{note}\n{all}"), 1));
    project.run(&[]);
    let begun = ["one", "two", "three"].map(|node| moment(&project, "started", node));
    let ended = ["one", "two", "three"].map(|node| moment(&project, "finished", node));
    assert!(begun.iter().max() < ended.iter().min(), "{begun:?} {ended:?}");

    // A plan to work them again counts the time of each, and on the clock that of the longest.
    let again = ["--json", "plan", "run.toml", "--set", "stages.start.value=2"];
    let plan: serde_json::Value = serde_json::from_str(&project.mcprl(&again).out).unwrap();
    let (work, clock) = (plan["ahead"]["seconds"].as_f64().unwrap(), plan["clock"].as_f64().unwrap());
    assert!(work > 1.2 && clock >= 0.42 && clock < work - 0.7, "{work} {clock}");
}

#[test]
fn a_refreshed_result_is_reusable_and_an_uncached_one_is_not() {
    let project = Project::new("name = \"toy\"\n[stages.end]\nkind = \"draw\"\n");
    let with = |mode: &str| format!("stages.end.cache={mode}");
    for (mode, taken) in [("refresh", true), ("off", false)] {
        project.run(&["--set", &with(mode)]);
        project.run(&["--set", &with(mode)]);
        assert_eq!(project.ran(), ["end", "end"], "{mode}");
        project.run(&[]);
        assert_eq!(project.ran().is_empty(), taken, "{mode}");
    }
}

/// Asks a language model, so it says: a fifth of a million tokens in, a tenth out.
fn asking(card: &str, stage: &str) -> Project {
    let project = Project::new(&format!("name = \"toy\"\n[stages.ask]\nkind = \"ask\"\n{stage}"));
    let param = "[params.size]\ntype = \"integer\"\ndefault = 1\n";
    project.kind(
        "ask",
        "seeded",
        &format!("{card}{param}{NUMBER}"),
        "echo 1 > \"$MCPRL_OUTPUT_NUMBER\"\nsleep 0.1\n\
         echo '{\"judge_requests\": 3, \"judge_prompt_tokens\": 200000, \"judge_completion_tokens\": 100000}' \
         > \"$MCPRL_SPENT\"",
    );
    project
}

const SPENT: &str = "3 endpoint requests, 200.0k endpoint tokens in, 100.0k endpoint tokens out";

#[test]
fn a_run_prints_its_usage_at_the_prices_of_run_file_or_card() {
    let free = asking("", "").run(&["-v"]).err;
    assert!(free.contains(&format!("usage: {SPENT}\n")), "{free}");
    let file = asking("", "prices = { prompt = 0.5, completion = 2 }\n").run(&["-v"]).err;
    assert!(file.contains(&format!("usage: {SPENT}, $0.30\n")), "{file}");
    let card = asking("prices = { prompt = 1.0, completion = 3.0 }\n", "").run(&["-v"]).err;
    assert!(card.contains(&format!("usage: {SPENT}, $0.50\n")), "{card}");
}

#[test]
fn a_plan_estimates_from_earlier_costs_and_lists_stages_without_any() {
    let project = asking("", "prices = { prompt = 0.5, completion = 2 }\n[stages.more]\nkind = \"gen\"\n");
    let plan = project.mcprl(&["plan", "run.toml"]).out;
    assert!(plan.ends_with("no estimate for ask, more: no earlier run\n"), "{plan}");

    project.run(&["--set", "stages.more.value=2"]);
    // Another price reruns nothing; only the cost changes.
    let plan = project.mcprl(&["plan", "run.toml", "--set", "stages.ask.prices.prompt=5"]).out;
    assert!(plan.contains("1 cached, 1 to run"), "{plan}");
    assert!(plan.contains("the cache saves 1") && plan.contains(&format!("{SPENT}, $0.30\n")), "{plan}");

    let changed =
        ["--json", "plan", "run.toml", "--set", "stages.ask.size=2", "--set", "stages.ask.prices.prompt=5"];
    let plan: serde_json::Value = serde_json::from_str(&project.mcprl(&changed).out).unwrap();
    assert_eq!(plan["nodes"][0]["cost"]["records"], 1);
    assert_eq!(plan["nodes"][0]["cost"]["differing"], 1);
    let shown = project.mcprl(&changed[1..]).out;
    assert!(shown.contains("s*") && shown.contains("(*: measured with other parameters)"), "{shown}");
    assert_eq!(plan["nodes"][0]["cost"]["spent"]["judge_prompt_tokens"], 200_000);
    assert_eq!(plan["nodes"][0]["cost"]["dollars"], 1.2);
    assert!(plan["ahead"]["seconds"].as_f64().unwrap() >= 0.1);
    assert_eq!(plan["unknown"], serde_json::json!([]));
}

#[test]
fn prices_change_no_key() {
    let project = asking("", "");
    project.run(&[]);
    project.ran();
    project.run(&["--set", "stages.ask.prices.prompt=1", "--set", "stages.ask.prices.completion=1"]);
    assert_eq!(project.ran(), [""; 0]);
}

/// Two stages that use the engine and write down the devices they were handed, after this in shell.
fn on_devices(devices: &str, wait: &str) -> Project {
    let stage = |name: &str, seed: u32| format!("[stages.{name}]\nkind = \"compute\"\nseed = {seed}\n");
    let engine = format!("name = \"toy\"\n[engine]\ndevices = {devices}\n");
    let project = Project::new(&(engine + &stage("one", 1) + &stage("two", 2)));
    let script =
        "sed -n 's/.*\"devices\":\\[\\([^]]*\\)\\].*/\\1/p' \"$MCPRL_STAGE\" > \"$MCPRL_OUTPUT_NUMBER\"";
    project.kind(
        "compute",
        "seeded",
        &format!("uses = [\"engine\"]\n{NUMBER}"),
        &format!("{wait}\n{script}"),
    );
    project.run(&[]);
    project
}

#[test]
fn two_stages_share_two_devices_and_take_turns_on_one() {
    let begun_before_the_other_ended =
        |project: &Project| moment(project, "started", "two") < moment(project, "finished", "one");
    let both = ["one", "two"].map(|name| wait_for_line(name, "\"$TOY_LOG\"")).concat();
    let project = on_devices("[\"cuda:0\", \"cuda:1\"]", &both);
    assert_eq!(project.result("one/number.txt"), "\"cuda:0\"");
    assert_eq!(project.result("two/number.txt"), "\"cuda:1\"");
    assert!(begun_before_the_other_ended(&project));

    let project = on_devices("[\"cpu\"]", "sleep 0.3");
    assert_eq!(project.result("two/number.txt"), "\"cpu\"");
    assert!(!begun_before_the_other_ended(&project));
}

/// A loop that may wait for a metric, which its stage does not write, and beside it a branch of its own.
const AWAITED: &str = r#"
name = "toy"

[stages.start]
kind = "gen"

[stages.early]
kind = "step"
from = "start"
sleep = 0.4

[stages.late]
kind = "step"
from = "early"

[loop.count]
iterations = 3
carry = { number = "start" }
UNTIL

[loop.count.stages.say]
kind = "say"
from = "@number"
yields = "number"
"#;

fn awaited(until: &str) -> Project {
    let project = Project::new(&AWAITED.replace("UNTIL", until));
    let card = format!("[inputs.from]\ntype = \"number\"\n{NUMBER}[metrics]\nvalue = \"The number.\"\n");
    project.kind("say", "seeded", &card, "cat \"$MCPRL_INPUT_FROM\" > \"$MCPRL_OUTPUT_NUMBER\"");
    project
}

const UNTIL: &str = "until = { metric = \"say.value\", at_least = 9 }";

#[test]
fn a_stage_without_the_metric_its_loop_waits_for_fails_and_stops_no_other_branch() {
    let project = awaited(UNTIL);
    let failed = project.mcprl(&["run", "run.toml", "--keep-going"]);
    assert_eq!(failed.code, Some(1), "{}", failed.err);
    assert!(
        failed.err.contains("reported no metric `value`, which loop \"count\" waits for"),
        "{}",
        failed.err
    );
    assert_eq!(project.ran(), ["count[0001]/say", "early", "late", "start"]);
    let id = project.runs().pop().unwrap();
    assert!(failed.err.contains(&format!("continue with `mcprl resume {id}`")), "{}", failed.err);
    let plan = project.mcprl(&["plan", "run.toml"]);
    assert_eq!(plan.code, Some(0), "{}", plan.err);
}

#[test]
fn a_result_without_a_newly_awaited_metric_reruns() {
    let project = awaited("");
    project.run(&[]);
    project.ran();
    project.write("run.toml", &AWAITED.replace("UNTIL", UNTIL));
    let plan = project.mcprl(&["plan", "run.toml"]);
    assert_eq!(plan.code, Some(0), "{}", plan.err);
    assert!(
        plan.out.contains("its result lacks the metric `value`, which the loop waits for"),
        "{}",
        plan.out
    );
    assert_eq!(project.mcprl(&["run", "run.toml"]).code, Some(1));
    assert_eq!(project.ran(), ["count[0001]/say"]);
}
