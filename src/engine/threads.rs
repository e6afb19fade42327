//! How threads share the engine's work.

use std::sync::Arc;

use super::memory::held;
use crate::model::{Decoder, ModelConfig, kernels::Format};

/// Weights beyond this many bytes leave the caches, so that each thread reading them anew would cost more than sharing
/// every operation.
const LARGE: usize = 32 << 20;

/// Shares of a step for models whose threads work apart: a constant, so that bits do not depend on the machine.
const SHARES: usize = 4;

/// Whether threads work together on this decoder's operations, where there are several.
fn is_large(decoder: &Decoder) -> bool {
    decoder.bytes() > LARGE
}

/// Into how many shares a step over this decoder is cut at least, as far as it can be. On the CPU the number of devices
/// changes nothing, so that it changes no bits; elsewhere each device has one.
pub fn shares(decoder: &Decoder, devices: usize) -> usize {
    match (decoder.by_kernels(), is_large(decoder)) {
        (false, _) => devices,
        (true, true) => 1,
        (true, false) => SHARES,
    }
}

/// [`shares`] on the CPU of a decoder of this shape, its weights frozen in this format.
pub fn shares_of_shape(config: &ModelConfig, format: Format) -> usize {
    if held(config, format) > LARGE { 1 } else { SHARES }
}

/// What [`ThreadPlan::new`] makes of the CPU's threads.
pub struct Split {
    /// Microbatches or conversations' batches worked on at once.
    pub workers: usize,
    /// Threads of one operation.
    pub threads: usize,
}

impl Split {
    /// Where weights take this many bytes, the threads shared out among so many devices.
    pub fn of(bytes: usize, threads: usize, devices: usize) -> Self {
        let (threads, devices) = (threads.max(1), devices.max(1));
        match bytes > LARGE {
            true => Self { workers: devices, threads: threads.div_ceil(devices) },
            false => Self { workers: threads.max(devices), threads: 1 },
        }
    }
}

/// The threads of a device, and what each of them works on.
#[derive(Clone)]
pub enum ThreadPlan {
    /// Each on microbatches or conversations of its own: for a model that fits the caches.
    Apart(usize),
    /// All on the same operation.
    Together(Arc<rayon::ThreadPool>),
}

impl ThreadPlan {
    pub fn new(decoder: &Decoder, threads: usize) -> Self {
        if !decoder.by_kernels() {
            // A device is given its operations by one thread.
            return Self::Apart(1);
        }
        if threads > 1 && is_large(decoder) {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
            let pool = pool.thread_name(|index| format!("engine-{index}")).build();
            return Self::Together(Arc::new(pool.expect("the system can start a thread")));
        }
        Self::Apart(threads.max(1))
    }

    /// Microbatches or conversations' batches worked on at once.
    pub fn workers(&self) -> usize {
        match self {
            Self::Apart(threads) => *threads,
            Self::Together(_) => 1,
        }
    }

    /// Does `work` where its operations find the threads that share them.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match self {
            Self::Apart(_) => work(),
            Self::Together(pool) => pool.install(work),
        }
    }
}
