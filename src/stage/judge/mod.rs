//! `judge`: a reward for every episode.
//!
//! Rewards are stored separately from samples: with another weight or prompt the stored episodes are judged
//! again and none is played. Replies of the language model are recorded, so that a resumed stage repeats no
//! request.

use std::{collections::BTreeMap, time::Duration};

use futures::{StreamExt, TryStreamExt};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    Context, Metrics, StageError, StageKind,
    kind::{ExpectedOutputs, Requirement, StageFuture},
    preflight::{Preflight, PreflightContext},
    typed,
};
use crate::{
    data::{self, Reward, Scenario, Trajectory},
    error::{At, Class, Diagnostic, Interrupted, Result},
    hash::Digest,
    judge::{JudgedTrajectory, Relative, RelativeScore, RelativeSpec, ReplyCache, Shaping, rewards},
    llm::{self, Client, Endpoint},
    usage::Usage,
};

#[derive(Debug, Deserialize)]
pub(super) struct Params {
    base_url: Option<String>,
    model: Option<String>,
    api_key_env: Option<String>,
    orders: u32,
    attempts: u32,
    temperature: f64,
    max_tokens: u32,
    timeout_s: f64,
    retries: u32,
    concurrency: usize,
}

#[derive(Debug, thiserror::Error)]
enum JudgeStageError {
    #[error("trajectory {trajectory} belongs to scenario {scenario}, which is not in the scenarios table")]
    UnknownScenario { trajectory: String, scenario: String },
    #[error("no scenario has a known answer, and no language model judges")]
    NothingToGoBy,
    #[error(
        "only {known} of the {scenarios} scenarios have a known answer: attempts at the others get the same reward, right or wrong"
    )]
    LittleToGoBy { known: usize, scenarios: usize },
    #[error("`truth` and `relative` are 0, so a right answer earns no more than a wrong one")]
    NothingEarned,
    #[error("`relative` is above 0, but `{param}` is not set")]
    NoModel { param: &'static str },
}

impl Diagnostic for JudgeStageError {
    fn code(&self) -> &'static str {
        match self {
            Self::UnknownScenario { .. } => "judge::unknown_scenario",
            Self::NothingToGoBy => "judge::nothing_to_go_by",
            Self::LittleToGoBy { .. } => "judge::little_to_go_by",
            Self::NothingEarned => "judge::nothing_earned",
            Self::NoModel { .. } => "judge::no_model",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::UnknownScenario { .. } => "give the judge the same scenarios as the rollout".into(),
            Self::NothingToGoBy | Self::LittleToGoBy { .. } => {
                "set `relative = 1.0`, `base_url` and `model` to use a language model as judge".into()
            }
            Self::NothingEarned => {
                "set `truth = 1.0`, or `relative = 1.0` with `base_url` and `model`".into()
            }
            Self::NoModel { param } => format!("set `{param}` of the stage, or `relative = 0`"),
        })
    }

    fn class(&self) -> Class {
        match self {
            Self::UnknownScenario { .. } => Class::Work,
            Self::NothingToGoBy | Self::LittleToGoBy { .. } | Self::NothingEarned | Self::NoModel { .. } => {
                Class::Usage
            }
        }
    }
}

/// Longest wait of `doctor` for an endpoint.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Judge {
    params: Params,
    shaping: Shaping,
}

impl Judge {
    pub fn parse(params: &Map<String, Value>) -> Result<Self, StageError> {
        Ok(Self { params: typed(params)?, shaping: typed(params)? })
    }

