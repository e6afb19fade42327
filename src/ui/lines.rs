//! Progress without a terminal: a line for each event, and a progress line at intervals.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::{Printer, gauge::Gauge, run::RunDisplay};
use crate::progress::Observer;

/// Interval between two progress lines of a stage.
const PAUSE: Duration = Duration::from_secs(15);

pub struct Lines(pub Printer);

impl RunDisplay for Lines {
    fn line(&self, text: &str) {
        self.0.say(text);
    }

    fn begin(&self, id: &str) -> Arc<dyn Observer> {
        let now = Instant::now();
        let state = State { said: now, gauge: Gauge::new(id, now) };
        Arc::new(Stage { printer: self.0, id: id.to_owned(), state: Mutex::new(state) })
    }

    fn end(&self, _id: &str) {}

    fn shows_work(&self) -> bool {
        false
    }
}

struct State {
    said: Instant,
    gauge: Gauge,
}

struct Stage {
    printer: Printer,
    id: String,
    state: Mutex<State>,
}

impl Stage {
    /// Applies a change, and prints the stage's progress if the last line is old enough.
    fn change(&self, change: impl FnOnce(&mut Gauge, Instant)) {
        let now = Instant::now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state.gauge, now);
        if now - state.said >= PAUSE {
            state.said = now;
            self.printer.say(&format!("{}: {}", self.id, state.gauge.message(now)));
        }
    }
}

impl Observer for Stage {
    fn phase(&self, name: &str, units: u64) {
        self.change(|gauge, now| gauge.phase(name, units, now));
    }

    fn advance(&self, units: u64) {
        self.change(|gauge, now| gauge.advance(units, now));
    }

    fn skip(&self, units: u64) {
        self.change(|gauge, _| gauge.skip(units));
    }

    fn status(&self, text: &str) {
        self.change(|gauge, _| gauge.status(text));
    }
}
