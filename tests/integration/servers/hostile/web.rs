//! Hostile servers over HTTP.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::Value;

use super::{
    CallError, Ends, Fails, Fine,
    run::{Bounds, TOKEN},
};

const MIB: usize = 1 << 20;
/// No case needs more, with replies to the server's own requests.
const REQUESTS: usize = 1000;

pub type Case = super::run::Case<fn(&mut Peer)>;

/// A case that waits for no timeout.
const fn case(name: &'static str, answer: fn(&mut Peer), ends: Ends) -> Case {
    Case::new(name, answer, ends)
}

impl Case {
    pub fn run(&self, bounds: &Bounds, tag: &str) -> Vec<String> {
        let thief = Listener::start(|p| p.respond("200 OK", "", "stolen"), 0);
        let server = Listener::start(self.answer, thief.port);
        let url = format!("http://127.0.0.1:{}/mcp", server.port);
        let run = self.run_with(&["--bearer-env", "HOSTILE_TOKEN"], &[url]);
        let mut problems = bounds.problems(&run, self, tag);
        if thief.requests.load(Ordering::Relaxed) > 0 {
            problems.push("followed a redirect to another origin".into());
        }
        let requests = server.requests.load(Ordering::Relaxed);
        if requests > REQUESTS {
            problems.push(format!("sent {requests} requests"));
        }
        if run.out.contains(TOKEN) || run.err.contains(TOKEN) {
            problems.push("printed the token".into());
        }
        problems
    }
}

/// A server on a port of its own. Its threads end with the test.
struct Listener {
    port: u16,
    requests: Arc<AtomicUsize>,
}

impl Listener {
    fn start(answer: fn(&mut Peer), other_port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::<AtomicUsize>::default();
        let counter = Arc::clone(&requests);
        std::thread::spawn(move || {
            let calls = Arc::<AtomicUsize>::default();
            for stream in listener.incoming().flatten() {
                counter.fetch_add(1, Ordering::Relaxed);
                let (calls, number) = (Arc::clone(&calls), counter.load(Ordering::Relaxed));
                std::thread::spawn(move || {
                    if let Some(mut peer) = Peer::read(stream, port, other_port, number, &calls) {
                        answer(&mut peer);
                    }
                });
            }
        });
        Self { port, requests }
    }
}

/// The server's side of one request.
pub struct Peer {
    stream: Mutex<TcpStream>,
    port: u16,
    /// Where a thief listens.
    other_port: u16,
    verb: String,
    method: String,
    id: Value,
    message: Value,
    /// The headers as they came.
    head: String,
    /// Requests so far, and among them calls.
    number: usize,
    calls: usize,
}

const JSON: &str = "content-type: application/json\r\n";
const EVENTS: &str = "content-type: text/event-stream\r\n";
const SESSION: &str = "content-type: application/json\r\nmcp-session-id: s\r\n";
const FINE: &str = r#""result":{"content":"fine"}"#;

impl Peer {
    /// Reads a request; `None` if there is none.
    fn read(
        mut stream: TcpStream,
        port: u16,
        other_port: u16,
        number: usize,
        calls: &AtomicUsize,
    ) -> Option<Self> {
        let mut bytes = Vec::new();
        let end = loop {
            if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            let mut piece = [0; 4096];
            let count = stream.read(&mut piece).ok().filter(|count| *count > 0)?;
            bytes.extend_from_slice(&piece[..count]);
        };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let length = head
            .to_ascii_lowercase()
            .lines()
            .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        let mut body = bytes.split_off(end);
        let read = body.len();
        body.resize(length.unwrap_or(0).max(read), 0);
        stream.read_exact(&mut body[read..]).ok()?;
        let message: Value = serde_json::from_slice(&body).unwrap_or_default();
        let method = message["method"].as_str().unwrap_or_default().to_owned();
        let is_call = usize::from(method == "tools/call");
        Some(Self {
            stream: Mutex::new(stream),
            port,
            other_port,
            verb: head.split(' ').next()?.to_owned(),
            id: message["id"].clone(),
            method,
            message,
            head,
            number,
            calls: calls.fetch_add(is_call, Ordering::Relaxed) + is_call,
        })
    }

