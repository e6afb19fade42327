//! The server's identity in keys: what reruns when it changes, and what is printed.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::common::{self, Project};

const MCPRL: &str = env!("CARGO_BIN_EXE_mcprl");
const NUMBER: &str = "[outputs.number]\ntype = \"number\"\npath = \"number.txt\"\n";

/// `ask` uses the server and knows its tools; `rest` reads what that writes, which is the same each time.
fn project(server: &str) -> Project {
    let project = Project::new(&format!(
        "name = \"toy\"\n[server]\n{server}\nstate = \"read-only\"\n[stages.tools]\nkind = \"discover\"\n\
         [stages.ask]\nkind = \"ask\"\ntools = \"tools\"\n[stages.rest]\nkind = \"half\"\nfrom = \"ask\"\n"
    ));
    let card = format!("uses = [\"server\"]\n[inputs.tools]\ntype = \"tools\"\n{NUMBER}");
    project.kind("ask", "seeded", &card, "echo 4 > \"$MCPRL_OUTPUT_NUMBER\"");
    project
}

/// The demo server behind a script, what it says changed by `sed`.
fn scripted(sed: &str) -> Project {
    let project = project("command = [\"sh\", \"server.sh\"]");
    script(&project, sed);
    project.run(&[]);
    project.ran();
    project
}

fn script(project: &Project, sed: &str) {
    project.write("server.sh", &format!("{MCPRL} demo-server sqlite | sed -u '{sed}'\n"));
}

/// What `plan` says of a stage.
fn said_of(project: &Project, stage: &str) -> String {
    let plan = project.mcprl(&["plan", "run.toml"]).out;
    let line = plan.lines().find(|line| line.split_whitespace().nth(1) == Some(stage)).unwrap();
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>().join(" | ")
}

#[test]
fn another_environment_or_script_of_the_server_reruns_its_users() {
    let project = scripted("");
    project.run(&["--set", "server.env={ DATABASE = \"other\" }"]);
    assert_eq!(project.ran(), ["ask"]);
    project.run(&[]);
    script(&project, "s/a/a/");
    let plan = said_of(&project, "tools");
    assert!(plan.contains("server.reached.files.server.sh"), "{plan}");
    let output = project.run(&[]).err;
    // It lists the same tools as before, and is not who it was.
    assert!(output.contains("ask                  server.reached.files.server.sh"), "{output}");
    assert_eq!(project.ran(), ["ask"]);
    project.run(&[]);
    assert_eq!(project.ran(), [""; 0]);
}

#[test]
fn changed_data_of_a_read_only_server_reruns_its_users_and_is_named() {
    let project = scripted("");
    project.write("shop.csv", "1");
    let named = ["--set", "server.env={ DATA = \"shop.csv\" }"];
    project.run(&named);
    assert_eq!(project.ran(), ["ask"]);
    project.run(&named);
    assert_eq!(project.ran(), [""; 0]);
    project.write("shop.csv", "2");
    let plan = project.mcprl(&["plan", "run.toml", named[0], named[1]]).out;
    assert!(plan.contains("server.reached.files.shop.csv"), "{plan}");
    let resumed = project.mcprl(&["resume", "latest"]);
    assert_eq!(project.ran(), ["ask"]);
    let said = "shop.csv, which the server reads, has changed since the run began: stages that use the server run again";
    assert!(resumed.err.contains(said), "{}", resumed.err);
    let again = project.mcprl(&["resume", "latest"]).err;
    assert!(!again.contains("has changed"), "{again}");
}

#[test]
fn a_resumed_run_says_that_a_database_has_changed_which_is_in_no_key() {
    let project = scripted("");
    project.replace(
        "run.toml",
        "state = \"read-only\"",
        "state = \"fresh-process\"\nenv = { DATA = \"shop.db\" }",
    );
    project.write("shop.db", "SQLite format 3\0a");
    project.run(&[]);
    project.ran();
    let unchanged = project.mcprl(&["resume", "latest"]).err;
    assert!(!unchanged.contains("has changed"), "{unchanged}");
    project.write("shop.db", "SQLite format 3\0b");
    let resumed = project.mcprl(&["resume", "latest"]).err;
    assert!(
        resumed.contains(
            "shop.db, which the server reads, has changed since the run began: finished stages keep"
        ),
        "{resumed}"
    );
    assert_eq!(project.ran(), [""; 0]);
}

