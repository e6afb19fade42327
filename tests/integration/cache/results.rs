//! Which result a run has: when it is up to date, and after a resample.

use serde_json::Value;

use crate::common::{CHAIN, Project};

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
        let stage = project.json(&["show", &format!("{run}/draw")]);
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
    let diff = project.json(&["diff", &runs[0], &runs[1]]);
    assert_eq!((&diff["alike"], &diff["differences"][0]["id"]), (&0.into(), &"draw".into()));
    let output = project.mcprl(&["diff", &runs[0], &runs[1]]).out;
    assert!(output.contains("\n  draw.number  ") && output.contains("\n  draw   value "), "{output}");

    project.json(&["cache", "gc", "--keep-last", "10", "--grace", "0s"]);
    for (run, drawn) in runs.iter().zip(&drawn) {
        assert_eq!(project.read(format!("cache/runs/{run}/draw/number.txt")).trim(), drawn);
    }
    let away = project.path("away");
    project.json(&["cache", "export", &runs[0], &runs[1], "--to", away.to_str().unwrap()]);
    let other = Project::new(CHAIN);
    let output = other.json(&["cache", "import", away.to_str().unwrap()]);
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
