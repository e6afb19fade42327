//! Converts stored formats to the words of products.

use super::super::{LANES, Level, PANEL, multiversion};

/// Quantiles of a normal distribution, scaled to ±1 (Dettmers et al. 2023, appendix E).
const QUANTILES: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// The two values of each byte of codes, before their scale.
pub fn nf4_pairs() -> Vec<f32> {
    let value = |code: u8| QUANTILES[usize::from(code)];
    (0..=u8::MAX).flat_map(|byte| [value(byte & 15), value(byte >> 4)]).collect()
}

/// The code of the quantile nearest to `value`.
pub fn quantile(value: f32) -> u8 {
    let above = QUANTILES.partition_point(|quantile| *quantile < value).clamp(1, 15);
    let nearer = value - QUANTILES[above - 1] <= QUANTILES[above] - value;
    (above - usize::from(nearer)) as u8
}

/// The bits of `value` rounded to bf16 (to nearest, ties to even), in the upper half.
#[inline(always)]
pub fn rounded(value: f32) -> u32 {
    let bits = value.to_bits();
    bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000
}

multiversion! {
    /// Rows of `k` values, a stride apart, as pairs of bf16 along the row: `[rows, k / 2]`, the first of a
    /// pair in the upper half. An odd row ends with 0.
    pub fn to_pairs(x: &[f32], stride: usize, k: usize, out: &mut [u32]) {
        for (row, out) in out.chunks_exact_mut(k.div_ceil(2)).enumerate() {
            let (pairs, rest) = x[row * stride..][..k].as_chunks::<2>();
            let (out, last) = out.split_at_mut(pairs.len());
            for i in 0..pairs.len() {
                out[i] = rounded(pairs[i][0]) | rounded(pairs[i][1]) >> 16;
            }
            for (last, value) in last.iter_mut().zip(rest) {
                *last = rounded(*value);
            }
        }
    }
}

multiversion! {
    /// `rows` rows of this width, a stride apart, as pairs of neighbours: `[rows / 2, width]`, the first in
    /// the upper half. An odd last row is paired with zeros.
    pub fn rows_to_pairs(x: &[f32], stride: usize, rows: usize, width: usize, out: &mut Vec<u32>) {
        out.resize(rows.div_ceil(2) * width, 0);
        for (pair, out) in out.chunks_exact_mut(width).enumerate() {
            let first = &x[2 * pair * stride..][..width];
            if 2 * pair + 1 == rows {
                for i in 0..width {
                    out[i] = rounded(first[i]);
                }
                continue;
            }
            let second = &x[(2 * pair + 1) * stride..][..width];
            for i in 0..width {
                out[i] = rounded(first[i]) | rounded(second[i]) >> 16;
            }
        }
    }
}

multiversion! {
    /// Rounds to bf16 in place.
    pub fn round_to_bf16(x: &mut [f32]) {
        for x in x {
            *x = f32::from_bits(rounded(*x));
        }
    }
}

/// Rows of 32 pairs of codes as pairs of bf16, the scales those of every row.
pub fn decode(codes: &[u8], scales: &[f32], out: &mut [u32]) {
    assert!(scales.len() == PANEL && codes.len() == out.len(), "rows of a panel");
    #[cfg(target_arch = "x86_64")]
    {
        let rows = codes.len() / PANEL;
        let (codes, scales, out) = (codes.as_ptr(), scales.as_ptr(), out.as_mut_ptr());
        match Level::get() {
            Level::Avx512 if super::super::multiplies_bf16() => {
                // SAFETY: the features were detected, and the lengths checked.
                return unsafe { avx512::decode_by_conversion(rows, codes, scales, out) };
            }
            // SAFETY: as above.
            Level::Avx512 => return unsafe { avx512::decode(rows, codes, scales, out) },
            // SAFETY: as above.
            Level::Avx2 => return unsafe { avx2::decode(rows, codes, scales, out) },
            Level::Portable => {}
        }
    }
    for (codes, out) in codes.chunks_exact(PANEL).zip(out.chunks_exact_mut(PANEL)) {
        for ((code, scale), out) in codes.iter().zip(scales).zip(out) {
            let value = |code: u8| rounded(QUANTILES[usize::from(code)] * scale);
            *out = value(code & 15) | value(code >> 4) >> 16;
        }
    }
}

