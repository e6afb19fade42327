//! Training: what `grpo` and `sft` have in common.
//!
//! The parameters of the adapter, the optimizer and the learning rate, the policy in training, supervised steps, and the
//! checkpoints of long trainings.

pub mod checkpoint;
mod learner;
mod supervised;

use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use serde::Deserialize;
use serde_json::json;

pub use learner::{Learner, LossState, OptimizerKind};
pub use supervised::{HeldOut, Steps};

use super::{
    memory::{Load, workspace_bytes},
    preflight::{
        ExpectedAdapter, ExpectedEpisodes, ExpectedInputs, ExpectedOutput, ExpectedPolicy, Preflight,
        PreflightContext,
    },
};
use crate::{
    data::Trajectory,
    engine::{EngineSpec, Footprint, Recompute, TrainingLoad, min_microbatches_of},
    error::Diagnostic,
    grpo::{Schedule, Shape},
    model::{AdapterConfig, Targets, kernels::Format},
    random::permutation,
};

/// How a policy is trained, as cards name it.
#[derive(Debug, Clone, Deserialize)]
pub struct Training {
    /// Whether an adapter is trained, or all weights.
    pub lora: bool,
    rank: usize,
    alpha: f32,
    rank_stabilised: bool,
    targets: Vec<String>,
    dropout: f64,
    pub tokens_per_microbatch: usize,
    recompute: Recompute,
    optimizer: OptimizerKind,
    momentum: f32,
    /// Without it, [`Self::peak`] decides.
    learning_rate: Option<f64>,
    warmup_steps: u64,
    schedule: Shape,
    pub total_steps: Option<u64>,
    decay_from: f64,
    floor: f64,
    beta1: f32,
    beta2: f32,
    weight_decay: f32,
    pub max_gradient_norm: f64,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "training")]
pub enum TrainingError {
    #[error("`{name}` is {value}, and should be below 1")]
    #[diagnostic(class = usage)]
    #[hint = "AdamW's decays are usually 0.9 and 0.95 to 0.999"]
    Decay { name: &'static str, value: f32 },
    #[error("the policy is an adapter, and `lora = false` trains all weights of a model")]
    #[hint = "merge it into its model first: `mcprl export POLICY --merge --out FOLDER`"]
    WholeAdapter,
    #[error("`{name} = {set}` does not apply: the policy is an adapter already, with {has}")]
    #[diagnostic(class = usage)]
    #[hint = "set `{name}` in the first stage that trains it, or leave it out"]
    Fixed { name: &'static str, set: String, has: String },
    #[error("trajectory {id} has {tokens} tokens, {sampled} flags and {logprobs} log-probabilities")]
    #[hint = "tokens, sampled and logprobs of a trajectory have one entry per token"]
    Ragged { id: String, tokens: usize, sampled: usize, logprobs: usize },
    #[error("trajectory {id} has the log-probability {value} at token {token}, which was sampled")]
    #[hint = "log-probabilities of sampled tokens are finite numbers; run the stage that wrote the episodes again"]
    Logprob { id: String, token: usize, value: f32 },
    #[error("trajectory {id} has row_starts that do not fit its {tokens} tokens")]
    #[hint = "row_starts holds the index of each row's first token, ascending, without the first row's 0"]
    Rows { id: String, tokens: usize },
    #[error("trajectory {id} has the token {token}, and the policy has a vocabulary of {vocabulary} tokens")]
    #[hint = "train the policy whose tokenizer wrote the episodes"]
    Vocabulary { id: String, token: u32, vocabulary: usize },
    #[error("the checkpoint of the best pass cannot be read")]
    #[hint = "run it again; the disk may be damaged"]
    Checkpoint,
}

/// Bytes that training on these episodes needs in addition to the frozen weights, if this is the engine's memory for it.
pub fn workspace<'t>(
    trajectories: impl Iterator<Item = &'t Trajectory> + Clone,
    engine: &EngineSpec,
    footprint: impl FnOnce(&Load<'_>) -> Option<Footprint>,
) -> usize {
    let rows = || trajectories.clone().flat_map(Trajectory::rows).map(|row| row.tokens.len());
    let episodes = ExpectedEpisodes {
        count: rows().count(),
        longest: rows().max().unwrap_or(0),
        group: None,
        altered: None,
    };
    let named = ("trajectories".to_owned(), ExpectedOutput::Episodes(episodes));
    let inputs = ExpectedInputs::from([("trajectories".to_owned(), vec![named])]);
    let peak = footprint(&Load { inputs: &inputs, ..Load::of(engine) });
    peak.map_or(usize::MAX, |peak| workspace_bytes(&peak, engine))
}

/// Indices below `count` in batches of this size, each pass in seeded random order.
pub fn batches(count: usize, passes: usize, size: usize, seed: u64) -> Vec<Vec<usize>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut batches = Vec::new();
    for _ in 0..passes {
        batches.extend(permutation(count, &mut rng).chunks(size.max(1)).map(<[usize]>::to_vec));
    }
    batches
}

/// Indices below `count` in this many batches for each pass, or fewer so that none is empty. The batches of a pass differ by
/// one in size at most, the larger ones first. Each pass is in seeded random order.
pub fn minibatches(count: usize, passes: usize, most: usize, seed: u64) -> Vec<Vec<usize>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut batches = Vec::new();
    for _ in 0..passes {
        let order = permutation(count, &mut rng);
        let (mut rest, most) = (order.as_slice(), most.clamp(1, count.max(1)));
        for left in (1..=most).rev() {
            let (batch, others) = rest.split_at(rest.len().div_ceil(left));
            batches.extend((!batch.is_empty()).then(|| batch.to_vec()));
            rest = others;
        }
    }
    batches
}

