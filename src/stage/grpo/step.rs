//! One optimizer step: rollouts to microbatches, the objective's dloss_dlogp to gradients.

use std::{borrow::Cow, collections::BTreeMap};

use super::{GapBound, Grpo, Params};
use crate::{
    data::{self, Trajectory},
    engine::{EngineError, Microbatch, TargetIndex, Trainer, min_microbatches, pack},
    error::{Failure, Result},
    grpo::{Moved, StepSize, Tally, Token, mean_log_ratio, tool_token_dloss_dlogp},
};

/// One trajectory in the loss. Advantage and weight are those of the whole episode, however many rows it has.
pub struct Rollout<'a> {
    pub trajectory: &'a Trajectory,
    /// Of a demonstration, its weight.
    pub advantage: f64,
    /// Whether it is a solution that no policy sampled. It counts as a rollout with this advantage whose ratio is 1 whatever
    /// the policy is, so the term of its tokens is −advantage · log p.
    pub is_demonstration: bool,
    /// Whether it goes through the decoder, rather than only being counted ([`crate::grpo::Objective::has_terms`]).
    pub has_terms: bool,
    /// Whether the policy that learns played it, before the first step.
    pub is_own: bool,
    /// Log-probability of each sampled token under the policy before the first step, and its importance
    /// weight; empty without importance weights.
    pub proximal: Vec<f32>,
    importance: Vec<f64>,
    /// Log-probability of each sampled token under the reference policy; empty without one.
    pub reference: Vec<f32>,
    /// The same under the teacher.
    pub teacher: Vec<f32>,
    /// Sampled tokens in all rows.
    pub length: usize,
}

/// A sequence of a rollout.
#[derive(Clone, Copy)]
pub struct RolloutRow<'r, 'a> {
    pub rollout: &'r Rollout<'a>,
    /// Sampled tokens in the rollout's earlier rows.
    pub before: usize,
    data: data::TrainingRow<'a>,
}

impl<'a> Rollout<'a> {
    /// `policy` is the digest of the policy that learns. `teaches`: whether a teacher adds to the advantage.
    pub fn new(
        trajectory: &'a Trajectory,
        (advantage, teaches): (f64, bool),
        params: &Params,
        policy: &str,
    ) -> Self {
        let has_tool_tokens = params.tool_token_loss > 0.0
            && trajectory
                .rows()
                .any(|row| row.sampled.iter().skip_while(|sampled| !**sampled).any(|sampled| !sampled));
        Self {
            is_demonstration: false,
            has_terms: has_tool_tokens || teaches || params.objective().has_terms(advantage),
            is_own: trajectory.policy == policy,
            ..Self::demonstration(trajectory, advantage)
        }
    }

    /// A solution to learn with this weight.
    pub fn demonstration(trajectory: &'a Trajectory, weight: f64) -> Self {
        Self {
            trajectory,
            advantage: weight,
            is_demonstration: true,
            has_terms: true,
            is_own: false,
            proximal: Vec::new(),
            importance: Vec::new(),
            reference: Vec::new(),
            teacher: Vec::new(),
            length: trained(trajectory),
        }
    }

    /// Sets the importance weights from [`Self::proximal`].
    pub fn weigh(&mut self, params: &Params) {
        let sampled: Vec<f32> = self.sampled().collect();
        let weights = params.importance.weights(params.importance_cap, &self.proximal, &sampled);
        self.importance = params.objective().weights(weights);
    }

    /// The log-probabilities of its sampled tokens as they were recorded.
    fn sampled(&self) -> impl Iterator<Item = f32> {
        let tokens = self.trajectory.rows().flat_map(|row| row.sampled.iter().zip(row.logprobs).skip(1));
        tokens.filter(|(sampled, _)| **sampled).map(|(_, logprob)| *logprob)
    }

    /// log p(teacher) − log p of each sampled token, in nats.
    pub fn teacher_gaps(&self) -> impl Iterator<Item = f64> {
        self.teacher.iter().zip(self.sampled()).map(|(teacher, own)| f64::from(*teacher) - f64::from(own))
    }

