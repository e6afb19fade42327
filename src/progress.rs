//! How work reports that it goes on. The library says what happens; who listens decides what is shown.

/// Listens to one stage's work. Cheap to call: implementations decide how often they redraw. What an implementation
/// does not listen to, it leaves out.
pub trait Observer: Send + Sync {
    /// A part of the work begins: its name, which says what is counted (`training steps`), and how many units it has; 0
    /// where that is not known. Counts begin at 0 again. The name of the part at work only changes its number of units.
    fn phase(&self, _name: &str, _units: u64) {}
    /// This many more units are done.
    fn advance(&self, _units: u64) {}
    /// This many units were done before, by a run that was stopped: they count, and say nothing of the speed.
    fn skip(&self, _units: u64) {}
    /// The state worth seeing right now, e.g. `success 0.61 · 12.3k tokens/s`; replaces the last one.
    fn status(&self, _text: &str) {}
    /// Something a person should know of the result. It is kept with it.
    fn note(&self, _text: &str) {}
    /// A line that the stage's program printed.
    fn output(&self, _line: &str) {}
}

/// Listens to nothing.
pub struct NoProgress;

impl Observer for NoProgress {}
