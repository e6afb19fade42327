//! Tables that `scenarios` writes: tasks for the agent.

use std::path::Path;

use super::{
    Checks, DataError,
    table::{Json, ServerName, Sparse, Working, table},
};

/// The splits of held-out tasks that are generated, by what no training task has.
pub const UNSEEN: [&str; 5] =
    ["unseen_entities", "unseen_phrasings", "unseen_families", "unseen_tools", "unseen_servers"];

/// The answer where a task asks for something that does not exist.
pub const NONE: &str = "none";

/// Whether the tasks of a held-out split ask about cases that were trained on, in other words.
pub fn is_of_trained_cases(split: &str) -> bool {
    split == "unseen_phrasings"
}

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
        /// Further conditions of success as JSON: `answer`, `calls` and `state` (docs/guides/scenarios.md). The column is absent if
        /// no scenario has any.
        checks: Option<Json>,
        /// Other values that the answer could have been. An answer in more words is right if it states the expected one and none
        /// of these (docs/guides/scenarios.md); for a number the list may be empty. Null where none are known: then only the whole
        /// answer counts. The column is absent if no scenario has any.
        candidates: Option<Vec<String>>,
        /// The server whose tools alone the agent gets, of several; absent: all tools.
        server: Option<ServerName>,
        /// What the reference solution writes before its answer: the values that it counts, compares or adds. The column is absent
        /// if no scenario has any.
        working: Option<Working>,
        /// What an explored task asks, as JSON for a program that computes the answer from the raw data (docs/guides/scenarios.md).
        asks: Option<Json>,
        /// What the task asks about, as JSON: `call`, the last call of the reference solution in a normal form, `kind`, the same
        /// without its values, `answer`, and the `values` that the task names. No held-out task has the fact of a training task.
        fact: Option<Json>,
        /// How the answer is read from the results of the reference solution, as JSON, where that is known. An exam reads it again
        /// (docs/guides/scenarios.md).
        reads: Option<Json>,
        /// Whether its answer, or the state that it should leave, is what attempts at it agreed on. The column is absent if no
        /// scenario has such an answer.
        voted: Option<Sparse<bool>>,
        /// Of a held-out task: whether a training task is of the same `kind`, with other values. Absent where that is not known.
        trained_kind: Option<Sparse<bool>>,
    }
}

/// A task's text as tasks are compared, wherever two must not be the same: without differences of case, spaces, quotes and
/// the punctuation of sentences. Symbols count: `3 + 4` is not `3 - 4`.
pub fn folded(task: &str) -> String {
    const QUOTES: &[char] = &['"', '\'', '`', '“', '”', '„', '‘', '’', '«', '»'];
    const ENDS: &[char] = &['.', ',', ';', ':', '!', '?', '…'];
    let word = |word: &str| {
        let inner =
            word.trim_start_matches(QUOTES).trim_end_matches(|end| [QUOTES, ENDS].concat().contains(&end));
        // `.` and `..` are paths.
        let is_path = inner.is_empty() && word.starts_with('.');
        if is_path { word.to_owned() } else { inner.to_lowercase() }
    };
    let words = task.split_whitespace().map(word).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}

pub(super) fn check_scenarios(path: &Path) -> Result<(), DataError> {
    for (row, scenario) in super::read::<Scenario>(path)?.iter().enumerate() {
        if let Some(Err(problem)) = scenario.checks.as_ref().map(|checks| Checks::parse(&checks.0)) {
            return Err(DataError::Checks { path: path.to_owned(), row, problem });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_that_say_the_same_in_other_punctuation_are_the_same() {
        for (one, other) in [
            ("Who wrote it?", "who  wrote it"),
            ("Who wrote it ?", "Who wrote it."),
            ("Who wrote \"Low Tide\"?", "Who wrote “low tide”"),
            ("Books, in order:", "books in order"),
        ] {
            assert_eq!(folded(one), folded(other));
        }
    }

    #[test]
    fn tasks_that_differ_in_a_symbol_are_different() {
        for (one, other) in [
            ("What is 3 + 4?", "What is 3 - 4?"),
            ("Add -5", "Add 5"),
            ("List *.txt", "List txt"),
            ("List .", "List .."),
            ("List . now", "List now"),
            ("The ticket's owner", "The tickets owner"),
            ("Value 1.5", "Value 15"),
        ] {
            assert_ne!(folded(one), folded(other));
        }
    }
}
