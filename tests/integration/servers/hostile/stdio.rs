//! Hostile servers over stdin and stdout.

use std::{
    io::{BufRead, Write},
    os::unix::process::CommandExt,
    process::{Command, exit},
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    CallError, Ends, Fails, Fine,
    run::{Bounds, kill_left_behind},
};

/// The variable that tells a server its case.
pub const CASE: &str = "HOSTILE_SERVER";
const MIB: usize = 1 << 20;

pub type Case = super::run::Case<fn(&mut Peer)>;

/// A case that waits for no timeout.
const fn case(name: &'static str, answer: fn(&mut Peer), ends: Ends) -> Case {
    Case::new(name, answer, ends)
}

impl Case {
    pub fn run(&self, bounds: &Bounds, tag: &str) -> Vec<String> {
        let run = self.run_with(&[], &server(self.name, tag));
        if self.leaves_daemon {
            kill_left_behind(tag);
        }
        bounds.problems(&run, self, tag)
    }
}

/// The options of `connect` that start the server of a case; the tag is an argument of each of its processes.
pub fn server(case: &str, tag: &str) -> Vec<String> {
    let mut words = vec!["--env".to_owned(), format!("{CASE}={case}"), "--".to_owned()];
    words.extend(command(tag));
    words
}

pub fn command(tag: &str) -> Vec<String> {
    let this = std::env::current_exe().unwrap().display().to_string();
    let options = ["--ignored", "--exact", "servers::hostile::serve", "--nocapture", "--skip", tag];
    std::iter::once(this).chain(options.map(str::to_owned)).collect()
}

/// The server's side of a connection, and the message that it has just read.
pub struct Peer {
    tag: String,
    method: String,
    /// As JSON; `null` in a notification.
    id: Value,
    message: Value,
    /// Messages of this method so far.
    count: usize,
    /// Results to send later.
    late: Vec<String>,
}

impl Peer {
    fn write(&mut self, bytes: impl AsRef<[u8]>) {
        let mut output = std::io::stdout().lock();
        if output.write_all(bytes.as_ref()).and_then(|()| output.flush()).is_err() {
            // The client is gone.
            exit(0);
        }
    }

    fn line(&mut self, line: impl AsRef<str>) {
        self.write(format!("{}\n", line.as_ref()));
    }

