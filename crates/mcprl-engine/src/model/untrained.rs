//! Rows of an embedding that training never moved.
//!
//! A vocabulary lists tokens that no training text contained. Their rows keep what initialization, weight decay and the
//! common push of the softmax made of them, which shows in one of three ways: they are zero; many of them are one and the
//! same row, up to the noise of a number format; or, where initialization was random, their norms are those of the ids
//! that no token has. Rows that training moved are far from all three.

use std::collections::BTreeSet;

use candle_core::{DType, Tensor};

use super::ModelError;

/// A row this small beside the median row is zero.
const ZERO: f32 = 1e-3;
/// Rows closer than this part of their norm are equal. Trained rows differ by a third or more; four-bit quantization
/// moves equal rows apart by one or two hundredths.
const EQUAL: f32 = 0.02;
/// This many rows equal to a token's show that none of them was trained. A single one may be a copy made on purpose.
const CROWD: usize = 4;
/// Fewer unused ids do not show how untrained norms are distributed.
const FEWEST_UNUSED: usize = 16;
/// Deviations from the unused ids' mean norm within which a norm is one of theirs.
const DEVIATIONS: f64 = 3.0;
/// The norms say something only if hardly any other row's is among them.
const MOST_OTHERS: f64 = 0.005;
/// Rows converted at a time.
const ROWS: usize = 4096;

/// Those of `tokens` whose rows are untrained in every one of `matrices`: input and output embedding, or the one that is
/// both. `unused` are ids that no token has.
///
/// # Errors
/// If a matrix cannot be converted.
pub fn untrained(matrices: &[Tensor], tokens: &[u32], unused: &[u32]) -> Result<BTreeSet<u32>, ModelError> {
    let mut found: BTreeSet<u32> = tokens.iter().copied().collect();
    for matrix in matrices {
        let tokens: Vec<u32> = found.into_iter().collect();
        found = untrained_in(matrix, &tokens, unused)?;
    }
    Ok(if matrices.is_empty() { BTreeSet::new() } else { found })
}

fn untrained_in(matrix: &Tensor, tokens: &[u32], unused: &[u32]) -> Result<BTreeSet<u32>, ModelError> {
    let count = matrix.dims().first().copied().unwrap_or(0);
    let is_row = |id: &&u32| (**id as usize) < count;
    let mut norms = Vec::with_capacity(count);
    each_row(matrix, |_, row| norms.push(norm(row)))?;
    let mut sorted = norms.clone();
    sorted.sort_by(f32::total_cmp);
    let median = sorted.get(count / 2).copied().unwrap_or_default();
    if !(median.is_finite() && median > 0.0) {
        return Ok(BTreeSet::new());
    }
    let candidates: Vec<(u32, Vec<f32>)> = tokens
        .iter()
        .filter(is_row)
        .map(|id| {
            Ok((*id, matrix.narrow(0, *id as usize, 1)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?))
        })
        .collect::<Result<_, ModelError>>()?;
    let mut equals = vec![0_usize; candidates.len()];
    each_row(matrix, |id, row| {
        for ((of, candidate), equals) in candidates.iter().zip(&mut equals) {
            let reach = EQUAL * norms[*of as usize];
            // Rows whose norms differ by more cannot be closer.
            if id != *of as usize
                && (norms[id] - norms[*of as usize]).abs() <= reach
                && is_within(row, candidate, reach)
            {
                *equals += 1;
            }
        }
    })?;
    let unused: BTreeSet<usize> = unused.iter().filter(is_row).map(|id| *id as usize).collect();
    let is_norm_of_unused = norms_of_unused(&norms, &unused, tokens);
    let is_untrained = |(id, equals): (u32, usize)| {
        let norm = norms[id as usize];
        norm <= ZERO * median
            // If most rows are equal, the matrix as a whole was not trained.
            || (CROWD..=count / 2).contains(&equals)
            || is_norm_of_unused.is_some_and(|(low, high)| (low..=high).contains(&f64::from(norm)))
    };
    let counted = candidates.iter().map(|(id, _)| *id).zip(equals);
    Ok(counted.filter(|counted| is_untrained(*counted)).map(|(id, _)| id).collect())
}

/// The range of the unused ids' norms, if it tells them from others.
fn norms_of_unused(norms: &[f32], unused: &BTreeSet<usize>, tokens: &[u32]) -> Option<(f64, f64)> {
    if unused.len() < FEWEST_UNUSED {
        return None;
    }
    let of = |id: &usize| f64::from(norms[*id]);
    let count = unused.len() as f64;
    let mean = unused.iter().map(of).sum::<f64>() / count;
    let variance = unused.iter().map(|id| (of(id) - mean).powi(2)).sum::<f64>() / count;
    let reach = DEVIATIONS * variance.sqrt();
    let (low, high) = (mean - reach, mean + reach);
    let tokens: BTreeSet<usize> = tokens.iter().map(|id| *id as usize).collect();
    let others = (0..norms.len()).filter(|id| !unused.contains(id) && !tokens.contains(id));
    let (within, all) = others.fold((0_usize, 0_usize), |(within, all), id| {
        (within + usize::from((low..=high).contains(&f64::from(norms[id]))), all + 1)
    });
    (within as f64 <= MOST_OTHERS * all as f64).then_some((low, high))
}

