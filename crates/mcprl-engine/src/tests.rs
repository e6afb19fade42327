//! Tests the engine's guarantees on small random decoders.

mod cache;
mod memory;
mod model_cache;
pub mod recurrence;
mod several;
pub mod sharing;
mod spread;

use std::sync::Arc;

use futures::future::join_all;

use super::*;
use crate::model::{
    Adapter, AdapterConfig, Decoder, Init, ModelConfig, Positions,
    kernels::{Attention, Format},
    ops,
};

fn config() -> ModelConfig {
    ModelConfig::small()
}

pub fn decoder() -> Decoder {
    Decoder::random(config(), Init { seed: 3, deviation: 0.15 }).unwrap()
}

/// A decoder whose adapter changes the output.
pub fn adapted() -> Decoder {
    changed(decoder())
}

fn changed(mut decoder: Decoder) -> Decoder {
    Adapter::fresh(&mut decoder, &AdapterConfig::new(4, 8.0), 5).unwrap();
    for (index, parameter) in decoder.trained().unwrap().iter_mut().enumerate() {
        let values: Vec<f32> =
            (0..parameter.tensor().elem_count()).map(|i| wave(i * 31 + index * 7) * 0.2).collect();
        let tensor =
            candle_core::Tensor::from_vec(values, parameter.tensor().shape(), &candle_core::Device::Cpu);
        parameter.set(tensor.unwrap());
    }
    decoder
}

/// Has an adapter, a base in this format, and keys and values to match.
pub fn frozen(format: Format) -> Decoder {
    let mut decoder = decoder();
    decoder.freeze(format).unwrap();
    changed(decoder)
}

fn wave(i: usize) -> f32 {
    ((i as f32) * 0.37).sin()
}

fn tokens(count: usize, seed: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * i * 7 + i * 13 + seed * 29) % 89) as u32).collect()
}

const WARM: Sampling = Sampling { temperature: 1.0, ..Sampling::GREEDY };

/// Sequences that branch after 9 and after 15 tokens, trained from token 9 on.
fn branching() -> Vec<(Vec<u32>, Vec<bool>)> {
    let stem = tokens(9, 0);
    let sequence = |parts: &[Vec<u32>]| {
        let tokens = [std::slice::from_ref(&stem), parts].concat().concat();
        let trained = (0..tokens.len()).map(|at| at >= 9 && at % 5 != 0).collect();
        (tokens, trained)
    };
    let middle = tokens(6, 4);
    vec![
        sequence(&[middle.clone(), tokens(40, 1)]),
        sequence(&[middle.clone(), tokens(7, 2)]),
        sequence(&[tokens(20, 6)]),
        sequence(&[middle, tokens(40, 1)]),
    ]
}

fn close(a: &[f32], b: &[f32], tolerance: f32) -> bool {
    let size = a.iter().chain(b).fold(1e-3f32, |m, v| m.max(v.abs()));
    a.iter().zip(b).all(|(a, b)| (a - b).abs() <= tolerance * size)
}

const MUON: Rule = Rule::Muon { rate: 1.0, momentum: 0.9 };

/// A trainer with one rule for all parameters.
fn trainer(decoder: Decoder, rule: Rule, threads: usize) -> Trainer {
    Trainer::new(decoder, |parameters| vec![rule; parameters.len()], threads).unwrap()
}

fn values_of(slots: &[candle_core::Tensor]) -> Vec<Vec<f32>> {
    slots.iter().map(|slot| ops::values(slot).unwrap().to_vec()).collect()
}

fn gradients_of(
    decoder: Decoder,
    sequences: &[(Vec<u32>, Vec<bool>)],
    weights: &[f32],
) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let mut trainer = trainer(decoder, MUON, 1);
    let (batch, indices) = Microbatch::new(sequences);
    let mut target_weights = vec![0.0; batch.targets.len()];
    for (sequence, weight) in indices.iter().zip(weights) {
        sequence.iter().for_each(|target| target_weights[*target] += weight);
    }
    let (gradients, logprobs) = trainer.gradients(&[batch], &|_, target, _| target_weights[target]).unwrap();
    (
        values_of(&gradients.slots),
        indices.iter().map(|of| of.iter().map(|target| logprobs[0][*target]).collect()).collect(),
    )
}

