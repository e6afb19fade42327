mod real;
mod writer;
mod written;

use std::path::PathBuf;

use candle_core::quantized::{GgmlDType, QTensor, gguf_file::Value};
use serde_json::Value as Json;
use tokenizers::Tokenizer;
use writer::{Draft, config, llama3, reference, texts};

use super::*;
use crate::{
    chat::Chat,
    error::Failure,
    model::{Decoder, Family, Scaling, read_safetensors},
    progress::NoProgress,
};

/// A converted file: its folder, and the file's.
struct Converted {
    folder: tempfile::TempDir,
    _source: tempfile::TempDir,
}

fn file(draft: &Draft) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.gguf");
    draft.write(&path);
    (folder, path)
}

fn converted(draft: &Draft) -> Result<Converted> {
    let (source, path) = file(draft);
    let folder = tempfile::tempdir().unwrap();
    convert(&path, folder.path(), &NoProgress, &|| false)?;
    Ok(Converted { folder, _source: source })
}

impl Converted {
    fn json(&self, name: &str) -> Json {
        serde_json::from_slice(&std::fs::read(self.folder.path().join(name)).unwrap()).unwrap()
    }

    fn tokenizer(&self) -> Tokenizer {
        Tokenizer::from_file(self.folder.path().join("tokenizer.json")).unwrap()
    }

    fn ids(&self, text: &str) -> Vec<u32> {
        self.tokenizer().encode_fast(text, false).unwrap().get_ids().to_vec()
    }
}

fn failure(draft: &Draft) -> Failure {
    let (_source, path) = file(draft);
    let early = preflight(&path, true).unwrap_err();
    let late = converted(draft).err().unwrap();
    assert_eq!(early.code(), late.code());
    early
}

#[test]
fn every_family_has_its_weights_configuration_and_tokenizer_again() {
    for family in [Family::Gemma3, Family::Llama, Family::Qwen2, Family::Qwen3] {
        for tied in [false, true] {
            let mut config = config(family);
            config.tied = tied;
            let draft = Draft::new(config.clone());
            let (_source, path) = file(&draft);
            assert_eq!(preflight(&path, true).unwrap(), config);
            let converted = converted(&draft).unwrap();
            let folder = converted.folder.path();
            assert_eq!(ModelConfig::load(folder).unwrap(), config, "{family:?}");
            assert_eq!(converted.json("config.json")["torch_dtype"], "bfloat16");
            let weights = read_safetensors(&folder.join("model.safetensors")).unwrap();
            assert_eq!(weights.len(), draft.weights.len());
            for (name, expected) in &draft.weights {
                let values = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
                assert_eq!(weights[name].dims(), expected.dims());
                assert_eq!(values(&weights[name]), values(expected), "{family:?} {name}");
            }
            Decoder::load(folder).unwrap();
            assert_eq!(embeddings(&path).unwrap().len(), if tied { 1 } else { 2 });
            let of_weights: usize = draft.weights.values().map(Tensor::elem_count).sum();
            assert_eq!(converted_bytes(&path).unwrap(), 2 * of_weights as u64);
        }
    }
}

/// A small model, as Transformers saved it.
fn family(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/fixtures/families").join(name)
}

/// The same model, as llama.cpp's converter wrote it (`tests/reference/gguf_families.py`).
fn by_llama_cpp(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/fixtures/gguf").join(format!("{name}.gguf"))
}

/// The largest difference between the weights in two folders, which have the same names and shapes.
fn largest_difference(one: &Path, other: &Path) -> f32 {
    let weights = |folder: &Path| read_safetensors(&folder.join("model.safetensors")).unwrap();
    let (one, other) = (weights(one), weights(other));
    assert!(one.keys().eq(other.keys()));
    let values = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let differences = one.iter().flat_map(|(name, tensor)| {
        assert_eq!(tensor.dims(), other[name].dims(), "{name}");
        values(tensor).into_iter().zip(values(&other[name])).map(|(one, other)| (one - other).abs())
    });
    differences.fold(0.0, f32::max)
}

