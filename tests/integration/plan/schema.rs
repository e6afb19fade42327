//! `mcprl schema` accepts the run files of this repository and rejects what `plan` rejects.

use std::path::{Path, PathBuf};

use crate::common::{Project, output};
use serde_json::{Value, json};

/// Validates the part of JSON Schema that the schema uses. Panics on any other rule.
fn objections(root: &Value, schema: &Value, value: &Value, path: &str, found: &mut Vec<String>) {
    let Some(rules) = schema.as_object() else { return };
    for (rule, operand) in rules {
        let mut wrong = |what: String| found.push(format!("{path}: {what}"));
        match rule.as_str() {
            "$schema" | "$defs" | "title" | "description" | "default" | "then" | "pattern"
            | "propertyNames" => {}
            "$ref" => {
                let place = operand.as_str().unwrap().trim_start_matches('#');
                objections(root, root.pointer(place).unwrap(), value, path, found);
                return;
            }
            "type" => {
                let fits = match operand.as_str().unwrap() {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "boolean" => value.is_boolean(),
                    "integer" => value.is_i64() || value.is_u64(),
                    "number" => value.is_number(),
                    other => panic!("type {other}"),
                };
                if !fits {
                    wrong(format!("not of type {operand}"));
                }
            }
            "enum" => {
                if !operand.as_array().unwrap().contains(value) {
                    wrong(format!("not among {operand}"));
                }
            }
            "const" => {
                if operand != value {
                    wrong(format!("not {operand}"));
                }
            }
            "minimum" | "maximum" => {
                let (bound, number) = (operand.as_f64().unwrap(), value.as_f64());
                let beyond = |number: f64| if rule == "minimum" { number < bound } else { number > bound };
                if number.is_some_and(beyond) {
                    wrong(format!("beyond the {rule} {bound}"));
                }
            }
            "minItems" => {
                let least = usize::try_from(operand.as_u64().unwrap()).unwrap();
                if value.as_array().is_some_and(|items| items.len() < least) {
                    wrong(format!("fewer than {least} items"));
                }
            }
            "minProperties" => {
                let least = usize::try_from(operand.as_u64().unwrap()).unwrap();
                if value.as_object().is_some_and(|fields| fields.len() < least) {
                    wrong(format!("fewer than {least} members"));
                }
            }
            "required" => {
                for name in operand.as_array().unwrap().iter().map(|name| name.as_str().unwrap()) {
                    if value.as_object().is_some_and(|fields| !fields.contains_key(name)) {
                        wrong(format!("has no {name}"));
                    }
                }
            }
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    objections(root, operand, item, &format!("{path}[{index}]"), found);
                }
            }
            "anyOf" => {
                let fits = |schema: &Value| {
                    let mut without = Vec::new();
                    objections(root, schema, value, path, &mut without);
                    without.is_empty()
                };
                if !operand.as_array().unwrap().iter().any(fits) {
                    wrong("fits none of several schemas".to_owned());
                }
            }
            "properties" | "additionalProperties" | "allOf" | "if" => {}
            other => panic!("rule {other}"),
        }
    }
    let none = serde_json::Map::new();
    let properties = rules.get("properties").and_then(Value::as_object).unwrap_or(&none);
    for (name, inner) in value.as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        match (properties.get(name), rules.get("additionalProperties")) {
            (Some(schema), _) => objections(root, schema, inner, &path, found),
            (None, Some(Value::Bool(false))) => found.push(format!("{path}: unknown")),
            (None, Some(schema)) => objections(root, schema, inner, &path, found),
            (None, None) => {}
        }
    }
    for schema in rules.get("allOf").and_then(Value::as_array).into_iter().flatten() {
        objections(root, schema, value, path, found);
    }
    if let Some(condition) = rules.get("if") {
        let mut without = Vec::new();
        objections(root, condition, value, path, &mut without);
        if without.is_empty() {
            objections(root, &rules["then"], value, path, found);
        }
    }
}

fn check(schema: &Value, text: &str) -> Vec<String> {
    let value: toml::Table = toml::from_str(text).unwrap();
    let mut found = Vec::new();
    objections(schema, schema, &json!(value), "", &mut found);
    found
}

