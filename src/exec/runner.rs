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
    path::Path,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{
    Event, ExecError, Listener, RunFolder,
    held_out::Disjoint,
    jobs::{self, Executors, JobContext, Jobs},
    notes::Notes,
    progress_file::ProgressFile,
    rows::StageRows,
    slots::Share,
    task::{ProcessContext, StageArtifacts, StageTask},
    work_dir::WorkDir,
};
use crate::{
    data,
    error::{At, Class, Diagnostic, Failure, Interrupted, Reported, Result},
    hash::Digest,
    plan::{
        self, CacheMode, CostHistory, Executor, Job, KeyMetadata, NodeIndex, Plan, RerunReason, Resample,
        ServerName, Uses,
    },
    progress::Observer,
    stage::{
        self, Metrics, SharedModels, StageError,
        card::{Determinism, ParamType, Section},
    },
    store::{
        ActionRecord, CachedResult, Cost, Fetched, FileDigests, HeartbeatWatch, KeyIndex, Lease,
        LeaseOutcome, Lookup, Output, Pushed, Recorded, Remote, Store, StoreError, Syncer, UnsyncedArtifact,
        failpoint, own_files,
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
    /// Batch systems that run stages.
    pub jobs: Executors,
    /// The cache shared with other machines.
    pub remote: Option<Remote>,
    pub syncer: Syncer,
    pub files: FileDigests,
    pub folder: RunFolder,
    pub last: KeyIndex,
    pub resample: Vec<Resample>,
    /// Results of stages that this run ran before it was resumed, by stage and key.
    pub own_results: BTreeMap<(String, Digest), CachedResult>,
    /// Cost of stages that did not finish.
    pub lost: Mutex<Cost>,
    /// Models kept in memory for several stages.
    pub shared_models: Arc<SharedModels>,
    pub listener: Arc<dyn Listener>,
    pub progress: ProgressFile,
    /// What stages took earlier; read when the first one runs.
    pub history: Mutex<Option<CostHistory>>,
    pub cancel: CancellationToken,
    /// The heartbeats of other runs' leases, by key. A lease that was found dead may not be removable, and is found again.
    pub heartbeats: Mutex<BTreeMap<Digest, HeartbeatWatch>>,
    /// Pairs of tables of tasks that have no task in common.
    pub disjoint: Mutex<Vec<(Output, Output)>>,
}

/// A node's result.
pub struct StageResult {
    pub key: Digest,
    pub result: CachedResult,
    pub cached: bool,
}

impl StageResult {
    fn new(record: ActionRecord, cached: bool) -> Self {
        Self { key: record.key, result: record.into(), cached }
    }
}

/// How far a stage came.
pub enum StageProgress {
    Done(Box<StageResult>),
    /// Another run has its lease.
    Leased(Box<Job>),
    /// The lease it waited for is free.
    Released,
}

impl StageProgress {
    fn cached(record: ActionRecord) -> Self {
        Self::Done(Box::new(StageResult::new(record, true)))
    }
}

/// A running stage, and what it has reported.
struct Running<'a> {
    job: &'a Job,
    lease: &'a Lease,
    share: &'a Share,
    meter: Arc<UsageMeter>,
    notes: Arc<Notes>,
    /// When the worker of a job began. Waiting for it is no cost of the stage.
    begun: OnceLock<Instant>,
}

impl Runner {
    /// The finished result, unless there is none or the stage must rerun.
    pub fn cached(&self, job: &Job) -> Result<Option<ActionRecord>> {
        let found = if job.forced.is_some() { self.own_result(job) } else { self.stored(job)? };
        self.claim(job, found)
    }

    /// Declares the use of a result that was found, with those of its artifacts whose seals do not fit.
    fn claim(&self, job: &Job, found: Option<(ActionRecord, Vec<Digest>)>) -> Result<Option<ActionRecord>> {
        let Some((record, unsealed)) = found else { return Ok(None) };
        if !unsealed.is_empty() {
            // Left by a killed run, perhaps not durable yet.
            self.store.sync(&[], &[job.key])?;
            unsealed.iter().try_for_each(|digest| self.store.seal(digest))?;
        }
        let result = record.clone().into();
        self.folder.note(&Event::Cached { id: self.id(job).to_owned(), key: job.key, result })?;
        // Write first, then check again: either the sweep sees the entry, or its removal is seen here.
        self.store.after_sweep();
        if !self.store.has_artifacts(&record.outputs) {
            return Ok(None);
        }
        self.link(job, &record)?;
        Ok(Some(record))
    }

