//! Runs one stage, from key to record.
//!
//! A finished result is visible to everyone at once. It is synced to disk while the next stage runs; the run
//! ends when everything is synced.
//!
//! The order matters:
//! - Take the lease before the second lookup, to find what another run has just published.
//! - Publish before writing the record, so that a record never names a missing artifact.
//! - Write the record before removing the rows.
//! - Write the record and the journal entry before uploading to other machines.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;

use super::{
    Event, ExecError, Listener, RunFolder,
    journal::Entry,
    notes::Notes,
    rows::StageRows,
    slots::Share,
    work_dir::{WorkDir, absolute},
};
use crate::{
    data,
    error::{At, Class, Diagnostic, Interrupted, Result},
    hash::Digest,
    plan::{
        self, CacheMode, KeyFields, KeyMetadata, NodeIndex, Plan, ReadyInputs, RerunReason, Resample,
        ResolvedInput, ServerName,
    },
    progress::Observer,
    stage::{
        self, Artifacts, Context, Input, Metrics, Rows, SharedModels, StageError,
        card::{Determinism, Section},
        registry,
    },
    store::{
        ActionRecord, CachedResult, Condition, Cost, Fetched, FileDigests, HeartbeatWatch, KeyIndex, Lease,
        LeaseAttempt, Lookup, Output, Pushed, Recorded, Remote, Store, StoreError, Syncer, UnsyncedArtifact,
        failpoint,
    },
    usage::UsageMeter,
};

const POLL: Duration = Duration::from_millis(50);
/// Delay before the first retry of an external stage; doubled for each further one.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// State shared by all stages of a run.
pub struct Runner {
    pub plan: Plan,
    pub store: Store,
    /// The cache shared with other machines.
    pub remote: Option<Remote>,
    pub syncer: Syncer,
    pub files: FileDigests,
    pub folder: RunFolder,
    pub last: KeyIndex,
    pub resample: Vec<Resample>,
    /// Stages that this run ran before it was resumed, by stage and key, with their results if known.
    pub worked: BTreeMap<(String, Digest), Option<CachedResult>>,
    /// Cost of stages that did not finish.
    pub lost: Mutex<Cost>,
    /// Models kept in memory for several stages.
    pub held: Arc<SharedModels>,
    pub listener: Arc<dyn Listener>,
    pub cancel: CancellationToken,
}

/// A node's result.
pub struct StageResult {
    pub key: Digest,
    pub record: ActionRecord,
    pub cached: bool,
}

/// The outcome of requesting the lease of a stage.
enum LeaseOutcome {
    Lease(Lease),
    StageResult(Box<StageResult>),
}

/// Usage and notes reported by a running stage.
struct Reports {
    meter: Arc<UsageMeter>,
    notes: Arc<Notes>,
}

/// A node whose inputs and key are known.
pub struct Job {
    pub index: NodeIndex,
    pub fields: KeyFields,
    pub key: Digest,
    ready: ReadyInputs,
}

impl Runner {
    pub fn job(&self, index: NodeIndex, ready: ReadyInputs) -> Job {
        let fields = self.plan.fields(index, &ready);
        Job { index, key: fields.key(), fields, ready }
    }

    /// The finished result, unless there is none or the stage must rerun.
    pub fn cached(&self, job: &Job) -> Result<Option<ActionRecord>> {
        let found = if self.forced(job).is_some() { self.own(job) } else { self.stored(job)? };
        self.taken(job, found)
    }

    /// Takes a result that was found, with those of its artifacts whose seals do not match.
    fn taken(&self, job: &Job, found: Option<(ActionRecord, Vec<Digest>)>) -> Result<Option<ActionRecord>> {
        let Some((record, unsealed)) = found else { return Ok(None) };
        if self.plan.lacking(job.index, &record.metrics).is_some() {
            return Ok(None);
        }
        if !unsealed.is_empty() {
            // Left by a killed run, perhaps not durable yet.
            self.store.settle(&[], &[job.key])?;
            self.store.seal_all(&unsealed)?;
        }
        let result = Some(record.clone().into());
        self.folder.note(Entry::Cached { node: self.id(job).to_owned(), key: job.key, result })?;
        // Write first, then check again: either the sweep sees the entry, or its removal is seen here.
        self.store.after_sweep();
        if !self.store.stands(&record.outputs) {
            return Ok(None);
        }
        self.link(job, &record)?;
        Ok(Some(record))
    }

