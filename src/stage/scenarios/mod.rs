//! The `scenarios` stage: training tasks and held-out tasks.
//!
//! [`tasks`](crate::tasks) makes them; here are the parameters, and what each source needs of the stage. A policy's tries can refuse
//! training tasks ([`tries`]), and attempts can vote on answers ([`votes`]). No task is in both outputs.

mod error;
mod metrics;
pub(super) mod params;
mod preflight;
mod sources;
pub(in crate::stage) mod tries;
pub(in crate::stage) mod votes;

#[cfg(test)]
mod source_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tries_tests;

use serde_json::{Map, Value};

use self::{
    params::{Params, TaskSource},
    tries::{Tries, TryResults},
    votes::Votes,
};
use super::{
    Context, Metrics, StageError, StageKind,
    kind::{Requirement, StageFuture},
    local_model,
    memory::Load,
    preflight::{ExpectedOutput, ExpectedOutputs, ExpectedScenarios, Preflight, PreflightContext},
    typed,
};
use crate::{
    agent::AgentSettings,
    data::{Facts, Scenario, Tool},
    engine::Footprint,
    error::Result,
    mcp::Servers,
    tasks::{checked, explored, file, split},
};

/// Fewer tasks in a split than this are reported as few.
const FEW: usize = 20;

pub struct Scenarios {
    params: Params,
    tries: Tries,
    votes: Votes,
    /// Given with a policy that tries tasks or votes on answers, or an endpoint that does.
    agent: Option<AgentSettings>,
}

impl Scenarios {
    pub fn parse(params: &Map<String, Value>) -> Result<Self, StageError> {
        let agent = if params.contains_key("max_turns") { Some(typed(params)?) } else { None };
        Ok(Self { params: Params::parse(params)?, tries: typed(params)?, votes: typed(params)?, agent })
    }

    async fn make(&self, context: &Context) -> Result<Metrics> {
        let Self { params, tries, votes, agent } = self;
        params.complete(local_model::is_given(context))?;
        tries.check()?;
        let others: Vec<Scenario> = context.read_optional("held_out")?.unwrap_or_default();
        let mut held_out = Facts::of_exam(&others);
        let mut made = sources::make(context, params, &held_out).await?;
        split::check_frozen(&made.train, &made.heldout, params.heldout_digest.as_deref())?;
        let digest = split::digest(&made.heldout);
        if !made.heldout.is_empty() {
            let count = made.heldout.len();
            context.observer.note(&format!("held-out set: {count} tasks, heldout_digest = \"{digest}\""));
        }
        let mut voted = Metrics::new();
        if let Some(agent) = agent.as_ref().filter(|_| votes.has_voter(context.has(votes::ROLE))) {
            let play = tries.settings(agent.clone());
            voted = votes.label(context, play, &mut made.train, &mut made.admission).await?;
        }
        let tried = match agent.as_ref().filter(|_| context.has(tries::ROLE)) {
            Some(agent) => {
                let play = tries.settings(agent.clone());
                tries.select(context, play, &mut made.train, &mut made.admission).await?
            }
            None => TryResults::default(),
        };
        let before = made.train.len();
        let mut dev = split::dev(&mut made.train, &mut made.admission, params.dev, context.seed);
        let left_out = before - made.train.len() - dev.len();
        if left_out > 0 {
            context
                .observer
                .note(&format!("left out of training, because tasks of `dev` ask the same: {left_out}"));
        }
        let mut start: Vec<Scenario> =
            made.train.iter().filter(|task| task.reference.is_some()).cloned().collect();
        held_out.extend(Facts::of_exam(&made.heldout));
        held_out.extend(Facts::of(&dev));
        let guide = match made.guide.take() {
            Some(guide) => guide,
            None => {
                let added = sources::add_lessons(context, params, &mut start, &made.train, &held_out).await?;
                added.unwrap_or_default()
            }
        };
        let guide = guide.text(&[made.heldout.as_slice(), &dev, &others].concat());
        split::mark(&mut start, &mut made.train, &mut dev, &mut made.heldout);
        context.write("start", &start)?;
        context.write("train", &made.train)?;
        context.write("dev", &dev)?;
        context.write("heldout", &made.heldout)?;
        context.write("admission", &made.admission)?;
        context.write("pass_rates", &tried.rates)?;
        let path = context.output("guide", "guide")?;
        std::fs::write(&path, guide).map_err(|source| StageError::Write { path, source })?;
        let mut metrics = metrics::metrics(&made);
        metrics.insert("start".into(), start.len() as f64);
        metrics.insert("dev".into(), dev.len() as f64);
        metrics.extend(voted);
        metrics.extend(tried.metrics);
        Ok(metrics)
    }

