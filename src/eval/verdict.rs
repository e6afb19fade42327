//! Computes rows from episodes, and findings from rows.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use super::{Clusters, difference_interval, holm, rate_interval, sign_flip, smallest_difference};
use crate::data::{Change, Scenario, Sparse, VerdictRow, is_of_trained_cases};

/// How the episodes of a comparison were sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Always the most likely token; one episode per scenario.
    Greedy,
    /// As the agent samples when it is used.
    Sampled,
}

impl Mode {
    /// A verdict's headline is of the first of these that was played: greedy, as an agent is served.
    pub const HEADLINE: [Self; 2] = [Self::Greedy, Self::Sampled];

    /// The mode's name in [`VerdictRow::mode`].
    pub fn name(self) -> &'static str {
        match self {
            Self::Greedy => "greedy",
            Self::Sampled => "sampled",
        }
    }
}

/// The part of a finished episode that the verdict reads.
#[derive(Debug, Clone, PartialEq)]
pub struct Episode {
    /// Id of the scenario.
    pub scenario: String,
    /// Name of the policy that acted.
    pub policy: String,
    pub mode: Mode,
    /// Whether the answer equals the ground truth.
    pub right: bool,
    /// What it did to the state that its scenario checks, where that is known.
    pub changed: Option<Change>,
    /// As [`keeps_protocol`](crate::data::keeps_protocol) says.
    pub by_protocol: bool,
    /// Of a vote: whether any of the episodes that voted is right.
    pub any_right: Option<bool>,
    pub calls: u32,
    pub turns: u32,
    /// Sampled tokens.
    pub tokens: u32,
    pub tool_errors: u32,
    /// Names of the tools called.
    pub tools: Vec<String>,
}

/// What is compared.
#[derive(Debug, Clone, Copy, Default)]
pub struct Comparison<'a> {
    /// The first policy is the baseline.
    pub policies: &'a [String],
    pub scenarios: &'a [Scenario],
    /// Those of the policies that are there for comparison alone.
    pub comparison_only: &'a [String],
    /// Those of them that are not compared with the others: agents that know nothing.
    pub idle: &'a [String],
    /// Those that are another of the policies with a prompt of their own, each with that one.
    pub variants: &'a [(String, String)],
    /// Tools to form slices by. A scenario is in a tool's slice if its reference solution or any policy
    /// called the tool: the same slice for all policies.
    pub tools: &'a [String],
}

/// Rows ordered by scope, slice, mode and policy; slices by name. Each policy is compared with the first, and with the one before
/// it; a variant with its own policy instead. Those in [`Comparison::comparison_only`] are no policies that another one continues,
/// and neither are variants, but for one that is the baseline.
pub fn verdict(comparison: &Comparison<'_>, episodes: &[Episode]) -> Vec<VerdictRow> {
    rows(comparison, episodes, slices(comparison, episodes))
}

/// The rows over all tasks alone, with p adjusted for these.
pub fn overall(comparison: &Comparison<'_>, episodes: &[Episode]) -> Vec<VerdictRow> {
    let mut slices = slices(comparison, episodes);
    slices.retain(|(scope, ..)| *scope == "all");
    rows(comparison, episodes, slices)
}

