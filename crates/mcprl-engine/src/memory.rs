//! Estimates the peak memory of sampling or training before it is allocated.
//!
//! The estimate counts weights, keys and values, trained parameters with their gradients and moments,
//! activations and logits, and a constant for the rest of the process. `mcprl-bench` prints it next to the
//! measured value, and `mcprl plan` prints it before anything is loaded.

use candle_core::Device;
use serde::Serialize;

use super::{
    DeviceSet, EngineError, EngineSpec, ModelCache, Recompute,
    available::{DeviceMemory, available_for},
    device_memory::device_memory,
    size::{
        FLOAT, STEP_ROWS, activation_bytes, all_layers_row, all_weights, feed_forward_row, layer_row,
        logit_rows, model_bytes, recurrence_backward_row, weight_bytes,
    },
    threads::Split,
};
use crate::model::{
    AdapterSize, Decoder, LayerKind, ModelConfig,
    kernels::{Format, PANEL},
    ops::{
        KvFormat,
        composed::{DELTA_WORKSPACE, TileSize},
    },
};

/// Code, buffers, threads and memory that the allocator retains, as measured on small decoders.
const PROCESS_BYTES: usize = 40 << 20;

/// Bytes at the peak, by purpose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Footprint {
    /// Weights in their storage format, and the tables of the rotary embedding.
    pub weights: usize,
    /// Trained parameters with their packed copies, gradients and the optimizer's moments.
    pub trained: usize,
    /// Keys and values of conversations.
    pub cache: usize,
    /// Intermediate tensors of a step.
    pub activations: usize,
    pub logits: usize,
    /// The rest of the process.
    pub process: usize,
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
    /// `cpu` devices, which share the frozen weights.
    pub devices: usize,
    /// Copies of the trained parameters.
    pub copies: usize,
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
    /// `cpu` devices, which share the frozen weights.
    pub devices: usize,
    /// Copies of the trained parameters.
    pub copies: usize,
    /// Activations are recomputed from each layer's input.
    pub recompute: bool,
    /// Size of the trained adapter; none if all weights are trained.
    pub adapter: Option<AdapterSize>,
    /// Bytes of the optimizer's moments per parameter: 8 for AdamW, about 2 with 8-bit moments.
    pub moments: usize,
}

impl Footprint {
    pub fn total(&self) -> usize {
        self.weights + self.trained + self.cache + self.activations + self.logits + self.process
    }

    /// Estimates sampling with a policy whose base is in this format.
    pub fn sampling(config: &ModelConfig, format: Format, load: &SamplingLoad) -> Self {
        let AdapterSize { values, packed, ranks } = load.adapter.unwrap_or_default();
        let Split { workers, threads } = Split::of(weight_bytes(config, format), load.threads, load.devices);
        // A segment's room for growth; see `kernels::KeyValues`.
        let tokens = load.tokens + load.sequences * PANEL;
        // A conversation has a segment of its own, and shares those of its task with its group.
        let segments = load.sequences.saturating_mul(2).saturating_add(PATH_SEGMENTS);
        let states = key_value_bytes(config, format, 0).saturating_mul(segments);
        let cache = key_value_bytes(config, format, tokens).saturating_add(states);
        // Prompts fill a step. Without prompts, a step has one row per conversation.
        let rows = (load.tokens / workers).clamp(1, STEP_ROWS);
        let sampled = load.sequences.div_ceil(workers).min(rows).min(logit_rows(config, true));
        Self {
            weights: model_bytes(config, format),
            trained: load.copies.saturating_mul(values.saturating_add(packed)).saturating_mul(FLOAT),
            cache: load.bound.map_or(cache, |bound| cache.min(bound)),
            activations: workers
                * (rows * layer_row(config, ranks) + scores(config, load.longest, threads))
                * FLOAT,
            logits: workers * sampled * config.vocabulary * FLOAT,
            process: PROCESS_BYTES,
        }
    }

