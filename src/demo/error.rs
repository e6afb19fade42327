//! Errors of the demo servers. Their codes begin as those of the client do.

use std::{io, net::SocketAddr};

use super::{KINDS, sqlite::DatabaseError};
use crate::error::{Class, Diagnostic, did_you_mean};

#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(prefix = "mcp::", serialize_all = "snake_case")]
pub enum DemoError {
    #[error("there is no demo server `{0}`")]
    UnknownDemo(String),
    #[error("the demo server listens on loopback only, not on {0}")]
    NotLoopback(SocketAddr),
    #[error("cannot listen on {address}")]
    Bind {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("the demo server failed")]
    Serve(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("cannot build the demo server's database")]
    DemoDatabase(#[source] DatabaseError),
}

impl Diagnostic for DemoError {
    fn code(&self) -> &'static str {
        self.into()
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::UnknownDemo(kind) => match did_you_mean(kind, KINDS) {
                Some(kind) => return Some(format!("did you mean `{kind}`?")),
                None => return Some(format!("available: {}", KINDS.join(", "))),
            },
            Self::NotLoopback(address) => return Some(format!("--http 127.0.0.1:{}", address.port())),
            Self::Bind { .. } => "check that no other program uses the port; port 0 picks a free one",
            Self::DemoDatabase(_) => {
                "check that the folder for temporary files (TMPDIR) is writable and not full"
            }
            Self::Serve(_) => return None,
        };
        Some(hint.into())
    }

    fn class(&self) -> Class {
        match self {
            Self::UnknownDemo(_) | Self::NotLoopback(_) => Class::Usage,
            Self::Bind { .. } | Self::Serve(_) | Self::DemoDatabase(_) => Class::Work,
        }
    }
}
