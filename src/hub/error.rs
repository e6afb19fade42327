use std::path::PathBuf;

use crate::error::Diagnostic;

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "push", class = usage)]
pub enum HubError {
    #[error("\"{text}\" is no repository")]
    #[hint = "write `--to hub:ORG/NAME`"]
    Name { text: String },
    #[error("the hub's address {endpoint} cannot be used: {reason}")]
    #[hint = "HF_ENDPOINT should be https, or http on this machine"]
    Endpoint { endpoint: String, reason: String },
    #[error("there is no token for the hub")]
    #[hint = "`hf auth login` keeps one, or set HF_TOKEN; it has to be allowed to write"]
    NoToken,
    #[error("cannot set up an HTTP client")]
    #[diagnostic(code = "http_client", class = work)]
    Client(#[source] reqwest::Error),
    #[error("cannot read {path}")]
    #[diagnostic(class = work)]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{url} cannot be reached")]
    #[diagnostic(class = work, transient)]
    #[hint = "run the command again: what is uploaded is not sent twice"]
    Unreachable { url: String, source: reqwest::Error },
    #[error("{url} answered with status {status}{}{text}", if text.is_empty() { "" } else { ": " })]
    #[diagnostic(class = work, transient if matches!(status, 408 | 429 | 500..))]
    #[hint("check that the token may write to this repository" if matches!(status, 401 | 403))]
    #[hint("run the command again: what is uploaded is not sent twice" if matches!(status, 429 | 500..))]
    Status { url: String, status: u16, text: String },
    #[error("{url} sent an answer that cannot be used: {reason}")]
    #[diagnostic(class = work)]
    Answer { url: String, reason: String },
    #[error("{repo} is public")]
    #[hint = "`--public` uploads to it; another name makes a private one"]
    Public { repo: String },
    #[error("{file} holds what looks like {kind}")]
    #[hint = "remove it, or upload it as it is with `--allow-secrets`"]
    Secret { file: String, kind: &'static str },
    #[error("two files would be `{name}` in the repository")]
    #[hint = "rename one, or upload a folder that has both"]
    Twice { name: String },
    #[error("{path} has nothing to upload")]
    Nothing { path: PathBuf },
    #[error("nothing is uploaded without a yes")]
    #[hint = "`--yes` answers for you"]
    NotConfirmed,
}
