//! The report for a server's author as a document.

use super::{
    analysis::ServerReport,
    tools::{BYTES_PER_TOKEN, tokens},
};
use crate::{
    report::{
        Tone,
        document::{Block, Cell, Document, Table},
        escape::shortened,
        run::state,
    },
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
            let mut table = Table::new(["tool", "its failed tasks", "suggestion"]);
            for found in &report.suggestions {
                table.row([
                    Cell::code(found.tool.clone()),
                    Cell::count(found.failed_tasks),
                    Cell::text(found.text.clone()),
                ]);
            }
            page.table(table);
            page.text(
                "To test a description: set it with [overrides.tools.NAME] in the run file, run again, and compare both runs with `mcprl report OLD NEW`.",
            );
        }
    }
    page.heading("Failed tasks by cause");
    page.text(format!(
        "{} of {} tasks of {} have a wrong answer. The first rule that applies gives the cause.",
        report.failed_tasks, report.tasks, report.policy
    ));
    let mut table = Table::new(["cause", "tasks", "meaning", "most often", "for example"]);
    for cause in &report.causes {
        let example =
            cause.examples.first().map(|task| shortened(task, 140).into_owned()).unwrap_or_default();
        let often = cause.details.iter().take(3);
        let often: Vec<String> =
            often.map(|found| format!("{} ({})", shortened(&found.detail, 60), found.tasks)).collect();
        table.row([
            Cell::text(cause.cause),
            Cell::number(cause.tasks.to_string()),
            Cell::text(cause.meaning),
            Cell::text(often.join("; ")),
            Cell::text(example),
        ]);
    }
    page.table(table);
    page.heading("Tools");
    page.text("Over all episodes of the run. Tools of most failed tasks come first. Tokens are bytes divided by four.");
    tool_table(&mut page, report);
    if !report.confusions.is_empty() {
        page.heading("Tools that are confused");
        let mut table = Table::new(["called", "needed", "failed tasks"]);
        for found in &report.confusions {
            table.row([
                Cell::code(found.called.clone()),
                Cell::code(found.needed.clone()),
                Cell::number(found.tasks.to_string()),
            ]);
        }
        page.table(table);
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
    if report.unmarked_errors > 0 {
        limits.push(format!(
            "{} failed calls of an earlier version are not marked as such.",
            report.unmarked_errors
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
    let mut table = Table::new([
        "tool",
        "failed tasks",
        "offered in",
        "called in",
        "calls",
        "failed",
        "recovered",
        "refused by schema",
        "clipped",
        "tokens per result",
        "tokens in prompt",
    ]);
    for tool in &report.tools {
        let calls = &tool.calls;
        let name = match (calls.tool.as_str(), tool.offered_in) {
            ("", _) => "(not parsed)".to_owned(),
            (name, 0) => format!("{name} (does not exist)"),
            (name, _) => name.to_owned(),
        };
        let never = if calls.calls == 0 { Tone::Faint } else { Tone::Plain };
        table.row([
            Cell::code(name).tone(never),
            Cell::count(tool.failed_tasks),
            Cell::count(tool.offered_in),
            Cell::count(calls.episodes),
            Cell::number(calls.calls.to_string()),
            Cell::count(calls.failed).tone(if calls.failed > 0 { Tone::Bad } else { Tone::Plain }),
            Cell::count(calls.recovered),
            Cell::count(tool.refused),
            Cell::count(calls.clipped),
            Cell::number(
                calls.result_bytes.map_or(String::new(), |bytes| format!("{:.0}", bytes / BYTES_PER_TOKEN)),
            ),
            Cell::number(match tool.description_bytes {
                0 => String::new(),
                bytes => format!("{:.0}", tokens(bytes)),
            }),
        ]);
    }
    page.table(table);
}

fn error_table(page: &mut Document, report: &ServerReport) {
    let mut table = Table::new(["tool", "kind", "message", "times", "recovered", "then right %"]);
    for error in report.errors.iter().take(ERRORS) {
        let right = (error.known > 0)
            .then(|| format!("{:.0}", 100.0 * f64::from(error.right) / f64::from(error.known)));
        table.row([
            Cell::code(error.tool.clone()),
            Cell::text(error.kind.clone()),
            Cell::code(error.message.clone()),
            Cell::number(error.count.to_string()),
            Cell::number(format!("{:.0} %", 100.0 * f64::from(error.recovered) / f64::from(error.count))),
            Cell::number(right.unwrap_or_default()),
        ]);
    }
    page.table(table);
    if report.errors.len() > ERRORS {
        page.text(format!("{} more messages are in `--json`.", report.errors.len() - ERRORS));
    }
}
