//! The episodes of a run: an index in memory of all of them, for tables, filters and groups.
//!
//! The index has no tokens. Conversations are read for a search in their texts, and kept in memory up to a bound.

use std::{
    borrow::Cow,
    cmp::Ordering,
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use memchr::memmem;
use parking_lot::Mutex;
use rayon::{iter::Either, prelude::*};
use serde::Serialize;
use serde_json::{Map, Value};

use super::{Artifact, Run, Stage};
use crate::{
    data::{
        self, DataError, End, EpisodeMessages, GroupKey, Label, Message, OutcomeRow, Reward, RewardValue,
        Scenario,
    },
    grpo::{Advantage, NoSignal, Scale, ScoredRollout, advantages},
    hash::Digest,
    plan::{InLoop, NodeName, stage_name},
    text::start_of,
};

/// Bytes of conversation texts that are kept in memory, over all runs. Beyond it they are read again for each search.
const TEXT_MEMORY: usize = 1 << 30;

/// An artifact with episodes, and what belongs to it.
#[derive(Debug, Clone, PartialEq)]
pub struct EpisodeSource {
    /// The stage that wrote it: `train[0003]/rollout`.
    pub stage: String,
    pub digest: Digest,
    pub path: PathBuf,
    /// The judges of these episodes; the one whose rewards are trained on first.
    pub rewards: Vec<RewardSource>,
    /// How the stage that trains on them makes advantages of the rewards.
    pub update: Option<UpdateSource>,
    /// The table of tools that the policies were shown.
    pub tools: Option<PathBuf>,
    pub scenarios: Option<(Digest, PathBuf)>,
    /// Names of the policies by digest.
    pub policies: BTreeMap<String, String>,
    /// Digest of the stage's policy, if it reads one in the role `policy`.
    pub policy: Option<String>,
}

/// An artifact with rewards.
#[derive(Debug, Clone, PartialEq)]
pub struct RewardSource {
    pub stage: String,
    pub digest: Digest,
    pub path: PathBuf,
    pub audit: Option<PathBuf>,
}

/// A stage that trains.
#[derive(Debug, Clone, PartialEq)]
pub struct UpdateSource {
    pub stage: String,
    scale: Scale,
    mask_truncated: bool,
}

impl UpdateSource {
    fn new(stage: &str, params: &Map<String, Value>) -> Self {
        let scale = params.get("scale").and_then(|value| serde_json::from_value(value.clone()).ok());
        Self {
            stage: stage.to_owned(),
            scale: scale.unwrap_or(Scale::Mean),
            mask_truncated: params.get("mask_truncated").and_then(Value::as_bool).unwrap_or(false),
        }
    }
}

/// Where a run's episodes are, in the run's order.
pub fn sources(run: &Run) -> Vec<EpisodeSource> {
    let reads = |stage: &Stage, digest: &Digest| {
        stage.inputs.iter().any(|input| input.digest.as_ref() == Some(digest))
    };
    let of_kind = |stage: &Stage, kind: &str| -> Option<(Digest, PathBuf)> {
        let mut outputs = run.stages.iter().flat_map(|stage| &stage.outputs);
        let output = outputs.find(|output| output.kind == kind && reads(stage, &output.digest))?;
        Some((output.digest, output.path.clone()))
    };
    let mut found = Vec::new();
    for stage in run.writers("trajectories") {
        let Some(artifact) = stage.artifact("trajectories") else { continue };
        let judges = run.writers("rewards").filter(|judge| reads(judge, &artifact.digest));
        let mut rewards: Vec<RewardSource> = judges
            .filter_map(|judge| {
                let audit = judge.artifact("judge_audit").map(|audit| audit.path.clone());
                let Artifact { digest, path, .. } = judge.artifact("rewards")?.clone();
                Some(RewardSource { stage: judge.id.clone(), digest, path, audit })
            })
            .collect();
        // A trainer that only selects by reward makes no advantages.
        let trainer = run.writers("steps").find(|trainer| {
            reads(trainer, &artifact.digest)
                && rewards.iter().any(|rewards| reads(trainer, &rewards.digest))
                && !trainer.params.contains_key("only_right")
        });
        if let Some(trainer) = trainer {
            rewards.sort_by_key(|rewards| !reads(trainer, &rewards.digest));
        }
        // `train[0002]/update.policy` is the policy of `train[0002]/update`.
        let writer = |from: &str| from.rsplit_once('.').map_or(from, |(stage, _)| stage).to_owned();
        let policies = stage.inputs.iter().filter_map(|input| {
            let digest = input.digest?;
            let named = match input.name == input.role {
                true => input.from.as_deref().map(writer),
                false => Some(input.name.clone()),
            };
            Some((digest.to_string(), named.unwrap_or_else(|| digest.short())))
        });
        let mut inputs = stage.inputs.iter();
        let policy = inputs.find_map(|input| input.digest.filter(|_| input.role == "policy"));
        found.push(EpisodeSource {
            stage: stage.id.clone(),
            digest: artifact.digest,
            path: artifact.path.clone(),
            update: trainer.map(|trainer| UpdateSource::new(&trainer.id, &trainer.params)),
            tools: of_kind(stage, "tools").map(|(_, path)| path),
            scenarios: of_kind(stage, "scenarios"),
            policies: policies.fold(BTreeMap::new(), |mut all, (digest, name)| {
                // One policy may have several names.
                all.entry(digest)
                    .and_modify(|names: &mut String| *names += &format!(", {name}"))
                    .or_insert(name);
                all
            }),
            policy: policy.map(|digest| digest.to_string()),
            rewards,
        });
    }
    found
}

/// One episode of the index.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexedEpisode {
    pub summary: OutcomeRow,
    pub reward: Option<f32>,
    /// Absent if no stage trains on the episode.
    pub advantage: Option<Advantage>,
}

