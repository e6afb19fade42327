//! A client for any MCP server.
//!
//! A [`Session`] is one live connection, over a child process's stdin and stdout or over HTTP, or plays back a
//! [`Cassette`]. A [`Pool`] hands out sessions so that episodes do not see each other's effects. Servers are not trusted: every
//! wait has a timeout, every list and text has a maximum size, invisible characters are removed from texts, and errors
//! in a list or result are repaired or dropped.
//!
//! The client never runs a server's command in a shell, never follows a server's references or links, and refuses every
//! request of a server to the client (sampling, elicitation, roots) unless the run file has a fixed answer ([`Inputs`]). It does not know episodes, policies or
//! training, and writes no file but recordings and tokens of logins.

//! # The way of a result
//!
//! 1. `stdio`, `streamable` or `sse` reads the bytes, and `message` parses them, bounded.
//! 2. `correlator` finds the request that they answer. Through rmcp, to which `handshake` gave the transport, it comes back to the
//!    call that waits in `live`, as [`untrusted`] values.
//! 3. `live` answers the server's own questions on the way (`input`), and notices a session that is forgotten or lost.
//! 4. `outcome` makes one text of the content, cleaned and without secrets: a `WholeResult`.
//! 5. `session` applies `quirks`, cuts it to the limit and returns an [`Outcome`].

mod address;
mod cassette;
mod correlator;
mod descendants;
mod environment;
mod error;
mod events;
mod exposed;
mod failure;
mod forgotten;
mod handshake;
mod http;
mod http_client;
mod input;
mod json;
mod listing;
mod live;
mod message;
mod names;
mod noise;
mod oauth;
mod oauth_http;
mod offered;
mod outcome;
mod places;
mod pool;
mod process;
mod program;
mod quirks;
mod sandbox;
mod scratch;
mod serve;
mod servers;
mod session;
mod snapshot;
mod sse;
mod stdio;
mod streamable;
mod tokens;
mod tools;
mod unheard;
mod untrusted;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use mcprl_base::secret;
use serde::{Deserialize, Serialize};

pub use self::{
    cassette::{Cassette, RecordedCall},
    environment::INHERITED,
    error::{Challenge, McpError, ServerOutput},
    exposed::Expose,
    input::Inputs,
    listing::Description,
    oauth::Login,
    offered::{Prompt, Resource, ResourceTemplate, ServerInfo, Tool},
    outcome::Outcome,
    places::SESSION,
    pool::{Pool, PooledSession, Reservation},
    quirks::{BadPattern, ErrorPatterns, Quirks},
    sandbox::{BWRAP, Sandbox},
    servers::{CallTarget, Pools, Servers, Visit, merged},
    session::Session,
    snapshot::PLACEHOLDER,
    tools::tools_digest,
};
pub use self::{
    outcome::{looks_failed, plain},
    serve::serve_stdio,
};

/// The MCP server of a run, as resolved from the run file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerSpec {
    pub transport: Transport,
    pub state: State,
    pub limits: Limits,
    #[serde(default)]
    pub quirks: Quirks,
    /// The cassette that answers are recorded to.
    #[serde(default)]
    pub record: Option<PathBuf>,
    /// What the agent gets as tools besides the server's own.
    #[serde(default)]
    pub expose: Expose,
    /// What the server gets when it asks for input.
    #[serde(default)]
    pub inputs: Inputs,
    #[serde(default)]
    pub on_list_change: ListChange,
    /// Commands around every session: what one sets up, the other removes.
    #[serde(default)]
    pub before_episode: Vec<String>,
    #[serde(default)]
    pub after_episode: Vec<String>,
}

impl ServerSpec {
    /// Whether nothing that an episode changes is there in the next: each has a copy, or what was set up for it.
    pub fn isolates(&self) -> bool {
        matches!(self.state, State::SnapshotDir(_))
            || self.state == State::FreshProcess && !self.before_episode.is_empty()
    }

    /// Whether what a call does, even one without an answer, ends with its session: nothing, or in a copy or a process of its own.
    pub fn contains_calls(&self) -> bool {
        let has_own_process = self.state == State::FreshProcess && self.has_process();
        self.isolates() || self.state == State::ReadOnly || has_own_process
    }

    /// Whether its sessions are processes that are started for them.
    pub fn has_process(&self) -> bool {
        matches!(self.transport, Transport::Stdio { .. })
    }

