//! Errors of MCP servers, with hints.

use std::{fmt, io, path::PathBuf, time::Duration};

use mcprl_base::error::Diagnostic;
use mcprl_base::reference::{BadReference, ExpandError};

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "mcp")]
pub enum McpError {
    #[error("the server command is empty")]
    #[diagnostic(class = usage)]
    #[hint = "write the program and its arguments: command = [\"my-server\", \"--stdio\"]"]
    EmptyCommand,
    #[error("cannot start the server `{server}`")]
    #[diagnostic(class = usage if is_mistaken(source))]
    #[hint("check that the program is installed and on PATH, and that `cwd` exists; write each argument as a separate list item" if source.kind() == io::ErrorKind::NotFound)]
    #[hint = "check that you may execute the program; `chmod +x` makes a script executable"]
    Spawn { server: String, source: io::Error },
    #[error("there is no program `bwrap` to run the server in a sandbox")]
    #[hint = "install bubblewrap (`apt install bubblewrap`), or remove `sandbox` from [server]"]
    NoSandbox,
    #[error("cannot copy the snapshot {template}")]
    #[hint = "check that every file in it can be read, that its links stay inside it, and that the temporary folder (TMPDIR) has room"]
    Snapshot { template: PathBuf, source: io::Error },
    #[error("`before_episode`: `{command}` failed: {cause}")]
    #[hint = "run the command in a terminal, in the server's `cwd` and with a name in place of {{session}}"]
    BeforeEpisode { command: String, cause: String },
    #[error("the server needs the environment variable `{variable}`, which is not set")]
    #[diagnostic(class = usage)]
    #[hint = "export {variable}=…"]
    UnsetVariable { variable: String },
    #[error("a value {0}")]
    #[diagnostic(class = usage)]
    #[hint(_0.hint())]
    Reference(#[from] BadReference),
    #[error("`{url}` is not a server's address: {reason}")]
    #[diagnostic(class = usage)]
    #[hint = "write https://host/path; plain http is allowed for localhost, and for servers that need no token or header"]
    Url { url: String, reason: String },
    #[error("the header `{name}` cannot be sent")]
    #[diagnostic(class = usage)]
    #[hint = "header names and values must be printable ASCII; headers that MCP itself uses cannot be set"]
    Header { name: String },
    #[error("cannot set up an HTTP client")]
    #[diagnostic(code = "http_client")]
    Client(#[source] reqwest::Error),
    #[error("the server `{server}` ended before it was ready{output}")]
    #[diagnostic(transient)]
    #[hint = "run the command in a terminal to see its full output"]
    DiedAtStart { server: String, output: ServerOutput },
    #[error("the server `{server}` was not ready within {limit:?}{}{output}", written(stdout.as_deref()))]
    #[diagnostic(transient)]
    #[hint("the server has to write each message as one line of stdout, and logs on stderr" if stdout.is_some())]
    #[hint = "check that it is an MCP server on stdin and stdout; raise start_timeout_s if it starts slowly"]
    StartTimeout {
        server: String,
        limit: Duration,
        output: ServerOutput,
        /// A line of stdout that is no message.
        stdout: Option<Box<String>>,
    },
    #[error("the server `{server}` {}", if *has_token { "refused the token that it was sent" } else { "requires authorization" })]
    #[hint("check that the token is valid, has not expired and is for this server; `mcprl connect {server} --login` gets a \
        new one where the server supports it" if *has_token)]
    #[hint = "run `mcprl connect {server} --login`, or put a token in an environment variable and name it: \
        bearer_env = \"MY_TOKEN\""]
    Unauthorized {
        server: String,
        has_token: bool,
        /// `WWW-Authenticate` of its answer.
        challenge: Option<Challenge>,
    },
    #[error("cannot get a token for the server `{server}`: {reason}")]
    #[diagnostic(transient if *is_transient)]
    #[hint = "check `oauth` of the server (client, secret, scopes, issuer), and that the authorization server is up; after a \
        login, `mcprl connect {server} --login` begins anew"]
    NoToken { server: String, reason: String, is_transient: bool },
    #[error(
        "the server `{server}` takes no more requests (HTTP status 429), also after the waits that it asks for"
    )]
    #[diagnostic(transient)]
    #[hint = "the server limits the rate of requests; lower `sessions` or `concurrency`, or try again later"]
    RateLimited { server: String },
    #[error("cannot log in to the server `{server}`: {reason}")]
    #[hint = "if the server registers no clients, name one that is registered with `--client-id`; without logins, use \
        bearer_env or oauth"]
    Login { server: String, reason: String },
    #[error("the token file `{}` {reason}", path.display())]
    #[diagnostic(class = usage)]
    #[hint(format!("write the token to the file, and run `chmod 600 {}`", path.display()))]
    TokenFile { path: PathBuf, reason: String },
    #[error("the MCP handshake with the server `{server}` failed: {reason}{output}")]
    #[diagnostic(transient)]
    #[hint("check the path of the URL: often /mcp, or /sse for the older HTTP+SSE transport" if matches!(status, Some(404 | 405)))]
    #[hint("if the address that it redirects to is the right one, write it as the `url`, with its final slash" if matches!(status, Some(300..=399)))]
    #[hint("check that the server runs, and listens at this port" if reason.contains("Connection refused"))]
    #[hint("check that it is an MCP server on stdin and stdout, which writes each message as one line of UTF-8" if !server.contains("://"))]
    #[hint = "check that it is an MCP server and that the path of its URL is right"]
    Handshake {
        server: String,
        reason: String,
        /// The HTTP status of the refusal.
        status: Option<u16>,
        output: ServerOutput,
    },
    #[error("the server `{server}` gives sessions no id, so a new session cannot keep episodes apart")]
    #[diagnostic(class = usage)]
    #[hint = "write state = \"read-only\" if calls change nothing, or name a tool that restores the initial state: \
        reset_tool = \"…\""]
    NoSession { server: String },
    #[error("the server `{server}` uses MCP revision `{revision}`, which mcprl does not support")]
    #[hint = "update mcprl, or configure the server for an older revision"]
    Revision { server: String, revision: String },
    #[error("cannot list the {what} of the server `{server}`: {reason}")]
    #[diagnostic(transient)]
    List { server: String, what: &'static str, reason: String },
    #[error("lost the connection to the server `{server}`: {reason}{output}")]
    #[diagnostic(transient)]
    #[hint = "check that the server keeps running; a run goes on with `mcprl resume`"]
    Lost { server: String, reason: String, output: ServerOutput },
    #[error("the server `{server}` refused a request with HTTP status {status}")]
    #[diagnostic(transient if matches!(status, 408 | 429 | 500..))]
    #[hint("check that the token is valid and may call tools; `mcprl connect {server} --login` gets a new one \
        where the server supports it" if matches!(status, 401 | 403 | 407))]
    #[hint("the server limits the rate of calls; lower `sessions` or `concurrency`" if *status == 429)]
    #[hint = "check that the server, and any proxy in front of it, is up"]
    Refused {
        server: String,
        status: u16,
        /// `WWW-Authenticate` of its answer.
        challenge: Option<Challenge>,
    },
    #[error("the reset tool `{tool}` failed: {reason}")]
    #[hint = "a reset tool must accept a call without arguments and return no error"]
    Reset { tool: String, reason: String },
    #[error("the tool `{tool}` of the server `{server}` is no longer as it was listed")]
    #[hint = "list the tools again with --resample and the name of the `discover` stage; with `files` under [server], \
        changed code does that by itself"]
    ToolChanged { server: String, tool: String },
    #[error("the server `{server}` needed more than {limit} restarts within a minute")]
    #[diagnostic(transient)]
    #[hint = "the server keeps crashing; lower `sessions`"]
    Restarts { server: String, limit: usize },
    #[error("the tool `{tool}` belongs to no server of this run")]
    #[hint = "the list of tools is of other servers: use the `tools` of a `discover` stage of this run"]
    NoServerOfTool { tool: String },
    #[error("cannot {verb} the cassette {}", path.display())]
    #[diagnostic(class = usage if *verb == "read")]
    #[hint("record to another file" if source.kind() == io::ErrorKind::FileTooLarge)]
    #[hint("record it first: `record = \"…\"` instead of `replay` under [server]" if *verb == "read")]
    #[hint = "check that its folder is writable and not full"]
    CassetteFile { path: PathBuf, verb: &'static str, source: io::Error },
    #[error("the cassette {} cannot be used: {reason}", path.display())]
    #[diagnostic(class = usage)]
    #[hint = "check its path; if it is a cassette, delete it and record it again, or record to another file"]
    Cassette { path: PathBuf, reason: String },
    #[error("the cassette {} was recorded with {recorded}, not {found}", path.display())]
    #[diagnostic(class = usage)]
    #[hint = "use the settings that it was recorded with, or record to another file"]
    OtherCassette { path: PathBuf, recorded: String, found: String },
    #[error("the cassette {} has no answer to this call of `{tool}` with {arguments}", path.display())]
    #[hint = "record it on the live server: `record = \"…\"` instead of `replay` under [server]; unless state = \"read-only\", \
        the earlier calls of the session must be the same too; a call that timed out or lost the server is not in the \
        cassette: raise `tools.NAME.timeout_s` and record to a new file"]
    NotRecorded { tool: String, arguments: String, path: PathBuf },
    #[error("the session pool is closed")]
    PoolClosed,
    #[error("the MCP server failed")]
    Serve(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl McpError {
    /// Of a server that limits the rate of requests by this status.
    pub(super) fn limited(server: String, status: u16) -> Self {
        match status {
            429 => Self::RateLimited { server },
            _ => Self::Refused { server, status, challenge: None },
        }
    }

    /// If the server asks for a login, because it knows no token or one with too few scopes: what it says about it.
    pub fn asked_login(&self) -> Option<Option<Challenge>> {
        match self {
            Self::Unauthorized { challenge, .. } | Self::Refused { status: 401, challenge, .. } => {
                Some(challenge.clone())
            }
            Self::Refused { status: 403, challenge: Some(challenge), .. }
                if challenge.0.contains("insufficient_scope") =>
            {
                Some(Some(challenge.clone()))
            }
            _ => None,
        }
    }

    /// Whether a cassette failed, not the server.
    pub fn is_of_cassette(&self) -> bool {
        matches!(
            self,
            Self::CassetteFile { .. }
                | Self::Cassette { .. }
                | Self::OtherCassette { .. }
                | Self::NotRecorded { .. }
        )
    }
}

impl From<ExpandError> for McpError {
    fn from(cause: ExpandError) -> Self {
        match cause {
            ExpandError::Reference(bad) => Self::Reference(bad),
            ExpandError::UnsetVariable { variable } => Self::UnsetVariable { variable },
        }
    }
}

fn written(stdout: Option<&String>) -> String {
    stdout.map_or_else(String::new, |line| {
        format!("; on stdout, where each line is a message, it wrote: {line}")
    })
}

/// Whether the command is wrong or its file is not executable.
fn is_mistaken(source: &io::Error) -> bool {
    matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
}

/// The `WWW-Authenticate` of a server, as it wrote it: for a login, and never shown.
#[derive(Clone)]
pub struct Challenge(pub(super) String);

impl fmt::Debug for Challenge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Challenge")
    }
}

/// A server process's exit status and the end of its stderr; empty for a remote server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerOutput {
    /// `exit status: 1`, `signal: 9 (SIGKILL)`; `None` while it runs.
    pub status: Option<String>,
    /// The last lines, without hidden characters.
    pub stderr: String,
}

impl fmt::Display for ServerOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(status) = &self.status {
            write!(f, " ({status})")?;
        }
        match self.stderr.is_empty() {
            true => Ok(()),
            false => write!(f, "; stderr: {}", self.stderr),
        }
    }
}
