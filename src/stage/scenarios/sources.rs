//! The tasks of each source.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use super::{
    error::ScenariosError,
    params::{Params, TaskSource},
};
use crate::{
    data::{Admission, Facts, Scenario, Tool, folded},
    error::Result,
    llm::{Budget, Client, Endpoint, LanguageModel, Provider},
    mcp::Servers,
    stage::{
        Context, StageError,
        local_model::{self, LocalModel, LocalSettings},
        replies::Replies,
    },
    tasks::{
        admission,
        candidate::Candidate,
        checked,
        explored::{self, Coverage, Guide},
        families::Families,
        file,
        grounded::{self, Grounded, QuestionCounts},
        live::Live,
        llm::{self, ReplyContext},
        mix,
        refusals::{Admitted, EXAM, Judged, Reason, admitted_row, hold_out, refused_row},
        runner,
        solution::Dropped,
        split::{self, SplitBy},
        traces,
        writer::Writer,
    },
    usage::Usage,
};

/// Results that a generator sees, and the bytes of each.
const EXAMPLES: usize = 120;
const EXAMPLE_BYTES: usize = 700;
/// Most tokens that the engine's model writes for a wording.
const WORDING_TOKENS: u32 = 256;

/// What a source made.
#[derive(Debug, Default)]
pub struct SourceOutput {
    pub train: Vec<Scenario>,
    pub heldout: Vec<Scenario>,
    pub admission: Vec<Admission>,
    pub dropped: BTreeMap<Dropped, usize>,
    pub coverage: Option<Coverage>,
    /// What exploration knows of the server.
    pub guide: Option<Guide>,
}

/// Makes the tasks of the stage's source.
///
/// # Errors
/// If a file cannot be read, a server or language model cannot be reached, or no task is admitted.
pub async fn make(context: &Context, params: &Params, held_out: &Facts) -> Result<SourceOutput> {
    let mut made = match &params.mix {
        Some(mix) if params.source == TaskSource::Mix => mixed(context, params, mix, held_out).await?,
        _ => of_source(context, params, params.source, held_out).await?,
    };
    made.hold_out(held_out);
    let is_held = |row: &&Admission| row.reason.as_deref() == Some(Reason::HeldOut.name());
    let count = made.admission.iter().filter(is_held).count();
    if count > 0 {
        let asks = if count == 1 { "1 task asks" } else { &format!("{count} tasks ask") };
        context
            .observer
            .note(&format!("{asks} what held-out tasks ask: left out, with the reason in `admission`"));
    }
    Ok(made)
}

impl SourceOutput {
    /// Leaves out what other tables hold out, and of the training tasks those that ask what a held-out one asks.
    fn hold_out(&mut self, others: &Facts) {
        let Self { train, heldout, admission, .. } = self;
        hold_out(heldout, admission, others, EXAM);
        hold_out(train, admission, others, EXAM);
        hold_out(train, admission, &Facts::of_exam(&*heldout), EXAM);
    }
}

/// A path that [`Params::complete`] has found.
fn given<'p>(
    path: Option<&'p PathBuf>,
    origin: &'static str,
    param: &'static str,
) -> Result<&'p PathBuf, ScenariosError> {
    path.ok_or(ScenariosError::NoParam { origin, param })
}

async fn of_source(
    context: &Context,
    params: &Params,
    source: TaskSource,
    held_out: &Facts,
) -> Result<SourceOutput> {
    match source {
        TaskSource::Grounded => from_families(context, params).await,
        TaskSource::File => from_file(context, params, held_out).await,
        TaskSource::Explored => from_exploration(context, params, held_out).await,
        TaskSource::Traces => from_traces(context, params).await,
        TaskSource::Llm => from_model(context, params).await,
        TaskSource::Mix => Ok(SourceOutput::default()),
    }
}

async fn from_file(context: &Context, params: &Params, held_out: &Facts) -> Result<SourceOutput> {
    let path = given(params.file.as_ref(), "file", "file")?;
    let (train, heldout) = file::load(path, params.hold_out(context.seed))?;
    // One sentence on both sides is a mistake of its author; the same in other words is left out of training.
    split::check_frozen(&train, &heldout, None)?;
    if let Some(tools) = context.read_optional("tools")? {
        let all: Vec<&Scenario> = train.iter().chain(&heldout).collect();
        checked::check_all(&file::name(path), &all, tools, context.servers.as_ref()).await?;
    }
    let is_explored = params.explores_for(&train);
    let lacks = [
        (train.is_empty() && !is_explored, "no task is left to train on: lower"),
        (heldout.is_empty(), "no task is held out, so there is nothing to examine a policy with: raise"),
    ];
    for (_, lack) in lacks.into_iter().filter(|(lacks, _)| *lacks) {
        context.observer.note(&format!(
            "{}: {lack} heldout_share, or give tasks a `split` of their own (train or heldout)",
            path.display()
        ));
    }
    let admission = train.iter().chain(&heldout).map(admitted_row).collect();
    let made = SourceOutput { train, heldout, admission, ..SourceOutput::default() };
    if is_explored { trained_by_exploration(context, params, made, held_out).await } else { Ok(made) }
}

