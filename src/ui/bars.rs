//! Progress on a terminal: one line per running stage, with lines about finished stages above.

use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressState, ProgressStyle};

use super::{
    gauge::{Gauge, GaugeObserver},
    run::RunDisplay,
};
use crate::progress::Observer;

/// Assumed width of a terminal that does not report one.
const COLUMNS: usize = 80;

pub struct Bars {
    all: MultiProgress,
    by_stage: Mutex<BTreeMap<String, ProgressBar>>,
}

impl Bars {
    pub fn new() -> Self {
        Self { all: MultiProgress::new(), by_stage: Mutex::default() }
    }
}

impl RunDisplay for Bars {
    fn line(&self, text: &str) {
        // Fails only if the terminal is gone.
        _ = self.all.println(text);
    }

    fn begin(&self, id: &str) -> Arc<dyn Observer> {
        self.end(id);
        let gauge = Arc::new(Mutex::new(Gauge::new(id, Instant::now())));
        let bar = self.all.add(ProgressBar::no_length());
        bar.set_style(style(gauge.clone()));
        bar.enable_steady_tick(Duration::from_millis(120));
        self.by_stage.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned(), bar);
        Arc::new(GaugeObserver { gauge, changed: |_: &Gauge, _| {} })
    }

    fn end(&self, id: &str) {
        if let Some(bar) = self.by_stage.lock().unwrap_or_else(PoisonError::into_inner).remove(id) {
            bar.finish_and_clear();
            self.all.remove(&bar);
        }
    }

    fn shows_running(&self) -> bool {
        true
    }
}

/// Rendered on each tick, so that it fits a terminal whose width changes.
fn style(gauge: Arc<Mutex<Gauge>>) -> ProgressStyle {
    let line = move |_: &ProgressState, out: &mut dyn Write| {
        let gauge = gauge.lock().unwrap_or_else(PoisonError::into_inner);
        _ = out.write_str(&gauge.line(terminal_columns(), Instant::now()));
    };
    ProgressStyle::with_template("{spinner} {line}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner())
        .with_key("line", line)
}

fn terminal_columns() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stderr());
    size.map(|size| usize::from(size.ws_col)).ok().filter(|columns| *columns > 0).unwrap_or(COLUMNS)
}
