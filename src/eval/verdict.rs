//! From episodes to rows, and from rows to words.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{bootstrap_mean, sign_test, wilson};
use crate::data::{Scenario, VerdictRow};

/// How the episodes of an exam were sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// The most likely token every time; one episode per scenario.
    Greedy,
    /// At temperature 1.
    Sampled,
}

impl Mode {
    /// As it stands in [`VerdictRow::mode`].
    pub fn name(self) -> &'static str {
        match self {
            Self::Greedy => "greedy",
            Self::Sampled => "sampled",
        }
    }
}

/// One finished episode, as far as the verdict reads it.
#[derive(Debug, Clone, PartialEq)]
pub struct Episode {
    /// Id of its scenario.
    pub scenario: String,
    /// Name of the policy that acted.
    pub policy: String,
    pub mode: Mode,
    /// Whether the answer equals the ground truth.
    pub right: bool,
    pub calls: u32,
    pub turns: u32,
    /// Sampled tokens.
    pub tokens: u32,
    pub tool_errors: u32,
    /// Names of the tools called.
    pub tools: Vec<String>,
}

/// What is examined.
#[derive(Debug, Clone, Copy)]
pub struct Exam<'a> {
    /// The first is the baseline.
    pub policies: &'a [String],
    pub scenarios: &'a [Scenario],
    /// Tools to cut slices by. A scenario is in a tool's slice if its reference solution calls the tool, or any policy
    /// did: one set for all policies.
    pub tools: &'a [String],
    /// Resamples of the bootstrap.
    pub resamples: usize,
    /// Seed of the bootstrap, the same in every row: equal differences have equal intervals.
    pub seed: u64,
}

/// Rows by scope, slice, mode and policy, in this order; slices by name.
pub fn verdict(exam: &Exam<'_>, episodes: &[Episode]) -> Vec<VerdictRow> {
    let attempts: Vec<(Mode, Attempts<'_>)> = [Mode::Greedy, Mode::Sampled]
        .map(|mode| (mode, Attempts::of(exam, episodes.iter().filter(|episode| episode.mode == mode))))
        .into();
    let mut rows = Vec::new();
    for (scope, slice, scenarios) in slices(exam, episodes) {
        for (mode, attempts) in &attempts {
            let paired: Vec<&Vec<Vec<&Episode>>> =
                scenarios.iter().filter_map(|id| attempts.by_scenario.get(id)).collect();
            if paired.is_empty() {
                continue;
            }
            let shares: Vec<Vec<f64>> = (0..exam.policies.len())
                .map(|policy| paired.iter().map(|attempts| share(&attempts[policy])).collect())
                .collect();
            for (index, policy) in exam.policies.iter().enumerate() {
                let episodes: Vec<&Episode> =
                    paired.iter().flat_map(|attempts| &attempts[index]).copied().collect();
                let mut row = alone(&shares[index], &episodes);
                if index > 0 {
                    compare(&mut row, &shares[0], &shares[index], exam.resamples, exam.seed);
                }
                rows.push(VerdictRow {
                    scope: scope.to_owned(),
                    slice: slice.clone(),
                    mode: mode.name().to_owned(),
                    policy: policy.clone(),
                    ..row
                });
            }
        }
    }
    rows
}

/// The episodes of one mode.
struct Attempts<'a> {
    /// By scenario, then by policy in the exam's order; scenarios that a policy has no episode of are left out.
    by_scenario: BTreeMap<&'a str, Vec<Vec<&'a Episode>>>,
}

impl<'a> Attempts<'a> {
    fn of(exam: &Exam<'a>, episodes: impl Iterator<Item = &'a Episode>) -> Self {
        let mut by_scenario: BTreeMap<&str, Vec<Vec<&Episode>>> = BTreeMap::new();
        for episode in episodes {
            if let Some(policy) = exam.policies.iter().position(|policy| *policy == episode.policy) {
                let of_scenario = by_scenario.entry(&episode.scenario);
                of_scenario.or_insert_with(|| vec![Vec::new(); exam.policies.len()])[policy].push(episode);
            }
        }
        by_scenario.retain(|_, attempts| attempts.iter().all(|of_policy| !of_policy.is_empty()));
        Self { by_scenario }
    }
}

