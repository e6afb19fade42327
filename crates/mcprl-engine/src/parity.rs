//! Tests the decoder against Transformers, PEFT and PyTorch's autograd. `tests/reference/README.md` describes
//! the files.

use std::{collections::HashMap, path::PathBuf};

use candle_core::{DType, Device, Tensor};
use futures::future::join_all;

mod composed;
mod rounded;

use super::{DeviceSet, Microbatch, Rule, Sampler, Sampling, Trainer, score_across};
use crate::model::{Adapter, AdapterConfig, Decoder, Gradients, Targets, kernels::Format, merge, ops};

fn fixtures() -> PathBuf {
    // Read at run time, because the tests may run on another machine.
    let root = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    PathBuf::from(root).join("../../tests/reference/fixtures")
}

/// The reference files of a family: model, adapter, numbers.
struct Case {
    name: &'static str,
    model: PathBuf,
    adapter: PathBuf,
    numbers: PathBuf,
}

fn cases() -> Vec<Case> {
    let of = |name| {
        let folder = fixtures().join("families").join(name);
        Case {
            name,
            adapter: folder.join("adapter"),
            numbers: folder.join("reference.safetensors"),
            model: folder,
        }
    };
    let qwen3 = Case {
        name: "qwen3",
        model: fixtures().join("qwen3-tiny"),
        adapter: fixtures().join("qwen3-tiny-lora"),
        numbers: fixtures().join("qwen3_tiny.safetensors"),
    };
    let families = [
        "gemma3",
        "lfm2",
        "llama",
        "mistral",
        "mistral-window",
        "moe",
        "phi3",
        "phi3-window",
        "phi4-mini",
        "qwen2",
        "qwen2-window",
        "qwen3_5",
        "yarn",
    ];
    std::iter::once(qwen3).chain(families.map(of)).collect()
}

struct Reference {
    tensors: HashMap<String, Tensor>,
    case: Case,
    /// `base` or `adapted`.
    of: &'static str,
}

impl Reference {
    fn new(case: Case, of: &'static str) -> Self {
        let tensors = candle_core::safetensors::load(&case.numbers, &Device::Cpu).unwrap();
        Self { tensors, case, of }
    }

    /// Every family, with and without an adapter.
    fn all() -> impl Iterator<Item = Self> {
        let both = |(base, adapted)| [Self::new(base, "base"), Self::new(adapted, "adapted")];
        cases().into_iter().zip(cases()).flat_map(both)
    }

    fn sequences(&self) -> Vec<Vec<u32>> {
        let read = |i| self.tensors.get(&format!("tokens.{i}"));
        (0..).map_while(read).map(|t| t.to_dtype(DType::U32).unwrap().to_vec1().unwrap()).collect()
    }

    /// None if the reference lacks it.
    fn values(&self, name: &str) -> Option<Vec<f32>> {
        let tensor = self.tensors.get(&format!("{}.{name}", self.of))?;
        Some(tensor.flatten_all().unwrap().to_vec1().unwrap())
    }

    fn decoder(&self, device: &Device) -> Decoder {
        self.decoder_in(None, device)
    }

    /// The decoder with its base frozen in this format.
    fn decoder_in(&self, format: Option<Format>, device: &Device) -> Decoder {
        let mut decoder = Decoder::load_on(&self.case.model, format, device).unwrap();
        if self.of == "adapted" {
            Adapter::load(&mut decoder, &self.case.adapter).unwrap();
        }
        decoder
    }

    /// Names of the gradients in the order of the decoder's trained parameters.
    fn parameters(&self) -> Vec<String> {
        let decoder = self.decoder(&Device::Cpu);
        if self.of == "base" {
            return decoder.config.tensors().map(|(name, _)| name).collect();
        }
        let config = &decoder.config;
        let mut names = Vec::new();
        for (index, layer) in decoder.layers.iter().enumerate() {
            let shapes = config.linears(config.layer(index));
            for (shape, _) in shapes.iter().zip(&layer.linears).filter(|(_, linear)| linear.lora.is_some()) {
                let name = format!("base_model.model.model.layers.{index}.{}", shape.name);
                names.extend(["A", "B"].map(|part| format!("{name}.lora_{part}.weight")));
            }
        }
        names
    }

