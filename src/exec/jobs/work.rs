//! The worker of a job: runs its task on a node, and writes what comes of it into the job's folder.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use serde_json::Value;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;

use super::{
    error::JobError,
    folder::{Claim, JobFolder, WorkerFolder},
    report::Report,
};
use crate::{
    error::Result,
    exec::{
        ExecError,
        folder::{RunSpec, existing},
        interrupt::{Signals, kill_children},
        task::{ProcessContext, StageTask, VERSION, own_build},
        threads::{panic_message, threads},
    },
    plan::Plan,
    progress::Observer,
    stage::{Cards, Metrics, SharedModels},
    store::{FileDigests, Store, StoreError, tree_digest},
    usage::UsageMeter,
};

/// Time between two looks whether the job is still this worker's.
const LOOK: Duration = Duration::from_secs(1);
/// Looks in a row that must find it is not: an answer of a shared folder may be old.
const LOOKS: u32 = 3;
/// Looks in a row that find no folder, after which nobody waits for the job any more.
const LOOKS_AWAY: u32 = 600;
/// How long a stage may take to end its servers.
const GRACE: Duration = Duration::from_secs(3);

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobEnd {
    Done,
    Failed,
    /// Stopped, or wanted by nobody. The batch system may start it again.
    Stopped,
}

/// Works on the job of this folder, for a run. `stages` is the folder of cards on disk. `say` writes into the job's log.
///
/// # Errors
/// If the job's folder cannot be read or written. What fails in the stage is told to the run.
pub fn work_on(
    store: &Store,
    run: &str,
    stages: Option<PathBuf>,
    folder: &JobFolder,
    say: &dyn Fn(&str),
) -> Result<JobEnd> {
    let Some(wanted) = folder.task()? else { return Ok(JobEnd::Stopped) };
    let signals = Signals::listen();
    let cancel = signals.stop(|| {});
    // No sweep removes what the job needs, even if the run that submitted it has ended.
    let _attendance = store.attend(run)?;
    let worker = folder.take()?;
    say(&format!("worker {} works on {}", worker.name, wanted["node"]));
    let (sender, mut reports) = unbounded_channel::<Report>();
    let path = worker.said();
    let writing = |cause| StoreError::writing(&path, cause);
    let mut output = OpenOptions::new().create(true).append(true).open(&path).map_err(writing)?;
    let (watched, of_watch, its) = (cancel.clone(), folder.clone(), worker.clone());
    std::thread::spawn(move || {
        let (mut lost, mut away) = (0, 0);
        while lost < LOOKS && away < LOOKS_AWAY {
            std::thread::sleep(LOOK);
            (lost, away) = match of_watch.claim(&its) {
                Claim::Held => (0, 0),
                Claim::Lost => (lost + 1, 0),
                Claim::Unknown => (lost, away + 1),
            };
        }
        watched.cancel();
    });
    let writer = std::thread::spawn(move || {
        while let Some(report) = reports.blocking_recv() {
            // Without its last word the job is lost, and submitted again.
            if write(&mut output, &report).is_err() {
                return;
            }
        }
    });
    let stopped = cancel.clone();
    let last = match opened(store, run, stages, (folder, &worker), wanted) {
        Err(failure) => Report::Failed((&failure).into()),
        Ok((task, run)) => {
            let runtime = threads(&run.plan.engine)?;
            let last = runtime.block_on(perform(task, worker.name.clone(), run, sender.clone(), cancel));
            runtime.shutdown_timeout(GRACE);
            last
        }
    };
    kill_children();
    let end = match &last {
        // Programs of the stage may end before it sees the signal.
        Report::Failed(_) if stopped.is_cancelled() => JobEnd::Stopped,
        Report::Failed(failure) => {
            say(&failure.to_string());
            JobEnd::Failed
        }
        _ => JobEnd::Done,
    };
    if end != JobEnd::Stopped {
        _ = sender.send(last);
    }
    drop(sender);
    _ = writer.join();
    say(&format!("worker {}: {end:?}", worker.name));
    Ok(end)
}