/// Every slice with the ids of its scenarios, each once, in the exam's order.
fn slices<'a>(exam: &Exam<'a>, episodes: &[Episode]) -> Vec<(&'static str, String, Vec<&'a str>)> {
    let mut called: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for episode in episodes {
        called.entry(&episode.scenario).or_default().extend(episode.tools.iter().map(String::as_str));
    }
    const SCOPES: [&str; 4] = ["all", "split", "family", "tool"];
    let mut slices: BTreeMap<(usize, String), Vec<&str>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for scenario in exam.scenarios.iter().filter(|scenario| seen.insert(&scenario.id)) {
        let referred = referred(scenario);
        let uses = |tool: &&String| {
            referred.contains(*tool)
                || called.get(scenario.id.as_str()).is_some_and(|called| called.contains(tool.as_str()))
        };
        let tools = exam.tools.iter().filter(uses).map(|tool| (3, tool.clone()));
        let own = [(0, "all".to_owned()), (1, scenario.split.clone()), (2, scenario.family.clone())];
        for key in own.into_iter().chain(tools) {
            slices.entry(key).or_default().push(&scenario.id);
        }
    }
    slices.into_iter().map(|((scope, slice), ids)| (SCOPES[scope], slice, ids)).collect()
}

/// Tools that the reference solution calls.
fn referred(scenario: &Scenario) -> BTreeSet<String> {
    let calls = scenario.reference.as_deref().and_then(|text| serde_json::from_str::<Vec<Value>>(text).ok());
    calls.iter().flatten().filter_map(|call| call["name"].as_str().map(str::to_owned)).collect()
}

/// Share of right episodes; there is at least one.
fn share(episodes: &[&Episode]) -> f64 {
    episodes.iter().filter(|episode| episode.right).count() as f64 / episodes.len() as f64
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// What a policy achieved, without a look at the baseline.
fn alone(shares: &[f64], episodes: &[&Episode]) -> VerdictRow {
    let success = mean(shares);
    let interval = wilson(success, shares.len());
    let per_episode = |count: fn(&Episode) -> u32| {
        episodes.iter().map(|episode| u64::from(count(episode))).sum::<u64>() as f64 / episodes.len() as f64
    };
    let (stumbled, recovered) = episodes
        .iter()
        .filter(|episode| episode.tool_errors > 0)
        .fold((0_u32, 0_u32), |(stumbled, right), episode| (stumbled + 1, right + u32::from(episode.right)));
    VerdictRow {
        scope: String::new(),
        slice: String::new(),
        mode: String::new(),
        policy: String::new(),
        scenarios: shares.len() as u32,
        episodes: episodes.len() as u32,
        success,
        success_all: shares.iter().filter(|share| **share == 1.0).count() as f64 / shares.len() as f64,
        success_low: interval.low,
        success_high: interval.high,
        gain: None,
        gain_low: None,
        gain_high: None,
        better: None,
        worse: None,
        p_value: None,
        calls: per_episode(|episode| episode.calls),
        turns: per_episode(|episode| episode.turns),
        tokens: per_episode(|episode| episode.tokens),
        error_recovery: (stumbled > 0).then(|| f64::from(recovered) / f64::from(stumbled)),
    }
}

/// Adds how the row's policy stands to the baseline. Both have one share per scenario, in the same order.
fn compare(row: &mut VerdictRow, baseline: &[f64], shares: &[f64], resamples: usize, seed: u64) {
    let differences: Vec<f64> = shares.iter().zip(baseline).map(|(share, base)| share - base).collect();
    let interval = bootstrap_mean(&differences, resamples, seed);
    let better = differences.iter().filter(|difference| **difference > 0.0).count() as u32;
    let worse = differences.iter().filter(|difference| **difference < 0.0).count() as u32;
    row.gain = Some(mean(&differences));
    row.gain_low = Some(interval.low);
    row.gain_high = Some(interval.high);
    row.better = Some(better);
    row.worse = Some(worse);
    row.p_value = Some(sign_test(better.into(), worse.into()));
}

/// What a comparison amounts to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    Gain,
    NoMeasurableGain,
    Regression,
}

