//! Language models that judge and write: what they are asked, and clients of those behind endpoints.
//!
//! [`LanguageModel`] is the common interface. `stage/local_model.rs` implements it for models that the engine runs.
//!
//! A request is retried if the endpoint is busy or failing, but not if it refuses the request. If the refusal names a
//! feature that the endpoint does not support (a schema, a temperature), the request is sent again without it. The API key
//! is read from an environment variable. It is sent only to the endpoint, and unencrypted only to this machine
//! ([`net::is_confidential`]).
//! No error, log or artifact contains it. Proxy environment variables are ignored and redirects are not followed.

mod chat;
mod error;
mod limits;
mod stream;
mod wire;

#[cfg(test)]
pub mod tests;

use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use reqwest::{
    Response, StatusCode, Url,
    header::{HeaderName, HeaderValue},
    redirect::Policy,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{sync::Semaphore, time::Instant};

pub use chat::{ChatReply, ChatTurn, WrittenCall};
pub use error::LlmError;
use limits::{Ceiling, RateLimiter, Reservation};
use stream::Growing;
pub use stream::{Added, Parts};
use wire::Refused;
pub use wire::{Provider, Reply, Tokens};

use crate::{
    hash::Encoder,
    net::{self, Backoff},
    usage::{self, Prices},
};

const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Characters of an error response's body that are shown.
const SHOWN: usize = 300;
/// Bytes of a response that are read.
const MOST_BYTES: usize = 8 << 20;
/// The same of a stream, where each token has some hundred bytes around it.
const MOST_STREAM_BYTES: usize = 128 << 20;

/// A model and how to reach it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Up to and including the version: `https://host/v1`.
    pub base_url: String,
    pub provider: Provider,
    pub model: String,
    /// Environment variable that contains the API key. No key is sent if absent.
    pub api_key_env: Option<String>,
    pub temperature: f64,
    /// Maximum tokens of a reply.
    pub max_tokens: u32,
    /// Of one attempt.
    pub timeout: Duration,
    /// Attempts after the first.
    pub retries: u32,
    /// Concurrent requests, over all clients of this endpoint.
    pub concurrency: usize,
    /// Over all clients of this endpoint, like `tokens_per_minute`.
    pub requests_per_minute: Option<u32>,
    pub tokens_per_minute: Option<u32>,
    pub budget: Option<Budget>,
}

/// The most that one client may spend.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Budget {
    pub dollars: f64,
    pub prices: Prices,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `user` or `assistant`.
    pub role: String,
    pub content: String,
}

impl Message {
    pub fn user(content: impl Into<String>) -> Self {
        Self { role: "user".into(), content: content.into() }
    }

    pub fn assistant(content: impl Into<String>) -> Self {
        Self { role: "assistant".into(), content: content.into() }
    }
}

/// What a model is asked.
#[derive(Debug, Clone, Copy, Default)]
pub struct Request<'a> {
    pub messages: &'a [Message],
    /// JSON Schema of the reply, for providers that enforce one.
    pub schema: Option<&'a Value>,
    /// Bytes at the beginning of the first message that other requests share.
    pub shared: usize,
    /// Whether the same messages are sent again soon.
    pub is_repeated: bool,
    /// Distinguishes draws for the same messages, for a model with seeded draws.
    pub draw: u64,
}

/// Tokens and requests so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub requests: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
}

/// The future of a reply.
pub type Completion<'a> = Pin<Box<dyn Future<Output = Result<Reply, LlmError>> + Send + 'a>>;

/// The future of a probability.
pub type Probability<'a> = Pin<Box<dyn Future<Output = Result<f64, LlmError>> + Send + 'a>>;

/// A language model that replies to requests.
pub trait LanguageModel: Send + Sync {
    /// Adds to the digest of a question what identifies the model and how it samples.
    fn identify(&self, question: &mut Encoder);

    /// The model's reply.
    fn complete<'a>(&'a self, request: &'a Request<'a>) -> Completion<'a>;

    /// The probability that the reply to a yes-or-no question is "yes" and not "no". A client of an endpoint gives none.
    fn probability<'a>(&'a self, _: &'a Request<'a>) -> Probability<'a> {
        Box::pin(async { Err(LlmError::NoProbability) })
    }

    /// Whether its replies are of the request's schema, whatever the schema is.
    fn keeps_to_schemas(&self) -> bool {
        false
    }

    /// How many requests it takes at once.
    fn concurrency(&self) -> usize;

    /// Tokens and requests so far.
    fn usage(&self) -> Usage;

    /// Its part of a stage's resource usage so far.
    fn resources(&self) -> usage::Usage;

    /// Whether it has replied to any request.
    fn has_replied(&self) -> bool;
}

