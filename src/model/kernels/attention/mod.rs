//! Causal grouped-query attention of many rows over a tree of segments.
//!
//! Rows of several sequences attend together to the keys they share: one matrix product per segment, not per sequence.
//! The scores of a row over its whole path stand side by side before the softmax, so how the path is cut into segments
//! changes no bit of the result.

mod backward;
#[cfg(test)]
mod tests;

use std::{cell::RefCell, ops::Range};

use super::{Left, PANEL, Right, gemm::alone, softmax, team};
pub use backward::attend_backward;

/// Query tokens worked on at a time, so that their scores stay in cache.
const BLOCK: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    pub query: usize,
    /// Each serves `query / kv` query heads.
    pub kv: usize,
    pub dim: usize,
}

impl Heads {
    fn group(self) -> usize {
        self.query / self.kv
    }

    fn scale(self) -> f32 {
        1.0 / (self.dim as f32).sqrt()
    }
}

/// Keys and values of one segment in one layer; grows at its end.
#[derive(Debug, Clone)]
pub struct KeyValues {
    len: usize,
    dim: usize,
    /// Per kv head: keys in panels `[len / 32][dim][32]`, values `[len, dim]`.
    heads: Vec<(Vec<f32>, Vec<f32>)>,
}

impl KeyValues {
    pub fn new(heads: Heads) -> Self {
        Self { len: 0, dim: heads.dim, heads: vec![Default::default(); heads.kv] }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn bytes(&self) -> usize {
        self.heads.iter().map(|(k, v)| (k.capacity() + v.capacity()) * size_of::<f32>()).sum()
    }

    /// What [`Self::bytes`] says where this many tokens are held.
    pub fn bytes_for(heads: Heads, tokens: usize) -> usize {
        2 * heads.kv * heads.dim * room(tokens) * size_of::<f32>()
    }

    /// Appends tokens: `keys` and `values` are `[tokens, kv heads, dim]`.
    pub fn extend(&mut self, keys: &[f32], values: &[f32]) {
        let (dim, width) = (self.dim, self.dim * self.heads.len());
        let len = self.len + keys.len() / width;
        let room = room(len) * dim;
        for (head, (panels, rows)) in self.heads.iter_mut().enumerate() {
            panels.reserve_exact(room - panels.len());
            rows.reserve_exact(room - rows.len());
            panels.resize(len.next_multiple_of(PANEL) * dim, 0.0);
            for (token, key) in (self.len..len).zip(keys.chunks_exact(width)) {
                let panel = &mut panels[token / PANEL * dim * PANEL..][..dim * PANEL];
                let key = &key[head * dim..][..dim];
                for i in 0..dim {
                    panel[i * PANEL + token % PANEL] = key[i];
                }
            }
            for values in values.chunks_exact(width) {
                rows.extend_from_slice(&values[head * dim..][..dim]);
            }
        }
        self.len = len;
    }

    fn keys(&self, head: usize, len: usize) -> Right<'_> {
        Right::packed(&self.heads[head].0, self.dim, len)
    }

    fn values(&self, head: usize, len: usize) -> Right<'_> {
        Right::rows(&self.heads[head].1, len, self.dim)
    }
}

/// Tokens there is room for where this many are held: whole panels, and beyond 512 tokens at most an eighth too many.
fn room(tokens: usize) -> usize {
    tokens.next_multiple_of((tokens.next_power_of_two() / 16).max(PANEL))
}

/// A segment and the rows that attend to it: those of the segment itself and of its descendants.
pub struct Span<'a> {
    pub rows: Range<usize>,
    /// Position of the segment's first key.
    pub first: usize,
    pub kv: &'a KeyValues,
}

impl Span<'_> {
    /// The part of this span in a block of rows: the rows, and how many keys the furthest of them sees.
    fn within(&self, block: &Range<usize>, positions: &[u32]) -> Option<(Range<usize>, usize)> {
        let rows = self.rows.start.max(block.start)..self.rows.end.min(block.end);
        let furthest = positions.get(rows.clone())?.iter().max()?;
        let keys = (*furthest as usize + 1).saturating_sub(self.first).min(self.kv.len);
        (keys > 0).then_some((rows, keys))
    }
}

/// The scratch of one block of rows for one kv head; query rows are ordered by token, then head.
#[derive(Default)]
struct Scratch {
    columns: usize,
    /// `[rows, columns]`
    scores: Vec<f32>,
    /// `[rows, dim]`, scaled.
    query: Vec<f32>,
    /// `[rows, dim]`
    sums: Vec<f32>,
}

