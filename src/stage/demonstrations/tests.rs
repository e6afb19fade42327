//! The stage on real servers: the demo's, and one that answers or fails by its arguments.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
};

use serde_json::{Value, json};

use super::*;
use crate::{
    chat::Chat,
    data::{Json, REFERENCE, Reward, Role, Working},
    mcp::{self, Session},
    stage::testing::{self, Ledger, caller, context, sqlite_server, tool_server},
};

fn scenario(id: &str, reference: Option<Value>) -> Scenario {
    Scenario {
        id: id.into(),
        split: "train".into(),
        family: "f".into(),
        task: format!("What about {id}?"),
        answer: Some("7".into()),
        check: "number".into(),
        reference: reference.map(|calls| calls.to_string()),
        ..Scenario::default()
    }
}

fn call(name: &str, arguments: Value) -> Value {
    json!({"name": name, "arguments": arguments})
}

struct Bench {
    folder: tempfile::TempDir,
    server: mcp::ServerSpec,
}

impl Bench {
    async fn new(server: mcp::ServerSpec, scenarios: &[Scenario]) -> Self {
        let bench = Self { folder: tempfile::tempdir().unwrap(), server };
        let session = Session::connect(&bench.server).await.unwrap();
        let tools = crate::offered::tool_rows(session.tools().await.unwrap());
        session.close().await;
        data::write(&bench.path("tools.parquet"), &tools).unwrap();
        data::write(&bench.path("scenarios.parquet"), scenarios).unwrap();
        caller(&bench.path("policy"), &[]);
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn context(&self, params: Value) -> (Context, Arc<Ledger>) {
        let (policy, tools, scenarios) =
            (self.path("policy"), self.path("tools.parquet"), self.path("scenarios.parquet"));
        let inputs = [("policy", policy.as_path()), ("tools", &tools), ("scenarios", &scenarios)];
        let (mut context, rows) = context("demonstrations", &inputs, &self.path("out"), params);
        context.servers = Some(self.server.clone().into());
        (context, rows)
    }

    async fn run(&self, params: Value) -> (Metrics, Vec<Trajectory>) {
        let metrics = testing::run(&self.context(params).0).await.unwrap();
        (metrics, data::read(&self.path("out/trajectories.parquet")).unwrap())
    }
}

/// The runs of sampled tokens.
fn turns(tokens: &[u32], sampled: impl Fn(usize) -> bool) -> Vec<Vec<u32>> {
    let mut turns: Vec<Vec<u32>> = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        match turns.last_mut().filter(|_| at > 0 && sampled(at - 1)) {
            Some(turn) if sampled(at) => turn.push(*token),
            _ if sampled(at) => turns.push(vec![*token]),
            _ => {}
        }
    }
    turns
}

#[tokio::test]
async fn a_reference_solution_is_an_episode_with_the_servers_own_results() {
    let query = json!({"sql": "SELECT 3 + 4"});
    let reference = json!([call("list_tables", json!({})), call("run_query", query.clone())]);
    let bench = Bench::new(
        sqlite_server().await,
        &[
            scenario("x", Some(reference)),
            scenario("without", None),
            Scenario { answer: None, ..scenario("unanswered", Some(json!([]))) },
        ],
    )
    .await;
    let (metrics, played) = bench.run(json!({})).await;
    let [episode] = played.as_slice() else { panic!("{} episodes", played.len()) };
    assert_eq!((metrics["episodes"], metrics["skipped"], metrics["success"]), (1.0, 2.0, 1.0));
    assert_eq!((metrics["turns"], metrics["calls"], metrics["tool_errors"]), (3.0, 2.0, 0.0));
    assert_eq!((episode.correct, episode.answer.as_deref()), (Some(true), Some("7")));
    assert_eq!((episode.policy.as_str(), episode.end.as_str()), (REFERENCE, "completed"));
    assert_eq!(episode.tools, ["list_tables", "run_query"]);
    let results = episode.messages.iter().filter(|message| message.role == Role::Tool);
    let results: Vec<&str> = results.map(|message| message.text.as_str()).collect();
    assert_eq!(results[0], "departments, employees, projects");
    assert!(results[1].contains('7'), "{}", results[1]);
    let made: Vec<Call> = data::read(&bench.path("out/calls.parquet")).unwrap();
    assert_eq!(made[1].arguments, Some(query.to_string()));
    assert_eq!(made.len(), 3);

    // What is trained on: each turn from its first token to its end-of-turn token.
    let chat = Chat::load(&bench.path("policy")).unwrap();
    let turns = turns(&episode.tokens, |at| episode.sampled[at]);
    let names = turns.iter().map(|turn| {
        assert_eq!(turn.last(), chat.stop().first());
        chat.parse(&[], turn).calls[0].clone().unwrap().name
    });
    assert_eq!(names.collect::<Vec<_>>(), ["list_tables", "run_query", "complete_task"]);
    assert!(episode.logprobs.iter().all(|logprob| *logprob == 0.0));
}

