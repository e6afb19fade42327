//! The section `[engine]`.

use std::collections::BTreeSet;

use super::{
    layers::{Entry, EntryPart},
    reader::Reader,
};
use crate::{engine::EngineSpec, error::did_you_mean};

/// Maps other programs' names for these types.
fn meant_dtype(text: &str) -> Option<&'static str> {
    let text = text.to_lowercase().replace(['-', '_', '.'], "");
    Some(match text.trim_start_matches("torch") {
        "fp16" | "float16" | "half" => "f16",
        "bfloat16" | "bfp16" | "brain" => "bf16",
        "fp32" | "float32" | "float" | "full" => "f32",
        "4bit" | "int4" | "fp4" | "q4" | "qlora" | "bnb4bit" => "nf4",
        other => return did_you_mean(other, ["f32", "f16", "bf16", "nf4"]),
    })
}

/// The names of [`SplitMode`](crate::engine::SplitMode).
const SPLITS: [&str; 2] = ["batches", "layers"];

/// Parses `[engine]`.
pub fn engine(reader: &Reader, entry: &Entry<'_>) -> Option<EngineSpec> {
    let engine = reader.read::<EngineSpec>(entry)?;
    if let Some(devices) = entry.field("devices") {
        check_devices(reader, &devices, &engine.devices);
    }
    let split = entry.field("split").and_then(|entry| Some((entry.clone(), reader.text(&entry)?)));
    if let Some((entry, text)) = split.filter(|(_, text)| !SPLITS.contains(text)) {
        let message = format!("`engine.split` should be \"batches\" or \"layers\", found \"{text}\"");
        let hint = did_you_mean(text, SPLITS).map(|meant| format!("did you mean \"{meant}\"?"));
        reader.wrong::<()>(&entry, EntryPart::Value, message, hint);
    }
    let dtype = entry.field("dtype").filter(|_| engine.dtype.is_none());
    if let Some((entry, text)) = dtype.and_then(|entry| Some((entry.clone(), reader.text(&entry)?))) {
        let message =
            format!("`engine.dtype` should be \"f32\", \"f16\", \"bf16\" or \"nf4\", found \"{text}\"");
        let hint = meant_dtype(text).map(|meant| format!("did you mean \"{meant}\"?"));
        reader.wrong::<()>(&entry, EntryPart::Value, message, hint);
    }
    Some(engine)
}

fn check_devices(reader: &Reader, entry: &Entry<'_>, devices: &[String]) {
    let known = |device: &String| {
        device == "cpu" || device.strip_prefix("cuda:").is_some_and(|index| index.parse::<u16>().is_ok())
    };
    let wrong = |message: &str| _ = reader.wrong::<()>(entry, EntryPart::Value, message.to_owned(), None);
    if devices.is_empty() || !devices.iter().all(known) {
        return wrong("`engine.devices` should list \"cpu\" or \"cuda:0\", \"cuda:1\", …");
    }
    let cpus = devices.iter().filter(|device| *device == "cpu").count();
    let distinct = devices.iter().collect::<BTreeSet<_>>().len();
    if cpus < devices.len() && (cpus > 0 || distinct < devices.len()) {
        wrong("`engine.devices` should name each CUDA device once, without \"cpu\"");
    }
}
