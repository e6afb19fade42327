//! `mcprl connect`: what a server offers, and optionally the result of one call.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::{Map, Value, json};

use super::{
    Outcome,
    drift::Drift,
    probe::Probe,
    runtime,
    server::{NamedServer, ServerArgs, ServerArgsError},
};
use crate::{
    data::{Prompt, Resource, ResourceTemplate, Server, Tool},
    error::{At, Diagnostic, Result, did_you_mean},
    mcp::{self, Limits, Login, McpError, Sandbox, Session, Transport},
    offered::OfferedRows,
    ui::{Printer, plural},
};

#[derive(Args)]
pub struct Connect {
    #[command(flatten)]
    server: ServerArgs,
    /// Call this tool with these arguments, a JSON object. Put it behind a URL or file, and before `--`.
    #[arg(long, value_names = ["TOOL", "JSON"], num_args = 1..=2)]
    call: Vec<String>,
    /// Play the calls of this file, one `{"tool": …, "arguments": …}` per line, in several sessions, and report whether one
    /// session sees what another one did. Use a copy: the calls are real.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["call", "login"])]
    probe_state: Option<PathBuf>,
    /// Make the calls of this cassette again, and report what the server answers otherwise than recorded. With a run file as
    /// the server, its settings apply. Use a copy: the calls are real.
    #[arg(long, value_name = "CASSETTE", conflicts_with_all = ["call", "login", "probe_state"])]
    drift: Option<PathBuf>,
    /// Run the command in a sandbox (`bwrap`): it writes only its own /tmp and has no network.
    #[arg(long)]
    sandbox: bool,
    /// Give a sandboxed command the network.
    #[arg(long, requires = "sandbox")]
    sandbox_network: bool,
    /// File or folder that a sandboxed command may write.
    #[arg(long, value_name = "PATH", requires = "sandbox")]
    sandbox_write: Vec<PathBuf>,
    /// Seconds until the server must be ready.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    start_timeout_s: Option<u64>,
    /// Seconds until the call must be answered.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    call_timeout_s: Option<u64>,
    /// If the server asks for it, log in and store the tokens for later runs. Prints the address to open in a browser.
    #[arg(long, conflicts_with = "bearer_env")]
    login: bool,
    #[command(flatten)]
    client: LoginArgs,
}

/// How to log in.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Login")]
pub struct LoginArgs {
    /// Client that is registered with the authorization server; by default one is registered.
    #[arg(long, value_name = "ID", requires = "login")]
    pub client_id: Option<String>,
    /// Environment variable that holds the client's secret.
    #[arg(long, value_name = "VARIABLE", requires = "client_id")]
    pub client_secret_env: Option<String>,
    /// Scope to ask for; by default those that the server names.
    #[arg(long = "scope", value_name = "SCOPE", requires = "login")]
    pub scopes: Vec<String>,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "connect", class = usage)]
enum ConnectError {
    #[error("the arguments are not a JSON object: {reason}")]
    #[hint = "for example `--call run_query '{{\"sql\": \"SELECT 1\"}}'`"]
    Arguments { reason: String },
    #[error("`--sandbox-write` names no path: {reason}")]
    Path { reason: String },
    #[error("the server has no tool `{name}`")]
    #[hint("did you mean `{meant}`?" if let Some(meant) = meant)]
    NoTool { name: String, meant: Option<String> },
}

/// Logins of one command: a server may ask for more scopes than before.
const LOGINS: usize = 3;

/// What a visit found, with times in seconds.
struct Visit {
    /// Its tools are the server's own.
    found: OfferedRows,
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
        let NamedServer { mut spec, is_of_run_file, .. } = self.server.resolve()?;
        // A cassette holds the calls of runs only.
        spec.record = None;
        let is_command = matches!(spec.transport, Transport::Stdio { .. });
        if self.login && !matches!(spec.transport, Transport::Http { .. }) {
            return Err(ServerArgsError::Stray { option: "--login", to: "a URL" }.into());
        }
        if self.sandbox && !is_command {
            return Err(ServerArgsError::Stray { option: "--sandbox", to: "a command" }.into());
        }
        if self.sandbox {
            let write = self.sandbox_write.iter().map(std::path::absolute).collect::<Result<_, _>>();
            let write = write.map_err(|cause| ConnectError::Path { reason: cause.to_string() })?;
            spec.limits.sandbox = Some(Sandbox { network: self.sandbox_network, write });
        }
        let Limits { start_timeout, call_timeout, .. } = &mut spec.limits;
        *start_timeout = self.start_timeout_s.map_or(*start_timeout, Duration::from_secs);
        *call_timeout = self.call_timeout_s.map_or(*call_timeout, Duration::from_secs);
        if let Some(path) = &self.probe_state {
            let probe = runtime()?.block_on(Probe::run(&spec, path)).at(|| spec.transport.to_string())?;
            printer.show(&probe.json(), || probe.text());
            return Ok(if probe.leaks() { Outcome::Failed } else { Outcome::Success });
        }
        if let Some(path) = &self.drift {
            let drift = runtime()?.block_on(Drift::run(&spec, path, is_of_run_file));
            let drift = drift.at(|| spec.transport.to_string())?;
            printer.show(&drift, || drift.text());
            return Ok(if drift.is_none() { Outcome::Success } else { Outcome::Failed });
        }
        let visits = || visit(&spec, call.clone());
        let show = |address: &str| printer.say(&format!("open this address to log in:\n\n{address}\n"));
        let visit = match self.login {
            true => runtime()?.block_on(with_logins(&spec.transport, &self.client, show, visits)),
            false => runtime()?.block_on(visits()),
        };
        let visit = visit.at(|| spec.transport.to_string())?;
        printer.show(&visit.json(), || visit.text());
        let failed = visit.called.is_some_and(|(outcome, _)| outcome.is_error);
        Ok(if failed { Outcome::Failed } else { Outcome::Success })
    }
}

