//! How agents use each tool.

use serde::Serialize;

use super::failures::Failure;
use crate::{
    data::{Call, EpisodeRow, OutcomeRow, Tool},
    view::calls::{self, ToolStatistics},
};

/// Bytes of a token, roughly. Tokenizers differ; the figure is for comparison.
pub const BYTES_PER_TOKEN: f64 = 4.0;

/// One tool.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ToolReport {
    #[serde(flatten)]
    pub calls: ToolStatistics,
    /// Episodes that could have called it.
    pub offered_in: u32,
    /// Calls that its schema refused.
    pub refused: u32,
    /// Size of its function schema in the prompt, name and description included.
    pub description_bytes: usize,
    /// Failed tasks of the final policy in which it was called, or was needed.
    pub failed_tasks: u32,
}

/// The episodes of a stage, and the tools that it offered.
pub struct StageEpisodes {
    pub episodes: Vec<EpisodeRow>,
    pub outcomes: Vec<OutcomeRow>,
    pub calls: Vec<Call>,
    pub tools: Vec<Tool>,
}

pub fn tools(parts: &[StageEpisodes], failed: &[Failure<'_>]) -> Vec<ToolReport> {
    let mut all: Vec<ToolReport> = Vec::new();
    for part in parts {
        for found in calls::by_tool(&part.tools, part.outcomes.iter(), &part.calls) {
            if found.tool == "complete_task" {
                continue;
            }
            let at = all.iter().position(|known| known.calls.tool == found.tool).unwrap_or_else(|| {
                let tool = found.tool.clone();
                all.push(ToolReport {
                    calls: ToolStatistics { tool, ..Default::default() },
                    ..Default::default()
                });
                all.len() - 1
            });
            let known = &mut all[at];
            if found.offered {
                known.offered_in += part.outcomes.len() as u32;
                let tool = part.tools.iter().find(|tool| tool.name == found.tool);
                known.description_bytes = tool.map_or(0, |tool| tool.function.len());
            }
            known.calls.add(&found);
        }
    }
    for tool in &mut all {
        tool.refused = tool.calls.errors.get("schema").copied().unwrap_or(0);
        let concerns = |failure: &&Failure<'_>| {
            failure.called.contains(&tool.calls.tool) || failure.needed.contains(&tool.calls.tool)
        };
        tool.failed_tasks = failed.iter().filter(concerns).count() as u32;
    }
    all.sort_by_key(|tool| (std::cmp::Reverse(tool.failed_tasks), std::cmp::Reverse(tool.calls.failed)));
    all
}

pub fn tokens(bytes: usize) -> f64 {
    bytes as f64 / BYTES_PER_TOKEN
}
