//! Estimates the peak memory of sampling or training before it is allocated.
//!
//! The estimate counts weights, keys and values, trained parameters with their gradients and moments,
//! activations and logits, and a constant for the rest of the process. `mcprl bench` prints it next to the
//! measured value, and `mcprl plan` prints it before anything is loaded.

use std::path::Path;

use candle_core::Device;
use serde::Serialize;

use super::{
    DeviceSet, EngineError, EngineSpec, ModelCache, Recompute,
    available::{available_for, give_back},
    recompute::kept_bytes_of,
    threads::Split,
    trainer::logit_rows,
    worker::STEP_ROWS,
};
use crate::model::{AdapterSize, Decoder, Experts, ModelConfig, kernels::Format, ops::KvFormat};

const FLOAT: usize = size_of::<f32>();

/// Code, buffers, threads and memory that the allocator retains, as measured on small decoders.
const BESIDE: usize = 40 << 20;

/// Bytes at the peak, by purpose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Footprint {
    /// Weights in their storage format, and the tables of the rotary embedding.
    pub weights: usize,
    /// Trained parameters with their packed copies, gradients and the optimiser's moments.
    pub trained: usize,
    /// Keys and values of conversations.
    pub cache: usize,
    /// Intermediate tensors of a step.
    pub activations: usize,
    pub logits: usize,
    /// The rest of the process.
    pub beside: usize,
}

/// The size of a sampling workload.
#[derive(Debug, Clone, Copy)]
pub struct SamplingLoad {
    /// Concurrent conversations.
    pub sequences: usize,
    /// Longest of them, in tokens.
    pub longest: usize,
    /// Tokens whose keys and values are in memory at once. Shared tokens count once.
    pub tokens: usize,
    /// Upper bound in bytes for these keys and values, if there is one.
    pub bound: Option<usize>,
    /// Threads of all devices.
    pub threads: usize,
    /// `cpu` devices: they share the frozen weights, and each has its own trained parameters.
    pub devices: usize,
    /// Size of the policy's adapter, if it has one.
    pub adapter: Option<AdapterSize>,
}

/// The size of a training workload.
#[derive(Debug, Clone, Copy)]
pub struct TrainingLoad {
    /// Distinct tokens of the largest microbatch.
    pub rows: usize,
    /// Longest sequence, in tokens.
    pub longest: usize,
    /// Concurrent microbatches.
    pub workers: usize,
    /// Threads of one operation.
    pub threads: usize,
    /// `cpu` devices: they share the frozen weights, and each has its own trained parameters.
    pub devices: usize,
    /// Activations are recomputed from each layer's input.
    pub recompute: bool,
    /// Size of the trained adapter; none if all weights are trained.
    pub adapter: Option<AdapterSize>,
    /// Bytes of the optimiser's moments per parameter: 8 for AdamW, about 2 with 8-bit moments.
    pub moments: usize,
}

impl Footprint {
    pub fn total(&self) -> usize {
        self.weights + self.trained + self.cache + self.activations + self.logits + self.beside
    }

    /// Estimates sampling with a policy whose base is in this format.
    pub fn sampling(config: &ModelConfig, format: Format, load: &SamplingLoad) -> Self {
        let AdapterSize { values, packed, ranks } = load.adapter.unwrap_or_default();
        let Split { workers, threads } = Split::of(held(config, format), load.threads, load.devices);
        // A segment's room for growth; see `kernels::KeyValues`.
        let tokens = load.tokens + load.sequences * crate::model::kernels::PANEL;
        let holding = KvFormat { heads: config.heads, format, by_kernels: true };
        let cache = config.layers * holding.bytes_for(tokens);
        // Prompts fill a step. Without prompts, a step has one row per conversation.
        let rows = (load.tokens / workers).clamp(1, STEP_ROWS);
        let asking = load.sequences.div_ceil(workers).min(rows).min(logit_rows(config));
        Self {
            weights: weights(config, format),
            trained: load.devices.saturating_mul(values.saturating_add(packed)).saturating_mul(FLOAT),
            cache: load.bound.map_or(cache, |bound| cache.min(bound)),
            activations: workers
                * (rows * layer_row(config, ranks) + scores(config, load.longest, threads))
                * FLOAT,
            logits: workers * asking * config.vocabulary * FLOAT,
            beside: BESIDE,
        }
    }

