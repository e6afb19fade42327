//! One optimiser step: rollouts into microbatches, the objective's slopes into gradients.

use super::Params;
use crate::{
    data::{Step, Trajectory},
    engine::{EngineError, Microbatch, Trainer, is_large, is_large_shape, pack},
    grpo::{StepSize, Tally, Token, mean_log_ratio},
    model::{Decoder, ModelConfig, kernels::Format},
};

/// Parallel shares of a minibatch for models whose threads work apart: a constant, so that bits do not depend on the machine.
const SHARES: usize = 4;

/// One trajectory that carries gradient.
pub struct Rollout<'a> {
    pub trajectory: &'a Trajectory,
    pub advantage: f64,
    /// Log-probability of each sampled token under the reference policy; empty without one.
    pub reference: Vec<f32>,
}

/// One optimiser step over these groups. Also gives the mean KL estimate towards the reference, 0 without one.
pub fn update(
    trainer: &mut Trainer,
    groups: &[&[Rollout<'_>]],
    params: &Params,
    learning_rate: f64,
) -> Result<(Step, f64), EngineError> {
    let cut = cut(groups, params.tokens_per_microbatch, &trainer.decoder);
    let mut shares: Vec<Share> = cut.iter().map(|rollouts| Share::new(rollouts)).collect();
    let objective = params.objective();
    let size = StepSize {
        rollouts: groups.iter().map(|group| group.len()).sum(),
        tokens: shares.iter().flat_map(|share| &share.terms).map(Vec::len).sum(),
        token_budget: params.token_budget,
    };
    let batches: Vec<Microbatch> = shares.iter_mut().map(|share| std::mem::take(&mut share.batch)).collect();
    let mut undropped_gap = None;
    if objective.needs_rollout_ratio() || trainer.dropout.is_some() {
        let scored = trainer.score(&batches)?;
        if objective.needs_rollout_ratio() {
            shares.iter_mut().zip(&scored).for_each(|(share, logprobs)| share.take_rollout_ratios(logprobs));
        }
        let gaps = shares.iter().zip(&scored).map(|(share, logprobs)| share.gap(logprobs));
        undropped_gap = trainer.dropout.map(|_| gaps.fold(0.0, f64::max));
    }
    let weigh = |share: &Share, of: &Of, new: f32| {
        let token = Token { new, ..of.token };
        (token, objective.term(&token), objective.weight(&size, share.lengths[of.rollout]))
    };
    let slope = |share: usize, target: usize, new: f32| -> f32 {
        let share = &shares[share];
        let slopes = share.terms[target].iter().map(|of| {
            let (_, term, weight) = weigh(share, of, new);
            term.slope * weight
        });
        slopes.sum::<f64>() as f32
    };
    let report = trainer.step(&batches, &slope, learning_rate, params.max_gradient_norm)?;

    let mut tally = Tally::default();
    for (share, logprobs) in shares.iter().zip(&report.logprobs) {
        for (terms, new) in share.terms.iter().zip(logprobs) {
            for of in terms {
                let (token, term, weight) = weigh(share, of, *new);
                tally.add(&token, &term, weight);
            }
        }
    }
    let step = Step {
        stage: String::new(),
        step: 0,
        learning_rate,
        loss: tally.loss,
        gradient_norm: report.gradient_norm,
        tokens: batches.iter().map(|batch| batch.tree.tokens.len() as u64).sum(),
        tokens_unshared: groups.iter().copied().flatten().map(|r| r.trajectory.tokens.len() as u64).sum(),
        loss_tokens: tally.tokens,
        reward: None,
        success: None,
        clip_fraction: Some(tally.clip_fraction()),
        max_logprob_gap: Some(undropped_gap.unwrap_or(tally.max_gap)),
        entropy: Some(tally.entropy()),
        signal: None,
    };
    Ok((step, tally.kl()))
}

fn shares_of(large: bool) -> usize {
    if large { 1 } else { SHARES }
}

/// In how many parts the groups of a step are cut at least, with a model of this shape held in this format.
pub fn shares(config: &ModelConfig, format: Format) -> usize {
    shares_of(is_large_shape(config, format))
}

/// The rollouts of every microbatch: the groups in [`SHARES`] parts, or whole where the threads work together on a large
/// model, each cut where its tree would hold more tokens.
pub fn cut<'r, 'a>(
    groups: &[&'r [Rollout<'a>]],
    tokens: usize,
    decoder: &Decoder,
) -> Vec<Vec<&'r Rollout<'a>>> {
    let shares = shares_of(is_large(decoder));
    let of_share = |share: &[&'r [Rollout<'a>]]| -> Vec<Vec<&'r Rollout<'a>>> {
        let sequences: Vec<Vec<&[u32]>> = share
            .iter()
            .map(|group| group.iter().map(|rollout| rollout.trajectory.tokens.as_slice()).collect())
            .collect();
        let batches = pack(&sequences, tokens).into_iter();
        batches.map(|batch| batch.iter().map(|(group, member)| &share[*group][*member]).collect()).collect()
    };
    groups.chunks(groups.len().div_ceil(shares).max(1)).flat_map(of_share).collect()
}

