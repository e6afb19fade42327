//! Attention over a tree as runs of rows: each row sees all keys of the segments above its own, and its own
//! segment's keys up to itself. One call computes all runs that share no row, and calls are merged by their
//! log-sum-exp. A kernel for sequences of variable length without masks can compute this.

use std::ops::Range;

use candle_core::{DType, Result, Tensor};

use super::{PartialAttention, rows};
use crate::model::{kernels::Attention, ops::SeenKeys};

/// Neighbouring rows, and the span whose keys they see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    pub rows: Range<usize>,
    pub span: usize,
}

/// Runs that share no row, ascending. Each row sees all keys of its run's span. If they are `causal`, the
/// last row sees all keys and each row sees one more than the row before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Level {
    pub causal: bool,
    pub runs: Vec<Run>,
}

/// The levels of these spans: first the rows' own segments, which contain every row, then those above, level
/// by level. None if the spans are no tree over the rows.
pub fn levels(positions: &[u32], spans: &[SeenKeys]) -> Option<Vec<Level>> {
    let (mut own, mut above) = (Vec::new(), Vec::new());
    for (span, (of, first, keys)) in spans.iter().enumerate() {
        let end = first + keys;
        let within = of.clone().take_while(|row| (positions[*row] as usize) < end).count();
        let (inside, below) = (of.start..of.start + within, of.start + within..of.end);
        let aligned = inside.clone().rev().zip((0..end).rev()).all(|(row, at)| positions[row] as usize == at);
        let whole = below.clone().all(|row| positions[row] as usize >= end);
        if !aligned || !whole || within > *keys {
            return None;
        }
        own.extend((!inside.is_empty()).then_some(Run { rows: inside, span }));
        above.extend((!below.is_empty() && *keys > 0).then_some(Run { rows: below, span }));
    }
    own.sort_by_key(|run| run.rows.start);
    let mut next = 0;
    for run in &own {
        if run.rows.start != next {
            return None;
        }
        next = run.rows.end;
    }
    let mut levels = vec![Level { causal: true, runs: own }];
    // Of runs with the same start, the longer is further up.
    above.sort_by_key(|run| (run.rows.start, std::cmp::Reverse(run.rows.end)));
    for run in above {
        let free = |level: &&mut Level| level.runs.last().is_none_or(|last| last.rows.end <= run.rows.start);
        match levels[1..].iter_mut().find(free) {
            Some(level) => level.runs.push(run),
            None => levels.push(Level { causal: false, runs: vec![run] }),
        }
    }
    (next == positions.len()).then_some(levels)
}

/// Concatenated sequences of queries, and the keys that each sees.
pub struct Sequences {
    /// `[rows, heads · dim]`, in the type of the products.
    pub q: Tensor,
    /// `[keys, kv heads · dim]`
    pub k: Tensor,
    pub v: Tensor,
    /// Rows and keys of each sequence.
    pub lengths: Vec<(usize, usize)>,
    pub causal: bool,
    pub attention: Attention,
}

/// Computes [`Sequences`]: `[rows, heads, dim]` and the log-sum-exp of the scaled scores, `[rows, heads, 1]`,
/// in `f32`.
pub type Kernel<'a> = &'a dyn Fn(&Sequences) -> Result<PartialAttention>;

