//! Table of what people say about episodes. It belongs to no stage: `mcprl ui` writes it beside the runs.

use super::table::table;

table! {
    /// What a person says about one episode. Kept also when the episode itself is removed from the cache.
    Label in "labels" {
        /// Id of the trajectory.
        trajectory_id: String,
        /// Stage that wrote the trajectory, as in the run's journal.
        stage: String,
        /// Id of its scenario.
        scenario_id: String,
        /// Family of the scenario.
        family: String,
        /// The task text.
        task: String,
        /// The answer that the episode gave.
        answer: Option<String>,
        /// Whether the person calls it right; null if there is only a note.
        right: Option<bool>,
        /// The person's note.
        note: Option<String>,
    }
}
