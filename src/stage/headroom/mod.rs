//! `headroom`: what practice starts from, and whether it can help.
//!
//! Each policy plays the tasks of `dev` greedily, which nothing trains on. A policy counts as better than the one before only if
//! it solves more of them: imitation can harm a model that works already. The best plays some of these tasks and of the training
//! tasks several times. What no sample solves, practice cannot reinforce; what all solve, it need not ([`Headroom`]).

pub(super) mod teacher;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    Context, Input, Metrics, StageError, StageKind,
    kind::StageFuture,
    known_metrics,
    memory::Load,
    metrics,
    preflight::{ExpectedEpisodes, ExpectedOutput, Preflight, PreflightContext},
    rollout::{
        choice::Draw,
        play::Player,
        prompts,
        records::{RolloutSpec, episode_seed, samples},
        settings::PlaySettings,
    },
    share_right, typed,
};
use crate::{
    data::{PassRate, Scenario, Trajectory},
    engine::{Footprint, Sampling},
    error::{At, Diagnostic, Result},
    eval::majority,
    grpo::{Advice, Headroom, Samples},
    judge::truth,
    store::link_tree,
    text::percent,
};

const ROLE: &str = "policies";
/// What the seeds of its episodes are for.
const SEED: &str = "mcprl headroom seed v1";
/// Fewer tasks than this hardly tell two policies apart.
const FEW: usize = 20;
/// Of the port and of its folder.
const POLICY: &str = "policy";

#[derive(Debug, Deserialize)]
pub(super) struct Params {
    tasks: usize,
    samples: u32,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "headroom")]
enum HeadroomError {
    #[error("the server was lost in all episodes")]
    #[hint = "start the server by hand, call a tool, and check that it keeps running"]
    ServerLost,
    #[error("there is no task with a known answer, so a teacher cannot be compared")]
    #[diagnostic(class = usage)]
    #[hint = "keep some tasks with answers apart, with `dev` of the stage that makes them; explored tasks have answers, and voted ones do not count"]
    NoTasks,
    #[error(
        "there are {tasks} tasks that nothing trains on with a known answer, too few to compare a teacher: {least} are needed"
    )]
    #[diagnostic(class = usage)]
    #[hint = "keep more tasks apart, with `dev` of the stage that makes them"]
    FewTasks { tasks: usize, least: usize },
    #[error(
        "the teacher solves {teacher:.1} % of {tasks} tasks that nothing trains on, the policy {policy:.1} %: {gain:+.1} points [{low:+.1}, {high:+.1}], where {least:.0} and an interval above 0 are needed"
    )]
    #[hint = "train the teacher for this server first, give more tasks of `dev` if the interval is wide, or practise without one"]
    WeakTeacher { teacher: f64, policy: f64, gain: f64, low: f64, high: f64, least: f64, tasks: usize },
}

pub struct HeadroomStage {
    params: Params,
    play: PlaySettings,
}

impl HeadroomStage {
    pub fn parse(params: &Map<String, Value>) -> Result<Self, StageError> {
        Ok(Self { params: typed(params)?, play: PlaySettings::parse(params)? })
    }

    async fn measure(&self, context: &Context) -> Result<Metrics> {
        let policies = context.inputs.get(ROLE).map_or(&[][..], Vec::as_slice);
        let train = known(context, "scenarios")?;
        let dev = if context.has("dev") { known(context, "dev")? } else { Vec::new() };
        let of_train = chosen(&train, self.params.tasks, context.seed);
        let of_dev = chosen(&dev, self.params.tasks, context.seed);
        let sampled: Vec<&Scenario> = of_train.iter().copied().chain(of_dev).collect();
        if sampled.is_empty() {
            return unmeasured(context, policies);
        }
        let deciding: Vec<Scenario> = match (dev.is_empty(), policies) {
            (false, _) => dev.clone(),
            // There is nothing to decide.
            (true, [_]) => Vec::new(),
            (true, _) => of_train.into_iter().cloned().collect(),
        };
        let count = policies.len() * deciding.len() + sampled.len() * self.params.samples as usize;
        context.observer.phase("episodes", count as u64);
        let (place, success) = self.choose(context, policies, &deciding, !dev.is_empty()).await?;
        let policy = &policies[place];

        let of = |scenario| samples(SEED, context.seed, scenario, 1..=self.params.samples);
        let rollouts: Vec<RolloutSpec<'_>> = sampled.iter().copied().flat_map(of).collect();
        let all: Vec<Scenario> = sampled.iter().map(|scenario| (*scenario).clone()).collect();
        let played = play(context, &self.play, policy, &all, &rollouts).await?;
        let trajectories: Vec<Trajectory> = played.into_iter().flatten().collect();
        let samples = of_tasks(&trajectories, |id| {
            all.iter().find(|scenario| scenario.id == id).map_or("text", |scenario| &scenario.check)
        });
        let headroom = Headroom::of(&samples).ok_or(HeadroomError::ServerLost)?;
        let advice = headroom.advice();
        context.observer.note(&format!("{headroom}. {}", capitalised(advice.text())));

        let trained: BTreeSet<&str> = train.iter().map(|scenario| scenario.id.as_str()).collect();
        context.write("pass_rates", &pass_rates(&trajectories, &trained))?;
        context.write("trajectories", &trajectories)?;
        pass_on(policy, context)?;
        let mut found = Metrics::new();
        found.extend(known_metrics([("dev", success.filter(|_| !dev.is_empty()))]));
        found.extend(metrics([
            ("success", headroom.success),
            ("pass_at_k", headroom.any),
            ("majority_at_k", headroom.majority),
            ("mixed", headroom.mixed),
            ("practice", f64::from(u8::from(advice == Advice::Practice))),
            ("chosen", (place + 1) as f64),
        ]));
        Ok(found)
    }

