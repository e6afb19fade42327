//! Tiles of a matrix product: the innermost loops, one per instruction set.

use super::Level;

/// Floats in the widest vector.
pub const LANES: usize = 16;

/// Columns of `B` that are contiguous when packed.
pub const PANEL: usize = 2 * LANES;

/// What a block does with the old values of `C`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accumulate {
    /// Overwrites them.
    No,
    /// Continues their chains of multiply-adds.
    Chain,
    /// Adds its own sums to them.
    Sum,
}

impl Accumulate {
    /// The mode of each block in depth: the first, which adds to `C` if `accumulate`, and those after it.
    pub fn blocks(self, accumulate: bool) -> [Self; 2] {
        [if accumulate { self } else { Self::No }, self]
    }
}

/// A part of a product whose panels of `B` all have the same depth.
///
/// `depth` counts words: an `f32`, or a pair of bf16 in kernels that multiply pairs.
pub struct Block {
    pub rows: usize,
    pub depth: usize,
    pub columns: usize,
    pub a: *const f32,
    pub a_row: usize,
    pub a_column: usize,
    pub b: *const f32,
    pub b_step: usize,
    pub b_panel: usize,
    pub b_padded: bool,
    pub c: *mut f32,
    pub c_row: usize,
    pub accumulate: Accumulate,
}

impl Block {
    /// Computes the block on `f32` words.
    ///
    /// # Safety
    /// The pointers are valid for the extents, and `level` was detected.
    pub unsafe fn run(&self, level: Level) {
        // SAFETY: the caller's contract is passed on.
        unsafe {
            match level {
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => avx512::block(self),
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => avx2::block(self),
                _ => lanes::block::<4>(self),
            }
        }
    }

    /// Computes the block on words that are pairs of bf16, adjacent in `k`. The bits equal those of
    /// [`Self::run`] on the values of the pairs.
    ///
    /// # Safety
    /// As [`Self::run`], and the machine multiplies bf16 ([`super::multiplies_bf16`]).
    #[cfg(target_arch = "x86_64")]
    pub unsafe fn run_pairs(&self) {
        // SAFETY: the caller's contract is passed on.
        unsafe { pairs::block(self) }
    }

    /// Computes the block on `B` in pairs of bf16, adjacent in `k`, and `A` in `f32`: `depth` counts pairs. `columns` begin a
    /// panel, panels are padded, and sums are chains. The bits equal those of [`Self::run`] on the widened values.
    ///
    /// # Safety
    /// As [`Self::run`], and the machine has AVX2 and FMA. There are at most [`Self::FEW`] rows.
    #[cfg(target_arch = "x86_64")]
    pub unsafe fn run_widening(&self) {
        // SAFETY: the caller's contract is passed on.
        unsafe { widening::block(self) }
    }

    /// Rows up to which [`Self::run_widening`] is faster than [`Self::run`] on a widened copy.
    pub const FEW: usize = 16;
}

/// The kernel in plain Rust: 16 columns at a time, vectorised by the compiler.
mod lanes {
    use super::{Accumulate, Block, LANES, PANEL};

