mod housekeeping;
mod model;

use std::{collections::BTreeMap, path::PathBuf};

use mcprl_base::hash::Digest;
use serde_json::json;

use super::*;

struct TestStore {
    store: Store,
    _folder: tempfile::TempDir,
}

fn test() -> TestStore {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path().join("cache")).unwrap();
    store.prepare().unwrap();
    TestStore { store, _folder: folder }
}

impl TestStore {
    fn staged(&self, files: &[(&str, &str)]) -> PathBuf {
        let folder = tempfile::tempdir_in(self.store.tmp()).unwrap().keep();
        for (name, text) in files {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        folder
    }

    fn published(&self, files: &[(&str, &str)]) -> Digest {
        self.store.publish(&self.staged(files)).unwrap()
    }

    fn record(&self, output: Digest) -> ActionRecord {
        ActionRecord {
            key: Digest::of(b"key"),
            stage: "stage".into(),
            fields: json!({}),
            outputs: BTreeMap::from([("out".into(), Output { digest: output, file: None })]),
            metrics: BTreeMap::new(),
            cost: Cost::default(),
            notes: Vec::new(),
            run: None,
            withheld: false,
        }
    }

    /// Replaces the bytes of a stored file.
    fn overwrite(&self, digest: &Digest, name: &str, text: &str) {
        let path = self.store.artifact(digest).join(name);
        // Timestamps advance with the kernel's tick, and an inode may be reused at once.
        std::thread::sleep(std::time::Duration::from_millis(12));
        std::fs::remove_file(&path).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

#[test]
fn equal_content_is_one_artifact_and_names_are_content() {
    let test = test();
    let first = test.published(&[("a", "1"), ("b/c", "2")]);
    assert_eq!(test.published(&[("b/c", "2"), ("a", "1")]), first);
    assert_ne!(test.published(&[("a", "1"), ("b/d", "2")]), first);
    assert_ne!(test.published(&[("a", "1"), ("b/c", "3")]), first);
    assert_eq!(test.store.inspect(&first), Condition::Sealed);
}

#[test]
fn a_truncated_file_is_detected() {
    let test = test();
    let digest = test.published(&[("a", "whole")]);
    test.overwrite(&digest, "a", "who");
    assert!(matches!(test.store.inspect(&digest), Condition::Damaged(_)));
}

#[test]
fn other_bytes_of_the_same_length_are_detected() {
    let test = test();
    let digest = test.published(&[("a", "whole")]);
    test.overwrite(&digest, "a", "hole!");
    assert!(matches!(test.store.inspect(&digest), Condition::Damaged(_)));
}

#[test]
fn an_extra_file_is_detected() {
    let test = test();
    let digest = test.published(&[("a", "1")]);
    std::thread::sleep(std::time::Duration::from_millis(12));
    std::fs::write(test.store.artifact(&digest).join("b"), "2").unwrap();
    assert!(matches!(test.store.inspect(&digest), Condition::Damaged(_)));
}

#[test]
fn a_rewritten_file_with_the_same_bytes_is_intact_and_can_be_sealed_again() {
    let test = test();
    let digest = test.published(&[("a", "whole")]);
    test.overwrite(&digest, "a", "whole");
    assert_eq!(test.store.inspect(&digest), Condition::Unsealed);
    test.store.seal(&digest).unwrap();
    assert_eq!(test.store.inspect(&digest), Condition::Sealed);
}

#[test]
fn publishing_again_repairs_a_damaged_artifact() {
    let test = test();
    let digest = test.published(&[("a", "whole")]);
    test.overwrite(&digest, "a", "w");
    assert_eq!(test.published(&[("a", "whole")]), digest);
    assert_eq!(test.store.inspect(&digest), Condition::Sealed);
}

/// Publishes the same bytes from several threads at once. Returns how many of them put their folder in place.
fn published_at_once(test: &TestStore, files: &[(&str, &str)]) -> usize {
    let staged: Vec<PathBuf> = (0..8).map(|_| test.staged(files)).collect();
    let go = std::sync::Barrier::new(staged.len());
    std::thread::scope(|scope| {
        let publishing: Vec<_> = staged
            .iter()
            .map(|staged| {
                scope.spawn(|| {
                    go.wait();
                    test.store.place(staged).unwrap()
                })
            })
            .collect();
        let placed: Vec<_> = publishing.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(staged.iter().all(|folder| !folder.exists()));
        test.store.sync(&placed, &[]).unwrap();
        placed.iter().filter(|placed| placed.seal.is_some()).count()
    })
}

#[test]
fn of_concurrent_publishers_one_puts_the_artifact_in_place_and_the_others_keep_it() {
    let test = test();
    for round in 0..60 {
        let text = round.to_string();
        let files = [("a", text.as_str()), ("b/c", "2")];
        assert_eq!(published_at_once(&test, &files), 1, "round {round}");
        assert_eq!(test.store.inspect(&test.published(&files)), Condition::Sealed);
    }
}

#[test]
fn concurrent_publishers_replace_a_damaged_artifact() {
    let test = test();
    for round in 0..60 {
        let text = format!("whole {round}");
        let files = [("a", text.as_str())];
        let digest = test.published(&files);
        let path = test.store.artifact(&digest).join("a");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(path, "torn").unwrap();
        assert!(published_at_once(&test, &files) > 0, "round {round}");
        assert!(test.store.inspect(&digest).is_intact(), "round {round}");
    }
}

#[test]
fn an_artifact_that_was_replaced_since_it_was_found_damaged_is_not_discarded() {
    let test = test();
    let digest = test.published(&[("a", "whole")]);
    test.store.discard_damaged(&digest).unwrap();
    assert_eq!(test.store.inspect(&digest), Condition::Sealed);
    test.overwrite(&digest, "a", "w");
    test.store.discard_damaged(&digest).unwrap();
    assert_eq!(test.store.inspect(&digest), Condition::Absent);
    test.store.discard_damaged(&digest).unwrap();
}

#[test]
fn a_link_in_an_output_is_refused() {
    let test = test();
    let folder = test.staged(&[("a", "1")]);
    std::os::unix::fs::symlink("a", folder.join("link")).unwrap();
    assert!(matches!(test.store.publish(&folder), Err(StoreError::Special { .. })));
}

#[test]
fn a_record_with_a_missing_artifact_is_damaged() {
    let test = test();
    let digest = test.published(&[("a", "1")]);
    let record = test.record(digest);
    assert_eq!(test.store.lookup(&record.key), Lookup::Miss);
    assert_eq!(test.store.commit(&record).unwrap(), Recorded::New);
    assert_eq!(test.store.lookup(&record.key), Lookup::Hit(record.clone()));
    std::fs::remove_dir_all(test.store.artifact(&digest)).unwrap();
    let expected = Lookup::Damaged { output: Some("out".into()), problem: "it is gone".into() };
    assert_eq!(test.store.lookup(&record.key), expected);
}

#[test]
fn a_torn_record_is_damaged_and_can_be_replaced() {
    let test = test();
    let record = test.record(test.published(&[("a", "1")]));
    std::fs::write(test.store.root().join("ac").join(format!("{}.json", record.key)), "{\"key\"").unwrap();
    assert!(matches!(test.store.lookup(&record.key), Lookup::Damaged { output: None, .. }));
    assert_eq!(test.store.commit(&record).unwrap(), Recorded::New);
    assert_eq!(test.store.lookup(&record.key), Lookup::Hit(record));
}

/// A record with all its parts, in the store, and its file's path.
fn recorded(test: &TestStore) -> (ActionRecord, PathBuf) {
    let record = ActionRecord {
        fields: json!({"kind": "eval", "draw": 2, "params": {"seed": 3}}),
        metrics: BTreeMap::from([("success".into(), 0.1 + 0.2), ("gain".into(), 1e-300)]),
        notes: vec!["a note".into()],
        run: Some("run".into()),
        withheld: true,
        ..test.record(test.published(&[("a", "1")]))
    };
    test.store.commit(&record).unwrap();
    let path = test.store.record_path(&record.key);
    (record, path)
}

#[test]
fn any_flipped_bit_of_a_record_is_damage() {
    let test = test();
    let (record, path) = recorded(&test);
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(test.store.lookup(&record.key), Lookup::Withheld(record.clone()));
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&path, &flipped).unwrap();
        let found = test.store.lookup(&record.key);
        assert!(matches!(found, Lookup::Damaged { output: None, .. }), "bit {bit}");
    }
    let checked = test.store.verify(&mut |_| {}).unwrap();
    assert_eq!(checked.flaws, [super::Damage::Record { key: record.key }]);
    assert_eq!(test.store.lookup(&record.key), Lookup::Miss);
}

#[test]
fn a_record_of_an_earlier_version_without_a_checksum_is_read() {
    let test = test();
    let (record, path) = recorded(&test);
    std::fs::write(&path, serde_json::to_vec_pretty(&record).unwrap()).unwrap();
    assert_eq!(test.store.lookup(&record.key), Lookup::Withheld(record.clone()));
    assert_eq!(test.store.verify(&mut |_| {}).unwrap().flaws, []);
}

#[test]
fn the_first_record_is_kept_and_a_differing_second_is_reported() {
    let test = test();
    let first = test.record(test.published(&[("a", "1")]));
    let second = test.record(test.published(&[("a", "2")]));
    test.store.commit(&first).unwrap();
    assert_eq!(test.store.commit(&first).unwrap(), Recorded::Same);
    let differs = Recorded::Differs { outputs: vec!["out".into()], existing: Box::new(first.clone()) };
    assert_eq!(test.store.commit(&second).unwrap(), differs);
    assert_eq!(test.store.record(&first.key), Some(first));
}

#[test]
fn a_withdrawn_record_can_be_replaced() {
    let test = test();
    let first = test.record(test.published(&[("a", "1")]));
    let second = test.record(test.published(&[("a", "2")]));
    test.store.commit(&first).unwrap();
    test.store.withdraw(&first.key).unwrap();
    assert_eq!(test.store.commit(&second).unwrap(), Recorded::New);
}

#[test]
fn a_lookup_in_an_absent_store_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("cache");
    let store = Store::open(&root).unwrap();
    assert_eq!(store.lookup(&Digest::of(b"key")), Lookup::Miss);
    assert!(!root.exists());
}

