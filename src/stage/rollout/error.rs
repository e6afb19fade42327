//! What keeps episodes from being played.

use crate::{error::Diagnostic, mcp::McpError};

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "play")]
pub enum PlayError {
    #[error("no [server] to run episodes on")]
    #[hint = "add a [server] table with a `command` or a `url`"]
    NoServer,
    #[error("scenario {scenario} is about the server \"{server}\", which the run file does not have")]
    #[hint = "name a server of [servers], or leave `server` out of the task"]
    UnknownServer { scenario: String, server: String },
    #[error("no episode has room for a sampled token: the shortest prompt has {tokens} tokens or more")]
    #[hint = "raise max_episode_tokens of [agent], up to the model's context; fewer tools (`allow` of the stage that lists \
        them) make a shorter prompt"]
    NoRoom { tokens: usize },
    #[error(
        "the prompts of {without_room} of the {all} scenarios take {room} tokens or more, which leaves no room for a sampled token"
    )]
    #[hint = "raise max_episode_tokens of [agent], up to the model's context; fewer tools (`allow` of the stage that lists \
        them) make a shorter prompt"]
    LittleRoom { without_room: usize, all: usize, room: usize },
    #[error("the harness `{command}` failed: {problem}")]
    #[hint = "start it by hand with OPENAI_BASE_URL, OPENAI_API_KEY and MCPRL_MCP_URL; `mcprl serve` gives it an endpoint"]
    Harness { command: String, problem: String },
    #[error("the harness `{command}` cannot be started")]
    #[hint = "`harness` under [agent] is a list of words: a program on PATH, and files relative to the run file"]
    NoHarness { command: String, source: std::io::Error },
    #[error("the server was lost in {lost} of {episodes} episodes")]
    #[diagnostic(transient = cause.is_transient())]
    #[hint(lost_hint(cause))]
    ServerLost {
        lost: usize,
        episodes: usize,
        /// Of the first episode.
        #[source]
        cause: McpError,
    },
}

fn lost_hint(cause: &McpError) -> String {
    let of_cause = match cause {
        McpError::Lost { .. } => None,
        cause => cause.hint(),
    };
    let of_cause =
        of_cause.unwrap_or("start the server by hand, call a tool, and check that it keeps running".into());
    format!("{of_cause} (finished episodes are kept: resume plays the lost ones)")
}
