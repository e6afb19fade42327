//! `mcprl cache push`: pushes results to a shared cache by hand.

use std::path::Path;

use clap::Args;
use serde_json::json;

use super::super::{Outcome, place::Place};
use crate::{
    error::{Class, Diagnostic, Failure, Result},
    store::{DrainReport, NotAPlace, Remote, RemotePlace, RemoteSpec, Store, StoreError, UploadQueue},
    ui::{OutputFormat, Printer, bytes, plural},
};

#[derive(Args)]
pub struct Push {
    /// The shared cache: a folder or `s3://BUCKET/PREFIX` (or `MCPRL_CACHE__REMOTE`) [default: all that
    /// results are waiting for].
    #[arg(long, value_name = "REMOTE")]
    to: Option<String>,
    /// Push every result of the cache, not only those that wait.
    #[arg(long)]
    all: bool,
    /// Push nothing and drop the waiting results from the queue; they stay in this cache. For a shared cache
    /// that was mistyped or no longer exists.
    #[arg(long, conflicts_with = "all")]
    forget: bool,
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
    #[error("nothing waits to be given to {place}")]
    NothingWaits { place: String, known: Vec<String> },
    /// The shared cache cannot be reached, or refuses the results.
    #[error("{cause}")]
    Away { cause: StoreError, place: String },
}

impl Diagnostic for PushError {
    fn code(&self) -> &'static str {
        match self {
            Self::Unknown | Self::Several(_) => "cli::which_remote",
            Self::NotAPlace { .. } => "cli::not_a_remote",
            Self::NothingWaits { .. } => "cli::nothing_waits",
            Self::Away { cause, .. } => cause.code(),
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Unknown | Self::Several(_) => "name it: --to /mnt/shared/mcprl".into(),
            Self::NotAPlace { wrong, .. } => wrong.hint.clone(),
            Self::NothingWaits { known, .. } if known.is_empty() => return None,
            Self::NothingWaits { known, .. } => format!("something waits for {}", known.join(", ")),
            Self::Away { cause: StoreError::Unreachable { .. }, place } => format!(
                "push again once it is there; if that is no place of yours, `mcprl cache push --forget --to {place}` lets go of \
                 what waits for it"
            ),
            Self::Away { .. } => {
                "it takes the right to write there; S3 asks for `s3:GetObject`, `s3:PutObject` and `s3:ListBucket`".into()
            }
        })
    }

    fn class(&self) -> Class {
        match self {
            Self::Away { .. } => Class::Work,
            _ => Class::Usage,
        }
    }
}

impl Push {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let store = self.place.store(None)?;
        if self.forget {
            return self.forget(printer, &store);
        }
        let places = self.places(&store)?;
        let none = places.is_empty();
        let mut outcome = Outcome::Success;
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
            match printer.format {
                OutputFormat::Json => told.push(json!({
                    "remote": place.to_string(), "given": handed.given, "bytes": handed.bytes, "there": handed.there,
                    "differing": handed.differing, "waiting": left,
                    "problem": handed.away.as_ref().map(ToString::to_string),
                })),
                OutputFormat::Human => printer.say(&text(&handed, left, &place)),
            }
            if let Some(cause) = handed.away {
                printer.error(&match cause {
                    StoreError::Unreachable { .. } | StoreError::Refused { .. } => {
                        PushError::Away { cause, place: place.to_string() }.into()
                    }
                    cause => Failure::from(cause),
                });
                outcome = Outcome::Failed;
            }
        }
        match printer.format {
            OutputFormat::Json => printer.json(&told),
            OutputFormat::Human if none => printer.say("nothing waits to be given to a shared cache"),
            OutputFormat::Human => {}
        }
        Ok(outcome)
    }

    /// Drops the queue of the named shared cache, or of the only one that results wait for.
    fn forget(self, printer: Printer, store: &Store) -> Result<Outcome> {
        let mut waiting: Vec<UploadQueue> =
            store.all_waiting().into_iter().filter(|waiting| !waiting.keys().is_empty()).collect();
        let known = || waiting.iter().map(|waiting| waiting.place.clone()).collect();
        if let Some(named) = &self.to {
            // A mistyped name may not be a valid location.
            let place = RemotePlace::parse(named, Path::new(".")).map(|place| place.to_string());
            let is_meant =
                |waiting: &UploadQueue| waiting.place == *named || Ok(&waiting.place) == place.as_ref();
            if !waiting.iter().any(is_meant) {
                return Err(PushError::NothingWaits { place: named.clone(), known: known() }.into());
            }
            waiting.retain(is_meant);
        } else if waiting.len() > 1 {
            return Err(PushError::Several(known()).into());
        }
        if waiting.is_empty() && printer.format == OutputFormat::Human {
            printer.say("nothing waits to be given to a shared cache");
        }
        let mut told = Vec::new();
        for waiting in waiting {
            let count = waiting.keys().len();
            waiting.drop_all()?;
            match printer.format {
                OutputFormat::Json => told.push(json!({ "remote": waiting.place, "forgotten": count })),
                OutputFormat::Human => {
                    let results = plural(count, "result");
                    printer.say(&format!("{results} will not be given to {}", waiting.place));
                }
            }
        }
        if printer.format == OutputFormat::Json {
            printer.json(&told);
        }
        Ok(Outcome::Success)
    }

    /// The named shared cache; else those that results wait for; with `--all`, the only one known.
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

fn text(handed: &DrainReport, left: usize, place: &RemotePlace) -> String {
    let mut parts =
        vec![format!("gave {} ({}) to {place}", plural(handed.given, "result"), bytes(handed.bytes))];
    let more =
        [(handed.there, "were there"), (handed.differing, "are others there and stay"), (left, "wait")];
    parts.extend(more.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")));
    parts.join(", ")
}
