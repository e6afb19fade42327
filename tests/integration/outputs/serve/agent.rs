//! The agent of `mcprl serve`: at the endpoint, and as an MCP server.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Stdio},
};

use mcprl::mcp::{ServerSpec, Session, State, Transport};
use serde_json::{Map, Value, json};

use super::{Served, added, user};
use crate::common::{Project, training_run, until};

const ANSWER: &str = "There are 8 departments.";

/// A project with a model `caller` that answers everything with the same call and the same answer.
fn project(tool: &str, arguments: &Value) -> Project {
    let project = Project::new("");
    let call = |name: &str, arguments: &Value| {
        format!("<tool_call>\n{}\n</tool_call>\n", json!({"name": name, "arguments": arguments}))
    };
    project.replier("caller", &(call(tool, arguments) + &call("complete_task", &json!({"answer": ANSWER}))));
    let server = json!({"command": env!("CARGO_BIN_EXE_mcprl"), "args": ["demo-server", "sqlite"]});
    project.write("sqlite.json", &json!({"mcpServers": {"sqlite": server}}).to_string());
    project
}

fn querying() -> Project {
    project("run_query", &json!({"sql": "SELECT COUNT(*) AS n FROM departments"}))
}

const SERVE: [&str; 3] = ["caller", "--server", "sqlite.json"];

#[test]
fn the_agent_plays_the_conversation_and_its_answer_is_the_reply() {
    let project = querying();
    let served = Served::new(&project, &SERVE);
    assert_eq!(served.models, ["agent", "caller"]);
    let mut request = json!({"model": "agent", "messages": user("How many departments are there?")});
    let answer = served.completion(&request);
    let choice = &answer["choices"][0];
    assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!(ANSWER), &json!("stop")));
    assert!(choice["message"]["tool_calls"].is_null());
    assert_eq!(added(&served.chunks(&request))["choices"], answer["choices"]);
    let unnamed = json!({"messages": request["messages"]});
    assert_eq!(served.completion(&unnamed)["choices"], answer["choices"], "the agent is the default");
    let messages = request["messages"].as_array_mut().unwrap();
    messages.push(choice["message"].clone());
    messages.push(json!({"role": "user", "content": "Are you sure?"}));
    let next = served.completion(&request);
    assert_eq!(next["choices"][0]["message"]["content"], ANSWER);
    assert!(next["usage"]["prompt_tokens"].as_u64() > answer["usage"]["prompt_tokens"].as_u64());
    for (name, value) in [
        ("n", json!(2)),
        ("stop", json!("x")),
        ("logprobs", json!(true)),
        ("messages", json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])),
    ] {
        let mut request = request.clone();
        request[name] = value;
        let (status, body) = served.chat(&request);
        assert!(status == 400 && body["error"]["param"].as_str().unwrap().starts_with(name), "{body}");
    }
}

#[test]
fn calls_of_the_agent_come_one_by_one_in_a_stream() {
    let project = querying();
    let call = |name: &str, arguments: Value| {
        format!("<tool_call>\n{}\n</tool_call>\n", json!({"name": name, "arguments": arguments}))
    };
    let turns = [
        call("list_tables", json!({})),
        call("run_query", json!({"sql": "SELECT 7"})),
        call("complete_task", json!({"answer": ANSWER})),
    ];
    project.replier("caller", &turns.concat());
    let served = Served::new(&project, &SERVE);
    let request = json!({"model": "agent", "messages": user("How many departments are there?")});
    let chunks = served.chunks(&request);
    let delta = |chunk: &Value| chunk["choices"][0]["delta"].clone();
    let made: Vec<Value> = chunks.iter().map(|chunk| delta(chunk)["mcprl_calls"].clone()).collect();
    let made: Vec<&Value> = made.iter().filter(|made| made.is_array()).collect();
    assert_eq!(made.len(), 2, "a chunk each: {chunks:?}");
    let shown = |made: &Value| (made[0]["index"].clone(), made[0]["tool"].clone());
    assert_eq!(shown(made[0]), (json!(0), json!("list_tables")));
    assert_eq!(shown(made[1]), (json!(1), json!("run_query")));
    assert_eq!(added(&chunks)["choices"], served.completion(&request)["choices"]);
}

