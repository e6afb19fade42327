//! `rollout`: a policy plays several episodes per scenario on the live server.
//!
//! A group whose episodes are all right or all wrong gives no training signal, so more scenarios are drawn in
//! waves (DAPO's dynamic sampling, arXiv 2503.14476) until enough groups vary. The scenarios of a wave depend
//! on the outcomes of earlier waves, never on the order in which episodes finish. Every episode played is
//! kept, except those lost to server failures (`rollout/play.rs`).

mod choice;
pub mod play;
pub mod room;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use self::play::{Budget, Player, RolloutSpec};
use super::{
    Context, Input, Metrics,
    prospect::{Outlook, Prospect},
    typed,
};
use crate::{
    agent::End,
    data::{self, Scenario, Trajectory},
    engine::Sampling,
    error::{Diagnostic, Result},
    hash::Encoder,
    judge::truth,
};

#[derive(Debug, Deserialize)]
struct Params {
    /// Target number of groups that vary.
    prompts: usize,
    /// Episodes per scenario.
    group_size: u32,
    /// Additional waves of scenarios.
    refill_waves: usize,
    temperature: f32,
    top_p: f32,
    top_k: usize,
    min_p: f32,
}

#[derive(Debug, thiserror::Error)]
enum RolloutError {
    #[error("{}", match others {
        0 => "there is no scenario to attempt".to_owned(),
        1 => "there is no scenario to attempt: the only task is held out".to_owned(),
        others => format!("there is no scenario to attempt: all {others} tasks are held out"),
    })]
    NoScenarios { others: usize },
}

impl Diagnostic for RolloutError {
    fn code(&self) -> &'static str {
        "rollout::no_scenarios"
    }

    fn hint(&self) -> Option<String> {
        let Self::NoScenarios { others } = self;
        Some(match others {
            0 => "the table of scenarios is empty; look at the stage that wrote it".into(),
            1 => "add tasks: each is either trained on or held out".into(),
            _ => "lower heldout_share, or give tasks `\"split\": \"train\"`".into(),
        })
    }
}

/// The episodes of one scenario.
struct Group<'a> {
    /// Index in the table of scenarios.
    index: usize,
    scenario: &'a Scenario,
    trajectories: Vec<Trajectory>,
}

impl Group<'_> {
    fn outcomes(&self) -> impl Iterator<Item = Option<bool>> {
        self.trajectories.iter().map(|trajectory| truth::correct(self.scenario, trajectory.answer.as_deref()))
    }

    /// Whether the group gives a training signal. Without ground truth only a judge can tell: perhaps.
    fn is_informative(&self) -> bool {
        let mut outcomes = self.outcomes();
        match outcomes.next() {
            // All episodes were lost.
            None => false,
            Some(None) => true,
            Some(first) => outcomes.any(|outcome| outcome != first),
        }
    }
}

pub async fn run(context: &Context) -> Result<Metrics> {
    let params: Params = context.params()?;
    let scenarios: Vec<Scenario> = data::read(&context.input("scenarios")?.path)?;
    if scenarios.is_empty() {
        return Err(RolloutError::NoScenarios { others: 0 }.into());
    }
    let tools = &context.input("tools")?.path;
    let mut player =
        Player::open(context, context.input("policy")?, tools, context.params::<Budget>()?).await?;
    let groups = waves(context, &params, &scenarios, &mut player).await;
    let lost = player.lost();
    player.close().await;
    let mut groups = groups?;

    let mut metrics = metrics(&groups);
    metrics.insert("lost".into(), lost as f64);
    groups.sort_by_key(|group| group.index);
    let trajectories: Vec<Trajectory> = groups.into_iter().flat_map(|group| group.trajectories).collect();
    data::write(&context.output.join("trajectories.parquet"), &trajectories)?;
    Ok(metrics)
}

/// Checks that there are tasks to play, and room to play them.
pub fn look(prospect: &Prospect<'_>) -> Outlook {
    let mut outlook = Outlook::default();
    _ = prospect.params::<Params>(&mut outlook);
    if let Some(tasks) = prospect.tasks().filter(|tasks| tasks.texts.is_empty()) {
        outlook.object("scenarios", RolloutError::NoScenarios { others: tasks.others });
    }
    if let Some(budget) = prospect.params::<Budget>(&mut outlook) {
        room::look(prospect, "policy", &budget, &mut outlook);
    }
    outlook
}

