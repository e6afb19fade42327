//! Which stages are worked, when, how often, and at what cost: the real binary, toy stages.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::Project;

/// `middle` can be made to fail; `late` is ready only after it did.
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
kind = "step"
from = "start"
sleep = 0.4

[stages.late]
kind = "step"
from = "early"
"#;

const NUMBER: &str = "[outputs.number]\ntype = \"number\"\npath = \"number.txt\"\n";

fn failing() -> Project {
    let project = Project::new(BRANCHES);
    project.write("stages/half/run.sh", "echo no luck today >&2\nexit 3\n");
    project
}

#[test]
fn after_a_failure_nothing_new_is_begun() {
    let project = failing();
    let failed = project.mcprl(&["run", "run.toml"]);
    assert_eq!(failed.code, Some(1));
    assert_eq!(project.worked(), ["early", "start"]);
    let said = "not worked, for middle failed: after[0001..0003]/step\n\
                not begun after the failure: late (`--keep-going` works what does not depend on it)\n";
    assert!(failed.err.contains(said), "{}", failed.err);
}

#[test]
fn kept_going_a_failing_branch_stops_no_other_and_the_rest_can_be_gone_on_with() {
    let project = failing();
    let failed = project.mcprl(&["run", "run.toml", "--keep-going"]);
    assert_eq!(failed.code, Some(1));
    assert_eq!(project.worked(), ["early", "late", "start"]);
    assert!(failed.err.contains("not worked, for middle failed: after[0001..0003]/step\n0 cached, 3 worked"));
    let id = project.runs().pop().unwrap();
    assert!(failed.err.contains(&format!("`mcprl resume {id}` goes on")), "{}", failed.err);

    project.write("stages/half/run.sh", "echo 7 > \"$MCPRL_OUTPUT_NUMBER\"\n");
    assert_eq!(project.mcprl(&["resume", &id]).code, Some(0));
    assert_eq!(project.result("after.0003/step/number.txt"), "10");
}

