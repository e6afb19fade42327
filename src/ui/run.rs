//! The progress of a run: a line for each stage outside loops, and one for each iteration of a loop.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::IsTerminal,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{
    LogFormat, OutputFormat, Printer, bars::Bars, display::RunDisplay, gauge::LoopProgress, human,
    lines::Lines, log::Level, note_text, style,
};
use crate::{
    error::{Diagnostic, Reported},
    exec::{Event, Listener},
    plan::{RerunReason, stage_name},
    progress::{NoProgress, Observer, Progress, SharedProgress, now_ms},
};

/// How much to show of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Verbosity {
    /// Warnings, failures and the verdict.
    Quiet,
    #[default]
    Normal,
    /// Every stage of every iteration, with all metrics and notes.
    Verbose,
}

/// How long lines about cached stages are collected: each write is a system call that wakes a reader.
const PATIENCE: Duration = Duration::from_millis(50);

/// Shows a run's events.
pub struct RunView {
    printer: Printer,
    verbosity: Verbosity,
    display: Box<dyn RunDisplay>,
    state: Mutex<State>,
    /// Stages whose progress another process reports.
    reported: Mutex<BTreeMap<String, Arc<SharedProgress>>>,
}

struct State {
    iterations: Iterations,
    /// Lines about cached stages that are not yet shown.
    pending: Vec<String>,
    last_shown: Instant,
}