/// The rollouts as one tree, and per rollout the targets of its sampled tokens.
pub fn microbatch(rollouts: &[&Rollout<'_>]) -> (Microbatch, Vec<Vec<usize>>) {
    let pairs: Vec<(&[u32], &[bool])> = rollouts
        .iter()
        .map(|rollout| (rollout.trajectory.tokens.as_slice(), rollout.trajectory.sampled.as_slice()))
        .collect();
    Microbatch::new(&pairs)
}

/// What one rollout asks of one prediction.
struct Of {
    rollout: usize,
    token: Token,
}

/// Rollouts that go through the decoder together, each shared token once.
struct Share {
    batch: Microbatch,
    /// Per target, a term for every rollout that made this prediction.
    terms: Vec<Vec<Of>>,
    /// Per rollout, its sampled tokens.
    lengths: Vec<usize>,
}

impl Share {
    fn new(rollouts: &[&Rollout<'_>]) -> Self {
        let (batch, indices) = microbatch(rollouts);
        let mut terms: Vec<Vec<Of>> = batch.targets.iter().map(|_| Vec::new()).collect();
        for (index, (rollout, targets)) in rollouts.iter().zip(&indices).enumerate() {
            let Trajectory { sampled, logprobs, .. } = rollout.trajectory;
            let olds = sampled.iter().zip(logprobs).skip(1).filter(|(sampled, _)| **sampled);
            for (at, (target, (_, old))) in targets.iter().zip(olds).enumerate() {
                let (advantage, reference) = (rollout.advantage, rollout.reference.get(at).copied());
                let token = Token { advantage, new: *old, old: *old, rollout_log_ratio: 0.0, reference };
                terms[*target].push(Of { rollout: index, token });
            }
        }
        Self { batch, terms, lengths: indices.iter().map(Vec::len).collect() }
    }

    /// Largest |log p − log p(sampled)| of these log-probabilities of the targets.
    fn gap(&self, logprobs: &[f32]) -> f64 {
        let pairs =
            self.terms.iter().zip(logprobs).flat_map(|(terms, new)| terms.iter().map(move |of| (of, new)));
        pairs.fold(0.0, |most, (of, new)| most.max((f64::from(*new) - f64::from(of.token.old)).abs()))
    }

    /// Fills in every rollout's mean log-ratio from the log-probabilities of its targets.
    fn take_rollout_ratios(&mut self, logprobs: &[f32]) {
        let mut pairs = vec![(Vec::new(), Vec::new()); self.lengths.len()];
        for (terms, new) in self.terms.iter().zip(logprobs) {
            for of in terms {
                pairs[of.rollout].0.push(*new);
                pairs[of.rollout].1.push(of.token.old);
            }
        }
        let ratios: Vec<f64> = pairs.iter().map(|(new, old)| mean_log_ratio(new, old)).collect();
        for of in self.terms.iter_mut().flatten() {
            of.token.rollout_log_ratio = ratios[of.rollout];
        }
    }
}
