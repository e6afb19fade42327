//! Tests a decoder whose layers are spread over several CPU devices: the same bytes as on one. Also tests the path of other
//! devices, on CPU tensors, which all have one device: that rows are moved where they should be is not tested here.

use candle_core::Device;

use super::*;
use crate::model::{Parameter, Placement, ops::composed};

const ADAMW: Rule = Rule::AdamW { rate: 1.0, beta1: 0.9, beta2: 0.95, weight_decay: 0.1 };

/// Small decoders of every kind of layer.
const MAKES: [fn() -> Decoder; 4] = [decoder, adapted, recurrence::adapted, recurrence::convolution];

fn over(devices: usize) -> DeviceSet {
    DeviceSet { split: SplitMode::Layers, ..DeviceSet::cpu(devices, 4) }
}

fn spread(decoder: &Decoder, devices: usize) -> Decoder {
    let placement = Placement::across(&decoder.config, Format::F32, vec![Device::Cpu; devices]);
    decoder.replica(&placement).unwrap()
}

fn rules(parameters: &[Parameter<'_>]) -> Vec<Rule> {
    vec![ADAMW; parameters.len()]
}

fn trainer_over(decoder: &Decoder, devices: usize) -> Trainer {
    Trainer::across(spread(decoder, devices), rules, &over(devices)).unwrap()
}

/// Five microbatches of different sizes.
fn batches() -> Vec<Microbatch> {
    let sequences = branching();
    [0..1, 1..2, 0..2, 1..4, 2..4].map(|cut| Microbatch::new(&sequences[cut]).0).into_iter().collect()
}

fn walk(trainer: &mut Trainer, steps: usize) -> Vec<Vec<Vec<f32>>> {
    let dloss_dlogp = |batch: usize, _, p: f32| 0.01 * p - 0.02 * batch as f32;
    let mut step = || trainer.step(&batches(), &dloss_dlogp, 1e-2, 1.0).unwrap().logprobs;
    (0..steps).map(|_| step()).collect()
}

fn state(trainer: &mut Trainer) -> Vec<u8> {
    safetensors::serialize(trainer.state().unwrap(), None).unwrap()
}

#[test]
fn layers_are_spread_over_all_devices() {
    let decoder = spread(&decoder(), 2);
    let devices: Vec<usize> =
        (0..decoder.config.layers).map(|layer| decoder.placement().index(layer)).collect();
    assert!(devices.is_sorted() && devices.contains(&0) && devices.contains(&1), "{devices:?}");
}

#[tokio::test]
async fn samples_are_the_same_however_layers_are_spread() {
    for make in MAKES {
        let expected = play(&Sampler::on_threads(make(), 1), 8).await;
        for devices in [2, 3] {
            let sampler = Sampler::across(spread(&make(), devices), &over(devices), None).unwrap();
            assert_eq!(play(&sampler, 8).await, expected, "{devices} devices");
        }
    }
}

#[test]
fn training_gives_the_same_bytes_however_layers_are_spread() {
    for make in MAKES {
        let trained = |devices| {
            let mut trainer = trainer_over(&make(), devices);
            trainer.dropout = Some((0.3, 9));
            let logprobs = walk(&mut trainer, 3);
            (state(&mut trainer), logprobs, trainer.score(&batches()).unwrap())
        };
        let expected = trained(1);
        assert!(trained(2) == expected && trained(3) == expected);
    }
}

#[test]
fn training_resumes_with_the_same_bytes_however_layers_are_spread() {
    let mut straight = trainer_over(&adapted(), 1);
    walk(&mut straight, 4);
    let mut stopped = trainer_over(&adapted(), 3);
    walk(&mut stopped, 2);
    let kept = candle_core::safetensors::load_buffer(&state(&mut stopped), &Device::Cpu).unwrap();
    let mut resumed = Trainer::across(adapted(), rules, &DeviceSet::cpu(2, 2)).unwrap();
    assert!(resumed.resume(&kept.into_iter().collect()).unwrap());
    walk(&mut resumed, 2);
    assert!(state(&mut resumed) == state(&mut straight));
}

#[test]
fn as_many_microbatches_as_devices_run_at_once_and_parameters_are_there_once() {
    let _forced = composed::force();
    let trainer = trainer_over(&adapted(), 3);
    assert_eq!((trainer.workers(), trainer.devices(), trainer.group.others.len()), (3, 3, 0));
}

#[test]
fn gradients_summed_by_several_threads_match_those_of_one_device() {
    let _forced = composed::force();
    for make in [decoder as fn() -> Decoder, adapted] {
        let gradients = |devices| {
            let mut trainer = trainer_over(&make(), devices);
            let dloss_dlogp = |batch: usize, _, p: f32| 0.1 * p - 0.2 * batch as f32;
            let (gradients, logprobs) = trainer.gradients(&batches(), &dloss_dlogp).unwrap();
            let slots: Vec<_> = gradients.slots.iter().map(|slot| ops::read(slot).unwrap()).collect();
            (slots, logprobs)
        };
        let (expected, logprobs) = gradients(1);
        for devices in [2, 3] {
            let (found, of) = gradients(devices);
            assert_eq!(of, logprobs);
            for (slot, (a, b)) in expected.iter().zip(&found).enumerate() {
                assert!(close(a, b, 2e-5), "slot {slot} on {devices} devices");
            }
        }
    }
}
