//! `mcprl report`, and the texts of tools that a run file overrides to test them.

use crate::common::{Project, training_run};
use mcprl::data::{self, Tool};
use serde_json::{Value, json};

const OVERRIDE: &str = "[overrides.tools.run_query]\ndescription = \"Runs SQL. Columns: see describe_table.\"\n\
                        parameters = { sql = \"SELECT name FROM staff\" }\n";

fn report(project: &Project, arguments: &[&str]) -> String {
    let output = project.mcprl(&[&["report"], arguments].concat());
    assert_eq!(output.code, Some(0), "{arguments:?}: {}", output.err);
    output.out
}

#[test]
fn a_report_answers_the_question_of_a_run_in_every_format() {
    let project = Project::with_model(&training_run("group_size = 2"));
    project.run(&[]);
    let markdown = report(&project, &["latest"]);
    for part in [
        "## Verdict",
        "Question: is trained better than base",
        "## Tools",
        "## How to reproduce it",
        "## Limits",
    ] {
        assert!(markdown.contains(part), "{part}: {markdown}");
    }
    let verdict = report(&project, &["--svg", "verdict"]);
    assert!(verdict.starts_with("<svg") && verdict.contains("trained against base"), "{verdict}");
    let model: Value = serde_json::from_str(&report(&project, &["--json"])).unwrap();
    assert_eq!(model["exams"][0]["stage"], "exam");
    let of_server = report(&project, &["--server"]);
    assert!(of_server.contains("How agents use mcprl-demo-sqlite"), "{of_server}");
    assert_eq!(report(&project, &["latest/exam", "--server"]), of_server, "there is one comparison");
    let unknown = project.mcprl(&["report", "latest/tasks", "--server"]);
    assert!(
        unknown.err.contains("tasks of run") && unknown.err.contains("hint: name one of exam"),
        "{}",
        unknown.err
    );

    let page = |name: &str| {
        report(&project, &["latest", "--out", name]);
        project.read(name)
    };
    let (one, two) = (page("one.html"), page("two.html"));
    assert_eq!(one, two, "the same run gives the same bytes");
    assert!(one.starts_with("<!doctype html>") && one.contains("<svg"));
    for outside in ["<script", "src=\"http", "href=\"http", "@import"] {
        assert!(!one.contains(outside), "{outside}");
    }
}

#[test]
fn a_report_that_cannot_be_made_says_why() {
    let project = Project::with_model(&training_run("group_size = 2"));
    project.replace("run.toml", "[stages.exam]", "[stages.unused]");
    project.run(&["--set", "stages.unused.kind=eval"]);
    let fails = |arguments: &[&str], code: i32, text: &str| {
        let output = project.mcprl(&[&["report"], arguments].concat());
        assert_eq!(output.code, Some(code), "{arguments:?}: {}", output.err);
        assert!(output.err.contains(text) && output.err.contains("hint: "), "{arguments:?}: {}", output.err);
    };
    fails(&["latest", "latest", "--svg", "verdict"], 2, "`--svg` and `--server` take one run");
    fails(&["latest", "--svg", "curve"], 1, "has nothing for this plot");
    fails(&["demo-20200101-000000"], 2, "no run");
}

#[test]
fn a_tool_with_other_texts_is_compared_with_the_servers_own() {
    let project = Project::with_model(&training_run("group_size = 2"));
    project.run(&[]);
    let without = project.runs()[0].clone();
    let run_file = project.read("run.toml");
    project.write("run.toml", &(run_file + OVERRIDE));
    project.run(&[]);
    let with = project.runs()[1].clone();

    let tools: Vec<Tool> = data::read(&project.newest().join("tools/tools.parquet")).unwrap();
    let query = tools.iter().find(|tool| tool.name == "run_query").unwrap();
    assert_eq!(query.description, "Runs SQL. Columns: see describe_table.");
    let function: Value = serde_json::from_str(&query.function).unwrap();
    let shown = &function["function"];
    let shown = if shown.is_object() { shown } else { &function };
    assert_eq!(shown["description"], "Runs SQL. Columns: see describe_table.");
    assert_eq!(shown["parameters"]["properties"]["sql"]["description"], "SELECT name FROM staff");
    assert!(query.listed.is_some(), "what the server says is kept");

    let compared = report(&project, &[&without, &with]);
    assert!(compared.contains("overrides"), "{compared}");
    assert!(compared.contains("tasks are common to all runs"), "{compared}");
}