/// The episodes of one artifact.
pub struct EpisodeTable {
    pub source: EpisodeSource,
    pub episodes: Vec<IndexedEpisode>,
    pub scenarios: Arc<BTreeMap<String, Scenario>>,
    iteration: Option<u32>,
    /// Held while they are read, so that nobody reads them twice.
    texts: Mutex<Option<Arc<Texts>>>,
}

/// Texts of conversations in lower case, end to end.
struct Texts {
    all: String,
    /// End of each episode's text.
    ends: Vec<usize>,
}

impl Texts {
    fn read(path: &Path) -> Result<Self, DataError> {
        let rows = data::read_part::<EpisodeMessages>(path, None)?;
        let texts: Vec<String> = rows.par_iter().map(|row| lower_case(&texts_of(&row.messages))).collect();
        let mut ends = Vec::with_capacity(texts.len());
        let mut all = String::with_capacity(texts.iter().map(String::len).sum());
        for text in texts {
            all.push_str(&text);
            ends.push(all.len());
        }
        Ok(Self { all, ends })
    }

    fn get(&self, row: usize) -> &str {
        let start = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.ends.get(row).map_or("", |end| &self.all[start..*end])
    }
}

/// What a search looks at: texts, reasoning, names and arguments of calls.
pub fn texts_of(messages: &[Message]) -> String {
    let mut all = String::new();
    for message in messages {
        let of_calls =
            message.calls.iter().flat_map(|call| [call.name.as_str().into(), call.arguments_json().into()]);
        let texts = [Some(&message.text), message.reasoning.as_ref()].into_iter().flatten();
        for text in texts.map(|text| Cow::from(text.as_str())).chain(of_calls) {
            all.push_str(&text);
            all.push('\n');
        }
    }
    all
}

