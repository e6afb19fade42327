//! Streamable HTTP as rmcp wants it: messages that are posted, streams that are read, and sessions that a server may forget.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU16, Ordering},
    },
    time::Duration,
};

use futures::{
    StreamExt, future,
    stream::{self, BoxStream},
};
use parking_lot::Mutex;
use reqwest::{
    StatusCode,
    header::{ACCEPT, HeaderName},
};
use rmcp::{
    model::{
        ClientJsonRpcMessage, ClientNotification, ClientRequest, ProtocolVersion, RequestId,
        ServerJsonRpcMessage,
    },
    transport::{
        common::http_header::{EVENT_STREAM_MIME_TYPE, HEADER_LAST_EVENT_ID, HEADER_SESSION_ID},
        streamable_http_client::{
            SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
        },
    },
};
use sse_stream::Sse;
use tokio::time::{sleep, timeout};

use super::{
    events,
    failure::{RateLimit, Refusal},
    forgotten::{self, ErrorSignature, Names, ServerError},
    http_client::{
        self, ACCEPTED_TYPES, Error, Headers, HttpClient, NO_MESSAGE, REST_TIMEOUT, finish, read_response,
        with,
    },
    quirks::ErrorPatterns,
    unheard::{Awaited, Unheard, Waits},
};

const REVISION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// How long it may take to find out whether a server knows a session, and the wait where it limits the rate of requests.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
const PROBE_WAIT: Duration = Duration::from_millis(500);
/// Bytes of the longest page that may say that a session is forgotten.
const PAGE_BYTES: usize = 128 << 10;
/// Errors that are known to be answers.
const KNOWN: usize = 256;

/// A client of one session. Clones share it.
#[derive(Clone)]
pub(super) struct Streamable {
    http: HttpClient,
    errors: ErrorPatterns,
    pub(super) unheard: Unheard,
    state: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The server gave this session an id.
    has_session_id: AtomicBool,
    /// As in [`Streamable::limited`]; 0 if it is none.
    limited: AtomicU16,
    /// The server offers no stream beside those of requests.
    is_without_stream: AtomicBool,
    known: Mutex<HashSet<ErrorSignature>>,
}

impl Streamable {
    pub(super) fn new(http: HttpClient, errors: ErrorPatterns) -> Self {
        Self { http, errors, unheard: Unheard::default(), state: Arc::default() }
    }

    /// The server has given the session an id.
    pub(super) fn has_session_id(&self) -> bool {
        self.state.has_session_id.load(Ordering::Relaxed)
    }

    /// The HTTP status by which the server let no handshake end, because it limits the rate of requests.
    pub(super) fn limited(&self) -> Option<u16> {
        Some(self.state.limited.load(Ordering::Relaxed)).filter(|status| *status > 0)
    }
}

/// Where and as which session a request is posted.
#[derive(Clone, Copy)]
struct Address<'a> {
    url: &'a str,
    session: Option<&'a str>,
    headers: &'a Headers,
}

