//! The rows of a tree of tokens, which mix with each other, as in training.

use std::{cell::OnceCell, ops::Range};

use candle_core::{Device, Result, Tensor};

use super::{
    Gradients, SeenKeys, Vector,
    attention::{Attended, AttentionMask, KvFormat, attend_spans, once},
    by_kernels,
    composed::{self, DeltaPlan, DeltaRun, DeltaStart, MaskSpans, Piece, TileSize, flash},
    convolution::{self, ConvolutionShape, Shifts, with_zero_row},
    delta::DeltaInputs,
    filled, values,
};
#[cfg(feature = "cuda")]
use super::{attention::fused, cuda};
use crate::model::{
    kernels::{
        self, Attention, DeltaGradients, DeltaSegment, KeyValues, Span, add_assign, delta_tree,
        delta_tree_backward,
    },
    tree::{Positions, Segment, TokenTree},
};

/// A tree whose keys and values are rows of the same batch, as in training.
pub struct TreeLayout<'a> {
    pub tree: &'a TokenTree,
    pub positions: Positions<'a>,
    pub kv_format: KvFormat,
    /// For attention without a kernel.
    pub tile: TileSize,
    pub mask: AttentionMask,
    /// For linear attention.
    pub(super) delta_segments: OnceCell<Vec<DeltaSegment>>,
    pub(super) delta_plan: OnceCell<DeltaPlan>,
    /// For convolutions, which have one window in all layers.
    pub(super) shifts: OnceCell<Shifts>,
}

impl<'a> TreeLayout<'a> {
    pub fn new(tree: &'a TokenTree, kv_format: KvFormat) -> Self {
        let positions = Positions::new(&tree.positions);
        Self {
            tree,
            positions,
            kv_format,
            tile: TileSize::TREE,
            mask: AttentionMask::new(kv_format),
            delta_segments: OnceCell::new(),
            delta_plan: OnceCell::new(),
            shifts: OnceCell::new(),
        }
    }

    fn spans_seen(&self) -> Vec<SeenKeys> {
        let seen = |segment: &Segment| (segment.subtree.clone(), segment.first, segment.rows.len());
        self.tree.segments.iter().map(seen).collect()
    }

    fn tiles(&self, attention: Attention, device: &Device) -> Result<&[MaskSpans]> {
        let (positions, spans) = (&self.tree.positions, || self.spans_seen());
        self.mask.tiles(attention, || composed::mask(positions, &spans(), attention, self.tile, device))
    }

