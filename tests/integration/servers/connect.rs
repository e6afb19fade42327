//! `mcprl connect` and `mcprl init`: from a server to a run file.

use std::{fs::Permissions, os::unix::fs::PermissionsExt};

use crate::common::{self, Project};
use mcprl::data::{self, Step};
use serde_json::Value;

const MCPRL: &str = env!("CARGO_BIN_EXE_mcprl");

#[test]
fn connect_lists_what_a_server_offers_and_calls_a_tool() {
    let project = Project::new("");
    let output = project.mcprl(&["connect", "--", MCPRL, "demo-server", "sqlite"]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(output.out.contains("  run_query(sql)  [read-only]\n"), "{}", output.out);
    assert!(!output.out.contains("complete_task"), "{}", output.out);

    let call = ["--call", "run_query", "{\"sql\": \"SELECT 40 + 2 AS answer\"}"];
    let arguments = [&["--json", "connect"], &call[..], &["--", MCPRL, "demo-server", "sqlite"]].concat();
    let output = project.mcprl(&arguments);
    let found: Value = serde_json::from_str(&output.out).unwrap();
    assert!(found["result"]["text"].as_str().unwrap().contains("42"), "{found}");
    assert_eq!(found["tools"][0]["input_schema"]["type"], "object");
}

#[test]
fn probing_says_whether_sessions_see_each_other() {
    let project = Project::new("");
    project.write("calls.jsonl", "{\"tool\": \"count\"}\n\n{\"tool\": \"count\", \"arguments\": {}}\n");
    // Counts its calls in the file that it is given.
    let server = r#"while IFS= read -r line; do
        id=${line#*'"id":'}; id=${id%%[,\}]*}
        reply() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
        case $line in
            *'"initialize"'*) reply '{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}';;
            *'"tools/list"'*) reply '{"tools":[{"name":"count","inputSchema":{"type":"object"}}]}';;
            *'"tools/call"'*) n=$((n + 1)); [ -z "$1" ] || { echo x >>"$1"; n=$(wc -l <"$1"); }; [ "$0" = still ] && n=7; reply "{\"content\":\"$n\"}";;
        esac; done"#;
    let probe = |name: &str, file: &str| {
        project.mcprl(&["connect", "--probe-state", "calls.jsonl", "--", "sh", "-c", server, name, file])
    };
    let still = probe("still", "");
    assert_eq!(still.code, Some(0), "{}", still.err);
    assert!(still.out.contains("does not show that count changes nothing"), "{}", still.out);
    let own = probe("own", "");
    assert_eq!(own.code, Some(0), "{}", own.err);
    assert!(
        own.out.contains("again in the same session: call 1 (count) differs\n  first: 1\n  now:   3\n"),
        "{}",
        own.out
    );
    assert!(own.out.contains("keep episodes apart"), "{}", own.out);
    let shared = probe("shared", "counted");
    assert_eq!(shared.code, Some(1), "{}", shared.err);
    assert!(shared.out.contains("in a later session: call 1 (count) differs"), "{}", shared.out);
    project.write("calls.jsonl", "{\"tool\": \"cuont\"}\n");
    assert!(probe("own", "").err.contains("did you mean `count`?"));
    project.write("calls.jsonl", "count\n");
    assert!(probe("own", "").err.contains("calls.jsonl:1 is not a call"));
}

#[test]
fn a_failed_call_and_a_wrong_tool_have_their_own_exit_codes() {
    let project = Project::new("");
    let call = |call: &[&str]| {
        project.mcprl(&[&["connect", "--call"], call, &["--", MCPRL, "demo-server", "sqlite"]].concat())
    };
    let output = call(&["run_query", "{\"sql\": \"SELECT nonsense\"}"]);
    assert_eq!(output.code, Some(1), "{}", output.out);
    assert!(output.out.contains("error after"), "{}", output.out);
    let output = call(&["run_qery", "{}"]);
    assert_eq!(output.code, Some(2));
    assert!(output.err.contains("did you mean `run_query`?"), "{}", output.err);
    let output = call(&["run_query", "[1]"]);
    assert_eq!(output.code, Some(2), "{}", output.err);
    let output = project.mcprl(&["connect", "127.0.0.1:8000/mcp"]);
    assert!(output.err.contains("write `http://127.0.0.1:8000/mcp`"), "{}", output.err);
    let output = project.mcprl(&["connect", "--", "./no-such-server"]);
    assert_eq!(output.code, Some(2), "{}", output.err);
    for (arguments, message) in [
        (&["--login", "--", "sh"][..], "`--login` applies only to a URL"),
        (&["--sandbox", "http://127.0.0.1:1/mcp"], "`--sandbox` applies only to a command"),
        (&["none.toml"], "none.toml"),
    ] {
        let output = project.mcprl(&[&["connect"], arguments].concat());
        assert_eq!(output.code, Some(2), "{}", output.err);
        assert!(output.err.contains(message), "{message}: {}", output.err);
    }
}

