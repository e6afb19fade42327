//! Runs that are recorded on a live server and repeated without it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::common::{self, Project};
use serde_json::{Value, json};

/// The sqlite pipeline without its loop, with few tasks.
fn sqlite() -> Project {
    let pipelines = Path::new(env!("CARGO_MANIFEST_DIR")).join("pipelines");
    let run_file = std::fs::read_to_string(pipelines.join("sqlite.toml")).unwrap();
    let (before, _) = run_file.split_once("[loop.train]").unwrap();
    let rollout = "\n[stages.rollout]\nkind = \"rollout\"\npolicy = \"base\"\ntools = \"tools\"\n\
                   scenarios = \"tasks.train\"\nprompts = 4\ngroup_size = 2\nrefill_waves = 0\nmax_turns = 3\n\
                   max_turn_tokens = 60\n";
    let project = Project::new(&(before.to_owned() + rollout));
    let families = std::fs::read_to_string(pipelines.join("sqlite.families.toml")).unwrap();
    project.write("sqlite.families.toml", &families);
    let system = std::fs::read_to_string(pipelines.join("sqlite.system.txt")).unwrap();
    project.write("sqlite.system.txt", &system);
    project.replace("run.toml", "\"sqlite-model\"", &format!("{:?}", pipelines.join("sqlite-model")));
    let few = "families = \"sqlite.families.toml\"\nquestions_per_family = 4\nheldout_per_split = 4\n";
    project.replace("run.toml", "families = \"sqlite.families.toml\"\n", few);
    project
}

/// A server that counts the calls of its process, from `$start`.
const COUNTER: &str = r#"n=START
while IFS= read -r line; do
    id=${line#*'"id":'}; id=${id%%[,\}]*}
    reply() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
    case $line in
        *'"initialize"'*) reply '{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"counter","version":"1"}}';;
        *'"tools/list"'*) reply '{"tools":[{"name":"count","inputSchema":{"type":"object"}},{"name":"slow","inputSchema":{"type":"object"}},{"name":"look","inputSchema":{"type":"object"}}]}';;
        *'"tools/call"'*'"slow"'*) sleep 30;;
        *'"tools/call"'*) n=$((n + 1)); reply "{\"content\":\"$n$TOKEN\"}";;
    esac
done
"#;

/// Episodes whose checks call the counter three times.
fn counting(server: &str) -> Project {
    let project = Project::with_model(&format!(
        "name = \"counting\"\nmodel = \"llama\"\n[server]\ncommand = [\"sh\", \"counter.sh\"]\nstate = \"fresh-process\"\n{server}\n\
         [stages.tools]\nkind = \"discover\"\n\
         [stages.tasks]\nkind = \"scenarios\"\ntools = \"tools\"\nsource = \"file\"\nfile = \"tasks.jsonl\"\n\
         [stages.rollout]\nkind = \"rollout\"\npolicy = \"base\"\ntools = \"tools\"\nscenarios = \"tasks.train\"\n\
         prompts = 2\ngroup_size = 2\nrefill_waves = 0\nmax_turns = 1\nmax_turn_tokens = 4\n"
    ));
    project.write("counter.sh", &COUNTER.replace("START", "0"));
    tasks(&project, &[("count", json!({})), ("look", json!({"a": 1, "b": 2})), ("count", json!({}))]);
    project
}

/// Tasks whose checks make these calls.
fn tasks(project: &Project, calls: &[(&str, Value)]) {
    let check = |(tool, arguments): &(&str, Value)| json!({"tool": tool, "arguments": arguments, "expect": {"matches": "."}});
    let state: Vec<Value> = calls.iter().map(check).collect();
    let line = |n: usize| json!({"task": format!("Count {n}."), "checks": {"state": state}}).to_string();
    project.write("tasks.jsonl", &(0..5).map(line).collect::<Vec<_>>().join("\n"));
}