/// What a worker has of its run.
struct Run {
    plan: Plan,
    store: Store,
    models: Arc<SharedModels>,
}

impl Run {
    /// Plans the run.
    fn open(store: Store, run: &str, stages: Option<PathBuf>) -> Result<Self> {
        let spec = RunSpec::read(&existing(&store, run)?)?;
        let files = FileDigests::load(&store);
        let plan = Plan::new(&spec.source()?, &spec.overrides, &Cards::new(stages), &files)?;
        // For the next job on this host. Nothing is wrong if that fails.
        _ = files.save(&store);
        Ok(Self { plan, store, models: Arc::default() })
    }
}

/// The task with this worker's folders, and the run.
fn opened(
    store: &Store,
    run: &str,
    stages: Option<PathBuf>,
    (folder, worker): (&JobFolder, &WorkerFolder),
    wanted: Value,
) -> Result<(StageTask, Run)> {
    // Another program may read tasks in another way.
    let build = wanted["build"].as_str().unwrap_or_default();
    if build != VERSION && own_build().is_none_or(|own| own.to_string() != build) {
        let job = folder.path.display().to_string();
        return Err(JobError::OtherBuild { job }.into());
    }
    let task: StageTask =
        serde_json::from_value(wanted).map_err(|cause| StoreError::reading(&folder.path, cause.into()))?;
    let run = Run::open(Store::open(store.root())?, run, stages)?;
    Ok((StageTask { out: worker.out(), scratch: worker.scratch(), ..task }, run))
}

/// Runs a task, whose rows go to the log of this part. A crash of its stage is a failure.
async fn perform(
    task: StageTask,
    part: String,
    run: Run,
    sender: UnboundedSender<Report>,
    cancel: CancellationToken,
) -> Report {
    let stage = task.node.clone();
    let reporter = Arc::new(Reporter { sender, meter: Arc::default() });
    let (observer, meter) = (Arc::clone(&reporter), Arc::clone(&reporter.meter));
    let out = task.out.clone();
    let running = tokio::spawn(async move {
        let place = ProcessContext { plan: &run.plan, store: &run.store, models: &run.models };
        let (index, rows) = task.planned(place, &part)?;
        task.run(place, index, Arc::new(rows), observer, meter, cancel).await
    });
    let done: Result<Metrics> = match running.await {
        Ok(done) => done,
        Err(cause) => Err(ExecError::Crashed { stage, message: panic_message(cause) }.into()),
    };
    reporter.send(Report::Used(reporter.meter.total()));
    let digested = |metrics| Ok(Report::done(metrics, tree_digest(&out)?));
    match done.and_then(digested) {
        Ok(done) => done,
        Err(failure) => Report::Failed((&failure).into()),
    }
}

/// Reports the progress of a stage.
struct Reporter {
    sender: UnboundedSender<Report>,
    meter: Arc<UsageMeter>,
}

impl Reporter {
    fn send(&self, report: Report) {
        _ = self.sender.send(report);
    }
}

impl Observer for Reporter {
    fn phase(&self, name: &str, units: u64) {
        self.send(Report::Phase { name: name.to_owned(), units });
    }

    fn advance(&self, units: u64) {
        self.send(Report::Advance(units));
        self.send(Report::Used(self.meter.total()));
    }

    fn skip(&self, units: u64) {
        self.send(Report::Skip(units));
    }

    fn status(&self, text: &str) {
        self.send(Report::Status(text.to_owned()));
    }

    fn note(&self, text: &str) {
        self.send(Report::Note(text.to_owned()));
    }

    fn output(&self, line: &str) {
        self.send(Report::Output(line.to_owned()));
    }
}

fn write(output: &mut File, report: &Report) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    // One write for a line.
    output.write_all(&line)
}