    /// The current result, local or remote, with those of its artifacts whose seals do not match.
    fn stored(&self, job: &Job) -> Result<Option<(ActionRecord, Vec<Digest>)>> {
        let mut found = self.store.lookup_sealed(&job.key);
        if matches!(found.0, Lookup::Miss | Lookup::Damaged { .. }) && self.fetched(job)? {
            found = self.store.lookup_sealed(&job.key);
        }
        Ok(match found {
            (Lookup::Hit(record), unsealed) => Some((record, unsealed)),
            _ => None,
        })
    }

    /// The result that this run itself made, before it was resumed, for a stage that reuses no other's
    /// result. Another stage with the same key, or another run, may have replaced it since.
    fn own(&self, job: &Job) -> Option<(ActionRecord, Vec<Digest>)> {
        let (id, key) = (self.id(job), &job.key);
        let record = match self.worked.get(&(id.to_owned(), *key)) {
            Some(result) => self.store.result(key, result.as_ref()),
            // Killed between writing the record and the journal entry.
            None => self.store.record(key).filter(|record| {
                record.stage == id && record.run.as_ref().is_some_and(|run| *run == self.folder.id)
            }),
        }?;
        let unsealed = self.store.inspect_all(&record.outputs).ok()?;
        Some((record, unsealed))
    }

    /// Whether the result was fetched from the remote.
    fn fetched(&self, job: &Job) -> Result<bool> {
        let Some(remote) = &self.remote else { return Ok(false) };
        match tokio::task::block_in_place(|| remote.fetch(&self.store, &job.key))? {
            Fetched::Here => return Ok(true),
            Fetched::Nothing => {}
            Fetched::Damaged(problem) => {
                self.remote_note(job, &format!("the shared result cannot be used: {problem}"))?;
            }
            Fetched::Away(cause) => self.remote_note(job, &away(&cause))?,
        }
        Ok(false)
    }

    /// Uploads the result to the remote. Returns the authoritative one.
    fn pushed(&self, job: &Job, record: ActionRecord) -> Result<ActionRecord> {
        let Some(remote) = &self.remote else { return Ok(record) };
        let anew = self.forced(job).is_some();
        match tokio::task::block_in_place(|| remote.push(&self.store, &record, anew))? {
            Pushed::Done | Pushed::Nothing => Ok(record),
            Pushed::Away(cause) => {
                self.remote_note(job, &away(&cause))?;
                Ok(record)
            }
            Pushed::Differs { outputs, standing } => {
                self.differs(job, outputs)?;
                self.store.withdraw(&job.key)?;
                let standing = match self.store.commit(&standing)? {
                    Recorded::New | Recorded::Same => *standing,
                    Recorded::Differs { standing, .. } => *standing,
                };
                self.finished(job, &standing)?;
                Ok(standing)
            }
        }
    }

    /// The shape of the model behind the stage's input policies, which mostly share one.
    fn model_shape(&self, job: &Job) -> Option<Digest> {
        let inputs = &self.plan.node(job.index).stage.card.inputs;
        let (role, _) = inputs.iter().find(|(_, role)| role.artifact == "policy")?;
        let policy = job.ready.inputs.get(role)?.first()?;
        let folder = self.store.path(&policy.output);
        stage::policy_shape(&folder, &StageArtifacts(self.store.clone()))
    }

    /// Reports that the remote is unreachable, for no particular stage.
    pub fn remote_away(&self, cause: &StoreError) {
        self.listener.event(&Event::Remote { id: "shared cache", problem: &away(cause) });
    }

