//! What people decide about the tasks of a run: one line of a JSONL file for each task, which `source = "file"` of a `scenarios`
//! stage reads: accepted tasks as they are or as edited, dropped ones not at all. Several pages and terminals may add to one
//! file at once. [`traces`] does the same for recorded conversations.

pub mod traces;

use std::{
    collections::BTreeMap,
    fs::Permissions,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    data::Scenario,
    error::{Diagnostic, if_found},
    store::{FileLock, Store},
};

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "review", class = usage)]
pub enum ReviewError {
    #[error("\"{0}\" has no tasks")]
    #[hint = "name a file of tasks, or a run with a finished `scenarios` stage (`mcprl runs`)"]
    NoTasks(String),
    #[error("another task has this text")]
    #[hint = "change the text, or drop one of the two"]
    Twice,
    #[error("line {line} of {path} is no decision")]
    #[hint = "choose another `--out`, or repair the line"]
    BadLine { path: PathBuf, line: usize },
    #[error("cannot use {path}")]
    #[diagnostic(class = work)]
    File { path: PathBuf, source: std::io::Error },
}

/// What becomes of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Decision {
    Accept,
    Edit,
    Drop,
}

impl Decision {
    pub fn name(self) -> &'static str {
        self.into()
    }

    pub fn named(name: &str) -> Option<Self> {
        name.parse().ok()
    }
}

/// A decision that was made, with the task's text and answer as they were then.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedDecision {
    pub decision: Decision,
    pub task: String,
    pub answer: Option<String>,
}

/// The file with the decisions made on the page of a run, whether or not it exists. No sweep removes it.
pub fn path(store: &Store, run: &str) -> PathBuf {
    store.root().join("labels").join(format!("{run}.tasks.jsonl"))
}

/// A line of a file of decisions.
struct Line {
    number: usize,
    /// What it decides on.
    id: String,
    value: Value,
    text: String,
}

impl Line {
    fn is_bad(&self, path: &Path) -> ReviewError {
        ReviewError::BadLine { path: path.to_owned(), line: self.number }
    }
}

fn unusable(path: &Path) -> impl Fn(std::io::Error) -> ReviewError {
    move |source| ReviewError::File { path: path.to_owned(), source }
}

/// The lines of a file; none if there is no file.
fn lines(path: &Path) -> Result<Vec<Line>, ReviewError> {
    let text = if_found(std::fs::read_to_string(path)).map_err(unusable(path))?.unwrap_or_default();
    let numbered = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let parsed = numbered.map(|(number, text)| {
        let value: Value = serde_json::from_str(text).unwrap_or_default();
        let id = value["reviewed"].as_str().map(str::to_owned);
        let id = id.ok_or_else(|| ReviewError::BadLine { path: path.to_owned(), line: number })?;
        Ok(Line { number, id, value, text: text.to_owned() })
    });
    parsed.collect()
}

/// The decisions of a file by the id of the task; none if there is no file. Of several on one task, the last one counts.
///
/// # Errors
/// If the file cannot be read, or a line is no decision.
pub fn decisions(path: &Path) -> Result<BTreeMap<String, RecordedDecision>, ReviewError> {
    let decision = |line: Line| {
        let decision = line.value["decision"].as_str().and_then(Decision::named);
        let (Some(decision), Some(task)) = (decision, line.value["task"].as_str()) else {
            return Err(line.is_bad(path));
        };
        let answer = line.value["answer"].as_str().map(str::to_owned);
        let recorded = RecordedDecision { decision, task: task.to_owned(), answer };
        Ok((line.id, recorded))
    };
    lines(path)?.into_iter().map(decision).collect()
}

/// The folder of a file of decisions, and the lock for changes of the file.
fn locked(path: &Path) -> Result<(&Path, FileLock), ReviewError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(unusable(path))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Ok((folder, FileLock::take(folder, &name)))
}

/// Adds a decision to a file, which may have an earlier one on the same task.
///
/// # Errors
/// If the file cannot be written.
pub fn append(path: &Path, line: &Value) -> Result<(), ReviewError> {
    let _lock = locked(path)?;
    // Opened for each line, since a page replaces the file.
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| {
        file.write_all(format!("{line}\n").as_bytes())?;
        file.sync_data()
    })
    .map_err(unusable(path))
}

