mod housekeeping;
mod model;
mod stat_cache;

use std::{collections::BTreeMap, path::PathBuf};

use serde_json::json;

use super::*;
use crate::hash::Digest;

struct Place {
    store: Store,
    _folder: tempfile::TempDir,
}

fn place() -> Place {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path().join("cache")).unwrap();
    store.prepare().unwrap();
    Place { store, _folder: folder }
}

impl Place {
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
    let place = place();
    let first = place.published(&[("a", "1"), ("b/c", "2")]);
    assert_eq!(place.published(&[("b/c", "2"), ("a", "1")]), first);
    assert_ne!(place.published(&[("a", "1"), ("b/d", "2")]), first);
    assert_ne!(place.published(&[("a", "1"), ("b/c", "3")]), first);
    assert_eq!(place.store.inspect(&first), Condition::Sealed);
}

#[test]
fn a_truncated_file_is_noticed() {
    let place = place();
    let digest = place.published(&[("a", "whole")]);
    place.overwrite(&digest, "a", "who");
    assert!(matches!(place.store.inspect(&digest), Condition::Damaged(_)));
}

#[test]
fn other_bytes_of_the_same_length_are_noticed() {
    let place = place();
    let digest = place.published(&[("a", "whole")]);
    place.overwrite(&digest, "a", "hole!");
    assert!(matches!(place.store.inspect(&digest), Condition::Damaged(_)));
}

#[test]
fn a_file_too_many_is_noticed() {
    let place = place();
    let digest = place.published(&[("a", "1")]);
    std::thread::sleep(std::time::Duration::from_millis(12));
    std::fs::write(place.store.artifact(&digest).join("b"), "2").unwrap();
    assert!(matches!(place.store.inspect(&digest), Condition::Damaged(_)));
}

#[test]
fn a_rewritten_file_with_the_same_bytes_is_intact_and_can_be_sealed_again() {
    let place = place();
    let digest = place.published(&[("a", "whole")]);
    place.overwrite(&digest, "a", "whole");
    assert_eq!(place.store.inspect(&digest), Condition::Unsealed);
    place.store.seal(&digest).unwrap();
    assert_eq!(place.store.inspect(&digest), Condition::Sealed);
}

#[test]
fn publishing_again_mends_a_damaged_artifact() {
    let place = place();
    let digest = place.published(&[("a", "whole")]);
    place.overwrite(&digest, "a", "w");
    assert_eq!(place.published(&[("a", "whole")]), digest);
    assert_eq!(place.store.inspect(&digest), Condition::Sealed);
}

#[test]
fn a_link_in_an_output_is_refused() {
    let place = place();
    let folder = place.staged(&[("a", "1")]);
    std::os::unix::fs::symlink("a", folder.join("link")).unwrap();
    assert!(matches!(place.store.publish(&folder), Err(StoreError::Special { .. })));
}

#[test]
fn a_record_with_an_artifact_gone_is_no_hit() {
    let place = place();
    let digest = place.published(&[("a", "1")]);
    let record = place.record(digest);
    assert_eq!(place.store.lookup(&record.key), Lookup::Miss);
    assert_eq!(place.store.commit(&record).unwrap(), Recorded::New);
    assert_eq!(place.store.lookup(&record.key), Lookup::Hit(record.clone()));
    std::fs::remove_dir_all(place.store.artifact(&digest)).unwrap();
    let expected = Lookup::Damaged { output: Some("out".into()), problem: "it is gone".into() };
    assert_eq!(place.store.lookup(&record.key), expected);
}

#[test]
fn a_torn_record_is_no_hit_and_gives_way() {
    let place = place();
    let record = place.record(place.published(&[("a", "1")]));
    std::fs::write(place.store.root().join("ac").join(format!("{}.json", record.key)), "{\"key\"").unwrap();
    assert!(matches!(place.store.lookup(&record.key), Lookup::Damaged { output: None, .. }));
    assert_eq!(place.store.commit(&record).unwrap(), Recorded::New);
    assert_eq!(place.store.lookup(&record.key), Lookup::Hit(record));
}

#[test]
fn the_first_record_stands_and_a_second_with_other_bytes_is_reported() {
    let place = place();
    let first = place.record(place.published(&[("a", "1")]));
    let second = place.record(place.published(&[("a", "2")]));
    place.store.commit(&first).unwrap();
    assert_eq!(place.store.commit(&first).unwrap(), Recorded::Same);
    let differs = Recorded::Differs { outputs: vec!["out".into()], standing: Box::new(first.clone()) };
    assert_eq!(place.store.commit(&second).unwrap(), differs);
    assert_eq!(place.store.record(&first.key), Some(first));
}

#[test]
fn a_withdrawn_record_makes_room_for_another() {
    let place = place();
    let first = place.record(place.published(&[("a", "1")]));
    let second = place.record(place.published(&[("a", "2")]));
    place.store.commit(&first).unwrap();
    place.store.withdraw(&first.key).unwrap();
    assert_eq!(place.store.commit(&second).unwrap(), Recorded::New);
}

#[test]
fn looking_into_an_absent_store_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("cache");
    let store = Store::open(&root).unwrap();
    assert_eq!(store.lookup(&Digest::of(b"key")), Lookup::Miss);
    assert!(!root.exists());
}

#[test]
fn a_store_of_a_later_layout_is_left_alone() {
    let place = place();
    std::fs::write(place.store.root().join("version"), "99\n").unwrap();
    assert!(matches!(Store::open(place.store.root()), Err(StoreError::Version { .. })));
}

