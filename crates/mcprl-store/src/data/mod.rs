//! The table schemas: one Arrow schema per kind of row, shared by writer and reader.
//!
//! Tables are Parquet files with snappy compression and without timestamps, so the same rows give the same bytes.
//! No row contains a wall-clock time, because a value that differs from run to run would rerun every later stage.

mod table;

pub mod admission;
pub mod audit;
pub mod calls;
pub mod checks;
pub mod fact;
pub mod labels;
mod message;
pub mod pass_rates;
mod replays;
mod result_view;
pub mod scenarios;
pub mod server;
pub mod steps;
pub mod traces;
pub mod trajectories;
pub mod verdict;

use std::path::Path;

pub use admission::Admission;
pub use audit::JudgeAudit;
pub use calls::{Call, PairedCall, paired_calls};
pub use checks::{CallChecks, CallPattern, Change, Checks, StateCheck, TextCheck};
pub use fact::{Fact, Facts};
pub use labels::Label;
pub use message::{CallError, CallResult, Message, MessageCall, Role, arguments, first_of_user};
pub use pass_rates::PassRate;
pub use replays::Replay;
pub use result_view::result_view;
pub use scenarios::{NONE, Scenario, UNSEEN, folded, is_of_trained_cases};
pub use server::{Prompt, Resource, ResourceTemplate, Server, Tool};
pub use steps::Step;
pub use table::{DataError, Json, ServerName, Sparse, Table, Working, read, read_part, text_columns, write};
pub use traces::TraceRow;
pub use trajectories::{
    AnswerSource, End, EpisodeMessages, EpisodeRow, GroupKey, GroupSignal, OutcomeRow, REFERENCE, Reward,
    RewardComponents, RewardValue, TrainingRow, Trajectory, groups, keeps_protocol, labelled, policy_parts,
    read_rewards,
};
pub use verdict::VerdictRow;

/// Checks that a file is a valid artifact of this type. Types other than tables are not checked.
///
/// # Errors
/// If it cannot be read as this table, with the column that is missing or has another type; if a reward is not
/// finite; or if the checks of a scenario are not [`Checks`].
pub fn check(artifact: &str, path: &Path) -> Result<(), DataError> {
    const TABLES: [(&str, Check); 17] = [
        (Scenario::NAME, scenarios::check_scenarios),
        table_type::<Admission>(),
        table_type::<Server>(),
        table_type::<Tool>(),
        table_type::<Resource>(),
        table_type::<ResourceTemplate>(),
        table_type::<Prompt>(),
        table_type::<Step>(),
        table_type::<PassRate>(),
        table_type::<Trajectory>(),
        table_type::<Call>(),
        table_type::<VerdictRow>(),
        table_type::<JudgeAudit>(),
        table_type::<Label>(),
        table_type::<TraceRow>(),
        table_type::<Replay>(),
        (Reward::NAME, |path| read_rewards(path).map(drop)),
    ];
    TABLES.iter().find(|(name, _)| *name == artifact).map_or(Ok(()), |(_, check)| check(path))
}

type Check = fn(&Path) -> Result<(), DataError>;

const fn table_type<T: Table>() -> (&'static str, Check) {
    (T::NAME, |path| read::<T>(path).map(drop))
}
