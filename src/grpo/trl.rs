//! Compares with TRL: the fixture contains losses and gradients of its trainer (`tests/reference/grpo_loss.py`).

use serde::Deserialize;

use super::*;
use crate::data::GroupKey;

#[derive(Deserialize)]
struct Fixture {
    advantages: Vec<Group>,
    cases: Vec<Case>,
    half_flat: Vec<Case>,
}

#[derive(Deserialize)]
struct Group {
    rewards: Vec<f32>,
    mean: Vec<f64>,
    mean_std: Vec<f64>,
}

#[derive(Deserialize)]
struct Case {
    kind: LossKind,
    clip_low: f64,
    clip_high: f64,
    kl: f64,
    token_budget: usize,
    zero_variance: Option<ZeroVariance>,
    rollouts: Vec<Rollout>,
    loss: f64,
}

/// A rollout with either an advantage, or a group and a reward.
#[derive(Deserialize)]
struct Rollout {
    advantage: Option<f64>,
    #[serde(default)]
    group: String,
    #[serde(default)]
    reward: f32,
    new: Vec<f32>,
    old: Vec<f32>,
    reference: Vec<f32>,
    gradient: Vec<f64>,
    clipped: Option<Vec<bool>>,
}

fn fixture() -> Fixture {
    serde_json::from_str(include_str!("../../tests/reference/fixtures/grpo_loss.json")).unwrap()
}

fn assert_close(ours: f64, theirs: f64, what: &str) {
    assert!((ours - theirs).abs() < 1e-9, "{what}: {ours} against {theirs}");
}

/// Checks the loss over the rollouts with these advantages; those without one are not part of it.
fn check(case: &Case, advantages: &[Option<f64>]) {
    let objective =
        Objective { kind: case.kind, clip: Clip { low: case.clip_low, high: case.clip_high }, kl: case.kl };
    let counted = || case.rollouts.iter().zip(advantages).filter(|(_, advantage)| advantage.is_some());
    let step = StepSize {
        rollouts: counted().count(),
        tokens: counted().map(|(rollout, _)| rollout.new.len()).sum(),
        token_budget: case.token_budget,
    };
    let mut tally = Tally::default();
    for (row, (rollout, advantage)) in case.rollouts.iter().zip(advantages).enumerate() {
        let place = format!("{:?} kl {} {:?} rollout {row}", case.kind, case.kl, case.zero_variance);
        let Some(advantage) = advantage.filter(|advantage| objective.has_terms(*advantage)) else {
            assert!(rollout.gradient.iter().all(|dloss_dlogp| *dloss_dlogp == 0.0), "{place}");
            continue;
        };
        let weight = objective.weight(&step, rollout.new.len());
        for at in 0..rollout.new.len() {
            let token = Token {
                advantage,
                new: rollout.new[at],
                old: rollout.old[at],
                rollout_log_ratio: mean_log_ratio(&rollout.new, &rollout.old),
                reference: Some(rollout.reference[at]),
            };
            let term = objective.term(&token);
            assert_close(term.dloss_dlogp * weight, rollout.gradient[at], &place);
            if let Some(clipped) = &rollout.clipped {
                assert_eq!(term.clipped, clipped[at], "{place} token {at}");
            }
            tally.add(&token, &term, weight);
        }
    }
    assert_close(tally.loss, case.loss, &format!("{:?} kl {} {:?}", case.kind, case.kl, case.zero_variance));
}

#[test]
fn losses_and_gradients_match_trl() {
    for case in fixture().cases {
        let advantages: Vec<_> = case.rollouts.iter().map(|rollout| rollout.advantage).collect();
        check(&case, &advantages);
    }
}

#[test]
fn groups_with_equal_rewards_count_as_in_trl_or_are_excluded() {
    for case in fixture().half_flat {
        let rollouts: Vec<_> = case
            .rollouts
            .iter()
            .map(|rollout| ScoredRollout {
                group: GroupKey { scenario: &rollout.group, policy: "p" },
                reward: rollout.reward,
                excluded: None,
            })
            .collect();
        let (found, _) = advantages(&rollouts, Scale::Mean);
        let zero_variance = case.zero_variance.unwrap();
        let counted: Vec<_> = found.into_iter().map(|advantage| zero_variance.counted(advantage)).collect();
        check(&case, &counted);
    }
}

#[test]
fn advantages_match_trl() {
    for group in fixture().advantages {
        let rollouts: Vec<_> = group
            .rewards
            .iter()
            .map(|reward| ScoredRollout {
                group: GroupKey { scenario: "g", policy: "p" },
                reward: *reward,
                excluded: None,
            })
            .collect();
        for (scale, expected) in [(Scale::Mean, &group.mean), (Scale::MeanStd, &group.mean_std)] {
            for (advantage, expected) in advantages(&rollouts, scale).0.into_iter().zip(expected) {
                assert_close(advantage.unwrap(), *expected, &format!("{scale:?}"));
            }
        }
    }
}
