//! Linear attention over the segments of a tree: gated DeltaNet by the kernels of the CPU.

use candle_core::{Result, Tensor, bail};

use super::{TreeLayout, by_kernels, filled, values};
use crate::model::{
    kernels::{
        DeltaGradients, DeltaHeads, DeltaRows, DeltaSegment, DeltaStep, DeltaWeights, delta_steps,
        delta_tree, delta_tree_backward,
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
    pub conv: &'a Tensor,
    pub a_log: &'a Tensor,
    pub dt_bias: &'a Tensor,
}

impl DeltaInputs<'_> {
    /// Calls `work` with the values.
    fn with<T>(&self, work: impl FnOnce(DeltaWeights<'_>, DeltaRows<'_>) -> Result<T>) -> Result<T> {
        if !by_kernels(self.mixed) {
            bail!("linear attention runs on the kernels of the CPU only");
        }
        let (conv, a_log, dt_bias) = (values(self.conv)?, values(self.a_log)?, values(self.dt_bias)?);
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

    /// The rows of the tree: `[rows, value heads · value dim]`.
    pub(super) fn delta(&self, inputs: &DeltaInputs<'_>) -> Result<Tensor> {
        let rows = inputs.rows()?;
        inputs.with(|weights, of| {
            filled(rows, inputs.heads.width(), |out| {
                delta_tree(inputs.heads, weights, of, self.delta_segments(), out);
            })
        })
    }

    pub fn delta_backward(&self, inputs: &DeltaInputs<'_>, dout: &Tensor) -> Result<DeltaGradients> {
        let dout = values(dout)?;
        inputs.with(|weights, rows| {
            Ok(delta_tree_backward(inputs.heads, weights, rows, self.delta_segments(), &dout))
        })
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
