//! Errors of the server.

use crate::error::Diagnostic;

/// Errors of the server itself.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "serve")]
pub enum ServeError {
    #[error("cannot listen on {address}")]
    #[hint = "another program may use the port; choose one with `--port`"]
    Bind { address: std::net::SocketAddr, source: std::io::Error },
    #[error("{address} can be reached from other machines, and no key is set")]
    #[diagnostic(class = usage)]
    #[hint = "name an environment variable with a key: `--api-key-env NAME`"]
    Open { address: std::net::SocketAddr },
    #[error("a task cannot be played at the endpoint: {reason}")]
    Check { reason: String },
    #[error("cannot keep what is served in {path}")]
    #[hint = "`--keep` names a folder; requests are answered, but not kept there"]
    Keep { path: std::path::PathBuf, source: std::io::Error },
    #[error("request {told}")]
    Request { told: String },
    #[error("the server failed")]
    Serve(#[source] std::io::Error),
}
