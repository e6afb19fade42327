//! The attention masks of a step or a tree, in tiles of bounded size, and the caches for them.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};

use crate::model::{kernels::Attention, ops::SeenKeys};

/// Initial rows of a cache. It doubles when it is full.
const FIRST_ROWS: usize = 32;

/// A tensor that grows by rows.
#[derive(Debug)]
pub struct Rows {
    /// `[capacity, width]`
    tensor: Option<Tensor>,
    /// Where its values are on a CUDA device.
    #[cfg(feature = "cuda")]
    address: u64,
    dtype: DType,
    len: usize,
}

impl Rows {
    /// Added rows are rounded to this type.
    pub fn new(dtype: DType) -> Self {
        Self {
            tensor: None,
            #[cfg(feature = "cuda")]
            address: 0,
            dtype,
            len: 0,
        }
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub fn count(&self) -> usize {
        self.len
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.tensor.as_ref().map_or(0, |rows| rows.elem_count() * rows.dtype().size_in_bytes())
    }

    /// The value of [`Self::bytes`] with this many rows of this width.
    pub fn bytes_for(width: usize, rows: usize, dtype: DType) -> usize {
        match rows {
            0 => 0,
            rows => rows.next_power_of_two().max(FIRST_ROWS) * width * dtype.size_in_bytes(),
        }
    }

    /// Appends `[rows, width]`.
    pub fn extend(&mut self, rows: &Tensor) -> Result<()> {
        let (count, _) = rows.dims2()?;
        self.grow(rows, count)?;
        if let Some(tensor) = &self.tensor {
            tensor.slice_set(&rows.to_dtype(self.dtype)?.contiguous()?, 0, self.len - count)?;
        }
        Ok(())
    }

    /// Moves the rows from `at` on into a tensor of their own.
    pub fn split(&mut self, at: usize) -> Result<Self> {
        let mut own = Self::new(self.dtype);
        if let Some(tensor) = self.tensor.clone() {
            let (_, width) = tensor.dims2()?;
            own.extend(&tensor.narrow(0, at, self.len - at)?)?;
            self.len = at;
            self.tensor = Some(self.larger((at.next_power_of_two().max(FIRST_ROWS), width), &tensor)?);
        }
        Ok(own)
    }

    /// Appends this many rows, to be written later, as wide as those of `like`.
    pub fn grow(&mut self, like: &Tensor, count: usize) -> Result<()> {
        let (_, width) = like.dims2()?;
        let needed = self.len + count;
        if self.tensor.as_ref().is_none_or(|tensor| tensor.dims()[0] < needed) {
            let capacity = needed.next_power_of_two().max(FIRST_ROWS);
            self.tensor = Some(self.larger((capacity, width), like)?);
        }
        self.len = needed;
        Ok(())
    }

    /// A copy with room for more rows, on the device of `like`.
    fn larger(&mut self, shape: (usize, usize), like: &Tensor) -> Result<Tensor> {
        let old = self.tensor.as_ref().map(|tensor| tensor.narrow(0, 0, self.len)).transpose()?;
        #[cfg(feature = "cuda")]
        if super::cuda::takes(like) {
            let larger = super::cuda::enlarged(old.as_ref(), shape, self.dtype, like)?;
            self.address = super::cuda::weight_address(&larger)?;
            return Ok(larger);
        }
        let larger = Tensor::zeros(shape, self.dtype, like.device())?;
        if let Some(old) = old {
            larger.slice_set(&old.contiguous()?, 0, 0)?;
        }
        Ok(larger)
    }

    /// Where its values are on a CUDA device; until it grows.
    #[cfg(feature = "cuda")]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// These of its rows.
    pub fn range(&self, range: &Range<usize>) -> Result<Tensor> {
        match &self.tensor {
            Some(tensor) => tensor.narrow(0, range.start, range.len()),
            None => candle_core::bail!("rows {range:?} of an empty cache"),
        }
    }
}

/// Most rows, and most keys, whose scores are computed at once.
#[derive(Debug, Clone, Copy)]
pub struct TileSize {
    pub rows: usize,
    pub keys: usize,
}

impl TileSize {
    /// In training, where neighbours share most of their keys: 64 million scores with 32 heads.
    pub const TREE: Self = Self { rows: 512, keys: 4096 };
    /// In sampling, where each conversation has its own keys.
    pub const STEP: Self = Self { rows: 64, keys: 32768 };
}

/// Keys of a span: its index and a range of its keys.
pub type Piece = (usize, Range<usize>);

/// Keys that a block of rows sees, partly or fully.
#[derive(Debug)]
pub struct Tile {
    pub pieces: Vec<Piece>,
    /// `[rows, keys]`: 0 where the row sees the key, −∞ elsewhere; none if every row sees all keys.
    pub mask: Option<Tensor>,
}

/// The keys that a block of rows sees.
#[derive(Debug)]
pub struct MaskSpans {
    pub rows: Range<usize>,
    pub tiles: Vec<Tile>,
}

/// A block of rows, and which keys of a span each row sees.
struct Block<'a> {
    rows: Range<usize>,
    positions: &'a [u32],
    spans: &'a [SeenKeys],
    attention: Attention,
}

