//! What happens in a run, as one type: a line of its journal, an object of `--json`, and what the terminal, trackers and
//! `mcprl watch` show. Other programs read it as docs/guides/trackers.md describes it, so names and fields stay.

use std::collections::BTreeMap;

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
#[cfg_attr(test, derive(strum::VariantNames), strum(serialize_all = "kebab-case"))]
pub enum Event {
    /// A process started or resumed the run.
    Opened {
        pid: u32,
        version: String,
        /// Processor and cores.
        #[serde(default)]
        machine: Option<String>,
    },
    /// The files that the server's command and environment name, as they are when the run begins or goes on.
    ServerFiles { files: BTreeMap<String, Digest> },
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
    /// The result of a loop is that of this iteration; 0 is what the loop starts from. Of loops that have a choice.
    LoopResult {
        #[serde(rename = "loop")]
        name: String,
        iteration: u32,
        message: String,
    },
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
    use std::collections::BTreeSet;

    use strum::VariantNames;

    use super::*;

    #[test]
    fn every_event_is_documented_with_its_fields() {
        let (id, run, key) = (|| "a".to_owned(), || "r".to_owned(), Digest::of(b""));
        let error = || Reported::of_text("no room".into());
        let result = || CachedResult { notes: vec!["few tasks".into()], ..CachedResult::default() };
        let in_journal = [
            Event::Opened { pid: 1, version: "0".into(), machine: None },
            Event::ServerFiles { files: BTreeMap::new() },
            Event::Started { id: id(), key, reasons: Vec::new() },
            Event::Finished { id: id(), key, result: result() },
            Event::Cached { id: id(), key, result: result() },
            Event::Skipped { id: id() },
            Event::Failed { id: id(), error: error() },
            Event::Note { id: id(), message: "few tasks".into() },
            Event::Retrying { id: id(), error: error(), wait_s: 1.0 },
            Event::Unanswered { id: id(), error: error() },
            Event::Waiting { id: id(), run: run(), holder: Holder::default() },
            Event::Differs { id: id(), key, outputs: Vec::new() },
            Event::Remote { id: id(), problem: "away".into() },
            Event::Loaded { models: 1 },
            Event::Repeated { pid: 1 },
            Event::LoopResult { name: id(), iteration: 2, message: "the best".into() },
            Event::Closed { state: RunState::Finished },
        ];
        let elsewhere = ["finding", "printed", "untracked", "stopping"];
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/guides/trackers.md");
        let page = std::fs::read_to_string(page).unwrap();
        let (_, page) = page.split_once("\n## Events for other programs\n").unwrap();
        let names = |text: &str, name: &str| text.contains(&format!("`{name}`"));
        let mut known = BTreeSet::from(elsewhere);
        for event in &in_journal {
            let line = serde_json::to_value(event).unwrap();
            let name = line["event"].as_str().unwrap();
            let row = page.lines().find(|row| row.starts_with(&format!("| `{name}` |")));
            let row = row.unwrap_or_else(|| panic!("no row for {name}"));
            for (field, value) in line.as_object().unwrap().iter().filter(|(field, _)| *field != "event") {
                assert!(names(row, field), "{name}: {field}");
                let inner = value.as_object().filter(|_| ["result", "error"].contains(&field.as_str()));
                inner.into_iter().flatten().for_each(|(field, _)| assert!(names(page, field), "{field}"));
            }
            known.extend(Event::VARIANTS.iter().filter(|variant| **variant == name));
        }
        assert!(elsewhere.iter().all(|name| names(page, name)));
        assert_eq!(known, Event::VARIANTS.iter().copied().collect());
    }

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
