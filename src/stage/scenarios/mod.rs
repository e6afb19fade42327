//! The `scenarios` stage: training tasks and held-out tasks.
//!
//! | source | tasks come from |
//! |---|---|
//! | `grounded` | a families file, answered by the live server ([`grounded`]) |
//! | `server` | families that the server states, answered by it ([`served`]) |
//! | `file` | a user's file ([`mod@file`]) |
//! | `explored` | calls of the live server, without a language model ([`explored`]) |
//! | `llm` | a language model, grounded in sampled results ([`llm`]) |
//! | `traces` | conversations ([`traces`]) |
//! | `mix` | several of these |
//!
//! A policy's tries can refuse training tasks ([`tries`]). No task is in both outputs. A task of the last four sources counts after its reference calls have been executed twice
//! ([`admission`]).

pub mod admission;
mod candidate;
mod declaration;
mod error;
pub mod explored;
pub mod families;
pub mod file;
pub mod grounded;
mod live;
mod llm;
mod phrase;
mod preflight;
mod results;
mod runner;
pub mod served;
mod solution;
pub mod split;
mod traces;
pub(in crate::stage) mod tries;

#[cfg(test)]
mod served_tests;
#[cfg(test)]
mod source_tests;
#[cfg(test)]
pub(in crate::stage) mod tests;
#[cfg(test)]
mod tries_tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::{Duration, Instant},
};

use serde::Deserialize;
use serde_json::{Map, Value};

pub use self::{
    error::ScenarioError,
    families::{Families, Family, Tier},
    live::{CallSequence, Live},
    phrase::Binding,
};
pub(in crate::stage) use self::{families::Step, phrase::below, solution::Solution};

use super::{
    Context, Metrics, StageError, StageKind,
    kind::{Requirement, StageFuture},
    local_model::{self, LocalModel, LocalSettings},
    memory::Load,
    preflight::{ExpectedOutput, ExpectedOutputs, ExpectedScenarios, Preflight, PreflightContext},
    typed,
};
use crate::{
    chat::ToolCall,
    data::{Admission, Scenario, Tool, UNSEEN},
    engine::Footprint,
    error::Result,
    llm::{Budget, Client, Endpoint, LanguageModel, Provider},
    mcp::Servers,
    usage::Usage,
};
use admission::{Judged, Reason};
use candidate::Candidate;
use explored::Coverage;
use grounded::QuestionCounts;
use served::Served;
use solution::Dropped;
use split::SplitBy;
use tries::Tries;

#[derive(Debug, Deserialize)]
pub(super) struct Params {
    source: Source,
    families: Option<PathBuf>,
    file: Option<PathBuf>,
    traces: Option<PathBuf>,
    mix: Option<BTreeMap<Source, f64>>,
    tasks: usize,
    explore_calls: usize,
    explore_seconds: u64,
    split_by: Option<SplitBy>,
    heldout_digest: Option<String>,
    questions_per_family: usize,
    heldout_per_split: usize,
    heldout_share: f64,
    base_url: Option<String>,
    model: Option<String>,
    api_key_env: Option<String>,
    temperature: f64,
    max_tokens: u32,
    timeout_s: f64,
    retries: u32,
    concurrency: usize,
    max_cost: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Source {
    Grounded,
    Server,
    File,
    Explored,
    Llm,
    Traces,
    Mix,
}

/// Fewer tasks in a split than this are reported as few.
const FEW: usize = 20;
/// Results that a generator sees, and the bytes of each.
const EXAMPLES: usize = 120;
const EXAMPLE_BYTES: usize = 700;

pub struct Scenarios {
    params: Params,
    tries: Tries,
}

/// What a source made.
#[derive(Debug, Default)]
struct SourceOutput {
    train: Vec<Scenario>,
    heldout: Vec<Scenario>,
    admission: Vec<Admission>,
    dropped: BTreeMap<Dropped, usize>,
    coverage: Option<Coverage>,
}

impl Scenarios {
    pub fn parse(params: &Map<String, Value>) -> Result<Self, StageError> {
        Ok(Self { params: typed(params)?, tries: typed(params)? })
    }

