//! The gradients of attention.
//!
//! Probabilities equal those of the forward, bit for bit. If keys and values are in bf16, the four products
//! of the gradients use bf16 too, with sums in `f32`. As in FlashAttention (Dao 2023), probabilities and the gradients
//! of scores are rounded. A rounded value passes its gradient through unchanged.

use std::ops::Range;

use super::{
    super::{
        Lhs, PANEL, Rhs,
        frozen::convert::{round_to_bf16, rows_to_pairs, to_pairs},
        gemm::{local_gemm, tiled_gemm},
        multiplies_bf16, team,
    },
    Attention, Heads, Scratch, Span, blocks, format, gather, scatter, work,
};

/// Gradients of [`super::attend`] if the keys and values are those of the rows themselves.
///
/// `k`, `v`, `dk`, `dv`: `[rows, kv heads, dim]`. `starts[i]` is the row of the first key of `spans[i]`. `dq`
/// is overwritten, `dk` and `dv` are added to.
#[expect(clippy::too_many_arguments, reason = "three inputs, their three gradients, and the layout")]
pub fn attend_backward(
    (q, k, v): (&[f32], &[f32], &[f32]),
    positions: &[u32],
    spans: &[Span<'_>],
    starts: &[usize],
    attention: Attention,
    out: &[f32],
    dout: &[f32],
    (dq, dk, dv): (&mut [f32], &mut [f32], &mut [f32]),
) {
    let heads = attention.heads;
    let step = heads.kv * heads.dim;
    let (dq, dk, dv) = (team::Shared::new(dq), team::Shared::new(dk), team::Shared::new(dv));
    let rounded = format(spans).is_multiplied_in_bf16();
    let pairs = rounded && multiplies_bf16();
    let as_bf16 = |of: &[f32]| {
        let mut of = of.to_vec();
        round_to_bf16(&mut of);
        of
    };
    // Products of pairs round their inputs.
    let copies = (rounded && !pairs).then(|| [as_bf16(k), as_bf16(v)]);
    let (k, v) = copies.as_ref().map_or((k, v), |[k, v]| (k, v));
    // A head's keys and values receive gradients from all rows in order, so each head has one thread.
    team::share(team::threads(2 * work(positions, attention)), heads.kv, |head| {
        let of_span = |(span, start): (&Span<'_>, &usize)| {
            start * step + head * heads.dim..*start * step + span.kv.len * step
        };
        let rows: Vec<Range<usize>> = spans.iter().zip(starts).map(of_span).collect();
        let inputs = Inputs { positions, spans, rows: &rows, attention, heads, k, dk, dv };
        let mut products = Products::new(&inputs, v, pairs);
        let mut scratch = Scratch::default();
        let (mut outs, mut douts, mut dscores, mut dquery) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for block in blocks(positions.len()) {
            scratch.probabilities(q, positions, spans, &block, head, attention);
            gather(out, &block, head, heads, 1.0, &mut outs);
            gather(dout, &block, head, heads, 1.0, &mut douts);
            dscores.clear();
            dscores.resize(scratch.scores.len(), 0.0);
            let parts = inputs.parts(&block, &scratch);
            for part in &parts {
                products.values(&inputs, part, &scratch, &douts, &mut dscores);
            }
            softmax_backward(&scratch, &outs, &douts, heads.dim, &mut dscores);
            dquery.clear();
            dquery.resize(block.len() * heads.group() * heads.dim, 0.0);
            for part in &parts {
                products.keys(&inputs, part, &scratch, &dscores, &mut dquery);
            }
            dquery.iter_mut().for_each(|value| *value *= attention.scale);
            scatter(&dquery, &block, head, heads, dq);
        }
    });
}

/// Turns the gradients of probabilities into those of scores, in place.
fn softmax_backward(scratch: &Scratch, outs: &[f32], douts: &[f32], dim: usize, gradients: &mut [f32]) {
    let columns = scratch.columns;
    for (row, (out, dout)) in outs.chunks_exact(dim).zip(douts.chunks_exact(dim)).enumerate() {
        let mean: f32 = out.iter().zip(dout).map(|(out, dout)| out * dout).sum();
        let cells = row * columns..(row + 1) * columns;
        for (gradient, probability) in gradients[cells.clone()].iter_mut().zip(&scratch.scores[cells]) {
            *gradient = probability * (*gradient - mean);
        }
    }
}

/// The data that all blocks of one kv head share.
struct Inputs<'a> {
    positions: &'a [u32],
    spans: &'a [Span<'a>],
    /// Per span, the range of this head's keys and values, from the start of the first to the end of the
    /// last's row.
    rows: &'a [Range<usize>],
    attention: Attention,
    heads: Heads,
    k: &'a [f32],
    dk: team::Shared,
    dv: team::Shared,
}

