//! Progress where there is no terminal: one line for each thing that happened.

use std::sync::Arc;

use super::{Printer, run::Face};
use crate::progress::Observer;

pub struct Lines(pub Printer);

impl Face for Lines {
    fn line(&self, text: &str) {
        self.0.say(text);
    }

    fn begin(&self, id: &str) -> Arc<dyn Observer> {
        Arc::new(Notes { printer: self.0, id: id.to_owned() })
    }

    fn end(&self, _id: &str) {}
}

struct Notes {
    printer: Printer,
    id: String,
}

impl Observer for Notes {
    fn total(&self, _: u64) {}
    fn advance(&self, _: u64) {}
    fn status(&self, _: &str) {}

    fn note(&self, text: &str) {
        self.printer.say(&format!("{}: {text}", self.id));
    }
}
