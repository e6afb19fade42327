//! What an audit is computed from: groups with their scores, and cases by group.

use std::collections::BTreeMap;

use crate::{
    eval::Clusters,
    judge::{Flag, JudgeKind, Scores, with_ties},
};

/// What is known of a group.
#[derive(Debug, Clone, Default)]
pub(super) struct AuditedGroup {
    /// Ids of its trajectories.
    pub ids: Vec<String>,
    pub correct: Vec<Option<bool>>,
    /// Length of each conversation, in bytes.
    pub lengths: Vec<usize>,
    pub flags: Vec<Vec<Flag>>,
    /// Of the judges that could judge it.
    pub scores: BTreeMap<JudgeKind, Scores>,
}

impl AuditedGroup {
    /// The same with scores that differ by at most `band` made equal, as the reward sees them.
    pub fn tied(&self, band: f64) -> Self {
        let mut tied = self.clone();
        tied.scores.values_mut().for_each(|judged| with_ties(&mut judged.scores, band));
        tied
    }
}

/// Values of cases, each with its group.
#[derive(Debug, Default)]
pub(super) struct Cases {
    values: Vec<f64>,
    groups: Vec<usize>,
}

impl Cases {
    pub fn add(&mut self, group: usize, value: f64) {
        self.values.push(value);
        self.groups.push(group);
    }

    pub fn count(&self) -> usize {
        self.values.len()
    }

    pub fn clusters(&self) -> Clusters {
        let mut known: Vec<usize> = self.groups.clone();
        known.dedup();
        let places: BTreeMap<usize, usize> =
            known.into_iter().enumerate().map(|(place, group)| (group, place)).collect();
        let members: Vec<usize> = self.groups.iter().map(|group| places[group]).collect();
        Clusters::new(&self.values, &members)
    }
}
