//! Loops that ended because nothing could be learned.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::plan::{LoopPlan, NodeIndex, Plan, SIGNAL};

/// A loop whose last iterations had nothing to learn from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IdleLoop {
    #[serde(rename = "loop")]
    pub name: String,
    /// The first and the last of these iterations.
    pub iterations: [u32; 2],
    /// Whether most groups were all right.
    pub is_solved: bool,
    /// What the last of these updates noted.
    pub notes: Vec<String>,
}

/// A finished update of a loop.
struct Update {
    has_signal: bool,
    is_solved: bool,
    notes: Vec<String>,
}

/// The updates of each loop, by iteration.
#[derive(Default)]
pub struct Updates(BTreeMap<usize, BTreeMap<u32, Update>>);

impl Updates {
    /// Counts a finished stage.
    pub fn add(&mut self, plan: &Plan, index: NodeIndex, metrics: &BTreeMap<String, f64>, notes: &[String]) {
        let (Some(iteration), Some(signal)) = (plan.node(index).iteration, metrics.get(SIGNAL)) else {
            return;
        };
        let share = |name: &str| metrics.get(name).copied().unwrap_or(0.0);
        let update = Update {
            has_signal: *signal > 0.0,
            is_solved: share("all_right") > share("all_wrong"),
            notes: notes.to_vec(),
        };
        self.0.entry(iteration.loop_index).or_default().insert(iteration.number, update);
    }

    /// The loops that ended without signal.
    pub fn idle(&self, plan: &Plan) -> Vec<IdleLoop> {
        let idle = |(index, updates): (&usize, &BTreeMap<u32, Update>)| {
            let LoopPlan { name, iterations, patience, .. } = plan.loops().get(*index)?;
            let idle = updates.iter().rev().take_while(|(_, update)| !update.has_signal);
            let idle: Vec<(&u32, &Update)> = idle.collect();
            let ((last, update), (first, _)) = (*idle.first()?, *idle.last()?);
            let is_end = *patience > 0 && idle.len() >= (*patience).min(*iterations) as usize;
            is_end.then(|| IdleLoop {
                name: name.clone(),
                iterations: [*first, *last],
                is_solved: update.is_solved,
                notes: update.notes.clone(),
            })
        };
        self.0.iter().filter_map(idle).collect()
    }
}