/// The keys of a span that a block's rows see.
struct Found {
    span: usize,
    /// Those that every row sees.
    common: Range<usize>,
    /// From the first to the last that any row sees.
    all: Range<usize>,
}

impl Block<'_> {
    fn within(&self, span: usize) -> Range<usize> {
        let of = &self.spans[span].0;
        of.start.max(self.rows.start)..of.end.min(self.rows.end)
    }

    fn seen(&self, row: usize, span: usize) -> Range<usize> {
        let (_, first, keys) = self.spans[span];
        let position = self.positions[row];
        let end = (position as usize + 1).saturating_sub(first).min(keys);
        self.attention.first_seen(position).saturating_sub(first).min(end)..end
    }

    /// For each span that any row sees.
    fn found(&self) -> Vec<Found> {
        let of = |span: usize| {
            let seen = || self.within(span).map(|row| self.seen(row, span)).filter(|seen| !seen.is_empty());
            let all = seen().map(|seen| seen.start).min()?..seen().map(|seen| seen.end).max()?;
            let every_row = seen().count() == self.rows.len();
            let common = seen().map(|seen| seen.start).max()?..seen().map(|seen| seen.end).min()?;
            let common = if every_row && !common.is_empty() { common } else { all.start..all.start };
            Some(Found { span, common, all })
        };
        (0..self.spans.len()).filter_map(of).collect()
    }

    fn tile(&self, pieces: Vec<Piece>, device: &Device) -> Result<Tile> {
        let width: usize = pieces.iter().map(|(_, keys)| keys.len()).sum();
        let mut mask = vec![f32::NEG_INFINITY; self.rows.len() * width];
        let mut column = 0;
        for (span, keys) in &pieces {
            for row in self.within(*span) {
                let seen = self.seen(row, *span);
                let seen = seen.start.max(keys.start)..seen.end.min(keys.end);
                if !seen.is_empty() {
                    let at = (row - self.rows.start) * width + column + seen.start - keys.start;
                    mask[at..at + seen.len()].fill(0.0);
                }
            }
            column += keys.len();
        }
        let masked = mask.iter().any(|value| *value != 0.0);
        let tensor = || Tensor::from_vec(mask, (self.rows.len(), width), device);
        Ok(Tile { pieces, mask: masked.then(tensor).transpose()? })
    }
}

