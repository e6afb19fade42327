//! Frozen weights, stored once in the layout of the product, in 32, 16 or 4 bits.
//!
//! The forward product reads panels of 32 outputs as stored. The backward product transposes tiles of them
//! into a scratch buffer that stays in cache. Formats narrower than the product's words are widened into the
//! same buffer.

pub(super) mod convert;
#[cfg(test)]
mod tests;

use std::ops::Range;

use half::{bf16, f16};

use convert::{
    decode, interleave, quantile, round_to_bf16, to_pairs, widen_bf16, widen_f16, widen_rows_bf16,
    widen_rows_f16,
};

use super::{
    LANES, Level, PANEL,
    aligned::{Aligned, as_floats_mut},
    gemm::{DEPTH, ROWS, meter},
    multiplies_bf16, multiplies_tiles, team,
    tile::{Accumulate, Block},
    transpose::transpose,
};

/// The storage format of a frozen weight, and the format of its products. Sums are always `f32`.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Products in `f32`.
    F32,
    /// Products in `f32`.
    F16,
    /// Products in bf16: the other factor is rounded to bf16 too.
    Bf16,
    /// Four bits by normal quantiles, a scale per 64 values of a row (Dettmers et al. 2023). Products in
    /// bf16.
    Nf4,
}

impl Format {
    /// Whether products round the other factor to bf16. Such a decoder's keys and values are in bf16 too.
    pub fn is_multiplied_in_bf16(self) -> bool {
        matches!(self, Self::Bf16 | Self::Nf4)
    }

    /// The format of embedding and output projection with linears of this format: at least 16 bits.
    pub fn at_the_ends(self) -> Self {
        if self == Self::Nf4 { Self::Bf16 } else { self }
    }

    /// Bytes of a weight `[outputs, inputs]`.
    pub fn bytes(self, outputs: usize, inputs: usize) -> usize {
        let columns = outputs.next_multiple_of(PANEL);
        let pairs = inputs.div_ceil(2);
        match self {
            Self::F32 => columns * inputs * size_of::<f32>(),
            Self::F16 | Self::Bf16 => columns * pairs * size_of::<u32>(),
            Self::Nf4 => columns * (pairs + inputs.div_ceil(BLOCK) * size_of::<f32>()),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Nf4 => "nf4",
        }
    }
}

/// Rows and words of depth per block of a product by tiles, which are so fast that weights and sums have to come from memory less often.
const TILED: (usize, usize) = (512, 512);
/// Values of a row that share a scale in [`Format::Nf4`].
pub const BLOCK: usize = 64;

/// Encodes the values of a row in [`Format::Nf4`]: two codes to a byte, the first in the lower half, and a scale for each
/// [`BLOCK`].
pub fn encode_nf4<'c>(
    values: &[f32],
    mut codes: impl Iterator<Item = &'c mut u8>,
    scales: impl Iterator<Item = &'c mut f32>,
) {
    for (scale, block) in scales.zip(values.chunks(BLOCK)) {
        *scale = block.iter().fold(0.0, |most: f32, value| most.max(value.abs()));
        let inverse = if *scale > 0.0 { 1.0 / *scale } else { 0.0 };
        for (pair, code) in block.chunks(2).zip(&mut codes) {
            let nearest = |value: Option<&f32>| value.map_or(7, |v| quantile(v * inverse));
            *code = nearest(pair.first()) | nearest(pair.get(1)) << 4;
        }
    }
}

/// A weight `[n, k]` (outputs, inputs).
#[derive(Debug, Clone)]
pub struct Frozen {
    n: usize,
    k: usize,
    format: Format,
    data: Data,
}

#[derive(Debug, Clone)]
enum Data {
    /// `[n / 32][k][32]`
    Words(Vec<f32>),
    /// `[n / 32][k / 2][32]`: two values of a row, the upper half first.
    Pairs(Aligned),
    /// Codes `[n / 32][k / 2][32]`, two to a byte, and scales `[n / 32][k / 64][32]`.
    Codes(Vec<u8>, Vec<f32>),
}

