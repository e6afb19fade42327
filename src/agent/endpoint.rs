//! A conversation whose turns a model behind an endpoint writes, with the tools, limits and results of an episode.
//!
//! There are no tokens: the history has messages alone. The context is what the endpoint counts, or a quarter of the bytes if
//! it does not count. Calls that stand in the text, because the endpoint does not read them, are read here, unless
//! `strict_calls` is set; they are not in the form of the protocol.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{
    answers::Answers,
    conversation::{Dialogue, History, Hooks, Server, Turned},
    settings::AgentSettings,
    toolbox::Toolbox,
};
use crate::{
    chat::{CallForm, ToolCall, declared, in_openai_form, turn_of_text},
    error::Result as AnyResult,
    llm::{ChatReply, ChatTurn, Client, WrittenCall},
};

/// An agent whose policy is behind an endpoint.
pub struct EndpointAgent {
    pub client: Arc<Client>,
    pub system: String,
    pub toolbox: Toolbox,
    pub settings: AgentSettings,
}

/// How an endpoint samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EndpointSampling {
    pub temperature: f64,
    pub seed: Option<u64>,
}

pub struct EndpointConversation {
    agent: Arc<EndpointAgent>,
    sampling: EndpointSampling,
    history: History,
    /// Messages up to the user's last one.
    asked: usize,
    is_finished: bool,
    /// Tokens of the context as far as the endpoint has seen it, and its messages.
    context: (usize, usize),
    sampled: usize,
}

impl EndpointConversation {
    /// Starts a conversation with this message of the user.
    pub fn new(agent: Arc<EndpointAgent>, text: &str, sampling: EndpointSampling) -> Self {
        let mut messages = vec![json!({"role": "user", "content": text})];
        if !agent.system.is_empty() {
            messages.insert(0, json!({"role": "system", "content": agent.system}));
        }
        let asked = messages.len();
        let history = History { messages, ..History::default() };
        Self { agent, sampling, history, asked, is_finished: true, context: (0, 0), sampled: 0 }
    }

    pub fn into_history(self) -> History {
        History { counted_tokens: Some(self.sampled), ..self.history }
    }

    /// Keeps messages up to this one.
    fn truncate(&mut self, messages: usize) {
        self.history.messages.truncate(messages);
        if self.context.1 > messages {
            self.context = (0, 0);
        }
    }

    fn record(&mut self, reply: &ChatReply, is_loose: bool) {
        self.history.turns += 1;
        if is_loose {
            self.history.loose_calls +=
                reply.calls.iter().filter(|call| call.arguments.is_ok()).count() as u32;
        }
        let mut message = Map::from_iter([("role".to_owned(), Value::from("assistant"))]);
        message.insert("content".into(), reply.text.clone().into());
        if let Some(reasoning) = &reply.reasoning {
            message.insert("reasoning_content".into(), reasoning.clone().into());
        }
        if !reply.calls.is_empty() {
            let calls = reply.calls.iter().map(|call| {
                let arguments = call.arguments.clone().unwrap_or_default();
                let function = json!({"name": call.name, "arguments": arguments});
                let mut written = json!({"id": call.id, "type": "function", "function": function});
                if is_loose {
                    written["form"] = CallForm::Tags.name().into();
                }
                written
            });
            message.insert("tool_calls".into(), calls.collect());
        }
        self.history.messages.push(message.into());
        let tokens = |text: usize| text.div_ceil(4);
        let written = || {
            let message = self.history.messages.last().map_or(0, |message| message.to_string().len());
            tokens(message)
        };
        let before = || tokens(self.history.messages.iter().map(|message| message.to_string().len()).sum());
        let (prompt, completion) = match reply.tokens {
            Some(count) => (count.prompt as usize, count.completion as usize),
            None => (before(), written()),
        };
        self.sampled += completion;
        self.context = (prompt + completion, self.history.messages.len());
    }
}

