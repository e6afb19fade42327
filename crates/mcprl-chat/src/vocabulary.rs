//! Converts text to token ids and back, and keeps a template's control tokens apart from untrusted text.
//!
//! Control tokens (end of turn, role header, …) structure the conversation, so untrusted text must never become one,
//! whatever it spells. Untrusted text is [masked](Vocabulary::mask) before it goes through a template;
//! masked text is tokenized as plain characters.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, OnceLock},
};

use mcprl_base::document;
use serde_json::{Map, Value};
use tokenizers::{AddedToken, Tokenizer};

use super::{
    ChatError,
    folder::{generation_stops, named_tokens, read_json},
    token_bytes::Guides,
};

/// A Unicode noncharacter, never used for interchange. It breaks the spelling of a control token in untrusted text.
pub(super) const MASK: char = '\u{FDD0}';

/// A token of the vocabulary that a chat template writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateToken {
    pub text: String,
    pub id: u32,
    /// Whether it is a tag, such as `<tool_call>`, and not a control token.
    pub is_tag: bool,
}

pub struct Vocabulary {
    /// Recognizes control tokens.
    tokenizer: Tokenizer,
    /// Reads control tokens and tags as plain characters.
    literal: Tokenizer,
    /// Ids of the control tokens by their text.
    controls: BTreeMap<String, u32>,
    control_ids: BTreeSet<u32>,
    /// Ids of the tags by their text: other added tokens in angle or square brackets, such as `<tool_call>`.
    tags: BTreeMap<String, u32>,
    /// Made when it is first asked for; `None` if it cannot be.
    guides: OnceLock<Option<Arc<Guides>>>,
}

impl Vocabulary {
    /// Loads `tokenizer.json` of a Hugging Face folder. The tokens that `tokenizer_config.json` names (`eos_token`, …) are
    /// control tokens even if the tokenizer does not mark them as special.
    pub fn of(folder: &Path) -> Result<Self, ChatError> {
        let named = named_tokens(&read_json(&folder.join("tokenizer_config.json"))?);
        let path = &folder.join("tokenizer.json");
        let bytes = std::fs::read(path).map_err(|source| ChatError::Read { path: path.clone(), source })?;
        let wrong = |error: tokenizers::Error| {
            let reason = error.to_string();
            ChatError::Tokenizer { path: path.clone(), reason }
        };
        if let Some(reason) = document::mistaken(&bytes) {
            return Err(ChatError::Tokenizer { path: path.clone(), reason: reason.to_owned() });
        }
        let mut tokenizer = Tokenizer::from_bytes(bytes).map_err(wrong)?;
        tokenizer.with_truncation(None).map_err(wrong)?;
        tokenizer.with_padding(None);
        let (mut controls, mut tags) = (BTreeMap::new(), BTreeMap::new());
        for (id, token) in tokenizer.get_added_tokens_decoder() {
            if is_control(&token, &named) && !token.content.is_empty() {
                controls.insert(token.content, id);
            } else if is_tag(&token) {
                tags.insert(token.content, id);
            }
        }
        let mut literal = tokenizer.clone();
        let recognized = controls.keys().chain(tags.keys());
        literal
            .add_special_tokens(recognized.map(|content| AddedToken::from(content.as_str(), true)))
            .map_err(wrong)?;
        literal.set_encode_special_tokens(true);
        let control_ids = controls.values().copied().collect();
        Ok(Self { tokenizer, literal, controls, control_ids, tags, guides: OnceLock::new() })
    }

    #[cfg(test)]
    pub fn controls(&self) -> &BTreeSet<u32> {
        &self.control_ids
    }

    #[cfg(test)]
    pub fn control_texts(&self) -> impl Iterator<Item = &str> {
        self.controls.keys().map(String::as_str)
    }

    /// What guides of turns walk through. `None` if the bytes of the tokens are not known.
    pub(super) fn guides(&self) -> Option<Arc<Guides>> {
        let made = || Guides::new(&self.tokenizer, |id| self.is_control(id)).map(Arc::new);
        self.guides.get_or_init(made).clone()
    }

