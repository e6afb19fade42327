//! Which model each policy of a plan stands on: the base that an adapter was trained over, through however many updates.

use std::collections::BTreeSet;

use petgraph::graph::NodeIndex;

use super::{
    Ledger, Plan, Settled,
    graph::{Feed, From},
};
use crate::{
    hash::Digest,
    stage::policy::{shares_model, sits_on},
};

const POLICY: &str = "policy";

/// The models of a plan by the nodes that write them.
pub struct Models {
    /// Of each node that writes a policy, the one that wrote its model.
    makers: Vec<Option<NodeIndex>>,
}

impl Models {
    pub fn new(plan: &Plan) -> Self {
        let mut makers = vec![None; plan.graph.nodes.node_count()];
        for index in plan.order() {
            let node = plan.node(*index);
            let card = &node.stage.card;
            makers[index.index()] = match sits_on(&card.kind, &node.stage.params) {
                Some(role) => {
                    let feed = node.feeds.iter().find(|feed| feed.role == role);
                    // What a loop went on from, should it end early: all of it stands on one model, or another is loaded.
                    feed.and_then(|feed| match &feed.from {
                        From::Output { node, .. } => makers[node.index()],
                        From::Last(nodes) => makers[nodes.last()?.0.index()],
                    })
                }
                None => card.output_of_type(POLICY).map(|_| *index),
            };
        }
        Self { makers }
    }

    /// The nodes that write the models which a node's stage shares with others, as far as it is known which they are.
    pub fn read_by(&self, plan: &Plan, ledger: &Ledger<'_>, index: NodeIndex) -> BTreeSet<NodeIndex> {
        let node = plan.node(index);
        let shared = |feed: &&Feed| shares_model(&node.stage.card.kind, &node.stage.params, &feed.role);
        let writer = |feed: &Feed| match &feed.from {
            From::Output { node, .. } => Some(*node),
            From::Last(nodes) => {
                let worked = |node: &NodeIndex| !matches!(ledger.get(*node), None | Some(Settled::Skipped));
                let mut nodes = nodes.iter().map(|(node, _)| *node).rev();
                nodes.clone().find(worked).or_else(|| nodes.next())
            }
        };
        let made = |node: NodeIndex| self.makers[node.index()];
        node.feeds.iter().filter(shared).filter_map(writer).filter_map(made).collect()
    }

    /// Digests of the models of [`Self::read_by`] that are there.
    pub fn digests(&self, plan: &Plan, ledger: &Ledger<'_>, index: NodeIndex) -> Vec<Digest> {
        let digest = |maker: NodeIndex| match ledger.get(maker) {
            Some(Settled::Done { outputs, .. }) => {
                let port = plan.node(maker).stage.card.output_of_type(POLICY)?;
                outputs.get(port).map(|output| output.digest)
            }
            _ => None,
        };
        self.read_by(plan, ledger, index).into_iter().filter_map(digest).collect()
    }
}
