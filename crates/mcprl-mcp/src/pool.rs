//! A pool of sessions for episodes, isolated as [`State`] requires.
//!
//! | state | a session is | before it is handed out | when it is returned |
//! |---|---|---|---|
//! | read-only | shared; the least used one is handed out | – | stays open |
//! | fresh process, snapshot | exclusive to one episode | is started | is ended |
//! | reset tool | exclusive to one episode | the tool is called | is reused, unless a call of it was not answered |
//!
//! No more sessions are open at once than `limits.sessions`. Without it, the number of exclusive sessions follows from the
//! memory that the first ones use.
//!
//! The first session of a pool is asked for its tools, and any session whose server announces a change of the list. They
//! must be those that the pool [expects](Pool::expecting). With [`ListChange::Note`], an announced change is only noted.
//!
//! A session that is dead or has lost a call is replaced, up to a number of restarts per minute.
//! An episode may also request an exclusive session, whatever the state. It takes the place of a shared one that nobody uses.

use crate::offered::Tool;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    num::NonZero,
    sync::Arc,
    time::{Duration, Instant},
};

use mcprl_base::hash::Digest;
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{Notify, OnceCell, OwnedSemaphorePermit, Semaphore},
};
use tokio_util::task::TaskTracker;

use super::{
    ListChange, McpError, ServerSpec, Session, State, Transport, cassette::CassetteMode, tools, tools_digest,
    untrusted::shorten,
};

/// Maximum number of dead sessions replaced within a minute. After that the pool reports an error.
const RESTARTS: usize = 20;
const RESTART_WINDOW: Duration = Duration::from_secs(60);
/// Servers that start at once, if there are no more cores. Starting is expensive, and too many at once time each other out.
const SPAWNS: usize = 4;
/// Sessions without a set number: shared ones, exclusive ones at a URL, and exclusive ones of a command whatever their memory.
const SHARED_SESSIONS: usize = 16;
const URL_SESSIONS: usize = 16;
const MOST_SESSIONS: usize = 256;
/// How many sessions' memory is measured, when they begin and when they are returned.
const MEASURED: usize = 16;

/// A pool of sessions, isolated as [`State`] requires; dead ones are replaced.
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    /// Empty for the only server of a run.
    name: String,
    spec: ServerSpec,
    /// The tools that the server must have.
    expected: Vec<Tool>,
    /// Set once the server has them.
    checked: OnceCell<()>,
    /// What its sessions record to or are played from.
    tape: OnceCell<CassetteMode>,
    spawns: Semaphore,
    /// One permit per exclusive session, held until its process has ended. If the number of sessions is set, shared ones have
    /// permits too.
    own: Arc<Semaphore>,
    /// `None` if the number of exclusive sessions is fixed.
    capacity: Option<Mutex<Capacity>>,
    /// Exclusive sessions that are idle. Only a reset makes one fit for an episode again.
    idle: Mutex<Vec<Session>>,
    /// Sessions that several episodes use.
    slots: Vec<tokio::sync::Mutex<Slot>>,
    /// How many episodes use each slot.
    users: Mutex<Vec<usize>>,
    /// Somebody no longer uses a slot.
    left: Notify,
    restarts: Mutex<VecDeque<Instant>>,
    /// Changes of tools that stop nothing.
    notes: Mutex<BTreeSet<String>>,
    /// Sessions being closed.
    closing: TaskTracker,
}

/// A session that several episodes use, and the permit for it.
#[derive(Default)]
struct Slot {
    session: Option<Arc<Session>>,
    permit: Option<OwnedSemaphorePermit>,
}

/// How many exclusive sessions fit into memory.
struct Capacity {
    /// For all of them, in bytes.
    memory: usize,
    sessions: usize,
    least: usize,
    /// Bytes of the largest session so far.
    largest: usize,
    measured: usize,
}

impl Capacity {
    /// The number of sessions, given one more measurement.
    fn after(&mut self, bytes: usize) -> usize {
        self.measured += 1;
        self.largest = self.largest.max(bytes);
        (self.memory / self.largest.max(1)).clamp(self.least, MOST_SESSIONS.max(self.least))
    }
}

impl Pool {
    /// A pool that opens sessions on demand, up to `limits.sessions`.
    pub fn new(spec: ServerSpec) -> Self {
        Self::named("", spec)
    }

    /// The server of the sessions.
    pub fn spec(&self) -> &ServerSpec {
        &self.shared.spec
    }

