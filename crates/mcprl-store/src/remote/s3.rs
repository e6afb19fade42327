//! Objects in a bucket of S3 or a compatible service.
//!
//! Keys, region and endpoint come from the usual environment: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
//! `AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_ENDPOINT_URL`, a web identity, or the machine's role. An `http://`
//! endpoint is used without encryption. A server's error reply may contain keys, so only its code is
//! reported.
//!
//! An upload has as long as a slow connection takes for its bytes. A client's read timeout would not do for it: reqwest starts
//! that with the request, so it limits the time for sending the body and waiting for the reply together. So there
//! are two clients, and only the one that reads has a read timeout.
//!
//! Objects are created only if absent with `If-None-Match: *`: of several concurrent writers, the server
//! accepts one.

use std::{
    future::Future,
    io::Write,
    path::Path,
    sync::{Arc, mpsc},
    time::Duration,
};

use futures::{StreamExt, TryFutureExt};
use object_store::{
    ClientOptions, Error, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutPayload, RetryConfig,
    UploadPart,
    aws::{AmazonS3, AmazonS3Builder},
    path::Path as Name,
};
use tokio::{io::AsyncReadExt, runtime::Runtime};

use super::{
    super::write::Created,
    objects::{ObjectError, Objects},
};

/// Whether this build supports S3.
pub const BUILT: bool = true;

const CONNECT: Duration = Duration::from_secs(5);
/// Limit of a read without a byte received.
const READ_TIMEOUT: Duration = Duration::from_secs(20);
/// Limit of one request without a body, retries included.
const SMALL_TIMEOUT: Duration = Duration::from_secs(30);
/// An upload that is slower than this counts as stuck. Bytes per second of one request.
const SLOWEST_UPLOAD: u64 = 16 << 10;
/// Size of the parts of a large object, and how many are uploaded at once.
const PART: usize = 16 << 20;
const AT_ONCE: usize = 4;

struct S3 {
    reader: Arc<AmazonS3>,
    /// Without a read timeout.
    writer: Arc<AmazonS3>,
    prefix: String,
    /// Has its own threads, because callers block and may be on a runtime's thread.
    runtime: Option<Runtime>,
}

pub fn open(bucket: &str, prefix: &str) -> Result<Box<dyn Objects>, ObjectError> {
    mcprl_base::net::use_ring();
    let endpoints = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
    let endpoint =
        endpoints.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    let clear = endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    connect(&builder, clear, prefix, READ_TIMEOUT)
}

fn connect(
    builder: &AmazonS3Builder,
    clear: bool,
    prefix: &str,
    read_timeout: Duration,
) -> Result<Box<dyn Objects>, ObjectError> {
    let options = ClientOptions::new()
        .with_allow_http(clear)
        .with_connect_timeout(CONNECT)
        .with_read_timeout_disabled()
        .with_timeout_disabled();
    let retry =
        RetryConfig { max_retries: 3, retry_timeout: Duration::from_secs(60), ..RetryConfig::default() };
    let builder = builder.clone().with_retry(retry).with_allow_http(clear);
    let client = |options: ClientOptions| -> Result<Arc<AmazonS3>, ObjectError> {
        let built = builder.clone().with_client_options(options).build();
        Ok(Arc::new(built.map_err(|cause| error(&cause))?))
    };
    let reader = client(options.clone().with_read_timeout(read_timeout))?;
    let writer = client(options)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("mcprl-s3")
        .enable_all()
        .build()
        .map_err(|cause| ObjectError::Unreachable(cause.to_string()))?;
    Ok(Box::new(S3 { reader, writer, prefix: prefix.to_owned(), runtime: Some(runtime) }))
}

impl Drop for S3 {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl S3 {
    fn name(&self, name: &str) -> Name {
        if self.prefix.is_empty() { Name::from(name) } else { Name::from(format!("{}/{name}", self.prefix)) }
    }

    /// Runs a future on the runtime and blocks until it is done. Callable from any thread.
    fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, ObjectError>> + Send + 'static,
    ) -> Result<T, ObjectError> {
        let gone = || ObjectError::Unreachable("the connection was closed".into());
        let (sender, receiver) = mpsc::sync_channel(1);
        self.runtime.as_ref().ok_or_else(gone)?.spawn(async move {
            _ = sender.send(work.await);
        });
        receiver.recv().map_err(|_| gone())?
    }