#[test]
fn a_runs_agent_has_the_runs_limits() {
    let project = Project::with_model(&training_run("group_size = 2"));
    project.run(&[]);
    let served = Served::new(&project, &[]);
    let run = project.runs().pop().unwrap();
    let answer = served.completion(&json!({"model": format!("{run}/agent"), "messages": user("Hi")}));
    // Six tokens per turn and two turns, as in the run's exam.
    assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() <= 12, "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[test]
fn an_agent_of_another_compared_policy_answers_beside_the_agent() {
    let project = Project::with_model(&training_run("group_size = 2"));
    project.run(&[]);
    let served = Served::new(&project, &["--keep", "kept"]);
    assert_eq!(served.models[..2], ["agent", "agent:base"], "{:?}", served.models);
    let listed = served.get("/v1/models").body;
    assert!(listed.contains("\"agent:base\""), "{listed}");
    let run = project.runs().pop().unwrap();
    for name in ["agent", "agent:base", "agent:trained", "trained", "base", &format!("{run}/agent:trained")] {
        let found = served.get(&format!("/v1/models/{name}"));
        assert_eq!(found.status, 200, "{name}: {}", found.body);
        assert_eq!(served.chat(&json!({"model": name, "messages": user("Hi")})).0, 200, "{name}");
    }
    let answer = |model: &str| served.completion(&json!({"model": model, "messages": user("Hi")}));
    let [agent, base, alone] = ["agent", "agent:base", "base"].map(answer);
    assert_eq!(
        (&base["model"], &base["choices"][0]["finish_reason"]),
        (&json!("agent:base"), &json!("length"))
    );
    assert_eq!(
        base["usage"]["prompt_tokens"], agent["usage"]["prompt_tokens"],
        "the same tools and system prompt"
    );
    assert_eq!(base["system_fingerprint"], alone["system_fingerprint"]);
    assert_ne!(base["system_fingerprint"], agent["system_fingerprint"]);
    let kept = served.get("/conversations").body;
    assert!(kept.contains("\"model\":\"agent:base\""), "{kept}");
    let named = format!("{run}/agent:base");
    assert_eq!(answer(&named)["choices"], base["choices"]);
    assert_eq!(answer("agent:trained")["choices"], agent["choices"]);
    for unknown in ["agent:none", "agent:"] {
        let (status, body) = served.chat(&json!({"model": unknown, "messages": user("Hi")}));
        assert_eq!((status, &body["error"]["code"]), (404, &json!("model_not_found")), "{unknown}");
        assert_eq!(served.get(&format!("/v1/models/{unknown}")).status, 404, "{unknown}");
    }
    let base = Served::new(&project, &["--policy", "base"]);
    assert_eq!(base.models[..2], ["agent", "agent:trained"], "{:?}", base.models);
}

#[test]
fn the_page_learns_who_answers_how_well_and_what_to_try() {
    let project = Project::with_model(&training_run("group_size = 2"));
    project.run(&[]);
    let served = Served::new(&project, &[]);
    let about: Value = serde_json::from_str(&served.get("/about").body).unwrap();
    assert_eq!(about["run"], project.runs().pop().unwrap());
    let models: Vec<(&Value, &Value)> =
        about["models"].as_array().unwrap().iter().map(|one| (&one["model"], &one["policy"])).collect();
    let (base, trained) = (json!("base"), json!("trained"));
    let (agent, of_base) = (json!("agent"), json!("agent:base"));
    assert_eq!(models, [(&agent, &trained), (&of_base, &base), (&trained, &trained), (&base, &base)]);
    let models = about["models"].as_array().unwrap();
    for model in models.iter().filter(|model| model["is_agent"] == true) {
        let [low, success, high] =
            ["low", "success", "high"].map(|name| model["exam"][name].as_f64().unwrap());
        assert!(low <= success && success <= high, "{model}");
    }
    assert!(models.iter().all(|model| model["is_agent"] == true || model["exam"].is_null()), "{about}");
    assert!(about["exam"]["tasks"].as_u64().unwrap() > 0 && about["tools"][0]["name"].is_string(), "{about}");
    let tasks = about["tasks"].as_array().unwrap();
    assert!((1..=5).contains(&tasks.len()), "{about}");
    let check = |request: Value| {
        let answer = served.request("POST /check", &[], request.to_string().as_bytes());
        (answer.status, serde_json::from_str::<Value>(&answer.body).unwrap()["is_right"].clone())
    };
    let expected = tasks[0]["answer"].as_str().unwrap();
    assert_eq!(check(json!({"task": 0, "answer": expected})), (200, json!(true)));
    assert_eq!(check(json!({"task": 0, "answer": "no idea"})), (200, json!(false)));
    assert_eq!(check(json!({"task": 99, "answer": expected})).0, 400);
    assert_eq!(check(json!({"answer": expected})).0, 400);

    let alone = Served::new(&project, &["llama"]);
    let about: Value = serde_json::from_str(&alone.get("/about").body).unwrap();
    assert_eq!(about["models"], json!([{"model": null, "policy": "llama", "is_agent": false, "exam": null}]));
    assert_eq!((&about["tools"], &about["tasks"], &about["exam"]), (&json!([]), &json!([]), &Value::Null));
}

/// An MCP server on standard input and output.
struct Asked {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Asked {
    fn new(project: &Project, arguments: &[&str]) -> Self {
        let mut command = project.command(&[&["serve", "--mcp"], arguments].concat());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut asked = Self { child, input, output };
        let client = json!({"name": "test", "version": "1"});
        let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
        asked.send(&json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}));
        assert_eq!(asked.receive()["result"]["serverInfo"]["name"], "mcprl");
        asked.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        asked
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.input, "{message}").unwrap();
    }

    fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line:?}"))
    }

    fn ask(&mut self, arguments: &Value) -> (Vec<Value>, Value) {
        let params = json!({"name": "ask", "arguments": arguments, "_meta": {"progressToken": "p"}});
        self.send(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}));
        let mut progress = Vec::new();
        loop {
            let mut message = self.receive();
            match message["method"].as_str() {
                Some("notifications/progress") => progress.push(message["params"].take()),
                _ => return (progress, message),
            }
        }
    }
}

