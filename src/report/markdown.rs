//! A document as Markdown, readable in a terminal and shown well in a pull request. Plots become their captions.

use std::fmt::Write;

use super::{
    Tone,
    document::{Block, Cell, Document, Table, Transcript, speaker},
    escape::{code_block, code_span, markdown, shortened},
};

/// Most characters of a message that are shown.
const MESSAGE: usize = 400;

/// The page.
pub fn page(document: &Document) -> String {
    let mut page = format!("# {}\n\n{}\n", markdown(&document.title), markdown(&document.subtitle));
    document.blocks.iter().for_each(|found| block(&mut page, found));
    page
}

fn block(page: &mut String, found: &Block) {
    match found {
        Block::Heading(text) => _ = write!(page, "\n## {}\n", markdown(text)),
        Block::Subheading(text) => _ = write!(page, "\n### {}\n", markdown(text)),
        Block::Text(text) => _ = write!(page, "\n{}\n", markdown(text)),
        Block::Statement(_, text) => {
            let lines: Vec<String> = text.lines().map(|line| format!("**{}**", markdown(line))).collect();
            _ = write!(page, "\n{}\n", lines.join("  \n"));
        }
        Block::List(items) => {
            page.push('\n');
            items.iter().for_each(|item| _ = writeln!(page, "- {}", markdown(item)));
        }
        Block::Table(found) => table(page, found),
        Block::Facts(facts) => {
            page.push('\n');
            facts
                .iter()
                .for_each(|(name, value)| _ = writeln!(page, "- {}: {}", markdown(name), markdown(value)));
        }
        Block::Code(text) => _ = write!(page, "\n{}", code_block(text)),
        Block::Plots(_, caption) => _ = write!(page, "\n{}\n", markdown(caption)),
        Block::Details(summary, blocks) => {
            _ = write!(page, "\n<details><summary>{}</summary>\n", markdown(summary));
            blocks.iter().for_each(|found| block(page, found));
            page.push_str("\n</details>\n");
        }
        Block::Conversations(talks) => talks.iter().for_each(|talk| conversation(page, talk)),
    }
}

fn table(page: &mut String, Table { head, rows }: &Table) {
    let cell = |cell: &Cell| {
        let text = match cell.is_code && !cell.text.is_empty() {
            true => code_span(&cell.text),
            false => markdown(&cell.text),
        };
        if cell.tone == Tone::Bad && !cell.is_code && !text.is_empty() { format!("**{text}**") } else { text }
    };
    let head: Vec<String> = head.iter().map(|name| markdown(name)).collect();
    let rows_shown: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(cell).collect()).collect();
    let wide = |column: usize| {
        let cells = rows_shown.iter().filter_map(|row| row.get(column));
        cells.chain([&head[column]]).map(|text| text.chars().count()).max().unwrap_or(0).clamp(3, 60)
    };
    let widths: Vec<usize> = (0..head.len()).map(wide).collect();
    let is_number = |column: usize| rows.iter().any(|row| row.get(column).is_some_and(|cell| cell.is_number));
    let line = |cells: &[String]| {
        let padded = cells.iter().enumerate().map(|(column, text)| {
            let width = widths.get(column).copied().unwrap_or(0);
            if is_number(column) { format!("{text:>width$}") } else { format!("{text:<width$}") }
        });
        format!("| {} |\n", padded.collect::<Vec<_>>().join(" | "))
    };
    let rule = widths.iter().enumerate().map(|(column, width)| {
        let dashes = "-".repeat(width - 1);
        if is_number(column) { format!("{dashes}:") } else { format!("{dashes}-") }
    });
    page.push('\n');
    page.push_str(&line(&head));
    _ = writeln!(page, "| {} |", rule.collect::<Vec<_>>().join(" | "));
    rows_shown.iter().for_each(|row| page.push_str(&line(row)));
}

fn conversation(page: &mut String, talk: &Transcript) {
    _ = write!(page, "\n{}\n\n", markdown(&talk.title));
    let mut text = String::new();
    for message in &talk.messages {
        let content = shortened(message.text.trim(), MESSAGE);
        _ = writeln!(text, "{}: {content}", speaker(message));
        for call in &message.calls {
            _ = writeln!(text, "  → {} {}", call.name, shortened(&call.arguments_json(), MESSAGE));
        }
    }
    _ = writeln!(text, "({})", talk.ending);
    page.push_str(&code_block(&text));
}
