//! An exam over a server whose data has changed since its tasks were made.

use std::collections::BTreeSet;

use mcprl::data::{self, Replay, Scenario};

use crate::common::{Project, training_run};

const MCPRL: &str = env!("CARGO_BIN_EXE_mcprl");

/// Questions of families about the demo server, behind a script that changes what it says as `edit.sed` tells.
fn project() -> Project {
    let run = training_run("prompts = 1\ngroup_size = 2\nrefill_waves = 0")
        .replace("command = [\"{mcprl}\", \"demo-server\", \"sqlite\"]", "command = [\"sh\", \"server.sh\"]")
        .replace("state = \"read-only\"", "state = \"fresh-process\"")
        .replace(
            "source = \"file\"\nfile = \"tasks.jsonl\"",
            "questions_per_family = 2\nheldout_per_split = 12\nfamilies = \"families.toml\"",
        );
    let project = Project::with_model(&run);
    let families = concat!(env!("CARGO_MANIFEST_DIR"), "/pipelines/sqlite.families.toml");
    project.write("families.toml", &std::fs::read_to_string(families).unwrap());
    project.write("server.sh", &format!("{MCPRL} demo-server sqlite | sed -u -f edit.sed\n"));
    project.write("edit.sed", "");
    project
}

#[test]
fn an_exam_leaves_out_the_tasks_whose_answer_has_changed_since_they_were_made() {
    let project = project();
    project.run(&["--until", "tasks"]);
    let heldout: Vec<Scenario> = data::read(&project.newest().join("tasks/heldout.parquet")).unwrap();
    let answers = heldout.iter().filter_map(|task| task.answer.as_deref());
    let is_name = |answer: &&str| answer.chars().all(char::is_alphabetic);
    let name = answers.filter(is_name).min().expect("a task whose answer is a name").to_owned();
    let has = |task: &&Scenario| task.answer.as_deref().is_some_and(|answer| answer.contains(&name));
    let changed: BTreeSet<String> = heldout.iter().filter(has).map(|task| task.id.clone()).collect();
    assert!(
        !changed.is_empty() && 2 * changed.len() < heldout.len(),
        "{} of {}",
        changed.len(),
        heldout.len()
    );

    project.write("edit.sed", &format!("s/{name}/Elsewhere/g\n"));
    let ran = project.run(&[]).err;
    let noun = if changed.len() == 1 { "holds: its" } else { "hold: their" };
    let said = format!(
        "{} of {} tasks no longer {noun} answer has changed on the server",
        changed.len(),
        heldout.len()
    );
    assert!(ran.contains(&said), "{said}\n{ran}");
    let rows: Vec<Replay> = data::read(&project.newest().join("exam/replays.parquet")).unwrap();
    assert_eq!(rows.len(), heldout.len());
    let aged = rows.iter().filter(|row| row.holds == Some(false));
    assert!(aged.clone().all(|row| row.before.as_deref().is_some_and(|answer| answer.contains(&name))));
    assert_eq!(aged.map(|row| row.scenario_id.clone()).collect::<BTreeSet<_>>(), changed);
}
