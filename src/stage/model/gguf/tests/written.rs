//! Files that are written, read by the reader of this module and by candle's.

use candle_core::quantized::gguf_file;

use super::{
    super::write::{self, Quantization},
    *,
};
use crate::model::{AdapterConfig, adapter_matrices, write_safetensors};

/// The folder of a small model.
fn model(change: impl FnOnce(&mut Draft), family: Family) -> Converted {
    let mut draft = Draft::new(config(family));
    change(&mut draft);
    converted(&draft).unwrap()
}

/// A file that is written from a folder.
fn written(folder: &Path, quantization: Quantization) -> Result<(tempfile::TempDir, PathBuf)> {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("model.gguf");
    write::model(folder, "small", quantization, &path)?;
    Ok((scratch, path))
}

fn text(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap()
}

#[test]
fn a_folder_survives_the_way_there_and_back() {
    for family in [Family::Llama, Family::Qwen2, Family::Qwen3] {
        let one = model(|_| {}, family);
        let (_scratch, path) = written(one.folder.path(), Quantization::Bf16).unwrap();
        let other = tempfile::tempdir().unwrap();
        convert(&path, other.path(), &NoProgress, &|| false).unwrap();
        let (one, other) = (one.folder.path(), other.path());
        assert_eq!(ModelConfig::load(one).unwrap(), ModelConfig::load(other).unwrap());
        let bytes = |folder: &Path| std::fs::read(folder.join("model.safetensors")).unwrap();
        assert!(bytes(one) == bytes(other), "{family:?}: weights differ");
        for name in
            ["tokenizer.json", "chat_template.jinja", "generation_config.json", "tokenizer_config.json"]
        {
            assert_eq!(text(one, name), text(other, name), "{family:?} {name}");
        }
    }
}

#[test]
fn a_written_file_has_the_tensors_of_llama_cpps_own() {
    for name in ["lfm2", "qwen3_5"] {
        let one = tempfile::tempdir().unwrap();
        convert(&by_llama_cpp(name), one.path(), &NoProgress, &|| false).unwrap();
        let (_scratch, path) = written(one.path(), Quantization::Bf16).unwrap();
        let (ours, theirs) = (GgufFile::open(&path).unwrap(), GgufFile::open(&by_llama_cpp(name)).unwrap());
        let (ours, theirs) = (ours.content().unwrap(), theirs.content().unwrap());
        for (tensor, stored) in &ours.tensors {
            let expected = &theirs.tensors[tensor];
            assert_eq!((&stored.shape, stored.dtype), (&expected.shape, expected.dtype), "{name}: {tensor}");
            let (found, expected) =
                (ours.floats(tensor, stored).unwrap(), theirs.floats(tensor, expected).unwrap());
            let is_near = |(found, expected): (f32, f32)| (found - expected).abs() < 1e-6;
            assert!(found.into_iter().zip(expected).all(is_near), "{name}: {tensor}");
        }
        let other = tempfile::tempdir().unwrap();
        convert(&path, other.path(), &NoProgress, &|| false).unwrap();
        assert_eq!(ModelConfig::load(one.path()).unwrap(), ModelConfig::load(other.path()).unwrap());
        assert!(largest_difference(one.path(), other.path()) < 1e-6, "{name}");
        assert_eq!(text(one.path(), "tokenizer.json"), text(other.path(), "tokenizer.json"), "{name}");
    }
}

#[test]
fn an_adapter_of_each_linear_layer_changes_the_weight_that_the_file_has() {
    for name in ["lfm2", "qwen3_5"] {
        let folder = family(name).join("adapter");
        let config = ModelConfig::load(&family(name)).unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("adapter.gguf");
        write::adapter(&folder, &config, "small", &path).unwrap();
        let mut file = std::fs::File::open(&path).unwrap();
        let content = gguf_file::Content::read(&mut file).unwrap();
        let mut tensor = |name: &str| {
            let tensor = content.tensor(&mut file, name, &Device::Cpu).unwrap();
            tensor.dequantize(&Device::Cpu).unwrap()
        };
        let matrices = adapter_matrices(&folder, &AdapterConfig::load(&folder).unwrap()).unwrap();
        assert_eq!(content.tensor_infos.len(), 2 * matrices.len());
        for (module, (a, b, _)) in matrices {
            let source = super::super::tensors::source(&format!("{module}.weight"), &config);
            let expected = source.written(b.matmul(&a).unwrap()).unwrap();
            let [a, b] = ["lora_a", "lora_b"].map(|part| tensor(&format!("{}.{part}", source.name)));
            let difference = (b.matmul(&a).unwrap() - expected).unwrap().abs().unwrap();
            assert!(difference.max_all().unwrap().to_scalar::<f32>().unwrap() < 1e-6, "{name} {module}");
        }
    }
}

