//! Requests for chat completions. A parameter that would change the result and is not supported is refused by its name.

use std::{collections::BTreeMap, time::Duration};

use axum::{
    body::{Body, Bytes, HttpBody, to_bytes},
    http::StatusCode,
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::error::ApiError;
use crate::{
    data::{Message, MessageCall},
    engine::Sampling,
};

/// Most bytes of a request.
const BODY: usize = 8 << 20;
/// How long a client may take to send a request.
const SENDING: Duration = Duration::from_secs(60);
/// Most answers of one request.
pub const CHOICES: usize = 64;
/// Most tokens beside a sampled one, as OpenAI's API has it.
const MOST_LIKELY: usize = 20;

/// Parameters that change nothing here, whatever they are.
const WITHOUT_EFFECT: [&str; 6] =
    ["cache_prompt", "metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "user"];

/// A field of messages, parts, tools and requests that asks to keep what stands before it, which is kept anyway.
const CACHE: &str = "cache_control";

/// Most stop strings, and characters of each.
const STOPS: usize = 16;
const STOP_CHARS: usize = 1000;

/// Reads the body of a request.
///
/// # Errors
/// If it is too large, or comes too slowly.
pub async fn read_body(body: Body) -> Result<Bytes, ApiError> {
    let too_large = || {
        let message = format!("a request has at most {} MiB", BODY >> 20);
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message)
    };
    // Its length as announced: nothing is waited for.
    if body.size_hint().lower() > BODY as u64 {
        return Err(too_large());
    }
    match tokio::time::timeout(SENDING, to_bytes(body, BODY)).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(_)) => Err(too_large()),
        Err(_) => {
            let message = "the request took too long to arrive";
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout", message))
        }
    }
}

/// A request that can be answered.
#[derive(Debug, Default)]
pub struct ChatRequest {
    pub model: Option<String>,
    /// As a chat template expects them: texts instead of parts, arguments as objects.
    pub messages: Vec<Message>,
    pub tools: Vec<Value>,
    /// Whether arguments keep to the schema of their tool: a tool asks for it.
    pub strict: bool,
    /// Whether an answer has one call at most.
    pub one_call: bool,
    pub stream: bool,
    /// Whether a stream ends with the usage.
    pub include_usage: bool,
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<usize>,
    pub min_p: Option<f32>,
    pub seed: Option<u64>,
    pub stop: Vec<String>,
    pub max_tokens: Option<usize>,
    /// How many answers are sampled.
    pub choices: usize,
    pub logprobs: bool,
    /// How many of the most likely tokens stand beside each token.
    pub top_logprobs: usize,
    /// The tools of which the answer has to call one. Empty: it may be text.
    pub must_call: Vec<Value>,
    /// JSON Schema of an answer that is text.
    pub answer_schema: Option<Value>,
}

