//! Tests errors in the files of a model.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use candle_core::{DType, Device, Tensor};
use mcprl_base::error::Diagnostic;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::model::{Adapter, Weights, merge, weights::write_safetensors};

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/fixtures")
}

/// A copy of a model to corrupt.
fn copy(of: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for item in std::fs::read_dir(fixtures().join(of)).unwrap() {
        let path = item.unwrap().path();
        if path.is_file() {
            std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    folder
}

fn refusal(folder: &Path) -> (&'static str, String) {
    let error = Decoder::load(folder).map(drop).unwrap_err();
    (error.code(), error.to_string())
}

fn assert_refused(folder: &Path, code: &str, expected: &str) {
    let (found, message) = refusal(folder);
    assert_eq!(found, code, "{message}");
    assert!(message.contains(expected), "{message}");
}

fn configured(folder: &Path, key: &str, value: Value) {
    let path = folder.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config[key] = value;
    std::fs::write(path, config.to_string()).unwrap();
}

/// The tensors of the one-file model, changed.
fn rewritten(folder: &Path, change: impl FnOnce(&mut BTreeMap<String, Tensor>)) {
    let path = folder.join("model.safetensors");
    let mut tensors = candle_core::safetensors::load(&path, &Device::Cpu).unwrap().into_iter().collect();
    change(&mut tensors);
    write_safetensors(&path, &tensors).unwrap();
}

#[test]
fn a_sharded_model_with_an_incomplete_shard_is_refused() {
    let one = "model-00002-of-00004.safetensors";
    let folder = copy("families/yarn");
    Decoder::load(folder.path()).unwrap();
    let bytes = std::fs::read(folder.path().join(one)).unwrap();
    for length in [0, 5, 100, bytes.len() - 1] {
        std::fs::write(folder.path().join(one), &bytes[..length]).unwrap();
        assert_refused(folder.path(), "model::safetensors", one);
    }
    std::fs::remove_file(folder.path().join(one)).unwrap();
    assert_refused(folder.path(), "model::missing_shard", one);

    let index = folder.path().join("model.safetensors.index.json");
    let listed: Value = serde_json::from_slice(&std::fs::read(&index).unwrap()).unwrap();
    std::fs::write(folder.path().join(one), &bytes).unwrap();
    let with = |name: &str, file: &str| {
        let mut listed = listed.clone();
        listed["weight_map"][name] = json!(file);
        std::fs::write(&index, listed.to_string()).unwrap();
    };
    with("model.layers.9.mlp.up_proj.weight", one);
    assert_refused(folder.path(), "model::missing_tensor", "model.layers.9.mlp.up_proj.weight");
    with("model.norm.weight", "../elsewhere.safetensors");
    assert_refused(folder.path(), "model::missing_shard", "../elsewhere.safetensors");
    std::fs::write(&index, "{").unwrap();
    assert_refused(folder.path(), "model::config", "index.json");
}

#[test]
fn weights_that_do_not_fit_the_configuration_are_refused() {
    let folder = copy("qwen3-tiny");
    configured(folder.path(), "hidden_size", json!(128));
    assert_refused(folder.path(), "model::shape", "model.embed_tokens.weight");
    let folder = copy("qwen3-tiny");
    configured(folder.path(), "num_hidden_layers", json!(3));
    assert_refused(folder.path(), "model::missing_tensor", "model.layers.2.");
    let folder = copy("qwen3-tiny");
    configured(folder.path(), "num_hidden_layers", json!(1));
    assert_refused(folder.path(), "model::unknown_tensor", "model.layers.1.");
    let folder = copy("families/qwen2");
    configured(folder.path(), "model_type", json!("llama"));
    configured(folder.path(), "architectures", Value::Null);
    assert_refused(folder.path(), "model::unknown_tensor", ".bias");
    let folder = copy("qwen3-tiny");
    std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    assert_refused(folder.path(), "model::no_weights", "no weights");
}

#[test]
fn weights_that_are_not_finite_are_refused_in_every_type() {
    let name = "model.layers.1.mlp.up_proj.weight";
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let folder = copy("qwen3-tiny");
            rewritten(folder.path(), |tensors| {
                let mut values = tensors[name].flatten_all().unwrap().to_vec1::<f32>().unwrap();
                *values.last_mut().unwrap() = wrong;
                let tensor = Tensor::from_vec(values, tensors[name].shape(), &Device::Cpu).unwrap();
                tensors.insert(name.into(), tensor.to_dtype(dtype).unwrap());
            });
            assert_refused(folder.path(), "model::not_finite", name);
        }
    }
}

