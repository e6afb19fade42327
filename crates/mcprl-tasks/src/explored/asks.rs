//! What a task asks, for a program that computes the answer from the data itself and knows nothing of our queries
//! (docs/guides/scenarios.md).

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::graph::SuccessfulCall;
use crate::{
    answer_rule::{Aggregate, AnswerRule},
    candidate::{Candidate, Check},
    harvest::{Field, Reading},
    words,
};

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Asks {
    #[serde(flatten)]
    operation: Operation,
    source: FactSource,
    #[serde(rename = "where", skip_serializing_if = "Vec::is_empty")]
    conditions: Vec<Condition>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "operation", rename_all = "snake_case")]
pub enum Operation {
    Field {
        field: Column,
    },
    Absent {
        field: Column,
    },
    List {
        field: Column,
    },
    First {
        field: Column,
    },
    Last {
        field: Column,
    },
    Count,
    CountDistinct {
        field: Column,
    },
    Total {
        field: Column,
        #[serde(skip_serializing_if = "Option::is_none")]
        times: Option<Column>,
        #[serde(skip_serializing_if = "Option::is_none")]
        decimals: Option<u8>,
    },
    Average {
        field: Column,
        decimals: u8,
    },
    Largest {
        field: Column,
    },
    Smallest {
        field: Column,
    },
    Most {
        field: Column,
        by: Column,
    },
    Least {
        field: Column,
        by: Column,
    },
    MostOf {
        field: Column,
        group: Column,
        measure: Measure,
    },
    Groups {
        group: Column,
        #[serde(flatten)]
        size: Size,
    },
    Without {
        of: Column,
        by: Column,
        #[serde(skip_serializing_if = "Option::is_none")]
        field: Option<Column>,
    },
    Value,
    /// The task says it.
    Said {
        #[serde(flatten)]
        said: Computation,
    },
}

/// A column of a table, as `table.column`, or a field of a result's records.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Column {
    One(String),
    /// Several columns, with a space between.
    Concat {
        concat: [String; 2],
    },
    /// What the only one of a record's texts that begins and ends so has between.
    Note {
        note: String,
        before: String,
        after: String,
    },
}

