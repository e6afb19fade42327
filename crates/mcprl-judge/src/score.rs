//! Scores that a judge gives to the episodes of one group.

use std::collections::BTreeMap;

/// Scores by criterion.
pub type Criteria = BTreeMap<String, f64>;

/// A judge's score of one episode.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Score {
    /// From 0 to 1.
    pub score: f64,
    /// From 0 to 1 each, if the judge has criteria.
    pub criteria: Criteria,
    pub explanation: Option<String>,
}

/// One round of scores: those of a group in one order, or those of one repetition.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Round {
    pub order: u32,
    pub repeat: u32,
    /// The place at which each conversation was shown; empty if they are not shown together.
    pub places: Vec<usize>,
    /// The score of each conversation that has one in every round.
    pub scores: Vec<f64>,
}

/// Scores of one group. A judge that can score none of its episodes gives no `Scores`: where it has a weight, an episode without
/// a score has no reward.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scores {
    /// In the group's order. `None` for an episode that the judge could not score.
    pub scores: Vec<Option<Score>>,
    /// The conversation of each episode. Equal ones are judged once.
    pub which: Vec<usize>,
    /// What the scores are means of.
    pub rounds: Vec<Round>,
}

/// Scores that differ by at most `band` become equal: from the highest on, all within the band of the first get their mean.
/// Episodes without a score are skipped.
pub fn with_ties(scores: &mut [Option<Score>], band: f64) {
    if band <= 0.0 {
        return;
    }
    let mut scores: Vec<&mut f64> = scores.iter_mut().flatten().map(|score| &mut score.score).collect();
    scores.sort_by(|a, b| b.total_cmp(a));
    let mut rest = scores.as_mut_slice();
    while let Some(highest) = rest.first().map(|score| **score) {
        // Decimal scores are not exact in binary.
        let is_below = |score: &&mut f64| highest - **score > band + 1e-12;
        let count = rest.iter().position(is_below).unwrap_or(rest.len());
        let (tied, below) = std::mem::take(&mut rest).split_at_mut(count);
        let mean = tied.iter().map(|score| **score).sum::<f64>() / count as f64;
        tied.iter_mut().for_each(|score| **score = mean);
        rest = below;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_within_the_band_become_equal() {
        let tied = |values: &[f64], band: f64| -> Vec<f64> {
            let scores = values.iter().map(|score| Some(Score { score: *score, ..Score::default() }));
            let mut scores: Vec<Option<Score>> = scores.chain([None]).collect();
            with_ties(&mut scores, band);
            assert_eq!(scores.pop(), Some(None));
            scores.iter().flatten().map(|score| (score.score * 1e6).round() / 1e6).collect()
        };
        assert_eq!(tied(&[0.5, 0.9, 0.55, 0.1], 0.0), [0.5, 0.9, 0.55, 0.1]);
        assert_eq!(tied(&[0.5, 0.9, 0.6, 0.1], 0.1), [0.55, 0.9, 0.55, 0.1]);
        assert_eq!(tied(&[0.3, 0.2, 0.1], 0.1), [0.25, 0.25, 0.1], "bands do not chain");
        assert_eq!(tied(&[], 0.1), [0.0; 0]);
    }
}
