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
        provider: Provider::Openai,
        model: "judge".into(),
        api_key_env: None,
        temperature: 0.0,
        max_tokens: 100,
        timeout: Duration::from_secs(5),
        retries: 2,
        concurrency: 2,
        requests_per_minute: None,
        tokens_per_minute: None,
        budget: None,
    }
}

async fn say_hi(client: &Client) -> Result<String, LlmError> {
    let messages = [Message::user("hi")];
    Ok(client.complete(&Request { messages: &messages, ..Request::default() }).await?.text)
}

const HELLO: &str = r#"{"choices": [{"message": {"role": "assistant", "content": "hello"}}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 2}}"#;

#[tokio::test]
async fn a_reply_is_read_and_its_tokens_are_counted() {
    let client = client(&[(200, HELLO)]).await;
    assert_eq!(say_hi(&client).await.unwrap(), "hello");
    assert_eq!(client.usage(), Usage { requests: 1, prompt_tokens: 7, completion_tokens: 2 });
}

#[tokio::test]
async fn a_busy_endpoint_is_retried_and_a_refusal_is_not() {
    let busy = client(&[(429, "slow down"), (503, ""), (200, HELLO)]).await;
    assert_eq!(say_hi(&busy).await.unwrap(), "hello");
    assert_eq!(busy.usage().requests, 3);

    let refusing = client(&[(401, "no such key")]).await;
    let error = say_hi(&refusing).await.unwrap_err();
    assert_eq!(error.code(), "llm::status");
    assert!(error.to_string().ends_with("answered with status 401: no such key"), "{error}");
    assert_eq!(refusing.usage().requests, 1);
}

#[tokio::test]
async fn retries_of_a_busy_endpoint_are_limited() {
    let client = client(&[(500, "broken")]).await;
    assert_eq!(say_hi(&client).await.unwrap_err().code(), "llm::status");
    assert_eq!(client.usage().requests, 3);
}

#[tokio::test]
async fn a_reply_of_another_kind_is_an_error() {
    for body in ["<html>", "{}", r#"{"choices": []}"#] {
        let client = client(&[(200, body)]).await;
        assert_eq!(say_hi(&client).await.unwrap_err().code(), "llm::reply", "{body}");
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

/// A client of this provider, and the requests that its endpoint got: headers and body. It answers with these bodies.
async fn recorded(
    provider: Provider,
    replies: &[(u16, &str)],
) -> (Client, std::sync::Arc<Mutex<Vec<(String, HeaderMap, Value)>>>) {
    let replies: VecDeque<(u16, String)> =
        replies.iter().map(|(status, body)| (*status, (*body).to_owned())).collect();
    let state = std::sync::Arc::new(Mutex::new(replies));
    let requests = std::sync::Arc::new(Mutex::new(Vec::new()));
    let seen = requests.clone();
    let answer = move |uri: axum::http::Uri, headers: HeaderMap, body: String| {
        seen.lock().unwrap().push((uri.path().to_owned(), headers, serde_json::from_str(&body).unwrap()));
        let (status, body) = state.lock().unwrap().pop_front().expect("another reply");
        async move { (StatusCode::from_u16(status).unwrap(), [("retry-after", "0")], body) }
    };
    let app = Router::new().fallback(answer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, app).await });
    let endpoint =
        Endpoint { provider, api_key_env: Some("PATH".into()), ..endpoint(&format!("http://{address}/v1")) };
    (Client::new(endpoint).unwrap(), requests)
}

fn conversation() -> [Message; 3] {
    [Message::user("rules\n<task>do it"), Message::assistant("{"), Message::user("again")]
}

fn schema() -> Value {
    serde_json::json!({
        "type": "object",
        "properties": {"scores": {"type": "array", "items": {"type": "object", "additionalProperties": false}}},
        "additionalProperties": false,
    })
}

