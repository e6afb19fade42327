//! Conversations whose turns come from an endpoint.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Json, Router, extract::State, http::StatusCode, routing::post};
use serde_json::{Map, Value, json};

use crate::{
    agent::{
        AgentSettings, EndpointAgent, EndpointSampling, Episode, History, ToolServer, Toolbox,
        dialogue::{Dialogue as _, Hooks, Turned},
        endpoint::EndpointConversation,
        endpoint_episode, testing,
    },
    data::End,
    llm::{Client, Endpoint, Provider},
    mcp::{McpError, Outcome},
};

/// Replies in order, and the requests that got them.
type Script = Arc<Mutex<(Vec<(u16, Value)>, Vec<Value>)>>;

async fn reply(State(script): State<Script>, Json(request): Json<Value>) -> (StatusCode, Json<Value>) {
    let (replies, requests) = &mut *script.lock().unwrap();
    requests.push(request);
    let (status, body) = replies.remove(0);
    (StatusCode::from_u16(status).unwrap(), Json(body))
}

/// A message of the assistant, with these calls.
fn turn(text: &str, calls: &[(&str, &str)]) -> (u16, Value) {
    let call = |(index, (name, arguments)): (usize, &(&str, &str))| {
        let function = json!({"name": name, "arguments": arguments});
        json!({"id": format!("c{index}"), "type": "function", "function": function})
    };
    let calls: Vec<Value> = calls.iter().enumerate().map(call).collect();
    let message = json!({"role": "assistant", "content": text, "tool_calls": calls, "reasoning": "hm"});
    let usage = json!({"prompt_tokens": 50, "completion_tokens": 5});
    (200, json!({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}))
}

