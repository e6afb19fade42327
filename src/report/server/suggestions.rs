//! What a server's author could change: rules on what was recorded.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::{
    errors::ErrorReport,
    failures::{Confusion, Failure, details},
    tools::{Part, ToolReport, tokens},
};
use crate::data::Tool;

/// Fewer cases than this are no reason for a suggestion.
const ENOUGH: u32 = 5;

/// Fewer failed tasks than this are no reason for a suggestion.
const TASKS: usize = 3;

/// What the author could change, and why.
#[derive(Debug, Clone, Serialize)]
pub struct Suggestion {
    pub tool: String,
    pub text: String,
    /// Failed tasks of the final policy in which the tool was called, or was needed.
    pub failed_tasks: u32,
}

pub fn suggestions(
    tools: &[ToolReport],
    errors: &[ErrorReport],
    confusions: &[Confusion],
    failed: &[Failure<'_>],
    parts: &[Part],
) -> Vec<Suggestion> {
    let mut all = Vec::new();
    let failed_of = |tool: &str| {
        tools.iter().find(|found| found.calls.tool == tool).map_or(0, |found| found.failed_tasks)
    };
    let mut suggest = |tool: &str, text: String| {
        all.push(Suggestion { tool: tool.to_owned(), text, failed_tasks: failed_of(tool) });
    };
    for error in errors.iter().filter(|error| error.count >= ENOUGH && 2 * error.recovered < error.count) {
        let share = 100.0 * f64::from(error.recovered) / f64::from(error.count);
        let after = format!(
            "After “{}” ({} times) agents recover in {share:.0} % of cases.",
            error.message, error.count
        );
        match error.kind.as_str() {
            "tool" => suggest(
                &error.tool,
                format!(
                    "{after} Let the error say what is valid: the names that exist, or an example of a right call."
                ),
            ),
            "schema" => {
                suggest(&error.tool, format!("{after} Describe the parameter, with an example of its value."))
            }
            _ => {}
        }
    }
    for (tool, text) in of_failures(failed) {
        suggest(&tool, text);
    }
    for confusion in confusions.iter().filter(|confusion| confusion.tasks >= 2) {
        suggest(
            &confusion.needed,
            format!(
                "In {} failed tasks `{}` was called where `{}` was needed. Say in both descriptions when to use which.",
                confusion.tasks, confusion.called, confusion.needed
            ),
        );
    }
    let listed: BTreeMap<&str, &Tool> = parts
        .iter()
        .flat_map(|part| &part.tools)
        .filter(|tool| !tool.synthetic)
        .map(|tool| (tool.name.as_str(), tool))
        .collect();
    for tool in tools {
        let (name, calls) = (&tool.calls.tool, &tool.calls);
        if calls.clipped >= ENOUGH && 10 * calls.clipped >= calls.calls {
            suggest(
                name,
                format!(
                    "{} of {} results were too long for the agent, which saw only their beginning and end. Offer a limit, a filter or pages.",
                    calls.clipped, calls.calls
                ),
            );
        }
        if tool.refused >= ENOUGH && 10 * tool.refused >= calls.calls {
            suggest(
                name,
                format!(
                    "{} of {} calls did not fit the schema. Give an example of the arguments in the description.",
                    tool.refused, calls.calls
                ),
            );
        }
        if tool.offered_in >= 20 && calls.calls == 0 {
            suggest(
                name,
                format!(
                    "It was offered in {} episodes and never called. It takes about {:.0} tokens of every prompt: hide it from these agents (`deny` of the stage that lists the tools), or say in its description what it is for.",
                    tool.offered_in,
                    tokens(tool.description_bytes)
                ),
            );
        }
        let Some(listed) = listed.get(name.as_str()) else { continue };
        if listed.description.trim().is_empty() {
            suggest(name, "It has no description.".to_owned());
        } else if listed.description.len() > 1200 {
            suggest(
                name,
                format!(
                    "Its description takes about {:.0} tokens of every prompt. Try a shorter one with `[overrides.tools.{name}]` and compare.",
                    tokens(listed.description.len())
                ),
            );
        }
        let schema: Value = serde_json::from_str(&listed.input_schema).unwrap_or_default();
        let bare: Vec<&str> = schema["properties"]
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(_, property)| {
                property["description"].as_str().is_none_or(|text| text.trim().is_empty())
            })
            .map(|(name, _)| name.as_str())
            .collect();
        if !bare.is_empty() && tool.refused > 0 {
            suggest(name, format!("Parameters without a description: {}.", bare.join(", ")));
        }
    }
    all.sort_by_key(|suggestion| std::cmp::Reverse(suggestion.failed_tasks));
    all
}

/// What would have helped in failed tasks, by tool.
fn of_failures(failed: &[Failure<'_>]) -> Vec<(String, String)> {
    let mut by_tool: BTreeMap<&str, Vec<&Failure<'_>>> = BTreeMap::new();
    for failure in failed {
        if let Some(tool) = failure.found.tool.as_deref() {
            by_tool.entry(tool).or_default().push(failure);
        }
    }
    let mut all = Vec::new();
    for (tool, failed) in by_tool {
        let mut suggest = |text: String| all.push((tool.to_owned(), text));
        let unmarked: Vec<&str> =
            failed.iter().filter_map(|failure| failure.found.unmarked_error.as_deref()).collect();
        if unmarked.len() >= TASKS {
            suggest(format!(
                "In {} failed tasks its last result was an error that is not marked as one, such as “{}”. Set `isError`: an agent takes a text without it for an answer.",
                unmarked.len(),
                unmarked[0]
            ));
        }
        let of = |cause: &str| -> Vec<&Failure<'_>> {
            failed.iter().copied().filter(|failure| failure.found.cause == cause).collect()
        };
        let unknown = of("unknown name");
        if unknown.len() >= TASKS {
            let names = details(unknown.iter().copied());
            let names: Vec<String> =
                names.into_iter().map(|name| format!("{} ({})", name.detail, name.tasks)).collect();
            suggest(format!(
                "In {} failed tasks its last call named something that does not exist: {}. Let the error list the names that do.",
                unknown.len(),
                names.join(", ")
            ));
        }
        let empty = of("after an empty result").len();
        if empty >= TASKS {
            suggest(format!(
                "In {empty} failed tasks its last result was empty. Let an empty result say that nothing matched, and what to try."
            ));
        }
    }
    all
}
