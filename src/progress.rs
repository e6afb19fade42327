//! Progress events. The library emits them; the observer decides what to show.

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
