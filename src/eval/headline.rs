//! What a verdict comes down to: how well each policy solves tasks nothing of which was trained on, by how much the policies
//! differ, and which of them to use. Whatever shows a verdict takes these figures from [`headline`].

use serde::Serialize;

use super::verdict::{Finding, Mode, reported_mode, splits};
use crate::{
    data::{VerdictRow, is_of_trained_cases},
    text,
};

/// The result of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Headline {
    /// `greedy`, or `sampled` if nothing was played so.
    pub mode: &'static str,
    pub tasks: u32,
    /// Whether the tasks ask about trained cases in other words, because none is of another kind.
    pub of_trained_cases: bool,
    /// In the order given; the first is the baseline.
    pub policies: Vec<Standing>,
    /// Each policy against the first, and against the one before it.
    pub differences: Vec<Difference>,
    /// None for a single policy.
    pub advice: Option<Advice>,
}

/// How well one policy does, as shares of the tasks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Standing {
    pub policy: String,
    pub success: f64,
    /// The 95 % interval of `success`.
    pub low: f64,
    pub high: f64,
    /// The mean success of sampled episodes, if it is not `success`.
    pub sampled: Option<f64>,
    /// pass^k: the share of tasks whose every sampled episode is right, and the number of these. Not of a single one.
    pub all_right: Option<(f64, u32)>,
    /// The share solved by protocol: every call in the form of the chat template, the answer given to `complete_task`.
    pub by_protocol: Option<f64>,
    /// Whether it is one of the policies to choose from, as [`VerdictRow::is_candidate`] says.
    pub is_candidate: bool,
}

/// A paired difference in success between two policies, with its 95 % interval.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    pub policy: String,
    /// The policy that it is compared with.
    pub to: String,
    pub gain: f64,
    pub low: f64,
    pub high: f64,
    /// Adjusted for all policies, modes and steps. None if the difference is a sum of others.
    pub p: Option<f64>,
    /// The smallest difference that so many tasks show, with 80 % power.
    pub detectable: Option<f64>,
    pub finding: Finding,
}

/// Which policy to use.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    #[serde(rename = "use")]
    pub policy: String,
    /// The reason, as a clause that follows "use POLICY:".
    pub why: String,
}

impl Advice {
    /// `Use trained: it solves 62.0 points more than base [+53, +71]`, with a full stop.
    pub fn sentence(&self) -> String {
        format!("Use {}: {}.", self.policy, self.why)
    }
}

impl Headline {
    /// The last policy of those to choose from, after the baseline if that is another one.
    pub fn ends(&self) -> Option<(Option<&Standing>, &Standing)> {
        let last = self.policies.iter().rfind(|standing| standing.is_candidate).or(self.policies.last())?;
        let baseline = self.policies.first().filter(|first| first.policy != last.policy);
        Some((baseline, last))
    }

    /// The difference of the last policy to the baseline.
    pub fn gain(&self) -> Option<&Difference> {
        let (baseline, last) = self.ends()?;
        let to = &baseline?.policy;
        self.differences.iter().find(|found| found.policy == last.policy && found.to == *to)
    }
}

/// The result of a comparison; none of an empty verdict.
pub fn headline(rows: &[VerdictRow]) -> Option<Headline> {
    let mode = reported_mode(rows);
    let all: Vec<&VerdictRow> = rows.iter().filter(|row| row.scope == "all" && row.mode == mode).collect();
    let sampled = |policy: &str| {
        let is_it = |row: &&VerdictRow| {
            row.scope == "all" && row.policy == policy && row.mode == Mode::Sampled.name()
        };
        rows.iter().find(is_it)
    };
    let all_right = |row: &VerdictRow| {
        let episodes = row.episodes / row.scenarios.max(1);
        (episodes > 1 && row.success_any.is_none()).then_some((row.success_all, episodes))
    };
    let standing = |row: &&VerdictRow| Standing {
        policy: row.policy.clone(),
        success: row.success,
        low: row.success_low,
        high: row.success_high,
        sampled: sampled(&row.policy).filter(|row| row.mode != mode).map(|row| row.success),
        all_right: sampled(&row.policy).and_then(all_right),
        by_protocol: row.success_strict,
        is_candidate: row.is_candidate(),
    };
    let baseline = *all.first()?;
    let differences = all.iter().flat_map(|row| [to_baseline(row, &baseline.policy), to_previous(row)]);
    let splits = splits(rows);
    Some(Headline {
        mode,
        tasks: baseline.scenarios,
        of_trained_cases: !splits.is_empty() && splits.iter().all(|split| is_of_trained_cases(split)),
        policies: all.iter().map(standing).collect(),
        differences: differences.flatten().collect(),
        advice: advice(&all),
    })
}