/// What is sent to an endpoint, and how its reply is read.
trait Ask: Sync {
    type Reply: Send;

    fn body(&self, endpoint: &Endpoint, refused: Refused) -> Value;

    /// Bytes of the prompt.
    fn bytes(&self) -> usize;

    /// Most tokens of the reply.
    fn max_tokens(&self, endpoint: &Endpoint) -> u32;

    /// Whether a schema of the reply is sent.
    fn has_schema(&self) -> bool;

    /// Who gets the reply in parts. It then comes as a stream of OpenAI's chunks.
    fn parts(&self, _refused: Refused) -> Option<&Parts> {
        None
    }

    /// # Errors
    /// If the reply has another shape; says which part is missing.
    fn read(&self, endpoint: &Endpoint, reply: &Value) -> Result<Self::Reply, String>;

    /// The tokens of a reply as billed.
    fn tokens(reply: &Self::Reply) -> Option<Tokens>;
}

impl Ask for Request<'_> {
    type Reply = Reply;

    fn body(&self, endpoint: &Endpoint, refused: Refused) -> Value {
        endpoint.provider.body(self, endpoint, refused)
    }

    fn bytes(&self) -> usize {
        let schema = self.schema.map_or(0, |schema| schema.to_string().len());
        self.messages.iter().map(|message| message.content.len()).sum::<usize>() + schema
    }

    fn max_tokens(&self, endpoint: &Endpoint) -> u32 {
        endpoint.max_tokens
    }

    fn has_schema(&self) -> bool {
        self.schema.is_some()
    }

    fn read(&self, endpoint: &Endpoint, reply: &Value) -> Result<Reply, String> {
        endpoint.provider.read(reply)
    }

    fn tokens(reply: &Reply) -> Option<Tokens> {
        reply.tokens
    }
}

/// A client to one endpoint.
pub struct Client {
    endpoint: Endpoint,
    url: Url,
    key: Option<(HeaderName, HeaderValue)>,
    http: reqwest::Client,
    shared: Arc<Shared>,
    ceiling: Option<(Ceiling, Prices)>,
    usage: Mutex<Usage>,
    refused: Mutex<Refused>,
    has_replied: AtomicBool,
}

/// What all clients of an endpoint have in common, so that stages that judge at the same time share its limits.
struct Shared {
    permits: Semaphore,
    pace: RateLimiter,
}

/// Why an attempt failed.
struct Failed {
    error: LlmError,
    next: Next,
    /// Whether the endpoint may have worked, and bills it.
    may_cost: bool,
}

/// What to do after a failed attempt.
enum Next {
    /// Try again, after the endpoint's `Retry-After` if it gave one.
    Retry(Option<Duration>),
    /// Send again at once, without what was refused.
    Without(Refused),
    GiveUp,
}

impl Client {
    pub fn new(endpoint: Endpoint) -> Result<Self, LlmError> {
        let Endpoint { base_url, provider, model, api_key_env, .. } = &endpoint;
        let url = address(base_url, &provider.path(model), api_key_env.as_deref())?;
        let key = api_key_env.as_deref().map(|variable| key(variable, *provider)).transpose()?;
        let http = http(endpoint.timeout)?;
        let shared = shared(&endpoint);
        let ceiling = endpoint.budget.map(|budget| (Ceiling::new(budget.dollars), budget.prices));
        let (usage, refused, has_replied) = (Mutex::default(), Mutex::default(), AtomicBool::default());
        Ok(Self { endpoint, url, key, http, shared, ceiling, usage, refused, has_replied })
    }