#[tokio::test]
async fn what_a_solution_works_out_stands_before_its_answer() {
    let reference = json!([call("run_query", json!({"sql": "SELECT 3 UNION SELECT 4"}))]);
    let working = Some(Working("3 + 4 = 7.".into()));
    let task = Scenario { working, ..scenario("x", Some(reference)) };
    let bench = Bench::new(sqlite_server().await, &[task]).await;
    let (metrics, played) = bench.run(json!({})).await;
    assert_eq!(metrics["success"], 1.0);
    let chat = Chat::load(&bench.path("policy")).unwrap();
    let turns = turns(&played[0].tokens, |at| played[0].sampled[at]);
    let texts: Vec<String> = turns.iter().map(|turn| chat.parse(&[], turn).text.trim().to_owned()).collect();
    assert_eq!(texts, ["", "3 + 4 = 7."]);
}

#[test]
fn the_sampled_tokens_are_those_that_trl_marks_up_to_the_end_of_the_turn() {
    let fixture: Value =
        serde_json::from_str(include_str!("../../../tests/reference/fixtures/sft.json")).unwrap();
    let boundary = &fixture["boundary"];
    let tokens: Vec<u32> = serde_json::from_value(boundary["tokens"].clone()).unwrap();
    let mask: Vec<u8> = serde_json::from_value(boundary["mask"].clone()).unwrap();
    let chat = Chat::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/chat/qwen3")).unwrap();
    let calls = [("look", json!({"at": "x"})), ("complete_task", json!({"answer": "7"}))];
    let ours = calls.map(|(name, arguments)| {
        let arguments = arguments.as_object().cloned().unwrap();
        chat.assistant("", &[crate::chat::ToolCall { name: name.into(), arguments }])
    });
    let theirs = turns(&tokens, |at| mask[at] == 1);
    assert_eq!(theirs.len(), 2);
    for (ours, theirs) in ours.iter().zip(&theirs) {
        // TRL also trains what its template writes around a turn: empty reasoning, which `thinking = "off"` puts into the
        // prompt, and a line break that no model samples.
        let at = theirs.windows(ours.len()).position(|part| part == ours).unwrap();
        assert_eq!(chat.decode(&theirs[..at]), "<think>\n\n</think>\n\n");
        assert_eq!(chat.decode(&theirs[at + ours.len()..]), "\n");
        assert_eq!(ours.last(), chat.stop().first());
    }
}

