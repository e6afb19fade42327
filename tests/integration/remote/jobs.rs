//! Stages as jobs of a batch system, which is a shell script here: the same bytes, and what happens when anything is killed,
//! refused, lost or called dead.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::fs::MetadataExt,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{self, Project, is_running, until};

const QUEUED: [&str; 2] = ["--set", "executor=queue"];

/// The executor `queue`, with further settings.
fn executor(settings: &str) -> String {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/executors");
    let [template, program] = ["shell.toml", "shell.sh"].map(|name| tests.join(name).display().to_string());
    format!(
        "\n[executors.queue]\nkind = \"{template}\"\nqueue_program = \"{program}\"\ndir = \"queue\"\npoll_s = 0.2\n{settings}\n"
    )
}

fn training(settings: &str) -> Project {
    Project::with_model(&(common::training_run("prompts = 3\ngroup_size = 2") + &executor(settings)))
}

/// A number, and one more after a while.
fn toys(sleep: f64, settings: &str) -> Project {
    let stages = format!(
        "executor = \"queue\"\n[stages.start]\nkind = \"gen\"\nexecutor = \"local\"\n[stages.more]\nkind = \"step\"\n\
         from = \"start\"\nsleep = {sleep}\n"
    );
    Project::new(&(stages + &executor(settings)))
}

/// What the newest run's stages wrote, by stage and port.
pub fn written(project: &Project) -> BTreeMap<String, Value> {
    let is_result = |entry: &Value| entry["event"] == "finished" || entry["event"] == "cached";
    let finished = project.journal().into_iter().filter(is_result);
    let outputs =
        |entry: Value| (entry["id"].as_str().unwrap().to_owned(), entry["result"]["outputs"].clone());
    finished.map(outputs).collect()
}

/// Names of all jobs that were submitted.
fn submitted(project: &Project) -> Vec<String> {
    let names = std::fs::read_to_string(project.path("queue/submitted")).unwrap_or_default();
    names.lines().map(str::to_owned).collect()
}

/// Jobs whose folders are left in the cache.
fn left(project: &Project) -> usize {
    let entries = std::fs::read_dir(project.path("cache/tmp/jobs")).into_iter().flatten().flatten();
    entries.filter(|entry| entry.path().is_dir()).count()
}

