//! Estimates the engine's peak memory before a stage runs: what the estimates of all kinds share.
//!
//! Parameters give an upper bound: every episode at its longest, nothing shared. The usage of an earlier run
//! tells how much is shared and how long episodes are.

use super::preflight::{ExpectedEpisodes, ExpectedInputs, ExpectedOutput, ExpectedPolicy};
use crate::{
    engine::{
        EngineSpec, Footprint, Recompute, SamplingLoad, TrainingLoad, activation_budget, available,
        model_bytes, training_load,
    },
    model::{ModelConfig, kernels::Format},
    usage::Usage,
};

/// What an estimate is made from, in addition to the stage's parameters.
pub struct Load<'a> {
    pub engine: &'a EngineSpec,
    pub inputs: &'a ExpectedInputs,
    /// Usage of an earlier run.
    pub before: Option<Usage>,
    /// Bytes of free memory; keys and values without a bound of their own get half.
    pub available: Option<usize>,
}

/// Bytes that a stage with this peak needs in addition to the frozen weights of its model.
pub fn workspace_bytes(peak: &Footprint, engine: &EngineSpec) -> usize {
    let cache = match engine.kv_cache_mib {
        Some(_) => peak.cache,
        // Keys and values get half of the free memory, so reserve twice their estimate. Never evict to free
        // more than half of what is free now: they seldom reach the upper bound.
        None => peak.cache.saturating_mul(2).min(available().map_or(usize::MAX, |free| free / 2)),
    };
    (peak.total() - peak.weights - peak.cache).saturating_add(cache)
}

impl<'a> Load<'a> {
    /// Without knowledge of inputs or earlier runs.
    pub fn of(engine: &'a EngineSpec) -> Self {
        const NO_INPUTS: &ExpectedInputs = &ExpectedInputs::new();
        Self { engine, inputs: NO_INPUTS, before: None, available: None }
    }

