//! What the page can show: the runs of one or several caches, and what is kept of them in memory.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::Hash,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

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
    report::answer::{Answer, answer},
    store::Store,
    view::{
        Missing, Run,
        episodes::{EpisodeCache, Episodes, sources},
        exam::{Pair, exam},
        plan_of, tokens,
    },
};

/// The plan of a run; made once, since the request of a run does not change. None while it is made.
type Plans = HashMap<String, Option<Arc<Planned>>>;

/// What was read of runs, each with the length of the journal at that time.
type AsOf<K, T> = Mutex<HashMap<K, (u64, Arc<T>)>>;

/// The scenarios of a comparison, or why they cannot be read.
pub(super) type Pairs = Result<Vec<Pair>, Missing>;

fn known<K: Eq + Hash, T>(kept: &AsOf<K, T>, key: &K, journal_bytes: u64) -> Option<Arc<T>> {
    let kept = kept.lock();
    kept.get(key).filter(|(bytes, _)| *bytes == journal_bytes).map(|(_, known)| Arc::clone(known))
}

/// For how long the parts of a view are of one reading of the run. Artifacts may be removed at any time.
const OPENED: Duration = Duration::from_secs(2);

/// For how long a request waits for a plan: it is there at once, unless a file that the run file names is large.
const PLANNED: Duration = Duration::from_millis(150);

/// A run that was read.
struct Opened {
    /// Bytes of its journal, and whether it was running.
    stamp: (u64, bool),
    at: Instant,
    run: Arc<Run>,
}

/// The runs that the page shows.
pub struct Site {
    /// Each with the option that names it to a command: ` --cache FOLDER`, or nothing.
    stores: Vec<(Store, String)>,
    /// The runs that were asked for, with their stores.
    pub(super) chosen: Vec<String>,
    episodes: EpisodeCache,
    loaded: AsOf<String, Episodes>,
    /// By run and stage.
    pairs: AsOf<(String, String), Pairs>,
    /// By run, each with its stamp at that time.
    answers: Mutex<HashMap<String, (String, Arc<Answer>)>>,
    opened: Mutex<HashMap<String, Opened>>,
    /// With a signal for each that is made.
    plans: Arc<(Mutex<Plans>, Condvar)>,
    vocabularies: Mutex<HashMap<Digest, Arc<Vocabulary>>>,
}

impl Site {
    /// The runs of these caches, each with the option that names it to a command. The page opens with the chosen runs.
    pub fn new(stores: Vec<(Store, String)>, chosen: Vec<String>) -> Self {
        Self {
            stores,
            chosen,
            episodes: EpisodeCache::default(),
            loaded: Mutex::default(),
            pairs: Mutex::default(),
            answers: Mutex::default(),
            opened: Mutex::default(),
            plans: Arc::default(),
            vocabularies: Mutex::default(),
        }
    }

    /// All runs, oldest first.
    pub(super) fn runs(&self) -> Vec<RunHistory> {
        let mut runs: Vec<RunHistory> =
            self.stores.iter().flat_map(|(store, _)| history::runs(store)).flatten().collect();
        runs.sort_by_key(|run| run.began_ms);
        runs
    }

    /// The run that the page opens with, the last of the chosen ones or else the newest, and those laid over it.
    pub(super) fn first(&self) -> Option<(String, Vec<String>)> {
        match self.chosen.split_last() {
            Some((run, others)) => Some((run.clone(), others.to_vec())),
            None => Some((self.runs().pop()?.id, Vec::new())),
        }
    }

    /// The cache with this run.
    ///
    /// # Errors
    /// If no cache has it.
    pub(super) fn store(&self, run: &str) -> Result<&Store, WebError> {
        self.shared(run).map(|(store, _)| store)
    }

    fn shared(&self, run: &str) -> Result<&(Store, String), WebError> {
        let mut stores = self.stores.iter();
        let found = stores.find(|(store, _)| folder::existing(store, run).is_ok());
        found.ok_or_else(|| WebError::NotFound(format!("there is no run \"{run}\" in the cache any more")))
    }

