//! Housekeeping at its outside: gc beside runs, verify, export and import, and what is shown of earlier runs.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::Project;
use serde_json::Value;

const CHAIN: &str = r#"
name = "toy"

[stages.start]
kind = "gen"
value = 4

[stages.middle]
kind = "half"
from = "start"

[stages.end]
kind = "step"
from = "middle"
"#;

fn json(project: &Project, arguments: &[&str]) -> Value {
    let output = project.mcprl(&[arguments, &["--json"]].concat());
    assert_eq!(output.code, Some(0), "{}", output.err);
    serde_json::from_str(&output.out).unwrap_or_else(|cause| panic!("{cause}: {}", output.out))
}

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
    let all = json(&project, &["cache", "ls"]);
    assert_eq!((&all["runs"], &all["results"]), (&3.into(), &9.into()));
    let gc = ["cache", "gc", "--keep-last", "1", "--grace", "0s"];
    let dry = json(&project, &[&gc[..], &["--dry-run"]].concat());
    assert_eq!(json(&project, &["cache", "ls"]), all);
    let wet = json(&project, &gc);
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
    let young = json(&project, &["cache", "gc", "--keep-last", "1"]);
    assert_eq!((&young["removed"]["runs"], &young["removed"]["records"]), (&2.into(), &0.into()));
    let none = json(&project, &["cache", "gc", "--older-than", "1d", "--grace", "0s"]);
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
                let removed = json(&project, &gc);
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
    let project = Project::new(&CHAIN.replace("kind = \"step\"\n", "kind = \"step\"\nsleep = 3.0\n"));
    let mut run = project.spawn(&["run", "run.toml"]);
    while project.mcprl(&["runs"]).out.is_empty() || !project.path("log").exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(project.mcprl(&["runs"]).out.contains("running"));
    json(&project, &["cache", "gc", "--keep-last", "0", "--grace", "0s"]);
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
    assert_eq!(json(&project, &["cache", "export", "latest", "--to", away])["artifacts"], 3);

    let other = Project::new(CHAIN);
    assert_eq!(json(&other, &["cache", "import", away])["records"], 3);
    assert_eq!(other.runs(), std::slice::from_ref(&id));
    other.run(&[]);
    assert_eq!(other.ran(), [""; 0]);
    assert_eq!(other.read(format!("cache/runs/{id}/end/number.txt")), "3\n");
    // What is there is not copied again.
    assert_eq!(json(&other, &["cache", "import", away])["artifacts"], 0);
    // An export is a cache.
    assert_eq!(json(&project, &["runs", "--cache", away])[0]["id"], id);
}

