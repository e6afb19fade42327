//! The tokenizer of a GGUF file as `tokenizer.json`, with what belongs to it: the named tokens, the tokens that end a text
//! and the chat template.
//!
//! Normalizer, pre-tokenizer and decoder are those of the model's own `tokenizer.json`, for which the file has only a
//! name. Where llama.cpp differs from them, the model was trained with these.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value, json};

use super::{
    Content, Feature, GgufError,
    supported::{PRE_TOKENIZERS, Pre},
};
use crate::chat::{ChatError, base_template, preflight_template};

/// Pieces of SentencePiece are short. The ways to split one are all tried.
const LONGEST_PIECE: usize = 512;

/// Tokens that end a text wherever they are sampled, if they are control tokens: as in llama.cpp.
const ENDS: [&str; 8] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
];

/// How text becomes tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    ByteLevel(Pre),
    SentencePiece,
}

impl Method {
    fn of(content: &Content<'_>) -> Result<Self, GgufError> {
        let named = |key: &str| content.text(key)?.ok_or_else(|| content.missing(key));
        match named("tokenizer.ggml.model")? {
            "gpt2" => {
                let pre = named("tokenizer.ggml.pre")?;
                let known = PRE_TOKENIZERS.iter().find(|(name, _)| *name == pre);
                known
                    .map(|(_, pre)| Self::ByteLevel(*pre))
                    .ok_or_else(|| content.unsupported(Feature::PreTokenizer, pre))
            }
            "llama" => Ok(Self::SentencePiece),
            other => Err(content.unsupported(Feature::Tokenizer, other)),
        }
    }
}

/// What a token is, by its number in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    Normal,
    /// The unknown token, or one that structures a conversation.
    Control,
    UserDefined,
    /// Only there to fill the vocabulary.
    Unused,
    Byte,
}

/// The parts of the file that concern its tokenizer, read and checked.
pub struct GgufTokenizer<'a> {
    method: Method,
    tokens: Vec<&'a str>,
    types: Vec<Type>,
    /// `bos_token` and its like, with their ids.
    named: BTreeMap<&'static str, usize>,
    ends: Vec<usize>,
    adds_bos: bool,
    template: &'a str,
    tool_template: Option<&'a str>,
}

impl<'a> GgufTokenizer<'a> {
    pub fn of(content: &Content<'a>, vocabulary: usize) -> Result<Self, GgufError> {
        let method = Method::of(content)?;
        let key = "tokenizer.ggml.tokens";
        let tokens = content.texts(key)?.ok_or_else(|| content.missing(key))?;
        if tokens.len() > vocabulary {
            let reason = format!("it has {} tokens, the embedding {vocabulary} rows", tokens.len());
            return Err(content.metadata(key, reason));
        }
        let mut types = types(content, tokens.len())?;
        let mut named = BTreeMap::new();
        let mut ends = Vec::new();
        let named_keys = [
            ("bos", Some("bos_token")),
            ("eos", Some("eos_token")),
            ("eot", None),
            ("eom", None),
            ("unknown", Some("unk_token")),
            ("padding", Some("pad_token")),
        ];
        for (name, known_as) in named_keys {
            let key = format!("tokenizer.ggml.{name}_token_id");
            let Some(id) = content.size(&key)? else { continue };
            if id >= tokens.len() {
                return Err(content.metadata(&key, format!("there is no token {id}")));
            }
            if ["bos", "eos", "eot", "eom"].contains(&name) {
                types[id] = Type::Control;
            }
            if name.starts_with('e') {
                ends.push(id);
            }
            known_as.map(|known_as| named.insert(known_as, id));
        }
        let also = tokens.iter().zip(&types).enumerate();
        ends.extend(
            also.filter(|(_, (token, kind))| **kind == Type::Control && ENDS.contains(token))
                .map(|(id, _)| id),
        );
        let mut seen = std::collections::BTreeSet::new();
        ends.retain(|id| seen.insert(*id));
        let mut ids = HashMap::new();
        for (token, _) in tokens.iter().zip(&types).filter(|(_, kind)| **kind != Type::Unused) {
            if ids.insert(*token, ()).is_some() {
                return Err(content.metadata(key, format!("the token {token:?} is there twice")));
            }
        }
        let usually_adds_bos = matches!(method, Method::SentencePiece | Method::ByteLevel(Pre::Llama3));
        let adds_bos = content.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(usually_adds_bos);
        let no_template = || GgufError::NoTemplate { path: content.path.to_owned() };
        let tool_template = content.text("tokenizer.chat_template.tool_use")?;
        let own = content.text("tokenizer.chat_template")?.or(tool_template);
        // Base models of Gemma 3 have its tokens, but no template.
        let built_in = || base_template(|token| tokens.contains(&token));
        let template = own.or_else(built_in).ok_or_else(no_template)?;
        Ok(Self { method, tokens, types, named, ends, adds_bos, template, tool_template })
    }

