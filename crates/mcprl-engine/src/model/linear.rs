//! Linear layers with an optional low-rank adapter.

mod codes;
mod replica;

use std::{
    borrow::Cow,
    sync::{Arc, OnceLock},
};

use candle_core::{DType, Device, Result, Tensor};

use codes::Codes;

use super::{
    Dropout,
    kernels::{self, Format, Frozen, Lhs, Packed, Rhs, add_assign, gemm},
    ops::{self, Gradients, Product, Vector, by_kernels, composed, filled, try_filled, update, values},
};

/// A weight `[out, in]`: plain and trainable, or frozen in the layout of its product.
#[derive(Debug)]
pub struct Matrix {
    weight: Weight,
    /// The slot of its gradient; none if frozen.
    pub slot: Option<usize>,
}

#[derive(Debug)]
enum Weight {
    /// Packed once for the forward product.
    Plain(Tensor, OnceLock<Packed>),
    /// Shared with replicas on the CPU.
    Frozen(Arc<Frozen>),
    /// Frozen on a device without our kernels, in the type of its product.
    OnDevice(Tensor),
    /// The same in 4 bits.
    Codes(Codes),
}

impl Matrix {
    /// A trainable weight, in `f32`.
    pub fn new(tensor: Tensor) -> Result<Self> {
        tensor.dims2()?;
        let tensor = tensor.to_dtype(DType::F32)?.contiguous()?;
        Ok(Self { weight: Weight::Plain(tensor, OnceLock::new()), slot: None })
    }

    /// A frozen weight in this format, on the tensor's device. The tensor may have any floating-point type.
    pub fn frozen(tensor: &Tensor, format: Format) -> Result<Self> {
        let (n, k) = tensor.dims2()?;
        let tensor = tensor.contiguous()?;
        if !by_kernels(&tensor) {
            let dtype = match format {
                Format::F32 => DType::F32,
                Format::F16 => DType::F16,
                Format::Bf16 => DType::BF16,
                Format::Nf4 => return Ok(Self { weight: Weight::Codes(Codes::new(&tensor)?), slot: None }),
            };
            return Ok(Self { weight: Weight::OnDevice(tensor.to_dtype(dtype)?), slot: None });
        }
        let mut result = Ok(());
        let frozen = Frozen::new(format, n, k, |row, out| match row_values(&tensor, row) {
            Ok(values) => out.copy_from_slice(&values),
            Err(error) => result = Err(error),
        });
        result.map(|()| Self { weight: Weight::Frozen(Arc::new(frozen)), slot: None })
    }

