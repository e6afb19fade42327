//! Brings trackers up to date while a run goes on, on a thread of its own.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use tokio_util::sync::CancellationToken;

use super::{LogReader, Sink, TrackError, sinks, update};
use crate::{
    error::{Failure, Reported},
    exec::{Event, Listener},
    plan::TrackSpec,
    progress::Observer,
    store::Store,
};

/// Least time between two updates.
const PAUSE: Duration = Duration::from_secs(3);
/// An update is followed by a pause of this many times its own duration, so that a long run is not slowed down.
const REST: u32 = 10;
/// How long the end of a run waits for the last update.
const LAST: Duration = Duration::from_secs(30);
/// How long it takes to notice that this wait is to stop.
const STEP: Duration = Duration::from_millis(50);

/// What the thread is asked to do.
#[derive(Default)]
struct Requested {
    update: bool,
    end: bool,
}

#[derive(Default)]
struct Wakeup {
    asked: Mutex<Requested>,
    changed: Condvar,
}

impl Wakeup {
    fn ask(&self, change: impl FnOnce(&mut Requested)) {
        change(&mut self.asked.lock());
        self.changed.notify_all();
    }

    /// Waits until an update is asked for, and then for the pause; not longer than to the end. Returns whether it is
    /// the end.
    fn wait(&self, pause: Duration) -> bool {
        let mut asked = self.asked.lock();
        self.changed.wait_while(&mut asked, |asked| !asked.update && !asked.end);
        self.changed.wait_while_for(&mut asked, |asked| !asked.end, pause);
        asked.update = false;
        asked.end
    }
}

/// The trackers of a run that goes on.
pub struct Live {
    wake: Arc<Wakeup>,
    listener: Arc<dyn Listener>,
    ended: mpsc::Receiver<()>,
}

impl Live {
    /// Starts the thread; none if the run has no trackers. Problems are events of the listener.
    pub fn begin(spec: &TrackSpec, store: &Store, run: &str, listener: Arc<dyn Listener>) -> Option<Self> {
        // The thread has a little time to report what it could not send.
        let sinks = sinks(spec, store, run, LAST.mul_f64(0.8));
        if sinks.is_empty() {
            return None;
        }
        let reader = LogReader::new(store, run, spec.examples);
        let begun = Self::with(sinks, reader, Arc::clone(&listener), PAUSE);
        match begun {
            Ok(live) => Some(live),
            Err(error) => {
                listener.event(&untracked("track", error.into()));
                None
            }
        }
    }

    pub(super) fn with(
        sinks: Vec<Box<dyn Sink>>,
        reader: LogReader,
        listener: Arc<dyn Listener>,
        pause: Duration,
    ) -> Result<Self, TrackError> {
        let wake = Arc::<Wakeup>::default();
        let (end, ended) = mpsc::channel();
        let mut thread = Thread {
            sinks,
            reader,
            listener: Arc::clone(&listener),
            wake: Arc::clone(&wake),
            warned: BTreeSet::new(),
        };
        std::thread::Builder::new()
            .name("track".into())
            .spawn(move || {
                thread.run(pause);
                _ = end.send(());
            })
            .map_err(TrackError::Thread)?;
        Ok(Self { wake, listener, ended })
    }

    /// A listener that passes events on and asks for updates.
    pub fn listener(&self) -> Arc<dyn Listener> {
        Arc::new(WakingListener { wake: Arc::clone(&self.wake), inner: Arc::clone(&self.listener) })
    }

    /// Updates the trackers a last time. `command` sends what cannot be sent in time, or before `stop` is cancelled.
    pub fn finish(self, command: &str, stop: &CancellationToken) {
        self.finish_within(LAST, command, stop);
    }

    pub(super) fn finish_within(self, time: Duration, command: &str, stop: &CancellationToken) {
        self.wake.ask(|asked| asked.end = true);
        let until = Instant::now() + time;
        let error = loop {
            let left = until.saturating_duration_since(Instant::now());
            let command = || command.to_owned();
            match self.ended.recv_timeout(left.min(STEP)) {
                Ok(()) => return,
                Err(RecvTimeoutError::Timeout) if stop.is_cancelled() => {
                    break TrackError::Stopped { command: command() };
                }
                Err(RecvTimeoutError::Timeout) if !left.is_zero() => {}
                Err(_) => break TrackError::Late { command: command() },
            }
        };
        self.listener.event(&untracked("track", error.into()));
    }
}

/// What the thread owns.
struct Thread {
    sinks: Vec<Box<dyn Sink>>,
    reader: LogReader,
    listener: Arc<dyn Listener>,
    wake: Arc<Wakeup>,
    /// Trackers and causes that were reported.
    warned: BTreeSet<(&'static str, String)>,
}

impl Thread {
    fn run(&mut self, least: Duration) {
        // What is there of a resumed run is written at once.
        let mut pause = self.update(least);
        while !self.wake.wait(pause) {
            pause = self.update(least);
        }
        self.update(least);
    }

    /// Returns how long to wait before the next update.
    fn update(&mut self, least: Duration) -> Duration {
        let began = Instant::now();
        match update(&mut self.sinks, &mut self.reader) {
            Ok(problems) => {
                for (at, problem) in problems.into_iter().enumerate() {
                    if let Some(error) = problem {
                        self.warn(self.sinks[at].name(), error.into());
                    }
                }
            }
            Err(error) => self.warn("track", error),
        }
        least.max(began.elapsed() * REST)
    }

    /// Reports each cause once for each tracker.
    fn warn(&mut self, tracker: &'static str, error: Failure) {
        if self.warned.insert((tracker, error.to_string())) {
            self.listener.event(&untracked(tracker, error));
        }
    }
}

fn untracked(tracker: &str, error: Failure) -> Event {
    Event::Untracked { tracker: tracker.to_owned(), error: Reported::from(&error) }
}

struct WakingListener {
    wake: Arc<Wakeup>,
    inner: Arc<dyn Listener>,
}

impl Listener for WakingListener {
    fn event(&self, event: &Event) {
        self.inner.event(event);
        if matches!(event, Event::Cached { .. } | Event::Finished { .. } | Event::Unanswered { .. }) {
            self.wake.ask(|asked| asked.update = true);
        }
    }

    fn observer(&self, id: &str) -> Arc<dyn Observer> {
        self.inner.observer(id)
    }
}
