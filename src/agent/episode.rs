//! An episode: a conversation about one task, until it is done or a limit is reached.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::conversation::{
    Agent, Conversation, History, Hooks, LostCall, PolicyHandle, PromptTokens, Refusal, Server, Turned,
};
use crate::{
    data::{AnswerSource, CallError, End},
    engine::EngineError,
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

/// How an episode ended.
struct Ending(End, Option<(String, AnswerSource)>, Option<LostCall>);

impl From<End> for Ending {
    fn from(end: End) -> Self {
        Self(end, None, None)
    }
}

/// Calls that may reach the server in an episode.
struct CallLimit(u32);

impl Hooks for CallLimit {
    async fn permit(
        &mut self,
        _: &str,
        _: &mut Map<String, Value>,
        history: &History,
    ) -> Result<(), Refusal> {
        match history.tools.len() < self.0 as usize {
            true => Ok(()),
            false => Err(Refusal(CallError::NoCallsLeft, "no calls are left; complete the task".into())),
        }
    }
}

/// Runs one episode to its end.
///
/// # Errors
/// Only if the engine fails. Failures of the server are part of the episode.
pub async fn episode(
    policy: impl PolicyHandle,
    server: &impl Server,
    agent: &Arc<Agent>,
    prompt: &PromptTokens,
) -> Result<Episode, EngineError> {
    let mut conversation = Conversation::new(agent.clone(), policy, prompt.clone());
    let Ending(end, answer, lost) = play(&mut conversation, server, agent).await?;
    let (answer, answer_source) = answer.unzip();
    Ok(Episode { history: conversation.into_history(), end, answer, answer_source, lost })
}

async fn play(
    conversation: &mut Conversation<impl PolicyHandle>,
    server: &impl Server,
    Agent { settings, .. }: &Agent,
) -> Result<Ending, EngineError> {
    let mut limit = CallLimit(settings.max_calls);
    let mut is_reminded = false;
    while conversation.history().turns < settings.max_turns {
        let left = settings.max_episode_tokens.saturating_sub(conversation.context_tokens());
        let text = match conversation.turn(server, &mut limit, left).await? {
            Turned::Called => continue,
            Turned::Text(text) => text,
            Turned::Completed(answer) => {
                return Ok(Ending(End::Completed, Some((answer, AnswerSource::Tool)), None));
            }
            Turned::Cut { tokens }
                if settings.max_turn_tokens < left && tokens >= settings.max_turn_tokens =>
            {
                return Ok(End::OutOfTurnTokens.into());
            }
            Turned::Cut { .. } | Turned::NoRoom => return Ok(End::OutOfTokens.into()),
            Turned::Lost(lost) => return Ok(Ending(End::ServerDown, None, Some(lost))),
        };
        let may_remind = settings.reminder && !is_reminded;
        if may_remind && conversation.history().turns < settings.max_turns && conversation.say(REMINDER) {
            is_reminded = true;
        } else if settings.text_answers && !text.is_empty() {
            return Ok(Ending(End::Completed, Some((text, AnswerSource::Text)), None));
        } else {
            return Ok(End::NoCall.into());
        }
    }
    Ok(End::OutOfTurns.into())
}
