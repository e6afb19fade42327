//! Advantages from the rewards of a group, and counts of the rollouts that carry gradient.

use std::{collections::BTreeMap, ops::AddAssign};

use serde::{Deserialize, Serialize};

use crate::data::{GroupKey, GroupSignal, groups};

/// How the rewards of a group become advantages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// `r − mean`: keeps the scale of reward differences (Liu et al. 2025, Dr. GRPO).
    Mean,
    /// `(r − mean) / (deviation + 1e-4)`, the deviation with n − 1 (Shao et al. 2024, §4.1): every group has
    /// the same weight, however small its differences.
    MeanStd,
    /// `r − mean of the others`: an unbiased baseline (RLOO; Ahmadian et al. 2024, §3.2). It is `Mean` times
    /// n / (n − 1), so groups of different sizes have the same scale.
    LeaveOneOut,
    /// `(r − mean of the group) / (deviation of all rollouts + 1e-4)`, the deviation with n − 1 (REINFORCE++,
    /// Hu et al. 2025; TRL's `scale_rewards="batch"`): the scale does not depend on the rewards' unit, and
    /// groups keep their relative weights.
    BatchStd,
}

/// Prevents huge advantages in a nearly uniform group; the value in TRL and the DeepSeekMath code.
const DEVIATION_FLOOR: f64 = 1e-4;

/// Why a rollout has no advantage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoSignal {
    /// Every rollout of its group has the same reward.
    ZeroVariance,
    /// Its reward equals the mean of a group that does vary.
    AtMean,
    /// Its group has no other rollout to compare it with.
    Alone,
    /// It has no reward, or one that is not finite.
    Unjudged,
    /// A budget truncated it, and truncated rollouts are masked.
    Truncated,
    /// The policy sampled nothing.
    Empty,
}

/// A rollout with its reward and group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoredRollout<'a> {
    pub group: GroupKey<'a>,
    pub reward: f32,
    /// Whether its answer is right, if known.
    pub correct: Option<bool>,
    /// The reason to exclude it, if the caller has one. It then does not enter its group's mean either.
    pub excluded: Option<NoSignal>,
}

/// A rollout's nonzero advantage, or the reason why it has none.
pub type Advantage = Result<f64, NoSignal>;

/// Whether the loss counts rollouts of groups without reward variance. Their advantage is 0, so they have no
/// policy gradient. But their rollouts and tokens count in the loss's denominator, and the KL term covers
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ZeroVariance {
    /// As in GRPO's mean over all rollouts.
    Count,
    /// As in DAPO's dynamic sampling: the group is filtered before the loss.
    Exclude,
}

impl ZeroVariance {
    /// The rollout's advantage in the loss; `None` if it is not part of the loss.
    ///
    /// A rollout at the mean of a group that varies always counts. A rollout without others to compare with
    /// is treated as a group without variance.
    pub fn counted(self, advantage: Advantage) -> Option<f64> {
        match advantage {
            Ok(advantage) => Some(advantage),
            Err(NoSignal::AtMean) => Some(0.0),
            Err(NoSignal::ZeroVariance | NoSignal::Alone) => (self == Self::Count).then_some(0.0),
            Err(NoSignal::Unjudged | NoSignal::Truncated | NoSignal::Empty) => None,
        }
    }
}

