//! Table that training stages write: one row per optimizer step.

use super::table::table;

table! {
    /// One optimizer step.
    Step in "steps" {
        /// Stage and, within a loop, iteration: `start`, `train[0003]/update`.
        stage: String,
        /// Step within the stage, from 0.
        step: u32,
        /// Learning rate.
        learning_rate: f64,
        /// Loss, averaged over the loss tokens.
        loss: f64,
        /// Norm of the gradient before clipping.
        gradient_norm: f64,
        /// Tokens that the decoder processed; a shared token counts once.
        tokens: u64,
        /// Tokens of the same rows without sharing.
        tokens_unshared: u64,
        /// Tokens that contribute to the loss.
        loss_tokens: u64,
        /// Mean reward of the rollouts behind this step; absent for supervised steps.
        reward: Option<f64>,
        /// Share of rollouts with the right answer, if known.
        success: Option<f64>,
        /// Share of loss tokens whose ratio was clipped.
        clip_fraction: Option<f64>,
        /// Largest |log p(scored) − log p(sampled)| over the loss tokens, before the step.
        max_logprob_gap: Option<f64>,
        /// Entropy estimate before the step: −mean log p of the sampled tokens, in nats.
        entropy: Option<f64>,
        /// Estimate of KL(policy that played ‖ policy in training) before the step, in nats per token.
        moved_kl: Option<f64>,
        /// Loss on held-out episodes after this step, at the end of a pass.
        held_out_loss: Option<f64>,
        /// How many rollouts contributed a gradient and why the others did not, as JSON.
        signal: Option<String>,
    }
}
