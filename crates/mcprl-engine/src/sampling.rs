//! Drawing one token from logits.

use std::cell::RefCell;

use mcprl_base::guide::Guide;
use rand_chacha::ChaCha8Rng;
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

    /// Whether every token may be drawn.
    pub fn is_unfiltered(&self) -> bool {
        self.top_p >= 1.0 && self.top_k == 0 && self.min_p <= 0.0
    }

    /// Draws from a row of logits. Returns the token and its log-probability at temperature 1, before any
    /// filter.
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

    /// The same, of the tokens that a guide allows. The log-probability is that among all tokens.
    ///
    /// # Errors
    /// If the guide fails, or allows no token.
    pub fn draw_guided(
        &self,
        logits: &[f32],
        guide: &mut dyn Guide,
        rng: &mut ChaCha8Rng,
    ) -> Result<(u32, f32), String> {
        let mut allowed = logits.to_vec();
        guide.limit(&mut allowed)?;
        if allowed.iter().all(|logit| *logit == f32::NEG_INFINITY) {
            return Err("no token may come next".into());
        }
        let (token, _) = self.draw(&allowed, rng);
        guide.advance(token)?;
        Ok((token, logits[token as usize] - log_sum_exp(logits)))
    }

    fn choose(&self, probabilities: &mut [f32], rng: &mut ChaCha8Rng) -> usize {
        self.filter(probabilities);
        // With 150,000 tokens, `f32` rounding of the sum and of the draw would lose the last ones.
        let sums: Vec<f64> = probabilities.chunks(BLOCK).map(sum).collect();
        let mut rest = mcprl_base::random::unit(rng) * sums.iter().sum::<f64>();
        let mut last = 0;
        for ((block, probabilities), sum) in probabilities.chunks(BLOCK).enumerate().zip(&sums) {
            if *sum == 0.0 {
                continue;
            }
            let is_here = rest < *sum;
            for (token, probability) in probabilities.iter().enumerate().filter(|(_, p)| **p > 0.0) {
                last = block * BLOCK + token;
                if is_here {
                    rest -= f64::from(*probability);
                    if rest < 0.0 {
                        return last;
                    }
                }
            }
            if is_here {
                return last;
            }
            rest -= sum;
        }
        last
    }

    /// Sets the probability of excluded tokens to 0. The most likely token always stays.
    fn filter(&self, probabilities: &mut [f32]) {
        if self.is_unfiltered() {
            return;
        }
        let first = most_likely(probabilities);
        // Tokens below the second bound sum to less than what top-p drops.
        let dropped = (1.0 - self.top_p).max(0.0) / (2 * probabilities.len()) as f32;
        let floor = (self.min_p * probabilities[first]).max(dropped).max(f32::MIN_POSITIVE);
        let mut order: Vec<usize> = (0..probabilities.len()).filter(|i| probabilities[*i] >= floor).collect();
        if self.top_k > 0 {
            move_likeliest_first(&mut order, self.top_k, probabilities);
            order.truncate(self.top_k);
        }
        let kept = match self.top_p < 1.0 {
            true => nucleus(&mut order, f64::from(self.top_p), probabilities),
            false => order.len(),
        };
        let kept: Vec<(usize, f32)> =
            order[..kept].iter().map(|token| (*token, probabilities[*token])).collect();
        let most = probabilities[first];
        probabilities.fill(0.0);
        probabilities[first] = most;
        kept.into_iter().for_each(|(token, probability)| probabilities[token] = probability);
    }
}

/// The most likely tokens of a row of logits with their log-probabilities at temperature 1, the likeliest first.
pub fn likeliest(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    if count == 0 {
        return Vec::new();
    }
    let mut order: Vec<usize> = (0..logits.len()).collect();
    move_likeliest_first(&mut order, count, logits);
    order.truncate(count);
    order.sort_unstable_by(|a, b| by_rank(*a, *b, logits));
    let total = log_sum_exp(logits);
    order.into_iter().map(|token| (token as u32, logits[token] - total)).collect()
}

/// Values summed at once.
const BLOCK: usize = 1024;

fn sum(values: &[f32]) -> f64 {
    let mut sums = [0.0; 8];
    for values in values.chunks(8) {
        sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += f64::from(*value));
    }
    sums.iter().sum()
}

/// Moves the `count` most likely tokens to the front, in no order. Of equal tokens, the first ones.
fn move_likeliest_first(order: &mut [usize], count: usize, probabilities: &[f32]) {
    if count > 0 && count < order.len() {
        order.select_nth_unstable_by(count - 1, |a, b| by_rank(*a, *b, probabilities));
    }
}

fn by_rank(a: usize, b: usize, probabilities: &[f32]) -> std::cmp::Ordering {
    probabilities[b].total_cmp(&probabilities[a]).then(a.cmp(&b))
}