#[test]
fn a_file_outside_is_read_again_once_it_changes() {
    let place = place();
    let path = place.store.root().join("outside.txt");
    std::fs::write(&path, "one").unwrap();
    let files = FileDigests::load(&place.store);
    assert_eq!(files.digest(&path).unwrap(), Digest::of(b"one"));
    std::fs::write(&path, "two").unwrap();
    assert_eq!(files.digest(&path).unwrap(), Digest::of(b"two"));
}

#[test]
fn a_byte_changed_with_size_and_time_put_back_is_noticed() {
    let place = place();
    let path = place.store.root().join("outside.txt");
    std::fs::write(&path, "one").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(40));
    let files = FileDigests::load(&place.store);
    assert_eq!(files.digest(&path).unwrap(), Digest::of(b"one"));
    files.save(&place.store).unwrap();

    let before = path.metadata().unwrap().modified().unwrap();
    // Written in place, so the inode is the same.
    std::fs::write(&path, "0ne").unwrap();
    std::fs::File::options().append(true).open(&path).unwrap().set_modified(before).unwrap();
    assert_eq!(path.metadata().unwrap().modified().unwrap(), before);
    assert_eq!(FileDigests::load(&place.store).digest(&path).unwrap(), Digest::of(b"0ne"));
}

#[test]
fn a_known_file_is_not_read_again() {
    let place = place();
    let path = place.store.root().join("outside.txt");
    std::fs::write(&path, "one").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(40));
    let files = FileDigests::load(&place.store);
    files.digest(&path).unwrap();
    files.save(&place.store).unwrap();
    // The remembered digest is trusted, which shows that the bytes are not read.
    let list = files::path(&place.store);
    let text = std::fs::read_to_string(&list).unwrap();
    let other = Digest::of(b"other");
    std::fs::write(&list, text.replace(&Digest::of(b"one").to_string(), &other.to_string())).unwrap();
    assert_eq!(FileDigests::load(&place.store).digest(&path).unwrap(), other);
}

#[test]
fn a_stamp_from_the_future_is_not_trusted() {
    let place = place();
    let path = place.store.root().join("outside.txt");
    std::fs::write(&path, "one").unwrap();
    let stamp = tree::FileStamp::from(&path.metadata().unwrap());
    let ahead = tree::FileStamp { ctime: stamp.ctime + 3_600_000_000_000, ..stamp };
    let known = json!({ &path.display().to_string(): { "stamp": ahead, "digest": Digest::of(b"old") } });
    std::fs::write(files::path(&place.store), known.to_string()).unwrap();
    assert_eq!(FileDigests::load(&place.store).digest(&path).unwrap(), Digest::of(b"one"));
}

#[test]
fn the_newest_key_of_a_stage_is_remembered_beside_the_others() {
    let place = place();
    let (one, two) = (Digest::of(b"1"), Digest::of(b"2"));
    place.store.remember("run", &BTreeMap::from([("a".into(), one), ("b".into(), one)])).unwrap();
    place.store.remember("run", &BTreeMap::from([("b".into(), two)])).unwrap();
    let last = place.store.last_keys("run");
    assert_eq!((last.get("a"), last.get("b"), last.get("c")), (Some(&one), Some(&two), None));
}

#[test]
fn a_store_whose_version_a_power_cut_left_blank_is_a_new_one() {
    let place = place();
    let version = place.store.root().join("version");
    for blank in ["", "\0\0", "\n"] {
        std::fs::write(&version, blank).unwrap();
        Store::open(place.store.root()).unwrap().prepare().unwrap();
        assert_eq!(std::fs::read_to_string(&version).unwrap(), "1\n");
    }
}

#[test]
fn a_record_with_a_metric_that_is_no_number_is_read_without_it() {
    let place = place();
    let metrics = BTreeMap::from([("reward".into(), f64::NAN), ("loss".into(), 0.5)]);
    let record = ActionRecord { metrics, ..place.record(place.published(&[("a", "1")])) };
    place.store.commit(&record).unwrap();
    let Lookup::Hit(found) = place.store.lookup(&record.key) else { panic!("a hit") };
    assert_eq!(found.metrics, BTreeMap::from([("loss".into(), 0.5)]));
}

#[test]
fn what_a_run_came_to_is_told_whatever_stands_under_its_key_now() {
    let place = place();
    let first = place.record(place.published(&[("a", "1")]));
    let known = CachedResult::from(first.clone());
    place.store.commit(&first).unwrap();
    assert_eq!(place.store.result(&first.key, None), Some(first.clone()));
    place.store.withdraw(&first.key).unwrap();
    assert_eq!(place.store.result(&first.key, None), None);
    assert_eq!(place.store.result(&first.key, Some(&known)), Some(first.clone()));
    let second = place.record(place.published(&[("a", "2")]));
    place.store.commit(&second).unwrap();
    assert_eq!(place.store.result(&first.key, None), Some(second));
    assert_eq!(place.store.result(&first.key, Some(&known)), Some(first));
}

#[test]
fn files_of_the_store_are_as_open_to_others_as_any_file() {
    use std::os::unix::fs::PermissionsExt;
    let place = place();
    let artifact = place.published(&[("a", "1")]);
    let record = place.record(artifact);
    place.store.commit(&record).unwrap();
    let presence = place.store.attend("run").unwrap();
    let root = place.store.root();
    let plain = root.join("plain");
    std::fs::write(&plain, "").unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    let leases = std::fs::read_dir(root.join("leases")).unwrap().map(|item| item.unwrap().path());
    let files =
        [root.join("version"), place.store.record_path(&record.key), place.store.seal_path(&artifact)];
    for file in files.into_iter().chain(leases) {
        assert_eq!(mode(&file), mode(&plain), "{}", file.display());
    }
    let aside = aside(&place.store.tmp()).unwrap();
    assert_eq!(mode(aside.path()), mode(&root.join("cas")));
    drop(presence);
}