#[test]
fn files_of_llama_cpps_converter_become_the_folders_that_they_were_made_of() {
    for name in ["lfm2", "qwen3_5"] {
        let folder = tempfile::tempdir().unwrap();
        convert(&by_llama_cpp(name), folder.path(), &NoProgress, &|| false).unwrap();
        let expected = ModelConfig::load(&family(name)).unwrap();
        assert_eq!(ModelConfig::load(folder.path()).unwrap(), expected, "{name}");
        assert_eq!(preflight(&by_llama_cpp(name), true).unwrap(), expected, "{name}");
        // The decay is a logarithm of an exponential, in f32.
        assert!(largest_difference(folder.path(), &family(name)) < 1e-6, "{name}");
        Decoder::load(folder.path()).unwrap();
    }
}

#[test]
fn what_layers_without_attention_lack_is_refused_by_name() {
    type Change = fn(&mut Draft);
    let cases: [(&str, &str, &str, Change); 8] = [
        ("lfm2", "gguf::unsupported", "setting `lfm2.attention.sliding_window`", |draft| {
            draft.set("lfm2.attention.sliding_window", Value::U32(16));
        }),
        ("lfm2", "gguf::missing", "`lfm2.shortconv.l_cache`", |draft| {
            draft.without("lfm2.shortconv.l_cache");
        }),
        ("lfm2", "gguf::metadata", "only one number of heads for all layers", |draft| {
            let heads = [1, 2, 0].map(Value::I32).to_vec();
            draft.set("lfm2.attention.head_count_kv", Value::Array(heads));
        }),
        ("lfm2", "gguf::metadata", "it has a negative count", |draft| {
            let heads = [0, 2, -1].map(Value::I32).to_vec();
            draft.set("lfm2.attention.head_count_kv", Value::Array(heads));
        }),
        ("qwen3_5", "gguf::metadata", "layer_types has 2 entries for 4 layers", |draft| {
            let flags = [true, false].map(Value::Bool).to_vec();
            draft.set("qwen35.attention.recurrent_layers", Value::Array(flags));
        }),
        ("qwen3_5", "gguf::metadata", "it is not a multiple of 4, the number of value heads", |draft| {
            draft.set("qwen35.ssm.inner_size", Value::U32(33));
        }),
        ("qwen3_5", "gguf::metadata", "linear_num_key_heads", |draft| {
            draft.set("qwen35.ssm.group_count", Value::U32(0));
        }),
        // Without the number of layers that predict, the last is one of the decoder's.
        ("qwen3_5", "gguf::metadata", "layer_types has 5 entries", |draft| {
            draft.set("qwen35.nextn_predict_layers", Value::U32(0));
            draft.set("qwen35.block_count", Value::U32(6));
        }),
    ];
    for (name, code, message, change) in cases {
        let mut draft = Draft::read(&by_llama_cpp(name));
        change(&mut draft);
        let error = failure(&draft);
        assert!(error.code() == code && error.to_string().contains(message), "{}: {error}", error.code());
    }
}

#[test]
fn a_decay_without_a_logarithm_is_an_error() {
    let mut draft = Draft::read(&by_llama_cpp("qwen3_5"));
    draft.without("blk.0.ssm_a").add("blk.0.ssm_a", Tensor::zeros(4, DType::F32, &Device::Cpu).unwrap());
    let error = converted(&draft).err().unwrap();
    assert_eq!(error.code(), "gguf::convert");
    assert!(error.to_string().contains("`blk.0.ssm_a` cannot be converted: not all"), "{error}");
}

#[test]
fn every_so_many_layers_have_full_attention_where_the_file_lists_none() {
    let mut draft = Draft::read(&by_llama_cpp("qwen3_5"));
    draft.without("qwen35.attention.recurrent_layers");
    let (_source, path) = file(&draft);
    assert_eq!(preflight(&path, true).unwrap(), ModelConfig::load(&family("qwen3_5")).unwrap());
    draft.without("qwen35.full_attention_interval");
    let (_source, path) = file(&draft);
    assert_eq!(preflight(&path, true).unwrap(), ModelConfig::load(&family("qwen3_5")).unwrap());
}

#[test]
fn every_stored_type_is_dequantized() {
    let types = super::supported::TENSOR_TYPES.map(|(_, _, dtype)| dtype);
    for dtype in types {
        let mut draft = Draft::new(config(Family::Qwen2));
        draft.stored(dtype);
        let converted = converted(&draft).unwrap();
        let weights = read_safetensors(&converted.folder.path().join("model.safetensors")).unwrap();
        for (name, expected) in draft.weights.iter().filter(|(_, tensor)| tensor.rank() > 1) {
            // Candle's own rounding of the whole tensor, then to bf16.
            let rounded = QTensor::quantize(expected, dtype).unwrap().dequantize(&Device::Cpu).unwrap();
            let rounded = rounded.to_dtype(DType::BF16).unwrap().to_dtype(DType::F32).unwrap();
            let values = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(values(&weights[name]), values(&rounded), "{dtype:?} {name}");
        }
    }
}

