//! The objective: the loss term of one sampled token, and its derivative with respect to the token's
//! log-probability.
//!
//! ρ is the ratio of the token's probability under the policy being trained to that under the sampling policy
//! (GSPO: the geometric mean of these ratios over the rollout); with importance weights, to that under the
//! policy before the first step ([`super::Importance`]). A is the rollout's advantage:
//!
//! | kind | term of a token | weight of a token | source |
//! |---|---|---|---|
//! | `Dapo` | −min(ρA, clip(ρ)A) | 1 / tokens of the step | Yu et al. 2025, §3.3 |
//! | `Grpo` | the same | 1 / (rollouts · its rollout's tokens) | Shao et al. 2024, §4.1 |
//! | `DrGrpo` | the same | 1 / (rollouts · token budget) | Liu et al. 2025, §3.2 |
//! | `Gspo` | the same, ρ of the whole rollout | 1 / (rollouts · its rollout's tokens) | Zheng et al. 2025, §4 |
//! | `Cispo` | −sg(min(ρ, 1 + high)) A log p | 1 / tokens of the step | MiniMax 2025, §3.1 |
//!
//! clip(ρ) is ρ clamped to `[1 − low, 1 + high]`; sg stops the gradient. Where A < 0, the term of the first three is
//! bounded by dual · |A| (Ye et al. 2020, §3.4), which is TRL's `delta` if dual ≥ 1 + high. With a KL penalty every term adds
//! `kl` × the k3 estimate of KL(trained ‖ reference) at its token. The loss is the sum of weight × term over
//! every sampled token of one optimizer step, independent of microbatches.
//!
//! The weights and the sum count rollouts and tokens of groups whose rewards differ. If the loss counts them
//! ([`ZeroVariance`]), groups without variance are included: their A is 0, so they reduce the weights of the
//! others and add the KL penalty of their own tokens. Where a paper does not mention filtering, the mean is
//! over all samples:
//!
//! | kind | groups without variance | source |
//! |---|---|---|
//! | `Grpo`, `DrGrpo`, `Gspo` | count | the mean over all rollouts of the batch, in each paper's objective |
//! | `Dapo` | excluded | dynamic sampling: Yu et al. 2025, §3.2, equation 11 |
//! | `Cispo` | excluded | dynamic sampling, as in DAPO: MiniMax 2025, §3.1 |
//!
//! TRL counts them for every kind. Rollouts without a reward, masked, or without
//! sampled tokens are not part of any loss.

use serde::{Deserialize, Serialize};

use super::ZeroVariance;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum LossKind {
    Dapo,
    Grpo,
    DrGrpo,
    Gspo,
    Cispo,
}

/// How far a ratio may move from 1 before it is clipped, and where the loss of a negative advantage ends.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Clip {
    pub low: f64,
    pub high: f64,
    /// Largest ratio that counts where the advantage is negative; none for no bound.
    pub dual: Option<f64>,
}

impl LossKind {
    /// The authors' clip range. Ratios of whole rollouts move far less than those of tokens, and CISPO has
    /// effectively no lower bound. The dual bound is that of Ye et al. for the ratios of tokens.
    pub fn default_clip(self) -> Clip {
        match self {
            Self::Dapo | Self::Grpo | Self::DrGrpo => Clip { low: 0.2, high: 0.28, dual: Some(3.0) },
            Self::Gspo => Clip { low: 3e-4, high: 4e-4, dual: None },
            Self::Cispo => Clip { low: 1.0, high: 4.0, dual: None },
        }
    }

    /// How the authors treat groups whose rewards are all the same.
    pub fn default_zero_variance(self) -> ZeroVariance {
        match self {
            Self::Dapo | Self::Cispo => ZeroVariance::Exclude,
            Self::Grpo | Self::DrGrpo | Self::Gspo => ZeroVariance::Count,
        }
    }
}

/// One sampled token with the inputs of its loss. Log-probabilities are natural, at temperature 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Token {
    /// Of its rollout.
    pub advantage: f64,
    /// Under the policy being trained.
    pub new: f32,
    /// Under the policy that the ratio compares with: the sampling policy, or with importance weights the
    /// one before the first step.
    pub old: f32,
    /// Under the sampling policy.
    pub sampled: f32,
    /// Importance weight of the term without its KL penalty; 1 for none.
    pub importance: f64,
    /// [`mean_log_ratio`] of its rollout, used if [`Objective::needs_rollout_ratio`]. 0 on the first step
    /// after sampling.
    pub rollout_log_ratio: f64,
    /// Under the reference policy. If given, KL is measured; it is part of the loss if `kl` is above 0.
    pub reference: Option<f32>,
}

