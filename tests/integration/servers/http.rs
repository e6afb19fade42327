//! Tests of the client over HTTP: the older HTTP+SSE transport, protocol revisions and authorization.

use std::{
    convert::Infallible,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::Request,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::{any, get, post},
};
use mcprl::{
    error::Diagnostic,
    mcp::{Description, Limits, McpError, Outcome, ServerSpec, Session, State, Token, Transport},
};
use serde_json::{Map, Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::Command,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
};

use crate::common::until_async;

fn at(url: String) -> ServerSpec {
    let limits = Limits {
        start_timeout: Duration::from_secs(20),
        call_timeout: Duration::from_secs(10),
        ..Limits::default()
    };
    ServerSpec { limits, ..ServerSpec::new(Transport::http(url), State::ReadOnly) }
}

async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}

async fn refused(spec: &ServerSpec) -> McpError {
    match Session::connect(spec).await {
        Ok(_) => panic!("the server was accepted"),
        Err(error) => error,
    }
}

async fn call(session: &Session) -> Outcome {
    session.call("t", Map::new()).await.unwrap()
}

/// The usual result of a request of this revision.
fn result(request: &Value, revision: &str) -> Option<Value> {
    Some(match request["method"].as_str().unwrap() {
        "initialize" => json!({
            "protocolVersion": revision, "capabilities": {"tools": {}},
            "serverInfo": {"name": "s", "version": "1"},
        }),
        "tools/list" => json!({"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}),
        "tools/call" => json!({"content": [{"type": "text", "text": "fine"}]}),
        _ => return None,
    })
}

fn reply(request: &Value, result: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": request["id"], "result": result})
}

/// What an [`sse`] server does.
#[derive(Clone)]
struct Sse {
    /// Data of its first event; `None` sends none.
    endpoint: Option<&'static str>,
    /// The events that answer a call; `ID` is the request's. An empty text ends the stream.
    call: Vec<String>,
}

impl Default for Sse {
    fn default() -> Self {
        Self { endpoint: Some("/messages?session=1"), call: Vec::new() }
    }
}

fn event_stream(events: UnboundedReceiver<String>) -> Response {
    let events = futures::stream::unfold(events, |mut events| async {
        let event = events.recv().await.filter(|event| !event.is_empty())?;
        Some((Ok::<_, Infallible>(Bytes::from(event)), events))
    });
    ([("content-type", "text/event-stream")], Body::from_stream(events)).into_response()
}

/// A server of the older transport, with one stream at a time. Also returns the headers of the messages posted to it.
async fn sse(conduct: Sse) -> (ServerSpec, UnboundedReceiver<HeaderMap>) {
    let stream: Arc<Mutex<Option<UnboundedSender<String>>>> = Arc::default();
    let (posted, received) = unbounded_channel();
    let (opened, endpoint) = (stream.clone(), conduct.endpoint);
    let open = move || async move {
        let (sender, events) = unbounded_channel();
        if let Some(endpoint) = endpoint {
            sender.send(format!("event: endpoint\ndata: {endpoint}\n\n")).unwrap();
        }
        *opened.lock().unwrap() = Some(sender);
        event_stream(events)
    };
    let answer = move |headers: HeaderMap, body: String| async move {
        let _ = posted.send(headers);
        let request: Value = serde_json::from_str(&body).unwrap();
        let stream = stream.lock().unwrap();
        let send = |event: String| stream.as_ref().unwrap().send(event).unwrap();
        match result(&request, "2024-11-05") {
            Some(_) if request["method"] == "tools/call" && !conduct.call.is_empty() => {
                conduct.call.iter().for_each(|event| send(event.replace("ID", &request["id"].to_string())));
            }
            Some(result) => send(format!("event: message\ndata: {}\n\n", reply(&request, result))),
            None => {}
        }
        (StatusCode::ACCEPTED, "Accepted")
    };
    let router = Router::new().route("/sse", get(open)).route("/messages", post(answer));
    (at(serve(router).await + "/sse"), received)
}

#[tokio::test]
async fn a_server_of_the_older_transport_is_used_like_any_other() {
    let (mut spec, mut posted) = sse(Sse::default()).await;
    spec.state = State::FreshProcess;
    let Transport::Http { headers, .. } = &mut spec.transport else { unreachable!() };
    headers.insert("x-key".into(), "secret".into());
    let session = Session::connect(&spec).await.unwrap();
    let Description { server, tools, .. } = session.describe().await.unwrap();
    assert_eq!((&*server.protocol, &*server.transport), ("2024-11-05", "sse"));
    assert_eq!(tools[0].name, "t");
    assert_eq!(call(&session).await.text, "fine");
    assert_eq!(posted.recv().await.unwrap()["x-key"], "secret");
    session.close().await;
}

#[tokio::test]
async fn an_endpoint_at_another_origin_gets_nothing() {
    let (sender, mut received) = unbounded_channel();
    let thief = serve(Router::new().fallback(any(move |request: Request| async move {
        let _ = sender.send(request.uri().clone());
    })))
    .await;
    let endpoint: &'static str = format!("{thief}/messages").leak();
    let (spec, _) = sse(Sse { endpoint: Some(endpoint), ..Sse::default() }).await;
    let error = refused(&spec).await;
    assert_eq!(error.code(), "mcp::handshake");
    assert!(error.to_string().contains("at another origin: http://127.0.0.1:"), "{error}");
    assert!(received.try_recv().is_err());
}

#[tokio::test]
async fn a_stream_without_an_endpoint_is_given_up_at_the_start_timeout() {
    let (mut spec, _) = sse(Sse { endpoint: None, ..Sse::default() }).await;
    spec.limits.start_timeout = Duration::from_secs(3);
    let error = refused(&spec).await;
    assert!(error.to_string().ends_with("failed: HTTP 405 Method Not Allowed"), "the first error: {error}");
}

#[tokio::test]
async fn a_stream_that_breaks_off_loses_the_session() {
    for events in [&[""][..], &["data: {\"jsonrpc\":\"2.0\",\"id\":ID,", ""]] {
        let call = events.iter().map(|event| (*event).to_owned()).collect();
        let (spec, _) = sse(Sse { call, ..Sse::default() }).await;
        let session = Session::connect(&spec).await.unwrap();
        let error = session.call("t", Map::new()).await.unwrap_err();
        assert_eq!(error.code(), "mcp::lost", "{events:?}");
        assert!(!session.is_alive());
    }
}

#[tokio::test]
async fn an_answer_over_sse_that_cannot_be_read_is_reported_at_once() {
    let long = "x".repeat(17 << 20);
    for (data, reason) in [
        ("{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{\"mean\":NaN}}", "it has `NaN`"),
        ("{\"jsonrpc\":\"2.0\",\"result\":{", "it is not JSON: it ends in the middle at byte 27"),
        (
            &format!("{{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{{\"content\":\"{long}\"}}}}"),
            "it is longer than 16 MiB",
        ),
    ] {
        let call = vec![format!("data: {data}\n\n")];
        let (mut spec, _) = sse(Sse { call, ..Sse::default() }).await;
        spec.limits.call_timeout = Duration::from_secs(60);
        let session = Session::connect(&spec).await.unwrap();
        let outcome =
            tokio::time::timeout(Duration::from_secs(30), self::call(&session)).await.expect(reason);
        let text = format!("the server's answer cannot be read: {reason}");
        assert_eq!(outcome, Outcome { text, is_error: true });
        assert!(session.is_alive());
    }
}

#[tokio::test]
async fn a_refused_post_over_sse_is_not_an_answer() {
    for (status, code) in [(403, "mcp::refused"), (503, "mcp::refused"), (404, "mcp::lost")] {
        let (spec, _) = sse(Sse::default()).await;
        let session = Session::connect(&spec).await.unwrap();
        let Transport::Http { url, .. } = &spec.transport else { unreachable!() };
        // The same server with a proxy in front that refuses calls.
        let behind = url.trim_end_matches("/sse").to_owned();
        let proxied = serve(Router::new().fallback(any(move |request: Request| {
            let behind = behind.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
                if body.windows(10).any(|part| part == b"tools/call") {
                    return StatusCode::from_u16(status).unwrap().into_response();
                }
                let client = reqwest::Client::new();
                let request = client.request(parts.method, format!("{behind}{}", parts.uri)).body(body);
                let response = request.send().await.unwrap();
                let (status, headers) = (response.status(), response.headers().clone());
                (status, headers, Body::from_stream(response.bytes_stream())).into_response()
            }
        })))
        .await;
        session.close().await;
        let session = Session::connect(&at(proxied + "/sse")).await.unwrap();
        assert_eq!(session.call("t", Map::new()).await.unwrap_err().code(), code, "{status}");
    }
}

#[tokio::test]
async fn a_server_that_offers_neither_transport_reports_the_first_refusal() {
    for (status, body) in [(405, "POST /rpc"), (404, "nothing here"), (400, "what?")] {
        let refusal = any(move || async move { (StatusCode::from_u16(status).unwrap(), body) });
        let spec = at(serve(Router::new().route("/sse", refusal)).await + "/sse");
        let error = refused(&spec).await;
        assert_eq!(error.code(), "mcp::handshake");
        assert!(error.to_string().ends_with(body), "{error}");
    }
}

#[tokio::test]
async fn servers_of_every_revision_connect_over_http_however_slowly_they_start() {
    let connect = |revision: &'static str| async move {
        let answer = move |body: String| async move {
            let request: Value = serde_json::from_str(&body).unwrap();
            let is_newest = revision == "2026-07-28";
            let result = match request["method"].as_str().unwrap() {
                "server/discover" | "initialize" if (request["method"] == "initialize") == is_newest => None,
                "server/discover" => Some(json!({
                    "resultType": "complete", "supportedVersions": [revision], "capabilities": {"tools": {}},
                    "ttlMs": 0, "cacheScope": "private",
                })),
                "tools/list" if is_newest => Some(json!({
                    "resultType": "complete", "ttlMs": 0, "cacheScope": "private",
                    "tools": [{"name": "t", "inputSchema": {"type": "object"}}],
                })),
                _ => result(&request, revision),
            };
            if matches!(request["method"].as_str(), Some("server/discover" | "initialize"))
                && result.is_some()
            {
                tokio::time::sleep(Duration::from_secs(12)).await;
            }
            match result {
                Some(result) => axum::Json(reply(&request, result)).into_response(),
                None if request.get("id").is_none() => StatusCode::ACCEPTED.into_response(),
                None => {
                    let error = json!({"code": -32601, "message": "no such method"});
                    axum::Json(json!({"jsonrpc": "2.0", "id": request["id"], "error": error})).into_response()
                }
            }
        };
        let session = Session::connect(&at(serve(Router::new().fallback(post(answer))).await)).await.unwrap();
        assert_eq!(session.describe().await.unwrap().server.protocol, revision);
        assert_eq!(call(&session).await.text, "fine", "{revision}");
    };
    let revisions = ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
    futures::future::join_all(revisions.map(connect)).await;
}

