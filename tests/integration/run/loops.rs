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
