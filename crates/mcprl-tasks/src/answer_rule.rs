//! How the answer of a task is read from results.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::harvest::{self, List, Reading};
use crate::data::{Json, NONE, result_view};

/// How the answer is read from the last result. As JSON it is the column `reads` of a scenario.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerRule {
    /// A field of the record whose field `key.0` is `key.1`, or of the only record.
    Field { list: String, key: Option<(String, String)>, field: String },
    /// The number of records.
    Count { list: String },
    /// A field of every record, as a set.
    Column { list: String, field: String },
    /// The field of every record with these values, as a set; without a field, the number of these records.
    Matching { list: String, keys: Vec<(String, String)>, field: Option<String> },
    /// What the text that starts and ends so has between. It is one of those in a field of the record with this key.
    Between { list: String, key: (String, String), field: String, before: String, after: String },
    /// What is wanted of the numbers in `field`. An extreme is named by its record's field `key`; a sum has none.
    Measured { list: String, field: String, key: Option<String>, wanted: Aggregate },
    /// The same of what a note has between these ends: each record with the key `name` has one such note in its field `notes`.
    OfNotes { list: String, name: String, notes: String, before: String, after: String, wanted: Aggregate },
    /// The only value of the result.
    Only,
    /// The number in the line that is none of these.
    Number { not: Vec<String> },
    /// This text, which the last result, or one of those before, contains.
    Quoted(String),
    /// The value of the last result that this answer names and the task does not.
    Recorded { answer: String, task: String },
    /// Nothing: the last result, of which a field was wanted, is empty, and the task says to answer [`NONE`] then.
    Absent { field: String },
    /// The task is a change; there is no answer.
    #[default]
    Nothing,
}

/// What is wanted of several numbers or moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aggregate {
    /// The name of the one with the largest or latest.
    Most,
    /// The name of the one with the smallest or earliest.
    Least,
    /// The sum.
    Total,
}

/// The answer of a task, and what is known with it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    pub text: String,
    /// The values of the result that could be taken for it: those of the same field, and those beside it if the rule names no
    /// field. A number needs none.
    pub alternatives: Vec<String>,
    /// What a solution writes before it, where it is counted, compared or added up: a model that answers at once gets such answers
    /// wrong. None where the result states it, and where there are too many values.
    pub working: Option<String>,
}

