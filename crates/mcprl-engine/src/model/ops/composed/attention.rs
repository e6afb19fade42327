//! Attention as masked softmaxes over tiles of scores, merged by their log-sum-exp (Dao et al. 2022). At most
//! one tile of scores exists at once, forward or backward.

use std::ops::Range;

use candle_core::{D, DType, Result, Tensor};

use super::{MaskSpans, Piece, Tile, softmax};
use crate::model::kernels::{Attention, Heads};

/// Lower bound of a row's log-sum-exp, even if it sees no key of a tile. Finite, so that differences are
/// finite.
const NOTHING: f64 = -1e30;
/// Less than any sum of exponentials that are not all 0, since one of them is 1.
const TINY: f64 = 1e-30;

/// Concatenates these ranges of rows.
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

/// The inverse of [`by_head`].
fn by_token(x: &Tensor, tokens: usize, heads: Heads) -> Result<Tensor> {
    let (_, rows, _) = x.dims3()?;
    let group = rows / tokens;
    let x = x.reshape((heads.kv, group, tokens, heads.dim))?.permute((2, 0, 1, 3))?;
    x.contiguous()?.reshape((tokens, heads.kv * group * heads.dim))
}

/// `[kv, group · rows, keys]` from queries and keys by head; −∞ where a row does not see a key. Queries are
/// scaled.
fn scores(q: &Tensor, k: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
    let scores = q.matmul(&k.transpose(1, 2)?)?;
    let Some(mask) = mask else { return Ok(scores) };
    let (rows, keys) = mask.dims2()?;
    let shape = scores.shape().clone();
    scores.reshape(((), rows, keys))?.broadcast_add(mask)?.reshape(shape)
}

/// Attention over some of the keys: the weighted mean of their values, and the log-sum-exp of their scores.
pub struct PartialAttention {
    /// `[.., rows, dim]`
    pub out: Tensor,
    /// `[.., rows, 1]`
    pub lse: Tensor,
}

/// Exponentials of the scores minus a maximum, and the log-sum-exp, which is finite.
fn exps(scores: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
    let most = scores.max_keepdim(D::Minus1)?.maximum(NOTHING)?;
    let exps = scores.broadcast_sub(&most)?.exp()?;
    let sum = exps.sum_keepdim(D::Minus1)?.maximum(TINY)?;
    let lse = (most + sum.log()?)?;
    Ok((exps, sum, lse))
}

impl PartialAttention {
    fn of(scores: &Tensor, v: &Tensor) -> Result<Self> {
        let (exps, sum, lse) = exps(scores)?;
        Ok(Self { out: exps.matmul(v)?.broadcast_div(&sum)?, lse })
    }

    /// Attention over the keys of both.
    pub fn merge(&self, other: &Self) -> Result<Self> {
        let most = self.lse.maximum(&other.lse)?;
        let (own, others) = ((&self.lse - &most)?.exp()?, (&other.lse - &most)?.exp()?);
        let sum = (&own + &others)?;
        let out = (self.out.broadcast_mul(&own)? + other.out.broadcast_mul(&others)?)?;
        Ok(Self { out: out.broadcast_div(&sum)?, lse: (most + sum.log()?)? })
    }
}

/// Rounded to the type of keys and values.
fn rounded(x: &Tensor, dtype: DType) -> Result<Tensor> {
    x.to_dtype(dtype)?.to_dtype(DType::F32)
}

