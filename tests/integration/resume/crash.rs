//! Runs killed with SIGKILL at every step and at random: no finished result is lost or made again, nothing
//! half-written is read, and the bytes equal those of an undisturbed run.
//!
//! `cargo test --release --test integration crash` kills some dozens of times; with `-- --ignored crash` in place of
//! `crash`, more than five hundred times.

use std::{
    collections::BTreeSet,
    os::unix::process::ExitStatusExt,
    process::Stdio,
    time::{Duration, Instant},
};

use crate::common::{self, Project, until};

const TOY: &str = r#"
name = "toy"

[stages.start]
kind = "gen"
value = 3

[stages.left]
kind = "half"
from = "start"

[loop.count]
iterations = 3
carry = { number = "start" }

[loop.count.stages.step]
kind = "step"
from = "@number"
yields = "number"

[stages.end]
kind = "sum"
parts = { left = "left", right = "count.number" }
"#;

/// Every failpoint that a run of command stages reaches.
const PLACES: [&str; 11] = [
    "run::folder",
    "run::described",
    "journal::torn",
    "runner::begun",
    "runner::performed",
    "publish::hashed",
    "publish::renamed",
    "commit::before",
    "commit::after",
    "runner::linked",
    "sync::synced",
];

/// Stages with a record, each by its name.
fn recorded(project: &Project) -> BTreeSet<String> {
    let items = std::fs::read_dir(project.path("cache/ac")).into_iter().flatten().flatten();
    let records = items.filter(|item| item.path().extension().is_some_and(|end| end == "json"));
    let stage = |item: std::fs::DirEntry| {
        let record: serde_json::Value = serde_json::from_slice(&std::fs::read(item.path()).unwrap())
            .expect("a record is never half-written");
        record["stage"].as_str().unwrap().to_owned()
    };
    records.map(stage).collect()
}

/// The arguments that resume the newest run, or start one.
fn next_arguments(project: &Project) -> Vec<String> {
    let runs = std::fs::read_dir(project.path("cache/runs")).into_iter().flatten().flatten();
    let mut runs: Vec<String> = runs
        .filter(|item| item.path().join("run.toml").exists())
        .map(|item| item.file_name().into_string().unwrap())
        .collect();
    runs.sort();
    match runs.pop() {
        Some(id) => vec!["resume".into(), id],
        None => vec!["run".into(), "run.toml".into()],
    }
}

