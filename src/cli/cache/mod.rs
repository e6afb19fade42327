//! `mcprl cache`: lists, checks, cleans, exports and imports what the store holds.

mod push;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::{Duration, SystemTime},
};

use clap::{Args, Subcommand};
use serde_json::json;

use super::{Outcome, locations::Locations, runs::print_queued};
use crate::{
    error::{Diagnostic, Result},
    exec::{
        RunState, folder,
        history::{self, RunHistory},
    },
    hash::Digest,
    store::{CopyReport, Damage, GcReport, Store, StoreError, use_of},
    ui::{OutputFormat, Printer, bytes, plural, seconds},
};

#[derive(Subcommand)]
pub enum Cache {
    /// List the artifacts, largest first, and the stages that wrote them.
    Ls {
        #[command(flatten)]
        locations: Locations,
    },
    /// Read all contents again and quarantine what is damaged.
    Verify {
        #[command(flatten)]
        locations: Locations,
    },
    /// Remove old runs, and every result that no remaining run uses and no upload waits for.
    Gc(Gc),
    /// Copy runs and all their results into a folder, which is itself a cache.
    Export(Export),
    /// Copy an export, or another cache, into this cache.
    Import(Import),
    /// Push results that could not be pushed during a run to the shared cache.
    Push(push::Push),
}

#[derive(Args)]
pub struct Gc {
    /// Number of newest runs to keep for each run file name [default: 10, unless --older-than is given].
    #[arg(long, value_name = "N")]
    keep_last: Option<usize>,
    /// Remove only runs older than this: `12h`, `30d`.
    #[arg(long, value_name = "AGE", value_parser = age)]
    older_than: Option<Duration>,
    /// Keep anything younger than this. At least an hour while a run is active.
    #[arg(long, value_name = "AGE", value_parser = age, default_value = "1h")]
    grace: Duration,
    /// Print what would be removed, and remove nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    locations: Locations,
}

#[derive(Args)]
pub struct Export {
    /// Run ids, as `mcprl runs` lists them; `latest` is the newest.
    #[arg(required = true)]
    runs: Vec<String>,
    /// The folder to write to. It may be an earlier export.
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    #[command(flatten)]
    locations: Locations,
}

#[derive(Args)]
pub struct Import {
    /// A folder that `mcprl cache export` wrote, or another cache.
    from: PathBuf,
    /// Import only these runs.
    #[arg(long, value_name = "RUN")]
    run: Vec<String>,
    #[command(flatten)]
    locations: Locations,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "cli")]
enum CacheError {
    #[error("{count} results of run \"{run}\" are not in {from}")]
    #[diagnostic(code = "missing_results")]
    #[hint = "`mcprl resume {run}` makes them again"]
    Missing { run: String, count: usize, from: String },
    #[error("{0} is the cache itself")]
    #[diagnostic(code = "same_cache", class = usage)]
    Itself(PathBuf),
}

/// `90s`, `15m`, `12h`, `30d`.
fn age(text: &str) -> Result<Duration, String> {
    let wrong = || "an age is a number and s, m, h or d: 12h, 30d".to_owned();
    let units = [("s", 1), ("m", 60), ("h", 3600), ("d", 86400)];
    let found = units.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)));
    let (count, unit) = found.ok_or_else(wrong)?;
    let count: u64 = count.parse().map_err(|_| wrong())?;
    count.checked_mul(*unit).map(Duration::from_secs).ok_or_else(wrong)
}

impl Cache {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        match self {
            Self::Ls { locations } => list(printer, &locations.store(None)?),
            Self::Verify { locations } => verify(printer, &locations.store(None)?),
            Self::Gc(gc) => gc.execute(printer),
            Self::Export(export) => export.execute(printer),
            Self::Import(import) => import.execute(printer),
            Self::Push(push) => push.execute(printer),
        }
    }
}

fn list(printer: Printer, store: &Store) -> Result<Outcome> {
    let mut writers: BTreeMap<Digest, Vec<String>> = BTreeMap::new();
    let records = store.records();
    for record in &records {
        for (port, output) in &record.outputs {
            writers.entry(output.digest).or_default().push(format!("{}.{port}", record.stage));
        }
    }
    let mut artifacts = store.artifacts();
    artifacts.sort_by_key(|stored| std::cmp::Reverse((stored.bytes, stored.digest)));
    let total: u64 = artifacts.iter().map(|stored| stored.bytes).sum();
    let runs = folder::list(store)?.len();
    let by = |digest: &Digest| writers.get(digest).cloned().unwrap_or_default();
    if printer.format == OutputFormat::Json {
        let artifacts = artifacts.iter().map(|stored| {
            let used = stored.used.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
            json!({
                "digest": stored.digest, "files": stored.files, "bytes": stored.bytes,
                "used_ms": used.map(|used| u64::try_from(used.as_millis()).unwrap_or(u64::MAX)),
                "written_by": by(&stored.digest),
            })
        });
        let artifacts: Vec<_> = artifacts.collect();
        let queues = store.upload_queues();
        let queued: BTreeMap<_, _> = queues.iter().map(|queue| (&queue.place, queue.keys().len())).collect();
        printer.json(&json!({
            "runs": runs, "results": records.len(), "bytes": total, "artifacts": artifacts, "queued": queued,
        }));
        return Ok(Outcome::Success);
    }
    for stored in &artifacts {
        let by = by(&stored.digest);
        let more = if by.len() > 1 { format!(" and {} more", by.len() - 1) } else { String::new() };
        let first = by.first().map_or("no result", String::as_str);
        printer.data(&format!("{}  {:>10}  {first}{more}", stored.digest.short(), bytes(stored.bytes)));
    }
    printer.say(&format!(
        "{}: {}, {}, {}, {}",
        store.root().display(),
        plural(runs, "run"),
        plural(records.len(), "result"),
        plural(artifacts.len(), "artifact"),
        bytes(total)
    ));
    print_queued(printer, store);
    Ok(Outcome::Success)
}

