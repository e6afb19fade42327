//! Settings of a server: what it exposes as tools, limits of single tools, answers to its questions, changes of its tools.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::common::{Project, until_async};
use mcprl::data;
use mcprl::mcp::{
    Expose, Inputs, ListChange, McpError, Pools, ServerSpec, Servers, Session, State, ToolLimits, Transport,
    merged,
};
use serde_json::{Map, Value, json};

const SERVER: &str = r#"tools='{"name":"search"},{"name":"slow"},{"name":"ask"},{"name":"sample"}'
while IFS= read -r line; do
    id=${line#*'"id":'}; id=${id%%[,\}]*}
    reply() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
    ask() {
        printf '{"jsonrpc":"2.0","id":"q","method":"%s","params":%s}\n' "$1" "$2"
        IFS= read -r answer
        reply "{\"content\":\"$(printf '%s' "$answer" | tr -d '"')\"}"
    }
    case $line in
        *'"initialize"'*) reply '{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"resources":{},"prompts":{}},"serverInfo":{"name":"s","version":"1"}}';;
        *'"tools/list"'*) reply "{\"tools\":[$tools]}";;
        *'"resources/list"'*) reply '{"resources":[{"uri":"note://1","name":"one","description":"The first."}]}';;
        *'"resources/templates/list"'*) reply '{"resourceTemplates":[{"uriTemplate":"note://{n}","name":"any"}]}';;
        *'"resources/read"'*'note://1'*) reply '{"contents":[{"uri":"note://1","text":"a note"}]}';;
        *'"resources/read"'*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"no such note"}}\n' "$id";;
        *'"prompts/list"'*) reply '{"prompts":[{"name":"greet","arguments":[{"name":"who","required":true}]}]}';;
        *'"prompts/get"'*) reply '{"messages":[{"role":"user","content":{"type":"text","text":"Hello!"}}]}';;
        *'"name":"slow"'*) sleep 3; reply '{"content":"late"}';;
        *'"name":"ask"'*) ask elicitation/create '{"message":"?","requestedSchema":{"type":"object","properties":{"days":{"type":"integer","default":3}}}}';;
        *'"name":"sample"'*) ask sampling/createMessage '{"messages":[],"maxTokens":9}';;
        *'"name":"change"'*) tools='{"name":"search","description":"Other."}'; printf '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n'; reply '{"content":"changed"}';;
        *'"tools/call"'*) reply '{"content":"0123456789012345678901234567890123456789012345678901234567890123456789"}';;
    esac
done
"#;

fn server() -> ServerSpec {
    let command = ["sh", "-c", SERVER].map(str::to_owned).into();
    let transport = Transport::Stdio { command, env: BTreeMap::new(), cwd: None, files: Vec::new() };
    ServerSpec::new(transport, State::ReadOnly)
}

const ALL: Expose = Expose { resources: true, prompts: true };

async fn call(session: &Session, tool: &str, arguments: Value) -> (String, bool) {
    let outcome = session.call(tool, arguments.as_object().unwrap().clone()).await.unwrap();
    (outcome.text, outcome.is_error)
}

async fn names(session: &Session) -> Vec<String> {
    session.tools().await.unwrap().into_iter().map(|tool| tool.name).collect()
}

