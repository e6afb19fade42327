//! One optimizer step: rollouts to microbatches, the objective's dloss_dlogp to gradients.

use std::collections::BTreeMap;

use super::Params;
use crate::{
    data::{self, Trajectory},
    engine::{EngineError, Microbatch, Trainer, min_microbatches, pack},
    grpo::{Objective, StepSize, Tally, Token, mean_log_ratio},
};

/// One trajectory in the loss. Advantage and weight are those of the whole episode, however many rows it has.
pub struct Rollout<'a> {
    pub trajectory: &'a Trajectory,
    pub advantage: f64,
    /// Whether it goes through the decoder, rather than only being counted ([`Objective::has_terms`]).
    pub has_terms: bool,
    /// Log-probability of each sampled token under the reference policy; empty without one.
    pub reference: Vec<f32>,
    /// Sampled tokens in all rows.
    pub length: usize,
}

/// A sequence of a rollout.
#[derive(Clone, Copy)]
pub struct Row<'r, 'a> {
    pub rollout: &'r Rollout<'a>,
    /// Sampled tokens in the rollout's earlier rows.
    pub before: usize,
    data: data::Row<'a>,
}

impl<'a> Rollout<'a> {
    pub fn new(trajectory: &'a Trajectory, advantage: f64, objective: &Objective) -> Self {
        let has_terms = objective.has_terms(advantage);
        Self { trajectory, advantage, has_terms, reference: Vec::new(), length: trained(trajectory) }
    }

    fn rows(&self) -> impl Iterator<Item = Row<'_, 'a>> {
        self.trajectory.rows().scan(0, |before, data| {
            let row = Row { rollout: self, before: *before, data };
            *before += data.sampled.iter().skip(1).filter(|sampled| **sampled).count();
            Some(row)
        })
    }
}

/// Sampled tokens of a trajectory that have a token before them.
pub fn trained(trajectory: &Trajectory) -> usize {
    trajectory.rows().flat_map(|row| row.sampled.iter().skip(1)).filter(|sampled| **sampled).count()
}

/// What an optimizer step did.
pub struct Update {
    pub tally: Tally,
    /// Before clipping.
    pub gradient_norm: f64,
    /// Tokens that the decoder processed; a shared token counts once.
    pub tokens: u64,
    pub tokens_unshared: u64,
    /// Largest |log p(scored) − log p(sampled)| over the loss tokens, before the step and without dropout.
    pub max_logprob_gap: f64,
}

/// Runs one optimizer step over these groups.
pub fn update(
    trainer: &mut Trainer,
    groups: &[&[Rollout<'_>]],
    params: &Params,
    learning_rate: f64,
) -> Result<Update, EngineError> {
    let cut =
        cut(groups, params.tokens_per_microbatch, min_microbatches(&trainer.decoder, trainer.devices()));
    let mut shares: Vec<Share> = cut.iter().map(|rows| Share::new(rows)).collect();
    let objective = params.objective();
    let rollouts = || groups.iter().copied().flatten();
    let size = StepSize {
        rollouts: rollouts().count(),
        tokens: rollouts().map(|rollout| rollout.length).sum(),
        token_budget: params.token_budget,
    };
    let batches: Vec<Microbatch> = shares.iter_mut().map(|share| std::mem::take(&mut share.batch)).collect();
    let mut undropped_gap = None;
    if objective.needs_rollout_ratio() || trainer.dropout.is_some() {
        let scored = trainer.score(&batches)?;
        if objective.needs_rollout_ratio() {
            take_rollout_ratios(&mut shares, &scored);
        }
        let gaps = shares.iter().zip(&scored).map(|(share, logprobs)| share.gap(logprobs));
        undropped_gap = trainer.dropout.map(|_| gaps.fold(0.0, f64::max));
    }
    let weigh = |share: &Share, of: &Of, new: f32| {
        let token = Token { new, ..of.token };
        (token, objective.term(&token), objective.weight(&size, share.rows[of.row].rollout.length))
    };
    let dloss_dlogp = |share: usize, target: usize, new: f32| -> f32 {
        let share = &shares[share];
        let dloss_dlogp = share.terms[target].iter().map(|of| {
            let (_, term, weight) = weigh(share, of, new);
            term.dloss_dlogp * weight
        });
        dloss_dlogp.sum::<f64>() as f32
    };
    let report = trainer.step(&batches, &dloss_dlogp, learning_rate, params.max_gradient_norm)?;

    let mut tally = Tally::default();
    for (share, logprobs) in shares.iter().zip(&report.logprobs) {
        for (terms, new) in share.terms.iter().zip(logprobs) {
            for of in terms {
                let (token, term, weight) = weigh(share, of, *new);
                tally.add(&token, &term, weight);
            }
        }
    }
    Ok(Update {
        gradient_norm: report.gradient_norm,
        tokens: batches.iter().map(|batch| batch.tree.tokens.len() as u64).sum(),
        tokens_unshared: rollouts().filter(|r| r.has_terms).map(|r| r.trajectory.tokens.len() as u64).sum(),
        max_logprob_gap: undropped_gap.unwrap_or(tally.max_gap),
        tally,
    })
}

/// The rows of every microbatch: groups with terms, split into this many shares, and each share split further
/// if its tree would exceed the token limit.
pub fn cut<'r, 'a>(groups: &[&'r [Rollout<'a>]], tokens: usize, shares: usize) -> Vec<Vec<Row<'r, 'a>>> {
    let with_terms = |group: &&'r [Rollout<'a>]| -> Vec<Row<'r, 'a>> {
        group.iter().filter(|rollout| rollout.has_terms).flat_map(Rollout::rows).collect()
    };
    let groups: Vec<Vec<Row<'r, 'a>>> =
        groups.iter().map(with_terms).filter(|rows| !rows.is_empty()).collect();
    let of_share = |rows: &[Vec<Row<'r, 'a>>]| -> Vec<Vec<Row<'r, 'a>>> {
        let sequences: Vec<Vec<&[u32]>> =
            rows.iter().map(|group| group.iter().map(|row| row.data.tokens).collect()).collect();
        let batches = pack(&sequences, tokens).into_iter();
        batches.map(|batch| batch.iter().map(|(group, member)| rows[*group][*member]).collect()).collect()
    };
    groups.chunks(groups.len().div_ceil(shares).max(1)).flat_map(of_share).collect()
}

