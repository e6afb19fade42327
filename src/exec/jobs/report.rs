//! What the worker of a job writes for the run, a JSON object on each line.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{error::Reported, hash::Digest, progress::Observer, stage::Metrics, usage::Usage};

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what", content = "with")]
pub enum Report {
    Phase {
        name: String,
        units: u64,
    },
    Advance(u64),
    Skip(u64),
    Status(String),
    Note(String),
    Output(String),
    /// Of the task so far.
    Used(Usage),
    Done {
        /// By their bits: JSON has no infinity.
        metrics: BTreeMap<String, u64>,
        /// Of all outputs together.
        outputs: Digest,
    },
    Failed(Reported),
}

impl Report {
    pub fn done(metrics: Metrics, outputs: Digest) -> Self {
        let metrics = metrics.into_iter().map(|(name, value)| (name, value.to_bits())).collect();
        Self::Done { metrics, outputs }
    }

    /// Passes progress on to an observer.
    pub fn forward(&self, observer: &dyn Observer) {
        match self {
            Self::Phase { name, units } => observer.phase(name, *units),
            Self::Advance(units) => observer.advance(*units),
            Self::Skip(units) => observer.skip(*units),
            Self::Status(text) => observer.status(text),
            Self::Note(text) => observer.note(text),
            Self::Output(line) => observer.output(line),
            Self::Used(_) | Self::Done { .. } | Self::Failed(_) => {}
        }
    }
}

/// The metrics of [`Report::Done`].
pub fn metrics_of(bits: BTreeMap<String, u64>) -> Metrics {
    bits.into_iter().map(|(name, bits)| (name, f64::from_bits(bits))).collect()
}