    async fn make(&self, context: &Context) -> Result<Metrics> {
        let Self { params, tries } = self;
        params.complete(local_model::is_given(context))?;
        tries.check()?;
        let mut made = match &params.mix {
            Some(mix) if params.source == Source::Mix => mixed(context, params, mix).await?,
            _ => from(context, params, params.source).await?,
        };
        split::check_frozen(&made.train, &made.heldout, params.heldout_digest.as_deref())?;
        let digest = split::digest(&made.heldout);
        if !made.heldout.is_empty() {
            let count = made.heldout.len();
            context.observer.note(&format!("held-out set: {count} tasks, heldout_digest = \"{digest}\""));
        }
        let tried = tries.select(context, &mut made.train, &mut made.admission).await?;
        context.write("train", &made.train)?;
        context.write("heldout", &made.heldout)?;
        context.write("admission", &made.admission)?;
        context.write("pass_rates", &tried.rates)?;
        let mut metrics = metrics(&made);
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
            Source::File => file,
            Source::Grounded => families,
            Source::Traces => traces,
            Source::Server | Source::Explored | Source::Llm | Source::Mix => &None,
        };
        let Some(path) = path.as_deref().map(std::path::Path::display) else { return Vec::new() };
        let Some((train, heldout)) = count("train").zip(count("heldout")) else {
            let part = if matches!(source, Source::File) { ", as far as it was checked" } else { "" };
            return vec![Requirement::Met(format!("{path} can be read{part}"))];
        };
        let text = format!("{path}: {train} to train on, {heldout} held out");
        if train.min(heldout) >= FEW {
            return vec![Requirement::Met(text)];
        }
        let hint = format!(
            "that is few: a gain is measurable where at least 6 held-out tasks come out better and none worse; {FEW} or \
             more of each are a start (`heldout_share` says how many are held out)"
        );
        vec![Requirement::Doubtful { text, hint }]
    }
}

impl Params {
    fn uses(&self, source: Source) -> bool {
        self.source == source || self.mix.as_ref().is_some_and(|mix| mix.contains_key(&source))
    }

    /// Checks that the parameters of the source are given. `has_model`: whether the engine runs the language model.
    fn complete(&self, has_model: bool) -> Result<(), ScenarioError> {
        let sources: Vec<Source> = match (&self.mix, self.source) {
            (None, Source::Mix) => return Err(ScenarioError::NoParam { origin: "mix", param: "mix" }),
            (Some(mix), Source::Mix) => {
                let problem = match mix.iter().find(|(source, weight)| {
                    **source == Source::Mix || !weight.is_finite() || **weight <= 0.0
                }) {
                    _ if mix.is_empty() => Some("it is empty".to_owned()),
                    Some((Source::Mix, _)) => Some("a mix cannot contain a mix".to_owned()),
                    Some((_, weight)) => Some(format!("{weight} is no weight")),
                    None => None,
                };
                if let Some(problem) = problem {
                    return Err(ScenarioError::Mix { problem });
                }
                mix.keys().copied().collect()
            }
            (_, source) => vec![source],
        };
        let needed = sources.into_iter().flat_map(|source| match source {
            Source::Grounded => vec![("grounded", "families", self.families.is_some())],
            Source::File => vec![("file", "file", self.file.is_some())],
            Source::Traces => vec![("traces", "traces", self.traces.is_some())],
            Source::Llm if has_model => Vec::new(),
            Source::Llm => {
                vec![("llm", "base_url", self.base_url.is_some()), ("llm", "model", self.model.is_some())]
            }
            Source::Server | Source::Explored | Source::Mix => Vec::new(),
        });
        match needed.into_iter().find(|(_, _, is_given)| !is_given) {
            Some((origin, param, _)) => Err(ScenarioError::NoParam { origin, param }),
            None => Ok(()),
        }
    }

    fn hold_out(&self, seed: u64) -> file::HoldOut {
        file::HoldOut { share: self.heldout_share, seed, by: self.split_by.unwrap_or(SplitBy::Task) }
    }

    fn local(&self) -> LocalSettings {
        let Self { temperature, max_tokens, concurrency, .. } = *self;
        LocalSettings { temperature, max_tokens, concurrency }
    }

    fn budget(&self) -> explored::Budget {
        explored::Budget {
            calls: self.explore_calls,
            seconds: self.explore_seconds,
            tasks: self.tasks,
            per_family: self.questions_per_family,
        }
    }
}

