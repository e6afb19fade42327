//! Published servers: their tools, one scripted episode each, and their ends.
//!
//! `tests/reference/servers.sh` installs them into `target/servers`; a server that is not there is skipped, and the test
//! says so. `MCPRL_TEST_SERVERS` names another folder.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use mcprl::mcp::{
    Limits, McpError, Outcome, Pool, ServerSpec, Session, State, Token, Transport, tools_digest,
};
use serde_json::{Map, Value};

use crate::common::until_async;

/// A server and its episode. In its words, `{servers}`, `{reference}` and `{scratch}` are folders.
struct Server {
    name: &'static str,
    command: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
    /// In the order in which the server lists them.
    tools: &'static [&'static str],
    calls: &'static [Call],
}

/// A tool, its arguments, and a text of its answer.
type Call = (&'static str, &'static str, Answer);

enum Answer {
    Result(&'static str),
    Error(&'static str),
}

use Answer::{Error as Fails, Result as Gives};

const SQLITE: Server = Server {
    name: "sqlite",
    command: &["{servers}/sqlite/bin/mcp-server-sqlite", "--db-path", "{scratch}/data.db"],
    env: &[],
    tools: &["read_query", "write_query", "create_table", "list_tables", "describe_table", "append_insight"],
    calls: &[
        ("create_table", r#"{"query": "CREATE TABLE city (name TEXT, people INTEGER)"}"#, Gives("created")),
        (
            "write_query",
            r#"{"query": "INSERT INTO city VALUES ('Oslo', 717710)"}"#,
            Gives("'affected_rows': 1"),
        ),
        ("list_tables", "{}", Gives("city")),
        ("describe_table", r#"{"table_name": "city"}"#, Gives("people")),
        ("read_query", r#"{"query": "SELECT people FROM city"}"#, Gives("717710")),
        // It reports its errors as results.
        ("read_query", r#"{"query": "SELECT nonsense"}"#, Gives("no such column")),
        ("append_insight", r#"{"insight": "Oslo grows"}"#, Gives("Insight added")),
    ],
};

const TIME: Server = Server {
    name: "time",
    command: &["{servers}/time/bin/mcp-server-time", "--local-timezone", "UTC"],
    env: &[],
    tools: &["get_current_time", "convert_time"],
    calls: &[
        ("get_current_time", r#"{"timezone": "Asia/Tokyo"}"#, Gives("+09:00")),
        (
            "convert_time",
            r#"{"source_timezone": "Asia/Tokyo", "time": "16:30", "target_timezone": "UTC"}"#,
            Gives("T07:30:00"),
        ),
        (
            "convert_time",
            r#"{"source_timezone": "Mars", "time": "16:30", "target_timezone": "UTC"}"#,
            Fails("Mars"),
        ),
        ("get_current_time", "{}", Fails("timezone")),
    ],
};

const GIT: Server = Server {
    name: "git",
    command: &["{servers}/git/bin/mcp-server-git", "--repository", "{scratch}/repository"],
    env: &[],
    tools: &[
        "git_status",
        "git_diff_unstaged",
        "git_diff_staged",
        "git_diff",
        "git_commit",
        "git_add",
        "git_reset",
        "git_log",
        "git_create_branch",
        "git_checkout",
        "git_show",
        "git_branch",
    ],
    calls: &[
        ("git_status", r#"{"repo_path": "{scratch}/repository"}"#, Gives("hello.txt")),
        ("git_diff_unstaged", r#"{"repo_path": "{scratch}/repository"}"#, Gives("+world")),
        ("git_add", r#"{"repo_path": "{scratch}/repository", "files": ["hello.txt"]}"#, Gives("staged")),
        ("git_diff_staged", r#"{"repo_path": "{scratch}/repository"}"#, Gives("+world")),
        ("git_diff", r#"{"repo_path": "{scratch}/repository", "target": "HEAD"}"#, Gives("+world")),
        ("git_commit", r#"{"repo_path": "{scratch}/repository", "message": "second"}"#, Gives("committed")),
        ("git_log", r#"{"repo_path": "{scratch}/repository", "max_count": 1}"#, Gives("second")),
        ("git_show", r#"{"repo_path": "{scratch}/repository", "revision": "HEAD"}"#, Gives("+world")),
        (
            "git_create_branch",
            r#"{"repo_path": "{scratch}/repository", "branch_name": "side"}"#,
            Gives("side"),
        ),
        ("git_checkout", r#"{"repo_path": "{scratch}/repository", "branch_name": "side"}"#, Gives("side")),
        ("git_branch", r#"{"repo_path": "{scratch}/repository", "branch_type": "local"}"#, Gives("* side")),
        ("git_status", r#"{"repo_path": "/"}"#, Fails("")),
    ],
};

const FETCH: Server = Server {
    name: "fetch",
    command: &["{servers}/fetch/bin/mcp-server-fetch", "--ignore-robots-txt", "--allow-private-ips"],
    env: &[],
    tools: &["fetch"],
    calls: &[
        ("fetch", r#"{"url": "{page}"}"#, Gives("A page of the test")),
        ("fetch", r#"{"url": "{page}", "raw": true}"#, Gives("<h1>")),
        ("fetch", r#"{"url": "http://127.0.0.1:1/"}"#, Fails("")),
    ],
};

const FASTMCP: Server = Server {
    name: "fastmcp",
    command: &["{servers}/fastmcp/bin/python", "{reference}/fastmcp_server.py", "stdio"],
    env: &[],
    tools: &["sum_tree", "area", "greet", "convert", "nothing", "record", "fail"],
    calls: FASTMCP_CALLS,
};

const FASTMCP_CALLS: &[Call] = &[
    (
        "sum_tree",
        r#"{"tree": {"value": 1, "children": [{"value": 2, "children": [{"value": 3}]}]}}"#,
        Gives("6"),
    ),
    ("sum_tree", r#"{"tree": {"value": 1, "children": [{"worth": 2}]}}"#, Fails("value")),
    ("area", r#"{"shape": {"kind": "circle", "radius": 2}}"#, Gives("12")),
    ("area", r#"{"shape": {"kind": "rectangle", "width": 2, "height": 3}}"#, Gives("6")),
    ("area", r#"{"shape": {"kind": "square", "width": 2}}"#, Fails("kind")),
    ("greet", r#"{"name": "Ada"}"#, Gives("Hello, Ada!")),
    ("greet", r#"{"name": "Ada", "title": "Lady"}"#, Gives("Hello, Lady Ada!")),
    ("convert", r#"{"length": 3, "unit": "ft"}"#, Gives("3 ft")),
    ("convert", r#"{"length": 3, "unit": "mile"}"#, Fails("unit")),
    ("nothing", "{}", Gives("")),
    ("record", r#"{"id": 7}"#, Gives(r#""id":7"#)),
    ("record", r#"{"id": 70}"#, Fails("id")),
    ("fail", r#"{"reason": "out of cheese"}"#, Fails("out of cheese")),
];

const EVERYTHING: Server = Server {
    name: "everything",
    command: &["node", "{node}/server-everything/dist/index.js", "stdio"],
    env: &[],
    tools: &[
        "echo",
        "get-annotated-message",
        "get-env",
        "get-resource-links",
        "get-resource-reference",
        "get-structured-content",
        "get-sum",
        "get-tiny-image",
        "gzip-file-as-resource",
        "toggle-simulated-logging",
        "toggle-subscriber-updates",
        "trigger-long-running-operation",
        "simulate-research-query",
    ],
    calls: &[
        ("echo", r#"{"message": "hear"}"#, Gives("Echo: hear")),
        (
            "get-annotated-message",
            r#"{"messageType": "error", "includeImage": true}"#,
            Gives("[image, image/png"),
        ),
        ("get-env", "{}", Gives("PATH")),
        ("get-resource-links", r#"{"count": 2}"#, Gives("[resource ")),
        ("get-resource-reference", r#"{"resourceType": "Text", "resourceId": 1}"#, Gives("Resource 1")),
        ("get-structured-content", r#"{"location": "Chicago"}"#, Gives("temperature")),
        ("get-sum", r#"{"a": 40, "b": 2}"#, Gives("42")),
        ("get-sum", r#"{"a": "forty", "b": 2}"#, Fails("")),
        ("get-tiny-image", "{}", Gives("[image, image/png")),
        ("toggle-simulated-logging", "{}", Gives("")),
        ("toggle-subscriber-updates", "{}", Gives("")),
        ("trigger-long-running-operation", r#"{"duration": 1, "steps": 2}"#, Gives("completed")),
        ("simulate-research-query", r#"{"topic": "cheese"}"#, Fails("")),
    ],
};

const FILESYSTEM: Server = Server {
    name: "filesystem",
    command: &["node", "{node}/server-filesystem/dist/index.js", "{scratch}/files"],
    env: &[],
    tools: &[
        "read_file",
        "read_text_file",
        "read_media_file",
        "read_multiple_files",
        "write_file",
        "edit_file",
        "create_directory",
        "list_directory",
        "list_directory_with_sizes",
        "directory_tree",
        "move_file",
        "search_files",
        "get_file_info",
        "list_allowed_directories",
    ],
    calls: &[
        ("list_allowed_directories", "{}", Gives("files")),
        ("create_directory", r#"{"path": "{scratch}/files/sub"}"#, Gives("created")),
        ("write_file", r#"{"path": "{scratch}/files/sub/a.txt", "content": "one\ntwo\n"}"#, Gives("wrote")),
        ("read_file", r#"{"path": "{scratch}/files/sub/a.txt"}"#, Gives("two")),
        ("read_text_file", r#"{"path": "{scratch}/files/sub/a.txt", "head": 1}"#, Gives("one")),
        ("read_media_file", r#"{"path": "{scratch}/files/sub/a.txt"}"#, Gives("")),
        ("read_multiple_files", r#"{"paths": ["{scratch}/files/sub/a.txt"]}"#, Gives("two")),
        (
            "edit_file",
            r#"{"path": "{scratch}/files/sub/a.txt", "edits": [{"oldText": "two", "newText": "three"}]}"#,
            Gives("+three"),
        ),
        (
            "move_file",
            r#"{"source": "{scratch}/files/sub/a.txt", "destination": "{scratch}/files/sub/b.txt"}"#,
            Gives("moved"),
        ),
        ("list_directory", r#"{"path": "{scratch}/files"}"#, Gives("[DIR] sub")),
        ("list_directory_with_sizes", r#"{"path": "{scratch}/files/sub"}"#, Gives("b.txt")),
        ("directory_tree", r#"{"path": "{scratch}/files"}"#, Gives("b.txt")),
        ("search_files", r#"{"path": "{scratch}/files", "pattern": "**/*.txt"}"#, Gives("b.txt")),
        ("get_file_info", r#"{"path": "{scratch}/files/sub/b.txt"}"#, Gives("size: 10")),
        ("read_file", r#"{"path": "/etc/passwd"}"#, Fails("denied")),
    ],
};

const MEMORY: Server = Server {
    name: "memory",
    command: &["node", "{node}/server-memory/dist/index.js"],
    env: &[("MEMORY_FILE_PATH", "{scratch}/memory.json")],
    tools: &[
        "create_entities",
        "create_relations",
        "add_observations",
        "delete_entities",
        "delete_observations",
        "delete_relations",
        "read_graph",
        "search_nodes",
        "open_nodes",
    ],
    calls: &[
        (
            "create_entities",
            r#"{"entities": [{"name": "Ada", "entityType": "person", "observations": ["counts"]}, {"name": "Engine", "entityType": "machine", "observations": []}]}"#,
            Gives("Ada"),
        ),
        (
            "create_relations",
            r#"{"relations": [{"from": "Ada", "to": "Engine", "relationType": "programs"}]}"#,
            Gives("programs"),
        ),
        (
            "add_observations",
            r#"{"observations": [{"entityName": "Ada", "contents": ["writes notes"]}]}"#,
            Gives("writes notes"),
        ),
        (
            "add_observations",
            r#"{"observations": [{"entityName": "Nobody", "contents": ["x"]}]}"#,
            Fails("Nobody"),
        ),
        ("read_graph", "{}", Gives("programs")),
        ("search_nodes", r#"{"query": "notes"}"#, Gives("Ada")),
        ("open_nodes", r#"{"names": ["Engine"]}"#, Gives("machine")),
    ],
};

const THINKING: Server = Server {
    name: "sequential-thinking",
    command: &["node", "{node}/server-sequential-thinking/dist/index.js"],
    env: &[],
    tools: &["sequentialthinking"],
    calls: &[
        (
            "sequentialthinking",
            r#"{"thought": "First, cheese.", "nextThoughtNeeded": true, "thoughtNumber": 1, "totalThoughts": 2}"#,
            Gives("thoughtHistoryLength"),
        ),
        ("sequentialthinking", r#"{"thought": 7}"#, Fails("")),
    ],
};

/// The folders and the address that words of a server name.
struct Setup {
    scratch: tempfile::TempDir,
    servers: PathBuf,
    page: String,
}

impl Setup {
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::create_dir(scratch.path().join("files")).unwrap();
        Self { scratch, servers: servers(), page: page() }
    }

    fn expand(&self, word: &str) -> String {
        let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference");
        let node = self.servers.join("node/node_modules/@modelcontextprotocol");
        let folders = [
            ("{servers}", &*self.servers),
            ("{reference}", &reference),
            ("{node}", &node),
            ("{scratch}", self.scratch.path()),
        ];
        let expand =
            |word: String, (name, folder): (&str, &Path)| word.replace(name, folder.to_str().unwrap());
        folders.into_iter().fold(word.replace("{page}", &self.page), expand)
    }

    /// A repository with one commit and a change.
    fn repository(&self) {
        let folder = self.scratch.path().join("repository");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("hello.txt"), "hello\n").unwrap();
        for words in [
            "init -q",
            "config user.name Ada",
            "config user.email ada@example.com",
            "add .",
            "commit -q -m first",
        ] {
            let status = Command::new("git").args(words.split(' ')).current_dir(&folder).status();
            assert!(status.unwrap().success(), "git {words}");
        }
        std::fs::write(folder.join("hello.txt"), "hello\nworld\n").unwrap();
    }
}

fn servers() -> PathBuf {
    let usual = || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/servers");
    std::env::var_os("MCPRL_TEST_SERVERS").map_or_else(usual, PathBuf::from)
}

/// The address of a page.
fn page() -> String {
    const BODY: &str =
        "<html><body><h1>Hello</h1><p>A page of the test, with a few words to read.</p></body></html>";
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n";
            let _ =
                stream.write_all(format!("{head}content-length: {}\r\n\r\n{BODY}", BODY.len()).as_bytes());
        }
    });
    format!("http://{address}/")
}

fn limits() -> Limits {
    // Python takes seconds to start, and longer if others start too.
    Limits {
        start_timeout: Duration::from_secs(120),
        call_timeout: Duration::from_secs(60),
        ..Limits::default()
    }
}

/// Whether a server is installed; if not, says that it is skipped.
fn is_installed(setup: &Setup, server: &Server) -> bool {
    let of_server = server.command.iter().map(|word| setup.expand(word));
    let missing = of_server.filter(|word| word.starts_with('/') && !word.contains("scratch"));
    let missing: Vec<_> = missing
        .filter(|word| !word.starts_with(setup.scratch.path().to_str().unwrap()) && !Path::new(word).exists())
        .collect();
    let has_program = |name: &str| Command::new(name).arg("--version").stdout(Stdio::null()).status().is_ok();
    let installed = missing.is_empty() && (server.command[0] != "node" || has_program("node"));
    if !installed {
        eprintln!("skipped: {} is not installed; run tests/reference/servers.sh", server.name);
    }
    installed
}

/// Checks tools and calls on one session, a second start, and that no process is left.
async fn check(server: &Server) {
    let setup = Setup::new();
    if !is_installed(&setup, server) {
        return;
    }
    if server.name == "git" {
        setup.repository();
    }
    let tag = format!("real-server-{}-{}", server.name, std::process::id());
    let mut env: BTreeMap<String, String> =
        server.env.iter().map(|(name, value)| ((*name).to_owned(), setup.expand(value))).collect();
    env.insert("MCPRL_TEST_TAG".into(), tag.clone());
    let command = server.command.iter().map(|word| setup.expand(word)).collect();
    let transport = Transport::Stdio { command, env, cwd: None, files: Vec::new() };
    let spec = ServerSpec { limits: limits(), ..ServerSpec::new(transport, State::FreshProcess) };
    let session = Session::connect(&spec).await.unwrap();
    let digest = check_tools(&session, server).await;
    check_calls(&session, &setup, server).await;
    session.close().await;
    assert_eq!(with_tag(&tag), Vec::<String>::new(), "{}: left processes", server.name);

    let again = Session::connect(&spec).await.unwrap();
    assert_eq!(check_tools(&again, server).await, digest, "{}", server.name);
    drop(again);
    until_async(&format!("all processes of {} end", server.name), async || with_tag(&tag).is_empty()).await;
}

async fn check_tools(session: &Session, server: &Server) -> String {
    let tools = session.tools().await.unwrap();
    let names: Vec<&str> =
        tools.iter().filter(|tool| !tool.synthetic).map(|tool| &*tool.server_name).collect();
    assert_eq!(names, server.tools, "{}", server.name);
    assert_eq!(session.take_notes(), Vec::<String>::new(), "{}", server.name);
    tools_digest(&tools).to_string()
}

async fn check_calls(session: &Session, setup: &Setup, server: &Server) {
    let mut wrong = Vec::new();
    for (tool, arguments, expected) in server.calls {
        let arguments: Map<String, Value> = serde_json::from_str(&setup.expand(arguments)).unwrap();
        let Outcome { text, is_error } = session.call(tool, arguments.clone()).await.unwrap();
        let is_expected = match expected {
            Gives(part) => !is_error && text.contains(part),
            Fails(part) => is_error && text.contains(part),
        };
        if !is_expected {
            wrong.push(format!("{tool} {arguments:?}: is_error = {is_error}: {text}"));
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", server.name, wrong.join("\n"));
}

/// Processes with this text in their environment.
fn with_tag(tag: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let tagged = entries.filter(|entry| {
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(tag)
    });
    tagged.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[tokio::test]
async fn mcp_server_sqlite() {
    check(&SQLITE).await;
}

#[tokio::test]
async fn mcp_server_time() {
    check(&TIME).await;
}

#[tokio::test]
async fn mcp_server_git() {
    check(&GIT).await;
}

#[tokio::test]
async fn mcp_server_fetch() {
    check(&FETCH).await;
}

#[tokio::test]
async fn fastmcp_over_stdio() {
    check(&FASTMCP).await;
}

#[tokio::test]
async fn server_everything() {
    check(&EVERYTHING).await;
}

#[tokio::test]
async fn server_filesystem() {
    check(&FILESYSTEM).await;
}

#[tokio::test]
async fn server_memory() {
    check(&MEMORY).await;
}

#[tokio::test]
async fn server_sequential_thinking() {
    check(&THINKING).await;
}

/// Ended when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The FastMCP server on a free port, with these arguments behind it.
fn serve_fastmcp(setup: &Setup, transport: &str, more: &[&str]) -> (Running, u16) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = Command::new(setup.expand(FASTMCP.command[0]));
    command.arg(setup.expand(FASTMCP.command[1])).args([transport, &port.to_string()]).args(more);
    (Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()), port)
}

/// Connects once the server listens.
async fn connect(spec: &ServerSpec) -> Result<Session, McpError> {
    for _ in 0..600 {
        match Session::connect(spec).await {
            Err(error) if error.to_string().contains("Connection refused") => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            result => return result,
        }
    }
    Session::connect(spec).await
}

fn at(port: u16, authorization: Option<&str>) -> ServerSpec {
    let headers = authorization.map(|value| ("authorization".to_owned(), value.to_owned()));
    let url = format!("http://127.0.0.1:{port}/mcp");
    let transport = Transport::Http { url, token: Token::Stored, headers: headers.into_iter().collect() };
    ServerSpec { limits: limits(), ..ServerSpec::new(transport, State::FreshProcess) }
}

#[tokio::test]
async fn fastmcp_over_http_with_a_token() {
    let setup = Setup::new();
    if !is_installed(&setup, &FASTMCP) {
        return;
    }
    let (_running, port) = serve_fastmcp(&setup, "http", &["token-of-the-test"]);
    let spec = at(port, Some("Bearer token-of-the-test"));
    let mut digests = Vec::new();
    for _ in 0..2 {
        let session = connect(&spec).await.unwrap();
        digests.push(check_tools(&session, &FASTMCP).await);
        check_calls(&session, &setup, &FASTMCP).await;
        session.close().await;
    }
    assert_eq!(digests[0], digests[1]);
    for wrong in [None, Some("Bearer wrong")] {
        let error = connect(&at(port, wrong)).await.err().unwrap();
        assert!(matches!(error, McpError::Unauthorized { .. }), "{error}");
    }
}

#[tokio::test]
async fn fastmcp_over_sse() {
    let setup = Setup::new();
    if !is_installed(&setup, &FASTMCP) {
        return;
    }
    let (_running, port) = serve_fastmcp(&setup, "sse", &[]);
    let mut spec = at(port, None);
    let Transport::Http { url, .. } = &mut spec.transport else { unreachable!() };
    *url = format!("http://127.0.0.1:{port}/sse");
    let session = connect(&spec).await.unwrap();
    check_tools(&session, &FASTMCP).await;
    check_calls(&session, &setup, &FASTMCP).await;
    session.close().await;
}

/// `tests/reference/postgres.sh` starts PostgreSQL for it.
#[tokio::test]
#[ignore = "needs PostgreSQL: tests/reference/postgres.sh"]
async fn every_session_has_data_of_its_own_on_real_servers() {
    let host = std::env::var("MCPRL_TEST_PGHOST").unwrap();
    let servers = std::env::var("MCPRL_TEST_SERVERS").unwrap();
    let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference");
    let words = |text: &str| -> Vec<String> {
        let text = text.replace("{servers}", &servers).replace("{host}", &host);
        text.replace("{reference}", &reference.to_string_lossy()).split(' ').map(str::to_owned).collect()
    };
    let spec = |command: &str, env: &[(&str, &str)], state: State| {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), words(value).join(" "))).collect();
        ServerSpec::new(
            Transport::Stdio { command: words(command), env, cwd: None, files: Vec::new() },
            state,
        )
    };
    let tickets = "{servers}/fastmcp/bin/python {reference}/tickets_server.py";
    let mut postgres =
        spec(tickets, &[("DATABASE_URL", "postgresql:///{session}?host={host}")], State::FreshProcess);
    let in_memory = spec(tickets, &[], State::FreshProcess);
    postgres.before_episode = words("createdb --host={host} --template=tickets_clean {session}");
    postgres.after_episode = words("dropdb --host={host} --if-exists --force {session}");

    let folder = tempfile::tempdir().unwrap();
    let made = Command::new("python3")
        .args(["-c", "import sqlite3, sys; sqlite3.connect(sys.argv[1]).executescript(\"CREATE TABLE ticket (title TEXT); INSERT INTO ticket VALUES ('broken lamp')\")"])
        .arg(folder.path().join("tickets.db"))
        .status()
        .unwrap();
    assert!(made.success());
    let copied = spec(
        "{servers}/sqlite/bin/mcp-server-sqlite --db-path {dir}/tickets.db",
        &[],
        State::SnapshotDir(folder.path().to_owned()),
    );

    let query = |sql: &str| serde_json::json!({"query": sql}).as_object().unwrap().clone();
    let title = serde_json::json!({"title": "noise"}).as_object().unwrap().clone();
    let tickets = [("add_ticket", title), ("count_tickets", Map::new())];
    let sqlite = [
        ("write_query", query("INSERT INTO ticket VALUES ('noise')")),
        ("read_query", query("SELECT count(*) AS n FROM ticket")),
    ];
    for (spec, [(add, addition), (count, counted)], shown) in [
        (postgres, tickets.clone(), "{} in mcprl_session"),
        (in_memory, tickets, "{} in memory"),
        (copied, sqlite, "[{'n': {}}]"),
    ] {
        let pool = Pool::new(spec);
        let mut sessions = Vec::new();
        for _ in 0..3 {
            sessions.push(pool.session().await.unwrap());
        }
        for (additions, session) in sessions.iter().enumerate() {
            for _ in 0..additions {
                assert!(!session.call(add, addition.clone()).await.unwrap().is_error);
            }
        }
        for (additions, session) in sessions.iter().enumerate() {
            let found = session.call(count, counted.clone()).await.unwrap();
            assert_eq!(found.text, shown.replace("{}", &(1 + additions).to_string()));
        }
        drop(sessions);
        pool.close().await;
    }
}
