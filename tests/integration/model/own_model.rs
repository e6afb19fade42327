//! Local models and stages in the whole pipeline: the real binary, a tiny Llama, the demo server.

use std::path::Path;

use crate::common::{self, Project};
use candle_core::DType;
use mcprl::{
    data::{self, Reward},
    model::{Decoder, Init, ModelConfig, read_safetensors, write_safetensors},
};
use serde_json::Value;

fn run_file() -> String {
    common::training_run("group_size = 2")
}

/// Puts a stage of `examples/own-stages` into the project.
fn example(project: &Project, kind: &str) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/own-stages/stages").join(kind);
    std::fs::create_dir_all(project.path("stages").join(kind)).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), project.path("stages").join(kind).join(entry.file_name())).unwrap();
    }
}

/// The files that training wrote.
fn trained(project: &Project) -> [Vec<u8>; 2] {
    ["adapter_model.safetensors", "optimizer.safetensors"]
        .map(|name| std::fs::read(project.newest().join("update/policy").join(name)).unwrap())
}

#[test]
fn the_example_shell_stage_packs_a_policy_with_correct_checksums() {
    let project =
        Project::with_model(&(run_file() + "\n[stages.release]\nkind = \"pack\"\npolicy = \"update\"\n"));
    example(&project, "pack");
    project.run(&["--set", "stages.exam.max_turns=1"]);
    let archive = project.newest().join("release/policy.tar.gz");
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
fn the_example_python_stage_changes_the_rewards_of_an_update() {
    let run = run_file().replace("[stages.reward]", "[stages.truth]").replace(
        "[stages.update]",
        "[stages.reward]\nkind = \"thrift\"\ntrajectories = \"rollout\"\nrewards = \"truth\"\nprice = 2.5\n\n[stages.update]",
    );
    let project = Project::with_model(&run);
    example(&project, "thrift");
    project.run(&[]);
    let [before, after] = ["truth", "reward"]
        .map(|stage| data::read::<Reward>(&project.newest().join(stage).join("rewards.parquet")).unwrap());
    assert_eq!(before.len(), after.len());
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.trajectory_id, after.trajectory_id);
        let components: Value = serde_json::from_str(&after.components).unwrap();
        let thrift = components["thrift"].as_f64().unwrap() as f32;
        assert!((after.reward - before.reward - thrift).abs() < 1e-5, "{before:?} {after:?}");
    }
}

