//! Where stages run: `executor` and `shards` of a stage, and `[executors.NAME]`. None of it is part of a key.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    layers::{Entry, EntryPart},
    reader::Reader,
    section::schema_of,
};
use crate::error::suggest;

/// Where a stage runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Executor {
    /// In the process of the run.
    #[default]
    Local,
    /// As a job of the batch system of this name.
    Jobs(Arc<str>),
}

impl Executor {
    /// The name of [`Executor::Local`], which no `[executors.NAME]` has.
    const LOCAL: &str = "local";

    /// Whether a stage has devices and programs of another machine.
    pub fn is_job(&self) -> bool {
        matches!(self, Self::Jobs(_))
    }

    pub fn name(&self) -> &str {
        match self {
            Self::Local => Self::LOCAL,
            Self::Jobs(name) => name,
        }
    }
}

/// A batch system that runs stages as jobs.
#[derive(Deserialize, JsonSchema)]
pub struct Jobs {
    /// `local`, `slurm`, `ray`, `kubernetes`, or the path of a template, relative to the run file's folder. Its options are further
    /// keys of this table; `mcprl executors KIND` prints it.
    kind: String,
    /// What a job asks for.
    #[serde(default)]
    resources: Resources,
    /// Jobs at the same time.
    #[serde(default = "default_jobs")]
    #[schemars(range(min = 1))]
    jobs: usize,
    /// How often a stage is submitted whose job is lost.
    #[serde(default = "default_attempts")]
    #[schemars(range(min = 1))]
    attempts: u32,
    /// Seconds between two questions to the batch system.
    #[serde(default = "default_poll")]
    #[schemars(range(min = 0.1))]
    poll_s: f64,
    /// Shell commands that a job begins with, such as `module load cuda`.
    #[serde(default)]
    setup: String,
    /// The program `mcprl` on the nodes, if it is not this one: relative to the run file's folder, or a name that the nodes find.
    /// It has to be of the same version.
    program: Option<PathBuf>,
    /// What happens to the jobs when the run is interrupted. Those that are left go on, and `mcprl resume` takes their results.
    #[serde(default)]
    on_interrupt: OnInterrupt,
}

fn default_jobs() -> usize {
    8
}

fn default_attempts() -> u32 {
    3
}

fn default_poll() -> f64 {
    2.0
}

/// What happens to jobs when the run is interrupted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnInterrupt {
    #[default]
    Cancel,
    Leave,
}

/// What a job asks its batch system for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    cpus: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpus: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    memory_gib: Option<f64>,
    /// Wall time: `"90s"`, `"30m"`, `"4h"` or `"2d"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
}

impl Resources {
    /// As templates see it, with the time in seconds.
    fn values(&self) -> Option<Value> {
        let Ok(Value::Object(mut values)) = serde_json::to_value(self) else { return None };
        if let Some(time) = &self.time {
            values.remove("time");
            values.insert("time_s".into(), seconds(time)?.into());
        }
        Some(values.into())
    }
}

/// Seconds of a time such as `4h`.
fn seconds(text: &str) -> Option<u64> {
    let unit = text.chars().last()?;
    let count: u64 = text.strip_suffix(unit)?.trim().parse().ok()?;
    let each =
        [('s', 1), ('m', 60), ('h', 3600), ('d', 86400)].into_iter().find(|(name, _)| *name == unit)?.1;
    count.checked_mul(each).filter(|seconds| *seconds > 0)
}

/// How to use a batch system.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Template {
    pub about: String,
    #[serde(default)]
    pub options: BTreeMap<String, TemplateOption>,
    pub submit: Action,
    /// Lists the jobs: name, state, and more to be shown.
    pub list: Action,
    pub cancel: Action,
    /// Lists why a job would wait for ever.
    pub check: Option<Action>,
    pub states: States,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemplateOption {
    pub about: String,
    /// Without one, the option is required.
    pub default: Option<Value>,
}

/// A command or a request. All texts are templates.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Action {
    /// Arguments of a command, one on each line.
    pub run: Option<String>,
    /// Its standard input.
    pub input: String,
    /// URL.
    pub get: Option<String>,
    pub post: Option<String>,
    pub headers: BTreeMap<String, String>,
    /// JSON.
    pub body: String,
    /// What the answer means; `output` is its text, and `answer` what it is as JSON.
    pub lines: String,
}

/// States of jobs that have not ended.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct States {
    pub pending: Vec<String>,
    pub running: Vec<String>,
}

/// The templates of this program, by kind.
pub const TEMPLATES: [(&str, &str); 4] = [
    ("kubernetes", include_str!("../../executors/kubernetes.toml")),
    ("local", include_str!("../../executors/local.toml")),
    ("ray", include_str!("../../executors/ray.toml")),
    ("slurm", include_str!("../../executors/slurm.toml")),
];

impl Template {
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let template: Self = toml::from_str(text).map_err(|cause| cause.to_string().trim().to_owned())?;
        let actions = [&template.submit, &template.list, &template.cancel];
        for action in actions.into_iter().chain(&template.check) {
            let ways = [&action.run, &action.get, &action.post].into_iter().flatten().count();
            if ways != 1 {
                return Err("submit, list, cancel and check have one of `run`, `get` and `post` each".into());
            }
        }
        Ok(template)
    }
}

