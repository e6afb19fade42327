//! `mcprl plan`.

use clap::Args;

use super::{Outcome, run_args::RunArgs};
use crate::{
    error::Result,
    plan::{self, PlanError, PlanReport, Source},
    store::FileDigests,
    ui::{Printer, plan_text},
};

#[derive(Args)]
pub struct Plan {
    #[command(flatten)]
    args: RunArgs,
    /// Print the run file with what it extends and what options change, and plan nothing.
    #[arg(long)]
    expand: bool,
}

impl Plan {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let RunArgs { file, resample, until, locations, .. } = &self.args;
        let source = Source::read(file)?;
        let store = locations.store(Some(file))?;
        let overrides = self.args.overrides(&source, &store)?;
        if self.expand {
            printer.data(plan::expanded(&source, &overrides)?.trim_end());
            return Ok(Outcome::Success);
        }
        let files = FileDigests::load(&store);
        let plan = plan::Plan::new(&source, &overrides, &locations.cards(Some(file)), &files)?;
        let (resample, plan) = (plan.resampled(resample)?, plan.until(until)?);
        let report = PlanReport::new(&plan, &store, &resample)?;
        printer.show(&report, || plan_text(&report));
        report.notes.iter().for_each(|note| printer.note(note));
        match report.problems.is_empty() {
            true => Ok(Outcome::Success),
            false => Err(PlanError::Refused(report.problems).into()),
        }
    }
}
