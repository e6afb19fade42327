//! `source = "explored"`: tasks about a server that nothing is known of, without a language model.
//!
//! Calls the server's safe tools with values from their schemas, and then with values that results brought, in rounds.
//! From what it saw it composes chains of calls with a question about the last result. [`super::admission`] executes each
//! chain again before it counts.
//!
//! The same seed and the same state of the server give the same tasks: the order in which answers arrive decides nothing.

mod asking;
mod asks;
mod beyond;
mod chains;
mod changes;
mod changing;
mod examples;
mod exploration;
mod graph;
mod guide;
mod orders;
mod pages;
mod phrases;
mod questions;
mod seeds;
mod selection;
mod small;
mod sql;
mod statements;
mod templates;
mod things;
mod tools;
mod trials;
mod watch;
mod wording;

#[cfg(test)]
mod server_tests;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio_util::sync::CancellationToken;

pub use self::examples::Examples;
pub use self::exploration::{Sampled, sample};
pub use self::guide::Guide;
pub use self::tools::{ExploreWrites, left_out, only_reads, profiles, reads_by_name, writing};
use self::{orders::Orders, selection::share_of};
use super::{admission, live::Live, refusals::Judged, runner::Runner};
use crate::{
    data::{Facts, Tool},
    error::Result,
    mcp::Servers,
    progress::Observer,
};

/// Orders that are tried at a time.
const PORTION: usize = 16;
/// Bounds of exploration.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Most calls before chains are composed.
    pub calls: usize,
    /// Most seconds in all.
    pub seconds: u64,
    /// Most tasks.
    pub tasks: usize,
    pub per_family: usize,
    /// Shares of the tasks: of those that ask for what does not exist, and of those that need no call.
    pub impossible_share: f64,
    pub no_call_share: f64,
    /// Characters of a result that an agent sees.
    pub result_chars: usize,
}

/// What ended exploration before all was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    Calls,
    Seconds,
}

impl Limit {
    /// The parameter that raises it.
    pub fn param(self) -> &'static str {
        match self {
            Self::Calls => "explore_calls",
            Self::Seconds => "explore_seconds",
        }
    }
}

/// The tasks, and how much of the server they use.
#[derive(Debug, Default)]
pub struct Explored {
    pub judged: Judged,
    pub coverage: Coverage,
    pub guide: Guide,
    /// Calls made.
    pub calls: usize,
}

/// Tools and parameters in admitted reference calls, of those that are not declared destructive.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    pub tools: usize,
    pub covered_tools: usize,
    pub params: usize,
    pub covered_params: usize,
    pub uncovered: Vec<String>,
}

impl Coverage {
    pub fn of(tools: &[Tool], judged: &Judged) -> Self {
        let calls = || judged.admitted.iter().flat_map(|admitted| &admitted.candidate.calls);
        let mut coverage = Self::default();
        for tool in tools.iter().filter(|tool| !tool.synthetic && !tools::is_destructive(tool)) {
            let schema: Value = serde_json::from_str(&tool.input_schema).unwrap_or_default();
            let params: Vec<String> = seeds::params(&schema).into_iter().map(|param| param.name).collect();
            let own = || calls().filter(|call| call.name == tool.name);
            coverage.tools += 1;
            coverage.params += params.len();
            coverage.covered_params +=
                params.iter().filter(|param| own().any(|call| call.arguments.contains_key(*param))).count();
            if own().next().is_some() {
                coverage.covered_tools += 1;
            } else {
                coverage.uncovered.push(tool.name.clone());
            }
        }
        coverage
    }
}

/// What a stage gives to exploration.
pub struct ExploreInputs<'a> {
    pub servers: &'a Servers,
    pub tools: &'a [Tool],
    /// Values that the user gives.
    pub examples: &'a Examples,
    /// The tools that may write where a session may leave something behind.
    pub writes: &'a ExploreWrites,
    /// What no task may ask.
    pub held_out: Option<&'a Facts>,
    pub seed: u64,
    pub budget: Budget,
    pub observer: &'a dyn Observer,
    pub cancel: &'a CancellationToken,
}

/// Explores the servers and admits tasks about them.
///
/// # Errors
/// If no server can be reached, the stage is cancelled, or too many calls are lost.
pub async fn explore(task: &ExploreInputs<'_>) -> Result<Explored> {
    let [first, second] = [(); 2].map(|()| Live::new(task.servers, task.tools));
    let explored = explore_with(task, [&first, &second]).await;
    first.close().await;
    second.close().await;
    explored
}

