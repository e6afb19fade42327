//! What agents solve that know nothing and call no tool.

use std::collections::BTreeMap;

use super::truth::{self, Evidence};
use crate::data::Scenario;

/// What an agent says that has done nothing.
pub const DONE: &str = "done";

/// The answer that most tasks have; of several the first. An answer that a single task has is no common one.
pub fn commonest_answer(scenarios: &[Scenario]) -> &str {
    common(scenarios).unwrap_or("unknown")
}

fn common(scenarios: &[Scenario]) -> Option<&str> {
    commonest(scenarios).filter(|(_, count)| *count > 1).map(|(answer, _)| answer)
}

/// The same, with the number of tasks that have it.
fn commonest(scenarios: &[Scenario]) -> Option<(&str, usize)> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for answer in scenarios.iter().filter_map(|scenario| scenario.answer.as_deref()) {
        *counts.entry(answer).or_default() += 1;
    }
    counts.into_iter().rev().max_by_key(|(_, count)| *count)
}

/// Texts of the tasks that are solved by saying one of both, before anything is played. Of a task whose state is checked it is not known, so it is left out.
pub fn solved_idly(scenarios: &[Scenario]) -> Vec<String> {
    let common = common(scenarios);
    let answers: Vec<&str> = common.into_iter().chain([DONE]).collect();
    let says = |scenario: &Scenario, answer| {
        let evidence = Evidence { answer: Some(answer), messages: &[], state: None };
        truth::correct(scenario, evidence) == Some(true)
    };
    let is_solved = |scenario: &&Scenario| answers.iter().any(|answer| says(scenario, answer));
    scenarios.iter().filter(is_solved).map(|scenario| scenario.task.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Json;

    #[test]
    fn the_commonest_answer_and_done_solve_tasks_without_a_call() {
        let of = |task: &str, answer: Option<&str>, checks: Option<&str>| Scenario {
            task: task.into(),
            answer: answer.map(str::to_owned),
            check: if answer.is_some() { "text" } else { "none" }.into(),
            checks: checks.map(|checks| Json(checks.into())),
            ..Scenario::default()
        };
        let called = r#"{"calls": {"required": [{"tool": "close"}]}}"#;
        let state = r#"{"state": [{"tool": "get", "expect": {"equals": "closed"}}]}"#;
        let scenarios = [
            of("a", Some("Oslo"), None),
            of("b", Some("Bern"), None),
            of("c", Some("Oslo"), None),
            of("d", Some("done"), None),
            of("e", Some("done"), Some(called)),
            of("f", None, Some(called)),
            of("g", None, Some(state)),
        ];
        assert_eq!(commonest_answer(&scenarios[..4]), "Oslo");
        assert_eq!(solved_idly(&scenarios[..4]), ["a", "c", "d"]);
        assert_eq!(solved_idly(&scenarios[4..]), [""; 0]);
        assert_eq!(solved_idly(&scenarios[..2]), [""; 0], "each has an answer of its own");
    }
}
