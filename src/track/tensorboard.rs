//! TensorBoard: one event file per run, a TFRecord file of `Event` messages.
//!
//! Field numbers are those of `tensorflow/core/util/event.proto`, `framework/summary.proto`, `framework/tensor.proto`
//! and `tensorboard/plugins/hparams/plugin_data.proto`. TensorBoard polls the file and reads what is appended.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{
    Log, Sink, TrackError,
    crc::{CASTAGNOLI, crc},
    file,
    log::Content,
    proto::Message,
};
use crate::{exec::RunState, plan::TensorBoardSpec};

/// Values of `DataType`.
const DT_FLOAT: u64 = 1;
const DT_STRING: u64 = 7;

/// Writes the event file of a run.
pub struct TensorBoard {
    folder: PathBuf,
}

impl TensorBoard {
    /// `run_folder`: the run's folder in the cache.
    pub fn new(spec: &TensorBoardSpec, run_folder: &Path, run: &str) -> Self {
        let folder = spec.path.as_ref().map_or_else(|| run_folder.join("tensorboard"), |path| path.join(run));
        Self { folder }
    }
}

impl Sink for TensorBoard {
    fn name(&self) -> &'static str {
        "tensorboard"
    }

    fn location(&self) -> String {
        self.folder.display().to_string()
    }

    fn update(&mut self, log: &Log) -> Result<(), TrackError> {
        // The name is the same in every update: TensorBoard reads only the newest file of a folder.
        let name = format!("events.out.tfevents.{}.mcprl", log.began_ms / 1000);
        file::write(&self.folder.join(name), &content(log)).map(|_| ())
    }
}

/// The whole event file.
fn content(log: &Log) -> Vec<u8> {
    let mut file = Vec::new();
    record(&mut file, event(log.began_ms).bytes(3, "brain.Event:2"));
    let start = Message::new().message(3, session_start(log));
    record(&mut file, event(log.began_ms).message(5, hparams("_hparams_/session_start_info", start)));
    for entry in &log.entries {
        let values: Vec<Message> = match &entry.content {
            Content::Scalars(values) => values.iter().map(|(tag, value)| scalar(tag, *value)).collect(),
            Content::Text { tag, markdown, .. } => vec![text(tag, markdown)],
        };
        let summary = values.into_iter().fold(Message::new(), |summary, value| summary.message(1, value));
        record(&mut file, event(entry.at_ms).varint(2, entry.step).message(5, summary));
    }
    // A run that failed or was stopped may be resumed, and an event cannot be taken back.
    if log.state == RunState::Finished {
        const SUCCESS: u64 = 1;
        let end = Message::new().varint(1, SUCCESS).double(2, seconds(log.ended_ms));
        let end = hparams("_hparams_/session_end_info", Message::new().message(4, end));
        record(&mut file, event(log.ended_ms).message(5, end));
    }
    file
}

/// Length, its checksum, the bytes, and theirs.
fn record(file: &mut Vec<u8>, event: Message) {
    let bytes = event.into_bytes();
    let length = (bytes.len() as u64).to_le_bytes();
    file.extend(length);
    file.extend(masked(&length));
    file.extend(&bytes);
    file.extend(masked(&bytes));
}

