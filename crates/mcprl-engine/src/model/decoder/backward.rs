//! A layer's backward.

use candle_core::{Result, Tensor};

use super::{
    Decoder, Mixing, Parts, Saved, experts,
    layer::{SavedFeedForward, SavedMixing},
    projection::{project, project_backward},
};
use crate::model::{
    Gradients, Linear, ModelError, Vector,
    ops::{self, TreeLayout},
};

/// Rows per block of a recomputed feed-forward.
const BLOCK: usize = 1024;

impl Decoder {
    /// The forward and backward of a gated feed-forward over `x`, a block of rows at a time. Sets `dx`.
    fn recomputed_feed_backward(
        &self,
        (into, down): (&[Linear], &Linear),
        x: &Tensor,
        dy: &Tensor,
        dx: &Tensor,
        gradients: &Gradients,
    ) -> Result<()> {
        let (rows, width) = x.dims2()?;
        let wide = self.config.intermediate;
        for start in (0..rows).step_by(BLOCK) {
            let block: Vec<usize> = (start..rows.min(start + BLOCK)).collect();
            let (x, dy) = (ops::gather(x, &block)?, ops::gather(dy, &block)?);
            let mut low = Vec::with_capacity(into.len());
            let [gate, up] = project(into, &x, [wide, wide], &mut low)?;
            let active = ops::gated(self.config.design.activation, &gate, &up)?;
            let dactive = active.zeros_like()?;
            down.backward(&active, down.low(&active)?.as_ref(), &dy, &dactive, gradients)?;
            drop(active);
            let (dgate, dup) = ops::gated_backward(self.config.design.activation, &gate, &up, &dactive)?;
            let part = x.zeros_like()?;
            project_backward(into, &x, &low, &[&dgate, &dup], &part, gradients)?;
            let part = ops::values(&part)?;
            ops::update(dx, |dx| dx[start * width..][..part.len()].copy_from_slice(&part))?;
        }
        Ok(())
    }

    /// Turns the gradient of a layer's output, on the layer's device, into that of its input, in place, and adds the parameters'
    /// gradients to their slots. Frees saved activations after their use.
    pub fn layer_backward(
        &self,
        index: usize,
        saved: Saved,
        layout: &TreeLayout<'_>,
        dy: &Tensor,
        gradients: &Gradients,
    ) -> std::result::Result<(), ModelError> {
        let layer = &self.layers[index];
        let epsilon = self.config.norm_epsilon;
        let Parts { project, output, feed } = layer.parts(&self.config);
        let norm = |norm: &Vector, x: &Tensor, dy: &Tensor, dx: &Tensor| {
            ops::rms_norm_backward(x, (&norm.tensor, norm.slot), epsilon, dy, dx, gradients)
        };
        let Saved {
            input,
            normed,
            mixing,
            mixed,
            unnormed: [attention_output, feed_output],
            middle,
            middle_normed,
            feed: kept,
            low,
            output: after,
        } = saved;
        let (low_project, low) = low.split_at(project.len());
        let (low_output, low_feed) = (&low[0], &low[1..]);

        // Through the norm of an output, if it has one.
        let through = |norm_of: usize, before: &Option<Tensor>| match (&layer.output_norms, before) {
            (Some(norms), Some(before)) => {
                let d = before.zeros_like()?;
                norm(&norms[norm_of], before, dy, &d)?;
                Ok(d)
            }
            _ => Ok::<_, candle_core::Error>(dy.clone()),
        };
        let doutput = &through(1, &feed_output)?;
        let dnormed = middle_normed.zeros_like()?;
        match (&kept, feed) {
            (SavedFeedForward::Experts(routed), feed) => {
                let given = (&middle_normed, doutput);
                experts::backward(self.config.design.experts, feed, routed, given, &dnormed, gradients)?;
            }
            (SavedFeedForward::Dense { gate, up, active }, [into @ .., down]) => {
                let dactive = active.zeros_like()?;
                down.backward(active, low_feed[into.len()].as_ref(), doutput, &dactive, gradients)?;
                let (dgate, dup) = ops::gated_backward(self.config.design.activation, gate, up, &dactive)?;
                let outputs = [&dgate, &dup];
                project_backward(into, &middle_normed, low_feed, &outputs, &dnormed, gradients)?;
            }
            (SavedFeedForward::Dropped, [into @ .., down]) => {
                self.recomputed_feed_backward((into, down), &middle_normed, doutput, &dnormed, gradients)?;
            }
            (SavedFeedForward::Dense { .. } | SavedFeedForward::Dropped, []) => {}
        }
        norm(&layer.middle_norm, &middle, &dnormed, dy)?;
        drop((kept, middle, middle_normed, after, dnormed));

        let dmixed = mixed.zeros_like()?;
        let doutput = &through(0, &attention_output)?;
        output.backward(&mixed, low_output.as_ref(), doutput, &dmixed, gradients)?;
        drop(mixed);
        let dnormed = normed.zeros_like()?;
        let into = (&normed, low_project, &dnormed);
        let through = (layout, dmixed);
        match (mixing, &layer.mixing) {
            (SavedMixing::Attention(saved), Mixing::Attention(norms)) => {
                self.attend_backward(index, norms.as_ref(), saved, through, into, gradients)?;
            }
            (SavedMixing::Delta(saved), Mixing::Delta(parameters)) => {
                self.delta_backward(index, parameters, saved, through, into, gradients)?;
            }
            (SavedMixing::Convolution(saved), Mixing::Convolution(weight)) => {
                self.convolve_backward(index, weight, saved, through, into, gradients)?;
            }
            (SavedMixing::Attention(_) | SavedMixing::Delta(_) | SavedMixing::Convolution(_), _) => {
                return Err(candle_core::Error::msg("activations of another kind of layer").into());
            }
        }
        norm(&layer.input_norm, &input, &dnormed, dy)?;
        Ok(())
    }
}
