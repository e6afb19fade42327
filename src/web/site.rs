//! What the page can show: the runs of one or several caches, and what is kept of them in memory.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::Arc,
};

use parking_lot::Mutex;

use super::{WebError, overview::Planned};
use crate::{
    chat::Vocabulary,
    data::{Label, Scenario},
    error::Result,
    exec::{
        folder,
        history::{self, RunHistory},
        labels, progress_file,
        review::{self, Decision, RecordedDecision},
    },
    hash::Digest,
    progress::Progress,
    store::Store,
    view::{
        Run,
        episodes::{EpisodeCache, Episodes, sources},
        exam::{Exam, exam},
        tokens,
    },
};

/// The episodes of a run when its journal had this length.
struct Loaded {
    journal_bytes: u64,
    episodes: Arc<Episodes>,
}

/// The plan of a run; made once, since the request of a run does not change. None while it is made.
type Plans = HashMap<String, Option<Arc<Planned>>>;

/// Comparisons by run and stage, each with the length of the journal when it was read.
type Exams = HashMap<(String, String), (u64, Arc<Exam>)>;

/// The runs that the page shows.
pub struct Site {
    stores: Vec<Store>,
    /// The runs that were asked for, with their stores.
    pub(super) chosen: Vec<String>,
    episodes: EpisodeCache,
    loaded: Mutex<HashMap<String, Loaded>>,
    exams: Mutex<Exams>,
    plans: Arc<Mutex<Plans>>,
    vocabularies: Mutex<HashMap<Digest, Arc<Vocabulary>>>,
}

impl Site {
    /// The runs of these caches. The page opens with the chosen runs.
    pub fn new(stores: Vec<Store>, chosen: Vec<String>) -> Self {
        Self {
            stores,
            chosen,
            episodes: EpisodeCache::default(),
            loaded: Mutex::default(),
            exams: Mutex::default(),
            plans: Arc::default(),
            vocabularies: Mutex::default(),
        }
    }

    /// All runs, oldest first.
    pub(super) fn runs(&self) -> Vec<RunHistory> {
        let mut runs: Vec<RunHistory> = self.stores.iter().flat_map(history::runs).collect();
        runs.sort_by_key(|run| run.began_ms);
        runs
    }

    /// The cache with this run.
    ///
    /// # Errors
    /// If no cache has it.
    pub(super) fn store(&self, run: &str) -> Result<&Store, WebError> {
        let mut stores = self.stores.iter();
        let found = stores.find(|store| folder::existing(store, run).is_ok());
        found.ok_or_else(|| WebError::NotFound(format!("there is no run \"{run}\" in the cache any more")))
    }

    /// Differs whenever a run has changed.
    pub(super) fn stamp(&self, run: &str) -> String {
        let Ok(store) = self.store(run) else { return "gone".into() };
        let is_live = store.live_runs().iter().any(|live| live == run);
        let plans = self.plans.lock();
        let is_planned = plans.get(run).is_some_and(Option::is_some);
        format!("{}-{is_live}-{is_planned}", journal_bytes(store, run))
    }

    /// How far the running stages of a run are.
    pub(super) fn progress(&self, run: &str) -> Vec<Progress> {
        let Ok(store) = self.store(run) else { return Vec::new() };
        // The file of a run that was killed stays.
        let is_live = || store.live_runs().iter().any(|live| live == run);
        Some(progress_file::progress(store, run))
            .filter(|stages| !stages.is_empty() && is_live())
            .unwrap_or_default()
    }

    /// The episodes of a run.
    pub(super) fn loaded(&self, run: &str) -> Result<Arc<Episodes>> {
        let store = self.store(run)?;
        let journal_bytes = journal_bytes(store, run);
        {
            let known = self.loaded.lock();
            if let Some(known) = known.get(run).filter(|known| known.journal_bytes == journal_bytes) {
                return Ok(Arc::clone(&known.episodes));
            }
        }
        let episodes = Arc::new(self.episodes.episodes(sources(&self.run(run)?)));
        // What cannot be read now may be there later.
        if episodes.unavailable.is_empty() {
            let loaded = Loaded { journal_bytes, episodes: Arc::clone(&episodes) };
            self.loaded.lock().insert(run.to_owned(), loaded);
        }
        Ok(episodes)
    }

