//! `traces`: recorded conversations as episodes to learn from.
//!
//! A trace is written as the policy would have seen and sampled it, turn by turn: the prompt of a turn is what its template
//! renders from the messages before, as a server of the policy would. Where the template changes earlier turns, such as by
//! removing their reasoning, the episode gets another row.

mod episode;

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, path::PathBuf};

use serde::Deserialize;
use serde_json::json;

use self::episode::{Episode, Writer};
use super::{
    Context, Metrics, StageKind,
    card::SYSTEM,
    kind::StageFuture,
    metrics,
    policy::PolicyFolder,
    preflight::{ExpectedEpisodes, ExpectedOutput, Preflight, PreflightContext},
    rollout::records::columns,
};
use crate::{
    agent::{Toolbox, system_prompt},
    chat::{Chat, Thinking},
    data::{Facts, Message, REFERENCE, Role, Scenario, Tool, TraceRow, Trajectory, first_of_user, folded},
    error::{At, Diagnostic, Interrupted, Result},
    hash::Encoder,
    recorded::{self, RecordedTrace, Trace},
};

#[derive(Debug, Deserialize)]
pub struct Traces {
    files: Vec<PathBuf>,
    max_left_out: f64,
    prompt: Prompt,
    reasoning: Reasoning,
    finish: bool,
    loss: Loss,
    allow_secrets: bool,
    system: Option<PathBuf>,
    result_chars: usize,
    thinking: Thinking,
}

/// Whose system prompt an episode has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prompt {
    Agent,
    Trace,
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reasoning {
    Keep,
    Drop,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    Assistant,
    All,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "traces", class = usage)]
enum TracesError {
    #[error("there is no file of traces in {paths}")]
    #[hint = "a folder has them in files that end in .jsonl or .json"]
    NoFiles { paths: String },
    #[error("{left_out} of {traces} traces are left out: {groups}; the first, {place}: {reason}")]
    #[hint = "`mcprl traces FILE` lists what is wrong with each; `max_left_out` allows more"]
    LeftOut { left_out: usize, traces: usize, groups: String, place: String, reason: String },
}

impl Traces {
    fn write(&self, context: &Context) -> Result<Metrics> {
        let found = self.read()?;
        let policy = PolicyFolder::open(context.input("policy")?, context)?;
        let vocabulary = context.models.vocabulary(policy.model_digest(), policy.model())?;
        let chat = Chat::load_over(vocabulary, policy.model(), self.thinking)
            .at(|| policy.model().display().to_string())?;
        let toolbox = match context.read_optional::<Tool>("tools")? {
            Some(tools) => Some(Toolbox::of_table(&context.input("tools")?.path, &tools)?),
            None => None,
        };
        let exam = context.read_optional::<Scenario>("exam")?.unwrap_or_default();
        let exam = Facts::of_exam(&exam);
        let functions = toolbox.as_ref().map_or(&[][..], Toolbox::functions);
        let system = match self.prompt {
            Prompt::Agent => Some(system_prompt(self.system.as_deref(), context.text(SYSTEM), functions)?),
            Prompt::Trace | Prompt::None => None,
        };
        let writer =
            Writer { chat: &chat, toolbox: toolbox.as_ref(), system: system.as_deref(), settings: self };
        context.observer.phase("traces", found.len() as u64);
        let (mut seen, mut tasks) = (BTreeMap::new(), Tasks::default());
        let (mut rows, mut trajectories) = (Vec::new(), Vec::new());
        for RecordedTrace { place, format, trace } in found {
            if context.cancel.is_cancelled() {
                return Err(Interrupted.into());
            }
            let mut row = TraceRow { place, format: format.name().into(), ..TraceRow::default() };
            let written =
                trace.and_then(|trace| self.usable(trace, &exam, &mut seen, &row.place)).and_then(|trace| {
                    let (asked, correct) = (asked(&trace.messages), trace.correct);
                    let episode = writer.episode(trace)?;
                    Ok((correct, tasks.of(asked, &row.place), episode))
                });
            match written {
                Err(why) => row.left_out = Some(why),
                Ok((correct, task, mut episode)) => {
                    row.repairs = std::mem::take(&mut episode.repairs);
                    let trajectory = self.trajectory((&row.place, task), correct, episode);
                    (row.turns, row.calls) = (trajectory.turns, trajectory.calls);
                    row.tokens = trajectory.tokens.len() as u32;
                    row.learned = trajectory.sampled_tokens() as u32;
                    trajectories.push(trajectory);
                }
            }
            rows.push(row);
            context.observer.advance(1);
        }
        self.check(&rows)?;
        let reasons: Vec<&str> = rows.iter().filter_map(|row| row.left_out.as_deref()).collect();
        if !reasons.is_empty() {
            let (count, all) = (reasons.len(), rows.len());
            let groups = recorded::in_groups(reasons.into_iter());
            context.observer.note(&format!("{count} of {all} conversations are left out: {groups}"));
        }
        context.write("trajectories", &trajectories)?;
        context.write("traces", &rows)?;
        Ok(counts(&rows))
    }

    /// The traces of all files.
    fn read(&self) -> Result<Vec<RecordedTrace>> {
        let found = recorded::read_all(&self.files)?;
        if found.is_empty() {
            let paths: Vec<String> = self.files.iter().map(|path| path.display().to_string()).collect();
            return Err(TracesError::NoFiles { paths: paths.join(", ") }.into());
        }
        Ok(found)
    }

