//! Plans: before its first call, the worker writes down the lines of the tools that it will call.
//!
//! Agents that write what they are about to do act better (ReAct, arXiv 2210.03629). A small decoder does not find a tool's name
//! in one step, but it continues a line of the list that it has begun with a word of the task. So descriptions stand before names.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{renamed::function, traces::Trace};

/// The line before the chat template that puts descriptions first.
pub const DESCRIBED_FIRST: &str = "{%- set described_first = true -%}\n";

/// Adds the plan to the first message of each trace. `tools`: function schemas by server.
pub fn write(traces: &mut [Trace], tools: &BTreeMap<Option<String>, Vec<Value>>) {
    for trace in traces {
        let Some(tools) = trace.tools.as_deref().or_else(|| tools.get(&trace.server)) else { continue };
        let functions = || tools.iter().map(function);
        let planned = |name: &String| functions().find(|function| function["name"] == name.as_str());
        let lines: Vec<String> = trace.planned.iter().filter_map(planned).map(line).collect();
        // A worker that gives up before its first call has no plan.
        if let Some(first) = trace.turns.first_mut().filter(|turn| turn.result.is_some()) {
            first.text = lines.join("\n");
        }
    }
}

/// A tool's line in the list of the chat template.
fn line(function: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let parameters = function["parameters"]["properties"].as_object();
    let parameters: Vec<&str> = parameters.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
    format!("{} {}({})", text(&function["description"]), text(&function["name"]), parameters.join(", "))
}