/// Checks that the columns of a trajectory fit together.
pub fn check_rows(trajectory: &Trajectory) -> Result<(), TrainingError> {
    let id = || trajectory.id.clone();
    let (tokens, sampled, logprobs) =
        (trajectory.tokens.len(), trajectory.sampled.len(), trajectory.logprobs.len());
    if tokens != sampled || tokens != logprobs {
        return Err(TrainingError::Ragged { id: id(), tokens, sampled, logprobs });
    }
    if !trajectory.is_consistent() {
        return Err(TrainingError::Rows { id: id(), tokens });
    }
    Ok(())
}

/// Checks that a policy with this vocabulary has the tokens of a trajectory.
pub fn check_vocabulary(trajectory: &Trajectory, vocabulary: usize) -> Result<(), TrainingError> {
    match trajectory.tokens.iter().find(|token| **token as usize >= vocabulary) {
        Some(token) => {
            Err(TrainingError::Vocabulary { id: trajectory.id.clone(), token: *token, vocabulary })
        }
        None => Ok(()),
    }
}

/// Checks that the sampled tokens of a trajectory have finite log-probabilities, which a policy gradient compares with.
pub fn check_logprobs(trajectory: &Trajectory) -> Result<(), TrainingError> {
    let mut tokens = trajectory.sampled.iter().zip(&trajectory.logprobs).enumerate();
    match tokens.find(|(_, (sampled, logprob))| **sampled && !logprob.is_finite()) {
        Some((token, (_, value))) => {
            Err(TrainingError::Logprob { id: trajectory.id.clone(), token, value: *value })
        }
        None => Ok(()),
    }
}

impl Training {
    /// The adapter that these parameters add to a model.
    fn adapter(&self) -> AdapterConfig {
        AdapterConfig {
            rank_stabilised: self.rank_stabilised,
            targets: Targets::from_names(&self.targets),
            dropout: self.dropout,
            ..AdapterConfig::new(self.rank, self.alpha)
        }
    }

    /// The engine's memory for a step of `step_tokens(longest)` tokens at most, where `longest` bounds a sequence. None if
    /// the policy cannot have this adapter.
    pub fn footprint(
        &self,
        load: &Load<'_>,
        policy: &ExpectedPolicy,
        step_tokens: impl Fn(usize) -> usize,
    ) -> Option<Footprint> {
        let config = &policy.config;
        let format = if self.lora { load.format(policy) } else { Format::F32 };
        let adapter = match (self.lora, policy.adapter_size()) {
            (false, _) => None,
            (true, Some(size)) => Some(size),
            (true, None) => Some(self.adapter().size(config).ok()?),
        };
        let longest = load.episodes().map_or(config.context, |episodes| episodes.longest).min(config.context);
        let workers = min_microbatches_of(config, format);
        let training = TrainingLoad {
            // The prompt of a split group does not count.
            rows: step_tokens(longest)
                .div_ceil(workers)
                .min(self.tokens_per_microbatch.saturating_add(longest)),
            longest,
            workers,
            threads: load.engine.all_threads(),
            devices: load.engine.devices.len(),
            copies: load.engine.copies(),
            recompute: false,
            adapter,
            moments: self.optimizer.moment_bytes(),
        };
        Some(load.training(config, format, training, self.recompute))
    }