    fn rows(&self) -> impl Iterator<Item = RolloutRow<'_, 'a>> {
        self.trajectory.rows().scan(0, |before, data| {
            let row = RolloutRow { rollout: self, before: *before, data };
            *before += data.sampled.iter().skip(1).filter(|sampled| **sampled).count();
            Some(row)
        })
    }
}

impl RolloutRow<'_, '_> {
    /// Which tokens are predicted: the sampled ones, and where `tool_tokens`, all after the first of them.
    /// What others said before it (the prompt, and earlier turns that an earlier row has) is not. Of a demonstration the
    /// sampled ones alone.
    fn predicted(&self, tool_tokens: bool) -> Cow<'_, [bool]> {
        let sampled = self.data.sampled;
        let tool_tokens = tool_tokens && !self.rollout.is_demonstration;
        match sampled.iter().position(|sampled| *sampled).filter(|_| tool_tokens) {
            Some(first) => Cow::Owned((0..sampled.len()).map(|at| at >= first).collect()),
            None => Cow::Borrowed(sampled),
        }
    }
}

/// Sampled tokens of a trajectory that have a token before them.
pub fn trained(trajectory: &Trajectory) -> usize {
    trajectory.rows().flat_map(|row| row.sampled.iter().skip(1)).filter(|sampled| **sampled).count()
}

/// What an optimizer step did.
#[derive(Debug, Clone, PartialEq)]
pub struct Update {
    pub tally: Tally,
    /// Before clipping.
    pub gradient_norm: f64,
    /// Tokens that the decoder processed; a shared token counts once.
    pub tokens: u64,
    pub tokens_unshared: u64,
    /// |log p(scored) − log p(sampled)| over the sampled tokens of rollouts that the policy played itself, before the
    /// step and without dropout.
    pub gap: Gap,
    /// Over the sampled tokens of all rollouts with terms.
    pub moved: Moved,
    /// Mean −log p of the tokens of tool results, if they have a loss.
    pub tool_token_loss: Option<f64>,
    /// Tokens of demonstrations, and the sum of their −log p.
    pub taught: (u64, f64),
}

impl Update {
    /// Everything in it, for a checkpoint. Counts are exact as numbers.
    pub fn to_numbers(&self) -> [f64; 18] {
        let own = [
            self.gradient_norm,
            self.tokens as f64,
            self.tokens_unshared as f64,
            self.gap.max,
            self.gap.sum,
            self.gap.tokens as f64,
            self.tool_token_loss.unwrap_or(f64::NAN),
            self.taught.0 as f64,
            self.taught.1,
        ];
        let mut numbers = [0.0; 18];
        numbers[..5].copy_from_slice(&self.tally.to_numbers());
        numbers[5..9].copy_from_slice(&self.moved.to_numbers());
        numbers[9..].copy_from_slice(&own);
        numbers
    }

    /// The update with these [`Self::to_numbers`].
    pub fn from_numbers(numbers: [f64; 18]) -> Self {
        let [loss, counted, clipped, kl, importance, others @ ..] = numbers;
        let [of_tokens, moved_kl, played, now, own @ ..] = others;
        let [gradient_norm, tokens, tokens_unshared, max, sum, compared, tool, taught, taught_loss] = own;
        Self {
            tally: Tally::from_numbers([loss, counted, clipped, kl, importance]),
            moved: Moved::from_numbers([of_tokens, moved_kl, played, now]),
            gradient_norm,
            tokens: tokens as u64,
            tokens_unshared: tokens_unshared as u64,
            gap: Gap { max, sum, tokens: compared as u64 },
            tool_token_loss: Some(tool).filter(|loss| !loss.is_nan()),
            taught: (taught as u64, taught_loss),
        }
    }

    /// Mean −log p of the tokens of demonstrations; none without any.
    pub fn demonstration_loss(&self) -> Option<f64> {
        let (tokens, loss) = self.taught;
        (tokens > 0).then(|| loss / tokens as f64)
    }
}

/// The difference between two log-probabilities of each token, in nats.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Gap {
    /// The largest; NaN if one is not a number.
    max: f64,
    sum: f64,
    tokens: u64,
}