impl StreamableHttpClient for Streamable {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        url: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        _: Option<String>,
        headers: Headers,
    ) -> Result<StreamableHttpPostResponse, Error> {
        let address = Address { url: &url, session: session.as_deref(), headers: &headers };
        let request = match &message {
            ClientJsonRpcMessage::Request(request) => request,
            ClientJsonRpcMessage::Notification(notification)
                if matches!(notification.notification, ClientNotification::InitializedNotification(_)) =>
            {
                return self.post_initialized(address, &message).await;
            }
            _ => return self.post(address, &message).await,
        };
        let answer = self.post(address, &message).await;
        let answer = self.unless_unanswered(answer, address);
        if matches!(answer, Ok(StreamableHttpPostResponse::Accepted)) {
            self.unheard.insert(request.id.clone(), Waits::Elsewhere(None));
        }
        if let Some(error) = self.error(&answer, address) {
            // Until then, it is no answer.
            self.unheard.insert(request.id.clone(), Waits::Elsewhere(None));
            let is_forgotten = self.is_forgotten(&error, &message, address).await;
            self.unheard.remove(&request.id);
            if is_forgotten {
                return Err(StreamableHttpError::SessionExpired);
            }
        }
        if let ClientRequest::InitializeRequest(_) = request.request
            && let Ok(answer) = &answer
        {
            self.state.has_session_id.store(session_of(answer).is_some(), Ordering::Relaxed);
        }
        answer
    }

    async fn delete_session(
        &self,
        url: Arc<str>,
        session: Arc<str>,
        _: Option<String>,
        headers: Headers,
    ) -> Result<(), Error> {
        let request = self.http.client.delete(&*url).header(HEADER_SESSION_ID, &*session);
        let response = self.http.send(with(request, headers)).await?;
        let status = response.status();
        if status.is_success() {
            finish(response);
            return Ok(());
        }
        match status {
            StatusCode::METHOD_NOT_ALLOWED => Err(StreamableHttpError::ServerDoesNotSupportDeleteSession),
            status => Err(http_client::unexpected(status, response).await),
        }
    }

    async fn get_stream(
        &self,
        url: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        _: Option<String>,
        headers: Headers,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Error> {
        let mut request = self.http.client.get(&*url).header(ACCEPT, ACCEPTED_TYPES);
        if let Some(session) = &session {
            request = request.header(HEADER_SESSION_ID, &**session);
        }
        if let Some(last_event) = &last_event {
            request = request.header(HEADER_LAST_EVENT_ID, last_event);
        }
        let response = self.http.send(with(request, headers)).await?;
        let status = response.status();
        if status == StatusCode::METHOD_NOT_ALLOWED {
            self.state.is_without_stream.store(true, Ordering::Relaxed);
            finish(response);
            return Err(StreamableHttpError::ServerDoesNotSupportSse);
        }
        if let Some(error) = http_client::refusal(&response) {
            finish(response);
            return Err(error);
        }
        match http_client::content_type(&response) {
            Some(kind) if status.is_success() && kind.starts_with(EVENT_STREAM_MIME_TYPE) => {
                let request = last_event.as_deref().and_then(|event| self.unheard.resumed(event));
                let awaited = Awaited::new(request, last_event, &self.unheard);
                Ok(events::of_response(response, awaited).boxed())
            }
            kind if status.is_success() => Err(StreamableHttpError::UnexpectedContentType(kind)),
            _ => Err(http_client::unexpected(status, response).await),
        }
    }
}

impl Streamable {
    async fn post(
        &self,
        Address { url, session, headers }: Address<'_>,
        message: &ClientJsonRpcMessage,
    ) -> Result<StreamableHttpPostResponse, Error> {
        let mut request = self.http.client.post(url).header(ACCEPT, ACCEPTED_TYPES);
        if let Some(session) = session {
            request = request.header(HEADER_SESSION_ID, session);
        }
        let response = self.http.send(with(request, headers.clone()).json(message)).await?;
        let answer = read_response(response, message, session.is_some(), &self.unheard).await?;
        Ok(match message {
            ClientJsonRpcMessage::Request(request) => early(answer, &request.id).await,
            _ => answer,
        })
    }

    /// Posts what ends a handshake, again where the server limits the rate of requests: another handshake would come to the same.
    async fn post_initialized(
        &self,
        address: Address<'_>,
        message: &ClientJsonRpcMessage,
    ) -> Result<StreamableHttpPostResponse, Error> {
        let mut rate_limit = RateLimit::new();
        loop {
            let answer = self.post(address, message).await;
            let refusal = answer
                .as_ref()
                .err()
                .and_then(|error| Refusal::of(error))
                .filter(|one| one.rate_limit.is_some());
            let status = refusal.as_ref().map_or(0, |refusal| refusal.status);
            self.state.limited.store(status, Ordering::Relaxed);
            let wait = refusal.and_then(|refusal| rate_limit.wait(refusal.rate_limit?, None));
            let Some(wait) = wait else { return answer };
            sleep(wait).await;
        }
    }

    /// An error in place of a 202 behind which no answer can come: rmcp opens a stream for sessions with an id alone.
    fn unless_unanswered(
        &self,
        answer: Result<StreamableHttpPostResponse, Error>,
        address: Address<'_>,
    ) -> Result<StreamableHttpPostResponse, Error> {
        let has_stream = address.session.is_some() && !self.state.is_without_stream.load(Ordering::Relaxed);
        match answer {
            Ok(StreamableHttpPostResponse::Accepted) if !has_stream => {
                let text = "HTTP 202 Accepted: the server took the request without an answer, and has no stream for one";
                Err(StreamableHttpError::UnexpectedServerResponse(text.into()))
            }
            answer => answer,
        }
    }

