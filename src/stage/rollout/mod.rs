//! `rollout`: a policy plays several episodes per scenario on the live server.
//!
//! A group whose episodes are all right or all wrong gives no training signal, so more scenarios are drawn in
//! waves (DAPO's dynamic sampling, arXiv 2503.14476) until enough groups vary. The scenarios of a wave depend
//! on the outcomes of earlier waves, never on the order in which episodes finish. With `max_group_size` a wave
//! first adds episodes to the groups that are all wrong. Which scenarios come first may depend on the pass
//! rates of earlier rollouts (`rollout/choice.rs`). Every episode played is kept, except those lost to server failures (`rollout/play.rs`).

pub(super) mod choice;
mod error;
mod harness;
mod open_agent;
pub mod play;
mod probe;
pub mod prompts;
pub mod records;
pub mod reference;
mod scoreboard;
pub mod settings;

#[cfg(test)]
mod tests;

pub use open_agent::{AgentSource, EndpointSource, OpenAgent, OpenEndpoint, OpenPolicy};

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use serde::Deserialize;
use serde_json::{Map, Value};

use self::{
    choice::Draw,
    play::Player,
    records::{RolloutSpec, episode_seed, measured},
    settings::PlaySettings,
};
use super::{
    Context, Input, Metrics, ScoredBy, StageError, StageKind,
    kind::StageFuture,
    known_metrics,
    memory::Load,
    metrics,
    preflight::{ExpectedEpisodes, ExpectedOutput, ExpectedScenarios, Preflight, PreflightContext},
    share_right, typed,
};
use crate::{
    chat::CallForm,
    data::{self, AnswerSource, Call, End, GroupSignal, PassRate, Scenario, Trajectory, calls::calls},
    engine::{Footprint, Sampling},
    error::{Diagnostic, Result},
    judge::truth,
};

#[derive(Debug, Deserialize)]
pub(super) struct Params {
    /// Target number of groups that vary.
    prompts: usize,
    /// Episodes per scenario.
    group_size: u32,
    /// Additional waves of scenarios.
    refill_waves: usize,
    /// Up to how many episodes groups grow that do not vary.
    max_group_size: Option<u32>,
    draw: Draw,
    scored_by: Option<ScoredBy>,
    temperature: f32,
    top_p: f32,
    top_k: usize,
    min_p: f32,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "rollout")]
enum RolloutError {
    #[error("{}", match others {
        0 => "no scenarios to train on".to_owned(),
        1 => "no scenarios to train on: the only task is held out".to_owned(),
        others => format!("no scenarios to train on: all {others} tasks are held out"),
    })]
    #[hint("the table of scenarios is empty; check the stage that wrote it" if *others == 0)]
    #[hint("add tasks: each is either trained on or held out" if *others == 1)]
    #[hint = "lower `heldout_share`, or give tasks `\"split\": \"train\"`"]
    NoScenarios { others: usize },
    #[error("none of the {tasks} tasks has a known answer or `checks`, and no judge scores their episodes")]
    #[hint = "give tasks an `answer` or `checks`, or give a judge a weight in the stage that scores them"]
    NothingScored { tasks: usize },
}

/// The episodes of one scenario.
struct Group {
    /// Index in the table of scenarios.
    index: usize,
    /// Episodes played, lost ones included.
    size: u32,
    trajectories: Vec<Trajectory>,
}

/// Episodes of one scenario: its index, and which samples.
type Share = (usize, Range<u32>);

impl Group {
    fn outcomes(&self) -> impl Iterator<Item = Option<bool>> {
        self.trajectories.iter().map(|trajectory| trajectory.correct)
    }

    /// Whether the group gives a training signal, or perhaps does: where ground truth does not decide, only a judge can
    /// tell. A group whose episodes were all lost does not.
    fn is_informative(&self, params: &Params) -> bool {
        let outcomes = self.outcomes().map(|correct| correct.filter(|_| params.sees_truth()));
        matches!(GroupSignal::of(outcomes), Some(GroupSignal::Informative | GroupSignal::Unknown))
    }

    /// Whether more episodes may help: one of them may be right. What is solved every time is not worth more.
    fn grows(&self, params: &Params) -> bool {
        let is_wrong = GroupSignal::of(self.outcomes()) == Some(GroupSignal::AllWrong);
        is_wrong && !self.is_informative(params) && self.size < params.most()
    }
}

