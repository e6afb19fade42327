//! `mcprl export`: the real binary on policies made by PEFT and Transformers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

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
    let said = text(&done.stderr);
    assert!(
        said.contains("own template for ChatML") && said.contains("written as its chat_template"),
        "{said}"
    );
    let template = std::fs::read_to_string(folder.path().join("merged/chat_template.jinja")).unwrap();
    assert_eq!(template, include_str!("../src/chat/own/chatml.jinja"));
    let done = export(&[&arguments[..], &["adapter"]].concat(), folder.path());
    assert!(text(&done.stderr).contains("`--merge` writes it"), "{}", text(&done.stderr));
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
fn what_cannot_be_exported_is_named_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let adapter = fixture("qwen3-tiny-lora");
    let adapter = adapter.to_str().unwrap();
    let patterns = fixture("qwen3-tiny-lora-patterns");
    for (arguments, expected) in [
        (vec!["nowhere"], "there is neither a run nor a folder \"nowhere\""),
        (vec!["."], ". holds no policy"),
        (vec![adapter, "--merge"], "is not known here"),
        (vec![adapter, "--merge", "--base", patterns.to_str().unwrap()], "cannot read"),
    ] {
        let arguments: Vec<&str> = arguments.into_iter().chain(["--out", "out"]).collect();
        let refused = export(&arguments, folder.path());
        assert!(!refused.status.success());
        assert!(text(&refused.stderr).contains(expected), "{}", text(&refused.stderr));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{arguments:?}");
    }
}
