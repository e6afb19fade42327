use std::time::Duration;

use crate::error::{Class, Diagnostic};

/// What can go wrong with a model behind an endpoint.
#[derive(Debug, thiserror::Error)]
pub enum LlmError {
    #[error("`{url}` is not the address of an endpoint: {reason}")]
    Url { url: String, reason: String },
    #[error("the API key in {variable} would travel unencrypted to `{url}`")]
    Unencrypted { url: String, variable: String },
    #[error("the API key is read from the environment variable {variable}, which is not set")]
    NoKey { variable: String },
    #[error("the API key in {variable} holds characters that cannot be sent")]
    Key { variable: String },
    #[error("cannot set up an HTTP client")]
    Client(#[source] reqwest::Error),
    #[error("{model} at {url} cannot be reached")]
    Unreachable {
        model: String,
        url: String,
        #[source]
        source: reqwest::Error,
    },
    #[error("{model} at {url} did not answer within {limit:?}")]
    Timeout { model: String, url: String, limit: Duration },
    #[error("{model} at {url} answered with status {status}: {body}")]
    Status { model: String, url: String, status: u16, body: String },
    #[error("{model} at {url} answered with something other than a chat completion: {reason}")]
    Reply { model: String, url: String, reason: String },
}

impl Diagnostic for LlmError {
    fn code(&self) -> &'static str {
        match self {
            Self::Url { .. } => "llm::url",
            Self::Unencrypted { .. } => "llm::unencrypted",
            Self::NoKey { .. } => "llm::no_key",
            Self::Key { .. } => "llm::key",
            Self::Client(_) => "llm::http_client",
            Self::Unreachable { .. } => "llm::unreachable",
            Self::Timeout { .. } => "llm::timeout",
            Self::Status { .. } => "llm::status",
            Self::Reply { .. } => "llm::reply",
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Url { .. } => "write base_url = \"https://host/v1\", without /chat/completions",
            Self::Unencrypted { .. } => {
                "write https://host/v1; plain http is for this machine, or for endpoints that need no key"
            }
            Self::NoKey { variable } => {
                return Some(format!("export {variable}=…, or name another variable"));
            }
            Self::Unreachable { .. } => "is the endpoint up, and is base_url right?",
            Self::Timeout { .. } => "raise timeout_s, or lower max_tokens",
            Self::Status { status: 401 | 403, .. } => "is the API key right, and may it use this model?",
            Self::Status { status: 404, .. } => {
                "does the endpoint know this model, and does base_url end in /v1?"
            }
            Self::Status { status: 429, .. } => "lower concurrency",
            Self::Key { .. } | Self::Client(_) | Self::Status { .. } | Self::Reply { .. } => return None,
        };
        Some(hint.into())
    }

    fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. } | Self::Timeout { .. } | Self::Status { status: 408 | 429 | 500.., .. }
        )
    }

    fn class(&self) -> Class {
        match self {
            Self::Url { .. } | Self::Unencrypted { .. } | Self::NoKey { .. } | Self::Key { .. } => {
                Class::Usage
            }
            _ => Class::Work,
        }
    }
}
