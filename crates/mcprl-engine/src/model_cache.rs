//! Frozen weights that stay in memory between the stages of a run.
//!
//! The key of a base is its artifact's digest, its format and its devices. A digest always means the same
//! bytes, so the cached weights equal the files, even if their original folder has changed. Callers get a
//! decoder that shares the weights and cannot change them ([`Base`]). Concurrent requests for one base wait
//! for a single load. A failed load leaves nothing behind.
//!
//! Before a base is loaded, or work with known memory needs begins, other bases on that device are evicted, least
//! recently requested first, until there is room. A device that does not report its available memory keeps one base.

use std::{
    collections::BTreeMap,
    fmt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use candle_core::{Device, DeviceLocation};
use mcprl_base::hash::Digest;
use parking_lot::Mutex;

use super::{
    CPU, EngineError,
    available::{available_for, trim_allocator},
    device_memory::device_memory,
    size::model_bytes,
};
use crate::model::{Base, ModelConfig, kernels::Format};

/// A model in the store.
#[derive(Debug, Clone, Copy)]
pub struct Checkpoint<'a> {
    /// Digest of the artifact.
    pub digest: Digest,
    /// A Hugging Face folder.
    pub folder: &'a Path,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    digest: Digest,
    format: Format,
    /// Several if its layers are spread over them.
    devices: Vec<DeviceLocation>,
}

impl Key {
    /// Whether it has weights on the device of this name.
    fn is_at(&self, name: &str) -> bool {
        self.devices.iter().any(|device| is_at(name, *device))
    }
}

/// Locked while it is loaded.
type Cell = Arc<Mutex<Option<Arc<Base>>>>;

struct Slot {
    key: Key,
    base: Cell,
    /// When it was last requested, as an increasing number.
    requested: usize,
}

/// The cached bases of a run, and their devices.
pub struct ModelCache {
    slots: Mutex<Vec<Slot>>,
    /// One stream per CUDA device for the whole run, which orders cached weights with all work that uses
    /// them.
    pub(super) devices: Mutex<BTreeMap<usize, Device>>,
    requests: AtomicUsize,
    loads: AtomicUsize,
    /// Bytes of CPU memory available, given the number of bytes needed.
    available: Box<dyn Fn(usize) -> Option<usize> + Send + Sync>,
}

impl fmt::Debug for ModelCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelCache").finish_non_exhaustive()
    }
}

impl Default for ModelCache {
    fn default() -> Self {
        let (slots, devices) = (Mutex::default(), Mutex::default());
        Self { slots, devices, requests: 0.into(), loads: 0.into(), available: Box::new(available_for) }
    }
}

impl ModelCache {
    /// Simulates this many available bytes of CPU memory.
    #[cfg(test)]
    pub(super) fn with_available(bytes: usize) -> Arc<Self> {
        Arc::new(Self { available: Box::new(move |_| Some(bytes)), ..Self::default() })
    }

    /// Returns the cached base, or loads it from its files or copies it from another device.
    pub(super) fn base(
        &self,
        model: Checkpoint<'_>,
        format: Format,
        devices: Vec<Device>,
        copy: Option<&Base>,
        workspace_bytes: usize,
    ) -> Result<Arc<Base>, EngineError> {
        let locations = devices.iter().map(Device::location).collect();
        let key = Key { digest: model.digest, format, devices: locations };
        let cell = self.cell(&key);
        let mut cached = cell.lock();
        if let Some(base) = &*cached {
            for device in &devices {
                self.evict(device, Some(&key), workspace_bytes);
            }
            return Ok(base.clone());
        }
        let needs = model_bytes(&ModelConfig::load(model.folder)?, format);
        for device in &devices {
            let available = self.evict(device, Some(&key), needs.saturating_add(workspace_bytes).max(1));
            if device.is_cpu() {
                check_weights(needs, format, available)?;
            }
        }
        self.loads.fetch_add(1, Ordering::Relaxed);
        let base = Arc::new(match copy {
            Some(base) => base.replica(&devices[0])?,
            None => Base::load(model.folder, format, devices)?,
        });
        // Temporary memory of the load.
        trim_allocator();
        *cached = Some(base.clone());
        Ok(base)
    }

