//! Cassettes: what a server answered, recorded in a live run and played back without the server.
//!
//! A cassette is a file of JSON lines. The first one describes the server: its lists, and the settings that the answers were
//! recorded under ([`State`], [`Inputs`], [`Expose`]). Every other line is a call and its answer.
//!
//! | an answer depends on | why |
//! |---|---|
//! | the tool, by the server's name for it | |
//! | the arguments; the order of keys does not count | |
//! | the session's earlier calls and their answers, unless the state is read-only | they may have changed what the server answers |
//!
//! The earlier calls count by the link of the last one (`after`): a digest of the call, what came before it, and its answer.
//! So a cassette holds a tree of sessions. The first answer to a call is kept. A session that got another answer is not
//! recorded further, because a replay cannot reach what followed.
//!
//! Answers are recorded whole: limits and `error_patterns` apply when they are played back. A call without an answer (a
//! timeout, a lost connection) or with a secret in its arguments is never recorded, and after one in a session with state
//! nothing more is.
//!
//! A line is appended by one write under a lock, so that several processes may record to one cassette. A process that is
//! killed leaves at most an incomplete last line. Readers ignore it, and the next writer removes it.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fs::{File, OpenOptions},
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use mcprl_base::hash::{Digest, Encoder};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    Description, Expose, Inputs, McpError, ServerSpec, State, Transport, outcome::WholeResult, tools_digest,
    untrusted::shorten,
};

/// Version of the format.
const VERSION: u32 = 2;
/// Largest cassette that is read or written.
const BYTES: u64 = 2 << 30;

/// The first line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Header {
    mcprl_cassette: u32,
    /// As [`State::label`] writes it.
    state: String,
    inputs: Inputs,
    expose: Expose,
    #[serde(flatten)]
    described: Description,
    /// What was repaired in its lists.
    notes: Vec<String>,
}

/// A call and its answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordedCall {
    /// The server's name of the tool.
    pub tool: String,
    pub arguments: Map<String, Value>,
    /// Link of the call before it in its session; `None` for the first one, and where earlier calls do not matter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    after: Option<Digest>,
    pub text: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
}

impl RecordedCall {
    /// Of the call and what came before it.
    pub fn key(&self) -> Digest {
        key(&self.tool, &self.arguments, self.after.as_ref())
    }

    /// Of the call, what came before it, and its answer.
    fn link(&self) -> Digest {
        let mut encoder = Encoder::new("mcprl recorded answer v1");
        encoder.digest(&self.key()).text(&self.text).number(self.is_error.into());
        encoder.finish()
    }
}

fn key(tool: &str, arguments: &Map<String, Value>, after: Option<&Digest>) -> Digest {
    let mut encoder = Encoder::new("mcprl recorded call v1");
    encoder.text(tool).json(&Value::Object(arguments.clone()));
    if let Some(after) = after {
        encoder.digest(after);
    }
    encoder.finish()
}

/// What an answer depends on besides the call.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum History {
    /// Nothing: calls change nothing.
    Irrelevant,
    /// The calls of the session so far, by the link of the last one.
    After(Option<Digest>),
    /// A call whose answer is unknown or not in the cassette.
    Unknown,
}

impl History {
    /// Of a session without calls.
    pub(super) fn new(state: &State) -> Self {
        if *state == State::ReadOnly { Self::Irrelevant } else { Self::After(None) }
    }

    fn last(&self) -> Option<&Digest> {
        match self {
            Self::After(last) => last.as_ref(),
            Self::Irrelevant | Self::Unknown => None,
        }
    }

    fn push(&mut self, link: impl FnOnce() -> Digest) {
        if let Self::After(last) = self {
            *last = Some(link());
        }
    }

    /// From now on the session is not recorded. Returns what was known of it.
    pub(super) fn lose(&mut self) -> Self {
        match self {
            Self::Irrelevant => Self::Irrelevant,
            _ => std::mem::replace(self, Self::Unknown),
        }
    }
}

/// What the sessions of a server record to or are played from. Cheap to clone.
#[derive(Clone)]
pub(super) enum CassetteMode {
    None,
    Record(Arc<Recorder>),
    Play(Arc<Cassette>),
}

