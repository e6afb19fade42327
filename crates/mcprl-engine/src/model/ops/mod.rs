//! Operations on candle tensors, each with its backward.
//!
//! Tensors are contiguous `f32`. On the CPU the kernels of [`super::kernels`] run on their storage directly.
//! On any other device, candle's operations are composed under the same name and with the same meaning
//! ([`composed`]), or kernels of our own replace them (`cuda`). An operation that adds to a gradient does so in place on
//! every device.

mod attention;
pub mod composed;
mod convolution;
#[cfg(feature = "cuda")]
pub mod cuda;
mod delta;
mod forced;
mod layout;
mod mixer;
#[cfg(any(feature = "cuda", test))]
mod plan;

use std::{cell::Cell, ops::Deref, ops::Range};

use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Result, Storage, Tensor, bail};

use super::kernels::{self, by_rows};
pub use attention::{Attended, AttentionMask, Cache, CachedSegment, KvFormat, attend, once};
pub use convolution::{ConvolutionShape, Shifts, convolve, with_zero_row};
pub use delta::{ComposedState, DeltaInputs};
pub use layout::TreeLayout;
pub use mixer::Mixer;

/// Whether the kernels compute on this tensor. For all others, operations are composed of candle's.
pub fn by_kernels(tensor: &Tensor) -> bool {
    tensor.device().is_cpu() && !forced::forced()
}

/// The tensor on this device: the same one if it is there.
///
/// A copy between devices runs on the target's stream, and the source's memory may be used again as soon as the caller drops or
/// changes it. So this waits for all that is queued there.
pub fn move_to(tensor: &Tensor, device: &Device) -> Result<Tensor> {
    if tensor.device().same_device(device) {
        return Ok(tensor.clone());
    }
    let moved = tensor.to_device(device)?;
    device.synchronize()?;
    Ok(moved)
}

/// A copy of a tensor's values, from any device.
pub fn read(tensor: &Tensor) -> Result<Vec<f32>> {
    tensor.flatten_all()?.to_vec1()
}

/// The values of a tensor on the CPU.
pub struct Values<G>(G, Range<usize>);

impl<G: Deref<Target = Storage>> Deref for Values<G> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &*self.0 {
            Storage::Cpu(CpuStorage::F32(values)) => &values[self.1.clone()],
            _ => unreachable!("checked when the view was made"),
        }
    }
}

/// Borrows the values of a contiguous `f32` tensor on the CPU.
pub fn values(tensor: &Tensor) -> Result<Values<impl Deref<Target = Storage> + '_>> {
    let (storage, layout) = tensor.storage_and_layout();
    let Some((start, end)) = layout.contiguous_offsets() else {
        bail!("expected a contiguous tensor, found {layout:?}")
    };
    match &*storage {
        Storage::Cpu(CpuStorage::F32(_)) => Ok(Values(storage, start..end)),
        _ => bail!("expected f32 on the CPU, found {:?} on {:?}", tensor.dtype(), tensor.device()),
    }
}

struct Update<F>(Cell<Option<F>>);

impl<F: FnOnce(&mut [f32])> InplaceOp1 for Update<F> {
    fn name(&self) -> &'static str {
        "update"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        match (storage, layout.contiguous_offsets(), self.0.take()) {
            (CpuStorage::F32(values), Some((start, end)), Some(f)) => {
                f(&mut values[start..end]);
                Ok(())
            }
            _ => bail!("update needs a contiguous f32 tensor"),
        }
    }
}

/// Changes the values of a tensor in place.
pub fn update(tensor: &Tensor, f: impl FnOnce(&mut [f32])) -> Result<()> {
    tensor.inplace_op1(&Update(Cell::new(Some(f))))
}

/// A new tensor whose values `fill` writes. They start as zeros.
pub fn filled(rows: usize, columns: usize, fill: impl FnOnce(&mut [f32])) -> Result<Tensor> {
    try_filled(rows, columns, |values| {
        fill(values);
        Ok(())
    })
}

/// Like [`filled`], if writing can fail.
pub fn try_filled(
    rows: usize,
    columns: usize,
    fill: impl FnOnce(&mut [f32]) -> Result<()>,
) -> Result<Tensor> {
    let mut values = vec![0.0; rows * columns];
    fill(&mut values)?;
    Tensor::from_vec(values, (rows, columns), &Device::Cpu)
}