/// A factor of a product in the words of the kernel.
enum Words<'a> {
    Floats(&'a [f32]),
    /// Rounded to bf16, for kernels that multiply `f32`.
    Rounded(Vec<f32>),
    /// `[m, k / 2]`
    Pairs(Aligned),
}

impl Words<'_> {
    fn as_ptr(&self) -> *const f32 {
        match self {
            Self::Floats(words) => words.as_ptr(),
            Self::Rounded(words) => words.as_ptr(),
            Self::Pairs(words) => words.as_ptr().cast(),
        }
    }

    /// The most rows and words of depth of a block.
    fn block(&self) -> (usize, usize) {
        match self {
            Self::Pairs(_) if multiplies_tiles() => TILED,
            _ => (ROWS, DEPTH),
        }
    }

    /// Adds like [`super::gemm()`]. If factors are rounded to bf16, a sum is one chain: a word has two values
    /// or one, and the chain's rounding is negligible compared with theirs.
    fn accumulate(&self, accumulate: bool) -> [Accumulate; 2] {
        match self {
            Self::Floats(_) => Accumulate::Sum.blocks(accumulate),
            Self::Rounded(_) | Self::Pairs(_) => Accumulate::Chain.blocks(accumulate),
        }
    }
}

impl Frozen {
    /// Stores a weight `[n, k]` in this format. `row(i, out)` writes its row `i`.
    pub fn new(format: Format, n: usize, k: usize, mut row: impl FnMut(usize, &mut [f32])) -> Self {
        let (panels, pairs) = (n.div_ceil(PANEL), k.div_ceil(2));
        let mut data = match format {
            Format::F32 => Data::Words(vec![0.0; panels * k * PANEL]),
            Format::F16 | Format::Bf16 => Data::Pairs(Aligned::zeros(panels * pairs * PANEL)),
            Format::Nf4 => Data::Codes(
                // Both codes of a byte mean 0.
                vec![0x77; panels * pairs * PANEL],
                vec![0.0; panels * k.div_ceil(BLOCK) * PANEL],
            ),
        };
        let mut values = vec![0.0; 2 * pairs];
        for index in 0..n {
            row(index, &mut values[..k]);
            let (panel, lane) = (index / PANEL, index % PANEL);
            match &mut data {
                Data::Words(words) => {
                    let words = words[panel * k * PANEL..].iter_mut().skip(lane).step_by(PANEL);
                    words.zip(&values[..k]).for_each(|(word, value)| *word = *value);
                }
                Data::Pairs(words) => {
                    let words = words[panel * pairs * PANEL..].iter_mut().skip(lane).step_by(PANEL);
                    let bits = |value: f32| match format {
                        Format::F16 => u32::from(f16::from_f32(value).to_bits()),
                        _ => u32::from(bf16::from_f32(value).to_bits()),
                    };
                    for (word, pair) in words.zip(values.chunks_exact(2)) {
                        *word = bits(pair[0]) << 16 | bits(pair[1]);
                    }
                }
                Data::Codes(codes, scales) => {
                    let scales = scales[panel * k.div_ceil(BLOCK) * PANEL..].iter_mut();
                    let codes = codes[panel * pairs * PANEL..].iter_mut().skip(lane).step_by(PANEL);
                    encode_nf4(&values, codes, scales.skip(lane).step_by(PANEL));
                }
            }
        }
        Self { n, k, format, data }
    }

    pub fn outputs(&self) -> usize {
        self.n
    }

    pub fn inputs(&self) -> usize {
        self.k
    }

    pub fn format(&self) -> Format {
        self.format
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        match &self.data {
            Data::Words(words) => size_of_val(words.as_slice()),
            Data::Pairs(words) => size_of_val::<[u32]>(words),
            Data::Codes(codes, scales) => codes.len() + size_of_val(scales.as_slice()),
        }
    }

