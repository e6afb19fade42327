//! Operations composed of candle's, for tensors on devices without our own kernels.
//!
//! They have the same meaning as the kernels. Their bits depend on the device, and may differ with the number
//! of rows. They also work on CPU tensors, so tests compare them with the kernels and with PyTorch without a
//! device.

mod attention;
mod delta;
#[cfg_attr(not(feature = "flash-attn"), path = "flash_disabled.rs")]
pub mod flash;
mod mask;
mod runs;

use candle_core::{D, DType, Device, Result, Tensor};

#[cfg(feature = "cuda")]
use super::cuda;
pub use super::forced::forced;
#[cfg(test)]
pub use super::forced::{Forced, force};
use super::{Activation, Gradients, Product, read};
use crate::model::kernels::NF4_BLOCK;

pub use attention::{PartialAttention, attend, attend_backward, rows};
pub use delta::{DELTA_WORKSPACE, DeltaPlan, DeltaRowGradients, DeltaRows, DeltaRun, DeltaStart};
pub use mask::{MaskSpans, Piece, Rows, Tile, TileSize, mask};
pub use runs::{Level, Sequences, attend_runs, levels};

/// Overwrites a tensor's values for all its handles.
pub fn assign(into: &Tensor, values: &Tensor) -> Result<()> {
    into.slice_set(&values.contiguous()?, 0, 0)
}

/// `into += x`.
pub fn add(into: &Tensor, x: &Tensor) -> Result<()> {
    #[cfg(feature = "cuda")]
    if cuda::takes(into) {
        return cuda::add(into, &x.contiguous()?);
    }
    assign(into, &(into + x)?)
}

/// Indices as a tensor.
pub fn indices(values: &[usize], device: &Device) -> Result<Tensor> {
    let narrow =
        |value: &usize| u32::try_from(*value).map_err(|_| candle_core::Error::msg("an index beyond 32 bits"));
    let values = values.iter().map(narrow).collect::<Result<Vec<u32>>>()?;
    let count = values.len();
    Tensor::from_vec(values, count, device)
}

pub fn embed_backward(tokens: &[u32], dy: &Tensor, slot: Option<usize>, gradients: &Gradients) -> Result<()> {
    let Some(slot) = slot else { return Ok(()) };
    let table = &gradients.slots[slot];
    assign(table, &table.index_add(&Tensor::new(tokens, dy.device())?, dy, 0)?)
}

pub fn add_rows(into: &Tensor, rows: &[usize], weights: Option<&[f32]>, y: &Tensor) -> Result<()> {
    let y = match weights {
        Some(weights) => y.broadcast_mul(&column(weights, y.device())?)?,
        None => y.clone(),
    };
    assign(into, &into.index_add(&indices(rows, into.device())?, &y, 0)?)
}

pub fn dot_and_scale_rows(x: &Tensor, y: &Tensor, weights: &[f32]) -> Result<Vec<f32>> {
    let products = read(&(x * y)?.sum(1)?)?;
    assign(x, &x.broadcast_mul(&column(weights, x.device())?)?)?;
    Ok(products)
}

/// `[values, 1]`
fn column(values: &[f32], device: &Device) -> Result<Tensor> {
    Tensor::from_slice(values, (values.len(), 1), device)
}

/// Rows of the length of a norm's weight, divided by the root of their mean square, and that root: `[n,
/// width]`, `[n, 1]`.
fn normed(x: &Tensor, width: usize, epsilon: f32) -> Result<(Tensor, Tensor)> {
    let x = x.reshape(((), width))?;
    let root = (x.sqr()?.mean_keepdim(1)? + f64::from(epsilon))?.sqrt()?;
    Ok((x.broadcast_div(&root)?, root))
}

pub fn rms_norm(x: &Tensor, weight: &Tensor, epsilon: f32) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if cuda::takes(x) {
        return cuda::rms_norm(x, weight, epsilon);
    }
    let (normed, _) = normed(x, weight.dims1()?, epsilon)?;
    normed.broadcast_mul(weight)?.reshape(x.shape())
}

