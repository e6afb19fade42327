//! The progress of one stage, in one line of a given width.

use std::time::{Duration, Instant};

/// The progress of a running stage.
pub struct Gauge {
    id: String,
    began: Instant,
    phase: Phase,
    status: String,
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

    /// The line for a terminal of this width. Keeps the name and the status. Where the rest does not fit, it
    /// shortens or drops first the bar, then the time, then the count.
    pub fn line(&self, width: usize, now: Instant) -> String {
        let width = width.saturating_sub(MARGIN);
        let status = columns(&self.status);
        let id = cut(&self.id, width.saturating_sub(if status > 0 { GAP + status } else { 0 }).max(NAME));
        let mut line = Columns { id, status: self.status.clone(), ..Columns::default() };
        let elapsed = || clock(now - self.began);
        let left = self.phase.left(now).map(|left| format!("{} left", clock(left)));
        let mut grow = |change: &dyn Fn(&mut Columns)| {
            let mut wider = line.clone();
            change(&mut wider);
            if wider.width() <= width {
                line = wider;
            }
        };
        if let Some(share) = self.phase.share() {
            grow(&|line| line.count = format!("{:.0}%", (share * 100.0).floor()));
            if let Some(left) = &left {
                grow(&|line| line.time.clone_from(left));
            }
            grow(&|line| line.count = self.phase.count());
        }
        if !self.phase.name.is_empty() {
            grow(&|line| {
                line.count = format!("{} {}", self.phase.name, self.phase.count()).trim_end().to_owned()
            });
        }
        if let Some(share) = self.phase.share() {
            grow(&|line| line.bar = bar(share, 10));
        }
        grow(&|line| {
            line.time = match &left {
                Some(left) => format!("{}, {left}", elapsed()),
                None => elapsed(),
            }
        });
        if let Some(share) = self.phase.share() {
            grow(&|line| line.bar = bar(share, 24));
        }
        cut(&line.text(), width)
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

#[derive(Clone, Default)]
struct Columns {
    id: String,
    count: String,
    bar: String,
    time: String,
    status: String,
}

impl Columns {
    fn text(&self) -> String {
        let columns = [&self.id, &self.bar, &self.count, &self.time, &self.status];
        let shown = columns.into_iter().filter(|column| !column.is_empty()).map(String::as_str);
        shown.collect::<Vec<_>>().join("  ")
    }

    fn width(&self) -> usize {
        columns(&self.text())
    }
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
    fn success_and_speed_are_seen_on_every_terminal() {
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
    fn what_was_done_before_says_nothing_of_the_speed() {
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
