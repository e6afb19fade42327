//! `mcprl ui`, `mcprl run --ui` and the export of labels: the real binary.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Stdio},
};

use crate::common::Project;
use mcprl::data::{self, Label};
use serde_json::Value;

const RUN_FILE: &str = "name = \"toy\"\n[stages.slow]\nkind = \"slow\"\n";

/// A project whose only stage waits for a file `go`.
fn project() -> Project {
    let project = Project::new(RUN_FILE);
    project.kind(
        "slow",
        "seeded",
        "[outputs.number]\ntype = \"number\"\npath = \"number.txt\"\n",
        &format!(
            "while [ ! -e {} ]; do sleep 0.05; done\necho 1 > \"$MCPRL_OUTPUT_NUMBER\"",
            project.path("go").display()
        ),
    );
    project
}

/// The page's address from the process's first lines.
fn address(child: &mut Child) -> String {
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    lines.find_map(|line| Some(line.strip_prefix("ui ")?.trim().to_owned())).unwrap()
}

/// Status and body of a request with the token of this address.
fn get(address: &str, path: &str) -> (u16, String) {
    let (host, token) = address.strip_prefix("http://").unwrap().split_once("/?token=").unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn a_run_serves_its_page_while_it_runs() {
    let project = project();
    let mut run = project.command(&["run", "run.toml", "--ui"]);
    let mut run = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let address = address(&mut run);
    let (status, body) = get(&address, "/api/runs");
    assert_eq!(status, 200, "{body}");
    let runs: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(runs["runs"][0]["state"], "running");
    let id = runs["chosen"][0].as_str().unwrap();
    let (_, body) = get(&address, &format!("/api/run?run={id}"));
    let shown: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(shown["id"], id);
    project.write("go", "");
    assert!(run.wait().unwrap().success());
}

#[test]
fn the_page_of_a_finished_run_is_served_and_a_run_that_does_not_exist_is_refused() {
    let project = project();
    project.write("go", "");
    project.run(&[]);
    let mut ui = project.command(&["ui"]);
    let mut ui = ui.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let address = address(&mut ui);
    let (status, page) = get(&address, "/");
    assert!(status == 200 && page.contains("<title>mcprl</title>"), "{page}");
    let (_, body) = get(&address, &format!("/api/run?run={}", project.runs()[0]));
    let shown: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&shown["state"], &shown["stages"][0]["state"]), (&"finished".into(), &"ran".into()));
    ui.kill().unwrap();
    ui.wait().unwrap();

    let missing = project.mcprl(&["ui", "toy-1"]);
    assert_eq!(missing.code, Some(2), "{}", missing.err);
    assert!(missing.err.starts_with("error: there is no run \"toy-1\""), "{}", missing.err);
}

#[test]
fn labels_are_exported_as_a_table_and_as_tasks() {
    let project = project();
    project.write("go", "");
    project.run(&[]);
    let export = |file: &str| project.mcprl(&["export", "latest", "--labels", file]);
    assert!(export("l.parquet").err.contains("nobody has labelled an episode"));
    let label = |task: &str, answer: Option<&str>, right: Option<bool>| Label {
        trajectory_id: format!("{task}/{answer:?}"),
        task: task.into(),
        family: "f".into(),
        answer: answer.map(str::to_owned),
        right,
        ..Label::default()
    };
    let file = project.path("cache/labels").join(format!("{}.parquet", project.runs()[0]));
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    let wrong = [label("A?", Some("0"), Some(false)), label("C?", Some("3"), None)];
    data::write(&file, &wrong).unwrap();
    assert!(export("t.jsonl").err.contains("none of the 2 labels"));
    let mut labels = wrong.to_vec();
    labels.extend([
        label("A?", Some("1"), Some(true)),
        label("A?", Some("2"), Some(true)),
        label("B?", None, Some(true)),
    ]);
    data::write(&file, &labels).unwrap();
    assert_eq!(export("l.parquet").code, Some(0));
    assert_eq!(data::read::<Label>(&project.path("l.parquet")).unwrap(), labels);
    let done = export("t.jsonl");
    assert_eq!(done.out, "1 task with an answer, from 5 labels, written to t.jsonl\n", "{}", done.err);
    assert_eq!(project.read("t.jsonl"), "{\"task\":\"A?\",\"answer\":\"1\",\"family\":\"f\"}\n");
    for (file, problem) in [("t.jsonl", "exists already"), ("t.csv", "should end in .parquet or .jsonl")] {
        let refused = export(file);
        assert!(refused.code == Some(2) && refused.err.contains(problem), "{}", refused.err);
    }
    let neither = project.mcprl(&["export", "latest"]);
    assert!(neither.code == Some(2) && neither.err.contains("--out"), "{}", neither.err);
}
