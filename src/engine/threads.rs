//! How threads share the engine's work.

use std::sync::Arc;

use super::memory::held;
use crate::model::{Decoder, ModelConfig, kernels::Format};

/// Weights beyond this many bytes do not stay in the CPU caches. Rereading them in each thread then costs
/// more than sharing every operation.
const LARGE: usize = 32 << 20;

/// Shares of a step for models whose threads work separately. A constant, so that bits do not depend on the
/// machine.
const SHARES: usize = 4;

/// Whether several threads share each operation of this decoder.
fn is_large(decoder: &Decoder) -> bool {
    decoder.bytes() > LARGE
}

/// The minimum number of shares of a step over this decoder, as far as it can be split. On the CPU it does
/// not depend on the number of devices, so neither do the bits. Elsewhere each device has one share.
pub fn shares(decoder: &Decoder, devices: usize) -> usize {
    match (decoder.by_kernels(), is_large(decoder)) {
        (false, _) => devices,
        (true, true) => 1,
        (true, false) => SHARES,
    }
}

/// [`shares`] on the CPU for a decoder of this shape with weights frozen in this format.
pub fn shares_of_shape(config: &ModelConfig, format: Format) -> usize {
    if held(config, format) > LARGE { 1 } else { SHARES }
}

/// How [`ThreadPlan::new`] splits the CPU's threads.
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
    Apart(usize),
    /// All share each operation.
    Together(Arc<rayon::ThreadPool>),
}

impl ThreadPlan {
    pub fn new(decoder: &Decoder, threads: usize) -> Self {
        if !decoder.by_kernels() {
            // One thread issues the operations of a device.
            return Self::Apart(1);
        }
        if threads > 1 && is_large(decoder) {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
            let pool = pool.thread_name(|index| format!("engine-{index}")).build();
            return Self::Together(Arc::new(pool.expect("the system can start a thread")));
        }
        Self::Apart(threads.max(1))
    }

    /// Microbatches or batches of conversations that run at once.
    pub fn workers(&self) -> usize {
        match self {
            Self::Apart(threads) => *threads,
            Self::Together(_) => 1,
        }
    }

    /// Runs `work` in the thread pool that its operations share.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match self {
            Self::Apart(_) => work(),
            Self::Together(pool) => pool.install(work),
        }
    }
}
