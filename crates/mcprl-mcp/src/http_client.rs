//! Requests over HTTP, and what is answered to a message that is posted.
//!
//! Every request carries the token, which is renewed once if the server rejects it. rmcp's own client forgets the body of
//! an answer that it cannot read and the reason of a refusal, so responses are read here. What a status means is as in rmcp. Errors have the server's texts as they are: `failure.rs` makes them fit to
//! be shown.

use std::{borrow::Cow, collections::HashMap, sync::Arc, time::Duration};

use futures::StreamExt;
use parking_lot::Mutex;
use reqwest::{
    RequestBuilder, Response, StatusCode, Url, Version,
    header::{
        CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION, RETRY_AFTER, TRANSFER_ENCODING,
        WWW_AUTHENTICATE,
    },
};
use rmcp::{
    model::{ClientJsonRpcMessage, ClientRequest, ErrorData, RequestId, ServerJsonRpcMessage},
    transport::{
        common::http_header::{EVENT_STREAM_MIME_TYPE, HEADER_SESSION_ID, JSON_MIME_TYPE},
        streamable_http_client::{
            AuthRequiredError, HttpStatusError, InsufficientScopeError, StreamableHttpError,
            StreamableHttpPostResponse,
        },
    },
};
use tokio::time::timeout;

use super::{
    correlator::Correlator,
    events,
    message::{self, Buffer, Incoming},
    oauth::Access,
    unheard::{Awaited, Unheard},
};

/// How much of a refusal is read.
const REFUSAL_BYTES: usize = 64 << 10;
/// How long a body that nobody needs is read, so that its connection can be used again.
pub(super) const REST_TIMEOUT: Duration = Duration::from_secs(1);
/// Redirects of one request that are followed.
const REDIRECTS: usize = 5;
pub(super) const ACCEPTED_TYPES: &str = "text/event-stream, application/json";

/// How the error of a successful status begins whose body is no message.
pub(super) const NO_MESSAGE: &str = "the answer is ";

pub(super) type Error = StreamableHttpError<reqwest::Error>;
pub(super) type Headers = HashMap<HeaderName, HeaderValue>;

#[derive(Clone)]
pub(super) struct HttpClient {
    pub(super) client: reqwest::Client,
    pub(super) access: Arc<Access>,
    /// The address that the server has redirected another one to.
    pub(super) moved: Arc<Mutex<Option<(Url, Url)>>>,
}

impl HttpClient {
    /// Sends a request with the token, to where the server redirects it within its origin. A token that the server rejects is
    /// renewed once, where that is possible.
    pub(super) async fn send(&self, request: RequestBuilder) -> Result<Response, Error> {
        let mut request = request;
        for _ in 0..REDIRECTS {
            let again = request.try_clone();
            let (response, url) = self.send_once(request).await?;
            let status = response.status();
            if !status.is_redirection() || status == StatusCode::NOT_MODIFIED {
                return Ok(response);
            }
            let location = header(&response, LOCATION).unwrap_or_default();
            finish(response);
            let is_kept = matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
            let next = url.join(&location).ok().filter(|next| is_kept && next.origin() == url.origin());
            match (next, again) {
                (Some(next), Some(again)) if next != url => {
                    *self.moved.lock() = Some((url, next));
                    request = again;
                }
                _ => {
                    let text = format!("HTTP {status}: it redirects to {location}");
                    return Err(StreamableHttpError::UnexpectedServerResponse(text.into()));
                }
            }
        }
        Err(StreamableHttpError::UnexpectedServerResponse("it redirects again and again".into()))
    }

    /// Sends a request, to where its address has moved. Returns that address, too.
    async fn send_once(&self, request: RequestBuilder) -> Result<(Response, Url), Error> {
        let mut request = request.build()?;
        let mut url = request.url().clone();
        if let Some((from, to)) = &*self.moved.lock()
            && *from == url
        {
            url = to.clone();
            *request.url_mut() = url.clone();
        }
        let request = RequestBuilder::from_parts(self.client.clone(), request);
        Ok((self.send_authorized(request).await?, url))
    }