#[test]
fn connect_runs_a_command_in_a_sandbox() {
    let bwrap = std::process::Command::new("bwrap").args(["--ro-bind", "/", "/", "true"]).status();
    // The sandbox has a /tmp of its own, so a binary in /tmp is not there.
    if !bwrap.is_ok_and(|status| status.success()) || MCPRL.starts_with("/tmp/") {
        return;
    }
    let project = Project::new("");
    let marked = project.path("marked");
    let write = format!("echo x > {}; exec {MCPRL} demo-server sqlite", marked.display());
    let connect = |options: &[&str]| {
        let output = project.mcprl(&[&["connect"], options, &["--", "sh", "-c", &write]].concat());
        assert_eq!(output.code, Some(0), "{}", output.err);
        marked.exists()
    };
    assert!(!connect(&["--sandbox"]));
    assert!(connect(&["--sandbox", "--sandbox-write", project.path(".").to_str().unwrap()]));
}

#[test]
fn connect_takes_the_servers_of_a_run_file() {
    let stages =
        "[stages.tools]\nkind = \"discover\"\n[stages.again]\nkind = \"discover\"\nread_only = true\n";
    let project = Project::new(&format!("name = \"r\"\n{stages}"));
    let server = |name: &str| format!("[{name}]\ncommand = [\"{{mcprl}}\", \"demo-server\", \"sqlite\"]\n");
    let stages = project.read("run.toml");
    let connect = |servers: &str, more: &[&str]| {
        project.write("run.toml", &format!("{stages}{servers}"));
        project.mcprl(&[&["connect", "run.toml"], more].concat())
    };
    let none = connect("", &[]);
    let message = "needs a server (and so does another one), but the run file has no [server]";
    assert!(none.code == Some(2) && none.err.matches("no [server]").count() == 1, "{}", none.err);
    assert!(none.err.contains(message), "{}", none.err);
    let one = connect(&server("server"), &[]);
    assert!(one.out.contains("run_query(sql)"), "{}{}", one.out, one.err);
    let two = server("servers.one") + &server("servers.two");
    assert!(connect(&two, &["--name", "two"]).out.contains("run_query(sql)"));
    for (more, message) in
        [(&[][..], "choose one with `--name`: one, two"), (&["--name", "tow"], "it has: one, two")]
    {
        let refused = connect(&two, more);
        assert_eq!(refused.code, Some(2), "{}", refused.err);
        assert!(refused.err.contains(message), "{message}: {}", refused.err);
    }
}

/// The problems that `plan` reports for the run file that `init` wrote.
fn init_and_plan(project: &Project, server: &[&str]) -> (String, String) {
    let output = project.mcprl(&[&["init", "--model", "llama", "--out", "own/run.toml"], server].concat());
    assert_eq!(output.code, Some(0), "{}", output.err);
    let mut plan = project.command(&["plan", "own/run.toml"]);
    let plan = common::output(plan.env("TOKEN", "a token").env("API_KEY", "a key"));
    assert_eq!(plan.code, Some(0), "{}", plan.err);
    (output.out, project.read("own/run.toml"))
}