impl EpisodeTable {
    fn read(source: EpisodeSource, scenarios: Arc<BTreeMap<String, Scenario>>) -> Result<Self, DataError> {
        let summaries: Vec<OutcomeRow> = data::read_part(&source.path, None)?;
        // An episode without its judge's table is shown without reward.
        let first = source.rewards.first();
        let rewards: Option<Vec<RewardValue>> = first.and_then(|first| data::read(&first.path).ok());
        let rewards = rewards.into_iter().flatten().map(|reward| (reward.trajectory_id.clone(), reward));
        let rewards: HashMap<String, RewardValue> = rewards.collect();
        let of = |summary: &OutcomeRow| rewards.get(&summary.id);
        let advantages = source.update.as_ref().map(|update| {
            let excluded = |summary: &OutcomeRow| -> Option<NoSignal> {
                let is_truncated = End::parse(&summary.end).is_some_and(End::is_truncated);
                match summary.turns {
                    _ if is_truncated && update.mask_truncated => Some(NoSignal::Truncated),
                    0 => Some(NoSignal::Empty),
                    _ => None,
                }
            };
            let rollouts: Vec<ScoredRollout<'_>> = summaries
                .iter()
                .map(|summary| ScoredRollout {
                    group: GroupKey { scenario: &summary.scenario_id, policy: &summary.policy },
                    reward: of(summary).map_or(f32::NAN, |reward| reward.reward),
                    correct: of(summary).and_then(|reward| reward.correct),
                    excluded: excluded(summary),
                })
                .collect();
            advantages(&rollouts, update.scale).0
        });
        let found: Vec<Option<f32>> = summaries.iter().map(|row| Some(of(row)?.reward)).collect();
        let episodes = summaries.into_iter().zip(found).enumerate().map(|(row, (summary, reward))| {
            IndexedEpisode { summary, reward, advantage: advantages.as_ref().map(|all| all[row]) }
        });
        let episodes = episodes.collect();
        let iteration = InLoop::parse(&source.stage).map(|of| of.iteration);
        Ok(Self { source, episodes, scenarios, iteration, texts: Mutex::default() })
    }

    /// The episode of this id, and its row.
    pub fn episode(&self, id: &str) -> Option<(usize, &IndexedEpisode)> {
        self.episodes.iter().enumerate().find(|(_, episode)| episode.summary.id == id)
    }

    /// Rows of the episodes of the same scenario by the same policy.
    pub fn group(&self, of: &OutcomeRow) -> Vec<usize> {
        let rows = self.episodes.iter().enumerate().filter(|(_, other)| {
            other.summary.scenario_id == of.scenario_id && other.summary.policy == of.policy
        });
        rows.map(|(row, _)| row).collect()
    }

    pub fn policy_name(&self, policy: &str) -> String {
        let (digest, variant) = data::policy_parts(policy);
        let name = variant.map(str::to_owned).or_else(|| self.source.policies.get(digest).cloned());
        name.unwrap_or_else(|| digest.chars().take(12).collect())
    }

    /// The policy whose tokenizer wrote an episode: the one that sampled it, or for a reference solution the one that its stage
    /// reads.
    pub fn writer_of<'a>(&'a self, policy: &'a str) -> &'a str {
        let reads = self.source.policy.as_deref().filter(|_| policy == data::REFERENCE);
        reads.unwrap_or_else(|| data::policy_parts(policy).0)
    }

    /// The texts of all conversations; kept if there is room.
    fn texts(&self, used: &AtomicUsize) -> Result<Arc<Texts>, DataError> {
        let mut kept = self.texts.lock();
        if let Some(texts) = &*kept {
            return Ok(Arc::clone(texts));
        }
        let texts = Arc::new(Texts::read(&self.source.path)?);
        let bytes = texts.all.len();
        if used.fetch_add(bytes, Relaxed) + bytes <= TEXT_MEMORY {
            *kept = Some(Arc::clone(&texts));
        } else {
            used.fetch_sub(bytes, Relaxed);
        }
        Ok(texts)
    }
}

/// Episodes that cannot be shown, and why.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Unavailable {
    pub stage: String,
    pub problem: String,
}

impl Unavailable {
    /// In plain words why a table cannot be shown.
    pub fn new(stage: &str, cause: &DataError) -> Self {
        let mut problem = cause.to_string();
        let mut source = std::error::Error::source(cause);
        while let Some(inner) = source {
            problem += &format!(": {inner}");
            source = inner.source();
        }
        if matches!(cause, DataError::Open { source, .. } if source.kind() == std::io::ErrorKind::NotFound) {
            problem = "its table is no longer in the cache (`mcprl cache gc` removed it); `mcprl resume` makes it again".into();
        }
        Self { stage: stage.to_owned(), problem }
    }
}