    async fn ask<A: Ask>(&self, request: &A) -> Result<A::Reply, LlmError> {
        let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT, self.usage().requests);
        let mut retries = self.endpoint.retries;
        // What this request leaves out. Later requests leave it out only if this one succeeds.
        let mut without = Refused::default();
        loop {
            without = without | *self.refused.lock();
            let Failed { error, next, .. } = match self.attempt(request, without).await {
                Ok(reply) => {
                    self.has_replied.store(true, Ordering::Relaxed);
                    let mut refused = self.refused.lock();
                    *refused = *refused | without;
                    return Ok(reply);
                }
                Err(failed) => failed,
            };
            match next {
                Next::Without(refused) => without = refused,
                Next::Retry(retry_after) if retries > 0 => {
                    let wait = backoff.wait(retry_after);
                    if retry_after.is_some() {
                        self.shared.pace.pause(Instant::now() + wait);
                    }
                    tokio::time::sleep(wait).await;
                    retries -= 1;
                }
                Next::Retry(_) | Next::GiveUp => return Err(error),
            }
        }
    }

    /// Sends one request when limits and money allow it.
    async fn attempt<A: Ask>(&self, request: &A, without: Refused) -> Result<A::Reply, Failed> {
        // The semaphore is never closed, so this cannot fail.
        let _permit = self.shared.permits.acquire().await;
        let (bytes, completion) = (request.bytes() as u64, u64::from(request.max_tokens(&self.endpoint)));
        let mut reservation = self.reserve(bytes, completion).await.map_err(|error| Failed {
            error,
            next: Next::GiveUp,
            may_cost: false,
        })?;
        let estimate = bytes / 4 + completion;
        tokio::time::sleep_until(self.shared.pace.reserve(Instant::now(), estimate)).await;
        let outcome = self.send(request, without).await;
        let tokens = match &outcome {
            Ok(reply) => A::tokens(reply),
            Err(Failed { may_cost: false, .. }) => Some(Tokens { prompt: 0, completion: 0 }),
            Err(_) => None,
        };
        if let Some(tokens) = tokens {
            self.shared.pace.correct(estimate, tokens.prompt + tokens.completion);
            if let (Some(reservation), Some((_, prices))) = (&mut reservation, &self.ceiling) {
                reservation.cost = dollars(*prices, tokens);
            }
        }
        outcome
    }

    /// A token has at least one byte, so this is the most that the request may cost, but for the few tokens of its frame.
    async fn reserve(&self, bytes: u64, completion: u64) -> Result<Option<Reservation<'_>>, LlmError> {
        let Some((ceiling, prices)) = &self.ceiling else { return Ok(None) };
        let most = Tokens { prompt: bytes + FRAME, completion };
        let prompt = match self.endpoint.provider {
            // It bills writes to its cache at 1.25 times the price.
            Provider::Anthropic => (most.prompt * 5).div_ceil(4),
            Provider::Openai | Provider::Gemini => most.prompt,
        };
        ceiling.reserve(dollars(*prices, Tokens { prompt, ..most })).await.map(Some)
    }

    async fn send<A: Ask>(&self, request: &A, without: Refused) -> Result<A::Reply, Failed> {
        let provider = self.endpoint.provider;
        let body = request.body(&self.endpoint, without);
        self.usage.lock().requests += 1;
        let mut post = self.http.post(self.url.clone()).headers(provider.headers()).json(&body);
        if let Some((name, key)) = &self.key {
            post = post.header(name, key);
        }
        let response = post.send().await.map_err(|source| self.unreachable(source))?;
        let status = response.status();
        let retry_after = response
            .headers()
            .get(reqwest::header::RETRY_AFTER)
            .and_then(|value| net::retry_after(value.to_str().ok()?, chrono::Utc::now()));
        if let Some(parts) = request.parts(without).filter(|_| status.is_success() && is_stream(&response)) {
            return self.read_stream(request, response, parts).await;
        }
        let text = self.text(response).await?;
        if !status.is_success() {
            let busy = status.is_server_error()
                || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
            let concession = concession(provider, status, &text, request, without);
            let body = text.trim().chars().take(SHOWN).collect();
            let Endpoint { model, base_url, .. } = self.endpoint.clone();
            let error = LlmError::Status { model, url: base_url, status: status.as_u16(), body };
            let next = match concession {
                Some(without) => Next::Without(without),
                None if busy => Next::Retry(retry_after),
                None => Next::GiveUp,
            };
            // It may have failed, or lost patience, after it had worked.
            let may_cost = status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT;
            return Err(Failed { error, next, may_cost });
        }
        let reply = serde_json::from_str(&text).map_err(|error| self.wrong(error.to_string()))?;
        self.read(request, &reply)
    }

    /// The body, up to a limit.
    async fn text(&self, mut response: Response) -> Result<String, Failed> {
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|source| self.unreachable(source))? {
            if bytes.len() + chunk.len() > MOST_BYTES {
                return Err(self.wrong(format!("it is longer than {} MiB", MOST_BYTES >> 20)));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A stream is not asked for again once somebody has heard some of it.
    async fn read_stream<A: Ask>(
        &self,
        request: &A,
        mut response: Response,
        parts: &Parts,
    ) -> Result<A::Reply, Failed> {
        let (mut growing, mut bytes) = (Growing::default(), 0);
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) => {
                    bytes += chunk.len();
                    if bytes > MOST_STREAM_BYTES {
                        return Err(self.wrong(format!("it is longer than {} MiB", MOST_STREAM_BYTES >> 20)));
                    }
                    growing.push(&chunk, parts);
                }
                Ok(None) => break,
                Err(source) => {
                    let failed = self.unreachable(source);
                    let next = if growing.is_heard { Next::GiveUp } else { failed.next };
                    return Err(Failed { next, ..failed });
                }
            }
        }
        // A busy endpoint may say so in its stream.
        let next = if growing.is_heard { Next::GiveUp } else { Next::Retry(None) };
        let reply = growing.whole().map_err(|reason| Failed { next, ..self.wrong(reason) })?;
        self.read(request, &reply)
    }

    fn read<A: Ask>(&self, request: &A, reply: &Value) -> Result<A::Reply, Failed> {
        let reply = request.read(&self.endpoint, reply).map_err(|reason| self.wrong(reason))?;
        if let Some(Tokens { prompt, completion }) = A::tokens(&reply) {
            let mut usage = self.usage.lock();
            usage.prompt_tokens += prompt;
            usage.completion_tokens += completion;
        }
        Ok(reply)
    }

    fn wrong(&self, reason: String) -> Failed {
        let Endpoint { model, base_url, .. } = self.endpoint.clone();
        Failed { error: LlmError::Reply { model, url: base_url, reason }, next: Next::GiveUp, may_cost: true }
    }

    fn unreachable(&self, source: reqwest::Error) -> Failed {
        let Endpoint { model, base_url: url, timeout: limit, .. } = self.endpoint.clone();
        let source = source.without_url();
        let may_cost = !source.is_connect();
        let error = match source.is_timeout() {
            true => LlmError::Timeout { model, url, limit },
            false => LlmError::Unreachable { model, url, source },
        };
        Failed { error, next: Next::Retry(None), may_cost }
    }
}