/// The value of a half-precision number.
#[inline(always)]
pub fn half_value(bits: u32) -> f32 {
    // In f32's fields the exponent is 112 too small. A multiplication corrects it, for subnormals too.
    let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
    f32::from_bits(magnitude.to_bits() | (bits & 0x8000) << 16)
}

/// Pairs of rows, `[pairs, width]`, as values `[2 · pairs, width]`.
macro_rules! widen {
    ($name:ident, $value:expr) => {
        multiversion! {
            pub fn $name(pairs: &[u32], width: usize, out: &mut [f32]) {
                for (pairs, out) in pairs.chunks_exact(width).zip(out.chunks_exact_mut(2 * width)) {
                    let (first, second) = out.split_at_mut(width);
                    for ((pair, first), second) in pairs.iter().zip(first).zip(second) {
                        *first = $value(*pair >> 16);
                        *second = $value(*pair & 0xffff);
                    }
                }
            }
        }
    };
}
widen!(widen_bf16, |bits: u32| f32::from_bits(bits << 16));
widen!(widen_f16, half_value);

/// Pairs `[rows, 16]` as values `[rows, 32]`.
macro_rules! widen_rows {
    ($name:ident, $value:expr) => {
        multiversion! {
            pub fn $name(pairs: &[u32], out: &mut [f32]) {
                for (pair, out) in pairs.iter().zip(out.chunks_exact_mut(2)) {
                    out[0] = $value(*pair >> 16);
                    out[1] = $value(*pair & 0xffff);
                }
            }
        }
    };
}
widen_rows!(widen_rows_bf16, |bits: u32| f32::from_bits(bits << 16));
widen_rows!(widen_rows_f16, half_value);