#[tokio::test]
async fn each_provider_gets_its_own_format_and_its_reply_is_read() {
    let cases = [
        (
            Provider::Openai,
            r#"{"choices": [{"message": {"content": "hello"}, "finish_reason": "length"}], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}"#,
            "/v1/chat/completions",
            "authorization",
            serde_json::json!({
                "model": "judge", "messages": conversation(), "max_tokens": 100, "temperature": 0.0,
                "response_format": {"type": "json_schema", "json_schema": {"name": "scores", "strict": true, "schema": schema()}},
            }),
            Usage { requests: 1, prompt_tokens: 7, completion_tokens: 2 },
        ),
        (
            Provider::Anthropic,
            r#"{"content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}], "stop_reason": "max_tokens",
                "usage": {"input_tokens": 7, "cache_creation_input_tokens": 10, "cache_read_input_tokens": 20, "output_tokens": 2}}"#,
            "/v1/messages",
            "x-api-key",
            serde_json::json!({
                "model": "judge", "max_tokens": 100, "temperature": 0.0,
                "messages": [
                    {"role": "user", "content": [
                        {"type": "text", "text": "rules", "cache_control": {"type": "ephemeral"}},
                        {"type": "text", "text": "\n<task>do it", "cache_control": {"type": "ephemeral"}}]},
                    {"role": "assistant", "content": [{"type": "text", "text": "{"}]},
                    {"role": "user", "content": [{"type": "text", "text": "again"}]},
                ],
                "tools": [{"name": "scores", "input_schema": schema()}],
                "tool_choice": {"type": "tool", "name": "scores"},
            }),
            Usage { requests: 1, prompt_tokens: 7 + 13 + 2, completion_tokens: 2 },
        ),
        (
            Provider::Gemini,
            r#"{"candidates": [{"content": {"parts": [{"text": "hmm", "thought": true}, {"text": "hello"}]}, "finishReason": "MAX_TOKENS"}],
                "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 2, "thoughtsTokenCount": 5}}"#,
            "/v1/models/judge:generateContent",
            "x-goog-api-key",
            serde_json::json!({
                "contents": [
                    {"role": "user", "parts": [{"text": "rules\n<task>do it"}]},
                    {"role": "model", "parts": [{"text": "{"}]},
                    {"role": "user", "parts": [{"text": "again"}]},
                ],
                "generationConfig": {
                    "maxOutputTokens": 100, "temperature": 0.0, "responseMimeType": "application/json",
                    "responseSchema": {
                        "type": "object",
                        "properties": {"scores": {"type": "array", "items": {"type": "object"}}},
                    },
                },
            }),
            Usage { requests: 1, prompt_tokens: 7, completion_tokens: 7 },
        ),
    ];
    let (messages, schema) = (conversation(), schema());
    for (provider, reply, path, key, body, usage) in cases {
        let (client, requests) = recorded(provider, &[(200, reply)]).await;
        let request =
            Request { messages: &messages, schema: Some(&schema), shared: 5, is_repeated: true, draw: 0 };
        let reply = client.complete(&request).await.unwrap();
        assert_eq!((reply.text.as_str(), reply.is_cut), ("hello", true), "{provider:?}");
        assert_eq!(client.usage(), usage, "{provider:?}");
        let requests = requests.lock().unwrap();
        let (to, headers, sent) = &requests[0];
        assert_eq!((to.as_str(), sent), (path, &body), "{provider:?}");
        assert!(
            headers[key].to_str().unwrap().ends_with(std::env::var("PATH").unwrap().trim()),
            "{provider:?}"
        );
        assert_eq!(headers.contains_key("authorization"), provider == Provider::Openai, "{provider:?}");
    }
}

