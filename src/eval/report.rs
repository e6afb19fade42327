//! The verdict as text: a summary for the end of a run, and a page with every table.
//!
//! Tables are at most 60 columns wide; long names are shortened in the middle. The page is Markdown that is
//! readable as plain text.

use std::{collections::BTreeMap, fmt::Write};

use serde::Serialize;

use super::{
    headline::{Difference, Headline, Standing, headline, interval, points, to_baseline, to_previous},
    verdict::{Finding, reported_mode, splits},
};
use crate::{
    data::{VerdictRow, is_of_trained_cases},
    text::percent,
};

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

/// The tables by split, how well each policy does, and the verdict as [`text`] writes it.
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
    let standings = headline(rows)
        .filter(|found| found.policies.len() > 1)
        .map(|found| format!("{}\n\n{}\n\n", standings_title(&found), standings(&found)));
    tables.collect::<String>() + &standings.unwrap_or_default() + &with_advice(rows, paint)
}

/// At most four lines: how well the policies do, the sentence on the last one, which to use, and the kinds of task that this
/// one solves least.
pub fn outcome(rows: &[VerdictRow], paint: Paint) -> String {
    let Some(found) = headline(rows) else { return joined(rows, paint) };
    let candidates: Vec<&Standing> = found.policies.iter().filter(|standing| standing.is_candidate).collect();
    let mut lines = Vec::new();
    if candidates.len() > 1 {
        let each = candidates.iter().map(|one| format!("{} {} %", one.policy, percent(one.success, 1)));
        let Headline { tasks, mode, .. } = found;
        lines.push(format!("{} of {tasks} held-out tasks, {mode}", each.collect::<Vec<_>>().join(" → ")));
    }
    lines.extend(claim_of(&found, sentences(rows, paint)).map(|claim| claim.text));
    lines.extend(found.advice.as_ref().map(super::Advice::sentence));
    let last = found.ends().map_or("", |(_, last)| &last.policy);
    let used = found.advice.as_ref().map_or(last, |advice| &advice.policy);
    lines.extend(weakest(rows, used, found.mode));
    lines.join("\n")
}

/// A sentence of a verdict, with the finding that decides its colour.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sentence {
    /// None for a single policy.
    pub finding: Option<Finding>,
    pub text: String,
}

/// The sentence on the last policy against the baseline; of a single policy, its success.
pub fn claim(rows: &[VerdictRow]) -> Option<Sentence> {
    claim_of(&headline(rows)?, sentences(rows, plain))
}

/// That one of these sentences, which are in the order of the differences.
fn claim_of(found: &Headline, mut sentences: Vec<Sentence>) -> Option<Sentence> {
    let of_last = found.gain().and_then(|gain| found.differences.iter().position(|one| one == gain));
    let at = of_last.unwrap_or(0);
    (at < sentences.len()).then(|| sentences.swap_remove(at))
}

/// Fewest tasks of a kind that its success is shown of.
const FEW: u32 = 3;
/// Most kinds that are shown.
const WEAKEST: usize = 3;

/// `Weakest kinds of trained: city_of_named 0 % of 6, …`. None if there are no kinds to tell apart, or all tasks are solved.
fn weakest(rows: &[VerdictRow], policy: &str, mode: &str) -> Option<String> {
    let is_it = |row: &&VerdictRow| row.scope == "family" && row.policy == policy && row.mode == mode;
    let mut kinds: Vec<&VerdictRow> = rows.iter().filter(is_it).collect();
    if kinds.len() < 2 {
        return None;
    }
    kinds.retain(|row| row.scenarios >= FEW && row.success < 1.0);
    kinds.sort_by(|one, other| {
        one.success.total_cmp(&other.success).then(other.scenarios.cmp(&one.scenarios))
    });
    let shown = kinds.iter().take(WEAKEST);
    let shown: Vec<String> = shown
        .map(|row| {
            let name = if row.slice.contains(' ') { format!("\"{}\"", row.slice) } else { row.slice.clone() };
            format!("{name} {} % of {}", percent(row.success, 0), row.scenarios)
        })
        .collect();
    (!shown.is_empty()).then(|| format!("Weakest kinds of {policy}: {}.", shown.join(", ")))
}

/// Only the verdict: a sentence for each comparison, and which policy to use.
pub fn text(rows: &[VerdictRow]) -> String {
    with_advice(rows, plain)
}

/// Only a sentence for each comparison: with the baseline, and with the policy before.
pub fn comparison(rows: &[VerdictRow]) -> Vec<Sentence> {
    sentences(rows, plain)
}

fn with_advice(rows: &[VerdictRow], paint: Paint) -> String {
    let advice = headline(rows).and_then(|found| found.advice);
    let advice = advice.map(|advice| format!("\n{}", advice.sentence()));
    joined(rows, paint) + &advice.unwrap_or_default()
}

