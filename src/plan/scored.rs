//! Tells the stages that play episodes what decides about their rewards, which only the stages that score them know.

use std::{collections::BTreeMap, sync::Arc};

use super::{graph::Graph, parse::Stage};
use crate::stage::{self, ScoredBy};

/// Sets the parameter where the run file does not, unless both answers and judges may decide, as without it.
pub fn with_scored_by(mut graph: Graph) -> Graph {
    let nodes = &mut graph.nodes;
    let mut found: BTreeMap<*const Stage, ScoredBy> = BTreeMap::new();
    for node in nodes.node_weights() {
        let Some(scored_by) = scored_by(&node.stage) else { continue };
        let episodes = node.inputs.iter().filter(|edge| node.stage.reads(&edge.role, "trajectories"));
        for writer in episodes.filter_map(|edge| edge.from.writer()) {
            let stage = &nodes[writer].stage;
            let is_open = stage.card.params.contains_key(ScoredBy::PARAM)
                && !stage.params.contains_key(ScoredBy::PARAM);
            if is_open {
                let known = found.entry(Arc::as_ptr(stage)).or_insert(scored_by);
                *known = known.and(scored_by);
            }
        }
    }
    found.retain(|_, by| *by != ScoredBy::Both);
    let mut told: BTreeMap<*const Stage, Arc<Stage>> = BTreeMap::new();
    for node in nodes.node_weights_mut() {
        let stage = Arc::as_ptr(&node.stage);
        if let Some(by) = found.get(&stage) {
            node.stage = told.entry(stage).or_insert_with(|| Arc::new(with(&node.stage, *by))).clone();
        }
    }
    graph
}

/// None if the stage writes no rewards.
fn scored_by(stage: &Stage) -> Option<ScoredBy> {
    stage.card.output_of_type("rewards")?;
    Some(stage.kind.as_ref().map_or(ScoredBy::Both, |kind| kind.scored_by()))
}

fn with(stage: &Stage, by: ScoredBy) -> Stage {
    let Stage { name, card, uses, files, seed, cache, executor, shards, prices, path, .. } = stage;
    let mut params = stage.params.clone();
    params.insert(ScoredBy::PARAM.to_owned(), <&str>::from(by).into());
    Stage {
        kind: stage::parse(card, &params).ok(),
        name: name.clone(),
        card: card.clone(),
        uses: uses.clone(),
        params,
        files: files.clone(),
        seed: *seed,
        cache: *cache,
        executor: executor.clone(),
        shards: *shards,
        prices: *prices,
        path: path.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plan::{Overrides, Plan, source::RunFile},
        stage::Cards,
        store::{FileDigests, Store},
    };

    /// The parameter of the loop's rollout and of the one that measures, where the standard pipeline judges like this.
    fn scored_by(reward: &str, rollout: &str) -> [Option<String>; 2] {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "extends = \"standard\"\nmodel = \"base\"\n[server]\ncommand = [\"server\"]\nstate = \"read-only\"\n\
             [loop.train.stages.rollout]\n{rollout}\n[loop.train.stages.reward]\n{reward}\n"
        );
        std::fs::create_dir(folder.path().join("base")).unwrap();
        let source = RunFile::parse(&folder.path().join("run.toml"), text).unwrap();
        let files = FileDigests::load(&Store::open(folder.path()).unwrap());
        let plan = Plan::new(&source, &Overrides::default(), &Cards::new(None), &files).unwrap();
        ["train/rollout", "train/dev"].map(|name| {
            let mut nodes = plan.order().iter().map(|index| plan.node(*index));
            let node = nodes.find(|node| node.stage.name == name).unwrap();
            Some(node.stage.params.get(ScoredBy::PARAM)?.as_str()?.to_owned())
        })
    }

    #[test]
    fn a_rollout_plays_by_what_scores_its_episodes() {
        let of = |reward: &str, rollout: &str| {
            let [of_loop, of_dev] = scored_by(reward, rollout);
            assert_eq!(of_dev, None, "no stage gives them rewards");
            of_loop
        };
        assert_eq!(of("", "").as_deref(), Some("answers"));
        let rubric = "weights = { truth = 0, rubric = 1.0 }\nveto = false";
        assert_eq!(of(rubric, "").as_deref(), Some("judges"));
        assert_eq!(of("weights = { truth = 0, rubric = 1.0 }", ""), None, "the veto sees what is right");
        assert_eq!(of("weights = { rubric = 1.0 }", ""), None, "both");
        assert_eq!(
            of(rubric, "scored_by = \"both\"").as_deref(),
            Some("both"),
            "the run file has the last word"
        );
    }
}