impl ChatRequest {
    /// Reads a request for at most this many choices.
    ///
    /// # Errors
    /// Names the parameter that is wrong or not supported.
    pub fn parse(body: &[u8], most_choices: usize) -> Result<Self, ApiError> {
        let wrong = |cause: serde_json::Error| {
            ApiError::new(
                StatusCode::BAD_REQUEST,
                "invalid_json",
                format!("the body is not a JSON object: {cause}"),
            )
        };
        let mut given = Fields { at: String::new(), fields: serde_json::from_slice(body).map_err(wrong)? };
        let (tools, strict) = tools(given.items("tools")?.unwrap_or_default())?;
        let mut request = Self {
            model: given.text("model")?,
            messages: messages(given.items("messages")?.unwrap_or_default())?,
            tools,
            strict,
            one_call: given.boolean("parallel_tool_calls")? == Some(false),
            stream: given.boolean("stream")?.unwrap_or(false),
            include_usage: false,
            temperature: given.number("temperature", 0.0, 2.0)?,
            top_p: given.number("top_p", 0.0, 1.0)?,
            top_k: given.integer("top_k", 0, 1 << 20)?,
            min_p: given.number("min_p", 0.0, 1.0)?,
            seed: given.seed()?,
            stop: given.stop()?,
            max_tokens: given.integer("max_completion_tokens", 1, 1 << 30)?,
            choices: given.integer("n", 1, most_choices)?.unwrap_or(1),
            logprobs: given.boolean("logprobs")?.unwrap_or(false),
            top_logprobs: given.integer("top_logprobs", 0, MOST_LIKELY)?.unwrap_or(0),
            must_call: Vec::new(),
            answer_schema: answer_schema(given.take("response_format"))?,
        };
        if request.top_logprobs > 0 && !request.logprobs {
            return Err(ApiError::invalid("top_logprobs", "needs `logprobs`"));
        }
        if request.top_logprobs > 0 && !request.stop.is_empty() {
            return Err(ApiError::unsupported("top_logprobs", " together with `stop`"));
        }
        if let Some(most) = given.integer("max_tokens", 1, 1 << 30)? {
            match request.max_tokens {
                Some(other) if other != most => {
                    return Err(ApiError::invalid("max_tokens", "is not `max_completion_tokens`"));
                }
                _ => request.max_tokens = Some(most),
            }
        }
        if let Some(options) = given.take("stream_options") {
            let mut options = Fields::of("stream_options", options)?;
            request.include_usage = options.boolean("include_usage")?.unwrap_or(false);
            options.neutral("include_obfuscation", &[json!(false)])?;
            options.end()?;
        }
        if let Some(choice) = given.take("tool_choice") {
            request.choose_tools(choice)?;
        }
        if let Some(kwargs) = given.take("chat_template_kwargs") {
            let mut kwargs = Fields::of("chat_template_kwargs", kwargs)?;
            for name in ["enable_thinking", "thinking"] {
                if kwargs.take(name).is_some() {
                    let path = kwargs.path(name);
                    return Err(ApiError::unsupported(
                        path,
                        ": `thinking` under [agent] sets it for all requests",
                    ));
                }
            }
            kwargs.end()?;
        }
        for (name, neutral) in [
            ("echo", json!([false])),
            ("frequency_penalty", json!([0])),
            ("presence_penalty", json!([0])),
            ("repetition_penalty", json!([1])),
            ("logit_bias", json!([{}])),
            ("modalities", json!([["text"]])),
            ("service_tier", json!(["auto", "default"])),
            ("store", json!([false])),
        ] {
            given.neutral(name, neutral.as_array().map_or(&[], Vec::as_slice))?;
        }
        for name in WITHOUT_EFFECT {
            given.take(name);
        }
        given.end()?;
        if request.messages.is_empty() {
            return Err(ApiError::invalid("messages", "should be a list of messages"));
        }
        Ok(request)
    }

    fn choose_tools(&mut self, choice: Value) -> Result<(), ApiError> {
        let at = "tool_choice";
        match choice {
            Value::String(choice) => match choice.as_str() {
                "auto" => {}
                "none" => self.tools.clear(),
                "required" if self.tools.is_empty() => return Err(ApiError::invalid(at, "needs `tools`")),
                "required" => self.must_call = self.tools.clone(),
                _ => return Err(ApiError::invalid(at, "should be auto, none, required or a function")),
            },
            named => {
                let mut function = Fields::of(at, named)?.function()?;
                let name = function.text("name")?;
                let is_named = |tool: &&Value| tool["function"]["name"].as_str() == name.as_deref();
                let Some(tool) = self.tools.iter().find(is_named) else {
                    return Err(function.invalid("name", "should be one of `tools`"));
                };
                self.must_call = vec![tool.clone()];
                function.end()?;
            }
        }
        Ok(())
    }

    /// How tokens are drawn, if the request does not say otherwise at this temperature.
    pub fn sampling(&self, temperature: f32) -> Sampling {
        Sampling {
            temperature: self.temperature.unwrap_or(temperature),
            top_p: self.top_p.unwrap_or(1.0),
            top_k: self.top_k.unwrap_or(0),
            min_p: self.min_p.unwrap_or(0.0),
        }
    }

    /// The parameters beyond those of a conversation and of sampling, which an agent does not take.
    pub fn refuse_for_agent(&self) -> Result<(), ApiError> {
        let given = [
            ("tools", !self.tools.is_empty()),
            ("stop", !self.stop.is_empty()),
            ("max_tokens", self.max_tokens.is_some()),
            ("n", self.choices > 1),
            ("logprobs", self.logprobs),
            ("response_format", self.answer_schema.is_some()),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            Some((name, _)) => Err(ApiError::unsupported(name, " by the agent, which has its own")),
            None => Ok(()),
        }
    }
}

/// The fields of an object, of which each is taken once.
struct Fields {
    /// Where it is, for errors.
    at: String,
    fields: Map<String, Value>,
}

