//! Matrix product `C = A·B` or `C += A·B`, with `A` at any strides and `B` row-major or packed.
//!
//! Each element of `C` is a sum of chains of fused multiply-adds, one for each 256 of ascending `k`, added in
//! order, whatever the number of rows. The rounding error of a single chain over all of `k` grows faster
//! (Higham, "The Accuracy of Floating Point Summation", 1993; figures in dev/log.md). Parts of an operation
//! that may be split anywhere along `k` are one chain ([`local_gemm`]).

use std::{
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Instant,
};

use super::{
    Level, multiplies_bf16, team,
    tile::{Accumulate, Block, PANEL},
};

/// Depth of `k` per block, so that a panel stays in the first-level cache. Also the length of a chain.
pub(super) const DEPTH: usize = 256;
/// Rows of the largest tile.
const TILE: usize = 12;
/// Rows per block, so that their part of `A` stays in the second-level cache.
pub(super) const ROWS: usize = 252;

/// `B` of shape `[k, n]`, rearranged as `[n / 32][k][32]` and padded with zeros.
#[derive(Debug, Clone)]
pub struct Packed {
    k: usize,
    n: usize,
    data: Vec<f32>,
}

impl Packed {
    /// From the transpose: `b` is `[n, k]`, row-major, as weights are stored.
    pub fn from_columns(b: &[f32], k: usize, n: usize) -> Self {
        assert!(reach([(n, k)], 0) <= b.len(), "B has {} values, needs {n}x{k}", b.len());
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

    pub fn bytes(&self) -> usize {
        size_of_val(self.data.as_slice())
    }

    pub fn right(&self) -> Rhs<'_> {
        Rhs::packed(&self.data, self.k, self.n)
    }
}

/// `A`, `[m, k]`: element `(i, j)` is `data[i * row + j * column]`.
#[derive(Clone, Copy)]
pub struct Lhs<'a, W = f32> {
    pub data: &'a [W],
    pub row: usize,
    pub column: usize,
}

impl<'a, W> Lhs<'a, W> {
    pub fn rows(data: &'a [W], k: usize) -> Self {
        Self { data, row: k, column: 1 }
    }

    /// The transpose of a row-major `[k, m]`.
    pub fn transposed(data: &'a [W], m: usize) -> Self {
        Self { data, row: 1, column: m }
    }
}

/// `B`, `[k, n]`.
#[derive(Clone, Copy)]
pub struct Rhs<'a, W = f32> {
    data: &'a [W],
    k: usize,
    n: usize,
    /// Words from one `k` to the next.
    step: usize,
    /// Words from one panel of 32 columns to the next.
    panel: usize,
    /// Whether the last panel is padded to full width.
    padded: bool,
}

impl<'a, W> Rhs<'a, W> {
    pub fn rows(data: &'a [W], k: usize, n: usize) -> Self {
        Self::strided(data, k, n, n)
    }

    /// Row-major with `step` words from row to row.
    pub fn strided(data: &'a [W], k: usize, n: usize, step: usize) -> Self {
        assert!(
            k == 0 || reach([(k - 1, step)], n) <= data.len(),
            "B has {} values, needs {k}x{n} at stride {step}",
            data.len()
        );
        Self { data, k, n, step, panel: PANEL, padded: false }
    }

    /// Panels in the layout of [`Packed`].
    pub fn packed(data: &'a [W], k: usize, n: usize) -> Self {
        let panel = k.saturating_mul(PANEL);
        assert!(
            reach([(n.div_ceil(PANEL), panel)], 0) <= data.len(),
            "packed B has {} values, needs {k}x{n}",
            data.len()
        );
        Self { data, k, n, step: PANEL, panel, padded: true }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
impl Rhs<'_> {
    pub fn depth(&self) -> usize {
        self.k
    }

    pub fn at(&self, k: usize, column: usize) -> f32 {
        self.data[column / PANEL * self.panel + k * self.step + column % PANEL]
    }
}

/// One past the last index for these strides (count, distance), plus `more`. On overflow, `usize::MAX`, which
/// no slice reaches.
fn reach<const N: usize>(distances: [(usize, usize); N], more: usize) -> usize {
    distances.into_iter().fold(more, |at, (times, step)| at.saturating_add(times.saturating_mul(step)))
}

/// A word of a product: an `f32`, or a pair of bf16 that are adjacent in `k`, the upper half first.
pub(super) trait Word: Copy + Sync {
    /// Values in a word.
    const VALUES: usize;

