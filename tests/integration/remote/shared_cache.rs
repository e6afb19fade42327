//! Results shared by two machines: two projects, each with a cache of its own, and one shared cache.

use std::path::PathBuf;

use crate::common::{self, CommandOutput, Project};

const CHAIN: &str = r#"
name = "toy"

[cache]
remote = "REMOTE"

[stages.start]
kind = "gen"
value = 4

[stages.middle]
kind = "half"
from = "start"

[stages.end]
kind = "step"
from = "middle"
"#;

struct Shared {
    folder: tempfile::TempDir,
}

impl Shared {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("shared")
    }

    fn machine(&self) -> Project {
        Project::new(&CHAIN.replace("REMOTE", self.root().to_str().unwrap()))
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut open = vec![self.root()];
        let mut files = Vec::new();
        while let Some(folder) = open.pop() {
            for item in std::fs::read_dir(folder).into_iter().flatten().map(Result::unwrap) {
                if item.path().is_dir() { open.push(item.path()) } else { files.push(item.path()) }
            }
        }
        files.sort();
        files
    }

    fn blobs(&self) -> Vec<PathBuf> {
        self.files()
            .into_iter()
            .filter(|path| path.components().any(|part| part.as_os_str() == "blobs"))
            .collect()
    }
}

fn remote_events(output: &CommandOutput) -> Vec<String> {
    let lines = output.out.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let problems = lines.filter(|line| line["event"] == "remote");
    problems.map(|line| line["problem"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn results_of_one_machine_are_fetched_by_another() {
    let shared = Shared::new();
    let (one, two) = (shared.machine(), shared.machine());
    let first = one.run(&[]);
    assert!(first.err.contains("0 results fetched (0 B), 3 pushed"), "{}", first.err);
    one.ran();
    let plan = two.mcprl(&["plan", "run.toml"]);
    assert!(plan.out.contains("was not queried; results in it will be fetched"), "{}", plan.out);
    assert!(!two.path("cache").exists(), "plan writes nothing");
    let second = two.run(&[]);
    assert!(
        second.err.contains("3 results fetched") && second.err.contains("3 cached, 0 ran"),
        "{}",
        second.err
    );
    assert_eq!(two.ran(), [""; 0]);
    assert_eq!(two.result("end/number.txt"), "3");
    assert_eq!(two.mcprl(&["cache", "verify"]).code, Some(0));
    // Now that it is here, nobody is asked.
    std::fs::remove_dir_all(shared.root()).unwrap();
    assert!(two.run(&[]).err.contains("3 cached, 0 ran"));
}

#[test]
fn a_change_on_one_machine_reaches_the_other_from_there_on() {
    let shared = Shared::new();
    let (one, two) = (shared.machine(), shared.machine());
    one.run(&[]);
    one.run(&["--set", "stages.end.sleep=0.01"]);
    two.run(&["--set", "stages.end.sleep=0.01"]);
    assert_eq!(two.ran(), [""; 0]);
    two.run(&["--set", "stages.start.value=10"]);
    assert_eq!(two.ran(), ["end", "middle", "start"]);
}

#[test]
fn the_remote_is_not_in_the_key_and_can_be_overridden() {
    let shared = Shared::new();
    let one = shared.machine();
    one.run(&["--set", "cache.remote="]);
    assert!(!shared.root().exists());
    one.ran();
    one.run(&[]);
    assert_eq!(one.ran(), [""; 0]);
    let two = Project::new(&CHAIN.replace("[cache]\nremote = \"REMOTE\"\n", ""));
    let output = common::output(two.command(&["run", "run.toml"]).env("MCPRL_CACHE__REMOTE", shared.root()));
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(output.err.contains("3 pushed"), "{}", output.err);
    let url = format!("cache.remote=file://{}", shared.root().display());
    let three = shared.machine();
    three.run(&["--set", &url]);
    assert_eq!(three.ran(), [""; 0]);
}

#[test]
fn with_push_off_results_are_fetched_and_not_pushed() {
    let shared = Shared::new();
    let (one, two) = (shared.machine(), shared.machine());
    one.run(&[]);
    let files = shared.files();
    two.run(&["--set", "cache.push=false", "--set", "stages.end.sleep=0.01"]);
    assert_eq!(two.ran(), ["end"]);
    assert_eq!(shared.files(), files);
}

#[test]
fn damaged_blobs_are_reported_and_repaired() {
    for damage in ["", "9\n", "9", "and more\n"] {
        let shared = Shared::new();
        shared.machine().run(&[]);
        for blob in shared.blobs() {
            match damage {
                "" => std::fs::remove_file(blob).unwrap(),
                text => std::fs::write(blob, text).unwrap(),
            }
        }
        let two = shared.machine();
        let output = two.run(&["--json"]);
        assert_eq!(two.ran(), ["end", "middle", "start"], "{damage:?}");
        let problems = remote_events(&output);
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(
            problems.iter().all(|text| text.contains("the shared result cannot be used: its file")),
            "{problems:?}"
        );
        let three = shared.machine();
        assert_eq!(remote_events(&three.run(&["--json"])), [""; 0]);
        assert_eq!(three.ran(), [""; 0], "mended after {damage:?}");
    }
}

#[test]
fn an_unreachable_remote_is_reported_once_and_the_run_continues() {
    let shared = Shared::new();
    let one = shared.machine();
    let absent = format!("cache.remote={}/mount/shared", shared.folder.path().display());
    let output = one.run(&["--json", "--set", &absent]);
    let problems = remote_events(&output);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].contains("cannot be reached: there is no folder"), "{problems:?}");
    assert_eq!(one.ran(), ["end", "middle", "start"]);
}

/// A machine whose shared cache lies in a folder `mount`, which is there or not.
fn away() -> (Shared, Project) {
    let shared = Shared::new();
    let remote = shared.folder.path().join("mount/shared");
    let one = Project::new(&CHAIN.replace("REMOTE", remote.to_str().unwrap()));
    let output = one.run(&[]);
    assert!(output.err.contains("3 results are queued for the shared cache"), "{}", output.err);
    one.ran();
    (shared, one)
}

impl Shared {
    /// What a machine that uses the shared cache in `mount` has to run itself.
    fn ran_elsewhere(&self) -> Vec<String> {
        let remote = self.folder.path().join("mount/shared");
        let other = Project::new(&CHAIN.replace("REMOTE", remote.to_str().unwrap()));
        other.run(&[]);
        other.ran()
    }

    fn mount(&self) {
        std::fs::create_dir(self.folder.path().join("mount")).unwrap();
    }
}

#[test]
fn queued_results_are_pushed_by_the_next_run() {
    let (shared, one) = away();
    let listed = one.mcprl(&["cache", "ls"]);
    assert!(listed.err.contains("3 results are queued for /"), "{}", listed.err);
    assert!(one.mcprl(&["runs"]).err.contains("3 results are queued"), "with the list of runs too");
    // A run with nothing to do says so, and does not ask again at once.
    assert!(one.run(&[]).err.contains("3 results are queued"));
    shared.mount();
    let output = one.run(&["--set", "stages.end.sleep=0.01"]);
    assert!(output.err.contains("4 pushed") && !output.err.contains("queued"), "{}", output.err);
    assert_eq!(one.ran(), ["end"]);
    assert_eq!(shared.ran_elsewhere(), [""; 0]);
    assert!(!one.mcprl(&["cache", "ls"]).err.contains("queued"));
}

#[test]
fn the_queue_of_a_mistyped_remote_can_be_dropped() {
    let (shared, one) = away();
    let output = one.mcprl(&["cache", "push"]);
    assert!(
        output.err.contains("hint: push again once it is reachable, or drop its queue"),
        "{}",
        output.err
    );
    assert!(!output.err.contains("the run continues"), "{}", output.err);
    let output = one.mcprl(&["cache", "push", "--forget", "--to", "/nowhere"]);
    assert_eq!(output.code, Some(2), "{}", output.err);
    assert!(
        output.err.contains("no results are queued for /nowhere\nhint: results are queued for /"),
        "{}",
        output.err
    );
    let output = one.mcprl(&["cache", "push", "--forget"]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(output.err.contains("dropped 3 results from the queue for /"), "{}", output.err);
    assert!(!one.mcprl(&["cache", "ls"]).err.contains("queued"));
    shared.mount();
    assert!(one.mcprl(&["cache", "push"]).err.contains("no results are queued"));
    // The local cache keeps the results and can push them elsewhere.
    let to = shared.folder.path().join("mount/shared");
    let output = one.mcprl(&["cache", "push", "--all", "--to", to.to_str().unwrap()]);
    assert!(output.err.contains("pushed 3 results"), "{}", output.err);
}

#[test]
fn queued_results_are_pushed_by_hand_once_the_remote_is_back() {
    let (shared, one) = away();
    let output = one.mcprl(&["cache", "push"]);
    assert_eq!(output.code, Some(1), "{}", output.err);
    assert!(
        output.err.contains("pushed 0 results") && output.err.contains("3 still queued"),
        "{}",
        output.err
    );
    assert!(output.err.contains("there is no folder"), "{}", output.err);
    shared.mount();
    let output = one.mcprl(&["cache", "push"]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(output.err.contains("pushed 3 results") && !output.err.contains("queued"), "{}", output.err);
    assert!(output.err.contains("not searched for secrets"), "{}", output.err);
    assert_eq!(shared.ran_elsewhere(), [""; 0]);
    assert!(one.mcprl(&["cache", "push"]).err.contains("no results are queued"));
}

#[test]
fn a_whole_cache_is_pushed_to_a_named_remote() {
    let shared = Shared::new();
    let one = shared.machine();
    one.run(&["--set", "cache.remote="]);
    let output = one.mcprl(&["cache", "push", "--all"]);
    assert_eq!(output.code, Some(2));
    assert!(output.err.contains("no shared cache is known here"), "{}", output.err);
    let root = shared.root();
    let to = ["cache", "push", "--all", "--to", root.to_str().unwrap()];
    assert!(one.mcprl(&to).err.contains("pushed 3 results"));
    assert!(one.mcprl(&to).err.contains("pushed 0 results (0 B)"), "they are there");
    let two = shared.machine();
    two.run(&[]);
    assert_eq!(two.ran(), [""; 0]);
}

#[test]
fn results_that_a_killed_run_did_not_push_are_pushed_by_the_next() {
    let shared = Shared::new();
    let one = shared.machine();
    let died = one.command(&["run", "run.toml"]).env("MCPRL_FAILPOINT", "push::stored:1").output().unwrap();
    assert_eq!(died.status.code(), None);
    one.run(&[]);
    let two = shared.machine();
    two.run(&[]);
    assert_eq!(two.ran(), [""; 0], "all three are there");
}

#[test]
fn a_removed_result_is_no_longer_queued() {
    let (shared, one) = away();
    for record in std::fs::read_dir(one.path("cache/ac")).unwrap().map(|item| item.unwrap().path()) {
        if record.is_file() {
            std::fs::remove_file(record).unwrap();
        }
    }
    shared.mount();
    let output = one.mcprl(&["cache", "push"]);
    assert!(output.err.contains("pushed 0 results") && !output.err.contains("queued"), "{}", output.err);
}

#[test]
fn a_read_only_remote_is_reported_once_and_read() {
    let shared = Shared::new();
    let (one, two) = (shared.machine(), shared.machine());
    one.run(&[]);
    // Permissions stop no superuser: a mount that is read-only does.
    let script = format!(
        "mount --bind {0} {0} && mount -o remount,ro,bind {0} || exit 77\n\
         $0 run run.toml --json --set stages.end.sleep=0.01 --set stages.middle.cache=refresh",
        shared.root().display()
    );
    let allowed = std::process::Command::new("unshare").args(["-rm", "true"]).status();
    if !allowed.is_ok_and(|status| status.success()) {
        return;
    }
    let mut command = std::process::Command::new("unshare");
    command.args(["-rm", "sh", "-c", &script, env!("CARGO_BIN_EXE_mcprl")]);
    let output = common::output(command.current_dir(two.path(".")).env("TOY_LOG", two.path("log")));
    if output.code == Some(77) {
        return;
    }
    assert_eq!(output.code, Some(0), "{}", output.err);
    let problems = remote_events(&output);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].contains("denies access") && problems[0].contains("push = false"), "{problems:?}");
    assert_eq!(two.ran(), ["end", "middle"]);
}

#[test]
fn machines_that_run_the_same_stage_get_a_report_of_differing_outputs() {
    let shared = Shared::new();
    let draw = format!(
        "name = \"toy\"\n[cache]\nremote = \"{}\"\n[stages.draw]\nkind = \"draw\"\n[stages.end]\nkind = \"step\"\nfrom = \"draw\"\n",
        shared.root().display()
    );
    let (one, two) = (Project::new(&draw), Project::new(&draw));
    // Neither finds the other's: each has asked when the two meet.
    for machine in [&one, &two] {
        // The same script on both: it is in the key.
        let slow = format!(
            "mktemp -d {0}/met.XXXXXX\nn=0\n\
             until [ $(ls -d {0}/met.* | wc -l) -ge 2 ]; do n=$((n + 1)); [ $n -lt 1500 ] || exit 1; sleep 0.02; done\n\
             date +%N | sed 's/^0*/1/' > \"$MCPRL_OUTPUT_NUMBER\"",
            shared.folder.path().display()
        );
        let script = machine.read("stages/draw/run.sh");
        let note = script.lines().next().unwrap().to_owned();
        machine.write("stages/draw/run.sh", &format!("{note}\n{slow}\n"));
    }
    let output = std::thread::scope(|scope| {
        let runs = [&one, &two].map(|machine| scope.spawn(|| machine.run(&["--json"])));
        runs.map(|run| run.join().unwrap())
    });
    let differs = output.iter().filter(|output| output.out.contains("\"event\":\"differs\"")).count();
    assert_eq!(differs, 1, "{}\n{}", output[0].out, output[1].out);
    // The first one stands on both, and in what follows from it.
    assert_eq!(one.result("draw/number.txt"), two.result("draw/number.txt"));
    assert_eq!(one.result("end/number.txt"), two.result("end/number.txt"));
}

#[test]
fn killed_during_transfers_a_run_leaves_nothing_half_done() {
    for place in ["push::torn:1", "push::torn:4", "push::stored:1", "push::stored:3"] {
        let shared = Shared::new();
        let (one, two) = (shared.machine(), shared.machine());
        let died = one.command(&["run", "run.toml"]).env("MCPRL_FAILPOINT", place).output().unwrap();
        assert_eq!(died.status.code(), None, "{place}");
        let output = two.run(&["--json"]);
        assert_eq!(remote_events(&output), [""; 0], "{place}");
        assert_eq!(two.result("end/number.txt"), "3");
        one.ran();
        one.run(&[]);
        assert!(!one.ran().contains(&"start".to_owned()), "{place}: finished work was done again");
    }
    let shared = Shared::new();
    let (one, two) = (shared.machine(), shared.machine());
    one.run(&[]);
    for count in [1, 2] {
        let place = format!("fetch::published:{count}");
        let died = two.command(&["run", "run.toml"]).env("MCPRL_FAILPOINT", place).output().unwrap();
        assert_eq!(died.status.code(), None);
    }
    two.run(&[]);
    assert_eq!(two.ran(), [""; 0]);
    assert_eq!(two.mcprl(&["cache", "verify"]).code, Some(0));
}

#[test]
fn a_program_missing_here_does_not_block_a_fetched_result() {
    use std::os::unix::fs::PermissionsExt;
    let shared = Shared::new();
    let run_file = CHAIN.replace("REMOTE", shared.root().to_str().unwrap()).replace("\"step\"", "\"tool\"");
    let [one, two, alone] = [(); 3].map(|()| Project::new(&run_file));
    let card =
        "[inputs.from]\ntype = \"number\"\n[outputs.number]\ntype = \"number\"\npath = \"number.txt\"\n";
    for machine in [&one, &two, &alone] {
        machine.kind("tool", "pure", card, "cat \"$MCPRL_INPUT_FROM\" > \"$MCPRL_OUTPUT_NUMBER\"");
        let card = machine.read("stages/tool/card.toml").replace("\"sh\", \"-e\"", "\"shell-of-one\"");
        machine.write("stages/tool/card.toml", &card);
    }
    one.write("bin/shell-of-one", "#!/bin/sh\nexec sh -e \"$@\"\n");
    std::fs::set_permissions(one.path("bin/shell-of-one"), PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", one.path("bin").display(), std::env::var("PATH").unwrap());
    let output = common::output(one.command(&["run", "run.toml"]).env("PATH", path));
    assert_eq!(output.code, Some(0), "{}", output.err);
    // Worked anew with the same bytes, so that what follows is there.
    two.run(&["--set", "stages.start.cache=refresh"]);
    assert_eq!(two.ran(), ["start"]);
    assert_eq!(two.result("end/number.txt"), "2");
    // If nothing can be fetched, it is reported before anything runs.
    let refused = alone.mcprl(&["run", "run.toml", "--set", "cache.remote="]);
    assert_eq!((refused.code, alone.ran().len()), (Some(2), 0), "{}", refused.err);
}

#[test]
fn an_invalid_remote_is_reported_with_its_place() {
    let shared = Shared::new();
    let one = shared.machine();
    for (remote, word) in [("gs://bucket/x", "the URL scheme is unknown"), ("file://host/x", "names no host")]
    {
        one.write("run.toml", &CHAIN.replace("REMOTE", remote));
        let output = one.mcprl(&["plan", "run.toml"]);
        assert_eq!(output.code, Some(2), "{remote}");
        assert!(output.err.contains(word) && output.err.contains("run.toml:5"), "{}", output.err);
    }
    one.write("run.toml", &CHAIN.replace("remote = \"REMOTE\"", "remot = \"x\"\npush = 3"));
    let output = one.mcprl(&["plan", "run.toml"]);
    assert!(
        output.err.contains("did you mean `remote`?") && output.err.contains("should be a boolean"),
        "{}",
        output.err
    );
}

#[cfg(not(feature = "s3"))]
#[test]
fn a_build_without_s3_reports_it_with_a_hint() {
    let one = Project::new(&CHAIN.replace("REMOTE", "s3://bucket/x"));
    let output = one.mcprl(&["run", "run.toml"]);
    assert_eq!(output.code, Some(2));
    assert!(output.err.contains("this build does not support S3"), "{}", output.err);
    assert!(
        output.err.contains("--features s3") && output.err.contains("--set cache.remote="),
        "{}",
        output.err
    );
    one.run(&["--set", "cache.remote="]);
}

/// With the server that `tests/reference/s3.sh` starts.
#[cfg(feature = "s3")]
mod s3 {
    use super::*;

    fn bucket() -> String {
        std::env::var("MCPRL_TEST_S3").expect("tests/reference/s3.sh sets the bucket")
    }

    fn machine(prefix: &str) -> Project {
        Project::new(&CHAIN.replace("REMOTE", &format!("s3://{}/{prefix}", bucket())))
    }

    fn run(project: &Project, environment: &[(&str, &str)]) -> CommandOutput {
        let mut command = project.command(&["run", "run.toml", "--json"]);
        common::output(command.envs(environment.iter().copied()))
    }

    #[test]
    #[ignore = "needs the server of tests/reference/s3.sh"]
    fn results_of_one_machine_are_fetched_from_the_bucket() {
        let (one, two) = (machine("both"), machine("both"));
        let first = run(&one, &[]);
        assert_eq!((first.code, remote_events(&first).len()), (Some(0), 0), "{}{}", first.out, first.err);
        assert!(first.out.contains("\"pushed\":3"), "{}", first.out);
        let second = run(&two, &[]);
        assert!(second.out.contains("\"fetched\":3"), "{}", second.out);
        assert_eq!(two.ran(), [""; 0]);
        assert_eq!(two.result("end/number.txt"), "3");
    }

    #[test]
    #[ignore = "needs the server of tests/reference/s3.sh"]
    fn an_unreachable_s3_server_is_reported_once_and_soon() {
        let one = machine("down");
        let began = std::time::Instant::now();
        let output = run(&one, &[("AWS_ENDPOINT_URL", "http://127.0.0.1:9")]);
        let problems = remote_events(&output);
        assert_eq!((output.code, problems.len()), (Some(0), 1), "{}{}", output.out, output.err);
        assert!(problems[0].contains("cannot be reached"), "{problems:?}");
        assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
        assert_eq!(one.ran(), ["end", "middle", "start"]);
    }

    #[test]
    #[ignore = "needs the server of tests/reference/s3.sh"]
    fn a_missing_bucket_is_reported_once() {
        let one = Project::new(&CHAIN.replace("REMOTE", "s3://there-is-no-such-bucket/x"));
        let output = run(&one, &[]);
        let problems = remote_events(&output);
        assert_eq!((output.code, problems.len()), (Some(0), 1), "{}{}", output.out, output.err);
        assert!(problems[0].contains("no such bucket"), "{problems:?}");
    }

    #[test]
    #[ignore = "needs the server of tests/reference/s3.sh"]
    fn missing_permission_is_reported_once_without_any_key() {
        let one = machine("denied");
        let locked =
            std::env::var("MCPRL_TEST_S3_LOCKED").expect("tests/reference/s3.sh sets the locked server");
        let keys = [
            ("AWS_ENDPOINT_URL", locked.as_str()),
            ("AWS_ACCESS_KEY_ID", "AKIASECRETNAME000000"),
            ("AWS_SECRET_ACCESS_KEY", "verysecretvalue0123456789"),
        ];
        let output = run(&one, &keys);
        let problems = remote_events(&output);
        assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
        assert!(!problems.is_empty() && problems.len() <= 2, "{problems:?}");
        assert!(problems[0].contains("denies access"), "{problems:?}");
        assert_tells_nothing(&one, &output, &["AKIASECRETNAME000000", "verysecretvalue0123456789"]);
    }

    /// Checks the output, journals, records and artifacts.
    fn assert_tells_nothing(project: &Project, output: &CommandOutput, secrets: &[&str]) {
        let mut texts = vec![output.out.clone(), output.err.clone()];
        let mut open = vec![project.path("cache")];
        while let Some(folder) = open.pop() {
            for item in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
                let path = item.path();
                if path.is_symlink() {
                    continue;
                }
                if path.is_dir() {
                    open.push(path);
                } else {
                    texts.push(String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned());
                }
            }
        }
        for secret in secrets {
            assert!(texts.iter().all(|text| !text.contains(secret)), "{secret} is printed");
        }
    }
}
