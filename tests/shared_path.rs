//! Two machines on one cache, as over NFS: each process has a host name of its own, in a namespace of its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::{
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use common::Project;
use serde_json::{Value, json};

const SLOW: &str = r#"
name = "toy"

[stages.start]
kind = "gen"
value = 4

[stages.slow]
kind = "step"
from = "start"
sleep = 1.5

[stages.file]
kind = "copy"
file = "words.txt"
"#;

fn project() -> Project {
    let project = Project::new(SLOW);
    project.write("words.txt", "some words\n");
    project
}

/// Whether this machine gives a process a host name of its own.
fn hosts_can_be_played() -> bool {
    Command::new("unshare")
        .args(["-ru", "hostname", "elsewhere"])
        .status()
        .is_ok_and(|status| status.success())
}

fn on_host(project: &Project, host: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    let script = format!("hostname {host} && exec \"$0\" \"$@\"");
    command.args(["-ru", "sh", "-c", &script, env!("CARGO_BIN_EXE_mcprl")]).args(arguments);
    command.current_dir(project.path(".")).env("TOY_LOG", project.path("log"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn output(run: Child) -> (Option<i32>, String) {
    let output = run.wait_with_output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code(), text)
}

/// The lease of the stage that is at work, once there is one.
fn lease(project: &Project, stage: &str) -> (std::path::PathBuf, Value) {
    let until = Instant::now() + Duration::from_secs(30);
    while Instant::now() < until {
        let items = std::fs::read_dir(project.path("cache/leases")).into_iter().flatten().flatten();
        for path in items.map(|item| item.path()) {
            let lease =
                std::fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
            if let Some(lease) = lease.filter(|lease| lease["stage"] == stage) {
                return (path, lease);
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("nobody works on {stage}");
}

#[test]
fn what_one_host_works_on_another_waits_for() {
    if !hosts_can_be_played() {
        return;
    }
    let project = project();
    let one = on_host(&project, "one", &["run", "run.toml", "--json"]).spawn().unwrap();
    assert_eq!(lease(&project, "slow").1["holder"]["host"], "one");
    let two = on_host(&project, "two", &["run", "run.toml", "--json"]).spawn().unwrap();
    let (one, two) = (output(one), output(two));
    assert_eq!((one.0, two.0), (Some(0), Some(0)), "{}{}", one.1, two.1);
    assert!(two.1.contains("\"event\":\"waiting\""), "{}", two.1);
    assert_eq!(project.worked(), ["file", "slow", "start"], "each stage once");
    // And a host that comes later reads none of it anew: seals hold for all.
    let three = output(on_host(&project, "three", &["run", "run.toml"]).spawn().unwrap());
    assert!(three.1.contains("3 cached, 0 worked"), "{}", three.1);
    assert_eq!(project.mcprl(&["cache", "verify"]).code, Some(0));
}

#[test]
fn each_host_remembers_for_itself_which_files_it_read() {
    if !hosts_can_be_played() {
        return;
    }
    let project = project();
    std::thread::sleep(Duration::from_millis(50));
    for host in ["one", "two"] {
        assert_eq!(output(on_host(&project, host, &["run", "run.toml"]).spawn().unwrap()).0, Some(0));
        assert!(project.path(&format!("cache/tmp/files-{host}.json")).exists());
    }
}

#[test]
fn one_that_was_taken_for_dead_does_not_publish_and_goes_on_with_what_the_other_has() {
    let project = project();
    let run =
        project.command(&["run", "run.toml"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (path, mut content) = lease(&project, "slow");
    // Another host overrules it, and lives.
    let key = path.file_name().unwrap().to_str().unwrap().split_once('.').unwrap().0.to_owned();
    let other = project.path(&format!("cache/leases/{key}.9.json"));
    content["token"] = "other".into();
    content["holder"] =
        json!({ "host": "elsewhere", "boot": "b", "pid_namespace": "", "pid": 1, "started": 1 });
    std::fs::write(&other, content.to_string()).unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    assert!(
        !project.path(&format!("cache/ac/{key}.json")).exists(),
        "one without the lease publishes nothing"
    );
    // It ends without a result: the right is free again.
    std::fs::remove_file(&other).unwrap();
    let (code, text) = output(run);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(project.worked(), ["file", "slow", "slow", "start"]);
    assert_eq!(project.result("slow/number.txt"), "5");
}

#[test]
#[ignore = "more than a minute: that long a silent host is believed"]
fn a_host_that_died_is_followed_by_another_after_a_minute() {
    if !hosts_can_be_played() {
        return;
    }
    let project = project();
    let mut one = on_host(&project, "one", &["run", "run.toml"]).spawn().unwrap();
    lease(&project, "slow");
    one.kill().unwrap();
    one.wait().unwrap();
    let began = Instant::now();
    let two = output(on_host(&project, "two", &["run", "run.toml"]).spawn().unwrap());
    assert_eq!(two.0, Some(0), "{}", two.1);
    assert!(began.elapsed() > Duration::from_secs(55), "{:?}", began.elapsed());
    assert_eq!(project.result("slow/number.txt"), "5");
}
