//! Rewards of episodes, with their components.
//!
//! Ground truth has priority: neither a judge nor shaping can raise a wrong answer above a right one. Rewards depend only
//! on the trajectories and the judges, not on the order in which episodes ran or were judged.

mod answer;
mod consensus;
mod error;
mod flags;
mod idle;
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

pub use consensus::{agreed, consensus};
pub use error::JudgeError;
pub use flags::{Flag, flags};
pub use idle::{DONE, commonest_answer, solved_idly};
pub use model::{JudgeModel, ReplyCache, shown_tool};
pub use program::{Program, program_words};
pub use rank::{kendall, pairs, spearman};
pub use relative::Relative;
pub use reward::{JudgeKind, JudgedTrajectory, Shaping, correct, rewards};
pub use rubric::{Criterion, Rubric, Scoring, criteria, default_criteria};
pub use score::{Round, Score, Scores, with_ties};