/// A span's part in a block: its rows and the keys they see.
struct SpanBlock {
    span: usize,
    /// Its first row in the block, rows counted by token and head.
    first: usize,
    count: usize,
    /// Keys of the span before the first of these, in whole panels.
    skipped: usize,
    keys: usize,
    /// Offset of its first score, and the stride between rows.
    at: usize,
    columns: usize,
}

impl Inputs<'_> {
    /// Floats from one token's key to the next.
    fn step(&self) -> usize {
        self.heads.kv * self.heads.dim
    }

    fn parts(&self, block: &Range<usize>, scratch: &Scratch) -> Vec<SpanBlock> {
        let group = self.heads.group();
        let of = |(index, span): (usize, &Span<'_>)| {
            let (rows, keys) = span.within(block, self.positions, self.attention)?;
            let (first, count) = ((rows.start - block.start) * group, rows.len() * group);
            let (at, columns) = (scratch.cell(first, span, &keys), scratch.columns);
            Some(SpanBlock { span: index, first, count, skipped: keys.start, keys: keys.len(), at, columns })
        };
        self.spans.iter().enumerate().filter_map(of).collect()
    }
}

/// Rows of `k` words as panels `[rows / 32][k][32]`: the right factor of a product with their transpose.
fn panels<'a, W: Copy + Default + 'a>(rows: impl ExactSizeIterator<Item = &'a [W]>, k: usize) -> Vec<W> {
    let mut panels = vec![W::default(); rows.len().div_ceil(PANEL) * k * PANEL];
    for (index, row) in rows.enumerate() {
        let panel = &mut panels[index / PANEL * k * PANEL..][..k * PANEL];
        for i in 0..k {
            panel[i * PANEL + index % PANEL] = row[i];
        }
    }
    panels
}

/// The matrix products of parts, in one of two kinds of words.
enum Products {
    /// Per span, panels of values.
    Floats(Vec<Vec<f32>>),
    /// Pairs of bf16.
    Pairs {
        /// Per span, panels of values, pairs along the head.
        values: Vec<Vec<u32>>,
        /// Per span, keys in pairs of neighbours.
        keys: Vec<Vec<u32>>,
        left: Vec<u32>,
        right: Vec<u32>,
    },
}

impl Products {
    fn new(inputs: &Inputs<'_>, v: &[f32], pairs: bool) -> Self {
        let (dim, step) = (inputs.heads.dim, inputs.step());
        if !pairs {
            let values = |rows: &Range<usize>| panels(v[rows.clone()].chunks(step), dim);
            return Self::Floats(inputs.rows.iter().map(values).collect());
        }
        let half = dim.div_ceil(2);
        let values = |rows: &Range<usize>| {
            let mut pairs = vec![0; rows.len().div_ceil(step) * half];
            to_pairs(&v[rows.clone()], step, dim, &mut pairs);
            panels(pairs.chunks_exact(half), half)
        };
        let keys = |rows: &Range<usize>| {
            let mut pairs = Vec::new();
            rows_to_pairs(&inputs.k[rows.clone()], step, rows.len().div_ceil(step), dim, &mut pairs);
            pairs
        };
        let (values, keys) =
            (inputs.rows.iter().map(values).collect(), inputs.rows.iter().map(keys).collect());
        Self::Pairs { values, keys, left: Vec::new(), right: Vec::new() }
    }