#[test]
fn init_writes_a_run_file_that_plan_accepts() {
    let project = Project::new("");
    project.llama(1);
    for folder in ["own", "stages"] {
        std::fs::create_dir_all(project.path(folder)).unwrap();
    }
    std::fs::rename(project.path("llama"), project.path("own/llama")).unwrap();
    let again = || {
        std::fs::remove_file(project.path("own/run.toml")).unwrap();
    };

    let (_, text) = init_and_plan(&project, &["--", MCPRL, "demo-server", "sqlite"]);
    assert!(
        text.starts_with("extends = \"standard\"") && text.contains("\nname = \"sqlite\"\nmodel = \"llama\""),
        "{text}"
    );
    let folder = project.path(".").canonicalize().unwrap();
    assert!(text.contains(&format!("cwd = \"{}\"\nstate = \"read-only\"", folder.display())), "{text}");
    let output = project.mcprl(&["init", "--out", "own/run.toml", "--", "server"]);
    assert_eq!(output.code, Some(2), "a file is never overwritten");
    assert!(output.err.contains("own/run.toml already exists"), "{}", output.err);
    again();

    let (_, text) = init_and_plan(&project, &["--bearer-env", "TOKEN", "https://example.com/mcp"]);
    assert!(
        text.contains("url = \"https://example.com/mcp\"\nbearer_env = \"TOKEN\"\nstate = \"unconfirmed\"")
    );
    again();

    project.write(
        "mcp.json",
        &format!(
            r#"{{"mcpServers": {{"My Server": {{"command": "{MCPRL}", "args": ["demo-server", "sqlite"], "env": {{"API_KEY": "sk-12345"}}}}}}}}"#
        ),
    );
    let (output, text) = init_and_plan(&project, &["mcp.json"]);
    assert!(text.contains("env = { \"API_KEY\" = \"${API_KEY}\" }") && !text.contains("sk-12345"), "{text}");
    assert!(output.contains("export API_KEY="), "{output}");
    assert!(text.contains("\n# file = \"tasks.jsonl\""), "{text}");
    again();

    let other = format!(
        r#"{{"mcpServers": {{"one": {{"command": "{MCPRL}", "args": ["demo-server", "sqlite"]}}, "two": {{"command": "{MCPRL}", "args": ["demo-server", "desk"]}}}}}}"#
    );
    project.write("two.json", &other);
    let one_of_two = project.mcprl(&["init", "--out", "own/run.toml", "two.json"]);
    assert!(one_of_two.err.contains("`init` takes all of them with `--all`"), "{}", one_of_two.err);
    let (_, text) = init_and_plan(&project, &["--all", "two.json"]);
    assert!(text.contains("\n[servers.one]\ncommand") && text.contains("\n[servers.two]\ncommand"), "{text}");
    assert!(
        text.contains("set `state` under [servers.two]") && !text.contains("[servers.one]: `mcprl run`"),
        "{text}"
    );
    again();

    project.write("mine.jsonl", "{\"task\": \"a\", \"answer\": 1}\n{\"task\": \"b\", \"answer\": 2}\n");
    let (_, text) = init_and_plan(&project, &["--tasks", "mine.jsonl", "mcp.json"]);
    let path = project.path("mine.jsonl");
    assert!(text.contains(&format!("\nfile = \"{}\"", path.display())), "{text}");
    again();

    // A model's path is relative to where the command runs, and in the file to the file.
    let init = project.mcprl(&[
        "init",
        "--model",
        "own/llama",
        "--out",
        "own/run.toml",
        "--",
        MCPRL,
        "demo-server",
        "sqlite",
    ]);
    assert_eq!(init.code, Some(0), "{}", init.err);
    let plan = project.mcprl(&["plan", "own/run.toml"]);
    assert_eq!(plan.code, Some(0), "{}", plan.err);
}

/// A server that adds the method of each message to the file `asked`. Of its tools one is annotated as read-only, one as
/// writing, and two not at all.
const MIXED: &str = r#"while IFS= read -r line; do
        method=${line#*'"method":"'}; echo "${method%%'"'*}" >>asked
        id=${line#*'"id":'}; id=${id%%[,\}]*}
        reply() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
        case $line in
            *'"initialize"'*) reply '{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"resources":{}},"serverInfo":{"name":"s","version":"1"}}';;
            *'"tools/list"'*) reply '{"tools":[
{"name":"look","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}},
{"name":"pay","inputSchema":{"type":"object"}},
{"name":"x\nstate = \"read-only\"","inputSchema":{"type":"object"}},
{"name":"erase","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":false}}]}' | tr '\n' ' '; echo;;
            *'"resources/'*) reply '{"resources":[],"resourceTemplates":[]}';;
            *'"tools/call"'*) reply '{"content":[{"type":"text","text":"done"}]}';;
        esac; done"#;