/// Counts the connections that it accepts.
struct Counting(tokio::net::TcpListener, Arc<AtomicUsize>);

impl axum::serve::Listener for Counting {
    type Io = tokio::net::TcpStream;
    type Addr = std::net::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let accepted = axum::serve::Listener::accept(&mut self.0).await;
        self.1.fetch_add(1, Ordering::SeqCst);
        accepted
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.0.local_addr()
    }
}

#[tokio::test]
async fn calls_share_connections_however_they_are_answered() {
    for in_stream in [false, true] {
        let answer = move |body: String| async move {
            let request: Value = serde_json::from_str(&body).unwrap();
            match result(&request, "2025-11-25") {
                None => (StatusCode::ACCEPTED, "accepted").into_response(),
                Some(result) if in_stream => {
                    let event = format!("data: {}\n\n", reply(&request, result));
                    ([("content-type", "text/event-stream")], event).into_response()
                }
                Some(result) => axum::Json(reply(&request, result)).into_response(),
            }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let accepted = Arc::new(AtomicUsize::new(0));
        let counting = Counting(listener, Arc::clone(&accepted));
        tokio::spawn(async move { axum::serve(counting, Router::new().route("/mcp", post(answer))).await });
        let session = Session::connect(&at(url)).await.unwrap();
        // A machine that is busy with something else gets more tries.
        until_async("20 calls take less than 2 s", async || {
            let began = std::time::Instant::now();
            for _ in 0..20 {
                assert_eq!(call(&session).await.text, "fine");
            }
            began.elapsed() < Duration::from_secs(2)
        })
        .await;
        let accepted = accepted.load(Ordering::SeqCst);
        assert!(accepted <= 4, "{accepted} connections for 20 calls");
        session.close().await;
    }
}

#[tokio::test]
async fn a_call_whose_connection_breaks_is_not_sent_again() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let calls = Arc::new(AtomicUsize::new(0));
    let executed = Arc::clone(&calls);
    // Executes every call, and closes the connection in place of the second answer.
    let serving = async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let executed = Arc::clone(&executed);
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                loop {
                    let mut length = 0;
                    let mut line = String::new();
                    while line != "\r\n" {
                        line.clear();
                        if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                            return;
                        }
                        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                            length = value.trim().parse().unwrap();
                        }
                    }
                    let mut body = vec![0; length];
                    stream.read_exact(&mut body).await.unwrap();
                    let request: Value = serde_json::from_slice(&body).unwrap_or_default();
                    let is_call = request["method"] == "tools/call";
                    if is_call && executed.fetch_add(1, Ordering::SeqCst) > 0 {
                        return;
                    }
                    let answer = match request["method"].as_str().and_then(|_| result(&request, "2025-11-25"))
                    {
                        Some(result) => {
                            let body = reply(&request, result).to_string();
                            let length = body.len();
                            format!(
                                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
                            )
                        }
                        None if request.is_null() => {
                            "HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n".to_owned()
                        }
                        None => "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n".to_owned(),
                    };
                    if stream.get_mut().write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    };
    tokio::spawn(serving);
    let session = Session::connect(&at(url)).await.unwrap();
    assert_eq!(call(&session).await.text, "fine");
    assert_eq!(session.call("t", Map::new()).await.unwrap_err().code(), "mcp::lost");
    assert_eq!(calls.load(Ordering::SeqCst), 2, "a lost call may have been executed");
}

