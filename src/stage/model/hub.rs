//! Models from the hub, through its cache on disk.
//!
//! `HF_HOME` sets the cache, `HF_ENDPOINT` the hub, and `HF_TOKEN` (or the file `token` in the cache's home)
//! the token, sent only over https or to this machine. `HF_HUB_OFFLINE=1` disables requests. A download that
//! breaks off resumes, in the same run or a later one. A file is complete once it has the size that the hub
//! reports.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    time::Duration,
};

use hf_hub::{
    Cache, CacheRepo, Repo, RepoType,
    api::{
        Progress,
        sync::{Api, ApiBuilder, ApiError, ApiRepo},
    },
};
use rustix::{fs::FlockOperation, io::Errno};

use super::{Files, ModelStageError, wanted};
use crate::{net, progress::Observer};

/// Consecutive retries that bring no new data of a file.
const RETRIES: u32 = 5;
/// Pause before the first retry; it doubles with each.
const PAUSE: Duration = Duration::from_millis(if cfg!(test) { 3 } else { 300 });

pub struct Hub {
    pub endpoint: String,
    /// The folder that holds `models--OWNER--NAME`.
    pub cache: PathBuf,
    pub token: Option<String>,
    pub offline: bool,
}

impl Hub {
    /// Reads the environment.
    ///
    /// # Errors
    /// If no cache location is known.
    pub fn from_env() -> Result<Self, ModelStageError> {
        Self::of(|name| std::env::var(name).ok(), std::env::home_dir())
    }

    fn of(variable: impl Fn(&str) -> Option<String>, home: Option<PathBuf>) -> Result<Self, ModelStageError> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let home = home.filter(|home| !home.as_os_str().is_empty());
        let home = set("HF_HOME").map(PathBuf::from).or_else(|| Some(home?.join(".cache/huggingface")));
        let cache = Cache::new(home.ok_or(ModelStageError::NoHome)?.join("hub"));
        Ok(Self {
            endpoint: set("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into()),
            token: set("HF_TOKEN").or_else(|| cache.token()),
            cache: cache.path().clone(),
            offline: set("HF_HUB_OFFLINE").is_some_and(|value| value != "0"),
        })
    }

    /// The files of a model at a branch, tag or commit; downloads those not in the cache.
    pub fn fetch(
        &self,
        id: &str,
        revision: Option<&str>,
        observer: &dyn Observer,
    ) -> Result<Files, ModelStageError> {
        let revision = revision.unwrap_or("main");
        check_id(id, revision)?;
        if self.offline {
            return self.cached(id, revision);
        }
        if self.token.is_some() && self.sent_token().is_none() {
            observer.note(&format!(
                "the hub's token is not sent to {}: it would travel unencrypted",
                self.endpoint
            ));
        }
        let failed = |error: ApiError, what: &str| self.failure(error, id, revision, what);
        let builder = ApiBuilder::from_cache(Cache::new(self.cache.clone()))
            .with_endpoint(self.endpoint.trim_end_matches('/').to_owned())
            .with_token(self.sent_token().map(str::to_owned))
            // The client's own retries may resume at an offset other than the file's end.
            .with_retries(0)
            .with_progress(false)
            .with_user_agent("mcprl", env!("CARGO_PKG_VERSION"));
        let api = builder.build().map_err(|error| failed(error, id))?;
        let repo = |revision: &str| Repo::with_revision(id.to_owned(), RepoType::Model, revision.to_owned());
        let info = api.repo(repo(revision)).info().map_err(|error| failed(error, id))?;
        observer.note(&format!("{id}@{revision} is commit {}", info.sha));
        if !is_proper(&info.sha) {
            return Err(ModelStageError::Answer { id: id.to_owned() });
        }
        let mut names: Vec<String> =
            info.siblings.into_iter().map(|file| file.rfilename).filter(|name| wanted(name)).collect();
        names.sort();
        names.dedup();
        if !names.iter().any(|name| name.ends_with(".safetensors")) {
            return Err(ModelStageError::NoWeights { id: id.to_owned() });
        }
        let cache = Cache::new(self.cache.clone()).repo(repo(&info.sha));
        let commit = Commit { repo: api.repo(repo(&info.sha)), cache, api };
        let file = |name: String| {
            let path = commit.file(&name, observer, |error| failed(error, &name))?;
            Ok((name, path))
        };
        let files = names.into_iter().map(file).collect::<Result<Files, _>>()?;
        // Maps the branch's name to the commit, for later offline runs.
        if revision != info.sha {
            _ = Cache::new(self.cache.clone()).repo(repo(revision)).create_ref(&info.sha);
        }
        Ok(files)
    }