impl CassetteMode {
    pub(super) async fn open(spec: &ServerSpec) -> Result<Self, McpError> {
        let (path, is_played) = match (&spec.transport, &spec.record) {
            (Transport::Cassette(path), _) => (path.clone(), true),
            (_, Some(path)) => (path.clone(), false),
            (_, None) => return Ok(Self::None),
        };
        let spec = spec.clone();
        let opened = tokio::task::spawn_blocking(move || match is_played {
            true => {
                let cassette = Cassette::load(&path)?;
                cassette.check(&spec)?;
                Ok(Self::Play(Arc::new(cassette)))
            }
            false => Ok(Self::Record(Arc::new(Recorder::open(path, &spec)?))),
        });
        opened.await.unwrap_or(Err(McpError::PoolClosed))
    }
}

/// A cassette that was read.
#[derive(Debug)]
pub struct Cassette {
    path: PathBuf,
    header: Header,
    calls: Vec<RecordedCall>,
    by_key: HashMap<Digest, usize>,
}

impl Cassette {
    /// # Errors
    /// If it cannot be read, is no cassette, or has another version.
    pub fn load(path: &Path) -> Result<Self, McpError> {
        match Self::read(path)? {
            Some(cassette) => Ok(cassette),
            None => Err(McpError::Cassette { path: path.to_owned(), reason: "nothing was recorded".into() }),
        }
    }

    /// `None` if it is empty.
    fn read(path: &Path) -> Result<Option<Self>, McpError> {
        let wrong = |reason: String| McpError::Cassette { path: path.to_owned(), reason };
        let failed = |source| McpError::CassetteFile { path: path.to_owned(), verb: "read", source };
        let file = File::open(path).map_err(failed)?;
        if file.metadata().map_err(failed)?.len() > BYTES {
            return Err(wrong(format!("it is larger than {} GiB", BYTES >> 30)));
        }
        let mut lines = CompleteLines(BufReader::new(file));
        let Some(first) = lines.next().transpose().map_err(failed)? else { return Ok(None) };
        let header = header(&first).map_err(wrong)?;
        let (mut calls, mut by_key) = (Vec::new(), HashMap::new());
        for (index, line) in lines.enumerate() {
            let line = line.map_err(failed)?;
            let call: RecordedCall = serde_json::from_slice(&line)
                .map_err(|cause| wrong(format!("line {} is not a recorded call: {cause}", index + 2)))?;
            by_key.entry(call.key()).or_insert_with(|| {
                calls.push(call);
                calls.len() - 1
            });
        }
        Ok(Some(Self { path: path.to_owned(), header, calls, by_key }))
    }

    /// # Errors
    /// If it was recorded under another contract between episodes, or with other answers to the server's questions.
    pub fn check(&self, spec: &ServerSpec) -> Result<(), McpError> {
        let Header { state, inputs, .. } = &self.header;
        let other = |recorded, found| McpError::OtherCassette { path: self.path.clone(), recorded, found };
        let label = spec.state.label();
        if *state != label {
            return Err(other(format!("state \"{state}\""), format!("\"{label}\"")));
        }
        if *inputs != spec.inputs {
            return Err(other(format!("the answers {}", label_of(inputs)), label_of(&spec.inputs)));
        }
        Ok(())
    }

    /// The contract that it was recorded under; `None` for a snapshot, whose folder it does not name.
    pub fn state(&self) -> Option<State> {
        match self.header.state.split_once(' ') {
            Some(("reset-tool", tool)) => Some(State::ResetTool(tool.to_owned())),
            _ => [State::ReadOnly, State::FreshProcess]
                .into_iter()
                .find(|state| state.label() == self.header.state),
        }
    }

    /// The answers to the server's questions that it was recorded with.
    pub fn inputs(&self) -> &Inputs {
        &self.header.inputs
    }

    /// What it was recorded with as tools besides the server's own.
    pub fn expose(&self) -> Expose {
        self.header.expose
    }

    pub fn described(&self) -> &Description {
        &self.header.described
    }

    pub(super) fn notes(&self) -> &[String] {
        &self.header.notes
    }

    /// The answer to a call, which then counts as one of the session.
    pub(super) fn answer(
        &self,
        history: &mut History,
        tool: &str,
        arguments: &Map<String, Value>,
    ) -> Result<WholeResult, McpError> {
        let key = key(tool, arguments, history.last());
        match self.by_key.get(&key) {
            Some(index) => {
                let call = &self.calls[*index];
                history.push(|| call.link());
                Ok(WholeResult { text: call.text.clone(), is_error: call.is_error })
            }
            None => Err(McpError::NotRecorded {
                tool: shorten(tool),
                arguments: shorten(&Value::Object(arguments.clone()).to_string()),
                path: self.path.clone(),
            }),
        }
    }