    /// A trace that may be learned from.
    fn usable(
        &self,
        trace: Trace,
        exam: &Facts,
        seen: &mut BTreeMap<String, String>,
        place: &str,
    ) -> Result<Trace, String> {
        let asked = first_of_user(&trace.messages).unwrap_or_default();
        if let Some(fact) = exam.in_conversation(&trace.messages) {
            return Err(format!("the exam asks what it asks: {}", fact.task));
        }
        if !self.allow_secrets
            && let Some(kind) = recorded::secret(&trace)
        {
            return Err(format!("it holds what looks like {kind}; `allow_secrets` keeps it"));
        }
        // The same task with the same calls, whatever else was said.
        let calls = trace.messages.iter().flat_map(|message| &message.calls);
        let calls: Vec<String> = calls.map(|call| json!(call.tool_call()).to_string()).collect();
        let same = format!("{} {}", folded(asked), calls.join(" "));
        if let Some(first) = seen.get(&same).filter(|_| !calls.is_empty()) {
            return Err(format!("it has the task and the calls of an earlier one: {first}"));
        }
        seen.insert(same, place.to_owned());
        Ok(trace)
    }

    fn check(&self, rows: &[TraceRow]) -> Result<(), TracesError> {
        let out = |row: &&TraceRow| row.left_out.is_some();
        let left_out = rows.iter().filter(out).count();
        let too_many = left_out as f64 > self.max_left_out * rows.len() as f64;
        let Some(first) = rows.iter().find(out).filter(|_| too_many || left_out == rows.len()) else {
            return Ok(());
        };
        let (place, reason) = (first.place.clone(), first.left_out.clone().unwrap_or_default());
        let groups = recorded::in_groups(rows.iter().filter_map(|row| row.left_out.as_deref()));
        Err(TracesError::LeftOut { left_out, traces: rows.len(), groups, place, reason })
    }

    /// The row of a trajectory. A trace counts as right unless it says otherwise: whoever gives it to learn from means so.
    fn trajectory(
        &self,
        (place, task): (&str, String),
        correct: Option<bool>,
        episode: Episode,
    ) -> Trajectory {
        let Episode { history, answer, answer_source, repairs: _ } = episode;
        let id = Encoder::new("mcprl trace v1").text(place).json(&json!(history.messages)).finish();
        let mut trajectory = Trajectory {
            id: id.to_string(),
            scenario_id: task,
            family: "traces".into(),
            split: "train".into(),
            policy: REFERENCE.into(),
            end: "completed".into(),
            answer,
            answer_source: answer_source.map(|source| source.name().to_owned()),
            correct: Some(correct.unwrap_or(true)),
            ..columns(history)
        };
        if self.loss == Loss::All {
            trajectory.sampled.fill(true);
        }
        trajectory
    }
}

/// Conversations by what their users ask, so that several on one task are episodes of one task.
#[derive(Default)]
struct Tasks(BTreeMap<String, String>);

impl Tasks {
    /// The id of a conversation's task: the place of the first conversation in which a user says the same. Short messages, such as
    /// greetings, count only if there is nothing else.
    fn of(&mut self, all: Vec<String>, place: &str) -> String {
        const WORDS: usize = 3;
        let is_long = |text: &&String| text.split_whitespace().nth(WORDS - 1).is_some();
        let long: Vec<&String> = all.iter().filter(is_long).collect();
        let asked = if long.is_empty() { all.iter().collect() } else { long };
        let known = asked.iter().find_map(|text| self.0.get(*text).cloned());
        let id = known.unwrap_or_else(|| place.to_owned());
        for text in asked {
            self.0.entry(text.clone()).or_insert_with(|| id.clone());
        }
        id
    }
}

/// What the users of a conversation say.
fn asked(messages: &[Message]) -> Vec<String> {
    let users = messages.iter().filter(|message| message.role == Role::User);
    users.map(|message| folded(&message.text)).collect()
}

fn counts(rows: &[TraceRow]) -> Metrics {
    let kept: Vec<&TraceRow> = rows.iter().filter(|row| row.left_out.is_none()).collect();
    let mean =
        |of: fn(&TraceRow) -> u32| kept.iter().map(|row| f64::from(of(row))).sum::<f64>() / kept.len() as f64;
    let learned: u64 = kept.iter().map(|row| u64::from(row.learned)).sum();
    metrics([
        ("traces", rows.len() as f64),
        ("episodes", kept.len() as f64),
        ("left_out", (rows.len() - kept.len()) as f64),
        ("repaired", kept.iter().filter(|row| !row.repairs.is_empty()).count() as f64),
        ("turns", mean(|row| row.turns)),
        ("calls", mean(|row| row.calls)),
        ("tokens", mean(|row| row.tokens)),
        ("learned", learned as f64),
    ])
}

impl StageKind for Traces {
    fn run<'a>(&'a self, context: &'a Context) -> StageFuture<'a, Result<Metrics>> {
        Box::pin(async { self.write(context) })
    }

    /// Checks that there are traces which can be read.
    fn preflight(&self, context: &PreflightContext<'_>) -> Preflight {
        let mut preflight = Preflight::default();
        if (context.finished)("trajectories").is_some() {
            return preflight;
        }
        let Some(found) = preflight.check("files", self.read()) else { return preflight };
        // A token is at least a byte.
        let bytes = |found: &RecordedTrace| {
            let messages = found.trace.as_ref().map_or(&[][..], |trace| &trace.messages);
            messages.iter().map(|message| message.json().to_string().len()).sum::<usize>()
        };
        let longest = found.iter().map(bytes).max().unwrap_or_default();
        let episodes = ExpectedEpisodes { count: found.len(), longest, group: None, altered: None };
        preflight.with("trajectories", ExpectedOutput::Episodes(episodes))
    }
}