fn verify(printer: Printer, store: &Store) -> Result<Outcome> {
    let checked = store.verify(&mut |_| {})?;
    if printer.format == OutputFormat::Json {
        printer.json(&checked);
    } else {
        for flaw in &checked.flaws {
            printer.data(&match flaw {
                Damage::Artifact { digest, problem } => format!("artifact {}: {problem}", digest.short()),
                Damage::Record { key } => format!(
                    "record {}: its content does not match its checksum, or it is no record",
                    key.short()
                ),
            });
        }
        printer.say(&format!(
            "{} ({}) and {} read, {} damaged",
            plural(checked.artifacts, "artifact"),
            bytes(checked.bytes),
            plural(checked.records, "result"),
            checked.flaws.len()
        ));
        if !checked.flaws.is_empty() {
            let aside = store.root().join("quarantine");
            printer
                .say(&format!("quarantined in {}; the next run makes what it needs again", aside.display()));
        }
    }
    Ok(if checked.flaws.is_empty() { Outcome::Success } else { Outcome::Failed })
}

impl Gc {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let store = self.locations.store(None)?;
        if !store.root().join("version").exists() {
            let nothing = json!({ "dry_run": self.dry_run, "removed": GcReport::default(), "runs": [] });
            match printer.format {
                OutputFormat::Json => printer.json(&nothing),
                OutputFormat::Human => printer.say(&format!("no cache at {}", store.root().display())),
            }
            return Ok(Outcome::Success);
        }
        store.prepare()?;
        let scan =
            || history::runs(&store).map_err(|cause| StoreError::UnreadableRuns { source: Box::new(cause) });
        let runs = scan()?;
        let ids = self.dropped(&store, &runs);
        let keep = history::needed(&store, runs.iter().filter(|run| !ids.contains(&run.id)))?;
        let garbage = store.garbage(&keep, ids.iter().cloned().collect(), self.grace)?;
        let swept = if self.dry_run {
            garbage.swept()
        } else {
            let needed = |removed: &BTreeSet<String>| {
                history::needed(&store, scan()?.iter().filter(|run| !removed.contains(&run.id)))
            };
            store.sweep(garbage, &needed)?
        };
        if printer.format == OutputFormat::Json {
            printer.json(&json!({ "dry_run": self.dry_run, "removed": swept, "runs": ids }));
            return Ok(Outcome::Success);
        }
        for id in &ids {
            printer.data(id);
        }
        let would = if self.dry_run { "would remove" } else { "removed" };
        printer.say(&format!(
            "{would} {}, {} and {} ({}), {}",
            plural(swept.runs, "run"),
            plural(swept.records, "result"),
            plural(swept.artifacts, "artifact"),
            bytes(swept.bytes),
            plural(swept.leftovers, "leftover")
        ));
        let young = swept.young;
        if young.records + young.artifacts > 0 {
            printer.say(&format!(
                "kept {} and {} ({}) that no run needs: they are younger than {} ({})",
                plural(young.records, "result"),
                plural(young.artifacts, "artifact"),
                bytes(young.bytes),
                seconds(Duration::from_secs(young.seconds).as_secs_f64()),
                if young.seconds > self.grace.as_secs() { "a run is active" } else { "`--grace`" }
            ));
        }
        if swept.queued > 0 {
            printer.say(&format!(
                "kept {} that no run needs: they wait for their upload to a shared cache (`mcprl cache push`, or drop them \
                 from its queue with `--forget`)",
                plural(swept.queued, "result")
            ));
        }
        if swept.spared > 0 {
            printer.say(&format!("kept {} that a run requested in the meantime", swept.spared));
        }
        Ok(Outcome::Success)
    }

    /// The runs to remove: none that is active, or whose results are served.
    fn dropped(&self, store: &Store, runs: &[RunHistory]) -> BTreeSet<String> {
        let live = store.live_runs();
        let keep_last = self.keep_last.unwrap_or(if self.older_than.is_some() { 0 } else { 10 });
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut newer: BTreeMap<String, usize> = BTreeMap::new();
        let mut is_dropped = |run: &RunHistory| {
            let count = newer.entry(name(&run.id).to_owned()).or_default();
            *count += 1;
            let began = run.began_ms.map(Duration::from_millis);
            let is_old = self.older_than.is_none_or(|bound| {
                // When an unreadable one began is unknown; one without a journal was killed before it began.
                match began {
                    Some(began) => now.checked_sub(began).is_some_and(|age| age > bound),
                    None => history::unreadable(store, &run.id).is_none(),
                }
            });
            let is_used = run.state == RunState::Running || live.contains(&use_of(&run.id));
            *count > keep_last && is_old && !is_used
        };
        runs.iter().rev().filter(|run| is_dropped(run)).map(|run| run.id.clone()).collect()
    }
}

