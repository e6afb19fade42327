//! Whether activations are kept from forward to backward, or recomputed.

use serde::{Deserialize, Serialize};

/// Under [`Recompute::Auto`], activations are recomputed if they exceed this many bytes.
const BUDGET: usize = 2 << 30;

/// Whether a layer's activations are kept for its backward or recomputed from its input.
///
/// Recomputing takes about a third more time and keeps only `[tokens, hidden]` of each layer but the last.
/// The gradients are the same bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recompute {
    /// Recompute if the activations of the concurrent microbatches exceed 2 GiB.
    #[default]
    Auto,
    Always,
    Never,
}

impl Recompute {
    /// Decides for activations of this many bytes.
    pub(super) fn decide(self, activations: usize) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Auto => activations > BUDGET,
        }
    }
}