#[test]
fn a_moved_project_reruns_nothing() {
    let project = scripted("");
    let moved = tempfile::tempdir().unwrap();
    let copied = std::process::Command::new("cp")
        .args(["-a", project.path(".").to_str().unwrap(), moved.path().to_str().unwrap()])
        .status();
    assert!(copied.unwrap().success());
    let mut again = project.command(&["run", "run.toml", "--json"]);
    let again = common::output(again.current_dir(moved.path()));
    assert!(
        again.out.contains("\"cached\":3") && again.out.contains("\"ran\":0"),
        "{}{}",
        again.out,
        again.err
    );
}

#[test]
fn changed_tools_are_named() {
    let project = scripted("");
    script(&project, "s/\"describe_table\"/\"describe\"/g");
    let output = project.run(&[]).err;
    assert!(output.contains("server tool list changed: added describe; removed describe_table"), "{output}");
    let id = project.runs().pop().unwrap();
    let shown = project.mcprl(&["show", &format!("{id}/ask")]).out;
    assert!(shown.contains("server tool list changed: added describe; removed describe_table"), "{shown}");
}

#[test]
fn tools_that_a_command_imports_from_elsewhere_are_seen_in_every_run() {
    let project = project("command = [\"sh\", \"server.sh\"]");
    let write = |sed: &str| project.write("inner/tools.sed", sed);
    std::fs::create_dir_all(project.path("inner")).unwrap();
    project.write("server.sh", &format!("{MCPRL} demo-server sqlite | sed -u -f inner/tools.sed\n"));
    write("s/a/a/\n");
    project.run(&[]);
    assert_eq!(project.ran(), ["ask", "rest"]);
    let again = project.run(&[]);
    assert!(again.err.starts_with("nothing to do: 3 cached, 0 ran"), "{}", again.err);
    assert_eq!(project.runs().len(), 1, "the server says what it said");

    write("s/\"describe_table\"/\"describe\"/g\n");
    let doctor = project.mcprl(&["doctor"]).out;
    let changed = "added describe; removed describe_table";
    assert!(doctor.contains(&format!("tools: not as in the cache: {changed}")), "{doctor}");
    assert!(doctor.contains("computes again: ask, rest"), "{doctor}");
    let planned = project.mcprl(&["plan"]);
    assert!(
        planned
            .err
            .contains(&format!("not as in the cache: {changed}; the next run computes again: ask, rest")),
        "{}",
        planned.err
    );
    let offline = project.run(&["--offline"]).err;
    assert!(offline.starts_with("nothing to do: 3 cached, 0 ran"), "{offline}");
    let output = project.run(&[]).err;
    assert!(output.contains(&format!("not as in the cache: {changed}")), "{output}");
    assert!(output.contains(&format!("server tool list changed: {changed}")), "{output}");
    assert_eq!(project.ran(), ["ask"]);

    std::fs::remove_file(project.path("inner/tools.sed")).unwrap();
    let away = project.run(&[]).err;
    assert!(away.contains("so its last answer is used"), "{away}");
    assert_eq!(project.ran(), [""; 0]);
}

#[test]
fn another_server_version_reruns_its_users() {
    let project = scripted("s/\"version\":\"[0-9.]*\"/\"version\":\"8.0\"/");
    script(&project, "s/\"version\":\"[0-9.]*\"/\"version\":\"9.0\"/");
    let output = project.run(&[]).err;
    assert!(output.contains("server.version \"8.0\" → \"9.0\""), "{output}");
    assert_eq!(project.ran(), ["ask"]);
}

