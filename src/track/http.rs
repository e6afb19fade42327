//! Requests to trackers from a thread without a runtime.

use std::time::Duration;

use reqwest::{Client, RequestBuilder, Url, redirect::Policy};
use tokio::runtime::Runtime;

use super::TrackError;
use crate::{net, report::escape};

const CONNECT: Duration = Duration::from_secs(5);
const REQUEST: Duration = Duration::from_secs(15);
/// Most bytes of an answer that are read.
const MOST_BYTES: usize = 8 << 20;
/// Most characters of a server's words that are shown.
const SHOWN: usize = 300;

/// A client with time limits. Answers are at most 8 MiB long.
pub struct Http {
    pub client: Client,
    runtime: Runtime,
}

/// What a server answered.
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

impl Http {
    /// `url`: where requests go. A proxy of the environment is used unless it is on this machine.
    pub fn new(url: &str) -> Result<Self, TrackError> {
        net::use_ring();
        let is_local = Url::parse(url).is_ok_and(|url| url.scheme() == "http" && net::is_confidential(&url));
        let builder = Client::builder().redirect(Policy::none()).connect_timeout(CONNECT).timeout(REQUEST);
        let builder = if is_local { builder.no_proxy() } else { builder };
        let client = builder.build().map_err(TrackError::Client)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Ok(Self { client, runtime: runtime.map_err(TrackError::Thread)? })
    }

    /// Sends a request and reads the whole answer, whatever its status is. `url` is shown in errors.
    ///
    /// # Errors
    /// If there is no answer in time.
    pub fn send(&self, url: &str, request: RequestBuilder) -> Result<Answer, TrackError> {
        let unreachable = |source: reqwest::Error| TrackError::Unreachable {
            url: url.to_owned(),
            source: source.without_url(),
        };
        self.runtime.block_on(async {
            let mut answer = request.send().await.map_err(unreachable)?;
            let status = answer.status().as_u16();
            let mut body = Vec::new();
            while let Some(chunk) = answer.chunk().await.map_err(unreachable)? {
                if body.len() + chunk.len() > MOST_BYTES {
                    break;
                }
                body.extend_from_slice(&chunk);
            }
            Ok(Answer { status, body })
        })
    }
}

impl Answer {
    /// The error for a status that is none of success.
    pub fn refused(&self, url: &str, message: &str) -> TrackError {
        let text = match message {
            "" => String::from_utf8_lossy(&self.body).into_owned(),
            message => message.to_owned(),
        };
        TrackError::Status { url: url.to_owned(), status: self.status, body: shown(&text) }
    }
}

/// The beginning of what a server says, for an error.
pub fn shown(text: &str) -> String {
    escape::visible(&escape::shortened(text.trim(), SHOWN)).into_owned()
}

/// The token in this environment variable.
///
/// # Errors
/// If it is not set, or would be sent unencrypted to another machine.
pub fn token(variable: &str, url: &str) -> Result<String, TrackError> {
    let value = std::env::var(variable).ok().filter(|value| !value.is_empty());
    let token = value.ok_or_else(|| TrackError::NoToken { variable: variable.to_owned() })?;
    confidential(variable, url).map(|()| token)
}

/// Whether what this variable holds may be sent to this URL.
///
/// # Errors
/// If it may not.
pub fn confidential(variable: &str, url: &str) -> Result<(), TrackError> {
    match Url::parse(url).is_ok_and(|url| net::is_confidential(&url)) {
        true => Ok(()),
        false => Err(TrackError::Unencrypted { url: url.to_owned(), variable: variable.to_owned() }),
    }
}
