//! The progress of one stage, in one line of a given width.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::progress::Observer;

/// The progress of a running stage.
pub struct Gauge {
    id: String,
    began: Instant,
    phase: Phase,
    status: String,
}

/// Applies a stage's progress to a gauge, and calls `changed` after each change.
pub struct GaugeObserver<F> {
    pub gauge: Arc<Mutex<Gauge>>,
    pub changed: F,
}

impl<F: Fn(&Gauge, Instant)> GaugeObserver<F> {
    fn change(&self, change: impl FnOnce(&mut Gauge, Instant)) {
        let now = Instant::now();
        let mut gauge = self.gauge.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut gauge, now);
        (self.changed)(&gauge, now);
    }
}

impl<F: Fn(&Gauge, Instant) + Send + Sync> Observer for GaugeObserver<F> {
    fn phase(&self, name: &str, units: u64) {
        self.change(|gauge, now| gauge.phase(name, units, now));
    }

    fn advance(&self, units: u64) {
        self.change(|gauge, now| gauge.advance(units, now));
    }

    fn skip(&self, units: u64) {
        self.change(|gauge, _| gauge.skip(units));
    }

    fn status(&self, text: &str) {
        self.change(|gauge, _| gauge.status(text));
    }
}

struct Phase {
    name: String,
    began: Instant,
    /// When units were last completed.
    last: Instant,
    done: u64,
    /// The part of `done` that was complete at the start.
    skipped: u64,
    /// 0 if unknown.
    units: u64,
}

/// Space between two columns.
const GAP: usize = 2;
/// Columns for the spinner before the line, and a free one at the end.
const MARGIN: usize = 3;
/// Smallest width to which a name is cut.
const NAME: usize = 6;
/// An estimate from a shorter time is unreliable.
const SETTLED: Duration = Duration::from_secs(1);

impl Gauge {
    pub fn new(id: &str, now: Instant) -> Self {
        Self { id: id.to_owned(), began: now, phase: Phase::new("", 0, now), status: String::new() }
    }

    pub fn phase(&mut self, name: &str, units: u64, now: Instant) {
        if self.phase.name == name {
            self.phase.units = units;
        } else {
            self.phase = Phase::new(name, units, now);
            self.status.clear();
        }
    }

    pub fn advance(&mut self, units: u64, now: Instant) {
        self.phase.done += units;
        self.phase.last = now;
    }

    pub fn skip(&mut self, units: u64) {
        self.phase.done += units;
        self.phase.skipped += units;
    }

    pub fn status(&mut self, text: &str) {
        text.clone_into(&mut self.status);
    }

    /// The longest line that fits a terminal of this width. Each has the name and the status.
    pub fn line(&self, width: usize, now: Instant) -> String {
        let width = width.saturating_sub(MARGIN);
        let status = columns(&self.status);
        let id = cut(&self.id, width.saturating_sub(if status > 0 { GAP + status } else { 0 }).max(NAME));
        let none = String::new();
        let (share, count) = (self.phase.share(), self.phase.count());
        let named = format!("{} {count}", self.phase.name).trim().to_owned();
        let percent = share.map(|share| format!("{:.0}%", (share * 100.0).floor())).unwrap_or_default();
        let left = self.phase.left(now).map(|left| format!("{} left", clock(left))).unwrap_or_default();
        let comma = if left.is_empty() { "" } else { ", " };
        let times = format!("{}{comma}{left}", clock(now - self.began));
        // From the longest to the shortest.
        let lines = [
            (24, &named, &times),
            (10, &named, &times),
            (10, &named, &left),
            (0, &named, &times),
            (0, &named, &left),
            (0, &count, &times),
            (0, &count, &left),
            (0, &percent, &left),
            (0, &percent, &none),
        ];
        let lines = lines.map(|(size, count, time)| {
            let bar = share.filter(|_| size > 0).map(|share| bar(share, size)).unwrap_or_default();
            joined(&[&id, &bar, count, time, &self.status])
        });
        let fitting = lines.into_iter().find(|line| columns(line) <= width);
        cut(&fitting.unwrap_or_else(|| joined(&[&id, &self.status])), width)
    }

    /// The progress as a log message.
    pub fn message(&self, now: Instant) -> String {
        let Phase { name, .. } = &self.phase;
        let count = format!("{name} {}", self.phase.count());
        let left = self.phase.left(now).map(|left| format!("{} left", clock(left)));
        let parts = [count.trim().to_owned(), left.unwrap_or_default(), self.status.clone()];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
    }
}

