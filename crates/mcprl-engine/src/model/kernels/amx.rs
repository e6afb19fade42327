//! Products of bf16 by AMX, whose registers are tiles of 16 rows of 64 bytes.
//!
//! An element of `C` is one chain over parts of 32 values along `k`. A part is the sum of two chains from 0: its values at odd
//! places, and those at even ones (TDPBF16PS in Intel's Software Developer's Manual). It does not depend on the number of rows.
//!
//! The instructions are in assembly: their intrinsics are not in stable Rust. Nothing else uses tiles, so what one statement
//! leaves in them is there for the next.

use std::{
    arch::{
        asm,
        x86_64::{__cpuid, __cpuid_count, _xgetbv},
    },
    ops::Range,
    sync::OnceLock,
};

use super::{
    PANEL,
    aligned::{Aligned, as_floats_mut},
    tile::{Accumulate, Block},
    transpose::transpose,
};

/// Rows of a tile, and words of one of its rows.
pub const SIDE: usize = 16;

/// Whether machine and kernel let this process use tiles. Asks the kernel for them.
pub fn is_available() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        const OSXSAVE: u32 = 1 << 27;
        const TILES_AND_BF16: u32 = 1 << 24 | 1 << 22;
        const TILES_ARE_SAVED: u64 = 0b11 << 17;
        let has_leaf = __cpuid(0).eax >= 7;
        let has = __cpuid(1).ecx & OSXSAVE != 0
            && has_leaf
            && __cpuid_count(7, 0).edx & TILES_AND_BF16 == TILES_AND_BF16;
        // SAFETY: the processor has the instruction, as OSXSAVE says.
        has && unsafe { saved_state() } & TILES_ARE_SAVED == TILES_ARE_SAVED && permitted()
    })
}

#[target_feature(enable = "xsave")]
fn saved_state() -> u64 {
    // SAFETY: register 0 exists wherever the instruction does.
    unsafe { _xgetbv(0) }
}

/// Asks Linux for the tiles of this process and its threads (`ARCH_REQ_XCOMP_PERM`).
fn permitted() -> bool {
    #[cfg(target_os = "linux")]
    {
        const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
        const XTILEDATA: i64 = 18;
        // SAFETY: changes nothing but the permission.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0 }
    }
    #[cfg(not(target_os = "linux"))]
    {
        false
    }
}

/// Palette 1: bytes and rows of each tile.
#[repr(C, align(64))]
struct Shape {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    bytes: [u16; 16],
    rows: [u8; 16],
}

/// Tiles 0 to 3 for `C`, 4 and 5 for `A`, 6 and 7 for `B`. `rows` of `A` are in two tiles: the first has at most 16 of them.
fn configure(rows: usize) {
    let mut shape = Shape { palette: 1, start: 0, reserved: [0; 14], bytes: [0; 16], rows: [0; 16] };
    let (first, second) = (rows.min(SIDE), rows.saturating_sub(SIDE).max(1));
    for (tile, rows) in [first, first, second, second, first, second, SIDE, SIDE].into_iter().enumerate() {
        (shape.bytes[tile], shape.rows[tile]) = (64, rows as u8);
    }
    // SAFETY: a valid shape; it stays readable until the instruction has read it.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const shape, options(nostack, readonly)) };
}

