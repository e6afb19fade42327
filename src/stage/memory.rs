//! Estimates a stage's peak memory on the engine before it runs.
//!
//! Parameters give an upper bound: every episode at its longest, nothing shared. The usage of an earlier run
//! tells how much is shared and how long episodes are.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::{Context, warmup};
use crate::{
    engine::{
        EngineSpec, Footprint, Recompute, SamplingLoad, TrainingLoad, available, min_microbatches_of,
        model_bytes, training_load,
    },
    model::{AdapterConfig, AdapterSize, ModelConfig, Targets, kernels::Format},
    usage::Usage,
};

/// A policy as known to a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    pub config: ModelConfig,
    /// The size of its adapter, if it is one.
    pub adapter: Option<AdapterSize>,
    /// Where its model's tokenizer and template are, if they exist yet.
    pub folder: Option<PathBuf>,
}

/// Most bytes a stage of this kind needs in addition to the frozen weights of these policies' models.
pub fn beside(kind: &str, context: &Context, policies: &[Policy]) -> usize {
    let (params, engine) = (&context.params, &context.engine);
    let load = Load { kind, params, engine, policies, episodes: None, before: None, left: None };
    load.peak().map_or(usize::MAX, |peak| {
        let cache = match engine.kv_cache_mib {
            Some(_) => peak.cache,
            // Keys and values get half of the free memory, so reserve twice their estimate. Never evict to
            // free more than half of what is free now: they seldom reach the upper bound.
            None => peak.cache.saturating_mul(2).min(available().map_or(usize::MAX, |left| left / 2)),
        };
        (peak.total() - peak.weights - peak.cache).saturating_add(cache)
    })
}

/// Bytes per trained parameter of the optimiser that these parameters name.
pub fn moments(params: &Map<String, Value>) -> usize {
    match params.get("optimizer").and_then(Value::as_str) {
        Some("adamw_8bit") => 2,
        Some("muon") => 4,
        _ => 8,
    }
}

/// A stage whose memory is estimated.
pub struct Load<'a> {
    pub kind: &'a str,
    pub params: &'a Map<String, Value>,
    pub engine: &'a EngineSpec,
    /// The policies it reads.
    pub policies: &'a [Policy],
    /// Parameters of the stage that played the episodes it reads.
    pub episodes: Option<&'a Map<String, Value>>,
    /// Usage of an earlier run.
    pub before: Option<Usage>,
    /// Bytes of free memory; keys and values without a bound of their own get half.
    pub left: Option<usize>,
}

/// Of Muon, which trains nearly all of its parameters.
pub const MOMENTS_OF_WARMUP: usize = size_of::<f32>();

fn number(params: &Map<String, Value>, name: &str) -> Option<usize> {
    usize::try_from(params.get(name)?.as_u64()?).ok()
}

