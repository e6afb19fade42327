//! Tests several CPU devices: the same bytes as one device. Also tests the path of other devices, on CPU
//! tensors.

use super::*;
use crate::model::{Parameter, ops::composed};

const ADAMW: Rule = Rule::AdamW { rate: 1.0, beta1: 0.9, beta2: 0.95, weight_decay: 0.1 };

fn rules(of: Rule) -> impl Fn(&[Parameter<'_>]) -> Vec<Rule> {
    // Norms are vectors, which Muon does not support.
    let rule = move |p: &Parameter<'_>| if p.tensor().dims().len() == 2 { of } else { ADAMW };
    move |parameters| parameters.iter().map(rule).collect()
}

/// Seven microbatches of different sizes.
fn batches() -> Vec<Microbatch> {
    let sequences = branching();
    let cuts = [0..1, 1..2, 2..3, 0..2, 1..4, 3..4, 2..4];
    cuts.map(|cut| Microbatch::new(&sequences[cut]).0).into_iter().collect()
}

fn walk(trainer: &mut Trainer, steps: std::ops::Range<u32>) -> Vec<StepReport> {
    let step = |step| {
        let dloss_dlogp = |batch: usize, _, p: f32| 0.01 * p - 0.02 * batch as f32;
        trainer.step(&batches(), &dloss_dlogp, 1e-2 / f64::from(step + 1), 1.0).unwrap()
    };
    steps.map(step).collect()
}

fn parameters_of(decoder: &mut Decoder) -> Vec<Vec<f32>> {
    decoder.trained().unwrap().iter().map(|p| ops::read(p.tensor()).unwrap()).collect()
}

fn state(trainer: &mut Trainer) -> Vec<u8> {
    safetensors::serialize(trainer.state().unwrap(), None).unwrap()
}

/// A decoder whose weights exceed the CPU caches, so that threads share every operation.
fn large() -> Decoder {
    let config = ModelConfig { vocabulary: 90_000, tied: false, ..config() };
    let mut decoder = Decoder::random(config, Init { seed: 3, deviation: 0.1 }).unwrap();
    decoder.freeze(Format::F32).unwrap();
    Adapter::fresh(&mut decoder, &AdapterConfig::new(4, 8.0), 5).unwrap();
    decoder
}

#[tokio::test]
async fn samples_are_the_same_on_any_number_of_devices() {
    for make in [decoder, adapted, large] {
        let on = |devices| Sampler::across(make(), &DeviceSet::cpu(devices, 4), None).unwrap();
        let expected = play(&on(1), 10).await;
        assert_eq!(play(&on(2), 10).await, expected);
        assert_eq!(play(&on(3), 10).await, expected);
    }
}

#[tokio::test]
async fn prompts_are_distributed_over_the_devices() {
    let sampler = Sampler::across(decoder(), &DeviceSet::cpu(3, 3), None).unwrap();
    let workers: Vec<usize> = (0..6).map(|seed| sampler.worker_of(&[tokens(8, seed).into()])).collect();
    assert_eq!(workers, [0, 1, 2, 0, 1, 2]);
    assert_eq!(sampler.worker_of(&[tokens(8, 4).into()]), 1, "a known prompt keeps its worker");
}

#[test]
fn training_gives_the_same_bytes_on_any_number_of_devices() {
    let eight = Rule::AdamW8Bit { rate: 1.0, beta1: 0.9, beta2: 0.95, weight_decay: 0.1 };
    let muon = Rule::Muon { rate: 1.0, momentum: 0.9 };
    // The embedding of the whole decoder has 8-bit moments: it has 4,320 values.
    for make in [decoder, adapted] {
        for (rule, dropout) in [(ADAMW, None), (eight, Some((0.3, 9))), (muon, None)] {
            let trained = |devices| {
                let mut trainer = Trainer::across(make(), rules(rule), &DeviceSet::cpu(devices, 4)).unwrap();
                trainer.dropout = dropout;
                let logprobs: Vec<_> =
                    walk(&mut trainer, 0..3).into_iter().map(|report| report.logprobs).collect();
                (state(&mut trainer), logprobs, trainer.score(&batches()).unwrap())
            };
            let expected = trained(1);
            assert!(trained(2) == expected && trained(3) == expected, "{rule:?}");
        }
    }
}

#[test]
fn training_a_large_model_gives_the_same_bytes_on_any_number_of_devices() {
    let trained = |devices| {
        let mut trainer = Trainer::across(large(), rules(ADAMW), &DeviceSet::cpu(devices, 4)).unwrap();
        let dloss_dlogp = |_, _, p: f32| 0.01 * p;
        trainer.step(&batches()[..3], &dloss_dlogp, 1e-2, 1.0).unwrap();
        state(&mut trainer)
    };
    assert!(trained(1) == trained(2));
}

#[test]
fn training_resumes_with_the_same_bytes_on_another_number_of_devices() {
    for make in [decoder, adapted] {
        let on = |devices| Trainer::across(make(), rules(ADAMW), &DeviceSet::cpu(devices, 3)).unwrap();
        let mut straight = on(1);
        walk(&mut straight, 0..4);
        let mut stopped = on(3);
        walk(&mut stopped, 0..2);
        let kept = candle_core::safetensors::load_buffer(&state(&mut stopped), &candle_core::Device::Cpu);
        let mut resumed = on(2);
        assert!(resumed.resume(&kept.unwrap().into_iter().collect()).unwrap());
        walk(&mut resumed, 2..4);
        assert!(state(&mut resumed) == state(&mut straight));
    }
}

#[test]
fn replicas_have_the_same_parameters_after_every_step() {
    for forced in [false, true] {
        let _forced = forced.then(composed::force);
        for make in [decoder, adapted] {
            let mut trainer = Trainer::across(make(), rules(ADAMW), &DeviceSet::cpu(3, 3)).unwrap();
            let before = parameters_of(&mut trainer.decoder);
            walk(&mut trainer, 0..2);
            let first = parameters_of(&mut trainer.decoder);
            assert_ne!(before, first);
            for replica in &mut trainer.group.others {
                assert_eq!(parameters_of(&mut replica.decoder), first);
            }
        }
    }
}

#[test]
fn replicas_on_the_cpu_share_frozen_weights() {
    let decoder = large();
    let replica = decoder.replica(&candle_core::Device::Cpu.into()).unwrap();
    assert!(decoder.embedding.shares_memory_with(&replica.embedding));
    let adapter = |decoder: &Decoder| decoder.layers[0].linears[0].lora.as_ref().unwrap().a.tensor().unwrap();
    let (own, other) = (adapter(&decoder), adapter(&replica));
    ops::update(&own, |values| values.fill(7.0)).unwrap();
    assert!(ops::values(&other).unwrap().iter().all(|value| *value != 7.0));
}

#[test]
fn gradients_summed_per_device_match_those_of_one_device() {
    let _forced = composed::force();
    for (make, dropout) in [(decoder as fn() -> Decoder, None), (adapted, Some((0.3, 9)))] {
        let gradients = |devices| {
            let mut trainer = Trainer::across(make(), rules(ADAMW), &DeviceSet::cpu(devices, 1)).unwrap();
            trainer.dropout = dropout;
            let dloss_dlogp = |batch: usize, _, p: f32| 0.1 * p - 0.2 * batch as f32;
            let (gradients, logprobs) = trainer.gradients(&batches(), &dloss_dlogp).unwrap();
            let slots: Vec<_> = gradients.slots.iter().map(|slot| ops::read(slot).unwrap()).collect();
            (slots, logprobs)
        };
        let (expected, logprobs) = gradients(1);
        for devices in [2, 3, 9] {
            let (found, of) = gradients(devices);
            assert_eq!(of, logprobs);
            for (slot, (a, b)) in expected.iter().zip(&found).enumerate() {
                assert!(close(a, b, 2e-5), "slot {slot} on {devices} devices");
            }
        }
    }
}

#[test]
fn a_microbatch_that_fails_on_one_device_ends_the_step_with_its_error() {
    for forced in [false, true] {
        let _forced = forced.then(composed::force);
        let mut trainer = Trainer::across(decoder(), rules(ADAMW), &DeviceSet::cpu(2, 2)).unwrap();
        let sequence = |token| [(vec![1, 2, token], vec![true; 3])];
        let batches: Vec<_> =
            [3, 4, 9000, 5].map(|token| Microbatch::new(&sequence(token)).0).into_iter().collect();
        let error = trainer.gradients(&batches, &|_, _, _| 1.0).map(|_| ()).unwrap_err();
        assert!(matches!(error, EngineError::Model(crate::model::ModelError::Token { token: 9000, .. })));
    }
}
