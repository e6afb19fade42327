//! Which rows and keys a block of the attention kernels takes. Lists are flat, as the structs of `cuda/attention.cu`.

use std::ops::Range;

use super::SeenKeys;

/// Packed rows (rows times the query heads of a key-value head) of a warp.
const WARP: usize = 16;
/// Warps of a wide block.
const WARPS: usize = 4;
/// Most keys of an item in sampling, unless they would make more parts of a row than these: of few rows and of many.
const ITEM_KEYS: usize = 256;
const NARROW_PARTS: usize = 128;
const WIDE_PARTS: usize = 16;
/// Keys of a tile: `KEYS` in `attention.cu`.
pub const TILE_KEYS: usize = 64;
/// Rows of a block with a tile of keys, so that several blocks share a common prefix, unless a tile would have more slots
/// than these.
const ENOUGH_ROWS: usize = 2048;
const MOST_SLOTS: usize = 8;
/// Rows of a tile: `TILE` in `attention.cu`.
const TILE_ROWS: usize = 32;

/// Items and their pieces, for blocks of this many warps.
#[derive(Debug, Clone)]
pub struct Items {
    pub warps: usize,
    pub items: Vec<u32>,
    pub pieces: Vec<u32>,
}

/// How many of a span's first keys these rows see at most.
fn most_seen(positions: &[u32], rows: Range<usize>, first: usize, keys: usize) -> usize {
    let last = positions[rows].iter().max().map_or(0, |position| *position as usize + 1);
    last.saturating_sub(first).min(keys)
}

impl Items {
    fn new(warps: usize) -> Self {
        Self { warps, items: Vec::new(), pieces: Vec::new() }
    }

    /// The number of items.
    pub fn count(&self) -> usize {
        self.items.len() / 5
    }

    /// Rows of an item.
    fn rows(&self, group: usize) -> usize {
        (WARP * self.warps / group).max(1)
    }

    /// `keys` are those of `segment`, whose key 0 is at position `first`. `of` are the rows that see it.
    fn piece(&mut self, segment: usize, keys: Range<usize>, first: u32, of: &Range<usize>) {
        let numbers = [segment, keys.start, keys.len()].map(|number| number as u32);
        self.pieces.extend(numbers);
        self.pieces.extend([first, of.start as u32, of.end as u32]);
    }

    fn item(&mut self, rows: Range<usize>, pieces: Range<usize>, slot: usize) {
        self.items
            .extend([rows.start, rows.len(), pieces.start, pieces.len(), slot].map(|number| number as u32));
    }

    fn piece_count(&self) -> usize {
        self.pieces.len() / 6
    }

    /// Every row once, with all keys that it sees. Keys are rows of one matrix; those of a span begin at its `starts`.
    pub fn of_tree(positions: &[u32], spans: &[SeenKeys], starts: &[usize], group: usize) -> Self {
        let mut items = Self::new(WARPS);
        for start in (0..positions.len()).step_by(items.rows(group)) {
            let rows = start..(start + items.rows(group)).min(positions.len());
            let before = items.piece_count();
            for ((of, first, keys), at) in spans.iter().zip(starts) {
                let within = of.start.max(rows.start)..of.end.min(rows.end);
                if within.is_empty() {
                    continue;
                }
                let most = most_seen(positions, within, *first, *keys);
                if most > 0 {
                    let position_of_row_0 = (*first as u32).wrapping_sub(*at as u32);
                    items.piece(0, *at..at + most, position_of_row_0, of);
                }
            }
            items.item(rows.clone(), before..items.piece_count(), rows.start);
        }
        items
    }
}

/// Keys that one block of `key_gradients` takes with some of their rows, most rows first; and the sums over all rows.
pub struct KeyTiles {
    pub tiles: Vec<u32>,
    pub sums: Vec<u32>,
    pub slots: usize,
}

