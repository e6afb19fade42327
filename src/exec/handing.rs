//! Results that earlier runs could not hand to the shared cache, handed on behind a run's back.
//!
//! A thread begins with the run and ends with it, after the result it has in hand; what comes back to the remote while
//! the run is at work takes the rest at the end. What still waits then is for the next run.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use super::work::Workshop;
use crate::{
    error::Result,
    plan::Plan,
    store::{Handed, Remote, Store, StoreError, Traffic},
};

pub struct HandingOn {
    workshop: Arc<Workshop>,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Handed, StoreError>>>,
}

impl HandingOn {
    /// Begins where something waits.
    pub fn begin(workshop: &Arc<Workshop>) -> Self {
        let ending = Arc::<AtomicBool>::default();
        let due = workshop.remote.as_ref().is_some_and(|remote| remote.is_due(&workshop.store));
        let thread = due.then(|| {
            let (workshop, ending) = (workshop.clone(), ending.clone());
            std::thread::spawn(move || hand_on(&workshop, &|| ending.load(Ordering::Relaxed)))
        });
        Self { workshop: workshop.clone(), ending, thread }
    }

    /// Ends it, and hands on what waits since, unless the run was stopped.
    pub fn finish(self) -> Result<()> {
        let Self { workshop, ending, thread } = self;
        ending.store(true, Ordering::Relaxed);
        let mut handed = thread.map(|thread| thread.join().unwrap_or_else(|_| Ok(Handed::default())));
        let waits = workshop.remote.as_ref().is_some_and(|remote| remote.count_waiting(&workshop.store) > 0);
        if handed.as_ref().is_none_or(Result::is_ok) && waits && !workshop.cancel.is_cancelled() {
            handed = Some(hand_on(&workshop, &|| workshop.cancel.is_cancelled()));
        }
        Ok(handed.transpose().map(drop)?)
    }
}

/// For a run with nothing to do: hands on what waits, unless the remote was away a short while ago.
pub fn hand_on_alone(plan: &Plan, store: &Store) -> Result<Option<Traffic>> {
    let Some(remote) = plan.remote.clone().map(Remote::new) else { return Ok(None) };
    if remote.is_due(store) {
        remote.push_waiting(store, &|| false)?;
    }
    let traffic = Traffic { waiting: remote.count_waiting(store), ..remote.traffic() };
    Ok((traffic != Traffic::default()).then_some(traffic))
}

fn hand_on(workshop: &Workshop, stop: &dyn Fn() -> bool) -> Result<Handed, StoreError> {
    let Some(remote) = &workshop.remote else { return Ok(Handed::default()) };
    let handed = remote.push_waiting(&workshop.store, stop)?;
    if let Some(cause) = &handed.away {
        workshop.remote_away(cause);
    }
    Ok(handed)
}
