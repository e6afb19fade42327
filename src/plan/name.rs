//! Parses the name of a stage of a run: `exam`, `train[3]/rollout`; `train/rollout` for all iterations, `train[3]` and `train` for
//! all stages. What else a run prints is read too: paths of its folder, `train.0003/rollout/trajectories.parquet`, and outputs as
//! the run file names them, `train.rollout.trajectories`.

/// A stage in an iteration of a loop, by its id: `train[0003]/rollout`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InLoop<'i> {
    pub name: &'i str,
    /// From 1.
    pub iteration: u32,
    pub stage: &'i str,
}

impl<'i> InLoop<'i> {
    /// None for a stage outside loops.
    pub fn parse(id: &'i str) -> Option<Self> {
        let (name, rest) = id.split_once('[')?;
        let (number, stage) = rest.split_once("]/")?;
        Some(Self { name, iteration: number.parse().ok()?, stage })
    }
}

/// A stage's name in the run file, by its id: `train/rollout`.
pub fn stage_name(id: &str) -> String {
    InLoop::parse(id).map_or_else(|| id.to_owned(), |InLoop { name, stage, .. }| format!("{name}/{stage}"))
}

/// A stage, an iteration, or an output of a stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeName {
    /// A single iteration, from 1.
    pub iteration: Option<u32>,
    /// Loop and stage, or the stage alone; the path of an output may follow.
    parts: Vec<String>,
}

impl NodeName {
    pub fn parse(text: &str) -> Self {
        let mut parts: Vec<String> = text.trim_matches('/').split('/').map(str::to_owned).collect();
        let mut iteration = None;
        if let Some((turns, number)) = parts[0].trim_end_matches(']').rsplit_once(['[', '.'])
            && let Ok(number) = number.parse()
        {
            (iteration, parts[0]) = (Some(number), turns.to_owned());
        }
        // The run file's names have no dots.
        let first = parts.remove(0);
        let parts = first.split('.').map(str::to_owned).chain(parts).collect();
        Self { iteration, parts }
    }

    /// As the run file names it: `train/rollout`.
    pub fn stage(&self) -> String {
        self.parts.join("/")
    }

    /// Whether this name refers to the node of this id, or to something that contains it.
    pub fn means(&self, id: &str) -> bool {
        let node = Self::parse(id);
        let within = self.iteration.is_none() || self.iteration == node.iteration;
        within && self.parts.iter().zip(&node.parts).all(|(one, other)| one == other)
    }

    /// Whether it names this id in full, not just its loop or iteration.
    pub fn is_whole(&self, id: &str) -> bool {
        self.parts.len() >= Self::parse(id).parts.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_in_a_loop_has_its_stages_name() {
        assert_eq!(stage_name("train[0003]/rollout"), "train/rollout");
        assert_eq!(stage_name("exam"), "exam");
    }

    #[test]
    fn a_name_means_a_stage_all_its_iterations_or_all_that_it_contains() {
        let ids = ["base", "train[0001]/rollout", "train[0003]/rollout", "train[0003]/update", "exam"];
        let means = |text: &str| {
            let name = NodeName::parse(text);
            let found = (0..ids.len()).filter(|index| name.means(ids[*index])).collect::<Vec<_>>();
            (found, ids.iter().all(|id| !name.means(id) || name.is_whole(id)))
        };
        for (text, expected, whole) in [
            ("train[0003]/rollout", vec![2], true),
            ("train[3]/rollout", vec![2], true),
            ("train.0003/rollout", vec![2], true),
            ("train.3/rollout/", vec![2], true),
            ("train.0003/update/policy", vec![3], true),
            ("train/rollout@3", vec![], true),
            ("train.rollout", vec![1, 2], true),
            ("train/rollout", vec![1, 2], true),
            ("train.0003", vec![2, 3], false),
            ("train[3]", vec![2, 3], false),
            ("train", vec![1, 2, 3], false),
            ("base", vec![0], true),
            ("base/policy", vec![0], true),
            ("rollout", vec![], true),
            ("train[2]/rollout", vec![], true),
        ] {
            assert_eq!(means(text), (expected, whole), "{text}");
        }
    }
}
