//! What a stage must write, when it is sampled anew, and what it leaves for others if it fails.

use crate::common::{CHAIN, Project, SLOW};

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