    /// Cached files of a completely downloaded revision, as far as the cache's own files show.
    pub fn cached(&self, id: &str, revision: &str) -> Result<Files, ModelStageError> {
        let folder = self.cache.join(Repo::new(id.to_owned(), RepoType::Model).folder_name());
        let named = std::fs::read_to_string(folder.join("refs").join(revision));
        let commit = named.map_or_else(|_| revision.to_owned(), |text| text.trim().to_owned());
        match super::listed(&folder.join("snapshots").join(commit)) {
            Ok(files) if files.iter().any(|(name, _)| name == "config.json") => Ok(files),
            _ => Err(ModelStageError::Offline {
                id: id.to_owned(),
                revision: revision.to_owned(),
                cache: self.cache.clone(),
            }),
        }
    }

    /// The token, unless it would be sent unencrypted.
    fn sent_token(&self) -> Option<&str> {
        let endpoint: Option<reqwest::Url> = self.endpoint.parse().ok();
        self.token.as_deref().filter(|_| endpoint.is_some_and(|endpoint| net::is_confidential(&endpoint)))
    }

    /// Turns an error of the client into one for the user.
    fn failure(&self, error: ApiError, id: &str, revision: &str, what: &str) -> ModelStageError {
        let (endpoint, id, reason) = (self.endpoint.clone(), id.to_owned(), error.to_string());
        match (status(&error), error) {
            (Some(401 | 403), _) => {
                ModelStageError::Denied { endpoint, id, token: self.sent_token().is_some() }
            }
            (Some(404), _) => ModelStageError::Unknown { endpoint, id, revision: revision.to_owned() },
            (_, ApiError::IoError(source)) if is_local(&source) => {
                ModelStageError::Cache { path: self.cache.clone(), source }
            }
            _ => ModelStageError::Network { endpoint, what: what.to_owned(), reason },
        }
    }
}

/// The hub's HTTP status, which the client reports only in its message.
fn status(error: &ApiError) -> Option<u16> {
    error.to_string().rsplit_once("http status: ").and_then(|(_, status)| status.trim().parse().ok())
}

/// Whether this machine's disk failed, and not a connection.
fn is_local(error: &std::io::Error) -> bool {
    let of_connection = matches!(
        error.kind(),
        ErrorKind::BrokenPipe
            | ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::HostUnreachable
            | ErrorKind::Interrupted
            | ErrorKind::NetworkDown
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NotConnected
            | ErrorKind::TimedOut
            | ErrorKind::WouldBlock
    );
    error.raw_os_error().is_some() && !of_connection
}

