use std::time::Duration;

use crate::error::{Diagnostic, Failure};

/// Errors of a language model.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "llm")]
pub enum LlmError {
    #[error("`{url}` is not a valid endpoint address: {reason}")]
    #[diagnostic(class = usage)]
    #[hint = "write base_url = \"https://host/v1\", without /chat/completions"]
    Url { url: String, reason: String },
    #[error("the API key in {variable} would be sent unencrypted to `{url}`")]
    #[diagnostic(class = usage)]
    #[hint = "write https://host/v1; plain http is allowed for localhost, and for endpoints without a key"]
    Unencrypted { url: String, variable: String },
    #[error("the environment variable {variable}, which should contain the API key, is not set")]
    #[diagnostic(class = usage)]
    #[hint = "export {variable}=…, or name another variable"]
    NoKey { variable: String },
    #[error("the API key in {variable} contains characters that HTTP headers do not allow")]
    #[diagnostic(class = usage)]
    Key { variable: String },
    #[error("cannot set up an HTTP client")]
    #[diagnostic(code = "http_client")]
    Client(#[source] reqwest::Error),
    #[error("{model} at {url} cannot be reached")]
    #[diagnostic(transient)]
    #[hint = "check that the endpoint is up and that base_url is right"]
    Unreachable { model: String, url: String, source: reqwest::Error },
    #[error("{model} at {url} did not answer within {limit:?}")]
    #[diagnostic(transient)]
    #[hint = "raise timeout_s, or lower max_tokens"]
    Timeout { model: String, url: String, limit: Duration },
    #[error("{model} at {url} answered with status {status}: {body}")]
    #[diagnostic(transient if matches!(status, 408 | 429 | 500..))]
    #[hint("check that the API key is valid and may use this model" if matches!(status, 401 | 403))]
    #[hint("check that the endpoint serves this model and that base_url ends in /v1" if *status == 404)]
    #[hint("set requests_per_minute or tokens_per_minute, or lower concurrency" if *status == 429)]
    Status { model: String, url: String, status: u16, body: String },
    #[error("{model} at {url} sent a reply that cannot be read: {reason}")]
    #[hint = "check that `provider` is right for base_url"]
    Reply { model: String, url: String, reason: String },
    #[error(
        "the next request might cost more than `max_cost` = {ceiling} dollars leaves: {spent:.2} are spent"
    )]
    #[hint = "raise max_cost and run again: replies that are paid for are kept and not asked for again"]
    Ceiling { ceiling: f64, spent: f64 },
    #[error(
        "the question has {tokens} tokens, which leaves no room for a reply: the model's context is {context}"
    )]
    #[hint = "use a model with a longer context, or send less: `shown_bytes` of a judge, smaller groups, fewer tools"]
    TooLong { tokens: usize, context: usize },
    #[error("an endpoint gives no probability of its answer")]
    #[diagnostic(class = usage)]
    #[hint = "run the model in the engine: `local_model`"]
    NoProbability,
    #[error("neither yes nor no is among the model's {considered} likeliest answers")]
    #[hint = "use a larger model, or ask for written scores"]
    Undecided { considered: usize },
    #[error("{cause}")]
    #[diagnostic(code = cause.code(), class = cause.class())]
    #[hint(cause.hint())]
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