    /// Number of tokens.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    pub fn id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// The tokens that end a turn, each once: those of these texts that the tokenizer has, then those of the folder's
    /// `generation_config.json`.
    pub fn stops<'t>(
        &self,
        texts: impl IntoIterator<Item = &'t str>,
        folder: &Path,
    ) -> Result<Vec<u32>, ChatError> {
        let mut stops = Vec::new();
        let named = texts.into_iter().filter_map(|text| self.id(text));
        for id in named.chain(generation_stops(folder)?) {
            if !stops.contains(&id) {
                stops.push(id);
            }
        }
        Ok(stops)
    }

    pub fn is_control(&self, id: u32) -> bool {
        self.control_ids.contains(&id)
    }

    /// The control tokens and tags that this template source writes, in the order of their ids.
    pub fn tokens_in(&self, template: &str) -> Vec<TemplateToken> {
        let token = |text: &String, id: u32, is_tag| TemplateToken { text: text.clone(), id, is_tag };
        let controls = self.controls.iter().map(|(text, id)| token(text, *id, false));
        let all = controls.chain(self.tags.iter().map(|(text, id)| token(text, *id, true)));
        let mut found: Vec<_> = all.filter(|token| template.contains(token.text.as_str())).collect();
        found.sort_by_key(|token| token.id);
        found
    }

    /// Ids below `size` that no token has.
    pub fn unused(&self, size: usize) -> Vec<u32> {
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        (0..size).filter(|id| self.tokenizer.id_to_token(*id).is_none()).collect()
    }

    /// The first id that stands for another token in another vocabulary, with both tokens.
    pub fn differs(&self, other: &Self) -> Option<(u32, [Option<String>; 2])> {
        let both = [self, other].map(|one| &one.tokenizer);
        let last = both.iter().flat_map(|one| one.get_vocab(true).into_values()).max()?;
        let at = |id: u32| (id, both.map(|one| one.id_to_token(id)));
        (0..=last).map(at).find(|(_, [one, other])| one != other)
    }

    /// Untrusted text, made safe for use in a template.
    pub fn mask<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.mask_with(text, &[])
    }

    /// The same, for text in which tags are text too.
    pub fn mask_with<'a>(&self, text: &'a str, tags: &[String]) -> Cow<'a, str> {
        let tokens = || self.controls.keys().chain(tags);
        if !text.contains(MASK) && !tokens().any(|token| text.contains(token.as_str())) {
            return Cow::Borrowed(text);
        }
        let mut masked = text.replace(MASK, "");
        for token in tokens() {
            let mut characters = token.chars();
            if let Some(first) = characters.next() {
                masked = masked.replace(token, &format!("{first}{MASK}{}", characters.as_str()));
            }
        }
        Cow::Owned(masked)
    }

    /// Tokens of a rendered template. Masked text in it gives no control token.
    pub fn encode(&self, rendered: &str) -> Vec<u32> {
        if !rendered.contains(MASK) {
            return ids(&self.tokenizer, rendered);
        }
        let mut tokens = Vec::new();
        let mut rest = rendered;
        while let Some((start, token, id)) = self.next_token(rest) {
            tokens.extend(self.encode_text(&rest[..start].replace(MASK, "")));
            tokens.push(id);
            rest = &rest[start + token.len()..];
        }
        tokens.extend(self.encode_text(&rest.replace(MASK, "")));
        tokens
    }

    /// Tokens of untrusted text. Control tokens that the tokenizer still produces are dropped.
    pub fn encode_text(&self, text: &str) -> Vec<u32> {
        let mut tokens = ids(&self.literal, text);
        tokens.retain(|id| !self.control_ids.contains(id));
        tokens
    }

    pub fn decode(&self, tokens: &[u32]) -> String {
        self.tokenizer.decode(tokens, false).unwrap_or_default()
    }

    /// The text of each token. Where several tokens make one character, the first has its text and the others have none.
    pub fn pieces(&self, tokens: &[u32]) -> Vec<String> {
        /// Most tokens of a character: a byte each.
        const MOST: usize = 4;
        let mut pieces = Vec::with_capacity(tokens.len());
        while pieces.len() < tokens.len() {
            let at = pieces.len();
            // Some decoders drop a space at the start of a text.
            let before = at.saturating_sub(1);
            let context = self.decode(&tokens[before..at]);
            let piece = |end: usize| {
                let whole = self.decode(&tokens[before..end]);
                match whole.strip_prefix(&context) {
                    Some(piece) => piece.to_owned(),
                    None => self.decode(&tokens[at..end]),
                }
            };
            let ends = at + 1..=(at + MOST).min(tokens.len());
            let whole = ends.map(|end| (end, piece(end))).find(|(_, text)| !text.contains('\u{FFFD}'));
            let (end, text) = whole.unwrap_or_else(|| (at + 1, piece(at + 1)));
            pieces.push(text);
            pieces.resize(end, String::new());
        }
        pieces
    }

    /// The text of sampled tokens. Plain tokens that spell a control token are masked, so only control tokens are
    /// recognized as such.
    pub fn masked_text(&self, tokens: &[u32]) -> String {
        let text = self.decode(tokens);
        let spelled: usize = self.controls.keys().map(|control| text.matches(control.as_str()).count()).sum();
        let control_count = tokens.iter().filter(|token| self.control_ids.contains(token)).count();
        if spelled == control_count && !text.contains(MASK) {
            return text;
        }
        let mut text = String::new();
        for run in tokens.chunk_by(|a, b| self.control_ids.contains(a) == self.control_ids.contains(b)) {
            let decoded = self.decode(run);
            match run.first() {
                Some(first) if self.control_ids.contains(first) => text.push_str(&decoded),
                _ => text.push_str(&self.mask(&decoded)),
            }
        }
        text
    }

    /// Byte offset of the last control token of a text, or its length if there is none.
    pub fn last_control_start(&self, text: &str) -> usize {
        let starts = self.controls.keys().filter_map(|control| text.rfind(control.as_str()));
        starts.max().unwrap_or(text.len())
    }

    /// Byte offset after the last control token of a text, or 0 if there is none.
    pub fn last_control_end(&self, text: &str) -> usize {
        let ends = self
            .controls
            .keys()
            .filter_map(|control| text.rfind(control.as_str()).map(|at| at + control.len()));
        ends.max().unwrap_or(0)
    }

    /// The first control token or tag in a text; the longest if several start at the same place.
    fn next_token<'a>(&'a self, text: &str) -> Option<(usize, &'a str, u32)> {
        let tokens = self.controls.iter().chain(&self.tags);
        tokens
            .filter_map(|(token, id)| text.find(token.as_str()).map(|at| (at, token.as_str(), *id)))
            .min_by_key(|(at, token, _)| (*at, std::cmp::Reverse(token.len())))
    }
}

