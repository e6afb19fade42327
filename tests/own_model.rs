//! A model and stages of one's own through the whole pipeline: the real binary, a tiny Llama, the demo server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::path::{Path, PathBuf};

use common::Project;
use mcprl::{
    data::{self, Reward},
    model::{Decoder, Init, ModelConfig},
};
use serde_json::Value;

const RUN: &str = r#"
name = "own"
seed = 3
model = "llama"

[server]
command = ["{mcprl}", "demo-server", "sqlite"]
state = "read-only"

[engine]
devices = ["cpu"]

[stages.tools]
kind = "discover"

[stages.tasks]
kind = "scenarios"
tools = "tools"
source = "file"
file = "tasks.jsonl"

[stages.rollout]
kind = "rollout"
policy = "base"
tools = "tools"
scenarios = "tasks.train"
group_size = 2
max_turns = 2
max_turn_tokens = 6

[stages.reward]
kind = "judge"
trajectories = "rollout"
scenarios = "tasks.train"

[stages.update]
kind = "grpo"
policy = "base"
trajectories = "rollout"
rewards = "reward"

[stages.exam]
kind = "eval"
policies = { base = "base", trained = "update" }
tools = "tools"
scenarios = "tasks.heldout"
max_turns = 2
max_turn_tokens = 6
"#;

/// Puts a stage of `examples/own-stages` into the project.
fn example(project: &Project, kind: &str) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/own-stages/stages").join(kind);
    std::fs::create_dir_all(project.path("stages").join(kind)).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), project.path("stages").join(kind).join(entry.file_name())).unwrap();
    }
}

fn newest(project: &Project) -> PathBuf {
    project.path("cache/runs").join(project.runs().pop().unwrap())
}

/// The files that training wrote.
fn trained(project: &Project) -> [Vec<u8>; 2] {
    ["adapter_model.safetensors", "optimizer.safetensors"]
        .map(|name| std::fs::read(newest(project).join("update/policy").join(name)).unwrap())
}

#[test]
fn the_examples_shell_stage_packs_a_policy_that_unpacks_to_what_its_checksums_say() {
    let project =
        Project::with_model(&format!("{RUN}\n[stages.release]\nkind = \"pack\"\npolicy = \"update\"\n"));
    example(&project, "pack");
    project.run(&["--set", "stages.exam.max_turns=1"]);
    let archive = newest(&project).join("release/policy.tar.gz");
    let unpacked = project.path("unpacked");
    std::fs::create_dir(&unpacked).unwrap();
    let shell = format!(
        "tar -xzf {} && sha256sum --check --quiet {}",
        archive.display(),
        archive.with_file_name("SHA256SUMS").display()
    );
    let checked =
        std::process::Command::new("sh").args(["-ec", &shell]).current_dir(&unpacked).status().unwrap();
    assert!(checked.success());
    assert!(unpacked.join("adapter_model.safetensors").exists());
}

#[test]
#[ignore = "needs python3 with polars on the path"]
fn the_examples_python_stage_changes_rewards_that_an_update_learns_from() {
    let run = RUN.replace("[stages.reward]", "[stages.truth]").replace(
        "[stages.update]",
        "[stages.reward]\nkind = \"thrift\"\ntrajectories = \"rollout\"\nrewards = \"truth\"\nprice = 2.5\n\n[stages.update]",
    );
    let project = Project::with_model(&run);
    example(&project, "thrift");
    project.run(&[]);
    let [before, after] = ["truth", "reward"]
        .map(|stage| data::read::<Reward>(&newest(&project).join(stage).join("rewards.parquet")).unwrap());
    assert_eq!(before.len(), after.len());
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.trajectory_id, after.trajectory_id);
        let components: Value = serde_json::from_str(&after.components).unwrap();
        let thrift = components["thrift"].as_f64().unwrap() as f32;
        assert!((after.reward - before.reward - thrift).abs() < 1e-5, "{before:?} {after:?}");
    }
}

