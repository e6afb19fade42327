//! Whether activations are kept from forward to backward, or recomputed.

use serde::{Deserialize, Serialize};

use super::memory::feed_row;
use crate::model::{Adapter, Decoder, ModelConfig};

/// Under [`Recompute::Auto`], activations are recomputed if they exceed this many bytes.
const BUDGET: usize = 2 << 30;

/// Whether a layer's activations are kept for its backward or recomputed from its input.
///
/// Recomputing takes about a third more time and keeps only `[tokens, hidden]` of each layer but the last.
/// The gradients are the same bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recompute {
    /// Recompute if [`kept_bytes`] of the concurrent microbatches exceeds 2 GiB.
    #[default]
    Auto,
    Always,
    Never,
}

impl Recompute {
    /// `rows`: tokens of the concurrent microbatches, the largest for each worker.
    pub fn decide(self, decoder: &Decoder, rows: usize) -> bool {
        self.decide_for(kept_bytes(decoder, rows))
    }

    /// Decides for activations of this many bytes.
    pub(super) fn decide_for(self, kept: usize) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Auto => kept > BUDGET,
        }
    }
}

/// Bytes of the activations of this many rows in all layers, none recomputed.
///
/// Per row and layer, in `f32`: 4 times the hidden width (input, two norms, middle), 3 times the width of the
/// queries and of the keys (before and after norm and rotation; attention, values), the activations of the
/// feed-forward ([`feed_row`]), and the rank of every adapter.
pub fn kept_bytes(decoder: &Decoder, rows: usize) -> usize {
    let ranks = Adapter::size(decoder).map_or(0, |size| size.ranks);
    kept_bytes_of(&decoder.config, ranks, rows)
}

/// [`kept_bytes`] of a decoder with adapters whose ranks have this sum per token.
pub(super) fn kept_bytes_of(config: &ModelConfig, ranks: usize, rows: usize) -> usize {
    let (query, kv) = (config.heads.query * config.heads.dim, config.heads.kv * config.heads.dim);
    let per_layer = 4 * config.hidden + 3 * query + 3 * kv + feed_row(config);
    rows.saturating_mul(config.layers * per_layer + ranks).saturating_mul(size_of::<f32>())
}
