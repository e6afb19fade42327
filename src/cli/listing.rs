//! What the servers of a run offer now, beside what the cache has of them.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::runtime;
use crate::{
    data::{self, Table, Tool},
    error::Result,
    mcp::{Description, McpError, ServerOutput, ServerSpec, Servers, Session},
    offered::Offered,
    plan::{Ledger, Node, Plan, ToolChanges, outputs_path},
    store::{ActionRecord, Store},
    ui::Printer,
};

/// Longest wait for a server, whatever the run file allows.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A stage whose list of tools is not as in the cache.
#[derive(Debug, Serialize)]
pub struct Changed {
    pub stage: String,
    pub changes: ToolChanges,
    /// The stages that read the list, or what follows from it.
    pub again: Vec<String>,
}

impl Changed {
    pub fn text(&self) -> String {
        format!("{}: not as in the cache: {}", self.stage, self.changes)
    }

    pub fn todo(&self) -> String {
        let again = if self.again.is_empty() { "nothing".to_owned() } else { self.again.join(", ") };
        format!("the next run computes again: {again}")
    }
}

/// Starts a server or connects to it, and lists what it offers. Also how long that took.
///
/// # Errors
/// If the server does not answer in [`PATIENCE`].
pub async fn describe(spec: &ServerSpec) -> Result<(Description, Duration)> {
    let began = Instant::now();
    let limit = spec.limits.start_timeout.min(PATIENCE);
    let mut spec = ServerSpec { record: None, ..spec.clone() };
    spec.limits.start_timeout = limit;
    let visit = async {
        let session = Session::connect(&spec).await?;
        let described = session.describe().await;
        let took = began.elapsed();
        session.close().await;
        described.map(|description| (description, took))
    };
    let late = |_| McpError::StartTimeout {
        server: spec.transport.to_string(),
        limit,
        output: ServerOutput::default(),
        stdout: None,
    };
    Ok(tokio::time::timeout(limit * 2, visit).await.map_err(late)??)
}

/// What the servers offer. None if nothing in this process will ask them: keys identify them, or jobs do.
pub fn ask(plan: &Plan) -> Option<Result<Offered>> {
    let is_asked = |index: &_| plan.queries_server(*index) && !plan.node(*index).stage.executor.is_job();
    let servers = plan.servers.as_ref().filter(|_| plan.order().iter().any(is_asked))?;
    let visits = servers.iter().map(async |(name, spec)| Ok((name.to_owned(), describe(spec).await?.0)));
    let described = runtime().and_then(|runtime| runtime.block_on(futures::future::try_join_all(visits)));
    Some(described.map(Offered::of))
}

/// Names what is not as in the cache. If everything is, the plan takes what is there.
pub fn compared(plan: Plan, store: &Store, offered: &Offered, printer: Printer) -> Plan {
    let Some(servers) = &plan.servers else { return plan };
    for changed in changed(&plan, store, offered) {
        printer.say(&format!("{}; {}", changed.text(), changed.todo()));
    }
    if is_cached(&plan, servers, store, offered) { plan.offline() } else { plan }
}

/// The stages whose tools differ from those of the last run of this name.
pub fn changed(plan: &Plan, store: &Store, offered: &Offered) -> Vec<Changed> {
    let Some(servers) = plan.servers.as_ref().filter(|_| !offered.tools.is_empty()) else {
        return Vec::new();
    };
    let last = store.last_keys(&plan.name);
    let of_node = |index: &_| {
        let node = plan.node(*index);
        let now = node.stage.kind.as_ref()?.offers(offered.clone(), servers)?;
        let record = store.record(last.get(&node.id)?)?;
        let changes = ToolChanges::since(store, &record.outputs.get("tools")?.digest, &now.tools)?;
        let is_same = changes == ToolChanges::default();
        (!is_same).then(|| Changed { stage: node.id.clone(), changes, again: plan.followers(*index) })
    };
    plan.order().iter().filter_map(of_node).collect()
}

/// The tools that a node gets, as the stages before it choose them.
pub fn tools_of(plan: &Plan, node: &Node, offered: &Offered, servers: &Servers) -> Vec<Tool> {
    let writer = node.inputs.iter().find(|edge| edge.role == "tools").and_then(|edge| edge.from.writer());
    let Some(writer) = writer.map(|writer| plan.node(writer)) else { return offered.tools.clone() };
    let chosen = writer.stage.kind.as_ref().and_then(|kind| kind.offers(offered.clone(), servers));
    chosen.map_or_else(|| tools_of(plan, writer, offered, servers), |chosen| chosen.tools)
}

/// The tools that an agent learned with and the servers have no more.
pub fn gone(trained: Vec<String>, offered: &Offered) -> Vec<String> {
    let is_there = |name: &String| offered.tools.iter().any(|tool| tool.name == *name);
    trained.into_iter().filter(|name| !is_there(name)).collect()
}

/// Whether all that asks the servers has written this before.
fn is_cached(plan: &Plan, servers: &Servers, store: &Store, offered: &Offered) -> bool {
    let mut ledger = Ledger::new(plan, store);
    let mut asking = plan.order().iter().filter(|index| plan.queries_server(**index));
    asking.all(|index| {
        let kind = plan.node(*index).stage.kind.as_ref();
        let now = kind.and_then(|kind| kind.offers(offered.clone(), servers));
        let mut record = None;
        let resolved = ledger.resolve(*index, &[], |job| {
            record = store.record(&job.key);
            Ok(None)
        });
        let written = resolved.ok().and(record).zip(now);
        written.is_some_and(|(record, now)| has_written(store, &record, &now))
    })
}

fn has_written(store: &Store, record: &ActionRecord, now: &Offered) -> bool {
    fn same<T: Table + PartialEq>(store: &Store, record: &ActionRecord, port: &str, now: &[T]) -> bool {
        let digest = record.outputs.get(port).map(|output| output.digest);
        let path = digest.and_then(|digest| outputs_path(store.artifact(&digest)));
        path.and_then(|path| data::read::<T>(&path).ok()).is_some_and(|rows| rows == now)
    }
    same(store, record, "server", &now.servers)
        && same(store, record, "tools", &now.tools)
        && same(store, record, "resources", &now.resources)
        && same(store, record, "resource_templates", &now.resource_templates)
        && same(store, record, "prompts", &now.prompts)
}
