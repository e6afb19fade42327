//! The devices of `[engine]`: which ones this build supports, and which threads serve each.

use std::sync::Arc;

use candle_core::Device;

use super::{CPU, EngineError, EngineSpec, ModelCache, SplitMode};
use crate::model::Base;
#[cfg(feature = "cuda")]
use crate::model::{kernels::Format, ops};

/// A device, and the threads that serve it.
#[derive(Debug, Clone)]
pub struct DeviceSlot {
    pub device: Device,
    /// Threads of a CPU device. Other devices have one, which issues their operations.
    pub threads: usize,
    /// The frozen weights on this device, for the policy that is loaded there.
    pub base: Option<Arc<Base>>,
}

/// Where a stage computes: the first device has the policy, and each other one a copy or some of its layers.
#[derive(Debug, Clone)]
pub struct DeviceSet {
    pub first: DeviceSlot,
    pub others: Vec<DeviceSlot>,
    pub split: SplitMode,
    /// Caches models on these devices, and evicts them for work that needs the memory.
    pub model_cache: Option<Arc<ModelCache>>,
}

impl DeviceSet {
    /// This many CPU devices. The threads are divided among them; each has at least one.
    pub fn cpu(devices: usize, threads: usize) -> Self {
        let slot = |index: usize| {
            let extra = usize::from(index < threads % devices.max(1));
            let threads = (threads / devices.max(1) + extra).max(1);
            DeviceSlot { device: Device::Cpu, threads, base: None }
        };
        let (first, others) = (slot(0), (1..devices).map(slot).collect());
        Self { first, others, split: SplitMode::Batches, model_cache: None }
    }

    pub fn slots(&self) -> impl Iterator<Item = &DeviceSlot> {
        std::iter::once(&self.first).chain(&self.others)
    }

    pub fn count(&self) -> usize {
        1 + self.others.len()
    }

    /// How many copies of trained parameters they hold.
    pub fn copies(&self) -> usize {
        self.split.copies(self.count())
    }

    /// The devices of one decoder: the first, or all if its layers are spread over them.
    pub fn of_decoder(&self) -> Vec<Device> {
        match self.split {
            SplitMode::Batches => vec![self.first.device.clone()],
            SplitMode::Layers => self.slots().map(|slot| slot.device.clone()).collect(),
        }
    }

    /// Threads of all devices.
    pub fn threads(&self) -> usize {
        self.slots().map(|slot| slot.threads).sum()
    }
}

/// Opens a CUDA device with its own stream, which orders the operations of all threads. The default stream
/// would be one per thread.
pub(super) fn open(index: usize) -> candle_core::Result<Device> {
    let device = Device::new_cuda_with_stream(index)?;
    #[cfg(feature = "cuda")]
    ops::cuda::prepare(device.as_cuda_device()?)?;
    Ok(device)
}

