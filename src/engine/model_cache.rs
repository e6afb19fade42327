//! Frozen weights that stay in memory between the stages of a run.
//!
//! The key of a base is its artifact's digest, its format and its device. A digest always means the same
//! bytes, so the cached weights equal the files, even if their original folder has changed. Callers get a
//! decoder that shares the weights and cannot change them ([`Base`]). Concurrent requests for one base wait
//! for a single load. A failed load leaves nothing behind.
//!
//! Cached bases give way to other work. Before a base is loaded, or work with known memory needs begins,
//! other bases on that device are evicted, least recently requested first, until there is room. A device that
//! does not report its available memory keeps one base.

use std::{
    collections::BTreeMap,
    fmt,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicUsize, Ordering},
    },
};

use candle_core::{Device, DeviceLocation};

use super::{
    DeviceSet, EngineError, EngineSpec,
    available::{available_for, give_back},
    devices::{CPU, open},
    memory::{check_weights, weights},
};
use crate::{
    hash::Digest,
    model::{Base, Decoder, ModelConfig, kernels::Format},
};

/// A model in the store.
#[derive(Debug, Clone, Copy)]
pub struct Checkpoint<'a> {
    /// Digest of the artifact.
    pub digest: Digest,
    /// A Hugging Face folder.
    pub folder: &'a Path,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key {
    digest: Digest,
    format: Format,
    device: DeviceLocation,
}

/// Locked while it is loaded.
type Cell = Arc<Mutex<Option<Arc<Base>>>>;

struct Slot {
    key: Key,
    base: Cell,
    /// When it was last requested, as an increasing number.
    asked: usize,
}

/// The cached bases of a run, and their devices.
pub struct ModelCache {
    slots: Mutex<Vec<Slot>>,
    /// One stream per CUDA device for the whole run, which orders cached weights with all work that uses
    /// them.
    devices: Mutex<BTreeMap<usize, Device>>,
    asked: AtomicUsize,
    loads: AtomicUsize,
    /// Bytes of CPU memory available, given the number of bytes needed.
    left: Box<dyn Fn(usize) -> Option<usize> + Send + Sync>,
}

impl fmt::Debug for ModelCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelCache").finish_non_exhaustive()
    }
}

impl Default for ModelCache {
    fn default() -> Self {
        let (slots, devices) = (Mutex::default(), Mutex::default());
        Self { slots, devices, asked: 0.into(), loads: 0.into(), left: Box::new(available_for) }
    }
}

impl ModelCache {
    /// Simulates this many available bytes of CPU memory.
    #[cfg(test)]
    pub(super) fn with_left(bytes: usize) -> Arc<Self> {
        Arc::new(Self { left: Box::new(move |_| Some(bytes)), ..Self::default() })
    }

    /// Opens the devices, like [`EngineSpec::places`], but opens each device only once.
    pub fn places(self: &Arc<Self>, spec: &EngineSpec) -> Result<DeviceSet, EngineError> {
        let mut devices = lock(&self.devices);
        let places = spec.places_by(&mut |index| match devices.get(&index) {
            Some(device) => Ok(device.clone()),
            None => {
                let device = open(index)?;
                devices.insert(index, device.clone());
                Ok(device)
            }
        })?;
        Ok(DeviceSet { bases: Some(self.clone()), ..places })
    }

    /// Loads a decoder with a model's frozen weights on the first of these devices. Also returns all devices,
    /// each with the weights for its replica. `beside`: further bytes that the work takes.
    ///
    /// # Errors
    /// Also fails if the weights alone exceed the available memory.
    pub fn load(
        self: &Arc<Self>,
        model: Checkpoint<'_>,
        spec: &EngineSpec,
        beside: usize,
    ) -> Result<(Decoder, DeviceSet), EngineError> {
        let mut places = self.places(spec)?;
        let format = spec.dtype.unwrap_or(Format::F32);
        let first = self.base(model, format, &places.first.device, None, beside)?;
        for place in &mut places.others {
            place.base = Some(self.base(model, format, &place.device, Some(&first), beside)?);
        }
        let decoder = first.decoder()?;
        places.first.base = Some(first);
        Ok((decoder, places))
    }

