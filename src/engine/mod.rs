//! The model at work: sampling and training, both over shared prefixes and through the same decoder.
//!
//! What is sampled for a sequence depends on its tokens and its seed alone; what a training step yields depends on its
//! batches and their order alone. Neither depends on the number of threads, on timing, or on what else is running.

mod crew;
mod eight_bit;
mod error;
mod memory;
mod microbatch;
mod muon;
mod optimizer;
mod turns;
mod recompute;
mod reduce;
mod sampler;
mod sampling;
mod segments;
mod supervised;
mod trainer;
mod worker;

#[cfg(test)]
mod parity;
#[cfg(test)]
mod tests;

use candle_core::Device;
use serde::{Deserialize, Serialize};

use crate::model::kernels::Format;

use crew::Crew;
pub use crew::{is_large, is_large_shape};
pub use error::EngineError;
pub use memory::{Footprint, SamplingLoad, TrainingLoad, free_memory, load_frozen, training_load};
pub use microbatch::{Microbatch, pack};
pub use optimizer::{Optimizer, Rule};
pub use recompute::{Recompute, kept_bytes};
pub use sampler::{Sampled, Sampler, Sequence, Stop, Usage};
pub use sampling::Sampling;
pub use supervised::{Example, Supervised};
pub use trainer::{StepReport, Trainer, score};

/// Where and how the model computes, as the run file resolved it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EngineSpec {
    /// `cpu` or `cuda:N`.
    pub devices: Vec<String>,
    /// Worker threads of a `cpu` device; all cores where absent.
    pub threads: Option<usize>,
    /// How weights that are not trained are held, and what their products are computed in; `f32` where absent.
    pub dtype: Option<Format>,
    /// Most memory of a sampler's keys and values, in MiB; half of what is left where absent. Changes no result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_cache_mib: Option<usize>,
}

impl EngineSpec {
    /// Finds the device, once it is known to be one this build can compute on.
    ///
    /// # Errors
    /// If this build has no CUDA, the device is not there, there are several, or it is to hold weights of 4 bits.
    pub fn place(&self) -> Result<Place, EngineError> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = self.threads.unwrap_or(cores).max(1);
        let Some(device) = self.devices.iter().find(|device| *device != "cpu") else {
            return Ok(Place { device: Device::Cpu, threads });
        };
        let index = device.strip_prefix("cuda:").and_then(|index| index.parse::<usize>().ok());
        let (true, Some(index)) = (cfg!(feature = "cuda"), index) else {
            return Err(EngineError::Device { device: device.clone() });
        };
        if self.devices.len() > 1 {
            return Err(EngineError::Devices { devices: self.devices.join(", ") });
        }
        if self.dtype == Some(Format::Nf4) {
            return Err(EngineError::Format { device: device.clone() });
        }
        let device = Device::new_cuda(index)
            .map_err(|source| EngineError::Absent { device: device.clone(), source: Box::new(source) })?;
        Ok(Place { device, threads })
    }
}

/// A device, and the threads that work on it or for it.
#[derive(Debug, Clone)]
pub struct Place {
    pub device: Device,
    /// Of the CPU; a device is given its operations by one.
    pub threads: usize,
}
