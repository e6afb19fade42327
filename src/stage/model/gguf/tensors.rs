//! The tensors of a decoder in a GGUF file: their names, and what llama.cpp's converter does to shapes, order and values.

use std::collections::{BTreeMap, BTreeSet};

use candle_core::{DType, Device, Tensor};
use half::bf16;

use super::{
    Content, GgufError,
    decoder::{EMBEDDING, OUTPUT, ROPE_FACTORS, predicting},
};
use crate::{
    error::Result,
    model::{Family, ModelConfig, ModelError, ops, to_f32},
};

/// A tensor of the decoder and where it comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorSource {
    /// Name in the file.
    pub name: String,
    /// Type in the folder.
    pub dtype: DType,
    pub values: Values,
    pub order: Option<Order>,
}

/// What the file has in place of a value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Values {
    Same,
    /// The value plus this.
    Larger(f32),
    /// Of a logarithm: the negative of the number.
    NegativeExponential,
}

/// An order of rows or columns in the file. Those behind `skipped` are matrices of items, one matrix behind the other, and
/// the file has the two axes of each matrix exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    axis: Axis,
    /// Leading rows that keep their places.
    skipped: usize,
    /// Rows or columns of an item.
    item: usize,
    /// Items of a matrix in safetensors, `[rows, columns]`.
    matrix: [usize; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Axis {
    Rows,
    Columns,
}

impl Order {
    /// Llama's heads: llama.cpp rotates adjacent rows, Transformers the halves of a head.
    fn pairs(dim: usize) -> Self {
        Self { axis: Axis::Rows, skipped: 0, item: 1, matrix: [2, dim / 2] }
    }

    /// Puts values in the file's order into that of safetensors. A value is `width` items of the slice.
    fn read<T: Copy>(&self, stored: &[T], shape: &[usize], width: usize) -> Vec<T> {
        let [rows, columns] = self.matrix;
        self.exchanged(stored, shape, width, [columns, rows])
    }

    /// The reverse of [`Self::read`].
    fn written<T: Copy>(&self, values: &[T], shape: &[usize]) -> Vec<T> {
        self.exchanged(values, shape, 1, self.matrix)
    }

    fn exchanged<T: Copy>(&self, values: &[T], shape: &[usize], width: usize, matrix: [usize; 2]) -> Vec<T> {
        let unit = width
            * match self.axis {
                Axis::Rows => shape.iter().skip(1).product::<usize>(),
                Axis::Columns => 1,
            };
        let ([rows, columns], item) = (matrix, self.item * unit);
        let (kept, rest) = values.split_at(self.skipped * unit);
        let mut out = kept.to_vec();
        out.reserve(rest.len());
        for matrix in rest.chunks(rows * columns * item) {
            for (column, row) in (0..columns).flat_map(|column| (0..rows).map(move |row| (column, row))) {
                let at = (row * columns + column) * item;
                out.extend_from_slice(&matrix[at..at + item]);
            }
        }
        out
    }
}

impl TensorSource {
    /// The shape in the file. A convolution has one input channel, which the file leaves out.
    pub fn shape(shape: &[usize]) -> Vec<usize> {
        match shape {
            [channels, 1, window] => vec![*channels, *window],
            _ => shape.to_vec(),
        }
    }

    /// The values of a tensor of this shape as in safetensors, in bytes of [`Self::dtype`].
    ///
    /// # Errors
    /// If they cannot be dequantized, or have no logarithm.
    pub fn read(&self, content: &Content<'_>, shape: &[usize]) -> Result<Vec<u8>, GgufError> {
        let stored = content.tensor(&self.name)?;
        let bytes = |values: Vec<f32>| match self.dtype {
            DType::F32 => values.into_iter().flat_map(f32::to_le_bytes).collect(),
            _ => values.into_iter().flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect(),
        };
        let values = match self.values {
            Values::Same => content.dequantized(&self.name, stored, self.dtype)?,
            Values::Larger(by) => {
                let values = content.floats(&self.name, stored)?.into_iter();
                bytes(values.map(|value| value - by).collect())
            }
            Values::NegativeExponential => {
                let values = content.floats(&self.name, stored)?.into_iter();
                let values: Vec<f32> = values.map(|value| (-value).ln()).collect();
                if values.iter().any(|value| !value.is_finite()) {
                    let reason = "not all of its values are below 0".to_owned();
                    let (path, name) = (content.path.to_owned(), self.name.clone());
                    return Err(GgufError::Convert { path, name, reason });
                }
                bytes(values)
            }
        };
        Ok(match self.order {
            Some(order) => order.read(&values, shape, self.dtype.size_in_bytes()),
            None => values,
        })
    }

    /// A tensor of safetensors as the file has it, in `f32`.
    pub fn written(&self, tensor: Tensor) -> Result<Tensor> {
        let shape = Self::shape(tensor.dims());
        let tensor = to_f32(tensor)?;
        let tensor = match self.values {
            Values::Same => Ok(tensor),
            Values::Larger(by) => tensor + f64::from(by),
            Values::NegativeExponential => tensor.exp().and_then(|values| values.neg()),
        };
        let tensor = tensor.and_then(|tensor| tensor.reshape(shape)).map_err(ModelError::from)?;
        self.ordered(tensor, Axis::Rows).and_then(|tensor| self.ordered(tensor, Axis::Columns))
    }

    /// The matrices of an adapter of this weight, in the file's order: `A` has the weight's columns, `B` its rows.
    pub fn written_adapter(&self, a: Tensor, b: Tensor) -> Result<[Tensor; 2]> {
        Ok([self.ordered(to_f32(a)?, Axis::Columns)?, self.ordered(to_f32(b)?, Axis::Rows)?])
    }

    /// Puts a tensor into the file's order, if that is one of this axis.
    fn ordered(&self, tensor: Tensor, axis: Axis) -> Result<Tensor> {
        let Some(order) = self.order.filter(|order| order.axis == axis) else { return Ok(tensor) };
        let values = order.written(&ops::values(&tensor).map_err(ModelError::from)?, tensor.dims());
        Ok(Tensor::from_vec(values, tensor.dims(), &Device::Cpu).map_err(ModelError::from)?)
    }
}

/// Every tensor of the decoder by its name in safetensors, with its shape there.
///
/// # Errors
/// If one is missing or has another shape, or the file has one that the decoder has no place for. Layers that predict
/// several tokens are left out.
pub fn sources(
    content: &Content<'_>,
    config: &ModelConfig,
) -> Result<BTreeMap<String, (TensorSource, Vec<usize>)>, GgufError> {
    let mut sources = BTreeMap::new();
    let mut used = BTreeSet::from([ROPE_FACTORS.to_owned()]);
    // The configuration may announce any number of layers, so the first missing tensor ends this.
    for (name, shape) in config.tensors() {
        let source = source(&name, config);
        content.tensor_of_shape(&source.name, &TensorSource::shape(&shape))?;
        used.insert(source.name.clone());
        sources.insert(name, (source, shape));
    }
    let further = config.layers..config.layers + predicting(content)?;
    let is_further = |name: &str| {
        let layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        layer.and_then(|(layer, _)| layer.parse().ok()).is_some_and(|layer| further.contains(&layer))
    };
    match content.tensors.keys().find(|name| !used.contains(**name) && !is_further(name)) {
        Some(name) => {
            Err(GgufError::UnknownTensor { path: content.path.to_owned(), name: (*name).to_owned() })
        }
        None => Ok(sources),
    }
}

/// Parts of a layer, and their names in files.
const PARTS: [(&str, &str); 31] = [
    ("input_layernorm", "attn_norm"),
    ("operator_norm", "attn_norm"),
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("ffn_norm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.q_layernorm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.k_layernorm", "attn_k_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.out_proj", "attn_output"),
    ("linear_attn.in_proj_qkv", "attn_qkv"),
    ("linear_attn.in_proj_z", "attn_gate"),
    ("linear_attn.in_proj_b", "ssm_beta"),
    ("linear_attn.in_proj_a", "ssm_alpha"),
    ("linear_attn.conv1d", "ssm_conv1d"),
    ("linear_attn.norm", "ssm_norm"),
    ("linear_attn.out_proj", "ssm_out"),
    ("conv.in_proj", "shortconv.in_proj"),
    ("conv.conv", "shortconv.conv"),
    ("conv.out_proj", "shortconv.out_proj"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("feed_forward.w1", "ffn_gate"),
    ("feed_forward.w3", "ffn_up"),
    ("feed_forward.w2", "ffn_down"),
];

/// Where the tensor of this name in safetensors is.
pub fn source(name: &str, config: &ModelConfig) -> TensorSource {
    let inner = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
    let (_, part) = inner.unwrap_or_default();
    let is_wide = ["linear_attn.A_log", "linear_attn.norm.weight"].contains(&part);
    let values = match part {
        "linear_attn.A_log" => Values::NegativeExponential,
        "linear_attn.norm.weight" => Values::Same,
        _ if name.ends_with("norm.weight") && config.design.norms_add_one => {
            Values::Larger(config.design.norm_offset())
        }
        _ => Values::Same,
    };
    TensorSource {
        // A name without a counterpart is then reported as missing from the file.
        name: inner
            .map_or_else(|| outer(name), |(layer, part)| of_layer(layer, part, config))
            .unwrap_or(name.to_owned()),
        // As published files have them.
        dtype: if is_wide { DType::F32 } else { DType::BF16 },
        values,
        order: order(part, config),
    }
}

fn outer(name: &str) -> Option<String> {
    let stored = match name {
        "model.embed_tokens.weight" => EMBEDDING,
        "model.norm.weight" => "output_norm.weight",
        "model.embedding_norm.weight" => "token_embd_norm.weight",
        "lm_head.weight" => OUTPUT,
        _ => return None,
    };
    Some(stored.to_owned())
}

fn of_layer(layer: &str, part: &str, config: &ModelConfig) -> Option<String> {
    // Files name the norm before the feed-forward by that, but Qwen3.5's by its place behind attention.
    let is_usual = config.design.family != Family::Qwen3_5;
    let stored = match part {
        "linear_attn.A_log" => "ssm_a".to_owned(),
        "linear_attn.dt_bias" => "ssm_dt.bias".to_owned(),
        _ => {
            let (part, kind) = part.rsplit_once('.')?;
            let (_, stored) = PARTS.iter().find(|(known, _)| *known == part)?;
            let stored =
                if is_usual && part == config.design.names().middle_norm { &"ffn_norm" } else { stored };
            format!("{stored}.{kind}")
        }
    };
    Some(format!("blk.{layer}.{stored}"))
}

/// The file's order of the weight or bias of a part of a layer.
fn order(part: &str, config: &ModelConfig) -> Option<Order> {
    let is_rotated = ["self_attn.q_proj.", "self_attn.k_proj."].iter().any(|name| part.starts_with(name));
    if is_rotated && config.design.family == Family::Llama {
        return Some(Order::pairs(config.heads.dim));
    }
    // Value heads of a key head are neighbours in Transformers; in the file, those of the same place are.
    let delta = config.design.delta.filter(|delta| delta.value != delta.key)?;
    let heads = |axis, skipped, item| {
        Some(Order { axis, skipped, item, matrix: [delta.key, delta.value / delta.key] })
    };
    match part {
        "linear_attn.in_proj_qkv.weight" | "linear_attn.conv1d.weight" => {
            heads(Axis::Rows, 2 * delta.key * delta.key_dim, delta.value_dim)
        }
        "linear_attn.in_proj_z.weight" => heads(Axis::Rows, 0, delta.value_dim),
        "linear_attn.in_proj_b.weight"
        | "linear_attn.in_proj_a.weight"
        | "linear_attn.A_log"
        | "linear_attn.dt_bias" => heads(Axis::Rows, 0, 1),
        "linear_attn.out_proj.weight" => heads(Axis::Columns, 0, delta.value_dim),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_pairs_become_rows_of_halves() {
        // Two heads of width 4, rows of two bytes.
        let paired: Vec<u8> = [0, 2, 1, 3, 4, 6, 5, 7].into_iter().flat_map(|row| [row, row]).collect();
        let expected: Vec<u8> = (0..8).flat_map(|row| [row, row]).collect();
        assert_eq!(Order::pairs(4).read(&paired, &[8, 1], 2), expected);
    }

    #[test]
    fn heads_of_the_same_place_become_heads_of_the_same_group() {
        // One row that stays, then two groups of three heads, two rows each.
        let order = Order { axis: Axis::Rows, skipped: 1, item: 2, matrix: [2, 3] };
        let stored = [0, 10, 11, 40, 41, 20, 21, 50, 51, 30, 31, 60, 61];
        let expected = [0, 10, 11, 20, 21, 30, 31, 40, 41, 50, 51, 60, 61];
        assert_eq!(order.read(&stored, &[13], 1), expected);
        assert_eq!(order.written(&expected, &[13]), stored);
        // The same of columns, in each of two rows.
        let order = Order { axis: Axis::Columns, skipped: 0, item: 1, matrix: [2, 2] };
        assert_eq!(order.read(&[0, 2, 1, 3, 4, 6, 5, 7], &[2, 4], 1), [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
