//! `mcprl plan`.

use std::path::PathBuf;

use clap::Args;

use super::{Outcome, place::Place};
use crate::{
    error::Result,
    plan::{self, Overrides, Source, Survey},
    store::FileDigests,
    ui::{Printer, Voice, plan_text},
};

#[derive(Args)]
pub struct Plan {
    /// The run file.
    file: PathBuf,
    /// Change a value of the run file: `--set loop.train.iterations=2`.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Draw this stage's sample anew.
    #[arg(long, value_name = "STAGE")]
    resample: Vec<String>,
    #[command(flatten)]
    place: Place,
}

impl Plan {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let source = Source::read(&self.file)?;
        let store = self.place.store(Some(&self.file))?;
        let overrides = Overrides::new(std::env::vars(), self.set);
        let files = FileDigests::load(&store);
        let plan = plan::Plan::new(&source, &overrides, &self.place.cards(Some(&self.file)), &files)?;
        let survey = Survey::new(&plan, &store, &plan.resampled(&self.resample)?)?;
        match printer.voice {
            Voice::Json => printer.json(&survey),
            Voice::Human => printer.data(&plan_text(&survey)),
        }
        Ok(Outcome::Worked)
    }
}
