//! Progress on a terminal: one bar for each stage at work, lines above for what is done.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::run::Face;
use crate::progress::Observer;

pub struct Bars {
    all: MultiProgress,
    by_stage: Mutex<BTreeMap<String, ProgressBar>>,
}

impl Bars {
    pub fn new() -> Self {
        Self { all: MultiProgress::new(), by_stage: Mutex::default() }
    }
}

impl Face for Bars {
    fn line(&self, text: &str) {
        // Fails only where the terminal is gone.
        _ = self.all.println(text);
    }

    fn begin(&self, id: &str) -> Arc<dyn Observer> {
        let bar = self.all.add(ProgressBar::no_length());
        bar.set_style(style("{spinner} {prefix}  {elapsed}  {wide_msg}"));
        bar.set_prefix(id.to_owned());
        bar.enable_steady_tick(Duration::from_millis(120));
        self.by_stage.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned(), bar.clone());
        Arc::new(Bar { bar, id: id.to_owned(), all: self.all.clone() })
    }

    fn end(&self, id: &str) {
        if let Some(bar) = self.by_stage.lock().unwrap_or_else(PoisonError::into_inner).remove(id) {
            bar.finish_and_clear();
            self.all.remove(&bar);
        }
    }

    fn shows_work(&self) -> bool {
        true
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_spinner())
        .progress_chars("━╸ ")
}

struct Bar {
    bar: ProgressBar,
    id: String,
    all: MultiProgress,
}

impl Observer for Bar {
    fn total(&self, units: u64) {
        if self.bar.length().is_none() {
            self.bar.set_style(style("{spinner} {prefix}  {bar:24} {pos}/{len}  {elapsed}  {wide_msg}"));
        }
        self.bar.set_length(units);
    }

    fn advance(&self, units: u64) {
        self.bar.inc(units);
    }

    fn status(&self, text: &str) {
        self.bar.set_message(text.to_owned());
    }

    fn note(&self, text: &str) {
        _ = self.all.println(format!("{}: {text}", self.id));
    }
}
