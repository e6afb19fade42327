//! How a connection begins: the process or the HTTP client, the handshake, and why it failed.

#![expect(deprecated, reason = "servers of the revisions before 2026-07-28 may ask for samples")]

use std::{
    collections::VecDeque,
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
    tokens::NoToken,
    unheard::Unheard,
    untrusted::{Redaction, Untrusted, shorten},
};

/// An open connection.
pub(super) struct Connection {
    pub(super) service: RunningService<RoleClient, Client>,
    pub(super) process: Option<Process>,
    /// As in [`ServerInfo`](crate::ServerInfo).
    pub(super) transport: &'static str,
    pub(super) redaction: Redaction,
    pub(super) unheard: Unheard,
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
    let first = if newest { Opening::Discover } else { Opening::Initialize(LATEST) };
    let mut openings = VecDeque::from([first]);
    let deadline = Instant::now() + spec.limits.start_timeout;
    let mut rate_limit = RateLimit::new();
    let mut first_error = None;
    // One for all processes that are tried.
    let Ok(scratch) = timeout_at(deadline, Scratch::of(spec)).await else {
        let (limit, output) = (spec.limits.start_timeout, ServerOutput::default());
        return Err(McpError::StartTimeout {
            server: spec.transport.to_string(),
            limit,
            output,
            stdout: None,
        });
    };
    let scratch = scratch?;
    while let Some(opening) = openings.pop_front() {
        let ConnectError { error, remedy } =
            match open(spec, opening.clone(), deadline, scratch.places()).await {
                Ok(connection) => return Ok((connection, scratch)),
                Err(error) => error,
            };
        let wait = match remedy {
            Some(Remedy::Wait(asked)) => rate_limit.wait(asked, Some(deadline)),
            _ => None,
        };
        if let Some(wait) = wait {
            tokio::time::sleep(wait).await;
            openings.push_front(opening);
            continue;
        }
        // The first error is more informative than a later one.
        match (remedy, &first_error) {
            (Some(Remedy::OtherHandshake(others)), None) => {
                openings.extend(others.into_iter().filter(|_| !newest));
                first_error = Some(error);
            }
            (Some(Remedy::OtherHandshake(_)), Some(_)) => {}
            _ => return Err(first_error.unwrap_or(error)),
        }
    }
    Err(first_error.unwrap_or(McpError::EmptyCommand))
}

/// A handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Opening {
    Initialize(ProtocolVersion),
    /// Of the newest revision.
    Discover,
}

/// The newest revision that is offered by `initialize`, and those that a server is offered which refuses it instead of naming
/// its own.
const LATEST: ProtocolVersion = ProtocolVersion::LATEST_WITH_INITIALIZE;
const OLDER: [ProtocolVersion; 3] =
    [ProtocolVersion::V_2025_06_18, ProtocolVersion::V_2025_03_26, ProtocolVersion::V_2024_11_05];
/// How long a server that has refused one handshake may take to answer another.
const NEXT_HANDSHAKE: Duration = Duration::from_secs(5);

impl Opening {
    fn lifecycle(&self) -> ClientLifecycleMode {
        match self {
            Self::Initialize(_) => ClientLifecycleMode::Initialize,
            Self::Discover => {
                ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] }
            }
        }
    }

    /// What may be accepted in place of the newest `initialize`: a revision that the error names as supported; older ones, first
    /// if the error is about them.
    fn others(error: &ErrorData) -> Vec<Self> {
        let named = error.data.as_ref().and_then(|data| data.get("supported")).and_then(Value::as_array);
        let named: Vec<&str> = named.into_iter().flatten().filter_map(Value::as_str).collect();
        let mut older: Vec<Self> = OLDER.into_iter().map(Self::Initialize).collect();
        older.sort_by_key(|one| match one {
            Self::Initialize(version) => !named.contains(&version.as_str()),
            Self::Discover => true,
        });
        let is_newest = named.contains(&ProtocolVersion::V_2026_07_28.as_str());
        let at =
            if is_newest || !is_of_version(&error.message) && named.is_empty() { 0 } else { older.len() };
        older.insert(at, Self::Discover);
        older
    }
}

