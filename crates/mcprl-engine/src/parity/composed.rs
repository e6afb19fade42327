//! Tests the composed operations on CPU tensors: against Transformers and PyTorch, and against the kernels.
//! These tests do not cover candle's own kernels on a device.

use candle_core::{Device, Tensor};

use super::{check_gradients, check_logits, check_sampling, difference, fixtures, noise};
use crate::{
    Example, Recompute, Rule, Supervised, Trainer,
    model::{
        Adapter, AdapterConfig, Decoder, Gradients, Targets, kernels::Format, ops, ops::composed::force,
    },
};

#[test]
fn composed_logits_match_transformers_and_peft() {
    let _forced = force();
    check_logits(&Device::Cpu, 2e-5);
}

#[test]
fn composed_gradients_match_autograd() {
    let _forced = force();
    check_gradients(&Device::Cpu);
}

#[test]
fn logits_of_16_bit_weights_are_not_rounded_to_16_bits() {
    let _forced = force();
    // With and without an output projection of its own.
    for family in ["qwen3-tiny", "families/llama"] {
        for format in [Format::Bf16, Format::F16] {
            let decoder = Decoder::load_on(&fixtures().join(family), Some(format), &Device::Cpu).unwrap();
            let hidden = decoder.config.hidden;
            let x = (0..5 * hidden).map(|i| ((i * i) as f32 * 0.37).sin() * 3.0).collect::<Vec<_>>();
            let (normed, logits) =
                decoder.logits(&Tensor::from_vec(x, (5, hidden), &Device::Cpu).unwrap()).unwrap();
            let weight = decoder.head.as_ref().unwrap_or(&decoder.embedding).tensor().unwrap();
            let exact = normed.matmul(&weight.t().unwrap()).unwrap();
            let [logits, exact] = [logits, exact].map(|tensor| ops::read(&tensor).unwrap());
            assert!(difference(&logits, &exact) < 1e-6, "{family} {format:?}");
        }
    }
}

#[tokio::test]
async fn composed_sampling_and_scoring_agree() {
    let _forced = force();
    check_sampling(&Device::Cpu, 1e-5).await;
}

const FAMILIES: [&str; 13] = [
    "qwen3-tiny",
    "families/gemma3",
    "families/lfm2",
    "families/llama",
    "families/mistral",
    "families/mistral-window",
    "families/moe",
    "families/phi3",
    "families/phi3-window",
    "families/phi4-mini",
    "families/qwen2",
    "families/qwen3_5",
    "families/yarn",
];

/// A decoder of the family. Every linear layer has an adapter that changes the output.
fn adapted(family: &str, format: Option<Format>) -> Decoder {
    adapted_on(&[Device::Cpu], family, format)
}

/// The same, on a device or with its layers spread over several.
fn adapted_on(devices: &[Device], family: &str, format: Option<Format>) -> Decoder {
    let mut decoder = Decoder::load_across(&fixtures().join(family), format, devices.to_vec()).unwrap();
    let config = AdapterConfig { targets: Targets::AllLinear, ..AdapterConfig::new(4, 8.0) };
    Adapter::fresh(&mut decoder, &config, 5).unwrap();
    for (index, parameter) in decoder.trained().unwrap().iter_mut().enumerate() {
        let count = parameter.tensor().elem_count();
        let values: Vec<f32> = (0..count).map(|i| ((i * 31 + index * 7) as f32 * 0.37).sin() * 0.1).collect();
        let tensor = parameter.tensor();
        let tensor = Tensor::from_vec(values, tensor.shape(), tensor.device()).unwrap();
        parameter.set(tensor);
    }
    decoder
}

fn tokens(count: usize, seed: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * i * 7 + i * 13 + seed * 29) % 61) as u32).collect()
}

/// Conversations that branch twice, with rows over several attention blocks.
fn examples() -> Vec<Example> {
    let of = |parts: &[Vec<u32>]| {
        let tokens = parts.concat();
        let marked = (0..tokens.len()).map(|at| at >= 7 && at % 5 != 0).collect();
        (tokens, marked)
    };
    let (stem, middle) = (tokens(7, 0), tokens(11, 4));
    let branches = [tokens(30, 1), tokens(5, 2), tokens(17, 3)];
    let mut all: Vec<Example> =
        branches.iter().map(|end| of(&[stem.clone(), middle.clone(), end.clone()])).collect();
    all.push(of(&[stem, tokens(20, 6)]));
    all.push(all[0].clone());
    all
}