    /// A pool of one of several servers.
    pub(super) fn named(name: &str, spec: ServerSpec) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let least = SPAWNS.max(cores);
        let (shared_sessions, own_sessions) = match (spec.limits.sessions, &spec.transport) {
            (Some(sessions), _) => (sessions.max(1), sessions.max(1)),
            (None, Transport::Stdio { .. }) => (least.min(SHARED_SESSIONS), least),
            (None, Transport::Http { .. }) => (SPAWNS, URL_SESSIONS),
            (None, Transport::Cassette(_)) => (SHARED_SESSIONS, MOST_SESSIONS),
        };
        let shared = Shared {
            name: name.to_owned(),
            spec,
            expected: Vec::new(),
            checked: OnceCell::new(),
            tape: OnceCell::new(),
            spawns: Semaphore::new(least),
            own: Arc::new(Semaphore::new(own_sessions)),
            capacity: None,
            idle: Mutex::default(),
            slots: (0..shared_sessions).map(|_| tokio::sync::Mutex::default()).collect(),
            users: Mutex::new(vec![0; shared_sessions]),
            left: Notify::new(),
            restarts: Mutex::default(),
            notes: Mutex::default(),
            closing: TaskTracker::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// If `limits.sessions` is not set, opens as many processes at once as take this many bytes of memory.
    pub fn within_memory(mut self, memory: Option<usize>) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.shared)
            && let (Some(memory), None) = (memory, shared.spec.limits.sessions)
            && matches!(shared.spec.transport, Transport::Stdio { .. })
        {
            let sessions = shared.own.available_permits();
            shared.capacity =
                Some(Mutex::new(Capacity { memory, sessions, least: sessions, largest: 0, measured: 0 }));
        }
        self
    }

    /// Refuses a server that has not all of these tools, as they are here.
    pub fn expecting<'t>(mut self, tools: impl IntoIterator<Item = &'t Tool>) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.expected = tools.into_iter().filter(|tool| !tool.synthetic).cloned().collect();
        }
        self
    }

    /// Hands out a session. Waits if all sessions are in exclusive use.
    pub async fn session(&self) -> Result<PooledSession, McpError> {
        self.session_with(None).await
    }

    /// The same, with a place that was reserved before.
    pub async fn session_with(&self, reservation: Option<Reservation>) -> Result<PooledSession, McpError> {
        match self.is_exclusive() {
            true => self.own_session(reservation).await,
            false => self.shared_session().await,
        }
    }

    /// Hands out an exclusive session; for a read-only server, a new one. Takes the place that was reserved before, if there
    /// is one.
    pub async fn own_session(&self, reservation: Option<Reservation>) -> Result<PooledSession, McpError> {
        let Reservation(permit) = match reservation {
            Some(reservation) => reservation,
            None => self.reserve().await?,
        };
        let reset_tool = self.shared.spec.state.reset_tool();
        let session = match reset_tool {
            None => self.shared.connect().await?,
            Some(tool) => self.shared.reset_session(tool).await?,
        };
        self.shared.measure(&session);
        let own = ExclusiveSession {
            session,
            shared: Arc::clone(&self.shared),
            permit,
            reused: reset_tool.is_some(),
            runtime: Handle::current(),
        };
        Ok(PooledSession { session: Some(Checkout::Exclusive(Box::new(own))) })
    }

    /// Whether [`Pool::session`] is for one episode alone.
    pub(super) fn is_exclusive(&self) -> bool {
        self.shared.spec.state != State::ReadOnly
    }

    /// Waits for the place of an exclusive session.
    pub(super) async fn reserve(&self) -> Result<Reservation, McpError> {
        let shared = &self.shared;
        if let Ok(permit) = Arc::clone(&shared.own).try_acquire_owned() {
            return Ok(Reservation(permit));
        }
        let mut permit = std::pin::pin!(Arc::clone(&shared.own).acquire_owned());
        loop {
            shared.close_unused().await;
            tokio::select! {
                biased;
                permit = &mut permit => return permit.map(Reservation).map_err(|_| McpError::PoolClosed),
                () = shared.left.notified() => {}
            }
        }
    }

    /// Changes of tools since the last call, where they stop nothing ([`ListChange::Note`]), and what a cassette lacks.
    pub(super) fn take_notes(&self) -> BTreeSet<String> {
        let mut notes = std::mem::take(&mut *self.shared.notes.lock());
        if let Some(CassetteMode::Record(recorder)) = self.shared.tape.get() {
            notes.extend(recorder.take_notes());
        }
        notes
    }

    /// How often the agent may call a tool in an episode.
    pub(super) fn most_calls(&self, tool: &str) -> Option<u32> {
        self.shared.spec.limits.tools.get(tool)?.calls
    }

    /// Closes every idle session. Sessions in use close when they are returned.
    pub async fn close(self) {
        self.shared.own.close();
        let mut closing = std::mem::take(&mut *self.shared.idle.lock());
        for slot in &self.shared.slots {
            closing.extend(slot.lock().await.session.take().and_then(Arc::into_inner));
        }
        futures::future::join_all(closing.into_iter().map(Session::close)).await;
        self.shared.closing.close();
        self.shared.closing.wait().await;
    }

    async fn shared_session(&self) -> Result<PooledSession, McpError> {
        if self.shared.own.is_closed() {
            return Err(McpError::PoolClosed);
        }
        let user = SlotUser::of_least_used(&self.shared);
        let mut slot = self.shared.slots[user.slot].lock().await;
        if let Some(session) = slot.session.as_ref().filter(|session| session.is_alive()) {
            self.shared.check_change(session).await?;
            return Ok(PooledSession { session: Some(Checkout::Shared(Arc::clone(session), user)) });
        }
        if slot.session.take().is_some() {
            self.shared.count_restart()?;
        }
        // A session that takes the place of another has its permit.
        if slot.permit.is_none() && self.shared.spec.limits.sessions.is_some() {
            let Reservation(permit) = self.reserve().await?;
            slot.permit = Some(permit);
        }
        let session = Arc::new(self.shared.connect().await?);
        slot.session = Some(Arc::clone(&session));
        Ok(PooledSession { session: Some(Checkout::Shared(session, user)) })
    }
}