/// Replaces the decision on a task, or removes it. Returns all decisions.
///
/// # Errors
/// As [`decisions`], or if the file cannot be written.
pub fn set(
    path: &Path,
    task: &Scenario,
    decision: Option<Decision>,
) -> Result<BTreeMap<String, RecordedDecision>, ReviewError> {
    // A file of something else stays as it is.
    decisions(path)?;
    replace(path, &task.id, decision.map(|decision| line(task, decision)).as_ref())?;
    decisions(path)
}

/// Puts this line in the place of those that decide on `id`, or removes them. Other lines stay as they are.
fn replace(path: &Path, id: &str, new: Option<&Value>) -> Result<(), ReviewError> {
    let (folder, _lock) = locked(path)?;
    let mut new = new.map(Value::to_string);
    let mut all: Vec<String> = Vec::new();
    for line in lines(path)? {
        all.extend(if line.id == id { new.take() } else { Some(line.text) });
    }
    all.extend(new);
    let wrong = unusable(path);
    let mut file = tempfile::Builder::new();
    let mut file = file.permissions(Permissions::from_mode(0o666)).tempfile_in(folder).map_err(&wrong)?;
    for line in all {
        writeln!(file, "{line}").map_err(&wrong)?;
    }
    file.as_file().sync_all().map_err(&wrong)?;
    file.persist(path).map_err(|cause| wrong(cause.error))?;
    Ok(())
}

/// The task with another text and answer, where given. A changed answer is checked as the one before, or as a text if
/// it is no number any more. Its candidates are those of this check.
///
/// # Errors
/// If another task has this text.
pub fn edited(
    tasks: &[Scenario],
    task: &Scenario,
    text: Option<&str>,
    answer: Option<&str>,
) -> Result<Scenario, ReviewError> {
    let mut edited = task.clone();
    if let Some(text) = text.filter(|text| text.trim() != task.task.trim()) {
        if tasks.iter().any(|other| other.id != task.id && other.task.trim() == text.trim()) {
            return Err(ReviewError::Twice);
        }
        text.clone_into(&mut edited.task);
    }
    let before = task.answer.as_deref().map(str::trim);
    if let Some(answer) = answer.filter(|answer| Some(answer.trim()) != before) {
        let is_number = answer.trim().parse::<f64>().is_ok();
        let check = match task.check.as_str() {
            "number" if !is_number => "text",
            "none" if is_number => "number",
            "none" => "text",
            check => check,
        };
        if check != task.check {
            edited.candidates = None;
        }
        (edited.check, edited.answer) = (check.to_owned(), Some(answer.to_owned()));
    }
    Ok(edited)
}

