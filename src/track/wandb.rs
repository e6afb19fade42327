//! Weights & Biases: an offline run as its own client writes it, which `wandb sync` uploads.
//!
//! A `.wandb` file is a log of LevelDB's form: a header of seven bytes, and blocks of 32 KiB that hold chunks of
//! records, each with the length, the type and a CRC-32 (IEEE) of both. A record is a `Record` of
//! `wandb_internal.proto`, whose values are JSON texts. `wandb beta sync --live` follows such a file while it grows,
//! so an online run needs no protocol of ours.

use std::{
    collections::{BTreeSet, VecDeque},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::{Child, Command},
    runtime::Runtime,
};

use super::{
    Log, Sink, TrackError,
    crc::{IEEE, crc},
    file::{self, Change},
    log::Content,
    proto::Message,
};
use crate::{
    child::{self, Group},
    error::if_found,
    exec::RunState,
    hash::{Digest, Encoder},
    plan::WandbSpec,
    program::find_program,
    report::escape,
};

/// The program that uploads.
const PROGRAM: &str = "wandb";
/// Least time between two starts of it, after it failed.
const RETRY: Duration = Duration::from_secs(60);
/// Lines of its output that are kept for an error.
const KEPT: usize = 20;

/// Writes the offline run, and uploads it if it should be online.
pub struct Wandb {
    spec: WandbSpec,
    /// The run's id at Weights & Biases: another one for a run of the same name in another cache.
    id: String,
    /// `wandb` in the run's folder.
    folder: PathBuf,
    /// How long the end of a run waits for the upload.
    patience: Duration,
    upload: Option<Upload>,
}

impl Wandb {
    /// `run_folder`: the run's folder in the cache.
    pub fn new(spec: &WandbSpec, run_folder: &Path, patience: Duration) -> Self {
        let folder = run_folder.join("wandb");
        Self { spec: spec.clone(), id: String::new(), folder, patience, upload: None }
    }

    /// The folder of the offline run, as its own client names it.
    fn run_folder(&self, log: &Log) -> PathBuf {
        let began = i64::try_from(log.began_ms).ok().and_then(chrono::DateTime::from_timestamp_millis);
        let began = began.unwrap_or_default().format("%Y%m%d_%H%M%S");
        self.folder.join(format!("offline-run-{began}-{}", self.id))
    }

    fn upload(&mut self, path: &Path, change: Change, is_over: bool) -> Result<(), TrackError> {
        let upload = match &mut self.upload {
            Some(upload) => upload,
            none => none.insert(Upload::new()?),
        };
        // It would go on with a file that is no longer there.
        if change == Change::Replaced {
            upload.running = None;
        }
        upload.check(is_over)?;
        upload.start(path, is_over)?;
        if is_over { upload.wait(self.patience) } else { Ok(()) }
    }
}

impl Sink for Wandb {
    fn name(&self) -> &'static str {
        "wandb"
    }

    fn location(&self) -> String {
        self.folder.display().to_string()
    }

    fn check(&mut self) -> Result<(), TrackError> {
        match self.spec.online {
            true => find_program(PROGRAM, None).map_err(|_| TrackError::NoProgram { program: PROGRAM }),
            false => Ok(()),
        }
    }

    fn update(&mut self, log: &Log) -> Result<(), TrackError> {
        let digest = Encoder::new("mcprl wandb run v1").text(&log.run).number(log.began_ms).finish();
        self.id = digest.to_string()[..16].to_owned();
        let folder = self.run_folder(log);
        for entry in &log.entries {
            if let Content::Text { tag, markdown, .. } = &entry.content {
                let page = page(markdown);
                file::write(&folder.join("files").join(media_path(tag, entry.step, &page)), page.as_bytes())?;
            }
        }
        let path = folder.join(format!("run-{}.wandb", self.id));
        let change = file::write(&path, &content(&self.spec, &self.id, log))?;
        if change != Change::None {
            // `wandb sync` leaves it behind even if an upload failed, and skips the file from then on.
            let marker = folder.join(format!("run-{}.wandb.synced", self.id));
            if_found(std::fs::remove_file(&marker))
                .map_err(|source| TrackError::Write { path: marker, source })?;
        }
        if self.spec.online { self.upload(&path, change, log.is_over()) } else { Ok(()) }
    }
}

/// The program that uploads, if it runs.
struct Upload {
    runtime: Runtime,
    running: Option<Running>,
    failed: Option<Instant>,
}