    /// Pieces of segments as ranges of the batch's rows. Neighbours are merged.
    fn keys(&self, pieces: &[Piece]) -> Vec<Range<usize>> {
        let mut ranges: Vec<Range<usize>> = Vec::with_capacity(pieces.len());
        for (index, keys) in pieces {
            let start = self.tree.segments[*index].rows.start + keys.start;
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end += keys.len(),
                _ => ranges.push(start..start + keys.len()),
            }
        }
        ranges
    }

    fn key_values(&self, k: &[f32], v: &[f32]) -> Vec<KeyValues> {
        let KvFormat { heads, format, .. } = self.kv_format;
        let step = heads.kv * heads.dim;
        let of_segment = |segment: &Segment| {
            let own = segment.rows.start * step..segment.rows.end * step;
            let mut kv = KeyValues::new(heads, format);
            kv.extend(&k[own.clone()], &v[own], 0);
            kv
        };
        self.tree.segments.iter().map(of_segment).collect()
    }

    fn spans<'k>(&self, kv: &'k [KeyValues]) -> Vec<Span<'k>> {
        let segments = self.tree.segments.iter().zip(kv);
        segments.map(|(of, kv)| Span { rows: of.subtree.clone(), first: of.first, kv }).collect()
    }

    #[cfg(feature = "cuda")]
    fn plan(&self, attention: Attention, like: &Tensor) -> Result<&cuda::TreePlan> {
        once(&self.mask.tree, || {
            let starts: Vec<usize> = self.tree.segments.iter().map(|segment| segment.rows.start).collect();
            let layout = (attention, self.kv_format.dtype());
            cuda::TreePlan::new(&self.tree.positions, &self.spans_seen(), &starts, layout, like)
        })
    }

    pub fn attend(&self, (q, k, v): (&Tensor, &Tensor, &Tensor), attention: Attention) -> Result<Attended> {
        if !by_kernels(q) {
            #[cfg(feature = "cuda")]
            // In f16, the gradients of attention are too small.
            if fused(q, attention, self.kv_format.dtype())
                && self.kv_format.dtype() == candle_core::DType::BF16
            {
                let (out, lse) = self.plan(attention, q)?.attend(q, k, v)?;
                return Ok(Attended { out, lse: Some(lse) });
            }
            let find = || composed::levels(&self.tree.positions, &self.spans_seen());
            if let Some((levels, half)) = self.mask.levels(q, attention, find) {
                let own = |x: &Tensor, span: usize| {
                    let rows = &self.tree.segments[span].rows;
                    x.narrow(0, rows.start, rows.len())
                };
                let keys = |span| Ok((own(k, span)?, own(v, span)?));
                return Ok(composed::attend_runs(q, levels, keys, (attention, half), &flash::attend)?.into());
            }
            let keys = |pieces: &[Piece]| {
                let ranges = self.keys(pieces);
                Ok((composed::rows(k, &ranges)?, composed::rows(v, &ranges)?))
            };
            let layout = (attention, self.kv_format.dtype());
            return Ok(composed::attend(q, self.tiles(attention, q.device())?, keys, layout)?.into());
        }
        let kv = self.key_values(&values(k)?, &values(v)?);
        Ok(attend_spans(q, &self.tree.positions, &self.spans(&kv), attention)?.into())
    }

    /// Gradients of q, k and v. `out` and `lse` are those of [`Attended`]. A rounded value passes its gradient through
    /// unchanged.
    #[cfg_attr(
        not(feature = "cuda"),
        expect(unused_variables, reason = "only the kernels for CUDA need `lse`")
    )]
    pub fn attend_backward(
        &self,
        (q, k, v): (&Tensor, &Tensor, &Tensor),
        (out, lse): (&Tensor, Option<&Tensor>),
        dout: &Tensor,
        attention: Attention,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        if !by_kernels(q) {
            #[cfg(feature = "cuda")]
            if let Some(lse) = lse {
                return self.plan(attention, q)?.attend_backward((q, k, v), (out, lse), dout);
            }
            let mask = self.tiles(attention, q.device())?;
            return composed::attend_backward(
                (q, k, v),
                mask,
                |pieces| self.keys(pieces),
                (attention, self.kv_format.dtype()),
                out,
                dout,
            );
        }
        let ((rows, q_width), (_, kv_width)) = (q.dims2()?, k.dims2()?);
        let (q, k, v, out, dout) = (values(q)?, values(k)?, values(v)?, values(out)?, values(dout)?);
        let kv = self.key_values(&k, &v);
        let starts: Vec<usize> = self.tree.segments.iter().map(|segment| segment.rows.start).collect();
        let (mut dk, mut dv) = (vec![0.0; rows * kv_width], vec![0.0; rows * kv_width]);
        let dq = filled(rows, q_width, |dq| {
            kernels::attend_backward(
                (&q, &k, &v),
                &self.tree.positions,
                &self.spans(&kv),
                &starts,
                attention,
                &out,
                &dout,
                (dq, &mut dk, &mut dv),
            );
        })?;
        let tensor = |data| Tensor::from_vec(data, (rows, kv_width), &Device::Cpu);
        Ok((dq, tensor(dk)?, tensor(dv)?))
    }

    fn delta_segments(&self) -> &[DeltaSegment] {
        self.delta_segments.get_or_init(|| segments(self.tree))
    }

    fn delta_plan(&self, inputs: &DeltaInputs<'_>) -> Result<&DeltaPlan> {
        once(&self.delta_plan, || {
            let segments = self.delta_segments();
            let mut has_children = vec![false; segments.len()];
            segments
                .iter()
                .filter_map(|segment| segment.parent)
                .for_each(|parent| has_children[parent] = true);
            let run = |(segment, is_continued): (&DeltaSegment, bool)| DeltaRun {
                rows: segment.rows.clone(),
                start: segment.parent.map_or(DeltaStart::Nothing, DeltaStart::Run),
                is_continued,
            };
            let runs: Vec<DeltaRun> = segments.iter().zip(has_children).map(run).collect();
            DeltaPlan::new(inputs.heads, &runs, inputs.mixed.device())
        })
    }

    /// The rows of the tree: `[rows, value heads · value dim]`.
    pub(super) fn delta(&self, inputs: &DeltaInputs<'_>) -> Result<Tensor> {
        if !by_kernels(inputs.mixed) {
            let convolved = self.convolve(inputs.mixed, inputs.convolution(), &inputs.conv.tensor)?;
            return Ok(self.delta_plan(inputs)?.forward(&inputs.after(convolved)?, &[])?.0);
        }
        let rows = inputs.rows()?;
        inputs.with(|weights, of| {
            filled(rows, inputs.heads.width(), |out| {
                delta_tree(inputs.heads, weights, of, self.delta_segments(), out);
            })
        })
    }

    /// The gradients of `mixed`, `b` and `a`. Adds those of the parameters to their slots.
    pub fn delta_backward(
        &self,
        inputs: &DeltaInputs<'_>,
        dout: &Tensor,
        gradients: &Gradients,
    ) -> Result<[Tensor; 3]> {
        if !by_kernels(inputs.mixed) {
            let shape = inputs.convolution();
            let convolved = self.convolve(inputs.mixed, shape, &inputs.conv.tensor)?;
            let d = self.delta_plan(inputs)?.backward(&inputs.after(convolved)?, dout)?;
            gradients.add_tensor(inputs.a_log.slot, || Ok(d.a_log))?;
            gradients.add_tensor(inputs.dt_bias.slot, || Ok(d.dt_bias))?;
            let dmixed = self.convolve_backward(inputs.mixed, shape, inputs.conv, &d.convolved, gradients)?;
            return Ok([dmixed, d.b, d.a]);
        }
        let dout = values(dout)?;
        let DeltaGradients { mixed, b, a, conv, a_log, dt_bias } = inputs.with(|weights, rows| {
            Ok(delta_tree_backward(inputs.heads, weights, rows, self.delta_segments(), &dout))
        })?;
        for (of, d) in [(inputs.conv, conv), (inputs.a_log, a_log), (inputs.dt_bias, dt_bias)] {
            gradients.add(of.slot, |into| add_assign(into, &d))?;
        }
        let tensor = |values, like: &Tensor| Tensor::from_vec(values, like.shape(), &Device::Cpu);
        Ok([tensor(mixed, inputs.mixed)?, tensor(b, inputs.b)?, tensor(a, inputs.a)?])
    }

    fn shifts(&self, shape: ConvolutionShape, device: &Device) -> Result<&Shifts> {
        once(&self.shifts, || {
            let chains = chains(self.tree, shape.history());
            Shifts::new(shape, chains.iter().map(Vec::as_slice), device)
        })
    }

    pub(super) fn convolve(&self, rows: &Tensor, shape: ConvolutionShape, weight: &Tensor) -> Result<Tensor> {
        let shifts = self.shifts(shape, rows.device())?;
        convolution::convolve(rows, &with_zero_row(&[rows])?, shifts, weight)
    }

    /// The gradient of `rows`. Adds that of the weight to its slot.
    pub fn convolve_backward(
        &self,
        rows: &Tensor,
        shape: ConvolutionShape,
        weight: &Vector,
        dout: &Tensor,
        gradients: &Gradients,
    ) -> Result<Tensor> {
        convolution::convolve_backward(rows, self.shifts(shape, rows.device())?, weight, dout, gradients)
    }
}

