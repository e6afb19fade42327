//! Which files of a folder belong to a model or an adapter.

use std::path::Path;

use crate::{chat::TOOL_TEMPLATE, model::ADAPTER_FILES};

/// The file that says what mcprl changed in a model's folder.
pub const RECORD: &str = "mcprl.json";

/// Whether a model needs the file of this name, or a file in the folder of this name, which ends with `/`.
/// Other formats of the same weights are left out.
pub fn wanted(name: &str) -> bool {
    const NAMED: [&str; 11] = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "tokenizer.model",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "model.safetensors.index.json",
        RECORD,
    ];
    let plain = !name.contains(['/', '\\']);
    let weights = name.starts_with("model") && name.ends_with(".safetensors");
    let for_tools =
        name == TOOL_TEMPLATE || TOOL_TEMPLATE.strip_prefix(name).is_some_and(|_| name.ends_with('/'));
    for_tools || (plain && (NAMED.contains(&name) || name.starts_with("chat_template") || weights))
}

/// [`wanted`] for a folder. If the folder holds an adapter and no model, whether the adapter needs the file.
pub fn wanted_in(folder: &Path) -> fn(&str) -> bool {
    match folder.join("config.json").is_file() || !folder.join(ADAPTER_FILES[0]).is_file() {
        true => wanted,
        false => |name| ADAPTER_FILES.contains(&name),
    }
}