    fn assert_near(&self, what: &str, ours: &[f32], theirs: &[f32], worst: f32) {
        let worst = noise(self.case.name) * worst;
        let found = difference(ours, theirs);
        assert!(found < worst, "{} {}, {what}: {found:e}", self.case.name, self.of);
    }
}

/// How much larger the differences of a family may be than those of others.
fn noise(family: &str) -> f32 {
    // Queries and keys of 8 values are sometimes short before their norms: in f32, the logits of Transformers differ from
    // those in f64 by up to 6e-5, and its gradients by 2e-4, one by 1e-3.
    if family.ends_with("qwen3_5") { 8.0 } else { 1.0 }
}

/// Largest difference relative to the largest value.
fn difference(ours: &[f32], theirs: &[f32]) -> f32 {
    assert_eq!(ours.len(), theirs.len());
    let size = theirs.iter().fold(1e-12f32, |most, value| most.max(value.abs()));
    ours.iter().zip(theirs).fold(0.0f32, |most, (a, b)| most.max((a - b).abs())) / size
}

#[test]
fn logits_at_every_position_match_transformers_and_peft() {
    check_logits(&Device::Cpu, 2e-5);
}

fn check_logits(device: &Device, worst: f32) {
    for reference in Reference::all() {
        let decoder = reference.decoder(device);
        for (index, tokens) in reference.sequences().iter().enumerate() {
            let (ours, theirs) = (logits(&decoder, tokens), format!("logits.{index}"));
            reference.assert_near(&theirs, &ours, &reference.values(&theirs).unwrap(), worst);
        }
    }
}

#[test]
fn with_the_long_factors_twice_a_longer_sequence_matches_transformers() {
    let family = fixtures().join("families/phi4-mini");
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(family.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(family.join("config.json")).unwrap()).unwrap();
    config["rope_parameters"]["short_factor"] = config["rope_parameters"]["long_factor"].clone();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let decoder = Decoder::load(folder.path()).unwrap();
    let reference = candle_core::safetensors::load(family.join("long.safetensors"), &Device::Cpu).unwrap();
    let tokens: Vec<u32> = reference["tokens"].to_dtype(DType::U32).unwrap().to_vec1().unwrap();
    assert!(tokens.len() > 64 && decoder.config.context == 256, "{}", decoder.config.context);
    let theirs: Vec<f32> = reference["logits"].flatten_all().unwrap().to_vec1().unwrap();
    let found = difference(&logits(&decoder, &tokens), &theirs);
    assert!(found < 2e-5, "{found:e}");
}

/// Logits at every position.
fn logits(decoder: &Decoder, tokens: &[u32]) -> Vec<f32> {
    ops::read(&super::logits(decoder, tokens).unwrap()).unwrap()
}

#[test]
fn log_probabilities_and_gradients_of_every_parameter_match_autograd() {
    check_gradients(&Device::Cpu);
}

fn check_gradients(device: &Device) {
    for reference in Reference::all().filter(|reference| reference.values("logprobs.0").is_some()) {
        let (gradients, logprobs, indices) = gradients(&reference, reference.decoder(device));
        for (index, targets) in indices.iter().enumerate() {
            let ours: Vec<f32> = targets.iter().map(|target| logprobs[0][*target]).collect();
            let theirs = format!("logprobs.{index}");
            reference.assert_near(&theirs, &ours, &reference.values(&theirs).unwrap(), 1e-5);
        }
        let names = reference.parameters();
        assert_eq!(names.len(), gradients.slots.len());
        for (name, gradient) in names.iter().zip(&gradients.slots) {
            let theirs = reference.values(&format!("gradient.{name}")).unwrap();
            reference.assert_near(name, &ops::read(gradient).unwrap(), &theirs, 1e-4);
        }
    }
}

