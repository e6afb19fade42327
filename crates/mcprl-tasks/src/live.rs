//! The live server for scripted experts, which make many calls, mostly repeated ones.
//!
//! If the server is stateless, equal calls are made once and cached, so results do not depend on when a call
//! is made. If it has state, every visit has its own session and nothing is cached.
//!
//! A session that is lost is begun again once for each call. A visit whose calls may have changed something repeats them first;
//! only if they answer as before does it go on.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::OnceCell;

use crate::{
    chat::ToolCall,
    data::Tool,
    error::Result,
    mcp::{CallTarget, Description, McpError, Outcome, Pool, Pools, Servers, Visit},
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
    /// The calls so far, where later ones may build on them.
    made: Option<Vec<(ToolCall, Outcome)>>,
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
        CallSequence { live: self, sessions: self.pools.visit(), made: Some(Vec::new()) }
    }

    /// A visit whose calls change nothing.
    pub fn reading_visit(&self) -> CallSequence<'_> {
        CallSequence { made: None, ..self.visit() }
    }

    /// Distinct calls so far, if they are counted.
    pub fn calls(&self) -> usize {
        self.answers.as_ref().map_or(0, |answers| answers.lock().len())
    }

    /// Whether sessions are shared and equal calls are made once.
    pub fn is_shared(&self) -> bool {
        self.answers.is_some()
    }

    /// The next call like one of these is made again.
    pub fn forget<'c>(&self, calls: impl IntoIterator<Item = &'c ToolCall>) {
        if let Some(answers) = &self.answers {
            let mut answers = answers.lock();
            calls.into_iter().for_each(|call| drop(answers.remove(&key(self.wire_name(&call.name), call))));
        }
    }

    /// Makes a call without the cache, on a shared or new session.
    pub async fn call_again(&self, call: &ToolCall) -> Result<Outcome> {
        Ok(self.on_a_session(self.wire_name(&call.name), call).await?)
    }

    /// What the servers offer besides tools, with their instructions.
    pub async fn descriptions(&self) -> Result<Vec<Description>> {
        let mut descriptions = Vec::new();
        for pool in self.pools.iter() {
            descriptions.push(match described(pool).await {
                Err(McpError::Lost { .. }) => described(pool).await?,
                description => description?,
            });
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

impl Live {
    /// On a session of the pool, and on another one if it is lost, which the pool replaces.
    async fn on_a_session(&self, name: &str, call: &ToolCall) -> std::result::Result<Outcome, McpError> {
        match self.on_one_session(name, call).await {
            Err(McpError::Lost { .. }) => self.on_one_session(name, call).await,
            outcome => outcome,
        }
    }

    async fn on_one_session(&self, name: &str, call: &ToolCall) -> std::result::Result<Outcome, McpError> {
        let (pool, tool) = self.pools.route(name)?;
        pool.session().await?.call(tool, call.arguments.clone()).await
    }
}

/// Equal for equal calls.
fn key(name: &str, call: &ToolCall) -> String {
    format!("{name} {}", serde_json::Value::Object(call.arguments.clone()))
}

async fn described(pool: &Pool) -> std::result::Result<Description, McpError> {
    pool.session().await?.describe().await
}

impl CallSequence<'_> {
    pub async fn call(&mut self, call: &ToolCall) -> Result<Outcome> {
        let live = self.live;
        let name = live.wire_name(&call.name);
        if let Some(answers) = &live.answers {
            let answer = Arc::clone(answers.lock().entry(key(name, call)).or_default());
            return Ok(answer.get_or_try_init(|| live.on_a_session(name, call)).await?.clone());
        }
        let outcome = match self.send(call).await {
            Err(lost @ McpError::Lost { .. }) => match self.begin_again().await {
                true => self.send(call).await?,
                false => return Err(lost.into()),
            },
            outcome => outcome?,
        };
        if let Some(made) = &mut self.made {
            made.push((call.clone(), outcome.clone()));
        }
        Ok(outcome)
    }

    async fn send(&self, call: &ToolCall) -> std::result::Result<Outcome, McpError> {
        let name = self.live.wire_name(&call.name);
        let CallTarget { server, pool, session, tool } = self.sessions.place(name)?;
        let open = async || pool.session_with(self.sessions.reservation(server, false).await?).await;
        let session = session.get_or_try_init(open).await?;
        session.call(tool, call.arguments.clone()).await
    }

    /// Takes new sessions, and repeats the calls so far. Whether they are answered as before.
    async fn begin_again(&mut self) -> bool {
        self.sessions = self.live.pools.visit();
        for (call, before) in self.made.iter().flatten() {
            if self.send(call).await.ok().as_ref() != Some(before) {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::{Router, http::HeaderMap, response::IntoResponse, routing::post};
    use serde_json::{Map, Value, json};

    use super::*;
    use crate::mcp::{ServerSpec, State, Transport};

    /// A server that counts the calls of each session, and forgets all sessions at its fourth call.
    async fn forgetful() -> String {
        let (calls, begun) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let sessions = Arc::<Mutex<BTreeMap<String, usize>>>::default();
        let handle = move |headers: HeaderMap, body: String| async move {
            let request: Value = serde_json::from_str(&body).unwrap();
            let result = |result: Value| json!({"jsonrpc": "2.0", "id": request["id"], "result": result});
            let id = headers.get("mcp-session-id").map(|id| id.to_str().unwrap().to_owned());
            let json = [("content-type", "application/json")];
            if request["method"] == "initialize" {
                let id = format!("s{}", begun.fetch_add(1, Ordering::Relaxed));
                sessions.lock().insert(id.clone(), 0);
                let server = json!({"name": "s", "version": "1"});
                let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": server});
                return (json, [("mcp-session-id", id)], result(hello).to_string()).into_response();
            }
            if request["method"] == "tools/call" && calls.fetch_add(1, Ordering::Relaxed) == 3 {
                sessions.lock().clear();
            }
            let mut sessions = sessions.lock();
            let Some(count) = sessions.get_mut(&id.unwrap()) else {
                let error =
                    json!({"content": [{"type": "text", "text": "unknown session"}], "isError": true});
                return (json, result(error).to_string()).into_response();
            };
            *count += 1;
            (json, result(json!({"content": format!("call {count}")})).to_string()).into_response()
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, Router::new().route("/mcp", post(handle))).await });
        url
    }

    #[tokio::test]
    async fn a_session_that_is_lost_is_begun_again_and_its_calls_are_repeated() {
        let call = ToolCall { name: "t".into(), arguments: Map::new() };
        for (state, expected) in [
            (State::FreshProcess, ["call 2", "call 3", "call 4", "call 5", "call 6"]),
            (State::ReadOnly, ["call 2"; 5]),
        ] {
            let server = ServerSpec::new(Transport::http(forgetful().await), state);
            let live = Live::new(&server.into(), &[]);
            let mut visit = live.visit();
            for expected in expected {
                // `initialized` counts, too.
                assert_eq!(visit.call(&call).await.unwrap().text, expected);
            }
            drop(visit);
            for _ in 0..5 {
                live.call_again(&call).await.unwrap();
            }
            live.close().await;
        }
    }
}
