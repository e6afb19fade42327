//! Estimates what a plan will cost, from earlier runs of its stages.
//!
//! A stage's estimate is the mean of its earlier records in this store. It uses records of the same kind and
//! name with a model of the same shape; of those, the ones whose parameters differ in the fewest places.
//! Known differences in the amount of work, episodes and passes, scale the estimate. Reused rows count as no
//! work. Judge tokens are priced at current prices. There is no estimate from another model, from an endpoint
//! for a stage that asks none, nor for a model that is not on this machine.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{Stage, reason::SHAPE, stage_name};
use crate::{
    hash::Digest,
    stage::{self, card::ParamType},
    store::{ActionRecord, Cost, Store},
};

/// The expected cost of one stage.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    #[serde(flatten)]
    pub cost: Cost,
    /// Number of earlier records averaged.
    pub records: usize,
    /// Number of parameters in which those records differ from the stage.
    pub differing: usize,
}

/// Why a stage has no estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoEstimate {
    /// It has no earlier run here.
    NoRecord,
    /// All earlier runs used another model.
    OtherModel,
    /// Its model is unknown until it is downloaded or made.
    NoModel,
}

/// A stage without an estimate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unknown {
    pub stage: String,
    pub why: NoEstimate,
}

/// The model that a stage samples from or trains, as far as it affects the cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Uses {
    NoModel,
    /// A model of this shape.
    Model(Digest),
    UnknownModel,
}

/// Rows of a pending stage that earlier results already have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Reused {
    pub rows: usize,
    /// Number of rows it is sure to need.
    pub of: usize,
}

impl Reused {
    #[expect(clippy::cast_precision_loss, reason = "a number of episodes")]
    fn rest(self) -> f64 {
        1.0 - self.rows as f64 / self.of.max(1) as f64
    }
}

impl Estimate {
    /// The recorded cost of an existing result.
    pub fn of(cost: Cost) -> Self {
        Self { cost, records: 1, differing: 0 }
    }

    /// Whether the records have exactly the stage's parameters.
    pub fn is_alike(&self) -> bool {
        self.differing == 0
    }
}

/// Earlier records by kind and name.
#[derive(Default)]
pub struct CostHistory(BTreeMap<(String, String), Vec<ActionRecord>>);

impl CostHistory {
    pub fn of(store: &Store) -> Self {
        let mut history = Self::default();
        store.records().into_iter().for_each(|record| history.add(record));
        history
    }

    /// Adds the record of a stage that has ended since.
    pub fn add(&mut self, record: ActionRecord) {
        let kind = record.fields.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        self.0.entry((kind, stage_name(&record.stage))).or_default().push(record);
    }

    /// The expected cost of a stage that reuses these rows.
    ///
    /// # Errors
    /// Returns why there is no estimate.
    pub fn estimate(
        &self,
        stage: &Stage,
        uses: Uses,
        reused: Option<Reused>,
    ) -> Result<Estimate, NoEstimate> {
        let records = self.0.get(&(stage.card.kind.clone(), stage.name.clone()));
        let records = records.ok_or(NoEstimate::NoRecord)?;
        if uses == Uses::UnknownModel {
            return Err(NoEstimate::NoModel);
        }
        let asks = !stage.card.command.is_empty() || asks_endpoint(&stage.params);
        let fits = |record: &&ActionRecord| {
            !is_other_model(stage, uses, &record.fields) && (asks || !record.cost.spent.is_billed())
        };
        let records: Vec<&ActionRecord> = records.iter().filter(fits).collect();
        let differing = |record: &ActionRecord| others(stage, &record.fields).count();
        let least = records.iter().map(|record| differing(record)).min();
        let least = least.ok_or(NoEstimate::OtherModel)?;
        let (mut sum, mut count) = (Cost::default(), 0);
        for record in records.iter().filter(|record| differing(record) == least) {
            sum += scaled(priced(stage, record.cost), more_work(stage, &record.fields));
            count += 1;
        }
        #[expect(clippy::cast_precision_loss, reason = "a number of records")]
        let mean = 1.0 / count as f64;
        let cost = scaled(sum, mean * reused.map_or(1.0, Reused::rest));
        Ok(Estimate { cost, records: count, differing: least })
    }
}

fn scaled(cost: Cost, factor: f64) -> Cost {
    Cost {
        seconds: cost.seconds * factor,
        spent: cost.spent.scaled(factor),
        dollars: cost.dollars.map(|dollars| dollars * factor),
    }
}

/// Whether the record's stage used a model of another shape, or read another model from outside.
fn is_other_model(stage: &Stage, uses: Uses, fields: &Value) -> bool {
    let theirs: Option<Digest> =
        fields.get(SHAPE).and_then(Value::as_str).and_then(|shape| shape.parse().ok());
    let other_shape = matches!((uses, theirs), (Uses::Model(ours), Some(theirs)) if ours != theirs);
    let is_model =
        |name: &String| stage.card.params.get(name).is_some_and(|param| param.kind == ParamType::Model);
    other_shape || others(stage, fields).any(is_model)
}

/// Whether parameters, or a table among them, name an endpoint.
fn asks_endpoint(params: &Map<String, Value>) -> bool {
    params.get("base_url").is_some_and(Value::is_string)
        || params.values().filter_map(Value::as_object).any(asks_endpoint)
}

fn params(fields: &Value) -> Option<&Map<String, Value>> {
    fields.get("params").and_then(Value::as_object)
}

/// This stage's work as a multiple of the record's.
fn more_work(stage: &Stage, fields: &Value) -> f64 {
    let is_file = |name: &String| stage.files.contains_key(name);
    let mut then = stage.params.clone();
    let recorded = params(fields).into_iter().flatten().filter(|(name, _)| !is_file(name));
    then.extend(recorded.map(|(name, value)| (name.clone(), value.clone())));
    let then = stage::parse(&stage.card, &then).ok().and_then(|then| then.workload());
    let now = stage.kind.as_ref().and_then(|now| now.workload());
    now.zip(then).map_or(1.0, |(now, then)| now / then)
}

fn priced(stage: &Stage, cost: Cost) -> Cost {
    let dollars = stage.prices.map(|prices| prices.of(&cost.spent)).or(cost.dollars);
    Cost { dollars, ..cost }
}

/// The parameters whose values differ from the record's. Files are compared by content.
fn others<'s>(stage: &'s Stage, fields: &Value) -> impl Iterator<Item = &'s String> {
    let theirs = params(fields);
    let is_keyed = |name: &&String| stage.card.params.get(*name).is_none_or(|param| param.keyed);
    let is_other = move |name: &&String| {
        let theirs = theirs.and_then(|theirs| theirs.get(*name));
        match stage.files.get(*name) {
            Some(digest) => theirs != Some(&json!({ "file": digest })),
            None => theirs != stage.params.get(*name),
        }
    };
    stage.params.keys().filter(is_keyed).filter(is_other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_asks_an_endpoint_if_a_parameter_or_a_table_of_one_has_an_address() {
        let asks = |params: Value| asks_endpoint(params.as_object().unwrap());
        assert!(asks(json!({"base_url": "http://127.0.0.1:1/v1"})));
        assert!(asks(json!({"answers_endpoint": {"base_url": "http://127.0.0.1:1/v1", "model": "m"}})));
        assert!(asks(json!({"endpoints": {"big": {"base_url": "http://127.0.0.1:1/v1", "model": "m"}}})));
        assert!(!asks(json!({"answers_votes": 8, "base_url": null, "weights": {"relative": 1.0}})));
    }
}