#[tokio::test]
async fn the_arguments_of_a_forced_call_are_the_reply_of_anthropic() {
    let reply = r#"{"content": [{"type": "tool_use", "name": "scores", "input": {"scores": []}}], "stop_reason": "tool_use"}"#;
    let (client, _) = recorded(Provider::Anthropic, &[(200, reply)]).await;
    assert_eq!(say_hi(&client).await.unwrap(), r#"{"scores":[]}"#);
}

#[tokio::test]
async fn a_model_that_declines_has_said_nothing() {
    for (provider, reply) in [
        (Provider::Openai, r#"{"choices": [{"message": {"content": null, "refusal": "no"}}]}"#),
        (Provider::Anthropic, r#"{"content": [], "stop_reason": "refusal"}"#),
        (Provider::Gemini, r#"{"promptFeedback": {"blockReason": "SAFETY"}}"#),
        (Provider::Gemini, r#"{"candidates": [{"finishReason": "SAFETY"}]}"#),
    ] {
        let (client, _) = recorded(provider, &[(200, reply)]).await;
        assert_eq!(say_hi(&client).await.unwrap(), "", "{reply}");
    }
    for provider in [Provider::Anthropic, Provider::Gemini] {
        let (client, _) = recorded(provider, &[(200, "{}")]).await;
        assert_eq!(say_hi(&client).await.unwrap_err().code(), "llm::reply", "{provider:?}");
    }
}

#[tokio::test]
async fn what_an_endpoint_does_not_support_is_left_out_once_and_for_all() {
    let refusals = [
        (400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."),
        (400, "'temperature' does not support 0.0 with this model"),
        (422, "response_format: extra fields not permitted"),
        (200, HELLO),
        (200, HELLO),
    ];
    let (client, requests) = recorded(Provider::Openai, &refusals).await;
    let (messages, schema) = (conversation(), schema());
    let request = Request { messages: &messages, schema: Some(&schema), ..Request::default() };
    for _ in 0..2 {
        assert_eq!(client.complete(&request).await.unwrap().text, "hello");
    }
    let requests = requests.lock().unwrap().clone();
    let keys: Vec<String> = requests
        .iter()
        .map(|(_, _, body)| body.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(
        keys,
        [
            "model messages max_tokens temperature response_format",
            "model messages max_completion_tokens temperature response_format",
            "model messages max_completion_tokens response_format",
            "model messages max_completion_tokens",
            "model messages max_completion_tokens",
        ]
    );

    let again = [(400, "no such schema"), (400, "no such schema")];
    let (client, requests) = recorded(Provider::Openai, &again).await;
    let error = client.complete(&request).await.unwrap_err();
    assert_eq!((error.code(), requests.lock().unwrap().len()), ("llm::status", 2), "not in a circle");
}

#[tokio::test]
async fn a_refusal_for_another_reason_changes_no_other_request() {
    // The first says nothing of a feature. The second does, but leaving it out does not help.
    let refusals = [(400, "the prompt is too long"), (400, "bad schema"), (400, "no"), (200, HELLO)];
    let (client, requests) = recorded(Provider::Openai, &refusals).await;
    let (messages, schema) = (conversation(), schema());
    let request = Request { messages: &messages, schema: Some(&schema), ..Request::default() };
    for _ in 0..2 {
        let error = client.complete(&request).await.unwrap_err();
        assert!(error.is_about_request() && !client.has_replied(), "{error}");
    }
    assert_eq!(client.complete(&request).await.unwrap().text, "hello");
    assert!(client.has_replied());
    let requests = requests.lock().unwrap();
    let structured: Vec<bool> =
        requests.iter().map(|(_, _, body)| body.get("response_format").is_some()).collect();
    assert_eq!(structured, [true, true, false, true]);
}

#[tokio::test]
async fn a_server_error_may_be_billed_and_another_refusal_is_not() {
    // A request reserves (2 + 1000 + 100) millionths.
    let budget = Budget { dollars: 0.0012, prices: Prices { prompt: 1.0, completion: 1.0 } };
    for (status, code) in [(500, "llm::ceiling"), (408, "llm::ceiling"), (429, "llm::status")] {
        let template = client(&[(status, "no")]).await;
        let client = Client::new(Endpoint { budget: Some(budget), ..template.endpoint.clone() }).unwrap();
        assert_eq!(say_hi(&client).await.unwrap_err().code(), code, "{status}");
    }
}

#[test]
fn the_provider_follows_from_the_host() {
    for (base_url, provider) in [
        ("https://api.openai.com/v1", Provider::Openai),
        ("https://openrouter.ai/api/v1", Provider::Openai),
        ("http://localhost:11434/v1", Provider::Openai),
        ("https://api.anthropic.com/v1", Provider::Anthropic),
        ("https://generativelanguage.googleapis.com/v1beta", Provider::Gemini),
        ("https://generativelanguage.googleapis.com/v1beta/openai/", Provider::Openai),
        ("nonsense", Provider::Openai),
    ] {
        assert_eq!(Provider::of(base_url), provider, "{base_url}");
    }
}

/// A server that reads a request and then does this with each connection, one after another.
async fn raw(replies: Vec<Raw>) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    tokio::spawn(async move {
        for reply in replies {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut buffer = vec![0; 1 << 16];
            let _ = stream.read(&mut buffer).await;
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
            let _ = match reply {
                Raw::Disconnect => Ok(()),
                Raw::Truncate => {
                    stream
                        .write_all(format!("{head}content-length: 500\r\n\r\n{{\"choices\"").as_bytes())
                        .await
                }
                Raw::Whole => {
                    let text = format!("{head}content-length: {}\r\n\r\n{HELLO}", HELLO.len());
                    stream.write_all(text.as_bytes()).await
                }
                Raw::Drip => {
                    let _ = stream.write_all(format!("{head}content-length: 500\r\n\r\n").as_bytes()).await;
                    for _ in 0..500 {
                        if stream.write_all(b" ").await.is_err() {
                            break;
                        }
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                    Ok(())
                }
                Raw::Endless => {
                    let _ = stream.write_all(format!("{head}\r\n").as_bytes()).await;
                    while stream.write_all(&[b' '; 1 << 16]).await.is_ok() {}
                    Ok(())
                }
            };
        }
    });
    url
}

#[derive(Clone, Copy)]
enum Raw {
    Disconnect,
    Truncate,
    Drip,
    Endless,
    Whole,
}

#[tokio::test]
async fn a_connection_that_breaks_or_drips_is_retried_and_an_endless_reply_is_an_error() {
    let client = |url: String| {
        Client::new(Endpoint { timeout: Duration::from_millis(400), retries: 1, ..endpoint(&url) }).unwrap()
    };
    for (fault, code) in [
        (Raw::Disconnect, "llm::unreachable"),
        (Raw::Truncate, "llm::unreachable"),
        (Raw::Drip, "llm::timeout"),
    ] {
        let recovering = client(raw(vec![fault, Raw::Whole]).await);
        assert_eq!(say_hi(&recovering).await.unwrap(), "hello", "{code}");
        assert_eq!(recovering.usage().requests, 2);
        let broken = client(raw(vec![fault, fault]).await);
        assert_eq!(say_hi(&broken).await.unwrap_err().code(), code);
    }
    let endless = client(raw(vec![Raw::Endless]).await);
    let error = say_hi(&endless).await.unwrap_err();
    assert!(matches!(error.code(), "llm::reply" | "llm::timeout" | "llm::unreachable"), "{error}");
}

#[tokio::test]
async fn a_reply_that_may_be_billed_counts_in_full_if_it_is_lost() {
    let budget = Budget { dollars: 0.0012, prices: Prices { prompt: 1.0, completion: 1.0 } };
    // A request reserves (2 + 1000 + 100) millionths.
    let with = |url: String, timeout: u64| {
        let timeout = Duration::from_millis(timeout);
        Client::new(Endpoint { timeout, budget: Some(budget), ..endpoint(&url) }).unwrap()
    };
    let lost = with(raw(vec![Raw::Drip, Raw::Whole]).await, 300);
    assert_eq!(say_hi(&lost).await.unwrap_err().code(), "llm::ceiling");
    let paid = with(raw(vec![Raw::Whole, Raw::Whole]).await, 5000);
    for _ in 0..2 {
        assert_eq!(say_hi(&paid).await.unwrap(), "hello", "9 millionths each");
    }
}

#[tokio::test]
async fn requests_per_minute_are_kept() {
    let (template, requests) = recorded(Provider::Openai, &[(200, HELLO); 4]).await;
    let endpoint = template.endpoint.clone();
    drop(template);
    let client =
        Client::new(Endpoint { requests_per_minute: Some(600), concurrency: 8, ..endpoint }).unwrap();
    let begun = std::time::Instant::now();
    let replies = futures::future::join_all((0..4).map(|_| say_hi(&client))).await;
    assert!(replies.iter().all(Result::is_ok));
    assert!(begun.elapsed() >= Duration::from_millis(300), "{:?}", begun.elapsed());
    assert_eq!(requests.lock().unwrap().len(), 4);
}