/// The checksum of a TFRecord.
fn masked(bytes: &[u8]) -> [u8; 4] {
    crc(&CASTAGNOLI, &[bytes]).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

/// An `Event` without content.
fn event(at_ms: u64) -> Message {
    Message::new().double(1, seconds(at_ms))
}

/// A `Summary.Value`.
fn scalar(tag: &str, value: f64) -> Message {
    Message::new().bytes(1, tag).float(2, value as f32)
}

/// `SummaryMetadata` with these data of a plugin.
fn metadata(plugin: Message) -> Message {
    const TENSOR: u64 = 2;
    Message::new().message(1, plugin).varint(4, TENSOR)
}

/// A `Summary.Value`: a text as a scalar tensor of strings.
fn text(tag: &str, text: &str) -> Message {
    let tensor = Message::new().varint(1, DT_STRING).message(2, Message::new()).bytes(8, text);
    Message::new().bytes(1, tag).message(8, tensor).message(9, metadata(Message::new().bytes(1, "text")))
}

/// A `Summary` with `HParamsPluginData` and an empty tensor, which readers expect.
fn hparams(tag: &str, data: Message) -> Message {
    let empty = Message::new().message(2, Message::new());
    let tensor = Message::new().varint(1, DT_FLOAT).message(2, empty);
    let plugin = Message::new().bytes(1, "hparams").message(2, data);
    Message::new().message(1, Message::new().bytes(1, tag).message(8, tensor).message(9, metadata(plugin)))
}

/// `SessionStartInfo`: the settings, by which the HPARAMS tab compares runs.
fn session_start(log: &Log) -> Message {
    let entry = |(name, value): &(String, Value)| {
        let value = match value {
            Value::Number(number) => Message::new().double(2, number.as_f64().unwrap_or_default()),
            Value::Bool(bit) => Message::new().varint(4, u64::from(*bit)),
            Value::String(text) => Message::new().bytes(3, text),
            other => Message::new().bytes(3, other.to_string()),
        };
        Message::new().bytes(1, name).message(2, value)
    };
    let settings = log.config.iter().fold(Message::new(), |start, setting| start.message(1, entry(setting)));
    settings.bytes(4, &log.name).double(5, seconds(log.began_ms))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::track::log::{Axis, Entry};

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The record of an event.
    fn written(event: Message) -> String {
        let mut file = Vec::new();
        record(&mut file, event);
        hex(&file)
    }

    // Written by TensorBoard 2.21's own `RecordWriter`, from its generated messages.
    const VERSION: &str = "1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a";
    const SCALAR: &str =
        "200000000000000029eda95009000000000000044010032a130a110a0a747261696e2f6c6f7373150000003fef945f2a";
    const TEXT: &str = "3b000000000000001a23ac5c09000000000000044010032a2e0a2c0a0c766572646963742f6578616d421008071200420a2a2a\
                        6265747465722a2a4a0a0a060a04746578742002572a853c";
    const HPARAMS: &str = "6500000000000000ebd05a6909000000000000f03f2a5a0a580a1c5f68706172616d735f2f73657373696f6e5f737461\
                           72745f696e666f42060801120212004a300a2c0a0768706172616d7312211a1f0a110a04736565641209110000000000\
                           001c4022016e29000000000000f03f2002f54717c8";

    #[test]
    fn events_have_the_bytes_that_tensorboard_writes() {
        let at = || event(2500).varint(2, 3);
        assert_eq!(written(event(1000).bytes(3, "brain.Event:2")), VERSION);
        assert_eq!(written(at().message(5, Message::new().message(1, scalar("train/loss", 0.5)))), SCALAR);
        assert_eq!(
            written(at().message(5, Message::new().message(1, text("verdict/exam", "**better**")))),
            TEXT
        );
        let start = Message::new().message(3, session_start(&log()));
        assert_eq!(written(event(1000).message(5, hparams("_hparams_/session_start_info", start))), HPARAMS);
    }

    fn log() -> Log {
        Log {
            run: "r".into(),
            name: "n".into(),
            state: RunState::Running,
            began_ms: 1000,
            ended_ms: 2001,
            config: vec![("seed".into(), 7.into())],
            entries: Vec::new(),
        }
    }

    #[test]
    fn a_log_that_grows_appends_to_the_file() {
        let scalars = |step: u64| Entry {
            at_ms: 2000 + step,
            axis: Axis::Iterations("train".into()),
            step,
            content: Content::Scalars(vec![("train/loss".into(), 0.5), ("train/success".into(), 0.25)]),
        };
        let mut log = log();
        log.entries.push(scalars(1));
        let before = content(&log);
        log.entries.push(scalars(2));
        let after = content(&log);
        assert!(after.len() > before.len() && after.starts_with(&before));
        (log.state, log.ended_ms) = (RunState::Failed, 3000);
        assert_eq!(content(&log), after, "a failed run may go on");
        log.state = RunState::Finished;
        let finished = content(&log);
        assert!(finished.len() > after.len() && finished.starts_with(&after));
    }
}
