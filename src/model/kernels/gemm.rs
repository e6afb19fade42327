//! Matrix product `C = A·B` or `C += A·B`, with `A` at any strides and `B` row-major or packed.
//!
//! Each element of `C` is one chain of fused multiply-adds over ascending `k`, whatever the number of rows.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Instant,
};

use super::Level;

/// Floats in the widest vector.
pub const LANES: usize = 16;
/// Columns of `B` that lie together when packed.
pub const PANEL: usize = 2 * LANES;
/// Depth of `k` worked on at a time, so that a panel stays in the first-level cache.
const DEPTH: usize = 256;
/// Rows worked on at a time, so that their part of `A` stays in the second-level cache.
const ROWS: usize = 252;

/// `B` of shape `[k, n]`, rearranged as `[n / 32][k][32]` and padded with zeros.
#[derive(Debug, Clone)]
pub struct Packed {
    k: usize,
    n: usize,
    data: Vec<f32>,
}

impl Packed {
    /// From `[k, n]`, row-major.
    pub fn from_rows(b: &[f32], k: usize, n: usize) -> Self {
        assert!(b.len() >= k * n, "B has {} values, needs {k}x{n}", b.len());
        let mut data = vec![0.0; n.div_ceil(PANEL) * k * PANEL];
        for (panel, columns) in data.chunks_exact_mut(k.max(1) * PANEL).zip((0..n).step_by(PANEL)) {
            let width = PANEL.min(n - columns);
            for (row, into) in panel.chunks_exact_mut(PANEL).enumerate() {
                into[..width].copy_from_slice(&b[row * n + columns..][..width]);
            }
        }
        Self { k, n, data }
    }

    /// From the transpose: `b` is `[n, k]`, row-major, as weights are stored.
    pub fn from_columns(b: &[f32], k: usize, n: usize) -> Self {
        assert!(b.len() >= k * n, "B has {} values, needs {n}x{k}", b.len());
        let mut data = vec![0.0; n.div_ceil(PANEL) * k * PANEL];
        for (panel, columns) in data.chunks_exact_mut(k.max(1) * PANEL).zip((0..n).step_by(PANEL)) {
            for lane in 0..PANEL.min(n - columns) {
                let column = &b[(columns + lane) * k..][..k];
                for (row, value) in column.iter().enumerate() {
                    panel[row * PANEL + lane] = *value;
                }
            }
        }
        Self { k, n, data }
    }

    pub fn right(&self) -> Right<'_> {
        Right::packed(&self.data, self.k, self.n)
    }
}

/// `A`, `[m, k]`: element `(i, j)` lies at `data[i * row + j * column]`.
#[derive(Clone, Copy)]
pub struct Left<'a> {
    pub data: &'a [f32],
    pub row: usize,
    pub column: usize,
}

impl<'a> Left<'a> {
    pub fn rows(data: &'a [f32], k: usize) -> Self {
        Self { data, row: k, column: 1 }
    }

    /// The transpose of a row-major `[k, m]`.
    pub fn transposed(data: &'a [f32], m: usize) -> Self {
        Self { data, row: 1, column: m }
    }
}

/// `B`, `[k, n]`.
#[derive(Clone, Copy)]
pub struct Right<'a> {
    data: &'a [f32],
    k: usize,
    n: usize,
    /// Floats from one `k` to the next.
    step: usize,
    /// Floats from one panel of 32 columns to the next.
    panel: usize,
    /// Whether the last panel is padded to full width.
    padded: bool,
}

impl<'a> Right<'a> {
    pub fn rows(data: &'a [f32], k: usize, n: usize) -> Self {
        Self::strided(data, k, n, n)
    }

    /// Row-major with `step` floats from row to row.
    pub fn strided(data: &'a [f32], k: usize, n: usize, step: usize) -> Self {
        assert!(k == 0 || data.len() >= (k - 1) * step + n, "B has {} values", data.len());
        Self { data, k, n, step, panel: PANEL, padded: false }
    }

    /// Panels as [`Packed`] lays them out.
    pub fn packed(data: &'a [f32], k: usize, n: usize) -> Self {
        assert!(data.len() >= n.div_ceil(PANEL) * k * PANEL, "packed B has {} values", data.len());
        Self { data, k, n, step: PANEL, panel: k * PANEL, padded: true }
    }
}

static METERED: AtomicBool = AtomicBool::new(false);
static NANOSECONDS: AtomicU64 = AtomicU64::new(0);
static OPERATIONS: AtomicU64 = AtomicU64::new(0);

/// Seconds spent in [`gemm`] by all threads while `work` ran, and floating-point operations done. For benchmarks:
/// metering two pieces of work at once mixes their counts.
pub fn metered<T>(work: impl FnOnce() -> T) -> (T, f64, f64) {
    NANOSECONDS.store(0, Ordering::Relaxed);
    OPERATIONS.store(0, Ordering::Relaxed);
    METERED.store(true, Ordering::Relaxed);
    let result = work();
    METERED.store(false, Ordering::Relaxed);
    (result, NANOSECONDS.load(Ordering::Relaxed) as f64 / 1e9, OPERATIONS.load(Ordering::Relaxed) as f64)
}

