//! Sweeping while runs are active, verifying, and copying between stores.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

impl Place {
    /// Publishes and records one result under a key named after it.
    fn result(&self, text: &str) -> (Digest, Digest) {
        let artifact = self.published(&[("a", text)]);
        let record = ActionRecord { key: Digest::of(text.as_bytes()), ..self.record(artifact) };
        self.store.commit(&record).unwrap();
        (record.key, artifact)
    }

    fn sweep(&self, keep: &[Digest], asked: &[Digest]) -> GcReport {
        let garbage = self.store.garbage(&keys(keep), Vec::new(), Duration::ZERO).unwrap();
        self.store.sweep(garbage, &|_| keys(asked)).unwrap()
    }

    fn hits(&self, key: &Digest) -> bool {
        matches!(self.store.lookup(key), Lookup::Hit(_))
    }

    fn journal(&self, run: &str, text: &str) {
        let folder = self.store.runs().join(run);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("journal.jsonl"), text).unwrap();
    }
}

fn keys(keys: &[Digest]) -> LiveSet {
    LiveSet { keys: keys.iter().copied().collect(), ..LiveSet::default() }
}

fn grow_old(path: &std::path::Path) {
    let file = std::fs::File::open(path).unwrap();
    file.set_modified(SystemTime::now() - 2 * HOUR).unwrap();
}

#[test]
fn what_a_kept_run_names_stays_and_the_rest_goes() {
    let place = place();
    let (kept, _) = place.result("kept");
    let (gone, artifact) = place.result("gone");
    let swept = place.sweep(&[kept], &[]);
    assert_eq!((swept.records, swept.artifacts, swept.bytes, swept.spared), (1, 1, 4, 0));
    assert!(place.hits(&kept) && !place.hits(&gone));
    assert!(!place.store.artifact(&artifact).with_extension("seal").exists());
}

#[test]
fn what_a_kept_result_was_made_from_stays() {
    let place = place();
    let (_, input) = place.result("input");
    let record = ActionRecord {
        key: Digest::of(b"reader"),
        fields: json!({ "inputs": { "from": [{ "name": "from", "digest": input }] } }),
        ..place.record(place.published(&[("a", "output")]))
    };
    place.store.commit(&record).unwrap();
    place.sweep(&[record.key], &[]);
    assert!(place.store.inspect(&input).is_intact());
}

#[test]
fn looking_for_garbage_removes_nothing() {
    let place = place();
    let (key, _) = place.result("gone");
    let garbage = place.store.garbage(&LiveSet::default(), Vec::new(), Duration::ZERO).unwrap();
    assert_eq!(garbage.swept().records, 1);
    drop(garbage);
    assert!(place.hits(&key));
}

#[test]
fn what_is_young_stays_within_the_grace_window() {
    let place = place();
    let (young, _) = place.result("young");
    let (old, artifact) = place.result("old");
    grow_old(&place.store.root().join("ac").join(format!("{old}.json")));
    grow_old(&place.store.artifact(&artifact).with_extension("seal"));
    let garbage = place.store.garbage(&LiveSet::default(), Vec::new(), HOUR).unwrap();
    place.store.sweep(garbage, &|_| LiveSet::default()).unwrap();
    assert!(place.hits(&young) && !place.hits(&old));
}

#[test]
fn beside_a_run_at_work_what_is_new_stays_whatever_the_grace() {
    let place = place();
    let _at_work = place.store.attend("run").unwrap();
    // Published but not yet recorded: no key leads to it.
    let orphan = place.published(&[("a", "orphan")]);
    let (key, _) = place.result("result");
    place.sweep(&[], &[]);
    assert!(place.store.inspect(&orphan).is_intact());
    assert!(place.hits(&key));
}

#[test]
fn a_result_that_a_run_came_to_meanwhile_is_left_alone() {
    let place = place();
    let (asked, _) = place.result("asked");
    let (other, _) = place.result("other");
    let swept = place.sweep(&[], &[asked]);
    assert_eq!((swept.records, swept.artifacts, swept.spared), (1, 1, 2));
    assert!(place.hits(&asked) && !place.hits(&other));
}

#[test]
fn an_artifact_published_again_meanwhile_is_left_alone() {
    let place = place();
    let (_, artifact) = place.result("text");
    let garbage = place.store.garbage(&LiveSet::default(), Vec::new(), Duration::ZERO).unwrap();
    place.published(&[("a", "text")]);
    place.store.sweep(garbage, &|_| LiveSet::default()).unwrap();
    assert!(place.store.inspect(&artifact).is_intact());
}

