//! Errors of the demo servers. Their codes begin as those of the client do.

use std::{io, net::SocketAddr};

use super::{KINDS, sqlite::DatabaseError};
use crate::error::{Diagnostic, did_you_mean};

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "mcp")]
pub enum DemoError {
    #[error("there is no demo server `{0}`")]
    #[diagnostic(class = usage)]
    #[hint("did you mean `{kind}`?" if let Some(kind) = did_you_mean(_0, KINDS))]
    #[hint(format!("available: {}", KINDS.join(", ")))]
    UnknownDemo(String),
    #[error("the demo server listens on loopback only, not on {0}")]
    #[diagnostic(class = usage)]
    #[hint(format!("--http 127.0.0.1:{}", _0.port()))]
    NotLoopback(SocketAddr),
    #[error("cannot listen on {address}")]
    #[hint = "check that no other program uses the port; port 0 picks a free one"]
    Bind { address: SocketAddr, source: io::Error },
    #[error("the demo server failed")]
    Serve(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("cannot build the demo server's database")]
    #[hint = "check that the folder for temporary files (TMPDIR) is writable and not full"]
    DemoDatabase(#[source] DatabaseError),
}
