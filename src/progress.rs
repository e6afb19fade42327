//! How work reports that it goes on. The library says what happens; who listens decides what is shown.

/// Listens to one stage's work. Cheap to call: implementations decide how often they redraw.
pub trait Observer: Send + Sync {
    /// How many units of work there are; may grow as more is found.
    fn total(&self, units: u64);
    /// This many more units are done.
    fn advance(&self, units: u64);
    /// The state worth seeing right now, e.g. `success 0.61 · 12.3k tokens/s`; replaces the last one.
    fn status(&self, text: &str);
    /// Something worth keeping on the screen.
    fn note(&self, text: &str);
}

/// Listens to nothing.
pub struct Silent;

impl Observer for Silent {
    fn total(&self, _: u64) {}
    fn advance(&self, _: u64) {}
    fn status(&self, _: &str) {}
    fn note(&self, _: &str) {}
}
