//! The report for a server's author as a document.

use serde_json::Value;

use super::{
    analysis::ServerReport,
    tools::{BYTES_PER_TOKEN, tokens},
};
use crate::{
    report::{
        Tone,
        document::{Block, Cell, Document, Table},
        escape::shortened,
        parts::{failed_cell, state, tool_cell},
    },
    text::percent,
    view::Run,
};

/// Most error messages to list.
const ERRORS: usize = 25;

/// The report as a document.
pub fn server_document(run: &Run, report: &ServerReport) -> Document {
    let server = report.server.clone().unwrap_or_else(|| "the server".into());
    let mut page = Document {
        title: format!("How agents use {server}"),
        subtitle: format!("mcprl, run {}, {}, {} episodes", run.id, state(run.state), report.episodes),
        blocks: Vec::new(),
    };
    if report.episodes == 0 {
        page.push(Block::Statement(
            Tone::Faint,
            "This run has played no episodes that are still in the cache.".into(),
        ));
        return page;
    }
    page.heading("Suggestions");
    match report.suggestions.is_empty() {
        true => page.text("No rule finds anything to suggest."),
        false => {
            page.table(Table::of(&report.suggestions, |found| {
                [
                    ("tool", Cell::code(found.tool.clone())),
                    ("its failed tasks", Cell::count(found.failed_tasks)),
                    ("suggestion", Cell::text(found.text.clone())),
                ]
            }));
            page.text(
                "To test a description: set it in the run file, run again, and compare both runs with `mcprl report OLD NEW`.",
            );
            let first = &report.suggestions[0].tool;
            page.push(Block::Code(format!(
                "[overrides.tools.{}]\ndescription = \"…\"",
                Value::from(&**first)
            )));
        }
    }
    page.heading("Failed tasks by cause");
    page.text(format!(
        "{} of {} tasks of {} have a wrong answer. The first rule that applies gives the cause.",
        report.failed_tasks, report.tasks, report.policy
    ));
    page.table(Table::of(&report.causes, |cause| {
        let often = cause.details.iter().take(3);
        let often: Vec<String> =
            often.map(|found| format!("{} ({})", shortened(&found.detail, 60), found.tasks)).collect();
        let example = cause.examples.first().map_or("".into(), |task| shortened(task, 140));
        [
            ("cause", Cell::text(cause.cause)),
            ("tasks", Cell::number(cause.tasks.to_string())),
            ("meaning", Cell::text(cause.meaning)),
            ("most often", Cell::text(often.join("; "))),
            ("for example", Cell::text(example)),
        ]
    }));
    page.heading("Tools");
    page.text("Over all episodes of the run. Tools of most failed tasks come first. Tokens are bytes divided by four.");
    tool_table(&mut page, report);
    if !report.confusions.is_empty() {
        page.heading("Tools that are confused");
        page.table(Table::of(&report.confusions, |found| {
            [
                ("called", Cell::code(found.called.clone())),
                ("needed", Cell::code(found.needed.clone())),
                ("failed tasks", Cell::number(found.tasks.to_string())),
            ]
        }));
    }
    page.heading("Errors");
    page.text("Those that most often ended without a recovery come first. Numbers, quoted values and single words that differ are left out of the messages.");
    error_table(&mut page, report);
    let mut limits = vec![
        "Causes and suggestions follow from rules, which know only what was recorded. A suggestion is worth testing, not true.".to_owned(),
        "Episodes include those of untrained policies, which make mistakes that no description prevents.".to_owned(),
    ];
    if report.without_reference > 0 {
        limits.push(format!(
            "{} failed tasks have no reference solution, so their causes follow from the task and the results alone. Tasks of a file may have one: `reference`.",
            report.without_reference
        ));
    }
    if !report.gone.is_empty() {
        limits.push(format!("Episodes that are no longer in the cache: {}.", report.gone.join(", ")));
    }
    page.heading("Limits");
    page.push(Block::List(limits));
    page
}

fn tool_table(page: &mut Document, report: &ServerReport) {
    page.table(Table::of(&report.tools, |tool| {
        let calls = &tool.calls;
        let never = if calls.calls == 0 { Tone::Faint } else { Tone::Plain };
        let result = calls.result_bytes.map(|bytes| bytes / BYTES_PER_TOKEN);
        let prompt = (tool.description_bytes > 0).then(|| tokens(tool.description_bytes));
        let number =
            |value: Option<f64>| Cell::number(value.map_or(String::new(), |value| format!("{value:.0}")));
        [
            ("tool", tool_cell(&calls.tool, tool.offered_in > 0).tone(never)),
            ("failed tasks", Cell::count(tool.failed_tasks)),
            ("offered in", Cell::count(tool.offered_in)),
            ("called in", Cell::count(calls.episodes)),
            ("calls", Cell::number(calls.calls.to_string())),
            ("failed", failed_cell(calls)),
            ("recovered", Cell::count(calls.recovered)),
            ("refused by schema", Cell::count(tool.refused)),
            ("clipped", Cell::count(calls.clipped)),
            ("tokens per result", number(result)),
            ("tokens in prompt", number(prompt)),
        ]
    }));
}

fn error_table(page: &mut Document, report: &ServerReport) {
    page.table(Table::of(report.errors.iter().take(ERRORS), |error| {
        let right = (error.known > 0).then(|| percent(f64::from(error.right) / f64::from(error.known), 0));
        let recovered = percent(f64::from(error.recovered) / f64::from(error.count), 0);
        [
            ("tool", Cell::code(error.tool.clone())),
            ("kind", Cell::text(error.kind.clone())),
            ("message", Cell::code(error.message.clone())),
            ("times", Cell::number(error.count.to_string())),
            ("recovered", Cell::number(format!("{recovered} %"))),
            ("then right %", Cell::number(right.unwrap_or_default())),
        ]
    }));
    if report.errors.len() > ERRORS {
        page.text(format!("{} more messages are in `--json`.", report.errors.len() - ERRORS));
    }
}