impl Shared {
    async fn connect(&self) -> Result<Session, McpError> {
        let _permit = self.spawns.acquire().await.map_err(|_| McpError::PoolClosed)?;
        let tape = self.tape.get_or_try_init(|| CassetteMode::open(&self.spec)).await?;
        let session = Session::connect_with(&self.spec, tape.clone()).await?;
        self.checked.get_or_try_init(|| self.check_tools(&session)).await?;
        self.check_change(&session).await?;
        Ok(session)
    }

    /// Checks the tools again if the server has announced a change.
    async fn check_change(&self, session: &Session) -> Result<(), McpError> {
        if !session.has_changed_tools() {
            return Ok(());
        }
        match self.check_tools(session).await {
            Err(changed @ McpError::ToolChanged { .. }) if self.spec.on_list_change == ListChange::Note => {
                self.notes.lock().insert(changed.to_string());
                Ok(())
            }
            checked => checked,
        }
    }

    /// Closes the shared sessions that nobody uses.
    async fn close_unused(&self) {
        for (index, slot) in self.slots.iter().enumerate() {
            // A slot that is locked is about to be used.
            let Ok(mut slot) = slot.try_lock() else { continue };
            if self.users.lock()[index] > 0 {
                continue;
            }
            if let Some(session) = slot.session.take().and_then(Arc::into_inner) {
                session.close().await;
            }
            slot.permit = None;
        }
    }

    /// Adjusts the number of exclusive sessions to the memory that they use.
    fn measure(&self, session: &Session) {
        let Some(capacity) = &self.capacity else { return };
        if capacity.lock().measured >= MEASURED {
            return;
        }
        let Some(bytes) = session.memory() else { return };
        let mut capacity = capacity.lock();
        let fitting = capacity.after(bytes);
        match fitting.checked_sub(capacity.sessions) {
            Some(more) => {
                self.own.add_permits(more);
                capacity.sessions = fitting;
            }
            // Sessions in use stay.
            None => capacity.sessions -= self.own.forget_permits(capacity.sessions - fitting),
        }
    }

    async fn check_tools(&self, session: &Session) -> Result<(), McpError> {
        if self.expected.is_empty() {
            return Ok(());
        }
        let tools = tools::prefixed(&self.name, session.tools().await?);
        let digest = |tool: &Tool| tools_digest(std::slice::from_ref(tool));
        let now: BTreeMap<&str, Digest> =
            tools.iter().map(|tool| (tool.server_name.as_str(), digest(tool))).collect();
        let is_changed = |tool: &&Tool| now.get(tool.server_name.as_str()) != Some(&digest(tool));
        match self.expected.iter().find(is_changed) {
            None => Ok(()),
            Some(tool) => Err(McpError::ToolChanged {
                server: self.spec.transport.to_string(),
                tool: shorten(&tool.server_name),
            }),
        }
    }