    /// A message with what follows its id.
    fn answer(&mut self, rest: &str) {
        self.line(format!(r#"{{"jsonrpc":"2.0","id":{},{rest}}}"#, self.id));
    }

    fn result(&mut self, result: impl AsRef<str>) {
        self.answer(&format!(r#""result":{}"#, result.as_ref()));
    }

    fn error(&mut self, error: &str) {
        self.answer(&format!(r#""error":{error}"#));
    }

    /// A tool `t`, and these.
    fn tools(&mut self, more: impl AsRef<str>) {
        self.result(format!(r#"{{"tools":[{{"name":"t","inputSchema":{{}}}},{}]}}"#, more.as_ref()));
    }

    fn is_call(&self) -> bool {
        self.method == "tools/call"
    }

    fn is_list(&self) -> bool {
        self.method == "tools/list"
    }

    fn is_start(&self) -> bool {
        self.method == "initialize"
    }

    /// Answers as a well-behaved server.
    fn usual(&mut self) {
        match self.method.as_str() {
            "initialize" => self.result(
                r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}"#,
            ),
            "tools/list" => self.result(r#"{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}"#),
            "tools/call" => self.result(r#"{"content":[{"type":"text","text":"fine"}]}"#),
            _ if !self.id.is_null() && self.message.get("method").is_some() => {
                self.error(r#"{"code":-32601,"message":"unknown"}"#);
            }
            _ => {}
        }
    }

    /// As usual, but calls have this result.
    fn calls(&mut self, result: impl AsRef<str>) {
        if self.is_call() { self.result(result) } else { self.usual() }
    }

    /// As usual, but calls have this answer, from its id on.
    fn call_answers(&mut self, rest: impl AsRef<str>) {
        if self.is_call() { self.answer(rest.as_ref()) } else { self.usual() }
    }

    /// As usual, but the list has `t` and these tools.
    fn lists(&mut self, more: impl AsRef<str>) {
        if self.is_list() { self.tools(more) } else { self.usual() }
    }

    /// As usual, but the list is this result.
    fn list_is(&mut self, result: impl AsRef<str>) {
        if self.is_list() { self.result(result) } else { self.usual() }
    }

    /// As usual, but the result of `initialize` has these members.
    fn starts_as(&mut self, members: impl AsRef<str>) {
        if self.is_start() { self.result(format!("{{{}}}", members.as_ref())) } else { self.usual() }
    }

    /// Writes until the client is gone, on a thread of its own.
    fn flood(&self, line: &str) {
        let line = format!("{line}\n").repeat(100);
        std::thread::spawn(move || while std::io::stdout().write_all(line.as_bytes()).is_ok() {});
    }

    /// Becomes a shell with this script, whose `$0` is the tag.
    fn become_script(&self, script: &str) {
        panic!("{}", Command::new("sh").args(["-c", script, &self.tag]).exec());
    }

    /// Starts what outlives its parent.
    fn start(&self, program: &str, script: &str) {
        let mut command = Command::new(program);
        let shell: &[&str] = if program == "sh" { &[] } else { &["sh"] };
        command.args(shell).args(["-c", script, &self.tag]);
        // Nobody waits for it: it is the server's to leave behind.
        drop(command.spawn().unwrap());
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Acts as the server of the case that the environment names. Never returns.
pub fn serve() {
    let Ok(name) = std::env::var(CASE) else { return };
    let answer = match name.as_str() {
        "well-behaved" => Peer::usual,
        "late answers" => late_answers,
        name => CASES.iter().find(|case| case.name == name).unwrap().answer,
    };
    let tag = std::env::args().next_back().unwrap_or_default();
    let mut peer = Peer {
        tag,
        method: String::new(),
        id: Value::Null,
        message: Value::Null,
        count: 0,
        late: Vec::new(),
    };
    let mut counts = std::collections::BTreeMap::<String, usize>::new();
    // Ends the line of the test harness.
    peer.line("");
    for line in std::io::stdin().lock().lines() {
        let Ok(message) = line.map(|line| serde_json::from_str::<Value>(&line).unwrap_or_default()) else {
            break;
        };
        peer.method = message["method"].as_str().unwrap_or_default().to_owned();
        peer.id = message["id"].clone();
        peer.message = message;
        let count = counts.entry(peer.method.clone()).or_default();
        *count += 1;
        peer.count = *count;
        answer(&mut peer);
    }
    exit(0)
}

/// Answers twenty calls when it has read them all, the last one first.
fn late_answers(p: &mut Peer) {
    if !p.is_call() {
        return p.usual();
    }
    let number = &p.message["params"]["arguments"]["number"];
    p.late.push(json!({"jsonrpc": "2.0", "id": p.id, "result": {"content": number.to_string()}}).to_string());
    if p.late.len() == 20 {
        while let Some(answer) = p.late.pop() {
            p.line(answer);
        }
    }
}

fn x(count: usize) -> String {
    "x".repeat(count)
}

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

/// A result of exactly this many bytes with its line's end.
fn line_of(p: &Peer, bytes: usize) -> String {
    let line = |text: &str| format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{"content":"{text}"}}}}"#, p.id);
    let frame = line("").len() + 1;
    line(&x(bytes - frame))
}

const LIST_CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
const LOG: &str =
    r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"still at it"}}"#;
const PING: &str = r#"{"jsonrpc":"2.0","id":"ping","method":"ping"}"#;
const NO_ANSWER: Ends = CallError("the tool did not answer within 1s");

pub const CASES: &[Case] = &[
    // What is not a message.
    case(
        "banners and logs",
        |p| {
            p.write("Loading…\r\n{\"level\":\"info\"}\n[1,2]\n\x1b[31mred\x1b[0m\n\0\0\n\n\"jsonrpc\"\n{\n");
            p.usual();
        },
        Fine("fine"),
    ),
    case(
        "20 MiB of noise before every answer",
        |p| {
            p.write(format!("{}\n", x(1023)).repeat(20 << 10));
            p.usual();
        },
        Fine("fine"),
    ),
    case(
        "a line of noise of 40 MiB",
        |p| {
            p.line(x(40 * MIB));
            p.usual();
        },
        Fine("fine"),
    )
    .memory_mib(48),
    case("a byte order mark and CRLF", |p| {
        p.write("\u{feff}");
        p.usual();
        p.write("\r\n");
    }, Fine("fine")),
    // Values that JSON does not have.
    case("NaN", |p| p.calls(r#"{"content":"x","n":NaN}"#), CallError("it has `NaN`")),
    case("1e999", |p| p.calls(r#"{"content":[{"n":1e999}]}"#), CallError("it has a number out of range, `1e999`")),
    case("Infinity in a schema", |p| p.lists(r#"{"name":"b","inputSchema":{"maximum":Infinity}}"#),
        Fine("ignored the tool `b`, which cannot be read: it has `Infinity`")),
    case("text that is not UTF-8", |p| {
        if p.is_call() {
            let answer = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{"content":"#, p.id);
            p.write([answer.as_bytes(), b"\"\xff\xfe\"}}\n"].concat());
        } else {
            p.usual();
        }
    }, CallError("a text is not UTF-8")),
    case("half of a surrogate pair", |p| p.calls(r#"{"content":"\ud800"}"#), CallError("half of a surrogate pair")),
    case("half of a surrogate pair in a name", |p| p.lists(r#"{"name":"a\ud800","inputSchema":{}}"#),
        Fine("which cannot be read: a text has half of a surrogate pair")),
    case("a wrong escape in a name", |p| p.lists(r#"{"name":"a\uZZZZ","inputSchema":{}}"#),
        Fails("cannot list the tools")),
    case("a million halves of surrogate pairs", |p| {
        let text = r"\udc00".repeat(MIB);
        p.calls(format!(r#"{{"{}":"{text}"}}"#, x(MIB)));
    }, CallError("half of a surrogate pair")).memory_mib(48),
    case("many NaN below a long key", |p| {
        p.calls(format!(r#"{{"{}":[{}1]}}"#, x(4 * MIB), "NaN,".repeat(400_000)));
    }, CallError("it has `NaN`")).memory_mib(96),
    case("many NaN of one name", |p| {
        p.calls(format!(r#"{{"{}":{{{}"n":1}}}}"#, x(4 * MIB), r#""n":NaN,"#.repeat(400_000)));
    }, CallError("it has `NaN`")).memory_mib(48),
    // Nesting.
    case("a result nested 200 deep", |p| p.calls(format!(r#"{{"content":{}}}"#, nested(200))),
        CallError("it is nested more than 127 levels deep")),
    case("a result nested 200,000 deep", |p| p.calls(format!(r#"{{"content":{}}}"#, nested(200_000))),
        CallError("it is nested more than 127 levels deep")).memory_mib(48),
    case("an unclosed result nested 400,000 deep", |p| {
        p.calls(format!(r#"{{"content":{}"#, "[".repeat(400_000)));
    }, CallError("it is not JSON: it ends in the middle")).memory_mib(48),
    case("a schema nested 200 deep", |p| {
        p.lists(format!(r#"{{"name":"deep","inputSchema":{{"x":{}}}}}"#, nested(200)));
    }, Fine("ignored the tool `deep`, which cannot be read: it is nested more than 127 levels deep")),
    case("a schema nested 100 deep", |p| {
        p.lists(format!(r#"{{"name":"deep","inputSchema":{{"x":{}}}}}"#, nested(100)));
    }, Fine("deep()")),
    case("arguments nested 100 deep", |p| p.calls(format!(r#"{{"content":"{} bytes"}}"#, p.message["params"]["arguments"].to_string().len())),
        Fine("206 bytes")).arguments(|| format!(r#"{{"a":{}}}"#, nested(100))),
    case("arguments nested 500 deep", Peer::usual, Fails("recursion limit exceeded"))
        .arguments(|| format!(r#"{{"a":{}}}"#, nested(500))),
    // Long messages.
    case("a line of 16 MiB", |p| {
        if p.is_call() { p.line(line_of(p, 16 * MIB)) } else { p.usual() }
    }, Fine("bytes left out")).memory_mib(128),
    case("a line of 16 MiB and a byte", |p| {
        if p.is_call() { p.line(line_of(p, 16 * MIB + 1)) } else { p.usual() }
    }, CallError("it is longer than 16 MiB")).memory_mib(48),
    case("a line of 100 MB", |p| p.calls(format!(r#"{{"content":"{}"}}"#, x(100_000_000))),
        CallError("it is longer than 16 MiB")).memory_mib(48),
    case("100 MB without an end", |p| {
        if p.is_call() { p.write(x(100_000_000)) } else { p.usual() }
    }, NO_ANSWER).call_s(1).memory_mib(48),
    case("a line without an end, for ever", |p| {
        if p.is_call() {
            std::thread::spawn(|| while std::io::stdout().write_all(&[b'['; 65536]).is_ok() {});
        } else if !p.is_list() || p.count == 1 {
            p.usual();
        }
    }, NO_ANSWER).call_s(1).memory_mib(48),
    case("an answer without the end of its line", |p| {
        if p.is_call() { p.write(format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, p.id)) } else { p.usual() }
    }, NO_ANSWER).call_s(1),
    case("five million empty lists", |p| p.calls(format!(r#"{{"content":[{}1]}}"#, "[],".repeat(5 * MIB))),
        CallError("it has more than 500000 values")).memory_mib(128),
    case("as many lists as are read", |p| p.calls(format!(r#"{{"content":[{}1]}}"#, "[],".repeat(249_000))),
        Fine("[content of type unknown]")).memory_mib(128),
    case("five million keys", |p| {
        p.calls(format!(r#"{{"structuredContent":{{{}"":0}}}}"#, r#""a":0,"#.repeat(2 * MIB)));
    }, CallError("it has more than 500000 values")).memory_mib(128),
    case("a huge error text", |p| p.call_answers(format!(r#""error":{{"code":-32000,"message":"<{}>"}}"#, x(15 * MIB))),
        CallError("bytes left out")).memory_mib(128),
    // While a call waits.
    case("endless notifications", |p| {
        match p.is_call() {
            true => p.flood(LOG),
            false => p.usual(),
        }
    }, NO_ANSWER).call_s(1),
    case("endless notifications and an answer", |p| {
        if p.is_call() {
            p.flood(LOG);
            std::thread::sleep(Duration::from_millis(300));
        }
        p.usual();
    }, Fine("fine")),
    case("endless progress", |p| {
        let token = p.message["params"]["_meta"]["progressToken"].clone();
        match p.is_call() {
            true => p.flood(&json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": 1}}).to_string()),
            false => p.usual(),
        }
    }, NO_ANSWER).call_s(1),
    case("a storm of list_changed", |p| {
        if p.count == 1 && p.is_list() {
            p.flood(LIST_CHANGED);
        }
        p.usual();
    }, Fine("fine")),
    // Ids.
    case("every answer twice", |p| {
        p.usual();
        if p.is_call() { p.calls(r#"{"content":"second"}"#) } else { p.usual() }
    }, Fine("fine")),
    case("answers to requests never made", |p| {
        for id in 50..if p.is_list() { 3000 } else { 0 } {
            p.line(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":"never"}}}}"#));
        }
        p.usual();
    }, Fine("fine")),
    case("answers before their requests", |p| {
        if p.is_start() {
            for id in 1..10 {
                p.line(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":"early"}}}}"#));
            }
        }
        p.usual();
    }, Fails("answered the request 1 instead of 0")),
    case("ids as texts", |p| {
        p.id = p.id.to_string().into();
        p.usual();
    }, Fine("fine")),
    case("an id that is null", |p| {
        p.id = if p.is_call() { Value::Null } else { p.id.take() };
        p.usual();
    }, CallError("a JSON-RPC message without an id")),
    case("an id that is a list", |p| {
        p.id = if p.is_call() { json!([p.id]) } else { p.id.take() };
        p.usual();
    }, CallError("a JSON-RPC message without an id")),
    case("a batch of one answer", |p| {
        if p.is_call() {
            p.line(format!(r#"[{{"jsonrpc":"2.0","id":{},"result":{{"content":"fine"}}}}]"#, p.id));
        } else {
            p.usual();
        }
    }, CallError("it is a batch")),
    case("another version of JSON-RPC", |p| {
        if p.is_call() {
            p.line(format!(r#"{{"jsonrpc":"1.0","id":{},"result":{{"content":"fine"}}}}"#, p.id));
        } else {
            p.usual();
        }
    }, Fine("fine")),
    // Errors.
    case("an error code that is a text", |p| p.call_answers(r#""error":{"code":"E_NO","message":"no such city"}"#), CallError("no such city")),
    case("an error code out of range", |p| p.call_answers(r#""error":{"code":1e30,"message":"no such city"}"#), CallError("no such city")),
    case("an error that is a text", |p| p.call_answers(r#""error":"no such city""#), CallError("no such city")),
    case("an error without a text", |p| p.call_answers(r#""error":{"code":-32602}"#), CallError("-32602")),
    case("a result and an error", |p| p.call_answers(r#""result":{},"error":{"code":1,"message":"no"}"#),
        CallError("no")),
    case("a result and an error, both with something in them", |p| p.call_answers(r#""result":{"a":1},"error":{"code":1,"message":"no"}"#),
        CallError("it has a result and an error")),
    case("neither a result nor an error", |p| p.call_answers(r#""x":1"#), CallError("without a result")),
    // Endings.
    case("half a line, then exit", |p| {
        if p.is_call() {
            p.write(r#"{"jsonrpc":"2.0","id":"#);
            exit(3);
        }
        p.usual();
    }, Fails("(exit status: 3)")),
    case("exit before the handshake", |_| exit(3), Fails("ended before it was ready (exit status: 3)")),
    case("exit while tools are listed", |p| {
        if p.is_list() { exit(3) } else { p.usual() }
    }, Fails("(exit status: 3)")),
    case("exit in a call", |p| {
        if p.is_call() { exit(3) } else { p.usual() }
    }, Fails("(exit status: 3)")),
    case("a crash before the handshake", |_| std::process::abort(), Fails("ended before it was ready (signal: 6")),
    case("a crash in a call", |p| {
        if p.is_call() { std::process::abort() } else { p.usual() }
    }, Fails("(signal: 6")),
    case("no answer to initialize", |_| {}, Fails("was not ready within 1s")).start_s(1),
    case("no answer to tools/list", |p| if !p.is_list() { p.usual() }, Fails("cannot list the tools")).start_s(3),
    case("no answer to tools/call", |p| if !p.is_call() { p.usual() }, NO_ANSWER).call_s(1),
    case("stdout is closed before the handshake", |p| p.become_script("exec >&-; sleep 600"),
        Fails("the server closed the connection")),
    case("stdout is closed in a call", |p| {
        if p.is_call() { p.become_script("exec >&-; sleep 600") } else { p.usual() }
    }, Fails("lost the connection")),
    case("stdin is not read", |p| {
        p.usual();
        if p.is_list() { p.become_script("sleep 600") }
    }, NO_ANSWER).call_s(1).arguments(|| format!(r#"{{"a":"{}"}}"#, x(100_000))),
    case("stopped in a call", |p| {
        if p.is_call() { p.become_script("kill -STOP $$; sleep 600") } else { p.usual() }
    }, NO_ANSWER).call_s(1),
    // Lists.
    case("one cursor for ever", |p| p.list_is(r#"{"tools":[{"name":"t"}],"nextCursor":"again"}"#), Fine("repeats a page")),
    case("a new cursor for ever", |p| {
        let page = p.count;
        p.list_is(format!(r#"{{"tools":[{{"name":"t"}},{{"name":"t{page}"}}],"nextCursor":"{page}"}}"#));
    }, Fine("was cut after 100 pages")),
    case("new cursors of 10 MB", |p| {
        let page = p.count;
        p.list_is(format!(r#"{{"tools":[{{"name":"t"}}],"nextCursor":"{page}{}"}}"#, x(10_000_000)));
    }, Fine("is too long")).memory_mib(128),
    case("an empty cursor", |p| p.list_is(r#"{"tools":[{"name":"t"}],"nextCursor":""}"#), Fine("fine")),
    case("a cursor that is a number", |p| p.list_is(r#"{"tools":[{"name":"t"}],"nextCursor":7}"#), Fine("fine")),
    case("a page just before every timeout", |p| {
        if p.is_list() {
            std::thread::sleep(Duration::from_millis(1500));
        }
        let page = p.count;
        p.list_is(format!(r#"{{"tools":[{{"name":"t{page}"}}],"nextCursor":"{page}"}}"#));
    }, Fails("cannot list the tools")).start_s(3),
    case("100,000 tools", |p| {
        let tools: Vec<String> = (0..100_000).map(|n| format!(r#"{{"name":"t{n}","inputSchema":{{}}}}"#)).collect();
        p.lists(tools.join(","));
    }, Fine("the list of tools is too long; used only the first 1000")).memory_mib(64),
    case("a list that is none", |p| p.list_is(r#"{"tools":{"t":{}}}"#), Fails("the server has no tool `t`")),
    // Tools.
    case("tools without a name or a schema", |p| p.lists(r#"{"inputSchema":{}},{"name":""},{"name":7},7,null,{"name":"a"}"#),
        Fine("the tool `a` declares no argument schema")),
    case("two tools of one name", |p| p.lists(r#"{"name":"t"}"#), Fine("ignored a second tool named `t`")),
    case("names with control characters", |p| p.lists(r#"{"name":"a\u001b[31mred\u202e\u0007","description":"\u001b]0;owned\u0007","inputSchema":{"properties":{"\u001b[2J\u200b":{}}}}"#),
        Fine("renamed the tool `ared`")),
    case("names of 10 MB", |p| p.lists(format!(r#"{{"name":"{}"}}"#, x(10_000_000))), Fine("renamed the tool `xxx")).memory_mib(128),
    case("descriptions of 10 MB", |p| p.lists(format!(r#"{{"name":"b","description":"{}","inputSchema":{{}}}}"#, x(10_000_000))),
        Fine("fine")).memory_mib(128),
    case("a schema of 10 MB", |p| p.lists(format!(r#"{{"name":"b","inputSchema":{{"title":"{}"}}}}"#, x(10_000_000))),
        Fine("ignored the tool `b`: its schema is longer")).memory_mib(128),
    // Results.
    case("content of an unknown type", |p| p.calls(r#"{"content":[{"type":"hologram"},7]}"#), Fine("[content of type hologram]")),
    case("content that is null", |p| p.calls(r#"{"content":null}"#), Fine("result after")),
    case("a result that is null", |p| p.calls("null"), Fine("result after")),
    case("a result that is a text", |p| p.calls(r#""fine""#), Fine("result after")),
    case("only structured content", |p| p.calls(r#"{"structuredContent":{"b":1,"a":2}}"#), Fine(r#"{"b":1,"a":2}"#)),
    case("an error flag that is a text", |p| p.calls(r#"{"content":"no","isError":"true"}"#), CallError("no")),
    case("a result with control characters", |p| p.calls(r#"{"content":"\u001b[31mred\u202e\u0007"}"#), Fine("\nred\n")),
    case("a demand for input", |p| p.calls(r#"{"resultType":"input_required","inputRequests":{}}"#), CallError("asked for input")),
    // Requests to the client.
    case("sampling", |p| asks(p, "sampling/createMessage", r#"{"messages":[],"maxTokens":9}"#), Fine("-32")),
    case("roots", |p| asks(p, "roots/list", "{}"), Fine(r#""roots":[]"#)),
    case("elicitation", |p| asks(p, "elicitation/create", r#"{"message":"password?","requestedSchema":{"type":"object","properties":{}}}"#),
        Fine("decline")),
    case("an unknown request", |p| asks(p, "client/format_disk", "{}"), Fine("-32601")),
    case("endless pings, answers unread", |p| {
        if p.is_list() {
            p.usual();
            p.become_script(&format!("exec yes '{PING}'"));
        }
        p.usual();
    }, NO_ANSWER).call_s(1),
    case("endless pings of many ids, answers unread", |p| {
        p.usual();
        if p.is_list() {
            for id in 0_u64.. {
                p.line(format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#));
            }
        }
    }, NO_ANSWER).call_s(1),
    case("endless pings, answers read", |p| {
        if p.count == 1 && p.is_call() {
            p.flood(PING);
            std::thread::sleep(Duration::from_secs(2));
        }
        p.usual();
    }, Fine("fine")),
    // The handshake.
    case("an unknown revision", |p| p.starts_as(r#""protocolVersion":"2099-01-01","capabilities":{},"serverInfo":{"name":"s","version":"1"}"#),
        Fails("uses MCP revision `2099-01-01`")),
    case("a revision that is a number", |p| p.starts_as(r#""protocolVersion":3,"capabilities":{},"serverInfo":{"name":"s","version":"1"}"#),
        Fails("the server's answer is not a handshake")),
    case("an empty handshake", |p| p.starts_as(""), Fails("the server's answer is not a handshake")),
    case("a handshake of 10 MB texts", |p| p.starts_as(format!(
        r#""protocolVersion":"2025-11-25","capabilities":{{"tools":{{}}}},"serverInfo":{{"name":"{0}","version":"{0}"}},"instructions":"{0}""#, x(3_000_000))),
        Fine("fine")).memory_mib(128),
    case("no tools", |p| p.starts_as(r#""protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"1"}"#),
        Fails("the server has no tool `t`")),
    case("endless resources of 10 MB texts", |p| {
        let (page, long) = (p.count, x(4_000_000));
        match p.method.as_str() {
            "initialize" => p.starts_as(r#""protocolVersion":"2025-11-25","capabilities":{"tools":{},"resources":{}},"serverInfo":{"name":"s","version":"1"}"#),
            "resources/list" => p.result(format!(r#"{{"resources":[{{"uri":"{long}","name":"{long}"}},{{"name":"no address"}},7],"nextCursor":"{page}"}}"#)),
            _ => p.usual(),
        }
    }, Fine("the list of resources is too long")).memory_mib(160),
    // Stderr.
    case("a flood of stderr", |p| {
        if p.is_call() {
            let until = std::time::Instant::now() + Duration::from_secs(1);
            while std::time::Instant::now() < until {
                std::io::stderr().write_all(&[b'e'; 65536]).unwrap();
            }
        }
        p.usual();
    }, Fine("fine")),
    case("control characters on stderr", |p| {
        if p.is_call() {
            std::io::stderr().write_all(b"\x1b[31mred\x1b[0m \xff\xfe out of cheese\x07\n").unwrap();
            exit(3);
        }
        p.usual();
    }, Fails("out of cheese")),
    // Processes.
    case("a daemon", |p| {
        if p.is_call() { p.start("setsid", "sleep 600") }
        p.usual();
    }, Fine("fine")),
    case("a daemon with its pipes closed that ignores signals", |p| {
        if p.is_call() { p.start("setsid", "exec </dev/null >/dev/null 2>&1; trap '' TERM HUP INT; sleep 600; :") }
        p.usual();
    }, Fine("fine")),
    case("a double fork", |p| {
        if p.is_call() { p.start("sh", "(setsid sh -c 'exec </dev/null >/dev/null 2>&1; sleep 600; :' \"$0\" &) &") }
        p.usual();
    }, Fine("fine")),
    case("a child that ignores signals", |p| {
        if p.is_call() { p.start("sh", "trap '' TERM HUP INT; sleep 600; :") }
        p.usual();
    }, Fine("fine")),
    case("a server that ignores signals and the end of its input", |p| {
        p.usual();
        if p.is_call() { p.become_script("trap '' TERM HUP INT PIPE; while :; do sleep 1; done") }
    }, Fine("fine")),
    case("a child that keeps stdout open after an exit", |p| {
        if p.is_call() {
            p.start("sh", "sleep 600; :");
            exit(3);
        }
        p.usual();
    }, Fails("(exit status: 3)")),
    case("a daemon that keeps stdout open after an exit", |p| {
        if p.is_call() {
            p.start("setsid", "sleep 600; :");
            exit(3);
        }
        p.usual();
    }, Fails("(exit status: 3)")).leaves_daemon(),
    case("a daemon of a server that ends in the handshake", |p| {
        p.start("setsid", "sleep 600; :");
        exit(3);
    }, Fails("ended before it was ready (exit status: 3)")).leaves_daemon(),
];

/// Sends a request in every call, and returns what the client answers.
fn asks(p: &mut Peer, method: &str, params: &str) {
    if p.is_call() {
        p.late.push(p.id.to_string());
        p.line(format!(r#"{{"jsonrpc":"2.0","id":"asked","method":"{method}","params":{params}}}"#));
    } else if p.id == "asked" {
        p.id = serde_json::from_str(&p.late[0]).unwrap();
        let answer = json!({"content": p.message.to_string()}).to_string();
        p.result(answer);
    } else {
        p.usual();
    }
}
