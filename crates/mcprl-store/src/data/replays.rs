//! The table of replays: which episodes still hold on a server.

use super::table::table;

table! {
    /// An episode whose calls were made again.
    Replay in "replays" {
        /// Id of the trajectory.
        trajectory_id: String,
        /// Its scenario, or the place of its trace.
        scenario_id: String,
        /// Calls that were made again.
        calls: u32,
        /// Whether all results are the same. Null if the server failed.
        holds: Option<bool>,
        /// Position of the first call whose result differs, from 0.
        call: Option<u32>,
        /// Its tool.
        tool: Option<String>,
        /// The result that the episode has; in an exam, the answer of the task.
        before: Option<String>,
        /// The result now, or why there is none.
        now: Option<String>,
    }
}
