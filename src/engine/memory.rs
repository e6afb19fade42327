//! How much memory work on a model takes at its peak, before it takes it.
//!
//! Counted are weights, keys and values, what is trained with its gradients and moments, activations and logits, and a
//! constant for what the process holds beside. `mcprl bench` prints this beside what it measures, and `mcprl plan`
//! before anything is loaded.

use std::path::Path;

use candle_core::Device;
use serde::Serialize;

use super::{
    Bases, EngineError, EngineSpec, Places, Recompute, crew::Split, recompute::kept_bytes_of,
    trainer::logit_rows, worker::STEP_ROWS,
};
use crate::model::{Decoder, ModelConfig, kernels::Format, ops::Holding};

const FLOAT: usize = size_of::<f32>();

/// Code, buffers, threads and what the allocator holds ready, as measured on small decoders.
const BESIDE: usize = 40 << 20;

/// Bytes at the peak, by what they hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Footprint {
    /// Weights as they are held, and the tables of the rotary embedding.
    pub weights: usize,
    /// Trained parameters with their packed copies, gradients and the optimiser's moments.
    pub trained: usize,
    /// Keys and values of conversations.
    pub cache: usize,
    /// What a step holds between its operations.
    pub activations: usize,
    pub logits: usize,
    /// What the process holds beside.
    pub beside: usize,
}

/// What is sampled at once.
#[derive(Debug, Clone, Copy)]
pub struct SamplingLoad {
    /// Conversations under way.
    pub sequences: usize,
    /// Longest of them, in tokens.
    pub longest: usize,
    /// Tokens whose keys and values are held beside each other, those that are shared counted once.
    pub tokens: usize,
    /// Most bytes these may take, where there is a bound.
    pub bound: Option<usize>,
    pub threads: usize,
    /// Rank of the adapters on every linear layer, where there are any.
    pub rank: Option<usize>,
}

/// What is trained at once.
#[derive(Debug, Clone, Copy)]
pub struct TrainingLoad {
    /// Distinct tokens of the largest microbatch.
    pub rows: usize,
    /// Longest sequence, in tokens.
    pub longest: usize,
    /// Microbatches worked on side by side.
    pub workers: usize,
    /// Threads of one operation.
    pub threads: usize,
    /// Activations are computed again from each layer's input.
    pub recompute: bool,
    /// Rank of the adapters on every linear layer; none where all weights are trained.
    pub rank: Option<usize>,
    /// Bytes of the optimiser's moments per parameter: 8 for AdamW, about 2 with moments in 8 bits.
    pub moments: usize,
}

impl Footprint {
    pub fn total(&self) -> usize {
        self.weights + self.trained + self.cache + self.activations + self.logits + self.beside
    }

    /// Of conversations with a policy whose base is held in this format.
    pub fn sampling(config: &ModelConfig, format: Format, load: &SamplingLoad) -> Self {
        let (parameters, packed) = match load.rank {
            Some(rank) => trained(config, Some(rank)),
            None => (0, 0),
        };
        let Split { workers, threads } = Split::of(held(config, format), load.threads);
        // A segment's room for growth; see `kernels::KeyValues`.
        let tokens = load.tokens + load.sequences * crate::model::kernels::PANEL;
        let holding = Holding { heads: config.heads, format, by_kernels: true };
        let cache = config.layers * holding.bytes_for(tokens);
        // Prompts fill a step; without any it has a row for each conversation.
        let rows = (load.tokens / workers).clamp(1, STEP_ROWS);
        let asking = load.sequences.div_ceil(workers).min(rows).min(logit_rows(config));
        Self {
            weights: weights(config, format),
            trained: (parameters + packed) * FLOAT,
            cache: load.bound.map_or(cache, |bound| cache.min(bound)),
            activations: workers
                * (rows * layer_row(config, load.rank) + scores(config, load.longest, threads))
                * FLOAT,
            logits: workers * asking * config.vocabulary * FLOAT,
            beside: BESIDE,
        }
    }

