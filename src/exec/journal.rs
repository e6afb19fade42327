//! A run's journal: one JSON object per line, append-only.
//!
//! The journal is for people and for `mcprl runs`; the store decides whether a stage is finished. Readers
//! skip a line torn by a kill. Reopening the journal terminates it.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    time::SystemTime,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize, de::IgnoredAny};

use super::event::{Event, RunState};
use crate::{
    error::if_found,
    hash::Digest,
    progress::now_ms,
    secret,
    store::{StoreError, die, reached},
};

/// An event and when it was written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TimedEvent {
    /// Milliseconds since the epoch.
    pub at: u64,
    #[serde(flatten)]
    pub event: Event,
}

/// A [`TimedEvent`] to write.
#[derive(Serialize)]
struct Line<'e> {
    at: u64,
    #[serde(flatten)]
    event: &'e Event,
}

pub struct Journal {
    path: PathBuf,
    lines: Mutex<Lines<File>>,
}

/// Appends lines one by one.
struct Lines<W> {
    to: W,
    /// A line was cut short, for example by a full disk. It is terminated before the next one.
    torn: bool,
}

impl<W: Write> Lines<W> {
    fn add(&mut self, line: &[u8]) -> std::io::Result<()> {
        if self.torn {
            self.to.write_all(b"\n")?;
        }
        self.torn = true;
        self.to.write_all(line)?;
        self.torn = false;
        Ok(())
    }
}

impl Journal {
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let writing = |cause| StoreError::writing(path, cause);
        let mut file = OpenOptions::new().create(true).read(true).append(true).open(path).map_err(writing)?;
        if file.seek(SeekFrom::End(-1)).is_ok() {
            let mut last = [0];
            file.read_exact(&mut last).map_err(writing)?;
            if last != *b"\n" {
                file.write_all(b"\n").map_err(writing)?;
            }
        }
        Ok(Self { path: path.to_owned(), lines: Mutex::new(Lines { to: file, torn: false }) })
    }

    /// Notes that everything is as this run left it. A note behind another one is the file's time alone.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn repeated(path: &Path) -> Result<(), StoreError> {
        let writing = |cause| StoreError::writing(path, cause);
        let mut file = OpenOptions::new().read(true).append(true).open(path).map_err(writing)?;
        let length = file.metadata().map_err(writing)?.len();
        let mut end = String::new();
        file.seek(SeekFrom::Start(length.saturating_sub(256))).map_err(writing)?;
        // Cut within a letter, it is no such note.
        _ = file.read_to_string(&mut end);
        let last = end.lines().last().and_then(|line| event(line.as_bytes()));
        if end.ends_with('\n') && last.is_some_and(|last| matches!(last.event, Event::Repeated { .. })) {
            return file.set_modified(SystemTime::now()).map_err(writing);
        }
        Self::open(path)?.add(&Event::Repeated { pid: std::process::id() })
    }

    pub fn add(&self, event: &Event) -> Result<(), StoreError> {
        let at = now_ms();
        let writing = |cause| StoreError::writing(&self.path, cause);
        let mut line =
            serde_json::to_vec(&Line { at, event }).map_err(|cause| writing(std::io::Error::other(cause)))?;
        // Everyone who shares the cache reads it.
        if secret::in_bytes(&line).is_some() {
            let mut value = serde_json::from_slice(&line).unwrap_or_default();
            secret::conceal(&mut value);
            line = value.to_string().into_bytes();
        }
        add_sum(&mut line);
        line.push(b'\n');
        let mut lines = self.lines.lock();
        if reached("journal::torn") {
            let half = line.len() / 2;
            line.truncate(half);
            _ = lines.add(&line);
            die();
        }
        lines.add(&line).map_err(writing)
    }
}

/// All whole lines of a journal; empty if there is no journal.
pub fn read(path: &Path) -> Vec<TimedEvent> {
    inspect(path).0
}

/// Like [`read`], and why events of the run may be missing. A line cut short by a kill or a full disk is no reason, and a
/// resumption that finished has named all results again.
pub fn inspect(path: &Path) -> (Vec<TimedEvent>, Option<String>) {
    let bytes = match if_found(std::fs::read(path)) {
        Ok(bytes) => bytes.unwrap_or_default(),
        Err(cause) => return (Vec::new(), Some(cause.to_string())),
    };
    let mut events = Vec::new();
    let mut damaged = None;
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty()) {
        match event(line) {
            Some(event) => events.push(event),
            None if is_cut(line) => {}
            None => damaged = Some((events.len(), index + 1)),
        }
    }
    let damaged = damaged.filter(|(after, _)| {
        let later: &[TimedEvent] = &events[*after..];
        let is_resumed = later.iter().any(|timed| matches!(timed.event, Event::Opened { .. }));
        !(is_resumed && state(later) == RunState::Finished)
    });
    let problem = damaged.map(|(_, line)| format!("its line {line} is damaged"));
    (events, problem)
}

/// How a line ends: with the first bytes of the hash of what stands before, so that a changed key or digest is noticed.
const SUM: &str = r#","sum":""#;
const SUM_END: &str = "\"}";

fn add_sum(line: &mut Vec<u8>) {
    if line.pop() == Some(b'}') {
        let sum = Digest::of(line).short();
        line.extend([SUM, &sum, SUM_END].concat().bytes());
    }
}