    /// A run as the views read it, without the stages that have not begun.
    pub(super) fn run(&self, run: &str) -> Result<Run> {
        Run::open(self.store(run)?, run)
    }

    /// The plan of a run; none while it is made.
    pub(super) fn planned(&self, run: &str) -> Option<Arc<Planned>> {
        let mut plans = self.plans.lock();
        if let Some(known) = plans.get(run) {
            return known.clone();
        }
        plans.insert(run.to_owned(), None);
        let (store, as_now) = (self.store(run).ok()?.clone(), self.run(run).ok()?);
        let (run, plans) = (run.to_owned(), Arc::clone(&self.plans));
        // It may compute digests of large files.
        std::thread::spawn(move || {
            let planned = Arc::new(Planned::new(&store, as_now));
            plans.lock().insert(run, Some(planned));
        });
        None
    }

    /// A comparison of policies.
    pub(super) fn exam(&self, run: &str, stage: &str) -> Result<Arc<Exam>> {
        let key = (run.to_owned(), stage.to_owned());
        let journal_bytes = journal_bytes(self.store(run)?, run);
        let known = self.exams.lock().get(&key).cloned();
        if let Some((_, exam)) = known.filter(|(bytes, _)| *bytes == journal_bytes) {
            return Ok(exam);
        }
        let as_now = self.run(run)?;
        let none = |why: String| WebError::NotFound(format!("the comparison of stage \"{stage}\": {why}"));
        let found = as_now.stage(stage).ok_or_else(|| none("there is no such stage".into()))?;
        let exam = Arc::new(exam(&as_now, found).map_err(|missing| none(missing.to_string()))?);
        // Without its episodes it may be read again.
        if exam.pairs.is_ok() {
            let mut exams = self.exams.lock();
            exams.insert(key, (journal_bytes, Arc::clone(&exam)));
        }
        Ok(exam)
    }

    /// The tokenizer of a policy, and why there is none.
    pub(super) fn vocabulary(&self, store: &Store, policy: &str) -> Result<Arc<Vocabulary>, String> {
        let Some((digest, folder)) = tokens::tokenizer_folder(store, policy) else {
            return Err("the policy that sampled the episode is not known".into());
        };
        let mut known = self.vocabularies.lock();
        if let Some(found) = known.get(&digest) {
            return Ok(Arc::clone(found));
        }
        let gone = || {
            "the model with the tokenizer is no longer in the cache, so tokens have numbers only".to_owned()
        };
        if !folder.join("tokenizer.json").is_file() {
            return Err(gone());
        }
        let vocabulary = Vocabulary::of(&folder).map_err(|cause| cause.to_string())?;
        let vocabulary = Arc::new(vocabulary);
        known.insert(digest, Arc::clone(&vocabulary));
        Ok(vocabulary)
    }

    /// The file of decisions about a run's tasks.
    pub(super) fn review_path(&self, run: &str) -> Result<PathBuf, WebError> {
        Ok(review::path(self.store(run)?, run))
    }

    pub(super) fn decide(
        &self,
        run: &str,
        task: &Scenario,
        decision: Option<Decision>,
    ) -> Result<BTreeMap<String, RecordedDecision>> {
        Ok(review::set(&self.review_path(run)?, task, decision)?)
    }

    pub(super) fn labels(&self, run: &str) -> Result<Vec<Label>> {
        Ok(labels::read(self.store(run)?, run)?)
    }

    pub(super) fn set_label(&self, run: &str, label: Label) -> Result<Vec<Label>> {
        labels::set(self.store(run)?, run, label)
    }
}

fn journal_bytes(store: &Store, run: &str) -> u64 {
    let journal = store.runs().join(run).join("journal.jsonl");
    std::fs::metadata(journal).map_or(0, |metadata| metadata.len())
}
