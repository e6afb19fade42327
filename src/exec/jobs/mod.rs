//! Runs stages as jobs of a batch system. Here is neither a scheduler nor a transport: the batch system decides where and when,
//! and everything goes through the cache's folder, which the nodes share. A job outlives the run that submitted it. Whichever
//! run needs its result next follows it, or takes what it has written.

mod error;
mod folder;
mod queue;
pub mod script;
pub mod work;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use tokio::sync::{OnceCell, Semaphore};
use tokio_util::sync::CancellationToken;

pub use self::{
    error::JobError,
    folder::JobFolder,
    queue::{Call, Queue, about},
};
use self::{
    folder::{Attempts, Hearing},
    queue::JobState,
    script::Program,
};
use super::{task::Task, workers::What};
use crate::{
    error::{Interrupted, Result},
    hash::{Digest, Encoder},
    plan::{JobsSpec, OnInterrupt},
    progress::Observer,
    stage::Metrics,
    store::{Store, StoreError, token},
    usage::{Usage, UsageMeter},
};

/// Time between two looks at what a worker says.
const LOOK: Duration = Duration::from_millis(200);
/// A job that has ended, or that the batch system does not know, is lost after it has been so for this many questions to the
/// batch system: its last words may be on their way, and a new one may not be listed yet.
const GRACE: u32 = 5;
/// How long an interrupted run waits for its jobs to end.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// Last lines of a job's log that a failure shows.
const LAST_LINES: usize = 3;

/// The jobs of a run on one batch system.
pub struct Jobs {
    queue: Queue,
    program: Program,
    places: Semaphore,
    is_checked: OnceCell<()>,
}

/// How following a job ended.
enum Followed {
    Done(Metrics),
    Lost(String),
}

impl Jobs {
    pub fn new(spec: JobsSpec, mut program: Program) -> Self {
        if let Some(path) = &spec.program {
            program.path.clone_from(path);
        }
        let places = Semaphore::new(spec.jobs.min(Semaphore::MAX_PERMITS));
        Self { queue: Queue::new(spec), program, places, is_checked: OnceCell::new() }
    }

    /// Runs a task as a job. Its outputs are where the task says then.
    ///
    /// # Errors
    /// Those of the stage; if the batch system refuses the job, or loses it as often as the run file allows.
    pub async fn run(
        &self,
        (store, task): (&Store, &Task),
        observer: &dyn Observer,
        meter: &UsageMeter,
        cancel: &CancellationToken,
    ) -> Result<Metrics> {
        let spec = &self.queue.spec;
        observer.status(&format!("waits for one of {} jobs of `{}`", spec.jobs, spec.name));
        let _place = tokio::select! {
            place = self.places.acquire() => place,
            () = cancel.cancelled() => return Err(Interrupted.into()),
        };
        let attempts = Attempts::of(store, task);
        attempts.forget_before(&store.record_path(&task.key));
        let prefix = job_name(store, task)?;
        for left in (0..spec.attempts).rev() {
            let (job, folder) = match attempts.newest() {
                Some((number, folder)) if folder.is_wanted() => (format!("{prefix}-{number}"), folder),
                newest => {
                    let number = newest.map_or(1, |(number, _)| number + 1);
                    let (job, folder) = (format!("{prefix}-{number}"), attempts.number(number));
                    self.submit(task, &job, &folder).await?;
                    (job, folder)
                }
            };
            match self.follow((&job, &folder), task, observer, meter, cancel).await? {
                Followed::Done(metrics) => return Ok(metrics),
                Followed::Lost(how) => {
                    folder.close();
                    // It may go on, or start later.
                    _ = self.queue.cancel(&job).await;
                    if left == 0 {
                        let said = folder.last_lines(LAST_LINES);
                        return Err(JobError::Lost { executor: spec.name.clone(), job, how, said }.into());
                    }
                    observer.note(&format!("job {job} was lost ({how}) and is submitted again"));
                }
            }
        }
        Err(Interrupted.into())
    }

    async fn submit(&self, task: &Task, job: &str, folder: &JobFolder) -> Result<()> {
        self.is_checked.get_or_try_init(|| self.queue.check()).await?;
        let setup = &self.queue.spec.setup;
        folder.create(task, &self.program.worker(&task.node, setup, folder))?;
        let (script, log) = (folder.script(), folder.log());
        let about = about(job, &task.node, &self.program.run, [&script, &log]);
        let submitted = self.queue.submit(&about).await;
        self.queue.forget().await;
        let Err(failure) = submitted else { return Ok(()) };
        // Its answer may be what was lost. A job that has ended is one that was refused.
        if let Ok(Some(JobState::Pending(_) | JobState::Running)) = self.queue.state(job).await {
            return Ok(());
        }
        folder.close();
        Err(failure.into())
    }