#[test]
fn one_who_publishes_in_the_middle_of_a_sweep_waits_for_its_end() {
    let place = place();
    let (_, artifact) = place.result("text");
    let garbage = place.store.garbage(&LiveSet::default(), Vec::new(), Duration::ZERO).unwrap();
    std::thread::scope(|scope| {
        let (begin, began) = std::sync::mpsc::channel::<()>();
        let publishing = scope.spawn({
            let place = &place;
            move || {
                began.recv().unwrap();
                place.published(&[("a", "text")])
            }
        });
        let asked = |_: &BTreeSet<String>| {
            begin.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(30));
            assert!(!publishing.is_finished());
            LiveSet::default()
        };
        place.store.sweep(garbage, &asked).unwrap();
    });
    assert!(place.store.inspect(&artifact).is_intact());
}

#[test]
fn a_run_that_was_gone_on_with_while_it_was_swept_stays_with_its_results() {
    let place = place();
    place.journal("old", "one\n");
    place.journal("forgotten", "one\n");
    let (key, _) = place.result("result");
    let runs = vec!["old".to_owned(), "forgotten".to_owned()];
    let garbage = place.store.garbage(&LiveSet::default(), runs, Duration::ZERO).unwrap();
    place.journal("old", "one\ntwo\n");
    let asked = |going: &BTreeSet<String>| {
        assert_eq!(going.iter().collect::<Vec<_>>(), ["forgotten"]);
        keys(&[key])
    };
    let swept = place.store.sweep(garbage, &asked).unwrap();
    assert_eq!(swept.runs, 1);
    assert!(place.store.runs().join("old").exists() && !place.store.runs().join("forgotten").exists());
    assert!(place.hits(&key));
}

#[test]
fn rows_of_a_kept_run_stay_and_old_ones_of_no_run_go() {
    let place = place();
    let (kept, gone) = (Digest::of(b"kept"), Digest::of(b"gone"));
    for key in [&kept, &gone] {
        place.store.rows(key, key).record("row", b"1").unwrap();
        grow_old(&place.store.root().join(format!("rows/{key}/{key}.log")));
    }
    place.sweep(&[kept], &[]);
    assert_eq!(place.store.rows(&kept, &kept).finished().unwrap().len(), 1);
    assert_eq!(place.store.rows(&gone, &gone).finished().unwrap().len(), 0);
}

#[test]
fn what_stayed_of_rows_goes_with_the_result_it_speaks_of() {
    let place = place();
    let (kept, _) = place.result("kept");
    let gone = Digest::of(b"gone");
    for key in [&kept, &gone] {
        place.store.rows(key, key).record("row", b"1").unwrap();
        place.store.rows(key, key).end(Remainder::Names).unwrap();
        grow_old(&place.store.root().join(format!("rows/{key}/{key}.done")));
    }
    place.sweep(&[kept], &[]);
    let left = |key: &Digest| place.store.rows(key, &Digest::of(b"new")).relatives().unwrap().finished.len();
    assert_eq!([left(&kept), left(&gone)], [1, 0]);
}

#[test]
fn verifying_sets_aside_what_is_damaged_and_its_result_is_a_miss() {
    let place = place();
    let (good, _) = place.result("good");
    let (bad, artifact) = place.result("bad");
    place.overwrite(&artifact, "a", "b@d");
    let torn = Digest::of(b"torn");
    std::fs::write(place.store.root().join("ac").join(format!("{torn}.json")), "{").unwrap();

    let checked = place.store.verify(&mut |_| {}).unwrap();
    assert_eq!((checked.artifacts, checked.records), (2, 3));
    let problem = "its bytes changed since it was written".to_owned();
    assert_eq!(checked.flaws, [Damage::Artifact { digest: artifact, problem }, Damage::Record { key: torn }]);
    assert_eq!(checked.incomplete, [bad]);
    assert!(place.hits(&good) && !place.hits(&bad));
    assert_eq!(place.store.lookup(&torn), Lookup::Miss);
    let aside = place.store.root().join("quarantine").join(artifact.to_string()).join("a");
    assert_eq!(std::fs::read_to_string(aside).unwrap(), "b@d");
    assert_eq!(place.store.verify(&mut |_| {}).unwrap().flaws, []);
}

#[test]
fn a_change_that_leaves_every_stamp_alone_is_found_by_verifying() {
    let place = place();
    let (_, artifact) = place.result("good");
    place.overwrite(&artifact, "a", "evil");
    // Simulates bits flipped by the disk: the seal fits the file as it is.
    place.store.seal(&artifact).unwrap();
    assert_eq!(place.store.inspect(&artifact), Condition::Sealed);
    assert_eq!(place.store.verify(&mut |_| {}).unwrap().flaws.len(), 1);
}