/// The name in a run's id: `sqlite` for `sqlite-20260102-030405` and `sqlite-20260102-030405-2`.
fn name(id: &str) -> &str {
    let digits = |text: &str, count| text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<(usize, &str)> = id.match_indices('-').collect();
    let date = parts.windows(2).rev().find(|pair| {
        let rest = &id[pair[1].0 + 1..];
        let time = rest.split('-').next().unwrap_or_default();
        digits(&id[pair[0].0 + 1..pair[1].0], 8) && digits(time, 6)
    });
    date.map_or(id, |pair| &id[..pair[0].0])
}

impl Export {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let store = self.locations.store(None)?;
        let runs = self.runs.iter().map(|id| history::run(&store, id)).collect::<Result<Vec<_>>>()?;
        let copied = copy(&store, &Store::open(&self.to)?, &runs)?;
        report(printer, "exported", &copied, &self.to.display().to_string());
        Ok(Outcome::Success)
    }
}

impl Import {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let from = Store::existing(&self.from)?;
        let store = self.locations.store(None)?;
        let runs = match self.run.is_empty() {
            true => history::runs(&from)?,
            false => self.run.iter().map(|id| history::run(&from, id)).collect::<Result<_>>()?,
        };
        let copied = copy(&from, &store, &runs)?;
        report(printer, "imported", &copied, &store.root().display().to_string());
        Ok(Outcome::Success)
    }
}

/// Copies results first and runs last, so that every run in the target has its results.
fn copy(from: &Store, to: &Store, runs: &[RunHistory]) -> Result<CopyReport> {
    let absolute = |store: &Store| std::fs::canonicalize(store.root()).ok();
    if absolute(from).is_some() && absolute(from) == absolute(to) {
        return Err(CacheError::Itself(to.root().to_owned()).into());
    }
    to.prepare()?;
    // Prevents a garbage collection of the target from removing results that this import is about to
    // reference.
    let _presence = to.attend("import")?;
    let mut all = CopyReport::default();
    // Newest first: where results conflict, the newest run's usually win.
    let mut runs: Vec<&RunHistory> = runs.iter().collect();
    runs.sort_by_key(|run| std::cmp::Reverse(run.began_ms));
    for run in runs {
        let copied = from.copy_into(to, &run.results())?;
        if !copied.missing.is_empty() {
            let (run, count) = (run.id.clone(), copied.missing.len());
            let from = from.root().display().to_string();
            return Err(CacheError::Missing { run, count, from }.into());
        }
        all.records += copied.records;
        all.artifacts += copied.artifacts;
        all.bytes += copied.bytes;
        all.present += copied.present;
        all.differs.extend(copied.differs);
        folder::copy(from, to, &run.id)?;
    }
    Ok(all)
}

fn report(printer: Printer, what: &str, copied: &CopyReport, place: &str) {
    if printer.format == OutputFormat::Json {
        return printer.json(copied);
    }
    printer.say(&format!(
        "{what} {} and {} ({}) to {place}; {} already present",
        plural(copied.records, "result"),
        plural(copied.artifacts, "artifact"),
        bytes(copied.bytes),
        plural(copied.present, "artifact")
    ));
    for key in &copied.differs {
        printer.say(&format!("{}: the target has another result under this key, and keeps it", key.short()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runs_name_is_its_id_without_the_time() {
        for (id, expected) in [
            ("sqlite-20260102-030405", "sqlite"),
            ("sqlite-20260102-030405-2", "sqlite"),
            ("my-run-20260102-030405", "my-run"),
            ("odd", "odd"),
            ("a-1-2", "a-1-2"),
        ] {
            assert_eq!(name(id), expected);
        }
    }

    #[test]
    fn an_age_has_a_unit() {
        assert_eq!(age("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(age("2d"), Ok(Duration::from_secs(172_800)));
        for wrong in ["", "5", "d", "-1h", "1w", "99999999999999999d"] {
            assert!(age(wrong).is_err(), "{wrong}");
        }
    }
}