impl Fields {
    fn of(at: impl Into<String>, value: Value) -> Result<Self, ApiError> {
        let at = at.into();
        match value {
            Value::Object(fields) => Ok(Self { at, fields }),
            _ => Err(ApiError::invalid(at, "should be an object")),
        }
    }

    fn path(&self, name: &str) -> String {
        if self.at.is_empty() { name.to_owned() } else { format!("{}.{name}", self.at) }
    }

    fn invalid(&self, name: &str, message: impl Into<String>) -> ApiError {
        ApiError::invalid(self.path(name), message)
    }

    /// A field that is there and not null.
    fn take(&mut self, name: &str) -> Option<Value> {
        self.fields.remove(name).filter(|value| !value.is_null())
    }

    fn typed<T: DeserializeOwned>(&mut self, name: &str, expected: &str) -> Result<Option<T>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let typed =
            serde_json::from_value(value).map_err(|_| self.invalid(name, format!("should be {expected}")));
        typed.map(Some)
    }

    /// A field that is an object.
    fn inner(&mut self, name: &str) -> Result<Self, ApiError> {
        Self::of(self.path(name), self.take(name).unwrap_or_default())
    }

    /// The function of an object of that type, which has nothing else.
    fn function(mut self) -> Result<Self, ApiError> {
        if self.text("type")?.as_deref() != Some("function") {
            return Err(ApiError::unsupported(self.path("type"), ", except \"function\""));
        }
        let function = self.inner("function")?;
        self.end()?;
        Ok(function)
    }

    fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        self.typed(name, "a text")
    }

    fn items(&mut self, name: &str) -> Result<Option<Vec<Value>>, ApiError> {
        self.typed(name, "a list")
    }

    fn boolean(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        self.typed(name, "true or false")
    }

    fn number(&mut self, name: &str, least: f64, most: f64) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = value.as_f64().filter(|number| (least..=most).contains(number));
        let wrong = || self.invalid(name, format!("should be a number from {least} to {most}"));
        number.map(|number| Some(number as f32)).ok_or_else(wrong)
    }

    fn integer(&mut self, name: &str, least: usize, most: usize) -> Result<Option<usize>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
        let wrong = || self.invalid(name, format!("should be a whole number from {least} to {most}"));
        number.filter(|number| (least..=most).contains(number)).map(Some).ok_or_else(wrong)
    }

    fn seed(&mut self) -> Result<Option<u64>, ApiError> {
        let Some(value) = self.take("seed") else { return Ok(None) };
        let seed = value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned));
        seed.map(Some).ok_or_else(|| self.invalid("seed", "should be a whole number of 64 bits"))
    }

    fn stop(&mut self) -> Result<Vec<String>, ApiError> {
        let texts = match self.take("stop") {
            None => return Ok(Vec::new()),
            Some(Value::String(text)) => vec![text],
            Some(value) => serde_json::from_value(value)
                .map_err(|_| self.invalid("stop", "should be a text or a list of texts"))?,
        };
        let fits = |text: &String| (1..=STOP_CHARS).contains(&text.chars().count());
        if texts.len() > STOPS || !texts.iter().all(fits) {
            let message = format!("should be at most {STOPS} texts of 1 to {STOP_CHARS} characters");
            return Err(self.invalid("stop", message));
        }
        Ok(texts)
    }

    /// Refuses a value that would change the result.
    fn neutral(&mut self, name: &str, neutral: &[Value]) -> Result<(), ApiError> {
        let Some(value) = self.take(name) else { return Ok(()) };
        let is =
            |neutral: &Value| *neutral == value || neutral.is_number() && neutral.as_f64() == value.as_f64();
        if neutral.iter().any(is) {
            return Ok(());
        }
        let values: Vec<String> = neutral.iter().map(Value::to_string).collect();
        let only =
            if values.is_empty() { String::new() } else { format!(", except {}", values.join(" and ")) };
        Err(ApiError::unsupported(self.path(name), &only))
    }

    /// Refuses what is left.
    fn end(mut self) -> Result<(), ApiError> {
        self.fields.retain(|name, value| !value.is_null() && name != CACHE);
        match self.fields.keys().next() {
            None => Ok(()),
            Some(name) => Err(ApiError::unsupported(self.path(name), "")),
        }
    }
}