    /// A frozen output projection. The kernels' products are f32 in any format. Where a product has the format of its
    /// weight, it is held in f32, so that logits are not rounded; also in f16, in which the gradients of logits are too
    /// small.
    pub fn frozen_output(tensor: &Tensor, format: Format) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if ops::cuda::takes(tensor) && format == Format::Bf16 {
            return Self::frozen(tensor, format);
        }
        Self::frozen(tensor, if by_kernels(tensor) { format } else { Format::F32 })
    }

    /// Makes a frozen weight trainable.
    ///
    /// # Errors
    /// Fails if it cannot be copied. It then stays frozen.
    pub fn thaw(&mut self) -> Result<()> {
        if matches!(self.weight, Weight::Plain(..)) {
            return Ok(());
        }
        // A copy, because parameters change in place and a frozen weight may be shared.
        let copy = match &self.weight {
            Weight::OnDevice(tensor) => tensor.to_dtype(DType::F32)?.copy()?,
            _ => self.tensor()?,
        };
        *self = Self::new(copy)?;
        Ok(())
    }

    /// Its values in `f32`: a shared handle, or a copy if they are frozen.
    pub fn tensor(&self) -> Result<Tensor> {
        match &self.weight {
            Weight::Plain(tensor, _) => Ok(tensor.clone()),
            Weight::OnDevice(tensor) => tensor.to_dtype(DType::F32),
            Weight::Codes(codes) => codes.decode()?.to_dtype(DType::F32),
            Weight::Frozen(frozen) => {
                let k = frozen.inputs();
                filled(frozen.outputs(), k, |out| {
                    out.chunks_exact_mut(k).enumerate().for_each(|(row, out)| frozen.row(row, out));
                })
            }
        }
    }

    /// Its values, unless they are frozen.
    pub fn plain(&self) -> Option<&Tensor> {
        match &self.weight {
            Weight::Plain(tensor, _) => Some(tensor),
            Weight::Frozen(_) | Weight::OnDevice(_) | Weight::Codes(_) => None,
        }
    }

    /// Replaces the values. The next product packs them again.
    pub fn set(&mut self, tensor: Tensor) {
        self.weight = Weight::Plain(tensor, OnceLock::new());
    }

    pub fn outputs(&self) -> usize {
        match &self.weight {
            Weight::Plain(tensor, _) | Weight::OnDevice(tensor) => tensor.dims()[0],
            Weight::Codes(codes) => codes.outputs(),
            Weight::Frozen(frozen) => frozen.outputs(),
        }
    }

    pub fn inputs(&self) -> usize {
        match &self.weight {
            Weight::Plain(tensor, _) | Weight::OnDevice(tensor) => tensor.dims()[1],
            Weight::Codes(codes) => codes.inputs(),
            Weight::Frozen(frozen) => frozen.inputs(),
        }
    }

    /// The format of its products.
    pub fn format(&self) -> Format {
        match &self.weight {
            Weight::Plain(tensor, _) | Weight::OnDevice(tensor) => format_of(tensor.dtype()),
            Weight::Codes(_) => Format::Nf4,
            Weight::Frozen(frozen) => frozen.format(),
        }
    }

    /// Bytes in memory, including the packed copy of a plain weight.
    pub fn bytes(&self) -> usize {
        match &self.weight {
            Weight::Plain(tensor, _) if by_kernels(tensor) => 2 * tensor.elem_count() * size_of::<f32>(),
            Weight::Plain(tensor, _) | Weight::OnDevice(tensor) => {
                tensor.elem_count() * tensor.dtype().size_in_bytes()
            }
            Weight::Codes(codes) => codes.bytes(),
            Weight::Frozen(frozen) => frozen.bytes(),
        }
    }

    /// Bytes of the packed copy of a plain weight, if it exists already.
    pub fn packed_bytes(&self) -> usize {
        match &self.weight {
            Weight::Plain(_, packed) => packed.get().map_or(0, Packed::bytes),
            Weight::Frozen(_) | Weight::OnDevice(_) | Weight::Codes(_) => 0,
        }
    }

    /// Its rows with these indices, as in an embedding lookup: `[rows, in]`.
    pub fn rows(&self, rows: &[u32]) -> Result<Tensor> {
        let (width, rows) = (self.inputs(), rows.iter().map(|row| *row as usize).collect::<Vec<_>>());
        match &self.weight {
            Weight::Plain(tensor, _) | Weight::OnDevice(tensor) => ops::gather(tensor, &rows),
            Weight::Codes(codes) => ops::gather(&codes.decode()?, &rows),
            Weight::Frozen(frozen) => filled(rows.len(), width, |out| {
                out.chunks_exact_mut(width).zip(&rows).for_each(|(out, row)| frozen.row(*row, out));
            }),
        }
    }

    /// `y = x·Wᵀ`, or `y += x·Wᵀ`; `x`: `[m, in]`, `y`: `[m, out]`.
    pub fn apply(&self, x: &[f32], y: &mut [f32], accumulate: bool) -> Result<()> {
        match &self.weight {
            Weight::Plain(tensor, packed) => {
                let (n, k) = tensor.dims2()?;
                let weight = values(tensor)?;
                let packed = packed.get_or_init(|| Packed::from_columns(&weight, k, n));
                gemm(x.len() / k, Lhs::rows(x, k), packed.right(), y, n, accumulate);
            }
            Weight::Frozen(frozen) => frozen.forward(x, y, accumulate),
            Weight::OnDevice(_) | Weight::Codes(_) => return Err(device_mismatch()),
        }
        Ok(())
    }

    /// A weight without a kernel, in the type of its product.
    fn on_device(&self) -> Result<Tensor> {
        match &self.weight {
            Weight::Plain(tensor, _) | Weight::OnDevice(tensor) => Ok(tensor.clone()),
            Weight::Codes(codes) => codes.decode(),
            Weight::Frozen(_) => Err(device_mismatch()),
        }
    }

    /// `scale · x·Wᵀ` for such a weight.
    fn product(&self, x: &Tensor, scale: f32) -> Result<Tensor> {
        composed::product(Product::Forward, x, &self.on_device()?, scale)
    }

    /// `y += x·Wᵀ` for such a weight.
    fn add_product(&self, y: &Tensor, x: &Tensor) -> Result<()> {
        composed::add_product(y, Product::Forward, x, &self.on_device()?, 1.0)
    }

    /// Adds the gradient `dyᵀ·x` of such a weight to its slot.
    fn add_gradient(&self, x: &Tensor, dy: &Tensor, gradients: &Gradients) -> Result<()> {
        match self.slot {
            Some(slot) => composed::add_product(&gradients.slots[slot], Product::Weight, dy, x, 1.0),
            None => Ok(()),
        }
    }

    /// `scale · dy·W` for such a weight. Adds the weight's gradient to its slot.
    fn product_backward(&self, x: &Tensor, dy: &Tensor, scale: f32, gradients: &Gradients) -> Result<Tensor> {
        self.add_gradient(x, dy, gradients)?;
        composed::product(Product::Backward, dy, &self.on_device()?, scale)
    }

    /// `dx += dy·W` for such a weight. Adds the weight's gradient to its slot.
    fn add_product_backward(
        &self,
        dx: &Tensor,
        x: &Tensor,
        dy: &Tensor,
        gradients: &Gradients,
    ) -> Result<()> {
        self.add_gradient(x, dy, gradients)?;
        composed::add_product(dx, Product::Backward, dy, &self.on_device()?, 1.0)
    }

    /// `x·Wᵀ`: `[rows, in]` to `[rows, out]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if !by_kernels(x) {
            return self.product(x, 1.0);
        }
        let (rows, _) = x.dims2()?;
        let x = values(x)?;
        try_filled(rows, self.outputs(), |y| self.apply(&x, y, false))
    }

    /// The gradient of the input of [`Self::forward`]. Adds the weight's gradient to its slot.
    pub fn forward_backward(&self, x: &Tensor, dy: &Tensor, gradients: &Gradients) -> Result<Tensor> {
        if !by_kernels(x) {
            return self.product_backward(x, dy, 1.0, gradients);
        }
        let (rows, columns) = x.dims2()?;
        let (x, dy) = (values(x)?, values(dy)?);
        try_filled(rows, columns, |dx| self.backward(&x, &dy, dx, false, gradients))
    }

    /// `dx = dy·W`, or `dx += dy·W`. Adds the weight's gradient `dyᵀ·x` to its slot.
    pub fn backward(
        &self,
        x: &[f32],
        dy: &[f32],
        dx: &mut [f32],
        accumulate: bool,
        gradients: &Gradients,
    ) -> Result<()> {
        match &self.weight {
            Weight::Plain(tensor, _) => {
                let (n, k) = tensor.dims2()?;
                let m = dy.len() / n;
                gradients
                    .add(self.slot, |dw| gemm(n, Lhs::transposed(dy, n), Rhs::rows(x, m, k), dw, k, true))?;
                let weight = values(tensor)?;
                gemm(m, Lhs::rows(dy, n), Rhs::rows(&weight, n, k), dx, k, accumulate);
            }
            Weight::Frozen(frozen) => frozen.backward(dy, dx, accumulate),
            Weight::OnDevice(_) | Weight::Codes(_) => return Err(device_mismatch()),
        }
        Ok(())
    }
}

