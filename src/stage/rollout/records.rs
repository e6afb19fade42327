//! Episodes as rows: their names, those played before, and what a table says of one.

use std::collections::BTreeMap;

use serde_json::json;

use crate::{
    agent::{Episode, History},
    data::{self, Json, Scenario, Trajectory},
    engine::Sampling,
    error::Result,
    hash::{Digest, Encoder},
    model::TokenTree,
    stage::{Context, Metrics, known_metrics, metrics, share_right},
};

/// Results of the scenario's state checks; `None` for an error.
pub type StateResults = Vec<Option<String>>;

/// One episode to play.
#[derive(Debug, Clone, Copy)]
pub struct RolloutSpec<'a> {
    pub scenario: &'a Scenario,
    /// Index within its group.
    pub sample: u32,
    pub seed: u64,
    pub sampling: Sampling,
}

impl RolloutSpec<'_> {
    /// The id of the trajectory.
    pub fn id(&self, policy: &Digest) -> String {
        let Sampling { temperature, top_p, top_k, min_p } = self.sampling;
        Encoder::new("mcprl trajectory v1")
            .digest(policy)
            .text(&self.scenario.id)
            .number(self.sample.into())
            .number(self.seed)
            .json(&json!([temperature, top_p, top_k, min_p]))
            .finish()
            .to_string()
    }

    /// The row's name: the trajectory's id, and the task and its checks, because scenario tables may reuse an id for
    /// another task.
    pub fn row(&self, policy: &Digest) -> String {
        let task = Digest::of(self.scenario.task.as_bytes()).short();
        match &self.scenario.checks {
            None => format!("{} {task}", self.id(policy)),
            Some(checks) => format!("{} {task} {}", self.id(policy), Digest::of(checks.0.as_bytes()).short()),
        }
    }
}

/// Distinct for every episode of a run. `purpose`: of the kind of stage.
pub fn episode_seed(purpose: &str, seed: u64, scenario: &Scenario, sample: u32) -> u64 {
    let mut encoder = Encoder::new(purpose);
    encoder.number(seed).text(&scenario.id).number(sample.into()).finish().seed()
}

/// These samples of a scenario at temperature 1. `purpose`: as in [`episode_seed`].
pub fn samples<'a>(
    purpose: &'static str,
    seed: u64,
    scenario: &'a Scenario,
    samples: impl Iterator<Item = u32>,
) -> impl Iterator<Item = RolloutSpec<'a>> {
    samples.map(move |sample| RolloutSpec {
        scenario,
        sample,
        seed: episode_seed(purpose, seed, scenario, sample),
        sampling: Sampling { temperature: 1.0, ..Sampling::GREEDY },
    })
}

/// One episode for each scenario, for its reference solution.
pub fn of_references(scenarios: &[Scenario]) -> Vec<RolloutSpec<'_>> {
    let of = |scenario| RolloutSpec { scenario, sample: 0, seed: 0, sampling: Sampling::GREEDY };
    scenarios.iter().map(of).collect()
}

