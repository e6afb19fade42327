//! Two stores, as on two machines, and a shared folder as remote.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use serde_json::json;

use super::*;
use crate::tree;
use crate::{Cost, Output};

/// A machine: its local store and its remote.
struct Machine {
    store: Store,
    remote: Remote,
    _folder: tempfile::TempDir,
}

fn machine(spec: &RemoteSpec) -> Machine {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path().join("cache")).unwrap();
    store.prepare().unwrap();
    Machine { store, remote: Remote::new(spec.clone()), _folder: folder }
}

impl Machine {
    /// A finished result with these files.
    fn result(&self, key: &[u8], files: &[(&str, &str)]) -> ActionRecord {
        let staged = tempfile::tempdir_in(self.store.tmp()).unwrap().keep();
        for (name, text) in files {
            let path = staged.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let digest = self.store.publish(&staged).unwrap();
        let record = ActionRecord {
            key: Digest::of(key),
            stage: "stage".into(),
            fields: json!({}),
            outputs: BTreeMap::from([("out".into(), Output { digest, file: None })]),
            metrics: BTreeMap::from([("loss".into(), 0.5)]),
            cost: Cost::default(),
            notes: Vec::new(),
            run: None,
            withheld: false,
        };
        self.store.commit(&record).unwrap();
        record
    }

    fn push(&self, record: &ActionRecord) -> Pushed {
        self.remote.push(&self.store, record, false).unwrap()
    }

    fn fetch(&self, record: &ActionRecord) -> Fetched {
        self.remote.fetch(&self.store, &record.key).unwrap()
    }
}

const FILES: [(&str, &str); 3] = [("a.txt", "one"), ("b/c.txt", "two"), ("empty", "")];

#[cfg(feature = "s3")]
#[test]
#[ignore = "needs the server of tests/reference/s3.sh"]
fn in_a_bucket_damage_is_repaired_and_differing_bytes_are_reported() {
    let bucket = std::env::var("MCPRL_TEST_S3").expect("tests/reference/s3.sh sets the bucket");
    for (prefix, damage) in
        [("cut", Some("o")), ("other", Some("eno")), ("long", Some("one more")), ("none", None)]
    {
        let place = RemoteLocation::S3 { bucket: bucket.clone(), prefix: prefix.into() };
        let spec = RemoteSpec { place, push: true };
        let one = machine(&spec);
        let record = one.result(b"k", &FILES);
        assert!(matches!(one.push(&record), Pushed::Done), "{prefix}");
        if let Some(text) = damage {
            let name = blob_name(&Digest::of(b"one"));
            one.remote.objects().unwrap().replace(&name, text.as_bytes()).unwrap();
            let two = machine(&spec);
            assert!(matches!(two.fetch(&record), Fetched::Damaged(_)), "{prefix}");
            assert_eq!(two.store.artifacts(), []);
            let again = two.result(b"k", &FILES);
            assert!(matches!(two.push(&again), Pushed::Done), "{prefix}");
        }
        let three = machine(&spec);
        assert!(matches!(three.fetch(&record), Fetched::Here), "{prefix}");
        assert_eq!(three.store.lookup(&record.key), Lookup::Hit(record));
        let four = machine(&spec);
        let other = four.result(b"k", &[("a.txt", "four")]);
        assert!(matches!(four.push(&other), Pushed::Differs { .. }), "{prefix}");
    }
}

/// A location for tests, and the guard that keeps it alive.
fn place() -> (RemoteSpec, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let place = RemoteLocation::Folder(folder.path().join("shared"));
    (RemoteSpec { place, push: true }, folder)
}

fn root(spec: &RemoteSpec) -> PathBuf {
    let RemoteLocation::Folder(root) = &spec.place else { panic!("not a folder") };
    root.clone()
}

fn blob(spec: &RemoteSpec, text: &str) -> PathBuf {
    root(spec).join(blob_name(&Digest::of(text.as_bytes())))
}

#[test]
fn a_result_of_one_machine_is_fetched_whole_by_another() {
    let (spec, _folder) = place();
    let (one, two) = (machine(&spec), machine(&spec));
    let record = one.result(b"k", &FILES);
    assert!(matches!(two.fetch(&record), Fetched::Nothing));
    assert!(matches!(one.push(&record), Pushed::Done));
    // Requested once per run.
    assert!(matches!(two.fetch(&record), Fetched::Nothing));
    let two = machine(&spec);
    assert!(matches!(two.fetch(&record), Fetched::Here));
    assert_eq!(two.store.lookup(&record.key), Lookup::Hit(record.clone()));
    let folder = two.store.artifact(&record.outputs["out"].digest);
    for (name, text) in FILES {
        assert_eq!(std::fs::read_to_string(folder.join(name)).unwrap(), text);
    }
    let sizes = (one.remote.traffic(), two.remote.traffic());
    assert_eq!((sizes.0.pushed, sizes.0.pushed_bytes, sizes.1.fetched, sizes.1.fetched_bytes), (1, 6, 1, 6));
}

#[test]
fn the_same_result_again_sends_nothing_and_the_same_file_is_sent_once() {
    let (spec, _folder) = place();
    let one = machine(&spec);
    one.push(&one.result(b"k", &FILES));
    let sent = one.remote.traffic().pushed_bytes;
    assert!(matches!(one.push(&one.result(b"k", &FILES)), Pushed::Nothing));
    assert!(matches!(one.push(&one.result(b"other", &[("x", "two")])), Pushed::Done));
    assert_eq!(one.remote.traffic().pushed_bytes, sent);
}

#[test]
fn a_second_machine_with_other_bytes_gets_the_first_result() {
    let (spec, _folder) = place();
    let (one, two) = (machine(&spec), machine(&spec));
    let first = one.result(b"k", &[("a", "1")]);
    let second = two.result(b"k", &[("a", "2")]);
    assert!(matches!(one.push(&first), Pushed::Done));
    let Pushed::Differs { outputs, existing } = two.push(&second) else { panic!("differs") };
    assert_eq!((outputs, *existing), (vec!["out".to_owned()], first.clone()));
    assert!(two.store.has_artifacts(&first.outputs));
    // After a requested rerun other outputs are expected, and the shared ones are kept.
    assert!(matches!(two.remote.push(&two.store, &second, true).unwrap(), Pushed::Nothing));
    let three = machine(&spec);
    three.fetch(&first);
    assert_eq!(three.store.record(&first.key), Some(first));
}

#[test]
fn exactly_one_of_many_concurrent_pushes_is_first() {
    for round in 0_u8..8 {
        let (spec, _folder) = place();
        let machines: Vec<_> = (0..8).map(|_| machine(&spec)).collect();
        let go = Arc::new(std::sync::Barrier::new(8));
        let done: Vec<Pushed> = std::thread::scope(|scope| {
            let pushing: Vec<_> = machines
                .iter()
                .enumerate()
                .map(|(number, machine)| {
                    let (text, go) = (number.to_string(), go.clone());
                    scope.spawn(move || {
                        let record = machine.result(&[round], &[("a", text.as_str())]);
                        go.wait();
                        machine.push(&record)
                    })
                })
                .collect();
            pushing.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert_eq!(done.iter().filter(|one| matches!(one, Pushed::Done)).count(), 1, "{done:?}");
        assert_eq!(done.iter().filter(|one| matches!(one, Pushed::Differs { .. })).count(), 7, "{done:?}");
    }
}

/// Damages a blob of the remote. Checks that this is a miss with a message, that nothing arrives, and that
/// the next machine that has the bytes repairs it.
fn check_mended(spoil: impl Fn(&RemoteSpec), word: &str) {
    let (spec, _folder) = place();
    let one = machine(&spec);
    let record = one.result(b"k", &FILES);
    one.push(&record);
    spoil(&spec);
    let two = machine(&spec);
    let Fetched::Damaged(problem) = two.fetch(&record) else { panic!("{word}: should be noticed") };
    assert!(problem.contains(word), "{problem}");
    assert_eq!(two.store.lookup(&record.key), Lookup::Miss);
    assert_eq!(two.store.artifacts(), []);
    // Its stage runs, and its outputs are pushed.
    let again = two.result(b"k", &FILES);
    assert!(matches!(two.push(&again), Pushed::Done));
    let three = machine(&spec);
    assert!(matches!(three.fetch(&record), Fetched::Here));
    assert_eq!(three.store.lookup(&record.key), Lookup::Hit(record));
}

#[test]
fn a_missing_blob_is_a_miss_and_is_repaired() {
    check_mended(|spec| std::fs::remove_file(blob(spec, "one")).unwrap(), "a.txt is gone");
}

#[test]
fn a_truncated_blob_is_a_miss_and_is_repaired() {
    check_mended(|spec| std::fs::write(blob(spec, "one"), "o").unwrap(), "a.txt is cut short");
}

#[test]
fn a_blob_with_other_bytes_is_a_miss_and_is_repaired() {
    check_mended(|spec| std::fs::write(blob(spec, "two"), "owt").unwrap(), "b/c.txt is damaged");
}

#[test]
fn a_blob_that_is_too_long_is_a_miss_and_is_repaired() {
    check_mended(|spec| std::fs::write(blob(spec, "two"), "two and more").unwrap(), "longer than it should");
}

#[test]
fn a_record_truncated_at_any_byte_is_a_miss_and_is_repaired() {
    for part in [0, 1, 64, 65, 66, 200] {
        let cut = |spec: &RemoteSpec| {
            let path = root(spec).join(record_name(&Digest::of(b"k")));
            let bytes = std::fs::read(&path).unwrap();
            std::fs::write(&path, &bytes[..part]).unwrap();
        };
        check_mended(cut, "its record is damaged");
    }
}

#[test]
fn a_path_that_leaves_its_artifact_is_rejected() {
    let (spec, _folder) = place();
    let one = machine(&spec);
    let record = one.result(b"k", &[("a", "1")]);
    one.push(&record);
    for path in ["../a", "/a", "", "b/../../a", "./a"] {
        let blobs = vec![Blob { path: path.into(), size: 1, digest: Digest::of(b"1") }];
        let digest = tree::digest_of(blobs.iter().map(|blob| (blob.path.as_str(), blob.size, blob.digest)));
        let mut record = record.clone();
        record.outputs.insert("out".into(), Output { digest, file: None });
        let shared = Shared { record, files: BTreeMap::from([(digest, blobs)]) };
        assert!(Shared::read(&shared.bytes(), &Digest::of(b"k")).is_err(), "{path}");
    }
}

#[test]
fn an_unreachable_remote_is_reported_once_and_queried_again_later() {
    let folder = tempfile::tempdir().unwrap();
    let place = RemoteLocation::Folder(folder.path().join("mount/shared"));
    let one = machine(&RemoteSpec { place, push: true });
    let record = one.result(b"k", &FILES);
    let Fetched::Away(cause) = one.fetch(&record) else { panic!("should be reported") };
    assert!(cause.to_string().contains("cannot be reached: there is no folder"), "{cause}");
    assert!(matches!(one.fetch(&record), Fetched::Nothing));
    assert!(matches!(one.push(&record), Pushed::Nothing));
    // The mount is back, and the pause is over.
    std::fs::create_dir(folder.path().join("mount")).unwrap();
    let before = Instant::now().checked_sub(FIRST_PAUSE).unwrap();
    one.remote.state().writing.tripped = Some((before, FIRST_PAUSE));
    assert!(matches!(one.push(&record), Pushed::Done));
}

/// A machine whose remote is in a missing folder, and that folder.
fn machine_apart() -> (Machine, RemoteSpec, PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let mount = folder.path().join("mount");
    let spec = RemoteSpec { place: RemoteLocation::Folder(mount.join("shared")), push: true };
    (machine(&spec), spec, mount, folder)
}

/// The outcome of pushing the queue in a later run, with a new connection.
fn pushed_later(machine: &Machine, spec: &RemoteSpec) -> DrainReport {
    Remote::new(spec.clone()).push_queued(&machine.store, QueueScope::All, &|| false)
}

#[test]
fn results_that_could_not_be_pushed_are_queued_and_pushed_later() {
    let (one, spec, mount, _folder) = machine_apart();
    let (first, second) = (one.result(b"k", &FILES), one.result(b"l", &[("x", "four")]));
    assert!(matches!(one.push(&first), Pushed::Away(_)));
    assert!(matches!(one.push(&second), Pushed::Nothing), "it rests");
    assert_eq!(one.remote.count_queued(&one.store), 2);
    let report = pushed_later(&one, &spec);
    assert!(report.pushed == 0 && report.away.is_some(), "{report:?}");
    assert!(!one.remote.is_due(&one.store), "not again at once");
    std::fs::create_dir(mount).unwrap();
    let report = pushed_later(&one, &spec);
    assert_eq!((report.pushed, report.bytes, report.present), (2, 10, 0), "{report:?}");
    assert_eq!(one.remote.count_queued(&one.store), 0);
    let two = machine(&spec);
    assert!(matches!(two.fetch(&first), Fetched::Here));
}

#[test]
fn a_queued_result_that_differs_is_kept_on_both_sides() {
    let (one, spec, mount, _folder) = machine_apart();
    let own = one.result(b"k", &[("a", "1")]);
    one.push(&own);
    std::fs::create_dir(mount).unwrap();
    let two = machine(&spec);
    let other = two.result(b"k", &[("a", "2")]);
    two.push(&other);
    let report = pushed_later(&one, &spec);
    assert_eq!((report.pushed, report.differs), (0, 1), "{report:?}");
    assert_eq!(one.store.record(&own.key), Some(own));
    assert_eq!(one.remote.count_queued(&one.store), 0);
    let three = machine(&spec);
    three.fetch(&other);
    assert_eq!(three.store.record(&other.key), Some(other));
}

#[test]
fn damaged_or_removed_results_are_no_longer_queued() {
    let (one, spec, mount, _folder) = machine_apart();
    let (damaged, gone) = (one.result(b"k", &[("a", "1")]), one.result(b"l", &[("a", "2")]));
    one.push(&damaged);
    one.push(&gone);
    let stored = one.store.artifact(&damaged.outputs["out"].digest).join("a");
    std::fs::remove_file(&stored).unwrap();
    std::fs::write(&stored, "0").unwrap();
    one.store.withdraw(&gone.key).unwrap();
    std::fs::create_dir(mount).unwrap();
    assert_eq!(pushed_later(&one, &spec).pushed, 0);
    assert_eq!(one.remote.count_queued(&one.store), 0);
}

/// Queued results by key. The first ones cannot be pushed as long as the folders exist that are returned.
fn queue_with_broken_ones(
    spec: &RemoteSpec,
    machine: &Machine,
    (broken, count): (usize, usize),
) -> (Vec<ActionRecord>, Vec<PathBuf>) {
    let texts: Vec<String> = (0..count).map(|number| format!("text {number}")).collect();
    let results = texts.iter().map(|text| machine.result(text.as_bytes(), &[("a", text.as_str())]));
    let mut records: Vec<ActionRecord> = results.collect();
    records.sort_by_key(|record| record.key);
    let queue = machine.store.upload_queue(&spec.place);
    for record in &records {
        queue.add(&record.key).unwrap();
        std::thread::sleep(Duration::from_millis(12));
    }
    let is_broken =
        |text: &&String| records[..broken].iter().any(|record| record.key == Digest::of(text.as_bytes()));
    let obstacles: Vec<PathBuf> = texts.iter().filter(is_broken).map(|text| blob(spec, text)).collect();
    obstacles.iter().for_each(|path| std::fs::create_dir_all(path.join("in the way")).unwrap());
    (records, obstacles)
}

fn failures(machine: &Machine, spec: &RemoteSpec) -> Vec<(Digest, u32)> {
    let queued = machine.store.upload_queue(&spec.place).queued(QueueScope::All);
    queued.iter().map(|queued| (queued.key, queued.failures)).collect()
}

#[test]
fn a_result_that_cannot_be_pushed_does_not_keep_others_from_it() {
    let (spec, _folder) = place();
    let one = machine(&spec);
    let (records, obstacles) = queue_with_broken_ones(&spec, &one, (1, 5));
    let report = pushed_later(&one, &spec);
    assert_eq!((report.pushed, report.away.is_some()), (4, true), "{report:?}");
    assert_eq!(failures(&one, &spec), [(records[0].key, 1)]);
    let report = pushed_later(&one, &spec);
    assert_eq!((report.pushed, report.away.is_some()), (0, true), "tried again when asked: {report:?}");
    assert_eq!(failures(&one, &spec), [(records[0].key, 1)], "nothing shows that the remote works");
    std::fs::remove_dir_all(&obstacles[0]).unwrap();
    assert_eq!(pushed_later(&one, &spec).pushed, 1);
}

#[test]
fn several_results_that_cannot_be_pushed_hold_up_one_drain_at_most() {
    let (spec, _folder) = place();
    let one = machine(&spec);
    let (records, _) = queue_with_broken_ones(&spec, &one, (2, 5));
    assert_eq!(pushed_later(&one, &spec).pushed, 0, "as if the remote failed");
    assert_eq!(pushed_later(&one, &spec).pushed, 3);
    assert_eq!(failures(&one, &spec), [(records[0].key, 1), (records[1].key, 1)]);
}

#[test]
fn the_last_result_of_a_drain_that_cannot_be_pushed_has_failed_too() {
    let (spec, _folder) = place();
    let one = machine(&spec);
    let (records, _) = queue_with_broken_ones(&spec, &one, (1, 2));
    one.store.upload_queue(&spec.place).postpone(&records[0].key);
    assert_eq!(pushed_later(&one, &spec).pushed, 1);
    assert_eq!(failures(&one, &spec), [(records[0].key, 1)]);
}

#[test]
fn results_that_failed_come_last_and_wait_longer_after_each_failure() {
    let (spec, _folder) = place();
    let one = machine(&spec);
    let (records, _) = queue_with_broken_ones(&spec, &one, (0, 3));
    let queue = one.store.upload_queue(&spec.place);
    let dated = |key: &Digest, seconds: u64| {
        let at = std::time::SystemTime::now() - Duration::from_secs(seconds);
        let path = one.store.root().join("unpushed");
        let folder = std::fs::read_dir(path).unwrap().next().unwrap().unwrap().path();
        std::fs::File::options()
            .append(true)
            .open(folder.join(key.to_string()))
            .unwrap()
            .set_modified(at)
            .unwrap();
    };
    // The last by its digest is queued the longest.
    for (record, age) in records.iter().zip([500, 600, 700]) {
        dated(&record.key, age);
    }
    let order = |scope| -> Vec<Digest> { queue.queued(scope).iter().map(|queued| queued.key).collect() };
    let [first, second, third] = [0, 1, 2].map(|place| records[place].key);
    assert_eq!(order(QueueScope::Due), [third, second, first]);
    queue.failed(&third);
    assert_eq!(order(QueueScope::All), [second, first, third]);
    assert_eq!(order(QueueScope::Due), [second, first], "it failed just now");
    dated(&third, 61);
    assert_eq!(order(QueueScope::Due), [second, first, third]);
    queue.failed(&third);
    dated(&third, 61);
    assert_eq!(order(QueueScope::Due), [second, first], "a second failure doubles the pause");
    dated(&third, 121);
    assert_eq!(order(QueueScope::Due), [second, first, third]);
    queue.add(&third).unwrap();
    assert_eq!(order(QueueScope::All), [second, first, third], "queued again, it keeps its failures");
}

#[test]
fn a_remote_that_fails_is_not_asked_for_every_result_and_no_result_is_blamed() {
    let (one, spec, mount, _folder) = machine_apart();
    let records = queue_with_broken_ones(&spec, &one, (0, 4)).0;
    assert!(pushed_later(&one, &spec).away.is_some());
    let [first, second, third, fourth] = [0, 1, 2, 3].map(|place| (records[place].key, 0));
    assert_eq!(failures(&one, &spec), [third, fourth, first, second], "two were tried");
    std::fs::create_dir(mount).unwrap();
    let report = Remote::new(spec.clone()).push_queued(&one.store, QueueScope::Due, &|| false);
    assert_eq!(report.pushed, 4, "{report:?}");
}

#[test]
fn a_sweep_keeps_results_that_wait_for_their_upload() {
    use crate::LiveSet;
    let (one, spec, mount, _folder) = machine_apart();
    let queued = one.result(b"k", &[("a", "1")]);
    let other = one.result(b"l", &[("a", "2")]);
    one.push(&queued);
    let sweep = || {
        let garbage = one.store.garbage(&LiveSet::default(), Vec::new(), Duration::ZERO).unwrap();
        one.store.sweep(garbage, &|_| Ok(LiveSet::default())).unwrap()
    };
    let swept = sweep();
    assert_eq!((swept.records, swept.artifacts, swept.queued), (1, 1, 1), "{swept:?}");
    assert_eq!(one.store.lookup(&queued.key), Lookup::Hit(queued.clone()));
    assert_eq!(one.store.lookup(&other.key), Lookup::Miss);
    std::fs::create_dir(mount).unwrap();
    assert_eq!(pushed_later(&one, &spec).pushed, 1);
    let swept = sweep();
    assert_eq!((swept.records, swept.artifacts, swept.queued), (1, 1, 0), "no longer queued");
}

#[test]
fn a_result_queued_after_the_scan_of_a_sweep_is_spared() {
    use crate::LiveSet;
    let (one, _, _, _folder) = machine_apart();
    let record = one.result(b"k", &[("a", "1")]);
    let garbage = one.store.garbage(&LiveSet::default(), Vec::new(), Duration::ZERO).unwrap();
    one.push(&record);
    let swept = one.store.sweep(garbage, &|_| Ok(LiveSet::default())).unwrap();
    assert_eq!((swept.records, swept.artifacts), (0, 0), "{swept:?}");
    assert_eq!(one.store.lookup(&record.key), Lookup::Hit(record));
}

#[test]
fn the_record_of_a_remote_is_read_without_its_artifacts() {
    let (spec, _folder) = place();
    let (one, two) = (machine(&spec), machine(&spec));
    let record = one.result(b"k", &FILES);
    assert_eq!(two.remote.record(&record.key).unwrap(), None);
    one.push(&record);
    assert_eq!(two.remote.record(&record.key).unwrap(), Some(record.clone()));
    assert_eq!((two.store.artifacts(), two.store.record(&record.key)), (Vec::new(), None));
    assert!(matches!(two.fetch(&record), Fetched::Here), "it can still be fetched");
    let (apart, ..) = machine_apart();
    assert!(apart.remote.record(&record.key).is_err());
    assert_eq!(apart.remote.record(&record.key).unwrap(), None, "reported once");
}

#[test]
fn with_push_off_nothing_is_pushed() {
    let (spec, _folder) = place();
    let one = machine(&RemoteSpec { push: false, ..spec.clone() });
    assert!(matches!(one.push(&one.result(b"k", &FILES)), Pushed::Nothing));
    assert_eq!((one.store.upload_queues().len(), one.remote.count_queued(&one.store)), (0, 0));
    assert!(!root(&spec).exists());
}

#[test]
fn a_withheld_result_is_not_pushed() {
    let (spec, _folder) = place();
    let one = machine(&spec);
    let withheld = ActionRecord { withheld: true, ..one.result(b"k", &FILES) };
    assert!(matches!(one.push(&withheld), Pushed::Nothing));
}

#[test]
fn a_damaged_local_result_is_replaced_by_the_shared_one() {
    let (spec, _folder) = place();
    let one = machine(&spec);
    let record = one.result(b"k", &FILES);
    one.push(&record);
    let stored = one.store.artifact(&record.outputs["out"].digest).join("a.txt");
    std::thread::sleep(Duration::from_millis(12));
    std::fs::remove_file(&stored).unwrap();
    std::fs::write(&stored, "0ne").unwrap();
    assert!(matches!(one.store.lookup(&record.key), Lookup::Damaged { .. }));
    assert!(matches!(one.fetch(&record), Fetched::Here));
    assert_eq!(one.store.lookup(&record.key), Lookup::Hit(record));
}

#[test]
fn damaged_bytes_are_not_pushed() {
    let (spec, _folder) = place();
    let one = machine(&spec);
    let record = one.result(b"k", &FILES);
    let stored = one.store.artifact(&record.outputs["out"].digest).join("a.txt");
    std::fs::remove_file(&stored).unwrap();
    std::fs::write(&stored, "0ne").unwrap();
    assert!(matches!(one.push(&record), Pushed::Nothing));
    assert!(!root(&spec).join(record_name(&record.key)).exists());
}