    /// Estimates a training step over token trees, with the base in this format.
    pub fn training(config: &ModelConfig, format: Format, load: &TrainingLoad) -> Self {
        let heads = config.heads;
        let (query, kv) = (heads.query * heads.dim, heads.kv * heads.dim);
        let ranks = load.adapter.map_or(0, |size| size.ranks);
        let (kept, inputs) = (layer_row(config, ranks), config.hidden);
        let attention = kept - feed_row(config);
        // During a layer's backward: the gradients of the feed-forward, of attention and of the layer's
        // input, and the keys and values in the layouts of both products. In bf16 these layouts take half the
        // bytes.
        let keys = if format.is_multiplied_in_bf16() { 4 * kv } else { 6 * kv };
        let backward = 2 * config.hidden + feed_backward(config).max(3 * query + keys);
        let per_row = match load.recompute {
            true => config.layers * inputs + kept.max(attention + 2 * config.hidden + 3 * query + keys),
            false => config.layers * layer_row(config, 0) + ranks + backward,
        };
        let scores = 2 * scores(config, load.longest, load.threads);
        let AdapterSize { values, packed, .. } = load.adapter.unwrap_or_else(|| whole(config));
        // One block of logits and the gradients of their rows.
        let block = logit_rows(config) * config.vocabulary * FLOAT;
        Self {
            weights: match load.adapter {
                Some(_) => weights(config, format),
                None => 0,
            },
            // Gradients: the sum and one set per worker.
            trained: (values.saturating_add(packed).saturating_mul(load.devices))
                .saturating_add(values.saturating_mul(1 + load.workers))
                .saturating_mul(FLOAT)
                .saturating_add(values.saturating_mul(load.moments)),
            activations: load.workers * (load.rows * per_row + scores) * FLOAT,
            logits: load.workers * 2 * block,
            cache: 0,
            beside: BESIDE,
        }
    }

    /// Checks that this fits the available memory, after unused models are evicted.
    ///
    /// # Errors
    /// Fails if it does not fit, with `change`: what would make it fit.
    pub fn fits(
        &self,
        bases: Option<&ModelCache>,
        what: &'static str,
        change: impl FnOnce() -> String,
    ) -> Result<(), EngineError> {
        let available = match bases {
            Some(bases) => Some(bases.room(self.total())),
            None => available_for(self.total()),
        };
        match available {
            Some(available) if self.total() > available => {
                Err(EngineError::Memory { what, needs: self.total(), available, change: change() })
            }
            _ => Ok(()),
        }
    }
}

/// Fails if the steps of sampling, and the keys and values up to the configured bound, do not fit besides the
/// weights, which are already loaded.
pub(super) fn check_sampling(
    config: &ModelConfig,
    places: &DeviceSet,
    bound: Option<usize>,
) -> Result<(), EngineError> {
    let threads = places.threads();
    let (longest, tokens) = (config.context, STEP_ROWS);
    let devices = places.count();
    let load =
        SamplingLoad { sequences: STEP_ROWS, longest, tokens, bound: None, threads, devices, adapter: None };
    let step = Footprint::sampling(config, Format::F32, &load);
    let planned = Footprint { weights: 0, trained: 0, beside: 0, cache: bound.unwrap_or(0), ..step };
    planned.fits(places.bases.as_deref(), "sampling", || match bound {
        Some(_) => {
            let left =
                available_for(usize::MAX).unwrap_or_default().saturating_sub(planned.total() - planned.cache);
            format!("set kv_cache_mib under [engine] to {} or less", (left >> 20).max(1))
        }
        None => "take a smaller model, or a narrower dtype under [engine]".into(),
    })
}