    /// Differs whenever a run has changed.
    pub(super) fn stamp(&self, run: &str) -> String {
        let Ok(store) = self.store(run) else { return "gone".into() };
        let is_planned = self.plans.0.lock().get(run).is_some_and(Option::is_some);
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
        let episodes = Arc::new(self.episodes.episodes(sources(&*self.run(run)?)));
        // What cannot be read now may be there later.
        if episodes.unavailable.is_empty() {
            self.loaded.lock().insert(key, (journal_bytes, Arc::clone(&episodes)));
        }
        Ok(episodes)
    }

    /// A run as the views read it, without the stages that have not begun.
    pub(super) fn run(&self, run: &str) -> Result<Arc<Run>> {
        let store = self.store(run)?;
        let stamp = (journal_bytes(store, run), is_live(store, run));
        // Held while it is read: a view asks for several of its parts at once.
        let mut opened = self.opened.lock();
        if let Some(Opened { stamp: known, at, run }) = opened.get(run)
            && (*known, at.elapsed() < OPENED) == (stamp, true)
        {
            return Ok(Arc::clone(run));
        }
        let found = Arc::new(Run::open(store, run)?);
        let now = Opened { stamp, at: Instant::now(), run: Arc::clone(&found) };
        opened.retain(|_, other| other.at.elapsed() < OPENED);
        opened.insert(run.to_owned(), now);
        Ok(found)
    }

    /// The plan of a run; none if it takes long to make, and until it is there.
    pub(super) fn planned(&self, run: &str) -> Option<Arc<Planned>> {
        let (plans, made) = &*self.plans;
        if !plans.lock().contains_key(run) {
            let (store, as_now) = (self.store(run).ok()?.clone(), Run::clone(&*self.run(run).ok()?));
            if let Entry::Vacant(entry) = plans.lock().entry(run.to_owned()) {
                entry.insert(None);
                let (run, plans) = (run.to_owned(), Arc::clone(&self.plans));
                // It may compute digests of large files.
                std::thread::spawn(move || {
                    let plan = plan_of(&store, &run);
                    let planned = Arc::new(Planned::new(plan.as_ref(), as_now));
                    plans.0.lock().insert(run.clone(), Some(Arc::clone(&planned)));
                    plans.1.notify_all();
                    if let Some(plan) = plan {
                        let estimated = Arc::new(planned.estimated(&plan, &store));
                        plans.0.lock().insert(run, Some(estimated));
                    }
                });
            }
        }
        let mut known = plans.lock();
        made.wait_while_for(&mut known, |plans| plans.get(run).is_some_and(Option::is_none), PLANNED);
        known.get(run).cloned().flatten()
    }

    /// What a run comes down to.
    pub(super) fn answer(&self, run: &str) -> Result<Arc<Answer>> {
        let planned = self.planned(run);
        let stamp = self.stamp(run);
        if let Some((known, answer)) = self.answers.lock().get(run)
            && *known == stamp
        {
            return Ok(Arc::clone(answer));
        }
        let (_, cache_option) = self.shared(run)?;
        let mut shown = Run::clone(&*self.run(run)?);
        if let Some(planned) = planned {
            planned.complete(&mut shown);
        }
        let answer = Arc::new(answer(&shown, cache_option));
        self.answers.lock().insert(run.to_owned(), (stamp, Arc::clone(&answer)));
        Ok(answer)
    }

    /// The scenarios of a comparison of policies, or why they cannot be shown.
    pub(super) fn pairs(&self, run: &str, stage: &str) -> Result<Arc<Pairs>> {
        let key = (run.to_owned(), stage.to_owned());
        let journal_bytes = journal_bytes(self.store(run)?, run);
        if let Some(known) = known(&self.pairs, &key, journal_bytes) {
            return Ok(known);
        }
        let as_now = self.run(run)?;
        let none = |why: String| WebError::NotFound(format!("the comparison of stage \"{stage}\": {why}"));
        let found = as_now.stage(stage).ok_or_else(|| none("there is no such stage".into()))?;
        let exam = exam(found).map_err(|missing| none(missing.to_string()))?;
        let pairs = Arc::new(exam.pairs(&as_now));
        // Without its episodes it may be read again.
        if pairs.is_ok() {
            self.pairs.lock().insert(key, (journal_bytes, Arc::clone(&pairs)));
        }
        Ok(pairs)
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