#[test]
fn init_calls_no_tool_and_a_run_waits_until_the_state_is_confirmed() {
    let project = Project::new("");
    project.llama(1);
    std::fs::remove_file(project.path("run.toml")).unwrap();
    let init = project.mcprl(&["init", "--model", "llama", "--", "sh", "-c", MIXED]);
    assert_eq!(init.code, Some(0), "{}", init.err);
    assert!(init.out.contains("set `state` in run.toml"), "{}", init.out);
    assert_eq!(project.read("asked"), "initialize\nnotifications/initialized\ntools/list\n");
    let text = project.read("run.toml");
    let heading = text.split_once("\nextends = ").unwrap().0;
    assert!(heading.lines().all(|line| line.is_empty() || line.starts_with('#')), "{heading}");
    let (silent, writing) = heading.split_once("declare that they change something").unwrap();
    assert!(silent.contains("#   pay, x_state____read-only_\n") && !heading.contains("look"), "{heading}");
    assert!(writing.contains("#   erase\n"), "{heading}");
    assert!(
        text.contains("\nstate = \"unconfirmed\" ") && !text.contains("\nstate = \"read-only\""),
        "{text}"
    );
    assert!(text.contains("\nthinking = \"off\""), "its template has the switch: {text}");

    let line = text.lines().position(|line| line.starts_with("state = ")).unwrap() + 1;
    let message = "`server.state` is \"unconfirmed\"";
    let place = format!("run.toml:{line}:");
    let plan = project.mcprl(&["plan", "run.toml"]);
    assert_eq!(plan.code, Some(0), "{}", plan.err);
    assert!(
        plan.err.contains("note: ") && plan.err.contains(message) && plan.err.contains(&place),
        "{}",
        plan.err
    );
    let doctor = project.mcprl(&["doctor", "run.toml"]);
    assert!(doctor.out.contains(message) && doctor.out.contains("4 tools"), "{}{}", doctor.out, doctor.err);
    std::fs::remove_file(project.path("asked")).unwrap();
    let run = project.mcprl(&["--json", "run", "run.toml"]);
    assert_eq!(run.code, Some(2), "{}", run.out);
    let error: Value = serde_json::from_str(run.err.lines().last().unwrap()).unwrap();
    let error = &error["error"];
    assert_eq!(
        (&error["code"], &error["problems"][0]["line"]),
        (&"plan::unconfirmed".into(), &line.into()),
        "{error}"
    );
    assert!(!project.path("asked").exists() && project.runs().is_empty(), "nothing was started");
    // What does not use the server may run.
    project.run(&["--until", "base"]);
    let confirmed = ["--set", "server.state=\"read-only\"", "--until", "tools"];
    project.run(&confirmed);
}

#[test]
fn init_writes_a_file_for_a_server_that_does_not_answer() {
    let project = Project::new("");
    let init = project.mcprl(&[
        "init",
        "--out",
        "other.toml",
        "--model",
        "nobody/nothing",
        "--",
        "sh",
        "-c",
        "exit 3",
    ]);
    assert_eq!(init.code, Some(0), "{}", init.err);
    assert!(init.out.contains("note: the server did not list its tools: "), "{}", init.out);
    let text = project.read("other.toml");
    assert!(text.starts_with("# Before the first run") && text.contains("listed no tools"), "{text}");
    assert!(text.contains("\nstate = \"unconfirmed\" ") && text.contains("\n# thinking = \"off\""), "{text}");
    assert_eq!(project.mcprl(&["plan", "other.toml"]).code, Some(0));
}

#[test]
fn init_shows_how_every_episode_gets_a_copy_of_the_data_that_a_command_names() {
    let project = Project::new("");
    project.llama(1);
    for (name, argument, copied, snapshot) in [
        ("data/shop.db", "--db-path=data/shop.db", "--db-path={dir}/shop.db", "data"),
        ("files/a.txt", "files", "{dir}", "files"),
        // Beside the run file.
        ("shop.db", "shop.db", "{dir}/shop.db", "snapshot"),
    ] {
        project.write(name, "SQLite format 3");
        std::fs::remove_file(project.path("run.toml")).unwrap();
        let init =
            project.mcprl(&["init", "--model", "llama", "--", "sh", "-c", MIXED, "server.py", argument]);
        assert_eq!(init.code, Some(0), "{}", init.err);
        let text = project.read("run.toml");
        let suggested: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("#   ")).collect();
        let settings = |key: &str| suggested.iter().find(|line| line.starts_with(&format!("{key} = ")));
        assert!(settings("command").unwrap().contains(&format!("\"{copied}\"")), "{text}");
        assert_eq!(settings("snapshot").unwrap(), &format!("snapshot = \"{snapshot}\""));
        // With the suggestion in place, the file is one that a run accepts.
        let mut given =
            text.lines().filter(|line| !line.starts_with("command = ") && !line.starts_with("state = "));
        let head: Vec<&str> = given.by_ref().take_while(|line| *line != "[server]").collect();
        let rest: Vec<&str> = given.collect();
        let chosen = ["command", "state", "snapshot"].map(|key| *settings(key).unwrap()).join("\n");
        project.write("run.toml", &format!("{}\n[server]\n{chosen}\n{}\n", head.join("\n"), rest.join("\n")));
        std::fs::create_dir_all(project.path(snapshot)).unwrap();
        let plan = project.mcprl(&["plan", "run.toml"]);
        assert!(
            plan.code == Some(0) && !plan.err.contains("unconfirmed"),
            "{}{}",
            plan.err,
            project.read("run.toml")
        );
    }
}

