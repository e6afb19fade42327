//! `mcprl episodes`: transcripts in the terminal.

use std::collections::BTreeSet;

use mcprl::data::{self, Trajectory, VerdictRow};

use crate::common::{Project, training_run};

fn played() -> Project {
    let project = Project::with_model(&training_run("group_size = 2"));
    project.run(&[]);
    project
}

#[test]
fn episodes_are_printed_as_transcripts_with_task_answer_and_outcome() {
    let project = played();
    let all = project.mcprl(&["episodes", "latest/exam", "--policy", "base"]);
    assert_eq!(all.code, Some(0), "{}", all.err);
    let begins = |name: &str| all.out.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!(begins("task "), begins("answer "), "{}", all.out);
    assert!(begins("task ") > 0 && begins("expected ") > 0, "{}", all.out);
    assert!(all.out.contains(" · exam · base · "), "{}", all.out);
    // The model's turns are too short for a call, so that nothing is right.
    let wrong = project.mcprl(&["episodes", "latest/exam", "--wrong", "-n", "1"]).out;
    assert!(wrong.starts_with("1 of ") && wrong.contains(" wrong · exam · "), "{wrong}");
    assert_eq!(wrong.lines().filter(|line| line.starts_with("task ")).count(), 1, "{wrong}");
    assert!(wrong.lines().any(|line| line.starts_with("wrong     ")), "{wrong}");
    assert!(wrong.contains("max_turn"), "a limit is named by its key: {wrong}");
    let rollout = project.mcprl(&["episodes", "latest/rollout", "--right"]).out;
    assert_eq!(rollout, "no right episodes\n");
    let json = project.json(&["episodes", "latest/rollout", "-n", "2"]);
    assert_eq!(json["episodes"].as_array().unwrap().len(), 2);
}

#[test]
fn episodes_of_one_task_are_found_by_the_start_of_its_id() {
    let project = played();
    let json = project.json(&["episodes", "latest/rollout", "-n", "1"]);
    let id = json["episodes"][0]["episode"]["scenario"].as_str().unwrap();
    let found = project.json(&["episodes", "latest/rollout", "--task", &id[..id.len().min(8)], "-n", "9"]);
    assert_eq!(found["matching"], 2, "both of its group");
}

#[test]
fn unknown_names_of_episodes_are_errors_with_what_was_meant() {
    let project = played();
    let kind =
        project.json(&["episodes", "latest/exam", "-n", "1"])["episodes"][0]["episode"]["family"].clone();
    let near = format!("{}x", kind.as_str().unwrap());
    for (arguments, said) in [
        (&["episodes", "latest/exan"][..], "did you mean \"exam\"?"),
        (&["episodes", "latest/tools"], "name one of exam, rollout"),
        (&["episodes", "latest/exam", "--policy", "bse"], "did you mean \"base\"?"),
        (&["episodes", "latest/exam", "--kind", &near], "did you mean"),
        (&["episodes", "nothing"], "hint: "),
    ] {
        let refused = project.mcprl(arguments);
        assert_eq!(refused.code, Some(2), "{arguments:?}: {}", refused.err);
        assert!(refused.err.contains(said), "{arguments:?}: {}", refused.err);
    }
}

#[test]
fn a_policy_under_two_names_is_examined_under_both_and_plays_once() {
    let both = training_run("group_size = 2").replace("trained = \"update\"", "again = \"base\"");
    let project = Project::with_model(&both);
    project.run(&["--until", "exam"]);
    let played: Vec<Trajectory> = data::read(&project.newest().join("exam/episodes.parquet")).unwrap();
    let attempts: BTreeSet<_> = played.iter().map(|one| (&one.scenario_id, one.sample)).collect();
    assert_eq!(attempts.len(), played.len(), "each attempt is played once");
    let verdict: Vec<VerdictRow> = data::read(&project.newest().join("exam/verdict.parquet")).unwrap();
    let of = |policy: &str| -> Vec<f64> {
        verdict.iter().filter(|row| row.policy == policy).map(|row| row.success).collect()
    };
    assert!(!of("base").is_empty());
    assert_eq!(of("again"), of("base"));
}
