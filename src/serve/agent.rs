//! A run's agent behind an endpoint: it plays a conversation with the run's server, and its answer is the reply.

use std::sync::Arc;

use axum::http::StatusCode;
use serde_json::{Map, Value};

use super::keep::{Keeper, Origin};
use crate::{
    agent::{History, Hooks, PromptTokens, Refusal, Reply, Talk},
    data,
    engine::Sampling,
    error::Result,
    openai::{ApiError, ChatRequest, End, Part, TokenCount, random},
    stage::{AgentSource, OpenAgent},
};

/// Whether a call is made, perhaps with other arguments.
pub type Permit = Arc<dyn Fn(&str, &mut Map<String, Value>) -> Result<(), Refusal> + Send + Sync>;

/// A run's agent, without a person.
pub struct Agent {
    pub open: OpenAgent,
    pub permit: Permit,
    pub keeper: Option<(Arc<Keeper>, Origin)>,
}

/// Gets the name of each tool that is called.
pub type Calls = Arc<dyn Fn(&str) + Send + Sync>;

struct Following<'a> {
    permit: &'a Permit,
    calls: Option<Calls>,
}

impl Hooks for Following<'_> {
    async fn permit(
        &mut self,
        tool: &str,
        arguments: &mut Map<String, Value>,
        _: &History,
    ) -> Result<(), Refusal> {
        if let Some(calls) = &self.calls {
            calls(tool);
        }
        (self.permit)(tool, arguments)
    }
}

impl Agent {
    /// The agent's reply to a prompt, in sessions of its own. If the future is dropped, it stops.
    ///
    /// # Errors
    /// If the engine fails.
    pub async fn reply(
        &self,
        prompt: PromptTokens,
        (sampling, seed): (Sampling, u64),
        calls: Option<Calls>,
    ) -> Result<Reply> {
        let mut talk = Talk::new(AgentSource { open: &self.open, sampling, seed });
        let mut hooks = Following { permit: &self.permit, calls };
        let reply = talk.begin(prompt, self.open.agent.settings.reminder, &mut hooks).await;
        if let (Some((keeper, origin)), Some(history), Ok(_)) = (&self.keeper, talk.history(), &reply) {
            keeper.conversation(origin, history);
        }
        reply
    }

    /// The prompt of a request: the agent has its own system prompt and tools.
    pub fn prompt(&self, messages: &[Value]) -> Result<PromptTokens, ApiError> {
        let chat = &self.open.agent.chat;
        for (index, message) in messages.iter().enumerate() {
            let is_text = matches!(message["role"].as_str(), Some("user" | "assistant"));
            if !is_text || message.get("tool_calls").is_some() {
                let why =
                    " by the agent: it takes texts of user and assistant, and has a system prompt and tools";
                return Err(ApiError::unsupported(format!("messages[{index}]"), why));
            }
        }
        match messages {
            [.., last] if last["role"] != "user" => {
                Err(ApiError::invalid("messages", "should end with a message of the user"))
            }
            // As in an episode.
            [task] => Ok(PromptTokens::new(chat, task["content"].as_str().unwrap_or_default())?),
            _ => Ok(PromptTokens::of_messages(chat, messages)?),
        }
    }
}

/// Lets the agent answer a request with this prompt.
///
/// # Errors
/// If the engine fails, or the server is lost.
pub async fn answer(
    agent: &Agent,
    prompt: PromptTokens,
    request: &ChatRequest,
) -> Result<(Part, TokenCount), ApiError> {
    let seed = request.seed.unwrap_or_else(random);
    let reply = agent.reply(prompt, (request.sampling(0.0), seed), None).await?;
    if let Some(cause) = reply.lost {
        let message = format!("the agent has lost its server: {cause}");
        return Err(ApiError::new(StatusCode::BAD_GATEWAY, "server_lost", message));
    }
    let reason = match reply.end {
        data::End::Completed | data::End::NoCall => "stop",
        _ => "length",
    };
    let end = Some(End { reason, tokens: Vec::new(), likeliest: Vec::new() });
    let count = TokenCount { prompt: reply.context.saturating_sub(reply.sampled), completion: reply.sampled };
    let made = match reply.json()["calls"].take() {
        Value::Array(made) => made,
        _ => Vec::new(),
    };
    Ok((Part { text: reply.answer.unwrap_or_default(), made, end, ..Part::default() }, count))
}