fn rows<'a>(comparison: &Comparison<'a>, episodes: &[Episode], slices: Vec<Slice<'a>>) -> Vec<VerdictRow> {
    let modes = [Mode::Greedy, Mode::Sampled]
        .map(|mode| (mode, by_scenario(comparison, episodes.iter().filter(|episode| episode.mode == mode))));
    let mut rows = Vec::new();
    for (scope, slice, scenarios) in slices {
        for (mode, by_scenario) in &modes {
            let of_scenario = |scenario: &&Scenario| by_scenario.get(scenario.id.as_str());
            let (scenarios, paired): (Vec<&Scenario>, Vec<&Vec<Vec<&Episode>>>) =
                scenarios.iter().filter_map(|scenario| Some((*scenario, of_scenario(scenario)?))).unzip();
            if paired.is_empty() {
                continue;
            }
            let grouping = Grouping::of(&scenarios);
            let shares_of = |counts: fn(&Episode) -> bool| -> Vec<Vec<f64>> {
                let of =
                    |policy: usize| paired.iter().map(|episodes| share(&episodes[policy], counts)).collect();
                (0..comparison.policies.len()).map(of).collect()
            };
            let shares = shares_of(|episode| episode.right);
            let strict = shares_of(|episode| episode.right && episode.by_protocol);
            let mut previous = None;
            for (index, policy) in comparison.policies.iter().enumerate() {
                let episodes: Vec<&Episode> =
                    paired.iter().flat_map(|episodes| &episodes[index]).copied().collect();
                let mut row = policy_row(&shares[index], &episodes, &grouping);
                let own = comparison.variants.iter().find(|(name, _)| name == policy).map(|(_, own)| own);
                let is_comparison_only =
                    comparison.comparison_only.contains(policy) || own.is_some() && index > 0;
                let to = |other: usize| Paired::of(&shares[other], &shares[index], &grouping);
                if index > 0 && !comparison.idle.contains(policy) {
                    let Paired { gain, low, high, better, worse, detectable, p_value } = to(0);
                    (row.gain, row.gain_low, row.gain_high) = (Some(gain), Some(low), Some(high));
                    (row.better, row.worse, row.p_value) = (Some(better), Some(worse), Some(p_value));
                    row.detectable = Some(detectable);
                }
                let before = match own {
                    Some(own) => {
                        comparison.policies.iter().position(|name| name == own).filter(|_| index > 0)
                    }
                    None => previous.filter(|_| !is_comparison_only),
                };
                if let Some(before) = before.filter(|before| *before > 0) {
                    let Paired { gain, low, high, p_value, .. } = to(before);
                    row.previous = Some(comparison.policies[before].clone());
                    (row.step, row.step_low, row.step_high) = (Some(gain), Some(low), Some(high));
                    row.step_p_adjusted = Some(p_value);
                }
                if is_comparison_only {
                    row.comparison_only = Some(true);
                } else {
                    previous = Some(index);
                }
                if scope == "changes" {
                    let of =
                        |change| move |episode: &Episode| !episode.right && episode.changed == Some(change);
                    row.changed_nothing = Some(share(&episodes, of(Change::Nothing)));
                    row.changed_other = Some(share(&episodes, of(Change::Other)));
                }
                row.variant_of = own.cloned();
                row.success_strict = Some(mean(&strict[index]));
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
    adjust(&mut rows);
    rows
}

/// Scenarios to count together, because their outcomes may depend on each other.
///
/// Groups by family if there are at least ten families. Fewer give little information about other families
/// (Cameron, Gelbach and Miller 2008), so the row then applies only to these families and groups by entity:
/// questions about one entity are correlated too. Next come the phrasings of one question, then single
/// scenarios.
struct Grouping {
    by: &'static str,
    clusters: usize,
    /// The cluster of each scenario.
    members: Vec<usize>,
}

impl Grouping {
    const ENOUGH: usize = 10;

    fn of(scenarios: &[&Scenario]) -> Self {
        /// The label that scenarios of a cluster share. A scenario without an entity uses its own id.
        type Label<'a> = (&'a str, &'a str);
        type Labelled = (&'static str, fn(&Scenario) -> Label<'_>);
        fn entity(scenario: &Scenario) -> &str {
            scenario.entity.as_deref().unwrap_or(&scenario.id)
        }
        let labels: [Labelled; 3] = [
            ("family", |scenario| (&scenario.family, "")),
            ("entity", |scenario| ("", entity(scenario))),
            ("family and entity", |scenario| (&scenario.family, entity(scenario))),
        ];
        for (by, label) in labels {
            let mut numbers: BTreeMap<Label<'_>, usize> = BTreeMap::new();
            let members: Vec<usize> = scenarios
                .iter()
                .map(|scenario| {
                    let next = numbers.len();
                    *numbers.entry(label(scenario)).or_insert(next)
                })
                .collect();
            if (Self::ENOUGH..scenarios.len()).contains(&numbers.len()) {
                return Self { by, clusters: numbers.len(), members };
            }
        }
        Self { by: "scenario", clusters: scenarios.len(), members: (0..scenarios.len()).collect() }
    }
}

/// Adjusts the p-values of each kind of table of the report for its number of tests: of all policies, modes and steps.
fn adjust(rows: &mut [VerdictRow]) {
    let one_split = splits(rows).len() < 2;
    let mut tables: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, row) in rows.iter().enumerate() {
        // The table of splits includes their total. With one split, that row would be a duplicate.
        let table = if row.scope == "all" && !one_split { "split" } else { &row.scope };
        tables.entry(table.to_owned()).or_default().push(index);
    }
    for table in tables.values() {
        let tests = table.iter().flat_map(|index| [rows[*index].p_value, rows[*index].step_p_adjusted]);
        let mut adjusted = holm(&tests.flatten().collect::<Vec<_>>()).into_iter();
        for index in table {
            let row = &mut rows[*index];
            row.p_adjusted = row.p_value.and_then(|_| adjusted.next());
            row.step_p_adjusted = row.step_p_adjusted.and_then(|_| adjusted.next());
        }
    }
}

pub(super) fn splits(rows: &[VerdictRow]) -> BTreeSet<&str> {
    rows.iter().filter(|row| row.scope == "split").map(|row| row.slice.as_str()).collect()
}

/// Episodes by scenario, then by policy in the given order. Scenarios without episodes of some policy are left
/// out.
type ByScenario<'a> = BTreeMap<&'a str, Vec<Vec<&'a Episode>>>;

fn by_scenario<'a>(
    comparison: &Comparison<'_>,
    episodes: impl Iterator<Item = &'a Episode>,
) -> ByScenario<'a> {
    let mut by_scenario = ByScenario::new();
    for episode in episodes {
        if let Some(policy) = comparison.policies.iter().position(|policy| *policy == episode.policy) {
            let of_scenario = by_scenario.entry(&episode.scenario);
            of_scenario.or_insert_with(|| vec![Vec::new(); comparison.policies.len()])[policy].push(episode);
        }
    }
    by_scenario.retain(|_, episodes| episodes.iter().all(|of_policy| !of_policy.is_empty()));
    by_scenario
}