#[test]
fn tokens_named_tokens_and_template_are_those_of_the_folder_it_was_made_of() {
    let converted = converted(&Draft::new(config(Family::Qwen3))).unwrap();
    let original = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/chat/qwen3");
    let expected = Tokenizer::from_file(original.join("tokenizer.json")).unwrap();
    for text in [
        "What is 1234 + 5?  \n\n It's ok, don't",
        "<|im_start|>user\nhi<|im_end|>\n<tool_call>\n{\"name\": \"x\"}\n</tool_call>",
        "Grüße, 你好 🙂 [PAD410] <0x0A>",
    ] {
        let ids = expected.encode_fast(text, false).unwrap().get_ids().to_vec();
        assert_eq!(converted.ids(text), ids, "{text}");
        assert_eq!(converted.tokenizer().decode(&ids, false).unwrap(), expected.decode(&ids, false).unwrap());
    }
    assert_eq!(converted.tokenizer().get_vocab(true), expected.get_vocab(true));
    let chat = |folder: &Path| Chat::load(folder).unwrap().with_tools("Be brief.", &[]).unwrap();
    let (ours, theirs) = (chat(converted.folder.path()), chat(&original));
    assert_eq!(ours.prompt("task").unwrap(), theirs.prompt("task").unwrap());
    assert_eq!(ours.stop(), [402, 400], "the template's end, and what else ends a text");
    assert_eq!(ours.unused_ids(420), (407..420).collect::<Vec<u32>>());
    let config = converted.json("tokenizer_config.json");
    let named = ["eos_token", "pad_token", "bos_token"].map(|name| config[name].as_str());
    assert_eq!(named, [Some("<|im_end|>"), Some("<|endoftext|>"), None]);
    assert_eq!(converted.json("config.json")["eos_token_id"], 402);
}

#[test]
fn each_pre_tokenizer_splits_as_its_models_tokenizer_does() {
    let pieces = |pre: &str, text: &str| {
        let mut draft = Draft::new(config(Family::Qwen2));
        draft.set("tokenizer.ggml.pre", Value::String(pre.into()));
        let converted = converted(&draft).unwrap();
        let tokenizer = converted.tokenizer();
        let mut text = tokenizers::NormalizedString::from(text);
        if let Some(normalizer) = tokenizer.get_normalizer() {
            tokenizers::Normalizer::normalize(normalizer, &mut text).unwrap();
        }
        let mut text = tokenizers::PreTokenizedString::from(text);
        let pre_tokenizer = tokenizer.get_pre_tokenizer().unwrap();
        tokenizers::PreTokenizer::pre_tokenize(pre_tokenizer, &mut text).unwrap();
        let splits = text.get_splits(tokenizers::OffsetReferential::Original, tokenizers::OffsetType::Byte);
        splits
            .into_iter()
            .map(|(piece, _, _)| piece.replace('Ġ', "_").replace('Ċ', "/"))
            .collect::<Vec<_>>()
            .join("|")
    };
    let text = "It'S 1234\n\n  e\u{301}x!";
    assert_eq!(pieces("qwen2", text), "It|'S|_|1|2|3|4|//|_|_Ã©x|!", "letter and accent are one character");
    assert_eq!(pieces("llama-bpe", text), "It|'S|_|123|4|//|_|_e|Ìģx|!");
    assert_eq!(pieces("smollm", text), "It|'|S|_|1|2|3|4|//_|_e|Ìģ|x|!");
    assert_eq!(pieces("gpt-2", text), "It|'|S|_1234|//_|_e|Ìģ|x|!");
    assert_eq!(pieces("lfm2", text), pieces("llama-bpe", text));
    // No character is this letter with this accent.
    let marked = "q\u{301}x 12!";
    assert_eq!(pieces("qwen2", marked), "q|Ìģx|_|1|2|!");
    assert_eq!(pieces("qwen35", marked), "qÌģx|_|1|2|!");
    assert_eq!(pieces("qwen35", text), pieces("qwen2", text));
}

