//! What the judges of a run say, where they disagree, and what people say.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::{
    episode::components,
    episodes::{EpisodeTable, Episodes, RewardSource, SHOWN, Unavailable},
};
use crate::{
    data::{self, JudgeAudit, Label, RewardComponents},
    judge::{JudgeKind, pairs},
    text::start_of,
};

/// Most pairs that are listed.
const PAIRS: usize = 200;

/// Whether a part of a reward says how good an episode is; the others are costs.
fn is_opinion(component: &str) -> bool {
    component == "truth" || JudgeKind::ALL.iter().any(|kind| kind.name() == component)
}

/// The audit of one stage.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Audited {
    pub stage: String,
    /// Measures, and one row for each flagged episode.
    pub rows: Vec<JudgeAudit>,
    /// The stage with the episodes that it judged.
    pub episodes: String,
}

/// Two episodes of a group that two judges put in opposite orders.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Disagreement {
    pub stage: String,
    pub scenario: String,
    pub task: Option<String>,
    /// Ids of the two episodes.
    pub episodes: [String; 2],
    /// The two judges: a component of a reward, or `person`. With the stage's name where there are several judges.
    pub judges: [String; 2],
    /// Scores by judge, then by episode.
    pub scores: [[f64; 2]; 2],
}

/// A label of a person that differs from ground truth, or from the reward's order within the group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LabelRow {
    pub label: Label,
    /// What the scenario's known answer says.
    pub correct: Option<bool>,
    pub reward: Option<f32>,
    /// Whether ground truth says something else.
    pub contradicts: bool,
}

/// All that is known of the judges of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Judges {
    pub audits: Vec<Audited>,
    pub disagreements: Vec<Disagreement>,
    /// Pairs that two judges order at all, and those in opposite orders.
    pub compared: usize,
    pub disagreeing: usize,
    pub labels: Vec<LabelRow>,
    pub unavailable: Vec<Unavailable>,
}

/// Reads audits and rewards, and compares them.
pub fn judges(episodes: &Episodes, labels: &[Label]) -> Judges {
    let mut found = Judges { labels: label_rows(episodes, labels), ..Judges::default() };
    for table in &episodes.tables {
        for source in &table.source.rewards {
            let (Some(path), stage) = (&source.audit, &source.stage) else { continue };
            match data::read::<JudgeAudit>(path) {
                Ok(rows) => {
                    let (stage, episodes) = (stage.clone(), table.source.stage.clone());
                    found.audits.push(Audited { stage, rows, episodes });
                }
                Err(cause) => found.unavailable.push(Unavailable::new(stage, &cause)),
            }
        }
        compare(table, labels, &mut found);
    }
    found.disagreements.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
    found.disagreements.truncate(PAIRS);
    found
}

/// How clear both judges are.
fn weight(pair: &Disagreement) -> f64 {
    pair.scores.iter().map(|[one, other]| (one - other).abs()).fold(f64::INFINITY, f64::min)
}

/// Scores of each judge by episode.
type Opinions = BTreeMap<String, HashMap<String, f64>>;

fn opinions(table: &EpisodeTable, labels: &[Label], unavailable: &mut Vec<Unavailable>) -> Opinions {
    let mut all = Opinions::new();
    let several = table.source.rewards.len() > 1;
    for RewardSource { stage, path, .. } in &table.source.rewards {
        let rows = match data::read_part::<RewardComponents>(path, None) {
            Ok(rows) => rows,
            Err(cause) => {
                unavailable.push(Unavailable::new(stage, &cause));
                continue;
            }
        };
        for row in rows {
            let judged = components(&row.components).into_iter();
            for component in judged.filter(|component| is_opinion(&component.name)) {
                let name = if several { format!("{} of {stage}", component.name) } else { component.name };
                all.entry(name).or_default().insert(row.trajectory_id.clone(), component.value);
            }
        }
    }
    for label in labels.iter().filter(|label| label.stage == table.source.stage) {
        if let Some(right) = label.right {
            let by_person = all.entry("person".into()).or_default();
            by_person.insert(label.trajectory_id.clone(), f64::from(u8::from(right)));
        }
    }
    all
}

fn compare(table: &EpisodeTable, labels: &[Label], found: &mut Judges) {
    let opinions = opinions(table, labels, &mut found.unavailable);
    if opinions.len() < 2 {
        return;
    }
    let mut groups: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for episode in &table.episodes {
        let summary = &episode.summary;
        groups.entry((&summary.scenario_id, &summary.policy)).or_default().push(&summary.id);
    }
    let judges: Vec<(&String, &HashMap<String, f64>)> = opinions.iter().collect();
    for ((scenario, _), members) in groups {
        for (i, j) in pairs(members.len()) {
            let ids = [members[i], members[j]];
            for (a, b) in pairs(judges.len()) {
                let scores = [a, b].map(|judge| ids.map(|id| judges[judge].1.get(id).copied()));
                let [[Some(a0), Some(a1)], [Some(b0), Some(b1)]] = scores else { continue };
                let (one, other) = (a0 - a1, b0 - b1);
                if one == 0.0 || other == 0.0 {
                    continue;
                }
                found.compared += 1;
                if one.signum() == other.signum() {
                    continue;
                }
                found.disagreeing += 1;
                // Bounds the memory; the clearest are listed.
                if found.disagreements.len() < 50 * PAIRS {
                    let task = table.scenarios.get(scenario);
                    found.disagreements.push(Disagreement {
                        stage: table.source.stage.clone(),
                        scenario: scenario.to_owned(),
                        task: task.map(|scenario| start_of(&scenario.task, SHOWN)),
                        episodes: ids.map(str::to_owned),
                        judges: [a, b].map(|judge| judges[judge].0.clone()),
                        scores: [[a0, a1], [b0, b1]],
                    });
                }
            }
        }
    }
}

fn label_rows(episodes: &Episodes, labels: &[Label]) -> Vec<LabelRow> {
    let row = |label: &Label| {
        let found = episodes.table(&label.stage).and_then(|table| table.episode(&label.trajectory_id));
        let correct = found.and_then(|(_, episode)| episode.summary.correct);
        LabelRow {
            label: label.clone(),
            correct,
            reward: found.and_then(|(_, episode)| episode.reward),
            contradicts: label.right.zip(correct).is_some_and(|(one, other)| one != other),
        }
    };
    labels.iter().map(row).collect()
}