/// A server and its authorization server.
struct Issuer {
    url: String,
    /// The valid access token, and the refresh token, which is valid once.
    tokens: Mutex<(String, String)>,
    issued: AtomicUsize,
    /// Access tokens end with the first list of tools.
    ends_with_list: AtomicBool,
    /// The bodies of requests for a token.
    asked: Mutex<Vec<String>>,
}

impl Issuer {
    async fn start() -> Arc<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (tokens, issued, asked) = (Mutex::default(), AtomicUsize::new(0), Mutex::default());
        let issuer = Arc::new(Self { url, tokens, issued, ends_with_list: AtomicBool::new(false), asked });
        let answering = Arc::clone(&issuer);
        let router = Router::new().fallback(any(move |request: Request| answering.clone().answer(request)));
        tokio::spawn(async move { axum::serve(listener, router).await });
        issuer
    }

    fn server(&self) -> String {
        format!("{}/mcp", self.url)
    }

    fn expire(&self) {
        self.tokens.lock().unwrap().0.clear();
    }

    fn issue(&self) -> Response {
        let number = self.issued.fetch_add(1, Ordering::SeqCst);
        let (access, refresh) = (format!("secret-access-{number}"), format!("secret-refresh-{number}"));
        *self.tokens.lock().unwrap() = (access.clone(), refresh.clone());
        let token = json!({"access_token": access, "token_type": "Bearer", "refresh_token": refresh, "expires_in": 3600});
        axum::Json(token).into_response()
    }

    async fn answer(self: Arc<Self>, request: Request) -> Response {
        let url = &self.url;
        let (parts, body) = request.into_parts();
        let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
        let body = String::from_utf8(body.to_vec()).unwrap();
        let field = |text: &str, name: &str| {
            let url = reqwest::Url::parse(&format!("http://x/?{text}")).unwrap();
            url.query_pairs()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value.into_owned())
                .unwrap_or_default()
        };
        match parts.uri.path() {
            "/.well-known/oauth-protected-resource/mcp" => {
                axum::Json(json!({"resource": self.server(), "authorization_servers": [url]})).into_response()
            }
            "/.well-known/oauth-authorization-server" => axum::Json(json!({
                "issuer": url, "authorization_endpoint": format!("{url}/authorize"),
                "token_endpoint": format!("{url}/token"), "registration_endpoint": format!("{url}/register"),
                "response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"],
                "token_endpoint_auth_methods_supported": ["none", "client_secret_post"],
            }))
            .into_response(),
            "/register" => {
                let request: Value = serde_json::from_str(&body).unwrap();
                let client =
                    json!({"client_id": "c", "client_name": "c", "redirect_uris": request["redirect_uris"]});
                (StatusCode::CREATED, axum::Json(client)).into_response()
            }
            "/authorize" => {
                let query = parts.uri.query().unwrap();
                assert_eq!(field(query, "code_challenge_method"), "S256");
                let (back, state) = (field(query, "redirect_uri"), field(query, "state"));
                (StatusCode::FOUND, [("location", format!("{back}?code=code&state={state}"))]).into_response()
            }
            "/token" => {
                self.asked.lock().unwrap().push(body.clone());
                let refresh = self.tokens.lock().unwrap().1.clone();
                match field(&body, "grant_type").as_str() {
                    "authorization_code" => self.issue(),
                    "refresh_token" if field(&body, "refresh_token") == refresh => self.issue(),
                    "client_credentials" if field(&body, "client_secret") == "mcprl" => self.issue(),
                    _ => (StatusCode::BAD_REQUEST, axum::Json(json!({"error": "invalid_grant"})))
                        .into_response(),
                }
            }
            "/mcp" => {
                let mut tokens = self.tokens.lock().unwrap();
                let given = parts.headers.get("authorization").map(|value| value.to_str().unwrap());
                if tokens.0.is_empty() || given != Some(&*format!("Bearer {}", tokens.0)) {
                    let metadata = format!("{url}/.well-known/oauth-protected-resource/mcp");
                    let challenge = format!("Bearer resource_metadata=\"{metadata}\"");
                    return (StatusCode::UNAUTHORIZED, [("www-authenticate", challenge)]).into_response();
                }
                let Ok(request) = serde_json::from_str::<Value>(&body) else {
                    return StatusCode::METHOD_NOT_ALLOWED.into_response();
                };
                if request["method"] == "tools/list" && self.ends_with_list.load(Ordering::SeqCst) {
                    tokens.0 = String::new();
                }
                match result(&request, "2025-11-25") {
                    Some(result) => axum::Json(reply(&request, result)).into_response(),
                    None => StatusCode::ACCEPTED.into_response(),
                }
            }
            _ => StatusCode::NOT_FOUND.into_response(),
        }
    }
}