/// Gradients and log-probabilities of one step, and the parameters after several steps.
fn steps(decoder: Decoder, rule: Rule) -> (Vec<Vec<f32>>, Vec<f32>, Vec<Vec<f32>>) {
    let mut trainer = Trainer::new(decoder, |parameters| vec![rule; parameters.len()], 1).unwrap();
    trainer.recompute = Recompute::Always;
    let examples = examples();
    let supervised = Supervised::packed(&examples.iter().collect::<Vec<_>>(), 2, usize::MAX);
    let (gradients, logprobs) =
        trainer.gradients(&supervised.batches, &|_, target, p| p - target as f32 * 0.1).unwrap();
    for _ in 0..3 {
        supervised.step(&mut trainer, 1e-2, 1.0).unwrap();
    }
    let parameters =
        trainer.decoder.trained().unwrap().iter().map(|p| ops::read(p.tensor()).unwrap()).collect();
    let gradients = gradients.slots.iter().map(|slot| ops::read(slot).unwrap()).collect();
    (gradients, logprobs.concat(), parameters)
}

fn assert_close(what: &str, ours: &[Vec<f32>], theirs: &[Vec<f32>], worst: f32) {
    assert_eq!(ours.len(), theirs.len());
    for (slot, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        let found = difference(ours, theirs);
        assert!(found < worst, "{what}, {slot}: {found:e}");
    }
}

const ADAMW: Rule = Rule::AdamW { rate: 1.0, beta1: 0.9, beta2: 0.99, weight_decay: 0.1 };

#[test]
fn composed_training_of_adapters_matches_the_kernels() {
    for family in FAMILIES {
        let kernels = steps(adapted(family, Some(Format::F32)), ADAMW);
        let _forced = force();
        let composed = steps(adapted(family, Some(Format::F32)), ADAMW);
        let noise = noise(family);
        assert_close(&format!("{family}, gradients"), &composed.0, &kernels.0, 1e-4 * noise);
        assert_close(&format!("{family}, log-probabilities"), &[composed.1], &[kernels.1], 1e-5 * noise);
        // An AdamW step amplifies the noise of a vanishing gradient to full size, so the bound for parameters
        // is looser.
        assert_close(&format!("{family}, parameters"), &composed.2, &kernels.2, 2e-2 * noise);
    }
}

#[test]
fn composed_products_round_to_16_bits_as_the_kernels_do() {
    for (family, format) in [
        ("qwen3-tiny", Format::Bf16),
        ("families/gemma3", Format::Bf16),
        ("families/qwen2", Format::F16),
        ("families/llama", Format::Nf4),
    ] {
        let kernels = steps(adapted(family, Some(format)), ADAMW);
        let _forced = force();
        let composed = steps(adapted(family, Some(format)), ADAMW);
        // Product results are rounded too, while the kernels keep 32-bit sums.
        assert_close(family, &[composed.1], &[kernels.1], 2e-2);
        assert_close(family, &composed.0, &kernels.0, 0.1);
    }
}

#[test]
fn composed_training_of_a_whole_model_matches_the_kernels() {
    let families = [
        "qwen3-tiny",
        "families/gemma3",
        "families/lfm2",
        "families/moe",
        "families/qwen2",
        "families/qwen3_5",
    ];
    for family in families {
        let whole = || Decoder::load_on(&fixtures().join(family), None, &Device::Cpu).unwrap();
        let kernels = steps(whole(), ADAMW);
        let _forced = force();
        let composed = steps(whole(), ADAMW);
        assert_close(family, &composed.0, &kernels.0, 1e-4 * noise(family));
        assert_close(family, &composed.2, &kernels.2, 2e-2 * noise(family));
    }
}

#[test]
fn composed_dropout_matches_the_kernels() {
    // The mask depends on the bits of the input. One linear layer gets the same input on both paths.
    let decoder = || {
        let mut decoder = adapted("qwen3-tiny", Some(Format::F32));
        Adapter::set_dropout(&mut decoder, Some((0.4, 3)));
        decoder
    };
    let x = Tensor::from_vec((0..5 * 64).map(|i| (i as f32 * 0.7).sin()).collect(), (5, 64), &Device::Cpu)
        .unwrap();
    let run = |decoder: Decoder| {
        let linear = &decoder.layers[0].linears[0];
        let (y, low) = linear.forward(&x, None).unwrap();
        let dx = x.zeros_like().unwrap();
        let slots = [&linear.lora.as_ref().unwrap().a, &linear.lora.as_ref().unwrap().b];
        let slots = slots.map(|matrix| matrix.tensor().unwrap().zeros_like().unwrap()).to_vec();
        let gradients = Gradients { slots };
        linear.backward(&x, low.as_ref(), &y, &dx, &gradients).unwrap();
        let mut found = vec![ops::read(&y).unwrap(), ops::read(&dx).unwrap()];
        found.extend(gradients.slots.iter().map(|slot| ops::read(slot).unwrap()));
        found
    };
    let kernels = run(decoder());
    let _forced = force();
    assert_close("dropout", &run(decoder()), &kernels, 1e-5);
}

