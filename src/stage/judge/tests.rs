use std::path::PathBuf;

use serde_json::{Value, json};

use super::*;
use crate::stage::testing::{self, context};

fn scenario(id: &str, answer: Option<&str>) -> Scenario {
    Scenario {
        id: id.into(),
        split: "train".into(),
        family: "f".into(),
        task: "How many?".into(),
        answer: answer.map(str::to_owned),
        check: if answer.is_some() { "number" } else { "none" }.into(),
        entity: None,
        reference: None,
        checks: None,
    }
}

fn trajectory(scenario: &str, answer: &str) -> Trajectory {
    Trajectory {
        id: format!("{scenario}/{answer}"),
        scenario_id: scenario.into(),
        policy: "p".into(),
        messages: json!([{"role": "assistant", "content": answer}]).to_string(),
        tokens: vec![1],
        sampled: vec![false],
        logprobs: vec![0.0],
        turns: 1,
        end: "completed".into(),
        answer: Some(answer.into()),
        ..Trajectory::default()
    }
}

struct Judged {
    result: Result<Metrics>,
    /// `trajectory reward components` per row.
    rewards: Vec<String>,
}

async fn judged(scenarios: &[Scenario], trajectories: &[Trajectory], params: Value) -> Judged {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| -> PathBuf { folder.path().join(name) };
    data::write(&path("scenarios.parquet"), scenarios).unwrap();
    data::write(&path("trajectories.parquet"), trajectories).unwrap();
    let (scenarios, trajectories) = (path("scenarios.parquet"), path("trajectories.parquet"));
    let inputs = [("scenarios", scenarios.as_path()), ("trajectories", trajectories.as_path())];
    let (context, _) = context("judge", &inputs, &path("out"), params);
    let result = testing::run(&context).await;
    let rewards: Vec<Reward> = match &result {
        Ok(_) => data::read(&path("out").join("rewards.parquet")).unwrap(),
        Err(_) => Vec::new(),
    };
    let line = |reward: &Reward| format!("{} {} {}", reward.trajectory_id, reward.reward, reward.components);
    Judged { result, rewards: rewards.iter().map(line).collect() }
}

#[tokio::test]
async fn rewards_come_in_the_order_of_the_trajectories() {
    let scenarios = [scenario("a", Some("3")), scenario("b", Some("5"))];
    let trajectories =
        [trajectory("b", "5"), trajectory("a", "2"), trajectory("b", "6"), trajectory("a", "3.0")];
    let judged = judged(&scenarios, &trajectories, json!({})).await;
    assert_eq!(
        judged.rewards,
        [
            r#"b/5 1 {"truth":1.0,"efficiency":0.0}"#,
            r#"a/2 0 {"truth":0.0}"#,
            r#"b/6 0 {"truth":0.0}"#,
            r#"a/3.0 1 {"truth":1.0,"efficiency":0.0}"#,
        ]
    );
    let metrics = judged.result.unwrap();
    assert_eq!((metrics["reward"], metrics["success"]), (0.5, 0.5));
}

#[tokio::test]
async fn no_episodes_are_no_rewards() {
    let judged = judged(&[scenario("a", Some("3"))], &[], json!({})).await;
    assert!(judged.result.unwrap().is_empty() && judged.rewards.is_empty());
}

#[tokio::test]
async fn what_cannot_be_judged_is_refused() {
    let code = |judged: Judged| judged.result.unwrap_err().code();
    let known = [scenario("a", Some("3"))];
    let unknown = [scenario("a", None)];
    let one = [trajectory("a", "3")];
    assert_eq!(code(judged(&known, &[trajectory("z", "3")], json!({})).await), "judge::unknown_scenario");
    assert_eq!(code(judged(&unknown, &one, json!({})).await), "judge::nothing_to_go_by");
    assert_eq!(code(judged(&unknown, &one, json!({"relative": 1.0})).await), "judge::no_model");
}

/// A judge that scores by the number in an attempt, and gives no score to attempts with 13.
async fn endpoint() -> String {
    use axum::{Json, Router, routing::post};
    let reply = |Json(body): Json<Value>| async move {
        let question = body["messages"][0]["content"].as_str().unwrap().to_owned();
        let attempts = question.split("<attempt id=\"").skip(1);
        let score = |attempt: &str| {
            let digits: String =
                attempt.split("content").nth(1)?.chars().filter(char::is_ascii_digit).collect();
            Some(json!({"id": attempt.split('"').next()?, "score": digits.parse::<f64>().ok()? / 10.0}))
        };
        let scores: Vec<Value> =
            attempts.filter_map(|attempt| score(attempt.split("</attempt>").next()?)).collect();
        Json(json!({"choices": [{"message": {"content": json!({"scores": scores}).to_string()}}]}))
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let app = Router::new().route("/v1/chat/completions", post(reply));
    tokio::spawn(async { axum::serve(listener, app).await });
    url
}

#[tokio::test]
async fn a_language_model_judges_and_a_failure_names_its_scenario() {
    let scenarios = [scenario("a", None), scenario("b", None)];
    let trajectories =
        [trajectory("a", "2"), trajectory("b", "13"), trajectory("a", "8"), trajectory("b", "1")];
    let params = json!({"relative": 1.0, "base_url": endpoint().await, "model": "judge"});
    let judged = judged(&scenarios, &trajectories, params).await;
    assert_eq!(
        judged.rewards,
        [r#"a/2 0.2 {"relative":0.2}"#, "b/13 0 {}", r#"a/8 0.8 {"relative":0.8}"#, "b/1 0 {}"]
    );
    let metrics = judged.result.unwrap();
    // Two orders of the first group, three attempts at the second.
    assert_eq!((metrics["unjudged_groups"], metrics["judge_requests"]), (1.0, 5.0));
}