/// Computes the block on words that are pairs of bf16, adjacent in `k`. Sums are chains, and the depth counts from a multiple of 16 of
/// the whole product's.
///
/// # Safety
/// As [`Block::run`], and tiles are available.
pub unsafe fn block(block: &Block) {
    debug_assert!(block.accumulate != Accumulate::Sum);
    let (rows, depth) = (block.rows, block.depth.next_multiple_of(SIDE));
    let mut padded = Words([[0; PANEL]; SIDE]);
    let right = |column: usize, words: Range<usize>| {
        // SAFETY: within the block, or its panels if they are padded.
        unsafe {
            let b: *const u32 =
                block.b.add(column / PANEL * block.b_panel + words.start * block.b_step).cast();
            let width = if block.b_padded { PANEL } else { PANEL.min(block.columns - column) };
            if words.len() == SIDE && width == PANEL {
                return (b, block.b_step);
            }
            for (row, to) in padded.0.iter_mut().enumerate() {
                to.fill(0);
                if row < words.len() {
                    std::ptr::copy_nonoverlapping(b.add(row * block.b_step), to.as_mut_ptr(), width);
                }
            }
            (padded.0.as_ptr().cast(), PANEL)
        }
    };
    if block.a_column == 1 {
        // SAFETY: the caller's contract.
        return unsafe { panels(block, block.a.cast(), block.a_row, right) };
    }
    // Rows of a tile are contiguous.
    let mut packed = Aligned::zeros(rows.next_multiple_of(SIDE) * depth);
    for row in (0..rows).step_by(SIDE) {
        for word in (0..depth).step_by(SIDE) {
            let mut square = [0.0f32; SIDE * SIDE];
            let (height, width) = (SIDE.min(block.depth - word), SIDE.min(rows - row));
            for (i, to) in square.chunks_exact_mut(SIDE).enumerate().take(height) {
                for (j, to) in to.iter_mut().enumerate().take(width) {
                    // SAFETY: within the block.
                    *to = unsafe { *block.a.add((row + j) * block.a_row + (word + i) * block.a_column) };
                }
            }
            transpose(&square, SIDE, as_floats_mut(&mut packed[row * depth + word..]), depth);
        }
    }
    // SAFETY: the caller's contract; the copy has all rows.
    unsafe { panels(block, packed.as_ptr(), depth, right) };
}

/// Most rows of [`block_of_few_rows`].
pub const FEW: usize = 2 * SIDE;

/// [`block`] of at most [`FEW`] rows, with a `B` that is made 16 words of depth at a time, while it is multiplied: it never leaves the
/// first cache. `make` writes these words of a panel's 32 columns. The block's `b` is not read.
///
/// # Safety
/// As [`block`], apart from `b`; words of `A` are adjacent.
pub unsafe fn block_of_few_rows(block: &Block, make: impl Fn(usize, Range<usize>, &mut [u32])) {
    debug_assert!(block.rows <= FEW && block.a_column == 1 && block.b_padded);
    // Two, so that one is written while the other is read.
    let mut made = [Words([[0; PANEL]; SIDE]), Words([[0; PANEL]; SIDE])];
    let of_panel = |column: usize, words: Range<usize>| {
        let made = &mut made[words.start / SIDE % 2].0;
        let count = words.len();
        make(column / PANEL, words, made[..count].as_flattened_mut());
        made[count..].fill([0; PANEL]);
        (made.as_ptr().cast(), PANEL)
    };
    // SAFETY: the caller's contract.
    unsafe { panels(block, block.a.cast(), block.a_row, of_panel) };
}

