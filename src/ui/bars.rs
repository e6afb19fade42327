//! Progress on a terminal: one line per running stage and loop, with lines about finished stages above.

use std::{collections::BTreeMap, fmt::Write, sync::Arc, time::Duration};

use indicatif::{MultiProgress, ProgressBar, ProgressState, ProgressStyle};
use parking_lot::Mutex;

use super::{
    display::RunDisplay,
    gauge::{self, LoopProgress},
    style::harmless,
};
use crate::progress::{SharedProgress, now_ms};

/// Assumed width of a terminal that does not report one.
const COLUMNS: usize = 80;

#[derive(Default)]
pub struct Bars {
    all: MultiProgress,
    by_stage: Mutex<BTreeMap<String, ProgressBar>>,
    /// Below the stages.
    by_loop: Mutex<BTreeMap<String, LoopBar>>,
}

/// The bar of a loop and what it shows.
type LoopBar = (ProgressBar, Arc<Mutex<LoopProgress>>);

impl Bars {
    fn add(
        &self,
        line: impl Fn(usize) -> String + Clone + Send + Sync + 'static,
        is_last: bool,
    ) -> ProgressBar {
        let bar = ProgressBar::no_length();
        let bar = if is_last { self.all.add(bar) } else { self.all.insert(0, bar) };
        bar.set_style(style(line));
        bar.enable_steady_tick(Duration::from_millis(120));
        bar
    }

    fn remove(&self, bar: &ProgressBar) {
        bar.finish_and_clear();
        self.all.remove(bar);
    }
}

impl RunDisplay for Bars {
    fn line(&self, text: &str) {
        // Fails only if the terminal is gone.
        _ = self.all.println(text);
    }

    fn begin(&self, id: &str) -> Arc<SharedProgress> {
        self.end(id);
        let progress = SharedProgress::new(id);
        let shown = Arc::clone(&progress);
        let bar = self.add(move |width| gauge::line(&shown.get(), width, now_ms()), false);
        self.by_stage.lock().insert(id.to_owned(), bar);
        progress
    }

    fn end(&self, id: &str) {
        if let Some(bar) = self.by_stage.lock().remove(id) {
            self.remove(&bar);
        }
    }

    fn iterations(&self, of: &LoopProgress) {
        let mut loops = self.by_loop.lock();
        if of.done >= of.iterations {
            if let Some((bar, _)) = loops.remove(&of.name) {
                self.remove(&bar);
            }
        } else if let Some((_, shown)) = loops.get(&of.name) {
            *shown.lock() = of.clone();
        } else {
            let shown = Arc::new(Mutex::new(of.clone()));
            let of_bar = Arc::clone(&shown);
            let line = move |width| of_bar.lock().line(width, now_ms());
            loops.insert(of.name.clone(), (self.add(line, true), shown));
        }
    }

    fn shows_running(&self) -> bool {
        true
    }
}

/// Rendered on each tick, so that it fits a terminal whose width changes.
fn style(line: impl Fn(usize) -> String + Clone + Send + Sync + 'static) -> ProgressStyle {
    let line =
        move |_: &ProgressState, out: &mut dyn Write| _ = out.write_str(&harmless(&line(terminal_columns())));
    ProgressStyle::with_template("{spinner} {line}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner())
        .with_key("line", line)
}

fn terminal_columns() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stderr());
    size.map(|size| usize::from(size.ws_col)).ok().filter(|columns| *columns > 0).unwrap_or(COLUMNS)
}