    /// The current result, local or remote, with those of its artifacts whose seals do not fit.
    fn stored(&self, job: &Job) -> Result<Option<(ActionRecord, Vec<Digest>)>> {
        let stored = || job.stored(&self.plan, &self.store);
        let found = stored();
        let Some(remote) = self.remote.as_ref().filter(|_| found.is_none()) else { return Ok(found) };
        if matches!(job.lookup(&self.plan, &self.store).0, Lookup::Miss | Lookup::Damaged { .. }) {
            self.fetch(remote, job)?;
        }
        Ok(stored())
    }

    /// The result that this run itself made, before it was resumed, for a stage that reuses no other's
    /// result. Another stage with the same key, or another run, may have replaced it since.
    fn own_result(&self, job: &Job) -> Option<(ActionRecord, Vec<Digest>)> {
        let (id, key) = (self.id(job), &job.key);
        let record = match self.own_results.get(&(id.to_owned(), *key)) {
            Some(result) => self.store.result(key, result),
            // Killed between writing the record and the journal entry.
            None => self.store.record(key).filter(|record| {
                record.stage == id && record.run.as_ref().is_some_and(|run| *run == self.folder.id)
            })?,
        };
        let unsealed = self.store.inspect_all(&record.outputs).ok()?;
        let is_whole = self.plan.lacking(job.index, &record.metrics).is_none()
            && self.plan.lacking_output(job.index, &record.outputs).is_none();
        is_whole.then_some((record, unsealed))
    }

    /// Fetches the result from the remote, if it has one.
    fn fetch(&self, remote: &Remote, job: &Job) -> Result<()> {
        match tokio::task::block_in_place(|| remote.fetch(&self.store, &job.key))? {
            Fetched::Here | Fetched::Nothing => Ok(()),
            Fetched::Damaged(problem) => {
                self.remote_note(job, &format!("the shared result cannot be used: {problem}"))
            }
            Fetched::Away(cause) => self.remote_note(job, &away(&cause)),
        }
    }