impl KeyTiles {
    pub fn new(spans: &[SeenKeys], starts: &[usize]) -> Self {
        let (mut tiles, mut sums) = (Vec::new(), Vec::new());
        for ((of, first, keys), at) in spans.iter().zip(starts) {
            let most_rows = ENOUGH_ROWS.max(of.len().div_ceil(MOST_SLOTS));
            for key in (0..*keys).step_by(TILE_KEYS) {
                let (from, count) = (tiles.len(), TILE_KEYS.min(keys - key));
                // Rows before this key's own do not see it.
                for start in (of.start + key..of.end).step_by(most_rows) {
                    let end = of.end.min(start + most_rows);
                    tiles.push([at + key, count, first + key, start, end, tiles.len()]);
                }
                sums.extend([at + key, count, from, tiles.len()].map(|number| number as u32));
            }
        }
        let slots = tiles.len();
        tiles.sort_by_key(|[.., start, end, _]| std::cmp::Reverse(end - start));
        Self { tiles: tiles.into_iter().flatten().map(|number| number as u32).collect(), sums, slots }
    }

    /// The number of sums.
    pub fn count(&self) -> usize {
        self.sums.len() / 4
    }

    /// Bytes of shared memory of a block, with heads of this width.
    pub fn shared_bytes(dim: usize) -> u32 {
        let stride = 2 * (dim + 8);
        ((2 * TILE_KEYS + 4 * TILE_ROWS) * stride + 6 * TILE_ROWS * size_of::<f32>()) as u32
    }
}

/// Attention of a sampling step in parts, which are then merged by row. So many blocks share a long context.
#[derive(Debug)]
pub struct Parts {
    /// Items of one warp, and of several.
    pub narrow: Items,
    pub wide: Items,
    /// Slots of row `i`: `parts[starts[i]..starts[i + 1]]`.
    pub starts: Vec<u32>,
    pub parts: Vec<u32>,
    pub slots: usize,
}

