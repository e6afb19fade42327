//! Sessions of MCP clients: how many there are, and which one gives way.
//!
//! If there are too many, the one without a request under way that has been idle for longest ends, first of those that have asked
//! nothing yet. Its client gets 404, as the protocol has it, and may begin another.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rmcp::transport::streamable_http_server::{SessionManager, session::local::LocalSessionManager};

/// Sessions at once. One that is not used ends after a while.
const MOST: usize = 256;
/// How long a request waits for an earlier one with its id: the answer of that one may be on its way.
const PATIENCE: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(20);

#[derive(Clone, Default)]
pub struct McpSessions {
    pub manager: Arc<LocalSessionManager>,
    used: Arc<Mutex<BTreeMap<String, Use>>>,
}

/// How a session is used.
struct Use {
    last: Instant,
    /// The ids of the requests under way.
    open: BTreeSet<String>,
    /// Whether there was any after its beginning.
    has_asked: bool,
}

impl McpSessions {
    /// Makes room for another session. False if all are at work.
    pub async fn make_room(&self) -> bool {
        let known: BTreeSet<String> =
            self.manager.sessions.read().await.keys().map(|id| id.to_string()).collect();
        if known.len() < MOST {
            return true;
        }
        let given_up = {
            let mut used = self.used.lock();
            used.retain(|id, _| known.contains(id));
            let idle = known.iter().filter(|id| used.get(*id).is_none_or(|used| used.open.is_empty()));
            let rank = |id: &&String| used.get(*id).map(|used| (used.has_asked, used.last));
            let Some(longest) = idle.min_by_key(rank).cloned() else { return false };
            used.remove(&longest);
            longest
        };
        // Its worker may have ended already.
        _ = self.manager.close_session(&given_up.as_str().into()).await;
        true
    }

    /// A session has begun.
    pub fn begun(&self, session: &str) {
        let used = Use { last: Instant::now(), open: BTreeSet::new(), has_asked: false };
        self.used.lock().insert(session.to_owned(), used);
    }

    /// A request of a session begins, and is over when the value is dropped. `None` if one with its id is under way.
    pub async fn begin(&self, session: &str, id: &str) -> Option<Request> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(used) = self.used.lock().get_mut(session) {
                used.last = Instant::now();
                used.has_asked = true;
                if used.open.insert(id.to_owned()) {
                    break;
                }
            } else {
                // It is none of ours, which the answer says.
                break;
            }
            if Instant::now() > deadline {
                return None;
            }
            tokio::time::sleep(STEP).await;
        }
        Some(Request { sessions: self.clone(), session: session.to_owned(), id: id.to_owned() })
    }
}

/// A request under way.
pub struct Request {
    sessions: McpSessions,
    session: String,
    id: String,
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Some(used) = self.sessions.used.lock().get_mut(&self.session) {
            used.open.remove(&self.id);
            used.last = Instant::now();
        }
    }
}
