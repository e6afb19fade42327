//! The verdict at the end of a run.

use super::style::{self, paint};
use crate::{
    data::VerdictRow,
    eval::{self, Finding},
};

pub fn verdict_text(rows: &[VerdictRow]) -> String {
    eval::summary(rows, |finding, text| match finding {
        Finding::Gain => paint(style::GOOD, text),
        Finding::NoMeasurableGain => text.to_owned(),
        Finding::Regression => paint(style::BAD, text),
    })
}