/// Gradients of the mean of −log p over all tokens, with the log-probability of each target, and the targets
/// of each sequence.
fn gradients(reference: &Reference, decoder: Decoder) -> (Gradients, Vec<Vec<f32>>, Vec<Vec<usize>>) {
    let all = |tokens: Vec<u32>| (tokens.clone(), vec![true; tokens.len()]);
    let sequences: Vec<(Vec<u32>, Vec<bool>)> = reference.sequences().into_iter().map(all).collect();
    let (batch, indices) = Microbatch::new(&sequences);
    let count = indices.iter().map(Vec::len).sum::<usize>() as f32;
    let mut weights = vec![0.0; batch.targets.len()];
    indices.iter().flatten().for_each(|target| weights[*target] -= 1.0 / count);
    let rule = Rule::Muon { rate: 1.0, momentum: 0.9 };
    let mut trainer = Trainer::new(decoder, |parameters| vec![rule; parameters.len()], 1).unwrap();
    let (gradients, logprobs) = trainer.gradients(&[batch], &|_, target, _| weights[target]).unwrap();
    (gradients, logprobs, indices)
}

/// Sampling uses cached keys and values, several conversations at once. Scoring computes each sequence whole.
#[tokio::test]
async fn sampling_with_the_cache_equals_scoring_the_whole_sequence() {
    check_sampling(&Device::Cpu, 0.0).await;
}

/// `worst`: largest difference between sampled and scored, relative to a sequence's largest log-probability.
async fn check_sampling(device: &Device, worst: f32) {
    for reference in Reference::all() {
        let sampler = Sampler::on_threads(reference.decoder(device), 1);
        let warm = Sampling { temperature: 1.0, ..Sampling::GREEDY };
        let prompts = reference.sequences();
        let episodes = join_all(prompts.iter().enumerate().map(|(index, prompt)| {
            let (shared, own) = prompt.split_at(prompt.len().min(5));
            let mut sequence = sampler.open(vec![shared.into(), own.into()], warm, index as u64);
            async move {
                let first = sequence.turn(&[], &[], 4).await.unwrap();
                let second = sequence.turn(&[7, 8], &[], 3).await.unwrap();
                let tokens = [prompt, &first.tokens[..], &[7, 8], &second.tokens].concat();
                let start = prompt.len();
                let sampled = |at| (start..start + 4).contains(&at) || at >= start + 6;
                let sampled = (0..tokens.len()).map(sampled).collect::<Vec<bool>>();
                ((tokens, sampled), [first.logprobs, second.logprobs].concat())
            }
        }))
        .await;
        let (sequences, drawn): (Vec<_>, Vec<_>) = episodes.into_iter().unzip();
        let (batch, indices) = Microbatch::new(&sequences);
        let trainer = Trainer::new(reference.decoder(device), |_| Vec::new(), 1).unwrap();
        let scored = trainer.score(&[batch]).unwrap();
        for (targets, drawn) in indices.iter().zip(drawn) {
            let scored: Vec<f32> = targets.iter().map(|target| scored[0][*target]).collect();
            let found = difference(&scored, &drawn);
            let worst = noise(reference.case.name) * worst;
            assert!(found <= worst, "{} {}: {found:e}", reference.case.name, reference.of);
        }
    }
}