impl Gap {
    fn add(&mut self, one: f32, other: f32) {
        let gap = (f64::from(one) - f64::from(other)).abs();
        // `f64::max` would drop a NaN.
        if gap > self.max || gap.is_nan() {
            self.max = gap;
        }
        self.sum += gap;
        self.tokens += 1;
    }

    /// The mean over the tokens; 0 without tokens.
    pub fn mean(&self) -> f64 {
        if self.tokens == 0 { 0.0 } else { self.sum / self.tokens as f64 }
    }

    /// The largest; none without tokens.
    pub fn max(&self) -> Option<f64> {
        (self.tokens > 0).then_some(self.max)
    }

    /// Whether neither the mean nor a token exceeds its bound.
    pub fn is_within(&self, bound: &GapBound) -> bool {
        self.mean() <= bound.mean && self.max <= bound.max
    }
}

/// Adds the episode to an error about one prediction.
pub fn with_episode<'r>(
    error: EngineError,
    rollout: impl FnOnce(TargetIndex) -> Option<&'r Rollout<'r>>,
) -> Failure {
    let episode = match &error {
        EngineError::Logprob { target } => rollout(*target).map(|rollout| rollout.trajectory.id.clone()),
        _ => None,
    };
    let failure = Failure::from(error);
    match episode {
        Some(id) => failure.at(format!("trajectory {id}")),
        None => failure,
    }
}

