//! A worker process: runs tasks of one run that come on standard input, and says on standard output what their stages report.
//! It ends with its input, so it does not outlive the run, and with it the servers that it started. Signals it ignores: those of
//! a batch system reach the run too, which stops the stages.

use std::{
    collections::BTreeMap,
    io::{BufRead, Write},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc::{UnboundedSender, unbounded_channel},
};
use tokio_util::sync::CancellationToken;

use super::{
    error::ExecError,
    folder::{RunSpec, existing},
    interrupt::kill_children,
    task::{Place, Task},
    threads::{panic_message, threads},
    workers::{Order, Said, What},
};
use crate::{
    error::{Failure, Reported, Result},
    plan::Plan,
    progress::Observer,
    stage::{Cards, Metrics, SharedModels},
    store::{FileDigests, Store},
    usage::UsageMeter,
};

/// How long stages may take to end their servers.
const GRACE: Duration = Duration::from_secs(3);

/// What a worker has of its run.
pub struct Run {
    pub plan: Plan,
    store: Store,
    models: Arc<SharedModels>,
}

impl Run {
    /// Plans the run. `stages` is the folder of cards on disk.
    ///
    /// # Errors
    /// If it cannot be read or planned.
    pub fn open(store: Store, run: &str, stages: Option<std::path::PathBuf>) -> Result<Self> {
        let spec = RunSpec::read(&existing(&store, run)?)?;
        let files = FileDigests::load(&store);
        let plan = Plan::new(&spec.source()?, &spec.overrides, &Cards::new(stages), &files)?;
        Ok(Self { plan, store, models: Arc::default() })
    }
}

/// Works for a run until standard input ends. `stages` is the folder of cards on disk.
///
/// # Errors
/// If the run cannot be read or planned.
pub fn work(store: Store, run: &str, stages: Option<std::path::PathBuf>) -> Result<()> {
    let run = Arc::new(Run::open(store, run, stages)?);
    let runtime = threads(&run.plan.engine)?;
    {
        let _inside = runtime.enter();
        // A signal that was once received does not end the process any more.
        for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
            _ = signal(kind).map_err(ExecError::Threads)?;
        }
    }
    let (sender, mut said) = unbounded_channel::<Said>();
    let writer = std::thread::spawn(move || {
        let mut output = std::io::stdout();
        while let Some(said) = said.blocking_recv() {
            let Ok(line) = serde_json::to_string(&said) else { continue };
            if writeln!(output, "{line}").and_then(|()| output.flush()).is_err() {
                return;
            }
        }
    });
    let cancels = Arc::<Mutex<BTreeMap<u64, CancellationToken>>>::default();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        match serde_json::from_str(&line) {
            Ok(Order::Run { number, task }) => {
                let cancel = CancellationToken::new();
                cancels.lock().insert(number, cancel.clone());
                let (run, cancels, sender) = (Arc::clone(&run), Arc::clone(&cancels), sender.clone());
                runtime.spawn(async move {
                    let what = answer((number, String::new()), *task, run, sender.clone(), cancel).await;
                    cancels.lock().remove(&number);
                    _ = sender.send(Said { number, what });
                });
            }
            Ok(Order::Cancel { number }) => {
                if let Some(cancel) = cancels.lock().get(&number) {
                    cancel.cancel();
                }
            }
            Ok(Order::Keep { models }) => run.models.retain(|model| models.contains(model)),
            Err(cause) => return Err(ExecError::BadOrder(cause.to_string()).into()),
        }
    }
    // Nobody listens any more.
    cancels.lock().values().for_each(CancellationToken::cancel);
    runtime.shutdown_timeout(GRACE);
    kill_children();
    drop((sender, writer));
    Ok(())
}

/// Runs a task, whose rows go to the log of this part. A crash of its stage is a failure of it alone.
pub async fn answer(
    (number, part): (u64, String),
    task: Task,
    run: Arc<Run>,
    sender: UnboundedSender<Said>,
    cancel: CancellationToken,
) -> What {
    let meter = Arc::<UsageMeter>::default();
    let stage = task.node.clone();
    let observer = Arc::new(Telling { number, sender, meter: Arc::clone(&meter) });
    let (telling, of_task) = (Arc::clone(&observer), Arc::clone(&meter));
    let running = tokio::spawn(async move { perform((&task, &part), &run, observer, of_task, cancel).await });
    let done: Result<Metrics> = match running.await {
        Ok(done) => done,
        Err(cause) => Err(ExecError::Crashed { stage, message: panic_message(cause) }.into()),
    };
    telling.say(What::Used(meter.total()));
    match done {
        Ok(metrics) => What::Done(metrics.into_iter().map(|(name, value)| (name, value.to_bits())).collect()),
        Err(failure) => What::Failed(Reported::from(&failure)),
    }
}

async fn perform(
    (task, part): (&Task, &str),
    run: &Run,
    observer: Arc<Telling>,
    meter: Arc<UsageMeter>,
    cancel: CancellationToken,
) -> Result<Metrics, Failure> {
    let place = Place { plan: &run.plan, store: &run.store, models: &run.models };
    let (index, rows) = task.planned(place, part)?;
    task.run(place, index, Arc::new(rows), observer, meter, cancel).await
}

/// Tells the run what a stage reports.
struct Telling {
    number: u64,
    sender: UnboundedSender<Said>,
    meter: Arc<UsageMeter>,
}

impl Telling {
    fn say(&self, what: What) {
        _ = self.sender.send(Said { number: self.number, what });
    }
}

impl Observer for Telling {
    fn phase(&self, name: &str, units: u64) {
        self.say(What::Phase { name: name.to_owned(), units });
    }

    fn advance(&self, units: u64) {
        self.say(What::Advance(units));
        self.say(What::Used(self.meter.total()));
    }

    fn skip(&self, units: u64) {
        self.say(What::Skip(units));
    }

    fn status(&self, text: &str) {
        self.say(What::Status(text.to_owned()));
    }

    fn note(&self, text: &str) {
        self.say(What::Note(text.to_owned()));
    }

    fn output(&self, line: &str) {
        self.say(What::Output(line.to_owned()));
    }
}
