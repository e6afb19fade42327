//! The servers of a run: one (`[server]`), or several by name (`[servers.NAME]`).
//!
//! With one server, the agent sees its tools under their own names. With several, a tool `search` of the server `crm` is
//! `crm_search` to the agent and `crm/search` in the column `server_name`. Each server keeps its own sessions, contract
//! and limits.

use crate::offered::Tool;
use std::{borrow::Borrow, collections::BTreeMap};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use super::{McpError, Pool, PooledSession, Reservation, ServerSpec, State, tools};

/// One server, or several by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Servers {
    /// A single server has the name "".
    by_name: BTreeMap<String, ServerSpec>,
}

impl From<ServerSpec> for Servers {
    fn from(spec: ServerSpec) -> Self {
        Self { by_name: [(String::new(), spec)].into() }
    }
}

impl Servers {
    /// Servers by name, whose tools are prefixed even if there is only one.
    pub fn named(by_name: BTreeMap<String, ServerSpec>) -> Self {
        Self { by_name }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &ServerSpec)> {
        self.by_name.iter().map(|(name, spec)| (name.as_str(), spec))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut ServerSpec)> {
        self.by_name.iter_mut().map(|(name, spec)| (name.as_str(), spec))
    }

    /// The server without a name, if there is only that one.
    pub fn single(&self) -> Option<&ServerSpec> {
        self.by_name.get("")
    }

    /// The names of the servers, if they have names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str).filter(|name| !name.is_empty())
    }

    /// The server of a tool, from its `server_name`.
    pub fn of_tool(&self, wire_name: &str) -> Option<&ServerSpec> {
        find(&self.by_name, wire_name).ok().map(|(_, spec, _)| spec)
    }

    pub fn is_read_only(&self) -> bool {
        self.by_name.values().all(|spec| spec.state == State::ReadOnly)
    }
}

/// The server's name and its own name for a tool, from the column `server_name`.
fn split(wire_name: &str, is_single: bool) -> Option<(&str, &str)> {
    if is_single { Some(("", wire_name)) } else { wire_name.split_once('/') }
}

/// The entry of a tool's server, and the server's own name for the tool.
///
/// # Errors
/// If there is no such server.
fn find<'m, 't, N: Borrow<str> + Ord, V>(
    by_name: &'m BTreeMap<N, V>,
    wire_name: &'t str,
) -> Result<(&'m N, &'m V, &'t str), McpError> {
    let found = split(wire_name, by_name.contains_key("")).and_then(|(server, tool)| {
        let (name, entry) = by_name.get_key_value(server)?;
        Some((name, entry, tool))
    });
    found.ok_or_else(|| McpError::NoServerOfTool { tool: wire_name.to_owned() })
}

/// A pool of sessions for each server.
pub struct Pools {
    by_name: BTreeMap<String, Pool>,
}

impl Pools {
    pub fn new(servers: &Servers) -> Self {
        let pool = |(name, spec): (&str, &ServerSpec)| (name.to_owned(), Pool::named(name, spec.clone()));
        Self { by_name: servers.iter().map(pool).collect() }
    }

    /// Refuses a server that has not all of its tools among these, as they are here.
    pub fn expecting(self, tools: &[Tool]) -> Self {
        let expecting = |(name, pool): (String, Pool)| {
            let is_of = |tool: &&Tool| {
                split(&tool.server_name, name.is_empty()).is_some_and(|(server, _)| server == name)
            };
            let pool = pool.expecting(tools.iter().filter(is_of));
            (name, pool)
        };
        Self { by_name: self.by_name.into_iter().map(expecting).collect() }
    }

    /// Divides this many bytes of memory among the servers' processes ([`Pool::within_memory`]).
    pub fn within_memory(self, memory: Option<usize>) -> Self {
        let share = memory.map(|memory| memory / self.by_name.len().max(1));
        let by_name = self.by_name.into_iter().map(|(name, pool)| (name, pool.within_memory(share)));
        Self { by_name: by_name.collect() }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Pool> {
        self.by_name.values()
    }

    /// The sessions of one episode, each opened by the first call to its server.
    pub fn visit(&self) -> Visit<'_> {
        let cells = self.by_name.iter().map(|(name, pool)| (name.as_str(), (pool, OnceCell::new())));
        let (reserved, calls) = (Mutex::default(), Mutex::default());
        Visit { sessions: cells.collect(), reserves: OnceCell::new(), reserved, calls }
    }