impl StageKind for Scenarios {
    fn run<'a>(&'a self, context: &'a Context) -> StageFuture<'a, Result<Metrics>> {
        Box::pin(self.make(context))
    }

    fn preflight(&self, context: &PreflightContext<'_>) -> Preflight {
        preflight::preflight(&self.params, &self.tries, context)
    }

    fn requirements<'a>(&'a self, expected: &'a ExpectedOutputs) -> StageFuture<'a, Vec<Requirement>> {
        Box::pin(async { self.requirements(expected) })
    }

    fn memory(&self, load: &Load<'_>) -> Option<Footprint> {
        // One after the other.
        let local = load.policies(local_model::ROLE).next().filter(|_| self.params.uses(Source::Llm));
        let local = local.map(|model| self.params.local().footprint(load, model));
        let tries = load.policies(tries::ROLE).next().filter(|_| self.tries.tries > 0);
        let tries = tries.map(|policy| self.tries.budget().footprint(load, policy, usize::MAX));
        local.into_iter().chain(tries).max_by_key(Footprint::total)
    }

    fn shares_model(&self, role: &str) -> bool {
        match role {
            local_model::ROLE => self.params.uses(Source::Llm),
            tries::ROLE => self.tries.tries > 0,
            _ => false,
        }
    }
}

/// A path that [`Params::complete`] has found.
fn given<'p>(
    path: Option<&'p PathBuf>,
    origin: &'static str,
    param: &'static str,
) -> Result<&'p PathBuf, ScenarioError> {
    path.ok_or(ScenarioError::NoParam { origin, param })
}

async fn from(context: &Context, params: &Params, source: Source) -> Result<SourceOutput> {
    match source {
        Source::Grounded | Source::Server => from_families(context, params, source).await,
        Source::File => from_file(context, params),
        Source::Explored => from_exploration(context, params).await,
        Source::Traces => from_traces(context, params).await,
        Source::Llm => from_model(context, params).await,
        Source::Mix => Ok(SourceOutput::default()),
    }
}

fn from_file(context: &Context, params: &Params) -> Result<SourceOutput> {
    let path = given(params.file.as_ref(), "file", "file")?;
    let (train, heldout) = file::load(path, params.hold_out(context.seed))?;
    let lacks = [
        (train.is_empty(), "no task is left to train on: lower"),
        (heldout.is_empty(), "no task is held out, so there is nothing to examine a policy with: raise"),
    ];
    for (_, lack) in lacks.into_iter().filter(|(lacks, _)| *lacks) {
        context.observer.note(&format!(
            "{}: {lack} heldout_share, or give tasks a `split` of their own (train or heldout)",
            path.display()
        ));
    }
    let admission = train.iter().chain(&heldout).map(admitted).collect();
    Ok(SourceOutput { train, heldout, admission, ..SourceOutput::default() })
}

fn servers(context: &Context) -> Result<&Servers> {
    Ok(context.servers.as_ref().ok_or_else(|| StageError::NoInput { role: "server".into() })?)
}

async fn from_families(context: &Context, params: &Params, source: Source) -> Result<SourceOutput> {
    let servers = servers(context)?;
    let tools: Vec<Tool> = context.read("tools")?;
    let live = Live::new(servers, &tools);
    let quota =
        QuestionCounts { per_family: params.questions_per_family, per_split: params.heldout_per_split };
    let plan = served::Plan { quota, share: params.heldout_share, seed: context.seed };
    let made = async {
        let served = match source {
            Source::Server => served::read(servers, &live, &tools).await?,
            _ => {
                let families = Families::load(given(params.families.as_ref(), "grounded", "families")?)?;
                vec![Served { server: None, families }]
            }
        };
        served::generate(&served, &tools, &live, plan, &*context.observer, &context.cancel).await
    }
    .await;
    context.meter.add(Usage { tool_calls: live.calls() as u64, ..Usage::default() });
    live.close().await;
    let made = made?;
    let refused = made.refused.into_iter().map(|(family, why, detail)| {
        let reason = match why {
            Dropped::Failed | Dropped::Unanswerable | Dropped::Truncated => Reason::Unsolvable,
            Dropped::Ambiguous => Reason::Ambiguous,
            Dropped::Duplicate => Reason::Duplicate,
        };
        refused(family, String::new(), reason, format!("{}: {detail}", why.name()))
    });
    let admission = made.train.iter().chain(&made.heldout).map(admitted).chain(refused).collect();
    Ok(SourceOutput {
        train: made.train,
        heldout: made.heldout,
        admission,
        dropped: made.dropped,
        coverage: None,
    })
}

