//! The worker process of a run, as the run sees it: tasks go to its standard input, and what their stages say comes from its
//! standard output, a JSON object on each line. It is started for the first task, and again for the next one after it has ended.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ffi::OsString,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader},
    process::{ChildStdin, Command},
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinHandle,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{error::ExecError, task::Task};
use crate::{
    child,
    error::{Interrupted, Reported, Result},
    hash::Digest,
    progress::Observer,
    stage::Metrics,
    usage::{Usage, UsageMeter},
};

/// Last lines of standard error that a failure shows.
const LAST_LINES: usize = 3;
/// How long the end of a run waits for its worker, which ends its servers.
const GRACE: Duration = Duration::from_secs(8);

/// What a run sends to its worker.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    Run {
        number: u64,
        task: Box<Task>,
    },
    Cancel {
        number: u64,
    },
    /// Models that are still needed; others may go.
    Keep {
        models: BTreeSet<Digest>,
    },
}

/// What a worker says about a task.
#[derive(Serialize, Deserialize)]
pub struct Said {
    pub number: u64,
    #[serde(flatten)]
    pub what: What,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what", content = "with")]
pub enum What {
    Phase {
        name: String,
        units: u64,
    },
    Advance(u64),
    Skip(u64),
    Status(String),
    Note(String),
    Output(String),
    /// Of the task so far.
    Used(Usage),
    /// Metrics by their bits: JSON has no infinity.
    Done(BTreeMap<String, u64>),
    Failed(Reported),
}

/// The metrics of [`What::Done`].
pub fn metrics_of(bits: BTreeMap<String, u64>) -> Metrics {
    bits.into_iter().map(|(name, bits)| (name, f64::from_bits(bits))).collect()
}

impl What {
    /// Tells an observer about progress. Anything else is no progress.
    pub fn tell(&self, observer: &dyn Observer) {
        match self {
            Self::Phase { name, units } => observer.phase(name, *units),
            Self::Advance(units) => observer.advance(*units),
            Self::Skip(units) => observer.skip(*units),
            Self::Status(text) => observer.status(text),
            Self::Note(text) => observer.note(text),
            Self::Output(line) => observer.output(line),
            Self::Used(_) | Self::Done(_) | Self::Failed(_) => {}
        }
    }
}

/// The program and arguments of a worker.
#[derive(Debug, Clone)]
pub struct WorkerCommand {
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
}

/// The worker of a run.
pub struct Workers {
    command: WorkerCommand,
    next: AtomicU64,
    current: tokio::sync::Mutex<Option<Worker>>,
    kept: Mutex<BTreeSet<Digest>>,
}

struct Worker {
    orders: UnboundedSender<String>,
    tasks: Arc<Tasks>,
    reader: JoinHandle<()>,
}

/// Who listens to which task, and how the worker ended.
#[derive(Default)]
struct Tasks {
    listeners: Mutex<BTreeMap<u64, UnboundedSender<What>>>,
    /// Its output has ended, so it takes no further task.
    is_closed: AtomicBool,
    ended: Mutex<Option<(String, String)>>,
}

impl Tasks {
    fn ended(&self) -> Option<(String, String)> {
        self.ended.lock().clone()
    }
}

impl Workers {
    pub fn new(command: WorkerCommand) -> Self {
        Self {
            command,
            next: AtomicU64::new(1),
            current: tokio::sync::Mutex::default(),
            kept: Mutex::default(),
        }
    }

