use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::{Value, json};

use super::*;
use crate::{
    data::Message,
    stage::{
        Rows,
        testing::{self, context},
    },
    usage::Prices,
};

pub fn scenario(id: &str, answer: Option<&str>) -> Scenario {
    Scenario {
        id: id.into(),
        split: "train".into(),
        family: "f".into(),
        task: "How many?".into(),
        answer: answer.map(str::to_owned),
        check: if answer.is_some() { "number" } else { "none" }.into(),
        ..Scenario::default()
    }
}

pub fn trajectory(scenario: &str, answer: &str) -> Trajectory {
    Trajectory {
        id: format!("{scenario}/{answer}"),
        scenario_id: scenario.into(),
        policy: "p".into(),
        messages: vec![Message::assistant(answer, Vec::new())],
        tokens: vec![1],
        sampled: vec![false],
        logprobs: vec![0.0],
        turns: 1,
        end: "completed".into(),
        answer: Some(answer.into()),
        answer_source: Some("tool".into()),
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
    let (metrics, rewards) = judged_in(folder.path(), scenarios, trajectories, params).await;
    let line = |reward: &Reward| format!("{} {} {}", reward.trajectory_id, reward.reward, reward.components);
    match rewards {
        Ok(rewards) => Judged { result: Ok(metrics), rewards: rewards.iter().map(line).collect() },
        Err(failure) => Judged { result: Err(failure), rewards: Vec::new() },
    }
}

/// Runs the stage in this folder. Returns its metrics and rewards.
pub async fn judged_in(
    folder: &Path,
    scenarios: &[Scenario],
    trajectories: &[Trajectory],
    params: Value,
) -> (Metrics, Result<Vec<Reward>>) {
    let path = |name: &str| -> PathBuf { folder.join(name) };
    data::write(&path("scenarios.parquet"), scenarios).unwrap();
    data::write(&path("trajectories.parquet"), trajectories).unwrap();
    let (scenarios, trajectories) = (path("scenarios.parquet"), path("trajectories.parquet"));
    let inputs = [("scenarios", scenarios.as_path()), ("trajectories", trajectories.as_path())];
    let (context, _) = context("judge", &inputs, &path("out"), params);
    match testing::run(&context).await {
        Ok(metrics) => (metrics, Ok(data::read(&path("out").join("rewards.parquet")).unwrap())),
        Err(failure) => (Metrics::new(), Err(failure)),
    }
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
    assert_eq!(code(judged(&unknown, &one, json!({"weights": {"relative": 1.0}})).await), "judge::no_model");
    let beyond = judged(&known, &one, json!({"weights": {"truth": 1e39}})).await.result.unwrap_err();
    assert_eq!(beyond.code(), "judge::not_finite");
    assert!(beyond.to_string().contains("trajectory a/3"), "{beyond}");
}

/// A reply to a relative question or one of a rubric with the criterion `right`: a score for each attempt, in reverse order.
pub fn by_attempt(question: &str, score: impl Fn(&str) -> f64) -> String {
    let attempts = question.split("<attempt").skip(1).filter_map(|rest| {
        let (head, rest) = rest.split_once('>')?;
        let id = head.split('"').nth(1).unwrap_or("right");
        Some(json!({"id": id, "score": score(rest.split("</attempt>").next()?), "explanation": ""}))
    });
    let scores: Vec<Value> = attempts.collect::<Vec<_>>().into_iter().rev().collect();
    json!({ "scores": scores }).to_string()
}

/// An endpoint that answers the n-th question, from 0, with this text; `None` is status 500, and the text `400` that status.
pub async fn endpoint(
    answer: impl Fn(usize, &str) -> Option<String> + Clone + Send + Sync + 'static,
) -> (String, Arc<AtomicUsize>) {
    use axum::{Json, Router, http::StatusCode, response::IntoResponse, routing::post};
    let requests = Arc::new(AtomicUsize::new(0));
    let count = requests.clone();
    let reply = move |Json(body): Json<Value>| {
        let number = count.fetch_add(1, Ordering::SeqCst);
        let answer = answer(number, body["messages"][0]["content"].as_str().unwrap());
        async move {
            let Some(answer) = answer else { return StatusCode::INTERNAL_SERVER_ERROR.into_response() };
            if answer == "400" {
                return (StatusCode::BAD_REQUEST, "the prompt is too long").into_response();
            }
            Json(json!({
                "choices": [{"message": {"content": answer}}],
                "usage": {"prompt_tokens": 1000, "completion_tokens": 100},
            }))
            .into_response()
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let app = Router::new().route("/v1/chat/completions", post(reply));
    tokio::spawn(async { axum::serve(listener, app).await });
    (url, requests)
}

/// Scores by the number in an attempt. An attempt with 13 gets no score.
fn by_number(_: usize, question: &str) -> Option<String> {
    let attempts = question.split("<attempt id=\"").skip(1);
    let score = |attempt: &str| {
        let digits: String = attempt.split("content").nth(1)?.chars().filter(char::is_ascii_digit).collect();
        let score = digits.parse::<f64>().ok().filter(|number| *number <= 10.0)? / 10.0;
        Some(json!({"id": attempt.split('"').next()?, "score": score}))
    };
    let scores: Vec<Value> =
        attempts.filter_map(|attempt| score(attempt.split("</attempt>").next()?)).collect();
    Some(json!({ "scores": scores }).to_string())
}

#[tokio::test]
async fn a_language_model_judges_and_a_group_that_it_cannot_judge_is_noted() {
    let scenarios = [scenario("a", None), scenario("b", None)];
    let trajectories =
        [trajectory("a", "2"), trajectory("b", "13"), trajectory("a", "8"), trajectory("b", "1")];
    let params =
        json!({"weights": {"relative": 1.0}, "base_url": endpoint(by_number).await.0, "model": "judge"});
    let judged = judged(&scenarios, &trajectories, params).await;
    assert_eq!(
        judged.rewards,
        [r#"a/2 0.2 {"relative":0.2}"#, r#"a/8 0.8 {"relative":0.8}"#],
        "the other group has no rewards"
    );
    let metrics = judged.result.unwrap();
    // Two orders of the first group, three attempts at the second.
    assert_eq!((metrics["unjudged_groups"], metrics["judge_requests"]), (1.0, 5.0));
}

#[tokio::test]
async fn a_rubric_scores_each_episode_by_weighted_criteria() {
    let scenarios = [scenario("a", None)];
    let trajectories = [trajectory("a", "2"), trajectory("a", "8"), trajectory("a", "2")];
    // Right is the number in the attempt, brief is always half, in another order than asked.
    let answer = |_: usize, question: &str| {
        let attempt = question.split("<attempt>").nth(1).unwrap();
        let digit = attempt.chars().find(char::is_ascii_digit).and_then(|digit| digit.to_digit(10)).unwrap();
        let scores = json!([{"id": "brief", "score": 0.5, "explanation": "so"}, {"id": "right", "score": f64::from(digit) / 10.0}]);
        Some(json!({ "scores": scores }).to_string())
    };
    let (base_url, requests) = endpoint(answer).await;
    let params = json!({
        "weights": {"rubric": 2.0}, "base_url": base_url, "model": "judge", "tie_band": 0.0,
        "criteria": {"right": {"about": "is right", "weight": 3}, "brief": "is brief"},
        "gates": {"rubric.right": {"below": 0.5, "at_most": 0.25}},
    });
    let judged = judged(&scenarios, &trajectories, params).await;
    assert_eq!(
        judged.rewards,
        [
            r#"a/2 0.25 {"rubric":0.55,"gate":-0.30000000000000004}"#,
            r#"a/8 1.45 {"rubric":1.4500000000000002}"#,
            r#"a/2 0.25 {"rubric":0.55,"gate":-0.30000000000000004}"#,
        ]
    );
    assert_eq!(requests.load(Ordering::SeqCst), 2, "equal episodes share a request");
}

#[tokio::test]
async fn an_episode_that_the_rubric_cannot_score_gets_no_reward_and_its_group_does() {
    let trajectories = [trajectory("a", "2"), trajectory("a", "13"), trajectory("a", "8")];
    for refusal in ["400", "I will not score this.", r#"{"scores": []}"#] {
        let answer = move |_: usize, question: &str| {
            Some(match question.contains("13") {
                true => refusal.to_owned(),
                false => by_attempt(question, |text| if text.contains('8') { 0.8 } else { 0.2 }),
            })
        };
        let (base_url, _) = endpoint(answer).await;
        for more in [
            json!({"weights": {"rubric": 1.0}}),
            json!({"weights": {"truth": 0}, "gates": {"rubric.right": {"below": 0.1}}}),
        ] {
            let mut params = json!({"base_url": base_url, "model": "m", "criteria": {"right": "It is right."}, "repeats": 2});
            params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let judged = judged(&[scenario("a", None)], &trajectories, params).await;
            let ids: Vec<&str> =
                judged.rewards.iter().map(|reward| reward.split(' ').next().unwrap()).collect();
            assert_eq!(ids, ["a/2", "a/8"], "{refusal} {more}");
            assert_eq!(judged.result.unwrap()["unjudged_groups"], 0.0);
        }
    }
}

#[tokio::test]
async fn a_success_without_a_reward_counts() {
    let answer = |_: usize, _: &str| Some("no".to_owned());
    let params = json!({
        "base_url": endpoint(answer).await.0, "model": "m", "criteria": {"right": "It is right."},
        "gates": {"rubric": {"below": 0.5}},
    });
    let judged = judged(&[scenario("a", Some("3"))], &[trajectory("a", "3")], params).await;
    assert!(judged.rewards.is_empty(), "{:?}", judged.rewards);
    assert_eq!(judged.result.unwrap()["success"], 1.0);
}

#[tokio::test]
async fn a_refused_question_is_left_out_and_an_endpoint_that_refuses_all_is_an_error() {
    let answer = |number: usize, question: &str| match question.contains("13") {
        true => Some("400".to_owned()),
        false => by_number(number, question),
    };
    let (base_url, _) = endpoint(answer).await;
    let params = json!({"weights": {"relative": 1.0}, "base_url": base_url, "model": "m"});
    let scenarios = [scenario("a", None), scenario("b", None)];
    let trajectories = [trajectory("a", "2"), trajectory("b", "13"), trajectory("a", "8")];
    let judged_some = judged(&scenarios, &trajectories, params.clone()).await;
    assert_eq!(judged_some.rewards, [r#"a/2 0.2 {"relative":0.2}"#, r#"a/8 0.8 {"relative":0.8}"#]);
    let judged_none = judged(&scenarios, &trajectories[1..2], params).await;
    assert_eq!(judged_none.result.unwrap_err().code(), "judge::reply");
}

#[tokio::test]
async fn a_program_scores_episodes_and_its_failure_fails_the_stage() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("score.sh");
    let script = |text: &str| std::fs::write(&file, text).unwrap();
    let params = || json!({"weights": {"command": 1.0}, "program": file, "interpreter": ["sh"]});
    let scenarios = [scenario("a", Some("3"))];
    let trajectories = [trajectory("a", "3"), trajectory("a", "4")];
    script(r#"echo '{"id": "a/4", "score": 1}'; echo '{"id": "a/3", "score": 0.5, "explanation": "fine"}'"#);
    let found = judged(&scenarios, &trajectories, params()).await;
    assert_eq!(
        found.rewards,
        [r#"a/3 1.5 {"truth":1.0,"command":0.5,"efficiency":0.0}"#, r#"a/4 0 {"truth":0.0}"#],
        "ground truth has a veto"
    );
    script("exit 1");
    assert_eq!(
        judged(&scenarios, &trajectories, params()).await.result.unwrap_err().code(),
        "judge::program"
    );
}

#[tokio::test]
async fn mistakes_in_the_composition_are_refused() {
    let scenarios = [scenario("a", Some("3"))];
    let trajectories = [trajectory("a", "3")];
    let model = |more: Value| {
        let mut params = json!({"base_url": "http://127.0.0.1:9/v1", "model": "m"});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        params
    };
    let cases = [
        (model(json!({"weights": {"rubric": 1.0}, "criteria": {}})), "judge::criteria"),
        (model(json!({"weights": {"rubric": 1.0}, "criteria_file": "/no/such/file"})), "judge::criteria"),
        (model(json!({"gates": {"rubric.x": {"below": 0.5}}})), "judge::gates"),
        (json!({"gates": {"nothing": {"below": 0.5}}}), "judge::gates"),
        (json!({"gates": {"injection": {"below": 2}}}), "judge::gates"),
        (json!({"weights": {"command": 1.0}}), "judge::no_model"),
        (model(json!({"weights": {"relative": 1.0}, "max_cost": 1.0})), "judge::no_prices"),
        (json!({"gates": {"relative": {"below": 0.5}}}), "judge::no_model"),
        (
            model(
                json!({"weights": {"rubric": 1.0}, "criteria": {"a": "b"}, "rubric_scores": "probability"}),
            ),
            "llm::no_probability",
        ),
    ];
    for (params, code) in cases {
        let found = judged(&scenarios, &trajectories, params.clone()).await.result.unwrap_err();
        assert_eq!(found.code(), code, "{params}: {found}");
    }
}

#[tokio::test]
async fn criteria_can_be_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("criteria.toml");
    std::fs::write(&file, "[right]\nabout = \"is right\"\n").unwrap();
    let answer = |_: usize, question: &str| {
        assert!(question.contains("<criterion id=\"right\">\nis right\n"), "{question}");
        Some(r#"{"scores": [{"id": "right", "score": 1}]}"#.to_owned())
    };
    let params = json!({"weights": {"rubric": 1.0}, "base_url": endpoint(answer).await.0, "model": "m", "criteria_file": file});
    let judged = judged(&[scenario("a", None)], &[trajectory("a", "3")], params).await;
    assert_eq!(judged.rewards, [r#"a/3 1 {"rubric":1.0}"#]);
}

#[tokio::test]
async fn a_ceiling_stops_before_it_is_passed_and_keeps_replies_that_are_paid_for() {
    let asked = |index: usize| Scenario {
        task: format!("How many of {index}?"),
        ..scenario(&format!("s{index}"), None)
    };
    let scenarios: Vec<Scenario> = (0..20).map(asked).collect();
    let trajectories: Vec<Trajectory> = (0..20)
        .flat_map(|index| [trajectory(&format!("s{index}"), "2"), trajectory(&format!("s{index}"), "8")])
        .collect();
    let (base_url, requests) = endpoint(by_number).await;
    let params = json!({
        "weights": {"relative": 1.0}, "base_url": base_url, "model": "m", "orders": 1, "max_cost": 0.02, "max_tokens": 200,
    });
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    data::write(&path("scenarios.parquet"), &scenarios).unwrap();
    data::write(&path("trajectories.parquet"), &trajectories).unwrap();
    let (tasks, episodes) = (path("scenarios.parquet"), path("trajectories.parquet"));
    let inputs = [("scenarios", tasks.as_path()), ("trajectories", episodes.as_path())];
    let (mut context, rows) = context("judge", &inputs, &path("out"), params);
    // A request costs 0.0011 dollars and reserves at most 0.0043.
    context.prices = Some(Prices { prompt: 1.0, completion: 1.0 });
    let failure = testing::run(&context).await.unwrap_err();
    assert_eq!(failure.code(), "llm::ceiling", "{failure}");
    let asked = requests.load(Ordering::SeqCst);
    assert!((14..=18).contains(&asked), "{asked} requests for 0.02 dollars");
    assert_eq!(rows.finished().unwrap().len(), asked, "every reply is kept");
    let spent = context.prices.unwrap().of(&context.meter.total());
    assert!((0.0..=0.02).contains(&spent), "{spent}");
    assert!(!path("out").join("rewards.parquet").exists());

    // What is paid for is not asked again.
    context.params.insert("max_cost".into(), json!(1.0));
    testing::run(&context).await.unwrap();
    assert_eq!(requests.load(Ordering::SeqCst), 20);
}

#[tokio::test]
async fn repeats_are_averaged_and_their_agreement_is_audited() {
    // Every second reply prefers the other attempt.
    let answer = |number: usize, question: &str| {
        let reply = by_number(number, question)?;
        Some(if number.is_multiple_of(2) {
            reply
        } else {
            reply.replace("0.2", "x").replace("0.8", "0.2").replace('x', "0.8")
        })
    };
    let (base_url, _) = endpoint(answer).await;
    let params = json!({
        "weights": {"relative": 1.0}, "base_url": base_url, "model": "m", "orders": 1, "repeats": 4, "concurrency": 1,
    });
    let judged = judged(&[scenario("a", None)], &[trajectory("a", "2"), trajectory("a", "8")], params).await;
    assert_eq!(judged.rewards, [r#"a/2 0.5 {"relative":0.5}"#, r#"a/8 0.5 {"relative":0.5}"#]);
    let metrics = judged.result.unwrap();
    assert!((metrics["audit.relative.repeat_agreement"] - 1.0 / 3.0).abs() < 1e-12, "{metrics:?}");
}

#[tokio::test]
async fn a_judge_that_prefers_the_first_place_or_length_is_found_out() {
    let scenarios: Vec<Scenario> = (0..6).map(|index| scenario(&format!("s{index}"), Some("3"))).collect();
    let mut trajectories = Vec::new();
    for scenario in &scenarios {
        for words in [0, 20] {
            let mut wrong = trajectory(&scenario.id, "4");
            wrong.messages = vec![Message::assistant(format!("4{}", " word".repeat(words)), Vec::new())];
            wrong.id = format!("{}/{words}", scenario.id);
            trajectories.push(wrong);
        }
        trajectories.push(trajectory(&scenario.id, "3"));
    }
    let first = |_: usize, _: &str| {
        Some(
            r#"{"scores": [{"id": 1, "score": 0.9}, {"id": 2, "score": 0.5}, {"id": 3, "score": 0.1}]}"#
                .to_owned(),
        )
    };
    let (base_url, _) = endpoint(first).await;
    let params = json!({"weights": {"relative": 1.0}, "base_url": base_url, "model": "m"});
    let metrics = judged(&scenarios, &trajectories, params).await.result.unwrap();
    assert!((metrics["audit.relative.position_bias"] - 0.8).abs() < 1e-9, "{metrics:?}");
    assert_eq!(metrics["audit.relative.order_agreement"], 0.0);
    assert_eq!(metrics["audit.relative.pairwise_accuracy"], 0.5, "each order undoes the other");

    let long = |_: usize, question: &str| {
        let score = |attempt: &str| {
            let length = f64::from(u8::from(attempt.contains("word")));
            Some(json!({"id": attempt.split('"').next()?, "score": 0.2 + 0.6 * length}))
        };
        let scores: Vec<Value> = question.split("<attempt id=\"").skip(1).filter_map(score).collect();
        Some(json!({ "scores": scores }).to_string())
    };
    let (base_url, _) = endpoint(long).await;
    let params = json!({"weights": {"relative": 1.0}, "base_url": base_url, "model": "m"});
    let metrics = judged(&scenarios, &trajectories, params).await.result.unwrap();
    assert_eq!(metrics["audit.relative.length_bias"], 1.0);
    assert_eq!(metrics["audit.relative.pairwise_accuracy"], 0.25);
    assert_eq!(metrics["audit.relative.order_agreement"], 1.0);
}

#[tokio::test]
async fn other_requests_in_flight_are_kept_when_one_fails() {
    let answer = |_: usize, question: &str| {
        std::thread::sleep(std::time::Duration::from_millis(if question.contains('8') { 100 } else { 0 }));
        if question.contains('8') { by_number(0, question) } else { None }
    };
    let (base_url, _) = endpoint(answer).await;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    data::write(&path("scenarios.parquet"), &[scenario("a", None), scenario("b", None)]).unwrap();
    data::write(&path("trajectories.parquet"), &[trajectory("a", "2"), trajectory("b", "8")]).unwrap();
    let (tasks, episodes) = (path("scenarios.parquet"), path("trajectories.parquet"));
    let inputs = [("scenarios", tasks.as_path()), ("trajectories", episodes.as_path())];
    let params =
        json!({"weights": {"relative": 1.0}, "base_url": base_url, "model": "m", "orders": 1, "retries": 0});
    let (context, rows) = context("judge", &inputs, &path("out"), params);
    assert_eq!(testing::run(&context).await.unwrap_err().code(), "llm::status");
    assert_eq!(rows.finished().unwrap().len(), 1);
}

#[tokio::test]
async fn labels_of_people_score_the_groups_that_have_some() {
    let scenarios = [scenario("a", None), scenario("b", None), scenario("c", Some("1"))];
    let attempts = [("a", "1"), ("a", "2"), ("a", "3"), ("b", "1"), ("b", "2"), ("c", "1"), ("c", "2")];
    let trajectories = attempts.map(|(id, answer)| trajectory(id, answer));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("labels.parquet");
    let label = |id: &str, right| Label { trajectory_id: id.into(), right, ..Label::default() };
    let labels =
        [label("a/1", Some(true)), label("a/2", Some(false)), label("b/1", None), label("x", Some(true))];
    data::write(&file, &labels).unwrap();
    let params = json!({"weights": {"labels": 0.5}, "labels_file": file, "unfinished_cost": 0.0});
    let found = judged(&scenarios, &trajectories, params.clone()).await;
    // Of group a, the episode without a label has no reward; b has only a note, and c its known answer.
    assert_eq!(
        found.rewards,
        [
            r#"a/1 0.5 {"labels":0.5}"#,
            r#"a/2 0 {"labels":0.0}"#,
            r#"c/1 1 {"truth":1.0,"efficiency":0.0}"#,
            r#"c/2 0 {"truth":0.0}"#,
        ]
    );
    assert!(judged(&scenarios[..1], &trajectories[..3], params.clone()).await.result.is_ok());
    let nothing = judged(&scenarios[1..2], &trajectories[3..5], params).await.result.unwrap_err();
    assert_eq!(nothing.code(), "judge::nothing_to_go_by");
    let no_file =
        judged(&scenarios, &trajectories, json!({"weights": {"labels": 1.0}})).await.result.unwrap_err();
    assert_eq!(no_file.code(), "judge::no_model");
}

/// An episode that called a tool with success before it answered.
fn looked(scenario: &str, sample: usize, answer: &str) -> Trajectory {
    let call = json!({"id": "a", "function": {"name": "t", "arguments": {}}});
    let messages = json!([
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "x"},
        {"role": "assistant", "content": answer},
    ]);
    Trajectory {
        id: format!("{scenario}/{sample}"),
        messages: serde_json::from_value(messages).unwrap(),
        ..trajectory(scenario, answer)
    }
}

#[tokio::test]
async fn attempts_that_agree_are_rewarded_where_nobody_knows_the_answer() {
    let scenarios = [scenario("a", None), scenario("b", None)];
    let answers = [("a", "5"), ("a", "5"), ("a", "6"), ("b", "1"), ("b", "2"), ("b", "3")];
    let trajectories: Vec<Trajectory> =
        answers.iter().enumerate().map(|(sample, (id, answer))| looked(id, sample, answer)).collect();
    let params = json!({"weights": {"consensus": 3.0}, "unfinished_cost": 0.0});
    let found = judged(&scenarios, &trajectories, params.clone()).await;
    assert_eq!(
        found.rewards,
        [r#"a/0 2 {"consensus":2.0}"#, r#"a/1 2 {"consensus":2.0}"#, r#"a/2 1 {"consensus":1.0}"#],
        "b has no majority"
    );
    assert!(!found.result.unwrap().contains_key("trust"), "no answer is known");
    let none = judged(&scenarios[1..], &trajectories[3..], params).await;
    assert!(none.result.is_ok() && none.rewards.is_empty(), "an iteration without agreement teaches nothing");
}

#[tokio::test]
async fn trust_is_measured_on_known_answers_that_the_reward_does_not_see() {
    let right: [&[&str]; 2] = [&["5", "5", "5", "6"], &["6", "6", "6", "5"]];
    let measured = async |wrong: usize| {
        let ids: Vec<String> = (0..40).map(|index| format!("s{index:02}")).collect();
        let scenarios: Vec<Scenario> = ids.iter().map(|id| scenario(id, Some("5"))).collect();
        let of = |(index, id): (usize, &String)| -> Vec<Trajectory> {
            let answers = right[usize::from(index < wrong)].iter().enumerate();
            answers.map(|(sample, answer)| looked(id, sample, answer)).collect()
        };
        let trajectories: Vec<Trajectory> = ids.iter().enumerate().flat_map(of).collect();
        let params = json!({"weights": {"truth": 0.0, "consensus": 1.0}, "veto": false});
        judged(&scenarios, &trajectories, params).await.result.unwrap()
    };
    let mostly = measured(4).await;
    assert_eq!(mostly["trust_tasks"], 40.0);
    // Of right attempts 108 of 112 are in a majority, of wrong ones 12 of 48.
    assert!((mostly["trust"] - (108.0 / 112.0 - 12.0 / 48.0)).abs() < 1e-12);
    assert_eq!(mostly["audit.consensus.youden"], mostly["trust"]);
    let half = measured(20).await;
    assert!(half["trust"].abs() < 1e-12 && half["trust_high"] < 0.3, "{half:?}");
}