fn messages(given: Vec<Value>) -> Result<Vec<Message>, ApiError> {
    // The name of each call so far, by its id.
    let mut called = BTreeMap::new();
    let message = |(index, value): (usize, Value)| -> Result<Message, ApiError> {
        let mut fields = Fields::of(format!("messages[{index}]"), value)?;
        let role = fields.text("role")?.unwrap_or_default();
        let content = match fields.take("content") {
            None => String::new(),
            Some(Value::String(text)) => text,
            Some(Value::Array(parts)) => {
                let at = fields.path("content");
                parts
                    .into_iter()
                    .enumerate()
                    .map(|(part, value)| text_part(format!("{at}[{part}]"), value))
                    .collect::<Result<_, _>>()?
            }
            Some(_) => return Err(fields.invalid("content", "should be a text or a list of parts")),
        };
        let mut message = match role.as_str() {
            "system" | "developer" => Message::system(content),
            "user" => Message::user(content),
            "assistant" => {
                // Clients send one or the other, or both.
                let others = fields.text("reasoning")?;
                let reasoning = fields.text("reasoning_content")?.or(others);
                let mut calls = Vec::new();
                for (number, value) in fields.items("tool_calls")?.unwrap_or_default().into_iter().enumerate()
                {
                    let call = call(fields.path(&format!("tool_calls[{number}]")), value)?;
                    called.insert(call.id.clone(), call.name.clone());
                    calls.push(call);
                }
                fields.neutral("annotations", &[json!([])])?;
                // What an answer of the agent has besides its text.
                fields.take("mcprl_calls");
                Message { reasoning, ..Message::assistant(content, calls) }
            }
            "tool" => {
                let id = fields.text("tool_call_id")?.unwrap_or_default();
                let Some(name) = called.get(&id) else {
                    return Err(fields.invalid("tool_call_id", "is not the id of an earlier call"));
                };
                fields.take("name");
                Message::result(name, &id, content)
            }
            _ => return Err(fields.invalid("role", "should be system, developer, user, assistant or tool")),
        };
        if let Some(name) = fields.text("name")? {
            message.name = Some(name);
        }
        fields.end()?;
        Ok(message)
    };
    given.into_iter().enumerate().map(message).collect()
}

/// The schema of a `response_format`.
fn answer_schema(given: Option<Value>) -> Result<Option<Value>, ApiError> {
    let Some(given) = given else { return Ok(None) };
    let mut format = Fields::of("response_format", given)?;
    let schema = match format.text("type")?.as_deref() {
        Some("text") => None,
        Some("json_object") => Some(json!({"type": "object"})),
        Some("json_schema") => {
            let mut named = format.inner("json_schema")?;
            // It is followed, whether `strict` or not.
            for name in ["name", "description", "strict"] {
                named.take(name);
            }
            let schema = named.take("schema").filter(Value::is_object);
            let schema = schema.ok_or_else(|| named.invalid("schema", "should be an object"))?;
            named.end()?;
            Some(schema)
        }
        _ => return Err(format.invalid("type", "should be text, json_object or json_schema")),
    };
    format.end()?;
    Ok(schema)
}

fn text_part(at: String, value: Value) -> Result<String, ApiError> {
    let mut part = Fields::of(at, value)?;
    let kind = part.text("type")?;
    if kind.as_deref() != Some("text") {
        return Err(ApiError::unsupported(part.path("type"), ", except \"text\""));
    }
    let text = part.text("text")?;
    let text = text.ok_or_else(|| part.invalid("text", "should be a text"))?;
    part.end()?;
    Ok(text)
}

fn call(at: String, value: Value) -> Result<MessageCall, ApiError> {
    let mut call = Fields::of(at, value)?;
    let id = call.text("id")?.ok_or_else(|| call.invalid("id", "should be a text"))?;
    call.neutral("type", &[json!("function")])?;
    call.take("index");
    let mut function = call.inner("function")?;
    call.end()?;
    let name = function.text("name")?.ok_or_else(|| function.invalid("name", "should be a text"))?;
    let arguments = match function.take("arguments") {
        None => Some(Map::new()),
        Some(Value::String(text)) if text.trim().is_empty() => Some(Map::new()),
        Some(Value::String(text)) => serde_json::from_str(&text).ok(),
        Some(Value::Object(arguments)) => Some(arguments),
        Some(_) => None,
    };
    let arguments =
        arguments.ok_or_else(|| function.invalid("arguments", "should be a JSON object, as text"))?;
    function.end()?;
    Ok(MessageCall { id, name, arguments, ..MessageCall::default() })
}

