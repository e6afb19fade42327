//! Uploads results that earlier runs could not send to the shared cache, in the background.
//!
//! The thread starts with the run and stops with it, after its current result. The end of the run uploads the
//! rest if the remote is reachable by then. What remains waits for the next run.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use super::runner::Runner;
use crate::{
    error::Result,
    plan::Plan,
    store::{DrainReport, Remote, Store, Traffic},
};

pub struct Uploader {
    runner: Arc<Runner>,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Uploader {
    /// Starts a thread if any result waits.
    pub fn begin(runner: &Arc<Runner>) -> Self {
        let ending = Arc::<AtomicBool>::default();
        let due = runner.remote.as_ref().is_some_and(|remote| remote.is_due(&runner.store));
        let thread = due.then(|| {
            let (runner, ending) = (runner.clone(), ending.clone());
            std::thread::spawn(move || hand_on(&runner, &|| ending.load(Ordering::Relaxed)))
        });
        Self { runner: runner.clone(), ending, thread }
    }

    /// Stops the thread and uploads what has queued since, unless the run was stopped.
    pub fn finish(self) {
        let Self { runner, ending, thread } = self;
        ending.store(true, Ordering::Relaxed);
        // If the thread panicked, its results are still queued.
        _ = thread.map(JoinHandle::join);
        hand_on(&runner, &|| runner.cancel.is_cancelled());
    }
}

/// For a run with nothing to do: uploads what is queued, unless the remote was unreachable a short while ago.
pub fn hand_on_alone(plan: &Plan, store: &Store) -> Result<Option<Traffic>> {
    let Some(remote) = plan.remote.clone().map(Remote::new) else { return Ok(None) };
    if remote.is_due(store) {
        remote.push_waiting(store, &|| false)?;
    }
    let traffic = Traffic { waiting: remote.count_waiting(store), ..remote.traffic() };
    Ok((traffic != Traffic::default()).then_some(traffic))
}

/// Errors are reported and do not end the run.
fn hand_on(runner: &Runner, stop: &dyn Fn() -> bool) {
    let Some(remote) = &runner.remote else { return };
    match remote.push_waiting(&runner.store, stop) {
        Ok(DrainReport { away: None, .. }) => {}
        Ok(DrainReport { away: Some(cause), .. }) | Err(cause) => runner.remote_away(&cause),
    }
}
