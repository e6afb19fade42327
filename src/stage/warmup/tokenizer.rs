//! A byte-level BPE tokenizer trained on the base's own traces.
//!
//! An entity must have the same tokens in every context (`'Ada'`, ` Ada`, `"Ada"`), or copying must be
//! learned for each. So capitalised words, snake_case names and single digits are split off alone; only
//! lower-case words keep the space before them. Any text can be encoded. The same texts give the same bytes
//! of `tokenizer.json`.

use serde::Deserialize;
use tokenizers::{
    AddedToken, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, PreTokenizerWrapper,
    SplitDelimiterBehavior, Tokenizer,
    models::{
        TrainerWrapper,
        bpe::{BPE, BpeTrainer},
    },
    pre_tokenizers::{
        byte_level::ByteLevel,
        sequence::Sequence,
        split::{Split as SplitByRegex, SplitPattern},
    },
};

/// Control tokens: padding and end of text, start and end of a turn.
pub const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
/// Tokens of their own that are not control tokens, as in Qwen's vocabularies.
pub const MARKS: [&str; 4] = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"];

const NAMES: &str = concat!(
    r"\d",
    r"|[A-Z][a-z]+",
    r"|[A-Z]+",
    r"|[a-z]+(?:_[a-z]+)+",
    r"| ?[a-z]+(?![a-z_])",
    r"|[a-z]+",
    r"| ?[^\sA-Za-z\d]+",
    r"|\s",
);
/// A word has the same tokens in a name and in a sentence.
const WORDS: &str = r"\d|[A-Z][a-z]+|[A-Z]+|[a-z]+| ?[^\sA-Za-z\d]+|\s";

/// What is split off alone, and never crossed by a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    /// Names such as `annual_pay`.
    Names,
    /// The words of names, and every word.
    Words,
}

impl Split {
    fn pattern(self) -> &'static str {
        match self {
            Self::Names => NAMES,
            Self::Words => WORDS,
        }
    }

    fn regex(self) -> Result<SplitByRegex, tokenizers::Error> {
        let pattern = SplitPattern::Regex(self.pattern().to_owned());
        SplitByRegex::new(pattern, SplitDelimiterBehavior::Isolated, false)
    }
}

/// Trains on texts. `vocabulary` counts every token, including added ones. Each of `phrases` becomes a token.
///
/// # Errors
/// If `vocabulary` is too small to hold the bytes and the added tokens.
pub fn train(
    texts: &[String],
    vocabulary: usize,
    phrases: &[String],
    split: Split,
) -> Result<Tokenizer, tokenizers::Error> {
    let mut plain: Vec<&str> = MARKS.into_iter().chain(phrases.iter().map(String::as_str)).collect();
    plain.retain(|token| !token.is_empty());
    let smallest = SPECIAL.len() + 256 + plain.len();
    if vocabulary < smallest {
        return Err(format!(
            "a vocabulary of {vocabulary} is smaller than the {smallest} tokens that it needs"
        )
        .into());
    }
    let mut tokenizer = Tokenizer::new(BPE::default());
    let bytes = ByteLevel::new(false, false, false);
    let pieces = vec![PreTokenizerWrapper::Split(split.regex()?), PreTokenizerWrapper::ByteLevel(bytes)];
    tokenizer.with_pre_tokenizer(Some(Sequence::new(pieces)));
    tokenizer.with_decoder(Some(bytes));
    let trainer = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(vocabulary - plain.len())
        .min_frequency(2)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(SPECIAL.iter().map(|token| AddedToken::from(*token, true)).collect())
        .build();
    let cuts: Vec<&str> = SPECIAL.into_iter().chain(plain.iter().copied()).collect();
    let fragments = texts.iter().flat_map(|text| between(text, &cuts));
    tokenizer.train(&mut TrainerWrapper::BpeTrainer(trainer), fragments)?;
    let added = |token| AddedToken::from(token, false).normalized(false);
    tokenizer.add_tokens(plain.into_iter().map(added))?;
    Ok(tokenizer)
}

/// Splits texts as the tokenizer does before merges.
pub struct Pieces(SplitByRegex);

impl Pieces {
    pub fn new(split: Split) -> Result<Self, tokenizers::Error> {
        split.regex().map(Self)
    }

