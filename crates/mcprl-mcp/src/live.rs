//! A connection to a server.
//!
//! A call ends with an answer, which the model may read, or with a failure of the connection, which is not a result of
//! the call:
//!
//! | response | treated as |
//! |---|---|
//! | a JSON-RPC result or error | an answer |
//! | a result that asks for input (elicitation, sampling) | refused or answered (`input.rs`), and the request sent again; an answer after ten rounds, or where a refusal cannot be expressed |
//! | an answer that cannot be read, or is over the size limit | an answer with our text |
//! | nothing within `call_timeout`, and the server is still reachable | an answer with our text; after the third in a row the session is lost |
//! | HTTP 401, 403, 407, 408, 429, 502, 503, 504 | [`McpError::Refused`] or [`McpError::RateLimited`]: no tool has answered |
//! | HTTP 401, and no other token | [`McpError::NoToken`] |
//! | any other HTTP status, a body that is not JSON-RPC, a connection that broke, a process that ended | [`McpError::Lost`] |
//! | an empty 202, or a stream that ended, and nothing afterwards (`unheard.rs`) | [`McpError::Lost`] |
//! | an error of a server that has forgotten the session (`forgotten.rs`) | [`McpError::Lost`]; in a read-only session, the request is sent again in a new one |
//!
//! Any request that gets HTTP 429, or 503 with `Retry-After`, is sent again after the time that the server asks for, if
//! that takes no more than a minute in all. A call that got 503 may have reached its tool, so it is sent again only to a server
//! whose state no call changes.

use crate::offered::{ServerInfo, Tool};
use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    time::Duration,
};