#[test]
fn a_text_begins_with_the_first_token_where_the_file_says_so() {
    let first = |pre: &str, adds: Option<bool>| {
        let mut draft = Draft::new(config(Family::Llama));
        draft.set("tokenizer.ggml.pre", Value::String(pre.into()));
        draft.set("tokenizer.ggml.bos_token_id", Value::U32(401));
        draft.without("tokenizer.ggml.add_bos_token");
        adds.map(|adds| draft.set("tokenizer.ggml.add_bos_token", Value::Bool(adds)));
        let converted = converted(&draft).unwrap();
        assert_eq!(converted.json("tokenizer_config.json")["bos_token"], "<|im_start|>");
        let encoded = converted.tokenizer().encode_fast("x", true).unwrap();
        let of_config = converted.json("tokenizer_config.json")["add_bos_token"] == true;
        assert_eq!(encoded.get_ids()[0] == 401, of_config);
        of_config
    };
    assert!(first("llama-bpe", None) && !first("llama-bpe", Some(false)));
    assert!(first("gpt-2", Some(true)) && !first("gpt-2", None));
}

/// A SentencePiece vocabulary: the merges of a text are those of the best scores.
fn pieces() -> Draft {
    let mut draft = Draft::new(config(Family::Llama));
    let tokens = ["<unk>", "<s>", "</s>", "<0x0A>", "▁", "a", "b", "ab", "▁ab", "bb", "abb", "<tag>"];
    let kinds = [2, 3, 3, 6, 1, 1, 1, 1, 1, 1, 1, 4];
    let scores = [0.0, 0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -5.0, -6.0, -4.0, -7.0, 0.0];
    draft.set("tokenizer.ggml.model", Value::String("llama".into()));
    draft
        .without("tokenizer.ggml.pre")
        .without("tokenizer.ggml.merges")
        .without("tokenizer.ggml.add_bos_token");
    draft.without("tokenizer.ggml.padding_token_id");
    draft.set("tokenizer.ggml.tokens", texts(tokens));
    draft.set("tokenizer.ggml.token_type", Value::Array(kinds.map(Value::I32).to_vec()));
    draft.set("tokenizer.ggml.scores", Value::Array(scores.map(Value::F32).to_vec()));
    draft.set("tokenizer.ggml.bos_token_id", Value::U32(1));
    draft.set("tokenizer.ggml.eos_token_id", Value::U32(2));
    draft.set("tokenizer.ggml.unknown_token_id", Value::U32(0));
    draft
}

#[test]
fn sentencepiece_is_converted_as_transformers_does() {
    let converted = converted(&pieces()).unwrap();
    let tokenizer = converted.tokenizer();
    let tokens = |text: &str| tokenizer.encode(text, false).unwrap().get_tokens().join(" ");
    assert_eq!(tokens("ab ab"), "▁ab ▁ab");
    // `bb` scores better than `ab`, and a line's end is a byte.
    assert_eq!(tokens("abb\n"), "▁ abb <0x0A>");
    assert_eq!(tokens("b<tag>ab</s>"), "▁ b <tag> ▁ab </s>");
    assert_eq!(tokens("z"), "▁ <unk>");
    let ids = converted.ids("ab abb\n");
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), "ab abb\n");
    assert_eq!(tokenizer.encode_fast("a", true).unwrap().get_ids()[0], 1, "the first token is the default");
    let mut draft = pieces();
    draft.set("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    let plain = super::tests::converted(&draft).unwrap().tokenizer();
    assert_eq!(plain.encode("ab ab", false).unwrap().get_tokens().join(" "), "ab ▁ab");
}

