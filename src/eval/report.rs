//! The verdict as text: a summary for the end of a run, and a page with every table.
//!
//! Tables are at most 60 columns wide; long names are shortened in the middle. The page is Markdown that is
//! readable as plain text.

use std::{collections::BTreeMap, fmt::Write};

use super::verdict::{Finding, reported_mode, splits};
use crate::data::VerdictRow;

/// Styles a text by its finding, with colour or not at all. It must not change the text's width.
pub type Paint = fn(Finding, &str) -> String;

pub(super) fn plain(_: Finding, text: &str) -> String {
    text.to_owned()
}

/// Longest name of a family or tool that is shown in full.
const NAME: usize = 21;
/// The same for a split.
const SPLIT: usize = 16;
/// The same for a policy.
const POLICY: usize = 7;

/// The tables by split, followed by the verdict: a sentence for each compared policy.
pub fn summary(rows: &[VerdictRow], paint: Paint) -> String {
    let mode = reported_mode(rows);
    let tables = comparisons(rows).into_iter().map(|(policy, baseline)| {
        let pairs = pairs(rows, "split", mode, policy, baseline);
        format!(
            "{}\n\n{}\n\n",
            title(policy, baseline, "split", mode),
            by_split(policy, baseline, &pairs, paint)
        )
    });
    tables.collect::<String>() + &sentences(rows, paint)
}

/// Only the verdict: a sentence for each compared policy.
pub fn headline(rows: &[VerdictRow]) -> String {
    sentences(rows, plain)
}

/// The page. `notes` follow the verdict, one paragraph each.
pub fn report(rows: &[VerdictRow], notes: &[String]) -> String {
    let mut page = format!("# Verdict\n\n{}\n", sentences(rows, plain).replace('\n', "  \n"));
    for note in notes {
        _ = write!(page, "\n{note}\n");
    }
    if rows.is_empty() {
        return page;
    }
    for (policy, baseline) in comparisons(rows) {
        for mode in names(rows, |row| Some(&row.mode)) {
            for cut in ["split", "family", "tool"] {
                let pairs = pairs(rows, cut, mode, policy, baseline);
                if pairs.is_empty() || (cut != "split" && mode != reported_mode(rows)) {
                    continue;
                }
                let (table, below) = match cut {
                    "split" => (by_split(policy, baseline, &pairs, plain), clusters(&pairs)),
                    _ => (by_name(cut, &pairs), count(cut, &pairs)),
                };
                let title = title(policy, baseline, cut, mode);
                _ = write!(page, "\n## {title}\n\n{}\n\n{below}\n", indented(&table));
            }
        }
    }
    if !comparisons(rows).is_empty() {
        _ = write!(page, "\n{MEANING}");
    }
    _ = write!(page, "\n## Protocol\n\n{}\n\n{PROTOCOL}", indented(&protocol(rows)));
    _ = write!(page, "\n## Effort\n\n{}\n\n{EFFORT}", indented(&effort(rows)));
    page
}

const MEANING: &str = "\
Gain is the difference in success on the same tasks, in points, with its
95 % interval. Questions of one family tend to be right or wrong
together, so the interval resamples whole families. Where a table's row
has fewer than 10 families, it resamples entities, then questions that
are one but for their phrasing, then single tasks. Such a row applies
to its own families only. p is the sign-flip test of the same clusters,
adjusted by Holm's method for the rows of its table. A gain is
measurable (*) where its interval is clear of zero and p is below 0.05.
";

const PROTOCOL: &str = "\
Success in %. Strict: the episode was right, wrote every call in the
form of the chat template and gave its answer to complete_task, as a
client that reads nothing else needs it. pass^k: tasks whose every
episode was right.
";

const EFFORT: &str = "\
Calls, turns and sampled tokens per episode. Recovery: of the episodes
that met a tool error, those that ended right.
";

/// Compared policies with the baseline, which is the first policy.
fn comparisons(rows: &[VerdictRow]) -> Vec<(&str, &str)> {
    let Some(baseline) = rows.first().map(|row| row.policy.as_str()) else { return Vec::new() };
    let compared = names(rows, |row| row.gain.is_some().then_some(&row.policy));
    compared.into_iter().map(|policy| (policy, baseline)).collect()
}

fn title(policy: &str, baseline: &str, cut: &str, mode: &str) -> String {
    format!("{policy} against {baseline} by {cut}, {mode}, success in %")
}

