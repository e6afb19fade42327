//! Uploads to the Hugging Face hub, by the requests that huggingface_hub makes without Xet.
//!
//! A file is text in the commit or, as the hub decides, an object of Git LFS, which is uploaded before. The hub has objects by
//! their content, so an upload that broke off goes on with what is missing. The token goes to the hub's own origin alone, and
//! redirects are not followed.

mod error;

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    io::{Read as _, Seek, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, Url, header, redirect::Policy};
use ring::digest::{Context, SHA256};
use serde::Deserialize;
use serde_json::{Map, Value, json};

pub use self::error::HubError;
use crate::{
    hash::hex,
    net::{self, Backoff},
};

/// Attempts of a request.
const ATTEMPTS: u32 = 6;
const FIRST_WAIT: Duration = Duration::from_millis(if cfg!(test) { 2 } else { 1000 });
const LONGEST_WAIT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 30 });
const CONNECT: Duration = Duration::from_secs(15);
/// Time limit of a request that uploads no file.
const REQUEST: Duration = Duration::from_secs(60);
/// Files of a request that asks how they are to be uploaded.
const ASKED: usize = 256;
/// Bytes of a file that the hub looks at to decide.
const SAMPLE: usize = 512;
/// Bytes of an answer that are read.
const MOST_BYTES: usize = 8 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Model,
    Dataset,
}

impl Kind {
    /// In paths of the API.
    fn plural(self) -> &'static str {
        match self {
            Self::Model => "models",
            Self::Dataset => "datasets",
        }
    }

    /// Before the name in addresses of repositories.
    fn prefix(self) -> &'static str {
        match self {
            Self::Model => "",
            Self::Dataset => "datasets/",
        }
    }
}

/// A repository: `ORG/NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repo {
    pub owner: String,
    pub name: String,
    pub kind: Kind,
}

impl Repo {
    /// # Errors
    /// If this is no name of a repository.
    pub fn parse(text: &str, kind: Kind) -> Result<Self, HubError> {
        let wrong = || HubError::Name { text: text.to_owned() };
        let (owner, name) = text.strip_prefix("hub:").unwrap_or(text).split_once('/').ok_or_else(wrong)?;
        let is_name = |part: &str| {
            (1..=96).contains(&part.len())
                && !part.starts_with(['.', '-'])
                && part.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        };
        match is_name(owner) && is_name(name) {
            true => Ok(Self { owner: owner.to_owned(), name: name.to_owned(), kind }),
            false => Err(wrong()),
        }
    }

    fn id(&self) -> String {
        format!("{}/{}", self.owner, self.name)
    }
}

impl std::fmt::Display for Repo {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}{}/{}", self.kind.prefix(), self.owner, self.name)
    }
}

/// A file to upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// In the repository, with `/`.
    pub name: String,
    pub path: PathBuf,
    pub bytes: u64,
}

/// The files of a folder and below it, by name. Hidden ones are left out.
///
/// # Errors
/// If the folder cannot be read.
pub fn files(folder: &Path) -> Result<Vec<File>, HubError> {
    let mut files = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(place) = open.pop() {
        let reading = |source| HubError::Read { path: place.clone(), source };
        for item in std::fs::read_dir(&place).map_err(reading)? {
            let path = item.map_err(reading)?.path();
            let is_hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
            match (is_hidden, path.is_dir()) {
                (true, _) => {}
                (false, true) => open.push(path),
                (false, false) => files.push(file(&path, path.strip_prefix(folder).unwrap_or(&path))?),
            }
        }
    }
    files.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(files)
}

/// A file under this name.
///
/// # Errors
/// If it cannot be read.
pub fn file(path: &Path, name: &Path) -> Result<File, HubError> {
    let bytes =
        std::fs::metadata(path).map_err(|source| HubError::Read { path: path.to_owned(), source })?.len();
    let parts: Vec<String> =
        name.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
    Ok(File { name: parts.join("/"), path: path.to_owned(), bytes })
}

