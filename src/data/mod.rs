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
pub use trajectories::{Reward, Row, Trajectory};
pub use verdict::VerdictRow;

/// Whether a file that claims to be an artifact of this type is one; types that are no table are not looked at.
///
/// # Errors
/// If it is not readable as one, with the column that is missing or of another type.
pub fn check(artifact: &str, path: &Path) -> Result<(), DataError> {
    match artifact {
        Scenario::NAME => read::<Scenario>(path).map(drop),
        Server::NAME => read::<Server>(path).map(drop),
        Tool::NAME => read::<Tool>(path).map(drop),
        Resource::NAME => read::<Resource>(path).map(drop),
        Step::NAME => read::<Step>(path).map(drop),
        Trajectory::NAME => read::<Trajectory>(path).map(drop),
        Reward::NAME => read::<Reward>(path).map(drop),
        VerdictRow::NAME => read::<VerdictRow>(path).map(drop),
        _ => Ok(()),
    }
}
