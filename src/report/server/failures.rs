//! The failed tasks of the final policy, by cause.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use super::cause::{self, CAUSES, Diagnosis};
use crate::data::{EpisodeRow, Scenario, first_of_user};

/// Most details of a cause.
const DETAILS: usize = 5;

/// A tool that was called where the reference solution calls another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Confusion {
    pub called: String,
    pub needed: String,
    pub tasks: u32,
}

/// Why tasks failed.
#[derive(Debug, Clone, Serialize)]
pub struct Cause {
    pub cause: &'static str,
    pub meaning: &'static str,
    pub tasks: u32,
    /// What it was in most of these tasks.
    pub details: Vec<Detail>,
    /// Some of these tasks.
    pub examples: Vec<String>,
}

/// What a call named or lacked, or what an error said, and in how many tasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Detail {
    pub detail: String,
    pub tasks: u32,
}

/// A wrong episode of the final policy.
pub struct Failure<'e> {
    pub task: String,
    pub scenario: &'e str,
    pub found: Diagnosis,
    pub called: BTreeSet<String>,
    pub needed: BTreeSet<String>,
    pub has_reference: bool,
}

/// One for each task that the policy got wrong, by its first wrong episode.
pub fn failures<'e>(episodes: &'e [EpisodeRow], scenarios: &'e [Scenario]) -> Vec<Failure<'e>> {
    let by_id: BTreeMap<&str, &Scenario> = scenarios.iter().map(|row| (row.id.as_str(), row)).collect();
    let mut seen = BTreeSet::new();
    let wrong =
        episodes.iter().filter(|row| row.correct == Some(false) && seen.insert(row.scenario_id.as_str()));
    wrong
        .map(|row| {
            let scenario = by_id.get(row.scenario_id.as_str()).copied();
            Failure {
                task: first_of_user(&row.messages).unwrap_or_default().to_owned(),
                scenario: &row.scenario_id,
                found: cause::cause(row, scenario),
                called: row
                    .messages
                    .iter()
                    .flat_map(|message| &message.calls)
                    .map(|call| call.name.clone())
                    .collect(),
                needed: scenario.map(reference_tools).unwrap_or_default(),
                has_reference: scenario.is_some_and(|scenario| scenario.reference.is_some()),
            }
        })
        .collect()
}

fn reference_tools(scenario: &Scenario) -> BTreeSet<String> {
    let calls = scenario.reference.as_deref().and_then(|text| serde_json::from_str::<Vec<Value>>(text).ok());
    calls.iter().flatten().filter_map(|call| call["name"].as_str().map(str::to_owned)).collect()
}

/// How often each detail occurs, the most frequent first.
pub fn details<'f>(of: impl Iterator<Item = &'f Failure<'f>>) -> Vec<Detail> {
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    of.filter_map(|failure| failure.found.detail.as_deref())
        .for_each(|detail| *counts.entry(detail).or_default() += 1);
    let mut details: Vec<Detail> =
        counts.into_iter().map(|(detail, tasks)| Detail { detail: detail.to_owned(), tasks }).collect();
    details.sort_by_key(|detail| std::cmp::Reverse(detail.tasks));
    details.truncate(DETAILS);
    details
}

pub fn causes(failed: &[Failure<'_>]) -> Vec<Cause> {
    let mut causes: Vec<Cause> = CAUSES
        .into_iter()
        .map(|(cause, meaning)| {
            let of = || failed.iter().filter(|failure| failure.found.cause == cause);
            let examples = of().take(3).map(|failure| failure.task.clone()).collect();
            Cause { cause, meaning, tasks: of().count() as u32, details: details(of()), examples }
        })
        .filter(|cause| cause.tasks > 0)
        .collect();
    causes.sort_by_key(|cause| std::cmp::Reverse(cause.tasks));
    causes
}

pub fn confusions(failed: &[Failure<'_>]) -> Vec<Confusion> {
    let mut counts: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for failure in failed.iter().filter(|failure| failure.found.cause == "tool choice") {
        for needed in failure.needed.difference(&failure.called) {
            for called in failure.called.difference(&failure.needed).filter(|name| *name != "complete_task") {
                counts.entry((called, needed)).or_default().insert(failure.scenario);
            }
        }
    }
    let mut found: Vec<Confusion> = counts
        .into_iter()
        .map(|((called, needed), tasks)| Confusion {
            called: called.to_owned(),
            needed: needed.to_owned(),
            tasks: tasks.len() as u32,
        })
        .collect();
    found.sort_by_key(|confusion| std::cmp::Reverse(confusion.tasks));
    found
}