/// Writes a folder's model as a GGUF file, in f32 and for the family whose rows need no other order.
fn as_gguf(folder: &Path, file: &Path) {
    use candle_core::{
        Device,
        quantized::{
            GgmlDType, QTensor,
            gguf_file::{self, Value as Field},
        },
    };
    let json =
        |name: &str| -> Value { serde_json::from_slice(&std::fs::read(folder.join(name)).unwrap()).unwrap() };
    let (config, tokenizer) = (json("config.json"), json("tokenizer.json"));
    let size = |name: &str| Field::U32(config[name].as_u64().unwrap() as u32);
    let number = |name: &str| Field::F32(config[name].as_f64().unwrap() as f32);
    let text = |text: &str| Field::String(text.to_owned());
    let mut tokens: Vec<(u64, String, i32)> = tokenizer["model"]["vocab"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(token, id)| (id.as_u64().unwrap(), token.clone(), 1))
        .collect();
    for token in tokenizer["added_tokens"].as_array().unwrap() {
        let kind = if token["special"] == true { 3 } else { 4 };
        tokens.push((token["id"].as_u64().unwrap(), token["content"].as_str().unwrap().to_owned(), kind));
    }
    tokens.sort();
    let end = tokens.iter().find(|(_, token, _)| token == "<|im_end|>").unwrap().0;
    let merge = |pair: &Value| text(&format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()));
    let merges = tokenizer["model"]["merges"].as_array().unwrap().iter().map(merge).collect();
    let template = std::fs::read_to_string(folder.join("chat_template.jinja")).unwrap();
    let fields = [
        ("general.architecture", text("qwen3")),
        ("qwen3.block_count", size("num_hidden_layers")),
        ("qwen3.context_length", size("max_position_embeddings")),
        ("qwen3.embedding_length", size("hidden_size")),
        ("qwen3.feed_forward_length", size("intermediate_size")),
        ("qwen3.attention.head_count", size("num_attention_heads")),
        ("qwen3.attention.head_count_kv", size("num_key_value_heads")),
        ("qwen3.attention.key_length", size("head_dim")),
        ("qwen3.rope.freq_base", number("rope_theta")),
        ("qwen3.attention.layer_norm_rms_epsilon", number("rms_norm_eps")),
        ("tokenizer.ggml.model", text("gpt2")),
        ("tokenizer.ggml.pre", text("gpt-2")),
        ("tokenizer.ggml.tokens", Field::Array(tokens.iter().map(|(_, token, _)| text(token)).collect())),
        (
            "tokenizer.ggml.token_type",
            Field::Array(tokens.iter().map(|(_, _, kind)| Field::I32(*kind)).collect()),
        ),
        ("tokenizer.ggml.merges", Field::Array(merges)),
        ("tokenizer.ggml.eos_token_id", Field::U32(end as u32)),
        ("tokenizer.chat_template", text(&template)),
    ];
    let names = [
        ("model.layers.", "blk."),
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.", "ffn_"),
        ("_proj", ""),
    ];
    let tensors = candle_core::safetensors::load(folder.join("model.safetensors"), &Device::Cpu).unwrap();
    let tensors: Vec<(String, QTensor)> = tensors
        .into_iter()
        .map(|(name, tensor)| {
            let name = names.iter().fold(name, |name, (from, to)| name.replace(from, to));
            (name, QTensor::quantize(&tensor, GgmlDType::F32).unwrap())
        })
        .collect();
    let fields: Vec<_> = fields.iter().map(|(key, value)| (*key, value)).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    gguf_file::write(&mut std::fs::File::create(file).unwrap(), &fields, &tensors).unwrap();
}

#[test]
fn a_gguf_file_is_the_base_of_a_whole_run_and_of_an_exported_model() {
    let project = Project::with_model(&run_file().replace("\"llama\"", "\"small.gguf\""));
    let missing = project.mcprl(&["run", "run.toml"]);
    assert!(missing.err.contains("cannot read \"small.gguf\""), "{}", missing.err);
    project.write("small.gguf", "GGUF and nothing else");
    let damaged = project.mcprl(&["run", "run.toml"]);
    assert!(
        damaged.err.contains("is not supported") || damaged.err.contains("not a readable GGUF"),
        "{}",
        damaged.err
    );

    // The same sizes as the model of the other tests, in another family.
    let mut config = ModelConfig::load(&project.path("llama")).unwrap();
    config.design = mcprl::model::Design::of(mcprl::model::Family::Qwen3);
    Decoder::random(config.clone(), Init { seed: 5, deviation: 0.02 })
        .unwrap()
        .save(&project.path("llama"))
        .unwrap();
    as_gguf(&project.path("llama"), &project.path("small.gguf"));
    project.run(&[]);
    let plan = |project: &Project| project.mcprl(&["plan", "run.toml"]).out;
    assert!(plan(&project).contains(" 0 to run"), "{}", plan(&project));
    let [run, cache] = [project.newest(), project.path("cache")].map(|path| path.display().to_string());
    let exported = |arguments: &[&str], out: &str| {
        let all = [&["export", &run, "--cache", &cache, "--out", out], arguments].concat();
        let done = project.mcprl(&all);
        assert_eq!(done.code, Some(0), "{}", done.err);
        project.path(out)
    };
    let merged = exported(&["--merge"], "merged");
    assert_eq!(ModelConfig::load(&merged).unwrap(), config);
    mcprl::model::Weights::open(&merged).unwrap().check(&config).unwrap();
    let adapter = exported(&[], "adapter");
    assert!(adapter.join("adapter_model.safetensors").is_file());
    assert!(adapter.join("base/model.safetensors").is_file(), "PEFT needs a folder");

    Decoder::random(config, Init { seed: 6, deviation: 0.02 }).unwrap().save(&project.path("llama")).unwrap();
    as_gguf(&project.path("llama"), &project.path("small.gguf"));
    let plan = plan(&project);
    assert!(plan.contains("run     base") && !plan.contains("no memory estimate"), "another file: {plan}");
}

