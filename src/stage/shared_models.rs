//! What stays in memory between the stages of a run. It changes no result.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use parking_lot::Mutex;

use crate::{
    chat::{ChatError, Vocabulary},
    engine::ModelCache,
    hash::Digest,
};

/// Locked while it is being read.
type Cell = Arc<Mutex<Option<Arc<Vocabulary>>>>;

/// Owned by the run and passed to each stage.
#[derive(Default)]
pub struct SharedModels {
    pub bases: Arc<ModelCache>,
    /// By model digest.
    vocabularies: Mutex<BTreeMap<Digest, Cell>>,
}

impl SharedModels {
    /// The tokenizer of a model, from this folder. Read only once, even with concurrent callers.
    pub fn vocabulary(&self, model: Digest, folder: &Path) -> Result<Arc<Vocabulary>, ChatError> {
        let cell = self.vocabularies.lock().entry(model).or_default().clone();
        let mut slot = cell.lock();
        if let Some(vocabulary) = &*slot {
            return Ok(vocabulary.clone());
        }
        let vocabulary = Arc::new(Vocabulary::of(folder)?);
        *slot = Some(vocabulary.clone());
        Ok(vocabulary)
    }

    pub fn is_empty(&self) -> bool {
        self.bases.is_empty() && self.vocabularies.lock().is_empty()
    }

    /// Releases everything except what belongs to these models.
    pub fn retain(&self, wanted: impl Fn(&Digest) -> bool) {
        self.vocabularies.lock().retain(|model, _| wanted(model));
        self.bases.retain(wanted);
    }
}