#[test]
fn rotary_scaling_is_read_from_metadata_or_found_in_its_factors() {
    let scaled = |family: Family, change: &dyn Fn(&mut Draft)| {
        let mut draft = Draft::new(config(family));
        change(&mut draft);
        let (_source, path) = file(&draft);
        preflight(&path, true).map(|config| config.design.scaling)
    };
    let kind = |draft: &mut Draft, kind: &str, factor: f32| {
        draft.set("qwen2.rope.scaling.type", Value::String(kind.into()));
        draft.set("qwen2.rope.scaling.factor", Value::F32(factor));
    };
    assert_eq!(scaled(Family::Qwen2, &|draft| kind(draft, "none", 1.0)).unwrap(), Scaling::Default);
    let linear = scaled(Family::Qwen2, &|draft| kind(draft, "linear", 2.0)).unwrap();
    assert_eq!(linear, Scaling::Linear { factor: 2.0 });
    let yarn = scaled(Family::Qwen2, &|draft| {
        kind(draft, "yarn", 4.0);
        draft.set("qwen2.rope.scaling.original_context_length", Value::U32(32));
    });
    let Scaling::Yarn { factor, original_max_position_embeddings, .. } = yarn.unwrap() else { panic!() };
    assert_eq!((factor, original_max_position_embeddings), (4.0, 32.0));
    let refused = scaled(Family::Qwen2, &|draft| kind(draft, "longrope", 4.0)).unwrap_err();
    assert!(refused.to_string().contains("rotary embedding `longrope`"), "{refused}");

    let theta = 500_000.0;
    let (expected, factors) = llama3(theta, 64);
    let with = |factors: Tensor| {
        scaled(Family::Llama, &move |draft| {
            draft.set("llama.rope.freq_base", Value::F32(theta as f32));
            draft.add("rope_freqs.weight", factors.clone());
        })
    };
    assert_eq!(with(factors.clone()).unwrap(), expected);
    assert_eq!(with(Tensor::ones(32, DType::F32, &Device::Cpu).unwrap()).unwrap(), Scaling::Default);
    let others = (factors * 1.5).unwrap();
    assert!(with(others).unwrap_err().to_string().contains("`rope_freqs.weight` is not supported"));
}

#[test]
fn what_the_decoder_or_tokenizer_lacks_is_refused_by_name() {
    type Change = fn(&mut Draft);
    let cases: [(&str, &str, &str, Change); 20] = [
        ("gguf::unsupported", "architecture `gemma2`", "lfm2, llama, qwen2, qwen3, qwen35", |draft| {
            draft.set("general.architecture", Value::String("gemma2".into()));
        }),
        ("gguf::unsupported", "pre-tokenizer `deepseek-llm`", "qwen2, qwen35, llama-bpe", |draft| {
            draft.set("tokenizer.ggml.pre", Value::String("deepseek-llm".into()));
        }),
        ("gguf::missing", "`tokenizer.ggml.pre`", "", |draft| _ = draft.without("tokenizer.ggml.pre")),
        ("gguf::unsupported", "tokenizer `bert`", "gpt2", |draft| {
            draft.set("tokenizer.ggml.model", Value::String("bert".into()));
        }),
        ("gguf::unsupported", "setting `qwen2.logit_scale`", "folder", |draft| {
            draft.set("qwen2.logit_scale", Value::F32(0.5));
        }),
        ("gguf::unsupported", "setting `qwen2.expert_count`", "", |draft| {
            draft.set("qwen2.expert_count", Value::U32(8));
        }),
        ("gguf::unknown_tensor", "`blk.0.attn_sinks.weight`", "", |draft| {
            draft.add("blk.0.attn_sinks.weight", Tensor::zeros(4, DType::F32, &Device::Cpu).unwrap());
        }),
        ("gguf::missing_tensor", "`blk.1.ffn_up.weight`", "", |draft| {
            _ = draft.without("blk.1.ffn_up.weight")
        }),
        ("gguf::missing_tensor", "`token_embd.weight`", "", |draft| _ = draft.without("token_embd.weight")),
        ("gguf::missing", "`qwen2.block_count`", "", |draft| _ = draft.without("qwen2.block_count")),
        ("gguf::shape", "[512, 256]", "", |draft| {
            draft.without("blk.0.ffn_up.weight");
            draft.add("blk.0.ffn_up.weight", Tensor::zeros((256, 512), DType::F32, &Device::Cpu).unwrap());
        }),
        ("gguf::metadata", "`qwen2.rope.dimension_count`", "", |draft| {
            draft.set("qwen2.rope.dimension_count", Value::U32(32));
        }),
        ("gguf::metadata", "`qwen2.block_count`: it is not a count", "", |draft| {
            draft.set("qwen2.block_count", Value::String("two".into()));
        }),
        ("gguf::missing_tensor", "`blk.2.attn_norm.weight`", "", |draft| {
            draft.set("qwen2.block_count", Value::U32(u32::MAX));
        }),
        ("gguf::metadata", "head", "", |draft| {
            draft.set("qwen2.attention.head_count", Value::U32(0));
        }),
        ("gguf::metadata", "there is no token 5000", "", |draft| {
            draft.set("tokenizer.ggml.eos_token_id", Value::U32(5000));
        }),
        ("gguf::metadata", "`tokenizer.ggml.token_type`: it has 1 types for 420", "", |draft| {
            draft.set("tokenizer.ggml.token_type", Value::Array(vec![Value::I32(1)]));
        }),
        ("gguf::metadata", "`split.count`: the model is in 3 files", "", |draft| {
            draft.set("split.count", Value::U16(3));
        }),
        ("gguf::no_template", "no chat template", "", |draft| _ = draft.without("tokenizer.chat_template")),
        ("chat::", "template", "", |draft| {
            draft.set("tokenizer.chat_template", Value::String("{% if %}".into()));
        }),
    ];
    for (code, message, hint, change) in cases {
        let mut draft = Draft::new(config(Family::Qwen2));
        change(&mut draft);
        if code == "chat::" {
            let (_source, path) = file(&draft);
            assert!(preflight(&path, true).unwrap_err().code().starts_with(code));
            assert!(preflight(&path, false).is_ok(), "a judge's template needs no tools");
            continue;
        }
        let error = failure(&draft);
        assert!(error.code() == code && error.to_string().contains(message), "{}: {error}", error.code());
        assert!(error.hint().unwrap_or_default().contains(hint), "{error:?}");
    }
}

