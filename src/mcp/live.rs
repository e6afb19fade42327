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
//! | HTTP 401, 403, 407, 408, 429, 502, 503, 504 | [`McpError::Refused`]: the call reached no tool |
//! | any other HTTP status, a body that is not JSON-RPC, a connection that broke, a process that ended | [`McpError::Lost`] |
//!
//! Any request that gets HTTP 429, or 503 with `Retry-After`, is sent again after the time that the server asks for, if
//! that takes no more than a minute in all.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use rmcp::{
    RoleClient, ServiceError,
    model::{
        CallToolRequest, CallToolRequestParams, CancelledNotificationParam, ClientRequest, ErrorData,
        GetPromptRequest, GetPromptRequestParams, ListPromptsRequest, ListResourceTemplatesRequest,
        ListResourcesRequest, ListToolsRequest, PaginatedRequestParams, ReadResourceRequest,
        ReadResourceRequestParams, RequestId, ServerPeerInfo,
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
    Limits, McpError, ServerSpec,
    exposed::{self, Expose},
    failure::{self, RateLimit},
    handshake::{self, Client, Connection},
    input::Inputs,
    listing::{self, Description},
    message::BROKEN_OFF_CODE,
    outcome::Answer,
    process::Process,
    redact::Redaction,
    scratch::Scratch,
    tools,
};
use crate::data;

/// Consecutive unanswered calls after which a session is lost.
const UNANSWERED: u32 = 3;
/// Added to a request's timeout, in case the server does not read its stdin.
const STUCK: Duration = Duration::from_secs(2);
/// How often a server may ask for input in the results of one request.
const INPUT_ROUNDS: usize = 10;
/// How often a list is read again if it changes while it is read.
const LIST_READS: usize = 3;

/// A connection to the server. Calls may overlap. On drop the connection closes and a child process ends.
pub(super) struct LiveSession {
    // Declared before the process: dropping it closes the process's stdin, which tells it to exit.
    service: RunningService<RoleClient, Client>,
    process: Option<Process>,
    server: String,
    /// As in [`data::Server`].
    transport: &'static str,
    limits: Limits,
    expose: Expose,
    inputs: Inputs,
    redaction: Redaction,
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
    notes: Mutex<Vec<String>>,
}

/// How a call ended.
pub(super) enum Reply {
    /// The server's answer.
    Answer(Answer),
    /// There is none, and the session goes on: mcprl's text for the model.
    Missing(String),
}

impl LiveSession {
    /// Starts the server or connects to it, and performs the handshake.
    ///
    /// `initialize` is tried first; only servers that support nothing but the newest revision reject it. If a server
    /// answers with an error, `server/discover` is tried: by the same process, and if that fails over a new connection.
    /// Servers that have sessions keep them this way: the newest revision has none.
    pub(super) async fn connect(spec: &ServerSpec) -> Result<Self, McpError> {
        Ok(Self::over(handshake::connect(spec, false).await?, spec))
    }

    /// Connects by the newest revision's handshake only.
    pub(super) async fn connect_newest(spec: &ServerSpec) -> Result<Self, McpError> {
        Ok(Self::over(handshake::connect(spec, true).await?, spec))
    }

    fn over((connection, scratch): (Connection, Scratch), spec: &ServerSpec) -> Self {
        let Connection { service, process, transport, redaction } = connection;
        Self {
            service,
            process,
            server: spec.transport.to_string(),
            transport,
            limits: spec.limits.clone(),
            expose: spec.expose,
            inputs: spec.inputs.clone(),
            redaction,
            scratch,
            unanswered: AtomicU32::new(0),
            is_lost: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            cancellations: TaskTracker::new(),
            notes: Mutex::default(),
        }
    }

    /// Everything that the server offers, as of now.
    pub(super) async fn describe(&self) -> Result<Description, McpError> {
        let info = self.info();
        let tools = self.tools().await?;
        let offers = info.as_ref().map(|info| info.capabilities.clone()).unwrap_or_default();
        let (mut resources, mut resource_templates, mut prompts) = (Vec::new(), Vec::new(), Vec::new());
        let mut notes = Vec::new();
        if offers.resources.is_some() {
            let listed = self.list("resources", list_resources, &mut notes).await?;
            resources = listing::resources(&listed, &self.redaction);
            let listed = self.list("resourceTemplates", list_resource_templates, &mut notes).await?;
            resource_templates = listing::resource_templates(&listed, &self.redaction);
        }
        if offers.prompts.is_some() {
            let listed = self.list("prompts", list_prompts, &mut notes).await?;
            prompts = listing::prompts(&listed, &self.redaction);
        }
        self.add_notes(notes);
        let server = server_row(info.as_deref(), self.transport, &tools, &self.redaction);
        Ok(Description { server, tools, resources, resource_templates, prompts })
    }

