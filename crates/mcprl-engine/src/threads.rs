//! How threads share the engine's work.

use std::{panic::resume_unwind, sync::Arc, thread::ScopedJoinHandle};

use super::size::weight_bytes;
#[cfg(test)]
use crate::model::ops::composed;
use crate::model::{Decoder, ModelConfig, kernels::Format};

/// Weights beyond this many bytes do not stay in the CPU caches. Rereading them in each thread then costs
/// more than sharing every operation.
const LARGE: usize = 32 << 20;

/// Microbatches of a step for models whose threads work separately. A constant, so that bits do not depend on the
/// machine.
const MICROBATCHES: usize = 4;

/// The minimum number of microbatches of a step over this decoder, as far as the step can be split. On the CPU it
/// does not depend on the number of devices, so neither do the bits. Elsewhere each device has one.
pub fn min_microbatches(decoder: &Decoder, devices: usize) -> usize {
    if decoder.by_kernels() { microbatches(decoder.bytes()) } else { devices }
}

/// [`min_microbatches`] on the CPU for a decoder of this shape with weights frozen in this format.
pub fn min_microbatches_of(config: &ModelConfig, format: Format) -> usize {
    microbatches(weight_bytes(config, format))
}

fn microbatches(bytes: usize) -> usize {
    if bytes > LARGE { 1 } else { MICROBATCHES }
}

/// How the CPU's threads are split.
pub struct Split {
    /// Microbatches or batches of conversations that run at once.
    pub workers: usize,
    /// Threads of one operation.
    pub threads: usize,
}

impl Split {
    /// Splits the threads among this many devices, for weights of this many bytes.
    pub fn of(bytes: usize, threads: usize, devices: usize) -> Self {
        let (threads, devices) = (threads.max(1), devices.max(1));
        match bytes > LARGE {
            true => Self { workers: devices, threads: threads.div_ceil(devices) },
            false => Self { workers: threads.max(devices), threads: 1 },
        }
    }
}

/// The threads of a device, and how they divide the work.
#[derive(Clone)]
pub enum ThreadPlan {
    /// Each computes its own microbatches or conversations: for a model that fits the CPU caches.
    Separate(usize),
    /// All share each operation.
    Shared(Arc<rayon::ThreadPool>),
}

impl ThreadPlan {
    pub fn new(decoder: &Decoder, threads: usize) -> Self {
        if !decoder.by_kernels() {
            // One thread issues the operations of a device.
            return Self::Separate(1);
        }
        let Split { workers, threads } = Split::of(decoder.bytes(), threads, 1);
        if threads == 1 {
            return Self::Separate(workers);
        }
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        let pool = pool.thread_name(|index| format!("engine-{index}")).build();
        Self::Shared(Arc::new(pool.expect("the system can start a thread")))
    }

    /// Microbatches or batches of conversations that run at once.
    pub fn workers(&self) -> usize {
        match self {
            Self::Separate(threads) => *threads,
            Self::Shared(_) => 1,
        }
    }

    /// Runs `work` in the thread pool that its operations share.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match self {
            Self::Separate(_) => work(),
            Self::Shared(pool) => pool.install(work),
        }
    }
}

/// Runs `work(0)`, `work(1)`, … each on a thread, the first on the current one. Returns the results in order.
pub fn run_workers<T: Send>(workers: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let work = &work;
    #[cfg(test)]
    let forced = composed::forced();
    std::thread::scope(|scope| {
        let spawn = |worker| {
            scope.spawn(move || {
                #[cfg(test)]
                let _forced = forced.then(composed::force);
                work(worker)
            })
        };
        let others: Vec<_> = (1..workers).map(spawn).collect();
        let first = work(0);
        let join = |other: ScopedJoinHandle<'_, T>| other.join().unwrap_or_else(|panic| resume_unwind(panic));
        std::iter::once(first).chain(others.into_iter().map(join)).collect()
    })
}
