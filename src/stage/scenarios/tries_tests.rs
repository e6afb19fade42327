//! Training tasks are tried by a policy whose weights are set by hand.

use std::{path::PathBuf, sync::Arc};

use serde_json::{Value, json};

use super::*;
use crate::{
    data::{self, Admission, PassRate, Scenario, Sparse},
    mcp::{ServerSpec, Session},
    stage::{
        Rows as _,
        testing::{self, Ledger},
    },
};

/// A folder with tasks and a policy that gives one of these answers, each equally often.
struct Bench {
    folder: tempfile::TempDir,
    server: ServerSpec,
}

impl Bench {
    async fn answering(answers: &[&str]) -> Self {
        let server = testing::tool_server(|_| 200).await;
        let folder = tempfile::tempdir().unwrap();
        let session = Session::connect(&server).await.unwrap();
        let tools = crate::offered::tool_rows(session.tools().await.unwrap());
        session.close().await;
        data::write(&folder.path().join("tools.parquet"), &tools).unwrap();
        let call = |answer: &&str| json!({"name": "complete_task", "arguments": {"answer": answer}});
        testing::caller(&folder.path().join("policy"), &answers.iter().map(call).collect::<Vec<_>>());
        let task =
            |task: &str, answer: Value, split: &str| json!({"task": task, "answer": answer, "split": split});
        let tasks = json!([
            task("Easy?", "7".into(), "train"),
            task("Hard?", "9".into(), "train"),
            task("Open?", Value::Null, "train"),
            task("Exam?", "7".into(), "heldout"),
        ]);
        std::fs::write(folder.path().join("tasks.json"), tasks.to_string()).unwrap();
        Self { folder, server }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A stage that reads the tasks, with a policy if there are tries.
    fn stage(&self, name: &str, params: Value) -> (Context, Arc<Ledger>) {
        let (tools, policy) = (self.path("tools.parquet"), self.path("policy"));
        let mut inputs = vec![("tools", tools.as_path())];
        if params["tries"].is_u64() {
            inputs.push(("policy", &policy));
        }
        let voter = self.path("voter");
        if params["answers_votes"].is_u64() {
            inputs.push(("answers_from", &voter));
        }
        let mut all =
            json!({"source": "file", "file": self.path("tasks.json"), "max_turns": 2, "max_turn_tokens": 12});
        all.as_object_mut().unwrap().extend(params.as_object().unwrap().clone());
        let (mut context, rows) = testing::context("scenarios", &inputs, &self.path(name), all);
        context.servers = Some(self.server.clone().into());
        (context, rows)
    }

    async fn run(&self, name: &str, params: Value) -> Metrics {
        testing::run(&self.stage(name, params).0).await.unwrap()
    }

    fn tasks(&self, table: &str) -> Vec<String> {
        let scenarios: Vec<Scenario> = data::read(&self.path(table)).unwrap();
        scenarios.into_iter().map(|scenario| scenario.task).collect()
    }

    fn bytes(&self, name: &str) -> [Vec<u8>; 3] {
        ["train", "heldout", "admission"]
            .map(|table| std::fs::read(self.path(name).join(format!("{table}.parquet"))).unwrap())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_that_every_try_solves_are_refused_and_unsolved_ones_kept() {
    let bench = Bench::answering(&["7"]).await;
    let metrics = bench.run("out", json!({"tries": 3})).await;
    assert_eq!(bench.tasks("out/train.parquet"), ["Hard?", "Open?"]);
    assert_eq!(bench.tasks("out/heldout.parquet"), ["Exam?"], "as often solved, and never tried");
    let admission: Vec<Admission> = data::read(&bench.path("out/admission.parquet")).unwrap();
    let row = |task: &str| {
        let row = admission.iter().find(|row| row.task == task).unwrap();
        (row.verdict.as_str(), row.reason.as_deref(), row.tries, row.pass_rate)
    };
    assert_eq!(row("Easy?"), ("refused", Some("too-easy"), Some(Sparse(3)), Some(Sparse(1.0))));
    assert_eq!(row("Hard?"), ("admitted", None, Some(Sparse(3)), Some(Sparse(0.0))));
    assert_eq!(row("Open?"), ("admitted", None, None, None));
    assert_eq!(row("Exam?"), ("admitted", None, None, None));
    assert!(admission.iter().any(|row| row.detail.as_deref() == Some("3 of 3 tries solve it")));
    let named = |name: &str| metrics[name];
    assert_eq!(
        ["tried", "pass_rate", "refused_too_easy", "refused_too_hard"].map(named),
        [2.0, 0.5, 1.0, 0.0]
    );
    let rates: Vec<PassRate> = data::read(&bench.path("out/pass_rates.parquet")).unwrap();
    assert_eq!(rates.iter().map(|rate| (rate.episodes, rate.right)).collect::<Vec<_>>(), [(3.0, 0.0)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_range_of_pass_rates_is_the_users() {
    let bench = Bench::answering(&["7", "9"]).await;
    let metrics = bench.run("half", json!({"tries": 8})).await;
    assert_eq!(
        bench.tasks("half/train.parquet").len(),
        3,
        "each answer is right about half of the time: {metrics:?}"
    );
    assert!((0.2..0.8).contains(&metrics["pass_rate"]), "{metrics:?}");

    let bench = Bench::answering(&["7"]).await;
    bench.run("hard", json!({"tries": 2, "min_pass_rate": 0.1, "max_pass_rate": 2.0})).await;
    assert_eq!(bench.tasks("hard/train.parquet"), ["Easy?", "Open?"]);
    let code = async |params: Value| testing::run(&bench.stage("none", params).0).await.unwrap_err().code();
    assert_eq!(
        code(json!({"tries": 2, "min_pass_rate": 0.5, "max_pass_rate": 0.5})).await,
        "scenarios::pass_rates"
    );
    let known = json!([{"task": "Easy?", "answer": "7", "split": "train"}]);
    std::fs::write(bench.path("tasks.json"), known.to_string()).unwrap();
    assert_eq!(code(json!({"tries": 2})).await, "scenarios::nothing_left");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tries_and_with_tries_that_refuse_nothing_tasks_are_the_same_bytes() {
    let bench = Bench::answering(&["7"]).await;
    let metrics = bench.run("without", json!({})).await;
    assert!(!metrics.contains_key("tried"));
    let [train, heldout, admission] = bench.bytes("without");
    bench.run("all", json!({"tries": 2, "max_pass_rate": 1.5})).await;
    let [tried_train, tried_heldout, tried_admission] = bench.bytes("all");
    assert!((tried_train, tried_heldout) == (train, heldout));
    let columns = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains("pass_rate");
    assert!(!columns(&admission), "the table has the columns of tries only if there are some");
    assert!(columns(&tried_admission));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_stage_and_one_with_more_tries_play_only_what_is_missing() {
    let bench = Bench::answering(&["7", "9"]).await;
    let (mut context, rows) = bench.stage("out", json!({"tries": 3}));
    testing::run(&context).await.unwrap();
    assert_eq!(rows.finished().unwrap().len(), 6);
    let first = (bench.bytes("out"), context.meter.total().sampled_tokens);
    testing::run(&context).await.unwrap();
    assert_eq!((bench.bytes("out"), context.meter.total().sampled_tokens), first);
    context.params.insert("tries".into(), json!(4));
    testing::run(&context).await.unwrap();
    assert_eq!(rows.finished().unwrap().len(), 8);
}

/// Lets a policy vote that calls the server and then gives one of these answers, each equally often.
fn voting(bench: &Bench, answers: &[&str]) {
    let call = |name: &str, arguments: Value| {
        format!("<tool_call>\n{}\n</tool_call>\n", json!({"name": name, "arguments": arguments}))
    };
    let reply = |answer: &&str| call("t", json!({})) + &call("complete_task", json!({"answer": answer}));
    testing::replier(&bench.path("voter"), &answers.iter().map(reply).collect::<Vec<_>>(), 2048);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_training_task_gets_the_answer_that_attempts_agree_on_and_says_that_it_is_voted() {
    let bench = Bench::answering(&["7"]).await;
    voting(&bench, &["42"]);
    let metrics = bench.run("out", json!({"answers_votes": 4})).await;
    let train: Vec<Scenario> = data::read(&bench.path("out/train.parquet")).unwrap();
    let of = |task: &str| train.iter().find(|one| one.task == task).unwrap();
    let open = of("Open?");
    assert_eq!(
        (open.answer.as_deref(), &*open.check, open.voted),
        (Some("42"), "number", Some(Sparse(true)))
    );
    let known = of("Easy?");
    assert_eq!((known.answer.as_deref(), known.voted), (Some("7"), None), "known answers stay");
    assert_eq!(metrics["voted"], 1.0);
    assert!(!metrics.contains_key("tried"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_whose_attempts_disagree_or_called_nothing_is_left_out() {
    let bench = Bench::answering(&["7"]).await;
    voting(&bench, &["1", "2", "3", "4"]);
    let metrics = bench.run("out", json!({"answers_votes": 8})).await;
    assert_eq!(bench.tasks("out/train.parquet"), ["Easy?", "Hard?"]);
    assert_eq!((metrics["voted"], metrics["refused_disagreed"]), (0.0, 1.0));
    let admission: Vec<Admission> = data::read(&bench.path("out/admission.parquet")).unwrap();
    let row = admission.iter().find(|row| row.task == "Open?").unwrap();
    assert_eq!(row.detail.as_deref(), Some("fewer than three quarters of 8 attempts agree"));

    let bench = Bench::answering(&["7"]).await;
    let call = json!({"name": "complete_task", "arguments": {"answer": "7"}});
    testing::caller(&bench.path("voter"), &[call]);
    assert_eq!(bench.run("out", json!({"answers_votes": 4})).await["voted"], 0.0, "it looked at nothing");
    std::fs::write(bench.path("tasks.json"), json!([{"task": "Open?", "split": "train"}]).to_string())
        .unwrap();
    let none = testing::run(&bench.stage("none", json!({"answers_votes": 4})).0).await.unwrap_err();
    assert_eq!(none.code(), "scenarios::no_agreement");
    let two =
        json!({"answers_votes": 4, "answers_endpoint": {"base_url": "http://127.0.0.1:9/v1", "model": "m"}});
    let two = testing::run(&bench.stage("two", two).0).await.unwrap_err();
    assert_eq!(two.code(), "scenarios::two_voters");
}