#[test]
fn an_adapter_for_a_larger_model_is_written_for_its_language_model() {
    let (base, adapter) = (family("qwen3_5"), family("qwen3_5").join("adapter"));
    let (config, larger) = (ModelConfig::load(&base).unwrap(), tempfile::tempdir().unwrap());
    std::fs::copy(adapter.join("adapter_config.json"), larger.path().join("adapter_config.json")).unwrap();
    let tensors = read_safetensors(&adapter.join("adapter_model.safetensors")).unwrap();
    let renamed = |name: String| name.replace(".model.layers.", ".model.language_model.layers.");
    let tensors = tensors.into_iter().map(|(name, tensor)| (renamed(name), tensor)).collect();
    write_safetensors(&larger.path().join("adapter_model.safetensors"), &tensors).unwrap();
    let written = |folder: &Path| {
        let path = larger.path().join("adapter.gguf");
        write::adapter(folder, &config, "small", &path).unwrap();
        std::fs::read(&path).unwrap()
    };
    assert!(written(&adapter) == written(larger.path()));
}

#[test]
fn an_adapter_of_another_size_is_refused() {
    let mut config = ModelConfig::load(&family("qwen3_5")).unwrap();
    config.intermediate *= 2;
    let path = tempfile::tempdir().unwrap().path().join("adapter.gguf");
    let error = write::adapter(&family("qwen3_5").join("adapter"), &config, "small", &path).unwrap_err();
    assert!(error.to_string().contains("adapts a weight of"), "{error}");
}

#[test]
fn each_pre_tokenizer_and_scaling_keeps_its_name() {
    for pre in ["qwen2", "qwen35", "llama-bpe", "smollm", "gpt-2"] {
        let folder =
            model(|draft| _ = draft.set("tokenizer.ggml.pre", Value::String(pre.into())), Family::Qwen2);
        let (_scratch, path) = written(folder.folder.path(), Quantization::Bf16).unwrap();
        let file = GgufFile::open(&path).unwrap();
        assert_eq!(file.content().unwrap().text("tokenizer.ggml.pre").unwrap(), Some(pre));
    }
    let (scaling, factors) = llama3(500_000.0, 64);
    let folder = model(
        |draft| {
            draft.set("llama.rope.freq_base", Value::F32(500_000.0));
            draft.add("rope_freqs.weight", factors);
        },
        Family::Llama,
    );
    let (_scratch, path) = written(folder.folder.path(), Quantization::Bf16).unwrap();
    assert_eq!(preflight(&path, true).unwrap().design.scaling, scaling);
    let yarn = |draft: &mut Draft| {
        draft.set("qwen2.rope.scaling.type", Value::String("yarn".into()));
        draft.set("qwen2.rope.scaling.factor", Value::F32(4.0));
        draft.set("qwen2.rope.scaling.original_context_length", Value::U32(32));
    };
    let folder = model(yarn, Family::Qwen2);
    let (_scratch, path) = written(folder.folder.path(), Quantization::Bf16).unwrap();
    let config = ModelConfig::load(folder.folder.path()).unwrap();
    assert_eq!(preflight(&path, true).unwrap().design.scaling, config.design.scaling);
}

#[test]
fn matrices_have_the_types_of_their_quantization_and_vectors_stay_whole() {
    let folder = model(|_| {}, Family::Qwen2);
    let types = |quantization| {
        let (_scratch, path) = written(folder.folder.path(), quantization).unwrap();
        let file = GgufFile::open(&path).unwrap();
        let content = file.content().unwrap();
        let names =
            ["blk.0.attn_norm.weight", "blk.0.attn_q.weight", "blk.1.ffn_down.weight", "output.weight"];
        names.map(|name| content.tensors[name].dtype)
    };
    use GgmlDType::{BF16, F16, F32, Q4K, Q6K, Q8_0};
    assert_eq!(types(Quantization::Bf16), [F32, BF16, BF16, BF16]);
    assert_eq!(types(Quantization::F16), [F32, F16, F16, F16]);
    assert_eq!(types(Quantization::Q8), [F32, Q8_0, Q8_0, Q8_0]);
    assert_eq!(types(Quantization::Q4KM), [F32, Q4K, Q6K, Q6K]);
}

