//! Tables that `rollout` and `judge` write: episodes and their rewards.

use super::table::table;

table! {
    /// One episode. `tokens`, `sampled` and `logprobs` have equal length.
    Trajectory in "trajectories" {
        /// Stable id: digest of policy, scenario, sample index and seed.
        id: String,
        /// Id of its scenario.
        scenario_id: String,
        /// Family of the scenario.
        family: String,
        /// Split of the scenario.
        split: String,
        /// Index of the episode within its group (the rollouts of one scenario by one policy).
        sample: u32,
        /// Digest of the policy that sampled it.
        policy: String,
        /// Sampling seed.
        seed: u64,
        /// Conversation as JSON: an array of {role, content, tool_calls?}.
        messages: String,
        /// All tokens of the episode, including the prompt.
        tokens: Vec<u32>,
        /// True if the policy sampled the token; false for prompt, tool results and template text.
        sampled: Vec<bool>,
        /// Natural log-probability of each sampled token under the sampling policy at temperature 1; 0 for other tokens.
        logprobs: Vec<f32>,
        /// Model turns.
        turns: u32,
        /// Tool calls that reached the server.
        calls: u32,
        /// Names of the tools called, in order.
        tools: Vec<String>,
        /// Calls that returned an error.
        tool_errors: u32,
        /// Turns whose tool call could not be parsed.
        parse_failures: u32,
        /// Why it ended: `completed`, `no_call`, `out_of_turns`, `out_of_tokens`, `out_of_time`, `server_down`
        /// (the policy's own call crashed the server; an episode lost for another reason has no row).
        end: String,
        /// The answer given to `complete_task`.
        answer: Option<String>,
        /// Index of the first token of each row of `tokens`, `sampled` and `logprobs`, except the first row. Each row
        /// starts with the prompt and contains the full context of its sampled tokens. Null if an episode is one row; the
        /// column is absent if all are.
        row_starts: Option<Vec<u32>>,
    }
}

/// The key of a group: rollouts of one scenario by one policy, so their rewards can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKey<'a> {
    /// Id of the scenario.
    pub scenario: &'a str,
    /// Digest of the policy.
    pub policy: &'a str,
}

/// A sequence to score and to train on: sampled tokens with the full context that they were sampled after.
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

    /// Whether `sampled`, `logprobs` and `row_starts` are consistent with `tokens`.
    pub fn is_consistent(&self) -> bool {
        let tokens = self.tokens.len();
        let starts = self.row_starts.as_deref().unwrap_or_default();
        let mut bounds = std::iter::once(0).chain(starts.iter().map(|start| *start as usize)).chain([tokens]);
        let mut last = bounds.next().unwrap_or(0);
        let ascend = starts.is_empty() || bounds.all(|bound| std::mem::replace(&mut last, bound) < bound);
        ascend && self.sampled.len() == tokens && self.logprobs.len() == tokens
    }

    /// The rows of a consistent trajectory. There is one row unless the template rewrites earlier turns.
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
    /// The reward of one episode.
    Reward in "rewards" {
        /// Id of the trajectory.
        trajectory_id: String,
        /// Id of its scenario; trajectories of one scenario and policy form a group.
        scenario_id: String,
        /// Total reward.
        reward: f32,
        /// Whether the answer equals the ground truth, if there is one.
        correct: Option<bool>,
        /// Weighted parts as a JSON object, e.g. {"truth": 1.0, "efficiency": -0.02}.
        components: String,
        /// The judge's explanation, if any.
        explanation: Option<String>,
    }
}
