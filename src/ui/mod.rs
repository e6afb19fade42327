//! All output of mcprl, for people and for programs.
//!
//! Data goes to standard output, everything else to standard error. With `--json` both are JSON: one document
//! (or one object per line for a run's events) on standard output, errors as one object on standard error.
//! Colour never carries information of its own, and JSON has none.

mod bars;
mod closing;
mod diff;
mod display;
mod episode;
mod gauge;
mod history;
mod human;
mod lines;
mod log;
mod plan;
mod run;
mod style;
mod table;
mod verdict;

use std::io::Write;

pub use closing::{Closing, closing_text, idle_text, queued_text};
pub use diff::{Side, diff_text};
pub use episode::{Heading, episode_text};
pub use history::{brief_text, run_text, runs_text, stage_text, stages_text};
pub use human::{bytes, plural, seconds};
pub use plan::plan_text;
pub use run::{RunView, Verbosity};
pub use table::{aligned, section};
pub use verdict::verdict_text;

use log::Level;
use serde_json::Value;
use style::{ERROR, FAINT, HINT, NOTE, harmless, paint, shown};

use crate::{
    error::{Diagnostic, Failure, Reported},
    plan::Problem,
    secret,
};

/// A problem with a hint.
fn note_text(note: &Reported) -> String {
    let hint = hint_line(note.hint());
    format!("{} {note}{hint}", paint(NOTE, "note:"))
}

fn hint_line(hint: Option<String>) -> String {
    hint.map(|hint| format!("\n{}", hint_text(&hint))).unwrap_or_default()
}

fn hint_text(hint: &str) -> String {
    format!("{} {hint}", paint(HINT, "hint:"))
}

/// A text that matters less than others.
pub fn faint(text: &str) -> String {
    paint(FAINT, text)
}

/// The output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputFormat {
    Human,
    Json,
}

/// The format of messages on standard error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Writes to the two streams. A closed pipe is not an error: the reader has stopped reading.
#[derive(Debug, Clone, Copy)]
pub struct Printer {
    pub format: OutputFormat,
    pub log: LogFormat,
}

impl Printer {
    /// Writes data to standard output.
    pub fn data(self, text: &str) {
        let mut out = std::io::stdout().lock();
        let text = format!("{}\n", text.trim_end());
        let text = match self.format {
            OutputFormat::Json => text.into(),
            OutputFormat::Human => harmless(&text),
        };
        _ = out.write_all(shown(&text, &out).as_bytes());
    }

    /// Writes a part of a line to standard output, at once.
    pub fn part(self, text: &str) {
        let mut out = std::io::stdout().lock();
        _ = out.write_all(shown(text, &out).as_bytes()).and_then(|()| out.flush());
    }

    /// Writes a JSON document to standard output.
    pub fn json(self, value: &impl serde::Serialize) {
        if let Ok(text) = serde_json::to_string_pretty(value) {
            self.data(&text);
        }
    }

    /// Writes what a command found to standard output: as a JSON document, or as text.
    pub fn show(self, value: &impl serde::Serialize, text: impl FnOnce() -> String) {
        match self.format {
            OutputFormat::Json => self.json(value),
            OutputFormat::Human => self.data(&text()),
        }
    }

    /// Writes a message for people to standard error; nothing with `--json`.
    pub fn say(self, text: &str) {
        self.log(Level::Info, text, Value::Null);
    }

    /// The same, with fields for programs if messages are JSON.
    fn log(self, level: Level, text: &str, fields: Value) {
        let text = match (self.log, self.format) {
            (LogFormat::Json, _) => log::line(level, text, fields),
            (LogFormat::Text, OutputFormat::Human) => text.to_owned(),
            (LogFormat::Text, OutputFormat::Json) => return,
        };
        // Standard error is not buffered, so one write is one system call.
        let mut err = std::io::stderr().lock();
        _ = err.write_all(style::message(&format!("{text}\n"), &err).as_bytes());
    }

    pub fn note(self, note: &Problem) {
        self.log(Level::Warning, &note_text(&note.into()), Value::Null);
    }

    pub fn error(self, failure: &Failure) {
        if self.log == LogFormat::Json {
            let fields = serde_json::to_value(failure).unwrap_or_default();
            self.log(Level::Error, &failure.to_string(), serde_json::json!({ "error": fields }));
            return;
        }
        if self.format == OutputFormat::Json {
            let mut error = serde_json::json!({ "error": failure });
            let problems = failure.cause().problems();
            if !problems.is_empty() {
                error["error"]["problems"] = problems.into();
            }
            secret::conceal(&mut error);
            _ = writeln!(std::io::stderr(), "{error}");
            return;
        }
        let hint = hint_line(failure.hint());
        self.say(&format!("{} {failure}{hint}", paint(ERROR, "error:")));
    }
}