impl Token {
    /// A token with the log-probability that was recorded when it was sampled.
    pub fn recorded(advantage: f64, logprob: f32) -> Self {
        Self {
            advantage,
            new: logprob,
            old: logprob,
            sampled: logprob,
            importance: 1.0,
            rollout_log_ratio: 0.0,
            reference: None,
        }
    }
}

/// The loss term of a token, before its weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Term {
    pub loss: f64,
    /// d loss / d log p, p being the token's probability under the policy being trained.
    pub dloss_dlogp: f64,
    /// The clip changed the gradient: the ratio was out of range on the side that is clipped.
    pub clipped: bool,
    /// Estimate of KL(trained ‖ reference) at this token, in nats, ≥ 0; 0 without a reference.
    pub kl: f64,
}

/// The size of one optimizer step over all microbatches, including rollouts of advantage 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepSize {
    /// Number of rollouts.
    pub rollouts: usize,
    /// Sampled tokens of these rollouts.
    pub tokens: usize,
    /// Most tokens a rollout may sample; used by `DrGrpo`.
    pub token_budget: usize,
}

/// The loss of a training step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Objective {
    pub kind: LossKind,
    pub clip: Clip,
    /// Weight of the KL penalty towards the reference policy; 0 for none.
    pub kl: f64,
}

impl Objective {
    /// Whether every token's term depends on its whole rollout, which must then be scored before the backward
    /// pass.
    pub fn needs_rollout_ratio(&self) -> bool {
        self.kind == LossKind::Gspo
    }

    /// Importance weights as the terms use them. Where all terms of a rollout have its ratio, they have the mean of
    /// its weights, because the gradient of each term reaches all of its tokens.
    pub fn weights(&self, importance: Vec<f64>) -> Vec<f64> {
        if !self.needs_rollout_ratio() {
            return importance;
        }
        let mean = importance.iter().sum::<f64>() / importance.len().max(1) as f64;
        vec![mean; importance.len()]
    }

    /// Whether a rollout with this advantage has nonzero terms. Others count only in [`StepSize`].
    pub fn has_terms(&self, advantage: f64) -> bool {
        advantage != 0.0 || self.kl > 0.0
    }

    /// The term of one sampled token.
    pub fn term(&self, token: &Token) -> Term {
        let log_ratio = match self.kind {
            LossKind::Gspo => token.rollout_log_ratio,
            _ => f64::from(token.new) - f64::from(token.old),
        };
        let (ratio, advantage) = (log_ratio.exp(), token.advantage);
        let (low, high) = (1.0 - self.clip.low, 1.0 + self.clip.high);
        let mut term = if self.kind == LossKind::Cispo {
            let dloss_dlogp = -ratio.min(high) * advantage;
            Term { loss: dloss_dlogp * f64::from(token.new), dloss_dlogp, clipped: ratio > high, kl: 0.0 }
        } else {
            let dual = self.clip.dual.filter(|_| advantage < 0.0);
            let is_beyond = dual.is_some_and(|dual| ratio > dual);
            let clipped =
                is_beyond || if advantage > 0.0 { ratio > high } else { advantage < 0.0 && ratio < low };
            let unclipped = -ratio * advantage;
            let bounded = -ratio.max(low).min(high) * advantage;
            let loss = unclipped.max(bounded);
            Term {
                loss: dual.map_or(loss, |dual| loss.min(-dual * advantage)),
                dloss_dlogp: if clipped { 0.0 } else { unclipped },
                clipped,
                kl: 0.0,
            }
        };
        term.loss *= token.importance;
        term.dloss_dlogp *= token.importance;
        if let Some(reference) = token.reference {
            // k3 of Schulman, "Approximating KL divergence" (2020).
            let gap = f64::from(reference) - f64::from(token.new);
            term.kl = k3(gap);
            if self.kl > 0.0 {
                term.loss += self.kl * term.kl;
                term.dloss_dlogp -= self.kl * gap.exp_m1();
            }
        }
        term
    }

