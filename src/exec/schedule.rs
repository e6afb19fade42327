//! Schedules the stages of a run.
//!
//! First it completes everything that is in the store. Then it starts each stage whose inputs are known, as the
//! slots allow.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::{
    runtime::Runtime,
    task::{AbortHandle, Id, JoinSet},
};

use super::{
    Event, ExecError, Request, RunState, StageOutcome, Summary,
    held_out::HeldOut,
    idle::Updates,
    jobs::{Executors, Jobs},
    progress_file::ProgressFile,
    runner::{Runner, StageProgress, StageResult},
    server_data,
    slots::{Share, Slots, Waiters},
    threads::panic_message,
    upload,
};
use crate::{
    error::{At, Class, Failure, Reported, Result},
    hash::Digest,
    mcp::{ServerSpec, Servers},
    plan::{
        Completion, Job, JobsSpec, Ledger, Models, NodeIndex, PlanError, PlanPreflight, Readiness,
        Resolution, will_run,
    },
    stage::card::Section,
    store::{Cost, Remote, Syncer},
};

/// Runs the plan. `Err` is for what stops the run as a whole; a failing stage is part of the summary.
pub fn run(request: Request) -> Result<Summary> {
    let Request { plan, store, files, folder, resample, keep_going, listener, program, cancel } = request;
    let (last, own_results) = (store.last_keys(&plan.name), folder.own_results());
    let remote = plan.remote.clone().map(Remote::new);
    let syncer = Syncer::new(&store);
    let progress = ProgressFile::new(&folder.path);
    let jobs = program.map_or_else(Executors::new, |program| {
        let of =
            |(name, spec): (&String, &JobsSpec)| (name.clone(), Jobs::new(spec.clone(), program.clone()));
        plan.executors.iter().map(of).collect()
    });
    let runner = Arc::new(Runner {
        plan,
        store,
        jobs,
        remote,
        syncer,
        files,
        heartbeats: Mutex::default(),
        folder,
        last,
        resample,
        own_results,
        lost: Mutex::default(),
        shared_models: Arc::default(),
        listener,
        progress,
        history: Mutex::default(),
        cancel,
        disjoint: Mutex::default(),
    });
    if !runner.jobs.is_empty() {
        // Workers of jobs read them.
        runner.files.save(&runner.store)?;
    }
    let mut run = Run::new(&runner, keep_going);
    let resolved = run.resolve();
    if resolved.is_ok()
        && let Err(refused) = run.preflight()
    {
        runner.folder.refused()?;
        return Err(refused);
    }
    if resolved.is_ok() {
        server_data::check(&runner.plan, &runner.files, &runner.folder, &*runner.listener)?;
    }
    // Kept until the end, since its threads listen for the stop signal.
    let mut threads = Threads(None);
    let outcome = resolved.and_then(|()| {
        if run.open().next().is_none() {
            return Ok(());
        }
        let runtime = super::threads::threads(&runner.plan.engine)?;
        let runtime = threads.0.insert(runtime);
        runtime.block_on(run.schedule())
    });
    runner.shared_models.retain(|_| false);
    let models = runner.shared_models.bases.loads();
    if models > 0 {
        runner.folder.note(&Event::Loaded { models })?;
    }
    run.finish_sync()?;
    runner.store.remember(&runner.plan.name, &run.keys)?;
    runner.files.save(&runner.store)?;
    upload::push_rest(&runner);
    let summary = run.summary();
    let state = match &outcome {
        _ if summary.interrupted => RunState::Interrupted,
        Ok(()) if summary.failures.is_empty() => RunState::Finished,
        _ => RunState::Failed,
    };
    for result in &summary.loop_results {
        let (name, iteration) = (result.name().to_owned(), result.iteration());
        runner.folder.note(&Event::LoopResult { name, iteration, message: result.to_string() })?;
    }
    runner.folder.note(&Event::Closed { state })?;
    if state == RunState::Finished {
        runner.store.remember_run(&runner.plan.name, &runner.folder.id)?;
    }
    outcome.map(|()| summary)
}

