//! A run's episodes as logs of Inspect, the evaluation framework of the UK AI Security Institute.
//!
//! A log (`.eval`) is a zip of JSON files: one per sample, their summaries, and a header. A sample is an episode. A log has one
//! model, so each policy gets a log, and so does each way of sampling of an exam: greedy decoding and temperature 1.
//!
//! The logs are a pure function of a run's journal and artifacts: the same run gives the same bytes. Nothing here reads the
//! clock. Texts are as servers and policies wrote them; JSON escapes them. Wall times of single turns exist in no
//! artifact: events are one nominal millisecond apart, and samples have no durations.

mod header;
mod sample;
mod schema;
#[cfg(test)]
mod tests;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
    io::{self, Seek, Write},
    sync::Arc,
};

use serde_json::Value;
use zip::{CompressionMethod, DateTime, ZipWriter, result::ZipError, write::SimpleFileOptions};

use crate::{
    data::{self, DataError, EpisodeRow, EpisodeSampled, OutcomeRow, Reward, Scenario},
    error::{Class, Diagnostic},
    eval::{self, Mode},
    hash::Encoder,
    plan::NodeName,
    view::{
        Run, Stage,
        episodes::{EpisodeCache, EpisodeTable, sources},
        exam::{Part, parts},
    },
};

/// Episodes that are in memory at once.
const CHUNK: usize = 256;

#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(prefix = "inspect::", serialize_all = "snake_case")]
pub enum InspectError {
    #[error("run \"{run}\" has no finished comparison of policies")]
    NoExam { run: String, stages: Vec<String> },
    #[error("\"{part}\" of run \"{run}\" has no episodes")]
    NoEpisodes { run: String, part: String, stages: Vec<String> },
    #[error("the episodes of \"{stage}\" cannot be read: {problem}")]
    Unavailable { stage: String, problem: String },
    #[error("cannot read the episodes of \"{stage}\"")]
    Read {
        stage: String,
        #[source]
        source: Box<DataError>,
    },
    #[error("cannot write the log")]
    Write(#[source] io::Error),
}

impl Diagnostic for InspectError {
    fn code(&self) -> &'static str {
        self.into()
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::NoExam { run, stages } | Self::NoEpisodes { run, stages, .. } => {
                Some(match stages.as_slice() {
                    [] => {
                        format!("no stage of it has finished episodes; continue it with `mcprl resume {run}`")
                    }
                    [.., last] => format!(
                        "name a stage with episodes, as in `mcprl export '{run}/{last}' --inspect FILE.eval`"
                    ),
                })
            }
            Self::Unavailable { .. } => None,
            Self::Read { .. } => Some("`mcprl cache verify` finds damaged artifacts".into()),
            Self::Write(_) => Some("check that the disk is not full and the folder is writable".into()),
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::NoExam { .. } | Self::NoEpisodes { .. } => Class::Usage,
            _ => Class::Work,
        }
    }
}

/// The episodes of one policy in one stage, sampled in one way.
pub struct Log<'r> {
    run: &'r Run,
    stage: &'r Stage,
    table: Arc<EpisodeTable>,
    part: Part,
}

