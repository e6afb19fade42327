//! Connections to servers over streamable HTTP, and to those that offer only the older HTTP+SSE.
//!
//! A secret (token or header) is sent unencrypted only to this machine, follows no redirect to another origin, and
//! is never logged. Proxy environment variables are ignored.

use std::{sync::Arc, time::Duration};

use mcprl_base::{
    net,
    reference::{expand_text, has_reference},
};
use reqwest::{
    Url,
    header::{AUTHORIZATION, HeaderName, HeaderValue},
    redirect::Policy,
};
use rmcp::transport::{
    StreamableHttpClientTransport, common::client_side_sse::ExponentialBackoff,
    streamable_http_client::StreamableHttpClientTransportConfig,
};

use super::{
    McpError, State, Token,
    address::{address, check_secrecy},
    http_client::{Error, Headers, HttpClient},
    oauth::Access,
    quirks::ErrorPatterns,
    sse::SseTransport,
    streamable::Streamable,
    tokens::Bearer,
    unheard::Unheard,
};

/// Concurrent requests of one session; further requests wait.
const CONCURRENT_REQUESTS: usize = 64;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a connection is kept for the next request: less than servers keep it, many of which close it after 5 seconds. A
/// call on a connection that the server closes at that moment is lost, and is not sent again: it may have been executed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// Attempts to reopen a broken event stream.
const STREAM_RETRIES: usize = 5;
const STREAM_RETRY_DELAY: Duration = Duration::from_secs(10);

/// Headers that MCP itself uses.
const RESERVED: [&str; 4] = ["accept", "last-event-id", "mcp-protocol-version", "mcp-session-id"];

pub(super) type HttpTransport = StreamableHttpClientTransport<Streamable>;

/// How to reach a server, with variables replaced.
pub(super) struct Endpoint {
    pub(super) url: Url,
    headers: Headers,
    access: Access,
}

/// The address, token and headers, checked: they may be sent there.
pub(super) fn endpoint(
    url: &str,
    token: &Token,
    headers: impl IntoIterator<Item = (impl AsRef<str>, impl AsRef<str>)>,
) -> Result<Endpoint, McpError> {
    let headers = headers
        .into_iter()
        .map(|(name, value)| header(name.as_ref(), value.as_ref()))
        .collect::<Result<Headers, _>>()?;
    let has_reference = has_reference(url)?;
    let parsed = address(url)?;
    let access = Access::new(token, &parsed, headers.contains_key(&AUTHORIZATION))?;
    if has_reference || access.is_secret() || !headers.is_empty() {
        check_secrecy(url, &parsed)?;
    }
    Ok(Endpoint { url: parsed, headers, access })
}

/// What connects to one server. Nothing is sent yet.
pub(super) struct Connector {
    url: Url,
    headers: Headers,
    client: HttpClient,
    streamable: Streamable,
}

impl Connector {
    /// `errors`: results that are errors although the server does not say so.
    pub(super) fn new(endpoint: Endpoint, errors: &ErrorPatterns) -> Result<Self, McpError> {
        let Endpoint { url, headers, access } = endpoint;
        let client = net::client()
            .redirect(Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build()
            .map_err(McpError::Client)?;
        let client = HttpClient { client, access: Arc::new(access), moved: Arc::default() };
        let streamable = Streamable::new(client.clone(), errors.clone());
        Ok(Self { url, headers, client, streamable })
    }

    /// A session that the server has ended is replaced silently if it had no `state`, and otherwise lost.
    pub(super) fn streamable(&self, state: &State) -> HttpTransport {
        let mut config = StreamableHttpClientTransportConfig::with_uri(self.url.as_str())
            .custom_headers(self.headers.clone())
            .max_concurrent_requests(CONCURRENT_REQUESTS)
            .reinit_on_expired_session(*state == State::ReadOnly);
        let mut retry = ExponentialBackoff::default();
        retry.max_times = Some(STREAM_RETRIES);
        retry.max_delay = Some(STREAM_RETRY_DELAY);
        config.retry_config = Arc::new(retry);
        StreamableHttpClientTransport::with_client(self.streamable.clone(), config)
    }

    /// The older transport; `None` if the server does not offer it.
    pub(super) async fn sse(&self) -> Result<Option<SseTransport>, Error> {
        SseTransport::open(&self.client, &self.url, &self.headers).await
    }

    pub(super) fn bearer(&self) -> Arc<Bearer> {
        self.client.access.bearer()
    }

    /// The server has given the session an id.
    pub(super) fn has_session_id(&self) -> bool {
        self.streamable.has_session_id()
    }

    /// As in [`Streamable::limited`].
    pub(super) fn limited(&self) -> Option<u16> {
        self.streamable.limited()
    }

    /// The requests whose answer is not awaited where they were sent.
    pub(super) fn unheard(&self) -> Unheard {
        self.streamable.unheard.clone()
    }
}

fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), McpError> {
    let wrong = || McpError::Header { name: name.to_owned() };
    let parsed: HeaderName = name.parse().map_err(|_| wrong())?;
    if RESERVED.contains(&parsed.as_str()) {
        return Err(wrong());
    }
    let value = expand_text(value)?.ok_or_else(wrong)?;
    let mut value: HeaderValue = value.parse().map_err(|_| wrong())?;
    value.set_sensitive(true);
    Ok((parsed, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcprl_base::error::Diagnostic;

    #[test]
    fn variables_of_headers_and_of_the_address_are_replaced_and_never_shown() {
        let path = std::env::var("PATH").unwrap();
        let (_, sent) = header("x-key", "Bearer ${PATH}").unwrap();
        assert_eq!(sent.to_str().unwrap(), format!("Bearer {path}"));
        let none: [(&str, &str); 0] = [];
        let reached = endpoint("https://example.com/mcp?key=${PATH}", &Token::Stored, none).unwrap();
        assert_eq!(reached.url.query_pairs().next().unwrap().1, path);
        let refused = endpoint("http://example.com/mcp?key=${PATH}", &Token::Stored, none).err().unwrap();
        assert_eq!(refused.code(), "mcp::url", "it would be sent unencrypted");
        assert!(refused.to_string().contains("${PATH}"), "{refused}");
        let unset =
            endpoint("https://example.com/mcp", &Token::Stored, [("x-key", "${NO_SUCH_KEY}")]).err().unwrap();
        assert_eq!(unset.code(), "mcp::unset_variable");
    }

    #[test]
    fn a_header_that_cannot_be_sent_is_named() {
        let error = header("x y", "1").unwrap_err();
        assert_eq!(error.to_string(), "the header `x y` cannot be sent");
        assert!(header("x-key", "secret\n").is_err());
        assert!(header("Mcp-Session-Id", "1").is_err());
        assert!(header("x-key", "secret").unwrap().1.is_sensitive());
    }
}
