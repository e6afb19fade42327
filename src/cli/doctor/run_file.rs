//! Checks each thing that a run file needs: whether it is available, and if not, what to do.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use super::{Finding, Verdict};
use crate::{
    cli::{
        listing::{self, Changed, PATIENCE},
        runtime,
    },
    engine::available,
    error::Result,
    exec::jobs::Queue,
    hash::Digest,
    mcp::{Description, ServerSpec, Servers},
    offered::Offered,
    plan::{
        Findings, Ledger, NodeIndex, Plan, PlanPreflight, PlanReport, Problem, ServerStarts, Stage, Subject,
        rollouts,
    },
    stage::kind::Requirement,
    store::{Fetched, Remote, Store},
    track::{Sink, sinks},
    ui::{bytes, plural},
};

/// More tools than this are noted.
const MANY_TOOLS: usize = 25;

/// All findings except mistakes in the file itself. `trained`: the tools of the agent that the run goes on from.
pub fn findings(plan: &Plan, store: &Store, trained: Option<Vec<String>>) -> Result<Vec<Finding>> {
    let mut findings = vec![overview(plan)];
    // A job has those of its node.
    let is_job = |index: &NodeIndex| plan.node(*index).stage.executor.is_job();
    if !plan.order().iter().all(is_job) {
        findings.push(devices(plan));
    }
    findings.extend(executors(plan)?);
    let mut listed = Vec::new();
    for (name, spec) in plan.servers.iter().flat_map(Servers::iter) {
        let (server, answer) = server(spec);
        findings.push(if name.is_empty() { server } else { server.of(name) });
        if let Some((described, start)) = answer {
            findings.extend(server_starts(plan, spec, start));
            listed.push((name.to_owned(), described));
        }
    }
    let offered = Offered::of(listed);
    findings.extend(many_tools(plan, &offered));
    findings.extend(about_tools(plan, &offered));
    findings.extend(changed_tools(plan, store, &offered));
    findings.extend(
        trained.filter(|_| !offered.tools.is_empty()).map(|trained| trained_tools(trained, &offered)),
    );
    findings.extend(stages(plan, store));
    findings.extend(memory(plan, store)?);
    findings.extend(disk(plan, store));
    findings.extend(shared_cache(plan, store));
    findings.extend(trackers(plan, store));
    Ok(findings)
}

/// Asks the batch systems of stages whether jobs can run.
fn executors(plan: &Plan) -> Result<Vec<Finding>> {
    let used = plan.order().iter().map(|index| plan.node(*index).stage.executor.name());
    let used: BTreeSet<&str> = used.collect();
    let mut found = Vec::new();
    for (name, spec) in plan.executors.iter().filter(|(name, _)| used.contains(name.as_str())) {
        let answer = runtime()?.block_on(Queue::new(spec.clone()).check());
        found.push(match answer {
            Ok(()) => Finding::good("executor", format!("{name}: {}", spec.template.about)),
            Err(cause) => Finding::bad("executor", &cause.into()),
        });
    }
    Ok(found)
}

/// Checks the trackers without sending anything of a run.
fn trackers(plan: &Plan, store: &Store) -> Vec<Finding> {
    let check = |mut sink: Box<dyn Sink>| match sink.check() {
        Ok(()) => Finding::good("tracker", format!("{}: {}", sink.name(), sink.location())),
        Err(cause) => Finding::bad("tracker", &cause.into()).of(sink.name()),
    };
    sinks(&plan.track, store, "RUN", PATIENCE).into_iter().map(check).collect()
}

fn overview(plan: &Plan) -> Finding {
    Finding::good("run file", format!("\"{}\", {} stages with loops unrolled", plan.name, plan.order().len()))
}

fn devices(plan: &Plan) -> Finding {
    let names = plan.engine.devices.join(", ");
    match plan.engine.open_devices() {
        Ok(_) => Finding::good("devices", names),
        Err(cause) => Finding::bad("devices", &cause.into()),
    }
}

/// Stages that offer more tools than a small model can choose among.
fn many_tools(plan: &Plan, offered: &Offered) -> Vec<Finding> {
    let Some(servers) = &plan.servers else { return Vec::new() };
    let mut offers: BTreeMap<&str, usize> = BTreeMap::new();
    for stage in plan.order().iter().map(|index| &plan.node(*index).stage) {
        let chosen = stage.kind.as_ref().and_then(|kind| kind.offers(offered.clone(), servers));
        let count = chosen.map(|chosen| chosen.tools.iter().filter(|tool| !tool.synthetic).count());
        offers.extend(count.filter(|count| *count > MANY_TOOLS).map(|count| (&*stage.name, count)));
    }
    let finding = |(stage, offered): (&str, usize)| {
        let text = format!(
            "{stage}: {offered} tools are offered; small models choose badly among more than {MANY_TOOLS}"
        );
        let todo = format!("name the tools that the tasks need: `allow` of the stage `{stage}`");
        Finding::new("tools", Verdict::Note, text).todo(todo)
    };
    offers.into_iter().map(finding).collect()
}

