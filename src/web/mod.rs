//! The live page of a run: an HTTP server on loopback, and the page it serves.
//!
//! It reads the journals and artifacts of a cache, also of a run that another process executes, and changes nothing but
//! labels. The page shows texts of servers and models, which are hostile until shown otherwise: the server sends them
//! as JSON only, the page inserts them as text only, and its policy forbids everything else ([`guard`]).

mod answers;
mod assets;
mod events;
mod exams;
mod guard;
mod overview;
mod query;
mod site;
mod tasks;
#[cfg(test)]
mod tests;

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use axum::{Router, extract::Request};
use tokio::net::TcpListener;

pub use site::Site;

use crate::error::{Class, Diagnostic, Result};

/// Errors of the live page.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    #[error("cannot listen on {address}")]
    Bind {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot draw a random token")]
    Token(#[source] std::io::Error),
    #[error("the page's server failed")]
    Serve(#[source] std::io::Error),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    BadRequest(String),
}

impl Diagnostic for WebError {
    fn code(&self) -> &'static str {
        match self {
            Self::Bind { .. } => "web::bind",
            Self::Token(_) => "web::token",
            Self::Serve(_) => "web::serve",
            Self::NotFound(_) => "web::not_found",
            Self::BadRequest(_) => "web::bad_request",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Bind { .. } => Some("another program may use the port; choose one with `--port`".into()),
            _ => None,
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::NotFound(_) | Self::BadRequest(_) => Class::Usage,
            _ => Class::Work,
        }
    }
}

/// A server that is bound to its port but does not answer yet.
pub struct WebServer {
    listener: TcpListener,
    site: Arc<Site>,
    port: u16,
    token: String,
}

impl WebServer {
    /// Listens on 127.0.0.1. Port 0 picks any free port.
    ///
    /// # Errors
    /// If the port is in use.
    pub async fn bind(site: Arc<Site>, port: u16) -> Result<Self, WebError> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let failed = |source| WebError::Bind { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let token = guard::new_token().map_err(WebError::Token)?;
        Ok(Self { listener, site, port, token })
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
        let Self { listener, site, port, token } = self;
        let guard = Arc::new(guard::Guard { port, token });
        let answer = move |request: Request| {
            let (site, guard) = (Arc::clone(&site), Arc::clone(&guard));
            async move { answers::answer(site, &guard, request).await }
        };
        axum::serve(listener, Router::new().fallback(answer)).await.map_err(WebError::Serve)
    }
}
