//! How likely a language model finds a sentence, to tell what people write from what they do not.

use std::{collections::BTreeMap, ops::Range};

use tokio_util::sync::CancellationToken;

use crate::{
    chat::PlainChat,
    engine::{DeviceSet, Footprint, Microbatch, pack, score_across},
    error::{At, Result},
    model::{Adapter, Decoder},
    stage::{
        Context,
        memory::{Load, workspace_bytes},
        policy::PolicyFolder,
        preflight::ExpectedPolicy,
    },
};

/// The input of the stage that holds the model.
pub const ROLE: &str = "likelihood_model";
/// Most tokens that are computed at once.
const TOKENS: usize = 2048;
/// What stands for a value: how rare a name is says nothing about the sentence around it.
const VALUE: &str = "X";

/// A model that finds sentences more or less likely.
pub struct Likelihood {
    decoder: Decoder,
    devices: DeviceSet,
    chat: PlainChat,
    cancel: CancellationToken,
}

/// The engine's memory for it.
pub fn footprint(load: &Load<'_>, model: &ExpectedPolicy) -> Footprint {
    load.sampling(model, 1, TOKENS)
}

impl Likelihood {
    /// Loads the stage's model; none if it has none.
    ///
    /// # Errors
    /// If it cannot be loaded, or its chat template cannot be used.
    pub fn open(context: &Context) -> Result<Option<Self>> {
        if !context.has(ROLE) {
            return Ok(None);
        }
        let at = || format!("`{ROLE}`");
        let folder = PolicyFolder::open(context.input(ROLE)?, context).at(at)?;
        let vocabulary = context.models.vocabulary(folder.model_digest(), folder.model()).at(at)?;
        let chat = PlainChat::load_over(vocabulary, folder.model()).at(at)?;
        let peak = footprint(&Load::of(&context.engine), &folder.expected().at(at)?);
        let workspace = workspace_bytes(&peak, &context.engine);
        let (mut decoder, devices) = folder.load(&context.models, &context.engine, workspace).at(at)?;
        if folder.base.is_some() {
            Adapter::load(&mut decoder, &folder.folder).at(at)?;
        }
        Ok(Some(Self { decoder, devices, chat, cancel: context.cancel.clone() }))
    }

    /// The mean log-probability per token of each sentence as what a person writes first in a conversation, in nats. Values
    /// count as one letter.
    ///
    /// # Errors
    /// If a sentence cannot be rendered or the engine fails.
    pub fn of(&self, patterns: &[String]) -> Result<Vec<f64>> {
        let sentences: Vec<(Vec<u32>, Range<usize>)> =
            patterns.iter().map(|pattern| Ok(self.chat.first_message(pattern)?)).collect::<Result<_>>()?;
        let tokens: Vec<Vec<&[u32]>> = vec![sentences.iter().map(|(tokens, _)| tokens.as_slice()).collect()];
        let mut likelihoods = vec![f64::NEG_INFINITY; patterns.len()];
        for batch in pack(&tokens, TOKENS) {
            let rows = batch.iter().map(|(_, index)| {
                let (tokens, sentence) = &sentences[*index];
                let counted: Vec<bool> = (0..tokens.len()).map(|at| sentence.contains(&at)).collect();
                (tokens.as_slice(), counted)
            });
            let (microbatch, targets) = Microbatch::new(&rows.collect::<Vec<_>>());
            let logprobs = score_across(&self.decoder, &self.devices, &[microbatch], &self.cancel)?;
            for ((_, index), targets) in batch.iter().zip(&targets) {
                let sum: f64 = targets.iter().map(|target| f64::from(logprobs[0][*target])).sum();
                if !targets.is_empty() {
                    likelihoods[*index] = sum / targets.len() as f64;
                }
            }
        }
        Ok(likelihoods)
    }

    /// The same by sentence, each computed once.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn by_pattern(&self, patterns: impl IntoIterator<Item = String>) -> Result<BTreeMap<String, f64>> {
        let mut distinct: Vec<String> = patterns.into_iter().collect();
        distinct.sort_unstable();
        distinct.dedup();
        let likelihoods = self.of(&distinct)?;
        Ok(distinct.into_iter().zip(likelihoods).collect())
    }
}

/// A sentence with [`VALUE`] for what it is about: these values, what stands in quotes, and words with digits or, behind the
/// first word, capital letters.
pub fn pattern(sentence: &str, values: &[&str]) -> String {
    let mut text = sentence.to_owned();
    let mut values: Vec<&str> = values.iter().copied().filter(|value| value.len() > 2).collect();
    values.sort_by_key(|value| std::cmp::Reverse(value.len()));
    for value in values {
        text = text.replace(value, VALUE);
    }
    let mut parts = text.split('"');
    let mut unquoted = parts.next().unwrap_or_default().to_owned();
    for (index, part) in parts.enumerate() {
        unquoted.push_str(if index % 2 == 0 { VALUE } else { part });
    }
    let mut words: Vec<String> = Vec::new();
    let mut starts = true;
    for word in unquoted.split_whitespace() {
        let core = word.trim_matches(|letter: char| !letter.is_alphanumeric());
        let is_capital = core.starts_with(char::is_uppercase) && core != "I" && !core.starts_with("I'");
        let is_value = core.contains(|letter: char| letter.is_ascii_digit()) || is_capital && !starts;
        starts = word.ends_with(['.', '?', '!', ':']);
        let shown =
            if is_value && !core.is_empty() { word.replacen(core, VALUE, 1) } else { word.to_owned() };
        // A name of several words is one value.
        if shown.starts_with(VALUE) && words.last().is_some_and(|last| last == VALUE) {
            words.pop();
        }
        words.push(shown);
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_one_letter_in_a_pattern() {
        for (sentence, values, expected) in [
            ("Who is \"Avatar upload fails\" assigned to?", &[][..], "Who is X assigned to?"),
            ("When was T107 created? Tell Ann Lee.", &[], "When was X created? Tell X."),
            ("What is the city of oak desk?", &["oak desk"], "What is the city of X?"),
            ("How many are open? I need it by 2024-05-01.", &[], "How many are open? I need it by X."),
            ("", &[], ""),
        ] {
            assert_eq!(pattern(sentence, values), expected);
        }
    }

    /// `MCPRL_MODEL=FOLDER MCPRL_TEXTS=FILE cargo test --release --lib likelihood -- --ignored --nocapture`: the likelihood of
    /// each line.
    #[test]
    #[ignore = "a measurement"]
    #[expect(clippy::print_stdout, reason = "a measurement")]
    fn lines() {
        let folder = std::path::PathBuf::from(std::env::var("MCPRL_MODEL").unwrap());
        let text = std::fs::read_to_string(std::env::var("MCPRL_TEXTS").unwrap()).unwrap();
        let engine = crate::engine::EngineSpec::default();
        let decoder = crate::engine::load_frozen(
            &folder,
            engine.format(crate::model::Weights::open(&folder).unwrap().format()),
            &candle_core::Device::Cpu,
        )
        .unwrap();
        let likelihood = Likelihood {
            decoder,
            devices: engine.open_devices().unwrap(),
            chat: PlainChat::load(&folder).unwrap(),
            cancel: CancellationToken::new(),
        };
        let patterns: Vec<String> = text.lines().map(|line| pattern(line, &[])).collect();
        let found = likelihood.by_pattern(patterns.clone()).unwrap();
        for (line, pattern) in text.lines().zip(&patterns) {
            println!("@{:.3}\t{pattern}\t{line}", found[pattern]);
        }
    }
}
