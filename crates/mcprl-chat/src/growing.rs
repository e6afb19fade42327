//! A turn while it is sampled: its reasoning and its text, as far as they are certain.
//!
//! Only the parser of the model's format knows what is text, and it reads whole turns. So a growing turn is scanned, each character
//! once, and a text that may become a call is held back until the turn ends and is parsed; so is white space at its end. The
//! work for a token does not grow with the turn.

use super::{
    Chat, Turn,
    format::{BRACKETS, THINK, Tags},
    vocabulary,
};

/// The tokens of a turn so far, and what was taken of it.
#[derive(Debug, Default)]
pub struct GrowingTurn {
    pub tokens: Vec<u32>,
    /// The tags of reasoning that the prompt has opened.
    opened: Option<Tags>,
    pub reasoning: GrowingText,
    pub text: GrowingText,
    /// The text of the tokens before `decoded`. A character is there when its last token has come.
    raw: String,
    decoded: usize,
    place: TurnState,
    /// Whether the parser may read what comes otherwise, so that nothing more is certain before the end.
    is_unsure: bool,
    /// Where the turn was cut: bytes of `raw`.
    cut: Option<usize>,
}

/// What the end of a growing turn is. Places are bytes of its text.
#[derive(Debug, Default)]
enum TurnState {
    /// It may open reasoning.
    #[default]
    Begin,
    /// `close` ends it, which does not begin before `seen`.
    Reasoning { from: usize, close: &'static str, seen: usize },
    /// `reasoning` is where the reasoning before it stands.
    Text { from: usize, reasoning: (usize, usize) },
}

/// Tags that open and close reasoning.
pub(super) const TAGS: [Tags; 2] = [THINK, BRACKETS];

/// A text that grows, of which a part was taken.
#[derive(Debug, Default)]
pub struct GrowingText {
    pub taken: String,
    scan: Scan,
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
        let mut turn = match self.cut {
            Some(end) => chat.parse_text(&self.raw[..end], self.opened),
            None => chat.parse_opened(&self.tokens, self.opened),
        };
        let written = self.whole(chat);
        if let Some(before) = turn.reasoning.take_if(|_| !self.has_reasoning(&written)) {
            let [_, close] = TAGS.into_iter().find(|[_, close]| written.contains(close)).unwrap_or_default();
            turn.text = format!("{before}{close}{}", turn.text);
        }
        // What ends a turn where it is cut is no end of the model's.
        if let Some(kept) = self.cut.map(|end| &self.raw[..end])
            && turn.calls.is_empty()
            && !turn.text.is_empty()
        {
            turn.text += &kept[kept.trim_end().len()..];
        }
        turn
    }

    /// What became certain by the last tokens.
    pub fn more(&mut self, chat: &Chat) -> Growth {
        self.more_without(chat, 0)
    }

    /// The same, without these last bytes of the [answer](Self::answer).
    pub fn more_without(&mut self, chat: &Chat, held: usize) -> Growth {
        self.advance(chat);
        let mut growth = Growth::default();
        if self.is_unsure {
            return growth;
        }
        match self.place {
            TurnState::Begin => {}
            TurnState::Reasoning { from, close, .. } => {
                let end = self.raw.len() - begun(&self.raw[from..], close);
                growth.reasoning = self.reasoning.grow(self.raw[from..end].trim());
            }
            TurnState::Text { from, reasoning: (start, end) } => {
                growth.reasoning = self.reasoning.grow(self.raw[start..end].trim());
                let text = self.raw[from..].trim_start();
                let certain = self.text.scan.certain(text, &chat.tool_names(), chat.learned.format.word());
                let end = certain.min(text.len().saturating_sub(held));
                growth.text = self.text.grow(text[..end].trim_end());
            }
        }
        growth
    }

    /// What was written after the reasoning so far, with its calls. None as long as there may be reasoning.
    pub fn answer(&mut self, chat: &Chat) -> Option<&str> {
        self.advance(chat);
        match self.place {
            TurnState::Text { from, .. } => Some(self.raw[from..].trim_start()),
            TurnState::Begin | TurnState::Reasoning { .. } => None,
        }
    }

