//! The progress of a run: a line for each stage outside loops, and one for each iteration of a loop.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::IsTerminal,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use serde_json::json;

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
    fn shows_work(&self) -> bool;
}

/// How long lines about cached stages are collected: each write is a system call that wakes a reader.
const PATIENCE: Duration = Duration::from_millis(50);

/// Shows a run's events.
pub struct RunView {
    printer: Printer,
    face: Box<dyn RunDisplay>,
    state: Mutex<State>,
}

struct State {
    turns: Turns,
    /// Lines about cached stages that are not yet shown.
    held: Vec<String>,
    shown: Instant,
}

impl RunView {
    /// Uses bars if standard error is a terminal, else lines.
    pub fn new(printer: Printer, plan: &Plan) -> Self {
        let face: Box<dyn RunDisplay> =
            if std::io::stderr().is_terminal() && printer.format == OutputFormat::Human {
                Box::new(Bars::new())
            } else {
                Box::new(Lines(printer))
            };
        let state = State { turns: Turns::of(plan), held: Vec::new(), shown: Instant::now() };
        Self { printer, face, state: Mutex::new(state) }
    }

    /// Shows the collected lines.
    pub fn flush(&self) {
        self.show(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn show(&self, state: &mut State) {
        state.shown = Instant::now();
        let text = std::mem::take(&mut state.held).join("\n");
        match self.printer.format {
            _ if text.is_empty() => {}
            OutputFormat::Json => self.printer.data(&text),
            OutputFormat::Human => self.face.line(&style::shown(&text, &std::io::stderr())),
        }
    }
}

impl Listener for RunView {
    fn event(&self, event: &Event<'_>) {
        if let Event::Finished { id, .. } | Event::Failed { id, .. } | Event::Unanswered { id, .. } = event {
            self.face.end(id);
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let text = match self.printer.format {
            OutputFormat::Json => Some(event_json(event).to_string()),
            OutputFormat::Human => state.turns.text(event, self.face.shows_work()),
        };
        state.held.extend(text);
        if !matches!(event, Event::Cached { .. }) || state.shown.elapsed() > PATIENCE {
            self.show(&mut state);
        }
    }

    fn observer(&self, id: &str) -> Arc<dyn Observer> {
        match self.printer.format {
            OutputFormat::Human => self.face.begin(id),
            OutputFormat::Json => Arc::new(NoProgress),
        }
    }
}

/// The totals of an iteration while some of its stages are not finished.
#[derive(Default)]
struct Turn {
    open: usize,
    worked: bool,
    seconds: f64,
    metrics: BTreeMap<String, f64>,
}

/// Iterations by name, `train[0003]`, and messages already shown.
#[derive(Default)]
struct Turns {
    by_name: BTreeMap<String, Turn>,
    said: BTreeSet<String>,
    /// Number of notes shown for each cached stage, by its name in the run file.
    noted: BTreeMap<String, usize>,
}

/// Most notes to show for a cached stage over all iterations; `mcprl show` has all.
const NOTES: usize = 3;

/// The key of a note in `said`.
fn noted(text: &str) -> String {
    format!("note {text}")
}

impl Turns {
    fn of(plan: &Plan) -> Self {
        let mut turns = Self::default();
        for index in plan.order() {
            if let Some((name, _)) = plan.node(*index).id.split_once('/') {
                turns.by_name.entry(name.to_owned()).or_default().open += 1;
            }
        }
        turns
    }

    fn text(&mut self, event: &Event<'_>, shows_work: bool) -> Option<String> {
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
            Event::StageNoted { id, text } if self.said.insert(noted(text)) => line("note", id, text),
            Event::StageNoted { .. } => return None,
            Event::Printed { id, line } => format!("{id}: {line}"),
            Event::Started { id, reasons } => {
                let why = because(reasons);
                match id.split_once('/') {
                    // A change affects every iteration; only the first reports it.
                    Some((turn, stage)) => {
                        let once = format!("{}/{stage}", turn.split('[').next().unwrap_or_default());
                        if why.is_empty() || !self.said.insert(once) {
                            return None;
                        }
                    }
                    None if why.is_empty() && shows_work => return None,
                    None => {}
                }
                line("run", id, &why)
            }
            Event::Waiting { id, run, holder } => {
                line("wait", id, &format!("for run {run} (process {} on {})", holder.pid, holder.host))
            }
            Event::Retrying { id, failure, wait } => {
                let again = human::seconds(wait.as_secs_f64());
                // The full error is shown at the end if every retry fails.
                let why = match self.said.insert(format!("{id}: {failure}")) {
                    true => brief(&failure.to_string()),
                    false => "the same error".into(),
                };
                line("retry", id, &format!("in {again}: {why}"))
            }
            Event::Unanswered { id, failure } => {
                let hint = failure.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
                line("note", id, &format!("taken as it was when it last answered: {failure}{hint}"))
            }
            Event::Skipped { id } => {
                let (turn, _) = id.split_once('/').unwrap_or((id, ""));
                let turns = turn.split('[').next().unwrap_or_default();
                if !self.said.insert(turns.to_owned()) {
                    return None;
                }
                line("skipped", turn, "and later: the goal is reached")
            }
            Event::Differs { id, outputs } => {
                let text = format!(
                    "wrote another `{}` than a run before it under the same key; the first one stands",
                    outputs.join("`, `")
                );
                line("differs", id, &text)
            }
            Event::Remote { id, problem } => line("note", id, problem),
            Event::Noted { note } => note_text(note),
            // The error itself is shown at the end.
            Event::Failed { id, .. } => line("failed", id, ""),
            Event::Stopping => {
                "stopping: stages finish what they have in hand; Ctrl-C again to end now".into()
            }
        })
    }

    /// Notes from the original run of a cached stage. Leaves out notes already shown, and limits their
    /// number.
    fn notes(&mut self, id: &str, notes: &[String]) -> Vec<String> {
        let new: Vec<&String> = notes.iter().filter(|text| self.said.insert(noted(text))).collect();
        let count = self.noted.entry(stage_name(id)).or_default();
        let shown = new.len().min(NOTES.saturating_sub(*count));
        *count += shown;
        new[..shown].iter().map(|text| line("note", id, text)).collect()
    }

    /// The line for a finished stage, or for its iteration if it was the last stage of it.
    fn ended(&mut self, id: &str, seconds: Option<f64>, metrics: &BTreeMap<String, f64>) -> Option<String> {
        let Some((name, _)) = id.split_once('/') else {
            return Some(ended_line(id, seconds, metrics));
        };
        let turn = self.by_name.entry(name.to_owned()).or_default();
        turn.open = turn.open.saturating_sub(1);
        turn.worked |= seconds.is_some();
        turn.seconds += seconds.unwrap_or(0.0);
        turn.metrics.extend(metrics.iter().map(|(name, value)| (name.clone(), *value)));
        if turn.open > 0 {
            return None;
        }
        Some(ended_line(name, turn.worked.then_some(turn.seconds), &turn.metrics))
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
    let telling = reasons.iter().filter(|reason| **reason != RerunReason::First);
    telling.map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn event_json(event: &Event<'_>) -> serde_json::Value {
    match event {
        Event::Cached { id, metrics, notes } => {
            json!({ "event": "cached", "id": id, "metrics": metrics, "notes": notes })
        }
        Event::Started { id, reasons } => json!({ "event": "started", "id": id, "reasons": reasons }),
        Event::Waiting { id, run, holder } => {
            json!({ "event": "waiting", "id": id, "run": run, "holder": holder })
        }
        Event::Finished { id, cost, metrics, notes } => json!({
            "event": "finished", "id": id, "metrics": metrics, "notes": notes,
            "seconds": cost.seconds, "spent": cost.spent, "dollars": cost.dollars
        }),
        Event::Retrying { id, failure, wait } => json!({
            "event": "retrying", "id": id, "wait_s": wait.as_secs_f64(),
            "error": { "code": failure.code(), "message": failure.to_string(), "hint": failure.hint() }
        }),
        Event::Unanswered { id, failure } => json!({
            "event": "unanswered", "id": id,
            "error": { "code": failure.code(), "message": failure.to_string(), "hint": failure.hint() }
        }),
        Event::Skipped { id } => json!({ "event": "skipped", "id": id }),
        Event::Failed { id, failure } => json!({
            "event": "failed", "id": id,
            "error": { "code": failure.code(), "message": failure.to_string(), "hint": failure.hint() }
        }),
        Event::Differs { id, outputs } => json!({ "event": "differs", "id": id, "outputs": outputs }),
        Event::Remote { id, problem } => json!({ "event": "remote", "id": id, "problem": problem }),
        Event::Noted { note } => json!({ "event": "note", "note": note }),
        Event::StageNoted { id, text } => {
            json!({ "event": "note", "note": { "stage": id, "message": text } })
        }
        Event::Printed { id, line } => json!({ "event": "printed", "id": id, "line": line }),
        Event::Stopping => json!({ "event": "stopping" }),
    }
}