#[test]
fn a_client_asks_the_agent_as_one_tool() {
    let project = querying();
    let mut asked = Asked::new(&project, &SERVE);
    asked.send(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}));
    let tools = asked.receive()["result"]["tools"].take();
    assert_eq!((tools.as_array().unwrap().len(), &tools[0]["name"]), (1, &json!("ask")));
    let about = tools[0]["description"].as_str().unwrap();
    assert!(about.contains("run_query"), "{about}");
    let (progress, reply) = asked.ask(&json!({"task": "How many departments are there?"}));
    let result = &reply["result"];
    assert_eq!((&result["content"][0]["text"], &result["isError"]), (&json!(ANSWER), &json!(false)));
    assert!(result["structuredContent"].is_null());
    assert_eq!(
        (&progress[0]["progressToken"], &progress[0]["progress"]),
        (&json!("p"), &json!(1.0)),
        "{progress:?}"
    );
    let (_, reply) = asked.ask(&json!({"task": "How many departments are there?", "calls": true}));
    let calls = &reply["result"]["structuredContent"]["calls"];
    assert_eq!((&calls[0]["tool"], &calls[0]["error"]), (&json!("run_query"), &Value::Null));
    assert!(calls[0]["result"].as_str().unwrap().contains('8'), "{calls}");
    for wrong in [json!({}), json!({"task": 7}), json!({"task": "x", "other": 1})] {
        assert!(!asked.ask(&wrong).1["error"].is_null(), "{wrong}");
    }
    drop(asked.input);
    assert!(asked.child.wait().unwrap().success(), "it ends with its client");
}

#[test]
fn a_check_plays_the_exam_at_the_endpoint() {
    let project = Project::with_model(&training_run("group_size = 2"));
    project.run(&[]);
    let check = project.mcprl(&["serve", "--check", "--json"]);
    assert_eq!(check.code, Some(0), "{}", check.err);
    let compared: Value = serde_json::from_str(check.out.trim()).unwrap();
    assert!(compared["tasks"].as_u64().unwrap() > 0, "{compared}");
    assert_eq!((&compared["served"], &compared["same_answers"]), (&compared["exam"], &compared["tasks"]));
    let none = project.mcprl(&["serve", "llama", "--check", "--json"]);
    assert!(none.code == Some(2) && none.err.contains("serve::no_exam"), "{}", none.err);
}