/// The rows as one tree, and per row the targets of its sampled tokens.
pub fn microbatch(rows: &[Row<'_, '_>]) -> (Microbatch, Vec<Vec<usize>>) {
    let pairs: Vec<(&[u32], &[bool])> = rows.iter().map(|row| (row.data.tokens, row.data.sampled)).collect();
    Microbatch::new(&pairs)
}

/// One row's term for one prediction.
struct Of {
    row: usize,
    token: Token,
}

/// Rows that go through the decoder together, with shared tokens computed once.
struct Share<'r, 'a> {
    batch: Microbatch,
    /// Per target, a term for every row that made this prediction.
    terms: Vec<Vec<Of>>,
    rows: &'r [Row<'r, 'a>],
}

impl<'r, 'a> Share<'r, 'a> {
    fn new(rows: &'r [Row<'r, 'a>]) -> Self {
        let (batch, indices) = microbatch(rows);
        let mut terms: Vec<Vec<Of>> = batch.targets.iter().map(|_| Vec::new()).collect();
        for (index, (row, targets)) in rows.iter().zip(&indices).enumerate() {
            let data::Row { sampled, logprobs, .. } = row.data;
            let olds = sampled.iter().zip(logprobs).skip(1).filter(|(sampled, _)| **sampled);
            for (at, (target, (_, old))) in targets.iter().zip(olds).enumerate() {
                let advantage = row.rollout.advantage;
                let reference = row.rollout.reference.get(row.before + at).copied();
                let token = Token { advantage, new: *old, old: *old, rollout_log_ratio: 0.0, reference };
                terms[*target].push(Of { row: index, token });
            }
        }
        Self { batch, terms, rows }
    }

    /// Largest |log p − log p(sampled)| over these target log-probabilities.
    fn gap(&self, logprobs: &[f32]) -> f64 {
        let pairs =
            self.terms.iter().zip(logprobs).flat_map(|(terms, new)| terms.iter().map(move |of| (of, new)));
        pairs.fold(0.0, |most, (of, new)| most.max((f64::from(*new) - f64::from(of.token.old)).abs()))
    }
}

/// Fills in every rollout's mean log-ratio over all its rows from the target log-probabilities.
fn take_rollout_ratios(shares: &mut [Share<'_, '_>], scored: &[Vec<f32>]) {
    let mut pairs: BTreeMap<&str, (Vec<f32>, Vec<f32>)> = BTreeMap::new();
    for (share, logprobs) in shares.iter().zip(scored) {
        for (terms, new) in share.terms.iter().zip(logprobs) {
            for of in terms {
                let (news, olds) = pairs.entry(&share.rows[of.row].rollout.trajectory.id).or_default();
                news.push(*new);
                olds.push(of.token.old);
            }
        }
    }
    let ratios: BTreeMap<&str, f64> =
        pairs.iter().map(|(id, (new, old))| (*id, mean_log_ratio(new, old))).collect();
    for share in shares {
        let rows = share.rows;
        for of in share.terms.iter_mut().flatten() {
            let id = rows[of.row].rollout.trajectory.id.as_str();
            of.token.rollout_log_ratio = ratios.get(id).copied().unwrap_or_default();
        }
    }
}
