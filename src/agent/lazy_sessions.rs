//! The sessions of an episode, opened by its first calls.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::{dialogue::ToolServer, toolbox::Toolbox};
use crate::{
    chat::ToolCall,
    mcp::{CallTarget, McpError, Outcome, Pool, PooledSession, Visit},
};

/// Consecutive sessions that failed to open, after which no more are tried until a probe succeeds.
const FAILURES: u32 = 8;

/// Ends a round early, because each session to a hanging server fails only after its timeout.
#[derive(Default)]
pub struct Outage {
    /// Consecutive sessions that failed to open, by server.
    failures: Mutex<BTreeMap<String, u32>>,
    pub is_known: CancellationToken,
}

impl Outage {
    fn count(&self, server: &str, session: &Result<PooledSession, McpError>) {
        let mut failures = self.failures.lock();
        let failures = failures.entry(server.to_owned()).or_default();
        *failures = if session.is_ok() { 0 } else { *failures + 1 };
        if *failures >= FAILURES {
            self.is_known.cancel();
        }
    }
}

/// The sessions of an episode, which the first calls open.
pub struct LazySessions<'a> {
    pub sessions: Visit<'a>,
    /// On sessions of its own, which no other episode can take down.
    pub exclusive: bool,
    /// Where other episodes find out that the server is down; none for a conversation by itself.
    pub outage: Option<&'a Outage>,
}

impl LazySessions<'_> {
    pub fn is_open(&self, toolbox: &Toolbox, call: &ToolCall) -> bool {
        self.sessions.is_open(toolbox.wire_name(&call.name))
    }

    /// [`McpError::PoolClosed`] if other tries found the server down meanwhile.
    async fn open(&self, server: &str, pool: &Pool) -> Result<PooledSession, McpError> {
        let session = async {
            let reservation = self.sessions.reservation(server, self.exclusive).await?;
            match self.exclusive {
                false => pool.session_with(reservation).await,
                true => pool.own_session(reservation).await,
            }
        };
        let Some(outage) = self.outage else { return session.await };
        let session = tokio::select! {
            biased;
            () = outage.is_known.cancelled() => return Err(McpError::PoolClosed),
            session = session => session,
        };
        outage.count(server, &session);
        session
    }

    /// Calls a tool without a limit on their number.
    pub async fn send(&self, name: &str, arguments: Map<String, Value>) -> Result<Outcome, McpError> {
        let CallTarget { server, pool, session, tool } = self.sessions.place(name)?;
        session.get_or_try_init(|| self.open(server, pool)).await?.call(tool, arguments).await
    }
}

impl ToolServer for LazySessions<'_> {
    async fn ready(&self, name: &str) -> Result<(), McpError> {
        let CallTarget { server, pool, session, .. } = self.sessions.place(name)?;
        session.get_or_try_init(|| self.open(server, pool)).await.map(|_| ())
    }

    fn refuse(&self, name: &str) -> Option<String> {
        self.sessions.refuse(name)
    }

    async fn call(&self, name: &str, arguments: Map<String, Value>) -> Result<Outcome, McpError> {
        self.send(name, arguments).await
    }
}