/// Longest answer.
pub const ANSWER_BYTES: usize = 80;
/// Most items of an answer that is a set.
const SET: usize = 8;
/// Longest text before an answer, and longest name in it.
const WORKING_BYTES: usize = 400;
const LABEL_BYTES: usize = 40;
/// Most decimals of numbers that are added.
const DECIMALS: usize = 4;
impl AnswerRule {
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Field { key: Some(_), .. } => "field of one",
            Self::Field { key: None, .. } => "field",
            Self::Count { .. } => "count",
            Self::Column { .. } => "column",
            Self::Matching { field: Some(_), .. } => "matching",
            Self::Matching { field: None, .. } => "count of matching",
            Self::Between { .. } => "between",
            Self::Measured { wanted: Aggregate::Most, .. } if self.is_own_key() => "largest value",
            Self::Measured { wanted: Aggregate::Least, .. } if self.is_own_key() => "smallest value",
            Self::Measured { wanted: Aggregate::Most, .. } => "largest",
            Self::Measured { wanted: Aggregate::Least, .. } => "smallest",
            Self::Measured { wanted: Aggregate::Total, .. } => "total",
            Self::OfNotes { wanted: Aggregate::Most, .. } => "most of notes",
            Self::OfNotes { wanted: Aggregate::Least, .. } => "least of notes",
            Self::OfNotes { wanted: Aggregate::Total, .. } => "total of notes",
            Self::Only => "value",
            Self::Number { .. } => "number",
            Self::Quoted(_) => "quoted",
            Self::Recorded { .. } => "recorded",
            Self::Absent { .. } => "absent",
            Self::Nothing => "change",
        }
    }

    /// The list of the result that is asked about; empty for the result itself.
    pub fn list(&self) -> &str {
        match self {
            Self::Field { list, .. }
            | Self::Count { list }
            | Self::Column { list, .. }
            | Self::Matching { list, .. }
            | Self::Between { list, .. }
            | Self::Measured { list, .. }
            | Self::OfNotes { list, .. } => list,
            _ => "",
        }
    }

    /// Whether the answer is the compared value itself.
    fn is_own_key(&self) -> bool {
        matches!(self, Self::Measured { field, key: Some(key), .. } if field == key)
    }

    /// The rule as text, to rank rules by: renaming anything in this program does not change it.
    pub fn text(&self) -> String {
        let fields = match self {
            Self::Field { list, key, field } => json!([list, key, field]),
            Self::Count { list } => json!([list]),
            Self::Column { list, field } | Self::Measured { list, field, key: None, .. } => {
                json!([list, field])
            }
            Self::Measured { list, field, key: Some(key), .. } => json!([list, field, key]),
            Self::Matching { list, keys, field } => json!([list, keys, field]),
            Self::Between { list, key, field, before, after } => json!([list, key, field, before, after]),
            Self::OfNotes { list, name, notes, before, after, .. } => {
                json!([list, name, notes, before, after])
            }
            Self::Absent { field } => json!([field]),
            Self::Only | Self::Nothing => json!([]),
            Self::Number { not } => json!(not),
            Self::Quoted(answer) => json!([answer]),
            Self::Recorded { answer, task } => json!([answer, task]),
        };
        json!([self.kind(), fields]).to_string()
    }

    /// The column `reads` of a scenario.
    pub fn column(&self) -> Option<Json> {
        (*self != Self::Nothing).then(|| Json(json!(self).to_string()))
    }

    /// Whether an agent that sees this many characters of each result can know the answer: the parts that it sees state it,
    /// and for an answer that is about all of a result it sees all of it.
    pub fn is_visible(&self, texts: &[&str], answer: &str, result_chars: usize) -> bool {
        let views: Vec<(String, bool)> =
            texts.iter().map(|text| result_view((*text).to_owned(), result_chars)).collect();
        match self {
            Self::Absent { .. } | Self::Nothing => true,
            Self::Field { .. }
            | Self::Between { .. }
            | Self::Only
            | Self::Number { .. }
            | Self::Quoted(_)
            | Self::Recorded { .. } => {
                views.iter().all(|(_, is_cut)| !is_cut) || views.iter().any(|(text, _)| states(text, answer))
            }
            _ => views.last().is_none_or(|(_, is_cut)| !is_cut),
        }
    }

    /// The answer, if there is exactly one; else why not.
    pub fn answer(&self, texts: &[&str]) -> Result<String, &'static str> {
        let last = texts.last().copied().unwrap_or_default();
        if let Self::Quoted(answer) = self {
            return texts
                .iter()
                .any(|text| states(text, answer))
                .then(|| answer.clone())
                .ok_or("no result states the answer");
        }
        let mut reading = harvest::read(last);
        self.drop_header(&mut reading);
        if let Self::Absent { .. } = self {
            let is_empty = is_nothing(last)
                || ["[]", "{}", "null"].contains(&last.trim())
                || reading.line.is_none() && reading.lists.iter().all(|list| list.records.is_empty());
            return if is_empty { Ok(NONE.to_owned()) } else { Err("the result is not empty") };
        }
        let answer = self.read(&reading)?;
        match answer.trim() {
            "" | "None" | "null" | "NULL" | "[]" | "{}" => Err("the answer is empty"),
            answer if is_nothing(answer) => Err("the answer is that there is nothing"),
            answer if answer.len() > ANSWER_BYTES || answer.contains('\n') => Err("the answer is long"),
            answer => Ok(answer.split(", ").map(day).collect::<Vec<_>>().join(", ")),
        }
    }

    /// An answer with what the last of these results has besides.
    pub fn explained(&self, answer: String, texts: &[&str]) -> Answer {
        let reading = texts.last().map(|text| harvest::read(text)).unwrap_or_default();
        let alternatives = self.alternatives(&reading, &answer);
        Answer { alternatives, working: self.working(&reading), text: answer }
    }

    /// A table of one column may be lines of text, whose first is the column's name.
    fn drop_header(&self, reading: &mut Reading) {
        let is_header = |line: &str| match self {
            Self::Field { list, key: None, field } | Self::Column { list, field } => {
                list.is_empty() && line.eq_ignore_ascii_case(field)
            }
            Self::Absent { field } => line.eq_ignore_ascii_case(field),
            Self::Only => is_function(line),
            _ => false,
        };
        if let Self::Absent { .. } = self
            && reading.line.as_deref().is_some_and(is_header)
        {
            *reading = Reading::default();
        }
        let [list] = reading.lists.as_mut_slice() else { return };
        let is_plain = |record: &harvest::Record| matches!(record.as_slice(), [only] if only.name.is_empty());
        let header = list.records.first().filter(|_| list.records.iter().all(is_plain));
        let header = header.map(|record| record[0].value.clone());
        if let Some(header) = header.filter(|header| is_header(header)) {
            list.records.remove(0);
            list.records.iter_mut().for_each(|record| record[0].name.clone_from(&header));
        }
    }

    /// As in [`Answer`].
    pub fn alternatives(&self, reading: &Reading, answer: &str) -> Vec<String> {
        let of_field = |list: &List, name: &str| -> Vec<String> {
            list.records.iter().filter_map(|record| value_of(record, name)).map(str::to_owned).collect()
        };
        let of_lists = |name: &str, field: &str| {
            let lists = reading.lists.iter().filter(|list| list.name == name);
            lists.flat_map(|list| of_field(list, field)).collect()
        };
        match self {
            Self::Field { list, field, .. }
            | Self::Column { list, field }
            | Self::Matching { list, field: Some(field), .. } => of_lists(list, field),
            Self::Absent { field } => of_lists("", field),
            Self::Measured { list, key: Some(key), .. }
            | Self::OfNotes { list, name: key, wanted: Aggregate::Most | Aggregate::Least, .. } => {
                of_lists(list, key)
            }
            Self::Only => self.read(reading).into_iter().collect(),
            Self::Quoted(_) | Self::Recorded { .. } => {
                let fields = reading.lists.iter().flat_map(|list| {
                    let is_answer = |field: &&harvest::Field| normal(&field.value) == normal(answer);
                    let named = list.records.iter().flatten().filter(is_answer).map(|field| &field.name);
                    named.collect::<BTreeSet<_>>().into_iter().flat_map(|name| of_field(list, name))
                });
                fields.collect()
            }
            _ => Vec::new(),
        }
    }

    fn working(&self, reading: &Reading) -> Option<String> {
        let counted = |records: Vec<&harvest::Record>, without: &[&str]| {
            let names = labels(&records, without)?;
            let items = names.iter().enumerate().map(|(index, name)| format!("{} {name}", index + 1));
            Some(format!("{}.", items.collect::<Vec<_>>().join(", ")))
        };
        let text = match self {
            Self::Count { list } => counted(named(reading, list).ok()?.records.iter().collect(), &[])?,
            Self::Matching { list, keys, field: None } => {
                let without: Vec<&str> = keys.iter().map(|(name, _)| name.as_str()).collect();
                counted(matching(named(reading, list).ok()?, keys).collect(), &without)?
            }
            Self::Measured { .. } | Self::OfNotes { .. } => {
                let (measured, wanted) = self.measured(reading).ok()?;
                let values: Vec<&str> = measured.iter().map(|(_, value)| *value).collect();
                if measured.len() < 2 {
                    return None;
                }
                match wanted {
                    Aggregate::Total => {
                        let sums = sums(&values).ok()?;
                        let steps = values[1..].iter().zip(sums.windows(2));
                        let steps = steps.map(|(value, sum)| format!("{} + {value} = {}", sum[0], sum[1]));
                        format!("{}.", steps.collect::<Vec<_>>().join(", "))
                    }
                    Aggregate::Most | Aggregate::Least => {
                        let items = measured.iter().map(|(name, value)| match name {
                            Some(name) => format!("{name} {value}"),
                            None => (*value).to_owned(),
                        });
                        let most = if wanted == Aggregate::Most { "Most" } else { "Least" };
                        let value = values[*extremes(&values, wanted).ok()?.first()?];
                        format!("{}. {most}: {value}.", items.collect::<Vec<_>>().join(", "))
                    }
                }
            }
            _ => return None,
        };
        (text.len() <= WORKING_BYTES).then_some(text)
    }

    /// The numbers or moments of all records, with the names of the records.
    fn measured<'r>(&self, reading: &'r Reading) -> Result<(Vec<Measured<'r>>, Aggregate), &'static str> {
        let lacking = "not every record has a number";
        match self {
            Self::OfNotes { list, name, notes, before, after, wanted } => {
                let of = |record: &'r harvest::Record| {
                    let value = only_between(value_of(record, notes).unwrap_or_default(), before, after).ok();
                    value.map(|value| (value_of(record, name), value))
                };
                let records = &whole(named(reading, list)?)?.records;
                Ok((records.iter().map(of).collect::<Option<_>>().ok_or(lacking)?, *wanted))
            }
            Self::Measured { list, field, key, wanted } => {
                let records = &whole(named(reading, list)?)?.records;
                if *wanted != Aggregate::Total && are_of_several_days(records, field) {
                    return Err("the times are of several days");
                }
                let key = key.as_ref().filter(|key| *key != field);
                let name =
                    |record: &'r harvest::Record| value_of(record, key?).filter(|name| !name.is_empty());
                let of = |record: &'r harvest::Record| Some((name(record), value_of(record, field)?));
                Ok((records.iter().map(of).collect::<Option<_>>().ok_or(lacking)?, *wanted))
            }
            _ => Err("the rule compares nothing"),
        }
    }

    fn read(&self, reading: &Reading) -> Result<String, &'static str> {
        match self {
            Self::Field { list, key, field } => {
                let list = named(reading, list)?;
                let mut found = list.records.iter().filter(|record| match key {
                    Some((name, value)) => value_of(record, name) == Some(value),
                    None => true,
                });
                let record = found.next().ok_or("there is no such record")?;
                if found.next().is_some() {
                    return Err("there are several such records");
                }
                Ok(value_of(record, field).ok_or("the record lacks the field")?.to_owned())
            }
            Self::Count { list } => Ok(whole(named(reading, list)?)?.records.len().to_string()),
            Self::Column { list, field } => set_of(whole(named(reading, list)?)?.records.iter(), field),
            Self::Matching { list, keys, field } => {
                let records = matching(whole(named(reading, list)?)?, keys);
                match field {
                    Some(field) => set_of(records, field),
                    None => Ok(records.count().to_string()),
                }
            }
            Self::Between { list, key: (name, value), field, before, after } => {
                let mut records = named(reading, list)?.records.iter();
                let record = records.find(|record| value_of(record, name) == Some(value));
                let texts =
                    record.and_then(|record| value_of(record, field)).ok_or("there is no such record")?;
                only_between(texts, before, after).map(str::to_owned)
            }
            Self::Measured { .. } | Self::OfNotes { .. } => {
                let (measured, wanted) = self.measured(reading)?;
                let values: Vec<&str> = measured.iter().map(|(_, value)| *value).collect();
                match wanted {
                    Aggregate::Total => sums(&values)?.pop().ok_or("there is nothing to add"),
                    Aggregate::Most | Aggregate::Least => {
                        let places = extremes(&values, wanted)?;
                        match places.as_slice() {
                            [first, ..] if self.is_own_key() => Ok(values[*first].to_owned()),
                            [only] => Ok(measured[*only].0.ok_or("the record lacks the field")?.to_owned()),
                            _ => Err("several are the largest or smallest"),
                        }
                    }
                }
            }
            Self::Only => match (&reading.line, reading.lists.as_slice()) {
                (_, [list]) if list.records.len() == 1 && list.records[0].len() == 1 => {
                    Ok(list.records[0][0].value.clone())
                }
                (Some(line), _) => Ok(line.clone()),
                _ => Err("there are several values"),
            },
            Self::Number { not } => {
                let line = reading.line.as_deref().ok_or("the result is no line")?;
                let mut new = numbers(line);
                new.retain(|number| !not.contains(number));
                match new.as_slice() {
                    [number] => Ok(number.clone()),
                    _ => Err("the line has not one new number"),
                }
            }
            Self::Quoted(answer) => Ok(answer.clone()),
            Self::Recorded { answer, task } => recorded(reading, answer, task),
            Self::Absent { .. } | Self::Nothing => Ok("-".into()),
        }
    }
}

