//! Answers as OpenAI's chat completions: whole, or as a stream of chunks.
//!
//! A client adds up what chunks have, so a role, a call's id and its name are sent once, whole.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    iter::once,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Json,
    body::Body,
    http::header,
    response::{IntoResponse, Response},
};
use futures::{
    Stream, StreamExt,
    future::{BoxFuture, try_join_all},
    stream::{self, PollNext, select_with_strategy},
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::{Instant, Sleep, sleep},
};

use super::{
    error::{ApiError, Log},
    request::ChatRequest,
    turn::{AnswerPart, End, SamplingTask},
};
use crate::{
    chat::Chat,
    data::{Message, MessageCall},
    progress::now_ms,
};

/// What all chunks of an answer have.
#[derive(Clone)]
pub struct Head {
    id: String,
    created: u64,
    model: String,
    /// The digest of the policy.
    fingerprint: String,
    logprobs: bool,
    include_usage: bool,
    /// Gets the causes of failures.
    log: Option<Log>,
}

impl Head {
    pub fn new(request: &ChatRequest, model: String, fingerprint: String) -> Self {
        let id = format!("chatcmpl-{:016x}{:016x}", super::random(), super::random());
        let created = now_ms() / 1000;
        let ChatRequest { logprobs, include_usage, .. } = *request;
        Self { id, created, model, fingerprint, logprobs, include_usage, log: None }
    }

    /// The log gets what clients are not told.
    pub fn with_log(self, log: Log) -> Self {
        Self { log: Some(log), ..self }
    }

