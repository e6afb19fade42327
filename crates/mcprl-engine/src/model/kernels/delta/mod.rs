//! Gated DeltaNet (arXiv 2412.06464): a short convolution, and attention without softmax whose keys and values
//! are folded into one matrix per head.
//!
//! There is one definition for sampling and training. Chunks of [`CHUNK`] positions start at multiples of it. A
//! row reads the state `S` at the start of its chunk and the chunk's rows before it, in order:
//!
//! - `u_i = β_i (v_i − e^{G_i} Sᵀk_i − Σ_{j<i} e^{G_i−G_j} (k_i·k_j) u_j)`
//! - `o_i = e^{G_i} Sᵀq_i + Σ_{j≤i} e^{G_i−G_j} (q_i·k_j) u_j`
//! - at the end of a chunk: `S = e^{G_C} S + Σ_j e^{G_C−G_j} k_j u_jᵀ`
//!
//! `G` is the running sum of the gates' logarithms in the chunk. So a row's bits depend on the tokens up to it and
//! their positions, not on where a sequence is cut into segments.
//!
//! Each key head, with its value heads, is one task: its convolution, its norms and its recurrence.

mod backward;
mod forward;
#[cfg(test)]
mod tests;

use std::{ops::Range, sync::Arc};

use rayon::prelude::*;

use super::{
    gemm::{Lhs, Rhs, local_gemm},
    team,
};
pub use backward::{DeltaGradients, delta_tree_backward};
use forward::{Head, Scratch};

/// Positions from one stored state to the next.
pub const CHUNK: usize = 64;

/// The sizes of a gated DeltaNet layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaHeads {
    pub key: usize,
    /// A multiple of `key`.
    pub value: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    /// Rows of the convolution.
    pub window: usize,
}

impl DeltaHeads {
    /// Values per row of the convolution: queries, keys, values.
    pub fn channels(self) -> usize {
        self.key * self.own_width()
    }

    /// Values of a row of values.
    pub fn width(self) -> usize {
        self.value * self.value_dim
    }

    /// Value heads of a key head.
    fn group(self) -> usize {
        self.value / self.key
    }

    /// Channels of a key head with its value heads.
    fn own_width(self) -> usize {
        2 * self.key_dim + self.group() * self.value_dim
    }

    /// The channels of a key head: its query, its key and its values.
    fn columns(self, head: usize) -> [Range<usize>; 3] {
        let (keys, values) = (self.key * self.key_dim, self.group() * self.value_dim);
        let query = head * self.key_dim;
        let value = 2 * keys + head * values;
        [query..query + self.key_dim, keys + query..keys + query + self.key_dim, value..value + values]
    }

    /// Approximate multiply-adds per row.
    fn operations(self) -> usize {
        self.value * self.key_dim * (3 * self.value_dim + CHUNK) + self.channels() * self.window
    }
}

/// Rows of a layer's input, after its projections.
#[derive(Debug, Clone, Copy)]
pub struct DeltaRows<'a> {
    /// `[rows, channels]`
    pub mixed: &'a [f32],
    /// `[rows, value heads]`: β is its sigmoid.
    pub b: &'a [f32],
    /// `[rows, value heads]`: the gates.
    pub a: &'a [f32],
}

/// The parameters of a layer that are not linear layers.
#[derive(Debug, Clone, Copy)]
pub struct DeltaWeights<'a> {
    /// `[channels, window]`
    pub conv: &'a [f32],
    /// `[value heads]`
    pub a_log: &'a [f32],
    /// `[value heads]`
    pub dt_bias: &'a [f32],
}

/// What a later row needs of the rows before it.
#[derive(Debug, Clone)]
pub struct DeltaState {
    heads: DeltaHeads,
    /// Tokens of its own segment.
    tokens: usize,
    /// Position after its last token.
    end: usize,
    /// One for each key head.
    groups: Vec<Group>,
}

/// The state of a key head and its value heads.
#[derive(Debug, Clone)]
struct Group {
    /// The last `window − 1` inputs of the convolution, `[rows, width]`: zeros before the start.
    history: Vec<f32>,
    /// Keys of the open chunk, `[key dim, CHUNK]`.
    keys: Vec<f32>,
    values: Vec<Value>,
}

/// The state of a value head.
#[derive(Debug, Clone)]
struct Value {
    /// `[key dim, value dim]` at the start of the open chunk; none in the first chunk. Segments share it.
    start: Option<Arc<[f32]>>,
    /// Rows `u` of the open chunk, `[CHUNK, value dim]`.
    u: Vec<f32>,
    /// `G` of the open chunk.
    sums: Vec<f32>,
}

impl Group {
    fn new(heads: DeltaHeads) -> Self {
        let value = Value { start: None, u: vec![0.0; CHUNK * heads.value_dim], sums: vec![0.0; CHUNK] };
        Self {
            history: vec![0.0; (heads.window - 1) * heads.own_width()],
            keys: vec![0.0; heads.key_dim * CHUNK],
            values: vec![value; heads.group()],
        }
    }
}

impl DeltaState {
    /// The state before the first token.
    pub fn new(heads: DeltaHeads) -> Self {
        Self { heads, tokens: 0, end: 0, groups: vec![Group::new(heads); heads.key] }
    }