#[test]
fn a_local_llama_runs_the_whole_pipeline_and_is_keyed_by_content() {
    let project = Project::with_model(&run_file());
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
    for split in ["batches", "layers"] {
        std::fs::remove_dir_all(project.path("cache")).unwrap();
        project.run(&[&several[..], &["--set", &format!("engine.split=\"{split}\"")]].concat());
        assert!(trained(&project) == before, "{split}");
        assert_eq!(models_loaded(&project), 1, "{split}");
    }

    // A file that is no part of the model changes nothing; other weights are another model.
    project.write("llama/README.md", "# A llama");
    let plan = project.mcprl(&["plan", "run.toml"]).out;
    assert!(plan.contains("cached  base"), "{plan}");
    assert!(plan.contains(" 0 to run"), "{plan}");
    // CommandOutput at length, it is the same stage.
    let at_length = run_file().replace("model = \"llama\"\n", "")
        + "\n[stages.base]\nkind = \"model\"\nfrom = \"llama\"\n";
    project.write("run.toml", &at_length);
    let plan = project.mcprl(&["plan", "run.toml"]).out;
    assert!(plan.contains("cached  base") && plan.contains(" 0 to run"), "{plan}");
    project.llama(2);
    let plan = project.mcprl(&["plan", "run.toml"]).out;
    assert!(plan.contains("run     base"), "{plan}");
    // Its shape is known before it runs.
    let memory = plan.lines().find(|line| line.starts_with("estimated memory: ")).unwrap();
    assert!(memory.contains("update ") && memory.contains("exam "), "{plan}");
    assert!(!plan.contains("no memory estimate"), "{plan}");
}

/// Stores the matrices of the model `llama` in this type.
fn store_as(project: &Project, dtype: DType) {
    let path = project.path("llama/model.safetensors");
    let mut tensors = read_safetensors(&path).unwrap();
    for tensor in tensors.values_mut().filter(|tensor| tensor.dims().len() > 1) {
        *tensor = tensor.to_dtype(dtype).unwrap();
    }
    write_safetensors(&path, &tensors).unwrap();
}

#[test]
fn without_a_dtype_a_model_is_computed_in_the_type_of_its_files() {
    for (stored, name) in [(DType::F32, "f32"), (DType::F16, "f16"), (DType::BF16, "bf16")] {
        let project = Project::with_model(&run_file());
        store_as(&project, stored);
        let plan = project.mcprl(&["plan", "run.toml"]).out;
        let memory = plan.lines().find(|line| line.starts_with("estimated memory: ")).unwrap();
        assert!(memory.ends_with(&format!("; weights in {name}")), "{plan}");
        let doctor = project.mcprl(&["doctor", "run.toml"]).out;
        assert!(doctor.contains(&format!("weights in {name}")), "{doctor}");
        project.run(&[]);
        let report = project.mcprl(&["report", "latest"]);
        assert!(
            report.out.contains(&format!("dtype = \"{name}\" (the model's)")),
            "{}{}",
            report.out,
            report.err
        );
        // Written out, it is the same run; another one is not.
        for dtype in ["f32", "f16", "bf16"] {
            let plan =
                project.mcprl(&["plan", "run.toml", "--set", &format!("engine.dtype=\"{dtype}\"")]).out;
            assert_eq!(plan.contains(" 0 to run"), dtype == name, "{stored:?} {dtype}: {plan}");
        }
        // The type of a model is not said to have changed while a stage waits.
        project.write("tasks.jsonl", "{\"task\": \"a\", \"answer\": 1}\n{\"task\": \"b\", \"answer\": 2}\n");
        let plan = project.mcprl(&["plan", "run.toml"]).out;
        assert!(!plan.contains(" 0 to run") && !plan.contains("numerics"), "{plan}");
    }
}