#[test]
fn a_store_of_a_later_layout_is_left_alone() {
    let test = test();
    std::fs::write(test.store.root().join("version"), "99\n").unwrap();
    assert!(matches!(Store::open(test.store.root()), Err(StoreError::Version { .. })));
}

#[test]
fn an_outside_file_is_read_again_when_it_changes() {
    let test = test();
    let path = test.store.root().join("outside.txt");
    std::fs::write(&path, "one").unwrap();
    let files = FileDigests::load(&test.store);
    assert_eq!(files.digest(&path).unwrap(), Digest::of(b"one"));
    std::fs::write(&path, "two").unwrap();
    assert_eq!(files.digest(&path).unwrap(), Digest::of(b"two"));
}

#[test]
fn a_changed_byte_is_detected_though_size_and_time_are_restored() {
    let test = test();
    let path = test.store.root().join("outside.txt");
    std::fs::write(&path, "one").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(40));
    let files = FileDigests::load(&test.store);
    assert_eq!(files.digest(&path).unwrap(), Digest::of(b"one"));
    files.save(&test.store).unwrap();

    let before = path.metadata().unwrap().modified().unwrap();
    // Written in test, so the inode is the same.
    std::fs::write(&path, "0ne").unwrap();
    std::fs::File::options().append(true).open(&path).unwrap().set_modified(before).unwrap();
    assert_eq!(path.metadata().unwrap().modified().unwrap(), before);
    assert_eq!(FileDigests::load(&test.store).digest(&path).unwrap(), Digest::of(b"0ne"));
}

