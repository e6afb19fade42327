//! A stage that logs its rows, killed with SIGKILL between rows, within one, and while its result is published:
//! no finished row is lost or made again, and the bytes equal those of an undisturbed run.

use std::{collections::BTreeSet, os::unix::process::ExitStatusExt, path::PathBuf};

use crate::common::{self, Project};

fn project() -> Project {
    let settings = "group_size = 4\nprompts = 2\nrefill_waves = 0\nmax_turns = 1\nmax_turn_tokens = 4";
    Project::with_model(&common::episodes_run(settings))
}

const EPISODES: usize = 8;

/// The log of the one stage that has rows: its bytes, and the names in its whole frames.
fn log(project: &Project) -> (Vec<u8>, Vec<String>) {
    let inside =
        |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let logs = inside(project.path("cache/rows")).flat_map(inside);
    let logs: Vec<_> = logs.map(|log| std::fs::read(log).unwrap()).collect();
    assert!(logs.len() <= 1, "one stage journals rows");
    let bytes = logs.into_iter().next().unwrap_or_default();
    let mut names = Vec::new();
    let mut rest = bytes.as_slice();
    let length = |rest: &[u8], at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap()) as usize;
    while rest.len() >= 8 {
        let (name, row) = (length(rest, 0), length(rest, 4));
        let Some((frame, after)) = rest.split_at_checked(8 + name + row + 8) else { break };
        names.push(String::from_utf8(frame[8..8 + name].to_vec()).unwrap());
        rest = after;
    }
    (bytes, names)
}

/// Resumes or starts a run, and kills it at this failpoint.
fn die(project: &Project, place: &str) {
    let arguments: &[&str] =
        if project.path("cache/runs").exists() { &["resume", "latest"] } else { &["run", "run.toml"] };
    let output = project.command(arguments).env("MCPRL_FAILPOINT", place).output().unwrap();
    assert_eq!(output.status.signal(), Some(9), "{place}: {}", String::from_utf8_lossy(&output.stderr));
}

fn finished(project: &Project) -> Vec<u8> {
    let run = project.runs().pop().unwrap();
    let resumed = project.mcprl(&["resume", &run]);
    assert_eq!(resumed.code, Some(0), "{}", resumed.err);
    std::fs::read(project.path(&format!("cache/runs/{run}/rollout/trajectories.parquet"))).unwrap()
}

#[test]
fn killed_anywhere_around_its_rows_a_stage_loses_and_repeats_none() {
    let alone = project();
    alone.run(&[]);
    let expected = finished(&alone);

    let project = project();
    die(&project, "rows::recorded:3");
    let (first, names) = log(&project);
    assert_eq!(names.len(), 3);

    die(&project, "rows::torn:2");
    let (second, names) = log(&project);
    assert_eq!(names.len(), 4, "one more, and half of the next");
    assert!(second.starts_with(&first), "what was there is there");

    die(&project, "rows::torn:1");
    assert_eq!(log(&project).1.len(), 4, "torn again, and nothing lost");

    for place in ["runner::performed:1", "publish::hashed:1", "publish::renamed:1", "commit::before:1"] {
        die(&project, place);
        let (_, names) = log(&project);
        assert_eq!(names.len(), EPISODES, "{place}: no row is played twice");
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), EPISODES, "{place}: each row once");
    }
    die(&project, "commit::after:1");
    assert_eq!(finished(&project), expected);
    let again = project.run(&[]);
    assert!(again.err.contains("4 cached, 0 ran"), "{}", again.err);
}
