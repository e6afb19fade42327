//! Tasks that change something: a call of a tool that writes, and a reading call that shows the effect.
//!
//! Only on servers where every session has a state of its own. The effect becomes a check of the state afterwards.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    graph::{Graph, Seen},
    tools::Subject,
    wording, words,
};
use crate::{
    data::{Checks, StateCheck, TextCheck},
    error::Result,
    stage::scenarios::{
        candidate::{Candidate, Check, Pick, normal},
        runner::Runner,
    },
};

/// Calls of one tool that become tasks, and reading calls that may show their effects.
const OF_TOOL: usize = 24;
const PROBES: usize = 8;
/// Longest state that is compared.
const STATE_BYTES: usize = 4000;

fn reads(subject: &Subject) -> bool {
    subject.reads || words::is_reading(&subject.name)
}

/// Candidates from the calls of tools that may write.
pub async fn candidates(graph: &Graph, subjects: &[Subject], runner: &Runner<'_>) -> Result<Vec<Candidate>> {
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    let writing: Vec<&Seen> = graph
        .seen
        .iter()
        .filter(|seen| !subjects[seen.tool].reads && !reads(&subjects[seen.tool]))
        .filter(|seen| {
            let count = counts.entry(seen.tool).or_default();
            *count += 1;
            *count <= OF_TOOL
        })
        .collect();
    let probes: Vec<Vec<&Seen>> = writing.iter().map(|seen| probes(graph, subjects, seen)).collect();
    let sequences: Vec<Vec<_>> = writing
        .iter()
        .zip(&probes)
        .map(|(seen, probes)| {
            std::iter::once(*seen).chain(probes.iter().copied()).map(|seen| seen.call.clone()).collect()
        })
        .collect();
    runner.observer.phase("changes", sequences.len() as u64);
    let outcomes = runner.run(&sequences).await?;
    let mut candidates = Vec::new();
    for ((seen, probes), outcomes) in writing.iter().zip(&probes).zip(outcomes) {
        let after = probes.iter().zip(outcomes.iter().skip(1)).filter(|(_, after)| !after.is_error);
        let mut shown = after.filter(|(before, after)| {
            normal(&before.text) != normal(&after.text)
                && after.text.len() <= STATE_BYTES
                && !after.text.trim().is_empty()
        });
        let Some((probe, after)) = shown.next() else { continue };
        let subject = &subjects[seen.tool];
        let said: Vec<String> =
            seen.args.iter().map(|arg| format!("{} {}", words::spoken(&arg.name), arg.shown)).collect();
        let request = request(&subject.description);
        if request.is_empty() || said.iter().any(|said| said.len() > 200) {
            continue;
        }
        let behind =
            if said.is_empty() { String::new() } else { format!(" Use {}.", wording::joined(&said)) };
        let state = StateCheck {
            tool: subjects[probe.tool].server_name.clone(),
            arguments: probe.call.arguments.clone(),
            expect: TextCheck { equals: Some(after.text.clone()), ..TextCheck::default() },
        };
        candidates.push(Candidate {
            family: format!("{}: change seen by {}", subject.name, subjects[probe.tool].name),
            entity: seen
                .args
                .iter()
                .map(|arg| (arg.name.clone(), arg.leaf.clone().unwrap_or_else(|| arg.shown.clone())))
                .collect(),
            task: wording::sentence(&format!("{request}.{behind} Answer \"done\" when it is done.")),
            phrasing: "change 1".into(),
            calls: vec![seen.call.clone()],
            pick: Pick::Nothing,
            check: Check::None,
            checks: Some(Checks { state: vec![state], ..Checks::default() }),
            may_fail: false,
        });
    }
    Ok(candidates)
}

/// Reading calls that may show the effect of a call: those that share one of its values, or have no argument.
fn probes<'g>(graph: &'g Graph, subjects: &[Subject], seen: &Seen) -> Vec<&'g Seen> {
    let values: BTreeSet<&str> = seen.args.iter().filter_map(|arg| arg.leaf.as_deref()).collect();
    let folder = |path: &str| path.rsplit_once('/').map(|(folder, _)| folder.to_owned());
    let folders: BTreeSet<String> = values.iter().filter_map(|value| folder(value)).collect();
    let is_near = |other: &&Seen| {
        let leaves = || other.args.iter().filter_map(|arg| arg.leaf.as_deref());
        other.args.is_empty() || leaves().any(|leaf| values.contains(leaf) || folders.contains(leaf))
    };
    let is_reading = |other: &&Seen| other.tool != seen.tool && reads(&subjects[other.tool]);
    let mut of_tool: BTreeMap<usize, usize> = BTreeMap::new();
    let near = graph.seen.iter().filter(|other| is_reading(other) && is_near(other)).filter(|other| {
        let count = of_tool.entry(other.tool).or_default();
        *count += 1;
        *count <= 2
    });
    near.take(PROBES).collect()
}

/// The first sentence of a description as a request.
fn request(description: &str) -> String {
    let sentence = description.split(['\n', ';']).next().unwrap_or_default();
    let sentence = sentence.split(". ").next().unwrap_or_default().trim().trim_end_matches('.');
    let mut words: Vec<&str> = sentence.split_whitespace().take(24).collect();
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
            ("", ""),
        ] {
            assert_eq!(request(description), expected);
        }
    }
}
