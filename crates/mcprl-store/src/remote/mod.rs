//! A shared cache behind the local store: results from and for other machines.
//!
//! Stages use only the local store. A result missing there is requested from the remote, once per key and
//! run, and published like a stage's own result: written to a temporary folder, hashed while written, synced,
//! renamed, the record last. Finished results are pushed in the same order, so a record never names a missing
//! object.
//!
//! | object | holds |
//! |---|---|
//! | `v1/ac/<key>.json` | digest of the rest, newline, the action record and the files of its artifacts |
//! | `v1/blobs/ab/<digest>` | the bytes of one file |
//! | `tmp/` | in a remote folder: files being written |
//!
//! A record is created if absent. A machine that finds one with other outputs gets a report and uses those. A
//! record or blob that is missing, cut short or does not match its name is a miss with a message, and the
//! next machine that has the bytes replaces it. The remote never fails a run: if it is unreachable or denies
//! access, this is reported once, and it is tried again after a while.
//!
//! Results that could not be pushed are queued (`upload_queue.rs`). A later run or `mcprl cache push` pushes
//! them.
//!
//! Nothing is ever removed. An object removed from outside, for example by a bucket's expiry rules, is a
//! miss.
//!
//! There is no protection against a malicious writer: bytes are checked against the record, but records are
//! not authenticated.

mod folder;
mod objects;
mod place;
#[cfg_attr(not(feature = "s3"), path = "s3_disabled.rs")]
mod s3;
#[cfg(test)]
#[cfg(feature = "s3")]
mod s3_tests;
mod shared;
#[cfg(test)]
mod tests;
mod upload_queue;

use std::{
    collections::BTreeSet,
    io::Write,
    path::{Component, Path},
    sync::OnceLock,
    time::{Duration, Instant},
};

use mcprl_base::hash::Digest;
use parking_lot::{Mutex, MutexGuard};

pub use place::{InvalidRemote, RemoteLocation, RemoteSpec};
pub use upload_queue::{DrainReport, QueueScope, UploadQueue};

use self::{
    folder::Folder,
    objects::{ObjectError, Objects},
    shared::{Blob, Shared},
};
use super::{ActionRecord, Lookup, Store, StoreError, aside, failpoint, write::Created};

/// Pause after the first failure. Each further failure doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(30);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// Maximum size of a record with the names of its files.
const LARGEST_RECORD: u64 = 64 << 20;

/// The outcome of fetching a result.
#[derive(Debug)]
pub enum Fetched {
    /// It is in the local store now.
    Here,
    /// There is none, it was requested before, or the remote is paused after a failure.
    Nothing,
    /// The result is unusable, for this reason.
    Damaged(String),
    /// The remote cannot be used. Returned once.
    Away(StoreError),
}

/// The outcome of pushing a result.
#[derive(Debug)]
pub enum Pushed {
    Done,
    /// The result is withheld, the remote is read-only or already has it, or it is paused after a failure.
    Nothing,
    /// Another machine was first, with other outputs. Those are kept, and are in the local store now.
    Differs {
        outputs: Vec<String>,
        existing: Box<ActionRecord>,
    },
    Away(StoreError),
}

/// Transfers between a run and the remote.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Traffic {
    pub fetched: usize,
    pub fetched_bytes: u64,
    pub pushed: usize,
    pub pushed_bytes: u64,
    /// Results of this and earlier runs that the remote does not have yet.
    pub queued: usize,
}

/// One direction: no requests for a while after a failure, twice as long after each further one.
#[derive(Default)]
struct CircuitBreaker {
    tripped: Option<(Instant, Duration)>,
    reported: bool,
}

impl CircuitBreaker {
    /// Whether requests may be tried.
    fn allows(&self) -> bool {
        self.tripped.is_none_or(|(since, pause)| since.elapsed() >= pause)
    }

    fn trip(&mut self) {
        let pause = self.tripped.map_or(FIRST_PAUSE, |(_, pause)| (pause * 2).min(LONGEST_PAUSE));
        self.tripped = Some((Instant::now(), pause));
    }
}

#[derive(Default)]
struct State {
    requested: BTreeSet<Digest>,
    /// Keys whose record, or an artifact that it names, is unusable.
    broken: BTreeSet<Digest>,
    /// Blobs that do not match their digest.
    corrupt: BTreeSet<Digest>,
    reading: CircuitBreaker,
    writing: CircuitBreaker,
    traffic: Traffic,
}