#[test]
fn damaged_results_are_neither_served_nor_reported() {
    let project = Project::with_model(&training_run("group_size = 2"));
    project.run(&[]);
    let run = project.runs().pop().unwrap();
    project.write("traces.jsonl", r#"{"messages": [{"role": "user", "content": "?"}]}"#);
    let serve = ["serve", "--check", "--json"];
    for (file, name, commands) in [
        ("update/policy/adapter_model.safetensors", "update.policy", &[&serve[..]][..]),
        ("exam/episodes.parquet", "exam.episodes", &[&serve, &["episodes", "latest"], &["report"]]),
        ("exam/verdict.parquet", "exam.verdict", &[&serve, &["report"]]),
        ("reward/rewards.parquet", "reward.rewards", &[&["rejudge", "latest"]]),
        ("tools/tools.parquet", "tools", &[&["traces", "traces.jsonl", "--tools", "latest"]]),
    ] {
        let stored = std::fs::canonicalize(project.newest().join(file)).unwrap();
        let mut bytes = std::fs::read(&stored).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::remove_file(&stored).unwrap();
        std::fs::write(&stored, bytes).unwrap();
        for command in commands {
            let refused = project.mcprl(command);
            assert_eq!(refused.code, Some(1), "{command:?}: {}{}", refused.out, refused.err);
            let text = refused.out + &refused.err;
            assert!(text.contains(&format!("output {name} of run")), "{command:?}: {text}");
            assert!(text.contains("is unusable: its bytes changed since it was written"), "{text}");
        }
        assert_eq!(project.mcprl(&["resume", &run]).code, Some(0));
    }
    assert_eq!(project.mcprl(&serve).code, Some(0));
}

#[test]
fn a_client_cancels_a_task_and_its_place_is_free() {
    let project = querying();
    // A server that is never called, so that its calls have no answer.
    let server =
        format!("grep --line-buffered -v tools/call | {} demo-server sqlite", env!("CARGO_BIN_EXE_mcprl"));
    let server = json!({"command": "sh", "args": ["-c", server]});
    project.write("silent.json", &json!({"mcpServers": {"silent": server}}).to_string());
    let mut asked = Asked::new(&project, &["caller", "--server", "silent.json", "--max-requests", "1"]);
    let task = |id: u64| {
        let arguments = json!({"task": "Never mind."});
        let params = json!({"name": "ask", "arguments": arguments, "_meta": {"progressToken": id}});
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
    };
    asked.send(&task(7));
    assert_eq!(asked.receive()["params"]["progressToken"], 7, "it calls");
    asked.send(&task(8));
    let busy = asked.receive();
    assert!(busy["id"] == 8 && busy.to_string().contains("too many tasks"), "{busy}");
    asked.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}));
    let mut id = 8;
    until("its place is free", || {
        id += 1;
        asked.send(&task(id));
        let reply = asked.receive();
        let is_busy = reply["id"] == id && reply.to_string().contains("too many tasks");
        let begins = reply["params"]["progressToken"] == id;
        assert!(is_busy || begins, "{reply}");
        begins
    });
}

