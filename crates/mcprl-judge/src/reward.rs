//! Computes a reward from its components.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Flag, Score, flags, truth};
use crate::data::{AnswerSource, Reward, Scenario, Trajectory};

/// A judge besides ground truth. Their order is that of a reward's parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum JudgeKind {
    /// A language model compares the episodes of a group.
    Relative,
    /// A language model scores each episode by criteria.
    Rubric,
    /// A user's program.
    Command,
    /// People, who say whether an episode is right.
    Labels,
    /// The other rollouts at the task.
    Consensus,
}

impl JudgeKind {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    /// The name of its weight and of its part of a reward.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Limits the reward of an episode whose score is low.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gate {
    /// The gate closes below this score.
    pub below: f64,
    /// The most that the reward then is.
    #[serde(default)]
    pub at_most: f64,
}

/// What the known answer and the scores of other judges, from 0 to 1, are worth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Weights {
    /// Reward of the right answer.
    pub truth: f64,
    pub relative: f64,
    pub rubric: f64,
    pub command: f64,
    pub labels: f64,
    pub consensus: f64,
}

impl Default for Weights {
    fn default() -> Self {
        Self { truth: 1.0, relative: 0.0, rubric: 0.0, command: 0.0, labels: 0.0, consensus: 0.0 }
    }
}

/// What makes a reward.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Shaping {
    pub weights: Weights,
    /// Whether a wrong answer gets no score of other judges.
    pub veto: bool,
    /// Cost of each turn beyond the fewest turns of a right answer in the group.
    pub turn_cost: f64,
    /// Cost of each call that returned an error.
    pub tool_error_cost: f64,
    /// Cost of an episode that was not finished with `complete_task`.
    pub unfinished_cost: f64,
    /// Cost of each turn whose call could not be parsed.
    pub parse_failure_cost: f64,
    /// Cost of each call that is not in the form of the chat template.
    pub loose_call_cost: f64,
    /// Cost of an episode of `overlong_tokens` sampled tokens or more.
    pub overlong: f64,
    pub overlong_tokens: Option<u32>,
    /// Number of tokens before `overlong_tokens` in which the cost rises from 0.
    pub overlong_buffer: Option<u32>,
    /// By the name of a judge, `rubric.CRITERION`, or a [`Flag`].
    pub gates: BTreeMap<String, Gate>,
}

impl Shaping {
    pub fn weight(&self, kind: JudgeKind) -> f64 {
        match kind {
            JudgeKind::Relative => self.weights.relative,
            JudgeKind::Rubric => self.weights.rubric,
            JudgeKind::Command => self.weights.command,
            JudgeKind::Labels => self.weights.labels,
            JudgeKind::Consensus => self.weights.consensus,
        }
    }

    /// A weight that is no number of 0 or more.
    pub fn wrong_weight(&self) -> Option<(&'static str, f64)> {
        let judges = JudgeKind::ALL.iter().map(|kind| (kind.name(), self.weight(*kind)));
        let mut all = std::iter::once(("truth", self.weights.truth)).chain(judges);
        all.find(|(_, value)| !(value.is_finite() && *value >= 0.0))
    }

    /// Whether it decides anything that an answer is right.
    pub fn sees_truth(&self) -> bool {
        self.weights.truth > 0.0 || self.veto
    }

    /// Whether an answer is right, for costs and gates: unknown where being right earns nothing.
    fn paid(&self, correct: Option<bool>) -> Option<bool> {
        correct.filter(|_| self.weights.truth > 0.0)
    }

    /// Whether this judge is asked: for a part of the reward, or for a gate.
    pub fn uses(&self, kind: JudgeKind) -> bool {
        let is_gate = |name: &String| name.split('.').next() == Some(kind.name());
        self.weight(kind) > 0.0 || self.gates.keys().any(is_gate)
    }

    /// Whether this judge's score is a part of the reward. Ground truth overrules the judge, which may be persuaded to like a
    /// wrong answer.
    fn counts(&self, kind: JudgeKind, correct: Option<bool>) -> bool {
        self.weight(kind) > 0.0 && !(self.veto && correct == Some(false))
    }

