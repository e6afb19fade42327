//! The client to any MCP server, and the demo server.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{data, error::Diagnostic};

/// The MCP server to master, as the run file resolved it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerSpec {
    pub transport: Transport,
    pub state: State,
    pub limits: Limits,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Transport {
    /// A child process that speaks over its standard input and output. `{mcprl}` in the command is this binary.
    Stdio { command: Vec<String>, env: BTreeMap<String, String>, cwd: Option<std::path::PathBuf> },
    /// Streamable HTTP. The token is read from the named environment variable, never from the run file.
    Http { url: String, bearer_env: Option<String>, headers: BTreeMap<String, String> },
}

/// What keeps one episode's effects from the next one's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// The server has no state an episode can change: sessions are shared.
    ReadOnly,
    /// Every episode gets its own server process.
    FreshProcess,
    /// This tool is called (without arguments) before every episode.
    ResetTool(String),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Sessions open at once.
    pub sessions: usize,
    pub start_timeout: Duration,
    pub call_timeout: Duration,
    /// Bytes of a result that are kept, before tokenising.
    pub result_bytes: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum McpError {
    #[error("to be written")]
    Todo,
}

impl Diagnostic for McpError {
    fn code(&self) -> &'static str {
        "mcp::todo"
    }
}

/// What a tool call came back with. A failed call is an outcome (the model is shown it), not an error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The result as text for the model.
    pub text: String,
    pub is_error: bool,
}

/// One live connection to the server.
pub struct Session {}

impl Session {
    pub async fn connect(_spec: &ServerSpec) -> Result<Self, McpError> {
        todo!()
    }
    pub async fn describe(&self) -> Result<(data::Server, Vec<data::Tool>, Vec<data::Resource>), McpError> {
        todo!()
    }
    /// Calls a tool by its wire name. `Err` only where the session is lost or unusable.
    pub async fn call(&self, _name: &str, _arguments: Map<String, Value>) -> Result<Outcome, McpError> {
        todo!()
    }
    pub async fn close(self) {}
}

/// Sessions handed out one episode at a time, isolated as [`State`] demands; dead ones are replaced.
pub struct Pool {}

/// A session lent by a pool; goes back when dropped.
pub struct Lent {}

impl std::ops::Deref for Lent {
    type Target = Session;
    fn deref(&self) -> &Session {
        todo!()
    }
}

impl Pool {
    /// Opens sessions as they are needed, up to `limits.sessions`.
    pub fn new(_spec: ServerSpec) -> Self {
        Self {}
    }
    pub async fn session(&self) -> Result<Lent, McpError> {
        todo!()
    }
    pub async fn close(self) {}
}
