//! `mcprl schema`.

use std::path::PathBuf;

use clap::Args;

use super::{Outcome, place::Place};
use crate::{
    error::Result,
    plan::{self, PlanError, Source},
    ui::Printer,
};

#[derive(Args)]
pub struct Schema {
    /// A run file: stage kinds of its project are described as well.
    file: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
}

impl Schema {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        // A file with mistakes in it is what an editor needs the schema for.
        if let Some(Err(cause @ PlanError::Read { .. })) = self.file.as_deref().map(Source::read) {
            return Err(cause.into());
        }
        let cards = self.place.cards(self.file.as_deref());
        // A schema is JSON whoever asks for it.
        printer.json(&plan::schema(&cards)?);
        Ok(Outcome::Success)
    }
}