    /// Adds `probabilitiesᵀ · dout` to the values' gradient; sets `dscores` to `dout · valuesᵀ`, the gradients of the
    /// probabilities.
    fn values(
        &mut self,
        inputs: &Inputs<'_>,
        part: &SpanBlock,
        scratch: &Scratch,
        douts: &[f32],
        dscores: &mut [f32],
    ) {
        let (dim, half) = (inputs.heads.dim, inputs.heads.dim.div_ceil(2));
        let SpanBlock { first, count, skipped, keys, at, columns, .. } = *part;
        let dvalues = (inputs.dv, inputs.rows[part.span].start + skipped * inputs.step());
        let dscores = (team::Shared::new(dscores), at);
        match self {
            Self::Floats(values) => {
                let douts = &douts[first * dim..];
                let seen = Lhs { data: &scratch.scores[at..], row: 1, column: columns };
                local_gemm(keys, seen, Rhs::rows(douts, count, dim), dvalues, inputs.step(), true);
                let values = Rhs::packed(&values[part.span][skipped * dim..], dim, keys);
                local_gemm(count, Lhs::rows(douts, dim), values, dscores, columns, false);
            }
            Self::Pairs { values, left, right, .. } => {
                let douts = &douts[first * dim..][..count * dim];
                rows_to_pairs(&scratch.scores[at..], columns, count, keys, left);
                rows_to_pairs(douts, dim, count, dim, right);
                let factor = Rhs::rows(right, count.div_ceil(2), dim);
                tiled_gemm(keys, Lhs::transposed(left, keys), factor, dvalues, inputs.step(), true);
                left.resize(count * half, 0);
                to_pairs(douts, dim, dim, left);
                let values = Rhs::packed(&values[part.span][skipped * half..], half, keys);
                tiled_gemm(count, Lhs::rows(left, half), values, dscores, columns, false);
            }
        }
    }

    /// Adds `dscores · keys` to the query's gradient and `dscoresᵀ · query` to that of the keys.
    fn keys(
        &mut self,
        inputs: &Inputs<'_>,
        part: &SpanBlock,
        scratch: &Scratch,
        dscores: &[f32],
        dquery: &mut [f32],
    ) {
        let dim = inputs.heads.dim;
        let SpanBlock { first, count, skipped, keys, at, columns, .. } = *part;
        let rows = inputs.rows[part.span].start + skipped * inputs.step()..inputs.rows[part.span].end;
        let dscores = &dscores[at..];
        let (dquery, dkeys) = ((team::Shared::new(dquery), first * dim), (inputs.dk, rows.start));
        let queries = &scratch.queries.words[first * dim..];
        match self {
            Self::Floats(_) => {
                let along = Lhs { data: dscores, row: columns, column: 1 };
                let factor = Rhs::strided(&inputs.k[rows], keys, dim, inputs.step());
                local_gemm(count, along, factor, dquery, dim, true);
                let across = Lhs { data: dscores, row: 1, column: columns };
                local_gemm(keys, across, Rhs::rows(queries, count, dim), dkeys, inputs.step(), true);
            }
            Self::Pairs { keys: key_pairs, left, right, .. } => {
                let half = keys.div_ceil(2);
                left.resize(count * half, 0);
                to_pairs(dscores, columns, keys, left);
                let factor = Rhs::rows(&key_pairs[part.span][skipped / 2 * dim..], half, dim);
                tiled_gemm(count, Lhs::rows(left, half), factor, dquery, dim, true);
                rows_to_pairs(dscores, columns, count, keys, left);
                rows_to_pairs(queries, dim, count, dim, right);
                let factor = Rhs::rows(right, count.div_ceil(2), dim);
                tiled_gemm(keys, Lhs::transposed(left, keys), factor, dkeys, inputs.step(), true);
            }
        }
    }
}