/// The tables of the newest run in a cache, by name.
fn tables(project: &Project, cache: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let runs = project.path(cache).join("runs");
    let mut ids: Vec<_> = std::fs::read_dir(&runs).unwrap().map(|run| run.unwrap().path()).collect();
    ids.sort();
    let run = ids.pop().unwrap();
    let mut found = BTreeMap::new();
    let mut folders = vec![run.clone()];
    while let Some(folder) = folders.pop() {
        for item in std::fs::read_dir(folder).unwrap() {
            let path = item.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "parquet") {
                found.insert(path.strip_prefix(&run).unwrap().to_owned(), std::fs::read(&path).unwrap());
            }
        }
    }
    assert!(found.len() > 3, "{:?}", found.keys());
    found
}

const OFFLINE: [&str; 6] = [
    "--cache",
    "offline",
    "--set",
    "server.replay=tape/c.jsonl",
    "--set",
    "server.command=[\"no-such-program\"]",
];
const RECORD: [&str; 2] = ["--set", "server.record=tape/c.jsonl"];

#[test]
fn a_run_on_the_demo_server_is_repeated_from_its_cassette() {
    let project = sqlite();
    project.run(&RECORD);
    let cassette = project.read("tape/c.jsonl");
    assert!(cassette.lines().count() > 20, "{cassette}");
    project.run(&OFFLINE);
    assert!(tables(&project, "cache") == tables(&project, "offline"), "the tables differ");
    // A changed cassette changes the keys of what was made from it.
    let plan = || project.mcprl(&[&["plan", "run.toml"], &OFFLINE[..]].concat()).out;
    assert!(plan().contains("0 to run"), "{}", plan());
    project.write("tape/c.jsonl", &(cassette + "{\"tool\":\"t\",\"arguments\":{},\"text\":\"\"}\n"));
    assert!(plan().contains("server.reached.replay"), "{}", plan());
}

#[test]
fn a_session_with_state_is_repeated_and_another_call_is_not_answered() {
    let project = counting("");
    project.run(&RECORD);
    let cassette = project.read("tape/c.jsonl");
    assert_eq!(cassette.lines().count(), 4, "{cassette}");
    project.run(&OFFLINE);
    assert!(tables(&project, "cache") == tables(&project, "offline"), "the tables differ");

    tasks(&project, &[("look", json!({"a": 1, "b": 2}))]);
    let failed = project.mcprl(&[&["run", "run.toml"], &OFFLINE[..]].concat());
    assert_eq!(failed.code, Some(1), "{}", failed.err);
    let expected = "c.jsonl has no answer to this call of `look` with {\"a\":1,\"b\":2}";
    assert!(failed.err.contains(expected), "{}", failed.err);
    assert!(failed.err.contains("record it on the live server"), "{}", failed.err);
    assert!(!failed.err.contains("retried"), "{}", failed.err);
}

#[test]
fn secrets_and_calls_without_an_answer_are_not_recorded() {
    let project = counting("call_timeout_s = 1\nenv = { TOKEN = \"${COUNTER_TOKEN}\" }");
    tasks(&project, &[("count", json!({})), ("slow", json!({})), ("count", json!({}))]);
    let mut command = project.command(&[&["run", "run.toml"], &RECORD[..]].concat());
    let output = common::output(command.env("COUNTER_TOKEN", "s3cret-value"));
    assert_eq!(output.code, Some(0), "{}", output.err);
    let cassette = project.read("tape/c.jsonl");
    assert_eq!(cassette.lines().count(), 2, "{cassette}");
    assert!(cassette.contains("\"1[redacted]\"") && !cassette.contains("s3cret"), "{cassette}");

    tasks(&project, &[("count", json!({})), ("look", json!({"a": "s3cret-value"})), ("count", json!({}))]);
    let record = ["run", "run.toml", "--cache", "other", "--set", "server.record=tape/d.jsonl"];
    let output = common::output(project.command(&record).env("COUNTER_TOKEN", "s3cret-value"));
    assert_eq!(output.code, Some(0), "{}", output.err);
    let cassette = project.read("tape/d.jsonl");
    assert!(cassette.lines().count() == 2 && !cassette.contains("s3cret"), "{cassette}");
    assert!(output.err.contains("d.jsonl lacks calls of `look`"), "{}", output.err);
}