/// The tools, and whether one is strict.
fn tools(given: Vec<Value>) -> Result<(Vec<Value>, bool), ApiError> {
    let mut is_strict = false;
    let mut tool = |(index, value): (usize, Value)| -> Result<Value, ApiError> {
        let mut function = Fields::of(format!("tools[{index}]"), value)?.function()?;
        is_strict |= function.boolean("strict")?.unwrap_or(false);
        let name = function.text("name")?.filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| function.invalid("name", "should be a text"))?;
        let description = function.text("description")?;
        let parameters =
            function.take("parameters").unwrap_or_else(|| json!({"type": "object", "properties": {}}));
        if !parameters.is_object() {
            return Err(function.invalid("parameters", "should be an object"));
        }
        function.end()?;
        let mut declared = json!({"name": name});
        if let Some(description) = description {
            declared["description"] = description.into();
        }
        declared["parameters"] = parameters;
        Ok(json!({"type": "function", "function": declared}))
    };
    let tools: Result<Vec<Value>, ApiError> = given.into_iter().enumerate().map(&mut tool).collect();
    Ok((tools?, is_strict))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(request: Value) -> Result<ChatRequest, ApiError> {
        ChatRequest::parse(request.to_string().as_bytes(), 4)
    }

    /// A request with these fields in addition.
    fn with(fields: Value) -> Result<ChatRequest, ApiError> {
        let mut request = json!({"messages": [{"role": "user", "content": "Hi"}]});
        request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        parse(request)
    }

    #[test]
    fn what_asks_to_keep_a_prompt_changes_nothing_wherever_it_is() {
        let cached = json!({"type": "ephemeral"});
        let request = parse(json!({
            "cache_control": cached, "cache_prompt": true, "echo": false, "chat_template_kwargs": {},
            "messages": [
                {"role": "user", "cache_control": cached, "content": [{"type": "text", "text": "Hi", "cache_control": cached}]},
            ],
            "tools": [{"type": "function", "cache_control": cached, "function": {"name": "f", "cache_control": cached}}],
        }));
        let request = request.unwrap();
        assert_eq!(request.messages, [Message::user("Hi")]);
        assert_eq!(request.tools[0]["function"]["name"], "f");
        let refused = with(json!({"chat_template_kwargs": {"enable_thinking": false}})).unwrap_err();
        let refused = format!("{refused:?}");
        assert!(refused.contains("`thinking` under [agent]"), "{refused}");
    }

    #[test]
    fn what_would_change_the_result_and_is_not_supported_is_refused_by_name() {
        for (fields, param) in [
            (json!({"tool_choice": "required"}), "tool_choice"),
            (json!({"tool_choice": "any"}), "tool_choice"),
            (
                json!({"tool_choice": {"type": "function", "function": {"name": "f"}}}),
                "tool_choice.function.name",
            ),
            (json!({"tool_choice": {"type": "allowed_tools"}}), "tool_choice.type"),
            (json!({"top_logprobs": 2}), "top_logprobs"),
            (json!({"top_logprobs": 21, "logprobs": true}), "top_logprobs"),
            (json!({"top_logprobs": 2, "logprobs": true, "stop": "END"}), "top_logprobs"),
            (json!({"response_format": {"type": "grammar"}}), "response_format.type"),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}),
                "response_format.json_schema.schema",
            ),
            (json!({"parallel_tool_calls": "no"}), "parallel_tool_calls"),
            (json!({"frequency_penalty": 0.5}), "frequency_penalty"),
            (json!({"reasoning_effort": "low"}), "reasoning_effort"),
            (json!({"functions": []}), "functions"),
            (json!({"stream_options": {"other": 1}}), "stream_options.other"),
            (json!({"n": 5}), "n"),
            (json!({"n": 0}), "n"),
            (json!({"temperature": -1}), "temperature"),
            (json!({"temperature": "hot"}), "temperature"),
            (json!({"top_p": 1.5}), "top_p"),
            (json!({"seed": 1.5}), "seed"),
            (json!({"stop": ["a", 7]}), "stop"),
            (json!({"stop": ""}), "stop"),
            (json!({"max_tokens": 0}), "max_tokens"),
            (json!({"max_tokens": 3, "max_completion_tokens": 4}), "max_tokens"),
            (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
            (
                json!({"tools": [{"type": "function", "function": {"name": "f", "strict": "yes"}}]}),
                "tools[0].function.strict",
            ),
            (json!({"tools": [{"type": "function", "function": {}}]}), "tools[0].function.name"),
            (json!({"messages": []}), "messages"),
            (json!({"messages": [{"role": "critic", "content": "x"}]}), "messages[0].role"),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
                "messages[0].content[0].type",
            ),
            (
                json!({"messages": [{"role": "tool", "tool_call_id": "x", "content": "x"}]}),
                "messages[0].tool_call_id",
            ),
            (
                json!({"messages": [{"role": "user", "content": "x", "audio": {"id": 1}}]}),
                "messages[0].audio",
            ),
        ] {
            let error = with(fields.clone()).err().unwrap_or_else(|| panic!("{fields} is taken"));
            assert_eq!(error.json()["error"]["param"], param, "{fields}: {}", error.json());
        }
        assert!(ChatRequest::parse(b"{\"messages\": ", 4).is_err() && ChatRequest::parse(b"[]", 4).is_err());
    }

    #[test]
    fn what_changes_nothing_is_taken() {
        let request = with(json!({
            "temperature": null, "tool_choice": "auto", "top_logprobs": 0, "frequency_penalty": 0.0, "logit_bias": {},
            "response_format": {"type": "text"}, "user": "me", "metadata": {"a": "b"}, "store": false, "n": 1,
            "stream_options": {"include_usage": true}, "parallel_tool_calls": true, "stop": "END", "seed": -1,
        }))
        .unwrap();
        assert_eq!(
            (request.stop, request.seed, request.include_usage),
            (vec!["END".to_owned()], Some(u64::MAX), true)
        );
    }

    #[test]
    fn messages_are_as_a_template_expects_them() {
        let call =
            json!({"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{\"at\": 7}"}});
        let request = parse(json!({"messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null, "reasoning": "Hm.", "refusal": null, "mcprl_calls": [{}], "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "8"},
        ]}))
        .unwrap();
        let call =
            json!({"id": "c1", "type": "function", "function": {"name": "look", "arguments": {"at": 7}}});
        let expected = json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "ab"},
            {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "name": "look", "content": "8"},
        ]);
        assert_eq!(json!(request.messages), expected);
        let wrong = json!({"messages": [{"role": "assistant", "tool_calls": [
            {"id": "c", "function": {"name": "f", "arguments": "[1"}}
        ]}]});
        assert_eq!(
            parse(wrong).err().unwrap().json()["error"]["param"],
            "messages[0].tool_calls[0].function.arguments"
        );
    }

    #[test]
    fn the_choice_of_tools_says_what_is_offered_and_what_has_to_be_called() {
        let function = |name: &str| json!({"type": "function", "function": {"name": name}});
        let tools = json!([function("f"), function("g")]);
        for (choice, offered, must_call) in [
            (json!(null), 2, vec![]),
            (json!("auto"), 2, vec![]),
            (json!("none"), 0, vec![]),
            (json!("required"), 2, vec!["f", "g"]),
            (function("g"), 2, vec!["g"]),
        ] {
            let request = with(json!({"tools": tools, "tool_choice": choice})).unwrap();
            let name = |tool: &Value| tool["function"]["name"].as_str().unwrap_or_default().to_owned();
            let names: Vec<String> = request.must_call.iter().map(name).collect();
            assert_eq!(
                (request.tools.len(), names),
                (offered, must_call.iter().map(ToString::to_string).collect()),
                "{choice}"
            );
        }
    }

    #[test]
    fn a_function_may_ask_for_strict_arguments() {
        let function =
            |strict: Value| json!({"type": "function", "function": {"name": "f", "strict": strict}});
        for (tools, is_strict) in [
            (json!([function(json!(true))]), true),
            (json!([function(json!(null)), function(json!(true))]), true),
            (json!([function(json!(false))]), false),
        ] {
            assert_eq!(with(json!({"tools": tools})).unwrap().strict, is_strict, "{tools}");
        }
    }

    #[test]
    fn a_response_format_is_a_schema_of_the_answer() {
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
        for (format, expected) in [
            (json!({"type": "text"}), None),
            (json!({"type": "json_object"}), Some(json!({"type": "object"}))),
            (
                json!({"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": schema}}),
                Some(schema.clone()),
            ),
        ] {
            let request = with(json!({"response_format": format})).unwrap();
            assert_eq!(request.answer_schema, expected, "{format}");
        }
    }
}