    /// Ends the turn after so many bytes of the [answer](Self::answer).
    pub fn cut(&mut self, bytes: usize) {
        if let TurnState::Text { from, .. } = self.place {
            let start = self.raw.len() - self.raw[from..].trim_start().len();
            self.cut = Some(start + bytes);
        }
    }

    /// The turn without its reasoning, as it was written.
    pub fn written(&self, chat: &Chat) -> String {
        let turn = self.parsed(chat);
        if turn.calls.is_empty() {
            return turn.text;
        }
        let written = self.whole(chat);
        let text = match self.has_reasoning(&written) {
            true => chat.learned.format.after_reasoning(&written, self.opened),
            false => &written,
        };
        text.trim().to_owned()
    }

    fn whole(&self, chat: &Chat) -> String {
        match self.cut {
            Some(end) => self.raw[..end].to_owned(),
            None => chat.written(&self.tokens),
        }
    }

    /// Whether reasoning was opened, by the prompt or by the turn.
    fn has_reasoning(&self, written: &str) -> bool {
        self.opened.is_some() || TAGS.iter().any(|[open, _]| written.trim_start().starts_with(open))
    }

    /// Looks at the tokens that are new.
    fn advance(&mut self, chat: &Chat) {
        self.decode(chat);
        if matches!(self.place, TurnState::Begin) {
            let text = self.raw.trim_start();
            let at = |[open, close]: Tags| {
                let from = self.raw.len() - text.len() + open.len();
                text.starts_with(open).then_some(TurnState::Reasoning { from, close, seen: from })
            };
            let tags = match &self.opened {
                Some(tags) => std::slice::from_ref(tags),
                None => chat.learned.format.tags(),
            };
            let begun = tags.iter().find_map(|tags| at(*tags));
            let may_begin = tags.iter().any(|[open, _]| open.starts_with(text));
            self.place = match (begun, self.opened) {
                (Some(reasoning), _) => reasoning,
                _ if may_begin => return,
                (None, Some([_, close])) => TurnState::Reasoning { from: 0, close, seen: 0 },
                (None, None) => TurnState::Text { from: 0, reasoning: (0, 0) },
            };
        }
        if let TurnState::Reasoning { from, close, seen } = &mut self.place {
            let (from, close) = (*from, *close);
            let Some(end) = self.raw[*seen..].find(close).map(|end| *seen + end) else {
                // A tag is ASCII, so it begins where a character does.
                let tail = self.raw.len().saturating_sub(close.len());
                *seen = (*seen..=tail.max(*seen))
                    .rev()
                    .find(|at| self.raw.is_char_boundary(*at))
                    .unwrap_or(*seen);
                return;
            };
            self.place = TurnState::Text { from: end + close.len(), reasoning: (from, end) };
            // A tag that is spelled in ordinary tokens may be none.
            let read = self.parsed(chat).reasoning.unwrap_or_default();
            self.is_unsure |= read != self.raw[from..end].trim();
        }
    }

    /// Adds the text of new tokens, up to the last whole character.
    fn decode(&mut self, chat: &Chat) {
        /// More tokens than a character has.
        const MOST: usize = 8;
        let tokens = vocabulary::without_end(&self.tokens, &chat.stop);
        let new = tokens.len().saturating_sub(self.decoded);
        if new == 0 {
            return;
        }
        // Some decoders drop a space at the start of a text.
        let before = self.decoded.saturating_sub(1);
        let context = chat.decode(&tokens[before..self.decoded]);
        let text = |end: usize| match chat.decode(&tokens[before..end]).strip_prefix(&context) {
            Some(text) => text.to_owned(),
            None => chat.decode(&tokens[self.decoded..end]),
        };
        let ends = (self.decoded + 1..=tokens.len()).rev().take(MOST);
        let whole = ends.map(|end| (end, text(end))).find(|(_, text)| !text.ends_with('\u{fffd}'));
        let (end, text) = match whole {
            Some(whole) => whole,
            None if new < MOST => return,
            // Bytes that are no text: what they become is not known before the end.
            None => {
                self.is_unsure = true;
                (tokens.len(), text(tokens.len()))
            }
        };
        self.raw += &text;
        self.decoded = end;
    }
}

