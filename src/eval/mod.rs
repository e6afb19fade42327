//! The verdict: policies compared on held-out scenarios, and the words for it.
//!
//! Every comparison is paired: policies are set the same scenarios, and a scenario counts where every policy has
//! episodes of it. A gain is called measurable only where its interval and the sign test agree; "no measurable gain"
//! is a result like any other and is said in so many words. Nothing here plays episodes or judges answers, and the
//! same episodes give the same rows to the bit, in whatever order they come.

mod report;
mod statistics;
mod verdict;

#[cfg(test)]
mod tests;

pub use report::report;
pub use statistics::{Interval, bootstrap_mean, sign_test, wilson};
pub use verdict::{Episode, Exam, Finding, Mode, headline, metrics, verdict};