/// Rollouts played before, by row name: by this stage when interrupted, or for results that differ only in
/// which episodes they contain.
pub fn known(
    context: &Context,
    policy: &Digest,
    rollouts: &[RolloutSpec<'_>],
) -> Result<BTreeMap<String, Trajectory>> {
    let mut recorded = context.finished_rows()?;
    let mut known = BTreeMap::new();
    let mut wanted = BTreeMap::new();
    for rollout in rollouts {
        let name = rollout.row(policy);
        // A row that does not parse is played again.
        match recorded.remove(&name).and_then(|row| serde_json::from_slice(&row).ok()) {
            Some(trajectory) => _ = known.insert(name, as_of(rollout, trajectory)),
            None => _ = wanted.insert(name, rollout),
        }
    }
    drop(recorded);
    let mut taken = 0;
    for earlier in context.rows.earlier()? {
        if !wanted.keys().any(|name| earlier.names.contains(name)) {
            continue;
        }
        // An unreadable result counts as none.
        let rows: Vec<Trajectory> = data::read(&earlier.path).unwrap_or_default();
        let mut rows: BTreeMap<String, Trajectory> =
            rows.into_iter().map(|row| (row.id.clone(), row)).collect();
        for name in &earlier.names {
            let Some(rollout) = wanted.get(name) else { continue };
            let Some(trajectory) = rows.remove(&rollout.id(policy)) else { continue };
            context.rows.record(name, b"")?;
            known.insert(name.clone(), as_of(rollout, trajectory));
            wanted.remove(name);
            taken += 1;
        }
    }
    if taken > 0 {
        context.observer.note(&format!("{taken} episodes are reused from earlier results"));
    }
    Ok(known)
}

/// Updates what depends on the scenario's family and split, which may have changed.
fn as_of(rollout: &RolloutSpec<'_>, trajectory: Trajectory) -> Trajectory {
    let Scenario { family, split, .. } = rollout.scenario.clone();
    Trajectory { family, split, ..trajectory }
}

/// What episodes took on average, and how many of those with a known answer are right.
pub fn measured(trajectories: &[&Trajectory]) -> Metrics {
    let episodes = trajectories.len() as f64;
    let mean = |of: fn(&Trajectory) -> u32| {
        trajectories.iter().map(|trajectory| f64::from(of(trajectory))).sum::<f64>() / episodes
    };
    let mut found = metrics([
        ("episodes", episodes),
        ("turns", mean(|trajectory| trajectory.turns)),
        ("calls", mean(|trajectory| trajectory.calls)),
        ("tool_errors", mean(|trajectory| trajectory.tool_errors)),
        ("sampled_tokens", mean(|trajectory| trajectory.sampled_tokens() as u32)),
        ("distinct_tokens", distinct_tokens(trajectories) as f64),
    ]);
    let success = share_right(trajectories.iter().map(|trajectory| trajectory.correct));
    found.extend(known_metrics([("success", success)]));
    found
}

/// The tokens of the tree of these episodes.
fn distinct_tokens(trajectories: &[&Trajectory]) -> usize {
    let rows = trajectories.iter().flat_map(|trajectory| trajectory.rows());
    TokenTree::new(&rows.map(|row| row.tokens).collect::<Vec<_>>()).tokens.len()
}

/// The row of an episode, without what depends on its known answer.
pub fn trajectory(
    episode: Episode,
    state: Option<StateResults>,
    rollout: &RolloutSpec<'_>,
    policy: &Digest,
) -> Trajectory {
    let scenario = rollout.scenario;
    let Episode { history, end, answer, answer_source, lost: _ } = episode;
    Trajectory {
        id: rollout.id(policy),
        scenario_id: scenario.id.clone(),
        family: scenario.family.clone(),
        split: scenario.split.clone(),
        sample: rollout.sample,
        policy: policy.to_string(),
        seed: rollout.seed,
        end: end.to_string(),
        answer,
        answer_source: answer_source.map(|source| source.name().to_owned()),
        state: state.map(|results| Json(json!(results).to_string())),
        ..columns(history)
    }
}

/// The columns of a trajectory that hold its conversation.
pub fn columns(history: History) -> Trajectory {
    let row_starts: Vec<u32> = history.row_starts.iter().map(|start| *start as u32).collect();
    Trajectory {
        messages: history.messages,
        tokens: history.tokens,
        sampled: history.sampled,
        logprobs: history.logprobs,
        turns: history.turns,
        calls: history.tools.len() as u32,
        tools: history.tools,
        tool_errors: history.tool_errors,
        parse_failures: history.parse_failures,
        loose_calls: history.loose_calls,
        row_starts: (!row_starts.is_empty()).then_some(row_starts),
        counted_tokens: history.counted_tokens.map(|tokens| tokens as u32),
        ..Trajectory::default()
    }
}