/// # Safety
/// As [`block`]; `a` is a copy of `A` with adjacent words, or `A` itself. `right` gives, of the panel at a column, 16 words of depth and
/// their distance, all readable.
unsafe fn panels(
    block: &Block,
    a: *const u32,
    a_row: usize,
    mut right: impl FnMut(usize, Range<usize>) -> (*const u32, usize),
) {
    let mut configured = 0;
    let mut padded = Padded::default();
    for column in (0..block.columns).step_by(PANEL) {
        for row in (0..block.rows).step_by(2 * SIDE) {
            let (rows, width) = ((block.rows - row).min(2 * SIDE), (block.columns - column).min(PANEL));
            if configured != rows {
                configure(rows);
                configured = rows;
            }
            // SAFETY: rows and columns are within the block.
            unsafe {
                let a = a.add(row * a_row);
                let c = block.c.add(row * block.c_row + column);
                panel(block, (rows, width), (a, a_row), |words| right(column, words), c, &mut padded);
            }
        }
    }
    // SAFETY: the tiles are not used after this.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}

/// 16 words of depth of 32 columns.
#[repr(C, align(64))]
struct Words([[u32; PANEL]; SIDE]);

/// Copies that are filled with zeros to whole tiles.
#[repr(C, align(64))]
struct Padded {
    a: [[u32; SIDE]; 2 * SIDE],
    c: [[f32; PANEL]; 2 * SIDE],
}

impl Default for Padded {
    fn default() -> Self {
        Self { a: [[0; SIDE]; 2 * SIDE], c: [[0.0; PANEL]; 2 * SIDE] }
    }
}

/// Up to 32 rows and columns.
///
/// # Safety
/// As [`panels`]; the tiles are configured for this number of rows.
unsafe fn panel(
    block: &Block,
    (rows, width): (usize, usize),
    (mut a, a_row): (*const u32, usize),
    mut right: impl FnMut(Range<usize>) -> (*const u32, usize),
    c: *mut f32,
    padded: &mut Padded,
) {
    let two = rows > SIDE;
    let is_whole = width == PANEL;
    // SAFETY: rows, depth and columns are within the block; what is no whole tile is copied.
    unsafe {
        let copy_c = |from: *const f32, from_row: usize, to: *mut f32, to_row: usize| {
            for row in 0..rows {
                std::ptr::copy_nonoverlapping(from.add(row * from_row), to.add(row * to_row), width);
            }
        };
        let (at, c_row) = if is_whole { (c, block.c_row) } else { (padded.c.as_mut_ptr().cast(), PANEL) };
        match block.accumulate {
            Accumulate::No => asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                options(nostack, nomem)
            ),
            _ => {
                if !is_whole {
                    copy_c(c, block.c_row, at, c_row);
                }
                load_c(at, c_row, two);
            }
        }
        for word in (0..block.depth).step_by(SIDE) {
            let words = SIDE.min(block.depth - word);
            let mut left = (a, a_row);
            if words < SIDE {
                for (row, to) in padded.a.iter_mut().enumerate().take(rows) {
                    to[words..].fill(0);
                    std::ptr::copy_nonoverlapping(a.add(row * a_row), to.as_mut_ptr(), words);
                }
                left = (padded.a.as_ptr().cast(), SIDE);
            }
            part(left, right(word..word + words), two);
            a = a.wrapping_add(SIDE);
        }
        store_c(at, c_row, two);
        if !is_whole {
            copy_c(at, c_row, c, block.c_row);
        }
    }
}

/// Adds the products of 16 words.
///
/// # Safety
/// The configured rows of `a`, and 16 rows of 32 words of `b`, are readable at their strides.
#[inline(always)]
unsafe fn part((a, a_row): (*const u32, usize), (b, b_row): (*const u32, usize), two: bool) {
    let (a_row, b_row) = (a_row * size_of::<u32>(), b_row * size_of::<u32>());
    // SAFETY: the caller's contract.
    unsafe {
        if two {
            asm!(
                "tileloadd tmm6, [{b} + {b_row}]",
                "tileloadd tmm4, [{a} + {a_row}]",
                "tileloadd tmm7, [{b} + {b_row} + 64]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{second} + {a_row}]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                a = in(reg) a,
                second = in(reg) a.wrapping_byte_add(SIDE * a_row),
                a_row = in(reg) a_row,
                b = in(reg) b,
                b_row = in(reg) b_row,
                options(nostack, readonly)
            );
        } else {
            asm!(
                "tileloadd tmm6, [{b} + {b_row}]",
                "tileloadd tmm4, [{a} + {a_row}]",
                "tileloadd tmm7, [{b} + {b_row} + 64]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                a = in(reg) a,
                a_row = in(reg) a_row,
                b = in(reg) b,
                b_row = in(reg) b_row,
                options(nostack, readonly)
            );
        }
    }
}