impl LanguageModel for Client {
    fn identify(&self, question: &mut Encoder) {
        let Endpoint { base_url, model, temperature, .. } = &self.endpoint;
        question.text(base_url).text(model).text(&temperature.to_string());
    }

    fn complete<'a>(&'a self, request: &'a Request<'a>) -> Completion<'a> {
        Box::pin(self.ask(request))
    }

    fn concurrency(&self) -> usize {
        self.endpoint.concurrency.max(1)
    }

    fn usage(&self) -> Usage {
        *self.usage.lock()
    }

    fn resources(&self) -> usage::Usage {
        let Usage { requests, prompt_tokens, completion_tokens } = self.usage();
        usage::Usage {
            judge_requests: requests,
            judge_prompt_tokens: prompt_tokens,
            judge_completion_tokens: completion_tokens,
            ..usage::Usage::default()
        }
    }

    fn has_replied(&self) -> bool {
        self.has_replied.load(Ordering::Relaxed)
    }
}

fn is_stream(response: &Response) -> bool {
    let kind = response.headers().get(reqwest::header::CONTENT_TYPE);
    kind.and_then(|kind| kind.to_str().ok()).is_some_and(|kind| kind.starts_with("text/event-stream"))
}

/// Tokens of a request besides its messages and schema: roles, the chat template, the prompt for a schema.
const FRAME: u64 = 1000;

fn dollars(prices: Prices, tokens: Tokens) -> f64 {
    prices.of(&usage::Usage {
        judge_prompt_tokens: tokens.prompt,
        judge_completion_tokens: tokens.completion,
        ..usage::Usage::default()
    })
}

/// Words of an error about the form of the reply, in lower case.
const SCHEMA: [&str; 6] =
    ["response_format", "schema", "tool_choice", "structured output", "json mode", "grammar"];