/// The logs of a run: of the stages that `part` names and that have episodes, or else of its last comparison of policies.
///
/// # Errors
/// If there are no such episodes, or if they cannot be read.
pub fn logs<'r>(run: &'r Run, part: Option<&str>) -> Result<Vec<Log<'r>>, InspectError> {
    let with_episodes: Vec<&Stage> = run.writers("trajectories").collect();
    let mut stages = with_episodes.clone();
    match part.map(NodeName::parse) {
        Some(named) => stages.retain(|stage| named.means(&stage.id)),
        None => {
            stages.retain(|stage| stage.artifact("verdict").is_some());
            stages.drain(..stages.len().saturating_sub(1));
        }
    }
    if stages.is_empty() {
        let (run, stages) = (run.id.clone(), with_episodes.iter().map(|stage| stage.id.clone()).collect());
        return Err(match part {
            Some(part) => InspectError::NoEpisodes { run, part: part.to_owned(), stages },
            None => InspectError::NoExam { run, stages },
        });
    }
    let wanted: BTreeSet<&str> = stages.iter().map(|stage| stage.id.as_str()).collect();
    let mut sources = sources(run);
    sources.retain(|source| wanted.contains(source.stage.as_str()));
    let episodes = EpisodeCache::default().episodes(sources);
    if let Some(gone) = episodes.unavailable.first() {
        return Err(InspectError::Unavailable { stage: gone.stage.clone(), problem: gone.problem.clone() });
    }
    let of_stage = |stage: &'r Stage| {
        let table = episodes.table(&stage.id);
        let parts = table.map(|table| (table, parts(stage, table)));
        parts.into_iter().flat_map(move |(table, parts)| {
            let table = Arc::clone(table);
            parts.into_iter().map(move |part| Log { run, stage, table: Arc::clone(&table), part })
        })
    };
    Ok(stages.into_iter().flat_map(of_stage).collect())
}

