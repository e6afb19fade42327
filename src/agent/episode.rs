//! An episode: a conversation about one task, until it is done or a limit is reached.

use std::sync::Arc;

use super::{
    conversation::{Agent, Conversation, PromptTokens},
    dialogue::{Dialogue, Hooks, LostCall, ToolServer, Turned},
    endpoint::{EndpointAgent, EndpointConversation, EndpointSampling},
    history::History,
    policy::PolicyHandle,
    settings::AgentSettings,
};
use crate::{
    data::{AnswerSource, End},
    error::Result,
};

/// Answers the first turn without a call.
pub const REMINDER: &str = "Call one of the tools, or finish with complete_task and your answer.";

/// A finished episode.
#[derive(Debug)]
pub struct Episode {
    pub history: History,
    pub end: End,
    pub answer: Option<String>,
    /// How the answer was given, if there is one.
    pub answer_source: Option<AnswerSource>,
    /// The call during which the server was lost, if that ended the episode.
    pub lost: Option<LostCall>,
}

/// How the answer to a message of the user ended.
#[derive(Debug)]
pub struct Ending {
    pub end: End,
    pub answer: Option<(String, AnswerSource)>,
    /// The call during which the server was lost.
    pub lost: Option<LostCall>,
}

impl Ending {
    fn completed(answer: String, source: AnswerSource) -> Self {
        Self { end: End::Completed, answer: Some((answer, source)), lost: None }
    }
}

impl From<End> for Ending {
    fn from(end: End) -> Self {
        Self { end, answer: None, lost: None }
    }
}

/// An episode has nothing to follow.
struct NoHooks;

impl Hooks for NoHooks {}

/// Runs one episode to its end.
///
/// # Errors
/// Only if the engine fails. Failures of the server are part of the episode.
pub async fn episode(
    policy: impl PolicyHandle,
    server: &impl ToolServer,
    agent: &Arc<Agent>,
    prompt: &PromptTokens,
) -> Result<Episode> {
    let conversation = Conversation::new(agent.clone(), policy, prompt.clone());
    played(conversation, server, &agent.settings).await
}

/// Runs one episode of a policy behind an endpoint to its end.
///
/// # Errors
/// Only if the endpoint fails. Failures of the server are part of the episode.
pub async fn endpoint_episode(
    agent: &Arc<EndpointAgent>,
    server: &impl ToolServer,
    task: &str,
    sampling: EndpointSampling,
) -> Result<Episode> {
    let conversation = EndpointConversation::new(agent.clone(), task, sampling);
    played(conversation, server, &agent.settings).await
}

async fn played(
    mut conversation: impl Dialogue,
    server: &impl ToolServer,
    settings: &AgentSettings,
) -> Result<Episode> {
    let Ending { end, answer, lost } =
        self::answer(&mut conversation, server, settings, settings.reminder, &mut NoHooks).await?;
    let (answer, answer_source) = answer.unzip();
    Ok(Episode { history: conversation.into_history(), end, answer, answer_source, lost })
}

/// Lets the agent answer the user's last message: turns until it is done, or a limit is reached. Turns and calls are counted
/// from here.
///
/// # Errors
/// Only if the engine or the endpoint fails.
pub async fn answer<H: Hooks>(
    conversation: &mut impl Dialogue,
    server: &impl ToolServer,
    settings: &AgentSettings,
    reminds: bool,
    hooks: &mut H,
) -> Result<Ending> {
    let History { turns: before, tools, .. } = conversation.history();
    let (before, max_calls) = (*before, tools.len() + settings.max_calls as usize);
    let mut is_reminded = false;
    let has_turns = |history: &History| history.turns - before < settings.max_turns;
    while has_turns(conversation.history()) {
        let left = settings.max_episode_tokens.saturating_sub(conversation.context_tokens());
        let text = match conversation.turn(server, hooks, left, max_calls).await? {
            Turned::Called => continue,
            Turned::Text(text) => text,
            Turned::Completed(answer) => return Ok(Ending::completed(answer, AnswerSource::Tool)),
            Turned::Cut { tokens }
                if settings.max_turn_tokens < left && tokens >= settings.max_turn_tokens =>
            {
                return Ok(End::OutOfTurnTokens.into());
            }
            Turned::Cut { .. } | Turned::NoRoom => return Ok(End::OutOfTokens.into()),
            Turned::Lost(lost) => {
                return Ok(Ending { end: End::ServerDown, answer: None, lost: Some(lost) });
            }
        };
        let may_remind = reminds && !is_reminded;
        if may_remind && has_turns(conversation.history()) && conversation.say(REMINDER) {
            is_reminded = true;
        } else if settings.text_answers && !text.is_empty() {
            return Ok(Ending::completed(text, AnswerSource::Text));
        } else {
            return Ok(End::NoCall.into());
        }
    }
    Ok(End::OutOfTurns.into())
}
