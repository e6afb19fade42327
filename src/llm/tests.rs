use std::{collections::VecDeque, sync::Mutex};

use axum::{Router, extract::State, http::HeaderMap, response::IntoResponse, routing::post};

use super::*;
use crate::error::Diagnostic;

/// Status and body of the following replies; the last one repeats.
type Replies = std::sync::Arc<Mutex<VecDeque<(u16, String)>>>;

async fn reply(State(replies): State<Replies>, headers: HeaderMap, body: String) -> impl IntoResponse {
    assert!(headers.get("authorization").is_none(), "no key is configured");
    assert!(body.contains("\"model\":\"judge\""), "{body}");
    let mut replies = replies.lock().unwrap();
    let (status, body) = match replies.len() {
        1 => replies[0].clone(),
        _ => replies.pop_front().unwrap(),
    };
    (StatusCode::from_u16(status).unwrap(), [("retry-after", "0")], body)
}

async fn client(replies: &[(u16, &str)]) -> Client {
    let replies = replies.iter().map(|(status, body)| (*status, (*body).to_owned())).collect();
    let app = Router::new()
        .route("/v1/chat/completions", post(reply))
        .with_state(Replies::new(Mutex::new(replies)));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, app).await });
    Client::new(endpoint(&format!("http://{address}/v1/"))).unwrap()
}

/// An endpoint without a key.
pub fn endpoint(base_url: &str) -> Endpoint {
    Endpoint {
        base_url: base_url.into(),
        model: "judge".into(),
        api_key_env: None,
        temperature: 0.0,
        max_tokens: 100,
        timeout: Duration::from_secs(5),
        retries: 2,
        concurrency: 2,
    }
}

const HELLO: &str = r#"{"choices": [{"message": {"role": "assistant", "content": "hello"}}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 2}}"#;

#[tokio::test]
async fn a_reply_is_read_and_its_tokens_are_counted() {
    let client = client(&[(200, HELLO)]).await;
    assert_eq!(client.complete(&[Message::user("hi")]).await.unwrap(), "hello");
    assert_eq!(client.usage(), Usage { requests: 1, prompt_tokens: 7, completion_tokens: 2 });
}

#[tokio::test]
async fn a_busy_endpoint_is_retried_and_a_refusal_is_not() {
    let busy = client(&[(429, "slow down"), (503, ""), (200, HELLO)]).await;
    assert_eq!(busy.complete(&[Message::user("hi")]).await.unwrap(), "hello");
    assert_eq!(busy.usage().requests, 3);

    let refusing = client(&[(401, "no such key")]).await;
    let error = refusing.complete(&[Message::user("hi")]).await.unwrap_err();
    assert_eq!(error.code(), "llm::status");
    assert!(error.to_string().ends_with("answered with status 401: no such key"), "{error}");
    assert_eq!(refusing.usage().requests, 1);
}

#[tokio::test]
async fn retries_of_a_busy_endpoint_are_limited() {
    let client = client(&[(500, "broken")]).await;
    assert_eq!(client.complete(&[Message::user("hi")]).await.unwrap_err().code(), "llm::status");
    assert_eq!(client.usage().requests, 3);
}

#[tokio::test]
async fn a_reply_of_another_kind_is_an_error() {
    for body in ["<html>", "{}", r#"{"choices": []}"#] {
        let client = client(&[(200, body)]).await;
        assert_eq!(client.complete(&[Message::user("hi")]).await.unwrap_err().code(), "llm::reply", "{body}");
    }
}

#[test]
fn an_invalid_address_or_key_is_refused_before_anything_is_sent() {
    let url = |url: &str| Client::new(endpoint(url)).err().unwrap().code();
    assert_eq!(url("localhost"), "llm::url");
    assert_eq!(url("ftp://host/v1"), "llm::url");
    assert_eq!(url("https://user:secret@host/v1"), "llm::url");
    let with_key = |url: &str| Endpoint { api_key_env: Some("PATH".into()), ..endpoint(url) };
    let error = |url: &str| Client::new(with_key(url)).err().map(|error| error.code());
    assert_eq!(error("http://judge.example.com/v1"), Some("llm::unencrypted"));
    for safe in ["https://judge.example.com/v1", "http://localhost:8000/v1", "http://[::1]:8000/v1"] {
        assert_eq!(error(safe), None, "{safe}");
    }
    assert!(Client::new(endpoint("http://judge.example.com/v1")).is_ok(), "without a key");
    let unset =
        Endpoint { api_key_env: Some("MCPRL_TEST_NO_SUCH_KEY".into()), ..endpoint("https://host/v1") };
    assert_eq!(Client::new(unset).err().unwrap().code(), "llm::no_key");
}
