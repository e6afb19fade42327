//! What `scenarios` writes: tasks an agent is set.

use super::table::table;

table! {
    /// One task.
    Scenario in "scenarios" {
        /// Stable id: digest of family, task and answer.
        id: String,
        /// `train`, or the held-out split: `a` seen families with unseen entities, `b` unseen phrasings, `c` unseen families; `file` for a user's own.
        split: String,
        /// Family of questions it belongs to; the split's name where there are none.
        family: String,
        /// The task, as put to the agent.
        task: String,
        /// Expected answer, where one is known.
        answer: Option<String>,
        /// How an answer is compared: `text`, `number`, `set`, or `none` where only a judge can tell.
        check: String,
        /// Entity the question is about: as JSON where it was generated, as its author wrote it in a file of tasks.
        entity: Option<String>,
        /// The reference solution's tool calls as a JSON array of {name, arguments}, where known.
        reference: Option<String>,
    }
}