/// The verdict, a line for each compared policy.
pub(super) fn sentences(rows: &[VerdictRow], paint: Paint) -> String {
    let mode = reported_mode(rows);
    let Some(all) = rows.iter().find(|row| row.scope == "all" && row.mode == mode) else {
        return "nothing to compare".to_owned();
    };
    let lines: Vec<String> = comparisons(rows)
        .into_iter()
        .filter_map(|(policy, baseline)| {
            let of_policy = |row: &&VerdictRow| row.policy == policy && row.mode == mode;
            let all = rows.iter().filter(of_policy).find(|row| row.scope == "all")?;
            let by_split = rows.iter().filter(of_policy).filter(|row| row.scope == "split");
            sentence(baseline, all, by_split, paint)
        })
        .collect();
    match lines.is_empty() {
        true => format!("{} alone, nothing to compare: success {}", all.policy, success(all)),
        false => lines.join("\n"),
    }
}

/// `trained beats base on held-out tasks: +43.3 points [+36, +50], p < 0.001; no measurable gain on c`.
fn sentence<'a>(
    baseline: &str,
    all: &VerdictRow,
    by_split: impl Iterator<Item = &'a VerdictRow>,
    paint: Paint,
) -> Option<String> {
    let finding = Finding::of(all)?;
    let policy = &all.policy;
    let claim = match finding {
        Finding::Gain => format!("{policy} beats {baseline} on held-out tasks"),
        Finding::NoMeasurableGain => {
            format!("no measurable gain of {policy} over {baseline} on held-out tasks")
        }
        Finding::Regression => format!("{policy} is worse than {baseline} on held-out tasks"),
    };
    let p = all.p_adjusted.map_or_else(String::new, |p| match p_value(p).strip_prefix('<') {
        Some(bound) => format!(", p < {bound}"),
        None => format!(", p = {}", p_value(p)),
    });
    let (gain, low, high) = (all.gain?, all.gain_low?, all.gain_high?);
    let figures = format!("{} points [{}, {}]{p}", points(gain, 1), points(low, 0), points(high, 0));
    let mut others: BTreeMap<Finding, Vec<&str>> = BTreeMap::new();
    for row in by_split {
        if let Some(other) = Finding::of(row).filter(|other| *other != finding) {
            others.entry(other).or_default().push(&row.slice);
        }
    }
    let others = others
        .iter()
        .map(|(finding, slices)| paint(*finding, &format!("; {} on {}", finding.label(), slices.join(", "))));
    Some(paint(finding, &format!("{claim}: {figures}")) + &others.collect::<String>())
}

/// The distinct values of the chosen column, in order of appearance.
fn names<'a>(rows: &'a [VerdictRow], of: impl Fn(&'a VerdictRow) -> Option<&'a String>) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for name in rows.iter().filter_map(of) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names
}

/// (baseline's row, policy's row) of every slice of the table. If there are several splits, their total comes
/// last.
fn pairs<'a>(
    rows: &'a [VerdictRow],
    cut: &str,
    mode: &str,
    policy: &str,
    baseline: &str,
) -> Vec<(&'a VerdictRow, &'a VerdictRow)> {
    let of = |name: &str, scope: &str| {
        let fits = |row: &&VerdictRow| row.policy == name && row.scope == scope && row.mode == mode;
        rows.iter().filter(fits).collect::<Vec<_>>()
    };
    let scopes: &[&str] = if cut == "split" && splits(rows).len() > 1 { &["split", "all"] } else { &[cut] };
    scopes.iter().flat_map(|scope| of(baseline, scope).into_iter().zip(of(policy, scope))).collect()
}

type Pairs<'a> = [(&'a VerdictRow, &'a VerdictRow)];

fn by_split(policy: &str, baseline: &str, pairs: &Pairs<'_>, paint: Paint) -> String {
    let header =
        ["split", "n", &short(baseline, POLICY), &short(policy, POLICY), "gain", "p"].map(str::to_owned);
    let lines = pairs.iter().map(|(base, row)| {
        let p = row.p_adjusted.map_or_else(String::new, p_value);
        [
            short(&row.slice, SPLIT),
            row.scenarios.to_string(),
            percent(base.success, 1),
            percent(row.success, 1),
            gain(row, 1),
            p,
        ]
    });
    table(std::iter::once(header).chain(lines), |line, column, cell| {
        let finding = (column == 4).then(|| pairs.get(line.checked_sub(1)?)).flatten();
        finding
            .and_then(|(_, row)| Finding::of(row))
            .map_or_else(|| cell.to_owned(), |found| paint(found, cell))
    })
}

/// Families or tools. The slices are small, so no decimals, and p is shown as a mark.
fn by_name(cut: &str, pairs: &Pairs<'_>) -> String {
    let header = [cut, "n", "success", "gain", ""].map(str::to_owned);
    let lines = pairs.iter().map(|(base, row)| {
        let measurable = Finding::of(row).is_some_and(|finding| finding != Finding::NoMeasurableGain);
        [
            short(&row.slice, NAME),
            row.scenarios.to_string(),
            format!("{} → {}", percent(base.success, 0), percent(row.success, 0)),
            gain(row, 0),
            if measurable { "*" } else { "" }.to_owned(),
        ]
    });
    table(std::iter::once(header).chain(lines), |_, _, cell| cell.to_owned())
}

