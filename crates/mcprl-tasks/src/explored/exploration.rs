//! The rounds of calls from which everything is learned that is known of a server.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use super::{
    ExploreInputs, Limit, changes,
    changing::Changing,
    examples,
    graph::Graph,
    guide::Guide,
    pages, seeds,
    tools::{self, ToolProfile, profiles},
    trials,
    watch::Watch,
};
use crate::{
    chat::ToolCall,
    error::Result,
    live::Live,
    mcp::{Description, Outcome, PLACEHOLDER, Servers, State, Transport},
    progress::Observer,
    refusals::{Judged, Reason},
    runner::Runner,
};

/// Rounds of exploration: each uses what the earlier ones found.
const ROUNDS: usize = 4;
/// Effects of a tool after which no more calls look for one.
const EFFECTS: usize = 3;
/// Patterns of errors that a note names.
const PATTERNS: usize = 4;

/// What was sampled from a server.
pub struct Sampled {
    pub(super) graph: Graph,
    pub(super) profiles: Vec<ToolProfile>,
    /// Tools that changed the state of a read-only server.
    pub breaking: BTreeSet<String>,
    watch: Watch,
    pub(super) limit: Option<Limit>,
}

/// Calls the safe tools in rounds.
pub async fn sample(task: &ExploreInputs<'_>, runner: &Runner<'_>) -> Result<Sampled> {
    let mut exploration = Exploration::begin(task, runner).await?;
    while exploration.has_room() {
        exploration.round().await?;
    }
    exploration.end().await
}

/// What is known so far, and what was tried.
struct Exploration<'r, 'a> {
    task: &'r ExploreInputs<'r>,
    runner: &'r Runner<'a>,
    profiles: Vec<ToolProfile>,
    graph: Graph,
    watch: Watch,
    /// Whether each tool must show that it changes nothing.
    watches: bool,
    /// Tools that changed something nevertheless.
    breaking: BTreeSet<String>,
    /// Patterns of errors that the server reports as results.
    unmarked: BTreeSet<String>,
    rounds: usize,
    calls: usize,
    /// The rest of the time is for the tasks.
    half: Instant,
    limit: Option<Limit>,
}

/// A call to try, of the tool with this number.
type TrialCall = (usize, trials::Trial);

impl<'r, 'a> Exploration<'r, 'a> {
    async fn begin(task: &'r ExploreInputs<'r>, runner: &'r Runner<'a>) -> Result<Self> {
        let mut profiles = profiles(task.tools, task.servers, task.writes);
        for (what, way_out) in tools::left_out(task.tools, task.servers, task.writes) {
            task.observer.note(&format!("{what}; {way_out}"));
        }
        task.examples.apply(&mut profiles);
        let mut graph =
            Graph { given: given(task.servers, &runner.live.descriptions().await?), ..Graph::default() };
        graph.add_examples(&mut profiles);
        Ok(Self {
            task,
            runner,
            profiles,
            graph,
            watch: Watch::default(),
            watches: task.servers.is_read_only(),
            breaking: BTreeSet::new(),
            unmarked: BTreeSet::new(),
            rounds: 0,
            calls: 0,
            half: Instant::now() + Duration::from_secs(task.budget.seconds / 2),
            limit: None,
        })
    }

    /// Whether rounds, time and calls are left.
    fn has_room(&mut self) -> bool {
        if self.rounds == ROUNDS {
            return false;
        }
        if self.runner.is_late() || Instant::now() > self.half {
            self.limit = Some(Limit::Seconds);
        } else if self.calls >= self.task.budget.calls {
            self.limit = Some(Limit::Calls);
        }
        self.limit.is_none()
    }

    async fn round(&mut self) -> Result<()> {
        let left = self.task.budget.calls.saturating_sub(self.calls);
        let most = left.div_ceil((ROUNDS - self.rounds) * self.profiles.len().max(1));
        self.task.observer.phase("exploration", 0);
        for batch in self.batches() {
            let is_writing = !self.watches && batch.iter().all(|tool| !changes::reads(&self.profiles[*tool]));
            if is_writing && self.rounds == 0 {
                self.try_readers().await?;
                self.graph.changing = self.watch.changing().clone();
            }
            let mut tries = self.tries(&batch, most);
            if is_writing {
                tries = self.screened(tries).await?;
            }
            let worked = self.run(tries).await?;
            if let ([tool], true) = (&batch[..], self.watches) {
                self.judge(*tool, worked).await;
            }
        }
        self.rounds += 1;
        self.task.observer.status(&format!(
            "{} calls worked, {} values, {} edges",
            self.graph.seen.len(),
            self.graph.known.len(),
            self.graph.working_edges()
        ));
        Ok(())
    }

    async fn try_readers(&mut self) -> Result<()> {
        self.watch.try_readers(&self.graph, &self.profiles, self.runner).await
    }

