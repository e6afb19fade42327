//! `grpo`: one policy-gradient update of an adapter from judged rollouts.
//!
//! The log-probabilities recorded while sampling are those of the same decoder and kernels: the first minibatch asserts
//! that scoring gives them again, instead of correcting for a difference. The optimiser's state travels with the policy.

use std::{collections::BTreeMap, path::Path};

use candle_core::Tensor;
use serde::Deserialize;
use serde_json::json;

use super::{
    Context, Metrics,
    policy::{AdapterOf, PolicyFolder},
};
use crate::{
    data::{self, Reward, Step, Trajectory},
    engine::{EngineError, Microbatch, Rule, Schedule, Trainer},
    error::{Diagnostic, Interrupted, Result},
    grpo::{self, Loss, Scale, Signal},
    model::{Adapter, AdapterConfig, Decoder, ModelError, read_safetensors, write_safetensors},
};

/// Parallel shares of a minibatch. A constant: with the number of threads the bits would depend on the machine.
const SHARES: usize = 4;

#[derive(Debug, Deserialize)]
struct Params {
    learning_rate: f64,
    /// Optimiser steps over which the rate rises.
    warmup_steps: u64,
    /// Optimiser steps of the whole run, the last 40 % of which decay; 0 keeps the rate.
    total_steps: u64,
    minibatches: usize,
    rank: usize,
    alpha: f32,
    max_gradient_norm: f64,
    /// Largest |Δ log p| between sampling and scoring that is still taken for rounding.
    max_logprob_gap: f64,
    scale: Scale,
    #[serde(flatten)]
    loss: Loss,
}

/// One trajectory that carries gradient.
struct Rollout<'a> {
    trajectory: &'a Trajectory,
    advantage: f32,
}

#[derive(Debug, thiserror::Error)]
enum GrpoError {
    #[error("trajectory {id} has {tokens} tokens, {sampled} flags and {logprobs} log-probabilities")]
    Ragged { id: String, tokens: usize, sampled: usize, logprobs: usize },
    #[error("sampling and scoring disagree by {gap:.2e} nats, more than {allowed:.0e}: the model that acted is not the model that learns")]
    Mismatch { gap: f64, allowed: f64 },
}

impl Diagnostic for GrpoError {
    fn code(&self) -> &'static str {
        match self {
            Self::Ragged { .. } => "grpo::ragged",
            Self::Mismatch { .. } => "grpo::mismatch",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Ragged { .. } => Some("tokens, sampled and logprobs of a trajectory have one entry per token".into()),
            Self::Mismatch { .. } => Some("were the rollouts made on another machine or with other kernels? roll out again".into()),
        }
    }
}

pub async fn run(context: &Context) -> Result<Metrics> {
    let params: Params = context.params()?;
    let policy = PolicyFolder::open(context.input("policy")?, context)?;
    let trajectories: Vec<Trajectory> = data::read(&context.input("trajectories")?.path)?;
    let rewards: Vec<Reward> = data::read(&context.input("rewards")?.path)?;
    let (rollouts, signal) = account(&trajectories, &rewards, &params)?;

    let (mut trainer, adapter) = load(&policy, &params, context)?;
    let groups: Vec<&[Rollout<'_>]> =
        rollouts.chunk_by(|a, b| a.trajectory.scenario_id == b.trajectory.scenario_id).collect();
    let minibatches = groups.chunks(groups.len().div_ceil(params.minibatches.max(1)).max(1));
    let on_policy = rollouts.iter().all(|rollout| rollout.trajectory.policy == policy.digest.to_string());
    context.observer.total(minibatches.len() as u64);
    let mut steps = Vec::new();
    for (index, groups) in minibatches.enumerate() {
        if context.cancel.is_cancelled() {
            return Err(Interrupted.into());
        }
        // After the first update the policy is no longer the one that acted.
        let scored_as_sampled = on_policy && index == 0;
        let mut step = minibatch(&mut trainer, groups, &params, index, context)?;
        match step.max_logprob_gap {
            Some(gap) if scored_as_sampled && gap > params.max_logprob_gap => {
                return Err(GrpoError::Mismatch { gap, allowed: params.max_logprob_gap }.into());
            }
            gap => step.max_logprob_gap = gap.filter(|_| scored_as_sampled),
        }
        step.reward = mean(rewards.iter().map(|reward| f64::from(reward.reward)));
        step.success = mean(rewards.iter().filter_map(|reward| reward.correct.map(|c| f64::from(u8::from(c)))));
        step.signal = serde_json::to_string(&signal).ok();
        context.observer.advance(1);
        steps.push(step);
    }
    save(&mut trainer, &adapter, &policy, &context.output.join("policy"))?;
    data::write(&context.output.join("steps.parquet"), &steps)?;

    let mut metrics = Metrics::new();
    metrics.insert("episodes".into(), rewards.len() as f64);
    metrics.insert("with_gradient".into(), rollouts.len() as f64);
    metrics.insert("steps".into(), trainer.optimizer().steps() as f64);
    let mut put = |name: &str, value: Option<f64>| value.map(|value| metrics.insert(name.into(), value));
    put("reward", mean(rewards.iter().map(|reward| f64::from(reward.reward))));
    put("success", mean(rewards.iter().filter_map(|reward| reward.correct.map(|c| f64::from(u8::from(c))))));
    put("max_logprob_gap", steps.first().and_then(|step| step.max_logprob_gap));
    put("loss", mean(steps.iter().map(|step| step.loss)));
    put("gradient_norm", mean(steps.iter().map(|step| step.gradient_norm)));
    put("clip_fraction", mean(steps.iter().filter_map(|step| step.clip_fraction)));
    put("entropy", mean(steps.iter().filter_map(|step| step.entropy)));
    put("tokens", Some(steps.iter().map(|step| step.tokens as f64).sum()));
    put("tokens_unshared", Some(steps.iter().map(|step| step.tokens_unshared as f64).sum()));
    Ok(metrics)
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0u64, 0.0), |(count, sum), value| (count + 1, sum + value));
    (count > 0).then(|| sum / count as f64)
}

