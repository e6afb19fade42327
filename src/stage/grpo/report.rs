//! What an update reports: its steps and metrics.

use super::{
    credit::Credited,
    step::{Rollout, Update},
};
use crate::{
    data::Step,
    stage::{Metrics, known_metrics, mean},
};

impl Credited<'_> {
    /// The rows of the table `steps`. `rate`: the learning rate by step.
    pub fn steps(&self, updates: &[Update], rate: &dyn Fn(usize) -> f64, stage: &str) -> Vec<Step> {
        let step = |(index, update): (usize, &Update)| Step {
            stage: stage.to_owned(),
            step: index as u32,
            learning_rate: rate(index),
            loss: update.tally.loss,
            gradient_norm: update.gradient_norm,
            tokens: update.tokens,
            tokens_unshared: update.tokens_unshared,
            loss_tokens: update.tally.tokens + update.taught.0,
            reward: self.reward,
            success: self.success,
            clip_fraction: update.tally.clip_fraction(),
            max_logprob_gap: update.gap.max().filter(|_| index == 0),
            entropy: update.moved.entropy(),
            moved_kl: update.moved.kl(),
            held_out_loss: None,
            signal: Some(self.signal.to_json()),
        };
        updates.iter().enumerate().map(step).collect()
    }

    /// The stage's metrics. `has_reference`: whether a KL penalty is measured.
    pub fn metrics(&self, updates: &[Update], steps: &[Step], has_reference: bool) -> Metrics {
        let Self { signal, of_others, .. } = self;
        let (first, last) = (steps.first(), steps.last());
        let max_gap = first.and_then(|step| step.max_logprob_gap);
        let mean_gap = updates.first().map(|update| update.gap.mean()).filter(|_| max_gap.is_some());
        let of_groups = |count: u64| count as f64 / signal.groups.max(1) as f64;
        let of_episodes = |count: usize| count as f64 / self.episodes.max(1) as f64;
        let with_terms = self.groups.iter().flatten().filter(|rollout| rollout.has_terms).count();
        let over = |of: fn(&Update) -> Option<f64>| mean(updates.iter().filter_map(of));
        known_metrics([
            ("reward", self.reward),
            ("success", self.success),
            ("signal", Some(if self.teaches { of_episodes(with_terms) } else { signal.share() })),
            ("groups", Some(signal.groups as f64)),
            ("groups_with_gradient", Some(signal.groups_with_gradient as f64)),
            ("taught_groups", self.taught().map(|taught| taught as f64)),
            ("loss", last.map(|step| step.loss)),
            ("gradient_norm", last.map(|step| step.gradient_norm)),
            ("learning_rate", last.map(|step| step.learning_rate)),
            ("clip_fraction", over(|update| update.tally.clip_fraction())),
            ("all_right", Some(of_groups(signal.all_right))),
            ("all_wrong", Some(of_groups(signal.all_wrong))),
            ("kl", over(|update| update.tally.kl()).filter(|_| has_reference)),
            ("teacher_gap", teacher_gap(&self.groups)),
            ("moved_kl", steps.iter().filter_map(|step| step.moved_kl).reduce(f64::max)),
            ("off_policy", Some(of_episodes(*of_others))),
            ("off_policy_kl", first.and_then(|step| step.moved_kl).filter(|_| *of_others > 0)),
            ("importance", over(|update| update.tally.importance()).filter(|_| self.is_weighed)),
            ("tool_token_loss", over(|update| update.tool_token_loss)),
            ("demonstration_loss", over(Update::demonstration_loss)),
            ("max_logprob_gap", max_gap),
            ("mean_logprob_gap", mean_gap),
            ("entropy", first.and_then(|step| step.entropy)),
            ("tokens", Some(steps.iter().map(|step| step.tokens as f64).sum())),
            ("tokens_unshared", Some(steps.iter().map(|step| step.tokens_unshared as f64).sum())),
        ])
    }
}

/// Mean of log p(teacher) − log p(sampled) over the sampled tokens: at most 0 on average, and 0 if both are the same.
fn teacher_gap(groups: &[Vec<Rollout<'_>>]) -> Option<f64> {
    mean(groups.iter().flatten().flat_map(Rollout::teacher_gaps))
}