/// Rows of 16 pairs in `k` as pairs of rows: `[32, 16]` to `[16, 32]`.
pub fn interleave(rows: &[u32], out: &mut [u32]) {
    assert!(rows.len().is_multiple_of(PANEL) && rows.len() == out.len(), "pairs of rows of 16");
    #[cfg(target_arch = "x86_64")]
    if Level::get() == Level::Avx512 {
        // SAFETY: the level was detected, and the lengths checked.
        return unsafe { avx512::interleave(rows.as_ptr(), out.as_mut_ptr(), rows.len() / PANEL) };
    }
    for (rows, out) in rows.chunks_exact(2 * LANES).zip(out.chunks_exact_mut(PANEL)) {
        let (first, second) = rows.split_at(LANES);
        for ((first, second), out) in first.iter().zip(second).zip(out.chunks_exact_mut(2)) {
            out[0] = first & 0xffff_0000 | second >> 16;
            out[1] = first << 16 | second & 0xffff;
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::{PANEL, QUANTILES};

    /// Lanes of a vector.
    const WIDTH: usize = 8;

    /// # Safety
    /// Rows and scales have 32 values each, and the machine has AVX2.
    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn decode(rows: usize, codes: *const u8, scales: *const f32, out: *mut u32) {
        // SAFETY: within the extents that the caller guarantees.
        unsafe {
            let table = [_mm256_loadu_ps(QUANTILES.as_ptr()), _mm256_loadu_ps(QUANTILES.as_ptr().add(WIDTH))];
            // Plain loops: iterators may stay calls, since the crate is compiled in parts.
            for row in 0..rows {
                let (codes, out) = (codes.add(row * PANEL), out.add(row * PANEL));
                for at in (0..PANEL).step_by(WIDTH) {
                    let codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(codes.add(at).cast()));
                    let scales = _mm256_loadu_ps(scales.add(at));
                    let low = rounded(_mm256_mul_ps(quantile(table, codes), scales));
                    let high = rounded(_mm256_mul_ps(quantile(table, _mm256_srli_epi32::<4>(codes)), scales));
                    // The upper half of each word is of `low`.
                    let word = _mm256_blend_epi16::<0xaa>(_mm256_srli_epi32::<16>(high), low);
                    _mm256_storeu_si256(out.add(at).cast(), word);
                }
            }
        }
    }

    /// The quantiles of codes in the lowest four bits.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn quantile(table: [__m256; 2], codes: __m256i) -> __m256 {
        let (lower, upper) =
            (_mm256_permutevar8x32_ps(table[0], codes), _mm256_permutevar8x32_ps(table[1], codes));
        // The sign chooses: the fourth bit.
        _mm256_blendv_ps(lower, upper, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(codes)))
    }

    /// Rounds to bf16 in the upper half; the lower half is not cleared.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn rounded(value: __m256) -> __m256i {
        let bits = _mm256_castps_si256(value);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)))
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    use super::{LANES, PANEL, QUANTILES};

    /// # Safety
    /// Rows and scales have 32 values each, and the machine has AVX-512F.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn decode(rows: usize, codes: *const u8, scales: *const f32, out: *mut u32) {
        // SAFETY: within the extents that the caller guarantees.
        unsafe {
            let table = _mm512_loadu_ps(QUANTILES.as_ptr());
            for row in 0..rows {
                let (codes, out) = (codes.add(row * PANEL), out.add(row * PANEL));
                for at in [0, LANES] {
                    let [first, second] = values(codes.add(at), _mm512_loadu_ps(scales.add(at)), table);
                    let word = _mm512_or_si512(
                        _mm512_and_si512(round(first), _mm512_set1_epi32(0xffff_0000_u32 as i32)),
                        _mm512_srli_epi32::<16>(round(second)),
                    );
                    _mm512_storeu_si512(out.add(at).cast(), word);
                }
            }
        }
    }

    /// Bytes that codes are fetched ahead.
    const AHEAD: usize = 4096;

    /// [`decode`] by the machine's own conversion. It takes subnormal values for 0.
    ///
    /// # Safety
    /// As [`decode`], and the machine converts to bf16.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub unsafe fn decode_by_conversion(rows: usize, codes: *const u8, scales: *const f32, out: *mut u32) {
        // SAFETY: within the extents that the caller guarantees; both types are 512 bits without invalid values.
        unsafe {
            let table = _mm512_loadu_ps(QUANTILES.as_ptr());
            let scales = [_mm512_loadu_ps(scales), _mm512_loadu_ps(scales.add(LANES))];
            // The second of a pair comes from the lower 16 halves, the first from the upper ones.
            let lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
            let turns = _mm512_or_si512(lane, _mm512_slli_epi32::<16>(lane));
            let turns = _mm512_or_si512(turns, _mm512_set1_epi32(16 << 16));
            for row in 0..rows {
                let (codes, out) = (codes.add(row * PANEL), out.add(row * PANEL));
                // The hardware fetches ahead too little while tiles are multiplied between two panels.
                _mm_prefetch::<_MM_HINT_T0>(codes.wrapping_add(AHEAD).cast());
                let left = values(codes, scales[0], table);
                let right = values(codes.add(LANES), scales[1], table);
                let left = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(left[0], left[1]));
                let right = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(right[0], right[1]));
                _mm512_storeu_si512(out.cast(), _mm512_permutexvar_epi16(turns, left));
                _mm512_storeu_si512(out.add(LANES).cast(), _mm512_permutexvar_epi16(turns, right));
            }
        }
    }

    /// The values of 16 pairs of codes.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn values(codes: *const u8, scales: __m512, table: __m512) -> [__m512; 2] {
        // SAFETY: there are 16 codes.
        let codes = _mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(codes.cast()) });
        // The permutation looks at the lowest four bits alone.
        let second = _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(codes), table);
        [_mm512_mul_ps(_mm512_permutexvar_ps(codes, table), scales), _mm512_mul_ps(second, scales)]
    }

    /// Rounds to bf16 in the upper half; the lower half is not cleared.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn round(value: __m512) -> __m512i {
        let bits = _mm512_castps_si512(value);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)))
    }

    /// # Safety
    /// Each has `pairs` rows of 32 words, and the machine has AVX-512F and BW.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub unsafe fn interleave(rows: *const u32, out: *mut u32, pairs: usize) {
        const LOWER: __mmask32 = 0x5555_5555;
        // SAFETY: within the extents that the caller guarantees.
        unsafe {
            let left = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
            let right = _mm512_add_epi32(left, _mm512_set1_epi32(8));
            for pair in 0..pairs {
                let (rows, out) = (rows.add(pair * PANEL), out.add(pair * PANEL));
                let (first, second) =
                    (_mm512_loadu_si512(rows.cast()), _mm512_loadu_si512(rows.add(LANES).cast()));
                let even = _mm512_mask_blend_epi16(LOWER, first, _mm512_srli_epi32::<16>(second));
                let odd = _mm512_mask_blend_epi16(LOWER, _mm512_slli_epi32::<16>(first), second);
                _mm512_storeu_si512(out.cast(), _mm512_permutex2var_epi32(even, left, odd));
                _mm512_storeu_si512(out.add(LANES).cast(), _mm512_permutex2var_epi32(even, right, odd));
            }
        }
    }
}
