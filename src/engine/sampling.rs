//! Drawing one token from logits.

use std::cell::RefCell;

use rand_chacha::{ChaCha8Rng, rand_core::Rng};
use serde::{Deserialize, Serialize};

use crate::model::kernels::{log_sum_exp, log_sum_exp_exps};

/// How a token is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 takes the most likely token.
    pub temperature: f32,
    /// Keeps the most likely tokens that together have this probability; 1 keeps all.
    pub top_p: f32,
    /// Keeps this many of the most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps tokens at least this probable relative to the most likely one; 0 keeps all.
    pub min_p: f32,
}

impl Sampling {
    pub const GREEDY: Self = Self { temperature: 0.0, top_p: 1.0, top_k: 0, min_p: 0.0 };

    /// Draws from a row of logits. Gives the token and its log-probability at temperature 1, before any filter.
    pub fn draw(&self, logits: &[f32], rng: &mut ChaCha8Rng) -> (u32, f32) {
        if self.temperature <= 0.0 {
            let token = most_likely(logits);
            return (token as u32, logits[token] - log_sum_exp(logits));
        }
        PROBABILITIES.with_borrow_mut(|probabilities| {
            probabilities.resize(logits.len(), 0.0);
            // Both give the same bits for a row.
            #[expect(clippy::float_cmp, reason = "at 1 exactly there is nothing to divide by")]
            let total = if self.temperature == 1.0 {
                log_sum_exp_exps(logits, probabilities)
            } else {
                let scaled: Vec<f32> = logits.iter().map(|logit| logit / self.temperature).collect();
                log_sum_exp_exps(&scaled, probabilities);
                log_sum_exp(logits)
            };
            let token = self.choose(probabilities, rng);
            (token as u32, logits[token] - total)
        })
    }

    fn choose(&self, probabilities: &mut [f32], rng: &mut ChaCha8Rng) -> usize {
        self.filter(probabilities);
        let total: f32 = probabilities.iter().sum();
        let mut left = (rng.next_u32() >> 8) as f32 / (1u32 << 24) as f32 * total;
        let mut last = 0;
        for (token, probability) in probabilities.iter().enumerate() {
            if *probability > 0.0 {
                last = token;
                left -= probability;
                if left < 0.0 {
                    break;
                }
            }
        }
        last
    }

    /// Sets the probability of tokens that may not be drawn to 0; the most likely one always stays.
    fn filter(&self, probabilities: &mut [f32]) {
        if self.top_p >= 1.0 && self.top_k == 0 && self.min_p <= 0.0 {
            return;
        }
        let mut order: Vec<usize> = (0..probabilities.len()).collect();
        order.sort_by(|a, b| probabilities[*b].total_cmp(&probabilities[*a]).then(a.cmp(b)));
        let floor = self.min_p * probabilities[order[0]];
        let mut before = 0.0;
        for (rank, token) in order.into_iter().enumerate() {
            let probability = probabilities[token];
            let dropped =
                (self.top_k > 0 && rank >= self.top_k) || before >= self.top_p || probability < floor;
            if rank > 0 && dropped {
                probabilities[token] = 0.0;
            }
            before += probability;
        }
    }
}

thread_local! {
    static PROBABILITIES: RefCell<Vec<f32>> = RefCell::default();
}

/// The first of the largest values.
fn most_likely(values: &[f32]) -> usize {
    values.iter().enumerate().fold(0, |best, (token, value)| if *value > values[best] { token } else { best })
}

#[cfg(test)]
mod tests {
    use rand_chacha::rand_core::SeedableRng;

    use super::*;

    const PLAIN: Sampling = Sampling { temperature: 1.0, ..Sampling::GREEDY };

    fn shares(sampling: Sampling, logits: &[f32]) -> Vec<f64> {
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let mut counts = vec![0.0; logits.len()];
        for _ in 0..20_000 {
            counts[sampling.draw(logits, &mut rng).0 as usize] += 1.0 / 20_000.0;
        }
        counts
    }

    #[test]
    fn tokens_are_drawn_in_proportion_to_their_probability() {
        let logits = [0.6f32.ln(), 0.3f32.ln(), 0.1f32.ln()];
        for (share, expected) in shares(PLAIN, &logits).iter().zip([0.6, 0.3, 0.1]) {
            assert!((share - expected).abs() < 0.02, "{share} {expected}");
        }
        let sharper = shares(Sampling { temperature: 0.5, ..PLAIN }, &logits);
        assert!((sharper[0] - 0.36 / 0.46).abs() < 0.02, "{sharper:?}");
    }

    #[test]
    fn filters_drop_the_tail_and_never_the_head() {
        let logits = [0.6f32.ln(), 0.3f32.ln(), 0.1f32.ln()];
        for sampling in [
            Sampling { top_k: 2, ..PLAIN },
            Sampling { top_p: 0.85, ..PLAIN },
            Sampling { min_p: 0.4, ..PLAIN },
        ] {
            let shares = shares(sampling, &logits);
            assert!(shares[2] == 0.0 && (shares[0] - 2.0 / 3.0).abs() < 0.02, "{sampling:?} {shares:?}");
        }
        assert_eq!(shares(Sampling { top_p: 0.0, ..PLAIN }, &logits)[1..], [0.0, 0.0]);
    }

    #[test]
    fn the_sum_found_beside_probabilities_is_the_bits_of_the_sum_alone() {
        for length in [1, 15, 16, 17, 90, 1024, 3001] {
            let logits: Vec<f32> = (0..length).map(|i| (i as f32 * 0.37).sin() * 9.0).collect();
            let mut probabilities = vec![0.0; length];
            let total = log_sum_exp_exps(&logits, &mut probabilities);
            assert_eq!(total.to_bits(), log_sum_exp(&logits).to_bits(), "{length} values");
        }
    }

    #[test]
    fn the_log_probability_is_that_of_temperature_one_whatever_was_asked() {
        let logits = [1.0, 3.0, 2.0];
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let (token, logprob) = Sampling::GREEDY.draw(&logits, &mut rng);
        assert_eq!(token, 1);
        assert_eq!(logprob, 3.0 - log_sum_exp(&logits));
    }
}
