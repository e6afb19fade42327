//! What a plan is going to cost, from what the same stages cost before.
//!
//! A stage's figures are the mean of its earlier records in this store: of those with its kind and name, the ones whose
//! parameters differ from its own in the fewest places. Judge tokens are paid at the prices of now. A stage that was
//! never worked here is not guessed at.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};

use super::Stage;
use crate::store::{ActionRecord, Cost, Store};

/// What one stage is expected to cost.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Forecast {
    #[serde(flatten)]
    pub cost: Cost,
    /// How many earlier records it is the mean of.
    pub records: usize,
    /// How many parameters they were made with that are not the stage's own now.
    pub differing: usize,
}

/// Earlier records by kind and name.
pub struct Experience(BTreeMap<(String, String), Vec<ActionRecord>>);

impl Experience {
    pub fn of(store: &Store) -> Self {
        let mut records: BTreeMap<_, Vec<ActionRecord>> = BTreeMap::new();
        for record in store.records() {
            let kind = record.fields.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
            records.entry((kind, stage_name(&record.stage))).or_default().push(record);
        }
        Self(records)
    }

    /// None where the stage has no record.
    pub fn forecast(&self, stage: &Stage) -> Option<Forecast> {
        let records = self.0.get(&(stage.card.kind.clone(), stage.name.clone()))?;
        let distance = |record: &ActionRecord| differing(stage, &record.fields);
        let nearest = records.iter().map(distance).min()?;
        let near: Vec<&ActionRecord> = records.iter().filter(|record| distance(record) == nearest).collect();
        let mut sum = Cost::default();
        for record in &near {
            sum += priced(stage, record.cost);
        }
        #[expect(clippy::cast_precision_loss, reason = "a number of records")]
        let share = 1.0 / near.len() as f64;
        let cost = Cost {
            seconds: sum.seconds * share,
            spent: sum.spent.scaled(share),
            dollars: sum.dollars.map(|dollars| dollars * share),
        };
        Some(Forecast { cost, records: near.len(), differing: nearest })
    }
}

fn priced(stage: &Stage, cost: Cost) -> Cost {
    let dollars = stage.prices.map(|prices| prices.of(&cost.spent)).or(cost.dollars);
    Cost { dollars, ..cost }
}

/// `train[0003]/rollout` as the run file calls it.
pub fn stage_name(id: &str) -> String {
    match (id.split_once('['), id.split_once("]/")) {
        (Some((turns, _)), Some((_, stage))) => format!("{turns}/{stage}"),
        _ => id.to_owned(),
    }
}

/// How many parameters a record was made with that are not the stage's own. Files count by their content elsewhere.
fn differing(stage: &Stage, fields: &Value) -> usize {
    let none = Map::new();
    let theirs = fields.get("params").and_then(Value::as_object).unwrap_or(&none);
    let keyed = |name: &String| stage.card.params.get(name).is_none_or(|param| param.keyed);
    let ours = stage.params.iter().filter(|(name, _)| keyed(name) && !stage.files.contains_key(*name));
    ours.filter(|(name, value)| theirs.get(*name) != Some(value)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_in_a_loop_has_its_stages_name() {
        assert_eq!(stage_name("train[0003]/rollout"), "train/rollout");
        assert_eq!(stage_name("exam"), "exam");
    }
}
