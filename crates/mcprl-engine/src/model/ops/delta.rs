//! Linear attention over the segments of a tree: gated DeltaNet.

use candle_core::{Device, Result, Tensor};

use super::{
    ConvolutionShape, Gradients, TreeLayout, by_kernels,
    composed::{self, DeltaPlan, DeltaRun, DeltaStart},
    filled, once, values,
};
use crate::model::{
    Vector,
    kernels::{
        DeltaGradients, DeltaHeads, DeltaRows, DeltaSegment, DeltaStep, DeltaWeights, add_assign,
        delta_steps, delta_tree, delta_tree_backward,
    },
    tree::TokenTree,
};

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
    fn with<T>(&self, work: impl FnOnce(DeltaWeights<'_>, DeltaRows<'_>) -> Result<T>) -> Result<T> {
        let [conv, a_log, dt_bias] = [self.conv, self.a_log, self.dt_bias].map(|of| values(&of.tensor));
        let (conv, a_log, dt_bias) = (conv?, a_log?, dt_bias?);
        let (mixed, b, a) = (values(self.mixed)?, values(self.b)?, values(self.a)?);
        let weights = DeltaWeights { conv: &conv, a_log: &a_log, dt_bias: &dt_bias };
        work(weights, DeltaRows { mixed: &mixed, b: &b, a: &a })
    }

    fn rows(&self) -> Result<usize> {
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

    /// The rows for a [`DeltaPlan`], from the convolution of `mixed`.
    pub fn after(&self, convolved: Tensor) -> Result<composed::DeltaRows> {
        let parameters = [&self.a_log.tensor, &self.dt_bias.tensor];
        composed::DeltaRows::new(self.heads, convolved, [self.b, self.a], parameters)
    }
}

/// The segments of a tree with their parents.
pub(super) fn segments(tree: &TokenTree) -> Vec<DeltaSegment> {
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

impl TreeLayout<'_> {
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