    fn texts(&self) -> Map<String, Value> {
        self.named.iter().map(|(name, id)| ((*name).to_owned(), self.tokens[*id].into())).collect()
    }

    /// Checks that the template can write tools, as far as that is certain without a tokenizer.
    pub fn check_template(&self) -> Result<(), ChatError> {
        preflight_template(self.tool_template.unwrap_or(self.template), &self.texts())
    }

    /// Files of a model folder by name, with their text.
    pub fn files(
        &self,
        content: &Content<'_>,
        context: usize,
    ) -> Result<Vec<(&'static str, String)>, GgufError> {
        let mut config = self.texts();
        let more = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": self.adds_bos,
            "clean_up_tokenization_spaces": false,
            "model_max_length": context,
        });
        config.extend(more.as_object().cloned().unwrap_or_default());
        let mut generation = json!({ "eos_token_id": self.ends });
        if let Some(bos) = self.named.get("bos_token") {
            generation["bos_token_id"] = json!(bos);
        }
        let mut files = vec![
            ("chat_template.jinja", self.template.to_owned()),
            ("generation_config.json", format!("{generation:#}\n")),
            ("tokenizer.json", format!("{}\n", self.tokenizer(content)?)),
            ("tokenizer_config.json", format!("{:#}\n", json!(config))),
        ];
        files.extend(self.tool_template.map(|template| (crate::chat::TOOL_TEMPLATE, template.to_owned())));
        Ok(files)
    }

    /// The ids for `config.json`.
    pub fn ids(&self) -> [(&'static str, Option<usize>); 2] {
        [("bos_token_id", "bos_token"), ("eos_token_id", "eos_token")]
            .map(|(key, name)| (key, self.named.get(name).copied()))
    }

    fn tokenizer(&self, content: &Content<'_>) -> Result<Value, GgufError> {
        let used = || {
            self.tokens.iter().zip(&self.types).enumerate().filter(|(_, (_, kind))| **kind != Type::Unused)
        };
        let added: Vec<Value> = used()
            .filter(|(_, (_, kind))| matches!(kind, Type::Control | Type::UserDefined))
            .filter(|(_, (token, _))| !token.is_empty())
            .map(|(id, (token, kind))| {
                json!({
                    "id": id,
                    "content": token,
                    "single_word": false,
                    "lstrip": false,
                    "rstrip": false,
                    "normalized": false,
                    "special": *kind == Type::Control,
                })
            })
            .collect();
        let vocab: Map<String, Value> =
            used().map(|(id, (token, _))| ((*token).to_owned(), id.into())).collect();
        let merges = match self.method {
            Method::ByteLevel(_) => self.merges(content)?,
            Method::SentencePiece => self.merges_of_pieces(content)?,
        };
        let is_pieces = self.method == Method::SentencePiece;
        let unknown = self.named.get("unk_token").filter(|_| is_pieces).map(|id| self.tokens[*id]);
        let (normalizer, pre_tokenizer, decoder) = self.pipeline(content)?;
        Ok(json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added,
            "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer,
            "post_processor": self.post_processor(),
            "decoder": decoder,
            "model": {
                "type": "BPE",
                "dropout": null,
                "unk_token": unknown,
                "continuing_subword_prefix": null,
                "end_of_word_suffix": null,
                "fuse_unk": is_pieces,
                "byte_fallback": is_pieces,
                "ignore_merges": self.method == Method::ByteLevel(Pre::Llama3),
                "vocab": vocab,
                "merges": merges,
            },
        }))
    }

    fn merges(&self, content: &Content<'_>) -> Result<Vec<[String; 2]>, GgufError> {
        let key = "tokenizer.ggml.merges";
        let merges = content.texts(key)?.ok_or_else(|| content.missing(key))?;
        let pair =
            |merge: &str| merge.split_once(' ').map(|(left, right)| [left.to_owned(), right.to_owned()]);
        let pairs: Option<Vec<_>> = merges.into_iter().map(pair).collect();
        pairs.ok_or_else(|| content.metadata(key, "a merge is not two tokens with a space between them"))
    }

    /// The merges that give each piece, in the order of their scores: as Transformers converts SentencePiece.
    fn merges_of_pieces(&self, content: &Content<'_>) -> Result<Vec<[String; 2]>, GgufError> {
        let key = "tokenizer.ggml.scores";
        let scores = content.numbers(key)?.ok_or_else(|| content.missing(key))?;
        if scores.len() != self.tokens.len() {
            return Err(content
                .metadata(key, format!("it has {} scores for {} tokens", scores.len(), self.tokens.len())));
        }
        let pieces = || {
            let all = self.tokens.iter().zip(&self.types).enumerate();
            all.filter(|(_, (_, kind))| matches!(kind, Type::Normal | Type::UserDefined))
                .map(|(id, (piece, _))| (id, *piece))
        };
        let ids: HashMap<&str, usize> = pieces().map(|(id, piece)| (piece, id)).collect();
        let mut merges = Vec::new();
        for (id, piece) in pieces() {
            if piece.len() > LONGEST_PIECE {
                let reason = format!("token {id} has {} bytes", piece.len());
                return Err(content.metadata("tokenizer.ggml.tokens", reason));
            }
            let splits = piece.char_indices().skip(1).map(|(at, _)| piece.split_at(at));
            let known =
                splits.filter_map(|(left, right)| Some((left, right, *ids.get(left)?, *ids.get(right)?)));
            let mut known: Vec<_> = known.collect();
            known.sort_by_key(|(_, _, left, right)| (*left, *right));
            merges.extend(known.into_iter().map(|(left, right, _, _)| (scores[id], left, right)));
        }
        let order =
            |(score, left, right): &(f64, &str, &str)| (*score, left.chars().count(), right.chars().count());
        // Descending, and stable.
        merges.sort_by(|a, b| {
            let (a, b) = (order(a), order(b));
            b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)).then(b.2.cmp(&a.2))
        });
        Ok(merges.into_iter().map(|(_, left, right)| [left.to_owned(), right.to_owned()]).collect())
    }

    /// Normalizer, pre-tokenizer and decoder.
    fn pipeline(&self, content: &Content<'_>) -> Result<(Value, Value, Value), GgufError> {
        let byte_level = |trim_offsets: bool, use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": trim_offsets, "use_regex": use_regex});
        let split = |pattern: String| {
            let split = json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
            json!({"type": "Sequence", "pretokenizers": [split, byte_level(false, false)]})
        };
        let sequence = |kind: &str, items: Vec<Value>| json!({"type": "Sequence", kind: items});
        Ok(match self.method {
            Method::ByteLevel(pre) => {
                let is_composed = matches!(pre, Pre::Qwen2 | Pre::Qwen3_5);
                let normalizer = if is_composed { json!({"type": "NFC"}) } else { Value::Null };
                let pre_tokenizer = match pre.pattern() {
                    Some(pattern) => split(pattern),
                    None if pre == Pre::SmolLm => {
                        let digits = json!({"type": "Digits", "individual_digits": true});
                        sequence("pretokenizers", vec![digits, byte_level(true, true)])
                    }
                    None => byte_level(true, true),
                };
                (normalizer, pre_tokenizer, byte_level(true, true))
            }
            Method::SentencePiece => {
                let adds_space = content.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
                let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
                let prepend = adds_space.then(|| json!({"type": "Prepend", "prepend": "▁"}));
                let strip =
                    adds_space.then(|| json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
                let normalizers = prepend.into_iter().chain([replace(" ", "▁")]).collect();
                let decoders = [replace("▁", " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
                let decoders = decoders.into_iter().chain(strip).collect();
                (sequence("normalizers", normalizers), Value::Null, sequence("decoders", decoders))
            }
        })
    }

    fn post_processor(&self) -> Value {
        let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
        let bos = self.named.get("bos_token").filter(|_| self.adds_bos);
        let begins = bos.map(|id| {
            let bos = self.tokens[*id];
            let special = |kind: u8| json!({"SpecialToken": {"id": bos, "type_id": kind}});
            let sequence = |name: &str, kind: u8| json!({"Sequence": {"id": name, "type_id": kind}});
            json!({
                "type": "TemplateProcessing",
                "single": [special(0), sequence("A", 0)],
                "pair": [special(0), sequence("A", 0), special(1), sequence("B", 1)],
                "special_tokens": {bos: {"id": bos, "ids": [id], "tokens": [bos]}},
            })
        });
        match (self.method, begins) {
            (Method::SentencePiece, begins) => begins.unwrap_or_default(),
            (Method::ByteLevel(_), None) => byte_level,
            (Method::ByteLevel(_), Some(begins)) => {
                json!({"type": "Sequence", "processors": [byte_level, begins]})
            }
        }
    }
}

fn types(content: &Content<'_>, count: usize) -> Result<Vec<Type>, GgufError> {
    let key = "tokenizer.ggml.token_type";
    let Some(numbers) = content.integers(key)? else { return Ok(vec![Type::Normal; count]) };
    if numbers.len() != count {
        return Err(content.metadata(key, format!("it has {} types for {count} tokens", numbers.len())));
    }
    let known = |number: i64| {
        Ok(match number {
            // Some files say that nothing is known of a token.
            0 | 1 => Type::Normal,
            2 | 3 => Type::Control,
            4 => Type::UserDefined,
            5 => Type::Unused,
            6 => Type::Byte,
            other => return Err(content.metadata(key, format!("there is no type {other}"))),
        })
    };
    numbers.into_iter().map(known).collect()
}
