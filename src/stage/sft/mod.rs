//! `sft`: supervised fine-tuning of an adapter, or of all weights, on episodes.
//!
//! The loss is −mean log p of the tokens that the policy sampled, or that a demonstration has in their place: the assistant's
//! turns with their end-of-turn tokens. Prompts, results and the template's text are context only. The mean is over all tokens
//! of a step, as TRL's trainer has it.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    Context, Metrics, StageError, StageKind,
    kind::StageFuture,
    known_metrics,
    memory::Load,
    metrics,
    policy::PolicyFolder,
    preflight::{ExpectedPolicy, Preflight, PreflightContext},
    training::{
        HeldOut, Learner, LossState, Steps, Training, batches, check_rows, check_vocabulary, workspace,
    },
    typed,
};
use crate::{
    data::{Fact, Facts, Step, Trajectory, read_rewards},
    engine::{Example, Footprint, Supervised, min_microbatches},
    error::{Diagnostic, Result},
    hash::Encoder,
    random::permutation,
};

#[derive(Debug, Deserialize)]
pub(super) struct Params {
    only_right: bool,
    min_reward: Option<f32>,
    stop_loss: Option<f64>,
    held_out: f64,
    stop_rising: bool,
    /// Without it, [`passes`] decides.
    epochs: Option<usize>,
    /// Episodes of one optimizer step.
    batch_size: usize,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "sft", class = usage)]
enum SftError {
    #[error("`min_reward` is {least}, but no rewards are given")]
    #[hint = "name them, as in `rewards = \"reward\"`, or leave `min_reward` out"]
    NoRewards { least: f32 },
    #[error("`stop_rising` is set, but no episodes are held out")]
    #[hint = "set `held_out`, as in `held_out = 0.1`; it takes two tasks at least"]
    NothingHeldOut,
    #[error("no episode to train on: {left_out}")]
    #[diagnostic(class = work)]
    #[hint("look at the episodes with `mcprl ui`; a stage of kind \"demonstrations\" gives right ones where the policy \
        gives none" if left_out.wrong > 0)]
    #[hint("give scenarios an `answer`, or set `only_right = false`" if left_out.unknown > 0)]
    #[hint("lower `min_reward`" if left_out.low > 0)]
    #[hint("tasks with a `reference` give some, or explored ones (`lessons`)" if left_out.count() == 0)]
    #[hint = "check the stage that wrote the episodes"]
    NothingToTrain { left_out: SkippedEpisodes },
}

/// Episodes that are not trained on, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct SkippedEpisodes {
    wrong: usize,
    /// Without a known answer.
    unknown: usize,
    /// Below `min_reward`, or without a reward.
    low: usize,
    /// Longer than the policy's context.
    long: usize,
    /// Without a token to learn.
    empty: usize,
}

impl SkippedEpisodes {
    fn count(&self) -> usize {
        self.reasons().iter().map(|(count, _)| count).sum()
    }

    fn reasons(&self) -> [(usize, &'static str); 5] {
        [
            (self.wrong, "wrong"),
            (self.unknown, "without a known answer"),
            (self.low, "below min_reward"),
            (self.long, "longer than the policy's context"),
            (self.empty, "without a sampled token"),
        ]
    }
}

impl std::fmt::Display for SkippedEpisodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let reasons = self.reasons();
        let reasons: Vec<String> = reasons
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, reason)| format!("{count} {reason}"))
            .collect();
        match reasons.is_empty() {
            true => f.write_str("the table is empty"),
            false => f.write_str(&reasons.join(", ")),
        }
    }
}

/// The rows of an episode.
type Rows = Vec<Example>;

/// An episode that may be trained on.
struct Episode {
    /// What the user asked, in the words of the first episode about it. All episodes of one task are held out, or none.
    task: String,
    rows: Rows,
}

/// Supervised training on episodes.
pub struct Sft {
    params: Params,
    training: Training,
}

impl Sft {
    pub fn parse(params: &Map<String, Value>) -> Result<Self, StageError> {
        Ok(Self { params: typed(params)?, training: typed(params)? })
    }

    /// The engine's memory for a step. None if the policy cannot have this adapter.
    fn footprint(&self, load: &Load<'_>, policy: &ExpectedPolicy) -> Option<Footprint> {
        self.training.footprint(load, policy, |longest| self.params.batch_size.saturating_mul(longest))
    }