impl RunView {
    /// Uses bars if standard error is a terminal, else lines. `stages`: the ids of all stages of the run.
    pub fn new<'s>(printer: Printer, verbosity: Verbosity, stages: impl Iterator<Item = &'s str>) -> Self {
        let is_plain = printer.format == OutputFormat::Human && printer.log == LogFormat::Text;
        let display: Box<dyn RunDisplay> =
            if std::io::stderr().is_terminal() && is_plain && verbosity != Verbosity::Quiet {
                Box::new(Bars::default())
            } else {
                Box::new(Lines(printer))
            };
        let iterations = Iterations::new(stages, verbosity == Verbosity::Verbose);
        let state = State { iterations, pending: Vec::new(), last_shown: Instant::now() };
        Self { printer, verbosity, display, state: Mutex::new(state), reported: Mutex::default() }
    }

    /// Shows the collected lines.
    pub fn flush(&self) {
        self.show(&mut self.state.lock());
    }

    /// A line about a stage.
    pub fn line(&self, what: &str, stage: &str, text: &str) {
        self.flush();
        self.display.line(&style::shown(&line(what, stage, text), &std::io::stderr()));
    }

    /// Shows the progress that another process reports, of exactly these stages.
    pub fn running(&self, stages: Vec<Progress>) {
        if self.verbosity == Verbosity::Quiet || self.printer.format == OutputFormat::Json {
            return;
        }
        let mut reported = self.reported.lock();
        reported.retain(|id, _| {
            let is_running = stages.iter().any(|stage| stage.stage == *id);
            if !is_running {
                self.display.end(id);
            }
            is_running
        });
        for stage in stages {
            let shown =
                reported.entry(stage.stage.clone()).or_insert_with(|| self.display.begin(&stage.stage));
            shown.set(stage);
        }
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

/// A message of a log: without the columns of the terminal's lines. An event that has no line there is named.
fn message(text: Option<&str>, event: &serde_json::Value) -> String {
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    match text {
        Some(text) => text.lines().map(words).collect::<Vec<_>>().join("\n"),
        None => ["id", "event"].iter().filter_map(|name| event[*name].as_str()).collect::<Vec<_>>().join(" "),
    }
}

fn level(event: &Event) -> Level {
    match event {
        Event::Failed { .. } => Level::Error,
        Event::Finding { .. }
        | Event::Retrying { .. }
        | Event::Unanswered { .. }
        | Event::Differs { .. }
        | Event::Remote { .. }
        | Event::Untracked { .. }
        | Event::Stopping => Level::Warning,
        _ => Level::Info,
    }
}

impl Listener for RunView {
    fn event(&self, event: &Event) {
        if let Event::Finished { id, .. } | Event::Failed { id, .. } | Event::Unanswered { id, .. } = event {
            self.display.end(id);
        }
        let mut state = self.state.lock();
        let json = || serde_json::to_value(event).unwrap_or_default();
        let text = state.iterations.text(event, self.display.shows_running());
        state.iterations.changed().into_iter().for_each(|of| self.display.iterations(of));
        let is_shown = self.verbosity != Verbosity::Quiet || level(event) != Level::Info;
        if self.printer.log == LogFormat::Json {
            if is_shown {
                let event_json = json();
                self.printer.log(level(event), &message(text.as_deref(), &event_json), event_json);
            }
            if self.printer.format == OutputFormat::Human {
                return;
            }
        }
        state.pending.extend(match self.printer.format {
            OutputFormat::Json => Some(json().to_string()),
            OutputFormat::Human => text.filter(|_| is_shown),
        });
        if !matches!(event, Event::Cached { .. }) || state.last_shown.elapsed() > PATIENCE {
            self.show(&mut state);
        }
    }

    fn observer(&self, id: &str) -> Arc<dyn Observer> {
        let is_shown = self.printer.format == OutputFormat::Human || self.printer.log == LogFormat::Json;
        match is_shown && self.verbosity != Verbosity::Quiet {
            true => self.display.begin(id),
            false => Arc::new(NoProgress),
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
    is_verbose: bool,
    by_name: BTreeMap<String, Iteration>,
    loops: BTreeMap<String, LoopProgress>,
    /// Loops with a stage that ran.
    begun: BTreeSet<String>,
    /// Those of them that changed since they were last shown.
    changed: BTreeSet<String>,
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
    fn new<'s>(stages: impl Iterator<Item = &'s str>, is_verbose: bool) -> Self {
        let mut iterations = Self { is_verbose, ..Self::default() };
        for (name, _) in stages.filter_map(|id| id.split_once('/')) {
            iterations.by_name.entry(name.to_owned()).or_default().open += 1;
        }
        let now_ms = now_ms();
        for name in iterations.by_name.keys() {
            let name = loop_of(name);
            let found = iterations.loops.entry(name.to_owned()).or_insert_with(|| LoopProgress {
                name: name.to_owned(),
                began_ms: now_ms,
                last_ms: now_ms,
                ..LoopProgress::default()
            });
            found.iterations += 1;
        }
        iterations
    }

    /// The loops that changed since the last call.
    fn changed(&mut self) -> Vec<&LoopProgress> {
        let changed = std::mem::take(&mut self.changed);
        changed.iter().filter_map(|name| self.loops.get(name)).collect()
    }

    fn text(&mut self, event: &Event, shows_running: bool) -> Option<String> {
        Some(match event {
            Event::Cached { id, result, .. } => {
                let mut lines = self.notes(id, &result.notes);
                lines.extend(self.ended(id, None, &result.metrics));
                return (!lines.is_empty()).then(|| lines.join("\n"));
            }
            Event::Finished { id, result, .. } => {
                self.ended(id, Some(result.cost.seconds), &result.metrics)?
            }
            Event::Note { id, message } if self.shown.insert(shown_note(message)) => {
                line("note", id, message)
            }
            Event::Note { .. } => return None,
            Event::Printed { id, line } => format!("{id}: {line}"),
            Event::Started { id, reasons, .. } => {
                let why = because(reasons);
                let is_shown = match id.split_once('/') {
                    Some((iteration, stage)) => {
                        self.begin(iteration);
                        // A change affects every iteration; only the first reports it.
                        let mut is_first = || self.shown.insert(format!("{}/{stage}", loop_of(iteration)));
                        self.is_verbose || !why.is_empty() && is_first()
                    }
                    None => self.is_verbose || !why.is_empty() || !shows_running,
                };
                return is_shown.then(|| line("run", id, &why));
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
                let error = with_hint(error);
                line("note", id, &format!("the server did not answer, so its last answer is used: {error}"))
            }
            Event::Skipped { id } => {
                let (iteration, _) = id.split_once('/').unwrap_or((id.as_str(), ""));
                let name = loop_of(iteration);
                if let Some(of) = self.loops.get_mut(name) {
                    of.done = of.iterations;
                    self.changed.extend(self.begun.get(name).cloned());
                }
                if !self.shown.insert(name.to_owned()) {
                    return None;
                }
                line("skipped", iteration, "and later: the loop has ended")
            }
            Event::Differs { id, outputs, .. } => {
                let text = format!(
                    "its `{}` differs from an earlier run's under the same key; the earlier one is kept",
                    outputs.join("`, `")
                );
                line("differs", id, &text)
            }
            Event::Remote { id, problem } => line("note", id, problem),
            Event::Untracked { tracker, error } => line("note", tracker, &with_hint(error)),
            Event::Finding { error } => note_text(error),
            // The error itself is shown at the end.
            Event::Failed { id, .. } => line("failed", id, ""),
            Event::Stopping => {
                "stopping after the current step of each stage; press Ctrl-C again to exit now".into()
            }
            Event::Opened { .. }
            | Event::ServerFiles { .. }
            | Event::Loaded { .. }
            | Event::Repeated { .. }
            // Said at the end.
            | Event::LoopResult { .. }
            | Event::Closed { .. } => {
                return None;
            }
        })
    }

    /// Notes from the original run of a cached stage. Leaves out notes already shown, and limits their
    /// number.
    fn notes(&mut self, id: &str, notes: &[String]) -> Vec<String> {
        let new: Vec<&String> = notes.iter().filter(|text| self.shown.insert(shown_note(text))).collect();
        let count = self.notes.entry(stage_name(id)).or_default();
        let most = if self.is_verbose { usize::MAX } else { NOTES };
        let shown = new.len().min(most.saturating_sub(*count));
        *count += shown;
        new[..shown].iter().map(|text| line("note", id, text)).collect()
    }

    /// A loop is shown from its first stage that runs.
    fn begin(&mut self, iteration: &str) {
        let name = loop_of(iteration);
        if let Some(of) = self.loops.get_mut(name).filter(|_| self.begun.insert(name.to_owned())) {
            (of.began_ms, of.last_ms) = (now_ms(), now_ms());
            self.changed.insert(name.to_owned());
        }
    }

    /// The line for a finished stage, or for its iteration if it was the last stage of it.
    fn ended(&mut self, id: &str, seconds: Option<f64>, metrics: &BTreeMap<String, f64>) -> Option<String> {
        let all = self.is_verbose;
        let Some((name, _)) = id.split_once('/') else {
            return Some(ended_line(id, seconds, metrics, all));
        };
        let iteration = self.by_name.entry(name.to_owned()).or_default();
        iteration.open = iteration.open.saturating_sub(1);
        iteration.ran |= seconds.is_some();
        iteration.seconds += seconds.unwrap_or(0.0);
        iteration.metrics.extend(metrics.iter().map(|(name, value)| (name.clone(), *value)));
        let own = all.then(|| ended_line(id, seconds, metrics, all));
        if iteration.open > 0 {
            return own;
        }
        let seconds = iteration.ran.then_some(iteration.seconds);
        let line = ended_line(name, seconds, &iteration.metrics, false);
        if let Some(of) = self.loops.get_mut(loop_of(name)) {
            of.done += 1;
            of.success.extend(iteration.metrics.get("success"));
            of.success_new = iteration.metrics.get("success_new").copied();
            if let Some(seconds) = seconds {
                of.seconds.push(seconds);
                of.last_ms = now_ms();
            }
            self.changed.extend(self.begun.get(&of.name).cloned());
        }
        Some(own.map_or_else(|| line.clone(), |own| format!("{own}\n{line}")))
    }
}

/// An error with its hint, on one line.
fn with_hint(error: &Reported) -> String {
    let hint = error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
    format!("{error}{hint}")
}

/// `train[0003]` → `train`.
fn loop_of(iteration: &str) -> &str {
    iteration.split('[').next().unwrap_or_default()
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

/// `all`: every metric instead of the most important ones.
fn ended_line(id: &str, seconds: Option<f64>, metrics: &BTreeMap<String, f64>, all: bool) -> String {
    let (what, took) = match seconds {
        Some(seconds) => ("done", human::seconds(seconds)),
        None => ("cached", String::new()),
    };
    let metrics = if all { human::all_metrics(metrics) } else { human::metrics(metrics) };
    line(what, id, &format!("{took:<10} {metrics}"))
}

/// Empty if there are no reasons.
fn because(reasons: &[RerunReason]) -> String {
    let reasons = reasons.iter().filter(|reason| **reason != RerunReason::First);
    reasons.map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
