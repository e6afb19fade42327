//! What `rollout` and `judge` write: episodes and what they were worth.

use super::table::table;

table! {
    /// One episode. `tokens`, `sampled` and `logprobs` have equal length.
    Trajectory in "trajectories" {
        /// Stable id: digest of policy, scenario, sample index and seed.
        id: String,
        /// The scenario attempted.
        scenario_id: String,
        /// Family of the scenario.
        family: String,
        /// Split of the scenario.
        split: String,
        /// Index of the episode within its group (the attempts at one scenario by one policy).
        sample: u32,
        /// Digest of the policy that acted.
        policy: String,
        /// Sampling seed.
        seed: u64,
        /// Conversation as JSON: an array of {role, content, tool_calls?}.
        messages: String,
        /// Every token of the episode, prompt included.
        tokens: Vec<u32>,
        /// True where the policy sampled the token; false for prompt, tool results and template text.
        sampled: Vec<bool>,
        /// Natural log-probability of each sampled token under the acting policy at temperature 1; 0 elsewhere.
        logprobs: Vec<f32>,
        /// Model turns.
        turns: u32,
        /// Tool calls that reached the server.
        calls: u32,
        /// Names of the tools called, in order.
        tools: Vec<String>,
        /// Calls that came back as errors.
        tool_errors: u32,
        /// Turns whose tool call could not be parsed.
        parse_failures: u32,
        /// Why it ended: `completed`, `no_call`, `out_of_turns`, `out_of_tokens`, `out_of_time`, `server_down`
        /// (the policy's own call took the server down; an episode that was lost otherwise is no row).
        end: String,
        /// The answer given to `complete_task`.
        answer: Option<String>,
        /// Where `tokens`, `sampled` and `logprobs` are cut into rows: the index of each row's first token, but for the first
        /// row's. A row begins anew with the prompt and holds what its sampled tokens were sampled after. Null where an
        /// episode is one row, and no column where all are.
        row_starts: Option<Vec<u32>>,
    }
}

/// What the episodes of a group have in common: they are attempts at one scenario by one policy, so that their rewards can
/// be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKey<'a> {
    /// Id of the scenario.
    pub scenario: &'a str,
    /// Digest of the policy.
    pub policy: &'a str,
}

/// What some of an episode's tokens were sampled after, and they: a sequence to score and to train on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row<'a> {
    pub tokens: &'a [u32],
    pub sampled: &'a [bool],
    pub logprobs: &'a [f32],
}

impl Trajectory {
    /// The group it belongs to.
    pub fn group(&self) -> GroupKey<'_> {
        GroupKey { scenario: &self.scenario_id, policy: &self.policy }
    }

    /// Whether `sampled`, `logprobs` and `row_starts` fit `tokens`.
    pub fn is_sound(&self) -> bool {
        let tokens = self.tokens.len();
        let starts = self.row_starts.as_deref().unwrap_or_default();
        let mut bounds = std::iter::once(0).chain(starts.iter().map(|start| *start as usize)).chain([tokens]);
        let mut last = bounds.next().unwrap_or(0);
        let ascend = starts.is_empty() || bounds.all(|bound| std::mem::replace(&mut last, bound) < bound);
        ascend && self.sampled.len() == tokens && self.logprobs.len() == tokens
    }

    /// The rows of a sound trajectory: one, unless earlier turns stand otherwise in what later ones were sampled after.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        let starts = self.row_starts.as_deref().unwrap_or_default();
        let starts = starts.iter().map(|start| *start as usize);
        let ends = starts.clone().chain([self.tokens.len()]);
        std::iter::once(0).chain(starts).zip(ends).map(|(start, end)| Row {
            tokens: self.tokens.get(start..end).unwrap_or_default(),
            sampled: self.sampled.get(start..end).unwrap_or_default(),
            logprobs: self.logprobs.get(start..end).unwrap_or_default(),
        })
    }
}

table! {
    /// What an episode was worth.
    Reward in "rewards" {
        /// The trajectory judged.
        trajectory_id: String,
        /// Its scenario: trajectories of one scenario and policy form a group.
        scenario_id: String,
        /// Total reward.
        reward: f32,
        /// Whether the answer equals the ground truth, where there is one.
        correct: Option<bool>,
        /// Weighted parts as a JSON object, e.g. {"truth": 1.0, "efficiency": -0.02}.
        components: String,
        /// Why, in words, where a judge said so.
        explanation: Option<String>,
    }
}
