//! Estimates the memory of nodes that use the engine, as far as their model is known.
//!
//! Of a model, only its `config.json` is read: from a local folder that a `model` stage names, or from the
//! store if that stage has run.

use std::collections::{BTreeMap, BTreeSet};

use petgraph::graph::NodeIndex;
use serde::Serialize;

use super::{Estimate, Ledger, Models, Plan, PlanPreflight, ledger::POLICY};
use crate::{
    engine::{Footprint, model_bytes},
    model::kernels::Format,
    stage::{card::Section, memory::Load, preflight::ExpectedOutput},
};

/// The peak of one node's memory on one device.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct MemoryEstimate {
    pub device: String,
    /// Peak bytes; none if unknown.
    pub peak: Option<usize>,
    /// The parts of the peak.
    pub parts: Option<Footprint>,
    /// Types of the frozen weights of the models that it reads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dtypes: Vec<Format>,
    /// Bytes in addition to the peak: models that earlier and later stages read, kept loaded while there is
    /// room.
    #[serde(skip_serializing_if = "is_zero")]
    pub held: usize,
    /// The KV cache could take more than half of the free memory, so it is limited to that half.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub halved: bool,
    /// Why the peak is unknown.
    pub unknown: Option<&'static str>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_zero(bytes: &usize) -> bool {
    *bytes == 0
}

/// None if the node neither samples nor trains. `left`: free bytes.
pub fn memory(
    plan: &Plan,
    preflight: &PlanPreflight<'_>,
    index: NodeIndex,
    estimate: Option<&Estimate>,
    left: Option<usize>,
) -> Option<MemoryEstimate> {
    let node = plan.node(index);
    if !node.stage.uses.contains(&Section::Engine) {
        return None;
    }
    let device = plan.engine.devices.first().cloned().unwrap_or_default();
    let unknown = |why| {
        Some(MemoryEstimate { device: device.clone(), unknown: Some(why), ..MemoryEstimate::default() })
    };
    if device != "cpu" {
        return unknown("estimated for the CPU only");
    }
    let inputs = preflight.inputs(index);
    let policies = || {
        let given = inputs.iter().filter(|(role, _)| node.stage.reads(role, POLICY));
        given.flat_map(|(_, given)| given).map(|(_, expected)| expected)
    };
    let before = estimate.map(|estimate| estimate.cost.spent);
    let load = Load { engine: &plan.engine, inputs: &inputs, before, available: left };
    let Some(peak) = node.stage.kind.as_ref().and_then(|kind| kind.memory(&load)) else {
        let lacks_model = policies().any(|expected| *expected == ExpectedOutput::Unknown);
        return unknown(if lacks_model { "its model is not here yet" } else { "no estimate for this kind" });
    };
    let halved = load.is_halved(&peak);
    let dtypes: BTreeSet<Format> =
        policies().filter_map(|expected| Some(load.format(expected.policy()?))).collect();
    let dtypes = dtypes.into_iter().collect();
    let (total, parts) = (Some(peak.total()), Some(peak));
    Some(MemoryEstimate { device, peak: total, parts, dtypes, halved, ..MemoryEstimate::default() })
}

/// For each of these nodes, run in this order: bytes of all models loaded while it runs.
pub fn held(
    plan: &Plan,
    preflight: &PlanPreflight<'_>,
    ledger: &Ledger<'_>,
    running: &[NodeIndex],
) -> Vec<usize> {
    if running.is_empty() {
        return Vec::new();
    }
    let models = Models::new(plan);
    let mut spans: BTreeMap<NodeIndex, [usize; 2]> = BTreeMap::new();
    for (place, index) in running.iter().enumerate() {
        for maker in models.read_by(plan, ledger, *index) {
            spans.entry(maker).or_insert([place, place])[1] = place;
        }
    }
    let mut held = vec![0; running.len()];
    for (maker, [first, last]) in spans {
        let Some(policy) = preflight.policy_of(maker) else { continue };
        let bytes = model_bytes(&policy.config, plan.engine.format(policy.stored));
        held[first..=last].iter_mut().for_each(|held| *held += bytes);
    }
    held
}