/// The name of a record, if it has one, and its number or moment.
type Measured<'r> = (Option<&'r str>, &'r str);

fn matching<'r>(list: &'r List, keys: &[(String, String)]) -> impl Iterator<Item = &'r harvest::Record> {
    let fits =
        |record: &&harvest::Record| keys.iter().all(|(name, value)| value_of(record, name) == Some(value));
    list.records.iter().filter(fits)
}

/// What the only one of these texts that starts and ends so has between.
fn only_between<'t>(texts: &'t str, before: &str, after: &str) -> Result<&'t str, &'static str> {
    let mut found = texts.split(", ").filter_map(|text| text.strip_prefix(before)?.strip_suffix(after));
    match (found.next(), found.next()) {
        (Some(only), None) => Ok(only),
        _ => Err("not one text of the record has this beginning and end"),
    }
}

/// A name for each record: the first field that tells all of them apart, without some.
fn labels<'r>(records: &[&'r harvest::Record], without: &[&str]) -> Option<Vec<&'r str>> {
    let is_label =
        |value: &&str| !value.trim().is_empty() && value.len() <= LABEL_BYTES && !value.contains([',', '\n']);
    let first = records.first()?;
    let fields = first.iter().filter(|field| !field.is_set && !without.contains(&field.name.as_str()));
    fields.map(|field| field.name.as_str()).find_map(|name| {
        let values: Option<Vec<&str>> =
            records.iter().map(|record| value_of(record, name).filter(is_label)).collect();
        values.filter(|values| values.iter().collect::<BTreeSet<_>>().len() == values.len())
    })
}

