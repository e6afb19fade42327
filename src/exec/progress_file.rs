//! The progress of a run's stages in a file of its folder, for other processes: `mcprl watch` and the live page.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use parking_lot::Mutex;

use crate::{
    progress::{Progress, SharedProgress},
    store::Store,
};

const NAME: &str = "progress.json";
/// Time between two writes.
const INTERVAL: Duration = Duration::from_millis(500);

/// The progress of the running stages of a run, oldest first. Empty if none runs, or if the run was killed before it wrote any.
pub fn progress(store: &Store, run: &str) -> Vec<Progress> {
    let text = std::fs::read(store.runs().join(run).join(NAME)).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

type Stages = Arc<Mutex<Vec<Arc<SharedProgress>>>>;

/// Writes the progress of running stages to the run's folder from time to time. The file goes when this is dropped.
///
/// A run does not depend on it: if it cannot be written, nobody sees the progress.
pub struct ProgressFile {
    stages: Stages,
    path: PathBuf,
    writer: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

/// A stage whose progress is shown until this is dropped.
pub struct StageProgress {
    pub progress: Arc<SharedProgress>,
    stages: Stages,
}

impl ProgressFile {
    pub fn new(run: &Path) -> Self {
        let (stages, path) = (Stages::default(), run.join(NAME));
        let (stop, stopped) = mpsc::channel();
        let (of_writer, to) = (Arc::clone(&stages), path.clone());
        let write = move || {
            let mut written = Vec::new();
            while let Err(mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(INTERVAL) {
                let now: Vec<Progress> = of_writer.lock().iter().map(|stage| stage.get()).collect();
                if now != written && replace(&to, &now).is_ok() {
                    written = now;
                }
            }
        };
        let writer = std::thread::Builder::new().name("progress".into()).spawn(write).ok();
        Self { stages, path, writer: writer.map(|thread| (stop, thread)) }
    }

    pub fn begin(&self, stage: &str) -> StageProgress {
        let progress = SharedProgress::new(stage);
        self.stages.lock().push(Arc::clone(&progress));
        StageProgress { progress, stages: Arc::clone(&self.stages) }
    }
}

impl Drop for ProgressFile {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.writer.take() {
            drop(stop);
            // It ends within a write.
            _ = thread.join();
        }
        // Fails if nothing was written.
        _ = std::fs::remove_file(&self.path);
    }
}

impl Drop for StageProgress {
    fn drop(&mut self) {
        let mut stages = self.stages.lock();
        stages.retain(|other| !Arc::ptr_eq(other, &self.progress));
    }
}

/// Renamed into place, so that nobody reads a part of it.
fn replace(path: &Path, stages: &[Progress]) -> std::io::Result<()> {
    let new = path.with_extension("json.new");
    std::fs::write(&new, serde_json::to_vec(stages)?)?;
    std::fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Observer;

    #[test]
    fn others_read_what_a_stage_reports_until_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let run = store.runs().join("a");
        std::fs::create_dir_all(&run).unwrap();
        let file = ProgressFile::new(&run);
        let shown = file.begin("train[0001]/rollout");
        shown.progress.phase("episodes", 8);
        shown.progress.advance(3);
        let wait = |is_it: &dyn Fn(&[Progress]) -> bool| {
            let began = std::time::Instant::now();
            while !is_it(&progress(&store, "a")) {
                assert!(began.elapsed() < Duration::from_secs(30), "{:?}", progress(&store, "a"));
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        wait(&|stages| stages.len() == 1 && stages[0].phase.done == 3 && stages[0].phase.units == 8);
        drop(shown);
        wait(&|stages| stages.is_empty());
        drop(file);
        assert_eq!(std::fs::read_dir(&run).unwrap().count(), 0);
    }
}
