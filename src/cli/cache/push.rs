//! `mcprl cache push`: pushes results to a shared cache by hand.

use std::path::Path;

use clap::Args;
use serde_json::json;

use super::super::{Outcome, locations::Locations};
use crate::{
    error::{Diagnostic, Failure, Result},
    store::{
        DrainReport, InvalidRemote, QueueScope, Remote, RemoteLocation, RemoteSpec, Store, StoreError,
        UploadQueue,
    },
    ui::{OutputFormat, Printer, bytes, plural},
};

#[derive(Args)]
pub struct Push {
    /// The shared cache: a folder or `s3://BUCKET/PREFIX` (or `MCPRL_CACHE__REMOTE`) [default: all that
    /// have queued results].
    #[arg(long, value_name = "REMOTE")]
    to: Option<String>,
    /// Push every result of the cache, not only the queued ones.
    #[arg(long)]
    all: bool,
    /// Push nothing and drop the queued results from the queue; they stay in this cache. For a shared cache
    /// that was mistyped or no longer exists.
    #[arg(long, conflicts_with = "all")]
    forget: bool,
    #[command(flatten)]
    locations: Locations,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "cli", class = usage)]
enum PushError {
    #[error("no shared cache is known here")]
    #[diagnostic(code = "which_remote")]
    #[hint = "name it: --to /mnt/shared/mcprl"]
    Unknown,
    #[error("several shared caches are known here: {}", .0.join(", "))]
    #[diagnostic(code = "which_remote")]
    #[hint = "name it: --to /mnt/shared/mcprl"]
    Several(Vec<String>),
    #[error("\"{text}\" names no shared cache: {}", .wrong.problem)]
    #[diagnostic(code = "not_a_remote")]
    #[hint(wrong.hint.clone())]
    InvalidRemote { text: String, wrong: InvalidRemote },
    #[error("no results are queued for {place}")]
    #[hint(format!("results are queued for {}", known.join(", ")) if !known.is_empty())]
    NothingQueued { place: String, known: Vec<String> },
    /// The shared cache cannot be reached, or refuses the results.
    #[error("{cause}")]
    #[diagnostic(code = cause.code(), class = work)]
    #[hint("push again once it is reachable, or drop its queue: `mcprl cache push --forget --to {place}`" if matches!(cause, StoreError::Unreachable { .. }))]
    #[hint = "this needs write access; S3 needs `s3:GetObject`, `s3:PutObject` and `s3:ListBucket`"]
    Away { cause: StoreError, place: String },
}

impl Push {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let store = self.locations.store(None)?;
        if self.forget {
            return self.forget(printer, &store);
        }
        let places = self.places(&store)?;
        let none = places.is_empty();
        let mut outcome = Outcome::Success;
        let mut reports = Vec::new();
        for place in places {
            if self.all {
                store.prepare()?;
                let queue = store.upload_queue(&place);
                for record in store.records().iter().filter(|record| !record.withheld) {
                    queue.add(&record.key)?;
                }
            }
            let remote = Remote::new(RemoteSpec { place: place.clone(), push: true });
            let report = remote.push_queued(&store, QueueScope::All, &|| false);
            let left = remote.count_queued(&store);
            match printer.format {
                OutputFormat::Json => reports.push(json!({
                    "remote": place.to_string(), "pushed": report.pushed, "bytes": report.bytes, "present": report.present,
                    "differs": report.differs, "queued": left,
                    "problem": report.away.as_ref().map(ToString::to_string),
                })),
                OutputFormat::Human => {
                    printer.say(&text(&report, left, &place));
                    if report.pushed > 0 {
                        printer.say(
                            "results hold what tools and models said, which is not searched for secrets: whoever reads the shared \
                             cache reads that",
                        );
                    }
                }
            }
            if let Some(cause) = report.away {
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
            OutputFormat::Json => printer.json(&reports),
            OutputFormat::Human if none => printer.say("no results are queued for a shared cache"),
            OutputFormat::Human => {}
        }
        Ok(outcome)
    }

    /// Drops the queue of the named shared cache, or of the only one with queued results.
    fn forget(self, printer: Printer, store: &Store) -> Result<Outcome> {
        let mut queues: Vec<UploadQueue> =
            store.upload_queues().into_iter().filter(|queue| !queue.keys().is_empty()).collect();
        let known = || queues.iter().map(|queue| queue.place.clone()).collect();
        if let Some(named) = &self.to {
            // A mistyped name may not be a valid location.
            let place = RemoteLocation::parse(named, Path::new(".")).map(|place| place.to_string());
            let is_meant = |queue: &UploadQueue| queue.place == *named || Ok(&queue.place) == place.as_ref();
            if !queues.iter().any(is_meant) {
                return Err(PushError::NothingQueued { place: named.clone(), known: known() }.into());
            }
            queues.retain(is_meant);
        } else if queues.len() > 1 {
            return Err(PushError::Several(known()).into());
        }
        if queues.is_empty() && printer.format == OutputFormat::Human {
            printer.say("no results are queued for a shared cache");
        }
        let mut reports = Vec::new();
        for queue in queues {
            let count = queue.keys().len();
            queue.drop_all()?;
            match printer.format {
                OutputFormat::Json => reports.push(json!({ "remote": queue.place, "dropped": count })),
                OutputFormat::Human => {
                    let results = plural(count, "result");
                    printer.say(&format!("dropped {results} from the queue for {}", queue.place));
                }
            }
        }
        if printer.format == OutputFormat::Json {
            printer.json(&reports);
        }
        Ok(Outcome::Success)
    }

    /// The named shared cache; else those with queued results; with `--all`, the only one known.
    fn places(&self, store: &Store) -> Result<Vec<RemoteLocation>> {
        let named = self.to.clone().or_else(|| std::env::var("MCPRL_CACHE__REMOTE").ok());
        let known = store.upload_queues();
        let names: Vec<String> = match named.filter(|name| !name.is_empty()) {
            Some(name) => vec![name],
            None => {
                let known = known.iter().filter(|known| self.all || !known.keys().is_empty());
                known.map(|known| known.place.clone()).collect()
            }
        };
        let parsed = |name: &String| {
            let wrong = |wrong| PushError::InvalidRemote { text: name.clone(), wrong };
            Ok(RemoteLocation::parse(name, Path::new(".")).map_err(wrong)?)
        };
        match &names[..] {
            [] if self.all => Err(PushError::Unknown.into()),
            [_, _, ..] if self.all => Err(PushError::Several(names).into()),
            _ => names.iter().map(parsed).collect(),
        }
    }
}

fn text(report: &DrainReport, left: usize, place: &RemoteLocation) -> String {
    let mut parts =
        vec![format!("pushed {} ({}) to {place}", plural(report.pushed, "result"), bytes(report.bytes))];
    let more = [
        (report.present, "already present"),
        (report.differs, "differ and are kept"),
        (left, "still queued"),
    ];
    parts.extend(more.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")));
    parts.join(", ")
}
