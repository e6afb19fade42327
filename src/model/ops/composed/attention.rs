//! Attention as one masked softmax per block of rows, over the keys that any row of the block sees.

use std::ops::Range;

use candle_core::{D, Device, Result, Tensor};

use super::softmax;
use crate::model::kernels::Heads;

/// Rows of a block in training, where neighbours share most of their keys.
pub const TREE_ROWS: usize = 512;
/// Rows of a block in sampling, where each conversation has keys of its own.
pub const STEP_ROWS: usize = 64;
/// Rows a cache begins with; it doubles when it is full.
const FIRST_ROWS: usize = 32;

/// A tensor that grows by rows.
#[derive(Debug, Default)]
pub struct Rows {
    /// `[capacity, width]`
    held: Option<Tensor>,
    len: usize,
}

impl Rows {
    pub fn count(&self) -> usize {
        self.len
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.held.as_ref().map_or(0, |held| held.elem_count() * held.dtype().size_in_bytes())
    }

    /// What [`Self::bytes`] says where this many rows of this width are held, in `f32`.
    pub fn bytes_for(width: usize, rows: usize) -> usize {
        match rows {
            0 => 0,
            rows => rows.next_power_of_two().max(FIRST_ROWS) * width * size_of::<f32>(),
        }
    }

    /// Appends `[rows, width]`.
    pub fn extend(&mut self, rows: &Tensor) -> Result<()> {
        let (count, width) = rows.dims2()?;
        let needed = self.len + count;
        if self.held.as_ref().is_none_or(|held| held.dims()[0] < needed) {
            let capacity = needed.next_power_of_two().max(FIRST_ROWS);
            let larger = Tensor::zeros((capacity, width), rows.dtype(), rows.device())?;
            if let Some(held) = &self.held {
                larger.slice_set(&held.narrow(0, 0, self.len)?.contiguous()?, 0, 0)?;
            }
            self.held = Some(larger);
        }
        if let Some(held) = &self.held {
            held.slice_set(&rows.contiguous()?, 0, self.len)?;
        }
        self.len = needed;
        Ok(())
    }

    /// The first `count` rows.
    pub fn first(&self, count: usize) -> Result<Tensor> {
        match &self.held {
            Some(held) => held.narrow(0, 0, count),
            None => candle_core::bail!("{count} rows of a cache that holds none"),
        }
    }
}

/// What a block of rows sees.
pub struct Sight {
    rows: Range<usize>,
    /// Spans by index, and how many of its first keys each gives.
    pub spans: Vec<(usize, usize)>,
    /// `[rows, keys]`: 0 where the row sees the key, −∞ elsewhere.
    mask: Tensor,
}

/// The blocks of these rows. A span is the rows that attend to it, the position of its first key, and its keys.
pub fn sights(
    positions: &[u32],
    spans: &[(Range<usize>, usize, usize)],
    block: usize,
    device: &Device,
) -> Result<Vec<Sight>> {
    let mut sights = Vec::new();
    for start in (0..positions.len()).step_by(block) {
        let rows = start..(start + block).min(positions.len());
        let within = |of: &Range<usize>| of.start.max(rows.start)..of.end.min(rows.end);
        let seen = |row: usize, first: usize, keys: usize| {
            (positions[row] as usize + 1).saturating_sub(first).min(keys)
        };
        let mut found = Vec::new();
        for (index, (of, first, keys)) in spans.iter().enumerate() {
            let most = within(of).map(|row| seen(row, *first, *keys)).max().unwrap_or(0);
            if most > 0 {
                found.push((index, most));
            }
        }
        let width = found.iter().map(|(_, count)| count).sum::<usize>();
        let mut mask = vec![f32::NEG_INFINITY; rows.len() * width];
        let mut column = 0;
        for (index, count) in &found {
            let (of, first, _) = &spans[*index];
            for row in within(of) {
                let at = (row - rows.start) * width + column;
                mask[at..at + seen(row, *first, *count)].fill(0.0);
            }
            column += count;
        }
        let mask = Tensor::from_vec(mask, (rows.len(), width), device)?;
        sights.push(Sight { rows, spans: found, mask });
    }
    Ok(sights)
}

/// These ranges of rows, one after another.
pub fn rows(x: &Tensor, ranges: &[Range<usize>]) -> Result<Tensor> {
    let parts = ranges.iter().map(|range| x.narrow(0, range.start, range.len()));
    Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, 0)
}

