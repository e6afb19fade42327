//! `warmup`: a base model from nothing, so that a run needs no download.
//!
//! A scripted worker, sloppy on purpose, answers training questions on the live server; a tokenizer is trained on its
//! traces, then a small decoder learns to imitate it. What comes out is an ordinary Hugging Face folder.

pub mod corpus;
mod folder;
mod phrases;
mod tokenizer;
pub mod traces;
mod train;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use crate::error::Diagnostic;

#[derive(Debug, thiserror::Error)]
pub enum WarmupError {
    #[error("cannot write {path}")]
    Write {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the tokenizer cannot be made: {reason}")]
    Tokenizer { reason: String },
}

impl Diagnostic for WarmupError {
    fn code(&self) -> &'static str {
        match self {
            Self::Write { .. } => "warmup::write",
            Self::Tokenizer { .. } => "warmup::tokenizer",
        }
    }
}
