//! Rewards of episodes, with their components.
//!
//! Ground truth has priority: neither a judge nor shaping can raise a wrong answer above a right one. Rewards depend only
//! on the trajectories and the judge, not on the order in which episodes ran or were judged.

mod error;
mod relative;
mod reward;
pub mod truth;

pub use error::JudgeError;
pub use relative::{Relative, RelativeScore, RelativeSpec, ReplyCache};
pub use reward::{JudgedTrajectory, Shaping, rewards};
