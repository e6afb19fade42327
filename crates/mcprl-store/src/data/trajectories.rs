//! Tables that `rollout` and `judge` write: episodes and their rewards.

use std::{collections::BTreeMap, path::Path};

use strum::VariantArray;

use super::{
    DataError, Message,
    table::{Json, table},
};

/// What [`Trajectory::policy`] says of a reference solution, which no policy sampled.
pub const REFERENCE: &str = "reference";

/// The policy of an episode that was played with a prompt of its own: its digest, and the name that it has with this prompt.
pub fn labelled(digest: &impl std::fmt::Display, name: &str) -> String {
    format!("{digest} {name}")
}

/// The digest in the policy of an episode, and the name of a prompt of its own.
pub fn policy_parts(policy: &str) -> (&str, Option<&str>) {
    policy.split_once(' ').map_or((policy, None), |(digest, name)| (digest, Some(name)))
}

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
        /// Digest of the policy that sampled it; of a variant of an exam, with a space and the variant's name behind it. `reference`
        /// for a reference solution, whose tokens count as sampled with probability 1.
        policy: String,
        /// Sampling seed.
        seed: u64,
        /// The conversation.
        messages: Vec<Message>,
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
        /// Calls that were read although they are not in the form of the chat template.
        loose_calls: u32,
        /// Why it ended: `completed` (with an answer), `no_call` (a turn had neither a call nor an answer), `out_of_turns`,
        /// `out_of_turn_tokens` (a turn was cut at `max_turn_tokens`), `out_of_tokens` (of the episode or the model's
        /// context), `server_down` (the policy's own call failed on every session; an episode lost for another reason has no row),
        /// `harness_failed` (the program that plays in place of mcprl's loop failed or took too long).
        end: String,
        /// The answer.
        answer: Option<String>,
        /// How the answer was given: `tool` (by `complete_task`) or `text` (as the text of the last turn).
        answer_source: Option<String>,
        /// Whether the answer is right; null if the scenario has no known answer.
        correct: Option<bool>,
        /// Index of the first token of each row of `tokens`, `sampled` and `logprobs`, except the first row. Each row
        /// starts with the prompt and contains the full context of its sampled tokens. Null if an episode is one row; the
        /// column is absent if all are.
        row_starts: Option<Vec<u32>>,
        /// Results of the calls that the scenario's `state` checks make after the episode, as a JSON array of texts, with null
        /// for a result that is an error. The column is absent if no scenario has such checks.
        state: Option<Json>,
        /// Tokens that an endpoint counts as sampled, of an episode that a model behind one plays. It has no `tokens`. The column
        /// is absent if there is none.
        counted_tokens: Option<u32>,
    }
    /// What a table of episodes says of their outcomes: a [`Trajectory`] without conversation and tokens.
    of OutcomeRow {
        id, scenario_id, family, split, sample, policy, turns, calls, tools, tool_errors, parse_failures, loose_calls, end,
        answer, answer_source, correct,
    }

    /// The conversation of an episode.
    of EpisodeMessages { messages }

    /// An episode to read: a [`Trajectory`] without tokens.
    of EpisodeRow {
        id, scenario_id, family, split, sample, policy, messages, turns, calls, tool_errors, parse_failures, loose_calls, end,
        answer, answer_source, correct, state,
    }
}

/// Why an episode ended.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    strum::Display,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[strum(serialize_all = "snake_case")]
pub enum End {
    /// The policy gave an answer.
    Completed,
    /// A turn had neither a call nor an answer.
    NoCall,
    OutOfTurns,
    /// A turn was cut at its own limit.
    OutOfTurnTokens,
    /// Of the episode or the model's context.
    OutOfTokens,
    /// The server was lost during a call. The caller finds out whether that call was the cause.
    ServerDown,
    /// The program that plays in place of mcprl's loop failed, or took too long.
    HarnessFailed,
}

impl End {
    pub const ALL: &[Self] = Self::VARIANTS;

    /// The reason of this name.
    pub fn parse(name: &str) -> Option<Self> {
        name.parse().ok()
    }

    /// The name in [`Trajectory::end`].
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Whether a limit cut the episode short.
    pub fn is_truncated(self) -> bool {
        matches!(self, Self::OutOfTurns | Self::OutOfTurnTokens | Self::OutOfTokens)
    }
}

/// How an answer was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum AnswerSource {
    /// By `complete_task`.
    Tool,
    /// As the text of a turn without a call.
    Text,
}

impl AnswerSource {
    /// The name in [`Trajectory::answer_source`].
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Whether an episode kept to the protocol: every call in the form of the chat template, and the answer given to
/// `complete_task`.
pub fn keeps_protocol(loose_calls: u32, answer_source: Option<&str>) -> bool {
    loose_calls == 0 && answer_source == Some(AnswerSource::Tool.name())
}

/// The key of a group: rollouts of one scenario by one policy, so their rewards can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKey<'a> {
    /// Id of the scenario.
    pub scenario: &'a str,
    /// Digest of the policy.
    pub policy: &'a str,
}

