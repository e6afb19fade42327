//! Replaces `cuda` in builds without CUDA: there is no device to query.

use candle_core::Device;

pub fn name(_: &Device) -> Option<String> {
    None
}

pub fn forget_peak(_: &Device) -> bool {
    false
}

pub fn peak(_: &Device) -> Option<u64> {
    None
}