    /// # Safety
    /// The pointers of `block` are valid for its extents.
    #[inline(always)]
    pub unsafe fn block<const MR: usize>(block: &Block) {
        for column in (0..block.columns).step_by(LANES) {
            let width = LANES.min(block.columns - column);
            let mut row = 0;
            while row < block.rows {
                // SAFETY: row and column are within the block.
                unsafe {
                    if row + MR <= block.rows {
                        tile::<MR>(block, row, column, width);
                        row += MR;
                    } else {
                        tile::<1>(block, row, column, width);
                        row += 1;
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn tile<const MR: usize>(block: &Block, row: usize, column: usize, width: usize) {
        // SAFETY: indices stay within rows, depth and width of the block; a padded panel is always 32 wide.
        unsafe {
            let a = block.a.add(row * block.a_row);
            let b = block.b.add((column / PANEL) * block.b_panel + column % PANEL);
            let c = block.c.add(row * block.c_row + column);
            let mut sums = [[0.0f32; LANES]; MR];
            if block.accumulate == Accumulate::Chain {
                for (i, sum) in sums.iter_mut().enumerate() {
                    std::ptr::copy_nonoverlapping(c.add(i * block.c_row), sum.as_mut_ptr(), width);
                }
            }
            let whole = block.b_padded || width == LANES;
            for k in 0..block.depth {
                let mut values = [0.0f32; LANES];
                let from = b.add(k * block.b_step);
                if whole {
                    values = from.cast::<[f32; LANES]>().read_unaligned();
                } else {
                    std::ptr::copy_nonoverlapping(from, values.as_mut_ptr(), width);
                }
                for (i, sum) in sums.iter_mut().enumerate() {
                    let factor = *a.add(i * block.a_row + k * block.a_column);
                    for (sum, value) in sum.iter_mut().zip(values) {
                        *sum += factor * value;
                    }
                }
            }
            for (i, sum) in sums.iter().enumerate() {
                let to = c.add(i * block.c_row);
                // A copy: with indices unknown to the compiler, the sums would stay in memory throughout.
                let mut sum = *sum;
                if block.accumulate == Accumulate::Sum {
                    let mut old = [0.0f32; LANES];
                    std::ptr::copy_nonoverlapping(to, old.as_mut_ptr(), width);
                    for (sum, old) in sum.iter_mut().zip(old) {
                        *sum += old;
                    }
                }
                std::ptr::copy_nonoverlapping(sum.as_ptr(), to, width);
            }
        }
    }
}

/// Tiles of these heights, each for as long as that many rows are left.
#[cfg(target_arch = "x86_64")]
macro_rules! tiles {
    ($block:ident, $row:ident, $column:ident, $tail:ident, [$($height:literal)+]) => {$(
        #[allow(clippy::int_plus_one, reason = "the form for every height")]
        while $row + $height <= $block.rows {
            tile::<$height, NV, FULL>($block, $row, $column, $tail);
            $row += $height;
        }
    )+};
}

/// The kernel in AVX2.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::{Accumulate, Block, LANES, PANEL};

    /// Lanes of a vector.
    const WIDTH: usize = 8;
    /// Rows whose chains in one vector of columns cannot hide the latency of an addition.
    const FEW: usize = 2;

    /// # Safety
    /// The machine has AVX2 and FMA, and the pointers of `block` are valid for its extents.
    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn block(block: &Block) {
        let mut column = 0;
        // SAFETY: rows and columns stay within the block throughout.
        unsafe {
            while block.rows <= FEW && column + PANEL <= block.columns {
                rows::<4, true>(block, column, WIDTH);
                column += PANEL;
            }
            while column + LANES <= block.columns {
                rows::<2, true>(block, column, WIDTH);
                column += LANES;
            }
            match block.columns - column {
                0 => {}
                rest if rest <= WIDTH => rows::<1, false>(block, column, rest),
                rest => rows::<2, false>(block, column, rest - WIDTH),
            }
        }
    }

    /// All rows of `NV` vectors of columns; `tail` is the width of the last vector.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn rows<const NV: usize, const FULL: bool>(block: &Block, column: usize, tail: usize) {
        let mut row = 0;
        // SAFETY: as in `block`.
        unsafe {
            if NV <= 2 {
                tiles!(block, row, column, tail, [6 4]);
            }
            tiles!(block, row, column, tail, [3 2 1]);
        }
    }

    /// A vector, or what `mask` selects of it.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn load(from: *const f32, is_whole: bool, mask: __m256i) -> __m256 {
        // SAFETY: the caller's contract: what is read is within the block.
        unsafe {
            match is_whole {
                true => _mm256_loadu_ps(from),
                false => _mm256_maskload_ps(from, mask),
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn tile<const MR: usize, const NV: usize, const FULL: bool>(
        block: &Block,
        row: usize,
        column: usize,
        tail: usize,
    ) {
        const LANE: [i32; WIDTH] = [0, 1, 2, 3, 4, 5, 6, 7];
        // SAFETY: indices stay within rows and depth of the block; masked lanes are not touched. A padded panel is 32 wide.
        unsafe {
            let lanes = _mm256_loadu_si256(LANE.as_ptr().cast());
            let last = _mm256_cmpgt_epi32(_mm256_set1_epi32(tail as i32), lanes);
            let mut a = [block.a; MR];
            for (i, a) in a.iter_mut().enumerate() {
                *a = block.a.add((row + i) * block.a_row);
            }
            let mut b = block.b.add((column / PANEL) * block.b_panel + column % PANEL);
            let c = block.c.add(row * block.c_row + column);
            let mut sums = [[_mm256_setzero_ps(); NV]; MR];
            if block.accumulate == Accumulate::Chain {
                for (i, sums) in sums.iter_mut().enumerate() {
                    for (v, sum) in sums.iter_mut().enumerate() {
                        *sum = load(c.add(i * block.c_row + v * WIDTH), FULL || v + 1 < NV, last);
                    }
                }
            }
            // Plain loops: a closure here may not be inlined, since the crate is compiled in parts.
            for _ in 0..block.depth {
                let mut values = [_mm256_setzero_ps(); NV];
                for (v, value) in values.iter_mut().enumerate() {
                    *value = load(b.add(v * WIDTH), FULL || v + 1 < NV, last);
                }
                for i in 0..MR {
                    let factor = _mm256_broadcast_ss(&*a[i]);
                    for v in 0..NV {
                        sums[i][v] = _mm256_fmadd_ps(factor, values[v], sums[i][v]);
                    }
                    a[i] = a[i].wrapping_add(block.a_column);
                }
                b = b.wrapping_add(block.b_step);
            }
            for (i, sums) in sums.into_iter().enumerate() {
                let to = c.add(i * block.c_row);
                for (v, mut sum) in sums.into_iter().enumerate() {
                    if block.accumulate == Accumulate::Sum {
                        sum = _mm256_add_ps(sum, load(to.add(v * WIDTH), FULL || v + 1 < NV, last));
                    }
                    match FULL || v + 1 < NV {
                        true => _mm256_storeu_ps(to.add(v * WIDTH), sum),
                        false => _mm256_maskstore_ps(to.add(v * WIDTH), last, sum),
                    }
                }
            }
        }
    }
}

/// The kernel in AVX2 for few rows, which widens pairs of bf16 in registers: a widened copy of a panel that is read once or
/// twice costs more than the product.
#[cfg(target_arch = "x86_64")]
mod widening {
    use std::arch::x86_64::*;

    use super::{Accumulate, Block, PANEL};

    /// Lanes of a vector.
    const WIDTH: usize = 8;

    /// # Safety
    /// As [`Block::run_widening`].
    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn block(block: &Block) {
        debug_assert!(block.accumulate != Accumulate::Sum && block.rows <= Block::FEW);
        for column in (0..block.columns).step_by(PANEL) {
            // SAFETY: the panel is padded; of `C`, only columns of the block are touched.
            unsafe {
                let b = block.b.add(column / PANEL * block.b_panel).cast();
                let c = block.c.add(column);
                let width = PANEL.min(block.columns - column);
                if width == PANEL {
                    panel(block, b, c, block.c_row);
                    continue;
                }
                let mut whole = [[0.0f32; PANEL]; Block::FEW];
                for (row, whole) in whole.iter_mut().enumerate().take(block.rows) {
                    std::ptr::copy_nonoverlapping(c.add(row * block.c_row), whole.as_mut_ptr(), width);
                }
                panel(block, b, whole.as_flattened_mut().as_mut_ptr(), PANEL);
                for (row, whole) in whole.iter().enumerate().take(block.rows) {
                    std::ptr::copy_nonoverlapping(whole.as_ptr(), c.add(row * block.c_row), width);
                }
            }
        }
    }

    /// All rows of a panel.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn panel(block: &Block, b: *const u32, c: *mut f32, c_row: usize) {
        let mut row = 0;
        while row < block.rows {
            // SAFETY: rows of the block.
            unsafe {
                let (a, c) = (block.a.add(row * block.a_row), c.add(row * c_row));
                let (left, right) = ((b, c), (b.add(PANEL / 2), c.add(PANEL / 2)));
                row += match block.rows - row {
                    1 => tile::<1, 4>(block, a, left, c_row),
                    2 => tile::<2, 4>(block, a, left, c_row),
                    3 => {
                        tile::<3, 2>(block, a, left, c_row);
                        tile::<3, 2>(block, a, right, c_row)
                    }
                    _ => {
                        tile::<4, 2>(block, a, left, c_row);
                        tile::<4, 2>(block, a, right, c_row)
                    }
                };
            }
        }
    }

    /// `MR` rows of `NV` vectors of columns; returns `MR`.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn tile<const MR: usize, const NV: usize>(
        block: &Block,
        a: *const f32,
        (mut b, c): (*const u32, *mut f32),
        c_row: usize,
    ) -> usize {
        // SAFETY: indices stay within rows, depth and width of the block.
        unsafe {
            let high = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            let first = a;
            let mut a = [first; MR];
            for (i, a) in a.iter_mut().enumerate() {
                *a = first.add(i * block.a_row);
            }
            let mut sums = [[_mm256_setzero_ps(); NV]; MR];
            if block.accumulate == Accumulate::Chain {
                for (i, sums) in sums.iter_mut().enumerate() {
                    for (v, sum) in sums.iter_mut().enumerate() {
                        *sum = _mm256_loadu_ps(c.add(i * c_row + v * WIDTH));
                    }
                }
            }
            // Plain loops, as above.
            for _ in 0..block.depth {
                let mut words = [_mm256_setzero_si256(); NV];
                for (v, word) in words.iter_mut().enumerate() {
                    *word = _mm256_loadu_si256(b.add(v * WIDTH).cast());
                }
                for i in 0..MR {
                    let factor = _mm256_broadcast_ss(&*a[i]);
                    for v in 0..NV {
                        let first = _mm256_castsi256_ps(_mm256_and_si256(words[v], high));
                        sums[i][v] = _mm256_fmadd_ps(factor, first, sums[i][v]);
                    }
                }
                for i in 0..MR {
                    let factor = _mm256_broadcast_ss(&*a[i].add(1));
                    for v in 0..NV {
                        let second = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words[v]));
                        sums[i][v] = _mm256_fmadd_ps(factor, second, sums[i][v]);
                    }
                    a[i] = a[i].wrapping_add(2);
                }
                b = b.wrapping_add(block.b_step);
            }
            for (i, sums) in sums.into_iter().enumerate() {
                for (v, sum) in sums.into_iter().enumerate() {
                    _mm256_storeu_ps(c.add(i * c_row + v * WIDTH), sum);
                }
            }
        }
        MR
    }
}

/// The kernel in AVX-512 for words that `$multiply_add` multiplies.
#[cfg(target_arch = "x86_64")]
macro_rules! wide {
    ($(#[$meta:meta])* $name:ident, $features:literal, |$factor:ident, $value:ident, $sum:ident| $multiply_add:expr) => {
        $(#[$meta])*
        mod $name {
        use std::arch::x86_64::*;

        use super::{Accumulate, Block, LANES, PANEL};

            /// `sum + factor · value` in every lane.
            #[inline]
            #[target_feature(enable = $features)]
            fn multiply_add($factor: __m512, $value: __m512, $sum: __m512) -> __m512 {
                $multiply_add
            }

        const FEW: usize = 3;
        /// Tiles that prefetch the next panel.
        const FETCHERS: usize = 4;

        /// # Safety
        /// The machine has AVX-512F, and the pointers of `block` are valid for its extents.
        #[target_feature(enable = $features)]
        pub unsafe fn block(block: &Block) {
            let mut column = 0;
            // SAFETY: rows and columns stay within the block throughout.
            unsafe {
                // With few rows, the chains of one panel cannot hide the latency of an addition: use four
                // panels at once.
                while block.rows <= FEW && column + 4 * PANEL <= block.columns {
                    rows::<8, true>(block, column, LANES);
                    column += 4 * PANEL;
                }
                while block.rows <= FEW && column + 2 * PANEL <= block.columns {
                    rows::<4, true>(block, column, LANES);
                    column += 2 * PANEL;
                }
                while column + PANEL <= block.columns {
                    rows::<2, true>(block, column, LANES);
                    column += PANEL;
                }
                match block.columns - column {
                    0 => {}
                    LANES => rows::<1, true>(block, column, LANES),
                    rest if rest < LANES => rows::<1, false>(block, column, rest),
                    rest => rows::<2, false>(block, column, rest - LANES),
                }
            }
        }

        /// All rows of `NV` vectors of columns; `tail` is the width of the last vector.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn rows<const NV: usize, const FULL: bool>(block: &Block, column: usize, tail: usize) {
            let mut row = 0;
            // SAFETY: as in `block`.
            unsafe {
                if NV <= 2 {
                    tiles!(block, row, column, tail, [12]);
                }
                tiles!(block, row, column, tail, [8 6 4 3 2 1]);
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn tile<const MR: usize, const NV: usize, const FULL: bool>(
            block: &Block,
            row: usize,
            column: usize,
            tail: usize,
        ) {
            // SAFETY: indices stay within rows and depth of the block; masked lanes are not touched.
            unsafe {
                let last: __mmask16 = if FULL { 0xffff } else { (1u16 << tail) - 1 };
                let mask = |v: usize| if v + 1 == NV { last } else { 0xffff };
                let a = block.a.add(row * block.a_row);
                let b = block.b.add((column / PANEL) * block.b_panel + column % PANEL);
                let c = block.c.add(row * block.c_row + column);
                let at = |v: usize| (v / 2) * block.b_panel + (v % 2) * LANES;
                let old = |i: usize, v: usize| {
                    let from = c.add(i * block.c_row + v * LANES);
                    if FULL { _mm512_loadu_ps(from) } else { _mm512_maskz_loadu_ps(mask(v), from) }
                };
                let mut sums = [[_mm512_setzero_ps(); NV]; MR];
                if block.accumulate == Accumulate::Chain {
                    for i in 0..MR {
                        for v in 0..NV {
                            sums[i][v] = old(i, v);
                        }
                    }
                }
                // The first tiles of a panel prefetch the next panel, which the hardware cannot predict. Each
                // fetches a share, so that memory and arithmetic overlap.
                let sharing = block.rows.div_ceil(12).min(FETCHERS);
                let fetches = block.b_padded && block.b_panel > 0 && row / 12 < sharing;
                let mut due = if fetches { row / 12 } else { usize::MAX };
                for k in 0..block.depth {
                    if k == due {
                        let next = b.wrapping_add(k * block.b_step + block.b_panel);
                        _mm_prefetch::<_MM_HINT_T1>(next.cast());
                        _mm_prefetch::<_MM_HINT_T1>(next.wrapping_add(LANES).cast());
                        due += sharing;
                    }
                    let mut values = [_mm512_setzero_ps(); NV];
                    for v in 0..NV {
                        let from = b.add(k * block.b_step + at(v));
                        values[v] = if FULL || block.b_padded {
                            _mm512_loadu_ps(from)
                        } else {
                            _mm512_maskz_loadu_ps(mask(v), from)
                        };
                    }
                    for i in 0..MR {
                        let factor = _mm512_set1_ps(*a.add(i * block.a_row + k * block.a_column));
                        for v in 0..NV {
                            sums[i][v] = multiply_add(factor, values[v], sums[i][v]);
                        }
                    }
                }
                if block.accumulate == Accumulate::Sum {
                    for i in 0..MR {
                        for v in 0..NV {
                            sums[i][v] = _mm512_add_ps(old(i, v), sums[i][v]);
                        }
                    }
                }
                for i in 0..MR {
                    for v in 0..NV {
                        let to = c.add(i * block.c_row + v * LANES);
                        if FULL {
                            _mm512_storeu_ps(to, sums[i][v]);
                        } else {
                            _mm512_mask_storeu_ps(to, mask(v), sums[i][v]);
                        }
                    }
                }
            }
        }
        }
    };
}

#[cfg(target_arch = "x86_64")]
wide!(
    /// Words are `f32`.
    avx512, "avx512f", |factor, value, sum| _mm512_fmadd_ps(factor, value, sum)
);

#[cfg(target_arch = "x86_64")]
wide!(
    /// Words are pairs of bf16, the upper half first in `k`; sums are `f32`.
    pairs, "avx512f,avx512bf16", |factor, value, sum| {
        // SAFETY: both types are 512 bits without invalid values.
        let bits = |v: __m512| unsafe { std::mem::transmute::<__m512, __m512bh>(v) };
        _mm512_dpbf16_ps(sum, bits(factor), bits(value))
    }
);

/// Whether the machine's product of pairs first adds the product of the upper halves, then that of the lower
/// ones, each rounded as a fused multiply-add. Vendors document this, and splitting a chain of products
/// anywhere relies on it.
///
/// # Safety
/// The machine has AVX-512 BF16.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16,avx512vl")]
pub unsafe fn adds_pairs_in_order() -> bool {
    use std::arch::x86_64::*;
    let sum = |upper: f32, lower: f32| {
        let pair = (upper.to_bits() | lower.to_bits() >> 16) as i32;
        // SAFETY: both types are 128 bits without invalid values.
        let [pair, ones] = unsafe {
            [_mm_set1_epi32(pair), _mm_set1_epi32(0x3f80_3f80)]
                .map(|bits| std::mem::transmute::<__m128i, __m128bh>(bits))
        };
        _mm_cvtss_f32(_mm_dpbf16_ps(_mm_set1_ps(1.0), pair, ones))
    };
    // Half of the last place of 1 is rounded away if it is added first, and rounded up if second.
    let (half, more) = (f32::EPSILON / 2.0, f32::EPSILON * 0.75);
    sum(half, half) == 1.0
        && sum(half, more) == 1.0 + f32::EPSILON
        && sum(more, half) == 1.0 + 2.0 * f32::EPSILON
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::model::kernels::gemm::tests::numbers;

    #[test]
    fn every_instruction_set_gives_the_bits_of_one_chain_and_touches_no_other_value() {
        let mut levels = Vec::new();
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            levels.push(Level::Avx2);
        }
        if is_x86_feature_detected!("avx512f") {
            levels.push(Level::Avx512);
        }
        let (depth, most) = (5, 72);
        let (a, b, old) = (numbers(13 * depth, 1), numbers(depth * 96, 2), numbers(13 * (most + 3), 3));
        for rows in 1..=13 {
            for columns in [1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 64, 65, most] {
                for accumulate in [Accumulate::No, Accumulate::Chain, Accumulate::Sum] {
                    for b_padded in [true, false] {
                        // Padded: panels of 32 columns. Else row-major, without a value to spare behind the last row.
                        let (b_step, b_panel) =
                            if b_padded { (PANEL, depth * PANEL) } else { (columns, PANEL) };
                        let b: Vec<f32> = if b_padded { b.clone() } else { b[..depth * columns].to_vec() };
                        let at = |k: usize, j: usize| b[k * b_step + j / PANEL * b_panel + j % PANEL];
                        let mut expected = old.clone();
                        for i in 0..rows {
                            for j in 0..columns {
                                let c = &mut expected[i * (most + 3) + j];
                                let start = if accumulate == Accumulate::Chain { *c } else { 0.0 };
                                let chain =
                                    (0..depth).fold(start, |sum, k| a[i * depth + k].mul_add(at(k, j), sum));
                                *c = if accumulate == Accumulate::Sum { chain + *c } else { chain };
                            }
                        }
                        for level in &levels {
                            let mut c = old.clone();
                            let block = Block {
                                rows,
                                depth,
                                columns,
                                a: a.as_ptr(),
                                a_row: depth,
                                a_column: 1,
                                b: b.as_ptr(),
                                b_step,
                                b_panel,
                                b_padded,
                                c: c.as_mut_ptr(),
                                c_row: most + 3,
                                accumulate,
                            };
                            // SAFETY: the pointers are valid for these extents, and the level was detected.
                            unsafe { block.run(*level) };
                            assert_eq!(
                                c, expected,
                                "{level:?}: {rows} rows, {columns} columns, {accumulate:?}"
                            );
                        }
                    }
                }
            }
        }
    }
}
