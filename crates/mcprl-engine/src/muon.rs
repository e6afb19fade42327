//! Muon's direction: a matrix with its singular values brought close to 1.

use crate::model::kernels::{Lhs, Rhs, gemm};

/// Brings the singular values of `[rows, columns]` close to 1 by five quintic Newton-Schulz steps.
pub fn orthogonalise(matrix: &mut [f32], rows: usize, columns: usize) {
    let norm = matrix.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt() as f32;
    let scale = 1.0 / (norm + 1e-7);
    matrix.iter_mut().for_each(|value| *value *= scale);
    let wide = rows <= columns;
    let small = rows.min(columns);
    let (mut square, mut mixed) = (vec![0.0; small * small], vec![0.0; small * small]);
    let (a, b, c) = (3.4445, -4.7750, 2.0315);
    for _ in 0..5 {
        // X·Xᵀ for a wide matrix, Xᵀ·X for a tall one.
        if wide {
            let transposed: Vec<f32> =
                (0..rows * columns).map(|i| matrix[(i % rows) * columns + i / rows]).collect();
            let right = Rhs::rows(&transposed, columns, rows);
            gemm(rows, Lhs::rows(matrix, columns), right, &mut square, rows, false);
        } else {
            let left = Lhs::transposed(matrix, columns);
            gemm(columns, left, Rhs::rows(matrix, rows, columns), &mut square, columns, false);
        }
        gemm(small, Lhs::rows(&square, small), Rhs::rows(&square, small, small), &mut mixed, small, false);
        for (mixed, square) in mixed.iter_mut().zip(&square) {
            *mixed = b * square + c * *mixed;
        }
        let mut next: Vec<f32> = matrix.iter().map(|value| a * value).collect();
        let (left, right) = match wide {
            true => (Lhs::rows(&mixed, rows), Rhs::rows(matrix, rows, columns)),
            false => (Lhs::rows(matrix, columns), Rhs::rows(&mixed, columns, columns)),
        };
        gemm(rows, left, right, &mut next, columns, true);
        matrix.copy_from_slice(&next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orthogonalised_matrices_have_singular_values_near_one() {
        for (rows, columns) in [(8, 20), (20, 8), (12, 16)] {
            let mut x: Vec<f32> = (0..rows * columns).map(|i| ((i * i) as f32 * 0.7).sin()).collect();
            orthogonalise(&mut x, rows, columns);
            let square: f32 = x.iter().map(|value| value * value).sum();
            let mean = square / rows.min(columns) as f32;
            assert!((0.6..1.3).contains(&mean), "{rows}x{columns}: mean square singular value {mean}");
        }
    }
}