    fn requirements(&self, expected: &ExpectedOutputs) -> Vec<Requirement> {
        let count = |port| {
            let expected = expected.get(port).and_then(ExpectedOutput::scenarios);
            expected.map(ExpectedScenarios::count)
        };
        let Params { source, families, file, traces, .. } = &self.params;
        let path = match source {
            TaskSource::File => file,
            TaskSource::Grounded => families,
            TaskSource::Traces => traces,
            TaskSource::Explored | TaskSource::Llm | TaskSource::Mix => &None,
        };
        let Some(path) = path.as_deref().map(std::path::Path::display) else { return Vec::new() };
        let Some(heldout) = count("heldout") else {
            let part = if matches!(source, TaskSource::File) { ", as far as it was checked" } else { "" };
            return vec![Requirement::Met(format!("{path} can be read{part}"))];
        };
        let start = count("start").filter(|start| *start > 0);
        let start = start.map_or_else(String::new, |start| format!(", {start} of them with solutions"));
        let text = match count("train") {
            Some(train) => format!("{path}: {train} to train on{start}, {heldout} held out"),
            None => format!("{path}: {heldout} held out; exploration makes those to train on"),
        };
        if count("train").unwrap_or(heldout).min(heldout) >= FEW {
            return vec![Requirement::Met(text)];
        }
        let hint = format!(
            "that is few: a gain is measurable where at least 6 held-out tasks come out better and none worse; {FEW} or \
             more of each are a start (`heldout_share` says how many are held out)"
        );
        vec![Requirement::Doubtful { text, hint }]
    }
}

impl StageKind for Scenarios {
    fn run<'a>(&'a self, context: &'a Context) -> StageFuture<'a, Result<Metrics>> {
        Box::pin(self.make(context))
    }

    fn preflight(&self, context: &PreflightContext<'_>) -> Preflight {
        preflight::preflight(&self.params, (&self.tries, &self.votes), self.agent.as_ref(), context)
    }

    fn requirements<'a>(&'a self, expected: &'a ExpectedOutputs) -> StageFuture<'a, Vec<Requirement>> {
        Box::pin(async { self.requirements(expected) })
    }

    fn about_tools(&self, listed: &[Tool], servers: &Servers) -> Vec<Requirement> {
        let Params { values, explore_writes, file, .. } = &self.params;
        let mut found = Vec::new();
        if let Some(path) = file.as_ref().filter(|_| self.params.uses(TaskSource::File))
            && let Ok((train, heldout)) = file::load(path, self.params.hold_out(0))
        {
            let all: Vec<&Scenario> = train.iter().chain(&heldout).collect();
            let wrong = checked::check(&file::name(path), &all, listed).err();
            found.extend(wrong.map(|cause| Requirement::Missing(cause.into())));
        }
        if !self.explores() {
            return found;
        }
        let wrong = values.check(listed).and_then(|()| explore_writes.check(listed));
        if let Err(cause) = wrong {
            found.push(Requirement::Missing(cause.into()));
            return found;
        }
        let writing = explored::writing(listed, servers, explore_writes);
        if !writing.is_empty() {
            let tools = if writing.len() == 1 { "tool" } else { "tools" };
            let names = writing.join(", ");
            found.push(Requirement::Met(format!(
                "exploration takes at most {} s and calls {} {tools} that may write, each time in a session of its own: {names}",
                self.params.explore_seconds,
                writing.len()
            )));
        }
        for (text, hint) in explored::left_out(listed, servers, explore_writes) {
            found.push(Requirement::Doubtful { text, hint });
        }
        let unlisted = values.unlisted(&mut explored::profiles(listed, servers, explore_writes));
        if unlisted.is_empty() {
            return found;
        }
        let names: Vec<String> = unlisted.iter().map(|name| format!("`{name}`")).collect();
        let text = format!("no tool lists values for {}", names.join(", "));
        let values: Vec<String> = unlisted.iter().map(|name| format!("{name} = [\"…\"]")).collect();
        let hint = format!("about twenty examples make tasks possible: values = {{ {} }}", values.join(", "));
        found.push(Requirement::Doubtful { text, hint });
        found
    }

    fn explores(&self) -> bool {
        self.params.uses(TaskSource::Explored)
            || self.params.uses(TaskSource::Llm)
            || self.params.lessons() > 0
    }

    fn memory(&self, load: &Load<'_>) -> Option<Footprint> {
        // One after the other.
        let local = load.policies(local_model::ROLE).next().filter(|_| self.params.asks());
        let local = local.map(|model| self.params.local().footprint(load, model));
        let tries = load.policies(tries::ROLE).next().filter(|_| self.tries.tries > 0);
        let tries = tries
            .zip(self.agent.clone())
            .map(|(policy, agent)| self.tries.settings(agent).footprint(load, policy, usize::MAX));
        let votes = load.policies(votes::ROLE).next().zip(self.agent.clone());
        let votes =
            votes.map(|(policy, agent)| self.tries.settings(agent).footprint(load, policy, usize::MAX));
        local.into_iter().chain(tries).chain(votes).max_by_key(Footprint::total)
    }

    fn shares_model(&self, role: &str) -> bool {
        match role {
            local_model::ROLE => self.params.asks(),
            tries::ROLE => self.tries.tries > 0,
            votes::ROLE => true,
            _ => false,
        }
    }
}
