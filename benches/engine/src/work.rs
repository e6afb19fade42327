//! The measured workload: training steps and decoding.

use std::{
    path::Path,
    sync::Arc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use candle_core::Device;
use futures::future::join_all;
use mcprl_base::error::Result;
use mcprl_engine::{
    DeviceSet, EngineError, Footprint, Microbatch, Rule, Sampler, Sampling, SamplingLoad, Trainer,
    TrainingLoad, load_frozen,
    model::{
        Adapter, AdapterConfig, Decoder, ModelConfig, ModelError,
        kernels::{Format, metered},
    },
    trim_allocator,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    Load, Shape,
    machine::{forget_peak, peak_mib},
};

#[derive(Debug, Serialize, Deserialize)]
pub struct Training {
    /// Tokens per second over all sequences; shared tokens count once for each sequence.
    pub tokens_per_second: f64,
    /// Of one step: forward, backward and update.
    pub seconds: f64,
    /// Distinct tokens of a step: those that pass through the decoder.
    pub distinct: usize,
    /// When the fastest step began and ended, in nanoseconds since 1970, to find it in a trace.
    pub window: [u64; 2],
    /// For CPU kernels only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub products: Option<Products>,
    pub peak_mib: f64,
    /// The peak that the memory plan estimates; for CPU kernels only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned_mib: Option<f64>,
}

/// The matrix products of a training step.
#[derive(Debug, Serialize, Deserialize)]
pub struct Products {
    /// Share of the threads' time spent in products.
    pub share: f64,
    /// Billions of operations per second during products, over all threads.
    pub gflops: f64,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Decode {
    pub sequences: usize,
    /// Sampled tokens per second; prompts do not count.
    pub tokens_per_second: f64,
    /// Time until every sequence has its first token.
    pub prefill_seconds: f64,
    /// When the tokens after the first were sampled, in nanoseconds since 1970.
    pub window: [u64; 2],
    pub peak_mib: f64,
    /// The peak that the memory plan estimates; for CPU kernels only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned_mib: Option<f64>,
}

impl Decode {
    pub fn name(&self) -> String {
        format!("decode, {} sequences", self.sequences)
    }
}

fn config(shape: Shape) -> Result<ModelConfig> {
    let (hidden, intermediate, layers, heads, kv, dim, vocabulary) = match shape {
        Shape::Qwen35Small => (1024, 3584, 24, 8, 2, 256, 248_320),
        Shape::Demo => (128, 384, 4, 4, 2, 32, 1024),
        Shape::Qwen3Large => (4096, 12288, 36, 32, 8, 128, 151_936),
        Shape::Qwen3Small => (1024, 3072, 28, 16, 8, 128, 151_936),
        Shape::Qwen3Medium => (2560, 9728, 36, 32, 8, 128, 151_936),
    };
    let mut text = json!({
        "model_type": "qwen3", "hidden_act": "silu", "attention_bias": false, "hidden_size": hidden,
        "intermediate_size": intermediate, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv, "head_dim": dim, "vocab_size": vocabulary, "tie_word_embeddings": shape != Shape::Qwen3Large,
        "max_position_embeddings": 40_960, "rope_theta": 1e6, "rms_norm_eps": 1e-6,
    });
    if shape == Shape::Qwen35Small {
        text["model_type"] = "qwen3_5_text".into();
        text["linear_num_value_heads"] = 16.into();
    }
    let path = std::env::temp_dir();
    let wrong = |source| ModelError::Write { path: path.clone(), source };
    let folder = tempfile::tempdir().map_err(wrong)?;
    std::fs::write(folder.path().join("config.json"), text.to_string()).map_err(wrong)?;
    Ok(ModelConfig::load(folder.path())?)
}

/// The model to measure.
#[derive(Clone, Copy)]
pub struct Model<'a> {
    pub shape: Shape,
    /// Used instead of random weights.
    pub folder: Option<&'a Path>,
    pub format: Format,
}

fn decoder(model: Model<'_>, rank: usize, device: &Device) -> Result<Decoder> {
    let mut decoder = match model.folder {
        Some(folder) => load_frozen(folder, model.format, device)?,
        None => Decoder::random_on(config(model.shape)?, 0.05, model.format, device)?,
    };
    trim_allocator();
    Adapter::fresh(&mut decoder, &AdapterConfig::new(rank, 2.0 * rank as f32), 1)?;
    Ok(decoder)
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Runs `work` until the device has finished it. Returns its seconds, and its begin and end.
fn timed(device: &Device, work: impl FnOnce() -> Result<()>) -> Result<(f64, [u64; 2])> {
    let (start, began) = (Instant::now(), now());
    work()?;
    device.synchronize().map_err(EngineError::from)?;
    Ok((start.elapsed().as_secs_f64(), [began, now()]))
}

fn tokens(count: usize, seed: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * i * 7 + i * 13 + seed * 2929) % 1021) as u32).collect()
}

