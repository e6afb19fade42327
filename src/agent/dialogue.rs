//! The turns of an agent and the messages of a user, whatever the policy is: who answers its calls, and who follows and decides.

use std::future::Future;

use serde_json::{Map, Value};

use super::history::History;
use crate::{
    chat::ToolCall,
    data::{CallError, Message},
    error::Result as AnyResult,
    mcp::{McpError, Outcome, Session},
};

/// Answers tool calls: an MCP session, or a script in tests.
pub trait ToolServer: Sync {
    /// Prepares a call of a tool.
    fn ready(&self, _name: &str) -> impl Future<Output = Result<(), McpError>> + Send {
        async { Ok(()) }
    }

    /// Counts a call of a tool. If the tool may not be called more often in the conversation, the reason, and it is not
    /// called.
    fn refuse(&self, _name: &str) -> Option<String> {
        None
    }

    /// Calls a tool by the server's name for it. An error means that there is no answer.
    fn call(
        &self,
        name: &str,
        arguments: Map<String, Value>,
    ) -> impl Future<Output = Result<Outcome, McpError>> + Send;
}

impl ToolServer for Session {
    async fn call(&self, name: &str, arguments: Map<String, Value>) -> Result<Outcome, McpError> {
        Session::call(self, name, arguments).await
    }
}

/// Follows a turn while it happens, and decides about its calls.
pub trait Hooks: Send {
    /// Whether [`token`](Self::token) is called.
    const SEES_TOKENS: bool = false;

    /// The policy sampled a token.
    fn token(&mut self, _token: u32) {}

    /// A policy without tokens, behind an endpoint, has written this much of a turn. Called if
    /// [`SEES_TOKENS`](Self::SEES_TOKENS), and only by endpoints that stream.
    fn growing_text(&mut self, _reasoning: &str, _text: &str) {}

    /// A policy without tokens, behind an endpoint, wrote a turn with this reasoning and text.
    fn text(&mut self, _reasoning: &str, _text: &str) {}

    /// Decides about a call whose arguments fit the tool's schema. Changed arguments are sent as they are.
    ///
    /// # Errors
    /// Why the call is not made, which the policy sees.
    fn permit(
        &mut self,
        _tool: &str,
        _arguments: &mut Map<String, Value>,
        _history: &History,
    ) -> impl Future<Output = Result<(), Refusal>> + Send {
        async { Ok(()) }
    }

    /// A call was answered with the last of these, [`History::messages`].
    fn answered(&mut self, _messages: &[Message]) {}
}

/// Why a call is not made.
#[derive(Debug)]
pub struct Refusal(pub CallError, pub String);

/// How a turn of the agent ended.
#[derive(Debug)]
pub enum Turned {
    /// Its calls were answered; the next turn is the agent's, too.
    Called,
    /// It has no call. The text outside its reasoning.
    Text(String),
    /// It called `complete_task` with this answer.
    Completed(String),
    /// It did not end by itself, but after so many tokens.
    Cut { tokens: usize },
    /// There was no room for a token.
    NoRoom,
    /// A call had no answer. The turn is not finished.
    Lost(LostCall),
}

/// A call that was not answered, and its error.
#[derive(Debug)]
pub struct LostCall {
    pub call: ToolCall,
    pub cause: McpError,
}

/// Turns of an agent and messages of a user.
pub trait Dialogue: Send {
    fn history(&self) -> &History;

    fn into_history(self) -> History;

    /// Tokens of the context that the next turn continues.
    fn context_tokens(&self) -> usize;

    /// Tokens that were sampled so far.
    fn sampled_tokens(&self) -> usize {
        self.history().sampled.iter().filter(|sampled| **sampled).count()
    }

    /// Adds a message of the user, in place of one that the agent has not answered. False, and nothing changes, if the
    /// template cannot carry it.
    fn say(&mut self, text: &str) -> bool;

    /// Lets the agent write a turn of at most this many tokens, and answers its calls, unless the server has got
    /// `max_calls` of them since the conversation began.
    ///
    /// # Errors
    /// Only if the engine or the endpoint fails.
    fn turn<H: Hooks>(
        &mut self,
        server: &impl ToolServer,
        hooks: &mut H,
        max_tokens: usize,
        max_calls: usize,
    ) -> impl Future<Output = AnyResult<Turned>> + Send;
}
