//! Housekeeping: `cache gc` beside runs, `verify`, `export` and `import`.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use crate::common::{CHAIN, Project, until};

/// Three runs with results of their own.
fn three_runs() -> Project {
    let project = Project::new(CHAIN);
    for value in ["4", "10", "20"] {
        project.run(&["--set", &format!("stages.start.value={value}")]);
    }
    project.ran();
    project
}

#[test]
fn gc_keeps_the_newest_runs_and_a_dry_run_prints_what_it_would_remove() {
    let project = three_runs();
    let runs = project.runs();
    let all = project.json(&["cache", "ls"]);
    assert_eq!((&all["runs"], &all["results"]), (&3.into(), &9.into()));
    let gc = ["cache", "gc", "--keep-last", "1", "--grace", "0s"];
    let dry = project.json(&[&gc[..], &["--dry-run"]].concat());
    assert_eq!(project.json(&["cache", "ls"]), all);
    let wet = project.json(&gc);
    assert_eq!(dry["removed"], wet["removed"]);
    assert_eq!((&wet["removed"]["runs"], &wet["removed"]["records"]), (&2.into(), &6.into()));
    assert_eq!(project.runs(), runs[2..]);
    project.run(&["--set", "stages.start.value=20"]);
    assert_eq!(project.ran(), [""; 0]);
    project.run(&[]);
    assert_eq!(project.ran(), ["end", "middle", "start"]);
}

#[test]
fn gc_keeps_young_results_and_runs_of_other_names() {
    let project = three_runs();
    project.write("other.toml", &CHAIN.replace("\"toy\"", "\"other\"").replace("value = 4", "value = 30"));
    assert_eq!(project.mcprl(&["run", "other.toml"]).code, Some(0));
    // The default window is an hour: runs go, results stay.
    let young = project.json(&["cache", "gc", "--keep-last", "1"]);
    assert_eq!((&young["removed"]["runs"], &young["removed"]["records"]), (&2.into(), &0.into()));
    let none = project.json(&["cache", "gc", "--older-than", "1d", "--grace", "0s"]);
    assert_eq!(none["removed"]["runs"], 0);
    assert_eq!(project.runs().len(), 2);
}

#[test]
fn runs_that_start_during_gc_lose_no_input() {
    let project = Project::new(&CHAIN.replace("kind = \"step\"\n", "kind = \"step\"\nsleep = 0.02\n"));
    let over = AtomicBool::new(false);
    let swept = std::thread::scope(|scope| {
        let sweeping = scope.spawn(|| {
            let mut swept = 0;
            while !over.load(Ordering::Relaxed) {
                let gc = ["cache", "gc", "--keep-last", "0", "--grace", "0s"];
                let removed = project.json(&gc);
                swept += removed["removed"]["records"].as_u64().unwrap();
            }
            swept
        });
        for turn in 0..40 {
            // Between the runs there is time to sweep; and each meets results of the one before the last.
            std::thread::sleep(std::time::Duration::from_millis(turn % 4 * 7));
            let value = 4 + turn % 2 * 10;
            let run = project.mcprl(&[
                "run",
                "run.toml",
                "--set",
                &format!("stages.start.value={value}"),
                "--json",
            ]);
            let ended = run.out.lines().last().unwrap_or_default().to_owned();
            assert_eq!(run.code, Some(0), "turn {turn}: {}{}", run.out, run.err);
            assert!(ended.contains("\"failed\":0"), "{ended}");
        }
        over.store(true, Ordering::Relaxed);
        sweeping.join().unwrap()
    });
    assert!(swept > 0, "nothing was ever swept");
    let verified = project.mcprl(&["cache", "verify"]);
    assert_eq!(verified.code, Some(0), "{}", verified.out);
}

