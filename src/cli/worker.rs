//! `mcprl worker`: runs stages of a run that `mcprl run` has started, in a process of their own.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::Args;

use super::Outcome;
use crate::{
    error::Result,
    exec::{
        self, Program, WorkerCommand,
        jobs::{
            JobFolder,
            work::{JobEnd, work_on},
        },
    },
    store::Store,
    ui::Printer,
};

#[derive(Args)]
pub struct Worker {
    run: String,
    #[arg(long)]
    cache: PathBuf,
    #[arg(long)]
    stages: Option<PathBuf>,
    /// Work on the job of this folder alone.
    #[arg(long)]
    job: Option<PathBuf>,
}

impl Worker {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let store = Store::open(&self.cache)?;
        let Some(job) = self.job else {
            exec::work(store, &self.run, self.stages)?;
            return Ok(Outcome::Success);
        };
        Ok(match work_on(&store, &self.run, self.stages, &JobFolder::at(job), &|text| printer.say(text))? {
            JobEnd::Done => Outcome::Success,
            JobEnd::Failed => Outcome::Failed,
            JobEnd::Stopped => Outcome::Interrupted,
        })
    }
}

/// How a job starts this program.
pub fn program(store: &Store, run: &str, stages: Option<&Path>) -> Program {
    let path = std::env::current_exe().unwrap_or_else(|_| "mcprl".into());
    Program { path, run: run.to_owned(), cache: store.root().to_owned(), stages: stages.map(Path::to_owned) }
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
