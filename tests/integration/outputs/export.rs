//! `mcprl export`: the real binary on policies made by PEFT and Transformers.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use candle_core::{Device, Tensor};
use mcprl::model::{Decoder, Init, ModelConfig, read_safetensors, write_safetensors};

use crate::common::{DEMO, Project, training_run};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/fixtures").join(name)
}

fn export(arguments: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mcprl"));
    command.arg("export").args(arguments).arg("--cache").arg(folder.join("cache"));
    command.current_dir(folder).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_merged_policy_is_a_model_folder_with_the_base_s_files() {
    let folder = tempfile::tempdir().unwrap();
    let (adapter, base) = (fixture("qwen3-tiny-lora"), fixture("qwen3-tiny"));
    let arguments =
        [adapter.to_str().unwrap(), "--base", base.to_str().unwrap(), "--merge", "--out", "merged"];
    let done = export(&arguments, folder.path());
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_eq!(text(&done.stdout), "model written to merged\n");
    let read = |folder: &Path, file: &str| std::fs::read(folder.join(file)).unwrap();
    let out = folder.path().join("merged");
    assert_eq!(read(&out, "config.json"), read(&base, "config.json"));
    assert_ne!(read(&out, "model.safetensors"), read(&base, "model.safetensors"));

    let again = export(&arguments, folder.path());
    assert_eq!(
        (again.status.code(), text(&again.stderr)),
        (Some(2), "error: merged exists already\nhint: choose another `--out`, or remove it\n".into(),)
    );
}

#[test]
fn a_model_whose_template_hides_tools_is_written_with_the_one_it_was_trained_with() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().join("base");
    std::fs::create_dir(&base).unwrap();
    let copy = |from: &Path, name: &str| _ = std::fs::copy(from.join(name), base.join(name)).unwrap();
    let chat = fixture("../chat/qwen3");
    for (from, names) in [
        (fixture("qwen3-tiny"), ["config.json", "model.safetensors"]),
        (chat, ["tokenizer.json", "tokenizer_config.json"]),
    ] {
        names.iter().for_each(|name| copy(&from, name));
    }
    let blind = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
                 {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    std::fs::write(base.join("chat_template.jinja"), blind).unwrap();
    let adapter = fixture("qwen3-tiny-lora");
    let arguments = [adapter.to_str().unwrap(), "--base", base.to_str().unwrap(), "--out"];
    let done = export(&[&arguments[..], &["merged", "--merge"]].concat(), folder.path());
    let output = text(&done.stderr);
    assert!(
        output.contains("own template for ChatML") && output.contains("written as its chat_template"),
        "{output}"
    );
    let template = std::fs::read_to_string(folder.path().join("merged/chat_template.jinja")).unwrap();
    assert_eq!(template, include_str!("../../../crates/mcprl-chat/src/own/chatml.jinja"));
    let done = export(&[&arguments[..], &["adapter"]].concat(), folder.path());
    assert!(text(&done.stderr).contains("`--merge` writes it"), "{}", text(&done.stderr));
}

#[test]
fn a_base_with_untrained_tags_gets_the_tokenizer_that_a_run_trained_with() {
    let folder = tempfile::tempdir().unwrap();
    let (base, adapter) = (folder.path().join("base"), folder.path().join("adapter"));
    std::fs::create_dir(&base).unwrap();
    std::fs::create_dir(&adapter).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        std::fs::copy(fixture("../chat/qwen3").join(name), base.join(name)).unwrap();
    }
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        std::fs::copy(fixture("qwen3-tiny-lora").join(name), adapter.join(name)).unwrap();
    }
    // More rows than the 407 tokens; those of the tags are like the unused ones.
    let config = std::fs::read_to_string(fixture("qwen3-tiny").join("config.json")).unwrap();
    std::fs::write(base.join("config.json"), config.replace("\"vocab_size\": 160", "\"vocab_size\": 413"))
        .unwrap();
    let config = ModelConfig::load(&base).unwrap();
    let (vocabulary, hidden) = (config.vocabulary, config.hidden);
    Decoder::random(config, Init { seed: 1, deviation: 0.02 }).unwrap().save(&base).unwrap();
    let path = base.join("model.safetensors");
    let mut tensors = read_safetensors(&path).unwrap();
    let mut rows = tensors["model.embed_tokens.weight"].to_vec2::<f32>().unwrap();
    for id in [403, 404].into_iter().chain(407..vocabulary) {
        rows[id] = (0..hidden).map(|at| 0.01 * (at % 5) as f32).collect();
    }
    tensors.insert("model.embed_tokens.weight".into(), Tensor::new(rows, &Device::Cpu).unwrap());
    write_safetensors(&path, &tensors).unwrap();

    let export = |form: &[&str], out: &str| {
        let arguments = [adapter.to_str().unwrap(), "--base", base.to_str().unwrap(), "--out", out];
        let done = export(&[&arguments[..], form].concat(), folder.path());
        assert!(done.status.success(), "{}", text(&done.stderr));
        text(&done.stderr)
    };
    let tags = |folder: &Path| {
        let files = ["tokenizer.json", "tokenizer_config.json"].map(|name| folder.join(name));
        files.map(|path| std::fs::read_to_string(path).unwrap().contains("\"<tool_call>\""))
    };
    let has_tags = tags(&base);
    assert!(has_tags[0]);

    // An adapter from elsewhere may be trained with the tags.
    assert_eq!(export(&["--merge"], "foreign"), "");
    assert_eq!(tags(&folder.path().join("foreign")), has_tags);

    let of = serde_json::json!({ "base": "0".repeat(64) });
    std::fs::write(adapter.join("policy.json"), of.to_string()).unwrap();
    let said = export(&["--merge"], "merged");
    assert!(said.contains("`<tool_call>` and `</tool_call>` are in the chat template"), "{said}");
    let merged = folder.path().join("merged");
    assert_eq!(tags(&merged), [false, false]);
    assert!(std::fs::read_to_string(merged.join("mcprl.json")).unwrap().contains("</tool_call>"));
    assert_eq!(tags(&base), has_tags, "the base is untouched");
    let template = |folder: &Path| std::fs::read(folder.join("chat_template.jinja")).unwrap();
    assert_eq!(template(&merged), template(&base));
    let said = export(&[], "alone");
    assert!(said.contains("`--merge` writes that tokenizer"), "{said}");
}