/// Whether a text is a date, with or without a time, or a time of day: `2024-05-01`, `2024-05-01T10:00`, `08:30:00`.
pub fn is_moment(text: &str) -> bool {
    const DAY: &str = "0000-00-00";
    let shape: String =
        text.chars().map(|letter| if letter.is_ascii_digit() { '0' } else { letter }).collect();
    let is_time =
        |time: &str| time.starts_with("00:00") && time.chars().all(|letter| "0:.Z+-".contains(letter));
    ["0000-00", DAY, "00:00", "00:00:00"].contains(&shape.as_str())
        || shape.strip_prefix(DAY).and_then(|rest| rest.strip_prefix(['T', ' '])).is_some_and(is_time)
}

/// The day of a moment at midnight, which is how a column of times has days; any other text as it is.
pub fn day(text: &str) -> &str {
    let Some((day, time)) = text.split_once(['T', ' ']) else { return text };
    let time = time.strip_suffix('Z').or_else(|| time.strip_suffix("+00:00")).unwrap_or(time);
    let is_midnight = time.starts_with("00:00") && time.chars().all(|letter| "0:.".contains(letter));
    if is_midnight && day.len() == 10 && is_moment(text) { day } else { text }
}

/// Whether a field has times of day, of records with different days: 14:00 on Monday is before 9:00 on Tuesday.
fn are_of_several_days(records: &[harvest::Record], field: &str) -> bool {
    let values = |name: &str| -> BTreeSet<&str> {
        records.iter().filter_map(|record| value_of(record, name)).collect()
    };
    let is_time = |value: &&str| is_moment(value) && !value.contains('-');
    let is_day = |value: &&str| is_moment(value) && value.contains('-');
    let are_days = |other: &harvest::Field| {
        let days = values(&other.name);
        days.len() > 1 && days.iter().all(is_day)
    };
    values(field).iter().all(is_time) && records.first().into_iter().flatten().any(are_days)
}

