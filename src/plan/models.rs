//! Resolves the base model of each policy of a plan, through any number of adapter updates.

use std::collections::BTreeSet;

use petgraph::graph::NodeIndex;

use super::{
    Completion, Ledger, Plan,
    graph::{InputEdge, InputSource},
    ledger::POLICY,
};
use crate::{hash::Digest, stage::StageKind};

/// The models of a plan by the nodes that write them.
pub struct Models {
    /// For each node that writes a policy, the node that wrote its model.
    makers: Vec<Option<NodeIndex>>,
}

impl Models {
    pub fn new(plan: &Plan) -> Self {
        let mut makers = vec![None; plan.graph.nodes.node_count()];
        for index in plan.order() {
            let node = plan.node(*index);
            let kind = node.stage.kind.as_deref();
            makers[index.index()] = match kind.and_then(StageKind::adapter_base) {
                Some(role) => {
                    let edge = node.inputs.iter().find(|edge| edge.role == role);
                    // The policy of the last iteration that ran, if the loop ends early. All iterations share
                    // one model; otherwise another is loaded.
                    edge.and_then(|edge| makers[edge.from.writer()?.index()])
                }
                None => node.stage.card.output_of_type(POLICY).map(|_| *index),
            };
        }
        Self { makers }
    }

    /// The nodes that write the models that a node's stage shares with others, as far as they are known.
    pub fn read_by(&self, plan: &Plan, ledger: &Ledger<'_>, index: NodeIndex) -> BTreeSet<NodeIndex> {
        let node = plan.node(index);
        let kind = node.stage.kind.as_deref();
        let shared = |edge: &&InputEdge| kind.is_some_and(|kind| kind.shares_model(&edge.role));
        let writer = |edge: &InputEdge| match &edge.from {
            InputSource::Output { node, .. } => Some(*node),
            // Which one it is, is known once all are.
            InputSource::Best(all) => ledger.read_from(edge).or_else(|| all.last().map(|one| one.node)),
            InputSource::Last(nodes) => {
                let runs = |node: &NodeIndex| !matches!(ledger.get(*node), None | Some(Completion::Skipped));
                let mut nodes = nodes.iter().map(|(node, _)| *node).rev();
                nodes.clone().find(runs).or_else(|| nodes.next())
            }
        };
        let made = |node: NodeIndex| self.makers[node.index()];
        node.inputs.iter().filter(shared).filter_map(writer).filter_map(made).collect()
    }

    /// Digests of those models of [`Self::read_by`] that exist.
    pub fn digests(&self, plan: &Plan, ledger: &Ledger<'_>, index: NodeIndex) -> Vec<Digest> {
        let digest = |maker: NodeIndex| match ledger.get(maker) {
            Some(Completion::Done(done)) => {
                let port = plan.node(maker).stage.card.output_of_type(POLICY)?;
                done.outputs.get(port).map(|output| output.digest)
            }
            _ => None,
        };
        self.read_by(plan, ledger, index).into_iter().filter_map(digest).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{
        plan::{Overrides, RunFile},
        stage::Cards,
        store::{CachedResult, FileDigests, Output, Store},
    };

    const RUN: &str = r#"
name = "two"
model = "someone/model"

[server]
command = ["server"]
state = "read-only"

[stages.tools]
kind = "discover"

[stages.tasks]
kind = "scenarios"
tools = "tools"
source = "file"
file = "FILE"

[stages.other]
kind = "model"
from = "someone/other"

[loop.train]
iterations = 3
carry = { policy = "base" }

[loop.train.stages.rollout]
kind = "rollout"
policy = "@policy"
tools = "tools"
scenarios = "tasks.train"

[loop.train.stages.reward]
kind = "judge"
trajectories = "rollout"
scenarios = "tasks.train"

[loop.train.stages.update]
kind = "grpo"
policy = "@policy"
reference = "other"
trajectories = "rollout"
rewards = "reward"
yields = "policy"

[stages.exam]
kind = "eval"
policies = { base = "other", trained = "train.policy" }
tools = "tools"
scenarios = "tasks.heldout"
"#;

    fn plan(set: &[&str]) -> Plan {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tasks.jsonl");
        std::fs::write(&file, "{\"task\": \"How many?\", \"answer\": \"1\"}\n").unwrap();
        let text = RUN.replace("FILE", file.to_str().unwrap());
        let source = RunFile::parse(Path::new("run.toml"), text).unwrap();
        let overrides =
            Overrides { set: set.iter().map(|text| (*text).to_owned()).collect(), ..Overrides::default() };
        let files = FileDigests::load(&Store::open(folder.path()).unwrap());
        Plan::new(&source, &overrides, &Cards::new(None), &files).unwrap()
    }

    fn store() -> Store {
        Store::open(tempfile::tempdir().unwrap().path()).unwrap()
    }

    /// Node and the nodes whose models it shares.
    fn shared(plan: &Plan, ledger: &Ledger<'_>) -> Vec<String> {
        let models = Models::new(plan);
        let of = |index: &NodeIndex| {
            let read = models.read_by(plan, ledger, *index);
            let names: Vec<&str> = read.iter().map(|maker| plan.node(*maker).id.as_str()).collect();
            (!names.is_empty()).then(|| format!("{}: {}", plan.node(*index).id, names.join(" ")))
        };
        plan.order().iter().filter_map(of).collect()
    }

    #[test]
    fn adapters_stand_on_the_model_they_were_first_trained_over() {
        let plan = plan(&[]);
        let found = shared(&plan, &Ledger::new(&plan, &store()));
        let expected = [
            "train[0001]/rollout: base",
            "train[0001]/update: base other",
            "train[0002]/rollout: base",
            "train[0002]/update: base other",
            "train[0003]/rollout: base",
            "train[0003]/update: base other",
            "exam: base other",
        ];
        let sorted = |text: &String| {
            let (node, models) = text.split_once(": ").unwrap();
            let mut models: Vec<&str> = models.split(' ').collect();
            models.sort_unstable();
            format!("{node}: {}", models.join(" "))
        };
        assert_eq!(found.iter().map(sorted).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn an_update_of_all_weights_writes_a_model_and_shares_none_but_its_reference() {
        let plan = plan(&["loop.train.stages.update.lora=false"]);
        let mut ledger = Ledger::new(&plan, &store());
        let found = shared(&plan, &ledger);
        assert!(found.contains(&"train[0002]/update: other".to_owned()), "{found:?}");
        assert!(found.contains(&"train[0002]/rollout: train[0001]/update".to_owned()), "{found:?}");

        // The exam reads the last policy that was trained.
        let node = |id: &str| *plan.order().iter().find(|index| plan.node(**index).id == id).unwrap();
        let digest = Digest::of(b"trained");
        let outputs = [("policy".to_owned(), Output { digest, file: None })].into();
        let done = CachedResult { outputs, ..CachedResult::default() };
        ledger.complete(node("train[0001]/update"), Completion::Done(done));
        ledger.complete(node("train[0002]/update"), Completion::Skipped);
        assert!(
            shared(&plan, &ledger)
                .iter()
                .any(|text| text == "exam: other train[0001]/update"
                    || text == "exam: train[0001]/update other")
        );
        assert_eq!(Models::new(&plan).digests(&plan, &ledger, node("exam")), [digest]);
    }
}