    /// Runs a task in the worker.
    ///
    /// # Errors
    /// Those of the stage; if the worker cannot be started, or ends.
    pub async fn run(
        &self,
        task: Task,
        observer: &dyn Observer,
        meter: &UsageMeter,
        cancel: &CancellationToken,
    ) -> Result<Metrics> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, mut said) = unbounded_channel();
        let (orders, tasks) = self.open(number, sender).await?;
        let order = serde_json::to_string(&Order::Run { number, task: Box::new(task) });
        // A worker that has ended is noticed by its output.
        _ = orders.send(order.map_err(|cause| ExecError::NoWorker(cause.into()))?);
        let (mut is_cancelled, mut used) = (false, Usage::default());
        let done = loop {
            let what = tokio::select! {
                what = said.recv() => what,
                () = cancel.cancelled(), if !is_cancelled => {
                    is_cancelled = true;
                    send(&orders, &Order::Cancel { number });
                    continue;
                }
            };
            match what {
                Some(What::Used(total)) => {
                    meter.add(total.since(used));
                    used = total;
                }
                Some(What::Done(metrics)) => break Ok(metrics_of(metrics)),
                Some(What::Failed(failure)) => break Err(failure.into()),
                Some(progress) => progress.tell(observer),
                None if cancel.is_cancelled() => break Err(Interrupted.into()),
                None => {
                    let (how, said) = tasks.ended().unwrap_or_default();
                    break Err(ExecError::WorkerLost { how, said }.into());
                }
            }
        };
        tasks.listeners.lock().remove(&number);
        done
    }

    /// Tells the worker which models are still needed.
    pub fn keep(&self, models: BTreeSet<Digest>) {
        let mut kept = self.kept.lock();
        if *kept == models {
            return;
        }
        // While it is being started, it has no models; the next call tells it.
        if let Ok(current) = self.current.try_lock()
            && let Some(worker) = &*current
        {
            send(&worker.orders, &Order::Keep { models: models.clone() });
            *kept = models;
        }
    }

    /// Ends the worker, which ends its servers.
    pub async fn end(&self) {
        if let Some(Worker { orders, reader, .. }) = self.current.lock().await.take() {
            drop(orders);
            _ = timeout(GRACE, reader).await;
        }
    }

    /// The worker, which listens to a further task. One that has ended is replaced.
    async fn open(
        &self,
        number: u64,
        listener: UnboundedSender<What>,
    ) -> Result<(UnboundedSender<String>, Arc<Tasks>), ExecError> {
        let mut current = self.current.lock().await;
        let worker = match current.take() {
            Some(worker) if !worker.tasks.is_closed.load(Ordering::Relaxed) => worker,
            _ => self.start().await?,
        };
        let worker = current.insert(worker);
        worker.tasks.listeners.lock().insert(number, listener);
        // It may have ended just now, before it had this listener.
        if worker.tasks.ended().is_some() {
            worker.tasks.listeners.lock().remove(&number);
        }
        Ok((worker.orders.clone(), Arc::clone(&worker.tasks)))
    }

    async fn start(&self) -> Result<Worker, ExecError> {
        let mut command = Command::new(&self.command.program);
        command.args(&self.command.arguments).stdin(Stdio::piped());
        let (mut child, group) = child::spawn(command).await.map_err(ExecError::NoWorker)?;
        let (orders, to_write) = unbounded_channel();
        if let Some(stdin) = child.stdin.take() {
            tokio::spawn(write(stdin, to_write));
        }
        let tasks = Arc::<Tasks>::default();
        let of_reader = Arc::clone(&tasks);
        let errors = child.stderr.take();
        let last = tokio::spawn(async move {
            let mut last = VecDeque::new();
            lines(errors, |line| {
                last.push_back(line.to_owned());
                if last.len() > LAST_LINES {
                    last.pop_front();
                }
            })
            .await;
            Vec::from(last).join(" / ")
        });
        let output = child.stdout.take();
        let reader = tokio::spawn(async move {
            // Another line is one that a library printed.
            lines(output, |line| {
                if let Ok(Said { number, what }) = serde_json::from_str(line)
                    && let Some(listener) = of_reader.listeners.lock().get(&number)
                {
                    _ = listener.send(what);
                }
            })
            .await;
            of_reader.is_closed.store(true, Ordering::Relaxed);
            // Without its output it is of no use.
            if timeout(GRACE, child.wait()).await.is_err() {
                group.kill();
            }
            let how = child.wait().await.map_or_else(|cause| cause.to_string(), how);
            let said = last.await.unwrap_or_default();
            *of_reader.ended.lock() = Some((how, said));
            of_reader.listeners.lock().clear();
        });
        Ok(Worker { orders, tasks, reader })
    }
}

/// Passes on the lines of a program until it closes its end. Bytes that are no text are replaced.
async fn lines(from: Option<impl AsyncRead + Unpin>, mut each: impl FnMut(&str)) {
    let Some(from) = from else { return };
    let (mut reader, mut line) = (BufReader::new(from), Vec::new());
    while reader.read_until(b'\n', &mut line).await.is_ok_and(|read| read > 0) {
        each(String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
}

/// How a process ended.
fn how(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("signal {signal}"),
        (None, Some(code)) => format!("exit code {code}"),
        (None, None) => "for an unknown reason".into(),
    }
}

fn send(orders: &UnboundedSender<String>, order: &Order) {
    if let Ok(line) = serde_json::to_string(order) {
        _ = orders.send(line);
    }
}

async fn write(mut stdin: ChildStdin, mut lines: UnboundedReceiver<String>) {
    while let Some(line) = lines.recv().await {
        if stdin.write_all(format!("{line}\n").as_bytes()).await.is_err() {
            return;
        }
    }
}