/// `keys` returns keys and values of pieces of spans, concatenated: `[keys, kv · dim]`. Queries, keys and
/// values are rounded to the type of keys and values. Products are in `f32`.
pub fn attend(
    q: &Tensor,
    mask: &[MaskSpans],
    keys: impl Fn(&[Piece]) -> Result<(Tensor, Tensor)>,
    (attention, kv_dtype): (Attention, DType),
) -> Result<Tensor> {
    let (heads, scale) = (attention.heads, f64::from(attention.scale));
    let block = |spans: &MaskSpans| {
        let q = (by_head(&rows(q, std::slice::from_ref(&spans.rows))?, heads)? * scale)?;
        let q = rounded(&q, kv_dtype)?;
        let seen = |tile: &Tile| -> Result<(Tensor, Tensor)> {
            let (k, v) = keys(&tile.pieces)?;
            let (k, v) = (rounded(&k, kv_dtype)?, rounded(&v, kv_dtype)?);
            Ok((scores(&q, &by_head(&k, heads)?, tile.mask.as_ref())?, by_head(&v, heads)?))
        };
        let out = match spans.tiles.as_slice() {
            [tile] => {
                let (scores, v) = seen(tile)?;
                softmax(&scores)?.matmul(&v)?
            }
            tiles => {
                let mut whole: Option<PartialAttention> = None;
                for tile in tiles {
                    let (scores, v) = seen(tile)?;
                    let part = PartialAttention::of(&scores, &v)?;
                    whole = Some(match whole {
                        Some(whole) => whole.merge(&part)?,
                        None => part,
                    });
                }
                whole.map_or_else(|| q.zeros_like(), |whole| Ok(whole.out))?
            }
        };
        by_token(&out, spans.rows.len(), heads)
    };
    Tensor::cat(&mask.iter().map(block).collect::<Result<Vec<_>>>()?, 0)
}

/// Gradients of q, k and v. `keys` returns pieces of spans as ranges of the rows of `k`.
///
/// A rounded value passes its gradient through unchanged. If a block has several tiles, the log-sum-exp of
/// its rows is recomputed: one product in six.
pub fn attend_backward(
    (q, k, v): (&Tensor, &Tensor, &Tensor),
    mask: &[MaskSpans],
    keys: impl Fn(&[Piece]) -> Vec<Range<usize>>,
    (attention, kv_dtype): (Attention, DType),
    out: &Tensor,
    dout: &Tensor,
) -> Result<(Tensor, Tensor, Tensor)> {
    let (heads, scale) = (attention.heads, f64::from(attention.scale));
    let (dk, dv) = (k.zeros_like()?, v.zeros_like()?);
    let (k, v) = (&rounded(k, kv_dtype)?, &rounded(v, kv_dtype)?);
    let mut dq = Vec::with_capacity(mask.len());
    for spans in mask {
        let own = |x: &Tensor| by_head(&rows(x, std::slice::from_ref(&spans.rows))?, heads);
        let scaled = rounded(&(own(q)? * scale)?, kv_dtype)?;
        let (out, dout) = (own(out)?, own(dout)?);
        // Σ p · dp of a row is the dot product of its result with that result's gradient (Dao et al. 2022,
        // appendix B).
        let along = (&out * &dout)?.sum_keepdim(D::Minus1)?;
        let seen = |tile: &Tile| {
            scores(&scaled, &by_head(&rows(k, &keys(&tile.pieces))?, heads)?, tile.mask.as_ref())
        };
        let lse = match spans.tiles.as_slice() {
            [_] => None,
            tiles => Some(log_sum_exp(tiles.iter().map(seen))?),
        };
        let mut dquery = scaled.zeros_like()?;
        for tile in &spans.tiles {
            let ranges = keys(&tile.pieces);
            let (k, v) = (by_head(&rows(k, &ranges)?, heads)?, by_head(&rows(v, &ranges)?, heads)?);
            let scores = scores(&scaled, &k, tile.mask.as_ref())?;
            let p = match &lse {
                Some(lse) => scores.broadcast_sub(lse)?.exp()?,
                None => softmax(&scores)?,
            };
            let dp = dout.matmul(&v.transpose(1, 2)?)?;
            let dscores = (&p * dp.broadcast_sub(&along)?)?;
            dquery = (dquery + dscores.matmul(&k)?)?;
            let count = ranges.iter().map(Range::len).sum();
            add_by_token(&dk, &ranges, &by_token(&dscores.transpose(1, 2)?.matmul(&scaled)?, count, heads)?)?;
            add_by_token(&dv, &ranges, &by_token(&p.transpose(1, 2)?.matmul(&dout)?, count, heads)?)?;
        }
        dq.push(by_token(&(dquery * scale)?, spans.rows.len(), heads)?);
    }
    Ok((Tensor::cat(&dq, 0)?, dk, dv))
}