/// Whether a server speaks of the revision.
fn is_of_version(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    ["version", "protocol", "revision"].iter().any(|word| text.contains(word))
}

/// Why a connection failed.
struct ConnectError {
    error: McpError,
    remedy: Option<Remedy>,
}

/// What may help.
enum Remedy {
    /// The server refuses this handshake, or ends; it may accept one of these.
    OtherHandshake(Vec<Opening>),
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
    opening: Opening,
    deadline: Instant,
    places: &Places,
) -> Result<Connection, ConnectError> {
    let server = spec.transport.to_string();
    let mut redaction = Redaction::of(&spec.transport, Some(places));
    let mut transport = if matches!(spec.transport, Transport::Stdio { .. }) { "stdio" } else { "http" };
    let mut unheard = Unheard::default();
    let (process, connected) = match &spec.transport {
        Transport::Stdio { .. } => {
            let (process, pipes) =
                Process::spawn(&spec.transport, spec.limits.sandbox.as_ref(), places, redaction.clone())
                    .await?;
            let lines = Lines::new(pipes, &process);
            let spare = lines.clone();
            let mut connected = handshake(lines, spec, &opening, deadline).await;
            // A process that rejects `initialize` but goes on need not be started again.
            if opening == Opening::Initialize(LATEST)
                && let Some(Err(ClientInitializeError::JsonRpcError(error))) = &connected
                && !message::is_own(error)
            {
                for other in Opening::others(error) {
                    let soon = deadline.min(Instant::now() + NEXT_HANDSHAKE);
                    match handshake(spare.clone(), spec, &other, soon).await {
                        Some(Ok(service)) => {
                            connected = Some(Ok(service));
                            break;
                        }
                        Some(Err(error)) if is_refusal(&error) => {}
                        _ => break,
                    }
                }
            }
            (Some(process), connected)
        }
        // Nothing is connected to: `session.rs` reads it.
        Transport::Cassette(_) => return Err(McpError::EmptyCommand.into()),
        Transport::Http { url, token, headers } => {
            let headers = headers.iter().map(|(name, value)| (name, places.fill(value)));
            let connector = http::Connector::new(
                http::endpoint(&places.fill(url), token, headers)?,
                &spec.quirks.error_patterns,
            )?;
            unheard = connector.unheard();
            redaction = redaction.with_token_of(connector.bearer());
            let mut connected = handshake(connector.streamable(&spec.state), spec, &opening, deadline).await;
            if let Some(status) = connector.limited() {
                return Err(McpError::limited(server, status).into());
            }
            let status = connected.as_ref().and_then(refused_status);
            if opening != Opening::Discover
                // Refused so, a server may offer the older transport.
                && matches!(status, Some(400 | 404 | 405))
                && let Some(over_sse) = handshake_over_sse(&connector, spec, &opening, deadline).await
            {
                connected = Some(over_sse);
                transport = "sse";
            } else if opening == Opening::Initialize(LATEST) && status == Some(400) {
                // Or an older revision.
                for older in OLDER.map(Opening::Initialize) {
                    let streamable = connector.streamable(&spec.state);
                    if let Some(Ok(service)) = handshake(streamable, spec, &older, deadline).await {
                        connected = Some(Ok(service));
                        break;
                    }
                }
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
            return Err(unanswered(server, spec.limits.start_timeout, process.as_ref()).await.into());
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
    Ok(Connection { service, process, transport, redaction, unheard })
}

/// What is said of a server that was not ready in time.
async fn unanswered(server: String, limit: Duration, process: Option<&Process>) -> McpError {
    // What it ends with after that is the end of its stdin.
    let had_ended = process.is_some_and(Process::has_ended);
    let mut output = Process::output_of(process).await;
    output.status = output.status.filter(|_| had_ended);
    let noise = process.map(Process::noise).filter(|line| !line.is_empty());
    McpError::StartTimeout { server, limit, output, stdout: noise.map(Box::new) }
}

/// The HTTP status that refused a handshake.
fn refused_status<T>(connected: &Result<T, ClientInitializeError>) -> Option<u16> {
    match connected {
        Err(ClientInitializeError::TransportError { error, .. }) => {
            Refusal::of(&*error.error).map(|refusal| refusal.status)
        }
        _ => None,
    }
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
    if let Some(no_token) = of_transport.and_then(|error| NoToken::of(error, redaction)) {
        return no_token.into_error(server).into();
    }
    if let Some(Refusal { status, rate_limit: Some(asked), .. }) = refusal {
        let error = McpError::limited(server, status);
        return ConnectError { error, remedy: Some(Remedy::Wait(asked)) };
    }
    if let Some(denial) = refusal.as_ref().and_then(|refusal| refusal.denial(&server, redaction.has_token()))
    {
        return denial.into();
    }
    if error.is_authorization_required() {
        return McpError::Unauthorized { server, has_token: redaction.has_token(), challenge: None }.into();
    }
    // A server that refuses the handshake is still running, so there is nothing to wait for.
    let is_refusal = is_refusal(&error);
    let mut output = if is_refusal { ServerOutput::default() } else { Process::output_of(process).await };
    let is_closed = of_transport.is_some() || matches!(error, ClientInitializeError::ConnectionClosed(_));
    if is_closed && output.status.is_some() {
        // Perhaps of the revision. Another reason is there again at each start.
        let said = process.map(Process::stderr).unwrap_or_default();
        let may_be = said.trim().is_empty() || said.contains(LATEST.as_str()) || is_of_version(&said);
        let others = if may_be { &OLDER[..] } else { &OLDER[OLDER.len() - 1..] };
        let remedy = Remedy::OtherHandshake(others.iter().cloned().map(Opening::Initialize).collect());
        return ConnectError { error: McpError::DiedAtStart { server, output }, remedy: Some(remedy) };
    }
    output.status = None;
    let reason = handshake_reason(&error, redaction);
    let status = refusal.map(|refusal| refusal.status);
    let others = match &error {
        ClientInitializeError::JsonRpcError(error) if is_refusal => Some(Opening::others(error)),
        _ => None,
    };
    let error = McpError::Handshake { server, reason, status, output };
    ConnectError { error, remedy: others.map(Remedy::OtherHandshake) }
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
    opening: &Opening,
    deadline: Instant,
) -> Option<Result<RunningService<RoleClient, Client>, ClientInitializeError>>
where
    T: IntoTransport<RoleClient, E, A>,
    E: std::error::Error + Send + Sync + 'static,
{
    let version = match opening {
        Opening::Initialize(version) => version.clone(),
        Opening::Discover => LATEST,
    };
    let client = Client { inputs: spec.inputs.clone(), tools_changed: AtomicBool::default(), version };
    timeout_at(deadline, client.serve_with_lifecycle(transport, opening.lifecycle())).await.ok()
}

/// The handshake over the older transport; `None` if the server does not offer it.
async fn handshake_over_sse(
    connector: &http::Connector,
    spec: &ServerSpec,
    opening: &Opening,
    deadline: Instant,
) -> Option<Result<RunningService<RoleClient, Client>, ClientInitializeError>> {
    match timeout_at(deadline, connector.sse()).await.ok()? {
        Ok(transport) => handshake(transport?, spec, opening, deadline).await,
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
    /// The revision that `initialize` offers.
    version: ProtocolVersion,
}

impl ClientHandler for Client {
    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(
            self.inputs.capabilities(),
            Implementation::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION")),
        )
        .with_protocol_version(self.version.clone())
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