/// Adds training tasks by exploration to those of a file, which are all held out. None asks what one of these asks.
async fn trained_by_exploration(
    context: &Context,
    params: &Params,
    mut made: SourceOutput,
    others: &Facts,
) -> Result<SourceOutput> {
    let mut held_out = Facts::of_exam(&made.heldout);
    held_out.extend(others.clone());
    let explored = explore(context, params, params.budget(), &held_out).await?;
    let added =
        divided(context, params, TaskSource::File, explored.judged, Some(explored.coverage), 0.0).await?;
    context.observer.note(&format!(
        "all tasks of the file are held out: exploration makes those that are trained on, {}",
        added.train.len()
    ));
    made.admission.extend(added.admission);
    Ok(SourceOutput {
        heldout: made.heldout,
        admission: made.admission,
        guide: Some(explored.guide),
        ..added
    })
}

fn servers(context: &Context) -> Result<&Servers> {
    Ok(context.servers.as_ref().ok_or_else(|| StageError::NoInput { role: "server".into() })?)
}

async fn from_families(context: &Context, params: &Params) -> Result<SourceOutput> {
    let servers = servers(context)?;
    let tools: Vec<Tool> = context.read("tools")?;
    let families = Families::load(given(params.families.as_ref(), "grounded", "families")?)?;
    let live = Live::new(servers, &tools);
    let quota =
        QuestionCounts { per_family: params.questions_per_family, per_split: params.heldout_per_split };
    let (observer, cancel) = (&*context.observer, &context.cancel);
    let made = grounded::generate(&families, &tools, &live, quota, context.seed, observer, cancel).await;
    context.meter.add(Usage { tool_calls: live.calls() as u64, ..Usage::default() });
    live.close().await;
    let made = made?;
    let refused = made.refused.iter().map(|(family, why, detail)| {
        let reason = match why {
            Dropped::Failed | Dropped::Unanswerable | Dropped::Truncated => Reason::Unsolvable,
            Dropped::Ambiguous => Reason::Ambiguous,
            Dropped::Duplicate => Reason::Duplicate,
        };
        refused_row(family.clone(), String::new(), reason, &format!("{}: {detail}", why.name()))
    });
    let admission = made.train.iter().chain(&made.heldout).map(admitted_row).chain(refused).collect();
    let Grounded { train, heldout, dropped, .. } = made;
    Ok(SourceOutput { train, heldout, admission, dropped, ..SourceOutput::default() })
}

async fn explore(
    context: &Context,
    params: &Params,
    budget: explored::Budget,
    held_out: &Facts,
) -> Result<explored::Explored> {
    let tools: Vec<Tool> = context.read("tools")?;
    let task = explored::ExploreInputs { held_out: Some(held_out), ..task(context, params, &tools, budget)? };
    let explored = explored::explore(&task).await?;
    context.meter.add(Usage { tool_calls: explored.calls as u64, ..Usage::default() });
    Ok(explored)
}

async fn from_exploration(context: &Context, params: &Params, held_out: &Facts) -> Result<SourceOutput> {
    let explored = explore(context, params, params.budget(), held_out).await?;
    let (judged, coverage) = (explored.judged, Some(explored.coverage));
    let made = divided(context, params, TaskSource::Explored, judged, coverage, params.heldout_share).await?;
    Ok(SourceOutput { guide: Some(explored.guide), ..made })
}

/// Adds explored tasks to those for a start, up to `lessons`, where the tasks lack reference solutions. None is asked for
/// elsewhere. No lesson asks what a held-out task asks. Returns what exploration knows of the server.
///
/// # Errors
/// If the server cannot be explored. A server that gives no task is noted.
pub async fn add_lessons(
    context: &Context,
    params: &Params,
    start: &mut Vec<Scenario>,
    train: &[Scenario],
    held_out: &Facts,
) -> Result<Option<Guide>> {
    let wanted = params.lessons().saturating_sub(start.len());
    if wanted == 0 {
        return Ok(None);
    }
    let budget = explored::Budget { tasks: wanted, ..params.budget() };
    let mut explored = explore(context, params, budget, held_out).await?;
    word(context, params, TaskSource::File, &mut explored.judged).await?;
    let known: BTreeSet<String> = train.iter().chain(&*start).map(|task| folded(&task.task)).collect();
    let lessons = explored.judged.admitted.iter().map(Admitted::scenario);
    let before = start.len();
    start.extend(lessons.filter(|lesson| !known.contains(&folded(&lesson.task))));
    context
        .observer
        .note(&format!("exploration adds {} tasks with solutions to `start`", start.len() - before));
    Ok(Some(explored.guide))
}