async fn waves<'a>(
    context: &Context,
    params: &Params,
    scenarios: &'a [Scenario],
    player: &mut Player,
) -> Result<Vec<Group<'a>>> {
    let mut order = choice::draw(scenarios, context.seed).into_iter();
    let mut groups: Vec<Group<'_>> = Vec::new();
    for _ in 0..=params.refill_waves {
        let informative = groups.iter().filter(|group| group.is_informative()).count();
        let wave: Vec<usize> = order.by_ref().take(params.prompts.saturating_sub(informative)).collect();
        if wave.is_empty() {
            break;
        }
        let attempts = attempts(params, scenarios, &wave, context.seed);
        let units = groups.len() * params.group_size as usize + attempts.len();
        context.observer.phase("episodes", units as u64);
        let mut trajectories = player.play(context, &attempts).await?.into_iter();
        groups.extend(wave.into_iter().map(|index| Group {
            index,
            scenario: &scenarios[index],
            trajectories: trajectories.by_ref().take(params.group_size as usize).flatten().collect(),
        }));
    }
    Ok(groups)
}

/// The episodes of a wave, group by group.
fn attempts<'a>(
    params: &Params,
    scenarios: &'a [Scenario],
    wave: &[usize],
    seed: u64,
) -> Vec<RolloutSpec<'a>> {
    let of_group = |index: &usize| {
        let scenario = &scenarios[*index];
        (0..params.group_size).map(move |sample| RolloutSpec {
            scenario,
            sample,
            seed: episode_seed(seed, scenario, sample),
            sampling: params.sampling(),
        })
    };
    wave.iter().flat_map(of_group).collect()
}

/// Row names of the first wave.
pub fn rows_needed(
    params: &Map<String, Value>,
    seed: u64,
    inputs: &BTreeMap<String, Vec<Input>>,
) -> Option<Vec<String>> {
    let params: Params = typed(params).ok()?;
    let policy = inputs.get("policy")?.first()?.digest;
    let scenarios: Vec<Scenario> = data::read(&inputs.get("scenarios")?.first()?.path).ok()?;
    let wave: Vec<usize> = choice::draw(&scenarios, seed).into_iter().take(params.prompts).collect();
    Some(attempts(&params, &scenarios, &wave, seed).iter().map(|attempt| attempt.row(&policy)).collect())
}

impl Params {
    fn sampling(&self) -> Sampling {
        let Self { temperature, top_p, top_k, min_p, .. } = *self;
        Sampling { temperature, top_p, top_k, min_p }
    }
}

/// Distinct for every episode of a run.
fn episode_seed(seed: u64, scenario: &Scenario, sample: u32) -> u64 {
    Encoder::new("mcprl episode seed v1")
        .number(seed)
        .text(&scenario.id)
        .number(sample.into())
        .finish()
        .seed()
}

fn metrics(groups: &[Group<'_>]) -> Metrics {
    let trajectories: Vec<&Trajectory> = groups.iter().flat_map(|group| &group.trajectories).collect();
    let episodes = trajectories.len() as f64;
    let mean = |of: &dyn Fn(&Trajectory) -> u32| {
        trajectories.iter().map(|trajectory| f64::from(of(trajectory))).sum::<f64>() / episodes
    };
    let informative = groups.iter().filter(|group| group.is_informative()).count();
    let mut metrics: Metrics = BTreeMap::from([
        ("episodes".to_owned(), episodes),
        ("groups".to_owned(), groups.len() as f64),
        ("informative_groups".to_owned(), informative as f64),
        ("turns".to_owned(), mean(&|trajectory| trajectory.turns)),
        ("calls".to_owned(), mean(&|trajectory| trajectory.calls)),
        ("tool_errors".to_owned(), mean(&|trajectory| trajectory.tool_errors)),
        ("parse_failures".to_owned(), mean(&|trajectory| trajectory.parse_failures)),
        (
            "sampled_tokens".to_owned(),
            mean(&|trajectory| trajectory.sampled.iter().filter(|sampled| **sampled).count() as u32),
        ),
    ]);
    let known: Vec<bool> = groups.iter().flat_map(Group::outcomes).flatten().collect();
    if !known.is_empty() {
        let right = known.iter().filter(|right| **right).count();
        metrics.insert("success".into(), right as f64 / known.len() as f64);
    }
    for end in End::ALL {
        let ended = trajectories.iter().filter(|trajectory| trajectory.end == end.name()).count();
        metrics.insert(format!("ended_{end}"), ended as f64 / episodes);
    }
    metrics
}
