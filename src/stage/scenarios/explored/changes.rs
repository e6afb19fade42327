//! Tasks that change something: a call of a tool that writes, and a reading call that shows the effect.
//!
//! Only on servers where every session has a state of its own. The effect becomes a check of the state afterwards.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    graph::{Arg, Effect, Graph, SuccessfulCall},
    tools::ToolProfile,
    wording,
};
use crate::{
    chat::ToolCall,
    data::{Checks, StateCheck, TextCheck},
    judge::truth,
    mcp::{Outcome, plain},
    stage::scenarios::{
        admission::Today,
        candidate::{AnswerRule, Candidate, Check},
        words,
    },
};

/// Calls of one tool that become tasks, and reading calls that may show their effects.
const OF_TOOL: usize = 24;
const PROBES: usize = 8;
/// Longest state that is compared.
const STATE_BYTES: usize = 4000;

/// The first probe that shows something else than before. `after`: the probes' outcomes behind the call.
pub fn effect(graph: &Graph, call: usize, probes: &[usize], after: &[Outcome]) -> Option<Effect> {
    // A state with the time of the call would be another one next time.
    let today = Today::now();
    let shown = |(probe, after): &(&usize, &Outcome)| {
        !after.is_error
            && after.text.len() <= STATE_BYTES
            && !after.text.trim().is_empty()
            && !today.is_in(&after.text)
            && !truth::text_holds(&equals(&after.text), &graph.seen[**probe].text)
    };
    let (probe, after) = probes.iter().zip(after).find(shown)?;
    Some(Effect { call, probe: *probe, after: after.text.clone() })
}

fn equals(text: &str) -> TextCheck {
    TextCheck { equals: Some(text.to_owned()), ..TextCheck::default() }
}

/// Whether a tool probably changes nothing.
pub fn reads(profile: &ToolProfile) -> bool {
    profile.reads || words::is_reading(&profile.name)
}

/// Whether a call that was seen is one of a tool that changes something: its result is no fact to ask about.
pub fn writes(graph: &Graph, profiles: &[ToolProfile], call: usize) -> bool {
    let tool = graph.seen[call].tool;
    let profile = &profiles[tool];
    !profile.reads
        && (profile.writes || graph.effects.iter().any(|effect| graph.seen[effect.call].tool == tool))
}

/// Candidates from the effects that were seen.
pub fn candidates(graph: &Graph, profiles: &[ToolProfile]) -> Vec<Candidate> {
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    let mut candidates = Vec::new();
    for Effect { call, probe, after } in &graph.effects {
        let (seen, probe) = (&graph.seen[*call], &graph.seen[*probe]);
        let count = counts.entry(seen.tool).or_default();
        *count += 1;
        if *count > OF_TOOL {
            continue;
        }
        let profile = &profiles[seen.tool];
        let request = request(&profile.description);
        if request.is_empty() || seen.args.iter().any(|arg| arg.shown.len() > 200) {
            continue;
        }
        let text = match seen.args.as_slice() {
            // A structure names its own parts.
            [only] if only.leaf.is_none() => format!("{request}: {}.", only.shown),
            args => {
                let said = |arg: &Arg| format!("the {} is {}", words::spoken_param(&arg.name), arg.shown);
                let said = wording::joined(&args.iter().map(said).collect::<Vec<_>>());
                let behind = if said.is_empty() { said } else { format!(" {}.", wording::sentence(&said)) };
                format!("{request}.{behind}")
            }
        };
        let state = StateCheck {
            tool: profiles[probe.tool].server_name.clone(),
            arguments: probe.call.arguments.clone(),
            expect: equals(after),
        };
        candidates.push(Candidate {
            family: format!("{}: change seen by {}", profile.name, profiles[probe.tool].name),
            entity: seen.args.iter().map(Arg::said).collect(),
            task: wording::sentence(&format!("{text} Answer \"done\" when it is done.")),
            phrasing: "change 1".into(),
            calls: vec![seen.call.clone()],
            rule: AnswerRule::Nothing,
            check: Check::None,
            checks: Some(Checks { state: vec![state], ..Checks::default() }),
            ..Candidate::default()
        });
    }
    candidates
}

/// Reading calls that may show the effect of a call: those that share one of its values, or have no argument.
pub fn probes(graph: &Graph, profiles: &[ToolProfile], tool: usize, call: &ToolCall) -> Vec<usize> {
    if reads(&profiles[tool]) {
        return Vec::new();
    }
    let mut values = BTreeSet::new();
    call.arguments.values().for_each(|value| add_values(value, &mut values));
    let folder = |path: &str| path.rsplit_once('/').map(|(folder, _)| folder.to_owned());
    let folders: BTreeSet<String> = values.iter().filter_map(|value| folder(value)).collect();
    let is_near = |other: &SuccessfulCall| {
        let leaves = || other.args.iter().filter_map(|arg| arg.leaf.as_deref());
        other.args.is_empty() || leaves().any(|leaf| values.contains(leaf) || folders.contains(leaf))
    };
    let is_reading = |other: &SuccessfulCall| other.tool != tool && reads(&profiles[other.tool]);
    let mut of_tool: BTreeMap<usize, usize> = BTreeMap::new();
    let mut near: Vec<(usize, usize)> = Vec::new();
    for (index, other) in
        graph.seen.iter().enumerate().filter(|(_, other)| is_reading(other) && is_near(other))
    {
        let count = of_tool.entry(other.tool).or_default();
        *count += 1;
        near.push((*count, index));
    }
    // One of each tool, then a second one.
    near.retain(|(count, _)| *count <= 2);
    near.sort_unstable();
    near.into_iter().map(|(_, index)| index).take(PROBES).collect()
}

/// The scalars in a value, as texts.
fn add_values(value: &Value, values: &mut BTreeSet<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| add_values(item, values)),
        Value::Object(fields) => fields.values().for_each(|field| add_values(field, values)),
        scalar => _ = values.insert(plain(scalar)),
    }
}

/// The first sentence of a description as a request.
fn request(description: &str) -> String {
    let mut words = words::first_sentence(description);
    words::cut_asides(&mut words);
    words.retain(|word| *word != "multiple");
    words.truncate(24);
    let Some(first) = words.first().copied() else { return String::new() };
    // `Records changes` is `Record changes`.
    let base = match first.to_lowercase() {
        verb if verb.ends_with("ches") || verb.ends_with("shes") => first[..first.len() - 2].to_owned(),
        verb if verb.ends_with('s') && !verb.ends_with("ss") => first[..first.len() - 1].to_owned(),
        _ => first.to_owned(),
    };
    words[0] = &base;
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_becomes_a_request() {
        for (description, expected) in [
            ("Records changes to the repository", "Record changes to the repository"),
            ("Create a new directory. Fails if it exists.", "Create a new directory"),
            ("Switches branches", "Switch branches"),
            ("Create a new directory or ensure a directory exists", "Create a new directory"),
            ("Creates a new branch from an optional base branch", "Create a new branch"),
            ("", ""),
        ] {
            assert_eq!(request(description), expected);
        }
    }
}
