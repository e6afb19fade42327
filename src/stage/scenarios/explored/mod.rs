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
mod examples;
mod graph;
mod guide;
mod orders;
mod pages;
mod phrases;
mod questions;
mod seeds;
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
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio_util::sync::CancellationToken;

pub use self::examples::Examples;
pub use self::guide::Guide;
pub use self::sql::is_person;
pub use self::tools::{ExploreWrites, left_out, only_reads, profiles, reads_by_name, writing};
use self::{
    graph::{Changing, Graph},
    orders::Orders,
    things::Things,
    tools::ToolProfile,
    watch::Watch,
};
use super::{
    admission::{self, Judged, looks_failed},
    candidate::{AnswerRule, Candidate, Check},
    grounded::evenly,
    live::Live,
    runner::Runner,
};
use crate::{
    chat::ToolCall,
    data::{Facts, Tool},
    error::Result,
    mcp::{Description, PLACEHOLDER, Servers, State, Transport},
    progress::Observer,
};

/// Rounds of exploration: each uses what the earlier ones found.
const ROUNDS: usize = 4;
/// Effects of a tool after which no more calls look for one.
const EFFECTS: usize = 3;
/// Patterns of errors that a note names.
const PATTERNS: usize = 4;
/// Largest share of tasks whose answer is that there are none.
const ZEROS: f64 = 0.04;
/// Candidates for each wanted task: some are refused.
const SPARE: f64 = 1.6;
/// Orders that are tried at a time.
const PORTION: usize = 16;
/// Smallest share of the tasks in words that fit any server, where there are some in people's own: about tables, or statements.
const GENERAL: f64 = 0.1;

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
pub struct Task<'a> {
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

/// What was sampled from a server.
pub struct Sampled {
    graph: Graph,
    profiles: Vec<ToolProfile>,
    /// Tools that changed the state of a read-only server.
    pub breaking: BTreeSet<String>,
    watch: Watch,
    limit: Option<Limit>,
}

/// Explores the servers and admits tasks about them.
///
/// # Errors
/// If no server can be reached, the stage is cancelled, or too many calls are lost.
pub async fn explore(task: &Task<'_>) -> Result<Explored> {
    let [first, second] = [(); 2].map(|()| Live::new(task.servers, task.tools));
    let explored = explore_with(task, [&first, &second]).await;
    first.close().await;
    second.close().await;
    explored
}

async fn explore_with(task: &Task<'_>, live: [&Live; 2]) -> Result<Explored> {
    let runners = task.runners(live);
    let mut sampled = sample(task, &runners[0]).await?;
    let Sampled { graph, profiles, .. } = &sampled;
    let mut own = sql::candidates(graph, profiles, task.seed);
    own.extend(statements::candidates(graph, profiles, task.seed));
    let things = Things::new(graph, profiles);
    let others = chains::candidates(graph, profiles, &things, task.seed);
    // Of what was found: a small server has few tasks.
    let found = task.budget.tasks.min(own.len() + others.len());
    let share = |share: f64| share_of(found, share);
    // First, because tasks beyond those that are wanted are left out at the end.
    let mut candidates =
        beyond::impossible(graph, profiles, &things, task.seed, share(task.budget.impossible_share));
    if !own.is_empty() || !others.is_empty() {
        let mut names: Vec<String> = profiles.iter().map(|profile| profile.name.clone()).collect();
        names.extend(sql::tables(graph));
        candidates.extend(beyond::without_calls(&names, task.seed, share(task.budget.no_call_share)));
    }
    let hops = |candidate: &Candidate| (candidate.family.matches(" > ").count(), String::new());
    // What lists and describes the tables is asked about itself, but is there for the queries.
    let general = (1.0 - own.len() as f64 / (task.budget.tasks as f64 * SPARE)).max(GENERAL);
    let own = chosen(own, sql::subject, task.budget, SPARE * (1.0 - general), task.seed);
    candidates.extend(interleaved(own, chosen(others, hops, task.budget, SPARE * general, task.seed)));
    for candidate in candidates.iter_mut().filter(|candidate| candidate.check != Check::Number) {
        let known = graph.alternatives(profiles, candidate);
        candidate.alternatives.extend(known);
    }
    let names = task.tool_names();
    // Orders come last, and a third of the time that is left is theirs.
    let end = runners[0].deadline();
    if !task.servers.is_read_only() && profiles.iter().any(|profile| !changes::reads(profile)) {
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
        judged.refuse_facts(held_out);
    }
    // Whoever guesses that there is none is right too often.
    let is_zero = |one: &admission::Admitted| {
        one.answer.as_deref() == Some("0") && !matches!(one.candidate.rule, AnswerRule::Field { .. })
    };
    let others = judged.admitted.iter().filter(|one| !is_zero(one)).count();
    judged.trim_those(is_zero, share_of(others.min(task.budget.tasks), ZEROS));
    judged.trim(task.budget.tasks);
    let of = |family: &str| {
        let prefix = format!("{family}: ");
        move |admitted: &admission::Admitted| admitted.candidate.family.starts_with(&prefix)
    };
    let found = judged.admitted.iter().filter(|one| !of(beyond::NO_CALL)(one)).count();
    judged.trim_those(of(beyond::NO_CALL), share_of(found, task.budget.no_call_share));
    judged.trim_those(of(beyond::IMPOSSIBLE), share_of(found, task.budget.impossible_share));
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
    task: &Task<'_>,
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
        judged.refuse_facts(held_out);
    }
    judged.trim(most);
    Ok(judged)
}