#[test]
fn a_result_copied_to_another_store_is_a_hit_there() {
    let (one, other) = (place(), place());
    let (key, _) = one.result("text");
    let copied = one.store.copy_into(&other.store, &[(key, None)]).unwrap();
    assert_eq!((copied.records, copied.artifacts, copied.bytes), (1, 1, 4));
    assert!(other.hits(&key));
    let again = one.store.copy_into(&other.store, &[(key, None)]).unwrap();
    assert_eq!((again.artifacts, again.present), (0, 1));
}

#[test]
fn damaged_bytes_do_not_travel() {
    let (one, other) = (place(), place());
    let (key, artifact) = one.result("text");
    one.overwrite(&artifact, "a", "tent");
    let refused = one.store.copy_into(&other.store, &[(key, None)]);
    assert!(matches!(refused, Err(StoreError::Corrupt { .. })));
    assert_eq!(other.store.artifacts(), []);
    assert!(!other.hits(&key));
}

#[test]
fn a_result_that_differs_on_the_other_side_stays_there() {
    let (one, other) = (place(), place());
    let key = Digest::of(b"key");
    one.store.commit(&one.record(one.published(&[("a", "1")]))).unwrap();
    let theirs = other.record(other.published(&[("a", "2")]));
    other.store.commit(&theirs).unwrap();
    assert_eq!(one.store.copy_into(&other.store, &[(key, None)]).unwrap().differs, [key]);
    assert_eq!(other.store.record(&key), Some(theirs));
}

#[test]
fn a_run_keeps_what_it_came_to_also_when_another_result_stands_under_the_key() {
    let place = place();
    let (key, artifact) = place.result("first");
    place.store.withdraw(&key).unwrap();
    let record = ActionRecord { key, ..place.record(place.published(&[("a", "second")])) };
    place.store.commit(&record).unwrap();
    let needed = LiveSet { artifacts: BTreeSet::from([artifact]), ..keys(&[key]) };
    let garbage = place.store.garbage(&needed, Vec::new(), Duration::ZERO).unwrap();
    place.store.sweep(garbage, &|_| LiveSet::default()).unwrap();
    assert!(place.hits(&key) && place.store.inspect(&artifact).is_intact());
    // A run that has requested it in the meantime.
    let garbage = place.store.garbage(&keys(&[key]), Vec::new(), Duration::ZERO).unwrap();
    place.store.sweep(garbage, &|_| needed.clone()).unwrap();
    assert!(place.store.inspect(&artifact).is_intact());
}

#[test]
fn nothing_is_swept_while_a_record_that_is_needed_cannot_be_read() {
    let place = place();
    let (key, artifact) = place.result("torn");
    std::fs::write(place.store.record_path(&key), "{").unwrap();
    let refused = place.store.garbage(&keys(&[key]), Vec::new(), Duration::ZERO);
    assert!(matches!(refused, Err(StoreError::Unreadable { .. })));
    place.store.verify(&mut |_| {}).unwrap();
    place.sweep(&[key], &[]);
    assert_eq!(place.store.inspect(&artifact), Condition::Absent);
}

#[test]
fn verifying_makes_nothing_young() {
    let place = place();
    let (_, artifact) = place.result("old");
    grow_old(&place.store.seal_path(&artifact));
    place.store.verify(&mut |_| {}).unwrap();
    let garbage = place.store.garbage(&LiveSet::default(), Vec::new(), HOUR).unwrap();
    assert_eq!(garbage.swept().artifacts, 0, "its record is young");
    std::fs::remove_file(place.store.record_path(&Digest::of(b"old"))).unwrap();
    let garbage = place.store.garbage(&LiveSet::default(), Vec::new(), HOUR).unwrap();
    assert_eq!(garbage.swept().artifacts, 1);
}

#[test]
fn verifying_beside_a_sweep_goes_on_without_what_was_taken() {
    let place = place();
    let (one, _) = place.result("one");
    let (other, artifact) = place.result("other");
    place.overwrite(&artifact, "a", "0ther");
    let last = *[one, other].iter().max().unwrap();
    let mut left = 2;
    let checked = place.store.verify(&mut |_| {
        left -= 1;
        if left == 0 {
            place.sweep(&[last], &[]);
            std::fs::remove_dir_all(place.store.root().join("cas")).unwrap();
        }
    });
    assert_eq!(checked.unwrap().records, 1);
}

#[test]
fn an_artifact_that_an_import_finds_in_its_place_is_left_alone_by_a_sweep() {
    let (one, other) = (place(), place());
    let (key, artifact) = one.result("text");
    other.result("text");
    let garbage = other.store.garbage(&LiveSet::default(), Vec::new(), Duration::ZERO).unwrap();
    assert_eq!(one.store.copy_into(&other.store, &[(key, None)]).unwrap().present, 1);
    other.store.sweep(garbage, &|_| LiveSet::default()).unwrap();
    assert!(other.store.inspect(&artifact).is_intact());
}
