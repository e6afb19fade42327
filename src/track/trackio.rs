//! trackio: a SQLite database for each project, read by `trackio show`.
//!
//! The tables are those that trackio 0.43 creates, as far as it does not create them itself when it opens the
//! database. A run is replaced as a whole in one transaction, under the lock file that trackio's own writers hold.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use rusqlite::{Connection, TransactionBehavior, params};
use serde_json::{Map, Value, json};

use super::{Log, Sink, TrackError, log::Content};
use crate::{data::Message, plan::TrackioSpec};

/// Writes a run into a project's database.
pub struct Trackio {
    folder: PathBuf,
    project: String,
}

impl Trackio {
    pub fn new(spec: &TrackioSpec) -> Self {
        Self { folder: folder(), project: file_name(&spec.project) }
    }

    fn path(&self) -> PathBuf {
        self.folder.join(format!("{}.db", self.project))
    }
}

/// Where trackio keeps its databases.
fn folder() -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("TRACKIO_DIR").unwrap_or_else(|| {
        let home = || std::env::home_dir().unwrap_or_default().join(".cache");
        let hub = variable("HF_HOME")
            .unwrap_or_else(|| variable("XDG_CACHE_HOME").unwrap_or_else(home).join("huggingface"));
        hub.join("trackio")
    })
}

/// The name of a project's files, as trackio makes it.
fn file_name(project: &str) -> String {
    let name: String =
        project.chars().filter(|letter| letter.is_alphanumeric() || "-_".contains(*letter)).collect();
    if name.is_empty() { "default".into() } else { name }
}

impl Sink for Trackio {
    fn name(&self) -> &'static str {
        "trackio"
    }

    fn location(&self) -> String {
        self.path().display().to_string()
    }

    fn update(&mut self, log: &Log) -> Result<(), TrackError> {
        let path = self.path();
        let writing = |source| TrackError::Write { path: self.folder.clone(), source };
        std::fs::create_dir_all(&self.folder).map_err(writing)?;
        let lock = File::create(self.folder.join(format!("{}.lock", self.project))).map_err(writing)?;
        lock.lock().map_err(writing)?;
        write(&path, log).map_err(|source| TrackError::Database { path, source })
    }
}

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS metrics (
        id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, timestamp TEXT NOT NULL, run_name TEXT NOT NULL,
        step INTEGER NOT NULL, metrics TEXT NOT NULL, log_id TEXT, space_id TEXT
    );
    CREATE TABLE IF NOT EXISTS configs (
        id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, run_name TEXT NOT NULL, config TEXT NOT NULL,
        created_at TEXT NOT NULL, UNIQUE(run_id)
    );
    CREATE TABLE IF NOT EXISTS traces (
        id TEXT PRIMARY KEY, run_id TEXT NOT NULL, timestamp TEXT NOT NULL, run_name TEXT NOT NULL,
        step INTEGER NOT NULL, key TEXT NOT NULL, trace_index INTEGER, messages TEXT NOT NULL, metadata TEXT NOT NULL,
        search_text TEXT NOT NULL, log_id TEXT, space_id TEXT, spans TEXT NOT NULL DEFAULT '[]'
    );";

fn write(path: &Path, log: &Log) -> rusqlite::Result<()> {
    let mut database = Connection::open(path)?;
    database.busy_timeout(std::time::Duration::from_secs(10))?;
    // As trackio does; readers see the state of before while this writes.
    database.pragma_update(None, "journal_mode", "WAL")?;
    let all = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
    all.execute_batch(TABLES)?;
    // Another run of this name may be from another cache.
    let id = format!("{}-{}", log.run, log.began_ms);
    for table in ["metrics", "configs", "traces"] {
        all.execute(&format!("DELETE FROM {table} WHERE run_id = ?"), [&id])?;
    }
    let mut config = Map::from_iter(log.config.iter().cloned());
    config.insert("_Created".into(), time(log.began_ms).into());
    config.insert("_Group".into(), log.name.as_str().into());
    config.insert("_Username".into(), Value::Null);
    all.execute(
        "INSERT INTO configs (run_id, run_name, config, created_at) VALUES (?, ?, ?, ?)",
        params![id, log.run, Value::Object(config).to_string(), time(log.began_ms)],
    )?;
    {
        let mut metrics = all.prepare(
            "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) VALUES (?, ?, ?, ?, ?)",
        )?;
        let mut traces = all.prepare(
            "INSERT INTO traces (id, run_id, timestamp, run_name, step, key, messages, metadata, search_text)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?;
        for entry in &log.entries {
            let (at, step) = (time(entry.at_ms), i64::try_from(entry.step).unwrap_or(i64::MAX));
            let values = match &entry.content {
                Content::Scalars(values) => {
                    Map::from_iter(values.iter().map(|(tag, value)| (tag.clone(), json!(value))))
                }
                Content::Text { tag, messages, .. } if !messages.is_empty() => {
                    let trace = format!("{id}:{step}:{tag}");
                    let messages: Value = messages.iter().map(Message::openai).collect();
                    let metadata = json!({ "iteration": step });
                    let search = format!("{trace} {tag} {messages}").to_lowercase();
                    traces.execute(params![
                        trace,
                        id,
                        at,
                        log.run,
                        step,
                        tag,
                        messages.to_string(),
                        metadata.to_string(),
                        search
                    ])?;
                    continue;
                }
                Content::Text { tag, markdown, .. } => Map::from_iter([(
                    tag.clone(),
                    json!({ "_type": "trackio.markdown", "_value": markdown }),
                )]),
            };
            metrics.execute(params![id, at, log.run, step, Value::Object(values).to_string()])?;
        }
    }
    all.commit()
}

/// `2026-11-23T03:29:14.601+00:00`
fn time(ms: u64) -> String {
    let time = i64::try_from(ms).ok().and_then(chrono::DateTime::from_timestamp_millis);
    time.unwrap_or_default().format("%Y-%m-%dT%H:%M:%S%.3f+00:00").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_as_trackio_names_them() {
        assert_eq!(["my.model", "a b_c-1", "…"].map(file_name), ["mymodel", "ab_c-1", "default"]);
        assert_eq!(time(1_795_404_554_601), "2026-11-23T03:29:14.601+00:00");
    }
}