/// Takes calls out of the text of a reply. False if there are none.
fn read_calls(reply: &mut ChatReply, tools: &[Value]) -> bool {
    let turn = turn_of_text(&reply.text, tools);
    if turn.calls.is_empty() {
        return false;
    }
    let call = |(call, id): (Result<ToolCall, String>, String)| match call {
        Ok(ToolCall { name, arguments }) => WrittenCall { id, name, arguments: Ok(arguments) },
        Err(why) => WrittenCall { id, name: String::new(), arguments: Err(why) },
    };
    reply.calls = turn.calls.into_iter().zip(turn.ids).map(call).collect();
    reply.text = turn.text;
    reply.reasoning = reply.reasoning.take().or(turn.reasoning);
    true
}

/// A message without what an endpoint does not take: reasoning, and mcprl's notes on results.
fn on_the_wire(message: &Value) -> Value {
    let mut message = in_openai_form(message);
    if let Some(message) = message.as_object_mut() {
        message.remove("reasoning_content");
        for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
            call.as_object_mut().and_then(|call| call.remove("form"));
        }
        if message["role"] == "tool" {
            message.retain(|key, _| matches!(key.as_str(), "role" | "tool_call_id" | "content"));
        }
    }
    message
}

impl Dialogue for EndpointConversation {
    fn history(&self) -> &History {
        &self.history
    }

    fn context_tokens(&self) -> usize {
        let (tokens, messages) = self.context;
        let since: usize =
            self.history.messages[messages..].iter().map(|message| message.to_string().len()).sum();
        tokens + since.div_ceil(4)
    }

    fn sampled_tokens(&self) -> usize {
        self.sampled
    }

    fn say(&mut self, text: &str) -> bool {
        if !self.is_finished {
            self.truncate(self.asked - 1);
            self.is_finished = true;
        }
        self.history.messages.push(json!({"role": "user", "content": text}));
        self.asked = self.history.messages.len();
        true
    }

    async fn turn<H: Hooks>(
        &mut self,
        server: &impl Server,
        hooks: &mut H,
        max_tokens: usize,
    ) -> AnyResult<Turned> {
        if !self.is_finished {
            self.truncate(self.asked);
        }
        let agent = self.agent.clone();
        let budget = max_tokens.min(agent.settings.max_turn_tokens);
        if budget == 0 {
            return Ok(Turned::NoRoom);
        }
        self.is_finished = false;
        let messages: Vec<Value> = self.history.messages.iter().map(on_the_wire).collect();
        let tools: Vec<Value> = agent.toolbox.functions().iter().map(declared).collect();
        let EndpointSampling { temperature, seed } = self.sampling;
        let max_tokens = u32::try_from(budget).unwrap_or(u32::MAX);
        let turn = ChatTurn { messages: &messages, tools: &tools, temperature, seed, max_tokens };
        let mut reply = match agent.client.turn(&turn).await {
            Ok(reply) => reply,
            Err(error) if error.is_context_full() => {
                self.is_finished = true;
                return Ok(Turned::NoRoom);
            }
            Err(error) => return Err(error.into()),
        };
        let is_loose =
            reply.calls.is_empty() && !agent.settings.strict_calls && read_calls(&mut reply, &tools);
        self.record(&reply, is_loose);
        hooks.text(reply.reasoning.as_deref().unwrap_or_default(), &reply.text);
        let turned = if reply.is_cut {
            Turned::Cut { tokens: reply.tokens.map_or(budget, |tokens| tokens.completion as usize) }
        } else if reply.calls.is_empty() {
            Turned::Text(reply.text)
        } else {
            let ids: Vec<String> = reply.calls.iter().map(|call| call.id.clone()).collect();
            let calls = reply.calls.into_iter().map(|call| {
                let name = call.name;
                call.arguments.map(|arguments| ToolCall { name, arguments })
            });
            let mut answers = Answers {
                toolbox: &agent.toolbox,
                settings: &agent.settings,
                history: &mut self.history,
                server,
                hooks,
            };
            match answers.calls(calls.collect(), &ids).await {
                Ok(_) => Turned::Called,
                Err(turned) => turned,
            }
        };
        self.is_finished = !matches!(turned, Turned::Lost(_));
        Ok(turned)
    }
}