    /// Of a training step over token trees, the base held in this format.
    pub fn training(config: &ModelConfig, format: Format, load: &TrainingLoad) -> Self {
        let heads = config.heads;
        let (query, kv, wide) = (heads.query * heads.dim, heads.kv * heads.dim, feed_forward(config));
        let ranks = load.rank.unwrap_or(0) * config.linears().len();
        // A row of a layer: input, two norms, middle and output; queries and keys before and after norm and rotation,
        // attention and values; gate, up and their product; what adapters keep.
        let attention = 5 * config.hidden + 3 * query + 3 * kv + ranks;
        let kept = layer_row(config, load.rank);
        let inputs = config.hidden;
        // While a layer's gradients are computed: those of the feed-forward, of attention and of the layer's input, and
        // keys and values laid out for the products both ways, in half the bytes where they are bf16.
        let keys = if format.is_multiplied_in_bf16() { 4 * kv } else { 6 * kv };
        let backward = 2 * config.hidden + (3 * wide).max(3 * query + keys);
        let per_row = match load.recompute {
            true => config.layers * inputs + kept.max(attention + 2 * config.hidden + 3 * query + keys),
            false => config.layers * kept + backward,
        };
        let scores = 2 * scores(config, load.longest, load.threads);
        let (parameters, packed) = trained(config, load.rank);
        // The sum, and a set for each worker beside it.
        let gradients = parameters * (1 + load.workers);
        // Logits and their gradient's rows, never more than a block of them.
        let block = logit_rows(config) * config.vocabulary * FLOAT;
        Self {
            weights: match load.rank {
                Some(_) => weights(config, format),
                None => 0,
            },
            trained: (parameters + packed + gradients) * FLOAT + parameters * load.moments,
            activations: load.workers * (load.rows * per_row + scores) * FLOAT,
            logits: load.workers * 2 * block,
            cache: 0,
            beside: BESIDE,
        }
    }

    /// Says whether this fits what the machine has left, once models that nobody works with are let go for it.
    ///
    /// # Errors
    /// If it does not, with `change`: what would make it fit.
    pub fn fits(
        &self,
        bases: Option<&Bases>,
        what: &'static str,
        change: impl FnOnce() -> String,
    ) -> Result<(), EngineError> {
        let available = match bases {
            Some(bases) => Some(bases.room(self.total())),
            None => available(),
        };
        match available {
            Some(available) if self.total() > available => {
                Err(EngineError::Memory { what, needs: self.total(), available, change: change() })
            }
            _ => Ok(()),
        }
    }
}

/// Refuses sampling whose steps, and keys and values up to the bound that was set, do not fit beside the weights, which
/// are there already.
pub(super) fn check_sampling(
    config: &ModelConfig,
    places: &Places,
    bound: Option<usize>,
) -> Result<(), EngineError> {
    let threads = places.threads();
    let (longest, tokens) = (config.context, STEP_ROWS);
    let load = SamplingLoad { sequences: STEP_ROWS, longest, tokens, bound: None, threads, rank: None };
    let step = Footprint::sampling(config, Format::F32, &load);
    let planned = Footprint { weights: 0, trained: 0, beside: 0, cache: bound.unwrap_or(0), ..step };
    planned.fits(places.bases.as_deref(), "sampling", || match bound {
        Some(_) => {
            let left = available().unwrap_or_default().saturating_sub(planned.total() - planned.cache);
            format!("set kv_cache_mib under [engine] to {} or less", (left >> 20).max(1))
        }
        None => "take a smaller model, or a narrower dtype under [engine]".into(),
    })
}

impl EngineSpec {
    /// Whether keys and values of a conversation so long have room where a bound is set for those of the CPU.
    ///
    /// # Errors
    /// As sampling it would give on one of the devices, which leaves a worker most.
    pub fn check_conversation(&self, config: &ModelConfig, tokens: usize) -> Result<(), EngineError> {
        let on_cpu = self.devices.iter().all(|device| device == "cpu");
        let Some(mib) = self.kv_cache_mib.filter(|_| on_cpu) else { return Ok(()) };
        let format = self.dtype.unwrap_or(Format::F32);
        let threads = self.on(self.devices.get(..1).unwrap_or_default()).all_threads();
        let bound = mib.saturating_mul(1 << 20) / Split::of(held(config, format), threads).workers;
        let holding = Holding { heads: config.heads, format, by_kernels: true };
        let needs = config.layers * holding.bytes_for(tokens);
        if needs <= bound { Ok(()) } else { Err(EngineError::Cache { tokens, needs, bound }) }
    }
}