/// Fails if trained parameters with their gradients and the optimiser's moments alone do not fit the memory.
/// Called before they are allocated. `moments`: bytes of the moments per parameter.
pub fn check_trained(
    config: &ModelConfig,
    adapter: Option<AdapterSize>,
    places: &DeviceSet,
    moments: usize,
) -> Result<(), EngineError> {
    if !places.first.device.is_cpu() {
        // A device reports its own lack of memory.
        return Ok(());
    }
    let devices = places.count();
    let load = TrainingLoad {
        rows: 0,
        longest: 0,
        workers: 1,
        threads: 1,
        devices,
        recompute: true,
        adapter,
        moments,
    };
    let trained = Footprint::training(config, Format::F32, &load).trained;
    let bases = places.bases.as_deref();
    Footprint { trained, ..Footprint::default() }.fits(bases, WHAT_IS_TRAINED, || smaller(adapter, moments))
}

pub(super) const WHAT_IS_TRAINED: &str = "what is trained, with its gradients and the optimiser's moments,";

/// What would reduce the trained parameters' memory, given this many bytes of moments per parameter.
pub(super) fn smaller(adapter: Option<AdapterSize>, moments: usize) -> String {
    let smaller = match adapter {
        Some(_) => "set a smaller rank, or fewer targets",
        None => "take a smaller model, or set lora = true to train an adapter of it",
    };
    match moments >= 8 {
        true => format!("{smaller}; optimizer = \"adamw_8bit\" takes a quarter of the moments"),
        false => smaller.into(),
    }
}

impl EngineSpec {
    /// Checks that the keys and values of a conversation of this length fit the bound, if one is set for the
    /// CPU.
    ///
    /// # Errors
    /// The error that sampling would give on the device with the most memory per worker.
    pub fn check_conversation(&self, config: &ModelConfig, tokens: usize) -> Result<(), EngineError> {
        let on_cpu = self.devices.iter().all(|device| device == "cpu");
        let Some(mib) = self.kv_cache_mib.filter(|_| on_cpu) else { return Ok(()) };
        let format = self.dtype.unwrap_or(Format::F32);
        let threads = self.on(self.devices.get(..1).unwrap_or_default()).all_threads();
        let bound = mib.saturating_mul(1 << 20) / Split::of(held(config, format), threads, 1).workers;
        let holding = KvFormat { heads: config.heads, format, by_kernels: true };
        let needs = config.layers * holding.bytes_for(tokens);
        if needs <= bound { Ok(()) } else { Err(EngineError::Cache { tokens, needs, bound }) }
    }
}

/// Loads a model to this device for use without training, in this format or in `f32`.
///
/// # Errors
/// Also fails if the weights alone exceed the available memory.
pub fn load_frozen(folder: &Path, dtype: Option<Format>, device: &Device) -> Result<Decoder, EngineError> {
    let format = dtype.unwrap_or(Format::F32);
    if device.is_cpu() {
        let needs = weights(&ModelConfig::load(folder)?, format);
        check_weights(needs, format, available_for(needs).unwrap_or(usize::MAX))?;
    }
    let decoder = Decoder::load_on(folder, Some(format), device)?;
    give_back();
    Ok(decoder)
}

/// Fails if the weights take more bytes than are available.
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

/// Values per row of one layer's forward: input, two norms, middle and output; queries and keys before and
/// after norm and rotation, attention and values; the feed-forward; the adapters' values. `ranks` is the sum
/// of the adapters' ranks in all layers.
fn layer_row(config: &ModelConfig, ranks: usize) -> usize {
    let heads = config.heads;
    let attention = 5 * config.hidden + 3 * (heads.query + heads.kv) * heads.dim;
    (attention + feed_row(config)).saturating_add(ranks.div_ceil(config.layers))
}

/// Values per row of one layer's feed-forward: gate, up and their product. In a mixture: those of each expert
/// that the token uses, with that expert's copies of its input and output, and the probabilities of all
/// experts for the token.
pub(super) fn feed_row(config: &ModelConfig) -> usize {
    match config.design.experts {
        None => 3 * config.intermediate,
        Some(Experts { count, per_token, .. }) => {
            per_token * (3 * config.intermediate + 2 * config.hidden) + count
        }
    }
}

