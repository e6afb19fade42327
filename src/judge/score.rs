//! Scores that a judge gives to the episodes of one group.

use super::Criteria;

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

/// Scores of one group.
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
    let mut scores: Vec<&mut Score> = scores.iter_mut().flatten().collect();
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].score.total_cmp(&scores[*a].score));
    for tied in bands(&scores, &order, band) {
        let mean = tied.iter().map(|index| scores[*index].score).sum::<f64>() / tied.len() as f64;
        tied.iter().for_each(|index| scores[*index].score = mean);
    }
}

/// Splits indices, ordered from the highest score, where a score is below the band of the first.
fn bands(scores: &[&mut Score], order: &[usize], band: f64) -> Vec<Vec<usize>> {
    let mut bands: Vec<Vec<usize>> = Vec::new();
    for index in order {
        match bands.last_mut() {
            // Decimal scores are not exact in binary.
            Some(tied) if scores[tied[0]].score - scores[*index].score <= band + 1e-12 => tied.push(*index),
            _ => bands.push(vec![*index]),
        }
    }
    bands
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