#[test]
fn all_weights_are_not_trained_in_f32_on_episodes_of_rounded_ones() {
    let whole = run_file().replace("rewards = \"reward\"", "rewards = \"reward\"\nlora = false");
    let project = Project::with_model(&whole);
    store_as(&project, DType::BF16);
    let refused = project.mcprl(&["run", "run.toml"]);
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    let message = "`lora = false` trains weights in f32, and the policy plays with weights in bf16";
    assert!(refused.err.contains(message) && refused.err.contains("dtype = \"f32\""), "{}", refused.err);
    project.run(&["--set", "engine.dtype=\"f32\""]);
}

/// How many models the newest run loaded.
fn models_loaded(project: &Project) -> u64 {
    project.journal().iter().filter_map(|entry| entry["models"].as_u64()).sum()
}

#[test]
fn a_run_loads_each_model_once_for_all_its_stages() {
    let project = Project::with_model(&run_file());
    let several = ["--set", "engine.devices=[\"cpu\", \"cpu\"]", "--set", "engine.threads=2"];
    project.run(&several);
    assert_eq!(models_loaded(&project), 1);
    // Another format is other weights.
    project.run(&["--set", "engine.dtype=\"bf16\""]);
    assert_eq!(models_loaded(&project), 1);

    let second = run_file().replace("{ base = \"base\"", "{ other = \"other\", base = \"base\"")
        + "\n[stages.other]\nkind = \"model\"\nfrom = \"other\"\n";
    project.write("run.toml", &second);
    std::fs::rename(project.path("llama"), project.path("other")).unwrap();
    project.llama(2);
    let plan = project.mcprl(&["plan", "run.toml"]).out;
    assert!(plan.contains("of models kept loaded for other stages, if there is room"), "{plan}");
    project.run(&[]);
    assert_eq!(models_loaded(&project), 2);

    // A model whose weights are all trained is another one afterwards.
    let whole = run_file().replace("rewards = \"reward\"", "rewards = \"reward\"\nlora = false");
    project.write("run.toml", &whole);
    project.run(&[]);
    assert_eq!(models_loaded(&project), 2);
}

#[test]
fn the_memory_of_a_model_not_downloaded_yet_is_unknown() {
    let project = Project::new(&run_file().replace("model = \"llama\"", "model = \"someone/llama\""));
    project.write("tasks.jsonl", "{\"task\": \"How many?\", \"answer\": \"1\"}\n");
    let plan = project.mcprl(&["plan", "run.toml"]).out;
    assert!(
        plan.contains("no memory estimate for ") && plan.contains("exam (its model is not here yet)"),
        "{plan}"
    );
}

#[test]
fn a_relative_judge_without_a_model_is_refused_before_anything_runs() {
    let project = Project::with_model(&run_file());
    let output = project.mcprl(&["run", "run.toml", "--set", "stages.reward.weights.relative=1.0"]);
    assert_eq!(output.code, Some(2), "{}", output.err);
    for needed in ["base_url", "model"] {
        assert!(
            output.err.contains(&format!("`relative` is used, but `{needed}` is not set")),
            "{}",
            output.err
        );
    }
}

