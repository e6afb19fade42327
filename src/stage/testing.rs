//! What tests of stages stand on: a context from a card's defaults, with records kept in memory.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{Artifacts, Cards, Context, Input, Rows};
use crate::{engine::EngineSpec, error::Result, hash::Digest, progress::Silent};

/// Rows in memory.
#[derive(Default)]
pub struct Ledger(Mutex<BTreeMap<String, Vec<u8>>>);

impl Rows for Ledger {
    fn finished(&self) -> Result<BTreeMap<String, Vec<u8>>> {
        Ok(self.0.lock().unwrap().clone())
    }

    fn record(&self, key: &str, row: &[u8]) -> Result<()> {
        self.0.lock().unwrap().insert(key.to_owned(), row.to_owned());
        Ok(())
    }
}

struct NoArtifacts;

impl Artifacts for NoArtifacts {
    fn folder(&self, digest: &Digest) -> Result<PathBuf> {
        panic!("no artifact {digest} in this test")
    }
}

/// The context of a stage of this kind: its card's defaults, with `params` over them.
pub fn context(kind: &str, inputs: &[(&str, &Path)], output: &Path, params: Value) -> (Context, Arc<Ledger>) {
    let card = Cards::new(None).get(kind).unwrap().unwrap();
    let defaults =
        card.params.iter().filter_map(|(name, param)| Some((name.clone(), param.default.clone()?)));
    let given = params.as_object().cloned().unwrap_or_default();
    let input = |(role, path): &(&str, &Path)| {
        let input = Input { name: (*role).into(), digest: Digest::of(role.as_bytes()), path: (*path).into() };
        ((*role).to_owned(), vec![input])
    };
    std::fs::create_dir_all(output).unwrap();
    let rows = Arc::new(Ledger::default());
    let context = Context {
        stage: kind.into(),
        params: defaults.chain(given).collect(),
        inputs: inputs.iter().map(input).collect(),
        output: output.into(),
        files: card.texts.clone(),
        seed: 7,
        server: None,
        engine: EngineSpec { devices: vec!["cpu".into()], threads: Some(2), dtype: None, kv_cache_mib: None },
        artifacts: Arc::new(NoArtifacts),
        rows: rows.clone(),
        observer: Arc::new(Silent),
        held: Arc::default(),
        meter: Arc::default(),
        cancel: CancellationToken::new(),
    };
    (context, rows)
}
