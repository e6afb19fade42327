//! The calls of episodes, and statistics of them by tool.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{Missing, Run, Stage};
use crate::{
    agent::Toolbox,
    data::{Call, EpisodeRow, OutcomeRow, Tool, calls},
};

/// The calls of a stage that played episodes, from its table of them or from the conversations.
///
/// # Errors
/// If neither is there.
pub fn of_stage(run: &Run, stage: &Stage) -> Result<Vec<Call>, Missing> {
    if let Ok(calls) = stage.table() {
        return Ok(calls);
    }
    let episodes: Vec<EpisodeRow> = stage.table()?;
    let toolbox = run.tools(stage).ok().and_then(|tools| Toolbox::new(&tools).ok());
    let unchecked = toolbox.map(|toolbox| toolbox.unchecked()).unwrap_or_default();
    Ok(episodes.iter().flat_map(|episode| calls::calls(&episode.into(), &unchecked)).collect())
}

/// What became of a tool's calls.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ToolStatistics {
    pub tool: String,
    /// Whether the agent has this tool; false for a name that the policy made up.
    pub offered: bool,
    /// Episodes that called it.
    pub episodes: u32,
    /// Those whose answer is right, and those whose answer is known to be right or wrong.
    pub right: u32,
    pub known: u32,
    pub calls: u32,
    pub failed: u32,
    /// Failed calls by [`Call::error`].
    pub errors: BTreeMap<String, u32>,
    /// Failed calls after which the same episode called the tool without an error.
    pub recovered: u32,
    pub clipped: u32,
    /// Results that are no error.
    pub answered: u32,
    /// Mean and largest size of a result that is no error, in bytes.
    pub result_bytes: Option<f64>,
    pub largest_result: Option<u64>,
}

impl ToolStatistics {
    /// Adds the calls of other episodes.
    pub fn add(&mut self, more: &Self) {
        self.offered |= more.offered;
        self.episodes += more.episodes;
        self.right += more.right;
        self.known += more.known;
        self.calls += more.calls;
        self.failed += more.failed;
        self.recovered += more.recovered;
        self.clipped += more.clipped;
        for (error, count) in &more.errors {
            *self.errors.entry(error.clone()).or_default() += count;
        }
        let sum = |found: &Self| found.result_bytes.unwrap_or(0.0) * f64::from(found.answered);
        let sums = sum(self) + sum(more);
        self.answered += more.answered;
        self.result_bytes = (self.answered > 0).then(|| sums / f64::from(self.answered));
        self.largest_result = self.largest_result.max(more.largest_result);
    }
}

/// Statistics of every tool that is offered or was called, in the order of `tools`, then by name. Calls that could not be
/// parsed have the empty name.
pub fn by_tool<'a>(
    tools: &[Tool],
    episodes: impl Iterator<Item = &'a OutcomeRow>,
    calls: &[Call],
) -> Vec<ToolStatistics> {
    let outcomes: BTreeMap<&str, Option<bool>> =
        episodes.map(|episode| (episode.id.as_str(), episode.correct)).collect();
    let mut all: Vec<ToolStatistics> = tools
        .iter()
        .map(|tool| ToolStatistics { tool: tool.name.clone(), offered: true, ..ToolStatistics::default() })
        .collect();
    let names: BTreeSet<&str> = calls.iter().map(|call| call.tool.as_str()).collect();
    for name in names {
        if !tools.iter().any(|tool| tool.name == name) {
            all.push(ToolStatistics { tool: name.to_owned(), ..ToolStatistics::default() });
        }
    }
    let at: BTreeMap<String, usize> =
        all.iter().enumerate().map(|(index, found)| (found.tool.clone(), index)).collect();
    // Calls of one episode are adjacent.
    for of_episode in calls.chunk_by(|one, other| one.trajectory_id == other.trajectory_id) {
        let mut called = BTreeSet::new();
        for (index, call) in of_episode.iter().enumerate() {
            let Some(found) = at.get(&call.tool).map(|index| &mut all[*index]) else { continue };
            found.calls += 1;
            found.clipped += u32::from(call.clipped);
            if called.insert(&call.tool) {
                found.episodes += 1;
                let outcome = outcomes.get(call.trajectory_id.as_str()).copied().flatten();
                found.known += u32::from(outcome.is_some());
                found.right += u32::from(outcome == Some(true));
            }
            if let Some(error) = &call.error {
                found.failed += 1;
                *found.errors.entry(error.clone()).or_default() += 1;
                let later = of_episode[index + 1..].iter();
                let is_good = |later: &Call| later.tool == call.tool && !later.is_error;
                found.recovered += u32::from(later.into_iter().any(is_good));
            } else if let Some(bytes) = call.result_bytes {
                found.answered += 1;
                let mean = found.result_bytes.unwrap_or(0.0);
                found.result_bytes = Some(mean + (bytes as f64 - mean) / f64::from(found.answered));
                found.largest_result = Some(found.largest_result.unwrap_or(0).max(bytes));
            }
        }
    }
    all
}