    /// The place of the policy that solves most of these tasks, greedily, and which share; of one policy without tasks, none.
    async fn choose(
        &self,
        context: &Context,
        policies: &[Input],
        tasks: &[Scenario],
        is_apart: bool,
    ) -> Result<(usize, Option<f64>)> {
        if tasks.is_empty() {
            return Ok((0, None));
        }
        // So few tasks do not tell a start from a base where both solve next to nothing.
        let is_few = tasks.len() < FEW;
        let mut best: Option<(usize, f64)> = None;
        let mut said = Vec::new();
        for (place, policy) in policies.iter().enumerate() {
            let success = play_greedily(context, &self.play, policy, tasks).await?;
            said.push(format!("{} {} %", policy.name, percent(success, 1)));
            if best.is_none_or(|(_, before)| success > before || (success == before && is_few)) {
                best = Some((place, success));
            }
        }
        let (place, success) = best.ok_or_else(|| StageError::NoInput { role: ROLE.into() })?;
        let count = tasks.len();
        let of = match is_apart {
            true => format!("{count} tasks that nothing trains on"),
            false => format!("{count} training tasks, because there are no others"),
        };
        let few = if is_few { ", though so few say little" } else { "" };
        let (said, name) = (said.join(", "), &policies[place].name);
        context.observer.note(&format!("greedy, on {of}: {said}; {name} goes on{few}"));
        Ok((place, Some(success)))
    }

    /// Episodes at most, if there are enough tasks.
    fn episodes(&self) -> usize {
        self.params.tasks.saturating_mul(2).saturating_mul(self.params.samples as usize)
    }
}

/// The tasks of an input whose answers are known.
fn known(context: &Context, role: &str) -> Result<Vec<Scenario>> {
    let mut scenarios: Vec<Scenario> = context.read(role)?;
    scenarios.retain(truth::is_known);
    Ok(scenarios)
}

/// The share of these tasks that a policy solves, each played once.
async fn play_greedily(
    context: &Context,
    settings: &PlaySettings,
    policy: &Input,
    tasks: &[Scenario],
) -> Result<f64> {
    let outcomes = greedy_outcomes(context, settings, policy, tasks).await?;
    Ok(share_right(outcomes.into_iter().flatten().map(Some)).ok_or(HeadroomError::ServerLost)?)
}

/// Whether a policy solves each of these tasks, played once; `None` for an episode that was lost.
async fn greedy_outcomes(
    context: &Context,
    settings: &PlaySettings,
    policy: &Input,
    tasks: &[Scenario],
) -> Result<Vec<Option<bool>>> {
    let rollouts: Vec<RolloutSpec<'_>> =
        tasks.iter().map(|scenario| greedy(scenario, context.seed)).collect();
    let played = play(context, settings, policy, tasks, &rollouts).await?;
    Ok(played.into_iter().map(|played| played?.correct).collect())
}