/// All episodes of a run.
pub struct Episodes {
    pub tables: Vec<Arc<EpisodeTable>>,
    pub unavailable: Vec<Unavailable>,
    facets: Facets,
    text_bytes: Arc<AtomicUsize>,
}

type TableKey = (String, Digest, Vec<Digest>);
type ScenarioTables = HashMap<Digest, Arc<BTreeMap<String, Scenario>>>;

/// Keeps the tables of artifacts, which never change.
#[derive(Default)]
pub struct EpisodeCache {
    tables: Mutex<HashMap<TableKey, Arc<EpisodeTable>>>,
    scenarios: Mutex<ScenarioTables>,
    text_bytes: Arc<AtomicUsize>,
}

impl EpisodeCache {
    /// Reads what is new.
    pub fn episodes(&self, sources: Vec<EpisodeSource>) -> Episodes {
        let read = sources.into_par_iter().map(|source| match self.table(source) {
            Ok(table) => Either::Left(table),
            Err(problem) => Either::Right(problem),
        });
        let (tables, unavailable): (Vec<_>, Vec<_>) = read.partition_map(|result| result);
        let facets = Facets::new(&tables);
        Episodes { tables, unavailable, facets, text_bytes: Arc::clone(&self.text_bytes) }
    }

    fn table(&self, source: EpisodeSource) -> Result<Arc<EpisodeTable>, Unavailable> {
        let rewards = source.rewards.iter().map(|rewards| rewards.digest).collect();
        let key = (source.stage.clone(), source.digest, rewards);
        let known = self.tables.lock().get(&key).cloned();
        if let Some(table) = known.filter(|table| table.source == source) {
            return Ok(table);
        }
        let scenarios = self.scenarios(source.scenarios.as_ref());
        let table = EpisodeTable::read(source, scenarios);
        let table = Arc::new(table.map_err(|cause| Unavailable::new(&key.0, &cause))?);
        self.tables.lock().insert(key, Arc::clone(&table));
        Ok(table)
    }

    /// The scenarios of an artifact by id; none if it is gone.
    fn scenarios(&self, artifact: Option<&(Digest, PathBuf)>) -> Arc<BTreeMap<String, Scenario>> {
        let Some((digest, path)) = artifact else { return Arc::default() };
        let mut known = self.scenarios.lock();
        if let Some(found) = known.get(digest) {
            return Arc::clone(found);
        }
        let Ok(rows) = data::read::<Scenario>(path) else { return Arc::default() };
        let found: Arc<BTreeMap<_, _>> =
            Arc::new(rows.into_iter().map(|scenario| (scenario.id.clone(), scenario)).collect());
        known.insert(*digest, Arc::clone(&found));
        found
    }
}

/// The values that a filter can choose from, with their numbers of episodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Facets {
    stage: BTreeMap<String, usize>,
    split: BTreeMap<String, usize>,
    family: BTreeMap<String, usize>,
    policy: BTreeMap<String, usize>,
    end: BTreeMap<String, usize>,
    tool: BTreeMap<String, usize>,
    iterations: Option<(u32, u32)>,
}

impl Facets {
    fn new(tables: &[Arc<EpisodeTable>]) -> Self {
        // Most names are known, so a name is copied only if it is new.
        fn count(counts: &mut BTreeMap<String, usize>, name: &str) {
            match counts.get_mut(name) {
                Some(count) => *count += 1,
                None => _ = counts.insert(name.to_owned(), 1),
            }
        }
        let mut facets = Self::default();
        for table in tables {
            *facets.stage.entry(stage_name(&table.source.stage)).or_default() += table.episodes.len();
            if let Some(number) = table.iteration {
                let (low, high) = facets.iterations.unwrap_or((number, number));
                facets.iterations = Some((low.min(number), high.max(number)));
            }
            let mut policies: BTreeMap<String, usize> = BTreeMap::new();
            for IndexedEpisode { summary, .. } in &table.episodes {
                count(&mut facets.split, &summary.split);
                count(&mut facets.family, &summary.family);
                count(&mut facets.end, &summary.end);
                count(&mut policies, &summary.policy);
                for (place, tool) in summary.tools.iter().enumerate() {
                    if !summary.tools[..place].contains(tool) {
                        count(&mut facets.tool, tool);
                    }
                }
            }
            for (digest, number) in policies {
                *facets.policy.entry(table.policy_name(&digest)).or_default() += number;
            }
        }
        facets
    }
}