#[test]
fn an_override_that_fits_no_tool_or_parameter_is_refused() {
    for (from, to, named) in [
        ("tools.run_query", "tools.run_quer", "did you mean `run_query`"),
        ("{ sql =", "{ text =", "`text`, which is not a parameter of the tool `run_query`"),
        ("parameters =", "parameter =", "parameter"),
    ] {
        let project = Project::with_model(&(training_run("group_size = 2") + &OVERRIDE.replace(from, to)));
        let refused = project.mcprl(&["run", "run.toml"]);
        assert_ne!(refused.code, Some(0), "{to}");
        assert!(refused.err.contains(named), "{to}: {}", refused.err);
    }
}

#[test]
fn seeds_and_sweeps_are_runs_on_the_same_tasks_and_end_in_a_table() {
    let project = Project::with_model(&training_run("group_size = 2"));
    let run = ["run", "run.toml", "--seeds", "1,2", "--sweep", "stages.update.learning_rate=1e-5,1e-3"];
    let done = project.mcprl(&[&["--json"][..], &run].concat());
    assert_eq!(done.code, Some(0), "{}", done.err);
    let table: Value = serde_json::from_str(done.out.lines().last().unwrap()).unwrap();
    let groups = table["variants"].as_array().unwrap();
    let values: Vec<&Value> = groups.iter().map(|group| &group["value"]).collect();
    assert_eq!(values, ["stages.update.learning_rate=1e-5", "stages.update.learning_rate=1e-3"]);
    for group in groups {
        assert_eq!(group["seeds"], json!([1, 2]));
        let policies = group["comparison"]["policies"].as_array().unwrap();
        let names: Vec<&Value> = policies.iter().map(|row| &row["policy"]).collect();
        assert_eq!(names, ["base", "trained"]);
        assert_eq!(policies[0]["deviation"], 0.0, "the exam of the base is one");
        for row in policies {
            let success: Vec<f64> = serde_json::from_value(row["success"].clone()).unwrap();
            assert_eq!((success.len(), row["mean"].as_f64().unwrap()), (2, (success[0] + success[1]) / 2.0));
        }
        assert!(policies[0]["gain"].is_null() && policies[1]["gain"].is_array(), "{policies:?}");
    }
    let runs = project.runs();
    assert_eq!(runs.len(), 4);
    let written = |stage: &str| -> std::collections::BTreeSet<_> {
        let path = |run: &String| project.path("cache/runs").join(run).join(stage).canonicalize().unwrap();
        runs.iter().map(path).collect()
    };
    assert_eq!(written("tasks/heldout.parquet").len(), 1, "tasks do not depend on the seed of a training");
    assert_eq!(written("rollout/trajectories.parquet").len(), 2);
    assert_eq!(
        written("update/policy").len(),
        2,
        "these episodes give no gradient, so the rate changes nothing"
    );

    let shown = project.mcprl(&run);
    let table: Vec<&str> = shown.out.lines().skip_while(|line| !line.ends_with("best first")).collect();
    let cells = |line: &&str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(cells(&table[1]), ["base", "trained", "gain", "run"], "one heading: {}", shown.out);
    assert_eq!(table.len(), 2 + 4 + 2, "a line for each run, and for the mean of each value: {}", shown.out);
    let mut success: Vec<f64> = Vec::new();
    for line in &table[2..] {
        let (_, after) = line.split_once(if line.contains("mean") { "sd" } else { "seed " }).unwrap();
        success.push(after.split_whitespace().filter_map(|cell| cell.parse().ok()).next_back().unwrap());
    }
    assert!(shown.err.contains("learning_rate=1e-5, seed 2"), "{}", shown.err);
    assert!(!shown.err.contains("done ") && shown.err.contains("nothing to do: "), "{}", shown.err);
    let wrong = project.mcprl(&["run", "run.toml", "--sweep", "seed"]);
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.err.contains("should read `KEY=VALUE,VALUE,…`"), "{}", wrong.err);
}
