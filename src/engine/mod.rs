//! The model at work: sampling and training, both over shared prefixes and through the same decoder.
//!
//! What is sampled for a sequence depends on its tokens and its seed alone; what a training step yields depends on its
//! batches and their order alone. Neither depends on the number of threads, on timing, or on what else is running.

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
mod recompute;
mod reduce;
mod replicas;
mod sampler;
mod sampling;
mod segments;
mod supervised;
mod threads;
mod trainer;
mod turns;
mod worker;

#[cfg(test)]
mod parity;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::model::kernels::Format;

pub use available::{available, give_back, set_give_back};
pub use devices::{DeviceSet, DeviceSlot};
pub use error::EngineError;
pub use memory::{Footprint, SamplingLoad, TrainingLoad, check_trained, load_frozen, training_load, weights};
pub use microbatch::{Microbatch, pack};
pub use model_cache::{Checkpoint, ModelCache};
pub use optimizer::{Optimizer, Resumed, Rule};
pub use recompute::{Recompute, kept_bytes};
pub use replicas::score_across;
pub use sampler::{Sampled, Sampler, Sequence, Stop, Usage};
pub use sampling::Sampling;
pub use supervised::{Example, Supervised};
use threads::ThreadPlan;
pub use threads::{shares, shares_of_shape};
pub use trainer::{StepReport, Trainer, logits, score};

/// Where and how the model computes, as the run file resolved it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EngineSpec {
    /// `cpu` or `cuda:N`; a policy is on all of them, and work on it is shared out.
    pub devices: Vec<String>,
    /// Worker threads of all `cpu` devices together; all cores where absent.
    pub threads: Option<usize>,
    /// How weights that are not trained are held, and what their products are computed in; `f32` where absent.
    pub dtype: Option<Format>,
    /// Most memory of a sampler's keys and values, in MiB; half of what is left where absent. Changes no result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_cache_mib: Option<usize>,
}
