//! `mcprl man`.

use std::path::PathBuf;

use clap::{Args, CommandFactory};
use serde_json::json;

use super::{Arguments, Outcome};
use crate::{
    error::{Diagnostic, Result},
    ui::Printer,
};

#[derive(Args)]
pub struct Man {
    /// The folder to write to; it is made if it does not exist.
    folder: PathBuf,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("cannot write manual pages to {}", folder.display())]
#[diagnostic(code = "cli::man")]
struct ManError {
    folder: PathBuf,
    source: std::io::Error,
}

impl Man {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let Self { folder } = self;
        std::fs::create_dir_all(&folder)
            .and_then(|()| clap_mangen::generate_to(Arguments::command(), &folder))
            .map_err(|source| ManError { folder: folder.clone(), source })?;
        let text = || format!("man -l {} shows them", folder.join("mcprl.1").display());
        printer.show(&json!({ "folder": folder }), text);
        Ok(Outcome::Success)
    }
}