impl GrowingText {
    /// What became certain of a text that has come this far: without what may still become a call.
    pub fn more(&mut self, so_far: &str) -> String {
        let certain = self.scan.certain(so_far.trim_end_matches('\u{fffd}'), &[], None);
        self.grow(so_far[..certain].trim_end())
    }

    /// What this text, which does not change any more, has in addition to what was taken.
    pub fn take(&mut self, certain: &str) -> String {
        let Some(more) = certain.strip_prefix(self.taken.as_str()) else { return String::new() };
        self.taken.push_str(more);
        more.to_owned()
    }

    /// The same of a text that is known to begin with what was taken.
    fn grow(&mut self, certain: &str) -> String {
        let more = certain.get(self.taken.len()..).unwrap_or_default();
        self.taken.push_str(more);
        more.to_owned()
    }
}

/// The length of the longest beginning of a tag at the end of a text.
fn begun(text: &str, tag: &str) -> usize {
    (1..tag.len()).rev().find(|length| text.ends_with(&tag[..*length])).unwrap_or(0)
}

/// How far a growing text was looked at.
#[derive(Debug, Default)]
struct Scan {
    at: usize,
    /// Of the line at `at`: whether it has more than the mark of a list, a blank after that, and words behind that.
    has_word: bool,
    has_gap: bool,
    is_prose: bool,
    /// Whether what begins at `at` may be a call.
    is_held: bool,
}

impl Scan {
    /// The length of the beginning of a text that stays as it is, whatever follows: without what may become a call of one of these
    /// tools. A call may follow this word, and a bracket. `text` begins with that of the last time.
    fn certain(&mut self, text: &str, tools: &[&str], word: Option<&str>) -> usize {
        while let Some(letter) = text[self.at..].chars().next().filter(|_| !self.is_held) {
            match self.opens(letter, text, tools, word) {
                None => break,
                Some(true) => self.is_held = true,
                Some(false) => self.pass(letter),
            }
        }
        self.at
    }

    /// Whether a call may begin here; none if that depends on what follows.
    fn opens(&self, letter: char, text: &str, tools: &[&str], word: Option<&str>) -> Option<bool> {
        let rest = &text[self.at..];
        let next = rest.chars().nth(1);
        let may_begin = || self.may_begin(&text[..self.at]);
        match letter {
            '<' => next.map(|next| next.is_alphabetic() || "/|_".contains(next)),
            '[' if may_begin() => Some(true),
            '[' => next.map(char::is_uppercase),
            '{' | '`' => Some(may_begin()),
            _ if !tools.iter().chain(&word).any(|name| name.starts_with(letter)) => Some(false),
            _ => {
                let is_of = |name: &str, open: char| match rest.strip_prefix(name).map(str::trim_start) {
                    None => (!name.starts_with(rest)).then_some(false),
                    Some("") => None,
                    Some(after) => Some(after.starts_with(open)),
                };
                let of_word = word.map_or(Some(false), |word| is_of(word, '['));
                let mut all: Vec<Option<bool>> = vec![of_word];
                if may_begin() {
                    all.extend(tools.iter().map(|tool| match rest.strip_prefix(tool) {
                        Some(after) if !after.is_empty() => Some(after.starts_with('(')),
                        _ => (!tool.starts_with(rest)).then_some(false),
                    }));
                }
                match all.contains(&Some(true)) {
                    true => Some(true),
                    false => (!all.contains(&None)).then_some(false),
                }
            }
        }
    }

    /// As `may_precede` of the lenient reading says of the beginning of the line, without reading it again.
    fn may_begin(&self, before: &str) -> bool {
        !self.has_word || !self.is_prose && before.trim_end().ends_with(':')
    }

