use candle_core::{Result, Tensor};

use super::{Attended, ConvolutionShape, DeltaInputs, TreeLayout};
use crate::model::kernels::Attention;

/// Mixes a layer's rows with the rows before them: with cached segments in sampling, with other rows of a token tree in
/// training.
pub trait Mixer {
    /// Causal attention. The queries and keys are rotated. The result is `[rows, heads · dim]`.
    fn attend(&mut self, qkv: (&Tensor, &Tensor, &Tensor), attention: Attention) -> Result<Attended>;

    /// Linear attention: `[rows, value heads · value dim]`.
    fn delta(&mut self, inputs: &DeltaInputs<'_>) -> Result<Tensor>;

    /// A causal convolution of each channel: `[rows, channels]`, as `rows`. `weight` is `[channels, 1, window]`.
    fn convolve(&mut self, rows: &Tensor, shape: ConvolutionShape, weight: &Tensor) -> Result<Tensor>;
}

impl Mixer for &TreeLayout<'_> {
    fn attend(&mut self, qkv: (&Tensor, &Tensor, &Tensor), attention: Attention) -> Result<Attended> {
        TreeLayout::attend(self, qkv, attention)
    }

    fn delta(&mut self, inputs: &DeltaInputs<'_>) -> Result<Tensor> {
        TreeLayout::delta(self, inputs)
    }

    fn convolve(&mut self, rows: &Tensor, shape: ConvolutionShape, weight: &Tensor) -> Result<Tensor> {
        TreeLayout::convolve(self, rows, shape, weight)
    }
}
