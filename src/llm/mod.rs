//! Clients of OpenAI-compatible endpoints: judges and generators.
//!
//! A request is retried if the endpoint is busy or failing, but not if it refuses the request. The API key is read from an
//! environment variable. It is sent only to the endpoint, and unencrypted only to this machine ([`net::is_confidential`]).
//! No error, log or artifact contains it. Proxy environment variables are ignored and redirects are not followed.

mod error;

#[cfg(test)]
pub mod tests;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use reqwest::{StatusCode, Url, header::HeaderValue, redirect::Policy};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

pub use error::LlmError;

use crate::net::{self, Backoff};

const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Characters of an error response's body that are shown.
const SHOWN: usize = 300;

/// A model and how to reach it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Up to and including `/v1`.
    pub base_url: String,
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

/// Tokens and requests so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub requests: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
}

/// A client to one endpoint.
pub struct Client {
    endpoint: Endpoint,
    url: Url,
    key: Option<HeaderValue>,
    http: reqwest::Client,
    permits: Arc<Semaphore>,
    usage: Mutex<Usage>,
}

/// Why an attempt failed.
struct Failed {
    error: LlmError,
    /// `Some` if a retry may succeed, with the endpoint's `Retry-After`.
    retry_after: Option<Option<Duration>>,
}

impl Client {
    pub fn new(endpoint: Endpoint) -> Result<Self, LlmError> {
        let url = address(&endpoint.base_url, endpoint.api_key_env.as_deref())?;
        let key = endpoint.api_key_env.as_deref().map(key).transpose()?;
        let http = http(endpoint.timeout)?;
        let permits = permits(&endpoint);
        Ok(Self { endpoint, url, key, http, permits, usage: Mutex::default() })
    }

    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub fn usage(&self) -> Usage {
        *self.counters()
    }

    fn counters(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model's reply to a conversation.
    pub async fn complete(&self, messages: &[Message]) -> Result<String, LlmError> {
        let body = json!({
            "model": self.endpoint.model,
            "messages": messages,
            "temperature": self.endpoint.temperature,
            "max_tokens": self.endpoint.max_tokens,
        });
        // The semaphore is never closed, so this cannot fail.
        let _permit = self.permits.acquire().await;
        let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT, self.usage().requests);
        let mut retries = self.endpoint.retries;
        loop {
            match self.attempt(&body).await {
                Ok(reply) => return Ok(reply),
                Err(Failed { retry_after: Some(retry_after), .. }) if retries > 0 => {
                    tokio::time::sleep(backoff.wait(retry_after)).await;
                    retries -= 1;
                }
                Err(Failed { error, .. }) => return Err(error),
            }
        }
    }

    async fn attempt(&self, body: &Value) -> Result<String, Failed> {
        self.counters().requests += 1;
        let mut request = self.http.post(self.url.clone()).json(body);
        if let Some(key) = &self.key {
            request = request.header(reqwest::header::AUTHORIZATION, key.clone());
        }
        let response = request.send().await.map_err(|source| self.unreachable(source))?;
        let status = response.status();
        let retry_after = response
            .headers()
            .get(reqwest::header::RETRY_AFTER)
            .and_then(|value| net::retry_after(value.to_str().ok()?, chrono::Utc::now()));
        let text = response.text().await.map_err(|source| self.unreachable(source))?;
        if !status.is_success() {
            let busy = status.is_server_error()
                || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
            let body = text.trim().chars().take(SHOWN).collect();
            let Endpoint { model, base_url, .. } = self.endpoint.clone();
            let error = LlmError::Status { model, url: base_url, status: status.as_u16(), body };
            return Err(Failed { error, retry_after: busy.then_some(retry_after) });
        }
        self.read(&text)
    }

