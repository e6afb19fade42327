//! Compares with TRL: the fixture contains losses and gradients of its trainer (`tests/reference/grpo_loss.py`).

use serde::Deserialize;

use super::*;
use crate::data::GroupKey;

#[derive(Deserialize)]
struct Fixture {
    advantages: Vec<Batch>,
    cases: Vec<Case>,
    half_flat: Vec<Case>,
    importance: Vec<Case>,
    tool_tokens: Vec<Case>,
    dual_clip: Vec<Case>,
}

/// Rewards of some groups of equal size, and the advantages of all their rollouts.
#[derive(Deserialize)]
struct Batch {
    rewards: Vec<Vec<f32>>,
    mean: Vec<f64>,
    mean_std: Vec<f64>,
    leave_one_out: Vec<f64>,
    batch_std: Vec<f64>,
}

#[derive(Deserialize)]
struct Case {
    kind: LossKind,
    clip_low: f64,
    clip_high: f64,
    dual_clip: Option<f64>,
    kl: f64,
    token_budget: usize,
    zero_variance: Option<ZeroVariance>,
    mode: Option<Importance>,
    #[serde(default)]
    cap: f64,
    #[serde(default)]
    tool_token_loss: f64,
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
    /// Under the policy that sampled, if that is not `old`.
    #[serde(default)]
    sampled: Vec<f32>,
    #[serde(default)]
    weights: Vec<f64>,
    /// Of the tokens of tool results.
    #[serde(default)]
    tool: Vec<f32>,
    #[serde(default)]
    tool_gradient: Vec<f64>,
    gradient: Vec<f64>,
    clipped: Option<Vec<bool>>,
}

fn fixture() -> Fixture {
    serde_json::from_str(include_str!("../../tests/reference/fixtures/grpo_loss.json")).unwrap()
}

fn assert_close(ours: f64, theirs: f64, what: &str) {
    assert_within(1e-9, ours, theirs, what);
}

fn assert_within(tolerance: f64, ours: f64, theirs: f64, what: &str) {
    assert!((ours - theirs).abs() < tolerance, "{what}: {ours} against {theirs}");
}

/// Checks the loss over the rollouts with these advantages; those without one are not part of it.
fn check(case: &Case, advantages: &[Option<f64>]) {
    let clip = Clip { low: case.clip_low, high: case.clip_high, dual: case.dual_clip };
    let objective = Objective { kind: case.kind, clip, kl: case.kl };
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
        let sampled = if rollout.sampled.is_empty() { &rollout.old } else { &rollout.sampled };
        let importance = case.mode.unwrap_or(Importance::None).weights(case.cap, &rollout.old, sampled);
        for (ours, theirs) in importance.iter().zip(&rollout.weights) {
            assert_close(*ours, *theirs, &place);
        }
        let importance = objective.weights(importance);
        for at in 0..rollout.new.len() {
            let token = Token {
                advantage,
                new: rollout.new[at],
                old: rollout.old[at],
                sampled: sampled[at],
                importance: importance[at],
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
    let tool_tokens = case.rollouts.iter().map(|r| r.tool.len()).sum();
    let tool = tool_token_dloss_dlogp(case.tool_token_loss, tool_tokens);
    for rollout in &case.rollouts {
        for (logprob, gradient) in rollout.tool.iter().zip(&rollout.tool_gradient) {
            assert_close(tool, *gradient, "a tool token");
            tally.loss += tool * f64::from(*logprob);
        }
    }
    assert_close(tally.loss, case.loss, &format!("{:?} kl {} {:?}", case.kind, case.kl, case.zero_variance));
}

fn check_all(cases: &[Case]) {
    for case in cases {
        let advantages: Vec<_> = case.rollouts.iter().map(|rollout| rollout.advantage).collect();
        check(case, &advantages);
    }
}

#[test]
fn losses_and_gradients_match_trl() {
    check_all(&fixture().cases);
}

#[test]
fn importance_weights_and_what_they_weigh_match_trl() {
    let cases = fixture().importance;
    assert_eq!(cases.len(), 12);
    check_all(&cases);
}

#[test]
fn the_dual_clip_matches_trls_delta() {
    check_all(&fixture().dual_clip);
}

#[test]
fn a_loss_on_tool_tokens_adds_their_cross_entropy() {
    check_all(&fixture().tool_tokens);
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
                correct: None,
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
    for batch in fixture().advantages {
        let names: Vec<String> = (0..batch.rewards.len()).map(|group| group.to_string()).collect();
        let groups = batch.rewards.iter().zip(&names);
        let rollout = |reward: &f32, scenario| ScoredRollout {
            group: GroupKey { scenario, policy: "p" },
            reward: *reward,
            correct: None,
            excluded: None,
        };
        let rollouts: Vec<_> =
            groups.flat_map(|(group, name)| group.iter().map(|r| rollout(r, name))).collect();
        // TRL's deviation multiplies by n / (n − 1) in f32.
        for (scale, expected, tolerance) in [
            (Scale::Mean, &batch.mean, 1e-9),
            (Scale::MeanStd, &batch.mean_std, 1e-7),
            (Scale::LeaveOneOut, &batch.leave_one_out, 1e-9),
            (Scale::BatchStd, &batch.batch_std, 1e-7),
        ] {
            for (advantage, expected) in advantages(&rollouts, scale).0.into_iter().zip(expected) {
                let counted = ZeroVariance::Count.counted(advantage).unwrap();
                assert_within(tolerance, counted, *expected, &format!("{scale:?}"));
            }
        }
    }
}