/// What the outcomes of a group can teach: a policy gradient needs episodes that differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupSignal {
    /// Some are right and some wrong.
    Informative,
    AllRight,
    AllWrong,
    /// The answer of some is not known, so only a judge can tell.
    Unknown,
}

impl GroupSignal {
    /// The signal of these outcomes; `None` if there are none.
    pub fn of(outcomes: impl IntoIterator<Item = Option<bool>>) -> Option<Self> {
        let outcomes: Vec<Option<bool>> = outcomes.into_iter().collect();
        match (outcomes.contains(&Some(true)), outcomes.contains(&Some(false))) {
            (true, true) => Some(Self::Informative),
            _ if outcomes.contains(&None) => Some(Self::Unknown),
            (true, false) => Some(Self::AllRight),
            (false, true) => Some(Self::AllWrong),
            (false, false) => None,
        }
    }
}

/// Indices of the members of each group.
pub fn groups<'a>(keys: impl Iterator<Item = GroupKey<'a>>) -> BTreeMap<GroupKey<'a>, Vec<usize>> {
    let mut groups: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (index, key) in keys.enumerate() {
        groups.entry(key).or_default().push(index);
    }
    groups
}

/// A sequence to score and to train on: sampled tokens with the full context that they were sampled after.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainingRow<'a> {
    pub tokens: &'a [u32],
    pub sampled: &'a [bool],
    pub logprobs: &'a [f32],
}

impl Trajectory {
    /// The group it belongs to.
    pub fn group(&self) -> GroupKey<'_> {
        GroupKey { scenario: &self.scenario_id, policy: &self.policy }
    }

    /// Why it ended; none if another program wrote a reason that is not in [`End`].
    pub fn end(&self) -> Option<End> {
        End::parse(&self.end)
    }

    /// The number of tokens that were sampled.
    pub fn sampled_tokens(&self) -> usize {
        self.sampled.iter().filter(|sampled| **sampled).count()
    }

    /// Whether `sampled`, `logprobs` and `row_starts` are consistent with `tokens`.
    pub fn is_consistent(&self) -> bool {
        let tokens = self.tokens.len();
        let starts = self.row_starts.as_deref().unwrap_or_default();
        let bounds = std::iter::once(0).chain(starts.iter().map(|start| *start as usize)).chain([tokens]);
        let ascend = starts.is_empty() || bounds.is_sorted_by(|one, next| one < next);
        ascend && self.sampled.len() == tokens && self.logprobs.len() == tokens
    }

    /// The rows of a consistent trajectory. There is one row unless the template rewrites earlier turns.
    pub fn rows(&self) -> impl Iterator<Item = TrainingRow<'_>> {
        let starts = self.row_starts.as_deref().unwrap_or_default();
        let starts = starts.iter().map(|start| *start as usize);
        let ends = starts.clone().chain([self.tokens.len()]);
        std::iter::once(0).chain(starts).zip(ends).map(|(start, end)| TrainingRow {
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
        /// As in trajectories.
        correct: Option<bool>,
        /// Weighted parts as a JSON object, e.g. {"truth": 1.0, "efficiency": -0.02}.
        components: String,
        /// The judge's explanation, if any.
        explanation: Option<String>,
    }
    /// A reward without its explanation.
    of RewardValue { trajectory_id, reward, correct }

    /// The parts of a reward.
    of RewardComponents { trajectory_id, components }
}

/// Reads rewards to train on.
///
/// # Errors
/// Also fails if one is not finite.
pub fn read_rewards(path: &Path) -> Result<Vec<Reward>, DataError> {
    let rewards = super::read::<Reward>(path)?;
    match rewards.iter().position(|row| !row.reward.is_finite()) {
        Some(row) => {
            let (path, value) = (path.to_owned(), rewards[row].reward);
            Err(DataError::Value { path, column: "reward", row, value })
        }
        None => Ok(rewards),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_informative_if_its_known_outcomes_differ() {
        let (yes, no) = (Some(true), Some(false));
        for (outcomes, signal) in [
            (vec![yes, no], Some(GroupSignal::Informative)),
            (vec![None, no, yes], Some(GroupSignal::Informative)),
            (vec![yes, yes], Some(GroupSignal::AllRight)),
            (vec![no], Some(GroupSignal::AllWrong)),
            (vec![no, None], Some(GroupSignal::Unknown)),
            (vec![], None),
        ] {
            assert_eq!(GroupSignal::of(outcomes.clone()), signal, "{outcomes:?}");
        }
    }
}
