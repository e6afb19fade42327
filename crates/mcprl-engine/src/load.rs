//! Opens devices and loads models on them, for a whole run only once.

use std::{path::Path, sync::Arc};

use candle_core::Device;

use super::{
    DeviceSet, EngineError, EngineSpec, SplitMode,
    available::{available_for, trim_allocator},
    devices::open,
    model_cache::{Checkpoint, ModelCache, check_weights},
    size::model_bytes,
};
use crate::model::{Decoder, ModelConfig, Weights, kernels::Format};

impl ModelCache {
    /// Opens the devices, like [`EngineSpec::open_devices`], but opens each device only once.
    pub fn open_devices(self: &Arc<Self>, spec: &EngineSpec) -> Result<DeviceSet, EngineError> {
        let mut opened = self.devices.lock();
        let devices = spec.open_devices_with(&mut |index| match opened.get(&index) {
            Some(device) => Ok(device.clone()),
            None => {
                let device = open(index)?;
                opened.insert(index, device.clone());
                Ok(device)
            }
        })?;
        Ok(DeviceSet { model_cache: Some(self.clone()), ..devices })
    }

    /// Loads a decoder with a model's frozen weights on the first of these devices, or spread over them. Also returns all devices,
    /// each with the weights for its replica if it has one. `workspace_bytes`: further memory that the work takes.
    ///
    /// # Errors
    /// Also fails if the weights alone exceed the available memory.
    pub fn load(
        self: &Arc<Self>,
        model: Checkpoint<'_>,
        spec: &EngineSpec,
        workspace_bytes: usize,
    ) -> Result<(Decoder, DeviceSet), EngineError> {
        let mut devices = self.open_devices(spec)?;
        let format = match spec.dtype {
            Some(format) => format,
            None => Weights::open(model.folder)?.format(),
        };
        let first = self.base(model, format, devices.of_decoder(), None, workspace_bytes)?;
        if devices.split == SplitMode::Batches {
            for slot in &mut devices.others {
                let device = vec![slot.device.clone()];
                slot.base = Some(self.base(model, format, device, Some(&first), workspace_bytes)?);
            }
        }
        let decoder = first.decoder()?;
        devices.first.base = Some(first);
        Ok((decoder, devices))
    }

    /// Evicts bases until work that shares none of them has this many bytes on each of these devices.
    pub fn make_room(&self, devices: &DeviceSet, bytes: usize) {
        self.make_room_on(&devices.first.device, bytes);
        for slot in devices.others.iter().filter(|slot| !slot.device.is_cpu()) {
            self.make_room_on(&slot.device, bytes);
        }
    }
}

/// Loads a model to this device for use without training, in this format.
///
/// # Errors
/// Also fails if the weights alone exceed the available memory.
pub fn load_frozen(folder: &Path, format: Format, device: &Device) -> Result<Decoder, EngineError> {
    if device.is_cpu() {
        let needs = model_bytes(&ModelConfig::load(folder)?, format);
        check_weights(needs, format, available_for(needs).unwrap_or(usize::MAX))?;
    }
    let decoder = Decoder::load_on(folder, Some(format), device)?;
    trim_allocator();
    Ok(decoder)
}
