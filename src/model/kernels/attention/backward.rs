//! The gradients of attention.
//!
//! Probabilities equal those of the forward, bit for bit. If keys and values are in bf16, the four products
//! of the gradients use bf16 too, with sums in `f32`. As in FlashAttention (Dao 2023), probabilities and
//! dloss_dlogp are rounded. A rounded value passes its gradient through unchanged.

use std::ops::Range;

use super::{
    super::{
        Left, PANEL, Right,
        frozen::convert::{round_to_bf16, rows_to_pairs, to_pairs},
        gemm::alone,
        multiplies_bf16, team,
    },
    Heads, Scratch, Span, blocks, format, gather, scatter, work,
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
    heads: Heads,
    out: &[f32],
    dout: &[f32],
    (dq, dk, dv): (&mut [f32], &mut [f32], &mut [f32]),
) {
    let step = heads.kv * heads.dim;
    let (dq, dk, dv) = (team::Shared::new(dq), team::Shared::new(dk), team::Shared::new(dv));
    let rounded = format(spans).is_multiplied_in_bf16();
    let pairs = rounded && multiplies_bf16();
    let as_held = |of: &[f32]| {
        let mut of = of.to_vec();
        round_to_bf16(&mut of);
        of
    };
    // Products of pairs round their inputs.
    let copies = (rounded && !pairs).then(|| [as_held(k), as_held(v)]);
    let (k, v) = copies.as_ref().map_or((k, v), |[k, v]| (k, v));
    // A head's keys and values receive gradients from all rows in order, so each head has one thread.
    team::share(team::threads(2 * work(positions, heads)), heads.kv, |head| {
        let of_span = |(span, start): (&Span<'_>, &usize)| {
            start * step + head * heads.dim..*start * step + span.kv.len * step
        };
        let rows: Vec<Range<usize>> = spans.iter().zip(starts).map(of_span).collect();
        let given = Given { positions, spans, rows: &rows, heads, k, dk, dv };
        let mut products: Box<dyn Products> = match pairs {
            true => Box::new(InPairs::new(&given, v)),
            false => Box::new(InWords::new(&given, v)),
        };
        let mut scratch = Scratch::default();
        let (mut outs, mut douts, mut dloss_dlogp, mut dquery) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for block in blocks(positions.len()) {
            scratch.probabilities(q, positions, spans, &block, head, heads);
            gather(out, &block, head, heads, 1.0, &mut outs);
            gather(dout, &block, head, heads, 1.0, &mut douts);
            dloss_dlogp.clear();
            dloss_dlogp.resize(scratch.scores.len(), 0.0);
            let parts = given.parts(&block, scratch.columns);
            for part in &parts {
                products.values(&given, part, &scratch, &douts, &mut dloss_dlogp);
            }
            turn(&scratch, &outs, &douts, heads.dim, &mut dloss_dlogp);
            dquery.clear();
            dquery.resize(block.len() * heads.group() * heads.dim, 0.0);
            for part in &parts {
                products.keys(&given, part, &scratch, &dloss_dlogp, &mut dquery);
            }
            dquery.iter_mut().for_each(|value| *value *= heads.scale());
            scatter(&dquery, &block, head, heads, dq);
        }
    });
}

/// Turns the gradients of probabilities, in `dloss_dlogp`, into those of scores.
fn turn(scratch: &Scratch, outs: &[f32], douts: &[f32], dim: usize, dloss_dlogp: &mut [f32]) {
    let columns = scratch.columns;
    for (row, (out, dout)) in outs.chunks_exact(dim).zip(douts.chunks_exact(dim)).enumerate() {
        let mean: f32 = out.iter().zip(dout).map(|(out, dout)| out * dout).sum();
        let cells = row * columns..(row + 1) * columns;
        for (slope, probability) in dloss_dlogp[cells.clone()].iter_mut().zip(&scratch.scores[cells]) {
            *slope = probability * (*slope - mean);
        }
    }
}

/// The data that all blocks of one kv head share.
struct Given<'a> {
    positions: &'a [u32],
    spans: &'a [Span<'a>],
    /// Per span, the range of this head's keys and values, from the start of the first to the end of the
    /// last's row.
    rows: &'a [Range<usize>],
    heads: Heads,
    k: &'a [f32],
    dk: team::Shared,
    dv: team::Shared,
}

/// A span's part in a block: its rows and the keys they see.
struct Part {
    span: usize,
    /// Its first row in the block, rows counted by token and head.
    first: usize,
    count: usize,
    keys: usize,
    /// Offset of its first score, and the stride between rows.
    at: usize,
    columns: usize,
}

impl Given<'_> {
    /// Floats from one token's key to the next.
    fn step(&self) -> usize {
        self.heads.kv * self.heads.dim
    }

    fn parts(&self, block: &Range<usize>, columns: usize) -> Vec<Part> {
        let group = self.heads.group();
        let of = |(index, span): (usize, &Span<'_>)| {
            let (rows, keys) = span.within(block, self.positions)?;
            let (first, count) = ((rows.start - block.start) * group, rows.len() * group);
            Some(Part { span: index, first, count, keys, at: first * columns + span.first, columns })
        };
        self.spans.iter().enumerate().filter_map(of).collect()
    }
}

/// The products of one part, for one kind of word.
trait Products {
    /// Adds `probabilitiesᵀ · dout` to the values' gradient; sets `dloss_dlogp` to `dout · valuesᵀ`.
    fn values(
        &mut self,
        given: &Given<'_>,
        part: &Part,
        scratch: &Scratch,
        douts: &[f32],
        dloss_dlogp: &mut [f32],
    );

