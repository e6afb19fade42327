//! Runs stages as jobs of a batch system. Here is neither a scheduler nor a transport: the batch system decides where and when,
//! and everything goes through the cache's folder, which the nodes share. A job outlives the run that submitted it. Whichever
//! run needs its result next follows it, or takes what it has written.

mod error;
mod folder;
mod queue;
mod report;
pub mod script;
pub mod work;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::OnceLock,
    time::{Duration, Instant},
};

use tokio::{
    sync::{OnceCell, Semaphore},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

pub use self::{
    error::JobError,
    folder::{JobFolder, make_private, place},
    queue::{Call, Queue, about},
};
use self::{
    folder::{Attempts, Hearing, WorkerFolder},
    queue::JobState,
    report::{Report, metrics_of},
    script::Program,
};
use super::task::{StageTask, VERSION, own_build};
use crate::{
    error::{Class, Diagnostic, Interrupted, Result},
    hash::Digest,
    plan::{JobsSpec, OnInterrupt},
    progress::Observer,
    secret::concealed,
    stage::Metrics,
    store::{Lease, Store, token},
    usage::{Usage, UsageMeter},
};

/// Time between two looks at what a worker says.
const LOOK: Duration = Duration::from_millis(200);
/// A job that has ended, or that the batch system does not know, is lost after this many answers that say so: its last words may
/// be on their way, and a new one may not be listed yet.
const GRACE: u32 = 5;
/// A submission has not arrived after this many answers that do not know its job.
const ABSENT: u32 = 3;
/// Refusals in a row that end a stage. Between them, waits grow from `poll_s` to the longest one.
const REFUSALS: u32 = 6;
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// How long an interrupted run waits for each of: its jobs to end, and the batch system to cancel them.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// How long the folder of a job may be away.
const AWAY: Duration = Duration::from_secs(90);
/// Last lines of a job's log that a failure shows.
const LAST_LINES: usize = 3;

/// The batch systems of a run, by name.
pub type Executors = BTreeMap<String, Jobs>;

/// The jobs of a run on one batch system.
pub struct Jobs {
    queue: Queue,
    program: Program,
    places: Semaphore,
    is_checked: OnceCell<()>,
}

/// What a task needs while it runs as a job.
#[derive(Clone, Copy)]
pub struct JobContext<'a> {
    pub store: &'a Store,
    /// Of the task's key.
    pub lease: &'a Lease,
    pub observer: &'a dyn Observer,
    pub meter: &'a UsageMeter,
    /// When a worker of the stage first began.
    pub begun: &'a OnceLock<Instant>,
    pub cancel: &'a CancellationToken,
    /// The run's. Another one is cancelled because another part of the stage has failed.
    pub of_run: &'a CancellationToken,
}

/// How following a job ended.
enum Followed {
    Done(Metrics),
    Lost(String),
}

impl Jobs {
    pub fn new(spec: JobsSpec, program: Program) -> Self {
        let program = program.on(&spec);
        let places = Semaphore::new(spec.jobs.min(Semaphore::MAX_PERMITS));
        Self { queue: Queue::new(spec), program, places, is_checked: OnceCell::new() }
    }

    /// [`StageTask::build`].
    pub fn build(&self) -> String {
        let digest = own_build().filter(|_| self.queue.spec.program.is_none());
        digest.map_or_else(|| VERSION.to_owned(), |digest| digest.to_string())
    }

    /// Runs a task as a job. Its outputs are where the task says then; a shard has none.
    ///
    /// # Errors
    /// Those of the stage; if the batch system refuses the job, or loses it as often as the run file allows; if the lease is lost.
    pub async fn run(&self, task: &StageTask, around: JobContext<'_>) -> Result<Metrics> {
        let spec = &self.queue.spec;
        around.observer.status(&format!("waits for one of {} jobs of `{}`", spec.jobs, spec.name));
        let place = around.cancel.run_until_cancelled(self.places.acquire()).await;
        let _place = place.ok_or(Interrupted)?;
        let attempts = Attempts::of(around.store, task);
        attempts.forget_before(&around.store.record_path(&task.key));
        let mut submitted = 0;
        loop {
            around.lease.check()?;
            let newest = attempts.newest();
            let open = newest.as_ref().filter(|(_, folder)| folder.is_for(task));
            let (job, folder, is_own) = match open {
                Some((_, folder)) => (folder.job()?, folder.clone(), false),
                None => {
                    if let Some((_, other)) = &newest {
                        other.close();
                    }
                    submitted += 1;
                    let number = newest.map_or(1, |(number, _)| number + 1);
                    let (job, folder) = self.submit(task, (&attempts, number), around).await?;
                    (job, folder, true)
                }
            };
            match self.follow((&job, &folder, is_own), task, around).await? {
                Followed::Done(metrics) => return Ok(metrics),
                Followed::Lost(how) => {
                    around.lease.check()?;
                    folder.close();
                    // It may go on, or start later.
                    self.cancel(&job).await;
                    if submitted >= spec.attempts {
                        let said = concealed(&folder.last_lines(LAST_LINES)).into_owned();
                        return Err(JobError::Lost { executor: spec.name.clone(), job, how, said }.into());
                    }
                    if is_own {
                        around.observer.note(&format!("job {job} was lost ({how}) and is submitted again"));
                    }
                }
            }
        }
    }

