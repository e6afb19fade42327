//! Tables that `scenarios` writes: tasks for the agent.

use std::path::Path;

use super::{
    Checks, DataError,
    table::{Json, ServerName, table},
};

/// The splits of held-out tasks that are generated, by what no training task has.
pub const UNSEEN: [&str; 5] =
    ["unseen_entities", "unseen_phrasings", "unseen_families", "unseen_tools", "unseen_servers"];

table! {
    /// One task.
    Scenario in "scenarios" {
        /// Stable id: digest of family, task and answer.
        id: String,
        /// `train`, or the held-out split: one of [`UNSEEN`], `task` for tasks held out one by one, or `file` for a user's own.
        split: String,
        /// Family of questions it belongs to; the split's name if there are no families.
        family: String,
        /// The task text that the agent gets.
        task: String,
        /// Expected answer, if known.
        answer: Option<String>,
        /// How answers are compared: `text`, `number`, `set`, or `none` if only a judge can decide.
        check: String,
        /// Entity the question is about: as JSON where it was generated, as its author wrote it in a file of tasks.
        entity: Option<String>,
        /// The reference solution's tool calls as a JSON array of {name, arguments}, if known.
        reference: Option<String>,
        /// Further conditions of success as JSON: `answer`, `calls` and `state` (docs/scenarios.md). The column is absent if
        /// no scenario has any.
        checks: Option<Json>,
        /// The server whose tools alone the agent gets, of several; absent: all tools.
        server: Option<ServerName>,
    }
}

table! {
    /// The text of a task.
    TaskText in "scenarios" {
        /// As in [`Scenario`].
        task: String,
    }
}

/// A task's text without differences of case and spaces.
pub fn folded(task: &str) -> String {
    task.split_whitespace().map(str::to_lowercase).collect::<Vec<_>>().join(" ")
}

pub(super) fn check_scenarios(path: &Path) -> Result<(), DataError> {
    for (row, scenario) in super::read::<Scenario>(path)?.iter().enumerate() {
        if let Some(Err(problem)) = scenario.checks.as_ref().map(|checks| Checks::parse(&checks.0)) {
            return Err(DataError::Checks { path: path.to_owned(), row, problem });
        }
    }
    Ok(())
}