    fn put(&self, name: &str, bytes: &[u8], mode: PutMode) -> Result<Created, ObjectError> {
        let limit = upload_limit(bytes.len());
        let (store, name, bytes) = (self.writer.clone(), self.name(name), PutPayload::from(bytes.to_vec()));
        self.wait(in_time(limit, async move {
            match store.put_opts(&name, bytes, mode.into()).await {
                Ok(_) => Ok(Created::New),
                Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(Created::Exists),
                Err(cause) => Err(error(&cause)),
            }
        }))
    }
}

async fn in_time<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, ObjectError>>,
) -> Result<T, ObjectError> {
    let late = |_| Err(ObjectError::Unreachable(format!("no answer within {} s", limit.as_secs())));
    tokio::time::timeout(limit, work).await.unwrap_or_else(late)
}

/// Limit of one upload of this many bytes, retries included.
fn upload_limit(bytes: usize) -> Duration {
    SMALL_TIMEOUT + Duration::from_secs(bytes as u64 / SLOWEST_UPLOAD)
}

impl Objects for S3 {
    fn read(&self, name: &str, to: &mut dyn Write) -> Result<bool, ObjectError> {
        let (store, name) = (self.reader.clone(), self.name(name));
        let found = self.wait(in_time(SMALL_TIMEOUT, async move {
            match store.get(&name).await {
                Ok(found) => Ok(Some(found)),
                Err(cause) if absent(&cause) => Ok(None),
                Err(cause) => Err(error(&cause)),
            }
        }))?;
        let Some(found) = found else { return Ok(false) };
        let mut blocks = found.into_stream();
        // The caller's thread owns `to`, so the stream moves to the runtime and back for each block.
        loop {
            let (block, rest) = self.wait(async move {
                let block = blocks.next().await.transpose().map_err(|cause| error(&cause))?;
                Ok((block, blocks))
            })?;
            let Some(block) = block else { return Ok(true) };
            to.write_all(&block).map_err(ObjectError::Sink)?;
            blocks = rest;
        }
    }

    fn size(&self, name: &str) -> Result<Option<u64>, ObjectError> {
        let (store, name) = (self.reader.clone(), self.name(name));
        self.wait(in_time(SMALL_TIMEOUT, async move {
            match store.head(&name).await {
                Ok(meta) => Ok(Some(meta.size)),
                Err(cause) if absent(&cause) => Ok(None),
                Err(cause) => Err(error(&cause)),
            }
        }))
    }

    fn write(&self, name: &str, file: &Path) -> Result<(), ObjectError> {
        let (store, name, path) = (self.writer.clone(), self.name(name), file.to_owned());
        self.wait(async move {
            let mut file = tokio::fs::File::open(&path).await.map_err(ObjectError::Sink)?;
            let length = file.metadata().await.map_err(ObjectError::Sink)?.len();
            if length <= PART as u64 {
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes).await.map_err(ObjectError::Sink)?;
                let sent = store.put(&name, bytes.into()).map_ok(drop).map_err(|cause| error(&cause));
                return in_time(upload_limit(PART), sent).await;
            }
            let begun = store.put_multipart(&name).map_err(|cause| error(&cause));
            let mut upload = in_time(SMALL_TIMEOUT, begun).await?;
            match parts(&mut *upload, file).await {
                Ok(()) => Ok(()),
                Err(cause) => {
                    // Abandoned parts are invisible but cost money.
                    _ = in_time(SMALL_TIMEOUT, upload.abort().map_err(|cause| error(&cause))).await;
                    Err(cause)
                }
            }
        })
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), ObjectError> {
        self.put(name, bytes, PutMode::Overwrite).map(drop)
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Result<Created, ObjectError> {
        self.put(name, bytes, PutMode::Create)
    }
}

async fn parts(upload: &mut dyn MultipartUpload, mut file: tokio::fs::File) -> Result<(), ObjectError> {
    let mut uploads = futures::stream::FuturesUnordered::new();
    let sent = |part: UploadPart| in_time(upload_limit(PART), part.map_err(|cause| error(&cause)));
    loop {
        let mut part = Vec::with_capacity(PART);
        let read = (&mut file).take(PART as u64).read_to_end(&mut part).await.map_err(ObjectError::Sink)?;
        if read == 0 {
            break;
        }
        while uploads.len() >= AT_ONCE {
            uploads.next().await.transpose()?;
        }
        uploads.push(sent(upload.put_part(part.into())));
    }
    while uploads.next().await.transpose()?.is_some() {}
    drop(uploads);
    in_time(upload_limit(PART), upload.complete().map_ok(drop).map_err(|cause| error(&cause))).await
}