#[test]
fn an_adapter_is_written_as_peft_reads_it() {
    let folder = tempfile::tempdir().unwrap();
    let adapter = fixture("qwen3-tiny-lora");
    let done = export(&[adapter.to_str().unwrap(), "--out", "adapter"], folder.path());
    assert!(done.status.success(), "{}", text(&done.stderr));
    let mut files: Vec<String> = std::fs::read_dir(folder.path().join("adapter"))
        .unwrap()
        .map(|item| item.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(files, ["adapter_config.json", "adapter_model.safetensors"]);
}

#[test]
fn a_failed_export_names_the_cause_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let adapter = fixture("qwen3-tiny-lora");
    let adapter = adapter.to_str().unwrap();
    let patterns = fixture("qwen3-tiny-lora-patterns");
    for (arguments, expected) in [
        (vec!["nowhere"], "there is no run and no folder \"nowhere\""),
        (vec!["."], ". contains no policy"),
        (vec![adapter, "--merge"], "is unknown"),
        (vec![adapter, "--merge", "--base", patterns.to_str().unwrap()], "cannot read"),
    ] {
        let arguments: Vec<&str> = arguments.into_iter().chain(["--out", "out"]).collect();
        let refused = export(&arguments, folder.path());
        assert!(!refused.status.success());
        assert!(text(&refused.stderr).contains(expected), "{}", text(&refused.stderr));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{arguments:?}");
    }
}

/// Two episodes of a tiny random model and an update from them; `policy` is acted with and trained.
fn update_of(policy: &str, more: &str) -> String {
    format!(
        "name = \"update\"\n[server]\ncommand = [\"{{mcprl}}\", \"demo-server\", \"sqlite\"]\nstate = \"read-only\"\n\
         [stages.tools]\nkind = \"discover\"\n\
         [stages.tasks]\nkind = \"scenarios\"\ntools = \"tools\"\nsource = \"file\"\nfile = \"tasks.jsonl\"\n\
         [stages.base]\nkind = \"model\"\nfrom = \"llama\"\n{more}\
         [stages.rollout]\nkind = \"rollout\"\npolicy = \"{policy}\"\ntools = \"tools\"\nscenarios = \"tasks.train\"\n\
         prompts = 1\ngroup_size = 2\nrefill_waves = 0\nmax_turns = 1\nmax_turn_tokens = 4\n\
         [stages.reward]\nkind = \"judge\"\ntrajectories = \"rollout\"\nscenarios = \"tasks.train\"\n\
         [stages.update]\nkind = \"grpo\"\npolicy = \"{policy}\"\ntrajectories = \"rollout\"\nrewards = \"reward\"\n"
    )
}

