//! `mcprl submit`: a whole run as one job of a batch system. `mcprl executors`: the templates that say how to use one.

use clap::Args;
use serde_json::json;

use super::{Outcome, run_args::RunArgs, runtime, worker};
use crate::{
    error::{Diagnostic, Result, did_you_mean},
    exec::jobs::{self, Call, Queue},
    plan::{self, Plan, RunFile, TEMPLATES},
    store::{FileDigests, StoreError},
    ui::Printer,
};

#[derive(Args)]
pub struct Submit {
    #[command(flatten)]
    args: RunArgs,
    /// The `[executors.NAME]` of the run file that runs it.
    #[arg(long, value_name = "NAME")]
    on: String,
    /// Print the job and the whole run file, and submit nothing.
    #[arg(long)]
    dry_run: bool,
    /// After a failure, run all stages that do not depend on the failed one.
    #[arg(long)]
    keep_going: bool,
}

#[derive(Args)]
pub struct Executors {
    /// Print the template of this kind.
    kind: Option<String>,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "submit", class = usage)]
#[hint("did you mean \"{near}\"?" if let Some(near) = near)]
#[hint = "`mcprl executors` lists the templates of batch systems"]
enum SubmitError {
    #[error("the run file has no `[executors.{name}]`")]
    NoExecutor { name: String, near: Option<String> },
    #[error("there is no template \"{kind}\"")]
    NoTemplate { kind: String, near: Option<String> },
}

impl Executors {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let Some(kind) = self.kind else {
            let about = |text: &str| plan::Template::parse(text).map_or(String::new(), |found| found.about);
            let known = TEMPLATES.map(|(name, text)| (name, about(text)));
            let json = known.each_ref().map(|(name, about)| json!({ "kind": name, "about": about }));
            printer.show(&json, || known.map(|(name, about)| format!("{name:<12} {about}\n")).concat());
            return Ok(Outcome::Success);
        };
        let names = TEMPLATES.map(|(name, _)| name);
        let Some((_, text)) = TEMPLATES.iter().find(|(name, _)| *name == kind) else {
            let near = did_you_mean(&kind, names).map(str::to_owned);
            return Err(SubmitError::NoTemplate { kind, near }.into());
        };
        printer.data(text.trim_end());
        Ok(Outcome::Success)
    }
}

impl Submit {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let RunArgs { file, locations, .. } = &self.args;
        let (source, store) = (RunFile::read(file)?, locations.store(Some(file))?);
        let files = FileDigests::load(&store);
        let overrides = self.args.overrides(&source, &store)?;
        let plan = Plan::new(&source, &overrides, &locations.cards(Some(file)), &files)?;
        plan.check_confirmed()?;
        plan.resampled(&self.args.resample)?;
        let Some(spec) = plan.executors.get(&self.on) else {
            let near = did_you_mean(&self.on, plan.executors.keys().map(String::as_str)).map(str::to_owned);
            return Err(SubmitError::NoExecutor { name: self.on, near }.into());
        };
        let job = jobs::new_name(&format!("run-{}", plan.name));
        let stages = locations.stages(Some(file));
        let program = worker::program(&store, &job, stages.as_deref()).on(spec);
        let folder = std::path::absolute(store.submitted().join(&job))
            .map_err(|cause| StoreError::reading(store.submitted(), cause))?;
        let (script, log) = (folder.join("script"), folder.join("log"));
        let mut options = self.args.options(&overrides);
        options.extend(self.keep_going.then(|| "--keep-going".to_owned()));
        let text = program.whole_run(file, &spec.setup, &log, &options);
        let about = jobs::about(&job, "", &job, [&script, &log]);
        let queue = Queue::new(spec.clone());
        if self.dry_run {
            let call = match queue.submission(&about)? {
                Call::Run { arguments, input } => format!("{}\n{input}", arguments.join("\n")),
                Call::Http { url, body, .. } => format!("POST {url}\n{body}"),
            };
            let run_file = plan::expanded(&source, &overrides)?;
            for (title, text) in [("submission", &call), ("script", &text), ("run file", &run_file)] {
                printer.data(&format!("# {title}\n{}\n", text.trim()));
            }
            return Ok(Outcome::Success);
        }
        store.prepare()?;
        jobs::make_private(&folder)?;
        jobs::place(&script, text.as_bytes())?;
        runtime()?.block_on(async {
            queue.check().await?;
            queue.submit(&about).await
        })?;
        let text = || format!("job {job}\nlog {}", log.display());
        printer.show(&json!({ "job": job, "script": script, "log": log }), text);
        Ok(Outcome::Success)
    }
}