/// A decision as a task of a file.
pub fn line(task: &Scenario, decision: Decision) -> Value {
    let split = match task.split.as_str() {
        "" => None,
        "train" => Some("train"),
        _ => Some("heldout"),
    };
    let fields = [
        ("reviewed", Some(task.id.clone().into())),
        ("decision", Some(decision.name().into())),
        ("task", Some(task.task.clone().into())),
        ("answer", task.answer.clone().map(Value::from)),
        ("check", Some(task.check.clone().into())),
        ("checks", task.checks.as_ref().and_then(|checks| serde_json::from_str(&checks.0).ok())),
        ("candidates", task.candidates.clone().map(Value::from)),
        ("split", split.map(Value::from)),
        ("family", (!task.family.is_empty()).then(|| task.family.clone().into())),
        ("entity", task.entity.clone().map(Value::from)),
        ("reference", task.reference.as_ref().and_then(|text| serde_json::from_str(text).ok())),
        ("server", task.server.as_ref().map(|server| server.0.clone().into())),
        ("working", task.working.as_ref().map(|working| working.0.clone().into())),
    ];
    Value::Object(fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        data::{ServerName, Working},
        tasks::file,
    };

    fn task(id: &str, text: &str) -> Scenario {
        let (check, split) = ("number".into(), "train".into());
        Scenario {
            id: id.into(),
            task: text.into(),
            answer: Some("7".into()),
            check,
            split,
            ..Scenario::default()
        }
    }

    #[test]
    fn a_decision_is_replaced_and_taken_back_and_the_rest_are_tasks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("labels/r.tasks.jsonl");
        let tasks = [task("1", "One?"), task("2", "Two?"), task("3", "Three?")];
        set(&path, &tasks[0], Some(Decision::Drop)).unwrap();
        set(&path, &tasks[1], Some(Decision::Accept)).unwrap();
        set(&path, &tasks[2], Some(Decision::Accept)).unwrap();
        let changed = edited(&tasks, &tasks[0], Some("Which one?"), Some("first")).unwrap();
        set(&path, &changed, Some(Decision::Edit)).unwrap();
        set(&path, &tasks[1], None).unwrap();
        set(&path, &tasks[2], Some(Decision::Drop)).unwrap();
        let all = decisions(&path).unwrap();
        assert_eq!(
            all.iter().map(|(id, one)| (id.as_str(), one.decision)).collect::<Vec<_>>(),
            [("1", Decision::Edit), ("3", Decision::Drop)]
        );
        let (train, _) = file::parse(&std::fs::read_to_string(&path).unwrap(), "f", (0.5, 1).into()).unwrap();
        let found: Vec<_> =
            train.iter().map(|one| (&*one.task, one.answer.as_deref(), &*one.check)).collect();
        assert_eq!(found, [("Which one?", Some("first"), "text")]);
        assert!(edited(&tasks, &tasks[0], Some("Two?"), None).is_err(), "two tasks with one text");
    }

    /// The check of a task with this answer and check, once its answer is the new one.
    fn checked(answer: Option<&str>, check: &str, new: &str) -> String {
        let task = Scenario { answer: answer.map(str::to_owned), check: check.into(), ..task("1", "One?") };
        let edited = edited(&[], &task, Some("Which one?"), Some(new)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f.jsonl");
        set(&path, &edited, Some(Decision::Edit)).unwrap();
        let (train, _) = file::parse(&std::fs::read_to_string(&path).unwrap(), "f", (0.5, 1).into()).unwrap();
        assert_eq!(train[0].answer.as_deref(), Some(new), "the answer is written as it was given");
        train[0].check.clone()
    }

    #[test]
    fn an_edit_keeps_the_kind_of_check() {
        assert_eq!(checked(Some("007"), "text", "007"), "text", "the answer is as it was");
        assert_eq!(checked(Some("007"), "text", "008"), "text");
        assert_eq!(checked(Some("7"), "number", "8"), "number");
        assert_eq!(checked(Some("7"), "number", "seven"), "text");
        assert_eq!(checked(Some("7, 8"), "set", "9"), "set");
        assert_eq!(checked(None, "none", "9"), "number");
        assert_eq!(checked(None, "none", "nine"), "text");
    }

    #[test]
    fn candidates_stay_with_the_check_that_they_are_of() {
        let task = Scenario { candidates: Some(vec![]), ..task("1", "One?") };
        let of = |answer| edited(&[], &task, None, Some(answer)).unwrap().candidates;
        assert_eq!((of("8"), of("eight")), (Some(vec![]), None));
    }

    #[test]
    fn what_an_edit_leaves_as_it_was_is_kept_to_the_byte() {
        let task = Scenario { answer: Some(" 7\n".into()), ..task("1", " One?\n") };
        assert_eq!(edited(&[], &task, Some("One?"), Some("7")).unwrap(), task);
    }

    #[test]
    fn every_field_of_a_task_survives_a_review() {
        let task = Scenario {
            entity: Some("Ada".into()),
            reference: Some("[{\"arguments\":{},\"name\":\"get\"}]".into()),
            server: Some(ServerName("desk".into())),
            working: Some(Working("1 a, 2 b.".into())),
            family: "people".into(),
            candidates: Some(vec!["8".into(), "A-9".into()]),
            ..task("1", "One?")
        };
        let line = line(&task, Decision::Accept).to_string();
        let (train, _) = file::parse(&line, "f", (0.5, 1).into()).unwrap();
        assert_eq!(Scenario { id: task.id.clone(), ..train[0].clone() }, task);
    }

    #[test]
    fn pages_and_terminals_that_decide_at_the_same_time_keep_each_others_decisions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reviewed.jsonl");
        std::thread::scope(|scope| {
            for one in 0..4 {
                let path = &path;
                scope.spawn(move || {
                    for number in 0..16 {
                        let task = task(&format!("{one}-{number}"), &format!("Task {one}-{number}?"));
                        if one == 0 {
                            append(path, &line(&task, Decision::Accept)).unwrap();
                        } else {
                            set(path, &task, Some(Decision::Accept)).unwrap();
                        }
                    }
                });
            }
        });
        assert_eq!(decisions(&path).unwrap().len(), 64);
    }

    #[test]
    fn a_file_of_something_else_is_refused_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reviewed.jsonl");
        std::fs::write(&path, "nonsense\n").unwrap();
        assert_eq!(set(&path, &task("1", "One?"), None).unwrap_err().code(), "review::bad_line");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "nonsense\n");
    }
}
