//! Replaces `device_memory.rs` in builds without CUDA: no device has a memory of its own.

use candle_core::Device;

use super::available::DeviceMemory;

pub fn device_memory(_: &Device) -> Option<DeviceMemory> {
    None
}