/// Whether the object does not exist but its bucket does.
fn absent(cause: &Error) -> bool {
    matches!(cause, Error::NotFound { .. }) && code(cause).is_none_or(|code| code != "NoSuchBucket")
}

/// Converts an error to a message without any part of the request.
fn error(cause: &Error) -> ObjectError {
    let code = code(cause).map(|code| format!(" ({code})")).unwrap_or_default();
    match cause {
        Error::NotFound { .. } => ObjectError::Unreachable(format!("there is no such bucket{code}")),
        Error::PermissionDenied { .. } => ObjectError::Refused(format!("access is denied{code}")),
        Error::Unauthenticated { .. } => ObjectError::Refused(format!("the keys are not accepted{code}")),
        Error::UnknownConfigurationKey { key, .. } => {
            ObjectError::Refused(format!("the environment sets `{key}`, which is not known"))
        }
        _ if code.is_empty() => ObjectError::Unreachable(reason(cause)),
        _ => ObjectError::Unreachable(format!("it failed{code}")),
    }
}

/// The server's error code: `<Code>AccessDenied</Code>`.
fn code(cause: &Error) -> Option<String> {
    let text = cause.to_string();
    let (_, rest) = text.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    let plain = code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    plain.then(|| code.to_owned())
}

/// The root cause, for errors without a reply from the server.
fn reason(cause: &Error) -> String {
    let mut inner: &dyn std::error::Error = cause;
    while let Some(source) = inner.source() {
        inner = source;
    }
    let text = inner.to_string();
    let secrets = ["AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID"];
    let contains =
        |name: &&str| std::env::var(name).is_ok_and(|value| value.len() > 3 && text.contains(&value));
    if text.contains('<') || text.contains('?') || secrets.iter().any(contains) {
        return "unexpected response".into();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Read},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    /// The read timeout.
    const QUIET: Duration = Duration::from_millis(400);

    /// A server that answers each request only after a while. Answers are empty.
    fn slow_server(delay: Duration) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                std::thread::spawn(move || answer(&stream, delay));
            }
        });
        address
    }

    fn answer(mut stream: &TcpStream, delay: Duration) -> Option<()> {
        let mut requests = BufReader::new(stream);
        loop {
            let mut length = 0;
            loop {
                let mut line = String::new();
                if requests.read_line(&mut line).ok()? == 0 {
                    return None;
                }
                let header = line.trim_end().to_ascii_lowercase();
                if header.is_empty() {
                    break;
                }
                if let Some(text) = header.strip_prefix("content-length:") {
                    length = text.trim().parse().ok()?;
                }
            }
            std::io::copy(&mut (&mut requests).take(length), &mut std::io::sink()).ok()?;
            std::thread::sleep(delay);
            let headers = "content-length: 0\r\netag: \"x\"\r\nlast-modified: Tue, 24 Nov 2026 09:00:00 GMT";
            write!(stream, "HTTP/1.1 200 OK\r\n{headers}\r\n\r\n").ok()?;
        }
    }

    fn objects(endpoint: &str) -> Box<dyn Objects> {
        mcprl_base::net::use_ring();
        let builder = AmazonS3Builder::new()
            .with_bucket_name("bucket")
            .with_region("us-east-1")
            .with_access_key_id("a")
            .with_secret_access_key("b")
            .with_endpoint(endpoint);
        connect(&builder, true, "", QUIET).unwrap()
    }

    #[test]
    fn an_upload_may_take_longer_than_a_read_that_hears_nothing() {
        let objects = objects(&slow_server(3 * QUIET));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![7; 1 << 20]).unwrap();
        objects.write("v1/blobs/x", file.path()).unwrap();
        objects.replace("v1/ac/x", b"record").unwrap();
        assert_eq!(objects.create("v1/ac/x", b"record").unwrap(), Created::New);
        let Err(ObjectError::Unreachable(problem)) = objects.size("v1/ac/x") else {
            panic!("should be late")
        };
        assert!(!problem.is_empty());
    }

    #[test]
    fn the_limit_of_an_upload_grows_with_its_bytes() {
        assert_eq!(upload_limit(0), SMALL_TIMEOUT);
        assert!(upload_limit(PART) > Duration::from_secs(600), "{:?}", upload_limit(PART));
    }
}