    /// Estimates a training step over token trees, with the base in this format.
    pub fn training(config: &ModelConfig, format: Format, load: &TrainingLoad) -> Self {
        let heads = config.heads;
        let (query, kv) = (heads.query * heads.dim, heads.kv * heads.dim);
        let ranks = load.adapter.map_or(0, |size| size.ranks);
        let layer = layer_row(config, ranks);
        let attention = layer - feed_forward_row(config);
        // During a layer's backward: the gradients of the feed-forward, of attention and of the layer's
        // input, and the keys and values in the layouts of both products. In bf16 these layouts take half the
        // bytes.
        let keys = if format.is_multiplied_in_bf16() { 4 * kv } else { 6 * kv };
        let outputs = if config.design.output_norms { 3 * config.hidden } else { 2 * config.hidden };
        let backward = outputs
            + feed_forward_backward_row(config).max(3 * query + keys).max(recurrence_backward_row(config));
        let per_row = match load.recompute {
            // The output norm needs the feed-forward's result, so the whole layer is recomputed.
            true if config.design.output_norms => config.layers * config.hidden + layer + backward,
            true => {
                config.layers * config.hidden
                    + layer.max(
                        attention
                            + 2 * config.hidden
                            + (3 * query + keys).max(recurrence_backward_row(config)),
                    )
            }
            false => all_layers_row(config) + ranks + backward,
        };
        let scores = 2 * scores(config, load.longest, load.threads);
        let AdapterSize { values, packed, .. } = load.adapter.unwrap_or_else(|| all_weights(config));
        // One block of logits and the gradients of their rows.
        let block = logit_rows(config, true) * config.vocabulary * FLOAT;
        Self {
            weights: match load.adapter {
                Some(_) => model_bytes(config, format),
                None => 0,
            },
            // Gradients: the sum and one set per worker.
            trained: (values.saturating_add(packed).saturating_mul(load.copies))
                .saturating_add(values.saturating_mul(1 + load.workers))
                .saturating_mul(FLOAT)
                .saturating_add(values.saturating_mul(load.moments)),
            activations: load.workers * (load.rows * per_row + scores) * FLOAT,
            logits: load.workers * 2 * block,
            cache: 0,
            process: PROCESS_BYTES,
        }
    }

