//! What stays in memory from one stage of a run to the next. It changes no result.

use crate::{engine::Bases, hash::Digest};

/// Owned by the run; each stage is handed it.
#[derive(Default)]
pub struct Held {
    pub bases: Bases,
}

impl Held {
    pub fn is_empty(&self) -> bool {
        self.bases.is_empty()
    }

    /// Lets go what is of no other model than these.
    pub fn retain(&self, wanted: impl Fn(&Digest) -> bool) {
        self.bases.retain(wanted);
    }
}