use futures::future::BoxFuture;
use rmcp::{
    RoleClient, ServiceError,
    model::{
        CallToolRequest, CallToolRequestParams, CancelledNotificationParam, ClientRequest, ErrorCode,
        GetPromptRequest, GetPromptRequestParams, PaginatedRequestParams, ReadResourceRequest,
        ReadResourceRequestParams, RequestId, RequestOptionalParam, ServerPeerInfo,
    },
    service::{PeerRequestOptions, RunningService},
};
use serde_json::{Map, Value};
use tokio::{
    runtime::Handle,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::task::TaskTracker;

use super::{
    McpError, ServerSpec, State, exposed,
    failure::{Cause, Failure, RateLimit, Refusal},
    handshake::{self, Client, Connection},
    listing::{self, Description},
    outcome::WholeResult,
    process::Process,
    scratch::Scratch,
    tools,
    unheard::{Unheard, Waits},
    untrusted::{Redaction, Untrusted},
};

/// Consecutive unanswered calls after which a session is lost.
const UNANSWERED: u32 = 3;
/// Added to a request's timeout, in case the server does not read its stdin.
const STUCK: Duration = Duration::from_secs(2);
/// How often a server may ask for input in the results of one request.
const INPUT_ROUNDS: usize = 10;
/// How often a list is read again if it changes while it is read.
const LIST_READS: usize = 3;
/// How long a server that announces changes may list no tools before it announces some.
const FIRST_TOOLS: Duration = Duration::from_secs(5);
/// How long it announces no more once it has them.
const QUIET: Duration = Duration::from_secs(1);

/// A connection to the server. Calls may overlap. On drop the connection closes and a child process ends.
pub(super) struct LiveSession {
    // Declared before the process: dropping it closes the process's stdin, which tells it to exit.
    service: RunningService<RoleClient, Client>,
    process: Option<Process>,
    spec: ServerSpec,
    /// As in [`ServerInfo`].
    transport: &'static str,
    redaction: Redaction,
    unheard: Unheard,
    /// Declared after the process, which uses it.
    scratch: Scratch,
    /// Consecutive calls that were not answered in time.
    unanswered: AtomicU32,
    /// A call was lost; no further call is sent.
    is_lost: AtomicBool,
    /// Requests without an answer: those under way, and those that were dropped or timed out, which the server may still be
    /// at work on.
    open: AtomicUsize,
    /// Cancellations on their way to the server.
    cancellations: TaskTracker,
}

/// How a call ended.
pub(super) enum Reply {
    /// The server's answer.
    Answer(WholeResult),
    /// There is none, and the session goes on: mcprl's text for the model.
    Missing(String),
}

impl Reply {
    /// What the model gets.
    pub(super) fn into_answer(self) -> WholeResult {
        match self {
            Self::Answer(answer) => answer,
            Self::Missing(text) => WholeResult::failed(text),
        }
    }
}

impl LiveSession {
    /// Starts the server or connects to it, and performs the handshake. With `newest`, only that of the newest revision.
    pub(super) async fn connect(spec: &ServerSpec, newest: bool) -> Result<Self, McpError> {
        let (Connection { service, process, transport, redaction, unheard }, scratch) =
            handshake::connect(spec, newest).await?;
        Ok(Self {
            service,
            process,
            spec: spec.clone(),
            transport,
            redaction,
            unheard,
            scratch,
            unanswered: AtomicU32::new(0),
            is_lost: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            cancellations: TaskTracker::new(),
        })
    }

    /// Everything that the server offers, as of now, and notes on what was repaired or dropped.
    pub(super) async fn describe(&self) -> Result<(Description, Vec<String>), McpError> {
        let info = self.service.peer_info();
        let (tools, mut notes) = self.tools().await?;
        let offers = info.as_ref().map(|info| info.capabilities.clone()).unwrap_or_default();
        let (mut resources, mut resource_templates, mut prompts) = (Vec::new(), Vec::new(), Vec::new());
        if offers.resources.is_some() {
            resources = listing::resources(&self.list("resources", list_resources, &mut notes).await?);
            let listed = self.list("resourceTemplates", list_resource_templates, &mut notes).await?;
            resource_templates = listing::resource_templates(&listed);
        }
        if offers.prompts.is_some() {
            let list_prompts = |params| ClientRequest::ListPromptsRequest(paged(params));
            prompts = listing::prompts(&self.list("prompts", list_prompts, &mut notes).await?);
        }
        let server = server_row(info.as_deref(), self.transport, &tools, &self.redaction);
        Ok((Description { server, tools, resources, resource_templates, prompts }, notes))
    }

    /// All pages of a list, within `start_timeout`.
    async fn list(
        &self,
        field: &'static str,
        request: fn(Option<PaginatedRequestParams>) -> ClientRequest,
        notes: &mut Vec<String>,
    ) -> Result<Vec<Untrusted<Value>>, McpError> {
        match self.pages(field, request, self.spec.limits.start_timeout, notes).await {
            Ok(listed) => Ok(listed),
            Err(failure) => Err(self.list_error(field, failure).await),
        }
    }

    /// All pages of a list, within `limit`.
    async fn pages(
        &self,
        field: &'static str,
        request: fn(Option<PaginatedRequestParams>) -> ClientRequest,
        limit: Duration,
        notes: &mut Vec<String>,
    ) -> Result<Vec<Untrusted<Value>>, Failure> {
        let deadline = Instant::now() + limit;
        let ask = |params| self.ask(request(params), deadline.saturating_duration_since(Instant::now()));
        let listed = timeout_at(deadline, listing::all_pages(field, notes, ask)).await;
        listed.unwrap_or_else(|_| Err(Failure::timeout(limit)))
    }

    /// The server's tools and mcprl's `complete_task`, as of now, and notes on what was repaired or dropped.
    pub(super) async fn tools(&self) -> Result<(Vec<Tool>, Vec<String>), McpError> {
        let has_tools = self.service.peer_info().is_none_or(|info| info.capabilities.tools.is_some());
        let changed = &self.service.service().tools_changed;
        let (mut was_empty, mut waited) = (false, false);
        let mut notes = Vec::new();
        let mut listed = Vec::new();
        let deadline = Instant::now() + self.first_tools();
        for read in 1.. {
            if !has_tools {
                break;
            }
            changed.store(false, Ordering::Relaxed);
            notes.clear();
            // A change that could not be listed has yet to be looked at.
            let failed = |_: &McpError| changed.store(true, Ordering::Relaxed);
            listed = self.list("tools", list_tools, &mut notes).await.inspect_err(failed)?;
            was_empty |= listed.is_empty();
            let goes_on = match was_empty {
                false => self.has_changed_tools() && read < LIST_READS,
                // It may still load its tools, and announce them one by one.
                true => {
                    let until =
                        if listed.is_empty() { deadline } else { deadline.min(Instant::now() + QUIET) };
                    let is_announced = self.announced(until).await;
                    // Some announce nothing.
                    is_announced || listed.is_empty() && !std::mem::replace(&mut waited, true)
                }
            };
            if !goes_on {
                break;
            }
        }
        let (tools, repairs) = tools::from_list(&listed);
        notes.extend(repairs);
        Ok((tools, notes))
    }

    /// How long a server that lists no tools may load them.
    fn first_tools(&self) -> Duration {
        let offered = self.service.peer_info().and_then(|info| info.capabilities.tools.clone());
        let announces = offered.is_some_and(|tools| tools.list_changed == Some(true));
        let patience = if announces { FIRST_TOOLS } else { FIRST_TOOLS / 3 };
        patience.min(self.spec.limits.start_timeout)
    }

    /// Whether the server announces a change of its tools before then.
    async fn announced(&self, deadline: Instant) -> bool {
        while self.is_alive() && Instant::now() < deadline {
            if self.has_changed_tools() {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        false
    }

    /// Whether the server has announced a change of its tools since they were last listed.
    pub(super) fn has_changed_tools(&self) -> bool {
        self.service.service().tools_changed.load(Ordering::Relaxed)
    }

    /// Calls a tool by the server's name for it.
    ///
    /// # Errors
    /// If there is no answer: [`McpError::Refused`] or [`McpError::Lost`], see the module documentation.
    pub(super) async fn call(
        &self,
        name: &str,
        arguments: Map<String, Value>,
        limit: Duration,
    ) -> Result<Reply, McpError> {
        let arguments = self.scratch.places().real_arguments(arguments);
        type Read = fn(Untrusted<Value>) -> WholeResult;
        let (request, read): (_, Read) = match self.spec.expose.request(name, &arguments) {
            None => {
                let params = CallToolRequestParams::new(name.to_owned()).with_arguments(arguments);
                (ClientRequest::CallToolRequest(CallToolRequest::new(params)), WholeResult::from_result)
            }
            Some(exposed::Request::Lacking(argument)) => {
                return Ok(Reply::Answer(WholeResult::failed(format!(
                    "the argument `{argument}` is missing"
                ))));
            }
            Some(exposed::Request::ListResources) => {
                let listed = self.list_resources(limit).await;
                return self.reply(listed, limit, WholeResult::of_text).await;
            }
            Some(exposed::Request::ReadResource { uri }) => (read_resource(uri), WholeResult::from_result),
            Some(exposed::Request::GetPrompt { name, arguments }) => {
                let params = GetPromptRequestParams::new(name).with_arguments(arguments);
                (ClientRequest::GetPromptRequest(GetPromptRequest::new(params)), WholeResult::from_prompt)
            }
        };
        let answer = self.ask_with_inputs(request, limit).await;
        self.reply(answer, limit, read).await
    }

    /// The resources and their templates as text.
    async fn list_resources(&self, limit: Duration) -> Result<String, Failure> {
        let deadline = Instant::now() + limit;
        let left = || deadline.saturating_duration_since(Instant::now());
        let mut notes = Vec::new();
        let resources = self.pages("resources", list_resources, left(), &mut notes).await?;
        let templates = self.pages("resourceTemplates", list_resource_templates, left(), &mut notes).await?;
        Ok(exposed::listed(&listing::resources(&resources), &listing::resource_templates(&templates)))
    }

    /// How a request that may take this long ended.
    async fn reply<T>(
        &self,
        answer: Result<T, Failure>,
        limit: Duration,
        read: impl FnOnce(T) -> WholeResult,
    ) -> Result<Reply, McpError> {
        if !matches!(answer, Err(Failure { cause: Cause::Timeout, .. })) {
            self.unanswered.store(0, Ordering::Relaxed);
        }
        let failure = match answer {
            Ok(result) => return Ok(Reply::Answer(read(result))),
            Err(failure) => failure,
        };
        let is_lost = self.has_lost(&failure);
        match failure.cause {
            Cause::Error(_, text) => Ok(Reply::Answer(WholeResult::failed(text))),
            Cause::Timeout => {
                let unanswered = self.unanswered.fetch_add(1, Ordering::Relaxed) + 1;
                if unanswered >= UNANSWERED {
                    return Err(self.lost(format!("{unanswered} calls in a row got no answer")).await);
                }
                // Over HTTP, an answer that broke off looks like a slow one. A cheap request shows whether the server is lost.
                if let Err(failure) = self.ask_once(list_tools(None), STUCK).await
                    && self.has_lost(&failure)
                {
                    return Err(self.lost(failure.reason).await);
                }
                Ok(Reply::Missing(format!("the tool did not answer within {limit:?}")))
            }
            Cause::Refused(Refusal {
                status: status @ (401 | 403 | 407 | 408 | 429 | 502..=504),
                challenge,
                ..
            }) => Err(match status {
                429 => McpError::RateLimited { server: self.server() },
                _ => McpError::Refused { server: self.server(), status, challenge },
            }),
            Cause::NoToken(no_token) => Err(no_token.into_error(self.server())),
            _ if is_lost => Err(self.lost(failure.reason).await),
            _ => Ok(Reply::Missing(format!("the call failed: {}", failure.reason))),
        }
    }

    /// Arguments of a call without secrets.
    pub(super) fn hide(&self, arguments: Map<String, Value>) -> Map<String, Value> {
        let mut arguments = Value::Object(arguments);
        self.redaction.hide(&mut arguments);
        match arguments {
            Value::Object(arguments) => arguments,
            _ => Map::new(),
        }
    }

    /// Bytes of memory of a child process and everything it started, as far as the system reports them.
    pub(super) fn memory(&self) -> Option<usize> {
        self.process.as_ref()?.descendants.memory()
    }

    /// Whether the session can still answer calls.
    pub(super) fn is_alive(&self) -> bool {
        !self.is_lost.load(Ordering::Relaxed)
            && !self.service.is_closed()
            && !self.service.is_transport_closed()
            && self.unanswered.load(Ordering::Relaxed) < UNANSWERED
            && !self.process.as_ref().is_some_and(Process::has_ended)
    }

    /// Whether the server has answered every request, so that nothing of an earlier one can happen later.
    pub(super) fn is_settled(&self) -> bool {
        self.open.load(Ordering::Relaxed) == 0
    }

    /// Closes the connection. Returns when a child process and everything it started has ended.
    pub(super) fn close(self) -> BoxFuture<'static, ()> {
        let Self { mut service, process, scratch, cancellations, .. } = self;
        Box::pin(async move {
            cancellations.close();
            let _ = timeout(STUCK, cancellations.wait()).await;
            let _ = service.close_with_timeout(STUCK).await;
            drop(service);
            if let Some(process) = process {
                process.end().await;
            }
            scratch.end().await;
        })
    }

    /// Sends a request, again with the answers where the server asks for input in its result: calls of tools, reads of
    /// resources and prompts can be answered so.
    async fn ask_with_inputs(
        &self,
        mut request: ClientRequest,
        limit: Duration,
    ) -> Result<Untrusted<Value>, Failure> {
        let deadline = Instant::now() + limit;
        for _ in 0..INPUT_ROUNDS {
            let left = deadline.saturating_duration_since(Instant::now());
            let result = self.ask(request.clone(), left).await?;
            let Some(answers) = self.spec.inputs.answers(result.for_server()) else { return Ok(result) };
            let (responses, state) = match &mut request {
                ClientRequest::CallToolRequest(CallToolRequest { params, .. }) => {
                    (&mut params.input_responses, &mut params.request_state)
                }
                ClientRequest::ReadResourceRequest(ReadResourceRequest { params, .. }) => {
                    (&mut params.input_responses, &mut params.request_state)
                }
                ClientRequest::GetPromptRequest(GetPromptRequest { params, .. }) => {
                    (&mut params.input_responses, &mut params.request_state)
                }
                _ => return Ok(result),
            };
            *responses = Some(answers).filter(|answers| !answers.is_empty());
            *state = result.text("requestState").map(|state| (*state.for_server()).to_owned());
        }
        let reason = format!("the server asked for input {INPUT_ROUNDS} times, which is not given here");
        Err(Failure { cause: Cause::Error(ErrorCode::INTERNAL_ERROR, reason.clone()), reason })
    }

    /// As messages name it.
    fn server(&self) -> String {
        self.spec.transport.to_string()
    }

    /// Sends a request, again where the server limits their rate, and returns the result as JSON of any shape.
    async fn ask(&self, request: ClientRequest, limit: Duration) -> Result<Untrusted<Value>, Failure> {
        let mut rate_limit = RateLimit::new();
        let may_write =
            matches!(request, ClientRequest::CallToolRequest(_)) && self.spec.state != State::ReadOnly;
        loop {
            let answer = self.ask_once(request.clone(), limit).await;
            let asked = match &answer {
                Err(Failure { cause: Cause::Refused(refusal), .. })
                    if !(may_write && refusal.status == 503) =>
                {
                    refusal.rate_limit
                }
                _ => None,
            };
            let Some(wait) = asked.and_then(|asked| rate_limit.wait(asked, None)) else { return answer };
            tokio::time::sleep(wait).await;
        }
    }

    fn ask_once(
        &self,
        request: ClientRequest,
        limit: Duration,
    ) -> BoxFuture<'_, Result<Untrusted<Value>, Failure>> {
        Box::pin(async move {
            let mut id = None;
            let exchange = async {
                let options = PeerRequestOptions::with_timeout(limit);
                let mut open = OpenRequest::of(self);
                let result = match self.service.send_request_with_option(request, options).await {
                    Ok(handle) => {
                        id = Some(handle.id.clone());
                        open.id = Some(handle.id.clone());
                        handle.await_response().await
                    }
                    Err(error) => Err(error),
                };
                open.end(&result);
                serde_json::to_value(result?).map_err(|_| ServiceError::UnexpectedResponse)
            };
            let failure = match timeout(limit + STUCK, exchange).await {
                Ok(Ok(answer)) => return Ok(Untrusted::new(answer, &self.redaction)),
                Ok(Err(error)) => Failure::of(&error, &self.redaction),
                Err(_) => Failure::timeout(limit),
            };
            // An error that comes while the request still waits is none of the server's.
            let waits = id.and_then(|id| self.unheard.remove(&id));
            let is_broken_off = matches!(
                (waits, &failure.cause),
                (Some(Waits::Elsewhere(_)), Cause::Timeout) | (Some(_), Cause::Error(..))
            );
            Err(if is_broken_off { Failure::broken_off() } else { failure })
        })
    }

    /// Whether the connection failed, and not the request alone.
    fn has_lost(&self, failure: &Failure) -> bool {
        match failure.cause {
            Cause::Error(..) | Cause::Timeout => false,
            Cause::Refused(_) | Cause::NoToken(_) | Cause::Closed | Cause::Broken | Cause::Unexpected => true,
        }
    }

    async fn lost(&self, reason: String) -> McpError {
        self.is_lost.store(true, Ordering::Relaxed);
        McpError::Lost {
            server: self.server(),
            reason,
            output: Process::output_of(self.process.as_ref()).await,
        }
    }

    async fn list_error(&self, what: &'static str, failure: Failure) -> McpError {
        let of_list = |reason| McpError::List { server: self.server(), what, reason };
        match failure.cause {
            Cause::Closed => self.lost(failure.reason).await,
            Cause::Timeout => of_list(format!("not complete within {:?}", self.spec.limits.start_timeout)),
            Cause::Refused(refusal) => {
                let has_token = self.redaction.has_token();
                refusal.denial(&self.server(), has_token).unwrap_or_else(|| of_list(failure.reason))
            }
            Cause::NoToken(no_token) => no_token.into_error(self.server()),
            Cause::Error(..) | Cause::Broken | Cause::Unexpected => of_list(failure.reason),
        }
    }
}

/// A request under way. If it is dropped before it ends, it is cancelled.
struct OpenRequest<'s> {
    session: &'s LiveSession,
    /// Once it is sent, until it has ended.
    id: Option<RequestId>,
}