    /// The same state for a segment below this one.
    pub fn child(&self) -> Self {
        Self { tokens: 0, ..self.clone() }
    }

    /// Tokens of its own segment.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Bytes in memory. A state that segments share counts for each.
    pub fn bytes(&self) -> usize {
        Self::bytes_for(self.heads)
    }

    /// The value of [`Self::bytes`].
    pub fn bytes_for(heads: DeltaHeads) -> usize {
        let DeltaHeads { key, value, key_dim, value_dim, window } = heads;
        let values = value * (key_dim * value_dim + CHUNK * (value_dim + 1));
        size_of::<f32>() * (values + key * key_dim * CHUNK + (window - 1) * heads.channels())
    }
}

/// A segment's rows in a step of sampling.
pub struct DeltaStep<'a> {
    pub rows: Range<usize>,
    /// If the segment's state is to start as that of an earlier segment in this step: its index.
    pub parent: Option<usize>,
    pub state: &'a mut DeltaState,
}

/// A segment of a tree in training. Parents precede their children, in depth-first order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeltaSegment {
    pub rows: Range<usize>,
    /// Position of its first token.
    pub first: usize,
    pub parent: Option<usize>,
}

/// Rows of segments that continue their states. Writes `out`: `[rows, value heads, value dim]`.
pub fn delta_steps(
    heads: DeltaHeads,
    weights: DeltaWeights<'_>,
    rows: DeltaRows<'_>,
    steps: &mut [DeltaStep<'_>],
    out: &mut [f32],
) {
    let mut places = Vec::with_capacity(steps.len());
    for (index, step) in steps.iter().enumerate() {
        let first = match step.parent {
            Some(parent) => {
                let (_, first, rows): &(_, usize, Range<usize>) = &places[parent];
                first + rows.len()
            }
            None => step.state.end,
        };
        debug_assert!(step.parent.is_none_or(|parent| parent < index), "parents precede their children");
        places.push((step.parent, first, step.rows.clone()));
    }
    let mut by_head: Vec<Vec<&mut Group>> = (0..heads.key).map(|_| Vec::with_capacity(steps.len())).collect();
    for (step, (_, first, rows)) in steps.iter_mut().zip(&places) {
        let DeltaState { tokens, end, groups, .. } = &mut *step.state;
        *tokens += rows.len();
        *end = first + rows.len();
        by_head.iter_mut().zip(groups).for_each(|(head, group)| head.push(group));
    }
    let count: usize = places.iter().map(|(.., rows)| rows.len()).sum();
    let out = team::Shared::new(out);
    let task = |(head, groups): (usize, &mut Vec<&mut Group>)| {
        let head = Head::new(heads, weights, rows, head);
        let mut scratch = Scratch::default();
        for (index, (parent, first, rows)) in places.iter().enumerate() {
            if let Some(parent) = parent {
                let start = groups[*parent].clone();
                *groups[index] = start;
            }
            head.run(groups[index], rows.clone(), *first, &mut scratch, |scratch, rows, _| {
                head.write(scratch, &rows, out);
            });
        }
    };
    match team::threads(count * heads.operations()) {
        1 => by_head.iter_mut().enumerate().for_each(task),
        _ => by_head.par_iter_mut().enumerate().for_each(task),
    }
}

/// The rows of a tree. Writes `out`: `[rows, value heads, value dim]`.
pub fn delta_tree(
    heads: DeltaHeads,
    weights: DeltaWeights<'_>,
    rows: DeltaRows<'_>,
    segments: &[DeltaSegment],
    out: &mut [f32],
) {
    let out = team::Shared::new(out);
    team::share(threads(heads, segments), heads.key, |head| {
        let head = Head::new(heads, weights, rows, head);
        let mut scratch = Scratch::default();
        walk(heads, segments, |segment, group| {
            head.run(group, segment.rows.clone(), segment.first, &mut scratch, |scratch, rows, _| {
                head.write(scratch, &rows, out);
            });
        });
    });
}

fn threads(heads: DeltaHeads, segments: &[DeltaSegment]) -> usize {
    let rows: usize = segments.iter().map(|segment| segment.rows.len()).sum();
    team::threads(rows * heads.operations())
}

/// Visits every segment with the state at its start.
fn walk(heads: DeltaHeads, segments: &[DeltaSegment], mut visit: impl FnMut(&DeltaSegment, &mut Group)) {
    let mut path: Vec<(usize, Group)> = Vec::new();
    for (index, segment) in segments.iter().enumerate() {
        while path.last().is_some_and(|(last, _)| Some(*last) != segment.parent) {
            path.pop();
        }
        let mut group = path.last().map_or_else(|| Group::new(heads), |(_, group)| group.clone());
        visit(segment, &mut group);
        path.push((index, group));
    }
}

/// A product of matrices on this thread: `c[i * stride + j] = Σ a(i, k) b(k, j)`.
fn product(m: usize, a: Lhs<'_>, b: Rhs<'_>, c: &mut [f32], stride: usize) {
    local_gemm(m, a, b, (team::Shared::new(c), 0), stride, false);
}

/// [`product`], added to `c`.
fn add_product(m: usize, a: Lhs<'_>, b: Rhs<'_>, c: &mut [f32], stride: usize) {
    local_gemm(m, a, b, (team::Shared::new(c), 0), stride, true);
}