/// A sampled turn without the token of `stop` that ends it.
pub(super) fn without_end<'t>(tokens: &'t [u32], stop: &[u32]) -> &'t [u32] {
    match tokens.split_last() {
        Some((last, rest)) if stop.contains(last) => rest,
        _ => tokens,
    }
}

pub(super) fn is_masked(text: &str) -> bool {
    text.contains(MASK)
}

pub(super) fn unmask(text: String) -> String {
    if text.contains(MASK) { text.replace(MASK, "") } else { text }
}

/// Whether a token is special: marked by the tokenizer, named by the configuration, or of the form `<|…|>`.
fn is_control(token: &AddedToken, named: &Map<String, Value>) -> bool {
    let content = token.content.as_str();
    token.special
        || named.values().any(|name| name == content)
        || (content.starts_with("<|") && content.ends_with("|>"))
}

/// Whether an added token is a tag: in brackets, and without spaces around it that the tokenizer takes with it.
fn is_tag(token: &AddedToken) -> bool {
    let content = token.content.as_str();
    let is_bracketed = [('<', '>'), ('[', ']')]
        .into_iter()
        .any(|(open, close)| content.starts_with(open) && content.ends_with(close));
    is_bracketed && content.len() > 2 && !(token.lstrip || token.rstrip || token.single_word)
}

/// Tokenizers with byte-level or unknown tokens never fail. For other tokenizers, text they cannot represent gives no
/// tokens.
fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode_fast(text, false).map(|encoding| encoding.get_ids().to_vec()).unwrap_or_default()
}