    /// What is wrong with the gates, if anything. `criteria` are those of the rubric.
    pub fn problem(&self, criteria: &[&str]) -> Option<String> {
        self.gates.iter().find_map(|(name, gate)| {
            let is_known = match name.split_once('.') {
                Some(("rubric", criterion)) => criteria.contains(&criterion),
                Some(_) => false,
                None => {
                    JudgeKind::ALL.iter().any(|kind| kind.name() == name)
                        || Flag::ALL.iter().any(|flag| flag.name() == name)
                }
            };
            if !is_known {
                let names = JudgeKind::ALL.iter().map(|kind| kind.name()).chain(Flag::ALL.map(Flag::name));
                return Some(format!(
                    "`{name}` is not a judge, a criterion or a flag: {}",
                    names.collect::<Vec<_>>().join(", ")
                ));
            }
            if !(gate.below > 0.0 && gate.below <= 1.0) {
                return Some(format!("`below` of `{name}` should be above 0 and at most 1"));
            }
            // Otherwise a wrong answer could earn more than a right one.
            (!(gate.at_most >= 0.0 && gate.at_most.is_finite()))
                .then(|| format!("`at_most` of `{name}` should be 0 or more"))
        })
    }

    /// DAPO's soft overlong punishment (Yu et al. 2025, eq. 13), from 0 to -1.
    fn overlong(&self, trajectory: &Trajectory) -> f64 {
        let Some(most) = self.overlong_tokens.map(f64::from) else { return 0.0 };
        let buffer = self.overlong_buffer.map_or(most / 5.0, f64::from).clamp(1.0, most.max(1.0));
        #[expect(clippy::cast_precision_loss, reason = "a number of tokens")]
        let over = trajectory.sampled_tokens() as f64 - (most - buffer);
        0.0 - (over / buffer).clamp(0.0, 1.0)
    }
}

/// Maximum total of what shaping deducts from a right answer, as a share of `truth`, so that an inefficient right answer
/// still beats a wrong one.
const MOST_SHAPING: f64 = 0.25;

/// An episode and its scenario.
#[derive(Debug, Clone, Copy)]
pub struct JudgedTrajectory<'a> {
    pub scenario: &'a Scenario,
    pub trajectory: &'a Trajectory,
}

/// Whether the episode solved its task. A table that another program wrote may lack it.
pub fn correct(JudgedTrajectory { scenario, trajectory }: &JudgedTrajectory<'_>) -> Option<bool> {
    trajectory.correct.or_else(|| truth::correct(scenario, (*trajectory).into()))
}

