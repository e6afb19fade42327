//! What practice starts from, whether it begins, and what is left of it.

use std::path::Path;

use mcprl::data::{self, Scenario, Trajectory};

use crate::common::Project;

/// The sqlite demo with its tiny base; `practice` stands behind its tasks.
fn demo(practice: &str) -> Project {
    let pipelines = Path::new(env!("CARGO_MANIFEST_DIR")).join("pipelines");
    let read = |name: &str| std::fs::read_to_string(pipelines.join(name)).unwrap();
    let run_file = read("sqlite.toml");
    let (before, _) = run_file.split_once("[loop.train]").unwrap();
    let project = Project::new(&format!("{before}{practice}"));
    for name in ["sqlite.families.toml", "sqlite.system.txt"] {
        project.write(name, &read(name));
    }
    project.replace("run.toml", "\"sqlite-model\"", &format!("{:?}", pipelines.join("sqlite-model")));
    let few =
        "families = \"sqlite.families.toml\"\nquestions_per_family = 6\nheldout_per_split = 4\ndev = 12\n";
    project.replace("run.toml", "families = \"sqlite.families.toml\"\n", few);
    project
}

const HEADROOM: &str = "
[stages.headroom]
kind = \"headroom\"
policies = { base = \"base\" }
tools = \"tools\"
scenarios = \"tasks.train\"
dev = \"tasks.dev\"
tasks = 4
samples = 4
";

/// Two iterations whose steps are far too large.
const COLLAPSE: &str = "
[loop.train]
iterations = 2
carry = { policy = \"headroom.policy\" }
best = { metric = \"dev.success_greedy\", start = \"headroom.dev\" }

[loop.train.stages.rollout]
kind = \"rollout\"
policy = \"@policy\"
tools = \"tools\"
scenarios = \"tasks.train\"
prompts = 4
group_size = 4

[loop.train.stages.reward]
kind = \"judge\"
trajectories = \"rollout\"
scenarios = \"tasks.train\"

[loop.train.stages.update]
kind = \"grpo\"
policy = \"@policy\"
trajectories = \"rollout\"
rewards = \"reward\"
yields = \"policy\"
learning_rate = 1.0
minibatches = 4

[loop.train.stages.dev]
kind = \"rollout\"
policy = \"update\"
tools = \"tools\"
scenarios = \"tasks.dev\"
group_size = 1
refill_waves = 0
temperature = 0.0

[stages.served]
kind = \"rollout\"
policy = \"train.policy\"
tools = \"tools\"
scenarios = \"tasks.heldout\"
prompts = 1
group_size = 2
";

#[test]
fn a_policy_that_collapses_in_practice_ends_with_the_start_served() {
    let project = demo(&format!("{HEADROOM}{COLLAPSE}"));
    let done = project.mcprl(&["run", "run.toml"]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert!(done.err.contains("no iteration is better than its start, which is its result"), "{}", done.err);
    let by = |stage: &str| -> String {
        let path = project.newest().join(stage).join("trajectories.parquet");
        data::read::<Trajectory>(&path).unwrap()[0].policy.clone()
    };
    assert_eq!(by("served"), by("headroom"));
    assert_ne!(
        by("train.0002/rollout"),
        by("headroom"),
        "the second iteration plays with what the first made"
    );
    let exported = project.mcprl(&["export", "latest", "--out", "agent"]);
    let said = format!("{}{}", exported.out, exported.err);
    assert!(said.contains("headroom") && !said.contains("update"), "{said}");
}

#[test]
fn without_tasks_to_measure_on_the_last_iteration_counts() {
    let project = demo(&format!("{HEADROOM}{COLLAPSE}"));
    project.replace("run.toml", "dev = 12\n", "");
    project.replace("run.toml", "learning_rate = 1.0\n", "learning_rate = 1e-4\n");
    let done = project.mcprl(&["run", "run.toml"]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    let exported = project.mcprl(&["export", "latest", "--out", "agent"]);
    let said = format!("{}{}", exported.out, exported.err);
    assert!(said.contains("train[0002]/update"), "{said}");
    let by = |stage: &str| -> String {
        let path = project.newest().join(stage).join("trajectories.parquet");
        data::read::<Trajectory>(&path).unwrap()[0].policy.clone()
    };
    assert_ne!(by("served"), by("headroom"));
}

#[test]
fn a_loop_begins_where_practice_can_help() {
    let gate = "\n[loop.train]\niterations = 1\ncarry = { policy = \"headroom.policy\" }\nif = { metric = \
                \"headroom.practice\", at_least = 1 }\n\n[loop.train.stages.update]\nkind = \"sft\"\npolicy = \
                \"@policy\"\ntrajectories = \"headroom\"\nyields = \"policy\"\n";
    let project = demo(&format!("{HEADROOM}{gate}"));
    let done = project.mcprl(&["run", "run.toml"]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert!(done.err.contains("Practice can help") && done.err.contains("train[0001]"), "{}", done.err);
    let hopeless = project.mcprl(&["run", "run.toml", "--set", "stages.headroom.max_turns=1"]);
    assert!(hopeless.err.contains("The model cannot do these tasks yet"), "{}", hopeless.err);
    let said =
        "loop \"train\" did not begin, because `headroom.practice` is 0: its result is what it starts from";
    assert!(hopeless.err.contains(said), "{}", hopeless.err);
}

/// The standard pipeline on the demo server with its tiny base, and tasks of one's own.
fn own_tasks(count: usize) -> Project {
    let pipelines = Path::new(env!("CARGO_MANIFEST_DIR")).join("pipelines");
    let project = Project::new("");
    std::fs::remove_file(project.path("run.toml")).unwrap();
    let names = [
        "Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ivo", "Jo", "Kim", "Lou", "Max", "Ned",
        "Ola",
    ];
    let line = |name: &&str| format!("{{\"task\": \"How many people are called {name}?\", \"answer\": 1}}\n");
    project.write("tasks.jsonl", &names.iter().take(count).map(line).collect::<String>());
    let model = pipelines.join("sqlite-model");
    let init =
        ["init", "--tasks", "tasks.jsonl", "--iterations", "0", "--model", &model.to_string_lossy(), "--"];
    let server = [env!("CARGO_BIN_EXE_mcprl"), "demo-server", "sqlite"];
    let made = project.mcprl(&[&init[..], &server].concat());
    assert_eq!(made.code, Some(0), "{}", made.err);
    project
}

#[test]
fn few_tasks_of_ones_own_are_examined_after_training_on_explored_ones() {
    for count in [5, 15] {
        let project = own_tasks(count);
        let small = [
            "tasks.tasks=30",
            "tasks.explore_calls=150",
            "tasks.dev=6",
            "headroom.tasks=4",
            "headroom.samples=2",
        ];
        let set = small.map(|set| format!("stages.{set}"));
        let set = set.iter().flat_map(|set| ["--set", set.as_str()]);
        let mut run = vec!["run", "run.toml"];
        run.extend(set);
        run.extend([
            "--set",
            "stages.exam.samples=1",
            "--set",
            "agent.max_turns=3",
            "--set",
            "agent.max_turn_tokens=64",
        ]);
        let done = project.mcprl(&run);
        assert_eq!(done.code, Some(0), "{}", done.err);
        let read = |port: &str| -> Vec<Scenario> {
            data::read(&project.newest().join(format!("tasks/{port}.parquet"))).unwrap()
        };
        let (heldout, train, dev, start) = (read("heldout"), read("train"), read("dev"), read("start"));
        assert_eq!(heldout.len(), count);
        assert!(train.len() > 10 && !dev.is_empty(), "{} {}", train.len(), dev.len());
        assert!(start.iter().all(|task| task.reference.is_some()) && start.len() == train.len());
        assert!(train.iter().chain(&dev).all(|task| !task.task.contains("people are called")));
        assert!(done.err.contains("all tasks of the file are held out"), "{}", done.err);
        assert!(project.newest().join("exam/verdict.parquet").is_file());
    }
}
