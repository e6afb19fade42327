//! Causal attention over the segments of a tree: cached segments in sampling, rows of the same batch in
//! training.

use std::{cell::OnceCell, ops::Range};

use candle_core::{DType, Device, Result, Tensor};

#[cfg(feature = "cuda")]
use super::cuda;
use super::{
    ComposedState, Shifts, by_kernels,
    composed::{self, DeltaPlan, Level, MaskSpans, Piece, Rows, Seen, TileSize, flash},
    filled, values,
};
use crate::model::{
    Positions,
    kernels::{self, Attention, DeltaSegment, DeltaState, Format, Heads, KeyValues, Span},
    tree::{Segment, TokenTree},
};

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
fn fused(x: &Tensor, attention: Attention, dtype: DType) -> bool {
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
    tree: OnceCell<cuda::TreePlan>,
    /// The type for flash attention: the 16-bit type of the decoder's weights.
    half: Option<DType>,
}

impl AttentionMask {
    pub fn new(kv_format: KvFormat) -> Self {
        let half = (!kv_format.by_kernels).then(|| kv_format.dtype()).filter(|dtype| *dtype != DType::F32);
        Self { half, ..Self::default() }
    }

    fn tiles(
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
    fn levels(
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
    let spans = || -> Vec<Seen> {
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

fn attend_spans(q: &Tensor, positions: &[u32], spans: &[Span<'_>], attention: Attention) -> Result<Tensor> {
    let (rows, columns) = q.dims2()?;
    let q = values(q)?;
    filled(rows, columns, |out| kernels::attend(&q, positions, spans, attention, out))
}

/// A tree whose keys and values are rows of the same batch, as in training.
pub struct TreeLayout<'a> {
    pub tree: &'a TokenTree,
    pub positions: Positions<'a>,
    pub kv_format: KvFormat,
    /// For attention without a kernel.
    pub tile: TileSize,
    pub mask: AttentionMask,
    /// For linear attention.
    pub(super) delta_segments: OnceCell<Vec<DeltaSegment>>,
    pub(super) delta_plan: OnceCell<DeltaPlan>,
    /// For convolutions, which have one window in all layers.
    pub(super) shifts: OnceCell<Shifts>,
}

impl<'a> TreeLayout<'a> {
    pub fn new(tree: &'a TokenTree, kv_format: KvFormat) -> Self {
        let positions = Positions::new(&tree.positions);
        Self {
            tree,
            positions,
            kv_format,
            tile: TileSize::TREE,
            mask: AttentionMask::new(kv_format),
            delta_segments: OnceCell::new(),
            delta_plan: OnceCell::new(),
            shifts: OnceCell::new(),
        }
    }

    fn spans_seen(&self) -> Vec<Seen> {
        let seen = |segment: &Segment| (segment.subtree.clone(), segment.first, segment.rows.len());
        self.tree.segments.iter().map(seen).collect()
    }

    fn tiles(&self, attention: Attention, device: &Device) -> Result<&[MaskSpans]> {
        let (positions, spans) = (&self.tree.positions, || self.spans_seen());
        self.mask.tiles(attention, || composed::mask(positions, &spans(), attention, self.tile, device))
    }

    /// Pieces of segments as ranges of the batch's rows. Neighbours are merged.
    fn keys(&self, pieces: &[Piece]) -> Vec<Range<usize>> {
        let mut ranges: Vec<Range<usize>> = Vec::with_capacity(pieces.len());
        for (index, keys) in pieces {
            let start = self.tree.segments[*index].rows.start + keys.start;
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end += keys.len(),
                _ => ranges.push(start..start + keys.len()),
            }
        }
        ranges
    }

    fn key_values(&self, k: &[f32], v: &[f32]) -> Vec<KeyValues> {
        let KvFormat { heads, format, .. } = self.kv_format;
        let step = heads.kv * heads.dim;
        let of_segment = |segment: &Segment| {
            let own = segment.rows.start * step..segment.rows.end * step;
            let mut kv = KeyValues::new(heads, format);
            kv.extend(&k[own.clone()], &v[own], 0);
            kv
        };
        self.tree.segments.iter().map(of_segment).collect()
    }

    fn spans<'k>(&self, kv: &'k [KeyValues]) -> Vec<Span<'k>> {
        let segments = self.tree.segments.iter().zip(kv);
        segments.map(|(of, kv)| Span { rows: of.subtree.clone(), first: of.first, kv }).collect()
    }

    #[cfg(feature = "cuda")]
    fn plan(&self, attention: Attention, like: &Tensor) -> Result<&cuda::TreePlan> {
        once(&self.mask.tree, || {
            let starts: Vec<usize> = self.tree.segments.iter().map(|segment| segment.rows.start).collect();
            let layout = (attention, self.kv_format.dtype());
            cuda::TreePlan::new(&self.tree.positions, &self.spans_seen(), &starts, layout, like)
        })
    }

    pub fn attend(&self, (q, k, v): (&Tensor, &Tensor, &Tensor), attention: Attention) -> Result<Attended> {
        if !by_kernels(q) {
            #[cfg(feature = "cuda")]
            // In f16, the gradients of attention are too small.
            if fused(q, attention, self.kv_format.dtype()) && self.kv_format.dtype() == DType::BF16 {
                let (out, lse) = self.plan(attention, q)?.attend(q, k, v)?;
                return Ok(Attended { out, lse: Some(lse) });
            }
            let find = || composed::levels(&self.tree.positions, &self.spans_seen());
            if let Some((levels, half)) = self.mask.levels(q, attention, find) {
                let own = |x: &Tensor, span: usize| {
                    let rows = &self.tree.segments[span].rows;
                    x.narrow(0, rows.start, rows.len())
                };
                let keys = |span| Ok((own(k, span)?, own(v, span)?));
                return Ok(composed::attend_runs(q, levels, keys, (attention, half), &flash::attend)?.into());
            }
            let keys = |pieces: &[Piece]| {
                let ranges = self.keys(pieces);
                Ok((composed::rows(k, &ranges)?, composed::rows(v, &ranges)?))
            };
            let layout = (attention, self.kv_format.dtype());
            return Ok(composed::attend(q, self.tiles(attention, q.device())?, keys, layout)?.into());
        }
        let kv = self.key_values(&values(k)?, &values(v)?);
        Ok(attend_spans(q, &self.tree.positions, &self.spans(&kv), attention)?.into())
    }

    /// Gradients of q, k and v. `out` and `lse` are those of [`Attended`]. A rounded value passes its gradient through
    /// unchanged.
    #[cfg_attr(
        not(feature = "cuda"),
        expect(unused_variables, reason = "only the kernels for CUDA need `lse`")
    )]
    pub fn attend_backward(
        &self,
        (q, k, v): (&Tensor, &Tensor, &Tensor),
        (out, lse): (&Tensor, Option<&Tensor>),
        dout: &Tensor,
        attention: Attention,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        if !by_kernels(q) {
            #[cfg(feature = "cuda")]
            if let Some(lse) = lse {
                return self.plan(attention, q)?.attend_backward((q, k, v), (out, lse), dout);
            }
            let mask = self.tiles(attention, q.device())?;
            return composed::attend_backward(
                (q, k, v),
                mask,
                |pieces| self.keys(pieces),
                (attention, self.kv_format.dtype()),
                out,
                dout,
            );
        }
        let ((rows, q_width), (_, kv_width)) = (q.dims2()?, k.dims2()?);
        let (q, k, v, out, dout) = (values(q)?, values(k)?, values(v)?, values(out)?, values(dout)?);
        let kv = self.key_values(&k, &v);
        let starts: Vec<usize> = self.tree.segments.iter().map(|segment| segment.rows.start).collect();
        let (mut dk, mut dv) = (vec![0.0; rows * kv_width], vec![0.0; rows * kv_width]);
        let dq = filled(rows, q_width, |dq| {
            kernels::attend_backward(
                (&q, &k, &v),
                &self.tree.positions,
                &self.spans(&kv),
                &starts,
                attention,
                &out,
                &dout,
                (dq, &mut dk, &mut dv),
            );
        })?;
        let tensor = |data| Tensor::from_vec(data, (rows, kv_width), &Device::Cpu);
        Ok((dq, tensor(dk)?, tensor(dv)?))
    }
}