/// Copies `[rows, group, dim]` of one kv head out of `[tokens, query heads, dim]`.
fn gather(from: &[f32], block: &Range<usize>, head: usize, heads: Heads, scale: f32, into: &mut Vec<f32>) {
    let width = heads.group() * heads.dim;
    into.clear();
    for token in block.clone() {
        let at = token * heads.query * heads.dim + head * width;
        into.extend(from[at..at + width].iter().map(|value| value * scale));
    }
}

/// The reverse of [`gather`].
fn scatter(from: &[f32], block: &Range<usize>, head: usize, heads: Heads, into: team::Shared) {
    let width = heads.group() * heads.dim;
    for (token, from) in block.clone().zip(from.chunks_exact(width)) {
        let at = token * heads.query * heads.dim + head * width;
        // SAFETY: a block's head is one thread's.
        unsafe { into.range(at..at + width) }.copy_from_slice(from);
    }
}

impl Scratch {
    /// Attention probabilities of a block of rows, zero beyond each row's own position.
    fn probabilities(
        &mut self,
        q: &[f32],
        positions: &[u32],
        spans: &[Span<'_>],
        block: &Range<usize>,
        head: usize,
        heads: Heads,
    ) {
        let group = heads.group();
        gather(q, block, head, heads, heads.scale(), &mut self.query);
        let furthest = positions[block.clone()].iter().max().copied().unwrap_or(0);
        self.columns = furthest as usize + 1;
        self.scores.clear();
        self.scores.resize(block.len() * group * self.columns, 0.0);
        let scores = team::Shared::new(&mut self.scores);
        for span in spans {
            let Some((rows, keys)) = span.within(block, positions) else { continue };
            let start = (rows.start - block.start) * group;
            alone(
                rows.len() * group,
                Left::rows(&self.query[start * heads.dim..], heads.dim),
                span.kv.keys(head, keys),
                (scores, start * self.columns + span.first),
                self.columns,
                false,
            );
        }
        for (row, scores) in self.scores.chunks_exact_mut(self.columns).enumerate() {
            let seen = positions[block.start + row / group] as usize + 1;
            softmax(&mut scores[..seen]);
            scores[seen..].fill(0.0);
        }
    }
}

fn blocks(rows: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows).step_by(BLOCK).map(move |start| start..(start + BLOCK).min(rows))
}

/// Attention of every row over the keys of its path up to its own position.
///
/// `q`, `out`: `[rows, query heads, dim]`; `positions`: `[rows]`. Spans stand with parents before children, and
/// together give every row the keys `0..=position` exactly once.
pub fn attend(q: &[f32], positions: &[u32], spans: &[Span<'_>], heads: Heads, out: &mut [f32]) {
    let out = team::Shared::new(out);
    let blocks: Vec<_> = blocks(positions.len()).collect();
    let threads = team::threads(work(positions, heads));
    // Late blocks see most: begin with them.
    team::share(threads, blocks.len() * heads.kv, |index| {
        let (block, head) = (&blocks[blocks.len() - 1 - index / heads.kv], index % heads.kv);
        SCRATCH
            .with_borrow_mut(|scratch| attend_block(q, positions, spans, heads, (block, head), scratch, out));
    });
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Multiply-adds of attention, about.
fn work(positions: &[u32], heads: Heads) -> usize {
    let seen: usize = positions.iter().map(|position| *position as usize + 1).sum();
    2 * seen * heads.query * heads.dim
}

/// A block of rows for one kv head.
fn attend_block(
    q: &[f32],
    positions: &[u32],
    spans: &[Span<'_>],
    heads: Heads,
    (block, head): (&Range<usize>, usize),
    scratch: &mut Scratch,
    out: team::Shared,
) {
    let group = heads.group();
    scratch.probabilities(q, positions, spans, block, head, heads);
    let mut sums = std::mem::take(&mut scratch.sums);
    sums.clear();
    sums.resize(block.len() * group * heads.dim, 0.0);
    let into = team::Shared::new(&mut sums);
    for span in spans {
        let Some((rows, keys)) = span.within(block, positions) else { continue };
        let start = (rows.start - block.start) * group;
        let probabilities = &scratch.scores[start * scratch.columns + span.first..];
        alone(
            rows.len() * group,
            Left { data: probabilities, row: scratch.columns, column: 1 },
            span.kv.values(head, keys),
            (into, start * heads.dim),
            heads.dim,
            true,
        );
    }
    scatter(&sums, block, head, heads, out);
    scratch.sums = sums;
}
