//! Runs a plan: takes finished stages from the store and runs the others. It can be stopped at any moment.
//!
//! Only the store decides which stages are finished. The run's folder (`runs/<id>/`) holds what a person or
//! `resume` needs: a copy of the run file, a journal, and links to the artifacts. The journal also records
//! the run's results, because a later rerun of a stage replaces the result under its key. A killed run loses
//! at most the rows that its stages were working on; [`RunFolder::open`] and [`run`] continue it.
//!
//! After a failure no new stage starts. With `keep_going`, only the stages that depend on the failed one are
//! blocked.

mod error;
mod event;
pub mod folder;
mod held_out;
pub mod history;
mod idle;
mod interrupt;
pub mod jobs;
mod journal;
pub mod labels;
mod notes;
pub mod progress_file;
pub mod review;
mod rows;
mod runner;
mod schedule;
mod server_data;
mod slots;
mod task;
mod threads;
mod up_to_date;
mod upload;
mod work_dir;

use std::sync::Arc;

use serde::Serialize;
use tokio_util::sync::CancellationToken;

pub use error::ExecError;
pub use event::{Event, RunState};
pub use folder::{RunFolder, RunSpec};
pub use idle::IdleLoop;
pub use interrupt::{INTERRUPTED, Signals, kill_children};
pub use jobs::script::Program;
pub use journal::TimedEvent;
pub use rows::StageRows;
pub use schedule::run;
pub use up_to_date::up_to_date;
pub use upload::push_queued;

use crate::{
    error::Failure,
    plan::{LoopResult, Plan, Resample},
    progress::Observer,
    store::{Cost, FileDigests, Store, Traffic},
};

/// The input of a run.
pub struct Request {
    pub plan: Plan,
    pub store: Store,
    pub files: FileDigests,
    pub folder: RunFolder,
    /// Stages to resample, as checked by [`Plan::resampled`].
    pub resample: Vec<Resample>,
    /// Whether stages that do not depend on a failed one still run.
    pub keep_going: bool,
    pub listener: Arc<dyn Listener>,
    /// How a job starts this program; without it, stages with an executor of `[executors]` run in this process.
    pub program: Option<Program>,
    /// Stops the run, e.g. on a signal ([`Signals`]).
    pub cancel: CancellationToken,
}

/// Receives the events of a run.
pub trait Listener: Send + Sync {
    fn event(&self, event: &Event);
    /// The observer of one stage's progress. Its notes and its programs' output are events.
    fn observer(&self, id: &str) -> Arc<dyn Observer>;
}

/// The outcome of a stage in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum StageOutcome {
    Ran,
    /// Taken from the store.
    Cached,
    Skipped,
    Failed,
    /// Not started, or not finished: something failed, or the run was stopped.
    #[default]
    Unfinished,
}

impl StageOutcome {
    pub const ALL: [Self; 5] = [Self::Ran, Self::Cached, Self::Skipped, Self::Failed, Self::Unfinished];

    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The outcome of a run.
#[derive(Debug, Default)]
pub struct Summary {
    /// In plan order.
    pub nodes: Vec<(String, StageOutcome)>,
    pub failures: Vec<Failure>,
    /// Stages not started because others failed, and those others.
    pub blocked: Vec<(String, Vec<String>)>,
    pub interrupted: bool,
    /// Cost of all stages that this run ran, including those that failed or were stopped.
    pub spent: Cost,
    /// Recorded cost of the stages taken from the store.
    pub saved: Cost,
    /// Traffic with the shared cache, if there is one.
    pub traffic: Option<Traffic>,
    /// Loops that ended because nothing could be learned.
    pub idle: Vec<IdleLoop>,
    /// Loops whose result is not that of their last iteration.
    pub loop_results: Vec<LoopResult>,
}

impl Summary {
    /// Whether a loop learned nothing although there was something to learn.
    pub fn is_stuck(&self) -> bool {
        self.idle.iter().any(|idle| !idle.is_solved)
    }

    pub fn count(&self, outcome: StageOutcome) -> usize {
        self.nodes.iter().filter(|(_, found)| *found == outcome).count()
    }
}
