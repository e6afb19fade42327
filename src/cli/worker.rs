//! `mcprl worker`: runs a stage of a run that `mcprl run` has submitted as a job.

use std::path::{Path, PathBuf};

use clap::Args;

use super::Outcome;
use crate::{
    error::Result,
    exec::{
        Program,
        jobs::{
            JobFolder,
            work::{JobEnd, work_on},
        },
    },
    store::Store,
    ui::Printer,
};

#[derive(Args)]
pub struct WorkerArgs {
    run: String,
    #[arg(long)]
    cache: PathBuf,
    #[arg(long)]
    stages: Option<PathBuf>,
    /// The job's folder.
    #[arg(long)]
    job: PathBuf,
}

impl WorkerArgs {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let (store, job) = (Store::open(&self.cache)?, JobFolder::at(self.job));
        Ok(match work_on(&store, &self.run, self.stages, &job, &|text| printer.say(text))? {
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