#[test]
fn drift_is_what_the_live_server_answers_otherwise() {
    let project = counting("");
    project.run(&RECORD);
    let drift =
        |more: &[&str]| project.mcprl(&[more, &["connect", "run.toml", "--drift", "tape/c.jsonl"]].concat());
    let same = drift(&[]);
    assert_eq!(same.code, Some(0), "{}{}", same.out, same.err);
    assert_eq!(same.out, "the same tools\n3 calls in 1 session, 0 answered otherwise\n");

    let other = COUNTER.replace("START", "6").replace("\"look\"", "\"peek\"");
    project.write("counter.sh", &other);
    let found = drift(&[]);
    assert_eq!(found.code, Some(1), "{}", found.err);
    insta::assert_snapshot!(found.out, @r#"
    added: peek
    removed: look
    3 calls in 1 session, 3 answered otherwise

    count {}
      recorded: 1
      now:      7

    look {"a":1,"b":2} after 1 call
      recorded: 2
      now:      8

    count {} after 2 calls
      recorded: 3
      now:      9
    "#);
    let found: Value = serde_json::from_str(&drift(&["--json"]).out).unwrap();
    assert_eq!(found["differing"][2]["live"]["text"], "9", "{found}");
    // Without a run file, the isolation is the one of the cassette.
    let counter = project.path("counter.sh");
    let bare = ["connect", "--drift", "tape/c.jsonl", "--", "sh", counter.to_str().unwrap()];
    assert!(project.mcprl(&bare).out.contains("3 calls in 1 session, 3 answered"));
}

#[test]
fn a_cassette_of_another_contract_or_server_is_refused() {
    let project = counting("");
    project.run(&RECORD);
    let refused = |set: &[&str], expected: &str| {
        let set: Vec<&str> = set.iter().flat_map(|set| ["--set", set]).collect();
        let failed = project.mcprl(&[&["run", "run.toml", "--cache", "other"], &set[..]].concat());
        assert!(matches!(failed.code, Some(1 | 2)), "{}", failed.err);
        assert!(failed.err.contains(expected), "{expected}: {}", failed.err);
    };
    let replay = "server.replay=tape/c.jsonl";
    refused(&[replay, "server.state=read-only"], "recorded with state \"fresh-process\", not \"read-only\"");
    refused(&[replay, "server.record=x"], "a server has `record` or `replay`, not both");
    refused(&["server.replay=none.jsonl"], "`server.replay` names \"none.jsonl\", which does not exist");
    refused(&["server.replay=tasks.jsonl"], "its first line is not the header of a cassette");
    refused(&["server.record=tape/c.jsonl", "server.state=read-only"], "recorded with state");
    let played = project.mcprl(&["connect", "run.toml", "--drift", "tasks.jsonl"]);
    assert_eq!(played.code, Some(2), "{}", played.err);
    project.replace("counter.sh", "\"version\":\"1\"", "\"version\":\"2\"");
    refused(&["server.record=tape/c.jsonl"], "was recorded with the server counter 1 (tools ");
    project.replace("run.toml", "[server]\n", "[server]\nreplay = \"tape/c.jsonl\"\n");
    let played = project.mcprl(&["connect", "run.toml", "--drift", "tape/c.jsonl"]);
    assert!(played.err.contains("so there is no live server to compare with"), "{}", played.err);
    let shown = project.mcprl(&["connect", "run.toml"]);
    assert!(shown.out.contains("counter 1: MCP 2025-11-25"), "{}{}", shown.out, shown.err);
}