/// What is done about a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The hub does not want it.
    Ignored,
    /// The hub has it.
    There,
    Uploading,
}

/// A hub, with a token that may write.
pub struct Hub {
    endpoint: Url,
    token: String,
    http: Client,
}

/// What the hub says about files before they are uploaded.
#[derive(Deserialize)]
struct Preupload {
    files: Vec<PreuploadedFile>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PreuploadedFile {
    path: String,
    upload_mode: String,
    #[serde(default)]
    should_ignore: bool,
}

#[derive(Deserialize)]
struct Batch {
    objects: Vec<Object>,
}

#[derive(Deserialize)]
struct Object {
    oid: String,
    #[serde(default)]
    actions: BTreeMap<String, Action>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Action {
    href: String,
    #[serde(default)]
    header: Map<String, Value>,
}

/// A file with its digest.
struct Hashed<'f> {
    file: &'f File,
    oid: String,
}

impl Hub {
    /// # Errors
    /// If the address is none, or the token would be sent unencrypted to another machine.
    pub fn new(endpoint: &str, token: Option<String>) -> Result<Self, HubError> {
        let wrong =
            |reason: &str| HubError::Endpoint { endpoint: endpoint.to_owned(), reason: reason.into() };
        let endpoint: Url = endpoint.parse().map_err(|_| wrong("it is no URL"))?;
        let token = token.ok_or(HubError::NoToken)?;
        if !net::is_confidential(&endpoint) {
            return Err(wrong("the token would be sent unencrypted"));
        }
        let is_local = endpoint.scheme() == "http";
        let builder = net::client().redirect(Policy::none()).connect_timeout(CONNECT);
        let builder = builder.user_agent(concat!("mcprl/", env!("CARGO_PKG_VERSION")));
        let builder = if is_local { builder.no_proxy() } else { builder };
        Ok(Self { endpoint, token, http: builder.build().map_err(HubError::Client)? })
    }

    /// The address of a repository's page.
    pub fn page(&self, repo: &Repo) -> String {
        format!("{}/{repo}", self.endpoint.as_str().trim_end_matches('/'))
    }