/// Slices of held-out tasks: one differs from a training task in what it names alone, or there is none of its kind.
const TRAINED_KIND: &str = "a trained kind, with another value";
const NEW_KIND: &str = "of a kind that training never had";

/// The slice of tasks that change something, or must not.
const CHANGES: &str = "tasks about changes";

/// A scope, a slice of it, and its tasks.
type Slice<'a> = (&'static str, String, Vec<&'a Scenario>);

/// Every slice with its distinct scenarios, in the given order.
fn slices<'a>(comparison: &Comparison<'a>, episodes: &[Episode]) -> Vec<Slice<'a>> {
    let mut called: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for episode in episodes {
        called.entry(&episode.scenario).or_default().extend(episode.tools.iter().map(String::as_str));
    }
    let changing: BTreeSet<&str> = episodes
        .iter()
        .filter(|episode| episode.changed.is_some())
        .map(|episode| &*episode.scenario)
        .collect();
    const SCOPES: [&str; 6] = ["all", "split", "family", "tool", "kind", "changes"];
    let is_old = |scenario: &Scenario| is_of_trained_cases(&scenario.split);
    let only_old = comparison.scenarios.iter().all(is_old);
    let mut slices: BTreeMap<(usize, String), Vec<&Scenario>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for scenario in comparison.scenarios.iter().filter(|scenario| seen.insert(&scenario.id)) {
        let reference_tools = reference_tools(scenario);
        let uses = |tool: &&String| {
            reference_tools.contains(*tool)
                || called.get(scenario.id.as_str()).is_some_and(|called| called.contains(tool.as_str()))
        };
        let tools = comparison.tools.iter().filter(uses).map(|tool| (3, tool.clone()));
        let kind =
            scenario.trained_kind.map(|Sparse(trained)| (4, if trained { TRAINED_KIND } else { NEW_KIND }));
        let kind = kind.map(|(scope, slice)| (scope, slice.to_owned()));
        let own = [(1, scenario.split.clone()), (0, "all".to_owned()), (2, scenario.family.clone())];
        let most = if is_old(scenario) && !only_old { 1 } else { usize::MAX };
        let changes = changing.contains(scenario.id.as_str()).then(|| (5, CHANGES.to_owned()));
        for key in own.into_iter().chain(kind).chain(changes).chain(tools).take(most) {
            slices.entry(key).or_default().push(scenario);
        }
    }
    slices.into_iter().map(|((scope, slice), scenarios)| (SCOPES[scope], slice, scenarios)).collect()
}

