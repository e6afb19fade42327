//! The verdict as a page: Markdown that reads as plain text, at most 100 columns wide, no colour.

use std::fmt::Write;

use comfy_table::{CellAlignment, Table, presets};

use super::verdict::{Finding, headline, spoken_mode};
use crate::data::VerdictRow;

/// Longest name of a family, tool or policy that is shown whole.
const NAME: usize = 22;
/// The same of a split, and of a policy as a heading.
const SHORT_NAME: usize = 12;

/// The page. `notes` are said below the verdict, a paragraph each.
pub fn report(rows: &[VerdictRow], notes: &[String]) -> String {
    let mut page = format!("# Verdict\n\n{}\n", headline(rows).replace('\n', "  \n"));
    for note in notes {
        _ = write!(page, "\n{note}\n");
    }
    let Some(baseline) = rows.first().map(|row| row.policy.as_str()) else { return page };
    let mode = spoken_mode(rows);
    for policy in names(rows, |row| row.gain.is_some().then_some(&row.policy)) {
        for of_mode in names(rows, |row| Some(&row.mode)) {
            let sections: &[(&str, &[&str])] = if of_mode == mode {
                &[("split", &["split", "all"]), ("family", &["family"]), ("tool", &["tool"])]
            } else {
                &[("split", &["split", "all"])]
            };
            for (cut, scopes) in sections {
                let pairs: Vec<_> = pairs(rows, scopes, of_mode, policy, baseline).collect();
                if !pairs.is_empty() {
                    let title = format!("{policy} against {baseline} by {cut}, {of_mode}");
                    _ = write!(page, "\n## {title}\n\n{}\n", comparison(cut, policy, baseline, &pairs));
                    if *cut != "split" {
                        _ = write!(page, "\n{}\n", count(cut, &pairs));
                    }
                }
            }
        }
    }
    _ = write!(page, "\n## Effort\n\n{}\n\n{LEGEND}", effort(rows));
    page
}

const LEGEND: &str = "\
Success is the share of right answers in %, per scenario first, with its 95 % Wilson interval.
Gain is the paired difference in points, with its 95 % bootstrap interval over scenarios.
p is the exact two-sided sign test over scenarios that came out differently, not adjusted for the
number of rows. A gain is measurable where its interval is clear of zero and p is below 0.05.
";

/// What the chosen column holds, each once, in order of appearance.
fn names<'a>(rows: &'a [VerdictRow], of: impl Fn(&'a VerdictRow) -> Option<&'a String>) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for name in rows.iter().filter_map(of) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names
}

/// (baseline's row, policy's row) of every slice of these scopes.
fn pairs<'a>(
    rows: &'a [VerdictRow],
    scopes: &'a [&str],
    mode: &'a str,
    policy: &'a str,
    baseline: &'a str,
) -> impl Iterator<Item = (&'a VerdictRow, &'a VerdictRow)> {
    let of = move |name: &'a str, scope: &'a str| {
        rows.iter().filter(move |row| row.policy == name && row.scope == scope && row.mode == mode)
    };
    scopes.iter().flat_map(move |scope| of(baseline, scope).zip(of(policy, scope)))
}

fn comparison(cut: &str, policy: &str, baseline: &str, pairs: &[(&VerdictRow, &VerdictRow)]) -> String {
    let by_split = cut == "split";
    let mut header = vec![
        cut.to_owned(),
        "n".into(),
        short(baseline, SHORT_NAME),
        short(policy, SHORT_NAME),
        "gain".into(),
        "p".into(),
    ];
    header.extend(by_split.then(|| "up/down".to_owned()));
    let rows = pairs.iter().map(|(base, row)| {
        let mut cells = vec![
            short(&row.slice, if by_split { SHORT_NAME } else { NAME }),
            row.scenarios.to_string(),
            success(base),
            success(row),
            gain(row),
            row.p_value.map_or_else(String::new, p_value),
        ];
        let counts = row.better.zip(row.worse).map(|(better, worse)| format!("{better}/{worse}"));
        cells.extend(counts.filter(|_| by_split));
        cells
    });
    table(header, rows)
}

/// How many slices gained, and which lost.
fn count(cut: &str, pairs: &[(&VerdictRow, &VerdictRow)]) -> String {
    let of = |wanted| {
        let fitting = pairs.iter().filter(move |(_, row)| Finding::of(row) == Some(wanted));
        fitting.map(|(_, row)| row.slice.as_str()).collect::<Vec<_>>()
    };
    let (gains, losses) = (of(Finding::Gain).len(), of(Finding::Regression));
    let losses = if losses.is_empty() { "none".to_owned() } else { losses.join(", ") };
    format!("Rows by {cut} with a measurable gain: {gains} of {}; with a regression: {losses}.", pairs.len())
}

fn effort(rows: &[VerdictRow]) -> String {
    let header = ["policy", "mode", "episodes", "pass^k", "calls", "turns", "tokens", "recovery"];
    let all = rows.iter().filter(|row| row.scope == "all").map(|row| {
        vec![
            short(&row.policy, NAME),
            row.mode.clone(),
            row.episodes.to_string(),
            percent(row.success_all),
            format!("{:.2}", row.calls),
            format!("{:.2}", row.turns),
            format!("{:.0}", row.tokens),
            row.error_recovery.map_or_else(|| "-".into(), percent),
        ]
    });
    let table = table(header.map(str::to_owned).into(), all);
    let meaning = "Calls, turns and sampled tokens per episode; recovery: of the episodes that met a tool error, those\n\
        that ended right; pass^k: scenarios whose every episode was right.";
    format!("{table}\n\n{meaning}")
}

/// Names to the left, numbers to the right.
fn table(header: Vec<String>, rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(header).add_rows(rows);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

fn success(row: &VerdictRow) -> String {
    let (low, high) = (100.0 * row.success_low, 100.0 * row.success_high);
    format!("{} [{low:.0}, {high:.0}]", percent(row.success))
}

fn gain(row: &VerdictRow) -> String {
    match (row.gain, row.gain_low, row.gain_high) {
        (Some(gain), Some(low), Some(high)) => {
            format!("{} [{}, {}]", points(gain, 1), points(low, 0), points(high, 0))
        }
        _ => String::new(),
    }
}

fn percent(share: f64) -> String {
    format!("{:.1}", 100.0 * share)
}

/// With its sign, except where it rounds to zero.
fn points(difference: f64, digits: usize) -> String {
    let text = format!("{:+.digits$}", 100.0 * difference);
    if text.trim_start_matches(['+', '-']).chars().all(|c| matches!(c, '0' | '.')) {
        text.trim_start_matches(['+', '-']).to_owned()
    } else {
        text
    }
}

fn p_value(p: f64) -> String {
    if p < 0.001 { "<0.001".into() } else { format!("{p:.3}") }
}

fn short(name: &str, most: usize) -> String {
    if name.chars().count() <= most {
        return name.to_owned();
    }
    name.chars().take(most - 1).chain(['…']).collect()
}