#[test]
fn gc_does_not_remove_an_active_run() {
    let project = Project::new(&CHAIN.replace("\"step\"", "\"gate\""));
    let mut run = project.spawn(&["run", "run.toml"]);
    until("the last stage runs", || project.has_begun("end"));
    assert!(project.mcprl(&["runs"]).out.contains("running"));
    project.json(&["cache", "gc", "--keep-last", "0", "--grace", "0s"]);
    project.open_gate();
    assert!(run.wait().unwrap().success());
    assert_eq!(project.result("end/number.txt"), "3");
    project.ran();
    project.run(&[]);
    assert_eq!(project.ran(), [""; 0]);
}

#[test]
fn verify_quarantines_damage_and_the_next_run_repairs_it() {
    let project = Project::new(CHAIN);
    project.run(&[]);
    project.ran();
    let whole = project.mcprl(&["cache", "verify"]);
    assert_eq!((whole.code, whole.out.as_str()), (Some(0), ""));
    let run = project.runs().pop().unwrap();
    let stored = std::fs::canonicalize(project.path(&format!("cache/runs/{run}/middle/number.txt"))).unwrap();
    std::fs::remove_file(&stored).unwrap();
    std::fs::write(&stored, "9\n").unwrap();
    let damaged = project.mcprl(&["cache", "verify"]);
    assert_eq!(damaged.code, Some(1));
    assert!(damaged.out.contains("its bytes changed since it was written"), "{}", damaged.out);
    project.run(&[]);
    assert_eq!(project.ran(), ["middle"]);
    assert_eq!(project.mcprl(&["cache", "verify"]).code, Some(0));
}

#[test]
fn a_run_exported_and_imported_elsewhere_is_cached_there() {
    let project = Project::new(CHAIN);
    project.run(&[]);
    let id = project.runs().pop().unwrap();
    let away = project.path("away");
    let away = away.to_str().unwrap();
    assert_eq!(project.json(&["cache", "export", "latest", "--to", away])["artifacts"], 3);

    let other = Project::new(CHAIN);
    assert_eq!(other.json(&["cache", "import", away])["records"], 3);
    assert_eq!(other.runs(), std::slice::from_ref(&id));
    other.run(&[]);
    assert_eq!(other.ran(), [""; 0]);
    assert_eq!(other.read(format!("cache/runs/{id}/end/number.txt")), "3\n");
    // What is there is not copied again.
    assert_eq!(other.json(&["cache", "import", away])["artifacts"], 0);
    // An export is a cache.
    assert_eq!(project.json(&["runs", "--cache", away])[0]["id"], id);
}

#[test]
fn damaged_or_foreign_folders_are_not_imported() {
    let project = Project::new(CHAIN);
    project.run(&[]);
    let away = project.path("away");
    let away = away.to_str().unwrap();
    project.json(&["cache", "export", "latest", "--to", away]);
    let run = project.runs().pop().unwrap();
    let stored = std::fs::canonicalize(project.path(&format!("away/runs/{run}/end/number.txt"))).unwrap();
    std::fs::remove_file(&stored).unwrap();
    std::fs::write(&stored, "9\n").unwrap();

    let other = Project::new(CHAIN);
    let refused = other.mcprl(&["cache", "import", away]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.err.contains("is damaged: its content does not match its digest"), "{}", refused.err);
    assert_eq!(other.mcprl(&["runs"]).out, "");
    other.run(&[]);
    assert_eq!(other.result("end/number.txt"), "3");

    let foreign = other.mcprl(&["cache", "import", "stages"]);
    assert_eq!(foreign.code, Some(1));
    assert!(foreign.err.starts_with("error: stages is not a cache"), "{}", foreign.err);
    assert_eq!(other.mcprl(&["cache", "import", "cache"]).code, Some(2));
}

