//! A user's own tasks: a JSON array, one JSON object per line, or a Parquet file with a column per key.
//!
//! A table that a `scenarios` stage wrote is read as it is. A line that `mcprl scenarios review` marked as dropped is no task.
//! Reports every bad line, not just the first. Never guesses, and never skips a task silently.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use serde_json::{Map, Value};

use super::{
    TaskError,
    candidate::{CANDIDATES, scenario_id},
    split::{self, SplitBy},
};
use crate::{
    chat::ToolCall,
    data::{self, Checks, Fact, Facts, Json, Scenario, ServerName, Working},
    document,
    error::did_you_mean,
    hash::Encoder,
    json,
    judge::truth::is_number,
    mcp::plain,
};

/// Answers to a task that changes something. An agent that says one without a call gives no other.
const DONE: [&str; 8] = ["done", "ok", "okay", "success", "successful", "completed", "complete", "finished"];

/// What says that such a task is done.
const CHANGED: &str = r#""checks": {"state": [{"tool": "get_ticket", "arguments": {"id": 7}, "expect": {"json": "/status", "equals": "closed"}}]}"#;

/// Keys of a task.
const KEYS: [&str; 13] = [
    "task",
    "answer",
    "check",
    "checks",
    "candidates",
    "split",
    "family",
    "entity",
    "reference",
    "server",
    "working",
    "decision",
    "reviewed",
];
const CHECKS: [&str; 4] = ["text", "number", "set", "none"];
/// Most bad lines that are listed individually.
const LISTED: usize = 20;

/// Training and held-out tasks.
pub type Tasks = (Vec<Scenario>, Vec<Scenario>);

const TRAIN: &str = "train";
const HELD_OUT: &str = "file";
/// Marks tasks whose split is decided later.
const UNDECIDED: &str = "";

/// Which of the tasks without a split are held out: a share, rounded up, by a seeded hash.
#[derive(Debug, Clone, Copy)]
pub struct HoldOut {
    pub share: f64,
    pub seed: u64,
    pub by: SplitBy,
}

impl From<(f64, u64)> for HoldOut {
    fn from((share, seed): (f64, u64)) -> Self {
        Self { share, seed, by: SplitBy::Task }
    }
}

/// Reads the file.
pub fn load(path: &Path, hold_out: HoldOut) -> Result<Tasks, TaskError> {
    if is_parquet(path) {
        return parquet(path, hold_out);
    }
    let text = document::read(path).map_err(|source| TaskError::Read { path: path.to_owned(), source })?;
    parse(&text, &name(path), hold_out)
}

pub fn is_parquet(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("parquet"))
}

/// Reads a table of a `scenarios` stage, or the columns that are keys of a task; others are ignored.
fn parquet(path: &Path, hold_out: HoldOut) -> Result<Tasks, TaskError> {
    if let Ok(scenarios) = data::read::<Scenario>(path)
        && !scenarios.is_empty()
    {
        let mut first: BTreeMap<&str, usize> = BTreeMap::new();
        let twice = (1..).zip(&scenarios).filter_map(|(row, scenario)| {
            let earlier = first.insert(&scenario.id, row)?;
            Some(format!("  row {row}: the same `id` as row {earlier}"))
        });
        none_bad(&name(path), twice.collect())?;
        return Ok(scenarios.into_iter().partition(|scenario| scenario.split == TRAIN));
    }
    let wrong = |problem: String| TaskError::Parquet { file: name(path), problem };
    let columns =
        data::text_columns(path, &KEYS).map_err(|cause| wrong(format!("it cannot be read: {cause}")))?;
    let Some(rows) = columns.iter().find(|(name, _)| name == "task").map(|(_, values)| values.len()) else {
        return Err(wrong("there is no column `task`".into()));
    };
    let row = |row: usize| {
        let fields = columns.iter().filter_map(|(name, values)| {
            let text = values[row].clone()?;
            // Structures are texts in JSON here.
            let value = match name.as_str() {
                "checks" | "reference" | "candidates" => {
                    serde_json::from_str(&text).unwrap_or(Value::String(text))
                }
                _ => Value::String(text),
            };
            Some((name.clone(), value))
        });
        (format!("row {}", row + 1), Ok(Value::Object(fields.collect())))
    };
    tasks((0..rows).map(row).collect(), &name(path), hold_out)
}

/// The name of a file in errors.
pub fn name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into())
}

