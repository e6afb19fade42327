//! The stage on the demo's server, with episodes that were played there.

use std::path::PathBuf;

use serde_json::json;

use super::*;
use crate::{
    data::{self, Message, Role},
    mcp::{self, Session},
    stage::testing::{self, caller, context, sqlite_server},
};

struct Bench {
    folder: tempfile::TempDir,
    server: mcp::ServerSpec,
}

impl Bench {
    /// Two episodes: a count, and a query that fails before one that does not.
    async fn new() -> Self {
        let bench = Self { folder: tempfile::tempdir().unwrap(), server: sqlite_server().await };
        let session = Session::connect(&bench.server).await.unwrap();
        let tools = crate::offered::tool_rows(session.tools().await.unwrap());
        session.close().await;
        data::write(&bench.path("tools.parquet"), &tools).unwrap();
        caller(&bench.path("policy"), &[]);
        let query = |sql: &str| json!({"name": "run_query", "arguments": {"sql": sql}});
        let count = json!([{"name": "list_tables", "arguments": {}}, query("SELECT 7")]);
        let failing = json!([query("SELECT nothing FROM nowhere"), query("SELECT 7")]);
        let scenarios = [("count", count), ("failing", failing)].map(|(id, reference)| Scenario {
            id: id.into(),
            split: "train".into(),
            family: "f".into(),
            task: format!("What about {id}?"),
            answer: Some("7".into()),
            check: "number".into(),
            reference: Some(reference.to_string()),
            ..Scenario::default()
        });
        data::write(&bench.path("scenarios.parquet"), &scenarios).unwrap();
        bench.run("demonstrations", "scenarios", json!({})).await.unwrap();
        std::fs::rename(bench.path("out/trajectories.parquet"), bench.path("trajectories.parquet")).unwrap();
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn run(&self, kind: &str, input: &str, params: Value) -> Result<Metrics> {
        let (policy, tools) = (self.path("policy"), self.path("tools.parquet"));
        let table = self.path(&format!("{input}.parquet"));
        let inputs = [("policy", policy.as_path()), ("tools", &tools), (input, &table)];
        let (mut context, _) = context(kind, &inputs, &self.path("out"), params);
        context.servers = Some(self.server.clone().into());
        testing::run(&context).await
    }

    async fn replay(&self, params: Value) -> Result<(Metrics, Vec<Replay>, Vec<Trajectory>)> {
        let metrics = self.run("replay", "trajectories", params).await?;
        let rows = data::read(&self.path("out/replays.parquet"))?;
        Ok((metrics, rows, data::read(&self.path("out/trajectories.parquet"))?))
    }

    fn episodes(&self) -> Vec<Trajectory> {
        data::read(&self.path("trajectories.parquet")).unwrap()
    }

    /// Replaces texts of the first episode's messages.
    fn edit(&self, from: &str, to: &str) {
        let mut episodes = self.episodes();
        let before = json!(episodes[0].messages).to_string();
        assert!(before.contains(from), "{before}");
        episodes[0].messages = serde_json::from_str(&before.replace(from, to)).unwrap();
        data::write(&self.path("trajectories.parquet"), &episodes).unwrap();
    }
}

#[tokio::test]
async fn episodes_whose_results_are_the_same_are_kept_as_they_came() {
    let bench = Bench::new().await;
    let (metrics, rows, kept) = bench.replay(json!({})).await.unwrap();
    assert_eq!(kept, bench.episodes());
    assert_eq!((metrics["episodes"], metrics["left_out"], metrics["calls"]), (2.0, 0.0, 2.0));
    assert!(rows.iter().all(|row| row.holds == Some(true) && row.call.is_none()), "{rows:?}");
}

#[tokio::test]
async fn an_episode_with_another_result_is_left_out_and_its_row_says_where_it_differs() {
    let bench = Bench::new().await;
    bench.edit("departments, employees, projects", "departments, employees");
    let (metrics, rows, kept) = bench.replay(json!({})).await.unwrap();
    assert_eq!((metrics["episodes"], metrics["left_out"]), (1.0, 1.0));
    assert_eq!(kept, bench.episodes()[1..]);
    let row = &rows[0];
    assert_eq!((row.holds, row.call, row.tool.as_deref()), (Some(false), Some(0), Some("list_tables")));
    assert_eq!(row.before.as_deref(), Some("departments, employees"));
    assert_eq!(row.now.as_deref(), Some("departments, employees, projects"));
    let (metrics, ..) = bench.replay(json!({"compare": "errors"})).await.unwrap();
    assert_eq!(metrics["episodes"], 2.0, "neither call failed");
}

#[tokio::test]
async fn a_call_that_no_longer_works_is_another_result_and_too_many_of_them_fail_the_stage() {
    let bench = Bench::new().await;
    bench.edit("SELECT 7", "SELECT 7 FROM nowhere");
    for compare in ["results", "errors"] {
        let (_, rows, _) = bench.replay(json!({"compare": compare})).await.unwrap();
        assert_eq!((rows[0].holds, rows[0].call), (Some(false), Some(1)), "{compare}");
    }
    let failed = bench.replay(json!({"max_left_out": 0.4})).await.unwrap_err();
    assert_eq!(failed.code(), "replay::left_out");
    assert!(
        failed.to_string().contains("1 of 2 episodes do not hold; the first, count: call 2 of"),
        "{failed}"
    );
}

#[tokio::test]
async fn what_mcprl_refused_is_not_made_again_and_shifts_no_result() {
    let bench = Bench::new().await;
    let mut episodes = bench.episodes();
    let messages = &mut episodes[0].messages;
    let at = messages.iter().position(|message| message.role == Role::Assistant).unwrap();
    let raw = Message::assistant("<tool_call>{\"name\": \"run_qu", Vec::new());
    let mut refused = Message::result("", "x", "error: no call can be read");
    refused.result.as_mut().unwrap().error = Some(CallError::Unparsable);
    messages.splice(at..at, [raw, refused]);
    data::write(&bench.path("trajectories.parquet"), &episodes).unwrap();
    // Nor do limits of episodes matter: there are two calls.
    let (metrics, rows, _) = bench.replay(json!({"max_turns": 1, "max_calls": 1})).await.unwrap();
    assert_eq!((metrics["episodes"], metrics["calls"]), (2.0, 2.0), "{rows:?}");
}

#[test]
fn results_are_compared_as_json_or_word_by_word() {
    assert!(is_same_text("{\"a\": 1, \"b\": [2]}", "{\"b\":[2],\"a\":1}"));
    assert!(is_same_text("one  two\n", "one two"));
    assert!(!is_same_text("one two", "onetwo"));
    assert!(!is_same_text("[1, 2]", "[2, 1]"));
}
