//! `eval`: runs several policies on the same held-out scenarios. The verdict reports their differences.
//!
//! Episodes are played exactly as in `rollout` and judged by ground truth alone. All policies use the same
//! seeds. Episodes lost to server failures say nothing about a policy; they are left out and counted. An
//! episode whose own call takes the server down has failed (`rollout/play.rs`).

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    Context, Input, Metrics, StageError, StageKind,
    kind::StageFuture,
    memory::Load,
    preflight::{Preflight, PreflightContext},
    rollout::{
        play::{Budget, Player, RolloutSpec},
        prompts,
    },
    typed,
};
use crate::{
    data::{self, Call, Scenario, Tool, Trajectory, calls::calls},
    engine::{Footprint, Sampling},
    error::{Diagnostic, Result},
    eval::{Comparison, Episode, Mode, metrics, report, verdict},
    hash::Encoder,
    judge::truth,
};

#[derive(Debug, Deserialize)]
pub(super) struct Params {
    greedy: bool,
    /// Sampled episodes per scenario, at temperature 1.
    samples: u32,
    /// Bootstrap resamples.
    resamples: usize,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum EvalError {
    #[error("no episodes to evaluate: `greedy` is false and `samples` is 0")]
    NothingToPlay,
    #[error("{}", if *scenarios == 0 {
        "no held-out scenarios to evaluate on".to_owned()
    } else {
        format!("none of the {scenarios} scenarios has a known answer")
    })]
    NoTruth { scenarios: usize },
    #[error("only {known} of the {scenarios} scenarios have a known answer; the others are left out")]
    LittleTruth { known: usize, scenarios: usize },
    #[error("the server was lost in {lost} of {episodes} episodes, and no scenario is left to compare on")]
    ServerLost { lost: usize, episodes: usize },
}

impl Diagnostic for EvalError {
    fn code(&self) -> &'static str {
        match self {
            Self::NothingToPlay => "eval::nothing_to_play",
            Self::NoTruth { .. } => "eval::no_truth",
            Self::LittleTruth { .. } => "eval::little_truth",
            Self::ServerLost { .. } => "eval::server_lost",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NothingToPlay => "set `samples` to 1 or more".into(),
            Self::NoTruth { scenarios: 0 } => {
                "raise `heldout_share`, or give tasks `\"split\": \"heldout\"`".into()
            }
            Self::NoTruth { .. } | Self::LittleTruth { .. } => {
                "give scenarios an `answer`: evaluation compares answers with known ones".into()
            }
            Self::ServerLost { .. } => {
                "start the server by hand, call a tool, and check that it keeps running".into()
            }
        })
    }
}

pub struct Eval {
    params: Params,
    budget: Budget,
}

impl Eval {
    pub fn parse(params: &Map<String, Value>) -> Result<Self, StageError> {
        Ok(Self { params: typed(params)?, budget: typed(params)? })
    }

