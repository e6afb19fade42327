//! The progress of a run: a line for each stage outside loops, and one for each iteration of a loop.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::IsTerminal,
    sync::Arc,
};

use parking_lot::Mutex;

use super::{
    LogFormat, OutputFormat, Printer, bars::Bars, display::RunDisplay, gauge::LoopProgress, human,
    lines::Lines, log::Level, note_text, style,
};
use crate::{
    error::{Diagnostic, Reported},
    exec::{Event, Listener},
    plan::{InLoop, RerunReason, stage_name},
    progress::{NoProgress, Observer, Progress, SharedProgress, now_ms},
    report::plot::share_sparkline,
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

/// Widest line about an iteration, in columns.
const COLUMNS: usize = 80;
/// A note of more characters is shown once, be it of another stage.
const LONG_NOTE: usize = 80;

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
    /// Lines about cached stages that are not yet shown: until something runs, nobody needs them.
    pending: Vec<String>,
    /// Whether anything but cached stages and questions to the server has happened.
    has_begun: bool,
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
        let has_begun = verbosity == Verbosity::Verbose || !is_plain;
        let state = State { iterations, pending: Vec::new(), has_begun };
        Self { printer, verbosity, display, state: Mutex::new(state), reported: Mutex::default() }
    }

    /// Shows the collected lines.
    pub fn flush(&self) {
        let mut state = self.state.lock();
        if state.has_begun {
            self.show(&mut state);
        }
    }

    /// Shows the lines that are left, and the number of notes that were left out. False if nothing had to be done; then there
    /// are none.
    pub fn end(&self) -> bool {
        let mut state = self.state.lock();
        if self.printer.format == OutputFormat::Human && state.has_begun {
            let rest = state.iterations.rest();
            state.pending.extend(rest);
        }
        if state.has_begun {
            self.show(&mut state);
        }
        state.has_begun
    }

    /// A line about a stage.
    pub fn line(&self, what: &str, stage: &str, text: &str) {
        self.state.lock().has_begun = true;
        self.flush();
        self.display.line(&style::message(&line(what, stage, text), &std::io::stderr()));
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
        let text = std::mem::take(&mut state.pending).join("\n");
        match self.printer.format {
            _ if text.is_empty() => {}
            OutputFormat::Json => self.printer.data(&text),
            OutputFormat::Human => self.display.line(&style::message(&text, &std::io::stderr())),
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
        // A warning is shown even if there is nothing to do.
        if let (Event::Finding { .. }, OutputFormat::Human, Some(text)) = (event, self.printer.format, &text)
        {
            self.display.line(&style::message(text, &std::io::stderr()));
            return;
        }
        let is_idle = state.iterations.is_idle(event);
        state.has_begun |= !is_idle && text.is_some();
        if self.printer.format == OutputFormat::Human && !is_idle {
            let cached = state.iterations.cached_loops();
            state.pending.extend(cached.into_iter().filter(|_| self.verbosity != Verbosity::Quiet));
        }
        state.pending.extend(match self.printer.format {
            OutputFormat::Json => Some(json().to_string()),
            OutputFormat::Human => text.filter(|_| is_shown),
        });
        if state.has_begun && !matches!(event, Event::Cached { .. }) {
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
    /// How often each note was made, by its stage in the run file and its text without numbers.
    notes: BTreeMap<(String, String), usize>,
    /// Texts of notes, whatever stage or policy they are of.
    said: BTreeSet<String>,
    /// Iterations of each loop whose stages are all cached, and that have no line yet.
    cached: BTreeMap<String, usize>,
    /// Stages that run only to ask the server again.
    queries: BTreeSet<String>,
}

/// Whether a note is for programs or comparisons rather than to read.
fn has_digest(text: &str) -> bool {
    let words = text.split(|letter: char| !letter.is_ascii_hexdigit());
    words.map(str::len).max().is_some_and(|longest| longest >= 64)
}

/// A note without its numbers: the same advice with other figures.
fn without_numbers(text: &str) -> String {
    let mut found = String::new();
    for character in text.chars() {
        match character.is_ascii_digit() {
            true if found.ends_with('#') => {}
            true => found.push('#'),
            false => found.push(character),
        }
    }
    found
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

    /// Whether an event is only of what is in the cache, or of a question to the server.
    fn is_idle(&self, event: &Event) -> bool {
        match event {
            Event::Cached { .. } | Event::Skipped { .. } => true,
            Event::Started { id, .. } | Event::Finished { id, .. } => self.queries.contains(id),
            _ => false,
        }
    }

    fn text(&mut self, event: &Event, shows_running: bool) -> Option<String> {
        Some(match event {
            Event::Cached { id, result, .. } => {
                let mut lines: Vec<String> =
                    result.notes.iter().filter_map(|text| self.note(id, text)).collect();
                lines.extend(self.ended(id, None, &result.metrics));
                return (!lines.is_empty()).then(|| lines.join("\n"));
            }
            Event::Finished { id, result, .. } => {
                self.ended(id, Some(result.cost.seconds), &result.metrics)?
            }
            Event::Note { id, message } => return self.note(id, message),
            Event::Printed { id, line } => format!("{id}: {line}"),
            Event::Started { id, reasons, .. } if reasons.as_slice() == [RerunReason::ServerQueried] => {
                self.queries.insert(id.clone());
                return self.is_verbose.then(|| line("run", id, &because(reasons)));
            }
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
                match InLoop::parse(id).is_some_and(|stage| stage.iteration == 1) {
                    true => line("skipped", name, "the loop does not begin"),
                    false => line("skipped", iteration, "and later: the loop has ended"),
                }
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

    /// The line of a note. None if it was made before, be it with other numbers.
    fn note(&mut self, id: &str, text: &str) -> Option<String> {
        // What is said of several policies or in several stages is said once.
        let said = text
            .strip_prefix("policy \"")
            .and_then(|rest| rest.split_once("\": "))
            .map_or(text, |(_, said)| said);
        if !self.is_verbose && !self.said.insert(without_numbers(said)) && said.len() > LONG_NOTE {
            return None;
        }
        let count = self.notes.entry((stage_name(id), without_numbers(text))).or_default();
        *count += 1;
        let is_new = self.shown.insert(format!("note {text}"));
        if has_digest(text) && !self.is_verbose {
            return None;
        }
        (*count == 1 || self.is_verbose && is_new).then(|| line("note", id, text))
    }

    /// Loops with cached iterations that have no line yet.
    fn cached_loops(&mut self) -> Vec<String> {
        let cached = std::mem::take(&mut self.cached);
        let line_of = |(name, count): (String, usize)| {
            let of = self.loops.get(&name)?;
            let shown = format!("{name} {}/{}", of.done, of.iterations);
            let text = if count > 1 { of.status() } else { String::new() };
            Some(line("cached", &shown, &text))
        };
        cached.into_iter().filter_map(line_of).collect()
    }

    /// Lines at the end: of cached loops, and of the notes that were made more than once.
    fn rest(&mut self) -> Vec<String> {
        let mut lines = self.cached_loops();
        let repeated = self.notes.iter().filter(|(_, count)| **count > 1);
        let repeated: Vec<String> =
            repeated.map(|((stage, _), count)| format!("{stage} {count} times")).collect();
        if !repeated.is_empty() && !self.is_verbose {
            let text = format!("{}; `-v` prints each", repeated.join(", "));
            lines.push(line("notes", "made again", &text));
        }
        lines
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
        let (seconds, metrics) =
            (iteration.ran.then_some(iteration.seconds), std::mem::take(&mut iteration.metrics));
        let Some(of) = self.loops.get_mut(loop_of(name)) else { return own };
        of.done += 1;
        of.success.extend(metrics.get("success"));
        of.success_new = metrics.get("success_new").copied();
        if let Some(seconds) = seconds {
            of.seconds.push(seconds);
            of.last_ms = now_ms();
        }
        self.changed.extend(self.begun.get(&of.name).cloned());
        let line = match seconds {
            Some(seconds) => Some(iteration_line(of, seconds, &metrics)),
            None if self.is_verbose => Some(ended_line(name, None, &metrics, false)),
            None => {
                *self.cached.entry(of.name.clone()).or_default() += 1;
                let is_over = of.done == of.iterations;
                is_over.then(|| self.cached_loops().join("\n"))
            }
        };
        own.into_iter().chain(line).reduce(|own, line| format!("{own}\n{line}"))
    }
}

/// `done     train 4/32  success 53 % (new 41 %)  ▂▃▅  teaches 94 %  0.7 s`, or what of it fits.
fn iteration_line(of: &LoopProgress, seconds: f64, metrics: &BTreeMap<String, f64>) -> String {
    let name = format!("{} {}/{}", of.name, of.done, of.iterations);
    let took = human::seconds(seconds);
    let share = |name: &str| metrics.get(name).map(|share| human::percent(*share));
    let Some(success) = share("success") else {
        let text = human::metrics(metrics);
        let room = COLUMNS.saturating_sub(13 + name.chars().count() + took.chars().count());
        let fitting = text.match_indices(" · ").map(|(at, _)| at).chain([text.len()]);
        let end = fitting.filter(|at| text[..*at].chars().count() <= room).last().unwrap_or(0);
        return iteration(&name, &[&text[..end], &took]);
    };
    let new = share("success_new").filter(|new| *new != success).map(|new| format!(" (new {new})"));
    let sparks = share_sparkline(&of.success, SPARKS);
    let teaches = share("signal").map(|share| format!("teaches {share}")).unwrap_or_default();
    let (plain, all) =
        (format!("success {success}"), format!("success {success}{}", new.unwrap_or_default()));
    let lines = [
        vec![&*all, &sparks, &teaches, &took],
        vec![&*plain, &sparks, &teaches, &took],
        vec![&*plain, &teaches, &took],
        vec![&*plain, &took],
    ];
    let width = |parts: &[&str]| parts.iter().map(|part| part.chars().count() + 2).sum::<usize>();
    let fits = |parts: &&Vec<&str>| 9 + name.chars().count() + width(parts) <= COLUMNS;
    let [.., shortest] = &lines;
    iteration(&name, lines.iter().find(fits).unwrap_or(shortest))
}

/// Most characters of an iteration's sparkline.
const SPARKS: usize = 10;

fn iteration(name: &str, parts: &[&str]) -> String {
    let what = style::paint(style::state("done"), &format!("{:<8}", "done"));
    let parts = std::iter::once(name).chain(parts.iter().copied()).filter(|part| !part.is_empty());
    format!("{what} {}", parts.collect::<Vec<_>>().join("  "))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{hash::Digest, store::CachedResult};

    fn finished(id: &str, metrics: &[(&str, f64)]) -> Event {
        let metrics = metrics.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let result = CachedResult { metrics, ..CachedResult::default() };
        Event::Finished { id: id.into(), key: Digest::of(b""), result }
    }

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn an_iteration_fits_a_terminal_and_leaves_out_what_does_not_fit() {
        let ids: Vec<String> = (1..=32).map(|number| format!("train[{number:04}]/update")).collect();
        let mut iterations = Iterations::new(ids.iter().map(String::as_str), false);
        let mut lines = Vec::new();
        for (at, id) in ids.iter().enumerate() {
            let success = at as f64 / 40.0;
            let metrics =
                [("success", success), ("success_new", success / 2.0), ("signal", 0.94), ("loss", -0.014)];
            lines.push(plain(&iterations.text(&finished(id, &metrics), false).unwrap()));
        }
        assert!(lines.iter().all(|line| line.chars().count() <= COLUMNS), "{lines:#?}");
        insta::assert_snapshot!([&lines[3], &lines[31]].map(String::as_str).join("\n"), @"
        done     train 4/32  success 8 % (new 4 %)  ▁▁▁▂  teaches 94 %  0 ms
        done     train 32/32  success 78 % (new 39 %)  ▁▂▂▃▃▄▅▅▆▆  teaches 94 %  0 ms
        ");
    }

    #[test]
    fn a_note_is_shown_once_and_counted_at_the_end() {
        let mut iterations = Iterations::new(["train[0001]/update"].into_iter(), false);
        let note = |number: u32| Event::Note {
            id: format!("train[{number:04}]/update"),
            message: format!("{number} of 32 groups are all wrong"),
        };
        let shown: Vec<bool> =
            (1..=20).map(|number| iterations.text(&note(number), false).is_some()).collect();
        assert_eq!(shown.iter().filter(|shown| **shown).count(), 1);
        assert_eq!(
            plain(&iterations.rest().join("")),
            "notes    made again           train/update 20 times; `-v` prints each"
        );
    }

    #[test]
    fn a_long_note_is_shown_once_for_all_policies_and_stages() {
        let mut iterations = Iterations::new(std::iter::empty(), false);
        let long = "12 episodes end because no turn is left; `max_turns` allows more. ".repeat(3);
        let mut shown = |id: &str, text: &str| {
            iterations.text(&Event::Note { id: id.into(), message: text.into() }, false).is_some()
        };
        assert!(shown("exam", &format!("policy \"base\": {long}")));
        assert!(!shown("exam", &format!("policy \"start\": {}", long.replace("12", "7"))));
        assert!(!shown("rollout", &long));
        assert!(shown("exam", "policy \"base\": short"));
        assert!(shown("exam", "policy \"start\": short"), "a short one names each");
    }
}
