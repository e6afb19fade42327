//! What keeps a chat from going on.

use std::path::PathBuf;

use crate::error::Diagnostic;

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "talk", class = usage)]
pub enum TalkError {
    #[error("cannot write the trace {path}")]
    #[diagnostic(class = work)]
    #[hint = "name a folder that you may write with `--trace-dir DIR`"]
    Trace { path: PathBuf, source: std::io::Error },
    #[error("{path} is not a trace: {reason}")]
    #[hint = "a trace is one line of JSON with `messages`, as `--trace-dir` writes it"]
    Replay { path: PathBuf, reason: String },
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} has no tasks: {reason}")]
    #[hint = "write one task per line, or JSON: {{\"task\": \"…\"}}"]
    Tasks { path: PathBuf, reason: String },
    #[error("{url} is an endpoint, and no model is named")]
    #[hint = "name it with `--model NAME`; `curl {url}/models` lists those that it has"]
    NoModelName { url: String },
    #[error("`--model` names a model behind an endpoint, and `{subject}` is no address of one")]
    #[hint = "write the address up to and including the version, as http://localhost:8000/v1"]
    NoEndpoint { subject: String },
    #[error("cannot read from the terminal: {reason}")]
    #[diagnostic(class = work)]
    Terminal { reason: String },
}
