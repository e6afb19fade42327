//! `docs/reference/stages.md` and a page for each built-in stage kind beside it, generated from cards and table declarations.

use std::{collections::BTreeMap, fmt::Write as _, path::Path};

use arrow::datatypes::{DataType, Fields};

use super::{
    Cards,
    card::{Card, Param, ParamType, Port, Role, Section},
    embedded::EMBEDDED,
};
use crate::data::{
    Admission, Call, JudgeAudit, Label, PassRate, Prompt, Resource, ResourceTemplate, Reward, Scenario,
    Server, Step, Table, Tool, Trajectory, VerdictRow,
};

const INTRODUCTION: &str = "\
# Stage kinds and tables

Generated from the cards in `stages/` and the table declarations in `crates/mcprl-store/src/data/`. `mcprl stage show KIND` prints the same
for one kind, your own included.

A stage is a table `[stages.NAME]` with a `kind`, its inputs (references to other stages) and its parameters. Every stage
also takes `seed`, `cache`, `prices` and, in a loop, `yields` ([run-file.md](run-file.md)).
";

/// Pages by their path in `docs/reference`.
fn pages() -> BTreeMap<String, String> {
    let cards = Cards::new(None);
    let mut pages = BTreeMap::from([("stages.md".to_owned(), index(&cards))]);
    for embedded in EMBEDDED {
        let card = cards.get(embedded.kind).unwrap().unwrap();
        pages.insert(format!("stages/{}.md", card.kind), kind_page(&card));
    }
    pages
}

fn index(cards: &Cards) -> String {
    let mut page = INTRODUCTION.to_owned();
    page += "\n| kind | |\n|---|---|\n";
    for embedded in EMBEDDED {
        let card = cards.get(embedded.kind).unwrap().unwrap();
        _ = writeln!(page, "| [`{0}`](stages/{0}.md) | {1} |", card.kind, cell(&card.about));
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
    page + &table_section::<Label>()
}

fn kind_page(card: &Card) -> String {
    let determinism = card.determinism.name();
    let uses = uses(&card.uses);
    let mut text = format!(
        "# Stage kind `{}`\n\n{}\n\nDeterminism: {determinism}.{uses} Generated from its card; all kinds are in [stages.md](../stages.md).\n",
        card.kind, card.about
    );
    let mut rows = |title: &str, header: &str, columns: usize, rows: Vec<String>| {
        if !rows.is_empty() {
            let rule = "---|".repeat(columns);
            _ = write!(text, "\n{title}\n\n{header}\n|{rule}\n{}\n", rows.join("\n"));
        }
    };
    rows("## Inputs", "| input | type | |", 3, card.inputs.iter().map(input).collect());
    let is_grouped = |name: &String| card.groups.iter().any(|group| group[1..].contains(name));
    let own = card.params.iter().filter(|(name, _)| !card.agent.contains_key(*name) && !is_grouped(name));
    let header = "| parameter | type | default | |";
    rows("## Parameters", header, 4, own.map(parameter).collect());
    for group in &card.groups {
        let of_group = group[1..].iter().map(|name| parameter((name, &card.params[name])));
        rows(&format!("## {}", group[0]), header, 4, of_group.collect());
    }
    let of_agent = card.params.iter().filter(|(name, _)| card.agent.contains_key(*name));
    rows("## Of `[agent]`, if the stage does not set it", header, 4, of_agent.map(parameter).collect());
    rows("## Outputs", "| output | type | file | |", 4, card.outputs.iter().map(output).collect());
    let metric = |(name, about): (&String, &String)| format!("| `{name}` | {} |", cell(about));
    rows("## Metrics", "| metric | |", 2, card.metrics.iter().map(metric).collect());
    text
}

fn input((name, role): (&String, &Role)) -> String {
    let many = if role.many { "; several, by name" } else { "" };
    let optional = if role.optional { "; optional" } else { "" };
    let uses = uses(&role.uses);
    format!("| `{name}` | `{}`{many}{optional} | {}{uses} |", role.artifact, cell(&role.about))
}

fn uses(sections: &[Section]) -> String {
    let sections: Vec<String> = sections.iter().map(|section| format!("`[{}]`", section.name())).collect();
    if sections.is_empty() { String::new() } else { format!(" Uses {}.", sections.join(" and ")) }
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
        ParamType::Table | ParamType::Prompts => "table",
        ParamType::Values => "table of lists or paths",
        ParamType::Names => "boolean or strings",
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
    columns(&mut text, "", T::schema().fields());
    text
}

/// A row for each column, and for each part of one behind it.
fn columns(text: &mut String, whole: &str, fields: &Fields) {
    for field in fields {
        let nullable = if field.is_nullable() { ", nullable" } else { "" };
        let about = cell(field.metadata().get("doc").map_or("", String::as_str));
        let (name, kind) = (format!("{whole}{}", field.name()), field.data_type());
        _ = writeln!(text, "| `{name}` | {}{nullable} | {about} |", type_name(kind));
        let part = if let DataType::List(item) = kind { item.data_type() } else { kind };
        if let DataType::Struct(fields) = part {
            columns(text, &format!("{name}."), fields);
        }
    }
}

fn type_name(kind: &DataType) -> String {
    match kind {
        DataType::List(item) => format!("list of {}", type_name(item.data_type())),
        DataType::Struct(_) => "struct".into(),
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
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference");
    let pages = pages();
    if std::env::var_os("MCPRL_UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(folder.join("stages")).unwrap();
        pages.iter().for_each(|(path, page)| std::fs::write(folder.join(path), page).unwrap());
    }
    for (path, page) in &pages {
        let written = std::fs::read_to_string(folder.join(path)).unwrap_or_default();
        assert!(
            written == *page,
            "docs/reference/{path} is out of date: run the tests with MCPRL_UPDATE_DOCS=1"
        );
    }
    assert_eq!(
        std::fs::read_dir(folder.join("stages")).unwrap().count() + 1,
        pages.len(),
        "a page of no kind"
    );
}

#[test]
fn a_card_with_groups_has_every_parameter_in_one() {
    let cards = Cards::new(None);
    for card in EMBEDDED.iter().map(|embedded| cards.get(embedded.kind).unwrap().unwrap()) {
        let grouped: usize = card.groups.iter().map(|group| group.len() - 1).sum();
        let own = card.params.len() - card.agent.len();
        assert!(card.groups.is_empty() || grouped == own, "{}: {grouped} of {own}", card.kind);
    }
}
