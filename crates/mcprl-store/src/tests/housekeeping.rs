//! Sweeping while runs are active, verifying, and copying between stores.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

impl TestStore {
    /// Publishes and records one result under a key named after it.
    fn result(&self, text: &str) -> (Digest, Digest) {
        let artifact = self.published(&[("a", text)]);
        let record = ActionRecord { key: Digest::of(text.as_bytes()), ..self.record(artifact) };
        self.store.commit(&record).unwrap();
        (record.key, artifact)
    }

    fn sweep(&self, keep: &[Digest], requested: &[Digest]) -> GcReport {
        let garbage = self.store.garbage(&keys(keep), Vec::new(), Duration::ZERO).unwrap();
        self.store.sweep(garbage, &|_| Ok(keys(requested))).unwrap()
    }

    fn hits(&self, key: &Digest) -> bool {
        matches!(self.store.lookup(key), Lookup::Hit(_))
    }

    fn copy_to(&self, other: &Self, key: Digest) -> Result<CopyReport, StoreError> {
        let result = self.store.record(&key).unwrap().into();
        self.store.copy_into(&other.store, &[(key, &result)])
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
fn what_a_kept_run_references_stays_and_the_rest_is_removed() {
    let test = test();
    let (kept, _) = test.result("kept");
    let (gone, artifact) = test.result("gone");
    let swept = test.sweep(&[kept], &[]);
    assert_eq!((swept.records, swept.artifacts, swept.bytes, swept.spared), (1, 1, 4, 0));
    assert!(test.hits(&kept) && !test.hits(&gone));
    assert!(!test.store.artifact(&artifact).with_extension("seal").exists());
}

#[test]
fn inputs_of_a_kept_result_stay() {
    let test = test();
    let (_, input) = test.result("input");
    let record = ActionRecord {
        key: Digest::of(b"reader"),
        fields: json!({ "inputs": { "from": [{ "name": "from", "digest": input }] } }),
        ..test.record(test.published(&[("a", "output")]))
    };
    test.store.commit(&record).unwrap();
    test.sweep(&[record.key], &[]);
    assert!(test.store.inspect(&input).is_intact());
}

#[test]
fn a_scan_for_garbage_removes_nothing() {
    let test = test();
    let (key, _) = test.result("gone");
    let garbage = test.store.garbage(&LiveSet::default(), Vec::new(), Duration::ZERO).unwrap();
    assert_eq!(garbage.swept().records, 1);
    drop(garbage);
    assert!(test.hits(&key));
}

#[test]
fn young_results_stay_within_the_grace_window() {
    let test = test();
    let (young, _) = test.result("young");
    let (old, artifact) = test.result("old");
    grow_old(&test.store.root().join("ac").join(format!("{old}.json")));
    grow_old(&test.store.artifact(&artifact).with_extension("seal"));
    let garbage = test.store.garbage(&LiveSet::default(), Vec::new(), HOUR).unwrap();
    test.store.sweep(garbage, &|_| Ok(LiveSet::default())).unwrap();
    assert!(test.hits(&young) && !test.hits(&old));
}

#[test]
fn while_a_run_is_active_new_results_stay_without_a_grace_window() {
    let test = test();
    let _at_work = test.store.attend("run").unwrap();
    // Published but not yet recorded: no key leads to it.
    let orphan = test.published(&[("a", "orphan")]);
    let (key, _) = test.result("result");
    test.sweep(&[], &[]);
    assert!(test.store.inspect(&orphan).is_intact());
    assert!(test.hits(&key));
}

#[test]
fn a_result_requested_since_the_scan_is_kept() {
    let test = test();
    let (requested, _) = test.result("requested");
    let (other, _) = test.result("other");
    let swept = test.sweep(&[], &[requested]);
    assert_eq!((swept.records, swept.artifacts, swept.spared), (1, 1, 2));
    assert!(test.hits(&requested) && !test.hits(&other));
}

#[test]
fn an_artifact_published_again_since_the_scan_is_kept() {
    let test = test();
    let (_, artifact) = test.result("text");
    let garbage = test.store.garbage(&LiveSet::default(), Vec::new(), Duration::ZERO).unwrap();
    test.published(&[("a", "text")]);
    test.store.sweep(garbage, &|_| Ok(LiveSet::default())).unwrap();
    assert!(test.store.inspect(&artifact).is_intact());
}

#[test]
fn publishing_waits_for_the_end_of_a_sweep() {
    let test = test();
    let (_, artifact) = test.result("text");
    let garbage = test.store.garbage(&LiveSet::default(), Vec::new(), Duration::ZERO).unwrap();
    std::thread::scope(|scope| {
        let (begin, began) = std::sync::mpsc::channel::<()>();
        let publishing = scope.spawn({
            let test = &test;
            move || {
                began.recv().unwrap();
                test.published(&[("a", "text")])
            }
        });
        let requested = |_: &BTreeSet<String>| {
            begin.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(30));
            assert!(!publishing.is_finished());
            Ok(LiveSet::default())
        };
        test.store.sweep(garbage, &requested).unwrap();
    });
    assert!(test.store.inspect(&artifact).is_intact());
}

#[test]
fn a_run_resumed_since_the_scan_is_kept_with_its_results() {
    let test = test();
    test.journal("old", "one\n");
    test.journal("forgotten", "one\n");
    let (key, _) = test.result("result");
    let runs = vec!["old".to_owned(), "forgotten".to_owned()];
    let garbage = test.store.garbage(&LiveSet::default(), runs, Duration::ZERO).unwrap();
    test.journal("old", "one\ntwo\n");
    let requested = |removed: &BTreeSet<String>| {
        assert_eq!(removed.iter().collect::<Vec<_>>(), ["forgotten"]);
        Ok(keys(&[key]))
    };
    let swept = test.store.sweep(garbage, &requested).unwrap();
    assert_eq!(swept.runs, 1);
    assert!(test.store.runs().join("old").exists() && !test.store.runs().join("forgotten").exists());
    assert!(test.hits(&key));
}

#[test]
fn rows_of_a_kept_run_stay_and_old_unowned_rows_are_removed() {
    let test = test();
    let (kept, gone) = (Digest::of(b"kept"), Digest::of(b"gone"));
    for key in [&kept, &gone] {
        test.store.rows(key, key, 0).record("row", b"1").unwrap();
        grow_old(&test.store.root().join(format!("rows/{key}/{key}.log")));
    }
    test.sweep(&[kept], &[]);
    assert_eq!(test.store.rows(&kept, &kept, 0).finished().unwrap().len(), 1);
    assert_eq!(test.store.rows(&gone, &gone, 0).finished().unwrap().len(), 0);
}

#[test]
fn the_remainder_of_rows_is_removed_with_its_result() {
    let test = test();
    let (kept, _) = test.result("kept");
    let gone = Digest::of(b"gone");
    for key in [&kept, &gone] {
        test.store.rows(key, key, 0).record("row", b"1").unwrap();
        test.store.rows(key, key, 0).end(Remainder::Names).unwrap();
        grow_old(&test.store.root().join(format!("rows/{key}/{key}.done")));
    }
    test.sweep(&[kept], &[]);
    let left =
        |key: &Digest| test.store.rows(key, &Digest::of(b"new"), 0).relatives().unwrap().finished.len();
    assert_eq!([left(&kept), left(&gone)], [1, 0]);
}

#[test]
fn verify_quarantines_damage_and_its_result_is_a_miss() {
    let test = test();
    let (good, _) = test.result("good");
    let (bad, artifact) = test.result("bad");
    test.overwrite(&artifact, "a", "b@d");
    let torn = Digest::of(b"torn");
    std::fs::write(test.store.root().join("ac").join(format!("{torn}.json")), "{").unwrap();

    let checked = test.store.verify(&mut |_| {}).unwrap();
    assert_eq!((checked.artifacts, checked.records), (2, 3));
    let problem = "its bytes changed since it was written".to_owned();
    assert_eq!(checked.flaws, [Damage::Artifact { digest: artifact, problem }, Damage::Record { key: torn }]);
    assert_eq!(checked.incomplete, [bad]);
    assert!(test.hits(&good) && !test.hits(&bad));
    assert_eq!(test.store.lookup(&torn), Lookup::Miss);
    let aside = test.store.root().join("quarantine").join(artifact.to_string()).join("a");
    assert_eq!(std::fs::read_to_string(aside).unwrap(), "b@d");
    assert_eq!(test.store.verify(&mut |_| {}).unwrap().flaws, []);
}

#[test]
fn a_folder_in_place_of_a_record_is_set_aside() {
    let test = test();
    let (key, artifact) = test.result("one");
    let path = test.store.record_path(&key);
    let replace = || {
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir_all(path.join("inner")).unwrap();
    };
    let record = ActionRecord { key, ..test.record(artifact) };
    replace();
    let verified = test.store.verify(&mut |_| {}).unwrap();
    assert_eq!(verified.flaws, [Damage::Record { key }]);
    test.store.commit(&record).unwrap();
    replace();
    assert_eq!(test.store.commit(&record).unwrap(), Recorded::New);
    assert!(test.hits(&key));
}

#[test]
fn verify_detects_a_change_that_kept_every_stamp() {
    let test = test();
    let (_, artifact) = test.result("good");
    test.overwrite(&artifact, "a", "evil");
    // Simulates bits flipped by the disk: the seal fits the file as it is.
    test.store.seal(&artifact).unwrap();
    assert_eq!(test.store.inspect(&artifact), Condition::Sealed);
    assert_eq!(test.store.verify(&mut |_| {}).unwrap().flaws.len(), 1);
}

#[test]
fn a_result_copied_to_another_store_is_a_hit_there() {
    let (one, other) = (test(), test());
    let (key, _) = one.result("text");
    let copied = one.copy_to(&other, key).unwrap();
    assert_eq!((copied.records, copied.artifacts, copied.bytes), (1, 1, 4));
    assert!(other.hits(&key));
    let again = one.copy_to(&other, key).unwrap();
    assert_eq!((again.artifacts, again.present), (0, 1));
}

#[test]
fn damaged_bytes_are_not_copied() {
    let (one, other) = (test(), test());
    let (key, artifact) = one.result("text");
    one.overwrite(&artifact, "a", "tent");
    let refused = one.copy_to(&other, key);
    assert!(matches!(refused, Err(StoreError::Corrupt { .. })));
    assert_eq!(other.store.artifacts(), []);
    assert!(!other.hits(&key));
}

#[test]
fn a_differing_result_in_the_target_is_kept() {
    let (one, other) = (test(), test());
    let key = Digest::of(b"key");
    one.store.commit(&one.record(one.published(&[("a", "1")]))).unwrap();
    let theirs = other.record(other.published(&[("a", "2")]));
    other.store.commit(&theirs).unwrap();
    assert_eq!(one.copy_to(&other, key).unwrap().differs, [key]);
    assert_eq!(other.store.record(&key), Some(theirs));
}

#[test]
fn a_runs_own_result_is_kept_when_its_record_was_replaced() {
    let test = test();
    let (key, artifact) = test.result("first");
    test.store.withdraw(&key).unwrap();
    let record = ActionRecord { key, ..test.record(test.published(&[("a", "second")])) };
    test.store.commit(&record).unwrap();
    let needed = LiveSet { artifacts: BTreeSet::from([artifact]), ..keys(&[key]) };
    let garbage = test.store.garbage(&needed, Vec::new(), Duration::ZERO).unwrap();
    test.store.sweep(garbage, &|_| Ok(LiveSet::default())).unwrap();
    assert!(test.hits(&key) && test.store.inspect(&artifact).is_intact());
    // A run that has requested it in the meantime.
    let garbage = test.store.garbage(&keys(&[key]), Vec::new(), Duration::ZERO).unwrap();
    test.store.sweep(garbage, &|_| Ok(needed.clone())).unwrap();
    assert!(test.store.inspect(&artifact).is_intact());
}

#[test]
fn nothing_is_swept_while_a_needed_record_is_unreadable() {
    let test = test();
    let (key, artifact) = test.result("torn");
    std::fs::write(test.store.record_path(&key), "{").unwrap();
    let refused = test.store.garbage(&keys(&[key]), Vec::new(), Duration::ZERO);
    assert!(matches!(refused, Err(StoreError::Unreadable { .. })));
    test.store.verify(&mut |_| {}).unwrap();
    test.sweep(&[key], &[]);
    assert_eq!(test.store.inspect(&artifact), Condition::Absent);
}

#[test]
fn nothing_is_swept_when_what_the_runs_need_cannot_be_read() {
    let test = test();
    let (key, artifact) = test.result("text");
    let garbage = test.store.garbage(&LiveSet::default(), Vec::new(), Duration::ZERO).unwrap();
    let unreadable = |_: &BTreeSet<String>| {
        let (path, run) = (test.store.runs(), "run".to_owned());
        Err(StoreError::UnreadableRun { path, run, problem: "damaged".into() })
    };
    assert!(test.store.sweep(garbage, &unreadable).is_err());
    assert!(test.hits(&key) && test.store.inspect(&artifact).is_intact());
}

#[test]
fn a_folder_that_cannot_be_listed_is_not_taken_for_an_empty_one() {
    for folder in ["ac", "cas"] {
        let test = test();
        test.result("text");
        let folder = test.store.root().join(folder);
        std::fs::rename(&folder, folder.with_extension("away")).unwrap();
        std::fs::write(&folder, "").unwrap();
        assert!(test.store.garbage(&LiveSet::default(), Vec::new(), Duration::ZERO).is_err());
        assert!(test.store.verify(&mut |_| {}).is_err());
    }
}

#[test]
fn verify_does_not_reset_ages() {
    let test = test();
    let (_, artifact) = test.result("old");
    grow_old(&test.store.seal_path(&artifact));
    test.store.verify(&mut |_| {}).unwrap();
    let garbage = test.store.garbage(&LiveSet::default(), Vec::new(), HOUR).unwrap();
    assert_eq!(garbage.swept().artifacts, 0, "its record is young");
    std::fs::remove_file(test.store.record_path(&Digest::of(b"old"))).unwrap();
    let garbage = test.store.garbage(&LiveSet::default(), Vec::new(), HOUR).unwrap();
    assert_eq!(garbage.swept().artifacts, 1);
}

#[test]
fn verify_tolerates_a_concurrent_sweep() {
    let test = test();
    let (one, _) = test.result("one");
    let (other, artifact) = test.result("other");
    test.overwrite(&artifact, "a", "0ther");
    let last = *[one, other].iter().max().unwrap();
    let mut left = 2;
    let checked = test.store.verify(&mut |_| {
        left -= 1;
        if left == 0 {
            test.sweep(&[last], &[]);
            std::fs::remove_dir_all(test.store.root().join("cas")).unwrap();
        }
    });
    assert_eq!(checked.unwrap().records, 1);
}

#[test]
fn a_sweep_keeps_an_artifact_that_an_import_relies_on() {
    let (one, other) = (test(), test());
    let (key, artifact) = one.result("text");
    other.result("text");
    let garbage = other.store.garbage(&LiveSet::default(), Vec::new(), Duration::ZERO).unwrap();
    assert_eq!(one.copy_to(&other, key).unwrap().present, 1);
    other.store.sweep(garbage, &|_| Ok(LiveSet::default())).unwrap();
    assert!(other.store.inspect(&artifact).is_intact());
}
