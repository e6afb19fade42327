//! A session of a server: a live connection, which may be recorded, or a cassette that is played back.

use crate::offered::Tool;
use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde_json::{Map, Value};

use super::{
    McpError, Outcome, ServerSpec,
    cassette::{Cassette, CassetteMode, History, Recorder},
    listing::Description,
    live::{LiveSession, Reply},
    outcome::WholeResult,
};

/// One session of a server. Calls may overlap, but not where it is recorded and has state. On drop the connection closes and
/// a child process ends.
pub struct Session {
    source: Backend,
    spec: ServerSpec,
    history: Mutex<History>,
    notes: Mutex<Vec<String>>,
}

enum Backend {
    Live(Box<LiveSession>, Option<Arc<Recorder>>),
    Recorded(Arc<Cassette>),
}

impl Session {
    /// Starts the server or connects to it, and performs the handshake. Reads a cassette instead if the server is one.
    ///
    /// `initialize` is tried first; only servers that support nothing but the newest revision reject it. If a server
    /// answers with an error, `server/discover` is tried: by the same process, and if that fails over a new connection.
    /// Servers that have sessions keep them this way: the newest revision has none.
    pub async fn connect(spec: &ServerSpec) -> Result<Self, McpError> {
        Self::connect_with(spec, CassetteMode::open(spec).await?).await
    }

    pub(super) async fn connect_with(spec: &ServerSpec, tape: CassetteMode) -> Result<Self, McpError> {
        let recorder = match tape {
            CassetteMode::Play(cassette) => return Ok(Self::over(Backend::Recorded(cassette), spec)),
            CassetteMode::Record(recorder) => Some(recorder),
            CassetteMode::None => None,
        };
        let live = LiveSession::connect(spec, false).await?;
        Ok(Self::over(Backend::Live(Box::new(live), recorder), spec))
    }

    /// Connects by the newest revision's handshake only.
    pub async fn connect_newest(spec: &ServerSpec) -> Result<Self, McpError> {
        let live = LiveSession::connect(spec, true).await?;
        Ok(Self::over(Backend::Live(Box::new(live), None), spec))
    }

    fn over(source: Backend, spec: &ServerSpec) -> Self {
        let history = Mutex::new(History::new(&spec.state));
        Self { source, spec: spec.clone(), history, notes: Mutex::default() }
    }

    /// The connection; `None` for a cassette.
    fn live(&self) -> Option<&LiveSession> {
        match &self.source {
            Backend::Live(live, _) => Some(live),
            Backend::Recorded(_) => None,
        }
    }

    /// Everything that the server offers, as of now.
    pub async fn describe(&self) -> Result<Description, McpError> {
        let (described, notes) = match &self.source {
            Backend::Live(live, recorder) => {
                let (described, notes) = live.describe().await?;
                if let Some(recorder) = recorder {
                    recorder.begin(&described, &notes)?;
                }
                (described, notes)
            }
            Backend::Recorded(cassette) => (cassette.described().clone(), cassette.notes().to_vec()),
        };
        self.notes.lock().extend(notes);
        let tools = self.spec.expose.with_tools(&described);
        Ok(Description { tools, ..described })
    }

    /// The server's tools, those for what it exposes, and mcprl's `complete_task`, as of now.
    pub async fn tools(&self) -> Result<Vec<Tool>, McpError> {
        let (tools, notes) = match &self.source {
            Backend::Live(live, _) if self.spec.expose.is_none() => live.tools().await?,
            Backend::Live(live, _) => {
                let (described, notes) = live.describe().await?;
                (self.spec.expose.with_tools(&described), notes)
            }
            Backend::Recorded(cassette) => (self.spec.expose.with_tools(cassette.described()), Vec::new()),
        };
        self.notes.lock().extend(notes);
        Ok(tools)
    }

    /// Whether the server has announced a change of its tools since they were last listed.
    pub fn has_changed_tools(&self) -> bool {
        self.live().is_some_and(LiveSession::has_changed_tools)
    }

    /// Notes on what [`Session::describe`] repaired or dropped. Each note is returned once.
    pub fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut *self.notes.lock())
    }

    /// Calls a tool by the server's name for it, within the limits of the tool.
    ///
    /// # Errors
    /// If there is no answer: [`McpError::Refused`] or [`McpError::Lost`], see `live.rs`; [`McpError::NotRecorded`].
    pub async fn call(&self, name: &str, arguments: Map<String, Value>) -> Result<Outcome, McpError> {
        let (call_timeout, result_bytes) = self.spec.limits.of_tool(name);
        let reply = match &self.source {
            Backend::Live(live, None) => live.call(name, arguments, call_timeout).await?,
            Backend::Live(live, Some(recorder)) => {
                self.call_recorded(live, recorder, name, arguments, call_timeout).await?
            }
            Backend::Recorded(cassette) => {
                Reply::Answer(cassette.answer(&mut self.history.lock(), name, &arguments)?)
            }
        };
        Ok(reply.into_answer().outcome(result_bytes, &self.spec.quirks.error_patterns))
    }

    async fn call_recorded(
        &self,
        live: &LiveSession,
        recorder: &Recorder,
        name: &str,
        arguments: Map<String, Value>,
        limit: Duration,
    ) -> Result<Reply, McpError> {
        if !recorder.has_begun() {
            let (described, notes) = live.describe().await?;
            recorder.begin(&described, &notes)?;
        }
        let shown = live.hide(arguments.clone());
        // A replay has the real arguments, which must not be in the cassette.
        let has_secret = shown != arguments;
        // If this call is dropped, it counts as one without an answer.
        let before = self.history.lock().lose();
        let reply = live.call(name, arguments, limit).await;
        match &reply {
            Ok(Reply::Answer(_)) if has_secret => recorder.note_secret(name),
            Ok(Reply::Answer(answer)) => {
                let history = &mut *self.history.lock();
                *history = before;
                recorder.record(history, name, shown, answer)?;
            }
            Ok(Reply::Missing(_)) | Err(_) => {}
        }
        reply
    }

    /// Whether it may be kept between two episodes. It must not if it is dead, or if the server may still be at work on a
    /// request, whose effect would land in the next episode.
    pub(super) fn is_settled(&self) -> bool {
        self.live().is_none_or(LiveSession::is_settled) && self.is_alive()
    }

    /// Calls the tool that restores the initial state. A cassette needs no such call, and does not have it.
    pub(super) async fn reset(&self, tool: &str) -> Result<Outcome, McpError> {
        let (limit, result_bytes) = self.spec.limits.of_tool(tool);
        let answer = match self.live() {
            Some(live) => live.call(tool, Map::new(), limit).await?.into_answer(),
            None => WholeResult::of_text(String::new()),
        };
        *self.history.lock() = History::new(&self.spec.state);
        Ok(answer.outcome(result_bytes, &self.spec.quirks.error_patterns))
    }

    /// Bytes of memory of a child process and everything it started, as far as the system reports them.
    pub fn memory(&self) -> Option<usize> {
        self.live()?.memory()
    }

    /// Whether the session can still answer calls.
    pub fn is_alive(&self) -> bool {
        self.live().is_none_or(LiveSession::is_alive)
    }

    /// Closes the connection. Returns when a child process and everything it started has ended.
    pub async fn close(self) {
        if let Backend::Live(live, _) = self.source {
            live.close().await;
        }
    }
}