/// Loads a model whose weights are not trained, in this format or in `f32`, to this device.
///
/// # Errors
/// Also if the weights alone are more than the memory that is left.
pub fn load_frozen(folder: &Path, dtype: Option<Format>, device: &Device) -> Result<Decoder, EngineError> {
    let format = dtype.unwrap_or(Format::F32);
    if device.is_cpu() {
        let needs = weights(&ModelConfig::load(folder)?, format);
        check_weights(needs, format, available().unwrap_or(usize::MAX))?;
    }
    Ok(Decoder::load_on(folder, Some(format), device)?)
}

/// Refuses weights of so many bytes where less is left.
pub(super) fn check_weights(needs: usize, format: Format, available: usize) -> Result<(), EngineError> {
    if needs <= available {
        return Ok(());
    }
    let change = match format {
        Format::F32 => "set dtype = \"bf16\" under [engine] for half, or \"nf4\" for an eighth of it",
        Format::F16 | Format::Bf16 => "set dtype = \"nf4\" under [engine] for a quarter of it",
        Format::Nf4 => "take a smaller model",
    };
    Err(EngineError::Memory { what: "the model", needs, available, change: change.into() })
}

/// Values of a row of one layer's forward: input, two norms, middle and output; queries and keys before and after norm
/// and rotation, attention and values; gate, up and their product; what adapters keep.
fn layer_row(config: &ModelConfig, rank: Option<usize>) -> usize {
    let heads = config.heads;
    let ranks = rank.unwrap_or(0) * config.linears().len();
    5 * config.hidden + 3 * (heads.query + heads.kv) * heads.dim + ranks + 3 * feed_forward(config)
}

/// Scores of the rows that threads attend with at once.
fn scores(config: &ModelConfig, longest: usize, threads: usize) -> usize {
    32 * (config.heads.query / config.heads.kv) * longest * threads
}

/// How microbatches are worked on, and whether activations are computed again, as [`super::Trainer`] will decide it.
pub fn training_load(
    config: &ModelConfig,
    format: Format,
    load: TrainingLoad,
    batches: usize,
    recompute: Recompute,
) -> TrainingLoad {
    let held = match load.rank {
        Some(_) => held(config, format),
        // Plain weights have a packed copy.
        None => 2 * held(config, Format::F32),
    };
    let Split { workers, threads } = Split::of(held, load.threads);
    let workers = workers.min(batches).max(1);
    let ranks = config.layers * config.linears().len() * load.rank.unwrap_or(0);
    let recompute = recompute.decide_for(kept_bytes_of(config, ranks, load.rows * workers));
    TrainingLoad { workers, threads, recompute, ..load }
}

/// Width of a token's feed-forward, of all experts it passes through.
fn feed_forward(config: &ModelConfig) -> usize {
    config.intermediate * config.design.experts.map_or(1, |experts| experts.per_token)
}

/// Bytes of all weights, frozen in this format, and of the tables of the rotary embedding.
pub fn weights(config: &ModelConfig, format: Format) -> usize {
    held(config, format) + config.context * config.design.rotary.unwrap_or(config.heads.dim) * FLOAT
}

/// Bytes of the weight matrices, frozen in this format.
pub(super) fn held(config: &ModelConfig, format: Format) -> usize {
    let ends = format.at_the_ends();
    let matrices = if config.tied { 1 } else { 2 };
    let linears: usize =
        config.linears().iter().map(|linear| format.bytes(linear.outputs, linear.inputs)).sum();
    matrices * ends.bytes(config.vocabulary, config.hidden) + config.layers * linears
}