    fn cell(&self, key: &Key) -> Cell {
        let mut slots = self.slots.lock();
        let requested = self.requests.fetch_add(1, Ordering::Relaxed);
        if let Some(slot) = slots.iter_mut().find(|slot| slot.key == *key) {
            slot.requested = requested;
            return slot.base.clone();
        }
        let base = Cell::default();
        slots.push(Slot { key: key.clone(), base: base.clone(), requested });
        base
    }

    /// Evicts bases on this device until this many bytes are available. Returns the available bytes. Freed
    /// memory is not always counted as free at once, so the result is not measured again.
    ///
    /// Bases in use by a stage stay in memory until it ends. They are evicted only if evicting the others is
    /// not enough.
    fn evict(&self, device: &Device, keep: Option<&Key>, bytes: usize) -> usize {
        let mut slots = self.slots.lock();
        slots.sort_by_key(|slot| slot.requested);
        let mut available = match device.is_cpu() {
            true => (self.available)(bytes).unwrap_or(usize::MAX),
            false => 0,
        };
        for in_use in [false, true] {
            for slot in &mut *slots {
                if available >= bytes {
                    return available;
                }
                if !slot.key.devices.contains(&device.location()) || Some(&slot.key) == keep {
                    continue;
                }
                let Some(mut cached) = slot.base.try_lock() else { continue };
                let used = |base: &Arc<Base>| Arc::strong_count(base) > 1 || base.is_in_use();
                let Some(base) = cached.take_if(|base| used(base) == in_use) else { continue };
                if !in_use && device.is_cpu() {
                    available = available.saturating_add(base.bytes());
                }
            }
        }
        available
    }

    /// Available bytes on this device. Evicts bases if there are fewer than requested.
    pub(super) fn make_room_on(&self, device: &Device, bytes: usize) -> usize {
        self.evict(device, None, bytes)
    }

    /// Evicts everything on these devices, to make room for external work.
    pub fn evict_devices(&self, devices: &[String]) {
        self.keep(|key| !devices.iter().any(|device| key.is_at(device)));
        for (index, device) in self.devices.lock().iter() {
            if devices.iter().any(|name| *name == format!("cuda:{index}")) {
                // Asking for the free memory also gives it back to the driver.
                device_memory(device);
            }
        }
    }

    /// Evicts all models but the wanted ones.
    pub fn retain(&self, wanted: impl Fn(&Digest) -> bool) {
        self.keep(|key| wanted(&key.digest));
    }

    fn keep(&self, wanted: impl Fn(&Key) -> bool) {
        self.slots.lock().retain(|slot| {
            let kept = wanted(&slot.key);
            if !kept && let Some(mut cached) = slot.base.try_lock() {
                drop(cached.take());
            }
            // A thread that is loading has the cell, and finds its slot again.
            kept || Arc::strong_count(&slot.base) > 1
        });
    }

    /// Whether nothing is cached or being loaded.
    pub fn is_empty(&self) -> bool {
        self.slots.lock().is_empty()
    }

    /// Whether this model's weights are cached on the device of this name.
    pub fn contains(&self, model: &Digest, device: &str) -> bool {
        let wanted = |slot: &&Slot| slot.key.digest == *model && slot.key.is_at(device);
        let is_loaded = |slot: &Slot| slot.base.try_lock().is_some_and(|cached| cached.is_some());
        self.slots.lock().iter().filter(wanted).any(is_loaded)
    }

    /// Number of bases read or copied so far.
    pub fn loads(&self) -> usize {
        self.loads.load(Ordering::Relaxed)
    }
}

/// Fails if the weights take more bytes than are available.
pub(super) fn check_weights(needs: usize, format: Format, available: usize) -> Result<(), EngineError> {
    if needs <= available {
        return Ok(());
    }
    let change = match format {
        Format::F32 => "set dtype = \"bf16\" under [engine] for half the memory, or \"nf4\" for an eighth",
        Format::F16 | Format::Bf16 => "set dtype = \"nf4\" under [engine] for a quarter of the memory",
        Format::Nf4 => "use a smaller model",
    };
    Err(EngineError::Memory { what: "the model", needs, available, change: change.into() })
}

/// Whether a device name of the run file means this device.
fn is_at(name: &str, device: DeviceLocation) -> bool {
    match device {
        DeviceLocation::Cpu => name == CPU,
        DeviceLocation::Cuda { gpu_id } => name.strip_prefix("cuda:") == Some(gpu_id.to_string().as_str()),
        DeviceLocation::Metal { .. } => false,
    }
}