/// A row's difference to the baseline; none for the baseline.
pub(super) fn to_baseline(row: &VerdictRow, baseline: &str) -> Option<Difference> {
    Some(Difference {
        policy: row.policy.clone(),
        to: baseline.to_owned(),
        gain: row.gain?,
        low: row.gain_low?,
        high: row.gain_high?,
        p: row.p_adjusted,
        detectable: row.detectable,
        finding: Finding::of(row)?,
    })
}

/// A row's difference to the policy before it, unless that is the baseline.
pub(super) fn to_previous(row: &VerdictRow) -> Option<Difference> {
    let (low, high) = (row.step_low?, row.step_high?);
    Some(Difference {
        policy: row.policy.clone(),
        to: row.previous.clone()?,
        gain: row.step?,
        low,
        high,
        p: row.step_p_adjusted,
        detectable: None,
        finding: Finding::of_test(row.step_p_adjusted?, (low, high)),
    })
}

/// The difference between two of the policies, by position. Of policies that the verdict does not compare, it is the sum of the
/// differences between neighbours: the gain is exact, the interval is too wide.
fn between(policies: &[&VerdictRow], earlier: usize, later: usize) -> Option<Difference> {
    if earlier == 0 {
        return to_baseline(policies[later], &policies[0].policy);
    }
    let steps: Option<Vec<Difference>> =
        policies[earlier + 1..=later].iter().map(|row| to_previous(row)).collect();
    let mut steps = steps?;
    if steps.len() == 1 {
        return steps.pop();
    }
    let sum = |of: fn(&Difference) -> f64| steps.iter().map(of).sum::<f64>();
    let (low, high) = (sum(|step| step.low), sum(|step| step.high));
    Some(Difference {
        policy: policies[later].policy.clone(),
        to: policies[earlier].policy.clone(),
        gain: sum(|step| step.gain),
        low: low.max(-1.0),
        high: high.min(1.0),
        p: None,
        detectable: None,
        finding: Finding::of_interval((low, high)),
    })
}

/// A later policy takes more to make, so it has to be measurably better than the one that would be used without it. A vote is
/// left out, because it is a way to use the baseline at several times its cost, and so is a model behind an endpoint. A baseline
/// that has a prompt of its own takes more than its policy, which is used if it is not measurably worse.
fn advice(all: &[&VerdictRow]) -> Option<Advice> {
    let policies: Vec<&VerdictRow> = all.iter().copied().filter(|row| row.is_candidate()).collect();
    if policies.len() < 2 {
        return None;
    }
    let mut chosen = vec![0];
    for later in 1..policies.len() {
        let last = *chosen.last()?;
        let difference = between(&policies, last, later)?;
        let is_plain = policies[last].variant_of.as_ref() == Some(&policies[later].policy);
        if is_plain && difference.finding == Finding::NoMeasurableGain {
            chosen = vec![later];
        } else if difference.finding == Finding::Gain {
            chosen.push(later);
        }
    }
    let (first, winner) = (chosen[0], chosen.pop()?);
    let mut reasons = Vec::new();
    if winner > first {
        let mut over = vec![0];
        over.extend(chosen.last());
        over.dedup();
        let better = over.into_iter().filter_map(|earlier| between(&policies, earlier, winner));
        let parts = better.map(|found| {
            let gain = points(found.gain, 1).replace('+', "");
            format!("{gain} points more than {} {}", found.to, interval(&found))
        });
        reasons.push(format!("it solves {}", parts.collect::<Vec<_>>().join(" and ")));
    }
    if winner == first && first > 0 {
        let found = between(&policies, 0, first)?;
        let figures = format!("{} {}", points(found.gain, 1), interval(&found));
        reasons.push(format!("without the prompt of {} it is not measurably worse ({figures})", found.to));
    }
    for later in winner + 1..policies.len() {
        let found = between(&policies, winner, later)?;
        let verb = match found.finding {
            Finding::Regression => "is worse",
            _ => "is not measurably better",
        };
        let figures = format!("{} {}", points(found.gain, 1), interval(&found));
        reasons.push(format!("{} {verb} ({figures})", found.policy));
    }
    Some(Advice { policy: policies[winner].policy.clone(), why: reasons.join("; ") })
}

/// `[+53, +71]`, in points.
pub(super) fn interval(found: &Difference) -> String {
    format!("[{}, {}]", points(found.low, 0), points(found.high, 0))
}

/// A difference of shares in points, with a sign unless it rounds to zero.
pub fn points(difference: f64, digits: usize) -> String {
    let text = text::percent(difference, digits);
    let size = text.trim_start_matches('-');
    match size.chars().all(|c| matches!(c, '0' | '.')) {
        true => size.to_owned(),
        false if difference > 0.0 => format!("+{text}"),
        false => text,
    }
}
