//! What the section `[server]` can say.

use std::{collections::BTreeMap, time::Duration};

use schemars::JsonSchema;
use serde::Deserialize;

use crate::mcp::{BWRAP, Limits, PLACEHOLDER, SESSION, ToolLimits};

/// The MCP server to train on: a `command` or a `url`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerTable {
    /// Command to start; the transport is stdio. `{mcprl}` is this program. Words are passed unchanged, so
    /// put secrets into `env`.
    #[schemars(length(min = 1))]
    pub(super) command: Option<Vec<String>>,
    /// URL to connect to over streamable HTTP, or HTTP+SSE. `${NAME}` in it is the environment variable NAME.
    #[schemars(regex(pattern = "^https?://"))]
    pub(super) url: Option<String>,
    /// Environment variable that holds the bearer token for `url`.
    pub(super) bearer_env: Option<String>,
    /// File that holds the bearer token for `url`, relative to the run file's folder. It is read at each
    /// connection, and refused if other users can read it.
    pub(super) bearer_file: Option<String>,
    /// Client that gets the bearer token for `url` from the server's authorization server, by its own
    /// credentials. A user's login is `mcprl connect URL --login` instead and needs no key.
    pub(super) oauth: Option<OAuth>,
    /// Headers of every request to `url`. `${NAME}` in a value is the environment variable NAME, as in
    /// `"Bearer ${TOKEN}"`, and `$$` is a `$`. A literal secret is rejected.
    pub(super) headers: Option<BTreeMap<String, String>>,
    /// Under `[servers.NAME]`, makes a server of each of these numbers, such as `"1..200"`: NAME001 to NAME200. `{seed}` in
    /// `command`, `cwd`, `env`, `url`, `headers`, `record`, `before_episode` and `after_episode` is the number.
    #[expect(dead_code, reason = "a key of the schema, which `names` reads")]
    pub(super) seeds: Option<String>,
    /// How episodes are isolated from each other. `fresh-process` needs a `command` and is its default;
    /// `fresh-session` needs a `url`. `run` refuses `unconfirmed`, which `init` writes where only you can know.
    #[schemars(extend("enum" = states()))]
    pub(super) state: Option<String>,
    /// Folder that is copied for each episode if `state` is `snapshot-dir`, relative to the run file's folder. `{dir}` in
    /// `command`, `env` or `cwd` is the copy.
    pub(super) snapshot: Option<String>,
    /// Tool to call before each episode if `state` is `reset-tool`.
    pub(super) reset_tool: Option<String>,
    /// Command that runs before each episode, in the folder and with the variables of `command`, and sets up what the episode
    /// changes. `{session}` in it, and in `command`, `cwd`, `env`, `url` and `headers`, is a name that no other session has.
    #[schemars(length(min = 1))]
    pub(super) before_episode: Option<Vec<String>>,
    /// Command that runs after each episode and removes that.
    #[schemars(length(min = 1))]
    pub(super) after_episode: Option<Vec<String>>,
    /// Environment variables for `command`, in addition to PATH, HOME, LANG, TMPDIR and those for proxies and
    /// certificates. `${NAME}` in a value is the environment variable NAME, and `$$` is a `$`. A literal
    /// secret is rejected. The value of NAME is not part of any key.
    pub(super) env: Option<BTreeMap<String, String>>,
    /// Working directory of `command`, relative to the run file's folder.
    pub(super) cwd: Option<String>,
    /// Files and folders whose content identifies the server, such as the modules that its script imports;
    /// relative to the run file's folder.
    pub(super) files: Option<Vec<String>>,
    /// Runs `command` in a sandbox (Linux): it reads files except credentials, writes only its own /tmp and
    /// `sandbox_write`, and has no network.
    #[schemars(extend("enum" = [BWRAP]))]
    pub(super) sandbox: Option<String>,
    /// Gives a sandboxed server the network.
    pub(super) sandbox_network: Option<bool>,
    /// Files and folders that a sandboxed server may write, relative to the run file's folder; `~` is the home folder.
    pub(super) sandbox_write: Option<Vec<String>>,
    /// Maximum number of concurrent sessions. By default, as many processes of `command` as fit into half of the
    /// available memory, up to 256; at a `url`, 16.
    #[schemars(range(min = 1))]
    pub(super) sessions: Option<usize>,
    /// Timeout for starting a session, in seconds.
    #[schemars(range(min = 1), extend("default" = Limits::default().start_timeout.as_secs()))]
    pub(super) start_timeout_s: Option<u64>,
    /// Timeout of one tool call, in seconds.
    #[schemars(range(min = 1), extend("default" = Limits::default().call_timeout.as_secs()))]
    pub(super) call_timeout_s: Option<u64>,
    /// Maximum number of bytes of a tool result shown to the model.
    #[schemars(range(min = 1), extend("default" = Limits::default().result_bytes))]
    pub(super) result_bytes: Option<usize>,
    /// Regular expressions for texts that are errors although the server does not mark them, such as `"^Error:"`.
    pub(super) error_patterns: Option<Vec<String>>,
    /// Whether an argument is converted to the type that the tool's schema wants: `"7"` to 7, `"true"` to true, and 7
    /// to `"7"`.
    #[schemars(extend("default" = false))]
    pub(super) coerce_arguments: Option<bool>,
    /// What the agent gets as tools besides the server's own: its resources (`list_resources`, `read_resource`) and its
    /// prompts (`get_prompt`).
    pub(super) expose: Option<Vec<String>>,
    /// Limits of single tools, by the server's name of the tool.
    pub(super) tools: Option<BTreeMap<String, ToolSettings>>,
    /// How a form that the server shows to the user is filled in: `"defaults"`, or a table of values by field, where other
    /// fields get their defaults. Without it, and where a required field has no value, forms are declined. A literal secret
    /// is rejected.
    pub(super) elicitation: Option<Elicitation>,
    /// Fixed reply to a server that asks for a sample of a language model. Without it such a request is refused.
    pub(super) sampling: Option<Sampling>,
    /// What happens if the server announces a change of its tools while episodes are played and a listed tool is no longer the
    /// same: the stage fails, or the change is noted.
    #[schemars(extend("enum" = LIST_CHANGES, "default" = LIST_CHANGES[0]))]
    pub(super) on_list_change: Option<String>,
    /// Cassette that the server's answers are recorded to, relative to the run file's folder, outside of `files` and
    /// `snapshot`.
    pub(super) record: Option<String>,
    /// Cassette whose answers take the place of the server, relative to the run file's folder. Nothing is started or
    /// connected to.
    pub(super) replay: Option<String>,
}