async fn play(
    context: &Context,
    settings: &PlaySettings,
    policy: &Input,
    scenarios: &[Scenario],
    rollouts: &[RolloutSpec<'_>],
) -> Result<Vec<Option<Trajectory>>> {
    let tools = &context.input("tools")?.path;
    let mut player = Player::open(context, policy, tools, scenarios, settings.clone()).await?;
    let played = player.play(context, rollouts).await.at(|| format!("policy \"{}\"", policy.name));
    player.close().await;
    played
}

/// Where no task has a known answer, nothing says what a policy solves: the last goes on and practises.
fn unmeasured(context: &Context, policies: &[Input]) -> Result<Metrics> {
    let policy = policies.last().ok_or_else(|| StageError::NoInput { role: ROLE.into() })?;
    context.observer.note(&format!(
        "there is no task with a known answer or `checks`, so nothing is measured: {} goes on, and practice begins",
        policy.name
    ));
    context.write("pass_rates", &[] as &[PassRate])?;
    context.write("trajectories", &[] as &[Trajectory])?;
    pass_on(policy, context)?;
    Ok(metrics([("practice", 1.0), ("chosen", policies.len() as f64)]))
}

/// So many of these tasks, families in proportion to the square root of their size.
fn chosen(scenarios: &[Scenario], most: usize, seed: u64) -> Vec<&Scenario> {
    Draw::Uniform
        .order(scenarios, &[], 1, seed)
        .into_iter()
        .take(most)
        .map(|index| &scenarios[index])
        .collect()
}

fn greedy(scenario: &Scenario, seed: u64) -> RolloutSpec<'_> {
    let seed = episode_seed(SEED, seed, scenario, 0);
    RolloutSpec { scenario, sample: 0, seed, sampling: Sampling::GREEDY }
}

/// The samples of each task whose outcome is known. `check`: how answers of a task are compared, by its id.
pub fn of_tasks<'a>(trajectories: &[Trajectory], check: impl Fn(&str) -> &'a str) -> Vec<Samples> {
    let mut by_task: BTreeMap<&str, Vec<&Trajectory>> = BTreeMap::new();
    for trajectory in trajectories.iter().filter(|trajectory| trajectory.correct.is_some()) {
        by_task.entry(&trajectory.scenario_id).or_default().push(trajectory);
    }
    let is_right = |trajectory: &Trajectory| trajectory.correct == Some(true);
    let samples = by_task.into_iter().map(|(id, samples)| {
        let answers = samples.iter().map(|trajectory| trajectory.answer.as_deref());
        let most = majority(answers, truth::same_answer(check(id)));
        Samples {
            right: samples.iter().filter(|trajectory| is_right(trajectory)).count() as u32,
            of: samples.len() as u32,
            majority: most.is_some_and(|most| is_right(samples[most])),
        }
    });
    samples.collect()
}

/// How often the training tasks among these were solved; nothing was trained on these episodes.
fn pass_rates(trajectories: &[Trajectory], trained: &BTreeSet<&str>) -> Vec<PassRate> {
    let mut rates: BTreeMap<&str, PassRate> = BTreeMap::new();
    for trajectory in trajectories.iter().filter(|played| trained.contains(played.scenario_id.as_str())) {
        let Some(correct) = trajectory.correct else { continue };
        let id = trajectory.scenario_id.as_str();
        let rate = rates.entry(id).or_insert_with(|| PassRate::unknown(id));
        (rate.episodes, rate.right) = (rate.episodes + 1.0, rate.right + f64::from(u8::from(correct)));
    }
    rates.into_values().collect()
}

/// Passes a policy on unchanged, by links where the disk allows it: a model is large.
fn pass_on(policy: &Input, context: &Context) -> Result<()> {
    let to = context.output(POLICY, POLICY)?;
    let linked = std::fs::create_dir_all(&to).and_then(|()| link_tree(&policy.path, &to));
    Ok(linked.map_err(|source| StageError::Write { path: to, source })?)
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

impl StageKind for HeadroomStage {
    fn run<'a>(&'a self, context: &'a Context) -> StageFuture<'a, Result<Metrics>> {
        Box::pin(self.measure(context))
    }

    fn preflight(&self, context: &PreflightContext<'_>) -> Preflight {
        let mut preflight = Preflight::default();
        prompts::check(context, ROLE, &self.play.agent, &mut preflight);
        let policies = context.inputs.get(ROLE).map_or(&[][..], Vec::as_slice);
        if policies.is_empty() {
            preflight.error(ROLE, StageError::NoInput { role: ROLE.into() });
        }
        let episodes = ExpectedEpisodes {
            count: self.episodes(),
            longest: self.play.agent.max_episode_tokens,
            group: None,
            altered: None,
        };
        // The last took most to make, so it is the largest.
        if let Some((_, policy)) = policies.last() {
            preflight = preflight.with(POLICY, policy.clone());
        }
        preflight.with("trajectories", ExpectedOutput::Episodes(episodes))
    }

    fn workload(&self) -> Option<f64> {
        Some(self.episodes() as f64)
    }

    fn adapter_base(&self) -> Option<&'static str> {
        Some(ROLE)
    }

    fn memory(&self, load: &Load<'_>) -> Option<Footprint> {
        let of = |policy| self.play.footprint(load, policy, self.episodes());
        load.policies(ROLE).map(of).max_by_key(Footprint::total)
    }

    fn shares_model(&self, role: &str) -> bool {
        role == ROLE
    }
}