    fn remote_note(&self, job: &Job, problem: &str) -> Result<()> {
        self.listener.event(&Event::Remote { id: self.id(job), problem });
        self.folder.note(Entry::Remote { node: self.id(job).to_owned(), problem: problem.to_owned() })
    }

    fn differs(&self, job: &Job, outputs: Vec<String>) -> Result<()> {
        self.listener.event(&Event::Differs { id: self.id(job), outputs: &outputs });
        self.folder.note(Entry::Differs { node: self.id(job).to_owned(), key: job.key, outputs })
    }

    /// The sections of the run file that a node's stage uses.
    pub fn uses(&self, index: NodeIndex) -> &[Section] {
        &self.plan.node(index).stage.card.uses
    }

    /// Whether a node's stage computes with the engine. A command does its own computing.
    pub fn computes(&self, index: NodeIndex) -> bool {
        let card = &self.plan.node(index).stage.card;
        card.command.is_empty() && card.uses.contains(&Section::Engine)
    }

    fn id(&self, job: &Job) -> &str {
        &self.plan.node(job.index).id
    }

    fn link(&self, job: &Job, record: &ActionRecord) -> Result<()> {
        let outputs = record.outputs.iter().map(|(port, output)| (port.clone(), output.clone()));
        self.folder.link(&self.store, self.plan.node(job.index), outputs)
    }

    /// Why the stage reruns in every run, whatever the store has.
    fn forced(&self, job: &Job) -> Option<RerunReason> {
        plan::forced(&self.plan, job.index, &self.resample)
    }

    /// Records the stage's result in the journal, and links it.
    fn finished(&self, job: &Job, record: &ActionRecord) -> Result<()> {
        let (node, seconds) = (self.id(job).to_owned(), record.cost.seconds);
        let result = Some(record.clone().into());
        self.folder.note(Entry::Finished { node, key: job.key, seconds, result })?;
        self.link(job, record)
    }

    /// Takes the result from the store, waits for another run that is making it, or runs the stage.
    pub async fn settle(&self, job: &Job, share: &Share) -> Result<StageResult> {
        loop {
            let lease = match self.leased(job).await? {
                LeaseOutcome::Lease(lease) => lease,
                LeaseOutcome::StageResult(done) => return Ok(*done),
            };
            if let Some(record) = self.cached(job)? {
                return Ok(StageResult { key: job.key, record, cached: true });
            }
            let began = Instant::now();
            let notes = Arc::new(Notes::new(self.id(job), &self.listener));
            let reports = Reports { meter: Arc::default(), notes };
            let done = self.work(job, &lease, share, &reports).await;
            if done.is_err() {
                let cost = self.cost(job, &reports.meter, began);
                *self.lost.lock().unwrap_or_else(PoisonError::into_inner) += cost;
                for text in reports.notes.kept() {
                    self.folder.note(Entry::Noted { node: self.id(job).to_owned(), text })?;
                }
            }
            match done {
                // This machine was suspended and its lease expired, so another machine took over; its result
                // counts. Other failures may arise because the other machine removed files here.
                Err(failure) if failure.code() == StoreError::LeaseLost.code() => {}
                Err(failure) if failure.class() != Class::Interrupted && lease.check().is_err() => {}
                done => return done,
            }
        }
    }

    /// The lease, or the result that another run made meanwhile.
    async fn leased(&self, job: &Job) -> Result<LeaseOutcome> {
        let mut watch = HeartbeatWatch::default();
        let mut told = false;
        loop {
            if let Some(record) = self.cached(job)? {
                return Ok(LeaseOutcome::StageResult(Box::new(StageResult {
                    key: job.key,
                    record,
                    cached: true,
                })));
            }
            match self.store.lease(&job.key, self.id(job), &self.folder.id, &mut watch)? {
                LeaseAttempt::Mine(lease) => return Ok(LeaseOutcome::Lease(lease)),
                LeaseAttempt::Taken { run, holder } => {
                    if !std::mem::replace(&mut told, true) {
                        self.listener.event(&Event::Waiting { id: self.id(job), run: &run, holder: &holder });
                    }
                    tokio::select! {
                        () = tokio::time::sleep(POLL) => {}
                        () = self.cancel.cancelled() => return Err(Interrupted.into()),
                    }
                }
            }
        }
    }

