//! Orders for a small ticket server, with a real process in Python.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    data::{Change, Json, Scenario, Tool},
    explored::{Budget, Examples, ExploreInputs, ExploreWrites, explore},
    judge::truth::{self, Evidence},
    live::Live,
    mcp::{ServerSpec, Servers, Session, State, Transport},
    progress::NoProgress,
    refusals::Admitted,
};

/// Keeps its tickets in memory, or in the file that it is given.
const SERVER: &str = r#"
import datetime, json, os, sys, time
path = sys.argv[1] if len(sys.argv) > 1 else None
open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "starts"), "a").write("x")
states = ["open", "open", "closed", "open", "open", "closed", "open", "closed"]
priorities = ["high", "low", "low", "high", "normal", "normal", "low", "high"]
owners = ["Ann", "Ben", "Ann", "Cem", "Ben", "Cem", "Dora", "Dora"]
titles = ["Avatar upload fails", "Dark mode flickers", "Typo on the start page", "Login loop in Safari",
    "Export misses a column", "Calendar is a day off", "Search is slow", "Invoice has the wrong tax"]
tickets = [dict(id=f"T{101 + n}", title=titles[n], status=states[n], priority=priorities[n], assignee=owners[n],
    updated_at="2024-05-0%d" % (n + 1)) for n in range(8)]
if path and os.path.exists(path):
    tickets = json.load(open(path))
def save():
    if path:
        json.dump(tickets, open(path, "w"))
def find(ticket_id):
    for t in tickets:
        if t["id"] == ticket_id:
            return t
    raise ValueError(f"Ticket {ticket_id} does not exist.")
def now():
    return str(time.time())
def list_tickets(status=None):
    return [t for t in tickets if not status or t["status"] == status]
def get_ticket(ticket_id):
    return find(ticket_id)
def close_ticket(ticket_id):
    t = find(ticket_id)
    if t["status"] == "closed":
        raise ValueError(f"Ticket {ticket_id} is already closed.")
    t.update(status="closed", updated_at=now()); save(); return t
def set_priority(ticket_id, priority):
    t = find(ticket_id); t.update(priority=priority, updated_at=now()); save(); return t
def assign(ticket_id, agent):
    review = (datetime.date.today() + datetime.timedelta(days=14)).isoformat()
    t = find(ticket_id); t.update(assignee=agent, review_by=review, updated_at=now()); save(); return t
def create_ticket(title, priority):
    t = dict(id=f"T{101 + len(tickets)}", title=title, status="open", priority=priority, assignee="nobody", updated_at=now())
    tickets.append(t); save(); return t
def add_comment(ticket_id, author, text):
    t = find(ticket_id); t.setdefault("comments", []).append(dict(author=author, text=text)); save(); return t
def transfer_to_human(summary):
    tickets.append(dict(tickets[0], title=summary)); save(); return "transferred"
def delete_ticket(ticket_id):
    tickets.remove(find(ticket_id)); save(); return "deleted"
text, level = {"type": "string"}, {"type": "string", "enum": ["low", "normal", "high", "urgent"]}
def tool(call, about, required, **params):
    return dict(name=call.__name__, description=about, inputSchema=dict(type="object", properties=params, required=required))
tools = [tool(list_tickets, "List tickets.", [], status=dict(type="string", enum=["open", "closed"])),
    tool(get_ticket, "Get a ticket.", ["ticket_id"], ticket_id=text),
    tool(close_ticket, "Close a ticket.", ["ticket_id"], ticket_id=text),
    tool(set_priority, "Set the priority of a ticket.", ["ticket_id", "priority"], ticket_id=text, priority=level),
    tool(assign, "Assign a ticket to an agent.", ["ticket_id", "agent"], ticket_id=text, agent=text),
    tool(create_ticket, "Create a ticket.", ["title", "priority"], title=text, priority=level),
    tool(add_comment, "Add a comment to a ticket.", ["ticket_id", "author", "text"], ticket_id=text, author=text, text=text),
    tool(transfer_to_human, "Transfer the user to a human.", ["summary"], summary=text),
    dict(tool(delete_ticket, "Delete a ticket.", ["ticket_id"], ticket_id=text), annotations=dict(destructiveHint=True))]
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        result = dict(protocolVersion="2025-06-18", capabilities=dict(tools={}), serverInfo=dict(name="tickets", version="1"))
    elif method == "tools/list":
        result = dict(tools=tools)
    elif method == "tools/call":
        try:
            found = globals()[params["name"]](**params.get("arguments", {}))
            result = dict(content=[dict(type="text", text=json.dumps(found))])
        except Exception as cause:
            result = dict(content=[dict(type="text", text=f"Error executing tool {params['name']}: {cause}")], isError=True)
    else:
        result = {}
    print(json.dumps(dict(jsonrpc="2.0", id=message["id"], result=result)), flush=True)
