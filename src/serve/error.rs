//! Errors of the server.

use crate::error::{Class, Diagnostic};

/// Errors of the server itself.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(prefix = "serve::", serialize_all = "snake_case")]
pub enum ServeError {
    #[error("cannot listen on {address}")]
    Bind {
        address: std::net::SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error("{address} can be reached from other machines, and no key is set")]
    Open { address: std::net::SocketAddr },
    #[error("a task cannot be played at the endpoint: {reason}")]
    Check { reason: String },
    #[error("cannot keep what is served in {path}")]
    Keep {
        path: std::path::PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the server failed")]
    Serve(#[source] std::io::Error),
}

impl Diagnostic for ServeError {
    fn code(&self) -> &'static str {
        self.into()
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Bind { .. } => Some("another program may use the port; choose one with `--port`".into()),
            Self::Open { .. } => Some("name an environment variable with a key: `--api-key-env NAME`".into()),
            Self::Keep { .. } => {
                Some("`--keep` names a folder; requests are answered, but not kept there".into())
            }
            Self::Check { .. } | Self::Serve(_) => None,
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::Open { .. } => Class::Usage,
            _ => Class::Work,
        }
    }
}