/// The advantage of each rollout, in the given order, and their counts. Rollouts may be in any order.
pub fn advantages(rollouts: &[ScoredRollout<'_>], scale: Scale) -> (Vec<Advantage>, Signal) {
    let mut advantages: Vec<Advantage> = rollouts.iter().map(exclusion).collect();
    let groups = groups(rollouts.iter().map(|rollout| rollout.group));
    let compared = rollouts.iter().zip(&advantages).filter(|(_, advantage)| advantage.is_ok());
    let compared: Vec<f64> = compared.map(|(rollout, _)| f64::from(rollout.reward)).collect();
    let of_all = deviation(&compared);
    let mut signal = Signal { groups: groups.len() as u64, ..Signal::default() };
    for members in groups.values() {
        let members: Vec<usize> =
            members.iter().copied().filter(|index| advantages[*index].is_ok()).collect();
        let rewards: Vec<f64> = members.iter().map(|index| f64::from(rollouts[*index].reward)).collect();
        for (index, advantage) in members.iter().zip(within_group(&rewards, scale, of_all)) {
            advantages[*index] = advantage;
        }
        if members.iter().any(|index| advantages[*index].is_ok()) {
            signal.groups_with_gradient += 1;
        } else if members.len() > 1 {
            let counter = match GroupSignal::of(members.iter().map(|index| rollouts[*index].correct)) {
                Some(GroupSignal::AllRight) => &mut signal.all_right,
                Some(GroupSignal::AllWrong) => &mut signal.all_wrong,
                Some(GroupSignal::Informative | GroupSignal::Unknown) | None => &mut signal.all_equal,
            };
            *counter += 1;
        }
    }
    advantages.iter().for_each(|advantage| signal.count(advantage));
    (advantages, signal)
}

fn exclusion(rollout: &ScoredRollout<'_>) -> Advantage {
    match rollout.excluded {
        Some(reason) => Err(reason),
        None if rollout.reward.is_finite() => Ok(0.0),
        None => Err(NoSignal::Unjudged),
    }
}

/// `of_all` is the deviation over all rollouts.
fn within_group(rewards: &[f64], scale: Scale, of_all: f64) -> Vec<Advantage> {
    let none = |reason| vec![Err(reason); rewards.len()];
    if rewards.len() < 2 {
        return none(NoSignal::Alone);
    }
    if rewards.iter().all(|reward| *reward == rewards[0]) {
        return none(NoSignal::ZeroVariance);
    }
    let (count, mean) = (rewards.len() as f64, mean(rewards));
    let divisor = match scale {
        Scale::Mean => 1.0,
        Scale::MeanStd => deviation(rewards) + DEVIATION_FLOOR,
        Scale::LeaveOneOut => (count - 1.0) / count,
        Scale::BatchStd => of_all + DEVIATION_FLOOR,
    };
    let advantage = |reward: &f64| match (reward - mean) / divisor {
        0.0 => Err(NoSignal::AtMean),
        advantage => Ok(advantage),
    };
    rewards.iter().map(advantage).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// With n − 1; 0 for fewer than two values.
fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / values.len().saturating_sub(1).max(1) as f64).sqrt()
}

/// The number of rollouts that carry gradient, and of the others by reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signal {
    pub rollouts: u64,
    pub with_gradient: u64,
    pub groups: u64,
    pub groups_with_gradient: u64,
    /// Groups of equal rewards: all answers right, all wrong, and otherwise.
    pub all_right: u64,
    pub all_wrong: u64,
    pub all_equal: u64,
    /// Rollouts without gradient, by reason.
    #[serde(rename = "silent")]
    pub without_gradient: BTreeMap<NoSignal, u64>,
}

impl Signal {
    fn count(&mut self, advantage: &Advantage) {
        self.rollouts += 1;
        match advantage {
            Ok(_) => self.with_gradient += 1,
            Err(reason) => *self.without_gradient.entry(*reason).or_default() += 1,
        }
    }

    /// Counts a group as one with gradient because it is taught its solution. `members`: what its rollouts have, whose answers
    /// are all wrong.
    pub fn teach(&mut self, members: impl IntoIterator<Item = Advantage>) {
        let mut alike = 0;
        for advantage in members {
            match advantage {
                // It has a gradient already.
                Ok(_) => return,
                Err(NoSignal::ZeroVariance | NoSignal::Alone) => alike += 1,
                Err(_) => {}
            }
        }
        self.groups_with_gradient += 1;
        self.all_wrong = self.all_wrong.saturating_sub(u64::from(alike > 1));
        self.with_gradient += alike;
        let reason = if alike > 1 { NoSignal::ZeroVariance } else { NoSignal::Alone };
        if let Some(count) = self.without_gradient.get_mut(&reason) {
            *count -= alike;
        }
        self.without_gradient.retain(|_, count| *count > 0);
    }

    /// Share of rollouts that carry gradient; 0 without rollouts.
    pub fn share(&self) -> f64 {
        if self.rollouts == 0 { 0.0 } else { self.with_gradient as f64 / self.rollouts as f64 }
    }

    /// The format of a step's `signal` column.
    pub fn to_json(&self) -> String {
        serde_json::json!(self).to_string()
    }
}

