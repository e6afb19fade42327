//! The verdict: compares policies on held-out scenarios and reports the result.
//!
//! Every comparison is paired: all policies get the same scenarios, and a scenario counts only if every
//! policy has episodes of it. Scenarios of one family, or about one entity, are resampled together. A gain is
//! measurable only if its interval and the sign-flip test agree; "no measurable gain" is a valid result. This
//! module neither runs episodes nor judges answers. The same episodes give bit-identical rows in any order.

mod report;
mod statistics;
mod verdict;
mod vote;

#[cfg(test)]
mod tests;

pub use report::{headline, points, report, summary};
pub use statistics::{Clusters, Interval, bootstrap_mean, holm, sign_flip, wilson};
pub use verdict::{Comparison, Episode, Finding, Mode, clusters, metrics, reported_mode, verdict};
pub use vote::{majority, vote_name};