    /// Submits a job as the attempt of this number, or of a later one. While a batch system that has answered before does not
    /// answer, waits. A job that it refuses is submitted again a few times: what it refuses for may pass.
    async fn submit(
        &self,
        task: &StageTask,
        (attempts, first): (&Attempts, u32),
        around: JobContext<'_>,
    ) -> Result<(String, JobFolder)> {
        self.is_checked.get_or_try_init(|| self.queue.check()).await?;
        let mut wait = self.queue.spec.poll;
        for number in first.. {
            let (job, folder) = (new_name(&task.node), attempts.number(number));
            // The log of the one before is kept.
            attempts.forget_older(number.saturating_sub(1));
            folder.create((&job, task), &self.program.worker(&task.node, &self.queue.spec.setup, &folder))?;
            let (script, log) = (folder.script(), folder.log());
            let about = about(&job, &task.node, &self.program.run, [&script, &log]);
            let Err(failure) = self.queue.submit(&about).await else {
                self.queue.forget().await;
                return Ok((job, folder));
            };
            if failure.class() == Class::Work && self.has_arrived(&job, &folder, around).await {
                return Ok((job, folder));
            }
            // Should it arrive after all, it ends at once.
            folder.close();
            if around.cancel.is_cancelled() {
                self.cancel(&job).await;
                return Err(Interrupted.into());
            }
            if failure.class() != Class::Work || number + 1 - first >= REFUSALS {
                return Err(failure.into());
            }
            around
                .observer
                .status(&format!("{failure}; it is submitted again in {:.0} s", wait.as_secs_f64()));
            _ = around.cancel.run_until_cancelled(sleep(wait)).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
        Err(Interrupted.into())
    }

    /// Whether a job that was submitted without success is there after all: the batch system's answer may be what was lost. Asks
    /// until several answers say that it is not. One that has ended is one that was refused.
    async fn has_arrived(&self, job: &str, folder: &JobFolder, around: JobContext<'_>) -> bool {
        let mut absent = 0;
        while absent < ABSENT && !around.cancel.is_cancelled() {
            self.queue.forget().await;
            match self.queue.state(job).await {
                _ if folder.holder().is_some() => return true,
                Ok(Some(JobState::Pending(_) | JobState::Running)) => return true,
                Ok(_) => absent += 1,
                Err(problem) => around.observer.status(&problem),
            }
            _ = around.cancel.run_until_cancelled(sleep(self.queue.spec.poll)).await;
        }
        false
    }

    async fn cancel(&self, job: &str) {
        // A worker that is not wanted ends by itself. This is for one that waits.
        _ = timeout(LAST_WORDS, self.queue.cancel(job)).await;
    }

    /// Follows a job to its end. What one that this run did not submit has failed with, it may not fail with again.
    async fn follow(
        &self,
        (job, folder, is_own): (&str, &JobFolder, bool),
        task: &StageTask,
        around: JobContext<'_>,
    ) -> Result<Followed> {
        let JobContext { observer, meter, cancel, .. } = around;
        let name = &self.queue.spec.name;
        let mut hearing: Option<Hearing> = None;
        let mut used = Usage::default();
        // How it has ended, and how many answers said so.
        let mut gone: Option<(String, u32)> = None;
        let mut answered = Instant::now();
        let mut is_first = true;
        let mut seen = Instant::now();
        loop {
            let holder = folder.holder();
            let is_new = |holder: &_| hearing.as_ref().is_none_or(|old| old.worker != *holder);
            if let Some(holder) = holder.filter(is_new) {
                observer.phase("begins", 0);
                around.begun.get_or_init(Instant::now);
                (hearing, used) = (Some(Hearing::new(holder)), Usage::default());
            }
            let new = hearing.as_mut().map(Hearing::new_lines).unwrap_or_default();
            if !new.is_empty() {
                gone = None;
            }
            for what in new {
                match what {
                    Report::Done { metrics, outputs } => {
                        let worker = hearing.as_ref().filter(|_| task.shard.is_none());
                        return match worker.map(|hearing| &hearing.worker) {
                            Some(worker) if !take_outputs((worker, &outputs), &task.out, cancel).await? => {
                                Ok(Followed::Lost("its outputs are not those that it wrote".into()))
                            }
                            _ => Ok(Followed::Done(metrics_of(metrics))),
                        };
                    }
                    Report::Failed(_) if is_first && !is_own => {
                        return Ok(Followed::Lost("it failed while no run followed it".into()));
                    }
                    Report::Failed(failure) => {
                        folder.close();
                        let shown = concealed(&failure.to_string()).into_owned();
                        return Err(failure.saying(shown).into());
                    }
                    Report::Used(total) => {
                        meter.add(total.since(used));
                        used = total;
                    }
                    // All shards find the same episodes played; the first one counts them.
                    Report::Skip(_) if task.shard.is_some_and(|shard| shard.index > 0) => {}
                    progress => progress.forward(observer),
                }
            }
            is_first = false;
            seen = if folder.is_there() { Instant::now() } else { seen };
            if seen.elapsed() > AWAY {
                return Ok(Followed::Lost(format!("its folder {} is gone", folder.path.display())));
            }
            if cancel.is_cancelled() {
                return self.stop((job, folder), around).await;
            }
            match cancel.run_until_cancelled(self.queue.state(job)).await {
                None | Some(Ok(Some(JobState::Running))) => gone = None,
                Some(Ok(Some(JobState::Pending(why)))) => {
                    gone = None;
                    let why = if why.is_empty() { why } else { format!(": {why}") };
                    observer.status(&format!("{job} waits in `{name}`{why}"));
                }
                Some(Ok(state)) => {
                    let how = match state {
                        Some(JobState::Ended(how)) => how,
                        _ => "the batch system does not know it".into(),
                    };
                    let count = gone.map_or(0, |(_, count)| count);
                    let is_answer = answered.elapsed() >= self.queue.spec.poll;
                    if is_answer {
                        answered = Instant::now();
                    }
                    if count >= GRACE && !folder.look_again(hearing.as_ref()) {
                        return Ok(Followed::Lost(how));
                    }
                    gone = Some((how, count + u32::from(is_answer)));
                }
                // It goes on all the same.
                Some(Err(problem)) => observer.status(&problem),
            }
            _ = cancel.run_until_cancelled(sleep(LOOK)).await;
        }
    }

    /// Stops a job with its run, unless it shall be left; or with a stage that has failed.
    async fn stop(&self, (job, folder): (&str, &JobFolder), around: JobContext<'_>) -> Result<Followed> {
        if self.queue.spec.on_interrupt == OnInterrupt::Cancel || !around.of_run.is_cancelled() {
            // Its worker ends by itself; one that waits does not start.
            folder.close();
            self.cancel(job).await;
            let running = async {
                while matches!(self.queue.state(job).await, Ok(Some(JobState::Running))) {
                    sleep(LOOK).await;
                }
            };
            _ = timeout(LAST_WORDS, running).await;
        }
        Err(Interrupted.into())
    }
}

/// Makes a worker's outputs appear in this folder. While they cannot be read, or are not yet those that it wrote, waits. Returns
/// whether they are.
async fn take_outputs(
    (worker, outputs): (&WorkerFolder, &Digest),
    to: &Path,
    cancel: &CancellationToken,
) -> Result<bool> {
    let began = Instant::now();
    loop {
        let taken = tokio::task::block_in_place(|| worker.link_outputs(outputs, to));
        let patience = if taken.is_ok() { LAST_WORDS } else { AWAY };
        if matches!(taken, Ok(true)) || began.elapsed() > patience {
            return Ok(taken?);
        }
        cancel.run_until_cancelled(sleep(LOOK)).await.ok_or(Interrupted)?;
    }
}

/// Folders of a stage's jobs, those of its shards included.
fn of_stage(store: &Store, key: &Digest, draw: u64) -> impl Iterator<Item = Attempts> {
    let prefix = format!("{key}-{draw}");
    let entries = std::fs::read_dir(store.jobs()).into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let name = entry.file_name();
        let rest = name.to_str()?.strip_prefix(prefix.as_str())?;
        (rest.is_empty() || rest.starts_with('-')).then(|| Attempts::at(entry.path()))
    })
}

/// Removes what the jobs of a stage left, other links to its outputs included. Returns whether there was something. Call once
/// its result is recorded.
pub fn forget(store: &Store, key: &Digest, draw: u64) -> bool {
    of_stage(store, key, draw).inspect(Attempts::forget).count() > 0
}

/// Ends the jobs of a stage that are not for these tasks: an earlier run had another number of shards, or another executor.
pub fn close_others(store: &Store, (key, draw): (&Digest, u64), tasks: &[&StageTask]) {
    let own: BTreeSet<_> = tasks.iter().map(|task| Attempts::of(store, task).name()).collect();
    for attempts in of_stage(store, key, draw).filter(|attempts| !own.contains(&attempts.name())) {
        if let Some((_, folder)) = attempts.newest() {
            folder.close();
        }
    }
}

/// Letters of what a job does in its name.
const LABEL: usize = 28;

/// A name that no job had, for one that does this: at most 50 small letters, digits and hyphens. Its folder says which job it is,
/// so that another run finds it.
pub fn new_name(does: &str) -> String {
    let letters = does.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' });
    let label = letters.take(LABEL).collect::<String>().to_ascii_lowercase();
    format!("mcprl-{}-{}", label.trim_matches('-'), Digest::of(token().as_bytes()).short())
}