#[test]
fn calls_that_may_change_something_need_yes() {
    let project = project("set_status", &json!({"ticket_id": "T-1", "status": "closed"}));
    let command = [env!("CARGO_BIN_EXE_mcprl"), "demo-server", "desk"];
    let file = format!(
        "[server]\ncommand = {command:?}\nstate = \"fresh-process\"\n[stages.tools]\nkind = \"discover\"\n"
    );
    project.write("desk.toml", &file);
    let error = |more: &[&str]| {
        let mut asked = Asked::new(&project, &[&["caller", "--server", "desk.toml"], more].concat());
        let (_, reply) = asked.ask(&json!({"task": "Close it.", "calls": true}));
        let calls = &reply["result"]["structuredContent"]["calls"];
        assert_eq!(calls[0]["tool"], "set_status", "{reply}");
        calls[0]["error"].clone()
    };
    assert_eq!(error(&[]), "refused");
    assert_eq!(error(&["--yes", "--deny", "*"]), "refused");
    assert_ne!(error(&["--yes"]), "refused");
    let noted = |more: &[&str]| {
        let _served = Served::new(
            &project,
            &[&["caller", "--server", "desk.toml", "--log-format", "json"], more].concat(),
        );
        let log = project.read("serve.log");
        std::fs::remove_file(project.path("serve.log")).unwrap();
        log
    };
    let said = noted(&[]);
    assert!(said.contains("nobody here can approve calls of ") && said.contains("set_status"), "{said}");
    assert!(!said.contains("get_ticket"), "tools that only read need nobody: {said}");
    assert!(!noted(&["--yes"]).contains("nobody here can approve"));
}

#[test]
fn the_agent_is_an_mcp_server_over_http_too() {
    let project = querying();
    let served = Served::new(&project, &SERVE);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let text = runtime.block_on(async {
        let transport = Transport::http(format!("http://{}/mcp", served.host));
        let session = Session::connect(&ServerSpec::new(transport, State::ReadOnly)).await.unwrap();
        let task = Map::from_iter([("task".to_owned(), json!("How many departments are there?"))]);
        let text = session.call("ask", task).await.unwrap().text;
        session.close().await;
        text
    });
    assert_eq!(text, ANSWER);
}

/// Posts a message to `/mcp`.
fn post(served: &Served, session: Option<&str>, message: &Value) -> std::net::TcpStream {
    let mut headers =
        vec![("Accept", "application/json, text/event-stream"), ("Content-Type", "application/json")];
    headers.extend(session.map(|session| ("Mcp-Session-Id", session)));
    served.open("POST /mcp", &headers, message.to_string().as_bytes())
}

/// The status line of an answer, and its headers.
fn head(stream: std::net::TcpStream) -> (String, BufReader<std::net::TcpStream>) {
    let (mut head, mut lines) = (String::new(), BufReader::new(stream));
    while !head.ends_with("\r\n\r\n") && lines.read_line(&mut head).unwrap() > 0 {}
    (head, lines)
}

fn hello() -> Value {
    let client = json!({"name": "test", "version": "1"});
    let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
}

#[test]
fn a_task_ends_with_its_connection_and_sessions_are_bounded() {
    let project = querying();
    let server =
        format!("grep --line-buffered -v tools/call | {} demo-server sqlite", env!("CARGO_BIN_EXE_mcprl"));
    let server = json!({"command": "sh", "args": ["-c", server]});
    project.write("silent.json", &json!({"mcpServers": {"silent": server}}).to_string());
    let served = Served::new(&project, &["caller", "--server", "silent.json", "--max-requests", "1"]);
    let (head_of_hello, _) = head(post(&served, None, &hello()));
    let session = head_of_hello
        .lines()
        .find_map(|line| line.to_lowercase().strip_prefix("mcp-session-id: ").map(str::to_owned));
    let session = session.unwrap_or_else(|| panic!("{head_of_hello}"));
    let begun = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    head(post(&served, Some(&session), &begun));
    let params = json!({"name": "ask", "arguments": {"task": "Never mind."}});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let asking = head(post(&served, Some(&session), &call));
    until("it is asked", || served.metric("mcprl_answers_in_progress") == 1.0);
    drop(asking);
    until("its place is free", || served.metric("mcprl_answers_in_progress") == 0.0);
    let asking = head(post(&served, Some(&session), &call));
    until("it is asked", || served.metric("mcprl_answers_in_progress") == 1.0);
    let twice = head(post(&served, Some(&session), &call)).0;
    assert!(twice.starts_with("HTTP/1.0 400"), "a stream that would never end: {twice}");
    // Those that are idle make room, and not the one that is at work.
    let heads: Vec<String> = (0..300).map(|_| head(post(&served, None, &hello())).0).collect();
    let session_of = |head: &str| {
        let id = |line: &str| line.to_lowercase().strip_prefix("mcp-session-id: ").map(str::to_owned);
        head.lines().find_map(id).unwrap_or_else(|| panic!("{head}"))
    };
    let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"});
    let status = |session: &str| head(post(&served, Some(session), &list)).0[9..12].to_owned();
    assert_eq!(status(&session_of(&heads[0])), "404");
    for live in [&session_of(&heads[299]), &session] {
        head(post(&served, Some(live), &begun));
        assert_eq!(status(live), "200");
    }
    drop(asking);
    assert_eq!(served.get("/health").status, 200);
}