    async fn judge(&self, context: &Context) -> Result<Metrics> {
        let trajectories: Vec<Trajectory> = context.read("trajectories")?;
        let scenarios: Vec<Scenario> = context.read("scenarios")?;
        let groups = groups(&trajectories, &scenarios)?;
        let relative = match self.shaping.relative > 0.0 {
            true => Some(self.relative(context)?),
            false => None,
        };

        context.observer.phase("groups", groups.len() as u64);
        let verdicts = match &relative {
            Some(relative) => {
                let verdicts = verdicts(context, relative, &groups).await;
                // Paid for, whatever the outcome.
                let usage = relative.client().usage();
                context.meter.add(Usage {
                    judge_requests: usage.requests,
                    judge_prompt_tokens: usage.prompt_tokens,
                    judge_completion_tokens: usage.completion_tokens,
                    ..Usage::default()
                });
                verdicts?
            }
            None => vec![None; groups.len()],
        };
        let mut judged: BTreeMap<usize, Reward> = BTreeMap::new();
        for (members, verdicts) in groups.iter().zip(&verdicts) {
            let attempts: Vec<JudgedTrajectory<'_>> = members.iter().map(|(_, attempt)| *attempt).collect();
            let rewards = rewards(&attempts, verdicts.as_deref(), &self.shaping);
            judged.extend(members.iter().map(|(index, _)| *index).zip(rewards));
        }
        let rewards: Vec<Reward> = judged.into_values().collect();
        if relative.is_none() {
            if !rewards.is_empty() && rewards.iter().all(|reward| reward.correct.is_none()) {
                return Err(JudgeStageError::NothingToGoBy.into());
            }
            context.observer.advance(groups.len() as u64);
        }
        context.write("rewards", &rewards)?;
        Ok(metrics(&rewards, relative.as_ref(), &verdicts))
    }

    fn relative(&self, context: &Context) -> Result<Relative> {
        let params = &self.params;
        let endpoint = Endpoint {
            base_url: params.base_url.clone().ok_or(JudgeStageError::NoModel { param: "base_url" })?,
            model: params.model.clone().ok_or(JudgeStageError::NoModel { param: "model" })?,
            api_key_env: params.api_key_env.clone(),
            temperature: params.temperature,
            max_tokens: params.max_tokens,
            timeout: Duration::try_from_secs_f64(params.timeout_s).unwrap_or(Duration::MAX),
            retries: params.retries,
            concurrency: params.concurrency,
        };
        let spec = RelativeSpec {
            prompt: context.text("relative").to_owned(),
            orders: params.orders,
            attempts: params.attempts,
            seed: context.seed,
        };
        Ok(Relative::new(Client::new(endpoint)?, spec))
    }

    /// Whether the endpoint answers. Sends no key and samples nothing.
    async fn requirements(&self) -> Vec<Requirement> {
        let Params { base_url, model, api_key_env, .. } = &self.params;
        let (Some(base_url), Some(model)) = (base_url, model) else { return Vec::new() };
        if self.shaping.relative <= 0.0 {
            return Vec::new();
        }
        let key = match api_key_env {
            None => "without a key".to_owned(),
            Some(variable) => format!("with the key in {variable}"),
        };
        vec![match llm::reach(base_url, model, PATIENCE).await {
            Ok(_) => Requirement::Met(format!("{model} at {base_url} {key}: the endpoint answers")),
            Err(cause) => Requirement::Missing(cause.into()),
        }]
    }
}

impl StageKind for Judge {
    fn run<'a>(&'a self, context: &'a Context) -> StageFuture<'a, Result<Metrics>> {
        Box::pin(self.judge(context))
    }

    /// Checks that there is something to judge by: answers, or an endpoint and its key.
    fn preflight(&self, context: &PreflightContext<'_>) -> Preflight {
        let Self { params, shaping } = self;
        let mut preflight = Preflight::default();
        if shaping.relative > 0.0 {
            if let Some(base_url) = &params.base_url {
                preflight.check("base_url", llm::check_address(base_url, params.api_key_env.as_deref()));
            }
            if let Some(Err(cause)) = params.api_key_env.as_deref().map(llm::check_key) {
                preflight.unavailable("api_key_env", cause);
            }
        } else if shaping.truth == 0.0 {
            preflight.error("truth", JudgeStageError::NothingEarned);
        } else if let Some(tasks) = context.scenarios() {
            match (tasks.answered, tasks.count()) {
                (known, scenarios) if known == scenarios => {}
                (0, _) => preflight.error("scenarios", JudgeStageError::NothingToGoBy),
                (known, scenarios) => {
                    preflight.note("scenarios", JudgeStageError::LittleToGoBy { known, scenarios });
                }
            }
        }
        preflight
    }

    fn requirements<'a>(&'a self, _: &'a ExpectedOutputs) -> StageFuture<'a, Vec<Requirement>> {
        Box::pin(self.requirements())
    }
}

/// A group's episodes, each with its index among the trajectories.
type Group<'a> = Vec<(usize, JudgedTrajectory<'a>)>;