#[test]
fn an_exported_adapter_is_sampled_and_trained_further_by_another_run() {
    let project = Project::new(&update_of("base", ""));
    project.llama(1);
    project.ten_tasks();
    project.run(&[]);
    let exported = project.mcprl(&["export", "latest", "--out", "mine"]);
    assert_eq!(exported.code, Some(0), "{}", exported.err);

    let adapter = "[stages.mine]\nkind = \"adapter\"\nbase = \"base\"\nfrom = \"mine\"\n";
    project.write("run.toml", &update_of("mine", adapter));
    project.run(&[]);
    let run = project.runs().pop().unwrap();
    let file = |folder: &str| project.path(folder).join("adapter_model.safetensors");
    let read = |path: PathBuf| std::fs::read(path).unwrap();
    assert!(read(file(&format!("cache/runs/{run}/mine/policy"))) == read(file("mine")), "as it was exported");
    let again = project.run(&[]);
    assert!(again.err.contains("0 ran"), "{}", again.err);

    std::fs::remove_file(file("mine")).unwrap();
    let refused = project.mcprl(&["run", "run.toml"]);
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert!(refused.err.contains("mine has no adapter_model.safetensors"), "{}", refused.err);
}

#[test]
fn an_export_of_a_run_is_a_gguf_file_for_llama_cpp_with_what_a_client_needs() {
    let project = Project::new(&update_of("base", ""));
    project.llama(1);
    project.ten_tasks();
    project.run(&[]);
    let export = |more: &[&str]| {
        let output = project.mcprl(&[&["export", "latest"], more].concat());
        assert_eq!(output.code, Some(0), "{}", output.err);
    };
    export(&["--gguf", "q8_0", "--out", "small"]);
    assert!(
        project
            .read("small/Modelfile")
            .starts_with("FROM ./model-q8_0.gguf\nPARAMETER stop \"<|im_end|>\"\n")
    );
    let agent: serde_json::Value = serde_json::from_str(&project.read("small/agent.json")).unwrap();
    let mut names =
        agent["tools"].as_array().unwrap().iter().map(|tool| tool["function"]["name"].as_str().unwrap());
    assert_eq!(names.next_back(), Some("complete_task"));
    assert!(agent["system"].as_str().unwrap().contains("complete_task"), "{agent}");
    assert_eq!((&agent["max_turns"], &agent["max_turn_tokens"]), (&1.into(), &4.into()));
    assert!(project.read("small/README.md").contains("llama-server -m model-q8_0.gguf --jinja"));

    export(&["--gguf", "adapter", "--out", "adapter"]);
    assert!(std::fs::read(project.path("adapter/adapter.gguf")).unwrap().starts_with(b"GGUF"));
    assert!(project.read("adapter/README.md").contains("--lora adapter.gguf"));
    export(&["--merge", "--out", "merged"]);
    assert!(project.read("merged/README.md").contains("--tool-call-parser hermes"));

    let folder = project.path("merged");
    let refused = project.mcprl(&["export", folder.to_str().unwrap(), "--gguf", "adapter", "--out", "none"]);
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert!(
        refused.err.contains("is a whole model, not an adapter") && !project.path("none").exists(),
        "{}",
        refused.err
    );
}

