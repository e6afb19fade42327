//! `mcprl plan`.

use clap::Args;

use super::{Outcome, asked::Asked};
use crate::{
    error::Result,
    plan::{self, PlanError, Source, Survey},
    store::FileDigests,
    ui::{Printer, Voice, plan_text},
};

#[derive(Args)]
pub struct Plan {
    #[command(flatten)]
    asked: Asked,
}

impl Plan {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let Asked { file, resample, place, .. } = &self.asked;
        let source = Source::read(file)?;
        let store = place.store(Some(file))?;
        let files = FileDigests::load(&store);
        let plan = plan::Plan::new(&source, &self.asked.overrides(), &place.cards(Some(file)), &files)?;
        let survey = Survey::new(&plan, &store, &plan.resampled(resample)?)?;
        match printer.voice {
            Voice::Json => printer.json(&survey),
            Voice::Human => printer.data(&plan_text(&survey)),
        }
        survey.notes.iter().for_each(|note| printer.note(note));
        match survey.problems.is_empty() {
            true => Ok(Outcome::Worked),
            false => Err(PlanError::Refused(survey.problems).into()),
        }
    }
}
