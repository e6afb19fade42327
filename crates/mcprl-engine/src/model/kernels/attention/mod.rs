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

use super::{Format, PANEL, softmax, team};
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

    /// The usual factor of scores.
    pub fn scale(self) -> f32 {
        1.0 / (self.dim as f32).sqrt()
    }
}

/// The attention of one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attention {
    pub heads: Heads,
    /// Factor of the scores.
    pub scale: f32,
    /// The number of keys that a row sees, its own the last of them. All up to its own if none.
    pub window: Option<usize>,
}

impl From<Heads> for Attention {
    /// All keys up to the row's own, with the usual scale.
    fn from(heads: Heads) -> Self {
        Self { heads, scale: heads.scale(), window: None }
    }
}

impl Attention {
    /// The position of the first key that a row at this position sees.
    pub fn first_seen(self, position: u32) -> usize {
        self.window.map_or(0, |window| (position as usize + 1).saturating_sub(window))
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
    /// The part of this span in a block of rows: the rows, and the keys from the first that one of them sees to the last.
    /// They begin at a whole panel.
    fn within(
        &self,
        block: &Range<usize>,
        positions: &[u32],
        attention: Attention,
    ) -> Option<(Range<usize>, Range<usize>)> {
        let rows = self.rows.start.max(block.start)..self.rows.end.min(block.end);
        let of_rows = positions.get(rows.clone())?;
        let furthest = of_rows.iter().max()?;
        let end = (*furthest as usize + 1).saturating_sub(self.first).min(self.kv.len);
        let start = first_seen(of_rows, attention).saturating_sub(self.first) / PANEL * PANEL;
        (start < end).then_some((rows, start..end))
    }
}

/// The position of the first key that a row at one of these positions sees.
fn first_seen(positions: &[u32], attention: Attention) -> usize {
    match attention.window {
        None => 0,
        Some(_) => positions.iter().min().map_or(0, |least| attention.first_seen(*least)),
    }
}

/// The key-value format of all these spans.
fn format(spans: &[Span<'_>]) -> Format {
    spans.first().map_or(Format::F32, |span| span.kv.format())
}

/// The scratch of one block of rows for one kv head. Query rows are ordered by token, then head.
#[derive(Default)]
struct Scratch {
    /// Position of the key of the first column.
    first: usize,
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
    /// Attention probabilities of a block of rows, zero for keys that a row does not see.
    fn probabilities(
        &mut self,
        q: &[f32],
        positions: &[u32],
        spans: &[Span<'_>],
        block: &Range<usize>,
        head: usize,
        attention: Attention,
    ) {
        let heads = attention.heads;
        let group = heads.group();
        gather(q, block, head, heads, attention.scale, &mut self.queries.words);
        self.queries.prepare(heads.dim, format(spans));
        let furthest = positions[block.clone()].iter().max().copied().unwrap_or(0);
        // The keys of a span begin at a whole panel, so up to a panel earlier.
        self.first = first_seen(&positions[block.clone()], attention).saturating_sub(PANEL - 1);
        self.columns = furthest as usize + 1 - self.first;
        self.scores.clear();
        self.scores.resize(block.len() * group * self.columns, 0.0);
        let scores = team::Shared::new(&mut self.scores);
        for span in spans {
            let Some((rows, keys)) = span.within(block, positions, attention) else { continue };
            let start = (rows.start - block.start) * group;
            let to = (scores, self.cell(start, span, &keys));
            let target = Target { rows: rows.len() * group, to, stride: self.columns };
            span.kv.scores((head, keys), &self.queries, start, target);
        }
        // A row's softmax begins at the first key that it sees, so its bits do not depend on the block.
        for (row, scores) in self.scores.chunks_exact_mut(self.columns).enumerate() {
            let position = positions[block.start + row / group];
            let seen =
                attention.first_seen(position).saturating_sub(self.first)..position as usize + 1 - self.first;
            softmax(&mut scores[seen.clone()]);
            scores[..seen.start].fill(0.0);
            scores[seen.end..].fill(0.0);
        }
    }

    /// Where the score of a row with the first of a span's keys is.
    fn cell(&self, row: usize, span: &Span<'_>, keys: &Range<usize>) -> usize {
        row * self.columns + span.first + keys.start - self.first
    }
}

fn blocks(rows: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows).step_by(BLOCK).map(move |start| start..(start + BLOCK).min(rows))
}

/// Attention of every row over the keys of its path up to its own position, or over the last of them.
///
/// `q`, `out`: `[rows, query heads, dim]`; `positions`: `[rows]`. Parent spans precede children. Together the
/// spans give every row the keys `0..=position` exactly once.
pub fn attend(q: &[f32], positions: &[u32], spans: &[Span<'_>], attention: Attention, out: &mut [f32]) {
    let heads = attention.heads;
    let out = team::Shared::new(out);
    let blocks: Vec<_> = blocks(positions.len()).collect();
    let threads = team::threads(work(positions, attention));
    // Late blocks see the most keys, so they go first.
    team::share(threads, blocks.len() * heads.kv, |index| {
        let (block, head) = (&blocks[blocks.len() - 1 - index / heads.kv], index % heads.kv);
        SCRATCH.with_borrow_mut(|scratch| {
            attend_block(q, positions, spans, attention, (block, head), scratch, out);
        });
    });
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Approximate multiply-adds of attention.
fn work(positions: &[u32], attention: Attention) -> usize {
    let seen = |position: &u32| *position as usize + 1 - attention.first_seen(*position);
    2 * positions.iter().map(seen).sum::<usize>() * attention.heads.query * attention.heads.dim
}

/// A block of rows for one kv head.
fn attend_block(
    q: &[f32],
    positions: &[u32],
    spans: &[Span<'_>],
    attention: Attention,
    (block, head): (&Range<usize>, usize),
    scratch: &mut Scratch,
    out: team::Shared,
) {
    let heads = attention.heads;
    let group = heads.group();
    scratch.probabilities(q, positions, spans, block, head, attention);
    let mut sums = std::mem::take(&mut scratch.sums);
    sums.clear();
    sums.resize(block.len() * group * heads.dim, 0.0);
    let into = team::Shared::new(&mut sums);
    for span in spans {
        let Some((rows, keys)) = span.within(block, positions, attention) else { continue };
        let start = (rows.start - block.start) * group;
        let probabilities = &scratch.scores[scratch.cell(start, span, &keys)..];
        let to = (into, start * heads.dim);
        let target = Target { rows: rows.len() * group, to, stride: heads.dim };
        span.kv.add_values((head, keys), (probabilities, scratch.columns), &mut scratch.pairs, target);
    }
    scatter(&sums, block, head, heads, out);
    scratch.sums = sums;
}