#[test]
fn with_json_the_end_names_what_failed_and_what_waits_for_it() {
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
fn a_stage_of_the_outside_world_is_tried_again() {
    let project = flaky("external", "");
    let said = project.run(&[]);
    assert!(
        said.err.contains("retry    ask                  in 500 ms: `sh -e run.sh` ended with"),
        "{}",
        said.err
    );
    assert!(said.err.contains("in 1.0 s: "), "{}", said.err);
    assert_eq!(project.worked(), ["ask", "ask", "ask"]);
}

#[test]
fn a_long_error_is_shown_whole_once_however_often_the_stage_is_tried() {
    let project = Project::new(&format!(
        "name = \"toy\"\n[server]\ncommand = [\"sh\", \"-c\", \"echo {} the-end >&2; exit 1\"]\n\
         [stages.tools]\nkind = \"discover\"\n",
        "words ".repeat(40)
    ));
    // The command is part of the error, and so is what the server said.
    let said = project.mcprl(&["run", "run.toml"]);
    assert_eq!(said.code, Some(1), "{}", said.err);
    assert_eq!(said.err.matches("; stderr: ").count(), 1, "{}", said.err);
    assert_eq!(said.err.matches("retry ").count(), 2, "{}", said.err);
    assert!(said.err.contains("in 1.0 s: the same error"), "{}", said.err);
}

#[test]
fn it_is_tried_as_often_as_its_card_says_and_others_once() {
    for (determinism, card, tries) in
        [("external", "retries = 1\n", 2), ("external", "retries = 0\n", 1), ("seeded", "", 1)]
    {
        let project = flaky(determinism, card);
        assert_eq!(project.mcprl(&["run", "run.toml"]).code, Some(1));
        assert_eq!(project.worked().len(), tries, "{determinism} {card}");
    }
}

#[test]
fn a_mistake_of_the_card_is_not_tried_again() {
    let project = flaky("external", "");
    let card = project.read("stages/flaky/card.toml").replace("\"sh\"", "\"no-such-program\"");
    project.write("stages/flaky/card.toml", &card);
    let failed = project.mcprl(&["run", "run.toml"]);
    assert!(!failed.err.contains("retry"), "{}", failed.err);
    assert!(failed.err.contains("hint: check the name, and that the program is installed"), "{}", failed.err);
}

#[test]
fn retries_are_for_the_outside_world_alone() {
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
    project.worked();
    project
}

#[test]
fn a_loops_samples_are_drawn_anew_all_or_from_one_iteration_on() {
    let project = draws();
    project.run(&["--resample", "count.draw"]);
    assert_eq!(project.worked(), ["count[0001]/draw", "count[0002]/draw", "count[0003]/draw"]);
    for spelling in ["count[0002]/draw", "count[2]/draw", "count.0002/draw"] {
        let shown = project.mcprl(&["show", &format!("latest/{spelling}")]);
        assert!(shown.out.contains("/count[0002]/draw: worked"), "{spelling}: {}{}", shown.out, shown.err);
    }
    // What follows reads other bytes, and so is worked as well.
    project.run(&["--resample", "count/draw@2"]);
    assert_eq!(project.worked(), ["count[0002]/draw", "count[0003]/draw"]);
    project.run(&[]);
    assert_eq!(project.worked(), [""; 0]);
}

#[test]
fn an_iteration_that_is_not_there_is_not_drawn_anew() {
    let project = draws();
    for (asked, hint) in
        [("count.draw@4", "its iterations are 1 to 3"), ("count.draw@x", "its iterations are 1 to 3")]
    {
        let failed = project.mcprl(&["plan", "run.toml", "--resample", asked]);
        assert_eq!(failed.code, Some(2));
        assert!(failed.err.contains("stage \"count/draw\" has no iteration"), "{}", failed.err);
        assert!(failed.err.contains(hint), "{}", failed.err);
    }
}

#[test]
fn a_loops_stage_without_its_loop_is_named_in_full() {
    let project = draws();
    for (asked, meant) in [
        ("draw", "count/draw"),
        ("draw@2", "count/draw@2"),
        ("cuont.draw", "count/draw"),
        ("count.drow", "count/draw"),
        ("drow@2", "count/draw@2"),
    ] {
        let failed = project.mcprl(&["plan", "run.toml", "--resample", asked]);
        assert_eq!(failed.code, Some(2));
        assert!(failed.err.contains(&format!("did you mean \"{meant}\"?")), "{asked}: {}", failed.err);
    }
}

#[test]
fn where_no_stage_is_meant_those_that_draw_are_listed() {
    let said = draws().mcprl(&["plan", "run.toml", "--resample", "xyz"]);
    assert!(said.err.contains("hint: stages that can be resampled: count/draw"), "{}", said.err);
}

/// Each iteration acts for 0.3 s, then learns for 0.3 s.
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
sleep = 0.3

[loop.count.stages.learn]
kind = "learn"
from = "act"
before = "@number"
yields = "number"
"#;

fn lagged(run_file: &str) -> Project {
    let project = Project::new(run_file);
    let card = format!("[inputs.from]\ntype = \"number\"\n[inputs.before]\ntype = \"number\"\n{NUMBER}");
    let script = "sleep 0.3\necho $(($(cat \"$MCPRL_INPUT_FROM\") + $(cat \"$MCPRL_INPUT_BEFORE\"))) > \"$MCPRL_OUTPUT_NUMBER\"";
    project.kind("learn", "seeded", &card, script);
    project.run(&[]);
    project
}

/// When a stage of the newest run began or ended, in milliseconds.
fn moment(project: &Project, event: &str, node: &str) -> u64 {
    let run = project.runs().pop().unwrap();
    let journal = project.read(format!("cache/runs/{run}/journal.jsonl"));
    let mut lines = journal.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    lines.find(|line| line["event"] == event && line["node"] == node).unwrap()["at"].as_u64().unwrap()
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
    let project = lagged(LAGGED);
    assert_eq!(overlaps(&project), [true, true]);
    // From 1: the first and the second act on it, and the first learns 2 + 1; the third acts on that.
    assert_eq!(project.result("count.0002/act/number.txt"), "2");
    assert_eq!(project.result("count.0003/act/number.txt"), "4");

    let project = lagged(&LAGGED.replace("~1", ""));
    assert_eq!(overlaps(&project), [false, false]);
}

#[test]
fn stages_that_do_not_wait_for_each_other_are_worked_at_once() {
    let step = |name: &str, sleep: f64| {
        format!("[stages.{name}]\nkind = \"step\"\nfrom = \"start\"\nsleep = {sleep}\n")
    };
    let project = Project::new(&format!(
        "name = \"toy\"\n[stages.start]\nkind = \"gen\"\n{}{}{}",
        step("one", 0.4),
        step("two", 0.41),
        step("three", 0.42)
    ));
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
fn a_refreshed_result_may_be_taken_by_others_and_one_that_is_off_may_not() {
    let project = Project::new("name = \"toy\"\n[stages.end]\nkind = \"draw\"\n");
    let with = |mode: &str| format!("stages.end.cache={mode}");
    for (mode, taken) in [("refresh", true), ("off", false)] {
        project.run(&["--set", &with(mode)]);
        project.run(&["--set", &with(mode)]);
        assert_eq!(project.worked(), ["end", "end"], "{mode}");
        project.run(&[]);
        assert_eq!(project.worked().is_empty(), taken, "{mode}");
    }
}

#[test]
fn the_same_bytes_of_a_refreshed_stage_stop_there() {
    let project = Project::new(
        "name = \"toy\"\n[stages.start]\nkind = \"gen\"\nvalue = 4\n[stages.end]\nkind = \"half\"\nfrom = \"start\"\n",
    );
    project.run(&[]);
    project.worked();
    project.run(&["--set", "stages.start.cache=refresh"]);
    assert_eq!(project.worked(), ["start"]);
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

const SPENT: &str = "3 judge requests, 200.0k judge tokens in, 100.0k judge tokens out";

#[test]
fn a_run_says_what_it_spent_at_the_prices_of_run_file_or_card() {
    let free = asking("", "").run(&[]).err;
    assert!(free.contains(&format!("spent: {SPENT}\n")), "{free}");
    let file = asking("", "prices = { prompt = 0.5, completion = 2 }\n").run(&[]).err;
    assert!(file.contains(&format!("spent: {SPENT}, $0.30\n")), "{file}");
    let card = asking("prices = { prompt = 1.0, completion = 3.0 }\n", "").run(&[]).err;
    assert!(card.contains(&format!("spent: {SPENT}, $0.50\n")), "{card}");
}

#[test]
fn a_plan_predicts_from_what_the_stage_cost_before_and_says_where_it_can_not() {
    let project = asking("", "prices = { prompt = 0.5, completion = 2 }\n[stages.more]\nkind = \"gen\"\n");
    let plan = project.mcprl(&["plan", "run.toml"]).out;
    assert!(plan.ends_with("no estimate for ask, more: no earlier run\n"), "{plan}");

    project.run(&["--set", "stages.more.value=2"]);
    // Another price works nothing again: what was worked is only counted otherwise.
    let plan = project.mcprl(&["plan", "run.toml", "--set", "stages.ask.prices.prompt=5"]).out;
    assert!(plan.contains("1 cached, 1 to run"), "{plan}");
    assert!(plan.contains("the cache saves 1") && plan.contains(&format!("{SPENT}, $0.30\n")), "{plan}");

    let changed =
        ["--json", "plan", "run.toml", "--set", "stages.ask.size=2", "--set", "stages.ask.prices.prompt=5"];
    let plan: serde_json::Value = serde_json::from_str(&project.mcprl(&changed).out).unwrap();
    assert_eq!(plan["nodes"][0]["cost"]["records"], 1);
    assert_eq!(plan["nodes"][0]["cost"]["differing"], 1);
    let shown = project.mcprl(&changed[1..]).out;
    assert!(shown.contains("s*") && shown.contains("(*: figures of other parameters)"), "{shown}");
    assert_eq!(plan["nodes"][0]["cost"]["spent"]["judge_prompt_tokens"], 200_000);
    assert_eq!(plan["nodes"][0]["cost"]["dollars"], 1.2);
    assert!(plan["ahead"]["seconds"].as_f64().unwrap() >= 0.1);
    assert_eq!(plan["unknown"], serde_json::json!([]));
}

#[test]
fn prices_change_no_key() {
    let project = asking("", "");
    project.run(&[]);
    project.worked();
    project.run(&["--set", "stages.ask.prices.prompt=1", "--set", "stages.ask.prices.completion=1"]);
    assert_eq!(project.worked(), [""; 0]);
}

/// Two stages that use the engine and write down the devices they were handed.
fn on_devices(devices: &str) -> Project {
    let stage = |name: &str, seed: u32| format!("[stages.{name}]\nkind = \"compute\"\nseed = {seed}\n");
    let engine = format!("name = \"toy\"\n[engine]\ndevices = {devices}\n");
    let project = Project::new(&(engine + &stage("one", 1) + &stage("two", 2)));
    let script = "sleep 0.3\nsed -n 's/.*\"devices\":\\[\\([^]]*\\)\\].*/\\1/p' \"$MCPRL_STAGE\" > \"$MCPRL_OUTPUT_NUMBER\"";
    project.kind("compute", "seeded", &format!("uses = [\"engine\"]\n{NUMBER}"), script);
    project.run(&[]);
    project
}

#[test]
fn two_stages_share_two_devices_and_take_turns_on_one() {
    let begun_before_the_other_ended =
        |project: &Project| moment(project, "started", "two") < moment(project, "finished", "one");
    let project = on_devices("[\"cuda:0\", \"cuda:1\"]");
    assert_eq!(project.result("one/number.txt"), "\"cuda:0\"");
    assert_eq!(project.result("two/number.txt"), "\"cuda:1\"");
    assert!(begun_before_the_other_ended(&project));

    let project = on_devices("[\"cpu\"]");
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
    assert_eq!(project.worked(), ["count[0001]/say", "early", "late", "start"]);
    let id = project.runs().pop().unwrap();
    assert!(failed.err.contains(&format!("`mcprl resume {id}` goes on")), "{}", failed.err);
    let plan = project.mcprl(&["plan", "run.toml"]);
    assert_eq!(plan.code, Some(0), "{}", plan.err);
}

#[test]
fn a_result_without_a_metric_that_a_loop_waits_for_since_is_worked_again() {
    let project = awaited("");
    project.run(&[]);
    project.worked();
    project.write("run.toml", &AWAITED.replace("UNTIL", UNTIL));
    let plan = project.mcprl(&["plan", "run.toml"]);
    assert_eq!(plan.code, Some(0), "{}", plan.err);
    assert!(
        plan.out.contains("its result lacks the metric `value`, which the loop waits for"),
        "{}",
        plan.out
    );
    assert_eq!(project.mcprl(&["run", "run.toml"]).code, Some(1));
    assert_eq!(project.worked(), ["count[0001]/say"]);
}
