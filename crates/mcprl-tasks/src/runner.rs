//! Runs many short sequences of calls on the live server, with bounds on losses and time.
//!
//! Sequences of tools that only read share visits; any other sequence has a visit of its own. A lane never holds two. Which lane runs a sequence
//! depends on its index alone, and results come back in the order of the sequences.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use futures::future::try_join_all;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::live::{CallSequence, Live};
use crate::{
    chat::ToolCall,
    error::{Interrupted, Result},
    mcp::Outcome,
    progress::Observer,
};

/// Calls that a server may lose before it counts as broken.
const LOSSES: usize = 40;
/// After it a clock that shows seconds shows another one.
pub const TICK: Duration = Duration::from_millis(1100);
/// Lanes on a server whose sessions are shared, and on one where each is a process.
const SHARED_LANES: usize = 16;
const OWN_LANES: usize = 4;

pub struct Runner<'a> {
    pub live: &'a Live,
    /// The visit that a lane's reading sequences share.
    lanes: Vec<Mutex<Option<CallSequence<'a>>>>,
    /// Agent's names of tools that change nothing.
    readers: BTreeSet<String>,
    deadline: parking_lot::Mutex<Instant>,
    losses: AtomicUsize,
    calls: AtomicUsize,
    /// Characters of a result that an agent sees.
    pub result_chars: usize,
    pub observer: &'a dyn Observer,
    cancel: &'a CancellationToken,
}

impl<'a> Runner<'a> {
    pub fn new(
        live: &'a Live,
        readers: BTreeSet<String>,
        (deadline, result_chars): (Instant, usize),
        observer: &'a dyn Observer,
        cancel: &'a CancellationToken,
    ) -> Self {
        let lanes = if live.is_shared() { SHARED_LANES } else { OWN_LANES };
        let (losses, calls) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let lanes = (0..lanes).map(|_| Mutex::default()).collect();
        let deadline = parking_lot::Mutex::new(deadline);
        Self { live, lanes, readers, deadline, losses, calls, result_chars, observer, cancel }
    }

    pub fn is_late(&self) -> bool {
        Instant::now() >= *self.deadline.lock()
    }

    /// Until when sequences begin.
    pub fn deadline(&self) -> Instant {
        *self.deadline.lock()
    }

    pub fn set_deadline(&self, deadline: Instant) {
        *self.deadline.lock() = deadline;
    }

    /// Whether calls are made on a visit that other sequences have, too.
    pub fn shares(&self, calls: &[ToolCall]) -> bool {
        calls.iter().all(|call| self.readers.contains(&call.name))
    }

    /// Calls made so far.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// The outcomes of each sequence, up to a call that is lost. A sequence that there was no time for has none.
    ///
    /// # Errors
    /// If the stage is cancelled, or the server loses too many calls.
    pub async fn run(&self, sequences: &[Vec<ToolCall>]) -> Result<Vec<Vec<Outcome>>> {
        self.run_in(sequences, true).await
    }

    /// The same with a visit of its own for each sequence.
    ///
    /// # Errors
    /// If the stage is cancelled, or the server loses too many calls.
    pub async fn run_apart(&self, sequences: &[Vec<ToolCall>]) -> Result<Vec<Vec<Outcome>>> {
        self.run_in(sequences, false).await
    }

    /// `shares`: tools that read share visits.
    async fn run_in(&self, sequences: &[Vec<ToolCall>], shares: bool) -> Result<Vec<Vec<Outcome>>> {
        let lanes = self.lanes.iter().enumerate().map(|(lane, shared)| async move {
            let mut shared = shared.lock().await;
            let mut done = Vec::new();
            for index in (lane..sequences.len()).step_by(self.lanes.len()) {
                if self.cancel.is_cancelled() {
                    return Err(Interrupted.into());
                }
                let outcomes = if self.is_late() {
                    Vec::new()
                } else {
                    self.one(&sequences[index], &mut shared, shares).await?
                };
                self.observer.advance(1);
                done.push((index, outcomes));
            }
            // Its session may be one that other lanes wait for.
            *shared = None;
            Ok::<_, crate::error::Failure>(done)
        });
        let mut done: Vec<_> = try_join_all(lanes).await?.into_iter().flatten().collect();
        done.sort_by_key(|(index, _)| *index);
        Ok(done.into_iter().map(|(_, outcomes)| outcomes).collect())
    }

    async fn one(
        &self,
        calls: &[ToolCall],
        shared: &mut Option<CallSequence<'a>>,
        shares: bool,
    ) -> Result<Vec<Outcome>> {
        let reads = shares && self.shares(calls);
        if !reads {
            // A lane that holds two sessions could wait for itself.
            *shared = None;
        }
        let mut own = (!reads).then(|| self.live.visit());
        let mut outcomes = Vec::new();
        for call in calls {
            self.calls.fetch_add(1, Ordering::Relaxed);
            let visit = match &mut own {
                Some(own) => own,
                None => shared.get_or_insert_with(|| self.live.reading_visit()),
            };
            let outcome = match visit.call(call).await {
                Ok(outcome) => outcome,
                Err(lost) if self.losses.fetch_add(1, Ordering::Relaxed) >= LOSSES => return Err(lost),
                Err(lost) => {
                    *shared = None;
                    outcomes.push(Outcome { text: format!("the call was lost: {lost}"), is_error: true });
                    break;
                }
            };
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }
}
