//! Intervals and tests. All intervals are at 95 %.

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

/// The standard normal's 97.5 % quantile.
const Z: f64 = 1.959_963_984_540_054;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
}

/// Wilson's score interval of a rate (Wilson 1927), which keeps a width where every trial ended alike.
///
/// `rate` may be a mean of shares in `[0, 1]`, one per trial: their variance is at most that of yes and no, so the
/// interval is then wide enough.
pub fn wilson(rate: f64, trials: usize) -> Interval {
    if trials == 0 {
        return Interval { low: 0.0, high: 1.0 };
    }
    let trials = trials as f64;
    let spread = Z * Z / trials;
    let centre = (rate + spread / 2.0) / (1.0 + spread);
    let half = (rate * (1.0 - rate) * spread + spread * spread / 4.0).max(0.0).sqrt() / (1.0 + spread);
    Interval { low: (centre - half).max(0.0), high: (centre + half).min(1.0) }
}

/// Percentile bootstrap interval of the mean (Efron 1979): resamples with replacement, quantiles interpolated.
pub fn bootstrap_mean(values: &[f64], resamples: usize, seed: u64) -> Interval {
    if values.is_empty() || resamples == 0 {
        return Interval { low: f64::NEG_INFINITY, high: f64::INFINITY };
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let count = values.len();
    // The high bits of a product instead of a remainder: off from uniform by at most count / 2³².
    let mut draw = || values[((u64::from(rng.next_u32()) * count as u64) >> 32) as usize];
    let mut means: Vec<f64> =
        (0..resamples).map(|_| (0..count).map(|_| draw()).sum::<f64>() / count as f64).collect();
    means.sort_unstable_by(f64::total_cmp);
    Interval { low: quantile(&means, 0.025), high: quantile(&means, 0.975) }
}

/// `sorted` is not empty.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let below = place as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * place.fract()
}

/// Exact two-sided sign test: the probability of a split at least this uneven if both outcomes were equally likely.
///
/// On pairs of yes and no this is McNemar's exact test.
pub fn sign_test(better: u64, worse: u64) -> f64 {
    let trials = better + worse;
    // Logarithms, because 2⁻ⁿ alone leaves the range of floating point at n = 1075.
    let mut log_term = -(trials as f64) * std::f64::consts::LN_2;
    let mut tail = 0.0;
    for successes in 0..=better.min(worse) {
        tail += log_term.exp();
        log_term += ((trials - successes) as f64 / (successes + 1) as f64).ln();
    }
    (2.0 * tail).min(1.0)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Fixture {
        sign_test: Vec<Signs>,
        wilson: Vec<Rate>,
        bootstrap: Vec<Sample>,
    }

    #[derive(Deserialize)]
    struct Signs {
        better: u64,
        worse: u64,
        p: f64,
    }

    #[derive(Deserialize)]
    struct Rate {
        successes: usize,
        trials: usize,
        low: f64,
        high: f64,
    }

    #[derive(Deserialize)]
    struct Sample {
        values: Vec<f64>,
        low: f64,
        high: f64,
    }

    /// Written by `tests/reference/eval_statistics.py`.
    fn scipy() -> Fixture {
        serde_json::from_str(include_str!("../../tests/reference/fixtures/statistics.json")).unwrap()
    }

    #[test]
    fn the_sign_test_is_that_of_scipy() {
        for Signs { better, worse, p } in scipy().sign_test {
            let ours = sign_test(better, worse);
            assert!((ours - p).abs() <= 1e-9 * p, "{better} to {worse}: {ours} against {p}");
        }
    }

    #[test]
    fn wilsons_interval_is_that_of_scipy() {
        for Rate { successes, trials, low, high } in scipy().wilson {
            let ours = wilson(successes as f64 / trials as f64, trials);
            let close = (ours.low - low).abs() < 1e-12 && (ours.high - high).abs() < 1e-12;
            assert!(close, "{successes} of {trials}: {ours:?} against {low} … {high}");
        }
    }

    #[test]
    fn the_bootstrap_interval_is_that_of_scipy_within_resampling_error() {
        for Sample { values, low, high } in scipy().bootstrap {
            let ours = bootstrap_mean(&values, 20_000, 1);
            let tolerance = 0.02 * (high - low) + 1.0 / values.len() as f64 / 4.0;
            let close = (ours.low - low).abs() < tolerance && (ours.high - high).abs() < tolerance;
            assert!(close, "{ours:?} against {low} … {high}");
        }
    }

    #[test]
    fn the_seed_decides_the_resamples() {
        let values = [0.013, 0.31, 1.07, 0.73, 0.29];
        assert_eq!(bootstrap_mean(&values, 500, 1), bootstrap_mean(&values, 500, 1));
        assert_ne!(bootstrap_mean(&values, 500, 1), bootstrap_mean(&values, 500, 2));
    }

    #[test]
    fn without_data_an_interval_says_nothing() {
        assert_eq!(wilson(0.0, 0), Interval { low: 0.0, high: 1.0 });
        assert_eq!(bootstrap_mean(&[], 100, 1), Interval { low: f64::NEG_INFINITY, high: f64::INFINITY });
    }
}