#[test]
fn an_unchanged_file_is_not_read_again() {
    let test = test();
    let path = test.store.root().join("outside.txt");
    std::fs::write(&path, "one").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(40));
    let files = FileDigests::load(&test.store);
    files.digest(&path).unwrap();
    files.save(&test.store).unwrap();
    // The remembered digest is trusted, which shows that the bytes are not read.
    let list = files::path(&test.store);
    let text = std::fs::read_to_string(&list).unwrap();
    let other = Digest::of(b"other");
    std::fs::write(&list, text.replace(&Digest::of(b"one").to_string(), &other.to_string())).unwrap();
    assert_eq!(FileDigests::load(&test.store).digest(&path).unwrap(), other);
}

#[test]
fn a_stamp_from_the_future_is_not_trusted() {
    let test = test();
    let path = test.store.root().join("outside.txt");
    std::fs::write(&path, "one").unwrap();
    let stamp = tree::FileStamp::from(&path.metadata().unwrap());
    let ahead = tree::FileStamp { ctime: stamp.ctime + 3_600_000_000_000, ..stamp };
    let known = json!({ &path.display().to_string(): { "stamp": ahead, "digest": Digest::of(b"old") } });
    std::fs::write(files::path(&test.store), known.to_string()).unwrap();
    assert_eq!(FileDigests::load(&test.store).digest(&path).unwrap(), Digest::of(b"one"));
}