    /// Whether a repository is private. None if there is none.
    ///
    /// # Errors
    /// If the hub does not say.
    pub async fn is_private(&self, repo: &Repo) -> Result<Option<bool>, HubError> {
        let url = self.api(&format!("api/{}/{}", repo.kind.plural(), repo.id()));
        match self.send(&url, |request| request, Method::GET).await {
            Ok(answer) => Ok(Some(answer["private"].as_bool().unwrap_or(false))),
            Err(HubError::Status { status: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a repository.
    ///
    /// # Errors
    /// If the hub refuses.
    pub async fn create(&self, repo: &Repo, private: bool) -> Result<(), HubError> {
        let visibility = if private { "private" } else { "public" };
        let mut body = json!({"name": repo.name, "organization": repo.owner, "visibility": visibility});
        if repo.kind == Kind::Dataset {
            body["type"] = "dataset".into();
        }
        match self.post(&self.api("api/repos/create"), &body).await {
            // Somebody was faster.
            Err(HubError::Status { status: 409, .. }) => Ok(()),
            done => done.map(drop),
        }
    }

    /// Uploads files as one commit. Returns its address. `say` hears of each file.
    ///
    /// # Errors
    /// If a file cannot be read, or the hub refuses it.
    pub async fn upload(
        &self,
        repo: &Repo,
        files: &[File],
        message: &str,
        say: &mut dyn FnMut(&File, Step),
    ) -> Result<String, HubError> {
        let mut in_lfs = Vec::new();
        let mut lines = vec![json!({"key": "header", "value": {"summary": message, "description": ""}})];
        for part in files.chunks(ASKED) {
            let modes = self.modes(repo, part).await?;
            for file in part {
                let mode = modes.get(&file.name).ok_or_else(|| HubError::Answer {
                    url: self.page(repo),
                    reason: format!("it does not say how to upload `{}`", file.name),
                })?;
                match mode.as_deref() {
                    None => say(file, Step::Ignored),
                    Some("lfs") if file.bytes > 0 => in_lfs.push(hashed(file)?),
                    Some(_) => {
                        let reading = |source| HubError::Read { path: file.path.clone(), source };
                        let content = BASE64.encode(std::fs::read(&file.path).map_err(reading)?);
                        lines.push(json!({"key": "file", "value": {"content": content, "path": file.name, "encoding": "base64"}}));
                    }
                }
            }
        }
        for part in in_lfs.chunks(ASKED) {
            self.upload_objects(repo, part, say).await?;
        }
        for Hashed { file, oid } in &in_lfs {
            lines.push(json!({"key": "lfsFile", "value": {"path": file.name, "algo": "sha256", "oid": oid, "size": file.bytes}}));
        }
        let body: Vec<String> = lines.iter().map(Value::to_string).collect();
        let body = body.join("\n");
        let url = self.api(&format!("api/{}/{}/commit/main", repo.kind.plural(), repo.id()));
        let commit = |request: RequestBuilder| {
            request.header(header::CONTENT_TYPE, "application/x-ndjson").body(body.clone())
        };
        let answer = self.send(&url, commit, Method::POST).await?;
        Ok(answer["commitUrl"].as_str().map_or_else(|| self.page(repo), str::to_owned))
    }

    /// How each file is to be uploaded; none if the hub ignores it.
    async fn modes(&self, repo: &Repo, files: &[File]) -> Result<BTreeMap<String, Option<String>>, HubError> {
        let described = files.iter().map(|file| {
            let mut sample = Vec::new();
            let reading = |source| HubError::Read { path: file.path.clone(), source };
            let opened = std::fs::File::open(&file.path).map_err(reading)?;
            opened.take(SAMPLE as u64).read_to_end(&mut sample).map_err(reading)?;
            Ok(json!({"path": file.name, "sample": BASE64.encode(&sample), "size": file.bytes}))
        });
        let described = described.collect::<Result<Vec<_>, HubError>>()?;
        let url = self.api(&format!("api/{}/{}/preupload/main", repo.kind.plural(), repo.id()));
        let answer = self.post(&url, &json!({"files": described})).await?;
        let Preupload { files } = self.read_as(&url, answer)?;
        Ok(files
            .into_iter()
            .map(|file| (file.path, (!file.should_ignore).then_some(file.upload_mode)))
            .collect())
    }

    async fn upload_objects(
        &self,
        repo: &Repo,
        files: &[Hashed<'_>],
        say: &mut dyn FnMut(&File, Step),
    ) -> Result<(), HubError> {
        let objects: Vec<Value> =
            files.iter().map(|Hashed { file, oid }| json!({"oid": oid, "size": file.bytes})).collect();
        let body = json!({
            "operation": "upload", "transfers": ["basic", "multipart"], "objects": objects, "hash_algo": "sha256",
            "ref": {"name": "main"},
        });
        let url = self.api(&format!("{repo}.git/info/lfs/objects/batch"));
        let batch = |request: RequestBuilder| {
            request
                .header(header::CONTENT_TYPE, "application/vnd.git-lfs+json")
                .header(header::ACCEPT, "application/vnd.git-lfs+json")
                .body(body.to_string())
        };
        let answer = self.send(&url, batch, Method::POST).await?;
        let Batch { objects } = self.read_as(&url, answer)?;
        for Hashed { file, oid } in files {
            let wrong = |reason: String| HubError::Answer { url: url.clone(), reason };
            let object = objects.iter().find(|object| object.oid == *oid);
            let object = object.ok_or_else(|| wrong(format!("it says nothing about `{}`", file.name)))?;
            if let Some(error) = &object.error {
                return Err(wrong(format!("`{}`: {error}", file.name)));
            }
            let Some(upload) = object.actions.get("upload") else {
                say(file, Step::There);
                continue;
            };
            say(file, Step::Uploading);
            match upload.header.get("chunk_size") {
                None => _ = self.put(&upload.href, file, 0, file.bytes).await?,
                Some(size) => self.put_in_parts(upload, size, file, oid).await?,
            }
            if let Some(verify) = object.actions.get("verify") {
                self.post(&verify.href, &json!({"oid": oid, "size": file.bytes})).await?;
            }
        }
        Ok(())
    }

    /// Uploads a file in parts of this size, whose addresses are in the action by number.
    async fn put_in_parts(
        &self,
        upload: &Action,
        size: &Value,
        file: &File,
        oid: &str,
    ) -> Result<(), HubError> {
        let wrong =
            |reason: &str| HubError::Answer { url: self.shown(&upload.href), reason: reason.to_owned() };
        let size = size.as_u64().or_else(|| size.as_str()?.parse().ok()).filter(|size| *size > 0);
        let size = size.ok_or_else(|| wrong("its `chunk_size` is no number"))?;
        let number = |key: &String| key.parse::<u64>().ok();
        let mut parts: Vec<(u64, &str)> =
            upload.header.iter().filter_map(|(key, url)| Some((number(key)?, url.as_str()?))).collect();
        parts.sort_unstable();
        if parts.len() as u64 != file.bytes.div_ceil(size) {
            return Err(wrong("the number of its parts does not fit the file"));
        }
        let mut done = Vec::new();
        for (index, (number, url)) in parts.into_iter().enumerate() {
            let from = index as u64 * size;
            let response = self.put(url, file, from, size.min(file.bytes - from)).await?;
            let etag = response.headers().get(header::ETAG).and_then(|etag| etag.to_str().ok());
            let etag = etag.ok_or_else(|| wrong("a part has no ETag"))?.to_owned();
            done.push(json!({"partNumber": number, "etag": etag}));
        }
        self.post(&upload.href, &json!({"oid": oid, "parts": done})).await.map(drop)
    }

    /// Uploads these bytes of a file to an address that the hub has given. It has its own permission.
    async fn put(&self, url: &str, file: &File, from: u64, bytes: u64) -> Result<Response, HubError> {
        let address = self.address(url)?;
        let reading = |source| HubError::Read { path: file.path.clone(), source };
        let mut attempts = Attempts::new(self.shown(url), self.is_own(&address));
        loop {
            let mut opened = std::fs::File::open(&file.path).map_err(reading)?;
            opened.seek(SeekFrom::Start(from)).map_err(reading)?;
            let stream = tokio_util::io::ReaderStream::new(tokio::io::AsyncReadExt::take(
                tokio::fs::File::from_std(opened),
                bytes,
            ));
            let request = self
                .http
                .put(address.clone())
                .header(header::CONTENT_LENGTH, bytes)
                .body(reqwest::Body::wrap_stream(stream));
            if let Some(response) = attempts.of(request.send().await).await? {
                return Ok(response);
            }
        }
    }

    fn address(&self, url: &str) -> Result<Url, HubError> {
        let wrong = |_| HubError::Answer { url: self.endpoint.to_string(), reason: "it names no URL".into() };
        url.parse().map_err(wrong)
    }

    fn is_own(&self, address: &Url) -> bool {
        address.origin() == self.endpoint.origin()
    }

    /// An address for an error. One elsewhere, and a query, may have a permission in it.
    fn shown(&self, url: &str) -> String {
        let Ok(mut address) = self.address(url) else { return self.endpoint.to_string() };
        if !self.is_own(&address) {
            return address.origin().ascii_serialization();
        }
        address.set_query(None);
        // A URL with a host has both.
        _ = address.set_username("").and_then(|()| address.set_password(None));
        address.into()
    }

    fn api(&self, path: &str) -> String {
        format!("{}/{path}", self.endpoint.as_str().trim_end_matches('/'))
    }

    async fn post(&self, url: &str, body: &Value) -> Result<Value, HubError> {
        self.send(url, |request| request.json(body), Method::POST).await
    }

    /// Sends a request, again if the hub is busy, and reads what it answers.
    async fn send(
        &self,
        url: &str,
        with: impl Fn(RequestBuilder) -> RequestBuilder,
        method: Method,
    ) -> Result<Value, HubError> {
        let address = self.address(url)?;
        let is_own = self.is_own(&address);
        let shown = self.shown(url);
        let mut attempts = Attempts::new(shown.clone(), is_own);
        loop {
            let request = with(self.http.request(method.clone(), address.clone())).timeout(REQUEST);
            let request = if is_own { request.bearer_auth(&self.token) } else { request };
            if let Some(response) = attempts.of(request.send().await).await? {
                let text = body(response)
                    .await
                    .map_err(|source| HubError::Unreachable { url: shown.clone(), source })?;
                return Ok(serde_json::from_slice(&text).unwrap_or(Value::Null));
            }
        }
    }

    fn read_as<T: serde::de::DeserializeOwned>(&self, url: &str, answer: Value) -> Result<T, HubError> {
        let wrong =
            |error: serde_json::Error| HubError::Answer { url: self.shown(url), reason: error.to_string() };
        serde_json::from_value(answer).map_err(wrong)
    }
}

/// Attempts of one request.
struct Attempts {
    /// Its address, as errors have it.
    shown: String,
    /// Whether it goes to the hub. What a store says may repeat the permission.
    is_own: bool,
    left: u32,
    backoff: Backoff,
}

impl Attempts {
    fn new(shown: String, is_own: bool) -> Self {
        Self { shown, is_own, left: ATTEMPTS - 1, backoff: Backoff::new(FIRST_WAIT, LONGEST_WAIT, 1) }
    }

    /// The response of an attempt, or none if there is another one.
    async fn of(&mut self, sent: reqwest::Result<Response>) -> Result<Option<Response>, HubError> {
        let (error, wait) = match sent {
            Ok(response) if response.status().is_success() => return Ok(Some(response)),
            Ok(response) => {
                let status = response.status();
                let asked = response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
                let asked = asked.and_then(|value| net::retry_after(value, chrono::Utc::now()));
                let text = body(response).await.unwrap_or_default();
                let text = String::from_utf8_lossy(&text);
                let text = if self.is_own { text.trim().chars().take(300).collect() } else { String::new() };
                let error = HubError::Status { url: self.shown.clone(), status: status.as_u16(), text };
                let is_busy = status.is_server_error()
                    || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
                if !is_busy {
                    return Err(error);
                }
                (error, asked)
            }
            Err(source) => {
                (HubError::Unreachable { url: self.shown.clone(), source: source.without_url() }, None)
            }
        };
        if self.left == 0 {
            return Err(error);
        }
        self.left -= 1;
        tokio::time::sleep(self.backoff.wait(wait)).await;
        Ok(None)
    }
}

async fn body(mut response: Response) -> reqwest::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(reqwest::Error::without_url)? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > MOST_BYTES {
            break;
        }
    }
    Ok(bytes)
}

/// The digest of a file, of which a piece is in memory at a time.
fn hashed(file: &File) -> Result<Hashed<'_>, HubError> {
    let reading = |source| HubError::Read { path: file.path.clone(), source };
    let mut opened = std::fs::File::open(&file.path).map_err(reading)?;
    let (mut context, mut piece) = (Context::new(&SHA256), vec![0; 1 << 20]);
    loop {
        match opened.read(&mut piece).map_err(reading)? {
            0 => return Ok(Hashed { file, oid: hex(context.finish().as_ref()) }),
            read => context.update(&piece[..read]),
        }
    }
}
