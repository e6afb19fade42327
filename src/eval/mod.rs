//! The verdict: compares policies on held-out scenarios and reports the result.
//!
//! Every comparison is paired: all policies get the same scenarios, and a scenario counts only if every
//! policy has episodes of it. What it comes down to ([`headline()`]) is of tasks nothing of which was trained on, sampled as the
//! agent samples in use: cases that were trained on in other words are a row of their own. Scenarios of one family, or about one entity, count together. A gain is
//! measurable only if its interval and the sign-flip test agree; "no measurable gain" is a valid result. This
//! module neither runs episodes nor judges answers. The same episodes give bit-identical rows in any order.

mod cut;
mod headline;
mod report;
mod statistics;
mod verdict;
mod vote;

#[cfg(test)]
mod tests;

pub use cut::cut;
pub use headline::{Advice, Difference, Headline, Standing, headline, points};
pub use report::{Paint, Sentence, claim, comparison, outcome, report, summary, text};
pub use statistics::{
    Clusters, DEFAULT_DISCORDANCE, Interval, bootstrap_mean, difference_interval, holm, rate_interval,
    sign_flip, smallest_difference, tasks_needed,
};
pub use verdict::{Comparison, Episode, Finding, Mode, metrics, overall, reported_mode, verdict};
pub use vote::{majority, vote_name};