fn standings_title(found: &Headline) -> String {
    let what = if found.of_trained_cases { " (unseen phrasings of trained cases)" } else { "" };
    format!("{} held-out tasks{what}, {}, success in %", found.tasks, found.mode)
}

/// A line for each policy.
fn standings(found: &Headline) -> String {
    let any = |is: fn(&Standing) -> bool| found.policies.iter().any(is);
    let sampled =
        if any(|standing| standing.sampled.is_some()) { "sampled".to_owned() } else { String::new() };
    let episodes = found.policies.iter().find_map(|standing| standing.all_right);
    let all_right = episodes.map_or_else(String::new, |(_, episodes)| format!("pass^{episodes}"));
    let [policy, success, interval, strict] = ["policy", "success", "95 %", "strict"].map(str::to_owned);
    let header = [policy, success, interval, sampled, all_right, strict];
    let share = |share: Option<f64>| share.map_or_else(String::new, |share| percent(share, 1));
    let lines = found.policies.iter().map(|standing| {
        [
            short(&standing.policy, POLICY),
            percent(standing.success, 1),
            format!("{} to {}", percent(standing.low, 0), percent(standing.high, 0)),
            share(standing.sampled),
            share(standing.all_right.map(|(share, _)| share)),
            share(standing.by_protocol),
        ]
    });
    table(std::iter::once(header).chain(lines), |_, _, cell| cell.to_owned())
}