    async fn work(&self, job: &Job, lease: &Lease, share: &Share, reports: &Reports) -> Result<StageResult> {
        let found = self.store.lookup(&job.key);
        let lacking = || match &found {
            Lookup::Hit(record) => self.plan.lacking(job.index, &record.metrics),
            _ => None,
        };
        let reasons = match self.forced(job) {
            Some(reason) => vec![reason],
            None if lacking().is_some() => plan::no_metric(self.plan.node(job.index)).into_iter().collect(),
            None => {
                let known = (&self.store, &self.last);
                plan::reasons(&self.plan, known, job.index, (&job.ready, &job.fields), &found)
            }
        };
        let asked_anew = reasons.contains(&RerunReason::AskedAnew);
        let id = self.id(job).to_owned();
        self.listener.event(&Event::Started { id: &id, reasons: &reasons });
        self.folder.note(Entry::Started { node: id.clone(), key: job.key, reasons })?;

        let card = &self.plan.node(job.index).stage.card;
        let rows = StageRows::new(&self.store, card, (&job.fields, &job.key), self.forced(job).is_some())?;
        let rows = Arc::new(rows);
        failpoint("runner::begun");
        let began = Instant::now();
        self.files_unchanged(job)?;
        let (work_dir, metrics) = match self.persist(job, lease, &rows, reports, share).await {
            Err(failure) if asked_anew && failure.is_transient() => {
                match self.taken(job, self.stored(job)?)? {
                    Some(record) => {
                        self.listener.event(&Event::Unanswered { id: &id, failure: &failure });
                        return Ok(StageResult { key: job.key, record, cached: true });
                    }
                    None => return Err(failure),
                }
            }
            performed => performed?,
        };
        failpoint("runner::performed");
        let metrics = self.checked(job, metrics, &reports.notes)?;
        self.files_unchanged(job)?;
        let (outputs, placed) = self.publish(job, &work_dir)?;
        let record = ActionRecord {
            key: job.key,
            stage: id.clone(),
            fields: plan::stored(&job.fields, &self.beside(job, &outputs)),
            outputs,
            metrics,
            cost: self.cost(job, &reports.meter, began),
            notes: reports.notes.kept(),
            run: Some(self.folder.id.clone()),
            withheld: self.plan.node(job.index).stage.cache == CacheMode::Off,
        };
        lease.check()?;
        // The same answer again changes nothing.
        let stands = asked_anew && matches!(&found, Lookup::Hit(before) if before.outputs == record.outputs);
        if found != Lookup::Miss && !stands {
            self.store.withdraw(&job.key)?;
        }
        let record = match self.store.enter(&record)? {
            Recorded::New | Recorded::Same => record,
            Recorded::Differs { outputs, standing } => {
                self.differs(job, outputs)?;
                *standing
            }
        };
        self.syncer.settle(&id, &record, placed, Some(rows.ending(&record)));
        // Done before the upload, which may take long: a recorded stage does not rerun.
        self.finished(job, &record)?;
        let record = self.pushed(job, record)?;
        self.store.remember(&self.plan.name, &BTreeMap::from([(id, job.key)]))?;
        failpoint("runner::linked");
        Ok(StageResult { key: job.key, record, cached: false })
    }

    /// The stage's metrics without those that are not finite. Fails if the metric that its loop waits for is
    /// missing.
    fn checked(&self, job: &Job, mut metrics: Metrics, notes: &Notes) -> Result<Metrics> {
        metrics.retain(|name, value| {
            if !value.is_finite() {
                notes.note(&format!("metric `{name}` is {value}, and left out"));
            }
            value.is_finite()
        });
        match self.plan.lacking(job.index, &metrics) {
            Some(lacking) => Err(lacking.into()),
            None => Ok(metrics),
        }
    }