async fn from_exploration(context: &Context, params: &Params) -> Result<SourceOutput> {
    let tools: Vec<Tool> = context.read("tools")?;
    let task = task(context, &tools, params.budget())?;
    let explored = explored::explore(&task).await?;
    context.meter.add(Usage { tool_calls: explored.calls as u64, ..Usage::default() });
    divided(context, params, explored.judged, Some(explored.coverage))
}

async fn from_traces(context: &Context, params: &Params) -> Result<SourceOutput> {
    let tools: Vec<Tool> = context.read("tools")?;
    let path = given(params.traces.as_ref(), "traces", "traces")?;
    let servers = servers(context)?;
    let read = traces::load(path, &explored::callable(&tools, servers))?;
    let (candidates, early) =
        read.into_iter().fold((Vec::new(), Vec::new()), |(mut good, mut bad), (place, one)| {
            match one {
                Ok(candidate) => good.push(candidate),
                Err((reason, detail)) => {
                    bad.push(refused("traces".into(), String::new(), reason, format!("{place}: {detail}")))
                }
            }
            (good, bad)
        });
    // A few calls of tools that read, to see whether the conversations' calls change anything.
    let sampled = match servers.is_read_only() {
        true => Some(sample(context, params, &tools, 2 * tools.len()).await?),
        false => None,
    };
    let judged = admit(context, params, &tools, candidates, sampled).await?;
    finish(context, params, &tools, judged, early)
}

/// The client of the endpoint that writes tasks.
fn client(context: &Context, params: &Params) -> Result<Client> {
    let missing = |param| ScenarioError::NoParam { origin: "llm", param };
    let base_url = params.base_url.clone().ok_or(missing("base_url"))?;
    let budget = match (params.max_cost, context.prices) {
        (None, _) => None,
        (Some(dollars), Some(prices)) => Some(Budget { dollars, prices }),
        (Some(_), None) => return Err(ScenarioError::NoPrices.into()),
    };
    Ok(Client::new(Endpoint {
        provider: Provider::of(&base_url),
        base_url,
        model: params.model.clone().ok_or(missing("model"))?,
        api_key_env: params.api_key_env.clone(),
        temperature: params.temperature,
        max_tokens: params.max_tokens,
        timeout: Duration::try_from_secs_f64(params.timeout_s).unwrap_or(Duration::MAX),
        retries: params.retries,
        concurrency: params.concurrency,
        requests_per_minute: None,
        tokens_per_minute: None,
        budget,
    })?)
}

async fn from_model(context: &Context, params: &Params) -> Result<SourceOutput> {
    let tools: Vec<Tool> = context.read("tools")?;
    // Refused before the server is called.
    let client = match local_model::is_given(context) {
        true => None,
        false => Some(client(context, params)?),
    };
    let sampled = sample(context, params, &tools, params.explore_calls).await?;
    let (callable, examples) = (sampled.callable(), sampled.examples(EXAMPLES, EXAMPLE_BYTES));
    let request = llm::Request {
        prompt: context.text("generate"),
        tools: &tools,
        callable: &callable,
        examples: &examples,
        tasks: params.tasks,
        seed: context.seed,
    };
    let written = match &client {
        Some(client) => {
            let written = llm::generate(client, &request, context).await;
            context.meter.add(client.resources());
            written
        }
        None => {
            let local = LocalModel::open(context, params.local()).await?;
            let written = llm::generate(&local, &request, context).await;
            context.meter.add(local.resources());
            local.close().await;
            written
        }
    };
    let (mut candidates, mut early) = (Vec::new(), Vec::new());
    for one in written? {
        match one {
            Ok(candidate) => candidates.push(candidate),
            Err((text, (reason, detail))) => early.push(refused("llm".into(), text, reason, detail)),
        }
    }
    let judged = admit(context, params, &tools, candidates, Some(sampled)).await?;
    finish(context, params, &tools, judged, early)
}

fn task<'a>(context: &'a Context, tools: &'a [Tool], budget: explored::Budget) -> Result<explored::Task<'a>> {
    Ok(explored::Task {
        servers: servers(context)?,
        tools,
        seed: context.seed,
        budget,
        observer: &*context.observer,
        cancel: &context.cancel,
    })
}