/// The rollouts that carry gradient, ordered by scenario, and the account of the others.
fn account<'a>(
    trajectories: &'a [Trajectory],
    rewards: &[Reward],
    params: &Params,
) -> Result<(Vec<Rollout<'a>>, Signal)> {
    let reward_of: BTreeMap<&str, f32> = rewards.iter().map(|r| (r.trajectory_id.as_str(), r.reward)).collect();
    let mut groups: BTreeMap<&str, Vec<(&Trajectory, f32)>> = BTreeMap::new();
    let mut signal = Signal::default();
    for trajectory in trajectories {
        let (tokens, sampled, logprobs) =
            (trajectory.tokens.len(), trajectory.sampled.len(), trajectory.logprobs.len());
        if tokens != sampled || tokens != logprobs {
            return Err(GrpoError::Ragged { id: trajectory.id.clone(), tokens, sampled, logprobs }.into());
        }
        signal.rollouts += 1;
        match reward_of.get(trajectory.id.as_str()) {
            None => signal.skip("not_judged"),
            Some(_) if trajectory.end == "server_down" => signal.skip("server_down"),
            Some(_) if !trajectory.sampled.iter().skip(1).any(|sampled| *sampled) => signal.skip("nothing_sampled"),
            Some(reward) => groups.entry(&trajectory.scenario_id).or_default().push((trajectory, *reward)),
        }
    }
    let mut rollouts = Vec::new();
    for group in groups.values() {
        let rewards: Vec<f32> = group.iter().map(|(_, reward)| *reward).collect();
        match grpo::advantages(&rewards, params.scale) {
            None => group.iter().for_each(|_| signal.skip("zero_variance")),
            Some(advantages) => {
                for ((trajectory, _), advantage) in group.iter().zip(advantages) {
                    signal.with_gradient += 1;
                    rollouts.push(Rollout { trajectory, advantage });
                }
            }
        }
    }
    Ok((rollouts, signal))
}

fn load(policy: &PolicyFolder, params: &Params, context: &Context) -> Result<(Trainer, AdapterConfig)> {
    let threads = context.engine.workers()?;
    let mut decoder = Decoder::load(policy.model())?;
    let adapter = match &policy.base {
        Some(_) => Adapter::load(&mut decoder, &policy.folder)?,
        None => {
            let config = AdapterConfig { rank: params.rank, alpha: params.alpha, rank_stabilised: false };
            Adapter::fresh(&mut decoder, &config, context.seed)?;
            config
        }
    };
    let rule = Rule::AdamW { rate: 1.0, beta1: 0.9, beta2: 0.95, weight_decay: 0.0 };
    let mut trainer = Trainer::new(decoder, |parameters| vec![rule; parameters.len()], threads);
    if policy.base.is_some() {
        let path = policy.folder.join("optimizer.safetensors");
        let state = read_safetensors(&path)?;
        if !trainer.optimizer().resume(&state)? {
            let reason = "the optimiser's state does not fit the adapter".into();
            return Err(ModelError::Adapter { path, reason }.into());
        }
    }
    Ok((trainer, adapter))
}