    /// Writes row `index` to `out`, `[k]`.
    pub fn row(&self, index: usize, out: &mut [f32]) {
        let (panel, lane) = (index / PANEL, index % PANEL);
        let pairs = self.k.div_ceil(2);
        if let Data::Words(words) = &self.data {
            let words = words[panel * self.k * PANEL..].iter().skip(lane).step_by(PANEL);
            out.iter_mut().zip(words).for_each(|(out, word)| *out = *word);
            return;
        }
        let mut words = [0u32; PANEL];
        for (pair, out) in out.chunks_mut(2).enumerate().take(pairs) {
            let word = match &self.data {
                Data::Pairs(stored) => stored[(panel * pairs + pair) * PANEL + lane],
                _ => {
                    self.pairs(panel, pair..pair + 1, &mut words);
                    words[lane]
                }
            };
            let halves = [word & 0xffff_0000, word << 16];
            for (out, half) in out.iter_mut().zip(halves) {
                *out = match self.format {
                    Format::F16 => f16::from_bits((half >> 16) as u16).to_f32(),
                    _ => f32::from_bits(half),
                };
            }
        }
    }

    /// `y = x·Wᵀ`, or `y += x·Wᵀ`; `x`: `[m, k]`, `y`: `[m, n]`.
    pub fn forward(&self, x: &[f32], y: &mut [f32], accumulate: bool) {
        self.product(x, self.k, y, self.n, |m, words, run, y| self.forward_run(m, words, run, y, accumulate));
    }

    /// `dx = dy·W`, or `dx += dy·W`; `dy`: `[m, n]`, `dx`: `[m, k]`.
    pub fn backward(&self, dy: &[f32], dx: &mut [f32], accumulate: bool) {
        self.product(dy, self.n, dx, self.k, |m, words, run, dx| {
            self.backward_run(m, words, run, dx, accumulate);
        });
    }