/// Adds the counts of another group.
impl AddAssign<&Signal> for Signal {
    fn add_assign(&mut self, other: &Signal) {
        self.rollouts += other.rollouts;
        self.with_gradient += other.with_gradient;
        self.groups += other.groups;
        self.groups_with_gradient += other.groups_with_gradient;
        self.all_right += other.all_right;
        self.all_wrong += other.all_wrong;
        self.all_equal += other.all_equal;
        for (reason, count) in &other.without_gradient {
            *self.without_gradient.entry(*reason).or_default() += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: GroupKey<'static> = GroupKey { scenario: "g", policy: "p" };

    fn group(rewards: &[f32]) -> Vec<ScoredRollout<'static>> {
        rewards
            .iter()
            .map(|reward| ScoredRollout { group: G, reward: *reward, correct: None, excluded: None })
            .collect()
    }

    #[test]
    fn a_group_is_centred_on_its_mean() {
        let (found, signal) = advantages(&group(&[1.0, 0.0, 0.0, 0.0]), Scale::Mean);
        assert_eq!(found, [Ok(0.75), Ok(-0.25), Ok(-0.25), Ok(-0.25)]);
        assert_eq!(signal.share(), 1.0);
    }

    #[test]
    fn the_deviation_has_one_degree_of_freedom_less() {
        let (found, _) = advantages(&group(&[1.0, 0.0]), Scale::MeanStd);
        assert_eq!(found[0], Ok(0.5 / (0.5_f64.sqrt() + 1e-4)));
    }

    #[test]
    fn left_out_of_its_own_baseline_a_rollout_is_compared_with_the_others() {
        let (found, _) = advantages(&group(&[1.0, 0.0, 0.5]), Scale::LeaveOneOut);
        assert_eq!(found, [Ok(0.75), Ok(-0.75), Err(NoSignal::AtMean)]);
    }

    #[test]
    fn the_deviation_of_the_batch_counts_groups_without_variance_and_no_excluded_rollouts() {
        let rollout = |scenario, reward| ScoredRollout {
            group: GroupKey { scenario, ..G },
            reward,
            correct: None,
            excluded: None,
        };
        let mut rollouts =
            [("a", 1.0), ("a", 0.0), ("b", 1.0), ("b", 1.0), ("c", 9.0)].map(|(s, r)| rollout(s, r));
        rollouts[4].excluded = Some(NoSignal::Truncated);
        let (found, _) = advantages(&rollouts, Scale::BatchStd);
        assert_eq!(found[0], Ok(0.5 / (0.5 + 1e-4)));
        assert_eq!(found[2], Err(NoSignal::ZeroVariance));
    }

    #[test]
    fn only_exactly_equal_rewards_have_no_variance() {
        // In floating point the mean of three times 0.1 is not 0.1. A threshold on the deviation would be a
        // guess.
        let (found, _) = advantages(&group(&[0.1; 3]), Scale::MeanStd);
        assert_eq!(found, [Err(NoSignal::ZeroVariance); 3]);
        let (found, _) = advantages(&group(&[0.1, 0.1, 0.1 + 1e-6]), Scale::Mean);
        assert!(found.iter().all(Result::is_ok));
    }

    #[test]
    fn excluded_rollouts_do_not_change_the_mean() {
        let mut rollouts = group(&[1.0, 0.0, 7.0, f32::NAN]);
        rollouts[2].excluded = Some(NoSignal::Truncated);
        let (found, _) = advantages(&rollouts, Scale::Mean);
        assert_eq!(found, [Ok(0.5), Ok(-0.5), Err(NoSignal::Truncated), Err(NoSignal::Unjudged)]);
    }

    #[test]
    fn a_group_without_rewards_is_counted_as_unjudged_and_carries_no_gradient() {
        let (found, signal) = advantages(&group(&[f32::NAN; 2]), Scale::Mean);
        assert_eq!(found, [Err(NoSignal::Unjudged); 2]);
        assert_eq!((signal.groups, signal.groups_with_gradient), (1, 0));
        assert_eq!([signal.all_right, signal.all_wrong, signal.all_equal], [0; 3], "no rewards are equal");
        assert_eq!(signal.without_gradient, BTreeMap::from([(NoSignal::Unjudged, 2)]));
        assert_eq!(ZeroVariance::Count.counted(found[0]), None);
    }

    #[test]
    fn a_reward_at_the_mean_and_a_rollout_alone_have_no_advantage() {
        assert_eq!(advantages(&group(&[0.0, 0.5, 1.0]), Scale::Mean).0[1], Err(NoSignal::AtMean));
        let mut rollouts = group(&[1.0, 0.0]);
        rollouts[1].excluded = Some(NoSignal::Truncated);
        assert_eq!(advantages(&rollouts, Scale::Mean).0, [Err(NoSignal::Alone), Err(NoSignal::Truncated)]);
    }

    #[test]
    fn rollouts_may_be_in_any_order() {
        let rollout = |scenario, reward| ScoredRollout {
            group: GroupKey { scenario, ..G },
            reward,
            correct: None,
            excluded: None,
        };
        let rollouts = [rollout("a", 1.0), rollout("b", 1.0), rollout("a", 0.0), rollout("b", 1.0)];
        let (found, signal) = advantages(&rollouts, Scale::Mean);
        assert_eq!(found, [Ok(0.5), Err(NoSignal::ZeroVariance), Ok(-0.5), Err(NoSignal::ZeroVariance)]);
        assert_eq!((signal.groups, signal.groups_with_gradient), (2, 1));
    }

    #[test]
    fn rollouts_of_another_policy_are_another_group() {
        let rollout = |policy, reward| ScoredRollout {
            group: GroupKey { policy, ..G },
            reward,
            correct: None,
            excluded: None,
        };
        let rollouts = [rollout("base", 0.0), rollout("trained", 1.0), rollout("base", 0.0)];
        let (found, signal) = advantages(&rollouts, Scale::Mean);
        let expected = [NoSignal::ZeroVariance, NoSignal::Alone, NoSignal::ZeroVariance];
        assert_eq!((found, signal.groups), (expected.map(Err).to_vec(), 2));
    }

    #[test]
    fn the_counts_add_up_and_round_trip_as_json() {
        let (_, mut signal) = advantages(&group(&[1.0, 0.0]), Scale::Mean);
        let (_, silent) = advantages(&group(&[1.0, 1.0, f32::NAN]), Scale::Mean);
        signal += &silent;
        insta::assert_snapshot!(signal.to_json(), @r#"{"rollouts":5,"with_gradient":2,"groups":2,"groups_with_gradient":1,"all_right":0,"all_wrong":0,"all_equal":1,"silent":{"zero_variance":2,"unjudged":1}}"#);
        assert_eq!(serde_json::from_str::<Signal>(&signal.to_json()).unwrap(), signal);
    }

    #[test]
    fn groups_of_equal_rewards_are_counted_by_their_answers() {
        let rollout = |scenario, correct| ScoredRollout {
            group: GroupKey { scenario, ..G },
            reward: 0.5,
            correct,
            excluded: None,
        };
        let (yes, no) = (Some(true), Some(false));
        let pairs = [("a", yes, yes), ("b", no, no), ("c", no, no), ("d", yes, no), ("e", None, None)];
        let rollouts: Vec<_> = pairs
            .into_iter()
            .flat_map(|(group, one, two)| [rollout(group, one), rollout(group, two)])
            .collect();
        let (_, signal) = advantages(&rollouts, Scale::Mean);
        assert_eq!((signal.all_right, signal.all_wrong, signal.all_equal), (1, 2, 2));
    }

    #[test]
    fn a_group_that_is_taught_counts_as_one_with_gradient() {
        let wrong = |scenario, reward, excluded| ScoredRollout {
            group: GroupKey { scenario, ..G },
            reward,
            correct: Some(false),
            excluded,
        };
        let cut = Some(NoSignal::Truncated);
        let rollouts = [
            wrong("a", 0.0, None),
            wrong("a", 0.0, None),
            wrong("a", 0.0, cut),
            wrong("b", 0.0, None),
            wrong("b", 0.1, None),
            wrong("c", 0.0, None),
            wrong("c", 0.0, None),
            wrong("d", 0.0, None),
            wrong("e", 0.0, cut),
        ];
        let (found, mut signal) = advantages(&rollouts, Scale::Mean);
        assert_eq!((signal.with_gradient, signal.groups_with_gradient, signal.all_wrong), (2, 1, 2));
        for group in [0..3, 3..5, 7..8, 8..9] {
            signal.teach(found[group].iter().copied());
        }
        assert_eq!((signal.with_gradient, signal.groups_with_gradient, signal.all_wrong), (5, 4, 1));
        let left = BTreeMap::from([(NoSignal::ZeroVariance, 2), (NoSignal::Truncated, 2)]);
        assert_eq!(signal.without_gradient, left);
    }

    #[test]
    fn no_rollouts_have_no_advantages() {
        assert_eq!(advantages(&[], Scale::Mean), (vec![], Signal::default()));
    }
}