    /// The weight of the terms of a rollout with this many sampled tokens.
    pub fn weight(&self, step: &StepSize, rollout_tokens: usize) -> f64 {
        let count = match self.kind {
            LossKind::Dapo | LossKind::Cispo => step.tokens,
            LossKind::Grpo | LossKind::Gspo => step.rollouts * rollout_tokens,
            LossKind::DrGrpo => step.rollouts * step.token_budget,
        };
        1.0 / count.max(1) as f64
    }
}

/// An auxiliary loss on the tokens of tool results, which the policy read and did not sample: a weight times
/// their mean −log p over the step. The policy learns to predict the server (ECHO; Prime Intellect's
/// prime-rl).
///
/// This is d loss / d log p of every such token. `tokens`: those of all rollouts of the step.
pub fn tool_token_dloss_dlogp(weight: f64, tokens: usize) -> f64 {
    if tokens == 0 { 0.0 } else { -weight / tokens as f64 }
}

/// Schulman's estimate of KL(p ‖ q), in nats, from log q − log p of what p sampled.
pub(super) fn k3(gap: f64) -> f64 {
    gap.exp_m1() - gap
}

/// Mean of log p(new) − log p(old) over the sampled tokens of one rollout; 0 without tokens.
pub fn mean_log_ratio(new: &[f32], old: &[f32]) -> f64 {
    let sum: f64 = new.iter().zip(old).map(|(new, old)| f64::from(*new) - f64::from(*old)).sum();
    sum / new.len().max(1) as f64
}

/// Sums over the tokens of a step, for its row in the step log. The caller must keep the order of addition.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tally {
    /// Σ weight × term.
    pub loss: f64,
    pub tokens: u64,
    pub clipped: u64,
    sum_kl: f64,
    sum_importance: f64,
}

impl Tally {
    pub fn add(&mut self, token: &Token, term: &Term, weight: f64) {
        self.loss += weight * term.loss;
        self.tokens += 1;
        self.clipped += u64::from(term.clipped);
        self.sum_kl += term.kl;
        self.sum_importance += token.importance;
    }

    /// All sums and counts, which are exact as numbers.
    pub fn to_numbers(self) -> [f64; 5] {
        let Self { loss, tokens, clipped, sum_kl, sum_importance } = self;
        [loss, tokens as f64, clipped as f64, sum_kl, sum_importance]
    }

    /// The tally with these [`Self::to_numbers`].
    pub fn from_numbers([loss, tokens, clipped, sum_kl, sum_importance]: [f64; 5]) -> Self {
        let (tokens, clipped) = (tokens as u64, clipped as u64);
        Self { loss, tokens, clipped, sum_kl, sum_importance }
    }

    /// Share of tokens whose ratio was clipped. Like all means, none without tokens.
    pub fn clip_fraction(&self) -> Option<f64> {
        self.mean(self.clipped as f64)
    }

    /// Mean KL estimate towards the reference, in nats.
    pub fn kl(&self) -> Option<f64> {
        self.mean(self.sum_kl)
    }

    /// Mean importance weight.
    pub fn importance(&self) -> Option<f64> {
        self.mean(self.sum_importance)
    }

