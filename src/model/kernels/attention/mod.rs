//! Causal grouped-query attention of many rows over a tree of segments.
//!
//! Rows of several sequences attend together to their shared keys: one matrix product per segment, not per
//! sequence. The scores of a row over its whole path are contiguous before the softmax. Its sum over values
//! is one chain in the order of the keys, in bf16 too. So the split of the path into segments changes no bit
//! of the result.

mod backward;
mod key_values;
#[cfg(test)]
mod tests;

use std::{cell::RefCell, ops::Range};

use super::{Format, softmax, team};
pub use backward::attend_backward;
pub use key_values::KeyValues;
use key_values::{Queries, Target};

/// Query tokens per block, so that their scores stay in cache.
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

/// A segment and the rows that attend to it: those of the segment itself and of its descendants.
pub struct Span<'a> {
    pub rows: Range<usize>,
    /// Position of the segment's first key.
    pub first: usize,
    pub kv: &'a KeyValues,
}

impl Span<'_> {
    /// The part of this span in a block of rows: the rows, and the number of keys that the last of them sees.
    fn within(&self, block: &Range<usize>, positions: &[u32]) -> Option<(Range<usize>, usize)> {
        let rows = self.rows.start.max(block.start)..self.rows.end.min(block.end);
        let furthest = positions.get(rows.clone())?.iter().max()?;
        let keys = (*furthest as usize + 1).saturating_sub(self.first).min(self.kv.len);
        (keys > 0).then_some((rows, keys))
    }
}

/// The key-value format of all these spans.
fn format(spans: &[Span<'_>]) -> Format {
    spans.first().map_or(Format::F32, |span| span.kv.format())
}

/// The scratch of one block of rows for one kv head. Query rows are ordered by token, then head.
#[derive(Default)]
struct Scratch {
    columns: usize,
    /// `[rows, columns]`
    scores: Vec<f32>,
    /// Scaled.
    queries: Queries,
    /// `[rows, dim]`
    sums: Vec<f32>,
    pairs: Vec<u32>,
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

/// The inverse of [`gather`].
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
        gather(q, block, head, heads, heads.scale(), &mut self.queries.words);
        self.queries.prepare(heads.dim, format(spans));
        let furthest = positions[block.clone()].iter().max().copied().unwrap_or(0);
        self.columns = furthest as usize + 1;
        self.scores.clear();
        self.scores.resize(block.len() * group * self.columns, 0.0);
        let scores = team::Shared::new(&mut self.scores);
        for span in spans {
            let Some((rows, keys)) = span.within(block, positions) else { continue };
            let start = (rows.start - block.start) * group;
            let to = (scores, start * self.columns + span.first);
            let target = Target { rows: rows.len() * group, to, stride: self.columns };
            span.kv.scores((head, keys), &self.queries, start, target);
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
/// `q`, `out`: `[rows, query heads, dim]`; `positions`: `[rows]`. Parent spans precede children. Together the
/// spans give every row the keys `0..=position` exactly once.
pub fn attend(q: &[f32], positions: &[u32], spans: &[Span<'_>], heads: Heads, out: &mut [f32]) {
    let out = team::Shared::new(out);
    let blocks: Vec<_> = blocks(positions.len()).collect();
    let threads = team::threads(work(positions, heads));
    // Late blocks see the most keys, so they go first.
    team::share(threads, blocks.len() * heads.kv, |index| {
        let (block, head) = (&blocks[blocks.len() - 1 - index / heads.kv], index % heads.kv);
        SCRATCH
            .with_borrow_mut(|scratch| attend_block(q, positions, spans, heads, (block, head), scratch, out));
    });
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Approximate multiply-adds of attention.
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
        let to = (into, start * heads.dim);
        let target = Target { rows: rows.len() * group, to, stride: heads.dim };
        span.kv.add_values((head, keys), (probabilities, scratch.columns), &mut scratch.pairs, target);
    }
    scatter(&sums, block, head, heads, out);
    scratch.sums = sums;
}
