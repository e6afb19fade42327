//! A message of a conversation: written once, when an episode is made, and read from its column.
//!
//! [`Message::json`] is the form of a chat template, and of the files and programs that get conversations; [`Message::of_json`]
//! reads it.

use mcprl_base::call::{CallForm, ToolCall};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::{Map, Value, json};

use super::table::{named, record};

/// Who says a message.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, strum::EnumString, strum::IntoStaticStr,
)]
#[strum(serialize_all = "snake_case")]
pub enum Role {
    System,
    #[default]
    User,
    Assistant,
    /// The result of a call.
    Tool,
}

/// Why a call failed.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    strum::Display,
    strum::EnumString,
    strum::IntoStaticStr,
)]
#[strum(serialize_all = "snake_case")]
pub enum CallError {
    /// Its text is not a call.
    Unparsable,
    UnknownTool,
    /// The arguments do not fit the schema.
    Schema,
    /// The episode, or the tool, has no calls left.
    NoCallsLeft,
    /// A person or a rule did not permit it.
    Refused,
    /// The server answered with an error.
    #[default]
    Tool,
    /// The server was lost.
    ServerDown,
}

impl CallError {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The error that a result says in mcprl's own words. A program that plays in place of mcprl's loop reports nothing else.
    fn of_own_text(text: &str) -> Option<Self> {
        const OWN: [(&str, CallError); 6] = [
            ("error: the tool call is malformed: ", CallError::Unparsable),
            ("error: no tool named ", CallError::UnknownTool),
            ("error: wrong arguments of ", CallError::Schema),
            ("error: complete_task needs the argument ", CallError::Schema),
            ("error: no calls are left; ", CallError::NoCallsLeft),
            ("error: this tool can be called ", CallError::NoCallsLeft),
        ];
        OWN.into_iter().find(|(start, _)| text.starts_with(start)).map(|(_, error)| error)
    }
}

impl Role {
    /// The name in [`Message::role`].
    pub fn name(self) -> &'static str {
        self.into()
    }
}

named! {
    Role: "one of system, user, assistant, tool",
    CallForm: "a form of calls, such as template",
    CallError: "an error of a call, such as tool",
}

record! {
    /// A message.
    Message {
        /// `system`, `user`, `assistant` or `tool`.
        role: Role,
        /// What it says. Of a turn with a call that could not be parsed, all that the policy wrote; of a result, what the
        /// policy saw.
        text: String,
        /// Of a result, the tool. Of another message, the name of who says it, if it was given.
        name: Option<String>,
        /// What the policy wrote before the text, if the template tells it apart.
        reasoning: Option<String>,
        /// Calls of the assistant. One that could not be parsed is not among them.
        calls: Vec<MessageCall>,
        /// Of a result: which call it is of, and how the call went.
        result: Option<CallResult>,
        /// True for a turn of a trace that is not learned.
        unlearned: bool,
    }
}

record! {
    /// A call in a message of the assistant.
    MessageCall {
        /// Id that joins the call and its result.
        id: String,
        /// The agent's name of the tool.
        name: String,
        /// Arguments as a JSON object.
        arguments: Map<String, Value>,
        /// As in the table `calls`.
        form: CallForm,
    }
}

record! {
    /// What is known about a result.
    CallResult {
        /// Id of its call.
        call_id: String,
        /// Why the call failed, as in the table `calls`.
        error: Option<CallError>,
        /// Of a result that is clipped: bytes of the whole.
        bytes: Option<u64>,
        /// Of a result that the policy was told to be the same as before: bytes of the result alone.
        repeats: Option<u64>,
        /// The arguments that were sent as a JSON object, if they were changed.
        arguments: Option<Map<String, Value>>,
    }
}

impl MessageCall {
    pub fn new(id: &str, ToolCall { name, arguments }: ToolCall, form: CallForm) -> Self {
        Self { id: id.to_owned(), name, arguments, form }
    }

    /// The call without its id.
    pub fn tool_call(&self) -> ToolCall {
        ToolCall { name: self.name.clone(), arguments: self.arguments.clone() }
    }