"#;

struct Desk {
    folder: tempfile::TempDir,
}

impl Desk {
    /// None without Python.
    fn new() -> Option<Self> {
        let has_python = Command::new("python3").arg("--version").output().is_ok();
        if !has_python {
            eprintln!("skipped: there is no python3");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tickets.py"), SERVER).unwrap();
        Some(Self { folder })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn servers(&self, data: &str, state: State) -> Servers {
        let script = self.path("tickets.py").to_str().unwrap().to_owned();
        let mut command = vec!["python3".to_owned(), script];
        command.extend((!data.is_empty()).then(|| data.to_owned()));
        let transport = Transport::Stdio { command, env: BTreeMap::new(), cwd: None, files: Vec::new() };
        Servers::from(ServerSpec::new(transport, state))
    }
}

async fn tools(servers: &Servers) -> Vec<Tool> {
    let (_, spec) = servers.iter().next().unwrap();
    let session = Session::connect(spec).await.unwrap();
    let tools = crate::offered::tool_rows(session.tools().await.unwrap());
    session.close().await;
    tools
}

async fn explored(servers: &Servers, tools: &[Tool], writes: &ExploreWrites) -> Vec<Admitted> {
    let cancel = CancellationToken::new();
    let budget = Budget {
        calls: 80,
        seconds: 300,
        tasks: 90,
        per_family: 20,
        impossible_share: 0.0,
        no_call_share: 0.0,
        result_chars: 4000,
    };
    let examples = Examples::default();
    let task = ExploreInputs {
        servers,
        tools,
        examples: &examples,
        writes,
        held_out: None,
        seed: 7,
        budget,
        observer: &NoProgress,
        cancel: &cancel,
    };
    explore(&task).await.unwrap().judged.admitted
}

fn is_order(one: &&Admitted) -> bool {
    one.candidate.family.starts_with(ORDER)
}

/// Whether an episode with these calls and this answer solves the task, and what it changed.
async fn played(
    servers: &Servers,
    tools: &[Tool],
    scenario: &Scenario,
    calls: &[ToolCall],
    answer: &str,
) -> (bool, Option<Change>) {
    let live = Live::new(servers, tools);
    let mut results = Vec::new();
    {
        let mut visit = live.visit();
        for call in calls {
            visit.call(call).await.unwrap();
        }
        let checks = Checks::parse(&scenario.checks.as_ref().unwrap().0).unwrap();
        for StateCheck { tool, arguments, .. } in checks.state {
            let outcome = visit.call(&ToolCall { name: tool, arguments }).await.unwrap();
            results.push((!outcome.is_error).then_some(outcome.text));
        }
    }
    live.close().await;
    let state = Json(serde_json::json!(results).to_string());
    let evidence = Evidence { answer: Some(answer), messages: &[], state: Some(&state) };
    (truth::correct(scenario, evidence).unwrap(), truth::changed(scenario, evidence))
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_are_solved_by_doing_them_and_by_nothing_else() {
    let Some(desk) = Desk::new() else { return };
    let servers = desk.servers("", State::FreshProcess);
    let tools = tools(&servers).await;
    let admitted = explored(&servers, &tools, &ExploreWrites::All(true)).await;
    let orders: Vec<&Admitted> = admitted.iter().filter(is_order).collect();
    let told: Vec<&str> = orders.iter().map(|one| one.candidate.task.as_str()).collect();
    if std::env::var_os("MCPRL_TEST_EXPLORED").is_some() {
        let shown = |one: &&Admitted| format!("{} → {:?}\n", one.candidate.task, one.candidate.closing);
        eprintln!("{}", orders.iter().map(shown).collect::<String>());
    }
    assert!(orders.len() >= 10, "{told:#?}");
    assert!(3 * orders.len() <= admitted.len(), "{} of {}", orders.len(), admitted.len());
    let kinds: BTreeSet<&str> =
        orders.iter().filter_map(|one| one.candidate.family.split(':').next()).collect();
    assert!(kinds.len() >= 5, "{kinds:?}");
    assert!(kinds.iter().any(|kind| kind.ends_with("missing") || kind.ends_with("refused")), "{kinds:?}");
    assert!(told.iter().all(|task| !task.contains('_') && !task.contains("Answer \"done\"")), "{told:#?}");
    let calls = |name: &str| {
        let is_it = |one: &Admitted| one.candidate.calls.iter().any(|call| call.name == name);
        admitted.iter().any(is_it)
    };
    assert!(!calls("delete_ticket"), "what destroys is not called");
    assert!(!calls("transfer_to_human"), "what is about nothing that is listed is no order");
    let is_comment = |task: &&&str| task.contains("comment \"");
    let comments: Vec<&&str> = told.iter().filter(is_comment).collect();
    assert!(!comments.is_empty() && comments.iter().all(|task| task.contains("\" by ")), "{comments:#?}");
    let on_condition = |task: &&&str| task.starts_with("If ") && task.ends_with("close it.");
    let closed: Vec<&&str> = told.iter().filter(on_condition).collect();
    assert!(!closed.is_empty() && closed.iter().all(|task| task.contains(" is still open, ")), "{closed:#?}");
    let named: Vec<&str> = told.iter().filter(|task| task.contains("icket called \"")).copied().collect();
    assert!(!named.is_empty() && named.iter().all(|task| task.contains(" (follow-up)\"")), "{named:#?}");
    // A list of all finds it.
    assert!(!admitted.iter().any(|one| one.candidate.task.contains("the open ticket \"")));
    let assigned = orders.iter().filter(|one| one.candidate.calls.iter().any(|call| call.name == "assign"));
    let checks: Vec<String> = assigned.filter_map(|one| Some(one.scenario().checks?.0)).collect();
    // What is counted from today is another day tomorrow.
    let is_dated = |checks: &String| checks.contains("review_by\":");
    assert!(!checks.is_empty() && !checks.iter().any(is_dated), "{checks:#?}");
    let other = ToolCall {
        name: "create_ticket".into(),
        arguments: serde_json::json!({"title": "Nobody asked", "priority": "low"})
            .as_object()
            .unwrap()
            .clone(),
    };
    let mut of_family: BTreeMap<&str, usize> = BTreeMap::new();
    let few = orders.iter().filter(|one| {
        let count = of_family.entry(&one.candidate.family).or_default();
        *count += 1;
        *count <= 2
    });
    for one in few {
        let (scenario, calls) = (one.scenario(), &one.candidate.calls);
        let answer = scenario.answer.clone().unwrap();
        let task = &scenario.task;
        let (solved, _) = played(&servers, &tools, &scenario, calls, &answer).await;
        assert!(solved, "the solution solves {task}");
        let (solved, changed) = played(&servers, &tools, &scenario, &[], "done").await;
        assert!(!solved && changed == Some(Change::Nothing), "who does nothing fails {task}");
        let more: Vec<ToolCall> = calls.iter().chain([&other]).cloned().collect();
        let (solved, changed) = played(&servers, &tools, &scenario, &more, &answer).await;
        assert!(!solved && changed == Some(Change::Other), "who does more fails {task}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn chains_of_tools_that_read_share_sessions() {
    let Some(desk) = Desk::new() else { return };
    let servers = desk.servers("", State::FreshProcess);
    let tools = tools(&servers).await;
    let admitted = explored(&servers, &tools, &ExploreWrites::default()).await;
    let starts = std::fs::read_to_string(desk.path("starts")).unwrap().len();
    assert!(admitted.len() >= 40 && starts < admitted.len(), "{starts} for {}", admitted.len());
}

fn digest(path: &Path) -> String {
    crate::hash::Digest::of(&std::fs::read(path).unwrap()).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_keeps_its_data_in_a_file_is_explored_without_changing_it() {
    let Some(desk) = Desk::new() else { return };
    let data = desk.path("data");
    std::fs::create_dir(&data).unwrap();
    let file = data.join("tickets.json");
    let record = |n: usize| {
        let (status, assignee) = (["open", "closed"][n % 2], ["Ann", "Ben", "Cem"][n % 3]);
        let (id, title) = (format!("T{n}"), format!("Ticket about {n}"));
        serde_json::json!({ "id": id, "title": title, "status": status, "priority": "low", "assignee": assignee, "updated_at": "2024" })
    };
    let records: Vec<Value> = (0..6).map(record).collect();
    std::fs::write(&file, Value::from(records).to_string()).unwrap();
    let before = digest(&file);
    // It says that a process has a state of its own, and all processes write to one file.
    let lying = desk.servers(file.to_str().unwrap(), State::FreshProcess);
    let tools = tools(&lying).await;
    let admitted = explored(&lying, &tools, &ExploreWrites::default()).await;
    let writes = |one: &Admitted| {
        one.candidate.calls.iter().any(|call| !["list_tickets", "get_ticket"].contains(&call.name.as_str()))
    };
    assert!(!admitted.is_empty() && !admitted.iter().any(writes));
    assert_eq!(digest(&file), before, "by default no tool that writes is called");
    // Every episode has a copy.
    let copied = desk.servers("{dir}/tickets.json", State::SnapshotDir(data));
    let admitted = explored(&copied, &tools, &ExploreWrites::default()).await;
    assert!(admitted.iter().any(writes), "what writes is called on the copies");
    assert_eq!(digest(&file), before, "the original is as it was");
}

#[test]
fn which_tools_may_write_is_said_and_can_be_changed() {
    let tool = |name: &str, hint: Option<(&str, bool)>| Tool {
        name: name.into(),
        server_name: name.into(),
        input_schema: "{}".into(),
        annotations: hint.map(|(hint, value)| serde_json::json!({ hint: value }).to_string()),
        ..Tool::default()
    };
    let tools = [
        tool("get_order", None),
        tool("set_status", None),
        tool("note", Some(("readOnlyHint", true))),
        tool("purge", Some(("destructiveHint", true))),
    ];
    let transport =
        Transport::Stdio { command: vec!["x".into()], env: BTreeMap::new(), cwd: None, files: vec![] };
    let of = |state: State, writes: &ExploreWrites| {
        let servers = Servers::from(ServerSpec::new(transport.clone(), state));
        let names: Vec<String> = super::super::profiles(&tools, &servers, writes)
            .into_iter()
            .map(|profile| profile.name)
            .collect();
        (names.join(" "), super::super::left_out(&tools, &servers, writes).len())
    };
    let named = ExploreWrites::Named(vec!["purge".into()]);
    let folder = || State::SnapshotDir("x".into());
    let none = ExploreWrites::default();
    let all = ExploreWrites::All(true);
    assert_eq!(of(State::FreshProcess, &none), ("get_order note".into(), 2));
    assert_eq!(of(State::FreshProcess, &all), ("get_order set_status note".into(), 1));
    assert_eq!(of(State::FreshProcess, &named), ("get_order note purge".into(), 1));
    assert_eq!(of(folder(), &none), ("get_order set_status note".into(), 1));
    assert_eq!(of(folder(), &named), ("get_order set_status note purge".into(), 0));
    assert!(named.check(&tools).is_ok());
    let wrong = ExploreWrites::Named(vec!["purg".into()]).check(&tools).unwrap_err();
    assert_eq!(wrong.to_string(), "`explore_writes` names `purg`, which is no tool of the servers");
}