const MCPRL: &str = env!("CARGO_BIN_EXE_mcprl");

/// `mcprl connect` with its own folder for tokens.
fn connect(data: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(MCPRL);
    command.arg("connect").args(arguments).env("XDG_DATA_HOME", data).env_remove("RUST_BACKTRACE");
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// Exit code, and everything that was printed.
async fn printed(mut command: Command) -> (Option<i32>, String) {
    let output = command.output().await.unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

async fn log_in(data: &Path, server: &str) {
    let mut child = connect(data, &[server, "--login"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let address = loop {
        let line = lines.next_line().await.unwrap().unwrap();
        if line.starts_with("http") {
            break line;
        }
    };
    let _ = rustls::crypto::ring::default_provider().install_default();
    let page = reqwest::get(address).await.unwrap();
    assert!(page.status().is_success());
    let mut printed = String::new();
    while let Some(line) = lines.next_line().await.unwrap() {
        printed += &line;
    }
    let output = child.wait_with_output().await.unwrap();
    assert!(output.status.success(), "{printed}");
}

#[tokio::test]
async fn a_login_is_stored_and_renewed_in_mid_run() {
    let (issuer, data) = (Issuer::start().await, tempfile::tempdir().unwrap());
    let server = issuer.server();
    let (code, text) = printed(connect(data.path(), &[&server])).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(&format!("mcprl connect {server} --login")), "{text}");
    log_in(data.path(), &server).await;
    let folder = data.path().join("mcprl/tokens");
    for file in std::fs::read_dir(&folder).unwrap() {
        let file = file.unwrap();
        let mode = file.metadata().unwrap().permissions().mode() & 0o777;
        assert!(mode == 0o600 || file.path().extension().unwrap() == "lock", "{:?} {mode:o}", file.path());
    }
    // Connecting needs a new token, and so does the call after the list.
    issuer.expire();
    issuer.ends_with_list.store(true, Ordering::SeqCst);
    let (code, text) = printed(connect(data.path(), &[&server, "--call", "t"])).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("fine") && !text.contains("secret-"), "{text}");
    assert_eq!(issuer.issued.load(Ordering::SeqCst), 3);
    assert!(issuer.asked.lock().unwrap().iter().all(|body| body.contains("resource=")), "RFC 8707");
}

#[tokio::test]
async fn a_refresh_token_is_used_once_by_all_processes() {
    let (issuer, data) = (Issuer::start().await, tempfile::tempdir().unwrap());
    log_in(data.path(), &issuer.server()).await;
    issuer.expire();
    let server = issuer.server();
    let connects = (0..4).map(|_| printed(connect(data.path(), &[&server])));
    for (code, text) in futures::future::join_all(connects).await {
        assert_eq!(code, Some(0), "{text}");
    }
    let asked = issuer.asked.lock().unwrap();
    assert_eq!(asked.iter().filter(|body| body.contains("grant_type=refresh_token")).count(), 1);
}

#[tokio::test]
async fn a_rejected_refresh_token_asks_for_a_login() {
    let (issuer, data) = (Issuer::start().await, tempfile::tempdir().unwrap());
    log_in(data.path(), &issuer.server()).await;
    *issuer.tokens.lock().unwrap() = Default::default();
    let (code, text) = printed(connect(data.path(), &[&issuer.server()])).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("refused the token that it was sent") && text.contains("--login"), "{text}");
    assert!(!text.contains("secret-"), "{text}");
}

#[tokio::test]
async fn a_refusal_that_everybody_gets_is_no_forgotten_session() {
    for (status, code) in
        [(401, "mcp::refused"), (403, "mcp::refused"), (500, "mcp::lost"), (302, "mcp::lost")]
    {
        for is_of_all in [false, true] {
            let begun = Arc::<AtomicUsize>::default();
            let count = begun.clone();
            let handle = move |body: String| async move {
                let request: Value = serde_json::from_str(&body).unwrap();
                let is_first = request["method"] != "initialize" || count.fetch_add(1, Ordering::SeqCst) == 0;
                if request["method"] == "tools/call" || is_of_all && !is_first {
                    return StatusCode::from_u16(status).unwrap().into_response();
                }
                let Some(result) = result(&request, "2025-06-18") else {
                    return StatusCode::ACCEPTED.into_response();
                };
                let body = reply(&request, result).to_string();
                ([("content-type", "application/json"), ("mcp-session-id", "s1")], body).into_response()
            };
            let spec = at(serve(Router::new().route("/mcp", post(handle))).await + "/mcp");
            let session = Session::connect(&spec).await.unwrap();
            let error = session.call("t", Map::new()).await.unwrap_err();
            assert_eq!(error.code(), code, "{status}: {error}");
            assert_eq!(begun.load(Ordering::SeqCst), 2, "{status}");
        }
    }
}

#[tokio::test]
async fn a_client_authorizes_itself() {
    let (issuer, data) = (Issuer::start().await, tempfile::tempdir().unwrap());
    // A process of its own, because the folder for tokens is named by the environment.
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "servers::http::client_credentials", "--ignored"]);
    again.env("XDG_DATA_HOME", data.path()).env("SERVER", issuer.server());
    let (code, text) = printed(again).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(issuer.asked.lock().unwrap().iter().all(|body| body.contains("grant_type=client_credentials")));
}

