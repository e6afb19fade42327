//! Rewards: what an episode was worth, and why.
//!
//! Ground truth comes first: no judge lifts a wrong answer above a right one, and shaping is too small to. Rewards
//! depend on the trajectories and the judge alone, never on the order in which episodes were played or judged.

mod error;
mod relative;
mod reward;
pub mod truth;

pub use error::JudgeError;
pub use relative::{Memory, Relative, RelativeSpec, Verdict};
pub use reward::{JudgedTrajectory, Shaping, rewards};
