//! A part of a run: `--until STAGE`.

use petgraph::Direction;

use super::{NodeName, Plan, PlanError};
use crate::error::{Result, suggest};

impl Plan {
    /// Keeps these stages and all that they need. A name can also be a loop's, or that of one of its iterations. Without
    /// names, everything is kept.
    ///
    /// # Errors
    /// If a name is of nothing in this run.
    pub fn until(mut self, names: &[String]) -> Result<Self> {
        if names.is_empty() {
            return Ok(self);
        }
        let mut kept = vec![false; self.graph.nodes.node_count()];
        for asked in names {
            let name = NodeName::parse(asked);
            let mut meant = self.order().iter().filter(|index| name.means(&self.node(**index).id)).peekable();
            if meant.peek().is_none() {
                return Err(self.no_stage(asked).into());
            }
            meant.for_each(|index| kept[index.index()] = true);
        }
        for index in self.graph.order.iter().rev() {
            if kept[index.index()] {
                let needed = self.graph.nodes.neighbors_directed(*index, Direction::Incoming);
                needed.for_each(|needed| kept[needed.index()] = true);
            }
        }
        self.graph.order.retain(|index| kept[index.index()]);
        Ok(self)
    }

    fn no_stage(&self, asked: &str) -> PlanError {
        let mut names: Vec<&str> = Vec::new();
        for index in self.order() {
            let stage = self.node(*index).stage.name.as_str();
            names.push(stage);
            names.extend(stage.split_once('/').map(|(in_loop, _)| in_loop));
        }
        let mut seen = std::collections::BTreeSet::new();
        names.retain(|name| seen.insert(*name));
        let hint = suggest(asked, names.iter().copied());
        let hint = hint.unwrap_or_else(|| format!("its stages: {}", names.join(", ")));
        PlanError::NoStage { name: asked.to_owned(), hint }
    }
}