pub struct Rollout {
    params: Params,
    play: PlaySettings,
}

impl Rollout {
    pub fn parse(params: &Map<String, Value>) -> Result<Self, StageError> {
        Ok(Self { params: typed(params)?, play: PlaySettings::parse(params)? })
    }

    async fn play(&self, context: &Context) -> Result<Metrics> {
        let Self { params, play } = self;
        let scenarios: Vec<Scenario> = context.read("scenarios")?;
        let tasks = scenarios.len();
        if tasks == 0 && params.measures() {
            context.observer.note("there are no tasks to measure on");
            context.write("pass_rates", &[] as &[PassRate])?;
            context.write("calls", &[] as &[Call])?;
            context.write("trajectories", &[] as &[Trajectory])?;
            return Ok(Metrics::new());
        }
        let scenarios = params.scored(scenarios);
        match tasks - scenarios.len() {
            _ if tasks == 0 => return Err(RolloutError::NoScenarios { others: 0 }.into()),
            0 => {}
            left_out if left_out == tasks => return Err(RolloutError::NothingScored { tasks }.into()),
            left_out => context.observer.note(&format!(
                "{left_out} of {tasks} tasks are left out: they have neither a known answer nor `checks`, and no judge scores \
                 their episodes"
            )),
        }
        let tools = &context.input("tools")?.path;
        let mut player =
            Player::open(context, context.input("policy")?, tools, &scenarios, play.clone()).await?;
        let rates: Vec<PassRate> = context.read_optional("pass_rates")?.unwrap_or_default();
        if params.draw == Draw::PassRate && !params.sees_truth() {
            context.observer.note("judges alone score these episodes, so scenarios are drawn uniformly");
        } else if params.draw == Draw::PassRate && rates.is_empty() {
            context.observer.note("no pass rates yet, so scenarios are drawn uniformly");
        }
        let drawn = rates.iter().filter(|rate| rate.rollouts > 0).map(|rate| rate.scenario_id.clone());
        let drawn: BTreeSet<String> = drawn.collect();
        player.set_drawn(drawn.clone());
        let groups = waves(context, params, (&scenarios, &rates), &mut player).await;
        let lost = player.lost();
        let unchecked = player.unchecked();
        player.close().await;
        let mut groups = groups?;
        if context.shard.is_some() {
            return Ok(Metrics::new());
        }

        let mut metrics = metrics_of(&groups, params);
        metrics.insert("lost".into(), lost as f64);
        if params.measures() {
            // No success in training: the policy as it is served.
            let success = metrics.remove("success");
            metrics.extend(known_metrics([("success_greedy", success)]));
        } else {
            let new = groups.iter().filter(|group| !drawn.contains(&scenarios[group.index].id));
            metrics.extend(known_metrics([("success_new", share_right(new.flat_map(Group::outcomes)))]));
        }
        if params.draw == Draw::PassRate {
            let is_known =
                |group: &&Group| rates.iter().any(|rate| rate.scenario_id == scenarios[group.index].id);
            let known = groups.iter().filter(is_known).count();
            metrics.insert("known_pass_rates".into(), known as f64 / groups.len() as f64);
        }
        if params.max_group_size.is_some() {
            let grown = groups.iter().filter(|group| group.size > params.group_size).count();
            metrics.insert("grown_groups".into(), grown as f64);
        }
        context.write("pass_rates", &updated(rates, &scenarios, &groups))?;
        groups.sort_by_key(|group| group.index);
        let trajectories: Vec<Trajectory> = groups.into_iter().flat_map(|group| group.trajectories).collect();
        let calls: Vec<Call> =
            trajectories.iter().flat_map(|trajectory| calls(&trajectory.into(), &unchecked)).collect();
        metrics.extend(forms(&calls));
        context.write("calls", &calls)?;
        context.write("trajectories", &trajectories)?;
        Ok(metrics)
    }

    /// Episodes of one wave.
    fn episodes(&self) -> usize {
        self.params.prompts().saturating_mul(self.params.group_size as usize)
    }
}

impl StageKind for Rollout {
    fn run<'a>(&'a self, context: &'a Context) -> StageFuture<'a, Result<Metrics>> {
        Box::pin(self.play(context))
    }

