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
        self.with(logits, |distribution| distribution.draw(rng))
    }

    /// Calls `then` with the distribution over a row of logits.
    pub fn with<T>(&self, logits: &[f32], then: impl FnOnce(&Distribution<'_>) -> T) -> T {
        if self.temperature <= 0.0 {
            let total = log_sum_exp(logits);
            return then(&Distribution {
                sampling: *self,
                logits,
                total,
                probabilities: &[],
                starts: &[0.0],
            });
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
            self.filter(probabilities);
            // With 150,000 tokens, `f32` rounding of the sum and of the draw would lose the last ones.
            let mut starts = vec![0.0];
            let mut start = 0.0;
            starts.extend(probabilities.chunks(BLOCK).map(|block| {
                start += sum(block);
                start
            }));
            then(&Distribution { sampling: *self, logits, total, probabilities, starts: &starts })
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

/// The distribution of the token after a row.
pub struct Distribution<'a> {
    sampling: Sampling,
    logits: &'a [f32],
    /// The log-sum-exp of the logits.
    total: f32,
    /// Filtered, and not normalised. Empty at temperature 0.
    probabilities: &'a [f32],
    /// The sum of the probabilities before each block, and that of all.
    starts: &'a [f64],
}

impl Distribution<'_> {
    pub fn draw(&self, rng: &mut ChaCha8Rng) -> (u32, f32) {
        if self.sampling.temperature <= 0.0 {
            return self.likeliest();
        }
        let at = mcprl_base::random::unit(rng) * self.sum();
        self.with_logprob(self.token_at(at))
    }

    fn sum(&self) -> f64 {
        self.starts.last().copied().unwrap_or_default()
    }

    fn with_logprob(&self, token: usize) -> (u32, f32) {
        (token as u32, self.logits[token] - self.total)
    }

    fn likeliest(&self) -> (u32, f32) {
        self.with_logprob(most_likely(self.logits))
    }

    /// The tokens of a block that can be drawn, each with the sum of the probabilities up to its own.
    fn sums(&self, block: usize) -> impl Iterator<Item = (usize, f64)> {
        let first = block * BLOCK;
        let own = &self.probabilities[first..self.probabilities.len().min(first + BLOCK)];
        let mut sum = 0.0;
        own.iter().enumerate().filter(|(_, probability)| **probability > 0.0).map(
            move |(index, probability)| {
                sum += f64::from(*probability);
                (first + index, self.starts[block] + sum)
            },
        )
    }

    /// The token whose share of the sum contains this value; by rounding, the last one of its block.
    fn token_at(&self, at: f64) -> usize {
        let mut blocks = self.starts.windows(2).enumerate().filter(|(_, bounds)| bounds[0] < bounds[1]);
        let is_before_end = |(_, bounds): &(usize, &[f64])| at < bounds[1];
        let block = blocks.clone().find(is_before_end).or_else(|| blocks.next_back());
        let (mut last, block) = (0, block.map_or(0, |(block, _)| block));
        for (token, sum) in self.sums(block) {
            last = token;
            if at < sum {
                break;
            }
        }
        last
    }

    /// What is enough to draw the likely tokens again.
    pub fn odds(&self) -> Odds {
        let floor = (self.sum() * LEAST_SHARE) as f32;
        let mut shares = Vec::new();
        for (block, bounds) in self.starts.windows(2).enumerate() {
            let end = self.probabilities.len().min((block + 1) * BLOCK);
            let own = &self.probabilities[block * BLOCK..end];
            // Without an early end, several are compared at once.
            let has_one = || own.iter().fold(false, |any, probability| any | (*probability >= floor));
            if bounds[1] - bounds[0] < f64::from(floor) || !has_one() {
                continue;
            }
            let (mut low, mut in_block) = (bounds[0], self.sums(block).peekable());
            while let Some((token, sum)) = in_block.next() {
                // The last token has what the sum of the block has more by rounding.
                let high = if in_block.peek().is_none() { bounds[1] } else { sum.min(bounds[1]) };
                if self.probabilities[token] >= floor && low < high {
                    let (token, logprob) = self.with_logprob(token);
                    shares.push(Share { token, logprob, range: [low, high] });
                }
                low = high;
            }
        }
        shares.sort_by(|a, b| (b.range[1] - b.range[0]).total_cmp(&(a.range[1] - a.range[0])));
        shares.truncate(MOST_SHARES);
        Odds { sampling: self.sampling, sum: self.sum(), likeliest: self.likeliest(), shares: shares.into() }
    }
}

/// The least share of the sum that [`Odds`] have, and the number of shares.
const LEAST_SHARE: f64 = 1.0 / 256.0;
const MOST_SHARES: usize = 16;

/// The likely tokens after a row, for conversations that come there after it was computed.
#[derive(Debug)]
pub struct Odds {
    sampling: Sampling,
    sum: f64,
    likeliest: (u32, f32),
    /// The largest first.
    shares: Box<[Share]>,
}

#[derive(Debug)]
struct Share {
    token: u32,
    logprob: f32,
    range: [f64; 2],
}

impl Odds {
    /// The same token and log-probability as from the logits. None, and nothing is drawn, if the token is not
    /// among the likely ones or the sampling is another.
    pub fn draw(&self, sampling: Sampling, rng: &mut ChaCha8Rng) -> Option<(u32, f32)> {
        if sampling.temperature <= 0.0 {
            return Some(self.likeliest);
        }
        if sampling != self.sampling {
            return None;
        }
        let before = rng.clone();
        let at = mcprl_base::random::unit(rng) * self.sum;
        let share = self.shares.iter().find(|share| share.range[0] <= at && at < share.range[1]);
        if share.is_none() {
            *rng = before;
        }
        share.map(|share| (share.token, share.logprob))
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
    fn odds_draw_what_the_logits_would_or_nothing() {
        let mut numbers = ChaCha8Rng::seed_from_u64(3);
        let mut drawn = [0; 2];
        for case in 0..60u64 {
            let spread = [0.5, 4.0, 12.0][case as usize % 3];
            let logits: Vec<f32> =
                (0..5000).map(|_| spread * mcprl_base::random::unit(&mut numbers) as f32).collect();
            let sampling = Sampling {
                temperature: [1.0, 0.7, 0.0][case as usize / 3 % 3],
                top_p: [1.0, 0.9][case as usize / 9 % 2],
                ..PLAIN
            };
            let odds = sampling.with(&logits, |distribution| distribution.odds());
            for seed in 0..40 {
                let (mut rng, mut other) = (ChaCha8Rng::seed_from_u64(seed), ChaCha8Rng::seed_from_u64(seed));
                let found = odds.draw(sampling, &mut rng);
                let expected = sampling.draw(&logits, &mut other);
                drawn[usize::from(found.is_some())] += 1;
                match found {
                    Some(found) => assert_eq!((found, rng), (expected, other), "{sampling:?}"),
                    None => assert_eq!(rng, ChaCha8Rng::seed_from_u64(seed), "nothing is drawn"),
                }
            }
        }
        assert!(drawn.iter().all(|count| *count > 100), "{drawn:?}");
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
