//! What changes if the same trajectories get other rewards.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    data::{GroupKey, Reward, Trajectory, groups},
    grpo::{Scale, ScoredRollout, advantages},
    judge::{kendall, spearman},
    stage::mean,
};

/// Differences between two rewards of the same trajectories. Means are over what is defined; absent if nothing is.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RewardChange {
    pub trajectories: usize,
    pub groups: usize,
    /// Trajectories that have a reward on one side only.
    pub unmatched: usize,
    /// Mean rank correlations within groups in which both rewards vary.
    pub spearman: Option<f64>,
    pub kendall: Option<f64>,
    /// Groups in which only one of the rewards varies.
    pub flat_before: usize,
    pub flat_after: usize,
    /// Share of groups in which no episode is among the best by both rewards.
    pub best_changes: Option<f64>,
    /// Share of trajectories whose advantage, normalized within the group, changes its sign.
    pub sign_flips: Option<f64>,
    /// Mean absolute difference of the advantages.
    pub advantage_change: Option<f64>,
    pub mean_before: Option<f64>,
    pub mean_after: Option<f64>,
}

/// Compares rewards, matched by trajectory.
pub fn compare_rewards(trajectories: &[Trajectory], before: &[Reward], after: &[Reward]) -> RewardChange {
    let by_id = |rewards: &[Reward]| -> BTreeMap<String, f32> {
        rewards.iter().map(|reward| (reward.trajectory_id.clone(), reward.reward)).collect()
    };
    let (before, after) = (by_id(before), by_id(after));
    let matched: Vec<(GroupKey<'_>, f32, f32)> = trajectories
        .iter()
        .filter_map(|trajectory| {
            Some((trajectory.group(), *before.get(&trajectory.id)?, *after.get(&trajectory.id)?))
        })
        .collect();
    let advantages_of = |reward: fn(&(GroupKey<'_>, f32, f32)) -> f32| -> Vec<f64> {
        let rollouts: Vec<ScoredRollout<'_>> = matched
            .iter()
            .map(|row| ScoredRollout { group: row.0, reward: reward(row), correct: None, excluded: None })
            .collect();
        let all = advantages(&rollouts, Scale::MeanStd).0;
        all.into_iter().map(Result::unwrap_or_default).collect()
    };
    let (old, new) = (advantages_of(|row| row.1), advantages_of(|row| row.2));

    let mut change = RewardChange {
        trajectories: matched.len(),
        unmatched: trajectories.len() - matched.len(),
        ..RewardChange::default()
    };
    let (mut rho, mut tau, mut best) = (Vec::new(), Vec::new(), Vec::new());
    for members in groups(matched.iter().map(|row| row.0)).values() {
        change.groups += 1;
        let a: Vec<f64> = members.iter().map(|index| f64::from(matched[*index].1)).collect();
        let b: Vec<f64> = members.iter().map(|index| f64::from(matched[*index].2)).collect();
        rho.extend(spearman(&a, &b));
        tau.extend(kendall(&a, &b));
        let is_flat = |rewards: &[f64]| rewards.iter().all(|reward| *reward == rewards[0]);
        change.flat_before += usize::from(is_flat(&a) && !is_flat(&b));
        change.flat_after += usize::from(!is_flat(&a) && is_flat(&b));
        let top = |rewards: &[f64]| rewards.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (top_a, top_b) = (top(&a), top(&b));
        let keeps = a.iter().zip(&b).any(|(a, b)| *a == top_a && *b == top_b);
        best.push(f64::from(u8::from(!keeps)));
    }
    let moves = || old.iter().zip(&new);
    change.spearman = mean(rho);
    change.kendall = mean(tau);
    change.best_changes = mean(best);
    change.sign_flips = mean(moves().map(|(old, new)| f64::from(u8::from(old * new < 0.0))));
    change.advantage_change = mean(moves().map(|(old, new)| (old - new).abs()));
    change.mean_before = mean(matched.iter().map(|row| f64::from(row.1)));
    change.mean_after = mean(matched.iter().map(|row| f64::from(row.2)));
    change
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(groups: &[&[(f32, f32)]]) -> RewardChange {
        let (mut trajectories, mut before, mut after) = (Vec::new(), Vec::new(), Vec::new());
        for (group, members) in groups.iter().enumerate() {
            for (member, (old, new)) in members.iter().enumerate() {
                let id = format!("{group}/{member}");
                let reward = |reward: f32| Reward { trajectory_id: id.clone(), reward, ..Reward::default() };
                before.push(reward(*old));
                after.insert(0, reward(*new));
                let scenario_id = group.to_string();
                trajectories.push(Trajectory { id, scenario_id, ..Trajectory::default() });
            }
        }
        compare_rewards(&trajectories, &before, &after)
    }

    #[test]
    fn the_same_rewards_change_nothing() {
        let same = change(&[&[(0.0, 0.0), (1.0, 1.0)], &[(0.5, 0.5), (0.5, 0.5)]]);
        assert_eq!((same.spearman, same.kendall, same.best_changes), (Some(1.0), Some(1.0), Some(0.0)));
        assert_eq!((same.sign_flips, same.advantage_change), (Some(0.0), Some(0.0)));
        assert_eq!((same.groups, same.trajectories, same.flat_before, same.flat_after), (2, 4, 0, 0));
    }

    #[test]
    fn changed_ranks_and_advantages_are_counted_within_groups() {
        let other =
            change(&[&[(0.0, 1.0), (1.0, 0.0)], &[(0.0, 0.1), (1.0, 0.9)], &[(0.0, 0.3), (0.0, 0.4)]]);
        assert_eq!((other.spearman, other.kendall), (Some(0.0), Some(0.0)));
        assert_eq!((other.flat_before, other.flat_after), (1, 0));
        assert!((other.best_changes.unwrap() - 1.0 / 3.0).abs() < 1e-12);
        assert!((other.sign_flips.unwrap() - 2.0 / 6.0).abs() < 1e-12);
    }

    #[test]
    fn nothing_to_compare_has_no_means() {
        let none = change(&[]);
        assert_eq!(none, RewardChange::default());
        let trajectory = Trajectory { id: "x".into(), ..Trajectory::default() };
        assert_eq!(compare_rewards(&[trajectory], &[], &[]).unmatched, 1);
    }
}