    /// The peak learning rate. An adapter takes ten times that of all weights.
    fn peak(&self) -> f64 {
        self.learning_rate.unwrap_or(if self.lora { 1e-4 } else { 1e-5 })
    }

    /// The learning rate of every step. `total`: the step at which the decay ends.
    pub fn schedule(&self, total: Option<u64>) -> Schedule {
        Schedule {
            peak: self.peak(),
            warmup: self.warmup_steps,
            shape: self.schedule,
            total,
            decay_from: self.decay_from,
            floor: self.floor,
        }
    }

    /// The name of the schedule, if the rate decays.
    pub fn decay(&self) -> Option<&'static str> {
        (self.schedule != Shape::Constant).then(|| self.schedule.into())
    }

    /// Checks that the policy, its adapter and the parameters fit together. Adds what the output `policy` will be.
    pub fn check(&self, context: &PreflightContext<'_>, preflight: &mut Preflight) {
        for (name, value) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            if value >= 1.0 {
                preflight.error(name, TrainingError::Decay { name, value });
            }
        }
        let Some(policy) = context.policy("policy") else { return };
        let mut trained = policy.clone();
        match (self.lora, &policy.adapter) {
            (false, adapter) => {
                if adapter.is_some() {
                    preflight.error("lora", TrainingError::WholeAdapter);
                }
                (trained.adapter, trained.stored) = (None, Format::F32);
            }
            (true, None) => {
                let adapter = self.adapter();
                preflight.check("targets", adapter.targets.check(&policy.config));
                trained.adapter = ExpectedAdapter::new(adapter, &policy.config).ok();
            }
            (true, Some(adapter)) => self.check_fixed(adapter, context, preflight),
        }
        preflight.outputs.insert("policy", trained.into());
    }

    /// Notes parameters of new adapters that are set to something else than this adapter has.
    fn check_fixed(
        &self,
        ExpectedAdapter { config, size }: &ExpectedAdapter,
        context: &PreflightContext<'_>,
        preflight: &mut Preflight,
    ) {
        let model = context.policy("policy").map(|policy| &policy.config);
        let retargeted = AdapterConfig { targets: Targets::from_names(&self.targets), ..config.clone() };
        let same_targets = model.is_none_or(|model| retargeted.size(model).as_ref() == Ok(size));
        let set_and_has = [
            ("rank", json!(self.rank), json!(config.rank)),
            ("alpha", json!(self.alpha), json!(config.alpha)),
            ("rank_stabilised", json!(self.rank_stabilised), json!(config.rank_stabilised)),
            ("targets", json!(self.targets), json!(config.targets.names())),
        ];
        for (name, set, has) in set_and_has {
            let default = context.card.params.get(name).and_then(|param| param.default.as_ref());
            let is_same = set == has || name == "targets" && same_targets;
            if !is_same && default != Some(&set) {
                let (set, has) = (set.to_string(), has.to_string());
                preflight.note(name, TrainingError::Fixed { name, set, has });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_spread_evenly_over_the_minibatches_of_a_pass() {
        let sizes = |count: usize, most: usize| -> Vec<usize> {
            minibatches(count, 1, most, 7).iter().map(Vec::len).collect()
        };
        assert_eq!(sizes(9, 8), [2, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(sizes(9, 4), [3, 2, 2, 2]);
        assert_eq!(sizes(3, 8), [1, 1, 1]);
        assert_eq!(sizes(0, 2), [0; 0]);
        assert_eq!(minibatches(15, 3, 2, 7), batches(15, 3, 8, 7), "halves as before");
        let mut all = minibatches(9, 2, 4, 7).concat();
        all.sort_unstable();
        assert_eq!(all, (0..9).flat_map(|group| [group, group]).collect::<Vec<_>>());
    }
}