#[tokio::test]
#[ignore = "is started by another test"]
async fn client_credentials() {
    let mut spec = at(std::env::var("SERVER").unwrap());
    let client = |secret_env: &str| Token::Client {
        id: "c".into(),
        secret_env: secret_env.into(),
        scopes: Vec::new(),
        issuer: None,
    };
    *token_of(&mut spec) = client("CARGO_PKG_VERSION");
    let error = refused(&spec).await;
    assert!(error.to_string().contains("/token answered with HTTP status 400: "), "{error}");
    assert!(error.to_string().starts_with("cannot get a token for the server"), "{error}");
    assert!(!error.is_transient() && error.hint().unwrap().contains("`oauth`"), "{error}");
    let mut elsewhere = client("CARGO_PKG_NAME");
    let Token::Client { issuer, .. } = &mut elsewhere else { unreachable!() };
    *issuer = Some("https://login.example.com/".into());
    *token_of(&mut spec) = elsewhere;
    let error = refused(&spec).await.to_string();
    assert!(error.contains("expected https://login.example.com/"), "{error}");
    *token_of(&mut spec) = client("CARGO_PKG_NAME");
    let session = Session::connect(&spec).await.unwrap();
    assert_eq!(session.tools().await.unwrap()[0].name, "t");
    assert_eq!(call(&session).await.text, "fine");
    *token_of(&mut spec) = client("NO_SUCH_VARIABLE");
    assert_eq!(refused(&spec).await.code(), "mcp::unset_variable");
}

fn token_of(spec: &mut ServerSpec) -> &mut Token {
    let Transport::Http { token, .. } = &mut spec.transport else { unreachable!() };
    token
}