    fn train(&self, context: &Context) -> Result<Metrics> {
        let Self { params, training } = self;
        let policy = PolicyFolder::open(context.input("policy")?, context)?;
        let expected = policy.expected()?;
        let mut trajectories: Vec<Trajectory> = context.read("trajectories")?;
        // Rewards are of the others.
        let recorded: Vec<Trajectory> = context.read_optional("traces")?.unwrap_or_default();
        let is_recorded: BTreeSet<String> = recorded.iter().map(|one| one.id.clone()).collect();
        trajectories.extend(recorded);
        let (episodes, left_out) = self.episodes(&trajectories, &is_recorded, &expected, context)?;
        if episodes.is_empty() {
            return Err(SftError::NothingToTrain { left_out }.into());
        }
        if left_out.count() > 0 {
            let all = trajectories.len();
            context
                .observer
                .note(&format!("{} of {all} episodes are left out: {left_out}", left_out.count()));
        }
        let workspace =
            workspace(trajectories.iter(), &context.engine, |load| self.footprint(load, &expected));
        let mut learner = Learner::load(&policy, training, LossState::Sft, workspace, context)?;
        let (episodes, held_out) = held_out(episodes, params.held_out, context.seed);
        if params.stop_rising && held_out.is_empty() {
            return Err(SftError::NothingHeldOut.into());
        }
        let passes = params.epochs.unwrap_or_else(|| passes(expected.config.weights()));
        let batches = batches(episodes.len(), passes, params.batch_size, context.seed);
        let trainer = &mut learner.trainer;
        // Before a checkpoint is loaded, whose steps are this stage's own.
        let before = trainer.optimizer().steps();
        let (schedule, first) = match training.total_steps {
            Some(total) => (training.schedule(Some(total)), before),
            None => (training.schedule(Some(batches.len() as u64)), 0),
        };
        let shares = min_microbatches(&trainer.decoder, trainer.devices());
        let batches: Vec<Vec<&Example>> = batches
            .iter()
            .map(|batch| batch.iter().flat_map(|episode| &episodes[*episode]).collect())
            .collect();
        let packed =
            |examples: &[&Example]| Supervised::packed(examples, shares, training.tokens_per_microbatch);
        let pass = batches.len() / passes.max(1);
        let steps = Steps {
            batches: &batches,
            split: &packed,
            learning_rate: &|step| schedule.rate(first + step),
            max_gradient_norm: training.max_gradient_norm,
            stop_loss: params.stop_loss,
            held_out: (!held_out.is_empty() && !batches.is_empty()).then(|| HeldOut {
                examples: packed(&held_out.iter().flatten().collect::<Vec<_>>()),
                pass,
                stops: params.stop_rising,
            }),
        };
        let steps = steps.run(trainer, context)?;
        learner.save(&policy, &context.output("policy", "policy")?)?;
        context.write("steps", &steps)?;

        let last_pass = &steps[steps.len().saturating_sub(pass)..];
        let count = |of: fn(&Step) -> u64, steps: &[Step]| steps.iter().map(of).sum::<u64>() as f64;
        let learned = count(|step| step.loss_tokens, last_pass);
        let loss = last_pass.iter().map(|step| step.loss * step.loss_tokens as f64).sum::<f64>() / learned;
        let (Some(first), Some(last)) = (steps.first(), steps.last()) else { return Ok(Metrics::new()) };
        let mut losses = steps.iter().filter_map(|step| step.held_out_loss);
        let held_out_loss = match params.stop_rising {
            true => losses.reduce(f64::min),
            false => losses.next_back(),
        };
        let mut found = known_metrics([("held_out_loss", held_out_loss)]);
        found.extend(metrics([
            ("episodes", episodes.len() as f64),
            ("left_out", left_out.count() as f64),
            ("loss", loss),
            ("first_loss", first.loss),
            ("gradient_norm", last.gradient_norm),
            ("learning_rate", last.learning_rate),
            ("steps", steps.len() as f64),
            ("loss_tokens", learned),
            ("tokens", count(|step| step.tokens, &steps)),
            ("tokens_unshared", count(|step| step.tokens_unshared, &steps)),
        ]));
        Ok(found)
    }