/// Segments and branches end before, at and after the first key of a window, which is 9.
#[tokio::test]
async fn layers_with_a_window_give_the_same_bits_however_a_prompt_is_cut_and_shared() {
    let is_windowed = |reference: &Reference| {
        let config = reference.decoder(&Device::Cpu).config;
        reference.of == "adapted" && (0..config.layers).any(|layer| config.attention(layer).window == Some(9))
    };
    let windowed: Vec<Reference> = Reference::all().filter(is_windowed).collect();
    assert_eq!(windowed.len(), 4);
    for reference in windowed {
        let stem = reference.sequences()[2].clone();
        let branch = |at: usize| [&stem[..at], &[3, 5, 7, 11, 13]].concat();
        let sequences: Vec<Vec<u32>> = [1, 7, 8, 9, 10, 17, 18, 27, 36].map(branch).into();
        let trainer = Trainer::new(reference.decoder(&Device::Cpu), |_| Vec::new(), 1).unwrap();
        let score = |sequences: &[Vec<u32>]| -> Vec<Vec<f32>> {
            let all = |tokens: &Vec<u32>| (tokens.clone(), vec![true; tokens.len()]);
            let (batch, indices) = Microbatch::new(&sequences.iter().map(all).collect::<Vec<_>>());
            let scored = trainer.score(&[batch]).unwrap();
            indices.iter().map(|targets| targets.iter().map(|target| scored[0][*target]).collect()).collect()
        };
        let alone = sequences.iter().flat_map(|sequence| score(std::slice::from_ref(sequence)));
        assert_eq!(score(&sequences), alone.collect::<Vec<_>>(), "{}", reference.case.name);

        let sampler = Sampler::on_threads(reference.decoder(&Device::Cpu), 1);
        let episodes = join_all([0, 1, 8, 9, 10, 11, 20, 28, 29, 36].map(|cut| {
            let (shared, own) = stem.split_at(cut);
            let mut sequence = sampler.open(vec![shared.into(), own.into()], Sampling::GREEDY, 1);
            async move {
                let turn = sequence.turn(&[], &[], 12).await.unwrap();
                (turn.tokens, turn.logprobs)
            }
        }))
        .await;
        let (tokens, logprobs) = &episodes[0];
        assert!(episodes.iter().all(|episode| episode == &episodes[0]), "{}", reference.case.name);
        let scored = score(&[[&stem[..], tokens].concat()]);
        assert_eq!(scored[0][stem.len() - 1..], logprobs[..], "{}", reference.case.name);
    }
}

#[test]
fn a_saved_model_and_adapter_are_loaded_with_the_same_bits() {
    for reference in Reference::all().filter(|reference| reference.of == "adapted") {
        let folder = tempfile::tempdir().unwrap();
        let mut decoder = Decoder::load(&reference.case.model).unwrap();
        let config = Adapter::load(&mut decoder, &reference.case.adapter).unwrap();
        decoder.save(folder.path()).unwrap();
        Adapter::save(&decoder, &config, "base", folder.path()).unwrap();
        let mut again = Decoder::load(folder.path()).unwrap();
        assert_eq!(again.config, decoder.config, "{}", reference.case.name);
        assert_eq!(Adapter::load(&mut again, folder.path()).unwrap(), config);
        let bits = |decoder: &mut Decoder| -> Vec<Vec<f32>> {
            let bits = |tensor: &Tensor| ops::values(tensor).unwrap().to_vec();
            let mut all: Vec<_> = decoder.tensors().unwrap().iter().map(|(_, tensor)| bits(tensor)).collect();
            all.extend(decoder.trained().unwrap().iter().map(|parameter| bits(parameter.tensor())));
            all
        };
        assert_eq!(bits(&mut again), bits(&mut decoder), "{}", reference.case.name);
    }
}

#[test]
fn a_merged_model_equals_the_adapter_on_its_base() {
    // For families whose files are in bf16, the sum is rounded to bf16.
    let f32_files = |reference: &Reference| ["qwen3", "llama"].contains(&reference.case.name);
    for reference in Reference::all().filter(|r| r.of == "adapted" && f32_files(r)) {
        let out = tempfile::tempdir().unwrap();
        merge(&reference.case.model, &reference.case.adapter, out.path()).unwrap();
        let merged = Decoder::load(out.path()).unwrap();
        for (index, tokens) in reference.sequences().iter().enumerate() {
            let sequence = [(tokens.clone(), vec![true; tokens.len()])];
            let scored = score_across(
                &merged,
                &DeviceSet::cpu(1, 1),
                &[Microbatch::new(&sequence).0],
                &Default::default(),
            )
            .unwrap();
            let theirs = format!("logprobs.{index}");
            reference.assert_near(&theirs, &scored[0], &reference.values(&theirs).unwrap(), 1e-5);
        }
    }
}