#[tokio::test]
async fn a_token_file_is_read_at_each_connection() {
    let (issuer, folder) = (Issuer::start().await, tempfile::tempdir().unwrap());
    let path = folder.path().join("token");
    let mut spec = at(issuer.server());
    *token_of(&mut spec) = Token::File(path.clone());
    assert_eq!(refused(&spec).await.code(), "mcp::token_file");
    for token in ["one", "two"] {
        std::fs::write(&path, format!("{token}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let error = refused(&spec).await;
        assert_eq!(error.code(), "mcp::unauthorized");
        assert!(error.to_string().ends_with("refused the token that it was sent"), "{error}");
        issuer.tokens.lock().unwrap().0 = token.into();
        assert!(Session::connect(&spec).await.is_ok());
    }
}

/// A server that forgets each session after its second call, and then answers all its requests like this. Also counts sessions.
async fn forgetful(answer: fn(&Value) -> Response) -> (ServerSpec, Arc<AtomicUsize>) {
    let (sessions, calls) =
        (Arc::<AtomicUsize>::default(), Arc::new(Mutex::new(std::collections::BTreeMap::new())));
    let count = sessions.clone();
    let handle = move |headers: HeaderMap, body: String| async move {
        let request: Value = serde_json::from_str(&body).unwrap();
        let revision = "2025-06-18";
        if request["method"] == "initialize" {
            let id = format!("s{}", count.fetch_add(1, Ordering::SeqCst));
            let body = reply(&request, result(&request, revision).unwrap()).to_string();
            return ([("content-type", "application/json"), ("mcp-session-id", id.leak())], body)
                .into_response();
        }
        let Some(result) = result(&request, revision) else { return StatusCode::ACCEPTED.into_response() };
        let session = headers["mcp-session-id"].to_str().unwrap().to_owned();
        let used = {
            let mut calls = calls.lock().unwrap();
            let used = calls.entry(session).or_insert(0);
            *used += usize::from(request["method"] == "tools/call");
            *used
        };
        match used {
            0..=2 => {
                ([("content-type", "application/json")], reply(&request, result).to_string()).into_response()
            }
            _ => answer(&request),
        }
    };
    (at(serve(Router::new().route("/mcp", post(handle))).await + "/mcp"), sessions)
}

fn error_of(status: u16, id: &Value, code: i64, text: &str) -> Response {
    let body = json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": text}}).to_string();
    (StatusCode::from_u16(status).unwrap(), [("content-type", "application/json")], body).into_response()
}

/// In a result, that it is an error.
fn in_band(request: &Value, text: &str) -> Response {
    let result = json!({"content": [{"type": "text", "text": text}], "isError": true});
    ([("content-type", "application/json")], reply(request, result).to_string()).into_response()
}

/// The first message of a stream.
fn in_stream(message: &Value) -> Response {
    let body = format!("id: 1\n\nevent: message\ndata: {message}\n\n");
    ([("content-type", "text/event-stream")], body).into_response()
}

/// Answers calls so, and lists tools of any session.
fn calls_alone(request: &Value, answer: fn(&Value) -> Response) -> Response {
    match request["method"] == "tools/list" {
        true => axum::Json(reply(request, result(request, "").unwrap())).into_response(),
        false => answer(request),
    }
}

#[tokio::test]
async fn a_session_that_the_server_has_forgotten_is_begun_again_whatever_it_answers() {
    let answers: [fn(&Value) -> Response; 22] = [
        |_| StatusCode::NOT_FOUND.into_response(),
        |_| (StatusCode::UNAUTHORIZED, [("www-authenticate", "Bearer")]).into_response(),
        |_| StatusCode::UNAUTHORIZED.into_response(),
        |_| (StatusCode::FORBIDDEN, format!("at {:?}", std::time::Instant::now())).into_response(),
        |_| (StatusCode::INTERNAL_SERVER_ERROR, "oops").into_response(),
        |_| (StatusCode::FOUND, [("location", "https://login.example.com/")]).into_response(),
        |request| ([("content-type", "text/html")], format!("<p>{}", request["id"])).into_response(),
        |_| ([("content-type", "application/json")], "").into_response(),
        |_| StatusCode::ACCEPTED.into_response(),
        |_| error_of(400, &Value::Null, -32000, "Bad Request: No valid session ID provided"),
        |request| error_of(400, &request["id"], -32602, "Invalid request parameters"),
        |request| error_of(200, &request["id"], -32001, "Session not found"),
        |request| error_of(200, &request["id"], -32602, "Invalid request parameters"),
        |_| (StatusCode::BAD_REQUEST, "who are you?").into_response(),
        |request| error_of(200, &request["id"], -32601, "Method not found"),
        |request| in_band(request, "Session expired"),
        |request| in_band(request, &format!("request 7f{}: no longer connected", request["id"])),
        |request| calls_alone(request, |request| in_band(request, "unknown session")),
        |request| calls_alone(request, |request| error_of(200, &request["id"], -32603, "Internal error")),
        |request| calls_alone(request, |_| (StatusCode::UNPROCESSABLE_ENTITY, "?").into_response()),
        |request| {
            let error = json!({"code": -32602, "message": "Invalid request parameters"});
            in_stream(&json!({"jsonrpc": "2.0", "id": request["id"], "error": error}))
        },
        |request| {
            let name = request["params"]["name"].as_str().unwrap_or_default();
            let text = format!("{name}: Sitzung abgelaufen");
            let result = json!({"content": [{"type": "text", "text": text}], "isError": true});
            in_stream(&reply(request, result))
        },
    ];
    for (index, answer) in answers.into_iter().enumerate() {
        let (spec, sessions) = forgetful(answer).await;
        let session = Session::connect(&spec).await.unwrap();
        for _ in 0..5 {
            let outcome = call(&session).await;
            assert_eq!((outcome.text.as_str(), outcome.is_error), ("fine", false), "answer {index}");
        }
        // One that finds out may have been begun for each that is forgotten.
        let begun = sessions.load(Ordering::SeqCst);
        assert!((3..=5).contains(&begun), "answer {index}: {begun} sessions");
        session.close().await;
        // A session with state is lost, and its end is no answer of a tool.
        let (spec, _) = forgetful(answer).await;
        let session = Session::connect(&ServerSpec { state: State::FreshProcess, ..spec }).await.unwrap();
        for _ in 0..2 {
            assert_eq!(call(&session).await.text, "fine");
        }
        let lost = session.call("t", Map::new()).await.unwrap_err();
        assert!(matches!(lost, McpError::Lost { .. }), "answer {index}: {lost}");
    }
}

/// Errors of tools, by what a server with sessions answers a call, and whether it refuses other tools in the same words.
#[tokio::test]
async fn an_error_of_a_tool_is_an_answer_in_a_session_that_goes_on() {
    let answers: [fn(&Value) -> Response; 4] = [
        |request| in_band(request, "Session expired: log in to the shop again"),
        |request| error_of(200, &request["id"], -32602, "session not found in the conference's program"),
        |request| error_of(404, &request["id"], -32000, "no such boat"),
        |request| in_stream(&reply(request, json!({"content": "no such session", "isError": true}))),
    ];
    for (index, answer) in answers.into_iter().enumerate() {
        for is_known in [true, false] {
            let asked = Arc::<AtomicUsize>::default();
            let count = asked.clone();
            let handle = move |body: String| async move {
                let request: Value = serde_json::from_str(&body).unwrap();
                let is_call = request["method"] == "tools/call";
                count.fetch_add(usize::from(is_call), Ordering::SeqCst);
                if is_call && (request["params"]["name"] == "t" || !is_known) {
                    return answer(&request);
                }
                if is_call {
                    return error_of(200, &request["id"], -32602, "Unknown tool");
                }
                let Some(result) = result(&request, "2025-06-18") else {
                    return StatusCode::ACCEPTED.into_response();
                };
                let body = reply(&request, result).to_string();
                ([("content-type", "application/json"), ("mcp-session-id", "s1")], body).into_response()
            };
            let spec = at(serve(Router::new().route("/mcp", post(handle))).await + "/mcp");
            let session = Session::connect(&ServerSpec { state: State::FreshProcess, ..spec }).await.unwrap();
            // HTTP's own word for it is believed.
            if index == 2 {
                assert_eq!(session.call("t", Map::new()).await.unwrap_err().code(), "mcp::lost");
                continue;
            }
            for _ in 0..4 {
                assert!(call(&session).await.is_error, "answer {index}");
            }
            let most = if is_known { 5 } else { 12 };
            assert!(asked.load(Ordering::SeqCst) <= most, "what is known is not asked again");
            session.close().await;
        }
    }
}

/// A server with a session whose calls are answered like this, and its stream for what belongs to no request, if it has one.
async fn answering_calls(call: fn(&Value) -> Response, stream: Option<fn() -> Response>) -> ServerSpec {
    let handle = move |body: String| async move {
        let request: Value = serde_json::from_str(&body).unwrap();
        if request["method"] == "tools/call" {
            return call(&request);
        }
        let Some(result) = result(&request, "2025-06-18") else {
            return StatusCode::ACCEPTED.into_response();
        };
        let body = reply(&request, result).to_string();
        ([("content-type", "application/json"), ("mcp-session-id", "s1")], body).into_response()
    };
    let mut route = post(handle);
    if let Some(stream) = stream {
        route = route.get(move || async move { stream() });
    }
    let mut spec = at(serve(Router::new().route("/mcp", route)).await + "/mcp");
    spec.limits.call_timeout = Duration::from_secs(3);
    spec
}

/// A body that begins so and then breaks off.
fn broken(kind: &'static str, begin: String) -> Response {
    let bytes = [Ok(Bytes::from(begin)), Err(std::io::Error::other("reset"))];
    let pause = |bytes| async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        bytes
    };
    let body = Body::from_stream(futures::StreamExt::then(futures::stream::iter(bytes), pause));
    ([("content-type", kind)], body).into_response()
}

#[tokio::test]
async fn a_failure_of_the_transport_is_never_the_answer_of_a_tool() {
    let quiet: fn() -> Response = || {
        (
            [("content-type", "text/event-stream")],
            Body::from_stream(futures::stream::pending::<std::io::Result<Bytes>>()),
        )
            .into_response()
    };
    let ended: fn() -> Response = || ([("content-type", "text/event-stream")], "").into_response();
    type Answer = fn(&Value) -> Response;
    let calls: [(&str, Answer); 6] = [
        ("202", |_| StatusCode::ACCEPTED.into_response()),
        ("204", |_| StatusCode::NO_CONTENT.into_response()),
        ("a body that breaks off", |request| {
            broken("application/json", format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{"#, request["id"]))
        }),
        ("a stream that breaks off", |_| broken("text/event-stream", ": hello\n\n".into())),
        ("a stream that breaks off and could go on", |_| {
            broken("text/event-stream", "id: 1\ndata: \n\n".into())
        }),
        ("a stream that ends and could go on", |_| {
            ([("content-type", "text/event-stream")], "id: 1\nretry: 100\ndata: \n\n").into_response()
        }),
    ];
    let mut cases = Vec::new();
    for (what, answer) in calls {
        for (index, stream) in [None, Some(ended), Some(quiet)].into_iter().enumerate() {
            // A stream that is resumed and stays open may be that of a slow tool.
            if what.ends_with("could go on") && index == 2 {
                continue;
            }
            cases.extend([State::ReadOnly, State::FreshProcess].map(|state| (what, answer, stream, state)));
        }
    }
    let cases = cases.into_iter().map(|(what, answer, stream, state)| async move {
        let spec = answering_calls(answer, stream).await;
        let session = Session::connect(&ServerSpec { state, ..spec }).await.unwrap();
        let lost = session.call("t", Map::new()).await;
        assert!(matches!(lost, Err(McpError::Lost { .. })), "{what}: {lost:?}");
        assert!(!session.is_alive(), "{what}");
    });
    futures::future::join_all(cases).await;
}

#[tokio::test]
async fn an_answer_by_another_stream_than_that_of_its_request_arrives() {
    // Ends the stream of the call, and answers when it is resumed.
    let resumed: fn() -> Response = || {
        let answer = json!({"jsonrpc": "2.0", "id": 1, "result": {"content": "late"}});
        let body = format!("id: 2\ndata: {answer}\n\n");
        ([("content-type", "text/event-stream")], body).into_response()
    };
    let ending: fn(&Value) -> Response =
        |_| ([("content-type", "text/event-stream")], "id: 1\nretry: 100\ndata: \n\n").into_response();
    let session = Session::connect(&answering_calls(ending, Some(resumed)).await).await.unwrap();
    assert_eq!(call(&session).await.text, "late");
    session.close().await;
    // Takes the call without an answer, and answers by the connection's stream.
    let later: fn() -> Response = || {
        let answer = json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32000, "message": "no such boat"}});
        let body = async move {
            tokio::time::sleep(Duration::from_millis(500)).await;
            Ok::<_, Infallible>(Bytes::from(format!("data: {answer}\n\n")))
        };
        let body = futures::StreamExt::chain(futures::stream::once(body), futures::stream::pending());
        ([("content-type", "text/event-stream")], Body::from_stream(body)).into_response()
    };
    let taken: fn(&Value) -> Response = |_| StatusCode::ACCEPTED.into_response();
    let session = Session::connect(&answering_calls(taken, Some(later)).await).await.unwrap();
    let outcome = call(&session).await;
    assert_eq!((outcome.text.as_str(), outcome.is_error), ("no such boat", true));
    session.close().await;
}

