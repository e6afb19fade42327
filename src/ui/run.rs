//! The progress of a run: a line for each stage outside loops, and one for each iteration of a loop.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::IsTerminal,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::{OutputFormat, Printer, bars::Bars, human, lines::Lines, note_text, style};
use crate::{
    exec::{Event, Listener},
    plan::{Plan, RerunReason, stage_name},
    progress::{NoProgress, Observer},
};

/// Shows progress as bars or lines.
pub trait RunDisplay: Send + Sync {
    fn line(&self, text: &str);
    fn begin(&self, id: &str) -> Arc<dyn Observer>;
    fn end(&self, id: &str);
    /// Whether running stages are visible without a line about their start.
    fn shows_running(&self) -> bool;
}

/// How long lines about cached stages are collected: each write is a system call that wakes a reader.
const PATIENCE: Duration = Duration::from_millis(50);

/// Shows a run's events.
pub struct RunView {
    printer: Printer,
    display: Box<dyn RunDisplay>,
    state: Mutex<State>,
}

struct State {
    iterations: Iterations,
    /// Lines about cached stages that are not yet shown.
    pending: Vec<String>,
    last_shown: Instant,
}

impl RunView {
    /// Uses bars if standard error is a terminal, else lines.
    pub fn new(printer: Printer, plan: &Plan) -> Self {
        let display: Box<dyn RunDisplay> =
            if std::io::stderr().is_terminal() && printer.format == OutputFormat::Human {
                Box::new(Bars::new())
            } else {
                Box::new(Lines(printer))
            };
        let state =
            State { iterations: Iterations::new(plan), pending: Vec::new(), last_shown: Instant::now() };
        Self { printer, display, state: Mutex::new(state) }
    }