/// Tools that the reference solution calls.
fn reference_tools(scenario: &Scenario) -> BTreeSet<String> {
    let calls = scenario.reference.as_deref().and_then(|text| serde_json::from_str::<Vec<Value>>(text).ok());
    calls.iter().flatten().filter_map(|call| call["name"].as_str().map(str::to_owned)).collect()
}

/// Share of the episodes that count; needs at least one episode.
fn share(episodes: &[&Episode], counts: impl Fn(&Episode) -> bool) -> f64 {
    episodes.iter().filter(|episode| counts(episode)).count() as f64 / episodes.len() as f64
}

fn mean(shares: &[f64]) -> f64 {
    shares.iter().sum::<f64>() / shares.len() as f64
}

/// A policy's results, without comparison.
fn policy_row(shares: &[f64], episodes: &[&Episode], grouping: &Grouping) -> VerdictRow {
    let interval = rate_interval(&Clusters::new(shares, &grouping.members));
    let per_episode = |count: fn(&Episode) -> u32| {
        episodes.iter().map(|episode| u64::from(count(episode))).sum::<u64>() as f64 / episodes.len() as f64
    };
    let with_errors: Vec<&Episode> =
        episodes.iter().copied().filter(|episode| episode.tool_errors > 0).collect();
    VerdictRow {
        scenarios: shares.len() as u32,
        episodes: episodes.len() as u32,
        success: mean(shares),
        success_all: shares.iter().filter(|share| **share == 1.0).count() as f64 / shares.len() as f64,
        success_any: any_right(episodes),
        success_low: interval.low,
        success_high: interval.high,
        clustered_by: grouping.by.to_owned(),
        clusters: grouping.clusters as u32,
        calls: per_episode(|episode| episode.calls),
        turns: per_episode(|episode| episode.turns),
        tokens: per_episode(|episode| episode.tokens),
        error_recovery: (!with_errors.is_empty()).then(|| share(&with_errors, |episode| episode.right)),
        ..VerdictRow::default()
    }
}

/// Share of the votes with a right episode; absent for other episodes. A scenario has one vote.
fn any_right(episodes: &[&Episode]) -> Option<f64> {
    let any: Option<Vec<bool>> = episodes.iter().map(|episode| episode.any_right).collect();
    any.map(|any| any.iter().filter(|any| **any).count() as f64 / any.len() as f64)
}

/// The paired difference between two policies.
struct Paired {
    gain: f64,
    low: f64,
    high: f64,
    better: u32,
    worse: u32,
    /// The smallest that would have been found.
    detectable: f64,
    p_value: f64,
}

