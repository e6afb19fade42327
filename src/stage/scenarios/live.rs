//! The live server for scripted experts, which make many calls, mostly repeated ones.
//!
//! If the server is stateless, equal calls are made once and cached, so results do not depend on when a call
//! is made. If it has state, every visit has its own session and nothing is cached.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::OnceCell;

use crate::{
    chat::ToolCall,
    data::Tool,
    error::Result,
    mcp::{CallTarget, Description, Outcome, Pools, Servers, Visit},
};

type Answers = BTreeMap<String, Arc<OnceCell<Outcome>>>;

pub struct Live {
    pools: Pools,
    /// The server's own name of each tool.
    wire_names: BTreeMap<String, String>,
    answers: Option<Mutex<Answers>>,
}

/// A sequence of calls that may build on each other.
pub struct CallSequence<'a> {
    live: &'a Live,
    sessions: Visit<'a>,
}

impl Live {
    pub fn new(servers: &Servers, tools: &[Tool]) -> Self {
        let wire_names = tools
            .iter()
            .filter(|tool| !tool.synthetic)
            .map(|tool| (tool.name.clone(), tool.server_name.clone()))
            .collect();
        let answers = servers.is_read_only().then(Mutex::default);
        Self { pools: Pools::new(servers), wire_names, answers }
    }

    pub fn visit(&self) -> CallSequence<'_> {
        CallSequence { live: self, sessions: self.pools.visit() }
    }

    /// Distinct calls so far, if they are counted.
    pub fn calls(&self) -> usize {
        self.answers.as_ref().map_or(0, |answers| answers.lock().len())
    }

    /// Whether sessions are shared and equal calls are made once.
    pub fn is_shared(&self) -> bool {
        self.answers.is_some()
    }

    /// Makes a call without the cache, on a shared or new session.
    pub async fn call_again(&self, call: &ToolCall) -> Result<Outcome> {
        let (pool, tool) = self.pools.route(self.wire_name(&call.name))?;
        Ok(pool.session().await?.call(tool, call.arguments.clone()).await?)
    }

    /// What the servers offer besides tools, with their instructions.
    pub async fn descriptions(&self) -> Result<Vec<Description>> {
        let mut descriptions = Vec::new();
        for pool in self.pools.iter() {
            descriptions.push(pool.session().await?.describe().await?);
        }
        Ok(descriptions)
    }

    pub async fn close(self) {
        self.pools.close().await;
    }

    /// The server's own name of a tool.
    pub fn wire_name<'a>(&'a self, name: &'a str) -> &'a str {
        self.wire_names.get(name).map_or(name, String::as_str)
    }
}

impl CallSequence<'_> {
    pub async fn call(&self, call: &ToolCall) -> Result<Outcome> {
        let name = self.live.wire_name(&call.name);
        let Some(answers) = &self.live.answers else {
            let CallTarget { server, pool, session, tool } = self.sessions.place(name)?;
            let open = async || pool.session_with(self.sessions.reservation(server, false).await?).await;
            let session = session.get_or_try_init(open).await?;
            return Ok(session.call(tool, call.arguments.clone()).await?);
        };
        let key = format!("{name} {}", serde_json::Value::Object(call.arguments.clone()));
        let answer = Arc::clone(answers.lock().entry(key).or_default());
        let ask = || async {
            let (pool, tool) = self.live.pools.route(name)?;
            pool.session().await?.call(tool, call.arguments.clone()).await
        };
        Ok(answer.get_or_try_init(ask).await?.clone())
    }
}