#[test]
fn a_policys_tries_select_tasks_and_start_the_pass_rates_of_rollouts() {
    let settings = "prompts = 4\ngroup_size = 2\nrefill_waves = 0\nmax_turns = 1\nmax_turn_tokens = 4\n\
                    draw = \"pass_rate\"\npass_rates = \"tasks.pass_rates\"";
    let run = common::episodes_run(settings);
    let tries = "file = \"tasks.jsonl\"\npolicy = \"base\"\ntries = 2\nmax_turns = 1\nmax_turn_tokens = 4";
    let project = Project::with_model(&run.replace("file = \"tasks.jsonl\"", tries));
    let plan = project.mcprl(&["plan", "run.toml"]);
    let memory = plan.out.lines().find(|line| line.starts_with("estimated memory: "));
    assert!(memory.is_some_and(|line| line.contains("tasks ")), "{}{}", plan.out, plan.err);
    let output = project.run(&[]);
    assert!(output.err.contains("the policy solves 0 % of the tries at 8 training tasks"), "{}", output.err);
    let shown: Value = serde_json::from_str(&project.mcprl(&["show", "latest", "--json"]).out).unwrap();
    let metrics = |stage: &str| {
        let stages = shown["stages"].as_array().unwrap();
        stages.iter().find(|found| found["id"] == stage).unwrap()["metrics"].clone()
    };
    assert_eq!((&metrics("tasks")["tried"], &metrics("tasks")["pass_rate"]), (&8.0.into(), &0.0.into()));
    assert_eq!(metrics("rollout")["known_pass_rates"], 1.0);

    // Tries are kept, so another range is decided without playing.
    project.run(&["--set", "stages.tasks.max_pass_rate=2"]);
    let again: Value = serde_json::from_str(&project.mcprl(&["show", "latest", "--json"]).out).unwrap();
    let tasks = again["stages"].as_array().unwrap().iter().find(|stage| stage["id"] == "tasks").unwrap();
    assert_eq!((&tasks["outcome"], &tasks["spent"]["sampled_tokens"]), (&"ran".into(), &0.into()), "{tasks}");
    let refused = project.mcprl(&["run", "run.toml", "--set", "stages.tasks.min_pass_rate=0.5"]);
    assert!(refused.err.contains("no training task is left"), "{}", refused.err);
    project.replace("run.toml", "policy = \"base\"\ntries", "tries");
    let missing = project.mcprl(&["plan", "run.toml"]);
    assert_eq!(missing.code, Some(2), "{}", missing.out);
    assert!(missing.err.contains("`stages.tasks.tries` needs `policy`"), "{}", missing.err);
    assert!(missing.err.contains("hint: policy: The policy that tries training tasks"), "{}", missing.err);
}

#[test]
fn a_model_that_is_neither_folder_nor_hub_id_is_reported_with_its_place() {
    let project = Project::new(&run_file().replace("model = \"llama\"", "model = \"./llama\""));
    project.write("tasks.jsonl", "{\"task\": \"How many?\", \"answer\": \"1\"}\n");
    let output = project.mcprl(&["plan", "run.toml"]);
    assert_eq!(output.code, Some(2));
    assert!(output.err.contains("there is no folder \"./llama\""), "{}", output.err);
    assert!(output.err.contains("hub id"), "{}", output.err);

    let run = run_file().replace("model = \"llama\"\n", "");
    project.write("run.toml", &run.replacen("policy = \"base\"", "policy = \"Qwen/Qwen3-4B\"", 1));
    let output = project.mcprl(&["plan", "run.toml"]);
    assert!(output.err.contains("`model = \"Qwen/Qwen3-4B\"` at the top of the file"), "{}", output.err);
}

/// A loop whose rollout is one iteration behind and draws by pass rates.
const LAGGED: &str = r#"
[loop.train]
iterations = 3
patience = 0
carry = { policy = "base" }

[loop.train.stages.rollout]
kind = "rollout"
policy = "@policy~1"
tools = "tools"
scenarios = "tasks.train"
draw = "pass_rate"
group_size = 2
max_turns = 2
max_turn_tokens = 6

[loop.train.stages.reward]
kind = "judge"
trajectories = "rollout"
scenarios = "tasks.train"

[loop.train.stages.update]
kind = "grpo"
policy = "@policy"
trajectories = "rollout"
rewards = "reward"
yields = "policy"
learning_rate = 1e-2
importance = "token_truncate"
"#;