    /// The calls as sessions that make all of them: one session if earlier calls do not matter, otherwise one for each
    /// longest sequence. A call that several begin with is in each of them.
    pub fn sessions(&self) -> Vec<Vec<&RecordedCall>> {
        if self.header.state == State::ReadOnly.label() {
            return vec![self.calls.iter().collect()];
        }
        let links: Vec<Digest> = self.calls.iter().map(RecordedCall::link).collect();
        let by_link: HashMap<Digest, &RecordedCall> = links.iter().copied().zip(&self.calls).collect();
        let has_next: HashSet<Digest> = self.calls.iter().filter_map(|call| call.after).collect();
        let session = |last: usize| {
            let mut calls = vec![&self.calls[last]];
            while let Some(after) = calls.last().and_then(|call| call.after) {
                // The earlier call is missing, or had another answer than the one that was kept.
                calls.push(by_link.get(&after)?);
            }
            calls.reverse();
            Some(calls)
        };
        let is_last = |index: &usize| !has_next.contains(&links[*index]);
        (0..self.calls.len()).filter(is_last).filter_map(session).collect()
    }
}

fn header(line: &[u8]) -> Result<Header, String> {
    #[derive(Deserialize)]
    struct Version {
        mcprl_cassette: u32,
    }
    match serde_json::from_slice(line) {
        Ok(Version { mcprl_cassette: VERSION }) => {}
        Ok(Version { mcprl_cassette: other }) => {
            return Err(format!("its format is version {other}, and this mcprl reads version {VERSION}"));
        }
        Err(_) => return Err("its first line is not the header of a cassette".into()),
    }
    serde_json::from_slice(line).map_err(|cause| format!("its header cannot be read: {cause}"))
}

fn label_of(inputs: &Inputs) -> String {
    shorten(&serde_json::to_string(inputs).unwrap_or_default())
}

/// Lines that end with a line break, without it.
struct CompleteLines<R>(R);

impl<R: BufRead> Iterator for CompleteLines<R> {
    type Item = io::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut line = Vec::new();
        match self.0.read_until(b'\n', &mut line) {
            Ok(_) => (line.pop() == Some(b'\n')).then_some(Ok(line)),
            Err(error) => Some(Err(error)),
        }
    }
}

/// Adds answers to a cassette.
pub(super) struct Recorder {
    path: PathBuf,
    spec: ServerSpec,
    file: Mutex<File>,
    /// The calls that are recorded already: the link of each by its key.
    known: Mutex<HashMap<Digest, Digest>>,
    notes: Mutex<BTreeSet<String>>,
    /// Whether the header is written, and is this server's.
    has_begun: Mutex<bool>,
}

impl Recorder {
    fn open(path: PathBuf, spec: &ServerSpec) -> Result<Self, McpError> {
        let failed = |source| McpError::CassetteFile { path: path.clone(), verb: "write", source };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let file = OpenOptions::new().read(true).append(true).create(true).open(&path).map_err(failed)?;
        let earlier = Cassette::read(&path)?;
        if let Some(earlier) = &earlier {
            earlier.check(spec)?;
        }
        let calls = earlier.iter().flat_map(|earlier| &earlier.calls);
        let known = calls.map(|call| (call.key(), call.link())).collect();
        Ok(Self {
            path,
            spec: spec.clone(),
            file: Mutex::new(file),
            known: Mutex::new(known),
            notes: Mutex::default(),
            has_begun: Mutex::default(),
        })
    }

    pub(super) fn has_begun(&self) -> bool {
        *self.has_begun.lock()
    }

