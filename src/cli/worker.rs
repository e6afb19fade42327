//! `mcprl worker`: runs stages of a run that `mcprl run` has started, in a process of their own.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::Args;

use super::Outcome;
use crate::{
    error::Result,
    exec::{self, WorkerCommand},
    store::Store,
};

#[derive(Args)]
pub struct Worker {
    run: String,
    #[arg(long)]
    cache: PathBuf,
    #[arg(long)]
    stages: Option<PathBuf>,
}

impl Worker {
    pub fn execute(self) -> Result<Outcome> {
        exec::work(Store::open(&self.cache)?, &self.run, self.stages)?;
        Ok(Outcome::Success)
    }
}

/// How a run starts its worker.
pub fn command(store: &Store, run: &str, stages: Option<&Path>) -> WorkerCommand {
    let mut arguments: Vec<OsString> =
        vec!["worker".into(), run.into(), "--cache".into(), store.root().into()];
    if let Some(stages) = stages {
        arguments.extend(["--stages".into(), stages.into()]);
    }
    // Also if the file has been replaced since: a worker is the same program.
    let own = PathBuf::from("/proc/self/exe");
    let program = if own.exists() { own } else { std::env::current_exe().unwrap_or_else(|_| "mcprl".into()) };
    WorkerCommand { program, arguments }
}