    async fn examine(&self, context: &Context) -> Result<Metrics> {
        let Self { params, budget } = self;
        let policies = baseline_first(context.inputs.get("policies").map_or(&[], Vec::as_slice));
        if policies.is_empty() {
            return Err(StageError::NoInput { role: "policies".into() }.into());
        }
        let tools_path = &context.input("tools")?.path;
        let (scenarios, unknown) = known(context.read("scenarios")?)?;
        let attempts = attempts(&scenarios, params, context.seed)?;
        context.observer.phase("episodes", (policies.len() * attempts.len()) as u64);

        let mut trajectories: Vec<Trajectory> = Vec::with_capacity(policies.len() * attempts.len());
        let mut made: Vec<Call> = Vec::new();
        let mut lost = 0;
        let mut episodes: Vec<Episode> = Vec::with_capacity(trajectories.capacity());
        for policy in &policies {
            let mut player = Player::open(context, policy, tools_path, &scenarios, budget.clone()).await?;
            let played = player.play(context, &attempts).await;
            let unchecked = player.unchecked();
            player.close().await;
            let played = played?;
            let there = played.iter().flatten();
            made.extend(there.flat_map(|trajectory| calls(&trajectory.into(), &unchecked)));
            let there = attempts
                .iter()
                .zip(&played)
                .filter_map(|(attempt, played)| Some((attempt, played.as_ref()?)));
            episodes.extend(there.map(|(attempt, played)| episode(&policy.name, attempt, played)));
            lost += played.iter().filter(|played| played.is_none()).count();
            trajectories.extend(played.into_iter().flatten());
        }
        context.write("episodes", &trajectories)?;
        context.write("calls", &made)?;

        let names: Vec<String> = policies.iter().map(|policy| policy.name.clone()).collect();
        let tools: Vec<Tool> = data::read(tools_path)?;
        let tools: Vec<String> =
            tools.into_iter().filter(|tool| !tool.synthetic).map(|tool| tool.name).collect();
        let exam = Comparison {
            policies: &names,
            scenarios: &scenarios,
            tools: &tools,
            resamples: params.resamples,
            seed: context.seed,
        };
        let rows = verdict(&exam, &episodes);
        if rows.is_empty() {
            return Err(EvalError::ServerLost { lost, episodes: lost + trajectories.len() }.into());
        }
        context.write("verdict", &rows)?;
        let path = context.output("report", "report")?;
        let page = report(&rows, &notes(params, &scenarios, unknown, lost));
        std::fs::write(&path, page).map_err(|source| StageError::Write { path, source })?;

        let mut metrics = metrics(&rows);
        metrics.insert("scenarios".into(), scenarios.len() as f64);
        metrics.insert("lost".into(), lost as f64);
        Ok(metrics)
    }
}

impl StageKind for Eval {
    fn run<'a>(&'a self, context: &'a Context) -> StageFuture<'a, Result<Metrics>> {
        Box::pin(self.examine(context))
    }

    /// Checks that there are episodes to play and answers to judge them by.
    fn preflight(&self, context: &PreflightContext<'_>) -> Preflight {
        let Self { params, budget } = self;
        let mut preflight = Preflight::default();
        prompts::check(context, "policies", budget, &mut preflight);
        if !params.greedy && params.samples == 0 {
            preflight.error("samples", EvalError::NothingToPlay);
        }
        if context.inputs.get("policies").is_none_or(Vec::is_empty) {
            preflight.error("policies", StageError::NoInput { role: "policies".into() });
        }
        match context.scenarios().map(|scenarios| (scenarios.answered, scenarios.count())) {
            Some((0, scenarios)) => preflight.error("scenarios", EvalError::NoTruth { scenarios }),
            Some((known, scenarios)) if known < scenarios => {
                preflight.note("scenarios", EvalError::LittleTruth { known, scenarios });
            }
            _ => {}
        }
        preflight
    }

    fn workload(&self) -> Option<f64> {
        let episodes = self.params.samples + u32::from(self.params.greedy);
        (episodes > 0).then_some(f64::from(episodes))
    }

    fn memory(&self, load: &Load<'_>) -> Option<Footprint> {
        let policies = load.inputs.get("policies")?.iter();
        let policies = policies.map(|(_, expected)| expected.policy()).collect::<Option<Vec<_>>>()?;
        let footprints = policies.into_iter().map(|policy| self.budget.footprint(load, policy, usize::MAX));
        footprints.max_by_key(Footprint::total)
    }

    /// Rows of all policies.
    fn rows_needed(&self, seed: u64, inputs: &BTreeMap<String, Vec<Input>>) -> Option<Vec<String>> {
        let (scenarios, _) = known(data::read(&inputs.get("scenarios")?.first()?.path).ok()?).ok()?;
        let attempts = attempts(&scenarios, &self.params, seed).ok()?;
        let of_policy =
            |policy: &Input| attempts.iter().map(|attempt| attempt.row(&policy.digest)).collect::<Vec<_>>();
        Some(inputs.get("policies")?.iter().flat_map(of_policy).collect())
    }

