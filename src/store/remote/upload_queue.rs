//! Results that a remote does not have yet, by remote: an empty file per key, `unpushed/<digest of its name>/<key>`,
//! beside the name itself in the file `place`.
//!
//! It is there before a result is handed on and goes once the remote has it, so that neither a remote that is away nor a
//! kill loses one. Losing a note costs a push, no result; there are never more than there are records.

use std::{
    io::ErrorKind,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use super::{Pushed, Remote, RemotePlace};
use crate::{
    hash::{Digest, Encoder},
    store::{Lookup, Store, StoreError},
};

/// After a try that failed, for runs that have nothing else to do.
const REST: Duration = Duration::from_secs(60);
const PLACE: &str = "place";

/// What became of handing on what waited.
#[derive(Debug, Default)]
pub struct DrainReport {
    pub given: usize,
    pub bytes: u64,
    /// The remote had them, as they are here.
    pub there: usize,
    /// The remote has others under their keys, which stand there; those here stay.
    pub differing: usize,
    /// Why the rest still waits.
    pub away: Option<StoreError>,
}

/// What waits to be handed to one remote.
pub struct UploadQueue {
    folder: PathBuf,
    /// As the run file names it.
    pub place: String,
}

impl Store {
    pub fn waiting(&self, place: &RemotePlace) -> UploadQueue {
        self.waiting_for(place.to_string())
    }

    fn waiting_for(&self, place: String) -> UploadQueue {
        let id = Encoder::new("mcprl remote name v1").text(&place).finish().short();
        UploadQueue { folder: self.root().join("unpushed").join(id), place }
    }

    /// Every remote that was to be handed results from this store, whether or not any still wait.
    pub fn all_waiting(&self) -> Vec<UploadQueue> {
        let items = std::fs::read_dir(self.root().join("unpushed")).into_iter().flatten().flatten();
        let places = items.filter_map(|item| std::fs::read_to_string(item.path().join(PLACE)).ok());
        let mut all: Vec<UploadQueue> = places.map(|place| self.waiting_for(place)).collect();
        all.sort_by(|one, other| one.place.cmp(&other.place));
        all
    }
}

impl UploadQueue {
    /// Notes a result before it is handed on.
    pub fn note(&self, key: &Digest) -> Result<(), StoreError> {
        let path = self.folder.join(key.to_string());
        let create = || std::fs::File::create(&path).map(drop);
        let first = || {
            std::fs::create_dir_all(&self.folder)?;
            std::fs::write(self.folder.join(PLACE), &self.place)?;
            create()
        };
        create().or_else(|_| first()).map_err(|cause| StoreError::writing(path, cause))
    }

    /// The remote has it, or will never.
    pub fn forget(&self, key: &Digest) {
        _ = std::fs::remove_file(self.folder.join(key.to_string()));
    }

    /// Nothing waits any more, and the remote is no longer known here.
    ///
    /// # Errors
    /// If that cannot be written.
    pub fn drop_all(&self) -> Result<(), StoreError> {
        match std::fs::remove_dir_all(&self.folder) {
            Err(cause) if cause.kind() != ErrorKind::NotFound => {
                Err(StoreError::writing(&self.folder, cause))
            }
            _ => Ok(()),
        }
    }

    pub fn keys(&self) -> Vec<Digest> {
        let items = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut keys: Vec<Digest> =
            items.filter_map(|item| item.file_name().to_str()?.parse().ok()).collect();
        keys.sort();
        keys
    }

    /// Whether some wait, and no try failed a short while ago.
    pub fn is_due(&self) -> bool {
        let failed = std::fs::metadata(self.folder.join("failed")).and_then(|failed| failed.modified());
        let since = failed.ok().and_then(|at| SystemTime::now().duration_since(at).ok());
        since.is_none_or(|since| since > REST) && !self.keys().is_empty()
    }

    /// Notes that a try failed.
    pub fn rest(&self) {
        _ = std::fs::write(self.folder.join("failed"), "");
    }
}

impl Remote {
    /// Hands on what earlier pushes could not, until all is there, the remote is away, or `stop` says so.
    pub fn push_waiting(&self, store: &Store, stop: &dyn Fn() -> bool) -> Result<DrainReport, StoreError> {
        let mut handed = DrainReport::default();
        let waiting = store.waiting(&self.spec.place);
        for key in waiting.keys() {
            if stop() || !self.spec.push || !self.state().writing.is_open() {
                break;
            }
            let Lookup::Hit(record) = store.lookup(&key) else {
                // Removed since, or worked anew.
                waiting.forget(&key);
                continue;
            };
            let before = self.traffic().pushed_bytes;
            let pushed = match self.push(store, &record, false) {
                // A sweep took it away meanwhile: nobody said that it is used.
                Err(_) if !matches!(store.lookup(&key), Lookup::Hit(_)) => continue,
                pushed => pushed?,
            };
            handed.bytes += self.traffic().pushed_bytes - before;
            match pushed {
                Pushed::Done => handed.given += 1,
                Pushed::Differs { .. } => handed.differing += 1,
                Pushed::Nothing if self.state().writing.is_open() => handed.there += 1,
                Pushed::Nothing => {}
                Pushed::Away(cause) => handed.away = Some(cause),
            }
        }
        if !self.state().writing.is_open() {
            waiting.rest();
        }
        Ok(handed)
    }

    /// Whether it is to be handed results, some wait, and it was not away a short while ago.
    pub fn is_due(&self, store: &Store) -> bool {
        self.spec.push && store.waiting(&self.spec.place).is_due()
    }

    /// How many results wait to be handed on.
    pub fn count_waiting(&self, store: &Store) -> usize {
        if self.spec.push { store.waiting(&self.spec.place).keys().len() } else { 0 }
    }
}
