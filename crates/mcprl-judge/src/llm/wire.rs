//! How each provider writes a request and its reply. Knows no network.

use reqwest::{
    Url,
    header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Endpoint, Message, Request};

/// The wire format of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provider {
    /// Chat completions: OpenAI, OpenRouter, vLLM, llama.cpp, Ollama and most others.
    Openai,
    /// Anthropic's messages.
    Anthropic,
    /// Gemini's `generateContent`.
    Gemini,
}

/// What an endpoint refused and is not sent again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refused {
    pub schema: bool,
    pub temperature: bool,
    /// `max_tokens`, which newer OpenAI models call `max_completion_tokens`.
    pub max_tokens: bool,
    pub seed: bool,
    pub stream: bool,
}

impl Refused {
    /// The name of the limit of a reply.
    pub fn limit_name(self) -> &'static str {
        if self.max_tokens { "max_completion_tokens" } else { "max_tokens" }
    }
}

impl std::ops::BitOr for Refused {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self {
            schema: self.schema || other.schema,
            temperature: self.temperature || other.temperature,
            max_tokens: self.max_tokens || other.max_tokens,
            seed: self.seed || other.seed,
            stream: self.stream || other.stream,
        }
    }
}

/// A reply as read from the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Empty if the model wrote none, for example because it declined.
    pub text: String,
    /// Whether `max_tokens` cut it.
    pub is_cut: bool,
    /// Absent if the endpoint does not count.
    pub tokens: Option<Tokens>,
}

/// Tokens as billed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tokens {
    pub prompt: u64,
    pub completion: u64,
}

impl Tokens {
    /// Those of a chat completion, if the endpoint counts.
    pub fn of_openai(reply: &Value) -> Option<Self> {
        let count = |key: &str| reply["usage"][key].as_u64();
        let prompt = count("prompt_tokens")?;
        Some(Self { prompt, completion: count("completion_tokens").unwrap_or(0) })
    }
}

impl Provider {
    /// The provider behind an address, as far as its host tells.
    pub fn of(base_url: &str) -> Self {
        let url: Option<Url> = base_url.parse().ok();
        let host = url.as_ref().and_then(Url::host_str).unwrap_or_default();
        let is_compatible = base_url.trim_end_matches('/').ends_with("/openai");
        match host {
            "api.anthropic.com" => Self::Anthropic,
            "generativelanguage.googleapis.com" if !is_compatible => Self::Gemini,
            _ => Self::Openai,
        }
    }

    /// Where requests go, below `base_url`.
    pub fn path(self, model: &str) -> String {
        match self {
            Self::Openai => "chat/completions".into(),
            Self::Anthropic => "messages".into(),
            Self::Gemini => format!("models/{}:generateContent", model.trim_start_matches("models/")),
        }
    }

    /// The header that carries the key. `None` if headers cannot contain it.
    pub fn key(self, key: &str) -> Option<(HeaderName, HeaderValue)> {
        let (name, text) = match self {
            Self::Openai => (AUTHORIZATION, format!("Bearer {key}")),
            Self::Anthropic => (HeaderName::from_static("x-api-key"), key.to_owned()),
            Self::Gemini => (HeaderName::from_static("x-goog-api-key"), key.to_owned()),
        };
        let mut value = HeaderValue::from_str(&text).ok()?;
        value.set_sensitive(true);
        Some((name, value))
    }

    pub fn headers(self) -> HeaderMap {
        let version = (HeaderName::from_static("anthropic-version"), HeaderValue::from_static("2023-06-01"));
        (self == Self::Anthropic).then_some(version).into_iter().collect()
    }

    pub fn body(self, request: &Request<'_>, endpoint: &Endpoint, refused: Refused) -> Value {
        let Endpoint { model, max_tokens, .. } = endpoint;
        let schema = request.schema.filter(|_| !refused.schema);
        let temperature = (!refused.temperature).then_some(endpoint.temperature);
        match self {
            Self::Openai => {
                let mut body = json!({ "model": model, "messages": request.messages });
                body[refused.limit_name()] = (*max_tokens).into();
                if let Some(temperature) = temperature {
                    body["temperature"] = temperature.into();
                }
                if let Some(schema) = schema {
                    body["response_format"] = json!({
                        "type": "json_schema",
                        "json_schema": { "name": TOOL, "strict": true, "schema": schema },
                    });
                }
                body
            }
            Self::Anthropic => {
                let messages: Vec<Value> =
                    request.messages.iter().map(|message| anthropic_message(message, request)).collect();
                let mut body = json!({ "model": model, "messages": messages, "max_tokens": max_tokens });
                if let Some(temperature) = temperature {
                    body["temperature"] = temperature.into();
                }
                if let Some(schema) = schema {
                    body["tools"] = json!([{ "name": TOOL, "input_schema": schema }]);
                    body["tool_choice"] = json!({ "type": "tool", "name": TOOL });
                }
                body
            }
            Self::Gemini => {
                let role = |message: &Message| if message.role == "assistant" { "model" } else { "user" };
                let contents = request
                    .messages
                    .iter()
                    .map(|message| json!({ "role": role(message), "parts": [{ "text": message.content }] }));
                let mut generation = json!({ "maxOutputTokens": max_tokens });
                if let Some(temperature) = temperature {
                    generation["temperature"] = temperature.into();
                }
                if let Some(schema) = schema {
                    generation["responseMimeType"] = "application/json".into();
                    generation["responseSchema"] = without_additional(schema.clone());
                }
                json!({ "contents": Value::from_iter(contents), "generationConfig": generation })
            }
        }
    }

