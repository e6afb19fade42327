//! `replay`: makes the calls of episodes again on the live server, and keeps those whose results are still the same.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    Context, Metrics, StageError, StageKind,
    kind::StageFuture,
    preflight::{ExpectedOutput, Preflight, PreflightContext},
    rollout::{play::Player, prompts, records::RolloutSpec, settings::PlaySettings},
    typed,
};
use crate::{
    chat::ToolCall,
    data::{Replay, Scenario, Trajectory, calls},
    engine::Sampling,
    error::{Class, Diagnostic, Result},
    mcp::COMPLETE_TASK,
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

#[derive(Debug, thiserror::Error)]
enum ReplayError {
    #[error("there are no episodes")]
    NoEpisodes,
    #[error("{left_out} of {episodes} episodes do not hold; the first, {id}: {reason}")]
    LeftOut { left_out: usize, episodes: usize, id: String, reason: String },
}

impl Diagnostic for ReplayError {
    fn code(&self) -> &'static str {
        match self {
            Self::NoEpisodes => "replay::no_episodes",
            Self::LeftOut { .. } => "replay::left_out",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoEpisodes => "the stage before left all out".into(),
            Self::LeftOut { .. } => "the data may not be that of the recording: `state` of [server] says what a session \
                 starts with. `compare = \"errors\"` compares only which calls fail; `max_left_out` allows more"
                .into(),
        })
    }

    fn class(&self) -> Class {
        Class::Work
    }
}

/// Replays of episodes.
pub struct ReplayStage {
    params: Params,
    play: PlaySettings,
}

/// A call of an episode, with what the agent saw of its result.
#[derive(Debug, Clone, PartialEq)]
struct Made {
    call: ToolCall,
    result: String,
    is_error: bool,
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
        let made: Vec<Vec<Made>> = episodes.iter().map(made).collect();
        let scenarios: Vec<Scenario> =
            episodes.iter().zip(&made).map(|(episode, made)| scenario(episode, made)).collect();
        let tools = &context.input("tools")?.path;
        let mut player =
            Player::of_reference(context, context.input("policy")?, tools, &scenarios, self.play.clone())?;
        context.observer.phase("episodes", scenarios.len() as u64);
        let of = |scenario| RolloutSpec { scenario, sample: 0, seed: 0, sampling: Sampling::GREEDY };
        let played = player.play(context, &scenarios.iter().map(of).collect::<Vec<_>>()).await;
        let lost = player.lost();
        player.close().await;

        let mut rows = Vec::with_capacity(episodes.len());
        for ((episode, before), now) in episodes.iter().zip(&made).zip(&played?) {
            rows.push(self.compared(episode, before, now.as_ref()));
        }
        let kept: BTreeSet<&str> =
            rows.iter().filter(|row| row.holds == Some(true)).map(|row| row.trajectory_id.as_str()).collect();
        self.check(&rows, kept.len())?;
        let calls = made.iter().map(Vec::len).sum::<usize>() as f64 / made.len() as f64;
        let left_out = rows.iter().filter(|row| row.holds == Some(false)).count();
        let named = [
            ("episodes", kept.len() as f64),
            ("left_out", left_out as f64),
            ("lost", lost as f64),
            ("calls", calls),
        ];
        let still: Vec<Trajectory> =
            episodes.iter().filter(|episode| kept.contains(episode.id.as_str())).cloned().collect();
        context.write("trajectories", &still)?;
        context.write("replays", &rows)?;
        Ok(named.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    /// The row of an episode, whose calls were made again in this one.
    fn compared(&self, episode: &Trajectory, before: &[Made], now: Option<&Trajectory>) -> Replay {
        let mut row = Replay {
            trajectory_id: episode.id.clone(),
            scenario_id: episode.scenario_id.clone(),
            calls: before.len() as u32,
            ..Replay::default()
        };
        let Some(now) = now else { return row };
        let again = made(now);
        let is_same = |before: &Made, now: &Made| match self.params.compare {
            Compare::Results => is_same_text(&before.result, &now.result),
            Compare::Errors => before.is_error == now.is_error,
        };
        let differs = (0..before.len()).find(|at| {
            again.get(*at).is_none_or(|now| now.call != before[*at].call || !is_same(&before[*at], now))
        });
        row.holds = Some(differs.is_none());
        if let Some(at) = differs {
            row.call = Some(at as u32);
            row.tool = Some(before[at].call.name.clone());
            row.before = Some(before[at].result.clone());
            row.now = Some(match again.get(at) {
                Some(now) => now.result.clone(),
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

/// The calls of an episode that reached a server, in order.
fn made(episode: &Trajectory) -> Vec<Made> {
    let messages: Vec<Value> = serde_json::from_str(&episode.messages).unwrap_or_default();
    let failed: BTreeMap<u32, bool> = calls::calls(&episode.into(), &BTreeSet::new())
        .into_iter()
        .map(|call| (call.index, call.is_error))
        .collect();
    let mut results = messages.iter().filter(|message| message["role"] == "tool");
    let mut found = Vec::new();
    let calls = messages.iter().filter_map(|message| message["tool_calls"].as_array()).flatten();
    for (index, call) in calls.enumerate() {
        let function = &call["function"];
        let name = function["name"].as_str().unwrap_or_default().to_owned();
        if name == COMPLETE_TASK {
            continue;
        }
        let arguments = match &function["arguments"] {
            Value::String(text) => serde_json::from_str(text).unwrap_or_default(),
            Value::Object(arguments) => arguments.clone(),
            _ => Map::new(),
        };
        let result = results.next().map(|message| &message["content"]);
        let result = result.and_then(Value::as_str).unwrap_or_default().to_owned();
        let is_error = failed.get(&(index as u32)).copied().unwrap_or_default();
        found.push(Made { call: ToolCall { name, arguments }, result, is_error });
    }
    found
}

/// The calls of an episode as the reference solution of a task.
fn scenario(episode: &Trajectory, made: &[Made]) -> Scenario {
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
