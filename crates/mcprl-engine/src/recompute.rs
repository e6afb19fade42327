//! Whether activations are kept from forward to backward, or recomputed.

use candle_core::Device;
use serde::{Deserialize, Serialize};

use super::{
    available::{DeviceMemory, available},
    device_memory::device_memory,
};
use crate::model::Decoder;

/// Bytes of activations that are kept where the free memory is not known.
const UNKNOWN: usize = 2 << 30;

/// Bytes that a first step allocates for each trained value: two sets of gradients, and the moments of AdamW.
const STEP_BYTES: usize = 16;

/// Bytes of activations that are kept under [`Recompute::Auto`], of this many free bytes.
pub fn activation_budget(free: Option<usize>) -> usize {
    free.map_or(UNKNOWN, |free| free / 2)
}

/// The same where the decoder is loaded: half of what is free once this many values are trained. If its layers
/// are spread, as many microbatches as devices are computed at once: a device has its layers' part of each, all gradients, and
/// its part of the moments.
pub(super) fn budget(decoder: &Decoder, trained: usize) -> usize {
    let placement = decoder.placement();
    let count = placement.devices().len();
    let own =
        trained.saturating_mul(STEP_BYTES / 2).saturating_add(trained.saturating_mul(STEP_BYTES / 2) / count);
    let free = |device: &Device| match device.is_cpu() {
        true => available(),
        false => device_memory(device).map(|memory: DeviceMemory| memory.free),
    };
    let left = |device| activation_budget(free(device).map(|free| free.saturating_sub(own)));
    let budgets = placement.devices().iter().map(left);
    let parts = count as f64 * placement.largest_share(decoder.config.layers, |_| 1);
    (budgets.min().unwrap_or(UNKNOWN) as f64 / parts) as usize
}

/// Whether a layer's activations are kept for its backward or recomputed from its input.
///
/// Recomputing takes about a third more time and keeps only `[tokens, hidden]` of each layer but the last.
/// The gradients are the same bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recompute {
    /// Recompute if the activations of the concurrent microbatches exceed half of the free memory.
    #[default]
    Auto,
    Always,
    Never,
}

impl Recompute {
    /// Decides for activations of this many bytes, of which this many may be kept.
    pub(super) fn decide(self, activations: usize, budget: usize) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Auto => activations > budget,
        }
    }
}