/// A remote, opened on first use.
pub struct Remote {
    spec: RemoteSpec,
    objects: OnceLock<Box<dyn Objects>>,
    state: Mutex<State>,
}

/// Why a result could not be fetched.
enum Failed {
    Damaged(String),
    ObjectError(ObjectError),
    Local(StoreError),
}

/// Why a result is still queued.
enum PushFailure {
    /// The remote failed, for this reason; none if that was reported before.
    Remote(Option<StoreError>),
    Local(StoreError),
}

impl From<ObjectError> for Failed {
    fn from(error: ObjectError) -> Self {
        Self::ObjectError(error)
    }
}

impl From<StoreError> for Failed {
    fn from(cause: StoreError) -> Self {
        Self::Local(cause)
    }
}

fn record_name(key: &Digest) -> String {
    format!("v1/ac/{key}.json")
}

fn blob_name(digest: &Digest) -> String {
    let digest = digest.to_string();
    format!("v1/blobs/{}/{digest}", &digest[..2])
}

impl Remote {
    pub fn new(spec: RemoteSpec) -> Self {
        Self { spec, objects: OnceLock::new(), state: Mutex::default() }
    }

    pub fn traffic(&self) -> Traffic {
        self.state().traffic
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn objects(&self) -> Result<&dyn Objects, ObjectError> {
        if let Some(objects) = self.objects.get() {
            return Ok(&**objects);
        }
        let objects = match &self.spec.place {
            RemoteLocation::Folder(root) => Box::new(Folder::new(root.clone())),
            RemoteLocation::S3 { bucket, prefix } => s3::open(bucket, prefix)?,
        };
        Ok(&**self.objects.get_or_init(|| objects))
    }

    /// Fetches the result under this key into the local store. Errors are those of the local store.
    pub fn fetch(&self, store: &Store, key: &Digest) -> Result<Fetched, StoreError> {
        {
            let mut state = self.state();
            if !state.reading.allows() || !state.requested.insert(*key) {
                return Ok(Fetched::Nothing);
            }
        }
        let outcome = self.download(store, key);
        let mut state = self.state();
        Ok(match outcome {
            Ok(Some(bytes)) => {
                state.reading = CircuitBreaker::default();
                state.traffic.fetched += 1;
                state.traffic.fetched_bytes += bytes;
                Fetched::Here
            }
            Ok(None) => {
                state.reading = CircuitBreaker::default();
                Fetched::Nothing
            }
            Err(Failed::Damaged(problem)) => {
                state.broken.insert(*key);
                Fetched::Damaged(problem)
            }
            Err(Failed::Local(cause)) => return Err(cause),
            Err(Failed::ObjectError(error)) => {
                // Allows another request when the remote is back.
                state.requested.remove(key);
                self.reading_failed(&mut state, error).map_or(Fetched::Nothing, Fetched::Away)
            }
        })
    }

    /// The remote's record under this key, without its artifacts. None if there is no usable one, or the remote is paused
    /// after a failure.
    ///
    /// # Errors
    /// If the remote cannot be used. Returned once.
    pub fn record(&self, key: &Digest) -> Result<Option<ActionRecord>, StoreError> {
        if !self.state().reading.allows() {
            return Ok(None);
        }
        match self.shared(key) {
            Ok(found) => Ok(found.map(|shared| shared.record)),
            Err(Failed::Damaged(_)) => Ok(None),
            Err(Failed::Local(cause)) => Err(cause),
            Err(Failed::ObjectError(error)) => {
                self.reading_failed(&mut self.state(), error).map_or(Ok(None), Err)
            }
        }
    }

    /// Pauses reading. Returns the error if none was reported before.
    fn reading_failed(&self, state: &mut State, error: ObjectError) -> Option<StoreError> {
        state.reading.trip();
        if matches!(error, ObjectError::Unreachable(_)) {
            state.writing.trip();
        }
        let reported = std::mem::replace(&mut state.reading.reported, true);
        (!reported).then(|| self.store_error(error))
    }

    /// Pushes a finished result. `is_rerun`: the user requested a rerun, so other outputs are expected.
    pub fn push(&self, store: &Store, record: &ActionRecord, is_rerun: bool) -> Result<Pushed, StoreError> {
        if !self.spec.push || record.withheld {
            return Ok(Pushed::Nothing);
        }
        // If it cannot be queued, it is pushed now or never.
        _ = store.upload_queue(&self.spec.place).add(&record.key);
        if !self.state().writing.allows() {
            return Ok(Pushed::Nothing);
        }
        match self.try_push(store, record, is_rerun) {
            Ok(pushed) => Ok(pushed),
            Err(PushFailure::Remote(Some(cause))) => Ok(Pushed::Away(cause)),
            Err(PushFailure::Remote(None)) => Ok(Pushed::Nothing),
            Err(PushFailure::Local(cause)) => Err(cause),
        }
    }

    /// Pushes a queued result, even if the remote failed just before.
    fn try_push(&self, store: &Store, record: &ActionRecord, is_rerun: bool) -> Result<Pushed, PushFailure> {
        let queue = store.upload_queue(&self.spec.place);
        let outcome = self.upload(store, record, is_rerun);
        match outcome {
            Ok(_) | Err(Failed::Damaged(_)) => queue.remove(&record.key),
            Err(Failed::Local(_) | Failed::ObjectError(_)) => queue.postpone(&record.key),
        }
        match outcome {
            Ok((pushed, bytes)) => {
                let mut state = self.state();
                state.writing = CircuitBreaker::default();
                state.traffic.pushed += usize::from(matches!(pushed, Pushed::Done));
                state.traffic.pushed_bytes += bytes;
                Ok(pushed)
            }
            // The artifact changed on disk since it was published; `lookup` reports that.
            Err(Failed::Damaged(_)) => Ok(Pushed::Nothing),
            Err(Failed::Local(cause)) => Err(PushFailure::Local(cause)),
            Err(Failed::ObjectError(error)) => {
                let mut state = self.state();
                state.writing.trip();
                let mut reported = std::mem::replace(&mut state.writing.reported, true);
                if matches!(error, ObjectError::Unreachable(_)) {
                    state.reading.trip();
                    reported |= std::mem::replace(&mut state.reading.reported, true);
                }
                Err(PushFailure::Remote((!reported).then(|| self.store_error(error))))
            }
        }
    }

    fn store_error(&self, error: ObjectError) -> StoreError {
        let remote = self.spec.place.to_string();
        match error {
            ObjectError::Unreachable(problem) => StoreError::Unreachable { remote, problem },
            ObjectError::Refused(problem) => StoreError::Refused { remote, problem },
            ObjectError::Sink(cause) => StoreError::Unreachable { remote, problem: cause.to_string() },
        }
    }

    fn shared(&self, key: &Digest) -> Result<Option<Shared>, Failed> {
        let mut bytes = LimitedBuffer { bytes: Vec::new(), most: LARGEST_RECORD };
        match self.objects()?.read(&record_name(key), &mut bytes) {
            Ok(false) => Ok(None),
            Ok(true) => Shared::read(&bytes.bytes, key).map(Some).map_err(Failed::Damaged),
            Err(ObjectError::Sink(_)) => Err(Failed::Damaged("its record is too long".into())),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the bytes fetched, or none if there is no such result.
    fn download(&self, store: &Store, key: &Digest) -> Result<Option<u64>, Failed> {
        let Some(shared) = self.shared(key)? else { return Ok(None) };
        let bytes = self.download_artifacts(store, &shared)?;
        failpoint("fetch::published");
        // An unusable local record would block the commit.
        if matches!(store.lookup(key), Lookup::Damaged { .. }) {
            store.withdraw(key)?;
        }
        // If another run on this machine was faster, with other outputs, its record is kept here.
        store.commit(&shared.record)?;
        Ok(Some(bytes))
    }

    fn download_artifacts(&self, store: &Store, shared: &Shared) -> Result<u64, Failed> {
        let mut bytes = 0;
        for output in shared.record.outputs.values() {
            if store.retain(&output.digest)? {
                continue;
            }
            let files = shared.files.get(&output.digest).map(Vec::as_slice).unwrap_or_default();
            let writing = |path: &Path, cause| StoreError::writing(path, cause);
            let staged = aside(&store.tmp()).map_err(|cause| writing(&store.tmp(), cause))?;
            let inner = staged.path().join("artifact");
            std::fs::create_dir(&inner).map_err(|cause| writing(&inner, cause))?;
            for blob in files {
                self.download_blob(blob, &inner)?;
                bytes += blob.size;
            }
            if store.publish(&inner)? != output.digest {
                return Err(Failed::Damaged("its files do not match its record".into()));
            }
        }
        Ok(bytes)
    }

    fn download_blob(&self, blob: &Blob, folder: &Path) -> Result<(), Failed> {
        let path = folder.join(&blob.path);
        let writing = |cause| Failed::Local(StoreError::writing(&path, cause));
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(writing)?;
        }
        let file = std::fs::File::create(&path).map_err(writing)?;
        let mut hashing = Hashing { file, hasher: blake3::Hasher::new(), length: 0, most: blob.size };
        let name = blob_name(&blob.digest);
        let problem = match self.objects()?.read(&name, &mut hashing) {
            Ok(false) => "is gone",
            Ok(true) if hashing.length < blob.size => "is cut short",
            Ok(true) if Digest::from_bytes(*hashing.hasher.finalize().as_bytes()) == blob.digest => {
                return Ok(());
            }
            Ok(true) => "is damaged",
            Err(ObjectError::Sink(_)) if hashing.length > blob.size => "is longer than it should be",
            Err(ObjectError::Sink(cause)) => return Err(writing(cause)),
            Err(error) => return Err(error.into()),
        };
        self.state().corrupt.insert(blob.digest);
        Err(Failed::Damaged(format!("its file {} {problem}", blob.path)))
    }

    /// Returns the outcome and the bytes sent.
    fn upload(&self, store: &Store, record: &ActionRecord, is_rerun: bool) -> Result<(Pushed, u64), Failed> {
        let shared = Shared::of(store, record)?;
        let objects = self.objects()?;
        let mut bytes = 0;
        for (digest, files) in &shared.files {
            for blob in files {
                let name = blob_name(&blob.digest);
                let corrupt = self.state().corrupt.contains(&blob.digest);
                if !corrupt && objects.size(&name)? == Some(blob.size) {
                    continue;
                }
                let path = store.artifact(digest).join(&blob.path);
                objects.write(&name, &path).map_err(|error| match error {
                    ObjectError::Sink(cause) => StoreError::reading(path, cause).into(),
                    error => Failed::from(error),
                })?;
                self.state().corrupt.remove(&blob.digest);
                bytes += blob.size;
            }
        }
        failpoint("push::stored");
        let (name, content) = (record_name(&record.key), shared.bytes());
        let replace = || -> Result<(Pushed, u64), Failed> {
            objects.replace(&name, &content)?;
            Ok((Pushed::Done, bytes))
        };
        if self.state().broken.remove(&record.key) {
            return replace();
        }
        if objects.create(&name, &content)? == Created::New {
            return Ok((Pushed::Done, bytes));
        }
        let existing = match self.shared(&record.key) {
            Ok(Some(existing)) => existing,
            // It was removed since, or is unreadable.
            Ok(None) | Err(Failed::Damaged(_)) => return replace(),
            Err(cause) => return Err(cause),
        };
        let outputs = existing.record.other_outputs(record);
        if outputs.is_empty() || is_rerun {
            return Ok((Pushed::Nothing, bytes));
        }
        match self.download_artifacts(store, &existing) {
            Ok(_) => Ok((Pushed::Differs { outputs, existing: Box::new(existing.record) }, bytes)),
            // The remote result is unusable for anyone.
            Err(Failed::Damaged(_)) => replace(),
            Err(cause) => Err(cause),
        }
    }
}

/// Whether a path leads to a file below the folder it is joined to.
fn is_below(path: &str) -> bool {
    let mut parts = Path::new(path).components().peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_))) && !path.contains('\0')
}

/// Accepts at most `most` bytes.
struct LimitedBuffer {
    bytes: Vec<u8>,
    most: u64,
}

impl Write for LimitedBuffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if (self.bytes.len() + bytes.len()) as u64 > self.most {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Writes a file and hashes what it writes. Fails beyond the file's expected length.
struct Hashing {
    file: std::fs::File,
    hasher: blake3::Hasher,
    length: u64,
    most: u64,
}

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.length += bytes.len() as u64;
        if self.length > self.most {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        self.file.write_all(bytes)?;
        self.hasher.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}