/// A row of a matrix in `f32`.
fn row_values(tensor: &Tensor, row: usize) -> Result<Vec<f32>> {
    tensor.get(row)?.to_dtype(DType::F32)?.to_vec1()
}

fn device_mismatch() -> candle_core::Error {
    candle_core::Error::msg("a weight and what it multiplies are on different devices")
}

fn format_of(dtype: DType) -> Format {
    match dtype {
        DType::F16 => Format::F16,
        DType::BF16 => Format::Bf16,
        _ => Format::F32,
    }
}

/// A low-rank update `W + scale · B·A` (Hu et al. 2021).
#[derive(Debug)]
pub struct Lora {
    /// `[rank, in]`
    pub a: Matrix,
    /// `[out, rank]`
    pub b: Matrix,
    pub scale: f32,
    /// Set during a training step.
    pub dropout: Option<Dropout>,
}

impl Lora {
    /// The input of `A`: `x`, or under dropout a copy with some values dropped.
    fn input<'a>(&self, x: &'a [f32]) -> Cow<'a, [f32]> {
        match &self.dropout {
            None => Cow::Borrowed(x),
            Some(dropout) => {
                let mut dropped = x.to_vec();
                dropout.apply(x, self.a.inputs(), &mut dropped);
                Cow::Owned(dropped)
            }
        }
    }

    /// `scale · x·Aᵀ`, `[tokens, rank]`.
    fn low(&self, x: &[f32]) -> Result<Vec<f32>> {
        let mut low = vec![0.0; x.len() / self.a.inputs() * self.a.outputs()];
        self.a.apply(&self.input(x), &mut low, false)?;
        low.iter_mut().for_each(|value| *value *= self.scale);
        Ok(low)
    }

    /// Adds the gradient of `x` through `A` to `dx`, and that of `A` to its slot. `dlow` is the gradient of
    /// `x·Aᵀ`.
    fn backward_input(&self, x: &[f32], dlow: &[f32], dx: &mut [f32], gradients: &Gradients) -> Result<()> {
        let Some(dropout) = &self.dropout else { return self.a.backward(x, dlow, dx, true, gradients) };
        let mut through = vec![0.0; x.len()];
        self.a.backward(&self.input(x), dlow, &mut through, false, gradients)?;
        dropout.apply(x, self.a.inputs(), &mut through);
        add_assign(dx, &through);
        Ok(())
    }

    /// The dropout factors of these rows on a device. They depend on the rows' bits, which the CPU hashes.
    fn mask(&self, x: &Tensor) -> Result<Option<Tensor>> {
        let Some(dropout) = &self.dropout else { return Ok(None) };
        let mut factors = vec![1.0; x.elem_count()];
        dropout.apply(&ops::read(x)?, self.a.inputs(), &mut factors);
        Tensor::from_vec(factors, x.shape(), x.device()).map(Some)
    }
}