    fn shares_model(&self, role: &str) -> bool {
        role == "policies"
    }
}

/// The baseline is the policy named `base`, or else the first.
fn baseline_first(policies: &[Input]) -> Vec<&Input> {
    let mut policies: Vec<&Input> = policies.iter().collect();
    policies.sort_by_key(|policy| policy.name != "base");
    policies
}

/// Scenarios with ground truth, and the number without.
fn known(scenarios: Vec<Scenario>) -> Result<(Vec<Scenario>, usize), EvalError> {
    let all = scenarios.len();
    let known: Vec<Scenario> = scenarios.into_iter().filter(truth::is_known).collect();
    if known.is_empty() {
        return Err(EvalError::NoTruth { scenarios: all });
    }
    let unknown = all - known.len();
    Ok((known, unknown))
}

/// Each scenario's greedy episode as sample 0, if requested, then its sampled episodes.
fn attempts<'a>(
    scenarios: &'a [Scenario],
    params: &Params,
    seed: u64,
) -> Result<Vec<RolloutSpec<'a>>, EvalError> {
    let sampled = Sampling { temperature: 1.0, ..Sampling::GREEDY };
    let mut draws = if params.greedy { vec![Sampling::GREEDY] } else { vec![] };
    draws.resize(draws.len() + params.samples as usize, sampled);
    if draws.is_empty() {
        return Err(EvalError::NothingToPlay);
    }
    let attempt = |scenario: &'a Scenario, sample: usize, sampling: Sampling| RolloutSpec {
        scenario,
        sample: sample as u32,
        seed: Encoder::new("mcprl eval episode seed v1")
            .number(seed)
            .text(&scenario.id)
            .number(sample as u64)
            .finish()
            .seed(),
        sampling,
    };
    let of_scenario = |scenario| {
        draws.iter().enumerate().map(move |(sample, sampling)| attempt(scenario, sample, *sampling))
    };
    Ok(scenarios.iter().flat_map(of_scenario).collect())
}

/// The part of a trajectory that the verdict uses.
fn episode(policy: &str, attempt: &RolloutSpec<'_>, played: &Trajectory) -> Episode {
    Episode {
        scenario: played.scenario_id.clone(),
        policy: policy.to_owned(),
        mode: if attempt.sampling.temperature == 0.0 { Mode::Greedy } else { Mode::Sampled },
        right: played.correct == Some(true),
        calls: played.calls,
        turns: played.turns,
        tokens: played.sampled.iter().filter(|sampled| **sampled).count() as u32,
        tool_errors: played.tool_errors,
        tools: played.tools.clone(),
    }
}

fn notes(params: &Params, scenarios: &[Scenario], unknown: usize, lost: usize) -> Vec<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for scenario in scenarios {
        *counts.entry(&scenario.split).or_default() += 1;
    }
    let splits = counts
        .iter()
        .map(|(split, count)| format!("- {}: {}", split.replace('_', " "), several(*count, "scenario")));
    let sampled = format!("{} at temperature 1", several(params.samples as usize, "episode"));
    let played = match (params.greedy, params.samples) {
        (true, 0) => "one greedy episode".to_owned(),
        (true, _) => format!("one greedy episode and {sampled}"),
        (false, _) => sampled,
    };
    let mut notes =
        vec![splits.collect::<Vec<_>>().join("\n"), format!("Per scenario and policy: {played}.")];
    if unknown > 0 {
        notes.push(format!("Left out: {} without a known answer.", several(unknown, "scenario")));
    }
    if lost > 0 {
        notes.push(format!("Left out: {} in which the server was lost.", several(lost, "episode")));
    }
    notes
}

/// `1 episode`, `2 episodes`.
fn several(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