struct Running {
    child: Child,
    _group: Group,
    output: Arc<Mutex<VecDeque<String>>>,
}

impl Upload {
    fn new() -> Result<Self, TrackError> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().map_err(TrackError::Thread)?;
        Ok(Self { runtime, running: None, failed: None })
    }

    /// Fails if the program has ended before the run, or failed a moment ago.
    fn check(&mut self, is_over: bool) -> Result<(), TrackError> {
        let status = self.running.as_mut().and_then(|running| running.child.try_wait().ok().flatten());
        if status.is_some() {
            self.failed = Some(Instant::now());
            let running = self.running.take();
            // At the end of a run there is no later update that would try again.
            if !is_over {
                return Err(
                    running.map_or(TrackError::NoProgram { program: PROGRAM }, |running| running.error())
                );
            }
        }
        Ok(())
    }

    /// Starts the program, unless it runs already or failed a moment ago.
    fn start(&mut self, path: &Path, is_over: bool) -> Result<(), TrackError> {
        let is_resting = self.failed.is_some_and(|failed| failed.elapsed() < RETRY) && !is_over;
        if self.running.is_some() || is_resting {
            return Ok(());
        }
        let mut command = Command::new(PROGRAM);
        command.args(["beta", "sync", "--no-skip-synced"]);
        if !is_over {
            command.arg("--live");
        }
        command.arg(path).stdin(std::process::Stdio::null());
        let started = self.runtime.block_on(child::spawn(command));
        let (mut child, group) = started.map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => TrackError::NoProgram { program: PROGRAM },
            _ => TrackError::Start { program: PROGRAM, source },
        })?;
        let output = Arc::<Mutex<VecDeque<String>>>::default();
        if let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) {
            self.runtime.spawn(keep(out, Arc::clone(&output)));
            self.runtime.spawn(keep(err, Arc::clone(&output)));
        }
        self.running = Some(Running { child, _group: group, output });
        Ok(())
    }

    /// Waits until everything is uploaded, and ends the program.
    fn wait(&mut self, patience: Duration) -> Result<(), TrackError> {
        let Some(mut running) = self.running.take() else { return Ok(()) };
        let ended =
            self.runtime.block_on(async { tokio::time::timeout(patience, running.child.wait()).await });
        // Its output may arrive a little later.
        std::thread::sleep(Duration::from_millis(100));
        match ended {
            Ok(Ok(status)) if status.success() && !running.has_failed() => Ok(()),
            Ok(_) => Err(running.error()),
            Err(_) => Err(TrackError::Program {
                program: PROGRAM,
                message: format!("it did not finish within {} s", patience.as_secs()),
            }),
        }
    }
}

impl Running {
    fn lines(&self) -> Vec<String> {
        self.output.lock().iter().cloned().collect()
    }

    /// It ends with the exit code 0 also if nobody is logged in.
    fn has_failed(&self) -> bool {
        self.lines().iter().any(|line| line.contains("ERROR") || line.contains("Not authenticated"))
    }

    fn error(&self) -> TrackError {
        let lines = self.lines();
        let line = lines.iter().rev().find(|line| line.contains("ERROR")).or(lines.last());
        let message =
            line.map_or("it ended without a message", |line| line.trim_start_matches("wandb: ").trim());
        TrackError::Program { program: PROGRAM, message: escape::visible(message).into_owned() }
    }
}

/// Keeps the last lines of an output.
async fn keep(from: impl AsyncRead + Unpin, output: Arc<Mutex<VecDeque<String>>>) {
    let mut lines = BufReader::new(from).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let mut output = output.lock();
        if output.len() == KEPT {
            output.pop_front();
        }
        if !line.trim().is_empty() {
            output.push_back(line);
        }
    }
}

/// Fields of `Record`.
const HISTORY: u32 = 2;
const SUMMARY: u32 = 3;
const FILES: u32 = 6;
const METRIC: u32 = 12;
const RUN: u32 = 17;
const EXIT: u32 = 18;
const HEADER: u32 = 21;

