//! Tests the engine's guarantees on decoders with linear attention, near the boundaries of its chunks, and with convolutions.

use std::sync::atomic::Ordering;

use super::*;
use crate::model::{Design, Family, LayerKind, kernels::DeltaHeads, ops::composed};

pub(super) fn config() -> ModelConfig {
    let design = Design {
        layers: vec![LayerKind::LinearAttention, LayerKind::LinearAttention, LayerKind::FullAttention],
        delta: Some(DeltaHeads { key: 2, value: 4, key_dim: 8, value_dim: 8, window: 4 }),
        rotary: Some(4),
        ..Design::of(Family::Qwen3_5)
    };
    ModelConfig { layers: 3, context: 512, design, ..super::config() }
}

fn convolution_config() -> ModelConfig {
    let design = Design {
        layers: vec![LayerKind::Conv, LayerKind::FullAttention, LayerKind::Conv],
        convolution: Some(3),
        ..Design::of(Family::Lfm2)
    };
    ModelConfig { layers: 3, context: 512, design, ..super::config() }
}

pub(super) fn decoder() -> Decoder {
    Decoder::random(config(), Init { seed: 3, deviation: 0.15 }).unwrap()
}

pub(super) fn convolution() -> Decoder {
    Decoder::random(convolution_config(), Init { seed: 3, deviation: 0.15 }).unwrap()
}

pub(super) fn adapted() -> Decoder {
    changed(decoder())
}

fn frozen(mut decoder: Decoder, format: Format) -> Decoder {
    decoder.freeze(format).unwrap();
    changed(decoder)
}

/// Decoders with adapters, of both kinds, in f32 and in bf16.
const ADAPTED: [fn() -> Decoder; 4] = [
    adapted,
    || frozen(decoder(), Format::Bf16),
    || changed(convolution()),
    || frozen(convolution(), Format::Bf16),
];

/// Sequences that branch after 2, 63, 64, 65 and 100 tokens.
fn branching() -> Vec<(Vec<u32>, Vec<bool>)> {
    let stem = tokens(140, 0);
    let branch = |shared: usize, own: usize| {
        let tokens = [&stem[..shared], &tokens(own, shared)].concat();
        let trained = (0..tokens.len()).map(|at| at % 5 != 0).collect();
        (tokens, trained)
    };
    vec![branch(140, 0), branch(100, 40), branch(65, 3), branch(64, 70), branch(63, 2), branch(2, 62)]
}

#[test]
fn a_shared_prefix_gives_the_gradients_of_the_unshared_sequences_wherever_it_ends() {
    let (sequences, weights) = (branching(), [1.0, -0.5, 0.25, 2.0, 1.5, -1.0]);
    // Gradients of decays are sums of terms that cancel. In bf16, products round the gradients of shared rows, which are sums here.
    let makes: [(fn() -> Decoder, f32); 2] = [(decoder, 5e-4), (convolution, 5e-5)];
    for (make, tolerance) in makes.into_iter().chain(ADAPTED.into_iter().zip([5e-4, 0.1, 5e-5, 0.1])) {
        check_shared_prefixes(make, &sequences, &weights, tolerance);
    }
}

#[tokio::test]
async fn a_prompt_cut_anywhere_is_sampled_with_the_same_bits() {
    let prompt = tokens(131, 1);
    for make in ADAPTED {
        let sampler = Sampler::on_threads(make(), 1);
        let whole = sampler.open(vec![prompt.clone().into()], WARM, 1).turn(&[], &[], 5).await.unwrap();
        for cut in 1..prompt.len() {
            let (first, second) = prompt.split_at(cut);
            let pieces = vec![first.into(), second.into()];
            let found = sampler.open(pieces, WARM, 1).turn(&[], &[], 5).await.unwrap();
            assert_eq!(found, whole, "cut at {cut}");
        }
    }
}