/// `[tokens, kv · group · dim]` as `[kv, group · tokens, dim]`.
fn by_head(x: &Tensor, heads: Heads) -> Result<Tensor> {
    let (tokens, columns) = x.dims2()?;
    let group = columns / (heads.kv * heads.dim);
    let x = x.reshape((tokens, heads.kv, group, heads.dim))?;
    x.permute((1, 2, 0, 3))?.contiguous()?.reshape((heads.kv, group * tokens, heads.dim))
}

/// The reverse of [`by_head`].
fn by_token(x: &Tensor, tokens: usize, heads: Heads) -> Result<Tensor> {
    let (_, rows, _) = x.dims3()?;
    let group = rows / tokens;
    let x = x.reshape((heads.kv, group, tokens, heads.dim))?.permute((2, 0, 1, 3))?;
    x.contiguous()?.reshape((tokens, heads.kv * group * heads.dim))
}

/// `[kv, group · rows, keys]` from queries and keys by head; queries are scaled.
fn probabilities(q: &Tensor, k: &Tensor, mask: &Tensor) -> Result<Tensor> {
    let scores = q.matmul(&k.transpose(1, 2)?)?;
    let (rows, keys) = mask.dims2()?;
    let shape = scores.shape().clone();
    softmax(&scores.reshape(((), rows, keys))?.broadcast_add(mask)?)?.reshape(shape)
}

fn scale(heads: Heads) -> f64 {
    1.0 / (heads.dim as f64).sqrt()
}

/// `keys` gives keys and values of a sight's spans, one after another: `[keys, kv · dim]`.
pub fn attend(
    q: &Tensor,
    sights: &[Sight],
    keys: impl Fn(&Sight) -> Result<(Tensor, Tensor)>,
    heads: Heads,
) -> Result<Tensor> {
    let block = |sight: &Sight| {
        let (k, v) = keys(sight)?;
        let (k, v) = (by_head(&k, heads)?, by_head(&v, heads)?);
        let q = (by_head(&rows(q, std::slice::from_ref(&sight.rows))?, heads)? * scale(heads))?;
        by_token(&probabilities(&q, &k, &sight.mask)?.matmul(&v)?, sight.rows.len(), heads)
    };
    Tensor::cat(&sights.iter().map(block).collect::<Result<Vec<_>>>()?, 0)
}

/// Gradients of q, k and v; `keys` gives a sight's keys as ranges of the rows of `k`.
pub fn attend_backward(
    (q, k, v): (&Tensor, &Tensor, &Tensor),
    sights: &[Sight],
    keys: impl Fn(&Sight) -> Vec<Range<usize>>,
    heads: Heads,
    out: &Tensor,
    dout: &Tensor,
) -> Result<(Tensor, Tensor, Tensor)> {
    let (dk, dv) = (k.zeros_like()?, v.zeros_like()?);
    let mut dq = Vec::with_capacity(sights.len());
    for sight in sights {
        let ranges = keys(sight);
        let own = |x: &Tensor| by_head(&rows(x, std::slice::from_ref(&sight.rows))?, heads);
        let (scaled, out, dout) = ((own(q)? * scale(heads))?, own(out)?, own(dout)?);
        let (k, v) = (by_head(&rows(k, &ranges)?, heads)?, by_head(&rows(v, &ranges)?, heads)?);
        let p = probabilities(&scaled, &k, &sight.mask)?;
        let dp = dout.matmul(&v.transpose(1, 2)?)?;
        // Σ p · dp of a row is the product of its result with that result's gradient (Dao et al. 2022, appendix B).
        let along = (&out * &dout)?.sum_keepdim(D::Minus1)?;
        let dscores = (&p * dp.broadcast_sub(&along)?)?;
        let dquery = (dscores.matmul(&k)? * scale(heads))?;
        dq.push(by_token(&dquery, sight.rows.len(), heads)?);
        let count = ranges.iter().map(Range::len).sum();
        for (into, d) in
            [(&dk, dscores.transpose(1, 2)?.matmul(&scaled)?), (&dv, p.transpose(1, 2)?.matmul(&dout)?)]
        {
            let d = by_token(&d, count, heads)?;
            let mut start = 0;
            for range in &ranges {
                let sum = (into.narrow(0, range.start, range.len())? + d.narrow(0, start, range.len())?)?;
                into.slice_set(&sum.contiguous()?, 0, range.start)?;
                start += range.len();
            }
        }
    }
    Ok((Tensor::cat(&dq, 0)?, dk, dv))
}