/// # Safety
/// The configured rows of `c` are readable.
unsafe fn load_c(c: *const f32, c_row: usize, two: bool) {
    // SAFETY: the caller's contract.
    unsafe {
        let bytes = c_row * size_of::<f32>();
        asm!(
            "tileloadd tmm0, [{c} + {row}]", "tileloadd tmm1, [{c} + {row} + 64]",
            c = in(reg) c, row = in(reg) bytes, options(nostack, readonly)
        );
        if two {
            asm!(
                "tileloadd tmm2, [{c} + {row}]", "tileloadd tmm3, [{c} + {row} + 64]",
                c = in(reg) c.add(SIDE * c_row), row = in(reg) bytes, options(nostack, readonly)
            );
        }
    }
}

/// # Safety
/// The configured rows of `c` are writable.
unsafe fn store_c(c: *mut f32, c_row: usize, two: bool) {
    // SAFETY: the caller's contract.
    unsafe {
        let bytes = c_row * size_of::<f32>();
        asm!(
            "tilestored [{c} + {row}], tmm0", "tilestored [{c} + {row} + 64], tmm1",
            c = in(reg) c, row = in(reg) bytes, options(nostack)
        );
        if two {
            asm!(
                "tilestored [{c} + {row}], tmm2", "tilestored [{c} + {row} + 64], tmm3",
                c = in(reg) c.add(SIDE * c_row), row = in(reg) bytes, options(nostack)
            );
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::{
        Lhs, Rhs,
        frozen::convert::{round_to_bf16, rows_to_pairs, to_pairs},
        gemm::{tests::numbers, tiled_gemm},
        multiplies_tiles, team,
    };

    /// The order of AMX: of each 32 values along `k`, those at odd places and those at even ones are summed apart.
    pub fn by_parts(m: usize, left: Lhs<'_>, right: Rhs<'_>, (c, n): (&mut [f32], usize), accumulate: bool) {
        for (row, c) in c.chunks_exact_mut(n).enumerate().take(m) {
            for (column, c) in c.iter_mut().enumerate() {
                let mut sum = if accumulate { *c } else { 0.0 };
                for part in (0..right.depth()).step_by(32) {
                    let chain = |parity: usize| {
                        (part + parity..right.depth().min(part + 32)).step_by(2).fold(0.0f32, |sum, k| {
                            left.data[row * left.row + k * left.column].mul_add(right.at(k, column), sum)
                        })
                    };
                    sum += chain(1) + chain(0);
                }
                *c = sum;
            }
        }
    }

    /// Also with rows and columns that fill no tile, and with `A` at both strides.
    #[test]
    fn tiles_give_the_bits_of_chains_of_parts_and_touch_no_other_value() {
        if !multiplies_tiles() {
            return;
        }
        for (m, k, n) in [(1, 2, 1), (3, 64, 40), (16, 31, 32), (17, 100, 33), (33, 600, 65), (70, 33, 8)] {
            let [mut a, mut b] = [numbers(m * k, 1), numbers(k * n, 2)];
            round_to_bf16(&mut a);
            round_to_bf16(&mut b);
            let across: Vec<f32> = (0..k * m).map(|i| a[i % m * k + i / m]).collect();
            let (mut rows, mut columns, mut right) = (vec![0; m * k.div_ceil(2)], Vec::new(), Vec::new());
            to_pairs(&a, k, k, &mut rows);
            rows_to_pairs(&across, m, k, m, &mut columns);
            rows_to_pairs(&b, n, k, n, &mut right);
            let (half, stride) = (k.div_ceil(2), n + 3);
            for left in [Lhs::rows(&rows, half), Lhs::transposed(&columns, m)] {
                for accumulate in [false, true] {
                    let old = numbers(m * stride, 3);
                    let mut c = old.clone();
                    let factor = Rhs::rows(&right, half, n);
                    tiled_gemm(m, left, factor, (team::Shared::new(&mut c), 0), stride, accumulate);
                    for (row, (c, old)) in c.chunks(stride).zip(old.chunks(stride)).enumerate() {
                        let mut want = old.to_vec();
                        let row = Lhs::rows(&a[row * k..], k);
                        by_parts(1, row, Rhs::rows(&b, k, n), (&mut want[..n], n), accumulate);
                        assert_eq!(c, want, "{m}x{k}x{n}");
                    }
                }
            }
        }
    }
}
