//! How threads share the engine's work.

use std::sync::Arc;

use super::memory::held;
use crate::model::{Decoder, ModelConfig, kernels::Format};

/// Weights beyond this many bytes leave the caches, so that each thread reading them anew would cost more than sharing
/// every operation.
const LARGE: usize = 32 << 20;

/// Whether threads work together on this decoder's operations, where there are several; so it is on a device.
pub fn is_large(decoder: &Decoder) -> bool {
    !decoder.by_kernels() || decoder.bytes() > LARGE
}

/// [`is_large`] of a decoder of this shape on the CPU, its weights frozen in this format.
pub fn is_large_shape(config: &ModelConfig, format: Format) -> bool {
    held(config, format) > LARGE
}

/// What [`Crew::new`] makes of a CPU's threads where weights take this many bytes.
pub struct Shares {
    /// Microbatches or conversations' batches worked on at once.
    pub workers: usize,
    /// Threads of one operation.
    pub threads: usize,
}

pub fn shares(bytes: usize, threads: usize) -> Shares {
    let threads = threads.max(1);
    match bytes > LARGE {
        true => Shares { workers: 1, threads },
        false => Shares { workers: threads, threads: 1 },
    }
}

/// The threads of a device, and what each of them works on.
#[derive(Clone)]
pub enum Crew {
    /// Each on microbatches or conversations of its own: for a model that fits the caches.
    Apart(usize),
    /// All on the same operation.
    Together(Arc<rayon::ThreadPool>),
}

impl Crew {
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