/// The whole `.wandb` file.
fn content(spec: &WandbSpec, id: &str, log: &Log) -> Vec<u8> {
    let mut file = Writer::new();
    let version = Message::new().bytes(1, concat!("mcprl ", env!("CARGO_PKG_VERSION")));
    file.record(HEADER, Message::new().message(1, version));
    file.record(RUN, run(spec, id, log));
    let mut defined: BTreeSet<&str> = BTreeSet::new();
    for (row, entry) in log.entries.iter().enumerate() {
        let axis = entry.axis.metric();
        if let Some(axis) = &axis {
            for tag in entry.tags() {
                if defined.insert(tag) {
                    let options = Message::new().varint(1, 1).varint(3, 1);
                    file.record(METRIC, Message::new().bytes(1, tag).bytes(4, axis).message(6, options));
                }
            }
        }
        let mut items: Vec<(&str, Value)> =
            axis.iter().map(|axis| (axis.as_str(), entry.step.into())).collect();
        match &entry.content {
            Content::Scalars(values) => {
                items.extend(values.iter().map(|(tag, value)| (tag.as_str(), json!(value))));
            }
            Content::Text { tag, markdown, .. } => {
                let page = page(markdown);
                let path = media_path(tag, entry.step, &page);
                const MEDIA: u64 = 2;
                let media = Message::new().bytes(1, &path).varint(3, MEDIA);
                file.record(FILES, Message::new().message(1, media));
                items.push((tag, json!({ "_type": "html-file", "path": path, "size": page.len() })));
            }
        }
        let since = entry.at_ms.saturating_sub(log.began_ms);
        items.push(("_timestamp", json!(entry.at_ms as f64 / 1000.0)));
        items.push(("_runtime", json!(since as f64 / 1000.0)));
        items.push(("_step", row.into()));
        let items =
            items.iter().fold(Message::new(), |all, (name, value)| all.message(1, item(&[name], value)));
        // The runs table shows the summary: the last value of each metric.
        file.record(SUMMARY, items.clone());
        file.record(HISTORY, items.message(2, Message::new().varint(1, row as u64)));
    }
    // Without it the program waits for more.
    if log.is_over() {
        let code = match log.state {
            RunState::Finished | RunState::Running => 0,
            RunState::Failed => 1,
            RunState::Interrupted => 130,
            RunState::Killed => 137,
        };
        let seconds = log.ended_ms.saturating_sub(log.began_ms) / 1000;
        file.record(EXIT, Message::new().varint(1, code).varint(2, seconds));
    }
    file.bytes
}

/// A `HistoryItem` or `SummaryItem`, whose fields have the same numbers; a `ConfigItem` as well.
fn item(path: &[&str], value: &Value) -> Message {
    path.iter().fold(Message::new(), |item, part| item.bytes(2, part)).bytes(16, value.to_string())
}

/// `RunRecord`
fn run(spec: &WandbSpec, id: &str, log: &Log) -> Message {
    let config = log.config.iter().fold(Message::new(), |config, (name, value)| {
        let path: Vec<&str> = name.splitn(2, '.').collect();
        config.message(1, item(&path, value))
    });
    let optional = |message: Message, field: u32, text: &Option<String>| match text {
        Some(text) => message.bytes(field, text),
        None => message,
    };
    let start = Message::new().varint(1, log.began_ms / 1000).varint(2, log.began_ms % 1000 * 1_000_000);
    let run =
        optional(Message::new().bytes(1, id), 2, &spec.entity).bytes(3, &spec.project).message(4, config);
    let run = optional(run, 6, &spec.group).bytes(8, spec.name.as_ref().unwrap_or(&log.run));
    spec.tags.iter().fold(run, |run, tag| run.bytes(10, tag)).message(17, start)
}

/// A text as a page; Markdown is not shown by the viewer.
fn page(markdown: &str) -> String {
    format!("<meta charset=\"utf-8\"><pre style=\"white-space: pre-wrap\">{}</pre>\n", escape::html(markdown))
}

/// Where the page of a text is, below `files`.
fn media_path(tag: &str, step: u64, page: &str) -> String {
    format!("media/html/{tag}_{step}_{}.html", Digest::of(page.as_bytes()).short())
}

/// Writes records as a log of LevelDB.
struct Writer {
    bytes: Vec<u8>,
    records: u64,
}

const BLOCK: usize = 32 * 1024;
/// Checksum, length and type of a chunk.
const CHUNK: usize = 7;

impl Writer {
    fn new() -> Self {
        // Magic number and version.
        Self { bytes: b":W&B\xe1\xbe\0".to_vec(), records: 0 }
    }

    fn record(&mut self, field: u32, content: Message) {
        self.records += 1;
        self.append(&Message::new().varint(1, self.records).message(field, content).into_bytes());
    }

