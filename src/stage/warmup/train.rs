//! Supervised training of a decoder from scratch: next-token loss on the assistant's tokens.

use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use serde::Deserialize;

use crate::{
    data::Step,
    engine::{Example, Rule, Supervised, Trainer},
    error::Result,
    grpo::{Schedule, Shape},
    model::Parameter,
    random::permutation,
    stage::{Context, training::Steps},
};

/// How the base is trained.
#[derive(Debug, Clone, Deserialize)]
pub struct TrainParams {
    pub epochs: usize,
    /// Tokens of conversations in one optimizer step.
    pub tokens_per_step: usize,
    /// Learning rate of Muon, for the matrices.
    pub matrix_learning_rate: f64,
    /// Learning rate of AdamW, for the embedding and the norms.
    pub learning_rate: f64,
    pub momentum: f32,
    pub beta1: f32,
    pub beta2: f32,
    pub weight_decay: f32,
    pub warmup_steps: u64,
    pub schedule: Shape,
    pub decay_from: f64,
    pub floor: f64,
    pub max_gradient_norm: f64,
}

/// Parallel shares of a step on the CPU. Constant, so that the bits do not depend on the machine's thread
/// count.
pub const SHARES: usize = 2;

impl TrainParams {
    /// Muon on the matrices of the layers, AdamW on the rest; the step's learning rate is 1.
    pub fn rules(&self, parameters: &[Parameter<'_>]) -> Vec<Rule> {
        let Self { beta1, beta2, .. } = *self;
        let muon = Rule::Muon { rate: self.matrix_learning_rate as f32, momentum: self.momentum };
        let rule = |parameter: &Parameter<'_>| match parameter {
            Parameter::Matrix(_) => muon,
            Parameter::Vocabulary(_) | Parameter::Vector(_) => {
                let weight_decay = parameter.decay(self.weight_decay);
                Rule::AdamW { rate: self.learning_rate as f32, beta1, beta2, weight_decay }
            }
        };
        parameters.iter().map(rule).collect()
    }

    /// The examples of every step: the drills once, then the others, group by group in an order drawn from the seed.
    fn steps<'e>(&self, (drills, examples, groups): Examples<'e>, seed: u64) -> Vec<Vec<&'e Example>> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut rest = examples;
        let groups: Vec<&[Example]> = groups
            .iter()
            .map(|size| {
                let (group, others) = rest.split_at(*size);
                rest = others;
                group
            })
            .collect();
        let epochs = (0..self.epochs).flat_map(|_| permutation(groups.len(), &mut rng));
        let mut steps = self.batches(drills.iter());
        steps.extend(self.batches(epochs.flat_map(|index| groups[index])));
        steps
    }

    fn batches<'e>(&self, examples: impl Iterator<Item = &'e Example>) -> Vec<Vec<&'e Example>> {
        let (mut batches, mut batch, mut tokens) = (Vec::new(), Vec::new(), 0);
        for example in examples {
            tokens += example.0.len();
            batch.push(example);
            if tokens >= self.tokens_per_step {
                batches.push(std::mem::take(&mut batch));
                tokens = 0;
            }
        }
        batches.extend((!batch.is_empty()).then_some(batch));
        batches
    }
}

/// Drills, examples, and the sizes of groups of examples that follow each other.
type Examples<'e> = (&'e [Example], &'e [Example], &'e [usize]);