#[test]
fn an_exported_adapter_names_a_base_that_peft_finds_without_the_cache() {
    let project = Project::new(&update_of("base", ""));
    project.llama(1);
    project.ten_tasks();
    project.run(&[]);
    let export = |out: &str, more: &[&str]| {
        let output = project.mcprl(&[&["export", "latest", "--out", out], more].concat());
        assert_eq!(output.code, Some(0), "{}", output.err);
        let config = project.read(format!("{out}/adapter_config.json"));
        let config: serde_json::Value = serde_json::from_str(&config).unwrap();
        let text = |key: &str| config[key].as_str().map(str::to_owned);
        let name = text("base_model_name_or_path").unwrap();
        assert!(output.err.contains(&format!("its base model is {name}")), "{}", output.err);
        (name, text("revision"))
    };
    let here = |name: &str| std::path::absolute(project.path(name)).unwrap().display().to_string();
    assert_eq!(export("a", &[]), (here("llama"), None), "the folder of the run file");
    assert_eq!(export("b", &["--base-name", "org/name"]), ("org/name".into(), None));

    // As if it had come from the hub.
    let records = std::fs::read_dir(project.path("cache/ac")).unwrap().map(|item| item.unwrap().path());
    let is_model = |text: &str| text.contains("\"kind\": \"model\"");
    let read = |path: PathBuf| Some((std::fs::read_to_string(&path).ok()?, path));
    let (text, path) = records.filter_map(read).find(|(text, _)| is_model(text)).unwrap();
    let mut record: serde_json::Value = serde_json::from_str(&text).unwrap();
    record.as_object_mut().unwrap().remove("checksum").unwrap();
    record["fields"]["params"]["from"] = "Qwen/Qwen3-0.6B@abc".into();
    std::fs::write(&path, record.to_string()).unwrap();
    assert_eq!(export("c", &[]), ("Qwen/Qwen3-0.6B".into(), Some("abc".into())));

    // As if the run had made it.
    record["fields"]["kind"] = "distill".into();
    std::fs::write(&path, record.to_string()).unwrap();
    assert_eq!(export("d", &[]), (here("d/base"), None));
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        assert!(project.path("d/base").join(file).is_file(), "{file}");
    }
}

#[test]
fn a_path_that_a_run_printed_is_exported() {
    let project = policies("");
    let output = project.run(&["-v"]);
    let printed = |name: &str| {
        let line = output.err.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_whitespace().last().unwrap_or_default().to_owned()
    };
    let run = project.runs().pop().unwrap();
    let newest = printed("train.update.policy");
    assert!(newest.ends_with("train.0003/update/policy"), "{}", output.err);
    let missing = "update/policy/model.safetensors";
    for (named, found) in [
        (newest.as_str(), "train.0003"),
        (&format!("cache/runs/{run}"), "train.0003"),
        (&format!("cache/runs/{run}/train.0002"), "train.0002"),
        (&format!("cache/runs/{run}/train.0002/update/"), "train.0002"),
        (&format!("{run}/train[2]/update"), "train.0002"),
        (&format!("{run}/train[0002]/update"), "train.0002"),
        ("latest/train.0002/update/policy", "train.0002"),
        ("latest/train.update", "train.0003"),
    ] {
        // There are no weights in it, so it is found and cannot be copied.
        let output = project.mcprl(&["export", named, "--out", "out"]);
        assert!(output.err.contains(&format!("{found}/{missing}")), "{named}: {}", output.err);
    }
}

#[test]
fn an_untrained_run_exports_its_initial_policy_only_if_named() {
    let project = policies("test \"$MCPRL_SEED\" = no\n");
    let failed = project.mcprl(&["run", "run.toml"]);
    assert_eq!(failed.code, Some(1), "{}", failed.err);
    let run = project.runs().pop().unwrap();
    let refused = project.mcprl(&["export", "latest", "--out", "out"]);
    assert_eq!(refused.code, Some(1), "{}", refused.out);
    let expected = format!(
        "error: run \"{run}\" has not trained a policy yet: its newest one is the initial policy of \"start\"\n\
         hint: continue the run with `mcprl resume {run}`, or name that policy: `{run}/start`\n"
    );
    assert_eq!(refused.err, expected);
    project.kind("first", "seeded", "[outputs.policy]\ntype = \"policy\"\npath = \"policy\"\n", "exit 1");
    assert_eq!(project.mcprl(&["run", "run.toml"]).code, Some(1));
    let none = project.mcprl(&["export", "latest", "--out", "out"]);
    assert!(none.code == Some(1) && none.err.contains("has written no policy yet"), "{}", none.err);
    let named = project.mcprl(&["export", &format!("{run}/start"), "--out", "out"]);
    assert!(named.err.contains("start/policy/model.safetensors"), "it is taken: {}", named.err);
}

/// Writes a policy in each of three iterations.
const POLICIES: &str = r#"
name = "toy"

[stages.start]
kind = "first"