/// A name for each log, of those parts of `stage`, policy and mode by which the logs differ: `base-greedy`. The name of a
/// single log is empty.
pub fn names(logs: &[Log<'_>]) -> Vec<String> {
    let differ = |same: fn(&Log<'_>, &Log<'_>) -> bool, part: fn(&Log<'_>) -> String| {
        logs.iter().any(|a| logs.iter().any(|b| same(a, b) && part(a) != part(b)))
    };
    let stage = |log: &Log<'_>| log.stage.id.clone();
    let mode = |log: &Log<'_>| log.part.mode.map(Mode::name).unwrap_or_default().to_owned();
    let by_stage = differ(|_, _| true, stage);
    let by_policy = differ(|a, b| a.stage.id == b.stage.id, |log| log.part.policy.clone());
    let by_mode = differ(|a, b| a.stage.id == b.stage.id && a.part.policy == b.part.policy, mode);
    let mut known = BTreeSet::new();
    logs.iter()
        .map(|log| {
            let parts = [
                by_stage.then(|| stage(log)),
                by_policy.then(|| log.part.policy.clone()),
                by_mode.then(|| mode(log)),
            ];
            let name = parts.into_iter().flatten().map(|part| file_name(&part)).collect::<Vec<_>>().join("-");
            let mut unique = name.clone();
            let mut number = 2;
            while !known.insert(unique.clone()) {
                unique = format!("{name}-{number}");
                number += 1;
            }
            unique
        })
        .collect()
}

/// `train[0003]/rollout` → `train-0003-rollout`.
fn file_name(text: &str) -> String {
    let safe = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    let words = text.split(|letter| !safe(letter)).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-")
}

/// An id that follows from these texts: 32 hex digits.
fn id(kind: &str, parts: &[&str]) -> String {
    let mut encoder = Encoder::new("mcprl inspect id v1");
    encoder.text(kind);
    for part in parts {
        encoder.text(part);
    }
    encoder.finish().to_string()[..32].to_owned()
}

/// Milliseconds since the epoch as Inspect writes times: `2026-11-22T18:56:02.123000+00:00`.
fn time(ms: u64) -> String {
    let time = i64::try_from(ms).ok().and_then(chrono::DateTime::from_timestamp_millis);
    time.unwrap_or_default().format("%Y-%m-%dT%H:%M:%S%.6f+00:00").to_string()
}

/// What all samples of a log share.
struct Common {
    model: String,
    /// Of each scenario: what its cluster is called.
    clusters: BTreeMap<String, String>,
    clustered_by: &'static str,
    tools: Vec<Value>,
    /// Milliseconds since the epoch.
    begin: u64,
    /// Rewards by trajectory, for each judge: the name of the score, and its rows.
    rewards: Vec<(String, HashMap<String, Reward>)>,
}

impl Log<'_> {
    pub fn stage(&self) -> &str {
        &self.stage.id
    }

    pub fn policy(&self) -> &str {
        &self.part.policy
    }

    pub fn mode(&self) -> Option<&'static str> {
        self.part.mode.map(Mode::name)
    }

    /// Number of episodes.
    pub fn samples(&self) -> usize {
        self.part.rows.len()
    }

    fn outcome(&self, row: usize) -> &OutcomeRow {
        &self.table.episodes[row].summary
    }

    fn common(&self) -> Common {
        let mut scenarios: BTreeMap<&str, Cow<'_, Scenario>> = BTreeMap::new();
        for outcome in self.part.rows.iter().map(|row| self.outcome(*row)) {
            let (id, family) = (&outcome.scenario_id, &outcome.family);
            // The scenarios may be gone from the cache.
            let unknown = || Scenario { id: id.clone(), family: family.clone(), ..Scenario::default() };
            let known = self.table.scenarios.get(id).map(Cow::Borrowed);
            scenarios.insert(id, known.unwrap_or_else(|| Cow::Owned(unknown())));
        }
        let scenarios: Vec<&Scenario> = scenarios.values().map(Cow::as_ref).collect();
        let (clustered_by, labels) = eval::clusters(&scenarios);
        let clusters = scenarios.iter().map(|scenario| scenario.id.clone()).zip(labels).collect();
        let judges = self.table.source.rewards.iter().enumerate();
        let rewards = judges.filter_map(|(place, source)| {
            let rows = data::read::<Reward>(&source.path).ok()?;
            let name = if place == 0 { "reward".to_owned() } else { source.stage.clone() };
            Some((name, rows.into_iter().map(|row| (row.trajectory_id.clone(), row)).collect()))
        });
        Common {
            model: format!("mcprl/{}", self.part.policy),
            clusters,
            clustered_by,
            tools: self.run.tools(self.stage).unwrap_or_default().iter().map(schema::tool).collect(),
            begin: self.stage.started_ms.or(self.run.began_ms).unwrap_or_default(),
            rewards: rewards.collect(),
        }
    }

    /// Writes the log.
    ///
    /// # Errors
    /// If the episodes cannot be read or the log cannot be written.
    pub fn write(&self, to: impl Write + Seek) -> Result<(), InspectError> {
        let common = self.common();
        let mut zip = ZipWriter::new(io::BufWriter::new(to));
        let mut summaries = Vec::with_capacity(self.part.rows.len());
        let mut totals = header::Totals::default();
        for rows in self.part.rows.chunks(CHUNK) {
            let reading =
                |source| InspectError::Read { stage: self.stage.id.clone(), source: Box::new(source) };
            let path = &self.table.source.path;
            let episodes = data::read_part::<EpisodeRow>(path, Some(rows)).map_err(reading)?;
            let sampled = data::read_part::<EpisodeSampled>(path, Some(rows)).map_err(reading)?;
            for ((row, episode), sampled) in rows.iter().zip(&episodes).zip(&sampled) {
                let sample = sample::Sample::new(self, &common, *row, episode, sampled);
                let name = format!("samples/{}_epoch_{}.json", episode.scenario_id, sample.epoch);
                add(&mut zip, &name, &sample.json)?;
                summaries.push(sample.summary());
                totals.add(&episode.scenario_id, &sample);
            }
        }
        add(&mut zip, "summaries.json", &Value::Array(summaries))?;
        add(&mut zip, "header.json", &header::header(self, &common, &totals))?;
        let written = zip.finish().map_err(writing)?;
        written.into_inner().map_err(|error| InspectError::Write(error.into_error()))?;
        Ok(())
    }
}

fn writing(error: ZipError) -> InspectError {
    InspectError::Write(match error {
        ZipError::Io(error) => error,
        error => io::Error::other(error),
    })
}

fn add(zip: &mut ZipWriter<impl Write + Seek>, name: &str, content: &Value) -> Result<(), InspectError> {
    let text = serde_json::to_vec(content).map_err(|error| InspectError::Write(error.into()))?;
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Deflated)
        .last_modified_time(DateTime::default())
        .large_file(u32::try_from(text.len()).is_err());
    zip.start_file(name, options).map_err(writing)?;
    zip.write_all(&text).map_err(InspectError::Write)
}