#[test]
fn a_run_file_of_init_runs_without_any_task_written_by_hand() {
    let project = Project::new("");
    project.llama(1);
    std::fs::remove_file(project.path("run.toml")).unwrap();
    let written = project.mcprl(&["init", "--model", "llama", "--", MCPRL, "demo-server", "sqlite"]);
    assert_eq!(written.code, Some(0), "{}", written.err);
    let text = project.read("run.toml");
    let small = "\n[stages]\nsolved = { episodes = 16 }\nheadroom = { max_turns = 1, max_turn_tokens = 4, tasks = 2, samples = 2 }\n\
        exam = { max_turns = 1, max_turn_tokens = 4 }\n\
        [loop.train]\niterations = 1\npatience = 0\n\
        [loop.train.stages.rollout]\nprompts = 2\ngroup_size = 2\nmax_turns = 1\nmax_turn_tokens = 4\nrefill_waves = 0\n";
    project.write("run.toml", &(text + small));
    let run = project.mcprl(&["run", "-v"]);
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    assert!(run.out.contains("unseen_entities"), "{}", run.out);
    let steps = project.newest().join("start/steps.parquet");
    assert_eq!(
        data::read::<Step>(&steps).unwrap().len(),
        16,
        "sixteen solutions, four of a step, four times"
    );
    assert!(run.out.contains("start against base"), "{}", run.out);
}

#[test]
fn a_server_has_one_source_of_its_token() {
    let project = Project::new("");
    let plan = |keys: &str| {
        let server = format!("[server]\nurl = \"https://example.com/mcp\"\nstate = \"read-only\"\n{keys}\n");
        project.write("run.toml", &format!("name = \"r\"\n{server}[stages.tools]\nkind = \"discover\"\n"));
        let mut plan = project.command(&["plan", "run.toml"]);
        let output = common::output(plan.env("SECRET", "a secret"));
        (output.code, output.err)
    };
    project.write("token", "a token");
    let mode = |mode| std::fs::set_permissions(project.path("token"), Permissions::from_mode(mode)).unwrap();
    mode(0o600);
    for keys in [
        "bearer_env = \"SECRET\"",
        "bearer_file = \"token\"",
        "oauth = { client_id = \"c\", client_secret_env = \"SECRET\", scopes = [\"read\"] }",
    ] {
        let (code, text) = plan(keys);
        assert_eq!(code, Some(0), "{keys}: {text}");
    }
    for (keys, message) in [
        (
            "bearer_env = \"SECRET\"\nbearer_file = \"token\"",
            "one of `bearer_env`, `bearer_file` and `oauth`",
        ),
        ("bearer_file = \"none\"", "cannot be read"),
        ("oauth = { client_id = \"c\", client_secret_env = \"NO_SUCH_SECRET\" }", "NO_SUCH_SECRET"),
        ("oauth = { client_id = \"c\", client_secret = \"s3cret\" }", "holds a secret"),
    ] {
        let (code, text) = plan(keys);
        assert_eq!(code, Some(2), "{keys}: {text}");
        assert!(text.contains(message) && !text.contains("s3cret"), "{text}");
    }
    mode(0o644);
    assert!(plan("bearer_file = \"token\"").1.contains("can be read by other users"));
}

#[test]
fn a_command_that_dies_at_start_is_not_started_again_by_the_retries_of_its_stage() {
    let project = Project::new(
        r#"
        [server]
        command = ["sh", "-c", "echo >> starts; echo no database >&2; exit 3"]
        state = "read-only"
        [stages.tools]
        kind = "discover"
        "#,
    );
    let starts = || std::fs::read_to_string(project.path("starts")).unwrap().lines().count();
    let connect = project.mcprl(&["connect", "run.toml"]);
    assert_eq!(connect.code, Some(1), "{}", connect.err);
    let of_connect = starts();
    let refused = project.mcprl(&["run", "run.toml"]);
    assert_eq!(refused.code, Some(1), "{}", refused.err);
    let cause = "ended before it was ready (exit status: 3); stderr: no database";
    assert!(refused.err.contains(cause) && !refused.err.contains("retry"), "{}", refused.err);
    // For the list of tools, and by the stage.
    assert_eq!(starts(), 3 * of_connect);
}
