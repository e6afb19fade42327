//! `replay`: makes the calls of episodes again on the live server, and keeps those whose results are still the same.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    Context, Metrics, StageError, StageKind,
    kind::StageFuture,
    metrics,
    preflight::{ExpectedOutput, Preflight, PreflightContext},
    rollout::{play::Player, prompts, records::of_references, settings::PlaySettings},
    typed,
};
use crate::{
    agent::result_of,
    answer::COMPLETE_TASK,
    chat::ToolCall,
    data::{CallError, Replay, Scenario, Trajectory, calls::calls, paired_calls},
    error::{Diagnostic, Result},
};

#[derive(Debug, Deserialize)]
pub(super) struct Params {
    compare: Compare,
    max_left_out: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Compare {
    Results,
    Errors,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "replay")]
enum ReplayError {
    #[error("there are no episodes")]
    #[hint = "the stage before left all out"]
    NoEpisodes,
    #[error("{left_out} of {episodes} episodes do not hold; the first, {id}: {reason}")]
    #[hint = "the data may not be that of the recording: `state` of [server] says what a session \
        starts with. `compare = \"errors\"` compares only which calls fail; `max_left_out` allows more"]
    LeftOut { left_out: usize, episodes: usize, id: String, reason: String },
}

/// Replays of episodes.
pub struct ReplayStage {
    params: Params,
    play: PlaySettings,
}

/// A call of an episode, with what the agent saw of its result.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ReplayedCall {
    pub call: ToolCall,
    /// None if there was none.
    pub result: Option<String>,
    pub is_error: bool,
    /// Whether mcprl sent it to the server.
    pub reached: bool,
}

impl ReplayStage {
    pub fn parse(params: &Map<String, Value>) -> Result<Self, StageError> {
        Ok(Self { params: typed(params)?, play: PlaySettings::parse(params)? })
    }

    async fn replay(&self, context: &Context) -> Result<Metrics> {
        let episodes: Vec<Trajectory> = context.read("trajectories")?;
        if episodes.is_empty() {
            return Err(ReplayError::NoEpisodes.into());
        }
        // What mcprl refused, or was not answered, is not made again.
        let sent = |episode| -> Vec<ReplayedCall> {
            made(episode).into_iter().filter(|made| made.reached && made.result.is_some()).collect()
        };
        let made: Vec<Vec<ReplayedCall>> = episodes.iter().map(sent).collect();
        let scenarios: Vec<Scenario> =
            episodes.iter().zip(&made).map(|(episode, made)| scenario(episode, made)).collect();
        let tools = &context.input("tools")?.path;
        // The model's context is still a limit.
        let play = self.play.clone().without_limits();
        let mut player = Player::of_reference(context, context.input("policy")?, tools, &scenarios, play)?;
        context.observer.phase("episodes", scenarios.len() as u64);
        let played = player.play(context, &of_references(&scenarios)).await;
        let lost = player.lost();
        player.close().await;

        let again = episodes.iter().zip(&made).zip(played?);
        let rows: Vec<Replay> =
            again.map(|((episode, before), now)| self.compared(episode, before, now.as_ref())).collect();
        let of_rows = |holds: bool| rows.iter().filter(|row| row.holds == Some(holds)).count();
        let (kept, left_out) = (of_rows(true), of_rows(false));
        self.check(&rows, kept)?;
        let calls = made.iter().map(Vec::len).sum::<usize>() as f64 / made.len() as f64;
        let holds = |(episode, row): (Trajectory, &Replay)| (row.holds == Some(true)).then_some(episode);
        let still: Vec<Trajectory> = episodes.into_iter().zip(&rows).filter_map(holds).collect();
        context.write("trajectories", &still)?;
        context.write("replays", &rows)?;
        Ok(metrics([
            ("episodes", kept as f64),
            ("left_out", left_out as f64),
            ("lost", lost as f64),
            ("calls", calls),
        ]))
    }