/// Does the work, with a login and another try where the server asks for one.
pub async fn with_logins<T>(
    transport: &Transport,
    client: &LoginArgs,
    show: impl Fn(&str),
    mut work: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    for _ in 0..LOGINS {
        let failure = match work().await {
            Ok(done) => return Ok(done),
            Err(failure) => failure,
        };
        let cause: &dyn std::error::Error = failure.cause();
        let asked = cause.downcast_ref().and_then(McpError::asked_login);
        let Some(challenge) = asked else { return Err(failure) };
        let secret = client.client_secret_env.as_ref().map(|variable| {
            std::env::var(variable).map_err(|_| McpError::UnsetVariable { variable: variable.clone() })
        });
        let client_secret = secret.transpose()?;
        let (client_id, scopes) = (client.client_id.clone(), client.scopes.clone());
        Login { client_id, client_secret, scopes, challenge }.run(transport, &show).await?;
    }
    work().await
}

/// How the text of a call that took too long begins.
const NO_ANSWER: &str = "the tool did not answer within ";

async fn visit(spec: &mcp::ServerSpec, call: Option<(String, Map<String, Value>)>) -> Result<Visit> {
    let began = Instant::now();
    let session = Session::connect(spec).await?;
    let connected = began.elapsed().as_secs_f64();
    let visit = ask(&session, call, connected).await;
    let mut notes = session.take_notes();
    if session.has_changed_tools() {
        notes.push(
            "the server has announced a change of its tools since they were listed; a run keeps to those that it has listed \
             (`on_list_change`)"
                .into(),
        );
    }
    session.close().await;
    let visit = visit?;
    if visit
        .called
        .as_ref()
        .is_some_and(|(outcome, _)| outcome.is_error && outcome.text.starts_with(NO_ANSWER))
    {
        notes.push(
            "the limit is `call_timeout_s` of [server], or `tools.NAME.timeout_s` of one tool; here, `--call-timeout-s`".into(),
        );
    }
    Ok(Visit { notes, ..visit })
}

async fn ask(session: &Session, call: Option<(String, Map<String, Value>)>, connected: f64) -> Result<Visit> {
    let began = Instant::now();
    let mut found = OfferedRows::from(session.describe().await?);
    let listed = began.elapsed().as_secs_f64();
    found.tools.retain(|tool| !tool.synthetic);
    let mut called = None;
    if let Some((name, arguments)) = call {
        let tools = &found.tools;
        let Some(tool) = tools.iter().find(|tool| tool.name == name || tool.server_name == name) else {
            let meant = did_you_mean(&name, tools.iter().map(|tool| tool.name.as_str())).map(str::to_owned);
            return Err(ConnectError::NoTool { name, meant }.into());
        };
        let began = Instant::now();
        let outcome = session.call(&tool.server_name, arguments).await?;
        called = Some((outcome, began.elapsed().as_secs_f64()));
    }
    Ok(Visit { found, notes: Vec::new(), connected, listed, called })
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
        let prompt = |prompt: &Prompt| {
            json!({
                "name": prompt.name, "description": prompt.description, "arguments": parsed(&prompt.arguments),
            })
        };
        let OfferedRows { server, tools, resources, resource_templates, prompts } = &self.found;
        json!({
            "server": {
                "name": server.name, "version": server.version, "protocol": server.protocol,
                "transport": server.transport, "instructions": server.instructions,
                "capabilities": parsed(&server.capabilities),
            },
            "tools": tools.iter().map(tool).collect::<Vec<_>>(),
            "resources": resources,
            "resource_templates": resource_templates,
            "prompts": prompts.iter().map(prompt).collect::<Vec<_>>(),
            "notes": self.notes,
            "seconds": { "connect": self.connected, "list": self.listed, "call": self.called.as_ref().map(|call| call.1) },
            "result": self.called.as_ref().map(|(outcome, _)| json!({ "text": outcome.text, "is_error": outcome.is_error })),
        })
    }

    fn text(&self) -> String {
        let OfferedRows { server, tools, resources, resource_templates, prompts } = &self.found;
        let Server { name, version, protocol, transport, instructions, .. } = server;
        let mut text = format!(
            "{name} {version}: MCP {protocol} over {transport}, connected in {:.2} s\n",
            self.connected
        );
        if let Some(instructions) = instructions {
            text += &format!("\n{instructions}\n");
        }
        text += &format!("\n{} in {:.2} s\n", plural(tools.len(), "tool"), self.listed);
        for tool in tools {
            let hints = match (tool.hint("readOnlyHint"), tool.hint("destructiveHint")) {
                (Some(true), _) => "  [read-only]",
                (_, Some(true)) => "  [destructive]",
                (Some(false), _) => "  [writes]",
                (None, _) => "",
            };
            text += &format!("  {}{hints}\n", signature(tool));
            if let Some(line) = tool.description.lines().find(|line| !line.trim().is_empty()) {
                text += &format!("      {}\n", line.trim());
            }
        }
        let mut list = |what: &str, lines: Vec<String>| {
            if !lines.is_empty() {
                text += &format!("\n{}\n  {}\n", plural(lines.len(), what), lines.join("\n  "));
            }
        };
        let resource = |resource: &Resource| format!("{}  {}", resource.uri, resource.name);
        let template = |template: &ResourceTemplate| format!("{}  {}", template.uri_template, template.name);
        list("resource", resources.iter().map(resource).collect());
        list("resource template", resource_templates.iter().map(template).collect());
        list("prompt", prompts.iter().map(|prompt| prompt.name.clone()).collect());
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
