//! Causal attention over cached segments, as in sampling; masks, also of the trees of [`TreeLayout`](super::TreeLayout).

use std::{cell::OnceCell, ops::Range};

use candle_core::{DType, Result, Tensor};

#[cfg(feature = "cuda")]
use super::cuda;
use super::{
    ComposedState, SeenKeys, by_kernels,
    composed::{self, Level, MaskSpans, Piece, Rows, TileSize, flash},
    filled, values,
};
use crate::model::kernels::{self, Attention, DeltaState, Format, Heads, KeyValues, Span};

/// Keys and values of one segment in one layer, or the state of its recurrence. New rows are appended.
#[derive(Debug)]
pub enum Cache {
    Kernels(KeyValues),
    /// Keys and values, on a device.
    Composed([Rows; 2]),
    /// In a layer with linear attention: the state after its last token, or none before the first.
    Delta(Option<DeltaState>),
    /// The same where no kernels compute.
    ComposedDelta(Option<ComposedState>),
    /// In a layer with a convolution: the last rows before the next token, and the number of tokens.
    Convolution(Option<(Tensor, usize)>),
}

/// How a decoder stores keys and values.
#[derive(Debug, Clone, Copy)]
pub struct KvFormat {
    pub heads: Heads,
    /// The format of its linear layers' products. Keys and values are rounded to it, in sampling and in
    /// training.
    pub format: Format,
    pub by_kernels: bool,
}

impl KvFormat {
    /// The type of keys and values on a device, to which queries are rounded too.
    pub fn dtype(self) -> DType {
        match self.format {
            Format::F32 => DType::F32,
            Format::F16 => DType::F16,
            Format::Bf16 | Format::Nf4 => DType::BF16,
        }
    }

    pub fn empty(self) -> Cache {
        match self.by_kernels {
            true => Cache::Kernels(KeyValues::new(self.heads, self.format)),
            false => Cache::Composed([Rows::new(self.dtype()), Rows::new(self.dtype())]),
        }
    }

    /// The value of [`Cache::bytes`] with this many tokens.
    pub fn bytes_for(self, tokens: usize) -> usize {
        let width = self.heads.kv * self.heads.dim;
        match self.by_kernels {
            true => KeyValues::bytes_for(self.heads, self.format, tokens),
            false => 2 * Rows::bytes_for(width, tokens, self.dtype()),
        }
    }
}

impl Cache {
    pub fn tokens(&self) -> usize {
        match self {
            Self::Kernels(kv) => kv.tokens(),
            Self::Composed([keys, _]) => keys.count(),
            Self::Delta(state) => state.as_ref().map_or(0, DeltaState::tokens),
            Self::ComposedDelta(state) => state.as_ref().map_or(0, |state| state.tokens),
            Self::Convolution(state) => state.as_ref().map_or(0, |(_, tokens)| *tokens),
        }
    }