/// The resampled units by split: `Resampled: 45 families (a, b); 31 entities (c).`
fn clusters(pairs: &Pairs<'_>) -> String {
    let mut by: Vec<(String, Vec<&str>)> = Vec::new();
    for (_, row) in pairs {
        let what = match (row.clustered_by.as_str(), row.clusters) {
            ("family", clusters) => format!("{clusters} families"),
            ("entity", clusters) => format!("{clusters} entities"),
            ("scenario", _) => "single tasks".to_owned(),
            (_, clusters) => format!("{clusters} questions, each in all its phrasings"),
        };
        match by.iter_mut().find(|(other, _)| *other == what) {
            Some((_, slices)) => slices.push(&row.slice),
            None => by.push((what, vec![&row.slice])),
        }
    }
    let parts = by.iter().map(|(what, slices)| format!("{what} ({})", slices.join(", ")));
    format!("Resampled: {}.", parts.collect::<Vec<_>>().join("; "))
}

/// The number of slices that gained, and the slices that lost.
fn count(cut: &str, pairs: &Pairs<'_>) -> String {
    let of = |wanted| {
        let fitting = pairs.iter().filter(move |(_, row)| Finding::of(row) == Some(wanted));
        fitting.map(|(_, row)| row.slice.as_str()).collect::<Vec<_>>()
    };
    let (gains, losses) = (of(Finding::Gain).len(), of(Finding::Regression));
    let losses = if losses.is_empty() { "none".to_owned() } else { losses.join(", ") };
    format!("Rows by {cut} with a measurable gain: {gains} of {}; with a regression: {losses}.", pairs.len())
}

fn protocol(rows: &[VerdictRow]) -> String {
    let header = ["policy", "mode", "success", "strict", "pass^k"].map(str::to_owned);
    let all = rows.iter().filter(|row| row.scope == "all").map(|row| {
        [
            short(&row.policy, POLICY),
            row.mode.clone(),
            percent(row.success, 1),
            row.success_strict.map_or_else(|| "-".into(), |share| percent(share, 1)),
            percent(row.success_all, 1),
        ]
    });
    table(std::iter::once(header).chain(all), |_, _, cell| cell.to_owned())
}

fn effort(rows: &[VerdictRow]) -> String {
    let header = ["policy", "mode", "calls", "turns", "tokens", "recovery"].map(str::to_owned);
    let all = rows.iter().filter(|row| row.scope == "all").map(|row| {
        [
            short(&row.policy, POLICY),
            row.mode.clone(),
            format!("{:.2}", row.calls),
            format!("{:.2}", row.turns),
            format!("{:.0}", row.tokens),
            row.error_recovery.map_or_else(|| "-".into(), |share| percent(share, 1)),
        ]
    });
    table(std::iter::once(header).chain(all), |_, _, cell| cell.to_owned())
}

/// Aligned columns, the first to the left, the others to the right. `paint` gets line, column and the padded
/// cell.
fn table<const N: usize>(
    lines: impl Iterator<Item = [String; N]>,
    paint: impl Fn(usize, usize, &str) -> String,
) -> String {
    let lines: Vec<[String; N]> = lines.collect();
    let wide = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(wide);
    let text = |(index, line): (usize, &[String; N])| {
        let cells = line.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
            let padded = if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") };
            paint(index, column, &padded)
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    lines.iter().enumerate().map(text).collect::<Vec<_>>().join("\n")
}

/// Indented, so that Markdown shows the text verbatim.
fn indented(table: &str) -> String {
    table.lines().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
}

fn success(row: &VerdictRow) -> String {
    let (low, high) = (100.0 * row.success_low, 100.0 * row.success_high);
    format!("{} % [{low:.0}, {high:.0}]", percent(row.success, 1))
}

fn gain(row: &VerdictRow, digits: usize) -> String {
    match (row.gain, row.gain_low, row.gain_high) {
        (Some(gain), Some(low), Some(high)) => {
            format!("{} [{}, {}]", points(gain, digits), points(low, 0), points(high, 0))
        }
        _ => String::new(),
    }
}

fn percent(share: f64, digits: usize) -> String {
    format!("{:.digits$}", 100.0 * share)
}

/// A difference of shares in points, with a sign unless it rounds to zero.
pub fn points(difference: f64, digits: usize) -> String {
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

/// Shortens names in the middle, so that names with equal beginnings or endings stay distinct.
fn short(name: &str, most: usize) -> String {
    let characters: Vec<char> = name.chars().collect();
    if characters.len() <= most {
        return name.to_owned();
    }
    let end = (most - 1) / 2;
    let start = most - 1 - end;
    characters[..start].iter().chain(&['…']).chain(&characters[characters.len() - end..]).collect()
}