/// Moves the most likely tokens with this total probability to the front. Returns their number.
fn nucleus(order: &mut [usize], top_p: f64, probabilities: &[f32]) -> usize {
    let (mut ranked, mut step, mut before) = (0, 64, 0.0);
    while ranked < order.len() {
        let rest = &mut order[ranked..];
        move_likeliest_first(rest, step, probabilities);
        let count = step.min(rest.len());
        rest[..count].sort_unstable_by(|a, b| by_rank(*a, *b, probabilities));
        for token in &rest[..count] {
            if before >= top_p {
                return ranked;
            }
            before += f64::from(probabilities[*token]);
            ranked += 1;
        }
        step *= 8;
    }
    ranked
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
    use rand_chacha::rand_core::{Rng, SeedableRng};

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
    fn filters_drop_unlikely_tokens_and_never_the_likeliest() {
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
    fn filters_keep_what_sorting_all_tokens_would_keep() {
        let mut rng = ChaCha8Rng::seed_from_u64(9);
        for case in 0..300 {
            let (length, spread) = (1 + rng.next_u32() as usize % 700, (case % 7) as f32);
            // Few distinct values, so that some are equal.
            let logits: Vec<f32> = (0..length).map(|_| (rng.next_u32() % 12) as f32 * spread / 4.0).collect();
            let mut probabilities = vec![0.0; length];
            log_sum_exp_exps(&logits, &mut probabilities);
            let sampling = Sampling {
                top_p: [1.0, 0.0, 0.5, 0.9, 0.999][case % 5],
                top_k: [0, 1, 7, 100, 5000][case / 5 % 5],
                min_p: [0.0, 0.3, 0.01][case / 25 % 3],
                ..PLAIN
            };
            let mut order: Vec<usize> = (0..length).collect();
            order.sort_by(|a, b| by_rank(*a, *b, &probabilities));
            let floor = sampling.min_p * probabilities[order[0]];
            let (mut expected, mut before) = (vec![0.0; length], 0.0);
            for (rank, token) in order.into_iter().enumerate() {
                let within = (sampling.top_k == 0 || rank < sampling.top_k)
                    && (before < f64::from(sampling.top_p) || sampling.top_p >= 1.0)
                    && probabilities[token] >= floor;
                if rank == 0 || within {
                    expected[token] = probabilities[token];
                }
                before += f64::from(probabilities[token]);
            }
            sampling.filter(&mut probabilities);
            assert_eq!(probabilities, expected, "{sampling:?} of {length} tokens");
        }
    }

    #[test]
    fn every_part_of_a_large_flat_vocabulary_is_drawn_equally_often() {
        let logits = vec![0.0; 151_936];
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let mut parts = [0; 4];
        for _ in 0..1000 {
            parts[PLAIN.draw(&logits, &mut rng).0 as usize / 37_984] += 1;
        }
        assert!(parts.iter().all(|part| (200..300).contains(part)), "{parts:?}");
        // The last token has its share of the largest draws: no draw exceeds the range, and every token is
        // reachable.
        let mut probabilities = vec![1.0f32 / 151_936.0; 151_936];
        let total: f64 = probabilities.chunks(BLOCK).map(sum).sum();
        assert!((total - 1.0).abs() < 1e-7, "{total}");
        PLAIN.filter(&mut probabilities);
        assert!(probabilities.iter().all(|probability| *probability > 0.0));
    }

    #[test]
    fn log_probabilities_are_at_temperature_one() {
        let logits = [1.0, 3.0, 2.0];
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let (token, logprob) = Sampling::GREEDY.draw(&logits, &mut rng);
        assert_eq!(token, 1);
        assert_eq!(logprob, 3.0 - log_sum_exp(&logits));
    }

    /// Allows some tokens.
    struct Only(Vec<u32>);

    impl Guide for Only {
        fn limit(&mut self, logits: &mut [f32]) -> Result<(), String> {
            (0..).zip(logits).for_each(|(token, logit)| {
                if !self.0.contains(&token) {
                    *logit = f32::NEG_INFINITY;
                }
            });
            Ok(())
        }

        fn advance(&mut self, token: u32) -> Result<(), String> {
            self.0.retain(|allowed| *allowed != token);
            Ok(())
        }
    }

    #[test]
    fn a_guided_draw_is_of_the_allowed_tokens_with_its_log_probability_among_all() {
        let logits = [5.0, 1.0, 3.0, 2.0];
        let (mut guide, mut rng) = (Only(vec![1, 3]), ChaCha8Rng::seed_from_u64(1));
        for expected in [3, 1] {
            let (token, logprob) = Sampling::GREEDY.draw_guided(&logits, &mut guide, &mut rng).unwrap();
            assert_eq!((token, logprob), (expected, logits[expected as usize] - log_sum_exp(&logits)));
        }
        assert!(Sampling::GREEDY.draw_guided(&logits, &mut guide, &mut rng).is_err(), "nothing is left");
        let mut shares = [0.0; 4];
        for _ in 0..20_000 {
            let drawn = PLAIN.draw_guided(&logits, &mut Only(vec![1, 3]), &mut rng).unwrap();
            shares[drawn.0 as usize] += 1.0 / 20_000.0;
        }
        let expected = 1.0 / (1.0 + 1f64.exp());
        assert!((shares[1] - expected).abs() < 0.02 && shares[0] + shares[2] == 0.0, "{shares:?}");
    }
}