impl Task<'_> {
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

/// Calls the safe tools in rounds.
pub async fn sample(task: &Task<'_>, runner: &Runner<'_>) -> Result<Sampled> {
    let mut profiles = profiles(task.tools, task.servers, task.writes);
    for (what, way_out) in tools::left_out(task.tools, task.servers, task.writes) {
        let note = format!("{what}; {way_out}");
        task.observer.note(&note);
    }
    task.examples.apply(&mut profiles);
    let mut graph =
        Graph { given: given(task.servers, &runner.live.descriptions().await?), ..Graph::default() };
    graph.add_examples(&mut profiles);
    let mut watch = Watch::default();
    let mut breaking: BTreeSet<String> = BTreeSet::new();
    let watches = task.servers.is_read_only();
    let mut unmarked: BTreeSet<String> = BTreeSet::new();
    let mut tried = 0;
    // The rest of the time is for the tasks.
    let half = Instant::now() + Duration::from_secs(task.budget.seconds / 2);
    let mut limit = None;
    for round in 0..ROUNDS {
        let left = task.budget.calls.saturating_sub(tried);
        let most = left.div_ceil((ROUNDS - round) * profiles.len().max(1));
        if runner.is_late() || Instant::now() > half {
            limit = Some(Limit::Seconds);
        } else if left == 0 {
            limit = Some(Limit::Calls);
        }
        if limit.is_some() {
            break;
        }
        task.observer.phase("exploration", 0);
        // Tool by tool where each must show that it changes nothing. Elsewhere first those that read: their calls show what
        // the others change.
        let batches: Vec<Vec<usize>> = if watches {
            (0..profiles.len()).map(|tool| vec![tool]).collect()
        } else {
            let (reading, writing) = (0..profiles.len()).partition(|tool| changes::reads(&profiles[*tool]));
            vec![reading, writing]
        };
        for batch in batches {
            let mut trials = Vec::new();
            let is_writing = !watches && batch.iter().all(|tool| !changes::reads(&profiles[*tool]));
            if is_writing && round == 0 {
                watch.try_readers(&graph, &profiles, runner).await?;
                graph.changing = watch.changing().clone();
            }
            // What a tool is known to change is tried by orders.
            let is_known = |tool: usize| {
                graph.effects.iter().filter(|effect| graph.seen[effect.call].tool == tool).count() >= EFFECTS
            };
            let known: BTreeSet<usize> = batch.iter().copied().filter(|tool| is_known(*tool)).collect();
            let is_left_out = |tool: &usize| known.contains(tool) || breaking.contains(&profiles[*tool].name);
            for tool in batch.iter().filter(|tool| !is_left_out(tool)) {
                let made = trials::trials(&mut graph, &profiles[*tool], round, task.seed, most);
                trials.extend(made.into_iter().map(|trial| (*tool, trial)));
            }
            tried += trials.len();
            if is_writing {
                trials = screened(trials, &mut graph, &profiles, runner).await?;
                // Each costs a session, and a few show whether the tool changes anything.
                let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
                trials.retain(|(tool, _)| {
                    let count = counts.entry(*tool).or_default();
                    *count += 1;
                    *count <= EFFECTS
                });
            }
            let probes: Vec<Vec<usize>> = trials
                .iter()
                .map(|(tool, trial)| match watches {
                    true => Vec::new(),
                    false => changes::probes(&graph, &profiles, *tool, &trial.call),
                })
                .collect();
            let sequence = |((_, trial), probes): (&(usize, trials::Trial), &Vec<usize>)| {
                let probes = probes.iter().map(|probe| &graph.seen[*probe].call);
                std::iter::once(&trial.call).chain(probes).cloned().collect()
            };
            let sequences: Vec<Vec<ToolCall>> = trials.iter().zip(&probes).map(sequence).collect();
            let outcomes = runner.run(&sequences).await?;
            let mut worked = Vec::new();
            for (((tool, trial), probes), outcomes) in trials.into_iter().zip(probes).zip(outcomes) {
                let (outcome, after) = outcomes.split_at(outcomes.len().min(1));
                let unfailed = outcome.first().filter(|outcome| !outcome.is_error);
                if let Some(failed) = unfailed.filter(|outcome| looks_failed(&outcome.text)) {
                    let head = failed.text.trim_start().split([':', '\n']).next().unwrap_or_default();
                    unmarked.insert(format!("^{}", regex::escape(head.trim_end())));
                }
                let good = unfailed.filter(|outcome| !looks_failed(&outcome.text));
                graph.learn(&profiles[tool], &trial.args, good.is_some());
                if let Some(outcome) = good {
                    worked.push(trial.call.clone());
                    let effect = changes::effect(&graph, graph.seen.len(), &probes, after);
                    graph.effects.extend(effect);
                    graph.add(&profiles, tool, trial.call, trial.args, outcome.text.clone());
                }
            }
            let ([tool], true) = (&batch[..], watches) else { continue };
            if profiles[*tool].is_annotated || !watch.blames(*tool, &worked, runner.live).await {
                watch.add(*tool, worked, runner).await;
            } else {
                breaking.insert(profiles[*tool].name.clone());
            }
        }
        task.observer.status(&format!(
            "{} calls worked, {} values, {} edges",
            graph.seen.len(),
            graph.known.len(),
            graph.working_edges()
        ));
    }
    if !unmarked.is_empty() {
        task.observer.note(&format!(
            "the server reports errors as ordinary results; with these under [server], they count as errors: \
             error_patterns = {:?}",
            unmarked.iter().take(PATTERNS).collect::<Vec<_>>()
        ));
    }
    if watches {
        watch.refresh(runner.live).await;
    } else {
        watch.try_readers(&graph, &profiles, runner).await?;
    }
    breaking = watch.blamed(&profiles);
    for note in watch.notes(&profiles) {
        task.observer.note(&note);
    }
    graph.changing = watch.changing().clone();
    pages::mark(&mut graph, &profiles);
    let limit = limit.or_else(|| runner.is_late().then_some(Limit::Seconds));
    for lack in lacks(&mut profiles, &graph, &breaking, limit) {
        task.observer.note(&lack);
    }
    Ok(Sampled { graph, profiles, breaking, watch, limit })
}