#[test]
fn a_server_script_edited_while_a_stage_runs_fails_it() {
    let project = scripted("");
    let edit =
        "echo '# edited' >> \"$(dirname \"$TOY_LOG\")/server.sh\"\necho 4 > \"$MCPRL_OUTPUT_NUMBER\"\n";
    project.write("stages/ask/run.sh", edit);
    let failed = project.mcprl(&["run", "run.toml"]);
    assert_eq!(failed.code, Some(1));
    assert!(
        failed.err.contains(
            "server.sh, named by the server's command or `env`, changed since stage \"ask\" was planned"
        ),
        "{}",
        failed.err
    );
}

/// The demo server over HTTP, behind a door that may change what it says.
struct Door {
    server: Child,
    url: String,
    renames: Arc<AtomicBool>,
}

impl Door {
    fn open() -> Self {
        let mut server = std::process::Command::new(MCPRL)
            .args(["demo-server", "sqlite", "--http", "127.0.0.1:0"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(server.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let inner = line.trim().strip_prefix("listening on http://").unwrap();
        let address = inner.split('/').next().unwrap().to_owned();
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = inner.replace(&address, &door.local_addr().unwrap().to_string());
        let renames = Arc::<AtomicBool>::default();
        let own = renames.clone();
        std::thread::spawn(move || {
            for client in door.incoming() {
                // A server that is away lets nobody in.
                if let (Ok(client), Ok(server)) = (client, TcpStream::connect(&address)) {
                    let (to, from) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                    std::thread::spawn(move || pass(client, to, &AtomicBool::new(false)));
                    let renames = own.clone();
                    std::thread::spawn(move || pass(server, from, &renames));
                }
            }
        });
        Self { server, url: format!("http://{url}"), renames }
    }

    fn close(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.close();
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, renames: &AtomicBool) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let mut bytes = buffer[..count].to_vec();
        if renames.load(Ordering::Relaxed) {
            // Of the same length, so that headers stay right.
            let (old, new) = (b"describe_table", b"tell_the_table");
            while let Some(at) = bytes.windows(old.len()).position(|window| window == old) {
                bytes[at..at + new.len()].copy_from_slice(new);
            }
        }
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    _ = to.shutdown(std::net::Shutdown::Both);
}

#[test]
fn a_server_at_a_url_is_asked_in_every_run_and_the_same_answer_reruns_nothing() {
    let door = Door::open();
    let project = project(&format!("url = \"{}\"", door.url));
    project.run(&[]);
    assert_eq!(project.ran(), ["ask", "rest"]);
    let plan = project.mcprl(&["plan", "run.toml"]).out;
    assert!(plan.contains("3 cached, 0 to run"), "{plan}");
    let again = project.run(&["--json"]).out;
    assert!(again.contains("\"cached\":3") && again.contains("\"ran\":0"), "{again}");
    assert_eq!(project.ran(), [""; 0]);

    door.renames.store(true, Ordering::Relaxed);
    let output = project.run(&[]).err;
    assert!(
        output.contains("server tool list changed: added tell_the_table; removed describe_table"),
        "{output}"
    );
    assert_eq!(project.ran(), ["ask"]);
}

#[test]
fn if_a_url_does_not_answer_its_last_answer_is_used_with_a_note() {
    let mut door = Door::open();
    let project = project(&format!("url = \"{}\"", door.url));
    project.run(&[]);
    project.ran();
    let id = project.runs().pop().unwrap();
    door.close();
    let output = project.run(&[]).err;
    assert!(
        output.contains(
            "note     tools                the server did not answer, so its last answer is used: "
        ),
        "{output}"
    );
    assert_eq!(project.ran(), [""; 0]);
    // A run that is gone on with asked already.
    let resumed = project.mcprl(&["resume", &id]);
    assert_eq!(resumed.code, Some(0));
    assert!(!resumed.err.contains("answered"), "{}", resumed.err);

    let elsewhere = project.mcprl(&["run", "run.toml", "--cache", "other"]);
    assert_eq!(elsewhere.code, Some(1), "without an earlier answer there is nothing to go by");
    assert!(elsewhere.err.contains("hint: "), "{}", elsewhere.err);
}
