use std::time::Duration;

use crate::error::{Class, Diagnostic, Failure};

/// Errors of a language model.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(prefix = "llm::", serialize_all = "snake_case")]
pub enum LlmError {
    #[error("`{url}` is not a valid endpoint address: {reason}")]
    Url { url: String, reason: String },
    #[error("the API key in {variable} would be sent unencrypted to `{url}`")]
    Unencrypted { url: String, variable: String },
    #[error("the environment variable {variable}, which should contain the API key, is not set")]
    NoKey { variable: String },
    #[error("the API key in {variable} contains characters that HTTP headers do not allow")]
    Key { variable: String },
    #[error("cannot set up an HTTP client")]
    #[strum(serialize = "http_client")]
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
    #[error("{model} at {url} sent a reply that cannot be read: {reason}")]
    Reply { model: String, url: String, reason: String },
    #[error(
        "the next request might cost more than `max_cost` = {ceiling} dollars leaves: {spent:.2} are spent"
    )]
    Ceiling { ceiling: f64, spent: f64 },
    #[error(
        "the question has {tokens} tokens, which leaves no room for a reply: the model's context is {context}"
    )]
    TooLong { tokens: usize, context: usize },
    #[error("an endpoint gives no probability of its answer")]
    NoProbability,
    #[error("neither yes nor no is among the model's {considered} likeliest answers")]
    Undecided { considered: usize },
    #[error("{cause}")]
    Local {
        /// An error of the engine, or of the chat template.
        cause: Failure,
        /// Whether it may be this request alone.
        of_request: bool,
    },
}

impl LlmError {
    /// Whether the model refuses this request, and perhaps no other: it is too long, or its content is not allowed.
    pub fn is_about_request(&self) -> bool {
        matches!(
            self,
            Self::Status { status: 400 | 413, .. }
                | Self::TooLong { .. }
                | Self::Undecided { .. }
                | Self::Local { of_request: true, .. }
        )
    }

    /// Whether an endpoint says that the messages do not fit into the model's context.
    pub fn is_context_full(&self) -> bool {
        const SAYS: [&str; 5] = [
            "context_length_exceeded",
            "context length",
            "context window",
            "exceed_context_size",
            "prompt is too long",
        ];
        let Self::Status { status: 400 | 413 | 422, body, .. } = self else { return false };
        let body = body.to_lowercase();
        SAYS.iter().any(|text| body.contains(text))
    }
}

impl Diagnostic for LlmError {
    fn code(&self) -> &'static str {
        match self {
            Self::Local { cause, .. } => cause.code(),
            other => other.into(),
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Url { .. } => "write base_url = \"https://host/v1\", without /chat/completions",
            Self::Unencrypted { .. } => {
                "write https://host/v1; plain http is allowed for localhost, and for endpoints without a key"
            }
            Self::NoKey { variable } => {
                return Some(format!("export {variable}=…, or name another variable"));
            }
            Self::Unreachable { .. } => "check that the endpoint is up and that base_url is right",
            Self::Timeout { .. } => "raise timeout_s, or lower max_tokens",
            Self::Status { status: 401 | 403, .. } => {
                "check that the API key is valid and may use this model"
            }
            Self::Status { status: 404, .. } => {
                "check that the endpoint serves this model and that base_url ends in /v1"
            }
            Self::Status { status: 429, .. } => {
                "set requests_per_minute or tokens_per_minute, or lower concurrency"
            }
            Self::Ceiling { .. } => {
                "raise max_cost and run again: replies that are paid for are kept and not asked for again"
            }
            Self::Reply { .. } => "check that `provider` is right for base_url",
            Self::TooLong { .. } => {
                "use a model with a longer context, or send less: `shown_bytes` of a judge, smaller groups, fewer tools"
            }
            Self::NoProbability => "run the model in the engine: `local_model`",
            Self::Undecided { .. } => "use a larger model, or ask for written scores",
            Self::Local { cause, .. } => return cause.hint(),
            Self::Key { .. } | Self::Client(_) | Self::Status { .. } => return None,
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
            Self::Url { .. }
            | Self::Unencrypted { .. }
            | Self::NoKey { .. }
            | Self::Key { .. }
            | Self::NoProbability => Class::Usage,
            Self::Local { cause, .. } => cause.class(),
            _ => Class::Work,
        }
    }
}
