//! A cache that is damaged, full, of a later version, or cannot be written.

use std::path::PathBuf;

use crate::common::{CHAIN, Project, output};

#[test]
fn a_truncated_artifact_is_made_again() {
    let project = Project::new(CHAIN);
    project.run(&[]);
    project.ran();
    let artifact = project.path("cache/runs").join(project.runs().pop().unwrap()).join("middle/number.txt");
    let stored: PathBuf = std::fs::canonicalize(artifact).unwrap();
    std::fs::remove_file(&stored).unwrap();
    std::fs::write(&stored, "").unwrap();
    let plan = project.mcprl(&["plan", "run.toml"]).out;
    assert!(plan.contains("stored output `number` is unusable: its bytes changed"), "{plan}");
    project.run(&[]);
    assert_eq!(project.ran(), ["middle"]);
    assert_eq!(project.result("end/number.txt"), "3");
}

#[test]
fn a_torn_record_is_made_again() {
    let project = Project::new(CHAIN);
    project.run(&[]);
    project.ran();
    for item in std::fs::read_dir(project.path("cache/ac")).unwrap() {
        let path = item.unwrap().path();
        if path.is_file() {
            let bytes = std::fs::read(&path).unwrap();
            std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        }
    }
    project.run(&[]);
    assert_eq!(project.ran(), ["end", "middle", "start"]);
}

#[test]
fn a_cache_that_cannot_be_written_is_reported() {
    let project = Project::new(CHAIN);
    // Nobody creates folders in sysfs, not even root.
    let failed = project.mcprl(&["run", "run.toml", "--cache", "/sys/mcprl"]);
    assert_eq!(failed.code, Some(1));
    assert!(failed.err.starts_with("error: the cache cannot be written: /sys/mcprl"), "{}", failed.err);
    assert!(failed.err.contains("hint: choose another cache with `--cache DIR`"), "{}", failed.err);

    project.write("cache", "a file");
    let failed = project.mcprl(&["run", "run.toml"]);
    assert_eq!(failed.code, Some(2));
    assert!(failed.err.starts_with("error: the cache cache is not a folder"), "{}", failed.err);
}

#[test]
fn a_cache_of_a_later_mcprl_is_left_alone() {
    let project = Project::new(CHAIN);
    project.write("cache/version", "99\n");
    let failed = project.mcprl(&["run", "run.toml"]);
    assert_eq!(failed.code, Some(1));
    insta::assert_snapshot!(failed.err, @r"
    error: the cache cache has layout 99, this mcprl knows layouts up to 1
    hint: update mcprl, or choose another cache with `--cache DIR`
    ");
}

#[test]
fn a_full_disk_is_reported_and_leaves_nothing_half_written() {
    let project = Project::new(CHAIN);
    // A limit on file sizes stands in for a full disk: writes fail in the middle, and root is not spared.
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$0\" run run.toml"]);
    limited.arg(env!("CARGO_BIN_EXE_mcprl")).current_dir(project.path("."));
    project.write("run.toml", &format!("{CHAIN}\n# {}\n", "x".repeat(2000)));
    let failed = output(&mut limited);
    assert_eq!(failed.code, Some(1), "{}", failed.err);
    assert!(failed.err.starts_with("error: no space left while writing"), "{}", failed.err);
    project.run(&[]);
    assert_eq!(project.result("end/number.txt"), "3");
}