    /// Uploads the result to the remote. Returns the authoritative one.
    fn push(&self, job: &Job, record: ActionRecord) -> Result<ActionRecord> {
        let Some(remote) = &self.remote else { return Ok(record) };
        let is_rerun = job.forced.is_some();
        match tokio::task::block_in_place(|| remote.push(&self.store, &record, is_rerun))? {
            Pushed::Done | Pushed::Nothing => Ok(record),
            Pushed::Away(cause) => {
                self.remote_note(job, &away(&cause))?;
                Ok(record)
            }
            Pushed::Differs { outputs, existing } => {
                self.differs(job, outputs)?;
                self.store.withdraw(&job.key)?;
                let record = match self.store.commit(&existing)? {
                    Recorded::New | Recorded::Same => *existing,
                    Recorded::Differs { existing, .. } => *existing,
                };
                self.finished(job, &record)?;
                Ok(record)
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

    /// How long the stage takes by earlier runs with a model of the same shape.
    fn expected_seconds(&self, job: &Job) -> Option<f64> {
        let stage = &self.plan.node(job.index).stage;
        let has_model = job.ready.inputs.keys().any(|role| stage.reads(role, "policy"));
        let uses = match self.model_shape(job) {
            Some(shape) => Uses::Model(shape),
            None if has_model => Uses::UnknownModel,
            None => Uses::NoModel,
        };
        let mut history = self.history.lock();
        let history = history.get_or_insert_with(|| CostHistory::of(&self.store));
        history.estimate(stage, uses, None).ok().map(|estimate| estimate.cost.seconds)
    }

    /// Reports that the remote is unreachable, for no particular stage.
    pub fn remote_away(&self, cause: &StoreError) {
        self.listener.event(&Event::Remote { id: "shared cache".into(), problem: away(cause) });
    }

    /// Records an event in the journal, and shows it.
    pub fn report(&self, event: Event) -> Result<()> {
        self.listener.event(&event);
        self.folder.note(&event)
    }

    fn remote_note(&self, job: &Job, problem: &str) -> Result<()> {
        self.report(Event::Remote { id: self.id(job).to_owned(), problem: problem.to_owned() })
    }

    fn differs(&self, job: &Job, outputs: Vec<String>) -> Result<()> {
        self.report(Event::Differs { id: self.id(job).to_owned(), key: job.key, outputs })
    }

    /// The sections of the run file whose resources a node's stage needs on this machine. A job has devices of its own, but the
    /// sessions of a server are limited wherever they are.
    pub fn share_of(&self, index: NodeIndex) -> Vec<Section> {
        let uses = self.plan.node(index).stage.uses.iter().copied();
        let is_job = self.jobs(index).is_some();
        uses.filter(|section| !is_job || *section == Section::Server).collect()
    }

    /// The batch system that runs a node's stage.
    pub fn jobs(&self, index: NodeIndex) -> Option<&Jobs> {
        match &self.plan.node(index).stage.executor {
            Executor::Jobs(name) => self.jobs.get(&**name),
            Executor::Local => None,
        }
    }

    /// Whether a node's stage computes with the engine. A command does its own computing.
    pub fn computes(&self, index: NodeIndex) -> bool {
        let stage = &self.plan.node(index).stage;
        stage.card.command.is_empty() && stage.uses.contains(&Section::Engine)
    }

    fn id(&self, job: &Job) -> &str {
        &self.plan.node(job.index).id
    }

    fn link(&self, job: &Job, record: &ActionRecord) -> Result<()> {
        self.folder.link(&self.store, self.plan.node(job.index), &record.outputs)
    }

    /// Records the stage's result in the journal, and links it.
    fn finished(&self, job: &Job, record: &ActionRecord) -> Result<()> {
        let (id, result) = (self.id(job).to_owned(), record.clone().into());
        self.folder.note(&Event::Finished { id, key: job.key, result })?;
        self.link(job, record)
    }

    /// Takes the result from the store, or runs the stage unless another run is making it.
    pub async fn run(&self, job: Job, wanted: &[Disjoint], share: &Share) -> Result<StageProgress> {
        loop {
            if let Some(record) = self.cached(&job)? {
                return Ok(StageProgress::cached(record));
            }
            let lease = match self.lease(&job)? {
                LeaseOutcome::Mine(lease) => lease,
                LeaseOutcome::Taken { .. } => return Ok(StageProgress::Leased(Box::new(job))),
            };
            // Another run may have published it just before.
            if let Some(record) = self.cached(&job)? {
                return Ok(StageProgress::cached(record));
            }
            wanted.iter().try_for_each(|wanted| self.disjoint(&job, wanted))?;
            let began = Instant::now();
            let shown = self.progress.begin(self.id(&job));
            let notes = Arc::new(Notes::new(self.id(&job), &self.listener, Arc::clone(&shown.progress)));
            let (job, lease, begun) = (&job, &lease, OnceLock::new());
            let running = Running { job, lease, share, meter: Arc::default(), notes, begun };
            let done = self.execute(&running).await;
            drop(shown);
            if done.is_err() {
                let cost = self.cost(&running, began);
                *self.lost.lock() += cost;
                for message in running.notes.kept() {
                    self.folder.note(&Event::Note { id: self.id(job).to_owned(), message })?;
                }
            }
            match done {
                // This machine was suspended and its lease expired, so another machine took over; its result
                // counts. Other failures may arise because the other machine removed files here.
                Err(failure) if failure.code() == StoreError::LeaseLost.code() => {}
                Err(failure) if failure.class() != Class::Interrupted && lease.check().is_err() => {}
                done => return Ok(StageProgress::Done(Box::new(done?))),
            }
        }
    }

    fn lease(&self, job: &Job) -> Result<LeaseOutcome> {
        let mut heartbeats = self.heartbeats.lock();
        let watch = heartbeats.entry(job.key).or_default();
        Ok(self.store.lease(&job.key, self.id(job), &self.folder.id, watch)?)
    }

    /// Waits for another run that is making the result, until the result is there or the lease is free. It is
    /// not kept: the stage may have to wait for slots here, while another run has some.
    pub async fn wait_for_lease(&self, job: &Job) -> Result<StageProgress> {
        let mut is_reported = false;
        loop {
            if let Some(record) = self.cached(job)? {
                return Ok(StageProgress::cached(record));
            }
            let LeaseOutcome::Taken { run, holder } = self.lease(job)? else {
                return Ok(StageProgress::Released);
            };
            if !std::mem::replace(&mut is_reported, true) {
                self.report(Event::Waiting { id: self.id(job).to_owned(), run, holder })?;
            }
            self.sleep(POLL).await?;
        }
    }

    /// Checks each pair of tables once.
    fn disjoint(&self, job: &Job, wanted: &Disjoint) -> Result<()> {
        let tables = wanted.tables();
        let known = || self.disjoint.lock();
        if !known().contains(&tables) {
            wanted.check(&self.store, self.id(job))?;
            known().push(tables);
        }
        Ok(())
    }

    /// Ends early if the run is stopped.
    async fn sleep(&self, time: Duration) -> Result<()> {
        let slept = self.cancel.run_until_cancelled(tokio::time::sleep(time)).await;
        slept.ok_or_else(|| Interrupted.into())
    }

    async fn execute(&self, running: &Running<'_>) -> Result<StageResult> {
        let Running { job, lease, notes, .. } = running;
        let (stored, _) = job.lookup(&self.plan, &self.store);
        let reasons = plan::rerun_reasons(&self.plan, (&self.store, &self.last), job, &stored);
        let queries_server = reasons.contains(&RerunReason::ServerQueried);
        let id = self.id(job).to_owned();
        self.report(Event::Started { id: id.clone(), key: job.key, reasons })?;

        let card = &self.plan.node(job.index).stage.card;
        let draw = self.draw(job)?;
        let is_rerun = job.forced.is_some();
        let rows = StageRows::new(&self.store, card, (&job.fields, &job.key), draw, (is_rerun, ""))?;
        let rows = Arc::new(rows);
        failpoint("runner::begun");
        if let Some(seconds) = self.expected_seconds(job) {
            notes.expect(seconds);
        }
        let began = Instant::now();
        self.files_unchanged(job)?;
        let (work_dir, metrics) = match self.call_with_retries(running, &rows).await {
            Err(failure) if queries_server && is_away(&failure) => {
                let Some(record) = self.claim(job, self.stored(job)?)? else { return Err(failure) };
                self.report(Event::Unanswered { id, error: Reported::from(&failure) })?;
                return Ok(StageResult::new(record, true));
            }
            performed => performed?,
        };
        failpoint("runner::performed");
        let metrics = self.checked(job, metrics, notes)?;
        self.files_unchanged(job)?;
        let (outputs, mut placed) = self.publish(job, &work_dir, draw)?;
        let record = ActionRecord {
            key: job.key,
            stage: id.clone(),
            fields: plan::stored(&job.fields, &self.key_metadata(job, draw, &outputs)),
            outputs,
            metrics,
            cost: self.cost(running, began),
            notes: notes.kept(),
            run: Some(self.folder.id.clone()),
            withheld: self.plan.node(job.index).stage.cache == CacheMode::Off,
        };
        lease.check()?;
        // The same answer again changes nothing.
        let same =
            queries_server && matches!(&stored, Lookup::Hit(before) if before.outputs == record.outputs);
        if stored != Lookup::Miss && !same {
            self.store.withdraw(&job.key)?;
        }
        let record = match self.store.enter(&record)? {
            Recorded::New | Recorded::Same => record,
            Recorded::Differs { outputs, existing } => {
                self.differs(job, outputs)?;
                *existing
            }
        };
        if let Some(history) = &mut *self.history.lock() {
            history.add(record.clone());
        }
        if jobs::forget(&self.store, &job.key, draw) {
            placed.iter_mut().try_for_each(|placed| self.store.stamp_again(placed))?;
        }
        self.syncer.submit(&id, &record, placed, Some(rows.ending(&record)));
        // Done before the upload, which may take long: a recorded stage does not rerun.
        self.finished(job, &record)?;
        let record = self.push(job, record)?;
        self.store.remember(&self.plan.name, &BTreeMap::from([(id, job.key)]))?;
        failpoint("runner::linked");
        Ok(StageResult::new(record, false))
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
    async fn call_with_retries(
        &self,
        running: &Running<'_>,
        rows: &Arc<StageRows>,
    ) -> Result<(WorkDir, Metrics)> {
        let Running { job, lease, .. } = running;
        let mut wait = FIRST_WAIT;
        let mut left = self.plan.node(job.index).stage.card.retries.unwrap_or(0);
        if job.forced == Some(RerunReason::ServerQueried) && self.store.record(&job.key).is_some() {
            // An earlier answer can be used instead.
            left = 0;
        }
        loop {
            let work_dir = WorkDir::new(&self.store, &job.key)?;
            match self.call(running, &work_dir, rows).await {
                Ok(metrics) => return Ok((work_dir, metrics)),
                Err(failure) if left > 0 && failure.is_transient() && !is_tried(&failure) => {
                    let (id, error) = (self.id(job).to_owned(), Reported::from(&failure));
                    self.report(Event::Retrying { id, error, wait_s: wait.as_secs_f64() })?;
                    self.sleep(wait).await?;
                    // Another machine's files may be where the next try would write.
                    lease.check()?;
                    left -= 1;
                    wait = (wait * 2).min(LONGEST_WAIT);
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    async fn call(
        &self,
        running: &Running<'_>,
        work_dir: &WorkDir,
        rows: &Arc<StageRows>,
    ) -> Result<Metrics> {
        let Running { job, share, meter, notes, .. } = running;
        let task = self.task(job, work_dir, rows, share);
        if let Some(jobs) = self.jobs(job.index) {
            return self.call_jobs(jobs, running, &task).await;
        }
        jobs::close_others(&self.store, (&job.key, task.draw), &[]);
        let (rows, cancel) = (Arc::clone(rows), self.cancel.clone());
        let place = ProcessContext { plan: &self.plan, store: &self.store, models: &self.shared_models };
        task.run(place, job.index, rows, notes.clone(), meter.clone(), cancel).await
    }

    /// Runs the stage as a job, behind those that play shards of it.
    async fn call_jobs(&self, jobs: &Jobs, running: &Running<'_>, task: &StageTask) -> Result<Metrics> {
        let Running { job, lease, meter, notes, begun, .. } = running;
        let (store, notes, meter) = (&self.store, &**notes, &**meter);
        let fewest = task.sessions.values().copied().min().unwrap_or(usize::MAX);
        let of = self.plan.node(job.index).stage.shards.min(fewest);
        let shards = task.shards(of);
        let all: Vec<&StageTask> = shards.iter().chain([task]).collect();
        jobs::close_others(store, (&job.key, task.draw), &all);
        if !shards.is_empty() {
            // One that fails ends the others.
            let stop = self.cancel.child_token();
            let played = shards.iter().map(|shard| {
                let stop = &stop;
                async move {
                    let around = JobContext {
                        store,
                        lease,
                        observer: notes,
                        meter,
                        begun,
                        cancel: stop,
                        of_run: &self.cancel,
                    };
                    let done = jobs.run(shard, around).await;
                    if done.is_err() {
                        stop.cancel();
                    }
                    done
                }
            });
            let failures = futures::future::join_all(played).await.into_iter().filter_map(Result::err);
            let mut failures: Vec<Failure> = failures.collect();
            failures.sort_by_key(|failure| failure.class() == Class::Interrupted);
            if let Some(failure) = failures.into_iter().next() {
                return Err(failure);
            }
            notes.phase("puts the shards together", 0);
        }
        let (cancel, of_run) = (&self.cancel, &self.cancel);
        jobs.run(task, JobContext { store, lease, observer: notes, meter, begun, cancel, of_run }).await
    }

    fn task(&self, job: &Job, work_dir: &WorkDir, rows: &StageRows, share: &Share) -> StageTask {
        StageTask {
            node: self.id(job).to_owned(),
            key: job.key,
            ready: job.ready.clone(),
            draw: rows.draw(),
            is_rerun: job.forced.is_some(),
            run: job.forced.is_some().then(|| self.folder.id.clone()),
            seed: job.fields.stage_seed(rows.draw()),
            shard: None,
            build: self.jobs(job.index).map(Jobs::build).unwrap_or_default(),
            devices: share.devices.clone(),
            sessions: share.sessions.clone(),
            out: work_dir.out(),
            scratch: work_dir.scratch(),
        }
    }

    fn cost(&self, running: &Running<'_>, began: Instant) -> Cost {
        let (spent, began) = (running.meter.total(), running.begun.get().copied().unwrap_or(began));
        let prices = self.plan.node(running.job.index).stage.prices.filter(|_| spent.is_billed());
        let dollars = prices.map(|prices| prices.of(&spent));
        Cost { seconds: began.elapsed().as_secs_f64(), spent, dollars }
    }

    fn key_metadata(&self, job: &Job, draw: u64, outputs: &BTreeMap<String, Output>) -> KeyMetadata {
        let card = &self.plan.node(job.index).stage.card;
        let server = card.output_of_type("server").and_then(|port| outputs.get(port));
        KeyMetadata {
            parts: card.parts(),
            shape: self.model_shape(job),
            draw,
            server: server.and_then(|output| ServerName::read(&self.store.path(output))),
        }
    }

    /// The number of the node's draw. A requested rerun takes the number after the newest one that this store or the remote
    /// has seen, so that no sample is drawn twice, wherever its result went. `--resample` never takes the first number: the
    /// result to draw again may be one that nobody has any more.
    fn draw(&self, job: &Job) -> Result<u64> {
        if self.plan.node(job.index).stage.card.determinism != Determinism::Sampled {
            return Ok(0);
        }
        let Some(reason) = &job.forced else {
            // Repairs a damaged result, or is the first to draw.
            return Ok(self.store.record(&job.key).map_or(0, |record| record.draw()));
        };
        let seen = self.store.last_draw(&job.key).max(self.shared_draw(job)?);
        let first = u64::from(*reason == RerunReason::Resample);
        Ok(seen.map_or(first, |seen| seen.saturating_add(1)))
    }

    /// The number of the draw behind the remote's result, if it has one.
    fn shared_draw(&self, job: &Job) -> Result<Option<u64>> {
        let Some(remote) = &self.remote else { return Ok(None) };
        match tokio::task::block_in_place(|| remote.record(&job.key)) {
            Ok(record) => Ok(record.map(|record| record.draw())),
            Err(cause) => self.remote_note(job, &away(&cause)).map(|()| None),
        }
    }

    /// A file that changed since the key was computed would store a wrong result under that key.
    fn files_unchanged(&self, job: &Job) -> Result<()> {
        let stage = &self.plan.node(job.index).stage;
        let is_changed = |path: &Path, digest: &Digest, kind: ParamType| -> Result<bool> {
            if !path.exists() {
                return Ok(true);
            }
            let now = match path.is_dir() {
                true => self.files.folder(path, kind.wanted_in(path))?,
                false => self.files.digest(path)?,
            };
            Ok(now != *digest)
        };
        let id = || self.id(job).to_owned();
        let folder = stage.card.folder.as_deref().unwrap_or(Path::new(""));
        let code = stage.card.code.iter().map(|(name, digest)| (folder.join(name), digest, ParamType::File));
        let files =
            stage.files.iter().map(|(name, digest)| (stage.file(name), digest, stage.param_type(name)));
        for (path, digest, kind) in code.chain(files) {
            if is_changed(&path, digest, kind)? {
                return Err(ExecError::FileChanged { stage: id(), path: path.display().to_string() }.into());
            }
        }
        let uses_server = stage.uses.contains(&Section::Server);
        for (path, digest) in self.plan.server_files().filter(|_| uses_server) {
            if is_changed(path, digest, ParamType::File)? {
                return Err(ExecError::ServerChanged { stage: id(), path: path.display().to_string() }.into());
            }
        }
        Ok(())
    }

    fn publish(
        &self,
        job: &Job,
        work_dir: &WorkDir,
        draw: u64,
    ) -> Result<(BTreeMap<String, Output>, Vec<UnsyncedArtifact>)> {
        let (mut outputs, mut artifacts) = (BTreeMap::new(), Vec::new());
        for (port, declared) in &self.plan.node(job.index).stage.card.outputs {
            let written = work_dir.out().join(&declared.path);
            let Ok(metadata) = written.symlink_metadata() else {
                return Err(StageError::NoOutput { port: port.clone(), path: declared.path.clone() }.into());
            };
            // Built-in stages write the right type by construction.
            if !self.plan.node(job.index).stage.card.command.is_empty() {
                if self.jobs(job.index).is_none() {
                    own_files(&written).map_err(|cause| StoreError::writing(&written, cause))?;
                }
                let checked = data::check(&declared.artifact, &written);
                if checked.is_err() && self.jobs(job.index).is_some() {
                    // So that the next run submits it again.
                    jobs::forget(&self.store, &job.key, draw);
                }
                checked.at(|| format!("output `{port}`"))?;
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

/// Whether a server was tried as long as it may be: a command several times, one that limits requests for a minute.
fn is_tried(failure: &Failure) -> bool {
    matches!(failure.code(), "mcp::died_at_start" | "mcp::start_timeout" | "mcp::rate_limited")
}

/// Whether the server could not be asked, so that its last answer has to do.
fn is_away(failure: &Failure) -> bool {
    failure.is_transient() || failure.code().starts_with("mcp::")
}