#[tokio::test]
async fn an_error_of_a_tool_stays_its_answer_in_a_session_that_goes_on() {
    let handle = |body: String| async move {
        let request: Value = serde_json::from_str(&body).unwrap();
        if request["method"] == "tools/call" {
            return error_of(400, &request["id"], -32602, "the session of your shop has expired");
        }
        let Some(result) = result(&request, "2025-06-18") else {
            return StatusCode::ACCEPTED.into_response();
        };
        let body = reply(&request, result).to_string();
        ([("content-type", "application/json"), ("mcp-session-id", "s1")], body).into_response()
    };
    let spec = at(serve(Router::new().route("/mcp", post(handle))).await + "/mcp");
    let session = Session::connect(&spec).await.unwrap();
    let outcome = call(&session).await;
    assert_eq!((outcome.text.as_str(), outcome.is_error), ("the session of your shop has expired", true));
    session.close().await;
}

#[tokio::test]
async fn redirects_within_the_origin_are_followed_and_others_are_refused_with_their_address() {
    let answer = |body: String| async move {
        let request: Value = serde_json::from_str(&body).unwrap();
        let Some(result) = result(&request, "2025-06-18") else {
            return StatusCode::ACCEPTED.into_response();
        };
        ([("content-type", "application/json")], reply(&request, result).to_string()).into_response()
    };
    for (status, location, is_followed) in [
        (307, "ORIGIN/mcp/", true),
        (308, "/mcp/", true),
        (308, "mcp/", true),
        (301, "ORIGIN/mcp/", false),
        (301, "http://127.0.0.1:9/mcp/", false),
        (307, "https://127.0.0.1:9/mcp/", false),
        (307, "/mcp", false),
    ] {
        let asked = Arc::<AtomicUsize>::default();
        let count = asked.clone();
        let moved = move |headers: HeaderMap| async move {
            count.fetch_add(1, Ordering::SeqCst);
            let origin = format!("http://{}", headers["host"].to_str().unwrap());
            let status = StatusCode::from_u16(status).unwrap();
            (status, [("location", location.replace("ORIGIN", &origin))]).into_response()
        };
        let url = serve(Router::new().route("/mcp", post(moved)).route("/mcp/", post(answer))).await + "/mcp";
        if is_followed {
            let session = Session::connect(&at(url)).await.unwrap();
            assert_eq!(call(&session).await.text, "fine", "{status} {location}");
            assert_eq!(asked.load(Ordering::SeqCst), 1, "the new address is used from then on");
            session.close().await;
        } else {
            let error = refused(&at(url.clone())).await;
            let origin = url.trim_end_matches("/mcp");
            let shown = location.replace("ORIGIN", origin);
            assert!(error.to_string().contains(&shown), "{status} {location}: {error}");
        }
    }
}

