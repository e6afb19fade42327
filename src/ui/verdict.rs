//! The verdict at the end of a run.

use super::style::{self, paint};
use crate::{
    data::VerdictRow,
    eval::{self, Finding},
};

/// In a few lines, or with the tables by split and policy.
pub fn verdict_text(rows: &[VerdictRow], with_tables: bool) -> String {
    let painted: eval::Paint = |finding, text| match finding {
        Finding::Gain => paint(style::GOOD, text),
        Finding::NoMeasurableGain => text.to_owned(),
        Finding::Regression => paint(style::BAD, text),
    };
    if with_tables { eval::summary(rows, painted) } else { eval::outcome(rows, painted) }
}