#[test]
fn a_llama_of_ones_own_goes_from_folder_to_exam_and_is_keyed_by_its_content() {
    let project = Project::with_model(RUN);
    // This build has no CUDA: nothing is begun that would end there.
    #[cfg(not(feature = "cuda"))]
    {
        let refused = project.mcprl(&["run", "run.toml", "--set", "engine.devices=[\"cuda:0\"]"]);
        assert!(refused.err.contains("device `cuda:0` is not available in this build"), "{}", refused.err);
        let plan = project.mcprl(&["plan", "run.toml"]).out;
        assert!(plan.contains("run     tools"), "{plan}");
    }
    project.run(&[]);
    assert!(project.path("cache").exists());

    // Several devices of a kind are the same arithmetic; drawn again on them, everything is the same bytes.
    let several = ["--set", "engine.devices=[\"cpu\", \"cpu\", \"cpu\"]", "--set", "engine.threads=3"];
    let plan = project.mcprl(&[&["plan", "run.toml"], &several[..]].concat()).out;
    assert!(plan.contains(" 0 to run"), "{plan}");
    let before = trained(&project);
    std::fs::remove_dir_all(project.path("cache")).unwrap();
    project.run(&several);
    assert!(trained(&project) == before);

    // A file that is no part of the model changes nothing; other weights are another model.
    project.write("llama/README.md", "# A llama");
    let plan = project.mcprl(&["plan", "run.toml"]).out;
    assert!(plan.contains("cached  base"), "{plan}");
    assert!(plan.contains(" 0 to run"), "{plan}");
    // Said at length, it is the same stage.
    let at_length =
        RUN.replace("model = \"llama\"\n", "") + "\n[stages.base]\nkind = \"model\"\nfrom = \"llama\"\n";
    project.write("run.toml", &at_length);
    let plan = project.mcprl(&["plan", "run.toml"]).out;
    assert!(plan.contains("cached  base") && plan.contains(" 0 to run"), "{plan}");
    project.llama(2);
    let plan = project.mcprl(&["plan", "run.toml"]).out;
    assert!(plan.contains("run     base"), "{plan}");
    // Its shape is known before it is worked.
    let memory = plan.lines().find(|line| line.starts_with("memory, about: ")).unwrap();
    assert!(memory.contains("update ") && memory.contains("exam "), "{plan}");
    assert!(!plan.contains("memory, unknown"), "{plan}");
}

/// How often the newest run read a model.
fn models_read(project: &Project) -> u64 {
    let journal = std::fs::read_to_string(newest(project).join("journal.jsonl")).unwrap();
    let entries = journal.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    entries.filter_map(|entry| entry["models"].as_u64()).sum()
}

#[test]
fn a_run_reads_each_model_once_however_many_stages_work_with_it() {
    let project = Project::with_model(RUN);
    let several = ["--set", "engine.devices=[\"cpu\", \"cpu\"]", "--set", "engine.threads=2"];
    project.run(&several);
    assert_eq!(models_read(&project), 1);
    // Another format is other weights.
    project.run(&["--set", "engine.dtype=\"bf16\""]);
    assert_eq!(models_read(&project), 1);

    let second = RUN.replace("{ base = \"base\"", "{ other = \"other\", base = \"base\"")
        + "\n[stages.other]\nkind = \"model\"\nfrom = \"other\"\n";
    project.write("run.toml", &second);
    std::fs::rename(project.path("llama"), project.path("other")).unwrap();
    project.llama(2);
    let plan = project.mcprl(&["plan", "run.toml"]).out;
    assert!(plan.contains("beside it, as long as there is room: models that other stages read"), "{plan}");
    project.run(&[]);
    assert_eq!(models_read(&project), 2);

    // A model whose weights are all trained is another one afterwards.
    let whole = RUN.replace("rewards = \"reward\"", "rewards = \"reward\"\nlora = false");
    project.write("run.toml", &whole);
    project.run(&[]);
    assert_eq!(models_read(&project), 2);
}