pub fn rms_norm_backward(
    x: &Tensor,
    (weight, slot): (&Tensor, Option<usize>),
    epsilon: f32,
    dy: &Tensor,
    dx: &Tensor,
    gradients: &Gradients,
) -> Result<()> {
    #[cfg(feature = "cuda")]
    if cuda::takes(x) && slot.is_none() {
        return cuda::rms_norm_backward(x, weight, epsilon, dy, dx);
    }
    let width = weight.dims1()?;
    let (normed, root) = normed(x, width, epsilon)?;
    let dy = dy.reshape(((), width))?;
    gradients.add_tensor(slot, || (&dy * &normed)?.sum(0))?;
    let dnormed = dy.broadcast_mul(weight)?;
    let along = (&dnormed * &normed)?.mean_keepdim(1)?;
    let gradient = (dnormed - normed.broadcast_mul(&along)?)?.broadcast_div(&root)?;
    add(dx, &gradient.reshape(dx.shape())?)
}

pub fn gated(activation: Activation, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    match activation {
        #[cfg(feature = "cuda")]
        Activation::Silu if cuda::takes(gate) => cuda::silu_mul(gate, up),
        Activation::Silu => gate.silu()? * up,
        Activation::Gelu => gate.gelu()? * up,
    }
}

pub fn gated_backward(
    activation: Activation,
    gate: &Tensor,
    up: &Tensor,
    dout: &Tensor,
) -> Result<(Tensor, Tensor)> {
    #[cfg(feature = "cuda")]
    if activation == Activation::Silu && cuda::takes(gate) {
        return cuda::silu_mul_backward(gate, up, dout);
    }
    // Both are the gate times a sigmoid: of the gate, or of this polynomial of it.
    let (argument, slope) = match activation {
        Activation::Silu => (gate.clone(), gate.ones_like()?),
        Activation::Gelu => {
            let (root, square) = (2.0 * (2.0 / std::f64::consts::PI).sqrt(), gate.sqr()?);
            let argument = ((gate * (&square * 0.044_715)?.affine(1.0, 1.0)?)? * root)?;
            (argument, square.affine(3.0 * 0.044_715 * root, root)?)
        }
    };
    let sigmoid = sigmoid(&argument)?;
    let active = (gate * &sigmoid)?;
    let derivative = (&sigmoid + ((&active * (1.0 - &sigmoid)?)? * slope)?)?;
    Ok((((dout * up)? * derivative)?, (dout * active)?))
}

fn sigmoid(x: &Tensor) -> Result<Tensor> {
    (x.neg()?.exp()? + 1.0)?.recip()
}

pub fn sigmoid_mul(gate: &Tensor, x: &Tensor) -> Result<Tensor> {
    sigmoid(gate)? * x
}

pub fn sigmoid_mul_backward(gate: &Tensor, x: &Tensor, dout: &Tensor) -> Result<(Tensor, Tensor)> {
    let open = sigmoid(gate)?;
    let dx = (dout * &open)?;
    Ok((((&dx * x)? * (1.0 - open)?)?, dx))
}

/// Rotates the first `2 · half` values of each head of `x` (`[tokens, heads · head]`) in place. Cosines and
/// sines are `[tokens, half]`.
pub fn rotate(x: &Tensor, (head, half): (usize, usize), cos: &Tensor, sin: &Tensor) -> Result<()> {
    let (tokens, columns) = x.dims2()?;
    let heads = x.reshape((tokens, columns / head, head))?;
    let (low, high) = (heads.narrow(2, 0, half)?, heads.narrow(2, half, half)?);
    let (cos, sin) = (cos.unsqueeze(1)?, sin.unsqueeze(1)?);
    let mut parts = vec![
        (low.broadcast_mul(&cos)? - high.broadcast_mul(&sin)?)?,
        (high.broadcast_mul(&cos)? + low.broadcast_mul(&sin)?)?,
    ];
    if 2 * half < head {
        parts.push(heads.narrow(2, 2 * half, head - 2 * half)?);
    }
    assign(x, &Tensor::cat(&parts, 2)?.reshape((tokens, columns))?)
}

/// `scale · (product)` in `f32`. If the second factor has another type, the first is first rounded to it.
pub fn product(kind: Product, x: &Tensor, weight: &Tensor, scale: f32) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if cuda::takes(x) {
        return cuda::product(kind, x, weight, scale);
    }
    let x = x.to_dtype(weight.dtype())?;
    let y = match kind {
        Product::Forward => x.matmul(&weight.t()?)?,
        Product::Backward => x.matmul(weight)?,
        Product::Weight => x.t()?.matmul(weight)?,
    };
    let y = y.to_dtype(DType::F32)?;
    #[expect(clippy::float_cmp, reason = "at 1 exactly there is nothing to multiply by")]
    if scale == 1.0 { Ok(y) } else { y * f64::from(scale) }
}

