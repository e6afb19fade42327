//! The table of traces: which became episodes, and what was lost on the way.

use super::table::table;

table! {
    /// A conversation of a file.
    TraceRow in "traces" {
        /// `FILE:LINE`, or `FILE` for one that takes a whole file.
        place: String,
        /// `openai`, `sharegpt` or `session`.
        format: String,
        /// Why it is left out; null if it became an episode.
        left_out: Option<String>,
        /// What was lost or changed.
        repairs: Vec<String>,
        /// Turns of the assistant.
        turns: u32,
        /// Calls of the server's tools.
        calls: u32,
        /// Tokens of the episode.
        tokens: u32,
        /// Tokens that are learned.
        learned: u32,
    }
}