/// What stages need to know about the tools.
fn about_tools(plan: &Plan, offered: &Offered) -> Vec<Finding> {
    let Some(servers) = plan.servers.as_ref().filter(|_| !offered.tools.is_empty()) else {
        return Vec::new();
    };
    let mut found: BTreeMap<&str, Vec<Requirement>> = BTreeMap::new();
    for node in plan.order().iter().map(|index| plan.node(*index)) {
        let stage = &node.stage;
        let tools = listing::tools_of(plan, node, offered, servers);
        let of_stage = stage.kind.as_ref().map(|kind| kind.about_tools(&tools, servers));
        found.insert(&stage.name, of_stage.unwrap_or_default());
    }
    let named = |(name, requirements): (&str, Vec<Requirement>)| -> Vec<Finding> {
        requirements.into_iter().map(|found| requirement(found).of(name)).collect()
    };
    found.into_iter().flat_map(named).collect()
}

/// The differences between the tools that the servers list now and those in the cache, with the stages that run again.
fn changed_tools(plan: &Plan, store: &Store, offered: &Offered) -> Vec<Finding> {
    let finding =
        |changed: Changed| Finding::new("tools", Verdict::Note, changed.text()).todo(changed.todo());
    listing::changed(plan, store, offered).into_iter().map(finding).collect()
}

/// Whether the servers still have the tools that an agent learned with.
fn trained_tools(trained: Vec<String>, offered: &Offered) -> Finding {
    match listing::gone(trained, offered) {
        gone if gone.is_empty() => Finding::good("tools", "the agent's tools are all there".to_owned()),
        gone => Finding::new(
            "tools",
            Verdict::Note,
            format!("the agent learned with tools that are gone: {}", gone.join(", ")),
        )
        .todo("tasks for what replaces them teach it again; solutions that call them are of no use any more"),
    }
}

/// The cost of restarting the server in each rollout that calls a tool, if it is high.
fn server_starts(plan: &Plan, spec: &ServerSpec, start: Duration) -> Option<Finding> {
    let rollouts = plan.order().iter().map(|index| rollouts(&plan.node(*index).stage));
    let rollouts = rollouts.fold(0, u64::saturating_add);
    let starts = ServerStarts::of(spec, start.as_secs_f64(), rollouts)?;
    let todo = "state = \"read-only\" or \"reset-tool\" starts it `sessions` times, where calls change nothing or a tool \
                restores the initial state";
    Some(Finding::new("server", Verdict::Note, starts.to_string()).todo(todo))
}

/// Starts the server or connects to it, and lists its tools. Also returns them and how long that took, if it went well.
fn server(spec: &ServerSpec) -> (Finding, Option<(Description, Duration)>) {
    let described = runtime().and_then(|runtime| runtime.block_on(listing::describe(spec)));
    match described {
        Err(cause) => (Finding::bad("server", &cause), None),
        Ok((described, took)) => {
            let tools = &described.tools;
            let names: Vec<&str> =
                tools.iter().filter(|tool| !tool.synthetic).map(|tool| tool.name.as_str()).collect();
            if names.is_empty() {
                let text = format!("{} lists no tools", spec.transport);
                let todo = "there is nothing to learn on a server without tools";
                return (Finding::new("server", Verdict::Bad, text).todo(todo), None);
            }
            if let Some(tool) = spec.state.reset_tool()
                && !tools.iter().any(|listed| listed.server_name == tool)
            {
                let text = format!("{} has no tool `{tool}`, which `reset_tool` names", spec.transport);
                let todo = format!("its tools: {}", names.join(", "));
                return (Finding::new("server", Verdict::Bad, text).todo(todo), None);
            }
            let count = names.len();
            let more = if count > 8 { format!(" and {} more", count - 8) } else { String::new() };
            let named = names[..count.min(8)].join(", ");
            let (seconds, tools_text) = (took.as_secs_f64(), plural(count, "tool"));
            let text = format!("{} answers in {seconds:.1} s: {tools_text}: {named}{more}", spec.transport);
            (Finding::good("server", text), Some((described, took)))
        }
    }
}