/// A weight `[n]`, as in normalisation.
#[derive(Debug)]
pub struct Vector {
    pub tensor: Tensor,
    pub slot: Option<usize>,
}

/// One gradient per trained parameter, in the order of the decoder's slots.
#[derive(Debug, Clone)]
pub struct Gradients {
    pub slots: Vec<Tensor>,
}

impl Gradients {
    pub fn add(&self, slot: Option<usize>, f: impl FnOnce(&mut [f32])) -> Result<()> {
        match slot {
            Some(slot) => update(&self.slots[slot], f),
            None => Ok(()),
        }
    }

    /// Adds a tensor of a slot's shape, on any device.
    pub fn add_tensor(&self, slot: Option<usize>, gradient: impl FnOnce() -> Result<Tensor>) -> Result<()> {
        match slot {
            Some(slot) => composed::add(&self.slots[slot], &gradient()?),
            None => Ok(()),
        }
    }

    /// Sets every gradient to zero.
    pub fn clear(&self) -> Result<()> {
        for slot in &self.slots {
            match by_kernels(slot) {
                true => update(slot, |values| values.fill(0.0))?,
                false => composed::assign(slot, &slot.zeros_like()?)?,
            }
        }
        Ok(())
    }

    /// `self += other`.
    pub fn merge(&self, other: &Self) -> Result<()> {
        for (into, from) in self.slots.iter().zip(&other.slots) {
            if !by_kernels(into) {
                composed::add(into, from)?;
                continue;
            }
            let from = values(from)?;
            update(into, |into| kernels::add_assign(into, &from))?;
        }
        Ok(())
    }

    /// Euclidean norm over all parameters.
    pub fn norm(&self) -> Result<f64> {
        let mut sum = 0.0;
        // Read from one device at once.
        let mut squares: Vec<Tensor> = Vec::new();
        for slot in &self.slots {
            if by_kernels(slot) {
                sum += values(slot)?.iter().map(|g| f64::from(*g) * f64::from(*g)).sum::<f64>();
                continue;
            }
            let square = slot.sqr()?.sum_all()?;
            let device = squares.first().map_or(slot.device(), Tensor::device);
            squares.push(move_to(&square, device)?);
        }
        if !squares.is_empty() {
            sum += Tensor::stack(&squares, 0)?.to_vec1::<f32>()?.into_iter().map(f64::from).sum::<f64>();
        }
        Ok(sum.sqrt())
    }
}

/// Rows that attend to a span, the position of its first key, and its keys.
pub type SeenKeys = (Range<usize>, usize, usize);

/// The ranges of these rows in a row-major matrix.
fn flat(rows: &Range<usize>, columns: usize) -> Range<usize> {
    rows.start * columns..rows.end * columns
}

/// Adds rows of `dy` to the gradient rows of their tokens.
pub fn embed_backward(tokens: &[u32], dy: &Tensor, slot: Option<usize>, gradients: &Gradients) -> Result<()> {
    if !by_kernels(dy) {
        return composed::embed_backward(tokens, dy, slot, gradients);
    }
    let (_, width) = dy.dims2()?;
    let dy = values(dy)?;
    gradients.add(slot, |table| {
        for (dy, token) in dy.chunks_exact(width).zip(tokens) {
            kernels::add_assign(&mut table[*token as usize * width..][..width], dy);
        }
    })
}

/// The rows of `x` with these indices, in `f32`.
pub fn gather(x: &Tensor, rows: &[usize]) -> Result<Tensor> {
    x.index_select(&composed::indices(rows, x.device())?, 0)?.to_dtype(DType::F32)
}

/// Which product of two matrices.
#[derive(Debug, Clone, Copy)]
pub enum Product {
    /// `x·Wᵀ`: `[m, k]`, `[n, k]` to `[m, n]`.
    Forward,
    /// `dy·W`: `[m, k]`, `[k, n]` to `[m, n]`.
    Backward,
    /// `dyᵀ·x`: `[k, m]`, `[k, n]` to `[m, n]`.
    Weight,
}