pub(super) const EXPOSED: [&str; 2] = ["resources", "prompts"];
pub(super) const LIST_CHANGES: [&str; 2] = ["stop", "note"];

/// Limits of one tool.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ToolSettings {
    /// Timeout of a call, in seconds, in place of `call_timeout_s`.
    #[schemars(range(min = 1))]
    pub(super) timeout_s: Option<u64>,
    /// Maximum number of bytes of a result shown to the model, in place of the server's.
    #[schemars(range(min = 1))]
    pub(super) result_bytes: Option<usize>,
    /// How often the agent may call the tool in an episode. Further calls get an error.
    pub(super) calls: Option<u32>,
}

/// `"defaults"`, or values by field.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum Elicitation {
    Word(String),
    Values(BTreeMap<String, serde_json::Value>),
}

/// A fixed reply.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Sampling {
    pub(super) text: String,
}

/// Client credentials (OAuth 2.1).
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OAuth {
    pub(super) client_id: String,
    /// Environment variable that holds the client's secret.
    pub(super) client_secret_env: String,
    /// Scopes to ask for; by default those that the server names.
    #[serde(default)]
    pub(super) scopes: Vec<String>,
    /// The authorization server (its issuer URL). Without it, the client's secret goes to the one that the MCP server names.
    pub(super) issuer: Option<String>,
}

pub(super) const STATES: [&str; 5] =
    ["read-only", "fresh-process", "fresh-session", "reset-tool", "snapshot-dir"];
/// What `init` writes in place of one. Nobody has to be told of it by a mistake.
pub(super) const UNCONFIRMED: &str = "unconfirmed";

/// The values of `state` in the schema.
pub(super) fn states() -> Vec<&'static str> {
    STATES.into_iter().chain([UNCONFIRMED]).collect()
}

impl ServerTable {
    /// Whether a setting takes the copy of `snapshot`.
    pub(super) fn uses_copy(&self) -> bool {
        let around = self.before_episode.iter().chain(&self.after_episode).flatten();
        let words = self.command.iter().flatten().chain(self.env.iter().flat_map(BTreeMap::values));
        words.chain(around).chain(&self.cwd).any(|word| word.contains(PLACEHOLDER))
    }

    /// Whether a setting of the server takes the session's name.
    pub(super) fn uses_name(&self) -> bool {
        let tables = self.env.iter().chain(&self.headers).flat_map(BTreeMap::values);
        let words = self.command.iter().flatten().chain(tables).chain(&self.cwd).chain(&self.url);
        words.into_iter().any(|word| word.contains(SESSION))
    }
}

impl ToolSettings {
    pub(super) fn limits(&self) -> ToolLimits {
        let Self { timeout_s, result_bytes, calls } = *self;
        ToolLimits { timeout: timeout_s.map(Duration::from_secs), result_bytes, calls }
    }
}
