//! Several runs of one pipeline that differ in their seeds: mean and spread over the runs, and the gain on the common tasks.

use serde::Serialize;

use super::compare::{LastExam, NotComparable, common_policies, episodes_of, last_exams, shown_tasks};
use crate::{
    eval::{Comparison, Difference, Episode, headline, overall},
    view::Run,
};

/// A table over runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Replicates {
    /// `sampled` or `greedy`.
    pub mode: String,
    /// Tasks that all runs have played.
    pub tasks: u32,
    pub policies: Vec<Replicated>,
}

/// A policy of each run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Replicated {
    pub policy: String,
    /// Share of the tasks solved, by run.
    pub success: Vec<f64>,
    pub mean: f64,
    /// Standard deviation over the runs; none for one run.
    pub deviation: Option<f64>,
    /// Difference to the first policy: the mean over the runs, with the 95 % interval of the paired tasks in which a task's
    /// outcome is its mean over the runs.
    pub gain: Option<[f64; 3]>,
}

/// The last comparison of policies of each run, put together.
///
/// # Errors
/// If the runs have no common policy or task.
pub fn replicates<'r>(runs: impl IntoIterator<Item = &'r Run>) -> Result<Replicates, NotComparable> {
    let all = last_exams(runs.into_iter())?;
    let (mode, policies) = common_policies(&all)?;
    let policies: Vec<String> = policies.into_iter().cloned().collect();
    let scenarios = shown_tasks(&all[0], &policies[0]);
    let by_run: Vec<Vec<Episode>> = all
        .iter()
        .map(|played| policies.iter().flat_map(|policy| episodes_of(played, policy, policy, &mode)).collect())
        .collect();
    let compared = |episodes: &[Episode]| {
        let comparison = Comparison { policies: &policies, scenarios: &scenarios, ..Default::default() };
        overall(&comparison, episodes)
    };
    let own: Vec<_> = by_run.iter().map(|episodes| compared(episodes)).collect();
    let together = compared(&by_run.concat());
    if together.is_empty() || own.iter().any(Vec::is_empty) {
        return Err(NotComparable::NoTask);
    }
    let policy = |(index, name): (usize, &String)| {
        let success: Vec<f64> = own.iter().map(|rows| rows[index].success).collect();
        let count = success.len() as f64;
        let mean = success.iter().sum::<f64>() / count;
        let squares: f64 = success.iter().map(|one| (one - mean).powi(2)).sum();
        let row = &together[index];
        let gain = row.gain.zip(row.gain_low).zip(row.gain_high);
        Replicated {
            policy: name.clone(),
            mean,
            deviation: (success.len() > 1).then(|| (squares / (count - 1.0)).sqrt()),
            success,
            gain: gain.map(|((gain, low), high)| [gain, low, high]),
        }
    };
    Ok(Replicates {
        mode,
        tasks: together[0].scenarios,
        policies: policies.iter().enumerate().map(policy).collect(),
    })
}

/// The last policy of several sets of runs, each set against the first.
pub struct Between {
    pub baseline: Option<String>,
    pub policy: String,
    pub mode: String,
    pub tasks: u32,
    /// By set; none for the first.
    pub differences: Vec<Option<Difference>>,
}

/// The differences between sets of runs, on the tasks that all have played. A task's outcome is its mean over the runs of a set,
/// as in [`replicates`].
///
/// # Errors
/// If the runs have no common policy or task.
pub fn between(sets: &[&[&Run]]) -> Result<Between, NotComparable> {
    let all = last_exams(sets.iter().copied().flatten().copied())?;
    let (mode, policies) = common_policies(&all)?;
    let (baseline, last) = all[0].ends().ok_or(NotComparable::NoPolicy)?;
    let is_common = |name: &String| policies.contains(&name);
    if !is_common(last) {
        return Err(NotComparable::NoPolicy);
    }
    let names: Vec<String> = (0..sets.len()).map(|set| set.to_string()).collect();
    let set_of = sets.iter().enumerate().flat_map(|(set, runs)| std::iter::repeat_n(set, runs.len()));
    let played = |(exam, set): (&LastExam, usize)| episodes_of(exam, last, &names[set], &mode);
    let episodes: Vec<Episode> = all.iter().zip(set_of).flat_map(played).collect();
    let scenarios = shown_tasks(&all[0], last);
    let rows =
        overall(&Comparison { policies: &names, scenarios: &scenarios, ..Default::default() }, &episodes);
    let found = headline(&rows).ok_or(NotComparable::NoTask)?;
    let of = |name: &String| {
        let mut differences = found.differences.iter();
        differences.find(|one| one.policy == *name && one.to == names[0]).cloned()
    };
    Ok(Between {
        differences: names.iter().map(of).collect(),
        baseline: baseline.filter(|name| is_common(name)).cloned(),
        policy: last.clone(),
        tasks: found.tasks,
        mode,
    })
}
