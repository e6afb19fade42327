//! Random draws that several modules share.

use rand_chacha::rand_core::Rng;

/// Shuffles the items: Fisher–Yates from the end, with one draw per item except the first.
///
/// The bias of a 64-bit remainder is below 1e-17 for any length that fits in memory.
pub fn shuffle<T>(items: &mut [T], rng: &mut impl Rng) {
    for last in (1..items.len()).rev() {
        items.swap(last, (rng.next_u64() % (last as u64 + 1)) as usize);
    }
}

/// A number from 0 to less than 1, of 53 random bits.
pub fn unit(rng: &mut impl Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// A number of the standard normal distribution (Box and Muller 1958), from two draws.
pub fn normal(rng: &mut impl Rng) -> f32 {
    let mut uniform = || (f64::from(rng.next_u32()) + 0.5) / 4_294_967_296.0;
    let radius = (-2.0 * uniform().ln()).sqrt();
    (radius * (std::f64::consts::TAU * uniform()).cos()) as f32
}

/// A random permutation of `0..count`.
pub fn permutation(count: usize, rng: &mut impl Rng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    shuffle(&mut order, rng);
    order
}

#[cfg(test)]
mod tests {
    use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};

    use super::*;

    #[test]
    fn a_permutation_depends_on_the_seed_and_contains_every_item_once() {
        let order = |seed| permutation(12, &mut ChaCha8Rng::seed_from_u64(seed));
        assert_eq!(order(7), order(7));
        assert_ne!(order(7), order(8));
        let mut sorted = order(7);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..12).collect::<Vec<_>>());
    }

    #[test]
    fn nothing_is_drawn_for_fewer_than_two_items() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        permutation(1, &mut rng);
        assert_eq!(rng.next_u64(), ChaCha8Rng::seed_from_u64(1).next_u64());
    }
}
