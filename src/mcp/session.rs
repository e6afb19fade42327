//! A session of a server: a live connection, which may be recorded, or a cassette that is played back.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde_json::{Map, Value};

use super::{
    Expose, Limits, McpError, Outcome, Quirks, ServerSpec, State,
    cassette::{Cassette, CassetteMode, History, Recorder},
    listing::Description,
    live::{LiveSession, Reply},
    outcome::Answer,
};
use crate::data;

/// One session of a server. Calls may overlap, but not where it is recorded and has state. On drop the connection closes and
/// a child process ends.
pub struct Session {
    source: Source,
    state: State,
    limits: Limits,
    quirks: Quirks,
    expose: Expose,
    history: Mutex<History>,
    notes: Mutex<Vec<String>>,
}

enum Source {
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
        let source = match tape {
            CassetteMode::Play(cassette) => Source::Recorded(cassette),
            CassetteMode::Record(recorder) => {
                Source::Live(Box::new(LiveSession::connect(spec, false).await?), Some(recorder))
            }
            CassetteMode::None => Source::Live(Box::new(LiveSession::connect(spec, false).await?), None),
        };
        Ok(Self::over(source, spec))
    }

    /// Connects by the newest revision's handshake only.
    pub async fn connect_newest(spec: &ServerSpec) -> Result<Self, McpError> {
        let live = LiveSession::connect(spec, true).await?;
        Ok(Self::over(Source::Live(Box::new(live), None), spec))
    }

    fn over(source: Source, spec: &ServerSpec) -> Self {
        Self {
            source,
            state: spec.state.clone(),
            limits: spec.limits.clone(),
            quirks: spec.quirks.clone(),
            expose: spec.expose,
            history: Mutex::new(History::new(&spec.state)),
            notes: Mutex::default(),
        }
    }

    /// Everything that the server offers, as of now.
    pub async fn describe(&self) -> Result<Description, McpError> {
        let (described, notes) = match &self.source {
            Source::Live(live, recorder) => {
                let (described, notes) = live.describe().await?;
                if let Some(recorder) = recorder {
                    recorder.begin(&described, &notes)?;
                }
                (described, notes)
            }
            Source::Recorded(cassette) => (cassette.described().clone(), cassette.notes().to_vec()),
        };
        self.notes.lock().extend(notes);
        let tools = self.expose.with_tools(&described);
        Ok(Description { tools, ..described })
    }

    /// The server's tools, those for what it exposes, and mcprl's `complete_task`, as of now.
    pub async fn tools(&self) -> Result<Vec<data::Tool>, McpError> {
        let (tools, notes) = match &self.source {
            Source::Live(live, _) if self.expose.is_none() => live.tools().await?,
            Source::Live(live, _) => {
                let (described, notes) = live.describe().await?;
                (self.expose.with_tools(&described), notes)
            }
            Source::Recorded(cassette) => (self.expose.with_tools(cassette.described()), Vec::new()),
        };
        self.notes.lock().extend(notes);
        Ok(tools)
    }

    /// Whether the server has announced a change of its tools since they were last listed.
    pub(super) fn has_changed_tools(&self) -> bool {
        matches!(&self.source, Source::Live(live, _) if live.has_changed_tools())
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
        let (call_timeout, result_bytes) = self.limits.of_tool(name);
        let reply = match &self.source {
            Source::Live(live, None) => live.call(name, arguments, call_timeout).await?,
            Source::Live(live, Some(recorder)) => {
                self.call_recorded(live, recorder, name, arguments, call_timeout).await?
            }
            Source::Recorded(cassette) => {
                Reply::Answer(cassette.answer(&mut self.history.lock(), name, &arguments)?)
            }
        };
        Ok(match reply {
            Reply::Answer(answer) => answer.outcome(result_bytes, &self.quirks.error_patterns),
            Reply::Missing(text) => Outcome::failed(text, result_bytes),
        })
    }

    /// The text of a resource; `None` if the server has none under this URI. Cassettes have no resources.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn resource(&self, uri: &str) -> Result<Option<String>, McpError> {
        match &self.source {
            Source::Live(live, _) => live.resource(uri, self.limits.of_tool("").0).await,
            Source::Recorded(_) => Ok(None),
        }
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

    /// The session between two episodes; the session itself if another must take its place: it is dead, or the server may still be at work
    /// on a request, whose effect would land in the next episode.
    pub(super) fn settle(self) -> Result<SettledSession, Box<Self>> {
        let is_settled = match &self.source {
            Source::Live(live, _) => live.is_settled(),
            Source::Recorded(_) => true,
        };
        if is_settled && self.is_alive() { Ok(SettledSession(self)) } else { Err(Box::new(self)) }
    }

    /// Calls the tool that restores the initial state. A cassette needs no such call, and does not have it.
    pub(super) async fn reset(&self, tool: &str) -> Result<Outcome, McpError> {
        let (limit, result_bytes) = self.limits.of_tool(tool);
        let answer = match &self.source {
            Source::Live(live, _) => match live.call(tool, Map::new(), limit).await? {
                Reply::Answer(answer) => answer,
                Reply::Missing(text) => Answer::failed(text),
            },
            Source::Recorded(_) => Answer::of_text(String::new()),
        };
        *self.history.lock() = History::new(&self.state);
        Ok(answer.outcome(result_bytes, &self.quirks.error_patterns))
    }

    /// Bytes of memory of a child process and everything it started, as far as the system reports them.
    pub fn memory(&self) -> Option<usize> {
        match &self.source {
            Source::Live(live, _) => live.memory(),
            Source::Recorded(_) => None,
        }
    }

    /// Whether the session can still answer calls.
    pub fn is_alive(&self) -> bool {
        match &self.source {
            Source::Live(live, _) => live.is_alive(),
            Source::Recorded(_) => true,
        }
    }

    /// Closes the connection. Returns when a child process and everything it started has ended.
    pub async fn close(self) {
        if let Source::Live(live, _) = self.source {
            live.close().await;
        }
    }
}

/// A session that is alive and has no open request. Only a reset makes it one for an episode again.
pub(super) struct SettledSession(Session);

impl SettledSession {
    pub(super) fn session(&self) -> &Session {
        &self.0
    }

    /// The session after its reset.
    pub(super) async fn reset(self, tool: &str) -> Result<(Session, Outcome), McpError> {
        let outcome = self.0.reset(tool).await?;
        Ok((self.0, outcome))
    }

    pub(super) async fn close(self) {
        self.0.close().await;
    }
}
