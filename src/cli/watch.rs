//! `mcprl watch`: follows a run that another process executes, on this or another machine that shares the cache.

use std::time::Duration;

use clap::Args;

use super::{
    Outcome,
    locations::{self, Locations},
    run::ShownArgs,
    runs::verdicts,
    target::Target,
};
use crate::{
    error::Result,
    exec::{Event, Listener, RunState, TimedEvent, folder, history, progress_file},
    store::Store,
    ui::{OutputFormat, Printer, RunView, seconds, verdict_text},
    view::Run,
};

/// Time between two looks at the run.
const INTERVAL: Duration = Duration::from_millis(500);

#[derive(Args)]
pub struct Watch {
    /// The run's id, as `mcprl runs` lists it, or `latest`; the folder of a run also works.
    #[arg(value_name = "RUN", default_value = "latest")]
    run: String,
    #[command(flatten)]
    shown: ShownArgs,
    #[command(flatten)]
    locations: Locations,
}

impl Watch {
    /// Shows what has happened since the run was last started, then what happens, until the run ends.
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let Target { store, run, .. } = Target::new(&self.locations, &self.run)?;
        let id = folder::named(&store, &run);
        let planned = Run::open(&store, &id)?.with_pending(&store);
        let view = || {
            let stages = planned.stages.iter().map(|stage| stage.id.as_str());
            RunView::new(printer, self.shown.verbosity(), stages)
        };
        let (mut shown, mut seen) = (view(), 0);
        if printer.format == OutputFormat::Human {
            printer.say(&format!("watching {id}"));
        }
        loop {
            // In this order, so that nothing is missed of a run that ends now.
            let is_live = store.live_runs().contains(&id);
            let events = history::events(&store, &id);
            let is_opening = |timed: &TimedEvent| matches!(timed.event, Event::Opened { .. });
            if let Some(opened) = events[seen..].iter().rposition(is_opening).map(|at| seen + at) {
                // Resumed: what it finds in the cache is shown again.
                (shown, seen) = (view(), opened);
            }
            for timed in &events[seen..] {
                match printer.format {
                    OutputFormat::Json => printer.data(&serde_json::to_string(timed).unwrap_or_default()),
                    OutputFormat::Human => show(&shown, &timed.event),
                }
            }
            seen = events.len();
            shown.flush();
            shown.running(if is_live { progress_file::progress(&store, &id) } else { Vec::new() });
            if !is_live {
                break;
            }
            std::thread::sleep(INTERVAL);
        }
        shown.end();
        ended(printer, &store, &id)
    }
}

/// Shows an event as the run's own terminal shows it. That one shows errors at the end.
fn show(view: &RunView, event: &Event) {
    match event {
        Event::Failed { id, error } => view.line("failed", id, &error.to_string()),
        event => view.event(event),
    }
}

fn ended(printer: Printer, store: &Store, id: &str) -> Result<Outcome> {
    let run = history::run(store, id)?;
    let resume = format!("mcprl resume {id}{}", locations::cache_option(store));
    let what = match run.state {
        RunState::Finished => "finished".to_owned(),
        RunState::Failed => format!("failed; fix the cause, then continue with `{resume}`"),
        RunState::Interrupted => format!("was stopped; to continue: {resume}"),
        RunState::Killed => format!("ended without a last word, as if killed; to continue: {resume}"),
        RunState::Running => "runs again".to_owned(),
    };
    printer.say(&format!("{id} {what}, after {}", seconds(run.seconds)));
    if printer.format == OutputFormat::Human {
        verdicts(store, &run).iter().for_each(|rows| printer.data(&verdict_text(rows, false)));
    }
    Ok(match run.state {
        RunState::Finished => Outcome::Success,
        RunState::Interrupted => Outcome::Interrupted,
        _ => Outcome::Failed,
    })
}
