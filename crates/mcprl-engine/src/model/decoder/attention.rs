//! A layer's attention, between its input norm and its output projection.

use candle_core::{Result, Tensor};

use super::{
    Decoder,
    projection::{project, project_backward},
};
use crate::model::{
    Gradients, Positions, Vector,
    ops::{self, Attended, Direction, Mixer, TreeLayout},
};

/// What attention keeps for its backward.
pub struct SavedAttention {
    /// Queries and keys before their norms, if they have norms.
    raw: Option<[Tensor; 2]>,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    /// Of the result, if it has one.
    gate: Option<Tensor>,
    /// The log-sum-exp of the scores, if attention's backward needs it.
    lse: Option<Tensor>,
}

impl Decoder {
    /// The input of the output projection, `[tokens, heads · dim]`.
    pub(super) fn attend(
        &self,
        index: usize,
        norms: Option<&[Vector; 2]>,
        (normed, positions): (&Tensor, &Positions<'_>),
        mixer: &mut impl Mixer,
        low: &mut Vec<Option<Tensor>>,
    ) -> Result<(Tensor, SavedAttention)> {
        let (layer, config) = (&self.layers[index], &self.config);
        let (epsilon, heads) = (config.norm_epsilon, config.heads);
        let queries = if config.design.gated { 2 * heads.query } else { heads.query };
        let widths = [queries, heads.kv, heads.kv].map(|count| count * heads.dim);
        let [query, key, value] = project(layer.parts(config).project, normed, widths, low)?;
        let (query, gate) = match config.design.gated {
            true => {
                let [query, gate] = ops::split_heads(&query, heads.dim)?;
                (query, Some(gate))
            }
            false => (query, None),
        };
        let norm = |x: &Tensor, norm: &Vector| ops::rms_norm(x, &norm.tensor, epsilon);
        let (query, key, raw) = match norms {
            Some([of_query, of_key]) => (norm(&query, of_query)?, norm(&key, of_key)?, Some([query, key])),
            None => (query, key, None),
        };
        let rope = self.rope(index);
        rope.rotate(&query, positions, Direction::Forward)?;
        rope.rotate(&key, positions, Direction::Forward)?;
        let Attended { out, lse } = mixer.attend((&query, &key, &value), config.attention(index))?;
        let mixed = match &gate {
            Some(gate) => ops::sigmoid_mul(gate, &out)?,
            None => out.clone(),
        };
        Ok((mixed, SavedAttention { raw, query, key, value, out, gate, lse }))
    }

    /// Adds to `dnormed`, and the parameters' gradients to their slots. `dmixed` is the gradient of [`Self::attend`]'s result.
    pub(super) fn attend_backward(
        &self,
        index: usize,
        norms: Option<&[Vector; 2]>,
        saved: SavedAttention,
        (layout, dmixed): (&TreeLayout<'_>, Tensor),
        (normed, low, dnormed): (&Tensor, &[Option<Tensor>], &Tensor),
        gradients: &Gradients,
    ) -> Result<()> {
        let (layer, config) = (&self.layers[index], &self.config);
        let SavedAttention { raw, query, key, value, out, gate, lse } = saved;
        let (dout, dgate) = match gate {
            Some(gate) => {
                let (dgate, dout) = ops::sigmoid_mul_backward(&gate, &out, &dmixed)?;
                (dout, Some(dgate))
            }
            None => (dmixed, None),
        };
        let (mut dquery, mut dkey, dvalue) = layout.attend_backward(
            (&query, &key, &value),
            (&out, lse.as_ref()),
            &dout,
            config.attention(index),
        )?;
        drop((query, key, value, out, dout));
        let rope = self.rope(index);
        rope.rotate(&dquery, &layout.positions, Direction::Backward)?;
        rope.rotate(&dkey, &layout.positions, Direction::Backward)?;
        if let (Some([of_query, of_key]), Some([raw_query, raw_key])) = (norms, &raw) {
            for (of, raw, d) in [(of_query, raw_query, &mut dquery), (of_key, raw_key, &mut dkey)] {
                let draw = raw.zeros_like()?;
                let weight = (&of.tensor, of.slot);
                ops::rms_norm_backward(raw, weight, config.norm_epsilon, d, &draw, gradients)?;
                *d = draw;
            }
        }
        if let Some(dgate) = dgate {
            dquery = ops::join_heads(&dquery, &dgate, config.heads.dim)?;
        }
        let outputs = [&dquery, &dkey, &dvalue];
        project_backward(layer.parts(config).project, normed, low, &outputs, dnormed, gradients)
    }
}
