//! The memory that nodes at the engine will take, as far as their model is known.
//!
//! Of a model no more than its `config.json` is read: in a local folder that a `model` stage names, or in the store where
//! such a stage was worked. Of one that is made from nothing the parameters say it all.

use std::collections::BTreeMap;

use petgraph::graph::NodeIndex;
use serde::Serialize;

use super::{Estimate, Foresight, Ledger, Models, Plan};
use crate::{
    engine::{Footprint, weights},
    model::kernels::Format,
    stage::{card::Section, memory::Load},
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
    /// Keys and values could take more than half of what is free, and so get that.
    #[serde(skip_serializing_if = "is_false")]
    pub halved: bool,
    /// Why the peak is not known.
    pub unknown: Option<&'static str>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_none(bytes: &usize) -> bool {
    *bytes == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// None where the node does not sample or train. `left`: bytes that are free.
pub fn memory(
    plan: &Plan,
    foresight: &Foresight<'_>,
    index: NodeIndex,
    estimate: Option<&Estimate>,
    left: Option<usize>,
) -> Option<Memory> {
    let node = plan.node(index);
    let kind = node.stage.card.kind.as_str();
    if !node.stage.card.uses.contains(&Section::Engine) {
        return None;
    }
    let device = plan.engine.devices.first().cloned().unwrap_or_default();
    let none =
        Memory { device: device.clone(), peak: None, parts: None, held: 0, halved: false, unknown: None };
    let unknown = |why| Some(Memory { unknown: Some(why), ..none.clone() });
    if device != "cpu" {
        return unknown("foretold for the CPU alone");
    }
    let mut policies = Vec::new();
    let mut episodes = None;
    for edge in &node.inputs {
        match edge.role.as_str() {
            "policy" | "policies" => match foresight.policy(&edge.from) {
                Some(policy) => policies.push(policy.clone()),
                None => return unknown("its model is not here yet"),
            },
            "trajectories" => {
                episodes = edge.from.writer().map(|writer| &plan.node(writer).stage.params);
            }
            _ => {}
        }
    }
    let (params, engine) = (&node.stage.params, &plan.engine);
    let before = estimate.map(|estimate| estimate.cost.spent);
    let load = Load { kind, params, engine, policies: &policies, episodes, before, left };
    let Some(peak) = load.peak() else { return unknown("a stage of this kind is not foretold") };
    let halved = load.is_halved(&peak);
    Some(Memory { peak: Some(peak.total()), parts: Some(peak), halved, ..none })
}

/// For each of these nodes, worked in this order: bytes of all models that are held while it is at work.
pub fn held(plan: &Plan, foresight: &Foresight<'_>, ledger: &Ledger<'_>, worked: &[NodeIndex]) -> Vec<usize> {
    if worked.is_empty() {
        return Vec::new();
    }
    let models = Models::new(plan);
    let mut spans: BTreeMap<NodeIndex, [usize; 2]> = BTreeMap::new();
    for (place, index) in worked.iter().enumerate() {
        for maker in models.read_by(plan, ledger, *index) {
            spans.entry(maker).or_insert([place, place])[1] = place;
        }
    }
    let mut held = vec![0; worked.len()];
    for (maker, [first, last]) in spans {
        let Some(policy) = foresight.policy_of(maker) else { continue };
        let bytes = weights(&policy.config, plan.engine.dtype.unwrap_or(Format::F32));
        held[first..=last].iter_mut().for_each(|held| *held += bytes);
    }
    held
}