    /// A session on which the reset tool has just succeeded.
    async fn reset_session(&self, tool: &str) -> Result<Session, McpError> {
        loop {
            let idle = self.idle.lock().pop();
            let is_new = idle.is_none();
            let session = match idle {
                Some(idle) => {
                    self.check_change(&idle).await?;
                    idle
                }
                None => self.connect().await?,
            };
            match session.reset(tool).await {
                Ok(outcome) if outcome.is_error => {
                    return Err(McpError::Reset { tool: tool.to_owned(), reason: outcome.text });
                }
                Ok(_) => return Ok(session),
                Err(cause) if is_new => return Err(cause),
                // It died while it was idle.
                Err(_) => self.count_restart()?,
            }
        }
    }

    fn count_restart(&self) -> Result<(), McpError> {
        let mut restarts = self.restarts.lock();
        let now = Instant::now();
        while restarts.front().is_some_and(|then| now.duration_since(*then) > RESTART_WINDOW) {
            restarts.pop_front();
        }
        restarts.push_back(now);
        if restarts.len() > RESTARTS {
            return Err(McpError::Restarts { server: self.spec.transport.to_string(), limit: RESTARTS });
        }
        Ok(())
    }
}

/// The place of an exclusive session that is not open yet.
pub struct Reservation(OwnedSemaphorePermit);

/// A session of a pool. Returned to the pool on drop.
pub struct PooledSession {
    /// `None` only during drop.
    session: Option<Checkout>,
}

enum Checkout {
    Shared(Arc<Session>, #[expect(dead_code, reason = "counts as a user until dropped")] SlotUser),
    Exclusive(Box<ExclusiveSession>),
}

/// An exclusive session, its permit, and the pool it returns to.
struct ExclusiveSession {
    session: Session,
    shared: Arc<Shared>,
    permit: OwnedSemaphorePermit,
    /// Whether the session may be reused.
    reused: bool,
    runtime: Handle,
}

impl std::ops::Deref for PooledSession {
    type Target = Session;

    fn deref(&self) -> &Session {
        match &self.session {
            Some(Checkout::Shared(session, _)) => session,
            Some(Checkout::Exclusive(own)) => &own.session,
            None => unreachable!("a session exists until it is dropped"),
        }
    }
}

impl Drop for PooledSession {
    fn drop(&mut self) {
        let Some(Checkout::Exclusive(own)) = self.session.take() else { return };
        let ExclusiveSession { session, shared, permit, reused, runtime } = *own;
        shared.measure(&session);
        if reused && !shared.own.is_closed() && session.is_settled() {
            return shared.idle.lock().push(session);
        }
        let close = async move {
            session.close().await;
            drop(permit);
        };
        shared.closing.spawn_on(close, &runtime);
    }
}

/// One user of a slot. Counted before the slot's session is opened.
struct SlotUser {
    shared: Arc<Shared>,
    slot: usize,
}

impl SlotUser {
    /// Where no more sessions may be opened, an open one.
    fn of_least_used(shared: &Arc<Shared>) -> Self {
        let mut users = shared.users.lock();
        let is_full = shared.spec.limits.sessions.is_some() && shared.own.available_permits() == 0;
        // A slot that is locked is about to be open.
        let is_closed = |slot: usize| shared.slots[slot].try_lock().is_ok_and(|slot| slot.permit.is_none());
        let slots = 0..users.len();
        let slot = slots.min_by_key(|slot| (is_full && is_closed(*slot), users[*slot])).unwrap_or_default();
        users[slot] += 1;
        Self { shared: Arc::clone(shared), slot }
    }
}

impl Drop for SlotUser {
    fn drop(&mut self) {
        self.shared.users.lock()[self.slot] -= 1;
        self.shared.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_sessions_as_fit_into_memory() {
        let mut capacity = Capacity { memory: 10_000, sessions: 4, least: 4, largest: 0, measured: 0 };
        assert_eq!(capacity.after(100), 100);
        assert_eq!(capacity.after(500), 20, "the largest session counts");
        assert_eq!(capacity.after(100), 20);
        assert_eq!(capacity.after(5_000), 4, "a few sessions are allowed in any case");
        let mut roomy = Capacity { memory: usize::MAX, sessions: 4, least: 4, largest: 0, measured: 0 };
        assert_eq!(roomy.after(0), MOST_SESSIONS);
    }
}