#[test]
fn patterns_of_targets_ranks_and_alphas_merge_as_in_peft() {
    let (base, adapter) = (fixtures().join("qwen3-tiny"), fixtures().join("qwen3-tiny-lora-patterns"));
    let out = tempfile::tempdir().unwrap();
    merge(&base, &adapter, out.path()).unwrap();
    let load = |path: PathBuf| candle_core::safetensors::load(path, &Device::Cpu).unwrap();
    let values = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let (ours, plain) = (load(out.path().join("model.safetensors")), load(base.join("model.safetensors")));
    let theirs = load(adapter.join("merged.safetensors"));
    for (name, ours) in &ours {
        match theirs.get(name) {
            Some(theirs) => {
                let found = difference(&values(ours), &values(theirs));
                assert!(found < 1e-6, "{name}: {found:e}");
                assert!(difference(&values(ours), &values(&plain[name])) > 1e-2, "{name}");
            }
            None => assert_eq!(values(ours), values(&plain[name]), "{name}"),
        }
    }
    // The same adapter on the decoder: three linear layers, of two ranks.
    let mut decoder = Decoder::load(&base).unwrap();
    let config = Adapter::load(&mut decoder, &adapter).unwrap();
    let shapes: Vec<Vec<usize>> =
        decoder.trained().unwrap().iter().map(|p| p.tensor().dims().to_vec()).collect();
    assert_eq!(shapes, [[3, 64], [128, 3], [2, 128], [64, 2], [2, 96], [64, 2]]);
    Adapter::save(&decoder, &config, "base", out.path()).unwrap();
    assert_eq!(AdapterConfig::load(out.path()).unwrap(), config);
}

#[test]
fn an_adapter_of_another_model_is_refused_with_the_mismatch() {
    let folder = tempfile::tempdir().unwrap();
    let lora = fixtures().join("qwen3-tiny-lora");
    let config = std::fs::read_to_string(lora.join("adapter_config.json")).unwrap();
    let load = |config: &str| {
        std::fs::copy(
            lora.join("adapter_model.safetensors"),
            folder.path().join("adapter_model.safetensors"),
        )
        .unwrap();
        std::fs::write(folder.path().join("adapter_config.json"), config).unwrap();
        let mut decoder = Decoder::load(&fixtures().join("qwen3-tiny")).unwrap();
        Adapter::load(&mut decoder, folder.path()).map(|_| ()).unwrap_err().to_string()
    };
    let refused = load(&config.replace("\"r\": 4", "\"r\": 5"));
    assert!(refused.contains("q_proj.lora_A.weight` has shape [4, 64], here it is [5, 64]"), "{refused}");
    let refused = load(&config.replace("    \"v_proj\"\n", "    \"x_proj\"\n"));
    assert!(refused.contains("v_proj.lora_A.weight` belongs to no targeted linear layer"), "{refused}");
    let refused = load(&config.replace("\"LORA\"", "\"IA3\""));
    assert!(refused.contains("peft_type IA3 is not supported"), "{refused}");
    let mut decoder = Decoder::load(&fixtures().join("qwen3-tiny")).unwrap();
    let nothing =
        AdapterConfig { targets: Targets::Names(vec!["w_proj".into()]), ..AdapterConfig::new(4, 8.0) };
    let refused = Adapter::fresh(&mut decoder, &nothing, 1).unwrap_err().to_string();
    assert!(refused.contains("which has down_proj, gate_proj, k_proj"), "{refused}");
}
