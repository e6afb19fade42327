//! Errors in the form that clients of OpenAI's API read.

use std::{fmt::Display, sync::Arc};

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use crate::{chat::ChatError, data::Message, engine::EngineError, error::Failure};

/// No text has so many bytes a token in the mean.
const TOKEN_BYTES: usize = 256;
const TOO_LONG: &str = "context_length_exceeded";

/// Why a request is not answered.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    status: StatusCode,
    message: String,
    /// The parameter that is wrong: `temperature`, `messages[2].content`.
    param: Option<String>,
    code: Option<&'static str>,
    /// What no client is told, with the reference that it gets instead.
    untold: Option<String>,
}

/// Gets what clients are not told.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

impl ApiError {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: Some(code), untold: None }
    }

    /// A failure on this side. Its cause may name commands, paths and what a server prints, so a client gets a reference to the
    /// log alone.
    pub fn internal(status: StatusCode, code: &'static str, what: &str, cause: &dyn Display) -> Self {
        let reference = format!("{:08x}", super::random() as u32);
        let message = format!("{what}; the log of the server says more at {reference}");
        let untold = Some(format!("{reference}: {what}: {cause}"));
        Self { untold, ..Self::new(status, code, message) }
    }

    /// Tells the log what the client is not told.
    pub fn report(&self, log: &Log) {
        self.untold.iter().for_each(|untold| log(untold));
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    /// A parameter with a wrong value.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        let param = param.into();
        let message = format!("`{param}` {}", message.into());
        Self { param: Some(param), code: None, ..Self::new(StatusCode::BAD_REQUEST, "", message) }
    }

    /// A parameter, or a value of it, that would change the result and is not supported.
    pub fn unsupported(param: impl Into<String>, why: &str) -> Self {
        let code = Some("unsupported_parameter");
        Self { code, ..Self::invalid(param, format!("is not supported{why}")) }
    }

    pub fn too_long(tokens: usize, context: usize) -> Self {
        Self::no_room(format!("the messages have {tokens} tokens, the context of the model is {context}"))
    }

    /// Refuses messages that cannot fit into so many tokens, before they are made tokens: that takes many times their bytes.
    ///
    /// # Errors
    /// If they are too long for the context.
    pub fn check_size(messages: &[Message], context: usize) -> Result<(), Self> {
        let bytes: usize = messages
            .iter()
            .map(|message| message.text.len() + message.reasoning.as_ref().map_or(0, String::len))
            .sum();
        match bytes > context.saturating_mul(TOKEN_BYTES) {
            true => Err(Self::no_room(format!(
                "the messages have {bytes} bytes, too many for the {context} tokens of the model's context"
            ))),
            false => Ok(()),
        }
    }

    fn no_room(message: String) -> Self {
        let error = Self::new(StatusCode::BAD_REQUEST, TOO_LONG, message);
        Self { param: Some("messages".into()), ..error }
    }

    /// Whether the messages are too long for the context.
    pub fn is_too_long(&self) -> bool {
        self.code == Some(TOO_LONG)
    }

    pub fn busy() -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", "too many requests are in progress")
    }

    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    pub fn json(&self) -> Value {
        let Self { message, param, code, .. } = self;
        json!({"error": {"message": message, "type": self.kind(), "param": param, "code": code}})
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Context { tokens, context } => Self::too_long(tokens, context),
            EngineError::Cache { .. } => Self::no_room(error.to_string()),
            EngineError::Guide { .. } => {
                Self::new(StatusCode::BAD_REQUEST, "unsupported_schema", error.to_string())
            }
            error => Failure::from(error).into(),
        }
    }
}

impl From<ChatError> for ApiError {
    fn from(error: ChatError) -> Self {
        match error {
            // A template refuses by an error of its own, and may fail on what it does not expect.
            ChatError::Refused { .. } | ChatError::Template(_) => {
                Self::invalid("messages", format!("cannot be written by the chat template: {error}"))
            }
            error => Failure::from(error).into(),
        }
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Self::internal(status, failure.code(), "the request cannot be answered", &failure)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.json())).into_response();
        if self.status == StatusCode::TOO_MANY_REQUESTS {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
