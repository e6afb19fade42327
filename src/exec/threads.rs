//! The threads that stages run on.

use tokio::{runtime::Runtime, task::JoinError};

use super::ExecError;
use crate::engine::EngineSpec;

/// Stages may compute on the thread they run on, so this usually exceeds the number of concurrent stages.
const THREADS: usize = 6;

/// Threads for stages that compute on these devices.
///
/// # Errors
/// If they cannot be started.
pub fn threads(engine: &EngineSpec) -> Result<Runtime, ExecError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS.max(engine.devices.len() + 2))
        .enable_all()
        .build()
        .map_err(ExecError::Threads)
}

/// What a stage's thread said when it panicked.
pub fn panic_message(cause: JoinError) -> String {
    let Ok(payload) = cause.try_into_panic() else { return "it was stopped".into() };
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}
