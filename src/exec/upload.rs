//! Uploads results that earlier runs could not send to the shared cache.

use crate::{
    plan::Plan,
    store::{QueueScope, Remote, Store, Traffic},
};

use super::runner::Runner;

/// At the end of a run: uploads what is queued, unless the run is stopped. Errors are reported and do not end
/// the run.
pub fn push_rest(runner: &Runner) {
    let Some(remote) = &runner.remote else { return };
    let report = remote.push_queued(&runner.store, QueueScope::Due, &|| runner.cancel.is_cancelled());
    if let Some(cause) = report.away {
        runner.remote_away(&cause);
    }
}

/// For a run with nothing to do: uploads what is queued, unless the remote was unreachable a short while ago.
pub fn push_queued(plan: &Plan, store: &Store) -> Option<Traffic> {
    let remote = plan.remote.clone().map(Remote::new)?;
    if remote.is_due(store) {
        remote.push_queued(store, QueueScope::Due, &|| false);
    }
    let traffic = remote.traffic_and_queue(store);
    (traffic != Traffic::default()).then_some(traffic)
}