#[test]
fn a_step_is_stopped_between_two_microbatches_and_then_changes_nothing() {
    use mcprl_base::error::{Class, Diagnostic};
    let rule = Rule::AdamW { rate: 1.0, beta1: 0.9, beta2: 0.95, weight_decay: 0.0 };
    let mut trainer = trainer(adapted(), rule, 1);
    let batches: Vec<Microbatch> =
        branching().iter().map(|sequence| Microbatch::new(std::slice::from_ref(sequence)).0).collect();
    let state =
        |trainer: &mut Trainer| values_of(&trainer.state().unwrap().into_values().collect::<Vec<_>>());
    let before = state(&mut trainer);
    let (cancel, reached) =
        (trainer.cancel.clone(), std::sync::Mutex::new(std::collections::BTreeSet::new()));
    let dloss_dlogp = |microbatch: usize, _: usize, _: f32| {
        reached.lock().unwrap().insert(microbatch);
        if microbatch == 1 {
            cancel.cancel();
        }
        1.0
    };
    let stopped = trainer.step(&batches, &dloss_dlogp, 1e-2, 0.0).unwrap_err();
    assert_eq!((stopped.code(), stopped.class()), ("interrupted", Class::Interrupted));
    assert!(reached.into_inner().unwrap().into_iter().eq([0, 1]));
    assert_eq!(trainer.score(&batches).unwrap_err().code(), "interrupted");
    assert!(state(&mut trainer) == before);
}

/// Checks the gradients of sequences with shared prefixes against the sum of those of each alone.
fn check_shared_prefixes(
    make: fn() -> Decoder,
    sequences: &[(Vec<u32>, Vec<bool>)],
    weights: &[f32],
    tolerance: f32,
) {
    let (together, logprobs) = gradients_of(make(), sequences, weights);
    let mut apart: Vec<Vec<f32>> = together.iter().map(|slot| vec![0.0; slot.len()]).collect();
    for (index, sequence) in sequences.iter().enumerate() {
        let (separate, of) = gradients_of(make(), std::slice::from_ref(sequence), &weights[index..=index]);
        assert_eq!(of[0], logprobs[index], "log-probabilities are the same bits");
        for (sum, of) in apart.iter_mut().zip(separate) {
            sum.iter_mut().zip(of).for_each(|(sum, of)| *sum += of);
        }
    }
    for (slot, (together, apart)) in together.iter().zip(&apart).enumerate() {
        assert!(close(together, apart, tolerance), "slot {slot}, tolerance {tolerance}");
    }
}

