//! Intervals and tests of means of correlated values. All intervals are at 95 %.
//!
//! Questions of one family, or about one entity, tend to be right or wrong together. Treating them as
//! independent makes intervals too narrow (Miller 2024, "Adding Error Bars to Evals"). So values are grouped
//! in [`Clusters`]; resampling and sign flips apply to whole clusters. This module is independent of what a
//! cluster represents.

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

/// The standard normal's 97.5 % quantile.
const Z: f64 = 1.959_963_984_540_054;

/// The standard normal's 80 % quantile.
const Z_POWER: f64 = 0.841_621_233_572_914_3;

/// Discordance where none was seen: a guess for planning.
pub const DEFAULT_DISCORDANCE: f64 = 0.2;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
}

/// Values in groups that are independent of each other.
#[derive(Debug, Clone, PartialEq)]
pub struct Clusters {
    /// Sum of the values of each cluster.
    sums: Vec<f64>,
    /// Sum of the squares of the values of each cluster.
    squares: Vec<f64>,
    /// Number of values of each cluster; never 0.
    counts: Vec<f64>,
}

impl Clusters {
    /// How strongly the correlation within clusters is drawn towards 1: as by two discordant clusters that are.
    const PRIOR: f64 = 2.0;

    /// `members[i]` is the cluster of `values[i]`; the clusters are numbered from 0, without gaps.
    pub fn new(values: &[f64], members: &[usize]) -> Self {
        let clusters = members.iter().max().map_or(0, |last| last + 1);
        let [mut sums, mut squares, mut counts] = [0; 3].map(|_| vec![0.0; clusters]);
        for (value, member) in values.iter().zip(members) {
            sums[*member] += value;
            squares[*member] += value * value;
            counts[*member] += 1.0;
        }
        Self { sums, squares, counts }
    }

    pub fn mean(&self) -> f64 {
        self.sums.iter().sum::<f64>() / self.values()
    }

    fn values(&self) -> f64 {
        self.counts.iter().sum()
    }

    /// Number of independent values that would tell as much. Little variance tells little about the clusters, so the number is then
    /// close to that of equally large clusters.
    pub fn effective(&self) -> f64 {
        self.values() / self.design_effect()
    }

    /// By how much the clusters raise the variance of the mean (Kish 1965).
    fn design_effect(&self) -> f64 {
        1.0 + self.correlation() * (self.size() - 1.0)
    }

    /// Size of the cluster of an average value.
    fn size(&self) -> f64 {
        self.counts.iter().map(|count| count * count).sum::<f64>() / self.values()
    }

    /// Correlation of two values of a cluster, shrunk towards 1: the fewer values differ from the mean, the more.
    fn correlation(&self) -> f64 {
        let mean = self.mean();
        let (mut pairs, mut variance, mut squared) = (0.0, 0.0, 0.0);
        for ((sum, squares), count) in self.sums.iter().zip(&self.squares).zip(&self.counts) {
            if *count > 1.0 {
                let residual = sum - mean * count;
                let own = (squares - 2.0 * mean * sum + mean * mean * count).max(0.0);
                pairs += (residual * residual - own) / (count - 1.0);
                variance += own;
                squared += own * own;
            }
        }
        if variance < 1e-9 {
            return 1.0;
        }
        // Discordant clusters, or discordant values where these are fewer.
        let seen = (variance * variance / squared).min(variance);
        (seen * (pairs / variance).clamp(0.0, 1.0) + Self::PRIOR) / (seen + Self::PRIOR)
    }

    /// Variance of the mean between clusters (Liang and Zeger 1986), with the factor G / (G - 1) for G clusters. Not finite for fewer
    /// than two.
    fn variance(&self) -> f64 {
        let (clusters, mean) = (self.sums.len() as f64, self.mean());
        let residuals = self.sums.iter().zip(&self.counts).map(|(sum, count)| (sum - mean * count).powi(2));
        residuals.sum::<f64>() * clusters / (clusters - 1.0) / self.values().powi(2)
    }

    /// With a cluster of this many values more for each value.
    fn with(&self, values: &[f64], count: f64) -> Self {
        let mut all = self.clone();
        all.sums.extend(values.iter().map(|value| value * count));
        all.squares.extend(values.iter().map(|value| value * value * count));
        all.counts.extend(values.iter().map(|_| count));
        all
    }
}