impl EngineSpec {
    /// Threads of all `cpu` devices together: all cores, unless the run file says less.
    pub fn all_threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        self.threads.unwrap_or_else(cores).max(1)
    }

    /// The same, on some of its devices. `cpu` devices keep their share of the threads.
    pub fn on(&self, devices: &[String]) -> Self {
        let threads = match devices.len() < self.devices.len() {
            true => Some((self.all_threads() * devices.len() / self.devices.len()).max(1)),
            false => self.threads,
        };
        Self { devices: devices.to_vec(), threads, ..self.clone() }
    }

    /// Checks that this build supports the devices, as far as possible without opening one.
    ///
    /// # Errors
    /// Like [`EngineSpec::open_devices`], except for a missing device.
    pub fn check_devices(&self) -> Result<(), EngineError> {
        self.cuda().map(drop)
    }

    /// The CUDA devices by name and index; none on the CPU.
    fn cuda(&self) -> Result<Vec<(&String, usize)>, EngineError> {
        let Some(device) = self.devices.iter().find(|device| *device != CPU) else { return Ok(Vec::new()) };
        let unavailable = |device: &String| EngineError::Device { device: device.clone() };
        if !cfg!(feature = "cuda") {
            return Err(unavailable(device));
        }
        let mut devices = Vec::with_capacity(self.devices.len());
        for (at, device) in self.devices.iter().enumerate() {
            if device == CPU || self.devices[..at].contains(device) {
                return Err(EngineError::Devices { devices: self.devices.join(", ") });
            }
            let index = device.strip_prefix("cuda:").and_then(|index| index.parse().ok());
            devices.push((device, index.ok_or_else(|| unavailable(device))?));
        }
        Ok(devices)
    }

    /// Opens the devices, after checking that this build supports them.
    ///
    /// # Errors
    /// Fails if this build has no CUDA, a device is missing, the devices are of several kinds, one is listed
    /// twice, or one is too old for 4-bit weights.
    pub fn open_devices(&self) -> Result<DeviceSet, EngineError> {
        self.open_devices_with(&mut open)
    }

    /// The same, with CUDA devices from `open`.
    pub(super) fn open_devices_with(
        &self,
        open: &mut dyn FnMut(usize) -> candle_core::Result<Device>,
    ) -> Result<DeviceSet, EngineError> {
        let threads = self.all_threads();
        let devices = self.cuda()?;
        if devices.is_empty() {
            let devices = DeviceSet::cpu(self.devices.len().max(1), threads);
            return Ok(DeviceSet { split: self.split, ..devices });
        }
        let slot = |(name, index): (&String, usize)| {
            let device = open(index)
                .map_err(|source| EngineError::Absent { device: name.clone(), source: Box::new(source) })?;
            #[cfg(feature = "cuda")]
            if self.dtype == Some(Format::Nf4) && ops::cuda::is_too_old(&device) {
                return Err(EngineError::Format { device: name.clone() });
            }
            Ok(DeviceSlot { device, threads: 1, base: None })
        };
        let mut slots = devices.into_iter().map(slot).collect::<Result<Vec<_>, EngineError>>()?;
        let first = DeviceSlot { threads, ..slots.remove(0) };
        Ok(DeviceSet { first, others: slots, split: self.split, model_cache: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcprl_base::error::Diagnostic;

    fn spec(devices: &[&str], threads: usize) -> EngineSpec {
        let devices = devices.iter().map(|device| (*device).to_owned()).collect();
        EngineSpec { devices, threads: Some(threads), ..EngineSpec::default() }
    }

    fn threads(spec: &EngineSpec) -> Vec<usize> {
        let devices = spec.open_devices().unwrap();
        devices.slots().map(|slot| slot.threads).collect()
    }

    #[test]
    fn cpu_devices_divide_the_threads_and_each_has_at_least_one() {
        assert_eq!(threads(&spec(&["cpu"], 5)), [5]);
        assert_eq!(threads(&spec(&["cpu"; 2], 5)), [3, 2]);
        assert_eq!(threads(&spec(&["cpu"; 3], 2)), [1, 1, 1]);
    }

    #[test]
    fn a_stage_on_some_of_the_devices_gets_their_share_of_the_threads() {
        let all = spec(&["cpu"; 3], 6);
        assert_eq!(threads(&all.on(&["cpu".into(), "cpu".into()])), [2, 2]);
        assert_eq!(threads(&all.on(&["cpu".into()])), [2]);
        assert_eq!(all.on(&all.devices), all);
    }

    #[test]
    fn an_unsupported_device_is_refused_with_a_hint() {
        if cfg!(feature = "cuda") {
            for several in [["cuda:0", "cuda:0"], ["cuda:0", "cpu"], ["cpu", "cuda:0"]] {
                assert_eq!(spec(&several, 2).open_devices().unwrap_err().code(), "engine::devices");
            }
        } else {
            let refused = spec(&["cuda:0"], 2).open_devices().unwrap_err();
            assert_eq!(refused.to_string(), "device `cuda:0` is not available in this build");
            assert!(refused.hint().unwrap().contains("--features cuda"));
        }
    }
}