    /// Adds `dloss_dlogp · keys` to the query's gradient and `dloss_dlogpᵀ · query` to that of the keys.
    fn keys(
        &mut self,
        given: &Given<'_>,
        part: &Part,
        scratch: &Scratch,
        dloss_dlogp: &[f32],
        dquery: &mut [f32],
    );
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

/// Products of `f32`.
struct InWords {
    /// Per span, panels of values.
    values: Vec<Vec<f32>>,
}

impl InWords {
    fn new(given: &Given<'_>, v: &[f32]) -> Self {
        let of = |rows: &Range<usize>| panels(v[rows.clone()].chunks(given.step()), given.heads.dim);
        Self { values: given.rows.iter().map(of).collect() }
    }
}

impl Products for InWords {
    fn values(
        &mut self,
        given: &Given<'_>,
        part: &Part,
        scratch: &Scratch,
        douts: &[f32],
        dloss_dlogp: &mut [f32],
    ) {
        let dim = given.heads.dim;
        let Part { first, count, keys, at, columns, .. } = *part;
        let douts = &douts[first * dim..];
        let seen = Left { data: &scratch.scores[at..], row: 1, column: columns };
        let to = (given.dv, given.rows[part.span].start);
        alone(keys, seen, Right::rows(douts, count, dim), to, given.step(), true);
        let values = Right::packed(&self.values[part.span], dim, keys);
        alone(count, Left::rows(douts, dim), values, (team::Shared::new(dloss_dlogp), at), columns, false);
    }

    fn keys(
        &mut self,
        given: &Given<'_>,
        part: &Part,
        scratch: &Scratch,
        dloss_dlogp: &[f32],
        dquery: &mut [f32],
    ) {
        let dim = given.heads.dim;
        let Part { first, count, keys, at, columns, .. } = *part;
        let (rows, dloss_dlogp) = (&given.rows[part.span], &dloss_dlogp[at..]);
        let along = Left { data: dloss_dlogp, row: columns, column: 1 };
        let right = Right::strided(&given.k[rows.clone()], keys, dim, given.step());
        alone(count, along, right, (team::Shared::new(dquery), first * dim), dim, true);
        let across = Left { data: dloss_dlogp, row: 1, column: columns };
        let query = Right::rows(&scratch.queries.words[first * dim..], count, dim);
        alone(keys, across, query, (given.dk, rows.start), given.step(), true);
    }
}

/// Products of pairs of bf16.
struct InPairs {
    /// Per span, panels of values, pairs along the head.
    values: Vec<Vec<u32>>,
    /// Per span, keys in pairs of neighbours.
    keys: Vec<Vec<u32>>,
    left: Vec<u32>,
    right: Vec<u32>,
}

impl InPairs {
    fn new(given: &Given<'_>, v: &[f32]) -> Self {
        let (dim, step) = (given.heads.dim, given.step());
        let half = dim.div_ceil(2);
        let values = |rows: &Range<usize>| {
            let mut pairs = vec![0; rows.len().div_ceil(step) * half];
            to_pairs(&v[rows.clone()], step, dim, &mut pairs);
            panels(pairs.chunks_exact(half), half)
        };
        let keys = |rows: &Range<usize>| {
            let mut pairs = Vec::new();
            rows_to_pairs(&given.k[rows.clone()], step, rows.len().div_ceil(step), dim, &mut pairs);
            pairs
        };
        Self {
            values: given.rows.iter().map(values).collect(),
            keys: given.rows.iter().map(keys).collect(),
            left: Vec::new(),
            right: Vec::new(),
        }
    }
}

impl Products for InPairs {
    fn values(
        &mut self,
        given: &Given<'_>,
        part: &Part,
        scratch: &Scratch,
        douts: &[f32],
        dloss_dlogp: &mut [f32],
    ) {
        let (dim, half) = (given.heads.dim, given.heads.dim.div_ceil(2));
        let Part { first, count, keys, at, columns, .. } = *part;
        let douts = &douts[first * dim..][..count * dim];
        rows_to_pairs(&scratch.scores[at..], columns, count, keys, &mut self.left);
        rows_to_pairs(douts, dim, count, dim, &mut self.right);
        let right = Right::rows(&self.right, count.div_ceil(2), dim);
        let to = (given.dv, given.rows[part.span].start);
        alone(keys, Left::transposed(&self.left, keys), right, to, given.step(), true);
        self.left.resize(count * half, 0);
        to_pairs(douts, dim, dim, &mut self.left);
        let values = Right::packed(&self.values[part.span], half, keys);
        let to = (team::Shared::new(dloss_dlogp), at);
        alone(count, Left::rows(&self.left, half), values, to, columns, false);
    }

    fn keys(
        &mut self,
        given: &Given<'_>,
        part: &Part,
        scratch: &Scratch,
        dloss_dlogp: &[f32],
        dquery: &mut [f32],
    ) {
        let dim = given.heads.dim;
        let Part { first, count, keys, at, columns, .. } = *part;
        let half = keys.div_ceil(2);
        self.left.resize(count * half, 0);
        to_pairs(&dloss_dlogp[at..], columns, keys, &mut self.left);
        let right = Right::rows(&self.keys[part.span], half, dim);
        let to = (team::Shared::new(dquery), first * dim);
        alone(count, Left::rows(&self.left, half), right, to, dim, true);
        rows_to_pairs(&dloss_dlogp[at..], columns, count, keys, &mut self.left);
        rows_to_pairs(&scratch.queries.words[first * dim..], dim, count, dim, &mut self.right);
        let query = Right::rows(&self.right, count.div_ceil(2), dim);
        let to = (given.dk, given.rows[part.span].start);
        alone(keys, Left::transposed(&self.left, keys), query, to, given.step(), true);
    }
}