    /// Shows the collected lines.
    pub fn flush(&self) {
        self.show(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn show(&self, state: &mut State) {
        state.last_shown = Instant::now();
        let text = std::mem::take(&mut state.pending).join("\n");
        match self.printer.format {
            _ if text.is_empty() => {}
            OutputFormat::Json => self.printer.data(&text),
            OutputFormat::Human => self.display.line(&style::shown(&text, &std::io::stderr())),
        }
    }
}

impl Listener for RunView {
    fn event(&self, event: &Event<'_>) {
        if let Event::Finished { id, .. } | Event::Failed { id, .. } | Event::Unanswered { id, .. } = event {
            self.display.end(id);
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let text = match self.printer.format {
            OutputFormat::Json => serde_json::to_string(event).ok(),
            OutputFormat::Human => state.iterations.text(event, self.display.shows_running()),
        };
        state.pending.extend(text);
        if !matches!(event, Event::Cached { .. }) || state.last_shown.elapsed() > PATIENCE {
            self.show(&mut state);
        }
    }

    fn observer(&self, id: &str) -> Arc<dyn Observer> {
        match self.printer.format {
            OutputFormat::Human => self.display.begin(id),
            OutputFormat::Json => Arc::new(NoProgress),
        }
    }
}

/// The totals of an iteration while some of its stages are not finished.
#[derive(Default)]
struct Iteration {
    open: usize,
    ran: bool,
    seconds: f64,
    metrics: BTreeMap<String, f64>,
}

/// Iterations by name, `train[0003]`, and messages already shown.
#[derive(Default)]
struct Iterations {
    by_name: BTreeMap<String, Iteration>,
    shown: BTreeSet<String>,
    /// Number of notes shown for each cached stage, by its name in the run file.
    notes: BTreeMap<String, usize>,
}

/// Most notes to show for a cached stage over all iterations; `mcprl show` has all.
const NOTES: usize = 3;

/// The key of a note in `shown`.
fn shown_note(text: &str) -> String {
    format!("note {text}")
}

impl Iterations {
    fn new(plan: &Plan) -> Self {
        let mut iterations = Self::default();
        for index in plan.order() {
            if let Some((name, _)) = plan.node(*index).id.split_once('/') {
                iterations.by_name.entry(name.to_owned()).or_default().open += 1;
            }
        }
        iterations
    }

    fn text(&mut self, event: &Event<'_>, shows_running: bool) -> Option<String> {
        Some(match event {
            Event::Cached { id, metrics, notes } => {
                let mut lines = self.notes(id, notes);
                lines.extend(self.ended(id, None, metrics));
                if lines.is_empty() {
                    return None;
                }
                lines.join("\n")
            }
            Event::Finished { id, cost, metrics, .. } => self.ended(id, Some(cost.seconds), metrics)?,
            Event::StageNoted { note } if self.shown.insert(shown_note(note.message)) => {
                line("note", note.stage, note.message)
            }
            Event::StageNoted { .. } => return None,
            Event::Printed { id, line } => format!("{id}: {line}"),
            Event::Started { id, reasons } => {
                let why = because(reasons);
                match id.split_once('/') {
                    // A change affects every iteration; only the first reports it.
                    Some((iteration, stage)) => {
                        let once = format!("{}/{stage}", iteration.split('[').next().unwrap_or_default());
                        if why.is_empty() || !self.shown.insert(once) {
                            return None;
                        }
                    }
                    None if why.is_empty() && shows_running => return None,
                    None => {}
                }
                line("run", id, &why)
            }
            Event::Waiting { id, run, holder } => {
                line("wait", id, &format!("for run {run} (process {} on {})", holder.pid, holder.host))
            }
            Event::Retrying { id, error, wait_s } => {
                // The full error is shown at the end if every retry fails.
                let why = match self.shown.insert(format!("{id}: {error}")) {
                    true => brief(&error.to_string()),
                    false => "the same error".into(),
                };
                line("retry", id, &format!("in {}: {why}", human::seconds(*wait_s)))
            }
            Event::Unanswered { id, error } => {
                let hint = error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
                line(
                    "note",
                    id,
                    &format!("the server did not answer, so its last answer is used: {error}{hint}"),
                )
            }
            Event::Skipped { id } => {
                let (iteration, _) = id.split_once('/').unwrap_or((id, ""));
                let name = iteration.split('[').next().unwrap_or_default();
                if !self.shown.insert(name.to_owned()) {
                    return None;
                }
                line("skipped", iteration, "and later: the goal is reached")
            }
            Event::Differs { id, outputs } => {
                let text = format!(
                    "its `{}` differs from an earlier run's under the same key; the earlier one is kept",
                    outputs.join("`, `")
                );
                line("differs", id, &text)
            }
            Event::Remote { id, problem } => line("note", id, problem),
            Event::Noted { note } => note_text(note),
            // The error itself is shown at the end.
            Event::Failed { id, .. } => line("failed", id, ""),
            Event::Stopping => {
                "stopping after the current step of each stage; press Ctrl-C again to exit now".into()
            }
        })
    }

    /// Notes from the original run of a cached stage. Leaves out notes already shown, and limits their
    /// number.
    fn notes(&mut self, id: &str, notes: &[String]) -> Vec<String> {
        let new: Vec<&String> = notes.iter().filter(|text| self.shown.insert(shown_note(text))).collect();
        let count = self.notes.entry(stage_name(id)).or_default();
        let shown = new.len().min(NOTES.saturating_sub(*count));
        *count += shown;
        new[..shown].iter().map(|text| line("note", id, text)).collect()
    }

    /// The line for a finished stage, or for its iteration if it was the last stage of it.
    fn ended(&mut self, id: &str, seconds: Option<f64>, metrics: &BTreeMap<String, f64>) -> Option<String> {
        let Some((name, _)) = id.split_once('/') else {
            return Some(ended_line(id, seconds, metrics));
        };
        let iteration = self.by_name.entry(name.to_owned()).or_default();
        iteration.open = iteration.open.saturating_sub(1);
        iteration.ran |= seconds.is_some();
        iteration.seconds += seconds.unwrap_or(0.0);
        iteration.metrics.extend(metrics.iter().map(|(name, value)| (name.clone(), *value)));
        if iteration.open > 0 {
            return None;
        }
        Some(ended_line(name, iteration.ran.then_some(iteration.seconds), &iteration.metrics))
    }
}

/// The start of an error's first line, cut to fit a terminal.
fn brief(error: &str) -> String {
    const SHOWN: usize = 100;
    let first = error.lines().next().unwrap_or_default();
    match first.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}…", first[..at].trim_end()),
        None => first.to_owned(),
    }
}

fn line(what: &str, id: &str, rest: &str) -> String {
    let what = style::paint(style::state(what), &format!("{what:<8}"));
    format!("{what} {id:<20} {rest}").trim_end().to_owned()
}

fn ended_line(id: &str, seconds: Option<f64>, metrics: &BTreeMap<String, f64>) -> String {
    let (what, took) = match seconds {
        Some(seconds) => ("done", human::seconds(seconds)),
        None => ("cached", String::new()),
    };
    line(what, id, &format!("{took:<10} {}", human::metrics(metrics)))
}

/// Empty if there are no reasons.
fn because(reasons: &[RerunReason]) -> String {
    let reasons = reasons.iter().filter(|reason| **reason != RerunReason::First);
    reasons.map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
