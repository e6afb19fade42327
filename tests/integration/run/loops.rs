//! Loops: how they end, what a lag reads, and runs up to an iteration.

use crate::common::{Project, without_times};

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
         [metrics]\nsignal = \"Share.\"\ntrust = \"J.\"\nall_right = \"Share.\"\nall_wrong = \"Share.\"\n",
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
fn a_loop_whose_judge_is_not_trusted_over_its_iterations_ends_with_what_there_is() {
    // Each interval of J is wide, [0.1, 0.4]; that of three is not.
    for (tasks, iterations) in [(10, 3), (0, 6)] {
        let tasks = if tasks > 0 { format!(", \\\"trust_tasks\\\": {tasks}") } else { String::new() };
        let project = idle_from(9, &format!("\\\"trust\\\": 0.15, \\\"trust_high\\\": 0.4{tasks}"));
        let done = project.mcprl(&["run", "run.toml"]);
        assert_eq!(done.code, Some(0), "{}", done.err);
        let ran = project.ran().into_iter().filter(|name| name.starts_with("count")).count();
        assert_eq!(ran, iterations);
    }
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

/// A loop that counts from 1, whose numbers measure as these values do, from that of 1 on.
fn measured(values: &str, best: &str) -> Project {
    let project = Project::new(&format!(
        "name = \"toy\"\n\n[stages.start]\nkind = \"gen\"\nvalue = 1\n\n[stages.first]\nkind = \"measure\"\nof = \"start\"\n\n\
         [loop.count]\niterations = 6\ncarry = {{ number = \"start\" }}\n{best}\n\n[loop.count.stages.step]\nkind = \"step\"\n\
         from = \"@number\"\nyields = \"number\"\n\n[loop.count.stages.dev]\nkind = \"measure\"\nof = \"step\"\n\n[stages.end]\n\
         kind = \"half\"\nfrom = \"count.number\"\n"
    ));
    project.kind(
        "measure",
        "seeded",
        "[inputs.of]\ntype = \"number\"\n[outputs.report]\ntype = \"number\"\npath = \"value.txt\"\n[metrics]\nsuccess = \"Share.\"\n",
        &format!(
            "set -- {values}\nshift $(($(cat \"$MCPRL_INPUT_OF\") - 1))\necho $1 > \"$MCPRL_OUTPUT_REPORT\"\n\
             echo \"{{\\\"success\\\": $1}}\" > \"$MCPRL_METRICS\""
        ),
    );
    project
}

const BEST: &str = "best = { metric = \"dev.success\", start = \"first.success\"";

/// How often a stage of the loop ran.
fn times(project: &Project, stage: &str) -> usize {
    project.ran().iter().filter(|name| name.starts_with("count") && name.ends_with(stage)).count()
}

#[test]
fn a_loops_result_is_the_iteration_that_measures_best_and_it_ends_where_measurements_do_not_rise() {
    let project = measured("0.5 0.6 0.8 0.7 0.6 0.5 0.9", &format!("{BEST} }}"));
    for ran in [5, 0] {
        let done = project.mcprl(&["run", "run.toml"]);
        assert_eq!(done.code, Some(0), "{}", done.err);
        let said = "loop \"count\": its result is that of iteration 2 (success by iteration: start 0.500, 1: 0.600, 2: 0.800, \
                    3: 0.700, 4: 0.600, 5: 0.500)";
        assert!(done.err.contains(said), "{}", done.err);
        assert_eq!(times(&project, "dev"), ran, "the same, once everything is cached");
        assert_eq!(project.result("end/number.txt"), "1", "half of the 3 that iteration 2 makes");
    }
}

#[test]
fn where_every_iteration_is_worse_the_result_is_the_start() {
    let project = measured("0.5 0 0 0 0 0 0", &format!("{BEST} }}"));
    let done = project.mcprl(&["run", "run.toml"]);
    assert!(done.err.contains("no iteration is better than its start, which is its result"), "{}", done.err);
    assert_eq!(times(&project, "step"), 3);
    assert_eq!(project.result("end/number.txt"), "0");
}

#[test]
fn a_measurement_in_every_second_iteration_has_no_stage_in_the_others() {
    let project = measured("0.1 0.2 0.3 0.4 0.5 0.6 0.7", &format!("{BEST}, every = 4 }}"));
    let done = project.mcprl(&["run", "run.toml"]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    let ran = project.ran();
    let dev: Vec<&String> = ran.iter().filter(|name| name.ends_with("dev")).collect();
    assert_eq!(dev, ["count[0004]/dev", "count[0006]/dev"]);
    assert_eq!(project.result("end/number.txt"), "3", "half of the 7 that the last iteration makes");
    let plan = project.mcprl(&["plan", "run.toml"]);
    assert!(!plan.out.contains("0001]/dev"), "{}", plan.out);
}

#[test]
fn a_loop_whose_condition_does_not_hold_leaves_what_it_starts_from() {
    for (at_least, ran) in [("0.4", 6), ("0.6", 0)] {
        let begins = format!("if = {{ metric = \"first.success\", at_least = {at_least} }}");
        let project = measured("0.5 0 0 0 0 0 0", &begins);
        let done = project.mcprl(&["run", "run.toml"]);
        assert_eq!(done.code, Some(0), "{}", done.err);
        assert_eq!(times(&project, "step"), ran);
        let said =
            "loop \"count\" did not begin, because `first.success` is 0.5: its result is what it starts from";
        assert_eq!(done.err.contains(said), ran == 0, "{}", done.err);
        let plan = project.mcprl(&["plan", "run.toml"]).out;
        let shown = plan.contains("step, dev: it does not begin");
        assert_eq!(shown, ran == 0, "{plan}");
        for text in [&done.err, &plan] {
            assert!(!text.contains("has ended") && !text.contains("it ended"), "it never began: {text}");
        }
        assert_eq!(project.result("end/number.txt"), if ran == 0 { "0" } else { "3" });
    }
}

#[test]
fn a_goal_of_the_stage_that_measures_is_asked_where_it_ran() {
    let until = "until = { metric = \"dev.success\", at_least = 0.5 }";
    let project = measured("0.1 0.2 0.3 0.4 0.5 0.6 0.7", &format!("{until}\n{BEST}, every = 2 }}"));
    let done = project.mcprl(&["run", "run.toml"]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    let ran = project.ran();
    let steps = ran.iter().filter(|name| name.starts_with("count") && name.ends_with("step"));
    assert_eq!(steps.count(), 4, "{ran:?}");
    assert_eq!(project.result("end/number.txt"), "2", "half of the 5 that the fourth iteration makes");
}

#[test]
fn false_removes_the_rules_of_a_loop() {
    let begins = "if = { metric = \"first.success\", at_least = 0.6 }";
    let project = measured("0.5 0 0 0 0 0 0", &format!("{begins}\n{BEST} }}"));
    let off = ["run", "run.toml", "--set", "loop.count.if=false", "--set", "loop.count.best=false"];
    let done = project.mcprl(&off);
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert_eq!(project.result("end/number.txt"), "3", "half of the 7 that the last iteration makes");
}

#[test]
fn a_best_that_cannot_be_measured_is_a_mistake_at_its_place() {
    for (best, expected) in [
        (
            "best = { metric = \"dev.wins\", start = \"first.success\" }",
            "no stage of loop \"count\" reports \"dev.wins\"",
        ),
        (
            "best = { metric = \"dev.success\", start = \"dev.success\" }",
            "no stage outside loops reports \"dev.success\"",
        ),
        ("best = { metric = \"dev.success\", start = \"first.success\", every = 0 }", "every"),
        ("if = { metric = \"first.success\" }", "needs `at_least` or `at_most`"),
    ] {
        let refused = measured("0.5", best).mcprl(&["plan", "run.toml"]);
        assert_eq!(refused.code, Some(2), "{best}");
        assert!(refused.err.contains(expected), "{best}: {}", refused.err);
    }
}