impl Load<'_> {
    /// On the CPU. None if the stage's kind neither samples nor trains, or a parameter is missing.
    pub fn peak(&self) -> Option<Footprint> {
        match self.kind {
            "rollout" | "eval" => {
                self.policies.iter().filter_map(|policy| self.sampling(policy)).max_by_key(Footprint::total)
            }
            "grpo" => self.update(),
            "warmup" => self.warmup(),
            _ => None,
        }
    }

    fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        self.engine.threads.unwrap_or_else(cores)
    }

    fn sampling(&self, policy: &Policy) -> Option<Footprint> {
        let format = self.engine.dtype.unwrap_or(Format::F32);
        let longest = number(self.params, "max_tokens")?.min(policy.config.context);
        let episodes = match (number(self.params, "prompts"), number(self.params, "group_size")) {
            (Some(prompts), Some(group)) => prompts.saturating_mul(group),
            _ => usize::MAX,
        };
        let sequences = number(self.params, "concurrency")?.min(episodes);
        let computed = self.before.map(|spent| (spent.computed_tokens + spent.sampled_tokens) as usize);
        let most = sequences.saturating_mul(longest);
        let load = SamplingLoad {
            sequences,
            longest,
            tokens: computed.filter(|computed| *computed > 0).map_or(most, |computed| computed.min(most)),
            bound: match self.engine.kv_cache_mib {
                Some(mib) => Some(mib.saturating_mul(1 << 20)),
                None => self.half(model_bytes(&policy.config, format)),
            },
            threads: self.threads(),
            devices: self.engine.devices.len(),
            adapter: policy.adapter,
        };
        Some(Footprint::sampling(&policy.config, format, &load))
    }

    /// Half of the memory that is free after weights of this many bytes.
    fn half(&self, weights: usize) -> Option<usize> {
        Some(self.left?.saturating_sub(weights) / 2)
    }

    /// Whether keys and values could exceed half of the free memory, and so are limited to it.
    pub fn is_halved(&self, peak: &Footprint) -> bool {
        self.engine.kv_cache_mib.is_none() && peak.cache > 0 && self.half(peak.weights) == Some(peak.cache)
    }

    fn training(&self, config: &ModelConfig, format: Format, rows: usize, load: TrainingLoad) -> Footprint {
        let recompute = self.params.get("recompute").cloned();
        let recompute: Recompute =
            recompute.and_then(|recompute| serde_json::from_value(recompute).ok()).unwrap_or_default();
        let load = training_load(config, format, TrainingLoad { rows, ..load }, load.workers, recompute);
        Footprint::training(config, format, &load)
    }

    fn update(&self) -> Option<Footprint> {
        let policy = self.policies.first()?;
        let lora = self.params.get("lora").and_then(Value::as_bool).unwrap_or(true);
        let format = if lora { self.engine.dtype.unwrap_or(Format::F32) } else { Format::F32 };
        let config = &policy.config;
        let adapter = match (lora, policy.adapter) {
            (false, _) => None,
            (true, Some(size)) => Some(size),
            (true, None) => Some(self.fresh_adapter(config)?),
        };
        let of_episodes = |name| number(self.episodes?, name);
        let longest = of_episodes("max_tokens").unwrap_or(config.context).min(config.context);
        let microbatch = number(self.params, "tokens_per_microbatch")?;
        let steps = number(self.params, "epochs")?.saturating_mul(number(self.params, "minibatches")?).max(1);
        let shares = min_microbatches_of(config, format);
        let trained = self.before.map(|spent| spent.trained_tokens as usize).filter(|trained| *trained > 0);
        let step = match (trained, of_episodes("prompts"), of_episodes("group_size")) {
            (Some(trained), ..) => trained.div_ceil(steps),
            (None, Some(prompts), Some(group)) => {
                let minibatches = number(self.params, "minibatches")?.max(1);
                prompts.saturating_mul(group).saturating_mul(longest).div_ceil(minibatches)
            }
            _ => usize::MAX,
        };
        let (workers, threads, recompute) = (shares, self.threads(), false);
        let rows = step.div_ceil(shares).min(microbatch);
        let (devices, moments) = (self.engine.devices.len(), moments(self.params));
        let load = TrainingLoad { rows, longest, workers, threads, devices, recompute, adapter, moments };
        Some(self.training(config, format, rows, load))
    }

    /// The size of the adapter that these parameters add to a model.
    fn fresh_adapter(&self, model: &ModelConfig) -> Option<AdapterSize> {
        let names: Vec<String> = serde_json::from_value(self.params.get("targets")?.clone()).ok()?;
        let adapter = AdapterConfig::new(number(self.params, "rank")?, 1.0);
        AdapterConfig { targets: Targets::from_names(&names), ..adapter }.size(model).ok()
    }

    fn warmup(&self) -> Option<Footprint> {
        let config = warmup::shape(self.params)?;
        let rows = number(self.params, "tokens_per_step")?.div_ceil(warmup::SHARES);
        let longest = rows.min(config.context);
        let (workers, threads, recompute) = (warmup::SHARES, self.threads(), false);
        let load = TrainingLoad {
            rows,
            longest,
            workers,
            threads,
            devices: self.engine.devices.len(),
            recompute,
            adapter: None,
            moments: MOMENTS_OF_WARMUP,
        };
        Some(self.training(&config, Format::F32, rows, load))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        model::{Design, kernels::Heads},
        stage::testing,
    };

    fn policy() -> Policy {
        let config = ModelConfig {
            vocabulary: 1000,
            hidden: 64,
            intermediate: 128,
            layers: 4,
            heads: Heads { query: 4, kv: 4, dim: 16 },
            context: 1 << 16,
            rope_theta: 10_000.0,
            norm_epsilon: 1e-6,
            tied: true,
            design: Design::default(),
        };
        Policy { config, adapter: None, folder: None }
    }

    const GIB: usize = 1 << 30;

    #[test]
    fn keys_and_values_without_a_bound_are_foretold_with_the_half_that_they_will_get() {
        let folder = tempfile::tempdir().unwrap();
        let asked = json!({ "concurrency": 128, "max_tokens": 1 << 15, "prompts": 16, "group_size": 8 });
        let (mut context, _) = testing::context("rollout", &[], folder.path(), asked);
        let policies = [policy()];
        let peak = |context: &Context, left| {
            let (params, engine) = (&context.params, &context.engine);
            let (episodes, before) = (None, None);
            let load = Load { kind: "rollout", params, engine, policies: &policies, episodes, before, left };
            let peak = load.peak().unwrap();
            (peak.cache, load.is_halved(&peak), peak.weights)
        };
        // 128 × 32768 tokens with keys and values of 64 in 4 layers.
        let (all, halved, weights) = peak(&context, None);
        assert!(all >= 8 * GIB && !halved);
        assert_eq!(peak(&context, Some(4 * GIB)), ((4 * GIB - weights) / 2, true, weights));
        assert_eq!(peak(&context, Some(64 * GIB)), (all, false, weights));
        context.engine.kv_cache_mib = Some(3 << 10);
        assert_eq!(peak(&context, Some(4 * GIB)), (3 * GIB, false, weights));
    }

    #[test]
    fn for_keys_and_values_no_more_than_half_of_what_is_there_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let asked =
            json!({ "concurrency": 1 << 20, "max_tokens": 1 << 15, "prompts": 1 << 15, "group_size": 32 });
        let (mut context, _) = testing::context("rollout", &[], folder.path(), asked);
        let left = available().unwrap();
        assert!(beside("rollout", &context, &[policy()]) < left / 10 * 8);
        context.engine.kv_cache_mib = Some(left >> 19);
        assert!(beside("rollout", &context, &[policy()]) > left);
    }

    #[test]
    fn an_update_is_foretold_with_the_adapter_that_its_targets_make() {
        let folder = tempfile::tempdir().unwrap();
        let trained = |targets: Value| {
            let asked = json!({ "rank": 64, "targets": targets });
            let (context, _) = testing::context("grpo", &[], folder.path(), asked);
            let (params, engine, policies) = (&context.params, &context.engine, &[policy()]);
            let (episodes, before, left) = (None, None, None);
            Load { kind: "grpo", params, engine, policies, episodes, before, left }.peak().unwrap().trained
        };
        assert!(3 * trained(json!(["q_proj", "v_proj"])) < trained(json!(["all-linear"])));
    }
}