/// Interval of a paired difference in success. The values are differences in `[-1, 1]`, one per task.
///
/// A gain and a loss are added, each of a whole cluster if the values of clusters go together (after Bonett and Price 2012). So
/// the width is positive even if no task changed. The rest is Student's interval of the clusters.
pub fn difference_interval(differences: &Clusters) -> Interval {
    student_interval(differences, &[-1.0, 1.0], Interval { low: -1.0, high: 1.0 })
}

/// Interval of a rate. The values are shares in `[0, 1]`. Two successes and two failures are added (Agresti and Coull 1998), as
/// [`difference_interval`] adds a gain and a loss.
pub fn rate_interval(shares: &Clusters) -> Interval {
    student_interval(shares, &[0.0, 0.0, 1.0, 1.0], Interval { low: 0.0, high: 1.0 })
}

/// Interval within `range` by the variance between clusters, with `added` to the values. One cluster has no measurable spread, so
/// its interval is the whole range.
///
/// `tests/reference/interval_coverage.py` measures its coverage: at least 93 % from ten clusters.
fn student_interval(values: &Clusters, added: &[f64], range: Interval) -> Interval {
    /// With 1, changes in one direction alone have a coverage of 93.1 %.
    const WEIGHT: f64 = 1.1;
    if values.sums.len() < 2 {
        return range;
    }
    // Clusters of unequal sizes count for fewer (Carter, Schnepel and Steigerwald 2017).
    let degrees = values.values() / values.size() - 1.0;
    let all = values.with(added, WEIGHT * values.design_effect());
    let (mean, half) = (all.mean(), student(degrees) * all.variance().sqrt());
    Interval { low: (mean - half).max(range.low), high: (mean + half).min(range.high) }
}

/// The smallest difference in success that McNemar's test at 5 % finds with 80 % power (Miettinen 1968; Connor 1987).
///
/// `effective` is the number of independent tasks ([`Clusters::effective`]), `discordance` the share of tasks on which the policies
/// differ, or the mean square of their differences where tasks are played several times. If it is 0, none was seen, and
/// [`DEFAULT_DISCORDANCE`] is taken.
pub fn smallest_difference(effective: f64, discordance: f64) -> f64 {
    let discordance = if discordance > 0.0 { discordance } else { DEFAULT_DISCORDANCE };
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..50 {
        let middle = f64::midpoint(low, high);
        *(if tasks(middle, discordance) > effective { &mut low } else { &mut high }) = middle;
    }
    high
}

/// Number of independent tasks to find a difference of this many points with 80 % power, at [`DEFAULT_DISCORDANCE`].
pub fn tasks_needed(points: f64) -> u32 {
    tasks((points / 100.0).abs(), DEFAULT_DISCORDANCE).ceil() as u32
}

/// As many tasks differ as the difference needs at least.
fn tasks(difference: f64, discordance: f64) -> f64 {
    let discordance = discordance.max(difference);
    let spread = (discordance - difference * difference).max(0.0);
    ((Z * discordance.sqrt() + Z_POWER * spread.sqrt()) / difference).powi(2)
}

/// Bootstrap interval of the mean: draws whole clusters with replacement (Field and Welsh 2007; Cameron,
/// Gelbach and Miller 2008) and interpolates quantiles.
///
/// Quantiles at 2.5 and 97.5 % are too narrow for few clusters. They are moved outwards so that normal values
/// get Student's interval (Hesterberg 2015, "expanded percentile"). One cluster has no measurable spread, so
/// its interval is unbounded.
pub fn bootstrap_mean(values: &Clusters, resamples: usize, seed: u64) -> Interval {
    let clusters = values.sums.len();
    if clusters < 2 || resamples == 0 {
        return Interval { low: f64::NEG_INFINITY, high: f64::INFINITY };
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // The high bits of a product instead of a remainder: deviates from uniform by at most clusters / 2³².
    let mut draw = || ((u64::from(rng.next_u32()) * clusters as u64) >> 32) as usize;
    let mut mean = || {
        let (mut sum, mut count) = (0.0, 0.0);
        for _ in 0..clusters {
            let drawn = draw();
            sum += values.sums[drawn];
            count += values.counts[drawn];
        }
        sum / count
    };
    let mut means: Vec<f64> = (0..resamples).map(|_| mean()).collect();
    means.sort_unstable_by(f64::total_cmp);
    let tail = tail(clusters);
    Interval { low: quantile(&means, tail), high: quantile(&means, 1.0 - tail) }
}

/// The share of resamples beyond each end of the interval: 2.5 % for many clusters, 0.9 % for ten.
fn tail(clusters: usize) -> f64 {
    let clusters = clusters as f64;
    let reach = (clusters / (clusters - 1.0)).sqrt() * student(clusters - 1.0);
    libm::erfc(reach / std::f64::consts::SQRT_2) / 2.0
}

/// The 97.5 % quantile of Student's distribution (Abramowitz and Stegun 26.7.5), accurate to 1e-4 from 9
/// degrees of freedom and to 3e-3 from 3.
fn student(degrees: f64) -> f64 {
    let terms = [
        (Z.powi(3) + Z) / 4.0,
        (5.0 * Z.powi(5) + 16.0 * Z.powi(3) + 3.0 * Z) / 96.0,
        (3.0 * Z.powi(7) + 19.0 * Z.powi(5) + 17.0 * Z.powi(3) - 15.0 * Z) / 384.0,
        (79.0 * Z.powi(9) + 776.0 * Z.powi(7) + 1482.0 * Z.powi(5) - 1920.0 * Z.powi(3) - 945.0 * Z)
            / 92160.0,
    ];
    terms.iter().rev().fold(0.0, |sum, term| (sum + term) / degrees) + Z
}

/// `sorted` must not be empty.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let below = place as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * place.fract()
}

