//! The chat files of the base, as Transformers and [`crate::chat::Chat`] read them.

use std::path::Path;

use serde_json::{Value, json};
use tokenizers::Tokenizer;

use super::{WarmupError, tokenizer::SPECIAL};

/// Writes tokenizer.json, tokenizer_config.json, chat_template.jinja and generation_config.json.
pub fn write(
    folder: &Path,
    tokenizer: &Tokenizer,
    template: &str,
    context: usize,
) -> Result<(), WarmupError> {
    let [end_of_text, _, end_of_turn] = SPECIAL;
    let id = |token: &str| tokenizer.token_to_id(token);
    let config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end_of_turn,
        "pad_token": end_of_text,
        "clean_up_tokenization_spaces": false,
        "model_max_length": context,
        "chat_template": template,
    });
    let generation = json!({
        "eos_token_id": [id(end_of_turn), id(end_of_text)],
        "pad_token_id": id(end_of_text),
        "do_sample": true,
        "temperature": 1.0,
    });
    let text =
        tokenizer.to_string(true).map_err(|error| WarmupError::Tokenizer { reason: error.to_string() })?;
    let pretty = |value: Value| format!("{value:#}\n");
    for (name, text) in [
        ("tokenizer.json", text + "\n"),
        ("tokenizer_config.json", pretty(config)),
        ("generation_config.json", pretty(generation)),
        ("chat_template.jinja", template.to_owned()),
    ] {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|source| WarmupError::Write { path, source })?;
    }
    Ok(())
}