/// The threads that stages run on. The end of a run does not wait for them.
struct Threads(Option<Runtime>);

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// The tasks of the run's stages.
#[derive(Default)]
struct Tasks {
    running: JoinSet<Result<StageProgress>>,
    by_id: HashMap<Id, RunningTask>,
}

struct RunningTask {
    index: NodeIndex,
    use_of: TaskUse,
}

enum TaskUse {
    /// Runs its stage with this share of the slots.
    Runs(Share),
    /// Waits for another run's lease, without a share.
    Waits(AbortHandle),
}

struct Run<'w> {
    runner: &'w Arc<Runner>,
    ledger: Ledger<'w>,
    outcomes: BTreeMap<NodeIndex, StageOutcome>,
    keys: BTreeMap<String, Digest>,
    failures: Vec<Failure>,
    started: BTreeSet<NodeIndex>,
    spent: Cost,
    saved: Cost,
    keep_going: bool,
    slots: Slots,
    models: Models,
    held_out: HeldOut,
    updates: Updates,
}

impl<'w> Run<'w> {
    fn new(runner: &'w Arc<Runner>, keep_going: bool) -> Self {
        let servers = runner.plan.servers.iter().flat_map(Servers::iter);
        // A pool has at least one.
        let limit =
            |(name, server): (&str, &ServerSpec)| Some((name.to_owned(), server.limits.sessions?.max(1)));
        let sessions = servers.filter_map(limit).collect();
        Self {
            runner,
            ledger: Ledger::new(&runner.plan, &runner.store),
            outcomes: BTreeMap::new(),
            keys: BTreeMap::new(),
            failures: Vec::new(),
            started: BTreeSet::new(),
            spent: Cost::default(),
            saved: Cost::default(),
            keep_going,
            slots: Slots::new(&runner.plan.engine, sessions),
            models: Models::new(&runner.plan),
            held_out: HeldOut::new(&runner.plan),
            updates: Updates::default(),
        }
    }

