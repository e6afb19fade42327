//! A layer's gated convolution, between its input norm and its output projection.

use candle_core::{Result, Tensor};

use super::{
    Decoder,
    projection::{project, project_backward},
};
use crate::model::{
    Gradients, Vector,
    ops::{ConvolutionShape, Mixer, TreeLayout},
};

/// What a convolution keeps for its backward.
pub struct SavedConvolution {
    /// Multiplies the convolution's input.
    before: Tensor,
    /// Multiplies its result.
    after: Tensor,
    x: Tensor,
    gated: Tensor,
    out: Tensor,
}

fn shape_of(weight: &Vector) -> Result<ConvolutionShape> {
    let (channels, _, window) = weight.tensor.dims3()?;
    Ok(ConvolutionShape { channels, window })
}

impl Decoder {
    /// The input of the output projection, `[tokens, channels]`.
    pub(super) fn convolve(
        &self,
        index: usize,
        weight: &Vector,
        normed: &Tensor,
        mixer: &mut impl Mixer,
        low: &mut Vec<Option<Tensor>>,
    ) -> Result<(Tensor, SavedConvolution)> {
        let shape = shape_of(weight)?;
        let project_to = self.layers[index].parts(&self.config).project;
        let [before, after, x] = project(project_to, normed, [shape.channels; 3], low)?;
        let gated = (&before * &x)?;
        let out = mixer.convolve(&gated, shape, &weight.tensor)?;
        let mixed = (&after * &out)?;
        Ok((mixed, SavedConvolution { before, after, x, gated, out }))
    }

    /// Adds to `dnormed`, and the weight's gradient to its slot. `dmixed` is the gradient of [`Self::convolve`]'s result.
    pub(super) fn convolve_backward(
        &self,
        index: usize,
        weight: &Vector,
        saved: SavedConvolution,
        (layout, dmixed): (&TreeLayout<'_>, Tensor),
        (normed, low, dnormed): (&Tensor, &[Option<Tensor>], &Tensor),
        gradients: &Gradients,
    ) -> Result<()> {
        let SavedConvolution { before, after, x, gated, out } = saved;
        let shape = shape_of(weight)?;
        let dafter = (&dmixed * &out)?;
        let dout = (&dmixed * &after)?;
        drop((dmixed, out, after));
        let dgated = layout.convolve_backward(&gated, shape, weight, &dout, gradients)?;
        let (dbefore, dx) = ((&dgated * &x)?, (&dgated * &before)?);
        let project = self.layers[index].parts(&self.config).project;
        project_backward(project, normed, low, &[&dbefore, &dafter, &dx], dnormed, gradients)
    }
}
