//! Table that `judge` writes about itself: how far its judges can be trusted.

use super::table::table;

table! {
    /// One measure of a judge, or one episode that plays to its judge.
    JudgeAudit in "judge_audit" {
        /// The name of a judge, such as `rubric`; `episodes` for what does not depend on a judge.
        judge: String,
        /// Name of the measure or flag; docs/guides/judges.md describes each.
        measure: String,
        /// The flagged trajectory; absent for a measure.
        trajectory_id: Option<String>,
        /// Mean over the cases. 1 for a flagged trajectory.
        value: f64,
        /// Lower end of the 95 % interval, with groups as clusters; absent for fewer than two groups.
        low: Option<f64>,
        /// Upper end.
        high: Option<f64>,
        /// Number of cases.
        n: u32,
    }
}