/// A sentence for each tool that no call worked of, with the parameters that want examples; or one for all that there was no time or
/// no call left for, because others might have brought their values.
fn lacks(
    profiles: &mut [ToolProfile],
    graph: &Graph,
    breaking: &BTreeSet<String>,
    limit: Option<Limit>,
) -> Vec<String> {
    let (mut lacks, mut untried) = (Vec::new(), Vec::new());
    for (index, profile) in profiles.iter_mut().enumerate() {
        let is_called = graph.seen.iter().any(|seen| seen.tool == index);
        if is_called || breaking.contains(&profile.name) {
            continue;
        }
        let open: Vec<(String, bool)> = examples::wanted(profile);
        let named = |has_examples: bool| -> Vec<&str> {
            let of_kind = open.iter().filter(|(_, has)| *has == has_examples);
            of_kind.map(|(name, _)| name.as_str()).collect()
        };
        let (without, with) = (named(false), named(true));
        if limit.is_some() && with.is_empty() {
            untried.push(format!("`{}`", profile.name));
            continue;
        }
        let why = match (without.as_slice(), with.as_slice()) {
            ([], []) => String::new(),
            ([], with) => format!(": no example for {} works", with.join(" and ")),
            (names, _) => {
                let values: Vec<String> = names.iter().map(|name| format!("{name} = [\"…\"]")).collect();
                let (names, values) = (names.join(" and "), values.join(", "));
                format!(": no value for {names}; give examples: values = {{ {values} }}")
            }
        };
        lacks.push(format!("`{}` was never called with success{why}", profile.name));
    }
    if let Some(limit) = limit.filter(|_| !untried.is_empty()) {
        let (names, limit) = (untried.join(", "), limit.param());
        lacks.push(format!(
            "exploration reached {limit} before these were called with success: {names}; raise {limit}"
        ));
    }
    lacks
}

