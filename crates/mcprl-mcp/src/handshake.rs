//! How a connection begins: the process or the HTTP client, the handshake, and why it failed.

#![expect(deprecated, reason = "servers of the revisions before 2026-07-28 may ask for samples")]

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures::future::BoxFuture;
use mcprl_base::error::chain;
use rmcp::{
    ClientHandler, RoleClient,
    model::{
        ClientConfig, CreateMessageRequestMethod, CreateMessageRequestParams, CreateMessageResult,
        ElicitRequestParams, ElicitResult, ErrorData, Implementation, ProtocolVersion,
    },
    service::{
        ClientInitializeError, ClientLifecycleMode, ClientServiceExt, NotificationContext, RequestContext,
        RunningService,
    },
    transport::{DynamicTransportError, IntoTransport},
};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::{
    McpError, ServerOutput, ServerSpec, State, Transport,
    failure::{self, RateLimit, Refusal},
    http,
    input::Inputs,
    message::{self, UNREADABLE},
    places::Places,
    process::Process,
    scratch::Scratch,
    sse::SseTransport,
    stdio::Lines,
    untrusted::{Redaction, Untrusted, shorten},
};

/// An open connection.
pub(super) struct Connection {
    pub(super) service: RunningService<RoleClient, Client>,
    pub(super) process: Option<Process>,
    /// As in [`ServerInfo`](crate::ServerInfo).
    pub(super) transport: &'static str,
    pub(super) redaction: Redaction,
}

/// Connects to the server, with what the session has for itself. With `newest`, tries only the handshake of the newest revision.
///
/// An `async fn` is compiled by the crate that awaits it. This one is not, since it has all of rmcp in it.
pub(super) fn connect(
    spec: &ServerSpec,
    newest: bool,
) -> BoxFuture<'_, Result<(Connection, Scratch), McpError>> {
    Box::pin(try_handshakes(spec, newest))
}

async fn try_handshakes(spec: &ServerSpec, newest: bool) -> Result<(Connection, Scratch), McpError> {
    // The last one is tried first.
    let mut lifecycles = vec![discover()];
    if !newest {
        lifecycles.push(ClientLifecycleMode::Initialize);
    }
    let deadline = Instant::now() + spec.limits.start_timeout;
    let mut rate_limit = RateLimit::new();
    let mut first_error = None;
    // One for all processes that are tried.
    let Ok(scratch) = timeout_at(deadline, Scratch::of(spec)).await else {
        let (limit, output) = (spec.limits.start_timeout, ServerOutput::default());
        return Err(McpError::StartTimeout { server: spec.transport.to_string(), limit, output });
    };
    let scratch = scratch?;
    while let Some(lifecycle) = lifecycles.pop() {
        let ConnectError { error, remedy } =
            match open(spec, lifecycle.clone(), deadline, scratch.places()).await {
                Ok(connection) => return Ok((connection, scratch)),
                Err(error) => error,
            };
        let wait = match remedy {
            Some(Remedy::Wait(asked)) => rate_limit.wait(asked, Some(deadline)),
            _ => None,
        };
        if let Some(wait) = wait {
            tokio::time::sleep(wait).await;
            lifecycles.push(lifecycle);
            continue;
        }
        // The first error is more informative than the second.
        match (remedy, first_error.take()) {
            (Some(Remedy::OtherHandshake), None) => first_error = Some(error),
            (_, first) => return Err(first.unwrap_or(error)),
        }
    }
    Err(first_error.unwrap_or(McpError::EmptyCommand))
}

/// Why a connection failed.
struct ConnectError {
    error: McpError,
    remedy: Option<Remedy>,
}

/// What may help.
enum Remedy {
    /// The server runs but refuses this handshake; it may accept the other one.
    OtherHandshake,
    /// The server limits the rate of requests, and may ask for this wait.
    Wait(Option<Duration>),
}

impl From<McpError> for ConnectError {
    fn from(error: McpError) -> Self {
        Self { error, remedy: None }
    }
}