impl Parts {
    pub fn new(positions: &[u32], spans: &[SeenKeys], group: usize) -> Self {
        let (mut narrow, mut wide) = (Items::new(1), Items::new(WARPS));
        let mut of_rows = vec![Vec::new(); positions.len()];
        let mut slots = 0;
        for (segment, (of, first, keys)) in spans.iter().enumerate() {
            let (items, most_parts) = match of.len() * group > WARP {
                true => (&mut wide, WIDE_PARTS),
                false => (&mut narrow, NARROW_PARTS),
            };
            let most_keys = keys.div_ceil(most_parts).max(ITEM_KEYS);
            let step = items.rows(group);
            for start in of.clone().step_by(step) {
                let rows = start..(start + step).min(of.end);
                let seen = most_seen(positions, rows.clone(), *first, *keys);
                for key in (0..seen).step_by(most_keys) {
                    let before = items.piece_count();
                    items.piece(segment, key..seen.min(key + most_keys), *first as u32, of);
                    items.item(rows.clone(), before..before + 1, slots);
                    for row in rows.clone() {
                        of_rows[row].push(slots as u32);
                        slots += 1;
                    }
                }
            }
        }
        let mut starts = vec![0];
        starts.extend(of_rows.iter().scan(0, |sum, slots| {
            *sum += slots.len() as u32;
            Some(*sum)
        }));
        Self { narrow, wide, starts, parts: of_rows.concat(), slots }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stem with two branches, the first of which branches again.
    fn tree() -> (Vec<u32>, Vec<SeenKeys>, Vec<usize>) {
        let segments = [
            (0..70, 150, 0),
            (70..95, 130, 70),
            (95..110, 110, 95),
            (110..130, 130, 95),
            (130..150, 150, 70),
        ];
        let mut positions = vec![0; 150];
        for (rows, _, first) in &segments {
            rows.clone().for_each(|row| positions[row] = (first + row - rows.start) as u32);
        }
        let spans =
            segments.iter().map(|(rows, end, first)| (rows.start..*end, *first, rows.len())).collect();
        (positions, spans, segments.iter().map(|(rows, ..)| rows.start).collect())
    }

    /// For each row, the positions of the keys that it sees, by the rules of the kernels.
    fn seen(items: &Items, positions: &[u32], into: &mut [Vec<(u32, u32)>], slots: &mut [Option<u32>]) {
        for item in items.items.chunks(5) {
            let [row, rows, piece, pieces, slot] = *item else { unreachable!() };
            for row in row..row + rows {
                slots[(slot + row - item[0]) as usize] = Some(row);
                for piece in items.pieces.chunks(6).skip(piece as usize).take(pieces as usize) {
                    let [segment, key, keys, first, from, to] = *piece else { unreachable!() };
                    if row < from || row >= to {
                        continue;
                    }
                    let end = (positions[row as usize] + 1).wrapping_sub(first).min(key + keys);
                    into[row as usize].extend((key..end).map(|key| (segment, key.wrapping_add(first))));
                }
            }
        }
    }

    #[test]
    fn each_row_of_a_tree_sees_the_positions_up_to_its_own_once() {
        let (positions, spans, starts) = tree();
        for group in [1, 3, 7, 64] {
            let items = Items::of_tree(&positions, &spans, &starts, group);
            let (mut found, mut slots) = (vec![Vec::new(); 150], vec![None; 150]);
            seen(&items, &positions, &mut found, &mut slots);
            for (row, mut keys) in found.into_iter().enumerate() {
                keys.sort_unstable();
                let keys: Vec<u32> = keys.into_iter().map(|(_, position)| position).collect();
                assert_eq!(keys, (0..=positions[row]).collect::<Vec<_>>(), "row {row}, group {group}");
                assert_eq!(slots[row], Some(row as u32));
            }
        }
    }

    #[test]
    fn the_parts_of_a_step_hold_each_key_of_each_row_once_and_merge_by_row() {
        let (mut positions, mut spans, _) = tree();
        // A long segment, cached but for its last row.
        spans.push((150..151, 0, 3000));
        positions.push(2999);
        let parts = Parts::new(&positions, &spans, 2);
        let mut slots = vec![None; parts.slots];
        let mut found = vec![Vec::new(); positions.len()];
        for items in [&parts.narrow, &parts.wide] {
            assert!(items.count() > 0);
            seen(items, &positions, &mut found, &mut slots);
        }
        for (row, mut keys) in found.into_iter().enumerate() {
            keys.sort_unstable_by_key(|(_, position)| *position);
            let keys: Vec<u32> = keys.into_iter().map(|(_, position)| position).collect();
            assert_eq!(keys, (0..=positions[row]).collect::<Vec<_>>(), "row {row}");
            let own = &parts.parts[parts.starts[row] as usize..parts.starts[row + 1] as usize];
            assert!(own.iter().all(|slot| slots[*slot as usize] == Some(row as u32)));
        }
        assert!(slots.iter().all(Option::is_some));
        assert_eq!(parts.parts.len(), parts.slots);
    }

    #[test]
    fn tiles_of_keys_have_every_row_that_sees_one_of_them() {
        let (positions, spans, starts) = tree();
        let tiles = KeyTiles::new(&spans, &starts);
        let mut keys = vec![0; 150];
        assert_eq!(tiles.slots, tiles.tiles.len() / 6);
        for tile in tiles.tiles.chunks(6) {
            let [key, count, first, from, to, _] = *tile else { unreachable!() };
            for at in key..key + count {
                keys[at as usize] += 1;
                assert_eq!(positions[at as usize], first + at - key);
                let own = spans
                    .iter()
                    .find(|(of, _, keys)| of.start as u32 <= at && at < of.start as u32 + *keys as u32);
                let (of, ..) = own.unwrap();
                assert!(from <= at && to as usize == of.end);
            }
        }
        assert!(keys.iter().all(|times| *times == 1));
    }

    #[test]
    fn tiles_fit_the_shared_memory_of_a_block_on_any_card_since_ampere() {
        // As cards of compute capability 8.6 and 8.9 have it.
        assert!(KeyTiles::shared_bytes(128) <= 99 << 10);
    }

    #[test]
    fn the_rows_of_a_long_segment_are_divided_and_summed_again() {
        let tiles = KeyTiles::new(&[(100..5300, 0, 100)], &[100]);
        let rows = |slot: u32| tiles.tiles.chunks(6).find(|tile| tile[5] == slot).unwrap();
        let mut last = 0;
        for sum in tiles.sums.chunks(4) {
            let [key, keys, from, to] = *sum else { unreachable!() };
            assert_eq!(from, last);
            last = to;
            let mut next = key;
            for slot in from..to {
                let [at, count, position, start, end, _] = *rows(slot) else { unreachable!() };
                assert_eq!((at, count, position, start), (key, keys, key - 100, next));
                next = end;
            }
            assert_eq!(next, 5300);
        }
        assert_eq!((last as usize, tiles.slots, tiles.count()), (6, 6, 2));
    }
}