#[test]
fn an_unsupported_stored_type_is_named_with_its_tensor() {
    let (_source, path) = file(&Draft::new(config(Family::Qwen2)));
    let mut bytes = std::fs::read(&path).unwrap();
    let name = b"blk.0.attn_q.weight";
    let at = bytes.windows(name.len()).position(|window| window == name).unwrap() + name.len();
    // Behind the name: number of dimensions, two dimensions, type.
    bytes[at + 20..at + 24].copy_from_slice(&23_u32.to_le_bytes());
    std::fs::write(&path, &bytes).unwrap();
    let error = preflight(&path, true).unwrap_err();
    assert_eq!(error.code(), "gguf::stored");
    assert!(error.to_string().contains("`blk.0.attn_q.weight` is stored as IQ4_XS"), "{error}");
    assert!(error.hint().unwrap().contains("Q4_K"));
}

/// A file of this head only: magic, version 3 and then these bytes.
fn raw(rest: &[u8]) -> Failure {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("raw.gguf");
    std::fs::write(&path, [b"GGUF", 3_u32.to_le_bytes().as_slice(), rest].concat()).unwrap();
    preflight(&path, true).unwrap_err()
}

#[test]
fn absurd_counts_and_unknown_types_are_errors_and_take_no_memory() {
    let number = |value: u64| value.to_le_bytes();
    let key = |kind: u32, value: &[u8]| {
        [&number(0)[..], &number(1), &number(1), b"k", &kind.to_le_bytes(), value].concat()
    };
    let list = |kind: u32, count: u64| [&kind.to_le_bytes()[..], &number(count)].concat();
    let tensor = |dims: &[u64], offset: u64| {
        let dims: Vec<u8> = dims.iter().flat_map(|size| size.to_le_bytes()).collect();
        let count = (dims.len() / 8) as u32;
        let head = [&number(1)[..], &number(0), &number(1), b"t", &count.to_le_bytes(), &dims].concat();
        [&head[..], &0_u32.to_le_bytes(), &number(offset)].concat()
    };
    let cases: [(Vec<u8>, &str); 17] = [
        (Vec::new(), "8 bytes are announced where 0 are left"),
        ([number(u64::MAX), number(0)].concat(), "18446744073709551615 tensors are announced"),
        ([number(0), number(1 << 40)].concat(), "1099511627776 metadata entries are announced"),
        ([number(0), number(1), number(u64::MAX)].concat(), "bytes are announced where 0 are left"),
        (key(99, &[]), "metadata `k`: there is no metadata type 99"),
        (key(7, &[2]), "2 is not a truth value"),
        (key(8, &number(1 << 60)), "bytes are announced where 0 are left"),
        (key(9, &list(0, u64::MAX)), "are announced where 0 are left"),
        (key(9, &list(8, u64::MAX / 2)), "texts are announced where 0 bytes are left"),
        (key(9, &list(9, 1)), "an array of arrays"),
        (key(9, &list(77, 1)), "there is no metadata type 77"),
        (tensor(&[], 0), "tensor `t`: it has 0 dimensions"),
        (tensor(&[1; 5], 0), "tensor `t`: it has 5 dimensions"),
        (tensor(&[u64::MAX, 2], 0), "no tensor of type F32 has the shape"),
        (tensor(&[0, 2], 0), "no tensor of type F32 has the shape"),
        (tensor(&[1 << 40], 0), "ends after the file's"),
        (tensor(&[1], u64::MAX - 64), "ends after the file's"),
    ];
    for (bytes, expected) in cases {
        let error = raw(&bytes);
        assert_eq!(error.code(), "gguf::malformed", "{error}");
        assert!(error.to_string().contains(expected), "{error} for {expected}");
    }
}