    /// Writes the header, or checks that the one in the file is of this server.
    pub(super) fn begin(&self, described: &Description, notes: &[String]) -> Result<(), McpError> {
        let mut has_begun = self.has_begun.lock();
        if *has_begun {
            return Ok(());
        }
        let header = Header {
            mcprl_cassette: VERSION,
            state: self.spec.state.label(),
            inputs: self.spec.inputs.clone(),
            expose: self.spec.expose,
            described: described.clone(),
            notes: notes.to_vec(),
        };
        let earlier = self.write(|file| {
            file.seek(SeekFrom::Start(0))?;
            let first = CompleteLines(BufReader::new(&*file)).next().transpose()?;
            if first.is_none() {
                write_line(file, &header)?;
            }
            Ok(first)
        })?;
        if let Some(first) = earlier {
            let earlier = self::header(&first)
                .map_err(|reason| McpError::Cassette { path: self.path.clone(), reason })?;
            let identity = |header: &Header| {
                let server = &header.described.server;
                let tools = header.expose.with_tools(&header.described);
                (server.name.clone(), server.version.clone(), tools_digest(&tools))
            };
            let (old, new) = (identity(&earlier), identity(&header));
            if old != new {
                let shown = |(name, version, tools): &(String, String, Digest)| {
                    format!("{name} {version} (tools {})", tools.short())
                };
                return Err(McpError::OtherCassette {
                    path: self.path.clone(),
                    recorded: format!("the server {}", shown(&old)),
                    found: shown(&new),
                });
            }
        }
        *has_begun = true;
        Ok(())
    }

    /// Adds an answer, unless the call is recorded already. The call then counts as one of the session.
    pub(super) fn record(
        &self,
        history: &mut History,
        tool: &str,
        arguments: Map<String, Value>,
        answer: &WholeResult,
    ) -> Result<(), McpError> {
        if *history == History::Unknown {
            return Ok(());
        }
        let after = history.last().copied();
        let WholeResult { text, is_error } = answer.clone();
        let call = RecordedCall { tool: tool.to_owned(), arguments, after, text, is_error };
        let (key, link) = (call.key(), call.link());
        history.push(|| link);
        let known = self.known.lock().get(&key).copied();
        match known {
            Some(known) if known == link => {}
            // Another answer is kept.
            Some(_) => _ = history.lose(),
            None => {
                self.known.lock().insert(key, link);
                self.write(|file| write_line(file, &call))?;
            }
        }
        Ok(())
    }

    /// Notes that calls of a tool are left out.
    pub(super) fn note_secret(&self, tool: &str) {
        let (path, tool) = (self.path.display(), shorten(tool));
        self.notes.lock().insert(format!(
            "the cassette {path} lacks calls of `{tool}`, because a secret is in their arguments"
        ));
    }

    /// Notes on what is left out. Each is returned once.
    pub(super) fn take_notes(&self) -> BTreeSet<String> {
        std::mem::take(&mut *self.notes.lock())
    }

    /// Writes while no other process does, at the end of the last complete line.
    fn write<T>(&self, write: impl FnOnce(&mut File) -> io::Result<T>) -> Result<T, McpError> {
        let mut file = self.file.lock();
        let written = file.lock().and_then(|()| {
            let written = cut_incomplete_line(&mut file).and_then(|()| write(&mut file));
            let unlocked = file.unlock();
            written.and_then(|written| unlocked.map(|()| written))
        });
        written.map_err(|source| McpError::CassetteFile { path: self.path.clone(), verb: "write", source })
    }
}