fn schema_for(project: &Project, folder: &Path, file: &str) -> Value {
    let printed = output(project.command(&["schema", file]).current_dir(folder));
    assert_eq!(printed.code, Some(0), "{}", printed.err);
    serde_json::from_str(&printed.out).unwrap()
}

/// Every run file of this repository.
fn run_files() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![root.join("pipelines"), root.join("examples")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for item in std::fs::read_dir(folder).unwrap() {
            let path = item.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if name.ends_with(".toml") && !name.ends_with(".families.toml") && name != "card.toml" {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn every_run_file_of_this_repository_fits_the_schema() {
    let project = Project::new("");
    let files = run_files();
    assert!(files.len() >= 2);
    for path in files {
        let folder = path.parent().unwrap();
        let schema = schema_for(&project, folder, path.file_name().unwrap().to_str().unwrap());
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(check(&schema, &text), [""; 0], "{}", path.display());
    }
}

const GOOD: &str = r#"
seed = 1

[server]
command = ["x"]

[track]
tensorboard = true
wandb = { project = "p", tags = ["a"], mode = "offline" }

[stages.start]
kind = "gen"
value = 4

[loop.count]
iterations = 3
carry = { number = "start" }
until = { metric = "step.value", at_least = 4 }

[loop.count.stages.step]
kind = "step"
from = "@number"
yields = "number"

[stages.end]
kind = "sum"
parts = { left = "start", right = "count.number" }
"#;

#[test]
fn the_schema_rejects_unknown_keys_and_wrong_types() {
    let project = Project::new(GOOD);
    let schema = schema_for(&project, &project.path(""), "run.toml");
    assert_eq!(check(&schema, GOOD), [""; 0]);
    let states = &schema["properties"]["server"]["properties"]["state"]["enum"];
    assert_eq!(
        *states,
        json!(["read-only", "fresh-process", "fresh-session", "reset-tool", "snapshot-dir", "unconfirmed"]),
        "TOML has no null"
    );
    for (from, to, objection) in [
        ("seed = 1", "sede = 1", ".sede: unknown"),
        ("seed = 1", "seed = 1\nmodel = [\"Qwen/Qwen3-4B\"]", ".model: not of type \"string\""),
        ("seed = 1", "seed = -1", ".seed: beyond the minimum 0"),
        ("value = 4", "value = \"four\"", ".stages.start.value: not of type \"integer\""),
        ("value = 4", "value = 5000", ".stages.start.value: beyond the maximum 1000"),
        ("value = 4", "valeu = 4", ".stages.start.valeu: unknown"),
        ("kind = \"sum\"", "kind = \"summ\"", ".stages.end.kind: not among"),
        ("tensorboard = true", "tensorboard = \"logs\"", ".track.tensorboard: fits none"),
        ("project = \"p\"", "projekt = \"p\"", ".track.wandb: fits none"),
        ("mode = \"offline\"", "mode = \"off\"", ".track.wandb: fits none"),
        ("metric = \"step.value\"", "metrik = \"step.value\"", ".loop.count.until: fits none"),
        ("command = [\"x\"]", "comand = [\"x\"]", ".server.comand: unknown"),
        ("command = [\"x\"]", "url = \"http://x\"\nstate = \"clean\"", ".server.state: not among"),
    ] {
        assert!(GOOD.contains(from), "{from}");
        let found = check(&schema, &GOOD.replacen(from, to, 1));
        assert!(found.iter().any(|found| found.contains(objection)), "{to}: {found:?}");
    }
}

#[test]
fn the_server_limits_in_the_documentation_are_the_defaults_of_the_schema() {
    let project = Project::new(GOOD);
    let schema = schema_for(&project, &project.path(""), "run.toml");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guides/servers.md");
    let page = std::fs::read_to_string(page).unwrap();
    let server = schema["properties"]["server"]["properties"].as_object().unwrap();
    for (key, limit) in server.iter().filter(|(_, key)| key["default"].is_number()) {
        let row = format!("| `{key}` | {} |", limit["default"]);
        assert!(page.contains(&row), "{row}");
    }
}
