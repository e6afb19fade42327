use half::f16;

use super::{
    convert::{half_value, round_to_bf16},
    *,
};
#[cfg(target_arch = "x86_64")]
use crate::model::kernels::amx;
use crate::model::kernels::{
    Lhs, Packed, Rhs, gemm,
    gemm::{local_gemm, tests::numbers},
};

const FORMATS: [Format; 4] = [Format::F32, Format::F16, Format::Bf16, Format::Nf4];

fn frozen(format: Format, n: usize, k: usize, weight: &[f32]) -> Frozen {
    Frozen::new(format, n, k, |row, out| out.copy_from_slice(&weight[row * k..][..k]))
}

fn values(frozen: &Frozen) -> Vec<f32> {
    let mut weight = vec![0.0; frozen.n * frozen.k];
    weight.chunks_exact_mut(frozen.k).enumerate().for_each(|(row, out)| frozen.row(row, out));
    weight
}

fn rounded_to(format: Format, x: &[f32]) -> Vec<f32> {
    let mut x = x.to_vec();
    if format.is_multiplied_in_bf16() {
        round_to_bf16(&mut x);
    }
    x
}

/// The expected product of this format: in bf16 a sum is one chain, by tiles one of parts.
fn product(
    format: Format,
    m: usize,
    left: Lhs<'_>,
    right: Rhs<'_>,
    (c, n): (&mut [f32], usize),
    accumulate: bool,
) {
    match format.is_multiplied_in_bf16() {
        #[cfg(target_arch = "x86_64")]
        true if multiplies_tiles() => amx::tests::by_parts(m, left, right, (c, n), accumulate),
        true => local_gemm(m, left, right, (team::Shared::new(c), 0), n, accumulate),
        false => gemm(m, left, right, c, n, accumulate),
    }
}

/// In bf16 too: the machine's product of pairs adds one after the other.
#[test]
fn products_both_ways_are_those_of_the_stored_values_to_the_bit() {
    for (m, n, k) in [(1, 1, 1), (3, 33, 31), (13, 70, 300), (2, 600, 65), (260, 40, 32), (5, 128, 530)] {
        let (x, dy) = (numbers(m * k, 1), numbers(m * n, 2));
        for format in FORMATS {
            let frozen = frozen(format, n, k, &numbers(n * k, 3));
            let weight = values(&frozen);
            let (mut y, mut want) = (vec![1.0; m * n], vec![1.0; m * n]);
            frozen.forward(&x, &mut y, true);
            let packed = Packed::from_columns(&weight, k, n);
            let left = rounded_to(format, &x);
            product(format, m, Lhs::rows(&left, k), packed.right(), (&mut want, n), true);
            assert_eq!(y, want, "forward {format:?} {m}x{n}x{k}");
            let (mut dx, mut want) = (vec![2.0; m * k], vec![0.0; m * k]);
            frozen.backward(&dy, &mut dx, false);
            let rows = Rhs::rows(&weight, n, k);
            let left = rounded_to(format, &dy);
            product(format, m, Lhs::rows(&left, n), rows, (&mut want, k), false);
            assert_eq!(dx, want, "backward {format:?} {m}x{n}x{k}");
        }
    }
}

#[test]
fn f32_gives_the_bits_of_an_unfrozen_product() {
    let (m, n, k) = (29, 150, 300);
    let (x, dy, weight) = (numbers(m * k, 1), numbers(m * n, 2), numbers(n * k, 3));
    let frozen = frozen(Format::F32, n, k, &weight);
    assert_eq!(values(&frozen), weight);
    let (mut y, mut want) = (vec![0.0; m * n], vec![0.0; m * n]);
    frozen.forward(&x, &mut y, false);
    gemm(m, Lhs::rows(&x, k), Packed::from_columns(&weight, k, n).right(), &mut want, n, false);
    assert_eq!(y, want);
    let (mut dx, mut want) = (vec![0.0; m * k], vec![0.0; m * k]);
    frozen.backward(&dy, &mut dx, false);
    gemm(m, Lhs::rows(&dy, n), Rhs::rows(&weight, n, k), &mut want, k, false);
    assert_eq!(dx, want);
}

#[test]
fn a_row_is_the_same_bits_alone_in_a_batch_and_on_any_number_of_threads() {
    let (m, n, k) = (40, 700, 130);
    let (x, dy) = (numbers(m * k, 1), numbers(m * n, 2));
    for format in FORMATS {
        let frozen = frozen(format, n, k, &numbers(n * k, 3));
        let both = |rows: usize| {
            let (mut y, mut dx) = (vec![0.0; rows * n], vec![0.0; rows * k]);
            frozen.forward(&x[..rows * k], &mut y, false);
            frozen.backward(&dy[..rows * n], &mut dx, false);
            (y, dx)
        };
        let (y, dx) = both(m);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        assert_eq!(pool.install(|| both(m)), (y.clone(), dx.clone()));
        for rows in [1, 2, 5, 13] {
            assert_eq!(both(rows), (y[..rows * n].to_vec(), dx[..rows * k].to_vec()), "{format:?} {rows}");
        }
    }
}

#[test]
fn every_format_stores_values_to_its_precision() {
    let weight = numbers(64 * 256, 7);
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v * v)).sum::<f64>().sqrt();
    for (format, bound, bytes) in [
        (Format::F32, 0.0, 4.0),
        (Format::F16, 3e-4, 2.0),
        (Format::Bf16, 3e-3, 2.0),
        (Format::Nf4, 0.11, 0.5625),
    ] {
        let frozen = frozen(format, 64, 256, &weight);
        let error = norm(&mut values(&frozen).iter().zip(&weight).map(|(a, b)| a - b));
        let relative = error / norm(&mut weight.iter().copied());
        assert!(relative <= bound, "{format:?}: {relative}");
        assert_eq!(frozen.bytes() as f64, bytes * weight.len() as f64, "{format:?}");
    }
}

#[test]
fn half_precision_values_are_widened_exactly() {
    for bits in (0..=u16::MAX).filter(|bits| f16::from_bits(*bits).is_finite()) {
        assert_eq!(
            half_value(u32::from(bits)).to_bits(),
            f16::from_bits(bits).to_f32().to_bits(),
            "{bits:x}"
        );
    }
}
