//! A run's agent behind an endpoint: it plays a conversation with the run's server, and its answer is the reply.

use std::sync::Arc;

use axum::http::StatusCode;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc::UnboundedSender;

use super::keep::{Keeper, Origin};
use crate::{
    agent::{History, Hooks, Made, PromptTokens, Refusal, Reply, Talk},
    data,
    engine::Sampling,
    error::Result,
    mcp::McpError,
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

/// Who hears of the agent's work.
#[derive(Default)]
pub struct Heard {
    pub calls: Option<Calls>,
    /// Gets each call when it is answered.
    pub made: Option<UnboundedSender<Part>>,
}

struct Following<'a> {
    permit: &'a Permit,
    heard: Heard,
}

impl Hooks for Following<'_> {
    async fn permit(
        &mut self,
        tool: &str,
        arguments: &mut Map<String, Value>,
        _: &History,
    ) -> Result<(), Refusal> {
        if let Some(calls) = &self.heard.calls {
            calls(tool);
        }
        (self.permit)(tool, arguments)
    }

    fn answered(&mut self, messages: &[Value]) {
        if let (Some(made), Some(last)) = (&self.heard.made, Made::last(messages)) {
            // Nobody may listen any more.
            _ = made.send(Part { made: vec![json!(last)], ..Part::default() });
        }
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
        heard: Heard,
    ) -> Result<Reply> {
        let mut talk = Talk::new(AgentSource { open: &self.open, sampling, seed });
        let mut hooks = Following { permit: &self.permit, heard };
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

/// The agent has lost the run's server.
pub fn lost(cause: &McpError) -> ApiError {
    ApiError::internal(StatusCode::BAD_GATEWAY, "server_lost", "the agent has lost its server", cause)
}

/// Lets the agent answer a request with this prompt. `made` gets the calls as they are answered.
///
/// # Errors
/// If the engine fails, or the server is lost.
pub async fn answer(
    agent: &Agent,
    prompt: PromptTokens,
    request: &ChatRequest,
    made: UnboundedSender<Part>,
) -> Result<(Part, TokenCount), ApiError> {
    let seed = request.seed.unwrap_or_else(random);
    let heard = Heard { made: Some(made), ..Heard::default() };
    let reply = agent.reply(prompt, (request.sampling(0.0), seed), heard).await?;
    if let Some(cause) = reply.lost {
        return Err(lost(&cause));
    }
    let reason = match reply.end {
        data::End::Completed | data::End::NoCall => "stop",
        _ => "length",
    };
    let end = Some(End { reason, tokens: Vec::new(), likeliest: Vec::new() });
    let count = TokenCount { prompt: reply.context.saturating_sub(reply.sampled), completion: reply.sampled };
    Ok((Part { text: reply.answer.unwrap_or_default(), end, ..Part::default() }, count))
}
