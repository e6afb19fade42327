//! A causal convolution of each channel over the rows of a path: a few multiples and sums of whole rows, composed of candle's
//! operations on every device.

use candle_core::{DType, Device, Result, Tensor};

use super::{Gradients, Vector, composed::indices};

/// The sizes of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvolutionShape {
    pub channels: usize,
    /// Rows that it spans, the current one the last of them.
    pub window: usize,
}

impl ConvolutionShape {
    /// Rows of a state: those before the current one.
    pub fn history(self) -> usize {
        self.window - 1
    }

    /// Bytes of a state.
    pub fn state_bytes(self) -> usize {
        self.history() * self.channels * size_of::<f32>()
    }
}

/// Where a row's values before it are: by distance - 1, for every row its row of a source, whose first row is zero.
pub struct Shifts(Vec<Tensor>);

impl Shifts {
    /// `chains` gives, for every row, the rows of the source before it, the nearest last; missing ones are zero.
    pub fn new<'a>(
        shape: ConvolutionShape,
        chains: impl Iterator<Item = &'a [usize]> + Clone,
        device: &Device,
    ) -> Result<Self> {
        let at = |distance: usize| {
            let of = |chain: &'a [usize]| chain.len().checked_sub(distance).map_or(0, |index| chain[index]);
            indices(&chains.clone().map(of).collect::<Vec<usize>>(), device)
        };
        (1..shape.window).map(at).collect::<Result<_>>().map(Self)
    }
}

/// The factors of a distance, `[channels]`, by distance. `weight` is `[channels, 1, window]`, the current row's the last.
fn factors(weight: &Tensor) -> Result<Vec<Tensor>> {
    let (_, _, window) = weight.dims3()?;
    let rows = weight.squeeze(1)?.t()?.contiguous()?;
    (0..window).rev().map(|row| rows.get(row)).collect()
}

/// `[rows, channels]`. A row's result is a sum in the order of the distances, whatever rows are computed with it.
pub fn convolve(rows: &Tensor, source: &Tensor, shifts: &Shifts, weight: &Tensor) -> Result<Tensor> {
    let factors = factors(weight)?;
    let mut sum = rows.broadcast_mul(&factors[0])?;
    for (shift, factor) in shifts.0.iter().zip(&factors[1..]) {
        sum = (sum + source.index_select(shift, 0)?.broadcast_mul(factor)?)?;
    }
    Ok(sum)
}

/// The gradient of `rows`, whose convolution had them as its source. Adds that of the weight to its slot.
pub fn convolve_backward(
    rows: &Tensor,
    shifts: &Shifts,
    weight: &Vector,
    dout: &Tensor,
    gradients: &Gradients,
) -> Result<Tensor> {
    let factors = factors(&weight.tensor)?;
    let source = with_zero_row(&[rows])?;
    let mut dsource = source.zeros_like()?;
    for (shift, factor) in shifts.0.iter().zip(&factors[1..]) {
        dsource = dsource.index_add(shift, &dout.broadcast_mul(factor)?, 0)?;
    }
    let drows = (dout.broadcast_mul(&factors[0])? + dsource.narrow(0, 1, rows.dims2()?.0)?)?;
    gradients.add_tensor(weight.slot, || {
        let mut of_distance = vec![(rows * dout)?.sum(0)?];
        for shift in &shifts.0 {
            of_distance.push((source.index_select(shift, 0)? * dout)?.sum(0)?);
        }
        of_distance.reverse();
        Tensor::stack(&of_distance, 1)?.unsqueeze(1)
    })?;
    Ok(drows)
}

/// These rows with the zero row before them.
pub fn with_zero_row(rows: &[&Tensor]) -> Result<Tensor> {
    let zero = Tensor::zeros((1, rows[0].dims2()?.1), DType::F32, rows[0].device())?;
    Tensor::cat(&[&[&zero], rows].concat(), 0)
}