    /// Appends a record in as many chunks as blocks take.
    fn append(&mut self, record: &[u8]) {
        let mut rest = record;
        let mut is_first = true;
        loop {
            let left = BLOCK - self.bytes.len() % BLOCK;
            if left < CHUNK {
                self.bytes.resize(self.bytes.len() + left, 0);
                continue;
            }
            let (chunk, later) = rest.split_at(rest.len().min(left - CHUNK));
            let kind = match (is_first, later.is_empty()) {
                (true, true) => 1,
                (true, false) => 2,
                (false, false) => 3,
                (false, true) => 4,
            };
            self.bytes.extend(crc(&IEEE, &[&[kind], chunk]).to_le_bytes());
            self.bytes.extend((chunk.len() as u16).to_le_bytes());
            self.bytes.push(kind);
            self.bytes.extend(chunk);
            if later.is_empty() {
                return;
            }
            (rest, is_first) = (later, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::track::log::{Axis, Entry};

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    /// The records of a file, put together from their chunks.
    fn records(file: &[u8]) -> Vec<Vec<u8>> {
        let (mut at, mut found, mut record) = (CHUNK, Vec::new(), Vec::new());
        while at < file.len() {
            let left = BLOCK - at % BLOCK;
            if left < CHUNK {
                assert!(file[at..at + left].iter().all(|byte| *byte == 0));
                at += left;
                continue;
            }
            let length = usize::from(u16::from_le_bytes([file[at + 4], file[at + 5]]));
            let (kind, chunk) = (file[at + 6], &file[at + CHUNK..at + CHUNK + length]);
            assert_eq!(file[at..at + 4], crc(&IEEE, &[&[kind], chunk]).to_le_bytes());
            assert_eq!(record.is_empty(), [1, 2].contains(&kind), "a record begins with its first chunk");
            assert!(length + CHUNK <= left, "a chunk is within a block");
            record.extend_from_slice(chunk);
            if [1, 4].contains(&kind) {
                found.push(std::mem::take(&mut record));
            }
            at += CHUNK + length;
        }
        found
    }

    #[test]
    fn a_file_begins_as_that_of_the_client() {
        // The header and the first record of an offline run of wandb 0.31.
        let real = bytes(FIRST);
        let mut file = Writer::new();
        file.append(&real[2 * CHUNK..]);
        assert_eq!(file.bytes, real);
    }

    const FIRST: &str = "3a572642e1be005115b2d14d00010801c20c0a0a0861666579616a7939aa013b0a390a2f302e33312e30\
                         2b3135663863626335383164316335636663366533316636386234386264643133636563326464326312\
                         06302e37302e30";

    #[test]
    fn records_of_any_length_fit_into_blocks() {
        let mut file = Writer::new();
        // The second leaves fewer bytes in its block than a chunk's head takes.
        let lengths = [10, BLOCK - 7 - 17 - 7 - 3, 1, 3 * BLOCK, BLOCK - 1, 0, 5];
        let all: Vec<Vec<u8>> =
            lengths.iter().map(|length| (0..*length).map(|byte| byte as u8).collect()).collect();
        all.iter().for_each(|record| file.append(record));
        assert_eq!(records(&file.bytes), all);
    }

    #[test]
    fn a_log_that_grows_appends_to_the_file_until_the_exit_record() {
        let entry = |step: u64| Entry {
            at_ms: 2000 + step,
            axis: Axis::Iterations("train".into()),
            step,
            content: Content::Scalars(vec![("train/loss".into(), 0.5)]),
        };
        let mut log = Log {
            run: "r".into(),
            name: "n".into(),
            state: RunState::Running,
            began_ms: 1000,
            ended_ms: 2001,
            config: vec![("train/update.rank".into(), 7.into())],
            entries: vec![entry(1)],
        };
        let write = |log: &Log| content(&WandbSpec::default(), "id", log);
        let before = write(&log);
        log.entries.push(entry(2));
        let after = write(&log);
        assert!(after.len() > before.len() && after.starts_with(&before));
        // Header, run, one metric, and a summary and a row for each entry.
        assert_eq!((records(&before).len(), records(&after).len()), (5, 7));
        for (state, code) in [(RunState::Finished, 0), (RunState::Failed, 1), (RunState::Interrupted, 130)] {
            log.state = state;
            let exit = Message::new().varint(1, 8).message(EXIT, Message::new().varint(1, code).varint(2, 1));
            let ended = write(&log);
            assert!(ended.starts_with(&after));
            assert_eq!(records(&ended).last(), Some(&exit.into_bytes()));
        }
    }
}
