//! Runs a plan: takes from the store what is there, works what is not, and can be stopped at any moment.
//!
//! Only the store says what is finished. The run's own folder (`runs/<id>/`) holds what a person or `resume` needs: the
//! run file as it was, a journal, and links to the artifacts. The journal says what the run came to, for a stage may be
//! worked anew later, and then the store has another result under its key. Killed at any moment, a run loses at most the rows its
//! stages had in hand; [`RunFolder::open`] and [`run`] go on from there.
//!
//! After a failure nothing new is begun, unless the run keeps going: then a stage that fails stops what depends on it and
//! nothing else.

mod error;
pub mod folder;
pub mod history;
mod interrupt;
mod journal;
mod notes;
mod rows;
mod runner;
mod schedule;
mod slots;
mod standing;
mod upload;
mod work_dir;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

pub use error::ExecError;
pub use folder::{RunFolder, RunSpec};
pub use journal::{Entry, RunState, TimedEntry};
pub use schedule::run;
pub use standing::{Standing, standing};
pub use upload::hand_on_alone;

use crate::{
    error::Failure,
    plan::{Plan, Problem, RerunReason, Resample},
    progress::Observer,
    store::{Cost, FileDigests, Holder, Store, Traffic},
};

/// What is needed to run a plan.
pub struct Request {
    pub plan: Plan,
    pub store: Store,
    pub files: FileDigests,
    pub folder: RunFolder,
    /// Stages to draw anew, as [`Plan::resampled`] checked them.
    pub resample: Vec<Resample>,
    /// Whether a failure leaves the stages alone that do not depend on it.
    pub keep_going: bool,
    pub listener: Arc<dyn Listener>,
    pub cancel: CancellationToken,
}

/// Something that happened in a run.
#[derive(Debug)]
pub enum Event<'a> {
    Cached {
        id: &'a str,
        metrics: &'a BTreeMap<String, f64>,
        /// What the stage noted when it was run.
        notes: &'a [String],
    },
    Started {
        id: &'a str,
        reasons: &'a [RerunReason],
    },
    /// Another run works on the same stage.
    Waiting {
        id: &'a str,
        run: &'a str,
        holder: &'a Holder,
    },
    Finished {
        id: &'a str,
        cost: &'a Cost,
        metrics: &'a BTreeMap<String, f64>,
        notes: &'a [String],
    },
    /// The outside world failed; the stage is tried again after this time.
    Retrying {
        id: &'a str,
        failure: &'a Failure,
        wait: Duration,
    },
    /// Nobody answered who was to be asked anew; the last answer is taken.
    Unanswered {
        id: &'a str,
        failure: &'a Failure,
    },
    /// The loop had reached its goal.
    Skipped {
        id: &'a str,
    },
    Failed {
        id: &'a str,
        failure: &'a Failure,
    },
    /// The stage wrote other bytes than another run did under the same key; the first ones stand.
    Differs {
        id: &'a str,
        outputs: &'a [String],
    },
    /// A result in the shared cache can not be used, or the shared cache itself; the stage goes on without.
    Remote {
        id: &'a str,
        problem: &'a str,
    },
    /// What a person should know of a stage before it is worked.
    Noted {
        note: &'a Problem,
    },
    /// What a stage at work has a person know of its result.
    StageNoted {
        id: &'a str,
        text: &'a str,
    },
    /// A line that a stage's program printed.
    Printed {
        id: &'a str,
        line: &'a str,
    },
    /// A stop was asked for; stages are ending.
    Stopping,
}

/// Hears what happens.
pub trait Listener: Send + Sync {
    fn event(&self, event: &Event<'_>);
    /// Who listens to how far one stage's work is; its notes and what its program prints are events.
    fn observer(&self, id: &str) -> Arc<dyn Observer>;
}

/// What became of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Cached,
    Ran,
    Skipped,
    Failed,
    /// Not begun: something failed, or the run was stopped.
    Open,
}

/// What a run came to.
#[derive(Debug)]
pub struct Summary {
    /// In the plan's order.
    pub nodes: Vec<(String, Ended)>,
    pub failures: Vec<Failure>,
    /// Stages that were not begun because of failed ones, and these.
    pub blocked: Vec<(String, Vec<String>)>,
    pub interrupted: bool,
    /// Of all stages this run worked, also those that failed or were stopped.
    pub spent: Cost,
    /// What the stages taken from the store cost when they were worked.
    pub saved: Cost,
    /// With the shared cache, where there is one.
    pub traffic: Option<Traffic>,
}

impl Summary {
    pub fn count(&self, which: impl Fn(&Ended) -> bool) -> usize {
        self.nodes.iter().filter(|(_, ended)| which(ended)).count()
    }
}
