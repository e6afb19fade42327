//! The report of one run.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{
    Tone,
    answer::{Action, Answer, answer},
    document::{Block, Cell, Document, Table, Transcript},
    parts::{command, failed_cell, server_of, state, tool_cell},
    plot::{self, Effect, Plot, Point, Scale, StackPart},
};
use crate::{
    data::{self, EpisodeRow, OutcomeRow, Role, VerdictRow},
    engine::{EngineSpec, SplitMode},
    eval::{Finding, Headline, Sentence},
    exec::RunState,
    model::{ModelConfig, Weights, kernels::Format},
    text,
    usage::Usage,
    view::{
        Missing, Run, Stage, calls,
        curves::{self, Curves},
        exam::{self, Change, Exam, Pair},
    },
};

/// Most examples of each kind of change.
const EXAMPLES: usize = 3;
/// Most rows by family or tool that are shown unfolded.
const ROWS: usize = 40;
const SMALL: (f64, f64) = (340.0, 200.0);
const WIDE: (f64, f64) = (1040.0, 300.0);

/// The report.
pub fn report(run: &Run) -> Document {
    let (curves, exams) = (curves::curves(run), exam::exams(run));
    let mut page = Document { title: format!("Run {}", run.id), subtitle: subtitle(run), blocks: Vec::new() };
    verdict(&mut page, run, &exams);
    let answer = answer(run, "");
    failing(&mut page, &answer);
    next(&mut page, &answer);
    set_up(&mut page, run);
    training(&mut page, &curves);
    let pairs: Vec<_> = exams.iter().map(|found| found.pairs(run)).collect();
    for (found, pairs) in exams.iter().zip(&pairs) {
        examples(&mut page, run, found, pairs.as_deref().unwrap_or_default());
    }
    tools(&mut page, run, &exams);
    cost(&mut page, run);
    reproduce(&mut page, run);
    let unread = exams.iter().zip(&pairs);
    let unread = unread.filter_map(|(found, pairs)| Some((found.stage.as_str(), pairs.as_ref().err()?)));
    limits(&mut page, run, &curves, &exams, &unread.collect::<Vec<_>>());
    page
}

fn subtitle(run: &Run) -> String {
    let state = state(run.state);
    let began = run.began_ms.map(|ms| format!(", began {}", utc(ms))).unwrap_or_default();
    format!("mcprl, {state}{began}, {} of running time", duration(run.seconds))
}

/// `2026-11-22 18:56 UTC`. The local time would differ from reader to reader.
fn utc(ms: u64) -> String {
    let time = i64::try_from(ms).ok().and_then(chrono::DateTime::from_timestamp_millis);
    time.map(|time| time.format("%Y-%m-%d %H:%M UTC").to_string()).unwrap_or_default()
}