async fn explore_with(task: &ExploreInputs<'_>, live: [&Live; 2]) -> Result<Explored> {
    let runners = task.runners(live);
    let mut sampled = sample(task, &runners[0]).await?;
    let candidates = selection::candidates(task, &sampled);
    let names = task.tool_names();
    // Orders come last, and a third of the time that is left is theirs.
    let end = runners[0].deadline();
    if !task.servers.is_read_only() && sampled.profiles.iter().any(|profile| !changes::reads(profile)) {
        let left = end.saturating_duration_since(Instant::now());
        runners.iter().for_each(|runner| runner.set_deadline(end - left / 3));
    }
    let mut judged = admission::admit(candidates, &names, &sampled.breaking, &runners).await?;
    sampled.refuse_changes(&mut judged, runners[0].live, task.observer).await?;
    if runners.iter().any(Runner::is_late) {
        task.observer.note("the time of explore_seconds was over before all was tried");
    }
    runners.iter().for_each(|runner| runner.set_deadline(end));
    if let Some(held_out) = task.held_out {
        judged.hold_out(held_out);
    }
    selection::trim(&mut judged, task.budget);
    let orders = ordered(task, &sampled, &names, &runners, judged.admitted.len()).await?;
    let limit = sampled.limit.or_else(|| runners.iter().any(Runner::is_late).then_some(Limit::Seconds));
    judged.limit = limit.map(Limit::param);
    judged.trim(task.budget.tasks - orders.admitted.len());
    judged.admitted.extend(orders.admitted);
    judged.rows.extend(orders.rows);
    judged.share_answers();
    let coverage = Coverage::of(task.tools, &judged);
    if !coverage.uncovered.is_empty() {
        task.observer.note(&format!("no task uses {}", coverage.uncovered.join(", ")));
    }
    let (guide, calls) = (sampled.guide(), runners.iter().map(Runner::calls).sum());
    Ok(Explored { judged, coverage, guide, calls })
}

/// Tasks that change something: at most a third, beside so many others.
async fn ordered(
    task: &ExploreInputs<'_>,
    sampled: &Sampled,
    names: &BTreeSet<String>,
    runners: &[Runner<'_>; 2],
    others: usize,
) -> Result<Judged> {
    if task.servers.is_read_only() || runners[0].is_late() {
        return Ok(Judged::default());
    }
    let Sampled { graph, profiles, .. } = sampled;
    let most = (others / 2).min(share_of(task.budget.tasks, 1.0 / 3.0));
    let mut orders = Orders::new(graph, profiles, task.seed, task.budget.result_chars);
    let mut judged = Judged::default();
    // Each portion is tried out and proven to be repeatable before the next one: the time may end at any of them.
    while judged.admitted.len() < most && !orders.is_done() && !runners[0].is_late() {
        let candidates = orders.next(PORTION, runners).await?;
        let portion = admission::admit(candidates, names, &sampled.breaking, runners).await?;
        judged.admitted.extend(portion.admitted);
        judged.rows.extend(portion.rows);
    }
    if judged.admitted.len() < most && runners.iter().any(Runner::is_late) {
        let of = format!("{} of {most}", judged.admitted.len());
        task.observer.note(&format!(
            "there was time for {of} orders: raise explore_seconds for more tasks that change something"
        ));
    }
    if let Some(held_out) = task.held_out {
        judged.hold_out(held_out);
    }
    judged.trim(most);
    Ok(judged)
}

impl ExploreInputs<'_> {
    /// Runners for the two executions of a chain. Tools that probably read share sessions.
    pub fn runners<'r>(&'r self, [first, second]: [&'r Live; 2]) -> [Runner<'r>; 2] {
        [self.explorer(first), self.explorer(second)]
    }

    /// One of the runners.
    pub fn explorer<'r>(&'r self, live: &'r Live) -> Runner<'r> {
        let deadline = Instant::now() + Duration::from_secs(self.budget.seconds);
        let profiles = profiles(self.tools, self.servers, self.writes);
        let readers = profiles
            .iter()
            .filter(|profile| changes::reads(profile))
            .map(|profile| profile.name.clone())
            .collect();
        Runner::new(live, readers, (deadline, self.budget.result_chars), self.observer, self.cancel)
    }

    pub fn tool_names(&self) -> BTreeSet<String> {
        let names = self.tools.iter().filter(|tool| !tool.synthetic);
        names.flat_map(|tool| [tool.name.clone(), tool.server_name.clone()]).collect()
    }
}

/// Agent's names of the tools that are safe to call.
pub fn callable(tools: &[Tool], servers: &Servers, writes: &ExploreWrites) -> BTreeSet<String> {
    profiles(tools, servers, writes).into_iter().map(|profile| profile.name).collect()
}