/// The calls that work one behind the other, in one session. Each of the others would cost a session of its own for nothing.
async fn screened(
    trials: Vec<(usize, trials::Trial)>,
    graph: &mut Graph,
    profiles: &[ToolProfile],
    runner: &Runner<'_>,
) -> Result<Vec<(usize, trials::Trial)>> {
    let calls = trials.iter().map(|(_, trial)| trial.call.clone()).collect();
    let outcomes = runner.run(&[calls]).await?.pop().unwrap_or_default();
    let mut working = Vec::new();
    for (index, (tool, trial)) in trials.into_iter().enumerate() {
        if outcomes.get(index).is_some_and(|outcome| outcome.is_error || looks_failed(&outcome.text)) {
            graph.learn(&profiles[tool], &trial.args, false);
        } else {
            working.push((tool, trial));
        }
    }
    Ok(working)
}

impl Sampled {
    /// Calls that worked and their results, for a generator; each result is cut.
    pub fn examples(&self, most: usize, bytes: usize) -> Vec<(ToolCall, String)> {
        let mut of_tool: BTreeMap<usize, usize> = BTreeMap::new();
        let each = most.div_ceil(self.profiles.len().max(1));
        let calls = self.graph.seen.iter().filter(|seen| {
            let count = of_tool.entry(seen.tool).or_default();
            *count += 1;
            *count <= each
        });
        let cut = |text: &str| {
            text.char_indices().take_while(|(at, _)| *at < bytes).map(|(_, letter)| letter).collect()
        };
        calls.take(most).map(|seen| (seen.call.clone(), cut(&seen.text))).collect()
    }

    /// What is known of the server.
    pub fn guide(&self) -> Guide {
        Guide::of(&self.graph, &self.profiles, &self.breaking)
    }

    /// Tools that may be called.
    pub fn callable(&self) -> BTreeSet<String> {
        self.profiles
            .iter()
            .map(|profile| profile.name.clone())
            .filter(|name| !self.breaking.contains(name))
            .collect()
    }

    /// Refuses tasks whose calls may have changed the state of a read-only server, if it has changed.
    pub async fn refuse_changes(
        &mut self,
        judged: &mut Judged,
        live: &Live,
        observer: &dyn Observer,
    ) -> Result<()> {
        if self.watch.has_changed(live).await {
            self.refuse_unannotated(judged);
            observer.note("the server's state changed while the reference calls were executed, although state = \"read-only\"");
        }
        // What was the same until now may change by itself.
        let known = self.graph.changing.clone();
        let profiles = &self.profiles;
        let late = self.watch.changing().iter().filter(|(tool, changing)| known.get(tool) != Some(changing));
        let late: BTreeSet<&str> = late.map(|(tool, _)| profiles[*tool].name.as_str()).collect();
        let random = known.iter().filter(|(_, changing)| **changing == Changing::All);
        let random = random.map(|(tool, _)| profiles[*tool].name.as_str());
        let unstable: BTreeSet<&str> = late.iter().copied().chain(random).collect();
        judged.refuse(|admitted| {
            let call = admitted.candidate.calls.iter().find(|call| unstable.contains(call.name.as_str()))?;
            Some((admission::Reason::Unstable, format!("what `{}` answers changes by itself", call.name)))
        });
        Ok(())
    }

    fn refuse_unannotated(&self, judged: &mut Judged) {
        let suspects: BTreeSet<&str> = self
            .profiles
            .iter()
            .filter(|profile| !profile.is_annotated)
            .map(|profile| profile.name.as_str())
            .collect();
        judged.refuse(|admitted| {
            let call = admitted.candidate.calls.iter().find(|call| suspects.contains(call.name.as_str()))?;
            let detail =
                format!("the state changed, and `{}` does not declare that it only reads", call.name);
            Some((admission::Reason::StateBreaking, detail))
        });
    }
}

/// Whether a word of a command names code and not data.
fn is_program(word: &str) -> bool {
    let extension = std::path::Path::new(word).extension().and_then(std::ffi::OsStr::to_str);
    extension.is_some_and(|end| ["js", "mjs", "cjs", "ts", "py", "jar", "sh", "rb", "php"].contains(&end))
}

