//! `mcprl cache push`: results to a shared cache by hand.

use std::path::Path;

use clap::Args;
use serde_json::json;

use super::super::{Outcome, place::Place};
use crate::{
    error::{Class, Diagnostic, Failure, Result},
    store::{Handed, NotAPlace, Remote, RemotePlace, RemoteSpec, Store},
    ui::{Printer, Voice, bytes},
};

#[derive(Args)]
pub struct Push {
    /// The shared cache, a folder or `s3://BUCKET/PREFIX` (or `MCPRL_CACHE__REMOTE`) [default: those that runs were to
    /// give results to].
    #[arg(long, value_name = "REMOTE")]
    to: Option<String>,
    /// Every result of the cache, not only those that wait.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, thiserror::Error)]
enum PushError {
    #[error("no shared cache is known here")]
    Unknown,
    #[error("several shared caches are known here: {}", .0.join(", "))]
    Several(Vec<String>),
    #[error("\"{text}\" names no shared cache: {}", .wrong.problem)]
    NotAPlace { text: String, wrong: NotAPlace },
}

impl Diagnostic for PushError {
    fn code(&self) -> &'static str {
        match self {
            Self::Unknown | Self::Several(_) => "cli::which_remote",
            Self::NotAPlace { .. } => "cli::not_a_remote",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Unknown | Self::Several(_) => "name it: --to /mnt/shared/mcprl".into(),
            Self::NotAPlace { wrong, .. } => wrong.hint.clone(),
        })
    }

    fn class(&self) -> Class {
        Class::Usage
    }
}

impl Push {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let store = self.place.store(None)?;
        let places = self.places(&store)?;
        let none = places.is_empty();
        let mut outcome = Outcome::Worked;
        let mut told = Vec::new();
        for place in places {
            if self.all {
                store.prepare()?;
                let waiting = store.waiting(&place);
                for record in store.records().iter().filter(|record| !record.withheld) {
                    waiting.note(&record.key)?;
                }
            }
            let remote = Remote::new(RemoteSpec { place: place.clone(), push: true });
            let handed = remote.push_waiting(&store, &|| false)?;
            let left = remote.count_waiting(&store);
            match printer.voice {
                Voice::Json => told.push(json!({
                    "remote": place.to_string(), "given": handed.given, "bytes": handed.bytes, "there": handed.there,
                    "differing": handed.differing, "waiting": left,
                    "problem": handed.away.as_ref().map(ToString::to_string),
                })),
                Voice::Human => printer.say(&text(&handed, left, &place)),
            }
            if let Some(cause) = handed.away {
                printer.error(&Failure::from(cause));
                outcome = Outcome::Failed;
            }
        }
        match printer.voice {
            Voice::Json => printer.json(&told),
            Voice::Human if none => printer.say("nothing waits to be given to a shared cache"),
            Voice::Human => {}
        }
        Ok(outcome)
    }

    /// The named one; those with something waiting; to give all, the only one known.
    fn places(&self, store: &Store) -> Result<Vec<RemotePlace>> {
        let named = self.to.clone().or_else(|| std::env::var("MCPRL_CACHE__REMOTE").ok());
        let known = store.all_waiting();
        let names: Vec<String> = match (named.filter(|name| !name.is_empty()), self.all) {
            (Some(name), _) => vec![name],
            (None, false) => known
                .iter()
                .filter(|known| !known.keys().is_empty())
                .map(|known| known.place.clone())
                .collect(),
            (None, true) => known.iter().map(|known| known.place.clone()).collect(),
        };
        match &names[..] {
            [] if self.all => Err(PushError::Unknown.into()),
            [_, _, ..] if self.all => Err(PushError::Several(names).into()),
            _ => names.iter().map(|name| parsed(name)).collect(),
        }
    }
}

fn parsed(text: &str) -> Result<RemotePlace> {
    let wrong = |wrong| PushError::NotAPlace { text: text.to_owned(), wrong };
    Ok(RemotePlace::parse(text, Path::new(".")).map_err(wrong)?)
}

fn text(handed: &Handed, left: usize, place: &RemotePlace) -> String {
    let mut parts = vec![format!("gave {} results ({}) to {place}", handed.given, bytes(handed.bytes))];
    let more =
        [(handed.there, "were there"), (handed.differing, "are others there and stay"), (left, "wait")];
    parts.extend(more.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")));
    parts.join(", ")
}
