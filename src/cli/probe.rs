//! `connect --probe-state`: whether episodes on a server see each other's effects.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    error::{Diagnostic, Result, did_you_mean},
    mcp::{self, Outcome, ServerSpec, Session},
    offered::tool_rows,
    tasks::explored::reads_by_name,
    text::start_of,
};

/// Sessions that play the episode at the same time.
const AT_ONCE: usize = 4;
/// Characters of an answer that are quoted.
const QUOTED: usize = 80;

/// One call of an episode, a line of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    tool: String,
    #[serde(default)]
    arguments: Map<String, Value>,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "probe", class = usage)]
pub enum ProbeError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path}:{line} is not a call: {reason}")]
    #[hint = "each line is one call of an episode: {{\"tool\": \"add_note\", \"arguments\": {{\"text\": \"x\"}}}}"]
    Line { path: PathBuf, line: usize, reason: String },
    #[error("{path} has no calls")]
    #[hint = "each line is one call of an episode: {{\"tool\": \"add_note\", \"arguments\": {{\"text\": \"x\"}}}}"]
    Empty { path: PathBuf },
    #[error("{path} calls `{tool}`, which is not a tool of the server")]
    #[hint("did you mean `{meant}`?" if let Some(meant) = meant)]
    NoTool { path: PathBuf, tool: String, meant: Option<String> },
}

/// What the replays of an episode showed.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Probe {
    calls: usize,
    /// Calls that failed in the first session.
    failed: usize,
    /// Tools with a call that does not stand between two equal reads, and do not say that they read.
    unproven: Vec<String>,
    /// The first call that was answered otherwise than in the first session, where one was:
    /// again in the same session, in a later session, and in one of several sessions at once.
    #[serde(rename = "same_session_differs")]
    repeated: Option<Difference>,
    #[serde(rename = "later_session_differs")]
    later: Option<Difference>,
    #[serde(rename = "concurrent_session_differs")]
    concurrent: Option<Difference>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Difference {
    /// Counted from 1.
    call: usize,
    tool: String,
    first: String,
    other: String,
}

impl Probe {
    /// Plays the calls of the file in a session, again in that session, in another one, and in several at once.
    pub async fn run(spec: &ServerSpec, path: &Path) -> Result<Self> {
        let calls = calls(path)?;
        let session = Session::connect(spec).await?;
        let tools = session.tools().await?;
        let names = || tools.iter().filter(|tool| !tool.synthetic).map(|tool| tool.server_name.as_str());
        for Call { tool, .. } in &calls {
            if !names().any(|name| name == tool) {
                let meant = did_you_mean(tool, names()).map(str::to_owned);
                return Err(ProbeError::NoTool { path: path.to_owned(), tool: tool.clone(), meant }.into());
            }
        }
        let first = play(&session, &calls).await;
        let again = play(&session, &calls).await;
        session.close().await;
        let (first, again) = (first?, again?);
        let in_session = async || {
            let session = Session::connect(spec).await?;
            let answers = play(&session, &calls).await;
            session.close().await;
            answers
        };
        let later = in_session().await?;
        let concurrent = futures::future::try_join_all((0..AT_ONCE).map(|_| in_session())).await?;
        let differs = |other: &Vec<Outcome>| difference(&calls, &first, other);
        Ok(Self {
            calls: calls.len(),
            unproven: unproven(tools.clone(), &calls, &first),
            failed: first.iter().filter(|outcome| outcome.is_error).count(),
            repeated: differs(&again),
            later: differs(&later),
            concurrent: concurrent.iter().find_map(differs),
        })
    }

    pub fn json(&self) -> Value {
        let mut json = json!(self);
        json["leaks"] = self.leaks().into();
        json
    }

    /// Whether a session saw effects of another one.
    pub fn leaks(&self) -> bool {
        self.later.is_some() || self.concurrent.is_some()
    }

