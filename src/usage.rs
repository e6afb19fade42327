//! What work consumes beside time: tokens, calls, and what a language model behind an endpoint is paid for.

use std::{
    ops::AddAssign,
    sync::{Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};

/// Counts of what was consumed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Usage {
    /// Tokens the policy sampled.
    pub sampled_tokens: u64,
    /// Tokens that went through the decoder to sample those, each shared one once.
    pub computed_tokens: u64,
    /// Tokens that went through it again, because their keys and values had to make room for others'.
    pub recomputed_tokens: u64,
    /// Tokens that went through the decoder forward and backward, each shared one once.
    pub trained_tokens: u64,
    /// Calls of the server's tools.
    pub tool_calls: u64,
    /// Requests to language models behind endpoints.
    pub judge_requests: u64,
    /// Tokens sent to them.
    pub judge_prompt_tokens: u64,
    /// Tokens they wrote.
    pub judge_completion_tokens: u64,
}

impl Usage {
    /// Each count with its name, for people.
    pub fn named(&self) -> [(&'static str, u64); 8] {
        [
            ("tokens sampled", self.sampled_tokens),
            ("computed", self.computed_tokens),
            ("computed again", self.recomputed_tokens),
            ("trained", self.trained_tokens),
            ("tool calls", self.tool_calls),
            ("judge requests", self.judge_requests),
            ("judge tokens in", self.judge_prompt_tokens),
            ("judge tokens out", self.judge_completion_tokens),
        ]
    }

    /// Whether any of it is paid for.
    pub fn is_billed(&self) -> bool {
        self.judge_requests > 0 || self.judge_prompt_tokens > 0 || self.judge_completion_tokens > 0
    }

    /// Each count times a factor, rounded.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate"
    )]
    pub fn scaled(&self, factor: f64) -> Self {
        let scaled = |count: u64| (count as f64 * factor).round() as u64;
        Self {
            sampled_tokens: scaled(self.sampled_tokens),
            computed_tokens: scaled(self.computed_tokens),
            recomputed_tokens: scaled(self.recomputed_tokens),
            trained_tokens: scaled(self.trained_tokens),
            tool_calls: scaled(self.tool_calls),
            judge_requests: scaled(self.judge_requests),
            judge_prompt_tokens: scaled(self.judge_prompt_tokens),
            judge_completion_tokens: scaled(self.judge_completion_tokens),
        }
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, more: Self) {
        self.sampled_tokens += more.sampled_tokens;
        self.computed_tokens += more.computed_tokens;
        self.recomputed_tokens += more.recomputed_tokens;
        self.trained_tokens += more.trained_tokens;
        self.tool_calls += more.tool_calls;
        self.judge_requests += more.judge_requests;
        self.judge_prompt_tokens += more.judge_prompt_tokens;
        self.judge_completion_tokens += more.judge_completion_tokens;
    }
}

/// What a language model behind an endpoint is paid, in dollars per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// For tokens sent.
    pub prompt: f64,
    /// For tokens written.
    pub completion: f64,
}

impl Prices {
    /// Dollars for the judge's tokens.
    #[expect(clippy::cast_precision_loss, reason = "money is shown with few digits")]
    pub fn of(&self, spent: &Usage) -> f64 {
        let (sent, written) = (spent.judge_prompt_tokens as f64, spent.judge_completion_tokens as f64);
        (sent * self.prompt + written * self.completion) / 1e6
    }
}

/// Counts while a stage works.
#[derive(Debug, Default)]
pub struct UsageMeter(Mutex<Usage>);

impl UsageMeter {
    pub fn add(&self, more: Usage) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) += more;
    }

    pub fn spent(&self) -> Usage {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
