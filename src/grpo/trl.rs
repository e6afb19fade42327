//! Agreement with TRL: the fixture holds losses and gradients of its own trainer (`tests/reference/grpo_loss.py`).

use serde::Deserialize;

use super::*;
use crate::data::GroupKey;

#[derive(Deserialize)]
struct Fixture {
    advantages: Vec<Group>,
    cases: Vec<Case>,
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
    rollouts: Vec<Rollout>,
    loss: f64,
}

#[derive(Deserialize)]
struct Rollout {
    advantage: f64,
    new: Vec<f32>,
    old: Vec<f32>,
    reference: Vec<f32>,
    gradient: Vec<f64>,
    clipped: Vec<bool>,
}

fn fixture() -> Fixture {
    serde_json::from_str(include_str!("../../tests/reference/fixtures/grpo_loss.json")).unwrap()
}

fn assert_close(ours: f64, theirs: f64, what: &str) {
    assert!((ours - theirs).abs() < 1e-9, "{what}: {ours} against {theirs}");
}

#[test]
fn losses_and_gradients_are_those_of_trl() {
    for case in fixture().cases {
        let objective = Objective {
            kind: case.kind,
            clip: Clip { low: case.clip_low, high: case.clip_high },
            kl: case.kl,
        };
        let step = StepSize {
            rollouts: case.rollouts.len(),
            tokens: case.rollouts.iter().map(|rollout| rollout.new.len()).sum(),
            token_budget: case.token_budget,
        };
        let mut tally = Tally::default();
        for (row, rollout) in case.rollouts.iter().enumerate() {
            let weight = objective.weight(&step, rollout.new.len());
            for at in 0..rollout.new.len() {
                let token = Token {
                    advantage: rollout.advantage,
                    new: rollout.new[at],
                    old: rollout.old[at],
                    rollout_log_ratio: mean_log_ratio(&rollout.new, &rollout.old),
                    reference: Some(rollout.reference[at]),
                };
                let term = objective.term(&token);
                let place = format!("{:?} kl {} rollout {row} token {at}", case.kind, case.kl);
                assert_close(term.slope * weight, rollout.gradient[at], &place);
                assert_eq!(term.clipped, rollout.clipped[at], "{place}");
                tally.add(&token, &term, weight);
            }
        }
        assert_close(tally.loss, case.loss, &format!("{:?} kl {}", case.kind, case.kl));
    }
}

#[test]
fn advantages_are_those_of_trl() {
    for group in fixture().advantages {
        let attempts: Vec<_> = group
            .rewards
            .iter()
            .map(|reward| Attempt {
                group: GroupKey { scenario: "g", policy: "p" },
                reward: *reward,
                excluded: None,
            })
            .collect();
        for (scale, expected) in [(Scale::Mean, &group.mean), (Scale::MeanStd, &group.mean_std)] {
            for (credit, expected) in advantages(&attempts, scale).0.into_iter().zip(expected) {
                assert_close(credit.unwrap(), *expected, &format!("{scale:?}"));
            }
        }
    }
}
