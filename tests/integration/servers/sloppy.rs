//! PyPI's `mcp-server-sqlite`, unmodified: it reports errors as ordinary texts and prints rows as Python does.
//!
//! The server is looked for where `tests/reference/servers.sh` installs it, and on PATH.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::common::Project;
use mcprl::{
    data::{self, Scenario, Tool, Trajectory},
    mcp::{ErrorPatterns, Quirks, ServerSpec, Session, State, Transport},
};
use serde_json::json;

const NAME: &str = "mcp-server-sqlite";

/// The server's program, or a message that the test is skipped.
fn server() -> Option<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/servers/sqlite/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(own).chain(std::env::split_paths(&path));
    let found = folders.map(|folder| folder.join(NAME)).find(|program| program.is_file());
    if found.is_none() {
        eprintln!("skipped: {NAME} is neither in target/servers/sqlite/bin nor on PATH");
    }
    found
}

fn example(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(NAME);
    std::fs::read_to_string(folder.join(file)).unwrap()
}

/// The example in a folder of its own, with the demo's tiny model.
fn project(server: &Path) -> Project {
    let project = Project::new(&example("run.toml"));
    let command = format!("command = [{:?}, ", server.to_str().unwrap());
    project.replace("run.toml", &format!("command = [{NAME:?}, "), &command);
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("pipelines/sqlite-model");
    project.replace("run.toml", "\"Qwen/Qwen3-0.6B\"", &format!("{:?}", model.to_str().unwrap()));
    let agent = "system = \"system.txt\"\nmax_turns = 4\nmax_turn_tokens = 120\n";
    project.replace("run.toml", "thinking = \"off\"\n", agent);
    project.write("system.txt", "Use the tools.\n");
    project.write("library.families.toml", &example("library.families.toml"));
    database(&project.path("library.db"));
    project
}

fn database(path: &Path) {
    rusqlite::Connection::open(path).unwrap().execute_batch(&example("library.sql")).unwrap();
}

#[tokio::test]
async fn a_failed_query_is_an_error_where_the_run_file_has_a_pattern_for_it() {
    let Some(server) = server() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("library.db");
    database(&path);
    let command = [&server, Path::new("--db-path"), &path].map(|word| word.to_str().unwrap().to_owned());
    let command = command.into();
    let transport = Transport::Stdio { command, env: BTreeMap::new(), cwd: None, files: Vec::new() };
    let spec = ServerSpec::new(transport, State::ReadOnly);
    let error_patterns = ErrorPatterns::new(&["^Error:".into(), "^Database error".into()]).unwrap();
    let strict = ServerSpec { quirks: Quirks { error_patterns, ..Quirks::default() }, ..spec.clone() };
    for (spec, has_patterns) in [(spec, false), (strict, true)] {
        let session = Session::connect(&spec).await.unwrap();
        for (query, text, fails) in [
            ("SELECT COUNT(*) AS n FROM books", "[{'n': 36}]", false),
            ("SELECT x FROM books", "Database error: no such column: x", true),
            ("SELECT * FROM films", "Database error: no such table: films", true),
            ("DELETE FROM books", "Error: Only SELECT queries are allowed for read_query", true),
        ] {
            let arguments = json!({ "query": query }).as_object().unwrap().clone();
            let outcome = session.call("read_query", arguments).await.unwrap();
            assert_eq!((outcome.text.as_str(), outcome.is_error), (text, fails && has_patterns), "{query}");
        }
        session.close().await;
    }
}

#[test]
fn questions_are_grounded_on_its_answers_and_a_policy_plays_them() {
    let Some(server) = server() else { return };
    let project = project(&server);
    project.run(&[
        "--until",
        "headroom",
        "--set",
        "stages.headroom.tasks=2",
        "--set",
        "stages.headroom.samples=2",
    ]);

    let run = project.newest();
    let tools: Vec<Tool> = data::read(&run.join("tools/tools.parquet")).unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["read_query", "list_tables", "describe_table", "complete_task"]);

    let tasks: Vec<Scenario> = ["train", "dev", "heldout"]
        .iter()
        .flat_map(|port| data::read(&run.join(format!("tasks/{port}.parquet"))).unwrap())
        .collect();
    let answer = |family: &str, entity: &str| {
        let mut known = tasks.iter().filter(|scenario| scenario.family == family);
        known.find(|scenario| scenario.task.contains(entity)).and_then(|scenario| scenario.answer.clone())
    };
    assert_eq!(
        answer("pages_of_book", "Low Tide"),
        answer_in_sql(&project, "SELECT page_count FROM books WHERE title = 'Low Tide'")
    );
    assert_eq!(answer("country_of_author", "Yuki Mori").as_deref(), Some("Japan"));
    assert_eq!(answer("columns_of_table", "members").as_deref(), Some("member_id, member_name, joined"));
    let is_error =
        |scenario: &&Scenario| scenario.answer.as_deref().is_none_or(|answer| answer.contains("rror"));
    assert_eq!(tasks.iter().find(is_error), None);

    let played: Vec<Trajectory> = data::read(&run.join("headroom/trajectories.parquet")).unwrap();
    assert_eq!(played.len(), 8);
}

fn answer_in_sql(project: &Project, query: &str) -> Option<String> {
    let connection = rusqlite::Connection::open(project.path("library.db")).unwrap();
    let number: i64 = connection.query_row(query, [], |row| row.get(0)).unwrap();
    Some(number.to_string())
}
