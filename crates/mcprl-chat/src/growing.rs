//! A turn while it is sampled: its reasoning and its text, as far as they are certain.
//!
//! A turn is parsed again as it grows, because only the parser of the model's format knows what is text. A text that may
//! still become a call is held back until the turn ends, and so is white space at its end.

use super::{
    Chat, Turn,
    format::{BRACKETS, THINK, Tags, may_precede},
};

/// The tokens of a turn so far, and what was taken of it.
#[derive(Debug, Default)]
pub struct GrowingTurn {
    pub tokens: Vec<u32>,
    /// The tags of reasoning that the prompt has opened.
    opened: Option<Tags>,
    pub reasoning: GrowingText,
    pub text: GrowingText,
}

/// Tags that open and close reasoning.
pub(super) const TAGS: [Tags; 2] = [THINK, BRACKETS];

/// A text that grows, of which a part was taken.
#[derive(Debug, Default)]
pub struct GrowingText {
    pub taken: String,
}

/// What became certain.
#[derive(Debug, Default)]
pub struct Growth {
    pub reasoning: String,
    pub text: String,
}

impl GrowingTurn {
    /// A turn after this prompt.
    pub fn after(chat: &Chat, prompt: &[u32]) -> Self {
        Self { opened: chat.opened(prompt), ..Self::default() }
    }

    /// The turn so far. A tag that closes what nothing has opened is text, because what stands before it was text until then.
    pub fn parsed(&self, chat: &Chat) -> Turn {
        let mut turn = chat.parse_opened(&self.tokens, self.opened);
        let written = chat.written(&self.tokens);
        if let Some(before) = turn.reasoning.take_if(|_| !self.has_reasoning(&written)) {
            let [_, close] = TAGS.into_iter().find(|[_, close]| written.contains(close)).unwrap_or_default();
            turn.text = format!("{before}{close}{}", turn.text);
        }
        turn
    }

    /// What became certain by the last tokens.
    pub fn more(&mut self, chat: &Chat) -> Growth {
        let turn = self.parsed(chat);
        let tools = chat.tool_names();
        let reasoning = turn.reasoning.as_deref().unwrap_or_default();
        let text = if turn.calls.is_empty() { certain(&turn.text, &tools) } else { "" };
        Growth { reasoning: self.reasoning.take(certain(reasoning, &[])), text: self.text.take(text) }
    }

    /// The turn without its reasoning, as it was written.
    pub fn written(&self, chat: &Chat) -> String {
        let turn = self.parsed(chat);
        if turn.calls.is_empty() {
            return turn.text;
        }
        let written = chat.written(&self.tokens);
        let text = match self.has_reasoning(&written) {
            true => chat.learned.format.after_reasoning(&written, self.opened),
            false => &written,
        };
        text.trim().to_owned()
    }

    /// Whether reasoning was opened, by the prompt or by the turn.
    fn has_reasoning(&self, written: &str) -> bool {
        self.opened.is_some() || TAGS.iter().any(|[open, _]| written.trim_start().starts_with(open))
    }
}

impl GrowingText {
    /// What became certain of a text that has come this far: without what may still become a call.
    pub fn more(&mut self, so_far: &str) -> String {
        self.take(certain(so_far, &[]))
    }

    /// What this text, which does not change any more, has in addition to what was taken.
    pub fn take(&mut self, certain: &str) -> String {
        let Some(more) = certain.strip_prefix(self.taken.as_str()) else { return String::new() };
        self.taken.push_str(more);
        more.to_owned()
    }
}