/// Fails if the file system has no locks. A lock held by another process is fine.
fn check_lock(lock: &Path) -> std::io::Result<()> {
    match rustix::fs::flock(std::fs::File::create(lock)?, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) | Err(Errno::WOULDBLOCK) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A model at a commit, on the hub and in the cache.
struct Commit {
    api: Api,
    repo: ApiRepo,
    cache: CacheRepo,
}

impl Commit {
    /// A file from the cache, downloaded if missing. `failed` explains an error.
    fn file(
        &self,
        name: &str,
        observer: &dyn Observer,
        failed: impl Fn(ApiError) -> ModelStageError,
    ) -> Result<PathBuf, ModelStageError> {
        let mut tries = Tries { part: None, before: 0, failed: 0 };
        loop {
            if let Some(path) = self.cache.get(name) {
                return Ok(path);
            }
            match self.fetch(name, &mut tries, observer) {
                Ok(Ok(path)) => return Ok(path),
                Ok(Err(size)) => tries.again().ok_or(size)?,
                Err(ApiError::LockAcquisition(lock)) => {
                    check_lock(&lock).map_err(|source| ModelStageError::Cache { path: lock, source })?;
                    observer.status(&format!("{name} · another process is fetching it"));
                }
                Err(error) => {
                    let answer = status(&error);
                    // The partial file is already complete or too long.
                    if let (Some(416), _) | (_, ApiError::InvalidResume) = (answer, &error) {
                        tries.restart();
                    }
                    let local = matches!(&error, ApiError::IoError(source) if is_local(source));
                    if local || matches!(answer, Some(401 | 403 | 404)) {
                        return Err(failed(error));
                    }
                    tries.again().ok_or_else(|| failed(error))?;
                }
            }
        }
    }

    /// Downloads the missing part of a file. The inner error: the file's size differs from what the hub
    /// reports, and the file was removed.
    fn fetch(
        &self,
        name: &str,
        tries: &mut Tries,
        observer: &dyn Observer,
    ) -> Result<Result<PathBuf, ModelStageError>, ApiError> {
        let metadata = self.api.metadata(&self.repo.url(name))?;
        let blob = self.cache.blob_path(metadata.etag());
        tries.begin(blob.with_extension("part"));
        // A dangling link would be in the way.
        let mut pointer = self.cache.pointer_path(metadata.commit_hash());
        pointer.push(name);
        if pointer.is_symlink() && !pointer.exists() {
            std::fs::remove_file(&pointer)?;
        }
        let progress = DownloadProgress { observer, name: name.to_owned(), size: 0, done: 0, reported: 0 };
        let path = self.repo.download_with_progress(name, progress)?;
        let (found, expected) = (path.metadata()?.len(), metadata.size() as u64);
        if found == expected {
            return Ok(Ok(path));
        }
        for path in [&path, &blob] {
            std::fs::remove_file(path)?;
        }
        Ok(Err(ModelStageError::Size { name: name.to_owned(), found, expected }))
    }
}

/// Retries of a file without progress.
struct Tries {
    /// Location of the partial file.
    part: Option<PathBuf>,
    /// Its length at the last try.
    before: u64,
    failed: u32,
}

impl Tries {
    fn length(&self) -> u64 {
        let part = self.part.as_ref().and_then(|part| part.metadata().ok());
        part.map_or(0, |part| part.len())
    }

    fn begin(&mut self, part: PathBuf) {
        self.part = Some(part);
        self.before = self.length();
    }

    fn restart(&self) {
        if let Some(part) = &self.part {
            _ = std::fs::remove_file(part);
        }
    }

    /// Waits before the next try; none if there were enough.
    fn again(&mut self) -> Option<()> {
        self.failed = if self.length() > self.before { 0 } else { self.failed + 1 };
        (self.failed <= RETRIES).then(|| std::thread::sleep(PAUSE * (1 << self.failed.saturating_sub(1))))
    }
}

fn is_proper(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// A model's id, and the revision behind its `@`.
pub fn split(from: &str) -> (&str, Option<&str>) {
    from.split_once('@').map_or((from, None), |(id, revision)| (id, Some(revision)))
}

/// Checks that these are a valid id and revision.
pub fn check_id(id: &str, revision: &str) -> Result<(), ModelStageError> {
    let well = id.split_once('/').is_some_and(|(owner, name)| is_proper(owner) && is_proper(name));
    if !well || !revision.split('/').all(is_proper) || id.contains("..") || revision.contains("..") {
        return Err(ModelStageError::Id { id: format!("{id}@{revision}") });
    }
    Ok(())
}

/// Reports a download's progress in bytes; a part downloaded twice counts once.
struct DownloadProgress<'a> {
    observer: &'a dyn Observer,
    name: String,
    size: u64,
    done: u64,
    reported: u64,
}

impl Progress for DownloadProgress<'_> {
    fn init(&mut self, size: usize, _: &str) {
        (self.size, self.done) = (size as u64, 0);
    }

    fn update(&mut self, size: usize) {
        self.done += size as u64;
        // In steps of a megabyte, because each report may redraw.
        if self.done >= self.reported + (1 << 20) || self.done >= self.size {
            self.reported = self.reported.max(self.done);
            let megabytes = |bytes: u64| bytes as f64 / 1e6;
            let (done, size) = (megabytes(self.done), megabytes(self.size));
            self.observer.status(&format!("{} · {done:.1} of {size:.1} MB", self.name));
        }
    }

    fn finish(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Diagnostic;

    #[test]
    fn the_environment_sets_cache_hub_and_token() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("token"), "from file\n").unwrap();
        let hub = |variables: &[(&str, &str)], home: Option<&Path>| {
            let value =
                |name: &str| variables.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).into());
            Hub::of(value, home.map(Path::to_owned))
        };
        let place = home.path().to_str().unwrap();
        let found =
            hub(&[("HF_HOME", place), ("HF_ENDPOINT", "http://mirror"), ("HF_HUB_OFFLINE", "1")], None);
        let found = found.unwrap();
        assert_eq!((found.cache.clone(), found.offline), (home.path().join("hub"), true));
        assert_eq!((found.endpoint.as_str(), found.token.as_deref()), ("http://mirror", Some("from file")));
        assert_eq!(found.sent_token(), None, "unencrypted");
        let found = hub(&[("HF_HOME", place), ("HF_TOKEN", "t"), ("HF_HUB_OFFLINE", "0")], None).unwrap();
        assert_eq!((found.endpoint.as_str(), found.offline), ("https://huggingface.co", false));
        assert_eq!(found.sent_token(), Some("t"));
        let found = hub(&[("HF_HOME", ""), ("HF_TOKEN", "")], Some(Path::new("/home/me"))).unwrap();
        assert_eq!((found.cache, found.token), ("/home/me/.cache/huggingface/hub".into(), None));
        for home in [None, Some(Path::new(""))] {
            let refused = hub(&[], home).err().unwrap();
            assert_eq!(refused.code(), "hub::no_home");
            assert!(refused.hint().unwrap().contains("HF_HOME"), "{refused}");
        }
    }

    #[test]
    fn a_full_disk_and_a_broken_connection_are_different_errors() {
        let of = |errno: Errno| is_local(&errno.into());
        assert!([Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::ACCESS].into_iter().all(of));
        assert!(![Errno::CONNRESET, Errno::PIPE, Errno::TIMEDOUT, Errno::NETUNREACH].into_iter().any(of));
        assert!(!is_local(&std::io::Error::other("the peer closed the connection")));
    }
}