    /// The episodes to train on.
    fn episodes(
        &self,
        trajectories: &[Trajectory],
        is_recorded: &BTreeSet<String>,
        policy: &ExpectedPolicy,
        context: &Context,
    ) -> Result<(Vec<Episode>, SkippedEpisodes)> {
        let rewards = context.has("rewards").then(|| context.input("rewards")).transpose()?;
        let rewards = rewards.map(|rewards| read_rewards(&rewards.path)).transpose()?;
        let rewards: Option<BTreeMap<&str, f32>> =
            rewards.as_ref().map(|all| all.iter().map(|r| (r.trajectory_id.as_str(), r.reward)).collect());
        let least = match (self.params.min_reward, rewards) {
            (Some(least), None) => return Err(SftError::NoRewards { least }.into()),
            (least, rewards) => least.zip(rewards),
        };
        let (mut episodes, mut left_out) = (Vec::new(), SkippedEpisodes::default());
        let mut facts = Facts::default();
        let mut task_of = |trajectory: &Trajectory| {
            let fact = Fact::of_episode(trajectory);
            let task = facts.find(&fact).unwrap_or(&fact).task.clone();
            facts.insert(fact);
            task
        };
        for trajectory in trajectories {
            check_rows(trajectory)?;
            let low = least.as_ref().filter(|_| !is_recorded.contains(&trajectory.id)).is_some_and(
                |(least, of)| of.get(trajectory.id.as_str()).is_none_or(|reward| reward < least),
            );
            let rows: Rows =
                trajectory.rows().map(|row| (row.tokens.to_vec(), row.sampled.to_vec())).collect();
            let reason = match trajectory.correct {
                Some(false) if self.params.only_right => &mut left_out.wrong,
                None if self.params.only_right && least.is_none() => &mut left_out.unknown,
                _ if low => &mut left_out.low,
                _ if rows.iter().any(|(tokens, _)| tokens.len() > policy.config.context) => {
                    &mut left_out.long
                }
                _ if !rows.iter().any(|(_, sampled)| sampled.iter().skip(1).any(|is| *is)) => {
                    &mut left_out.empty
                }
                _ => {
                    check_vocabulary(trajectory, policy.config.vocabulary)?;
                    episodes.push(Episode { task: task_of(trajectory), rows });
                    continue;
                }
            };
            *reason += 1;
        }
        Ok((episodes, left_out))
    }
}

impl StageKind for Sft {
    fn run<'a>(&'a self, context: &'a Context) -> StageFuture<'a, Result<Metrics>> {
        Box::pin(async { self.train(context) })
    }

    fn preflight(&self, context: &PreflightContext<'_>) -> Preflight {
        let mut preflight = Preflight::default();
        let is_missing = |role: &str| !context.inputs.contains_key(role);
        if let Some(least) = self.params.min_reward.filter(|_| is_missing("rewards")) {
            preflight.error("min_reward", SftError::NoRewards { least });
        }
        if self.params.stop_rising && self.params.held_out <= 0.0 {
            preflight.error("stop_rising", SftError::NothingHeldOut);
        }
        if context.episodes().is_some_and(|episodes| episodes.count == 0) && is_missing("traces") {
            let left_out = SkippedEpisodes::default();
            preflight.error("trajectories", SftError::NothingToTrain { left_out });
        }
        self.training.check(context, &mut preflight);
        preflight
    }

    fn workload(&self) -> Option<f64> {
        Some(self.params.epochs.unwrap_or(1) as f64).filter(|epochs| *epochs > 0.0)
    }

    fn memory(&self, load: &Load<'_>) -> Option<Footprint> {
        self.footprint(load, load.policies("policy").next()?)
    }

    /// A whole model in training is no longer the frozen one.
    fn shares_model(&self, role: &str) -> bool {
        role == "policy" && self.training.lora
    }

    fn adapter_base(&self) -> Option<&'static str> {
        self.training.lora.then_some("policy")
    }
}

/// The episodes to train on, and those that are held out: all of some tasks, in the order of the seed, until they are this
/// share. One task at least is trained on, and one held out if there are two.
fn held_out(episodes: Vec<Episode>, share: f64, seed: u64) -> (Vec<Rows>, Vec<Rows>) {
    let wanted = match share > 0.0 {
        true => ((share * episodes.len() as f64).round() as usize).max(1),
        false => 0,
    };
    let mut by_task: BTreeMap<&str, usize> = BTreeMap::new();
    episodes.iter().for_each(|episode| *by_task.entry(&episode.task).or_default() += 1);
    let tasks: Vec<(&str, usize)> = by_task.into_iter().collect();
    let seed = Encoder::new("mcprl held-out episodes v1").number(seed).finish().seed();
    let (mut out, mut count) = (BTreeSet::new(), 0);
    for task in permutation(tasks.len(), &mut ChaCha8Rng::seed_from_u64(seed)) {
        if count >= wanted || out.len() + 1 >= tasks.len() {
            break;
        }
        out.insert(tasks[task].0.to_owned());
        count += tasks[task].1;
    }
    let (held, trained): (Vec<Episode>, Vec<Episode>) =
        episodes.into_iter().partition(|episode| out.contains(&episode.task));
    let rows = |episodes: Vec<Episode>| episodes.into_iter().map(|episode| episode.rows).collect();
    (rows(trained), rows(held))
}

/// Passes over the episodes for a model with so many weights: a small one learns less from each (dev/log.md).
fn passes(weights: usize) -> usize {
    match weights {
        0..200_000_000 => 4,
        200_000_000..330_000_000 => 2,
        _ => 1,
    }
}
