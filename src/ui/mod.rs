//! The one door out: everything a person or a program reads of mcprl passes here.
//!
//! Data goes to standard output, everything else to standard error. With `--json` both are JSON: one document (or one
//! object per line for a run's events) on standard output, errors as one object on standard error. Nothing is said by
//! colour alone.

mod bars;
mod closing;
mod diff;
mod gauge;
mod history;
mod human;
mod lines;
mod plan;
mod run;

use std::io::Write;

pub use closing::{closing_text, waiting_text};
pub use diff::{Side, diff_text};
pub use history::{run_text, runs_text, stage_text};
pub use human::{bytes, plural, seconds};
pub use plan::plan_text;
pub use run::RunView;

use crate::{error::Failure, plan::Problem};

/// What a person should know, with a way out.
fn note_text(note: &Problem) -> String {
    let hint = note.cause.hint().map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
    format!("note: {note}{hint}")
}

/// How mcprl talks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Voice {
    Human,
    Json,
}

/// Writes to the two streams. A closed pipe is not an error: the reader has seen enough.
#[derive(Debug, Clone, Copy)]
pub struct Printer {
    pub voice: Voice,
}

impl Printer {
    /// Data, to standard output.
    pub fn data(self, text: &str) {
        let mut out = std::io::stdout().lock();
        _ = out.write_all(format!("{}\n", text.trim_end()).as_bytes());
    }

    /// A JSON document, to standard output.
    pub fn json(self, value: &impl serde::Serialize) {
        if let Ok(text) = serde_json::to_string_pretty(value) {
            self.data(&text);
        }
    }

    /// For people, to standard error; nothing with `--json`.
    pub fn say(self, text: &str) {
        if self.voice == Voice::Human {
            // In one piece: standard error is not buffered, and a piece is a system call.
            _ = std::io::stderr().lock().write_all(format!("{text}\n").as_bytes());
        }
    }

    pub fn note(self, note: &Problem) {
        self.say(&note_text(note));
    }

    pub fn error(self, failure: &Failure) {
        let mut err = std::io::stderr().lock();
        if self.voice == Voice::Json {
            let mut error = serde_json::json!({
                "error": { "code": failure.code(), "message": failure.to_string(), "hint": failure.hint() }
            });
            let problems = failure.cause().problems();
            if !problems.is_empty() {
                error["error"]["problems"] = problems.into();
            }
            _ = writeln!(err, "{error}");
            return;
        }
        _ = writeln!(err, "error: {failure}");
        if let Some(hint) = failure.hint() {
            _ = writeln!(err, "hint: {hint}");
        }
    }
}
