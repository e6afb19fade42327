//! An up-to-date run: everything is as an earlier run of the same name left it.
//!
//! Such a run creates no folder. It adds a line to the earlier run's journal, and that run's links are those
//! it would create. Repeating a run a hundred times leaves one run folder.

use std::{collections::BTreeMap, path::PathBuf};

use super::{
    Ended, Event, Listener, Summary, folder,
    journal::{Entry, Journal},
};
use crate::{
    error::Result,
    hash::{Digest, Encoder},
    plan::{self, Completion, Ledger, NodeIndex, Plan, Readiness, Resample},
    store::{CachedResult, Cost, LastRun, Output, Store},
};

/// The earlier run, and the result of each stage.
pub struct Standing {
    pub id: String,
    pub path: PathBuf,
    nodes: Vec<(NodeIndex, Option<CachedResult>)>,
}

impl Standing {
    /// Reports the same events as a run that finds everything in the store.
    pub fn tell(&self, plan: &Plan, listener: &dyn Listener) -> Summary {
        let tell = |(index, known): &(NodeIndex, Option<CachedResult>)| {
            let id = plan.node(*index).id.as_str();
            match known {
                Some(known) => {
                    listener.event(&Event::Cached { id, metrics: &known.metrics, notes: &known.notes });
                    (id.to_owned(), Ended::Cached)
                }
                None => {
                    listener.event(&Event::Skipped { id });
                    (id.to_owned(), Ended::Skipped)
                }
            }
        };
        let nodes = self.nodes.iter().map(tell).collect();
        let mut saved = Cost::default();
        self.nodes.iter().filter_map(|(_, known)| known.as_ref()).for_each(|known| saved += known.cost);
        Summary {
            nodes,
            failures: Vec::new(),
            blocked: Vec::new(),
            interrupted: false,
            spent: Cost::default(),
            saved,
            traffic: None,
        }
    }
}

/// The newest finished run of this plan's name, if a run now would give the same results without running a
/// stage.
pub fn standing(plan: &Plan, store: &Store, resample: &[Resample]) -> Result<Option<Standing>> {
    let Some(last) = store.last_run(&plan.name) else { return Ok(None) };
    let Ok(path) = folder::existing(store, &last.id) else { return Ok(None) };
    let mut stat_cache = store.stat_cache(&plan.name);
    let mut ledger = Ledger::new(plan);
    let mut result = ResultDigest::new();
    let mut nodes = Vec::new();
    for index in plan.order() {
        match ledger.readiness(*index)? {
            Readiness::Waits(_) => return Ok(None),
            Readiness::Skipped => {
                ledger.complete(*index, Completion::Skipped);
                result.add(&plan.node(*index).id, None);
                nodes.push((*index, None));
            }
            Readiness::Ready(ready) => {
                let key = plan.fields(*index, &ready).key();
                if plan::forced(plan, *index, resample).is_some() {
                    return Ok(None);
                }
                let Ok((known, unsealed)) = stat_cache.lookup(store, &key) else { return Ok(None) };
                if !unsealed.is_empty() || plan.lacking(*index, &known.metrics).is_some() {
                    return Ok(None);
                }
                result.add(&plan.node(*index).id, Some((&key, &known.outputs)));
                ledger.done(*index, known.clone());
                nodes.push((*index, Some(known)));
            }
        }
    }
    if result.finish() != last.result {
        return Ok(None);
    }
    // Write first, then check again: a sweep may be removing the run or its artifacts. If nothing can be
    // written, nothing is removed either.
    let journal = path.join("journal.jsonl");
    let said =
        Journal::open(&journal).and_then(|journal| journal.add(Entry::Repeated { pid: std::process::id() }));
    store.after_sweep();
    let there =
        nodes.iter().filter_map(|(_, known)| known.as_ref()).all(|known| store.stands(&known.outputs));
    match said {
        Err(crate::store::StoreError::ReadOnly { .. }) => {}
        Err(_) => return Ok(None),
        Ok(()) if journal.is_file() && there => {}
        Ok(()) => return Ok(None),
    }
    // Without it, only the next check is slower.
    _ = store.save_stat_cache(&plan.name, &stat_cache);
    Ok(Some(Standing { id: last.id, path, nodes }))
}

/// Remembers the results of a finished run.
pub fn remember(store: &Store, ledger: &Ledger<'_>, id: &str, keys: &BTreeMap<String, Digest>) -> Result<()> {
    let plan = ledger.plan();
    let mut result = ResultDigest::new();
    for index in plan.order() {
        let node = &plan.node(*index).id;
        result.add(
            node,
            match ledger.get(*index) {
                Some(Completion::Done { outputs, .. }) => keys.get(node).map(|key| (key, outputs)),
                _ => None,
            },
        );
    }
    Ok(store.remember_run(&plan.name, &LastRun { id: id.to_owned(), result: result.finish() })?)
}

/// The digest over all stages in order, with their keys and outputs; a skipped stage has none.
struct ResultDigest(Encoder);

impl ResultDigest {
    fn new() -> Self {
        Self(Encoder::new("mcprl run result v2"))
    }

    fn add(&mut self, stage: &str, result: Option<(&Digest, &BTreeMap<String, Output>)>) {
        self.0.text(stage);
        match result {
            Some((key, outputs)) => {
                self.0.digest(key).object(outputs.len());
                for (port, output) in outputs {
                    self.0.text(port).digest(&output.digest);
                }
            }
            None => _ = self.0.bytes(b"skipped"),
        }
    }

    fn finish(self) -> Digest {
        self.0.finish()
    }
}