#[tokio::test]
async fn a_server_that_refuses_the_newest_revision_before_it_reads_a_message_is_offered_older_ones() {
    let handle = |body: String| async move {
        let request: Value = serde_json::from_str(&body).unwrap();
        let is_new =
            request["params"]["protocolVersion"].as_str().is_some_and(|version| version > "2025-03-26");
        if is_new || request["method"] == "server/discover" {
            return (StatusCode::BAD_REQUEST, "Unsupported protocol version").into_response();
        }
        let Some(result) = result(&request, "2025-03-26") else {
            return StatusCode::ACCEPTED.into_response();
        };
        ([("content-type", "application/json")], reply(&request, result).to_string()).into_response()
    };
    let session =
        Session::connect(&at(serve(Router::new().route("/mcp", post(handle))).await + "/mcp")).await.unwrap();
    let Description { server, .. } = session.describe().await.unwrap();
    assert_eq!(server.protocol, "2025-03-26");
    session.close().await;
}

#[tokio::test]
async fn the_end_of_a_session_is_sent_to_where_the_server_has_moved() {
    for status in [307, 308] {
        let ended = Arc::<Mutex<Vec<String>>>::default();
        let noted = ended.clone();
        let end = move |headers: HeaderMap| async move {
            noted.lock().unwrap().push(headers["mcp-session-id"].to_str().unwrap().to_owned());
        };
        let answer = |body: String| async move {
            let request: Value = serde_json::from_str(&body).unwrap();
            let Some(result) = result(&request, "2025-06-18") else {
                return StatusCode::ACCEPTED.into_response();
            };
            let body = reply(&request, result).to_string();
            ([("content-type", "application/json"), ("mcp-session-id", "s1")], body).into_response()
        };
        let moved = move || async move {
            (StatusCode::from_u16(status).unwrap(), [("location", "/there")]).into_response()
        };
        // The end alone is redirected, and then every request.
        for start in ["/there-but-for-its-end", "/mcp"] {
            let router = Router::new()
                .route("/mcp", post(moved).delete(moved))
                .route("/there-but-for-its-end", post(answer).delete(moved))
                .route("/there", post(answer).delete(end.clone()));
            let session = Session::connect(&at(serve(router).await + start)).await.unwrap();
            assert_eq!(call(&session).await.text, "fine");
            session.close().await;
            assert_eq!(std::mem::take(&mut *ended.lock().unwrap()), ["s1"], "{status} {start}");
        }
    }
}

#[tokio::test]
async fn what_a_server_that_does_not_run_needs_is_said() {
    let error = refused(&at("http://127.0.0.1:9/mcp".into())).await;
    assert!(error.hint().unwrap().contains("check that the server runs"), "{error}");
}