/// What to leave out, if the error says that this is why the request was refused.
fn concession<A: Ask>(
    provider: Provider,
    status: StatusCode,
    text: &str,
    request: &A,
    refused: Refused,
) -> Option<Refused> {
    if !matches!(status.as_u16(), 400 | 404 | 415 | 422 | 501) {
        return None;
    }
    let text = text.to_lowercase();
    let mentions_limit = || text.contains("max_completion_tokens") || text.contains("max_tokens");
    if provider == Provider::Openai && !refused.max_tokens && mentions_limit() {
        return Some(Refused { max_tokens: true, ..refused });
    }
    if !refused.temperature && text.contains("temperature") {
        return Some(Refused { temperature: true, ..refused });
    }
    if request.parts(refused).is_some() && text.contains("stream") {
        return Some(Refused { stream: true, ..refused });
    }
    if !refused.seed && text.contains("seed") {
        return Some(Refused { seed: true, ..refused });
    }
    let mentions_schema = || SCHEMA.iter().any(|word| text.contains(word));
    (request.has_schema() && !refused.schema && mentions_schema())
        .then_some(Refused { schema: true, ..refused })
}

/// The first client of an endpoint sets its limits.
fn shared(endpoint: &Endpoint) -> Arc<Shared> {
    static ALL: Mutex<BTreeMap<String, Weak<Shared>>> = Mutex::new(BTreeMap::new());
    let mut all = ALL.lock();
    all.retain(|_, shared| shared.strong_count() > 0);
    let existing = all.get(&endpoint.base_url).and_then(Weak::upgrade);
    existing.unwrap_or_else(|| {
        let shared = Arc::new(Shared {
            permits: Semaphore::new(endpoint.concurrency.max(1)),
            pace: RateLimiter::new(endpoint.requests_per_minute, endpoint.tokens_per_minute),
        });
        all.insert(endpoint.base_url.clone(), Arc::downgrade(&shared));
        shared
    })
}

/// Checks that requests, with the key of this variable if given, may be sent to this address.
///
/// # Errors
/// The same as [`Client::new`] gives.
pub fn check_address(base_url: &str, api_key_env: Option<&str>) -> Result<(), LlmError> {
    address(base_url, "chat/completions", api_key_env).map(drop)
}

/// Requests the endpoint's list of models without a key and returns the HTTP status. Any status means that the endpoint is
/// reachable. Nothing is sampled, so it costs nothing.
///
/// # Errors
/// If no answer arrives within `limit`.
pub async fn reach(base_url: &str, model: &str, limit: Duration) -> Result<u16, LlmError> {
    let url = address(base_url, "models", None)?;
    let (model, shown) = (model.to_owned(), base_url.to_owned());
    let answer = http(limit)?.get(url).send().await.map_err(reqwest::Error::without_url);
    match answer {
        Ok(answer) => Ok(answer.status().as_u16()),
        Err(source) if source.is_timeout() => Err(LlmError::Timeout { model, url: shown, limit }),
        Err(source) => Err(LlmError::Unreachable { model, url: shown, source }),
    }
}

fn http(timeout: Duration) -> Result<reqwest::Client, LlmError> {
    let client = net::client().redirect(Policy::none()).no_proxy().timeout(timeout);
    client.build().map_err(LlmError::Client)
}

/// Checks that this environment variable contains a key that can be sent.
///
/// # Errors
/// The same as [`Client::new`] gives.
pub fn check_key(variable: &str) -> Result<(), LlmError> {
    key(variable, Provider::Openai).map(drop)
}

fn address(base_url: &str, path: &str, api_key_env: Option<&str>) -> Result<Url, LlmError> {
    let wrong = |reason: &str| LlmError::Url { url: base_url.to_owned(), reason: reason.to_owned() };
    let url = format!("{}/{path}", base_url.trim_end_matches('/'));
    let url: Url = url.parse().map_err(|_| wrong("it is not a URL"))?;
    match (url.scheme(), url.username(), url.password()) {
        ("http" | "https", "", None) => {}
        ("http" | "https", ..) => return Err(wrong("it contains a user name or password")),
        _ => return Err(wrong("it does not start with https:// or http://")),
    }
    match api_key_env.filter(|_| !net::is_confidential(&url)) {
        Some(variable) => {
            Err(LlmError::Unencrypted { url: base_url.to_owned(), variable: variable.to_owned() })
        }
        None => Ok(url),
    }
}

fn key(variable: &str, provider: Provider) -> Result<(HeaderName, HeaderValue), LlmError> {
    let key = std::env::var(variable).map_err(|_| LlmError::NoKey { variable: variable.to_owned() })?;
    provider.key(key.trim()).ok_or_else(|| LlmError::Key { variable: variable.to_owned() })
}
