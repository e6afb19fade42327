//! Run file → plan: the DAG of stages with loops unrolled, their keys, and why each would be worked.
//!
//! Planning writes nothing, asks no network and touches no GPU. The same run file, overrides, cards and store give the
//! same plan. What a later stage needs of an earlier one that is not finished stays open: its key is not known yet.
//!
//! ```text
//! Source  text, values, where each stands        source.rs
//! Overlay card < file < environment < --set      overlay.rs, base.rs
//! Draft   typed, defaults filled in              draft.rs, server.rs
//! Graph   references followed, loops unrolled    link.rs, graph.rs
//! Ledger  what is settled, what is ready         ledger.rs
//! Foresight what stages to come would fail with   foresight.rs
//! Survey  cached / run and why / waits, and costs survey.rs, forecast.rs, memory.rs, models.rs
//! ```

mod base;
mod draft;
mod error;
mod forecast;
mod foresight;
mod graph;
mod identity;
mod key;
mod ledger;
mod link;
mod memory;
mod models;
mod name;
mod overlay;
mod reader;
mod reason;
mod resample;
mod schema;
mod server;
mod source;
mod survey;
mod tool_list;
mod upkeep;

pub use draft::Stage;
pub use error::{Mistake, Place, PlanError, Problem, Subject};
pub use forecast::{Forecast, stage_name};
pub use foresight::{Foresight, Told};
pub use graph::{Node, Turn};
pub use identity::ServerName;
pub use key::{KeyFields, KeyInput};
pub use ledger::{Fed, Ledger, Readiness, Ready, Settled};
pub use memory::Memory;
pub use models::Models;
pub use name::NodeName;
pub use overlay::Overrides;
pub use petgraph::graph::NodeIndex;
pub use reason::{Beside, RerunReason, differences, stored, stored_draw, stored_parts};
pub use resample::Resample;
pub use schema::schema;
pub use source::Source;
pub use survey::{NodeStatus, Status, Survey, forced, is_sure_to_be_worked, no_metric, reasons};
pub use upkeep::CacheMode;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use self::{graph::Graph, identity::ServerIdentity, key::Surroundings, reader::Reader, source::Places};
use crate::{
    engine::EngineSpec,
    error::Result,
    hash::Digest,
    mcp::ServerSpec,
    stage::{Cards, card::Section},
    store::{FileDigests, RemoteSpec},
};

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Everything a run will do, resolved once.
pub struct Plan {
    pub name: String,
    pub server: Option<ServerSpec>,
    pub engine: EngineSpec,
    /// Where results are shared with other machines. In no key.
    pub remote: Option<RemoteSpec>,
    graph: Graph,
    identity: Option<ServerIdentity>,
    numerics: String,
    places: Places,
}

impl Plan {
    pub fn new(source: &Source, overrides: &Overrides, cards: &Cards, files: &FileDigests) -> Result<Self> {
        let draft = draft::draft(source, overrides, cards, files)?;
        let reader = Reader::new(source);
        let graph = graph::graph(&reader, &draft);
        let graph = reader.finish(graph)?;
        let identity = match &draft.server {
            Some(server) => Some(ServerIdentity::new(server, &absolute(source.folder()), files)?),
            None => None,
        };
        let numerics = identity::numerics(&draft.engine);
        let draft::Draft { name, server, engine, remote, sections, .. } = draft;
        let places = Places::new(source, sections);
        Ok(Self { name, server, engine, remote, graph, identity, numerics, places })
    }

    /// Where the run file asks for a parameter or input of a stage, or with an empty name for the stage.
    fn place_of(&self, stage: &Stage, about: &str) -> Option<Place> {
        self.places.of(stage.origins.get(about)?)
    }

    /// Where a section, or a key of it, stands.
    fn section(&self, path: &str) -> Option<Place> {
        self.places.section(path)
    }

    /// All nodes, none before what it waits for.
    pub fn order(&self) -> &[NodeIndex] {
        &self.graph.order
    }

    pub fn node(&self, index: NodeIndex) -> &Node {
        &self.graph.nodes[index]
    }

    /// Files of the server's that count by their content in the keys of stages that use it, as they were.
    pub fn server_files(&self) -> impl Iterator<Item = (&Path, &Digest)> {
        let files = self.identity.iter().flat_map(|server| &server.files);
        files.map(|(path, digest)| (path.as_path(), digest))
    }

    /// Whether the node asks a server who it is of which nothing else can be known.
    fn asks_anew(&self, index: NodeIndex) -> bool {
        let card = &self.node(index).stage.card;
        self.identity.as_ref().is_some_and(|server| !server.is_known)
            && card.uses.contains(&Section::Server)
            && card.outputs.values().any(|port| port.artifact == "server")
    }

    /// What is wrong with a result of this node that has these metrics alone: that its loop waits for another.
    pub fn lacking(&self, index: NodeIndex, metrics: &BTreeMap<String, f64>) -> Option<PlanError> {
        let node = self.node(index);
        let metric = node.awaited.as_ref().filter(|metric| !metrics.contains_key(*metric))?.clone();
        let turns = node.turn.map(|turn| self.loop_name(turn).to_owned()).unwrap_or_default();
        Some(PlanError::NoMetric { stage: node.id.clone(), metric, turns })
    }

    pub fn loop_name(&self, turn: Turn) -> &str {
        self.graph.loops.get(turn.turns).map_or("", |(name, _)| name)
    }

    /// The fields of a node's key, its inputs known.
    pub fn fields(&self, index: NodeIndex, ready: &Ready) -> KeyFields {
        let node = self.node(index);
        let key_input = |fed: &Fed| KeyInput { name: fed.name.clone(), digest: fed.output.digest };
        let inputs =
            ready.inputs.iter().map(|(role, inputs)| (role.clone(), inputs.iter().map(key_input).collect()));
        let around = Surroundings {
            server: self.identity.as_ref(),
            name: ready.server.as_deref(),
            numerics: &self.numerics,
        };
        KeyFields::new(&node.stage, node.turn.map(|turn| turn.iteration), inputs.collect(), &around)
    }
}
