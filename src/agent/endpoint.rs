//! A conversation whose turns a model behind an endpoint writes, with the tools, limits and results of an episode.
//!
//! There are no tokens: the history has messages alone. The context is what the endpoint counts, or a quarter of the bytes if
//! it does not count. Calls that stand in the text, because the endpoint does not read them, are read here, unless
//! `strict_calls` is set; they are not in the form of the protocol.

use std::{pin::pin, sync::Arc};

use serde_json::Value;
use tokio::sync::mpsc::unbounded_channel;

use super::{
    answers::Answers,
    conversation::with_system,
    dialogue::{Dialogue, Hooks, ToolServer, Turned},
    history::History,
    settings::AgentSettings,
    toolbox::Toolbox,
};
use crate::{
    chat::{CallForm, ToolCall, declared, turn_of_text},
    data::{CallResult, Message, MessageCall},
    error::Result as AnyResult,
    llm::{Added, ChatReply, ChatTurn, Client, WrittenCall},
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
}

impl EndpointConversation {
    /// Starts a conversation with this message of the user.
    pub fn new(agent: Arc<EndpointAgent>, text: &str, sampling: EndpointSampling) -> Self {
        let messages = with_system(&agent.system, vec![Message::user(text)]);
        let asked = messages.len();
        let history = History { messages, counted_tokens: Some(0), ..History::default() };
        Self { agent, sampling, history, asked, is_finished: true, context: (0, 0) }
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
        let form = if is_loose { CallForm::Tags } else { CallForm::Template };
        let calls = reply.calls.iter().map(|call| {
            let (id, name) = (call.id.clone(), call.name.clone());
            MessageCall { id, name, arguments: call.arguments.clone().unwrap_or_default(), form }
        });
        let message = Message::assistant(&reply.text, calls.collect());
        self.history.messages.push(Message { reasoning: reply.reasoning.clone(), ..message });
        let (prompt, completion) = match reply.tokens {
            Some(count) => (count.prompt as usize, count.completion as usize),
            None => (estimate(&self.history.messages), estimate(self.history.messages.last())),
        };
        self.history.counted_tokens = Some(self.sampled_tokens() + completion);
        self.context = (prompt + completion, self.history.messages.len());
    }
}

/// Tokens of messages that nobody has counted.
fn estimate<'m>(messages: impl IntoIterator<Item = &'m Message>) -> usize {
    messages.into_iter().map(|message| message.json().to_string().len()).sum::<usize>().div_ceil(4)
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

/// A message without what an endpoint does not take: reasoning, and mcprl's notes on calls and results.
fn on_the_wire(message: &Message) -> Value {
    let mut message = Message { reasoning: None, ..message.clone() };
    message.calls.iter_mut().for_each(|call| call.form = CallForm::Template);
    if let Some(CallResult { call_id, .. }) = message.result.take() {
        message.result = Some(CallResult { call_id, ..CallResult::default() });
        message.name = None;
    }
    message.openai()
}

impl Dialogue for EndpointConversation {
    fn history(&self) -> &History {
        &self.history
    }

    fn into_history(self) -> History {
        self.history
    }

    fn context_tokens(&self) -> usize {
        let (tokens, messages) = self.context;
        tokens + estimate(&self.history.messages[messages..])
    }

    fn sampled_tokens(&self) -> usize {
        self.history.counted_tokens.unwrap_or(0)
    }

    fn say(&mut self, text: &str) -> bool {
        if !self.is_finished {
            self.truncate(self.asked - 1);
            self.is_finished = true;
        }
        self.history.messages.push(Message::user(text));
        self.asked = self.history.messages.len();
        true
    }

    async fn turn<H: Hooks>(
        &mut self,
        server: &impl ToolServer,
        hooks: &mut H,
        max_tokens: usize,
        max_calls: usize,
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
        let (parts, mut heard) = unbounded_channel();
        let parts = H::SEES_TOKENS.then_some(&parts);
        let turn = ChatTurn { parts, messages: &messages, tools: &tools, temperature, seed, max_tokens };
        let mut asking = pin!(agent.client.turn(&turn));
        let mut so_far = Added::default();
        let reply = loop {
            tokio::select! {
                biased;
                Some(added) = heard.recv() => {
                    so_far.reasoning += &added.reasoning;
                    so_far.text += &added.text;
                    hooks.growing_text(&so_far.reasoning, &so_far.text);
                }
                reply = &mut asking => break reply,
            }
        };
        let mut reply = match reply {
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
            let (toolbox, settings) = (&agent.toolbox, &agent.settings);
            let history = &mut self.history;
            let mut answers = Answers { toolbox, settings, max_calls, history, server, hooks };
            match answers.calls(calls.collect(), &ids).await {
                Ok(()) => Turned::Called,
                Err(turned) => turned,
            }
        };
        self.is_finished = !matches!(turned, Turned::Lost(_));
        Ok(turned)
    }
}