#[tokio::test]
async fn resources_and_prompts_are_tools_where_they_are_exposed() {
    let session = Session::connect(&server()).await.unwrap();
    assert_eq!(names(&session).await, ["search", "slow", "ask", "sample", "complete_task"]);
    session.close().await;

    let folder = tempfile::tempdir().unwrap();
    let cassette = folder.path().join("c.jsonl");
    let live = ServerSpec { expose: ALL, record: Some(cassette.clone()), ..server() };
    let played = ServerSpec { transport: Transport::Cassette(cassette), record: None, ..live.clone() };
    for spec in [live, played] {
        let session = Session::connect(&spec).await.unwrap();
        let described = session.describe().await.unwrap();
        assert_eq!(described.tools, session.tools().await.unwrap());
        assert_eq!(
            names(&session).await[4..],
            ["list_resources", "read_resource", "get_prompt", "complete_task"]
        );
        let prefixed = merged([("crm".to_owned(), described.tools)]);
        assert_eq!(
            (&*prefixed[4].name, &*prefixed[4].server_name),
            ("crm_list_resources", "crm/resources/list")
        );
        let ok = |text: &str| (text.to_owned(), false);
        assert_eq!(
            call(&session, "resources/list", json!({})).await,
            ok("note://1  one: The first.\nnote://{n}  any")
        );
        assert_eq!(call(&session, "resources/read", json!({"uri": "note://1"})).await, ok("a note"));
        let missing = call(&session, "resources/read", json!({"uri": "note://7"})).await;
        assert_eq!(missing, ("no such note".to_owned(), true));
        let without = call(&session, "resources/read", json!({})).await;
        assert_eq!(without, ("the argument `uri` is missing".to_owned(), true));
        let arguments = json!({"name": "greet", "arguments": {"who": "you"}});
        assert_eq!(call(&session, "prompts/get", arguments).await, ok("user: Hello!"));
        session.close().await;
    }
}

#[tokio::test]
async fn a_tool_may_have_its_own_limits() {
    let mut spec = server();
    let timeout = Some(Duration::from_secs(1));
    spec.limits.tools.insert("slow".into(), ToolLimits { timeout, ..ToolLimits::default() });
    let short = ToolLimits { result_bytes: Some(50), calls: Some(2), ..ToolLimits::default() };
    spec.limits.tools.insert("search".into(), short);
    let session = Session::connect(&spec).await.unwrap();
    let (text, is_error) = call(&session, "search", json!({})).await;
    assert!(text.len() <= 50 && text.contains("bytes left out") && !is_error, "{text}");
    let late = call(&session, "slow", json!({})).await;
    assert_eq!(late, ("the tool did not answer within 1s".to_owned(), true));
    session.close().await;

    let pools = Pools::new(&Servers::named([("crm".to_owned(), spec)].into()));
    for _ in 0..2 {
        let episode = pools.visit();
        let refused = |tool: &str| episode.refuse(tool);
        assert_eq!([refused("crm/search"), refused("crm/search"), refused("crm/ask")], [None, None, None]);
        let more = refused("crm/search").unwrap();
        assert_eq!(more, "this tool can be called 2 times in a task, and no more");
    }
    pools.close().await;
}

#[tokio::test]
async fn questions_of_the_server_are_refused_unless_there_is_an_answer() {
    for (inputs, form, sample) in [
        (Inputs::default(), "action:decline", "error"),
        (
            Inputs { elicitation: Some(Map::new()), sampling: Some("fine".into()) },
            "action:accept,content:{days:3}",
            "text:fine",
        ),
        (
            Inputs { elicitation: json!({"days": 9}).as_object().cloned(), sampling: None },
            "action:accept,content:{days:9}",
            "error",
        ),
    ] {
        let session = Session::connect(&ServerSpec { inputs, ..server() }).await.unwrap();
        let (text, _) = call(&session, "ask", json!({})).await;
        assert!(text.contains(form), "{form}: {text}");
        let (text, _) = call(&session, "sample", json!({})).await;
        assert!(text.contains(sample), "{sample}: {text}");
        session.close().await;
    }
}

