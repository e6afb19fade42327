//! Table that `eval` writes: the comparison of policies on held-out scenarios.

use super::table::table;

table! {
    /// One policy on one slice of the scenarios, compared with the stage's first policy (the baseline).
    VerdictRow in "verdict" {
        /// What the slice is defined by: `all`, `split`, `family`, `tool`, or `kind`: whether training had tasks of the same kind,
        /// with other values; `changes`: tasks whose checks say what they change. A split of trained cases in other words is in the scope
        /// `split` alone, unless there is nothing else: `all` is of tasks nothing of which was trained on.
        scope: String,
        /// Name of the slice: `unseen_entities`, `pay_by_name`, `run_query`.
        slice: String,
        /// `greedy` or `sampled`.
        mode: String,
        /// The policy's name in the run file.
        policy: String,
        /// Scenarios in the slice.
        scenarios: u32,
        /// Episodes in the slice.
        episodes: u32,
        /// pass@1: mean over scenarios of the share of right episodes.
        success: f64,
        /// pass^k: share of scenarios whose every episode was right.
        success_all: f64,
        /// The same of the episodes that are right, made every call in the form of the chat template and gave their answer to
        /// `complete_task`. Absent in a verdict of an earlier version.
        success_strict: Option<f64>,
        /// pass@N: share of scenarios with a right one among the N episodes that vote. An upper bound for any way to choose one.
        /// Absent but for the vote `maj@N`.
        success_any: Option<f64>,
        /// True for a policy that is there for comparison alone: a vote, a variant that is not the baseline, or one behind an endpoint. Absent if
        /// there is none.
        comparison_only: Option<bool>,
        /// The policy whose weights it has, where it plays with a prompt of its own. Absent if there is none.
        variant_of: Option<String>,
        /// Lower end of the 95 % interval of `success`, widened for scenarios that go together.
        success_low: f64,
        /// Upper end.
        success_high: f64,
        /// Paired difference in success to the baseline; absent for the baseline.
        gain: Option<f64>,
        /// Lower end of its 95 % interval, of the pairs in clusters.
        gain_low: Option<f64>,
        /// Upper end.
        gain_high: Option<f64>,
        /// Scenarios with more right episodes than the baseline's.
        better: Option<u32>,
        /// Scenarios with fewer.
        worse: Option<u32>,
        /// The smallest difference in success to the baseline that so many scenarios show with 80 % power. Absent in a verdict of an
        /// earlier version.
        detectable: Option<f64>,
        /// Two-sided sign-flip test of the clusters' differences.
        p_value: Option<f64>,
        /// The same, adjusted by Holm's method for all policies, modes and steps.
        p_adjusted: Option<f64>,
        /// The policy before it in the stage's list, where that is not the baseline. Absent, with what is compared with it, in a
        /// verdict of an earlier version.
        previous: Option<String>,
        /// Paired difference in success to `previous`.
        step: Option<f64>,
        /// Lower end of its 95 % interval, as that of `gain`.
        step_low: Option<f64>,
        /// Upper end.
        step_high: Option<f64>,
        /// Its sign-flip test, adjusted as `p_adjusted`.
        step_p_adjusted: Option<f64>,
        /// What the scenarios of a cluster have in common: `family`, `entity`, `family and entity`; `scenario` where each is its own.
        clustered_by: String,
        /// Clusters in the slice.
        clusters: u32,
        /// Mean calls per episode.
        calls: f64,
        /// Mean turns per episode.
        turns: f64,
        /// Mean sampled tokens per episode.
        tokens: f64,
        /// Share of episodes with a tool error that still ended with the right answer; absent if no episode had one.
        error_recovery: Option<f64>,
        /// In the scope `changes`: share of the episodes that are wrong and changed nothing of what is checked.
        changed_nothing: Option<f64>,
        /// The same of those that changed something else than what was wanted.
        changed_other: Option<f64>,
    }
}

impl VerdictRow {
    /// Whether it is compared with no other row and no baseline: an agent that knows nothing.
    pub fn is_idle(&self) -> bool {
        self.comparison_only == Some(true) && self.gain.is_none()
    }

    /// Whether the policy is one of those to choose from.
    pub fn is_candidate(&self) -> bool {
        // A vote of an earlier version is not marked.
        self.comparison_only != Some(true) && self.success_any.is_none()
    }
}
