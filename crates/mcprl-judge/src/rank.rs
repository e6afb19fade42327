//! Rank correlations. Equal values share a rank.

/// Spearman's rank correlation: Pearson's of the ranks. `None` if either side is constant, or there are fewer than two.
pub fn spearman(a: &[f64], b: &[f64]) -> Option<f64> {
    pearson(&ranks(a), &ranks(b))
}

/// Kendall's tau-b (Kendall 1945). `None` as in [`spearman`].
pub fn kendall(a: &[f64], b: &[f64]) -> Option<f64> {
    let (mut sum, mut in_a, mut in_b) = (0.0, 0.0, 0.0);
    for (i, j) in pairs(a.len().min(b.len())) {
        let (sign_a, sign_b) = (sign(a[i] - a[j]), sign(b[i] - b[j]));
        sum += sign_a * sign_b;
        in_a += sign_a.abs();
        in_b += sign_b.abs();
    }
    let divisor = f64::sqrt(in_a * in_b);
    (divisor > 0.0).then(|| sum / divisor)
}

/// All pairs of indices below `count`.
pub fn pairs(count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count).flat_map(move |i| (i + 1..count).map(move |j| (i, j)))
}

/// -1, 0 or 1, unlike `signum`.
fn sign(value: f64) -> f64 {
    if value == 0.0 { 0.0 } else { value.signum() }
}

fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut before = 0;
    for equal in order.chunk_by(|a, b| values[*a] == values[*b]) {
        let rank = before as f64 + (equal.len() - 1) as f64 / 2.0;
        equal.iter().for_each(|index| ranks[*index] = rank);
        before += equal.len();
    }
    ranks
}

fn pearson(a: &[f64], b: &[f64]) -> Option<f64> {
    let count = a.len().min(b.len()) as f64;
    let mean = |values: &[f64]| values.iter().sum::<f64>() / count;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let (mut product, mut squares_a, mut squares_b) = (0.0, 0.0, 0.0);
    for (a, b) in a.iter().zip(b) {
        product += (a - mean_a) * (b - mean_b);
        squares_a += (a - mean_a).powi(2);
        squares_b += (b - mean_b).powi(2);
    }
    let divisor = f64::sqrt(squares_a * squares_b);
    (divisor > 0.0).then(|| product / divisor)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Fixture {
        ranks: Vec<Sample>,
    }

    #[derive(Deserialize)]
    struct Sample {
        a: Vec<f64>,
        b: Vec<f64>,
        spearman: Option<f64>,
        kendall: Option<f64>,
    }

    #[test]
    fn rank_correlations_match_scipy() {
        // Written by `tests/reference/judge_audit.py`.
        let fixture: Fixture =
            serde_json::from_str(include_str!("../../../tests/reference/fixtures/judge_audit.json")).unwrap();
        for Sample { a, b, spearman: rho, kendall: tau } in fixture.ranks {
            for (ours, theirs) in [(spearman(&a, &b), rho), (kendall(&a, &b), tau)] {
                let is_close = match (ours, theirs) {
                    (Some(ours), Some(theirs)) => (ours - theirs).abs() < 1e-12,
                    (ours, theirs) => ours == theirs,
                };
                assert!(is_close, "{a:?} {b:?}: {ours:?} against {theirs:?}");
            }
        }
    }
}