#[tokio::test]
async fn a_changed_tool_stops_or_is_noted() {
    for on_list_change in [ListChange::Stop, ListChange::Note] {
        let mut spec = ServerSpec { on_list_change, ..server() };
        spec.limits.sessions = Some(1);
        let session = Session::connect(&spec).await.unwrap();
        let listed = session.tools().await.unwrap();
        session.close().await;
        let pools = Pools::new(&spec.into()).expecting(&listed);
        let (pool, _) = pools.route("search").unwrap();
        let session = pool.session().await.unwrap();
        assert_eq!(call(&session, "change", json!({})).await.0, "changed");
        drop(session);
        // The announcement may arrive after the answer.
        let mut noticed = Vec::new();
        until_async("the change is noticed", async || {
            match pool.session().await {
                Ok(session) => assert_eq!(call(&session, "search", json!({})).await.0.len(), 70),
                Err(error) => {
                    assert!(matches!(error, McpError::ToolChanged { .. }), "{error}");
                    noticed.push("stopped".to_owned());
                }
            }
            noticed.extend(pools.take_notes());
            !noticed.is_empty()
        })
        .await;
        match on_list_change {
            ListChange::Stop => assert_eq!(noticed, ["stopped"]),
            ListChange::Note => {
                assert!(noticed[0].contains("the tool `search`") && noticed.len() == 1, "{noticed:?}");
                assert!(pool.session().await.is_ok());
                assert_eq!(pools.take_notes(), [""; 0]);
            }
        }
        pools.close().await;
    }
}

#[test]
fn settings_are_read_from_the_run_file() {
    let project = Project::new(
        "name = \"toy\"\n[server]\ncommand = [\"sh\", \"server.sh\"]\nstate = \"fresh-process\"\n[stages.tools]\nkind = \"discover\"\n",
    );
    project.write("server.sh", SERVER);
    let set = |set: &[&str]| {
        let set: Vec<&str> = set.iter().flat_map(|set| ["--set", set]).collect();
        project.mcprl(&[&["run", "run.toml"], &set[..]].concat())
    };
    let all = [
        "server.expose=[\"resources\", \"prompts\"]",
        "server.tools.serch={ calls = 1 }",
        "server.tools.slow={ timeout_s = 60, result_bytes = 100 }",
        "server.elicitation={ city = \"Rome\", days = 3 }",
        "server.sampling={ text = \"ok\" }",
        "server.on_list_change=note",
    ];
    let output = set(&all);
    assert_eq!(output.code, Some(0), "{}", output.err);
    let note = "`tools.serch` sets limits of a tool that the server does not list; did you mean `search`?";
    assert!(output.err.contains(note), "{}", output.err);
    let plan = project.mcprl(&["plan", "run.toml", "--json"]).out;
    for setting in ["expose", "inputs", "tools"] {
        assert!(plan.contains(&format!("server.conduct.{setting}")), "{setting}: {plan}");
    }
    for (setting, mistake) in [
        (
            "server.expose=[\"tools\"]",
            "`server.expose` should be \"resources\" or \"prompts\", found \"tools\"",
        ),
        (
            "server.elicitation=yes",
            "`server.elicitation` should be \"defaults\" or a table of values by field",
        ),
        (
            "server.elicitation=true",
            "`server.elicitation` should be \"defaults\" or a table of values by field, found a boolean",
        ),
        ("server.elicitation={ password = \"hunter2\" }", "`server.elicitation.password` holds a secret"),
        (
            "server.on_list_change=ignore",
            "`server.on_list_change` should be \"stop\" or \"note\", found \"ignore\"",
        ),
        ("server.sampling={ model = \"m\" }", "unknown key `model` in `server.sampling`"),
        ("server.tools.slow={ timeout_s = 0 }", "`server.tools.slow.timeout_s` should be at least 1"),
        ("server.tools.slow={ timeout = 1 }", "unknown key `timeout` in `server.tools.slow`"),
    ] {
        let refused = set(&[setting]);
        assert_eq!(refused.code, Some(2), "{}", refused.err);
        assert!(refused.err.contains(mistake), "{setting}: {}", refused.err);
    }
    project.write("tapes/old", "");
    let refused = set(&["server.files=[\"tapes\"]", "server.record=tapes/../tapes/c.jsonl"]);
    assert!(refused.err.contains("`server.record` is in \"tapes\", which `files` names"), "{}", refused.err);
}

