//! The mathematics of group-relative policy optimisation: advantages from rewards, and the gradient of the
//! loss with respect to the log-probability of every sampled token.
//!
//! Works on plain numbers, without tensors, files or models. Tokens that the policy did not sample (prompts,
//! tool results) have no policy term; callers pass only sampled tokens. "No variance" means equal rewards, not a
//! threshold. Every rollout without gradient has a named reason.

mod advantage;
mod conduct;
mod headroom;
mod importance;
mod loss;
mod moved;
mod remedies;
mod schedule;
#[cfg(test)]
mod trl;

pub use advantage::{Advantage, NoSignal, Scale, ScoredRollout, Signal, ZeroVariance, advantages};
pub use conduct::Conduct;
pub use headroom::{Advice, Headroom, Samples};
pub use importance::Importance;
pub use loss::{Clip, LossKind, Objective, StepSize, Tally, Token, mean_log_ratio, tool_token_dloss_dlogp};
pub use moved::{Moved, breakdown};
pub use remedies::{Episodes, remedies};
pub use schedule::{Schedule, Shape};
