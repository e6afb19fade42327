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

/// Share of right episodes above which a scenario counts as solved: one wrong episode of eight, fading, falls below it until two
/// rollouts without a wrong one have followed.
const SOLVED: f64 = 0.97;

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

    /// The share of right episodes, after one right and one wrong episode more: 1/2 for an unknown scenario.
    pub fn expected(&self) -> f64 {
        let episodes = self.episodes.max(0.0);
        (self.right.max(0.0).min(episodes) + 1.0) / (episodes + 2.0)
    }

    /// Whether the newest rollouts, at least two, solved it in all episodes.
    pub fn is_solved(&self) -> bool {
        self.rollouts > 1 && self.right >= SOLVED * self.episodes && self.episodes > 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(episodes: f64, right: f64) -> PassRate {
        PassRate { episodes, right, ..PassRate::unknown("s") }
    }

    #[test]
    fn an_unknown_scenario_is_expected_to_be_right_half_of_the_time() {
        assert_eq!((rate(0.0, 0.0).expected(), rate(8.0, 4.0).expected()), (0.5, 0.5));
        assert_eq!(rate(8.0, 0.0).expected(), 0.1);
    }

    #[test]
    fn a_scenario_is_solved_after_two_rollouts_in_a_row_without_a_wrong_episode() {
        let once = rate(8.0, 8.0);
        assert!(!PassRate { rollouts: 1, ..once.clone() }.is_solved());
        assert!(PassRate { rollouts: 1, ..once }.with_newer(8, 8).is_solved());
        let missed = rate(0.0, 0.0).with_newer(8, 7);
        assert!(!missed.clone().with_newer(8, 8).is_solved());
        assert!(missed.with_newer(8, 8).with_newer(8, 8).is_solved());
    }

    #[test]
    fn earlier_outcomes_fade() {
        assert_eq!(rate(8.0, 8.0).with_newer(8, 0), PassRate { rollouts: 1, ..rate(12.0, 4.0) });
    }
}
