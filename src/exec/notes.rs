//! Notes of a stage: reported at once, and kept for its record.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{Event, Listener};
use crate::{
    progress::{Observer, SharedProgress},
    secret::concealed,
};

/// Maximum number of notes kept per stage. Beyond it, only the number is recorded.
const KEPT: usize = 20;

/// Observes one stage: passes progress to the listener's observer, and notes and output to the listener.
pub struct Notes {
    stage: String,
    listener: Arc<dyn Listener>,
    /// Shown by the listener, and to other processes.
    progress: [Arc<dyn Observer>; 2],
    kept: Mutex<NoteList>,
}

#[derive(Default)]
struct NoteList {
    notes: Vec<String>,
    more: usize,
}

impl Notes {
    pub fn new(stage: &str, listener: &Arc<dyn Listener>, shared: Arc<SharedProgress>) -> Self {
        Self {
            stage: stage.to_owned(),
            listener: listener.clone(),
            progress: [listener.observer(stage), shared],
            kept: Mutex::default(),
        }
    }

    /// The notes, without duplicates.
    pub fn kept(&self) -> Vec<String> {
        let kept = self.kept.lock();
        let more = (kept.more > 0).then(|| format!("and {} more notes", kept.more));
        kept.notes.iter().cloned().chain(more).collect()
    }
}

impl Observer for Notes {
    fn phase(&self, name: &str, units: u64) {
        self.progress.iter().for_each(|to| to.phase(name, units));
    }

    fn advance(&self, units: u64) {
        self.progress.iter().for_each(|to| to.advance(units));
    }

    fn skip(&self, units: u64) {
        self.progress.iter().for_each(|to| to.skip(units));
    }

    fn expect(&self, seconds: f64) {
        self.progress.iter().for_each(|to| to.expect(seconds));
    }

    fn status(&self, text: &str) {
        let text = concealed(text);
        self.progress.iter().for_each(|to| to.status(&text));
    }

    fn note(&self, text: &str) {
        let text = concealed(text);
        {
            let mut kept = self.kept.lock();
            if kept.notes.iter().any(|note| *note == text) {
                return;
            }
            match kept.notes.len() < KEPT {
                true => kept.notes.push(text.clone().into_owned()),
                false => kept.more += 1,
            }
        }
        self.listener.event(&Event::Note { id: self.stage.clone(), message: text.into_owned() });
    }

    fn output(&self, line: &str) {
        self.listener.event(&Event::Printed { id: self.stage.clone(), line: concealed(line).into_owned() });
    }
}