/// The beginning of a text that stays as it is, whatever follows: without an incomplete character, white space at the end,
/// and what may become a call.
fn certain<'t>(text: &'t str, tools: &[&str]) -> &'t str {
    let text = text.trim_end_matches('\u{fffd}');
    let mut line = 0;
    for (at, letter) in text.char_indices() {
        let rest = &text[at..];
        let may_begin = || may_precede(&text[line..at]);
        let next = rest.chars().nth(1);
        let opens = match letter {
            '<' => next.is_none_or(|next| next.is_alphabetic() || "/|_".contains(next)),
            '[' => next.is_none_or(char::is_uppercase) || may_begin(),
            '{' | '`' => may_begin(),
            _ => {
                let is_called =
                    |tool: &str| rest.strip_prefix(tool).is_some_and(|rest| rest.starts_with('('));
                let is_call = |tool: &&str| tool.starts_with(rest) || is_called(tool);
                tools.iter().any(is_call) && may_begin()
            }
        };
        if opens {
            return text[..at].trim_end();
        }
        line = if letter == '\n' { at + 1 } else { line };
    }
    text.trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is taken after each of these texts of a turn, and at its end.
    fn taken(texts: &[&str], whole: &str) -> Vec<String> {
        let mut growing = GrowingText::default();
        let mut taken: Vec<String> =
            texts.iter().map(|text| growing.take(certain(text, &["get_note"]))).collect();
        taken.push(growing.take(whole));
        taken
    }

    #[test]
    fn a_character_is_certain_when_its_last_token_has_come() {
        assert_eq!(
            taken(&["caf", "caf\u{fffd}", "café", "café \u{fffd}"], "café 漢"),
            ["caf", "", "é", "", " 漢"]
        );
    }

    #[test]
    fn what_may_become_a_call_is_held_back_and_taken_if_it_does_not() {
        assert_eq!(taken(&["Look: <", "Look: <tool", "Look:"], "Look:"), ["Look:", "", "", ""]);
        assert_eq!(taken(&["a <", "a < b", "a < b <i>x"], "a < b <i>x</i>"), ["a", " < b", "", " <i>x</i>"]);
        assert_eq!(taken(&["Well\n", "Well\n{\"na", "Well"], "Well"), ["Well", "", "", ""]);
        assert_eq!(taken(&["get", "get_note(1"], ""), ["", "", ""]);
        assert_eq!(taken(&["get", "get some"], "get some"), ["", "get some", ""]);
        assert_eq!(taken(&["list[0] and [", "list[0] and [TOOL"], "list[0] and"), ["list[0] and", "", ""]);
    }

    #[test]
    fn a_turn_that_is_cut_anywhere_goes_on_as_what_it_is_as_a_whole() {
        #[derive(serde::Deserialize)]
        struct Sampled {
            tools: Vec<serde_json::Value>,
            rows: Vec<Row>,
        }
        #[derive(serde::Deserialize)]
        struct Row {
            text: String,
        }
        let reference = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference");
        let Sampled { tools, rows } =
            crate::folder::read_json(&reference.join("fixtures/read_calls.json")).unwrap();
        let chat = Chat::load(&reference.join("chat/qwen3")).unwrap().with_tools("", &tools).unwrap();
        let chat = chat.with_reading(crate::Reading::Lenient);
        let quoted =
            "Not <tool_call>\n{\"name\": \"list_tables\"}\n</tool_call> or {\"name\": \"list_tables\"}";
        let said: Vec<&str> = rows
            .iter()
            .map(|row| row.text.as_str())
            .chain([quoted, "- {\"name\": \"list_tables\"}"])
            .collect();
        for (prompt, before) in [("", String::new()), ("<think>\n", format!("{quoted}\n</think>\n\n"))] {
            let prompt = chat.encode_text(prompt);
            for text in &said {
                let tokens = chat.encode_text(&format!("{before}{text}"));
                let whole = chat.parse(&prompt, &tokens);
                let (mut turn, mut reasoning, mut text) =
                    (GrowingTurn::after(&chat, &prompt), String::new(), String::new());
                for token in &tokens {
                    turn.tokens.push(*token);
                    let more = turn.more(&chat);
                    reasoning += &more.reasoning;
                    text += &more.text;
                }
                assert_eq!(turn.parsed(&chat), whole);
                let is_begun = whole.reasoning.unwrap_or_default().starts_with(&reasoning);
                assert!(is_begun && whole.text.starts_with(&text), "{text}\n---\n{}", whole.text);
            }
        }
    }

    #[test]
    fn a_turn_is_reasoning_until_its_end_if_the_prompt_has_opened_it() {
        let folder =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/chat/qwen3");
        let chat = Chat::load(&folder).unwrap();
        let read = |prompt: &str, texts: &[&str]| {
            let mut turn = GrowingTurn::after(&chat, &chat.encode_text(prompt));
            let (mut reasoning, mut text) = (String::new(), String::new());
            for part in texts {
                turn.tokens.extend(chat.encode_text(part));
                let more = turn.more(&chat);
                reasoning += &more.reasoning;
                text += &more.text;
            }
            let end = turn.parsed(&chat);
            let whole = (end.reasoning.unwrap_or_default(), end.text);
            assert!(whole.0.starts_with(&reasoning) && whole.1.starts_with(&text), "{reasoning} {text}");
            whole
        };
        let both = |reasoning: &str, text: &str| (reasoning.to_owned(), text.to_owned());
        assert_eq!(
            read("<think>\n", &["Let me", " see.", "</think>\n", "It is 7."]),
            both("Let me see.", "It is 7.")
        );
        assert_eq!(read("<think>\n", &["Let me", " see."]), both("Let me see.", ""));
        assert_eq!(read("<think>\n", &["</think>", "It is 7."]), both("", "It is 7."));
        assert_eq!(read("", &["<think>", "Hm.", "</think>", "It is 7."]), both("Hm.", "It is 7."));
        assert_eq!(read("", &["It is", " 7."]), both("", "It is 7."));
        assert_eq!(read("", &["It is", "</think>", " 7."]), both("", "It is</think>7."));
    }
}