impl Finding {
    /// Chance of a false alarm that the sign test may leave.
    const LEVEL: f64 = 0.05;

    /// `None` for the baseline. A difference is measurable if its interval is clear of zero and the sign test agrees:
    /// on a handful of scenarios the bootstrap alone is too sure of itself.
    pub fn of(row: &VerdictRow) -> Option<Self> {
        let (low, high, p_value) = (row.gain_low?, row.gain_high?, row.p_value?);
        Some(match p_value < Self::LEVEL {
            true if low > 0.0 => Self::Gain,
            true if high < 0.0 => Self::Regression,
            _ => Self::NoMeasurableGain,
        })
    }

    pub fn words(self) -> &'static str {
        match self {
            Self::Gain => "measurable gain",
            Self::NoMeasurableGain => "no measurable gain",
            Self::Regression => "regression",
        }
    }
}

/// The mode that the verdict speaks of: greedy where there is one, because that is how an agent is put to use.
pub(super) fn spoken_mode(rows: &[VerdictRow]) -> &'static str {
    let greedy = rows.iter().any(|row| row.mode == Mode::Greedy.name());
    if greedy { Mode::Greedy.name() } else { Mode::Sampled.name() }
}

/// The verdict by split, a line per compared policy: `trained: measurable gain on a, b; no measurable gain on c`.
pub fn headline(rows: &[VerdictRow]) -> String {
    let mode = spoken_mode(rows);
    let mut lines: Vec<(&str, BTreeMap<Finding, Vec<&str>>)> = Vec::new();
    for row in rows.iter().filter(|row| row.scope == "split" && row.mode == mode) {
        let Some(finding) = Finding::of(row) else { continue };
        let line = match lines.iter().position(|(policy, _)| *policy == row.policy) {
            Some(line) => line,
            None => {
                lines.push((&row.policy, BTreeMap::new()));
                lines.len() - 1
            }
        };
        lines[line].1.entry(finding).or_default().push(&row.slice);
    }
    let clause =
        |(finding, slices): (&Finding, &Vec<&str>)| format!("{} on {}", finding.words(), slices.join(", "));
    let line = |(policy, findings): &(&str, BTreeMap<Finding, Vec<&str>>)| {
        format!("{policy}: {}", findings.iter().map(clause).collect::<Vec<_>>().join("; "))
    };
    match lines.is_empty() {
        true => "nothing to compare".to_owned(),
        false => lines.iter().map(line).collect::<Vec<_>>().join("\n"),
    }
}

/// The rows as numbers for `until` and for people, for `all` and every split: `a.trained.greedy`, a success rate;
/// `a.trained.gain`, over the baseline, greedy where there is a greedy mode; and `a.gain`, that of the last policy.
pub fn metrics(rows: &[VerdictRow]) -> BTreeMap<String, f64> {
    let mode = spoken_mode(rows);
    let mut metrics = BTreeMap::new();
    for row in rows.iter().filter(|row| row.scope == "all" || row.scope == "split") {
        metrics.insert(format!("{}.{}.{}", row.slice, row.policy, row.mode), row.success);
        if let Some(gain) = row.gain.filter(|_| row.mode == mode) {
            metrics.insert(format!("{}.{}.gain", row.slice, row.policy), gain);
            metrics.insert(format!("{}.gain", row.slice), gain);
        }
    }
    metrics
}
