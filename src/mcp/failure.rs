//! Why a request to a server failed: as text, as an HTTP status, and whether to wait and try again.

use std::{error::Error as StdError, time::Duration};

use chrono::Utc;
use rmcp::{ServiceError, model::ErrorData, transport::streamable_http_client::StreamableHttpError};
use tokio::time::Instant;

use super::{http_client::Error, message, redact::Redaction};
use crate::{
    error::chain,
    net::{self, Backoff},
};

/// First wait before a rate-limited request is sent again if the server names none, and the maximum total wait.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Whether a server that refused a handshake so may offer the older transport.
pub(super) fn may_be_sse(error: &(dyn StdError + 'static)) -> bool {
    matches!(status(error), Some(400 | 404 | 405))
}

/// The HTTP status that caused an error.
pub(super) fn status(error: &(dyn StdError + 'static)) -> Option<u16> {
    match error.downcast_ref::<Error>()? {
        StreamableHttpError::AuthRequired(_) => Some(401),
        StreamableHttpError::InsufficientScope(_) => Some(403),
        StreamableHttpError::HttpStatus(error) => Some(error.status),
        // `HTTP 401 Unauthorized: …`
        StreamableHttpError::UnexpectedServerResponse(text) => {
            text.strip_prefix("HTTP ")?.get(..3)?.parse().ok()
        }
        _ => None,
    }
}

/// The `WWW-Authenticate` of a refusal.
pub(super) fn challenge(error: &(dyn StdError + 'static)) -> Option<String> {
    error.downcast_ref::<Error>()?.auth_challenge().map(str::to_owned)
}

/// Whether the server limits the rate of requests, with the wait that it asks for.
pub(super) fn rate_limited(error: &(dyn StdError + 'static)) -> Option<Option<Duration>> {
    let Some(StreamableHttpError::HttpStatus(error)) = error.downcast_ref::<Error>() else {
        return None;
    };
    let asked = error.retry_after.as_deref().and_then(|header| net::retry_after(header, Utc::now()));
    match error.status {
        429 => Some(asked),
        503 => asked.map(Some),
        _ => None,
    }
}

/// The error of the transport that kept a request from being sent.
pub(super) fn transport(error: &ServiceError) -> Option<&(dyn StdError + 'static)> {
    match error {
        ServiceError::TransportSend(error) => Some(&*error.error),
        _ => None,
    }
}

/// The reason of a failed request, without Rust type names.
pub(super) fn of_request(error: &ServiceError, redaction: &Redaction) -> String {
    match error {
        ServiceError::TransportSend(error) => of_transport(&*error.error, redaction),
        ServiceError::TransportClosed => "the connection was closed".into(),
        ServiceError::McpError(error) => of_error(error, redaction),
        ServiceError::Timeout { timeout } => format!("no answer within {timeout:?}"),
        other => redaction.shorten(&chain(other)),
    }
}

/// The text of a JSON-RPC error, with its code if the server wrote it.
pub(super) fn of_error(error: &ErrorData, redaction: &Redaction) -> String {
    let text = redaction.shorten(&error.message);
    if message::is_own(error) { text } else { format!("{text} ({})", error.code.0) }
}

pub(super) fn of_transport(error: &(dyn StdError + 'static), redaction: &Redaction) -> String {
    let reason = match error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
        // Its `source` is empty.
        Some(StreamableHttpError::Client(cause)) => chain(cause),
        Some(StreamableHttpError::UnexpectedServerResponse(reason)) => reason.to_string(),
        _ => chain(error),
    };
    redaction.shorten(&without_address(&reason))
}

/// A text of reqwest without the address: messages name the server as the run file does, where a secret is a reference.
fn without_address(reason: &str) -> String {
    const BEFORE: &str = " for url (";
    let Some((before, rest)) = reason.split_once(BEFORE) else { return reason.to_owned() };
    let after = rest.split_once(')').map_or("", |(_, after)| after);
    format!("{before}{}", without_address(after))
}

/// Waits of one request to a server that limits their rate.
pub(super) struct RateLimit {
    backoff: Backoff,
    left: Duration,
}

impl RateLimit {
    pub(super) fn new() -> Self {
        Self { backoff: Backoff::new(FIRST_WAIT, LONGEST_WAIT, 0), left: LONGEST_WAIT }
    }

    /// The next wait; `None` if it is longer than what is left, in all or until the deadline.
    pub(super) fn wait(&mut self, asked: Option<Duration>, deadline: Option<Instant>) -> Option<Duration> {
        let wait = asked.unwrap_or_else(|| self.backoff.wait(None)).max(FIRST_WAIT);
        self.left = self.left.checked_sub(wait)?;
        let is_late = deadline.is_some_and(|deadline| Instant::now() + wait >= deadline);
        (!is_late).then_some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_names_no_address() {
        let reason =
            "error sending request for url (https://a.b/mcp?key=s3): client error (Connect): refused";
        assert_eq!(without_address(reason), "error sending request: client error (Connect): refused");
        assert_eq!(without_address("no answer"), "no answer");
    }
}
