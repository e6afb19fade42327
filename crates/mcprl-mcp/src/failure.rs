//! Why a request to a server failed: as text, as an HTTP status, and whether to wait and try again.

use std::{error::Error as StdError, time::Duration};

use chrono::Utc;
use mcprl_base::{
    error::chain,
    net::{self, Backoff},
};
use rmcp::{
    ServiceError,
    model::{ErrorCode, ErrorData},
    transport::streamable_http_client::StreamableHttpError,
};
use tokio::time::Instant;

use super::{
    McpError,
    error::Challenge,
    http_client::Error,
    message::{self, BROKEN_OFF, BROKEN_OFF_CODE},
    tokens::NoToken,
    untrusted::{Redaction, Untrusted},
};

/// First wait before a rate-limited request is sent again if the server names none, and the maximum total wait.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Why a request has no result.
pub(super) struct Failure {
    pub(super) cause: Cause,
    /// As text, without Rust type names.
    pub(super) reason: String,
}

pub(super) enum Cause {
    /// The server answered with an error: its code and its whole text.
    Error(ErrorCode, String),
    Timeout,
    Refused(Refusal),
    /// The server wants a token, and there is none.
    NoToken(NoToken),
    /// The connection is closed.
    Closed,
    /// The request could not be sent, or its answer broke off.
    Broken,
    /// rmcp refuses the answer.
    Unexpected,
}

impl Failure {
    pub(super) fn of(error: &ServiceError, redaction: &Redaction) -> Self {
        let (cause, reason) = match error {
            ServiceError::McpError(error) if error.code == BROKEN_OFF_CODE => {
                (Cause::Broken, of_error(error, redaction))
            }
            ServiceError::McpError(error) => {
                let text = Untrusted::new(&error.message, redaction).shown();
                (Cause::Error(error.code, text), of_error(error, redaction))
            }
            ServiceError::TransportSend(error) => {
                let reason = of_transport(&*error.error, redaction);
                let cause = match (NoToken::of(&*error.error, redaction), Refusal::of(&*error.error)) {
                    (Some(no_token), _) => Cause::NoToken(no_token),
                    (None, Some(refusal)) => Cause::Refused(refusal),
                    (None, None) => Cause::Broken,
                };
                (cause, reason)
            }
            ServiceError::TransportClosed => (Cause::Closed, "the connection was closed".into()),
            ServiceError::Timeout { timeout } => return Self::timeout(*timeout),
            other => (Cause::Unexpected, Untrusted::new(chain(other), redaction).line()),
        };
        Self { cause, reason }
    }

    pub(super) fn broken_off() -> Self {
        Self { cause: Cause::Broken, reason: BROKEN_OFF.into() }
    }

    pub(super) fn timeout(limit: Duration) -> Self {
        Self { cause: Cause::Timeout, reason: format!("no answer within {limit:?}") }
    }
}

/// An HTTP status that refuses a request.
pub(super) struct Refusal {
    pub(super) status: u16,
    /// Its `WWW-Authenticate`.
    pub(super) challenge: Option<Challenge>,
    /// Whether the server limits the rate of requests, with the wait that it asks for.
    pub(super) rate_limit: Option<Option<Duration>>,
}

impl Refusal {
    pub(super) fn of(error: &(dyn StdError + 'static)) -> Option<Self> {
        let error = error.downcast_ref::<Error>()?;
        let mut rate_limit = None;
        let status = match error {
            StreamableHttpError::AuthRequired(_) => 401,
            StreamableHttpError::InsufficientScope(_) => 403,
            StreamableHttpError::HttpStatus(error) => {
                let asked =
                    error.retry_after.as_deref().and_then(|header| net::retry_after(header, Utc::now()));
                rate_limit = match error.status {
                    429 => Some(asked),
                    503 => asked.map(Some),
                    _ => None,
                };
                error.status
            }
            // `HTTP 401 Unauthorized: …`
            StreamableHttpError::UnexpectedServerResponse(text) => {
                text.strip_prefix("HTTP ")?.get(..3)?.parse().ok()?
            }
            _ => return None,
        };
        let challenge = error.auth_challenge().map(|text| Challenge(text.to_owned()));
        Some(Self { status, challenge, rate_limit })
    }

    /// The error of a server that wants a token, or one with more scopes, or fewer requests.
    pub(super) fn denial(&self, server: &str, has_token: bool) -> Option<McpError> {
        let (server, challenge) = (server.to_owned(), self.challenge.clone());
        match self.status {
            401 => Some(McpError::Unauthorized { server, has_token, challenge }),
            429 => Some(McpError::RateLimited { server }),
            _ if challenge.is_some() => Some(McpError::Refused { server, status: 403, challenge }),
            _ => None,
        }
    }
}

/// How errors of the transport begin that are one.
const NO_TOKEN: [&str; 2] = ["no token: ", "no token now: "];

impl NoToken {
    pub(super) fn of(error: &(dyn StdError + 'static), redaction: &Redaction) -> Option<Self> {
        let StreamableHttpError::UnexpectedServerResponse(text) = error.downcast_ref::<Error>()? else {
            return None;
        };
        let of = |(start, is_transient)| Some((text.strip_prefix(start)?, is_transient));
        let (reason, is_transient) = NO_TOKEN.into_iter().zip([false, true]).find_map(of)?;
        Some(Self { reason: Untrusted::new(reason, redaction).line(), is_transient })
    }

    pub(super) fn into_error(self, server: String) -> McpError {
        McpError::NoToken { server, reason: self.reason, is_transient: self.is_transient }
    }
}

impl From<NoToken> for Error {
    fn from(NoToken { reason, is_transient }: NoToken) -> Self {
        let text = format!("{}{reason}", NO_TOKEN[usize::from(is_transient)]);
        Self::UnexpectedServerResponse(text.into())
    }
}

/// The text of a JSON-RPC error, with its code if the server wrote it.
pub(super) fn of_error(error: &ErrorData, redaction: &Redaction) -> String {
    let text = Untrusted::new(&error.message, redaction).line();
    if message::is_own(error) { text } else { format!("{text} ({})", error.code.0) }
}

pub(super) fn of_transport(error: &(dyn StdError + 'static), redaction: &Redaction) -> String {
    let reason = match error.downcast_ref::<Error>() {
        // Its `source` is empty.
        Some(StreamableHttpError::Client(cause)) => chain(cause),
        Some(StreamableHttpError::UnexpectedServerResponse(reason)) => reason.to_string(),
        Some(StreamableHttpError::SessionExpired) => "the server does not know the session any more".into(),
        _ => chain(error),
    };
    Untrusted::new(without_address(&reason), redaction).line()
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
        // No wait is none that helps.
        let asked = asked.filter(|wait| !wait.is_zero());
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
