//! What a server's author could change: rules on what was recorded.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::{
    errors::ErrorReport,
    failures::{Confusion, Failure, details},
    tools::{StageEpisodes, ToolReport, tokens},
};
use crate::{data::Tool, text::percent};

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
    parts: &[StageEpisodes],
) -> Vec<Suggestion> {
    // Tools and texts.
    let mut all: Vec<(String, String)> = Vec::new();
    for error in errors.iter().filter(|error| error.count >= ENOUGH && 2 * error.recovered < error.count) {
        let share = percent(f64::from(error.recovered) / f64::from(error.count), 0);
        let advice = match error.kind.as_str() {
            "tool" => "Let the error say what is valid: the names that exist, or an example of a right call.",
            "schema" => "Describe the parameter, with an example of its value.",
            _ => continue,
        };
        let text = format!(
            "After “{}” ({} times) agents recover in {share} % of cases. {advice}",
            error.message, error.count
        );
        all.push((error.tool.clone(), text));
    }
    all.extend(of_failures(failed));
    for Confusion { called, needed, tasks } in confusions.iter().filter(|confusion| confusion.tasks >= 2) {
        let text = format!(
            "In {tasks} failed tasks `{called}` was called where `{needed}` was needed. Say in both descriptions when to use which."
        );
        all.push((needed.clone(), text));
    }
    let listed: BTreeMap<&str, &Tool> = parts
        .iter()
        .flat_map(|part| &part.tools)
        .filter(|tool| !tool.synthetic)
        .map(|tool| (tool.name.as_str(), tool))
        .collect();
    for tool in tools {
        let (name, calls) = (&tool.calls.tool, &tool.calls);
        let mut suggest = |text: String| all.push((name.clone(), text));
        if calls.clipped >= ENOUGH && 10 * calls.clipped >= calls.calls {
            suggest(format!(
                "{} of {} results were too long for the agent, which saw only their beginning and end. Offer a limit, a filter or pages.",
                calls.clipped, calls.calls
            ));
        }
        if tool.refused >= ENOUGH && 10 * tool.refused >= calls.calls {
            suggest(format!(
                "{} of {} calls did not fit the schema. Give an example of the arguments in the description.",
                tool.refused, calls.calls
            ));
        }
        if tool.offered_in >= 20 && calls.calls == 0 {
            suggest(format!(
                "It was offered in {} episodes and never called. It takes about {:.0} tokens of every prompt: hide it from these agents (`deny` of the stage that lists the tools), or say in its description what it is for.",
                tool.offered_in,
                tokens(tool.description_bytes)
            ));
        }
        let Some(listed) = listed.get(name.as_str()) else { continue };
        if listed.description.trim().is_empty() {
            suggest("It has no description.".to_owned());
        } else if listed.description.len() > 1200 {
            suggest(format!(
                "Its description takes about {:.0} tokens of every prompt. Try a shorter one with `[overrides.tools.{name}]` and compare.",
                tokens(listed.description.len())
            ));
        }
        let schema: Value = serde_json::from_str(&listed.input_schema).unwrap_or_default();
        let properties = schema["properties"].as_object().into_iter().flatten();
        let bare = properties.filter(|(_, property)| {
            property["description"].as_str().is_none_or(|text| text.trim().is_empty())
        });
        let bare: Vec<&str> = bare.map(|(name, _)| name.as_str()).collect();
        if !bare.is_empty() && tool.refused > 0 {
            suggest(format!("Parameters without a description: {}.", bare.join(", ")));
        }
    }
    let suggestion = |(tool, text): (String, String)| {
        let report = tools.iter().find(|found| found.calls.tool == tool);
        Suggestion { failed_tasks: report.map_or(0, |found| found.failed_tasks), tool, text }
    };
    let mut all: Vec<Suggestion> = all.into_iter().map(suggestion).collect();
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
        let of = |cause| failed.iter().copied().filter(move |failure| failure.found.cause == cause);
        let unknown = of("unknown name").count();
        if unknown >= TASKS {
            let names = details(of("unknown name")).into_iter();
            let names: Vec<String> = names.map(|name| format!("{} ({})", name.detail, name.tasks)).collect();
            suggest(format!(
                "In {unknown} failed tasks its last call named something that does not exist: {}. Let the error list the names that do.",
                names.join(", ")
            ));
        }
        let empty = of("after an empty result").count();
        if empty >= TASKS {
            suggest(format!(
                "In {empty} failed tasks its last result was empty. Let an empty result say that nothing matched, and what to try."
            ));
        }
    }
    all
}
