//! What a plan is going to cost, from what the same stages cost before.
//!
//! A stage's figures are the mean of its earlier records in this store: of those with its kind and name the ones of the
//! same model, where there are any, and of them the ones whose parameters differ from its own in the fewest places. What
//! is known to make more work, episodes and passes, counts in proportion; another model is said and not reckoned with.
//! Judge tokens are paid at the prices of now. A stage that was never worked here is not guessed at.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{Stage, reason::SHAPE};
use crate::{
    hash::Digest,
    stage::workload,
    store::{ActionRecord, Cost, Store},
};

/// What one stage is expected to cost.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Forecast {
    #[serde(flatten)]
    pub cost: Cost,
    /// How many earlier records it is the mean of.
    pub records: usize,
    /// How many parameters they were made with that are not the stage's own now.
    pub differing: usize,
    /// They were made with a model of another shape.
    pub other_model: bool,
}

impl Forecast {
    /// Of a result that is there.
    pub fn of(cost: Cost) -> Self {
        Self { cost, records: 1, differing: 0, other_model: false }
    }

    /// Whether the figures are of just such a stage.
    pub fn is_alike(&self) -> bool {
        self.differing == 0 && !self.other_model
    }
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

    /// None where the stage has no record. `model` is the shape of the one it will use, as far as that is known.
    pub fn forecast(&self, stage: &Stage, model: Option<Digest>) -> Option<Forecast> {
        let records = self.0.get(&(stage.card.kind.clone(), stage.name.clone()))?;
        let distance =
            |record: &ActionRecord| (is_other_model(model, &record.fields), differing(stage, &record.fields));
        let (other_model, differing) = records.iter().map(distance).min()?;
        let near = records.iter().filter(|record| distance(record) == (other_model, differing));
        let (mut sum, mut count) = (Cost::default(), 0);
        for record in near {
            sum += scaled(priced(stage, record.cost), more_work(stage, &record.fields));
            count += 1;
        }
        #[expect(clippy::cast_precision_loss, reason = "a number of records")]
        let cost = scaled(sum, 1.0 / count as f64);
        Some(Forecast { cost, records: count, differing, other_model })
    }
}

fn scaled(cost: Cost, factor: f64) -> Cost {
    Cost {
        seconds: cost.seconds * factor,
        spent: cost.spent.scaled(factor),
        dollars: cost.dollars.map(|dollars| dollars * factor),
    }
}

fn is_other_model(model: Option<Digest>, fields: &Value) -> bool {
    let theirs: Option<Digest> =
        fields.get(SHAPE).and_then(Value::as_str).and_then(|shape| shape.parse().ok());
    model.zip(theirs).is_some_and(|(model, theirs)| model != theirs)
}

fn params(fields: &Value) -> Option<&Map<String, Value>> {
    fields.get("params").and_then(Value::as_object)
}

/// How many times the work of a record's stage this one has.
fn more_work(stage: &Stage, fields: &Value) -> f64 {
    let kind = &stage.card.kind;
    let then = params(fields).and_then(|params| workload(kind, params));
    workload(kind, &stage.params).zip(then).map_or(1.0, |(now, then)| now / then)
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

/// How many parameters a record was made with that are not the stage's own; of files the content counts.
fn differing(stage: &Stage, fields: &Value) -> usize {
    let none = Map::new();
    let theirs = params(fields).unwrap_or(&none);
    let keyed = |name: &String| stage.card.params.get(name).is_none_or(|param| param.keyed);
    let is_other = |(name, value): &(&String, &Value)| match stage.files.get(*name) {
        Some(digest) => theirs.get(*name) != Some(&json!({ "file": digest })),
        None => theirs.get(*name) != Some(*value),
    };
    stage.params.iter().filter(|(name, _)| keyed(name)).filter(is_other).count()
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