/// `file` is the name used in errors.
pub fn parse(text: &str, file: &str, hold_out: HoldOut) -> Result<Tasks, TaskError> {
    let items = items(text).map_err(|problem| TaskError::BadLines {
        file: file.to_owned(),
        count: 1,
        list: format!("  {problem}"),
    })?;
    tasks(items, file, hold_out)
}

fn tasks(mut items: Vec<Item>, file: &str, hold_out: HoldOut) -> Result<Tasks, TaskError> {
    // Of several decisions of a review about the same text, the last one counts.
    let mut reviewed = BTreeSet::new();
    items.reverse();
    items.retain(|(_, item)| {
        let Ok(item) = item else { return true };
        item["reviewed"].is_null() || reviewed.insert(item["task"].to_string())
    });
    items.reverse();
    items.retain(|(_, item)| !item.as_ref().is_ok_and(|item| item["decision"] == "drop"));
    let mut scenarios = Vec::new();
    let mut bad: Vec<String> = Vec::new();
    let mut first: BTreeMap<String, String> = BTreeMap::new();
    for (place, item) in items {
        let scenario = item.and_then(|item| scenario(&item)).and_then(|scenario| {
            match first.insert(scenario.task.clone(), place.clone()) {
                Some(earlier) => Err(format!("the same task as {earlier}")),
                None => Ok(scenario),
            }
        });
        match scenario {
            Ok(scenario) => scenarios.push(scenario),
            Err(problem) => bad.push(format!("  {place}: {problem}")),
        }
    }
    none_bad(file, bad)?;
    if scenarios.is_empty() {
        return Err(TaskError::Empty { file: file.to_owned() });
    }
    self::hold_out(&mut scenarios, hold_out);
    Ok(scenarios.into_iter().partition(|scenario| scenario.split == TRAIN))
}

/// # Errors
/// With the first of these problems.
fn none_bad(file: &str, mut bad: Vec<String>) -> Result<(), TaskError> {
    let count = bad.len();
    if count == 0 {
        return Ok(());
    }
    bad.truncate(LISTED);
    if count > LISTED {
        bad.push(format!("  and {} more", count - LISTED));
    }
    Err(TaskError::BadLines { file: file.to_owned(), count, list: bad.join("\n") })
}

/// A location and the value there.
pub type Item = (String, Result<Value, String>);

/// The items of a JSON array, or of one JSON value per line.
pub fn items(text: &str) -> Result<Vec<Item>, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim_start().starts_with('[') {
        let [items, exact] = both(text).map_err(|cause| format!("not valid JSON: {cause}"))?;
        if let Some((line, problem)) = document::dropped(text) {
            return Err(format!("line {line}: {problem}"));
        }
        let (Value::Array(items), Value::Array(exact)) = (items, exact) else { return Ok(Vec::new()) };
        let place = |(index, (item, exact))| (format!("task {}", index + 1), with_numbers(item, &exact));
        return Ok(items.into_iter().zip(exact).enumerate().map(place).collect());
    }
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let item = |(index, line): (usize, &str)| {
        let value = match both(line) {
            Ok([value, exact]) => match document::dropped(line) {
                Some((_, problem)) => Err(problem),
                None => with_numbers(value, &exact),
            },
            Err(cause) => Err(format!("not valid JSON: {}", without_line(&cause))),
        };
        (format!("line {}", index + 1), value)
    };
    Ok(lines.map(item).collect())
}

/// A text of JSON, as it is read usually, and with texts in place of the numbers that are rounded then.
fn both(text: &str) -> serde_json::Result<[Value; 2]> {
    Ok([serde_json::from_str(text)?, json::exact(text)?])
}

/// The task, with each number of its answers as it is written. Elsewhere a number has to be one.
fn with_numbers(mut item: Value, exact: &Value) -> Result<Value, String> {
    if let (Value::Object(fields), Value::Object(exact)) = (&mut item, exact) {
        for name in ["answer", "candidates"] {
            if let Some(exact) = exact.get(name) {
                fields.insert(name.into(), exact.clone());
            }
        }
    }
    match item == *exact {
        true => Ok(item),
        false => Err(
            "a number has too many digits; only `answer` and `candidates` keep them, and a text in quotes"
                .into(),
        ),
    }
}

/// serde_json counts lines within its input, which here is always one line.
fn without_line(cause: &serde_json::Error) -> String {
    cause.to_string().replace(" at line 1 column ", " at column ")
}

