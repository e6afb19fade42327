//! Sums the gradients of microbatches in order, whichever thread computes them and whenever.
//!
//! Each microbatch is computed into its own set of zeros, and the sets are added one after another. The sum
//! therefore has the same bits on any number of threads. Besides the sum, there is one set per worker. Small
//! sets may be more numerous, so that no worker waits to add.

use std::collections::BTreeMap;

use candle_core::Tensor;
use parking_lot::{Condvar, Mutex};

use super::{EngineError, threads::run_workers};
use crate::model::Gradients;

/// Most bytes of the sets beyond one per worker.
const SPARE_BYTES: usize = 64 << 20;

#[derive(Default)]
struct State {
    next: usize,
    added: usize,
    /// Sets that are in use, wait to be added, or are free.
    sets: usize,
    free: Vec<Gradients>,
    waiting: BTreeMap<usize, Gradients>,
    total: Option<Gradients>,
    logprobs: BTreeMap<usize, Vec<f32>>,
    failure: Option<EngineError>,
    /// A worker failed or panicked: no further microbatch starts.
    stopped: bool,
}

/// One sum over `count` microbatches.
pub struct Reduction<'a> {
    count: usize,
    workers: usize,
    /// Tensors in the shapes of the parameters.
    shapes: &'a [Tensor],
    max_sets: usize,
    state: Mutex<State>,
    changed: Condvar,
}

/// Wakes the other workers if a worker does not finish.
struct Guard<'r, 'a>(&'r Reduction<'a>);

impl Drop for Guard<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.state.lock().stopped = true;
            self.0.changed.notify_all();
        }
    }
}

impl<'a> Reduction<'a> {
    /// Sums gradients in the shapes of these parameters on this many threads.
    pub fn new(count: usize, workers: usize, shapes: &'a [Tensor]) -> Self {
        let bytes = shapes.iter().map(|shape| shape.elem_count() * size_of::<f32>()).sum::<usize>();
        let max_sets = workers.max(SPARE_BYTES / bytes.max(1));
        Self { count, workers, shapes, max_sets, state: Mutex::default(), changed: Condvar::new() }
    }

    fn zeros(&self) -> Result<Gradients, EngineError> {
        let slots = self.shapes.iter().map(Tensor::zeros_like).collect::<candle_core::Result<_>>()?;
        Ok(Gradients { slots })
    }

    /// Calls `work(worker, microbatch, gradients)` for every microbatch. Returns the sum and the results of `work`,
    /// in order.
    pub fn run(
        self,
        work: impl Fn(usize, usize, &Gradients) -> Result<Vec<f32>, EngineError> + Sync,
    ) -> Result<(Gradients, Vec<Vec<f32>>), EngineError> {
        run_workers(self.workers, |worker| {
            let _guard = Guard(&self);
            while let Some((index, set)) = self.begin() {
                let done = set.and_then(|set| Ok((work(worker, index, &set)?, set)));
                self.end(index, done);
            }
        });
        let state = std::mem::take(&mut *self.state.lock());
        if let Some(failure) = state.failure {
            return Err(failure);
        }
        let total = state.total.map_or_else(|| self.zeros(), Ok)?;
        Ok((total, state.logprobs.into_values().collect()))
    }

    /// The next microbatch and zeros for it. An index is handed out only together with a set. The next
    /// microbatch to be added therefore always has a set, so there is no deadlock.
    fn begin(&self) -> Option<(usize, Result<Gradients, EngineError>)> {
        let mut state = self.state.lock();
        loop {
            if state.stopped || state.next == self.count {
                return None;
            }
            let free = state.free.pop();
            if free.is_some() || state.sets < self.max_sets {
                let index = state.next;
                state.next += 1;
                state.sets += usize::from(free.is_none());
                drop(state);
                let set = free.map_or_else(|| self.zeros(), |set| Ok(set.clear().map(|()| set)?));
                return Some((index, set));
            }
            self.changed.wait(&mut state);
        }
    }

    fn end(&self, index: usize, done: Result<(Vec<f32>, Gradients), EngineError>) {
        let mut state = self.state.lock();
        let added = done.and_then(|(logprobs, set)| {
            state.logprobs.insert(index, logprobs);
            state.waiting.insert(index, set);
            state.add()
        });
        if let Err(failure) = added {
            state.failure.get_or_insert(failure);
            state.stopped = true;
        }
        self.changed.notify_all();
    }
}

impl State {
    /// Adds the sets that are next in order.
    fn add(&mut self) -> Result<(), EngineError> {
        while let Some(set) = self.waiting.remove(&self.added) {
            self.added += 1;
            match &self.total {
                Some(total) => {
                    total.merge(&set)?;
                    self.free.push(set);
                }
                None => {
                    self.total = Some(set);
                    self.sets -= 1;
                }
            }
        }
        Ok(())
    }
}