/// A batch system of a run file.
#[derive(Debug, Clone, PartialEq)]
pub struct JobsSpec {
    pub name: String,
    pub template: Template,
    /// Values of the template: its options, and `resources`.
    pub values: Map<String, Value>,
    pub jobs: usize,
    pub attempts: u32,
    pub poll: Duration,
    pub setup: String,
    pub program: Option<PathBuf>,
    pub on_interrupt: OnInterrupt,
}

/// Parses `[executors]`. One with mistakes has none.
pub fn executors(reader: &Reader, entry: &Entry<'_>) -> BTreeMap<String, Option<JobsSpec>> {
    let tables = reader.table(entry).unwrap_or_default();
    let spec = |(name, entry): (&str, Entry<'_>)| {
        if name == Executor::LOCAL {
            let message = format!("`{name}` is an executor already");
            reader.wrong::<()>(&entry, EntryPart::Key, message, Some("give it another name".into()));
        }
        (name.to_owned(), jobs(reader, name, &entry))
    };
    tables.into_iter().map(spec).collect()
}

fn jobs(reader: &Reader, name: &str, entry: &Entry<'_>) -> Option<JobsSpec> {
    let table = reader.read::<Jobs>(entry)?;
    let fields = reader.table(entry)?;
    let template = template(reader, fields.get("kind")?, &table.kind)?;
    let schema = schema_of::<Jobs>();
    let own = schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.as_str());
    let known: Vec<&str> = own.chain(template.options.keys().map(String::as_str)).collect();
    reader.only(entry, &known);
    let Some(resources) = table.resources.values() else {
        let entry = entry.field("resources").and_then(|resources| resources.field("time"))?;
        let message = format!("`{}` should be a time such as \"30m\" or \"4h\"", entry.path);
        return reader.wrong(&entry, EntryPart::Value, message, None);
    };
    let mut values = Map::from_iter([("resources".to_owned(), resources)]);
    for (option, TemplateOption { about, default }) in &template.options {
        let given = fields.get(option.as_str()).map(Entry::json);
        let Some(value) = given.or_else(|| default.clone()) else {
            let message = format!("`{}` needs `{option}`", entry.path);
            reader.wrong::<()>(entry, EntryPart::Key, message, Some(format!("{option}: {about}")));
            continue;
        };
        values.insert(option.clone(), value);
    }
    let Jobs { jobs, attempts, poll_s, setup, program, on_interrupt, .. } = table;
    // A name alone is one that the node finds.
    let program =
        program.map(|path| if path.components().count() > 1 { entry.folder().join(path) } else { path });
    let poll = Duration::try_from_secs_f64(poll_s).unwrap_or(Duration::from_secs(2));
    let name = name.to_owned();
    Some(JobsSpec { name, template, values, jobs, attempts, poll, setup, program, on_interrupt })
}

fn template(reader: &Reader, entry: &Entry<'_>, kind: &str) -> Option<Template> {
    let path = entry.folder().join(kind);
    let names = TEMPLATES.map(|(name, _)| name);
    let text = match TEMPLATES.iter().find(|(name, _)| *name == kind) {
        Some((_, text)) => (*text).to_owned(),
        None if kind.ends_with(".toml") => match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(cause) => {
                let message = format!("`{}`: cannot read {}: {cause}", entry.path, path.display());
                return reader.wrong(entry, EntryPart::Value, message, None);
            }
        },
        None => {
            let message =
                format!("`{}` should be one of {}, or the path of a template", entry.path, names.join(", "));
            return reader.wrong(entry, EntryPart::Value, message, suggest(kind, names));
        }
    };
    match Template::parse(&text) {
        Ok(template) => Some(template),
        Err(problem) => {
            reader.wrong(entry, EntryPart::Value, format!("{kind} is no template: {problem}"), None)
        }
    }
}

/// Parses `executor`.
pub fn executor(
    reader: &Reader,
    entry: &Entry<'_>,
    executors: &BTreeMap<String, Option<JobsSpec>>,
) -> Option<Executor> {
    let text = reader.text(entry)?;
    match text {
        Executor::LOCAL => Some(Executor::Local),
        name if executors.contains_key(name) => Some(Executor::Jobs(name.into())),
        _ => {
            let others = executors.keys().map(String::as_str);
            let names: Vec<&str> = std::iter::once(Executor::LOCAL).chain(others).collect();
            let message = format!("`{}` should be one of {}", entry.path, names.join(", "));
            let hint = executors.is_empty().then(|| "`[executors.NAME]` names a batch system".to_owned());
            reader.wrong(entry, EntryPart::Value, message, hint)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        let times = ["90s", "30m", "4h", "2d", "4", "h", "0h", "-1h", "1.5h", "é", ""];
        let expected =
            [Some(90), Some(1800), Some(14400), Some(172_800), None, None, None, None, None, None, None];
        assert_eq!(times.map(seconds), expected);
    }

    #[test]
    fn templates_of_the_program_are_whole() {
        for (name, text) in TEMPLATES {
            Template::parse(text).unwrap_or_else(|problem| panic!("{name}: {problem}"));
        }
        let twice = "about = \"\"\nlist = { run = \"a\" }\ncancel = { run = \"a\" }\n\
                     states = { pending = [], running = [] }\nsubmit = { run = \"a\", get = \"b\" }";
        assert!(Template::parse(twice).unwrap_err().contains("one of `run`"));
    }
}