/// On a device, rows depend on the rows they are computed with, within rounding.
#[tokio::test]
async fn composed_sampling_of_a_prompt_cut_anywhere_agrees_with_the_kernels() {
    let prompt = tokens(131, 1);
    for make in [adapted, || changed(convolution())] {
        let turn = async |cuts: &[usize]| {
            let bounds: Vec<usize> = [&[0], cuts, &[prompt.len()]].concat();
            let pieces = bounds.windows(2).map(|cut| prompt[cut[0]..cut[1]].into()).collect();
            Sampler::on_threads(make(), 1).open(pieces, WARM, 1).turn(&[], &[], 70).await.unwrap()
        };
        let kernels = turn(&[]).await;
        let _forced = composed::force();
        for cuts in [&[][..], &[1], &[2, 3], &[1, 63], &[64], &[65, 66], &[63, 64, 65, 129], &[130]] {
            let found = turn(cuts).await;
            assert_eq!(found.tokens, kernels.tokens, "{cuts:?}");
            assert!(close(&found.logprobs, &kernels.logprobs, 1e-4), "{cuts:?}");
        }
    }
}

#[tokio::test]
async fn composed_turns_of_many_conversations_are_scored_as_sampled_and_survive_eviction() {
    let _forced = composed::force();
    for make in [adapted, || changed(convolution())] {
        let (expected, none, most) = talk(make(), usize::MAX).await;
        let (found, recomputed, bounded) = talk(make(), most * 6 / 10).await;
        assert!(none == 0 && recomputed > 0 && bounded <= most * 6 / 10, "{recomputed} {bounded}");
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found.tokens, expected.tokens);
            assert!(close(&found.logprobs, &expected.logprobs, 1e-4));
        }
        let (sequences, drawn) = scored_episodes(make()).await;
        let (_, scored) = gradients_of(make(), &sequences, &[1.0; 6]);
        for (scored, drawn) in scored.iter().zip(&drawn) {
            assert!(close(scored, drawn, 1e-4));
        }
    }
}

/// Turns of several conversations with a common prompt, and the sampler's counters.
async fn talk(decoder: Decoder, bound: usize) -> (Vec<Sampled>, u64, usize) {
    let sampler = Sampler::bounded(decoder, 1, bound);
    let prompt: Arc<[u32]> = tokens(70, 1).into();
    let open = |seed: usize| sampler.open(vec![prompt.clone(), tokens(9, seed).into()], WARM, seed as u64);
    let mut open: Vec<_> = (0..4).map(open).collect();
    let mut replies = Vec::new();
    for _ in 0..3 {
        for sequence in &mut open {
            replies.push(sequence.turn(&[3, 4], &[], 25).await.unwrap());
        }
    }
    let usage = sampler.usage();
    let recomputed = usage.recomputed.load(Ordering::Relaxed);
    (replies, recomputed, usage.max_cached.load(Ordering::Relaxed) as usize)
}

#[tokio::test]
async fn an_evicted_state_is_recomputed_with_the_same_bits() {
    for make in ADAPTED {
        let (expected, none, most) = talk(make(), usize::MAX).await;
        let (found, recomputed, bounded) = talk(make(), most * 6 / 10).await;
        assert_eq!(found, expected);
        assert!(none == 0 && recomputed > 0 && bounded <= most * 6 / 10, "{recomputed} {bounded}");
    }
}

/// Conversations at once: their tokens, which of them were sampled, and the log-probabilities of these.
async fn scored_episodes(decoder: Decoder) -> (Vec<(Vec<u32>, Vec<bool>)>, Vec<Vec<f32>>) {
    let sampler = Sampler::on_threads(decoder, 2);
    let prompt: Arc<[u32]> = tokens(61, 1).into();
    let episodes = join_all((0..6).map(|index| {
        let task = tokens(1 + index, index);
        let mut sequence = sampler.open(vec![prompt.clone(), task.clone().into()], WARM, index as u64);
        let start = [&prompt[..], &task].concat();
        async move {
            let first = sequence.turn(&[], &[], 9).await.unwrap();
            let second = sequence.turn(&[7, 8, 9], &[], 70).await.unwrap();
            let tokens = [&start[..], &first.tokens, &[7, 8, 9], &second.tokens].concat();
            let given = start.len() + first.tokens.len()..start.len() + first.tokens.len() + 3;
            let sampled = (0..tokens.len()).map(|at| at >= start.len() && !given.contains(&at));
            let sampled: Vec<bool> = sampled.collect();
            ((tokens, sampled), [first.logprobs, second.logprobs].concat())
        }
    }))
    .await;
    episodes.into_iter().unzip()
}