#[test]
fn an_adapter_has_one_alpha_and_the_rows_of_the_files_order() {
    let config = config(Family::Llama);
    let folder = tempfile::tempdir().unwrap();
    let json = serde_json::json!({
        "peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["q_proj", "down_proj"],
        "alpha_pattern": {"q_proj": 3},
    });
    std::fs::write(folder.path().join("adapter_config.json"), json.to_string()).unwrap();
    let matrix = |rows: usize, columns: usize| {
        let values: Vec<f32> = (0..rows * columns).map(|at| (at / columns) as f32).collect();
        Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap()
    };
    let name =
        |module: &str, part: &str| format!("base_model.model.model.layers.1.{module}.lora_{part}.weight");
    let tensors = std::collections::BTreeMap::from([
        (name("self_attn.q_proj", "A"), matrix(2, 256)),
        (name("self_attn.q_proj", "B"), matrix(256, 2)),
        (name("mlp.down_proj", "A"), matrix(2, 512)),
        (name("mlp.down_proj", "B"), matrix(256, 2)),
    ]);
    write_safetensors(&folder.path().join("adapter_model.safetensors"), &tensors).unwrap();
    AdapterConfig::load(folder.path()).unwrap();
    let path = folder.path().join("adapter.gguf");
    write::adapter(folder.path(), &config, "small", &path).unwrap();

    let mut file = std::fs::File::open(&path).unwrap();
    let content = gguf_file::Content::read(&mut file).unwrap();
    let metadata = |key: &str| content.metadata[key].to_string().unwrap().clone();
    assert_eq!([metadata("general.type"), metadata("adapter.type")], ["adapter", "lora"]);
    // `down_proj` is the first: its scale is 6 / 2.
    assert_eq!(content.metadata["adapter.lora.alpha"].to_f32().unwrap(), 6.0);
    let mut rows = |name: &str| {
        let tensor = content.tensor(&mut file, name, &Device::Cpu).unwrap().dequantize(&Device::Cpu).unwrap();
        tensor.to_vec2::<f32>().unwrap().iter().map(|row| row[0]).collect::<Vec<_>>()
    };
    assert_eq!(rows("blk.1.ffn_down.weight.lora_b")[..4], [0.0, 1.0, 2.0, 3.0]);
    assert_eq!(rows("blk.1.ffn_down.weight.lora_a"), [0.0, 1.0]);
    // Half the scale, and rows in pairs of a head's halves.
    assert_eq!(rows("blk.1.attn_q.weight.lora_b")[..4], [0.0, 16.0, 0.5, 16.5]);
}

#[test]
fn what_llama_cpp_has_no_name_for_is_refused() {
    let refused = |folder: &Path| written(folder, Quantization::F16).unwrap_err();
    let pieces = converted(&pieces()).unwrap();
    let error = refused(pieces.folder.path());
    assert_eq!(error.code(), "gguf::unwritable");
    assert!(error.to_string().contains("tokenizer `SentencePiece`"), "{error}");

    let folder = model(|_| {}, Family::Qwen2);
    let path = folder.folder.path().join("tokenizer.json");
    let mut tokenizer: Json = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    tokenizer["pre_tokenizer"] = serde_json::json!({"type": "Whitespace"});
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    let error = refused(folder.folder.path());
    assert!(error.to_string().contains("pre-tokenizer `Whitespace`"), "{error}");

    let folder = model(
        |draft| {
            let large = Tensor::full(1e6_f32, (512, 256), &Device::Cpu).unwrap();
            draft.without("blk.0.ffn_up.weight").add("blk.0.ffn_up.weight", large);
        },
        Family::Qwen2,
    );
    let error = refused(folder.folder.path());
    assert!(
        error.to_string().contains("`blk.0.ffn_up.weight`") && error.code() == "gguf::convert",
        "{error}"
    );
}