fn each_row(matrix: &Tensor, mut row: impl FnMut(usize, &[f32])) -> Result<(), ModelError> {
    let (count, width) = matrix.dims2()?;
    for start in (0..count).step_by(ROWS) {
        let rows = matrix.narrow(0, start, ROWS.min(count - start))?.to_dtype(DType::F32)?;
        let values: Vec<f32> = rows.flatten_all()?.to_vec1()?;
        values.chunks(width.max(1)).enumerate().for_each(|(index, values)| row(start + index, values));
    }
    Ok(())
}

fn norm(row: &[f32]) -> f32 {
    row.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt() as f32
}

fn is_within(one: &[f32], other: &[f32], reach: f32) -> bool {
    one.iter().zip(other).map(|(a, b)| (a - b).powi(2)).sum::<f32>() <= reach.powi(2)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    const COUNT: usize = 300;
    const WIDTH: usize = 64;
    /// Ids from here on belong to no token.
    const UNUSED: u32 = 260;
    const TOKENS: [u32; 4] = [250, 251, 252, 253];

    /// Numbers that look random, about -1 to 1.
    fn random(seed: u64) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..WIDTH).map(|_| next()).collect()
    }

    /// A matrix whose rows 250, 251 and those without a token are from `untrained`, and the others trained.
    fn matrix(untrained: impl Fn(u64) -> Vec<f32>) -> Tensor {
        let is_untrained = |id: usize| [250, 251].contains(&id) || id >= UNUSED as usize;
        let row = |id: usize| match is_untrained(id) {
            true => untrained(id as u64),
            false => {
                let size = 1.0 + (id % 7) as f32 / 5.0;
                random(id as u64).into_iter().map(|value| value * size).collect()
            }
        };
        let rows: Vec<f32> = (0..COUNT).flat_map(row).collect();
        Tensor::from_vec(rows, (COUNT, WIDTH), &Device::Cpu).unwrap()
    }

    fn found(matrices: &[Tensor], unused: std::ops::Range<u32>) -> Vec<u32> {
        let unused: Vec<u32> = unused.collect();
        untrained(matrices, &TOKENS, &unused).unwrap().into_iter().collect()
    }

    fn near(row: &[f32], noise: f32, seed: u64) -> Vec<f32> {
        row.iter().zip(random(seed)).map(|(value, other)| value + noise * other).collect()
    }

    #[test]
    fn rows_of_tokens_that_training_never_saw_are_found_however_they_began() {
        let constant = |seed| near(&random(7_000), 0.004, seed);
        let small = |seed| random(seed + 9_000).into_iter().map(|value| 0.4 * value).collect::<Vec<_>>();
        assert_eq!(found(&[matrix(constant)], UNUSED..300), [250, 251], "one row for all");
        assert_eq!(found(&[matrix(constant)], 0..0), [250, 251], "without unused ids");
        assert_eq!(found(&[matrix(|_| vec![0.0; WIDTH])], 0..0), [250, 251], "zeros");
        assert_eq!(found(&[matrix(small)], UNUSED..300), [250, 251], "random and small");
        assert!(found(&[matrix(small)], 0..0).is_empty(), "nothing shows it");
    }

    #[test]
    fn both_embeddings_must_be_untrained() {
        let constant = matrix(|seed| near(&random(7_000), 0.004, seed));
        let trained = matrix(random);
        assert_eq!(found(&[constant.clone(), constant.clone()], UNUSED..300), [250, 251]);
        assert!(found(&[constant.clone(), trained.clone()], UNUSED..300).is_empty());
        assert!(found(&[trained, constant], UNUSED..300).is_empty());
        assert!(found(&[], UNUSED..300).is_empty());
    }

    #[test]
    fn a_model_that_is_untrained_as_a_whole_shows_nothing() {
        let random_rows: Vec<f32> = (0..COUNT).flat_map(|id| random(id as u64)).collect();
        let rows = |rows| Tensor::from_vec(rows, (COUNT, WIDTH), &Device::Cpu).unwrap();
        for rows in [rows(random_rows), rows(vec![0.0; COUNT * WIDTH]), rows(vec![0.5; COUNT * WIDTH])] {
            assert!(found(&[rows], UNUSED..300).is_empty());
        }
    }

    #[test]
    fn a_copy_of_another_tokens_row_is_not_untrained() {
        let rows =
            (0..COUNT).flat_map(|id| random(if id == 250 { 17 } else { id as u64 })).collect::<Vec<_>>();
        let matrix = Tensor::from_vec(rows, (COUNT, WIDTH), &Device::Cpu).unwrap();
        assert!(found(&[matrix], UNUSED..300).is_empty());
    }
}