[loop.train]
iterations = 3
carry = { policy = "start" }

[loop.train.stages.update]
kind = "next"
from = "@policy"
yields = "policy"
"#;

/// The project of them; an update begins with these lines of shell.
fn policies(first: &str) -> Project {
    let project = Project::new(POLICIES);
    let policy = "[outputs.policy]\ntype = \"policy\"\npath = \"policy\"\n";
    let write = "mkdir \"$MCPRL_OUTPUT_POLICY\"\n";
    project.kind("first", "seeded", policy, &format!("{write}echo {{}} > $MCPRL_OUTPUT_POLICY/config.json"));
    let card = format!("[inputs.from]\ntype = \"policy\"\n{policy}");
    let script = "(cat $MCPRL_INPUT_FROM/config.json; echo) > $MCPRL_OUTPUT_POLICY/config.json";
    project.kind("next", "seeded", &card, &format!("{first}{write}{script}"));
    project
}

#[test]
fn a_missing_newest_policy_is_not_replaced_by_an_earlier_one() {
    let project = policies("");
    project.run(&[]);
    let run = project.runs().pop().unwrap();
    let newest = project.path(&format!("cache/runs/{run}/train.0003/update/policy"));
    std::fs::remove_dir_all(std::fs::canonicalize(newest).unwrap()).unwrap();

    let refused = project.mcprl(&["export", "latest", "--out", "out"]);
    assert_eq!(refused.code, Some(1), "{}", refused.out);
    assert!(refused.err.contains("train.0003/update/policy is no longer in the cache"), "{}", refused.err);
    assert!(refused.err.contains(&format!("`mcprl resume {run}`")), "{}", refused.err);
    let earlier = project.mcprl(&["export", "latest/train.0002/update", "--out", "out"]);
    assert!(
        earlier.err.contains("train.0002/update/policy/model.safetensors"),
        "it is taken: {}",
        earlier.err
    );
}

#[test]
fn a_policy_that_is_not_as_it_was_written_is_not_exported() {
    let project = policies("");
    project.run(&[]);
    let run = project.runs().pop().unwrap();
    let link = project.path(&format!("cache/runs/{run}/train.0003/update/policy"));
    let replace = |name: &str, make: &dyn Fn(&Path)| {
        let file = std::fs::canonicalize(&link).unwrap().join(name);
        _ = std::fs::remove_file(&file);
        make(&file);
    };
    let changed = "its bytes changed since it was written";
    let (other, empty) = (
        |file: &Path| std::fs::write(file, "[]").unwrap(),
        |file: &Path| {
            std::fs::write(file, "").unwrap();
        },
    );
    let to_another = |file: &Path| std::os::unix::fs::symlink("/etc/passwd", file).unwrap();
    let leads_away = || {
        let earlier = project.path(&format!("cache/runs/{run}/train.0001/update/policy"));
        let target = std::fs::read_link(earlier).unwrap();
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(target, &link).unwrap();
    };
    let damages: [(&dyn Fn(), &str); 5] = [
        (&|| replace("config.json", &other), changed),
        (&|| replace("config.json", &empty), changed),
        (&|| replace("config.json", &to_another), "which is neither a file nor a folder"),
        (&|| replace("more.json", &other), changed),
        (&leads_away, "train.0003/update/policy leads to another artifact"),
    ];
    for (damage, expected) in damages {
        damage();
        let refused = project.mcprl(&["export", "latest", "--out", "out"]);
        assert_eq!(refused.code, Some(1), "{expected}: {}", refused.err);
        let begin = format!("error: output train[0003]/update.policy of run \"{run}\" is unusable: ");
        assert!(refused.err.starts_with(&begin) && refused.err.contains(expected), "{}", refused.err);
        let way_out = format!("hint: make it again with `mcprl resume {run}`");
        assert!(refused.err.contains(&way_out), "{}", refused.err);
        assert_eq!(project.mcprl(&["resume", &run]).code, Some(0));
        let again = project.mcprl(&["export", "latest", "--out", "out"]);
        // There are no weights in it.
        assert!(again.err.contains("train.0003/update/policy/model.safetensors"), "{}", again.err);
    }
}

