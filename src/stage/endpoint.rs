//! Models behind endpoints that play episodes.

use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use super::kind::Requirement;
use crate::{
    hash::{Digest, Encoder},
    llm::{self, Client, Endpoint, LlmError, Provider},
};

/// A model behind an endpoint of chat completions with tools.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointPolicy {
    /// Up to and including the version: `https://host/v1`.
    pub base_url: String,
    pub model: String,
    /// Environment variable that holds the API key. Without it no key is sent.
    pub api_key_env: Option<String>,
    /// Of one attempt at a turn.
    #[serde(default = "timeout_s")]
    pub timeout_s: f64,
    /// Attempts after the first.
    #[serde(default = "retries")]
    pub retries: u32,
    /// Turns under way at once.
    #[serde(default = "concurrency")]
    pub concurrency: usize,
    pub requests_per_minute: Option<u32>,
    pub tokens_per_minute: Option<u32>,
    /// Solved tasks in its system prompt.
    #[serde(default)]
    pub examples: usize,
}

fn timeout_s() -> f64 {
    300.0
}

fn retries() -> u32 {
    5
}

fn concurrency() -> usize {
    8
}

impl EndpointPolicy {
    pub fn new(base_url: String, model: String, api_key_env: Option<String>) -> Self {
        Self {
            base_url,
            model,
            api_key_env,
            timeout_s: timeout_s(),
            retries: retries(),
            concurrency: concurrency(),
            requests_per_minute: None,
            tokens_per_minute: None,
            examples: 0,
        }
    }

    /// Stands for the model, with these examples in its prompt, in the ids of its episodes.
    pub fn digest(&self, examples: &str) -> Digest {
        let mut encoder = Encoder::new("mcprl endpoint policy v1");
        encoder.json(&json!([self.base_url, self.model]));
        if !examples.is_empty() {
            encoder.text(examples);
        }
        encoder.finish()
    }

    /// # Errors
    /// If the address is wrong, the key is not set, or it would be sent unencrypted.
    pub fn client(&self) -> Result<Client, LlmError> {
        Client::new(Endpoint {
            base_url: self.base_url.clone(),
            // Others have chat completions under an address of their own.
            provider: Provider::Openai,
            model: self.model.clone(),
            api_key_env: self.api_key_env.clone(),
            // Each turn says its own.
            temperature: 0.0,
            max_tokens: 0,
            timeout: Duration::try_from_secs_f64(self.timeout_s).unwrap_or(Duration::MAX),
            retries: self.retries,
            concurrency: self.concurrency,
            requests_per_minute: self.requests_per_minute,
            tokens_per_minute: self.tokens_per_minute,
            budget: None,
        })
    }
}

/// How long an endpoint may take to answer `mcprl doctor`.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whether the endpoint answers. Sends no key and samples nothing.
pub async fn reachable(base_url: &str, model: &str, api_key_env: Option<&str>) -> Requirement {
    let key = api_key_env.map_or("without a key".into(), |variable| format!("with the key in {variable}"));
    match llm::reach(base_url, model, PATIENCE).await {
        Ok(_) => Requirement::Met(format!("{model} at {base_url} {key}: the endpoint answers")),
        Err(cause) => Requirement::Missing(cause.into()),
    }
}