pub(super) fn duration(seconds: f64) -> String {
    match seconds {
        _ if seconds < 100.0 => format!("{seconds:.1} s"),
        _ if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

fn percent(share: f64) -> String {
    text::percent(share, 1)
}

/// What the run asks, and the answer.
fn verdict(page: &mut Document, run: &Run, exams: &[Exam]) {
    page.heading("Verdict");
    let server = server_of(run).map(|server| server.name).filter(|name| !name.is_empty());
    let server = server.map_or_else(|| "the server".to_owned(), |name| format!("the server {name}"));
    if exams.is_empty() {
        let text = match run.stages.iter().find(|stage| stage.artifact("verdict").is_some()) {
            Some(stage) => format!("The verdict of {} is no longer in the cache.", stage.id),
            None => "This run has compared no policies yet.".to_owned(),
        };
        page.push(Block::Statement(Tone::Faint, text));
        return;
    }
    for found in exams {
        let tasks = found.rows_of("all").next().map_or(0, |row| row.scenarios);
        if let Some((baseline, others)) =
            found.policies.split_first().filter(|(_, others)| !others.is_empty())
        {
            page.text(format!(
                "Question: is {} better than {baseline} at the tools of {server}, on {tasks} held-out tasks that both play? ({}, {})",
                others.join(" or "),
                found.stage,
                mode_name(&found.mode),
            ));
        }
        statements(page, &found.sentences);
        if let Some(headline) = &found.headline {
            headline.advice.iter().for_each(|advice| page.text(advice.sentence()));
            page.table(standings(headline));
        }
        if let Some(plot) = verdict_plot(found) {
            page.push(Block::Plots(
                vec![plot],
                "Gain in success over the baseline in points, with its 95 % interval. Green: better; red: worse; grey: no measurable gain.".into(),
            ));
        }
        // The row of a vote has an upper bound.
        let vote = found.rows_of("all").find_map(|row| Some((row, row.success_any?)));
        if let Some((row, share)) = vote {
            page.text(format!(
                "{} is the answer that most episodes of {} give, of several sampled ones. At least one of them is right on {} % of the tasks (pass@N): an upper bound, because only the known answer tells which one.",
                row.policy,
                found.policies[0],
                percent(share),
            ));
        }
        for scope in ["split", "kind", "family", "tool"] {
            let table = by_slice(found, scope);
            if !table.rows.is_empty() {
                let title = format!("By {scope}: {} rows", table.rows.len());
                page.push(Block::Details(title, vec![Block::Table(table)]));
            }
        }
    }
}

/// Why tasks fail, and the kinds that fail most.
fn failing(page: &mut Document, answer: &Answer) {
    let Some(failed) = &answer.failed else { return };
    page.heading("Where it fails");
    page.text(format!(
        "{} of {} tasks of {} have a wrong answer. `mcprl report RUN --server` goes on from here.",
        failed.failed_tasks, failed.tasks, failed.policy
    ));
    page.table(Table::of(failed.causes.iter().take(5), |cause| {
        [
            ("cause", Cell::text(cause.cause)),
            ("tasks", Cell::number(cause.tasks.to_string())),
            ("meaning", Cell::text(cause.meaning)),
        ]
    }));
    page.table(Table::of(&answer.kinds, |kind| {
        let share = |share: Option<f64>| Cell::number(share.map_or(String::new(), percent));
        let tone = if kind.is_small { Tone::Faint } else { Tone::Plain };
        [
            ("kind", Cell::code(kind.name.clone()).tone(tone)),
            ("failed", Cell::number(kind.failed.to_string())),
            ("of", Cell::number(kind.tasks.to_string()).tone(tone)),
            ("before %", share(kind.base)),
            ("after %", share(Some(kind.success))),
        ]
    }));
    if answer.kinds.iter().any(|kind| kind.is_small) {
        page.text(format!(
            "Kinds of fewer than {} tasks come last: their shares say little.",
            super::answer::SMALL
        ));
    }
}

/// What to do next.
fn next(page: &mut Document, answer: &Answer) {
    if answer.next.is_empty() {
        return;
    }
    page.heading("What next");
    let item = |action: &Action| match &action.command {
        Some(command) => format!("{}: `{command}`", action.text),
        None => action.text.clone(),
    };
    page.push(Block::List(answer.next.iter().map(item).collect()));
    let toml: Vec<&str> = answer.next.iter().filter_map(|action| action.toml.as_deref()).collect();
    if !toml.is_empty() {
        page.text("In the run file:");
        page.push(Block::Code(toml.join("\n\n")));
    }
}

/// How well each policy does.
fn standings(headline: &Headline) -> Table {
    Table::of(&headline.policies, |standing| {
        let share = |share: Option<f64>| Cell::number(share.map_or(String::new(), percent));
        let is_advised = headline.advice.as_ref().is_some_and(|advice| advice.policy == standing.policy);
        [
            ("policy", Cell::code(standing.policy.clone())),
            ("success %", Cell::number(percent(standing.success))),
            ("95 %", Cell::number(format!("{} to {}", percent(standing.low), percent(standing.high)))),
            ("sampled %", share(standing.sampled)),
            ("all samples right %", share(standing.all_right.map(|(share, _)| share))),
            ("strict %", share(standing.by_protocol)),
            ("to use", Cell::text(if is_advised { "yes" } else { "" })),
        ]
    })
}

fn mode_name(mode: &str) -> &str {
    if mode == "greedy" { "greedy decoding" } else { "sampled" }
}

/// The sentences of a verdict, each in the colour of its own finding.
pub(super) fn statements(page: &mut Document, sentences: &[Sentence]) {
    for sentence in sentences {
        page.push(Block::Statement(tone(sentence.finding), sentence.text.clone()));
    }
}

pub(super) fn tone(finding: Option<Finding>) -> Tone {
    match finding {
        Some(Finding::Gain) => Tone::Good,
        Some(Finding::Regression) => Tone::Bad,
        _ => Tone::Plain,
    }
}

/// The 95 % interval of a row's gain, in points; empty for a baseline.
pub(super) fn gain_interval(row: &VerdictRow) -> String {
    match (row.gain_low, row.gain_high) {
        (Some(low), Some(high)) => format!("{} to {}", plot::points(low, 1), plot::points(high, 1)),
        _ => String::new(),
    }
}

/// A row of a forest plot; none for a baseline.
pub(super) fn effect(row: &VerdictRow, label: String) -> Option<Effect> {
    Some(Effect {
        label,
        count: row.scenarios,
        value: row.gain?,
        low: row.gain_low?,
        high: row.gain_high?,
        tone: tone(Finding::of(row)),
        is_total: row.scope == "all",
    })
}

/// The gains of the last policy: by split and in all, then by family.
pub fn verdict_plot(found: &Exam) -> Option<Plot> {
    let policy = found.policies.iter().skip(1).next_back()?;
    let baseline = found.policies.first()?;
    let of = |scope| found.rows_of(scope).filter(|row| row.policy == *policy).collect::<Vec<_>>();
    let (splits, families) = (of("split"), of("family"));
    let has_trained_cases = splits.iter().any(|row| data::is_of_trained_cases(&row.slice));
    let mut rows = of("all");
    if splits.len() > 1 {
        rows.extend(splits);
    }
    // With as many families as splits they are the same slices.
    if (2..=24).contains(&families.len()) {
        rows.extend(families);
    }
    let label = |row: &VerdictRow| match row.scope.as_str() {
        "all" if has_trained_cases => "all unseen cases".to_owned(),
        "all" => "all held-out tasks".to_owned(),
        "split" => row.slice.replace('_', " "),
        _ => row.slice.clone(),
    };
    let effects: Vec<Effect> = rows.into_iter().filter_map(|row| effect(row, label(row))).collect();
    plot::forest(&format!("{policy} against {baseline}: gain in points"), &effects)
}

fn by_slice(found: &Exam, scope: &str) -> Table {
    let scopes: &[&str] = if scope == "split" { &["all", "split"] } else { &[scope] };
    let is_shown = |row: &VerdictRow| scopes.contains(&row.scope.as_str()) && row.mode == found.mode;
    let rows = found.rows.iter().filter(|row| is_shown(&row.row));
    Table::of(rows, |exam::Row { row, finding, .. }| {
        let interval = format!("{} to {}", percent(row.success_low), percent(row.success_high));
        let gain = row.gain.map_or(String::new(), |gain| plot::points(gain, 1));
        let tone = tone(*finding);
        // An agent that knows nothing is compared with none.
        let of_none = if row.is_idle() { "" } else { "baseline" };
        [
            (scope, Cell::code(row.slice.clone())),
            ("tasks", Cell::number(row.scenarios.to_string())),
            ("policy", Cell::code(row.policy.clone())),
            ("success %", Cell::number(percent(row.success))),
            ("95 %", Cell::number(interval)),
            ("strict %", Cell::number(row.success_strict.map_or(String::new(), percent))),
            ("gain", Cell::number(gain).tone(tone)),
            ("95 %", Cell::number(gain_interval(row))),
            ("p", Cell::number(row.p_adjusted.map_or(String::new(), p_value))),
            ("finding", Cell::text(finding.map_or(of_none, Finding::label)).tone(tone)),
        ]
    })
}

fn p_value(p: f64) -> String {
    if p < 0.001 { "< 0.001".into() } else { format!("{p:.3}") }
}

fn set_up(page: &mut Document, run: &Run) {
    page.heading("Set-up");
    let mut facts = Vec::new();
    let mut fact = |name: &str, value: String| facts.push((name.to_owned(), value));
    if let Some(server) = server_of(run) {
        fact(
            "server",
            format!("{} {} ({}, MCP {})", server.name, server.version, server.transport, server.protocol),
        );
    }
    let with_tools = run.writers("tools").find_map(|stage| stage.table::<data::Tool>().ok());
    if let Some(tools) = with_tools {
        let names: Vec<String> =
            tools.into_iter().filter(|tool| !tool.synthetic).map(|tool| tool.name).collect();
        let shown = names.iter().take(12).cloned().collect::<Vec<_>>().join(", ");
        let more = if names.len() > 12 { ", …" } else { "" };
        fact("tools", format!("{}: {shown}{more}", names.len()));
    }
    for stage in &run.stages {
        let tasks: Vec<String> = stage
            .outputs
            .iter()
            .filter(|artifact| artifact.kind == <data::Scenario as data::Table>::NAME)
            .filter_map(|artifact| Some(format!("{} {}", stage.metric(&artifact.port)?, artifact.port)))
            .collect();
        if !tasks.is_empty() {
            fact("tasks", format!("{} ({})", tasks.join(", "), stage.id));
        }
    }
    for stage in run.stages.iter().filter(|stage| stage.iteration.is_none()) {
        if let Some(model) = model(stage) {
            fact("model", format!("{model} ({})", stage.id));
        }
    }
    let mut trainers: BTreeSet<&str> = BTreeSet::new();
    for stage in &run.stages {
        if let (Some(rank), Some(true)) =
            (stage.params.get("rank"), stage.params.get("lora").and_then(Value::as_bool))
            && trainers.insert(&stage.name)
        {
            fact("adapter", format!("LoRA of rank {rank} ({})", stage.name));
        }
    }
    for found in &run.loops {
        let done = found.iterations.iter().filter(|iteration| iteration.state.is_done()).count();
        fact("loop", format!("{}: {done} of {} iterations", found.name, found.iterations.len()));
    }
    for result in &run.loop_results {
        fact("result", result.clone());
    }
    if let Some(seed) = run.seed {
        fact("seed", seed.to_string());
    }
    if let Some(engine) = &run.engine {
        fact("engine", engine_settings(engine, &run.stages));
    }
    for machine in &run.machines {
        fact("machine", machine.clone());
    }
    page.push(Block::Facts(facts));
    let mut params = Table::new(["stage", "parameters"]);
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for stage in run.stages.iter().filter(|stage| !stage.params.is_empty()) {
        if seen.insert(&stage.name) {
            let all: Vec<String> =
                stage.params.iter().map(|(name, value)| format!("{name} = {value}")).collect();
            params.row([Cell::code(stage.name.clone()), Cell::text(all.join(", "))]);
        }
    }
    if !seen.is_empty() {
        let title = format!("Parameters of {} stages", seen.len());
        page.push(Block::Details(title, vec![Block::Table(params)]));
    }
}

/// The section `[engine]`, with the `dtype` of the models where it leaves that out.
fn engine_settings(spec: &EngineSpec, stages: &[Stage]) -> String {
    let EngineSpec { devices, split, threads, dtype, kv_cache_mib } = spec;
    let policies = stages.iter().filter_map(|stage| stage.artifact("policy"));
    let models = policies.filter_map(|policy| Weights::open(&policy.path).ok());
    let stored: BTreeSet<Format> = models.map(|model| model.format()).collect();
    let mut all = vec![format!("devices = {}", json!(devices))];
    all.extend((*split != SplitMode::default()).then(|| format!("split = {}", json!(split))));
    match dtype {
        Some(dtype) => all.push(format!("dtype = {}", json!(dtype))),
        None => all.extend(stored.iter().map(|stored| format!("dtype = {} (the model's)", json!(stored)))),
    }
    all.extend(threads.map(|threads| format!("threads = {threads}")));
    all.extend(kv_cache_mib.map(|size| format!("kv_cache_mib = {size}")));
    all.join(", ")
}

/// The name and the size of the model that a stage writes, if it writes one that is still in the cache.
fn model(stage: &Stage) -> Option<String> {
    let artifact = stage.artifact("policy").filter(|artifact| artifact.is_present)?;
    let config = ModelConfig::load(&artifact.path).ok()?;
    let parameters = config.weights();
    let name = origin(stage.params.get("from"));
    Some(format!("{name}, {:.1} million parameters", parameters as f64 / 1e6))
}

/// Where a model is from, by the parameter `from` of its stage. A local file or folder is in the key by its digest.
fn origin(from: Option<&Value>) -> &str {
    match from {
        Some(Value::String(name)) => name,
        Some(_) => "of a local file",
        None => "made by the run",
    }
}

/// The success of every iteration with its interval, for each loop.
pub fn curve_plot(curves: &Curves) -> Option<Plot> {
    curves.loops.iter().find_map(success_plot)
}

fn success_plot(curve: &curves::Curve) -> Option<Plot> {
    let points = curve.points.iter().filter_map(|point| {
        let interval = point.interval.map(|rate| (rate.low, rate.high));
        Some(Point { x: f64::from(point.iteration), y: point.success?, interval })
    });
    let title = "Success in training, with its 95 % interval";
    plot::line(title, "iteration", &points.collect::<Vec<_>>(), Scale::Percent, (720.0, 280.0))
}

type OfPoint = fn(&curves::Point) -> Option<f64>;

fn training(page: &mut Document, curves: &Curves) {
    let measured = |curve: &&curves::Curve| {
        curve.points.iter().any(|point| point.success.is_some() || !point.metrics.is_empty())
    };
    if curves.alone.is_empty() && !curves.loops.iter().any(|curve| measured(&curve)) {
        return;
    }
    page.heading("Training");
    for curve in curves.loops.iter().filter(measured) {
        loop_curve(page, curve);
    }
    for alone in &curves.alone {
        let title = format!("Loss of {}", alone.stage);
        let point = |step: &data::Step| Point { x: f64::from(step.step), y: step.loss, interval: None };
        let points: Vec<Point> = alone.steps.iter().map(point).collect();
        if let Some(plot) = plot::line(&title, "step", &points, Scale::Values, SMALL) {
            let losses: Vec<f64> = points.iter().map(|point| point.y).collect();
            let caption = format!(
                "{title}: {} {} to {} in {} steps.",
                plot::sparkline(&losses, 24),
                plot::number(losses[0]),
                plot::number(losses[losses.len() - 1]),
                losses.len()
            );
            page.push(Block::Plots(vec![plot], caption));
        }
    }
}

fn loop_curve(page: &mut Document, curve: &curves::Curve) {
    page.subheading(format!("Loop {}", curve.name));
    let successes: Vec<f64> = curve.points.iter().filter_map(|point| point.success).collect();
    if let (Some(plot), Some(first), Some(last)) = (success_plot(curve), successes.first(), successes.last())
    {
        let caption = format!(
            "Success on training tasks: {} {} % to {} % in {} iterations. Each iteration draws other tasks, so neighbours differ by chance too.",
            plot::sparkline(&successes, 32),
            percent(*first),
            percent(*last),
            successes.len(),
        );
        page.push(Block::Plots(vec![plot], caption));
    }
    let charts: [(&str, OfPoint, Scale); 14] = [
        ("Success on tasks drawn for the first time", |point| point.success_new, Scale::Percent),
        ("Greedy success on tasks that nothing trains on", |point| point.success_greedy, Scale::Percent),
        ("Mean reward", |point| point.reward, Scale::Values),
        ("Loss", |point| point.loss, Scale::Values),
        ("Gradient norm", |point| point.gradient_norm, Scale::Values),
        ("Entropy in nats", |point| point.entropy, Scale::Values),
        ("Clipped tokens", |point| point.clip_fraction, Scale::Values),
        ("KL to the policy that played, at most", |point| point.moved_kl, Scale::Values),
        ("Learning rate", |point| point.learning_rate, Scale::Values),
        ("Share of calls in the template's form", |point| point.template_calls, Scale::Percent),
        ("Share of episodes answered by complete_task", |point| point.tool_answers, Scale::Percent),
        ("Tool errors per episode", |point| point.tool_errors, Scale::Values),
        ("Sampled tokens per episode", |point| point.sampled_tokens, Scale::Values),
        ("Seconds per iteration", |point| point.seconds, Scale::Values),
    ];
    let mut plots = Vec::new();
    let mut table = Table::new(["", "first", "last", "course"]);
    for (title, of, scale) in charts {
        let points: Vec<Point> = curve
            .points
            .iter()
            .filter_map(|point| Some(Point { x: f64::from(point.iteration), y: of(point)?, interval: None }))
            .collect();
        let (Some(first), Some(last)) = (points.first(), points.last()) else { continue };
        let values: Vec<f64> = points.iter().map(|point| point.y).collect();
        table.row([
            Cell::text(title),
            Cell::number(plot::number(first.y)),
            Cell::number(plot::number(last.y)),
            Cell::text(plot::sparkline(&values, 24)),
        ]);
        plots.extend(plot::line(title, "iteration", &points, scale, SMALL));
    }
    page.table(table);
    if !plots.is_empty() {
        page.push(Block::Plots(plots, "Means over the episodes or optimizer steps of an iteration.".into()));
    }
    signal(page, curve);
}

fn signal(page: &mut Document, curve: &curves::Curve) {
    let known: Vec<(u32, &crate::grpo::Signal)> =
        curve.points.iter().filter_map(|point| Some((point.iteration, point.signal.as_ref()?))).collect();
    if known.is_empty() {
        return;
    }
    type OfSignal = fn(&crate::grpo::Signal) -> u64;
    let parts: [(&'static str, &'static str, OfSignal); 4] = [
        ("with gradient", "blue", |signal| signal.groups_with_gradient),
        ("all right", "good", |signal| signal.all_right),
        ("all wrong", "bad", |signal| signal.all_wrong),
        ("equal rewards", "grey", |signal| signal.all_equal),
    ];
    let labels: Vec<u32> = known.iter().map(|(iteration, _)| *iteration).collect();
    let stack = parts.map(|(name, colour, of)| {
        let values = known.iter().map(|(_, signal)| of(signal) as f64).collect();
        StackPart { name, colour, values }
    });
    let title = "Groups by what they taught";
    let mut total = crate::grpo::Signal::default();
    known.iter().for_each(|(_, signal)| total += *signal);
    let of_groups = |count: u64| percent(count as f64 / total.groups.max(1) as f64);
    let reasons: Vec<String> = total
        .without_gradient
        .iter()
        .map(|(reason, count)| format!("{count} {}", serde_name(reason).replace('_', " ")))
        .collect();
    let mut caption = format!(
        "Of {} groups, {} % gave a gradient; in {} % all attempts were right, in {} % all were wrong.",
        total.groups,
        of_groups(total.groups_with_gradient),
        of_groups(total.all_right),
        of_groups(total.all_wrong),
    );
    if !reasons.is_empty() {
        caption += &format!(" Rollouts without a gradient: {}.", reasons.join(", "));
    }
    if let Some(plot) = plot::stacks(title, "iteration", &labels, &stack, WIDE) {
        page.push(Block::Plots(vec![plot], caption));
    }
}

fn serde_name(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

fn examples(page: &mut Document, run: &Run, found: &Exam, pairs: &[Pair]) {
    if pairs.is_empty() {
        return;
    }
    page.heading("Examples");
    let count = |change| pairs.iter().filter(|pair| pair.change == change).count();
    page.text(format!(
        "{}: {} tasks won, {} lost, {} still wrong, {} still right.",
        found.stage,
        count(Change::Won),
        count(Change::Lost),
        count(Change::StillWrong),
        count(Change::StillRight),
    ));
    let shown: Vec<(&str, Vec<&Pair>)> =
        [(Change::Won, "Won"), (Change::Lost, "Lost"), (Change::StillWrong, "Still wrong")]
            .map(|(change, title)| (title, spread(pairs.iter().filter(|pair| pair.change == change))))
            .into();
    let sides = shown.iter().flat_map(|(_, pairs)| pairs).flat_map(|pair| [&pair.base, &pair.other]);
    let positions: BTreeSet<usize> = sides.map(|side| side.position).collect();
    let stage = run.stage(&found.stage);
    let episodes: Vec<EpisodeRow> =
        stage.and_then(|stage| stage.table_part(&positions).ok()).unwrap_or_default();
    let episodes: BTreeMap<usize, &EpisodeRow> = positions.into_iter().zip(&episodes).collect();
    for (title, pairs) in shown {
        for pair in pairs {
            let conversations = [(&found.policies[0], &pair.base), (&pair.policy, &pair.other)];
            let talks = conversations
                .into_iter()
                .filter_map(|(policy, side)| Some(talk(policy, episodes.get(&side.position)?)));
            let task = pair.task.clone().unwrap_or_default();
            let expected = pair.expected.as_ref().map(|answer| format!("Expected: {answer}"));
            let mut blocks: Vec<Block> = expected.into_iter().map(Block::Text).collect();
            blocks.push(Block::Conversations(talks.collect()));
            let summary = format!("{title} ({}): {}", pair.family, super::escape::shortened(&task, 160));
            page.push(Block::Details(summary, blocks));
        }
    }
}

/// Some pairs of different families.
fn spread<'p>(pairs: impl Iterator<Item = &'p Pair>) -> Vec<&'p Pair> {
    let mut families = BTreeSet::new();
    let (mut first, mut rest) = (Vec::new(), Vec::new());
    for pair in pairs {
        if families.insert(&pair.family) { first.push(pair) } else { rest.push(pair) }
    }
    first.into_iter().chain(rest).take(EXAMPLES).collect()
}

fn talk(policy: &str, episode: &EpisodeRow) -> Transcript {
    let right = episode.correct == Some(true);
    Transcript {
        title: format!("{policy}: {}", if right { "right" } else { "wrong" }),
        tone: if right { Tone::Good } else { Tone::Bad },
        // The system message and the task are the same for both.
        messages: episode
            .messages
            .iter()
            .filter(|message| !matches!(message.role, Role::System | Role::User))
            .cloned()
            .collect(),
        ending: ending(episode),
    }
}

/// How an episode ended, and its answer.
pub fn ending(episode: &EpisodeRow) -> String {
    match &episode.answer {
        Some(answer) => format!("{}, answer: {}", episode.end, super::escape::shortened(answer, 300)),
        None => format!("{}, no answer", episode.end),
    }
}

fn tools(page: &mut Document, run: &Run, exams: &[Exam]) {
    let mut sections: Vec<(String, Table)> = Vec::new();
    for found in exams {
        let Some(stage) = run.stage(&found.stage) else { continue };
        let (Ok(made), Ok(outcomes)) = (calls::of_stage(run, stage), stage.table::<OutcomeRow>()) else {
            continue;
        };
        let counted = found.counted();
        for (policy, mut part) in exam::by_policy(stage, &found.policies, &outcomes) {
            part.retain(|(_, episode)| counted.episode(episode));
            // A vote has no episodes of its own.
            if part.is_empty() {
                continue;
            }
            let ids: BTreeSet<&str> = part.iter().map(|(_, episode)| episode.id.as_str()).collect();
            let own: Vec<data::Call> =
                made.iter().filter(|call| ids.contains(call.trajectory_id.as_str())).cloned().collect();
            let of = part.iter().map(|(_, row)| *row);
            let table = tool_table(&calls::by_tool(&run.tools(stage).unwrap_or_default(), of, &own));
            let (stage, mode) = (&found.stage, &found.mode);
            sections.push((format!("{policy} in {stage}, {} {mode} episodes", ids.len()), table));
        }
    }
    if exams.is_empty()
        && let Some(stage) = run.writers("trajectories").filter(|stage| stage.is_played()).last()
        && let (Ok(made), Ok(outcomes)) = (calls::of_stage(run, stage), stage.table::<OutcomeRow>())
    {
        let found = calls::by_tool(&run.tools(stage).unwrap_or_default(), outcomes.iter(), &made);
        sections.push((format!("{}, {} episodes", stage.id, outcomes.len()), tool_table(&found)));
    }
    if sections.is_empty() {
        return;
    }
    page.heading("Tools");
    for (title, table) in sections {
        page.subheading(title);
        page.table(table);
    }
    page.text("Recovered: failed calls after which the episode called the tool without an error. `mcprl report RUN --server` goes on from here.");
}

fn tool_table(found: &[calls::ToolStatistics]) -> Table {
    Table::of(found.iter().take(ROWS), |tool| {
        let error = |name: &str| u64::from(tool.errors.get(name).copied().unwrap_or(0));
        let (server, schema) = (error("tool"), error("schema"));
        let right = (tool.known > 0).then(|| percent(f64::from(tool.right) / f64::from(tool.known)));
        let bytes = tool.result_bytes.map_or(String::new(), |bytes| format!("{bytes:.0}"));
        [
            ("tool", tool_cell(&tool.tool, tool.offered)),
            ("episodes", Cell::count(tool.episodes)),
            ("right %", Cell::number(right.unwrap_or_default())),
            ("calls", Cell::number(tool.calls.to_string())),
            ("failed", failed_cell(tool)),
            ("by the server", Cell::count(server)),
            ("by the schema", Cell::count(schema)),
            ("other", Cell::count(u64::from(tool.failed) - server - schema)),
            ("recovered", Cell::count(tool.recovered)),
            ("clipped", Cell::count(tool.clipped)),
            ("bytes per result", Cell::number(bytes)),
        ]
    })
}

fn cost(page: &mut Document, run: &Run) {
    page.heading("Cost and time");
    #[derive(Default)]
    struct StageCost {
        ran: u32,
        cached: u32,
        seconds: f64,
        saved: f64,
        usage: Usage,
        dollars: Option<f64>,
    }
    let mut by_name: Vec<(String, StageCost)> = Vec::new();
    for stage in &run.stages {
        let at = by_name.iter().position(|(name, _)| *name == stage.name).unwrap_or_else(|| {
            by_name.push((stage.name.clone(), StageCost::default()));
            by_name.len() - 1
        });
        let spent = &mut by_name[at].1;
        match stage.seconds {
            Some(seconds) => (spent.ran, spent.seconds) = (spent.ran + 1, spent.seconds + seconds),
            None => {
                (spent.cached, spent.saved) = (
                    spent.cached + u32::from(stage.state.is_done()),
                    spent.saved + stage.run_seconds.unwrap_or(0.0),
                );
            }
        }
        spent.usage += stage.usage.unwrap_or_default();
        if let Some(dollars) = stage.dollars {
            *spent.dollars.get_or_insert(0.0) += dollars;
        }
    }
    let amount = |count: u64| if count == 0 { String::new() } else { plot::number(count as f64) };
    let time = |seconds: f64| if seconds > 0.0 { duration(seconds) } else { String::new() };
    page.table(Table::of(by_name, |(name, spent)| {
        let dollars = spent.dollars.map_or(String::new(), |dollars| format!("{dollars:.4}"));
        [
            ("stage", Cell::code(name)),
            ("ran", Cell::count(spent.ran)),
            ("cached", Cell::count(spent.cached)),
            ("time", Cell::number(time(spent.seconds))),
            ("time when cached results were made", Cell::number(time(spent.saved))),
            ("sampled tokens", Cell::number(amount(spent.usage.sampled_tokens))),
            ("computed tokens", Cell::number(amount(spent.usage.computed_tokens))),
            ("trained tokens", Cell::number(amount(spent.usage.trained_tokens))),
            ("tool calls", Cell::number(amount(spent.usage.tool_calls))),
            ("endpoint requests", Cell::number(amount(spent.usage.judge_requests))),
            ("dollars", Cell::number(dollars)),
        ]
    }));
}

fn reproduce(page: &mut Document, run: &Run) {
    page.heading("How to reproduce it");
    let mut facts = vec![("mcprl".to_owned(), run.versions.join(", "))];
    let file = run.file.clone().unwrap_or_else(|| "run.toml".into());
    facts.push(("command".into(), command(&file, &run.set, &run.resample, &run.until)));
    if !run.resample.is_empty() {
        let note = "a resampled stage draws anew each time, so its result is another one";
        facts.push(("resampled".into(), format!("{}: {note}", run.resample.join(", "))));
    }
    page.push(Block::Facts(facts));
    page.text("The same keys mean the same inputs, parameters, seeds and code. On one machine the same keys give the same bytes.");
    let mut keys = Table::new(["stage", "kind", "state", "key"]);
    let mut folded = 0;
    for stage in &run.stages {
        // The first and last iteration stand for a loop.
        let is_end = stage.iteration.as_ref().is_none_or(|(name, number)| {
            let of_loop = run.loops.iter().find(|found| found.name == *name);
            let numbers =
                || of_loop.iter().flat_map(|found| &found.iterations).map(|iteration| iteration.number);
            numbers().min() == Some(*number) || numbers().max() == Some(*number)
        });
        if !is_end {
            folded += 1;
            continue;
        }
        keys.row([
            Cell::code(stage.id.clone()),
            Cell::text(stage.kind.clone().unwrap_or_default()),
            Cell::text(stage.state.name()),
            Cell::code(stage.key.map(|key| key.short()).unwrap_or_default()),
        ]);
    }
    let mut blocks = vec![Block::Table(keys)];
    if folded > 0 {
        blocks.push(Block::Text(format!(
            "{folded} stages of iterations in between are left out; `mcprl show {} --json` has all.",
            run.id
        )));
    }
    page.push(Block::Details(format!("Keys of {} stages", run.stages.len()), blocks));
    if let Some(text) = &run.text {
        let summary = format!("Run file {file}, without what looks like a secret");
        page.push(Block::Details(summary, vec![Block::Code(text.clone())]));
    }
}

fn limits(page: &mut Document, run: &Run, curves: &Curves, exams: &[Exam], unread: &[(&str, &Missing)]) {
    page.heading("Limits");
    let mut items: Vec<String> = Vec::new();
    if run.state != RunState::Finished {
        items.push(format!("The run is {}.", state(run.state)));
    }
    for found in exams {
        if let Some(all) = found.rows_of("all").next() {
            let by = match all.clustered_by.as_str() {
                "scenario" => "single tasks".to_owned(),
                "family" => format!("{} families", all.clusters),
                "entity" => format!("{} entities", all.clusters),
                other => format!("{} groups of one {other}", all.clusters),
            };
            items.push(format!(
                "{}: {} tasks; intervals count {by}. Rows with few tasks have wide intervals, and p is adjusted for all policies, modes and steps, not for the tables of a report.",
                found.stage, all.scenarios
            ));
        }
        let lost = run.stage(&found.stage).and_then(|stage| stage.metric("lost")).unwrap_or(0.0);
        if lost > 0.0 {
            items.push(format!(
                "{}: {lost} episodes were lost to server failures and are left out.",
                found.stage
            ));
        }
        let aged = run.stage(&found.stage).and_then(|stage| stage.metric("aged")).unwrap_or(0.0);
        if aged > 0.0 {
            items.push(format!(
                "{}: {aged} tasks are left out because their answer has changed on the server (table `replays`).",
                found.stage
            ));
        }
    }
    let unread = unread
        .iter()
        .map(|(stage, missing)| format!("The episodes of {stage} are {missing}, so there are no examples."));
    items.extend(unread);
    if exams.len() > 1 {
        items.push("The run compares policies more than once; the more often one looks, the more often chance looks like a gain.".into());
    }
    if !curves.loops.is_empty() {
        items.push("Curves show success on training tasks while the policy changes. Only the verdict is about tasks it has not seen.".into());
    }
    let gone = run.gone();
    if !gone.is_empty() {
        let shown = gone.iter().take(6).cloned().collect::<Vec<_>>().join(", ");
        let more = if gone.len() > 6 { format!(" and {} more", gone.len() - 6) } else { String::new() };
        items.push(format!("No longer in the cache, so left out here: {shown}{more}."));
    }
    let retries: u32 = run.stages.iter().map(|stage| stage.retries).sum();
    if retries > 0 {
        items.push(format!("Stages failed and were retried {retries} times."));
    }
    page.push(Block::List(items));
    for (stage, error) in run.stages.iter().filter_map(|stage| Some((stage, stage.error.clone()?))) {
        page.subheading(format!("{} failed", stage.id));
        page.push(Block::Code(error));
        if let Some(hint) = &stage.hint {
            page.text(format!("Hint: {hint}"));
        }
    }
    let mut seen = BTreeSet::new();
    let notes = run.stages.iter().flat_map(|stage| stage.notes.iter().map(move |note| (stage, note)));
    let notes = notes.filter(|(stage, note)| seen.insert((&stage.name, *note)));
    let notes: Vec<String> = notes.map(|(stage, note)| format!("{}: {note}", stage.id)).collect();
    if !notes.is_empty() {
        let count = notes.len();
        page.push(Block::Details(format!("{count} notes of stages"), vec![Block::List(notes)]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_of_a_local_file_is_not_made_by_the_run() {
        assert_eq!(origin(Some(&json!({"file": "3f0a"}))), "of a local file");
        assert_eq!(origin(Some(&json!("Qwen/Qwen3-0.6B"))), "Qwen/Qwen3-0.6B");
        assert_eq!(origin(None), "made by the run");
    }

    #[test]
    fn each_sentence_has_the_colour_of_its_own_finding() {
        let mut page = Document::default();
        let sentence = |finding, text: &str| Sentence { finding, text: text.into() };
        let all = [
            sentence(Some(Finding::NoMeasurableGain), "no measurable gain"),
            sentence(Some(Finding::Gain), "b beats a"),
            sentence(None, "alone"),
        ];
        statements(&mut page, &all);
        let tones = page.blocks.iter().filter_map(|block| match block {
            Block::Statement(tone, _) => Some(*tone),
            _ => None,
        });
        assert_eq!(tones.collect::<Vec<_>>(), [Tone::Plain, Tone::Good, Tone::Plain]);
    }
}
