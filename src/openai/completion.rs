//! Answers as OpenAI's chat completions: whole, or as a stream of chunks.
//!
//! A client adds up what chunks have, so a role, a call's id and its name are sent once, whole.

use std::collections::BTreeMap;

use axum::{
    Json,
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures::{
    Stream, StreamExt,
    future::{BoxFuture, try_join_all},
    stream,
};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::{
    error::ApiError,
    request::ChatRequest,
    turn::{Call, End, Part, Task},
};
use crate::progress::now_ms;

/// What all chunks of an answer have.
#[derive(Debug, Clone)]
pub struct Head {
    id: String,
    created: u64,
    model: String,
    /// The digest of the policy.
    fingerprint: String,
    logprobs: bool,
    include_usage: bool,
}

impl Head {
    pub fn new(request: &ChatRequest, model: String, fingerprint: String) -> Self {
        let id = format!("chatcmpl-{:016x}{:016x}", super::random(), super::random());
        let created = now_ms() / 1000;
        let ChatRequest { logprobs, include_usage, .. } = *request;
        Self { id, created, model, fingerprint, logprobs, include_usage }
    }

    fn object(&self, kind: &str, choices: Value) -> Value {
        let Self { id, created, model, fingerprint, .. } = self;
        json!({
            "id": id, "object": kind, "created": created, "model": model, "system_fingerprint": fingerprint,
            "choices": choices,
        })
    }

    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = self.object("chat.completion.chunk", choices);
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }
}

/// Tokens of a prompt and of its answers.
#[derive(Debug, Clone, Copy, Default)]
pub struct TokenCount {
    pub prompt: usize,
    pub completion: usize,
}

impl TokenCount {
    fn json(self) -> Value {
        let Self { prompt, completion } = self;
        json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion})
    }
}

/// Gets each whole answer: its message, and its tokens with their log-probabilities.
pub type Keep = Box<dyn Fn(Value, &[(u32, f32)]) + Send + Sync>;

/// Where answers come from.
pub enum Answers {
    /// As many as are asked for, sampled by a policy.
    Policy { task: Box<Task>, choices: usize, keep: Option<Keep> },
    /// One of the agent, which sends its calls as they are answered.
    Agent(AgentAnswer),
}

type AgentAnswer =
    Box<dyn FnOnce(UnboundedSender<Part>) -> BoxFuture<'static, Result<(Part, TokenCount), ApiError>> + Send>;

impl Answers {
    /// Sends the parts of all answers, each with its number. The tokens when all have ended.
    async fn send(self, mut send: impl FnMut(usize, Part) + Clone) -> Result<TokenCount, ApiError> {
        match self {
            Self::Agent(answer) => {
                let (sender, mut made) = unbounded_channel();
                let mut answering = answer(sender);
                let ended = loop {
                    tokio::select! {
                        biased;
                        Some(part) = made.recv() => send(0, part),
                        ended = &mut answering => break ended,
                    }
                };
                while let Ok(part) = made.try_recv() {
                    send(0, part);
                }
                let (part, count) = ended?;
                send(0, part);
                Ok(count)
            }
            Self::Policy { task, choices, keep } => {
                let answer = async |choice: usize| {
                    let (mut send, mut count, mut whole) = (send.clone(), 0, Part::default());
                    let each = |part: Part| {
                        if keep.is_some() {
                            whole.add(part.clone());
                        }
                        if let Some(end) = &part.end {
                            count += end.tokens.len();
                            keep.iter().for_each(|keep| keep(message(&whole), &end.tokens));
                        }
                        send(choice, part);
                    };
                    task.answer(choice, each).await.map(|()| count)
                };
                let counts = try_join_all((0..choices).map(answer)).await?;
                Ok(TokenCount { prompt: task.prompt_tokens, completion: counts.iter().sum() })
            }
        }
    }

    /// The texts and log-probabilities of sampled tokens, if there are any.
    fn logprobs(&self) -> impl Fn(&End) -> Value + Send + use<> {
        let chat = match self {
            Self::Policy { task, .. } => Some(task.chat.clone()),
            Self::Agent(_) => None,
        };
        move |end| {
            let ids: Vec<u32> = end.tokens.iter().map(|(token, _)| *token).collect();
            let texts = chat.iter().flat_map(|chat| chat.token_texts(&ids));
            let of_token = |text: String, logprob: f32| json!({"bytes": text.as_bytes(), "token": text, "logprob": logprob});
            let beside = |index: usize| -> Vec<Value> {
                let likeliest = end.likeliest.get(index).into_iter().flatten();
                let alone = |token: u32| chat.iter().flat_map(|chat| chat.token_texts(&[token])).collect();
                likeliest.map(|(token, logprob)| of_token(alone(*token), *logprob)).collect()
            };
            let each = |(index, ((_, logprob), text)): (usize, (&(u32, f32), String))| {
                let mut token = of_token(text, *logprob);
                token["top_logprobs"] = beside(index).into();
                token
            };
            let content: Vec<Value> = end.tokens.iter().zip(texts).enumerate().map(each).collect();
            json!({ "content": content, "refusal": null })
        }
    }
}

/// A whole answer as a message.
fn message(part: &Part) -> Value {
    let Part { reasoning, text, calls, made, .. } = part;
    let content = if text.is_empty() && !calls.is_empty() { Value::Null } else { text.as_str().into() };
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if !reasoning.is_empty() {
        message["reasoning"] = reasoning.as_str().into();
        message["reasoning_content"] = reasoning.as_str().into();
    }
    let call = |Call { id, name, arguments }: &Call| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    if !calls.is_empty() {
        message["tool_calls"] = calls.iter().map(call).collect();
    }
    if !made.is_empty() {
        message["mcprl_calls"] = made.as_slice().into();
    }
    message
}