    /// The pool of a tool's server, and the server's own name for the tool.
    ///
    /// # Errors
    /// If there is no such server.
    pub fn route<'t>(&self, wire_name: &'t str) -> Result<(&Pool, &'t str), McpError> {
        find(&self.by_name, wire_name).map(|(_, pool, tool)| (pool, tool))
    }

    /// Notes on changes of the servers' tools and on what cassettes lack, each once.
    pub fn take_notes(&self) -> Vec<String> {
        self.by_name.values().flat_map(Pool::take_notes).collect()
    }

    pub async fn close(self) {
        futures::future::join_all(self.by_name.into_values().map(Pool::close)).await;
    }
}

/// The sessions of one episode.
pub struct Visit<'p> {
    sessions: BTreeMap<&'p str, (&'p Pool, OnceCell<PooledSession>)>,
    /// Set once the places of all servers are reserved.
    reserves: OnceCell<()>,
    reserved: Mutex<BTreeMap<&'p str, Reservation>>,
    /// Calls of the agent, by tool.
    calls: Mutex<BTreeMap<String, u32>>,
}

impl<'p> Visit<'p> {
    /// Counts a call of the agent. If the tool may not be called more often in an episode, what the agent gets instead.
    pub fn refuse(&self, wire_name: &str) -> Option<String> {
        let place = self.place(wire_name).ok()?;
        let most = place.pool.most_calls(place.tool)?;
        let mut calls = self.calls.lock();
        let calls = calls.entry(wire_name.to_owned()).or_default();
        *calls += 1;
        (*calls > most).then(|| format!("this tool can be called {most} times in a task, and no more"))
    }

    /// Whether the session for a tool is open.
    pub fn is_open(&self, wire_name: &str) -> bool {
        self.place(wire_name).is_ok_and(|place| place.session.initialized())
    }

    /// The reserved place of a server's session, if several servers need one: an episode that waited for one server while it
    /// held another could wait forever. All are reserved at the first call, in the same order by every episode. With
    /// `exclusive`, read-only servers count too.
    ///
    /// # Errors
    /// If a pool is closed.
    pub async fn reservation(&self, server: &str, exclusive: bool) -> Result<Option<Reservation>, McpError> {
        let needed: Vec<(&'p str, &'p Pool)> = self
            .sessions
            .iter()
            .filter(|(_, (pool, _))| exclusive || pool.is_exclusive())
            .map(|(name, (pool, _))| (*name, *pool))
            .collect();
        if needed.len() < 2 {
            return Ok(None);
        }
        let reserve = async || {
            for (name, pool) in needed {
                let reservation = pool.reserve().await?;
                self.reserved.lock().insert(name, reservation);
            }
            Ok::<_, McpError>(())
        };
        self.reserves.get_or_try_init(reserve).await?;
        Ok(self.reserved.lock().remove(server))
    }

    /// The pool of a tool's server, the session for it, which the first call opens, and the server's own name for the
    /// tool.
    ///
    /// # Errors
    /// If there is no such server.
    pub fn place<'t>(&self, wire_name: &'t str) -> Result<CallTarget<'_, 'p, 't>, McpError> {
        let (server, (pool, session), tool) = find(&self.sessions, wire_name)?;
        Ok(CallTarget { server, pool, session, tool })
    }
}

/// Where a call of an episode goes.
pub struct CallTarget<'v, 'p, 't> {
    pub server: &'p str,
    pub pool: &'p Pool,
    pub session: &'v OnceCell<PooledSession>,
    /// The server's own name for the tool.
    pub tool: &'t str,
}

/// The tools of all servers, each list with its server's name: prefixed, and `complete_task` once.
pub fn merged(lists: impl IntoIterator<Item = (String, Vec<Tool>)>) -> Vec<Tool> {
    let mut merged: Vec<Tool> = Vec::new();
    let mut last = Vec::new();
    for (server, listed) in lists {
        let (own, added): (Vec<_>, Vec<_>) =
            tools::prefixed(&server, listed).into_iter().partition(|tool| !tool.synthetic);
        merged.extend(own);
        last = added;
    }
    merged.extend(last);
    merged
}
