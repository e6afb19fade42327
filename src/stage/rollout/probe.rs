//! Whether a server that was lost answers again.

use std::time::Duration;

use crate::{
    agent::Toolbox,
    chat::ToolCall,
    data::Trajectory,
    error::Diagnostic,
    mcp::{McpError, Pools},
    net::Backoff,
};

/// Number of probes of a failed server.
const PROBES: u32 = 5;
pub const FIRST_WAIT: Duration = Duration::from_millis(if cfg!(test) { 2 } else { 1000 });
const LONGEST_WAIT: Duration = FIRST_WAIT.saturating_mul(16);

/// A call that the server has answered: the first one of some episode.
pub fn answered_call<'t>(
    toolbox: &Toolbox,
    played: impl Iterator<Item = &'t Trajectory>,
) -> Option<ToolCall> {
    let mut called = played.filter(|trajectory| trajectory.calls > 0);
    called.find_map(|trajectory| {
        let mut calls = trajectory.messages.iter().flat_map(|message| &message.calls);
        calls.find_map(|call| Some(call.tool_call()).filter(|call| toolbox.request(call).is_some()))
    })
}

/// Waits until a new session answers a tool list and a call that was answered before. Gives up after some waits.
pub async fn probe(
    pools: &Pools,
    toolbox: &Toolbox,
    answered: Option<&ToolCall>,
    first_wait: Duration,
) -> Result<(), McpError> {
    let mut backoff = Backoff::new(first_wait, LONGEST_WAIT, 0);
    let mut left = PROBES;
    loop {
        tokio::time::sleep(backoff.wait(None)).await;
        left -= 1;
        match ask(pools, toolbox, answered).await {
            Err(cause) if left > 0 && cause.is_transient() => {}
            answer => return answer,
        }
    }
}

async fn ask(pools: &Pools, toolbox: &Toolbox, answered: Option<&ToolCall>) -> Result<(), McpError> {
    let request = answered.and_then(|call| toolbox.request(call));
    let request = match request {
        Some((wire_name, arguments)) => Some((pools.route(wire_name)?, arguments.into_owned())),
        None => None,
    };
    for pool in pools.iter() {
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
