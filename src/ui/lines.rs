//! Progress without a terminal: a line for each event, and a progress line at intervals.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{Printer, display::RunDisplay, gauge, log::Level};
use crate::progress::{Progress, SharedProgress};

/// Interval between two progress lines of a stage.
const INTERVAL: Duration = Duration::from_secs(15);

pub struct Lines(pub Printer);

impl RunDisplay for Lines {
    fn line(&self, text: &str) {
        self.0.say(text);
    }

    fn begin(&self, id: &str) -> Arc<SharedProgress> {
        let printer = self.0;
        let printed = Mutex::new(Instant::now());
        SharedProgress::with(id, move |progress, now_ms| {
            let mut printed = printed.lock();
            if printed.elapsed() >= INTERVAL {
                *printed = Instant::now();
                print(printer, progress, now_ms);
            }
        })
    }

    fn shows_running(&self) -> bool {
        false
    }
}

fn print(printer: Printer, progress: &Progress, now_ms: u64) {
    let Progress { stage, phase, status, .. } = progress;
    let message = format!("{stage}: {}", gauge::message(progress, now_ms));
    let fields = serde_json::json!({
        "event": "progress",
        "id": stage,
        "phase": phase.name,
        "done": phase.done,
        "units": phase.units,
        "seconds_left": progress.left(now_ms).map(|left| left.as_secs_f64()),
        "status": status,
    });
    printer.log(Level::Info, &message, fields);
}