/// The number of artifacts of one file whose seals fit; fails if one does not.
fn seals(project: &Project) -> usize {
    let inner = |folder: &Path| {
        std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let all: Vec<_> = inner(&project.path("cache/cas")).iter().flat_map(|folder| inner(folder)).collect();
    let artifacts = all.iter().filter(|path| path.is_dir());
    let checked = artifacts.filter_map(|artifact| {
        let files = inner(artifact);
        let [file] = &files[..] else { return None };
        let metadata = file.metadata().unwrap();
        let changed = i128::from(metadata.ctime()) * 1_000_000_000 + i128::from(metadata.ctime_nsec());
        let seal = std::fs::read_to_string(artifact.with_extension("seal")).unwrap();
        assert!(seal.contains(&changed.to_string()), "{}: {seal}", file.display());
        Some(())
    });
    checked.count()
}

/// [`toys`] whose last stage waits for [`Project::open_gate`].
fn gated(settings: &str) -> Project {
    let project = toys(0.0, settings);
    project.replace(
        "run.toml",
        "kind = \"step\"\nfrom = \"start\"\nsleep = 0\n",
        "kind = \"gate\"\nfrom = \"start\"\n",
    );
    project
}

/// The process of this project's only job, once its stage runs.
fn worker(project: &Project) -> String {
    until("the stage runs", || project.has_begun("more"));
    let job = project.path("queue/jobs").join(submitted(project).pop().unwrap());
    let mut process = String::new();
    until("the batch system knows the job's process", || {
        process = std::fs::read_to_string(job.join("pid")).unwrap_or_default().trim().to_owned();
        !process.is_empty()
    });
    process
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn jobs_and_shards_of_them_write_the_same_bytes() {
    let (here, jobs) = (training(""), training(""));
    here.run(&[]);
    let shards = ["--set", "stages.rollout.shards=2", "--set", "stages.exam.shards=3"];
    let planned = jobs.mcprl(&[&["plan", "run.toml"], &QUEUED[..], &shards].concat());
    assert!(planned.out.contains("; on queue in 2 shards"), "{}", planned.out);
    jobs.run(&[&QUEUED[..], &shards].concat());
    assert_eq!(written(&jobs), written(&here));
    let of = |stage: &str| submitted(&jobs).iter().filter(|job| job.contains(&format!("-{stage}-"))).count();
    assert_eq!([of("rollout"), of("exam"), of("update")], [3, 4, 1], "shards, and what puts them together");
    assert_eq!(left(&jobs), 0, "nothing is left of finished jobs");
    assert!(seals(&jobs) > 10, "nothing is hashed again");
    jobs.run(&[&QUEUED[..], &["--set", "stages.rollout.shards=3"]].concat());
    assert_eq!(written(&jobs), written(&here), "neither executor nor shards are in a key");
    assert_eq!(of("rollout"), 3);
}

#[test]
fn every_shard_plays_its_own_episodes_and_the_stage_plays_none_again() {
    let run = common::episodes_run(
        "prompts = 4\ngroup_size = 2\nmax_turns = 1\nmax_turn_tokens = 4\nshards = 4\nrefill_waves = 0",
    );
    let project = Project::with_model(&(run + &executor("jobs = 1")));
    let output = project.run(&["--json", "--set", "stages.rollout.executor=queue"]);
    let events = output.out.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut finished = events.filter(|event| event["event"] == "finished" && event["id"] == "rollout");
    let finished = finished.next().unwrap();
    assert_eq!(finished["result"]["metrics"]["episodes"], 8.0);
    assert!(finished["result"]["cost"]["spent"]["sampled_tokens"].as_u64().unwrap() <= 8 * 4, "{finished}");
    assert_eq!(submitted(&project).len(), 5);
    let families: BTreeSet<_> = std::fs::read_dir(project.path("cache/rows"))
        .unwrap()
        .flatten()
        .collect::<Vec<_>>()
        .iter()
        .flat_map(|family| {
            std::fs::read_dir(family.path())
                .unwrap()
                .flatten()
                .map(|file| file.path().extension().unwrap().to_owned())
        })
        .collect();
    assert_eq!(families, BTreeSet::from(["done".into()]), "the logs of all shards are one");
}

#[test]
fn a_job_that_is_killed_is_submitted_again_and_goes_on_with_its_rows() {
    let (project, reference) = (training("attempts = 9"), training(""));
    reference.run(&[]);
    let mut command = project.command(&["run", "run.toml", "--set", "stages.rollout.executor=queue"]);
    // In the process of the run, no row of a rollout is recorded.
    let output =
        common::output(command.env("MCPRL_FAILPOINT", "rows::recorded:2").args(["--until", "rollout"]));
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(output.err.contains("was lost (ENDED) and is submitted again"), "{}", output.err);
    // Two rows in each attempt.
    assert!((4..=9).contains(&submitted(&project).len()), "{:?}", submitted(&project));
    assert_eq!(written(&project)["rollout"], written(&reference)["rollout"]);
}

#[test]
fn a_job_that_is_lost_too_often_fails_its_stage_with_the_end_of_its_log() {
    let project = toys(30.0, "attempts = 2\nsetup = \"echo begun; exit 3\"");
    let output = project.mcprl(&["run", "run.toml"]);
    assert_eq!(output.code, Some(1), "{}", output.err);
    assert!(
        output.err.contains("of executor `queue` was lost, as were those before it: ENDED"),
        "{}",
        output.err
    );
    assert!(output.err.contains("its log ends: begun"), "{}", output.err);
    assert_eq!(submitted(&project).len(), 2);
}

#[test]
fn a_run_that_is_killed_leaves_its_job_and_the_next_one_takes_what_it_wrote() {
    for is_done in [false, true] {
        let project = gated("");
        let mut run = project.spawn(&["run", "run.toml"]);
        let job = worker(&project);
        signal(&run, Signal::KILL);
        run.wait().unwrap();
        assert!(is_running(&job), "the job goes on");
        if is_done {
            project.open_gate();
            until("the job ends", || !is_running(&job));
        }
        let resumed = project.spawn(&["resume", "latest"]);
        if !is_done {
            until("the run follows the job", || project.count_events("started", "more") == 2);
            project.open_gate();
        }
        let resumed = resumed.wait_with_output().unwrap();
        assert!(resumed.status.success(), "{}", String::from_utf8_lossy(&resumed.stderr));
        assert_eq!(project.result("more/number.txt"), "2");
        assert_eq!(submitted(&project).len(), 1);
        assert_eq!(left(&project), 0);
    }
}

#[test]
fn shards_that_are_done_are_not_submitted_again() {
    let project = training("");
    let run = ["run", "run.toml", "--until", "rollout"];
    let shards = ["--set", "stages.rollout.shards=2", "--set", "stages.rollout.executor=queue"];
    let mut run = project.spawn(&[&run[..], &shards].concat());
    until("both shards are done", || submitted(&project).len() == 3);
    signal(&run, Signal::KILL);
    run.wait().unwrap();
    let resumed = project.mcprl(&["resume", "latest"]);
    assert_eq!(resumed.code, Some(0), "{}", resumed.err);
    assert_eq!(submitted(&project).len(), 3, "{}", resumed.err);
    assert!(!resumed.err.contains("lost"), "{}", resumed.err);
}

#[test]
fn what_a_job_failed_with_while_no_run_followed_it_is_not_the_failure_of_the_next_run() {
    let project = toys(0.0, "");
    let fails = "until [ -e \"$TOY_LOG.go\" ] || [ ! -e \"$TOY_LOG\" ]; do sleep 0.02; done\n\
                 test -e \"$TOY_LOG.ok\" || exit 7\necho 5 > \"$MCPRL_OUTPUT_NUMBER\"";
    let card = "[outputs.number]\ntype = \"number\"\npath = \"number.txt\"\n";
    project.kind(
        "step",
        "seeded",
        &format!("[inputs.from]\ntype = \"number\"\n[params.sleep]\ntype = \"number\"\n{card}"),
        fails,
    );
    let mut run = project.spawn(&["run", "run.toml"]);
    let job = worker(&project);
    signal(&run, Signal::KILL);
    run.wait().unwrap();
    project.open_gate();
    until("the job fails", || !is_running(&job));
    project.write("log.ok", "");
    let resumed = project.mcprl(&["resume", "latest"]);
    assert_eq!(resumed.code, Some(0), "{}", resumed.err);
    assert_eq!(project.result("more/number.txt"), "5");
}

#[test]
fn a_folder_that_is_away_after_the_submission_costs_nothing() {
    let project = toys(0.0, "");
    project.write("queue/vanish", "");
    project.run(&[]);
    assert_eq!(project.result("more/number.txt"), "2");
    assert_eq!(submitted(&project).len(), 1);
}

#[test]
fn a_stage_that_reruns_gets_a_job_with_a_name_of_its_own() {
    let project = toys(0.0, "");
    for _ in 0..2 {
        project.run(&["--set", "stages.more.cache=refresh"]);
    }
    let names = submitted(&project);
    assert_eq!(names.len(), 2);
    assert_ne!(names[0], names[1]);
}

#[test]
fn an_interrupted_run_cancels_its_job_unless_it_is_told_to_leave_it() {
    for (settings, is_left) in [("", false), ("on_interrupt = \"leave\"", true)] {
        let project = gated(settings);
        let mut run = project.spawn(&["run", "run.toml"]);
        let job = worker(&project);
        signal(&run, Signal::INT);
        assert_eq!(run.wait().unwrap().code(), Some(130));
        match is_left {
            true => assert!(is_running(&job), "{settings}"),
            false => until("the job ends", || !is_running(&job)),
        }
        project.open_gate();
        let resumed = project.mcprl(&["resume", "latest"]);
        assert_eq!(resumed.code, Some(0), "{}", resumed.err);
        assert_eq!(project.result("more/number.txt"), "2");
        assert_eq!(submitted(&project).len(), if is_left { 1 } else { 2 });
    }
}

#[test]
fn a_job_is_found_by_its_key_wherever_its_stage_is_in_the_run_file() {
    let project = gated("");
    let mut run = project.spawn(&["run", "run.toml"]);
    worker(&project);
    signal(&run, Signal::KILL);
    run.wait().unwrap();
    project.replace(
        "run.toml",
        "[stages.start]",
        "[stages.first]\nkind = \"gen\"\nexecutor = \"local\"\nvalue = 7\n[stages.start]",
    );
    project.replace("run.toml", "[stages.more]", "[stages.renamed]");
    let run = project.spawn(&["run", "run.toml"]);
    until("the run follows the job", || project.count_events("started", "renamed") == 1);
    project.open_gate();
    let run = run.wait_with_output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert_eq!(project.result("renamed/number.txt"), "2");
    assert_eq!(submitted(&project).len(), 1);
}

#[test]
fn a_job_whose_submission_may_have_arrived_is_not_submitted_again() {
    let project = toys(0.0, "");
    project.write("queue/late", "");
    let run = project.spawn(&["run", "run.toml"]);
    until("it is submitted", || submitted(&project).len() == 1);
    project.write("queue/away", "");
    std::thread::sleep(Duration::from_millis(1500));
    std::fs::remove_file(project.path("queue/late")).unwrap();
    std::fs::remove_file(project.path("queue/away")).unwrap();
    let run = run.wait_with_output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert_eq!(submitted(&project).len(), 1);
}

#[test]
fn a_refusal_that_passes_costs_a_wait() {
    let project = toys(0.0, "");
    project.write("queue/refuse", "Socket timed out\n");
    let run = project.spawn(&["run", "run.toml"]);
    std::thread::sleep(Duration::from_secs(2));
    std::fs::remove_file(project.path("queue/refuse")).unwrap();
    let run = run.wait_with_output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert_eq!(project.result("more/number.txt"), "2");
}

#[test]
fn what_a_job_has_finished_is_no_garbage_before_a_run_has_taken_it() {
    let project = gated("");
    let mut run = project.spawn(&["run", "run.toml"]);
    let job = worker(&project);
    signal(&run, Signal::KILL);
    run.wait().unwrap();
    project.open_gate();
    until("the job ends", || !is_running(&job));
    let old = Command::new("find")
        .arg(project.path("cache/tmp/jobs"))
        .args(["-exec", "touch", "-d", "9 hours ago", "{}", "+"])
        .status();
    assert!(old.unwrap().success());
    let swept = project.mcprl(&["cache", "gc"]);
    assert_eq!(swept.code, Some(0), "{}", swept.err);
    let resumed = project.mcprl(&["resume", "latest"]);
    assert_eq!(resumed.code, Some(0), "{}", resumed.err);
    assert_eq!(submitted(&project).len(), 1);
    assert_eq!(project.ran(), ["more", "start"]);
    let leases = std::fs::read_dir(project.path("cache/leases")).unwrap().flatten();
    assert_eq!(leases.count(), 0, "those of killed processes are removed");
}

#[test]
fn a_shared_folder_that_is_away_for_a_moment_stops_no_job() {
    let project = gated("");
    let mut run = project.spawn(&["run", "run.toml"]);
    let job = worker(&project);
    std::fs::rename(project.path("cache"), project.path("away")).unwrap();
    std::thread::sleep(Duration::from_secs(6));
    std::fs::rename(project.path("away"), project.path("cache")).unwrap();
    std::thread::sleep(Duration::from_secs(2));
    assert!(is_running(&job));
    project.open_gate();
    assert_eq!(run.wait().unwrap().code(), Some(0));
    assert_eq!(project.result("more/number.txt"), "2");
    assert_eq!(submitted(&project).len(), 1);
}

#[test]
fn a_stage_that_fails_leaves_no_shard_on_the_cluster() {
    let run = common::episodes_run("prompts = 8\ngroup_size = 256\nmax_turns = 2\nmax_turn_tokens = 64");
    let project = Project::with_model(&(run + &executor("on_interrupt = \"leave\"\nattempts = 1")));
    let set = ["--set", "stages.rollout.executor=queue", "--set", "stages.rollout.shards=2"];
    let mut run = project.spawn(&[&["run", "run.toml"], &set[..]].concat());
    let processes = || -> Vec<String> {
        let job = |name: &String| std::fs::read_to_string(project.path(&format!("queue/jobs/{name}/pid")));
        let found = submitted(&project).iter().filter_map(|name| job(name).ok()).collect::<Vec<_>>();
        found.iter().map(|id| id.trim().to_owned()).filter(|id| !id.is_empty()).collect()
    };
    until("both shards run", || processes().len() == 2);
    let [first, second] = &processes()[..] else { panic!() };
    kill_process(Pid::from_raw(first.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(1));
    until("the other shard ends", || !is_running(second));
}

#[test]
fn a_job_that_waits_is_cancelled_with_its_run() {
    let project = toys(0.0, "");
    project.write("queue/hold", "");
    let mut run = project.spawn(&["run", "run.toml"]);
    until("the job waits", || !submitted(&project).is_empty());
    signal(&run, Signal::INT);
    assert_eq!(run.wait().unwrap().code(), Some(130));
    let job = &submitted(&project)[0];
    until("the job is cancelled", || project.path(&format!("queue/jobs/{job}/cancelled")).exists());
}

#[test]
fn shards_that_wait_are_all_cancelled_with_their_run() {
    let project = training("jobs = 2");
    project.write("queue/hold", "");
    let set = ["--set", "stages.rollout.executor=queue", "--set", "stages.rollout.shards=3"];
    let mut run = project.spawn(&[&["run", "run.toml"], &set[..]].concat());
    until("two shards wait", || submitted(&project).len() == 2);
    signal(&run, Signal::INT);
    assert_eq!(run.wait().unwrap().code(), Some(130));
    for job in submitted(&project) {
        until("it is cancelled", || project.path(&format!("queue/jobs/{job}/cancelled")).exists());
    }
}

#[test]
fn a_job_that_is_called_dead_ends_by_itself_and_only_the_new_one_counts() {
    let project = gated("");
    let mut run = project.spawn(&["run", "run.toml"]);
    let first = worker(&project);
    project.write("queue/dead", "");
    until("it is submitted again", || submitted(&project).len() == 2);
    until("the first one ends", || !is_running(&first));
    project.open_gate();
    assert_eq!(run.wait().unwrap().code(), Some(0));
    assert_eq!(project.result("more/number.txt"), "2");
    assert_eq!(project.ran(), ["more", "more", "start"]);
}

#[test]
fn what_a_batch_system_refuses_is_said_and_never_cached() {
    let project = toys(0.0, "");
    project.write("queue/refuse", "no account\n");
    let refused = project.mcprl(&["run", "run.toml"]);
    assert_eq!(refused.code, Some(1), "{}", refused.err);
    assert!(
        refused.err.contains("executor `queue`: cannot submit a job: `sh`: exit status: 1: no account"),
        "{}",
        refused.err
    );
    std::fs::remove_file(project.path("queue/refuse")).unwrap();
    assert_eq!(project.mcprl(&["resume", "latest"]).code, Some(0));
}

#[test]
fn a_stage_that_fails_in_a_job_reads_as_one_that_fails_here() {
    let run = "[server]\ncommand = [\"false\"]\nstate = \"read-only\"\n[stages.tools]\nkind = \"discover\"\nexecutor = \"local\"\n";
    let failure = |more: &[&str]| {
        let project = Project::new(&(run.to_owned() + &executor("")));
        let output = project.mcprl(&[&["run", "run.toml", "--json"], more].concat());
        assert_eq!(output.code, Some(1), "{}", output.err);
        let failed = output.out.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        failed.filter(|event| event["event"] == "failed").map(|event| event["error"].clone()).next().unwrap()
    };
    let (here, queued) = (failure(&[]), failure(&["--set", "stages.tools.executor=queue"]));
    assert!(here["code"].as_str().unwrap().starts_with("mcp::"), "{here}");
    assert_eq!(here, queued);
}

/// Puts this program, changed by a byte that nothing reads, into the project.
fn changed_program(project: &Project, name: &str) {
    let mut program = std::fs::read(env!("CARGO_BIN_EXE_mcprl")).unwrap();
    program.push(0);
    std::fs::write(project.path("new"), program).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(project.path("new"), executable).unwrap();
    std::fs::rename(project.path("new"), project.path(name)).unwrap();
}

#[test]
fn another_program_on_the_node_is_refused_unless_the_run_file_names_it() {
    let project = toys(0.0, "program = \"./other\"");
    changed_program(&project, "other");
    project.run(&[]);
    let project = toys(0.0, "");
    project.replace(
        "run.toml",
        "[stages.more]",
        "[stages.slow]\nkind = \"gate\"\nfrom = \"start\"\nexecutor = \"local\"\n[stages.more]",
    );
    project.replace("run.toml", "from = \"start\"\nsleep = 0", "from = \"slow\"\nsleep = 0");
    std::fs::copy(env!("CARGO_BIN_EXE_mcprl"), project.path("mcprl")).unwrap();
    let mut command = Command::new(project.path("mcprl"));
    command.args(["run", "run.toml"]).current_dir(project.path("")).env("TOY_LOG", project.path("log"));
    let run = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    until("the first job is not there yet", || project.path("log").exists());
    changed_program(&project, "mcprl");
    project.open_gate();
    let refused = String::from_utf8(run.wait_with_output().unwrap().stderr).unwrap();
    assert!(refused.contains("is another one than that of the run"), "{refused}");
}

#[test]
fn a_stage_that_is_a_job_needs_no_device_of_this_machine() {
    let run = common::episodes_run("max_turns = 1") + &executor("");
    let project = Project::with_model(&run);
    let set = ["--set", "engine.devices=[\"cuda:7\"]"];
    let refused = project.mcprl(&[&["plan", "run.toml"], &set[..]].concat());
    assert!(refused.code == Some(2) && refused.err.contains("cuda:7"), "{}", refused.err);
    let planned = project
        .mcprl(&[&["plan", "run.toml"], &set[..], &["--set", "stages.rollout.executor=queue"]].concat());
    assert_eq!(planned.code, Some(0), "{}", planned.err);
}

#[test]
fn mistakes_in_an_executor_are_named_with_their_place() {
    let plan = |executors: &str, stage: &str| {
        let project = Project::new(&format!("[stages.start]\nkind = \"gen\"\n{stage}\n{executors}"));
        project.write("bad.toml", "about = \"\"\n");
        let output = project.mcprl(&["plan", "run.toml"]);
        assert_eq!(output.code, Some(2), "{}", output.err);
        output.err
    };
    let refused = plan("[executors.gpu]\nkind = \"slrum\"", "");
    assert!(
        refused.contains("should be one of kubernetes, local, ray, slurm, or the path of a template"),
        "{refused}"
    );
    assert!(refused.contains("did you mean \"slurm\"?") && refused.contains("run.toml:5"), "{refused}");
    let refused = plan("[executors.gpu]\nkind = \"slurm\"\npartitoin = \"a\"", "");
    assert!(refused.contains("unknown key `partitoin`") && refused.contains("`partition`"), "{refused}");
    assert!(plan("[executors.gpu]\nkind = \"kubernetes\"", "").contains("needs `image`"));
    assert!(plan("[executors.gpu]\nkind = \"bad.toml\"", "").contains("bad.toml is no template"));
    assert!(plan("[executors.gpu]\nkind = \"none.toml\"", "").contains("cannot read"));
    let refused = plan("[executors.gpu]\nkind = \"slurm\"\nresources = { time = \"4\" }", "");
    assert!(refused.contains("should be a time such as"), "{refused}");
    assert!(plan("[executors.local]\nkind = \"slurm\"", "").contains("is an executor already"));
    assert!(plan("", "executor = \"gpu\"").contains("`stages.start.executor` should be one of local"));
    let refused = plan("[executors.gpu]\nkind = \"slurm\"", "executor = \"gpu\"\nshards = 2");
    assert!(refused.contains("plays no episodes to divide"), "{refused}");
    let shards = Project::with_model(&common::episodes_run("shards = 2")).mcprl(&["plan", "run.toml"]);
    assert!(
        shards.err.contains("`stages.rollout.shards` needs an `executor` of [executors]"),
        "{}",
        shards.err
    );
}

#[test]
fn a_whole_run_is_one_job_and_a_dry_run_shows_it() {
    let project = toys(0.0, "");
    let none = project.mcprl(&["submit", "run.toml", "--on", "queu"]);
    assert!(none.code == Some(2) && none.err.contains("did you mean \"queue\"?"), "{}", none.err);
    let shown = project.mcprl(&["submit", "run.toml", "--on", "queue", "--set", "seed=3", "--dry-run"]);
    assert_eq!(shown.code, Some(0), "{}", shown.err);
    for part in ["shell.sh", "exec '", "'--set' 'seed=3'", "kind = \"step\""] {
        assert!(shown.out.contains(part), "{part}: {}", shown.out);
    }
    assert!(submitted(&project).is_empty() && !project.path("cache/submitted").exists());
    // Its stages run within it.
    let sent = project.mcprl(&["submit", "run.toml", "--on", "queue", "--set", "executor=local", "--json"]);
    assert_eq!(sent.code, Some(0), "{}", sent.err);
    let sent: Value = serde_json::from_str(&sent.out).unwrap();
    until("the run's last stage is in the job's log", || {
        std::fs::read_to_string(sent["log"].as_str().unwrap()).is_ok_and(|log| log.contains("done     more"))
    });
    assert_eq!(project.result("more/number.txt"), "2");
}

#[test]
fn templates_are_printed_to_be_adapted() {
    let project = Project::new("");
    let list = project.mcprl(&["executors"]).out;
    assert!(["kubernetes", "local", "ray", "slurm"].iter().all(|kind| list.contains(kind)), "{list}");
    project.write("my.toml", &project.mcprl(&["executors", "slurm"]).out);
    project.write("run.toml", "[stages.start]\nkind = \"gen\"\nexecutor = \"my\"\n[executors.my]\nkind = \"my.toml\"\npartition = \"a\"\n");
    let planned = project.mcprl(&["plan", "run.toml"]);
    assert!(planned.out.contains("on my"), "{}{}", planned.out, planned.err);
}