/// Answers a request, as a stream or whole.
///
/// # Errors
/// If the engine or the server fails before anything is sent.
pub async fn respond(
    stream: bool,
    head: Head,
    answers: Answers,
    done: impl FnOnce(Option<TokenCount>) + Send + 'static,
) -> Result<Response, ApiError> {
    match stream {
        true => Ok(streamed(head, answers, done)),
        false => whole(head, answers, done).await,
    }
}

/// The whole answers to a request.
async fn whole(
    head: Head,
    answers: Answers,
    done: impl FnOnce(Option<TokenCount>),
) -> Result<Response, ApiError> {
    let logprobs_of = answers.logprobs();
    let (sender, mut receiver) = unbounded_channel();
    let sent = answers.send(move |choice, part| _ = sender.send((choice, part))).await;
    done(sent.as_ref().ok().copied());
    let count = sent?;
    let mut parts: Vec<Part> = Vec::new();
    while let Some((choice, part)) = receiver.recv().await {
        parts.resize(parts.len().max(choice + 1), Part::default());
        parts[choice].add(part);
    }
    let choice = |(index, part): (usize, Part)| {
        let logprobs = part.end.as_ref().filter(|_| head.logprobs).map(&logprobs_of);
        let reason = part.end.as_ref().map(|end| end.reason);
        json!({"index": index, "message": message(&part), "finish_reason": reason, "logprobs": logprobs})
    };
    let choices = parts.into_iter().enumerate().map(choice).collect();
    let mut object = head.object("chat.completion", choices);
    object["usage"] = count.json();
    Ok(Json(object).into_response())
}

/// The answers to a request as they come.
fn streamed(
    head: Head,
    answers: Answers,
    done: impl FnOnce(Option<TokenCount>) + Send + 'static,
) -> Response {
    let logprobs_of = answers.logprobs();
    let work = |sender: UnboundedSender<Value>| async move {
        let (out, chunks) = (sender.clone(), head.clone());
        // The calls of each answer that has begun.
        let mut begun: BTreeMap<usize, usize> = BTreeMap::new();
        let (part_sender, mut parts) = unbounded_channel();
        let mut sending =
            std::pin::pin!(answers.send(move |choice, part| _ = part_sender.send((choice, part))));
        let mut send = move |(choice, part): (usize, Part)| {
            let is_first = !begun.contains_key(&choice);
            let calls = begun.entry(choice).or_default();
            let before = *calls;
            *calls += part.made.len();
            for (delta, end) in deltas(part, is_first, before) {
                let logprobs = end.as_ref().filter(|_| chunks.logprobs).map(&logprobs_of);
                let reason = end.map(|end| end.reason);
                let choice =
                    json!({"index": choice, "delta": delta, "finish_reason": reason, "logprobs": logprobs});
                _ = out.send(chunks.chunk(json!([choice])));
            }
        };
        let ended = loop {
            tokio::select! {
                biased;
                Some(part) = parts.recv() => send(part),
                ended = &mut sending => break ended,
            }
        };
        while let Ok(part) = parts.try_recv() {
            send(part);
        }
        done(ended.as_ref().ok().copied());
        match ended {
            Ok(count) => {
                if head.include_usage {
                    let mut chunk = head.chunk(json!([]));
                    chunk["usage"] = count.json();
                    _ = sender.send(chunk);
                }
            }
            Err(error) => _ = sender.send(error.json()),
        }
    };
    let events = while_it_works(work).map(|chunk| Event::default().data(chunk.to_string()));
    let events = events.chain(stream::once(async { Event::default().data("[DONE]") }));
    Sse::new(events.map(Ok::<_, std::convert::Infallible>)).keep_alive(KeepAlive::default()).into_response()
}

/// The deltas of a part: the role before the first, and the end on the last. So many calls were made before.
fn deltas(part: Part, is_first: bool, made_before: usize) -> Vec<(Value, Option<End>)> {
    let Part { reasoning, text, calls, made, end } = part;
    let mut deltas = Vec::new();
    if is_first {
        deltas.push(json!({"role": "assistant", "content": ""}));
    }
    if !reasoning.is_empty() {
        deltas.push(json!({"reasoning": reasoning, "reasoning_content": reasoning}));
    }
    if !made.is_empty() {
        // Clients put lists of parts together by their `index`.
        let indexed = made.into_iter().enumerate().map(|(index, mut call)| {
            call["index"] = (made_before + index).into();
            call
        });
        deltas.push(json!({ "mcprl_calls": indexed.collect::<Vec<_>>() }));
    }
    if !text.is_empty() {
        deltas.push(json!({"content": text}));
    }
    for (index, call) in calls.into_iter().enumerate() {
        let function = json!({"name": call.name, "arguments": call.arguments});
        let call = json!({"index": index, "id": call.id, "type": "function", "function": function});
        deltas.push(json!({"tool_calls": [call]}));
    }
    let mut deltas: Vec<_> = deltas.into_iter().map(|delta| (delta, None)).collect();
    deltas.extend(end.map(|end| (json!({}), Some(end))));
    deltas
}

/// What a future sends. It works while the stream is read, and ends with it.
fn while_it_works<T, F: Future<Output = ()>>(
    work: impl FnOnce(UnboundedSender<T>) -> F,
) -> impl Stream<Item = T> {
    let (sender, mut receiver) = unbounded_channel();
    let ended = stream::once(work(sender)).filter_map(async |()| None);
    let sent = stream::poll_fn(move |context| receiver.poll_recv(context));
    stream::select(sent, ended)
}
