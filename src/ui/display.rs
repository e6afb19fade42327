//! What shows the progress of a run: bars on a terminal, lines elsewhere.

use std::sync::Arc;

use super::gauge::LoopProgress;
use crate::progress::SharedProgress;

/// Shows progress as bars or lines.
pub trait RunDisplay: Send + Sync {
    fn line(&self, text: &str);
    fn begin(&self, id: &str) -> Arc<SharedProgress>;
    fn end(&self, _id: &str) {}
    /// A loop began, advanced, or ended.
    fn iterations(&self, _of: &LoopProgress) {}
    /// Whether running stages are visible without a line about their start.
    fn shows_running(&self) -> bool;
}
