//! A stage outside a run: nothing is resumed, and nothing is kept.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::{
    engine::EngineSpec,
    error::Result,
    hash::Digest,
    progress::Observer,
    stage::{Artifacts, Card, Context, Rows},
    store::Store,
};

/// What a stage with this card and these parameters sees, without inputs and servers. It writes into `folder`.
///
/// # Errors
/// If the folder for its outputs cannot be made.
pub fn outside_a_run(
    (card, params): (&Arc<Card>, &Map<String, Value>),
    store: &Store,
    engine: &EngineSpec,
    folder: &Path,
    notes: &Arc<Notes>,
) -> std::io::Result<Context> {
    let output_folder = folder.join("out");
    std::fs::create_dir_all(&output_folder)?;
    Ok(Context {
        stage: card.kind.clone(),
        card: card.clone(),
        params: params.clone(),
        inputs: BTreeMap::new(),
        output_folder,
        scratch: folder.join("scratch"),
        seed: 0,
        servers: None,
        engine: engine.clone(),
        artifacts: Arc::new(Stored(store.clone())),
        rows: Arc::new(NoRows),
        observer: notes.clone(),
        models: Arc::default(),
        prices: None,
        meter: Arc::default(),
        shard: None,
        cancel: CancellationToken::new(),
    })
}

struct NoRows;

impl Rows for NoRows {
    fn finished(&self) -> Result<BTreeMap<String, Vec<u8>>> {
        Ok(BTreeMap::new())
    }

    fn record(&self, _: &str, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn replace_checkpoint(&self, _: &dyn Fn(&Path) -> Result<()>) -> Result<()> {
        Ok(())
    }
}

struct Stored(Store);

impl Artifacts for Stored {
    fn folder(&self, digest: &Digest) -> Result<PathBuf> {
        Ok(self.0.intact(digest)?)
    }
}

/// The notes of a stage, for the end.
#[derive(Default)]
pub struct Notes(Mutex<Vec<String>>);

impl Notes {
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl Observer for Notes {
    fn note(&self, text: &str) {
        self.0.lock().push(text.to_owned());
    }
}
