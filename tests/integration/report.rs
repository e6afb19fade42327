//! `mcprl report`, and the texts of tools that a run file overrides to test them.

use crate::common::{Project, training_run};
use mcprl::data::{self, Tool};
use serde_json::Value;

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