    /// Checks that there are tasks to play, and room to play them.
    fn preflight(&self, context: &PreflightContext<'_>) -> Preflight {
        let mut preflight = Preflight::default();
        if (context.finished)("trajectories").is_none() {
            let is_empty = |scenarios: &&ExpectedScenarios| scenarios.texts.is_empty();
            if let Some(scenarios) = context.scenarios().filter(is_empty).filter(|_| !self.params.measures())
            {
                preflight.error("scenarios", RolloutError::NoScenarios { others: scenarios.others });
            }
            prompts::check(context, "policy", &self.play.agent, &mut preflight);
        }
        let episodes = ExpectedEpisodes {
            count: self.episodes(),
            longest: self.play.agent.max_episode_tokens,
            group: Some(self.params.group_size.max(self.params.max_group_size.unwrap_or(0))),
            altered: self.params.altered(),
        };
        preflight.with("trajectories", ExpectedOutput::Episodes(episodes))
    }

    fn workload(&self) -> Option<f64> {
        Some(self.episodes() as f64).filter(|episodes| *episodes > 0.0 && !self.params.measures())
    }

    fn memory(&self, load: &Load<'_>) -> Option<Footprint> {
        let policy = load.policies("policy").next()?;
        Some(self.play.footprint(load, policy, self.episodes()))
    }

    /// Rows of the first wave.
    fn rows_needed(&self, seed: u64, inputs: &BTreeMap<String, Vec<Input>>) -> Option<Vec<String>> {
        let policy = inputs.get("policy")?.first()?.digest;
        let scenarios = self.params.scored(data::read(&inputs.get("scenarios")?.first()?.path).ok()?);
        let rates: Vec<PassRate> = match inputs.get("pass_rates").and_then(|inputs| inputs.first()) {
            Some(input) => data::read(&input.path).ok()?,
            None => Vec::new(),
        };
        let order = self.params.draw().order(&scenarios, &rates, self.params.group_size, seed).into_iter();
        let wave: Vec<Share> =
            order.take(self.params.prompts()).map(|index| (index, 0..self.params.group_size)).collect();
        let rollouts = rollouts(&self.params, &scenarios, &wave, seed);
        Some(rollouts.iter().map(|rollout| rollout.row(&policy)).collect())
    }

    fn has_shards(&self) -> bool {
        true
    }

    fn shares_model(&self, role: &str) -> bool {
        role == "policy"
    }
}

/// The pass rates after these groups, by scenario.
fn updated(rates: Vec<PassRate>, scenarios: &[Scenario], groups: &[Group]) -> Vec<PassRate> {
    let mut rates: BTreeMap<String, PassRate> =
        rates.into_iter().map(|rate| (rate.scenario_id.clone(), rate)).collect();
    for group in groups {
        let known: Vec<bool> = group.outcomes().flatten().collect();
        if known.is_empty() {
            continue;
        }
        let id = &scenarios[group.index].id;
        let right = known.iter().filter(|right| **right).count();
        let rate = rates.remove(id).unwrap_or_else(|| PassRate::unknown(id)).with_newer(known.len(), right);
        rates.insert(id.clone(), rate);
    }
    rates.into_values().collect()
}

async fn waves(
    context: &Context,
    params: &Params,
    (scenarios, rates): (&[Scenario], &[PassRate]),
    player: &mut Player,
) -> Result<Vec<Group>> {
    let mut order = params.draw().order(scenarios, rates, params.group_size, context.seed).into_iter();
    let mut groups: Vec<Group> = Vec::new();
    for _ in 0..=params.refill_waves {
        let informative = groups.iter().filter(|group| group.is_informative(params)).count();
        let missing = params.prompts().saturating_sub(informative);
        let played: usize = groups.iter().map(|group| group.size as usize).sum();
        let mut growing: Vec<&mut Group> =
            groups.iter_mut().filter(|group| group.grows(params)).take(missing).collect();
        let longer = growing.iter().map(|group| {
            (group.index, group.size..group.size.saturating_add(params.group_size).min(params.most()))
        });
        let mut wave: Vec<Share> = longer.collect();
        wave.extend(order.by_ref().take(missing - growing.len()).map(|index| (index, 0..params.group_size)));
        if wave.is_empty() {
            break;
        }
        let rollouts = rollouts(params, scenarios, &wave, context.seed);
        context.observer.phase("episodes", (played + rollouts.len()) as u64);
        let mut trajectories = player.play(context, &rollouts).await?.into_iter();
        let mut wave = wave.into_iter().map(|(index, samples)| {
            let trajectories = trajectories.by_ref().take(samples.len()).flatten().collect();
            Group { index, size: samples.end, trajectories }
        });
        for (group, more) in growing.iter_mut().zip(wave.by_ref()) {
            group.size = more.size;
            group.trajectories.extend(more.trajectories);
        }
        let new: Vec<Group> = wave.collect();
        groups.extend(new);
        if context.shard.is_some() {
            break;
        }
    }
    Ok(groups)
}