/// Values that no result has: from resources, prompts, instructions, and paths in the server's command.
fn given(servers: &Servers, descriptions: &[Description]) -> Vec<String> {
    let mut given = Vec::new();
    for (_, spec) in servers.iter() {
        if matches!(spec.state, State::SnapshotDir(_)) {
            given.push("/snapshot".to_owned());
        }
        if let Transport::Stdio { command, env, .. } = &spec.transport {
            let paths = command
                .iter()
                .skip(1)
                .chain(env.values())
                .filter(|word| word.starts_with('/') || word.starts_with(PLACEHOLDER))
                .filter(|word| !is_program(word));
            given.extend(
                paths.filter(|word| !word.contains("${")).map(|word| word.replace(PLACEHOLDER, "/snapshot")),
            );
        }
    }
    for description in descriptions {
        let resources = description.resources.iter();
        given.extend(resources.flat_map(|resource| [resource.uri.clone(), resource.name.clone()]).take(40));
        let instructions = description.server.instructions.as_deref().unwrap_or_default();
        let prompts = description.prompts.iter().filter_map(|prompt| prompt.description.as_deref());
        given.extend(std::iter::once(instructions).chain(prompts).flat_map(seeds::quoted).take(40));
    }
    let mut seen = BTreeSet::new();
    given.retain(|text| !text.trim().is_empty() && text.len() <= 200 && seen.insert(text.clone()));
    given
}

/// The few among the many, at even distances.
fn interleaved(many: Vec<Candidate>, few: Vec<Candidate>) -> Vec<Candidate> {
    let step = many.len() / few.len().max(1);
    let mut few = few.into_iter();
    let mut mixed = Vec::new();
    for (place, one) in many.into_iter().enumerate() {
        if step > 0 && place % step == 0 {
            mixed.extend(few.next());
        }
        mixed.push(one);
    }
    mixed.extend(few);
    mixed
}

/// This share of a number of tasks, rounded down.
fn share_of(tasks: usize, share: f64) -> usize {
    (tasks as f64 * share) as usize
}

/// Takes candidates from the tools, subjects and families in turn, in seeded order: `spare` times as many as are wanted. A
/// subject is first the number of things that are described on the way to what is asked about, then that thing.
fn chosen(
    candidates: Vec<Candidate>,
    subject: impl Fn(&Candidate) -> (usize, String),
    budget: Budget,
    spare: f64,
    seed: u64,
) -> Vec<Candidate> {
    let order =
        |candidate: &Candidate| graph::rank(seed, &candidate.task, &format!("{:?}", candidate.entity));
    let of_family = |mut family: Vec<Candidate>| {
        family.sort_by_cached_key(order);
        family.truncate(budget.per_family);
        family
    };
    let of_thing = |all| in_turn(all, |candidate| candidate.family.clone(), of_family);
    let of_hops = |all| in_turn(all, |candidate| subject(candidate).1, of_thing);
    let of_tool = |all| in_turn(all, |candidate| subject(candidate).0, of_hops);
    let tool = |candidate: &Candidate| candidate.calls.last().map(|call| call.name.clone());
    let mut chosen = in_turn(candidates, tool, of_tool);
    chosen.truncate(share_of(budget.tasks, spare));
    chosen
}

/// Takes candidates from their groups in turn, each group in an order of its own.
fn in_turn<K: Ord, C>(
    candidates: Vec<C>,
    key: impl Fn(&C) -> K,
    ordered: impl Fn(Vec<C>) -> Vec<C>,
) -> Vec<C> {
    let mut groups: BTreeMap<K, Vec<C>> = BTreeMap::new();
    for candidate in candidates {
        groups.entry(key(&candidate)).or_default().push(candidate);
    }
    evenly(groups.into_values().map(ordered).collect(), usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::{ServerSpec, Servers, State, Transport};

    #[test]
    fn what_a_limit_left_untried_is_named_with_it_and_examples_are_asked_for_otherwise() {
        let schema = r#"{"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}"#;
        let tool = |name: &str| Tool {
            name: name.into(),
            server_name: name.into(),
            input_schema: schema.into(),
            ..Tool::default()
        };
        let transport =
            Transport::Stdio { command: vec!["x".into()], env: BTreeMap::new(), cwd: None, files: vec![] };
        let servers = Servers::from(ServerSpec::new(transport, State::ReadOnly));
        let mut profiles = profiles(&[tool("get_cat"), tool("get_dog")], &servers, &ExploreWrites::default());
        let mut of = |limit| lacks(&mut profiles, &Graph::default(), &BTreeSet::new(), limit);
        let asked = of(None);
        assert_eq!(asked.len(), 2);
        assert!(asked.iter().all(|text| text.contains("give examples")), "{asked:?}");
        for (limit, key) in [(Limit::Seconds, "explore_seconds"), (Limit::Calls, "explore_calls")] {
            let said = format!(
                "exploration reached {key} before these were called with success: `get_cat`, `get_dog`; raise {key}"
            );
            assert_eq!(of(Some(limit)), [said]);
        }
    }
}
