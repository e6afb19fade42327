//! Conversations without tools, for models that judge episodes or write tasks.
//!
//! The template needs no support for tools. Where it can turn reasoning off, it does, and a reply loses its reasoning.

use std::{path::Path, sync::Arc};

use serde_json::{Map, Value};

use super::{
    ChatError, Vocabulary,
    folder::{named_tokens, plain_template_source, read_json},
    growing::TAGS,
    learn::{ENDS, QUESTION, TEXT},
    template::{Template, message},
    vocabulary,
};

/// A model's format of conversations without tools: tokenizer and chat template.
pub struct PlainChat {
    pub(super) vocabulary: Arc<Vocabulary>,
    template: Template,
    pub(super) stop: Vec<u32>,
}

impl PlainChat {
    /// Loads tokenizer and chat template of a Hugging Face folder.
    ///
    /// # Errors
    /// As [`Self::load_over`].
    pub fn load(folder: &Path) -> Result<Self, ChatError> {
        Self::load_over(Arc::new(Vocabulary::of(folder)?), folder)
    }

    /// The chat template of a Hugging Face folder, whose vocabulary is loaded already.
    ///
    /// # Errors
    /// If a file is missing or broken, the template cannot be rendered, or no token ends a turn.
    pub fn load_over(vocabulary: Arc<Vocabulary>, folder: &Path) -> Result<Self, ChatError> {
        let config: Map<String, Value> = read_json(&folder.join("tokenizer_config.json"))?;
        let mut constants = named_tokens(&config);
        let eos = constants.get("eos_token").and_then(Value::as_str).map(str::to_owned);
        constants.insert("enable_thinking".into(), false.into());
        let template = Template::new(&plain_template_source(folder, &config)?, constants)?;
        let rendered =
            template.render(&[message::user(QUESTION), message::assistant(TEXT, &[])], &[], false)?;
        let after = rendered.rsplit_once(TEXT).map_or("", |(_, after)| after);
        let known = ENDS.into_iter().chain(eos.as_deref());
        let end = known.filter_map(|end| Some((after.find(end)?, end))).min();
        let named = end.map(|(_, end)| end).into_iter().chain(eos.as_deref());
        let stop = vocabulary.stops(named, folder)?;
        match stop.is_empty() {
            true => Err(ChatError::NoEndOfTurn { token: eos.unwrap_or_else(|| after.trim().to_owned()) }),
            false => Ok(Self { vocabulary, template, stop }),
        }
    }

    /// The tokens of a conversation, each message a role (`user` or `assistant`) and a text, up to the model's next turn.
    /// They are split where other conversations may go on differently: after the first `shared` bytes of the first text, and before
    /// the last of several texts.
    ///
    /// # Errors
    /// If the template refuses the conversation.
    pub fn prompt<'m>(
        &self,
        messages: impl IntoIterator<Item = (&'m str, &'m str)>,
        shared: usize,
    ) -> Result<Vec<Arc<[u32]>>, ChatError> {
        let texts: Vec<(&str, &str)> = messages.into_iter().collect();
        let rendered = self.rendered(&texts)?;
        let first = texts.first().and_then(|(_, text)| text.get(..shared)).unwrap_or_default();
        let head = self.vocabulary.mask(first);
        let head = rendered.find(&*head).filter(|_| !head.is_empty()).map(|at| at + head.len());
        let last = texts.last().filter(|(_, text)| texts.len() > 1 && !text.is_empty());
        let last = last.and_then(|(_, text)| rendered.rfind(&*self.vocabulary.mask(text)));
        let tokens = self.vocabulary.encode(&rendered);
        let mut splits: Vec<usize> =
            head.into_iter().chain(last).map(|at| self.before(&rendered, at, &tokens)).collect();
        splits.sort_unstable();
        let mut pieces = Vec::new();
        let mut begun = 0;
        for end in splits.into_iter().chain([tokens.len()]) {
            if end > begun {
                pieces.push(Arc::from(&tokens[begun..end]));
                begun = end;
            }
        }
        Ok(pieces)
    }

    fn rendered(&self, messages: &[(&str, &str)]) -> Result<String, ChatError> {
        let message = |(role, text): &(&str, &str)| {
            let text = self.vocabulary.mask(text);
            if *role == "assistant" { message::assistant(&text, &[]) } else { message::user(&text) }
        };
        self.template.render(&messages.iter().map(message).collect::<Vec<_>>(), &[], true)
    }

    /// How many of a text's tokens are what the text up to `at` begins with. What follows may change the last token.
    fn before(&self, rendered: &str, at: usize, tokens: &[u32]) -> usize {
        let begun = self.vocabulary.encode(&rendered[..at]);
        begun.iter().zip(tokens).take_while(|(one, other)| one == other).count()
    }

    /// Tokens that end a turn.
    pub fn stop(&self) -> &[u32] {
        &self.stop
    }

    /// What they are as texts.
    pub fn stop_texts(&self) -> Vec<String> {
        self.stop.iter().map(|stop| self.vocabulary.decode(&[*stop])).collect()
    }

    /// The text of a sampled turn without its reasoning. Reasoning that does not end leaves nothing.
    pub fn reply(&self, tokens: &[u32]) -> String {
        without_reasoning(&self.text(tokens)).trim().to_owned()
    }

    /// The text of a sampled turn.
    pub fn text(&self, tokens: &[u32]) -> String {
        self.vocabulary.decode(vocabulary::without_end(tokens, &self.stop))
    }
}

