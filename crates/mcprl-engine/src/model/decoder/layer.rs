//! A layer's forward.

use candle_core::{Result, Tensor};

use super::{
    Decoder, Mixing,
    attention::SavedAttention,
    convolution::SavedConvolution,
    delta::SavedDelta,
    experts::{self, Routed},
    projection::project,
};
use crate::model::{
    Linear, ModelError, Positions, Vector,
    ops::{self, Mixer},
};

/// What a layer's forward keeps for its backward. `output` is the layer's result.
pub struct Saved {
    pub(super) input: Tensor,
    pub(super) normed: Tensor,
    pub(super) mixing: SavedMixing,
    /// The input of attention's output projection.
    pub(super) mixed: Tensor,
    /// What attention and the feed-forward gave to their norms, if these have norms.
    pub(super) unnormed: [Option<Tensor>; 2],
    pub(super) middle: Tensor,
    pub(super) middle_normed: Tensor,
    pub(super) feed: SavedFeedForward,
    /// What the adapters of the linear layers keep, in order. For experts, it is in [`Routed`].
    pub(super) low: Vec<Option<Tensor>>,
    pub output: Tensor,
}

impl Saved {
    /// Drops the feed-forward's activations, if the backward can recompute them.
    pub fn drop_feed_forward(&mut self) {
        if let SavedFeedForward::Dense { .. } = self.feed {
            self.feed = SavedFeedForward::Dropped;
        }
    }
}

/// The part of attention in [`Saved`].
pub enum SavedMixing {
    Attention(SavedAttention),
    Delta(SavedDelta),
    Convolution(SavedConvolution),
}

/// The feed-forward's part of [`Saved`].
pub enum SavedFeedForward {
    Dense {
        gate: Tensor,
        up: Tensor,
        active: Tensor,
    },
    Experts(Routed),
    /// The backward recomputes it, a block of rows at a time.
    Dropped,
}

impl Decoder {
    /// One layer over rows `x` (`[tokens, hidden]`).
    pub fn layer(
        &self,
        index: usize,
        x: Tensor,
        positions: &Positions<'_>,
        mixer: &mut impl Mixer,
    ) -> std::result::Result<Saved, ModelError> {
        let mut saved = self.attention_part(index, x, positions, mixer)?;
        let config = &self.config;
        let Saved { middle, middle_normed, low, unnormed, .. } = &mut saved;
        let (output, feed) = match (config.design.experts, self.layers[index].parts(config).feed) {
            (Some(experts), feed) => {
                let (output, routed) = experts::forward(experts, feed, middle_normed, middle)?;
                (output, SavedFeedForward::Experts(routed))
            }
            (None, [into @ .., down]) => {
                let widths = [config.intermediate; 2];
                let [gate, up] = project(into, middle_normed, widths, low)?;
                let active = ops::gated(config.design.activation, &gate, &up)?;
                let norm = self.layers[index].output_norms.as_ref().map(|[_, norm]| norm);
                let (output, before, kept) = self.add_to(middle, &active, down, norm)?;
                unnormed[1] = before;
                low.push(kept);
                (output, SavedFeedForward::Dense { gate, up, active })
            }
            (None, []) => return Err(candle_core::Error::msg("a layer without a feed-forward").into()),
        };
        (saved.output, saved.feed) = (output, feed);
        Ok(saved)
    }

    /// [`Self::layer`] for the backward only, when its output is already known. The backward computes the
    /// feed-forward, so at most a block of its rows is in memory. The gradients are the same bits.
    pub fn recompute_layer(
        &self,
        index: usize,
        x: Tensor,
        positions: &Positions<'_>,
        mixer: &mut impl Mixer,
    ) -> std::result::Result<Saved, ModelError> {
        match self.config.design.experts {
            None if self.by_kernels() && !self.config.design.output_norms => {
                self.attention_part(index, x, positions, mixer)
            }
            _ => self.layer(index, x, positions, mixer),
        }
    }

    /// `rows` plus a linear layer of `x`, through a norm if there is one; the layer's result before the norm; and what its
    /// adapter keeps.
    fn add_to(
        &self,
        rows: &Tensor,
        x: &Tensor,
        linear: &Linear,
        norm: Option<&Vector>,
    ) -> Result<(Tensor, Option<Tensor>, Option<Tensor>)> {
        let Some(norm) = norm else {
            let (sum, kept) = linear.forward(x, Some(rows))?;
            return Ok((sum, None, kept));
        };
        let (y, kept) = linear.forward(x, None)?;
        let sum = (rows + ops::rms_norm(&y, &norm.tensor, self.config.norm_epsilon)?)?;
        Ok((sum, Some(y), kept))
    }

    /// A layer up to its feed-forward. `output` is the feed-forward's residual input. Rows on another device are moved to the layer's.
    fn attention_part(
        &self,
        index: usize,
        x: Tensor,
        positions: &Positions<'_>,
        mixer: &mut impl Mixer,
    ) -> std::result::Result<Saved, ModelError> {
        let (layer, config) = (&self.layers[index], &self.config);
        let epsilon = config.norm_epsilon;
        let x = ops::move_to(&x, self.placement.device(index))?;
        let mut low = Vec::with_capacity(layer.linears.len());
        let normed = ops::rms_norm(&x, &layer.input_norm.tensor, epsilon)?;
        let (mixed, mixing) = match &layer.mixing {
            Mixing::Attention(norms) => {
                let (mixed, saved) =
                    self.attend(index, norms.as_ref(), (&normed, positions), mixer, &mut low)?;
                (mixed, SavedMixing::Attention(saved))
            }
            Mixing::Delta(parameters) => {
                let (mixed, saved) = self.delta(index, parameters, &normed, mixer, &mut low)?;
                (mixed, SavedMixing::Delta(saved))
            }
            Mixing::Convolution(weight) => {
                let (mixed, saved) = self.convolve(index, weight, &normed, mixer, &mut low)?;
                (mixed, SavedMixing::Convolution(saved))
            }
        };
        let output = layer.parts(config).output;
        let of_attention = layer.output_norms.as_ref().map(|[norm, _]| norm);
        let (middle, unnormed, kept) = self.add_to(&x, &mixed, output, of_attention)?;
        low.push(kept);
        let middle_normed = ops::rms_norm(&middle, &layer.middle_norm.tensor, epsilon)?;
        Ok(Saved {
            input: x,
            normed,
            mixing,
            mixed,
            unnormed: [unnormed, None],
            feed: SavedFeedForward::Dropped,
            low,
            output: middle.clone(),
            middle,
            middle_normed,
        })
    }
}
