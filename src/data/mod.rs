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

pub use scenarios::Scenario;
pub use server::{Resource, Server, Tool};
pub use steps::Step;
pub use table::{Column, DataError, Table, read, write};
pub use trajectories::{Reward, Row, Trajectory};
pub use verdict::VerdictRow;