/// The places of the largest or smallest of these numbers, or of the latest or earliest of these moments.
fn extremes(values: &[&str], wanted: Aggregate) -> Result<Vec<usize>, &'static str> {
    let number = |value: &&str| value.parse::<f64>().ok().filter(|number| number.is_finite());
    let is_alike = |value: &&str| is_moment(value) && value.len() == values[0].len();
    let numbers = values.iter().map(number).collect::<Option<Vec<f64>>>();
    if numbers.is_none() && !values.iter().all(is_alike) {
        return Err("not every record has a number");
    }
    let compare = |one: &usize, other: &usize| match &numbers {
        Some(numbers) => numbers[*one].total_cmp(&numbers[*other]),
        None => values[*one].cmp(values[*other]),
    };
    let places = 0..values.len();
    let best = if wanted == Aggregate::Most {
        places.clone().max_by(compare)
    } else {
        places.clone().min_by(compare)
    };
    let best = best.ok_or("there is nothing to compare")?;
    Ok(places.filter(|place| compare(place, &best).is_eq()).collect())
}

/// The sums of the first one, two, … numbers, as people write them.
fn sums(values: &[&str]) -> Result<Vec<String>, &'static str> {
    let decimals = |value: &&str| value.split_once('.').map_or(0, |(_, behind)| behind.len());
    let places = values.iter().map(decimals).max().unwrap_or_default();
    let whole = |value: &&str| {
        let (before, behind) = value.split_once('.').unwrap_or((value, ""));
        format!("{before}{behind}{}", "0".repeat(places.checked_sub(behind.len())?)).parse::<i64>().ok()
    };
    let shown = |sum: i64| {
        let (sign, digits) =
            (if sum < 0 { "-" } else { "" }, format!("{:0>1$}", sum.unsigned_abs(), places + 1));
        let (before, behind) = digits.split_at(digits.len() - places);
        let behind = behind.trim_end_matches('0');
        if behind.is_empty() { format!("{sign}{before}") } else { format!("{sign}{before}.{behind}") }
    };
    if places > DECIMALS {
        return Err("the numbers are too exact to be added");
    }
    let mut sum = 0_i64;
    let add = |value: &&str| {
        sum = sum.checked_add(whole(value)?)?;
        Some(shown(sum))
    };
    values.iter().map(add).collect::<Option<_>>().ok_or("not every record has a number")
}

/// Whether a line is an expression like `COUNT(*)`.
fn is_function(line: &str) -> bool {
    line.split_once('(').is_some_and(|(name, rest)| {
        rest.ends_with(')')
            && !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'_')
    })
}

/// Whether a text says that nothing was found: `No matches found`.
fn is_nothing(text: &str) -> bool {
    let words = normal(text);
    words.starts_with(" no ")
        && [" found ", " results ", " rows ", " matches ", " match "].iter().any(|end| words.ends_with(end))
}

