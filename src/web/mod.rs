//! Pages in the browser: an HTTP server on loopback, and what it serves.
//!
//! [`Site`] is the live page of runs. It reads the journals and artifacts of a cache, also of a run that another process executes,
//! and changes nothing but labels. [`TraceReview`] is the page of a review of recorded conversations. A page shows texts of servers and models, which are hostile until shown otherwise: the server sends them
//! as JSON only, the page inserts them as text only, and its policy forbids everything else ([`guard`]).

mod answers;
mod assets;
mod events;
mod exams;
mod guard;
mod overview;
mod query;
mod runs;
mod site;
mod tasks;
#[cfg(test)]
mod tests;
mod traces;

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use axum::{Router, extract::Request, response::Response};
use tokio::net::TcpListener;

pub use site::Site;
pub use traces::TraceReview;

use self::query::Query;
use crate::error::{Diagnostic, Result};

/// Errors of the live page.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "web")]
pub enum WebError {
    #[error("cannot listen on {address}")]
    #[hint = "another program may use the port; choose one with `--port`"]
    Bind { address: SocketAddr, source: std::io::Error },
    #[error("cannot draw a random token")]
    Token(#[source] std::io::Error),
    #[error("the page's server failed")]
    Serve(#[source] std::io::Error),
    /// A page asked for a run, stage, episode or text that is not there.
    #[error("{0}")]
    #[diagnostic(class = usage)]
    NotFound(String),
    /// A page's request that cannot be read.
    #[error("{0}")]
    #[diagnostic(class = usage)]
    BadRequest(String),
}

impl WebError {
    /// There is no such call.
    fn nothing(name: &str) -> Self {
        Self::NotFound(format!("there is no \"{name}\" here"))
    }

    fn no_text() -> Self {
        Self::NotFound("there is no such text".into())
    }
}

/// What a page shows and changes.
pub trait Page: Send + Sync + 'static {
    /// The path of the file at `/`.
    fn index(&self) -> &'static str;

    /// The address that a browser is sent to with its token stored.
    fn start(&self) -> String {
        "/".into()
    }

    /// Reads what the page will ask for first.
    fn warm(&self) {}

    /// Answers `GET /api/NAME` with JSON.
    fn read(&self, name: &str, query: &Query) -> Result<String>;

    /// Answers `POST /api/NAME` with JSON.
    fn change(&self, name: &str, body: &[u8]) -> Result<String>;

    /// Answers `GET /api/events`, if the page has any.
    fn events(self: Arc<Self>, _query: &Query) -> Option<Result<Response, WebError>> {
        None
    }
}

/// A server that is bound to its port but does not answer yet.
pub struct WebServer<P> {
    listener: TcpListener,
    page: Arc<P>,
    port: u16,
    token: String,
}

impl<P: Page> WebServer<P> {
    /// Listens on 127.0.0.1. Port 0 picks any free port.
    ///
    /// # Errors
    /// If the port is in use.
    pub async fn bind(page: Arc<P>, port: u16) -> Result<Self, WebError> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let failed = |source| WebError::Bind { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let token = guard::new_token().map_err(WebError::Token)?;
        Ok(Self { listener, page, port, token })
    }

    /// The URL to open. It contains the token.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/?token={}", self.port, self.token)
    }

    /// Answers requests until the process ends or the future is dropped.
    ///
    /// # Errors
    /// If the listener fails.
    pub async fn serve(self) -> Result<(), WebError> {
        let Self { listener, page, port, token } = self;
        let warmed = Arc::clone(&page);
        std::thread::spawn(move || warmed.warm());
        let guard = Arc::new(guard::Guard { port, token });
        let answer = move |request: Request| {
            let (page, guard) = (Arc::clone(&page), Arc::clone(&guard));
            async move { answers::answer(page, &guard, request).await }
        };
        axum::serve(listener, Router::new().fallback(answer)).await.map_err(WebError::Serve)
    }
}
