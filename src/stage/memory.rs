//! What a stage at the engine takes at its peak, foretold before it is worked.
//!
//! From its parameters that is the most it can take: every episode as long as it may be, nothing shared. Where the stage
//! was worked before, what it consumed then says how much is shared and how long episodes are.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::{Context, warmup};
use crate::{
    engine::{EngineSpec, Footprint, Recompute, SamplingLoad, TrainingLoad, shares_of_shape, training_load},
    model::{ModelConfig, kernels::Format},
    spent::Spent,
};

/// A policy as a plan knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    pub config: ModelConfig,
    /// Rank of its adapter, if it is one.
    pub rank: Option<usize>,
    /// Where tokenizer and template of its model are, once they are there.
    pub folder: Option<PathBuf>,
}

/// Bytes that a stage of this kind takes at most beside the frozen weights of these policies' models.
pub fn beside(kind: &str, context: &Context, policies: &[Policy]) -> usize {
    let (params, engine) = (&context.params, &context.engine);
    let load = Load { kind, params, engine, policies, episodes: None, before: None };
    load.peak().map_or(usize::MAX, |peak| {
        // Where no bound is set, keys and values get half of what is left.
        let spare = if engine.kv_cache_mib.is_none() { peak.cache } else { 0 };
        (peak.total() - peak.weights).saturating_add(spare)
    })
}

/// A stage whose memory is asked for.
pub struct Load<'a> {
    pub kind: &'a str,
    pub params: &'a Map<String, Value>,
    pub engine: &'a EngineSpec,
    /// Those it reads.
    pub policies: &'a [Policy],
    /// Parameters of the stage that played the episodes it reads.
    pub episodes: Option<&'a Map<String, Value>>,
    /// What it consumed when it was worked before.
    pub before: Option<Spent>,
}

fn number(params: &Map<String, Value>, name: &str) -> Option<usize> {
    usize::try_from(params.get(name)?.as_u64()?).ok()
}

impl Load<'_> {
    /// On the CPU; none where the stage's kind is not one that samples or trains, or a parameter is missing.
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
            bound: self.engine.kv_cache_mib.map(|mib| mib.saturating_mul(1 << 20)),
            threads: self.threads(),
            rank: policy.rank,
        };
        Some(Footprint::sampling(&policy.config, self.engine.dtype.unwrap_or(Format::F32), &load))
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
        let rank = if lora { policy.rank.or(number(self.params, "rank")) } else { None };
        let format = if lora { self.engine.dtype.unwrap_or(Format::F32) } else { Format::F32 };
        let config = &policy.config;
        let of_episodes = |name| number(self.episodes?, name);
        let longest = of_episodes("max_tokens").unwrap_or(config.context).min(config.context);
        let microbatch = number(self.params, "tokens_per_microbatch")?;
        let steps = number(self.params, "epochs")?.saturating_mul(number(self.params, "minibatches")?).max(1);
        let shares = shares_of_shape(config, format);
        let trained = self.before.map(|spent| spent.trained_tokens as usize).filter(|trained| *trained > 0);
        let step = match (trained, of_episodes("prompts"), of_episodes("group_size")) {
            (Some(trained), ..) => trained.div_ceil(steps),
            (None, Some(prompts), Some(group)) => {
                let minibatches = number(self.params, "minibatches")?.max(1);
                prompts.saturating_mul(group).saturating_mul(longest).div_ceil(minibatches)
            }
            _ => usize::MAX,
        };
        let moments = match self.params.get("optimizer").and_then(Value::as_str) {
            Some("adamw_8bit") => 2,
            Some("muon") => 4,
            _ => 8,
        };
        let (workers, threads, recompute) = (shares, self.threads(), false);
        let rows = step.div_ceil(shares).min(microbatch);
        let load = TrainingLoad { rows, longest, workers, threads, recompute, rank, moments };
        Some(self.training(config, format, rows, load))
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
            recompute,
            rank: None,
            moments: size_of::<f32>(),
        };
        Some(self.training(&config, Format::F32, rows, load))
    }
}
