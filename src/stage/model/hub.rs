//! Models from the hub, through its cache on disk.
//!
//! `HF_HOME` says where the cache is, `HF_ENDPOINT` where the hub is, `HF_TOKEN` (or the file `token` in the cache's
//! home) who asks; with `HF_HUB_OFFLINE=1` nothing is asked. A download that breaks off goes on where it stopped, in the
//! same run and in a later one.

use std::path::PathBuf;

use hf_hub::{
    Cache, Repo, RepoType,
    api::{
        Progress,
        sync::{ApiBuilder, ApiError, ApiRepo},
    },
};

use super::{Files, ModelStageError, wanted};
use crate::progress::Observer;

/// Tries again after a connection broke off, per file.
const RETRIES: usize = 5;

pub struct Hub {
    pub endpoint: String,
    /// The folder that holds `models--OWNER--NAME`.
    pub cache: PathBuf,
    pub token: Option<String>,
    pub offline: bool,
}

impl Hub {
    pub fn from_env() -> Self {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let cache = Cache::from_env();
        Self {
            endpoint: set("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into()),
            token: set("HF_TOKEN").or_else(|| cache.token()),
            cache: cache.path().clone(),
            offline: set("HF_HUB_OFFLINE").is_some_and(|value| value != "0"),
        }
    }

    /// The files of a model at a branch, tag or commit, fetched where they are not in the cache.
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
        let failed = |error: ApiError, what: &str| self.failure(&error, id, revision, what);
        let builder = ApiBuilder::from_cache(Cache::new(self.cache.clone()))
            .with_endpoint(self.endpoint.trim_end_matches('/').to_owned())
            .with_token(self.token.clone())
            .with_retries(RETRIES)
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
        let at_commit = api.repo(repo(&info.sha));
        let cache = Cache::new(self.cache.clone()).repo(repo(&info.sha));
        let file = |name: String| {
            let path = match cache.get(&name) {
                Some(path) => path,
                None => download(&at_commit, &name, observer).map_err(|error| failed(error, &name))?,
            };
            Ok((name, path))
        };
        let files = names.into_iter().map(file).collect::<Result<Files, _>>()?;
        // The branch's name leads to the commit, for whoever is offline next time.
        if revision != info.sha {
            _ = Cache::new(self.cache.clone()).repo(repo(revision)).create_ref(&info.sha);
        }
        Ok(files)
    }

    /// What the cache holds of a revision that was fetched whole, as far as its own files tell.
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

    /// What an error of the client means for the person who asked.
    fn failure(&self, error: &ApiError, id: &str, revision: &str, what: &str) -> ModelStageError {
        let (endpoint, id, reason) = (self.endpoint.clone(), id.to_owned(), error.to_string());
        // The client tells the status in its message alone.
        let status = reason.rsplit_once("http status: ").map(|(_, status)| status.trim());
        match status {
            Some("401" | "403") => ModelStageError::Denied { endpoint, id, token: self.token.is_some() },
            Some("404") => ModelStageError::Unknown { endpoint, id, revision: revision.to_owned() },
            _ => ModelStageError::Network { endpoint, what: what.to_owned(), reason },
        }
    }
}

fn is_proper(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// Whether it reads as an id and a revision.
pub fn check_id(id: &str, revision: &str) -> Result<(), ModelStageError> {
    let well = id.split_once('/').is_some_and(|(owner, name)| is_proper(owner) && is_proper(name));
    if !well || !revision.split('/').all(is_proper) || id.contains("..") || revision.contains("..") {
        return Err(ModelStageError::Id { id: format!("{id}@{revision}") });
    }
    Ok(())
}

fn download(repo: &ApiRepo, name: &str, observer: &dyn Observer) -> Result<PathBuf, ApiError> {
    let progress = Told { observer, name: name.to_owned(), size: 0, done: 0, told: 0 };
    repo.download_with_progress(name, progress)
}

/// Passes a download's progress on, in bytes; a part fetched twice counts once.
struct Told<'a> {
    observer: &'a dyn Observer,
    name: String,
    size: u64,
    done: u64,
    told: u64,
}

impl Progress for Told<'_> {
    fn init(&mut self, size: usize, _: &str) {
        (self.size, self.done) = (size as u64, 0);
    }

    fn update(&mut self, size: usize) {
        self.done += size as u64;
        // A megabyte at a time, for each telling may redraw.
        if self.done >= self.told + (1 << 20) || self.done >= self.size {
            self.told = self.told.max(self.done);
            let megabytes = |bytes: u64| bytes as f64 / 1e6;
            let (done, size) = (megabytes(self.done), megabytes(self.size));
            self.observer.status(&format!("{} · {done:.1} of {size:.1} MB", self.name));
        }
    }

    fn finish(&mut self) {}
}
