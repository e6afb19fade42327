//! The work that is measured: training steps and decoding on random weights.

use std::{path::Path, sync::Arc, time::Instant};

use candle_core::Device;
use futures::future::join_all;
use serde::Serialize;
use serde_json::json;

use super::{
    Load, Shape,
    machine::{forget_peak, peak_mib},
};
use crate::{
    engine::{
        Footprint, Microbatch, Rule, Sampler, Sampling, SamplingLoad, Trainer, TrainingLoad, give_back,
        load_frozen,
    },
    error::Result,
    model::{
        Adapter, AdapterConfig, Decoder, Init, ModelConfig, ModelError,
        kernels::{Format, metered},
    },
};

#[derive(Debug, Serialize)]
pub struct Training {
    /// Tokens of all sequences, shared ones counted once for each, per second.
    pub tokens_per_second: f64,
    /// Of one step: forward, backward and update.
    pub seconds: f64,
    /// Share of the threads' time spent in matrix products.
    pub gemm_share: f64,
    /// Billions of operations per second of the products while they ran, all threads together.
    pub gemm_gflops: f64,
    pub peak_mib: f64,
    /// The peak foretold by the memory plan.
    pub planned_mib: f64,
}

#[derive(Debug, Serialize)]
pub struct Decode {
    pub sequences: usize,
    /// Sampled tokens per second, prompts not counted in.
    pub tokens_per_second: f64,
    /// Until every sequence had its first token.
    pub prefill_seconds: f64,
    pub peak_mib: f64,
    /// The peak foretold by the memory plan.
    pub planned_mib: f64,
}

fn config(shape: Shape) -> Result<ModelConfig> {
    let (hidden, intermediate, layers, heads, kv, dim, vocabulary) = match shape {
        Shape::Demo => (128, 384, 4, 4, 2, 32, 1024),
        Shape::Qwen3Small => (1024, 3072, 28, 16, 8, 128, 151_936),
        Shape::Qwen3Medium => (2560, 9728, 36, 32, 8, 128, 151_936),
    };
    let text = json!({
        "model_type": "qwen3", "hidden_act": "silu", "attention_bias": false, "hidden_size": hidden,
        "intermediate_size": intermediate, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv, "head_dim": dim, "vocab_size": vocabulary, "tie_word_embeddings": true,
        "max_position_embeddings": 40_960, "rope_theta": 1e6, "rms_norm_eps": 1e-6,
    });
    let path = std::env::temp_dir();
    let wrong = |source| ModelError::Write { path: path.clone(), source };
    let folder = tempfile::tempdir().map_err(wrong)?;
    std::fs::write(folder.path().join("config.json"), text.to_string()).map_err(wrong)?;
    Ok(ModelConfig::load(folder.path())?)
}

/// What is measured.
#[derive(Clone, Copy)]
pub struct Model<'a> {
    pub shape: Shape,
    /// Instead of random weights of that shape.
    pub folder: Option<&'a Path>,
    pub format: Format,
}

fn decoder(model: Model<'_>, rank: usize) -> Result<Decoder> {
    let mut decoder = match model.folder {
        Some(folder) => load_frozen(folder, Some(model.format), &Device::Cpu)?,
        None => {
            let mut decoder = Decoder::random(config(model.shape)?, Init { seed: 1, deviation: 0.05 })?;
            decoder.freeze(model.format)?;
            give_back();
            decoder
        }
    };
    Adapter::fresh(&mut decoder, &AdapterConfig::new(rank, 2.0 * rank as f32), 1)?;
    Ok(decoder)
}

fn tokens(count: usize, seed: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * i * 7 + i * 13 + seed * 2929) % 1021) as u32).collect()
}

/// Sequences of a step: groups of episodes below a common prefix, as GRPO trains on.
fn sequences(load: &Load) -> Vec<(Vec<u32>, Vec<bool>)> {
    let episode = |index: usize| {
        let question = tokens(load.question, 50 + index / load.group);
        let parts = [tokens(load.prefix, 0), question, tokens(load.episode, 100 + index)];
        let prompt = load.prefix + load.question;
        let trained = |at: usize| at >= prompt && (at - prompt).is_multiple_of(load.trained_every);
        (parts.concat(), (0..prompt + load.episode).map(trained).collect())
    };
    (0..load.groups * load.group).map(episode).collect()
}