    /// Returns the cached base, or loads it from its files or copies it from another device.
    fn base(
        &self,
        model: Checkpoint<'_>,
        format: Format,
        device: &Device,
        copy: Option<&Base>,
        beside: usize,
    ) -> Result<Arc<Base>, EngineError> {
        let key = Key { digest: model.digest, format, device: device.location() };
        let cell = self.cell(key);
        let mut held = lock(&cell);
        if let Some(base) = &*held {
            self.make_room(device, Some(&key), beside);
            return Ok(base.clone());
        }
        let needs = weights(&ModelConfig::load(model.folder)?, format);
        let left = self.make_room(device, Some(&key), needs.saturating_add(beside).max(1));
        if device.is_cpu() {
            check_weights(needs, format, left)?;
        }
        self.loads.fetch_add(1, Ordering::Relaxed);
        let base = Arc::new(match copy {
            Some(base) => base.replica(device)?,
            None => Base::load(model.folder, format, device)?,
        });
        // Temporary memory of the load.
        give_back();
        *held = Some(base.clone());
        Ok(base)
    }

    fn cell(&self, key: Key) -> Cell {
        let mut slots = lock(&self.slots);
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        if let Some(slot) = slots.iter_mut().find(|slot| slot.key == key) {
            slot.asked = asked;
            return slot.base.clone();
        }
        let base = Cell::default();
        slots.push(Slot { key, base: base.clone(), asked });
        base
    }

    /// Evicts bases on this device until this many bytes are available. Returns the available bytes. Freed
    /// memory is not always counted as free at once, so the result is not measured again.
    ///
    /// Bases in use by a stage stay in memory until it ends. They are evicted only if evicting the others is
    /// not enough.
    fn make_room(&self, device: &Device, keep: Option<&Key>, bytes: usize) -> usize {
        let mut slots = lock(&self.slots);
        slots.sort_by_key(|slot| slot.asked);
        let mut left = if device.is_cpu() { (self.left)(bytes).unwrap_or(usize::MAX) } else { 0 };
        for in_use in [false, true] {
            for slot in &mut *slots {
                if left >= bytes {
                    return left;
                }
                if slot.key.device != device.location() || Some(&slot.key) == keep {
                    continue;
                }
                let Some(mut held) = unlocked(&slot.base) else { continue };
                let used = |base: &Arc<Base>| Arc::strong_count(base) > 1 || base.is_in_use();
                let Some(base) = held.take_if(|base| used(base) == in_use) else { continue };
                if !in_use && device.is_cpu() {
                    left = left.saturating_add(base.bytes());
                }
            }
        }
        left
    }

    /// Available bytes of CPU memory. Evicts bases if there are fewer than requested.
    pub(super) fn room(&self, bytes: usize) -> usize {
        self.make_room(&Device::Cpu, None, bytes)
    }

    /// Makes room for work that takes this many bytes on each of these devices and shares no base.
    pub fn clear(&self, places: &DeviceSet, bytes: usize) {
        self.make_room(&places.first.device, None, bytes);
        for place in places.others.iter().filter(|place| !place.device.is_cpu()) {
            self.make_room(&place.device, None, bytes);
        }
    }

    /// Evicts everything on these devices, to make room for external work.
    pub fn leave(&self, devices: &[String]) {
        self.keep(|key| !devices.iter().any(|device| is_at(device, key.device)));
    }

    /// Evicts all models but the wanted ones.
    pub fn retain(&self, wanted: impl Fn(&Digest) -> bool) {
        self.keep(|key| wanted(&key.digest));
    }

    fn keep(&self, wanted: impl Fn(&Key) -> bool) {
        lock(&self.slots).retain(|slot| {
            let kept = wanted(&slot.key);
            match unlocked(&slot.base) {
                Some(mut held) if !kept => drop(held.take()),
                _ => {}
            }
            // A thread that is loading has the cell, and finds its slot again.
            kept || Arc::strong_count(&slot.base) > 1
        });
    }

    /// Whether nothing is cached or being loaded.
    pub fn is_empty(&self) -> bool {
        lock(&self.slots).is_empty()
    }

    /// Whether this model's weights are cached on the device of this name.
    pub fn holds(&self, model: &Digest, device: &str) -> bool {
        let of = |slot: &&Slot| slot.key.digest == *model && is_at(device, slot.key.device);
        lock(&self.slots)
            .iter()
            .filter(of)
            .any(|slot| unlocked(&slot.base).is_some_and(|held| held.is_some()))
    }

    /// Number of bases read or copied so far.
    pub fn loads(&self) -> usize {
        self.loads.load(Ordering::Relaxed)
    }
}

/// Whether a device name of the run file means this device.
fn is_at(name: &str, device: DeviceLocation) -> bool {
    match device {
        DeviceLocation::Cpu => name == CPU,
        DeviceLocation::Cuda { gpu_id } => name.strip_prefix("cuda:") == Some(gpu_id.to_string().as_str()),
        DeviceLocation::Metal { .. } => false,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// None while another thread has the lock.
fn unlocked<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
