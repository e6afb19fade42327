//! Published models. `tests/reference/weights.sh` puts them into `target/weights`; one that is not there is skipped, and the
//! test says so. `MCPRL_TEST_WEIGHTS` names another folder.

use std::{collections::BTreeMap, sync::Mutex};

use serde::Deserialize;
use serde_json::{Map, json};

use super::{super::write::Quantization, *};
use crate::{
    chat::{Prompt, ToolCall},
    engine::{Microbatch, Rule, Trainer, logits},
    model::{Adapter, LayerKind, ops, write_safetensors},
    stage::{model::untrained::Record, testing},
};

const NAMES: [&str; 3] = ["gemma3-270m", "smollm2-135m", "qwen2.5-coder-0.5b"];

/// The tests take turns, because each holds a model.
static ONE: Mutex<()> = Mutex::new(());

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The artifact of the stage for each model that is there.
fn each(check: impl Fn(&str, &Path)) {
    let _one = ONE.lock();
    for name in NAMES {
        let path = weights(name);
        if !path.is_file() {
            eprintln!("skipped: {} is not there (tests/reference/weights.sh)", path.display());
            continue;
        }
        let output = tempfile::tempdir().unwrap();
        let (context, _) = testing::context("model", &[], output.path(), json!({"from": path}));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(testing::run(&context)).unwrap();
        check(name, &output.path().join("policy"));
    }
}

fn fixture<T: for<'de> Deserialize<'de>>(name: &str) -> T {
    let path = root().join("tests/reference/fixtures/gguf").join(name);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn weights(name: &str) -> PathBuf {
    let folder = std::env::var_os("MCPRL_TEST_WEIGHTS").map_or(root().join("target/weights"), PathBuf::from);
    folder.join(format!("{name}.gguf"))
}

#[test]
fn written_files_have_the_metadata_and_types_of_llama_cpps() {
    each(|name, folder| {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("model.gguf");
        let written = super::super::write::model(folder, name, Quantization::Q4KM, &path);
        if name.starts_with("gemma") {
            let error = written.unwrap_err().to_string();
            assert!(error.contains("SentencePiece"), "{error}");
            return;
        }
        written.unwrap();
        let theirs = GgufFile::open(&weights(name)).unwrap();
        let theirs = theirs.content().unwrap();
        let ours = GgufFile::open(&path).unwrap();
        let ours = ours.content().unwrap();
        assert_eq!(decoder::config(&ours).unwrap(), decoder::config(&theirs).unwrap(), "{name}");
        for key in ["pre", "eos_token_id", "bos_token_id", "padding_token_id"]
            .map(|key| format!("tokenizer.ggml.{key}"))
        {
            let value = |content: &file::Content<'_>| {
                content
                    .size(&key)
                    .map(|size| size.map(|size| size.to_string()))
                    .unwrap_or_else(|_| content.text(&key).unwrap().map(str::to_owned))
            };
            assert_eq!(value(&ours), value(&theirs), "{name} {key}");
        }
        let template =
            |content: &file::Content<'_>| content.text("tokenizer.chat_template").unwrap().map(str::to_owned);
        assert_eq!(template(&ours), template(&theirs), "{name}");
        let shapes = |content: &file::Content<'_>| -> BTreeMap<String, Vec<usize>> {
            content.tensors.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.shape.clone())).collect()
        };
        assert_eq!(shapes(&ours), shapes(&theirs), "{name}");
        // The other file is Q4_1. Which layers have more bits depended on the order of the tensors in older versions.
        if name.starts_with("qwen") {
            let types = |content: &file::Content<'_>| {
                let part = |name: &str| {
                    name.rsplit_once("blk.")
                        .map_or(name, |(_, rest)| rest.split_once('.').unwrap().1)
                        .to_owned()
                };
                let mut types: Vec<(String, String)> = content
                    .tensors
                    .iter()
                    .map(|(name, tensor)| (part(name), format!("{:?}", tensor.dtype)))
                    .collect();
                types.sort_unstable();
                types
            };
            assert_eq!(types(&ours), types(&theirs));
        }
    });
}

#[derive(Deserialize)]
struct Tokenized {
    text: String,
    ids: Vec<u32>,
    /// Whether Transformers' tokenizer gives what llama.cpp's does.
    same: bool,
}

#[test]
fn texts_are_the_tokens_of_llama_cpp() {
    each(|name, folder| {
        let tokenizer = Tokenizer::from_file(folder.join("tokenizer.json")).unwrap();
        let cases: Vec<Tokenized> = fixture(&format!("{name}.tokens.json"));
        assert!(cases.iter().filter(|case| case.same).count() > 40);
        for Tokenized { text, ids, same } in cases {
            let found = tokenizer.encode_fast(text.as_str(), false).unwrap();
            assert_eq!(found.get_ids() == ids, same, "{name} {text:?}");
        }
    });
}