#[test]
fn a_shared_prefix_gives_the_gradients_of_the_unshared_sequences() {
    let (sequences, weights) = (branching(), [1.0, -0.5, 0.25, 2.0]);
    for make in [decoder, adapted] {
        check_shared_prefixes(make, &sequences, &weights, 2e-5);
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    let (sequences, weights) = (branching(), [1.0, -0.5, 0.25, 2.0]);
    let loss = |decoder: Decoder| -> f64 {
        let (_, logprobs) = gradients_of(decoder, &sequences, &weights);
        let weigh = |(of, weight): (&Vec<f32>, &f32)| {
            of.iter().map(|p| f64::from(*p)).sum::<f64>() * f64::from(*weight)
        };
        logprobs.iter().zip(&weights).map(weigh).sum()
    };
    for make in [decoder, adapted, recurrence::decoder, recurrence::convolution] {
        let (gradients, _) = gradients_of(make(), &sequences, &weights);
        for (slot, gradient) in gradients.iter().enumerate() {
            let at = slot * 13 % gradient.len();
            let nudged = |by: f32| {
                let mut decoder = make();
                let mut parameters = decoder.trained().unwrap();
                let mut values = ops::values(parameters[slot].tensor()).unwrap().to_vec();
                values[at] += by;
                let shape = parameters[slot].tensor().shape().clone();
                parameters[slot]
                    .set(candle_core::Tensor::from_vec(values, shape, &candle_core::Device::Cpu).unwrap());
                drop(parameters);
                loss(decoder)
            };
            let step = 4e-3;
            let numeric = (nudged(step) - nudged(-step)) / f64::from(2.0 * step);
            let size = gradient.iter().fold(0.0f32, |m, g| m.max(g.abs()));
            let error = (numeric - f64::from(gradient[at])).abs();
            assert!(
                error < 0.02 * f64::from(size) + 2e-2,
                "slot {slot}[{at}]: {numeric} against {}",
                gradient[at]
            );
        }
    }
}

#[test]
fn every_adapter_gets_a_gradient_and_reaches_the_sampler() {
    let (gradients, _) = gradients_of(adapted(), &branching(), &[1.0; 4]);
    assert_eq!(gradients.len(), 2 * 7 * 2);
    for (slot, gradient) in gradients.iter().enumerate() {
        assert!(gradient.iter().any(|g| *g != 0.0), "slot {slot}");
    }
    let plain = decoder().embed(&[1], &[0]).unwrap();
    for index in 0..28 {
        let mut decoder = adapted();
        let before = outputs(&decoder, plain.clone());
        let mut parameters = decoder.trained().unwrap();
        let doubled = (parameters[index].tensor() * 2.0).unwrap();
        parameters[index].set(doubled);
        drop(parameters);
        assert_ne!(before, outputs(&decoder, plain.clone()), "slot {index}");
    }
}

/// The sum of queries, keys and values: with a single key, the scores would not matter.
struct Sum;

impl ops::Mixer for Sum {
    fn attend(
        &mut self,
        (q, k, v): (&candle_core::Tensor, &candle_core::Tensor, &candle_core::Tensor),
        _: Attention,
    ) -> candle_core::Result<ops::Attended> {
        q.add(&candle_core::Tensor::cat(&[k, v], 1)?).map(Into::into)
    }

    fn delta(&mut self, inputs: &ops::DeltaInputs<'_>) -> candle_core::Result<candle_core::Tensor> {
        Ok(inputs.mixed.clone())
    }

    fn convolve(
        &mut self,
        rows: &candle_core::Tensor,
        _: ops::ConvolutionShape,
        _: &candle_core::Tensor,
    ) -> candle_core::Result<candle_core::Tensor> {
        Ok(rows.clone())
    }
}

fn outputs(decoder: &Decoder, mut x: candle_core::Tensor) -> Vec<f32> {
    for layer in 0..decoder.config.layers {
        x = decoder.layer(layer, x, &Positions::new(&[3]), &mut Sum).unwrap().output;
    }
    ops::values(&x).unwrap().to_vec()
}

/// Runs two turns in each of several concurrent conversations. Returns tokens, sampled flags and
/// log-probabilities.
async fn play(sampler: &Sampler, count: usize) -> Vec<(Vec<u32>, Vec<bool>, Vec<f32>)> {
    let shared: Arc<[u32]> = tokens(30, 7).into();
    join_all((0..count).map(|index| {
        let task: Arc<[u32]> = tokens(5 + index % 3, index / 4).into();
        let mut sequence = sampler.open(vec![shared.clone(), task.clone()], WARM, 1000 + index as u64);
        let mut tokens_ = [shared.as_ref(), task.as_ref()].concat();
        async move {
            let (mut sampled, mut logprobs) = (vec![false; tokens_.len()], vec![0.0; tokens_.len()]);
            for append in [vec![], tokens(11, index)] {
                tokens_.extend(&append);
                sampled.resize(tokens_.len(), false);
                logprobs.resize(tokens_.len(), 0.0);
                let turn = sequence.turn(&append, &[5], 12).await.unwrap();
                tokens_.extend(&turn.tokens);
                sampled.resize(tokens_.len(), true);
                logprobs.extend(&turn.logprobs);
            }
            (tokens_, sampled, logprobs)
        }
    }))
    .await
}

const MAKES: [fn() -> Decoder; 7] = [
    decoder,
    adapted,
    || frozen(Format::F16),
    || frozen(Format::Bf16),
    || frozen(Format::Nf4),
    recurrence::decoder,
    recurrence::convolution,
];

#[tokio::test]
async fn samples_depend_neither_on_threads_nor_on_other_conversations() {
    for make in MAKES {
        let many = play(&Sampler::on_threads(make(), 3), 24).await;
        let few = play(&Sampler::on_threads(make(), 1), 5).await;
        assert_eq!(many[..5], few);
        assert!(many.iter().any(|(tokens, ..)| *tokens != many[0].0), "seeds differ, so should samples");
    }
}

#[tokio::test]
async fn scoring_and_sampling_give_the_same_bits() {
    for make in MAKES {
        let episodes = play(&Sampler::on_threads(make(), 2), 16).await;
        let sequences: Vec<_> =
            episodes.iter().map(|(tokens, sampled, _)| (tokens.clone(), sampled.clone())).collect();
        let (_, scored) = gradients_of(make(), &sequences, &[1.0; 16]);
        for ((_, sampled, logprobs), scored) in episodes.iter().zip(scored) {
            let drawn: Vec<f32> =
                logprobs.iter().zip(sampled).filter(|(_, s)| **s).map(|(p, _)| *p).collect();
            assert_eq!(drawn, scored);
        }
    }
}

#[test]
fn a_step_is_the_same_bits_on_any_number_of_threads() {
    let stepped = |threads| {
        let rule = Rule::AdamW { rate: 1.0, beta1: 0.9, beta2: 0.95, weight_decay: 0.0 };
        let mut trainer = trainer(adapted(), rule, threads);
        let batches: Vec<_> =
            branching().iter().map(|one| Microbatch::new(std::slice::from_ref(one)).0).collect();
        for _ in 0..3 {
            trainer.step(&batches, &|_, _, _| -0.1, 1e-2, 1.0).unwrap();
        }
        let parameters = trainer.decoder.trained().unwrap();
        parameters.iter().flat_map(|p| ops::values(p.tensor()).unwrap().to_vec()).collect::<Vec<f32>>()
    };
    assert_eq!(stepped(1), stepped(3));
}

#[test]
fn recomputed_activations_give_the_same_bits() {
    for make in [decoder, adapted, recurrence::decoder, recurrence::adapted, recurrence::convolution] {
        let gradients = |recompute| {
            let mut trainer = trainer(make(), MUON, 1);
            trainer.recompute = recompute;
            let (batch, _) = Microbatch::new(&branching());
            let (gradients, logprobs) = trainer.gradients(&[batch], &|_, _, p| 0.3 * p).unwrap();
            (values_of(&gradients.slots), logprobs)
        };
        assert_eq!(gradients(Recompute::Always), gradients(Recompute::Never));
    }
}

#[test]
fn activations_are_recomputed_only_beyond_the_budget() {
    let ranks = Adapter::size(&adapted()).unwrap().ranks;
    let row = size::activation_bytes(&config(), ranks, 1);
    // Two layers of hidden 48, queries 64, keys 32, feed-forward 80, and seven adapters of rank 4 each.
    assert_eq!(row, 2 * (4 * 48 + 3 * 64 + 3 * 32 + 3 * 80 + 7 * 4) * 4);
    let budget = activation_budget(Some(100 * row));
    assert!(!Recompute::Auto.decide(50 * row, budget) && Recompute::Auto.decide(51 * row, budget));
    assert!(!Recompute::Auto.decide(2 << 30, activation_budget(None)));
}

#[test]
fn the_gradient_of_a_step_does_not_depend_on_its_microbatches() {
    let sequences = branching();
    let groups: Vec<Vec<&[u32]>> = sequences
        .chunks(2)
        .map(|group| group.iter().map(|(tokens, _)| tokens.as_slice()).collect())
        .collect();
    let gradients = |budget| {
        let cut = pack(&groups, budget).into_iter().map(|batch| {
            let of = batch.iter().map(|(group, member)| sequences[2 * group + member].clone());
            let (batch, indices) = Microbatch::new(&of.collect::<Vec<_>>());
            let mut weights = vec![0.0; batch.targets.len()];
            indices.iter().flatten().for_each(|target| weights[*target] -= 0.1);
            (batch, weights)
        });
        let (batches, weights): (Vec<_>, Vec<_>) = cut.unzip();
        let mut trainer = trainer(adapted(), MUON, 2);
        let (gradients, _) = trainer.gradients(&batches, &|batch, target, _| weights[batch][target]).unwrap();
        (batches.len(), values_of(&gradients.slots))
    };
    let (whole, expected) = gradients(1000);
    assert_eq!(whole, 1);
    for (budget, count) in [(80, 2), (60, 3), (40, 4)] {
        let (batches, found) = gradients(budget);
        assert_eq!(batches, count);
        for (slot, (a, b)) in expected.iter().zip(&found).enumerate() {
            assert!(close(a, b, 2e-5), "slot {slot} with {budget} tokens a microbatch");
        }
    }
}

#[test]
fn resumed_training_gives_the_same_bits() {
    let (beta1, beta2, weight_decay) = (0.9, 0.95, 0.1);
    let rules = [
        Rule::AdamW { rate: 1.0, beta1, beta2, weight_decay },
        Rule::AdamW8Bit { rate: 1.0, beta1, beta2, weight_decay },
        MUON,
    ];
    let trainer = |rule| {
        let adamw = rules[0];
        // Norms are vectors, which Muon does not support.
        let of = |p: &crate::model::Parameter<'_>| if p.tensor().dims().len() == 2 { rule } else { adamw };
        Trainer::new(decoder(), |all| all.iter().map(of).collect(), 2).unwrap()
    };
    let walk = |trainer: &mut Trainer, steps: std::ops::Range<u32>| {
        for step in steps {
            let (batch, _) = Microbatch::new(&branching());
            trainer.step(&[batch], &|_, _, p| 0.01 * p, 1e-2 / f64::from(step + 1), 1.0).unwrap();
        }
    };
    let bits = |trainer: &mut Trainer| {
        let of = trainer.decoder.trained().unwrap();
        of.iter().map(|p| ops::values(p.tensor()).unwrap().to_vec()).collect::<Vec<_>>()
    };
    for rule in rules {
        let mut straight = trainer(rule);
        walk(&mut straight, 0..5);
        let mut stopped = trainer(rule);
        walk(&mut stopped, 0..2);
        let bytes = safetensors::serialize(stopped.state().unwrap(), None).unwrap();
        let read = candle_core::safetensors::load_buffer(&bytes, &candle_core::Device::Cpu).unwrap();
        let mut resumed = trainer(rule);
        assert!(resumed.resume(&read.into_iter().collect()).unwrap());
        walk(&mut resumed, 2..5);
        assert_eq!(bits(&mut resumed), bits(&mut straight), "{rule:?}");
        assert!(!trainer(rule).resume(&Default::default()).unwrap());
    }
}

#[test]
fn dropout_masks_do_not_depend_on_microbatches_or_recomputation() {
    let gradients = |cut: usize, recompute, seed| {
        let mut trainer = trainer(adapted(), MUON, 2);
        (trainer.recompute, trainer.dropout) = (recompute, Some((0.3, seed)));
        // Two devices that share the frozen weights. Separately, no prediction is counted twice.
        let sequences = [branching()[0].clone(), branching()[2].clone()];
        let batches: Vec<_> = sequences.chunks(cut).map(|part| Microbatch::new(part).0).collect();
        let before = trainer.score(&batches).unwrap();
        let (gradients, logprobs) = trainer.gradients(&batches, &|_, _, p| 0.3 * p).unwrap();
        assert_eq!(trainer.score(&batches).unwrap(), before, "scoring drops nothing");
        assert_ne!(logprobs, before);
        values_of(&gradients.slots)
    };
    let whole = gradients(2, Recompute::Never, 5);
    assert_eq!(whole, gradients(2, Recompute::Always, 5));
    assert_ne!(whole, gradients(2, Recompute::Never, 6));
    for (slot, (a, b)) in whole.iter().zip(&gradients(1, Recompute::Never, 5)).enumerate() {
        assert!(close(a, b, 2e-5), "slot {slot}");
    }
}

#[test]
fn a_failing_microbatch_ends_the_step_with_its_error() {
    for threads in [1, 3] {
        let mut trainer = trainer(decoder(), MUON, threads);
        let sequence = |token| [(vec![1, 2, token], vec![true; 3])];
        let batches: Vec<_> =
            [3, 4, 9000, 5, 6, 7].map(|token| Microbatch::new(&sequence(token)).0).into_iter().collect();
        let error = trainer.gradients(&batches, &|_, _, _| 1.0).map(|_| ()).unwrap_err();
        assert!(matches!(error, EngineError::Model(crate::model::ModelError::Token { token: 9000, .. })));
    }
}

#[test]
fn training_raises_the_probability_of_its_targets() {
    let rule = Rule::AdamW { rate: 1.0, beta1: 0.9, beta2: 0.95, weight_decay: 0.0 };
    let mut trainer = trainer(decoder(), rule, 2);
    let (batch, _) = Microbatch::new(&branching());
    let mean = |report: &StepReport| report.logprobs[0].iter().sum::<f32>() / report.logprobs[0].len() as f32;
    let mut step = || trainer.step(std::slice::from_ref(&batch), &|_, _, _| -0.01, 3e-3, 1.0).unwrap();
    let first = mean(&step());
    let last = (0..30).map(|_| mean(&step())).last().unwrap();
    assert!(last > first + 2.0, "{first} → {last}");
}

#[tokio::test]
async fn an_invalid_prompt_is_refused_and_others_continue() {
    let sampler = Sampler::on_threads(decoder(), 1);
    let mut long = sampler.open(vec![tokens(200, 1).into()], WARM, 1);
    let mut foreign = sampler.open(vec![vec![1, 9000].into()], WARM, 1);
    let mut empty = sampler.open(vec![], WARM, 1);
    let mut fine = sampler.open(vec![tokens(5, 1).into()], WARM, 1);
    assert!(matches!(long.turn(&[], &[], 5).await, Err(EngineError::Context { .. })));
    assert!(matches!(foreign.turn(&[], &[], 5).await, Err(EngineError::Model(_))));
    assert!(matches!(empty.turn(&[], &[], 5).await, Err(EngineError::EmptyPrompt)));
    assert_eq!(fine.turn(&[], &[], 5).await.unwrap().tokens.len(), 5);
    let filled = fine.turn(&[1], &[], 500).await.unwrap();
    assert_eq!(filled.stop, Stop::Context);
}

#[tokio::test]
async fn logits_that_are_not_finite_end_the_turn() {
    let mut decoder = adapted();
    for parameter in &mut decoder.trained().unwrap() {
        let huge = (parameter.tensor().ones_like().unwrap() * 1e30).unwrap();
        parameter.set(huge);
    }
    let sampler = Sampler::on_threads(decoder, 1);
    for sampling in [WARM, Sampling::GREEDY] {
        let turn = sampler.open(vec![tokens(9, 1).into()], sampling, 1).turn(&[], &[], 3).await;
        assert!(matches!(turn, Err(EngineError::Logits)), "{sampling:?}");
    }
}