/// Runs one optimizer step over these groups.
///
/// # Errors
/// Also fails if a log-probability, the gradient or the loss is not finite.
pub fn update(
    trainer: &mut Trainer,
    groups: &[&[Rollout<'_>]],
    Grpo { params, training }: &Grpo,
    learning_rate: f64,
) -> Result<Update> {
    let cut =
        cut(groups, training.tokens_per_microbatch, min_microbatches(&trainer.decoder, trainer.devices()));
    let mut shares: Vec<Share> = cut.iter().map(|rows| Share::new(rows, params)).collect();
    let objective = params.objective();
    let rollouts = || groups.iter().copied().flatten();
    let size = StepSize {
        rollouts: rollouts().count(),
        tokens: rollouts().map(|rollout| rollout.length).sum(),
        token_budget: params.token_budget,
    };
    let batches: Vec<Microbatch> = shares.iter_mut().map(|share| std::mem::take(&mut share.batch)).collect();
    let tool_tokens: usize = shares.iter().flat_map(|share| &share.tool).map(|count| *count as usize).sum();
    let tool = tool_token_dloss_dlogp(params.tool_token_loss, tool_tokens);
    let mut undropped = None;
    if objective.needs_rollout_ratio() || trainer.dropout.is_some() {
        let scored = trainer.score(&batches).map_err(|error| with_episode(error, rollout_of(&shares)))?;
        if objective.needs_rollout_ratio() {
            take_rollout_ratios(&mut shares, &scored);
        }
        undropped = trainer.dropout.map(|_| scored);
    }
    let weigh = |share: &Share, of: &RowTerm, new: f32| {
        let token = Token { new, ..of.token };
        (token, objective.term(&token), objective.weight(&size, share.rows[of.row].rollout.length))
    };
    // d loss / d log p of a target, from the demonstrations that have it.
    let taught = |share: &Share, target: usize| -> f64 {
        let rollouts = share.taught[target].iter().map(|row| share.rows[*row].rollout);
        -rollouts.map(|rollout| rollout.advantage * objective.weight(&size, rollout.length)).sum::<f64>()
    };
    let dloss_dlogp = |share: usize, target: usize, new: f32| -> f32 {
        let share = &shares[share];
        let dloss_dlogp = share.terms[target].iter().map(|of| {
            let (_, term, weight) = weigh(share, of, new);
            term.dloss_dlogp * weight
        });
        (dloss_dlogp.sum::<f64>() + tool * f64::from(share.tool[target]) + taught(share, target)) as f32
    };
    let report = trainer
        .step(&batches, &dloss_dlogp, learning_rate, training.max_gradient_norm)
        .map_err(|error| with_episode(error, rollout_of(&shares)))?;

    let (mut tally, mut tool_logprobs, mut taught_tokens, mut taught_loss) = (Tally::default(), 0.0, 0, 0.0);
    for (share, logprobs) in shares.iter().zip(&report.logprobs) {
        for (target, new) in logprobs.iter().enumerate() {
            for of in &share.terms[target] {
                let (token, term, weight) = weigh(share, of, *new);
                tally.add(&token, &term, weight);
            }
            let logprob = f64::from(*new);
            tool_logprobs += f64::from(share.tool[target]) * logprob;
            let rows = share.taught[target].len();
            taught_tokens += rows as u64;
            taught_loss -= rows as f64 * logprob;
            tally.loss += taught(share, target) * logprob;
        }
    }
    tally.loss += tool * tool_logprobs;
    if !tally.loss.is_finite() {
        return Err(EngineError::Diverged { what: "the loss" }.into());
    }
    let (gap, moved) = compare(&shares, undropped.as_ref().unwrap_or(&report.logprobs));
    Ok(Update {
        gradient_norm: report.gradient_norm,
        tokens: batches.iter().map(|batch| batch.tree.tokens.len() as u64).sum(),
        tokens_unshared: rollouts().filter(|r| r.has_terms).map(|r| r.trajectory.tokens.len() as u64).sum(),
        gap,
        moved,
        tool_token_loss: (tool_tokens > 0).then(|| -tool_logprobs / tool_tokens as f64),
        taught: (taught_tokens, taught_loss),
        tally,
    })
}

/// The rows of every microbatch: groups with terms, split into this many shares, and each share split further
/// if its tree would exceed the token limit.
pub fn cut<'r, 'a>(
    groups: &[&'r [Rollout<'a>]],
    tokens: usize,
    shares: usize,
) -> Vec<Vec<RolloutRow<'r, 'a>>> {
    let with_terms = |group: &&'r [Rollout<'a>]| -> Vec<RolloutRow<'r, 'a>> {
        group.iter().filter(|rollout| rollout.has_terms).flat_map(Rollout::rows).collect()
    };
    let groups: Vec<Vec<RolloutRow<'r, 'a>>> =
        groups.iter().map(with_terms).filter(|rows| !rows.is_empty()).collect();
    let of_share = |rows: &[Vec<RolloutRow<'r, 'a>>]| -> Vec<Vec<RolloutRow<'r, 'a>>> {
        let sequences: Vec<Vec<&[u32]>> =
            rows.iter().map(|group| group.iter().map(|row| row.data.tokens).collect()).collect();
        let batches = pack(&sequences, tokens).into_iter();
        batches.map(|batch| batch.iter().map(|(group, member)| rows[*group][*member]).collect()).collect()
    };
    groups.chunks(groups.len().div_ceil(shares).max(1)).flat_map(of_share).collect()
}