impl<'s> OpenRequest<'s> {
    fn of(session: &'s LiveSession) -> Self {
        session.open.fetch_add(1, Ordering::Relaxed);
        Self { session, id: None }
    }

    /// A timeout is no answer; rmcp cancels such a request itself.
    fn end<T>(mut self, result: &Result<T, ServiceError>) {
        self.id = None;
        if !matches!(result, Err(ServiceError::Timeout { .. })) {
            self.session.open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        let (Some(id), Ok(runtime)) = (self.id.take(), Handle::try_current()) else { return };
        let peer = self.session.service.peer().clone();
        let cancelled =
            CancelledNotificationParam::new(Some(id), Some("the client has stopped waiting".into()));
        let cancel = async move {
            let _ = peer.notify_cancelled(cancelled).await;
        };
        self.session.cancellations.spawn_on(cancel, &runtime);
    }
}

fn read_resource(uri: impl Into<String>) -> ClientRequest {
    ClientRequest::ReadResourceRequest(ReadResourceRequest::new(ReadResourceRequestParams::new(uri)))
}

/// The request for a page of a list.
fn paged<M: Default>(
    params: Option<PaginatedRequestParams>,
) -> RequestOptionalParam<M, PaginatedRequestParams> {
    RequestOptionalParam { method: M::default(), params, extensions: Default::default() }
}

fn list_tools(params: Option<PaginatedRequestParams>) -> ClientRequest {
    ClientRequest::ListToolsRequest(paged(params))
}

fn list_resources(params: Option<PaginatedRequestParams>) -> ClientRequest {
    ClientRequest::ListResourcesRequest(paged(params))
}

fn list_resource_templates(params: Option<PaginatedRequestParams>) -> ClientRequest {
    ClientRequest::ListResourceTemplatesRequest(paged(params))
}

/// The server's row for the `server` table.
fn server_row(
    info: Option<&ServerPeerInfo>,
    transport: &str,
    tools: &[Tool],
    redaction: &Redaction,
) -> ServerInfo {
    let shown = |text: &str| Untrusted::new(text, redaction).bounded();
    let identity = info.and_then(|info| info.server_info.as_ref());
    let capabilities = info.and_then(|info| serde_json::to_value(&info.capabilities).ok());
    ServerInfo {
        name: identity.map(|server| shown(&server.name)).unwrap_or_default(),
        version: identity.map(|server| shown(&server.version)).unwrap_or_default(),
        protocol: info.map(|info| info.protocol_version.as_str().to_owned()).unwrap_or_default(),
        transport: transport.into(),
        instructions: info.and_then(|info| info.instructions.as_deref()).map(shown),
        capabilities: capabilities
            .map(|value| Untrusted::new(value, redaction).schema())
            .unwrap_or_default()
            .to_string(),
        tools_digest: tools::tools_digest(tools).to_string(),
    }
}
