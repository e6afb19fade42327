//! `mcprl rejudge`, and judges of a run from end to end.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::common::{self, Project};
use mcprl::data::{self, Reward};
use serde_json::{Value, json};

/// Scores episodes by their place: upwards, or downwards.
const UP: &str = "n=10; while read -r line; do n=$((n+1)); id=$(printf '%s' \"$line\" | cut -d'\"' -f4); echo \"{\\\"id\\\": \\\"$id\\\", \\\"score\\\": 0.$n}\"; done\n";

/// A run of episodes without known answers, judged by `up.sh`.
fn project() -> Project {
    let settings = "prompts = 20\ngroup_size = 2\nrefill_waves = 0\nmax_turns = 1\nmax_turn_tokens = 4";
    let stage = "\n[stages.reward]\nkind = \"judge\"\ntrajectories = \"rollout\"\nscenarios = \"tasks.train\"\n\
                 weights = { command = 1.0 }\nprogram = \"up.sh\"\ninterpreter = [\"sh\"]\nunfinished_cost = 0.0\n";
    let project = Project::with_model(&(common::episodes_run(settings) + stage));
    let task = |i: usize| format!("{{\"task\": \"How many projects has team {i}?\"}}\n");
    project.write("tasks.jsonl", &(0..10).map(task).collect::<String>());
    project.replace("run.toml", "\"tasks.jsonl\"", "\"tasks.jsonl\"\nheldout_share = 0.0");
    project.write("up.sh", UP);
    project.write("down.sh", &UP.replace("n=10;", "n=90;").replace("n+1", "n-1"));
    project
}

/// Names and contents of all files of the newest run.
fn contents(project: &Project) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![project.newest()];
    while let Some(folder) = folders.pop() {
        for item in std::fs::read_dir(folder).unwrap() {
            let path = item.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.push((path.display().to_string(), std::fs::read(&path).unwrap())),
            }
        }
    }
    found.sort();
    found
}

fn rejudge(project: &Project, more: &[&str]) -> Value {
    let arguments: Vec<&str> = ["rejudge", "latest", "--json"].iter().chain(more).copied().collect();
    let output = project.mcprl(&arguments);
    assert_eq!(output.code, Some(0), "{}", output.err);
    serde_json::from_str(&output.out).unwrap()
}

#[test]
fn another_judge_changes_ranks_and_advantages_but_not_the_run() {
    let project = project();
    project.run(&[]);
    let (before, runs) = (contents(&project), project.runs());

    let same = rejudge(&project, &[]);
    assert_eq!(same["total"]["trajectories"], 20);
    assert_eq!(same["total"]["groups"], 10);
    assert_eq!((&same["total"]["spearman"], &same["total"]["sign_flips"]), (&json!(1.0), &json!(0.0)));

    let other = rejudge(&project, &["--set", "program=down.sh"]);
    let total = &other["total"];
    assert_eq!((&total["spearman"], &total["kendall"]), (&json!(-1.0), &json!(-1.0)), "{other}");
    assert_eq!((&total["best_changes"], &total["sign_flips"]), (&json!(1.0), &json!(1.0)));
    assert_eq!(other["stages"][0]["stage"], "reward");
    assert!(other["stages"][0]["metrics"]["reward"].as_f64().unwrap() > 0.5);

    let whole = rejudge(&project, &["--set", "stages.reward.program=down.sh"]);
    assert_eq!(whole["total"], other["total"]);
    assert_eq!((contents(&project), project.runs()), (before, runs));
}

#[test]
fn the_judge_of_another_run_file_is_used() {
    let project = project();
    project.run(&[]);
    project.write(
        "other.toml",
        &project.read("run.toml").replace("up.sh", "down.sh").replace("stages.reward", "stages.score"),
    );
    let other = rejudge(&project, &["--with", "other.toml"]);
    assert_eq!(other["total"]["spearman"], -1.0, "the only stage that writes rewards");

    let text = project.mcprl(&["rejudge", "latest/reward", "--with", "other.toml"]);
    assert_eq!(text.code, Some(0), "{}", text.err);
    assert!(text.out.contains("Spearman correlation within groups         -1.000"), "{}", text.out);
}

#[test]
fn a_language_model_can_judge_again_and_reports_its_cost() {
    let project = project();
    project.run(&[]);
    let base_url = common::judge(|_| Some((1..=16).map(|id| json!({ "id": id, "score": 0.5 })).collect()));
    let set = ["weights.command=0", "weights.relative=1.0", "model=m", &format!("base_url={base_url}")];
    let arguments: Vec<&str> = set.iter().flat_map(|set| ["--set", *set]).collect();
    let flat = rejudge(&project, &arguments);
    assert_eq!((&flat["total"]["flat_after"], &flat["total"]["spearman"]), (&json!(10), &Value::Null));
    assert!(flat["stages"][0]["metrics"]["judge_requests"].as_f64().unwrap() >= 10.0);
}

