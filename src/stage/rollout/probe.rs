//! Whether a server that was lost answers again.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::play::Player;
use crate::{chat::ToolCall, data::Trajectory, error::Diagnostic, mcp::McpError, net::Backoff};

/// Number of probes of a failed server.
const PROBES: u32 = 5;
pub const FIRST_WAIT: Duration = Duration::from_millis(if cfg!(test) { 2 } else { 1000 });
const LONGEST_WAIT: Duration = FIRST_WAIT.saturating_mul(16);

impl Player {
    /// A call that the server has answered: the first one of some episode.
    pub(super) fn answered_call<'t>(&self, played: impl Iterator<Item = &'t Trajectory>) -> Option<ToolCall> {
        let mut called = played.filter(|trajectory| trajectory.calls > 0);
        called.find_map(|trajectory| {
            let messages: Vec<Value> = serde_json::from_str(&trajectory.messages).ok()?;
            let calls = messages.iter().filter_map(|message| message["tool_calls"].as_array()).flatten();
            let mut calls = calls.filter_map(|call| ToolCall::deserialize(&call["function"]).ok());
            calls.find(|call| self.actor.toolbox(None).request(call).is_some())
        })
    }

    /// Waits until a new session answers a tool list and a call that was answered before. Gives up after some
    /// waits.
    pub(super) async fn probe(
        &self,
        answered: Option<&ToolCall>,
        first_wait: Duration,
    ) -> Result<(), McpError> {
        let mut backoff = Backoff::new(first_wait, LONGEST_WAIT, 0);
        let mut left = PROBES;
        loop {
            tokio::time::sleep(backoff.wait(None)).await;
            left -= 1;
            match self.ask(answered).await {
                Err(cause) if left > 0 && cause.is_transient() => {}
                answer => return answer,
            }
        }
    }

    async fn ask(&self, answered: Option<&ToolCall>) -> Result<(), McpError> {
        let request = answered.and_then(|call| self.actor.toolbox(None).request(call));
        let request = match request {
            Some((wire_name, arguments)) => Some((self.pools.route(wire_name)?, arguments.into_owned())),
            None => None,
        };
        for pool in self.pools.iter() {
            let session = pool.own_session(None).await?;
            session.describe().await?;
            if let Some(((answering, tool), arguments)) = &request
                && std::ptr::eq(*answering, pool)
            {
                session.call(tool, arguments.clone()).await?;
            }
        }
        Ok(())
    }
}
