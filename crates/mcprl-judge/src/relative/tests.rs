use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use axum::{Json, Router, extract::State, routing::post};

use super::*;
use crate::{
    data::{Scenario, Trajectory},
    hash::Digest,
    llm::{Client, tests::endpoint},
};

const PROMPT: &str = "{{ task }}{% for a in attempts %}\n<{{ a.id }}>{{ a.conversation }}{% endfor %}";

/// The requests so far.
type Requests = Arc<Mutex<Vec<String>>>;
type Answer = fn(usize, &str) -> String;

/// A judge that answers the n-th question with `answer`.
async fn judge(answer: Answer, orders: u32) -> (Relative, Requests) {
    let requests = Requests::default();
    let reply = move |State(requests): State<Requests>, Json(body): Json<Value>| async move {
        let question = body["messages"][0]["content"].as_str().unwrap().to_owned();
        let mut requests = requests.lock().unwrap();
        requests.push(question.clone());
        Json(json!({"choices": [{"message": {"content": answer(requests.len(), &question)}}]}))
    };
    let app = Router::new().route("/chat/completions", post(reply)).with_state(requests.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base_url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async { axum::serve(listener, app).await });
    let model = Arc::new(Client::new(endpoint(&base_url)).unwrap());
    let model = JudgeModel {
        model,
        attempts: 2,
        repeats: 1,
        structured: true,
        shown_bytes: 10_000,
        tools: Vec::new(),
    };
    (Relative { model, prompt: PROMPT.into(), orders, seed: 7 }, requests)
}

/// Scores each attempt by the digit in its conversation, in reverse order of the names.
fn fair(_: usize, question: &str) -> String {
    let score = |line: &str| {
        let (id, conversation) = line.strip_prefix('<')?.split_once('>')?;
        let digit: f64 = conversation.chars().find(char::is_ascii_digit)?.to_digit(10)?.into();
        Some(json!({"id": id, "score": digit / 10.0, "explanation": format!("the digit is {digit}")}))
    };
    let scores: Vec<Value> = question.lines().filter_map(score).rev().collect();
    format!("Here:\n```json\n{}\n```", json!({"scores": scores}))
}

#[derive(Default)]
struct MemoryCache(Mutex<BTreeMap<Digest, String>>);

impl ReplyCache for MemoryCache {
    fn get(&self, question: &Digest) -> Option<String> {
        self.0.lock().unwrap().get(question).cloned()
    }

    fn put(&self, question: &Digest, reply: &str) -> crate::error::Result<()> {
        self.0.lock().unwrap().insert(*question, reply.to_owned());
        Ok(())
    }
}

async fn judged(judge: &Relative, cache: &MemoryCache, digits: &[u32]) -> crate::error::Result<Vec<f64>> {
    let scenario =
        Scenario { id: "s".into(), task: "Do it.".into(), check: "none".into(), ..Scenario::default() };
    let trajectory = |(index, digit): (usize, &u32)| {
        Trajectory {
        messages: serde_json::from_value(json!([
            {"role": "system", "content": "s"},
            {"role": "assistant", "content": digit.to_string(), "tool_calls": [{"id": format!("id-{index}"), "name": "t"}]},
            {"role": "tool", "tool_call_id": format!("id-{index}"), "content": "ok"},
        ]))
        .unwrap(),
        ..Trajectory::default()
    }
    };
    let trajectories: Vec<_> = digits.iter().enumerate().map(trajectory).collect();
    let group: Vec<_> =
        trajectories.iter().map(|trajectory| JudgedTrajectory { scenario: &scenario, trajectory }).collect();
    let scores = judge.judge(&group, cache).await?;
    Ok(scores.scores.into_iter().flatten().map(|score| score.score).collect())
}

#[tokio::test]
async fn scores_are_assigned_to_their_attempts_in_any_order() {
    let (judge, requests) = judge(fair, 2).await;
    let scores = judged(&judge, &MemoryCache::default(), &[1, 9, 4, 6]).await.unwrap();
    assert_eq!(scores, [0.1, 0.9, 0.4, 0.6]);
    let requests = requests.lock().unwrap();
    assert!(requests.len() == 2 && requests[0] != requests[1], "each order is a separate request");
    assert!(!requests[0].contains("system"));
}

#[tokio::test]
async fn attempts_that_differ_only_in_call_ids_are_shown_once_and_get_the_same_score() {
    let (judge, requests) = judge(fair, 1).await;
    assert_eq!(judged(&judge, &MemoryCache::default(), &[5, 3, 5]).await.unwrap(), [0.5, 0.3, 0.5]);
    let requests = requests.lock().unwrap();
    assert_eq!(requests[0].matches("assistant").count(), 2);
    assert!(!requests[0].contains("id-"), "{}", requests[0]);
}

#[tokio::test]
async fn a_question_is_asked_only_once() {
    let (judge, requests) = judge(fair, 2).await;
    let cache = MemoryCache::default();
    let first = judged(&judge, &cache, &[2, 8]).await.unwrap();
    assert_eq!(judged(&judge, &cache, &[2, 8]).await.unwrap(), first);
    assert_eq!(requests.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn an_unusable_reply_is_retried_up_to_the_limit() {
    let second_time = |time: usize, question: &str| match time {
        1 => "I like the first one.".into(),
        _ => fair(time, question),
    };
    let (judge, _) = self::judge(second_time, 1).await;
    assert_eq!(judged(&judge, &MemoryCache::default(), &[2, 8]).await.unwrap(), [0.2, 0.8]);

    let (judge, requests) = self::judge(|_, _| "{\"scores\": [{\"id\": 1, \"score\": 1}]}".into(), 1).await;
    let error = judged(&judge, &MemoryCache::default(), &[2, 8]).await.unwrap_err();
    assert_eq!(error.code(), "judge::reply");
    assert!(error.to_string().ends_with("after 2 attempts: 2 is not scored"), "{error}");
    assert_eq!(requests.lock().unwrap().len(), 2);
}