    /// Runs the stage. Retries if an external service fails and the card allows it.
    async fn persist(
        &self,
        job: &Job,
        lease: &Lease,
        rows: &Arc<StageRows>,
        reports: &Reports,
        share: &Share,
    ) -> Result<(WorkDir, Metrics)> {
        let mut wait = FIRST_WAIT;
        let mut left = self.plan.node(job.index).stage.card.retries;
        if self.forced(job) == Some(RerunReason::AskedAnew) && self.store.record(&job.key).is_some() {
            // An earlier answer can be used instead.
            left = 0;
        }
        loop {
            let work_dir = WorkDir::new(&self.store, &job.key)?;
            match self.perform(job, &work_dir, rows.clone(), reports, share).await {
                Ok(metrics) => return Ok((work_dir, metrics)),
                Err(failure) if left > 0 && failure.is_transient() => {
                    let id = self.id(job);
                    self.listener.event(&Event::Retrying { id, failure: &failure, wait });
                    self.folder.note(Entry::Retried { node: id.into(), error: failure.to_string() })?;
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = self.cancel.cancelled() => return Err(Interrupted.into()),
                    }
                    // Another machine's files may be where the next try would write.
                    lease.check()?;
                    left -= 1;
                    wait = (wait * 2).min(LONGEST_WAIT);
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    async fn perform(
        &self,
        job: &Job,
        work_dir: &WorkDir,
        rows: Arc<dyn Rows>,
        reports: &Reports,
        share: &Share,
    ) -> Result<Metrics> {
        let node = self.plan.node(job.index);
        let card = &node.stage.card;
        let input = |fed: &ResolvedInput| Input {
            name: fed.name.clone(),
            digest: fed.output.digest,
            path: absolute(self.store.path(&fed.output)),
        };
        let mut server = self.plan.server.clone();
        if let Some(server) = &mut server {
            server.limits.sessions = share.sessions.max(1);
        }
        let engine = match share.devices.is_empty() {
            true => self.plan.engine.clone(),
            false => self.plan.engine.on(&share.devices),
        };
        let inputs = job.ready.inputs.iter();
        let context = Context {
            stage: node.id.clone(),
            params: node.stage.params.clone(),
            inputs: inputs.map(|(role, inputs)| (role.clone(), inputs.iter().map(input).collect())).collect(),
            output: work_dir.out(),
            files: card.texts.clone(),
            seed: job.fields.stage_seed(self.draw(job)),
            server: server.filter(|_| card.uses.contains(&Section::Server)),
            engine,
            artifacts: Arc::new(StageArtifacts(self.store.clone())),
            rows,
            observer: reports.notes.clone(),
            held: self.held.clone(),
            meter: reports.meter.clone(),
            cancel: self.cancel.clone(),
        };
        if !card.command.is_empty() {
            // A user's program manages its devices itself, so free their memory.
            self.held.bases.evict_devices(&share.devices);
            return stage::command::run(card, &context, &work_dir.scratch()).await;
        }
        match registry::find(&card.kind) {
            Some(built_in) => (built_in.run)(&context).await,
            None => Err(StageError::NotBuiltIn { kind: card.kind.clone() }.into()),
        }
    }

    fn cost(&self, job: &Job, meter: &UsageMeter, began: Instant) -> Cost {
        let spent = meter.total();
        let prices = self.plan.node(job.index).stage.prices.filter(|_| spent.is_billed());
        let dollars = prices.map(|prices| prices.of(&spent));
        Cost { seconds: began.elapsed().as_secs_f64(), spent, dollars }
    }

    fn beside(&self, job: &Job, outputs: &BTreeMap<String, Output>) -> KeyMetadata {
        let card = &self.plan.node(job.index).stage.card;
        let server = card.output_of_type("server").and_then(|port| outputs.get(port));
        KeyMetadata {
            parts: card.parts(),
            shape: self.model_shape(job),
            draw: self.draw(job),
            server: server.and_then(|output| ServerName::read(&self.store.path(output))),
        }
    }

    /// The number of the node's draw: the next one if a resample was requested and a result exists.
    fn draw(&self, job: &Job) -> u64 {
        if self.plan.node(job.index).stage.card.determinism != Determinism::Sampled {
            return 0;
        }
        let anew = self.forced(job).is_some();
        let standing = self.store.record(&job.key);
        standing.map_or(0, |record| plan::stored_draw(&record.fields).saturating_add(anew.into()))
    }

    /// A file that changed since the key was computed would store a wrong result under that key.
    fn files_unchanged(&self, job: &Job) -> Result<()> {
        let stage = &self.plan.node(job.index).stage;
        let stage_id = || self.id(job).to_owned();
        for (name, digest) in &stage.card.code {
            let path = stage.card.folder.as_deref().unwrap_or(Path::new("")).join(name);
            if self.files.digest(&path)? != *digest {
                let path = path.display().to_string();
                return Err(ExecError::FileChanged { stage: stage_id(), path }.into());
            }
        }
        if stage.card.uses.contains(&Section::Server) {
            for (path, digest) in self.plan.server_files() {
                if self.files.digest(path)? != *digest {
                    let path = path.display().to_string();
                    return Err(ExecError::ServerChanged { stage: stage_id(), path }.into());
                }
            }
        }
        for (param, digest) in &stage.files {
            let path = stage.params.get(param).and_then(serde_json::Value::as_str).unwrap_or_default();
            let place = Path::new(path);
            let now = match place.is_dir() {
                true => self.files.folder(place, stage::model::wanted_in(place))?,
                false => self.files.digest(place)?,
            };
            if now != *digest {
                return Err(ExecError::FileChanged { stage: stage_id(), path: path.to_owned() }.into());
            }
        }
        Ok(())
    }

    fn publish(
        &self,
        job: &Job,
        work_dir: &WorkDir,
    ) -> Result<(BTreeMap<String, Output>, Vec<UnsyncedArtifact>)> {
        let (mut outputs, mut artifacts) = (BTreeMap::new(), Vec::new());
        for (port, declared) in &self.plan.node(job.index).stage.card.outputs {
            let written = work_dir.out().join(&declared.path);
            let Ok(metadata) = written.symlink_metadata() else {
                return Err(StageError::NoOutput { port: port.clone(), path: declared.path.clone() }.into());
            };
            // Built-in stages write the right type by construction.
            if !self.plan.node(job.index).stage.card.command.is_empty() {
                data::check(&declared.artifact, &written).at(|| format!("output `{port}`"))?;
            }
            let (staged, file) = if metadata.is_dir() {
                (written, None)
            } else {
                let name = Path::new(&declared.path).file_name().unwrap_or_default();
                let staged = work_dir.port(port)?;
                std::fs::rename(&written, staged.join(name))
                    .map_err(|cause| StoreError::writing(&written, cause))?;
                (staged, Some(name.to_string_lossy().into_owned()))
            };
            let placed = self.store.place(&staged).at(|| format!("output `{port}`"))?;
            outputs.insert(port.clone(), Output { digest: placed.digest, file });
            artifacts.push(placed);
        }
        Ok((outputs, artifacts))
    }
}

/// Includes the hint, since this is only a notice.
fn away(cause: &StoreError) -> String {
    match cause.hint() {
        Some(hint) => format!("{cause} ({hint})"),
        None => cause.to_string(),
    }
}

struct StageArtifacts(Store);

impl Artifacts for StageArtifacts {
    fn folder(&self, digest: &Digest) -> Result<PathBuf> {
        match self.0.inspect(digest) {
            Condition::Sealed | Condition::Unsealed => Ok(absolute(self.0.artifact(digest))),
            Condition::Absent | Condition::Damaged(_) => {
                Err(StoreError::Absent { digest: digest.short() }.into())
            }
        }
    }
}
