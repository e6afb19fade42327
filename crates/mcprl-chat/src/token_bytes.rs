//! The tokens of a vocabulary as bytes, through which grammars walk.

use std::sync::Arc;

use llguidance::{
    Matcher, ParserFactory,
    api::TopLevelGrammar,
    toktrie::{ApproximateTokEnv, InferenceCapabilities, TokRxInfo, TokTrie},
};
use tokenizers::Tokenizer;

use super::error::GuideError;

/// The tokens of a vocabulary as bytes, in the form in which grammars walk through them.
pub struct Guides {
    factory: ParserFactory,
    /// The bit of a mask that says that the turn may end. No token has this id.
    pub end: usize,
}

impl Guides {
    /// `None` if the bytes of the tokens are not known.
    pub fn new(tokenizer: &Tokenizer, is_control: impl Fn(u32) -> bool) -> Option<Self> {
        let mut words = token_bytes(tokenizer, is_control)?;
        let end = words.len();
        words.push([&[TokTrie::SPECIAL_TOKEN_MARKER], "<end>".as_bytes()].concat());
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, end as u32), &words);
        let environment: llguidance::toktrie::TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices).ok()?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        Some(Self { factory, end })
    }

    pub fn matcher(&self, lark: String) -> Result<Matcher, GuideError> {
        let matcher = Matcher::new(self.factory.create_parser(TopLevelGrammar::from_lark(lark)));
        match matcher.get_error() {
            Some(reason) => Err(GuideError::Schema { reason: first_line(&reason) }),
            None => Ok(matcher),
        }
    }
}

/// The first line of a reason. Behind it stand the grammar and notes of the library.
pub fn first_line(reason: &str) -> String {
    reason.lines().next().unwrap_or_default().to_owned()
}

/// The bytes of each token of a byte-level tokenizer, or of one that falls back to bytes. Control tokens have a marker before
/// their text, so that no text of a grammar is one.
fn token_bytes(tokenizer: &Tokenizer, is_control: impl Fn(u32) -> bool) -> Option<Vec<Vec<u8>>> {
    let decoder = serde_json::to_value(tokenizer.get_decoder()?).ok()?;
    let parts = decoder["decoders"].as_array().cloned().unwrap_or_else(|| vec![decoder]);
    let has = |kind: &str| parts.iter().any(|part| part["type"] == kind);
    let (is_byte_level, falls_back) = (has("ByteLevel"), has("ByteFallback"));
    if !is_byte_level && !falls_back {
        return None;
    }
    let added = tokenizer.get_added_tokens_decoder();
    let bytes = |id: u32| {
        let text = tokenizer.id_to_token(id).unwrap_or_default();
        if is_control(id) {
            return [&[TokTrie::SPECIAL_TOKEN_MARKER], text.as_bytes()].concat();
        }
        if added.contains_key(&id) {
            return text.into_bytes();
        }
        if is_byte_level {
            return text.chars().filter_map(byte_of).collect();
        }
        let hex = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => vec![byte],
            None => text.replace('▁', " ").into_bytes(),
        }
    };
    // Ids may have gaps.
    let size = tokenizer.get_vocab(true).into_values().max().map_or(0, |last| last + 1);
    Some((0..size).map(bytes).collect())
}

/// The byte that a byte-level tokenizer writes as this letter: printable ones as themselves, the others from U+0100 on.
fn byte_of(letter: char) -> Option<u8> {
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    match u32::from(letter).checked_sub(256) {
        None => u8::try_from(letter).ok().filter(printable),
        Some(at) => (0..=255u8).filter(|byte| !printable(byte)).nth(at as usize),
    }
}
