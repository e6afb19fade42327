//! Rewards of episodes, with their components.
//!
//! Ground truth has priority: neither a judge nor shaping can raise a wrong answer above a right one. Rewards depend only
//! on the trajectories and the judges, not on the order in which episodes ran or were judged.
//!
//! [`llm`] has the language models that judge, behind endpoints or given by the caller.

mod answer;
mod consensus;
mod flags;
mod idle;
mod judge_error;
pub mod llm;
mod model;
mod program;
mod rank;
mod relative;
mod reply;
mod reward;
mod rubric;
mod score;
pub mod state;
mod transcript;
pub mod truth;

use mcprl_base::{child, error, hash, json, net, progress, random, text, usage};
use mcprl_store::data;
use {mcprl_chat as chat, mcprl_mcp as mcp};

pub use consensus::{agreed, consensus};
pub use flags::{Flag, flags};
pub use idle::{DONE, commonest_answer, solved_idly};
pub use judge_error::JudgeError;
pub use model::{JudgeModel, ReplyCache, shown_tool};
pub use program::{Program, program_words};
pub use rank::{kendall, pairs, spearman};
pub use relative::Relative;
pub use reward::{JudgeKind, JudgedTrajectory, Shaping, correct, rewards};
pub use rubric::{Criterion, Rubric, Scoring, criteria, default_criteria};
pub use score::{Round, Score, Scores, with_ties};