#[test]
fn untrained_tags_are_found_in_the_models_that_have_some() {
    each(|name, folder| {
        let expected: &[&str] = if name.starts_with("qwen") { &["<tool_call>", "</tool_call>"] } else { &[] };
        assert_eq!(Record::load(folder).demoted_tokens, expected, "{name}");
    });
}

#[test]
fn an_episode_whose_tags_are_ordinary_tokens_is_the_conversation_that_the_template_renders() {
    each(|name, folder| {
        let tool = json!({"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}});
        let chat = Chat::load(folder).unwrap().with_tools("Be brief.", &[tool]).unwrap();
        let call = |at: &str| ToolCall {
            name: "look".into(),
            arguments: Map::from_iter([("at".to_owned(), at.into())]),
        };
        let calls = [call("a </tool_call> b"), call("c")];
        let Prompt { shared, task } = chat.prompt("Find <tool_call> it.").unwrap();
        let turn = chat.assistant("", &calls);
        let parsed = chat.parse(&[], &turn);
        assert_eq!(parsed.calls, calls.clone().map(Ok), "{name}");
        let results = chat.results(&parsed.ids, &["one".to_owned(), "<tool_response>two".to_owned()]);
        let last = chat.assistant("Done.", &[]);
        let grown = [shared, task, turn, results, last].concat();
        let function = |call: &ToolCall| json!({"type": "function", "function": call});
        let messages = [
            json!({"role": "system", "content": "Be brief."}),
            json!({"role": "user", "content": "Find <tool_call> it."}),
            json!({"role": "assistant", "content": "", "tool_calls": calls.iter().map(function).collect::<Vec<_>>()}),
            json!({"role": "tool", "name": "look", "content": "one"}),
            json!({"role": "tool", "name": "look", "content": "<tool_response>two"}),
            json!({"role": "assistant", "content": "Done."}),
        ];
        let rendered = chat.rendered(&messages).unwrap();
        let rendered = rendered.strip_suffix('\n').unwrap_or(&rendered);
        assert_eq!(chat.decode(&grown), rendered, "{name}");
        assert_eq!(grown, chat.encode(rendered), "{name}: token by token");
    });
}

#[derive(Deserialize)]
struct Numbers {
    logits: Vec<Sequence>,
    sft: Step,
    grpo: Step,
}

#[derive(Deserialize)]
struct Sequence {
    ids: Vec<u32>,
    /// The positions that are compared; all if none.
    rows: Option<Vec<usize>>,
    sum: Vec<f32>,
    top: Vec<Vec<(usize, f32)>>,
    /// Top tokens on the quantized weights.
    llama_cpp: Vec<usize>,
}

#[derive(Deserialize)]
struct Step {
    loss: f64,
    /// Norm and sum of each gradient.
    gradients: BTreeMap<String, (f64, f64)>,
}

#[test]
fn logits_are_those_of_transformers_and_the_top_tokens_those_of_llama_cpp() {
    each(|name, folder| {
        let decoder = Decoder::load(folder).unwrap();
        let (mut worst, mut agreeing, mut count) = (0.0_f32, 0, 0);
        for Sequence { ids, rows, sum, top, llama_cpp } in fixture::<Numbers>(&format!("{name}.json")).logits
        {
            let all = logits(&decoder, &ids).unwrap().to_vec2::<f32>().unwrap();
            let rows = rows.unwrap_or((0..ids.len()).collect());
            for (at, row) in rows.iter().map(|row| &all[*row]).enumerate() {
                let most = row.iter().copied().fold(f32::MIN, f32::max);
                let total = most + row.iter().map(|value| (value - most).exp()).sum::<f32>().ln();
                worst = worst.max((total - sum[at]).abs());
                top[at].iter().for_each(|(id, value)| worst = worst.max((row[*id] - value).abs()));
                agreeing += usize::from(row[llama_cpp[at]] == most);
                count += 1;
            }
        }
        eprintln!(
            "{name}: logits within {worst:.1e} of Transformers; {agreeing} of {count} top tokens are llama.cpp's"
        );
        assert!(worst < 3e-3, "{name}: {worst}");
        assert!(agreeing * 100 >= count * 95, "{name}: {agreeing} of {count}");
    });
}

/// `value` of `gguf_parity.py`.
fn values(name: &str, count: usize) -> Vec<f32> {
    let seed = name.bytes().fold(7_u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
    let value = |index: u64| {
        let mut mixed = index.wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^= mixed >> 29;
        mixed = mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed >> 40) as f32 / (1 << 24) as f32 - 0.5) / 32.0
    };
    (0..count as u64).map(value).collect()
}

/// Writes the adapter of the script, and returns the names of its tensors in the decoder's order.
fn adapter(config: &ModelConfig, folder: &Path) -> Vec<String> {
    let targets = ["q_proj", "v_proj", "down_proj"];
    let (mut names, mut tensors) = (Vec::new(), BTreeMap::new());
    for layer in 0..config.layers {
        for linear in config.linears(LayerKind::FullAttention) {
            if !targets.iter().any(|target| linear.name.ends_with(target)) {
                continue;
            }
            for (part, shape) in [("A", [4, linear.inputs]), ("B", [linear.outputs, 4])] {
                let name = format!("model.layers.{layer}.{}.lora_{part}.weight", linear.name);
                let tensor =
                    Tensor::from_vec(values(&name, shape[0] * shape[1]), &shape, &Device::Cpu).unwrap();
                tensors.insert(format!("base_model.model.{name}"), tensor);
                names.push(name);
            }
        }
    }
    write_safetensors(&folder.join("adapter_model.safetensors"), &tensors).unwrap();
    let config =
        json!({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": targets, "bias": "none"});
    std::fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
    names
}

#[test]
fn a_step_of_sft_and_one_of_grpo_have_the_losses_and_gradients_of_peft() {
    each(|name, folder| {
        let Numbers { logits, sft, grpo } = fixture(&format!("{name}.json"));
        let mut decoder = Decoder::load(folder).unwrap();
        let files = tempfile::tempdir().unwrap();
        let names = adapter(&decoder.config, files.path());
        Adapter::load(&mut decoder, files.path()).unwrap();
        let marked = |ids: Vec<u32>| {
            let half = ids.len() / 2;
            let marks = (0..ids.len()).map(|at| at >= half).collect::<Vec<bool>>();
            (ids, marks)
        };
        let sequences: Vec<(Vec<u32>, Vec<bool>)> =
            logits.into_iter().take(2).map(|sequence| marked(sequence.ids)).collect();
        let (batch, indices) = Microbatch::new(&sequences);
        let count = indices.iter().map(Vec::len).sum::<usize>() as f32;
        let rule = Rule::Muon { rate: 1.0, momentum: 0.9 };
        let mut trainer = Trainer::new(decoder, |parameters| vec![rule; parameters.len()], 2).unwrap();
        // An on-policy step has ratios of 1, so a token's derivative is its advantage.
        for (what, expected, advantages) in [("sft", sft, [1.0, 1.0]), ("grpo", grpo, [1.25, -0.75])] {
            let mut weights = vec![0.0; batch.targets.len()];
            for (advantage, targets) in advantages.iter().zip(&indices) {
                targets.iter().for_each(|target| weights[*target] -= advantage / count);
            }
            let (gradients, logprobs) =
                trainer.gradients(std::slice::from_ref(&batch), &|_, target, _| weights[target]).unwrap();
            let loss: f64 = match what {
                "sft" => weights
                    .iter()
                    .zip(&logprobs[0])
                    .map(|(weight, logprob)| f64::from(weight * logprob))
                    .sum(),
                _ => weights.iter().map(|weight| f64::from(*weight)).sum(),
            };
            assert!((loss - expected.loss).abs() < 1e-4, "{name} {what}: {loss} and {}", expected.loss);
            assert_eq!(names.len(), gradients.slots.len());
            let (mut worst, mut compared) = (0.0_f64, 0);
            for (of, gradient) in names.iter().zip(&gradients.slots) {
                let Some((norm, sum)) = expected.gradients.get(of) else { continue };
                let found = ops::read(gradient).unwrap();
                let found_norm = found.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
                let found_sum: f64 = found.iter().map(|value| f64::from(*value)).sum();
                let near = ((found_norm - norm) / norm).abs().max(((found_sum - sum) / norm).abs());
                worst = worst.max(near);
                compared += 1;
            }
            eprintln!(
                "{name} {what}: loss {loss:.6} (PEFT {:.6}), gradients within {worst:.1e} of their norm",
                expected.loss
            );
            // Transformers' gradients of Gemma in f32 are 5e-4 from those in float64.
            let bound = if name.starts_with("gemma") { 1e-3 } else { 2e-4 };
            assert!(compared == 18 && worst < bound, "{name} {what}: {worst}");
        }
    });
}