/// The page. `notes` follow the verdict, one paragraph each.
pub fn report(rows: &[VerdictRow], notes: &[String]) -> String {
    let mut page = format!("# Verdict\n\n{}\n", text(rows).replace('\n', "  \n"));
    if let Some(found) = headline(rows) {
        _ = write!(page, "\n{}:\n\n{}\n\n{STANDINGS}", standings_title(&found), indented(&standings(&found)));
    }
    for note in notes {
        _ = write!(page, "\n{note}\n");
    }
    if rows.is_empty() {
        return page;
    }
    for (policy, baseline) in comparisons(rows) {
        for mode in names(rows, |row| Some(&row.mode)) {
            for cut in ["split", "kind", "family", "tool"] {
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
        if splits(rows).iter().any(|split| is_of_trained_cases(split)) {
            page += TRAINED_CASES;
        }
    }
    if let Some(changes) = changes(rows) {
        _ = write!(page, "\n## Changes\n\n{}\n\n{CHANGES}", indented(&changes));
    }
    _ = write!(page, "\n## Protocol\n\n{}\n\n{PROTOCOL}", indented(&protocol(rows)));
    _ = write!(page, "\n## Effort\n\n{}\n\n{EFFORT}", indented(&effort(rows)));
    page
}

const STANDINGS: &str = "\
Success is that with greedy decoding, as an agent is served; sampled is
the mean of episodes at temperature 1, and pass^k the share of tasks
whose every one of k such episodes is right. Strict: solved by protocol,
that is with every call in the form of the chat template and the answer
given to complete_task. Use says which policy to take: the last one that
is measurably better than the one that would be used without it.
";

const MEANING: &str = "\
Gain is the difference in success on the same tasks, in points, with its
95 % interval. Questions of one family tend to be right or wrong
together, so the interval counts whole families. Where a table's row
has fewer than 10 families, it counts entities, then questions that are
one but for their phrasing, then single tasks. Such a row applies to
its own families only. p is the sign-flip test of the same clusters,
adjusted by Holm's method for all policies, modes and steps. It alone
decides: a gain is measurable (*) where p is below 0.05.
";

const TRAINED_CASES: &str = "\
Rows below \"all\" are of trained cases in other words. They are in no
other row.
";

const PROTOCOL: &str = "\
Success in %. Strict: the episode was right, wrote every call in the
form of the chat template and gave its answer to complete_task, as a
client that reads nothing else needs it. pass^k: tasks whose every
episode was right.
";

const CHANGES: &str = "\
Tasks that change something, or must not, in % of the episodes. Of those
that are wrong, some changed nothing of what is checked, and some changed
something else than what was wanted. The others did a part of it, or all
of it and gave a wrong answer.
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

/// The verdict, a line for each comparison.
pub(super) fn joined(rows: &[VerdictRow], paint: Paint) -> String {
    let all: Vec<String> = sentences(rows, paint).into_iter().map(|sentence| sentence.text).collect();
    if all.is_empty() { "nothing to compare".to_owned() } else { all.join("\n") }
}

fn sentences(rows: &[VerdictRow], paint: Paint) -> Vec<Sentence> {
    let mode = reported_mode(rows);
    let Some(found) = headline(rows) else { return Vec::new() };
    let on = if found.of_trained_cases { "unseen phrasings" } else { "held-out tasks" };
    let in_mode = |row: &&VerdictRow| row.mode == mode;
    let baseline = found.policies[0].policy.as_str();
    type OfRow<'a> = &'a dyn Fn(&VerdictRow) -> Option<Difference>;
    let comparisons: [OfRow<'_>; 2] = [&|row| to_baseline(row, baseline), &to_previous];
    let mut lines = Vec::new();
    for all in rows.iter().filter(in_mode).filter(|row| row.scope == "all") {
        let by_split = || {
            let of_policy = |row: &&VerdictRow| row.policy == all.policy && row.scope == "split";
            rows.iter().filter(in_mode).filter(of_policy)
        };
        for of in comparisons {
            let others: Vec<(&str, Finding)> =
                by_split().filter_map(|row| Some((row.slice.as_str(), of(row)?.finding))).collect();
            lines.extend(of(all).map(|difference| Sentence {
                finding: Some(difference.finding),
                text: sentence(&difference, on, &others, paint),
            }));
        }
    }
    if let (true, Some(alone)) = (lines.is_empty(), found.policies.first()) {
        let [low, high] = [alone.low, alone.high].map(|bound| percent(bound, 0));
        let success = format!("{} % [{low}, {high}]", percent(alone.success, 1));
        let text = format!("{} alone, nothing to compare: success {success}", alone.policy);
        lines.push(Sentence { finding: None, text });
    }
    lines
}

/// `trained beats base on held-out tasks: +43.3 points [+36, +50], p < 0.001; no measurable gain on c`.
fn sentence(difference: &Difference, on: &str, by_split: &[(&str, Finding)], paint: Paint) -> String {
    let Difference { policy, to, gain, p, finding, detectable, .. } = difference;
    let claim = match finding {
        Finding::Gain => format!("{policy} beats {to} on {on}"),
        Finding::NoMeasurableGain => format!("no measurable gain of {policy} over {to} on {on}"),
        Finding::Regression => format!("{policy} is worse than {to} on {on}"),
    };
    let p = p.map_or_else(String::new, |p| match p_value(p).strip_prefix('<') {
        Some(bound) => format!(", p < {bound}"),
        None => format!(", p = {}", p_value(p)),
    });
    let seen = detectable.filter(|_| *finding == Finding::NoMeasurableGain);
    let seen = seen.map_or_else(String::new, |least| {
        format!(" (an exam like this sees differences of {:.0} points or more)", 100.0 * least)
    });
    let figures = format!("{} points {}{p}{seen}", points(*gain, 1), interval(difference));
    let is_vague = |other: &Finding| *other == Finding::NoMeasurableGain && finding != other;
    if by_split.len() > 1 && by_split.iter().all(|(_, other)| is_vague(other)) {
        return paint(*finding, &format!("{claim}: {figures}"))
            + "; no split alone has enough tasks to show it";
    }
    let mut others: BTreeMap<Finding, Vec<&str>> = BTreeMap::new();
    for (slice, other) in by_split.iter().filter(|(_, other)| other != finding) {
        others.entry(*other).or_default().push(slice);
    }
    let others = others
        .iter()
        .map(|(finding, slices)| paint(*finding, &format!("; {} on {}", finding.label(), slices.join(", "))));
    paint(*finding, &format!("{claim}: {figures}")) + &others.collect::<String>()
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

/// (baseline's row, policy's row) of every slice of the table. If there are several splits, their total comes after those that
/// are in it.
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
    let of_scope = |scope: &str| of(baseline, scope).into_iter().zip(of(policy, scope));
    if cut != "split" || splits(rows).len() < 2 {
        return of_scope(cut).collect();
    }
    let (old, new): (Vec<_>, Vec<_>) =
        of_scope("split").partition(|(_, row)| is_of_trained_cases(&row.slice));
    new.into_iter().chain(of_scope("all")).chain(old).collect()
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

/// The units counted by split: `Counted: 45 families (a, b); 31 entities (c).`
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
    format!("Counted: {}.", parts.collect::<Vec<_>>().join("; "))
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

/// Absent if no task is about a change.
fn changes(rows: &[VerdictRow]) -> Option<String> {
    let header = ["policy", "mode", "tasks", "solved", "changed nothing", "changed something else"];
    let share = |share: Option<f64>| share.map_or_else(|| "-".into(), |share| percent(share, 1));
    let line = |row: &VerdictRow| {
        [
            short(&row.policy, POLICY),
            row.mode.clone(),
            row.scenarios.to_string(),
            percent(row.success, 1),
            share(row.changed_nothing),
            share(row.changed_other),
        ]
    };
    let lines: Vec<[String; 6]> = rows.iter().filter(|row| row.scope == "changes").map(line).collect();
    let lines = Some(lines).filter(|lines| !lines.is_empty())?;
    let header = header.map(str::to_owned);
    Some(table(std::iter::once(header).chain(lines), |_, _, cell| cell.to_owned()))
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

fn gain(row: &VerdictRow, digits: usize) -> String {
    match (row.gain, row.gain_low, row.gain_high) {
        (Some(gain), Some(low), Some(high)) => {
            format!("{} [{}, {}]", points(gain, digits), points(low, 0), points(high, 0))
        }
        _ => String::new(),
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