fn scenario(item: &Value) -> Result<Scenario, String> {
    let Value::Object(fields) = item else { return Err("should be a JSON object".into()) };
    if let Some(key) = fields.keys().find(|key| !KEYS.contains(&key.as_str())) {
        let hint = did_you_mean(key, KEYS).map_or(String::new(), |near| format!("; did you mean `{near}`?"));
        return Err(format!("unknown key `{key}`{hint}"));
    }
    let task = text(fields, "task")?.ok_or("`task` is missing")?;
    let answer = match fields.get("answer") {
        None | Some(Value::Null) => None,
        Some(value @ (Value::String(_) | Value::Number(_) | Value::Bool(_))) => Some(plain(value)),
        Some(Value::Array(items)) => Some(set_of(items)?),
        Some(_) => return Err("`answer` should be a text, a number or a list of these".into()),
    };
    let is_list = fields.get("answer").is_some_and(Value::is_array);
    if answer.as_ref().is_some_and(|answer| answer.trim().is_empty()) {
        return Err("`answer` is empty; leave it out if there is none".into());
    }
    let check = match (text(fields, "check")?, &answer) {
        (Some(check), _) if !CHECKS.contains(&check) => {
            return Err(format!("`check` should be one of {}, found \"{check}\"", CHECKS.join(", ")));
        }
        (Some(check @ ("text" | "number")), _) if is_list => {
            return Err(format!("`check` is \"{check}\", but the answer is a list"));
        }
        (Some("none"), Some(_)) => return Err("`check` is \"none\", but there is an `answer`".into()),
        (Some(check), None) if check != "none" => {
            return Err(format!("`check` is \"{check}\", but there is no `answer`"));
        }
        (Some("number"), Some(answer)) if answer.trim().parse::<f64>().is_err() => {
            return Err(format!("`check` is \"number\", but the answer is \"{answer}\""));
        }
        (Some(check), _) => check,
        (None, None) => "none",
        (None, Some(_)) if is_list => "set",
        (None, Some(answer)) if is_number(answer) => "number",
        (None, Some(_)) => "text",
    };
    let checks = fields.get("checks").filter(|checks| !checks.is_null());
    let checks = checks.map(|checks| Checks::parse(&checks.to_string())).transpose();
    let checks =
        checks.map_err(|problem| format!("`checks`: {problem}"))?.map(|checks| Json(checks.to_json()));
    if answer.as_deref().is_some_and(says_done) && checks.is_none() && !fields.contains_key("check") {
        return Err(format!(
            "any agent can say \"{}\": add what must be true afterwards, as in {CHANGED}, or `\"check\": \"text\"` to take the \
             answer as it is",
            answer.unwrap_or_default()
        ));
    }
    let candidates = candidates(fields, check)?;
    let split = match text(fields, "split")? {
        Some("train") => TRAIN,
        Some("heldout") => HELD_OUT,
        Some(other) => return Err(format!("`split` should be train or heldout, found \"{other}\"")),
        None => UNDECIDED,
    };
    let family = text(fields, "family")?.unwrap_or("file");
    let in_json = checks.as_ref().map(|checks| checks.0.as_str());
    Ok(Scenario {
        id: scenario_id(family, task, answer.as_deref(), in_json),
        split: split.into(),
        family: family.into(),
        task: task.into(),
        check: check.into(),
        answer,
        entity: text(fields, "entity")?.map(str::to_owned),
        reference: reference(fields)?,
        checks,
        candidates,
        server: text(fields, "server")?.map(|name| ServerName(name.to_owned())),
        working: text(fields, "working")?.map(|text| Working(text.to_owned())),
        ..Scenario::default()
    })
}

/// The items of an answer that is a list, as one text.
fn set_of(items: &[Value]) -> Result<String, String> {
    let is_value = |value: &Value| matches!(value, Value::String(_) | Value::Number(_) | Value::Bool(_));
    if !items.iter().all(is_value) {
        return Err("the items of `answer` should be texts or numbers".into());
    }
    let items: Vec<String> = items.iter().map(plain).collect();
    match items.iter().find(|item| item.contains([',', ';', '\n'])) {
        Some(item) => {
            Err(format!("\"{item}\" in `answer` has a comma or the like, which divides the items of a set"))
        }
        None => Ok(items.join(", ")),
    }
}

