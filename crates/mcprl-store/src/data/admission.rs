//! The table of candidates for scenarios: which were admitted, and why the others were not.

use super::table::{Sparse, table};

table! {
    /// One candidate for a scenario.
    Admission in "admission" {
        /// Id of the scenario; for a refused candidate, the id that it would have without an answer.
        id: String,
        /// Family of questions it belongs to.
        family: String,
        /// The task text; empty where none was written.
        task: String,
        /// `admitted` or `refused`.
        verdict: String,
        /// Why it was refused: `unsolvable`, `unstable`, `ambiguous`, `trivial`, `duplicate`, `leaking`, `state-breaking`, `too-easy`
        /// or `too-hard`.
        reason: Option<String>,
        /// The reason in detail.
        detail: Option<String>,
        /// Calls of the reference solution.
        calls: u32,
        /// Tries of the policy whose outcome is known, if it tried the task.
        tries: Option<Sparse<u32>>,
        /// The share of them that solved it.
        pass_rate: Option<Sparse<f64>>,
    }
}