/// A linear layer.
#[derive(Debug)]
pub struct Linear {
    pub weight: Matrix,
    /// `[out]`
    pub bias: Option<Vector>,
    pub lora: Option<Lora>,
}

impl Linear {
    pub fn new(weight: Matrix) -> Self {
        Self { weight, bias: None, lora: None }
    }

    /// `x·Wᵀ + scale · x·Aᵀ·Bᵀ` (+ bias) (+ `residual`); `x`: `[tokens, in]`.
    ///
    /// Also returns `scale · x·Aᵀ` (`[tokens, rank]`), which the backward needs; none without an adapter.
    pub fn forward(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<(Tensor, Option<Tensor>)> {
        if !by_kernels(x) {
            return self.composed(x, None, residual);
        }
        let (rows, _) = x.dims2()?;
        let x = values(x)?;
        let mut low = Vec::new();
        let y = try_filled(rows, self.weight.outputs(), |y| {
            if let Some(residual) = residual {
                y.copy_from_slice(&values(residual)?);
            }
            self.weight.apply(&x, y, residual.is_some())?;
            if let Some(lora) = &self.lora {
                low = lora.low(&x)?;
                lora.b.apply(&low, y, true)?;
            }
            if let Some(bias) = &self.bias {
                let bias = values(&bias.tensor)?;
                y.chunks_exact_mut(bias.len()).for_each(|row| kernels::add_assign(row, &bias));
            }
            Ok(())
        })?;
        let low = match &self.lora {
            Some(lora) => Some(Tensor::from_vec(low, (rows, lora.a.outputs()), &Device::Cpu)?),
            None => None,
        };
        Ok((y, low))
    }

    /// [`Self::forward`] without a residual, on a device. `rounded` is [`Self::rounded`] of a layer with the same input.
    pub fn forward_rounded(&self, x: &Tensor, rounded: &Tensor) -> Result<(Tensor, Option<Tensor>)> {
        self.composed(x, Some(rounded), None)
    }

    /// An input on a device in the type of the weight; none on the CPU.
    pub fn rounded(&self, x: &Tensor) -> Result<Option<Tensor>> {
        match &self.weight.weight {
            Weight::OnDevice(tensor) => x.to_dtype(tensor.dtype()).map(Some),
            Weight::Codes(_) => x.to_dtype(DType::BF16).map(Some),
            Weight::Plain(..) | Weight::Frozen(_) => Ok(None),
        }
    }

    fn composed(
        &self,
        x: &Tensor,
        rounded: Option<&Tensor>,
        residual: Option<&Tensor>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let factor = rounded.unwrap_or(x);
        let y = match residual {
            Some(residual) => {
                let y = residual.copy()?;
                self.weight.add_product(&y, factor)?;
                y
            }
            None => self.weight.product(factor, 1.0)?,
        };
        let mut low = None;
        if let Some(lora) = &self.lora {
            let input = match lora.mask(x)? {
                Some(mask) => (x * mask)?,
                None => x.clone(),
            };
            let kept = lora.a.product(&input, lora.scale)?;
            lora.b.add_product(&y, &kept)?;
            low = Some(kept);
        }
        if let Some(bias) = &self.bias {
            composed::add_to_rows(&y, &bias.tensor)?;
        }
        Ok((y, low))
    }

    fn composed_backward(
        &self,
        x: &Tensor,
        low: Option<&Tensor>,
        dy: &Tensor,
        dx: &Tensor,
        gradients: &Gradients,
    ) -> Result<()> {
        if let Some(bias) = &self.bias {
            gradients.add_tensor(bias.slot, || dy.sum(0))?;
        }
        self.weight.add_product_backward(dx, x, dy, gradients)?;
        let (Some(lora), Some(low)) = (&self.lora, low) else { return Ok(()) };
        let dlow = lora.b.product_backward(low, dy, lora.scale, gradients)?;
        match lora.mask(x)? {
            Some(mask) => {
                let through = lora.a.product_backward(&(x * &mask)?, &dlow, 1.0, gradients)?;
                composed::add(dx, &(through * mask)?)
            }
            None => lora.a.add_product_backward(dx, x, &dlow, gradients),
        }
    }

    /// The second result of [`Self::forward`], for rows on the CPU.
    pub fn low(&self, x: &Tensor) -> Result<Option<Tensor>> {
        let of = |lora: &Lora| {
            let low = lora.low(&values(x)?)?;
            Tensor::from_vec(low, (x.dims2()?.0, lora.a.outputs()), &Device::Cpu)
        };
        self.lora.as_ref().map(of).transpose()
    }

    /// Adds the input's gradient to `dx` and the parameters' gradients to their slots. `low` is from
    /// [`Self::forward`].
    pub fn backward(
        &self,
        x: &Tensor,
        low: Option<&Tensor>,
        dy: &Tensor,
        dx: &Tensor,
        gradients: &Gradients,
    ) -> Result<()> {
        if !by_kernels(x) {
            return self.composed_backward(x, low, dy, dx, gradients);
        }
        let (x, dy) = (values(x)?, values(dy)?);
        if let Some(bias) = &self.bias {
            gradients.add(bias.slot, |into| {
                dy.chunks_exact(into.len()).for_each(|row| kernels::add_assign(into, row));
            })?;
        }
        let mut result = Ok(());
        update(dx, |dx| {
            result = (|| {
                self.weight.backward(&x, &dy, dx, true, gradients)?;
                if let (Some(lora), Some(low)) = (&self.lora, low) {
                    let low = values(low)?;
                    let mut dlow = vec![0.0; low.len()];
                    lora.b.backward(&low, &dy, &mut dlow, false, gradients)?;
                    dlow.iter_mut().for_each(|value| *value *= lora.scale);
                    lora.backward_input(&x, &dlow, dx, gradients)?;
                }
                Ok(())
            })();
        })?;
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(rows: usize, columns: usize, seed: usize) -> Tensor {
        let values = (0..rows * columns).map(|i| ((i * i + seed * 31) as f32 * 0.73).sin()).collect();
        Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap()
    }

    fn matrix(rows: usize, columns: usize, seed: usize, slot: usize) -> Matrix {
        Matrix { slot: Some(slot), ..Matrix::new(tensor(rows, columns, seed)).unwrap() }
    }

    /// W is 5 x 12, the adapter of rank 3.
    fn linear(dropout: Option<Dropout>) -> Linear {
        let lora = Lora { a: matrix(3, 12, 2, 0), b: matrix(5, 3, 3, 1), scale: 0.5, dropout };
        Linear { lora: Some(lora), ..Linear::new(Matrix::new(tensor(5, 12, 1)).unwrap()) }
    }

    #[test]
    fn a_weight_that_cannot_be_copied_stays_frozen_and_the_failure_is_returned() {
        let no_matrix = Tensor::zeros(12, DType::BF16, &Device::Cpu).unwrap();
        let mut weight = Matrix { weight: Weight::OnDevice(no_matrix), slot: None };
        weight.thaw().unwrap_err();
        assert!(weight.plain().is_none());
    }

    #[test]
    fn dropout_affects_only_the_input_of_the_adapter_and_its_gradients() {
        let (x, dy, dropout) = (tensor(4, 12, 4), tensor(4, 5, 5), Dropout::new(0.4, 9));
        let run = |linear: &Linear, x: &Tensor| {
            let gradients = Gradients { slots: vec![tensor(3, 12, 0), tensor(5, 3, 0)] };
            gradients.slots.iter().try_for_each(|slot| update(slot, |values| values.fill(0.0))).unwrap();
            let dx = x.zeros_like().unwrap();
            let (y, low) = linear.forward(x, None).unwrap();
            linear.backward(x, low.as_ref(), &dy, &dx, &gradients).unwrap();
            let mut found = vec![values(&y).unwrap().to_vec(), values(&dx).unwrap().to_vec()];
            found.extend(gradients.slots.iter().map(|slot| values(slot).unwrap().to_vec()));
            found
        };
        let mut dropped = values(&x).unwrap().to_vec();
        let mut mask = vec![1.0; dropped.len()];
        dropout.apply(&values(&x).unwrap(), 12, &mut dropped);
        dropout.apply(&values(&x).unwrap(), 12, &mut mask);
        let dropped = Tensor::from_vec(dropped, (4, 12), &Device::Cpu).unwrap();
        let plain = Linear { lora: None, ..linear(None) };
        let with = run(&linear(Some(dropout)), &x);
        let (base, base_dropped, whole) =
            (run(&plain, &x), run(&plain, &dropped), run(&linear(None), &dropped));
        // y = W·x + (the whole layer's result for the dropped input, minus that of W); likewise backwards.
        for at in 0..20 {
            let expected = base[0][at] + whole[0][at] - base_dropped[0][at];
            assert!((with[0][at] - expected).abs() < 1e-5);
        }
        for at in 0..48 {
            let expected = base[1][at] + mask[at] * (whole[1][at] - base_dropped[1][at]);
            assert!((with[1][at] - expected).abs() < 1e-5);
        }
        assert_eq!(with[2..], whole[2..]);
    }
}