    /// What stands for the log-probabilities of an answer's end, if the request asks for them.
    fn mark(&self, end: Option<End>, ends: &mut Vec<End>) -> Value {
        match end.filter(|_| self.logprobs) {
            None => Value::Null,
            Some(end) => {
                ends.push(end);
                MARK.trim_matches('"').into()
            }
        }
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

/// Tokens of an answer at most, how many answers, and tokens beside each.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    pub tokens: usize,
    pub choices: usize,
    pub others: usize,
}

impl Cost {
    pub fn all(self) -> usize {
        self.tokens.saturating_mul(self.choices).saturating_mul(1 + self.others)
    }
}

/// Gets each whole answer: its message, and its tokens with their log-probabilities.
pub type Keep = Box<dyn Fn(Message, &[(u32, f32)]) + Send + Sync>;

/// Where answers come from.
pub enum Answers {
    /// As many as are asked for, sampled by a policy.
    Policy { task: Box<SamplingTask>, choices: usize, keep: Option<Keep> },
    /// One of the agent, which sends its calls as they are answered.
    Agent(AgentAnswer),
}

type AgentAnswer = Box<
    dyn FnOnce(UnboundedSender<AnswerPart>) -> BoxFuture<'static, Result<(AnswerPart, TokenCount), ApiError>>
        + Send,
>;

impl Answers {
    /// Sends the parts of all answers, each with its number. The tokens when all have ended.
    async fn send(self, mut send: impl FnMut(usize, AnswerPart) + Clone) -> Result<TokenCount, ApiError> {
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
                    let (mut send, mut count, mut whole) = (send.clone(), 0, AnswerPart::default());
                    let each = |part: AnswerPart| {
                        if keep.is_some() {
                            whole.add(part.clone());
                        }
                        if let Some(end) = &part.end {
                            count += end.tokens.len();
                            keep.iter().for_each(|keep| keep(said(&whole), &end.tokens));
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

    /// What reads the tokens of a policy's answers.
    fn chat(&self) -> Option<Chat> {
        match self {
            Self::Policy { task, .. } => Some(task.chat.clone()),
            Self::Agent(_) => None,
        }
    }

    /// What answers take of the bound of all: tokens × choices × (1 + alternatives), at most.
    pub fn cost(&self) -> Cost {
        match self {
            Self::Policy { task, choices, .. } => {
                Cost { tokens: task.most(), choices: *choices, others: task.likeliest() }
            }
            Self::Agent(_) => Cost::default(),
        }
    }
}

/// A whole answer of a policy, as conversations have it.
fn said(part: &AnswerPart) -> Message {
    let reasoning = Some(part.reasoning.clone()).filter(|reasoning| !reasoning.is_empty());
    Message { reasoning, ..Message::assistant(&part.text, part.calls.clone()) }
}

/// A whole answer as OpenAI's API has it.
fn message(part: &AnswerPart) -> Value {
    let AnswerPart { reasoning, text, calls, made, .. } = part;
    let content = if text.is_empty() && !calls.is_empty() { Value::Null } else { text.as_str().into() };
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if !reasoning.is_empty() {
        message["reasoning"] = reasoning.as_str().into();
        message["reasoning_content"] = reasoning.as_str().into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.iter().map(MessageCall::openai).collect();
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
    let chat = answers.chat();
    let (sender, mut receiver) = unbounded_channel();
    let sent = answers.send(move |choice, part| _ = sender.send((choice, part))).await;
    done(sent.as_ref().ok().copied());
    let count = sent?;
    let mut parts: Vec<AnswerPart> = Vec::new();
    while let Some((choice, part)) = receiver.recv().await {
        parts.resize(parts.len().max(choice + 1), AnswerPart::default());
        parts[choice].add(part);
    }
    let mut ends = Vec::new();
    let choice = |(index, mut part): (usize, AnswerPart)| {
        let end = part.end.take();
        let reason = end.as_ref().map(|end| end.reason);
        let message = message(&part);
        json!({
            "index": index, "message": message, "finish_reason": reason,
            "logprobs": head.mark(end, &mut ends),
        })
    };
    let choices = parts.into_iter().enumerate().map(choice).collect();
    let mut object = head.object("chat.completion", choices);
    object["usage"] = count.json();
    if ends.is_empty() {
        return Ok(Json(object).into_response());
    }
    let pieces = with_logprobs(&object.to_string(), ends, chat);
    let body = Body::from_stream(stream::iter(pieces.map(Ok::<_, Infallible>)));
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// The answers to a request as they come.
fn streamed(
    head: Head,
    answers: Answers,
    done: impl FnOnce(Option<TokenCount>) + Send + 'static,
) -> Response {
    let chat = answers.chat();
    let work = |sender: UnboundedSender<Chunk>| async move {
        let (out, chunks) = (sender.clone(), head.clone());
        // The calls of each answer that has begun.
        let mut begun: BTreeMap<usize, usize> = BTreeMap::new();
        let (part_sender, mut parts) = unbounded_channel();
        let mut sending =
            std::pin::pin!(answers.send(move |choice, part| _ = part_sender.send((choice, part))));
        let mut send = move |choice: usize, part: AnswerPart| {
            let is_first = !begun.contains_key(&choice);
            let calls = begun.entry(choice).or_default();
            let before = *calls;
            *calls += part.made.len();
            for (delta, end) in deltas(part, is_first, before) {
                let reason = end.as_ref().map(|end| end.reason);
                let mut ends = Vec::new();
                let choice = json!({
                    "index": choice, "delta": delta, "finish_reason": reason, "logprobs": chunks.mark(end, &mut ends),
                });
                _ = out.send(Chunk { text: chunks.chunk(json!([choice])).to_string(), ends });
            }
        };
        // A reader that was slow gets what came meanwhile as one part.
        let mut all = |mut next: Option<(usize, AnswerPart)>,
                       parts: &mut UnboundedReceiver<(usize, AnswerPart)>| {
            let mut together: BTreeMap<usize, AnswerPart> = BTreeMap::new();
            while let Some((choice, part)) = next.take().or_else(|| parts.try_recv().ok()) {
                together.entry(choice).or_default().add(part);
            }
            together.into_iter().for_each(|(choice, part)| send(choice, part));
        };
        let ended = loop {
            tokio::select! {
                biased;
                Some(next) = parts.recv() => all(Some(next), &mut parts),
                ended = &mut sending => break ended,
            }
        };
        all(None, &mut parts);
        done(ended.as_ref().ok().copied());
        let last = match ended {
            Ok(count) => head.include_usage.then(|| {
                let mut chunk = head.chunk(json!([]));
                chunk["usage"] = count.json();
                chunk
            }),
            Err(error) => {
                head.log.iter().for_each(|log| error.report(log));
                Some(error.json())
            }
        };
        if let Some(chunk) = last {
            _ = sender.send(Chunk { text: chunk.to_string(), ends: Vec::new() });
        }
    };
    let event = move |chunk: Chunk| {
        let chat = chat.clone();
        let data = once("data: ".to_owned()).chain(with_logprobs(&chunk.text, chunk.ends, chat));
        stream::iter(data.chain(once("\n\n".to_owned())))
    };
    let events = while_it_works(work).flat_map(event);
    let events = events.chain(stream::once(async { "data: [DONE]\n\n".to_owned() }));
    let events = KeptAlive { events: Box::pin(events), quiet: Box::pin(sleep(QUIET)) };
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    (headers, Body::from_stream(events.map(Ok::<_, Infallible>))).into_response()
}

/// A chunk as JSON, and the ends whose log-probabilities stand at its marks.
struct Chunk {
    text: String,
    ends: Vec<End>,
}

/// What stands in JSON in place of log-probabilities. Within a text its quotes would be escaped.
const MARK: &str = "\"mark of log-probabilities\"";
/// Tokens whose log-probabilities are written at once.
const BATCH: usize = 64;
/// Most tokens of a character.
const OF_CHARACTER: usize = 4;

/// JSON with the log-probabilities of each end in place of a mark. They are written when they are sent: as JSON they are ten times
/// as large.
fn with_logprobs(
    text: &str,
    ends: Vec<End>,
    chat: Option<Chat>,
) -> impl Iterator<Item = String> + Send + use<> {
    let mut parts: Vec<String> = text.split(MARK).map(str::to_owned).collect();
    let last = parts.pop().unwrap_or_default();
    let between = parts.into_iter().zip(ends).flat_map(move |(before, end)| {
        let (chat, mut at) = (chat.clone(), 0);
        let tokens = std::iter::from_fn(move || {
            let from = at;
            (from < end.tokens.len())
                .then(|| of_batch(&end, &mut at, chat.as_ref()))
                .map(|batch| if from == 0 { batch } else { format!(",{batch}") })
        });
        let open = once(before + "{\"content\":[");
        open.chain(tokens).chain(once("],\"refusal\":null}".to_owned()))
    });
    between.chain(once(last))
}

#[derive(Serialize)]
struct TokenLogprob<'t> {
    token: &'t str,
    bytes: &'t [u8],
    logprob: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<Self>>,
}

/// The next tokens of an answer as JSON.
fn of_batch(end: &End, at: &mut usize, chat: Option<&Chat>) -> String {
    let texts = |tokens: &[(u32, f32)]| {
        let ids: Vec<u32> = tokens.iter().map(|(token, _)| *token).collect();
        chat.map(|chat| chat.token_texts(&ids)).unwrap_or_default()
    };
    // With the token before, and to the end of a character.
    let (before, most) = (at.saturating_sub(1), (*at + BATCH + OF_CHARACTER).min(end.tokens.len()));
    let mut window = texts(&end.tokens[before..most]).split_off(*at - before);
    let whole = (BATCH..window.len()).find(|index| !window[*index].is_empty());
    window.truncate(whole.unwrap_or(window.len()));
    let mut written = Vec::new();
    for text in &window {
        let token = |text, logprob: f32| TokenLogprob {
            token: text,
            bytes: str::as_bytes(text),
            logprob: logprob.into(),
            top_logprobs: None,
        };
        let likeliest = end.likeliest.get(*at).map_or(&[][..], Vec::as_slice);
        let beside: Vec<String> = likeliest.iter().map(|other| texts(&[*other]).concat()).collect();
        let others = beside.iter().zip(likeliest).map(|(text, (_, logprob))| token(text, *logprob));
        let others = Some(others.collect());
        let whole = TokenLogprob { top_logprobs: others, ..token(text, end.tokens[*at].1) };
        written.push(serde_json::to_string(&whole).unwrap_or_default());
        *at += 1;
    }
    // Tokens without a text end the answer.
    if window.is_empty() {
        *at = end.tokens.len();
    }
    written.join(",")
}

/// The deltas of a part: the role before the first, and the end on the last. So many calls were made before.
fn deltas(part: AnswerPart, is_first: bool, made_before: usize) -> Vec<(Value, Option<End>)> {
    let AnswerPart { reasoning, text, calls, made, end } = part;
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
        let mut call = call.openai();
        call["index"] = index.into();
        deltas.push(json!({"tool_calls": [call]}));
    }
    let mut deltas: Vec<_> = deltas.into_iter().map(|delta| (delta, None)).collect();
    deltas.extend(end.map(|end| (json!({}), Some(end))));
    deltas
}

/// What a future sends. It works while the stream is read and nothing is left to read, and ends with the stream.
fn while_it_works<T, F: Future<Output = ()>>(
    work: impl FnOnce(UnboundedSender<T>) -> F,
) -> impl Stream<Item = T> {
    let (sender, mut receiver) = unbounded_channel();
    let ended = stream::once(work(sender)).filter_map(async |()| None);
    let sent = stream::poll_fn(move |context| receiver.poll_recv(context));
    select_with_strategy(sent, ended, |(): &mut ()| PollNext::Left)
}

/// After this time without an event, a comment says that the connection is alive.
const QUIET: Duration = Duration::from_secs(15);

/// Events, with comments while there are none.
struct KeptAlive<S> {
    events: Pin<Box<S>>,
    quiet: Pin<Box<Sleep>>,
}

impl<S: Stream<Item = String>> Stream for KeptAlive<S> {
    type Item = String;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<String>> {
        let next = self.events.as_mut().poll_next(context);
        if next.is_pending() && self.quiet.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        self.quiet.as_mut().reset(Instant::now() + QUIET);
        // The parts of an event come without a pause.
        if next.is_pending() { Poll::Ready(Some(":\n\n".to_owned())) } else { next }
    }
}