#[tokio::test]
async fn turns_at_once_and_one_after_another_are_scored_with_the_sampled_bits() {
    for make in
        ADAPTED.into_iter().chain([|| frozen(decoder(), Format::Nf4), || frozen(convolution(), Format::Nf4)])
    {
        let (sequences, drawn) = scored_episodes(make()).await;
        let (_, scored) = gradients_of(make(), &sequences, &[1.0; 6]);
        assert_eq!(scored, drawn);
    }
}

#[tokio::test]
async fn the_estimate_of_keys_values_and_states_is_an_upper_bound() {
    for make in [decoder, convolution] {
        let (most, load) = cache::eight_conversations(make()).await;
        let estimate = Footprint::sampling(&make().config, Format::F32, &load);
        assert!(most <= estimate.cache && estimate.cache < 4 * most, "{most} {}", estimate.cache);
    }
}

#[test]
fn estimated_weights_and_adapters_are_those_in_memory() {
    let values = |decoder: &mut Decoder| -> usize {
        decoder.trained().unwrap().iter().map(|p| p.tensor().elem_count()).sum()
    };
    for make in [decoder, convolution] {
        let config = make().config;
        for format in [Format::F32, Format::Bf16, Format::Nf4] {
            let mut decoder = make();
            decoder.freeze(format).unwrap();
            assert_eq!(size::weight_bytes(&config, format), decoder.bytes(), "{format:?}");
        }
        assert_eq!(size::all_weights(&config).values, values(&mut make()));
        assert_eq!(config.weights(), values(&mut make()));
        for targets in [&["all-linear"][..], &["out_proj", "q_proj"], &[r"regex:.*layers\.[12]\..*_proj"]] {
            let targets =
                crate::model::Targets::from_names(&targets.iter().map(|t| (*t).into()).collect::<Vec<_>>());
            targets.check(&config).unwrap();
            let adapter = AdapterConfig { targets, ..AdapterConfig::new(4, 8.0) };
            let mut decoder = make();
            Adapter::fresh(&mut decoder, &adapter, 1).unwrap();
            let size = adapter.size(&config).unwrap();
            assert_eq!(Some(size), Adapter::size(&decoder));
            assert_eq!(size.values, values(&mut decoder));
        }
    }
}

#[test]
fn a_model_and_its_adapter_are_saved_and_loaded() {
    let bits = |decoder: &Decoder| -> Vec<Vec<f32>> {
        decoder.tensors().unwrap().iter().map(|(_, tensor)| ops::values(tensor).unwrap().to_vec()).collect()
    };
    let of = |decoder: &mut Decoder| {
        let of = decoder.trained().unwrap();
        of.iter().map(|p| ops::values(p.tensor()).unwrap().to_vec()).collect::<Vec<_>>()
    };
    for mut first in [adapted(), changed(convolution())] {
        let folder = tempfile::tempdir().unwrap();
        first.save(folder.path()).unwrap();
        Adapter::save(&first, &AdapterConfig::new(4, 8.0), "base", folder.path()).unwrap();
        let mut again = Decoder::load(folder.path()).unwrap();
        assert_eq!((&again.config, bits(&again)), (&first.config, bits(&first)));
        Adapter::load(&mut again, folder.path()).unwrap();
        assert_eq!(of(&mut again), of(&mut first));
    }
}
