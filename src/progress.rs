//! Progress of stages. The library reports it to observers, which decide what to show.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};

/// Receives the progress of one stage. Calls must be cheap: implementations decide how often they redraw. Methods do
/// nothing by default.
pub trait Observer: Send + Sync {
    /// A phase begins. `name` says what is counted (`training steps`); `units` is the total, or 0 if unknown. The count
    /// starts at 0 again. A call with the current phase's name only changes its total.
    fn phase(&self, _name: &str, _units: u64) {}
    /// This many more units are done.
    fn advance(&self, _units: u64) {}
    /// This many units were done by an earlier, interrupted run. They count as done but not towards the speed.
    fn skip(&self, _units: u64) {}
    /// The current status, e.g. `success 0.61 · 12.3k tokens/s`; replaces the previous one.
    fn status(&self, _text: &str) {}
    /// A note about the result for people. It is stored with the result.
    fn note(&self, _text: &str) {}
    /// A line that the stage's child program printed.
    fn output(&self, _line: &str) {}
}

/// Ignores all events.
pub struct NoProgress;

impl Observer for NoProgress {}

/// Milliseconds since the epoch.
pub fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// How far a stage is. Times are milliseconds since the epoch, so that another process can read it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Id of the stage.
    pub stage: String,
    pub began_ms: u64,
    pub phase: Phase,
    pub status: String,
}

/// A part of a stage that counts its own units.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    pub name: String,
    pub began_ms: u64,
    /// When units were last completed.
    pub last_ms: u64,
    pub done: u64,
    /// The part of `done` that was complete at the start.
    pub skipped: u64,
    /// 0 if unknown.
    pub units: u64,
}

/// An estimate from a shorter time is unreliable.
const SETTLED_MS: u64 = 1000;

impl Progress {
    pub fn new(stage: &str, now_ms: u64) -> Self {
        let (stage, phase) = (stage.to_owned(), Phase::new("", 0, now_ms));
        Self { stage, began_ms: now_ms, phase, status: String::new() }
    }

    pub fn phase(&mut self, name: &str, units: u64, now_ms: u64) {
        if self.phase.name == name {
            self.phase.units = units;
        } else {
            self.phase = Phase::new(name, units, now_ms);
            self.status.clear();
        }
    }

    pub fn advance(&mut self, units: u64, now_ms: u64) {
        self.phase.done += units;
        self.phase.last_ms = now_ms;
    }

    pub fn skip(&mut self, units: u64) {
        self.phase.done += units;
        self.phase.skipped += units;
    }
}

impl Phase {
    fn new(name: &str, units: u64, now_ms: u64) -> Self {
        Self { name: name.to_owned(), began_ms: now_ms, last_ms: now_ms, done: 0, skipped: 0, units }
    }

    /// The part that is done, from 0 to 1; none if the total is unknown.
    #[expect(clippy::cast_precision_loss, reason = "shown as a percentage")]
    pub fn share(&self) -> Option<f64> {
        (self.units > 0).then(|| (self.done as f64 / self.units as f64).min(1.0))
    }

    /// Units per second so far.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub fn rate(&self) -> Option<f64> {
        let (done, spent) = (self.done - self.skipped, self.last_ms.saturating_sub(self.began_ms));
        (done > 0 && spent > 0).then(|| done as f64 * 1000.0 / spent as f64)
    }

    /// The time until the end at the speed so far.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub fn left(&self, now_ms: u64) -> Option<Duration> {
        let missing = self.units.saturating_sub(self.done);
        let rate =
            self.rate().filter(|_| missing > 0 && now_ms.saturating_sub(self.began_ms) >= SETTLED_MS)?;
        let since = Duration::from_millis(now_ms.saturating_sub(self.last_ms));
        Some(Duration::try_from_secs_f64(missing as f64 / rate).ok()?.saturating_sub(since))
    }
}

/// Called with the progress and the time after each change.
type Changed = Box<dyn Fn(&Progress, u64) + Send + Sync>;

/// The progress of a stage that one thread reports and others show.
pub struct SharedProgress {
    now: Mutex<Progress>,
    changed: Changed,
}

impl SharedProgress {
    pub fn new(stage: &str) -> Arc<Self> {
        Self::with(stage, |_, _| {})
    }

    /// Calls `changed` with the progress and the time after each change.
    pub fn with(stage: &str, changed: impl Fn(&Progress, u64) + Send + Sync + 'static) -> Arc<Self> {
        let now = Mutex::new(Progress::new(stage, now_ms()));
        Arc::new(Self { now, changed: Box::new(changed) })
    }

    pub fn get(&self) -> Progress {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes over what another process reported.
    pub fn set(&self, progress: Progress) {
        self.change(|now, _| *now = progress);
    }

    fn change(&self, change: impl FnOnce(&mut Progress, u64)) {
        let time = now_ms();
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut now, time);
        (self.changed)(&now, time);
    }
}

impl Observer for SharedProgress {
    fn phase(&self, name: &str, units: u64) {
        self.change(|now, time| now.phase(name, units, time));
    }

    fn advance(&self, units: u64) {
        self.change(|now, time| now.advance(units, time));
    }

    fn skip(&self, units: u64) {
        self.change(|now, _| now.skip(units));
    }

    fn status(&self, text: &str) {
        self.change(|now, _| text.clone_into(&mut now.status));
    }
}