/// Attention of `q` (`[rows, heads · dim]`). `keys` returns keys and values of a span. All are first rounded
/// to `dtype`.
pub fn attend_runs(
    q: &Tensor,
    levels: &[Level],
    keys: impl Fn(usize) -> Result<(Tensor, Tensor)>,
    (attention, dtype): (Attention, DType),
    kernel: Kernel<'_>,
) -> Result<Tensor> {
    let shape = q.shape().clone();
    let q = q.to_dtype(dtype)?;
    let mut whole: Option<PartialAttention> = None;
    for Level { causal, runs } in levels {
        let (mut k, mut v, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
        for run in runs {
            let (key, value) = keys(run.span)?;
            lengths.push((run.rows.len(), key.dims()[0]));
            k.push(key);
            v.push(value);
        }
        let ranges: Vec<Range<usize>> = runs.iter().map(|run| run.rows.clone()).collect();
        let joined = |parts: &[Tensor]| Tensor::cat(parts, 0)?.to_dtype(dtype)?.contiguous();
        let (k, v) = (joined(&k)?, joined(&v)?);
        let q = rows(&q, &ranges)?.contiguous()?;
        let part = kernel(&Sequences { q, k, v, lengths, causal: *causal, attention })?;
        whole = Some(match whole {
            None => part,
            Some(whole) => over(&whole, &part, &ranges)?,
        });
    }
    match whole {
        Some(whole) => whole.out.reshape(shape),
        None => candle_core::bail!("rows that see no key"),
    }
}

/// Merges attention over more keys into some of the rows.
fn over(
    whole: &PartialAttention,
    part: &PartialAttention,
    ranges: &[Range<usize>],
) -> Result<PartialAttention> {
    let merged =
        PartialAttention { out: rows(&whole.out, ranges)?, lse: rows(&whole.lse, ranges)? }.merge(part)?;
    let put = |whole: &Tensor, merged: &Tensor| {
        let (mut parts, mut next, mut taken) = (Vec::new(), 0, 0);
        for range in ranges {
            if next < range.start {
                parts.push(whole.narrow(0, next, range.start - next)?);
            }
            parts.push(merged.narrow(0, taken, range.len())?);
            (next, taken) = (range.end, taken + range.len());
        }
        let count = whole.dims()[0];
        if next < count {
            parts.push(whole.narrow(0, next, count - next)?);
        }
        Tensor::cat(&parts, 0)
    };
    Ok(PartialAttention { out: put(&whole.out, &merged.out)?, lse: put(&whole.lse, &merged.lse)? })
}

#[cfg(test)]
mod tests {
    use candle_core::{D, Device};

    use super::*;
    use crate::model::{
        Segment, TokenTree,
        kernels::{Format, Heads},
        ops::{KvFormat, TreeLayout},
    };

    /// Sequence by sequence and head by head, with a mask.
    fn plain(of: &Sequences) -> Result<PartialAttention> {
        let Heads { query, kv, dim } = of.attention.heads;
        let (mut outs, mut lses, mut row, mut key) = (Vec::new(), Vec::new(), 0, 0);
        for (rows, keys) in &of.lengths {
            let by_head = |x: &Tensor, start, count, heads| -> Result<Tensor> {
                x.narrow(0, start, count)?.reshape((count, heads, dim))?.transpose(0, 1)?.contiguous()
            };
            let spread = |x: Tensor| -> Result<Tensor> {
                let shape = (kv, query / kv, *keys, dim);
                x.unsqueeze(1)?.broadcast_as(shape)?.reshape((query, *keys, dim))
            };
            let q = by_head(&of.q, row, *rows, query)?;
            let (k, v) = (spread(by_head(&of.k, key, *keys, kv)?)?, spread(by_head(&of.v, key, *keys, kv)?)?);
            let seen = |i: usize, j: usize| !of.causal || j + rows <= i + keys;
            let mask = (0..*rows)
                .flat_map(|i| (0..*keys).map(move |j| if seen(i, j) { 0.0 } else { f32::NEG_INFINITY }));
            let mask = Tensor::from_vec(mask.collect(), (*rows, *keys), &Device::Cpu)?;
            let scores =
                (q.matmul(&k.transpose(1, 2)?.contiguous()?)? / (dim as f64).sqrt())?.broadcast_add(&mask)?;
            let lse = scores.log_sum_exp(D::Minus1)?.unsqueeze(2)?;
            outs.push(scores.broadcast_sub(&lse)?.exp()?.matmul(&v.contiguous()?)?.transpose(0, 1)?);
            lses.push(lse.transpose(0, 1)?);
            (row, key) = (row + rows, key + keys);
        }
        Ok(PartialAttention { out: Tensor::cat(&outs, 0)?, lse: Tensor::cat(&lses, 0)? })
    }

    fn tensor(rows: usize, width: usize, seed: usize) -> Tensor {
        let values = (0..rows * width).map(|i| ((i * i % 1009 + seed * 31) as f32 * 0.73).sin() * 2.0);
        Tensor::from_vec(values.collect::<Vec<_>>(), (rows, width), &Device::Cpu).unwrap()
    }

    #[test]
    fn rows_see_their_own_segment_causally_and_parent_segments_in_full() {
        // A stem of 3, below it a branch of 2 with a leaf of 1, and a branch of 2.
        let positions = [0, 1, 2, 3, 4, 5, 3, 4];
        let spans = [(0..8, 0, 3), (3..6, 3, 2), (5..6, 5, 1), (6..8, 3, 2)];
        let run = |rows, span| Run { rows, span };
        let own = Level { causal: true, runs: vec![run(0..3, 0), run(3..5, 1), run(5..6, 2), run(6..8, 3)] };
        let stem = Level { causal: false, runs: vec![run(3..8, 0)] };
        let branch = Level { causal: false, runs: vec![run(5..6, 1)] };
        assert_eq!(levels(&positions, &spans), Some(vec![own, stem, branch]));
        // In sampling, the stem and earlier tokens are cached: a new row sees the cached keys of its segment.
        let spans = [(0..2, 0, 3), (0..1, 3, 5), (1..2, 3, 2)];
        let own = Level { causal: true, runs: vec![run(0..1, 1), run(1..2, 2)] };
        let stem = Level { causal: false, runs: vec![run(0..2, 0)] };
        assert_eq!(levels(&[7, 4], &spans), Some(vec![own, stem]));
        assert_eq!(levels(&[7, 4], &spans[..2]), None, "a row without a segment of its own");
        assert_eq!(levels(&[6, 4], &spans), None, "a row that does not see the last key of its segment");
    }

    #[test]
    fn attention_by_levels_equals_attention_by_tiles() {
        let heads = Heads { query: 4, kv: 2, dim: 8 };
        let positions: Vec<u32> = (0..9).chain(9..14).chain(14..20).chain(14..17).chain(9..12).collect();
        // A stem, a branch with two leaves, and another branch.
        let segments = [
            (0..9, 0..26, 0),
            (9..14, 9..23, 9),
            (14..20, 14..20, 14),
            (20..23, 20..23, 14),
            (23..26, 23..26, 9),
        ];
        let segments = segments.map(|(rows, subtree, first)| Segment { rows, subtree, first });
        let spans: Vec<SeenKeys> =
            segments.iter().map(|of| (of.subtree.clone(), of.first, of.rows.len())).collect();
        let [q, k, v] = [(32, 1), (16, 2), (16, 3)].map(|(width, seed)| tensor(26, width, seed));
        let levels = levels(&positions, &spans).unwrap();
        let keys = |span: usize| {
            let own = &segments[span].rows;
            Ok((k.narrow(0, own.start, own.len())?, v.narrow(0, own.start, own.len())?))
        };
        let found = attend_runs(&q, &levels, keys, (heads.into(), DType::F32), &plain).unwrap();
        let tree = TokenTree { positions, segments: segments.to_vec(), ..TokenTree::default() };
        let layout = TreeLayout::new(&tree, KvFormat { heads, format: Format::F32, by_kernels: true });
        let expected = layout.attend((&q, &k, &v), heads.into()).unwrap().out;
        let off = (found - expected).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        assert!(off < 1e-5, "{off}");
    }
}