    /// # Safety
    /// As [`Block::run`]; pairs only where [`super::multiplies_bf16`].
    unsafe fn run(block: &Block);
}

impl Word for f32 {
    const VALUES: usize = 1;

    unsafe fn run(block: &Block) {
        // SAFETY: the caller's contract is passed on; the level was detected.
        unsafe { block.run(Level::get()) }
    }
}

impl Word for u32 {
    const VALUES: usize = 2;

    #[cfg(target_arch = "x86_64")]
    unsafe fn run(block: &Block) {
        // SAFETY: the caller's contract is passed on.
        unsafe { block.run_pairs() }
    }

    #[cfg(not(target_arch = "x86_64"))]
    unsafe fn run(_: &Block) {
        unreachable!("no such machine multiplies pairs")
    }
}

static METERED: AtomicBool = AtomicBool::new(false);
static NANOSECONDS: AtomicU64 = AtomicU64::new(0);
static OPERATIONS: AtomicU64 = AtomicU64::new(0);

/// Seconds that all threads spend in [`gemm`] during `work`, and the floating-point operations. For
/// benchmarks: concurrent measurements mix their counts.
pub fn metered<T>(work: impl FnOnce() -> T) -> (T, f64, f64) {
    NANOSECONDS.store(0, Ordering::Relaxed);
    OPERATIONS.store(0, Ordering::Relaxed);
    METERED.store(true, Ordering::Relaxed);
    let result = work();
    METERED.store(false, Ordering::Relaxed);
    (result, NANOSECONDS.load(Ordering::Relaxed) as f64 / 1e9, OPERATIONS.load(Ordering::Relaxed) as f64)
}

/// Counts `work` of this many multiply-adds if a measurement is running.
pub(super) fn meter(operations: usize, work: impl FnOnce()) {
    let started = METERED.load(Ordering::Relaxed).then(Instant::now);
    work();
    if let Some(started) = started {
        NANOSECONDS.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
        OPERATIONS.fetch_add(2 * operations as u64, Ordering::Relaxed);
    }
}

/// `c[i * stride + j] = Σ a(i, k) b(k, j)`, added to the old value if `accumulate`.
///
/// # Panics
/// If `a` or `c` is too short for its extent, or rows of `c` overlap: `stride` is less than `b`'s columns.
pub fn gemm(m: usize, a: Lhs<'_>, b: Rhs<'_>, c: &mut [f32], stride: usize, accumulate: bool) {
    let threads = team::threads(m.saturating_mul(b.n).saturating_mul(b.k));
    let accumulate = Accumulate::Sum.blocks(accumulate);
    on(f32::run, threads, m, a, b, (team::Shared::new(c), 0), stride, accumulate);
}

/// [`gemm`] on the current thread, into `c` from an index on: for parts of an operation that is already
/// divided. Each element is one chain, which continues from `c` if `accumulate`.
///
/// Panics like [`gemm`], and on pairs of bf16 if the machine does not multiply them
/// ([`super::multiplies_bf16`]).
pub(super) fn local_gemm<W: Word>(
    m: usize,
    a: Lhs<'_, W>,
    b: Rhs<'_, W>,
    c: (team::Shared, usize),
    stride: usize,
    accumulate: bool,
) {
    on(W::run, 1, m, a, b, c, stride, Accumulate::Chain.blocks(accumulate));
}

/// [`local_gemm`] of pairs, by tiles where the machine has them. An element's chain then depends on where in `k` the call begins, so
/// callers either have all of `k` in one call or need no more than the same bits for the same calls.
pub(super) fn tiled_gemm(
    m: usize,
    a: Lhs<'_, u32>,
    b: Rhs<'_, u32>,
    c: (team::Shared, usize),
    stride: usize,
    accumulate: bool,
) {
    #[cfg(target_arch = "x86_64")]
    if super::multiplies_tiles() {
        let accumulate = Accumulate::Chain.blocks(accumulate);
        return on(super::amx::block, 1, m, a, b, c, stride, accumulate);
    }
    local_gemm(m, a, b, c, stride, accumulate);
}

#[expect(clippy::too_many_arguments, reason = "a product and how it is computed")]
fn on<W: Word>(
    run: unsafe fn(&Block),
    threads: usize,
    m: usize,
    a: Lhs<'_, W>,
    b: Rhs<'_, W>,
    (c, at): (team::Shared, usize),
    stride: usize,
    accumulate: [Accumulate; 2],
) {
    let (k, n) = (b.k, b.n);
    if m == 0 || n == 0 || (k == 0 && accumulate[0] != Accumulate::No) {
        return;
    }
    assert!(W::VALUES == 1 || multiplies_bf16(), "this machine does not multiply pairs of bf16");
    // Different threads write rows of `C`.
    assert!(m == 1 || stride >= n, "rows of C overlap: {n} columns at stride {stride}");
    // The end of the last row: asserts that it lies within.
    c.at(reach([(m - 1, stride)], at.saturating_add(n)));
    if k == 0 {
        // SAFETY: rows of this product, which nothing else writes.
        (0..m).for_each(|row| unsafe { c.range(at + row * stride..at + row * stride + n) }.fill(0.0));
        return;
    }
    assert!(
        reach([(m - 1, a.row), (k - 1, a.column)], 1) <= a.data.len(),
        "A has {} values, needs {m}x{k} at strides {}, {}",
        a.data.len(),
        a.row,
        a.column
    );
    let part = |rows: Range<usize>, columns: Range<usize>| {
        let operations = rows.len() * columns.len() * k * W::VALUES;
        meter(operations, || product(run, rows, columns, a, b, (c, at), stride, accumulate));
    };
    if threads <= 1 {
        part(0..m, 0..n);
    } else if m >= n {
        let runs = team::runs(m, TILE, threads);
        team::share(threads, runs.len(), |index| part(runs[index].clone(), 0..n));
    } else {
        let runs = team::runs(n, PANEL, threads);
        team::share(threads, runs.len(), |index| part(0..m, runs[index].clone()));
    }
}

/// The part of a product in these rows and columns. The first column is at the start of a panel.
#[expect(clippy::too_many_arguments, reason = "a product and how it is computed")]
fn product<W: Word>(
    run: unsafe fn(&Block),
    rows: Range<usize>,
    columns: Range<usize>,
    a: Lhs<'_, W>,
    b: Rhs<'_, W>,
    (c, at): (team::Shared, usize),
    stride: usize,
    accumulate: [Accumulate; 2],
) {
    for row in rows.clone().step_by(ROWS) {
        for depth in (0..b.k).step_by(DEPTH) {
            let block = Block {
                rows: ROWS.min(rows.end - row),
                depth: DEPTH.min(b.k - depth),
                columns: columns.len(),
                a: a.data[row * a.row + depth * a.column..].as_ptr().cast(),
                a_row: a.row,
                a_column: a.column,
                b: b.data[depth * b.step + columns.start / PANEL * b.panel..].as_ptr().cast(),
                b_step: b.step,
                b_panel: b.panel,
                b_padded: b.padded,
                c: c.at(at + row * stride + columns.start),
                c_row: stride,
                accumulate: accumulate[usize::from(depth > 0)],
            };
            // SAFETY: `on` checked every extent that the block reaches, and parts are disjoint. Callers with
            // pairs checked that the machine multiplies them.
            unsafe { run(&block) };
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// Values in ±1, determined by the seed.
    pub fn numbers(count: usize, seed: u32) -> Vec<f32> {
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
            let packed = Packed::from_columns(&bt, k, n);
            for left in [Lhs::rows(&a, k), Lhs::transposed(&at, m)] {
                for right in [Rhs::rows(&b, k, n), packed.right()] {
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
        let (a, b) = (numbers(40 * k, 3), Packed::from_columns(&numbers(k * n, 4), k, n));
        let mut together = vec![0.0; 40 * n];
        gemm(40, Lhs::rows(&a, k), b.right(), &mut together, n, false);
        for rows in [1, 2, 3, 5, 7, 11, 13] {
            let mut some = vec![0.0; rows * n];
            gemm(rows, Lhs::rows(&a, k), b.right(), &mut some, n, false);
            assert_eq!(some, together[..rows * n], "{rows} rows");
        }
    }

    #[test]
    fn a_product_with_overlapping_rows_or_extents_beyond_its_slices_panics() {
        let values = vec![1.0; 64];
        let panics = |work: &dyn Fn()| catch_unwind(AssertUnwindSafe(work)).is_err();
        let refused = |m, left: Lhs<'_>, stride| {
            let right = Rhs::rows(&values, 8, 8);
            panics(&|| gemm(m, left, right, &mut [0.0; 64], stride, false))
        };
        let left = Lhs::rows(&values, 8);
        // Twice this overflows `usize` to 0.
        let wraps = usize::MAX / 2 + 1;
        assert!(!refused(8, left, 8) && !refused(1, left, 0));
        assert!(refused(8, left, 7), "rows of C overlap");
        assert!(refused(9, left, 8) && refused(3, left, wraps), "C is too short");
        assert!(refused(3, Lhs { row: wraps, ..left }, 8) && refused(8, Lhs { row: 9, ..left }, 8));
        assert!(panics(&|| _ = Rhs::strided(&values, 3, 8, wraps)));
        assert!(panics(&|| _ = Rhs::packed(&values, wraps, 33)));
        assert!(panics(&|| _ = Packed::from_columns(&values, wraps, 2)));
    }

    #[test]
    fn splitting_a_chain_between_two_accumulating_calls_changes_no_bit() {
        let (m, k, n) = (5, 100, 40);
        let (a, b) = (numbers(m * k, 5), numbers(k * n, 6));
        let product = |left: Lhs<'_>, right: Rhs<'_>, c: &mut [f32], accumulate| {
            local_gemm(m, left, right, (team::Shared::new(c), 0), n, accumulate);
        };
        let mut whole = vec![0.0; m * n];
        product(Lhs::rows(&a, k), Rhs::rows(&b, k, n), &mut whole, false);
        let mut parts = vec![0.0; m * n];
        product(Lhs::rows(&a, k), Rhs::rows(&b[..33 * n], 33, n), &mut parts, false);
        let rest = Lhs { data: &a[33..], row: k, column: 1 };
        product(rest, Rhs::rows(&b[33 * n..], k - 33, n), &mut parts, true);
        assert_eq!(whole, parts);
    }

    #[test]
    fn long_sums_have_a_smaller_error_than_one_chain() {
        let (m, k, n) = (8, 6000, 64);
        let (a, b) = (numbers(m * k, 7), numbers(k * n, 8));
        let expected = naive(m, k, n, &a, &b);
        let error =
            |c: &[f32]| c.iter().zip(&expected).map(|(c, want)| (f64::from(*c) - want).abs()).sum::<f64>();
        let (mut parts, mut chain) = (vec![0.0; m * n], vec![0.0; m * n]);
        gemm(m, Lhs::rows(&a, k), Rhs::rows(&b, k, n), &mut parts, n, false);
        local_gemm(m, Lhs::rows(&a, k), Rhs::rows(&b, k, n), (team::Shared::new(&mut chain), 0), n, false);
        assert!(error(&parts) < 0.5 * error(&chain), "{} {}", error(&parts), error(&chain));
    }
}