#[test]
fn a_run_with_the_judge_that_was_tried_does_not_ask_it_again() {
    let project = project();
    project.run(&[]);
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let base_url = common::judge(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        Some((1..=16).map(|id| json!({ "id": id, "score": 0.5 })).collect())
    });
    let set = ["weights.command=0", "weights.relative=1.0", "model=m", &format!("base_url={base_url}")];
    let of_stage = set.map(|set| format!("stages.reward.{set}"));
    let arguments: Vec<&str> = set.iter().flat_map(|set| ["--set", *set]).collect();
    rejudge(&project, &arguments);
    let paid = asked.load(Ordering::Relaxed);
    assert!(paid >= 10, "{paid}");
    rejudge(&project, &arguments);
    let arguments: Vec<&str> = of_stage.iter().flat_map(|set| ["--set", set.as_str()]).collect();
    project.run(&arguments);
    assert_eq!(asked.load(Ordering::Relaxed), paid);
}

/// A reply that scores the attempts `1` and `2`, in the only form that a local model's reply has.
fn scored(one: f64, two: f64) -> String {
    let entry = |id: u32, score: f64| {
        format!("{{\"id\": \"{id}\", \"explanation\": \"so\", \"score\": {}}}", json!(score))
    };
    format!("{{\"scores\": [{}, {}]}}", entry(1, one), entry(2, two))
}

/// A run whose episodes are judged by the model in the folder `grader`, and the reply of that model.
fn local(more: &str) -> Project {
    let settings = "prompts = 4\ngroup_size = 2\nrefill_waves = 0\nmax_turns = 1\nmax_turn_tokens = 4";
    let stages = format!(
        "\n[stages.grader]\nkind = \"model\"\nfrom = \"grader\"\n\n\
         [stages.reward]\nkind = \"judge\"\ntrajectories = \"rollout\"\nscenarios = \"tasks.train\"\n\
         weights = {{ relative = 1.0, truth = 0 }}\nveto = false\nlocal_model = \"grader\"\nunfinished_cost = 0.0\n{more}\n"
    );
    let project = Project::with_model(&(common::episodes_run(settings) + &stages));
    project.replier("grader", &scored(0.25, 0.5));
    project
}

#[test]
fn a_model_of_the_engine_judges_a_run_offline() {
    let project = local("");
    let plan = project.mcprl(&["plan", "run.toml"]);
    let memory = plan.out.lines().find(|line| line.starts_with("estimated memory: "));
    assert!(memory.is_some_and(|line| line.contains("reward ")), "{}", plan.out);
    project.run(&[]);
    let rewards: Vec<Reward> = data::read(&project.newest().join("reward/rewards.parquet")).unwrap();
    // Each attempt is shown first once and last once.
    assert_eq!(rewards.iter().map(|reward| reward.reward).collect::<Vec<_>>(), [0.375; 8]);
    let shown = project.mcprl(&["show", "latest", "--json"]);
    let shown: Value = serde_json::from_str(&shown.out).unwrap();
    let stages = shown["stages"].as_array().unwrap();
    let stage = |name: &str| stages.iter().find(|stage| stage["id"] == name).unwrap();
    let reward = stage("reward");
    assert!(reward["spent"]["sampled_tokens"].as_u64().unwrap() >= 16, "{reward}");
    assert_eq!(reward["spent"]["judge_requests"], 0, "{reward}");
    let again = project.mcprl(&["plan", "run.toml"]).out;
    assert!(again.contains(" 0 to run"), "{again}");

    // Another model is another judge, and the episodes stay.
    project.replier("grader", &scored(0.0, 1.0));
    let plan = project.mcprl(&["plan", "run.toml"]).out;
    assert!(plan.contains("may run reward") && plan.contains("cached  rollout"), "{plan}");
}