/// A server that says how many calls it has had, and dies of `die`.
const COUNTING: &str = r#"calls=0
while read -r line; do
    id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
    case $line in
    *'"initialize"'*)
        version=$(printf '%s' "$line" | sed 's/.*"protocolVersion":"\([^"]*\)".*/\1/')
        result='{"protocolVersion":"'$version'","capabilities":{"tools":{}},"serverInfo":{"name":"counting","version":"1"}}' ;;
    *'"tools/list"'*)
        about='"inputSchema":{"type":"object","properties":{}},"annotations":{"readOnlyHint":true}'
        result='{"tools":[{"name":"count",'$about'},{"name":"die",'$about'}]}' ;;
    *'"tools/call"'*'"die"'*)
        echo 'psycopg: postgres://app:s3cr3tpw@10.1.2.3/prod failed; /srv/private' >&2
        exit 1 ;;
    *'"tools/call"'*)
        calls=$((calls + 1))
        result='{"content":[{"type":"text","text":"calls so far '$calls'"}]}' ;;
    *) result='{}' ;;
    esac
    [ -z "$id" ] || echo '{"jsonrpc":"2.0","id":'$id',"result":'$result'}'
done
"#;

/// A model that calls this tool of the counting server, which an mcp.json describes.
fn counting(tool: &str) -> (Project, Served) {
    let project = project(tool, &json!({}));
    project.write("counting.sh", COUNTING);
    let path = project.path("counting.sh").display().to_string();
    let server = json!({"command": "bash", "args": [path, "--key-of", "k3y"]});
    project.write("counting.json", &json!({"mcpServers": {"counting": server}}).to_string());
    let served = Served::new(&project, &["caller", "--server", "counting.json"]);
    (project, served)
}

#[test]
fn each_conversation_has_a_session_of_its_own_whatever_describes_the_server() {
    let (_project, served) = counting("count");
    let request = json!({"model": "agent", "messages": user("How many?")});
    for _ in 0..3 {
        let answer = served.completion(&request);
        let result = &answer["choices"][0]["message"]["mcprl_calls"][0]["result"];
        assert_eq!(result, "calls so far 1", "{answer}");
    }
}

#[test]
fn a_client_is_not_told_the_servers_command_and_what_it_prints() {
    let (project, served) = counting("die");
    let request = json!({"model": "agent", "messages": user("How many?"), "stream": false});
    let (status, body) = served.chat(&request);
    let mut stream = request.clone();
    stream["stream"] = true.into();
    let streamed = served.request("POST /v1/chat/completions", &[], stream.to_string().as_bytes()).body;
    assert_eq!((status, &body["error"]["code"]), (502, &json!("server_lost")), "{body}");
    let message = body["error"]["message"].as_str().unwrap();
    let reference = message.rsplit(' ').next().unwrap();
    let log = project.read("serve.log");
    let told =
        log.lines().find(|line| line.contains(reference)).unwrap_or_else(|| panic!("{message}\n{log}"));
    assert!(told.contains("counting.sh") && !told.contains("s3cr3tpw"), "{told}");
    for secret in ["counting.sh", "s3cr3tpw", "bash", "k3y", "/srv/private", "psycopg"] {
        assert!(!body.to_string().contains(secret), "{secret}: {body}");
        assert!(!streamed.contains(secret), "{secret}: {streamed}");
    }
}