/// `c[i * stride + j] = Σ a(i, k) b(k, j)`, added to what is there if `accumulate`.
pub fn gemm(m: usize, a: Left<'_>, b: Right<'_>, c: &mut [f32], stride: usize, accumulate: bool) {
    let started = METERED.load(Ordering::Relaxed).then(Instant::now);
    product(m, a, b, c, stride, accumulate);
    if let Some(started) = started {
        NANOSECONDS.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
        OPERATIONS.fetch_add(2 * (m * b.n * b.k) as u64, Ordering::Relaxed);
    }
}

fn product(m: usize, a: Left<'_>, b: Right<'_>, c: &mut [f32], stride: usize, accumulate: bool) {
    let (k, n) = (b.k, b.n);
    if m == 0 || n == 0 {
        return;
    }
    assert!(c.len() >= (m - 1) * stride + n, "C has {} values, needs {m} rows of {stride}", c.len());
    if k == 0 {
        if !accumulate {
            (0..m).for_each(|row| c[row * stride..][..n].fill(0.0));
        }
        return;
    }
    assert!(
        a.data.len() > (m - 1) * a.row + (k - 1) * a.column,
        "A has {} values, needs {m}x{k} at strides {}, {}",
        a.data.len(),
        a.row,
        a.column
    );
    let level = Level::get();
    for row in (0..m).step_by(ROWS) {
        let rows = ROWS.min(m - row);
        for depth in (0..k).step_by(DEPTH) {
            let block = Block {
                rows,
                depth: DEPTH.min(k - depth),
                columns: n,
                a: a.data[row * a.row + depth * a.column..].as_ptr(),
                a_row: a.row,
                a_column: a.column,
                b: b.data[depth * b.step..].as_ptr(),
                b_step: b.step,
                b_panel: b.panel,
                b_padded: b.padded,
                c: c[row * stride..].as_mut_ptr(),
                c_row: stride,
                accumulate: accumulate || depth > 0,
            };
            // SAFETY: the assertions above bound every index the block reaches; `level` was detected.
            unsafe {
                match level {
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx512 => avx512::block(&block),
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx2 => avx2(&block),
                    _ => lanes::block::<4, false>(&block),
                }
            }
        }
    }
}

struct Block {
    rows: usize,
    depth: usize,
    columns: usize,
    a: *const f32,
    a_row: usize,
    a_column: usize,
    b: *const f32,
    b_step: usize,
    b_panel: usize,
    b_padded: bool,
    c: *mut f32,
    c_row: usize,
    accumulate: bool,
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2(block: &Block) {
    // SAFETY: the caller's contract is passed on.
    unsafe { lanes::block::<6, true>(block) }
}

/// The kernel in plain Rust: 16 columns at a time, left to the compiler to vectorise.
mod lanes {
    use super::{Block, LANES, PANEL};

    #[inline(always)]
    fn multiply_add<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
        if FUSED { a.mul_add(b, c) } else { a * b + c }
    }