/// The files, programs and variables that each stage needs. A stage without needs has no line.
fn stages(plan: &Plan, store: &Store) -> Vec<Finding> {
    // Ignores finished stages, because cached results may be needed again.
    let ledger = Ledger::new(plan, store);
    let preflight = PlanPreflight::new(&ledger, store, &|_| true);
    let (mut lines, mut seen) = (Vec::new(), BTreeSet::new());
    for index in plan.order() {
        let stage = &plan.node(*index).stage;
        if seen.insert(&stage.name) {
            lines.extend(needs(stage, *index, &preflight).into_iter().map(|found| (&stage.name, found)));
        }
    }
    let Findings { mut problems, notes, remarks, .. } = preflight.into_findings();
    problems.retain(|problem| problem.subject == Subject::Stage);
    let wrong: BTreeSet<&String> = problems.iter().filter_map(|problem| problem.stage.as_ref()).collect();
    let own = lines.into_iter().filter(|(name, _)| !wrong.contains(*name));
    let own = own.map(|(name, found)| found.of(name));
    let text = |problem: &Problem| match &problem.stage {
        Some(stage) => format!("{stage}: {}", problem.cause),
        None => problem.cause.to_string(),
    };
    let bad = problems
        .iter()
        .map(|problem| Finding { text: text(problem), ..Finding::bad("stage", &problem.cause) });
    let noted = notes
        .iter()
        .map(|note| Finding { todo: note.cause.hint(), ..Finding::new("stage", Verdict::Note, text(note)) });
    let told = remarks.iter().map(|remark| Finding::good("stage", text(remark)));
    own.chain(bad).chain(noted).chain(told).collect()
}

/// What a stage needs from outside the run.
fn needs(stage: &Stage, index: NodeIndex, preflight: &PlanPreflight<'_>) -> Vec<Finding> {
    let Some(kind) = &stage.kind else { return Vec::new() };
    let requirements = runtime().map(|runtime| runtime.block_on(kind.requirements(preflight.outputs(index))));
    requirements.unwrap_or_default().into_iter().map(requirement).collect()
}

fn requirement(requirement: Requirement) -> Finding {
    match requirement {
        Requirement::Met(text) => Finding::good("stage", text),
        Requirement::Doubtful { text, hint } => Finding::new("stage", Verdict::Note, text).todo(hint),
        Requirement::Missing(cause) => Finding::bad("stage", &cause),
    }
}

/// Compares the stage that needs the most memory with the memory available.
fn memory(plan: &Plan, store: &Store) -> Result<Option<Finding>> {
    let report = PlanReport::new(plan, store, &[])?;
    let peak = |node: &crate::plan::NodeStatus| Some((node.memory.as_ref()?.peak?, node.id.clone()));
    let Some((peak, id)) = report.nodes.iter().filter_map(peak).max() else { return Ok(None) };
    let text = format!("{id} takes about {} at most", bytes(peak as u64));
    Ok(Some(match available() {
        Some(free) if free < peak => {
            Finding::new("memory", Verdict::Note, format!("{text}, {} are available", bytes(free as u64)))
                .todo("lower `concurrency` or `max_episode_tokens`, set [engine] kv_cache_mib, or dtype = \"bf16\" or \"nf4\"")
        }
        _ => Finding::good("memory", text),
    }))
}

/// Whether the disk has room for the models to be copied into the cache.
fn disk(plan: &Plan, store: &Store) -> Option<Finding> {
    let kinds = plan.order().iter().filter_map(|index| plan.node(*index).stage.kind.as_ref());
    let copies: BTreeMap<PathBuf, u64> = kinds.filter_map(|kind| kind.copies()).collect();
    let needed: u64 = copies.values().sum();
    let free = super::free_disk(store.root()).ok()?;
    (needed > 0).then(|| {
        let text = format!("a copy of the model takes {} in the cache", bytes(needed));
        match free.saturating_sub(1 << 30) < needed {
            false => Finding::good("disk", text),
            true => Finding::new("disk", Verdict::Bad, format!("{text}, {} are free", bytes(free)))
                .todo("`mcprl cache gc` frees room, `--cache DIR` takes another disk"),
        }
    })
}

/// Checks the shared cache by requesting a result that does not exist.
fn shared_cache(plan: &Plan, store: &Store) -> Option<Finding> {
    let spec = plan.remote.as_ref()?;
    let nobodys = Digest::of(b"mcprl doctor");
    Some(match Remote::new(spec.clone()).fetch(store, &nobodys) {
        Ok(Fetched::Away(cause)) | Err(cause) => Finding::bad("shared", &cause.into()),
        Ok(_) if spec.push && !spec.place.may_be_writable() => {
            Finding::new("shared", Verdict::Bad, format!("{} cannot be written", spec.place))
                .todo("make it writable, or set push = false under [cache] to take results only")
        }
        Ok(_) => Finding::good("shared", format!("{} answers", spec.place)),
    })
}