#[test]
fn a_file_cut_anywhere_is_an_error() {
    let mut draft = Draft::new(config(Family::Qwen2));
    draft.stored(GgmlDType::Q4_0);
    let (source, path) = file(&draft);
    let bytes = std::fs::read(&path).unwrap();
    let cut = source.path().join("cut.gguf");
    let places = (0..40).map(|place| place * 3).chain((1..60).map(|part| part * bytes.len() / 60));
    for length in places.chain([bytes.len() - 40]) {
        std::fs::write(&cut, &bytes[..length]).unwrap();
        let error = preflight(&cut, true).unwrap_err();
        assert!(error.code().starts_with("gguf::"), "{length}: {error}");
    }
}

#[test]
fn a_damaged_header_gives_an_error_or_a_model_and_no_panic() {
    let mut draft = Draft::new(config(Family::Qwen2));
    draft.stored(GgmlDType::Q4_0);
    let (source, path) = file(&draft);
    let bytes = std::fs::read(&path).unwrap();
    let tensors = bytes.windows(6).position(|window| window == b"token_").unwrap();
    let damaged = source.path().join("damaged.gguf");
    let in_metadata = (0..600).map(|place| 4 + place * 7 % 1000);
    let in_tensors = (0..200).map(|place| tensors + place * 5);
    for (round, at) in in_metadata.chain(in_tensors).enumerate() {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1 << (round % 8);
        std::fs::write(&damaged, &bytes).unwrap();
        _ = preflight(&damaged, true);
    }
}

#[test]
fn other_versions_and_alignments_are_refused() {
    let (_source, path) = file(&Draft::new(config(Family::Qwen2)));
    let mut bytes = std::fs::read(&path).unwrap();
    for (version, shown) in
        [(1_u32.to_le_bytes(), "version `1`"), (3_u32.to_be_bytes(), "version `big-endian`")]
    {
        bytes[4..8].copy_from_slice(&version);
        std::fs::write(&path, &bytes).unwrap();
        let error = preflight(&path, true).unwrap_err();
        assert!(error.code() == "gguf::unsupported" && error.to_string().contains(shown), "{error}");
    }
    for alignment in [0, 3] {
        let mut draft = Draft::new(config(Family::Qwen2));
        draft.set("general.alignment", Value::U32(alignment));
        assert_eq!(failure(&draft).code(), "gguf::metadata");
    }
    std::fs::write(&path, "not GGUF").unwrap();
    assert_eq!(preflight(&path, true).unwrap_err().code(), "gguf::malformed");
    std::fs::write(&path, "").unwrap();
    assert!(preflight(&path, true).unwrap_err().code().starts_with("gguf::"));
}

#[test]
fn an_interrupted_conversion_stops() {
    let (source, path) = file(&Draft::new(config(Family::Qwen2)));
    let error = convert(&path, source.path(), &NoProgress, &|| true).unwrap_err();
    assert_eq!(error.class(), crate::error::Class::Interrupted);
}

#[test]
fn a_separate_template_for_tools_is_kept() {
    let mut draft = Draft::new(config(Family::Qwen2));
    draft.set("tokenizer.chat_template", Value::String("{{ messages[0].content }}".into()));
    draft.set("tokenizer.chat_template.tool_use", Value::String(reference(writer::TEMPLATE)));
    let converted = converted(&draft).unwrap();
    let chat = Chat::load(converted.folder.path()).unwrap();
    assert_eq!(chat.notice(), None);
}