    /// # Safety
    /// The pointers of `block` are valid for its extents.
    #[inline(always)]
    pub unsafe fn block<const MR: usize, const FUSED: bool>(block: &Block) {
        for column in (0..block.columns).step_by(LANES) {
            let width = LANES.min(block.columns - column);
            let mut row = 0;
            while row < block.rows {
                // SAFETY: row and column are within the block.
                unsafe {
                    if row + MR <= block.rows {
                        tile::<MR, FUSED>(block, row, column, width);
                        row += MR;
                    } else {
                        tile::<1, FUSED>(block, row, column, width);
                        row += 1;
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn tile<const MR: usize, const FUSED: bool>(
        block: &Block,
        row: usize,
        column: usize,
        width: usize,
    ) {
        // SAFETY: indices stay within rows, depth and width of the block; a padded panel is always 32 wide.
        unsafe {
            let a = block.a.add(row * block.a_row);
            let b = block.b.add((column / PANEL) * block.b_panel + column % PANEL);
            let c = block.c.add(row * block.c_row + column);
            let mut sums = [[0.0f32; LANES]; MR];
            if block.accumulate {
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
                        *sum = multiply_add::<FUSED>(factor, value, *sum);
                    }
                }
            }
            for (i, sum) in sums.iter().enumerate() {
                std::ptr::copy_nonoverlapping(sum.as_ptr(), c.add(i * block.c_row), width);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    use super::{Block, LANES, PANEL};

    const FEW: usize = 3;

    /// # Safety
    /// The machine has AVX-512F, and the pointers of `block` are valid for its extents.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn block(block: &Block) {
        let mut column = 0;
        // SAFETY: rows and columns stay within the block throughout.
        unsafe {
            // With few rows the chains of one panel cannot hide the latency of an addition: four panels at once.
            while block.rows <= FEW && column + 4 * PANEL <= block.columns {
                rows::<8, true>(block, column, LANES);
                column += 4 * PANEL;
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
    #[target_feature(enable = "avx512f")]
    unsafe fn rows<const NV: usize, const FULL: bool>(block: &Block, column: usize, tail: usize) {
        let mut row = 0;
        // SAFETY: as in `block`.
        unsafe {
            if NV <= 2 {
                while row + 12 <= block.rows {
                    tile::<12, NV, FULL>(block, row, column, tail);
                    row += 12;
                }
            }
            while row < block.rows {
                let left = block.rows - row;
                let done = match left {
                    1 => {
                        tile::<1, NV, FULL>(block, row, column, tail);
                        1
                    }
                    2 => {
                        tile::<2, NV, FULL>(block, row, column, tail);
                        2
                    }
                    3 => {
                        tile::<3, NV, FULL>(block, row, column, tail);
                        3
                    }
                    4 | 5 => {
                        tile::<4, NV, FULL>(block, row, column, tail);
                        4
                    }
                    6 | 7 => {
                        tile::<6, NV, FULL>(block, row, column, tail);
                        6
                    }
                    _ => {
                        tile::<8, NV, FULL>(block, row, column, tail);
                        8
                    }
                };
                row += done;
            }
        }
    }

    #[expect(clippy::needless_range_loop, reason = "constant bounds, so that the sums stay in registers")]
    #[inline]
    #[target_feature(enable = "avx512f")]
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
            let mut sums = [[_mm512_setzero_ps(); NV]; MR];
            if block.accumulate {
                for i in 0..MR {
                    for v in 0..NV {
                        let from = c.add(i * block.c_row + v * LANES);
                        sums[i][v] =
                            if FULL { _mm512_loadu_ps(from) } else { _mm512_maskz_loadu_ps(mask(v), from) };
                    }
                }
            }
            for k in 0..block.depth {
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
                        sums[i][v] = _mm512_fmadd_ps(factor, values[v], sums[i][v]);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
        (0..count)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1u32 << 23) as f32 - 1.0
            })
            .collect()
    }

    fn naive(m: usize, k: usize, n: usize, a: &[f32], b: &[f32]) -> Vec<f64> {
        let mut c = vec![0.0; m * n];
        for i in 0..m {
            for j in 0..n {
                c[i * n + j] = (0..k).map(|l| f64::from(a[i * k + l]) * f64::from(b[l * n + j])).sum();
            }
        }
        c
    }

    fn transpose(rows: usize, columns: usize, data: &[f32]) -> Vec<f32> {
        (0..rows * columns).map(|i| data[(i % rows) * columns + i / rows]).collect()
    }

    #[test]
    fn the_product_is_right_for_every_tile_shape_and_layout() {
        for (m, k, n) in
            [(1, 1, 1), (3, 7, 5), (13, 300, 33), (12, 16, 32), (29, 5, 47), (2, 64, 200), (260, 9, 16)]
        {
            let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
            let expected = naive(m, k, n, &a, &b);
            let (at, bt) = (transpose(m, k, &a), transpose(k, n, &b));
            let (rows, columns) = (Packed::from_rows(&b, k, n), Packed::from_columns(&bt, k, n));
            for left in [Left::rows(&a, k), Left::transposed(&at, m)] {
                for right in [Right::rows(&b, k, n), rows.right(), columns.right()] {
                    let mut c = vec![1.0; m * n];
                    gemm(m, left, right, &mut c, n, true);
                    for (got, want) in c.iter().zip(&expected) {
                        assert!((f64::from(*got) - want - 1.0).abs() < 1e-4, "{m}x{k}x{n}: {got} {want}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_is_the_same_bits_however_many_rows_are_computed_with_it() {
        let (k, n) = (300, 150);
        let (a, b) = (numbers(40 * k, 3), Packed::from_rows(&numbers(k * n, 4), k, n));
        let mut together = vec![0.0; 40 * n];
        gemm(40, Left::rows(&a, k), b.right(), &mut together, n, false);
        for rows in [1, 2, 3, 5, 7, 11, 13] {
            let mut some = vec![0.0; rows * n];
            gemm(rows, Left::rows(&a, k), b.right(), &mut some, n, false);
            assert_eq!(some, together[..rows * n], "{rows} rows");
        }
    }

    #[test]
    fn splitting_k_between_two_accumulating_calls_changes_no_bit() {
        let (m, k, n) = (5, 100, 40);
        let (a, b) = (numbers(m * k, 5), numbers(k * n, 6));
        let mut whole = vec![0.0; m * n];
        gemm(m, Left::rows(&a, k), Right::rows(&b, k, n), &mut whole, n, false);
        let mut parts = vec![0.0; m * n];
        gemm(m, Left::rows(&a, k), Right::rows(&b[..33 * n], 33, n), &mut parts, n, false);
        let rest = Left { data: &a[33..], row: k, column: 1 };
        gemm(m, rest, Right::rows(&b[33 * n..], k - 33, n), &mut parts, n, true);
        assert_eq!(whole, parts);
    }
}
