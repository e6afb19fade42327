//! Tiles with their rows as columns.

use super::Level;

/// Transposes 16 × 16 words.
pub fn transpose(from: &[f32], from_row: usize, to: &mut [f32], to_row: usize) {
    let reach = |row: usize| row.saturating_mul(15).saturating_add(16);
    assert!(from.len() >= reach(from_row) && to.len() >= reach(to_row), "16 rows of 16");
    #[cfg(target_arch = "x86_64")]
    if Level::get() == Level::Avx512 {
        // SAFETY: the level was detected, and the extents checked.
        return unsafe { by_avx512(from.as_ptr(), from_row, to.as_mut_ptr(), to_row) };
    }
    for i in 0..16 {
        for j in 0..16 {
            to[j * to_row + i] = from[i * from_row + j];
        }
    }
}

/// # Safety
/// Both have 16 rows of 16 words at their strides, and the machine has AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn by_avx512(from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
    use std::arch::x86_64::*;

    // SAFETY: within the extents that the caller guarantees.
    unsafe {
        let mut r = [_mm512_setzero_ps(); 16];
        for (i, r) in r.iter_mut().enumerate() {
            *r = _mm512_loadu_ps(from.add(i * from_row));
        }
        // 2 × 2, then 4 × 4 within each quarter.
        let mut t = r;
        for i in (0..16).step_by(2) {
            t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
            t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
        }
        let pd = |v: __m512| _mm512_castps_pd(v);
        for i in (0..16).step_by(4) {
            r[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(pd(t[i]), pd(t[i + 2])));
            r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(pd(t[i]), pd(t[i + 2])));
            r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(pd(t[i + 1]), pd(t[i + 3])));
            r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(pd(t[i + 1]), pd(t[i + 3])));
        }
        // r[4 q + c] contains column c of each quarter for rows 4 q..4 q + 4: gather the quarters.
        for c in 0..4 {
            let (a, b) = (r[c], r[c + 4]);
            let (d, e) = (r[c + 8], r[c + 12]);
            let even = _mm512_shuffle_f32x4::<0x88>(a, b);
            let odd = _mm512_shuffle_f32x4::<0xdd>(a, b);
            let even_high = _mm512_shuffle_f32x4::<0x88>(d, e);
            let odd_high = _mm512_shuffle_f32x4::<0xdd>(d, e);
            _mm512_storeu_ps(to.add(c * to_row), _mm512_shuffle_f32x4::<0x88>(even, even_high));
            _mm512_storeu_ps(to.add((c + 4) * to_row), _mm512_shuffle_f32x4::<0x88>(odd, odd_high));
            _mm512_storeu_ps(to.add((c + 8) * to_row), _mm512_shuffle_f32x4::<0xdd>(even, even_high));
            _mm512_storeu_ps(to.add((c + 12) * to_row), _mm512_shuffle_f32x4::<0xdd>(odd, odd_high));
        }
    }
}