impl Paired {
    /// Both have one share per scenario, in the same order.
    fn of(earlier: &[f64], shares: &[f64], grouping: &Grouping) -> Self {
        let differences: Vec<f64> =
            shares.iter().zip(earlier).map(|(share, earlier)| share - earlier).collect();
        let clusters = Clusters::new(&differences, &grouping.members);
        let interval = difference_interval(&clusters);
        let count =
            |is: fn(f64) -> bool| differences.iter().filter(|difference| is(**difference)).count() as u32;
        let (better, worse) = (count(|difference| difference > 0.0), count(|difference| difference < 0.0));
        let squares: Vec<f64> = differences.iter().map(|difference| difference * difference).collect();
        Self {
            gain: mean(&differences),
            low: interval.low,
            high: interval.high,
            better,
            worse,
            detectable: smallest_difference(clusters.effective(), mean(&squares)),
            p_value: sign_flip(&clusters),
        }
    }
}

/// The result of a comparison. Texts and colours take it from here, so that they agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Finding {
    #[serde(rename = "better")]
    Gain,
    #[serde(rename = "no measurable gain")]
    NoMeasurableGain,
    #[serde(rename = "worse")]
    Regression,
}

impl Finding {
    /// Probability of any false alarm among the tables of a kind.
    const LEVEL: f64 = 0.05;

    /// Of the difference to the baseline; `None` for the baseline.
    pub fn of(row: &VerdictRow) -> Option<Self> {
        Some(Self::of_test(row.p_adjusted?, (row.gain_low?, row.gain_high?)))
    }

    /// A difference is measurable if the sign-flip test, adjusted for all differences, and the interval both say so.
    pub(super) fn of_test(p_value: f64, interval: (f64, f64)) -> Self {
        if p_value < Self::LEVEL { Self::of_interval(interval) } else { Self::NoMeasurableGain }
    }

    /// Of a difference that has no test.
    pub(super) fn of_interval((low, high): (f64, f64)) -> Self {
        match (low > 0.0, high < 0.0) {
            (true, _) => Self::Gain,
            (_, true) => Self::Regression,
            _ => Self::NoMeasurableGain,
        }
    }

    /// `better`, `no measurable gain` or `worse`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Gain => "better",
            Self::NoMeasurableGain => "no measurable gain",
            Self::Regression => "worse",
        }
    }
}

/// The mode that the verdict reports: greedy if it was played, because an agent is served so.
pub fn reported_mode(rows: &[VerdictRow]) -> &'static str {
    let is_played = |mode: &Mode| rows.iter().any(|row| row.mode == mode.name());
    Mode::HEADLINE.into_iter().find(is_played).unwrap_or(Mode::Greedy).name()
}

/// The rows as metrics for `until` and for people, for `all` and every split: `unseen_entities.trained.sampled`, a success
/// rate; `unseen_entities.trained.strict`, that of the episodes by protocol, `unseen_entities.trained.gain`, the gain over the
/// baseline, and `unseen_entities.trained.step`, that over the policy before it, all three in the reported mode; and
/// `unseen_entities.gain`, that of the last policy.
pub fn metrics(rows: &[VerdictRow]) -> BTreeMap<String, f64> {
    let mode = reported_mode(rows);
    let mut metrics = BTreeMap::new();
    let is_shown = |row: &&VerdictRow| (row.scope == "all" || row.scope == "split") && !row.is_idle();
    for row in rows.iter().filter(is_shown) {
        metrics.insert(format!("{}.{}.{}", row.slice, row.policy, row.mode), row.success);
        if row.mode != mode {
            continue;
        }
        for (name, value) in [("strict", row.success_strict), ("gain", row.gain), ("step", row.step)] {
            metrics.extend(value.map(|value| (format!("{}.{}.{name}", row.slice, row.policy), value)));
        }
        metrics.extend(row.gain.map(|gain| (format!("{}.gain", row.slice), gain)));
    }
    metrics
}