    /// The error that an answer is. One that is none of MCP may say that a session is forgotten, but the words of a page are not
    /// the same each time.
    fn error(
        &self,
        answer: &Result<StreamableHttpPostResponse, Error>,
        address: Address<'_>,
    ) -> Option<ServerError> {
        let error = match answer {
            Ok(StreamableHttpPostResponse::Json(message, _)) => {
                return ServerError::of(message, &self.errors);
            }
            Ok(_) => return None,
            Err(error) => error,
        };
        let wordless =
            |status: u16| address.session.map(|_| ServerError { code: status.into(), text: String::new() });
        match (Refusal::of(error).map(|refusal| refusal.status), error) {
            (Some(status @ (202 | 300..=399 | 401 | 403 | 500)), _) => wordless(status),
            (Some(407 | 408 | 429), _) => None,
            (Some(status @ 400..=499), StreamableHttpError::UnexpectedServerResponse(text)) => {
                Some(ServerError { code: status.into(), text: text.to_string() })
            }
            // A longer one is not asked for twice.
            (None, StreamableHttpError::UnexpectedServerResponse(text))
                if text.starts_with(NO_MESSAGE) && text.len() <= PAGE_BYTES =>
            {
                wordless(200)
            }
            _ => None,
        }
    }

    /// Whether the server has forgotten the session in which it answers with this error (`forgotten.rs`).
    async fn is_forgotten(
        &self,
        error: &ServerError,
        asked: &ClientJsonRpcMessage,
        address: Address<'_>,
    ) -> bool {
        let revision = address.headers.get(&REVISION).and_then(|value| value.to_str().ok());
        // Later revisions have no sessions.
        let Some(revision) =
            revision.filter(|revision| *revision <= ProtocolVersion::LATEST_WITH_INITIALIZE.as_str())
        else {
            return false;
        };
        let Some(probe) = forgotten::probe(asked) else { return false };
        let names = forgotten::names([asked, &probe]);
        let said = ErrorSignature::new(error, &names);
        if self.state.known.lock().contains(&said) {
            return false;
        }
        let found = timeout(PROBE_TIMEOUT, self.find((&said, &names), &probe, address, revision)).await;
        let found = found.ok().flatten().unwrap_or(ErrorScope::Forgotten);
        if found == ErrorScope::OfRequest {
            let mut known = self.state.known.lock();
            if known.len() < KNOWN {
                known.insert(said);
            }
        }
        found == ErrorScope::Forgotten
    }

    /// What kind of error this is. `None` if the server does not answer.
    async fn find(
        &self,
        (said, names): (&ErrorSignature, &Names),
        probe: &ClientJsonRpcMessage,
        address: Address<'_>,
        revision: &str,
    ) -> Option<ErrorScope> {
        let is_same = |error: Option<ServerError>| {
            error.is_some_and(|error| ErrorSignature::new(&error, names) == *said)
        };
        let is_of_nothing = forgotten::is_of_nothing(probe);
        if is_of_nothing && !is_same(self.ask(probe, address).await?) {
            return Some(ErrorScope::OfRequest);
        }
        let session = match timeout(PROBE_TIMEOUT / 2, self.begin(address, probe, revision)).await {
            Ok(Ok(session)) => session,
            // Nobody is let in.
            Ok(Err(Some(error))) if is_same(error.clone()) => return Some(ErrorScope::OfAll),
            // Whoever still gets a list has a session.
            Ok(Err(_)) | Err(_) => {
                let list = self.ask(&forgotten::list(probe)?, address).await?;
                return list.is_none().then_some(ErrorScope::OfRequest);
            }
        };
        let again = self.ask(probe, Address { session: session.as_deref(), ..address }).await;
        if let Some(session) = session {
            let (client, url, headers) = (self.clone(), address.url.into(), address.headers.clone());
            tokio::spawn(async move { client.delete_session(url, session.into(), None, headers).await });
        }
        Some(match is_same(again?) {
            true if is_of_nothing => ErrorScope::OfAll,
            true => ErrorScope::OfRequest,
            false => ErrorScope::Forgotten,
        })
    }