    /// The policies in this role, as far as they are known.
    pub fn policies(&self, role: &str) -> impl Iterator<Item = &'a ExpectedPolicy> {
        self.inputs.get(role).into_iter().flatten().filter_map(|(_, expected)| expected.policy())
    }

    pub fn episodes(&self) -> Option<ExpectedEpisodes> {
        match self.inputs.get("trajectories")?.first()? {
            (_, ExpectedOutput::Episodes(episodes)) => Some(*episodes),
            _ => None,
        }
    }

    /// The type of the frozen weights of this policy's model.
    pub fn format(&self, policy: &ExpectedPolicy) -> Format {
        self.engine.format(policy.stored)
    }

    /// Playing this many episodes at once, of at most `max_tokens` tokens each.
    pub fn sampling(&self, policy: &ExpectedPolicy, sequences: usize, max_tokens: usize) -> Footprint {
        let format = self.format(policy);
        let longest = max_tokens.min(policy.config.context);
        let computed = self.before.map(|usage| (usage.computed_tokens + usage.sampled_tokens) as usize);
        let most = sequences.saturating_mul(longest);
        let load = SamplingLoad {
            sequences,
            longest,
            tokens: computed.filter(|computed| *computed > 0).map_or(most, |computed| computed.min(most)),
            bound: match self.engine.kv_cache_mib {
                Some(mib) => Some(mib.saturating_mul(1 << 20)),
                None => self.half(model_bytes(&policy.config, format)),
            },
            threads: self.engine.all_threads(),
            devices: self.engine.devices.len(),
            copies: self.engine.copies(),
            adapter: policy.adapter_size(),
        };
        Footprint::sampling(&policy.config, format, &load)
    }

    /// Half of the memory that is free after weights of this many bytes.
    fn half(&self, weights: usize) -> Option<usize> {
        Some(self.available?.saturating_sub(weights) / 2)
    }

    /// Whether keys and values could exceed half of the free memory, and so are limited to it.
    pub fn is_halved(&self, peak: &Footprint) -> bool {
        self.engine.kv_cache_mib.is_none() && peak.cache > 0 && self.half(peak.weights) == Some(peak.cache)
    }

    /// A training step.
    pub fn training(
        &self,
        config: &ModelConfig,
        format: Format,
        load: TrainingLoad,
        recompute: Recompute,
    ) -> Footprint {
        let free = self.available.map(|free| free.saturating_sub(model_bytes(config, format)));
        let load = training_load(config, format, load, load.workers, (recompute, activation_budget(free)));
        Footprint::training(config, format, &load)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        model::{Design, kernels::Heads},
        stage::{self, StageKind, testing},
    };

    fn policy() -> ExpectedPolicy {
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
        ExpectedPolicy { config, stored: Format::F32, adapter: None, folder: None }
    }

    fn stage(kind: &str, params: Value) -> (Box<dyn StageKind>, EngineSpec) {
        let folder = tempfile::tempdir().unwrap();
        let (context, _) = testing::context(kind, &[], folder.path(), params);
        (stage::parse(&context.card, &context.params).unwrap(), context.engine)
    }

    fn inputs() -> ExpectedInputs {
        ExpectedInputs::from([("policy".into(), vec![("policy".into(), policy().into())])])
    }

    const GIB: usize = 1 << 30;

    #[test]
    fn keys_and_values_without_a_bound_are_estimated_at_half_of_the_free_memory() {
        let params =
            json!({ "concurrency": 128, "max_episode_tokens": 1 << 15, "prompts": 16, "group_size": 8 });
        let (rollout, mut engine) = stage("rollout", params);
        let peak = |engine: &EngineSpec, available| {
            let load = Load { engine, inputs: &inputs(), before: None, available };
            let peak = rollout.memory(&load).unwrap();
            (peak.cache, load.is_halved(&peak), peak.weights)
        };
        // 128 × 32768 tokens with keys and values of 64 in 4 layers.
        let (all, halved, weights) = peak(&engine, None);
        assert!(all >= 8 * GIB && !halved);
        assert_eq!(peak(&engine, Some(4 * GIB)), ((4 * GIB - weights) / 2, true, weights));
        assert_eq!(peak(&engine, Some(64 * GIB)), (all, false, weights));
        engine.kv_cache_mib = Some(3 << 10);
        assert_eq!(peak(&engine, Some(4 * GIB)), (3 * GIB, false, weights));
    }

    #[test]
    fn the_workspace_reserves_at_most_half_of_the_free_memory_for_keys_and_values() {
        let params = json!({ "concurrency": 1 << 20, "max_episode_tokens": 1 << 15, "prompts": 1 << 15, "group_size": 32 });
        let (rollout, mut engine) = stage("rollout", params);
        let workspace = |engine: &EngineSpec| {
            let load = Load { inputs: &inputs(), ..Load::of(engine) };
            workspace_bytes(&rollout.memory(&load).unwrap(), engine)
        };
        let free = available().unwrap();
        assert!(workspace(&engine) < free / 10 * 8);
        engine.kv_cache_mib = Some(free >> 19);
        assert!(workspace(&engine) > free);
    }

    #[test]
    fn the_estimate_of_an_update_counts_the_adapter_that_its_targets_make() {
        let trained = |targets: Value| {
            let (update, engine) = stage("grpo", json!({ "rank": 64, "targets": targets }));
            update.memory(&Load { inputs: &inputs(), ..Load::of(&engine) }).unwrap().trained
        };
        assert!(3 * trained(json!(["q_proj", "v_proj"])) < trained(json!(["all-linear"])));
    }

    #[test]
    fn the_estimate_of_an_update_has_room_for_a_prompt_however_small_its_microbatches() {
        let activations = |budget: usize| {
            let (update, engine) = stage("grpo", json!({ "tokens_per_microbatch": budget }));
            let mut inputs = inputs();
            let episodes = ExpectedEpisodes { count: 1000, longest: 4000, group: None, altered: None };
            inputs
                .insert("trajectories".into(), vec![("rollout".into(), ExpectedOutput::Episodes(episodes))]);
            update.memory(&Load { inputs: &inputs, ..Load::of(&engine) }).unwrap().activations
        };
        assert!(activations(4000) < 3 * activations(1), "8000 rows and 4001");
        assert!(activations(4000) > activations(1));
    }
}