/// The event of a line. None if it is damaged.
fn event(line: &[u8]) -> Option<TimedEvent> {
    let end = line.len().saturating_sub(SUM.len() + Digest::of(b"").short().len() + SUM_END.len());
    let (content, sum) = line.split_at(end);
    if sum.starts_with(SUM.as_bytes())
        && sum != [SUM, &Digest::of(content).short(), SUM_END].concat().as_bytes()
    {
        return None;
    }
    serde_json::from_slice(line).ok()
}

/// Whether this is the beginning of a line.
fn is_cut(line: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(line).is_err_and(|cause| cause.is_eof())
}

/// The state of the run with these events; `Killed` if it is not closed. Later requests that found it up to
/// date do not count.
pub fn state(events: &[TimedEvent]) -> RunState {
    match events.iter().map(|timed| &timed.event).rfind(|event| !matches!(event, Event::Repeated { .. })) {
        Some(Event::Closed { state }) => *state,
        _ => RunState::Killed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_line_is_skipped_and_later_ones_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.jsonl");
        let skipped = |id: &str| Event::Skipped { id: id.into() };
        Journal::open(&path).unwrap().add(&skipped("a")).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        let half = bytes.len() / 2;
        bytes.extend_from_within(..half);
        std::fs::write(&path, bytes).unwrap();
        Journal::open(&path).unwrap().add(&skipped("b")).unwrap();
        let entries: Vec<_> = read(&path).into_iter().map(|timed| timed.event).collect();
        assert_eq!(entries, [skipped("a"), skipped("b")]);
    }

    #[test]
    fn a_damaged_line_is_a_problem_until_the_run_is_resumed_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.jsonl");
        let skipped = r#"{"at":1,"event":"skipped","id":"a"}"#;
        let opened = r#"{"at":1,"event":"opened","pid":1,"version":"1"}"#;
        let finished = r#"{"at":1,"event":"closed","state":"finished"}"#;
        for (lines, expected) in [
            (vec![opened, skipped, finished], None),
            (vec![opened, &skipped[..20]], None),
            (vec![opened, &skipped[..20], opened, skipped], None),
            (vec![opened, "#\u{0}\u{0}", finished], Some("its line 2 is damaged")),
            (vec![opened, r#"{"at":1,"event":"skiqqed","id":"a"}"#], Some("its line 2 is damaged")),
            (vec![opened, "#", opened, skipped], Some("its line 2 is damaged")),
            (vec![opened, "#", opened, skipped, finished], None),
        ] {
            std::fs::write(&path, lines.join("\n")).unwrap();
            assert_eq!(inspect(&path).1.as_deref(), expected, "{lines:?}");
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(inspect(&path), (Vec::new(), None));
        std::fs::create_dir(&path).unwrap();
        assert!(inspect(&path).1.is_some());
    }

    #[test]
    fn a_line_in_which_anything_changed_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.jsonl");
        let started = Event::Started { id: "a".into(), key: Digest::of(b"key"), reasons: Vec::new() };
        Journal::open(&path).unwrap().add(&started).unwrap();
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(inspect(&path).0[0].event, started);
        let of_sum = whole.len() - SUM.len() - SUM_END.len() - 13;
        for at in 0..whole.len() - 1 {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            std::fs::write(&path, &changed).unwrap();
            let (events, problem) = inspect(&path);
            // One in the sum's name leaves a line of an earlier program, whose content is right.
            let is_right = at >= of_sum && events.len() == 1 && events[0].event == started;
            assert!(is_right || events.is_empty(), "{at}");
            assert!(is_right || problem.is_some() || is_cut(changed.trim_ascii_end()), "{at}");
        }
    }

    #[test]
    fn a_run_that_is_repeated_again_and_again_has_one_line_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.jsonl");
        Journal::open(&path).unwrap().add(&Event::Skipped { id: "a".into() }).unwrap();
        let before = path.metadata().unwrap().modified().unwrap();
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            Journal::repeated(&path).unwrap();
        }
        assert_eq!(read(&path).len(), 2);
        assert!(path.metadata().unwrap().modified().unwrap() > before);
    }

    /// A disk with room for this many bytes.
    struct Disk {
        bytes: Vec<u8>,
        room: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let written = bytes.len().min(self.room - self.bytes.len());
            if written == 0 {
                return Err(std::io::ErrorKind::StorageFull.into());
            }
            self.bytes.extend_from_slice(&bytes[..written]);
            Ok(written)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_truncated_by_a_full_disk_does_not_damage_the_next() {
        let mut lines = Lines { to: Disk { bytes: Vec::new(), room: 10 }, torn: false };
        lines.add(b"first\n").unwrap();
        assert!(lines.add(b"second\n").is_err());
        assert!(lines.add(b"third\n").is_err(), "there is still no room");
        lines.to.room = 100;
        lines.add(b"fourth\n").unwrap();
        lines.add(b"fifth\n").unwrap();
        assert_eq!(String::from_utf8(lines.to.bytes).unwrap(), "first\nseco\nfourth\nfifth\n");
    }

    #[test]
    fn a_token_in_a_note_is_not_in_the_journal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.jsonl");
        let message = format!("it said\nsk-{}", "a1B2c3D4e5F6".repeat(4));
        Journal::open(&path).unwrap().add(&Event::Note { id: "a".into(), message }).unwrap();
        assert!(!std::fs::read_to_string(&path).unwrap().contains("a1B2"));
        let message = "it said\n…".to_owned();
        assert_eq!(read(&path)[0].event, Event::Note { id: "a".into(), message });
    }
}
