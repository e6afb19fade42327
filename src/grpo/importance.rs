//! Importance weights for rollouts that an earlier policy sampled.
//!
//! Three policies take part: the one that sampled (μ), the one before the first step of the update (π₀, the
//! proximal policy), and the one in training (π). Without weights, the ratio of the loss is π / μ, and the
//! clip range counts from μ: with a lag, ratios start outside of it. With weights the ratio is π / π₀, and
//! the policy term of every token is multiplied by the constant π₀ / μ, bounded by a cap (Hilton et al. 2021,
//! "Batch size-invariance for policy optimization"). The rule and its names are TRL's
//! (`vllm_importance_sampling_mode`). The weight does not apply to the KL penalty, and weighted tokens count
//! in full in the loss's divisor.

use serde::{Deserialize, Serialize};

/// Which weight the terms of a token get. r is π₀ / μ: of the token, or the product over its rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Importance {
    /// No weight; the ratio is π / μ.
    None,
    /// min(r, cap), by token.
    TokenTruncate,
    /// r, or 0 above the cap, by token.
    TokenMask,
    /// min(r, cap), by rollout.
    SequenceTruncate,
    /// r, or 0 above the cap, by rollout.
    SequenceMask,
}

impl Importance {
    /// The weight of each sampled token of one rollout, from its log-probabilities under π₀ and μ.
    pub fn weights(self, cap: f64, proximal: &[f32], sampled: &[f32]) -> Vec<f64> {
        let gaps = proximal.iter().zip(sampled).map(|(new, old)| f64::from(*new) - f64::from(*old));
        let bounded = |log_ratio: f64| match (self, log_ratio.exp()) {
            (Self::None, _) => 1.0,
            (Self::TokenTruncate | Self::SequenceTruncate, ratio) => ratio.min(cap),
            (Self::TokenMask | Self::SequenceMask, ratio) if ratio > cap => 0.0,
            (Self::TokenMask | Self::SequenceMask, ratio) => ratio,
        };
        match self {
            Self::SequenceTruncate | Self::SequenceMask => vec![bounded(gaps.sum()); proximal.len()],
            Self::None | Self::TokenTruncate | Self::TokenMask => gaps.map(bounded).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Importance; 5] = [
        Importance::None,
        Importance::TokenTruncate,
        Importance::TokenMask,
        Importance::SequenceTruncate,
        Importance::SequenceMask,
    ];

    #[test]
    fn on_policy_every_weight_is_exactly_one() {
        for mode in ALL {
            assert_eq!(mode.weights(3.0, &[-0.3, -2.7], &[-0.3, -2.7]), [1.0, 1.0], "{mode:?}");
        }
    }

    #[test]
    fn a_token_over_the_cap_is_cut_or_dropped_alone_or_with_its_rollout() {
        let (new, old) = ([-0.5_f32, -1.0, -1.5], [-1.5_f32, -1.0, -1.0]);
        let low = (-0.5_f64).exp();
        let expected: [[f64; 3]; 5] =
            [[1.0; 3], [2.0, 1.0, low], [0.0, 1.0, low], [0.5_f64.exp().min(2.0); 3], [0.5_f64.exp(); 3]];
        for (mode, expected) in ALL.into_iter().zip(expected) {
            assert_eq!(mode.weights(2.0, &new, &old), expected, "{mode:?}");
        }
        assert_eq!(Importance::SequenceTruncate.weights(1.5, &new, &old), [1.5; 3]);
        assert_eq!(Importance::SequenceMask.weights(1.5, &new, &old), [0.0; 3]);
    }

    #[test]
    fn a_ratio_beyond_any_number_has_a_finite_weight() {
        let (new, old) = (vec![-0.1_f32; 2000], vec![-5.0_f32; 2000]);
        assert!(Importance::SequenceTruncate.weights(3.0, &new, &old).iter().all(|weight| *weight == 3.0));
        assert!(Importance::SequenceMask.weights(3.0, &new, &old).iter().all(|weight| *weight == 0.0));
    }
}