async fn from_traces(context: &Context, params: &Params) -> Result<SourceOutput> {
    let tools: Vec<Tool> = context.read("tools")?;
    let path = given(params.traces.as_ref(), "traces", "traces")?;
    let servers = servers(context)?;
    let (mut candidates, mut early) = (Vec::new(), Vec::new());
    for (place, one) in traces::load(path, &explored::callable(&tools, servers, &params.explore_writes))? {
        match one {
            Ok(candidate) => candidates.push(candidate),
            Err((reason, detail)) => {
                let detail = format!("{place}: {detail}");
                early.push(refused_row("traces".into(), String::new(), reason, &detail));
            }
        }
    }
    // A few calls of tools that read, to see whether the conversations' calls change anything.
    let sampled = match servers.is_read_only() {
        true => Some(sample(context, params, &tools, 2 * tools.len()).await?),
        false => None,
    };
    let guide = sampled.as_ref().map(explored::Sampled::guide);
    let judged = admit(context, params, &tools, candidates, sampled).await?;
    let made = finish(context, params, TaskSource::Traces, &tools, judged, early).await?;
    Ok(SourceOutput { guide, ..made })
}

/// The client of the endpoint that writes tasks.
fn client(context: &Context, params: &Params) -> Result<Client> {
    let missing = |param| ScenariosError::NoParam { origin: "llm", param };
    let base_url = params.base_url.clone().ok_or(missing("base_url"))?;
    let budget = match (params.max_cost, context.prices) {
        (None, _) => None,
        (Some(dollars), Some(prices)) => Some(Budget { dollars, prices }),
        (Some(_), None) => return Err(ScenariosError::NoPrices.into()),
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

/// The language model of the stage.
enum Model {
    Endpoint(Client),
    Local(LocalModel),
}

impl Model {
    async fn open(context: &Context, local: LocalSettings, params: &Params) -> Result<Self> {
        match local_model::is_given(context) {
            true => Ok(Self::Local(LocalModel::open(context, local).await?)),
            false => Ok(Self::Endpoint(client(context, params)?)),
        }
    }

    fn asking<'a>(&'a self, context: &'a Context, replies: &'a Replies<'_>) -> ReplyContext<'a> {
        let model: &dyn LanguageModel = match self {
            Self::Endpoint(client) => client,
            Self::Local(local) => local,
        };
        ReplyContext { model, replies, observer: &*context.observer, cancel: &context.cancel }
    }

    /// Adds what it used.
    async fn close(self, context: &Context) {
        match self {
            Self::Endpoint(client) => context.meter.add(client.resources()),
            Self::Local(local) => {
                context.meter.add(local.resources());
                local.close().await;
            }
        }
    }
}

async fn from_model(context: &Context, params: &Params) -> Result<SourceOutput> {
    let tools: Vec<Tool> = context.read("tools")?;
    // Refused before the server is called.
    if !local_model::is_given(context) {
        client(context, params)?;
    }
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
    let model = Model::open(context, params.local(), params).await?;
    let replies = Replies::of(context)?;
    let written = llm::generate(&request, &model.asking(context, &replies)).await;
    model.close(context).await;
    let (mut candidates, mut early) = (Vec::new(), Vec::new());
    for one in written? {
        match one {
            Ok(candidate) => candidates.push(candidate),
            Err((text, (reason, detail))) => early.push(refused_row("llm".into(), text, reason, &detail)),
        }
    }
    let guide = Some(sampled.guide());
    let judged = admit(context, params, &tools, candidates, Some(sampled)).await?;
    let made = finish(context, params, TaskSource::Llm, &tools, judged, early).await?;
    Ok(SourceOutput { guide, ..made })
}

fn task<'a>(
    context: &'a Context,
    params: &'a Params,
    tools: &'a [Tool],
    budget: explored::Budget,
) -> Result<explored::ExploreInputs<'a>> {
    params.values.check(tools)?;
    params.explore_writes.check(tools)?;
    Ok(explored::ExploreInputs {
        servers: servers(context)?,
        tools,
        examples: &params.values,
        writes: &params.explore_writes,
        held_out: None,
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
    let task = task(context, params, tools, explored::Budget { calls, ..params.budget() })?;
    let live = Live::new(task.servers, tools);
    let sampled = {
        let runner = task.explorer(&live);
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
    let task = task(context, params, tools, params.budget())?;
    let breaking = sampled.as_ref().map(|sampled| sampled.breaking.clone()).unwrap_or_default();
    let [one, two] = [(); 2].map(|()| Live::new(task.servers, tools));
    let judged = {
        let runners = task.runners([&one, &two]);
        let judged = admission::admit(candidates, &task.tool_names(), &breaking, &runners).await;
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
async fn finish(
    context: &Context,
    params: &Params,
    source: TaskSource,
    tools: &[Tool],
    mut judged: Judged,
    early: Vec<Admission>,
) -> Result<SourceOutput> {
    judged.rows.extend(early);
    judged.trim(params.tasks);
    let coverage = Coverage::of(tools, &judged);
    divided(context, params, source, judged, Some(coverage), params.heldout_share).await
}

/// Words admitted tasks anew, where there is a language model.
async fn word(context: &Context, params: &Params, source: TaskSource, judged: &mut Judged) -> Result<()> {
    let has_model = local_model::is_given(context) || params.base_url.is_some();
    let share = params.reworded(source, has_model);
    if judged.admitted.is_empty() || share == 0.0 {
        return Ok(());
    }
    let tools: Vec<Tool> = context.read("tools")?;
    let local = params.local();
    let local = LocalSettings { max_tokens: local.max_tokens.min(WORDING_TOKENS), ..local };
    let model = Model::open(context, local, params).await?;
    let replies = Replies::of(context)?;
    let asking = model.asking(context, &replies);
    let writer = Writer { asking: &asking, prompt: context.text("write"), tools: &tools, seed: context.seed };
    let worded = writer.word(judged, share).await;
    model.close(context).await;
    worded
}

/// Words admitted tasks anew, and holds out a share of them.
async fn divided(
    context: &Context,
    params: &Params,
    source: TaskSource,
    mut judged: Judged,
    coverage: Option<Coverage>,
    share: f64,
) -> Result<SourceOutput> {
    if judged.admitted.is_empty() {
        let details = judged.rows.iter().filter_map(|row| row.detail.clone());
        let account: BTreeSet<String> = details.take(50).collect();
        let account: Vec<String> = account.into_iter().take(5).collect();
        let account = if account.is_empty() { "there was none".into() } else { account.join("; ") };
        return Err(ScenariosError::NothingAdmitted { account, limit: judged.limit }.into());
    }
    word(context, params, source, &mut judged).await?;
    let mut tasks: Vec<split::Marked> = judged.admitted.iter().map(split::Marked::of).collect();
    split::drop_common(&mut tasks);
    let by = params.split_by.unwrap_or(SplitBy::Entity);
    let (train, heldout) = split::divide(tasks, by, share, context.seed);
    Ok(SourceOutput { train, heldout, admission: judged.rows, coverage, ..SourceOutput::default() })
}

/// Draws of each source as many tasks as its weight allows. A sentence counts once.
async fn mixed(
    context: &Context,
    params: &Params,
    mix: &BTreeMap<TaskSource, f64>,
    held_out: &Facts,
) -> Result<SourceOutput> {
    let mut all = SourceOutput::default();
    let mut parts = Vec::new();
    for (source, weight) in mix {
        let made = of_source(context, params, *source, held_out).await?;
        for (why, count) in made.dropped {
            *all.dropped.entry(why).or_default() += count;
        }
        all.coverage = made.coverage.or(all.coverage);
        all.guide = all.guide.or(made.guide);
        parts.push((*weight, made.train, made.heldout, made.admission));
    }
    // Before the draw, so that other tasks take their place. Another source may have a task of the same id.
    for (_, _, heldout, rows) in &mut parts {
        hold_out(heldout, rows, held_out, EXAM);
    }
    let mut held = Facts::of_exam(parts.iter().flat_map(|(_, _, heldout, _)| heldout));
    held.extend(held_out.clone());
    let (mut train, mut heldout) = (Vec::new(), Vec::new());
    for (weight, mut tasks, exam, mut rows) in parts {
        hold_out(&mut tasks, &mut rows, &held, EXAM);
        train.push((weight, tasks));
        heldout.push((weight, exam));
        all.admission.extend(rows);
    }
    all.train = mix::draw(train, context.seed);
    all.heldout = mix::draw(heldout, context.seed);
    // As after exploration, the table has no row of a task that was not drawn.
    let drawn = all.train.iter().chain(&all.heldout);
    let mut drawn: BTreeSet<&str> = drawn.map(|task| task.id.as_str()).collect();
    all.admission.retain(|row| row.reason.is_some() || drawn.remove(row.id.as_str()));
    Ok(all)
}