#[tokio::test]
async fn nothing_is_recorded_after_a_dropped_call() {
    let folder = tempfile::tempdir().unwrap();
    let cassette = folder.path().join("c.jsonl");
    let spec = ServerSpec { record: Some(cassette.clone()), state: State::FreshProcess, ..server() };
    let session = Session::connect(&spec).await.unwrap();
    call(&session, "search", json!({})).await;
    let slow = tokio::time::timeout(Duration::from_millis(100), call(&session, "slow", json!({}))).await;
    assert!(slow.is_err());
    call(&session, "search", json!({})).await;
    session.close().await;
    let recorded = std::fs::read_to_string(cassette).unwrap();
    assert_eq!(recorded.lines().count(), 2, "{recorded}");
}

#[test]
fn servers_have_a_cassette_each() {
    let server = |name: &str, tape: &str| {
        format!("[servers.{name}]\ncommand = [\"sh\", \"server.sh\"]\nrecord = \"{tape}\"\n")
    };
    let stage = "[stages.tools]\nkind = \"discover\"\n";
    let project = Project::new(&format!(
        "name = \"toy\"\n{}{}{stage}",
        server("eu", "c.jsonl"),
        server("us", "./c.jsonl")
    ));
    let refused = project.mcprl(&["plan", "run.toml"]);
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    let message = "the servers \"eu\" and \"us\" record to the same cassette";
    assert!(refused.err.contains(message) && refused.err.contains("give each its own"), "{}", refused.err);
}

/// A run file: the demo server with a tool that is named after its seed, nine and ten times.
fn seeded(stages: &str) -> Project {
    let project = Project::new(&format!(
        "name = \"toy\"\n[servers.w]\ncommand = [\"sh\", \"server.sh\", \"{{seed}}\"]\nstate = \"read-only\"\n\
         seeds = \"9..10\"\n[stages.tools]\nkind = \"discover\"\n{stages}",
    ));
    let server =
        format!("{} demo-server sqlite | sed -u \"s/run_query/query_$1/g\"\n", env!("CARGO_BIN_EXE_mcprl"));
    project.write("server.sh", &server);
    project
}

#[test]
fn one_table_makes_a_server_for_each_seed() {
    let project = seeded("");
    project.run(&[]);
    let tools: Vec<data::Tool> = data::read(&project.newest().join("tools/tools.parquet")).unwrap();
    let queries: Vec<&str> =
        tools.iter().map(|tool| &*tool.server_name).filter(|name| name.contains("query")).collect();
    assert_eq!(queries, ["w09/query_9", "w10/query_10"]);
}

#[test]
fn servers_are_held_out_whole() {
    let project = seeded(
        "[stages.tasks]\nkind = \"scenarios\"\ntools = \"tools\"\nfile = \"tasks.jsonl\"\nsplit_by = \"server\"\nheldout_share = 0.5\n",
    );
    let task = |n: usize| {
        let server = ["w09", "w10"][n % 2];
        format!("{{\"task\": \"What is {n}?\", \"answer\": \"{n}\", \"server\": \"{server}\"}}\n")
    };
    project.write("tasks.jsonl", &(0..10).map(task).collect::<String>());
    project.run(&[]);
    let servers = |port: &str| -> BTreeSet<(String, String)> {
        let tasks = project.newest().join(format!("tasks/{port}.parquet"));
        let tasks: Vec<data::Scenario> = data::read(&tasks).unwrap();
        tasks.into_iter().map(|task| (task.server.unwrap().0, task.split)).collect()
    };
    let (trained, heldout) = (servers("train"), servers("heldout"));
    assert_eq!((trained.len(), heldout.len()), (1, 1), "{trained:?} {heldout:?}");
    let all: BTreeSet<String> =
        trained.into_iter().chain(heldout.clone()).map(|(server, _)| server).collect();
    assert_eq!(all.len(), 2);
    assert_eq!(heldout.first().unwrap().1, "unseen_servers");

    project.replace("run.toml", "file = \"tasks.jsonl\"", "source = \"explored\"");
    let refused = project.mcprl(&["plan", "run.toml"]);
    assert!(refused.err.contains("tasks that name their server"), "{}", refused.err);
}
