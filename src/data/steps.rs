//! What training stages write: one row per optimiser step.

use super::table::table;

table! {
    /// One optimiser step.
    Step in "steps" {
        /// Stage and, within a loop, iteration: `warmup`, `train[0003]/update`.
        stage: String,
        /// Step within the stage, from 0.
        step: u32,
        /// Learning rate.
        learning_rate: f64,
        /// Loss, averaged over the tokens it is taken on.
        loss: f64,
        /// Norm of the gradient before clipping.
        gradient_norm: f64,
        /// Tokens that went through the decoder, each counted once.
        tokens: u64,
        /// Tokens of the same rows had nothing been shared.
        tokens_unshared: u64,
        /// Tokens the loss is taken on.
        loss_tokens: u64,
        /// Mean reward of the rollouts behind this step; absent for supervised steps.
        reward: Option<f64>,
        /// Share of rollouts with the right answer, where known.
        success: Option<f64>,
        /// Share of loss tokens whose ratio was clipped.
        clip_fraction: Option<f64>,
        /// Largest |log p(scored) − log p(sampled)| over the loss tokens, before the step.
        max_logprob_gap: Option<f64>,
        /// Mean entropy estimate of the sampled tokens, −mean log p, in nats.
        entropy: Option<f64>,
        /// The signal account: how many rollouts carried gradient and why the others did not, as JSON.
        signal: Option<String>,
    }
}