async fn open(
    spec: &ServerSpec,
    lifecycle: ClientLifecycleMode,
    deadline: Instant,
    places: &Places,
) -> Result<Connection, ConnectError> {
    let server = spec.transport.to_string();
    let mut redaction = Redaction::of(&spec.transport, Some(places));
    let mut transport = if matches!(spec.transport, Transport::Stdio { .. }) { "stdio" } else { "http" };
    let (process, connected) = match &spec.transport {
        Transport::Stdio { .. } => {
            let (process, pipes) =
                Process::spawn(&spec.transport, spec.limits.sandbox.as_ref(), places, redaction.clone())
                    .await?;
            let lines = Lines::new(pipes, &process);
            let spare = lines.clone();
            let is_oldest = matches!(lifecycle, ClientLifecycleMode::Initialize);
            let mut connected = handshake(lines, spec, lifecycle, deadline).await;
            // A process that rejects `initialize` but goes on need not be started again.
            if is_oldest
                && matches!(&connected, Some(Err(error)) if is_refusal(error))
                && let Some(Ok(service)) = handshake(spare, spec, discover(), deadline).await
            {
                connected = Some(Ok(service));
            }
            (Some(process), connected)
        }
        // Nothing is connected to: `session.rs` reads it.
        Transport::Cassette(_) => return Err(McpError::EmptyCommand.into()),
        Transport::Http { url, token, headers } => {
            let headers = headers.iter().map(|(name, value)| (name, places.fill(value)));
            let connector = http::Connector::new(http::endpoint(&places.fill(url), token, headers)?)?;
            redaction = redaction.with_token_of(connector.bearer());
            let mut connected =
                handshake(connector.streamable(&spec.state), spec, lifecycle.clone(), deadline).await;
            if let Some(Err(ClientInitializeError::TransportError { error, .. })) = &connected
                && matches!(lifecycle, ClientLifecycleMode::Initialize)
                // Refused so, a server may offer the older transport.
                && Refusal::of(&*error.error).is_some_and(|refusal| matches!(refusal.status, 400 | 404 | 405))
                && let Some(over_sse) = handshake_over_sse(&connector, spec, lifecycle, deadline).await
            {
                connected = Some(over_sse);
                transport = "sse";
            }
            let is_connected = matches!(connected, Some(Ok(_)));
            if spec.state == State::FreshProcess
                && is_connected
                && transport != "sse"
                && !connector.has_session_id()
            {
                return Err(McpError::NoSession { server }.into());
            }
            (None, connected)
        }
    };
    let service = match connected {
        Some(Ok(service)) => service,
        None => {
            let limit = spec.limits.start_timeout;
            let output = Process::output_of(process.as_ref()).await;
            return Err(McpError::StartTimeout { server, limit, output }.into());
        }
        Some(Err(error)) => return Err(connect_error(error, server, &redaction, process.as_ref()).await),
    };
    let revision = service.peer_info().map(|info| info.protocol_version.clone());
    if let Some(revision) = revision.filter(|revision| !ProtocolVersion::KNOWN_VERSIONS.contains(revision)) {
        return Err(McpError::Revision {
            server,
            revision: Untrusted::new(revision.as_str(), &redaction).line(),
        }
        .into());
    }
    Ok(Connection { service, process, transport, redaction })
}

fn discover() -> ClientLifecycleMode {
    ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] }
}

/// Whether the server rejected the handshake with an error of its own.
fn is_refusal(error: &ClientInitializeError) -> bool {
    matches!(error, ClientInitializeError::JsonRpcError(error) if !message::is_own(error))
}

/// The cause of a failed handshake. That the process ended is the cause only if it ended before we hung up.
async fn connect_error(
    error: ClientInitializeError,
    server: String,
    redaction: &Redaction,
    process: Option<&Process>,
) -> ConnectError {
    let of_transport = match &error {
        ClientInitializeError::TransportError { error, .. } => Some(&*error.error),
        _ => None,
    };
    let refusal = of_transport.and_then(|error| Refusal::of(error));
    if let Some(Refusal { status, rate_limit: Some(asked), .. }) = refusal {
        let error = McpError::Refused { server, status, challenge: None };
        return ConnectError { error, remedy: Some(Remedy::Wait(asked)) };
    }
    if let Some(denial) = refusal.as_ref().and_then(|refusal| refusal.denial(&server)) {
        return denial.into();
    }
    if error.is_authorization_required() {
        return McpError::Unauthorized { server, challenge: None }.into();
    }
    // A server that refuses the handshake is still running, so there is nothing to wait for.
    let is_refusal = is_refusal(&error);
    let mut output = if is_refusal { ServerOutput::default() } else { Process::output_of(process).await };
    let is_closed = of_transport.is_some() || matches!(error, ClientInitializeError::ConnectionClosed(_));
    if is_closed && output.status.is_some() {
        return McpError::DiedAtStart { server, output }.into();
    }
    output.status = None;
    let reason = handshake_reason(&error, redaction);
    let status = refusal.map(|refusal| refusal.status);
    let error = McpError::Handshake { server, reason, status, output };
    ConnectError { error, remedy: is_refusal.then_some(Remedy::OtherHandshake) }
}

