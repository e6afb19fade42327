//! Which stage is worked when.
//!
//! First everything that is in the store is settled, without threads: a run with nothing to do is over in
//! milliseconds. Then every stage whose inputs are known is started, as the slots allow.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    runtime::Runtime,
    task::{Id, JoinError, JoinSet},
};

use super::{
    Ended, Event, ExecError, Request, Summary,
    handing::HandingOn,
    interrupt,
    journal::{Entry, RunState},
    slots::{Rivals, Share, Slots},
    standing,
    work::{Done, Workshop},
};
use crate::{
    error::{At, Class, Failure, Result},
    plan::{
        Foresight, Ledger, Models, NodeIndex, PlanError, Readiness, Ready, Settled, is_sure_to_be_worked,
    },
    stage::card::Section,
    store::{Cost, Known, Remote, Settler, Traffic},
};

/// Stages may compute on the thread they are worked on, so there are more of these than stages at once, mostly.
const THREADS: usize = 6;

/// Runs the plan. `Err` is for what stops the run as a whole; a failing stage is part of the summary.
pub fn run(request: Request) -> Result<Summary> {
    let Request { plan, store, files, folder, resample, keep_going, listener, cancel } = request;
    let (last, worked) = (store.last_keys(&plan.name), folder.worked());
    let remote = plan.remote.clone().map(Remote::new);
    let settler = Settler::new(&store);
    let workshop = Arc::new(Workshop {
        plan,
        store,
        remote,
        settler,
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
    let mut run = Run::new(&workshop, keep_going);
    let settled = run.settle_cached();
    if settled.is_ok()
        && let Err(refused) = run.check()
    {
        workshop.folder.refused()?;
        return Err(refused);
    }
    let handing_on = HandingOn::begin(&workshop);
    // Until the end, for it hears when the run is to stop.
    let mut threads = Threads(None);
    let outcome = settled.and_then(|()| {
        if run.open().next().is_none() {
            return Ok(());
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS.max(workshop.plan.engine.devices.len() + 2))
            .enable_all()
            .build()
            .map_err(ExecError::Threads)?;
        threads.0.insert(runtime).block_on(async {
            interrupt::listen(workshop.cancel.clone(), workshop.listener.clone());
            run.schedule().await
        })
    });
    workshop.held.retain(|_| false);
    let models = workshop.held.bases.loads();
    if models > 0 {
        workshop.folder.note(Entry::Loaded { models })?;
    }
    run.settled()?;
    workshop.store.remember(&workshop.plan.name, &run.keys)?;
    workshop.files.save(&workshop.store)?;
    handing_on.finish();
    let summary = run.summary();
    let state = match &outcome {
        _ if summary.interrupted => RunState::Interrupted,
        Ok(()) if summary.failures.is_empty() => RunState::Finished,
        _ => RunState::Failed,
    };
    workshop.folder.note(Entry::Closed { state })?;
    if state == RunState::Finished {
        standing::remember(&workshop.store, &run.ledger, &workshop.folder.id, &run.keys)?;
    }
    outcome.map(|()| summary)
}

/// The threads that stages are worked on. Nobody waits for what they still do at the end.
struct Threads(Option<Runtime>);

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

struct Run<'w> {
    workshop: &'w Arc<Workshop>,
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
    fn new(workshop: &'w Arc<Workshop>, keep_going: bool) -> Self {
        let sessions = workshop.plan.server.as_ref().map_or(usize::MAX, |server| server.limits.sessions);
        Self {
            workshop,
            ledger: Ledger::new(&workshop.plan),
            ended: BTreeMap::new(),
            keys: BTreeMap::new(),
            failures: Vec::new(),
            started: BTreeSet::new(),
            spent: Cost::default(),
            saved: Cost::default(),
            keep_going,
            slots: Slots::new(&workshop.plan.engine.devices, sessions),
            models: Models::new(&workshop.plan),
        }
    }

    fn id(&self, index: NodeIndex) -> &'w str {
        &self.workshop.plan.node(index).id
    }

    /// Nodes neither settled nor begun.
    fn open(&self) -> impl Iterator<Item = NodeIndex> {
        let order = self.workshop.plan.order().iter().copied();
        order.filter(|index| !self.ended.contains_key(index) && !self.started.contains(index))
    }

    fn settle_cached(&mut self) -> Result<()> {
        for index in self.workshop.plan.order() {
            match self.ledger.readiness(*index) {
                Err(cause) => self.failed(*index, cause.into())?,
                Ok(Readiness::Waits(_)) => {}
                Ok(Readiness::Skipped) => self.skip(*index)?,
                Ok(Readiness::Ready(ready)) => {
                    let job = self.workshop.job(*index, ready);
                    if let Some(record) = self.workshop.cached(&job)? {
                        self.done(*index, Done { key: job.key, record, cached: true });
                    }
                }
            }
        }
        Ok(())
    }

    /// Refuses before anything is worked what is sure to fail: what stages object to, and devices that are not there.
    fn check(&self) -> Result<()> {
        let Workshop { store, last, plan, .. } = &**self.workshop;
        // What could be asked for is settled by now; what waits may be in the shared cache.
        let is_sure = |index| match self.ledger.readiness(index) {
            Ok(Readiness::Waits(_)) if plan.remote.is_some() => false,
            _ => is_sure_to_be_worked(&self.ledger, store, last, index),
        };
        let told = Foresight::new(&self.ledger, store, &is_sure).into_told();
        if !told.problems.is_empty() {
            return Err(PlanError::Refused(told.problems).into());
        }
        for note in &told.notes {
            self.workshop.listener.event(&Event::Noted { note });
        }
        for index in self.open() {
            if self.workshop.computes(index) && is_sure(index) {
                let at = || format!("stage \"{}\"", self.id(index));
                return self.workshop.held.bases.places(&plan.engine).map(drop).at(at);
            }
        }
        Ok(())
    }

    fn skip(&mut self, index: NodeIndex) -> Result<()> {
        self.workshop.listener.event(&Event::Skipped { id: self.id(index) });
        self.workshop.folder.note(Entry::Skipped { node: self.id(index).to_owned() })?;
        self.ledger.settle(index, Settled::Skipped);
        self.ended.insert(index, Ended::Skipped);
        Ok(())
    }

    fn done(&mut self, index: NodeIndex, done: Done) {
        let (id, record) = (self.id(index), done.record);
        let (metrics, notes) = (&record.metrics, record.notes.as_slice());
        let event = if done.cached {
            Event::Cached { id, metrics, notes }
        } else {
            Event::Finished { id, cost: &record.cost, metrics, notes }
        };
        self.workshop.listener.event(&event);
        *(if done.cached { &mut self.saved } else { &mut self.spent }) += record.cost;
        self.keys.insert(id.to_owned(), done.key);
        self.ended.insert(index, if done.cached { Ended::Cached } else { Ended::Worked });
        self.ledger.done(index, Known::from(record));
    }

    fn failed(&mut self, index: NodeIndex, failure: Failure) -> Result<()> {
        if failure.class() == Class::Interrupted && self.workshop.cancel.is_cancelled() {
            return Ok(());
        }
        let failure = failure.at(format!("stage \"{}\"", self.id(index)));
        self.workshop.listener.event(&Event::Failed { id: self.id(index), failure: &failure });
        let entry = Entry::Failed { node: self.id(index).to_owned(), error: failure.to_string() };
        self.ended.insert(index, Ended::Failed);
        self.failures.push(failure);
        self.workshop.folder.note(entry)
    }

    /// Waits until everything is durable; what is not has failed.
    fn settled(&mut self) -> Result<()> {
        for (stage, cause) in self.workshop.settler.finish() {
            let order = self.workshop.plan.order();
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

    /// Starts every open node that is ready and gets a share of what there is.
    fn start(
        &mut self,
        at_work: &mut JoinSet<Result<Done>>,
        tasks: &mut HashMap<Id, (NodeIndex, Share)>,
    ) -> Result<()> {
        let ending = !self.keep_going && !self.failures.is_empty();
        if ending || self.workshop.cancel.is_cancelled() {
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
        let using = |section, stages: &[(NodeIndex, Ready)]| {
            stages.iter().filter(|(index, _)| self.workshop.uses(*index).contains(&section)).count()
        };
        let all = Rivals {
            engine: using(Section::Engine, &could_begin),
            server: using(Section::Server, &could_begin),
        };
        let mut rivals = all;
        for (index, ready) in could_begin {
            let uses = self.workshop.uses(index);
            let models = self.models.digests(&self.workshop.plan, &self.ledger, index);
            let bases = &self.workshop.held.bases;
            let held = |device: &str| models.iter().filter(|model| bases.holds(model, device)).count();
            let share = self.slots.take(uses, held, rivals);
            rivals.engine -= usize::from(uses.contains(&Section::Engine));
            rivals.server -= usize::from(uses.contains(&Section::Server));
            let Some(share) = share else { continue };
            self.started.insert(index);
            let (workshop, own) = (self.workshop.clone(), share.clone());
            let task = at_work.spawn(async move {
                let job = workshop.job(index, ready);
                workshop.settle(&job, &own).await
            });
            tasks.insert(task.id(), (index, share));
        }
        Ok(())
    }

    /// Lets go what no stage at work or to come reads.
    fn let_go(&self) {
        let held = &self.workshop.held;
        if held.is_empty() {
            return;
        }
        let plan = &self.workshop.plan;
        let open = plan.order().iter().filter(|index| !self.ended.contains_key(index));
        let wanted: BTreeSet<_> =
            open.flat_map(|index| self.models.digests(plan, &self.ledger, *index)).collect();
        held.retain(|model| wanted.contains(model));
    }

    fn summary(&mut self) -> Summary {
        let node = |index: &NodeIndex| {
            (self.id(*index).to_owned(), self.ended.get(index).copied().unwrap_or(Ended::Open))
        };
        let nodes: Vec<_> = self.workshop.plan.order().iter().map(node).collect();
        let open = nodes.iter().any(|(_, ended)| *ended == Ended::Open);
        let interrupted = open && self.workshop.cancel.is_cancelled();
        let blocked = self.blocked();
        let failures = std::mem::take(&mut self.failures);
        let traffic = self.workshop.remote.as_ref().map(|remote| Traffic {
            waiting: remote.count_waiting(&self.workshop.store),
            ..remote.traffic()
        });
        let mut spent = self.spent;
        spent += *self.workshop.lost.lock().unwrap_or_else(PoisonError::into_inner);
        Summary { nodes, failures, blocked, interrupted, spent, saved: self.saved, traffic }
    }

    /// What waits for a failed stage, be it through others, in the plan's order.
    fn blocked(&self) -> Vec<(String, Vec<String>)> {
        let mut causes: BTreeMap<NodeIndex, BTreeSet<NodeIndex>> = BTreeMap::new();
        let mut blocked = Vec::new();
        for index in self.workshop.plan.order() {
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