#[test]
fn what_a_model_takes_that_is_not_here_yet_is_said_to_be_unknown() {
    let project = Project::new(&RUN.replace("model = \"llama\"", "model = \"someone/llama\""));
    project.write("tasks.jsonl", "{\"task\": \"How many?\", \"answer\": \"1\"}\n");
    let plan = project.mcprl(&["plan", "run.toml"]).out;
    assert!(
        plan.contains("memory, unknown: ") && plan.contains("exam (its model is not here yet)"),
        "{plan}"
    );
}

#[test]
fn a_judge_that_is_asked_for_and_not_named_is_missed_before_anything_is_worked() {
    let project = Project::with_model(RUN);
    let said = project.mcprl(&["run", "run.toml", "--set", "stages.reward.relative=1.0"]);
    assert_eq!(said.code, Some(2), "{}", said.err);
    for needed in ["base_url", "model"] {
        assert!(said.err.contains(&format!("`stages.reward.relative` needs `{needed}`")), "{}", said.err);
    }
}

#[test]
fn a_model_that_is_neither_folder_nor_hub_id_is_shown_where_it_is_named() {
    let project = Project::new(&RUN.replace("model = \"llama\"", "model = \"./llama\""));
    project.write("tasks.jsonl", "{\"task\": \"How many?\", \"answer\": \"1\"}\n");
    let said = project.mcprl(&["plan", "run.toml"]);
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("there is no folder \"./llama\""), "{}", said.err);
    assert!(said.err.contains("hub id"), "{}", said.err);

    let run = RUN.replace("model = \"llama\"\n", "");
    project.write("run.toml", &run.replacen("policy = \"base\"", "policy = \"Qwen/Qwen3-4B\"", 1));
    let said = project.mcprl(&["plan", "run.toml"]);
    assert!(said.err.contains("`model = \"Qwen/Qwen3-4B\"` at the top of the file"), "{}", said.err);
}

/// A node of the plan, with these arguments.
fn planned(project: &Project, stage: &str, more: &[&str]) -> Value {
    let said = project.mcprl(&[&["plan", "run.toml", "--json"], more].concat());
    let plan: Value = serde_json::from_str(&said.out).unwrap();
    let nodes = plan["nodes"].as_array().unwrap();
    nodes.iter().find(|node| node["id"] == stage).unwrap().clone()
}

fn sampled(node: &Value) -> u64 {
    node["cost"]["spent"]["sampled_tokens"].as_u64().unwrap()
}

#[test]
fn an_estimate_counts_more_episodes_and_is_none_of_another_model() {
    let project = Project::with_model(RUN);
    project.run(&[]);
    let alike = planned(&project, "rollout", &["--set", "seed=4"]);
    assert_eq!(alike["cost"]["differing"].as_u64(), Some(0));
    let twice = planned(&project, "rollout", &["--set", "seed=4", "--set", "stages.rollout.group_size=4"]);
    assert_eq!((sampled(&twice), twice["cost"]["differing"].as_u64()), (2 * sampled(&alike), Some(1)));

    // Other weights take as long; another shape does not.
    project.llama(2);
    assert!(planned(&project, "exam", &[])["cost"].is_object());
    let mut config = ModelConfig::load(&project.path("llama")).unwrap();
    config.layers = 1;
    Decoder::random(config, Init { seed: 1, deviation: 0.1 }).unwrap().save(&project.path("llama")).unwrap();
    assert!(planned(&project, "exam", &[])["cost"].is_null());
    let plan = project.mcprl(&["plan", "run.toml"]).out;
    let why = "no estimate for base, rollout, update, exam: earlier runs used another model";
    assert!(plan.contains(why), "{plan}");
}

