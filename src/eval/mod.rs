//! The verdict: policies compared on held-out scenarios, and the words for it.
//!
//! Every comparison is paired: policies are set the same scenarios, and a scenario counts where every policy has
//! episodes of it. Scenarios of one family, or about one entity, are resampled together. A gain is called measurable
//! only where its interval and the sign-flip test agree; "no measurable gain" is a result like any other. Nothing here
//! plays episodes or judges answers, and the same episodes give the same rows to the bit, in whatever order they come.

mod report;
mod statistics;
mod verdict;

#[cfg(test)]
mod tests;

pub use report::{headline, report, summary};
pub use statistics::{Clusters, Interval, bootstrap_mean, holm, sign_flip, wilson};
pub use verdict::{Episode, Exam, Finding, Mode, metrics, verdict};