impl From<&str> for Column {
    fn from(name: &str) -> Self {
        Self::One(name.to_owned())
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    Count,
    #[serde(untagged)]
    Total {
        total: Column,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Size {
    MoreThan(usize),
    AtLeast(usize),
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Computation {
    Arithmetic((u64, &'static str, u64)),
    /// So many percent of a number.
    Percent((u64, u64)),
    /// So many of one unit, in another.
    Convert((u64, &'static str, &'static str)),
    /// The weekday so many days after another.
    Weekday((&'static str, u64)),
    /// The days from one weekday to the next other.
    DaysBetween((&'static str, &'static str)),
    /// The time so many minutes after another.
    Later((String, u64)),
    MinutesBetween((String, String)),
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum FactSource {
    Table {
        table: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        joins: Vec<Join>,
    },
    Tool {
        tool: String,
        arguments: Map<String, Value>,
        #[serde(skip_serializing_if = "String::is_empty")]
        list: String,
    },
    /// All records of a list that the server has, whichever tool shows them.
    All {
        list: String,
    },
    Task {
        task: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Join {
    pub column: Column,
    pub key: Column,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Condition {
    pub column: Column,
    #[serde(flatten)]
    pub test: Test,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    Is(Value),
    /// It is one of several values.
    In(Value),
    /// The field is a list with this text.
    Has(String),
    Above(Value),
    Below(Value),
    Missing(bool),
    Month(String),
}

impl Asks {
    pub fn new(operation: Operation, source: FactSource) -> Self {
        Self { operation, source, conditions: Vec::new() }
    }

    pub fn filtered(mut self, conditions: impl IntoIterator<Item = Condition>) -> Self {
        self.conditions.extend(conditions);
        self
    }

    /// What the task itself says.
    pub fn said(said: Computation) -> Self {
        Self::new(Operation::Said { said }, FactSource::Task { task: true })
    }

    /// What a rule asks about one result. `typed` is a value of a field as the result has it.
    pub fn of_rule(
        rule: &AnswerRule,
        source: FactSource,
        typed: impl Fn(&str, &str) -> Value,
    ) -> Option<Self> {
        let of = |name: &String| Column::One(name.clone());
        let keyed = |keys: &[(String, String)]| -> Vec<Condition> {
            keys.iter()
                .map(|(key, text)| Condition { column: of(key), test: Test::Is(typed(key, text)) })
                .collect()
        };
        let note = |note: &String, before: &String, after: &String| Column::Note {
            note: note.clone(),
            before: before.clone(),
            after: after.clone(),
        };
        let (operation, conditions) = match rule {
            AnswerRule::Field { key, field, .. } => {
                (Operation::Field { field: of(field) }, keyed(key.as_slice()))
            }
            AnswerRule::Absent { field } => (Operation::Absent { field: of(field) }, Vec::new()),
            AnswerRule::Count { .. } => (Operation::Count, Vec::new()),
            AnswerRule::Column { field, .. } => (Operation::List { field: of(field) }, Vec::new()),
            AnswerRule::Matching { keys, field: Some(field), .. } => {
                (Operation::List { field: of(field) }, keyed(keys))
            }
            AnswerRule::Matching { keys, field: None, .. } => (Operation::Count, keyed(keys)),
            AnswerRule::Between { key, field, before, after, .. } => {
                (Operation::Field { field: note(field, before, after) }, keyed(std::slice::from_ref(key)))
            }
            AnswerRule::Measured { field, key, wanted, .. } => (
                Operation::measured(of(field), key.as_ref().filter(|key| *key != field).map(of), *wanted),
                Vec::new(),
            ),
            AnswerRule::OfNotes { name, notes, before, after, wanted, .. } => {
                (Operation::measured(note(notes, before, after), Some(of(name)), *wanted), Vec::new())
            }
            AnswerRule::Only | AnswerRule::Number { .. } => (Operation::Value, Vec::new()),
            AnswerRule::Quoted(_) | AnswerRule::Recorded { .. } | AnswerRule::Nothing => return None,
        };
        Some(Self::new(operation, source).filtered(conditions))
    }

    /// As the column `asks` of a scenario.
    pub fn to_value(&self) -> Value {
        json!(self)
    }

    /// As an argument that the task describes.
    pub fn as_argument(&self) -> Value {
        json!({ "of": self })
    }
}

impl Operation {
    /// What is wanted of the numbers in a field: the value itself, or the other field of its record.
    fn measured(by: Column, field: Option<Column>, wanted: Aggregate) -> Self {
        match (wanted, field) {
            (Aggregate::Total, _) => Self::Total { field: by, times: None, decimals: None },
            (Aggregate::Most, Some(field)) => Self::Most { field, by },
            (Aggregate::Least, Some(field)) => Self::Least { field, by },
            (Aggregate::Most, None) => Self::Largest { field: by },
            (Aggregate::Least, None) => Self::Smallest { field: by },
        }
    }
}

/// A field's value as the result has it.
pub fn of_field(field: &Field) -> Value {
    let scalar = || {
        serde_json::from_str(&field.value)
            .ok()
            .filter(|value: &Value| !value.is_array() && !value.is_object())
    };
    (!field.is_text).then(scalar).flatten().unwrap_or_else(|| field.value.as_str().into())
}

/// A question about the last of a candidate's calls, with how its answer is compared and what it asks. `is_set`: the field that is
/// asked for holds several values.
pub fn answered(
    candidate: Candidate,
    seen: &SuccessfulCall,
    tool: &str,
    arguments: Map<String, Value>,
    (answer, is_set): (&str, bool),
) -> Candidate {
    let rule = &candidate.rule;
    let list = rule.list();
    let source = FactSource::Tool { tool: tool.to_owned(), arguments, list: list.to_owned() };
    let asks = Asks::of_rule(rule, source, |name, value| typed(&seen.reading, list, name, value));
    let check = match rule {
        AnswerRule::Column { .. } | AnswerRule::Matching { field: Some(_), .. } => Check::Set,
        AnswerRule::Field { .. } if is_set => Check::Set,
        _ => Check::of(answer),
    };
    let is_text = matches!(rule, AnswerRule::Field { field, .. } if self::is_text(&seen.reading, field));
    Candidate {
        family: candidate.family.split_whitespace().collect::<Vec<_>>().join(" "),
        check: if is_text && check == Check::Number { Check::Text } else { check },
        is_text,
        asks: asks.map(|asks| asks.to_value()),
        ..candidate
    }
}

/// Whether a field has texts that may look like numbers and are right as they are written.
pub fn is_text(reading: &Reading, field: &str) -> bool {
    let mut fields = reading.lists.iter().flat_map(|list| &list.records).flatten();
    !words::is_amount(field) && fields.any(|found| found.name == field && found.is_text)
}

/// A value of a field as the result has it.
pub fn typed(reading: &Reading, list: &str, name: &str, value: &str) -> Value {
    let records = reading.lists.iter().filter(|one| one.name == list).flat_map(|list| &list.records);
    let found = records.flatten().find(|field| field.name == name && field.value == value);
    found.map_or_else(|| value.into(), of_field)
}

/// A value as the data has it: a number, or a text exactly as stored.
pub fn value(text: &str, is_number: bool) -> Value {
    let number = || -> Option<Value> {
        let whole = text.parse::<i64>().map(Value::from).or_else(|_| text.parse::<u64>().map(Value::from));
        whole.ok().or_else(|| text.parse::<f64>().ok().map(Value::from))
    };
    is_number.then(number).flatten().unwrap_or_else(|| text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_written_flat() {
        let source = FactSource::Table {
            table: "orders".into(),
            joins: vec![Join { column: "orders.customer_id".into(), key: "customers.id".into() }],
        };
        let by_zip = Condition { column: "customers.zip".into(), test: Test::Is(value("01067", false)) };
        let asks = Asks::new(Operation::Count, source.clone()).filtered([by_zip]);
        assert_eq!(
            asks.to_value(),
            json!({"operation": "count", "source": {"table": "orders", "joins": [{"column": "orders.customer_id", "key": "customers.id"}]},
                "where": [{"column": "customers.zip", "is": "01067"}]})
        );
        let group = || Column::from("orders.customer_id");
        for (operation, expected) in [
            (
                Operation::Groups { group: group(), size: Size::AtLeast(2) },
                json!({"operation": "groups", "group": "orders.customer_id", "at_least": 2}),
            ),
            (
                Operation::MostOf { field: group(), group: group(), measure: Measure::Count },
                json!({"operation": "most_of", "field": "orders.customer_id", "group": "orders.customer_id", "measure": "count"}),
            ),
            (
                Operation::Said { said: Computation::Arithmetic((9, "-", 4)) },
                json!({"operation": "said", "arithmetic": [9, "-", 4]}),
            ),
        ] {
            assert_eq!(json!(operation), expected);
        }
        assert_eq!(json!(Measure::Total { total: group() }), json!({"total": "orders.customer_id"}));
        assert_eq!(
            [value("7", true), value("7.5", true), value("x", true)],
            [json!(7), json!(7.5), json!("x")]
        );
    }
}
