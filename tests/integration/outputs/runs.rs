//! What `show`, `runs` and `diff` print of earlier runs.

use serde_json::Value;

use crate::common::{CHAIN, Project};

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
    let stage = project.json(&["show", "latest/end"]);
    assert_eq!(stage["inputs"][0]["from"], "middle.number");
    assert_eq!(stage["metrics"]["value"], 3.0);
    assert_eq!(stage["fields"]["kind"], "step");
    assert!(std::path::Path::new(stage["outputs"][0]["path"].as_str().unwrap()).ends_with("number.txt"));

    let run = project.json(&["show", "latest"]);
    assert_eq!((&run["state"], run["stages"].as_array().unwrap().len()), (&"finished".into(), 3));
    let runs = project.json(&["runs"]);
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
        (1, &["toy-", "finished", "4", "25 % → 75 %"]),
        (2, &["toy-", "finished", "9", "25 % → 75 %"]),
        (3, &["  --set seed=9 --set stages.start.value=7"]),
    ] {
        assert!(words.iter().all(|word| lines[line].contains(word)), "{words:?}\n{text}");
    }
    let runs = project.json(&["runs"]);
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
        assert_eq!(project.json(&["show", name])["id"], expected, "{name}");
    }
    let folder = format!("cache/runs/{id}");
    assert_eq!(project.json(&["show", &folder])["id"], id);
    assert_eq!(project.json(&["diff", &folder, "latest"])["alike"], 3);
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
    let same = project.json(&["diff", &runs[1], "latest"]);
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
