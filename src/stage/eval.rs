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
    Context, Input, Metrics, StageError,
    prospect::{Outlook, Prospect},
    rollout::{
        play::{Budget, Player, RolloutSpec},
        room,
    },
    typed,
};
use crate::{
    data::{self, Scenario, Tool, Trajectory},
    engine::Sampling,
    error::{Diagnostic, Result},
    eval::{Comparison, Episode, Mode, metrics, report, verdict},
    hash::Encoder,
    judge::truth,
};

#[derive(Debug, Deserialize)]
struct Params {
    greedy: bool,
    /// Sampled episodes per scenario, at temperature 1.
    samples: u32,
    /// Bootstrap resamples.
    resamples: usize,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum EvalError {
    #[error("there is nothing to play: `greedy` is false and `samples` is 0")]
    NothingToPlay,
    #[error("{}", if *scenarios == 0 {
        "no scenario is held out to be examined on".to_owned()
    } else {
        format!("none of the {scenarios} scenarios has a known answer")
    })]
    NoTruth { scenarios: usize },
    #[error("only {known} of the {scenarios} scenarios have a known answer, and the others are left out")]
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
                "raise heldout_share, or give tasks `\"split\": \"heldout\"`".into()
            }
            Self::NoTruth { .. } | Self::LittleTruth { .. } => {
                "give scenarios an `answer`: a policy is examined by what is known to be right".into()
            }
            Self::ServerLost { .. } => "start the server by hand and call a tool: does it stay up?".into(),
        })
    }
}

pub async fn run(context: &Context) -> Result<Metrics> {
    let params: Params = context.params()?;
    let budget: Budget = context.params()?;
    let policies = baseline_first(context.inputs.get("policies").map_or(&[], Vec::as_slice));
    if policies.is_empty() {
        return Err(StageError::NoInput { role: "policies".into() }.into());
    }
    let tools_path = &context.input("tools")?.path;
    let (scenarios, unknown) = known(data::read(&context.input("scenarios")?.path)?)?;
    let attempts = attempts(&scenarios, &params, context.seed)?;
    context.observer.phase("episodes", (policies.len() * attempts.len()) as u64);

    let mut trajectories: Vec<Trajectory> = Vec::with_capacity(policies.len() * attempts.len());
    let mut lost = 0;
    let mut episodes: Vec<Episode> = Vec::with_capacity(trajectories.capacity());
    for policy in &policies {
        let mut player = Player::open(context, policy, tools_path, budget.clone()).await?;
        let played = player.play(context, &attempts).await;
        player.close().await;
        let played = played?;
        let there =
            attempts.iter().zip(&played).filter_map(|(attempt, played)| Some((attempt, played.as_ref()?)));
        episodes.extend(there.map(|(attempt, played)| episode(&policy.name, attempt, played)));
        lost += played.iter().filter(|played| played.is_none()).count();
        trajectories.extend(played.into_iter().flatten());
    }
    data::write(&context.output.join("episodes.parquet"), &trajectories)?;

    let names: Vec<String> = policies.iter().map(|policy| policy.name.clone()).collect();
    let tools: Vec<Tool> = data::read(tools_path)?;
    let tools: Vec<String> = tools.into_iter().filter(|tool| !tool.synthetic).map(|tool| tool.name).collect();
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
    data::write(&context.output.join("verdict.parquet"), &rows)?;
    let path = context.output.join("report.md");
    let page = report(&rows, &notes(&params, &scenarios, unknown, lost));
    std::fs::write(&path, page).map_err(|source| StageError::Write { path, source })?;

    let mut metrics = metrics(&rows);
    metrics.insert("scenarios".into(), scenarios.len() as f64);
    metrics.insert("lost".into(), lost as f64);
    Ok(metrics)
}

/// Checks that there are episodes to play and answers to judge them by.
pub fn look(prospect: &Prospect<'_>) -> Outlook {
    let mut outlook = Outlook::default();
    if let Some(budget) = prospect.params::<Budget>(&mut outlook) {
        room::look(prospect, "policies", &budget, &mut outlook);
    }
    let Some(params) = prospect.params::<Params>(&mut outlook) else { return outlook };
    if !params.greedy && params.samples == 0 {
        outlook.object("samples", EvalError::NothingToPlay);
    }
    if prospect.inputs.get("policies").is_none_or(Vec::is_empty) {
        outlook.object("policies", StageError::NoInput { role: "policies".into() });
    }
    if let Some(tasks) = prospect.tasks() {
        match (tasks.answered, tasks.count()) {
            (0, scenarios) => outlook.object("scenarios", EvalError::NoTruth { scenarios }),
            (known, scenarios) if known < scenarios => {
                outlook.note("scenarios", EvalError::LittleTruth { known, scenarios });
            }
            _ => {}
        }
    }
    outlook
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
    let known: Vec<Scenario> =
        scenarios.into_iter().filter(|scenario| truth::correct(scenario, None).is_some()).collect();
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

/// Row names of all policies.
pub fn rows_needed(
    params: &Map<String, Value>,
    seed: u64,
    inputs: &BTreeMap<String, Vec<Input>>,
) -> Option<Vec<String>> {
    let params: Params = typed(params).ok()?;
    let (scenarios, _) = known(data::read(&inputs.get("scenarios")?.first()?.path).ok()?).ok()?;
    let attempts = attempts(&scenarios, &params, seed).ok()?;
    let of_policy =
        |policy: &Input| attempts.iter().map(|attempt| attempt.row(&policy.digest)).collect::<Vec<_>>();
    Some(inputs.get("policies")?.iter().flat_map(of_policy).collect())
}

/// The part of a trajectory that the verdict uses.
fn episode(policy: &str, attempt: &RolloutSpec<'_>, played: &Trajectory) -> Episode {
    Episode {
        scenario: played.scenario_id.clone(),
        policy: policy.to_owned(),
        mode: if attempt.sampling.temperature == 0.0 { Mode::Greedy } else { Mode::Sampled },
        right: truth::correct(attempt.scenario, played.answer.as_deref()) == Some(true),
        calls: played.calls,
        turns: played.turns,
        tokens: played.sampled.iter().filter(|sampled| **sampled).count() as u32,
        tool_errors: played.tool_errors,
        tools: played.tools.clone(),
    }
}

/// Names of the splits that the `scenarios` stage defines.
const SPLITS: [(&str, &str); 3] =
    [("a", "seen families, unseen entities"), ("b", "unseen phrasings"), ("c", "unseen families")];

fn notes(params: &Params, scenarios: &[Scenario], unknown: usize, lost: usize) -> Vec<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for scenario in scenarios {
        *counts.entry(&scenario.split).or_default() += 1;
    }
    let splits = counts.iter().map(|(split, count)| {
        let count = several(*count, "scenario");
        match SPLITS.iter().find(|(name, _)| name == split) {
            Some((_, meaning)) => format!("- {split}: {count}, {meaning}"),
            None => format!("- {split}: {count}"),
        }
    });
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
