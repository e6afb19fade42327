//! Sampling and training of models. Both share prefixes and use the same decoder.
//!
//! A sampled sequence depends only on its tokens and its seed. The result of a training step depends only on
//! its batches and their order. Neither depends on the number of threads, on timing, or on other work in the
//! process.

mod available;
mod devices;
mod eight_bit;
mod error;
mod memory;
mod microbatch;
mod model_cache;
mod muon;
#[cfg_attr(not(feature = "nccl"), path = "nccl_disabled.rs")]
mod nccl;
mod optimizer;
mod passes;
mod recompute;
mod reduce;
mod replicas;
mod sampler;
mod sampling;
mod segments;
mod size;
mod supervised;
mod threads;
mod trainer;
mod worker;

#[cfg(test)]
mod parity;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::model::kernels::Format;

pub use available::{available, set_allocator_trim, trim_allocator};
pub use devices::{DeviceSet, DeviceSlot};
pub use error::EngineError;
pub use memory::{Footprint, SamplingLoad, TrainingLoad, check_trained, training_load};
pub use microbatch::{Microbatch, pack};
pub use model_cache::{Checkpoint, ModelCache, load_frozen};
pub use optimizer::{Optimizer, Resumed, Rule};
pub use passes::logits;
pub use recompute::Recompute;
pub use replicas::score_across;
pub use sampler::{Sampler, Sequence};
pub use sampling::Sampling;
pub use size::model_bytes;
pub use supervised::{Example, Supervised};
use threads::ThreadPlan;
pub use threads::{min_microbatches, min_microbatches_of};
pub use trainer::{StepReport, Trainer};
pub use worker::{Sampled, Stop, Usage};

/// Where and how the model computes, as resolved from the run file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EngineSpec {
    /// `cpu` or `cuda:N`. A policy is on all of them, and its work is divided among them.
    pub devices: Vec<String>,
    /// Worker threads of all `cpu` devices together; all cores if absent.
    pub threads: Option<usize>,
    /// Format in which frozen weights are stored and multiplied; `f32` if absent.
    pub dtype: Option<Format>,
    /// Most memory for a sampler's keys and values, in MiB; half of the available memory if absent. Changes
    /// no result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_cache_mib: Option<usize>,
}