    /// All pages of a list, within `start_timeout`.
    async fn list(
        &self,
        field: &'static str,
        request: fn(Option<PaginatedRequestParams>) -> ClientRequest,
        notes: &mut Vec<String>,
    ) -> Result<Vec<Value>, McpError> {
        match self.pages(field, request, self.limits.start_timeout, notes).await {
            Ok(listed) => Ok(listed),
            Err(error) => Err(self.list_error(field, &error).await),
        }
    }

    /// All pages of a list, within `limit`.
    async fn pages(
        &self,
        field: &'static str,
        request: fn(Option<PaginatedRequestParams>) -> ClientRequest,
        limit: Duration,
        notes: &mut Vec<String>,
    ) -> Result<Vec<Value>, ServiceError> {
        let deadline = Instant::now() + limit;
        let ask = |params| self.ask(request(params), deadline.saturating_duration_since(Instant::now()));
        match timeout_at(deadline, listing::all_pages(field, notes, ask)).await {
            Ok(listed) => listed,
            Err(_) => Err(ServiceError::Timeout { timeout: limit }),
        }
    }

    /// The server's tools and mcprl's `complete_task`, as of now.
    pub(super) async fn tools(&self) -> Result<Vec<data::Tool>, McpError> {
        let has_tools = self.info().is_none_or(|info| info.capabilities.tools.is_some());
        let changed = &self.service.service().tools_changed;
        let mut notes = Vec::new();
        let mut listed = Vec::new();
        for _ in 0..if has_tools { LIST_READS } else { 0 } {
            changed.store(false, Ordering::Relaxed);
            notes.clear();
            // A change that could not be listed has yet to be looked at.
            let failed = |_: &McpError| changed.store(true, Ordering::Relaxed);
            listed = self.list("tools", list_tools, &mut notes).await.inspect_err(failed)?;
            if !changed.load(Ordering::Relaxed) {
                break;
            }
        }
        let (tools, repairs) = tools::from_list(&listed, &self.redaction);
        notes.extend(repairs);
        self.add_notes(notes);
        Ok(tools)
    }

    /// Whether the server has announced a change of its tools since they were last listed.
    pub(super) fn has_changed_tools(&self) -> bool {
        self.service.service().tools_changed.load(Ordering::Relaxed)
    }

    fn add_notes(&self, notes: Vec<String>) {
        self.notes.lock().extend(notes);
    }

