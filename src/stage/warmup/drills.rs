//! Exercises in copying, before the traces.
//!
//! An agent copies: names from the task and ids from results into calls, the names of tools from their list. A decoder learns
//! this from traces alone only after millions of tokens, because few of their tokens are copies. Random tokens that occur twice
//! teach it early: nothing else helps to predict the second occurrence (induction heads, arXiv 2209.11895).

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

use crate::{engine::Example, hash::Encoder};

/// Tokens of a copied passage: from, and less than.
const PASSAGE: (u64, u64) = (6, 36);
/// Fewer tokens than this stand before the passage, and between it and its copy.
const GAP: u64 = 20;

/// Exercises over the tokens that occur in these examples. The copy is trained on, except for its first token, which
/// cannot be known.
pub fn drills(count: usize, examples: &[Example], seed: u64) -> Vec<Example> {
    let mut tokens: Vec<u32> = examples.iter().flat_map(|(tokens, _)| tokens.iter().copied()).collect();
    tokens.sort_unstable();
    tokens.dedup();
    if tokens.is_empty() {
        return Vec::new();
    }
    let seed = Encoder::new("mcprl copy drills v1").number(seed).finish();
    let mut rng = ChaCha8Rng::from_seed(*seed.as_bytes());
    let mut draw = |from: u64, below: u64| -> Vec<u32> {
        let count = from + rng.next_u64() % (below - from);
        (0..count).map(|_| tokens[(rng.next_u64() % tokens.len() as u64) as usize]).collect()
    };
    let mut drill = || {
        let (before, passage, between) = (draw(0, GAP), draw(PASSAGE.0, PASSAGE.1), draw(0, GAP));
        let all = [&*before, &*passage, &*between, &*passage].concat();
        let copy = all.len() - passage.len();
        let trained = (0..all.len()).map(|at| at > copy).collect();
        (all, trained)
    };
    (0..count).map(|_| drill()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_trained_on_occurs_earlier_in_the_same_exercise() {
        let examples = vec![(vec![3, 5, 7, 9, 11, 13, 15, 17], vec![false; 8])];
        let drills = drills(200, &examples, 1);
        assert_eq!(drills.len(), 200);
        for (tokens, trained) in &drills {
            let copied = trained.iter().filter(|trained| **trained).count();
            assert!((5..35).contains(&copied), "{copied}");
            let copy = &tokens[tokens.len() - copied - 1..];
            assert!(tokens[..tokens.len() - copy.len()].windows(copy.len()).any(|earlier| earlier == copy));
            assert!(trained[tokens.len() - copied..].iter().all(|trained| *trained));
            assert!(tokens.iter().all(|token| examples[0].0.contains(token)));
        }
        assert_eq!(drills, super::drills(200, &examples, 1));
        assert_ne!(drills, super::drills(200, &examples, 2));
        assert_eq!(super::drills(5, &[], 1), []);
    }
}