    async fn send_authorized(&self, request: RequestBuilder) -> Result<Response, Error> {
        let again = request.try_clone();
        let token = self.access.token();
        let response = authorized(request, token.as_deref()).send().await?;
        let Some(again) = again.filter(|_| response.status() == StatusCode::UNAUTHORIZED) else {
            return Ok(response);
        };
        let challenge = header(&response, WWW_AUTHENTICATE);
        match self.access.renewed(token, challenge).await? {
            Some(token) => {
                finish(response);
                Ok(authorized(again, Some(&token)).send().await?)
            }
            None => Ok(response),
        }
    }
}

fn authorized(request: RequestBuilder, token: Option<&str>) -> RequestBuilder {
    match token {
        Some(token) => request.bearer_auth(token),
        None => request,
    }
}

pub(super) fn with(request: RequestBuilder, headers: Headers) -> RequestBuilder {
    headers.into_iter().fold(request, |request, (name, value)| request.header(name, value))
}

fn header(response: &Response, name: impl reqwest::header::AsHeaderName) -> Option<String> {
    let value = response.headers().get(name)?;
    Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
}

pub(super) fn content_type(response: &Response) -> Option<String> {
    header(response, CONTENT_TYPE).map(|kind| kind.to_ascii_lowercase())
}

/// A refusal that its status and headers describe completely.
pub(super) fn refusal(response: &Response) -> Option<Error> {
    let status = response.status();
    let is_json = content_type(response).is_some_and(|kind| kind.starts_with(JSON_MIME_TYPE));
    match (status, header(response, WWW_AUTHENTICATE)) {
        (StatusCode::UNAUTHORIZED, Some(challenge)) => {
            Some(StreamableHttpError::AuthRequired(AuthRequiredError::new(challenge)))
        }
        (StatusCode::FORBIDDEN, Some(challenge)) => {
            Some(StreamableHttpError::InsufficientScope(InsufficientScopeError::new(challenge, None)))
        }
        _ if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() && !is_json => {
            Some(status_error(response))
        }
        _ => None,
    }
}

fn status_error(response: &Response) -> Error {
    HttpStatusError::new(response.status().as_u16(), header(response, RETRY_AFTER)).into()
}

/// A refusal with the text that came with it.
pub(super) async fn unexpected(status: StatusCode, response: Response) -> Error {
    let body = beginning(response).await;
    refused(status, &body)
}

fn refused(status: StatusCode, body: &[u8]) -> Error {
    let text = String::from_utf8_lossy(body);
    let text = text.trim();
    let text = if text.is_empty() { format!("HTTP {status}") } else { format!("HTTP {status}: {text}") };
    StreamableHttpError::UnexpectedServerResponse(Cow::Owned(text))
}

async fn beginning(mut response: Response) -> Vec<u8> {
    let mut body = Vec::new();
    while body.len() < REFUSAL_BYTES
        && let Ok(Some(bytes)) = response.chunk().await
    {
        body.extend_from_slice(&bytes);
    }
    if body.len() > REFUSAL_BYTES {
        body.truncate(REFUSAL_BYTES);
        body.extend("…".bytes());
    }
    body
}

/// Reads the rest of a body that nobody needs: a connection is used again only after its end.
pub(super) fn finish(response: Response) {
    tokio::spawn(timeout(REST_TIMEOUT, beginning(response)));
}