/// The rows as one tree, and per row the targets of its predicted tokens ([`RolloutRow::predicted`]).
pub fn microbatch(rows: &[RolloutRow<'_, '_>], tool_tokens: bool) -> (Microbatch, Vec<Vec<usize>>) {
    let pairs: Vec<(&[u32], Cow<'_, [bool]>)> =
        rows.iter().map(|row| (row.data.tokens, row.predicted(tool_tokens))).collect();
    Microbatch::new(&pairs)
}

/// One row's term for one prediction.
struct RowTerm {
    row: usize,
    token: Token,
}

/// Rows that go through the decoder together, with shared tokens computed once.
struct Share<'r, 'a> {
    batch: Microbatch,
    /// Per target, a term for every row that made this prediction.
    terms: Vec<Vec<RowTerm>>,
    /// Per target, the number of rows in which it is a token of a tool result.
    tool: Vec<u32>,
    /// Per target, the rows of demonstrations that have it.
    taught: Vec<Vec<usize>>,
    rows: &'r [RolloutRow<'r, 'a>],
}

impl<'r, 'a> Share<'r, 'a> {
    fn new(rows: &'r [RolloutRow<'r, 'a>], params: &Params) -> Self {
        let tool_tokens = params.tool_token_loss > 0.0;
        let (batch, indices) = microbatch(rows, tool_tokens);
        let mut terms: Vec<Vec<RowTerm>> = batch.targets.iter().map(|_| Vec::new()).collect();
        let mut tool = vec![0; batch.targets.len()];
        let mut taught: Vec<Vec<usize>> = batch.targets.iter().map(|_| Vec::new()).collect();
        for (index, (row, targets)) in rows.iter().zip(&indices).enumerate() {
            if row.rollout.is_demonstration {
                targets.iter().for_each(|target| taught[*target].push(index));
                continue;
            }
            let data::TrainingRow { sampled, logprobs, .. } = row.data;
            let predicted = row.predicted(tool_tokens);
            let predicted = predicted.iter().zip(sampled).zip(logprobs).skip(1).filter(|((is, _), _)| **is);
            let mut at = row.before;
            for (target, ((_, is_sampled), logprob)) in targets.iter().zip(predicted) {
                if !is_sampled {
                    tool[*target] += 1;
                    continue;
                }
                let rollout = row.rollout;
                let of_teacher = rollout
                    .teacher
                    .get(at)
                    .map_or(0.0, |teacher| params.teaching(f64::from(*teacher) - f64::from(*logprob)));
                let mut token = Token::recorded(rollout.advantage + of_teacher, *logprob);
                token.old = rollout.proximal.get(at).copied().unwrap_or(*logprob);
                token.importance = rollout.importance.get(at).copied().unwrap_or(1.0);
                token.reference = rollout.reference.get(at).copied();
                terms[*target].push(RowTerm { row: index, token });
                at += 1;
            }
        }
        Self { batch, terms, tool, taught, rows }
    }
}

/// These target log-probabilities against those of sampling: in the policy's own rollouts, and in all.
fn compare(shares: &[Share<'_, '_>], logprobs: &[Vec<f32>]) -> (Gap, Moved) {
    let (mut gap, mut moved) = (Gap::default(), Moved::default());
    for (share, logprobs) in shares.iter().zip(logprobs) {
        for (terms, new) in share.terms.iter().zip(logprobs) {
            for of in terms {
                moved.add(of.token.sampled, *new);
                if share.rows[of.row].rollout.is_own {
                    gap.add(*new, of.token.sampled);
                }
            }
        }
    }
    (gap, moved)
}

/// The rollout that made a prediction; none if it is of a tool's token only.
fn rollout_of<'r>(shares: &'r [Share<'r, 'r>]) -> impl FnOnce(TargetIndex) -> Option<&'r Rollout<'r>> {
    |at| {
        let share = shares.get(at.microbatch)?;
        let sampled = share.terms.get(at.target)?.first().map(|of| of.row);
        let row = sampled.or_else(|| share.taught.get(at.target)?.first().copied())?;
        Some(share.rows[row].rollout)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(pairs: &[(f32, f32)]) -> Gap {
        let mut gap = Gap::default();
        pairs.iter().for_each(|(one, other)| gap.add(*one, *other));
        gap
    }

    #[test]
    fn a_log_probability_that_is_not_a_number_exceeds_every_bound() {
        let bound = GapBound { mean: f64::MAX, max: f64::MAX };
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in 0..3 {
                let mut pairs = [(-1.0, -1.5); 3];
                pairs[at].0 = wrong;
                assert!(!gap(&pairs).is_within(&bound), "{wrong} at {at}");
            }
        }
        assert!(gap(&[(-1.0, -1.5); 3]).is_within(&bound) && gap(&[]).is_within(&bound));
    }

    #[test]
    fn one_token_may_differ_by_more_than_all_do_on_average() {
        let bound = GapBound { mean: 0.1, max: 1.0 };
        let mut pairs = [(-1.0, -1.0); 20];
        pairs[7].1 = -1.9;
        assert!(gap(&pairs).is_within(&bound));
        pairs[7].1 = -2.1;
        assert!(!gap(&pairs).is_within(&bound));
        assert!(!gap(&[(-1.0, -1.2); 20]).is_within(&bound));
        assert!((gap(&[(-1.0, -1.5), (-2.0, -2.25)]).mean() - 0.375).abs() < 1e-12);
    }
}
