//! Sizes that follow from a model's shape.

use crate::model::{AdapterSize, Experts, LayerKind, LinearShape, ModelConfig, Recurrence, kernels::Format};

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

/// Values per row of the largest layer's forward: input, two norms, middle and output; queries and keys before and
/// after norm and rotation, attention and values; the feed-forward; the adapters' values. `ranks` is the sum
/// of the adapters' ranks in all layers.
pub fn layer_row(config: &ModelConfig, ranks: usize) -> usize {
    let largest = config.kinds().into_iter().map(|(kind, _)| kind_row(config, kind)).max().unwrap_or(0);
    largest.saturating_add(ranks.div_ceil(config.layers))
}

/// [`layer_row`] of all layers together, without adapters.
pub fn all_layers_row(config: &ModelConfig) -> usize {
    config.kinds().into_iter().map(|(kind, layers)| layers.saturating_mul(kind_row(config, kind))).sum()
}

/// [`layer_row`] of a layer of this kind, without adapters.
fn kind_row(config: &ModelConfig, kind: LayerKind) -> usize {
    let heads = config.heads;
    // The output norms' inputs, and one of their results.
    let norms = if config.design.output_norms { 3 * config.hidden } else { 0 };
    let mixing = match config.recurrence(kind) {
        // The inputs; the result before and after norm and gate.
        Some(Recurrence::Delta(delta)) => delta.channels() + 4 * delta.width() + 2 * delta.value,
        // The projection and its three parts; input and result of the convolution, and the result after its gate.
        Some(Recurrence::Convolution(shape)) => 9 * shape.channels,
        None => {
            // The projection with gates, the gates, and the result before them.
            let gates = if config.design.gated { 4 * heads.query * heads.dim } else { 0 };
            3 * (heads.query + heads.kv) * heads.dim + gates
        }
    };
    5 * config.hidden + norms + mixing + feed_forward_row(config)
}

/// Values per row that the backward of a recurrence takes: gradients, and what its forward computes again.
pub fn recurrence_backward_row(config: &ModelConfig) -> usize {
    let of = |(kind, _)| match config.recurrence(kind) {
        Some(Recurrence::Delta(delta)) => 3 * delta.channels() + 6 * delta.width(),
        Some(Recurrence::Convolution(shape)) => 10 * shape.channels,
        None => 0,
    };
    config.kinds().into_iter().map(of).max().unwrap_or(0)
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
    let values = all_layers_row(config) - config.layers * config.hidden;
    rows.saturating_mul(values + ranks).saturating_mul(FLOAT)
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
    let bytes = |linear: &LinearShape| {
        let format = if linear.role.is_stored_wider() { ends } else { format };
        format.bytes(linear.outputs, linear.inputs)
    };
    let linears: usize = config
        .kinds()
        .into_iter()
        .map(|(kind, layers)| layers * config.linears(kind).iter().map(bytes).sum::<usize>())
        .sum();
    matrices * ends.bytes(config.vocabulary, config.hidden) + linears
}

/// The size of all weights if they are trained.
pub fn all_weights(config: &ModelConfig) -> AdapterSize {
    let packed = |outputs: usize, inputs: usize| Format::F32.bytes(outputs, inputs) / FLOAT;
    let ends = if config.tied { 1 } else { 2 };
    let norms = if config.design.output_norms { 4 } else { 2 };
    let (mut values, mut copies) = (0, 0);
    for (kind, layers) in config.kinds() {
        let own = match config.recurrence(kind) {
            Some(of) => of.tensors().iter().map(|(_, shape)| shape.iter().product::<usize>()).sum(),
            None if config.design.head_norms => 2 * config.heads.dim,
            None => 0,
        };
        values += layers * (norms * config.hidden + own);
        for linear in config.linears(kind) {
            let biases = if linear.bias { linear.outputs } else { 0 };
            values += layers * (linear.outputs * linear.inputs + biases);
            copies += layers * packed(linear.outputs, linear.inputs);
        }
    }
    AdapterSize {
        ranks: 0,
        values: ends * config.vocabulary * config.hidden + values + config.hidden,
        packed: ends * packed(config.vocabulary, config.hidden) + copies,
    }
}
