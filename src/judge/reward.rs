//! Computes a reward from its components.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{RelativeScore, truth};
use crate::data::{End, Reward, Scenario, Trajectory};

/// Weights of a reward's components.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Shaping {
    /// Reward of the right answer.
    pub truth: f64,
    /// Cost of each turn beyond the fewest turns of a right answer in the group.
    pub turn_cost: f64,
    /// Cost of each call that returned an error.
    pub tool_error_cost: f64,
    /// Cost of an episode that did not end with `complete_task`.
    pub unfinished_cost: f64,
    /// Weight of the relative judge's score, which is 0 to 1.
    pub relative: f64,
}

/// Maximum total cost of turns and errors, as a share of `truth`, so that an inefficient right answer still beats a wrong
/// one.
const MOST_SHAPING: f64 = 0.25;

/// An episode and its scenario.
#[derive(Debug, Clone, Copy)]
pub struct JudgedTrajectory<'a> {
    pub scenario: &'a Scenario,
    pub trajectory: &'a Trajectory,
}

/// Rewards of one group, in its order. `scores` are those of the relative judge, one per attempt, if it is used.
///
/// Efficiency counts only in a group that also has wrong answers. If all are right, the small differences would be the
/// only signal, and a normalized advantage would amplify them.
pub fn rewards(
    group: &[JudgedTrajectory<'_>],
    scores: Option<&[RelativeScore]>,
    shaping: &Shaping,
) -> Vec<Reward> {
    // A table that another program wrote may lack it.
    let right = |JudgedTrajectory { scenario, trajectory }: &JudgedTrajectory<'_>| {
        trajectory.correct.or_else(|| truth::correct(scenario, (*trajectory).into()))
    };
    let right: Vec<Option<bool>> = group.iter().map(right).collect();
    let fewest_turns = group
        .iter()
        .zip(&right)
        .filter(|(_, right)| **right == Some(true))
        .map(|(attempt, _)| attempt.trajectory.turns)
        .min()
        .filter(|_| right.contains(&Some(false)));
    let reward = |(index, attempt): (usize, &JudgedTrajectory<'_>)| {
        let score = scores.and_then(|scores| scores.get(index));
        reward(attempt.trajectory, right[index], fewest_turns, score, shaping)
    };
    group.iter().enumerate().map(reward).collect()
}

fn reward(
    trajectory: &Trajectory,
    correct: Option<bool>,
    fewest_turns: Option<u32>,
    relative: Option<&RelativeScore>,
    shaping: &Shaping,
) -> Reward {
    let mut parts: Vec<(&str, f64)> = Vec::new();
    if let Some(correct) = correct {
        parts.push(("truth", if correct { shaping.truth } else { 0.0 }));
    }
    if let (Some(true), Some(fewest)) = (correct, fewest_turns) {
        let turns = shaping.turn_cost * f64::from(trajectory.turns.saturating_sub(fewest));
        let errors = shaping.tool_error_cost * f64::from(trajectory.tool_errors);
        parts.push(("efficiency", 0.0 - (turns + errors).min(MOST_SHAPING * shaping.truth)));
    }
    if trajectory.end() != Some(End::Completed) {
        parts.push(("unfinished", -shaping.unfinished_cost));
    }
    // Ground truth overrules the judge, which may be persuaded to like a wrong answer.
    if let Some(relative) = relative.filter(|_| correct != Some(false)) {
        parts.push(("relative", shaping.relative * relative.score));
    }
    let component = |(name, part): &(&str, f64)| (name.to_string(), Value::from(*part));
    Reward {
        trajectory_id: trajectory.id.clone(),
        scenario_id: trajectory.scenario_id.clone(),
        reward: parts.iter().fold(0.0, |sum, (_, part)| sum + part) as f32,
        correct,
        components: Value::Object(parts.iter().map(component).collect::<Map<_, _>>()).to_string(),
        explanation: relative.and_then(|relative| relative.explanation.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPING: Shaping =
        Shaping { truth: 1.0, turn_cost: 0.02, tool_error_cost: 0.01, unfinished_cost: 0.1, relative: 0.5 };

    fn scenario(check: &str) -> Scenario {
        Scenario { answer: Some("7".into()), check: check.into(), ..Scenario::default() }
    }

    fn trajectory(answer: Option<&str>, turns: u32, tool_errors: u32) -> Trajectory {
        Trajectory {
            turns,
            tool_errors,
            end: if answer.is_some() { "completed" } else { "no_call" }.into(),
            answer: answer.map(str::to_owned),
            ..Trajectory::default()
        }
    }

    /// Rewards of a group, `reward components` per line.
    fn judged(check: &str, group: &[(Option<&str>, u32, u32)], scores: Option<&[f64]>) -> Vec<String> {
        let scenario = scenario(check);
        let trajectories: Vec<_> =
            group.iter().map(|(a, turns, errors)| trajectory(*a, *turns, *errors)).collect();
        let attempts: Vec<_> = trajectories
            .iter()
            .map(|trajectory| JudgedTrajectory { scenario: &scenario, trajectory })
            .collect();
        let scores: Option<Vec<RelativeScore>> = scores.map(|scores| {
            scores.iter().map(|score| RelativeScore { score: *score, explanation: None }).collect()
        });
        let rewards = rewards(&attempts, scores.as_deref(), &SHAPING);
        rewards.iter().map(|reward| format!("{:.3} {}", reward.reward, reward.components)).collect()
    }

    #[test]
    fn a_right_answer_gets_the_highest_reward_and_extra_turns_cost_a_little() {
        let group = [(Some("7"), 3, 0), (Some("7"), 5, 1), (Some("8"), 2, 0), (None, 6, 0)];
        assert_eq!(
            judged("number", &group, None),
            [
                r#"1.000 {"truth":1.0,"efficiency":0.0}"#,
                r#"0.950 {"truth":1.0,"efficiency":-0.05}"#,
                r#"0.000 {"truth":0.0}"#,
                r#"-0.100 {"truth":0.0,"unfinished":-0.1}"#,
            ]
        );
    }

    #[test]
    fn right_answers_are_equal_if_all_are_right() {
        assert_eq!(
            judged("number", &[(Some("7"), 3, 0), (Some("7"), 6, 3)], None),
            [r#"1.000 {"truth":1.0}"#; 2]
        );
    }

    #[test]
    fn shaping_keeps_a_right_answer_above_a_wrong_one() {
        let rewards = judged("number", &[(Some("7"), 1, 0), (Some("7"), 900, 900), (Some("8"), 1, 0)], None);
        assert!(rewards[1].starts_with("0.750 "), "{rewards:?}");
    }

    #[test]
    fn ground_truth_overrules_the_judge() {
        let group = [(Some("7"), 1, 0), (Some("8"), 1, 0)];
        let rewards = judged("number", &group, Some(&[0.2, 1.0]));
        assert!(rewards[0].starts_with("1.100 ") && rewards[1].starts_with("0.000 "), "{rewards:?}");
    }

    #[test]
    fn without_ground_truth_only_the_judge_decides() {
        let group = [(Some("x"), 1, 0), (Some("y"), 1, 0)];
        assert_eq!(
            judged("none", &group, Some(&[0.2, 1.0])),
            [r#"0.100 {"relative":0.1}"#, r#"0.500 {"relative":0.5}"#]
        );
    }
}
