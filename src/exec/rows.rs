//! The rows of a running stage: its own, and those left by others of its family.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    error::Result,
    hash::Digest,
    plan::KeyFields,
    stage::{Card, EarlierResult, Rows},
    store::{ActionRecord, Remainder, RowLog, Store},
};

pub struct StageRows {
    log: Arc<RowLog>,
    store: Store,
    /// Reuse nothing from results.
    is_rerun: bool,
    /// The output that holds the rows.
    port: Option<String>,
    /// Whether other stages can differ from it in their rows alone.
    has_family: bool,
}

impl StageRows {
    /// The rows of this draw. `is_rerun`: only rows recorded by an interrupted rerun count; all earlier ones are
    /// discarded. `part`: the log that this process records into.
    pub fn new(
        store: &Store,
        card: &Card,
        (fields, key): (&KeyFields, &Digest),
        draw: u64,
        (is_rerun, part): (bool, &str),
    ) -> Result<Self> {
        let log = store.rows(&fields.family(card), key, draw).part(part);
        if is_rerun {
            log.forget_before(&store.record_path(key))?;
        }
        let port = card.outputs.iter().find(|(_, port)| port.rows).map(|(name, _)| name.clone());
        let has_family =
            card.params.values().any(|param| param.rows) || card.inputs.values().any(|role| role.rows);
        Ok(Self { log: Arc::new(log), store: store.clone(), is_rerun, port, has_family })
    }

    /// Ends the log of a stage that was repeated outside a run, unless it is what a run with these parameters needs.
    pub fn end_repeated(&self, key: &Digest) -> Result<()> {
        match self.store.record(key) {
            Some(_) => Ok(self.log.end(Remainder::Nothing)?),
            None => Ok(()),
        }
    }

    /// The number of the stage's draw.
    pub fn draw(&self) -> u64 {
        self.log.draw()
    }

    /// The log, and which part of it to keep once this result is durable.
    pub fn ending(&self, record: &ActionRecord) -> (Arc<RowLog>, Remainder) {
        let remainder = match &self.port {
            _ if !self.has_family || record.withheld => Remainder::Nothing,
            Some(_) => Remainder::Names,
            None => Remainder::Rows,
        };
        (self.log.clone(), remainder)
    }
}

impl Rows for StageRows {
    fn finished(&self) -> Result<BTreeMap<String, Vec<u8>>> {
        let mut rows = if self.is_rerun { BTreeMap::new() } else { self.log.relatives()?.rows };
        rows.extend(self.log.finished()?);
        Ok(rows)
    }

    fn damage(&self) -> Vec<String> {
        self.log.damage()
    }

    fn record(&self, name: &str, row: &[u8]) -> Result<()> {
        Ok(self.log.record(name, row)?)
    }

    fn checkpoint(&self) -> Option<PathBuf> {
        self.log.checkpoint()
    }

    fn replace_checkpoint(&self, write: &dyn Fn(&Path) -> Result<()>) -> Result<()> {
        self.log.replace_checkpoint(write)
    }

    fn earlier(&self) -> Result<Vec<EarlierResult>> {
        let Some(port) = self.port.as_ref().filter(|_| !self.is_rerun) else { return Ok(Vec::new()) };
        let earlier = |(key, names): (Digest, BTreeSet<String>)| {
            let record = self.store.record(&key).filter(|record| !record.withheld)?;
            Some(EarlierResult { path: self.store.path(record.outputs.get(port)?), names })
        };
        Ok(self.log.relatives()?.finished.into_iter().filter_map(earlier).collect())
    }
}