    fn id(&self, index: NodeIndex) -> &'w str {
        &self.runner.plan.node(index).id
    }

    /// Nodes neither complete nor started.
    fn open(&self) -> impl Iterator<Item = NodeIndex> {
        let order = self.runner.plan.order().iter().copied();
        order.filter(|index| !self.outcomes.contains_key(index) && !self.started.contains(index))
    }

    /// Completes every node whose result is in the store or in the shared cache.
    fn resolve(&mut self) -> Result<()> {
        let runner = self.runner;
        for index in runner.plan.order() {
            match self
                .ledger
                .resolve(*index, &runner.resample, |job| Ok(runner.cached(job)?.map(Into::into)))?
            {
                Resolution::Waits(_) | Resolution::Run(_) => {}
                Resolution::Skipped => self.skip(*index)?,
                Resolution::Cached(key, result) => {
                    self.done(*index, StageResult { key, result, cached: true })
                }
            }
        }
        Ok(())
    }

    /// Before anything runs, refuses what is sure to fail: findings of stages, and missing devices.
    fn preflight(&self) -> Result<()> {
        let Runner { store, last, plan, .. } = &**self.runner;
        // The remote has been queried for all ready nodes. It may still have the results of waiting ones.
        let is_sure = |index| match self.ledger.readiness(index) {
            Readiness::Waits(_) if plan.remote.is_some() => false,
            _ => will_run(&self.ledger, store, last, index),
        };
        let findings = PlanPreflight::new(&self.ledger, store, &is_sure).into_findings();
        if !findings.problems.is_empty() {
            return Err(PlanError::Refused(findings.problems).into());
        }
        for note in &findings.notes {
            self.runner.listener.event(&Event::Finding { error: note.into() });
        }
        for index in self.open() {
            // A job's node has its own devices.
            if self.runner.computes(index) && self.runner.jobs(index).is_none() && is_sure(index) {
                let at = || format!("stage \"{}\"", self.id(index));
                let bases = &self.runner.shared_models.bases;
                return bases.open_devices(&plan.engine).map(drop).at(at);
            }
        }
        Ok(())
    }

    fn skip(&mut self, index: NodeIndex) -> Result<()> {
        self.runner.report(Event::Skipped { id: self.id(index).to_owned() })?;
        self.ledger.complete(index, Completion::Skipped);
        self.outcomes.insert(index, StageOutcome::Skipped);
        Ok(())
    }

    fn done(&mut self, index: NodeIndex, done: StageResult) {
        let id = self.id(index);
        let StageResult { key, result, cached } = done;
        self.updates.add(&self.runner.plan, index, &result.metrics, &result.notes);
        match cached {
            true => self.saved += result.cost,
            false => self.spent += result.cost,
        }
        self.keys.insert(id.to_owned(), key);
        self.outcomes.insert(index, if cached { StageOutcome::Cached } else { StageOutcome::Ran });
        self.ledger.complete(index, Completion::Done(result.clone()));
        // The journal has it already.
        let id = id.to_owned();
        self.runner.listener.event(&match cached {
            true => Event::Cached { id, key, result },
            false => Event::Finished { id, key, result },
        });
    }

    fn failed(&mut self, index: NodeIndex, failure: Failure) -> Result<()> {
        if failure.class() == Class::Interrupted && self.runner.cancel.is_cancelled() {
            return Ok(());
        }
        let failure = failure.at(format!("stage \"{}\"", self.id(index)));
        let failed = Event::Failed { id: self.id(index).to_owned(), error: Reported::from(&failure) };
        self.outcomes.insert(index, StageOutcome::Failed);
        self.failures.push(failure);
        self.runner.report(failed)
    }

    /// Waits until everything is durable. Results that cannot be synced count as failed.
    fn finish_sync(&mut self) -> Result<()> {
        for (stage, cause) in self.runner.syncer.finish() {
            let order = self.runner.plan.order();
            let Some(index) = order.iter().copied().find(|index| self.id(*index) == stage) else { continue };
            self.keys.remove(&stage);
            self.failed(index, cause.into())?;
        }
        Ok(())
    }

    async fn schedule(&mut self) -> Result<()> {
        let mut tasks = Tasks::default();
        loop {
            self.start(&mut tasks)?;
            let Some(joined) = tasks.running.join_next_with_id().await else {
                let stuck = self.open().next().filter(|_| self.failures.is_empty());
                return match stuck.filter(|_| !self.runner.cancel.is_cancelled()) {
                    Some(index) => Err(ExecError::Stuck { stage: self.id(index).to_owned() }.into()),
                    None => Ok(()),
                };
            };
            let id = match &joined {
                Ok((id, _)) => *id,
                Err(cause) => cause.id(),
            };
            let Some(RunningTask { index, use_of }) = tasks.by_id.remove(&id) else { continue };
            if let TaskUse::Runs(share) = use_of {
                self.slots.give_back(&share);
            }
            match joined {
                Ok((_, Ok(StageProgress::Done(done)))) => self.done(index, *done),
                Ok((_, Ok(StageProgress::Leased(job)))) => self.wait_for_lease(&mut tasks, index, job),
                Ok((_, Ok(StageProgress::Released))) => _ = self.started.remove(&index),
                Ok((_, Err(failure))) => self.failed(index, failure)?,
                Err(cause) if cause.is_cancelled() => {}
                Err(cause) => {
                    let stage = self.id(index).to_owned();
                    self.failed(index, ExecError::Crashed { stage, message: panic_message(cause) }.into())?;
                }
            }
        }
    }

    /// Starts every open node that is ready and gets a share of the slots.
    fn start(&mut self, tasks: &mut Tasks) -> Result<()> {
        let ending = !self.keep_going && !self.failures.is_empty();
        if ending || self.runner.cancel.is_cancelled() {
            // A stage that waits for another run has not started.
            for task in tasks.by_id.values() {
                if let TaskUse::Waits(handle) = &task.use_of {
                    handle.abort();
                }
            }
            return Ok(());
        }
        let runner = self.runner;
        let mut waiting = Vec::new();
        for index in self.open().collect::<Vec<_>>() {
            match self.ledger.readiness(index) {
                Readiness::Waits(_) => {}
                Readiness::Skipped => self.skip(index)?,
                Readiness::Ready(ready) => waiting.push((index, ready)),
            }
        }
        self.evict_models();
        let count =
            |section| waiting.iter().filter(|(index, _)| runner.share_of(*index).contains(&section)).count();
        let mut waiters = Waiters { engine: count(Section::Engine), server: count(Section::Server) };
        for (index, ready) in waiting {
            let uses = runner.share_of(index);
            let models = self.models.digests(&runner.plan, &self.ledger, index);
            let bases = &runner.shared_models.bases;
            let loaded = |device: &str| models.iter().filter(|model| bases.contains(model, device)).count();
            let share = match runner.jobs(index) {
                Some(_) if uses.is_empty() => Some(Share::default()),
                _ => self.slots.take(&uses, loaded, waiters),
            };
            waiters.engine -= usize::from(uses.contains(&Section::Engine));
            waiters.server -= usize::from(uses.contains(&Section::Server));
            let Some(share) = share else { continue };
            self.started.insert(index);
            let (runner, own) = (runner.clone(), share.clone());
            let wanted = self.held_out.wanted(&self.ledger, index);
            let task = tasks.running.spawn(async move {
                let job = Job::new(&runner.plan, index, ready, &runner.resample);
                runner.run(job, &wanted, &own).await
            });
            tasks.by_id.insert(task.id(), RunningTask { index, use_of: TaskUse::Runs(share) });
        }
        Ok(())
    }

    /// Lets a stage wait for another run's lease. What it would use is free for other stages until then.
    fn wait_for_lease(&self, tasks: &mut Tasks, index: NodeIndex, job: Box<Job>) {
        let runner = self.runner.clone();
        let task = tasks.running.spawn(async move { runner.wait_for_lease(&job).await });
        tasks.by_id.insert(task.id(), RunningTask { index, use_of: TaskUse::Waits(task) });
    }

    /// Evicts models that no running or pending stage reads.
    fn evict_models(&self) {
        let loaded = &self.runner.shared_models;
        if loaded.is_empty() {
            return;
        }
        let plan = &self.runner.plan;
        let open = plan.order().iter().filter(|index| !self.outcomes.contains_key(index));
        let wanted: BTreeSet<_> =
            open.flat_map(|index| self.models.digests(plan, &self.ledger, *index)).collect();
        loaded.retain(|model| wanted.contains(model));
    }

    fn summary(&mut self) -> Summary {
        let outcome = |index: &NodeIndex| self.outcomes.get(index).copied().unwrap_or_default();
        let node = |index: &NodeIndex| (self.id(*index).to_owned(), outcome(index));
        let nodes: Vec<_> = self.runner.plan.order().iter().map(node).collect();
        let open = nodes.iter().any(|(_, outcome)| *outcome == StageOutcome::Unfinished);
        let interrupted = open && self.runner.cancel.is_cancelled();
        let blocked = self.blocked();
        let failures = std::mem::take(&mut self.failures);
        let traffic = self.runner.remote.as_ref().map(|remote| remote.traffic_and_queue(&self.runner.store));
        let mut spent = self.spent;
        spent += *self.runner.lost.lock();
        let idle = self.updates.idle(&self.runner.plan);
        let loop_results = if open { Vec::new() } else { self.ledger.loop_results() };
        let saved = self.saved;
        Summary { nodes, failures, blocked, interrupted, spent, saved, traffic, idle, loop_results }
    }

    /// Nodes that depend on a failed stage, directly or not, in plan order.
    fn blocked(&self) -> Vec<(String, Vec<String>)> {
        let mut causes: BTreeMap<NodeIndex, BTreeSet<NodeIndex>> = BTreeMap::new();
        let mut blocked = Vec::new();
        for index in self.runner.plan.order() {
            match self.outcomes.get(index) {
                Some(StageOutcome::Failed) => _ = causes.insert(*index, BTreeSet::from([*index])),
                Some(_) => {}
                None => {
                    let Readiness::Waits(on) = self.ledger.readiness(*index) else { continue };
                    let found: BTreeSet<_> =
                        on.iter().filter_map(|earlier| causes.get(earlier)).flatten().copied().collect();
                    if !found.is_empty() {
                        let names = found.iter().map(|failed| self.id(*failed).to_owned()).collect();
                        blocked.push((self.id(*index).to_owned(), names));
                        causes.insert(*index, found);
                    }
                }
            }
        }
        blocked
    }
}