#[test]
fn the_page_names_no_command_no_path_and_no_secret() {
    let key = format!("sk-proj-{}", "aB3dE6gH9jK2mN5pQ8sT1vW4".repeat(2));
    let (project, _served) = counting("count");
    let script = COUNTING
        .replace("{\"name\":\"count\",", &format!("{{\"name\":\"count\",\"description\":\"Uses {key}.\","));
    project.write("counting.sh", &script);
    let model = project.path("caller").display().to_string();
    let served = Served::new(&project, &[&model, "--server", "counting.json"]);
    let text = served.get("/about").body;
    let about: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(about["server"], "counting");
    assert_eq!(
        (&about["models"][0]["model"], &about["models"][0]["policy"]),
        (&json!("agent"), &json!("caller"))
    );
    assert_eq!(about["models"].as_array().unwrap().len(), 1, "{text}");
    let tools = about["tools"].as_array().unwrap();
    assert!(tools.iter().any(|tool| tool["description"] == "Uses …."), "{text}");
    for secret in ["counting.sh", "bash", "k3y", &key, &project.path("").display().to_string()] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
}

#[test]
fn a_run_file_without_stages_serves_with_its_agent() {
    let project = querying();
    project.write("prompt.md", "You are the production agent.");
    let server = format!("command = [\"{}\", \"demo-server\", \"sqlite\"]", env!("CARGO_BIN_EXE_mcprl"));
    // As the guide prints it, on a server that is here.
    let guide = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guides/deploy.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let printed = guide.split("```toml\n").find(|block| block.starts_with("# production.toml")).unwrap();
    let printed: Vec<&str> = printed.split("\n```").next().unwrap().lines().collect();
    let here = printed.iter().map(|line| match line.split(' ').next() {
        Some("command") => format!("{server}\n"),
        Some("devices") => String::new(),
        _ => format!("{line}\n"),
    });
    project.write("production.toml", &here.collect::<String>());
    let text = |stages: &str| {
        format!(
            "{stages}[server]\n{server}\nstate = \"fresh-process\"\n[agent]\nsystem = \"prompt.md\"\nmax_calls = 3\n"
        )
    };
    project.write("a.toml", &text(""));
    project.write("b.toml", &text("[stages.tools]\nkind = \"discover\"\n"));
    for name in ["production.toml", "a.toml", "b.toml"] {
        let served = Served::new(&project, &["caller", "--server", name, "--keep", "kept"]);
        served.completion(&json!({"model": "agent", "messages": user("How many departments are there?")}));
        let kept = std::fs::read_dir(project.path("kept")).unwrap().next().unwrap().unwrap().path();
        let text = std::fs::read_to_string(&kept).unwrap();
        assert!(text.contains("You are the production agent."), "{name}: {text}");
        std::fs::remove_file(kept).unwrap();
    }
}

#[test]
fn sigterm_leaves_nothing_and_a_sweep_leaves_what_is_served() {
    let project = querying();
    let mut served = Served::new(&project, &SERVE);
    let left = || {
        std::fs::read_dir(project.path("cache/tmp"))
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("chat-"))
            .count()
    };
    assert_eq!(left(), 1);
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(86_400);
    for entry in std::fs::read_dir(project.path("cache/tmp")).unwrap() {
        std::fs::File::open(entry.unwrap().path()).unwrap().set_modified(old).unwrap();
    }
    assert_eq!(project.mcprl(&["cache", "gc"]).code, Some(0));
    assert_eq!(left(), 1, "it is served");
    served.completion(&json!({"model": "agent", "messages": user("How many departments are there?")}));
    served.terminate();
    assert_eq!(left(), 0);
}

#[test]
fn a_sweep_leaves_a_run_that_is_served_and_the_run_is_not_called_active() {
    let project = Project::with_model(&training_run("group_size = 2"));
    project.run(&[]);
    let mut served = Served::new(&project, &["latest"]);
    let swept = project.mcprl(&["cache", "gc", "--keep-last", "0"]);
    assert_eq!(swept.code, Some(0), "{}", swept.err);
    assert_eq!(project.runs().len(), 1, "{}", swept.err);
    let runs = project.mcprl(&["runs", "--json"]).out;
    assert!(runs.contains("finished") && !runs.contains("running"), "{runs}");
    served.completion(&json!({"model": "base", "messages": user("Hi"), "max_tokens": 2}));
    served.terminate();
    assert_eq!(project.mcprl(&["cache", "gc", "--keep-last", "0"]).code, Some(0));
    assert_eq!(project.runs().len(), 0);
}
