//! Dropout of an adapter's input (Hu et al. 2021; PEFT's `lora_dropout`): in training steps only, never in
//! sampling or scoring.
//!
//! The mask of a row depends on the seed, the step, the linear layer, and the bits of the row, but not on the
//! row's position. So a recomputed row has the same mask, and a shared prefix has one mask for all its
//! sequences. The split of a step into microbatches changes nothing. Rows of equal bits have equal masks.

/// The mask of one linear layer in one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    seed: u64,
    /// Of 2²⁴ equally likely draws, those below this value drop.
    threshold: u32,
    /// Kept values are multiplied by 1 / (1 − rate).
    scale: f32,
}

impl Dropout {
    /// Drops a value with probability `rate`, in `[0, 1)`.
    pub fn new(rate: f64, seed: u64) -> Self {
        Self { seed, threshold: (rate * f64::from(1 << 24)) as u32, scale: (1.0 / (1.0 - rate)) as f32 }
    }

    /// Derives the mask of one of several layers or steps.
    pub fn seed(seed: u64, of: u64) -> u64 {
        mix(seed ^ mix(of))
    }

    /// Multiplies every value of `out` by the factor of the corresponding value of `x`: 0 or 1 / (1 − rate).
    /// Rows have `width` values.
    pub fn apply(&self, x: &[f32], width: usize, out: &mut [f32]) {
        for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            let row = x.iter().fold(self.seed, |hash, value| {
                (hash ^ u64::from(value.to_bits())).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
            });
            for (column, out) in out.iter_mut().enumerate() {
                let draw = mix(row.wrapping_add((column as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
                *out = if ((draw >> 40) as u32) < self.threshold { 0.0 } else { *out * self.scale };
            }
        }
    }
}

/// The finaliser of SplitMix64 (Steele et al. 2014).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_values_are_compensated_and_each_row_has_its_own_mask() {
        let width = 50;
        let x: Vec<f32> = (0..200 * width).map(|i| (i as f32 * 0.37).sin()).collect();
        let mask = |seed, x: &[f32]| {
            let mut ones = vec![1.0; x.len()];
            Dropout::new(0.2, seed).apply(x, width, &mut ones);
            ones
        };
        let found = mask(1, &x);
        assert!(found.iter().all(|factor| *factor == 0.0 || *factor == 1.25));
        let mean = found.iter().sum::<f32>() / found.len() as f32;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
        assert_ne!(found, mask(2, &x));
        assert_ne!(found[..width], found[width..2 * width]);
        assert_eq!(found[7 * width..9 * width], mask(1, &x[7 * width..9 * width]));
    }
}
