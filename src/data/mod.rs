//! The contracts between stages: one Arrow schema per kind of row, declared once and used by writer and reader.
//!
//! A table is written as Parquet with snappy pages and no time stamps, so the same rows are the same bytes.
//! No row holds a wall-clock time: what differs from run to run would make every later stage run again.

mod table;

pub mod scenarios;
pub mod server;
pub mod steps;
pub mod trajectories;
pub mod verdict;

use std::path::Path;

pub use scenarios::Scenario;
pub use server::{Resource, Server, Tool};
pub use steps::Step;
pub use table::{Column, DataError, Table, read, write};
pub use trajectories::{GroupKey, Reward, Row, Trajectory};
pub use verdict::VerdictRow;

/// Whether a file that claims to be an artifact of this type is one; types that are no table are not looked at.
///
/// # Errors
/// If it is not readable as one, with the column that is missing or of another type; and of rewards, if one is no number:
/// nothing can be learnt from it, and no mean be taken.
pub fn check(artifact: &str, path: &Path) -> Result<(), DataError> {
    match artifact {
        Scenario::NAME => read::<Scenario>(path).map(drop),
        Server::NAME => read::<Server>(path).map(drop),
        Tool::NAME => read::<Tool>(path).map(drop),
        Resource::NAME => read::<Resource>(path).map(drop),
        Step::NAME => read::<Step>(path).map(drop),
        Trajectory::NAME => read::<Trajectory>(path).map(drop),
        Reward::NAME => {
            let rewards = read::<Reward>(path)?;
            match rewards.iter().position(|row| !row.reward.is_finite()) {
                Some(row) => Err(DataError::Value {
                    path: path.to_owned(),
                    column: "reward",
                    row,
                    value: rewards[row].reward,
                }),
                None => Ok(()),
            }
        }
        VerdictRow::NAME => read::<VerdictRow>(path).map(drop),
        _ => Ok(()),
    }
}
