//! Why tasks failed, by rules on what the final policy did.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use crate::{
    data::{Call, EpisodeRow, Scenario},
    view::conversation::{self, Message},
};

/// A tool that was called where the reference solution calls another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Confusion {
    pub called: String,
    pub needed: String,
    pub tasks: u32,
}

/// Why tasks failed.
#[derive(Debug, Clone, Serialize)]
pub struct Cause {
    pub cause: &'static str,
    pub meaning: &'static str,
    pub tasks: u32,
    /// Some of these tasks.
    pub examples: Vec<String>,
}

/// Why a failed task failed, by the first rule that applies.
const CAUSES: [(&str, &str); 6] = [
    ("server", "a call took too long, or the server was lost"),
    ("gave up", "the episode ended without an answer: no call, or a limit was reached"),
    ("misread result", "the expected answer was in a result, and another one was given"),
    ("tool choice", "a tool of the reference solution was never called"),
    (
        "argument",
        "the tools of the reference solution were called, but none of its calls was made without an error",
    ),
    ("other", "no rule applies"),
];

/// A wrong episode of the final policy.
pub struct Failure<'e> {
    pub task: String,
    pub scenario: &'e str,
    pub cause: &'static str,
    pub called: BTreeSet<String>,
    pub needed: BTreeSet<String>,
}

/// One for each task that the policy got wrong, by its first wrong episode.
pub fn failures<'e>(episodes: &'e [EpisodeRow], scenarios: &'e [Scenario]) -> Vec<Failure<'e>> {
    let by_id: BTreeMap<&str, &Scenario> = scenarios.iter().map(|row| (row.id.as_str(), row)).collect();
    let mut seen = BTreeSet::new();
    let wrong =
        episodes.iter().filter(|row| row.correct == Some(false) && seen.insert(row.scenario_id.as_str()));
    wrong
        .map(|row| {
            let messages = conversation::conversation(row);
            let made = crate::data::calls::calls(&row.into(), &BTreeSet::new());
            let scenario = by_id.get(row.scenario_id.as_str()).copied();
            let needed = scenario.map(reference_tools).unwrap_or_default();
            let called: BTreeSet<String> =
                made.iter().filter(|call| !call.tool.is_empty()).map(|call| call.tool.clone()).collect();
            let task = messages.iter().find(|message| message.role == "user");
            Failure {
                task: task.map(|message| message.text.clone()).unwrap_or_default(),
                scenario: &row.scenario_id,
                cause: cause(row, scenario, &messages, &made, &needed),
                called,
                needed,
            }
        })
        .collect()
}

fn reference_tools(scenario: &Scenario) -> BTreeSet<String> {
    let calls = scenario.reference.as_deref().and_then(|text| serde_json::from_str::<Vec<Value>>(text).ok());
    calls.iter().flatten().filter_map(|call| call["name"].as_str().map(str::to_owned)).collect()
}

fn cause(
    row: &EpisodeRow,
    scenario: Option<&Scenario>,
    messages: &[Message],
    made: &[Call],
    needed: &BTreeSet<String>,
) -> &'static str {
    if row.end == "server_down" {
        return "server";
    }
    if row.answer.is_none() {
        return "gave up";
    }
    let results = || messages.iter().filter(|message| message.role == "tool" && message.error.is_none());
    if let Some(expected) = scenario.and_then(|scenario| scenario.answer.as_deref())
        && results().any(|message| holds(&message.text, expected))
    {
        return "misread result";
    }
    let is_called = |tool: &String| made.iter().any(|call| call.tool == *tool);
    if needed.iter().any(|tool| !is_called(tool)) {
        return "tool choice";
    }
    let succeeds = |tool: &String| made.iter().any(|call| call.tool == *tool && !call.is_error);
    let reference: Vec<Value> = scenario
        .and_then(|scenario| serde_json::from_str(scenario.reference.as_deref()?).ok())
        .unwrap_or_default();
    let is_made = |wanted: &Value| {
        made.iter().any(|call| {
            let arguments =
                call.arguments.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
            !call.is_error
                && wanted["name"] == call.tool.as_str()
                && arguments.as_ref() == wanted.get("arguments")
        })
    };
    match () {
        () if needed.iter().any(|tool| !succeeds(tool)) => "argument",
        () if !reference.is_empty() && !reference.iter().any(is_made) => "argument",
        () => "other",
    }
}

/// Whether a result contains an answer: every item of it as a word or number of its own.
fn holds(result: &str, answer: &str) -> bool {
    let result = result.to_lowercase();
    let is_there = |item: &str| {
        result.match_indices(item).any(|(at, _)| {
            let is_word = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
            !is_word(result[..at].chars().next_back()) && !is_word(result[at + item.len()..].chars().next())
        })
    };
    let items: Vec<String> =
        answer.split(", ").map(|item| item.trim().to_lowercase()).filter(|item| !item.is_empty()).collect();
    !items.is_empty() && items.iter().all(|item| is_there(item))
}

pub fn causes(failed: &[Failure<'_>]) -> Vec<Cause> {
    let mut causes: Vec<Cause> = CAUSES
        .into_iter()
        .map(|(cause, meaning)| {
            let of: Vec<&Failure<'_>> = failed.iter().filter(|failure| failure.cause == cause).collect();
            let examples = of.iter().take(3).map(|failure| failure.task.clone()).collect();
            Cause { cause, meaning, tasks: of.len() as u32, examples }
        })
        .filter(|cause| cause.tasks > 0)
        .collect();
    causes.sort_by_key(|cause| std::cmp::Reverse(cause.tasks));
    causes
}

pub fn confusions(failed: &[Failure<'_>]) -> Vec<Confusion> {
    let mut counts: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for failure in failed.iter().filter(|failure| failure.cause == "tool choice") {
        for needed in failure.needed.difference(&failure.called) {
            for called in failure.called.difference(&failure.needed).filter(|name| *name != "complete_task") {
                counts.entry((called, needed)).or_default().insert(failure.scenario);
            }
        }
    }
    let mut found: Vec<Confusion> = counts
        .into_iter()
        .map(|((called, needed), tasks)| Confusion {
            called: called.to_owned(),
            needed: needed.to_owned(),
            tasks: tasks.len() as u32,
        })
        .collect();
    found.sort_by_key(|confusion| std::cmp::Reverse(confusion.tasks));
    found
}