#[test]
fn optimizers_without_a_composed_step_match_the_kernels() {
    let (beta1, beta2, weight_decay) = (0.9, 0.95, 0.0);
    let coded = Rule::AdamW8Bit { rate: 1.0, beta1, beta2, weight_decay };
    for rule in [coded, Rule::Muon { rate: 1.0, momentum: 0.9 }] {
        let kernels = steps(adapted("qwen3-tiny", Some(Format::F32)), rule);
        let _forced = force();
        let composed = steps(adapted("qwen3-tiny", Some(Format::F32)), rule);
        assert_close("parameters", &composed.2, &kernels.2, 2e-2);
    }
}

#[test]
fn training_resumes_from_moments_on_the_device() {
    let _forced = force();
    let examples = examples();
    let supervised = Supervised::packed(&examples.iter().collect::<Vec<_>>(), 1, usize::MAX);
    let trainer = || {
        let decoder = adapted("qwen3-tiny", Some(Format::F32));
        Trainer::new(decoder, |parameters| vec![ADAMW; parameters.len()], 1).unwrap()
    };
    let (mut whole, mut resumed) = (trainer(), trainer());
    let mut halfway = Default::default();
    for step in 0..4 {
        supervised.step(&mut whole, 1e-2, 1.0).unwrap();
        if step == 1 {
            halfway = whole.state().unwrap();
        }
    }
    assert!(resumed.resume(&halfway).unwrap());
    for _ in 0..2 {
        supervised.step(&mut resumed, 1e-2, 1.0).unwrap();
    }
    let bits = |trainer: &mut Trainer| -> Vec<Vec<f32>> {
        trainer.decoder.trained().unwrap().iter().map(|p| ops::read(p.tensor()).unwrap()).collect()
    };
    assert_eq!(bits(&mut resumed), bits(&mut whole));
}

/// The same on the first NVIDIA device, with wider bounds: `cargo test --features cuda -- --ignored
/// on_a_device`.
mod on_a_device {
    use super::*;
    use crate::model::ops::composed::Forced;

    /// With `MCPRL_KERNELS=composed`, the CPU replaces the device while the guard exists.
    fn device() -> (Device, Option<Forced>) {
        match std::env::var("MCPRL_KERNELS").as_deref() {
            Ok("composed") => (Device::Cpu, Some(force())),
            _ => (crate::devices::open(0).unwrap(), None),
        }
    }

    #[test]
    #[ignore = "needs a build with CUDA, and an NVIDIA device"]
    fn logits_and_gradients_match_transformers_and_autograd() {
        let (device, _forced) = device();
        check_logits(&device, 1e-4);
        check_gradients(&device);
    }

    #[tokio::test]
    #[ignore = "needs a build with CUDA, and an NVIDIA device"]
    async fn sampling_and_scoring_agree() {
        let (device, _forced) = device();
        check_sampling(&device, 1e-4).await;
    }

    #[test]
    #[ignore = "needs a build with CUDA, and an NVIDIA device"]
    fn training_matches_the_kernels() {
        for family in FAMILIES {
            for (format, worst) in [(Format::F32, 1e-3), (Format::Bf16, 0.1), (Format::Nf4, 0.1)] {
                // In 16 bits a token near a tie may choose another expert, and short keys have another direction.
                let is_sensitive = ["families/moe", "families/qwen3_5"].contains(&family);
                if is_sensitive && format != Format::F32 {
                    continue;
                }
                let kernels = steps(adapted(family, Some(format)), ADAMW);
                let (device, _forced) = device();
                let found = steps(adapted_on(&[device], family, Some(format)), ADAMW);
                let family = format!("{family} in {format:?}");
                assert_close(&family, &found.0, &kernels.0, worst);
                assert_close(&family, &[found.1], &[kernels.1], worst);
            }
        }
    }

    /// Two devices where there is one: the CPU is the second.
    #[test]
    #[ignore = "needs a build with CUDA, and an NVIDIA device"]
    fn layers_spread_over_the_device_and_the_cpu_compute_the_same() {
        let (device, _forced) = device();
        for family in FAMILIES {
            let whole = steps(adapted_on(std::slice::from_ref(&device), family, Some(Format::F32)), ADAMW);
            let devices = [device.clone(), Device::Cpu];
            let spread = steps(adapted_on(&devices, family, Some(Format::F32)), ADAMW);
            assert_close(family, &spread.0, &whole.0, 1e-3);
            assert_close(family, &[spread.1], &[whole.1], 1e-3);
        }
    }
}
