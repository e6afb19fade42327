//! Sampling and training of decoder models with LoRA adapters. Both share prefixes and use the same decoder ([`model`]).
//!
//! It knows no tools, no rewards, no text, and no files other than weights.
//!
//! A sampled sequence depends only on its tokens and its seed. The result of a training step depends only on
//! its batches and their order. Neither depends on the number of threads, on timing, or on other work in the
//! process.

mod available;
#[cfg_attr(not(feature = "cuda"), path = "device_memory_disabled.rs")]
mod device_memory;
mod devices;
mod eight_bit;
mod error;
mod load;
mod memory;
mod microbatch;
pub mod model;
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

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::kernels::Format;

pub use available::{available, cpu, machine, set_allocator_trim, trim_allocator};
pub use devices::{DeviceSet, DeviceSlot};
pub use error::{EngineError, TargetIndex};
pub use load::load_frozen;
pub use memory::{Footprint, SamplingLoad, TrainingLoad, check_trained, training_load};
pub use microbatch::{Microbatch, pack};
pub use model_cache::{Checkpoint, ModelCache};
pub use optimizer::{Optimizer, Resumed, Rule};
pub use passes::logits;
pub use recompute::{Recompute, activation_budget};
pub use replicas::score_across;
pub use sampler::{Sampler, Sequence};
pub use sampling::Sampling;
pub use size::model_bytes;
pub use supervised::{Example, Supervised};
use threads::ThreadPlan;
pub use threads::{min_microbatches, min_microbatches_of};
pub use trainer::{StepReport, Trainer};
pub use worker::{Sampled, Stop, TokenSender};

/// The name of a CPU device.
const CPU: &str = "cpu";

/// What several devices divide among them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SplitMode {
    /// Each device holds the model. Prompts and the microbatches of a training step are divided.
    #[default]
    Batches,
    /// Each device holds some of the layers: for a model larger than a device.
    Layers,
}

/// Devices and precision for sampling and training: the section `[engine]` of a run file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EngineSpec {
    /// `cpu`, or `cuda:0`, `cuda:1`, … Several `cpu` entries split the threads; the results are the same bytes.
    #[schemars(length(min = 1), inner(regex(pattern = "^(cpu|cuda:[0-9]+)$")))]
    pub devices: Vec<String>,
    /// What several devices divide: `batches` (each holds the model; prompts and the microbatches of a training step are
    /// divided among them) or `layers` (each holds some of the layers of one model).
    #[serde(skip_serializing_if = "SplitMode::is_default")]
    pub split: SplitMode,
    /// Threads of all `cpu` devices together. Defaults to all cores.
    #[schemars(range(min = 1))]
    pub threads: Option<usize>,
    /// Data type of frozen weights and of their matrix products. By default each model has that of its files: `f32`, `f16` or
    /// `bf16`.
    pub dtype: Option<Format>,
    /// Maximum size of the KV cache while sampling, in MiB. Defaults to half of the memory left after loading
    /// the weights, and on a GPU to what a step leaves free. What does not fit is recomputed: slower, but with the
    /// same result.
    #[schemars(range(min = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_cache_mib: Option<usize>,
}

impl SplitMode {
    /// How many copies of trained parameters this many devices hold.
    fn copies(self, devices: usize) -> usize {
        if self == Self::Layers { 1 } else { devices }
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl EngineSpec {
    /// How many copies of trained parameters its devices hold.
    pub fn copies(&self) -> usize {
        self.split.copies(self.devices.len())
    }

    /// The type of the frozen weights of a model whose files have this one.
    pub fn format(&self, stored: Format) -> Format {
        self.dtype.unwrap_or(stored)
    }
}

impl Default for EngineSpec {
    fn default() -> Self {
        Self {
            devices: vec![CPU.into()],
            split: SplitMode::default(),
            threads: None,
            dtype: None,
            kv_cache_mib: None,
        }
    }
}