/// The blocks of these rows. If all keys that a block sees fit a tile, they form one tile. Otherwise the keys
/// that every row sees are separate, and only the rest has a mask. So masks never reach the size of a score
/// matrix.
pub fn mask(
    positions: &[u32],
    spans: &[SeenKeys],
    attention: Attention,
    size: TileSize,
    device: &Device,
) -> Result<Vec<MaskSpans>> {
    let mut mask = Vec::new();
    for start in (0..positions.len()).step_by(size.rows) {
        let rows = start..(start + size.rows).min(positions.len());
        let block = Block { rows: rows.clone(), positions, spans, attention };
        let found = block.found();
        let width: usize = found.iter().map(|found| found.all.len()).sum();
        let parts = if width <= size.keys {
            vec![found.into_iter().map(|found| (found.span, found.all)).collect()]
        } else {
            let whole: Vec<Piece> = found.iter().map(|found| (found.span, found.common.clone())).collect();
            let around = |Found { span, common, all }: &Found| {
                [(*span, all.start..common.start), (*span, common.end..all.end)]
            };
            let rest: Vec<Piece> = found.iter().flat_map(around).collect();
            [cut(whole, size.keys), cut(rest, size.keys)].concat()
        };
        let tiles = parts.into_iter().map(|pieces| block.tile(pieces, device)).collect::<Result<_>>()?;
        mask.push(MaskSpans { rows, tiles });
    }
    Ok(mask)
}

/// Groups pieces by at most this many keys. Omits empty ones.
fn cut(pieces: Vec<Piece>, most: usize) -> Vec<Vec<Piece>> {
    let mut groups: Vec<Vec<Piece>> = Vec::new();
    let mut room = 0;
    for (span, mut keys) in pieces {
        while !keys.is_empty() {
            if room == 0 {
                groups.push(Vec::new());
                room = most;
            }
            let taken = keys.start..keys.end.min(keys.start + room);
            (room, keys.start) = (room - taken.len(), taken.end);
            if let Some(group) = groups.last_mut() {
                group.push((span, taken));
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::kernels::Heads;

    #[test]
    fn keys_that_every_row_sees_have_no_mask_and_tiles_have_at_most_the_given_width() {
        // 40 rows in a line: blocks of 8 rows, tiles of 10 keys.
        let positions: Vec<u32> = (0..40).collect();
        let size = TileSize { rows: 8, keys: 10 };
        let attention = Attention::from(Heads { query: 1, kv: 1, dim: 8 });
        let mask = |attention| mask(&positions, &[(0..40, 0, 40)], attention, size, &Device::Cpu).unwrap();
        let whole = mask(attention);
        let shape = |spans: &MaskSpans| -> Vec<(Range<usize>, bool)> {
            spans.tiles.iter().map(|tile| (tile.pieces[0].1.clone(), tile.mask.is_some())).collect()
        };
        assert_eq!(shape(&whole[0]), [(0..8, true)]);
        assert_eq!(shape(&whole[1]), [(0..9, false), (9..16, true)]);
        assert_eq!(
            shape(&whole[4]),
            [(0..10, false), (10..20, false), (20..30, false), (30..33, false), (33..40, true)]
        );
        // Rows 32 to 39: all see keys 24 to 32, or they see none in common.
        let windowed = mask(Attention { window: Some(16), ..attention });
        assert_eq!(
            shape(&windowed[4]),
            [(24..33, false), (17..24, true), (36..40, true)],
            "keys before and after those of every row are joined"
        );
        assert_eq!(windowed[4].tiles[1].pieces, [(0, 17..24), (0, 33..36)]);
        let narrow = mask(Attention { window: Some(3), ..attention });
        assert_eq!(shape(&narrow[4]), [(30..40, true)]);
    }

    #[test]
    fn pieces_are_cut_and_joined_to_groups_of_keys() {
        let groups = cut(vec![(0, 0..3), (1, 2..2), (2, 5..12)], 4);
        assert_eq!(groups, [vec![(0, 0..3), (2, 5..6)], vec![(2, 6..10)], vec![(2, 10..12)]]);
    }
}