/// Which episodes to show. Absent fields accept all.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Filter {
    /// A stage, or one iteration of it, as `mcprl show` reads it.
    pub stage: Option<String>,
    pub iteration: Option<u32>,
    pub split: Option<String>,
    pub family: Option<String>,
    pub scenario: Option<String>,
    pub policy: Option<String>,
    pub end: Option<String>,
    pub tool: Option<String>,
    pub outcome: Option<OutcomeFilter>,
    /// What it teaches: `gradient`, or why it has no advantage, as [`NoSignal`] is written; several with commas.
    pub signal: Option<String>,
    pub least_reward: Option<f64>,
    pub most_reward: Option<f64>,
    /// A text in the conversation, in any case.
    pub text: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::EnumString)]
#[strum(serialize_all = "kebab-case")]
pub enum OutcomeFilter {
    Right,
    Wrong,
    /// The scenario has no known answer.
    Unknown,
    /// A call returned an error.
    ToolError,
    /// A call could not be parsed.
    ParseFailure,
    /// A person has labelled it.
    Labelled,
}

/// The order of a page; `None` is the run's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum SortBy {
    Reward,
    Advantage,
    Turns,
    Calls,
    #[strum(serialize = "errors")]
    ToolErrors,
    Family,
    Scenario,
    End,
}

/// A part of the filtered and sorted episodes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PageSpec {
    pub sort: Option<SortBy>,
    pub descending: bool,
    pub offset: usize,
    pub limit: usize,
}

/// Rows of a table of episodes.
#[derive(Debug, Serialize)]
pub struct Page<'e> {
    pub total: usize,
    pub matching: usize,
    /// Share of right episodes among the matching ones with a known answer.
    pub success: Option<f64>,
    /// Mean over the matching ones that have a reward.
    pub reward: Option<f64>,
    pub offset: usize,
    pub episodes: Vec<Value>,
    pub facets: &'e Facets,
    pub unavailable: &'e [Unavailable],
}

/// Longest text of an answer or task in a row, in characters.
pub const SHOWN: usize = 200;

impl Episodes {
    /// Reads the texts of all conversations, so that a later search need not.
    pub fn read_ahead(&self) {
        for table in &self.tables {
            // A search reports what is wrong.
            _ = table.texts(&self.text_bytes);
        }
    }

    /// The table of a stage.
    pub fn table(&self, stage: &str) -> Option<&Arc<EpisodeTable>> {
        self.tables.iter().find(|table| table.source.stage == stage)
    }

