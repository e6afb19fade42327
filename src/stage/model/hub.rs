//! Models from the hub, through its cache on disk.
//!
//! `HF_HOME` sets the cache, `HF_ENDPOINT` the hub, and `HF_TOKEN` (or the file `token` in the cache's home)
//! the token, sent only over https or to this machine. `HF_HUB_OFFLINE=1` disables requests. The cache is that of
//! huggingface_hub, so each finds what the other has downloaded, and waits while the other downloads it:
//!
//! | below the cache | holds |
//! |---|---|
//! | `models--OWNER--NAME/refs/BRANCH` | the commit of a branch or tag |
//! | `models--OWNER--NAME/snapshots/COMMIT/FILE` | a link to the file's blob |
//! | `models--OWNER--NAME/blobs/ETAG` | a complete file; `ETAG.incomplete` is one that a download broke off, which a later one resumes |
//! | `.locks/models--OWNER--NAME/ETAG.lock` | who holds its lock downloads the blob |

use std::{
    fs::{File, TryLockError},
    io::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use reqwest::{
    Client, ClientBuilder, Method, RequestBuilder, Response, StatusCode, header, redirect::Policy,
};
use serde::Deserialize;
use tokio::time::sleep;

use super::{Files, ModelStageError, wanted};
use crate::{
    error::{Diagnostic, chain},
    net,
    progress::Observer,
};

/// Consecutive retries that bring no new data of a file.
const RETRIES: u32 = 5;
/// Pause before the first retry; it doubles with each.
const PAUSE: Duration = Duration::from_millis(if cfg!(test) { 3 } else { 300 });
const CONNECT: Duration = Duration::from_secs(15);
/// How long the hub may send nothing.
const SILENCE: Duration = Duration::from_secs(60);
/// Time between two tries to take a lock.
const POLL: Duration = Duration::from_millis(100);
const REDIRECTS: usize = 10;

pub struct Hub {
    pub endpoint: String,
    /// The folder that holds `models--OWNER--NAME`.
    pub cache: PathBuf,
    pub token: Option<String>,
    pub offline: bool,
}

/// What the hub says about a model.
#[derive(Deserialize)]
struct Info {
    sha: String,
    siblings: Vec<Sibling>,
}

/// A file of a model.
#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
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
        let home = home.ok_or(ModelStageError::NoHome)?;
        let kept = || std::fs::read_to_string(home.join("token")).ok().map(|token| token.trim().to_owned());
        Ok(Self {
            endpoint: set("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into()),
            token: set("HF_TOKEN").or_else(|| kept().filter(|token| !token.is_empty())),
            cache: home.join("hub"),
            offline: set("HF_HUB_OFFLINE").is_some_and(|value| value != "0"),
        })
    }

    /// The files of a model at a branch, tag or commit; downloads those not in the cache.
    pub async fn fetch(
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
        let clients = Clients::new().map_err(|error| self.network(id, error))?;
        let path = format!("api/models/{id}/revision/{}", revision.replace('/', "%2F"));
        let asked = self.request(&clients.all, Method::GET, &path).send().await;
        let answer = self.answer(asked, (id, revision), id)?.json().await;
        let Info { sha, siblings } = answer.map_err(|error| match error.is_decode() {
            true => ModelStageError::Answer { id: id.to_owned() },
            false => self.network(id, error),
        })?;
        observer.note(&format!("{id}@{revision} is commit {sha}"));
        if !is_proper(&sha) {
            return Err(ModelStageError::Answer { id: id.to_owned() });
        }
        let mut names: Vec<String> =
            siblings.into_iter().map(|file| file.rfilename).filter(|name| wanted(name)).collect();
        names.sort();
        names.dedup();
        if !names.iter().any(|name| name.ends_with(".safetensors")) {
            return Err(ModelStageError::NoWeights { id: id.to_owned() });
        }
        let commit = Commit { hub: self, clients, id, sha, observer };
        let mut files = Files::new();
        for name in names {
            let path = commit.file(&name).await?;
            files.push((name, path));
        }
        // Maps the branch's name to the commit, for later offline runs.
        if revision != commit.sha {
            let path = self.folder(id).join("refs").join(revision);
            _ = create_parent(&path).and_then(|()| std::fs::write(&path, &commit.sha));
        }
        Ok(files)
    }

    /// Cached files of a completely downloaded revision, as far as the cache's own files show.
    pub fn cached(&self, id: &str, revision: &str) -> Result<Files, ModelStageError> {
        let folder = self.folder(id);
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

    /// The cache's folder of a model.
    fn folder(&self, id: &str) -> PathBuf {
        self.cache.join(folder_name(id))
    }

    /// The token, unless it would be sent unencrypted.
    fn sent_token(&self) -> Option<&str> {
        let endpoint: Option<reqwest::Url> = self.endpoint.parse().ok();
        self.token.as_deref().filter(|_| endpoint.is_some_and(|endpoint| net::is_confidential(&endpoint)))
    }

    /// A request to the hub. A redirect to another host loses the token.
    fn request(&self, client: &Client, method: Method, path: &str) -> RequestBuilder {
        let request = client.request(method, format!("{}/{path}", self.endpoint.trim_end_matches('/')));
        // Sizes are those of the files.
        let request = request.header(header::ACCEPT_ENCODING, "identity");
        match self.sent_token() {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// The answer to a request for something of a model, unless the hub refuses it. A redirect is an answer.
    fn answer(
        &self,
        sent: reqwest::Result<Response>,
        (id, revision): (&str, &str),
        what: &str,
    ) -> Result<Response, ModelStageError> {
        let answer = sent.map_err(|error| self.network(what, error))?;
        let (endpoint, id) = (self.endpoint.clone(), id.to_owned());
        match answer.status() {
            status if status.is_success() || status.is_redirection() => Ok(answer),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Err(ModelStageError::Denied { endpoint, id, token: self.sent_token().is_some() })
            }
            StatusCode::NOT_FOUND => {
                Err(ModelStageError::Unknown { endpoint, id, revision: revision.to_owned() })
            }
            status => Err(ModelStageError::Network {
                endpoint,
                what: what.to_owned(),
                reason: format!("it answered with status {status}"),
            }),
        }
    }

    fn network(&self, what: &str, error: reqwest::Error) -> ModelStageError {
        // The address of a file elsewhere has a permission.
        let reason = chain(&error.without_url());
        ModelStageError::Network { endpoint: self.endpoint.clone(), what: what.to_owned(), reason }
    }

    fn disk(&self, source: std::io::Error) -> ModelStageError {
        ModelStageError::Cache { path: self.cache.clone(), source }
    }
}

/// HTTP clients by the redirects that they follow.
struct Clients {
    all: Client,
    /// Those to the same host. The answer before one to another host says what the file is.
    within: Client,
}

impl Clients {
    fn new() -> reqwest::Result<Self> {
        let client = || -> ClientBuilder {
            let agent = concat!("mcprl/", env!("CARGO_PKG_VERSION"));
            net::client().user_agent(agent).connect_timeout(CONNECT).read_timeout(SILENCE)
        };
        let within = Policy::custom(|redirect| {
            let before = redirect.previous();
            let is_within = before.last().is_some_and(|url| url.origin() == redirect.url().origin());
            match is_within && before.len() <= REDIRECTS {
                true => redirect.follow(),
                false => redirect.stop(),
            }
        });
        Ok(Self { all: client().build()?, within: client().redirect(within).build()? })
    }
}

/// A model at a commit, on the hub and in the cache.
struct Commit<'a> {
    hub: &'a Hub,
    clients: Clients,
    id: &'a str,
    sha: String,
    observer: &'a dyn Observer,
}

/// A file on the hub.
struct Blob {
    etag: String,
    bytes: u64,
}

impl Commit<'_> {
    /// A file from the cache, downloaded if missing.
    async fn file(&self, name: &str) -> Result<PathBuf, ModelStageError> {
        let path = self.hub.folder(self.id).join("snapshots").join(&self.sha).join(name);
        // How much of it there was, at most.
        let mut most = 0;
        let mut failed = 0;
        while !path.exists() {
            let mut bytes = 0;
            let Err(error) = self.download(name, &path, &mut bytes).await else { break };
            failed = if bytes > most { 0 } else { failed + 1 };
            most = most.max(bytes);
            if !error.is_transient() || failed > RETRIES {
                return Err(error);
            }
            sleep(PAUSE * (1 << failed.saturating_sub(1))).await;
        }
        Ok(path)
    }

    /// Makes a file appear at this path of the cache. `bytes`: how much of it there is.
    async fn download(&self, name: &str, path: &Path, bytes: &mut u64) -> Result<(), ModelStageError> {
        let blob = self.blob(name).await?;
        let at = self.hub.folder(self.id).join("blobs").join(&blob.etag);
        let disk = |source| self.hub.disk(source);
        create_parent(&at).and_then(|()| create_parent(path)).map_err(disk)?;
        let _lock = self.lock(name, &blob).await?;
        // Another process, or another revision, may have brought it.
        if !at.metadata().is_ok_and(|found| found.len() == blob.bytes) {
            self.receive(name, &blob, &at, bytes).await?;
        }
        if !path.exists() {
            // A dangling link would be in the way.
            _ = std::fs::remove_file(path);
            let up = "../".repeat(name.split('/').count() + 1);
            std::os::unix::fs::symlink(format!("{up}blobs/{}", blob.etag), path).map_err(disk)?;
        }
        Ok(())
    }

    /// Receives what is missing of a file.
    async fn receive(
        &self,
        name: &str,
        blob: &Blob,
        at: &Path,
        bytes: &mut u64,
    ) -> Result<(), ModelStageError> {
        let disk = |source| self.hub.disk(source);
        let part = at.with_file_name(format!("{}.incomplete", blob.etag));
        let mut file = File::options().create(true).append(true).open(&part).map_err(disk)?;
        *bytes = file.metadata().map_err(disk)?.len();
        if *bytes > blob.bytes {
            file.set_len(0).map_err(disk)?;
            *bytes = 0;
        }
        if *bytes < blob.bytes {
            let request = self.hub.request(&self.clients.all, Method::GET, &self.path(name));
            let request = request.header(header::RANGE, format!("bytes={bytes}-"));
            let mut answer = self.hub.answer(request.send().await, (self.id, &self.sha), name)?;
            if answer.status() != StatusCode::PARTIAL_CONTENT {
                // The whole file.
                file.set_len(0).map_err(disk)?;
                *bytes = 0;
            }
            let mut reported = *bytes;
            while let Some(chunk) = answer.chunk().await.map_err(|error| self.hub.network(name, error))? {
                file.write_all(&chunk).map_err(disk)?;
                *bytes += chunk.len() as u64;
                // In steps of a megabyte, because each report may redraw.
                if *bytes >= reported + (1 << 20) || *bytes >= blob.bytes {
                    reported = *bytes;
                    let megabytes = |bytes: u64| bytes as f64 / 1e6;
                    let (done, all) = (megabytes(*bytes), megabytes(blob.bytes));
                    self.observer.status(&format!("{name} · {done:.1} of {all:.1} MB"));
                }
            }
        }
        if *bytes != blob.bytes {
            std::fs::remove_file(&part).map_err(disk)?;
            return Err(ModelStageError::Size { name: name.to_owned(), found: *bytes, expected: blob.bytes });
        }
        std::fs::rename(&part, at).map_err(disk)
    }

    /// What a file is, by the headers that huggingface_hub reads.
    async fn blob(&self, name: &str) -> Result<Blob, ModelStageError> {
        let request = self.hub.request(&self.clients.within, Method::HEAD, &self.path(name));
        let answer = self.hub.answer(request.send().await, (self.id, &self.sha), name)?;
        let header = |name: &str| answer.headers().get(name)?.to_str().ok();
        let etag = header("x-linked-etag").or_else(|| header("etag"));
        let etag = etag.map(|etag| etag.trim_start_matches("W/").trim_matches('"').to_owned());
        // The length of a redirect is its own.
        let own = || header("content-length").filter(|_| answer.status().is_success());
        let bytes = header("x-linked-size").or_else(own).and_then(|bytes| bytes.parse().ok());
        let blob = etag.filter(|etag| is_proper(etag)).zip(bytes).map(|(etag, bytes)| Blob { etag, bytes });
        blob.ok_or_else(|| ModelStageError::Answer { id: self.id.to_owned() })
    }

    /// Keeps other processes from downloading a blob, until it is dropped.
    async fn lock(&self, name: &str, blob: &Blob) -> Result<File, ModelStageError> {
        let path =
            self.hub.cache.join(".locks").join(folder_name(self.id)).join(format!("{}.lock", blob.etag));
        let unlocked = |source| ModelStageError::Cache { path: path.clone(), source };
        let open = || File::options().create(true).truncate(false).write(true).open(&path);
        let file = create_parent(&path).and_then(|()| open()).map_err(unlocked)?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) => {
                    self.observer.status(&format!("{name} · another process is fetching it"));
                    sleep(POLL).await;
                }
                Err(TryLockError::Error(source)) => return Err(unlocked(source)),
            }
        }
    }

    fn path(&self, name: &str) -> String {
        format!("{}/resolve/{}/{name}", self.id, self.sha)
    }
}

fn folder_name(id: &str) -> String {
    format!("models--{}", id.replace('/', "--"))
}

fn create_parent(path: &Path) -> std::io::Result<()> {
    path.parent().map_or(Ok(()), std::fs::create_dir_all)
}

/// Whether this is the name of a file, and no path.
fn is_proper(text: &str) -> bool {
    let is_plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    is_plain && !text.is_empty() && !text.starts_with('.')
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