/// Trained values, and those of their copies packed for the products.
fn trained(config: &ModelConfig, rank: Option<usize>) -> (usize, usize) {
    let packed = |outputs: usize, inputs: usize| Format::F32.bytes(outputs, inputs) / FLOAT;
    match rank {
        Some(rank) => {
            let linears = config.linears();
            let of = |size: &dyn Fn(usize, usize) -> usize| -> usize {
                config.layers
                    * linears.iter().map(|l| size(rank, l.inputs) + size(l.outputs, rank)).sum::<usize>()
            };
            (of(&|outputs, inputs| outputs * inputs), of(&packed))
        }
        None => {
            let matrices = config.tensors();
            let values = matrices.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
            let pair = |shape: &Vec<usize>| match shape[..] {
                [outputs, inputs] => packed(outputs, inputs),
                _ => 0,
            };
            (values, matrices.iter().map(|(_, shape)| pair(shape)).sum())
        }
    }
}

/// Bytes of memory that the system says are free or can be freed; none where it does not say.
pub fn free_memory() -> Option<usize> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()? * 1024)
}

/// Bytes that the keys and values of sampling may take where nobody says: half of what is left now, with the weights in
/// place. On a device there is no bound but its memory.
pub(super) fn cache_bound(device: &Device) -> usize {
    match available() {
        Some(available) if device.is_cpu() => available / 2,
        _ => usize::MAX,
    }
}

/// Of [`free_memory`], what this process's control group still lets it take.
pub(super) fn available() -> Option<usize> {
    let free = free_memory()?;
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<usize>().ok();
    let group = number("/sys/fs/cgroup/memory.max").zip(number("/sys/fs/cgroup/memory.current"));
    Some(group.map_or(free, |(most, current)| free.min(most.saturating_sub(current))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        error::Diagnostic,
        model::{Design, Init, kernels::Heads},
    };

    fn config() -> ModelConfig {
        ModelConfig {
            vocabulary: 100,
            hidden: 48,
            intermediate: 80,
            layers: 3,
            heads: Heads { query: 4, kv: 2, dim: 16 },
            context: 64,
            rope_theta: 10_000.0,
            norm_epsilon: 1e-6,
            tied: false,
            design: Design::default(),
        }
    }

    #[test]
    fn the_weights_predicted_are_those_held() {
        for format in [Format::F32, Format::F16, Format::Bf16, Format::Nf4] {
            let mut decoder = Decoder::random(config(), Init { seed: 1, deviation: 0.1 }).unwrap();
            decoder.freeze(format).unwrap();
            assert_eq!(held(&config(), format), decoder.bytes(), "{format:?}");
        }
    }

    #[test]
    fn recomputing_and_narrow_weights_take_less() {
        let load = |recompute| TrainingLoad {
            rows: 1000,
            longest: 64,
            workers: 1,
            threads: 1,
            recompute,
            rank: Some(8),
            moments: 8,
        };
        let of = |format, recompute| Footprint::training(&config(), format, &load(recompute)).total();
        assert!(of(Format::F32, true) < of(Format::F32, false));
        assert!(
            of(Format::Nf4, true) < of(Format::Bf16, true) && of(Format::Bf16, true) < of(Format::F32, true)
        );
    }

    #[test]
    fn keys_and_values_take_half_beside_weights_multiplied_in_bf16() {
        let (sequences, longest, tokens) = (3, 64, 150);
        let load = SamplingLoad { sequences, longest, tokens, bound: None, threads: 1, rank: None };
        let cache = |format| Footprint::sampling(&config(), format, &load).cache;
        assert_eq!(cache(Format::F16), cache(Format::F32));
        assert_eq!([Format::Bf16, Format::Nf4].map(cache), [cache(Format::F32) / 2; 2]);
    }

    #[test]
    fn a_bound_on_keys_and_values_beyond_the_memory_is_refused_with_one_that_fits() {
        let places = Places::cpu(1, 2);
        check_sampling(&config(), &places, Some(1 << 20)).unwrap();
        let refused = check_sampling(&config(), &places, Some(usize::MAX / 2)).unwrap_err();
        assert!(refused.hint().unwrap().starts_with("set kv_cache_mib under [engine] to "), "{refused}");
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_change_that_would_help() {
        let huge = Footprint { weights: usize::MAX / 2, ..Footprint::default() };
        let error = huge.fits(None, "sampling", || "a smaller batch".into()).unwrap_err().to_string();
        assert!(error.starts_with("sampling needs"), "{error}");
        Footprint::default().fits(None, "sampling", String::new).unwrap();
    }
}
