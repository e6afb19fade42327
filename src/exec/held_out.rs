//! Keeps the tasks that policies are compared on out of training.
//!
//! Tasks are the same if their sentences are, or the last calls of their solutions. Those that only name the same values and have the
//! same answer may be a coincidence: `scenarios` leaves them out, and no run ends for them.
//!
//! A table of tasks counts as trained on if a stage reads it and a policy depends on that stage, and as held out if a
//! stage that writes a verdict reads it. A stage that would read one of them is checked against the other tables that
//! exist by then, so whichever stage comes second is refused.

use std::collections::{BTreeMap, BTreeSet};

use super::ExecError;
use crate::{
    data::{self, Fact, Facts, Scenario, Table, VerdictRow},
    error::Result,
    hash::Digest,
    plan::{InputEdge, Ledger, NodeIndex, Plan},
    store::{Output, Store},
};

const POLICY: &str = "policy";

/// The tables of tasks of a plan by their use.
pub struct HeldOut {
    /// The stages whose tasks policies learn from.
    trained: BTreeSet<NodeIndex>,
    /// The stages that compare policies.
    compared: BTreeSet<NodeIndex>,
}

/// Two tables of tasks that must have none in common.
pub struct Disjoint {
    mine: Output,
    other: Output,
    /// The stage that reads the other table.
    by: String,
    /// Whether this stage trains, and the other one compares.
    is_training: bool,
}

impl HeldOut {
    pub fn new(plan: &Plan) -> Self {
        let writes =
            |index: NodeIndex, kind: &str| plan.node(index).stage.card.output_of_type(kind).is_some();
        let compared: BTreeSet<NodeIndex> =
            plan.order().iter().copied().filter(|index| writes(*index, VerdictRow::NAME)).collect();
        let mut trained: BTreeSet<NodeIndex> = BTreeSet::new();
        for index in plan.order().iter().rev().copied() {
            if (writes(index, POLICY) || trained.contains(&index)) && !compared.contains(&index) {
                trained.insert(index);
                trained.extend(plan.node(index).inputs.iter().filter_map(|edge| edge.from.writer()));
            }
        }
        Self { trained, compared }
    }

    /// What has to hold before this stage runs.
    pub fn wanted(&self, ledger: &Ledger<'_>, index: NodeIndex) -> Vec<Disjoint> {
        let is_training = self.trained.contains(&index);
        let others = match (is_training, self.compared.contains(&index)) {
            (true, _) => &self.compared,
            (_, true) => &self.trained,
            _ => return Vec::new(),
        };
        let plan = ledger.plan();
        let mut found: BTreeMap<(Digest, Digest), Disjoint> = BTreeMap::new();
        for own in tasks(plan, index) {
            let theirs = others.iter().flat_map(|other| tasks(plan, *other).map(move |edge| (other, edge)));
            // The same table is there on purpose: success on training tasks.
            for (reader, edge) in theirs.filter(|(_, edge)| edge.from != own.from) {
                let (Some(mine), Some(other)) = (ledger.read(own), ledger.read(edge)) else { continue };
                let by = plan.node(*reader).id.clone();
                let pair = (mine.digest, other.digest);
                found.entry(pair).or_insert(Disjoint { mine, other, by, is_training });
            }
        }
        found.into_values().collect()
    }
}

/// The tables of tasks that a node reads.
fn tasks(plan: &Plan, index: NodeIndex) -> impl Iterator<Item = &InputEdge> {
    let node = plan.node(index);
    node.inputs.iter().filter(|edge| node.stage.reads(&edge.role, Scenario::NAME))
}

impl Disjoint {
    /// The two tables.
    pub fn tables(&self) -> (Output, Output) {
        (self.mine.clone(), self.other.clone())
    }

    /// # Errors
    /// If a task is in both tables, or one cannot be read.
    pub fn check(&self, store: &Store, stage: &str) -> Result<()> {
        if self.mine.digest == self.other.digest && self.mine.file == self.other.file {
            return Err(self.refused(stage, String::new()));
        }
        let read = |output: &Output| data::read::<Scenario>(&store.path(output));
        let (mine, other) = (read(&self.mine)?, read(&self.other)?);
        let (trained, examined) = if self.is_training { (&mine, &other) } else { (&other, &mine) };
        let exam = Facts::of_exam(examined);
        let in_both = |task: &Scenario| {
            let fact = Fact::of(task);
            let asked = exam.find_certain(&fact)?;
            let is_sentence = asked.task == fact.task;
            // In what words the exam asks the same.
            let words = if is_sentence { String::new() } else { format!(" (in the exam: {})", asked.task) };
            Some(format!("{}{words}", task.task))
        };
        match trained.iter().find_map(in_both) {
            Some(task) => Err(self.refused(stage, task)),
            None => Ok(()),
        }
    }

    fn refused(&self, stage: &str, task: String) -> crate::error::Failure {
        let (trained, compared) = match self.is_training {
            true => (stage, self.by.as_str()),
            false => (self.by.as_str(), stage),
        };
        ExecError::TrainsOnHeldOut { trained: trained.into(), compared: compared.into(), task }.into()
    }
}
