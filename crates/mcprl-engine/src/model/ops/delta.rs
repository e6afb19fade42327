//! Linear attention: gated DeltaNet.

use candle_core::{Result, Tensor};

use super::{ConvolutionShape, Vector, composed, filled, values};
use crate::model::kernels::{DeltaHeads, DeltaRows, DeltaStep, DeltaWeights, delta_steps};

/// The rows of a layer after its projections, and its parameters. Their shapes are those of [`DeltaRows`] and
/// [`DeltaWeights`].
pub struct DeltaInputs<'a> {
    pub heads: DeltaHeads,
    pub mixed: &'a Tensor,
    pub b: &'a Tensor,
    pub a: &'a Tensor,
    pub conv: &'a Vector,
    pub a_log: &'a Vector,
    pub dt_bias: &'a Vector,
}

/// The state of a segment where no kernels compute.
#[derive(Debug)]
pub struct ComposedState {
    /// `[value heads, key dim, value dim]`
    pub state: Tensor,
    /// The last rows of `mixed`, `[window − 1, channels]`.
    pub history: Tensor,
    /// Tokens of its own segment.
    pub tokens: usize,
}

impl ComposedState {
    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        (self.state.elem_count() + self.history.elem_count()) * size_of::<f32>()
    }

    /// The value of [`Self::bytes`].
    pub fn bytes_for(heads: DeltaHeads) -> usize {
        let state = heads.value * heads.key_dim * heads.value_dim * size_of::<f32>();
        state + convolution(heads).state_bytes()
    }
}

fn convolution(heads: DeltaHeads) -> ConvolutionShape {
    ConvolutionShape { channels: heads.channels(), window: heads.window }
}

impl DeltaInputs<'_> {
    /// Calls `work` with the values.
    pub(super) fn with<T>(
        &self,
        work: impl FnOnce(DeltaWeights<'_>, DeltaRows<'_>) -> Result<T>,
    ) -> Result<T> {
        let [conv, a_log, dt_bias] = [self.conv, self.a_log, self.dt_bias].map(|of| values(&of.tensor));
        let (conv, a_log, dt_bias) = (conv?, a_log?, dt_bias?);
        let (mixed, b, a) = (values(self.mixed)?, values(self.b)?, values(self.a)?);
        let weights = DeltaWeights { conv: &conv, a_log: &a_log, dt_bias: &dt_bias };
        work(weights, DeltaRows { mixed: &mixed, b: &b, a: &a })
    }

    pub(super) fn rows(&self) -> Result<usize> {
        Ok(self.mixed.dims2()?.0)
    }

    /// Rows of segments that continue their states: `[rows, value heads · value dim]`.
    pub fn steps(&self, steps: &mut [DeltaStep<'_>]) -> Result<Tensor> {
        let rows = self.rows()?;
        self.with(|weights, inputs| {
            filled(rows, self.heads.width(), |out| delta_steps(self.heads, weights, inputs, steps, out))
        })
    }

    /// The convolution before the recurrence.
    pub fn convolution(&self) -> ConvolutionShape {
        convolution(self.heads)
    }

    /// The rows for a [`DeltaPlan`](composed::DeltaPlan), from the convolution of `mixed`.
    pub fn after(&self, convolved: Tensor) -> Result<composed::DeltaRows> {
        let parameters = [&self.a_log.tensor, &self.dt_bias.tensor];
        composed::DeltaRows::new(self.heads, convolved, [self.b, self.a], parameters)
    }
}