    /// Where its keys (0) or values (1) are on a CUDA device.
    #[cfg(feature = "cuda")]
    fn address(&self, which: usize) -> u64 {
        match self {
            Self::Composed(rows) => rows[which].address(),
            Self::Kernels(_) | Self::Delta(_) | Self::ComposedDelta(_) | Self::Convolution(_) => 0,
        }
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Kernels(kv) => kv.bytes(),
            Self::Composed(rows) => rows.iter().map(Rows::bytes).sum(),
            Self::Delta(state) => state.as_ref().map_or(0, DeltaState::bytes),
            Self::ComposedDelta(state) => state.as_ref().map_or(0, ComposedState::bytes),
            Self::Convolution(state) => {
                state.as_ref().map_or(0, |(rows, _)| rows.elem_count() * size_of::<f32>())
            }
        }
    }

    /// Moves the tokens from `at` on, of which some are in it, into a cache of their own, with room for `expected` of them.
    ///
    /// # Errors
    /// A recurrence has no state but the last.
    pub fn split(&mut self, at: usize, expected: usize) -> Result<Self> {
        match self {
            Self::Kernels(kv) => Ok(Self::Kernels(kv.split(at, expected))),
            Self::Composed([keys, values]) => Ok(Self::Composed([keys.split(at)?, values.split(at)?])),
            Self::Delta(_) | Self::ComposedDelta(_) | Self::Convolution(_) => {
                candle_core::bail!("the state of an earlier token")
            }
        }
    }

    /// Appends these rows of `k` and `v`, both `[tokens, kv heads · dim]`. The final number of tokens is
    /// `expected` or more.
    ///
    /// Where [`attend`] runs a CUDA kernel, this only makes room, and `attend` writes the rows of all segments.
    pub fn extend(
        &mut self,
        (k, v): (&Tensor, &Tensor),
        rows: Range<usize>,
        expected: usize,
        attention: Attention,
    ) -> Result<()> {
        match self {
            Self::Kernels(kv) => {
                let (_, width) = k.dims2()?;
                let flat = rows.start * width..rows.end * width;
                kv.extend(&values(k)?[flat.clone()], &values(v)?[flat], expected);
                Ok(())
            }
            Self::Composed([keys, values]) => {
                if fused(k, attention, keys.dtype()) {
                    keys.grow(k, rows.len())?;
                    return values.grow(v, rows.len());
                }
                keys.extend(&k.narrow(0, rows.start, rows.len())?)?;
                values.extend(&v.narrow(0, rows.start, rows.len())?)
            }
            Self::Delta(_) | Self::ComposedDelta(_) | Self::Convolution(_) => {
                candle_core::bail!("keys for a layer without attention")
            }
        }
    }
}

/// Whether the kernels for CUDA compute attention over keys of this type. They have no window.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "there are no such kernels"))]
pub(super) fn fused(x: &Tensor, attention: Attention, dtype: DType) -> bool {
    #[cfg(feature = "cuda")]
    return attention.window.is_none() && cuda::takes_attention(x, attention.heads, dtype);
    #[cfg(not(feature = "cuda"))]
    false
}

/// The result of attention.
pub struct Attended {
    /// `[tokens, heads · dim]`
    pub out: Tensor,
    /// The log-sum-exp of the scores (`[tokens, heads]`), if the backward needs it.
    pub lse: Option<Tensor>,
}

impl From<Tensor> for Attended {
    fn from(out: Tensor) -> Self {
        Self { out, lse: None }
    }
}

/// A cached segment and the rows that attend to it.
pub struct CachedSegment<'a> {
    pub rows: Range<usize>,
    /// Position of the segment's first key.
    pub first: usize,
    pub cache: &'a Cache,
}

/// The attention masks of one step or tree: computed in the first layer of a kind and reused in every other. The layers of
/// a decoder that have a window have the same.
#[derive(Default)]
pub struct AttentionMask {
    tiles: OnceCell<Vec<MaskSpans>>,
    /// With the window.
    window_tiles: OnceCell<Vec<MaskSpans>>,
    levels: OnceCell<Option<Vec<Level>>>,
    #[cfg(feature = "cuda")]
    step: OnceCell<cuda::StepPlan>,
    #[cfg(feature = "cuda")]
    pub(super) tree: OnceCell<cuda::TreePlan>,
    /// The type for flash attention: the 16-bit type of the decoder's weights.
    half: Option<DType>,
}

impl AttentionMask {
    pub fn new(kv_format: KvFormat) -> Self {
        let half = (!kv_format.by_kernels).then(|| kv_format.dtype()).filter(|dtype| *dtype != DType::F32);
        Self { half, ..Self::default() }
    }

    pub(super) fn tiles(
        &self,
        attention: Attention,
        find: impl FnOnce() -> Result<Vec<MaskSpans>>,
    ) -> Result<&[MaskSpans]> {
        let tiles = if attention.window.is_some() { &self.window_tiles } else { &self.tiles };
        if let Some(found) = tiles.get() {
            return Ok(found);
        }
        let found = find()?;
        Ok(tiles.get_or_init(|| found))
    }