/// Trains in place; one row per step.
pub fn train(
    trainer: &mut Trainer,
    examples: Examples<'_>,
    params: &TrainParams,
    context: &Context,
) -> Result<Vec<Step>> {
    let steps = params.steps(examples, context.seed);
    let total = steps.len() as u64;
    let schedule = Schedule {
        peak: 1.0,
        warmup: params.warmup_steps,
        shape: params.schedule,
        total: Some(total),
        decay_from: params.decay_from,
        floor: params.floor,
    };
    let shares = if trainer.decoder.by_kernels() { SHARES } else { trainer.devices() };
    let steps = Steps {
        batches: &steps,
        split: &|examples| Supervised::new(examples, shares),
        learning_rate: &|step| schedule.rate(step),
        logged: params.learning_rate,
        max_gradient_norm: params.max_gradient_norm,
        stop_loss: None,
        held_out: None,
    };
    steps.run(trainer, context)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{
        model::{Decoder, Init, ModelConfig, ModelError, kernels::Heads, ops},
        stage::{testing, warmup::drills::drills},
    };

    fn trainer(params: &TrainParams) -> Trainer {
        let config = testing::small_model();
        let decoder = Decoder::random(config, Init { seed: 3, deviation: 0.1 }).unwrap();
        Trainer::new(decoder, |all| params.rules(all), 2).unwrap()
    }

    fn examples() -> Vec<Example> {
        let token = |of: usize, at: usize| ((of * 31 + at * at * 7) % 59) as u32;
        let one = |of: usize| ((0..12).map(|at| token(of, at)).collect(), (0..12).map(|at| at > 3).collect());
        (0..80).map(one).collect()
    }

    #[test]
    fn the_examples_of_a_group_follow_each_other() {
        let given = json!({"families": "f", "tokens_per_step": 1, "epochs": 2});
        let folder = tempfile::tempdir().unwrap();
        let (context, _) = testing::context("warmup", &[], folder.path(), given);
        let params: TrainParams = crate::stage::typed(&context.params).unwrap();
        let all: Vec<Example> = (0..12).map(|at| (vec![at], vec![true])).collect();
        let (drills, examples) = all.split_at(2);
        let steps = params.steps((drills, examples, &[1, 4, 3, 2]), 7);
        let order: Vec<u32> = steps.iter().flatten().map(|(tokens, _)| tokens[0]).collect();
        assert_eq!(order[..2], [0, 1]);
        for epoch in order[2..].chunks(10) {
            let mut sorted = epoch.to_vec();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(2..12));
            for group in [3..7, 7..10, 10..12] {
                let first = epoch.iter().position(|token| *token == group.start).unwrap();
                assert!(epoch[first..].iter().copied().take(group.len()).eq(group));
            }
        }
        assert_ne!(order[2..12], order[12..]);
    }

    #[test]
    fn a_decoder_that_starts_with_induction_heads_learns_to_copy_early() {
        let folder = tempfile::tempdir().unwrap();
        let given = json!({"families": "f", "tokens_per_step": 800, "epochs": 1});
        let mut config = testing::small_model();
        (config.vocabulary, config.hidden, config.context, config.layers) = (128, 128, 256, 2);
        config.heads = Heads { query: 4, kv: 2, dim: 32 };
        let all: Example = ((0..128).collect(), vec![true; 128]);
        let drills = drills(400, &[all], 1);
        let loss = |start: fn(ModelConfig, Init) -> std::result::Result<Decoder, ModelError>| {
            let (context, _) = testing::context("warmup", &[], folder.path(), given.clone());
            let params: TrainParams = crate::stage::typed(&context.params).unwrap();
            let decoder = start(config.clone(), Init { seed: 3, deviation: 0.02 }).unwrap();
            let mut trainer = Trainer::new(decoder, |all| params.rules(all), 2).unwrap();
            let steps = train(&mut trainer, (&drills, &[], &[]), &params, &context).unwrap();
            steps.last().unwrap().loss
        };
        let (random, copying) = (loss(Decoder::random), loss(Decoder::with_induction_heads));
        // Of 128 tokens, a guess is worth 4.85 nats.
        assert!(random > 4.5 && copying < 1.5, "{random} {copying}");
    }

    #[test]
    fn a_resumed_training_ends_in_the_same_bits() {
        let folder = tempfile::tempdir().unwrap();
        let given = json!({"families": "f", "tokens_per_step": 48, "epochs": 1});
        let (context, _) = testing::context("warmup", &[], folder.path(), given.clone());
        let params: TrainParams = crate::stage::typed(&context.params).unwrap();
        let finish = |context: &Context| {
            let mut trainer = trainer(&params);
            let all = examples();
            let (drills, examples) = all.split_at(20);
            let steps = train(&mut trainer, (drills, examples, &[1; 60]), &params, context)?;
            let parameters = trainer.decoder.trained()?;
            let bits = parameters.iter().map(|p| ops::values(p.tensor()).unwrap().to_vec());
            Ok::<_, crate::error::Failure>((bits.collect::<Vec<_>>(), steps))
        };
        let straight = finish(&context).unwrap();
        assert_eq!(straight.1.len(), 20);

        let (mut context, rows) = testing::context("warmup", &[], folder.path(), given);
        for checkpoints in [1, 2, 1] {
            testing::Killer::watch(&mut context, &rows, checkpoints);
            assert_eq!(finish(&context).unwrap_err().code(), "interrupted");
        }
        context.cancel = CancellationToken::new();
        context.rows = rows;
        assert!(finish(&context).unwrap() == straight);
    }
}
