//! Uploads results that earlier runs could not send to the shared cache.

use crate::{
    error::Result,
    plan::Plan,
    store::{DrainReport, Remote, Store, Traffic},
};

use super::runner::Runner;

/// At the end of a run: uploads what is queued, unless the run is stopped. Errors are reported and do not end
/// the run.
pub fn push_rest(runner: &Runner) {
    let Some(remote) = &runner.remote else { return };
    match remote.push_queued(&runner.store, &|| runner.cancel.is_cancelled()) {
        Ok(DrainReport { away: None, .. }) => {}
        Ok(DrainReport { away: Some(cause), .. }) | Err(cause) => runner.remote_away(&cause),
    }
}

/// For a run with nothing to do: uploads what is queued, unless the remote was unreachable a short while ago.
pub fn push_queued(plan: &Plan, store: &Store) -> Result<Option<Traffic>> {
    let Some(remote) = plan.remote.clone().map(Remote::new) else { return Ok(None) };
    if remote.is_due(store) {
        remote.push_queued(store, &|| false)?;
    }
    let traffic = remote.traffic_and_queue(store);
    Ok((traffic != Traffic::default()).then_some(traffic))
}