/// Rewards of one group, in its order. `scores` are those of the judges that are used and could judge it, one per rollout.
///
/// An episode has no reward if a gate's judge could not score it: the gate would otherwise open for an episode that makes the
/// judge fail. It also has none if a judge that counts scored others of the group, because the rewards could not be compared.
/// And a group has none that neither ground truth nor a judge could score: what remains, such as the cost of an unfinished
/// episode, would be its only signal.
///
/// Costs count only in a group whose outcomes or judges' scores differ: they rank its episodes, and alone they make no signal.
/// Otherwise a group of wrong answers would teach to be wrong quickly. Efficiency counts only in a group that also has wrong
/// answers.
pub fn rewards(
    group: &[JudgedTrajectory<'_>],
    scores: &BTreeMap<JudgeKind, Vec<Option<Score>>>,
    shaping: &Shaping,
) -> Vec<Option<Reward>> {
    let right: Vec<Option<bool>> = group.iter().map(correct).collect();
    let has_truth = shaping.weights.truth > 0.0 && right.iter().any(Option::is_some);
    if !has_truth && !scores.values().flatten().any(Option::is_some) {
        return vec![None; group.len()];
    }
    let fewest_turns = group
        .iter()
        .zip(&right)
        .filter(|(_, right)| **right == Some(true))
        .map(|(rollout, _)| rollout.trajectory.turns)
        .min()
        .filter(|_| right.contains(&Some(false)));
    let scored = |(index, rollout): (usize, &JudgedTrajectory<'_>)| {
        let mut found: Vec<(JudgeKind, &Score)> = Vec::new();
        for (kind, scores) in scores {
            match scores.get(index).and_then(Option::as_ref) {
                Some(score) => found.push((*kind, score)),
                None if shaping.counts(*kind, right[index]) => return None,
                None => {}
            }
        }
        Scored::new(rollout, right[index], found, shaping)
    };
    let scored: Vec<Option<Scored<'_>>> = group.iter().enumerate().map(scored).collect();
    let mut totals = scored.iter().flatten().map(Scored::total);
    let is_informative = totals.next().is_some_and(|first| totals.any(|total| total != first));
    let reward = |(rollout, scored): (&JudgedTrajectory<'_>, Option<Scored<'_>>)| {
        let scored = scored?;
        let costs = match is_informative {
            true => costs(rollout, shaping.paid(scored.correct), fewest_turns, shaping),
            false => Vec::new(),
        };
        Some(scored.reward(rollout, costs))
    };
    group.iter().zip(scored).map(reward).collect()
}

/// An episode's ground truth and judges' scores.
struct Scored<'a> {
    correct: Option<bool>,
    scores: Vec<(JudgeKind, &'a Score)>,
    /// The weighted parts.
    parts: Vec<(&'static str, f64)>,
    /// The most that the reward may be.
    cap: f64,
}

impl<'a> Scored<'a> {
    /// `None` if the judge of a gate gave no score.
    fn new(
        rollout: &JudgedTrajectory<'_>,
        correct: Option<bool>,
        scores: Vec<(JudgeKind, &'a Score)>,
        shaping: &Shaping,
    ) -> Option<Self> {
        let cap = cap(rollout, shaping.paid(correct), &scores, &shaping.gates)?;
        let truth = correct.map(|correct| ("truth", if correct { shaping.weights.truth } else { 0.0 }));
        let counted = scores.iter().filter(|(kind, _)| shaping.counts(*kind, correct));
        let judged = counted.map(|(kind, score)| (kind.name(), shaping.weight(*kind) * score.score));
        let parts = truth.into_iter().chain(judged).collect();
        Some(Self { correct, scores, parts, cap })
    }

    /// What groups are compared by.
    fn total(&self) -> f64 {
        sum(&self.parts).min(self.cap)
    }

    fn reward(self, rollout: &JudgedTrajectory<'_>, costs: Vec<(&'static str, f64)>) -> Reward {
        let Self { correct, scores, mut parts, cap } = self;
        parts.extend(costs);
        let total = sum(&parts);
        if cap < total {
            parts.push(("gate", cap - total));
        }
        let component = |(name, part): &(&str, f64)| (name.to_string(), Value::from(*part));
        Reward {
            trajectory_id: rollout.trajectory.id.clone(),
            scenario_id: rollout.trajectory.scenario_id.clone(),
            reward: sum(&parts) as f32,
            correct,
            components: Value::Object(parts.iter().map(component).collect::<Map<_, _>>()).to_string(),
            explanation: explanation(&scores),
        }
    }
}

fn sum(parts: &[(&str, f64)]) -> f64 {
    parts.iter().fold(0.0, |sum, (_, part)| sum + part)
}

/// What shaping deducts from an episode of an informative group.
fn costs(
    rollout: &JudgedTrajectory<'_>,
    correct: Option<bool>,
    fewest_turns: Option<u32>,
    shaping: &Shaping,
) -> Vec<(&'static str, f64)> {
    let trajectory = rollout.trajectory;
    let mut parts: Vec<(&str, f64)> = Vec::new();
    let most = MOST_SHAPING * shaping.weights.truth;
    let mut left = if correct == Some(true) { most } else { f64::INFINITY };
    let mut deduct = |cost: f64| {
        let cost = cost.min(left);
        left -= cost;
        0.0 - cost
    };
    if let (Some(true), Some(fewest)) = (correct, fewest_turns) {
        let turns = shaping.turn_cost * f64::from(trajectory.turns.saturating_sub(fewest));
        let errors = shaping.tool_error_cost * f64::from(trajectory.tool_errors);
        parts.push(("efficiency", deduct(turns + errors)));
    }
    if trajectory.answer_source.as_deref() != Some(AnswerSource::Tool.name()) {
        parts.push(("unfinished", 0.0 - shaping.unfinished_cost));
    }
    if shaping.parse_failure_cost > 0.0 {
        let cost = shaping.parse_failure_cost * f64::from(trajectory.parse_failures);
        parts.push(("parse_failures", deduct(cost)));
    }
    if shaping.loose_call_cost > 0.0 && trajectory.loose_calls > 0 {
        let cost = shaping.loose_call_cost * f64::from(trajectory.loose_calls);
        parts.push(("loose_calls", deduct(cost)));
    }
    if shaping.overlong > 0.0 {
        parts.push(("overlong", deduct(-shaping.overlong * shaping.overlong(trajectory))));
    }
    parts
}

/// The lowest limit of the gates that are closed; infinite if all are open. `None` if the judge of a gate gave no score.
fn cap(
    rollout: &JudgedTrajectory<'_>,
    correct: Option<bool>,
    scores: &[(JudgeKind, &Score)],
    gates: &BTreeMap<String, Gate>,
) -> Option<f64> {
    let mut lowest = f64::INFINITY;
    if gates.is_empty() {
        return Some(lowest);
    }
    let found = flags(rollout.scenario, rollout.trajectory, correct);
    let score = |name: &str| {
        let (judge, criterion) =
            name.split_once('.').map_or((name, None), |(judge, name)| (judge, Some(name)));
        let judge = scores.iter().find(|(kind, _)| kind.name() == judge).map(|(_, score)| *score);
        match (Flag::ALL.iter().find(|flag| flag.name() == name), criterion) {
            (Some(flag), _) => Some(f64::from(u8::from(!found.contains(flag)))),
            (None, Some(criterion)) => judge?.criteria.get(criterion).copied(),
            (None, None) => judge.map(|score| score.score),
        }
    };
    for (name, gate) in gates {
        if score(name)? < gate.below {
            lowest = lowest.min(gate.at_most);
        }
    }
    Some(lowest)
}

/// The judges' explanations, with their names if there are several.
fn explanation(scores: &[(JudgeKind, &Score)]) -> Option<String> {
    let all: Vec<(&str, &str)> = scores
        .iter()
        .filter_map(|(kind, score)| Some((kind.name(), score.explanation.as_deref()?)))
        .collect();
    match all.as_slice() {
        [] => None,
        [(_, text)] => Some((*text).to_owned()),
        several => {
            Some(several.iter().map(|(name, text)| format!("{name}: {text}")).collect::<Vec<_>>().join("\n"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(truth: f64, relative: f64) -> Weights {
        Weights { truth, relative, ..Weights::default() }
    }

    fn shaping() -> Shaping {
        Shaping {
            weights: weights(1.0, 0.5),
            veto: true,
            turn_cost: 0.02,
            tool_error_cost: 0.01,
            unfinished_cost: 0.1,
            ..Shaping::default()
        }
    }

    fn scenario(check: &str) -> Scenario {
        Scenario { answer: Some("7".into()), check: check.into(), ..Scenario::default() }
    }

    fn trajectory(answer: Option<&str>, turns: u32, tool_errors: u32) -> Trajectory {
        Trajectory {
            turns,
            tool_errors,
            end: if answer.is_some() { "completed" } else { "no_call" }.into(),
            answer: answer.map(str::to_owned),
            answer_source: answer.map(|_| "tool".to_owned()),
            ..Trajectory::default()
        }
    }

    /// Rewards of a group, `reward components` per line.
    fn judged(check: &str, group: &[(Option<&str>, u32, u32)], scores: Option<&[f64]>) -> Vec<String> {
        let scenario = scenario(check);
        let trajectories: Vec<_> =
            group.iter().map(|(a, turns, errors)| trajectory(*a, *turns, *errors)).collect();
        let rollouts: Vec<_> = trajectories
            .iter()
            .map(|trajectory| JudgedTrajectory { scenario: &scenario, trajectory })
            .collect();
        let scores = scores.map(|scores| {
            scores.iter().map(|score| Some(Score { score: *score, ..Score::default() })).collect::<Vec<_>>()
        });
        let scores = scores.map(|scores| (JudgeKind::Relative, scores)).into_iter().collect();
        let rewards = rewards(&rollouts, &scores, &shaping());
        rewards.iter().flatten().map(|reward| format!("{:.3} {}", reward.reward, reward.components)).collect()
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

    #[test]
    fn a_group_that_nothing_could_score_gets_no_rewards() {
        // One episode is unfinished, which costs 0.1.
        let trajectories = [trajectory(Some("7"), 1, 0), trajectory(None, 1, 0)];
        let rewarded = |check: &str, shaping: &Shaping, scores: &[(JudgeKind, [Option<f64>; 2])]| {
            let scenario = scenario(check);
            let group = trajectories
                .each_ref()
                .map(|trajectory| JudgedTrajectory { scenario: &scenario, trajectory });
            let score = |score: &Option<f64>| score.map(|score| Score { score, ..Score::default() });
            let scores = scores.iter().map(|(kind, scores)| (*kind, scores.iter().map(score).collect()));
            rewards(&group, &scores.collect(), shaping).iter().flatten().count()
        };
        let relative = |scores| [(JudgeKind::Relative, scores)];
        let rubric = |scores| [(JudgeKind::Rubric, scores)];
        assert_eq!(rewarded("none", &shaping(), &[]), 0, "the judge's reply could not be used");
        assert_eq!(rewarded("none", &shaping(), &relative([None, None])), 0);
        assert_eq!(rewarded("none", &shaping(), &relative([Some(0.5), Some(0.5)])), 2);
        assert_eq!(rewarded("number", &shaping(), &[]), 2, "ground truth is enough");
        let without_truth = Shaping { weights: weights(0.0, 0.5), veto: false, ..shaping() };
        assert_eq!(rewarded("number", &without_truth, &[]), 0, "ground truth earns nothing here");
        let two = Shaping { weights: Weights { rubric: 1.0, ..weights(1.0, 0.5) }, ..shaping() };
        assert_eq!(rewarded("none", &two, &rubric([Some(0.5), Some(0.5)])), 2, "one of two judges is enough");
    }

    /// The reward and components of one episode with this ground truth, as `reward components`, or `none`.
    fn one(
        correct: Option<bool>,
        trajectory: Trajectory,
        scores: &[(JudgeKind, Score)],
        shaping: &Shaping,
    ) -> String {
        let trajectory = Trajectory { correct, ..trajectory };
        let scenario = scenario("none");
        let rollout = JudgedTrajectory { scenario: &scenario, trajectory: &trajectory };
        let scores = scores.iter().map(|(kind, score)| (*kind, vec![Some(score.clone())])).collect();
        match rewards(&[rollout], &scores, shaping).remove(0) {
            Some(reward) => format!("{:.3} {}", reward.reward, reward.components),
            None => "none".into(),
        }
    }

    /// As [`one`], in a group with an episode of the other outcome.
    fn among(correct: bool, trajectory: Trajectory, shaping: &Shaping) -> String {
        let other = Trajectory { correct: Some(!correct), ..self::trajectory(Some("8"), 1, 0) };
        let trajectory = Trajectory { correct: Some(correct), ..trajectory };
        let scenario = scenario("none");
        let group =
            [&trajectory, &other].map(|trajectory| JudgedTrajectory { scenario: &scenario, trajectory });
        let reward = rewards(&group, &BTreeMap::new(), shaping).remove(0).unwrap();
        format!("{:.3} {}", reward.reward, reward.components)
    }

    #[test]
    fn costs_rank_a_group_whose_outcomes_differ_and_alone_make_no_signal() {
        let shaping =
            Shaping { unfinished_cost: 0.1, parse_failure_cost: 0.1, loose_call_cost: 0.02, ..shaping() };
        let sloppy = || Trajectory { parse_failures: 1, loose_calls: 2, ..trajectory(None, 1, 0) };
        let expected = r#"-0.240 {"truth":0.0,"unfinished":-0.1,"parse_failures":-0.1,"loose_calls":-0.04}"#;
        assert_eq!(among(false, sloppy(), &shaping), expected);
        assert_eq!(one(Some(false), sloppy(), &[], &shaping), r#"0.000 {"truth":0.0}"#);
        let by_text = Trajectory { answer_source: Some("text".into()), ..trajectory(Some("7"), 1, 0) };
        let protocol = r#"0.900 {"truth":1.0,"efficiency":0.0,"unfinished":-0.1,"parse_failures":0.0}"#;
        assert_eq!(among(true, by_text, &shaping), protocol);
    }

    #[test]
    fn where_truth_earns_nothing_a_right_answer_pays_and_is_flagged_as_a_wrong_one() {
        let gates = BTreeMap::from([("hedging".to_owned(), Gate { below: 1.0, at_most: 0.25 })]);
        let judge_alone = Shaping {
            weights: weights(0.0, 1.0),
            veto: false,
            parse_failure_cost: 0.1,
            loose_call_cost: 0.02,
            overlong: 0.5,
            overlong_tokens: Some(10),
            gates,
            ..shaping()
        };
        let reward = |correct: bool| {
            let sloppy = |answer| Trajectory {
                correct: Some(correct),
                parse_failures: 2,
                loose_calls: 3,
                sampled: vec![true; 20],
                ..trajectory(Some(answer), 4, 2)
            };
            let other = Trajectory { correct: Some(!correct), ..trajectory(Some("8"), 1, 0) };
            let (plain, hedged) = (sloppy("7"), sloppy("7 or 8"));
            let scenario = scenario("none");
            let group = [&plain, &hedged, &other]
                .map(|trajectory| JudgedTrajectory { scenario: &scenario, trajectory });
            let scores = [0.75, 0.75, 0.5].map(|score| Some(Score { score, ..Score::default() }));
            let scores = BTreeMap::from([(JudgeKind::Relative, scores.to_vec())]);
            rewards(&group, &scores, &judge_alone)
                .into_iter()
                .map(|reward| reward.unwrap().reward)
                .collect::<Vec<_>>()
        };
        assert_eq!(reward(true), reward(false));
    }

    #[test]
    fn parse_failures_and_length_cost_less_than_a_right_answer_earns() {
        let shaping = Shaping {
            parse_failure_cost: 0.1,
            overlong: 0.5,
            overlong_tokens: Some(100),
            overlong_buffer: Some(20),
            ..shaping()
        };
        let long = |tokens: usize, parse_failures: u32| Trajectory {
            sampled: vec![true; tokens],
            parse_failures,
            ..trajectory(Some("x"), 1, 0)
        };
        let of = |correct, tokens, failures| among(correct, long(tokens, failures), &shaping);
        assert_eq!(of(false, 80, 0), r#"0.000 {"truth":0.0,"parse_failures":0.0,"overlong":0.0}"#);
        assert_eq!(of(false, 90, 1), r#"-0.350 {"truth":0.0,"parse_failures":-0.1,"overlong":-0.25}"#);
        assert_eq!(of(false, 500, 5), r#"-1.000 {"truth":0.0,"parse_failures":-0.5,"overlong":-0.5}"#);
        assert_eq!(
            of(true, 500, 2),
            r#"0.750 {"truth":1.0,"efficiency":0.0,"parse_failures":-0.2,"overlong":-0.04999999999999999}"#
        );
    }

    #[test]
    fn gates_limit_the_reward_of_a_low_score() {
        let gate = |name: &str, below: f64, at_most: f64| Shaping {
            weights: Weights { rubric: 1.0, ..weights(1.0, 0.5) },
            gates: BTreeMap::from([(name.to_owned(), Gate { below, at_most })]),
            ..shaping()
        };
        let rubric =
            Score { score: 0.75, criteria: BTreeMap::from([("safe".into(), 0.4)]), explanation: None };
        let scores = [(JudgeKind::Rubric, rubric)];
        let of =
            |answer: &str, shaping: &Shaping| one(None, trajectory(Some(answer), 1, 0), &scores, shaping);
        let open = r#"0.750 {"rubric":0.75}"#;
        assert_eq!(of("7", &gate("rubric.safe", 0.4, 0.0)), open);
        assert_eq!(of("7", &gate("rubric.safe", 0.5, 0.0)), r#"0.000 {"rubric":0.75,"gate":-0.75}"#);
        assert_eq!(of("7", &gate("rubric", 0.8, 0.5)), r#"0.500 {"rubric":0.75,"gate":-0.25}"#);
        assert_eq!(of("7 or 8", &gate("hedging", 1.0, 0.0)), r#"0.000 {"rubric":0.75,"gate":-0.75}"#);
        assert_eq!(of("7", &gate("hedging", 1.0, 0.0)), open);
        assert_eq!(of("7", &gate("command", 1.0, 0.0)), "none", "a judge that gave no score");
        assert_eq!(of("7", &gate("rubric.brief", 1.0, 0.0)), "none", "a criterion without a score");
        let right = one(Some(true), trajectory(Some("7"), 1, 0), &scores, &gate("rubric.safe", 0.5, 0.0));
        assert_eq!(right, r#"0.000 {"truth":1.0,"rubric":0.75,"gate":-1.75}"#);
    }

    #[test]
    fn an_episode_without_a_score_that_others_have_gets_no_reward() {
        let trajectories = [trajectory(Some("7"), 1, 0), trajectory(Some("8"), 1, 0)];
        let missing = |check: &str, shaping: &Shaping| -> Vec<bool> {
            let scenario = scenario(check);
            let group = trajectories
                .each_ref()
                .map(|trajectory| JudgedTrajectory { scenario: &scenario, trajectory });
            let score = Some(Score { score: 0.5, ..Score::default() });
            let scores = BTreeMap::from([(JudgeKind::Rubric, vec![score, None])]);
            rewards(&group, &scores, shaping).iter().map(Option::is_none).collect()
        };
        let weighted = Shaping { weights: Weights { rubric: 1.0, ..weights(1.0, 0.5) }, ..shaping() };
        let gates = BTreeMap::from([("rubric".to_owned(), Gate { below: 0.5, at_most: 0.0 })]);
        assert_eq!(missing("none", &weighted), [false, true]);
        assert_eq!(
            missing("number", &weighted),
            [false, false],
            "the score of a wrong answer does not count"
        );
        assert_eq!(missing("number", &Shaping { gates, ..weighted }), [false, true]);
    }

    #[test]
    fn mistaken_gates_are_named() {
        let problem = |name: &str, below: f64, at_most: f64| {
            let gates = BTreeMap::from([(name.to_owned(), Gate { below, at_most })]);
            Shaping { gates, ..shaping() }.problem(&["safe"])
        };
        assert_eq!(problem("rubric.safe", 0.5, 0.0), None);
        assert_eq!(problem("injection", 1.0, 0.2), None);
        for (name, below, at_most, expected) in [
            ("rubric.brief", 0.5, 0.0, "`rubric.brief` is not a judge"),
            ("truth", 0.5, 0.0, "`truth` is not a judge"),
            ("rubric", 0.0, 0.0, "`below` of `rubric`"),
            ("rubric", 0.5, -1.0, "`at_most` of `rubric`"),
        ] {
            assert!(problem(name, below, at_most).unwrap().starts_with(expected), "{name}");
        }
    }

    #[test]
    fn several_judges_add_up_by_their_weights() {
        let shaping =
            Shaping { weights: Weights { rubric: 1.0, command: 2.0, ..weights(1.0, 0.5) }, ..shaping() };
        let score = |score: f64| Score { score, ..Score::default() };
        let scores = [
            (JudgeKind::Relative, score(0.5)),
            (JudgeKind::Rubric, score(0.25)),
            (JudgeKind::Command, score(0.125)),
        ];
        let of = |correct| one(correct, trajectory(Some("7"), 1, 0), &scores, &shaping);
        assert_eq!(of(None), r#"0.750 {"relative":0.25,"rubric":0.25,"command":0.25}"#);
        assert_eq!(of(Some(false)), r#"0.000 {"truth":0.0}"#, "ground truth has a veto");
        let alone = Shaping { veto: false, weights: Weights { truth: 0.0, ..shaping.weights }, ..shaping };
        let wrong = one(Some(false), trajectory(Some("7"), 1, 0), &scores, &alone);
        assert_eq!(wrong, r#"0.750 {"truth":0.0,"relative":0.25,"rubric":0.25,"command":0.25}"#);
    }
}