fn next_run(project: &Project) -> std::process::Command {
    let arguments = next_arguments(project);
    let mut command = project.command(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Waits for programs of stages that outlive a killed run, so that their log lines are not attributed to the next run.
fn wait_for_programs(project: &Project) {
    let folder = std::fs::canonicalize(project.path(".")).unwrap();
    let within = |process: std::fs::DirEntry| {
        std::fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(folder.join("cache")))
    };
    until("the programs end", || !std::fs::read_dir("/proc").unwrap().flatten().any(within));
}

/// Concurrent runs may each have a folder; every finished one has the same result.
fn check_result(project: &Project, place: &str) {
    let runs = std::fs::read_dir(project.path("cache/runs")).unwrap().flatten();
    let results = runs.filter_map(|run| std::fs::read_to_string(run.path().join("end/number.txt")).ok());
    let results: BTreeSet<String> = results.collect();
    assert_eq!(results, BTreeSet::from(["7\n".to_owned()]), "after {place}");
}

/// Resumes, and checks that nothing recorded before the kill runs again.
fn check_resume(project: &Project, before: &BTreeSet<String>, place: &str) {
    wait_for_programs(project);
    project.ran();
    assert!(next_run(project).status().unwrap().success(), "after {place}");
    let again: Vec<_> = project.ran().into_iter().filter(|stage| before.contains(stage)).collect();
    assert_eq!(again, [""; 0], "finished before {place} and ran again");
    check_result(project, place);
    let verified = project.mcprl(&["cache", "verify"]);
    assert_eq!((verified.code, verified.out.as_str()), (Some(0), ""), "after {place}: {}", verified.err);
    let clean = project.run(&[]);
    assert!(clean.err.contains("6 cached, 0 ran"), "after {place}: {}", clean.err);
}

#[test]
fn killed_at_any_step_of_any_stage_it_loses_nothing() {
    let mut died = 0;
    for place in PLACES {
        for count in [1, 2, 5] {
            let project = Project::new(TOY);
            let place = format!("{place}:{count}");
            let status = next_run(&project).env("MCPRL_FAILPOINT", &place).status().unwrap();
            if status.success() {
                // A run comes to some places fewer times.
                assert!(place.starts_with("run::"), "{place} was not reached");
                continue;
            }
            assert_eq!(status.signal(), Some(9), "{place}");
            died += 1;
            check_resume(&project, &recorded(&project), &place);
        }
    }
    assert_eq!(died, 29);
}

#[test]
fn killed_again_while_resuming_it_loses_nothing() {
    for place in ["journal::torn:2", "publish::renamed:1", "commit::before:1", "commit::after:1"] {
        let project = Project::new(TOY);
        let mut attempts = 0;
        let mut before = BTreeSet::new();
        while recorded(&project).len() < 6 {
            if next_run(&project).env("MCPRL_FAILPOINT", place).status().unwrap().success() {
                break;
            }
            attempts += 1;
            assert!(attempts < 40, "{place}: no progress");
            let now = recorded(&project);
            assert!(now.is_superset(&before), "{place}: a record is gone");
            before = now;
            if place.starts_with("commit::before") || place.starts_with("journal") {
                // It dies at the same place each time: let one stage pass.
                next_run(&project).env("MCPRL_FAILPOINT", "commit::after:1").status().unwrap();
            }
        }
        check_resume(&project, &recorded(&project), place);
    }
}

/// A linear congruence: the same kills every time for one seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Kills runs of a new project at random moments until it is done. Several at once share the store.
fn kill_at_random(dice: &mut Dice, at_once: usize) -> u32 {
    let project = Project::new(TOY);
    let mut kills = 0;
    let mut before = BTreeSet::new();
    loop {
        project.ran();
        let mut runs: Vec<_> = (0..at_once).map(|_| next_run(&project).spawn().unwrap()).collect();
        std::thread::sleep(Duration::from_millis(3 + dice.below(60)));
        let mut done = 0;
        for run in &mut runs {
            if run.try_wait().unwrap().is_some() {
                done += 1;
                continue;
            }
            run.kill().unwrap();
            run.wait().unwrap();
            kills += 1;
        }
        wait_for_programs(&project);
        let ran = project.ran();
        assert!(ran.iter().all(|stage| !before.contains(stage)), "{ran:?} after {before:?}");
        let now = recorded(&project);
        assert!(now.is_superset(&before), "a record is gone");
        before = now;
        if done == at_once || kills > 60 {
            break;
        }
    }
    check_resume(&project, &recorded(&project), "random kills");
    kills
}

#[test]
fn killed_at_random_it_loses_nothing() {
    let mut dice = Dice(1);
    let kills: u32 = [1, 1, 2, 8].into_iter().map(|at_once| kill_at_random(&mut dice, at_once)).sum();
    assert!(kills >= 12, "{kills}");
}

#[test]
#[ignore = "minutes: more than five hundred kills"]
fn crash_five_hundred_times() {
    let began = Instant::now();
    let seed = std::env::var("CRASH_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    let mut dice = Dice(seed);
    let mut kills = 0;
    let mut projects = 0;
    while kills < 500 {
        kills += kill_at_random(&mut dice, [1, 1, 1, 2, 8][projects % 5]);
        projects += 1;
    }
    for count in 1..=12 {
        for place in PLACES {
            let project = Project::new(TOY);
            let place = format!("{place}:{count}");
            if !next_run(&project).env("MCPRL_FAILPOINT", &place).status().unwrap().success() {
                kills += 1;
                check_resume(&project, &recorded(&project), &place);
            }
        }
    }
    let seconds = began.elapsed().as_secs();
    assert!(kills >= 500, "{kills} kills in {projects} projects, {seconds} s");
}

#[test]
fn eight_concurrent_runs_run_each_stage_once() {
    let project = Project::new(TOY);
    let mut runs: Vec<_> = (0..8).map(|_| project.spawn(&["run", "run.toml"])).collect();
    for run in &mut runs {
        assert!(run.wait().unwrap().success());
    }
    assert_eq!(project.ran().len(), 6);
    assert_eq!(project.result("end/number.txt"), "7");
}

#[test]
fn a_run_with_a_torn_journal_is_still_shown() {
    let project = Project::new(TOY);
    project.run(&[]);
    let id = project.runs().pop().unwrap();
    let journal = project.path(&format!("cache/runs/{id}/journal.jsonl"));
    let whole = std::fs::read(&journal).unwrap();
    for cut in [whole.len() - 1, whole.len() / 2, 1, 0] {
        std::fs::write(&journal, &whole[..cut]).unwrap();
        assert_eq!(project.mcprl(&["show", &id]).code, Some(0), "cut at {cut}");
        assert_eq!(project.mcprl(&["resume", &id]).code, Some(0), "cut at {cut}");
    }
    project.ran();
    project.run(&[]);
    assert_eq!(project.ran(), [""; 0]);
}

#[test]
fn with_all_timestamps_in_the_future_results_are_found_and_kept() {
    // As after a clock that was set back.
    let project = Project::new(TOY);
    project.run(&[]);
    project.ran();
    let tomorrow = std::time::SystemTime::now() + Duration::from_secs(86400);
    let mut folders = vec![project.path("cache"), project.path("stages")];
    while let Some(folder) = folders.pop() {
        for item in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let path = item.path();
            if path.is_symlink() {
                continue;
            }
            std::fs::File::open(&path).unwrap().set_modified(tomorrow).unwrap();
            if path.is_dir() {
                folders.push(path);
            }
        }
    }
    let swept = project.mcprl(&["cache", "gc", "--keep-last", "0", "--grace", "1s", "--json"]);
    let swept: serde_json::Value = serde_json::from_str(&swept.out).unwrap();
    assert_eq!((&swept["removed"]["records"], &swept["removed"]["artifacts"]), (&0.into(), &0.into()));
    project.run(&[]);
    assert_eq!(project.ran(), [""; 0]);
}

/// Runs a script in a mount namespace of its own; none where the machine allows no such thing.
fn in_namespace(project: &Project, script: &str) -> Option<common::CommandOutput> {
    let allowed = std::process::Command::new("unshare").args(["-rm", "true"]).status();
    if !allowed.is_ok_and(|status| status.success()) {
        return None;
    }
    let mut command = std::process::Command::new("unshare");
    command.args(["-rm", "sh", "-c", script, env!("CARGO_BIN_EXE_mcprl")]);
    command.current_dir(project.path(".")).env("TOY_LOG", project.path("log"));
    Some(common::output(&mut command))
}

#[test]
fn a_full_disk_stops_the_run_with_a_hint_and_it_continues_once_there_is_space() {
    let project = Project::new(TOY);
    std::fs::create_dir(project.path("cache")).unwrap();
    let script = "mount -t tmpfs -o size=300k none cache || exit 77\n\
        $0 run run.toml --set stages.start.value=9 || exit 78\n\
        dd if=/dev/zero of=cache/filler bs=1k count=400 2>/dev/null\n\
        $0 run run.toml; echo code $?\n\
        rm cache/filler\n\
        $0 cache verify || exit 79\n\
        $0 run run.toml || exit 80\n\
        echo sum $(cat cache/runs/*/end/number.txt)";
    let Some(output) = in_namespace(&project, script) else { return };
    if output.code == Some(77) {
        return;
    }
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    assert!(output.out.contains("code 1"), "{}", output.out);
    assert!(
        output.err.contains("error: ") && output.err.contains("no space left while writing"),
        "{}",
        output.err
    );
    assert!(output.err.contains("hint: finished results are kept"), "{}", output.err);
    let sums = output.out.lines().last().unwrap_or_default();
    assert!(sums.split_whitespace().any(|sum| sum == "7"), "{}", output.out);
}

#[test]
fn a_read_only_cache_is_read_and_not_written() {
    let project = Project::new(TOY);
    project.run(&[]);
    let script = "mount --bind cache cache && mount -o remount,ro,bind cache || exit 77\n\
        $0 plan run.toml || exit 78\n\
        $0 run run.toml || exit 79\n\
        $0 runs || exit 80\n\
        $0 show latest/end || exit 81\n\
        $0 plan run.toml --set stages.start.value=4 || exit 82\n\
        for more in 'run run.toml --set stages.start.value=4' 'cache gc --keep-last 0 --grace 0s'; do\n\
            $0 $more; echo code $?\n\
        done";
    let Some(output) = in_namespace(&project, script) else { return };
    if output.code == Some(77) {
        return;
    }
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    assert!(output.err.contains("6 cached, 0 ran"), "{}", output.err);
    assert_eq!(output.err.matches("note: the cache cannot be written").count(), 1, "{}", output.err);
    assert_eq!(output.out.matches("code 1").count(), 2, "{}{}", output.out, output.err);
    assert_eq!(output.err.matches("error: the cache cannot be written").count(), 2, "{}", output.err);
    project.ran();
    project.run(&[]);
    assert_eq!(project.ran(), [""; 0]);
}