#[test]
fn episodes_are_judged_again_by_a_model_of_the_engine() {
    let project = local("orders = 1");
    project.run(&[]);
    let same = rejudge(&project, &[]);
    assert_eq!(
        (&same["total"]["spearman"], &same["total"]["trajectories"]),
        (&json!(1.0), &json!(8)),
        "{same}"
    );
    assert_eq!(same["stages"][0]["metrics"]["judge_requests"], 4.0);
    assert_eq!(same["stages"][0]["dollars"], Value::Null, "{same}");

    // The model that is trained writes no scores. It is that of the run, whatever the folder holds now.
    project.llama(2);
    let other = rejudge(&project, &["--set", "local_model=base", "--set", "max_tokens=4"]);
    assert_eq!(other["stages"][0]["metrics"]["unjudged_groups"], 4.0, "{other}");

    // A model that only the other file has must have been stored by a run.
    let text = project
        .read("run.toml")
        .replace("stages.grader", "stages.critic")
        .replace("\"grader\"\nun", "\"critic\"\nun");
    project.write("other.toml", &text.replace("from = \"grader\"", "from = \"critic\""));
    project.replier("critic", &scored(0.5, 0.25));
    let refused = project.mcprl(&["rejudge", "latest", "--with", "other.toml"]);
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert!(
        refused.err.contains("the result of \"critic\", which is the judge's `local_model`"),
        "{}",
        refused.err
    );
    assert_eq!(project.mcprl(&["run", "other.toml"]).code, Some(0));
    let first = project.runs().remove(0);
    let output = project.mcprl(&["rejudge", &first, "--json", "--with", "other.toml"]);
    let other: Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!(other["total"]["spearman"], -1.0, "{}", output.err);
}

#[test]
fn one_stage_takes_an_endpoint_or_a_model_of_the_engine() {
    let project = local("");
    let refused = |set: &[&str], messages: &[&str]| {
        let set = set.iter().flat_map(|set| ["--set", *set]);
        let arguments: Vec<&str> = ["plan", "run.toml"].into_iter().chain(set).collect();
        let output = project.mcprl(&arguments);
        messages.iter().for_each(|message| {
            assert!(
                (output.err.clone() + &output.out).contains(message),
                "{message}: {}\n{}",
                output.err,
                output.out
            );
        });
        output.code
    };
    let both = ["stages.reward.base_url=http://127.0.0.1:9/v1", "stages.reward.model=m"];
    let messages =
        ["both `local_model` and `base_url` are set", "hint: remove `local_model` to ask an endpoint"];
    assert_eq!(refused(&both, &messages), Some(2));
    let code = refused(&["stages.reward.max_cost=1"], &["`max_cost` has no effect"]);
    assert_eq!(code, Some(0), "a note");
    assert_eq!(
        refused(
            &["stages.reward.weights.relative=0", "stages.reward.weights.truth=1"],
            &["asks no language model"]
        ),
        Some(0)
    );
    let config = project.read("grader/config.json");
    project.write("grader/config.json", &config.replace("8192", "256"));
    assert_eq!(
        refused(&[], &["the instructions alone have", "the context of `local_model` is 256"]),
        Some(2)
    );
    project.replace("run.toml", "local_model = \"grader\"\n", "");
    let messages = [
        "`relative` is used, but `base_url` is not set",
        "`relative` is used, but `model` is not set",
        "set `base_url` and `model` to ask an endpoint, or `local_model` to a model that the engine runs",
    ];
    assert_eq!(refused(&[], &messages), Some(2));
}

#[test]
fn what_cannot_be_judged_again_is_refused() {
    let project = project();
    project.run(&[]);
    let refused = |arguments: &[&str], code: i32, message: &str| {
        let output = project.mcprl(arguments);
        assert_eq!(output.code, Some(code), "{arguments:?}: {}", output.err);
        assert!(output.err.contains(message), "{arguments:?}: {}", output.err);
    };
    refused(&["rejudge", "latest/rollout"], 2, "no finished stage that judges trajectories");
    refused(&["rejudge", "latest/nothing"], 2, "nothing");
    refused(&["rejudge", "nowhere"], 2, "nowhere");
    refused(&["rejudge", "latest", "--set", "program=no.sh"], 2, "cannot read \"no.sh\"");
    refused(&["rejudge", "latest", "--set", "comand=1"], 2, "comand");
    project.write("fails.sh", "echo no such luck >&2; exit 4\n");
    refused(&["rejudge", "latest", "--set", "program=fails.sh"], 1, "no such luck");
    project.write("none.toml", project.read("run.toml").split("[stages.reward]").next().unwrap());
    refused(&["rejudge", "latest", "--with", "none.toml"], 2, "has no stage \"reward\"");
}

#[test]
fn a_changed_program_judges_again_and_the_same_does_not() {
    let project = project();
    project.run(&[]);
    let rewards = || std::fs::read(project.newest().join("reward/rewards.parquet")).unwrap();
    let first = rewards();
    let again = project.run(&[]);
    assert!(!again.err.contains("judging"), "{}", again.err);
    project.write("up.sh", &project.read("down.sh"));
    project.run(&[]);
    assert_ne!(rewards(), first);
    project.write("up.sh", "exit 1\n");
    let failed = project.mcprl(&["run", "run.toml"]);
    assert_eq!(failed.code, Some(1));
    assert!(failed.err.contains("it ended with exit status: 1"), "{}", failed.err);
    project.write("up.sh", UP);
    project.run(&[]);
    assert_eq!(rewards(), first, "nothing of the failure is kept");
}