/// Values per row for the gradients of the feed-forward, of one expert at a time.
fn feed_backward(config: &ModelConfig) -> usize {
    match config.design.experts {
        None => 3 * config.intermediate,
        Some(_) => 3 * config.intermediate + 2 * config.hidden,
    }
}

/// Scores of the rows that all threads process at once.
fn scores(config: &ModelConfig, longest: usize, threads: usize) -> usize {
    32 * (config.heads.query / config.heads.kv) * longest * threads
}

/// The number of concurrent microbatches, and whether activations are recomputed, as [`super::Trainer`] will
/// decide.
pub fn training_load(
    config: &ModelConfig,
    format: Format,
    load: TrainingLoad,
    batches: usize,
    recompute: Recompute,
) -> TrainingLoad {
    let held = match load.adapter {
        Some(_) => held(config, format),
        // Plain weights have a packed copy.
        None => 2 * held(config, Format::F32),
    };
    let Split { workers, threads } = Split::of(held, load.threads, load.devices);
    let workers = workers.min(batches).max(1);
    let ranks = load.adapter.map_or(0, |size| size.ranks);
    let recompute = recompute.decide_for(kept_bytes_of(config, ranks, load.rows.saturating_mul(workers)));
    TrainingLoad { workers, threads, recompute, ..load }
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

/// The size of all weights if they are trained.
fn whole(config: &ModelConfig) -> AdapterSize {
    let packed = |outputs: usize, inputs: usize| Format::F32.bytes(outputs, inputs) / FLOAT;
    let ends = if config.tied { 1 } else { 2 };
    let heads = if config.design.head_norms { 2 * config.heads.dim } else { 0 };
    let (mut values, mut copies) = (2 * config.hidden + heads, 0);
    for linear in config.linears() {
        values += linear.outputs * linear.inputs + if linear.bias { linear.outputs } else { 0 };
        copies += packed(linear.outputs, linear.inputs);
    }
    AdapterSize {
        ranks: 0,
        values: ends * config.vocabulary * config.hidden + config.layers * values + config.hidden,
        packed: ends * packed(config.vocabulary, config.hidden) + config.layers * copies,
    }
}

/// Default bound in bytes for the keys and values of sampling: half of the memory available now, with the
/// weights loaded. On a device the only bound is its memory.
pub(super) fn cache_bound(device: &Device) -> usize {
    match device.is_cpu().then(|| available_for(usize::MAX)).flatten() {
        Some(available) => available / 2,
        None => usize::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        error::Diagnostic,
        model::{AdapterConfig, Design, Family, Init, Targets, kernels::Heads},
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
            devices: 1,
            recompute,
            adapter: Some(AdapterConfig::new(8, 16.0).size(&config()).unwrap()),
            moments: 8,
        };
        let of = |format, recompute| Footprint::training(&config(), format, &load(recompute)).total();
        assert!(of(Format::F32, true) < of(Format::F32, false));
        assert!(
            of(Format::Nf4, true) < of(Format::Bf16, true) && of(Format::Bf16, true) < of(Format::F32, true)
        );
    }

    #[test]
    fn all_weights_are_counted_as_what_is_trained() {
        for family in Family::ALL {
            let experts =
                (family == Family::Qwen3Moe).then_some(Experts { count: 4, per_token: 2, normalised: true });
            for tied in [true, false] {
                let config =
                    ModelConfig { tied, design: Design { experts, ..Design::of(family) }, ..config() };
                let mut decoder = Decoder::random(config.clone(), Init { seed: 1, deviation: 0.1 }).unwrap();
                let values = decoder.trained().iter().map(|p| p.tensor().elem_count()).sum::<usize>();
                assert_eq!(whole(&config).values, values, "{family:?}");
            }
        }
    }

    #[test]
    fn adapters_are_counted_where_the_targets_put_them() {
        let experts = Some(Experts { count: 128, per_token: 8, normalised: true });
        let mixture = ModelConfig { design: Design { experts, ..Design::of(Family::Qwen3Moe) }, ..config() };
        let trained = |targets: Targets| {
            let adapter = AdapterConfig { targets, ..AdapterConfig::new(16, 32.0) }.size(&mixture).unwrap();
            let load = TrainingLoad {
                rows: 1,
                longest: 1,
                workers: 1,
                threads: 1,
                devices: 1,
                recompute: false,
                adapter: Some(adapter),
                moments: 8,
            };
            Footprint::training(&mixture, Format::F32, &load).trained
        };
        let named = |names: &[&str]| trained(Targets::Names(names.iter().map(|n| (*n).into()).collect()));
        let [all, queries, experts] = [trained(Targets::AllLinear), named(&["q_proj"]), named(&["up_proj"])];
        assert!(2 * queries < all && 10 * all < experts, "{queries} {all} {experts}");
    }

    #[test]
    fn every_device_has_what_is_trained_and_its_own_work() {
        let adapter = Some(AdapterConfig::new(8, 16.0).size(&config()).unwrap());
        let (sequences, longest, tokens, bound) = (8, 64, 512, None);
        let sampling = |devices| {
            let load = SamplingLoad { sequences, longest, tokens, bound, threads: 1, devices, adapter };
            Footprint::sampling(&config(), Format::F32, &load)
        };
        let [one, two] = [1, 2].map(sampling);
        assert_eq!((two.trained, two.weights), (2 * one.trained, one.weights));
        assert!(two.activations > one.activations);
        let load = |devices| TrainingLoad {
            rows: 100,
            longest,
            workers: 4,
            threads: 1,
            devices,
            recompute: false,
            adapter,
            moments: 8,
        };
        let workers =
            |devices| training_load(&config(), Format::F32, load(devices), 4, Recompute::Auto).workers;
        assert_eq!([1, 2].map(workers), [1, 2]);
        let trained = |devices| Footprint::training(&config(), Format::F32, &load(devices)).trained;
        assert!(trained(2) > trained(1));
    }

    #[test]
    fn what_is_trained_is_refused_before_it_is_there() {
        let size = AdapterConfig::new(8, 16.0).size(&config()).unwrap();
        let room = |bytes| DeviceSet { bases: Some(ModelCache::with_left(bytes)), ..DeviceSet::cpu(1, 1) };
        let check = |adapter, bytes| check_trained(&config(), adapter, &room(bytes), 8);
        // Values, packed copy, gradients twice, two moments.
        let whole = Decoder::random(config(), Init { seed: 1, deviation: 0.1 }).unwrap();
        let whole = 4 * whole.tensors().unwrap().iter().map(|(_, tensor)| tensor.elem_count()).sum::<usize>();
        check(None, 7 * whole).unwrap();
        let refused = check(None, 5 * whole).unwrap_err();
        assert!(refused.to_string().starts_with("what is trained, with its gradients"), "{refused}");
        let hint = refused.hint().unwrap();
        assert!(hint.contains("lora = true") && hint.contains("adamw_8bit"), "{hint}");
        check(Some(size), 8 * 4 * size.values).unwrap();
        assert!(check(Some(size), 4 * 4 * size.values).unwrap_err().hint().unwrap().contains("smaller rank"));
    }

    #[test]
    fn keys_and_values_take_half_beside_weights_multiplied_in_bf16() {
        let (sequences, longest, tokens) = (3, 64, 150);
        let (threads, devices, adapter) = (1, 1, None);
        let load = SamplingLoad { sequences, longest, tokens, bound: None, threads, devices, adapter };
        let cache = |format| Footprint::sampling(&config(), format, &load).cache;
        assert_eq!(cache(Format::F16), cache(Format::F32));
        assert_eq!([Format::Bf16, Format::Nf4].map(cache), [cache(Format::F32) / 2; 2]);
    }

    #[test]
    fn a_bound_on_keys_and_values_beyond_the_memory_is_refused_with_one_that_fits() {
        let places = DeviceSet::cpu(1, 2);
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