#[tokio::test]
async fn a_solution_that_no_longer_works_is_kept_as_wrong() {
    let there = || call("run_query", json!({"sql": "SELECT 7"}));
    let broken = || call("run_query", json!({"sql": "SELECT nothing FROM nowhere"}));
    let cases = [
        ("fine", json!([there()]), true),
        ("no calls", json!([]), true),
        ("an error on the way", json!([broken(), there()]), true),
        ("a tool that is not there", json!([call("fly", json!({})), there()]), false),
        ("wrong arguments", json!([call("run_query", json!({"query": 1})), there()]), false),
        ("an error at the end", json!([there(), broken()]), false),
    ];
    let scenarios = cases.clone().map(|(id, reference, _)| scenario(id, Some(reference)));
    let bench = Bench::new(sqlite_server().await, &scenarios).await;
    let (metrics, played) = bench.run(json!({})).await;
    assert_eq!(metrics["success"], 0.5);
    for ((id, _, right), episode) in cases.iter().zip(&played) {
        assert_eq!((episode.scenario_id.as_str(), episode.correct), (*id, Some(*right)), "{id}");
    }

    // Of a failing call nothing is learned; the turns around it are.
    let learned = |id: &str| {
        let episode = played.iter().find(|episode| episode.scenario_id == id).unwrap();
        turns(&episode.tokens, |at| episode.sampled[at]).len()
    };
    assert_eq!((learned("fine"), learned("an error on the way")), (2, 2));

    // A limit that cuts an episode short makes it wrong as well.
    let (metrics, played) = bench.run(json!({"max_turn_tokens": 8})).await;
    assert_eq!((metrics["success"], metrics["truncated"]), (0.0, 6.0));
    assert!(played.iter().all(|episode| episode.end == "out_of_turn_tokens"));
}

#[tokio::test]
async fn an_episode_ends_at_the_context_of_the_model() {
    let long = "x".repeat(4000);
    let reference = json!([call("run_query", json!({"sql": format!("SELECT '{long}'")}))]);
    let bench = Bench::new(sqlite_server().await, &[scenario("x", Some(reference))]).await;
    let params = |tokens: usize| json!({"max_turn_tokens": 100_000, "max_episode_tokens": tokens});
    let (_, played) = bench.run(params(100_000)).await;
    assert_eq!((played[0].end.as_str(), played[0].correct), ("out_of_tokens", Some(false)));
    assert!(played[0].tokens.len() <= 2048, "{}", played[0].tokens.len());
    for (tokens, limit) in [
        (100_000, "2048 tokens, which is the model's context"),
        (1500, "1500 tokens (`max_episode_tokens` of [agent])"),
    ] {
        let (mut context, _) = bench.context(params(tokens));
        let notes = Arc::new(testing::Notes::default());
        context.observer = notes.clone();
        testing::run(&context).await.unwrap();
        let said = format!("1 of 1 reference solutions are cut off at {limit}, and count as wrong");
        assert!(notes.0.lock().unwrap().contains(&said), "{:?}", notes.0.lock().unwrap());
    }
}

#[tokio::test]
async fn the_seed_draws_the_scenarios_if_there_are_more_than_wanted() {
    let scenarios: Vec<Scenario> = (0..20).map(|id| scenario(&format!("{id:02}"), Some(json!([])))).collect();
    let bench = Bench::new(sqlite_server().await, &scenarios).await;
    let (metrics, played) = bench.run(json!({"episodes": 5})).await;
    assert_eq!(metrics["episodes"], 5.0);
    assert!(played.is_sorted_by_key(|episode| episode.scenario_id.clone()));
    let (mut other, _) = bench.context(json!({"episodes": 5}));
    other.seed += 1;
    testing::run(&other).await.unwrap();
    let ids = |played: &[Trajectory]| played.iter().map(|t| t.scenario_id.clone()).collect::<Vec<_>>();
    let drawn: Vec<Trajectory> = data::read(&bench.path("out/trajectories.parquet")).unwrap();
    assert_ne!(ids(&drawn), ids(&played));
}

#[tokio::test]
async fn without_scenarios_there_are_no_solutions_and_that_is_no_failure() {
    let bench = Bench::new(sqlite_server().await, &[]).await;
    let (metrics, played) = bench.run(json!({})).await;
    assert_eq!((metrics["episodes"], played.len()), (0.0, 0));
}