/// Two-sided sign-flip test (Fisher 1935) of paired differences: the probability that their sum is at least
/// this far from zero if every cluster's sign is random. Exact: all 2^G signs count.
///
/// If every cluster is one pair of binary outcomes, this is the sign test and McNemar's exact test.
pub fn sign_flip(differences: &Clusters) -> f64 {
    // Shares of up to eight episodes are multiples of 1 / 840. Others are rounded. The test stays valid, also
    // with the coarser unit that limits the computation for thousands of questions.
    let total: f64 = differences.sums.iter().map(|sum| sum.abs()).sum();
    let unit = (1.0 / 840.0_f64).max(total / 50_000.0);
    #[expect(clippy::cast_possible_truncation, reason = "at most 50 000")]
    let moves: Vec<i64> = differences.sums.iter().map(|sum| (sum / unit).round() as i64).collect();
    let divisor = moves.iter().fold(0, |divisor, by| common_divisor(divisor, by.unsigned_abs() as usize));
    if divisor == 0 {
        return 1.0;
    }
    let observed = moves.iter().sum::<i64>().unsigned_abs() as usize / divisor;
    let mut moves: Vec<usize> = moves.iter().map(|by| by.unsigned_abs() as usize / divisor).collect();
    // The probability of every sum from -reach to reach. The short moves come first, while there are few sums.
    let reach: usize = moves.iter().sum();
    moves.sort_unstable();
    let mut chances = vec![1.0];
    for by in moves.into_iter().filter(|by| *by > 0) {
        let mut next = vec![0.0; chances.len() + 2 * by];
        next.iter_mut().zip(&chances).for_each(|(next, chance)| *next = chance / 2.0);
        next[2 * by..].iter_mut().zip(&chances).for_each(|(next, chance)| *next += chance / 2.0);
        chances = next;
    }
    let tail: f64 = chances[reach + observed..].iter().sum();
    if observed == 0 { 1.0 } else { (2.0 * tail).min(1.0) }
}

fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// Holm's step-down adjustment of p-values for multiple tests (Holm 1979). It bounds the chance of any false
/// alarm, whatever the dependence between tests.
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|a, b| p_values[*a].total_cmp(&p_values[*b]));
    let mut adjusted = vec![0.0; p_values.len()];
    let mut least = 0.0_f64;
    for (rank, index) in order.into_iter().enumerate() {
        least = least.max((p_values.len() - rank) as f64 * p_values[index]).min(1.0);
        adjusted[index] = least;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Fixture {
        sign_test: Vec<Signs>,
        intervals: Vec<Ends>,
        power: Vec<Power>,
        clustered: Vec<Sample>,
        holm: Vec<Adjusted>,
    }

    #[derive(Deserialize)]
    struct Signs {
        better: usize,
        worse: usize,
        p: f64,
    }

    #[derive(Deserialize)]
    struct Ends {
        values: Vec<f64>,
        clusters: Vec<usize>,
        design_effect: f64,
        difference: Option<[f64; 2]>,
        rate: Option<[f64; 2]>,
    }

    #[derive(Deserialize)]
    struct Power {
        tasks: f64,
        discordance: f64,
        difference: f64,
    }

    #[derive(Deserialize)]
    struct Sample {
        values: Vec<f64>,
        clusters: Vec<usize>,
        standard_error: f64,
        student: [f64; 2],
        bootstrap: [f64; 2],
        sign_flip: Option<f64>,
    }

    #[derive(Deserialize)]
    struct Adjusted {
        p: Vec<f64>,
        adjusted: Vec<f64>,
    }

    /// Written by `tests/reference/eval_statistics.py`.
    fn reference() -> Fixture {
        serde_json::from_str(include_str!("../../tests/reference/fixtures/statistics.json")).unwrap()
    }

    /// Every value in its own cluster.
    fn unclustered(values: &[f64]) -> Clusters {
        Clusters::new(values, &(0..values.len()).collect::<Vec<_>>())
    }

    #[test]
    fn the_sign_flip_test_of_single_questions_matches_the_sign_test_of_scipy() {
        for Signs { better, worse, p } in reference().sign_test {
            let ours = sign_flip(&unclustered(&[vec![1.0; better], vec![-1.0; worse]].concat()));
            assert!((ours - p).abs() <= 1e-9 * p, "{better} to {worse}: {ours} against {p}");
        }
    }

    #[test]
    fn the_sign_flip_test_of_clusters_matches_the_permutation_test_of_scipy() {
        let samples: Vec<_> = reference().clustered;
        assert!(samples.iter().any(|sample| sample.sign_flip.is_some()));
        for Sample { values, clusters, sign_flip: p, .. } in samples {
            let ours = sign_flip(&Clusters::new(&values, &clusters));
            assert!(p.is_none_or(|p| (ours - p).abs() <= 1e-9), "{ours} against {p:?}");
        }
    }

    #[test]
    fn the_sign_flip_test_takes_shares_of_any_size() {
        let shares: Vec<f64> =
            (0..1000).map(|i| f64::from(i % 17) / 16.0 - f64::from(i % 13) / 12.0).collect();
        let p = sign_flip(&unclustered(&shares));
        assert!((0.0..=1.0).contains(&p), "{p}");
    }

    #[test]
    fn intervals_match_the_script_that_measures_their_coverage() {
        for Ends { values, clusters, design_effect, difference, rate } in reference().intervals {
            let clusters = Clusters::new(&values, &clusters);
            assert!((clusters.design_effect() - design_effect).abs() < 1e-9);
            // The quantile is an expansion.
            let close = |ours: Interval, [low, high]: [f64; 2]| {
                let tolerance = 1e-3 * (high - low);
                (ours.low - low).abs() < tolerance && (ours.high - high).abs() < tolerance
            };
            assert!(difference.is_none_or(|ends| close(difference_interval(&clusters), ends)), "{values:?}");
            assert!(rate.is_none_or(|ends| close(rate_interval(&clusters), ends)), "{values:?}");
        }
    }

    #[test]
    fn no_interval_has_zero_width_and_each_holds_its_mean() {
        let families: Vec<usize> = (0..40).map(|i| i / 4).collect();
        for changed in [0, 1, 20, 39, 40] {
            let values: Vec<f64> = (0..40).map(|i| f64::from(u8::from(i < changed))).collect();
            for clusters in [unclustered(&values), Clusters::new(&values, &families)] {
                for Interval { low, high } in [difference_interval(&clusters), rate_interval(&clusters)] {
                    let mean = clusters.mean();
                    assert!(high - low > 0.05 && (low..=high).contains(&mean), "{mean} of {low} … {high}");
                }
            }
        }
    }

    #[test]
    fn without_changes_the_interval_is_as_of_one_more_either_way() {
        let Interval { low, high } = difference_interval(&unclustered(&[0.0; 100]));
        assert!((high - 0.0303).abs() < 2e-4 && low == -high, "{low} … {high}");
    }

    #[test]
    fn values_that_do_not_vary_tell_of_no_more_than_their_clusters() {
        let families: Vec<usize> = (0..40).map(|i| i / 4).collect();
        assert!((Clusters::new(&[0.0; 40], &families).effective() - 10.0).abs() < 1e-9);
        let apart: Vec<f64> = (0..40).map(|i| f64::from(i % 4 == 0)).collect();
        let together: Vec<f64> = (0..40).map(|i| f64::from(i < 20)).collect();
        assert!((Clusters::new(&together, &families).effective() - 10.0).abs() < 1e-9);
        assert!(Clusters::new(&apart, &families).effective() > 20.0);
        assert!((unclustered(&apart).effective() - 40.0).abs() < 1e-9);
    }

    #[test]
    fn the_smallest_difference_has_the_power_that_scipy_gives_it() {
        for Power { tasks, discordance, difference } in reference().power {
            let ours = smallest_difference(tasks, discordance);
            assert!((ours - difference).abs() < 1e-9, "{ours} against {difference}");
        }
    }

    #[test]
    fn fewer_tasks_see_larger_differences_alone() {
        assert_eq!(smallest_difference(100.0, 0.0), smallest_difference(100.0, DEFAULT_DISCORDANCE));
        assert!(smallest_difference(400.0, 0.2) < smallest_difference(100.0, 0.2));
        assert!(smallest_difference(100.0, 0.05) < smallest_difference(100.0, 0.3));
        assert_eq!(smallest_difference(2.0, 0.2), 1.0);
        assert_eq!([5.0, 10.0, 20.0].map(tasks_needed), [626, 155, 37]);
        for points in [3.0, 7.0, 30.0] {
            let seen = 100.0 * smallest_difference(f64::from(tasks_needed(points)), DEFAULT_DISCORDANCE);
            assert!((0.0..0.5).contains(&(points - seen)), "{points}: {seen}");
        }
    }

    #[test]
    fn the_standard_error_between_clusters_matches_statsmodels() {
        for Sample { values, clusters, standard_error, .. } in reference().clustered {
            let ours = Clusters::new(&values, &clusters).variance().sqrt();
            assert!((ours - standard_error).abs() < 1e-12, "{ours} against {standard_error}");
        }
    }

    #[test]
    fn the_bootstrap_of_clusters_matches_scipy_within_resampling_error() {
        for Sample { values, clusters, bootstrap: [low, high], .. } in reference().clustered {
            let ours = bootstrap_mean(&Clusters::new(&values, &clusters), 20_000, 1);
            let tolerance = 0.03 * (high - low);
            let close = (ours.low - low).abs() < tolerance && (ours.high - high).abs() < tolerance;
            assert!(close, "{ours:?} against {low} … {high}");
        }
    }

    #[test]
    fn the_bootstrap_of_clusters_is_about_as_wide_as_students_interval_of_statsmodels() {
        for Sample { values, clusters, student: [low, high], .. } in reference().clustered {
            let ours = bootstrap_mean(&Clusters::new(&values, &clusters), 20_000, 1);
            let ratio = (ours.high - ours.low) / (high - low);
            assert!((0.85..1.15).contains(&ratio), "{ours:?} against {low} … {high}");
        }
    }

    #[test]
    fn correlated_questions_widen_the_interval_and_raise_p() {
        let values: Vec<f64> = (0..120).map(|i| f64::from(u8::from(i / 10 % 3 != 0))).collect();
        let families: Vec<usize> = (0..120).map(|i| i / 10).collect();
        let (together, apart) = (Clusters::new(&values, &families), unclustered(&values));
        let wide = |interval: Interval| interval.high - interval.low;
        assert!(wide(bootstrap_mean(&together, 2000, 1)) > 2.5 * wide(bootstrap_mean(&apart, 2000, 1)));
        assert!(wide(difference_interval(&together)) > 2.5 * wide(difference_interval(&apart)));
        assert!(wide(rate_interval(&together)) > 2.5 * wide(rate_interval(&apart)));
        assert!(sign_flip(&together) > 1000.0 * sign_flip(&apart));
    }

    #[test]
    fn holms_adjustment_matches_statsmodels() {
        for Adjusted { p, adjusted } in reference().holm {
            let ours = holm(&p);
            let close = ours.iter().zip(&adjusted).all(|(ours, theirs)| (ours - theirs).abs() < 1e-12);
            assert!(close, "{p:?}: {ours:?} against {adjusted:?}");
        }
    }

    #[test]
    fn the_seed_decides_the_resamples() {
        let values = unclustered(&[0.013, 0.31, 1.07, 0.73, 0.29, 0.57, 0.11, 0.83, 0.97, 0.41, 0.19]);
        assert_eq!(bootstrap_mean(&values, 500, 1), bootstrap_mean(&values, 500, 1));
        assert_ne!(bootstrap_mean(&values, 500, 1), bootstrap_mean(&values, 500, 2));
    }

    #[test]
    fn one_cluster_has_the_widest_interval() {
        let unbounded = Interval { low: f64::NEG_INFINITY, high: f64::INFINITY };
        for values in [&[][..], &[1.0]] {
            assert_eq!(bootstrap_mean(&unclustered(values), 100, 1), unbounded);
            assert_eq!(difference_interval(&unclustered(values)), Interval { low: -1.0, high: 1.0 });
            assert_eq!(rate_interval(&unclustered(values)), Interval { low: 0.0, high: 1.0 });
        }
        assert_eq!(sign_flip(&unclustered(&[])), 1.0);
    }
}