/// Whether an answer says only that something is done.
fn says_done(answer: &str) -> bool {
    let words = answer.trim().trim_end_matches(['.', '!']).to_lowercase();
    DONE.contains(&words.as_str())
}

/// Other values that the answer could have been. A number needs none.
fn candidates(fields: &Map<String, Value>, check: &str) -> Result<Option<Vec<String>>, String> {
    let listed = match fields.get("candidates") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(listed)) => listed,
        Some(_) => return Err("`candidates` should be a list".into()),
    };
    let is_value = |value: &Value| matches!(value, Value::String(_) | Value::Number(_) | Value::Bool(_));
    match listed.len() {
        _ if check == "none" => Err("`candidates` needs an `answer`".into()),
        _ if !listed.iter().all(is_value) => Err("`candidates` should be texts or numbers".into()),
        0 if check == "text" => Err("`candidates` is empty; leave it out if none are known".into()),
        count if count > CANDIDATES => {
            Err(format!("`candidates` has {count} values; at most {CANDIDATES} are possible"))
        }
        _ => Ok(Some(listed.iter().map(plain).collect())),
    }
}

/// The reference calls, written as a list or as its JSON.
fn reference(fields: &Map<String, Value>) -> Result<Option<String>, String> {
    let calls = match fields.get("reference") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => serde_json::from_str(text).unwrap_or_default(),
        Some(calls) => calls.clone(),
    };
    match serde_json::from_value::<Vec<ToolCall>>(calls.clone()) {
        Ok(_) => Ok(Some(calls.to_string())),
        Err(_) => Err("`reference` should be a list of {name, arguments}".into()),
    }
}

/// A text that may be missing but not empty.
fn text<'a>(fields: &'a Map<String, Value>, key: &str) -> Result<Option<&'a str>, String> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.trim().is_empty() => Err(format!("`{key}` is empty")),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("`{key}` should be a text")),
    }
}

