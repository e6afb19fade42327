//! Tests against the server that `tests/reference/s3.sh` starts; ignored otherwise.

use std::sync::{Arc, Barrier};

use super::{super::write::Created, objects::Objects, s3};

fn objects(prefix: &str) -> Box<dyn Objects> {
    let bucket = std::env::var("MCPRL_TEST_S3").expect("tests/reference/s3.sh sets the bucket");
    s3::open(&bucket, prefix).unwrap()
}

fn read(objects: &dyn Objects, name: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    objects.read(name, &mut bytes).unwrap().then_some(bytes)
}

#[test]
#[ignore = "needs the server of tests/reference/s3.sh"]
fn small_and_multipart_objects_round_trip() {
    let objects = objects("bytes");
    assert_eq!((read(&*objects, "v1/none"), objects.size("v1/none").unwrap()), (None, None));
    let folder = tempfile::tempdir().unwrap();
    for length in [0_usize, 1, 1 << 20, (16 << 20) + 1, 40 << 20] {
        let bytes: Vec<u8> = (0..length).map(|at| (at * 31 % 251) as u8).collect();
        let path = folder.path().join("file");
        std::fs::write(&path, &bytes).unwrap();
        let name = format!("v1/blobs/{length}");
        objects.write(&name, &path).unwrap();
        assert_eq!(objects.size(&name).unwrap(), Some(length as u64));
        assert!(read(&*objects, &name).unwrap() == bytes, "{length}");
    }
}

#[test]
#[ignore = "needs the server of tests/reference/s3.sh"]
fn exactly_one_of_sixteen_concurrent_creates_succeeds() {
    let objects: Arc<dyn Objects> = Arc::from(objects("race"));
    for round in 0..6 {
        let go = Arc::new(Barrier::new(16));
        let name = format!("v1/ac/{round}.json");
        let first: Vec<u8> = std::thread::scope(|scope| {
            let asking: Vec<_> = (0..16_u8)
                .map(|number| {
                    let (objects, go, name) = (objects.clone(), go.clone(), &name);
                    scope.spawn(move || {
                        go.wait();
                        (objects.create(name, &[number]).unwrap() == Created::New).then_some(number)
                    })
                })
                .collect();
            asking.into_iter().filter_map(|one| one.join().unwrap()).collect()
        });
        assert_eq!(first.len(), 1, "{first:?}");
        assert_eq!(read(&*objects, &name), Some(first));
    }
}

#[test]
#[ignore = "needs the server of tests/reference/s3.sh"]
fn replace_overwrites_and_create_does_not() {
    let objects = objects("replace");
    objects.replace("v1/x", b"one").unwrap();
    assert_eq!(objects.create("v1/x", b"two").unwrap(), Created::Exists);
    objects.replace("v1/x", b"three").unwrap();
    assert_eq!(read(&*objects, "v1/x"), Some(b"three".to_vec()));
}