impl Phase {
    fn new(name: &str, units: u64, now: Instant) -> Self {
        Self { name: name.to_owned(), began: now, last: now, done: 0, skipped: 0, units }
    }

    #[expect(clippy::cast_precision_loss, reason = "shown as a percentage")]
    fn share(&self) -> Option<f64> {
        (self.units > 0).then(|| (self.done as f64 / self.units as f64).min(1.0))
    }

    fn count(&self) -> String {
        match self.units {
            0 => String::new(),
            units => format!("{}/{units}", self.done),
        }
    }

    /// Assumes the average speed so far.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    fn left(&self, now: Instant) -> Option<Duration> {
        let (done, missing) = (self.done - self.skipped, self.units.saturating_sub(self.done));
        let spent = self.last - self.began;
        let known = done > 0 && missing > 0 && now - self.began >= SETTLED;
        known.then(|| spent.mul_f64(missing as f64 / done as f64).saturating_sub(now - self.last))
    }
}

/// The columns that are not empty.
fn joined(columns: &[&String]) -> String {
    let shown = columns.iter().filter(|column| !column.is_empty()).map(|column| column.as_str());
    shown.collect::<Vec<_>>().join("  ")
}

fn columns(text: &str) -> usize {
    text.chars().count()
}

/// Cuts the end of a text that is too wide.
fn cut(text: &str, width: usize) -> String {
    if columns(text) <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "columns of a bar"
)]
fn bar(share: f64, width: usize) -> String {
    let full = (share * width as f64).floor() as usize;
    let tip = usize::from(full < width);
    format!("{}{}{}", "━".repeat(full), "╸".repeat(tip), " ".repeat(width - full - tip))
}

/// `0:41`, `12:05`, `1:02:03`.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rollout() -> (Gauge, Instant) {
        let began = Instant::now();
        let mut gauge = Gauge::new("train[0001]/rollout", began);
        gauge.phase("episodes", 512, began);
        let now = began + Duration::from_secs(20);
        gauge.advance(128, now);
        gauge.status("success 0.61 · 12.3k tokens/s");
        (gauge, now)
    }

    #[test]
    fn success_and_speed_are_shown_at_every_width() {
        let (gauge, now) = rollout();
        let shown: Vec<String> = [40, 60, 80, 120].map(|width| gauge.line(width, now)).into();
        insta::assert_snapshot!(shown.join("\n"), @r"
        train…  success 0.61 · 12.3k tokens/s
        train[0001]/rollout  25%  success 0.61 · 12.3k tokens/s
        train[0001]/rollout  128/512  0:20, 1:00 left  success 0.61 · 12.3k tokens/s
        train[0001]/rollout  ━━━━━━╸                   episodes 128/512  0:20, 1:00 left  success 0.61 · 12.3k tokens/s
        ");
        for (width, line) in [40, 60, 80, 120].into_iter().zip(&shown) {
            assert!(columns(line) + MARGIN <= width, "{width}: {line}");
        }
    }

    #[test]
    fn each_phase_has_its_own_count_and_time() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut gauge = Gauge::new("base", began);
        gauge.phase("recording traces", 300, began);
        gauge.advance(300, at(2));
        assert_eq!(gauge.message(at(2)), "recording traces 300/300");
        gauge.phase("building the tokenizer", 0, at(2));
        assert_eq!(gauge.message(at(3)), "building the tokenizer");
        gauge.phase("training steps", 800, at(4));
        gauge.advance(200, at(14));
        gauge.status("loss 1.250");
        assert_eq!(gauge.message(at(14)), "training steps 200/800, 0:30 left, loss 1.250");
        assert_eq!(gauge.message(at(18)), "training steps 200/800, 0:26 left, loss 1.250");
        assert!(gauge.line(80, at(14)).contains("training steps 200/800"), "{}", gauge.line(80, at(14)));
    }

    #[test]
    fn units_done_earlier_do_not_count_towards_the_speed() {
        let began = Instant::now();
        let mut gauge = Gauge::new("base", began);
        gauge.phase("training steps", 800, began);
        gauge.skip(600);
        assert_eq!(gauge.message(began + Duration::from_secs(10)), "training steps 600/800");
        let later = began + Duration::from_secs(10);
        gauge.advance(100, later);
        assert_eq!(gauge.message(later), "training steps 700/800, 0:10 left");
    }
}
