//! A layer's linear attention, between its input norm and its output projection.

use candle_core::{Result, Tensor};

use super::{
    Decoder, DeltaParameters,
    projection::{project, project_backward},
};
use crate::model::{
    Gradients,
    ops::{self, Activation, DeltaInputs, Mixer, TreeLayout},
};

/// What linear attention keeps for its backward.
pub struct SavedDelta {
    mixed: Tensor,
    z: Tensor,
    b: Tensor,
    a: Tensor,
    out: Tensor,
    /// `out` after its norm.
    out_normed: Tensor,
}

impl DeltaParameters {
    fn inputs<'a>(&'a self, mixed: &'a Tensor, b: &'a Tensor, a: &'a Tensor) -> DeltaInputs<'a> {
        let Self { heads, a_log, dt_bias, conv, .. } = self;
        DeltaInputs { heads: *heads, mixed, b, a, conv, a_log, dt_bias }
    }
}

impl Decoder {
    /// The input of the output projection, `[tokens, value heads · value dim]`.
    pub(super) fn delta(
        &self,
        index: usize,
        parameters: &DeltaParameters,
        normed: &Tensor,
        mixer: &mut impl Mixer,
        low: &mut Vec<Option<Tensor>>,
    ) -> Result<(Tensor, SavedDelta)> {
        let heads = parameters.heads;
        let widths = [heads.channels(), heads.width(), heads.value, heads.value];
        let [mixed, z, b, a] = project(self.layers[index].parts(&self.config).project, normed, widths, low)?;
        let out = mixer.delta(&parameters.inputs(&mixed, &b, &a))?;
        let out_normed = ops::rms_norm(&out, &parameters.norm.tensor, self.config.norm_epsilon)?;
        let gated = ops::gated(Activation::Silu, &z, &out_normed)?;
        Ok((gated, SavedDelta { mixed, z, b, a, out, out_normed }))
    }

    /// Adds to `dnormed`, and the parameters' gradients to their slots. `dgated` is the gradient of [`Self::delta`]'s result.
    pub(super) fn delta_backward(
        &self,
        index: usize,
        parameters: &DeltaParameters,
        saved: SavedDelta,
        (layout, dgated): (&TreeLayout<'_>, Tensor),
        (normed, low, dnormed): (&Tensor, &[Option<Tensor>], &Tensor),
        gradients: &Gradients,
    ) -> Result<()> {
        let SavedDelta { mixed, z, b, a, out, out_normed } = saved;
        let (dz, dout_normed) = ops::gated_backward(Activation::Silu, &z, &out_normed, &dgated)?;
        drop((z, out_normed, dgated));
        let dout = out.zeros_like()?;
        let norm = (&parameters.norm.tensor, parameters.norm.slot);
        ops::rms_norm_backward(&out, norm, self.config.norm_epsilon, &dout_normed, &dout, gradients)?;
        drop((out, dout_normed));
        let inputs = parameters.inputs(&mixed, &b, &a);
        let [dmixed, db, da] = layout.delta_backward(&inputs, &dout, gradients)?;
        let project = self.layers[index].parts(&self.config).project;
        project_backward(project, normed, low, &[&dmixed, &dz, &db, &da], dnormed, gradients)
    }
}