fn groups<'a>(
    trajectories: &'a [Trajectory],
    scenarios: &'a [Scenario],
) -> Result<Vec<Group<'a>>, JudgeStageError> {
    let scenarios: BTreeMap<&str, &Scenario> =
        scenarios.iter().map(|scenario| (scenario.id.as_str(), scenario)).collect();
    let member = |index: usize| {
        let trajectory = &trajectories[index];
        match scenarios.get(trajectory.scenario_id.as_str()) {
            Some(scenario) => Ok((index, JudgedTrajectory { scenario, trajectory })),
            None => {
                let (trajectory, scenario) = (trajectory.id.clone(), trajectory.scenario_id.clone());
                Err(JudgeStageError::UnknownScenario { trajectory, scenario })
            }
        }
    };
    let groups = data::groups(trajectories.iter().map(Trajectory::group)).into_values();
    groups.map(|members| members.into_iter().map(member).collect()).collect()
}

/// The judge's verdicts by group; none for a group it could not judge.
async fn verdicts(
    context: &Context,
    relative: &Relative,
    groups: &[Group<'_>],
) -> Result<Vec<Option<Vec<RelativeScore>>>> {
    let memory = Recorded { known: context.rows.finished()?, context };
    // Collected, not mapped lazily: the compiler cannot prove that a stream of a borrowing closure is Send.
    let mut judged = Vec::with_capacity(groups.len());
    for members in groups {
        judged.push(verdict(context, relative, members, &memory));
    }
    // As many in flight as the client allows; results come in group order.
    let most = relative.client().endpoint().concurrency.max(1);
    let all = futures::stream::iter(judged).buffered(most).try_collect();
    tokio::select! {
        biased;
        () = context.cancel.cancelled() => Err(Interrupted.into()),
        verdicts = all => verdicts,
    }
}

async fn verdict(
    context: &Context,
    relative: &Relative,
    members: &Group<'_>,
    memory: &Recorded<'_>,
) -> Result<Option<Vec<RelativeScore>>> {
    let attempts: Vec<JudgedTrajectory<'_>> = members.iter().map(|(_, attempt)| *attempt).collect();
    let scenario = attempts.first().map_or("", |attempt| attempt.scenario.id.as_str());
    let verdicts = match relative.judge(&attempts, memory).await {
        Ok(verdicts) => Some(verdicts),
        Err(failure) if failure.code() == "judge::reply" => {
            context.observer.note(&format!("scenario {scenario} is not judged: {failure}"));
            None
        }
        Err(failure) => return Err(failure.at(format!("scenario {scenario}"))),
    };
    context.observer.advance(1);
    Ok(verdicts)
}

/// Replies in the stage's record of finished rows.
struct Recorded<'a> {
    known: BTreeMap<String, Vec<u8>>,
    context: &'a Context,
}

impl ReplyCache for Recorded<'_> {
    fn get(&self, question: &Digest) -> Option<String> {
        String::from_utf8(self.known.get(&question.to_string())?.clone()).ok()
    }

    fn put(&self, question: &Digest, reply: &str) -> Result<()> {
        self.context.rows.record(&question.to_string(), reply.as_bytes()).at(|| "the judge's reply".into())
    }
}

fn metrics(
    rewards: &[Reward],
    relative: Option<&Relative>,
    verdicts: &[Option<Vec<RelativeScore>>],
) -> Metrics {
    let mut metrics = Metrics::new();
    let mean =
        |values: &[f64]| (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
    let totals: Vec<f64> = rewards.iter().map(|reward| f64::from(reward.reward)).collect();
    let correct: Vec<f64> = rewards
        .iter()
        .filter_map(|reward| reward.correct)
        .map(|correct| f64::from(u8::from(correct)))
        .collect();
    metrics.extend(mean(&totals).map(|reward| ("reward".to_owned(), reward)));
    metrics.extend(mean(&correct).map(|success| ("success".to_owned(), success)));
    if let Some(relative) = relative {
        let usage = relative.client().usage();
        let unjudged = verdicts.iter().filter(|verdicts| verdicts.is_none()).count();
        metrics.insert("unjudged_groups".into(), unjudged as f64);
        metrics.insert("judge_requests".into(), usage.requests as f64);
        metrics.insert("judge_prompt_tokens".into(), usage.prompt_tokens as f64);
        metrics.insert("judge_completion_tokens".into(), usage.completion_tokens as f64);
    }
    metrics
}

#[cfg(test)]
mod tests;