    /// Tool by tool where each must show that it changes nothing. Elsewhere first those that read: their calls show what the others
    /// change.
    fn batches(&self) -> Vec<Vec<usize>> {
        let all = 0..self.profiles.len();
        if self.watches {
            return all.map(|tool| vec![tool]).collect();
        }
        let (reading, writing) = all.partition(|tool| changes::reads(&self.profiles[*tool]));
        vec![reading, writing]
    }

    /// Calls of these tools, at most `most` of each.
    fn tries(&mut self, batch: &[usize], most: usize) -> Vec<TrialCall> {
        let mut found = Vec::new();
        for tool in batch {
            let effects = self.graph.effects.iter();
            let effects = effects.filter(|effect| self.graph.seen[effect.call].tool == *tool).count();
            // What a tool is known to change is tried by orders.
            if effects < EFFECTS && !self.breaking.contains(&self.profiles[*tool].name) {
                let (profile, seed) = (&self.profiles[*tool], self.task.seed);
                let made = trials::trials(&mut self.graph, profile, self.rounds, seed, most);
                found.extend(made.into_iter().map(|trial| (*tool, trial)));
            }
        }
        self.calls += found.len();
        found
    }

    /// A few of the calls of tools that write: each costs a session, and a few show whether a tool changes anything.
    async fn screened(&mut self, tries: Vec<TrialCall>) -> Result<Vec<TrialCall>> {
        let mut tries = screened(tries, &mut self.graph, &self.profiles, self.runner).await?;
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        tries.retain(|(tool, _)| {
            let count = counts.entry(*tool).or_default();
            *count += 1;
            *count <= EFFECTS
        });
        Ok(tries)
    }

    /// Makes the calls, each followed by calls that would show what it changed. Returns those that worked.
    async fn run(&mut self, tries: Vec<TrialCall>) -> Result<Vec<ToolCall>> {
        let probes: Vec<Vec<usize>> = tries
            .iter()
            .map(|(tool, trial)| match self.watches {
                true => Vec::new(),
                false => changes::probes(&self.graph, &self.profiles, *tool, &trial.call),
            })
            .collect();
        let sequence = |((_, trial), probes): (&TrialCall, &Vec<usize>)| {
            let probes = probes.iter().map(|probe| &self.graph.seen[*probe].call);
            std::iter::once(&trial.call).chain(probes).cloned().collect()
        };
        let sequences: Vec<Vec<ToolCall>> = tries.iter().zip(&probes).map(sequence).collect();
        let outcomes = self.runner.run(&sequences).await?;
        let mut worked = Vec::new();
        for (((tool, trial), probes), outcomes) in tries.into_iter().zip(probes).zip(outcomes) {
            let (outcome, after) = outcomes.split_at(outcomes.len().min(1));
            let unfailed = outcome.first().filter(|outcome| !outcome.is_error);
            if let Some(failed) = unfailed.filter(|outcome| outcome.is_failure()) {
                let head = failed.text.trim_start().split([':', '\n']).next().unwrap_or_default();
                self.unmarked.insert(format!("^{}", regex::escape(head.trim_end())));
            }
            let good = unfailed.filter(|outcome| !outcome.is_failure());
            self.graph.learn(&self.profiles[tool], &trial.args, good.is_some());
            if let Some(outcome) = good {
                worked.push(trial.call.clone());
                let effect = changes::effect(&self.graph, self.graph.seen.len(), &probes, after);
                self.graph.effects.extend(effect);
                self.graph.add(&self.profiles, tool, trial.call, trial.args, outcome.text.clone());
            }
        }
        Ok(worked)
    }

    /// Whether a tool whose calls worked has changed nothing.
    async fn judge(&mut self, tool: usize, worked: Vec<ToolCall>) {
        let profile = &self.profiles[tool];
        if profile.is_annotated || !self.watch.blames(tool, &worked, self.runner.live).await {
            self.watch.add(tool, worked, self.runner).await;
        } else {
            self.breaking.insert(profile.name.clone());
        }
    }

    async fn end(mut self) -> Result<Sampled> {
        if !self.unmarked.is_empty() {
            self.task.observer.note(&format!(
                "the server reports errors as ordinary results; with these under [server], they count as errors: \
                 error_patterns = {:?}",
                self.unmarked.iter().take(PATTERNS).collect::<Vec<_>>()
            ));
        }
        if self.watches {
            self.watch.refresh(self.runner.live).await;
        } else {
            self.try_readers().await?;
        }
        let Self { task, runner, mut profiles, mut graph, watch, limit, .. } = self;
        let breaking = watch.blamed(&profiles);
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
        if outcomes.get(index).is_some_and(Outcome::is_failure) {
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
            Some((Reason::Unstable, format!("what `{}` answers changes by itself", call.name)))
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
            Some((Reason::StateBreaking, detail))
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

#[cfg(test)]
mod tests {
    use super::{super::tools::ExploreWrites, *};
    use crate::data::Tool;
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
