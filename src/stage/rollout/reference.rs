//! Reference solutions as episodes: the calls of a scenario's column `reference`, then its known answer.

use serde_json::{Value, json};

use crate::{
    answer::COMPLETE_TASK,
    chat::ToolCall,
    data::{CallError, Checks, End, NONE, PairedCall, Scenario, Trajectory, paired_calls},
};

/// The answer to a task that is known by what it changes.
const DONE: &str = "done";

/// The calls of the solution, `complete_task` included. None if the scenario lacks a reference or an answer.
pub fn calls(scenario: &Scenario) -> Option<Vec<ToolCall>> {
    let answer = scenario.answer.clone().or_else(|| {
        let checks = Checks::parse(&scenario.checks.as_ref()?.0).ok()?;
        checks.answer.is_empty().then(|| DONE.to_owned())
    })?;
    let mut calls: Vec<ToolCall> = serde_json::from_str(scenario.reference.as_deref()?).ok()?;
    let Value::Object(arguments) = json!({ "answer": answer }) else { return None };
    calls.push(ToolCall { name: COMPLETE_TASK.into(), arguments });
    Some(calls)
}

/// Whether the calls led to the answer: mcprl refused none of them, and the last one did not fail, unless the answer is that
/// there is nothing, or the state decides: what a server refuses fails. Earlier ones may fail, where a task is about errors.
pub fn holds(trajectory: &Trajectory, scenario: &Scenario) -> bool {
    let made = paired_calls(&trajectory.messages);
    let [before @ .., _] = made.as_slice() else { return false };
    trajectory.end() == Some(End::Completed)
        && before.iter().filter_map(PairedCall::error).all(|error| error == CallError::Tool)
        && (trajectory.answer.as_deref() == Some(NONE)
            || scenario.check == "none"
            || before.last().is_none_or(|call| call.error().is_none()))
}