    fn mean(&self, sum: f64) -> Option<f64> {
        (self.tokens > 0).then(|| sum / self.tokens as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With the authors' clip range and no KL penalty.
    fn objective(kind: LossKind) -> Objective {
        Objective { kind, clip: kind.default_clip(), kl: 0.0 }
    }

    fn token(advantage: f64, ratio: f64) -> Token {
        let old = -1.5;
        Token {
            advantage,
            new: old + ratio.ln() as f32,
            old,
            sampled: old,
            importance: 1.0,
            rollout_log_ratio: ratio.ln(),
            reference: Some(-1.2),
        }
    }

    #[test]
    fn on_policy_the_gradient_is_the_advantage_for_every_kind() {
        for kind in [LossKind::Dapo, LossKind::Grpo, LossKind::DrGrpo, LossKind::Gspo, LossKind::Cispo] {
            for advantage in [-0.5, 0.75] {
                let term = objective(kind).term(&token(advantage, 1.0));
                assert_eq!((term.dloss_dlogp, term.clipped), (-advantage, false), "{kind:?}");
            }
        }
    }

    #[test]
    fn an_importance_weight_scales_the_term_and_not_the_penalty() {
        let objective = Objective { kl: 0.3, ..objective(LossKind::Dapo) };
        let at = token(0.7, 1.1);
        let [one, half, none] =
            [1.0, 0.5, 0.0].map(|importance| objective.term(&Token { importance, ..at }).dloss_dlogp);
        assert!(((one - none) - 2.0 * (half - none)).abs() < 1e-12 && none != 0.0);
    }

    #[test]
    fn a_ratio_is_clipped_only_if_the_gradient_moves_it_away_from_one() {
        let clipped = |advantage, ratio| objective(LossKind::Dapo).term(&token(advantage, ratio)).clipped;
        let table = [(1.0, 1.5), (1.0, 0.5), (-1.0, 1.5), (-1.0, 0.5)].map(|(a, r)| clipped(a, r));
        assert_eq!(table, [true, false, false, true]);
    }

    #[test]
    fn the_clip_range_is_asymmetric() {
        let clipped = |advantage, ratio| objective(LossKind::Dapo).term(&token(advantage, ratio)).clipped;
        assert!(!clipped(1.0, 1.27) && clipped(1.0, 1.29));
        assert!(!clipped(-1.0, 0.81) && clipped(-1.0, 0.79));
    }

    #[test]
    fn the_loss_of_a_negative_advantage_is_bounded_by_the_dual_clip() {
        let term = |kind, advantage, ratio| objective(kind).term(&token(advantage, ratio));
        for kind in [LossKind::Dapo, LossKind::Grpo, LossKind::DrGrpo] {
            let [below, above] = [2.9, 40.0].map(|ratio| term(kind, -0.5, ratio));
            assert!((below.dloss_dlogp - 1.45).abs() < 1e-6 && !below.clipped, "{below:?}");
            assert_eq!((above.loss, above.dloss_dlogp, above.clipped), (1.5, 0.0, true));
            assert!(!term(kind, 0.5, 0.1).clipped, "a positive one is not");
        }
        assert!((term(LossKind::Gspo, -0.5, 40.0).loss - 20.0).abs() < 1e-4);
    }

    #[test]
    fn dloss_dlogp_is_the_derivative_of_the_term() {
        let step = 1e-3_f32;
        for kind in [LossKind::Dapo, LossKind::Cispo] {
            let objective = Objective { kl: 0.3, ..objective(kind) };
            for (advantage, ratio) in [(0.7, 1.1), (-0.7, 1.9), (-0.4, 0.5), (0.9, 2.5)] {
                let at = token(advantage, ratio);
                let loss = |by: f32| objective.term(&Token { new: at.new + by, ..at }).loss;
                let numeric = (loss(step) - loss(-step)) / f64::from(2.0 * step);
                let mut expected = objective.term(&at).dloss_dlogp;
                if kind == LossKind::Cispo {
                    // The ratio is a constant in the gradient; a finite difference sees it change.
                    let capped = ratio.min(5.0);
                    expected -= capped * advantage * f64::from(at.new);
                }
                assert!(
                    (numeric - expected).abs() < 2e-3,
                    "{kind:?} {advantage} {ratio}: {numeric} {expected}"
                );
            }
        }
    }

    #[test]
    fn weights_of_a_step_add_up_to_one_for_rollouts_of_any_length() {
        let lengths = [3, 5, 12];
        let step = StepSize { rollouts: 3, tokens: 20, token_budget: 12 };
        let total = |kind| {
            let of = |tokens: usize| objective(kind).weight(&step, tokens) * tokens as f64;
            lengths.into_iter().map(of).sum::<f64>()
        };
        for kind in [LossKind::Dapo, LossKind::Grpo, LossKind::Gspo, LossKind::Cispo] {
            assert!((total(kind) - 1.0).abs() < 1e-12, "{kind:?}");
        }
        assert!((total(LossKind::DrGrpo) - 20.0 / 36.0).abs() < 1e-12);
    }

    #[test]
    fn a_step_without_tokens_has_finite_weights_and_no_means() {
        let weight =
            objective(LossKind::Dapo).weight(&StepSize { rollouts: 0, tokens: 0, token_budget: 0 }, 0);
        assert!(weight.is_finite());
        assert_eq!((Tally::default().clip_fraction(), Tally::default().kl()), (None, None));
        assert_eq!(mean_log_ratio(&[], &[]), 0.0);
    }
}