    /// Follows a job to its end.
    async fn follow(
        &self,
        (job, folder): (&str, &JobFolder),
        task: &Task,
        observer: &dyn Observer,
        meter: &UsageMeter,
        cancel: &CancellationToken,
    ) -> Result<Followed> {
        let name = &self.queue.spec.name;
        let mut hearing: Option<Hearing> = None;
        let mut used = Usage::default();
        let mut gone: Option<(Instant, String)> = None;
        let mut stopping: Option<Instant> = None;
        loop {
            let holder = folder.holder();
            if let Some(holder) =
                holder.filter(|holder| hearing.as_ref().is_none_or(|old| old.worker != *holder))
            {
                (hearing, used) = (Some(Hearing::new(holder)), Usage::default());
            }
            let new = hearing.as_mut().map(Hearing::new_lines).unwrap_or_default();
            if !new.is_empty() {
                gone = None;
            }
            for what in new {
                match what {
                    What::Done(metrics) => {
                        let is_there = match &hearing {
                            Some(hearing) => hearing.worker.give_outputs(&task.out)?,
                            None => false,
                        };
                        if !is_there {
                            let how = "a run that was killed had taken its outputs";
                            return Ok(Followed::Lost(how.into()));
                        }
                        let metrics = metrics.into_iter().map(|(name, bits)| (name, f64::from_bits(bits)));
                        return Ok(Followed::Done(metrics.collect()));
                    }
                    What::Failed(failure) => {
                        folder.close();
                        return Err(failure.into());
                    }
                    What::Used(total) => {
                        meter.add(total.since(used));
                        used = total;
                    }
                    progress => progress.tell(observer),
                }
            }
            if cancel.is_cancelled() {
                if self.queue.spec.on_interrupt == OnInterrupt::Leave {
                    return Err(Interrupted.into());
                }
                let since = match stopping {
                    Some(since) => since,
                    None => {
                        folder.close();
                        // Its worker ends by itself; one that waits does not start.
                        _ = self.queue.cancel(job).await;
                        *stopping.insert(Instant::now())
                    }
                };
                let is_over = !matches!(self.queue.state(job).await, Ok(Some(JobState::Running)));
                if is_over || since.elapsed() > LAST_WORDS {
                    return Err(Interrupted.into());
                }
            } else {
                let how = match self.queue.state(job).await {
                    Ok(Some(JobState::Ended(how))) => Some(how),
                    Ok(None) => Some("the batch system does not know it".to_owned()),
                    Ok(Some(JobState::Pending(why))) => {
                        let why = if why.is_empty() { String::new() } else { format!(": {why}") };
                        observer.status(&format!("{job} waits in `{name}`{why}"));
                        None
                    }
                    Ok(Some(JobState::Running)) => {
                        if hearing.is_none() {
                            observer.status(&format!("{job} starts in `{name}`"));
                        }
                        None
                    }
                    Err(problem) => {
                        observer.status(&problem);
                        None
                    }
                };
                gone = how.map(|how| (gone.map_or_else(Instant::now, |(since, _)| since), how));
                if let Some((_, how)) =
                    gone.take_if(|(since, _)| since.elapsed() > self.queue.spec.poll * GRACE)
                {
                    return Ok(Followed::Lost(how));
                }
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = cancel.cancelled(), if !cancel.is_cancelled() => {}
            }
        }
    }
}

/// Removes what the jobs of a stage left, those of its shards included. Call once its result is recorded.
pub fn forget(store: &Store, key: &Digest, draw: u64) {
    let prefix = format!("{key}-{draw}");
    let entries = std::fs::read_dir(store.jobs()).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(prefix.as_str()));
        if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-')) {
            Attempts::at(entry.path()).forget();
        }
    }
}

/// The name of a task's jobs, without the number of the attempt: derived from the key, so that another run finds them. It has
/// at most 50 letters, digits and hyphens.
fn job_name(store: &Store, task: &Task) -> Result<String, StoreError> {
    let id = Encoder::new("mcprl job v1")
        .text(&cache_id(store)?)
        .digest(&task.key)
        .number(task.draw)
        .json(&serde_json::json!(task.shard))
        .finish()
        .to_string();
    let letters = task.node.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' });
    let stage: String = letters.take(28).collect::<String>().to_ascii_lowercase();
    Ok(format!("mcprl-{}-{}", stage.trim_matches('-'), &id[..12]))
}

/// What tells this cache from others whose jobs are on the same batch system.
fn cache_id(store: &Store) -> Result<String, StoreError> {
    let path = store.jobs().join("cache");
    let writing = |cause| StoreError::writing(&path, cause);
    std::fs::create_dir_all(store.jobs()).map_err(writing)?;
    if let Ok(id) = std::fs::read_to_string(&path) {
        return Ok(id);
    }
    let new = store.jobs().join(token());
    std::fs::write(&new, token()).map_err(writing)?;
    // The first of several processes decides.
    let linked = std::fs::hard_link(&new, &path);
    _ = std::fs::remove_file(&new);
    match linked {
        Err(cause) if cause.kind() != std::io::ErrorKind::AlreadyExists => Err(writing(cause)),
        _ => std::fs::read_to_string(&path).map_err(|cause| StoreError::reading(&path, cause)),
    }
}

/// The batch systems of a run, by name.
pub type Executors = BTreeMap<String, Jobs>;