fn recorded(reading: &Reading, answer: &str, task: &str) -> Result<String, &'static str> {
    let values =
        reading.lists.iter().flat_map(|list| &list.records).flatten().map(|field| field.value.clone());
    let lines = reading.line.iter().flat_map(|line| numbers(line).into_iter().chain([line.clone()]));
    let is_named = |value: &String| states(answer, value) && !states(task, value);
    let mut found: Vec<String> = values.chain(lines).filter(is_named).collect();
    found.sort_by_key(|value| std::cmp::Reverse(value.len()));
    found.dedup();
    let longest = found.first().cloned().ok_or("the results do not have the answer")?;
    match found.iter().find(|value| !states(&longest, value)) {
        Some(_) => Err("the answer names several values of the result"),
        None => Ok(longest),
    }
}

/// The numbers in a line, without those that are parts of words.
pub fn numbers(line: &str) -> Vec<String> {
    let words = line.split(|letter: char| letter.is_whitespace() || ",;:()[]\"'=".contains(letter));
    let number = |word: &str| {
        let word = word.trim_end_matches(['.', '!', '?', '%', '°']);
        word.parse::<f64>().is_ok_and(f64::is_finite).then(|| word.to_owned())
    };
    words.filter_map(number).collect()
}

/// The values of a field, each once.
fn set_of<'r>(
    records: impl Iterator<Item = &'r harvest::Record>,
    field: &str,
) -> Result<String, &'static str> {
    let values: Option<BTreeSet<&str>> = records.map(|record| value_of(record, field)).collect();
    let values = values.ok_or("not every record has the field")?;
    if values.iter().any(|value| value.is_empty() || value.contains(',')) {
        return Err("not every record has the field");
    }
    if values.len() > SET { Err("the answer is long") } else { Ok(Vec::from_iter(values).join(", ")) }
}

fn named<'r>(reading: &'r Reading, name: &str) -> Result<&'r List, &'static str> {
    reading.lists.iter().find(|list| list.name == name && !list.is_nested).ok_or("the result lacks the list")
}

fn whole(list: &List) -> Result<&List, &'static str> {
    if list.is_list { Ok(list) } else { Err("the list is not complete") }
}

pub fn value_of<'r>(record: &'r harvest::Record, name: &str) -> Option<&'r str> {
    record.iter().find(|field| field.name == name).map(|field| field.value.as_str())
}

/// Letters and digits in lower case, other characters as single spaces, with a space at both ends.
pub fn normal(text: &str) -> String {
    let mut normal = String::from(" ");
    for letter in text.chars() {
        if letter.is_alphanumeric() {
            normal.extend(letter.to_lowercase());
        } else if !normal.ends_with(' ') {
            normal.push(' ');
        }
    }
    if !normal.ends_with(' ') {
        normal.push(' ');
    }
    normal
}