    /// Writes; false once the client is gone.
    fn write(&self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.lock().unwrap().write_all(bytes.as_ref()).is_ok()
    }

    fn respond(&self, status: &str, headers: &str, body: impl AsRef<str>) {
        let body = body.as_ref();
        self.write(format!(
            "HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        ));
    }

    /// The beginning of a response whose body ends with the connection.
    fn open(&self, headers: &str) {
        self.write(format!("HTTP/1.1 200 OK\r\n{headers}connection: close\r\n\r\n"));
    }

    /// An answer with what follows its id.
    fn message(&self, rest: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":{},{rest}}}"#, self.id)
    }

    fn answer(&self, rest: &str) {
        self.respond("200 OK", SESSION, self.message(rest));
    }

    /// Never answers, until the client is gone.
    fn wait(&self) {
        let _ = self.stream.lock().unwrap().read(&mut [0]);
    }

    fn is_call(&self) -> bool {
        self.method == "tools/call"
    }

    fn is_start(&self) -> bool {
        self.method == "initialize"
    }

    /// Answers as a well-behaved server.
    fn usual(&self) {
        match (self.verb.as_str(), self.method.as_str()) {
            ("GET", _) => self.respond("405 Method Not Allowed", "", ""),
            (_, "initialize") => self.answer(
                r#""result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}"#,
            ),
            (_, "tools/list") => self.answer(r#""result":{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}"#),
            (_, "tools/call") => self.answer(FINE),
            ("DELETE", _) => self.respond("200 OK", "", ""),
            _ => self.respond("202 Accepted", "", ""),
        }
    }

    /// As usual, but a call gets this response.
    fn calls(&self, status: &str, headers: &str, body: impl AsRef<str>) {
        if self.is_call() { self.respond(status, headers, body) } else { self.usual() }
    }

    /// As usual, but the handshake gets this response.
    fn starts(&self, status: &str, headers: &str, body: &str) {
        if self.is_start() { self.respond(status, headers, body) } else { self.usual() }
    }

    /// As usual, but a call gets what this writes.
    fn on_call(&self, write: impl FnOnce(&Self)) {
        if self.is_call() { write(self) } else { self.usual() }
    }

    /// A call gets these events.
    fn events(&self, events: impl AsRef<str>) {
        self.on_call(|p| {
            p.open(EVENTS);
            p.write(events.as_ref());
        });
    }

    /// A call gets this, again and again.
    fn endless(&self, headers: &str, piece: &str) {
        self.on_call(|p| {
            p.open(headers);
            let piece = piece.repeat(1 + 65536 / piece.len());
            while p.write(&piece) {}
        });
    }
}

fn x(count: usize) -> String {
    "x".repeat(count)
}

const NO_ANSWER: Ends = CallError("the tool did not answer within 1s");
const NOT_ANSWERED: Ends = Fails("the server took the request without an answer");
const LOG: &str = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":1}}\n\n";

pub const CASES: &[Case] = &[
    // Redirects.
    case(
        "a redirect of the handshake to another origin",
        |p| {
            p.starts(
                "307 Temporary Redirect",
                &format!("location: http://127.0.0.1:{}/mcp\r\n", p.other_port),
                "",
            );
        },
        Fails("HTTP 307"),
    ),
    case(
        "a redirect of a call to another origin",
        |p| {
            p.calls("302 Found", &format!("location: http://localhost:{}/mcp\r\n", p.other_port), "");
        },
        Fails("HTTP 302"),
    ),
    case(
        "a redirect to itself",
        |p| {
            p.calls("308 Permanent Redirect", &format!("location: http://127.0.0.1:{}/mcp\r\n", p.port), "");
        },
        Fails("HTTP 308"),
    ),
    // Refusals.
    case(
        "401 in the handshake",
        |p| p.starts("401 Unauthorized", "www-authenticate: Bearer\r\n", ""),
        Fails("refused the token"),
    ),
    case("401 without a challenge", |p| p.starts("401 Unauthorized", "", "no"), Fails("refused the token")),
    case("401 in a call", |p| p.calls("401 Unauthorized", "", ""), Fails("HTTP status 401")),
    case(
        "403 in the handshake",
        |p| p.starts("403 Forbidden", "", "not you"),
        Fails("HTTP 403 Forbidden: not you"),
    ),
    case("403 in a call", |p| p.calls("403 Forbidden", "", ""), Fails("HTTP status 403")),
    case("404 in the handshake", |p| p.starts("404 Not Found", "", ""), Fails("HTTP 404")),
    case("404 in a call", |p| p.calls("404 Not Found", "", ""), Fails("lost the connection")),
    case("405 in the handshake", |p| p.starts("405 Method Not Allowed", "", ""), Fails("HTTP 405")),
    case(
        "a refusal that quotes the token",
        |p| {
            p.calls(
                "400 Bad Request",
                "",
                p.head.lines().find(|line| line.starts_with("authorization")).unwrap_or("?"),
            );
        },
        Fails("HTTP 400"),
    ),
    case(
        "429 once, without Retry-After",
        |p| {
            if p.calls == 1 { p.calls("429 Too Many Requests", "", "") } else { p.usual() }
        },
        Fine("fine"),
    ),
    case(
        "429 once, with Retry-After",
        |p| {
            if p.calls == 1 { p.calls("429 Too Many Requests", "retry-after: 1\r\n", "") } else { p.usual() }
        },
        Fine("fine"),
    ),
    case(
        "429 for ever in the handshake",
        |p| p.starts("429 Too Many Requests", "", ""),
        Fails("HTTP status 429"),
    )
    .start_s(2),
    case(
        "429 with too long a wait",
        |p| p.calls("429 Too Many Requests", "retry-after: 99999999999\r\n", ""),
        Fails("HTTP status 429"),
    ),
    case("500 in the handshake", |p| p.starts("500 Internal Server Error", "", "oops"), Fails("500")),
    case("500 in a call", |p| p.calls("500 Internal Server Error", "", "oops"), Fails("lost the connection")),
    case(
        "502 with a page",
        |p| p.calls("502 Bad Gateway", "content-type: text/html\r\n", "<html>\x1b[2J"),
        Fails("HTTP status 502"),
    ),
    case(
        "a refusal without an end",
        |p| {
            p.on_call(|p| {
                p.write("HTTP/1.1 400 Bad Request\r\n\r\n");
                while p.write([b'x'; 65536]) {}
            })
        },
        Fails("HTTP 400"),
    ),
    // Bodies.
    case(
        "a page in the handshake",
        |p| p.starts("200 OK", "content-type: text/html\r\n", "<html>\x1b[2Jhello"),
        Fails("the answer is text/html, not JSON: <html>hello"),
    ),
    case(
        "an answer of no type",
        |p| p.calls("200 OK", "", "hello"),
        Fails("the answer is of no type, not JSON: hello"),
    ),
    case(
        "JSON that is no message",
        |p| p.calls("200 OK", JSON, "[]"),
        Fails("the answer is not a JSON-RPC message"),
    ),
    case("NaN", |p| p.answer_call(r#""result":{"n":NaN}"#), CallError("it has `NaN`")),
    case(
        "another id",
        |p| p.calls("200 OK", JSON, r#"{"jsonrpc":"2.0","id":77,"result":{}}"#),
        CallError("it answers the request 77"),
    ),
    case(
        "a body that drips",
        |p| {
            p.on_call(|p| {
                p.open(JSON);
                while p.write(" ") {
                    std::thread::sleep(Duration::from_millis(20));
                }
            })
        },
        NO_ANSWER,
    )
    .call_s(1),
    case(
        "a body that drips in the handshake",
        |p| {
            p.open(JSON);
            while p.write(" ") {
                std::thread::sleep(Duration::from_millis(20));
            }
        },
        Fails("was not ready within 1s"),
    )
    .start_s(1),
    case("a body without an end", |p| p.endless(JSON, "["), NO_ANSWER).call_s(1).memory_mib(48),
    case(
        "chunks without an end",
        |p| {
            p.on_call(|p| {
                p.open(&format!("{JSON}transfer-encoding: chunked\r\n"));
                p.write(format!("{:x}\r\n{}\r\n", p.message(FINE).len(), p.message(FINE)));
                p.wait();
            })
        },
        NO_ANSWER,
    )
    .call_s(1),
    case(
        "a chunk of the wrong size",
        |p| {
            p.on_call(|p| {
                p.open(&format!("{JSON}transfer-encoding: chunked\r\n"));
                p.write("fffffffffffffffff\r\nx\r\n");
            })
        },
        Fails("lost the connection"),
    ),
    case(
        "a content length that is too long",
        |p| {
            p.on_call(|p| {
                p.write(format!("HTTP/1.1 200 OK\r\n{JSON}content-length: 999\r\n\r\n{}", p.message(FINE)));
            })
        },
        Fails("lost the connection"),
    ),
    case(
        "a content length that is too short",
        |p| {
            p.on_call(|p| {
                p.write(format!("HTTP/1.1 200 OK\r\n{JSON}content-length: 30\r\n\r\n{}", p.message(FINE)));
            })
        },
        CallError("it is not JSON"),
    ),
    case(
        "a content length that is no number",
        |p| {
            p.on_call(|p| {
                p.write(format!("HTTP/1.1 200 OK\r\n{JSON}content-length: -5\r\n\r\n{}", p.message(FINE)));
            })
        },
        Fails("lost the connection"),
    ),
    case(
        "a body of 17 MiB",
        |p| p.answer_call(&format!(r#""result":{{"content":"{}"}}"#, x(17 * MIB))),
        CallError("it is longer than 16 MiB"),
    )
    .memory_mib(48),
    case(
        "a gzip bomb that nobody asked for",
        |p| {
            p.on_call(|p| {
                let bomb = Command::new("sh")
                    .args(["-c", "head -c 100000000 /dev/zero | gzip"])
                    .output()
                    .unwrap()
                    .stdout;
                p.open(&format!("{JSON}content-encoding: gzip\r\n"));
                p.write(bomb);
            })
        },
        Fails("the answer is not a JSON-RPC message"),
    ),
    // Connections.
    case(
        "a connection that breaks in the head",
        |p| {
            p.on_call(|p| {
                p.write("HTTP/1.1 200 OK\r\ncontent-ty");
            })
        },
        Fails("lost the connection"),
    ),
    case("a connection that breaks in the handshake", |_| {}, Fails("handshake")),
    case("no answer in the handshake", Peer::wait_on, Fails("was not ready within 1s")).start_s(1),
    case("no answer to a call", |p| p.on_call(Peer::wait), NO_ANSWER).call_s(1),
    case("a call that is accepted and never answered", |p| p.calls("202 Accepted", "", ""), NOT_ANSWERED)
        .call_s(1),
    case("a call without content", |p| p.calls("204 No Content", "", ""), NOT_ANSWERED).call_s(1),
    case(
        "headers of 1 MB",
        |p| {
            p.on_call(|p| {
                p.write(format!("HTTP/1.1 200 OK\r\nx-long: {}\r\n\r\n", x(1_000_000)));
                p.wait();
            })
        },
        Fails("lost the connection"),
    ),
    case(
        "a header without an end",
        |p| {
            p.on_call(|p| {
                p.write("HTTP/1.1 200 OK\r\nx-long: ");
                while p.write([b'x'; 65536]) {}
            })
        },
        Fails("lost the connection"),
    ),
    case(
        "HTTP/1.0",
        |p| {
            p.on_call(|p| {
                p.write(format!("HTTP/1.0 200 OK\r\n{JSON}\r\n{}", p.message(FINE)));
            })
        },
        Fine("fine"),
    ),
    case(
        "no HTTP at all",
        |p| {
            p.on_call(|p| {
                p.write("220 smtp.example ESMTP\x1b[2J\r\n");
            })
        },
        Fails("lost the connection"),
    ),
    case(
        "informational responses",
        |p| {
            p.write("HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n");
            p.usual();
        },
        Fine("fine"),
    ),
    case(
        "informational responses for ever",
        |p| p.on_call(|p| while p.write("HTTP/1.1 100 Continue\r\n\r\n".repeat(100)) {}),
        NO_ANSWER,
    )
    .call_s(1),
    // Sessions.
    case(
        "another session id in every answer",
        |p| {
            if p.verb == "POST" && p.is_call() {
                p.respond("200 OK", &format!("{JSON}mcp-session-id: s{}\r\n", p.number), p.message(FINE));
            } else {
                p.usual();
            }
        },
        Fine("fine"),
    ),
    case(
        "no session id",
        |p| {
            p.starts("200 OK", JSON, &p.message(r#""result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}"#))
        },
        Fine("fine"),
    ),
    case(
        "a session that is never deleted",
        |p| if p.verb == "DELETE" { p.wait() } else { p.usual() },
        Fine("fine"),
    ),
    // Events.
    case(
        "events that break off",
        |p| p.events(": wait\n\ndata: {\"jsonrpc\":"),
        Fails("the connection ended before the answer"),
    ),
    case("no events", |p| p.events(""), Fails("the connection ended before the answer")),
    case(
        "an event of 17 MiB",
        |p| {
            p.events(format!(
                "data: {{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":{{\"content\":\"{}\"}}}}\n\n",
                p.id,
                x(17 * MIB)
            ))
        },
        CallError("it is longer than 16 MiB"),
    )
    .memory_mib(48),
    case("an event without an end", |p| p.endless(EVENTS, "data: xxxxxxxxxxxxxxxxx"), NO_ANSWER)
        .call_s(1)
        .memory_mib(48),
    case("data lines without an end", |p| p.endless(EVENTS, "data: xxxxxxxxxxxxxxxxx\n"), NO_ANSWER)
        .call_s(1)
        .memory_mib(48),
    case("comments without an end", |p| p.endless(EVENTS, ": still at it\n\n"), NO_ANSWER).call_s(1),
    case("notifications without an end", |p| p.endless(EVENTS, LOG), NO_ANSWER).call_s(1),
    case(
        "pings without an end",
        |p| p.endless(EVENTS, "data: {\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"ping\"}\n\n"),
        NO_ANSWER,
    )
    .call_s(1),
    case(
        "pings of many ids without an end, replies unread",
        |p| {
            if p.verb == "POST" && p.message.get("method").is_none() {
                return p.wait();
            }
            p.on_call(|p| {
                p.open(EVENTS);
                let mut id = 0;
                while p.write(
                    (0..500)
                        .map(|n| {
                            format!("data: {{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"ping\"}}\n\n", id + n)
                        })
                        .collect::<String>(),
                ) {
                    id += 500;
                }
            });
        },
        NO_ANSWER,
    )
    .call_s(1),
    case(
        "events for other requests",
        |p| {
            p.events(format!(
                "data: {{\"jsonrpc\":\"2.0\",\"id\":77,\"result\":{{}}}}\n\ndata: {}\n\n",
                p.message(FINE)
            ))
        },
        Fine("fine"),
    ),
    case(
        "only events for other requests",
        |p| p.events("data: {\"jsonrpc\":\"2.0\",\"id\":77,\"result\":{}}\n\n"),
        Fails("the connection ended before the answer"),
    ),
    case(
        "events to resume at once, for ever",
        |p| {
            if p.verb == "GET" {
                p.open(EVENTS);
                p.write("id: 7\nretry: 0\n\n");
            } else {
                p.events("id: 7\nretry: 0\n\n");
            }
        },
        Fails("the connection ended before the answer"),
    )
    .call_s(1),
    case(
        "a stream of the server without an end",
        |p| {
            if p.verb == "GET" {
                p.open(EVENTS);
                while p.write(
                    "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n"
                        .repeat(100),
                ) {}
            } else {
                p.usual();
            }
        },
        Fine("fine"),
    ),
];

impl Peer {
    fn answer_call(&self, rest: &str) {
        self.on_call(|p| p.answer(rest));
    }

    fn wait_on(&mut self) {
        self.wait();
    }
}