async fn agent(replies: Vec<(u16, Value)>) -> (Arc<EndpointAgent>, Script) {
    let script: Script = Arc::new(Mutex::new((replies, Vec::new())));
    let app = Router::new().route("/v1/chat/completions", post(reply)).with_state(script.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    tokio::spawn(async { axum::serve(listener, app).await });
    let settings = AgentSettings { strict_calls: false, ..testing::agent().settings.clone() };
    let agent = EndpointAgent {
        client: Client::new(Endpoint {
            base_url: url,
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
        })
        .unwrap()
        .into(),
        system: "Be brief.".into(),
        toolbox: Toolbox::new(&testing::tools()).unwrap(),
        settings,
    };
    (Arc::new(agent), script)
}

struct Notes;

impl ToolServer for Notes {
    async fn call(&self, name: &str, _: Map<String, Value>) -> Result<Outcome, McpError> {
        match name {
            "crash" => Err(McpError::PoolClosed),
            _ => Ok(Outcome { text: "milk".into(), is_error: false }),
        }
    }
}

struct NoHooks;

impl Hooks for NoHooks {}

const GREEDY: EndpointSampling = EndpointSampling { temperature: 0.0, seed: Some(7) };

async fn play(replies: Vec<(u16, Value)>) -> (Episode, Vec<Value>) {
    let (agent, script) = agent(replies).await;
    let episode = endpoint_episode(&agent, &Notes, "What is noted?", GREEDY).await.unwrap();
    let requests = std::mem::take(&mut script.lock().unwrap().1);
    (episode, requests)
}

#[tokio::test]
async fn an_episode_sends_tools_and_results_and_ends_with_complete_task() {
    let (episode, requests) = play(vec![
        turn("Let me look.", &[("get_note", "{\"text\": \"a\"}"), ("get_note", "")]),
        turn("", &[("complete_task", "{\"answer\": \"milk\"}")]),
    ])
    .await;
    assert_eq!((episode.end, episode.answer.as_deref()), (End::Completed, Some("milk")));
    let History { turns, tools, counted_tokens, tokens, .. } = &episode.history;
    assert_eq!((*turns, tools.len(), *counted_tokens, tokens.len()), (2, 2, Some(10), 0));
    let first = &requests[0];
    assert_eq!(
        (&first["temperature"], &first["seed"], &first["max_tokens"]),
        (&json!(0.0), &json!(7), &json!(200))
    );
    assert!(first["tools"].as_array().unwrap().iter().all(|tool| tool["type"] == "function"));
    let roles = |request: &Value| -> Vec<String> {
        let messages = request["messages"].as_array().unwrap().iter();
        messages.map(|message| message["role"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(roles(first), ["system", "user"]);
    assert_eq!(roles(&requests[1]), ["system", "user", "assistant", "tool", "tool"]);
    let assistant = &requests[1]["messages"][2];
    assert_eq!(
        assistant["tool_calls"][0]["function"]["arguments"], "{\"text\":\"a\"}",
        "a string, as it came"
    );
    assert!(assistant.get("reasoning_content").is_none(), "an endpoint gets no reasoning back");
    assert_eq!(requests[1]["messages"][3], json!({"role": "tool", "tool_call_id": "c0", "content": "milk"}));
    assert_eq!(episode.history.messages[2].reasoning.as_deref(), Some("hm"), "the trace has it");
}

#[tokio::test]
async fn calls_that_cannot_be_made_get_an_error_and_the_episode_goes_on() {
    let (episode, requests) = play(vec![
        turn("", &[("get_note", "{\"text\": "), ("no_such_tool", "{}"), ("get_note", "{\"text\": 7}")]),
        turn("Nothing.", &[]),
        turn("Nothing.", &[]),
    ])
    .await;
    let results = |index: usize| requests[1]["messages"][index]["content"].as_str().unwrap().to_owned();
    assert!(results(3).starts_with("error: the tool call is malformed"), "{}", results(3));
    assert!(results(4).contains("no_such_tool") && results(5).starts_with("error: "), "{}", results(5));
    assert_eq!((episode.history.tools.len(), episode.history.parse_failures), (0, 1));
    let reminder = &requests[2]["messages"][7];
    assert_eq!(reminder["role"], "user", "the first turn without a call gets a reminder");
    assert_eq!((episode.end, episode.answer.as_deref()), (End::Completed, Some("Nothing.")));
}

#[tokio::test]
async fn calls_that_the_endpoint_leaves_in_the_text_are_read() {
    let text = "<think>hm</think>Let me look.\n<tool_call>\n{\"name\": \"get_note\", \"arguments\": {\"text\": \"a\"}}\n</tool_call>";
    let (episode, requests) =
        play(vec![turn(text, &[]), turn("", &[("complete_task", "{\"answer\": \"milk\"}")])]).await;
    assert_eq!((episode.end, episode.answer.as_deref()), (End::Completed, Some("milk")));
    let sent = &requests[1]["messages"];
    assert_eq!((&sent[2]["content"], &sent[3]["content"]), (&json!("Let me look."), &json!("milk")));
    assert_eq!(
        sent[2]["tool_calls"][0]["function"],
        json!({"name": "get_note", "arguments": "{\"text\":\"a\"}"})
    );
    assert!(sent[2]["tool_calls"][0].get("form").is_none());
    assert_eq!((episode.history.loose_calls, episode.history.tools.len()), (1, 1), "not by protocol");
}

#[tokio::test]
async fn limits_and_a_full_context_end_an_episode() {
    let (mut status, mut cut) = turn("and so on", &[]);
    cut["choices"][0]["finish_reason"] = "length".into();
    cut["usage"]["completion_tokens"] = 200.into();
    let (episode, _) = play(vec![(status, cut)]).await;
    assert_eq!(episode.end, End::OutOfTurnTokens);

    status = 400;
    let full = json!({"error": {"code": "context_length_exceeded", "message": "too long"}});
    let (episode, _) = play(vec![turn("", &[("get_note", "{}")]), (status, full)]).await;
    assert_eq!((episode.end, episode.answer), (End::OutOfTokens, None));

    let (mut status, mut large) = turn("", &[("get_note", "{}")]);
    large["usage"]["prompt_tokens"] = 5000.into();
    let (episode, requests) = play(vec![(status, large)]).await;
    assert_eq!((episode.end, requests.len()), (End::OutOfTokens, 1), "max_episode_tokens is 4000");

    status = 401;
    let (agent, _) = agent(vec![(status, json!({"error": "who?"}))]).await;
    let error = endpoint_episode(&agent, &Notes, "x", GREEDY).await.unwrap_err();
    assert_eq!(error.code(), "llm::status");
}

#[tokio::test]
async fn a_turn_that_was_not_finished_is_asked_for_again() {
    let (agent, script) = agent(vec![
        turn("", &[("crash", "{}")]),
        turn("Hello.", &[]),
        turn("", &[("crash", "{}")]),
        turn("Bye.", &[]),
    ])
    .await;
    let mut conversation = EndpointConversation::new(agent, "Hi", GREEDY);
    let lost = conversation.turn(&Notes, &mut NoHooks, 100, usize::MAX).await.unwrap();
    assert!(matches!(lost, Turned::Lost(_)));
    let text = conversation.turn(&Notes, &mut NoHooks, 100, usize::MAX).await.unwrap();
    assert!(matches!(text, Turned::Text(text) if text == "Hello."));
    assert!(conversation.say("Look."));
    conversation.turn(&Notes, &mut NoHooks, 100, usize::MAX).await.unwrap();
    assert!(conversation.say("Never mind."), "in place of the message that was not answered");
    conversation.turn(&Notes, &mut NoHooks, 100, usize::MAX).await.unwrap();
    let requests = &script.lock().unwrap().1;
    let said = |request: &Value| -> Vec<String> {
        let messages = request["messages"].as_array().unwrap().iter().skip(1);
        messages.map(|message| message["content"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(said(&requests[1]), ["Hi"]);
    assert_eq!(said(&requests[3]), ["Hi", "Hello.", "Never mind."]);
    assert_eq!(conversation.sampled_tokens(), 20);
}
