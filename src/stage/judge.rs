//! `judge`: a reward for every episode.
//!
//! Rewards are stored separately from samples: with another weight or prompt the stored episodes are judged
//! again and none is played. Replies of the language model are recorded, so that a resumed stage repeats no
//! request.

use std::{collections::BTreeMap, time::Duration};

use futures::{StreamExt, TryStreamExt};
use serde::Deserialize;

use super::{
    Context, Metrics,
    prospect::{Outlook, Prospect},
};
use crate::{
    data::{self, GroupKey, Reward, Scenario, Trajectory},
    error::{At, Class, Diagnostic, Interrupted, Result},
    hash::Digest,
    judge::{JudgedTrajectory, Relative, RelativeScore, RelativeSpec, ReplyCache, Shaping, rewards},
    llm::{self, Client, Endpoint},
    usage::Usage,
};

#[derive(Debug, Deserialize)]
struct Params {
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
    #[error("trajectory {trajectory} is of scenario {scenario}, which is not among the scenarios")]
    UnknownScenario { trajectory: String, scenario: String },
    #[error("no scenario has a known answer, and no language model is asked")]
    NothingToGoBy,
    #[error(
        "only {known} of the {scenarios} scenarios have a known answer: attempts at the others are not told right from wrong"
    )]
    LittleToGoBy { known: usize, scenarios: usize },
    #[error("`truth` and `relative` are 0, so that no attempt earns more than another by being right")]
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
            Self::UnknownScenario { .. } => "give the judge the scenarios that the rollout was given".into(),
            Self::NothingToGoBy | Self::LittleToGoBy { .. } => {
                "set `relative = 1.0`, `base_url` and `model` to let a language model judge".into()
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

pub async fn run(context: &Context) -> Result<Metrics> {
    let shaping: Shaping = context.params()?;
    let trajectories: Vec<Trajectory> = data::read(&context.input("trajectories")?.path)?;
    let scenarios: Vec<Scenario> = data::read(&context.input("scenarios")?.path)?;
    let groups = groups(&trajectories, &scenarios)?;
    let relative = match shaping.relative > 0.0 {
        true => Some(relative(context)?),
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
        let rewards = rewards(&attempts, verdicts.as_deref(), &shaping);
        judged.extend(members.iter().map(|(index, _)| *index).zip(rewards));
    }
    let rewards: Vec<Reward> = judged.into_values().collect();
    if relative.is_none() {
        if !rewards.is_empty() && rewards.iter().all(|reward| reward.correct.is_none()) {
            return Err(JudgeStageError::NothingToGoBy.into());
        }
        context.observer.advance(groups.len() as u64);
    }
    data::write(&context.output.join("rewards.parquet"), &rewards)?;
    Ok(metrics(&rewards, relative.as_ref(), &verdicts))
}

/// Checks that there is something to judge by: answers, or an endpoint and its key.
pub fn look(prospect: &Prospect<'_>) -> Outlook {
    let mut outlook = Outlook::default();
    let shaping = prospect.params::<Shaping>(&mut outlook);
    let (Some(shaping), Some(params)) = (shaping, prospect.params::<Params>(&mut outlook)) else {
        return outlook;
    };
    if shaping.relative > 0.0 {
        if let Some(base_url) = &params.base_url {
            outlook.take("base_url", llm::check_address(base_url, params.api_key_env.as_deref()));
        }
        if let Some(Err(cause)) = params.api_key_env.as_deref().map(llm::check_key) {
            outlook.lack("api_key_env", cause);
        }
    } else if shaping.truth == 0.0 {
        outlook.object("truth", JudgeStageError::NothingEarned);
    } else if let Some(tasks) = prospect.tasks() {
        match (tasks.answered, tasks.count()) {
            (known, scenarios) if known == scenarios => {}
            (0, _) => outlook.object("scenarios", JudgeStageError::NothingToGoBy),
            (known, scenarios) => {
                outlook.note("scenarios", JudgeStageError::LittleToGoBy { known, scenarios });
            }
        }
    }
    outlook
}

/// A group's episodes, each with its index among the trajectories.
type Group<'a> = Vec<(usize, JudgedTrajectory<'a>)>;

/// The groups, in the order of their first episodes.
fn groups<'a>(
    trajectories: &'a [Trajectory],
    scenarios: &'a [Scenario],
) -> Result<Vec<Group<'a>>, JudgeStageError> {
    let scenarios: BTreeMap<&str, &Scenario> =
        scenarios.iter().map(|scenario| (scenario.id.as_str(), scenario)).collect();
    let mut places: BTreeMap<GroupKey<'_>, usize> = BTreeMap::new();
    let mut groups: Vec<Group<'a>> = Vec::new();
    for (index, trajectory) in trajectories.iter().enumerate() {
        let scenario = scenarios.get(trajectory.scenario_id.as_str()).ok_or_else(|| {
            let (trajectory, scenario) = (trajectory.id.clone(), trajectory.scenario_id.clone());
            JudgeStageError::UnknownScenario { trajectory, scenario }
        })?;
        let place = *places.entry(trajectory.group()).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[place].push((index, JudgedTrajectory { scenario, trajectory }));
    }
    Ok(groups)
}

fn relative(context: &Context) -> Result<Relative> {
    let params: Params = context.params()?;
    let endpoint = Endpoint {
        base_url: params.base_url.ok_or(JudgeStageError::NoModel { param: "base_url" })?,
        model: params.model.ok_or(JudgeStageError::NoModel { param: "model" })?,
        api_key_env: params.api_key_env,
        temperature: params.temperature,
        max_tokens: params.max_tokens,
        timeout: Duration::try_from_secs_f64(params.timeout_s).unwrap_or(Duration::MAX),
        retries: params.retries,
        concurrency: params.concurrency,
    };
    let spec = RelativeSpec {
        prompt: context.files.get("relative").cloned().unwrap_or_default(),
        orders: params.orders,
        attempts: params.attempts,
        seed: context.seed,
    };
    Ok(Relative::new(Client::new(endpoint)?, spec))
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
            context.observer.note(&format!("scenario {scenario} stays unjudged: {failure}"));
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