    /// The arguments as JSON.
    pub fn arguments_json(&self) -> String {
        serde_json::to_string(&self.arguments).unwrap_or_default()
    }

    fn json(&self) -> Value {
        self.with_arguments(self.arguments.clone().into())
    }

    /// As OpenAI's API has it, with arguments as text.
    pub fn openai(&self) -> Value {
        self.with_arguments(self.arguments_json().into())
    }

    fn with_arguments(&self, arguments: Value) -> Value {
        let function = json!({"name": self.name, "arguments": arguments});
        let mut call = json!({"id": self.id, "type": "function", "function": function});
        if self.form != CallForm::Template {
            call["form"] = self.form.name().into();
        }
        call
    }

    fn of_json(call: &Value) -> Result<Self, String> {
        let function = call.get("function").unwrap_or(call);
        let name = function["name"].as_str().ok_or("a call has no name")?.to_owned();
        let arguments = arguments(&name, function["arguments"].clone())?;
        let form = call["form"].as_str().and_then(|form| form.parse().ok()).unwrap_or_default();
        Ok(Self { id: call["id"].as_str().unwrap_or_default().to_owned(), name, arguments, form })
    }
}

impl Message {
    pub fn new(role: Role, text: impl Into<String>) -> Self {
        Self { role, text: text.into(), ..Self::default() }
    }

    pub fn system(text: impl Into<String>) -> Self {
        Self::new(Role::System, text)
    }

    pub fn user(text: impl Into<String>) -> Self {
        Self::new(Role::User, text)
    }

    pub fn assistant(text: impl Into<String>, calls: Vec<MessageCall>) -> Self {
        Self { calls, ..Self::new(Role::Assistant, text) }
    }

    /// The result of a call of this tool.
    pub fn result(tool: &str, call_id: &str, text: impl Into<String>) -> Self {
        let result = CallResult { call_id: call_id.to_owned(), ..CallResult::default() };
        Self { name: Some(tool.to_owned()), result: Some(result), ..Self::new(Role::Tool, text) }
    }

    /// Of a result: the tool.
    pub fn tool(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// Of a result: the id of its call.
    pub fn call_id(&self) -> Option<&str> {
        self.result.as_ref().map(|result| result.call_id.as_str())
    }

    /// Of a result: why the call failed.
    pub fn error(&self) -> Option<CallError> {
        self.result.as_ref()?.error.or_else(|| CallError::of_own_text(&self.text))
    }

    /// Of a result whose middle the policy did not see: bytes of the whole.
    pub fn clipped_from(&self) -> Option<u64> {
        self.result.as_ref()?.bytes
    }

    /// As a chat template expects it: {role, content, reasoning_content?, tool_calls?, tool_call_id?, name?}, with arguments as
    /// objects. A result also has `is_error` and `error` if its call failed, and `bytes`, `repeats` and `arguments` where they
    /// are known; a turn that is not learned has the `weight` 0.
    pub fn json(&self) -> Value {
        self.with_calls(MessageCall::json)
    }

    /// As OpenAI's API has it: the same with arguments as text.
    pub fn openai(&self) -> Value {
        self.with_calls(MessageCall::openai)
    }

    fn with_calls(&self, call: fn(&MessageCall) -> Value) -> Value {
        let Self { role, text, name, reasoning, calls, result, unlearned } = self;
        let mut message = json!({"role": role.name()});
        let mut set = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                message[key] = value;
            }
        };
        set("tool_call_id", result.as_ref().map(|result| result.call_id.clone().into()));
        set("name", name.clone().map(Value::from));
        set("content", Some(text.clone().into()));
        set("reasoning_content", reasoning.clone().map(Value::from));
        set("tool_calls", (!calls.is_empty()).then(|| calls.iter().map(call).collect()));
        if let Some(CallResult { call_id: _, error, bytes, repeats, arguments }) = result {
            set("is_error", error.map(|_| true.into()));
            set("error", error.map(|error| error.name().into()));
            set("bytes", bytes.map(Value::from));
            set("repeats", repeats.map(Value::from));
            set("arguments", arguments.clone().map(Value::from));
        }
        set("weight", unlearned.then(|| 0.into()));
        message
    }

    /// Reads what [`json`](Self::json) and [`openai`](Self::openai) write. A content may also be null or have parts.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn of_json(message: &Value) -> Result<Self, String> {
        let text = |key: &str| message[key].as_str().map(str::to_owned);
        let role = message["role"].as_str().unwrap_or_default();
        let role = role.parse().map_err(|_| format!("{role:?} is no role"))?;
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        let failed = || (message["is_error"] == true).then_some(CallError::Tool);
        let result = || CallResult {
            call_id: text("tool_call_id").unwrap_or_default(),
            error: text("error").and_then(|error| error.parse().ok()).or_else(failed),
            bytes: message["bytes"].as_u64(),
            repeats: message["repeats"].as_u64(),
            arguments: message["arguments"].as_object().cloned(),
        };
        Ok(Self {
            role,
            text: content(message),
            name: text("name"),
            reasoning: text("reasoning_content"),
            calls: calls.map(MessageCall::of_json).collect::<Result<_, _>>()?,
            result: (role == Role::Tool).then(result),
            unlearned: message["weight"].as_f64() == Some(0.0),
        })
    }
}