/// The sequences of a step: groups of episodes under a common prefix, as in GRPO training.
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

pub fn training(model: Model<'_>, load: &Load, places: &DeviceSet, share: bool) -> Result<Training> {
    let (threads, device) = (places.threads(), &places.first.device);
    let sequences = sequences(load);
    let total: usize = sequences.iter().map(|(tokens, _)| tokens.len()).sum();
    let mut trainer = {
        let rule = Rule::AdamW { rate: 1.0, beta1: 0.9, beta2: 0.95, weight_decay: 0.0 };
        let decoder = decoder(model, load.rank, device)?;
        Trainer::across(decoder, |parameters| vec![rule; parameters.len()], places)?
    };
    let workers = trainer.workers();
    let each = if share { sequences.len().div_ceil(workers) } else { 1 };
    let batches: Vec<Microbatch> = sequences.chunks(each).map(|share| Microbatch::new(share).0).collect();
    let plan = || {
        Footprint::training(
            &trainer.decoder.config,
            model.format,
            &TrainingLoad {
                rows: Microbatch::most_rows(&batches),
                longest: load.prefix + load.question + load.episode,
                workers: workers.min(batches.len()),
                threads: threads / workers,
                recompute: trainer.recomputes(&batches),
                devices: 1,
                copies: 1,
                adapter: Adapter::size(&trainer.decoder),
                moments: 8,
            },
        )
    };
    let planned_mib = trainer.decoder.by_kernels().then(|| mib(plan().total()));
    let mut step = || -> Result<()> {
        trainer.step(&batches, &|_, _, _| -1e-3, 1e-4, 1.0)?;
        Ok(())
    };
    forget_peak(device);
    let (mut seconds, mut window, mut products) = (f64::INFINITY, [0; 2], None);
    for _ in 0..load.runs {
        let (result, busy, operations) = metered(|| timed(device, &mut step));
        let (wall, at) = result?;
        if wall < seconds {
            (seconds, window) = (wall, at);
            products = (busy > 0.0).then(|| Products {
                share: busy / (seconds * threads as f64),
                gflops: operations / busy / 1e9 * threads as f64,
            });
        }
    }
    Ok(Training {
        tokens_per_second: total as f64 / seconds,
        seconds,
        distinct: batches.iter().map(|batch| batch.tree.tokens.len()).sum(),
        window,
        products,
        peak_mib: peak_mib(device),
        planned_mib,
    })
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

pub async fn decode(model: Model<'_>, load: &Load, places: &DeviceSet) -> Result<Vec<Decode>> {
    let (threads, device) = (places.threads(), &places.first.device);
    let decoder = decoder(model, load.rank, device)?;
    let (config, adapter, by_kernels) =
        (decoder.config.clone(), Adapter::size(&decoder), decoder.by_kernels());
    let sampler = Sampler::across(decoder, places, None)?;
    let sampling = Sampling { temperature: 1.0, ..Sampling::GREEDY };
    let (mut rows, mut held) = (Vec::new(), 0);
    for sequences in &load.batch {
        forget_peak(device);
        let start = Instant::now();
        // A different prefix for each run, so that none finds it cached.
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
        let (start, began) = (Instant::now(), now());
        let more = join_all(open.iter_mut().map(|sequence| sequence.turn(&[], &[], load.new))).await;
        more.into_iter().collect::<std::result::Result<Vec<_>, _>>()?;
        // The last token has been read from the device, so the work is finished.
        let tokens_per_second = (sequences * load.new) as f64 / start.elapsed().as_secs_f64();
        let window = [began, now()];
        // Prompts of earlier runs stay in memory until their space is needed.
        held += load.prefix + sequences.div_ceil(load.group) * load.question;
        let asked = SamplingLoad {
            sequences: *sequences,
            longest: load.prefix + load.question + load.new + 1,
            tokens: held + sequences * (load.new + 1),
            bound: None,
            threads,
            devices: 1,
            copies: 1,
            adapter,
        };
        let planned = Footprint::sampling(&config, model.format, &asked).total();
        rows.push(Decode {
            sequences: *sequences,
            tokens_per_second,
            prefill_seconds,
            window,
            peak_mib: peak_mib(device),
            planned_mib: by_kernels.then(|| mib(planned)),
        });
    }
    Ok(rows)
}