    /// For flash attention, if it supports this attention and the spans are a tree over the rows. Its runs have no window.
    pub(super) fn levels(
        &self,
        q: &Tensor,
        attention: Attention,
        find: impl FnOnce() -> Option<Vec<Level>>,
    ) -> Option<(&[Level], DType)> {
        let is_whole = attention.window.is_none();
        let half = self.half.filter(|_| is_whole && flash::takes(q.device(), attention.heads.dim))?;
        Some((self.levels.get_or_init(find).as_deref()?, half))
    }
}

/// The value of a cell, which is found once.
pub fn once<T>(cell: &OnceCell<T>, find: impl FnOnce() -> Result<T>) -> Result<&T> {
    if let Some(found) = cell.get() {
        return Ok(found);
    }
    let found = find()?;
    Ok(cell.get_or_init(|| found))
}

/// Causal attention of rows over the cached segments of their paths, parents first; see [`kernels::attend`]. The rows' own
/// keys and values were given to [`Cache::extend`].
#[cfg_attr(
    not(feature = "cuda"),
    expect(unused_variables, reason = "only the kernels for CUDA need them again")
)]
pub fn attend(
    (q, k, v): (&Tensor, &Tensor, &Tensor),
    positions: &[u32],
    past: &[CachedSegment<'_>],
    attention: Attention,
    mask: &AttentionMask,
) -> Result<Tensor> {
    if by_kernels(q) {
        let mut spans = Vec::with_capacity(past.len());
        for CachedSegment { rows, first, cache } in past {
            if let Cache::Kernels(kv) = cache {
                spans.push(Span { rows: rows.clone(), first: *first, kv });
            }
        }
        return attend_spans(q, positions, &spans, attention);
    }
    let spans = || -> Vec<SeenKeys> {
        past.iter().map(|past| (past.rows.clone(), past.first, past.cache.tokens())).collect()
    };
    let dtype = past.iter().find_map(|past| match past.cache {
        Cache::Composed([keys, _]) => Some(keys.dtype()),
        _ => None,
    });
    let dtype = dtype.unwrap_or(DType::F32);
    #[cfg(feature = "cuda")]
    if fused(q, attention, dtype) {
        let plan = once(&mask.step, || cuda::StepPlan::new(positions, &spans(), (attention, dtype), q))?;
        let of = |which: usize| past.iter().map(move |past| past.cache.address(which) as i64);
        return plan.attend((q, k, v), of(0).chain(of(1)).collect());
    }
    let keys = |pieces: &[Piece], which: usize| {
        let of = |(index, keys): &Piece| match past[*index].cache {
            Cache::Composed(rows) => rows[which].range(keys),
            _ => {
                candle_core::bail!("keys of the kernels for a tensor on {:?}", q.device())
            }
        };
        Tensor::cat(&pieces.iter().map(of).collect::<Result<Vec<_>>>()?, 0)
    };
    if let Some((levels, half)) = mask.levels(q, attention, || composed::levels(positions, &spans())) {
        let whole = |span: usize| {
            let all = [(span, 0..past[span].cache.tokens())];
            Ok((keys(&all, 0)?, keys(&all, 1)?))
        };
        return composed::attend_runs(q, levels, whole, (attention, half), &flash::attend);
    }
    let find = || composed::mask(positions, &spans(), attention, TileSize::STEP, q.device());
    let mask = mask.tiles(attention, find)?;
    composed::attend(q, mask, |pieces| Ok((keys(pieces, 0)?, keys(pieces, 1)?)), (attention, dtype))
}

pub(super) fn attend_spans(
    q: &Tensor,
    positions: &[u32],
    spans: &[Span<'_>],
    attention: Attention,
) -> Result<Tensor> {
    let (rows, columns) = q.dims2()?;
    let q = values(q)?;
    filled(rows, columns, |out| kernels::attend(&q, positions, spans, attention, out))
}
