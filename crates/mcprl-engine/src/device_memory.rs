//! The memory of a CUDA device, as the driver reports it.

use candle_core::Device;

use super::available::DeviceMemory;
use crate::model::ops;

/// None if the device does not report it.
pub fn device_memory(device: &Device) -> Option<DeviceMemory> {
    let device = device.as_cuda_device().ok()?;
    let stream = device.cuda_stream();
    // Work that is queued may still free memory.
    stream.synchronize().ok()?;
    ops::cuda::trim(device).ok()?;
    let (free, total) = stream.context().mem_get_info().ok()?;
    Some(DeviceMemory { free, total })
}
