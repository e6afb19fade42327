//! The older HTTP+SSE transport of MCP 2024-11-05.
//!
//! One long GET carries every message of the server. Its first event, `endpoint`, names the address to which messages are
//! posted. That address must have the origin of the GET, because it gets the same token and headers. The session ends with
//! the stream, which cannot be resumed.

use std::future::Future;

use futures::{StreamExt, stream::BoxStream};
use reqwest::{Url, header::ACCEPT};
use rmcp::{
    RoleClient,
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    transport::{
        Transport, common::http_header::EVENT_STREAM_MIME_TYPE, streamable_http_client::StreamableHttpError,
    },
};

use super::{
    correlator::Correlator,
    events::{self, Event},
    failure::Refusal,
    http_client::{self, Error, Headers, HttpClient},
};

/// Events that may come before `endpoint`.
const EARLY_EVENTS: usize = 100;

pub(super) struct SseTransport {
    client: HttpClient,
    endpoint: Url,
    headers: Headers,
    /// `None` once closed.
    events: Option<BoxStream<'static, Result<Event, reqwest::Error>>>,
    correlator: Correlator,
}

impl SseTransport {
    /// Opens the stream and waits for the endpoint; `None` if the server offers neither.
    pub(super) async fn open(
        client: &HttpClient,
        url: &Url,
        headers: &Headers,
    ) -> Result<Option<Self>, Error> {
        let request = client.client.get(url.clone()).header(ACCEPT, EVENT_STREAM_MIME_TYPE);
        let response = client.send(http_client::with(request, headers.clone())).await?;
        if let Some(error) = http_client::refusal(&response) {
            let is_limited = Refusal::of(&error).is_some_and(|refusal| refusal.rate_limit.is_some());
            return if is_limited { Err(error) } else { Ok(None) };
        }
        let is_stream =
            http_client::content_type(&response).is_some_and(|kind| kind.starts_with(EVENT_STREAM_MIME_TYPE));
        if !response.status().is_success() || !is_stream {
            return Ok(None);
        }
        let mut events = events::of(response).boxed();
        for _ in 0..EARLY_EVENTS {
            let Some(Ok(event)) = events.next().await else { return Ok(None) };
            if let Some(address) = event.other("endpoint") {
                let endpoint = endpoint(url, address.trim())
                    .map_err(|reason| StreamableHttpError::UnexpectedServerResponse(reason.into()))?;
                let (client, headers) = (client.clone(), headers.clone());
                return Ok(Some(Self {
                    client,
                    endpoint,
                    headers,
                    events: Some(events),
                    correlator: Correlator::of_connection(),
                }));
            }
        }
        Ok(None)
    }
}

/// The address to post to.
fn endpoint(url: &Url, address: &str) -> Result<Url, String> {
    let joined =
        url.join(address).map_err(|error| format!("the endpoint that it names is no address: {error}"))?;
    match joined.origin() == url.origin() {
        true => Ok(joined),
        false => Err(format!("the endpoint that it names is at another origin: {joined}")),
    }
}

impl Transport<RoleClient> for SseTransport {
    type Error = Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        self.correlator.sent(&message);
        let request = self.client.client.post(self.endpoint.clone());
        let request = http_client::with(request, self.headers.clone()).json(&message);
        let client = self.client.clone();
        async move {
            let response = client.send(request).await?;
            match http_client::refusal(&response) {
                Some(error) => Err(error),
                None if response.status().is_success() => Ok(()),
                None => Err(http_client::unexpected(response.status(), response).await),
            }
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            let event = self.events.as_mut()?.next().await?.ok()?;
            if let Some(message) = self.correlator.received(event.message()) {
                return Some(message);
            }
        }
    }

    async fn close(&mut self) -> Result<(), Error> {
        self.events = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_posted_to_the_origin_of_the_stream_only() {
        let check = |address: &str, expected: Option<&str>| {
            let found = endpoint(&"https://a.b:8/sse?key=1".parse().unwrap(), address).ok();
            assert_eq!(found.as_ref().map(Url::as_str), expected, "{address}");
        };
        check("/messages/?session_id=1", Some("https://a.b:8/messages/?session_id=1"));
        check("messages", Some("https://a.b:8/messages"));
        check("https://a.b:8/m", Some("https://a.b:8/m"));
        for other in [
            "https://a.b/m",
            "http://a.b:8/m",
            "//evil.example/m",
            "https://a.b:8@evil.example/m",
            "https://[",
        ] {
            check(other, None);
        }
    }
}
