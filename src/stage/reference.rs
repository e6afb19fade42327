//! `docs/reference/stages.md`: the reference of all built-in stage kinds and tables, generated from cards and table declarations.

use std::fmt::Write as _;

use arrow::datatypes::DataType;

use super::{
    Cards,
    card::{Card, Determinism, Param, ParamType, Port, Role, Section},
    embedded::EMBEDDED,
};
use crate::data::{
    Admission, Call, JudgeAudit, Label, PassRate, Prompt, Resource, ResourceTemplate, Reward, Scenario,
    Server, Step, Table, Tool, Trajectory, VerdictRow,
};

const INTRODUCTION: &str = "\
# Stage kinds and tables

Generated from the cards in `stages/` and the table declarations in `src/data/`. `mcprl stage show KIND` prints the same
for one kind, your own included.

A stage is a table `[stages.NAME]` with a `kind`, its inputs (references to other stages) and its parameters. Every stage
also takes `seed`, `cache`, `prices` and, in a loop, `yields` ([run-file.md](run-file.md)).
";

fn reference() -> String {
    let cards = Cards::new(None);
    let mut page = INTRODUCTION.to_owned();
    for embedded in EMBEDDED {
        page += &kind_section(&cards.get(embedded.kind).unwrap().unwrap());
    }
    page += "\n# Tables\n\nParquet files, one row per item. Extra columns are ignored.\n";
    page += &table_section::<Scenario>();
    page += &table_section::<Admission>();
    page += &table_section::<Tool>();
    page += &table_section::<Resource>();
    page += &table_section::<ResourceTemplate>();
    page += &table_section::<Prompt>();
    page += &table_section::<Server>();
    page += &table_section::<Trajectory>();
    page += &table_section::<Call>();
    page += &table_section::<Reward>();
    page += &table_section::<Step>();
    page += &table_section::<JudgeAudit>();
    page += &table_section::<PassRate>();
    page += &table_section::<VerdictRow>();
    page += &table_section::<Label>();
    page
}

fn kind_section(card: &Card) -> String {
    let determinism = match card.determinism {
        Determinism::Pure => "pure",
        Determinism::Seeded => "seeded",
        Determinism::Sampled => "sampled",
        Determinism::External => "external",
    };
    let uses: Vec<&str> = card.uses.iter().map(section).collect();
    let uses = if uses.is_empty() { String::new() } else { format!(" Uses {}.", uses.join(" and ")) };
    let mut text = format!("\n## `{}`\n\n{}\n\nDeterminism: {determinism}.{uses}\n", card.kind, card.about);
    let mut rows = |header: &str, columns: usize, rows: Vec<String>| {
        if !rows.is_empty() {
            let rule = "---|".repeat(columns);
            _ = write!(text, "\n{header}\n|{rule}\n{}\n", rows.join("\n"));
        }
    };
    rows("| input | type | |", 3, card.inputs.iter().map(input).collect());
    rows("| parameter | type | default | |", 4, card.params.iter().map(parameter).collect());
    rows("| output | type | file | |", 4, card.outputs.iter().map(output).collect());
    let metric = |(name, about): (&String, &String)| format!("| `{name}` | {} |", cell(about));
    rows("| metric | |", 2, card.metrics.iter().map(metric).collect());
    text
}

fn input((name, role): (&String, &Role)) -> String {
    let many = if role.many { "; several, by name" } else { "" };
    let optional = if role.optional { "; optional" } else { "" };
    let uses: Vec<&str> = role.uses.iter().map(section).collect();
    let uses = if uses.is_empty() { String::new() } else { format!(" Uses {}.", uses.join(" and ")) };
    format!("| `{name}` | `{}`{many}{optional} | {}{uses} |", role.artifact, cell(&role.about))
}

fn section(section: &Section) -> &'static str {
    match section {
        Section::Server => "`[server]`",
        Section::Engine => "`[engine]`",
    }
}

fn parameter((name, param): (&String, &Param)) -> String {
    let kind = match param.kind {
        ParamType::Integer => "integer",
        ParamType::Number => "number",
        ParamType::Boolean => "boolean",
        ParamType::String => "string",
        ParamType::File => "path",
        ParamType::Model => "folder, GGUF file or hub id",
        ParamType::Strings => "strings",
        ParamType::Command => "words of a command",
        ParamType::Paths => "paths",
        ParamType::Table => "table",
        ParamType::Values => "table of lists or paths",
    };
    let kind = match &param.unit {
        Some(unit) => format!("{kind} [{unit}]"),
        None => kind.to_owned(),
    };
    let default = match &param.default {
        Some(default) => format!("`{default}`"),
        None if param.optional => "none".into(),
        None => "required".into(),
    };
    let mut about = cell(&param.about);
    if !param.choices.is_empty() {
        let choices: Vec<String> = param.choices.iter().map(|choice| format!("`{choice}`")).collect();
        about += &format!(" One of {}.", choices.join(", "));
    }
    let bounds = match (param.min, param.max) {
        (Some(min), Some(max)) => format!(" From {min} to {max}."),
        (Some(min), None) => format!(" At least {min}."),
        (None, Some(max)) => format!(" At most {max}."),
        (None, None) => String::new(),
    };
    format!("| `{name}` | {kind} | {default} | {about}{bounds} |")
}

fn output((name, port): (&String, &Port)) -> String {
    format!("| `{name}` | `{}` | `{}` | {} |", port.artifact, port.path, cell(&port.about))
}

fn table_section<T: Table>() -> String {
    let mut text =
        format!("\n## `{}`\n\n{}\n\n| column | type | |\n|---|---|---|\n", T::NAME, T::ABOUT.trim());
    for field in T::schema().fields() {
        let nullable = if field.is_nullable() { ", nullable" } else { "" };
        let about = field.metadata().get("doc").map_or("", String::as_str);
        _ = writeln!(
            text,
            "| `{}` | {}{nullable} | {} |",
            field.name(),
            type_name(field.data_type()),
            cell(about)
        );
    }
    text
}

fn type_name(kind: &DataType) -> String {
    match kind {
        DataType::List(item) => format!("list of {}", type_name(item.data_type())),
        DataType::Utf8 => "text".into(),
        DataType::Boolean => "bool".into(),
        other => other.to_string().to_lowercase(),
    }
}

/// Escapes text for a Markdown table cell.
fn cell(text: &str) -> String {
    text.trim().replace('|', "\\|").replace('\n', " ")
}

#[test]
fn the_reference_of_stages_is_that_of_the_cards() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/stages.md");
    if std::env::var_os("MCPRL_UPDATE_DOCS").is_some() {
        std::fs::write(path, reference()).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == reference(),
        "docs/reference/stages.md is out of date: run the tests with MCPRL_UPDATE_DOCS=1"
    );
}