    /// Filters and sorts all episodes, and returns a part of them.
    ///
    /// # Errors
    /// If conversations cannot be read for a search.
    pub fn page(&self, filter: &Filter, spec: &PageSpec, labels: &[Label]) -> Result<Page<'_>, DataError> {
        let rows = self.rows(filter, spec, labels)?;
        let labelled = by_episode(labels);
        let episode = |(place, row): (u32, u32)| &self.tables[place as usize].episodes[row as usize];
        let (mut right, mut known, mut sum, mut judged) = (0_usize, 0_usize, 0.0, 0_usize);
        for row in &rows {
            let found = episode(*row);
            known += usize::from(found.summary.correct.is_some());
            right += usize::from(found.summary.correct == Some(true));
            judged += usize::from(found.reward.is_some());
            sum += found.reward.map_or(0.0, f64::from);
        }
        let mean = |sum: f64, of: usize| (of > 0).then(|| sum / of as f64);
        let shown = rows.iter().skip(spec.offset).take(spec.limit);
        let shown = shown.map(|(place, row)| {
            let table = &self.tables[*place as usize];
            let found = episode((*place, *row));
            let key = (table.source.stage.as_str(), found.summary.id.as_str());
            row_json(table, *row as usize, labelled.get(&key).copied())
        });
        Ok(Page {
            total: self.tables.iter().map(|table| table.episodes.len()).sum(),
            matching: rows.len(),
            success: mean(right as f64, known),
            reward: mean(sum, judged),
            offset: spec.offset,
            episodes: shown.collect(),
            facets: &self.facets,
            unavailable: &self.unavailable,
        })
    }

    /// All episodes that pass a filter, sorted: the place of the table, and the row in it.
    pub(super) fn rows(
        &self,
        filter: &Filter,
        order: &PageSpec,
        labels: &[Label],
    ) -> Result<Vec<(u32, u32)>, DataError> {
        let labelled = by_episode(labels);
        let mut rows: Vec<(u32, u32)> = Vec::new();
        for (place, table) in self.tables.iter().enumerate() {
            let matching = self.matching(table, filter, &labelled)?;
            rows.extend(matching.into_iter().map(|row| (place as u32, row)));
        }
        if let Some(sort) = order.sort {
            self.sort(&mut rows, sort, order.descending);
        }
        Ok(rows)
    }

    /// The rows of a table that pass a filter.
    fn matching(
        &self,
        table: &EpisodeTable,
        filter: &Filter,
        labelled: &HashMap<(&str, &str), &Label>,
    ) -> Result<Vec<u32>, DataError> {
        let is_stage = |name: &String| NodeName::parse(name).means(&table.source.stage);
        let is_iteration = |number: u32| table.iteration == Some(number);
        if !filter.stage.as_ref().is_none_or(is_stage) || !filter.iteration.is_none_or(is_iteration) {
            return Ok(Vec::new());
        }
        let is =
            |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        let reward_in = |found: &IndexedEpisode| {
            let reward = found.reward.map(f64::from);
            filter.least_reward.is_none_or(|least| reward.is_some_and(|reward| reward >= least))
                && filter.most_reward.is_none_or(|most| reward.is_some_and(|reward| reward <= most))
        };
        let passes = |found: &IndexedEpisode| {
            let summary = &found.summary;
            let outcome = filter.outcome.is_none_or(|outcome| match outcome {
                OutcomeFilter::Right => summary.correct == Some(true),
                OutcomeFilter::Wrong => summary.correct == Some(false),
                OutcomeFilter::Unknown => summary.correct.is_none(),
                OutcomeFilter::ToolError => summary.tool_errors > 0,
                OutcomeFilter::ParseFailure => summary.parse_failures > 0,
                OutcomeFilter::Labelled => labelled.contains_key(&(&table.source.stage, &summary.id)),
            });
            outcome
                && filter.signal.as_ref().is_none_or(|wanted| is_signal(wanted, found.advantage))
                && is(&filter.split, &summary.split)
                && is(&filter.family, &summary.family)
                && is(&filter.end, &summary.end)
                && is(&filter.scenario, &summary.scenario_id)
                && filter.tool.as_ref().is_none_or(|tool| summary.tools.contains(tool))
                && reward_in(found)
                && filter.policy.as_ref().is_none_or(|policy| {
                    *policy == summary.policy
                        || table.policy_name(&summary.policy).split(", ").any(|name| name == policy)
                })
        };
        let rows = table.episodes.iter().enumerate().filter(|(_, found)| passes(found));
        let mut rows: Vec<u32> = rows.map(|(row, _)| row as u32).collect();
        if let Some(wanted) = filter.text.as_deref().filter(|text| !text.is_empty() && !rows.is_empty()) {
            let texts = table.texts(&self.text_bytes)?;
            let wanted = lower_case(wanted);
            let finder = memmem::Finder::new(&wanted);
            let is_in = |row: &u32| finder.find(texts.get(*row as usize).as_bytes()).is_some();
            rows = rows.into_par_iter().filter(is_in).collect();
        }
        Ok(rows)
    }

    fn sort(&self, rows: &mut [(u32, u32)], sort: SortBy, descending: bool) {
        let episode = |(place, row): &(u32, u32)| &self.tables[*place as usize].episodes[*row as usize];
        let number = |row: &(u32, u32)| -> Option<f64> {
            let found = episode(row);
            Some(match sort {
                SortBy::Reward => f64::from(found.reward?),
                SortBy::Advantage => found.advantage?.unwrap_or(0.0),
                SortBy::Turns => f64::from(found.summary.turns),
                SortBy::Calls => f64::from(found.summary.calls),
                SortBy::ToolErrors => f64::from(found.summary.tool_errors),
                SortBy::Family | SortBy::Scenario | SortBy::End => return None,
            })
        };
        let text = |row: &(u32, u32)| -> &str {
            let summary = &episode(row).summary;
            match sort {
                SortBy::Family => &summary.family,
                SortBy::Scenario => &summary.scenario_id,
                _ => &summary.end,
            }
        };
        let directed = |order: Ordering| if descending { order.reverse() } else { order };
        if matches!(sort, SortBy::Family | SortBy::Scenario | SortBy::End) {
            return sort_by_key(rows, text, |a, b| directed(a.cmp(b)));
        }
        sort_by_key(rows, number, |a, b| match (a, b) {
            (Some(a), Some(b)) => directed(a.total_cmp(b)),
            // Without a value comes last in both directions.
            (a, b) => b.is_some().cmp(&a.is_some()),
        });
    }
}