/// Whether a text has the answer as whole words.
pub fn states(text: &str, answer: &str) -> bool {
    let answer = normal(answer);
    answer.trim() != "" && normal(text).contains(&answer)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_time_of_midnight_is_a_day() {
        for (text, expected) in [
            ("2024-05-01T00:00:00", "2024-05-01"),
            ("2024-05-01 00:00:00", "2024-05-01"),
            ("2024-05-01T00:00:00.000Z", "2024-05-01"),
            ("2024-05-01T00:30:00", "2024-05-01T00:30:00"),
            ("2024-05-01T10:00:00", "2024-05-01T10:00:00"),
            ("Room 00:00:00", "Room 00:00:00"),
        ] {
            assert_eq!(day(text), expected);
        }
        let answer = field(None, "due").answer(&[r#"{"due": "2024-05-01T00:00:00", "n": 1}"#]);
        assert_eq!(answer.as_deref(), Ok("2024-05-01"));
    }

    fn field(key: Option<(&str, &str)>, field: &str) -> AnswerRule {
        let key = key.map(|(name, value)| (name.to_owned(), value.to_owned()));
        AnswerRule::Field { list: String::new(), key, field: field.into() }
    }

    fn measured(field: &str, key: Option<&str>, wanted: Aggregate) -> AnswerRule {
        AnswerRule::Measured { list: String::new(), field: field.into(), key: key.map(str::to_owned), wanted }
    }

    #[test]
    fn times_of_different_days_are_not_compared() {
        let events = |days: [&str; 2]| {
            json!([{"name": "Lunch", "date": days[0], "end": "14:00"}, {"name": "Talk", "date": days[1], "end": "09:30"}])
                .to_string()
        };
        let last = measured("end", Some("name"), Aggregate::Most);
        let same_day = last.answer(&[&events(["2027-03-10", "2027-03-10"])]);
        assert_eq!(same_day.as_deref(), Ok("Lunch"));
        let days = events(["2027-03-10", "2027-03-12"]);
        assert_eq!(last.answer(&[&days]), Err("the times are of several days"));
        assert_eq!(measured("date", Some("name"), Aggregate::Most).answer(&[&days]).as_deref(), Ok("Talk"));
    }

    #[test]
    fn other_values_stand_in_the_same_field() {
        let reading = harvest::read(r#"[{"n": "a", "v": "p"}, {"n": "b", "v": "q"}]"#);
        let of = |rule: AnswerRule| rule.alternatives(&reading, "Q");
        let list = String::new;
        assert_eq!(of(field(Some(("n", "a")), "v")), ["p", "q"]);
        assert_eq!(of(field(None, "none")), [""; 0]);
        assert_eq!(of(AnswerRule::Column { list: list(), field: "n".into() }), ["a", "b"]);
        assert_eq!(of(measured("v", Some("n"), Aggregate::Most)), ["a", "b"]);
        assert_eq!(of(AnswerRule::Quoted("Q".into())), ["p", "q"]);
        let line = harvest::read("Low Tide");
        assert_eq!(AnswerRule::Only.alternatives(&line, ""), ["Low Tide"]);
    }

    #[test]
    fn an_answer_that_a_cut_hides_is_not_visible() {
        let text = format!(
            "{{\"first\": \"Ada\", \"filler\": \"{}\", \"middle\": \"Bob\", \"more\": \"{0}\"}}",
            "x ".repeat(100)
        );
        let count = AnswerRule::Count { list: String::new() };
        let visible = |rule: &AnswerRule, answer, chars| rule.is_visible(&[&text], answer, chars);
        assert!(visible(&field(None, "middle"), "Bob", 1000));
        assert!(!visible(&field(None, "middle"), "Bob", 100));
        assert!(visible(&field(None, "first"), "Ada", 100));
        assert!(visible(&count, "1", 1000));
        assert!(!visible(&count, "1", 100));
    }

    #[test]
    fn answers_are_read_as_the_task_asks() {
        let absent = || AnswerRule::Absent { field: "price".into() };
        let rows = r#"[{"n": "a", "v": 1}, {"n": "b", "v": 3}, {"n": "b", "v": 2}]"#;
        let notes = r#"[{"n": "a", "t": ["lives in Oslo", "has 2 dogs"]}, {"n": "b", "t": ["has 3 dogs"]}]"#;
        let graph = r#"[{"n": "a", "t": ["has 2 dogs"]}, {"n": "b", "t": ["lives in Oslo", "has 3 dogs"]}]"#;
        let moments = r#"[{"n": "2024-05-30", "v": 1}, {"n": "2024-06-02", "v": 2}]"#;
        let tied = r#"[{"n": 1.5, "v": 1}, {"n": 1.5, "v": 2}, {"n": 1.75, "v": 3}]"#;
        let list = String::new;
        let of_notes = |wanted: Aggregate| AnswerRule::OfNotes {
            list: list(),
            name: "n".into(),
            notes: "t".into(),
            before: "has ".into(),
            after: " dogs".into(),
            wanted,
        };
        let matching = |field: Option<&str>| AnswerRule::Matching {
            list: list(),
            keys: vec![("n".into(), "b".into())],
            field: field.map(str::to_owned),
        };
        let between = |name: &str| AnswerRule::Between {
            list: list(),
            key: ("n".into(), name.into()),
            field: "t".into(),
            before: "lives in ".into(),
            after: String::new(),
        };
        for (rule, text, expected) in [
            (field(Some(("n", "a")), "v"), rows, Ok("1")),
            (field(Some(("n", "b")), "v"), rows, Err("there are several such records")),
            (field(Some(("n", "c")), "v"), rows, Err("there is no such record")),
            (field(None, "v"), r#"[{"v": null}]"#, Err("the answer is empty")),
            (AnswerRule::Count { list: list() }, rows, Ok("3")),
            (AnswerRule::Column { list: list(), field: "n".into() }, rows, Ok("a, b")),
            (measured("v", Some("n"), Aggregate::Most), rows, Ok("b")),
            (measured("v", Some("n"), Aggregate::Least), rows, Ok("a")),
            (measured("n", Some("v"), Aggregate::Most), rows, Err("not every record has a number")),
            (measured("n", Some("v"), Aggregate::Most), moments, Ok("2")),
            (measured("n", Some("v"), Aggregate::Least), tied, Err("several are the largest or smallest")),
            (measured("n", Some("n"), Aggregate::Least), tied, Ok("1.5")),
            (measured("v", None, Aggregate::Total), rows, Ok("6")),
            (measured("n", None, Aggregate::Total), tied, Ok("4.75")),
            (measured("n", None, Aggregate::Total), rows, Err("not every record has a number")),
            (of_notes(Aggregate::Most), graph, Ok("b")),
            (of_notes(Aggregate::Least), graph, Ok("a")),
            (of_notes(Aggregate::Total), graph, Ok("5")),
            (of_notes(Aggregate::Most), rows, Err("not every record has a number")),
            (
                AnswerRule::Number { not: vec!["40".into(), "2".into()] },
                "The sum of 40 and 2 is 42.",
                Ok("42"),
            ),
            (AnswerRule::Number { not: vec![] }, "1 and 2", Err("the line has not one new number")),
            (AnswerRule::Only, "[{'n': 7}]", Ok("7")),
            (AnswerRule::Only, "No matches found.", Err("the answer is that there is nothing")),
            (AnswerRule::Quoted("Low Tide".into()), "the book low tide!", Ok("Low Tide")),
            (AnswerRule::Quoted("Low".into()), "below", Err("no result states the answer")),
            (matching(Some("v")), rows, Ok("2, 3")),
            (matching(None), rows, Ok("2")),
            (matching(None), r#"[{"n": "a"}]"#, Ok("0")),
            (between("a"), notes, Ok("Oslo")),
            (between("b"), notes, Err("not one text of the record has this beginning and end")),
            (between("c"), notes, Err("there is no such record")),
            (absent(), "[]", Ok("none")),
            (absent(), "(no rows)", Ok("none")),
            (absent(), "", Ok("none")),
            (absent(), "price", Ok("none")),
            (absent(), rows, Err("the result is not empty")),
            (absent(), "price\n7", Err("the result is not empty")),
            (field(None, "price"), "price\n7", Ok("7")),
            (field(None, "price"), "cost\n7", Err("there are several such records")),
            (AnswerRule::Only, "COUNT(*)\n48", Ok("48")),
            (AnswerRule::Only, "Ada\n48", Err("there are several values")),
            (AnswerRule::Column { list: list(), field: "n".into() }, "n\nb\na", Ok("a, b")),
        ] {
            assert_eq!(rule.answer(&[text]), expected.map(str::to_owned), "{rule:?}");
        }
    }

    #[test]
    fn what_is_counted_compared_or_added_is_written_before_the_answer() {
        let rows = r#"[{"n": "a", "v": 10.5, "d": "2024-05-01"}, {"n": "b", "v": 3, "d": "2024-04-01"}, {"n": "c", "v": 0.25, "d": "2024-06-01"}]"#;
        let (list, key) = (String::new, || "n".to_owned());
        let many: Vec<Value> =
            (0..100).map(|index| json!({"n": format!("name {index}"), "v": index})).collect();
        let many = Value::Array(many).to_string();
        let of_key = |value: &str| vec![("k".to_owned(), value.to_owned())];
        let related = r#"[{"k": "x", "to": "p"}, {"k": "x", "to": "q"}, {"k": "y", "to": "r"}]"#;
        for (rule, text, expected) in [
            (AnswerRule::Count { list: list() }, rows, Some("1 a, 2 b, 3 c.")),
            (AnswerRule::Count { list: list() }, "[{\"v\": 1}, {\"v\": 1}]", None),
            (AnswerRule::Count { list: list() }, &many, None),
            (
                AnswerRule::Matching { list: list(), keys: of_key("x"), field: None },
                related,
                Some("1 p, 2 q."),
            ),
            (AnswerRule::Matching { list: list(), keys: of_key("z"), field: None }, related, None),
            (measured("v", Some("n"), Aggregate::Most), rows, Some("a 10.5, b 3, c 0.25. Most: 10.5.")),
            (
                measured("d", Some("d"), Aggregate::Least),
                rows,
                Some("2024-05-01, 2024-04-01, 2024-06-01. Least: 2024-04-01."),
            ),
            (measured("v", None, Aggregate::Total), rows, Some("10.5 + 3 = 13.5, 13.5 + 0.25 = 13.75.")),
            (measured("v", None, Aggregate::Total), "[{\"v\": 1}]", None),
            (AnswerRule::Column { list: list(), field: key() }, rows, None),
            (field(Some(("n", "a")), "v"), rows, None),
        ] {
            assert_eq!(rule.working(&harvest::read(text)).as_deref(), expected, "{rule:?}");
        }
    }

    #[test]
    fn dates_and_times_are_moments() {
        for text in ["2024-05", "2024-05-01", "2024-05-01T10:00:00Z", "2024-05-01 10:00", "08:30", "08:30:59"]
        {
            assert!(is_moment(text), "{text}");
        }
        for text in
            ["2024", "2024-5-1", "2024-05-", "2024-05-01x", "8:30", "1-2", "", "2024-05-01T", "08:30 pm"]
        {
            assert!(!is_moment(text), "{text}");
        }
    }
}
