//! Table that `rollout` writes: how often each scenario was solved, for the draw of a later one.

use super::table::table;

table! {
    /// Outcomes of a scenario in a `rollout` and the ones before it. An earlier rollout of the scenario counts half as much
    /// as the next one.
    PassRate in "pass_rates" {
        /// Id of the scenario.
        scenario_id: String,
        /// Episodes whose outcome is known.
        episodes: f64,
        /// Those with the right answer.
        right: f64,
        /// Rollouts that have played it; 0 for tries, which nothing is trained on.
        rollouts: u32,
    }
}

/// Weight of what is known of a scenario when it is played again. The policy has changed since.
const FADING: f64 = 0.5;

impl PassRate {
    /// A scenario of which nothing is known.
    pub fn unknown(scenario_id: &str) -> Self {
        Self { scenario_id: scenario_id.to_owned(), episodes: 0.0, right: 0.0, rollouts: 0 }
    }

    /// Adds the outcomes of a newer rollout's group.
    #[must_use]
    pub fn with_newer(self, episodes: usize, right: usize) -> Self {
        Self {
            episodes: FADING * self.episodes + episodes as f64,
            right: FADING * self.right + right as f64,
            rollouts: self.rollouts + 1,
            ..self
        }
    }

    /// p(1 − p) with p the share of right episodes, after one right and one wrong episode more: 0.25 for an
    /// unknown scenario, as for one that is right half of the time.
    pub fn variance(&self) -> f64 {
        let episodes = self.episodes.max(0.0);
        let p = (self.right.max(0.0).min(episodes) + 1.0) / (episodes + 2.0);
        p * (1.0 - p)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(episodes: f64, right: f64) -> PassRate {
        PassRate { episodes, right, ..PassRate::unknown("s") }
    }

    #[test]
    fn variance_is_largest_at_one_half_and_for_the_unknown() {
        assert_eq!((rate(0.0, 0.0).variance(), rate(8.0, 4.0).variance()), (0.25, 0.25));
        assert!(rate(8.0, 0.0).variance() < 0.1 && rate(8.0, 8.0).variance() < 0.1);
        assert!(rate(8.0, 1.0).variance() > rate(8.0, 0.0).variance());
    }

    #[test]
    fn earlier_outcomes_fade() {
        assert_eq!(rate(8.0, 8.0).with_newer(8, 0), PassRate { rollouts: 1, ..rate(12.0, 4.0) });
    }
}
