//! Episodes that a limit of tokens ended.

use crate::data::{End, OutcomeRow};

/// The share of episodes from which limits explain a result.
const MANY: f64 = 0.25;

/// A sentence with the limits to raise, if they ended many of these episodes.
pub fn cut(episodes: &[OutcomeRow]) -> Option<String> {
    let count = |wanted: End| episodes.iter().filter(|row| End::parse(&row.end) == Some(wanted)).count();
    let (of_turns, of_episodes) = (count(End::OutOfTurnTokens), count(End::OutOfTokens));
    let all = of_turns + of_episodes;
    if all == 0 || (all as f64) < MANY * episodes.len() as f64 {
        return None;
    }
    let limits = [
        (of_turns, "at `max_turn_tokens` of [agent]"),
        (of_episodes, "at `max_episode_tokens` or the model's context"),
    ];
    let limits = limits.iter().filter(|(count, _)| *count > 0);
    let limits: Vec<String> = limits.map(|(count, limit)| format!("{count} {limit}")).collect();
    Some(format!("{all} of {} episodes were cut, {}: raise that", episodes.len(), limits.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_ended_a_quarter_of_the_episodes_are_named() {
        let of = |ends: &[&str]| {
            let row = |end: &&str| OutcomeRow { end: (*end).to_owned(), ..OutcomeRow::default() };
            cut(&ends.iter().map(row).collect::<Vec<_>>())
        };
        let said = of(&["out_of_turn_tokens", "completed", "out_of_tokens", "no_call"]);
        let wanted = "2 of 4 episodes were cut, 1 at `max_turn_tokens` of [agent], 1 at `max_episode_tokens` or the model's \
                      context: raise that";
        assert_eq!(said.as_deref(), Some(wanted));
        assert_eq!(of(&["out_of_turn_tokens", "completed", "completed", "completed", "completed"]), None);
        assert_eq!(of(&["out_of_turns", "completed"]), None);
        assert_eq!(of(&[]), None);
    }
}
