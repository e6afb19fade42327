//! A run's agent behind an endpoint: it plays a conversation with the run's server, and its answer is the reply.

use std::sync::Arc;

use axum::http::StatusCode;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc::UnboundedSender;

use super::keep::{Keeper, Origin};
use crate::{
    agent::{CallRecord, History, Hooks, PromptTokens, Refusal, Reply, Talk},
    data::{self, Message, Role},
    engine::Sampling,
    error::Result,
    mcp::McpError,
    openai::{AnswerPart, ApiError, ChatRequest, End, TokenCount, random},
    stage::{AgentSource, Input, OpenAgent},
};

/// Whether a call is made, perhaps with other arguments.
pub type Permit = Arc<dyn Fn(&str, &mut Map<String, Value>) -> Result<(), Refusal> + Send + Sync>;

/// A run's agent, without a person.
pub struct Agent {
    pub open: OpenAgent,
    pub permit: Permit,
    pub keeper: Option<Arc<Keeper>>,
    pub origin: Origin,
}

/// Gets the name of each tool that is called.
pub type Calls = Arc<dyn Fn(&str) + Send + Sync>;

/// Who hears of the agent's work.
#[derive(Default)]
pub struct ReplyListener {
    pub calls: Option<Calls>,
    /// Gets each call when it is answered.
    pub made: Option<UnboundedSender<AnswerPart>>,
}

struct Following<'a> {
    permit: &'a Permit,
    heard: ReplyListener,
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

    fn answered(&mut self, messages: &[Message]) {
        if let (Some(made), Some(last)) = (&self.heard.made, CallRecord::last(messages)) {
            // Nobody may listen any more.
            _ = made.send(AnswerPart { made: vec![json!(last)], ..AnswerPart::default() });
        }
    }
}

impl Agent {
    /// The agent of a policy, under this name.
    pub fn new(
        open: OpenAgent,
        permit: Permit,
        keeper: Option<Arc<Keeper>>,
        model: &str,
        policy: &Input,
    ) -> Self {
        let tools = open.agent.toolbox.functions().to_vec();
        let origin = Origin { model: model.to_owned(), policy: policy.digest.to_string(), tools };
        Self { open, permit, keeper, origin }
    }

    /// The agent's reply to a prompt, in sessions of its own. If the future is dropped, it stops.
    ///
    /// # Errors
    /// If the engine fails.
    pub async fn reply(
        &self,
        prompt: PromptTokens,
        (sampling, seed): (Sampling, u64),
        heard: ReplyListener,
    ) -> Result<Reply> {
        let mut talk = Talk::new(AgentSource { open: &self.open, sampling, seed });
        let mut hooks = Following { permit: &self.permit, heard };
        let reply = talk.begin(prompt, self.open.agent.settings.reminder, &mut hooks).await;
        if let (Some(keeper), Some(history), Ok(_)) = (&self.keeper, talk.history(), &reply) {
            keeper.conversation(&self.origin, history);
        }
        reply
    }

    /// The prompt of a request: the agent has its own system prompt and tools.
    pub fn prompt(&self, messages: &[Message]) -> Result<PromptTokens, ApiError> {
        let Agent { open, .. } = self;
        ApiError::check_size(messages, open.agent.settings.max_episode_tokens)?;
        let chat = &open.agent.chat;
        for (index, message) in messages.iter().enumerate() {
            let is_text = matches!(message.role, Role::User | Role::Assistant);
            if !is_text || !message.calls.is_empty() {
                let why =
                    " by the agent: it takes texts of user and assistant, and has a system prompt and tools";
                return Err(ApiError::unsupported(format!("messages[{index}]"), why));
            }
        }
        match messages {
            [.., last] if last.role != Role::User => {
                Err(ApiError::invalid("messages", "should end with a message of the user"))
            }
            // As in an episode.
            [task] => Ok(PromptTokens::new(chat, &task.text)?),
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
    made: UnboundedSender<AnswerPart>,
) -> Result<(AnswerPart, TokenCount), ApiError> {
    let seed = request.seed.unwrap_or_else(random);
    let heard = ReplyListener { made: Some(made), ..ReplyListener::default() };
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
    Ok((AnswerPart { text: reply.answer.unwrap_or_default(), end, ..AnswerPart::default() }, count))
}
