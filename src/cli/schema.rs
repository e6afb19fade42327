//! `mcprl schema`.

use std::path::PathBuf;

use clap::Args;

use super::{Outcome, locations::Locations};
use crate::{
    error::Result,
    plan::{self, PlanError, RunFile},
    ui::Printer,
};

#[derive(Args)]
pub struct Schema {
    /// A run file, whose project's stage kinds are included in the schema.
    file: Option<PathBuf>,
    #[command(flatten)]
    locations: Locations,
}

impl Schema {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        // A file with other mistakes still gets its schema, because editors use the schema to find them.
        if let Some(Err(cause @ PlanError::Read { .. })) = self.file.as_deref().map(RunFile::read) {
            return Err(cause.into());
        }
        let cards = self.locations.cards(self.file.as_deref());
        // The schema is JSON in every output format.
        printer.json(&plan::schema(&cards)?);
        Ok(Outcome::Success)
    }
}