    /// With default limits.
    pub fn new(transport: Transport, state: State) -> Self {
        Self {
            transport,
            state,
            limits: Limits::default(),
            quirks: Quirks::default(),
            record: None,
            expose: Expose::default(),
            inputs: Inputs::default(),
            on_list_change: ListChange::default(),
            before_episode: Vec::new(),
            after_episode: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Transport {
    /// A child process that uses its stdin and stdout. `{mcprl}` in the command is replaced by the path of this binary.
    ///
    /// The child sees the variables that every program needs ([`INHERITED`]) and what `env` lists, nothing else. `${NAME}`
    /// in a value of `env` is taken from this process's environment, so that secrets stay out of run files
    /// (`reference.rs`). `files` are further files and folders whose content identifies the server.
    Stdio {
        command: Vec<String>,
        env: BTreeMap<String, String>,
        cwd: Option<PathBuf>,
        #[serde(default)]
        files: Vec<PathBuf>,
    },
    /// Streamable HTTP, or the older HTTP+SSE if the server offers nothing else. `${NAME}` in the URL or in a header's value
    /// is taken from this process's environment.
    Http { url: String, token: Token, headers: BTreeMap<String, String> },
    /// No server: recorded answers are played back.
    Cassette(PathBuf),
}

/// Where the bearer token of a server comes from. Never from the run file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Token {
    /// What [`Login`] stored for the address, if anything.
    #[default]
    Stored,
    /// The value of this environment variable.
    Env(String),
    /// The content of this file, read for each connection.
    File(PathBuf),
    /// An authorization server gives it to this client, whose secret is the value of `secret_env`.
    /// It must be `issuer`, if that is set.
    Client { id: String, secret_env: String, scopes: Vec<String>, issuer: Option<String> },
}

impl Transport {
    /// HTTP without further settings.
    pub fn http(url: impl Into<String>) -> Self {
        Self::Http { url: url.into(), token: Token::default(), headers: BTreeMap::new() }
    }
}

impl std::fmt::Display for Transport {
    /// The command line without its secrets, or the URL, for messages. References to variables stay as they are.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stdio { command, .. } => f.write_str(&secret::hidden(command, |_| "…".into()).join(" ")),
            Self::Http { url, .. } => f.write_str(url),
            Self::Cassette(path) => write!(f, "{}", path.display()),
        }
    }
}

/// How episodes are isolated from each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// Episodes cannot change the server's state, so sessions are shared.
    ReadOnly,
    /// Every episode gets its own server process; over HTTP, its own session (`fresh-session` in the run file).
    FreshProcess,
    /// Every episode gets its own server process, and a copy of this folder for its files (`{dir}`).
    SnapshotDir(PathBuf),
    /// This tool is called without arguments before every episode.
    ResetTool(String),
    /// Nobody has said yet what calls change. No run starts.
    Unconfirmed,
}

impl State {
    /// As in a key.
    pub fn label(&self) -> String {
        match self {
            Self::ReadOnly => "read-only".to_owned(),
            Self::FreshProcess => "fresh-process".to_owned(),
            Self::SnapshotDir(_) => "snapshot-dir".to_owned(),
            Self::ResetTool(tool) => format!("reset-tool {tool}"),
            Self::Unconfirmed => "unconfirmed".to_owned(),
        }
    }

    /// The tool that restores the initial state, if there is one.
    pub fn reset_tool(&self) -> Option<&str> {
        match self {
            Self::ResetTool(tool) => Some(tool),
            Self::ReadOnly | Self::FreshProcess | Self::SnapshotDir(_) | Self::Unconfirmed => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Sessions open at once; `None` for as many as memory allows ([`Pool`]).
    pub sessions: Option<usize>,
    pub start_timeout: Duration,
    pub call_timeout: Duration,
    /// Maximum bytes of a result, before tokenizing.
    pub result_bytes: usize,
    /// Where a child process runs; `None` for outside a sandbox.
    #[serde(default)]
    pub sandbox: Option<Sandbox>,
    /// By the server's names of the tools.
    #[serde(default)]
    pub tools: BTreeMap<String, ToolLimits>,
}

/// Limits of one tool, in place of those of all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolLimits {
    pub timeout: Option<Duration>,
    pub result_bytes: Option<usize>,
    /// Calls in one episode.
    pub calls: Option<u32>,
}

impl Limits {
    /// How long a call of a tool may take, and the maximum bytes of its result.
    pub fn of_tool(&self, name: &str) -> (Duration, usize) {
        let own = self.tools.get(name);
        let (timeout, bytes) = (own.and_then(|own| own.timeout), own.and_then(|own| own.result_bytes));
        (timeout.unwrap_or(self.call_timeout), bytes.unwrap_or(self.result_bytes))
    }
}

/// What happens if the server changes a listed tool while episodes are played.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListChange {
    /// The stage fails.
    #[default]
    Stop,
    /// The change is noted, and the episodes go on with the tools as they were listed.
    Note,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions: None,
            start_timeout: Duration::from_secs(60),
            call_timeout: Duration::from_secs(30),
            result_bytes: 16_384,
            sandbox: None,
            tools: BTreeMap::new(),
        }
    }
}
