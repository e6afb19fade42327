//! Progress without a terminal: a line for each event, and a progress line at intervals.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::{
    Printer,
    gauge::{Gauge, GaugeObserver},
    run::RunDisplay,
};
use crate::progress::Observer;

/// Interval between two progress lines of a stage.
const INTERVAL: Duration = Duration::from_secs(15);

pub struct Lines(pub Printer);

impl RunDisplay for Lines {
    fn line(&self, text: &str) {
        self.0.say(text);
    }

    fn begin(&self, id: &str) -> Arc<dyn Observer> {
        let (printer, id, now) = (self.0, id.to_owned(), Instant::now());
        let gauge = Arc::new(Mutex::new(Gauge::new(&id, now)));
        let printed = Mutex::new(now);
        let changed = move |gauge: &Gauge, now| {
            let mut printed = printed.lock().unwrap_or_else(PoisonError::into_inner);
            if now - *printed >= INTERVAL {
                *printed = now;
                printer.say(&format!("{id}: {}", gauge.message(now)));
            }
        };
        Arc::new(GaugeObserver { gauge, changed })
    }

    fn end(&self, _id: &str) {}

    fn shows_running(&self) -> bool {
        false
    }
}
