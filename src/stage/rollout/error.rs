//! What keeps episodes from being played.

use crate::{error::Diagnostic, mcp::McpError};

#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(prefix = "play::", serialize_all = "snake_case")]
pub enum PlayError {
    #[error("no [server] to run episodes on")]
    NoServer,
    #[error("scenario {scenario} is about the server \"{server}\", which the run file does not have")]
    UnknownServer { scenario: String, server: String },
    #[error("no episode has room for a sampled token: the shortest prompt has {tokens} tokens or more")]
    NoRoom { tokens: usize },
    #[error(
        "the prompts of {without_room} of the {all} scenarios take {room} tokens or more, which leaves no room for a sampled token"
    )]
    LittleRoom { without_room: usize, all: usize, room: usize },
    #[error("the harness `{command}` failed: {problem}")]
    Harness { command: String, problem: String },
    #[error("the harness `{command}` cannot be started")]
    NoHarness { command: String, source: std::io::Error },
    #[error("the server was lost in {lost} of {episodes} episodes")]
    ServerLost {
        lost: usize,
        episodes: usize,
        /// Of the first episode.
        #[source]
        cause: McpError,
    },
}

impl Diagnostic for PlayError {
    fn code(&self) -> &'static str {
        self.into()
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::NoServer => Some("add a [server] table with a `command` or a `url`".into()),
            Self::UnknownServer { .. } => Some("name a server of [servers], or leave `server` out of the task".into()),
            Self::NoRoom { .. } | Self::LittleRoom { .. } => Some(
                "raise max_episode_tokens of [agent], up to the model's context; fewer tools (`allow` of the stage that lists \
                 them) make a shorter prompt"
                    .into(),
            ),
            Self::Harness { .. } => Some(
                "start it by hand with OPENAI_BASE_URL, OPENAI_API_KEY and MCPRL_MCP_URL; `mcprl serve` gives it an endpoint"
                    .into(),
            ),
            Self::NoHarness { .. } => {
                Some("`harness` under [agent] is a list of words: a program on PATH, and files relative to the run file".into())
            }
            Self::ServerLost { cause, .. } => {
                let of_cause = match cause {
                    McpError::Lost { .. } => None,
                    cause => cause.hint(),
                };
                let of_cause =
                    of_cause.unwrap_or("start the server by hand, call a tool, and check that it keeps running".into());
                Some(format!("{of_cause} (finished episodes are kept: resume plays the lost ones)"))
            }
        }
    }

    fn is_transient(&self) -> bool {
        matches!(self, Self::ServerLost { cause, .. } if cause.is_transient())
    }
}