/// Calls the safe tools, at most this often.
async fn sample(
    context: &Context,
    params: &Params,
    tools: &[Tool],
    calls: usize,
) -> Result<explored::Sampled> {
    let task = task(context, tools, explored::Budget { calls, ..params.budget() })?;
    let live = Live::new(task.servers, tools);
    let sampled = {
        let runner = task.runner(&live, Instant::now() + Duration::from_secs(params.explore_seconds));
        let sampled = explored::sample(&task, &runner).await;
        context.meter.add(Usage { tool_calls: runner.calls() as u64, ..Usage::default() });
        sampled
    };
    live.close().await;
    sampled
}

/// Executes candidates on two sets of sessions. `sampled`: what is known of the servers' state.
async fn admit(
    context: &Context,
    params: &Params,
    tools: &[Tool],
    candidates: Vec<Candidate>,
    mut sampled: Option<explored::Sampled>,
) -> Result<Judged> {
    let task = task(context, tools, params.budget())?;
    let breaking = sampled.as_ref().map(|sampled| sampled.breaking.clone()).unwrap_or_default();
    let deadline = Instant::now() + Duration::from_secs(params.explore_seconds);
    let [one, two] = [(); 2].map(|()| Live::new(task.servers, tools));
    let judged = {
        let runners = [task.runner(&one, deadline), task.runner(&two, deadline)];
        let judged =
            admission::admit(candidates, &task.tool_names(), &breaking, [&runners[0], &runners[1]]).await;
        let judged = match (judged, &mut sampled) {
            (Ok(mut judged), Some(sampled)) => {
                sampled.refuse_changes(&mut judged, &one, &*context.observer).await.map(|()| judged)
            }
            (judged, _) => judged,
        };
        let calls: usize = runners.iter().map(runner::Runner::calls).sum();
        context.meter.add(Usage { tool_calls: calls as u64, ..Usage::default() });
        judged
    };
    one.close().await;
    two.close().await;
    judged
}

/// Adds the candidates that were refused before any call.
fn finish(
    context: &Context,
    params: &Params,
    tools: &[Tool],
    mut judged: Judged,
    early: Vec<Admission>,
) -> Result<SourceOutput> {
    judged.rows.extend(early);
    judged.trim(params.tasks);
    let chains: Vec<Vec<ToolCall>> =
        judged.admitted.iter().map(|admitted| admitted.candidate.calls.clone()).collect();
    let coverage = Coverage::of(tools, &chains);
    divided(context, params, judged, Some(coverage))
}

/// Divides admitted tasks into training and held-out ones.
fn divided(
    context: &Context,
    params: &Params,
    judged: Judged,
    coverage: Option<Coverage>,
) -> Result<SourceOutput> {
    if judged.admitted.is_empty() {
        let details = judged.rows.iter().filter_map(|row| row.detail.clone());
        let account: BTreeSet<String> = details.take(50).collect();
        let account: Vec<String> = account.into_iter().take(5).collect();
        let account = if account.is_empty() { "there was none".into() } else { account.join("; ") };
        return Err(ScenarioError::NothingAdmitted { account }.into());
    }
    let tasks =
        judged.admitted.iter().map(|admitted| (admitted.scenario(), admitted.candidate.phrasing.clone()));
    let by = params.split_by.unwrap_or(SplitBy::Entity);
    let (train, heldout) = split::divide(tasks.collect(), by, params.heldout_share, context.seed);
    Ok(SourceOutput { train, heldout, admission: judged.rows, coverage, ..SourceOutput::default() })
}

/// Takes of each source what its weight allows, in the sources' own order of tasks. A sentence counts once.
async fn mixed(context: &Context, params: &Params, mix: &BTreeMap<Source, f64>) -> Result<SourceOutput> {
    let mut all = SourceOutput::default();
    let mut parts = Vec::new();
    for (source, weight) in mix {
        let made = from(context, params, *source).await?;
        all.admission.extend(made.admission);
        for (why, count) in made.dropped {
            *all.dropped.entry(why).or_default() += count;
        }
        all.coverage = made.coverage.or(all.coverage);
        parts.push((*weight, made.train, made.heldout));
    }
    let held: BTreeSet<String> =
        parts.iter().flat_map(|(_, _, heldout)| heldout).map(|task| candidate::normal(&task.task)).collect();
    for (_, train, _) in &mut parts {
        // Another source may hold the same task out.
        train.retain(|task| !held.contains(&candidate::normal(&task.task)));
    }
    let (train, heldout): (Vec<_>, Vec<_>) =
        parts.into_iter().map(|(weight, train, heldout)| ((weight, train), (weight, heldout))).unzip();
    all.train = weighted(train);
    all.heldout = weighted(heldout);
    Ok(all)
}