#[test]
fn a_rollout_one_iteration_behind_is_trained_on_and_its_lag_is_reported() {
    let rollout = common::training_run("");
    let head = rollout.split("[stages.rollout]").next().unwrap();
    let run = format!("{head}{LAGGED}");
    let project = Project::with_model(&run);
    project.run(&[]);
    let metrics = |iteration: u32, stage: &str| {
        let node = format!("train[{iteration:04}]/{stage}");
        let journal = project.journal();
        let finished =
            journal.iter().find(|entry| entry["event"] == "finished" && entry["id"] == node.as_str());
        finished.unwrap()["result"]["metrics"].clone()
    };
    for (iteration, off_policy, known) in [(1, 0.0, false), (2, 1.0, true)] {
        let update = metrics(iteration, "update");
        assert_eq!(update["off_policy"], off_policy, "{iteration}: {update}");
        let rollout = metrics(iteration, "rollout");
        assert_eq!(rollout["known_pass_rates"].as_f64().unwrap() > 0.0, known, "it reads its own of before");
        // Each iteration plays all tasks.
        let new = if known { &serde_json::Value::Null } else { &rollout["success"] };
        assert_eq!(&rollout["success_new"], new, "{iteration}: {rollout}");
    }
}

#[test]
fn a_carried_value_that_a_stage_needs_cannot_start_empty() {
    let rollout = common::training_run("");
    let head = rollout.split("[stages.rollout]").next().unwrap();
    let project =
        Project::with_model(&format!("{head}{}", LAGGED.replace("policy = \"base\"", "policy = \"\"")));
    let output = project.mcprl(&["plan", "run.toml"]);
    assert_eq!(output.code, Some(2), "{}", output.out);
    assert!(
        output.err.contains("\"policy\" starts empty, and `policy` of stage \"rollout\" is not optional"),
        "{}",
        output.err
    );
}

/// A node of the plan, with these arguments.
fn planned(project: &Project, stage: &str, more: &[&str]) -> Value {
    let output = project.mcprl(&[&["plan", "run.toml", "--json"], more].concat());
    let plan: Value = serde_json::from_str(&output.out).unwrap();
    let nodes = plan["nodes"].as_array().unwrap();
    nodes.iter().find(|node| node["id"] == stage).unwrap().clone()
}

fn sampled(node: &Value) -> u64 {
    node["cost"]["spent"]["sampled_tokens"].as_u64().unwrap()
}

