//! What agents did with a server's tools. Causes and suggestions come from rules on what was recorded, not from a model. A rule
//! that has nothing to go by says nothing.

use std::collections::BTreeSet;

use serde::Serialize;

use super::{
    errors::{ErrorReport, errors},
    failures::{Cause, Confusion, causes, confusions, failures},
    suggestions::{Suggestion, suggestions},
    tools::{Part, ToolReport, tools},
};
use crate::{
    data::{EpisodeRow, Scenario},
    report::run::server_of,
    view::{Run, Stage, calls, exam},
};

/// What agents did with a server's tools.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ServerReport {
    pub run: String,
    pub server: Option<String>,
    /// Episodes of all policies, in training and in comparisons.
    pub episodes: usize,
    /// The policy whose failed tasks are counted, and its tasks.
    pub policy: String,
    pub tasks: usize,
    pub failed_tasks: usize,
    /// Failed tasks whose reference solution is unknown, so that only the task itself says what was needed.
    pub without_reference: usize,
    /// Those with most failed tasks first.
    pub tools: Vec<ToolReport>,
    pub errors: Vec<ErrorReport>,
    pub confusions: Vec<Confusion>,
    pub causes: Vec<Cause>,
    pub suggestions: Vec<Suggestion>,
    /// Failed calls that an earlier version did not mark as such.
    pub unmarked_errors: u32,
    /// Stages whose episodes are no longer in the cache.
    pub gone: Vec<String>,
}

/// The report. Failed tasks are those of the last comparison of policies, or of the one that `stage` names. Empty if the run has
/// played no episodes, or the cache has none of them.
pub fn server_report(run: &Run, stage: Option<&str>) -> ServerReport {
    let mut report = ServerReport {
        run: run.id.clone(),
        server: server_of(run).map(|server| format!("{} {}", server.name, server.version).trim().to_owned()),
        ..ServerReport::default()
    };
    let mut parts = Vec::new();
    for stage in run.writers("trajectories") {
        let tables = (stage.table(), stage.table(), calls::of_stage(run, stage));
        let (Ok(episodes), Ok(outcomes), Ok(made)) = tables else {
            report.gone.push(stage.id.clone());
            continue;
        };
        report.unmarked_errors += made.unmarked_errors;
        let tools = run.tools(stage).unwrap_or_default();
        parts.push(Part { episodes, outcomes, calls: made.calls, tools });
    }
    report.episodes = parts.iter().map(|part| part.episodes.len()).sum();
    let (policy, last, scenarios) = final_episodes(run, stage);
    report.policy = policy;
    let failed = failures(&last, &scenarios);
    report.tasks = last.iter().map(|row| &row.scenario_id).collect::<BTreeSet<_>>().len();
    report.failed_tasks = failed.len();
    report.without_reference = failed.iter().filter(|failure| !failure.has_reference).count();
    report.causes = causes(&failed);
    report.confusions = confusions(&failed);
    report.tools = tools(&parts, &failed);
    report.errors = errors(&parts);
    report.suggestions = suggestions(&report.tools, &report.errors, &report.confusions, &failed, &parts);
    report
}

/// The final policy with its episodes and their scenarios: that of the last comparison or of the wanted one, else of the last
/// rollout.
fn final_episodes(run: &Run, wanted: Option<&str>) -> (String, Vec<EpisodeRow>, Vec<Scenario>) {
    if let Some(found) =
        exam::exams(run).into_iter().rfind(|found| wanted.is_none_or(|wanted| found.stage == wanted))
        && let Some(stage) = run.stage(&found.stage)
        && let Ok(outcomes) = stage.table()
        // A vote has no episodes of its own.
        && let Some((policy, part)) = exam::by_policy(stage, &found.policies, &outcomes)
            .into_iter()
            .rfind(|(_, part)| !part.is_empty())
        && let Ok(episodes) = stage.table_part(&part.iter().map(|(position, _)| *position).collect())
    {
        return (format!("{policy} in {}", found.stage), episodes, run.scenarios(stage).unwrap_or_default());
    }
    let stages: Vec<&Stage> = run.writers("trajectories").collect();
    let last = stages.into_iter().rev().find_map(|stage| Some((stage, stage.table().ok()?)));
    last.map(|(stage, episodes)| {
        (format!("the policy of {}", stage.id), episodes, run.scenarios(stage).unwrap_or_default())
    })
    .unwrap_or_default()
}
