//! `connect --drift`: whether the live server still answers as a cassette does.

use std::{collections::HashSet, path::Path};

use futures::StreamExt;
use serde::Serialize;

use crate::{
    error::{Diagnostic, Result},
    hash::Digest,
    mcp::{Cassette, McpError, Outcome, Pool, RecordedCall, ServerSpec, State, Transport},
    offered::tool_rows,
    plan::ToolChanges,
    ui::plural,
};

/// Sessions at once.
const AT_ONCE: usize = 4;
/// Characters of an answer that are quoted, and how many of them stand before the first difference.
const QUOTED: usize = 80;
const BEFORE: usize = 20;

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "drift", class = usage)]
pub enum DriftError {
    #[error("the run file plays back a cassette, so there is no live server to compare with")]
    #[hint = "remove `replay` from it, and run with `--set server.replay=…` where it is played"]
    Played,
    #[error("the cassette was recorded with state \"snapshot-dir\", whose folder is named in a run file")]
    #[hint = "give the run file in place of the server: `mcprl connect run.toml --drift …`"]
    Snapshot,
}

/// How a live server differs from a cassette.
#[derive(Debug, Serialize)]
pub struct Drift {
    tools: ToolChanges,
    sessions: usize,
    calls: usize,
    /// Recorded calls that were not made, because the server was lost.
    skipped: usize,
    differing: Vec<Difference>,
}

#[derive(Debug, Serialize)]
struct Difference {
    tool: String,
    arguments: serde_json::Value,
    /// How many calls of its session came before it.
    after: usize,
    recorded: Outcome,
    live: Outcome,
}

impl Drift {
    /// Makes the recorded calls in the order of their sessions, each with the isolation that it was recorded with.
    /// `is_of_file`: the server's settings are those of a run file, otherwise they are the cassette's.
    pub async fn run(spec: &ServerSpec, path: &Path, is_of_file: bool) -> Result<Self> {
        if matches!(spec.transport, Transport::Cassette(_)) {
            return Err(DriftError::Played.into());
        }
        let cassette = Cassette::load(path)?;
        let mut live = ServerSpec { record: None, expose: cassette.expose(), ..spec.clone() };
        if is_of_file {
            cassette.check(&live)?;
        } else {
            live.state = cassette.state().ok_or(DriftError::Snapshot)?;
            live.inputs = cassette.inputs().clone();
        }
        // Whole answers are compared.
        live.limits.result_bytes = usize::MAX;
        live.limits.tools.values_mut().for_each(|tool| tool.result_bytes = None);
        let recorded = ServerSpec { transport: Transport::Cassette(path.to_owned()), ..live.clone() };
        let pools = (Pool::new(live), Pool::new(recorded));
        let found = compare(&cassette, &pools).await;
        pools.0.close().await;
        pools.1.close().await;
        found
    }

    pub fn is_none(&self) -> bool {
        self.tools == ToolChanges::default() && self.differing.is_empty()
    }

    pub fn text(&self) -> String {
        let ToolChanges { added, removed, schemas, changed } = &self.tools;
        let mut text = String::new();
        for (what, names) in
            [("added", added), ("removed", removed), ("changed", schemas), ("changed", changed)]
        {
            if !names.is_empty() {
                text += &format!("{what}: {}\n", names.join(", "));
            }
        }
        if text.is_empty() {
            text += "the same tools\n";
        }
        let (calls, sessions) = (plural(self.calls, "call"), plural(self.sessions, "session"));
        text += &format!("{calls} in {sessions}, {} answered otherwise\n", self.differing.len());
        if self.skipped > 0 {
            let skipped = plural(self.skipped, "call");
            text += &format!("{skipped} not made, because the server was lost\n");
        }
        for Difference { tool, arguments, after, recorded, live } in &self.differing {
            let after = if *after > 0 { format!(" after {}", plural(*after, "call")) } else { String::new() };
            let (old, new) = quoted(recorded, live);
            text += &format!("\n{tool} {arguments}{after}\n  recorded: {old}\n  now:      {new}\n");
        }
        text
    }
}