fn by_episode(labels: &[Label]) -> HashMap<(&str, &str), &Label> {
    labels.iter().map(|label| ((label.stage.as_str(), label.trajectory_id.as_str()), label)).collect()
}

/// Whether an episode is one of these: `gradient`, `zero_variance`.
fn is_signal(wanted: &str, advantage: Option<Advantage>) -> bool {
    let Some(advantage) = advantage else { return false };
    let name = match advantage {
        Ok(_) => Value::from("gradient"),
        Err(reason) => serde_json::json!(reason),
    };
    wanted.split(',').any(|wanted| name == wanted)
}

/// Sorts by keys that are read once: an episode is large, and each comparison would fetch two of them. Equal keys keep their
/// order.
fn sort_by_key<T: Copy, K>(rows: &mut [T], key: impl Fn(&T) -> K, order: impl Fn(&K, &K) -> Ordering) {
    let mut keyed: Vec<(K, T)> = rows.iter().map(|row| (key(row), *row)).collect();
    keyed.sort_by(|(a, _), (b, _)| order(a, b));
    rows.iter_mut().zip(keyed).for_each(|(row, (_, sorted))| *row = sorted);
}

/// In lower case, letter by letter: a text and what is searched in it are treated alike.
fn lower_case(text: &str) -> String {
    if text.is_ascii() {
        text.to_ascii_lowercase()
    } else {
        text.chars().flat_map(char::to_lowercase).collect()
    }
}

/// An episode as a row for the page.
pub fn row_json(table: &EpisodeTable, place: usize, label: Option<&Label>) -> Value {
    let found = &table.episodes[place];
    let row = &found.summary;
    serde_json::json!({
        "id": row.id,
        "row": place,
        "stage": table.source.stage,
        "iteration": table.iteration,
        "scenario": row.scenario_id,
        "task": table.scenarios.get(&row.scenario_id).map(|scenario| start_of(&scenario.task, SHOWN)),
        "family": row.family,
        "split": row.split,
        "sample": row.sample,
        "policy": table.policy_name(&row.policy),
        "turns": row.turns,
        "calls": row.calls,
        "tools": row.tools,
        "tool_errors": row.tool_errors,
        "parse_failures": row.parse_failures,
        "end": row.end,
        "answer": row.answer.as_deref().map(|answer| start_of(answer, SHOWN)),
        "correct": row.correct,
        "reward": found.reward,
        "advantage": found.advantage.and_then(Result::ok),
        "no_signal": found.advantage.and_then(Result::err),
        "label": label.map(|label| serde_json::json!({ "right": label.right, "note": label.note })),
    })
}

/// The rewards of one episode by all its judges.
pub fn rewards_of(table: &EpisodeTable, id: &str) -> Vec<(String, Reward)> {
    let of = |source: &RewardSource| {
        let values = data::read::<RewardValue>(&source.path).ok()?;
        let row = values.iter().position(|reward| reward.trajectory_id == id)?;
        let reward = data::read_part::<Reward>(&source.path, Some(&[row])).ok()?.pop()?;
        Some((source.stage.clone(), reward))
    };
    table.source.rewards.iter().filter_map(of).collect()
}