/// One optimiser step over these groups.
fn minibatch(
    trainer: &mut Trainer,
    groups: &[&[Rollout<'_>]],
    params: &Params,
    index: usize,
    context: &Context,
) -> Result<Step, EngineError> {
    let shares: Vec<Share> =
        groups.chunks(groups.len().div_ceil(SHARES)).map(|groups| Share::new(&groups.iter().flat_map(|group| group.iter()).collect::<Vec<_>>())).collect();
    let loss_tokens: usize = shares.iter().flat_map(|share| &share.terms).map(Vec::len).sum();
    let weight = 1.0 / loss_tokens.max(1) as f32;
    let done = trainer.optimizer().steps();
    let decay_from = if params.total_steps == 0 { u64::MAX } else { params.total_steps * 6 / 10 };
    let schedule = Schedule { warmup: params.warmup_steps, decay_from, total: params.total_steps, floor: 0.1 };
    let learning_rate = params.learning_rate * schedule.factor(done);
    let slope = |share: usize, target: usize, logprob: f32| -> f32 {
        let terms = &shares[share].terms[target];
        terms.iter().map(|term| params.loss.token(logprob, term.old, term.advantage).slope * weight).sum()
    };
    let batches: Vec<Microbatch> = shares.iter().map(|share| share.batch.clone()).collect();
    let report = trainer.step(&batches, &slope, learning_rate, params.max_gradient_norm)?;

    let (mut loss, mut clipped, mut gap, mut surprise) = (0.0, 0u64, 0.0f64, 0.0);
    for (share, logprobs) in shares.iter().zip(&report.logprobs) {
        for (terms, logprob) in share.terms.iter().zip(logprobs) {
            for term in terms {
                let outcome = params.loss.token(*logprob, term.old, term.advantage);
                loss += f64::from(outcome.loss * weight);
                clipped += u64::from(outcome.clipped);
                gap = gap.max(f64::from((logprob - term.old).abs()));
                surprise -= f64::from(term.old);
            }
        }
    }
    let tokens_unshared = groups.iter().flat_map(|group| group.iter()).map(|r| r.trajectory.tokens.len() as u64).sum();
    Ok(Step {
        stage: context.stage.clone(),
        step: index as u32,
        learning_rate,
        loss,
        gradient_norm: report.gradient_norm,
        tokens: batches.iter().map(|batch| batch.tree.tokens.len() as u64).sum(),
        tokens_unshared,
        loss_tokens: loss_tokens as u64,
        reward: None,
        success: None,
        clip_fraction: Some(clipped as f64 / loss_tokens.max(1) as f64),
        max_logprob_gap: Some(gap),
        entropy: Some(surprise / loss_tokens.max(1) as f64),
        signal: None,
    })
}

/// What one trajectory asks of one prediction.
struct Term {
    old: f32,
    advantage: f32,
}

/// Groups that go through the decoder together, each shared token once.
struct Share {
    batch: Microbatch,
    /// Per target, a term for every trajectory that made this prediction.
    terms: Vec<Vec<Term>>,
}

impl Share {
    fn new(rollouts: &[&Rollout<'_>]) -> Self {
        let pairs: Vec<(&[u32], &[bool])> = rollouts
            .iter()
            .map(|rollout| (rollout.trajectory.tokens.as_slice(), rollout.trajectory.sampled.as_slice()))
            .collect();
        let (batch, indices) = Microbatch::new(&pairs);
        let mut terms: Vec<Vec<Term>> = batch.targets.iter().map(|_| Vec::new()).collect();
        for (rollout, targets) in rollouts.iter().zip(indices) {
            let trajectory = rollout.trajectory;
            let sampled = trajectory.sampled.iter().zip(&trajectory.logprobs).skip(1).filter(|(sampled, _)| **sampled);
            for (target, (_, old)) in targets.into_iter().zip(sampled) {
                terms[target].push(Term { old: *old, advantage: rollout.advantage });
            }
        }
        Self { batch, terms }
    }
}

fn save(trainer: &mut Trainer, adapter: &AdapterConfig, policy: &PolicyFolder, folder: &Path) -> Result<()> {
    let write = |path: std::path::PathBuf, source| ModelError::Write { path, source };
    std::fs::create_dir_all(folder).map_err(|source| write(folder.to_owned(), source))?;
    let base = policy.model_digest();
    Adapter::save(&trainer.decoder, adapter, &base.to_string(), folder)?;
    let state: BTreeMap<String, Tensor> = trainer.optimizer().state()?;
    write_safetensors(&folder.join("optimizer.safetensors"), &state)?;
    let path = folder.join("policy.json");
    let text = format!("{:#}\n", json!(AdapterOf { base }));
    std::fs::write(&path, text).map_err(|source| write(path, source))?;
    Ok(())
}