    /// Reads a reply.
    ///
    /// # Errors
    /// If it has another shape; says which part is missing.
    pub fn read(self, reply: &Value) -> Result<Reply, String> {
        let count = |pointer: &str| reply.pointer(pointer).and_then(Value::as_u64);
        let text = |pointer: &str| reply.pointer(pointer).and_then(Value::as_str);
        match self {
            Self::Openai => {
                let (message, is_cut) = first_choice(reply)?;
                Ok(Reply {
                    text: message["content"].as_str().unwrap_or_default().to_owned(),
                    is_cut,
                    tokens: Tokens::of_openai(reply),
                })
            }
            Self::Anthropic => {
                let blocks = reply["content"].as_array().ok_or("it has no content")?;
                let block = |block: &Value| match block["type"].as_str() {
                    Some("tool_use") => Some(block["input"].to_string()),
                    _ => block["text"].as_str().map(str::to_owned),
                };
                // A write to the cache costs 1.25 times as much as a token, a read a tenth.
                let written = count("/usage/cache_creation_input_tokens").unwrap_or(0);
                let read = count("/usage/cache_read_input_tokens").unwrap_or(0);
                let tokens = count("/usage/input_tokens").map(|input| Tokens {
                    prompt: input + (written * 5).div_ceil(4) + read.div_ceil(10),
                    completion: count("/usage/output_tokens").unwrap_or(0),
                });
                Ok(Reply {
                    text: blocks.iter().filter_map(block).collect(),
                    is_cut: text("/stop_reason") == Some("max_tokens"),
                    tokens,
                })
            }
            Self::Gemini => {
                if reply["candidates"].is_null() && reply["promptFeedback"].is_null() {
                    return Err("it has no candidates".into());
                }
                let parts = reply.pointer("/candidates/0/content/parts").and_then(Value::as_array);
                let parts = parts.into_iter().flatten().filter(|part| part["thought"] != true);
                let tokens = count("/usageMetadata/promptTokenCount").map(|prompt| Tokens {
                    prompt,
                    completion: count("/usageMetadata/candidatesTokenCount").unwrap_or(0)
                        + count("/usageMetadata/thoughtsTokenCount").unwrap_or(0),
                });
                Ok(Reply {
                    text: parts.filter_map(|part| part["text"].as_str()).collect(),
                    is_cut: text("/candidates/0/finishReason") == Some("MAX_TOKENS"),
                    tokens,
                })
            }
        }
    }
}

/// The message of a chat completion, and whether `max_tokens` cut it.
///
/// # Errors
/// If there is none.
pub fn first_choice(reply: &Value) -> Result<(&Value, bool), String> {
    let message = reply.pointer("/choices/0/message").filter(|message| message.is_object());
    let reason = reply.pointer("/choices/0/finish_reason").and_then(Value::as_str);
    Ok((message.ok_or("it has no choices[0].message")?, reason == Some("length")))
}

/// Name of the schema, where one is required.
const TOOL: &str = "scores";

/// Marks what the provider's cache should keep: the beginning that questions share, and the whole question if it is asked
/// again. Other providers find common beginnings themselves.
fn anthropic_message(message: &Message, request: &Request<'_>) -> Value {
    let cached = json!({ "type": "ephemeral" });
    let is_first = std::ptr::eq(message, &raw const request.messages[0]);
    let (head, rest) = match message.content.split_at_checked(request.shared).filter(|_| is_first) {
        Some((head, rest)) if !head.is_empty() && !rest.is_empty() => (Some(head), rest),
        _ => (None, message.content.as_str()),
    };
    let mut blocks = Vec::new();
    if let Some(head) = head {
        blocks.push(json!({ "type": "text", "text": head, "cache_control": cached }));
    }
    let mut block = json!({ "type": "text", "text": rest });
    if is_first && request.is_repeated {
        block["cache_control"] = cached;
    }
    blocks.push(block);
    json!({ "role": message.role, "content": blocks })
}

/// Gemini rejects the keyword.
fn without_additional(mut schema: Value) -> Value {
    match &mut schema {
        Value::Object(fields) => {
            fields.shift_remove("additionalProperties");
            fields.values_mut().for_each(|value| *value = without_additional(value.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|value| *value = without_additional(value.take())),
        _ => {}
    }
    schema
}