/// RMS normalisation over rows of the weight's length (a row of `x` may contain several, as with heads).
pub fn rms_norm(x: &Tensor, weight: &Tensor, epsilon: f32) -> Result<Tensor> {
    if !by_kernels(x) {
        return composed::rms_norm(x, weight, epsilon);
    }
    let (rows, columns) = x.dims2()?;
    let (x, weight) = (values(x)?, values(weight)?);
    filled(rows, columns, |out| {
        by_rows(rows, 4 * columns, [out], |rows, [out]| {
            kernels::rms_norm(&x[flat(&rows, columns)], &weight, epsilon, out);
        });
    })
}

/// Adds the input's gradient to `dx`, and the weight's to its slot.
pub fn rms_norm_backward(
    x: &Tensor,
    (weight, slot): (&Tensor, Option<usize>),
    epsilon: f32,
    dy: &Tensor,
    dx: &Tensor,
    gradients: &Gradients,
) -> Result<()> {
    if !by_kernels(x) {
        return composed::rms_norm_backward(x, (weight, slot), epsilon, dy, dx, gradients);
    }
    let (x, weight, dy) = (values(x)?, values(weight)?, values(dy)?);
    let mut dweight = vec![0.0; if slot.is_some() { weight.len() } else { 0 }];
    let (rows, columns) = (dx.dims()[0], dx.dims()[1]);
    update(dx, |dx| match slot {
        Some(_) => kernels::rms_norm_backward(&x, &weight, epsilon, &dy, dx, &mut dweight),
        None => by_rows(rows, 8 * columns, [dx], |rows, [dx]| {
            let flat = flat(&rows, columns);
            kernels::rms_norm_backward(&x[flat.clone()], &weight, epsilon, &dy[flat], dx, &mut []);
        }),
    })?;
    gradients.add(slot, |into| kernels::add_assign(into, &dweight))
}

/// The backward is the inverse rotation, applied to the gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Forward,
    Backward,
}

/// The activation of a feed-forward's gate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Activation {
    #[default]
    Silu,
    /// GELU, approximated with tanh.
    Gelu,
}

/// `activation(gate) · up`.
pub fn gated(activation: Activation, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    if !by_kernels(gate) {
        return composed::gated(activation, gate, up);
    }
    let kernel = match activation {
        Activation::Silu => kernels::silu_mul,
        Activation::Gelu => kernels::gelu_mul,
    };
    gate_rows(gate, up, kernel)
}

/// Gradients of gate and up.
pub fn gated_backward(
    activation: Activation,
    gate: &Tensor,
    up: &Tensor,
    dout: &Tensor,
) -> Result<(Tensor, Tensor)> {
    if !by_kernels(gate) {
        return composed::gated_backward(activation, gate, up, dout);
    }
    let kernel = match activation {
        Activation::Silu => kernels::silu_mul_backward,
        Activation::Gelu => kernels::gelu_mul_backward,
    };
    gate_rows_backward(gate, up, dout, kernel)
}

/// `sigmoid(gate) · x`.
pub fn sigmoid_mul(gate: &Tensor, x: &Tensor) -> Result<Tensor> {
    if !by_kernels(gate) {
        return composed::sigmoid_mul(gate, x);
    }
    gate_rows(gate, x, kernels::sigmoid_mul)
}

/// Gradients of gate and x.
pub fn sigmoid_mul_backward(gate: &Tensor, x: &Tensor, dout: &Tensor) -> Result<(Tensor, Tensor)> {
    if !by_kernels(gate) {
        return composed::sigmoid_mul_backward(gate, x, dout);
    }
    gate_rows_backward(gate, x, dout, kernels::sigmoid_mul_backward)
}

/// Runs a kernel of a gate and what it multiplies.
fn gate_rows(
    gate: &Tensor,
    x: &Tensor,
    kernel: impl Fn(&[f32], &[f32], &mut [f32]) + Sync,
) -> Result<Tensor> {
    let (rows, columns) = gate.dims2()?;
    let (gate, x) = (values(gate)?, values(x)?);
    filled(rows, columns, |out| {
        by_rows(rows, 16 * columns, [out], |rows, [out]| {
            let flat = flat(&rows, columns);
            kernel(&gate[flat.clone()], &x[flat], out);
        });
    })
}

