//! `mcprl chat`: the real binary, tiny models, the demo server.

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use mcprl::data::{self, Scenario};
use serde_json::{Value, json};

use crate::common::{CommandOutput, Project, output, training_run, until};

const QUESTION: &str = "How many departments are there?";
const ANSWER: &str = "There are 8 departments.";

/// A project with a model `caller` that answers everything with the same query and the same answer.
fn project() -> Project {
    let project = Project::new("");
    let call = |name: &str, arguments: Value| {
        format!("<tool_call>\n{}\n</tool_call>\n", json!({"name": name, "arguments": arguments}))
    };
    let sql = "SELECT COUNT(*) AS n, 1 AS one FROM departments";
    let reply = call("run_query", json!({"sql": sql})) + &call("complete_task", json!({"answer": ANSWER}));
    project.replier("caller", &reply);
    project
}

/// `mcprl chat caller` with these arguments on the demo server.
fn command(project: &Project, arguments: &[&str]) -> Command {
    let server = ["--", env!("CARGO_BIN_EXE_mcprl"), "demo-server", "sqlite"];
    project.command(&[&["chat", "caller"], arguments, &server].concat())
}

fn chat(project: &Project, arguments: &[&str]) -> CommandOutput {
    output(&mut command(project, arguments))
}

fn parsed(output: &CommandOutput) -> Value {
    serde_json::from_str(&output.out).unwrap_or_else(|_| panic!("{}\n{}", output.out, output.err))
}

fn traces(folder: &Path) -> Vec<Value> {
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|item| item.unwrap().path()).collect();
    paths.sort();
    let read = |path| serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    paths.into_iter().map(read).collect()
}