fn without_reasoning(text: &str) -> &str {
    let ends = TAGS.into_iter().filter_map(|[_, close]| text.rfind(close).map(|at| at + close.len()));
    match ends.max() {
        Some(end) => &text[end..],
        None if TAGS.into_iter().any(|[open, _]| text.trim_start().starts_with(open)) => "",
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(family: &str) -> PlainChat {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/chat").join(family);
        PlainChat::load_over(Arc::new(Vocabulary::of(&folder).unwrap()), &folder).unwrap()
    }

    #[test]
    fn a_conversation_is_the_templates_with_thinking_off() {
        let chat = chat("qwen3");
        let pieces =
            chat.prompt([("user", "Score this: <|im_end|> 7"), ("assistant", "no"), ("user", "again")], 11);
        let pieces = pieces.unwrap();
        let text = chat.vocabulary.decode(&pieces.concat());
        let expected = "<|im_start|>user\nScore this: <|im_end|> 7<|im_end|>\n<|im_start|>assistant\nno<|im_end|>\n\
                        <|im_start|>user\nagain<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
        assert_eq!(text, expected);
        let end = chat.stop()[0];
        assert_eq!(
            pieces.concat().iter().filter(|token| **token == end).count(),
            3,
            "a task cannot end a turn"
        );
        assert_eq!(chat.vocabulary.decode(&pieces[0]), "<|im_start|>user\nScore this:");
    }

    #[test]
    fn conversations_with_one_beginning_share_its_piece() {
        let chat = chat("qwen3");
        let first = |text: &str| chat.prompt([("user", text)], "Instructions.".len()).unwrap()[0].clone();
        assert_eq!(first("Instructions.\n<task> one"), first("Instructions.\n<task> two, longer"));
        assert_eq!(chat.prompt([("user", "alone")], 0).unwrap().len(), 1);
    }

    #[test]
    fn a_reply_loses_its_reasoning_and_its_end() {
        let chat = chat("qwen3");
        for (written, expected) in [
            ("{\"scores\": []}<|im_end|>", "{\"scores\": []}"),
            ("<think>\nhm {1}\n</think>\n\n{\"a\": 1}<|im_end|>", "{\"a\": 1}"),
            ("hm\n</think>\n\nyes", "yes"),
            ("<think>never ends", ""),
            ("", ""),
        ] {
            assert_eq!(chat.reply(&chat.vocabulary.encode(written)), expected, "{written}");
        }
    }

    #[test]
    fn a_template_without_tools_is_enough() {
        let folder = tempfile::tempdir().unwrap();
        let qwen = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/chat/qwen3");
        for name in ["tokenizer.json", "tokenizer_config.json"] {
            std::fs::copy(qwen.join(name), folder.path().join(name)).unwrap();
        }
        let template =
            "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>\n{% endfor %}assistant: ";
        std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
        let chat =
            PlainChat::load_over(Arc::new(Vocabulary::of(folder.path()).unwrap()), folder.path()).unwrap();
        let tokens = chat.prompt([("user", "hello")], 0).unwrap().concat();
        assert_eq!(chat.vocabulary.decode(&tokens), "user: hello<|im_end|>\nassistant: ");
    }
}
