//! A language model compares the rollouts of one group and scores each between 0 and 1.
//!
//! Relative scores follow RULER (OpenPipe ART). To reduce the judge's bias, rollouts are shown in several seeded orders
//! under neutral names, scores are matched by name and not by position, and equal rollouts are shown once and share a
//! score. The judge is asked again until a reply has exactly one score for each rollout.

use minijinja::{context, value::Serde};
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use serde_json::{Value, json};

use super::{
    JudgeError, JudgeModel, ReplyCache, Round, Score, Scores,
    model::render,
    reward::JudgedTrajectory,
    transcript::{plain, transcript},
};
use crate::{hash::Encoder, random::permutation};

/// The relative judge.
pub struct Relative {
    pub model: JudgeModel,
    /// The prompt, a jinja template of `task` and `attempts`, each with `id` and `conversation`.
    pub prompt: String,
    /// Number of orders in which a group is shown. Scores are averaged over them.
    pub orders: u32,
    pub seed: u64,
}

impl Relative {
    /// Judges one group. Returns scores in the group's order.
    pub async fn judge(
        &self,
        group: &[JudgedTrajectory<'_>],
        cache: &impl ReplyCache,
    ) -> crate::error::Result<Scores> {
        let (distinct, which) = distinct(group, self.model.shown_bytes);
        let Some(first) = group.first() else { return Ok(Scores::default()) };
        let mut sums = vec![0.0; distinct.len()];
        let mut explanations = vec![None; distinct.len()];
        let mut rounds = Vec::new();
        for number in 0..self.orders.max(1) {
            let order = shuffled(distinct.len(), &first.scenario.id, self.seed, number);
            let question = self.question(&first.scenario.task, &distinct, &order)?;
            let names: Vec<String> = (0..order.len()).map(name).collect();
            for repeat in 0..self.model.repeats.max(1) {
                let replied = self.model.ask(&question, &names, repeat, cache).await?;
                let mut round = Round {
                    order: number,
                    repeat,
                    places: vec![0; order.len()],
                    scores: vec![0.0; order.len()],
                };
                for (place, (rollout, (score, explanation))) in order.iter().zip(replied).enumerate() {
                    sums[*rollout] += score;
                    explanations[*rollout] = explanations[*rollout].take().or(explanation);
                    (round.places[*rollout], round.scores[*rollout]) = (place, score);
                }
                rounds.push(round);
            }
        }
        let score = |rollout: &usize| {
            Some(Score {
                score: sums[*rollout] / rounds.len() as f64,
                explanation: explanations[*rollout].clone(),
                ..Score::default()
            })
        };
        Ok(Scores { scores: which.iter().map(score).collect(), which, rounds })
    }

    fn question(&self, task: &str, conversations: &[String], order: &[usize]) -> Result<String, JudgeError> {
        let rollout = |(index, place): (usize, &usize)| json!({"id": name(index), "conversation": conversations[*place]});
        let rollouts: Vec<Value> = order.iter().enumerate().map(rollout).collect();
        render(
            &self.prompt,
            context! { task => plain(task), tools => Serde(&self.model.tools), attempts => Serde(rollouts) },
        )
    }
}

/// The different conversations of a group, and which of them each rollout has.
pub(super) fn distinct(group: &[JudgedTrajectory<'_>], shown_bytes: usize) -> (Vec<String>, Vec<usize>) {
    let mut distinct: Vec<String> = Vec::new();
    let mut which = Vec::with_capacity(group.len());
    for rollout in group {
        let conversation = transcript(rollout.trajectory, shown_bytes);
        which.push(distinct.iter().position(|known| *known == conversation).unwrap_or_else(|| {
            distinct.push(conversation);
            distinct.len() - 1
        }));
    }
    (distinct, which)
}

/// The name of the rollout at this position.
fn name(index: usize) -> String {
    (index + 1).to_string()
}

/// A permutation that depends only on the scenario, the seed and the round. Every odd round reverses the previous one, so
/// that the first rollout of one is the last of the other.
fn shuffled(length: usize, scenario: &str, seed: u64, round: u32) -> Vec<usize> {
    let digest =
        Encoder::new("mcprl judge order v1").text(scenario).number(seed).number((round / 2).into()).finish();
    let mut rng = ChaCha8Rng::from_seed(*digest.as_bytes());
    let mut order = permutation(length, &mut rng);
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests;
