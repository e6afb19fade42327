//! Scoring before the first step: with the reference policy and the teacher, and for importance weights.

use std::collections::BTreeMap;

use super::{
    Grpo, ScoredBy,
    step::{Rollout, cut, microbatch, with_episode},
};
use crate::{
    engine::{EngineError, Microbatch, TargetIndex, Trainer, min_microbatches, score_across},
    error::Result,
    model::Adapter,
    stage::{Context, policy::PolicyFolder},
};

/// Fills in every rollout's log-probabilities under another policy.
pub fn score_by(
    groups: &mut [Vec<Rollout<'_>>],
    (reference, workspace): (&PolicyFolder, usize),
    of: ScoredBy,
    (stage, context): (&Grpo, &Context),
) -> Result<()> {
    let (mut decoder, places) = reference.load(&context.models, &context.engine, workspace)?;
    if reference.base.is_some() {
        Adapter::load(&mut decoder, &reference.folder)?;
    }
    let shares = min_microbatches(&decoder, places.count());
    let mut found =
        scored(groups, stage, shares, |batches| score_across(&decoder, &places, batches, &context.cancel))?;
    for rollout in groups.iter_mut().flatten() {
        let scored = found.remove(&rollout.trajectory.id).unwrap_or_default();
        *of(rollout) = scored;
    }
    Ok(())
}

/// Fills in every rollout's importance weights, from its log-probabilities under the policy before its first
/// step.
pub fn weigh(groups: &mut [Vec<Rollout<'_>>], trainer: &Trainer, stage: &Grpo) -> Result<()> {
    let shares = min_microbatches(&trainer.decoder, trainer.devices());
    let mut found = scored(groups, stage, shares, |batches| trainer.score(batches))?;
    for rollout in groups.iter_mut().flatten() {
        rollout.proximal = found.remove(&rollout.trajectory.id).unwrap_or_default();
        rollout.weigh(&stage.params);
    }
    Ok(())
}

/// The log-probabilities of the sampled tokens of rollouts with terms, by trajectory.
fn scored(
    groups: &[Vec<Rollout<'_>>],
    stage: &Grpo,
    shares: usize,
    score: impl Fn(&[Microbatch]) -> Result<Vec<Vec<f32>>, EngineError>,
) -> Result<BTreeMap<String, Vec<f32>>> {
    let slices: Vec<&[Rollout<'_>]> = groups.iter().map(Vec::as_slice).collect();
    let cut = cut(&slices, stage.training.tokens_per_microbatch, shares);
    let (batches, indices): (Vec<Microbatch>, Vec<_>) =
        cut.iter().map(|rows| microbatch(rows, false)).unzip();
    let logprobs = score(&batches).map_err(|error| {
        let rollout = |at: TargetIndex| {
            let row = indices[at.microbatch].iter().position(|targets| targets.contains(&at.target))?;
            Some(cut[at.microbatch][row].rollout)
        };
        with_episode(error, rollout)
    })?;
    let mut found: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    for ((rows, targets), logprobs) in cut.iter().zip(&indices).zip(&logprobs) {
        for (row, targets) in rows.iter().zip(targets) {
            let rollout = row.rollout;
            let of_rollout =
                found.entry(rollout.trajectory.id.clone()).or_insert_with(|| vec![f32::NAN; rollout.length]);
            for (at, target) in targets.iter().enumerate() {
                of_rollout[row.before + at] = logprobs[*target];
            }
        }
    }
    Ok(found)
}