#[test]
fn the_newest_key_of_each_stage_is_stored() {
    let test = test();
    let (one, two) = (Digest::of(b"1"), Digest::of(b"2"));
    test.store.remember("run", &BTreeMap::from([("a".into(), one), ("b".into(), one)])).unwrap();
    test.store.remember("run", &BTreeMap::from([("b".into(), two)])).unwrap();
    let last = test.store.last_keys("run");
    assert_eq!((last.get("a"), last.get("b"), last.get("c")), (Some(&one), Some(&two), None));
}

#[test]
fn a_store_with_a_blank_version_file_is_initialised_again() {
    let test = test();
    let version = test.store.root().join("version");
    for blank in ["", "\0\0", "\n"] {
        std::fs::write(&version, blank).unwrap();
        Store::open(test.store.root()).unwrap().prepare().unwrap();
        assert_eq!(std::fs::read_to_string(&version).unwrap(), "1\n");
    }
}

#[test]
fn the_result_of_a_run_is_known_after_its_record_was_replaced() {
    let test = test();
    let first = test.record(test.published(&[("a", "1")]));
    let known = CachedResult::from(first.clone());
    test.store.commit(&first).unwrap();
    test.store.withdraw(&first.key).unwrap();
    assert_eq!(test.store.result(&first.key, &known), first);
    let second = test.record(test.published(&[("a", "2")]));
    test.store.commit(&second).unwrap();
    assert_eq!(test.store.result(&first.key, &known), first);
}

#[test]
fn files_of_the_store_have_default_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let test = test();
    let artifact = test.published(&[("a", "1")]);
    let record = test.record(artifact);
    test.store.commit(&record).unwrap();
    let presence = test.store.attend("run").unwrap();
    let root = test.store.root();
    let plain = root.join("plain");
    std::fs::write(&plain, "").unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    let leases = std::fs::read_dir(root.join("leases")).unwrap().map(|item| item.unwrap().path());
    let files = [root.join("version"), test.store.record_path(&record.key), test.store.seal_path(&artifact)];
    for file in files.into_iter().chain(leases) {
        assert_eq!(mode(&file), mode(&plain), "{}", file.display());
    }
    let aside = aside(&test.store.tmp()).unwrap();
    assert_eq!(mode(aside.path()), mode(&root.join("cas")));
    drop(presence);
}

#[test]
fn a_result_that_was_written_to_after_it_was_hashed_is_not_taken_for_what_was_hashed() {
    for is_changed in [false, true] {
        let test = test();
        let staged = test.staged(&[("a", "hello")]);
        // As the folder of a job has it.
        let job = test.store.tmp().join("job");
        std::fs::hard_link(staged.join("a"), &job).unwrap();
        let mut open = std::fs::File::options().write(true).open(&job).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let mut placed = test.store.place(&staged).unwrap();
        if is_changed {
            std::io::Write::write_all(&mut open, b"HELLO").unwrap();
        }
        std::fs::remove_file(job).unwrap();
        test.store.stamp_again(&mut placed).unwrap();
        test.store.sync(std::slice::from_ref(&placed), &[]).unwrap();
        let expected = if is_changed {
            Condition::Damaged("its bytes changed since it was written".into())
        } else {
            Condition::Sealed
        };
        assert_eq!(test.store.inspect(&placed.digest), expected);
    }
}