/// Adds a [`product`] to `into`.
pub fn add_product(into: &Tensor, kind: Product, x: &Tensor, weight: &Tensor, scale: f32) -> Result<()> {
    #[cfg(feature = "cuda")]
    if cuda::takes(x) {
        return cuda::add_product(into, kind, x, weight, scale);
    }
    add(into, &product(kind, x, weight, scale)?)
}

/// Adds a vector to each row, in place.
pub fn add_to_rows(into: &Tensor, x: &Tensor) -> Result<()> {
    #[cfg(feature = "cuda")]
    if cuda::takes(into) {
        return cuda::add_to_rows(into, x);
    }
    assign(into, &into.broadcast_add(x)?)
}

/// 4-bit codes as bf16, `[values / 64, 64]`: two codes to a byte, a scale for each 64 values, and the two values of each byte
/// (`[256, 2]`).
pub fn decode_nf4(codes: &Tensor, scales: &Tensor, pairs: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if cuda::takes(codes) {
        return cuda::decode_nf4(codes, scales, pairs);
    }
    // To `index_select`, the largest index of a type means no row.
    let bytes = codes.flatten_all()?.to_dtype(DType::U32)?;
    let values = pairs.index_select(&bytes, 0)?.reshape(((), NF4_BLOCK))?;
    values.broadcast_mul(&scales.reshape(((), 1))?)?.to_dtype(DType::BF16)
}

/// `exp(x − max)` of each row, their sum, and the maximum: `[rows, n]`, `[rows, 1]`, `[rows, 1]`.
fn exps(x: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
    let most = x.max_keepdim(D::Minus1)?;
    let exps = x.broadcast_sub(&most)?.exp()?;
    let sum = exps.sum_keepdim(D::Minus1)?;
    Ok((exps, sum, most))
}

/// Softmax over the last dimension.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    let (exps, sum, _) = exps(x)?;
    exps.broadcast_div(&sum)
}

/// `[rows, most]`; short rows are padded with zeros.
fn padded<T: candle_core::WithDType>(rows: &[Vec<T>], device: &Device) -> Result<Tensor> {
    let most = rows.iter().map(Vec::len).max().unwrap_or(0).max(1);
    let fill =
        |row: &Vec<T>| row.iter().copied().chain(std::iter::repeat_n(T::zero(), most - row.len())).collect();
    let flat: Vec<T> = rows.iter().flat_map(|row| -> Vec<T> { fill(row) }).collect();
    Tensor::from_vec(flat, (rows.len(), most), device)
}

/// Log-probabilities of these tokens of each row of logits (`[rows, vocabulary]`).
pub fn log_probabilities(logits: &Tensor, tokens: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
    #[cfg(feature = "cuda")]
    if cuda::takes(logits) {
        return cuda::log_probabilities(logits, tokens);
    }
    let (_, sum, most) = exps(logits)?;
    let picked = logits.gather(&padded(tokens, logits.device())?, 1)?;
    let found = picked.broadcast_sub(&(sum.log()? + most)?)?.to_vec2::<f32>()?;
    Ok(found.into_iter().zip(tokens).map(|(row, tokens)| row[..tokens.len()].to_vec()).collect())
}

/// Overwrites logits with Σ dloss_dlogp · (1\[token\] − p) over each row's tokens.
pub fn log_probabilities_backward(
    logits: &Tensor,
    tokens: &[Vec<u32>],
    dloss_dlogp: &[Vec<f32>],
) -> Result<()> {
    #[cfg(feature = "cuda")]
    if cuda::takes(logits) {
        return cuda::log_probabilities_backward(logits, tokens, dloss_dlogp);
    }
    let sums: Vec<f32> = dloss_dlogp.iter().map(|row| -row.iter().sum::<f32>()).collect();
    let device = logits.device();
    let down = softmax(logits)?.broadcast_mul(&column(&sums, device)?)?;
    assign(logits, &down.scatter_add(&padded(tokens, device)?, &padded(dloss_dlogp, device)?, 1)?)
}