    fn read(&self, text: &str) -> Result<String, Failed> {
        let wrong = |reason: String| {
            let Endpoint { model, base_url, .. } = self.endpoint.clone();
            Failed { error: LlmError::Reply { model, url: base_url, reason }, retry_after: None }
        };
        let reply: Value = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        let count = |name: &str| reply.pointer(name).and_then(Value::as_u64).unwrap_or(0);
        self.counters().prompt_tokens += count("/usage/prompt_tokens");
        self.counters().completion_tokens += count("/usage/completion_tokens");
        let content = reply.pointer("/choices/0/message/content").and_then(Value::as_str);
        content.map(str::to_owned).ok_or_else(|| wrong("it has no choices[0].message.content".into()))
    }

    fn unreachable(&self, source: reqwest::Error) -> Failed {
        let Endpoint { model, base_url: url, timeout: limit, .. } = self.endpoint.clone();
        let source = source.without_url();
        let error = match source.is_timeout() {
            true => LlmError::Timeout { model, url, limit },
            false => LlmError::Unreachable { model, url, source },
        };
        Failed { error, retry_after: Some(None) }
    }
}

/// One semaphore for all clients of an endpoint that exist at once, so stages that judge at the same time share the
/// limit. The first client sets it.
fn permits(endpoint: &Endpoint) -> Arc<Semaphore> {
    static SHARED: Mutex<BTreeMap<String, Weak<Semaphore>>> = Mutex::new(BTreeMap::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.retain(|_, permits| permits.strong_count() > 0);
    let existing = shared.get(&endpoint.base_url).and_then(Weak::upgrade);
    existing.unwrap_or_else(|| {
        let permits = Arc::new(Semaphore::new(endpoint.concurrency.max(1)));
        shared.insert(endpoint.base_url.clone(), Arc::downgrade(&permits));
        permits
    })
}

/// Checks that requests, with the key of this variable if given, may be sent to this address.
///
/// # Errors
/// The same as [`Client::new`] gives.
pub fn check_address(base_url: &str, api_key_env: Option<&str>) -> Result<(), LlmError> {
    address(base_url, api_key_env).map(drop)
}

/// Requests the endpoint's list of models without a key and returns the HTTP status. Any status means that the endpoint is
/// reachable. Nothing is sampled, so it costs nothing.
///
/// # Errors
/// If no answer arrives within `limit`.
pub async fn reach(base_url: &str, model: &str, limit: Duration) -> Result<u16, LlmError> {
    let mut url = address(base_url, None)?;
    let path = url.path().trim_end_matches("/chat/completions").to_owned();
    url.set_path(&format!("{path}/models"));
    let (model, shown) = (model.to_owned(), base_url.to_owned());
    let answer = http(limit)?.get(url).send().await.map_err(reqwest::Error::without_url);
    match answer {
        Ok(answer) => Ok(answer.status().as_u16()),
        Err(source) if source.is_timeout() => Err(LlmError::Timeout { model, url: shown, limit }),
        Err(source) => Err(LlmError::Unreachable { model, url: shown, source }),
    }
}

fn http(timeout: Duration) -> Result<reqwest::Client, LlmError> {
    // Fails if a provider is already installed, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().redirect(Policy::none()).no_proxy().timeout(timeout);
    client.build().map_err(LlmError::Client)
}

/// Checks that this environment variable contains a key that can be sent.
///
/// # Errors
/// The same as [`Client::new`] gives.
pub fn check_key(variable: &str) -> Result<(), LlmError> {
    key(variable).map(drop)
}

fn address(base_url: &str, api_key_env: Option<&str>) -> Result<Url, LlmError> {
    let wrong = |reason: &str| LlmError::Url { url: base_url.to_owned(), reason: reason.to_owned() };
    let url = format!("{}/chat/completions", base_url.trim_end_matches('/'));
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

fn key(variable: &str) -> Result<HeaderValue, LlmError> {
    let key = std::env::var(variable).map_err(|_| LlmError::NoKey { variable: variable.to_owned() })?;
    let mut value = HeaderValue::from_str(&format!("Bearer {}", key.trim()))
        .map_err(|_| LlmError::Key { variable: variable.to_owned() })?;
    value.set_sensitive(true);
    Ok(value)
}
