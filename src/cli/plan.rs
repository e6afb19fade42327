//! `mcprl plan`.

use clap::Args;

use super::{Outcome, listing, run_args::RunArgs};
use crate::{
    error::Result,
    offered::Offered,
    plan::{self, PlanError, PlanReport, Problem, RunFile, Subject},
    stage::kind::Requirement,
    store::FileDigests,
    ui::{Printer, plan_text},
};

#[derive(Args)]
pub struct PlanArgs {
    #[command(flatten)]
    args: RunArgs,
    /// Print the run file with what it extends and what options change, and plan nothing.
    #[arg(long)]
    expand: bool,
}

/// What stages that will run do with the tools: those that write and are called, and those that are left out.
fn about_tools(plan: &plan::Plan, offered: &Offered) -> (Vec<String>, Vec<Problem>) {
    let Some(servers) = &plan.servers else { return Default::default() };
    let (mut found, mut problems): (Vec<String>, Vec<Problem>) = Default::default();
    for node in plan.order().iter().map(|index| plan.node(*index)) {
        let about = node
            .stage
            .kind
            .as_ref()
            .map(|kind| kind.about_tools(&listing::tools_of(plan, node, offered, servers), servers));
        for requirement in about.unwrap_or_default() {
            let text = match requirement {
                Requirement::Met(text) => text,
                Requirement::Doubtful { text, hint } => format!("{text}; {hint}"),
                Requirement::Missing(cause) => {
                    let is_known = |known: &Problem| known.cause.to_string() == cause.to_string();
                    if !problems.iter().any(is_known) {
                        let stage = Some(node.stage.name.clone());
                        problems.push(Problem { stage, subject: Subject::Stage, place: None, cause });
                    }
                    continue;
                }
            };
            let text = format!("{}: {text}", node.stage.name);
            if !found.contains(&text) {
                found.push(text);
            }
        }
    }
    (found, problems)
}

impl PlanArgs {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let RunArgs { file, resample, until, locations, .. } = &self.args;
        let source = RunFile::read(file)?;
        let store = locations.store(Some(file))?;
        let overrides = self.args.overrides(&source, &store)?;
        if self.expand {
            printer.data(plan::expanded(&source, &overrides)?.trim_end());
            return Ok(Outcome::Success);
        }
        let files = FileDigests::load(&store);
        let plan = plan::Plan::new(&source, &overrides, &locations.cards(Some(file)), &files)?;
        let (resample, plan) = (plan.resampled(resample)?, plan.until(until)?);
        let plan = if self.args.offline { plan.offline() } else { plan };
        let mut report = PlanReport::new(&plan, &store, &resample)?;
        // What is wrong in the file comes first.
        let asked = if report.problems.is_empty() { listing::ask(&plan) } else { None };
        let (mut said, mut wrong) = Default::default();
        match asked {
            None => {}
            Some(Ok(offered)) => {
                (said, wrong) = about_tools(&plan, &offered);
                let plan = listing::compared(plan, &store, &offered, printer);
                report = PlanReport::new(&plan, &store, &resample)?;
            }
            Some(Err(cause)) => said.push(format!("the server was not asked for its tools: {cause}")),
        }
        let is_new = |wrong: &Problem| {
            report.problems.iter().all(|known| known.cause.to_string() != wrong.cause.to_string())
        };
        let wrong: Vec<Problem> = wrong.into_iter().filter(is_new).collect();
        report.problems.extend(wrong);
        printer.show(&report, || plan_text(&report));
        said.iter().for_each(|text| printer.say(text));
        report.notes.iter().for_each(|note| printer.note(note));
        match report.problems.is_empty() {
            true => Ok(Outcome::Success),
            false => Err(PlanError::Refused(report.problems).into()),
        }
    }
}