#[test]
fn a_run_goes_on_from_an_agent_in_place_of_its_start() {
    let project = Project::with_model(&training_run("group_size = 2"));
    project.run(&[]);
    let tasks = project.read("tasks.jsonl");
    let reference = ", \"reference\": [{\"name\": \"list_tables\", \"arguments\": {}}]}";
    project.write("tasks.jsonl", &tasks.replace('}', reference));
    let start = "[stages.solved]\nkind = \"demonstrations\"\npolicy = \"base\"\ntools = \"tools\"\nscenarios = \"tasks.train\"\n\
        [stages.start]\nkind = \"sft\"\npolicy = \"base\"\ntrajectories = \"solved\"\n\
        [stages.exam]\nkind = \"eval\"\npolicies = { base = \"base\", start = \"start\" }\ntools = \"tools\"\n\
        scenarios = \"tasks.heldout\"\n";
    project.write("more.toml", &format!("name = \"more\"\nmodel = \"llama\"\n{DEMO}{start}"));
    let exported = project.mcprl(&["export", "latest", "--out", "adapter"]);
    assert_eq!(exported.code, Some(0), "{}", exported.err);
    for from in ["adapter", "latest", "latest/update"] {
        let planned = project.mcprl(&["plan", "more.toml", "--from", from]);
        assert_eq!(planned.code, Some(0), "{from}: {}", planned.err);
        let has = |stage: &str, kind: &str| {
            let is_it = |line: &str| line.split_whitespace().any(|word| word == stage) && line.contains(kind);
            planned.out.lines().any(is_it)
        };
        assert!(has("before", " adapter ") && !has("start", " sft "), "{from}: {}", planned.out);
        let expanded = project.mcprl(&["plan", "more.toml", "--expand", "--from", from]).out;
        assert!(expanded.contains("start = \"before\""), "{from}: {expanded}");
    }
    let doctor = project.mcprl(&["doctor", "more.toml", "--from", "adapter"]).out;
    assert!(doctor.contains("the agent's tools are all there"), "{doctor}");
    let agent = project.read("adapter/agent.json");
    project.write("adapter/agent.json", &agent.replace("\"list_tables\"", "\"show_tables\""));
    let doctor = project.mcprl(&["doctor", "more.toml", "--from", "adapter"]).out;
    assert!(doctor.contains("the agent learned with tools that are gone: show_tables"), "{doctor}");
    let run = project.mcprl(&["run", "more.toml", "--from", "adapter", "--until", "before"]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    project
        .write("whole.toml", &format!("extends = \"standard\"\nname = \"whole\"\nmodel = \"llama\"\n{DEMO}"));
    for iterations in ["0", "2"] {
        let planned = project.mcprl(&["plan", "whole.toml", "--from", "adapter", "--iterations", iterations]);
        assert_eq!(planned.code, Some(0), "{iterations}: {}", planned.err);
    }
    for (file, from, said) in [
        ("run.toml", "adapter", "supervised start"),
        ("more.toml", "llama", "adapter_config.json is missing"),
    ] {
        let refused = project.mcprl(&["plan", file, "--from", from]);
        assert_eq!(refused.code, Some(2), "{from}: {}", refused.err);
        assert!(refused.err.contains(said), "{from}: {}", refused.err);
    }
}

#[test]
fn a_card_claims_what_was_examined_of_this_policy_alone() {
    let again = "\n[stages.again]\nkind = \"grpo\"\npolicy = \"base\"\ntrajectories = \"rollout\"\nrewards = \"reward\"\nrank = 2\n";
    let project = Project::with_model(&(training_run("group_size = 2") + again));
    project.run(&[]);
    let card = |policy: &str, form: &[&str], out: &str| {
        let output = project.mcprl(&[&["export", policy, "--out", out], form].concat());
        assert_eq!(output.code, Some(0), "{}", output.err);
        project.read(format!("{out}/README.md"))
    };
    let promise = "gets what was measured";
    let trained = card("latest/update", &[], "trained");
    assert!(trained.contains("This policy is `trained`") && trained.contains(promise), "{trained}");
    let rounded = card("latest/update", &["--gguf", "q8_0"], "rounded");
    assert!(rounded.contains("before the weights were rounded") && !rounded.contains(promise), "{rounded}");
    let other = card("latest/again", &[], "other");
    assert!(!other.contains("## Measured") && !other.contains(promise), "{other}");
    assert!(other.contains("characters left out") && other.contains("errors too"), "{other}");
}