/// What the user says first.
pub fn first_of_user(messages: &[Message]) -> Option<&str> {
    messages.iter().find(|message| message.role == Role::User).map(|message| message.text.as_str())
}

/// The text of a message in OpenAI's format: its content, or the texts of its parts.
fn content(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

/// The arguments of a call of this tool: an object, or JSON in a text, sometimes encoded twice.
///
/// # Errors
/// If they are something else.
pub fn arguments(name: &str, mut given: Value) -> Result<Map<String, Value>, String> {
    for _ in 0..2 {
        if let Value::String(text) = &given {
            given = match text.trim() {
                "" => Value::Null,
                text => serde_json::from_str(text)
                    .map_err(|error| format!("the arguments of `{name}` are not JSON: {error}"))?,
            };
        }
    }
    match given {
        Value::Object(arguments) => Ok(arguments),
        Value::Null => Ok(Map::new()),
        _ => Err(format!("the arguments of `{name}` are no object")),
    }
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::of_json(&Value::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_written_as_a_template_expects_it_and_read_again() {
        let messages = json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "name": "ann", "content": "How many?"},
            {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "count", "arguments": {"of": "boats"}}},
                {"id": "b", "type": "function", "function": {"name": "count", "arguments": {}}, "form": "bare_json"}
            ], "weight": 0},
            {"role": "tool", "tool_call_id": "a", "name": "count", "content": "7", "bytes": 900, "repeats": 1, "arguments": {"n": 1}},
            {"role": "tool", "tool_call_id": "b", "name": "count", "content": "no", "is_error": true, "error": "schema"},
        ]);
        let read: Vec<Message> = serde_json::from_value(messages.clone()).unwrap();
        assert_eq!(json!(read).to_string(), messages.to_string(), "in this order");
        let openai = read[2].openai();
        assert_eq!(openai["tool_calls"][0]["function"]["arguments"], "{\"of\":\"boats\"}");
        assert_eq!(Message::of_json(&openai), Ok(read[2].clone()));
        let parts = json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]});
        assert_eq!(Message::of_json(&parts), Ok(Message::user("a\nb")));
    }

    #[test]
    fn what_is_no_message_is_refused_with_the_reason() {
        for (message, reason) in [
            (json!({"role": "critic", "content": "x"}), "\"critic\" is no role"),
            (json!(7), "\"\" is no role"),
            (json!({"role": "assistant", "tool_calls": [{"id": "a"}]}), "a call has no name"),
            (
                json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}),
                "the arguments of `f` are no object",
            ),
        ] {
            assert_eq!(Message::of_json(&message), Err(reason.to_owned()));
        }
    }
}
