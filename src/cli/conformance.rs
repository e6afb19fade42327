//! `mcprl mcp-conformance`: the client under test of the MCP conformance suite (`@modelcontextprotocol/conformance`).
//!
//! The suite starts a server per scenario, runs this command with its address, and judges what arrives there. Connection,
//! lists, calls and logins are those of every other command; only what to call is decided here. The "user" who logs in is
//! a request to the address, which the suite's authorization server redirects.

use std::env::{current_exe, var};

use clap::Args;
use serde_json::{Map, Value, json};

use super::{
    Outcome,
    connect::{LoginArgs, with_logins},
    runtime,
};
use crate::{
    data::Tool,
    error::Result,
    mcp::{self, ServerSpec, Session, State, Token, Transport},
    offered::tool_rows,
    ui::Printer,
};

/// The identity that the suite's authorization server expects of a client that hosts a metadata document.
const CLIENT_DOCUMENT: &str = "https://conformance-test.local/client-metadata.json";
/// Where this command hands the client secret of a scenario to the client, which reads variables only.
const SECRET: &str = "MCPRL_CONFORMANCE_SECRET";

#[derive(Args)]
pub struct McpConformance {
    /// The scenario's server.
    url: String,
}

impl McpConformance {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let scenario = var("MCP_CONFORMANCE_SCENARIO").unwrap_or_default();
        let context: Value = var("MCP_CONFORMANCE_CONTEXT")
            .ok()
            .and_then(|text| serde_json::from_str(&text).ok())
            .unwrap_or_default();
        let text = |name: &str| context.get(name).and_then(Value::as_str).map(str::to_owned);
        if let Some(secret) = text("client_secret").filter(|_| var(SECRET).is_err()) {
            let again = current_exe().and_then(|mcprl| {
                let mut command = std::process::Command::new(mcprl);
                command.args(["mcp-conformance", &self.url]).env(SECRET, secret).status()
            });
            let is_done = again.is_ok_and(|status| status.success());
            return Ok(if is_done { Outcome::Success } else { Outcome::Failed });
        }
        let secret_env = var(SECRET).ok().map(|_| SECRET.to_owned());
        let (mut client, mut token) = (LoginArgs::default(), Token::Stored);
        match scenario.as_str() {
            "auth/basic-cimd" => client.client_id = Some(CLIENT_DOCUMENT.into()),
            "auth/client-credentials-basic" => {
                let id = text("client_id").unwrap_or_default();
                let secret_env = secret_env.unwrap_or_default();
                token = Token::Client { id, secret_env, scopes: Vec::new(), issuer: None };
            }
            _ => (client.client_id, client.client_secret_env) = (text("client_id"), secret_env),
        }
        let transport = Transport::Http { url: self.url, token, headers: Default::default() };
        let mut spec = ServerSpec::new(transport, State::ReadOnly);
        if scenario.starts_with("elicitation-") {
            spec.inputs.elicitation = Some(Map::new());
        }
        let visits = async || visit(&spec, &scenario, &context).await;
        let outcomes = runtime()?.block_on(with_logins(&spec.transport, &client, log_in, visits))?;
        for (tool, outcome) in outcomes {
            printer.say(&format!("{tool}: {}", outcome.text));
        }
        Ok(Outcome::Success)
    }
}

/// Opens the address as a browser would, and allows what it asks for.
fn log_in(address: &str) {
    tokio::spawn(reqwest::get(address.to_owned()));
}

async fn visit(spec: &ServerSpec, scenario: &str, context: &Value) -> Result<Vec<(String, mcp::Outcome)>> {
    let is_newest = var("MCP_CONFORMANCE_PROTOCOL_VERSION").is_ok_and(|version| version.as_str() >= "2026");
    let session =
        if is_newest { Session::connect_newest(spec).await? } else { Session::connect(spec).await? };
    let tools = tool_rows(session.describe().await?.tools);
    let mut outcomes = Vec::new();
    for (tool, arguments) in calls(scenario, context, &tools) {
        let outcome = session.call(&tool, arguments).await?;
        outcomes.push((tool, outcome));
    }
    session.close().await;
    Ok(outcomes)
}

/// The calls that the scenario names, or one of each tool.
fn calls(scenario: &str, context: &Value, tools: &[Tool]) -> Vec<(String, Map<String, Value>)> {
    let schema = |tool: &Tool| serde_json::from_str::<Value>(&tool.input_schema).unwrap_or_default();
    if let Some(calls) = context.get("toolCalls").and_then(Value::as_array) {
        let call =
            |call: &Value| Some((call["name"].as_str()?.to_owned(), call["arguments"].as_object()?.clone()));
        return calls.iter().filter_map(call).collect();
    }
    let own = tools.iter().filter(|tool| !tool.synthetic);
    if scenario == "json-schema-2020-12-preservation" {
        let Some((focal, echo)) = own.clone().next().zip(own.clone().nth(1)) else { return Vec::new() };
        return vec![(echo.server_name.clone(), Map::from_iter([("schema".to_owned(), schema(focal))]))];
    }
    own.map(|tool| (tool.server_name.clone(), arguments(&schema(tool)))).collect()
}

/// Valid arguments for a schema of simple types.
fn arguments(schema: &Value) -> Map<String, Value> {
    let properties = schema["properties"].as_object().into_iter().flatten();
    let argument = |(name, schema): (&String, &Value)| {
        let value = match schema["type"].as_str() {
            Some("number" | "integer") => json!(2),
            Some("boolean") => json!(true),
            Some("array") => json!([]),
            Some("object") => json!({}),
            _ => json!("text"),
        };
        (name.clone(), value)
    };
    properties.map(argument).collect()
}
