//! Traces of episodes for OpenTelemetry back ends: OTLP over HTTP in Protocol Buffers, with the GenAI semantic conventions.
//!
//! A run is one trace with a span for each stage. Each episode is a trace of its own, whose root links to the span of its stage:
//! a trace of all episodes would be unusable. Ids follow from the run, the stage and the episode, so what is sent twice is the
//! same to back ends that know their spans by id. What an endpoint has accepted is noted in the run's folder.

mod endpoint;
mod spans;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use endpoint::{Endpoint, Rejected, address};
use spans::{Episodes, Trace};

use super::{Log, Sink, TrackError, file, http};
use crate::{
    plan::{OtlpEpisodes, OtlpSpec},
    view::{
        Run, Stage,
        episodes::{EpisodeCache, sources},
    },
};

/// Bytes of spans in one request.
const BATCH: usize = 1 << 20;

/// What was accepted, by endpoint: names of parts of the run.
type Sent = BTreeMap<String, BTreeSet<String>>;

/// An endpoint for traces.
pub struct Otlp {
    spec: OtlpSpec,
    /// Notes what was accepted.
    state: PathBuf,
    refusal: Refusal,
}

/// What the endpoint rejected. It is reported once: an endpoint that rejects some spans usually goes on to do so.
enum Refusal {
    Unreported(Rejected),
    Reported,
}

impl Otlp {
    /// `texts`: whether trackers get conversations. `run_folder`: the run's folder in the cache.
    pub fn new(spec: &OtlpSpec, texts: bool, run_folder: &Path) -> Self {
        let spec = OtlpSpec { content: spec.content && texts, ..spec.clone() };
        let refusal = Refusal::Unreported(Rejected::default());
        Self { spec, state: run_folder.join("otlp.json"), refusal }
    }
}

impl Sink for Otlp {
    fn name(&self) -> &'static str {
        "otlp"
    }

    fn location(&self) -> String {
        address(&self.spec.url)
    }

    fn check(&mut self) -> Result<(), TrackError> {
        // A request without spans is one of zero bytes.
        Endpoint::new(&self.spec)?.send(&[]).map(drop)
    }

    fn update(&mut self, run: &Run, log: &Log) -> Result<(), TrackError> {
        let noted = std::fs::read(&self.state).unwrap_or_default();
        let mut sent: Sent = serde_json::from_slice(&noted).unwrap_or_default();
        let known = sent.get(&self.spec.url).cloned().unwrap_or_default();
        let parts = parts(run, log, &self.spec);
        let missing: Vec<_> = parts.into_iter().filter(|(name, _)| !known.contains(name)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let endpoint = Endpoint::new(&self.spec)?;
        let trace = Trace { run, log, content: self.spec.content };
        let (spans, refusal) = (Vec::new(), &mut self.refusal);
        let mut send = Batches { endpoint: &endpoint, trace: &trace, spans, bytes: 0, refusal };
        for (name, part) in missing {
            match part {
                Part::Run => send.add(trace.run_span())?,
                Part::Stage(stage) => send.add(trace.stage_span(stage))?,
                Part::Episodes(stage) => {
                    let of_stage = sources(run).into_iter().filter(|source| source.stage == stage.id);
                    let table = EpisodeCache::default().episodes(of_stage.collect());
                    // Episodes that are gone from the cache cannot be sent.
                    if let Some(table) = table.tables.first() {
                        let episodes = Episodes::new(&trace, stage, table, limit(stage, &self.spec));
                        episodes.each(|span| send.add(span))?;
                    }
                }
            }
            send.flush()?;
            sent.entry(self.spec.url.clone()).or_default().insert(name);
            let text = serde_json::to_string_pretty(&sent).unwrap_or_default() + "\n";
            file::write(&self.state, text.as_bytes())?;
        }
        Ok(())
    }

    fn refused(&mut self) -> Option<TrackError> {
        let Refusal::Unreported(Rejected { spans: spans @ 1.., problem }) = &self.refusal else {
            return None;
        };
        let (url, spans, problem) = (self.location(), *spans, http::shown(problem));
        self.refusal = Refusal::Reported;
        Some(TrackError::Rejected { url, spans, problem })
    }
}

/// What is sent and noted as one.
enum Part<'r> {
    Run,
    Stage(&'r Stage),
    Episodes(&'r Stage),
}

/// The parts of a run that are complete, each with a name that changes when it does.
fn parts<'r>(run: &'r Run, log: &Log, spec: &OtlpSpec) -> Vec<(String, Part<'r>)> {
    let mut parts = Vec::new();
    let trained: BTreeSet<String> = sources(run)
        .into_iter()
        .filter(|source| source.update.is_some())
        .map(|source| source.stage)
        .collect();
    for stage in run.stages.iter().filter(|stage| stage.state.is_done()) {
        let key = stage.key.map(|key| key.short()).unwrap_or_default();
        parts.push((format!("{} {key}", stage.id), Part::Stage(stage)));
        let is_exam = stage.artifact("verdict").is_some();
        // Rewards and advantages come to be after the episodes.
        let is_complete = is_exam || trained.contains(&stage.id) || log.is_over();
        let limit = limit(stage, spec);
        if stage.artifact("trajectories").is_some() && is_complete && limit > 0 {
            let most = if limit == usize::MAX { "all".to_owned() } else { limit.to_string() };
            parts.push((format!("{} {key} episodes {most}", stage.id), Part::Episodes(stage)));
        }
    }
    if log.is_over() {
        parts.push((format!("run {}", log.ended_ms), Part::Run));
    }
    parts
}

/// How many episodes of a stage are sent.
fn limit(stage: &Stage, spec: &OtlpSpec) -> usize {
    match spec.episodes {
        _ if stage.artifact("verdict").is_some() => usize::MAX,
        OtlpEpisodes::All => usize::MAX,
        OtlpEpisodes::Exam => 0,
        OtlpEpisodes::PerStage(most) => most as usize,
    }
}

/// Collects spans and sends them in requests of bounded size.
struct Batches<'a> {
    endpoint: &'a Endpoint,
    trace: &'a Trace<'a>,
    spans: Vec<Vec<u8>>,
    bytes: usize,
    refusal: &'a mut Refusal,
}

impl Batches<'_> {
    fn add(&mut self, span: Vec<u8>) -> Result<(), TrackError> {
        if self.bytes + span.len() > BATCH {
            self.flush()?;
        }
        self.bytes += span.len();
        self.spans.push(span);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), TrackError> {
        let spans = std::mem::take(&mut self.spans);
        self.bytes = 0;
        if spans.is_empty() {
            return Ok(());
        }
        let rejected = self.endpoint.send(&self.trace.request(spans))?;
        if let Refusal::Unreported(all) = self.refusal {
            all.add(rejected);
        }
        Ok(())
    }
}
