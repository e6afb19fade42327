//! What people say about the episodes of a run: `labels/<run>.parquet` in the store, beside `runs/`.
//!
//! Labels are work of people, so no sweep removes them, not even with their run. Several pages may change them at once.

use std::{fs::File, path::PathBuf};

use crate::{
    data::{self, DataError, Label},
    error::Result,
    store::{FileLock, Store, StoreError, aside},
};

/// The file with the labels of a run, whether or not it exists.
pub fn path(store: &Store, run: &str) -> PathBuf {
    store.root().join("labels").join(format!("{run}.parquet"))
}

/// The labels of a run, in the order in which they were first given.
///
/// # Errors
/// If the file exists and is not a table of labels.
pub fn read(store: &Store, run: &str) -> Result<Vec<Label>, DataError> {
    let path = path(store, run);
    if path.exists() { data::read(&path) } else { Ok(Vec::new()) }
}

/// Changes the label of an episode, which is `blank` if it has none; one that says nothing is removed. Returns all labels of the run,
/// and this one.
pub fn change(
    store: &Store,
    run: &str,
    blank: Label,
    change: impl FnOnce(&mut Label),
) -> Result<(Vec<Label>, Option<Label>)> {
    let path = path(store, run);
    let writing = |cause| StoreError::writing(&path, cause);
    let folder = path.parent().unwrap_or(store.root());
    std::fs::create_dir_all(folder).map_err(writing)?;
    let _lock = FileLock::take(folder, run);
    let mut labels = read(store, run)?;
    let is_same = |other: &Label| other.trajectory_id == blank.trajectory_id && other.stage == blank.stage;
    let place = labels.iter().position(is_same);
    let mut label = place.map_or(blank, |place| labels[place].clone());
    change(&mut label);
    let label = Some(label).filter(|label| label.right.is_some() || label.note.is_some());
    match (place, label.clone()) {
        (Some(place), Some(label)) => labels[place] = label,
        (Some(place), None) => _ = labels.remove(place),
        (None, Some(label)) => labels.push(label),
        (None, None) => return Ok((labels, None)),
    }
    let staged = aside(folder).map_err(writing)?;
    let file = staged.path().join("labels.parquet");
    data::write(&file, &labels)?;
    File::open(&file).and_then(|file| file.sync_all()).map_err(writing)?;
    std::fs::rename(&file, &path).map_err(writing)?;
    Ok((labels, label))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(store: &Store, run: &str, label: Label) -> Result<Vec<Label>> {
        change(store, run, label.clone(), |stored| *stored = label).map(|(labels, _)| labels)
    }

    #[test]
    fn a_label_is_replaced_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let label = |id: &str, right, note: Option<&str>| Label {
            trajectory_id: id.into(),
            right,
            note: note.map(str::to_owned),
            ..Label::default()
        };
        assert_eq!(read(&store, "r").unwrap(), []);
        set(&store, "r", label("a", Some(true), None)).unwrap();
        set(&store, "r", label("b", None, Some("unclear"))).unwrap();
        set(&store, "r", label("a", Some(false), Some("rude"))).unwrap();
        let all = [label("a", Some(false), Some("rude")), label("b", None, Some("unclear"))];
        assert_eq!(read(&store, "r").unwrap(), all);
        assert_eq!(set(&store, "r", label("a", None, None)).unwrap(), all[1..]);
        assert_eq!(read(&store, "other").unwrap(), []);
    }

    #[test]
    fn pages_that_label_at_the_same_time_keep_each_others_labels() {
        let folder = tempfile::tempdir().unwrap();
        let label = |page: usize, number: usize| Label {
            trajectory_id: format!("{page}-{number}"),
            right: Some(true),
            ..Label::default()
        };
        std::thread::scope(|scope| {
            for page in 0..4 {
                let store = Store::open(folder.path()).unwrap();
                scope.spawn(move || {
                    for number in 0..8 {
                        set(&store, "r", label(page, number)).unwrap();
                    }
                });
            }
        });
        let store = Store::open(folder.path()).unwrap();
        assert_eq!(read(&store, "r").unwrap().len(), 32);
    }
}
