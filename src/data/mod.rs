//! The table schemas: one Arrow schema per kind of row, shared by writer and reader.
//!
//! Tables are Parquet files with snappy compression and without timestamps, so the same rows give the same bytes.
//! No row contains a wall-clock time, because a value that differs from run to run would rerun every later stage.

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

/// Checks that a file is a valid artifact of this type. Types other than tables are not checked.
///
/// # Errors
/// If it cannot be read as this table, with the column that is missing or has another type; or if a reward is not finite.
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