/// The episodes of a wave, group by group.
fn rollouts<'a>(
    params: &Params,
    scenarios: &'a [Scenario],
    wave: &[Share],
    seed: u64,
) -> Vec<RolloutSpec<'a>> {
    let of_group = |(index, samples): &Share| {
        let scenario = &scenarios[*index];
        samples.clone().map(move |sample| RolloutSpec {
            scenario,
            sample,
            seed: episode_seed("mcprl episode seed v1", seed, scenario, sample),
            sampling: params.sampling(),
        })
    };
    wave.iter().flat_map(of_group).collect()
}

impl Params {
    /// Whether its episodes are greedy: they say how good the policy is, and nothing learns from them.
    fn measures(&self) -> bool {
        self.temperature == 0.0
    }

    /// Scenarios of a wave. A policy is measured on all, so that measurements can be compared.
    fn prompts(&self) -> usize {
        if self.measures() { usize::MAX } else { self.prompts }
    }

    /// Whether it may decide what is played that an answer is right.
    fn sees_truth(&self) -> bool {
        self.scored_by != Some(ScoredBy::Judges)
    }

    /// The scenarios whose episodes something can score.
    fn scored(&self, mut scenarios: Vec<Scenario>) -> Vec<Scenario> {
        if self.scored_by == Some(ScoredBy::Answers) {
            scenarios.retain(truth::is_known);
        }
        scenarios
    }

    fn draw(&self) -> Draw {
        if self.sees_truth() { self.draw } else { Draw::Uniform }
    }

    /// The most episodes of a group.
    fn most(&self) -> u32 {
        self.max_group_size.unwrap_or(0).max(self.group_size)
    }

    /// The first sampling parameter that gives tokens other probabilities than the policy's, with its value.
    fn altered(&self) -> Option<(&'static str, f32)> {
        let Self { temperature, top_p, top_k, min_p, .. } = *self;
        let changed = [
            ("temperature", temperature, temperature != 1.0),
            ("top_p", top_p, top_p < 1.0),
            ("top_k", top_k as f32, top_k > 0),
            ("min_p", min_p, min_p > 0.0),
        ];
        changed.into_iter().find_map(|(name, value, is_changed)| is_changed.then_some((name, value)))
    }

    fn sampling(&self) -> Sampling {
        let Self { temperature, top_p, top_k, min_p, .. } = *self;
        Sampling { temperature, top_p, top_k, min_p }
    }
}

/// The share of the calls in each form, of those that were read.
fn forms(calls: &[Call]) -> Metrics {
    let read = calls.iter().filter(|call| call.form.is_some()).count();
    let share = |form: CallForm| {
        let count = calls.iter().filter(|call| call.form.as_deref() == Some(form.name())).count();
        (format!("form_{}", form.name()), count as f64 / read.max(1) as f64)
    };
    CallForm::ALL.iter().copied().map(share).collect()
}

fn metrics_of(groups: &[Group], params: &Params) -> Metrics {
    let trajectories: Vec<&Trajectory> = groups.iter().flat_map(|group| &group.trajectories).collect();
    let episodes = trajectories.len() as f64;
    let informative = groups.iter().filter(|group| group.is_informative(params)).count();
    let failures: u64 = trajectories.iter().map(|trajectory| u64::from(trajectory.parse_failures)).sum();
    let by_text =
        |trajectory: &&&Trajectory| trajectory.answer_source.as_deref() == Some(AnswerSource::Text.name());
    let mut found = measured(&trajectories);
    found.extend(metrics([
        ("groups", groups.len() as f64),
        ("informative_groups", informative as f64),
        ("parse_failures", failures as f64 / episodes),
        ("answered_as_text", trajectories.iter().filter(by_text).count() as f64 / episodes),
    ]));
    for end in End::ALL.iter().copied() {
        let ended = trajectories.iter().filter(|trajectory| trajectory.end() == Some(end)).count();
        found.insert(format!("ended_{end}"), ended as f64 / episodes);
    }
    found
}
