//! Samples to draw again: `--resample train/rollout`, or `--resample train[3]/rollout` for one iteration of a loop.

use std::collections::BTreeSet;

use super::{Node, NodeName, Plan, PlanError};
use crate::{
    error::{Result, did_you_mean},
    stage::card::Determinism,
};

/// A stage whose stored result is not reused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resample {
    /// As the run file names it, with the loop's name if it is in one.
    stage: String,
    /// From 1; none means all iterations.
    iteration: Option<u32>,
}

impl Resample {
    pub fn means(&self, node: &Node) -> bool {
        let iteration = node.iteration.map(|iteration| iteration.number);
        self.stage == node.stage.name && (self.iteration.is_none() || self.iteration == iteration)
    }
}

/// What to call a node's stage whose result is always the same.
fn class(node: &Node) -> Option<&'static str> {
    match node.stage.card.determinism {
        Determinism::Pure => Some("pure"),
        Determinism::Seeded => Some("seeded"),
        Determinism::Sampled | Determinism::External => None,
    }
}

impl Plan {
    /// Checks that these stages exist and that their results can vary.
    pub fn resampled(&self, names: &[String]) -> Result<Vec<Resample>> {
        names.iter().map(|name| Ok(self.resample(name)?)).collect()
    }

    fn resample(&self, asked: &str) -> Result<Resample, PlanError> {
        let named = NodeName::parse(asked);
        let (name, iteration) = (named.stage(), named.iteration);
        let nodes = || self.graph.nodes.node_weights();
        let Some(node) = nodes().find(|node| node.stage.name == name) else {
            let names = || nodes().map(|node| node.stage.name.as_str());
            let alone = |name: &str| name.rsplit('/').next().unwrap_or_default().to_owned();
            // The bare name of a stage in a loop, possibly misspelt.
            let within = |meant: &str| names().find(|name| alone(name) == meant);
            let all: Vec<String> = names().map(alone).collect();
            let nearly = || did_you_mean(&name, all.iter().map(String::as_str)).and_then(within);
            let near = within(&name).or_else(|| did_you_mean(&name, names())).or_else(nearly);
            let near = near.map(|near| match (near.split_once('/'), iteration) {
                (Some((turns, stage)), Some(iteration)) => format!("{turns}[{iteration}]/{stage}"),
                _ => near.to_owned(),
            });
            let drawn: BTreeSet<&str> =
                nodes().filter(|node| class(node).is_none()).map(|node| node.stage.name.as_str()).collect();
            let hint = match near {
                Some(near) => format!("did you mean \"{near}\"?"),
                None if drawn.is_empty() => {
                    "no stage of this run can be resampled: none is sampled or external".into()
                }
                None => {
                    let drawn: Vec<&str> = drawn.into_iter().collect();
                    format!("stages that can be resampled: {}", drawn.join(", "))
                }
            };
            return Err(PlanError::NoStage { name, hint });
        };
        if let Some(class) = class(node) {
            return Err(PlanError::NotResampled { stage: name, class });
        }
        let Some(iteration) = iteration else { return Ok(Resample { stage: name, iteration: None }) };
        let last = node.iteration.and_then(|at| Some(self.graph.loops.get(at.loop_index)?.iterations));
        match last.is_some_and(|last| (1..=last).contains(&iteration)) {
            true => Ok(Resample { stage: name, iteration: Some(iteration) }),
            false => Err(PlanError::NoIteration { stage: name, iteration, last }),
        }
    }
}
