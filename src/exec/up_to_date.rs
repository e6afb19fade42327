//! An up-to-date run: everything is as an earlier run of the same name left it.
//!
//! Such a run creates no folder. It adds a line to the earlier run's journal, and that run's links are those
//! it would create. Repeating a run a hundred times leaves one run folder.

use std::path::PathBuf;

use super::{
    Event, IdleLoop, Listener, StageOutcome, Summary, folder, history, idle::Updates, journal::Journal,
};
use crate::{
    error::Result,
    hash::Digest,
    plan::{Ledger, LoopResult, Plan, Resample, Resolution},
    store::{CachedResult, Store, StoreError},
};

/// The earlier run, and the result of each stage; none if it was skipped.
pub struct UpToDate {
    pub id: String,
    pub path: PathBuf,
    nodes: Vec<(String, Option<(Digest, CachedResult)>)>,
    idle: Vec<IdleLoop>,
    loop_results: Vec<LoopResult>,
}

impl UpToDate {
    /// Reports the same events as a run that finds everything in the store.
    pub fn report(&self, listener: &dyn Listener) -> Summary {
        let (idle, loop_results) = (self.idle.clone(), self.loop_results.clone());
        let mut summary = Summary { idle, loop_results, ..Summary::default() };
        for (id, result) in &self.nodes {
            let id = id.clone();
            let outcome = match result.clone() {
                Some((key, result)) => {
                    summary.saved += result.cost;
                    listener.event(&Event::Cached { id: id.clone(), key, result });
                    StageOutcome::Cached
                }
                None => {
                    listener.event(&Event::Skipped { id: id.clone() });
                    StageOutcome::Skipped
                }
            };
            summary.nodes.push((id, outcome));
        }
        summary
    }
}

/// The newest finished run of this plan's name, if a run now would give the same results without running a
/// stage.
pub fn up_to_date(plan: &Plan, store: &Store, resample: &[Resample]) -> Result<Option<UpToDate>> {
    let Some(id) = store.last_run(&plan.name) else { return Ok(None) };
    let Ok(path) = folder::existing(store, &id) else { return Ok(None) };
    let journal = path.join("journal.jsonl");
    let mut before = history::stages(&journal);
    let mut ledger = Ledger::new(plan, store);
    let (mut nodes, mut updates) = (Vec::new(), Updates::default());
    for index in plan.order() {
        let cached = ledger.resolve(*index, resample, |job| {
            let sealed = job.cached(plan, store).filter(|(_, unsealed)| unsealed.is_empty());
            Ok(sealed.map(|(record, _)| record.into()))
        })?;
        let node = plan.node(*index).id.clone();
        let Some(stage) = before.remove(&node) else { return Ok(None) };
        let outputs = stage.result.map(|result| result.outputs);
        match (cached, stage.outcome) {
            (Resolution::Skipped, StageOutcome::Skipped) => nodes.push((node, None)),
            (Resolution::Cached(key, result), StageOutcome::Ran | StageOutcome::Cached)
                if stage.key == Some(key) && outputs.as_ref() == Some(&result.outputs) =>
            {
                updates.add(plan, *index, &result.metrics, &result.notes);
                nodes.push((node, Some((key, result))));
            }
            _ => return Ok(None),
        }
    }
    if !before.is_empty() {
        return Ok(None);
    }
    // Write first, then check again: a sweep may be removing the run or its artifacts. If nothing can be
    // written, nothing is removed either.
    let written = Journal::repeated(&journal);
    store.after_sweep();
    let mut results = nodes.iter().filter_map(|(_, result)| result.as_ref());
    match written {
        Err(StoreError::ReadOnly { .. }) => {}
        Ok(()) if journal.is_file() && results.all(|(_, result)| store.has_artifacts(&result.outputs)) => {}
        _ => return Ok(None),
    }
    Ok(Some(UpToDate { id, path, nodes, idle: updates.idle(plan), loop_results: ledger.loop_results() }))
}