/// A damage to the newest run's journal, and what `runs` and `cache gc` say of it.
fn check_unreadable(damage: impl Fn(&Path), expected: &str) {
    let project = three_runs();
    let run = project.runs().pop().unwrap();
    let journal = project.newest().join("journal.jsonl");
    damage(&journal);
    assert_eq!(project.runs().pop().unwrap(), run, "it is still the newest run");
    let listed = project.mcprl(&["runs"]).out;
    assert!(listed.contains(&format!("its journal cannot be read: {expected}")), "{listed}");
    let all = project.json(&["cache", "ls"]);
    let gc = ["cache", "gc", "--keep-last", "3", "--grace", "0s"];
    let by_age = ["cache", "gc", "--older-than", "1d", "--grace", "0s"];
    for gc in [&[&gc[..], &["--dry-run"]].concat()[..], &gc, &by_age] {
        let refused = project.mcprl(gc);
        assert_eq!(refused.code, Some(1), "{}", refused.err);
        let place = format!("cannot read cache/runs/{run}/journal.jsonl, by which");
        assert!(refused.err.contains(&place) && refused.err.contains(expected), "{}", refused.err);
        assert!(
            refused.err.contains(&format!("nothing was removed; restore it, or let `mcprl resume {run}`"))
        );
    }
    assert_eq!(project.json(&["cache", "ls"]), all);
    if journal.is_dir() {
        std::fs::remove_dir(journal).unwrap();
    }
    assert_eq!(project.mcprl(&["resume", &run]).code, Some(0));
    let swept = project.json(&gc);
    assert_eq!((&swept["removed"]["runs"], &swept["removed"]["records"]), (&0.into(), &0.into()));
    assert_eq!(project.ran(), [""; 0]);
}

#[test]
fn gc_removes_nothing_while_the_journal_of_a_kept_run_cannot_be_read() {
    let text = |journal: &Path| std::fs::read_to_string(journal).unwrap();
    let lacks = "it lacks results of the run";
    check_unreadable(|journal| std::fs::write(journal, "").unwrap(), lacks);
    check_unreadable(|journal| std::fs::remove_file(journal).unwrap(), lacks);
    check_unreadable(
        |journal| std::fs::write(journal, &text(journal)[..text(journal).len() / 3]).unwrap(),
        lacks,
    );
    check_unreadable(
        |journal| std::fs::write(journal, text(journal).replacen("\"finished\"", "\"finis#ed\"", 1)).unwrap(),
        "its line 3 is damaged",
    );
    // A key that is one, but not the stage's.
    check_unreadable(
        |journal| {
            let mut bytes = std::fs::read(journal).unwrap();
            let at = text(journal).rfind(r#""key":""#).unwrap() + r#""key":""#.len();
            bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
            std::fs::write(journal, bytes).unwrap();
        },
        "its line ",
    );
    check_unreadable(
        |journal| {
            std::fs::remove_file(journal).unwrap();
            std::fs::create_dir(journal).unwrap();
        },
        "Is a directory",
    );
}

#[test]
fn gc_keeps_the_results_of_a_run_killed_within_a_line() {
    let project = three_runs();
    let journal = project.newest().join("journal.jsonl");
    let text = std::fs::read_to_string(&journal).unwrap();
    std::fs::write(&journal, &text[..text.len() - 9]).unwrap();
    let swept = project.json(&["cache", "gc", "--grace", "0s"]);
    assert_eq!(swept["removed"]["records"], 0);
}

#[test]
fn gc_prints_what_its_grace_period_keeps() {
    let project = three_runs();
    let output = project.mcprl(&["cache", "gc", "--keep-last", "1", "--dry-run"]).err;
    assert!(output.contains("would remove 2 runs, 0 results and 0 artifacts"), "{output}");
    assert!(
        output.contains("6 results and ") && output.contains("they are younger than 60 min 0 s (`--grace`)"),
        "{output}"
    );
    let young = &project.json(&["cache", "gc", "--keep-last", "1", "--dry-run"])["removed"]["young"];
    assert_eq!((&young["records"], &young["seconds"]), (&6.into(), &3600.into()));
    let all = project.mcprl(&["cache", "gc", "--keep-last", "2", "--grace", "0s"]).err;
    assert!(all.contains("removed 1 run, ") && !all.contains("younger"), "{all}");
}