#[test]
fn one_message_is_answered_with_calls_on_the_server() {
    let project = project();
    let done = chat(&project, &["--once", QUESTION, "--json"]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    let reply = parsed(&done);
    assert_eq!((&reply["answer"], &reply["end"]), (&json!(ANSWER), &json!("completed")));
    let call = &reply["calls"][0];
    assert_eq!((&call["tool"], &call["error"]), (&json!("run_query"), &Value::Null));
    assert!(call["result"].as_str().unwrap().contains('8'), "{call}");
    assert!(reply["tokens"]["sampled"].as_u64().unwrap() > 0);
    let shown = chat(&project, &["--once", QUESTION]);
    assert_eq!(shown.out, format!("{ANSWER}\n"));
    assert!(shown.err.contains("run_query({\"sql\":"), "{}", shown.err);
}

#[test]
fn a_call_that_is_not_allowed_is_an_error_to_the_model_and_in_the_trace() {
    let project = project();
    for (rule, reason) in [("--ask", "nobody is here"), ("--deny", "not allowed here")] {
        let folder = format!("traces{rule}");
        let done = chat(&project, &["--once", QUESTION, "--json", rule, "run_*", "--trace-dir", &folder]);
        let call = &parsed(&done)["calls"][0];
        assert_eq!(call["error"], "refused", "{call}");
        assert!(call["result"].as_str().unwrap().contains(reason), "{call}");
        let messages = &traces(&project.path(&folder))[0]["messages"];
        let result = messages.as_array().unwrap().iter().find(|message| message["role"] == "tool").unwrap();
        assert_eq!((&result["content"], &result["is_error"]), (&call["result"], &json!(true)));
    }
}

#[test]
fn tasks_leave_traces_that_become_tasks_and_can_be_said_again() {
    let project = project();
    project.write("tasks.txt", &format!("{QUESTION}\n{{\"task\": \"Count the departments.\"}}\n"));
    let done = chat(&project, &["--tasks", "tasks.txt", "--trace-dir", "traces", "--json"]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    let replies: Vec<Value> = done.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let said: Vec<&Value> = replies.iter().map(|reply| &reply["message"]).collect();
    assert_eq!(said, [QUESTION, "Count the departments."]);
    let found = traces(&project.path("traces"));
    assert_eq!(found.len(), 2);
    assert_eq!(found[0]["model"], "caller");
    let tools = found[0]["tools"].as_array().unwrap();
    assert!(tools.iter().any(|tool| tool["function"]["name"] == "complete_task"));

    let lines: String = found.iter().map(|trace| format!("{trace}\n")).collect();
    project.write("traces.jsonl", &lines);
    let run = crate::common::DEMO
        .replace("\"file\"\nfile = \"tasks.jsonl\"", "\"traces\"\ntraces = \"traces.jsonl\"");
    project.write("run.toml", &format!("name = \"demo\"\n{run}heldout_share = 0.0\n"));
    project.run(&[]);
    let tasks: Vec<Scenario> = data::read(&project.newest().join("tasks/train.parquet")).unwrap();
    assert!(!tasks.is_empty());
    assert_eq!(tasks[0].answer.as_deref(), Some("8"));

    let trace = replies[0]["trace"].as_str().unwrap();
    let again = chat(&project, &["--replay", trace, "--json"]);
    let again = parsed(&again);
    assert_eq!((&again["message"], &again["answer"]), (&json!(QUESTION), &json!(ANSWER)));
}

#[test]
fn messages_on_standard_input_are_one_conversation_until_reset() {
    let project = project();
    let mut chat = command(&project, &["--json", "--trace-dir", "traces"]);
    let mut chat = chat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = chat.stdin.take().unwrap();
    input.write_all(b"One?\nTwo?\n\n/reset\nThree?\n/quit\nFour?\n").unwrap();
    drop(input);
    let done = chat.wait_with_output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let replies: Vec<Value> = String::from_utf8(done.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let said: Vec<&Value> = replies.iter().map(|reply| &reply["message"]).collect();
    assert_eq!(said, ["One?", "Two?", "Three?"]);
    let context = |index: usize| replies[index]["tokens"]["context"].as_u64().unwrap();
    assert!(context(1) > context(0), "{replies:?}");
    let of_user = |trace: &Value| {
        let messages = trace["messages"].as_array().unwrap().iter();
        messages.filter(|message| message["role"] == "user").count()
    };
    let found: Vec<usize> = traces(&project.path("traces")).iter().map(of_user).collect();
    assert_eq!(found, [2, 1]);
}

#[test]
fn a_run_answers_with_its_newest_policy_or_another_that_it_names() {
    let project = Project::with_model(&training_run("group_size = 2"));
    project.run(&[]);
    let run = project.runs().pop().unwrap();
    let chat =
        |arguments: &[&str]| project.mcprl(&[&["chat"], arguments, &["--once", "Hi", "--json"]].concat());
    let by_default = parsed(&chat(&[]));
    assert_eq!(by_default["policy"], format!("{run}/update"));
    assert_eq!(parsed(&chat(&["run.toml"])), by_default, "of the run file's newest run, with the same seed");
    for (name, label) in [("base", "base"), ("trained", "trained"), ("update", "update")] {
        let reply = parsed(&chat(&[&run, "--policy", name]));
        assert_eq!(reply["policy"], format!("{run}/{label}"));
        // Six tokens per turn and two turns, as in the run's exam.
        assert!(reply["tokens"]["sampled"].as_u64().unwrap() <= 12, "{reply}");
    }
    let unknown = chat(&[&run, "--policy", "trained2"]);
    assert!(unknown.err.contains("talk::no_policy") && unknown.err.contains("base"), "{}", unknown.err);
    let stray = chat(&["--server", "run.toml"]);
    assert!(stray.err.contains("talk::option"), "{}", stray.err);
    let of_run_file = chat(&["llama", "--server", "run.toml", "--max-tokens", "3"]);
    assert!(parsed(&of_run_file)["tokens"]["sampled"].as_u64().unwrap() <= 6, "{}", of_run_file.out);
}

#[test]
fn mistakes_are_named_with_what_to_do() {
    let project = project();
    project.write("broken.jsonl", "{\"messages\": [");
    project.write("empty.txt", "\n");
    project.write("file", "");
    let refused = |output: CommandOutput, code: &str, exit: i32| {
        assert!(output.err.contains(code), "{code}: {}", output.err);
        assert_eq!(output.code, Some(exit), "{code}: {}", output.err);
        assert!(!output.err.contains("panicked"), "{}", output.err);
    };
    let once = ["--once", "Hi", "--json"];
    let with = |arguments: &[&str]| chat(&project, &[&once, arguments].concat());
    refused(with(&["--allow", "nothing_*"]), "talk::rule", 2);
    refused(with(&["--trace-dir", "file"]), "talk::trace", 1);
    refused(with(&["--system", "none.md"]), "agent::system_prompt", 1);
    refused(chat(&project, &["--json", "--replay", "broken.jsonl"]), "talk::replay", 2);
    refused(chat(&project, &["--json", "--tasks", "empty.txt"]), "talk::tasks", 2);
    refused(chat(&project, &["--json", "--tasks", "none.txt"]), "talk::read", 2);
    refused(project.mcprl(&["chat", "caller", "--once", "Hi", "--json"]), "talk::no_server", 2);
    refused(project.mcprl(&["chat", "run.toml", "--once", "Hi", "--json"]), "talk::no_run", 2);
    refused(project.mcprl(&["chat", "./cellar", "--once", "Hi", "--json"]), "talk::no_path", 2);
    refused(project.mcprl(&["chat", "none.gguf", "--once", "Hi", "--json"]), "talk::no_path", 2);
    let down = project.mcprl(&["chat", "caller", "--once", "Hi", "--json", "--", "false"]);
    refused(down, "mcp::", 1);
    let left = |name: &str| {
        std::fs::read_dir(project.path("cache/tmp"))
            .unwrap()
            .any(|item| item.unwrap().file_name().to_string_lossy().starts_with(name))
    };
    assert!(!left("chat-"), "the copy of the model is removed");
}

#[test]
fn keys_that_were_typed_before_a_question_do_not_answer_it() {
    let project = project();
    let quoted = |word: &str| format!("'{word}'");
    let words = [env!("CARGO_BIN_EXE_mcprl"), "chat", "caller", "--ask", "*", "--"];
    let server = [env!("CARGO_BIN_EXE_mcprl"), "demo-server", "sqlite"];
    let line = words.into_iter().chain(server).map(quoted).collect::<Vec<_>>().join(" ");
    // util-linux's: a terminal for the command.
    let started = Command::new("script")
        .args(["-qfec", &line, "/dev/null"])
        .current_dir(project.path(""))
        .env("XDG_STATE_HOME", project.path("state"))
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut child) = started else { return };
    let text = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
    let (mut output, heard) = (child.stdout.take().unwrap(), text.clone());
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(read @ 1..) = std::io::Read::read(&mut output, &mut bytes) {
            heard.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    });
    let has = |part: &str| text.lock().unwrap().contains(part);
    let mut input = child.stdin.take().unwrap();
    until("it waits for a message", || has("> "));
    input.write_all(b"Count them.\ra\r").unwrap();
    until("it asks", || has("call run_query?"));
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(!has(ANSWER), "{}", text.lock().unwrap());
    input.write_all(b"y\r").unwrap();
    until("it is answered", || has(ANSWER));
    drop(input);
    _ = child.kill();
    _ = child.wait();
}
