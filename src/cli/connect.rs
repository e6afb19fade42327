//! `mcprl connect`: what a server offers, and optionally the result of one call.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Map, Value, json};

use super::{Outcome, runtime, server::ServerArgs};
use crate::{
    data::{Resource, Server, Tool},
    error::{At, Class, Diagnostic, Result, did_you_mean},
    mcp::{self, Limits, Session},
    ui::{OutputFormat, Printer, plural},
};

#[derive(Args)]
pub struct Connect {
    #[command(flatten)]
    server: ServerArgs,
    /// Call this tool with these arguments, a JSON object. Put it behind a URL or file, and before `--`.
    #[arg(long, value_names = ["TOOL", "JSON"], num_args = 1..=2)]
    call: Vec<String>,
    /// Seconds until the server must be ready.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    start_timeout_s: Option<u64>,
    /// Seconds until the call must be answered.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    call_timeout_s: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("the arguments are not a JSON object: {reason}")]
    Arguments { reason: String },
    #[error("the server has no tool `{name}`")]
    NoTool { name: String, meant: Option<String> },
}

impl Diagnostic for ConnectError {
    fn code(&self) -> &'static str {
        match self {
            Self::Arguments { .. } => "connect::arguments",
            Self::NoTool { .. } => "connect::no_tool",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Arguments { .. } => Some("for example `--call run_query '{\"sql\": \"SELECT 1\"}'`".into()),
            Self::NoTool { meant, .. } => meant.as_ref().map(|name| format!("did you mean `{name}`?")),
        }
    }

    fn class(&self) -> Class {
        Class::Usage
    }
}

/// What a visit found, with times in seconds.
struct Visit {
    server: Server,
    tools: Vec<Tool>,
    resources: Vec<Resource>,
    notes: Vec<String>,
    connected: f64,
    listed: f64,
    called: Option<(mcp::Outcome, f64)>,
}

impl Connect {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let call = match self.call.as_slice() {
            [] => None,
            [tool] => Some((tool.clone(), Map::new())),
            [tool, arguments, ..] => {
                let arguments = serde_json::from_str(arguments)
                    .map_err(|cause| ConnectError::Arguments { reason: cause.to_string() })?;
                Some((tool.clone(), arguments))
            }
        };
        let server = self.server.resolve(false)?;
        let transport = server.transport.to_string();
        let mut spec = server.spec();
        let Limits { start_timeout, call_timeout, .. } = &mut spec.limits;
        *start_timeout = self.start_timeout_s.map_or(*start_timeout, Duration::from_secs);
        *call_timeout = self.call_timeout_s.map_or(*call_timeout, Duration::from_secs);
        let visit = runtime()?.block_on(visit(&spec, call)).at(|| transport)?;
        match printer.format {
            OutputFormat::Json => printer.json(&visit.json()),
            OutputFormat::Human => printer.data(&visit.text()),
        }
        let failed = visit.called.is_some_and(|(outcome, _)| outcome.is_error);
        Ok(if failed { Outcome::Failed } else { Outcome::Success })
    }
}

async fn visit(spec: &mcp::ServerSpec, call: Option<(String, Map<String, Value>)>) -> Result<Visit> {
    let began = Instant::now();
    let session = Session::connect(spec).await?;
    let connected = began.elapsed().as_secs_f64();
    let found = ask(&session, call).await;
    let notes = session.take_notes();
    session.close().await;
    let (server, tools, resources, listed, called) = found?;
    Ok(Visit { server, tools, resources, notes, connected, listed, called })
}

type Found = (Server, Vec<Tool>, Vec<Resource>, f64, Option<(mcp::Outcome, f64)>);

async fn ask(session: &Session, call: Option<(String, Map<String, Value>)>) -> Result<Found> {
    let began = Instant::now();
    let (server, mut tools, resources) = session.describe().await?;
    let listed = began.elapsed().as_secs_f64();
    tools.retain(|tool| !tool.synthetic);
    let called = match call {
        None => None,
        Some((name, arguments)) => {
            let Some(tool) = tools.iter().find(|tool| tool.name == name || tool.server_name == name) else {
                let meant =
                    did_you_mean(&name, tools.iter().map(|tool| tool.name.as_str())).map(str::to_owned);
                return Err(ConnectError::NoTool { name, meant }.into());
            };
            let began = Instant::now();
            let outcome = session.call(&tool.server_name, arguments).await?;
            Some((outcome, began.elapsed().as_secs_f64()))
        }
    };
    Ok((server, tools, resources, listed, called))
}

impl Visit {
    fn json(&self) -> Value {
        let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
        let tool = |tool: &Tool| {
            json!({
                "name": tool.server_name, "description": tool.description,
                "input_schema": parsed(&tool.input_schema),
                "annotations": tool.annotations.as_deref().map(parsed),
            })
        };
        json!({
            "server": {
                "name": self.server.name, "version": self.server.version, "protocol": self.server.protocol,
                "transport": self.server.transport, "instructions": self.server.instructions,
                "capabilities": parsed(&self.server.capabilities),
            },
            "tools": self.tools.iter().map(tool).collect::<Vec<_>>(),
            "resources": self.resources,
            "notes": self.notes,
            "seconds": { "connect": self.connected, "list": self.listed, "call": self.called.as_ref().map(|call| call.1) },
            "result": self.called.as_ref().map(|(outcome, _)| json!({ "text": outcome.text, "is_error": outcome.is_error })),
        })
    }

    fn text(&self) -> String {
        let Server { name, version, protocol, transport, instructions, .. } = &self.server;
        let mut text = format!(
            "{name} {version}: MCP {protocol} over {transport}, connected in {:.2} s\n",
            self.connected
        );
        if let Some(instructions) = instructions {
            text += &format!("\n{instructions}\n");
        }
        text += &format!("\n{} in {:.2} s\n", plural(self.tools.len(), "tool"), self.listed);
        for tool in &self.tools {
            let hints = if says_read_only(tool) { "  [read-only]" } else { "" };
            text += &format!("  {}{hints}\n", signature(tool));
            if let Some(line) = tool.description.lines().find(|line| !line.trim().is_empty()) {
                text += &format!("      {}\n", line.trim());
            }
        }
        if !self.resources.is_empty() {
            text += &format!("\n{}\n", plural(self.resources.len(), "resource"));
            for resource in &self.resources {
                text += &format!("  {}  {}\n", resource.uri, resource.name);
            }
        }
        for note in &self.notes {
            text += &format!("\nnote: {note}\n");
        }
        if let Some((outcome, seconds)) = &self.called {
            let kind = if outcome.is_error { "error" } else { "result" };
            text += &format!("\n{kind} after {seconds:.2} s\n{}\n", outcome.text);
        }
        text
    }
}

fn says_read_only(tool: &Tool) -> bool {
    let annotations = tool.annotations.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
    annotations.is_some_and(|annotations| annotations["readOnlyHint"] == true)
}

/// `run_query(sql, limit?)`.
fn signature(tool: &Tool) -> String {
    let schema: Value = serde_json::from_str(&tool.input_schema).unwrap_or_default();
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let properties = schema["properties"].as_object();
    let names = properties.into_iter().flat_map(Map::keys).map(|name| {
        let optional = if required.iter().any(|required| required == name) { "" } else { "?" };
        format!("{name}{optional}")
    });
    format!("{}({})", tool.name, names.collect::<Vec<_>>().join(", "))
}