    /// The row of an episode, whose calls were made again in this one.
    fn compared(&self, episode: &Trajectory, before: &[ReplayedCall], now: Option<&Trajectory>) -> Replay {
        let mut row = Replay {
            trajectory_id: episode.id.clone(),
            scenario_id: episode.scenario_id.clone(),
            calls: before.len() as u32,
            ..Replay::default()
        };
        let Some(now) = now else { return row };
        let again = made(now);
        let is_same = |before: &ReplayedCall, now: &ReplayedCall| match self.params.compare {
            Compare::Results => {
                let [before, now] = [before, now].map(|made| made.result.as_deref().unwrap_or_default());
                is_same_text(before, now)
            }
            Compare::Errors => before.is_error == now.is_error,
        };
        let differs = (0..before.len()).find(|at| {
            again.get(*at).is_none_or(|now| now.call != before[*at].call || !is_same(&before[*at], now))
        });
        row.holds = Some(differs.is_none());
        if let Some(at) = differs {
            row.call = Some(at as u32);
            row.tool = Some(before[at].call.name.clone());
            row.before.clone_from(&before[at].result);
            row.now = Some(match again.get(at) {
                Some(now) => now.result.clone().unwrap_or_default(),
                None => format!("not made: the episode ended, {}", now.end),
            });
        }
        row
    }

    fn check(&self, rows: &[Replay], kept: usize) -> Result<(), ReplayError> {
        let out: Vec<&Replay> = rows.iter().filter(|row| row.holds == Some(false)).collect();
        let too_many = out.len() as f64 > self.params.max_left_out * rows.len() as f64;
        let Some(first) = out.first().filter(|_| too_many || kept == 0) else { return Ok(()) };
        let shown =
            |text: &Option<String>| text.iter().flat_map(|text| text.chars()).take(80).collect::<String>();
        let reason = format!(
            "call {} of {} gave {:?}, and now {:?}",
            first.call.unwrap_or_default() + 1,
            first.tool.as_deref().unwrap_or_default(),
            shown(&first.before),
            shown(&first.now)
        );
        let (left_out, id) = (out.len(), first.scenario_id.clone());
        Err(ReplayError::LeftOut { left_out, episodes: rows.len(), id, reason })
    }
}

/// The calls of an episode, in order, without `complete_task`.
pub(super) fn made(episode: &Trajectory) -> Vec<ReplayedCall> {
    let rows = calls(&episode.into(), &BTreeSet::new());
    let own = |error: &String| *error != CallError::Tool.name();
    let all = paired_calls(&episode.messages).into_iter().zip(rows);
    all.filter(|(call, _)| call.tool() != COMPLETE_TASK)
        .map(|(paired, row)| ReplayedCall {
            call: ToolCall {
                name: paired.tool().to_owned(),
                arguments: paired.written().cloned().unwrap_or_default(),
            },
            result: paired.result.map(|result| result_of(result).to_owned()),
            is_error: row.is_error,
            reached: !row.error.as_ref().is_some_and(own),
        })
        .collect()
}

/// The calls of an episode as the reference solution of a task.
fn scenario(episode: &Trajectory, made: &[ReplayedCall]) -> Scenario {
    let calls: Vec<&ToolCall> = made.iter().map(|made| &made.call).collect();
    Scenario {
        id: episode.id.clone(),
        split: episode.split.clone(),
        family: episode.family.clone(),
        task: episode.scenario_id.clone(),
        answer: Some(episode.answer.clone().unwrap_or_default()),
        check: "none".into(),
        reference: Some(serde_json::json!(calls).to_string()),
        ..Scenario::default()
    }
}

/// Whether two results say the same: as JSON, or word by word.
fn is_same_text(one: &str, other: &str) -> bool {
    let json = |text: &str| serde_json::from_str::<Value>(text).ok();
    one == other
        || one.split_whitespace().eq(other.split_whitespace())
        || json(one).zip(json(other)).is_some_and(|(one, other)| one == other)
}

impl StageKind for ReplayStage {
    fn run<'a>(&'a self, context: &'a Context) -> StageFuture<'a, Result<Metrics>> {
        Box::pin(self.replay(context))
    }

    fn preflight(&self, context: &PreflightContext<'_>) -> Preflight {
        let mut preflight = Preflight::default();
        if (context.finished)("trajectories").is_none() {
            prompts::check(context, "policy", &self.play.agent, &mut preflight);
        }
        let episodes = context.inputs.get("trajectories").and_then(|inputs| inputs.first());
        match episodes {
            Some((_, episodes @ ExpectedOutput::Episodes(_))) => {
                preflight.with("trajectories", episodes.clone())
            }
            _ => preflight,
        }
    }
}
