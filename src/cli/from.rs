//! `--from`: a run goes on from an agent that exists, in place of the supervised start.

use serde_json::Value;

use super::{locations::Locations, policy_source};
use crate::{
    data::{self, Tool},
    error::{Diagnostic, Result},
    exec::history::{self, NodeHistory},
    plan::{Node, Overrides, Plan, RunFile, outputs_path},
    stage::Cards,
    store::FileDigests,
};

/// The stage that imports the adapter.
const BEFORE: &str = "before";
/// The file that says how an exported agent was trained.
const AGENT: &str = "agent.json";

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "from", class = usage)]
enum FromError {
    #[error("no stage of the run file is a supervised start, which `--from` would replace")]
    #[hint = "import the adapter by a stage of kind `adapter`, and name it where the run begins"]
    NoStart,
    #[error("{0} has no adapter: adapter_config.json is missing")]
    #[hint = "`mcprl export RUN --out FOLDER` writes one; a whole model is named by `model`"]
    NoAdapter(std::path::PathBuf),
}

/// Overrides that put an adapter in the place of the stage outside loops that learns from solutions. `from`: the adapter's folder,
/// or `RUN` or `RUN/STAGE`.
///
/// # Errors
/// If there is no such stage, or no adapter.
pub fn overrides(
    (source, cards, files): (&RunFile, &Cards, &FileDigests),
    given: Overrides,
    from: &str,
    locations: &Locations,
) -> Result<Overrides> {
    let plan = Plan::new(source, &given, cards, files)?;
    let folder = policy_source::find(from, locations)?.folder;
    let folder = folder.canonicalize().unwrap_or(folder);
    if !folder.join("adapter_config.json").is_file() {
        return Err(FromError::NoAdapter(folder).into());
    }
    let mut nodes = plan.order().iter().map(|index| (*index, plan.node(*index)));
    let (start, node) = nodes.find(|(_, node)| is_start(node)).ok_or(FromError::NoStart)?;
    let base = node.inputs.iter().find(|edge| edge.role == "policy").and_then(|edge| edge.from.output());
    let (base, port) = base.ok_or(FromError::NoStart)?;
    let base = format!("{}.{port}", plan.node(base).stage.name);
    let path = toml::Value::String(folder.to_string_lossy().into_owned());
    let mut set = vec![
        format!("stages.{BEFORE}={{ kind = \"adapter\", base = \"{base}\", from = {path} }}"),
        format!("stages.{}=false", node.stage.name),
    ];
    for reader in plan.order().iter().map(|index| plan.node(*index)) {
        for edge in reader.inputs.iter().filter(|edge| edge.from.nodes().contains(&start)) {
            let own = if edge.name == edge.role { String::new() } else { format!(".{}", edge.name) };
            let named = format!("{}.{}{own}=\"{BEFORE}\"", reader.stage.path, edge.role);
            if !set.contains(&named) {
                set.push(named);
            }
        }
    }
    Ok(Overrides { set: given.set.into_iter().chain(set).collect(), ..given })
}

/// Names of the tools that an agent learned with: those of its run, or of the `agent.json` beside an exported one. None if neither
/// says so.
pub fn trained_tools(from: &str, locations: &Locations) -> Result<Option<Vec<String>>> {
    let source = policy_source::find(from, locations)?;
    let table = source.of.as_ref().and_then(|(run, _)| {
        let tools = |node: &NodeHistory| node.result.as_ref()?.outputs.get("tools").map(|tools| tools.digest);
        let digest = run.nodes.iter().find_map(tools)?;
        Some((run, digest, outputs_path(source.store.artifact(&digest))?))
    });
    if let Some((run, digest, table)) = table {
        history::check(&source.store, &run.id, "tools", &digest)?;
        let tools: Vec<Tool> = data::read(&table)?;
        return Ok(Some(tools.into_iter().map(|tool| tool.name).collect()));
    }
    let places = [source.folder.join(AGENT), source.folder.join("..").join(AGENT)];
    let text = places.iter().find_map(|place| std::fs::read_to_string(place).ok());
    let agent: Option<Value> = text.and_then(|text| serde_json::from_str(&text).ok());
    let tools = agent.and_then(|agent| agent["tools"].as_array().cloned());
    let name = |tool: &Value| tool["function"]["name"].as_str().or(tool["name"].as_str()).map(str::to_owned);
    Ok(tools.map(|tools| tools.iter().filter_map(name).collect()))
}

/// Whether a stage outside loops makes a policy of another one and of solutions, without rewards.
fn is_start(node: &Node) -> bool {
    let reads = |role: &str| node.inputs.iter().any(|edge| edge.role == role);
    node.iteration.is_none()
        && reads("policy")
        && reads("trajectories")
        && !reads("rewards")
        && node.stage.card.output_of_type("policy").is_some()
}