/// Decides the split of tasks that do not set one. Those that ask the same in other words stay together.
fn hold_out(scenarios: &mut [Scenario], HoldOut { share, seed, by }: HoldOut) {
    let mut undecided: Vec<_> = scenarios.iter_mut().filter(|scenario| scenario.split == UNDECIDED).collect();
    if by != SplitBy::Task {
        let keys: Vec<_> = undecided.iter().map(|scenario| by.keys(scenario, "", None)).collect();
        let held = split::held_out(&keys, share, seed);
        for (scenario, held) in undecided.into_iter().zip(held) {
            scenario.split = if held { by.heldout() } else { TRAIN }.into();
        }
        return;
    }
    let draw = |task: &str| Encoder::new("mcprl held-out tasks v1").number(seed).text(task).finish().seed();
    // Of each fact, the first task draws for all.
    let (mut facts, mut draws) = (Facts::default(), BTreeMap::new());
    let mut draw_of = |scenario: &Scenario| {
        let fact = Fact::of(scenario);
        let known = facts.find(&fact).and_then(|known| draws.get(&known.task)).copied();
        let drawn = known.unwrap_or_else(|| draw(&scenario.task));
        draws.entry(fact.task.clone()).or_insert(drawn);
        facts.insert(fact);
        drawn
    };
    let mut groups: BTreeMap<u64, Vec<&mut Scenario>> = BTreeMap::new();
    let wanted = (share * undecided.len() as f64).ceil() as usize;
    for scenario in undecided.drain(..) {
        groups.entry(draw_of(scenario)).or_default().push(scenario);
    }
    let mut count = 0;
    for group in groups.into_values() {
        let split = if count < wanted { HELD_OUT } else { TRAIN };
        count += group.len();
        group.into_iter().for_each(|scenario| scenario.split = split.into());
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn error(text: &str) -> String {
        parse(text, "tasks.jsonl", (0.5, 1).into()).unwrap_err().to_string()
    }

    #[test]
    fn lines_and_arrays_are_read_alike() {
        let lines = "{\"task\": \"a\", \"answer\": 3}\n\n{\"task\": \"b\", \"split\": \"heldout\", \"family\": \"f\", \"entity\": \"e\"}\n";
        let array = format!("[{}]", lines.trim().replace("\n\n", ","));
        let (train, heldout) = parse(lines, "f", (0.0, 1).into()).unwrap();
        assert_eq!(parse(&array, "f", (0.0, 1).into()).unwrap(), (train.clone(), heldout.clone()));
        let row = |scenario: &Scenario| {
            let answer = scenario.answer.clone().unwrap_or_default();
            format!("{} {} {} {} {answer}", scenario.task, scenario.split, scenario.family, scenario.check)
        };
        assert_eq!(train.iter().map(row).collect::<Vec<_>>(), ["a train file number 3"]);
        assert_eq!(heldout.iter().map(row).collect::<Vec<_>>(), ["b file f none "]);
        assert_eq!((&train[0].entity, heldout[0].entity.as_deref()), (&None, Some("e")));
    }

    #[test]
    fn a_task_that_a_table_has_twice_is_reported() {
        let (train, _) = parse(r#"[{"task": "a"}, {"task": "b"}]"#, "f", (0.0, 1).into()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.parquet");
        data::write(&path, &[train.clone(), train].concat()).unwrap();
        let error = load(&path, (0.0, 1).into()).unwrap_err().to_string();
        insta::assert_snapshot!(error, @r"
        tasks.parquet: 2 bad tasks
          row 3: the same `id` as row 1
          row 4: the same `id` as row 2
        ");
    }

    #[test]
    fn every_bad_line_is_reported_with_its_number() {
        let text = [
            r#"{"task": "fine"}"#,
            r#"{"task": "cut"#,
            r#"{"tsak": "x"}"#,
            r#"{"answer": "x"}"#,
            r#"[1]"#,
            r#"{"task": "  "}"#,
            r#"{"task": "x", "answer": [["y"]]}"#,
            r#"{"task": "x", "answer": "y", "check": "nubmer"}"#,
            r#"{"task": "x", "answer": "y", "check": "number"}"#,
            r#"{"task": "x", "check": "text"}"#,
            r#"{"task": "x", "answer": "Done"}"#,
            r#"{"task": "x", "split": "a"}"#,
            r#"{"task": "fine"}"#,
        ];
        // As the first line, a line that begins with a bracket would start an array.
        insta::assert_snapshot!(error(&text.join("\n")), @r#"
        tasks.jsonl: 12 bad tasks
          line 2: not valid JSON: EOF while parsing a string at column 13
          line 3: unknown key `tsak`; did you mean `task`?
          line 4: `task` is missing
          line 5: should be a JSON object
          line 6: `task` is empty
          line 7: the items of `answer` should be texts or numbers
          line 8: `check` should be one of text, number, set, none, found "nubmer"
          line 9: `check` is "number", but the answer is "y"
          line 10: `check` is "text", but there is no `answer`
          line 11: any agent can say "Done": add what must be true afterwards, as in "checks": {"state": [{"tool": "get_ticket", "arguments": {"id": 7}, "expect": {"json": "/status", "equals": "closed"}}]}, or `"check": "text"` to take the answer as it is
          line 12: `split` should be train or heldout, found "a"
          line 13: the same task as line 1
        "#);
    }

    #[test]
    fn an_answer_has_the_digits_that_the_file_has() {
        let of = |task: &str| {
            parse(task, "f", (0.0, 1).into())
                .map(|(train, _)| (train[0].check.clone(), train[0].answer.clone().unwrap_or_default()))
                .map_err(|error| error.to_string())
        };
        for (answer, check) in [
            ("123456789012345678901234567890", "number"),
            ("-3.14159265358979323846", "number"),
            ("2.5", "number"),
        ] {
            let expected = Ok((check.to_owned(), answer.to_owned()));
            assert_eq!(of(&format!(r#"{{"task": "x", "answer": {answer}}}"#)), expected);
            assert_eq!(of(&format!(r#"[{{"task": "x", "answer": {answer}}}]"#)), expected);
        }
        let call = r#"{"task": "x", "reference": [{"name": "t", "arguments": {"id": 123456789012345678901234567890}}]}"#;
        assert!(of(call).unwrap_err().contains("a number has too many digits"));
    }

    #[test]
    fn a_list_is_an_answer_whose_order_does_not_matter() {
        let of = |rest: &str| {
            parse(&format!("{{\"task\": \"x\", {rest}}}"), "f", (0.0, 1).into())
                .map(|(train, _)| (train[0].check.clone(), train[0].answer.clone().unwrap_or_default()))
                .map_err(|error| error.to_string())
        };
        let set = Ok(("set".to_owned(), "T102, T110".to_owned()));
        assert_eq!(of(r#""answer": ["T102", "T110"]"#), set);
        assert_eq!(of(r#""answer": ["T102", "T110"], "check": "set""#), set);
        assert_eq!(of(r#""answer": [1, 2.5]"#), Ok(("set".to_owned(), "1, 2.5".to_owned())));
        for (rest, problem) in [
            (r#""answer": ["a"], "check": "text""#, "`check` is \"text\", but the answer is a list"),
            (r#""answer": []"#, "`answer` is empty"),
            (r#""answer": ["Oslo, Norway"]"#, "has a comma"),
            (r#""answer": {"a": 1}"#, "should be a text, a number or a list"),
            (r#""answer": "Done!""#, "any agent can say \"Done!\""),
        ] {
            let error = of(rest).unwrap_err();
            assert!(error.contains(problem), "{rest}: {error}");
        }
    }

    #[test]
    fn a_task_may_name_candidates() {
        let of = |rest: &str| {
            parse(&format!("{{\"task\": \"x\", {rest}}}"), "f", (0.0, 1).into())
                .map(|(train, _)| train[0].candidates.clone())
                .map_err(|error| error.to_string())
        };
        assert_eq!(of(r#""answer": "y""#), Ok(None));
        assert_eq!(of(r#""answer": 3, "candidates": []"#), Ok(Some(vec![])));
        let named = Ok(Some(vec!["z".to_owned(), "2".to_owned()]));
        assert_eq!(of(r#""answer": "y", "candidates": ["z", 2]"#), named);
        let many = serde_json::json!((0..201).collect::<Vec<_>>());
        for (rest, problem) in [
            (r#""answer": "y", "candidates": []"#, "`candidates` is empty; leave it out if none are known"),
            (r#""answer": "y", "candidates": "z""#, "`candidates` should be a list"),
            (r#""answer": "y", "candidates": [["z"]]"#, "`candidates` should be texts or numbers"),
            (r#""candidates": ["z"]"#, "`candidates` needs an `answer`"),
            (r#""answer": "y", "working": 7"#, "`working`"),
            (&format!(r#""answer": "y", "candidates": {many}"#), "201 values; at most 200"),
        ] {
            let error = of(rest).unwrap_err();
            assert!(error.contains(problem), "{rest}: {error}");
        }
    }

    #[test]
    fn many_bad_lines_are_counted_and_the_first_are_shown() {
        let text = error(&"nonsense\n".repeat(100));
        assert!(text.starts_with("tasks.jsonl: 100 bad tasks\n  line 1: "), "{text}");
        assert!(
            text.ends_with("  line 20: not valid JSON: expected ident at column 2\n  and 80 more"),
            "{text}"
        );
    }

    #[test]
    fn a_file_without_a_task_is_refused() {
        assert_eq!(error("\n  \n"), "tasks.jsonl contains no task");
        assert_eq!(error("[]"), "tasks.jsonl contains no task");
        assert!(error("[{").contains("not valid JSON"));
    }

    #[test]
    fn the_held_out_share_is_the_requested_one_and_depends_on_the_seed() {
        let text: String = (0..1000).map(|task| format!("{{\"task\": \"task {task}\"}}\n")).collect();
        let heldout = |share, seed| parse(&text, "f", (share, seed).into()).unwrap().1;
        assert_eq!(heldout(0.0, 1), []);
        assert_eq!(heldout(1.0, 1).len(), 1000);
        assert_eq!(heldout(0.25, 1).len(), 250);
        assert_eq!(heldout(0.0001, 1).len(), 1);
        assert_ne!(heldout(0.25, 1), heldout(0.25, 2));
    }

    #[test]
    fn tasks_that_ask_the_same_in_other_words_are_on_one_side() {
        let of_number = |number: usize| {
            let words = [
                "Who wrote \\\"Book NUMBER\\\"?",
                "\\\"Book NUMBER\\\" is by whom?",
                "The author of \\\"Book NUMBER\\\"?",
            ];
            let line = |words: &str| format!("{{\"task\": \"{words}\", \"answer\": \"Ann {number}\"}}\n");
            words.map(|words| line(&words.replace("NUMBER", &number.to_string()))).concat()
        };
        let text: String = (0..40).map(of_number).collect();
        let (train, heldout) = parse(&text, "f", (0.2, 1).into()).unwrap();
        let held: BTreeSet<_> = heldout.iter().map(|task| &task.answer).collect();
        assert_eq!((held.len(), heldout.len()), (8, 24));
        assert!(train.iter().all(|task| !held.contains(&task.answer)));
    }
}
