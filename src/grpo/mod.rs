//! The mathematics of group-relative policy optimisation: from rewards to advantages, from advantages to the dloss_dlogp of
//! the loss at every sampled token.
//!
//! Numbers in, numbers out: no tensors, no files, no model. Tokens the policy did not sample (prompts, tool results)
//! have no term; callers pass sampled tokens alone. Nothing here decides by a threshold what "no variance" is: a group
//! is silent if its rewards are equal, and every silent rollout has a named reason.

mod advantage;
mod loss;
mod schedule;
#[cfg(test)]
mod trl;

pub use advantage::{Advantage, NoSignal, Scale, ScoredRollout, Signal, ZeroVariance, advantages};
pub use loss::{Clip, LossKind, Objective, StepSize, Tally, Term, Token, mean_log_ratio};
pub use schedule::{Schedule, Shape};
