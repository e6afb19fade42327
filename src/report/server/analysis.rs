//! What agents did with a server's tools. Causes and suggestions come from rules on what was recorded, not from a model. A rule
//! that has nothing to go by says nothing.

use std::collections::BTreeSet;

use serde::Serialize;

use super::{
    errors::{ErrorReport, errors},
    failures::{Cause, Confusion, causes, confusions, failures},
    suggestions::{Suggestion, suggestions},
    tools::{StageEpisodes, ToolReport, tools},
};
use crate::{
    data::{EpisodeRow, Scenario},
    eval::Headline,
    report::parts::server_of,
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
        let (Ok(episodes), Ok(outcomes), Ok(calls)) = tables else {
            report.gone.push(stage.id.clone());
            continue;
        };
        let tools = run.tools(stage).unwrap_or_default();
        parts.push(StageEpisodes { episodes, outcomes, calls, tools });
    }
    report.episodes = parts.iter().map(|part| part.episodes.len()).sum();
    let (policy, last, scenarios) = final_episodes(run, stage);
    report.policy = policy;
    let failed = failures(&last, &scenarios);
    report.tasks = tasks(&last);
    report.failed_tasks = failed.len();
    report.without_reference = failed.iter().filter(|failure| !failure.has_reference).count();
    report.causes = causes(&failed);
    report.confusions = confusions(&failed);
    report.tools = tools(&parts, &failed);
    report.errors = errors(&parts);
    report.suggestions = suggestions(&report.tools, &report.errors, &report.confusions, &failed, &parts);
    report
}

/// Why the final policy fails, without the tables of other stages.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Failed {
    pub policy: String,
    pub tasks: usize,
    pub failed_tasks: usize,
    pub causes: Vec<Cause>,
}

/// The failed tasks of the last comparison of policies, or of the one that `stage` names; as [`server_report`] has them.
pub fn failed_tasks(run: &Run, stage: Option<&str>) -> Failed {
    let (policy, last, scenarios) = final_episodes(run, stage);
    let failed = failures(&last, &scenarios);
    Failed { policy, tasks: tasks(&last), failed_tasks: failed.len(), causes: causes(&failed) }
}

fn tasks(episodes: &[EpisodeRow]) -> usize {
    episodes.iter().map(|row| &row.scenario_id).collect::<BTreeSet<_>>().len()
}

/// The final policy with its episodes and their scenarios: those that the last comparison counts, or the wanted one, else those of
/// the last rollout.
fn final_episodes(run: &Run, wanted: Option<&str>) -> (String, Vec<EpisodeRow>, Vec<Scenario>) {
    if let Some(found) =
        exam::exams(run).into_iter().rfind(|found| wanted.is_none_or(|wanted| found.stage == wanted))
        && let Some(stage) = run.stage(&found.stage)
        && let Ok(outcomes) = stage.table()
        && let Some((_, last)) = found.headline.as_ref().and_then(Headline::ends)
        && let Some((policy, mut part)) = exam::by_policy(stage, &found.policies, &outcomes)
            .into_iter()
            .find(|(policy, _)| *policy == last.policy)
    {
        let counted = found.counted();
        part.retain(|(_, episode)| counted.episode(episode));
        let positions = part.iter().map(|(position, _)| *position).collect();
        let episodes = stage.table_part(&positions).unwrap_or_default();
        return (format!("{policy} in {}", found.stage), episodes, run.scenarios(stage).unwrap_or_default());
    }
    let stages: Vec<&Stage> = run.writers("trajectories").collect();
    let played = stages.into_iter().rev().find(|stage| stage.is_played());
    let last = played.and_then(|stage| Some((stage, stage.table().ok()?)));
    last.map(|(stage, episodes)| {
        (format!("the policy of {}", stage.id), episodes, run.scenarios(stage).unwrap_or_default())
    })
    .unwrap_or_default()
}
