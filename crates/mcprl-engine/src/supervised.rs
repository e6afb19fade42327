//! Supervised steps: next-token loss on marked tokens only, such as the assistant's tokens in a conversation.

use super::{EngineError, Microbatch, StepReport, Trainer, microbatch::pack};

/// A tokenised conversation, and which of its tokens are the assistant's.
pub type Example = (Vec<u32>, Vec<bool>);

/// The data of one supervised step. The loss is −mean log p of the marked tokens of all examples together.
pub struct Supervised {
    pub batches: Vec<Microbatch>,
    /// Per batch and target, the number of examples with that prediction. It is computed once, with this
    /// weight.
    weights: Vec<Vec<f32>>,
    /// Number of marked tokens.
    pub tokens: f32,
}

impl Supervised {
    /// Splits the examples into this many microbatches of neighbours, each with its own tree, and splits those further whose
    /// trees would hold more tokens.
    pub fn packed(examples: &[&Example], shares: usize, tokens: usize) -> Self {
        let share = examples.len().div_ceil(shares.max(1)).max(1);
        let (mut batches, mut weights) = (Vec::new(), Vec::new());
        for share in examples.chunks(share) {
            let sequences: Vec<&[u32]> = share.iter().map(|(tokens, _)| tokens.as_slice()).collect();
            for members in pack(&[sequences], tokens) {
                let members = members.iter().map(|(_, member)| share[*member]);
                let pairs: Vec<(&[u32], &[bool])> =
                    members.map(|(tokens, marked)| (tokens.as_slice(), marked.as_slice())).collect();
                let (batch, indices) = Microbatch::new(&pairs);
                let mut weight = vec![0.0; batch.targets.len()];
                indices.iter().flatten().for_each(|target| weight[*target] += 1.0);
                batches.push(batch);
                weights.push(weight);
            }
        }
        let tokens = weights.iter().flatten().sum();
        Self { batches, weights, tokens }
    }

    /// Runs one optimizer step. Also returns the loss before it, in nats per marked token.
    ///
    /// # Errors
    /// Also fails if the loss is not finite.
    pub fn step(
        &self,
        trainer: &mut Trainer,
        learning_rate: f64,
        max_norm: f64,
    ) -> Result<(f64, StepReport), EngineError> {
        let dloss_dlogp = |share: usize, target: usize, _: f32| -self.weights[share][target] / self.tokens;
        let report = trainer.step(&self.batches, &dloss_dlogp, learning_rate, max_norm)?;
        Ok((self.mean_loss(&report.logprobs)?, report))
    }

    /// The loss, in nats per marked token, without a step.
    ///
    /// # Errors
    /// Also fails if it is not finite.
    pub fn loss(&self, trainer: &Trainer) -> Result<f64, EngineError> {
        self.mean_loss(&trainer.score(&self.batches)?)
    }

    fn mean_loss(&self, logprobs: &[Vec<f32>]) -> Result<f64, EngineError> {
        let logprobs = logprobs.iter().flatten().zip(self.weights.iter().flatten());
        let loss = -logprobs.map(|(p, w)| f64::from(p * w)).sum::<f64>() / f64::from(self.tokens);
        match loss.is_finite() {
            true => Ok(loss),
            false => Err(EngineError::Diverged { what: "the loss" }),
        }
    }
}
