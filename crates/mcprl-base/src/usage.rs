//! Resource usage other than time: tokens, tool calls, and the billed use of language models behind endpoints.

use std::ops::AddAssign;

use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Counters of resource usage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Usage {
    /// Tokens that the policy sampled.
    pub sampled_tokens: u64,
    /// Tokens of forward passes for sampling; a shared token counts once.
    pub computed_tokens: u64,
    /// Tokens that were recomputed because their keys and values had been evicted from the cache.
    pub recomputed_tokens: u64,
    /// Tokens of forward and backward passes for training; a shared token counts once.
    pub trained_tokens: u64,
    /// Calls of the MCP server's tools.
    pub tool_calls: u64,
    /// Requests to language models behind endpoints.
    pub judge_requests: u64,
    /// Tokens sent to them.
    pub judge_prompt_tokens: u64,
    /// Tokens they wrote.
    pub judge_completion_tokens: u64,
}

impl Usage {
    /// Each counter with a readable name.
    fn counters(&mut self) -> [(&'static str, &mut u64); 8] {
        [
            ("tokens sampled", &mut self.sampled_tokens),
            ("computed", &mut self.computed_tokens),
            ("recomputed", &mut self.recomputed_tokens),
            ("trained", &mut self.trained_tokens),
            ("tool calls", &mut self.tool_calls),
            ("endpoint requests", &mut self.judge_requests),
            ("endpoint tokens in", &mut self.judge_prompt_tokens),
            ("endpoint tokens out", &mut self.judge_completion_tokens),
        ]
    }

    /// The value of each counter, with a readable name.
    pub fn named(mut self) -> [(&'static str, u64); 8] {
        self.counters().map(|(name, count)| (name, *count))
    }

    /// Whether any of it may be billed.
    pub fn is_billed(&self) -> bool {
        self.judge_requests > 0 || self.judge_prompt_tokens > 0 || self.judge_completion_tokens > 0
    }

    /// What came after an earlier count.
    #[must_use]
    pub fn since(mut self, mut earlier: Self) -> Self {
        for ((_, count), (_, before)) in self.counters().into_iter().zip(earlier.counters()) {
            *count = count.saturating_sub(*before);
        }
        self
    }

    /// Each counter times a factor, rounded.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate"
    )]
    pub fn scaled(mut self, factor: f64) -> Self {
        for (_, count) in self.counters() {
            *count = (*count as f64 * factor).round() as u64;
        }
        self
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, mut more: Self) {
        for ((_, count), (_, more)) in self.counters().into_iter().zip(more.counters()) {
            *count += *more;
        }
    }
}

/// Prices of a language model behind an endpoint, in dollars per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// Dollars per million prompt tokens.
    #[schemars(range(min = 0))]
    pub prompt: f64,
    /// Dollars per million completion tokens.
    #[schemars(range(min = 0))]
    pub completion: f64,
}

impl Prices {
    /// Cost of the judge's tokens in dollars.
    #[expect(clippy::cast_precision_loss, reason = "money is shown with few digits")]
    pub fn of(&self, usage: &Usage) -> f64 {
        let (prompt, completion) = (usage.judge_prompt_tokens as f64, usage.judge_completion_tokens as f64);
        (prompt * self.prompt + completion * self.completion) / 1e6
    }
}

/// Counts usage while a stage runs.
#[derive(Debug, Default)]
pub struct UsageMeter(Mutex<Usage>);

impl UsageMeter {
    pub fn add(&self, more: Usage) {
        *self.0.lock() += more;
    }

    pub fn total(&self) -> Usage {
        *self.0.lock()
    }
}