    /// Notes on what [`LiveSession::describe`] repaired or dropped. Each note is returned once.
    pub(super) fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut *self.notes.lock())
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
        if !self.expose.is_none()
            && let Some(reply) = self.request(name, arguments.clone(), limit).await?
        {
            return Ok(reply);
        }
        let arguments = self.scratch.places().real_arguments(arguments);
        let params = CallToolRequestParams::new(name.to_owned()).with_arguments(arguments);
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let answer = self.ask_with_inputs(request, limit).await;
        self.reply(answer, limit, |result| Answer::from_result(result, &self.redaction)).await
    }

    /// Sends the request that a call of an exposed resource or prompt is.
    pub(super) async fn request(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        limit: Duration,
    ) -> Result<Option<Reply>, McpError> {
        let arguments = self.scratch.places().real_arguments(arguments);
        let Some(request) = self.expose.request(tool, &arguments) else { return Ok(None) };
        let reply = match request {
            exposed::Request::Lacking(argument) => Reply::Answer(Answer {
                text: format!("the argument `{argument}` is missing"),
                is_error: true,
            }),
            exposed::Request::ListResources => {
                let listed = self.list_resources(limit).await;
                self.reply(listed, limit, Answer::of_text).await?
            }
            exposed::Request::ReadResource { uri } => {
                let request = ReadResourceRequest::new(ReadResourceRequestParams::new(uri));
                let request = ClientRequest::ReadResourceRequest(request);
                let answer = self.ask_with_inputs(request, limit).await;
                self.reply(answer, limit, |result| Answer::from_result(result, &self.redaction)).await?
            }
            exposed::Request::GetPrompt { name, arguments } => {
                let params = GetPromptRequestParams::new(name).with_arguments(arguments);
                let request = ClientRequest::GetPromptRequest(GetPromptRequest::new(params));
                let answer = self.ask_with_inputs(request, limit).await;
                self.reply(answer, limit, |result| Answer::from_prompt(result, &self.redaction)).await?
            }
        };
        Ok(Some(reply))
    }

    /// The text of a resource, however long; `None` if the server answers that it has none.
    pub(super) async fn resource(&self, uri: &str, limit: Duration) -> Result<Option<String>, McpError> {
        let request = ReadResourceRequest::new(ReadResourceRequestParams::new(uri));
        match self.ask(ClientRequest::ReadResourceRequest(request), limit).await {
            Ok(result) => {
                let text = result.pointer("/contents/0/text").and_then(Value::as_str);
                Ok(text.map(|text| self.redaction.text(text)))
            }
            Err(ServiceError::McpError(_)) => Ok(None),
            Err(error) => Err(self.lost(failure::of_request(&error, &self.redaction)).await),
        }
    }

    /// The resources and their templates as text.
    async fn list_resources(&self, limit: Duration) -> Result<String, ServiceError> {
        let deadline = Instant::now() + limit;
        let left = || deadline.saturating_duration_since(Instant::now());
        let mut notes = Vec::new();
        let resources = self.pages("resources", list_resources, left(), &mut notes).await?;
        let templates = self.pages("resourceTemplates", list_resource_templates, left(), &mut notes).await?;
        let resources = listing::resources(&resources, &self.redaction);
        let templates = listing::resource_templates(&templates, &self.redaction);
        Ok(exposed::listed(&resources, &templates))
    }

    /// How a request that may take this long ended.
    async fn reply<T>(
        &self,
        answer: Result<T, ServiceError>,
        limit: Duration,
        read: impl FnOnce(T) -> Answer,
    ) -> Result<Reply, McpError> {
        if !matches!(answer, Err(ServiceError::Timeout { .. })) {
            self.unanswered.store(0, Ordering::Relaxed);
        }
        match answer {
            Ok(result) => Ok(Reply::Answer(read(result))),
            Err(ServiceError::McpError(error)) if error.code != BROKEN_OFF_CODE => {
                Ok(Reply::Answer(Answer::failed(&error.message, &self.redaction)))
            }
            Err(ServiceError::Timeout { .. }) => {
                let unanswered = self.unanswered.fetch_add(1, Ordering::Relaxed) + 1;
                if unanswered >= UNANSWERED {
                    return Err(self.lost(format!("{unanswered} calls in a row got no answer")).await);
                }
                // Over HTTP, an answer that broke off looks like a slow one. A cheap request shows whether the server is lost.
                if let Err(error) = self.ask_once(list_tools(None), STUCK).await
                    && let Some(Failed::Lost | Failed::Refused(_)) = self.failed(&error)
                {
                    return Err(self.lost(failure::of_request(&error, &self.redaction)).await);
                }
                Ok(Reply::Missing(format!("the tool did not answer within {limit:?}")))
            }
            Err(error) => match self.failed(&error) {
                Some(Failed::Refused(status)) => Err(McpError::Refused {
                    server: self.server.clone(),
                    status,
                    challenge: failure::transport(&error).and_then(failure::challenge),
                }),
                Some(Failed::Lost) => Err(self.lost(failure::of_request(&error, &self.redaction)).await),
                None => Ok(Reply::Missing(format!(
                    "the call failed: {}",
                    failure::of_request(&error, &self.redaction)
                ))),
            },
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
        self.process.as_ref()?.memory()
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
    ) -> Result<Value, ServiceError> {
        let deadline = Instant::now() + limit;
        for _ in 0..INPUT_ROUNDS {
            let left = deadline.saturating_duration_since(Instant::now());
            let result = self.ask(request.clone(), left).await?;
            let Some(answers) = self.inputs.answers(&result) else { return Ok(result) };
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
            *state = result.get("requestState").and_then(Value::as_str).map(str::to_owned);
        }
        let text = format!("the server asked for input {INPUT_ROUNDS} times, which is not given here");
        Err(ServiceError::McpError(ErrorData::internal_error(text, None)))
    }

    fn info(&self) -> Option<Arc<ServerPeerInfo>> {
        self.service.peer_info()
    }

    /// Sends a request, again where the server limits their rate, and returns the result as JSON of any shape,
    /// as the server wrote it: cursors, names and states go back to the server. What is shown of it passes through
    /// [`Redaction`].
    async fn ask(&self, request: ClientRequest, limit: Duration) -> Result<Value, ServiceError> {
        let mut rate_limit = RateLimit::new();
        loop {
            let answer = self.ask_once(request.clone(), limit).await;
            let failed = answer.as_ref().err().and_then(failure::transport);
            let asked = failed.and_then(failure::rate_limited);
            let Some(wait) = asked.and_then(|asked| rate_limit.wait(asked, None)) else { return answer };
            tokio::time::sleep(wait).await;
        }
    }

    fn ask_once(
        &self,
        request: ClientRequest,
        limit: Duration,
    ) -> BoxFuture<'_, Result<Value, ServiceError>> {
        let exchange = async move {
            let options = PeerRequestOptions::with_timeout(limit);
            let mut open = OpenRequest::of(self);
            let result = match self.service.send_request_with_option(request, options).await {
                Ok(handle) => {
                    open.id = Some(handle.id.clone());
                    handle.await_response().await
                }
                Err(error) => Err(error),
            };
            open.end(&result);
            let result = result?;
            serde_json::to_value(result).map_err(|_| ServiceError::UnexpectedResponse)
        };
        Box::pin(async move {
            match timeout(limit + STUCK, exchange).await {
                Ok(answer) => answer,
                Err(_) => Err(ServiceError::Timeout { timeout: limit }),
            }
        })
    }

    /// The kind of connection failure; `None` if the error is an answer.
    fn failed(&self, error: &ServiceError) -> Option<Failed> {
        match error {
            ServiceError::McpError(error) if error.code == BROKEN_OFF_CODE => Some(Failed::Lost),
            ServiceError::McpError(_) | ServiceError::Timeout { .. } => None,
            ServiceError::TransportClosed => Some(Failed::Lost),
            ServiceError::TransportSend(error) => Some(match failure::status(&*error.error) {
                Some(status @ (401 | 403 | 407 | 408 | 429 | 502..=504)) => Failed::Refused(status),
                _ => Failed::Lost,
            }),
            _ => (!self.is_alive()).then_some(Failed::Lost),
        }
    }

    async fn lost(&self, reason: String) -> McpError {
        self.is_lost.store(true, Ordering::Relaxed);
        McpError::Lost {
            server: self.server.clone(),
            reason,
            output: Process::output_of(self.process.as_ref()).await,
        }
    }

    async fn list_error(&self, what: &'static str, error: &ServiceError) -> McpError {
        let transport = failure::transport(error);
        let (status, challenge) =
            (transport.and_then(failure::status), transport.and_then(failure::challenge));
        let server = self.server.clone();
        match error {
            ServiceError::TransportClosed => self.lost(failure::of_request(error, &self.redaction)).await,
            ServiceError::Timeout { .. } => McpError::List {
                server,
                what,
                reason: format!("not complete within {:?}", self.limits.start_timeout),
            },
            _ if status == Some(401) => McpError::Unauthorized { server, challenge },
            _ if challenge.is_some() => McpError::Refused { server, status: 403, challenge },
            _ => {
                let reason = failure::of_request(error, &self.redaction);
                McpError::List { server, what, reason }
            }
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

/// Why a call did not reach a tool, or its answer did not arrive.
enum Failed {
    /// The server or a proxy rejected the call with this HTTP status.
    Refused(u16),
    Lost,
}

fn list_tools(params: Option<PaginatedRequestParams>) -> ClientRequest {
    let request = ListToolsRequest { method: Default::default(), params, extensions: Default::default() };
    ClientRequest::ListToolsRequest(request)
}

fn list_resources(params: Option<PaginatedRequestParams>) -> ClientRequest {
    let request = ListResourcesRequest { method: Default::default(), params, extensions: Default::default() };
    ClientRequest::ListResourcesRequest(request)
}

fn list_resource_templates(params: Option<PaginatedRequestParams>) -> ClientRequest {
    let request =
        ListResourceTemplatesRequest { method: Default::default(), params, extensions: Default::default() };
    ClientRequest::ListResourceTemplatesRequest(request)
}

fn list_prompts(params: Option<PaginatedRequestParams>) -> ClientRequest {
    let request = ListPromptsRequest { method: Default::default(), params, extensions: Default::default() };
    ClientRequest::ListPromptsRequest(request)
}

/// The server's row for the `server` table.
fn server_row(
    info: Option<&ServerPeerInfo>,
    transport: &str,
    tools: &[data::Tool],
    redaction: &Redaction,
) -> data::Server {
    let shown = |text: &str| redaction.bounded(text);
    let identity = info.and_then(|info| info.server_info.as_ref());
    let capabilities = info.and_then(|info| serde_json::to_value(&info.capabilities).ok());
    data::Server {
        name: identity.map(|server| shown(&server.name)).unwrap_or_default(),
        version: identity.map(|server| shown(&server.version)).unwrap_or_default(),
        protocol: info.map(|info| info.protocol_version.as_str().to_owned()).unwrap_or_default(),
        transport: transport.into(),
        instructions: info.and_then(|info| info.instructions.as_deref()).map(shown),
        capabilities: capabilities
            .as_ref()
            .map(|value| redaction.schema(value))
            .unwrap_or_default()
            .to_string(),
        tools_digest: tools::tools_digest(tools).to_string(),
    }
}