    fn pass(&mut self, letter: char) {
        self.at += letter.len_utf8();
        if letter == '\n' {
            (self.has_word, self.has_gap, self.is_prose) = (false, false, false);
        } else if letter.is_whitespace() {
            self.has_gap |= self.has_word;
        } else if self.has_word || !(letter.is_ascii_digit() || "-*.,;`".contains(letter)) {
            self.is_prose |= self.has_gap;
            self.has_word = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is taken after each of these texts of a turn, and of its text at the end.
    fn taken(texts: &[&str], whole: &str) -> Vec<String> {
        taken_with(None, texts, whole)
    }

    fn taken_with(word: Option<&str>, texts: &[&str], whole: &str) -> Vec<String> {
        let mut growing = GrowingText::default();
        let mut taken: Vec<String> = texts
            .iter()
            .map(|text| {
                let text = text.trim_end_matches('\u{fffd}');
                let certain = growing.scan.certain(text, &["get_note"], word);
                growing.grow(text[..certain].trim_end())
            })
            .collect();
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
        assert_eq!(taken(&["Look: <", "Look: <tool"], "Look:"), ["Look:", "", ""]);
        assert_eq!(taken(&["a <", "a < b", "a < b <i>x"], "a < b <i>x</i>"), ["a", " < b", "", " <i>x</i>"]);
        assert_eq!(taken(&["Well\n", "Well\n{\"na"], "Well"), ["Well", "", ""]);
        assert_eq!(taken(&["get", "get_note(1"], ""), ["", "", ""]);
        assert_eq!(taken(&["get", "get some"], "get some"), ["", "get some", ""]);
        assert_eq!(taken(&["list[0] and [", "list[0] and [TOOL"], "list[0] and"), ["list[0] and", "", ""]);
        let taken = |texts: &[&str], whole: &str| taken_with(Some("functools"), texts, whole);
        assert_eq!(taken(&["So func", "So functools ", "So functools [{"], "So"), ["So", "", "", ""]);
        assert_eq!(taken(&["a func", "a functools b"], "a functools b"), ["a", " functools b", ""]);
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

    #[test]
    fn the_beginning_of_a_line_is_judged_as_the_parser_does() {
        for text in [
            "",
            "- ",
            "1. ",
            "Action: ",
            "To do: ",
            "a b: ",
            "one\n- ",
            "one: two\nAction:",
            "x ",
            "`",
            "12 a:",
        ] {
            let mut scan = Scan::default();
            text.chars().for_each(|letter| scan.pass(letter));
            let line = text.rsplit('\n').next().unwrap();
            assert_eq!(scan.may_begin(text), crate::format::may_precede(line), "{text:?}");
        }
    }

    #[test]
    fn the_work_for_a_token_does_not_grow_with_the_turn() {
        let folder =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/chat/qwen3");
        let chat = Chat::load(&folder).unwrap();
        for (prompt, text) in [("", "word "), ("<think>\n", "word "), ("", "{ [ a: <b "), ("", "漢 ")] {
            let mut turn = GrowingTurn::after(&chat, &chat.encode_text(prompt));
            let tokens = chat.encode_text(text);
            let began = std::time::Instant::now();
            for token in tokens.iter().cycle().take(60_000) {
                turn.tokens.push(*token);
                turn.more(&chat);
            }
            assert!(began.elapsed().as_secs() < 30, "{text:?}: {:?}", began.elapsed());
        }
    }

    #[test]
    fn a_turn_that_is_cut_within_its_answer_has_what_was_before() {
        let folder =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/chat/qwen3");
        let chat = Chat::load(&folder).unwrap();
        let mut turn = GrowingTurn::after(&chat, &chat.encode_text("<think>\n"));
        turn.tokens = chat.encode_text("Hm.");
        assert_eq!(turn.answer(&chat), None);
        turn.tokens = chat.encode_text("Hm.</think>\n\n```python\nprint(1)END and more");
        let at = turn.answer(&chat).unwrap().find("END").unwrap();
        turn.cut(at);
        let read = turn.parsed(&chat);
        assert_eq!((read.reasoning.as_deref(), read.text.as_str()), (Some("Hm."), "```python\nprint(1)"));
    }
}