fn write_line(file: &mut File, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    if file.metadata()?.len() + line.len() as u64 > BYTES {
        let reason = format!("it would be larger than {} GiB", BYTES >> 30);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    file.write_all(&line)
}

/// Removes the line that a killed process left.
fn cut_incomplete_line(file: &mut File) -> io::Result<()> {
    let end = file.seek(SeekFrom::End(0))?;
    if end == 0 {
        return Ok(());
    }
    let mut last = [0];
    file.seek(SeekFrom::Start(end - 1))?;
    file.read_exact(&mut last)?;
    if last == *b"\n" {
        return Ok(());
    }
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    let complete = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    file.set_len(complete as u64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::offered::ServerInfo;

    use super::*;

    fn arguments(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    fn described(version: &str) -> Description {
        let server = ServerInfo { name: "s".into(), version: version.into(), ..Default::default() };
        Description { server, ..Description::default() }
    }

    fn spec(state: &State) -> ServerSpec {
        ServerSpec::new(Transport::http("http://localhost"), state.clone())
    }

    /// A recorder of a cassette in this folder that has its header.
    fn recorder(folder: &Path, state: &State) -> Recorder {
        let recorder = Recorder::open(folder.join("a/c.jsonl"), &spec(state)).unwrap();
        recorder.begin(&described("1"), &[]).unwrap();
        recorder
    }

    fn record(recorder: &Recorder, history: &mut History, tool: &str, n: u32, text: &str) {
        let answer = WholeResult { text: text.into(), is_error: text == "no" };
        recorder.record(history, tool, arguments(json!({"n": n})), &answer).unwrap();
    }

    fn answer(
        cassette: &Cassette,
        history: &mut History,
        tool: &str,
        given: Value,
    ) -> Option<(String, bool)> {
        let answer = cassette.answer(history, tool, &arguments(given)).ok()?;
        Some((answer.text, answer.is_error))
    }

    #[test]
    fn an_answer_depends_on_tool_and_arguments_in_any_order() {
        let folder = tempfile::tempdir().unwrap();
        let recorder = recorder(folder.path(), &State::ReadOnly);
        let mut none = History::new(&State::ReadOnly);
        let both = arguments(json!({"a": 1, "b": [2]}));
        recorder.record(&mut none, "t", both, &WholeResult { text: "x".into(), is_error: false }).unwrap();
        record(&recorder, &mut none, "t", 1, "no");
        record(&recorder, &mut none, "t", 1, "a later answer");
        let cassette = Cassette::load(&recorder.path).unwrap();
        let ask = |tool: &str, given: Value| answer(&cassette, &mut History::Irrelevant, tool, given);
        assert_eq!(ask("t", json!({"b": [2], "a": 1})), Some(("x".into(), false)));
        assert_eq!(ask("t", json!({"n": 1})), Some(("no".into(), true)), "the first answer is kept");
        assert_eq!(ask("t", json!({"n": 2})), None);
        assert_eq!(ask("other", json!({"n": 1})), None);
    }

    #[test]
    fn in_a_session_with_state_an_answer_depends_on_the_earlier_calls() {
        let folder = tempfile::tempdir().unwrap();
        let recorder = recorder(folder.path(), &State::FreshProcess);
        let start = || History::new(&State::FreshProcess);
        let (mut one, mut two) = (start(), start());
        record(&recorder, &mut one, "count", 0, "1");
        record(&recorder, &mut one, "count", 0, "2");
        record(&recorder, &mut two, "count", 0, "1");
        record(&recorder, &mut two, "add", 5, "6");
        let cassette = Cassette::load(&recorder.path).unwrap();
        let mut session = start();
        let mut ask = |tool: &str, n: u32| answer(&cassette, &mut session, tool, json!({"n": n}));
        assert_eq!(ask("add", 5), None, "it was called after another call only");
        assert_eq!(ask("count", 0), Some(("1".into(), false)));
        assert_eq!(ask("count", 0), Some(("2".into(), false)));
        assert_eq!(ask("count", 0), None);
        let shown =
            |calls: Vec<&RecordedCall>| calls.iter().map(|call| call.text.clone()).collect::<String>();
        assert_eq!(cassette.sessions().into_iter().map(shown).collect::<Vec<_>>(), ["12", "16"]);
    }

    #[test]
    fn what_follows_another_answer_is_not_played_back() {
        let folder = tempfile::tempdir().unwrap();
        let start = || History::new(&State::FreshProcess);
        let (one, other) =
            (recorder(folder.path(), &State::FreshProcess), recorder(folder.path(), &State::FreshProcess));
        let (mut first, mut second, mut third) = (start(), start(), start());
        record(&one, &mut first, "create", 0, "17");
        record(&one, &mut second, "create", 0, "18");
        record(&one, &mut second, "list", 0, "18");
        // Of a process that does not know the first answer.
        record(&other, &mut third, "create", 0, "19");
        record(&other, &mut third, "list", 0, "19");
        let cassette = Cassette::load(&one.path).unwrap();
        let mut session = start();
        assert_eq!(answer(&cassette, &mut session, "create", json!({"n": 0})), Some(("17".into(), false)));
        assert_eq!(answer(&cassette, &mut session, "list", json!({"n": 0})), None);
        assert_eq!(cassette.sessions().iter().map(Vec::len).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn nothing_is_recorded_after_a_call_without_an_answer() {
        let folder = tempfile::tempdir().unwrap();
        let recorder = recorder(folder.path(), &State::FreshProcess);
        let mut history = History::new(&State::FreshProcess);
        record(&recorder, &mut history, "count", 0, "1");
        history.lose();
        record(&recorder, &mut history, "count", 0, "3");
        assert_eq!(Cassette::load(&recorder.path).unwrap().calls.len(), 1);
    }

    #[test]
    fn the_line_of_a_killed_process_is_ignored_and_then_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let recorder = recorder(folder.path(), &State::ReadOnly);
        record(&recorder, &mut History::Irrelevant, "t", 1, "one");
        let text = std::fs::read_to_string(&recorder.path).unwrap();
        std::fs::write(&recorder.path, format!("{text}{{\"tool\":\"t\",\"argu")).unwrap();
        assert_eq!(Cassette::load(&recorder.path).unwrap().calls.len(), 1);
        // Another process goes on.
        let again = self::recorder(folder.path(), &State::ReadOnly);
        record(&again, &mut History::Irrelevant, "t", 2, "two");
        record(&again, &mut History::Irrelevant, "t", 1, "one");
        assert_eq!(Cassette::load(&recorder.path).unwrap().calls.len(), 2);
        std::fs::write(&recorder.path, "{\"mcprl_casse").unwrap();
        self::recorder(folder.path(), &State::ReadOnly);
        assert_eq!(Cassette::load(&recorder.path).unwrap().calls.len(), 0);
    }

    #[test]
    fn many_writers_leave_whole_lines() {
        let folder = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let folder = folder.path();
                scope.spawn(move || {
                    let recorder = recorder(folder, &State::ReadOnly);
                    for n in 0..50 {
                        let text = "x".repeat(10_000);
                        record(&recorder, &mut History::Irrelevant, &format!("t{writer}"), n, &text);
                    }
                });
            }
        });
        let cassette = Cassette::load(&folder.path().join("a/c.jsonl")).unwrap();
        assert_eq!(cassette.calls.len(), 200);
    }

    #[test]
    fn what_is_no_cassette_of_this_server_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.jsonl");
        let refused = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let error = Cassette::load(&path).unwrap_err().to_string();
            error.replace(&folder.path().display().to_string(), "")
        };
        let whole = json!({
            "mcprl_cassette": VERSION, "state": "read-only", "inputs": Inputs::default(), "expose": Expose::default(),
            "notes": [],
        });
        let mut whole = arguments(whole);
        whole.extend(arguments(serde_json::to_value(described("1")).unwrap()));
        let whole = Value::Object(whole);
        insta::assert_snapshot!(refused(""), @"the cassette /c.jsonl cannot be used: nothing was recorded");
        insta::assert_snapshot!(refused("[server]\n"), @"the cassette /c.jsonl cannot be used: its first line is not the header of a cassette");
        insta::assert_snapshot!(refused("{\"mcprl_cassette\": 9}\n"), @"the cassette /c.jsonl cannot be used: its format is version 9, and this mcprl reads version 2");
        insta::assert_snapshot!(refused("{\"mcprl_cassette\": 2}\n"), @"the cassette /c.jsonl cannot be used: its header cannot be read: missing field `state` at line 1 column 21");
        insta::assert_snapshot!(refused(&format!("{whole}\n{{}}\n")), @"the cassette /c.jsonl cannot be used: line 2 is not a recorded call: missing field `tool` at line 1 column 2");
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(Cassette::load(&path), Err(McpError::CassetteFile { verb: "read", .. })));

        let path = recorder(folder.path(), &State::ReadOnly).path;
        let other = Recorder::open(path.clone(), &spec(&State::FreshProcess)).err().unwrap().to_string();
        assert!(other.ends_with("was recorded with state \"read-only\", not \"fresh-process\""), "{other}");
        let inputs = Inputs { sampling: Some("yes".into()), ..Inputs::default() };
        let other = Recorder::open(path.clone(), &ServerSpec { inputs, ..spec(&State::ReadOnly) });
        let other = other.err().unwrap().to_string();
        assert!(
            other.ends_with("\"sampling\":null}, not {\"elicitation\":null,\"sampling\":\"yes\"}"),
            "{other}"
        );
        let again = Recorder::open(path, &spec(&State::ReadOnly)).unwrap();
        let other = again.begin(&described("2"), &[]).unwrap_err().to_string();
        assert!(other.contains("was recorded with the server s 1 (tools "), "{other}");
    }
}