#[test]
fn weights_of_an_unsupported_type_are_refused() {
    let folder = copy("qwen3-tiny");
    rewritten(folder.path(), |tensors| {
        let tensor = tensors["model.norm.weight"].to_dtype(DType::U8).unwrap();
        tensors.insert("model.norm.weight".into(), tensor);
    });
    assert_refused(folder.path(), "model::stored", "stored as U8");
}

#[test]
fn half_precision_is_widened_without_loss() {
    let folder = copy("qwen3-tiny");
    for dtype in [DType::BF16, DType::F16] {
        let mut rounded = BTreeMap::new();
        rewritten(folder.path(), |tensors| {
            for (name, tensor) in tensors.iter_mut() {
                *tensor = tensor.to_dtype(dtype).unwrap();
                rounded.insert(name.clone(), tensor.to_dtype(DType::F32).unwrap());
            }
        });
        for (name, tensor) in Decoder::load(folder.path()).unwrap().tensors().unwrap() {
            assert_eq!(*ops::values(&tensor).unwrap(), *ops::values(&rounded[&name]).unwrap(), "{name}");
        }
    }
}

#[test]
fn a_head_that_is_not_the_embedding_is_refused_where_they_are_tied() {
    let folder = copy("qwen3-tiny");
    rewritten(folder.path(), |tensors| {
        let head = (&tensors["model.embed_tokens.weight"] * 2.0).unwrap();
        tensors.insert("lm_head.weight".into(), head);
    });
    assert_refused(folder.path(), "model::other_head", "is not the embedding");
}

#[test]
fn names_of_compiled_and_parallel_modules_and_of_bare_models_are_read() {
    let renamed = |new: fn(&str) -> String| {
        let folder = copy("qwen3-tiny");
        rewritten(folder.path(), |tensors| {
            *tensors =
                std::mem::take(tensors).into_iter().map(|(name, tensor)| (new(&name), tensor)).collect();
        });
        Decoder::load(folder.path()).unwrap().tensors().unwrap()
    };
    let plain = renamed(str::to_owned);
    for new in [
        |name: &str| format!("_orig_mod.{name}"),
        |name: &str| format!("module._orig_mod.{name}"),
        |name: &str| name.trim_start_matches("model.").to_owned(),
    ] {
        let names =
            |tensors: &[(String, Tensor)]| tensors.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&renamed(new)), names(&plain));
    }
}

#[test]
fn redundant_tensors_are_ignored() {
    let folder = copy("qwen3-tiny");
    rewritten(folder.path(), |tensors| {
        tensors.insert("lm_head.weight".into(), tensors["model.embed_tokens.weight"].clone());
        let frequencies = tensors["model.norm.weight"].clone();
        tensors.insert("model.layers.0.self_attn.rotary_emb.inv_freq".into(), frequencies);
    });
    Decoder::load(folder.path()).unwrap();
}

#[test]
fn the_language_model_of_a_model_with_vision_is_loaded_and_its_adapter_has_the_whole_models_names() {
    let plain = Decoder::load(&fixtures().join("families/gemma3")).unwrap();
    let mut adapted = Decoder::load(&fixtures().join("families/gemma3")).unwrap();
    let adapter = fixtures().join("families/gemma3/adapter");
    let config = Adapter::load(&mut adapted, &adapter).unwrap();
    let bits = |decoder: &Decoder| -> Vec<Vec<f32>> {
        decoder.tensors().unwrap().iter().map(|(_, tensor)| ops::read(tensor).unwrap()).collect()
    };
    // As Transformers 4 wrote it before 4.52, and since.
    for (prefix, junk) in
        [("language_model.model.", "vision_tower."), ("model.language_model.", "model.vision_tower.")]
    {
        let folder = copy("families/gemma3");
        let path = folder.path().join("config.json");
        let part: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let whole = json!({"model_type": "gemma3", "text_config": part, "vision_config": {"hidden_size": 8}});
        std::fs::write(&path, whole.to_string()).unwrap();
        rewritten(folder.path(), |tensors| {
            let own = std::mem::take(tensors);
            tensors.insert(format!("{junk}patch.weight"), own["model.norm.weight"].clone());
            tensors.insert("multi_modal_projector.weight".into(), own["model.norm.weight"].clone());
            let renamed = |(name, tensor): (String, Tensor)| (name.replacen("model.", prefix, 1), tensor);
            tensors.extend(own.into_iter().map(renamed));
        });
        let mut decoder = Decoder::load(folder.path()).unwrap();
        assert_eq!(bits(&decoder), bits(&plain));
        Weights::open(folder.path()).unwrap().check(&decoder.config).unwrap();

        assert_eq!(Adapter::load(&mut decoder, &adapter).unwrap(), config);
        let saved = tempfile::tempdir().unwrap();
        Adapter::save(&decoder, &config, "base", saved.path()).unwrap();
        let file = saved.path().join("adapter_model.safetensors");
        let names = candle_core::safetensors::load(&file, &Device::Cpu).unwrap();
        let head = "base_model.model.model.language_model.layers.";
        assert!(names.keys().all(|name| name.starts_with(head)), "{names:?}");
        Adapter::load(&mut decoder, saved.path()).unwrap();

        let merged = tempfile::tempdir().unwrap();
        merge(folder.path(), saved.path(), merged.path()).unwrap();
        let names =
            candle_core::safetensors::load(merged.path().join("model.safetensors"), &Device::Cpu).unwrap();
        assert!(names.contains_key(&format!("{junk}patch.weight")), "the other parts are kept");
        let merged = Decoder::load(merged.path()).unwrap();
        assert!(bits(&merged) != bits(&plain));
    }
}

