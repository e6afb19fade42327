//! `mcprl runs`.

use chrono::{DateTime, Local};
use clap::Args;
use serde_json::json;

use super::{Outcome, place::Place};
use crate::{
    error::Result,
    exec::{RunState, folder},
    ui::{Printer, Voice},
};

#[derive(Args)]
pub struct Runs {
    #[command(flatten)]
    place: Place,
}

impl Runs {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let store = self.place.store(None)?;
        let runs: Vec<_> = folder::list(&store)
            .into_iter()
            .map(|id| {
                let (began, state) = folder::state(&store, &id);
                (id, began, state)
            })
            .collect();
        if printer.voice == Voice::Json {
            let runs: Vec<_> = runs
                .iter()
                .map(|(id, began, state)| json!({ "id": id, "began_ms": began, "state": state }))
                .collect();
            printer.json(&runs);
            return Ok(Outcome::Worked);
        }
        for (id, began, state) in &runs {
            let began = began.and_then(|at| DateTime::from_timestamp_millis(i64::try_from(at).ok()?));
            let began = began.map(|at| at.with_timezone(&Local).format("%Y-%m-%d %H:%M:%S").to_string());
            printer.data(&format!("{id:<32} {:<20} {}", began.unwrap_or_default(), word(*state)));
        }
        if runs.is_empty() {
            printer.say(&format!("no runs in {}", store.root().display()));
        }
        Ok(Outcome::Worked)
    }
}

fn word(state: RunState) -> &'static str {
    match state {
        RunState::Finished => "finished",
        RunState::Failed => "failed",
        RunState::Interrupted => "stopped",
        RunState::Open => "at work, or killed",
    }
}