/// The segments of a tree with their parents.
fn segments(tree: &TokenTree) -> Vec<DeltaSegment> {
    let mut path: Vec<usize> = Vec::new();
    let mut segments = Vec::with_capacity(tree.segments.len());
    for (index, segment) in tree.segments.iter().enumerate() {
        while path.last().is_some_and(|last| tree.segments[*last].subtree.end <= segment.rows.start) {
            path.pop();
        }
        let parent = path.last().copied();
        segments.push(DeltaSegment { rows: segment.rows.clone(), first: segment.first, parent });
        path.push(index);
    }
    segments
}

/// For every row of a tree, the rows before it on its path, at most `most`, as rows of the tree with a zero row.
fn chains(tree: &TokenTree, most: usize) -> Vec<Vec<usize>> {
    let mut chains = vec![Vec::new(); tree.paths.iter().flatten().max().map_or(0, |last| last + 1)];
    for path in &tree.paths {
        for (index, row) in path.iter().enumerate() {
            chains[*row] = path[index.saturating_sub(most)..index].iter().map(|row| row + 1).collect();
        }
    }
    chains
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_segment_of_a_tree_has_its_parent() {
        let tree = TokenTree::new(&[
            vec![1, 2, 3, 4],
            vec![1, 2, 5],
            vec![1, 2, 5, 6, 7],
            vec![1, 2, 5, 6, 8],
            vec![7],
            vec![1, 9],
        ]);
        let segments = segments(&tree);
        for path in &tree.paths {
            for rows in path.windows(2) {
                let of =
                    |row: usize| segments.iter().position(|segment| segment.rows.contains(&row)).unwrap();
                let (before, after) = (of(rows[0]), of(rows[1]));
                assert!(before == after || segments[after].parent == Some(before), "{rows:?}");
            }
            let first = path.first().map(|row| segments.iter().find(|s| s.rows.contains(row)).unwrap());
            assert!(first.is_none_or(|first| first.parent.is_none()));
        }
    }
}