/// The reason of a failed handshake, without Rust type names.
fn handshake_reason(error: &ClientInitializeError, redaction: &Redaction) -> String {
    match error {
        ClientInitializeError::TransportError { error, .. } => {
            failure::of_transport(&*error.error, redaction)
        }
        ClientInitializeError::ConnectionClosed(_) => "the server closed the connection".into(),
        ClientInitializeError::JsonRpcError(error) => failure::of_error(error, redaction),
        ClientInitializeError::ExpectedInitResult(Some(result)) => {
            unexpected(serde_json::to_value(result), redaction)
        }
        ClientInitializeError::ExpectedInitResponse(Some(message)) => {
            unexpected(serde_json::to_value(message), redaction)
        }
        ClientInitializeError::ConflictInitResponseId(asked, answered)
        | ClientInitializeError::UncorrelatedErrorResponse { expected: asked, received: answered } => {
            let reason = format!("the server answered the request {answered} instead of {asked}");
            Untrusted::new(reason, redaction).line()
        }
        other => Untrusted::new(chain(other), redaction).line(),
    }
}

/// Describes an answer that is no handshake.
fn unexpected(answer: serde_json::Result<Value>, redaction: &Redaction) -> String {
    let answer = Untrusted::new(answer.unwrap_or_default(), redaction);
    match answer.text(UNREADABLE) {
        Some(reason) => format!("the server's answer cannot be read: {}", reason.line()),
        None => {
            let (text, ()) = answer.written(|answer| (answer.to_string(), ()));
            format!("the server's answer is not a handshake: {}", shorten(&text))
        }
    }
}

/// Performs the handshake; `None` if the deadline came first.
async fn handshake<T, E, A>(
    transport: T,
    spec: &ServerSpec,
    lifecycle: ClientLifecycleMode,
    deadline: Instant,
) -> Option<Result<RunningService<RoleClient, Client>, ClientInitializeError>>
where
    T: IntoTransport<RoleClient, E, A>,
    E: std::error::Error + Send + Sync + 'static,
{
    let client = Client { inputs: spec.inputs.clone(), tools_changed: AtomicBool::default() };
    timeout_at(deadline, client.serve_with_lifecycle(transport, lifecycle)).await.ok()
}

/// The handshake over the older transport; `None` if the server does not offer it.
async fn handshake_over_sse(
    connector: &http::Connector,
    spec: &ServerSpec,
    lifecycle: ClientLifecycleMode,
    deadline: Instant,
) -> Option<Result<RunningService<RoleClient, Client>, ClientInitializeError>> {
    match timeout_at(deadline, connector.sse()).await.ok()? {
        Ok(transport) => handshake(transport?, spec, lifecycle, deadline).await,
        Err(error) => {
            let context = "open the event stream".into();
            let error = DynamicTransportError::new::<SseTransport, RoleClient>(error);
            Some(Err(ClientInitializeError::TransportError { error, context }))
        }
    }
}

/// The client's side of the protocol. It offers what it has fixed answers for, and grants no other request of a server.
pub(super) struct Client {
    inputs: Inputs,
    /// The server has announced a change since its tools were last listed.
    pub(super) tools_changed: AtomicBool,
}

impl ClientHandler for Client {
    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(
            self.inputs.capabilities(),
            Implementation::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION")),
        )
        .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        Ok(self.inputs.elicited(&serde_json::to_value(request).unwrap_or_default()))
    }

    async fn create_message(
        &self,
        _: CreateMessageRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        self.inputs.sampled().ok_or_else(ErrorData::method_not_found::<CreateMessageRequestMethod>)
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.tools_changed.store(true, Ordering::Relaxed);
    }
}
