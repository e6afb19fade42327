//! Sizes that follow from a model's shape.

use crate::model::{AdapterSize, Experts, ModelConfig, kernels::Format};

pub const FLOAT: usize = size_of::<f32>();

/// Rows of one sampling step. Longer prompts take several steps.
pub const STEP_ROWS: usize = 512;

/// Most rows whose logits one thread stores at once, and most bytes of these logits.
const LOGIT_ROWS: usize = 256;
const LOGIT_BYTES: usize = 32 << 20;
/// The same on a device, which each block waits for.
const DEVICE_LOGIT_ROWS: usize = 1024;
const DEVICE_LOGIT_BYTES: usize = 256 << 20;

/// Rows whose logits are in memory at once, computed by the kernels of the CPU or on a device.
pub fn logit_rows(config: &ModelConfig, by_kernels: bool) -> usize {
    let (rows, bytes) = match by_kernels {
        true => (LOGIT_ROWS, LOGIT_BYTES),
        false => (DEVICE_LOGIT_ROWS, DEVICE_LOGIT_BYTES),
    };
    (bytes / (config.vocabulary * FLOAT)).clamp(1, rows)
}

/// Values per row of one layer's forward: input, two norms, middle and output; queries and keys before and
/// after norm and rotation, attention and values; the feed-forward; the adapters' values. `ranks` is the sum
/// of the adapters' ranks in all layers.
pub fn layer_row(config: &ModelConfig, ranks: usize) -> usize {
    let heads = config.heads;
    // The output norms' inputs, and one of their results.
    let norms = if config.design.output_norms { 3 * config.hidden } else { 0 };
    let attention = 5 * config.hidden + norms + 3 * (heads.query + heads.kv) * heads.dim;
    (attention + feed_forward_row(config)).saturating_add(ranks.div_ceil(config.layers))
}

/// Values per row of one layer's feed-forward: gate, up and their product. In a mixture: those of each expert
/// that the token uses, with that expert's copies of its input and output, and the probabilities of all
/// experts for the token.
pub fn feed_forward_row(config: &ModelConfig) -> usize {
    match config.design.experts {
        None => 3 * config.intermediate,
        Some(Experts { count, per_token, .. }) => {
            per_token * (3 * config.intermediate + 2 * config.hidden) + count
        }
    }
}

/// Bytes of the activations of this many rows in all layers, none recomputed: [`layer_row`] without the output, which
/// is the next layer's input. `ranks` is the sum of the adapters' ranks.
pub fn activation_bytes(config: &ModelConfig, ranks: usize, rows: usize) -> usize {
    let per_layer = layer_row(config, 0) - config.hidden;
    rows.saturating_mul(config.layers * per_layer + ranks).saturating_mul(FLOAT)
}

/// Bytes of all weights, frozen in this format, and of the tables of the rotary embedding.
pub fn model_bytes(config: &ModelConfig, format: Format) -> usize {
    let has_two = config.design.sliding.is_some_and(|sliding| sliding.rope_theta.is_some());
    let tables = if has_two { 2 } else { 1 };
    weight_bytes(config, format) + tables * config.context * config.rotary() * FLOAT
}

/// Bytes of the weight matrices, frozen in this format.
pub fn weight_bytes(config: &ModelConfig, format: Format) -> usize {
    let ends = format.at_the_ends();
    let matrices = if config.tied { 1 } else { 2 };
    let linears: usize =
        config.linears().iter().map(|linear| format.bytes(linear.outputs, linear.inputs)).sum();
    matrices * ends.bytes(config.vocabulary, config.hidden) + config.layers * linears
}

/// The size of all weights if they are trained.
pub fn all_weights(config: &ModelConfig) -> AdapterSize {
    let packed = |outputs: usize, inputs: usize| Format::F32.bytes(outputs, inputs) / FLOAT;
    let ends = if config.tied { 1 } else { 2 };
    let heads = if config.design.head_norms { 2 * config.heads.dim } else { 0 };
    let norms = if config.design.output_norms { 4 } else { 2 };
    let (mut values, mut copies) = (norms * config.hidden + heads, 0);
    for linear in config.linears() {
        values += linear.outputs * linear.inputs + if linear.bias { linear.outputs } else { 0 };
        copies += packed(linear.outputs, linear.inputs);
    }
    AdapterSize {
        ranks: 0,
        values: ends * config.vocabulary * config.hidden + config.layers * values + config.hidden,
        packed: ends * packed(config.vocabulary, config.hidden) + config.layers * copies,
    }
}