#[test]
fn damaged_or_foreign_folders_are_not_imported() {
    let project = Project::new(CHAIN);
    project.run(&[]);
    let away = project.path("away");
    let away = away.to_str().unwrap();
    json(&project, &["cache", "export", "latest", "--to", away]);
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

#[test]
fn a_stage_is_shown_with_its_artifacts_their_origin_metrics_and_key() {
    let project = Project::new(CHAIN);
    project.run(&[]);
    let output = project.mcprl(&["show", "latest/end"]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    for part in
        ["end: ran in", "because first time", "from middle.number", "number.txt", "value", "key fields"]
    {
        assert!(output.out.contains(part), "{part} in {}", output.out);
    }
    let stage = json(&project, &["show", "latest/end"]);
    assert_eq!(stage["inputs"][0]["from"], "middle.number");
    assert_eq!(stage["metrics"]["value"], 3.0);
    assert_eq!(stage["fields"]["kind"], "step");
    assert!(std::path::Path::new(stage["outputs"][0]["path"].as_str().unwrap()).ends_with("number.txt"));

    let run = json(&project, &["show", "latest"]);
    assert_eq!((&run["state"], run["stages"].as_array().unwrap().len()), (&"finished".into(), 3));
    let runs = json(&project, &["runs"]);
    assert_eq!((&runs[0]["ran"], &runs[0]["cached"]), (&3.into(), &0.into()));
}

#[test]
fn runs_are_listed_with_their_seeds_overrides_and_success() {
    let project = Project::new(&CHAIN.replace("name = \"toy\"", "name = \"toy\"\nseed = 4"));
    let metrics =
        "echo '{\"all.a.greedy\": 0.25, \"all.b.greedy\": 0.75, \"all.b.gain\": 0.5, \"all.gain\": 0.5}'";
    let card =
        "[inputs.from]\ntype = \"number\"\n[outputs.number]\ntype = \"number\"\npath = \"number.txt\"\n";
    let script = format!("{metrics} > $MCPRL_METRICS\ncp $MCPRL_INPUT_FROM $MCPRL_OUTPUT_NUMBER");
    project.kind("judged", "pure", card, &script);
    let exam = "[stages.exam]\nkind = \"judged\"\nfrom = \"end\"\n";
    project.write("run.toml", &(project.read("run.toml") + exam));
    project.run(&[]);
    project.run(&["--set", "seed=9", "--set", "stages.start.value=7"]);
    let text = project.mcprl(&["runs"]).out;
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{text}");
    for (line, words) in [
        (0, &["RUN", "STATE", "SEED", "SUCCESS", "TOOK"][..]),
        (1, &["toy-", "finished", "4", "0.250 → 0.750"]),
        (2, &["toy-", "finished", "9", "0.250 → 0.750"]),
        (3, &["  --set seed=9 --set stages.start.value=7"]),
    ] {
        assert!(words.iter().all(|word| lines[line].contains(word)), "{words:?}\n{text}");
    }
    let runs = json(&project, &["runs"]);
    assert_eq!(runs[0]["seed"], 4);
    assert_eq!((&runs[1]["seed"], &runs[1]["set"][0]), (&9.into(), &"seed=9".into()));
    assert_eq!(runs[1]["headline"]["success"], 0.75);
}

#[test]
fn a_stage_is_shown_by_every_spelling_and_by_the_path_that_was_printed() {
    let project = Project::new(
        "name = \"toy\"\n[stages.start]\nkind = \"gen\"\n[loop.count]\niterations = 2\ncarry = { number = \"start\" }\n\
         [loop.count.stages.step]\nkind = \"step\"\nfrom = \"@number\"\nyields = \"number\"\n",
    );
    project.run(&[]);
    let id = project.runs().pop().unwrap();
    let path = format!("cache/runs/{id}/count.0002/step/number.txt");
    for (name, expected) in [
        ("latest/count[0002]/step", "count[0002]/step"),
        ("latest/count[2]/step", "count[0002]/step"),
        ("latest/count.0002/step", "count[0002]/step"),
        ("latest/count.0001/step/number.txt", "count[0001]/step"),
        ("latest/count.step", "count[0002]/step"),
        (path.as_str(), "count[0002]/step"),
    ] {
        assert_eq!(json(&project, &["show", name])["id"], expected, "{name}");
    }
    let folder = format!("cache/runs/{id}");
    assert_eq!(json(&project, &["show", &folder])["id"], id);
    assert_eq!(json(&project, &["diff", &folder, "latest"])["alike"], 3);
}

#[test]
fn two_runs_are_compared_by_key_and_metric() {
    let project = Project::new(CHAIN);
    project.run(&[]);
    project.run(&["--set", "stages.start.value=10"]);
    let runs = project.runs();
    let output = project.mcprl(&["diff", &runs[0], &runs[1]]);
    let text = output.out.replace(&runs[1], "NEW").replace(&runs[0], "OLD");
    let digits = |word: &str| word.len() == 12 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let shown: Vec<String> = text
        .lines()
        .map(|line| {
            let words = line.split(' ').map(|word| if digits(word) { "…" } else { word });
            words.collect::<Vec<_>>().join(" ")
        })
        .collect();
    insta::assert_snapshot!(shown.join("\n"), @r"
    OLD → NEW
    --set stages.start.value=10  in the new run only

    keys
      params.value 4 → 10  start
      inputs.from          middle, end

    metrics
      stage  metric  old  new  change
      end    value   3    6    +3

    0 alike, 3 different; `--json` has all of it
    ");
    let same = json(&project, &["diff", &runs[1], "latest"]);
    assert_eq!((&same["alike"], &same["differences"]), (&3.into(), &Value::Array(Vec::new())));
}

#[test]
fn an_unknown_run_or_stage_is_an_error_with_a_hint() {
    let project = Project::new(CHAIN);
    project.run(&[]);
    let id = project.runs().pop().unwrap();
    let near = format!("hint: did you mean \"{id}\"?");
    for (arguments, hint) in [
        (vec!["show", &id[..id.len() - 1]], near.as_str()),
        (vec!["diff", &id, &id[1..]], &near),
        (vec!["cache", "export", &id[1..], "--to", "away"], &near),
        (vec!["show", "zzz"], "hint: `mcprl runs` lists the runs in this cache"),
        (vec!["show", "../runs"], "hint: `mcprl runs` lists"),
        (vec!["show", "latest/ende"], "hint: did you mean \"end\"?"),
        (vec!["cache", "gc", "--older-than", "5"], "an age is a number and s, m, h or d"),
    ] {
        let output = project.mcprl(&arguments);
        assert_eq!(output.code, Some(2), "{arguments:?}: {}", output.err);
        assert!(output.err.contains(hint), "{arguments:?}: {}", output.err);
    }
    project.write("cache/version", "99\n");
    for arguments in [vec!["runs"], vec!["show", "latest"], vec!["cache", "gc"], vec!["cache", "verify"]] {
        let output = project.mcprl(&arguments);
        assert_eq!(output.code, Some(1), "{arguments:?}");
        assert!(output.err.contains("has layout 99"), "{arguments:?}: {}", output.err);
    }
}

#[test]
fn a_run_without_its_description_or_records_is_still_shown() {
    let project = Project::new(CHAIN);
    project.run(&[]);
    let id = project.runs().pop().unwrap();
    project.write(&format!("cache/runs/{id}/run.toml"), "torn = ");
    let resumed = project.mcprl(&["resume", &id]);
    assert_eq!(resumed.code, Some(1));
    assert!(resumed.err.contains("is not a valid run description"), "{}", resumed.err);
    assert!(resumed.err.contains("hint: run the run file again"), "{}", resumed.err);
    for item in std::fs::read_dir(project.path("cache/ac")).unwrap().map(Result::unwrap) {
        if item.path().is_file() {
            std::fs::write(item.path(), "{").unwrap();
        }
    }
    assert_eq!(project.mcprl(&["show", &id]).code, Some(0));
    assert_eq!(project.mcprl(&["show", &format!("{id}/end")]).code, Some(0));
    assert_eq!(project.mcprl(&["cache", "ls"]).code, Some(0));
}

#[test]
fn an_up_to_date_run_creates_no_run_folder() {
    let project = Project::new(CHAIN);
    project.run(&[]);
    let runs = project.runs();
    let again = project.run(&["--json"]);
    let ended: Value = serde_json::from_str(again.out.lines().last().unwrap()).unwrap();
    assert_eq!((&ended["run"], &ended["cached"]), (&Value::from(runs[0].as_str()), &3.into()));
    assert_eq!(project.runs(), runs);
    // Another way to the same keys is the same run; other keys are another.
    project.run(&["--set", "stages.start.value=5"]);
    assert_eq!(project.runs().len(), 2);
}

/// One stage that draws a number.
fn chance() -> Project {
    let project = Project::new("name = \"toy\"\n[stages.draw]\nkind = \"chance\"\n");
    let card =
        "[outputs.number]\ntype = \"number\"\npath = \"number.txt\"\n[metrics]\nvalue = \"The number.\"\n";
    let script = "echo 1$(date +%N) > \"$MCPRL_OUTPUT_NUMBER\"\n\
                  echo \"{\\\"value\\\": $(cat \"$MCPRL_OUTPUT_NUMBER\")}\" > \"$MCPRL_METRICS\"";
    project.kind("chance", "sampled", card, script);
    project
}

/// A run, and another that drew its sample anew: their ids, and what each drew.
fn drawn_twice() -> (Project, [String; 2], [String; 2]) {
    let project = chance();
    project.run(&[]);
    let one = project.result("draw/number.txt");
    project.run(&["--resample", "draw"]);
    let two = project.result("draw/number.txt");
    assert_ne!(one, two);
    let runs: [String; 2] = project.runs().try_into().unwrap();
    (project, runs, [one, two])
}

/// What `show` says that each run drew.
fn shown(project: &Project, runs: &[String]) -> Vec<String> {
    let value = |run: &String| {
        let stage = json(project, &["show", &format!("{run}/draw")]);
        let path = stage["outputs"][0]["path"].as_str().unwrap().to_owned();
        let text = project.read(path).trim().to_owned();
        assert_eq!(stage["metrics"]["value"].as_f64(), text.parse().ok());
        text
    };
    runs.iter().map(value).collect()
}

#[test]
fn each_run_keeps_and_shows_its_own_result_after_a_resample() {
    let (project, runs, drawn) = drawn_twice();
    assert_eq!(shown(&project, &runs), drawn);
    let diff = json(&project, &["diff", &runs[0], &runs[1]]);
    assert_eq!((&diff["alike"], &diff["differences"][0]["id"]), (&0.into(), &"draw".into()));
    let output = project.mcprl(&["diff", &runs[0], &runs[1]]).out;
    assert!(output.contains("\n  draw.number  ") && output.contains("\n  draw   value "), "{output}");

    json(&project, &["cache", "gc", "--keep-last", "10", "--grace", "0s"]);
    for (run, drawn) in runs.iter().zip(&drawn) {
        assert_eq!(project.read(format!("cache/runs/{run}/draw/number.txt")).trim(), drawn);
    }
    let away = project.path("away");
    json(&project, &["cache", "export", &runs[0], &runs[1], "--to", away.to_str().unwrap()]);
    let other = Project::new(CHAIN);
    let output = json(&other, &["cache", "import", away.to_str().unwrap()]);
    assert_eq!(output["differs"], Value::Array(Vec::new()));
    assert_eq!(shown(&other, &runs), drawn);
}

#[test]
fn a_run_is_not_up_to_date_with_one_that_had_other_results() {
    let project = chance();
    project.run(&[]);
    let last = project.read("cache/ac/last/toy.run");
    project.run(&["--resample", "draw"]);
    let drawn = project.result("draw/number.txt");
    // As if the second had drawn, and not come to its end.
    project.write("cache/ac/last/toy.run", &last);
    project.run(&[]);
    assert_eq!(project.runs().len(), 3);
    assert_eq!(project.result("draw/number.txt"), drawn);
    project.run(&[]);
    assert_eq!(project.runs().len(), 3, "and for that one from then on");
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
    let young = &json(&project, &["cache", "gc", "--keep-last", "1", "--dry-run"])["removed"]["young"];
    assert_eq!((&young["records"], &young["seconds"]), (&6.into(), &3600.into()));
    let all = project.mcprl(&["cache", "gc", "--keep-last", "2", "--grace", "0s"]).err;
    assert!(all.contains("removed 1 run, ") && !all.contains("younger"), "{all}");
}

#[test]
fn completions_are_printed_for_each_shell() {
    let project = Project::new(CHAIN);
    for shell in ["bash", "zsh", "fish"] {
        let output = project.mcprl(&["completions", shell]);
        assert_eq!(output.code, Some(0));
        assert!(output.out.contains("mcprl") && output.out.contains("export"), "{shell}");
    }
    assert_eq!(project.mcprl(&["completions", "cmd"]).code, Some(2));
}

#[test]
fn manual_pages_are_written_for_all_commands() {
    let project = Project::new(CHAIN);
    let output = project.mcprl(&["man", "man/man1"]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    for page in ["mcprl.1", "mcprl-run.1", "mcprl-cache-gc.1"] {
        assert!(project.read(format!("man/man1/{page}")).contains(".SH SYNOPSIS"), "{page}");
    }
    project.write("file", "");
    let refused = project.mcprl(&["man", "file/man1"]);
    assert!(refused.err.contains("cannot write manual pages to file/man1"), "{}", refused.err);
}
