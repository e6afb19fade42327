//! What the stage counts.

use std::collections::BTreeSet;

use strum::VariantArray as _;

use super::sources::SourceOutput;
use crate::{
    data::{Admission, Scenario, UNSEEN},
    stage::Metrics,
    tasks::{refusals::Reason, solution::Dropped},
};

pub fn metrics(made: &SourceOutput) -> Metrics {
    let mut metrics = Metrics::new();
    let mut count = |name: String, number: usize| _ = metrics.insert(name, number as f64);
    let families: BTreeSet<&str> =
        made.train.iter().chain(&made.heldout).map(|s| s.family.as_str()).collect();
    count("families".into(), families.len());
    count("train".into(), made.train.len());
    count("heldout".into(), made.heldout.len());
    let known: BTreeSet<&str> = made.train.iter().flat_map(words).collect();
    for split in UNSEEN {
        let of_split: Vec<&Scenario> = made.heldout.iter().filter(|s| s.split == split).collect();
        if !of_split.is_empty() {
            let words: BTreeSet<&str> = of_split.iter().copied().flat_map(words).collect();
            count(split.to_owned(), of_split.len());
            count(format!("new_words_{split}"), words.difference(&known).count());
        }
    }
    for why in Dropped::VARIANTS {
        count(format!("dropped_{}", why.name()), made.dropped.get(why).copied().unwrap_or_default());
    }
    count("candidates".into(), made.admission.len());
    count("admitted".into(), made.admission.iter().filter(|row| row.reason.is_none()).count());
    for reason in Reason::VARIANTS {
        let of_reason = made.admission.iter().filter(|row| row.reason.as_deref() == Some(reason.name()));
        count(format!("refused_{}", reason.name().replace('-', "_")), of_reason.count());
    }
    if let Some(coverage) = &made.coverage {
        count("tools".into(), coverage.tools);
        count("tools_covered".into(), coverage.covered_tools);
        count("params".into(), coverage.params);
        count("params_covered".into(), coverage.covered_params);
        for calls in 1..=5_u32 {
            let is_long = |row: &&Admission| {
                row.reason.is_none() && (row.calls == calls || calls == 5 && row.calls > 5)
            };
            count(format!("calls_{calls}"), made.admission.iter().filter(is_long).count());
        }
    }
    metrics
}

/// The words of a task as written.
pub fn words(scenario: &Scenario) -> impl Iterator<Item = &str> {
    scenario.task.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty())
}