/// What a message is answered with. A stream that ends before its answer makes an `unheard` one of the request.
pub(super) async fn read_response(
    mut response: Response,
    message: &ClientJsonRpcMessage,
    had_session: bool,
    unheard: &Unheard,
) -> Result<StreamableHttpPostResponse, Error> {
    let request = match message {
        ClientJsonRpcMessage::Request(request) => Some(request),
        _ => None,
    };
    let status = response.status();
    if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
        finish(response);
        return Ok(StreamableHttpPostResponse::Accepted);
    }
    if status == StatusCode::NOT_FOUND && had_session {
        return Err(StreamableHttpError::SessionExpired);
    }
    if let Some(error) = refusal(&response) {
        finish(response);
        return Err(error);
    }
    let session = header(&response, HEADER_SESSION_ID);
    let kind = content_type(&response);
    let is_json = kind.as_deref().is_some_and(|kind| kind.starts_with(JSON_MIME_TYPE));
    if !status.is_success() {
        let of_status = status.is_server_error().then(|| status_error(&response));
        let body = beginning(response).await;
        let is_denied = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        if let Some(request) = request.filter(|_| !is_denied) {
            let error = is_json.then(|| json_rpc_error(&body)).flatten();
            let is_probe = matches!(request.request, ClientRequest::DiscoverRequest(_));
            let error = match error {
                // Without a JSON-RPC error, it is the older revision's way to refuse the newest handshake.
                None if is_probe && !had_session && status.is_client_error() => {
                    Some(ErrorData::invalid_request(refused(status, &body).to_string(), None))
                }
                error => error,
            };
            if let Some(error) = error {
                let error = ServerJsonRpcMessage::error(error, Some(request.id.clone()));
                return Ok(StreamableHttpPostResponse::Json(error, session));
            }
        }
        return Err(of_status.unwrap_or_else(|| refused(status, &body)));
    }
    if kind.as_deref().is_some_and(|kind| kind.starts_with(EVENT_STREAM_MIME_TYPE)) {
        let awaited = Awaited::new(request.map(|request| request.id.clone()), None, unheard);
        return Ok(StreamableHttpPostResponse::Sse(events::of_response(response, awaited).boxed(), session));
    }
    // Nothing is expected back for a notification.
    let Some(request) = request else {
        finish(response);
        return Ok(StreamableHttpPostResponse::Accepted);
    };
    if !is_json {
        let body = beginning(response).await;
        let text = String::from_utf8_lossy(&body);
        let kind = kind.as_deref().unwrap_or("of no type");
        let text = format!("{NO_MESSAGE}{kind}, not JSON: {text}");
        return Err(StreamableHttpError::UnexpectedServerResponse(text.into()));
    }
    let has_length = response.version() > Version::HTTP_11
        || [CONTENT_LENGTH, TRANSFER_ENCODING].iter().any(|name| response.headers().contains_key(name));
    let mut body = Buffer::default();
    while let Some(bytes) = response.chunk().await? {
        body.push(&bytes);
    }
    if !has_length && body.is_cut_off() {
        let text = "the connection ended in the middle of the answer";
        return Err(StreamableHttpError::UnexpectedServerResponse(text.into()));
    }
    match answer(&body, &request.id) {
        Some(answer) => Ok(StreamableHttpPostResponse::Json(answer, session)),
        None => {
            let text = String::from_utf8_lossy(body.bytes());
            let text = format!("{NO_MESSAGE}not a JSON-RPC message: {text}");
            Err(StreamableHttpError::UnexpectedServerResponse(text.into()))
        }
    }
}

/// The answer that a body holds; `None` if it is no JSON-RPC message.
fn answer(body: &Buffer, asked: &RequestId) -> Option<ServerJsonRpcMessage> {
    let incoming = body.read();
    let reason = match &incoming {
        Incoming::Noise => return None,
        Incoming::Message(ServerJsonRpcMessage::Response(response)) => {
            format!("it answers the request {} instead of {asked}", response.id)
        }
        _ => "it is a message of another kind".to_owned(),
    };
    let answer = Correlator::of_request(asked.clone()).received(incoming);
    let is_answer = |message: &ServerJsonRpcMessage| {
        matches!(message, ServerJsonRpcMessage::Response(_) | ServerJsonRpcMessage::Error(_))
    };
    Some(answer.filter(is_answer).unwrap_or_else(|| message::unreadable(asked.clone(), &reason)))
}

fn json_rpc_error(body: &[u8]) -> Option<ErrorData> {
    let mut buffer = Buffer::default();
    buffer.push(body);
    match buffer.read() {
        Incoming::Message(ServerJsonRpcMessage::Error(error)) => Some(error.error),
        _ => None,
    }
}
