//! A turn of a conversation with tools, written by a model behind an endpoint of chat completions.

use serde_json::{Map, Value, json};

use super::{
    Ask, Client, Endpoint, LlmError, Parts,
    wire::{Refused, Tokens, first_choice},
};

/// A conversation so far, whose next turn is the assistant's.
#[derive(Debug, Clone, Copy)]
pub struct ChatTurn<'a> {
    /// Gets what the turn says as it comes.
    pub parts: Option<&'a Parts>,
    /// In OpenAI's form.
    pub messages: &'a [Value],
    /// Function schemas.
    pub tools: &'a [Value],
    pub temperature: f64,
    /// Endpoints without seeds ignore it.
    pub seed: Option<u64>,
    pub max_tokens: u32,
}

/// The assistant's turn.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChatReply {
    pub text: String,
    pub reasoning: Option<String>,
    pub calls: Vec<WrittenCall>,
    /// Whether `max_tokens` cut it.
    pub is_cut: bool,
    /// Absent if the endpoint does not count.
    pub tokens: Option<Tokens>,
}

/// A call as the endpoint gives it.
#[derive(Debug, Clone, PartialEq)]
pub struct WrittenCall {
    pub id: String,
    pub name: String,
    /// The arguments, or why they cannot be read.
    pub arguments: Result<Map<String, Value>, String>,
}

impl Client {
    /// The next turn of a conversation.
    ///
    /// # Errors
    /// If the endpoint cannot be reached, refuses the request or does not answer in this form.
    pub async fn turn(&self, turn: &ChatTurn<'_>) -> Result<ChatReply, LlmError> {
        self.ask(turn).await
    }
}

impl Ask for ChatTurn<'_> {
    type Reply = ChatReply;

    fn body(&self, endpoint: &Endpoint, refused: Refused) -> Value {
        let mut body = json!({"model": endpoint.model, "messages": self.messages});
        if !self.tools.is_empty() {
            body["tools"] = self.tools.into();
        }
        body[refused.limit_name()] = self.max_tokens.into();
        if !refused.temperature {
            body["temperature"] = self.temperature.into();
        }
        if let Some(seed) = self.seed.filter(|_| !refused.seed) {
            // Some endpoints read 32 bits.
            body["seed"] = (seed & 0x7fff_ffff).into();
        }
        if self.parts(refused).is_some() {
            body["stream"] = true.into();
            body["stream_options"] = json!({"include_usage": true});
        }
        body
    }

    fn bytes(&self) -> usize {
        self.messages.iter().chain(self.tools).map(|value| value.to_string().len()).sum()
    }

    fn max_tokens(&self, _: &Endpoint) -> u32 {
        self.max_tokens
    }

    fn has_schema(&self) -> bool {
        false
    }

    fn parts(&self, refused: Refused) -> Option<&Parts> {
        self.parts.filter(|_| !refused.stream)
    }

    fn read(&self, _: &Endpoint, reply: &Value) -> Result<ChatReply, String> {
        let (message, is_cut) = first_choice(reply)?;
        let calls = message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
        let calls = calls.iter().enumerate().map(|(index, call)| written_call(index, call));
        let text = |key: &str| message[key].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        Ok(ChatReply {
            text: text("content").unwrap_or_default(),
            reasoning: text("reasoning_content").or_else(|| text("reasoning")),
            calls: calls.collect::<Result<_, _>>()?,
            is_cut,
            tokens: Tokens::of_openai(reply),
        })
    }

    fn tokens(reply: &ChatReply) -> Option<Tokens> {
        reply.tokens
    }
}

fn written_call(index: usize, call: &Value) -> Result<WrittenCall, String> {
    let name = call["function"]["name"].as_str().ok_or("a tool call has no name")?;
    let arguments = match &call["function"]["arguments"] {
        Value::Object(arguments) => Ok(arguments.clone()),
        Value::Null => Ok(Map::new()),
        Value::String(text) if text.trim().is_empty() => Ok(Map::new()),
        Value::String(text) => serde_json::from_str(text).map_err(|cause| cause.to_string()),
        _ => Err("the arguments are no object".to_owned()),
    };
    let id = call["id"].as_str().filter(|id| !id.is_empty());
    let id = id.map_or_else(|| format!("call_{index}"), str::to_owned);
    Ok(WrittenCall { id, name: name.to_owned(), arguments })
}
