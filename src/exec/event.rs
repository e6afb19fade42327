//! What happens in a run, as one type: a line of its journal, an object of `--json`, and what the terminal, trackers and
//! `mcprl watch` show.

use serde::{Deserialize, Deserializer, Serialize};

use crate::{
    error::Reported,
    hash::Digest,
    plan::RerunReason,
    store::{CachedResult, Holder},
};

/// Something that happened in a run. `id` is that of a stage.
///
/// The journal has all but [`Event::Printed`], [`Event::Untracked`], [`Event::Finding`], [`Event::Stopping`] and the notes of
/// stages that finished, whose results have them. The aliases are the names in
/// journals of earlier versions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// A process started or resumed the run.
    Opened {
        pid: u32,
        version: String,
        /// Processor and cores.
        #[serde(default)]
        machine: Option<String>,
    },
    /// Its result was in the store.
    Cached {
        #[serde(alias = "node")]
        id: String,
        key: Digest,
        result: CachedResult,
    },
    Started {
        #[serde(alias = "node")]
        id: String,
        key: Digest,
        reasons: Vec<RerunReason>,
    },
    /// Another run is running the same stage.
    Waiting { id: String, run: String, holder: Holder },
    Finished {
        #[serde(alias = "node")]
        id: String,
        key: Digest,
        result: CachedResult,
    },
    /// An external service failed; the stage is retried after this time.
    #[serde(alias = "retried")]
    Retrying {
        #[serde(alias = "node")]
        id: String,
        #[serde(deserialize_with = "reported")]
        error: Reported,
        #[serde(default)]
        wait_s: f64,
    },
    /// The server could not be queried again; its last answer is used.
    Unanswered { id: String, error: Reported },
    /// Its loop has ended.
    Skipped {
        #[serde(alias = "node")]
        id: String,
    },
    Failed {
        #[serde(alias = "node")]
        id: String,
        #[serde(deserialize_with = "reported")]
        error: Reported,
    },
    /// The stage wrote other bytes than another run under the same key; the first result is kept.
    Differs {
        #[serde(alias = "node")]
        id: String,
        key: Digest,
        outputs: Vec<String>,
    },
    /// The shared cache, or a result in it, is unusable; the stage continues without it.
    Remote {
        #[serde(alias = "node")]
        id: String,
        problem: String,
    },
    /// A note of a running stage about its result. A result has its notes too.
    #[serde(alias = "noted")]
    Note {
        #[serde(alias = "node")]
        id: String,
        #[serde(alias = "text")]
        message: String,
    },
    /// A note about the run before it begins.
    Finding { error: Reported },
    /// A line that a stage's program printed.
    Printed { id: String, line: String },
    /// A tracker could not be brought up to date; the run goes on.
    Untracked { tracker: String, error: Reported },
    /// Number of models loaded into memory; stages share them.
    Loaded { models: usize },
    /// A stop was requested; stages are ending.
    Stopping,
    /// The run was requested again, and everything was up to date.
    Repeated { pid: u32 },
    /// The process exited normally.
    Closed { state: RunState },
}

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunState {
    Finished,
    Failed,
    /// Stopped on request.
    Interrupted,
    Running,
    /// Neither closed nor running.
    Killed,
}

/// An error, of which earlier versions wrote the text alone.
fn reported<'d, D: Deserializer<'d>>(from: D) -> Result<Reported, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Whole(Reported),
        Text(String),
    }
    Written::deserialize(from).map(|written| match written {
        Written::Whole(error) => error,
        Written::Text(message) => Reported::of_text(message),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_earlier_journals_are_read() {
        let read = |line: &str| serde_json::from_str::<Event>(line).unwrap();
        let failed = read(r#"{"event":"failed","node":"a","error":"no room"}"#);
        assert!(
            matches!(&failed, Event::Failed { id, error } if id == "a" && error.to_string() == "no room")
        );
        let retried = read(r#"{"event":"retried","node":"a","error":"away"}"#);
        assert!(matches!(&retried, Event::Retrying { wait_s: 0.0, .. }));
        let noted = read(r#"{"event":"noted","node":"a","text":"few tasks"}"#);
        assert_eq!(noted, Event::Note { id: "a".into(), message: "few tasks".into() });
    }
}
