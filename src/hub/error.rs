use std::path::PathBuf;

use crate::error::{Class, Diagnostic};

#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(prefix = "push::", serialize_all = "snake_case")]
pub enum HubError {
    #[error("\"{text}\" is no repository")]
    Name { text: String },
    #[error("the hub's address {endpoint} cannot be used: {reason}")]
    Endpoint { endpoint: String, reason: String },
    #[error("there is no token for the hub")]
    NoToken,
    #[error("cannot set up an HTTP client")]
    #[strum(serialize = "http_client")]
    Client(#[source] reqwest::Error),
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{url} cannot be reached")]
    Unreachable {
        url: String,
        #[source]
        source: reqwest::Error,
    },
    #[error("{url} answered with status {status}: {text}")]
    Status { url: String, status: u16, text: String },
    #[error("{url} sent an answer that cannot be used: {reason}")]
    Answer { url: String, reason: String },
    #[error("{repo} is public")]
    Public { repo: String },
    #[error("{file} holds what looks like {kind}")]
    Secret { file: String, kind: &'static str },
    #[error("{path} has nothing to upload")]
    Nothing { path: PathBuf },
    #[error("nothing is uploaded without a yes")]
    NotConfirmed,
}

impl Diagnostic for HubError {
    fn code(&self) -> &'static str {
        self.into()
    }

    fn hint(&self) -> Option<String> {
        Some(
            match self {
                Self::Name { .. } => "write `--to hub:ORG/NAME`",
                Self::Endpoint { .. } => "HF_ENDPOINT should be https, or http on this machine",
                Self::NoToken => "`hf auth login` keeps one, or set HF_TOKEN; it has to be allowed to write",
                Self::Status { status: 401 | 403, .. } => "check that the token may write to this repository",
                Self::Unreachable { .. } | Self::Status { status: 429 | 500.., .. } => {
                    "run the command again: what is uploaded is not sent twice"
                }
                Self::Public { .. } => "`--public` uploads to it; another name makes a private one",
                Self::Secret { .. } => "remove it, or upload it as it is with `--allow-secrets`",
                Self::NotConfirmed => "`--yes` answers for you",
                _ => return None,
            }
            .into(),
        )
    }

    fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Status { status: 408 | 429 | 500.., .. })
    }

    fn class(&self) -> Class {
        match self {
            Self::Read { .. }
            | Self::Unreachable { .. }
            | Self::Status { .. }
            | Self::Answer { .. }
            | Self::Client(_) => Class::Work,
            _ => Class::Usage,
        }
    }
}
