//! What the page can show: the runs of one or several caches, and what is kept of them in memory.

use std::{collections::HashMap, hash::Hash, path::PathBuf, sync::Arc};

use parking_lot::Mutex;

use super::{WebError, overview::Planned};
use crate::{
    chat::Vocabulary,
    data::Label,
    error::Result,
    exec::{
        folder,
        history::{self, RunHistory},
        labels, progress_file, review,
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

/// The plan of a run; made once, since the request of a run does not change. None while it is made.
type Plans = HashMap<String, Option<Arc<Planned>>>;

/// What was read of runs, each with the length of the journal at that time.
type AsOf<K, T> = Mutex<HashMap<K, (u64, Arc<T>)>>;

fn known<K: Eq + Hash, T>(kept: &AsOf<K, T>, key: &K, journal_bytes: u64) -> Option<Arc<T>> {
    let kept = kept.lock();
    kept.get(key).filter(|(bytes, _)| *bytes == journal_bytes).map(|(_, known)| Arc::clone(known))
}

/// The runs that the page shows.
pub struct Site {
    stores: Vec<Store>,
    /// The runs that were asked for, with their stores.
    pub(super) chosen: Vec<String>,
    episodes: EpisodeCache,
    loaded: AsOf<String, Episodes>,
    /// By run and stage.
    exams: AsOf<(String, String), Exam>,
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
        let mut runs: Vec<RunHistory> = self.stores.iter().flat_map(history::runs).flatten().collect();
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
        let is_planned = self.plans.lock().get(run).is_some_and(Option::is_some);
        format!("{}-{}-{is_planned}", journal_bytes(store, run), is_live(store, run))
    }

    /// How far the running stages of a run are.
    pub(super) fn progress(&self, run: &str) -> Vec<Progress> {
        let Ok(store) = self.store(run) else { return Vec::new() };
        let mut stages = progress_file::progress(store, run);
        // The file of a run that was killed stays.
        if !stages.is_empty() && !is_live(store, run) {
            stages.clear();
        }
        stages
    }

    /// The episodes of a run.
    pub(super) fn loaded(&self, run: &str) -> Result<Arc<Episodes>> {
        let store = self.store(run)?;
        let (key, journal_bytes) = (run.to_owned(), journal_bytes(store, run));
        if let Some(known) = known(&self.loaded, &key, journal_bytes) {
            return Ok(known);
        }
        let episodes = Arc::new(self.episodes.episodes(sources(&self.run(run)?)));
        // What cannot be read now may be there later.
        if episodes.unavailable.is_empty() {
            self.loaded.lock().insert(key, (journal_bytes, Arc::clone(&episodes)));
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
        if let Some(known) = known(&self.exams, &key, journal_bytes) {
            return Ok(known);
        }
        let as_now = self.run(run)?;
        let none = |why: String| WebError::NotFound(format!("the comparison of stage \"{stage}\": {why}"));
        let found = as_now.stage(stage).ok_or_else(|| none("there is no such stage".into()))?;
        let exam = Arc::new(exam(&as_now, found).map_err(|missing| none(missing.to_string()))?);
        // Without its episodes it may be read again.
        if exam.pairs.is_ok() {
            self.exams.lock().insert(key, (journal_bytes, Arc::clone(&exam)));
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
        if !folder.join("tokenizer.json").is_file() {
            let gone = "the model with the tokenizer is no longer in the cache, so tokens have numbers only";
            return Err(gone.to_owned());
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

    pub(super) fn labels(&self, run: &str) -> Result<Vec<Label>> {
        Ok(labels::read(self.store(run)?, run)?)
    }
}

fn is_live(store: &Store, run: &str) -> bool {
    store.live_runs().iter().any(|live| live == run)
}

fn journal_bytes(store: &Store, run: &str) -> u64 {
    let journal = store.runs().join(run).join("journal.jsonl");
    std::fs::metadata(journal).map_or(0, |metadata| metadata.len())
}