/// `live` and `recorded`: the pools of the two.
async fn compare(cassette: &Cassette, (live, recorded): &(Pool, Pool)) -> Result<Drift> {
    let tools = {
        let (old, new) = (recorded.session().await?.tools().await?, live.session().await?.tools().await?);
        ToolChanges::between_lists(&tool_rows(old), &tool_rows(new))
    };
    let sessions = cassette.sessions();
    let is_sequence = cassette.state() != Some(State::ReadOnly);
    let owned = |calls: &Vec<&RecordedCall>| calls.iter().map(|call| (*call).clone()).collect();
    let plays: Vec<_> =
        sessions.iter().map(|calls| play((live, recorded), owned(calls), is_sequence)).collect();
    let mut played = futures::stream::iter(plays).buffered(AT_ONCE);
    let (mut calls, mut differing, mut reported) = (0, Vec::new(), HashSet::new());
    while let Some(pairs) = played.next().await {
        let pairs = pairs?;
        calls += pairs.len();
        // Several sessions may begin with the same call.
        let differs =
            |(key, pair): &(Digest, Difference)| pair.recorded != pair.live && reported.insert(*key);
        differing.extend(pairs.into_iter().filter(differs).map(|(_, pair)| pair));
    }
    let skipped = sessions.iter().map(Vec::len).sum::<usize>() - calls;
    Ok(Drift { tools, sessions: sessions.len(), calls, skipped, differing })
}

/// Makes the calls of a session, each with its key, as far as the live server can be reached.
async fn play(
    (live, recorded): (&Pool, &Pool),
    calls: Vec<RecordedCall>,
    is_sequence: bool,
) -> Result<Vec<(Digest, Difference)>> {
    let (mut server, recorded) = (live.session().await?, recorded.session().await?);
    let mut pairs = Vec::with_capacity(calls.len());
    for call in calls {
        let (key, RecordedCall { tool, arguments, .. }) = (call.key(), call);
        let recorded = recorded.call(&tool, arguments.clone()).await?;
        let answer = server.call(&tool, arguments.clone()).await;
        let is_lost = answer.is_err();
        let live_outcome =
            answer.unwrap_or_else(|cause: McpError| Outcome { text: cause.to_string(), is_error: true });
        let after = if is_sequence { pairs.len() } else { 0 };
        let arguments = arguments.into();
        pairs.push((key, Difference { tool, arguments, after, recorded, live: live_outcome }));
        if is_lost {
            // What follows in a session depends on the lost call, unless calls change nothing.
            server = match is_sequence {
                true => break,
                false => match live.session().await {
                    Ok(server) => server,
                    Err(_) => break,
                },
            };
        }
    }
    Ok(pairs)
}

/// Both answers around their first difference, on one line each.
fn quoted(recorded: &Outcome, live: &Outcome) -> (String, String) {
    let (old, new): (Vec<char>, Vec<char>) = (recorded.text.chars().collect(), live.text.chars().collect());
    let common = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let part = |text: &[char], is_error: bool| {
        let start = common.saturating_sub(BEFORE);
        let shown: String = text.iter().skip(start).take(QUOTED).collect();
        let before = if start > 0 { "…" } else { "" };
        let after = if text.len() > start + QUOTED { "…" } else { "" };
        let kind = if is_error { "error: " } else { "" };
        format!("{kind}{before}{}{after}", shown.replace('\n', " "))
    };
    (part(&old, recorded.is_error), part(&new, live.is_error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_quoted_around_their_first_difference() {
        let outcome = |text: String, is_error| Outcome { text, is_error };
        let (old, new) = (outcome("a\nb".into(), false), outcome("a\nc".into(), true));
        assert_eq!(quoted(&old, &new), ("a b".into(), "error: a c".into()));
        let same = "x".repeat(100);
        let (old, new) = (outcome(format!("{same}1"), false), outcome(format!("{same}2{same}"), false));
        let (old, new) = quoted(&old, &new);
        assert_eq!(old, format!("…{}1", "x".repeat(20)));
        assert_eq!(new, format!("…{}2{}…", "x".repeat(20), "x".repeat(59)));
    }
}