    /// The error that a request is answered with, if it is one. `None` if there is no answer.
    async fn ask(&self, asked: &ClientJsonRpcMessage, address: Address<'_>) -> Option<Option<ServerError>> {
        let answer = self.unless_unanswered(self.post_unlimited(address, asked).await, address);
        let error = self.error(&answer, address);
        let is_answer =
            error.is_some() || !matches!(answer, Ok(StreamableHttpPostResponse::Accepted) | Err(_));
        is_answer.then_some(error)
    }

    /// Posts a message, again as long as the server limits the rate of requests.
    async fn post_unlimited(
        &self,
        address: Address<'_>,
        message: &ClientJsonRpcMessage,
    ) -> Result<StreamableHttpPostResponse, Error> {
        loop {
            let answer = self.post(address, message).await;
            let limited = answer.as_ref().err().and_then(|error| Refusal::of(error)?.rate_limit);
            let Some(wait) = limited else { return answer };
            sleep(wait.unwrap_or_default().max(PROBE_WAIT)).await;
        }
    }

    /// Begins another session with the id of a probe, and returns the session's.
    ///
    /// # Errors
    /// With the error that the server refuses it with; none if there is no answer.
    async fn begin(
        &self,
        address: Address<'_>,
        probe: &ClientJsonRpcMessage,
        revision: &str,
    ) -> Result<Option<String>, Option<Option<ServerError>>> {
        let [initialize, initialized] =
            forgotten::beginning(probe, revision).ok_or(None::<Option<ServerError>>)?;
        let mut headers = address.headers.clone();
        headers.remove(&REVISION);
        let begun =
            self.post_unlimited(Address { session: None, headers: &headers, ..address }, &initialize).await;
        let session = match begun {
            Ok(StreamableHttpPostResponse::Json(ServerJsonRpcMessage::Response(_), session)) => session,
            // As an answer in this session would be read.
            refused => return Err(self.error(&refused, address).map(Some)),
        };
        let begun =
            self.post_unlimited(Address { session: session.as_deref(), ..address }, &initialized).await;
        begun.map(|_| session).map_err(|_| None)
    }
}

/// What kind of error a server answers with.
#[derive(PartialEq, Eq)]
enum ErrorScope {
    /// It is an answer to the request.
    OfRequest,
    /// The server has forgotten the session.
    Forgotten,
    /// Everybody gets it, now.
    OfAll,
}

fn session_of(answer: &StreamableHttpPostResponse) -> Option<&String> {
    match answer {
        StreamableHttpPostResponse::Json(_, session) | StreamableHttpPostResponse::Sse(_, session) => {
            session.as_ref()
        }
        _ => None,
    }
}

/// The answer alone, where it is the first message of a stream.
async fn early(answer: StreamableHttpPostResponse, asked: &RequestId) -> StreamableHttpPostResponse {
    let StreamableHttpPostResponse::Sse(events, session) = answer else { return answer };
    let mut events = events.fuse();
    let mut before = Vec::new();
    while let Some(event) = events.next().await {
        let data =
            event.as_ref().ok().and_then(|event| event.data.as_deref()).filter(|data| !data.is_empty());
        let message = data.and_then(|data| serde_json::from_str::<ServerJsonRpcMessage>(data).ok());
        let is_answer = match &message {
            Some(ServerJsonRpcMessage::Response(response)) => response.id == *asked,
            Some(ServerJsonRpcMessage::Error(error)) => error.id.as_ref() == Some(asked),
            _ => false,
        };
        if let Some(message) = message.filter(|_| is_answer) {
            // A connection is used again only after the stream's end.
            tokio::spawn(timeout(REST_TIMEOUT, events.for_each(|_| future::ready(()))));
            return StreamableHttpPostResponse::Json(message, session);
        }
        let is_last = data.is_some() || event.is_err();
        before.push(event);
        if is_last {
            break;
        }
    }
    StreamableHttpPostResponse::Sse(stream::iter(before).chain(events).boxed(), session)
}