    pub fn text(&self) -> String {
        let line = |what: &str, found: &Option<Difference>| match found {
            None => format!("{what}: the same answers\n"),
            Some(Difference { call, tool, first, other }) => {
                format!("{what}: call {call} ({tool}) differs\n  first: {first}\n  now:   {other}\n")
            }
        };
        let advice = match (self.leaks(), &self.repeated) {
            (false, None) if self.failed > 0 => {
                "Some calls failed, so this shows nothing. Use calls that succeed, some of them with an effect."
            }
            (true, _) => {
                "Sessions see each other's effects, or answers vary by themselves (times, random ids). Use state = \
                 \"reset-tool\", \"snapshot-dir\" or a `command` that starts clean."
            }
            (false, Some(_)) => {
                "Sessions do not see each other's effects: \"fresh-process\" (`command`) or \"fresh-session\" (`url`) keep \
                 episodes apart."
            }
            (false, None) if !self.unproven.is_empty() => &format!(
                "Nothing differs, but that does not show that {} changes nothing: before and after it, make the same call of \
                 a tool that reads what it may change.",
                self.unproven.join(", ")
            ),
            (false, None) => {
                "Each call stands between two equal reads and changes nothing that they show. If that is true of all tools, state = \
                 \"read-only\" is the fastest."
            }
        };
        format!(
            "{} calls, {} failed\n{}{}{}{advice}\n",
            self.calls,
            self.failed,
            line("again in the same session", &self.repeated),
            line("in a later session", &self.later),
            line(&format!("in {AT_ONCE} sessions at once"), &self.concurrent),
        )
    }
}

/// The tools of calls that are not shown to change nothing: those that do not say that they read, and do not stand between two equal
/// reads.
fn unproven(tools: Vec<mcp::Tool>, calls: &[Call], answers: &[Outcome]) -> Vec<String> {
    let tools = tool_rows(tools);
    let reads = |call: &Call| {
        let tool = tools.iter().find(|tool| tool.server_name == call.tool);
        tool.is_some_and(|tool| tool.hint("readOnlyHint").unwrap_or_else(|| reads_by_name(&tool.name)))
    };
    let is_same_read = |before: usize, after: usize| {
        let (one, other) = (&calls[before], &calls[after]);
        one.tool == other.tool
            && one.arguments == other.arguments
            && reads(one)
            && !answers[before].is_error
            && answers[before] == answers[after]
    };
    let mut names: Vec<String> = Vec::new();
    for (place, call) in calls.iter().enumerate().filter(|(_, call)| !reads(call)) {
        let is_proven =
            (0..place).any(|before| (place + 1..calls.len()).any(|after| is_same_read(before, after)));
        if !is_proven && !names.contains(&call.tool) {
            names.push(call.tool.clone());
        }
    }
    names
}

fn calls(path: &Path) -> Result<Vec<Call>, ProbeError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| ProbeError::Read { path: path.to_owned(), source })?;
    let mut calls = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |reason| ProbeError::Line { path: path.to_owned(), line: index + 1, reason };
        calls.push(serde_json::from_str(line).map_err(|cause| wrong(cause.to_string()))?);
    }
    if calls.is_empty() { Err(ProbeError::Empty { path: path.to_owned() }) } else { Ok(calls) }
}

async fn play(session: &Session, calls: &[Call]) -> Result<Vec<Outcome>> {
    let mut answers = Vec::with_capacity(calls.len());
    for call in calls {
        answers.push(session.call(&call.tool, call.arguments.clone()).await?);
    }
    Ok(answers)
}

fn difference(calls: &[Call], first: &[Outcome], other: &[Outcome]) -> Option<Difference> {
    let index = first.iter().zip(other).position(|(first, other)| first != other)?;
    let quoted = |outcome: &Outcome| start_of(&outcome.text.replace('\n', " "), QUOTED);
    Some(Difference {
        call: index + 1,
        tool: calls[index].tool.clone(),
        first: quoted(&first[index]),
        other: quoted(&other[index]),
    })
}