pub fn training(model: Model<'_>, load: &Load, threads: usize, share: bool) -> Result<Training> {
    let sequences = sequences(load);
    let total: usize = sequences.iter().map(|(tokens, _)| tokens.len()).sum();
    let mut trainer = {
        let rule = Rule::AdamW { rate: 1.0, beta1: 0.9, beta2: 0.95, weight_decay: 0.0 };
        let decoder = decoder(model, load.rank)?;
        Trainer::new(decoder, |parameters| vec![rule; parameters.len()], threads)
    };
    let workers = trainer.workers();
    let each = if share { sequences.len().div_ceil(workers) } else { 1 };
    let batches: Vec<Microbatch> = sequences.chunks(each).map(|share| Microbatch::new(share).0).collect();
    let planned = Footprint::training(
        &trainer.decoder.config,
        model.format,
        &TrainingLoad {
            rows: Microbatch::most_rows(&batches),
            longest: load.prefix + load.question + load.episode,
            workers: workers.min(batches.len()),
            threads: threads / workers,
            recompute: trainer.recomputes(&batches),
            devices: 1,
            adapter: Adapter::size(&trainer.decoder),
            moments: 8,
        },
    );
    let mut step = || -> Result<()> {
        trainer.step(&batches, &|_, _, _| -1e-3, 1e-4, 1.0)?;
        Ok(())
    };
    forget_peak();
    let (mut seconds, mut busy, mut operations) = (f64::INFINITY, 0.0, 0.0);
    for _ in 0..load.runs {
        let start = Instant::now();
        let (result, in_products, done) = metered(&mut step);
        result?;
        let wall = start.elapsed().as_secs_f64();
        if wall < seconds {
            (seconds, busy, operations) = (wall, in_products, done);
        }
    }
    let peak_mib = peak_mib();
    Ok(Training {
        tokens_per_second: total as f64 / seconds,
        seconds,
        gemm_share: busy / (seconds * threads as f64),
        gemm_gflops: operations / busy / 1e9 * threads as f64,
        peak_mib,
        planned_mib: mib(planned.total()),
    })
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

pub async fn decode(model: Model<'_>, load: &Load, threads: usize) -> Result<Vec<Decode>> {
    let decoder = decoder(model, load.rank)?;
    let (config, adapter) = (decoder.config.clone(), Adapter::size(&decoder));
    let sampler = Sampler::new(decoder, threads);
    let sampling = Sampling { temperature: 1.0, ..Sampling::GREEDY };
    let (mut rows, mut held) = (Vec::new(), 0);
    for sequences in &load.batch {
        forget_peak();
        let start = Instant::now();
        // A prefix of its own, so that no run finds it computed.
        let prefix: Arc<[u32]> = tokens(load.prefix, sequences + 7).into();
        let mut open: Vec<_> = (0..*sequences)
            .map(|index| {
                let question: Arc<[u32]> = tokens(load.question, 50 + index / load.group).into();
                sampler.open(vec![prefix.clone(), question], sampling, index as u64)
            })
            .collect();
        let first = join_all(open.iter_mut().map(|sequence| sequence.turn(&[], &[], 1))).await;
        first.into_iter().collect::<std::result::Result<Vec<_>, _>>()?;
        let prefill_seconds = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let more = join_all(open.iter_mut().map(|sequence| sequence.turn(&[], &[], load.new))).await;
        more.into_iter().collect::<std::result::Result<Vec<_>, _>>()?;
        let tokens_per_second = (sequences * load.new) as f64 / start.elapsed().as_secs_f64();
        // Prompts of earlier runs stay until their room is needed.
        held += load.prefix + sequences.div_ceil(load.group) * load.question;
        let asked = SamplingLoad {
            sequences: *sequences,
            longest: load.prefix + load.question + load.new + 1,
            tokens: held + sequences * (load.new + 1),
            bound: None,
            threads,
            devices: 1,
            adapter,
        };
        let planned = Footprint::sampling(&config, model.format, &asked).total();
        rows.push(Decode {
            sequences: *sequences,
            tokens_per_second,
            prefill_seconds,
            peak_mib: peak_mib(),
            planned_mib: mib(planned),
        });
    }
    Ok(rows)
}