/// Runs a kernel of their gradients.
fn gate_rows_backward(
    gate: &Tensor,
    x: &Tensor,
    dout: &Tensor,
    kernel: impl Fn(&[f32], &[f32], &[f32], &mut [f32], &mut [f32]) + Sync,
) -> Result<(Tensor, Tensor)> {
    let (rows, columns) = gate.dims2()?;
    let (gate, x, dout) = (values(gate)?, values(x)?, values(dout)?);
    let mut dx = vec![0.0; rows * columns];
    let dgate = filled(rows, columns, |dgate| {
        by_rows(rows, 16 * columns, [dgate, &mut dx], |rows, [dgate, dx]| {
            let flat = flat(&rows, columns);
            kernel(&gate[flat.clone()], &x[flat.clone()], &dout[flat], dgate, dx);
        });
    })?;
    Ok((dgate, Tensor::from_vec(dx, (rows, columns), &Device::Cpu)?))
}

/// Splits rows of heads, each a first and a second part of this width, into rows of the parts.
pub fn split_heads(x: &Tensor, dim: usize) -> Result<[Tensor; 2]> {
    let (rows, columns) = x.dims2()?;
    let pairs = x.reshape((rows, columns / (2 * dim), 2, dim))?;
    let part = |index| pairs.narrow(2, index, 1)?.contiguous()?.reshape((rows, columns / 2));
    Ok([part(0)?, part(1)?])
}

/// The inverse of [`split_heads`].
pub fn join_heads(first: &Tensor, second: &Tensor, dim: usize) -> Result<Tensor> {
    let (rows, columns) = first.dims2()?;
    let part = |x: &Tensor| x.reshape((rows, columns / dim, dim));
    Tensor::stack(&[part(first)?, part(second)?], 2)?.reshape((rows, 2 * columns))
}

/// Adds row `i` of `y`, times `weights[i]` if there are weights, to row `rows[i]` of `into`. Rows are
/// distinct.
pub fn add_rows(into: &Tensor, rows: &[usize], weights: Option<&[f32]>, y: &Tensor) -> Result<()> {
    if !by_kernels(into) {
        return composed::add_rows(into, rows, weights, y);
    }
    let (_, width) = into.dims2()?;
    let y = values(y)?;
    update(into, |into| {
        for (index, (row, y)) in rows.iter().zip(y.chunks_exact(width)).enumerate() {
            let into = &mut into[row * width..][..width];
            match weights {
                Some(weights) => into.iter_mut().zip(y).for_each(|(into, y)| *into += weights[index] * y),
                None => kernels::add_assign(into, y),
            }
        }
    })
}

/// Overwrites rows of `into`, which are zeros, with those of `y`. Rows are distinct.
pub fn set_rows(into: &Tensor, rows: &[usize], y: &Tensor) -> Result<()> {
    if !by_kernels(into) {
        return composed::add_rows(into, rows, None, y);
    }
    let (_, width) = into.dims2()?;
    let y = values(y)?;
    update(into, |into| {
        for (row, y) in rows.iter().zip(y.chunks_exact(width)) {
            into[row * width..][..width].copy_from_slice(y);
        }
    })
}

/// The dot product of each row of `x` with that of `y`. Then multiplies rows of `x` by `weights`, in place.
pub fn dot_and_scale_rows(x: &Tensor, y: &Tensor, weights: &[f32]) -> Result<Vec<f32>> {
    if !by_kernels(x) {
        return composed::dot_and_scale_rows(x, y, weights);
    }
    let (_, width) = x.dims2()?;
    let y = values(y)?;
    let mut products = Vec::with_capacity(weights.len());
    update(x, |x| {
        for ((x, y), weight) in x.chunks_exact_mut(width).zip(y.chunks_exact(width)).zip(weights) {
            products.push(x.iter().zip(y).map(|(x, y)| x * y).sum());
            x.iter_mut().for_each(|x| *x *= weight);
        }
    })?;
    Ok(products)
}

/// Splits the columns of `x` (`[rows, Σ widths]`) into tensors of these widths.
pub fn split(x: &Tensor, widths: &[usize]) -> Result<Vec<Tensor>> {
    let mut start = 0;
    let mut part = |width: &usize| {
        start += width;
        x.narrow(1, start - width, *width)?.contiguous()
    };
    widths.iter().map(&mut part).collect()
}