    /// Calls `compute` for runs of columns of the result, with the number of rows and the other factor.
    fn product(
        &self,
        x: &[f32],
        width: usize,
        out: &mut [f32],
        columns: usize,
        compute: impl Fn(usize, &Words<'_>, Range<usize>, team::Shared) + Sync,
    ) {
        let m = x.len() / width;
        assert!(
            x.len() == m * width && Some(out.len()) == m.checked_mul(columns),
            "a factor has {} values and the result {} for a weight {}x{}",
            x.len(),
            out.len(),
            self.n,
            self.k
        );
        let words = self.words(x, m, width);
        let out = team::Shared::new(out);
        let threads = team::threads(m * self.n * self.k);
        let runs = team::runs(columns, PANEL, threads);
        team::share(threads, runs.len(), |index| {
            let run = runs[index].clone();
            meter(m * run.len() * width, || compute(m, &words, run, out));
        });
    }

    fn forward_run(&self, m: usize, a: &Words<'_>, run: Range<usize>, y: team::Shared, accumulate: bool) {
        let (depth, accumulate) = (self.depth(a, self.k), a.accumulate(accumulate));
        let (most_rows, most_depth) = a.block();
        #[cfg(target_arch = "x86_64")]
        if let (Data::Codes(..), Words::Pairs(words)) = (&self.data, a)
            && multiplies_tiles()
            && m <= super::amx::FEW
        {
            let block = Block {
                rows: m,
                depth,
                columns: run.len(),
                a: words.as_ptr().cast(),
                a_row: depth,
                a_column: 1,
                b: std::ptr::null(),
                b_step: PANEL,
                b_panel: 0,
                b_padded: true,
                c: y.at(run.start),
                c_row: self.n,
                accumulate: accumulate[0],
            };
            let first = run.start / PANEL;
            // SAFETY: `a` is `[m, depth]`, and the columns are those of this run.
            unsafe {
                super::amx::block_of_few_rows(&block, |panel, words, out| {
                    self.pairs(first + panel, words, out);
                });
            }
            return;
        }
        let decoded = if matches!(self.data, Data::Codes(..)) { most_depth * PANEL } else { 0 };
        let (mut scratch, mut pairs) = (Vec::new(), Aligned::zeros(decoded));
        let widens = self.widens_in_registers(m, a);
        for row in (0..m).step_by(most_rows) {
            for start in (0..depth).step_by(most_depth) {
                let span = start..depth.min(start + most_depth);
                let block = |columns, b: *const f32, b_panel, c: *mut f32| Block {
                    rows: most_rows.min(m - row),
                    depth: if widens { span.len() / 2 } else { span.len() },
                    columns,
                    // SAFETY: `a` is `[m, depth]`.
                    a: unsafe { a.as_ptr().add(row * depth + start) },
                    a_row: depth,
                    a_column: 1,
                    b,
                    b_step: PANEL,
                    b_panel,
                    b_padded: true,
                    c,
                    c_row: self.n,
                    accumulate: accumulate[usize::from(start > 0)],
                };
                // Words of `B` in a panel, and the first of them.
                let (panel, first) = if widens { (depth / 2, start / 2) } else { (depth, start) };
                let at = (run.start / PANEL * panel + first) * PANEL;
                let stored = match (&self.data, a) {
                    (Data::Words(words), Words::Floats(_)) => Some(words[at..].as_ptr()),
                    (Data::Pairs(words), Words::Pairs(_)) => Some(words[at..].as_ptr().cast()),
                    (Data::Pairs(words), Words::Rounded(_)) if widens => Some(words[at..].as_ptr().cast()),
                    _ => None,
                };
                if let Some(b) = stored {
                    let block = block(run.len(), b, panel * PANEL, y.at(row * self.n + run.start));
                    // SAFETY: panels as the weight stores them, of these rows and columns.
                    unsafe { run_block(&block, a, widens) };
                    continue;
                }
                for columns in run.clone().step_by(PANEL) {
                    let b = match a {
                        _ if widens => {
                            self.pairs(columns / PANEL, start / 2..span.end / 2, &mut pairs);
                            pairs.as_ptr().cast()
                        }
                        Words::Pairs(_) => {
                            self.pairs(columns / PANEL, span.clone(), &mut pairs);
                            pairs.as_ptr().cast()
                        }
                        _ => {
                            scratch.resize(span.len().next_multiple_of(2) * PANEL, 0.0);
                            self.widened(columns / PANEL, span.clone(), &mut pairs, &mut scratch);
                            scratch.as_ptr()
                        }
                    };
                    let c = y.at(row * self.n + columns);
                    // SAFETY: one panel, as long as the block is deep.
                    unsafe { run_block(&block(PANEL.min(run.end - columns), b, 0, c), a, widens) };
                }
            }
        }
    }

    fn backward_run(&self, m: usize, a: &Words<'_>, run: Range<usize>, dx: team::Shared, accumulate: bool) {
        let (depth, accumulate) = (self.depth(a, self.n), a.accumulate(accumulate));
        // Outputs per word.
        let span = if matches!(a, Words::Pairs(_)) { 2 } else { 1 };
        let (most_rows, most_depth) = a.block();
        // More than forward, since each block transposes the weight again.
        let most_rows = 4 * most_rows;
        let mut scratch = Aligned::zeros(most_depth * PANEL);
        let scratch = as_floats_mut(&mut scratch);
        for row in (0..m).step_by(most_rows) {
            for start in (0..depth).step_by(most_depth) {
                let words = most_depth.min(depth - start);
                for columns in run.clone().step_by(PANEL) {
                    let outputs = start * span..(start + words) * span;
                    let tiles = scratch.chunks_exact_mut(PANEL / span * PANEL);
                    for (tile, output) in tiles.zip(outputs.step_by(PANEL)) {
                        self.tile(output / PANEL, columns, span == 2, tile);
                    }
                    let block = Block {
                        rows: most_rows.min(m - row),
                        depth: words,
                        columns: PANEL.min(run.end - columns),
                        // SAFETY: `a` is `[m, depth]`.
                        a: unsafe { a.as_ptr().add(row * depth + start) },
                        a_row: depth,
                        a_column: 1,
                        b: scratch.as_ptr(),
                        b_step: PANEL,
                        b_panel: 0,
                        b_padded: true,
                        c: dx.at(row * self.k + columns),
                        c_row: self.k,
                        accumulate: accumulate[usize::from(start > 0)],
                    };
                    // SAFETY: one panel of the scratch, as long as the block is deep.
                    unsafe { run_block(&block, a, false) };
                }
            }
        }
    }

    /// Whether a product of `m` rows in bf16 widens the weight in registers.
    fn widens_in_registers(&self, m: usize, a: &Words<'_>) -> bool {
        let is_able = cfg!(target_arch = "x86_64") && Level::get() == Level::Avx2;
        is_able && m <= Block::FEW && self.k.is_multiple_of(2) && matches!(a, Words::Rounded(_))
    }

    /// Words of a chain of `count` values.
    fn depth(&self, words: &Words<'_>, count: usize) -> usize {
        if matches!(words, Words::Pairs(_)) { count.div_ceil(2) } else { count }
    }

    /// A factor `[m, k]` in the form for this format's product.
    fn words<'a>(&self, x: &'a [f32], m: usize, k: usize) -> Words<'a> {
        match self.format {
            Format::F32 | Format::F16 => Words::Floats(x),
            Format::Bf16 | Format::Nf4 if multiplies_bf16() => {
                let half = k.div_ceil(2);
                let mut pairs = Aligned::zeros(m * half);
                let threads = team::threads(m * k);
                let (shared, runs) = (team::Shared::new(&mut pairs), team::runs(m, 1, threads));
                team::share(threads, runs.len(), |index| {
                    let run = runs[index].clone();
                    // SAFETY: the runs are apart.
                    let pairs = unsafe { shared.range(run.start * half..run.end * half) };
                    to_pairs(&x[run.start * k..run.end * k], k, k, pairs);
                });
                Words::Pairs(pairs)
            }
            Format::Bf16 | Format::Nf4 => {
                let mut rounded = x.to_vec();
                round_to_bf16(&mut rounded);
                Words::Rounded(rounded)
            }
        }
    }

    /// Pairs of 4-bit codes (`pairs` of the inputs, 32 outputs) as bf16: `[pairs, 32]`.
    fn pairs(&self, panel: usize, pairs: Range<usize>, out: &mut [u32]) {
        let Data::Codes(codes, scales) = &self.data else { return };
        let (pairs_of_row, blocks) = (self.k.div_ceil(2), self.k.div_ceil(BLOCK));
        let (mut start, mut out) = (pairs.start, out);
        while start < pairs.end {
            let block = start * 2 / BLOCK;
            let end = pairs.end.min((block + 1) * BLOCK / 2);
            let (decoded, rest) = out.split_at_mut((end - start) * PANEL);
            let codes = &codes[(panel * pairs_of_row + start) * PANEL..][..decoded.len()];
            decode(codes, &scales[(panel * blocks + block) * PANEL..][..PANEL], decoded);
            (start, out) = (end, rest);
        }
    }

    /// Values `span` of the inputs for 32 outputs, as `f32`: `[span, 32]`. The span starts at an even input.
    fn widened(&self, panel: usize, span: Range<usize>, pairs: &mut [u32], out: &mut [f32]) {
        let range = span.start / 2..span.end.div_ceil(2);
        let pairs_of_row = self.k.div_ceil(2);
        match (&self.data, self.format) {
            (Data::Words(_), _) => {}
            (Data::Pairs(words), format) => {
                let words = &words[(panel * pairs_of_row + range.start) * PANEL..][..range.len() * PANEL];
                match format {
                    Format::F16 => widen_f16(words, PANEL, out),
                    _ => widen_bf16(words, PANEL, out),
                }
            }
            (Data::Codes(..), _) => {
                let pairs = &mut pairs[..range.len() * PANEL];
                self.pairs(panel, range, pairs);
                widen_bf16(pairs, PANEL, out);
            }
        }
    }

    /// Prefetches the tile that is transposed next.
    fn prefetch(&self, panel: usize, column: usize) {
        #[cfg(target_arch = "x86_64")]
        if column < self.k {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            let pairs = self.k.div_ceil(2);
            let (from, bytes): (*const u8, usize) = match &self.data {
                Data::Words(words) => (words[(panel * self.k + column) * PANEL..].as_ptr().cast(), 4096),
                Data::Pairs(words) => (words[(panel * pairs + column / 2) * PANEL..].as_ptr().cast(), 2048),
                Data::Codes(codes, _) => (codes[(panel * pairs + column / 2) * PANEL..].as_ptr(), 512),
            };
            for line in (0..bytes).step_by(64) {
                // SAFETY: a hint; it reads nothing.
                unsafe { _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(line).cast()) };
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (panel, column);
    }

    /// The tile of 32 outputs (those of `panel`) and 32 inputs from `column` on, outputs first: `[32, 32]`
    /// values, or `[16, 32]` pairs of outputs. Padded with 0 beyond the weight.
    fn tile(&self, panel: usize, column: usize, pairs: bool, out: &mut [f32]) {
        let pairs_of_row = self.k.div_ceil(2);
        self.prefetch(panel, column + PANEL);
        if let Data::Words(words) = &self.data {
            let inputs = PANEL.min(self.k - column);
            let from = &words[(panel * self.k + column) * PANEL..][..inputs * PANEL];
            let mut whole = [0.0; PANEL * PANEL];
            let from = if inputs == PANEL {
                from
            } else {
                whole[..from.len()].copy_from_slice(from);
                &whole
            };
            for (i, j) in [(0, 0), (0, LANES), (LANES, 0), (LANES, LANES)] {
                transpose(&from[i * PANEL + j..], PANEL, &mut out[j * PANEL + i..], PANEL);
            }
            return;
        }
        let range = column / 2..pairs_of_row.min(column / 2 + LANES);
        let mut whole = [0u32; LANES * PANEL];
        let from = match &self.data {
            Data::Pairs(words) if range.len() == LANES => {
                &words[(panel * pairs_of_row + range.start) * PANEL..][..LANES * PANEL]
            }
            Data::Pairs(words) => {
                let from = &words[(panel * pairs_of_row + range.start) * PANEL..][..range.len() * PANEL];
                whole[..from.len()].copy_from_slice(from);
                &whole
            }
            _ => {
                self.pairs(panel, range, &mut whole);
                &whole
            }
        };
        // `[32 outputs, 16 pairs of inputs]`
        let mut rows = [0u32; PANEL * LANES];
        for half in [0, LANES] {
            // SAFETY: every bit pattern is an `f32`, and both are as large and as aligned.
            let from = unsafe { std::slice::from_raw_parts(from.as_ptr().cast::<f32>(), from.len()) };
            transpose(&from[half..], PANEL, as_floats_mut(&mut rows[half * LANES..]), LANES);
        }
        match (pairs, self.format) {
            (true, _) => {
                // SAFETY: as above, for writing.
                let out =
                    unsafe { std::slice::from_raw_parts_mut(out.as_mut_ptr().cast::<u32>(), out.len()) };
                interleave(&rows, out);
            }
            (false, Format::F16) => widen_rows_f16(&rows, out),
            (false, _) => widen_rows_bf16(&rows, out),
        }
    }
}

/// # Safety
/// Every extent of the block lies within the weight and the factors, and no other thread writes its columns.
unsafe fn run_block(block: &Block, words: &Words<'_>, widens: bool) {
    let _ = widens;
    // SAFETY: the caller's contract is passed on; pairs are made, and weights widened, only where the machine can.
    unsafe {
        match words {
            #[cfg(target_arch = "x86_64")]
            _ if widens => block.run_widening(),
            #[cfg(target_arch = "x86_64")]
            Words::Pairs(_) if multiplies_tiles() => super::amx::block(block),
            #[cfg(target_arch = "x86_64")]
            Words::Pairs(_) => block.run_pairs(),
            _ => block.run(Level::get()),
        }
    }
}