#[test]
fn an_estimate_scales_with_episodes_and_ignores_other_models() {
    let project = Project::with_model(&run_file());
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
fn a_hub_model_is_estimated_from_its_local_configuration_only() {
    let project = Project::with_model(&run_file());
    project.run(&[]);
    let plan = || {
        let mut command = project.command(&["plan", "run.toml", "--set", "model=someone/llama"]);
        common::output(command.env("HF_HOME", project.path("hub"))).out
    };
    let without = plan();
    assert!(
        without.contains("no estimate for rollout, update, exam: unknown until the model is downloaded"),
        "{without}"
    );
    assert!(without.contains("no estimate for base: earlier runs used another model"), "{without}");
    assert!(without.contains("no memory estimate for "), "{without}");

    let of = "hub/hub/models--someone--llama";
    project.write(&format!("{of}/refs/main"), "abc");
    let config = project.read("llama/config.json");
    assert!(config.contains("\"torch_dtype\": \"float32\""), "{config}");
    project.write(&format!("{of}/snapshots/abc/config.json"), &config.replace("float32", "bfloat16"));
    let with = plan();
    assert!(with.contains("; weights in bf16"), "{with}");
    assert!(
        with.contains("no estimate for base: ") && !with.contains("until the model is downloaded"),
        "{with}"
    );
    assert!(with.contains("estimated memory: ") && !with.contains("no memory estimate"), "{with}");
}

#[test]
fn reused_episodes_are_not_part_of_the_estimate() {
    let project = Project::with_model(&run_file());
    project.run(&["--set", "stages.rollout.refill_waves=0"]);
    let more = ["--set", "stages.rollout.refill_waves=0", "--set", "stages.rollout.group_size=3"];
    let node = planned(&project, "rollout", &more);
    let (rows, of) = (node["reused"]["rows"].as_u64().unwrap(), node["reused"]["of"].as_u64().unwrap());
    assert_eq!(3 * rows, 2 * of, "two of three episodes of each group are there");
    let fresh = planned(&project, "rollout", &[&more[..], &["--set", "seed=4"]].concat());
    assert!(fresh["reused"].is_null());
    assert!(sampled(&node).abs_diff(sampled(&fresh) / 3) <= 1, "{node} {fresh}");
    let plan = project.mcprl(&[&["plan", "run.toml"], &more[..]].concat()).out;
    assert!(plan.contains(&format!("params.group_size 2 → 3; {rows} of {of} episodes are reused")), "{plan}");
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
fn the_note_about_a_replaced_chat_template_is_stored_with_the_result() {
    let project = Project::with_model(run_file().split("[server]").next().unwrap());
    let blind = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
                 {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    project.write("llama/chat_template.jinja", blind);
    let is_noted = |text: &str| text.contains("own template for ChatML");
    let doctor = project.mcprl(&["doctor", "run.toml"]).out;
    let line = doctor.lines().find(|line| line.starts_with("note  stage      base: ")).unwrap_or_default();
    assert!(is_noted(line), "{doctor}");
    // When it runs, and from the cache.
    for event in ["finished", "cached"] {
        let output = project.run(&["--json"]).out;
        let events: Vec<Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let ended = events.iter().find(|found| found["event"] == event).unwrap();
        assert!(is_noted(ended["result"]["notes"][0].as_str().unwrap()), "{output}");
        let noted = events.iter().any(|found| is_noted(found["message"].as_str().unwrap_or_default()));
        assert_eq!(noted, event == "finished", "{output}");
    }
    let output = project.run(&["-v"]).err;
    assert!(
        is_noted(output.lines().find(|line| line.starts_with("note     base")).unwrap_or_default()),
        "{output}"
    );
    let run = project.newest();
    assert!(is_noted(&std::fs::read_to_string(run.join("journal.jsonl")).unwrap()));
    assert!(is_noted(&project.mcprl(&["show", "latest/base"]).out));
}

/// Two iterations of a model that writes nothing but noise.
fn hopeless() -> Project {
    let run = run_file();
    let (head, rest) = run.split_once("[stages.rollout]").unwrap();
    let (training, exam) = rest.split_once("[stages.exam]").unwrap();
    let training = format!("[stages.rollout]{training}")
        .replace("[stages.", "[loop.train.stages.")
        .replace("policy = \"base\"", "policy = \"@policy\"")
        .replace("rewards = \"reward\"", "rewards = \"reward\"\nyields = \"policy\"");
    let exam = exam.replace("\"update\"", "\"train.policy\"");
    Project::with_model(&format!(
        "{head}[loop.train]\niterations = 9\ncarry = {{ policy = \"base\" }}\n{training}[stages.exam]{exam}"
    ))
}

#[test]
fn a_model_that_can_do_nothing_ends_its_loop_early_sits_the_exam_and_says_why() {
    let project = hopeless();
    let done = project.mcprl(&["run", "run.toml", "--set", "loop.train.stages.rollout.prompts=2"]);
    assert_eq!(done.code, Some(1), "{}", done.err);
    assert!(project.newest().join("exam/verdict.parquet").exists());
    let updates = (1..=9).filter(|iteration| {
        project.newest().join(format!("train.{iteration:04}/update/steps.parquet")).exists()
    });
    assert_eq!(updates.count(), 2);
    for text in [
        "loop \"train\" ended: in iterations 1 to 2",
        "episodes have no right answer:",
        "train on reference solutions",
    ] {
        assert!(done.err.contains(text), "{text}\n{}", done.err);
    }
}

#[test]
fn doctor_plays_tasks_and_says_that_the_model_cannot_do_them() {
    let project = hopeless();
    let done = project.mcprl(&["doctor", "run.toml", "--try", "2"]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    let said = "note  try        4 samples of each of 2 tasks: 0 % are right";
    assert!(!done.out.contains("greedy"), "one policy needs no comparison: {}", done.out);
    assert!(
        done.out.contains(said) && done.out.contains("the model cannot do these tasks yet"),
        "{}",
        done.out
    );
    assert!(done.out.contains("note  try        8 of 8 episodes have no right answer:"), "{}", done.out);
    assert!(!done.err.contains("makes tasks first"), "its tasks are of a file: {}", done.err);
    assert_ne!(project.mcprl(&["show", "latest"]).code, Some(0), "a trial is not the latest run");
}
