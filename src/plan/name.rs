//! Parses the name of a stage of a run, in any spelling that is printed or accepted.
//!
//! | spelling | used by |
//! |---|---|
//! | `exam`, `train[0003]/rollout` | `run`, `show`, `plan` |
//! | `train.0003/rollout`, `train.0003/rollout/trajectories.parquet` | the run's folder |
//! | `train[3]/rollout`, `train/rollout@3` | people, `--resample` |
//! | `train/rollout`, `train.rollout` | the run file: all iterations |
//! | `train[0003]`, `train.0003`, `train` | people: all stages of it |

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
        let text = text.trim_matches('/');
        let (text, behind) = match text.rsplit_once('@') {
            Some((name, number)) if number.parse::<u32>().is_ok() => (name, number.parse().ok()),
            _ => (text, None),
        };
        let mut parts: Vec<String> = text.split('/').map(str::to_owned).collect();
        let mut iteration = None;
        if let Some((turns, number)) = parts[0].trim_end_matches(']').rsplit_once(['[', '.'])
            && let Ok(number) = number.parse()
        {
            (iteration, parts[0]) = (Some(number), turns.to_owned());
        }
        // The run file's spelling: its names have no dots.
        let first = parts.remove(0);
        let parts = first.split('.').map(str::to_owned).chain(parts).collect();
        Self { iteration: iteration.or(behind), parts }
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
    fn every_spelling_of_a_stage_means_the_same_node() {
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
            ("train/rollout@3", vec![2], true),
            ("train.rollout@3", vec![2], true),
            ("train.0003/update/policy", vec![3], true),
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
