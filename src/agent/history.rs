//! What was said and done in a conversation, as messages and, if the policy has tokens, as tokens.

use crate::{data::Message, engine::Sampled};

/// `tokens`, `sampled` and `logprobs` have equal length.
#[derive(Debug, Default)]
pub struct History {
    /// A call of tokens that could not be parsed is not among the calls of its message; the text is then the whole turn as it
    /// was written.
    pub messages: Vec<Message>,
    pub tokens: Vec<u32>,
    /// True if the policy sampled the token.
    pub sampled: Vec<bool>,
    /// Natural log-probability of each sampled token; 0 for other tokens.
    pub logprobs: Vec<f32>,
    /// Starts of further rows, as in [`Trajectory::row_starts`](crate::data::Trajectory::row_starts).
    pub row_starts: Vec<usize>,
    pub turns: u32,
    /// Names of the tools whose calls reached the server, in order.
    pub tools: Vec<String>,
    /// Calls that returned an error, from the server or from mcprl.
    pub tool_errors: u32,
    /// Turns with a call that could not be parsed.
    pub parse_failures: u32,
    /// Calls that are not in the form of the chat template.
    pub loose_calls: u32,
    /// Tokens that an endpoint counts as sampled, where there are no tokens.
    pub counted_tokens: Option<usize>,
}

impl History {
    /// The current row, to which turns are appended.
    pub(super) fn row(&self) -> &[u32] {
        &self.tokens[self.row_starts.last().copied().unwrap_or(0)..]
    }

    pub(super) fn append(&mut self, given: &[u32]) {
        self.tokens.extend(given);
        self.sampled.resize(self.tokens.len(), false);
        self.logprobs.resize(self.tokens.len(), 0.0);
    }

    pub(super) fn append_turn(&mut self, turn: &Sampled) {
        self.turns += 1;
        self.tokens.extend(&turn.tokens);
        self.sampled.resize(self.tokens.len(), true);
        self.logprobs.extend(&turn.logprobs);
    }
}
