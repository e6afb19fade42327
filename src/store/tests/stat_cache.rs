//! Lookups through the stat cache detect the same changes as lookups that read the records.

use super::*;

/// A result that was looked up before, with the cache saved.
fn looked_at(files: &[(&str, &str)]) -> (Place, ActionRecord, Digest) {
    let place = place();
    let artifact = place.published(files);
    let record = place.record(artifact);
    place.store.commit(&record).unwrap();
    let mut stat_cache = place.store.stat_cache("run");
    assert!(stat_cache.lookup(&place.store, &record.key).is_ok());
    place.store.save_stat_cache("run", &stat_cache).unwrap();
    (place, record, artifact)
}

impl Place {
    fn known(&self, key: &Digest) -> Option<CachedResult> {
        let found = self.store.stat_cache("run").lookup(&self.store, key).ok();
        found.filter(|(_, unsealed)| unsealed.is_empty()).map(|(known, _)| known)
    }
}

#[test]
fn what_stands_as_it_stood_is_known_without_its_seal_being_read() {
    let (place, record, artifact) = looked_at(&[("a", "1"), ("b/c", "2")]);
    std::fs::remove_file(place.store.artifact(&artifact).with_extension("seal")).unwrap();
    assert_eq!(place.known(&record.key), Some(record.into()));
}

#[test]
fn a_record_that_was_withdrawn_or_replaced_is_read_again() {
    let (place, record, _) = looked_at(&[("a", "1")]);
    place.store.withdraw(&record.key).unwrap();
    assert_eq!(place.known(&record.key), None);
    let other = ActionRecord { metrics: BTreeMap::from([("loss".into(), 0.5)]), ..record };
    place.store.commit(&other).unwrap();
    assert_eq!(place.known(&other.key), Some(other.into()));
}

#[test]
fn a_withheld_record_is_not_known() {
    let (place, record, _) = looked_at(&[("a", "1")]);
    place.store.withdraw(&record.key).unwrap();
    place.store.commit(&ActionRecord { withheld: true, ..record.clone() }).unwrap();
    assert_eq!(place.known(&record.key), None);
}

#[test]
fn other_bytes_in_an_artifact_are_noticed() {
    let (place, record, artifact) = looked_at(&[("a", "whole"), ("b/c", "2")]);
    place.overwrite(&artifact, "a", "hole!");
    assert_eq!(place.known(&record.key), None);
}

#[test]
fn a_file_that_came_or_went_is_noticed() {
    for (file, come) in [("b/d", true), ("b/c", false)] {
        let (place, record, artifact) = looked_at(&[("a", "1"), ("b/c", "2")]);
        std::thread::sleep(std::time::Duration::from_millis(12));
        let path = place.store.artifact(&artifact).join(file);
        if come {
            std::fs::write(path, "3").unwrap()
        } else {
            std::fs::remove_file(path).unwrap()
        }
        assert_eq!(place.known(&record.key), None, "{file}");
    }
}

#[test]
fn a_look_that_can_not_be_read_is_no_look() {
    let (place, record, _) = looked_at(&[("a", "1")]);
    for text in ["", "{", "[]", "{\"00\":{}}"] {
        std::fs::write(place.store.root().join("ac/last/run.stat_cache"), text).unwrap();
        assert_eq!(place.known(&record.key), Some(record.clone().into()), "{text}");
    }
}

#[test]
fn a_look_forgets_what_was_not_asked_for() {
    let (place, record, _) = looked_at(&[("a", "1")]);
    let other = ActionRecord { key: Digest::of(b"other"), ..record.clone() };
    place.store.commit(&other).unwrap();
    let mut stat_cache = place.store.stat_cache("run");
    assert!(stat_cache.lookup(&place.store, &other.key).is_ok());
    place.store.save_stat_cache("run", &stat_cache).unwrap();
    let kept = std::fs::read_to_string(place.store.root().join("ac/last/run.stat_cache")).unwrap();
    assert!(kept.contains(&other.key.to_string()) && !kept.contains(&record.key.to_string()));
}