#[test]
fn of_a_model_on_the_hub_no_more_is_estimated_than_its_configuration_on_this_machine_tells() {
    let project = Project::with_model(RUN);
    project.run(&[]);
    let plan = || {
        let mut command = project.command(&["plan", "run.toml", "--set", "model=someone/llama"]);
        common::said(command.env("HF_HOME", project.path("hub"))).out
    };
    let without = plan();
    assert!(
        without.contains("no estimate for rollout, update, exam: unknown until the model is here"),
        "{without}"
    );
    assert!(without.contains("no estimate for base: earlier runs used another model"), "{without}");
    assert!(without.contains("memory, unknown: "), "{without}");

    let of = "hub/hub/models--someone--llama";
    project.write(&format!("{of}/refs/main"), "abc");
    project.write(&format!("{of}/snapshots/abc/config.json"), &project.read("llama/config.json"));
    let with = plan();
    assert!(with.contains("no estimate for base: ") && !with.contains("until the model is here"), "{with}");
    assert!(with.contains("memory, about: ") && !with.contains("memory, unknown"), "{with}");
}

#[test]
fn episodes_of_earlier_results_are_no_work_to_come() {
    let project = Project::with_model(RUN);
    project.run(&["--set", "stages.rollout.refill_waves=0"]);
    let more = ["--set", "stages.rollout.refill_waves=0", "--set", "stages.rollout.group_size=3"];
    let node = planned(&project, "rollout", &more);
    let (rows, of) = (node["reused"]["rows"].as_u64().unwrap(), node["reused"]["of"].as_u64().unwrap());
    assert_eq!(3 * rows, 2 * of, "two of three episodes of each group are there");
    let fresh = planned(&project, "rollout", &[&more[..], &["--set", "seed=4"]].concat());
    assert!(fresh["reused"].is_null());
    assert!(sampled(&node).abs_diff(sampled(&fresh) / 3) <= 1, "{node} {fresh}");
    let plan = project.mcprl(&[&["plan", "run.toml"], &more[..]].concat()).out;
    assert!(plan.contains(&format!("params.group_size 2 → 3; {rows} of {of} episodes are there")), "{plan}");
    // What was drawn before the number was raised is all that is needed for fewer.
    let fewer = ["--set", "stages.rollout.refill_waves=0", "--set", "stages.rollout.prompts=2"];
    assert_eq!(sampled(&planned(&project, "rollout", &fewer)), 0);
    let exam = planned(
        &project,
        "exam",
        &["--set", "stages.exam.samples=2", "--set", "stages.rollout.refill_waves=0"],
    );
    assert!(exam["reused"]["rows"].as_u64().unwrap() < exam["reused"]["of"].as_u64().unwrap(), "{exam}");
}

#[test]
fn that_a_chat_template_is_replaced_is_kept_with_the_result() {
    let model = RUN.split("[server]").next().unwrap();
    let project = Project::with_model(model);
    let blind = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
                 {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    project.write("llama/chat_template.jinja", blind);
    let is_told = |text: &str| text.contains("own template for ChatML");
    let doctor = project.mcprl(&["doctor", "run.toml"]).out;
    let line = doctor.lines().find(|line| line.starts_with("note  stage      base: ")).unwrap_or_default();
    assert!(is_told(line), "{doctor}");
    // When it runs, and from the cache.
    for event in ["finished", "cached"] {
        let said = project.run(&["--json"]).out;
        let events: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let ended = events.iter().find(|found| found["event"] == event).unwrap();
        assert!(is_told(ended["notes"][0].as_str().unwrap()), "{said}");
        let noted = events.iter().any(|found| is_told(found["note"]["message"].as_str().unwrap_or_default()));
        assert_eq!(noted, event == "finished", "{said}");
    }
    let said = project.run(&[]).err;
    assert!(
        is_told(said.lines().find(|line| line.starts_with("note     base")).unwrap_or_default()),
        "{said}"
    );
    let run = newest(&project);
    assert!(is_told(&std::fs::read_to_string(run.join("journal.jsonl")).unwrap()));
    assert!(is_told(&project.mcprl(&["show", "latest/base"]).out));
}