fn weighted(parts: Vec<(f64, Vec<Scenario>)>) -> Vec<Scenario> {
    #[expect(clippy::cast_precision_loss, reason = "a number of tasks")]
    let scale = parts
        .iter()
        .filter(|(_, tasks)| !tasks.is_empty())
        .map(|(weight, tasks)| tasks.len() as f64 / weight)
        .fold(f64::INFINITY, f64::min);
    let mut seen = BTreeSet::new();
    let mut taken = Vec::new();
    for (weight, tasks) in parts {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at most the number of tasks"
        )]
        let most = (weight * scale).round() as usize;
        taken.extend(tasks.into_iter().take(most).filter(|task| seen.insert(candidate::normal(&task.task))));
    }
    taken
}

/// The row of a task that was not executed here, or was when it was made.
fn admitted(scenario: &Scenario) -> Admission {
    let calls: Vec<ToolCall> =
        scenario.reference.as_deref().and_then(|calls| serde_json::from_str(calls).ok()).unwrap_or_default();
    Admission {
        id: scenario.id.clone(),
        family: scenario.family.clone(),
        task: scenario.task.clone(),
        verdict: "admitted".into(),
        reason: None,
        detail: None,
        calls: u32::try_from(calls.len()).unwrap_or(u32::MAX),
        ..Admission::default()
    }
}

fn refused(family: String, task: String, reason: Reason, detail: String) -> Admission {
    Admission {
        id: String::new(),
        family,
        task,
        verdict: "refused".into(),
        reason: Some(reason.name().into()),
        detail: Some(detail.chars().take(300).collect()),
        ..Admission::default()
    }
}

fn metrics(made: &SourceOutput) -> Metrics {
    let mut metrics = Metrics::new();
    let mut count = |name: String, number: usize| _ = metrics.insert(name, number as f64);
    let families: BTreeSet<&str> =
        made.train.iter().chain(&made.heldout).map(|s| s.family.as_str()).collect();
    count("families".into(), families.len());
    count("train".into(), made.train.len());
    count("heldout".into(), made.heldout.len());
    let known: BTreeSet<&str> = made.train.iter().flat_map(words).collect();
    for split in UNSEEN {
        let of_split: Vec<&Scenario> = made.heldout.iter().filter(|s| s.split == split).collect();
        if !of_split.is_empty() {
            let words: BTreeSet<&str> = of_split.iter().copied().flat_map(words).collect();
            count(split.to_owned(), of_split.len());
            count(format!("new_words_{split}"), words.difference(&known).count());
        }
    }
    for why in Dropped::ALL {
        count(format!("dropped_{}", why.name()), made.dropped.get(&why).copied().unwrap_or_default());
    }
    count("candidates".into(), made.admission.len());
    count("admitted".into(), made.admission.iter().filter(|row| row.reason.is_none()).count());
    for reason in Reason::ALL {
        let of_reason = made.admission.iter().filter(|row| row.reason.as_deref() == Some(reason.name()));
        count(format!("refused_{}", reason.name().replace('-', "_")), of_reason.count());
    }
    if let Some(coverage) = &made.coverage {
        count("tools".into(), coverage.tools);
        count("tools_covered".into(), coverage.covered_tools);
        count("params".into(), coverage.params);
        count("params_covered".into(), coverage.covered_params);
        for calls in 1..=5_u32 {
            let is_long = |row: &&Admission| {
                row.reason.is_none() && (row.calls == calls || calls == 5 && row.calls > 5)
            };
            count(format!("calls_{calls}"), made.admission.iter().filter(is_long).count());
        }
    }
    metrics
}

/// The words of a task as written.
fn words(scenario: &Scenario) -> impl Iterator<Item = &str> {
    scenario.task.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty())
}
