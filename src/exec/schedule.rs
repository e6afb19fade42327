//! Schedules the stages of a run.
//!
//! First it completes everything that is in the store, without threads, so a run with nothing to do ends in
//! milliseconds. Then it starts each stage whose inputs are known, as the slots allow.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    runtime::Runtime,
    task::{Id, JoinError, JoinSet},
};

use super::{
    Ended, Event, ExecError, Request, Summary, interrupt,
    journal::{Entry, RunState},
    runner::{Runner, StageResult},
    slots::{Contenders, Share, Slots},
    standing,
    upload::Uploader,
};
use crate::{
    error::{At, Class, Failure, Result},
    plan::{
        Completion, Foresight, Ledger, Models, NodeIndex, PlanError, Readiness, ReadyInputs,
        is_sure_to_be_worked,
    },
    stage::card::Section,
    store::{CachedResult, Cost, Remote, Syncer, Traffic},
};

/// Stages may compute on the thread they run on, so this usually exceeds the number of concurrent stages.
const THREADS: usize = 6;

/// Runs the plan. `Err` is for what stops the run as a whole; a failing stage is part of the summary.
pub fn run(request: Request) -> Result<Summary> {
    let Request { plan, store, files, folder, resample, keep_going, listener, cancel } = request;
    let (last, worked) = (store.last_keys(&plan.name), folder.worked());
    let remote = plan.remote.clone().map(Remote::new);
    let syncer = Syncer::new(&store);
    let runner = Arc::new(Runner {
        plan,
        store,
        remote,
        syncer,
        files,
        folder,
        last,
        resample,
        worked,
        lost: Mutex::default(),
        held: Arc::default(),
        listener,
        cancel,
    });
    let mut run = Run::new(&runner, keep_going);
    let settled = run.settle_cached();
    if settled.is_ok()
        && let Err(refused) = run.check()
    {
        runner.folder.refused()?;
        return Err(refused);
    }
    let uploader = Uploader::begin(&runner);
    // Kept until the end, since its threads listen for the stop signal.
    let mut threads = Threads(None);
    let outcome = settled.and_then(|()| {
        if run.open().next().is_none() {
            return Ok(());
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS.max(runner.plan.engine.devices.len() + 2))
            .enable_all()
            .build()
            .map_err(ExecError::Threads)?;
        threads.0.insert(runtime).block_on(async {
            interrupt::listen(runner.cancel.clone(), runner.listener.clone());
            run.schedule().await
        })
    });
    runner.held.retain(|_| false);
    let models = runner.held.bases.loads();
    if models > 0 {
        runner.folder.note(Entry::Loaded { models })?;
    }
    run.settled()?;
    runner.store.remember(&runner.plan.name, &run.keys)?;
    runner.files.save(&runner.store)?;
    uploader.finish();
    let summary = run.summary();
    let state = match &outcome {
        _ if summary.interrupted => RunState::Interrupted,
        Ok(()) if summary.failures.is_empty() => RunState::Finished,
        _ => RunState::Failed,
    };
    runner.folder.note(Entry::Closed { state })?;
    if state == RunState::Finished {
        standing::remember(&runner.store, &run.ledger, &runner.folder.id, &run.keys)?;
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

struct Run<'w> {
    runner: &'w Arc<Runner>,
    ledger: Ledger<'w>,
    ended: BTreeMap<NodeIndex, Ended>,
    keys: BTreeMap<String, crate::hash::Digest>,
    failures: Vec<Failure>,
    started: BTreeSet<NodeIndex>,
    spent: Cost,
    saved: Cost,
    keep_going: bool,
    slots: Slots,
    models: Models,
}

impl<'w> Run<'w> {
    fn new(runner: &'w Arc<Runner>, keep_going: bool) -> Self {
        let sessions = runner.plan.server.as_ref().map_or(usize::MAX, |server| server.limits.sessions);
        Self {
            runner,
            ledger: Ledger::new(&runner.plan),
            ended: BTreeMap::new(),
            keys: BTreeMap::new(),
            failures: Vec::new(),
            started: BTreeSet::new(),
            spent: Cost::default(),
            saved: Cost::default(),
            keep_going,
            slots: Slots::new(&runner.plan.engine.devices, sessions),
            models: Models::new(&runner.plan),
        }
    }

    fn id(&self, index: NodeIndex) -> &'w str {
        &self.runner.plan.node(index).id
    }

    /// Nodes neither complete nor started.
    fn open(&self) -> impl Iterator<Item = NodeIndex> {
        let order = self.runner.plan.order().iter().copied();
        order.filter(|index| !self.ended.contains_key(index) && !self.started.contains(index))
    }

    fn settle_cached(&mut self) -> Result<()> {
        for index in self.runner.plan.order() {
            match self.ledger.readiness(*index) {
                Err(cause) => self.failed(*index, cause.into())?,
                Ok(Readiness::Waits(_)) => {}
                Ok(Readiness::Skipped) => self.skip(*index)?,
                Ok(Readiness::Ready(ready)) => {
                    let job = self.runner.job(*index, ready);
                    if let Some(record) = self.runner.cached(&job)? {
                        self.done(*index, StageResult { key: job.key, record, cached: true });
                    }
                }
            }
        }
        Ok(())
    }

    /// Before anything runs, refuses what is sure to fail: objections of stages, and missing devices.
    fn check(&self) -> Result<()> {
        let Runner { store, last, plan, .. } = &**self.runner;
        // The remote has been queried for all ready nodes. It may still have the results of waiting ones.
        let is_sure = |index| match self.ledger.readiness(index) {
            Ok(Readiness::Waits(_)) if plan.remote.is_some() => false,
            _ => is_sure_to_be_worked(&self.ledger, store, last, index),
        };
        let findings = Foresight::new(&self.ledger, store, &is_sure).into_findings();
        if !findings.problems.is_empty() {
            return Err(PlanError::Refused(findings.problems).into());
        }
        for note in &findings.notes {
            self.runner.listener.event(&Event::Noted { note });
        }
        for index in self.open() {
            if self.runner.computes(index) && is_sure(index) {
                let at = || format!("stage \"{}\"", self.id(index));
                return self.runner.held.bases.open_devices(&plan.engine).map(drop).at(at);
            }
        }
        Ok(())
    }

    fn skip(&mut self, index: NodeIndex) -> Result<()> {
        self.runner.listener.event(&Event::Skipped { id: self.id(index) });
        self.runner.folder.note(Entry::Skipped { node: self.id(index).to_owned() })?;
        self.ledger.complete(index, Completion::Skipped);
        self.ended.insert(index, Ended::Skipped);
        Ok(())
    }

    fn done(&mut self, index: NodeIndex, done: StageResult) {
        let (id, record) = (self.id(index), done.record);
        let (metrics, notes) = (&record.metrics, record.notes.as_slice());
        let event = if done.cached {
            Event::Cached { id, metrics, notes }
        } else {
            Event::Finished { id, cost: &record.cost, metrics, notes }
        };
        self.runner.listener.event(&event);
        *(if done.cached { &mut self.saved } else { &mut self.spent }) += record.cost;
        self.keys.insert(id.to_owned(), done.key);
        self.ended.insert(index, if done.cached { Ended::Cached } else { Ended::Ran });
        self.ledger.done(index, CachedResult::from(record));
    }

    fn failed(&mut self, index: NodeIndex, failure: Failure) -> Result<()> {
        if failure.class() == Class::Interrupted && self.runner.cancel.is_cancelled() {
            return Ok(());
        }
        let failure = failure.at(format!("stage \"{}\"", self.id(index)));
        self.runner.listener.event(&Event::Failed { id: self.id(index), failure: &failure });
        let entry = Entry::Failed { node: self.id(index).to_owned(), error: failure.to_string() };
        self.ended.insert(index, Ended::Failed);
        self.failures.push(failure);
        self.runner.folder.note(entry)
    }

    /// Waits until everything is durable. Results that cannot be synced count as failed.
    fn settled(&mut self) -> Result<()> {
        for (stage, cause) in self.runner.syncer.finish() {
            let order = self.runner.plan.order();
            let Some(index) = order.iter().copied().find(|index| self.id(*index) == stage) else { continue };
            self.keys.remove(&stage);
            self.failed(index, cause.into())?;
        }
        Ok(())
    }

    async fn schedule(&mut self) -> Result<()> {
        let mut at_work = JoinSet::new();
        let mut tasks: HashMap<Id, (NodeIndex, Share)> = HashMap::new();
        loop {
            self.start(&mut at_work, &mut tasks)?;
            let Some(joined) = at_work.join_next_with_id().await else { return Ok(()) };
            let id = match &joined {
                Ok((id, _)) => *id,
                Err(cause) => cause.id(),
            };
            let Some((index, share)) = tasks.remove(&id) else { continue };
            self.slots.give_back(&share);
            match joined {
                Ok((_, Ok(done))) => self.done(index, done),
                Ok((_, Err(failure))) => self.failed(index, failure)?,
                Err(cause) => {
                    let stage = self.id(index).to_owned();
                    self.failed(index, ExecError::Crashed { stage, message: panic_message(cause) }.into())?;
                }
            }
        }
    }

    /// Starts every open node that is ready and gets a share of the slots.
    fn start(
        &mut self,
        at_work: &mut JoinSet<Result<StageResult>>,
        tasks: &mut HashMap<Id, (NodeIndex, Share)>,
    ) -> Result<()> {
        let ending = !self.keep_going && !self.failures.is_empty();
        if ending || self.runner.cancel.is_cancelled() {
            return Ok(());
        }
        let mut could_begin = Vec::new();
        for index in self.open().collect::<Vec<_>>() {
            match self.ledger.readiness(index) {
                Err(cause) => self.failed(index, cause.into())?,
                Ok(Readiness::Waits(_)) => {}
                Ok(Readiness::Skipped) => self.skip(index)?,
                Ok(Readiness::Ready(ready)) => could_begin.push((index, ready)),
            }
        }
        self.let_go();
        let using = |section, stages: &[(NodeIndex, ReadyInputs)]| {
            stages.iter().filter(|(index, _)| self.runner.uses(*index).contains(&section)).count()
        };
        let all = Contenders {
            engine: using(Section::Engine, &could_begin),
            server: using(Section::Server, &could_begin),
        };
        let mut contenders = all;
        for (index, ready) in could_begin {
            let uses = self.runner.uses(index);
            let models = self.models.digests(&self.runner.plan, &self.ledger, index);
            let bases = &self.runner.held.bases;
            let held = |device: &str| models.iter().filter(|model| bases.contains(model, device)).count();
            let share = self.slots.take(uses, held, contenders);
            contenders.engine -= usize::from(uses.contains(&Section::Engine));
            contenders.server -= usize::from(uses.contains(&Section::Server));
            let Some(share) = share else { continue };
            self.started.insert(index);
            let (runner, own) = (self.runner.clone(), share.clone());
            let task = at_work.spawn(async move {
                let job = runner.job(index, ready);
                runner.settle(&job, &own).await
            });
            tasks.insert(task.id(), (index, share));
        }
        Ok(())
    }

    /// Evicts models that no running or pending stage reads.
    fn let_go(&self) {
        let held = &self.runner.held;
        if held.is_empty() {
            return;
        }
        let plan = &self.runner.plan;
        let open = plan.order().iter().filter(|index| !self.ended.contains_key(index));
        let wanted: BTreeSet<_> =
            open.flat_map(|index| self.models.digests(plan, &self.ledger, *index)).collect();
        held.retain(|model| wanted.contains(model));
    }

    fn summary(&mut self) -> Summary {
        let node = |index: &NodeIndex| {
            (self.id(*index).to_owned(), self.ended.get(index).copied().unwrap_or(Ended::Open))
        };
        let nodes: Vec<_> = self.runner.plan.order().iter().map(node).collect();
        let open = nodes.iter().any(|(_, ended)| *ended == Ended::Open);
        let interrupted = open && self.runner.cancel.is_cancelled();
        let blocked = self.blocked();
        let failures = std::mem::take(&mut self.failures);
        let traffic = self
            .runner
            .remote
            .as_ref()
            .map(|remote| Traffic { waiting: remote.count_waiting(&self.runner.store), ..remote.traffic() });
        let mut spent = self.spent;
        spent += *self.runner.lost.lock().unwrap_or_else(PoisonError::into_inner);
        Summary { nodes, failures, blocked, interrupted, spent, saved: self.saved, traffic }
    }

    /// Nodes that depend on a failed stage, directly or not, in plan order.
    fn blocked(&self) -> Vec<(String, Vec<String>)> {
        let mut causes: BTreeMap<NodeIndex, BTreeSet<NodeIndex>> = BTreeMap::new();
        let mut blocked = Vec::new();
        for index in self.runner.plan.order() {
            match self.ended.get(index) {
                Some(Ended::Failed) => _ = causes.insert(*index, BTreeSet::from([*index])),
                Some(_) => {}
                None => {
                    let Ok(Readiness::Waits(on)) = self.ledger.readiness(*index) else { continue };
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

fn panic_message(cause: JoinError) -> String {
    let Ok(payload) = cause.try_into_panic() else { return "it was stopped".into() };
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}