/// For rows whose scores come in tiles.
fn log_sum_exp(tiles: impl Iterator<Item = Result<Tensor>>) -> Result<Tensor> {
    let mut total: Option<Tensor> = None;
    for scores in tiles {
        let (.., lse) = exps(&scores?)?;
        total = Some(match total {
            None => lse,
            Some(total) => {
                let most = total.maximum(&lse)?;
                let sum = ((&total - &most)?.exp()? + (&lse - &most)?.exp()?)?;
                (most + sum.log()?)?
            }
        });
    }
    total.ok_or_else(|| candle_core::Error::msg("rows that see no key"))
}

/// Adds consecutive rows to these ranges.
fn add_by_token(into: &Tensor, ranges: &[Range<usize>], rows: &Tensor) -> Result<()> {
    let mut start = 0;
    for range in ranges {
        let sum = (into.narrow(0, range.start, range.len())? + rows.narrow(0, start, range.len())?)?;
        into.slice_set(&sum.contiguous()?, 0, range.start)?;
        start += range.len();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::model::{
        TokenTree,
        kernels::Format,
        ops::{
            KvFormat, TreeLayout,
            composed::{TileSize, force},
            read,
        },
    };

    const HEADS: Heads = Heads { query: 4, kv: 2, dim: 8 };

    fn tensor(rows: usize, heads: usize, seed: usize) -> Tensor {
        let values =
            (0..rows * heads * HEADS.dim).map(|i| ((i * i % 1009 + seed * 31) as f32 * 0.73).sin() * 2.0);
        Tensor::from_vec(values.collect::<Vec<_>>(), (rows, heads * HEADS.dim), &Device::Cpu).unwrap()
    }

    /// Sequences that branch after 30, 45 and 50 tokens.
    fn tree() -> TokenTree {
        let tokens =
            |count: u32, seed: u32| (0..count).map(|i| i * i % 83 + 100 * seed).collect::<Vec<u32>>();
        let (stem, left) = (tokens(30, 0), tokens(15, 1));
        let paths = [
            [&stem[..], &left, &tokens(40, 2)].concat(),
            [&stem[..], &left, &tokens(5, 3), &tokens(20, 4)].concat(),
            [&stem[..], &left, &tokens(5, 3), &tokens(9, 5)].concat(),
            [&stem[..], &tokens(33, 6)].concat(),
        ];
        TokenTree::new(&paths)
    }

    /// Attention over the tree and its gradients.
    fn over_tree(tile: TileSize, format: Format, window: Option<usize>) -> [Vec<f32>; 4] {
        let tree = tree();
        let attention = Attention { window, ..Attention::from(HEADS) };
        let kv_format = KvFormat { heads: HEADS, format, by_kernels: true };
        let layout = TreeLayout { tile, ..TreeLayout::new(&tree, kv_format) };
        let rows = tree.tokens.len();
        let [q, k, v, dout] = [(4, 1), (2, 2), (2, 3), (4, 4)].map(|(heads, seed)| tensor(rows, heads, seed));
        let out = layout.attend((&q, &k, &v), attention).unwrap().out;
        let (dq, dk, dv) = layout.attend_backward((&q, &k, &v), (&out, None), &dout, attention).unwrap();
        [out, dq, dk, dv].map(|tensor| read(&tensor).unwrap())
    }

    #[test]
    fn tiled_attention_equals_that_of_the_kernels_forward_and_backward() {
        // In bf16 the kernels also round probabilities and the inputs of the gradients.
        let formats = [(Format::F32, 1e-5), (Format::Bf16, 1e-2)];
        let windows = [None, Some(2), Some(17), Some(40)];
        for ((format, bound), window) in formats.iter().flat_map(|of| windows.map(|window| (*of, window))) {
            let expected = over_tree(TileSize::TREE, format, window);
            let _forced = force();
            for (rows, keys) in [(512, 4096), (16, 16), (7, 5), (64, 1), (1, 3)] {
                let found = over_tree(TileSize { rows, keys }, format, window);
                let of = ["out", "dq", "dk", "dv"].iter().zip(expected.iter().zip(&found));
                for (of, (expected, found)) in of {
                    let most = expected.iter().fold(0.0f32, |most, value| most.max(value.abs()));
                    let off = expected.iter().zip(found).fold(0.0f32, |off, (a, b)| off.max((a - b).abs()));
                    let tiles =
                        format!("{format:?} in tiles of {rows} rows and {keys} keys, window {window:?}");
                    assert!(off < bound * most, "{of}, {tiles}: {off} of {most}");
                }
            }
        }
    }
}