#[test]
fn a_qwen3_5_with_vision_is_loaded_trained_by_either_names_and_merged_under_its_own() {
    let plain = Decoder::load(&fixtures().join("families/qwen3_5")).unwrap();
    let adapter = fixtures().join("families/qwen3_5/adapter");
    let bits = |decoder: &Decoder| -> Vec<Vec<f32>> {
        decoder.tensors().unwrap().iter().map(|(_, tensor)| ops::read(tensor).unwrap()).collect()
    };
    let folder = copy("families/qwen3_5");
    let path = folder.path().join("config.json");
    let mut part: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    part.as_object_mut().unwrap().remove("tie_word_embeddings");
    let vision = json!({"hidden_size": 8});
    let whole = json!({
        "model_type": "qwen3_5",
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "text_config": part,
        "vision_config": vision,
        "tie_word_embeddings": true,
    });
    std::fs::write(&path, whole.to_string()).unwrap();
    let junk = ["model.visual.patch_embed.proj.weight", "mtp.fc.weight", "mtp.layers.0.mlp.up_proj.weight"];
    rewritten(folder.path(), |tensors| {
        let own = std::mem::take(tensors);
        tensors.extend(junk.map(|name| (name.to_owned(), own["model.norm.weight"].clone())));
        tensors.extend(own.into_iter().map(|(name, tensor)| {
            // As in the published files.
            let is_wide = name.ends_with("A_log") || name.ends_with("linear_attn.norm.weight");
            let tensor = if is_wide { tensor.to_dtype(DType::F32).unwrap() } else { tensor };
            (name.replacen("model.", "model.language_model.", 1), tensor)
        }));
    });
    let mut decoder = Decoder::load(folder.path()).unwrap();
    assert_eq!(bits(&decoder), bits(&plain));
    Weights::open(folder.path()).unwrap().check(&decoder.config).unwrap();

    let config = Adapter::load(&mut decoder, &adapter).unwrap();
    let saved = tempfile::tempdir().unwrap();
    Adapter::save(&decoder, &config, "base", saved.path()).unwrap();
    let read = |path: &Path| candle_core::safetensors::load(path, &Device::Cpu).unwrap();
    let names = read(&saved.path().join("adapter_model.safetensors"));
    let one = "base_model.model.model.language_model.layers.0.linear_attn.in_proj_a.lora_A.weight";
    assert!(names.contains_key(one), "{names:?}");
    Adapter::load(&mut decoder, saved.path()).unwrap();

    for adapter in [&adapter, saved.path()] {
        let merged = tempfile::tempdir().unwrap();
        merge(folder.path(), adapter, merged.path()).unwrap();
        let names = read(&merged.path().join("model.safetensors"));
        let base = read(&folder.path().join("model.safetensors"));
        assert!(junk.iter().all(|name| names.contains_key(*name)) && names.len() == base.len());
        let changed = "model.language_model.layers.1.linear_attn.out_proj.weight";
        let values = |tensor: &Tensor| ops::read(&tensor.to_dtype(DType::F32).unwrap()).unwrap();
        assert_ne!(values(&names[changed]), values(&base[changed]));
        Decoder::load(merged.path()).unwrap();
    }
}

#[test]
fn an_adapter_of_another_model_is_refused() {
    let families = fixtures().join("families");
    for (of, on) in
        [("qwen2", "phi3"), ("phi3", "qwen2"), ("mistral", "llama"), ("llama", "moe"), ("qwen3_5", "qwen2")]
    {
        let mut decoder = Decoder::load(&families.join(on)).unwrap();
        let error = Adapter::load(&mut decoder, &families.join(of).join("adapter")).unwrap_err();
        let codes = ["model::missing_tensor", "model::shape", "model::adapter"];
        assert!(codes.contains(&error.code()), "{of} on {on}: {error}");
    }
}
