//! The memory that nodes at the engine will take, as far as their model is known.
//!
//! Of a model no more than its `config.json` is read: in a local folder that a `model` stage names, or in the store where
//! such a stage was worked. Of one that is made from nothing the parameters say it all.

use std::{collections::BTreeMap, path::Path};

use petgraph::graph::NodeIndex;
use serde::Serialize;
use serde_json::Value;

use super::{Forecast, Ledger, Models, Plan, Settled, graph::From};
use crate::{
    engine::{Footprint, weights},
    model::{ModelConfig, kernels::Format},
    stage::{
        card::Section,
        memory::{Load, Policy},
        warmup,
    },
    store::Store,
};

/// The peak of one node's memory on one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Memory {
    pub device: String,
    /// Bytes at most; none where that is not known.
    pub peak: Option<usize>,
    /// What they hold.
    pub parts: Option<Footprint>,
    /// Bytes beside the peak of other models that stages before and after it read: held meanwhile as long as there is room.
    #[serde(skip_serializing_if = "is_none")]
    pub held: usize,
    /// Why the peak is not known.
    pub unknown: Option<&'static str>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_none(bytes: &usize) -> bool {
    *bytes == 0
}

/// What is known of the policies that nodes write.
#[derive(Default)]
pub struct Policies(BTreeMap<NodeIndex, Option<Policy>>);

impl Policies {
    /// None where the node does not sample or train.
    pub fn memory(
        &mut self,
        plan: &Plan,
        (ledger, store): (&Ledger<'_>, &Store),
        index: NodeIndex,
        forecast: Option<&Forecast>,
    ) -> Option<Memory> {
        let node = plan.node(index);
        let kind = node.stage.card.kind.as_str();
        if !node.stage.card.uses.contains(&Section::Engine) {
            return None;
        }
        let device = plan.engine.devices.first().cloned().unwrap_or_default();
        let unknown = |why| {
            Some(Memory { device: device.clone(), peak: None, parts: None, held: 0, unknown: Some(why) })
        };
        if device != "cpu" {
            return unknown("foretold for the CPU alone");
        }
        let mut policies = Vec::new();
        let mut episodes = None;
        for feed in &node.feeds {
            let Some(writer) = writer(&feed.from) else { continue };
            match feed.role.as_str() {
                "policy" | "policies" => match self.policy(plan, (ledger, store), writer) {
                    Some(policy) => policies.push(policy),
                    None => return unknown("its model is not here yet"),
                },
                "trajectories" => episodes = Some(&plan.node(writer).stage.params),
                _ => {}
            }
        }
        let (params, engine) = (&node.stage.params, &plan.engine);
        let before = forecast.map(|forecast| forecast.cost.spent);
        let load = Load { kind, params, engine, policies: &policies, episodes, before };
        let Some(peak) = load.peak() else { return unknown("a stage of this kind is not foretold") };
        Some(Memory { device, peak: Some(peak.total()), parts: Some(peak), held: 0, unknown: None })
    }

    /// For each of these nodes, worked in this order: bytes of all models that are held while it is at work.
    pub fn held(&mut self, plan: &Plan, at: (&Ledger<'_>, &Store), worked: &[NodeIndex]) -> Vec<usize> {
        if worked.is_empty() {
            return Vec::new();
        }
        let models = Models::new(plan);
        let mut spans: BTreeMap<NodeIndex, [usize; 2]> = BTreeMap::new();
        for (place, index) in worked.iter().enumerate() {
            for maker in models.read_by(plan, at.0, *index) {
                spans.entry(maker).or_insert([place, place])[1] = place;
            }
        }
        let mut held = vec![0; worked.len()];
        for (maker, [first, last]) in spans {
            let Some(policy) = self.policy(plan, at, maker) else { continue };
            let bytes = weights(&policy.config, plan.engine.dtype.unwrap_or(Format::F32));
            held[first..=last].iter_mut().for_each(|held| *held += bytes);
        }
        held
    }

    /// The policy that a node writes.
    fn policy(&mut self, plan: &Plan, at: (&Ledger<'_>, &Store), index: NodeIndex) -> Option<Policy> {
        if let Some(known) = self.0.get(&index) {
            return known.clone();
        }
        let found = self.find(plan, at, index);
        self.0.insert(index, found.clone());
        found
    }

    fn find(&mut self, plan: &Plan, at: (&Ledger<'_>, &Store), index: NodeIndex) -> Option<Policy> {
        let node = plan.node(index);
        let params = &node.stage.params;
        let of = |config| Policy { config, rank: None };
        match node.stage.card.kind.as_str() {
            "warmup" => warmup::shape(params).map(of),
            "grpo" => {
                let feed = node.feeds.iter().find(|feed| feed.role == "policy")?;
                let Policy { config, rank } = self.policy(plan, at, writer(&feed.from)?)?;
                let lora = params.get("lora").and_then(Value::as_bool).unwrap_or(true);
                let fresh = || usize::try_from(params.get("rank")?.as_u64()?).ok();
                Some(Policy { config, rank: if lora { rank.or_else(fresh) } else { None } })
            }
            "model" => {
                let from = Path::new(params.get("from")?.as_str()?);
                if from.is_absolute() {
                    return ModelConfig::load(from).ok().map(of);
                }
                let (ledger, store) = at;
                let Some(Settled::Done { outputs, .. }) = ledger.get(index) else { return None };
                ModelConfig::load(&store.artifact(&outputs.get("policy")?.digest)).ok().map(of)
            }
            _ => None,
        }
    }
}

/// The node an artifact comes from; the last of several.
fn writer(from: &From) -> Option<NodeIndex> {
    match from {
        From::Output { node, .. } => Some(*node),
        From::Last(nodes) => nodes.last().map(|(node, _)| *node),
    }
}
