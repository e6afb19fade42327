//! Experiment trackers: TensorBoard and others get a run's curves, settings and texts.
//!
//! Every sink is a function of the run's [`Log`], so tracking a run while it goes on, resuming it and sending an old
//! one are the same code: a sink is given the whole log, and writes or sends what is not there yet. A run never waits
//! for a tracker and never fails because of one. Nothing here prints, and no message has a credential.

mod crc;
mod error;
mod file;
mod live;
mod log;
mod proto;
mod tensorboard;
mod trackio;
mod wandb;

#[cfg(test)]
mod tests;

use std::time::Duration;

pub use error::TrackError;
pub use live::Live;
pub use log::{Log, LogReader};

use tensorboard::TensorBoard;
use trackio::Trackio;
use wandb::Wandb;

use crate::{
    plan::{TrackSpec, absolute},
    store::{FileLock, Store},
};

/// A tracker that can be brought up to date.
pub trait Sink: Send {
    /// The tracker's name in the run file.
    fn name(&self) -> &'static str;

    /// Where to look at the run: a path or a URL.
    fn location(&self) -> String;

    /// Checks that what the tracker needs is there, without sending anything of a run.
    ///
    /// # Errors
    /// If a program is missing.
    fn check(&mut self) -> Result<(), TrackError> {
        Ok(())
    }

    /// Writes or sends what the tracker does not have yet.
    ///
    /// # Errors
    /// If some of it is missing afterwards. The next update tries again.
    fn update(&mut self, log: &Log) -> Result<(), TrackError>;
}

/// The trackers of a run: those that write files first, since they do not wait for others. `patience`: how long the
/// last update may take.
pub fn sinks(spec: &TrackSpec, store: &Store, run: &str, patience: Duration) -> Vec<Box<dyn Sink>> {
    let folder = absolute(&store.runs().join(run));
    let TrackSpec { tensorboard, wandb, trackio, examples: _ } = spec;
    let all: [Option<Box<dyn Sink>>; 3] = [
        tensorboard.as_ref().map(|spec| Box::new(TensorBoard::new(spec, &folder, run)) as _),
        trackio.as_ref().map(|spec| Box::new(Trackio::new(spec)) as _),
        wandb.as_ref().map(|spec| Box::new(Wandb::new(spec, &folder, patience)) as _),
    ];
    all.into_iter().flatten().collect()
}

/// Brings trackers up to date, one after another, after other processes that do so. Returns the problem of each.
pub fn update(
    sinks: &mut [Box<dyn Sink>],
    reader: &mut LogReader,
) -> crate::error::Result<Vec<Option<TrackError>>> {
    let _lock = FileLock::take(&reader.folder(), "track");
    let log = reader.read()?;
    Ok(sinks.iter_mut().map(|sink| sink.update(&log).err()).collect())
}