#[tokio::test]
async fn without_any_reference_the_stage_says_what_is_missing() {
    let bench = Bench::new(sqlite_server().await, &[scenario("x", None)]).await;
    let failure = testing::run(&bench.context(json!({})).0).await.unwrap_err();
    assert_eq!(failure.code(), "demonstrations::no_reference");
    assert_eq!(failure.to_string(), "none of the 1 scenarios has a reference solution and a known answer");
    assert!(failure.hint().unwrap().contains("`reference`"));
}

#[tokio::test]
async fn a_lost_server_fails_the_stage_and_a_resumed_one_plays_what_is_missing() {
    let status = Arc::new(AtomicU16::new(200));
    let now = status.clone();
    let server = tool_server(move |_| now.load(Ordering::SeqCst)).await;
    let reference = || Some(json!([call("t", json!({}))]));
    let bench = Bench::new(server, &[scenario("one", reference()), scenario("two", reference())]).await;
    let (context, rows) = bench.context(json!({"episodes": 1}));
    testing::run(&context).await.unwrap();

    status.store(500, Ordering::SeqCst);
    let resumed = || {
        let (mut context, _) = bench.context(json!({"max_lost_share": 0.0}));
        context.rows = rows.clone();
        context
    };
    let failure = testing::run(&resumed()).await.unwrap_err();
    assert_eq!(failure.code(), "play::server_lost");

    status.store(200, Ordering::SeqCst);
    let context = resumed();
    let metrics = testing::run(&context).await.unwrap();
    assert_eq!((metrics["episodes"], metrics["lost"], metrics["success"]), (2.0, 0.0, 1.0));
    assert_eq!(context.meter.total().tool_calls, 1, "the first episode is not played again");
    let played: Vec<Trajectory> = data::read(&bench.path("out/trajectories.parquet")).unwrap();
    assert!(played.iter().all(|episode| episode.policy == REFERENCE));
}

#[tokio::test]
async fn the_state_that_a_solution_leaves_decides_where_there_is_no_answer() {
    let checks = |expected: &str| {
        let state = json!([{"tool": "t", "expect": {"equals": expected}}]);
        Some(Json(json!({ "state": state }).to_string()))
    };
    let of = |id: &str, expected: &str| Scenario {
        answer: None,
        check: "none".into(),
        checks: checks(expected),
        ..scenario(id, Some(json!([call("t", json!({}))])))
    };
    let server = tool_server(|_| 200).await;
    let bench = Bench::new(server, &[of("left", "fine"), of("other", "broken")]).await;
    let (_, played) = bench.run(json!({})).await;
    let found: Vec<_> = played.iter().map(|episode| (episode.answer.as_deref(), episode.correct)).collect();
    assert_eq!(found, [(Some("done"), Some(true)), (Some("done"), Some(false))]);
}

#[tokio::test]
async fn demonstrations_are_refused_by_grpo() {
    let bench = Bench::new(sqlite_server().await, &[scenario("x", Some(json!([])))]).await;
    let (_, played) = bench.run(json!({})).await;
    let reward = Reward { trajectory_id: played[0].id.clone(), reward: 1.0, ..Reward::default() };
    data::write(&bench.path("rewards.parquet"), &[reward]).unwrap();
    let (policy, trajectories, rewards) =
        (bench.path("policy"), bench.path("out/trajectories.parquet"), bench.path("rewards.parquet"));
    let inputs = [("policy", policy.as_path()), ("trajectories", &trajectories), ("rewards", &rewards)];
    let update = testing::context("grpo", &inputs, &bench.path("update"), json!({})).0;
    let failure = testing::run(&update).await.unwrap_err();
    assert_eq!(failure.code(), "grpo::not_sampled");
    assert!(failure.hint().unwrap().contains("\"sft\""));
}
