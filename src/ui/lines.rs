//! Progress where there is no terminal: a line for each thing that happened, and a sign of life now and then.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::{Printer, run::Face};
use crate::progress::Observer;

/// Between two signs of life of a stage.
const PAUSE: Duration = Duration::from_secs(15);

pub struct Lines(pub Printer);

impl Face for Lines {
    fn line(&self, text: &str) {
        self.0.say(text);
    }

    fn begin(&self, id: &str) -> Arc<dyn Observer> {
        Arc::new(Stage { printer: self.0, id: id.to_owned(), state: Mutex::new(State::new()) })
    }

    fn end(&self, _id: &str) {}

    fn shows_work(&self) -> bool {
        false
    }
}

struct State {
    said: Instant,
    done: u64,
    total: u64,
}

impl State {
    fn new() -> Self {
        Self { said: Instant::now(), done: 0, total: 0 }
    }
}

struct Stage {
    printer: Printer,
    id: String,
    state: Mutex<State>,
}

impl Stage {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Observer for Stage {
    fn total(&self, units: u64) {
        self.change(|state| state.total = units);
    }

    fn advance(&self, units: u64) {
        self.change(|state| state.done += units);
    }

    fn status(&self, text: &str) {
        self.change(|state| {
            if state.said.elapsed() < PAUSE {
                return;
            }
            state.said = Instant::now();
            let share =
                if state.total > 0 { format!("{}/{} ", state.done, state.total) } else { String::new() };
            self.printer.say(&format!("{}: {share}{text}", self.id));
        });
    }

    fn note(&self, text: &str) {
        self.printer.say(&format!("{}: {text}", self.id));
    }
}