    pub fn of(&self, text: &str) -> Vec<String> {
        let mut cut = PreTokenizedString::from(text);
        if self.0.pre_tokenize(&mut cut).is_err() {
            return vec![text.to_owned()];
        }
        let pieces = cut.get_splits(OffsetReferential::Original, OffsetType::Byte);
        pieces.into_iter().map(|(piece, _, _)| piece.to_owned()).collect()
    }
}

/// The parts of a text between added tokens, which teach no merges.
fn between<'a>(text: &'a str, cuts: &[&str]) -> Vec<&'a str> {
    let (mut parts, mut start, mut at) = (Vec::new(), 0, 0);
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        match cuts.iter().filter(|cut| rest.starts_with(cut.as_bytes())).map(|cut| cut.len()).max() {
            Some(length) => {
                parts.push(&text[start..at]);
                at += length;
                start = at;
            }
            None => at += 1,
        }
    }
    parts.push(&text[start..]);
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokenizer(split: Split) -> Tokenizer {
        let names = ["Ada Cole", "Bo Stone", "Cy Marsh"];
        let texts: Vec<String> = (0..60)
            .map(|i| {
                let (name, pay) = (names[i % 3], 40 + i);
                format!(
                    "<|im_start|>user\nHow much does {name} earn?<|im_end|>\n<tool_call>\n{{\"name\": \"run_query\", \
                     \"arguments\": {{\"sql\": \"SELECT annual_pay FROM employees WHERE full_name = '{name}'\"}}}}\n\
                     </tool_call><tool_response>\nannual_pay\n{pay}\n</tool_response>"
                )
            })
            .collect();
        train(&texts, 420, &["\"sql\": \"SELECT ".into(), " FROM ".into()], split).unwrap()
    }

    fn tokens(tokenizer: &Tokenizer, text: &str) -> Vec<String> {
        tokenizer.encode(text, false).unwrap().get_tokens().to_vec()
    }

    #[test]
    fn a_name_has_the_same_tokens_after_a_space_a_quote_and_a_bracket() {
        let tokenizer = tokenizer(Split::Names);
        let name = tokens(&tokenizer, "Ada");
        for before in [" ", "'", "\"", "(", "\n", ", "] {
            assert!(tokens(&tokenizer, &format!("{before}Ada")).ends_with(&name), "after {before:?}");
        }
        let column = tokens(&tokenizer, "annual_pay");
        assert!(tokens(&tokenizer, ", annual_pay").ends_with(&column));
        assert_eq!(tokens(&tokenizer, "1998"), ["1", "9", "9", "8"]);
    }

    #[test]
    fn split_into_words_a_word_has_the_same_tokens_in_names_and_in_sentences() {
        let tokenizer = tokenizer(Split::Words);
        let word = tokens(&tokenizer, "pay");
        for text in ["the pay", "annual_pay", "pay_of_staff", "get-pay", "\"pay\""] {
            let all = tokens(&tokenizer, text);
            assert!(all.windows(word.len()).any(|window| window == word), "{text}: {all:?}");
        }
        assert_eq!(tokens(&tokenizer, "annual_pay").len(), 3);
    }

    #[test]
    fn any_text_survives_a_round_trip() {
        for tokenizer in [Split::Names, Split::Words].map(tokenizer) {
            for text in ["", "  two  spaces\t\n", "Zoë O'Neil — 価格 🦀", "a_b_C__d 12.5%", "<tool_call>\n{}"]
            {
                let ids = tokenizer.encode(text, false).unwrap().get_ids().to_vec();
                assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
            }
        }
    }

    #[test]
    fn the_same_texts_give_the_same_bytes() {
        let text = |tokenizer: Tokenizer| tokenizer.to_string(true).unwrap();
        let first = text(tokenizer(Split::Names));
        for _ in 0..3 {
            assert_eq!(first, text(tokenizer(Split::Names)));
        }
    }

    #[test]
    fn phrases_and_marks_are_one_token_and_the_size_is_kept() {
        let tokenizer = tokenizer(Split::Names);
        assert_eq!(tokens(&tokenizer, "\"sql\": \"SELECT x"), ["\"sql\": \"SELECT ", "x"]);
        assert_eq!(tokens(&tokenizer, "<tool_call>"), ["<tool_call>"]);
        assert!(tokenizer.get_vocab_size(true) <= 420);
        assert!(train(&[], 100, &[], Split::Names).is_err());
    }
}