    /// Checks that this fits the available memory, after unused models are evicted from the cache.
    ///
    /// # Errors
    /// Fails if it does not fit, with `change`: what would make it fit.
    pub fn fits(
        &self,
        model_cache: Option<&ModelCache>,
        what: &'static str,
        change: impl FnOnce() -> String,
    ) -> Result<(), EngineError> {
        let available = match model_cache {
            Some(cache) => Some(cache.make_room_on(&Device::Cpu, self.total())),
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
    devices: &DeviceSet,
    bound: Option<usize>,
) -> Result<(), EngineError> {
    let load = SamplingLoad {
        sequences: STEP_ROWS,
        longest: config.context,
        tokens: STEP_ROWS,
        bound: None,
        threads: devices.threads(),
        devices: devices.count(),
        copies: devices.copies(),
        adapter: None,
    };
    let step = Footprint::sampling(config, Format::F32, &load);
    let planned = Footprint { weights: 0, trained: 0, process: 0, cache: bound.unwrap_or(0), ..step };
    planned.fits(devices.model_cache.as_deref(), "sampling", || match bound {
        Some(_) => {
            let others = planned.total() - planned.cache;
            let rest = available_for(usize::MAX).unwrap_or_default().saturating_sub(others);
            format!("set kv_cache_mib under [engine] to {} or less", (rest >> 20).max(1))
        }
        None => "use a smaller model, or a narrower dtype under [engine]".into(),
    })
}

/// Fails if trained parameters with their gradients and the optimizer's moments alone do not fit the memory.
/// Called before they are allocated. `moments`: bytes of the moments per parameter.
pub fn check_trained(
    config: &ModelConfig,
    adapter: Option<AdapterSize>,
    devices: &DeviceSet,
    moments: usize,
) -> Result<(), EngineError> {
    if !devices.first.device.is_cpu() {
        // A device reports its own lack of memory.
        return Ok(());
    }
    let load = TrainingLoad {
        rows: 0,
        longest: 0,
        workers: 1,
        threads: 1,
        devices: devices.count(),
        copies: devices.copies(),
        recompute: true,
        adapter,
        moments,
    };
    let trained = Footprint::training(config, Format::F32, &load).trained;
    Footprint { trained, ..Footprint::default() }
        .fits(devices.model_cache.as_deref(), TRAINED, || fewer_trained(adapter, moments))
}

/// What [`Footprint::trained`] is in an error.
pub(super) const TRAINED: &str = "training (parameters, gradients and optimizer moments)";

/// The hint if the trained parameters do not fit, given the bytes of moments per parameter.
pub(super) fn fewer_trained(adapter: Option<AdapterSize>, moments: usize) -> String {
    let change = match adapter {
        Some(_) => "set a smaller rank, or fewer targets",
        None => "use a smaller model, or set lora = true to train an adapter",
    };
    match moments >= 8 {
        true => format!("{change}; optimizer = \"adamw_8bit\" reduces the moments to a quarter"),
        false => change.into(),
    }
}

impl EngineSpec {
    /// Checks that the keys and values of a conversation of this length fit the bound, if one is set for the
    /// CPU. `format`: the type of the frozen weights.
    ///
    /// # Errors
    /// The error that sampling would give on the device with the most memory per worker.
    pub fn check_conversation(
        &self,
        config: &ModelConfig,
        format: Format,
        tokens: usize,
    ) -> Result<(), EngineError> {
        let on_cpu = self.devices.iter().all(|device| device == "cpu");
        let Some(mib) = self.kv_cache_mib.filter(|_| on_cpu) else { return Ok(()) };
        let threads = self.on(self.devices.get(..1).unwrap_or_default()).all_threads();
        let bound = mib.saturating_mul(1 << 20) / Split::of(weight_bytes(config, format), threads, 1).workers;
        let states = key_value_bytes(config, format, 0).saturating_mul(PATH_SEGMENTS - 1);
        let needs = key_value_bytes(config, format, tokens).saturating_add(states);
        if needs <= bound { Ok(()) } else { Err(EngineError::Cache { tokens, needs, bound }) }
    }
}

/// Most segments of a conversation whose history is not rewritten: its prompt's three pieces, and its own tokens. Each has a
/// state of every recurrence.
const PATH_SEGMENTS: usize = 4;

/// Bytes of the keys and values of this many tokens of one segment, on the CPU, with the states of recurrences.
fn key_value_bytes(config: &ModelConfig, format: Format, tokens: usize) -> usize {
    let kv = KvFormat { heads: config.heads, format, by_kernels: true }.bytes_for(tokens);
    let of =
        |(kind, layers): (LayerKind, usize)| layers * config.recurrence(kind).map_or(kv, |of| of.bytes(true));
    config.kinds().into_iter().map(of).sum()
}

/// Values per row for the gradients of the feed-forward, of one expert at a time.
fn feed_forward_backward_row(config: &ModelConfig) -> usize {
    3 * config.intermediate + if config.design.experts.is_some() { 2 * config.hidden } else { 0 }
}

/// Scores of the rows that all threads process at once.
fn scores(config: &ModelConfig, longest: usize, threads: usize) -> usize {
    32 * (config.heads.query / config.heads.kv) * longest * threads
}

/// The number of concurrent microbatches, and whether activations are recomputed, as [`super::Trainer`] will
/// decide with this many bytes for activations.
pub fn training_load(
    config: &ModelConfig,
    format: Format,
    load: TrainingLoad,
    batches: usize,
    (recompute, budget): (Recompute, usize),
) -> TrainingLoad {
    let weights = match load.adapter {
        Some(_) => weight_bytes(config, format),
        // Trained weights have a packed copy.
        None => 2 * weight_bytes(config, Format::F32),
    };
    let Split { workers, threads } = Split::of(weights, load.threads, load.devices);
    let workers = workers.min(batches).max(1);
    let ranks = load.adapter.map_or(0, |size| size.ranks);
    let recompute =
        recompute.decide(activation_bytes(config, ranks, load.rows.saturating_mul(workers)), budget);
    TrainingLoad { workers, threads, recompute, ..load }
}

/// Bytes of keys and values on a device that does not report its memory.
const UNKNOWN_DEVICE: usize = 2 << 30;

/// Bound in bytes for the keys and values of sampling, with the decoder loaded. `bytes`: the bound on each device, or on the
/// CPU. By default half of the memory available now; on a device with its own memory, what a step leaves of it.
pub(super) fn cache_bound(decoder: &Decoder, bytes: Option<usize>) -> usize {
    let (placement, config) = (decoder.placement(), &decoder.config);
    let of_device = |device: &Device| {
        let own = |memory| device_cache_bound(memory, device_steps(config, placement.devices().len()));
        bytes.unwrap_or_else(|| device_memory(device).map_or(UNKNOWN_DEVICE, own))
    };
    match placement.first() {
        Device::Cpu => {
            let half = || available_for(usize::MAX).map_or(usize::MAX, |available| available / 2);
            bytes.unwrap_or_else(half)
        }
        _ => {
            let least = placement.devices().iter().map(of_device).min().unwrap_or(0);
            let of_layer = |layer| match config.recurrence(config.layer(layer)) {
                Some(recurrence) => recurrence.bytes(false),
                None => decoder.kv_format(layer).bytes_for(TYPICAL_SEGMENT),
            };
            (least as f64 / placement.largest_share(config.layers, of_layer)) as usize
        }
    }
}

/// Tokens of a segment, for the share of keys and values beside states of recurrences.
const TYPICAL_SEGMENT: usize = 1024;

/// Bytes for keys and values on a device with this memory, where weights and adapters are loaded, and a step takes this many
/// bytes. A sixteenth of the device is for the driver's libraries, fragments, and segments that are copied as they grow.
fn device_cache_bound(memory: DeviceMemory, step: usize) -> usize {
    memory.free.saturating_sub(step).saturating_sub(memory.total / 16)
}

/// Bytes of the largest sampling step on a device: the intermediate tensors of a layer, a tile of attention, a block of
/// logits, a weight decoded from 4 bits, and the chunks of linear attention. Composed operations hold an operand, a result and a temporary of it.
fn device_step(config: &ModelConfig) -> usize {
    let heads = config.heads;
    let keys = TileSize::STEP.keys.min(config.context);
    let scores = heads.query * TileSize::STEP.rows * keys;
    let tile = 3 * scores + 2 * heads.query * heads.dim * keys;
    let logits = 3 * logit_rows(config, false) * config.vocabulary;
    let linears = config.all_linears();
    let weight = linears.iter().map(|linear| linear.outputs * linear.inputs).max().unwrap_or(0);
    let step = (2 * STEP_ROWS * layer_row(config, 0)).saturating_add(tile).saturating_add(logits);
    let chunks = if config.design.delta.is_some() { DELTA_WORKSPACE } else { 0 };
    step.saturating_add(weight).saturating_mul(FLOAT).saturating_add(chunks)
}

/// [`device_step`] of as many threads as the devices that a decoder is spread over: all may compute on the same device.
fn device_steps(config: &ModelConfig, devices: usize) -> usize {
    device_step(config).saturating_mul(devices)
}

/// Fails if the steps of sampling, and the keys and values up to the configured bound, do not fit a device with this memory
/// besides the decoder, which is already loaded and spread over this many devices.
pub(super) fn check_device_sampling(
    config: &ModelConfig,
    memory: DeviceMemory,
    bound: Option<usize>,
    devices: usize,
) -> Result<(), EngineError> {
    let largest = device_cache_bound(memory, device_steps(config, devices));
    // Without a bound, at least a page of tokens.
    let least = bound.unwrap_or(1 << 20);
    if least <= largest {
        return Ok(());
    }
    let needs = memory.free.saturating_sub(largest).saturating_add(least);
    let change = match bound {
        Some(_) if largest >= 1 << 20 => {
            format!("set kv_cache_mib under [engine] to {} or less", largest >> 20)
        }
        _ => "use a smaller model, or dtype = \"bf16\" or \"nf4\" under [engine]".into(),
    };
    Err(EngineError::Memory { what: "sampling", needs, available: memory.free, change })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{AdapterConfig, Design, Experts, Family, Init, Targets};
    use mcprl_base::error::Diagnostic;

    fn config() -> ModelConfig {
        ModelConfig { layers: 3, tied: false, ..ModelConfig::small() }
    }

    const SAMPLING: SamplingLoad = SamplingLoad {
        sequences: 1,
        longest: 64,
        tokens: 1,
        bound: None,
        threads: 1,
        devices: 1,
        copies: 1,
        adapter: None,
    };

    #[test]
    fn the_estimated_weight_bytes_are_those_in_memory() {
        for format in [Format::F32, Format::F16, Format::Bf16, Format::Nf4] {
            let mut decoder = Decoder::random(config(), Init { seed: 1, deviation: 0.1 }).unwrap();
            decoder.freeze(format).unwrap();
            assert_eq!(weight_bytes(&config(), format), decoder.bytes(), "{format:?}");
        }
    }

    fn training(adapter: AdapterSize) -> TrainingLoad {
        TrainingLoad {
            rows: 1000,
            longest: 64,
            workers: 1,
            threads: 1,
            devices: 1,
            copies: 1,
            recompute: false,
            adapter: Some(adapter),
            moments: 8,
        }
    }

    fn adapter() -> AdapterSize {
        AdapterConfig::new(8, 16.0).size(&config()).unwrap()
    }

    #[test]
    fn recomputing_and_narrow_weights_take_less() {
        let of = |format, recompute| {
            Footprint::training(&config(), format, &TrainingLoad { recompute, ..training(adapter()) }).total()
        };
        assert!(of(Format::F32, true) < of(Format::F32, false));
        assert!(
            of(Format::Nf4, true) < of(Format::Bf16, true) && of(Format::Bf16, true) < of(Format::F32, true)
        );
    }

    #[test]
    fn the_trained_values_of_a_whole_model_are_counted() {
        for family in Family::ALL.iter().copied() {
            let experts =
                (family == Family::Qwen3Moe).then_some(Experts { count: 4, per_token: 2, normalised: true });
            for tied in [true, false] {
                let config =
                    ModelConfig { tied, design: Design { experts, ..Design::of(family) }, ..config() };
                let mut decoder = Decoder::random(config.clone(), Init { seed: 1, deviation: 0.1 }).unwrap();
                let values =
                    decoder.trained().unwrap().iter().map(|p| p.tensor().elem_count()).sum::<usize>();
                assert_eq!(all_weights(&config).values, values, "{family:?}");
            }
        }
    }

    #[test]
    fn adapters_count_on_the_targeted_layers() {
        let experts = Some(Experts { count: 128, per_token: 8, normalised: true });
        let mixture = ModelConfig { design: Design { experts, ..Design::of(Family::Qwen3Moe) }, ..config() };
        let trained = |targets: Targets| {
            let adapter = AdapterConfig { targets, ..AdapterConfig::new(16, 32.0) }.size(&mixture).unwrap();
            Footprint::training(&mixture, Format::F32, &training(adapter)).trained
        };
        let named = |names: &[&str]| trained(Targets::Names(names.iter().map(|n| (*n).into()).collect()));
        let [all, queries, experts] = [trained(Targets::AllLinear), named(&["q_proj"]), named(&["up_proj"])];
        assert!(2 * queries < all && 10 * all < experts, "{queries} {all} {experts}");
    }

    #[test]
    fn every_device_has_its_own_trained_parameters_and_activations() {
        let sampling = |devices, copies| {
            let load = SamplingLoad { sequences: 8, tokens: 512, devices, copies, ..SAMPLING };
            let load = SamplingLoad { adapter: Some(adapter()), ..load };
            Footprint::sampling(&config(), Format::F32, &load)
        };
        let [one, two, spread] = [(1, 1), (2, 2), (2, 1)].map(|(devices, copies)| sampling(devices, copies));
        assert_eq!((two.trained, two.weights), (2 * one.trained, one.weights));
        assert_eq!((spread.trained, spread.activations), (one.trained, two.activations));
        assert!(two.activations > one.activations);
        let load =
            |devices| TrainingLoad { rows: 100, workers: 4, devices, copies: devices, ..training(adapter()) };
        let workers =
            |devices| training_load(&config(), Format::F32, load(devices), 4, (Recompute::Auto, 0)).workers;
        assert_eq!([1, 2].map(workers), [1, 2]);
        let trained = |devices| Footprint::training(&config(), Format::F32, &load(devices)).trained;
        assert!(trained(2) > trained(1));
    }

    #[test]
    fn trained_parameters_that_do_not_fit_are_refused_before_they_are_allocated() {
        let size = adapter();
        let devices = |bytes| DeviceSet {
            model_cache: Some(ModelCache::with_available(bytes)),
            ..DeviceSet::cpu(1, 1)
        };
        let check = |adapter, bytes| check_trained(&config(), adapter, &devices(bytes), 8);
        // Values, packed copy, gradients twice, two moments.
        let whole = Decoder::random(config(), Init { seed: 1, deviation: 0.1 }).unwrap();
        let whole = 4 * whole.tensors().unwrap().iter().map(|(_, tensor)| tensor.elem_count()).sum::<usize>();
        check(None, 7 * whole).unwrap();
        let refused = check(None, 5 * whole).unwrap_err();
        assert!(refused.to_string().starts_with("training (parameters, gradients"), "{refused}");
        let hint = refused.hint().unwrap();
        assert!(hint.contains("lora = true") && hint.contains("adamw_8bit"), "{hint}");
        check(Some(size), 8 * 4 * size.values).unwrap();
        assert!(check(Some(size), 4 * 4 * size.values).unwrap_err().hint().unwrap().contains("smaller rank"));
    }

    #[test]
    fn keys_and_values_take_half_with_weights_multiplied_in_bf16() {
        let load = SamplingLoad { sequences: 3, tokens: 150, ..SAMPLING };
        let cache = |format| Footprint::sampling(&config(), format, &load).cache;
        assert_eq!(cache(Format::F16), cache(Format::F32));
        assert_eq!([Format::Bf16, Format::Nf4].map(cache), [cache(Format::F32) / 2; 2]);
    }

    #[test]
    fn a_bound_on_keys_and_values_beyond_the_memory_is_refused_with_one_that_fits() {
        let devices = DeviceSet::cpu(1, 2);
        check_sampling(&config(), &devices, Some(1 << 20)).unwrap();
        let refused = check_sampling(&config(), &devices, Some(usize::MAX / 2)).unwrap_err();
        assert!(refused.hint().unwrap().starts_with("set kv_cache_mib under [engine] to "), "{refused}");
    }

    /// Qwen3-4B.
    fn four_billion() -> ModelConfig {
        ModelConfig {
            vocabulary: 151_936,
            hidden: 2560,
            intermediate: 9728,
            layers: 36,
            heads: crate::model::kernels::Heads { query: 32, kv: 8, dim: 128 },
            context: 40_960,
            ..ModelConfig::small()
        }
    }

    #[test]
    fn keys_and_values_on_a_device_get_what_weights_and_a_step_leave() {
        const GIB: usize = 1 << 30;
        let config = four_billion();
        let card = |gib: usize, weights: usize| DeviceMemory {
            free: (gib * GIB).saturating_sub(weights + GIB / 2),
            total: gib * GIB,
        };
        let step = device_step(&config);
        assert!((GIB..6 * GIB).contains(&step), "{step}");
        let weights = model_bytes(&config, Format::Bf16);
        let bound = |gib| device_cache_bound(card(gib, weights), step);
        assert!(bound(24) > 4 * GIB && bound(24) + weights + step < 24 * GIB, "{}", bound(24) >> 20);
        assert_eq!(bound(80) - bound(24), 56 * GIB - 56 * GIB / 16);
        assert_eq!(bound(8), 0);
        // Keys and values of several conversations fit.
        let keys = KvFormat { heads: config.heads, format: Format::Bf16, by_kernels: false };
        assert!(bound(24) > 4 * config.layers * keys.bytes_for(4096));

        check_device_sampling(&config, card(24, weights), None, 1).unwrap();
        check_device_sampling(&config, card(24, weights), Some(bound(24)), 1).unwrap();
        let refused = check_device_sampling(&config, card(24, weights), Some(bound(24) + 1), 1).unwrap_err();
        assert_eq!(refused.code(), "engine::memory");
        // The threads of two devices may compute on one of them.
        check_device_sampling(&config, card(24, weights), Some(bound(24) - step), 2).unwrap();
        check_device_sampling(&config, card(24, weights), Some(bound(24) - step + 1), 2).unwrap_err();
        let most = bound(24) >> 20;
        assert_eq!(refused.hint().unwrap(), format!("set kv_cache_mib under [engine] to {most} or less"));
        for bound in [None, Some(GIB)] {
            let refused = check_device_sampling(&config, card(8, weights), bound, 1).unwrap_err();
            assert!(refused.hint().unwrap().starts_with("use a smaller model"), "{refused}");
        }
    }

    #[test]
    fn work_that_does_not_fit_is_refused_with_a_hint() {
        let huge = Footprint { weights: usize::MAX / 2, ..Footprint::default() };
        let error = huge.fits(None, "sampling", || "a smaller batch".into()).unwrap_err().to_string();
        assert!(error.starts_with("sampling needs"), "{error}");
        Footprint::default().fits(None, "sampling", String::new).unwrap();
    }
}
