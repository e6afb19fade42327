//! Whether the checks of tasks name tools and arguments that exist.

use serde_json::Value;

use crate::TaskError;
use crate::{
    data::{Checks, Scenario, StateCheck, Tool},
    error::{Result, did_you_mean},
    mcp::{Servers, Session, merged},
    offered::tool_rows,
};

/// Checks the calls of state checks against the tools that the servers list. `file`: where the tasks are.
///
/// # Errors
/// If a tool or an argument is none of a server's.
pub fn check(file: &str, scenarios: &[&Scenario], tools: &[Tool]) -> Result<(), TaskError> {
    for (scenario, check) in state_checks(scenarios) {
        let wrong = |problem: String, near: Option<&str>| TaskError::StateCheck {
            place: format!("{file}: \"{}\"", crate::text::start_of(&scenario.task, 60)),
            problem,
            near: near.map(str::to_owned),
        };
        let Some(tool) = find(tools, &check.tool) else {
            let names = tools.iter().filter(|tool| !tool.synthetic).map(|tool| tool.server_name.as_str());
            let near = did_you_mean(&check.tool, names);
            return Err(wrong(format!("calls `{}`, which is not a tool of the server", check.tool), near));
        };
        let schema: Value = serde_json::from_str(&tool.input_schema).unwrap_or_default();
        let Some(known) = schema["properties"].as_object().filter(|known| !known.is_empty()) else {
            continue;
        };
        let takes_others = schema.get("additionalProperties").is_some_and(|others| *others != false)
            || schema.get("patternProperties").is_some();
        let unknown = check.arguments.keys().find(|name| !known.contains_key(*name) && !takes_others);
        if let Some(name) = unknown {
            let near = did_you_mean(name, known.keys().map(String::as_str));
            return Err(wrong(
                format!("gives `{}` the argument `{name}`, which it does not take", check.tool),
                near,
            ));
        }
    }
    Ok(())
}

/// The same where an agent may have fewer tools than the servers list: they are asked about what is not known.
///
/// # Errors
/// As [`check`], or if a server cannot be reached.
pub async fn check_all(
    file: &str,
    scenarios: &[&Scenario],
    tools: Vec<Tool>,
    servers: Option<&Servers>,
) -> Result<()> {
    let is_known = state_checks(scenarios).all(|(_, check)| find(&tools, &check.tool).is_some());
    let tools = match servers {
        Some(servers) if !is_known => {
            let mut lists = Vec::new();
            for (name, spec) in servers.iter() {
                let session = Session::connect(spec).await?;
                let listed = session.tools().await;
                session.close().await;
                lists.push((name.to_owned(), listed?));
            }
            tool_rows(merged(lists))
        }
        _ => tools,
    };
    Ok(check(file, scenarios, &tools)?)
}

fn state_checks<'s>(scenarios: &[&'s Scenario]) -> impl Iterator<Item = (&'s Scenario, StateCheck)> {
    scenarios.iter().flat_map(|scenario| {
        let checks = scenario.checks.as_ref().and_then(|checks| Checks::parse(&checks.0).ok());
        let state = checks.map(|checks| checks.state).unwrap_or_default();
        state.into_iter().map(|check| (*scenario, check))
    })
}

fn find<'t>(tools: &'t [Tool], name: &str) -> Option<&'t Tool> {
    let own = |of: fn(&Tool) -> &str| tools.iter().find(|tool| !tool.synthetic && of(tool) == name);
    own(|tool| &tool.server_name).or_else(|| own(|tool| &tool.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Json;

    #[test]
    fn a_check_that_calls_what_is_not_there_is_refused() {
        let schema = r#"{"properties": {"ticket_id": {"type": "string"}}}"#;
        let tool = Tool {
            name: "get_ticket".into(),
            server_name: "get_ticket".into(),
            input_schema: schema.into(),
            ..Tool::default()
        };
        let of = |tool_name: &str, arguments: &str| {
            let text = format!(
                r#"{{"state": [{{"tool": "{tool_name}", "arguments": {arguments}, "expect": {{"equals": "x"}}}}]}}"#
            );
            let task = Scenario { task: "Close it.".into(), checks: Some(Json(text)), ..Scenario::default() };
            check("tasks.jsonl", &[&task], std::slice::from_ref(&tool)).err().map(|cause| cause.to_string())
        };
        assert_eq!(of("get_ticket", r#"{"ticket_id": "T1"}"#), None);
        assert_eq!(
            of("get_tiket", "{}").unwrap(),
            "tasks.jsonl: \"Close it.\": the check of the state calls `get_tiket`, which is not a tool of the server"
        );
        assert!(
            of("get_ticket", r#"{"id": "T1"}"#)
                .unwrap()
                .contains("the argument `id`, which it does not take")
        );
    }
}
